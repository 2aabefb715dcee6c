/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of ops that came later: see shares.c.
 */
#include "kernels/cuda/attention_int.h"
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
#include "tests/gpu/speed/shares_int.h"

/* ---- norms ----------------------------------------------------------------------------------- */

static clv_code rmsnorm(bench *m, clv_err *err) {
  const cuda_norm n = {.rows = m->rows, .width = m->width, .groups = 1, .inner = 1, .eps = 1e-5};
  return clv_gpu_norm(m->g, &n, m->x, m->small, NULL, m->y, m->saved, err);
}

/* Returns a group norm with two groups of channels. */
static cuda_norm groups_of(const bench *m) {
  return (cuda_norm){.rows = 2 * m->samples,
                     .width = m->channels / 2 * m->inner,
                     .groups = 2,
                     .inner = m->inner,
                     .is_centred = true,
                     .eps = 1e-5};
}

static clv_code groupnorm(bench *m, clv_err *err) {
  const cuda_norm n = groups_of(m);
  return clv_gpu_norm(m->g, &n, m->x, m->small, m->small, m->y, m->saved, err);
}

static clv_code groupnorm_back(bench *m, clv_err *err) {
  const cuda_norm n = groups_of(m);
  return clv_gpu_norm_back(m->g, &n, m->x, m->small, m->z, m->saved, m->y, err);
}

static clv_code groupnorm_weights(bench *m, clv_err *err) {
  const cuda_norm n = groups_of(m);
  return clv_gpu_norm_weights_back(m->g, &n, m->x, m->z, m->saved, m->parts, m->small, m->small,
                                   false, err);
}

/* ---- sums of columns, and of a channel alone ------------------------------------------------- */

/* Returns a batchnorm over rows of features, as after a linear layer. alone: over all values, as
 * one channel, in bf16. */
static cuda_batchnorm columns_of(const bench *m, bool alone) {
  return (cuda_batchnorm){
      .sums = alone ? gpu_sums_channels_last(m->n, 1, 1) : gpu_sums_of(m->rows, m->width, 1),
      .is_training = true,
      .channels_last = alone,
      .eps = 1e-5,
      .momentum = 0.1,
      .has_relu = true};
}

static clv_code column_sums(bench *m, bool alone, clv_err *err) {
  const cuda_batchnorm b = columns_of(m, alone);
  return clv_gpu_channel_sums(m->g, &b.sums, alone, m->x, m->parts, m->small, false, err);
}

static clv_code column_moments(bench *m, bool alone, clv_err *err) {
  const cuda_batchnorm b = columns_of(m, alone);
  float *mean = m->small + m->width, *var = mean + m->width;
  return clv_gpu_batch_moments(m->g, &b, m->x, m->parts, m->saved, mean, var, m->which + m->rows,
                               err);
}

static clv_code column_totals(bench *m, bool alone, clv_err *err) {
  const cuda_batchnorm b = columns_of(m, alone);
  const cuda_gradient from = {
      .gate = GPU_BY_X, .x = m->x, .dy = m->z, .w = m->small, .bias = m->small, .saved = m->saved};
  cuda_pair *totals = (cuda_pair *)((char *)m->parts + PARTS / 2);
  return clv_gpu_batchnorm_totals(m->g, &b, &from, m->parts, totals, NULL, NULL, NULL, false, err);
}

#define COLUMNS_OR_ONE(name)                                                         \
  static clv_code name##_f32(bench *m, clv_err *err) { return name(m, false, err); } \
  static clv_code name##_alone(bench *m, clv_err *err) { return name(m, true, err); }
COLUMNS_OR_ONE(column_sums)
COLUMNS_OR_ONE(column_moments)
COLUMNS_OR_ONE(column_totals)

/* ---- losses, and what is drawn --------------------------------------------------------------- */

static clv_code bce(bench *m, clv_err *err) {
  return clv_gpu_bce(m->g, m->x, m->z, m->n, m->parts, m->small, 0, err);
}

