/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures which share of a copy's bandwidth each of our memory-bound kernels reaches. A kernel's
 * bandwidth is the number of bytes that it must at least read and write, divided by its time; the
 * share is this bandwidth divided by that of a copy on the device.
 *
 * usage: shares [SAMPLES CHANNELS SIDE WIDTH]
 *
 * Prints a line of JSON for each kernel, the copy first. On the simulated device the last line has
 * the addresses of the kernels that ran, relative to main. Images have SIDE x SIDE pixels; SIDE is
 * even. Kernels over rows treat the same values as rows of WIDTH values, so WIDTH must divide the
 * number of values.
 *
 * Linked with the simulated device, or with NVIDIA's in its place: see on_device.c.
 */
#include <inttypes.h>
#include <string.h>

#include "kernels/cuda/attention_int.h"
#include "kernels/cuda/batchnorm_int.h"
#include "kernels/cuda/conv_int.h"
#include "kernels/cuda/gru_int.h"
#include "kernels/cuda/losses_int.h"
#include "kernels/cuda/lstm_int.h"
#include "kernels/cuda/moves_int.h"
#include "kernels/cuda/permute_int.h"
#include "kernels/cuda/pointwise_int.h"
#include "kernels/cuda/pools_int.h"
#include "kernels/cuda/rows_int.h"
#include "kernels/cuda/runs_int.h"
#include "tests/bench/bench_int.h"
#include "tests/gpu/sim.h"
#include "tests/gpu/speed/shares_int.h"

enum { ROUNDS = 5, MANY_VALUES = 1 << 20, CALLS_PER_MEASUREMENT = 20 };

static clv_code copy_on_device(bench *m, clv_err *err) {
  return m->g->vendor->copy(m->g->stream, m->y, m->x, m->n * sizeof *m->x, err);
}

/* ---- kernels over single values -------------------------------------------------------------- */

static clv_rng_stream make_rng_stream(void) { return clv_rng_stream_of(&(clv_rng_key){.seed = 1}); }

static clv_code draw_dropout(bench *m, clv_err *err) {
  const cuda_dropout_shape at = {.n = m->n, .channels = 1, .inner = 1};
  clv_rng_stream s = make_rng_stream();
  return clv_gpu_dropout(m->g, &at, m->x, m->y, (uint8_t *)m->dropout_mask, &s, NULL,
                         clv_gpu_dropout_threshold(0.5), clv_gpu_dropout_factor(0.5), err);
}

static clv_code apply_dropout_mask(bench *m, clv_err *err) {
  return clv_gpu_apply_mask(m->g, false, m->x, (uint8_t *)m->dropout_mask, m->y, m->n, 2, err);
}

static cuda_chain make_chain(void) {
  return (cuda_chain){.n = 3,
                      .op = {CLV_OP_RELU, CLV_OP_SCALE, CLV_OP_DROPOUT},
                      .factor = {0, 2, clv_gpu_dropout_factor(0.5)},
                      .has_dropout = true,
                      .dropout_threshold = clv_gpu_dropout_threshold(0.5),
                      .stream = make_rng_stream()};
}

static clv_code run_chain(bench *m, clv_err *err) {
  cuda_chain c = make_chain();
  return clv_gpu_chain(m->g, &c, m->x, NULL, m->y, m->n, err);
}

static clv_code run_chain_backward(bench *m, clv_err *err) {
  cuda_chain c = make_chain();
  const cuda_chain_back v = {.x = m->x, .y = m->w, .dy = m->z, .dx = m->y};
  return clv_gpu_chain_back(m->g, &c, &v, m->n, err);
}

static clv_code round_to_bf16(bench *m, clv_err *err) {
  return clv_gpu_f32_to_bf16(m->g, m->x, (cuda_bf16 *)m->y, m->n, err);
}

/* ---- kernels over rows ----------------------------------------------------------------------- */

static clv_code softmax(bench *m, clv_err *err) {
  return clv_gpu_softmax(m->g, m->x, m->y, m->n_rows, m->row_width, false, err);
}

static clv_code softmax_back(bench *m, clv_err *err) {
  return clv_gpu_softmax_back(m->g, m->x, m->z, m->y, m->n_rows, m->row_width, false, err);
}

