/* SPDX-License-Identifier: Apache-2.0
 *
 * GRUs. A layer is one product of its input over all steps, then for each step a product of h and a
 * launch that computes the gates and h. Row-major x [n, t, f] is column-major [f, n * t]; one step
 * of x is [f, n], whose columns are t * f values apart.
 */
#include "kernels/cuda/gru_int.h"

/* Indices of the kernel's products. INPUT_PRODUCT, GRAD_INPUT_PRODUCT and GRAD_WEIGHT_PRODUCT are
 * pairs: the index is for the first layer, the next index for later layers. The other products
 * serve all layers. */
enum {
  INPUT_PRODUCT = 0,
  GRAD_INPUT_PRODUCT = 2,
  GRAD_WEIGHT_PRODUCT = 4,
  STEP_PRODUCT = 6,
  STEP_BACK_PRODUCT,
  GRAD_STEP_WEIGHT_PRODUCT
};

typedef struct gru_size {
  size_t n, t, f, h;
  int n_layers;
  int n_slots; /* parameter slots of one layer: 4 with biases, else 2 */
} gru_size;

static gru_size describe_gru(const cuda_kernel *k) {
  const int64_t *dim = k->r.d.in[0].dim;
  return (gru_size){.n = (size_t)dim[0],
                    .t = (size_t)dim[1],
                    .f = (size_t)dim[2],
                    .h = (size_t)k->r.d.attrs.out,
                    .n_layers = (int)k->r.d.attrs.layers,
                    .n_slots = k->r.d.attrs.bias ? 4 : 2};
}

static size_t count_hidden_values(const gru_size *s) { return s->n * s->t * s->h; }

static cuda_sum_layout bias_sum_layout(const gru_size *s) {
  return gpu_sum_layout_of(s->n * s->t, 3 * s->h, 1);
}

/* Returns the size in bytes of the gates, sums and hidden values of all layers. They are saved if a
 * backward may follow; otherwise they are in scratch. */
static size_t count_trace_bytes(const gru_size *s) {
  return (size_t)s->n_layers * 5 * count_hidden_values(s) * sizeof(float);
}

static cuda_gru find_layer_buffers(const cuda_kernel *k, const gru_size *s,
                                   const clv_kernel_args *a, int layer) {
  size_t n = count_hidden_values(s);
  float *buffers = k->r.has_backward ? a->saved : gpu_scratch(k, a);
  buffers += (size_t)layer * 5 * n;
  return (cuda_gru){.n = s->n,
                    .t = s->t,
                    .h = s->h,
                    .gates = buffers,
                    .sums = buffers + 3 * n,
                    .hidden = buffers + 4 * n};
}

static const float *layer_param(const gru_size *s, const clv_kernel_args *a, int layer, int slot) {
  return slot < s->n_slots ? a->param[layer * s->n_slots + slot] : NULL;
}

/* ---- forward --------------------------------------------------------------------------------- */

static clv_code run_layer_forward(const cuda_kernel *k, const gru_size *s, const clv_kernel_args *a,
                                  int layer, const float *x, clv_err *err) {
  cuda_gru l = find_layer_buffers(k, s, a, layer);
  float *h_product = gpu_scratch(k, a);
  if (!k->r.has_backward) h_product += count_trace_bytes(s) / sizeof *h_product;
  cuda_product_args input_factors = {.a = layer_param(s, a, layer, 0), .b = x, .d = l.gates};
  CLV_TRY(clv_gpu_multiply(k, INPUT_PRODUCT + (layer > 0), &input_factors, a, err));
  for (size_t step = 0; step < s->t; step++) {
    cuda_product_args f = {.a = layer_param(s, a, layer, 1),
                           .b = l.hidden + (step - (step > 0)) * s->h,
                           .d = h_product};
    if (step) CLV_TRY(clv_gpu_multiply(k, STEP_PRODUCT, &f, a, err));
    CLV_TRY(clv_gpu_compute_gru_cell(k->gpu, &l, step, h_product, layer_param(s, a, layer, 2),
                                     layer_param(s, a, layer, 3), err));
  }
  return CLV_OK;
}

static clv_code gru_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  gru_size s = describe_gru(k);
  const float *x = a->in[0];
  for (int layer = 0; layer < s.n_layers; layer++) {
    CLV_TRY(run_layer_forward(k, &s, a, layer, x, err));
    x = find_layer_buffers(k, &s, a, layer).hidden;
  }
  return k->gpu->vendor->copy(k->gpu->stream, a->out, x, k->r.n_out * sizeof(float), err);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Buffers of a backward, in scratch. */
