/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layers. Row-major x [rows, in] is column-major [in, rows], so the products have their
 * factors in reverse order: y' = W x', with W column-major [in, out].
 *
 * A weight that is stored in bf16 is not trained. A kernel that computes in bf16 multiplies by the
 * stored weight. Any other kernel has products of f32 factors, so it widens rows of the weight,
 * which means that it converts them to f32 in scratch. It widens as many rows at a time as fit in
 * clv_gpu.tile_bytes. A row gives one output of the product, or one term of each of its sums.
 */
#include "kernels/cuda/bf16_int.h"

/* Indices of the kernel's products. If the weight is widened in parts, product i multiplies the
 * last part, and product i + FIRST_PART_PRODUCT each part before it. */
enum { FORWARD_PRODUCT, GRAD_INPUT_PRODUCT, GRAD_WEIGHT_PRODUCT, FIRST_PART_PRODUCT };

typedef struct linear_dims {
  int64_t rows, in, out;
} linear_dims;

static linear_dims describe_linear(const cuda_kernel *k) {
  int64_t in = k->r.d.in[0].dim[k->r.d.in[0].rank - 1];
  return (linear_dims){in ? (int64_t)k->r.n_in / in : 0, in, k->r.d.attrs.out};
}

/* Buffers in scratch: factors converted to another type, and the partial sums of the bias gradient.
 */
typedef struct linear_buffers {
  cuda_bf16 *x, *dout;
  float *weight;
  void *partial_sums;
} linear_buffers;

static bool needs_widening(const cuda_kernel *k) { return k->r.d.bf16_weight && !k->bf16; }

static bool is_weight_trained(const cuda_kernel *k) {
  return k->r.d.need_dw && !k->r.d.bf16_weight;
}

static size_t count_weights(const cuda_kernel *k) {
  linear_dims s = describe_linear(k);
  return (size_t)(s.in * s.out);
}

/* How a bf16 weight [w_rows][w_columns] is widened: at most max_widened_rows rows at a time. */
typedef struct linear_parts {
  int64_t w_rows, w_columns, max_widened_rows;
} linear_parts;

static linear_parts choose_widened_parts(const cuda_kernel *k) {
  linear_dims s = describe_linear(k);
  bool is_transposed = k->r.d.attrs.transposed;
  linear_parts p = {.w_rows = is_transposed ? s.in : s.out,
                    .w_columns = is_transposed ? s.out : s.in};
  int64_t n_fitting_rows =
      (int64_t)(k->gpu->tile_bytes / sizeof(float)) / CLV_MAX(p.w_columns, (int64_t)1);
  p.max_widened_rows = CLV_MAX(CLV_MIN(n_fitting_rows, p.w_rows), (int64_t)1);
  return p;
}

static size_t count_widened_bytes(const cuda_kernel *k) {
  linear_parts p = choose_widened_parts(k);
  return needs_widening(k)
             ? clv_align_up((size_t)(p.max_widened_rows * p.w_columns) * sizeof(float), 256)
             : 0;
}

/* Returns true if each row of W gives one output of the product; false if it gives one term of each
 * sum of the product. */
static bool is_row_an_output(const cuda_kernel *k, int product) {
  return (product == FORWARD_PRODUCT) != k->r.d.attrs.transposed;
}

static linear_buffers find_buffers(const cuda_kernel *k, const clv_kernel_args *a) {
  char *address = gpu_scratch(k, a);
  linear_buffers r = {.x = (cuda_bf16 *)address};
  r.dout = (cuda_bf16 *)(address += gpu_factor_bytes(k, k->r.n_in));
  r.weight = (float *)(address += gpu_factor_bytes(k, k->r.n_out));
  r.partial_sums = address + count_widened_bytes(k);
  return r;
}

static const void *weight_operand(const cuda_kernel *k, const clv_kernel_args *a) {
  return k->r.base.cache_bytes ? a->cache : a->param[CLV_SLOT_WEIGHT];
}

/* Returns the operands of the product with the part of W that begins at first_row. *f has the
 * operands of the product with all of W. */