static cuda_norm make_norm(const bench *m) {
  return (cuda_norm){.rows = m->n_rows,
                     .width = m->row_width,
                     .groups = 1,
                     .inner = 1,
                     .is_centred = true,
                     .eps = 1e-5};
}

static clv_code norm(bench *m, clv_err *err) {
  cuda_norm n = make_norm(m);
  return clv_gpu_normalise_rows(m->g, &n, m->x, m->small_buffer, m->small_buffer, m->y,
                                m->statistics, err);
}

static clv_code norm_back(bench *m, clv_err *err) {
  cuda_norm n = make_norm(m);
  return clv_gpu_normalise_rows_back(m->g, &n, m->x, m->small_buffer, m->z, m->statistics, m->y,
                                     err);
}

static clv_code normalise_rows_param_grads(bench *m, clv_err *err) {
  cuda_norm n = make_norm(m);
  return clv_gpu_norm_param_grads(m->g, &n, m->x, m->z, m->statistics, m->partial_sums,
                                  m->small_buffer, m->small_buffer, false, err);
}

static clv_code class_loss(bench *m, clv_err *err) {
  const cuda_class_loss c = {
      .rows = m->n_rows, .n_classes = m->row_width, .positions_per_sample = 1, .x_is_logits = true};
  return clv_gpu_class_loss(m->g, &c, m->x, (int64_t *)m->dropout_mask, m->statistics,
                            m->partial_sums, NULL, m->small_buffer, err);
}

static clv_code class_loss_back(bench *m, clv_err *err) {
  const cuda_class_loss c = {
      .rows = m->n_rows, .n_classes = m->row_width, .positions_per_sample = 1, .x_is_logits = true};
  return clv_gpu_class_loss_back(m->g, &c, m->x, (int64_t *)m->dropout_mask, m->small_buffer,
                                 m->statistics, m->y, err);
}

static clv_code mse(bench *m, clv_err *err) {
  return clv_gpu_mse(m->g, m->x, m->z, m->n, m->partial_sums, m->small_buffer, 0, err);
}

static clv_code mse_back(bench *m, clv_err *err) {
  return clv_gpu_mse_back(m->g, m->x, m->z, m->n, m->small_buffer, m->y, NULL, err);
}

/* ---- kernels over images --------------------------------------------------------------------- */

static cuda_batchnorm make_batchnorm(const bench *m, bool is_channels_last) {
  cuda_sum_layout s =
      is_channels_last ? gpu_sum_layout_channels_last(m->n_samples, m->n_channels, m->n_positions)
                       : gpu_sum_layout_of(m->n_samples, m->n_channels, m->n_positions);
  return (cuda_batchnorm){.sums = s,
                          .is_training = true,
                          .channels_last = is_channels_last,
                          .eps = 1e-5,
                          .momentum = 0.1,
                          .has_relu = true};
}

static clv_code batchnorm_moments(bench *m, bool is_channels_last, clv_err *err) {
  cuda_batchnorm b = make_batchnorm(m, is_channels_last);
  float *mean = m->small_buffer + m->n_channels, *var = mean + m->n_channels;
  return clv_gpu_compute_batch_moments(m->g, &b, m->x, m->partial_sums, m->statistics, mean, var,
                                       m->row_permutation + m->n_rows, err);
}

static clv_code batchnorm_normalise(bench *m, bool is_channels_last, clv_err *err) {
  cuda_batchnorm b = make_batchnorm(m, is_channels_last);
  return clv_gpu_batchnorm(m->g, &b, m->x, m->small_buffer, m->small_buffer, m->statistics, NULL,
                           m->y, err);
}

static cuda_gradient make_gradient(const bench *m) {
  return (cuda_gradient){.gate = GPU_RELU_BY_X,
                         .x = m->x,
                         .dy = m->z,
                         .w = m->small_buffer,
                         .bias = m->small_buffer,
                         .saved = m->statistics};
}

static cuda_pair *get_totals(const bench *m) {
  return (cuda_pair *)((char *)m->partial_sums + PARTIALS_BYTES / 2);
}

