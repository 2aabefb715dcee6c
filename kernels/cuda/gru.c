/* SPDX-License-Identifier: Apache-2.0
 *
 * GRUs, with products as lstm.c: one over all steps for a layer's input, then a product and a cell
 * kernel for each step. Row-major x [n, t, f] is column-major [f, n t], and its step `at` is [f, n]
 * with t f values between columns.
 */
#include "kernels/cuda/gru_int.h"

/* Indices of the kernel's products. INPUT, GRAD_INPUT and GRAD_WEIGHT are pairs, for the first
 * layer and for later layers; the others serve all layers. */
enum { INPUT = 0, GRAD_INPUT = 2, GRAD_WEIGHT = 4, STEP = 6, STEP_BACK, GRAD_STEP_WEIGHT };

typedef struct gru_size {
  size_t n, t, f, h;
  int layers, slots; /* slots: parameter slots of one layer, 4 with biases, else 2 */
} gru_size;

static gru_size gru_extents(const cuda_kernel *k) {
  const int64_t *dim = k->r.d.in[0].dim;
  return (gru_size){.n = (size_t)dim[0],
                    .t = (size_t)dim[1],
                    .f = (size_t)dim[2],
                    .h = (size_t)k->r.d.attrs.out,
                    .layers = (int)k->r.d.attrs.layers,
                    .slots = k->r.d.attrs.bias ? 4 : 2};
}

static size_t count_values(const gru_size *s) { return s->n * s->t * s->h; }

static cuda_sums bias_gradient_sums(const gru_size *s) {
  return gpu_sums_of(s->n * s->t, 3 * s->h, 1);
}

/* Bytes of gates, sums and hidden values of all layers, saved if a backward may follow, else in
 * scratch. */
static size_t trace_bytes(const gru_size *s) {
  return (size_t)s->layers * 5 * count_values(s) * sizeof(float);
}

static cuda_gru layer_buffers(const cuda_kernel *k, const gru_size *s, const clv_kernel_args *a,
                              int layer) {
  size_t n = count_values(s);
  float *rows = k->r.has_backward ? a->saved : gpu_scratch(k, a);
  rows += (size_t)layer * 5 * n;
  return (cuda_gru){
      .n = s->n, .t = s->t, .h = s->h, .gates = rows, .sums = rows + 3 * n, .hidden = rows + 4 * n};
}

static const float *layer_param(const gru_size *s, const clv_kernel_args *a, int layer, int slot) {
  return slot < s->slots ? a->param[layer * s->slots + slot] : NULL;
}

/* ---- forward --------------------------------------------------------------------------------- */

static clv_code forward_layer(const cuda_kernel *k, const gru_size *s, const clv_kernel_args *a,
                              int layer, const float *x, clv_err *err) {
  cuda_gru l = layer_buffers(k, s, a, layer);
  float *h_product = gpu_scratch(k, a);
  if (!k->r.has_backward) h_product += trace_bytes(s) / sizeof *h_product;
  cuda_factors input_factors = {.a = layer_param(s, a, layer, 0), .b = x, .d = l.gates};
  CLV_TRY(clv_gpu_multiply(k, INPUT + (layer > 0), &input_factors, a, err));
  for (size_t at = 0; at < s->t; at++) {
    cuda_factors f = {
        .a = layer_param(s, a, layer, 1), .b = l.hidden + (at - (at > 0)) * s->h, .d = h_product};
    if (at) CLV_TRY(clv_gpu_multiply(k, STEP, &f, a, err));
    CLV_TRY(clv_gpu_gru_cell(k->gpu, &l, at, h_product, layer_param(s, a, layer, 2),
                             layer_param(s, a, layer, 3), err));
  }
  return CLV_OK;
}

static clv_code gru_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  gru_size s = gru_extents(k);
  const float *x = a->in[0];
  for (int layer = 0; layer < s.layers; layer++) {
    CLV_TRY(forward_layer(k, &s, a, layer, x, err));
    x = layer_buffers(k, &s, a, layer).hidden;
  }
  return k->gpu->vendor->copy(k->gpu->stream, a->out, x, k->r.n_out * sizeof(float), err);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Buffers of a backward in scratch. */
