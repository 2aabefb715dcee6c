/* SPDX-License-Identifier: Apache-2.0
 *
 * batchnorm_int: launchers of batch normalisation over [n, channels, inner]. `saved` holds mean and
 * inverse standard deviation, 1 / sqrt(var + eps), of each channel. `partial_sums` is scratch of
 * gpu_partial_sums_bytes.
 */
#ifndef CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H
#define CLEAVE_KERNELS_CUDA_BATCHNORM_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which gradients pass the relu that follows the normalisation. GPU_NO_RELU: all, because no relu
 * follows. Otherwise those whose output is above 0: GPU_RELU_BY_X recomputes the output from x,
 * GPU_RELU_BY_Y reads the output y. */
typedef enum cuda_relu_gate { GPU_NO_RELU, GPU_RELU_BY_X, GPU_RELU_BY_Y } cuda_relu_gate;

typedef struct cuda_batchnorm {
  cuda_sum_layout sums;
  bool is_training;
  bool channels_last; /* values and their gradients are in GPU_CHANNELS_LAST */
  double eps, momentum;
  bool has_relu; /* a relu is applied, after the addend is added */
} cuda_batchnorm;

/* Writes the statistics of the batch to `saved`, and updates the running statistics. */
clv_code clv_gpu_compute_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x,
                                       void *partial_sums, double *saved, float *running_mean,
                                       float *running_var, int64_t *n_batches_tracked,
                                       clv_err *err) CLV_USE_RESULT;
/* Writes the running statistics to `saved`. */
clv_code clv_gpu_read_running_moments(clv_gpu *g, const cuda_batchnorm *b,
                                      const float *running_mean, const float *running_var,
                                      double *saved, clv_err *err) CLV_USE_RESULT;
/* Normalises x with the statistics in `saved`. addend: values that are added to the result, or
 * NULL. */
clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const void *x, const float *w,
                           const float *bias, const double *saved, const void *addend, void *y,
                           clv_err *err) CLV_USE_RESULT;

/* Inputs of both passes of backward: clv_gpu_batchnorm_param_grads, then clv_gpu_batchnorm_back. */
typedef struct cuda_gradient {
  cuda_relu_gate gate;
  const void *x, *y, *dy; /* y: read only with GPU_RELU_BY_Y */
  const float *w, *bias;
  const double *saved;
} cuda_gradient;

/* Computes the gradients of bias and weight of each channel and writes them to totals, in this
 * order, and to db and dw unless dw is NULL. gated_dy: receives dy where it passes the relu, else
 * 0; NULL: not written; may be dy. */
clv_code clv_gpu_batchnorm_param_grads(clv_gpu *g, const cuda_batchnorm *b,
                                       const cuda_gradient *grad, void *partial_sums,
                                       cuda_pair *totals, void *gated_dy, float *dw, float *db,
                                       bool accumulate, clv_err *err) CLV_USE_RESULT;
/* Computes dx; dx and dy may be the same memory. totals: result of clv_gpu_batchnorm_param_grads,
 * read only in training. */
clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *grad,
                                const cuda_pair *totals, void *dx, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
