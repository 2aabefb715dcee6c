/* SPDX-License-Identifier: Apache-2.0
 *
 * lstm. Its buffers have the steps outermost, [T, N, ...], so that the rows of a step are adjacent,
 * and h of all steps but the last is one matrix, a factor of the weights' gradients. The input
 * needs one product over all steps, the recurrence a small product for each step. Between these
 * products runs a vectorised loop over the gates. The gates of one row are [i f g o], each of H
 * values. The weights' gradients use oneDNN too, unlike linear's, because OpenBLAS is no faster at
 * these sizes. The input part of backward writes the gradients of the gates over the saved gates,
 * and the weight part reads them there. So the weight part may run later, after the gradient of the
 * input has been sent to another host. In a session in bf16 the products may be those of
 * pairs_int.h, whose factors are rounded to bf16; the weights of the recurrence are then packed
 * once for all steps.
 */
#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/math_int.h"
#include "kernels/cpu/pairs_int.h"

enum { GATES = 4 };

typedef struct lstm_kernel {
  cpu_kernel k;
  size_t n, t, f, h; /* batch, steps, input features, hidden size */
  int n_layers;
  int n_slots;     /* parameter slots of one layer: 4 with biases, else 2 */
  bool uses_pairs; /* products have bf16 factors */
  /* offsets in scratch, in floats, of the packed right factor and of the scratch of a product; read
   * if uses_pairs */
  size_t right_factor_offset, product_scratch_offset;
} lstm_kernel;

/* Values of one layer that forward saves. */
typedef struct lstm_trace {
  /* i, f, g and o after sigmoid or tanh, [T, N, 4H]. The input part of backward overwrites them
   * with the gradients of the gates before sigmoid or tanh. */
  float *gates;
  float *cell, *hidden; /* c and h, [T, N, H] */
} lstm_trace;

static size_t count_rows(const lstm_kernel *k) { return k->t * k->n; }

static size_t trace_size(const lstm_kernel *k) { return count_rows(k) * (GATES + 2) * k->h; }

/* Returns the trace of a layer. Without a backward all layers share one trace in scratch, because
 * the h of a layer is not read any more once the gates of the next layer are computed. */
static lstm_trace layer_trace(const lstm_kernel *k, const clv_kernel_args *a, int layer) {
  int trace_index = k->k.has_backward ? layer : 0;
  float *traces = k->k.has_backward ? a->saved : a->scratch;
  lstm_trace s = {.gates = traces + (size_t)trace_index * trace_size(k)};
  s.cell = s.gates + count_rows(k) * GATES * k->h;
  s.hidden = s.cell + count_rows(k) * k->h;
  return s;
}

static size_t input_width(const lstm_kernel *k, int layer) { return layer ? k->h : k->f; }

static float *layer_param(const lstm_kernel *k, const clv_kernel_args *a, int layer, int slot) {
  return slot < k->n_slots ? a->param[layer * k->n_slots + slot] : NULL;
}

static cpu_gemm make_gemm(size_t m, size_t n, size_t k) {
  return (cpu_gemm){.m = (int64_t)m, .n = (int64_t)n, .k = (int64_t)k};
}

/* ---- products in f32 or bf16 ----------------------------------------------------------------- */

static uint16_t *packed_right_factor_address(const lstm_kernel *k, const clv_kernel_args *a) {
  return (uint16_t *)(void *)((float *)a->scratch + k->right_factor_offset);
}

/* Packs `right`, the right factor of the product g, if products have bf16 factors; otherwise does
 * nothing. */
static void pack_right_factor(const lstm_kernel *k, const clv_kernel_args *a, const cpu_gemm *g,
                              const float *right) {
  const cpu_pairs_factor f = {.x = right,
                              .rows = (size_t)(g->b_is_transposed ? g->n : g->k),
                              .columns = (size_t)(g->b_is_transposed ? g->k : g->n),
                              .is_right = true,
                              .is_transposed = g->b_is_transposed};
  if (k->uses_pairs) clv_cpu_pairs_pack(k->k.threads, &f, packed_right_factor_address(k, a));
}