typedef struct gru_buffers {
  cuda_gru_gradients d;
  float *dx, *previous_hidden;
  void *partial_sums;
} gru_buffers;

static gru_buffers find_buffers(const cuda_kernel *k, const gru_size *s, const clv_kernel_args *a) {
  float *address = gpu_scratch(k, a);
  size_t n = count_hidden_values(s);
  cuda_sum_layout sums = bias_sum_layout(s);
  void *partial_sums = address;
  address += clv_align_up(gpu_partial_sums_bytes(&sums), 256) / sizeof *address;
  return (gru_buffers){
      .partial_sums = partial_sums,
      .d = {.dgates_ih = address, .dgates_hh = address + 3 * n, .dh = address + 8 * n},
      .dx = address + 6 * n,
      .previous_hidden = address + 7 * n};
}

static size_t count_backward_bytes(const gru_size *s) {
  cuda_sum_layout sums = bias_sum_layout(s);
  return clv_align_up(gpu_partial_sums_bytes(&sums), 256) +
         (8 * count_hidden_values(s) + s->n * s->h) * sizeof(float);
}

static clv_code run_steps_backward(const cuda_kernel *k, const gru_size *s,
                                   const clv_kernel_args *a, int layer, const float *outer_dh,
                                   const gru_buffers *r, clv_err *err) {
  cuda_gru l = find_layer_buffers(k, s, a, layer);
  for (size_t step = s->t; step-- > 0;) {
    cuda_product_args f = {.a = layer_param(s, a, layer, 1),
                           .b = r->d.dgates_hh + (step + 1) * 3 * s->h,
                           .beta = 1,
                           .d = r->d.dh};
    if (step + 1 < s->t) CLV_TRY(clv_gpu_multiply(k, STEP_BACK_PRODUCT, &f, a, err));
    CLV_TRY(clv_gpu_compute_gru_cell_back(k->gpu, &l, step, outer_dh, &r->d, err));
  }
  return CLV_OK;
}

static clv_code compute_weight_grads(const cuda_kernel *k, const gru_size *s,
                                     const clv_kernel_args *a, int layer, const float *x,
                                     const gru_buffers *r, clv_err *err) {
  cuda_gru l = find_layer_buffers(k, s, a, layer);
  void *const *d = &a->dparam[layer * s->n_slots];
  float beta = a->accumulate ? 1 : 0;
  cuda_product_args ih_factors = {.a = x, .b = r->d.dgates_ih, .beta = beta, .d = d[0]};
  cuda_product_args hh_factors = {
      .a = r->previous_hidden, .b = r->d.dgates_hh, .beta = beta, .d = d[1]};
  cuda_sum_layout sums = bias_sum_layout(s);
  CLV_TRY(clv_gpu_multiply(k, GRAD_WEIGHT_PRODUCT + (layer > 0), &ih_factors, a, err));
  CLV_TRY(clv_gpu_shift_gru_steps(k->gpu, &l, r->previous_hidden, err));
  CLV_TRY(clv_gpu_multiply(k, GRAD_STEP_WEIGHT_PRODUCT, &hh_factors, a, err));
  for (int slot = 2; slot < s->n_slots; slot++)
    CLV_TRY(clv_gpu_sum_channels(k->gpu, &sums, false, slot == 2 ? r->d.dgates_ih : r->d.dgates_hh,
                                 r->partial_sums, d[slot], a->accumulate, err));
  return CLV_OK;
}

static clv_code gru_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  gru_size s = describe_gru(k);
  gru_buffers r = find_buffers(k, &s, a);
  for (int layer = s.n_layers - 1; layer >= 0; layer--) {
    const float *x = layer ? find_layer_buffers(k, &s, a, layer - 1).hidden : a->in[0];
    cuda_product_args dx = {
        .a = layer_param(&s, a, layer, 0), .b = r.d.dgates_ih, .d = layer ? r.dx : a->din[0]};
    CLV_TRY(run_steps_backward(k, &s, a, layer, layer == s.n_layers - 1 ? a->dout : r.dx, &r, err));
    if (k->r.d.need_dw) CLV_TRY(compute_weight_grads(k, &s, a, layer, x, &r, err));
    if (dx.d) CLV_TRY(clv_gpu_multiply(k, GRAD_INPUT_PRODUCT + (layer > 0), &dx, a, err));
  }
  return CLV_OK;
}

