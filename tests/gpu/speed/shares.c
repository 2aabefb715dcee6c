/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of a copy's bandwidth each of our own kernels reaches that memory limits: the bytes that
 * it must read and write at least, by its time, beside what a copy on the device reads and writes.
 *
 * usage: shares [SAMPLES CHANNELS SIDE WIDTH]
 * A line of JSON for each, the copy's first; the last says where the kernels lie that ran, counted
 * from main, on the simulated device. Images are of SIDE by SIDE, a multiple of 2; all their values
 * are a multiple of WIDTH, that of rows.
 *
 * Linked with the simulated device, or with NVIDIA's in its place: see on_device.c.
 */
#include <inttypes.h>
#include <string.h>

#include "kernels/cuda/attention_int.h"
#include "kernels/cuda/batchnorm_int.h"
#include "kernels/cuda/conv_int.h"
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

enum { ROUNDS = 5, MANY = 1 << 20, TIMES = 20 };

static clv_code copy(bench *m, clv_err *err) {
  return m->g->vendor->copy(m->g->stream, m->y, m->x, m->n * sizeof *m->x, err);
}

/* ---- values alone ---------------------------------------------------------------------------- */

static clv_rng_stream some_stream(void) { return clv_rng_stream_of(&(clv_rng_key){.seed = 1}); }

static clv_code draw(bench *m, clv_err *err) {
  const cuda_dropout_shape at = {.n = m->n, .channels = 1, .inner = 1};
  clv_rng_stream s = some_stream();
  return clv_gpu_dropout(m->g, &at, m->x, m->y, (uint8_t *)m->mask, &s, NULL,
                         clv_gpu_dropout_threshold(0.5), clv_gpu_dropout_factor(0.5), err);
}

static clv_code mask(bench *m, clv_err *err) {
  return clv_gpu_apply_mask(m->g, false, m->x, (uint8_t *)m->mask, m->y, m->n, 2, err);
}

static cuda_chain some_chain(void) {
  return (cuda_chain){.n = 3,
                      .op = {CLV_OP_RELU, CLV_OP_SCALE, CLV_OP_DROPOUT},
                      .by = {0, 2, clv_gpu_dropout_factor(0.5)},
                      .has_dropout = true,
                      .limit = clv_gpu_dropout_threshold(0.5),
                      .stream = some_stream()};
}

static clv_code chain(bench *m, clv_err *err) {
  cuda_chain c = some_chain();
  return clv_gpu_chain(m->g, &c, m->x, NULL, m->y, m->n, err);
}

static clv_code chain_back(bench *m, clv_err *err) {
  cuda_chain c = some_chain();
  const cuda_chain_back v = {.x = m->x, .y = m->w, .dy = m->z, .dx = m->y};
  return clv_gpu_chain_back(m->g, &c, &v, m->n, err);
}