static clv_code batchnorm_totals(bench *m, bool is_channels_last, clv_err *err) {
  cuda_batchnorm b = make_batchnorm(m, is_channels_last);
  cuda_gradient from = make_gradient(m);
  return clv_gpu_batchnorm_param_grads(m->g, &b, &from, m->partial_sums, get_totals(m), NULL, NULL,
                                       NULL, false, err);
}

static clv_code batchnorm_back(bench *m, bool is_channels_last, clv_err *err) {
  cuda_batchnorm b = make_batchnorm(m, is_channels_last);
  cuda_gradient from = make_gradient(m);
  return clv_gpu_batchnorm_back(m->g, &b, &from, get_totals(m), m->y, err);
}

static clv_code channel_sums(bench *m, bool is_channels_last, clv_err *err) {
  cuda_batchnorm b = make_batchnorm(m, is_channels_last);
  return clv_gpu_sum_channels(m->g, &b.sums, is_channels_last, m->x, m->partial_sums,
                              m->small_buffer, false, err);
}

static clv_code add_bias(bench *m, bool is_channels_last, clv_err *err) {
  return clv_gpu_add_bias(m->g, is_channels_last, m->small_buffer, m->y, m->n_samples,
                          m->n_channels, m->n_positions, true, err);
}

/* Returns windows of 2 by 2 that do not overlap. */
static clv_window make_window(const bench *m) {
  int64_t n = (int64_t)m->n_samples, c = (int64_t)m->n_channels, side = (int64_t)m->image_side;
  return (clv_window){n, c, side, side, c, side / 2, side / 2, {2, 2}, {2, 2}, {0, 0}, {1, 1}};
}

static clv_code maxpool(bench *m, bool is_channels_last, clv_err *err) {
  clv_window s = make_window(m);
  return clv_gpu_maxpool(m->g, is_channels_last, &s, m->x, m->y, (int64_t *)m->w, err);
}

static clv_code maxpool_back(bench *m, bool is_channels_last, clv_err *err) {
  clv_window s = make_window(m);
  return clv_gpu_maxpool_back(m->g, is_channels_last, &s, m->z, (int64_t *)m->w, m->y, err);
}

static clv_code avgpool(bench *m, bool is_channels_last, clv_err *err) {
  clv_window s = make_window(m);
  return clv_gpu_avgpool(m->g, is_channels_last, &s, m->x, m->y, err);
}

static clv_code avgpool_back(bench *m, bool is_channels_last, clv_err *err) {
  clv_window s = make_window(m);
  return clv_gpu_avgpool_back(m->g, is_channels_last, &s, m->z, m->y, err);
}

/* Defines two functions that run the kernel `name`: NAME_f32 over images with channels first, and
 * NAME_channels_last. */
#define BOTH_LAYOUTS(name)                                                           \
  static clv_code name##_f32(bench *m, clv_err *err) { return name(m, false, err); } \
  static clv_code name##_channels_last(bench *m, clv_err *err) { return name(m, true, err); }
BOTH_LAYOUTS(batchnorm_moments)
BOTH_LAYOUTS(batchnorm_normalise)
BOTH_LAYOUTS(batchnorm_totals)
BOTH_LAYOUTS(batchnorm_back)
BOTH_LAYOUTS(channel_sums)
BOTH_LAYOUTS(add_bias)
BOTH_LAYOUTS(maxpool)
BOTH_LAYOUTS(maxpool_back)
BOTH_LAYOUTS(avgpool)
BOTH_LAYOUTS(avgpool_back)

static clv_code mean(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->n_rows, .extent = m->row_width, .inner = 1};
  return clv_gpu_mean(m->g, false, &s, m->x, m->y, err);
}

static clv_code mean_back(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->n_rows, .extent = m->row_width, .inner = 1};
  return clv_gpu_mean_back(m->g, false, &s, m->z, m->y, err);
}

/* ---- kernels that copy and permute ----------------------------------------------------------- */

static clv_code move_channels(bench *m, bool to_last, clv_err *err) {
  const cuda_layout_conversion v = {.n = m->n_samples,
                                    .channels = m->n_channels,
                                    .inner = m->n_positions,
                                    .from = to_last ? 1 : GPU_CHANNELS_LAST,
                                    .to = to_last ? GPU_CHANNELS_LAST : 1};
  return clv_gpu_convert_layout(m->g, &v, m->x, m->y, err);
}

