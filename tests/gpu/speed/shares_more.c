/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines the kernels of newer ops that the program of shares.c measures.
 */
#include "kernels/cuda/attention_int.h"
#include "kernels/cuda/axis_int.h"
#include "kernels/cuda/batchnorm_int.h"
#include "kernels/cuda/broadcast_int.h"
#include "kernels/cuda/conv_int.h"
#include "kernels/cuda/losses_int.h"
#include "kernels/cuda/lstm_int.h"
#include "kernels/cuda/moves_int.h"
#include "kernels/cuda/permute_int.h"
#include "kernels/cuda/pools_int.h"
#include "kernels/cuda/positions_int.h"
#include "kernels/cuda/rows_int.h"
#include "kernels/cuda/wait_int.h"
#include "kernels/cuda/where_int.h"
#include "tests/gpu/speed/shares_int.h"

/* ---- kernels of norms ------------------------------------------------------------------------ */

static clv_code rmsnorm(bench *m, clv_err *err) {
  const cuda_norm n = {
      .rows = m->n_rows, .width = m->row_width, .groups = 1, .inner = 1, .eps = 1e-5};
  return clv_gpu_normalise_rows(m->g, &n, m->x, m->small_buffer, NULL, m->y, m->statistics, err);
}

/* Returns a group norm with two groups of channels. */
static cuda_norm make_group_norm(const bench *m) {
  return (cuda_norm){.rows = 2 * m->n_samples,
                     .width = m->n_channels / 2 * m->n_positions,
                     .groups = 2,
                     .inner = m->n_positions,
                     .is_centred = true,
                     .eps = 1e-5};
}

static clv_code groupnorm(bench *m, clv_err *err) {
  const cuda_norm n = make_group_norm(m);
  return clv_gpu_normalise_rows(m->g, &n, m->x, m->small_buffer, m->small_buffer, m->y,
                                m->statistics, err);
}

static clv_code groupnorm_back(bench *m, clv_err *err) {
  const cuda_norm n = make_group_norm(m);
  return clv_gpu_normalise_rows_back(m->g, &n, m->x, m->small_buffer, m->z, m->statistics, m->y,
                                     err);
}

static clv_code groupnorm_weights(bench *m, clv_err *err) {
  const cuda_norm n = make_group_norm(m);
  return clv_gpu_norm_param_grads(m->g, &n, m->x, m->z, m->statistics, m->partial_sums,
                                  m->small_buffer, m->small_buffer, false, err);
}

/* ---- kernels that sum columns or a single channel -------------------------------------------- */

/* Returns a batchnorm over rows of features, as after a linear layer. is_single_channel: all values
 * are one channel, in bf16. */
static cuda_batchnorm make_column_batchnorm(const bench *m, bool is_single_channel) {
  return (cuda_batchnorm){.sums = is_single_channel ? gpu_sum_layout_channels_last(m->n, 1, 1)
                                                    : gpu_sum_layout_of(m->n_rows, m->row_width, 1),
                          .is_training = true,
                          .channels_last = is_single_channel,
                          .eps = 1e-5,
                          .momentum = 0.1,
                          .has_relu = true};
}

static clv_code column_sums(bench *m, bool is_single_channel, clv_err *err) {
  const cuda_batchnorm b = make_column_batchnorm(m, is_single_channel);
  return clv_gpu_sum_channels(m->g, &b.sums, is_single_channel, m->x, m->partial_sums,
                              m->small_buffer, false, err);
}

static clv_code column_moments(bench *m, bool is_single_channel, clv_err *err) {
  const cuda_batchnorm b = make_column_batchnorm(m, is_single_channel);
  float *mean = m->small_buffer + m->row_width, *var = mean + m->row_width;
  return clv_gpu_compute_batch_moments(m->g, &b, m->x, m->partial_sums, m->statistics, mean, var,
                                       m->row_permutation + m->n_rows, err);
}

