/* SPDX-License-Identifier: Apache-2.0
 *
 * LSTMs. cuDNN's RNN calls compute an LSTM if they support it and the kernel is not bf16. Otherwise
 * a layer is one product of its input over all steps, then for each step a product of h and a
 * launch that computes the gates, c and h. The choice depends only on the library and the shapes.
 *
 * With products, the kernel saves gates, cells and hidden values of each layer, one after another.
 * Row-major x [n, t, f] is column-major [f, n * t]; one step of x is [f, n], whose columns are t *
 * f values apart.
 */
#include "kernels/cuda/lstm_int.h"

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

typedef struct lstm_size {
  size_t n, t, f, h;
  int n_layers;
  int n_slots; /* parameter slots of one layer: 4 with biases, else 2 */
} lstm_size;

static lstm_size describe_lstm(const cuda_kernel *k) {
  const int64_t *dim = k->r.d.in[0].dim;
  return (lstm_size){.n = (size_t)dim[0],
                     .t = (size_t)dim[1],
                     .f = (size_t)dim[2],
                     .h = (size_t)k->r.d.attrs.out,
                     .n_layers = (int)k->r.d.attrs.layers,
                     .n_slots = k->r.d.attrs.bias ? 4 : 2};
}

static size_t count_hidden_values(const lstm_size *s) { return s->n * s->t * s->h; }

/* Return sizes in bytes for an LSTM computed with products. count_trace_bytes: gates, cells and
 * hidden values of all layers, which are saved if a backward may follow, and otherwise are in
 * scratch.
 * count_buffer_bytes: scratch before the factors in bf16. */
static size_t count_trace_bytes(const lstm_size *s) {
  return (size_t)s->n_layers * 6 * count_hidden_values(s) * sizeof(float);
}
static size_t count_buffer_bytes(const cuda_kernel *k, const lstm_size *s) {
  cuda_sum_layout sums = gpu_sum_layout_of(s->n * s->t, 4 * s->h, 1);
  size_t backward_bytes = (6 * count_hidden_values(s) + 2 * s->n * s->h) * sizeof(float) +
                          gpu_partial_sums_bytes(&sums);
  return clv_align_up(k->r.has_backward ? backward_bytes : count_trace_bytes(s), 256);
}

/* Operands of products, rounded to bf16: a layer's input, its hidden values, and the gradients of
 * its gates. */
typedef struct lstm_factors {
  cuda_bf16 *x, *hidden, *dgates;
} lstm_factors;

static lstm_factors find_factors(const cuda_kernel *k, const lstm_size *s,
                                 const clv_kernel_args *a) {
  char *address = (char *)gpu_scratch(k, a) + count_buffer_bytes(k, s);
  if (!k->bf16) return (lstm_factors){0};
  lstm_factors f = {.x = (cuda_bf16 *)address};
  f.hidden = (cuda_bf16 *)(address += gpu_factor_bytes(k, s->n * s->t * CLV_MAX(s->f, s->h)));
  f.dgates = (cuda_bf16 *)(address + gpu_factor_bytes(k, count_hidden_values(s)));
  return f;
}

static size_t count_factor_bytes(const cuda_kernel *k, const lstm_size *s) {
  size_t n = s->n * s->t;
  return gpu_factor_bytes(k, n * CLV_MAX(s->f, s->h)) + gpu_factor_bytes(k, n * s->h) +
         (k->r.has_backward ? gpu_factor_bytes(k, 4 * n * s->h) : 0);
}

static cuda_lstm find_layer_buffers(const cuda_kernel *k, const lstm_size *s,
                                    const clv_kernel_args *a, int layer) {
  size_t n = count_hidden_values(s);
  float *buffers = k->r.has_backward ? a->saved : gpu_scratch(k, a);
  buffers += (size_t)layer * 6 * n;
  lstm_factors f = find_factors(k, s, a);
  return (cuda_lstm){.n = s->n,
                     .t = s->t,
                     .h = s->h,
                     .gates = buffers,
                     .cell = buffers + 4 * n,
                     .hidden = buffers + 5 * n,
                     .hidden_bf16 = f.hidden,
                     .dgates_bf16 = k->r.has_backward ? f.dgates : NULL};
}