typedef struct gru_buffers {
  cuda_gru_gradients d;
  float *dx, *previous_hidden;
  void *partial_sums;
} gru_buffers;

static gru_buffers find_buffers(const cuda_kernel *k, const gru_size *s, const clv_kernel_args *a) {
  float *at = gpu_scratch(k, a);
  size_t n = count_values(s);
  cuda_sums sums = bias_gradient_sums(s);
  void *partial_sums = at;
  at += clv_align_up(gpu_partial_sums_bytes(&sums), 256) / sizeof *at;
  return (gru_buffers){.partial_sums = partial_sums,
                       .d = {.dgates_ih = at, .dgates_hh = at + 3 * n, .dh = at + 8 * n},
                       .dx = at + 6 * n,
                       .previous_hidden = at + 7 * n};
}

static size_t backward_bytes(const gru_size *s) {
  cuda_sums sums = bias_gradient_sums(s);
  return clv_align_up(gpu_partial_sums_bytes(&sums), 256) +
         (8 * count_values(s) + s->n * s->h) * sizeof(float);
}

static clv_code backward_steps(const cuda_kernel *k, const gru_size *s, const clv_kernel_args *a,
                               int layer, const float *outside_dh, const gru_buffers *r,
                               clv_err *err) {
  cuda_gru l = layer_buffers(k, s, a, layer);
  for (size_t at = s->t; at-- > 0;) {
    cuda_factors f = {.a = layer_param(s, a, layer, 1),
                      .b = r->d.dgates_hh + (at + 1) * 3 * s->h,
                      .beta = 1,
                      .d = r->d.dh};
    if (at + 1 < s->t) CLV_TRY(clv_gpu_multiply(k, STEP_BACK, &f, a, err));
    CLV_TRY(clv_gpu_gru_cell_back(k->gpu, &l, at, outside_dh, &r->d, err));
  }
  return CLV_OK;
}

static clv_code backward_weights(const cuda_kernel *k, const gru_size *s, const clv_kernel_args *a,
                                 int layer, const float *x, const gru_buffers *r, clv_err *err) {
  cuda_gru l = layer_buffers(k, s, a, layer);
  void *const *d = &a->dparam[layer * s->slots];
  float beta = a->accumulate ? 1 : 0;
  cuda_factors ih_factors = {.a = x, .b = r->d.dgates_ih, .beta = beta, .d = d[0]};
  cuda_factors hh_factors = {.a = r->previous_hidden, .b = r->d.dgates_hh, .beta = beta, .d = d[1]};
  cuda_sums sums = bias_gradient_sums(s);
  CLV_TRY(clv_gpu_multiply(k, GRAD_WEIGHT + (layer > 0), &ih_factors, a, err));
  CLV_TRY(clv_gpu_gru_shift(k->gpu, &l, r->previous_hidden, err));
  CLV_TRY(clv_gpu_multiply(k, GRAD_STEP_WEIGHT, &hh_factors, a, err));
  for (int slot = 2; slot < s->slots; slot++)
    CLV_TRY(clv_gpu_channel_sums(k->gpu, &sums, false, slot == 2 ? r->d.dgates_ih : r->d.dgates_hh,
                                 r->partial_sums, d[slot], a->accumulate, err));
  return CLV_OK;
}

static clv_code gru_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  gru_size s = gru_extents(k);
  gru_buffers r = find_buffers(k, &s, a);
  for (int layer = s.layers - 1; layer >= 0; layer--) {
    const float *x = layer ? layer_buffers(k, &s, a, layer - 1).hidden : a->in[0];
    cuda_factors dx = {
        .a = layer_param(&s, a, layer, 0), .b = r.d.dgates_ih, .d = layer ? r.dx : a->din[0]};
    CLV_TRY(backward_steps(k, &s, a, layer, layer == s.layers - 1 ? a->dout : r.dx, &r, err));
    if (k->r.d.need_dw) CLV_TRY(backward_weights(k, &s, a, layer, x, &r, err));
    if (dx.d) CLV_TRY(clv_gpu_multiply(k, GRAD_INPUT + (layer > 0), &dx, a, err));
  }
  return CLV_OK;
}

