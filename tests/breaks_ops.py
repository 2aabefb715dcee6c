# SPDX-License-Identifier: Apache-2.0
"""Deliberate breaks, see breaks.py: ops and their kernels."""
from breaks import of

of("kernels/cpu/pointwise.c", "tests/ops/test_any_layout sqrt",
   a_slope_of_the_padding_stays=("static bool is_zero_for_zeros(", "return result == 0;", "return true;"))
of("worker/service/load_module.c", "tests/net/contexts/test_client.py an_unknown_op_is_refused_by_its_layer",
   an_unknown_op_has_no_layer=("static clv_code add_node(", "w->op >= CLV_OP_COUNT || !clv_op_def_of((clv_op)w->op)", "false"))
of("kernels/ops/rules.c", "tests/ops/test_golden clamp",
   no_bound_is_a_bound=("static double read_formula_number(", "fabs(number) > 3.4e38", "false"))
of("kernels/cpu/activations.c", "tests/ops/test_pair hardtanh",
   a_value_on_a_bound_has_a_gradient=("", "MAP(hardtanh_back, x <= p || x >= q", "MAP(hardtanh_back, x < p || x > q"))
of("kernels/cuda/pointwise.def", "tests/gpu/test_cuda softplus",
   beta_counts_once=("", "softplus_of(p * x) / p", "softplus_of(p * x)"))
of("common/model/graph/params.c", "tests/unit/graph/test_ops",
   a_number_is_drawn=("static bool get_distribution(", "&& s->init != CLV_INIT_NUMBER", ""))
of("kernels/kernels.h", "tests/ops/test_golden upsample_bilinear",
   corners_never_meet=("static CLV_DEVICE inline clv_taps clv_taps_of(", "double at = r->align_corners ?", "double at = false ?"))
of("kernels/cpu/resample.c", "tests/ops/test_pair adaptive_avgpool2d",
   an_input_has_one_reader=("static void fill_backward_table(", "s->n++;", "s->n = 1;"))
of("kernels/cuda/pools.cu", "tests/gpu/test_cuda upsample_nearest",
   columns_have_no_weight=("static __global__ void resample_back(", "row_weight * clv_tap_weight(&w, in.column)", "row_weight"))
of("kernels/cpu/gru.c", "tests/ops/test_pair gru",
   a_step_forgets_the_one_before=("CPU_INLINE void compute_cell_row_grads_body(", "dh[i] = d * z;", "dh[i] = 0;"))
of("kernels/cuda/gru.cu", "tests/gpu/test_cuda gru",
   a_gate_is_not_multiplied=("static __global__ void compute_gru_cell_back(", "dgates_hh[2 * l.h + j] = static_cast<float>(dn * r);", "dgates_hh[2 * l.h + j] = static_cast<float>(dn);"))
of("kernels/cpu/stochastic_depth.c", "tests/ops/test_pair stochastic_depth",
   records_in_fours_are_dropped_alike=("static clv_code depth_forward(", "random_words[n % 4]", "random_words[0]"))
of("kernels/cpu/where.c", "tests/ops/test_pair where",
   a_tie_is_above=("CPU_INLINE void select_values_body(", "y[i] = x[i] > threshold ? a[i] : b[i];", "y[i] = x[i] >= threshold ? a[i] : b[i];"),
   a_condition_has_the_gradient=("static clv_code where_backward(", "a->dout, NULL, a->din[1]", "NULL, a->dout, a->din[1]"))
of("kernels/cuda/where.cu", "tests/gpu/test_cuda where",
   a_tie_is_above_on_the_device=("static __global__ void select_values(", "x[i] > threshold", "x[i] >= threshold"))
of("kernels/cpu/axis.c", "tests/ops/test_pair cumsum",
   a_sum_backward_is_forward=("static clv_code cumsum_backward(", "j.sums_from_end = true;", "j.sums_from_end = false;"))
of("kernels/cuda/axis.cu", "tests/gpu/test_cuda roll",
   what_passes_the_end_is_lost=("static __global__ void reorder_along_axis(", "source += source < 0 ? extent : 0;", "source = source < 0 ? 0 : source;"))
