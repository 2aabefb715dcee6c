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

/* Losses of a class for each of `rows` places, per_sample of them in a sample; the formula is
 * kernels/ops/cross_entropy.c's. log_of: x are logits (cross_entropy), else already logarithms
 * (nll). A label outside 0..classes-1 is refused, unless it is `ignore` and they are ignored. */
typedef struct cuda_classes {
  size_t rows, classes, per_sample;
  bool log_of, ignores, weighted;
  int64_t ignore;
  double smoothing, weights; /* weights: their sum */
  int32_t op;
  uint32_t layer;
  float weight[CLV_MAX_CLASS_WEIGHTS]; /* read if weighted */
} cuda_classes;

/* terms: rows doubles; parts: gpu_sums_of(1, 1, rows). all: the weight of what is counted, for
 * backward; NULL where there will be none. */
clv_code clv_gpu_class_loss(clv_gpu *g, const cuda_classes *c, const float *x, const int64_t *label,
                            double *terms, void *parts, double *all, float *out,
                            clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_class_loss_back(clv_gpu *g, const cuda_classes *c, const float *x,
                                 const int64_t *label, const float *dout, const double *all,
                                 float *dx, clv_err *err) CLV_USE_RESULT;

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
