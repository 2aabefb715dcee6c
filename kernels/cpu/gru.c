/* SPDX-License-Identifier: Apache-2.0
 *
 * gru. Its buffers have the steps outermost, [T, N, ...], as in lstm. The input needs one product
 * over all steps, the recurrence a small product for each step. Between these products runs a
 * vectorised loop over the gates. The gates of one row are [r z n], each of H values. Forward saves
 * not only h but also the sum W_hn h + b_hn, because the gate r multiplies this sum. The input part
 * of backward writes gradients over the saved gates and sums, and the weight part reads them there,
 * as in lstm.
 */
#include "kernels/cpu/math_int.h"

enum { GATES = 3 };

typedef struct gru_kernel {
  cpu_kernel k;
  size_t n, t, f, h; /* batch, steps, input features, hidden size */
  int n_layers;
  int n_slots; /* parameter slots of one layer: 4 with biases, else 2 */
} gru_kernel;

/* Values of one layer that forward saves. */
typedef struct gru_trace {
  float *gates; /* r, z and n after sigmoid or tanh, [T, N, 3H] */
  /* W_hn h + b_hn, [T, N, H]. The input part of backward overwrites `gates` with the gradients of
   * W_ih x + b_ih, and `sums` with the gradients of W_hn h + b_hn. */
  float *sums;
  float *hidden; /* h, [T, N, H] */
} gru_trace;

static size_t count_rows(const gru_kernel *k) { return k->t * k->n; }

static size_t trace_size(const gru_kernel *k) { return count_rows(k) * (GATES + 2) * k->h; }

/* Returns the trace of a layer. Without a backward two traces in scratch alternate, because a layer
 * reads the h of the layer before. */
static gru_trace layer_trace(const gru_kernel *k, const clv_kernel_args *a, int layer) {
  float *traces = k->k.has_backward ? a->saved : a->scratch;
  gru_trace s = {.gates = traces + (size_t)(k->k.has_backward ? layer : layer % 2) * trace_size(k)};
  s.sums = s.gates + count_rows(k) * GATES * k->h;
  s.hidden = s.sums + count_rows(k) * k->h;
  return s;
}

static size_t input_width(const gru_kernel *k, int layer) { return layer ? k->h : k->f; }

static float *layer_param(const gru_kernel *k, const clv_kernel_args *a, int layer, int slot) {
  return slot < k->n_slots ? a->param[layer * k->n_slots + slot] : NULL;
}

static cpu_gemm make_gemm(size_t m, size_t n, size_t k) {
  return (cpu_gemm){.m = (int64_t)m, .n = (int64_t)n, .k = (int64_t)k};
}

/* Transposes [N, T, width] to [T, N, width], or the reverse with the extents exchanged. */
static void transpose(const float *src, size_t n, size_t t, size_t width, float *dst) {
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < t; j++)
      memcpy(dst + (j * n + i) * width, src + (i * t + j) * width, width * sizeof *dst);
}

/* ---- one step of a layer, for rows begin to end - 1 of the batch ----------------------------- */

typedef struct step_job {
  const gru_kernel *k;
  const float *bias, *h_bias; /* b_ih and b_hh, [3H]; zeros without biases */
  const float *previous_h;    /* h of the step before, in rows `previous_h_stride` apart */
  size_t previous_h_stride;
  float *gates, *sums, *hidden; /* trace of this step; backward overwrites gates and sums with
                                 * their gradients */
  const float *h_product;       /* W_hh h of this step, [N, 3H] */
  float *out; /* output of this step, in row-major [N, T, H]; NULL: not the last layer */
  /* backward: gradient of h from outside the layer */
  const float *outside_dh;
  size_t outside_dh_stride;
  /* backward: gradient of h from the following step; on return, the part of the gradient of h that
   * passes the gate z to the step before */
  float *dh;
  float *dgates_hh; /* backward: gradient of W_hh h + b_hh of this step, [N, 3H] */
} step_job;

CPU_INLINE void compute_cell_row_body(float *gates, const float *h_product, const step_job *j,
                                      const float *previous_h, float *sums, float *hidden,
                                      size_t h) {
  const float *bias = j->bias, *h_bias = j->h_bias;
  CPU_INDEPENDENT
  for (size_t i = 0; i < h; i++) {
    float r = sigmoid_of(gates[i] + bias[i] + (h_product[i] + h_bias[i]));
    float z = sigmoid_of(gates[h + i] + bias[h + i] + (h_product[h + i] + h_bias[h + i]));
    float sum = h_product[2 * h + i] + h_bias[2 * h + i];
    float n = tanh_of(gates[2 * h + i] + bias[2 * h + i] + r * sum);
    gates[i] = r;
    gates[h + i] = z;
    gates[2 * h + i] = n;
    sums[i] = sum;
    hidden[i] = (1 - z) * n + z * previous_h[i];
  }
}

