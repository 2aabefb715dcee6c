/* SPDX-License-Identifier: Apache-2.0
 *
 * losses_int: launchers of losses. partial_sums: scratch of gpu_partial_sums_bytes for the sums
 * that the comment of each function names. dout: gradient of the loss, one value.
 */
#ifndef CLEAVE_KERNELS_CUDA_LOSSES_INT_H
#define CLEAVE_KERNELS_CUDA_LOSSES_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A loss of classes over `rows` positions, per_sample of them in a sample;
 * kernels/ops/cross_entropy.c and focal.c have the formulas. x_is_logits: x are logits (all but
 * nll), else logarithms (nll). A label outside 0..classes-1 is refused, unless `has_ignored_label`
 * is set and the label is `ignored_label`. */
typedef struct cuda_classes {
  size_t rows, classes, per_sample;
  bool x_is_logits, has_ignored_label, has_weights;
  int64_t ignored_label;
  double exponent;              /* of focal; 0: another loss, or its exponent is 0 */
  double smoothing, weight_sum; /* weight_sum: sum of the class weights, or the number of classes */
  int32_t op;
  uint32_t layer;
  float class_weights[CLV_MAX_CLASS_WEIGHTS]; /* read only with has_weights */
} cuda_classes;

/* Computes the loss. terms: scratch of `rows` doubles. partial_sums: scratch for the sums
 * gpu_sums_of(1, 1, rows). total_weight: receives the total weight of the counted positions, which
 * backward needs; NULL without a backward. */
clv_code clv_gpu_class_loss(clv_gpu *g, const cuda_classes *c, const float *x, const int64_t *label,
                            double *terms, void *partial_sums, double *total_weight, float *out,
                            clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_class_loss_back(clv_gpu *g, const cuda_classes *c, const float *x,
                                 const int64_t *label, const float *dout,
                                 const double *total_weight, float *dx,
                                 clv_err *err) CLV_USE_RESULT;

/* Computes out = mean over n values of the op's term. partial_sums: scratch for the sums
 * gpu_sums_of(1, 1, n). bce refuses a value outside 0..1. */
typedef clv_code cuda_mean_loss(clv_gpu *g, const float *x, const float *t, size_t n,
                                void *partial_sums, float *out, uint32_t layer, clv_err *err);
cuda_mean_loss clv_gpu_mse, clv_gpu_bce, clv_gpu_bce_with_logits, clv_gpu_poisson;

/* As cuda_mean_loss, for an op with a parameter: beta, or p of quantile. */
typedef clv_code cuda_parametric_loss(clv_gpu *g, double loss_parameter, const float *x,
                                      const float *t, size_t n, void *partial_sums, float *out,
                                      uint32_t layer, clv_err *err);
cuda_parametric_loss clv_gpu_smooth_l1, clv_gpu_huber, clv_gpu_quantile;

/* Computes the gradients dx and dt of prediction and target; either may be NULL. */
typedef clv_code cuda_mean_loss_back(clv_gpu *g, const float *x, const float *t, size_t n,
                                     const float *dout, float *dx, float *dt, clv_err *err);
cuda_mean_loss_back clv_gpu_mse_back, clv_gpu_bce_back, clv_gpu_bce_with_logits_back,
    clv_gpu_poisson_back;
typedef clv_code cuda_parametric_loss_back(clv_gpu *g, double loss_parameter, const float *x,
                                           const float *t, size_t n, const float *dout, float *dx,
                                           float *dt, clv_err *err);
cuda_parametric_loss_back clv_gpu_smooth_l1_back, clv_gpu_huber_back, clv_gpu_quantile_back;

#ifdef __cplusplus
}
#endif
#endif
