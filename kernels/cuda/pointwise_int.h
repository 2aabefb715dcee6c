/* SPDX-License-Identifier: Apache-2.0
 *
 * pointwise_int: launchers of element-wise ops.
 */
#ifndef CLEAVE_KERNELS_CUDA_POINTWISE_INT_H
#define CLEAVE_KERNELS_CUDA_POINTWISE_INT_H

#include "kernels/cuda/packed_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] of x[i], of z[i] where there is a second, and of the number `by`; z may be NULL, and y be x
 * or z. last: they are in GPU_LAST. */
typedef clv_code cuda_map(clv_gpu *g, bool last, const void *x, const void *z, void *y, size_t n,
                          float by, clv_err *err);
cuda_map clv_gpu_relu, clv_gpu_relu_back, clv_gpu_sigmoid, clv_gpu_sigmoid_back, clv_gpu_tanh,
    clv_gpu_tanh_back, clv_gpu_gelu, clv_gpu_gelu_back, clv_gpu_gelu_tanh, clv_gpu_gelu_tanh_back,
    clv_gpu_silu, clv_gpu_silu_back, clv_gpu_leaky_relu, clv_gpu_leaky_relu_back, clv_gpu_scale,
    clv_gpu_add, clv_gpu_mul;

/* n values; with channels last, `channels` of them lie side by side, `inner` such rows a sample. */
typedef struct cuda_dropout_shape {
  size_t n, channels, inner;
  bool last;
} cuda_dropout_shape;

/* y = x factor where a drawn number of 24 bits is at least `limit`, else x 0; mask: which. Numbers
 * are drawn in row-major order. occasion, where it is not NULL: what the stream's step and
 * micro-batch, then 0, are. */
clv_code clv_gpu_dropout(clv_gpu *g, const cuda_dropout_shape *at, const void *x, void *y,
                         uint8_t *mask, const clv_rng_stream *stream,
                         const clv_rng_position *occasion, uint32_t limit, float factor,
                         clv_err *err) CLV_USE_RESULT;
/* The same over packed sequences of `width` values a place: numbers are drawn by sequence and
 * place, and rows of none become 0. */
clv_code clv_gpu_dropout_packed(clv_gpu *g, const cuda_packed *p, size_t width, const float *x,
                                float *y, uint8_t *mask, const clv_rng_stream *stream,
                                const clv_rng_position *occasion, uint32_t limit, float factor,
                                clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_mask(clv_gpu *g, bool last, const void *dy, const uint8_t *mask, void *dx,
                      size_t n, float factor, clv_err *err) CLV_USE_RESULT;

/* ---- chains ---------------------------------------------------------------------------------- */

/* Ops one behind the other; by: the factor of a scale or of a dropout. limit, stream and occasion:
 * as above, of the dropout where there is one. */
typedef struct cuda_chain {
  int n, op[CLV_MAX_LINKS];
  float by[CLV_MAX_LINKS];
  bool draws;
  uint32_t limit;
  clv_rng_stream stream;
  const clv_rng_position *occasion;
} cuda_chain;

/* z: what is added, or NULL where nothing is. y may be x. */
clv_code clv_gpu_chain(clv_gpu *g, const cuda_chain *c, const float *x, const float *z, float *y,
                       size_t n, clv_err *err) CLV_USE_RESULT;
/* The values that backward needs are made of x, or the last one is y: what of them is not read is
 * NULL. So is what of dx and dz is not wanted; each may be dy. */
typedef struct cuda_chain_back {
  const float *x, *y, *dy;
  float *dx, *dz;
} cuda_chain_back;
clv_code clv_gpu_chain_back(clv_gpu *g, const cuda_chain *c, const cuda_chain_back *v, size_t n,
                            clv_err *err) CLV_USE_RESULT;

/* The numbers of a dropout of p: what it multiplies by, and the limit of what is kept. */
float clv_gpu_dropout_factor(double p);
uint32_t clv_gpu_dropout_limit(double p);

/* The kernel of a chain. */
bool clv_gpu_chains(const clv_chain_link *links, int n);
clv_code clv_gpu_chain_prepare(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                               clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