static clv_code rounded(bench *m, clv_err *err) {
  return clv_gpu_f32_to_bf16(m->g, m->x, (cuda_bf16 *)m->y, m->n, err);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static clv_code softmax(bench *m, clv_err *err) {
  return clv_gpu_softmax(m->g, m->x, m->y, m->rows, m->width, false, err);
}

static clv_code softmax_back(bench *m, clv_err *err) {
  return clv_gpu_softmax_back(m->g, m->x, m->z, m->y, m->rows, m->width, false, err);
}

static cuda_norm norm_of(const bench *m) {
  return (cuda_norm){
      .rows = m->rows, .width = m->width, .groups = 1, .inner = 1, .is_centred = true, .eps = 1e-5};
}

static clv_code norm(bench *m, clv_err *err) {
  cuda_norm n = norm_of(m);
  return clv_gpu_norm(m->g, &n, m->x, m->small, m->small, m->y, m->saved, err);
}

static clv_code norm_back(bench *m, clv_err *err) {
  cuda_norm n = norm_of(m);
  return clv_gpu_norm_back(m->g, &n, m->x, m->small, m->z, m->saved, m->y, err);
}

static clv_code norm_weights(bench *m, clv_err *err) {
  cuda_norm n = norm_of(m);
  return clv_gpu_norm_weights_back(m->g, &n, m->x, m->z, m->saved, m->parts, m->small, m->small,
                                   false, err);
}

static clv_code class_loss(bench *m, clv_err *err) {
  const cuda_classes c = {
      .rows = m->rows, .classes = m->width, .per_sample = 1, .x_is_logits = true};
  return clv_gpu_class_loss(m->g, &c, m->x, (int64_t *)m->mask, m->saved, m->parts, NULL, m->small,
                            err);
}

static clv_code class_loss_back(bench *m, clv_err *err) {
  const cuda_classes c = {
      .rows = m->rows, .classes = m->width, .per_sample = 1, .x_is_logits = true};
  return clv_gpu_class_loss_back(m->g, &c, m->x, (int64_t *)m->mask, m->small, m->saved, m->y, err);
}

static clv_code mse(bench *m, clv_err *err) {
  return clv_gpu_mse(m->g, m->x, m->z, m->n, m->parts, m->small, 0, err);
}

static clv_code mse_back(bench *m, clv_err *err) {
  return clv_gpu_mse_back(m->g, m->x, m->z, m->n, m->small, m->y, NULL, err);
}

/* ---- images ---------------------------------------------------------------------------------- */

static cuda_batchnorm batchnorm_of(const bench *m, bool last) {
  cuda_sums s = last ? gpu_sums_channels_last(m->samples, m->channels, m->inner)
                     : gpu_sums_of(m->samples, m->channels, m->inner);
  return (cuda_batchnorm){.sums = s,
                          .is_training = true,
                          .channels_last = last,
                          .eps = 1e-5,
                          .momentum = 0.1,
                          .has_relu = true};
}

static clv_code moments(bench *m, bool last, clv_err *err) {
  cuda_batchnorm b = batchnorm_of(m, last);
  float *mean = m->small + m->channels, *var = mean + m->channels;
  return clv_gpu_batch_moments(m->g, &b, m->x, m->parts, m->saved, mean, var, m->which + m->rows,
                               err);
}

static clv_code normalise(bench *m, bool last, clv_err *err) {
  cuda_batchnorm b = batchnorm_of(m, last);
  return clv_gpu_batchnorm(m->g, &b, m->x, m->small, m->small, m->saved, NULL, m->y, err);
}

static cuda_gradient gradient_of(const bench *m) {
  return (cuda_gradient){
      .gate = GPU_BY_X, .x = m->x, .dy = m->z, .w = m->small, .bias = m->small, .saved = m->saved};
}

static cuda_pair *totals_of(const bench *m) { return (cuda_pair *)((char *)m->parts + PARTS / 2); }

static clv_code totals(bench *m, bool last, clv_err *err) {
  cuda_batchnorm b = batchnorm_of(m, last);
  cuda_gradient from = gradient_of(m);
  return clv_gpu_batchnorm_totals(m->g, &b, &from, m->parts, totals_of(m), NULL, NULL, NULL, false,
                                  err);
}

static clv_code batchnorm_back(bench *m, bool last, clv_err *err) {
  cuda_batchnorm b = batchnorm_of(m, last);
  cuda_gradient from = gradient_of(m);
  return clv_gpu_batchnorm_back(m->g, &b, &from, totals_of(m), m->y, err);
}

static clv_code channel_sums(bench *m, bool last, clv_err *err) {
  cuda_batchnorm b = batchnorm_of(m, last);
  return clv_gpu_channel_sums(m->g, &b.sums, last, m->x, m->parts, m->small, false, err);
}

static clv_code add_bias(bench *m, bool last, clv_err *err) {
  return clv_gpu_add_bias(m->g, last, m->small, m->y, m->samples, m->channels, m->inner, true, err);
}

/* Returns windows of 2 by 2 that do not overlap. */
static clv_window window_of(const bench *m) {
  int64_t n = (int64_t)m->samples, c = (int64_t)m->channels, side = (int64_t)m->side;
  return (clv_window){n, c, side, side, c, side / 2, side / 2, {2, 2}, {2, 2}, {0, 0}, {1, 1}};
}

static clv_code maxpool(bench *m, bool last, clv_err *err) {
  clv_window s = window_of(m);
  return clv_gpu_maxpool(m->g, last, &s, m->x, m->y, (int64_t *)m->w, err);
}

static clv_code maxpool_back(bench *m, bool last, clv_err *err) {
  clv_window s = window_of(m);
  return clv_gpu_maxpool_back(m->g, last, &s, m->z, (int64_t *)m->w, m->y, err);
}

static clv_code avgpool(bench *m, bool last, clv_err *err) {
  clv_window s = window_of(m);
  return clv_gpu_avgpool(m->g, last, &s, m->x, m->y, err);
}

static clv_code avgpool_back(bench *m, bool last, clv_err *err) {
  clv_window s = window_of(m);
  return clv_gpu_avgpool_back(m->g, last, &s, m->z, m->y, err);
}

/* Defines two functions: for channels first and channels last. */
#define EITHER(name)                                                                 \
  static clv_code name##_f32(bench *m, clv_err *err) { return name(m, false, err); } \
  static clv_code name##_last(bench *m, clv_err *err) { return name(m, true, err); }
EITHER(moments)
EITHER(normalise)
EITHER(totals)
EITHER(batchnorm_back)
EITHER(channel_sums)
EITHER(add_bias)
EITHER(maxpool)
EITHER(maxpool_back)
EITHER(avgpool)
EITHER(avgpool_back)

static clv_code mean(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->rows, .extent = m->width, .inner = 1};
  return clv_gpu_mean(m->g, false, &s, m->x, m->y, err);
}

