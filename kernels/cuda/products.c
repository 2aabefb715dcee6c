/* SPDX-License-Identifier: Apache-2.0
 *
 * The matrix products of a kernel. The kernel's `open` makes them with clv_gpu_new_product, and
 * each forward or backward computes them with clv_gpu_multiply.
 */
#include "kernels/cuda/bf16_int.h"

clv_code clv_gpu_new_product(cuda_kernel *k, int i, const clv_cuda_matmul_desc *d, clv_err *err) {
  clv_cuda_matmul_desc desc = *d;
  size_t workspace = 0;
  if (d->m < 1 || d->n < 1 || d->k < 1 || d->batch < 1) return CLV_OK;
  desc.math = gpu_product_math(k);
  CLV_TRY(k->gpu->vendor->matmul_new(k->gpu->device, &desc, &k->products[i], &workspace, err));
  k->workspace_bytes = CLV_MAX(k->workspace_bytes, clv_align_up(workspace, 256));
  return CLV_OK;
}

clv_code clv_gpu_multiply(const cuda_kernel *k, int i, const cuda_product_args *f,
                          const clv_kernel_args *a, clv_err *err) {
  if (!k->products[i]) return CLV_OK;
  return k->gpu->vendor->matmul(k->gpu->stream, k->products[i], f->a, f->b, f->bias, f->beta, f->d,
                                a->scratch, err);
}

clv_code clv_gpu_bf16_to_f32(clv_gpu *g, const cuda_bf16 *x, float *y, size_t n, clv_err *err) {
  const cuda_layout_conversion m = {
      .n = 1, .channels = 1, .inner = n, .from = 1 | CLV_LAYOUT_BF16, .to = 1};
  return clv_gpu_convert_layout(g, &m, x, y, err);
}

clv_code clv_gpu_prepare_factor(const cuda_kernel *k, const float *x, size_t n, cuda_bf16 *buffer,
                                const void **ret, clv_err *err) {
  bool is_rounded = gpu_product_math(k) == CLV_CUDA_BF16;
  *ret = is_rounded ? (const void *)buffer : x;
  return is_rounded ? clv_gpu_f32_to_bf16(k->gpu, x, buffer, n, err) : CLV_OK;
}
