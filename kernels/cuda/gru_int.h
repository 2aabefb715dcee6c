/* SPDX-License-Identifier: Apache-2.0
 *
 * gru_int: launchers that compute one step of a GRU layer. Its gates are r, z, n.
 */
#ifndef CLEAVE_KERNELS_CUDA_GRU_INT_H
#define CLEAVE_KERNELS_CUDA_GRU_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Buffers of one layer: gates [n, t, 3 h]; sums, the values of W_hn h + b_hn, [n, t, h]; hidden,
 * the values of h, [n, t, h]. */
typedef struct cuda_gru {
  size_t n, t, h;
  float *gates, *sums, *hidden;
} cuda_gru;

/* Computes the gates and h of one step, counted from 0. l->gates holds W_ih x; h_product [n, 3 h]
 * holds W_hh h, and is not read at step 0. The kernel adds the biases; both may be NULL. */
clv_code clv_gpu_compute_gru_cell(clv_gpu *g, const cuda_gru *l, size_t step,
                                  const float *h_product, const float *bias_in, const float *bias_h,
                                  clv_err *err) CLV_USE_RESULT;
/* Gradients that the backward of one layer computes. */
typedef struct cuda_gru_gradients {
  float *dgates_ih; /* [n, t, 3 * h] gradient of W_ih x + b_ih */
  float *dgates_hh; /* [n, t, 3 * h] gradient of W_hh h + b_hh */
  float *dh;        /* [n, h] gradient of h that the following step has passed back */
} cuda_gru_gradients;
/* Computes the gradients of the gates of one step. outer_dh: gradient of the layer's output, [n, t,
 * h]. d->dh: not read at the last step; receives the gradient of h of the step before by way of the
 * gate z alone. */
clv_code clv_gpu_compute_gru_cell_back(clv_gpu *g, const cuda_gru *l, size_t step,
                                       const float *outer_dh, const cuda_gru_gradients *d,
                                       clv_err *err) CLV_USE_RESULT;
/* Writes the hidden values one step later: shifted[n, t] = hidden[n, t - 1], and 0 for t = 0. */
clv_code clv_gpu_shift_gru_steps(clv_gpu *g, const cuda_gru *l, float *shifted,
                                 clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
