/* SPDX-License-Identifier: Apache-2.0
 *
 * positions_int: launchers of the op positions, which adds a learned w to each sample.
 */
#ifndef CLEAVE_KERNELS_CUDA_POSITIONS_INT_H
#define CLEAVE_KERNELS_CUDA_POSITIONS_INT_H

#include "kernels/cuda/packed_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes y[i] = x[i] + w[i % sample_size] over n values; y may be x. */
clv_code clv_gpu_add_to_samples(clv_gpu *g, const float *x, const float *w, float *y, size_t n,
                                size_t sample_size, clv_err *err) CLV_USE_RESULT;

/* clv_gpu_add_to_packed adds w [steps, width] to each packed sequence, from its first position on,
 * and copies the rows after the last sequence. clv_gpu_sum_packed_grads adds to dw the sums of dy
 * over the sequences, in their order. */
clv_code clv_gpu_add_to_packed(clv_gpu *g, const cuda_packed *p, const float *x, const float *w,
                               float *y, size_t width, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_sum_packed_grads(clv_gpu *g, const cuda_packed *p, const float *dy, float *dw,
                                  size_t width, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