static clv_code column_totals(bench *m, bool is_single_channel, clv_err *err) {
  const cuda_batchnorm b = make_column_batchnorm(m, is_single_channel);
  const cuda_gradient from = {.gate = GPU_RELU_BY_X,
                              .x = m->x,
                              .dy = m->z,
                              .w = m->small_buffer,
                              .bias = m->small_buffer,
                              .saved = m->statistics};
  cuda_pair *totals = (cuda_pair *)((char *)m->partial_sums + PARTIALS_BYTES / 2);
  return clv_gpu_batchnorm_param_grads(m->g, &b, &from, m->partial_sums, totals, NULL, NULL, NULL,
                                       false, err);
}

#define COLUMNS_OR_ONE(name)                                                         \
  static clv_code name##_f32(bench *m, clv_err *err) { return name(m, false, err); } \
  static clv_code name##_one_channel(bench *m, clv_err *err) { return name(m, true, err); }
COLUMNS_OR_ONE(column_sums)
COLUMNS_OR_ONE(column_moments)
COLUMNS_OR_ONE(column_totals)

/* ---- kernels of losses and of random numbers ------------------------------------------------- */

static clv_code bce(bench *m, clv_err *err) {
  return clv_gpu_bce(m->g, m->x, m->z, m->n, m->partial_sums, m->small_buffer, 0, err);
}

static clv_code bce_back(bench *m, clv_err *err) {
  return clv_gpu_bce_back(m->g, m->x, m->z, m->n, m->small_buffer, m->y, NULL, err);
}

static clv_code bce_with_logits(bench *m, clv_err *err) {
  return clv_gpu_bce_with_logits(m->g, m->x, m->z, m->n, m->partial_sums, m->small_buffer, 0, err);
}

static clv_code bce_with_logits_backward(bench *m, clv_err *err) {
  return clv_gpu_bce_with_logits_back(m->g, m->x, m->z, m->n, m->small_buffer, m->y, NULL, err);
}

static clv_code smooth_l1(bench *m, clv_err *err) {
  return clv_gpu_smooth_l1(m->g, 0.5, m->x, m->z, m->n, m->partial_sums, m->small_buffer, 0, err);
}

static clv_code smooth_l1_back(bench *m, clv_err *err) {
  return clv_gpu_smooth_l1_back(m->g, 0.5, m->x, m->z, m->n, m->small_buffer, m->y, NULL, err);
}

static clv_code huber(bench *m, clv_err *err) {
  return clv_gpu_huber(m->g, 0.5, m->x, m->z, m->n, m->partial_sums, m->small_buffer, 0, err);
}

static clv_code huber_back(bench *m, clv_err *err) {
  return clv_gpu_huber_back(m->g, 0.5, m->x, m->z, m->n, m->small_buffer, m->y, NULL, err);
}

static clv_code quantile(bench *m, clv_err *err) {
  return clv_gpu_quantile(m->g, 0.5, m->x, m->z, m->n, m->partial_sums, m->small_buffer, 0, err);
}

static clv_code quantile_back(bench *m, clv_err *err) {
  return clv_gpu_quantile_back(m->g, 0.5, m->x, m->z, m->n, m->small_buffer, m->y, NULL, err);
}

static clv_code poisson(bench *m, clv_err *err) {
  return clv_gpu_poisson(m->g, m->x, m->z, m->n, m->partial_sums, m->small_buffer, 0, err);
}

static clv_code poisson_back(bench *m, clv_err *err) {
  return clv_gpu_poisson_back(m->g, m->x, m->z, m->n, m->small_buffer, m->y, NULL, err);
}

static clv_code draw_dropout_channels_last(bench *m, clv_err *err) {
  const cuda_dropout_shape at = {
      .n = m->n, .channels = m->n_channels, .inner = m->n_positions, .channels_last = true};
  clv_rng_stream s = clv_rng_stream_of(&(clv_rng_key){.seed = 1});
  return clv_gpu_dropout(m->g, &at, m->x, m->y, (uint8_t *)m->dropout_mask, &s, NULL,
                         clv_gpu_dropout_threshold(0.5), clv_gpu_dropout_factor(0.5), err);
}

