/* SPDX-License-Identifier: Apache-2.0
 *
 * permute_int: launchers of the ops permute and rotary.
 */
#ifndef CLEAVE_KERNELS_CUDA_PERMUTE_INT_H
#define CLEAVE_KERNELS_CUDA_PERMUTE_INT_H

#include "kernels/cuda/packed_int.h"
#include "kernels/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A permutation of dimensions. */
typedef struct cuda_permutation {
  clv_shape out;             /* shape of the output */
  size_t n;                  /* number of values */
  size_t step[CLV_MAX_RANK]; /* strides in the input of the output's dimensions */
} cuda_permutation;

/* Copies to[i] = from[input_index(i)], or if is_backward to[input_index(i)] = from[i]. i counts the
 * output's values; input_index(i) is the index in the input of the output's value i. */
clv_code clv_gpu_permute(clv_gpu *g, const cuda_permutation *o, const float *from, float *to,
                         bool is_backward, clv_err *err) CLV_USE_RESULT;

/* A rotation (op rotary) of n values, in heads of `width` values. The angles are multiplied by
 * `sign`: 1 in forward, -1 in backward. */
typedef struct cuda_rotary {
  size_t n, steps, heads, width;
  clv_rotary_angles angles;
  double sign;
} cuda_rotary;

clv_code clv_gpu_rotate(clv_gpu *g, const cuda_rotary *r, const float *x, float *y,
                        clv_err *err) CLV_USE_RESULT;
/* As clv_gpu_rotate, for packed sequences: steps are counted from the start of each sequence, and
 * rows after the last sequence become 0. */
clv_code clv_gpu_rotate_packed(clv_gpu *g, const cuda_packed *p, const cuda_rotary *r,
                               const float *x, float *y, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
