# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks, see breaks.py: bf16 products, attention, blocks that backward computes
again."""
from breaks import of

# ---- products in bf16 on processors --------------------------------------------------------------
PLANS = "tests/unit/graph/test_plan_bf16"
of("kernels/cpu/linear.c", PLANS, a_linear_of_a_bf16_session_is_f32=("static clv_code linear_prepare(", "if (d->bf16)", "if (d->bf16 && !ret)"))
of("kernels/cpu/linear_bf16.c", PLANS,
   a_second_gradient_replaces_the_first=("static clv_code linear_backward_weight(", ".accumulate = a->accumulate", ".accumulate = false"),
   the_gradients_factor_is_the_forwards=("static clv_code linear_backward_input(", "address_at_offset(a->cache, k->backward_weights_offset)", "address_at_offset(a->cache, 0)"),
   weights_stored_transposed_are_taken_as_they_lie=("static cpu_pairs_factor make_weight_factor(", ".is_transposed = transposes != is_transposed", ".is_transposed = transposes"),
   a_bias_is_left_out_in_bf16=("static clv_code linear_forward(", "k->k.d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL", "NULL"))
of("kernels/cpu/pairs.c", PLANS,
   blocks_at_an_edge_write_behind_it=("static void multiply_block(", "i + PAIRS_BLOCK > p->m || j + PAIRS_BLOCK > p->n", "false"),
   the_last_part_of_a_factor_is_what_lies_there=("INLINE __m512 load_values(", "row < f->rows ? make_lane_mask(column, f->columns) : 0", "0xFFFF"),
   the_rest_of_a_long_sum_begins_anew=("static const float *initial_sums(", "p->accumulate || t->first_tile ? get_c_row_stride(p) : 0", "p->accumulate ? get_c_row_stride(p) : 0"),
   a_bias_has_the_last_rows_alone=("INLINE void pack_pairs_across_rows(", "sums && first_tile ? _mm512_loadu_ps(sums + s * PAIRS_SIDE) : _mm512_setzero_ps()", "_mm512_setzero_ps()"),
   the_second_half_of_a_block_is_the_first=("INLINE void pack_pairs_across_rows(", "(block * STRIPS_PER_BLOCK + s) * PAIRS_SIDE", "block * STRIPS_PER_BLOCK * PAIRS_SIDE"),
   a_second_gradient_of_a_bias_replaces_the_first=("static void store_sums(", "p->accumulate ? p->sums[i] + sums[i - first_row] : sums[i - first_row]", "sums[i - first_row]"),
   parts_of_a_sum_take_the_first_weights=("static void multiply_block(", " + t->first_tile * PAIRS_TILE", ""))
of("kernels/cpu/avx512_bf16.c", PLANS, rows_behind_the_eighth_are_the_first=("INLINE void multiply_rows(", " + row % PAIRS_SIDE * PAIRS_DEPTH", ""))
FALLBACK = "tests/unit/cpu/test_fallback"
of("kernels/cpu/backend.c", FALLBACK, amx_that_is_refused_has_its_name=("const char *clv_cpu_isa_name(", "is_amx_ready ||", "true ||"))
BF16 = "tests/net/training/test_bf16.py"
of("master/api/core/workers.c", BF16, libraries_of_another_kind_are_not_told=("static void compare_processors(", "strcmp(worker_libraries, own_libraries) != 0", "false"))
of("master/train/state.c", BF16, a_run_goes_on_with_other_libraries_in_silence=("static void note_different_machine(", "i < CLV_COUNT(compared_facts)", "i < 1"))

# ---- blocks that backward computes again ---------------------------------------------------------
RECOMPUTE, READS, BLOCKS = "tests/unit/graph/test_recompute", "tests/unit/graph/test_reads", "tests/net/training/test_recompute_blocks.py"
of("common/model/graph/plan_recompute.c", RECOMPUTE,
   what_backward_reads_is_not_made_again=("void clv_plan_find_recomputed(", "is_needed[i] |= saves & CLV_SAVE_OUT ||", "is_needed[i] |="),
   only_the_last_op_of_a_block_is_made_again=("void clv_plan_find_recomputed(", "mark_inputs(p, i, saves, is_needed[i], is_needed);", "mark_inputs(p, i, saves, false, is_needed);"))
of("common/model/graph/plan_forward.c", RECOMPUTE, running_statistics_move_twice=("static clv_code add_forward_step(", "if (is_recompute) CLV_TRY(add_discarded_statistics(p, node, &s, err));", ""))
of("common/model/graph/plan_backward.c", RECOMPUTE,
   backward_reads_what_was_not_kept=("static clv_code add_recomputed_node_steps(", "clv_plan_bind_input_bufs(p, node, err)", "CLV_OK"),
   what_is_made_again_stays_for_the_last_phase=("static bool has_deferred_weight_gradient(", "!clv_plan_is_recomputed(p, node) && ", ""))
of("common/model/graph/reads.c", READS, a_forward_that_is_repeated_reads_no_weights=("bool clv_graph_backward_reads_params(", "reads_params |= reads_params_in_recompute(g, nodes);", ""))
of("common/model/graph/plan.c", READS, weights_may_change_before_a_forward_is_repeated=("static void set_plan_info(", "(run == clv_plan_run_forward && !is_forward)", "false"))
of("worker/service/load_module.c", BLOCKS, workers_keep_all_the_same=("static clv_code add_node(", "g->nodes[node].recompute_block = w->recompute_block;", ""))
of("common/model/graph/blocks.c", BLOCKS,
   numbered_blocks_are_one=("static bool has_numbers_after_name(", "return true;", "return last > first + 1000;"),
   blocks_may_overlap=("clv_code clv_graph_mark_recompute(", "if (g->nodes[i].recompute_block)", "if (false)"))
API_MODULES = "tests/net/api/test_api_modules.py"
of("master/api/core/module.c", API_MODULES, a_programs_blocks_are_kept=("static cleave_status fill_new_module(", "TRY_API(api_mark_recompute_blocks(m, o, error));", ""))
of("master/api/core/recompute_blocks.c", API_MODULES, ranges_may_be_the_wrong_way_round=("static clv_code mark_blocks_of_entry(", "if (first > last)", "if (false)"))
of("common/model/graph/lora.c", "tests/unit/graph/test_lora", adapters_are_kept_in_blocks_that_are_not=("static clv_code add_adapter_node(", "w->to->nodes[*at].recompute_block = n->recompute_block;", ""))

# ---- attention -----------------------------------------------------------------------------------
of("kernels/cpu/gelu.c", "tests/ops/test_pair gelu",
   the_tail_is_on_one_side=("CPU_INLINE float gelu_cdf(", "x < 0 ? tail : 1 - tail", "1 - tail"),
   the_slope_has_no_bell=("CPU_INLINE float gelu_derivative(", "+ x * (half_square_exp * 0.39894228f)", ""))
of("kernels/cpu/attention.c", "tests/ops/test_pair attention",
   gradients_of_keys_begin_with_what_lies_there=("static void backward_tile(", "s->dp, s->queries, !is_first_tile, s->dkeys);", "s->dp, s->queries, true, s->dkeys);"),
   keys_that_nobody_meets_keep_a_gradient=("static void backward_heads(", "memset(s.dvalues + n_first_tile_keys * width, 0, n_other_keys * width * sizeof(float));", ""),
   places_behind_the_length_keep_a_gradient=("static void store_gradients(", "memset(x + key_index(h) + s * key_row_size(k), 0, width * sizeof *x);", ";"))

# ---- packed sequences ----------------------------------------------------------------------------
PACKED, SESSIONS = "tests/unit/graph/test_packed", "tests/net/training/test_packed_sessions.py"
of("kernels/ops/dropout.c", PACKED, dropout_counts_the_rows_that_are_there=("static clv_code drop_packed(", "(size_t)(n * d->attrs.packed) * row_size", "start"))
of("kernels/cpu/dropout.c", PACKED,
   every_sequence_begins_with_a_block=("static void draw_sequence_masks(", "size_t n_skipped_words = (first_index + at) % 4;", "size_t n_skipped_words = 0;"),
   every_sequence_draws_the_same=("static void draw_sequence_masks(", "first_index = n * j->values_per_sequence", "first_index = 0"))
of("kernels/cpu/attention.c", PACKED,
   rows_of_no_sequence_are_what_lies_there=("static clv_code run_heads(", "zero_unused_rows(k, a, fn == compute_backward_shares);", ""),
   sequences_meet_the_next_ones_keys=("static attention_head make_head(", "h.first_query_row = h.first_key_row = clv_packed_rows_before(lengths, n);", "h.first_query_row = clv_packed_rows_before(lengths, n); h.first_key_row = 0;"))
of("kernels/ops/attention.c", PACKED, sequences_begin_where_they_would_padded=("static clv_code select_sample(", "s->query_row = s->key_row = clv_packed_rows_before(lengths, n);", "s->query_row = s->key_row = n * *ret;"))
of("kernels/ops/last.c", PACKED, the_first_place_is_the_last=("static clv_code find_step(", "k->d.attrs.first ? first_row : first_row + length - 1", "first_row + length - 1"))
of("kernels/cpu/rotary.c", PACKED, steps_are_counted_through_all_sequences=("static void rotate_sequences(", "j->k->angle_table + t * 2 * half_width", "j->k->angle_table + (i / j->k->heads) % j->k->steps * 2 * half_width"))
of("kernels/cpu/positions.c", PACKED, places_have_the_gradient_of_the_first_sequence=("static void sum_packed_gradients(", "dy += n_values;", ""))
of("kernels/ops/rules.c", PACKED, more_places_than_rows_are_taken=("clv_code clv_check_packed(", "if (total <= rows) continue;", "if (total <= rows || i) continue;"))
of("common/model/graph/pack.c", PACKED,
   any_op_is_packed=("static clv_code pack_node(", 'return fail_not_packable(n, "it cannot separate one sequence from the next", err);', "return CLV_OK;"),
   places_are_a_dimension_like_others=("static clv_code adjust_dim_attrs(", "if (axis < 2)", "if (axis < 1)"),
   any_slice_of_places_is_the_first=("static bool is_first_position_slice(", "clv_slice_start(&n->attrs, p->n_positions, &stop) == 0 && stop == 1 &&", ""),
   attention_without_lengths_is_packed=("static clv_code add_lengths_input(", "if (clv_op_def_of(n->op)->n_in > 1 &&", "if (!n &&"))
of("common/model/graph/graph.c", PACKED, a_batch_of_packed_sequences_has_its_records_rows=("clv_code clv_graph_set_batch(", "CLV_MAX(g->nodes[i].max_positions, 1)", "1"))
of("common/model/graph/slice.c", PACKED, behind_a_cut_nobody_knows_of_places=("static clv_code add_layers(", "s->to->nodes[s->new_nodes[i]].max_positions = n->max_positions;", ""))
of("common/engine/module_memory.c", "tests/unit/engine/test_charge",
   a_plan_at_work_is_forgotten=("static clv_code find_plan_entry(", "if (!p->plan || p->n_calls_in_use) continue;", "if (!p->plan) continue;"),
   every_plan_is_kept=("static clv_code find_plan_entry(", "(is_full || (m->graph->has_per_input_batches && n_idle >= MAX_IDLE_PLANS))", "is_full"),
   what_was_paid_for_a_plan_stays_paid=("static void free_plan(", "if (pool_to_charge(m)) clv_module_discharge(m, pool_to_charge(m), p->charged_bytes);", ""),
   the_plan_used_last_is_forgotten=("static clv_code find_plan_entry(", "p->last_used < oldest->last_used", "p->last_used > oldest->last_used"))
of("master/train/packed.c", SESSIONS + " packed_losses_match_padded_losses",
   rows_of_no_sequence_have_a_label=("clv_code clv_trainer_pack_labels(", "(int64_t)t->config->loss.ignore_index", "0"))
of("master/train/packed.c", SESSIONS + " packed_predictions_match_padded_predictions",
   answers_stay_packed=("static void copy_positions(", "is_unpacking ? padded_sequence : packed", "is_unpacking ? padded : packed"))
of("master/train/packed.c", SESSIONS + " shorter_sequences_send_fewer_bytes",
   as_many_rows_as_padded=("clv_code clv_trainer_select_sequences(", "(n_used_rows + rows_multiple - 1) / rows_multiple * rows_multiple", "max_rows"))
of("master/plan/lengths.c", SESSIONS + " plan_says_that_lengths_are_visible",
   places_show_and_plan_is_silent=("void clv_lengths_describe(", "if (sends_records && b->lengths_input >= 0)", "if (!b->n_stages)"))
of("master/plan/lengths.c", SESSIONS + " plan_says_that_lengths_are_visible",
   all_sequences_are_full=("static double compute_mean_filled_share(", "return b->mean_positions > 0 && filled_share < 1 ? filled_share : 1;", "return filled_share > 2 ? filled_share : 1;"),
   lengths_are_counted_of_full_ones=("void clv_run_data_measure_lengths(", "range.sum / (double)n", "(double)range.max"))
of("worker/service/load_module.c", SESSIONS + " every_cut_of_packed_gives_the_same_bits",
   layers_of_a_worker_are_counted_from_its_first=("static clv_code add_node(", "w->name, w->uncut_index, in", "w->name, index, in"))
CUDA_PACKED, CUDA_OPS = "tests/gpu/test_cuda_packed", "tests/gpu/test_cuda"
of("common/model/graph/plan_memory.c", "tests/net/training/test_packed_cuda.py",
   what_is_drawn_lies_in_a_gradient=("static void place_caller_copies(", "p->rng_position_offset = CLV_MAX(end[0], end[1]);", "p->rng_position_offset = end[0];"))
of("common/model/hf/encoder.c", "tests/unit/hf/test_hf_graph", types_are_those_of_tokens=("static clv_code add_first_token_type(", "b->c->n_token_types, -1, 0, &rows, err", "b->c->vocabulary, -1, -1, &rows, err"))
of("kernels/cpu/embedding.c", "tests/ops/test_golden embedding", the_row_of_pads_learns=("static void add_gradient_columns(", "row == j->positions.padding", "row < 0"))
of("kernels/ops/embedding.c", "tests/ops/test_golden embedding", the_row_of_pads_learns_in_the_reference=("static clv_code embedding_backward_weight(", "row == l.padding", "row < 0"))
of("common/model/hf/config_rope.c", "tests/unit/hf/test_hf_config", a_stale_base_counts=("clv_code clv_hf_apply_rope(", "from->theta > 0", "false"))
of("common/model/hf/config.c", "tests/unit/hf/test_hf_config", labels_have_one_place=("static clv_code apply_overriding_keys(", "if (r->num_labels)", "if (false)"))
of("master/data/padding_check.c", "tests/unit/plan/test_data_fits",
   pads_inside_are_numbered=("static bool has_no_pad_inside(", "return position == length;", "return position <= length;"),
   texts_of_pads_alone_are_scored=("static bool is_scored_token_last(", "return position + 1 == length;", "return position + 1 == length || !length;"),
   labels_are_not_looked_at=("bool clv_labels_are_own_tokens(", "return m->n_same_position &&", "return m->n_same_position > m->n_comparable &&"),
   constant_texts_count=("static void compare_labels(", "if (label == ignored_label || same_position_token == clv_tensor_element_as_integer(t->ids, at + 1)) continue;", "if (label == ignored_label) continue;"))
of("common/model/hf/names.c", "tests/net/training/test_hf.py", blocks_of_vit_have_one_name=("const char *clv_hf_name_in_memory(", "family == CLV_HF_VIT &&", "false &&"))
of("master/plan/adapter_file.c", "tests/net/training/test_lora.py", saved_modules_are_dropped=("static void mark_stages_of_folder(", "if (s->folder_has_other_params) s->adapter_folder = folder;", ""),
   modules_that_do_not_learn_are_dropped=("static clv_code find_adapter_tensors(", "if (!needs_tensor && clv_weights_find_entry(a->file, file_names[n])) return refuse_tensor(p->name, err);", ""))
of("master/tokens/post_processor.c", "tests/unit/tokens/test_tokens", ends_of_a_template_are_skipped=("static clv_code finish_template(", "return set_end_tokens(f, at, before, after, err);", "return CLV_OK;"),
   texts_are_cut_at_either_end=("static clv_code check_direction(", "== 0) return CLV_OK;", ">= 0 || *what) return CLV_OK;"))
of("common/model/models/hf.c", SESSIONS + " layers_without_packing_support_are_named", images_are_packed=("clv_code clv_hf_model_add_layers(", "if (c->data.packed && !clv_hf_takes_tokens(&model))", "if (false)"))
of("kernels/ops/embedding.c", "tests/ops/test_refusals", numbers_without_a_column_are_less_any=("static clv_code check_columns(", "minus_column <= 0", "minus_column <= 1"))
of("kernels/cuda/moves.c", CUDA_OPS + " embedding", the_first_row_has_no_gradient_before_it=("static clv_code compute_row_0_grad(", "if (!a->accumulate) CLV_TRY(k->gpu->vendor->fill(k->gpu->stream, dw, 0, bytes, err));", "(void)bytes;"))
of("kernels/cuda/packed.cu", CUDA_PACKED,
   a_device_counts_a_length_that_is_refused=("static __global__ void compute_first_rows(", "gpu_refuse_value(f, n);", "(void)f;"),
   a_device_takes_more_places_than_rows=("static __global__ void compute_first_rows(", "static_cast<size_t>(length) > p.rows - row)", "false)"))
of("kernels/cuda/packed_int.cuh", CUDA_OPS + " rotary", rows_of_no_sequence_are_left_on_a_device=("static __global__ void gpu_visit_packed_kernel(", "f.fill_unused(first_unused + i);", "(void)i;"))
of("kernels/cuda/attention.cu", CUDA_OPS + " attention",
   pads_are_what_lies_there=("static __global__ void split_heads(", "y[i] = find_value_index(t, position, h, &offset) ? gpu_from_float<D>(x[offset + d]) : gpu_from_float<D>(0);", "if (find_value_index(t, position, h, &offset)) y[i] = gpu_from_float<D>(x[offset + d]);"),
   places_of_pads_are_saved=("static __device__ inline void convert_to_packed_row(", "row->saved_index = (begin + row->i) * h.heads + row->head;", "row->saved_index = row->i * h.heads + row->head;"))
of("kernels/cuda/pointwise.cu", CUDA_OPS + " dropout", a_device_draws_by_row=("static __global__ void drop_packed_values(", "bool is_kept = (words.v[i % 4] >> 8) >= dropout_threshold;", "bool is_kept = (words.v[row % 4] >> 8) >= dropout_threshold;"))
of("kernels/cuda/positions.cu", CUDA_OPS + " positions", a_device_adds_places_of_the_next_sequence=("static __global__ void sum_packed_grads(", "if (gpu_find_row(p, n * p.steps + i / width, &row))", "if (gpu_find_row(p, n * p.steps + i / width, &row) || row < p.rows)"))
of("kernels/cuda/last.cu", CUDA_OPS + " last", a_device_takes_the_last_place_for_the_first=("static __device__ inline bool find_end_row(", "e.takes_first ? begin : end - 1", "end - 1"))

# ---- a frozen front with a cache -----------------------------------------------------------------
CACHE = "tests/net/training/test_cache.py"
of("master/train/front_cache.c", CACHE,
   rows_are_sent_in_every_epoch=("clv_code clv_trainer_make_front_leaf(", "bool are_rows_at_worker = are_all_rows_sent(t, index, s->n);", "bool are_rows_at_worker = !s->n;"),
   rows_are_those_of_the_first_records=("clv_code clv_trainer_make_front_leaf(", "c->batch_numbers[i] = c->record_numbers[index[i]];", "c->batch_numbers[i] = (int64_t)(s->start + i);"),
   numbers_of_rows_are_places=("static clv_code draw_row_numbers(", "clv_rng_permutation(&stream, c->record_numbers, (size_t)c->worker_cache.records);", "for (uint32_t i = 0; stream.seed && i < c->worker_cache.records; i++) c->record_numbers[i] = i;"),
   the_front_has_dropout=("static clv_code compute_front_output(", ".evaluation = true", ".evaluation = false"),
   the_worker_is_not_told_of_the_end=("clv_code clv_trainer_end_cache(", "return cleave_cache_end(&t->cache.worker_cache, CACHE_DELETE_TIMEOUT_MS, ret_rows, err);", "(void)CACHE_DELETE_TIMEOUT_MS; return CLV_OK;"))
of("master/plan/cache.c", CACHE,
   a_front_that_learns_is_cached=("static const char *why_output_changes(", 'return b->stages[0].n_learning_params ? "it learns: add `freeze: true`" : NULL;', "return NULL;"),
   records_are_kept=("static const char *why_not_cacheable(", "if (b->stages[0].output_findings & CLV_FINDING_RAW_INPUT)", "if (false)"))
of("master/plan/schedule.c", CACHE,
   places_of_the_front_stay_empty=("static void number_instructions(", "if (b->has_cache && in->stage == 0) continue;", ""))
of("master/api/core/cached_rows.c", CACHE,
   any_worker_is_asked_to_keep=("static cleave_status check_cache(", "if (p->supports_row_cache) return CLEAVE_OK;", "return CLEAVE_OK;"))
of("master/api/core/may_send.c", CACHE,
   numbers_are_rows=("static clv_code describe_value(", "ret->input = tensor_index + 1 == f->n_tensors;", ";"))
of("master/run/run_cache.c", CACHE,
   other_records_have_the_same_rows=("static clv_code add_file_stamps(", "CLV_TRY(clv_data_list_file_stamps(c->data.train.items[i], lines, err));", "if (!lines) return clv_fail(err, CLV_INVALID, \" \");"))
of("master/train/front_cache.c", CACHE,
   some_rows_are_all=("static const char *find_worker_with_all_rows(", "|| rows != c->worker_cache.records", "|| !rows"),
   a_resumed_run_sends_all_again=("static const char *find_worker_with_all_rows(", "if (t->use != CLV_TRAINER_RESUMED_RUN) return NULL;", "if (t->use != CLV_TRAINER_NEW_RUN) return NULL;"))
CACHED = "tests/unit/plan/test_cached"
of("master/plan/cache.c", CACHED,
   pictures_may_be_cut_at_random=("static const char *why_output_changes(", "d->images.train_crop != CLV_TRAIN_CROP_CENTER", "false"),
   pictures_may_be_flipped=("static const char *why_output_changes(", "d->images.flip > 0", "false"),
   tokens_may_be_hidden=("static const char *why_output_changes(", "if (d->objective == CLV_LABELS_MASKED)", "if (false)"),
   packed_sequences_are_kept=("static const char *why_not_cacheable(", "if (b->lengths_input >= 0)", "if (false)"))
of("master/egress/gate.c", "tests/unit/egress/test_gate",
   numbers_are_admitted_as_rows=("", '"rows to be kept of", true', '"rows to be kept of", false'))
of("master/egress/policy.c", "tests/unit/egress/test_egress_policy",
   what_is_kept_needs_no_kind=("static const char *policy_kind_word(", '[CLV_EGRESS_CACHED] = "cached",', ""))
of("worker/service/caches.c", CACHE,
   expired_caches_stay=("void clv_service_evict_caches(", "uint32_t n_deleted = clv_caches_evict_expired(s->caches, (int64_t)(clv_wall_ms() / 1000));", "uint32_t n_deleted = 0;"),
   the_session_alone_says_for_how_long=("static clv_code get_cache_settings(", "CLV_MIN(c->keep_s, newest_settings->config->cache_ttl_ms / 1000)", "c->keep_s"),
   who_has_no_quota_may_keep=("bool clv_service_has_caches_for(", "s->caches && get_cache_quota(newest_settings, uri) > 0", "s->caches"))
of("common/engine/node_caches.c", CACHE,
   what_is_kept_is_not_the_value=("static clv_code load_cached_rows(", "replace_tensors(p, clv_steal(&t));", "memset(t->data, 0, t->bytes); replace_tensors(p, clv_steal(&t));"))
of("worker/store/caches.c", "tests/unit/store/test_caches",
   a_damaged_row_is_given=("static clv_code get_row(", "if (m.crc32c == compute_row_status(f, row, data).crc32c) return CLV_OK;", "return CLV_OK;"),
   a_damaged_row_stays=("static clv_code get_row(", "CLV_TRY(write_at(f, row_status_offset(f, row), &no_status, sizeof no_status, err));", "(void)no_status;"),
   nothing_expires=("static bool has_expired(", "return unused_s >= f->header.keep_s;", "return unused_s > INT64_MAX;"),
   an_expired_cache_is_used_until_it_is_swept=("static clv_code open_cache(", "if (is_right_key && !has_expired(f, now_s())) return CLV_OK;", "if (is_right_key) return CLV_OK;"),
   a_sweep_leaves_what_has_expired=("static bool sweep_file(", "bool is_kept = code == CLV_OK ? !has_expired(&f, time_s) : code != CLV_DATA_LOSS;", "bool is_kept = code != CLV_DATA_LOSS;"),
   an_unfinished_file_stays=("static bool sweep_file(", ": CLV_DATA_LOSS;", ": CLV_INVALID;"),
   what_did_not_fit_stays=("static clv_code make_cache(", "unlink(f->path.data);", ""),
   anybody_may_read_it=("static clv_code make_cache(", "O_CLOEXEC, 0600)", "O_CLOEXEC, 0644)"),
   links_are_followed=("static clv_code open_file(", "O_RDWR | O_NOFOLLOW | O_CLOEXEC", "O_RDONLY | O_CLOEXEC"),
   one_length_is_as_good_as_another=("static clv_code open_file(", "if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->header.file_bytes)", "if (false)"),
   another_form_is_taken=("static bool has_same_layout(", "return a->n_records == b->n_records && a->dtype == b->dtype && clv_shape_equal(&a->row_shape, &b->row_shape);", "return a->dtype == b->dtype;"),
   caches_have_no_number=("static clv_code check_quota(", "if (u.n_caches >= CLV_MAX_CACHES)", "if (false)"))
of("worker/store/folder.c", "tests/unit/store/test_caches",
   all_have_one_folder=("clv_code clv_state_folder_lock(", "strlen(identity), &ret->identity", "0, &ret->identity"))

# ---- numbers of records that fit no table --------------------------------------------------------
FITS = "tests/unit/plan/test_data_fits"
of("master/plan/data_check.c", FITS,
   lengths_may_be_any=("static clv_code check_lengths(", "if (!has_number_outside(&range, n_positions, &record_index, &length)) return CLV_OK;", "if (!has_number_outside(&range, INT64_MAX, &record_index, &length)) return CLV_OK;"),
   a_number_below_0_is_a_row=("static bool has_number_outside(", "bool is_negative = r->min < 0;", "bool is_negative = r->min < INT64_MIN;"),
   differences_of_columns_are_not_looked_at=("static clv_code check_embedding_rows(", "clv_data_columns columns = {a->column, a->minus};", "clv_data_columns columns = {a->column, -1};"),
   a_label_per_record_goes_with_an_output_per_place=("static clv_code check_label_positions(", "if (!y.rank || ", "if (y.rank < 2 || "),
   the_largest_label_is_a_class=("static clv_code check_largest_class(", "if (largest_class > INT32_MAX)", "if (false)"))
of("master/data/format_arrays.c", FITS, the_largest_label_is_of_the_first_record=("static clv_code check_class_label(", "if (v > ds->label_max) ds->label_max_record = i / labels_per_record;", ""))
of("master/data/inputs.c", FITS, a_difference_wraps_around=("static int64_t get_row_index(", "return number < 0 ? INT64_MIN : INT64_MAX;", "return 0;"))
of("master/plan/run_data.c", "tests/net/training/test_hf.py", more_labels_than_classes_are_kept_quiet=("static void note_labels(", "if (max_label + 1 < a->int_value)", "if (max_label + 1 > a->int_value)"))

# ---- one parameter of two layers -----------------------------------------------------------------
TIED = "tests/net/training/test_tied.py"
of("common/engine/module_tie.c", TIED,
   the_heads_gradient_of_a_table_is_lost=("clv_code clv_module_add_tied_gradient(", "b->add(b, p->dtype, (char *)owner + p->offset, mine, p->n);", ""))
of("common/engine/context_vote.c", TIED, gradients_of_ties_stay_apart=("static clv_code compute_end_of_pass(", "CLV_TRY(add_ties(w->ctx, err));", ""))
of("master/plan/ties.c", TIED, a_table_may_be_at_another_node=("static clv_code check_same_place(", "if (s->worker != owner_spec->worker)", "if (false)"))
of("master/plan/ties.c", "tests/net/training/test_cuda.py tied_weights_on_a_device_give_the_same_bits",
   a_tie_may_be_across_devices=("static clv_code check_same_place(", "if (strcmp(s->device, owner_spec->device) == 0) return CLV_OK;", "if (s && owner_spec) return CLV_OK;"))
of("master/plan/ties.c", TIED,
   a_tied_weight_moves_under_adapters=("static clv_code check_adapters(", "if (is_frozen_by_lora)", "if (is_frozen_by_lora && is_owner_frozen)"),
   a_fixed_weight_is_named_as_learning=("static clv_code check_adapters(", "is_frozen_by_lora == is_owner_frozen ||", "is_frozen_by_lora == is_owner_frozen || is_owner_frozen ||"))
of("master/api/extra/rejoin.c", "tests/net/api/test_api_rejoin.py",
   a_tied_module_comes_back_before_its_owner=("static cleave_status check_tie_owners_loaded(", "if (of && of->state == MODULE_PLACED", "if (of && of->state == MODULE_NEW"))
of("master/plan/privacy.c", TIED, a_tied_decoder_is_drawn_where_its_table_is_public=("static void collect_layer_facts(", "copy_owner_facts(v, k, i);", ";"))
of("common/model/weights/names.c", "tests/unit/weights/test_pretrained", the_bias_of_a_tied_decoder_is_missing=("clv_code clv_weights_find_name(", "if (s.found_index == CLV_WEIGHTS_NONE && make_head_bias_name(want, other_name, sizeof other_name)) try_prefixes(&s, other_name);", ""))

# ---- a worker that has lost its link and does not know -------------------------------------------
of("master/api/core/module_load.c", "tests/unit/api/test_unsent_unload",
   a_worker_that_was_not_told_has_it_already=("cleave_status api_module_load_at_node(", "if (!m->may_be_at_node) return detect_broken_link(m, until_ns, error);", "if (!m->may_be_at_node) return status;"))

# ---- predictions of documents --------------------------------------------------------------------
OF_DOCUMENTS, OF_PAGES = "tests/net/training/test_documents.py", "tests/unit/data/test_pages"
of("master/data/pages.c", OF_PAGES,
   words_are_kept_as_the_one_behind=("static clv_code make_page_labels(", "= (int32_t)i;", "= (int32_t)i + 1;"),
   pages_are_kept_by_the_window_behind=("static clv_code add_page(", "p, r->lengths.n, w.n,", "p, r->lengths.n + 1, w.n,"))
of("master/data/page_lines.c", OF_PAGES, other_members_of_a_page_are_lost=("static clv_code read_member(", "(key_index < 0 || key_index == KEY_FILE_NAME) && l->label_kind", "key_index > 99 && l->label_kind"))
of("master/data/pages.c", OF_DOCUMENTS,
   a_page_left_out_adds_a_class=("static clv_code number_word_labels(", "CLV_TRY(clv_check_class_name(p->labels[i], strlen(p->labels[i]), err));", ";"))
of("master/run/run_pages.c", OF_DOCUMENTS,
   every_page_has_the_first_pages_rows=("static page_rows find_rows_of_page(", "find_first_row(r, p->first_record), find_first_row(r, p->first_record + p->n_records)", "0, p->n_records"),
   a_page_is_its_first_window=("static void append_page_label(", "row < rows.end", "row < rows.begin"),
   a_words_label_is_that_of_its_token_in_the_first_window=("static void find_outputs_of_words(", "+ row * n * n_classes", "+ rows.begin * n * n_classes"))
of("master/run/run_predict.c", OF_DOCUMENTS, predictions_overwrite_their_records=("static clv_code check_output_is_no_input(", "in.st_ino == out.st_ino", "!in.st_ino"))
of("master/run/run_export.c", OF_DOCUMENTS, an_export_has_no_names_of_classes=("static clv_code write_hf_config(", "classes.n && classes.n == count_labels(m)", "!classes.n"))
of("master/plan/privacy_refuse.c", "tests/unit/plan/test_privacy", a_text_is_called_its_tokens=("static const records_refusal *find_refusal(", "if (worst_finding == CLV_FINDING_TOKENS && !clv_privacy_has_vector_per_position(b, stage)) return &text_refusal;", ""))
of("master/plan/adapter_file.c", "tests/net/training/test_lora.py", adapters_of_others_are_dropped=("static bool has_tensor_of_stage(", "!(is_named_by_stage && clv_name_is_of_adapter(params->list[i].name))", "!clv_name_is_of_adapter(params->list[i].name)"))
