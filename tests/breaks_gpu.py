# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks, see breaks.py: kernels and memory of devices, waiting for devices, and the
bundle that runs first on a machine with a device."""
from breaks import of

of("common/engine/node_frames.c", "tests/gpu/test_node",
   a_node_reads_state_itself=("static clv_code on_state_get(", "if (!m->o.backend->memory)", "if (m)"))
of("common/engine/context_run.c", "tests/gpu/test_node",
   steps_on_a_device_take_the_hosts_time=("static const clv_backend *timing_backend(", "|| w->kind == WORK_STEP", ""))
of("common/engine/context_trace.c", "tests/gpu/test_node",
   a_trace_shows_the_hosts_time=("static int64_t get_end_ns(", "w->begin_ns + clv_work_duration_ns(e, w)", "clv_contexts_now(e)"))
of("common/engine/context_value.c", "tests/gpu/test_node",
   what_is_wanted_late_is_waited_for=("static clv_code get_host_copy(", "CLV_TRY(clv_copy_start(e, v->tensor, &v->copy, err));",
      "CLV_TRY(clv_pool_alloc_tensor(e->env.pool, v->tensor->dtype, &v->tensor->shape, &v->host_copy, err)); *ret = v->host_copy; if (*ret) return clv_backend_get(v->tensor->device, v->host_copy->data, v->tensor->data, v->tensor->bytes, err);"))
CHUNKS, COMING = "tests/gpu/test_chunks", "tests/unit/link/test_device_copy"
of("common/engine/node_frames.c", CHUNKS,
   a_program_gets_what_is_still_coming=("clv_code clv_node_init_contexts(", ".has_program = n->o.on_program != NULL", ".has_program = false"))
of("common/engine/context_outbox.c", CHUNKS,
   nothing_leaves_while_it_comes=("bool clv_outbox_can_stream(", "name || !e->env.has_program", "name > bytes"),
   a_master_copies_before_it_sends=("bool clv_outbox_can_stream(", "name || !e->env.has_program", "!e->env.has_program"))
of("common/engine/node_devices.c", CHUNKS,
   who_computes_makes_copies=("void clv_node_post_copies(", "post_work(&n->copy_thread, w)", "post_work(&n->device_thread, w)"))
of("common/engine/context_backward.c", CHUNKS,
   gradients_are_copied_first=("static bool can_stream_input_grad(", "t->value && ", "false && "))
of("kernels/cuda/staging.c", CHUNKS,
   nobody_hears_of_a_piece=("clv_code clv_gpu_copy_to_host(", "if (progress->report)", "if (progress->report && copied_bytes == bytes)"))
of("common/net/link/send_queue.c", COMING,
   a_chunk_leaves_before_its_bytes_have_come=("static copy_progress check_copied_or_suspend(", "d->copy_waiter.awaited_bytes = bytes;", "d->copy_waiter.awaited_bytes = bytes / 2;"),
   a_parked_tensor_gets_another_number=("static copy_progress send_packet_chunked(", "if (!p->has_transfer_id)", "if (!p->bytes_queued)"),
   frames_overtake_what_is_parked=("static send_decision decide_send(", "|| d->suspended_packet", ""),
   what_is_parked_stays_when_the_link_ends=("void clv_send_queue_end(", "clv_steal(&d->suspended_packet)", "NULL"))
of("common/net/link/device_copy.c", COMING,
   a_failure_is_told_nobody=("void clv_device_copy_set_progress(", "if (failure) c->failure = *failure;", ";"))

of("kernels/cuda/device_int.cuh", "tests/gpu/test_cuda_types batchnorm",
   a_column_is_summed_in_part=("void gpu_sum_columns_kernel(", "j += GPU_BLOCK / 32", "j += GPU_BLOCK / 16"))
of("tests/gpu/test_cuda.c", "tests/proof/test_proof.py",
   less_is_done_under_both_sanitizers=("static bool is_too_big(", "CLV_THREAD_SANITIZED", "CLV_SANITIZED"))

# ---- bf16 ----------------------------------------------------------------------------------------
of("kernels/cuda/attention.c", "tests/gpu/test_cuda_types attention",
   attention_of_a_bf16_session_is_f32=("CLV_CUDA_OP(attention)", ".bf16 = true", ".bf16 = false"),
   weights_of_attention_are_read_as_f32=("static cuda_attention_weights reserve_weights(", "k->bf16 ? reserve_buffer(next_address, n * sizeof(cuda_bf16)) : w.x", "w.x"))
of("kernels/cuda/attention.c", "tests/gpu/test_cuda_types attention",
   tiles_begin_at_the_first_row=("static clv_code backward_tile(", "size_t offset = h->first_row * h->width;", "size_t offset = 0;"),
   a_tile_forgets_those_before_it=("static clv_code backward_tile(", "float beta = h->first_row ? 1 : 0;", "float beta = 0;"))
of("kernels/cuda/matmul.c", "tests/gpu/test_cuda_types matmul",
   products_of_a_bf16_session_are_f32=("CLV_CUDA_OP(matmul)", ".bf16 = true", ".bf16 = false"))
of("kernels/cuda/conv2d.c", "tests/gpu/test_cuda_types conv1d",
   rows_of_a_bf16_session_are_f32=("CLV_CUDA_OP(conv1d)", ".bf16 = true", ".bf16 = false"),
   rounded_columns_are_read_as_f32=("static const void *operand_address(", "k->bf16 ? sizeof(cuda_bf16) : sizeof(float)", "sizeof(float)"))
of("kernels/kernels.c", "tests/gpu/test_cuda_types mul",
   channels_that_lie_last_are_stepped_as_first=("clv_broadcast clv_broadcast_channels_last", "{0, 2, 3, 1}", "{0, 1, 2, 3}"))
of("kernels/cuda/broadcast.cu", "tests/gpu/test_cuda_types mul",
   factors_that_stand_for_several_are_read_as_f32=("double compute_term(", "read_value(other, f.other_is_bf16, other_index)", "read_value(other, false, other_index)"))
of("kernels/cuda/broadcast.c", "tests/gpu/test_cuda_bf16",
   gates_of_an_image_are_turned=("clv_code clv_gpu_broadcast_open(", "* k->r.d.in[i].dim[3] == 1", "* k->r.d.in[i].dim[3] == 0"))
of("kernels/cuda/pointwise.cu", "tests/gpu/test_backend",
   packs_begin_anywhere=("static size_t count_packs(", "bits % sizeof(map_pack<T>) ? 0 : n / map_pack<T>::n", "n / map_pack<T>::n + 0 * bits"))

# ---- bases that are frozen -----------------------------------------------------------------------
of("kernels/cuda/linear.c", "tests/gpu/test_cuda_types linear",
   narrow_weights_are_factors_of_any_session=("static bool needs_widening(", "k->r.d.bf16_weight && !k->bf16", "k->r.d.bf16_weight && k->r.d.tf32"),
   wide_weights_have_no_room=("static clv_code linear_open(", "+ count_widened_bytes(k) +", "+"),
   a_bias_beside_a_narrow_weight_stays=("static clv_code linear_backward_weight(", "if (!k->r.d.attrs.bias) return CLV_OK;", "if (!k->r.d.attrs.bias || k->r.d.bf16_weight) return CLV_OK;"),
   every_part_of_a_wide_weight_is_the_first=("static clv_code multiply_by_weight(", "w + first_row * p.w_columns", "w + 0 * first_row * p.w_columns"),
   sums_of_a_wide_weight_begin_anew=("static cuda_product_args factors_of_part(", "part.beta = first_row ? 1 : 0;", "part.beta = 0;"),
   each_part_of_a_sum_has_the_bias=("static clv_code split_product(", "if (!has_outputs_as_rows) part.epilogue = CLV_CUDA_EPILOGUE_NONE;", "(void)has_outputs_as_rows;"),
   frozen_weights_get_a_gradient=("static bool is_weight_trained(", "&& !k->r.d.bf16_weight", ""))
DEVICE_BASES, DEVICE_BASES_NET = "tests/unit/service/test_device_bases", "tests/net/hostile/test_device_bases.py"
of("worker/store/shared_tensors.c", DEVICE_BASES,
   a_device_does_not_matter=("static bool has_key(", "x->backend == key->backend &&", ""),
   weights_stay_in_what_a_device_gets_back=("static void free_device_memory(", "(void)!clv_backend_fill(x->backend, x->data, 0, x->bytes, &why);", ";"),
   who_takes_a_base_has_it_too_soon=("static clv_code copy_part_to_device(", "if (code == CLV_OK) code = clv_backend_finish(x->backend, err);", ""),
   a_device_gets_its_memory_back_some_time=("static void free_device_memory(", "(void)!clv_backend_finish(x->backend, &why);", ""),
   every_part_lies_first=("static clv_code fill_parts(", "first_element * element_bytes", "0 * first_element * element_bytes"))
of("worker/service/load_module.c", DEVICE_BASES_NET,
   every_session_has_a_base_of_its_own_on_a_device=("static clv_code list_shareable_params(", "|| !r->frozen_has_no_grads_or_moments", "|| true"))
of("worker/service/artifact.c", DEVICE_BASES_NET,
   strangers_share_on_a_device=("static clv_code share_tensor(", 'spec->shared ? "" : f->session->owner', 'spec ? "" : f->session->owner'),
   a_base_on_a_device_is_given_out=("static clv_code withhold_frozen_params(", "spec->readable != CLV_READ_ALL", "spec->readable > CLV_READ_NONE"))
of("common/engine/module_memory.c", DEVICE_BASES_NET,
   what_a_device_lends_costs_nothing=("static clv_code charge_known_memory(", "m->params->total_bytes + m->params->shared_bytes", "m->params->total_bytes"))
of("common/engine/module_memory.c", "tests/unit/engine/test_far",
   a_base_may_lie_anywhere=("static bool can_read_in_place(", "t->device && strcmp(t->device->device, b->device) == 0", "t != NULL"),
   a_base_goes_while_it_is_read=("static void release_shared_params(", "(void)!clv_backend_finish(m->o.backend, &why);", "(void)why;"))
of("master/plan/stage_memory.c", "tests/net/training/test_device_memory.py planned_adapter_memory_matches_the_charge",
   a_lent_base_is_planned_with_a_copy=("static bool has_shared_weights(", "return true;", "continue;"))

# ---- memory --------------------------------------------------------------------------------------
of("master/plan/stage_memory.c", "tests/net/training/test_device_memory.py",
   evaluations_take_nothing_of_a_device=("static clv_code add_evaluation_memory(", "if (!c->data.test.n", "if (c->data.test.n"),
   a_device_is_planned_as_a_processor=("clv_code clv_stage_usage_compute(", 'if (strncmp(clv_stage_device(b, stage), "cuda", 4) != 0)', "if (stage + 1)"),
   what_a_worker_says_of_auto_is_not_heard=("const char *clv_stage_device(", "reported_device[0] ? reported_device", "!reported_device ? reported_device"))
of("master/watch/hello.c", "tests/net/training/test_device_memory.py plan_ask_resolves_device_auto_per_worker",
   devices_are_shown_and_not_noted=("static clv_code append_stage(", "clv_blueprint_set_device(b, i, h->device_names[device]);", ";"))
of("common/net/fair/account.c", "tests/unit/fair/test_account",
   a_peak_falls_with_what_is_used=("static void raise_peak(", "used > peak", "used != peak"))

of("kernels/cuda/recording.c", "tests/gpu/test_recording",
   graphs_are_charged_by_a_guess=("static clv_code recording_end(", "*ret = graph;", "*ret = graph, *ret_bytes = 1024;"))

# ---- the bundle for a machine with a device ------------------------------------------------------
BUNDLE = "tests/gpu/test_bundle.py"
of("tests/gpu/run.py", BUNDLE + " next_run_resumes_at_the_first_missing_piece",
   the_bundle_does_everything_again=("", "if name in results and name not in a.pieces and", "if False and"))
of("tests/gpu/run.py", BUNDLE + " next_run_repeats_the_piece_that_was_killed",
   a_piece_that_was_killed_is_done=("", 'and results[name]["result"] != "interrupted"', ""),
   two_of_them_are_at_work=("", "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"))
of("tests/gpu/run.py", BUNDLE + " piece_that_was_killed_twice_is_marked_failed",
   a_piece_that_never_ends_begins_for_ever=("", 'r["times"] >= MOST_TIMES', 'r["times"] < 0'))
of("tests/gpu/pieces.py", BUNDLE + " next_run_repeats_the_piece_that_was_killed",
   what_a_piece_started_outlives_it=("", "ctypes.CDLL(None).prctl(1, signal.SIGKILL)", "pass"))
of("tests/gpu/pieces.py", BUNDLE + " each_piece_runs_on_the_simulated_device",
   programs_under_a_checker_get_other_arguments=("", '("gpu/steps", "lstm", "2", "3", "f32", "2")', '("gpu/steps", "lstm", "2", "f32", "2")'))
of("tests/gpu/speed/shares_more.c", BUNDLE + " every_kernel_has_a_row_in_shares",
   a_kernel_has_no_row=("", '{"times a weight", 8, .f = multiply_by_weight},', '{"times a weight", 8, .f = false ? multiply_by_weight : NULL},'),
   a_kernel_has_no_row_in_bf16=("", '{"scale, bf16", 4, .map_kernel = clv_gpu_scale, .is_channels_last = true},', '{"scale, bf16", 4, .map_kernel = clv_gpu_scale},'))
of("tests/gpu/speed/torch_steps.py", BUNDLE + " missing_pytorch_build_or_piece_is_named",
   no_pytorch_is_a_traceback=("", "except ImportError as why:\n    print(f\"no PyTorch", "except SyntaxError as why:\n    print(f\"no PyTorch"))
of("tests/gpu/beside_torch.py", BUNDLE + " parity_is_compared_with_pytorch_in_f64",
   a_nan_is_in_parity=("", "not row[1] <= limit_of(row[2])", "row[1] > limit_of(row[2])"),
   losses_alone_are_compared=("", 'for name, ours, own in judge["apart"]]', 'for name, ours, own in judge["apart"][:0]]'),
   what_pytorch_does_not_know_is_right=("", "if len(vague) * FEW > len(rows)", "if False"))
of("tests/gpu/predict.py", BUNDLE + " predicted_launch_counts_match_the_real_ones",
   a_prediction_forgets_launches=("", 'self.add("heads", n * t * h * (F + B), value=1, times=4)', 'self.add("heads", n * t * h * (F + B), value=1)'))
of("tests/gpu/run.py", BUNDLE + " programs_that_do_not_start_are_reported_first",
   programs_that_do_not_start_are_told_by_each_piece=("", "starts() try: os.makedirs(", "try:\n        os.makedirs("))
of("tests/gpu/run.py", BUNDLE + " interrupt_names_the_piece_without_a_traceback",
   an_interrupt_is_a_traceback=("", "except KeyboardInterrupt:", "except SystemError:"))
of("tests/gpu/BUNDLE.md", BUNDLE + " promises_in_bundle_md_name_existing_tests",
   a_promise_names_no_test=("", "`products_are_column_major`", "`products_are_row_major`"))
LIBRARY = "tests/gpu/nvidia/test_library.py"
of("tests/gpu/predict.py", LIBRARY + " stale_page_is_reported_line_by_line",
   registers_that_are_stale_pass=("", "if now[name] != then[name])", "if False)"),
   a_new_kernel_needs_no_registers=("", "for name in sorted(set(now) - set(then)))", "for name in ())"))
of("kernels/cuda/nvidia/runtime.c", LIBRARY + " a_driver_that_is_too_old_is_named",
   an_old_driver_is_a_missing_one=("static clv_code fail_driver(", "|| v == 0", "|| v"))
of("kernels/cuda/nvidia/graph.c", LIBRARY + " a_part_of_cudnn_that_is_damaged_is_named",
   a_part_of_cudnn_is_missing_without_a_word=("clv_code clv_nvidia_dnn_fail(", "lacks_sublibrary ? \"a part", "!lacks_sublibrary ? \"a part"))

# ---- who waits -----------------------------------------------------------------------------------
of("common/engine/node_frames.c", "tests/gpu/test_node",
   a_node_writes_state_itself=("static clv_code on_state_put(", "if (m->o.backend->memory)", "if (!m)"))
of("common/engine/node_files.c", "tests/gpu/test_node",
   what_is_charged_for_a_file_stays=("void clv_node_drop_file(", "if (f->file) clv_pool_discharge(n->o.pool, f->charged);", ""))
of("common/engine/context_change.c", "tests/gpu/test_node",
   a_node_takes_statistics_back_itself=("void clv_context_restore_buffers(", "if (clv_contexts_module(e, i)->o.backend->memory)", "if (false)"))
of("common/engine/node_devices.c", "tests/gpu/test_node",
   nobody_pays_for_what_copies_pass=("static clv_code make_branch(", "size_t bytes = device->branch_bytes;", "size_t bytes = 0;"))

# ---- hosts without a device ----------------------------------------------------------------------
of("kernels/load/load.c", "tests/gpu/nvidia/test_devices.py device_auto_falls_back_to_cpu_without_a_gpu",
   libraries_are_opened_for_no_device=("static clv_code check_has_device(", "!all_reasons || ", ""))
of("kernels/cuda/nvidia/nvidia.c", LIBRARY + " without_a_driver_the_answer_is_clean",
   libraries_are_opened_before_devices_are_counted=("static clv_code count_devices(", "CLV_TRY(clv_nvidia_count(ret, err)); return check_libraries(err);", "CLV_TRY(check_libraries(err)); return clv_nvidia_count(ret, err);"))