static const float *layer_param(const lstm_size *s, const clv_kernel_args *a, int layer, int slot) {
  return slot < s->n_slots ? a->param[layer * s->n_slots + slot] : NULL;
}

static size_t input_width(const lstm_size *s, int layer) { return layer ? s->h : s->f; }

/* weight_operand returns the weight of slot 0 or 1 of a layer as an operand of products: the
 * parameter or, in bf16, the rounded copy in the cache. cached_weight_index returns the index in
 * the cache of the first value of the copy. */
static size_t cached_weight_index(const lstm_size *s, int layer, int slot) {
  size_t n_before = layer ? s->f + (size_t)(2 * layer - 1) * s->h : 0;
  return 4 * s->h * (n_before + (slot ? input_width(s, layer) : 0));
}
static const void *weight_operand(const cuda_kernel *k, const lstm_size *s,
                                  const clv_kernel_args *a, int layer, int slot) {
  if (k->bf16) return (const cuda_bf16 *)a->cache + cached_weight_index(s, layer, slot);
  return layer_param(s, a, layer, slot);
}

static clv_code round_weights(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  lstm_size s = describe_lstm(k);
  for (int i = 0; i < 2 * s.n_layers; i++)
    CLV_TRY(clv_gpu_f32_to_bf16(k->gpu, layer_param(&s, a, i / 2, i % 2),
                                (cuda_bf16 *)a->cache + cached_weight_index(&s, i / 2, i % 2),
                                4 * s.h * (i % 2 ? s.h : input_width(&s, i / 2)), err));
  return CLV_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static clv_code run_layer_forward(const cuda_kernel *k, const lstm_size *s,
                                  const clv_kernel_args *a, int layer, const float *x,
                                  clv_err *err) {
  cuda_lstm l = find_layer_buffers(k, s, a, layer);
  cuda_product_args input_factors = {.a = weight_operand(k, s, a, layer, 0), .d = l.gates};
  CLV_TRY(clv_gpu_prepare_factor(k, x, s->n * s->t * input_width(s, layer), find_factors(k, s, a).x,
                                 &input_factors.b, err));
  CLV_TRY(clv_gpu_multiply(k, INPUT_PRODUCT + (layer > 0), &input_factors, a, err));
  for (size_t step = 0; step < s->t; step++) {
    size_t previous_index = (step - (step > 0)) * s->h;
    cuda_product_args f = {
        .a = weight_operand(k, s, a, layer, 1),
        .b = k->bf16 ? (const void *)(l.hidden_bf16 + previous_index) : l.hidden + previous_index,
        .beta = 1,
        .d = l.gates + step * 4 * s->h};
    if (step) CLV_TRY(clv_gpu_multiply(k, STEP_PRODUCT, &f, a, err));
    CLV_TRY(clv_gpu_compute_lstm_cell(k->gpu, &l, step, layer_param(s, a, layer, 2),
                                      layer_param(s, a, layer, 3), err));
  }
  return CLV_OK;
}

static clv_code lstm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  lstm_size s = describe_lstm(k);
  const float *x = a->in[0];
  for (int layer = 0; layer < s.n_layers; layer++) {
    CLV_TRY(run_layer_forward(k, &s, a, layer, x, err));
    x = find_layer_buffers(k, &s, a, layer).hidden;
  }
  return k->gpu->vendor->copy(k->gpu->stream, a->out, x, k->r.n_out * sizeof(float), err);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Buffers of a backward, in scratch. */
typedef struct lstm_buffers {
  float *dgates, *dx, *previous_hidden, *dh, *dc;
  void *partial_sums;
} lstm_buffers;

static lstm_buffers find_buffers(const cuda_kernel *k, const lstm_size *s,
                                 const clv_kernel_args *a) {
  float *address = gpu_scratch(k, a);
  size_t n = count_hidden_values(s);
  return (lstm_buffers){.partial_sums = address + 6 * n + 2 * s->n * s->h,
                        .dgates = address,
                        .dx = address + 4 * n,
                        .previous_hidden = address + 5 * n,
                        .dh = address + 6 * n,
                        .dc = address + 6 * n + s->n * s->h};
}

static clv_code run_steps_backward(const cuda_kernel *k, const lstm_size *s,
                                   const clv_kernel_args *a, int layer, const float *outer_dh,
                                   const lstm_buffers *r, clv_err *err) {
  cuda_lstm l = find_layer_buffers(k, s, a, layer);
  for (size_t step = s->t; step-- > 0;) {
    size_t next_index = (step + 1) * 4 * s->h;
    cuda_product_args f = {
        .a = weight_operand(k, s, a, layer, 1),
        .b = k->bf16 ? (const void *)(l.dgates_bf16 + next_index) : r->dgates + next_index,
        .d = r->dh};
    if (step + 1 < s->t) CLV_TRY(clv_gpu_multiply(k, STEP_BACK_PRODUCT, &f, a, err));
    CLV_TRY(
        clv_gpu_compute_lstm_cell_back(k->gpu, &l, step, outer_dh, r->dh, r->dc, r->dgates, err));
  }
  return CLV_OK;
}

static clv_code compute_weight_grads(const cuda_kernel *k, const lstm_size *s,
                                     const clv_kernel_args *a, int layer, const float *x,
                                     const lstm_buffers *r, clv_err *err) {
  cuda_lstm l = find_layer_buffers(k, s, a, layer);
  void *const *d = &a->dparam[layer * s->n_slots];
  float beta = a->accumulate ? 1 : 0;
  lstm_factors bf16_factors = find_factors(k, s, a);
  const void *dgates = k->bf16 ? (const void *)bf16_factors.dgates : r->dgates;
  cuda_product_args ih_factors = {.b = dgates, .beta = beta, .d = d[0]};
  cuda_product_args hh_factors = {.b = dgates, .beta = beta, .d = d[1]};
  cuda_sum_layout sums = gpu_sum_layout_of(s->n * s->t, 4 * s->h, 1);
  CLV_TRY(clv_gpu_prepare_factor(k, x, s->n * s->t * input_width(s, layer), bf16_factors.x,
                                 &ih_factors.a, err));
  CLV_TRY(clv_gpu_multiply(k, GRAD_WEIGHT_PRODUCT + (layer > 0), &ih_factors, a, err));
  CLV_TRY(clv_gpu_shift_lstm_steps(k->gpu, &l, r->previous_hidden, err));
  CLV_TRY(clv_gpu_prepare_factor(k, r->previous_hidden, count_hidden_values(s), bf16_factors.hidden,
                                 &hh_factors.a, err));
  CLV_TRY(clv_gpu_multiply(k, GRAD_STEP_WEIGHT_PRODUCT, &hh_factors, a, err));
  for (int slot = 2; slot < s->n_slots; slot++)
    CLV_TRY(clv_gpu_sum_channels(k->gpu, &sums, false, r->dgates, r->partial_sums, d[slot],
                                 a->accumulate, err));
  return CLV_OK;
}

static clv_code compute_input_grad(const cuda_kernel *k, const lstm_size *s,
                                   const clv_kernel_args *a, int layer, const lstm_buffers *r,
                                   clv_err *err) {
  cuda_product_args f = {.a = weight_operand(k, s, a, layer, 0),
                         .b = k->bf16 ? (const void *)find_factors(k, s, a).dgates : r->dgates,
                         .d = layer ? r->dx : a->din[0]};
  return clv_gpu_multiply(k, GRAD_INPUT_PRODUCT + (layer > 0), &f, a, err);
}

static clv_code lstm_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  lstm_size s = describe_lstm(k);
  lstm_buffers r = find_buffers(k, &s, a);
  for (int layer = s.n_layers - 1; layer >= 0; layer--) {
    const float *x = layer ? find_layer_buffers(k, &s, a, layer - 1).hidden : a->in[0];
    const float *outer_dh = layer == s.n_layers - 1 ? a->dout : r.dx;
    CLV_TRY(run_steps_backward(k, &s, a, layer, outer_dh, &r, err));
    if (k->r.d.need_dw) CLV_TRY(compute_weight_grads(k, &s, a, layer, x, &r, err));
    if (layer || a->din[0]) CLV_TRY(compute_input_grad(k, &s, a, layer, &r, err));
  }
  return CLV_OK;
}