/* ---- preparing the kernel -------------------------------------------------------------------- */

/* Makes the products over all steps, for a layer with n_inputs input values. is_later_layer: false
 * for the first layer. */
static clv_code make_layer_products(cuda_kernel *k, const gru_size *s, bool is_later_layer,
                                    int64_t n_inputs, clv_err *err) {
  int64_t n_rows = (int64_t)(s->n * s->t), gates_width = (int64_t)(3 * s->h);
  const clv_cuda_matmul_desc forward_product = {.a_is_transposed = true,
                                                .m = gates_width,
                                                .n = n_rows,
                                                .k = n_inputs,
                                                .lda = n_inputs,
                                                .ldb = n_inputs,
                                                .ldd = gates_width,
                                                .batch = 1};
  const clv_cuda_matmul_desc input_grad_product = {.m = n_inputs,
                                                   .n = n_rows,
                                                   .k = gates_width,
                                                   .lda = n_inputs,
                                                   .ldb = gates_width,
                                                   .ldd = n_inputs,
                                                   .batch = 1};
  const clv_cuda_matmul_desc weight_grad_product = {.b_is_transposed = true,
                                                    .m = n_inputs,
                                                    .n = gates_width,
                                                    .k = n_rows,
                                                    .lda = n_inputs,
                                                    .ldb = gates_width,
                                                    .ldd = n_inputs,
                                                    .batch = 1};
  CLV_TRY(clv_gpu_new_product(k, INPUT_PRODUCT + is_later_layer, &forward_product, err));
  if (!k->r.has_backward) return CLV_OK;
  CLV_TRY(clv_gpu_new_product(k, GRAD_INPUT_PRODUCT + is_later_layer, &input_grad_product, err));
  return k->r.d.need_dw ? clv_gpu_new_product(k, GRAD_WEIGHT_PRODUCT + is_later_layer,
                                              &weight_grad_product, err)
                        : CLV_OK;
}

/* Makes the products of one step, and the product that computes the gradient of W_hh. */
static clv_code make_step_products(cuda_kernel *k, const gru_size *s, clv_err *err) {
  int64_t n = (int64_t)s->n, h = (int64_t)s->h, n_steps = (int64_t)s->t;
  const clv_cuda_matmul_desc step_product = {.a_is_transposed = true,
                                             .m = 3 * h,
                                             .n = n,
                                             .k = h,
                                             .lda = h,
                                             .ldb = n_steps * h,
                                             .ldd = 3 * h,
                                             .batch = 1};
  const clv_cuda_matmul_desc step_back_product = {
      .m = h, .n = n, .k = 3 * h, .lda = h, .ldb = n_steps * 3 * h, .ldd = h, .batch = 1};
  const clv_cuda_matmul_desc weight_grad_product = {.b_is_transposed = true,
                                                    .m = h,
                                                    .n = 3 * h,
                                                    .k = n * n_steps,
                                                    .lda = h,
                                                    .ldb = 3 * h,
                                                    .ldd = h,
                                                    .batch = 1};
  CLV_TRY(clv_gpu_new_product(k, STEP_PRODUCT, &step_product, err));
  if (!k->r.has_backward) return CLV_OK;
  CLV_TRY(clv_gpu_new_product(k, STEP_BACK_PRODUCT, &step_back_product, err));
  return k->r.d.need_dw
             ? clv_gpu_new_product(k, GRAD_STEP_WEIGHT_PRODUCT, &weight_grad_product, err)
             : CLV_OK;
}

static clv_code gru_open(cuda_kernel *k, clv_err *err) {
  gru_size s = describe_gru(k);
  CLV_TRY(make_layer_products(k, &s, false, (int64_t)s.f, err));
  if (s.n_layers > 1) CLV_TRY(make_layer_products(k, &s, true, (int64_t)s.h, err));
  CLV_TRY(make_step_products(k, &s, err));
  size_t h_product_bytes = s.n * 3 * s.h * sizeof(float);
  k->r.base.saved_bytes = k->r.has_backward ? count_trace_bytes(&s) : 0;
  k->r.base.scratch_bytes =
      k->workspace_bytes + (k->r.has_backward ? CLV_MAX(h_product_bytes, count_backward_bytes(&s))
                                              : count_trace_bytes(&s) + h_product_bytes);
  k->r.base.impl = "products";
  return CLV_OK;
}

CLV_CUDA_OP(gru) = {.forward = gru_forward, .backward_input = gru_backward, .open = gru_open};
