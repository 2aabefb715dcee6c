/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-major x [rows, in] is column-major [in, rows], so the products below have their factors the
 * other way round: y' = W x', with W column-major [in, out].
 */
#include "kernels/cuda/gpu_int.h"

enum { FORWARD, GRAD_INPUT, GRAD_WEIGHT };

typedef struct linear_site {
  int64_t rows, in, out;
} linear_site;

static linear_site linear_of(const cuda_kernel *k) {
  int64_t in = k->r.d.in[0].dim[k->r.d.in[0].rank - 1];
  return (linear_site){in ? (int64_t)k->r.n_in / in : 0, in, k->r.d.attrs.out};
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_factors f = {.a = a->param[CLV_SLOT_WEIGHT],
                    .b = a->in[0],
                    .bias = k->r.d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL,
                    .d = a->out};
  return clv_gpu_multiply(k, FORWARD, &f, a, err);
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  cuda_factors f = {.a = a->param[CLV_SLOT_WEIGHT], .b = a->dout, .d = a->din[0]};
  return clv_gpu_multiply(gpu_kernel_of(base), GRAD_INPUT, &f, a, err);
}

static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  linear_site s = linear_of(k);
  cuda_sums sums = gpu_sums_of((size_t)s.rows, (size_t)s.out, 1);
  cuda_factors f = {
      .a = a->in[0], .b = a->dout, .beta = a->accumulate ? 1 : 0, .d = a->dparam[CLV_SLOT_WEIGHT]};
  CLV_TRY(clv_gpu_multiply(k, GRAD_WEIGHT, &f, a, err));
  if (!k->r.d.attrs.bias) return CLV_OK;
  return clv_gpu_channel_sums(k->gpu, &sums, a->dout, gpu_scratch(k, a), a->dparam[CLV_SLOT_BIAS],
                              a->accumulate, err);
}

static clv_cuda_after after_of(const cuda_kernel *k) {
  if (!k->r.d.attrs.bias) return CLV_CUDA_AFTER_NOTHING;
  return k->r.d.tail ? CLV_CUDA_AFTER_BIAS_RELU : CLV_CUDA_AFTER_BIAS;
}

static clv_code linear_open(cuda_kernel *k, clv_err *err) {
  linear_site s = linear_of(k);
  if (k->r.d.tail && !k->r.d.attrs.bias)
    return clv_fail(err, CLV_UNIMPLEMENTED, "a relu behind a product without bias");
  const clv_cuda_matmul_desc products[] = {
      [FORWARD] = {.a_t = true,
                   .m = s.out,
                   .n = s.rows,
                   .k = s.in,
                   .lda = s.in,
                   .ldb = s.in,
                   .ldd = s.out,
                   .batch = 1,
                   .after = after_of(k)},
      [GRAD_INPUT] =
          {.m = s.in, .n = s.rows, .k = s.out, .lda = s.in, .ldb = s.out, .ldd = s.in, .batch = 1},
      [GRAD_WEIGHT] = {.b_t = true,
                       .m = s.in,
                       .n = s.out,
                       .k = s.rows,
                       .lda = s.in,
                       .ldb = s.out,
                       .ldd = s.in,
                       .batch = 1},
  };
  const bool wanted[] = {true, k->r.d.need_dx[0], k->r.d.need_dw};
  cuda_sums sums = gpu_sums_of((size_t)s.rows, (size_t)s.out, 1);
  for (int i = FORWARD; i <= GRAD_WEIGHT; i++)
    if (wanted[i]) CLV_TRY(clv_gpu_product(k, i, &products[i], err));
  k->r.base.scratch_bytes = k->workspace + (k->r.d.need_dw ? gpu_parts_bytes(&sums) : 0);
  return CLV_OK;
}

CLV_CUDA_OP(linear) = {.forward = linear_forward,
                       .backward_input = linear_backward_input,
                       .backward_weight = linear_backward_weight,
                       .open = linear_open,
                       .tails = CLV_TAIL_RELU_FORWARD};
