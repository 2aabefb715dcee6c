/* SPDX-License-Identifier: Apache-2.0
 *
 * losses_int: launchers of losses. parts: those of the sums named; dout is one value.
 */
#ifndef CLEAVE_KERNELS_CUDA_LOSSES_INT_H
#define CLEAVE_KERNELS_CUDA_LOSSES_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Losses of a class for each of `rows` samples. log_of: x are logits (cross_entropy), else already
 * logarithms (nll). A label outside 0..classes-1 is refused. terms: rows doubles; parts:
 * gpu_sums_of(1, 1, rows). */
typedef struct cuda_classes {
  size_t rows, classes;
  bool log_of;
  int32_t op;
  uint32_t layer;
} cuda_classes;

clv_code clv_gpu_class_loss(clv_gpu *g, const cuda_classes *c, const float *x, const int64_t *label,
                            double *terms, void *parts, float *out, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_class_loss_back(clv_gpu *g, const cuda_classes *c, const float *x,
                                 const int64_t *label, const float *dout, float *dx,
                                 clv_err *err) CLV_USE_RESULT;

/* out = the mean over n values of the op's term; parts: gpu_sums_of(1, 1, n). bce refuses a value
 * outside 0..1. */
typedef clv_code cuda_mean_loss(clv_gpu *g, const float *x, const float *t, size_t n, void *parts,
                                float *out, uint32_t layer, clv_err *err);
cuda_mean_loss clv_gpu_mse, clv_gpu_bce, clv_gpu_bce_with_logits;

/* dx and dt, each unless it is NULL. */
typedef clv_code cuda_mean_loss_back(clv_gpu *g, const float *x, const float *t, size_t n,
                                     const float *dout, float *dx, float *dt, clv_err *err);
cuda_mean_loss_back clv_gpu_mse_back, clv_gpu_bce_back, clv_gpu_bce_with_logits_back;

#ifdef __cplusplus
}
#endif
#endif