/* ---- preparing the products ------------------------------------------------------------------ */

/* Makes the products over all steps, for a layer with n_inputs input values. is_later_layer: false
 * for the first layer. */
static clv_code make_layer_products(cuda_kernel *k, const lstm_size *s, bool is_later_layer,
                                    int64_t n_inputs, clv_err *err) {
  int64_t n_rows = (int64_t)(s->n * s->t), gates_width = (int64_t)(4 * s->h);
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
static clv_code make_step_products(cuda_kernel *k, const lstm_size *s, clv_err *err) {
  int64_t n = (int64_t)s->n, h = (int64_t)s->h, n_steps = (int64_t)s->t;
  const clv_cuda_matmul_desc step_product = {.a_is_transposed = true,
                                             .m = 4 * h,
                                             .n = n,
                                             .k = h,
                                             .lda = h,
                                             .ldb = n_steps * h,
                                             .ldd = n_steps * 4 * h,
                                             .batch = 1};
  const clv_cuda_matmul_desc step_back_product = {
      .m = h, .n = n, .k = 4 * h, .lda = h, .ldb = n_steps * 4 * h, .ldd = h, .batch = 1};
  const clv_cuda_matmul_desc weight_grad_product = {.b_is_transposed = true,
                                                    .m = h,
                                                    .n = 4 * h,
                                                    .k = n * n_steps,
                                                    .lda = h,
                                                    .ldb = 4 * h,
                                                    .ldd = h,
                                                    .batch = 1};
  CLV_TRY(clv_gpu_new_product(k, STEP_PRODUCT, &step_product, err));
  if (!k->r.has_backward) return CLV_OK;
  CLV_TRY(clv_gpu_new_product(k, STEP_BACK_PRODUCT, &step_back_product, err));
  return k->r.d.need_dw
             ? clv_gpu_new_product(k, GRAD_STEP_WEIGHT_PRODUCT, &weight_grad_product, err)
             : CLV_OK;
}

static clv_code make_products(cuda_kernel *k, clv_err *err) {
  lstm_size s = describe_lstm(k);
  CLV_TRY(make_layer_products(k, &s, false, (int64_t)s.f, err));
  if (s.n_layers > 1) CLV_TRY(make_layer_products(k, &s, true, (int64_t)s.h, err));
  CLV_TRY(make_step_products(k, &s, err));
  k->r.base.saved_bytes = k->r.has_backward ? count_trace_bytes(&s) : 0;
  k->r.base.scratch_bytes =
      k->workspace_bytes + count_buffer_bytes(k, &s) + count_factor_bytes(k, &s);
  k->r.base.cache_bytes = gpu_factor_bytes(k, cached_weight_index(&s, s.n_layers, 0));
  k->r.base.impl = k->bf16 ? "products bf16" : "products";
  return CLV_OK;
}

/* ---- LSTMs computed by cuDNN ----------------------------------------------------------------- */

/* Lists the parameters, or their gradients, with the places that they have in cuDNN's buffer of
 * weights. */
static cuda_lstm_params list_params(const cuda_kernel *k, void *const *params) {
  cuda_lstm_params p = {.n = (unsigned)k->r.d.n_params};
  unsigned n_slots = k->r.d.attrs.bias ? 4 : 2;
  for (unsigned i = 0; i < p.n; i++) {
    p.param[i] = params[i];
    p.index[i] = k->lstm_space.param_index[i / n_slots][i % n_slots];
    p.n_values[i] = clv_layout_numel(&k->r.d.param[i], 1);
  }
  return p;
}

static clv_code lstm_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (!k->lstm) return round_weights(k, a, err);
  cuda_lstm_params p = list_params(k, a->param);
  return clv_gpu_pack_lstm_params(k->gpu, &p, a->cache, err);
}