/* ---- preparing the kernel -------------------------------------------------------------------- */

/* Makes the products over all steps of a layer with `in` input values. is_later_layer: not the
 * first layer. */
static clv_code open_layer(cuda_kernel *k, const gru_size *s, bool is_later_layer, int64_t in,
                           clv_err *err) {
  int64_t rows = (int64_t)(s->n * s->t), gates_width = (int64_t)(3 * s->h);
  const clv_cuda_matmul_desc forward = {.a_t = true,
                                        .m = gates_width,
                                        .n = rows,
                                        .k = in,
                                        .lda = in,
                                        .ldb = in,
                                        .ldd = gates_width,
                                        .batch = 1};
  const clv_cuda_matmul_desc input = {
      .m = in, .n = rows, .k = gates_width, .lda = in, .ldb = gates_width, .ldd = in, .batch = 1};
  const clv_cuda_matmul_desc weight = {.b_t = true,
                                       .m = in,
                                       .n = gates_width,
                                       .k = rows,
                                       .lda = in,
                                       .ldb = gates_width,
                                       .ldd = in,
                                       .batch = 1};
  CLV_TRY(clv_gpu_new_product(k, INPUT + is_later_layer, &forward, err));
  if (!k->r.has_backward) return CLV_OK;
  CLV_TRY(clv_gpu_new_product(k, GRAD_INPUT + is_later_layer, &input, err));
  return k->r.d.need_dw ? clv_gpu_new_product(k, GRAD_WEIGHT + is_later_layer, &weight, err)
                        : CLV_OK;
}

/* Makes the products of one step, and that of the gradient of W_hh. */
static clv_code open_steps(cuda_kernel *k, const gru_size *s, clv_err *err) {
  int64_t n = (int64_t)s->n, h = (int64_t)s->h, stride = (int64_t)s->t;
  const clv_cuda_matmul_desc step = {.a_t = true,
                                     .m = 3 * h,
                                     .n = n,
                                     .k = h,
                                     .lda = h,
                                     .ldb = stride * h,
                                     .ldd = 3 * h,
                                     .batch = 1};
  const clv_cuda_matmul_desc back = {
      .m = h, .n = n, .k = 3 * h, .lda = h, .ldb = stride * 3 * h, .ldd = h, .batch = 1};
  const clv_cuda_matmul_desc weight = {.b_t = true,
                                       .m = h,
                                       .n = 3 * h,
                                       .k = n * stride,
                                       .lda = h,
                                       .ldb = 3 * h,
                                       .ldd = h,
                                       .batch = 1};
  CLV_TRY(clv_gpu_new_product(k, STEP, &step, err));
  if (!k->r.has_backward) return CLV_OK;
  CLV_TRY(clv_gpu_new_product(k, STEP_BACK, &back, err));
  return k->r.d.need_dw ? clv_gpu_new_product(k, GRAD_STEP_WEIGHT, &weight, err) : CLV_OK;
}

static clv_code gru_open(cuda_kernel *k, clv_err *err) {
  gru_size s = gru_extents(k);
  CLV_TRY(open_layer(k, &s, false, (int64_t)s.f, err));
  if (s.layers > 1) CLV_TRY(open_layer(k, &s, true, (int64_t)s.h, err));
  CLV_TRY(open_steps(k, &s, err));
  size_t h_product_bytes = s.n * 3 * s.h * sizeof(float);
  k->r.base.saved_bytes = k->r.has_backward ? trace_bytes(&s) : 0;
  k->r.base.scratch_bytes =
      k->workspace_bytes + (k->r.has_backward ? CLV_MAX(h_product_bytes, backward_bytes(&s))
                                              : trace_bytes(&s) + h_product_bytes);
  k->r.base.impl = "products";
  return CLV_OK;
}

CLV_CUDA_OP(gru) = {.forward = gru_forward, .backward_input = gru_backward, .open = gru_open};