static cuda_product_args factors_of_part(bool has_outputs_as_rows, const cuda_product_args *f,
                                         float *widened, int64_t first_row, bool is_last_part) {
  cuda_product_args part = *f;
  part.a = widened;
  if (!has_outputs_as_rows) {
    part.b = (const float *)f->b + first_row;
    part.beta = first_row ? 1 : 0;
    part.bias = is_last_part ? f->bias : NULL;
    return part;
  }
  part.d = f->d + first_row;
  part.bias = f->bias ? f->bias + first_row : NULL;
  return part;
}

/* Computes a product with the weight, and widens it part by part if that is needed. f->a: the
 * weight as it is stored. */
static clv_code multiply_by_weight(const cuda_kernel *k, int product, const cuda_product_args *f,
                                   const clv_kernel_args *a, clv_err *err) {
  linear_parts p = choose_widened_parts(k);
  const cuda_bf16 *w = f->a;
  float *widened = find_buffers(k, a).weight;
  if (!needs_widening(k)) return clv_gpu_multiply(k, product, f, a, err);
  for (int64_t first_row = 0; first_row < p.w_rows; first_row += p.max_widened_rows) {
    int64_t n = CLV_MIN(p.w_rows - first_row, p.max_widened_rows);
    bool is_last_part = first_row + n == p.w_rows;
    cuda_product_args part =
        factors_of_part(is_row_an_output(k, product), f, widened, first_row, is_last_part);
    CLV_TRY(clv_gpu_bf16_to_f32(k->gpu, w + first_row * p.w_columns, widened,
                                (size_t)(n * p.w_columns), err));
    CLV_TRY(
        clv_gpu_multiply(k, is_last_part ? product : product + FIRST_PART_PRODUCT, &part, a, err));
  }
  return CLV_OK;
}

static clv_code linear_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  return clv_gpu_f32_to_bf16(k->gpu, a->param[CLV_SLOT_WEIGHT], a->cache, count_weights(k), err);
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_product_args f = {.a = weight_operand(k, a),
                         .bias = k->r.d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL,
                         .d = a->out};
  CLV_TRY(clv_gpu_prepare_factor(k, a->in[0], k->r.n_in, find_buffers(k, a).x, &f.b, err));
  return multiply_by_weight(k, FORWARD_PRODUCT, &f, a, err);
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_product_args f = {.a = weight_operand(k, a), .d = a->din[0]};
  CLV_TRY(clv_gpu_prepare_factor(k, a->dout, k->r.n_out, find_buffers(k, a).dout, &f.b, err));
  return multiply_by_weight(k, GRAD_INPUT_PRODUCT, &f, a, err);
}

static clv_code multiply_weight_grad(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  linear_buffers r = find_buffers(k, a);
  cuda_product_args f = {.beta = a->accumulate ? 1 : 0, .d = a->dparam[CLV_SLOT_WEIGHT]};
  bool is_transposed = k->r.d.attrs.transposed; /* W is then column-major [out, in] */
  CLV_TRY(clv_gpu_prepare_factor(k, a->in[0], k->r.n_in, r.x, is_transposed ? &f.b : &f.a, err));
  CLV_TRY(clv_gpu_prepare_factor(k, a->dout, k->r.n_out, r.dout, is_transposed ? &f.a : &f.b, err));
  return clv_gpu_multiply(k, GRAD_WEIGHT_PRODUCT, &f, a, err);
}

static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  linear_dims s = describe_linear(k);
  linear_buffers r = find_buffers(k, a);
  cuda_sum_layout sums = gpu_sum_layout_of((size_t)s.rows, (size_t)s.out, 1);
  if (is_weight_trained(k)) CLV_TRY(multiply_weight_grad(k, a, err));
  if (!k->r.d.attrs.bias) return CLV_OK;
  return clv_gpu_sum_channels(k->gpu, &sums, false, a->dout, r.partial_sums,
                              a->dparam[CLV_SLOT_BIAS], a->accumulate, err);
}