static clv_code to_channels_last(bench *m, clv_err *err) { return move_channels(m, true, err); }
static clv_code from_channels_last(bench *m, clv_err *err) { return move_channels(m, false, err); }

/* Exchanges the second and third dimension of x, as attention does with steps and heads: [samples,
 * channels, side, side] to [samples, side, channels, side]. */
static clv_code permute(bench *m, clv_err *err) {
  int64_t c = (int64_t)m->n_channels, side = (int64_t)m->image_side;
  cuda_permutation o = {.out = CLV_SHAPE((int64_t)m->n_samples, side, c, side), .n = m->n};
  const size_t step[] = {m->n_channels * m->n_positions, m->image_side, m->n_positions, 1};
  memcpy(o.step, step, sizeof step);
  return clv_gpu_permute(m->g, &o, m->x, m->y, false, err);
}

static clv_code apply_rotary(bench *m, clv_err *err) {
  const cuda_rotary r = {.n = m->n,
                         .steps = m->n_positions / m->image_side,
                         .heads = m->n_channels,
                         .width = m->image_side,
                         .angles = {.base = 10000, .factor = 1},
                         .sign = 1};
  return clv_gpu_rotate(m->g, &r, m->x, m->y, err);
}

static cuda_lookup make_lookup(const bench *m) {
  return (cuda_lookup){.l = {.n = m->n_rows,
                             .per_sample = m->n_rows,
                             .width = 1,
                             .rows = (int64_t)m->n_rows,
                             .minus = -1,
                             .padding = -1},
                       .row_size = m->row_width};
}

static clv_code embedding_lookup(bench *m, clv_err *err) {
  const cuda_lookup l = make_lookup(m);
  return clv_gpu_look_up_rows(m->g, &l, m->row_permutation, m->x, m->y, err);
}

static clv_code embedding_backward(bench *m, clv_err *err) {
  const cuda_lookup l = make_lookup(m);
  return clv_gpu_look_up_rows_back(m->g, &l, m->row_permutation, m->x, m->partial_sums, m->y, false,
                                   err);
}

/* Copies the first half of each row. */
static clv_code copy_half_rows(bench *m, clv_err *err) {
  return clv_gpu_copy_runs(m->g, m->x, m->row_width, m->y, m->row_width / 2, m->n_rows,
                           m->row_width / 2, err);
}

/* ---- kernels of optimisers ------------------------------------------------------------------- */

static clv_code run_optimizer(bench *m, clv_optim_kind kind, clv_err *err) {
  const clv_step_args a = {.kind = kind,
                           .grad_scale = 1,
                           .momentum = 0.9f,
                           .eps = 1e-8f,
                           .step_size = 1e-6f,
                           .decay = {0.9f, 0.999f},
                           .one_minus_decay = {0.1f, 0.001f},
                           .bias2_sqrt = 1};
  float *const moment[CLV_OPTIM_MAX_MOMENTS] = {m->z, m->w};
  const clv_extent all_values = {.n = m->n};
  return clv_gpu_step(m->g, &a, m->y, m->x, moment, &all_values, 1, err);
}

static clv_code sgd(bench *m, clv_err *err) { return run_optimizer(m, CLV_OPTIM_SGD, err); }
static clv_code adam(bench *m, clv_err *err) { return run_optimizer(m, CLV_OPTIM_ADAM, err); }
static clv_code adamw(bench *m, clv_err *err) { return run_optimizer(m, CLV_OPTIM_ADAMW, err); }
static clv_code adamax(bench *m, clv_err *err) { return run_optimizer(m, CLV_OPTIM_ADAMAX, err); }
static clv_code adagrad(bench *m, clv_err *err) { return run_optimizer(m, CLV_OPTIM_ADAGRAD, err); }
static clv_code rmsprop(bench *m, clv_err *err) { return run_optimizer(m, CLV_OPTIM_RMSPROP, err); }

static clv_code sum_squares(bench *m, clv_err *err) {
  const clv_extent all_values = {.n = m->n};
  const cuda_range_table *runs;
  CLV_TRY(clv_gpu_find_range_table(m->g, &all_values, 1, &runs, err));
  return clv_gpu_sum_range_squares(m->g, m->x, runs, err);
}

/* ---- kernels of attention and of LSTM cells -------------------------------------------------- */

