/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16_int: launchers that convert values to bf16 and between layouts. Rounding is to nearest even.
 */
#ifndef CLEAVE_KERNELS_CUDA_BF16_INT_H
#define CLEAVE_KERNELS_CUDA_BF16_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

clv_code clv_gpu_f32_to_bf16(clv_gpu *g, const float *x, cuda_bf16 *y, size_t n,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_bf16_to_f32(clv_gpu *g, const cuda_bf16 *x, float *y, size_t n,
                             clv_err *err) CLV_USE_RESULT;

/* A copy of values [n, channels, inner], or with channels last [n, inner, channels], from one
 * layout and type to another. */
typedef struct cuda_layout_conversion {
  size_t n, channels, inner;
  int from, to;    /* layouts of source and destination: CLV_LAYOUT_*, GPU_CHANNELS_LAST or 1 */
  bool accumulate; /* add the values to the destination instead of overwriting it */
} cuda_layout_conversion;
clv_code clv_gpu_convert_layout(clv_gpu *g, const cuda_layout_conversion *m, const void *src,
                                void *dst, clv_err *err) CLV_USE_RESULT;

/* Converts x to a factor of the products of kernel k. If k computes in bf16, rounds x into `buffer`
 * and sets *ret to it; otherwise sets *ret to x. */
clv_code clv_gpu_prepare_factor(const cuda_kernel *k, const float *x, size_t n, cuda_bf16 *buffer,
                                const void **ret, clv_err *err) CLV_USE_RESULT;

/* Returns the size in bytes of `buffer` in clv_gpu_prepare_factor, a multiple of 256; 0 if kernel k
 * rounds no factor. */
static inline size_t gpu_factor_bytes(const cuda_kernel *k, size_t n) {
  return gpu_product_math(k) == CLV_CUDA_BF16 ? clv_align_up(n * sizeof(cuda_bf16), 256) : 0;
}

#ifdef __cplusplus
}
#endif
#endif