static clv_cuda_epilogue choose_epilogue(const cuda_kernel *k) {
  if (!k->r.d.attrs.bias) return CLV_CUDA_EPILOGUE_NONE;
  return k->r.d.tail ? CLV_CUDA_EPILOGUE_RELU_BIAS : CLV_CUDA_EPILOGUE_BIAS;
}

/* Makes the products for the parts of a widened weight. If the parts give terms of the sums, only
 * the product of the last part has the epilogue. */
static clv_code split_product(cuda_kernel *k, int product, const clv_cuda_matmul_desc *d,
                              clv_err *err) {
  linear_parts p = choose_widened_parts(k);
  clv_cuda_matmul_desc part = *d;
  bool has_outputs_as_rows = is_row_an_output(k, product);
  int64_t *extent = has_outputs_as_rows ? &part.m : &part.k;
  *extent = p.w_rows ? (p.w_rows - 1) % p.max_widened_rows + 1 : 0;
  CLV_TRY(clv_gpu_new_product(k, product, &part, err));
  if (*extent == p.w_rows) return CLV_OK;
  *extent = p.max_widened_rows;
  if (!has_outputs_as_rows) part.epilogue = CLV_CUDA_EPILOGUE_NONE;
  return clv_gpu_new_product(k, product + FIRST_PART_PRODUCT, &part, err);
}

static clv_code linear_open(cuda_kernel *k, clv_err *err) {
  linear_dims s = describe_linear(k);
  if (k->r.d.tail && !k->r.d.attrs.bias)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "no kernel for a relu after a linear layer without bias");
  bool is_transposed = k->r.d.attrs.transposed;
  const clv_cuda_matmul_desc products[] = {
      [FORWARD_PRODUCT] = {.a_is_transposed = !is_transposed,
                           .m = s.out,
                           .n = s.rows,
                           .k = s.in,
                           .lda = is_transposed ? s.out : s.in,
                           .ldb = s.in,
                           .ldd = s.out,
                           .batch = 1,
                           .epilogue = choose_epilogue(k)},
      [GRAD_INPUT_PRODUCT] = {.a_is_transposed = is_transposed,
                              .m = s.in,
                              .n = s.rows,
                              .k = s.out,
                              .lda = is_transposed ? s.out : s.in,
                              .ldb = s.out,
                              .ldd = s.in,
                              .batch = 1},
      [GRAD_WEIGHT_PRODUCT] = {.b_is_transposed = true,
                               .m = is_transposed ? s.out : s.in,
                               .n = is_transposed ? s.in : s.out,
                               .k = s.rows,
                               .lda = is_transposed ? s.out : s.in,
                               .ldb = is_transposed ? s.in : s.out,
                               .ldd = is_transposed ? s.out : s.in,
                               .batch = 1},
  };
  const bool is_needed[] = {true, k->r.d.need_dx[0], is_weight_trained(k)};
  cuda_sum_layout sums = gpu_sum_layout_of((size_t)s.rows, (size_t)s.out, 1);
  for (int i = FORWARD_PRODUCT; i <= GRAD_WEIGHT_PRODUCT; i++)
    if (is_needed[i])
      CLV_TRY((needs_widening(k) ? split_product : clv_gpu_new_product)(k, i, &products[i], err));
  if (!k->r.d.bf16_weight) k->r.base.cache_bytes = gpu_factor_bytes(k, count_weights(k));
  k->r.base.scratch_bytes = k->workspace_bytes + gpu_factor_bytes(k, k->r.n_in) +
                            gpu_factor_bytes(k, k->r.n_out) + count_widened_bytes(k) +
                            (k->r.d.need_dw ? gpu_partial_sums_bytes(&sums) : 0);
  if (k->r.d.bf16_weight) k->r.base.saved_flags &= ~(unsigned)CLV_SAVE_IN0;
  return CLV_OK;
}

CLV_CUDA_OP(linear) = {.forward = linear_forward,
                       .backward_input = linear_backward_input,
                       .backward_weight = linear_backward_weight,
                       .refresh = linear_refresh,
                       .bf16 = true,
                       .open = linear_open,
                       .tails = CLV_TAIL_RELU_FORWARD};