/* Replaces the gates and the sums of a row by their gradients. */
CPU_INLINE void compute_cell_row_grads_body(float *gates, float *sums, const float *previous_h,
                                            const float *outside_dh, float *dh, float *dgates_hh,
                                            size_t h) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < h; i++) {
    float r = gates[i], z = gates[h + i], n = gates[2 * h + i], d = outside_dh[i] + dh[i];
    float dn = d * (1 - z) * (1 - n * n), dr = dn * sums[i] * r * (1 - r);
    float dz = d * (previous_h[i] - n) * z * (1 - z);
    gates[i] = dgates_hh[i] = dr;
    gates[h + i] = dgates_hh[h + i] = dz;
    gates[2 * h + i] = dn;
    sums[i] = dgates_hh[2 * h + i] = dn * r;
    dh[i] = d * z;
  }
}

CPU_CLONES(compute_cell_row,
           (float *gates, const float *h_product, const step_job *j, const float *previous_h,
            float *sums, float *hidden, size_t h),
           (gates, h_product, j, previous_h, sums, hidden, h))
CPU_CLONES(compute_cell_row_grads,
           (float *gates, float *sums, const float *previous_h, const float *outside_dh, float *dh,
            float *dgates_hh, size_t h),
           (gates, sums, previous_h, outside_dh, dh, dgates_hh, h))

static void run_cell_rows(void *arg, size_t begin, size_t end) {
  const step_job *j = arg;
  size_t h = j->k->h;
  for (size_t n = begin; n < end; n++) {
    compute_cell_row(j->gates + n * GATES * h, j->h_product + n * GATES * h, j,
                     j->previous_h + n * j->previous_h_stride, j->sums + n * h, j->hidden + n * h,
                     h);
    if (j->out) memcpy(j->out + n * j->k->t * h, j->hidden + n * h, h * sizeof *j->out);
  }
}

static void run_cell_rows_back(void *arg, size_t begin, size_t end) {
  const step_job *j = arg;
  size_t h = j->k->h;
  for (size_t n = begin; n < end; n++)
    compute_cell_row_grads(
        j->gates + n * GATES * h, j->sums + n * h, j->previous_h + n * j->previous_h_stride,
        j->outside_dh + n * j->outside_dh_stride, j->dh + n * h, j->dgates_hh + n * GATES * h, h);
}