of("kernels/cpu/groupnorm.c", "tests/ops/test_pair groupnorm",
   a_variance_has_no_eps=("static void compute_group_moments", "+ k->k.d.attrs.eps", ""),
   groups_of_a_block_are_one=("static clv_norm_affine make_forward_affine", "moments + c / k->channels_per_group * 2", "moments + block / k->channels_per_group * 2"),
   samples_share_their_gradient=("static void write_weight_grads", "saved_moments(j, n)[", "saved_moments(j, 0)["))
of("kernels/cuda/rows.cu", "tests/gpu/test_cuda groupnorm",
   all_groups_have_the_first_ones_weights=("static __device__ inline size_t weight_index", "return r % n.groups *", "return 0 *"))
of("kernels/cpu/permute.c", "tests/ops/test_pair permute",
   dimensions_that_part_count_as_one=("static void add_dimension", "w->src_stride[last_dim] == n * src_stride &&", ""))
of("kernels/cpu/softmax.c", "tests/ops/test_pair softmax",
   the_last_values_of_a_row_are_not_summed=("CPU_INLINE void sum_row_exps_body", "for (size_t l = 0; i + l < n; l++)", "for (size_t l = 0; i + l + 1 < n; l++)"))
of("kernels/cpu/classes.c", "tests/ops/test_pair cross_entropy",
   a_label_is_not_smoothed=("static void backward_at_position(", "smoothing_per_class * (dx_target * k->weight_sum - class_weight(k, label))", "smoothing_per_class * (dx_target * k->weight_sum)"),
   places_that_do_not_count_have_a_gradient=("static void backward_positions", "memset(dx, 0, j->k->n_classes * sizeof *dx);", "memset(dx, 63, j->k->n_classes * sizeof *dx);"))
of("kernels/kernels.c", "tests/ops/test_golden mul",
   what_stands_for_several_is_stepped=("static clv_broadcast broadcast_in_order(", "d->in[j].dim[axis] == 1 && axis ? 0 : n_inner[j]", "n_inner[j]"))
of("kernels/ops/broadcast_int.h", "tests/ops/test_refusals add",
   samples_meet=("static inline clv_code broadcast_shape", "(i && (a->dim[i] == 1 || b->dim[i] == 1))", "(a->dim[i] == 1 || b->dim[i] == 1)"))
of("kernels/cpu/broadcast.c", "tests/ops/test_pair mul",
   one_value_is_read_as_a_row=("static void sum_gradients", "k->v.step[j->target_input][last_dim] ? add_row_to_sums", "k->v.step[1 - j->target_input][last_dim] ? add_row_to_sums"),
   an_index_is_not_taken_back=("static void go_to_next_row", "w->in_index[j] -= v->step[j][i] * v->n[i];", ";"))
of("kernels/cuda/broadcast.cu", "tests/gpu/test_cuda add",
   a_block_adds_its_first_thread_alone=("static __global__ void sum_terms_per_block", "sum = gpu_block_sum(sum);", ";"))
of("common/model/graph/plan_chain.c", "tests/gpu/test_together",
   values_that_stand_for_several_are_links=("static bool can_join_chain", "clv_plan_has_one_shape(p, node) &&", ""))
of("common/model/graph/plan_fuse.c", "tests/unit/graph/test_plan_fuse",
   sums_of_other_shapes_are_tails=("static void try_fuse_norm_relu", "|| !clv_plan_has_one_shape(p, x)", ""))
of("kernels/ops/conv_int.h", "tests/ops/test_golden conv2d",
   taps_are_beside_each_other=("static inline double sum_window(", "v * s->dilation[1]", "v"))
of("kernels/ops/conv_int.h", "tests/ops/test_golden conv_transpose1d",
   a_transposed_output_ends_early=("static inline clv_code conv_transpose_shape(", "a->output_pad[i] + 1", "1"))
of("kernels/ops/conv_int.h", "tests/ops/test_refusals conv_transpose2d",
   any_place_may_be_left_open=("static inline clv_code conv_transpose_shape(", "a->output_pad[i] >= a->stride[i]", "false"))