static clv_code apply_mask_channels_last(bench *m, clv_err *err) {
  return clv_gpu_apply_mask(m->g, true, m->x, (uint8_t *)m->dropout_mask, m->y, m->n, 2, err);
}

/* ---- kernels that copy windows of images to columns of a matrix ------------------------------ */

/* Returns windows of 2 by 2. They have as many outputs as the image has values. */
static clv_window make_windows(const bench *m) {
  int64_t n = (int64_t)m->n_samples, c = (int64_t)m->n_channels, side = (int64_t)m->image_side;
  return (clv_window){n, c, side, side, c, side / 2, side / 2, {2, 2}, {2, 2}, {0, 0}, {1, 1}};
}

static clv_code to_columns(bench *m, clv_err *err) {
  const cuda_im2col_args c = {make_windows(m), m->n_samples, m->n_channels,
                              m->n_channels * m->n_positions};
  return clv_gpu_im2col(m->g, &c, m->x, m->y, false, err);
}

static clv_code to_columns_rounded(bench *m, clv_err *err) {
  const cuda_im2col_args c = {make_windows(m), m->n_samples, m->n_channels,
                              m->n_channels * m->n_positions};
  return clv_gpu_im2col(m->g, &c, m->x, m->y, true, err);
}

static clv_code from_columns(bench *m, clv_err *err) {
  const cuda_im2col_args c = {make_windows(m), m->n_samples, m->n_channels,
                              m->n_channels * m->n_positions};
  return clv_gpu_col2im(m->g, &c, m->x, m->y, err);
}

static clv_code to_columns_last(bench *m, clv_err *err) {
  const cuda_im2col_last_args c = {make_windows(m), m->n_samples, m->n_channels};
  return clv_gpu_im2col_last(m->g, &c, (cuda_bf16 *)m->x, (cuda_bf16 *)m->y, err);
}

static clv_code from_columns_last(bench *m, clv_err *err) {
  const cuda_im2col_last_args c = {make_windows(m), m->n_samples, m->n_channels};
  return clv_gpu_col2im_last(m->g, &c, m->x, (cuda_bf16 *)m->y, err);
}

/* ---- kernels over sequences ------------------------------------------------------------------ */

/* Returns arguments of the op `last`, which copies the last step of each sequence. The kernel reads
 * the sequences' lengths from the dropout mask, which holds zeros. */
static cuda_last_extents make_last(const bench *m) {
  return (cuda_last_extents){.n = m->n_rows, .steps = 1, .features = m->row_width};
}

static clv_code last_steps(bench *m, clv_err *err) {
  const cuda_last_extents l = make_last(m);
  return clv_gpu_copy_last_steps(m->g, &l, m->x, (const int64_t *)m->dropout_mask, m->y, err);
}

static clv_code last_steps_backward(bench *m, clv_err *err) {
  const cuda_last_extents l = make_last(m);
  return clv_gpu_copy_last_steps_back(m->g, &l, m->x, (const int64_t *)m->dropout_mask, m->y, err);
}

static clv_code add_positions(bench *m, clv_err *err) {
  return clv_gpu_add_to_samples(m->g, m->x, m->small_buffer, m->y, m->n, m->row_width, err);
}

static cuda_head_tensor make_by_heads(const bench *m) {
  return (cuda_head_tensor){m->n_samples, m->n_channels, m->image_side, m->image_side, {0}};
}

/* Returns packed sequences of one row each. is_one_sequence: one sequence of all rows. */
static cuda_packed make_packed(const bench *m, bool is_one_sequence) {
  return is_one_sequence ? (cuda_packed){1, m->n_rows, m->n_rows, m->packed_offsets + m->n_rows + 1}
                         : (cuda_packed){m->n_rows, 1, m->n_rows, m->packed_offsets};
}

static clv_code add_packed_positions(bench *m, clv_err *err) {
  cuda_packed p = make_packed(m, true);
  return clv_gpu_add_to_packed(m->g, &p, m->x, m->z, m->y, m->row_width, err);
}