static clv_code bce_back(bench *m, clv_err *err) {
  return clv_gpu_bce_back(m->g, m->x, m->z, m->n, m->small, m->y, NULL, err);
}

static clv_code logits(bench *m, clv_err *err) {
  return clv_gpu_bce_with_logits(m->g, m->x, m->z, m->n, m->parts, m->small, 0, err);
}

static clv_code logits_back(bench *m, clv_err *err) {
  return clv_gpu_bce_with_logits_back(m->g, m->x, m->z, m->n, m->small, m->y, NULL, err);
}

static clv_code draw_last(bench *m, clv_err *err) {
  const cuda_dropout_shape at = {
      .n = m->n, .channels = m->channels, .inner = m->inner, .channels_last = true};
  clv_rng_stream s = clv_rng_stream_of(&(clv_rng_key){.seed = 1});
  return clv_gpu_dropout(m->g, &at, m->x, m->y, (uint8_t *)m->mask, &s, NULL,
                         clv_gpu_dropout_threshold(0.5), clv_gpu_dropout_factor(0.5), err);
}

static clv_code mask_last(bench *m, clv_err *err) {
  return clv_gpu_apply_mask(m->g, true, m->x, (uint8_t *)m->mask, m->y, m->n, 2, err);
}

/* ---- columns of convolutions ----------------------------------------------------------------- */

/* Returns windows of 2 by 2 whose outputs are as many as the values of the image. */
static clv_window windows_of(const bench *m) {
  int64_t n = (int64_t)m->samples, c = (int64_t)m->channels, side = (int64_t)m->side;
  return (clv_window){n, c, side, side, c, side / 2, side / 2, {2, 2}, {2, 2}, {0, 0}, {1, 1}};
}

static clv_code to_columns(bench *m, clv_err *err) {
  const cuda_columns c = {windows_of(m), m->samples, m->channels, m->channels * m->inner};
  return clv_gpu_to_columns(m->g, &c, m->x, m->y, false, err);
}

static clv_code to_columns_rounded(bench *m, clv_err *err) {
  const cuda_columns c = {windows_of(m), m->samples, m->channels, m->channels * m->inner};
  return clv_gpu_to_columns(m->g, &c, m->x, m->y, true, err);
}

static clv_code from_columns(bench *m, clv_err *err) {
  const cuda_columns c = {windows_of(m), m->samples, m->channels, m->channels * m->inner};
  return clv_gpu_from_columns(m->g, &c, m->x, m->y, err);
}

static clv_code to_columns_last(bench *m, clv_err *err) {
  const cuda_last_columns c = {windows_of(m), m->samples, m->channels};
  return clv_gpu_to_columns_last(m->g, &c, (cuda_bf16 *)m->x, (cuda_bf16 *)m->y, err);
}

static clv_code from_columns_last(bench *m, clv_err *err) {
  const cuda_last_columns c = {windows_of(m), m->samples, m->channels};
  return clv_gpu_from_columns_last(m->g, &c, m->x, (cuda_bf16 *)m->y, err);
}

/* ---- sequences ------------------------------------------------------------------------------- */

/* Returns `last` with lengths of 0; the buffer is the mask, which is zero. */
static cuda_last last_of(const bench *m) {
  return (cuda_last){.n = m->rows, .steps = 1, .features = m->width};
}

static clv_code last(bench *m, clv_err *err) {
  const cuda_last l = last_of(m);
  return clv_gpu_last(m->g, &l, m->x, (const int64_t *)m->mask, m->y, err);
}

static clv_code last_back(bench *m, clv_err *err) {
  const cuda_last l = last_of(m);
  return clv_gpu_last_back(m->g, &l, m->x, (const int64_t *)m->mask, m->y, err);
}

static clv_code positions(bench *m, clv_err *err) {
  return clv_gpu_add_rows(m->g, m->x, m->small, m->y, m->n, m->width, err);
}