of("kernels/ops/conv_int.h", "tests/ops/test_refusals conv1d",
   one_of_two_numbers_counts=("static inline clv_code check_pair_halves_equal(", "pairs[i].v[0] != pairs[i].v[1]", "false"))
of("kernels/ops/conv_int.h", "tests/unit/graph/test_graph",
   all_taps_count_as_mixed=("static inline int64_t conv_transpose_fan_in(", "(s->attrs->kernel[i] + tap_distance - 1) / tap_distance", "s->attrs->kernel[i]"),
   taps_apart_count_as_alone=("static inline int64_t conv_transpose_fan_in(", "int64_t tap_distance = s->attrs->stride[i] / divisor;", "int64_t tap_distance = s->attrs->stride[i];"))
of("kernels/ops/linear.c", "tests/unit/graph/test_graph",
   a_transposed_weight_mixes_its_outputs=("CLV_OP_ROW(linear)", ".count_inputs_per_output = count_linear_inputs,", ""))
SIGNALS, HELD = "tests/unit/cpu/test_signals", "CLV_AUTO(clv_cpu_release_signals) sigset_t previous_mask = clv_cpu_hold_signals();"
of("kernels/cpu/signals.c", SIGNALS,
   faults_of_the_processor_are_held=("static void block_thread_signals(", "sigdelset(&blocked_signals, fault_signals[i]);", ";"),
   a_team_of_the_program_takes_signals=("sigset_t clv_cpu_hold_signals(", "if (n > n_blocked_threads)", "if (n_blocked_threads < 0)"),
   signals_are_held_for_good=("void clv_cpu_release_signals(", "SIG_SETMASK", "SIG_BLOCK"))
of("kernels/cpu/threads.c", SIGNALS, a_team_of_loops_takes_signals=("void clv_cpu_parallel(", HELD, ""))
of("kernels/cpu/gemm.c", SIGNALS, a_product_takes_signals=("clv_code clv_cpu_gemm_strided(", HELD, ""))
of("kernels/cpu/dnnl.c", SIGNALS, a_primitive_takes_signals=("clv_code clv_cpu_prim_run(", HELD, ""))
of("kernels/cpu/conv_choice.c", "tests/ops/test_pair conv2d",
   dilation_is_not_asked_for=("static clv_code describe_tensors(", "s->dilation[i] - 1", "0"))
of("kernels/cpu/conv_choice.c", "tests/unit/graph/test_plan_bf16",
   blocks_are_fast_enough_with_amx=("static int order_layouts(", "clv_cpu_choose(CPU_CONV_BF16, shape_class) == CPU_BLOCKS", "true"))
of("kernels/cpu/choices.c", "tests/unit/cpu/test_choice_table",
   a_table_answers_for_its_own_version_alone=("static const choice_row *find_row(", "    newest_row = r;\n", ""),
   a_lower_instruction_set_does_not_answer=("cpu_candidate clv_cpu_choose_for(", "isa = find_lower_isa(isa)", "isa = NULL"),
   small_images_have_no_class=("cpu_shape_class clv_cpu_class_of_conv(", "<= MAX_SMALL_IMAGE", "< 1"))
of("kernels/cpu/backend.c", "tests/unit/cpu/test_choice_table",
   the_digest_of_the_table_is_not_sent=("static void fill_libraries_text(", "clv_cpu_choices_digest()", '""'))
of("kernels/cpu/gemm.c", "tests/unit/cpu/test_choice_table",
   a_narrow_blas_is_not_named=("static void store_version(", 'blas.vectors_are_wide_enough ? ""', 'true ? ""'))
of("kernels/cpu/pairs.c", "tests/ops/test_pair attention",
   rows_of_a_head_are_side_by_side=("INLINE size_t value_index(", "f->row_stride ? f->row_stride : f->columns", "f->columns"),
   a_sum_without_terms_is_not_written=("static void multiply_parts(", "      do { /* runs once", "      while (t.end_tile < n_tiles) { /* runs once"))
of("kernels/cpu/head_products.c", "tests/ops/test_pair attention",
   keys_are_packed_for_those_that_count=("void clv_cpu_head_multiply_by_rows(", ".right_k = p->length,", ""))