static clv_code sum_packed_positions(bench *m, clv_err *err) {
  cuda_packed p = make_packed(m, true);
  return clv_gpu_sum_packed_grads(m->g, &p, m->x, m->y, m->row_width, err);
}

static clv_code rotary_packed(bench *m, clv_err *err) {
  cuda_packed p = make_packed(m, true);
  const cuda_rotary r = {m->n, m->n_rows, 1, m->row_width, {.base = 1e4, .factor = 1}, 1};
  return clv_gpu_rotate_packed(m->g, &p, &r, m->x, m->y, err);
}

static clv_code last_packed_steps(bench *m, clv_err *err) {
  const cuda_last_packed e = {make_packed(m, false), m->row_width, false};
  return clv_gpu_copy_packed_ends(m->g, &e, m->x, m->y, err);
}

static clv_code last_packed_steps_backward(bench *m, clv_err *err) {
  const cuda_last_packed e = {make_packed(m, false), m->row_width, false};
  return clv_gpu_copy_packed_ends_back(m->g, &e, m->x, m->y, err);
}

static clv_code draw_packed_dropout(bench *m, clv_err *err) {
  cuda_packed p = make_packed(m, true);
  clv_rng_stream s = clv_rng_stream_of(&(clv_rng_key){.seed = 1});
  return clv_gpu_dropout_packed(m->g, &p, m->row_width, m->x, m->y, (uint8_t *)m->dropout_mask, &s,
                                NULL, clv_gpu_dropout_threshold(0.5), clv_gpu_dropout_factor(0.5),
                                err);
}

static clv_code to_heads(bench *m, clv_err *err) {
  cuda_head_tensor t = make_by_heads(m);
  return clv_gpu_split_heads(m->g, &t, m->x, m->y, false, err);
}

static clv_code to_heads_bf16(bench *m, clv_err *err) {
  cuda_head_tensor t = make_by_heads(m);
  return clv_gpu_split_heads(m->g, &t, m->x, m->y, true, err);
}

static clv_code from_heads(bench *m, clv_err *err) {
  cuda_head_tensor t = make_by_heads(m);
  return clv_gpu_merge_heads(m->g, &t, m->x, m->y, err);
}

/* Writes the hidden values of each LSTM step to the place of the next step. */
static clv_code shift_lstm_steps(bench *m, clv_err *err) {
  const cuda_lstm l = {.n = m->n_samples, .t = m->n_channels, .h = m->n_positions, .hidden = m->x};
  return clv_gpu_shift_lstm_steps(m->g, &l, m->y, err);
}

static clv_code pack_lstm_weights(bench *m, clv_err *err) {
  const cuda_lstm_params p = {.n = 1, .param = {m->x}, .n_values = {m->n}};
  return clv_gpu_pack_lstm_params(m->g, &p, m->y, err);
}

static clv_code unpack_lstm_weights(bench *m, clv_err *err) {
  const cuda_lstm_params p = {.n = 1, .param = {m->y}, .n_values = {m->n}};
  return clv_gpu_unpack_lstm_params(m->g, &p, m->x, false, err);
}

/* ---- kernels that are measured in place of several similar kernels --------------------------- */

static clv_code multiply_by_weight(bench *m, clv_err *err) {
  return clv_gpu_mul_by_weight(m->g, m->x, m->small_buffer, m->y, m->n, err);
}

static clv_code multiply_by_weight_backward(bench *m, clv_err *err) {
  return clv_gpu_mul_by_weight_back(m->g, m->x, m->z, m->n, m->partial_sums, m->small_buffer, false,
                                    err);
}

static clv_code mean_of_columns(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->n_samples, .extent = m->n_channels, .inner = m->n_positions};
  return clv_gpu_mean(m->g, false, &s, m->x, m->y, err);
}

static clv_code mean_of_columns_bf16(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->n_samples, .extent = m->n_channels, .inner = m->n_positions};
  return clv_gpu_mean(m->g, true, &s, m->x, m->y, err);
}

static clv_axis make_row_axis(const bench *m) {
  return (clv_axis){.outer = m->n_rows, .extent = m->row_width, .inner = 1};
}