/* Returns the arguments of a call of cuDNN; the comments in clv_vendor say which a call writes. */
static clv_cuda_lstm_args cudnn_args(const cuda_kernel *k, const clv_kernel_args *a) {
  return (clv_cuda_lstm_args){.weights = a->cache,
                              .x = (float *)(uintptr_t)a->in[0],
                              .y = a->out,
                              .dy = (float *)(uintptr_t)a->dout,
                              .dx = a->din[0],
                              .reserve = k->r.has_backward ? a->saved : NULL,
                              .workspace = a->scratch};
}

static clv_code cudnn_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_cuda_lstm_args args = cudnn_args(k, a);
  return k->gpu->vendor->lstm_forward(k->gpu->stream, k->lstm, &args, err);
}

static clv_code cudnn_backward_weights(const cuda_kernel *k, const clv_kernel_args *a,
                                       clv_cuda_lstm_args *args, clv_err *err) {
  const clv_vendor *v = k->gpu->vendor;
  cuda_lstm_params p = list_params(k, a->dparam);
  CLV_TRY(v->fill(k->gpu->stream, args->dweights, 0, k->lstm_space.weights, err));
  CLV_TRY(v->lstm_backward_weight(k->gpu->stream, k->lstm, args, err));
  return clv_gpu_unpack_lstm_params(k->gpu, &p, args->dweights, a->accumulate, err);
}

