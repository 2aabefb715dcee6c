/* SPDX-License-Identifier: Apache-2.0
 *
 * losses_int: launchers of losses. partial_sums: scratch for a sum over all positions or values, of
 * the size that gpu_partial_sums_bytes returns. dout: gradient of the loss, one value.
 */
#ifndef CLEAVE_KERNELS_CUDA_LOSSES_INT_H
#define CLEAVE_KERNELS_CUDA_LOSSES_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A loss with a class label for each position; kernels/ops/cross_entropy.c and focal.c have the
 * formulas. A label that is not ignored must be in 0..n_classes-1; any other label is refused. */
typedef struct cuda_class_loss {
  size_t rows;      /* number of positions of all samples */
  size_t n_classes; /* number of classes */
  size_t positions_per_sample;
  bool x_is_logits;       /* x holds logits; false, for nll: x holds logarithms of probabilities */
  bool has_ignored_label; /* positions with the label ignored_label do not count */
  bool has_weights;       /* class_weights holds the weights; false: all are 1 */
  int64_t ignored_label;
  double exponent;   /* exponent of focal; 0 for other losses */
  double smoothing;  /* label smoothing */
  double weight_sum; /* sum of the class weights; without weights the number of classes */
  int32_t op;
  uint32_t layer;
  float class_weights[CLV_MAX_CLASS_WEIGHTS];
} cuda_class_loss;

/* Computes the loss. terms: scratch of `rows` doubles. partial_sums: scratch of
 * gpu_partial_sums_bytes for gpu_sum_layout_of(1, 1, rows). total_weight: receives the total weight
 * of the positions that are not ignored, for clv_gpu_class_loss_back; NULL: no backward follows. */
clv_code clv_gpu_class_loss(clv_gpu *g, const cuda_class_loss *c, const float *x,
                            const int64_t *labels, double *terms, void *partial_sums,
                            double *total_weight, float *out, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_class_loss_back(clv_gpu *g, const cuda_class_loss *c, const float *x,
                                 const int64_t *labels, const float *dout,
                                 const double *total_weight, float *dx,
                                 clv_err *err) CLV_USE_RESULT;

/* Computes *out, the mean of the loss's terms over n values of prediction x and target t.
 * partial_sums: scratch of gpu_partial_sums_bytes for gpu_sum_layout_of(1, 1, n). bce refuses a
 * prediction outside 0..1. */
typedef clv_code cuda_mean_loss(clv_gpu *g, const float *x, const float *t, size_t n,
                                void *partial_sums, float *out, uint32_t layer, clv_err *err);
cuda_mean_loss clv_gpu_mse, clv_gpu_bce, clv_gpu_bce_with_logits, clv_gpu_poisson;

/* As cuda_mean_loss, for a loss with a parameter: beta, or p of the loss quantile. */
typedef clv_code cuda_parametric_loss(clv_gpu *g, double loss_parameter, const float *x,
                                      const float *t, size_t n, void *partial_sums, float *out,
                                      uint32_t layer, clv_err *err);
cuda_parametric_loss clv_gpu_smooth_l1, clv_gpu_huber, clv_gpu_quantile;

/* Computes dx and dt, the gradients of prediction and target; NULL: not computed. */
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