/* Returns attention with one head for each sample, which has as many keys as a row has values. */
static cuda_heads make_heads(const bench *m) {
  size_t t = m->n_rows / m->n_samples;
  return (cuda_heads){.n = m->n_samples,
                      .t = t,
                      .s = m->row_width,
                      .heads = 1,
                      .kv_heads = 1,
                      .width = m->row_width,
                      .group = 1,
                      .scale = 0.1f,
                      .rows = t};
}

static clv_code attention_weights(bench *m, clv_err *err) {
  const cuda_heads h = make_heads(m);
  const cuda_attention_weights w = {m->y, m->y};
  return clv_gpu_attention_softmax(m->g, &h, &w, NULL, (float *)m->statistics, err);
}

/* Computes attention weights from the scores in x without changing x, and writes the weights in
 * bf16, as factors of the next product, to another buffer. */
static clv_code attention_weights_bf16(bench *m, clv_err *err) {
  cuda_heads h = make_heads(m);
  const cuda_attention_weights w = {m->x, m->y};
  h.bf16 = true;
  return clv_gpu_attention_softmax(m->g, &h, &w, NULL, (float *)m->statistics, err);
}

static clv_code attention_weights_backward_bf16(bench *m, clv_err *err) {
  cuda_heads h = make_heads(m);
  const cuda_attention_weights w = {m->x, m->y}, dw = {m->z, m->w};
  h.bf16 = true;
  return clv_gpu_attention_softmax_back(m->g, &h, &w, &dw, NULL, (const float *)m->statistics, err);
}

static clv_code attention_weights_backward(bench *m, clv_err *err) {
  const cuda_heads h = make_heads(m);
  const cuda_attention_weights w = {m->y, m->y}, dw = {m->z, m->z};
  return clv_gpu_attention_softmax_back(m->g, &h, &w, &dw, NULL, (const float *)m->statistics, err);
}

/* Returns an LSTM of one step for each row. A row holds the four gates. */
static cuda_lstm make_lstm(const bench *m) {
  return (cuda_lstm){
      .n = m->n_rows, .t = 1, .h = m->row_width / 4, .gates = m->y, .cell = m->z, .hidden = m->w};
}

static clv_code run_lstm_cell(bench *m, clv_err *err) {
  const cuda_lstm l = make_lstm(m);
  return clv_gpu_compute_lstm_cell(m->g, &l, 0, m->small_buffer, m->small_buffer, err);
}

static clv_code run_lstm_cell_backward(bench *m, clv_err *err) {
  const cuda_lstm l = make_lstm(m);
  float *dh_from_above = m->w + m->n / 4, *dc = m->w + m->n / 2;
  return clv_gpu_compute_lstm_cell_back(m->g, &l, 0, dh_from_above, dh_from_above, dc, m->x, err);
}

/* Returns a GRU of one step for each row. Its gates are in the first three quarters of each row of
 * y. */
static cuda_gru make_gru(const bench *m) {
  return (cuda_gru){.n = m->n_rows,
                    .t = 1,
                    .h = m->row_width / 4,
                    .gates = m->y,
                    .sums = m->w + m->n / 4,
                    .hidden = m->w};
}

static clv_code run_gru_cell(bench *m, clv_err *err) {
  const cuda_gru l = make_gru(m);
  return clv_gpu_compute_gru_cell(m->g, &l, 0, m->x, m->small_buffer, m->small_buffer, err);
}

static clv_code run_gru_cell_backward(bench *m, clv_err *err) {
  const cuda_gru l = make_gru(m);
  const cuda_gru_gradients d = {.dgates_ih = m->x, .dgates_hh = m->z, .dh = m->w + m->n / 2};
  return clv_gpu_compute_gru_cell_back(m->g, &l, 0, m->w, &d, err);
}

static clv_code shift_gru_steps(bench *m, clv_err *err) {
  const cuda_gru l = make_gru(m);
  return clv_gpu_shift_gru_steps(m->g, &l, m->x, err);
}

/* ---- measuring the kernels ------------------------------------------------------------------- */

/* The order of this table matters: some kernels read row numbers or positions that kernels before
 * them in the table have written. */