/* Computes c = beta c + left right, where the caller has called pack_right_factor with `right`. */
static clv_code multiply_packed(const lstm_kernel *k, const clv_kernel_args *a, const cpu_gemm *g,
                                const float *left, const float *right, float beta, float *c,
                                clv_err *err) {
  if (!k->uses_pairs) return clv_cpu_gemm(g, left, right, beta, c, err);
  clv_cpu_pairs_multiply(
      k->k.threads,
      &(cpu_pairs_product){
          .left_factor = {.x = left,
                          .rows = (size_t)(g->a_is_transposed ? g->k : g->m),
                          .columns = (size_t)(g->a_is_transposed ? g->m : g->k),
                          .is_transposed = g->a_is_transposed},
          .m = (size_t)g->m,
          .n = (size_t)g->n,
          .k = (size_t)g->k,
          .right_packed = packed_right_factor_address(k, a),
          .scratch = (uint16_t *)(void *)((float *)a->scratch + k->product_scratch_offset),
          .c = c,
          .accumulate = beta != 0});
  return CLV_OK;
}

static clv_code multiply(const lstm_kernel *k, const clv_kernel_args *a, const cpu_gemm *g,
                         const float *left, const float *right, float beta, float *c,
                         clv_err *err) {
  pack_right_factor(k, a, g, right);
  return multiply_packed(k, a, g, left, right, beta, c, err);
}

/* Transposes [N, T, width] to [T, N, width], or the reverse with the extents exchanged. */
static void transpose(const float *src, size_t n, size_t t, size_t width, float *dst) {
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < t; j++)
      memcpy(dst + (j * n + i) * width, src + (i * t + j) * width, width * sizeof *dst);
}

/* ---- one step of a layer, for rows begin to end - 1 of the batch ----------------------------- */

typedef struct step_job {
  const lstm_kernel *k;
  const float *bias;          /* sum of both biases, [4H] */
  const float *previous_cell; /* c of the step before */
  size_t previous_cell_stride;
  /* trace of this step; backward overwrites gates with their gradients, [N, 4H] */
  float *gates, *cell, *hidden;
  float *out; /* output of this step, in row-major [N, T, H]; NULL: not the last layer */
  /* backward: gradient of h from outside the layer */
  const float *outside_dh;
  size_t outside_dh_stride;
  const float *dh; /* backward: gradient of h from the following step */
  float *dc; /* backward: gradient of this step's c; on return, that of c of the step before */
} step_job;

CPU_INLINE void compute_cell_row_body(float *gates, const float *bias, const float *previous_cell,
                                      float *cell, float *hidden, size_t h) {
  CPU_INDEPENDENT
  for (size_t j = 0; j < h; j++) {
    float i = sigmoid_of(gates[j] + bias[j]), f = sigmoid_of(gates[h + j] + bias[h + j]);
    float g = tanh_of(gates[2 * h + j] + bias[2 * h + j]);
    float o = sigmoid_of(gates[3 * h + j] + bias[3 * h + j]), c = f * previous_cell[j] + i * g;
    gates[j] = i;
    gates[h + j] = f;
    gates[2 * h + j] = g;
    gates[3 * h + j] = o;
    cell[j] = c;
    hidden[j] = o * tanh_of(c);
  }
}

/* Replaces the gates of a row by their gradients. */
CPU_INLINE void compute_cell_row_grads_body(float *gates, const float *previous_cell,
                                            const float *cell, const float *outside_dh,
                                            const float *dh, float *dc, size_t h) {
  CPU_INDEPENDENT
  for (size_t j = 0; j < h; j++) {
    float i = gates[j], f = gates[h + j], g = gates[2 * h + j], o = gates[3 * h + j];
    float tanh_c = tanh_of(cell[j]), out = outside_dh[j] + dh[j];
    float c = dc[j] + out * o * (1 - tanh_c * tanh_c);
    gates[j] = c * g * i * (1 - i);
    gates[h + j] = c * previous_cell[j] * f * (1 - f);
    gates[2 * h + j] = c * i * (1 - g * g);
    gates[3 * h + j] = out * tanh_c * o * (1 - o);
    dc[j] = c * f;
  }
}

CPU_CLONES(compute_cell_row,
           (float *gates, const float *bias, const float *previous_cell, float *cell, float *hidden,
            size_t h),
           (gates, bias, previous_cell, cell, hidden, h))
CPU_CLONES(compute_cell_row_grads,
           (float *gates, const float *previous_cell, const float *cell, const float *outside_dh,
            const float *dh, float *dc, size_t h),
           (gates, previous_cell, cell, outside_dh, dh, dc, h))

static void run_cell_rows(void *arg, size_t begin, size_t end) {
  const step_job *j = arg;
  size_t h = j->k->h;
  for (size_t n = begin; n < end; n++) {
    compute_cell_row(j->gates + n * GATES * h, j->bias,
                     j->previous_cell + n * j->previous_cell_stride, j->cell + n * h,
                     j->hidden + n * h, h);
    if (j->out) memcpy(j->out + n * j->k->t * h, j->hidden + n * h, h * sizeof *j->out);
  }
}