of("kernels/cpu/lstm.c", "tests/ops/test_pair lstm",
   the_recurrence_has_the_inputs_weights=("static clv_code forward_layer(", "  pack_right_factor(k, a, &recurrent_product, layer_param(k, a, layer, 1));\n", ""))
of("kernels/cpu/conv_product.c", "tests/unit/graph/test_plan_bf16",
   taps_outside_the_image_are_read=("static void copy_tap_row(", "row < 0 || row >= s->h || ", "row < -1 || "))
of("kernels/cpu/channels_last.c", "tests/unit/cpu/test_layouts",
   the_last_channels_come_from_the_first=("static part_strides compute_part_strides(", "p->first_channel + channel", "channel"))
of("kernels/cpu/maxpool.c", "tests/ops/test_any_layout maxpool",
   a_plane_begins_at_the_first_channel=("CPU_INLINE int64_t plane_start(", "p, image_size)", "p - p % j->planes.planes_per_sample, image_size)"))
of("kernels/cpu/batchnorm.c", "tests/ops/test_any_layout batchnorm",
   pieces_of_an_image_have_its_first_positions=("static norm_piece make_piece(", "sample * j->image_size + image_position) * j->position_stride", "sample * j->image_size) * j->position_stride"))
of("kernels/cpu/conv_small.c", "tests/unit/cpu/test_conv_weight",
   a_small_gradient_has_no_dilation=("", "(first + t) % s->kernel[1] * s->dilation[1]", "(first + t) % s->kernel[1]"))
of("kernels/cpu/conv2d.c", "tests/ops/test_pair conv_transpose2d",
   a_transposed_bias_is_of_the_first_block=("static void add_bias(", "bias[first_channel + l]", "bias[l]"))
of("kernels/cpu/conv_bias.c", "tests/ops/test_pair conv_transpose2d",
   a_biass_gradient_has_two_lanes=("void clv_cpu_conv_sum_bias_grads(", "(lane_sums[b] + lane_sums[3 * b])", "lane_sums[b]"))
of("kernels/cpu/conv_bias.c", "tests/unit/cpu/test_long_sums",
   a_biass_gradient_is_one_sum_in_floats=("CPU_INLINE void add_values(", "double lane_sums[NORM_LANES];", "float lane_sums[NORM_LANES];"))
of("kernels/cpu/conv2d.c", "tests/unit/cpu/test_long_sums",
   the_library_sums_the_bias=[("static bool has_bias_grad_in_weight_pass(", "&& k->is_bf16", ""), ("static clv_code make_primitive_descs(", "if (!c->is_bf16) d.bias = NULL;", "", "kernels/cpu/conv_choice.c")])
of("kernels/cpu/gemm.c", "tests/unit/cpu/test_long_sums",
   rows_are_one_long_sum=("", "enum { ROWS_AT_ONCE = 256, COLUMNS_AT_ONCE = 64 };", "enum { ROWS_AT_ONCE = 1 << 30, COLUMNS_AT_ONCE = 64 };"))
of("kernels/cpu/conv2d.c", "tests/unit/graph/test_plan",
   transposed_weights_are_refreshed_for_the_other_pass=("static clv_code conv_refresh(", "k->is_transposed ? CLV_FOR_BACKWARD : CLV_FOR_FORWARD", "CLV_FOR_FORWARD"))
of("kernels/cuda/conv.cu", "tests/gpu/test_cuda conv2d",
   columns_have_no_dilation=("static __global__ void im2col(", "tap % s.kernel[1] * s.dilation[1]", "tap % s.kernel[1]"),
   columns_go_back_without_dilation=("static __global__ void col2im(", "v * s.dilation[1]", "v"))
of("kernels/cuda/conv_last.cu", "tests/gpu/test_cuda_types conv2d",
   columns_in_bf16_have_no_dilation=("static __global__ void im2col_last(", "tap % s.kernel[1] * s.dilation[1]", "tap % s.kernel[1]"))