static cuda_by_heads by_heads_of(const bench *m) {
  return (cuda_by_heads){m->samples, m->channels, m->side, m->side, {0}};
}

/* Returns packed sequences of one row each. whole: one sequence of all rows. */
static cuda_packed packed_of(const bench *m, bool whole) {
  return whole ? (cuda_packed){1, m->rows, m->rows, m->places + m->rows + 1}
               : (cuda_packed){m->rows, 1, m->rows, m->places};
}

static clv_code places(bench *m, clv_err *err) {
  cuda_packed p = packed_of(m, true);
  return clv_gpu_add_rows_packed(m->g, &p, m->x, m->z, m->y, m->width, err);
}

static clv_code places_back(bench *m, clv_err *err) {
  cuda_packed p = packed_of(m, true);
  return clv_gpu_sum_rows_packed(m->g, &p, m->x, m->y, m->width, err);
}

static clv_code rotary_packed(bench *m, clv_err *err) {
  cuda_packed p = packed_of(m, true);
  const cuda_rotary r = {m->n, m->rows, 1, m->width, 1e4, 1};
  return clv_gpu_rotate_packed(m->g, &p, &r, m->x, m->y, err);
}

static clv_code ends(bench *m, clv_err *err) {
  const cuda_last_packed e = {packed_of(m, false), m->width, false};
  return clv_gpu_last_packed(m->g, &e, m->x, m->y, err);
}

static clv_code ends_back(bench *m, clv_err *err) {
  const cuda_last_packed e = {packed_of(m, false), m->width, false};
  return clv_gpu_last_packed_back(m->g, &e, m->x, m->y, err);
}

static clv_code draw_packed(bench *m, clv_err *err) {
  cuda_packed p = packed_of(m, true);
  clv_rng_stream s = clv_rng_stream_of(&(clv_rng_key){.seed = 1});
  return clv_gpu_dropout_packed(m->g, &p, m->width, m->x, m->y, (uint8_t *)m->mask, &s, NULL,
                                clv_gpu_dropout_threshold(0.5), clv_gpu_dropout_factor(0.5), err);
}

static clv_code to_heads(bench *m, clv_err *err) {
  cuda_by_heads t = by_heads_of(m);
  return clv_gpu_to_heads(m->g, &t, m->x, m->y, false, err);
}

static clv_code to_heads_bf16(bench *m, clv_err *err) {
  cuda_by_heads t = by_heads_of(m);
  return clv_gpu_to_heads(m->g, &t, m->x, m->y, true, err);
}

static clv_code from_heads(bench *m, clv_err *err) {
  cuda_by_heads t = by_heads_of(m);
  return clv_gpu_from_heads(m->g, &t, m->x, m->y, err);
}

static clv_code shift(bench *m, clv_err *err) {
  const cuda_lstm l = {.n = m->samples, .t = m->channels, .h = m->inner, .hidden = m->x};
  return clv_gpu_lstm_shift(m->g, &l, m->y, err);
}

static clv_code pack(bench *m, clv_err *err) {
  const cuda_lstm_params p = {.n = 1, .of = {m->x}, .count = {m->n}};
  return clv_gpu_lstm_pack(m->g, &p, m->y, err);
}

static clv_code unpack(bench *m, clv_err *err) {
  const cuda_lstm_params p = {.n = 1, .of = {m->y}, .count = {m->n}};
  return clv_gpu_lstm_unpack(m->g, &p, m->x, false, err);
}

/* ---- what stands for several ----------------------------------------------------------------- */

static clv_code times(bench *m, clv_err *err) {
  return clv_gpu_mul_by_weight(m->g, m->x, m->small, m->y, m->n, err);
}

static clv_code times_weight(bench *m, clv_err *err) {
  return clv_gpu_mul_by_weight_back(m->g, m->x, m->z, m->n, m->parts, m->small, false, err);
}