static void run_cell_rows_back(void *arg, size_t begin, size_t end) {
  const step_job *j = arg;
  size_t h = j->k->h;
  for (size_t n = begin; n < end; n++)
    compute_cell_row_grads(j->gates + n * GATES * h, j->previous_cell + n * j->previous_cell_stride,
                           j->cell + n * h, j->outside_dh + n * j->outside_dh_stride, j->dh + n * h,
                           j->dc + n * h, h);
}

static void run_step(const lstm_kernel *k, step_job *j, clv_cpu_range_fn *rows) {
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, k->n * k->h * 32), k->n, rows, j);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Buffers of forward in scratch, after the trace that scratch holds without a backward: the
 * transposed input, the sum of the biases, and a row of zeros. */
typedef struct forward_buffers {
  float *x, *bias, *zeros;
} forward_buffers;

static size_t count_scratch_trace_floats(const lstm_kernel *k) {
  return k->k.has_backward ? 0 : trace_size(k);
}

static forward_buffers lay_out_forward(const lstm_kernel *k, const clv_kernel_args *a) {
  forward_buffers p = {.x = (float *)a->scratch + count_scratch_trace_floats(k)};
  p.bias = p.x + count_rows(k) * k->f;
  p.zeros = p.bias + GATES * k->h;
  return p;
}

static size_t count_forward_floats(const lstm_kernel *k) {
  return count_scratch_trace_floats(k) + count_rows(k) * k->f + (GATES + 1) * k->h;
}

static void add_biases(const lstm_kernel *k, const clv_kernel_args *a, int layer, float *sum) {
  const float *bias_ih = layer_param(k, a, layer, 2), *bias_hh = layer_param(k, a, layer, 3);
  for (size_t i = 0; i < GATES * k->h; i++) sum[i] = bias_ih ? bias_ih[i] + bias_hh[i] : 0;
}

static clv_code forward_layer(const lstm_kernel *k, const clv_kernel_args *a, int layer,
                              const float *x, const forward_buffers *p, clv_err *err) {
  lstm_trace s = layer_trace(k, a, layer);
  size_t step_size = k->n * k->h;
  cpu_gemm input_product = make_gemm(count_rows(k), GATES * k->h, input_width(k, layer));
  cpu_gemm recurrent_product = make_gemm(k->n, GATES * k->h, k->h);
  input_product.b_is_transposed = recurrent_product.b_is_transposed = true;
  add_biases(k, a, layer, p->bias);
  CLV_TRY(multiply(k, a, &input_product, x, layer_param(k, a, layer, 0), 0, s.gates, err));
  pack_right_factor(k, a, &recurrent_product, layer_param(k, a, layer, 1));
  for (size_t t = 0; t < k->t; t++) {
    step_job j = {.k = k,
                  .bias = p->bias,
                  .previous_cell = t ? s.cell + (t - 1) * step_size : p->zeros,
                  .previous_cell_stride = t ? k->h : 0,
                  .gates = s.gates + t * GATES * step_size,
                  .cell = s.cell + t * step_size,
                  .hidden = s.hidden + t * step_size,
                  .out = layer + 1 == k->n_layers ? (float *)a->out + t * k->h : NULL};
    if (t)
      CLV_TRY(multiply_packed(k, a, &recurrent_product, s.hidden + (t - 1) * step_size,
                              layer_param(k, a, layer, 1), 1, j.gates, err));
    run_step(k, &j, run_cell_rows);
  }
  return CLV_OK;
}

static clv_code lstm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const lstm_kernel *k = (const lstm_kernel *)base;
  forward_buffers p = lay_out_forward(k, a);
  const float *x = p.x;
  clv_cpu_set_threads(k->k.threads);
  memset(p.zeros, 0, k->h * sizeof *p.zeros);
  transpose(a->in[0], k->n, k->t, k->f, p.x);
  for (int layer = 0; layer < k->n_layers; layer++) {
    CLV_TRY(forward_layer(k, a, layer, x, &p, err));
    x = layer_trace(k, a, layer).hidden;
  }
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct backward_buffers {
  float *dx;      /* gradient of a layer's input, [T, N, F or H] */
  float *x;       /* input of the first layer, [T, N, F]; in the weight part */
  float *dh, *dc; /* gradients of h and c of one step, [N, H] */
  float *zeros;   /* [H] zeros */
  float *sums;    /* column sums of the gates' gradients, [4H] */
} backward_buffers;