/* Computes the gradients with cuDNN. The gradients of the weights are first written to scratch,
 * and so is the gradient of the input if the caller does not need it. */
static clv_code cudnn_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_cuda_lstm_args args = cudnn_args(k, a);
  args.dweights = gpu_scratch(k, a);
  if (!args.dx) args.dx = args.dweights + k->lstm_space.weights / sizeof(float);
  CLV_TRY(k->gpu->vendor->lstm_backward_data(k->gpu->stream, k->lstm, &args, err));
  return k->r.d.need_dw ? cudnn_backward_weights(k, a, &args, err) : CLV_OK;
}

static void set_cudnn_functions(cuda_kernel *k) {
  clv_kernel *b = &k->r.base;
  clv_cuda_lstm_space *s = &k->lstm_space;
  s->weights = clv_align_up(s->weights, 256);
  k->workspace_bytes = clv_align_up(s->workspace, 256);
  b->impl = "cuDNN";
  b->cache_bytes = s->weights;
  b->forward = cudnn_forward;
  b->scratch_bytes = k->workspace_bytes;
  if (!k->r.has_backward) return;
  b->backward_input = cudnn_backward;
  b->saved_flags |= CLV_SAVE_OUT;
  b->saved_bytes = s->reserve;
  b->scratch_bytes += s->weights + (k->r.d.need_dx[0] ? 0 : k->r.n_in * sizeof(float));
}

static clv_code lstm_open(cuda_kernel *k, clv_err *err) {
  lstm_size s = describe_lstm(k);
  const clv_cuda_lstm_desc d = {.n = (int64_t)s.n,
                                .t = (int64_t)s.t,
                                .f = (int64_t)s.f,
                                .h = (int64_t)s.h,
                                .layers = s.n_layers,
                                .bias = k->r.d.attrs.bias,
                                .has_backward = k->r.has_backward,
                                .tf32 = k->r.d.tf32};
  k->r.base.saved_bytes = 0;
  if (k->bf16) return make_products(k, err); /* because cuDNN would compute the cells in bf16 too */
  clv_code code = k->gpu->vendor->lstm_new(k->gpu->stream, &d, &k->lstm, &k->lstm_space, err);
  if (code == CLV_OK) set_cudnn_functions(k);
  return code == CLV_UNIMPLEMENTED ? make_products(k, err) : code;
}

CLV_CUDA_OP(lstm) = {.refresh = lstm_refresh,
                     .forward = lstm_forward,
                     .backward_input = lstm_backward,
                     .open = lstm_open,
                     .bf16 = true};
