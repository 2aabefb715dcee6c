/* SPDX-License-Identifier: Apache-2.0
 *
 * pointwise_int: launchers of element-wise ops.
 */
#ifndef CLEAVE_KERNELS_CUDA_POINTWISE_INT_H
#define CLEAVE_KERNELS_CUDA_POINTWISE_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] of x[i], of z[i] where there is a second, and of the number `by`; z may be NULL, and y be x
 * or z. last: they are in GPU_LAST. */
typedef clv_code cuda_map(clv_gpu *g, bool last, const void *x, const void *z, void *y, size_t n,
                          float by, clv_err *err);
cuda_map clv_gpu_relu, clv_gpu_relu_back, clv_gpu_sigmoid, clv_gpu_sigmoid_back, clv_gpu_tanh,
    clv_gpu_tanh_back, clv_gpu_gelu, clv_gpu_gelu_back, clv_gpu_silu, clv_gpu_silu_back,
    clv_gpu_scale, clv_gpu_add;

/* n values; with channels last, `channels` of them lie side by side, `inner` such rows a sample. */
typedef struct cuda_places {
  size_t n, channels, inner;
  bool last;
} cuda_places;

/* y = x factor where a drawn number of 24 bits is at least `limit`, else x 0; mask: which. Numbers
 * are drawn in row-major order. occasion, where it is not NULL: what the stream's step and
 * micro-batch, then 0, are. */
clv_code clv_gpu_draw(clv_gpu *g, const cuda_places *at, const void *x, void *y, uint8_t *mask,
                      const clv_rng_stream *stream, const clv_occasion *occasion, uint32_t limit,
                      float factor, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_mask(clv_gpu *g, bool last, const void *dy, const uint8_t *mask, void *dx,
                      size_t n, float factor, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