static clv_code mean_back(bench *m, clv_err *err) {
  const clv_axis s = {.outer = m->rows, .extent = m->width, .inner = 1};
  return clv_gpu_mean_back(m->g, false, &s, m->z, m->y, err);
}

/* ---- moves ----------------------------------------------------------------------------------- */

static clv_code turned(bench *m, bool to_last, clv_err *err) {
  const cuda_move v = {.n = m->samples,
                       .channels = m->channels,
                       .inner = m->inner,
                       .from = to_last ? 1 : GPU_CHANNELS_LAST,
                       .to = to_last ? GPU_CHANNELS_LAST : 1};
  return clv_gpu_move_layout(m->g, &v, m->x, m->y, err);
}

static clv_code to_last(bench *m, clv_err *err) { return turned(m, true, err); }
static clv_code from_last(bench *m, clv_err *err) { return turned(m, false, err); }

/* Permutes [samples, channels, inner / width', width'] from steps before heads to heads before
 * steps. */
static clv_code permute(bench *m, clv_err *err) {
  int64_t c = (int64_t)m->channels, side = (int64_t)m->side;
  cuda_order o = {.out = CLV_SHAPE((int64_t)m->samples, side, c, side), .n = m->n};
  const size_t step[] = {m->channels * m->inner, m->side, m->inner, 1};
  memcpy(o.step, step, sizeof step);
  return clv_gpu_permute(m->g, &o, m->x, m->y, false, err);
}

static clv_code rotate(bench *m, clv_err *err) {
  const cuda_rotary r = {.n = m->n,
                         .steps = m->inner / m->side,
                         .heads = m->channels,
                         .width = m->side,
                         .base = 10000,
                         .sign = 1};
  return clv_gpu_rotate(m->g, &r, m->x, m->y, err);
}

static cuda_lookup numbers_of(const bench *m) {
  return (cuda_lookup){.l = {.n = m->rows,
                             .per_sample = m->rows,
                             .width = 1,
                             .rows = (int64_t)m->rows,
                             .minus = -1,
                             .padding = -1},
                       .out = m->width};
}

static clv_code lookup(bench *m, clv_err *err) {
  const cuda_lookup l = numbers_of(m);
  return clv_gpu_lookup(m->g, &l, m->which, m->x, m->y, err);
}

static clv_code lookup_back(bench *m, clv_err *err) {
  const cuda_lookup l = numbers_of(m);
  return clv_gpu_lookup_back(m->g, &l, m->which, m->x, m->parts, m->y, false, err);
}