static clv_code mean_across(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->samples, .extent = m->channels, .inner = m->inner};
  return clv_gpu_mean(m->g, false, &s, m->x, m->y, err);
}

static clv_code mean_across_bf16(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->samples, .extent = m->channels, .inner = m->inner};
  return clv_gpu_mean(m->g, true, &s, m->x, m->y, err);
}

static clv_axis rows_of(const bench *m) {
  return (clv_axis){.outer = m->rows, .extent = m->width, .inner = 1};
}

static clv_code mean_bf16(bench *m, clv_err *err) {
  const clv_axis s = rows_of(m);
  return clv_gpu_mean(m->g, true, &s, m->x, m->y, err);
}

static clv_code mean_back_bf16(bench *m, clv_err *err) {
  const clv_axis s = rows_of(m);
  return clv_gpu_mean_back(m->g, true, &s, m->z, m->y, err);
}

static clv_code moved(bench *m, int from, int to, clv_err *err) {
  const cuda_move v = {.n = m->samples,
                       .channels = m->channels,
                       .inner = m->inner,
                       .from = from,
                       .to = to,
                       .accumulate = from == to};
  return clv_gpu_move_layout(m->g, &v, m->x, m->y, err);
}

static clv_code to_last_f32(bench *m, clv_err *err) {
  return moved(m, 1, CLV_LAYOUT_CHANNELS_LAST | 1, err);
}

static clv_code added_bf16(bench *m, clv_err *err) {
  return moved(m, GPU_CHANNELS_LAST, GPU_CHANNELS_LAST, err);
}

/* Returns the sum over all rows of values that stand for each row. */
static cuda_broadcast_sum fold_of(const bench *m, bool has_thread_per_value) {
  return (cuda_broadcast_sum){.rank = 1,
                              .n_summed = 1,
                              .n = {m->width},
                              .out = {1},
                              .other = {1},
                              .summed = {m->rows},
                              .summed_out = {m->width},
                              .summed_other = {m->width},
                              .values = m->width,
                              .terms = m->rows,
                              .has_thread_per_value = has_thread_per_value};
}

/* Adds one row to all rows. */
static clv_code broadcast(bench *m, clv_err *err) {
  const clv_broadcast v = {.rank = 2, .n = {m->rows, m->width}, .step = {{m->width, 1}, {0, 1}}};
  return clv_gpu_broadcast(m->g, &v, &(cuda_bf16_flags){0}, false, m->x, m->small, m->y, m->n, err);
}

static clv_code sum_with_thread_per_value(bench *m, clv_err *err) {
  const cuda_broadcast_sum f = fold_of(m, true);
  return clv_gpu_sum_broadcast(m->g, &f, m->x, NULL, m->y, err);
}

static clv_code fold_blocks(bench *m, clv_err *err) {
  const cuda_broadcast_sum f = fold_of(m, false);
  return clv_gpu_sum_broadcast(m->g, &f, m->x, NULL, m->y, err);
}