static size_t max_width(const lstm_kernel *k) { return CLV_MAX(k->f, k->h); }

static backward_buffers lay_out_backward(const lstm_kernel *k, const clv_kernel_args *a) {
  backward_buffers p = {.dx = a->scratch};
  p.x = p.dx + count_rows(k) * max_width(k);
  p.dh = p.x + count_rows(k) * k->f;
  p.dc = p.dh + k->n * k->h;
  p.zeros = p.dc + k->n * k->h;
  p.sums = p.zeros + k->h;
  return p;
}

static size_t count_backward_floats(const lstm_kernel *k) {
  return count_rows(k) * (max_width(k) + k->f) + (2 * k->n + 1 + GATES) * k->h;
}

/* Replaces a layer's gates by their gradients, last step first. */
static clv_code backward_steps(const lstm_kernel *k, const clv_kernel_args *a, int layer,
                               const backward_buffers *p, clv_err *err) {
  lstm_trace s = layer_trace(k, a, layer);
  /* the last layer's gradient from outside is dout, [N, T, H] */
  bool is_last_layer = layer + 1 == k->n_layers;
  size_t step_size = k->n * k->h;
  cpu_gemm recurrent_product = make_gemm(k->n, k->h, GATES * k->h);
  memset(p->dh, 0, 2 * step_size * sizeof *p->dh); /* clears dh and dc, which are adjacent */
  pack_right_factor(k, a, &recurrent_product, layer_param(k, a, layer, 1));
  for (size_t t = k->t; t-- > 0;) {
    step_job j = {
        .k = k,
        .previous_cell = t ? s.cell + (t - 1) * step_size : p->zeros,
        .previous_cell_stride = t ? k->h : 0,
        .gates = s.gates + t * GATES * step_size,
        .cell = s.cell + t * step_size,
        .outside_dh = is_last_layer ? (const float *)a->dout + t * k->h : p->dx + t * step_size,
        .outside_dh_stride = is_last_layer ? k->t * k->h : k->h,
        .dh = p->dh,
        .dc = p->dc};
    run_step(k, &j, run_cell_rows_back);
    if (t)
      CLV_TRY(multiply_packed(k, a, &recurrent_product, j.gates, layer_param(k, a, layer, 1), 0,
                              p->dh, err));
  }
  return CLV_OK;
}

static void store_sums(float *dst, const float *src, size_t n, bool accumulate) {
  for (size_t i = 0; i < n; i++) dst[i] = accumulate ? dst[i] + src[i] : src[i];
}

/* Computes the gradients of a layer's parameters from the gradients of its gates: dW_ih = dgates^T
 * x; dW_hh = dgates^T h of the step before, which is zero for the first step. The gradients of both
 * biases are the column sums of dgates. */
static clv_code compute_layer_param_grads(const lstm_kernel *k, const clv_kernel_args *a, int layer,
                                          const float *x, const backward_buffers *p, clv_err *err) {
  lstm_trace s = layer_trace(k, a, layer);
  float *dw_ih = a->dparam[layer * k->n_slots], *dw_hh = a->dparam[layer * k->n_slots + 1];
  size_t gates = GATES * k->h, rows_after_first = count_rows(k) - k->n;
  float beta = a->accumulate ? 1 : 0;
  cpu_gemm input_product = make_gemm(gates, input_width(k, layer), count_rows(k));
  cpu_gemm recurrent_product = make_gemm(gates, k->h, rows_after_first);
  input_product.a_is_transposed = recurrent_product.a_is_transposed = true;
  CLV_TRY(multiply(k, a, &input_product, s.gates, x, beta, dw_ih, err));
  if (rows_after_first)
    CLV_TRY(multiply(k, a, &recurrent_product, s.gates + k->n * gates, s.hidden, beta, dw_hh, err));
  else if (!a->accumulate)
    memset(dw_hh, 0, gates * k->h * sizeof *dw_hh);
  if (k->n_slots == 2) return CLV_OK;
  clv_cpu_sum_columns(s.gates, count_rows(k), gates, p->sums, false);
  for (int i = 2; i < 4; i++)
    store_sums(a->dparam[layer * k->n_slots + i], p->sums, gates, a->accumulate);
  return CLV_OK;
}

/* Computes the gradients of a layer's gates, and of its input if that is wanted. */
static clv_code backward_layer(const lstm_kernel *k, const clv_kernel_args *a, int layer,
                               const backward_buffers *p, clv_err *err) {
  cpu_gemm input_product = make_gemm(count_rows(k), input_width(k, layer), GATES * k->h);
  CLV_TRY(backward_steps(k, a, layer, p, err));
  if (!layer && !a->din[0]) return CLV_OK;
  return multiply(k, a, &input_product, layer_trace(k, a, layer).gates, layer_param(k, a, layer, 0),
                  0, p->dx, err);
}