/* Copies the first half of each row. */
static clv_code slice(bench *m, clv_err *err) {
  return clv_gpu_copy_runs(m->g, m->x, m->width, m->y, m->width / 2, m->rows, m->width / 2, err);
}

/* ---- the optimiser --------------------------------------------------------------------------- */

static clv_code optimise(bench *m, clv_optim_kind kind, clv_err *err) {
  const clv_step_args a = {.kind = kind,
                           .grad_scale = 1,
                           .momentum = 0.9f,
                           .eps = 1e-8f,
                           .step_size = 1e-6f,
                           .decay = {0.9f, 0.999f},
                           .one_minus_decay = {0.1f, 0.001f},
                           .bias2_sqrt = 1};
  float *const moment[CLV_OPTIM_MAX_MOMENTS] = {m->z, m->w};
  const clv_extent all = {.n = m->n};
  return clv_gpu_step(m->g, &a, m->y, m->x, moment, &all, 1, err);
}

static clv_code sgd(bench *m, clv_err *err) { return optimise(m, CLV_OPTIM_SGD, err); }
static clv_code adam(bench *m, clv_err *err) { return optimise(m, CLV_OPTIM_ADAM, err); }
static clv_code adamw(bench *m, clv_err *err) { return optimise(m, CLV_OPTIM_ADAMW, err); }
static clv_code adamax(bench *m, clv_err *err) { return optimise(m, CLV_OPTIM_ADAMAX, err); }
static clv_code adagrad(bench *m, clv_err *err) { return optimise(m, CLV_OPTIM_ADAGRAD, err); }
static clv_code rmsprop(bench *m, clv_err *err) { return optimise(m, CLV_OPTIM_RMSPROP, err); }

static clv_code squares(bench *m, clv_err *err) {
  const clv_extent all = {.n = m->n};
  const cuda_runs *runs;
  CLV_TRY(clv_gpu_find_runs(m->g, &all, 1, &runs, err));
  return clv_gpu_square_sums(m->g, m->x, runs, err);
}

/* ---- attention, and the cells of an LSTM ----------------------------------------------------- */

/* Returns attention with one head for each sample, which has as many keys as a row has values. */
static cuda_heads heads_of(const bench *m) {
  size_t t = m->rows / m->samples;
  return (cuda_heads){.n = m->samples,
                      .t = t,
                      .s = m->width,
                      .heads = 1,
                      .kv_heads = 1,
                      .width = m->width,
                      .group = 1,
                      .scale = 0.1f,
                      .rows = t};
}

static clv_code weigh(bench *m, clv_err *err) {
  const cuda_heads h = heads_of(m);
  const cuda_weights w = {m->y, m->y};
  return clv_gpu_attention_softmax(m->g, &h, &w, NULL, (float *)m->saved, err);
}

/* Computes attention weights of scores in x, which stay, and writes the bf16 factors of the product
 * elsewhere. */
static clv_code weigh_bf16(bench *m, clv_err *err) {
  cuda_heads h = heads_of(m);
  const cuda_weights w = {m->x, m->y};
  h.bf16 = true;
  return clv_gpu_attention_softmax(m->g, &h, &w, NULL, (float *)m->saved, err);
}

static clv_code weigh_back_bf16(bench *m, clv_err *err) {
  cuda_heads h = heads_of(m);
  const cuda_weights w = {m->x, m->y}, dw = {m->z, m->w};
  h.bf16 = true;
  return clv_gpu_attention_softmax_back(m->g, &h, &w, &dw, NULL, (const float *)m->saved, err);
}

static clv_code weigh_back(bench *m, clv_err *err) {
  const cuda_heads h = heads_of(m);
  const cuda_weights w = {m->y, m->y}, dw = {m->z, m->z};
  return clv_gpu_attention_softmax_back(m->g, &h, &w, &dw, NULL, (const float *)m->saved, err);
}

/* Returns an LSTM of one step for each row. A row holds the four gates. */
static cuda_lstm cells_of(const bench *m) {
  return (cuda_lstm){
      .n = m->rows, .t = 1, .h = m->width / 4, .gates = m->y, .cell = m->z, .hidden = m->w};
}