/* Dropout follows the kernels that read the mask, because they need zeros there. */
const kernel more_kernels[] = {
    {"last", 4, .f = last},
    {"last backward", 4, .f = last_back},
    {"sigmoid backward", 12, .map = clv_gpu_sigmoid_back, .two = true},
    {"tanh backward", 12, .map = clv_gpu_tanh_back, .two = true},
    {"gelu by tanh", 8, .map = clv_gpu_gelu_tanh},
    {"gelu by tanh backward", 12, .map = clv_gpu_gelu_tanh_back, .two = true},
    {"leaky relu", 8, .map = clv_gpu_leaky_relu},
    {"leaky relu backward", 12, .map = clv_gpu_leaky_relu_back, .two = true},
    {"relu backward, bf16", 6, .map = clv_gpu_relu_back, .two = true, .last = true},
    {"sigmoid, bf16", 4, .map = clv_gpu_sigmoid, .last = true},
    {"sigmoid backward, bf16", 6, .map = clv_gpu_sigmoid_back, .two = true, .last = true},
    {"tanh, bf16", 4, .map = clv_gpu_tanh, .last = true},
    {"tanh backward, bf16", 6, .map = clv_gpu_tanh_back, .two = true, .last = true},
    {"gelu, bf16", 4, .map = clv_gpu_gelu, .last = true},
    {"gelu backward, bf16", 6, .map = clv_gpu_gelu_back, .two = true, .last = true},
    {"gelu by tanh, bf16", 4, .map = clv_gpu_gelu_tanh, .last = true},
    {"gelu by tanh backward, bf16", 6, .map = clv_gpu_gelu_tanh_back, .two = true, .last = true},
    {"silu, bf16", 4, .map = clv_gpu_silu, .last = true},
    {"silu backward, bf16", 6, .map = clv_gpu_silu_back, .two = true, .last = true},
    {"scale, bf16", 4, .map = clv_gpu_scale, .last = true},
    {"leaky relu, bf16", 4, .map = clv_gpu_leaky_relu, .last = true},
    {"leaky relu backward, bf16", 6, .map = clv_gpu_leaky_relu_back, .two = true, .last = true},
    {"rmsnorm", 8, .f = rmsnorm},
    {"groupnorm", 8, .f = groupnorm},
    {"groupnorm backward", 12, .f = groupnorm_back},
    {"groupnorm, weights", 8, .f = groupnorm_weights},
    {"sums of columns", 4, .f = column_sums_f32},
    {"batchnorm of columns, moments", 4, .f = column_moments_f32},
    {"batchnorm of columns+relu, totals", 8, .f = column_totals_f32},
    {"sum of one channel, bf16", 2, .f = column_sums_alone},
    {"batchnorm of one channel, moments, bf16", 2, .f = column_moments_alone},
    {"batchnorm of one channel+relu, totals, bf16", 4, .f = column_totals_alone},
    {"bce", 8, .f = bce},
    {"bce backward", 12, .f = bce_back},
    {"bce with logits", 8, .f = logits},
    {"bce with logits backward", 12, .f = logits_back},
    {"dropout, bf16", 5, .f = draw_last},
    {"dropout backward, bf16", 5, .f = mask_last},
    {"to columns", 8, .f = to_columns},
    {"to columns, rounded", 6, .f = to_columns_rounded},
    {"from columns", 8, .f = from_columns},
    {"to columns, bf16", 4, .f = to_columns_last},
    {"from columns, bf16", 6, .f = from_columns_last},
    {"positions", 8, .f = positions},
    {"positions, packed", 12, .f = places},
    {"positions backward, packed", 12, .f = places_back},
    {"rotary, packed", 8, .f = rotary_packed},
    {"ends, packed", 8, .f = ends},
    {"ends backward, packed", 12, .f = ends_back},
    {"dropout, packed", 9, .f = draw_packed},
    {"to heads of attention", 8, .f = to_heads},
    {"to heads of attention, bf16", 6, .f = to_heads_bf16},
    {"from heads of attention", 8, .f = from_heads},
    {"steps of lstm shifted", 8, .f = shift},
    {"weights of lstm packed", 8, .f = pack},
    {"weights of lstm unpacked", 8, .f = unpack},
    {"times a weight", 8, .f = times},
    {"times a weight, weight", 8, .f = times_weight},
    {"mean of columns", 4, .f = mean_across},
    {"mean of columns, bf16", 2, .f = mean_across_bf16},
    {"mean of rows, bf16", 2, .f = mean_bf16},
    {"mean of rows backward, bf16", 2, .f = mean_back_bf16},
    {"to channels last", 8, .f = to_last_f32},
    {"add to a gradient, bf16", 6, .f = added_bf16},
    {"add of a row", 8, .f = broadcast},
    {"sum over rows, a thread each", 4, .f = sum_with_thread_per_value},
    {"sum over rows, a block each", 4, .f = fold_blocks},
};
const size_t n_more_kernels = CLV_COUNT(more_kernels);