static clv_code mean_bf16(bench *m, clv_err *err) {
  const clv_axis s = make_row_axis(m);
  return clv_gpu_mean(m->g, true, &s, m->x, m->y, err);
}

static clv_code mean_back_bf16(bench *m, clv_err *err) {
  const clv_axis s = make_row_axis(m);
  return clv_gpu_mean_back(m->g, true, &s, m->z, m->y, err);
}

static clv_code move_bf16_image(bench *m, int from, int to, clv_err *err) {
  const cuda_layout_conversion v = {.n = m->n_samples,
                                    .channels = m->n_channels,
                                    .inner = m->n_positions,
                                    .from = from,
                                    .to = to,
                                    .accumulate = from == to};
  return clv_gpu_convert_layout(m->g, &v, m->x, m->y, err);
}

static clv_code to_last_f32(bench *m, clv_err *err) {
  return move_bf16_image(m, 1, CLV_LAYOUT_CHANNELS_LAST | 1, err);
}

static clv_code add_bf16_gradient(bench *m, clv_err *err) {
  return move_bf16_image(m, GPU_CHANNELS_LAST, GPU_CHANNELS_LAST, err);
}

/* Returns the arguments of a sum over all rows, which is the gradient of a row that was
 * broadcast. */
static cuda_broadcast_sum make_broadcast_sum(const bench *m, bool has_thread_per_value) {
  return (cuda_broadcast_sum){.rank = 1,
                              .n_summed = 1,
                              .extent = {m->row_width},
                              .out_stride = {1},
                              .other_stride = {1},
                              .summed_extent = {m->n_rows},
                              .summed_out_stride = {m->row_width},
                              .summed_other_stride = {m->row_width},
                              .n_values = m->row_width,
                              .n_terms = m->n_rows,
                              .has_thread_per_value = has_thread_per_value};
}

/* Adds one row to all rows. */
static clv_code add_row_to_all_rows(bench *m, clv_err *err) {
  const clv_broadcast v = {
      .rank = 2, .n = {m->n_rows, m->row_width}, .step = {{m->row_width, 1}, {0, 1}}};
  return clv_gpu_broadcast(m->g, &v, &(cuda_bf16_flags){0}, false, m->x, m->small_buffer, m->y,
                           m->n, err);
}

static clv_code sum_with_thread_per_value(bench *m, clv_err *err) {
  const cuda_broadcast_sum f = make_broadcast_sum(m, true);
  return clv_gpu_sum_broadcast(m->g, &f, m->x, NULL, m->y, err);
}

static clv_code sum_with_block_per_value(bench *m, clv_err *err) {
  const cuda_broadcast_sum f = make_broadcast_sum(m, false);
  return clv_gpu_sum_broadcast(m->g, &f, m->x, NULL, m->y, err);
}

static clv_axis steps_of(const bench *m) { return (clv_axis){m->n_rows / 4, 4, m->row_width}; }

static clv_code flip(bench *m, clv_err *err) {
  const clv_axis s = steps_of(m);
  return clv_gpu_reorder_along_axis(m->g, &s, -1, -1, m->x, m->y, err);
}

static clv_code cumsum(bench *m, clv_err *err) {
  const clv_axis s = steps_of(m);
  return clv_gpu_cumsum(m->g, &s, false, m->x, m->y, err);
}

static clv_code var(bench *m, clv_err *err) {
  const clv_axis s = steps_of(m);
  return clv_gpu_var(m->g, &s, 3, m->x, NULL, m->y, err);
}

/* Returns a resampling of images. is_halving: halves height and width of the images of x; else
 * doubles height and width of images of half that size, which take a quarter of x. */
static clv_resample resample_of(const bench *m, bool is_halving) {
  int64_t side = (int64_t)m->image_side, n = (int64_t)m->n_samples;
  return (clv_resample){.kind = is_halving ? CLV_RESAMPLE_MEAN : CLV_RESAMPLE_LINEAR,
                        .n = n,
                        .c = (int64_t)m->n_channels,
                        .in = {is_halving ? side : side / 2, is_halving ? side : side / 2},
                        .out = {is_halving ? side / 2 : side, is_halving ? side / 2 : side},
                        .scale = {is_halving ? 2 : 0.5, is_halving ? 2 : 0.5}};
}