static clv_code lstm_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const lstm_kernel *k = (const lstm_kernel *)base;
  backward_buffers p = lay_out_backward(k, a);
  clv_cpu_set_threads(k->k.threads);
  transpose(a->in[0], k->n, k->t, k->f, p.x);
  for (int layer = k->n_layers - 1; layer >= 0; layer--) {
    const float *x = layer ? layer_trace(k, a, layer - 1).hidden : p.x;
    CLV_TRY(compute_layer_param_grads(k, a, layer, x, &p, err));
  }
  return CLV_OK;
}

static clv_code lstm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const lstm_kernel *k = (const lstm_kernel *)base;
  backward_buffers p = lay_out_backward(k, a);
  clv_cpu_set_threads(k->k.threads);
  memset(p.zeros, 0, k->h * sizeof *p.zeros);
  for (int layer = k->n_layers - 1; layer >= 0; layer--)
    CLV_TRY(backward_layer(k, a, layer, &p, err));
  if (a->din[0]) transpose(p.dx, k->t, k->n, k->f, a->din[0]);
  return base->fused_grads ? lstm_backward_weight(base, a, err) : CLV_OK;
}

static size_t find_max(const size_t *x, size_t n) {
  size_t largest = 0;
  for (size_t i = 0; i < n; i++) largest = CLV_MAX(largest, x[i]);
  return largest;
}

/* Lays out the buffers of products of pairs after the first n_floats floats of scratch. Returns the
 * size of scratch in floats. */
static size_t lay_out_pair_products(lstm_kernel *k, size_t n_floats) {
  size_t rows = count_rows(k), width = max_width(k), gates = GATES * k->h;
  int threads = k->k.threads;
  const size_t right_factor_bytes[] = {clv_cpu_pairs_bytes(gates, width),
                                       clv_cpu_pairs_bytes(width, gates),
                                       k->k.has_backward ? clv_cpu_pairs_bytes(width, rows) : 0};
  const size_t left_factor_bytes[] = {clv_cpu_pairs_scratch_bytes(threads, rows, width),
                                      clv_cpu_pairs_scratch_bytes(threads, k->n, width),
                                      clv_cpu_pairs_scratch_bytes(threads, k->n, gates),
                                      clv_cpu_pairs_scratch_bytes(threads, rows, gates),
                                      clv_cpu_pairs_scratch_bytes(threads, gates, rows)};
  k->right_factor_offset = clv_align_up(n_floats * sizeof(float), 64) / sizeof(float);
  k->product_scratch_offset =
      k->right_factor_offset +
      find_max(right_factor_bytes, CLV_COUNT(right_factor_bytes)) / sizeof(float);
  return k->product_scratch_offset +
         find_max(left_factor_bytes, CLV_COUNT(left_factor_bytes)) / sizeof(float);
}

static clv_code lstm_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  lstm_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->n = (size_t)d->in[0].dim[0];
  k->t = (size_t)d->in[0].dim[1];
  k->f = (size_t)d->in[0].dim[2];
  k->h = (size_t)d->attrs.out;
  k->n_layers = (int)d->attrs.layers;
  k->n_slots = d->attrs.bias ? 4 : 2;
  k->k.base.forward = lstm_forward;
  k->k.base.backward_input = k->k.has_backward ? lstm_backward_input : NULL;
  clv_cpu_order_recurrent_grads(&k->k, lstm_backward_weight);
  k->k.base.saved_bytes =
      k->k.has_backward ? trace_size(k) * (size_t)k->n_layers * sizeof(float) : 0;
  size_t n_floats =
      CLV_MAX(count_forward_floats(k), k->k.has_backward ? count_backward_floats(k) : 0);
  cpu_shape_class shape_class = clv_cpu_class_of_lstm((int64_t)k->n, (int64_t)k->h);
  k->uses_pairs = d->bf16 && clv_cpu_choose(CPU_LSTM_BF16, shape_class) == CPU_PAIRS;
  if (k->uses_pairs) n_floats = lay_out_pair_products(k, n_floats);
  k->k.base.scratch_bytes = n_floats * sizeof(float);
  k->k.base.impl = k->uses_pairs ? clv_cpu_pairs_impl()->name : "sgemm";
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(lstm, lstm_prepare)
