/* SPDX-License-Identifier: Apache-2.0
 *
 * gru_int: launchers of the cells of a GRU. Gates are r, z, n.
 */
#ifndef CLEAVE_KERNELS_CUDA_GRU_INT_H
#define CLEAVE_KERNELS_CUDA_GRU_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Buffers of one layer: gates [n, t, 3 h], sums (W_hn h + b_hn) and hidden [n, t, h]. */
typedef struct cuda_gru {
  size_t n, t, h;
  float *gates, *sums, *hidden;
} cuda_gru;

/* Computes step `at`. gates hold W_ih x, h_product [n, 3 h] holds W_hh h, which is not read at the
 * first step. The kernel adds the biases (both or neither may be NULL). */
clv_code clv_gpu_gru_cell(clv_gpu *g, const cuda_gru *l, size_t at, const float *h_product,
                          const float *bias_in, const float *bias_h, clv_err *err) CLV_USE_RESULT;
/* Gradients of the sums of the input and of h, [n, t, 3 h]; dh [n, h]: of h from the following
 * step, not read at the last step; on return the part that passes the gate z to the step before. */
typedef struct cuda_gru_gradients {
  float *dgates_ih, *dgates_hh, *dh;
} cuda_gru_gradients;
/* outside_dh: gradient of the output, [n, t, h]. */
clv_code clv_gpu_gru_cell_back(clv_gpu *g, const cuda_gru *l, size_t at, const float *outside_dh,
                               const cuda_gru_gradients *d, clv_err *err) CLV_USE_RESULT;
/* Writes the hidden values one step later: to[n, t] = hidden[n, t - 1], and 0 for t = 0. */
clv_code clv_gpu_gru_shift(clv_gpu *g, const cuda_gru *l, float *to, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