#define RESAMPLE(name, launcher, last, halves)        \
  static clv_code name(bench *m, clv_err *err) {      \
    const clv_resample r = resample_of(m, halves);    \
    return launcher(m->g, last, &r, m->x, m->y, err); \
  }
RESAMPLE(upsample_f32, clv_gpu_resample, false, false)
RESAMPLE(upsample_channels_last, clv_gpu_resample, true, false)
RESAMPLE(upsample_back_f32, clv_gpu_resample_back, false, false)
RESAMPLE(upsample_back_channels_last, clv_gpu_resample_back, true, false)
RESAMPLE(adaptive_f32, clv_gpu_resample, false, true)

static cuda_sum_layout channels_of_images(const bench *m) {
  return gpu_sum_layout_of(m->n_samples, m->n_channels, m->n_positions);
}

static clv_code prelu(bench *m, clv_err *err) {
  const cuda_sum_layout s = channels_of_images(m);
  return clv_gpu_prelu(m->g, &s, m->x, m->small_buffer, NULL, m->y, err);
}

static clv_code prelu_weights(bench *m, clv_err *err) {
  const cuda_sum_layout s = channels_of_images(m);
  return clv_gpu_prelu_weight_grads(m->g, &s, m->x, m->z, m->partial_sums, m->small_buffer, false,
                                    err);
}

static clv_code prelu_weights_of_columns(bench *m, clv_err *err) {
  const cuda_sum_layout s = gpu_sum_layout_of(m->n_rows, m->row_width, 1);
  return clv_gpu_prelu_weight_grads(m->g, &s, m->x, m->z, m->partial_sums, m->small_buffer, false,
                                    err);
}

static clv_code where(bench *m, clv_err *err) {
  return clv_gpu_where(m->g, m->x, 0, m->z, m->x, m->y, m->n, err);
}

static clv_code drop_records(bench *m, bool is_channels_last, clv_err *err) {
  clv_rng_stream s = clv_rng_stream_of(&(clv_rng_key){.seed = 1});
  return clv_gpu_stochastic_depth(m->g, is_channels_last, m->n_rows, m->row_width, m->x, m->y,
                                  (uint8_t *)m->dropout_mask, &s, NULL,
                                  clv_gpu_dropout_threshold(0.5), 2, err);
}
static clv_code drop_records_f32(bench *m, clv_err *err) { return drop_records(m, false, err); }
static clv_code drop_records_channels_last(bench *m, clv_err *err) {
  return drop_records(m, true, err);
}