static void run_step(const gru_kernel *k, step_job *j, clv_cpu_range_fn *rows) {
  clv_cpu_parallel(clv_cpu_useful_threads(k->k.threads, k->n * k->h * 24), k->n, rows, j);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Buffers of forward in scratch, after the traces that scratch holds without a backward. x:
 * transposed input. h_product: W_hh h of a step. zeros: in place of h before the first step, and of
 * biases. */
typedef struct forward_buffers {
  float *x, *h_product, *zeros;
} forward_buffers;

static size_t count_scratch_trace_floats(const gru_kernel *k) {
  return k->k.has_backward ? 0 : (size_t)CLV_MIN(k->n_layers, 2) * trace_size(k);
}

static forward_buffers lay_out_forward(const gru_kernel *k, const clv_kernel_args *a) {
  forward_buffers p = {.x = (float *)a->scratch + count_scratch_trace_floats(k)};
  p.h_product = p.x + count_rows(k) * k->f;
  p.zeros = p.h_product + k->n * GATES * k->h;
  return p;
}

static size_t count_forward_floats(const gru_kernel *k) {
  return count_scratch_trace_floats(k) + count_rows(k) * k->f + (k->n + 1) * GATES * k->h;
}

static clv_code forward_layer(const gru_kernel *k, const clv_kernel_args *a, int layer,
                              const float *x, const forward_buffers *p, clv_err *err) {
  gru_trace s = layer_trace(k, a, layer);
  const float *bias = layer_param(k, a, layer, 2), *h_bias = layer_param(k, a, layer, 3);
  size_t step_size = k->n * k->h;
  cpu_gemm input_product = make_gemm(count_rows(k), GATES * k->h, input_width(k, layer));
  cpu_gemm recurrent_product = make_gemm(k->n, GATES * k->h, k->h);
  input_product.b_is_transposed = recurrent_product.b_is_transposed = true;
  CLV_TRY(clv_cpu_gemm(&input_product, x, layer_param(k, a, layer, 0), 0, s.gates, err));
  memset(p->h_product, 0, GATES * step_size * sizeof *p->h_product);
  for (size_t t = 0; t < k->t; t++) {
    step_job j = {.k = k,
                  .bias = bias ? bias : p->zeros,
                  .h_bias = h_bias ? h_bias : p->zeros,
                  .previous_h = t ? s.hidden + (t - 1) * step_size : p->zeros,
                  .previous_h_stride = t ? k->h : 0,
                  .gates = s.gates + t * GATES * step_size,
                  .sums = s.sums + t * step_size,
                  .hidden = s.hidden + t * step_size,
                  .h_product = p->h_product,
                  .out = layer + 1 == k->n_layers ? (float *)a->out + t * k->h : NULL};
    if (t)
      CLV_TRY(clv_cpu_gemm(&recurrent_product, j.previous_h, layer_param(k, a, layer, 1), 0,
                           p->h_product, err));
    run_step(k, &j, run_cell_rows);
  }
  return CLV_OK;
}

static clv_code gru_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const gru_kernel *k = (const gru_kernel *)base;
  forward_buffers p = lay_out_forward(k, a);
  const float *x = p.x;
  clv_cpu_set_threads(k->k.threads);
  memset(p.zeros, 0, GATES * k->h * sizeof *p.zeros);
  transpose(a->in[0], k->n, k->t, k->f, p.x);
  for (int layer = 0; layer < k->n_layers; layer++) {
    CLV_TRY(forward_layer(k, a, layer, x, &p, err));
    x = layer_trace(k, a, layer).hidden;
  }
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct backward_buffers {
  /* gradient of W_hh h + b_hh: of one step, [N, 3H], in the input part; of all steps, [T, N, 3H],
   * in the weight part */
  float *dgates_hh;
  float *dx;    /* gradient of a layer's input, [T, N, F or H] */
  float *x;     /* input of the first layer, [T, N, F]; in the weight part */
  float *dh;    /* gradient of h of one step, [N, H] */
  float *zeros; /* [H] zeros */
  float *sums;  /* [3H] column sums */
} backward_buffers;

static size_t max_width(const gru_kernel *k) { return CLV_MAX(k->f, k->h); }

static backward_buffers lay_out_backward(const gru_kernel *k, const clv_kernel_args *a) {
  backward_buffers p = {.dgates_hh = a->scratch};
  p.dx = p.dgates_hh + count_rows(k) * GATES * k->h;
  p.x = p.dx + count_rows(k) * max_width(k);
  p.dh = p.x + count_rows(k) * k->f;
  p.zeros = p.dh + k->n * k->h;
  p.sums = p.zeros + k->h;
  return p;
}

static size_t count_backward_floats(const gru_kernel *k) {
  return count_rows(k) * (GATES * k->h + max_width(k) + k->f) + (k->n + 1 + GATES) * k->h;
}

/* Replaces a layer's gates and sums by their gradients, last step first. */
static clv_code backward_steps(const gru_kernel *k, const clv_kernel_args *a, int layer,
                               const backward_buffers *p, clv_err *err) {
  gru_trace s = layer_trace(k, a, layer);
  /* the last layer's gradient from outside is dout, [N, T, H] */
  bool is_last_layer = layer + 1 == k->n_layers;
  size_t step_size = k->n * k->h;
  cpu_gemm recurrent_product = make_gemm(k->n, k->h, GATES * k->h);
  memset(p->dh, 0, step_size * sizeof *p->dh);
  for (size_t t = k->t; t-- > 0;) {
    step_job j = {
        .k = k,
        .previous_h = t ? s.hidden + (t - 1) * step_size : p->zeros,
        .previous_h_stride = t ? k->h : 0,
        .gates = s.gates + t * GATES * step_size,
        .sums = s.sums + t * step_size,
        .outside_dh = is_last_layer ? (const float *)a->dout + t * k->h : p->dx + t * step_size,
        .outside_dh_stride = is_last_layer ? k->t * k->h : k->h,
        .dh = p->dh,
        .dgates_hh = p->dgates_hh};
    run_step(k, &j, run_cell_rows_back);
    if (t)
      CLV_TRY(clv_cpu_gemm(&recurrent_product, j.dgates_hh, layer_param(k, a, layer, 1), 1, p->dh,
                           err));
  }
  return CLV_OK;
}

static void store_sums(float *dst, const float *src, size_t n, bool accumulate) {
  for (size_t i = 0; i < n; i++) dst[i] = accumulate ? dst[i] + src[i] : src[i];
}

/* Copies the gradient of W_hh h + b_hh of all steps to `dst`: that of the gates r and z is that of
 * W_ih x + b_ih, in gates; that of the gate n is in sums. */
static void copy_recurrent_grads(const gru_kernel *k, const gru_trace *s, float *dst) {
  size_t h = k->h, rows = count_rows(k);
  for (size_t i = 0; i < rows; i++) {
    memcpy(dst + i * GATES * h, s->gates + i * GATES * h, 2 * h * sizeof *dst);
    memcpy(dst + (i * GATES + 2) * h, s->sums + i * h, h * sizeof *dst);
  }
}

/* Computes the gradients of a layer's parameters: dW_ih = dgates_ih^T x; dW_hh = dgates_hh^T h of
 * the step before, which is zero for the first step. The gradients of the biases are column sums.
 * dgates_ih and dgates_hh are the gradients of W_ih x + b_ih and of W_hh h + b_hh. */
static clv_code compute_layer_param_grads(const gru_kernel *k, const clv_kernel_args *a, int layer,
                                          const float *x, const backward_buffers *p, clv_err *err) {
  gru_trace s = layer_trace(k, a, layer);
  float *dw_ih = a->dparam[layer * k->n_slots], *dw_hh = a->dparam[layer * k->n_slots + 1];
  size_t gates = GATES * k->h, rows_after_first = count_rows(k) - k->n;
  float beta = a->accumulate ? 1 : 0;
  cpu_gemm input_product = make_gemm(gates, input_width(k, layer), count_rows(k));
  cpu_gemm recurrent_product = make_gemm(gates, k->h, rows_after_first);
  input_product.a_is_transposed = recurrent_product.a_is_transposed = true;
  copy_recurrent_grads(k, &s, p->dgates_hh);
  CLV_TRY(clv_cpu_gemm(&input_product, s.gates, x, beta, dw_ih, err));
  if (rows_after_first)
    CLV_TRY(
        clv_cpu_gemm(&recurrent_product, p->dgates_hh + k->n * gates, s.hidden, beta, dw_hh, err));
  else if (!a->accumulate)
    memset(dw_hh, 0, gates * k->h * sizeof *dw_hh);
  for (int i = 2; i < k->n_slots; i++) {
    clv_cpu_sum_columns(i == 2 ? s.gates : p->dgates_hh, count_rows(k), gates, p->sums, false);
    store_sums(a->dparam[layer * k->n_slots + i], p->sums, gates, a->accumulate);
  }
  return CLV_OK;
}

/* Computes the gradients of a layer's gates and sums, and of its input if that is wanted. */
static clv_code backward_layer(const gru_kernel *k, const clv_kernel_args *a, int layer,
                               const backward_buffers *p, clv_err *err) {
  cpu_gemm input_product = make_gemm(count_rows(k), input_width(k, layer), GATES * k->h);
  CLV_TRY(backward_steps(k, a, layer, p, err));
  if (!layer && !a->din[0]) return CLV_OK;
  return clv_cpu_gemm(&input_product, layer_trace(k, a, layer).gates, layer_param(k, a, layer, 0),
                      0, p->dx, err);
}

static clv_code gru_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const gru_kernel *k = (const gru_kernel *)base;
  backward_buffers p = lay_out_backward(k, a);
  clv_cpu_set_threads(k->k.threads);
  transpose(a->in[0], k->n, k->t, k->f, p.x);
  for (int layer = k->n_layers - 1; layer >= 0; layer--) {
    const float *x = layer ? layer_trace(k, a, layer - 1).hidden : p.x;
    CLV_TRY(compute_layer_param_grads(k, a, layer, x, &p, err));
  }
  return CLV_OK;
}

