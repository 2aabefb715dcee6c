/* SPDX-License-Identifier: Apache-2.0
 *
 * permute_int: launchers of ops that permute values, or rotate them in pairs.
 */
#ifndef CLEAVE_KERNELS_CUDA_PERMUTE_INT_H
#define CLEAVE_KERNELS_CUDA_PERMUTE_INT_H

#include "kernels/cuda/packed_int.h"
#include "kernels/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A permutation: output shape, number of values, and the strides in the input of the output's
 * dimensions (clv_permuted_strides). */
typedef struct cuda_order {
  clv_shape out;
  size_t n, step[CLV_MAX_RANK];
} cuda_order;

/* Copies to[i] = from[at(i)], or if is_backward to[at(i)] = from[i], where at(i) is the index in
 * the input of the output's value i. */
clv_code clv_gpu_permute(clv_gpu *g, const cuda_order *o, const float *from, float *to,
                         bool is_backward, clv_err *err) CLV_USE_RESULT;

/* A rotation of n values, in heads of `width` values. sign: 1 in forward, -1 in backward. */
typedef struct cuda_rotary {
  size_t n, steps, heads, width;
  clv_rotary_angles angles;
  double sign;
} cuda_rotary;

clv_code clv_gpu_rotate(clv_gpu *g, const cuda_rotary *r, const float *x, float *y,
                        clv_err *err) CLV_USE_RESULT;
/* As clv_gpu_rotate, for packed sequences: steps are counted in each sequence, and rows that belong
 * to no sequence become 0. */
clv_code clv_gpu_rotate_packed(clv_gpu *g, const cuda_packed *p, const cuda_rotary *r,
                               const float *x, float *y, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