/* The dropout kernels, which write the mask, come after the kernels that need a mask of zeros. */
const kernel more_kernels[] = {
    {"last", 4, .f = last_steps},
    {"last backward", 4, .f = last_steps_backward},
/* Rows of the table for one element-wise op: forward and backward, in f32 and in bf16. */
#define POINTWISE(name, ...)                                                                      \
  {#name, 8, .map_kernel = clv_gpu_##name},                                                       \
      {#name " backward", 12, .map_kernel = clv_gpu_##name##_back, .has_second_input = true},     \
      {#name ", bf16", 4, .map_kernel = clv_gpu_##name, .is_channels_last = true},                \
      {#name " backward, bf16", 6, .map_kernel = clv_gpu_##name##_back, .has_second_input = true, \
       .is_channels_last = true},
#include "kernels/cuda/pointwise.def"
#undef POINTWISE
    {"scale, bf16", 4, .map_kernel = clv_gpu_scale, .is_channels_last = true},
    {"upsample", 5, .f = upsample_f32},
    {"upsample backward", 5, .f = upsample_back_f32},
    {"upsample, bf16", 2.5, .f = upsample_channels_last},
    {"upsample backward, bf16", 2.5, .f = upsample_back_channels_last},
    {"adaptive avgpool", 5, .f = adaptive_f32},
    {"flip", 8, .f = flip},
    {"cumsum", 8, .f = cumsum},
    {"var", 5, .f = var},
    {"prelu", 8, .f = prelu},
    {"where", 12, .f = where},
    {"prelu, weights", 8, .f = prelu_weights},
    {"prelu, weights of columns", 8, .f = prelu_weights_of_columns},
    {"rmsnorm", 8, .f = rmsnorm},
    {"groupnorm", 8, .f = groupnorm},
    {"groupnorm backward", 12, .f = groupnorm_back},
    {"groupnorm, weights", 8, .f = groupnorm_weights},
    {"sums of columns", 4, .f = column_sums_f32},
    {"batchnorm of columns, moments", 4, .f = column_moments_f32},
    {"batchnorm of columns+relu, totals", 8, .f = column_totals_f32},
    {"sum of one channel, bf16", 2, .f = column_sums_one_channel},
    {"batchnorm of one channel, moments, bf16", 2, .f = column_moments_one_channel},
    {"batchnorm of one channel+relu, totals, bf16", 4, .f = column_totals_one_channel},
    {"bce", 8, .f = bce},
    {"bce backward", 12, .f = bce_back},
    {"bce with logits", 8, .f = bce_with_logits},
    {"bce with logits backward", 12, .f = bce_with_logits_backward},
    {"smooth l1", 8, .f = smooth_l1},
    {"smooth l1 backward", 12, .f = smooth_l1_back},
    {"huber", 8, .f = huber},
    {"huber backward", 12, .f = huber_back},
    {"quantile", 8, .f = quantile},
    {"quantile backward", 12, .f = quantile_back},
    {"poisson", 8, .f = poisson},
    {"poisson backward", 12, .f = poisson_back},
    {"stochastic depth", 8, .f = drop_records_f32},
    {"stochastic depth, bf16", 4, .f = drop_records_channels_last},
    {"dropout, bf16", 5, .f = draw_dropout_channels_last},
    {"dropout backward, bf16", 5, .f = apply_mask_channels_last},
    {"to columns", 8, .f = to_columns},
    {"to columns, rounded", 6, .f = to_columns_rounded},
    {"from columns", 8, .f = from_columns},
    {"to columns, bf16", 4, .f = to_columns_last},
    {"from columns, bf16", 6, .f = from_columns_last},
    {"positions", 8, .f = add_positions},
    {"positions, packed", 12, .f = add_packed_positions},
    {"positions backward, packed", 12, .f = sum_packed_positions},
    {"rotary, packed", 8, .f = rotary_packed},
    {"ends, packed", 8, .f = last_packed_steps},
    {"ends backward, packed", 12, .f = last_packed_steps_backward},
    {"dropout, packed", 9, .f = draw_packed_dropout},
    {"to heads of attention", 8, .f = to_heads},
    {"to heads of attention, bf16", 6, .f = to_heads_bf16},
    {"from heads of attention", 8, .f = from_heads},
    {"steps of lstm shifted", 8, .f = shift_lstm_steps},
    {"weights of lstm packed", 8, .f = pack_lstm_weights},
    {"weights of lstm unpacked", 8, .f = unpack_lstm_weights},
    {"times a weight", 8, .f = multiply_by_weight},
    {"times a weight, weight", 8, .f = multiply_by_weight_backward},
    {"mean of columns", 4, .f = mean_of_columns},
    {"mean of columns, bf16", 2, .f = mean_of_columns_bf16},
    {"mean of rows, bf16", 2, .f = mean_bf16},
    {"mean of rows backward, bf16", 2, .f = mean_back_bf16},
    {"to channels last", 8, .f = to_last_f32},
    {"add to a gradient, bf16", 6, .f = add_bf16_gradient},
    {"add of a row", 8, .f = add_row_to_all_rows},
    {"sum over rows, a thread each", 4, .f = sum_with_thread_per_value},
    {"sum over rows, a block each", 4, .f = sum_with_block_per_value},
};
const size_t n_more_kernels = CLV_COUNT(more_kernels);