static clv_code cell(bench *m, clv_err *err) {
  const cuda_lstm l = cells_of(m);
  return clv_gpu_lstm_cell(m->g, &l, 0, m->small, m->small, err);
}

static clv_code cell_back(bench *m, clv_err *err) {
  const cuda_lstm l = cells_of(m);
  float *outside = m->w + m->n / 4, *dc = m->w + m->n / 2;
  return clv_gpu_lstm_cell_back(m->g, &l, 0, outside, outside, dc, m->x, err);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* The order matters: some kernels read row numbers or positions that earlier ones have written. */
static const kernel kernels[] = {
    {"relu", 8, .map = clv_gpu_relu},
    {"relu backward", 12, .map = clv_gpu_relu_back, .two = true},
    {"sigmoid", 8, .map = clv_gpu_sigmoid},
    {"tanh", 8, .map = clv_gpu_tanh},
    {"gelu", 8, .map = clv_gpu_gelu},
    {"gelu backward", 12, .map = clv_gpu_gelu_back, .two = true},
    {"silu", 8, .map = clv_gpu_silu},
    {"silu backward", 12, .map = clv_gpu_silu_back, .two = true},
    {"scale", 8, .map = clv_gpu_scale},
    {"add", 12, .map = clv_gpu_add, .two = true},
    {"relu, bf16", 4, .map = clv_gpu_relu, .last = true},
    {"add, bf16", 6, .map = clv_gpu_add, .two = true, .last = true},
    {"mul", 12, .map = clv_gpu_mul, .two = true},
    {"mul, bf16", 6, .map = clv_gpu_mul, .two = true, .last = true},
    {"round to bf16", 6, .f = rounded},
    {"class loss", 4, .f = class_loss},
    {"class loss backward", 8, .f = class_loss_back},
    {"dropout", 9, .f = draw},
    {"dropout backward", 9, .f = mask},
    {"relu+scale+dropout", 8, .f = chain},
    {"relu+scale+dropout backward", 12, .f = chain_back},
    {"softmax", 8, .f = softmax},
    {"softmax backward", 12, .f = softmax_back},
    {"layernorm", 8, .f = norm},
    {"layernorm backward", 12, .f = norm_back},
    {"layernorm, weights", 8, .f = norm_weights},
    {"mse", 8, .f = mse},
    {"mse backward", 12, .f = mse_back},
    {"batchnorm, moments", 4, .f = moments_f32},
    {"batchnorm+relu", 8, .f = normalise_f32},
    {"batchnorm+relu, totals", 8, .f = totals_f32},
    {"batchnorm+relu backward", 12, .f = batchnorm_back_f32},
    {"sums of channels", 4, .f = channel_sums_f32},
    {"bias+relu", 8, .f = add_bias_f32},
    {"maxpool", 7, .f = maxpool_f32},
    {"maxpool backward", 7, .f = maxpool_back_f32},
    {"avgpool", 5, .f = avgpool_f32},
    {"avgpool backward", 5, .f = avgpool_back_f32},
    {"batchnorm, moments, bf16", 2, .f = moments_last},
    {"batchnorm+relu, bf16", 4, .f = normalise_last},
    {"batchnorm+relu, totals, bf16", 4, .f = totals_last},
    {"batchnorm+relu backward, bf16", 6, .f = batchnorm_back_last},
    {"sums of channels, bf16", 2, .f = channel_sums_last},
    {"bias+relu, bf16", 4, .f = add_bias_last},
    {"maxpool, bf16", 4.5, .f = maxpool_last},
    {"maxpool backward, bf16", 4.5, .f = maxpool_back_last},
    {"avgpool, bf16", 2.5, .f = avgpool_last},
    {"avgpool backward, bf16", 2.5, .f = avgpool_back_last},
    {"mean of rows", 4, .f = mean},
    {"mean of rows backward", 4, .f = mean_back},
    {"to bf16, channels last", 6, .f = to_last},
    {"from bf16, channels last", 6, .f = from_last},
    {"permute", 8, .f = permute},
    {"rotary", 8, .f = rotate},
    {"embedding", 8, .f = lookup},
    {"embedding backward", 8, .f = lookup_back},
    {"slice", 4, .f = slice},
    {"sgd with momentum", 20, .f = sgd},
    {"adam", 28, .f = adam},
    {"adamw", 28, .f = adamw},
    {"adamax", 28, .f = adamax},
    {"adagrad", 20, .f = adagrad},
    {"rmsprop with momentum", 28, .f = rmsprop},
    {"sum of squares", 4, .f = squares},
    {"weights of attention", 8, .f = weigh},
    {"weights of attention backward", 16, .f = weigh_back},
    {"weights of attention, bf16", 6, .f = weigh_bf16},
    {"weights of attention backward, bf16", 12, .f = weigh_back_bf16},
    {"cell of lstm", 10, .f = cell},
    {"cell of lstm backward", 11, .f = cell_back},
};

static clv_code ask(bench *m, const kernel *k, clv_err *err) {
  if (!k->map) return k->f(m, err);
  return k->map(m->g, k->last, m->x, k->two ? m->z : NULL, m->y, m->n, 1.5f, err);
}

static double measure_once(bench *m, const kernel *k) {
  const clv_vendor *v = m->g->vendor;
  int times = m->n < MANY ? 1 : TIMES;
  double ms = 0;
  clv_err err;
  must(v->event_record(m->begin, m->g->stream, &err), &err);
  for (int i = 0; i < times; i++) must(ask(m, k, &err), &err);
  must(v->event_record(m->end, m->g->stream, &err), &err);
  must(v->event_finish(m->end, &err), &err);
  must(v->event_ms(m->begin, m->end, &ms, &err), &err);
  return CLV_MAX(ms, 1e-6) / 1e3 / times;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Returns bytes per second: the median of ROUNDS measurements. A first round is not counted. */
static double rate_of(bench *m, const kernel *k) {
  double s[ROUNDS];
  measure_once(m, k);
  for (int i = 0; i < ROUNDS; i++) s[i] = measure_once(m, k);
  qsort(s, ROUNDS, sizeof *s, compare);
  return k->bytes * (double)m->n / s[ROUNDS / 2];
}

static void *filled(bench *m, int byte, size_t bytes) {
  void *p;
  clv_err err;
  must(clv_backend_allocate(m->backend, bytes, &p, &err), &err);
  must(clv_backend_fill(m->backend, p, byte, bytes, &err), &err);
  return p;
}

/* Numbers the rows in an order that defeats caches. */
static void number_rows(bench *m) {
  clv_err err;
  int64_t *host = NULL;
  must(clv_alloc(m->rows, sizeof *host, &host, &err), &err);
  for (size_t i = 0; i < m->rows; i++) host[i] = (int64_t)(i * 7919 % m->rows);
  must(clv_backend_put(m->backend, m->which, host, m->rows * sizeof *host, &err), &err);
  free(host);
}

static void number_places(bench *m) {
  clv_err err;
  int64_t *host = NULL;
  must(clv_alloc(m->rows + 3, sizeof *host, &host, &err), &err);
  for (size_t i = 0; i <= m->rows; i++) host[i] = (int64_t)i;
  host[m->rows + 2] = (int64_t)m->rows;
  must(clv_backend_put(m->backend, m->places, host, (m->rows + 3) * sizeof *host, &err), &err);
  free(host);
}

/* ---- which kernels ran ---------------------------------------------------------------------- */

enum { MOST_KERNELS = 512 };
static clv_vendor noting;
static const clv_vendor *asked;
static void (*launched[MOST_KERNELS])(void *const *args);
static size_t n_launched;

static clv_code note_launch(clv_cuda_stream *s, const clv_cuda_launch *l, clv_err *err) {
  size_t i = 0;
  while (i < n_launched && launched[i] != l->call) i++;
  if (l->call && i == n_launched && n_launched < MOST_KERNELS) launched[n_launched++] = l->call;
  return asked->launch(s, l, err);
}

static void note_launches(bench *m) {
  asked = m->g->vendor;
  noting = *asked;
  noting.launch = note_launch;
  m->g->vendor = &noting;
}

/* Prints the launched kernels. Names contain no types, so each instance of a template is a separate
 * row. */
static void print_launched(uintptr_t from) {
  printf("{\"kernels\":[");
  for (size_t i = 0; i < n_launched; i++)
    printf("%s%" PRId64, i ? "," : "", (int64_t)((uintptr_t)launched[i] - from));
  printf("]}\n");
}

enum { HUNDREDTH = 0x3c }; /* this value in each byte makes a float of about 0.01 */

static void fill_again(bench *m) {
  float *const big[] = {m->x, m->y, m->z, m->w};
  clv_err err;
  for (size_t i = 0; i < CLV_COUNT(big); i++)
    must(clv_backend_fill(m->backend, big[i], HUNDREDTH, m->n * sizeof(float), &err), &err);
  must(clv_backend_fill(m->backend, m->mask, 0, m->n, &err), &err);
}

static void open_bench(bench *m) {
  float **const big[] = {&m->x, &m->y, &m->z, &m->w};
  clv_err err;
  must(clv_cuda_open(clv_sim_vendor(&(clv_sim_options){.seed = 2}), 0, &m->backend, &err), &err);
  m->g = m->backend->private_data;
  must(m->g->vendor->event_new(0, true, &m->begin, &err), &err);
  must(m->g->vendor->event_new(0, true, &m->end, &err), &err);
  m->inner = m->side * m->side;
  m->n = m->samples * m->channels * m->inner;
  m->rows = m->n / m->width;
  for (size_t i = 0; i < CLV_COUNT(big); i++) *big[i] = filled(m, HUNDREDTH, m->n * sizeof(float));
  note_launches(m);
  m->mask = filled(m, 0, m->n);
  m->which = filled(m, 0, (m->rows + 1) * sizeof *m->which);
  m->places = filled(m, 0, (m->rows + 3) * sizeof *m->places);
  m->saved = filled(m, HUNDREDTH, 2 * (m->rows + m->channels + m->width) * sizeof *m->saved);
  m->parts = filled(m, 0, PARTS);
  m->small = filled(m, HUNDREDTH, PARTS);
  number_rows(m);
  number_places(m);
}

static void close_bench(bench *m) {
  void *const all[] = {m->x,     m->y,      m->z,     m->w,     m->mask,
                       m->which, m->places, m->saved, m->parts, m->small};
  for (size_t i = 0; i < CLV_COUNT(all); i++) clv_backend_free_memory(m->backend, all[i]);
  m->g->vendor->event_free(m->begin);
  m->g->vendor->event_free(m->end);
  clv_cuda_close(m->backend);
}

static size_t size_of(int argc, char **argv, int i, size_t usual) {
  return argc > i ? (size_t)CLV_MAX(atol(argv[i]), 1) : usual;
}

static void print_shares(bench *m, const kernel *list, size_t n, double most) {
  for (size_t i = 0; i < n; i++) {
    double rate = rate_of(m, &list[i]);
    printf("{\"what\":\"%s\",\"rate\":%.4g,\"share\":%.3f}\n", list[i].name, rate, rate / most);
  }
}

int main(int argc, char **argv) {
  static const kernel copying = {"copy", 8, .f = copy};
  bench m = {.samples = size_of(argc, argv, 1, 64),
             .channels = size_of(argc, argv, 2, 64),
             .side = size_of(argc, argv, 3, 128),
             .width = size_of(argc, argv, 4, 1024)};
  clv_err err;
  open_bench(&m);
  double most = rate_of(&m, &copying);
  printf("{\"what\":\"copy\",\"rate\":%.4g}\n", most);
  print_shares(&m, kernels, CLV_COUNT(kernels), most);
  fill_again(&m);
  print_shares(&m, more_kernels, n_more_kernels, most);
  print_launched((uintptr_t)main);
  must(clv_backend_finish(m.backend, &err), &err);
  close_bench(&m);
  return clv_sim_leaks() ? 1 : 0;
}
