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

/* Attributes p and q that a formula reads (clv_formula_numbers), as f32; p is the factor of a
 * scale. */
typedef struct cuda_formula_numbers {
  float p, q;
} cuda_formula_numbers;

/* Computes y[i] of the op from x[i], z[i] and the numbers. z: the second input; NULL for an op of
 * one input. y may be x or z. channels_last: x, y and z are in GPU_CHANNELS_LAST. */
typedef clv_code cuda_map_fn(clv_gpu *g, bool channels_last, const void *x, const void *z, void *y,
                             size_t n, cuda_formula_numbers numbers, clv_err *err);
#define POINTWISE(name, ...) extern cuda_map_fn clv_gpu_##name, clv_gpu_##name##_back;
#include "kernels/cuda/pointwise.def"
#undef POINTWISE
cuda_map_fn clv_gpu_scale, clv_gpu_add, clv_gpu_mul;

/* Computes prelu over x [n, channels, inner], with a weight for each channel. If dy is not NULL,
 * computes the gradient of x from dy instead, and writes it to y, which may be dy. */
clv_code clv_gpu_prelu(clv_gpu *g, const cuda_sum_layout *s, const float *x, const float *w,
                       const float *dy, float *y, clv_err *err) CLV_USE_RESULT;
/* Computes the gradients of the weights of prelu. partial_sums: scratch of
 * gpu_partial_sums_bytes. */
clv_code clv_gpu_prelu_weight_grads(clv_gpu *g, const cuda_sum_layout *s, const float *x,
                                    const float *dy, void *partial_sums, float *dw, bool accumulate,
                                    clv_err *err) CLV_USE_RESULT;

/* Shape of a dropout of n values. If channels_last, each sample has `inner` positions with the
 * `channels` values of a position adjacent. */
typedef struct cuda_dropout_shape {
  size_t n, channels, inner;
  bool channels_last;
} cuda_dropout_shape;

/* Computes y = x * factor where a random number of 24 bits is at least dropout_threshold, else 0.
 * Random numbers are drawn in row-major order. mask: receives 1 for a kept value, 0 for a dropped
 * one. rng_position: step and micro-batch of the random stream, which then has 0 for both; NULL:
 * the stream has its own. */
clv_code clv_gpu_dropout(clv_gpu *g, const cuda_dropout_shape *shape, const void *x, void *y,
                         uint8_t *mask, const clv_rng_stream *stream,
                         const clv_rng_position *rng_position, uint32_t dropout_threshold,
                         float factor, clv_err *err) CLV_USE_RESULT;
/* As clv_gpu_dropout, for n records of values_per_record values, each of which is kept or dropped
 * as one. is_kept_record: [n], receives 1 for a kept record, 0 for a dropped one. */
clv_code clv_gpu_stochastic_depth(clv_gpu *g, bool channels_last, size_t n,
                                  size_t values_per_record, const void *x, void *y,
                                  uint8_t *is_kept_record, const clv_rng_stream *stream,
                                  const clv_rng_position *rng_position, uint32_t dropout_threshold,
                                  float factor, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_scale_records(clv_gpu *g, bool channels_last, size_t n, size_t values_per_record,
                               const void *dy, const uint8_t *is_kept_record, void *dx,
                               float factor, clv_err *err) CLV_USE_RESULT;
/* As clv_gpu_dropout, for packed sequences of `width` values a position. Random numbers are drawn
 * as for padded sequences; rows after the last sequence become 0. */
clv_code clv_gpu_dropout_packed(clv_gpu *g, const cuda_packed *p, size_t width, const float *x,
                                float *y, uint8_t *mask, const clv_rng_stream *stream,
                                const clv_rng_position *rng_position, uint32_t dropout_threshold,
                                float factor, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_apply_mask(clv_gpu *g, bool channels_last, const void *dy, const uint8_t *mask,
                            void *dx, size_t n, float factor, clv_err *err) CLV_USE_RESULT;

/* ---- chains of element-wise ops -------------------------------------------------------------- */

/* A chain of n ops. dropout_threshold, stream and rng_position are as in clv_gpu_dropout, and read
 * only if has_dropout. */
typedef struct cuda_chain {
  int n, op[CLV_MAX_LINKS];
  float factor[CLV_MAX_LINKS]; /* for each op, the factor of a scale or of a dropout */
  bool has_dropout;
  uint32_t dropout_threshold;
  clv_rng_stream stream;
  const clv_rng_position *rng_position;
} cuda_chain;

/* Computes y, the output of the chain for x. z: the values that the chain's add adds; NULL: the
 * chain has no add. y may be x. */
clv_code clv_gpu_chain(clv_gpu *g, const cuda_chain *c, const float *x, const float *z, float *y,
                       size_t n, clv_err *err) CLV_USE_RESULT;
/* Buffers of a chain's backward, which recomputes the values that it needs from the input x, or
 * reads the output y. NULL: x or y is not read, dx or dz is not computed. dx and dz may be dy. */
typedef struct cuda_chain_back {
  const float *x, *y, *dy;
  float *dx, *dz;
} cuda_chain_back;
clv_code clv_gpu_chain_back(clv_gpu *g, const cuda_chain *c, const cuda_chain_back *v, size_t n,
                            clv_err *err) CLV_USE_RESULT;

/* clv_gpu_dropout_factor returns the factor of kept values of a dropout with probability p.
 * clv_gpu_dropout_threshold returns the smallest random number of 24 bits that keeps a value. */
float clv_gpu_dropout_factor(double p);
uint32_t clv_gpu_dropout_threshold(double p);

/* clv_gpu_has_chain returns true if clv_gpu_prepare_chain can make a kernel for the chain. */
bool clv_gpu_has_chain(const clv_chain_link *links, int n);
clv_code clv_gpu_prepare_chain(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                               clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