static const kernel kernels[] = {
    {"scale", 8, .map_kernel = clv_gpu_scale},
    {"add", 12, .map_kernel = clv_gpu_add, .has_second_input = true},
    {"add, bf16", 6, .map_kernel = clv_gpu_add, .has_second_input = true, .is_channels_last = true},
    {"mul", 12, .map_kernel = clv_gpu_mul, .has_second_input = true},
    {"mul, bf16", 6, .map_kernel = clv_gpu_mul, .has_second_input = true, .is_channels_last = true},
    {"round to bf16", 6, .f = round_to_bf16},
    {"class loss", 4, .f = class_loss},
    {"class loss backward", 8, .f = class_loss_back},
    {"dropout", 9, .f = draw_dropout},
    {"dropout backward", 9, .f = apply_dropout_mask},
    {"relu+scale+dropout", 8, .f = run_chain},
    {"relu+scale+dropout backward", 12, .f = run_chain_backward},
    {"softmax", 8, .f = softmax},
    {"softmax backward", 12, .f = softmax_back},
    {"layernorm", 8, .f = norm},
    {"layernorm backward", 12, .f = norm_back},
    {"layernorm, weights", 8, .f = normalise_rows_param_grads},
    {"mse", 8, .f = mse},
    {"mse backward", 12, .f = mse_back},
    {"batchnorm, moments", 4, .f = batchnorm_moments_f32},
    {"batchnorm+relu", 8, .f = batchnorm_normalise_f32},
    {"batchnorm+relu, totals", 8, .f = batchnorm_totals_f32},
    {"batchnorm+relu backward", 12, .f = batchnorm_back_f32},
    {"sums of channels", 4, .f = channel_sums_f32},
    {"bias+relu", 8, .f = add_bias_f32},
    {"maxpool", 7, .f = maxpool_f32},
    {"maxpool backward", 7, .f = maxpool_back_f32},
    {"avgpool", 5, .f = avgpool_f32},
    {"avgpool backward", 5, .f = avgpool_back_f32},
    {"batchnorm, moments, bf16", 2, .f = batchnorm_moments_channels_last},
    {"batchnorm+relu, bf16", 4, .f = batchnorm_normalise_channels_last},
    {"batchnorm+relu, totals, bf16", 4, .f = batchnorm_totals_channels_last},
    {"batchnorm+relu backward, bf16", 6, .f = batchnorm_back_channels_last},
    {"sums of channels, bf16", 2, .f = channel_sums_channels_last},
    {"bias+relu, bf16", 4, .f = add_bias_channels_last},
    {"maxpool, bf16", 4.5, .f = maxpool_channels_last},
    {"maxpool backward, bf16", 4.5, .f = maxpool_back_channels_last},
    {"avgpool, bf16", 2.5, .f = avgpool_channels_last},
    {"avgpool backward, bf16", 2.5, .f = avgpool_back_channels_last},
    {"mean of rows", 4, .f = mean},
    {"mean of rows backward", 4, .f = mean_back},
    {"to bf16, channels last", 6, .f = to_channels_last},
    {"from bf16, channels last", 6, .f = from_channels_last},
    {"permute", 8, .f = permute},
    {"rotary", 8, .f = apply_rotary},
    {"embedding", 8, .f = embedding_lookup},
    {"embedding backward", 8, .f = embedding_backward},
    {"slice", 4, .f = copy_half_rows},
    {"sgd with momentum", 20, .f = sgd},
    {"adam", 28, .f = adam},
    {"adamw", 28, .f = adamw},
    {"adamax", 28, .f = adamax},
    {"adagrad", 20, .f = adagrad},
    {"rmsprop with momentum", 28, .f = rmsprop},
    {"sum of squares", 4, .f = sum_squares},
    {"weights of attention", 8, .f = attention_weights},
    {"weights of attention backward", 16, .f = attention_weights_backward},
    {"weights of attention, bf16", 6, .f = attention_weights_bf16},
    {"weights of attention backward, bf16", 12, .f = attention_weights_backward_bf16},
    {"cell of gru", 8, .f = run_gru_cell},
    {"cell of gru backward", 11, .f = run_gru_cell_backward},
    {"steps of gru shifted", 2, .f = shift_gru_steps},
    {"cell of lstm", 10, .f = run_lstm_cell},
    {"cell of lstm backward", 11, .f = run_lstm_cell_backward},
};