static clv_code gru_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const gru_kernel *k = (const gru_kernel *)base;
  backward_buffers p = lay_out_backward(k, a);
  clv_cpu_set_threads(k->k.threads);
  memset(p.zeros, 0, k->h * sizeof *p.zeros);
  for (int layer = k->n_layers - 1; layer >= 0; layer--)
    CLV_TRY(backward_layer(k, a, layer, &p, err));
  if (a->din[0]) transpose(p.dx, k->t, k->n, k->f, a->din[0]);
  return base->fused_grads ? gru_backward_weight(base, a, err) : CLV_OK;
}

static clv_code gru_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  gru_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->n = (size_t)d->in[0].dim[0];
  k->t = (size_t)d->in[0].dim[1];
  k->f = (size_t)d->in[0].dim[2];
  k->h = (size_t)d->attrs.out;
  k->n_layers = (int)d->attrs.layers;
  k->n_slots = d->attrs.bias ? 4 : 2;
  k->k.base.forward = gru_forward;
  k->k.base.backward_input = k->k.has_backward ? gru_backward_input : NULL;
  clv_cpu_order_recurrent_grads(&k->k, gru_backward_weight);
  k->k.base.saved_bytes =
      k->k.has_backward ? trace_size(k) * (size_t)k->n_layers * sizeof(float) : 0;
  size_t n_floats =
      CLV_MAX(count_forward_floats(k), k->k.has_backward ? count_backward_floats(k) : 0);
  k->k.base.scratch_bytes = n_floats * sizeof(float);
  k->k.base.impl = "sgemm";
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(gru, gru_prepare)
