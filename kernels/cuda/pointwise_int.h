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

/* Numbers that a formula reads (clv_op_numbers); the factor of a scale is p. */
typedef struct cuda_numbers {
  float p, q;
} cuda_numbers;

/* Computes y[i] from x[i], from z[i] if the op has a second input (else z is NULL), and from the
 * numbers. y may be x or z. channels_last: all are in GPU_CHANNELS_LAST. */
typedef clv_code cuda_map_fn(clv_gpu *g, bool channels_last, const void *x, const void *z, void *y,
                             size_t n, cuda_numbers numbers, clv_err *err);
#define POINTWISE(name, ...) extern cuda_map_fn clv_gpu_##name, clv_gpu_##name##_back;
#include "kernels/cuda/pointwise.def"
#undef POINTWISE
cuda_map_fn clv_gpu_scale, clv_gpu_add, clv_gpu_mul;

/* Computes prelu over x [n, channels, inner], with a weight for each channel; where dy is not NULL,
 * the gradient of x instead. y may be dy. */
clv_code clv_gpu_prelu(clv_gpu *g, const cuda_sums *s, const float *x, const float *w,
                       const float *dy, float *y, clv_err *err) CLV_USE_RESULT;
/* Computes the gradients of the weights. partial_sums: gpu_partial_sums_bytes of scratch. */
clv_code clv_gpu_prelu_weights(clv_gpu *g, const cuda_sums *s, const float *x, const float *dy,
                               void *partial_sums, float *dw, bool accumulate,
                               clv_err *err) CLV_USE_RESULT;

/* Shape of a dropout of n values. With channels_last each sample has `inner` groups of `channels`
 * adjacent values. */
typedef struct cuda_dropout_shape {
  size_t n, channels, inner;
  bool channels_last;
} cuda_dropout_shape;

/* Computes y = x * factor where a random number of 24 bits is at least `limit`, else 0. mask:
 * receives which values are kept. Numbers are drawn in row-major order. rng_position: step and
 * micro-batch of the random stream, which then holds 0 for both; NULL: the stream holds them. */
clv_code clv_gpu_dropout(clv_gpu *g, const cuda_dropout_shape *at, const void *x, void *y,
                         uint8_t *mask, const clv_rng_stream *stream,
                         const clv_rng_position *rng_position, uint32_t limit, float factor,
                         clv_err *err) CLV_USE_RESULT;
/* As clv_gpu_dropout, for n records of per_record values, each kept or dropped whole. kept: [n]. */
clv_code clv_gpu_stochastic_depth(clv_gpu *g, bool channels_last, size_t n, size_t per_record,
                                  const void *x, void *y, uint8_t *kept,
                                  const clv_rng_stream *stream,
                                  const clv_rng_position *rng_position, uint32_t limit,
                                  float factor, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_apply_records(clv_gpu *g, bool channels_last, size_t n, size_t per_record,
                               const void *dy, const uint8_t *kept, void *dx, float factor,
                               clv_err *err) CLV_USE_RESULT;
/* As clv_gpu_dropout, over packed sequences of `width` values a position. Numbers are drawn by
 * sequence and position; rows that belong to no sequence become 0. */
clv_code clv_gpu_dropout_packed(clv_gpu *g, const cuda_packed *p, size_t width, const float *x,
                                float *y, uint8_t *mask, const clv_rng_stream *stream,
                                const clv_rng_position *rng_position, uint32_t limit, float factor,
                                clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_apply_mask(clv_gpu *g, bool channels_last, const void *dy, const uint8_t *mask,
                            void *dx, size_t n, float factor, clv_err *err) CLV_USE_RESULT;

/* ---- chains of element-wise ops -------------------------------------------------------------- */

/* A chain of ops. factor: for each op, the factor of a scale or of a dropout. limit, stream and
 * rng_position: as in clv_gpu_dropout; read only if `has_dropout`. */
typedef struct cuda_chain {
  int n, op[CLV_MAX_LINKS];
  float factor[CLV_MAX_LINKS];
  bool has_dropout;
  uint32_t limit;
  clv_rng_stream stream;
  const clv_rng_position *rng_position;
} cuda_chain;

/* Computes y, the output of the chain for x. z: the value that the chain's sum adds; NULL without a
 * sum. y may be x. */
clv_code clv_gpu_chain(clv_gpu *g, const cuda_chain *c, const float *x, const float *z, float *y,
                       size_t n, clv_err *err) CLV_USE_RESULT;
/* Buffers of a chain's backward, which recomputes from x the values that it needs, or reads y, the
 * chain's output. A pointer that is not read, or not wanted, is NULL. dx and dz may be dy. */
typedef struct cuda_chain_back {
  const float *x, *y, *dy;
  float *dx, *dz;
} cuda_chain_back;
clv_code clv_gpu_chain_back(clv_gpu *g, const cuda_chain *c, const cuda_chain_back *v, size_t n,
                            clv_err *err) CLV_USE_RESULT;

/* Return the factor of the kept values, and the limit of the random numbers, of a dropout with
 * probability p. */
float clv_gpu_dropout_factor(double p);
uint32_t clv_gpu_dropout_threshold(double p);

/* clv_gpu_chain_prepare makes the kernel of a chain; clv_gpu_has_chain returns true if it can. */
bool clv_gpu_has_chain(const clv_chain_link *links, int n);
clv_code clv_gpu_chain_prepare(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                               clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