of("kernels/cuda/conv2d.c", "tests/gpu/test_cuda conv_transpose2d",
   a_transposed_pass_is_not_opened=("static clv_code conv_open(", "is_transposed || dx, k->r.d.need_dw", "dx, k->r.d.need_dw"),
   a_transposed_bias_is_of_the_inputs_channels=("static conv_output describe_output(", "&k->r.d.out;", "&k->r.d.in[0];"))
of("kernels/ops/smooth_l1.c", "tests/ops/test_golden smooth_l1",
   beta_is_one=("static double smooth_l1_term(", "0.5 * d * d / beta", "0.5 * d * d"))
of("kernels/ops/huber.c", "tests/ops/test_golden huber",
   slopes_of_outliers_are_one=("static double huber_dx(", "d > 0 ? delta : d < 0 ? -delta", "d > 0 ? 1 : d < 0 ? -1"))
of("kernels/ops/quantile.c", "tests/ops/test_golden quantile",
   each_quantile_is_the_median=("static double quantile_dx(", "x > t ? 1 - p", "x > t ? p"))
of("kernels/ops/poisson.c", "tests/ops/test_golden poisson",
   the_output_is_the_rate=("static double poisson_term(", "exp(x) - t * x", "x - t * log(fabs(x))"))
of("kernels/ops/focal.c", "tests/ops/test_golden focal",
   right_places_count_alike=("static double focal_term(", "pow(-expm1(-nll), g) * nll", "nll + 0 * g"),
   the_slope_lacks_a_term=("static double focal_slope(", "return pow(one_minus_p, g) + ", "return pow(one_minus_p, g); + "))
of("kernels/cuda/losses.cu", "tests/gpu/test_cuda focal",
   a_device_forgets_the_exponent=("static __global__ void class_loss_back(", "if (c.exponent > 0)", "if (c.exponent > 99)"))
of("kernels/cuda/losses.c", "tests/gpu/test_cuda huber",
   a_device_takes_another_number=("", "DEFINE_PARAMETRIC_LOSS(huber, beta)", "DEFINE_PARAMETRIC_LOSS(huber, p)"))
of("common/model/models/loss.c", "tests/unit/run/test_train",
   class_weights_are_not_used=("clv_code clv_session_make_loss_graph(", "if (config->loss.weight.n)", "if (config->loss.weight.n > 99)"))
of("master/run/run_class_weights.c", "tests/unit/run/test_train",
   held_back_records_have_weights=("static clv_code count_labels(", "const clv_subset *rows = &r->data.train_rows;", "clv_subset all = r->data.train_rows; uint32_t ids[24]; for (uint32_t i = 0; i < 24; i++) ids[i] = i; all.index = ids; all.n = 24; const clv_subset *rows = &all;"),
   other_commands_have_other_weights=("static clv_code read_stored_weights(", "list.items[c] = stored_config->loss.weight.items[c];", "list.items[c] = 1;"))
of("common/model/config/session.c", "tests/unit/config/test_errors",
   a_key_goes_with_any_loss=("static clv_code check_loss_keys(", "if (!keys[i].is_given ||", "if (true ||"))
of("kernels/cuda/staging.c", "tests/gpu/test_backend",
   a_device_cannot_say_why_focal_refuses=("static clv_code make_fault_error(", "{CLV_OP_FOCAL, make_label_error},", ""))

# ---- weight parts that read what the input part has left -----------------------------------------
SEQUENCE = "tests/unit/graph/test_sequence deferred_weight_part"
of("common/model/graph/plan_backward.c", SEQUENCE,
   a_weight_part_runs_before_its_values_are_there=("static clv_code add_node_backward_steps(", "is_last = dw && q->kernel->weight_part_is_last", "is_last = false"))
of("kernels/cpu/backend.c", SEQUENCE,
   recurrent_weights_are_never_deferred=("void clv_cpu_order_recurrent_grads(", "k->base.fused_grads = needs_dw && !needs_dx;", "k->base.fused_grads = needs_dw;"))
of("kernels/cpu/gru.c", "tests/ops/test_pair gru",
   the_gate_n_has_the_gradient_of_its_input=("static void copy_recurrent_grads(", "s->sums + i * h", "s->gates + (i * GATES + 2) * h"))