static clv_code run_kernel(bench *m, const kernel *k, clv_err *err) {
  if (!k->map_kernel) return k->f(m, err);
  return k->map_kernel(m->g, k->is_channels_last, m->x, k->has_second_input ? m->z : NULL, m->y,
                       m->n, (cuda_formula_numbers){1.5f, 2}, err);
}

static double measure_once(bench *m, const kernel *k) {
  const clv_vendor *v = m->g->vendor;
  int n_calls = m->n < MANY_VALUES ? 1 : CALLS_PER_MEASUREMENT;
  double ms = 0;
  clv_err err;
  must(v->event_record(m->begin_event, m->g->stream, &err), &err);
  for (int i = 0; i < n_calls; i++) must(run_kernel(m, k, &err), &err);
  must(v->event_record(m->end_event, m->g->stream, &err), &err);
  must(v->event_finish(m->end_event, &err), &err);
  must(v->event_ms(m->begin_event, m->end_event, &ms, &err), &err);
  return CLV_MAX(ms, 1e-6) / 1e3 / n_calls;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Returns the kernel's bytes per second: the median of ROUNDS measurements. One measurement before
 * them is not counted. */
static double measure_rate(bench *m, const kernel *k) {
  double s[ROUNDS];
  measure_once(m, k);
  for (int i = 0; i < ROUNDS; i++) s[i] = measure_once(m, k);
  qsort(s, ROUNDS, sizeof *s, compare_doubles);
  return k->bytes_per_value * (double)m->n / s[ROUNDS / 2];
}

static void *allocate_and_fill(bench *m, int byte, size_t bytes) {
  void *p;
  clv_err err;
  must(clv_backend_allocate(m->backend, bytes, &p, &err), &err);
  must(clv_backend_fill(m->backend, p, byte, bytes, &err), &err);
  return p;
}

/* Fills row_permutation with the row numbers in an order that makes caches useless. */
static void fill_row_permutation(bench *m) {
  clv_err err;
  int64_t *host = NULL;
  must(clv_alloc(m->n_rows, sizeof *host, &host, &err), &err);
  for (size_t i = 0; i < m->n_rows; i++) host[i] = (int64_t)(i * 7919 % m->n_rows);
  must(clv_backend_put(m->backend, m->row_permutation, host, m->n_rows * sizeof *host, &err), &err);
  free(host);
}

static void fill_packed_offsets(bench *m) {
  clv_err err;
  int64_t *host = NULL;
  must(clv_alloc(m->n_rows + 3, sizeof *host, &host, &err), &err);
  for (size_t i = 0; i <= m->n_rows; i++) host[i] = (int64_t)i;
  host[m->n_rows + 2] = (int64_t)m->n_rows;
  must(clv_backend_put(m->backend, m->packed_offsets, host, (m->n_rows + 3) * sizeof *host, &err),
       &err);
  free(host);
}

/* ---- names of the kernels that were launched ------------------------------------------------- */

enum { MAX_KERNELS = 512 };
static clv_vendor recording_vendor;
static const clv_vendor *original_vendor;
static void (*launched_kernels[MAX_KERNELS])(void *const *args);
static size_t n_launched;

static clv_code record_launch(clv_cuda_stream *s, const clv_cuda_launch *l, clv_err *err) {
  size_t i = 0;
  while (i < n_launched && launched_kernels[i] != l->call) i++;
  if (l->call && i == n_launched && n_launched < MAX_KERNELS)
    launched_kernels[n_launched++] = l->call;
  return original_vendor->launch(s, l, err);
}

static void record_launches(bench *m) {
  original_vendor = m->g->vendor;
  recording_vendor = *original_vendor;
  recording_vendor.launch = record_launch;
  m->g->vendor = &recording_vendor;
}

/* Prints each launched kernel by its address relative to main, because names do not tell the
 * instances of a template apart. */
static void print_launched_kernels(uintptr_t main_address) {
  printf("{\"kernels\":[");
  for (size_t i = 0; i < n_launched; i++)
    printf("%s%" PRId64, i ? "," : "", (int64_t)((uintptr_t)launched_kernels[i] - main_address));
  printf("]}\n");
}

enum { HUNDREDTH = 0x3c }; /* this value in each byte makes a float of about 0.01 */

static void refill_buffers(bench *m) {
  float *const large_buffers[] = {m->x, m->y, m->z, m->w};
  clv_err err;
  for (size_t i = 0; i < CLV_COUNT(large_buffers); i++)
    must(clv_backend_fill(m->backend, large_buffers[i], HUNDREDTH, m->n * sizeof(float), &err),
         &err);
  must(clv_backend_fill(m->backend, m->dropout_mask, 0, m->n, &err), &err);
}

static void open_bench(bench *m) {
  float **const large_buffers[] = {&m->x, &m->y, &m->z, &m->w};
  clv_err err;
  must(clv_cuda_open(clv_sim_make_vendor(&(clv_sim_options){.seed = 2}), 0, &m->backend, &err),
       &err);
  m->g = m->backend->private_data;
  must(m->g->vendor->event_new(0, true, &m->begin_event, &err), &err);
  must(m->g->vendor->event_new(0, true, &m->end_event, &err), &err);
  m->n_positions = m->image_side * m->image_side;
  m->n = m->n_samples * m->n_channels * m->n_positions;
  m->n_rows = m->n / m->row_width;
  for (size_t i = 0; i < CLV_COUNT(large_buffers); i++)
    *large_buffers[i] = allocate_and_fill(m, HUNDREDTH, m->n * sizeof(float));
  record_launches(m);
  m->dropout_mask = allocate_and_fill(m, 0, m->n);
  m->row_permutation = allocate_and_fill(m, 0, (m->n_rows + 1) * sizeof *m->row_permutation);
  m->packed_offsets = allocate_and_fill(m, 0, (m->n_rows + 3) * sizeof *m->packed_offsets);
  m->statistics = allocate_and_fill(
      m, HUNDREDTH, 2 * (m->n_rows + m->n_channels + m->row_width) * sizeof *m->statistics);
  m->partial_sums = allocate_and_fill(m, 0, PARTIALS_BYTES);
  m->small_buffer = allocate_and_fill(m, HUNDREDTH, PARTIALS_BYTES);
  fill_row_permutation(m);
  fill_packed_offsets(m);
}

static void close_bench(bench *m) {
  void *const buffers[] = {m->x,
                           m->y,
                           m->z,
                           m->w,
                           m->dropout_mask,
                           m->row_permutation,
                           m->packed_offsets,
                           m->statistics,
                           m->partial_sums,
                           m->small_buffer};
  for (size_t i = 0; i < CLV_COUNT(buffers); i++) clv_backend_free_memory(m->backend, buffers[i]);
  m->g->vendor->event_free(m->begin_event);
  m->g->vendor->event_free(m->end_event);
  clv_cuda_close(m->backend);
}

static size_t read_size(int argc, char **argv, int i, size_t default_size) {
  return argc > i ? (size_t)CLV_MAX(atol(argv[i]), 1) : default_size;
}

static void print_shares(bench *m, const kernel *list, size_t n, double copy_rate) {
  for (size_t i = 0; i < n; i++) {
    double rate = measure_rate(m, &list[i]);
    printf("{\"what\":\"%s\",\"rate\":%.4g,\"share\":%.3f}\n", list[i].name, rate,
           rate / copy_rate);
  }
}

int main(int argc, char **argv) {
  static const kernel copying = {"copy", 8, .f = copy_on_device};
  bench m = {.n_samples = read_size(argc, argv, 1, 64),
             .n_channels = read_size(argc, argv, 2, 64),
             .image_side = read_size(argc, argv, 3, 128),
             .row_width = read_size(argc, argv, 4, 1024)};
  clv_err err;
  open_bench(&m);
  double copy_rate = measure_rate(&m, &copying);
  printf("{\"what\":\"copy\",\"rate\":%.4g}\n", copy_rate);
  print_shares(&m, kernels, CLV_COUNT(kernels), copy_rate);
  refill_buffers(&m);
  print_shares(&m, more_kernels, n_more_kernels, copy_rate);
  print_launched_kernels((uintptr_t)main);
  must(clv_backend_finish(m.backend, &err), &err);
  close_bench(&m);
  return clv_sim_count_leaks() ? 1 : 0;
}
