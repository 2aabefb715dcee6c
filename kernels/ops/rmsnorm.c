/* SPDX-License-Identifier: Apache-2.0
 *
 * y = x / sqrt(mean(x^2) + eps) weight over each row (Zhang & Sennrich, 2019). x is rows of `width`
 * values; `saved` holds 1/sqrt(mean(x^2) + eps) of each row in double.
 */
#include <float.h>

#include "kernels/ops/op_int.h"

static clv_code rmsnorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  CLV_TRY(clv_check_trailing_dims("rmsnorm", s, err));
  return clv_shape_of_input(s, ret, err);
}

static int rmsnorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] =
      (clv_slot){.suffix = "weight", .shape = clv_trailing_dims(s), .init = CLV_INIT_ONE};
  return 1;
}

static size_t row_width(const clv_ref_kernel *k) {
  return clv_layout_numel(&k->d.param[CLV_SLOT_WEIGHT], 1);
}

static size_t rmsnorm_saved_bytes(const clv_ref_kernel *k) {
  return k->n_in / row_width(k) * sizeof(double);
}

static double compute_inverse_rms(const REAL *x, size_t n, double eps) {
  double square_sum = 0;
  for (size_t i = 0; i < n; i++) square_sum += (double)x[i] * x[i];
  return 1 / sqrt(square_sum / (double)n + eps);
}

static clv_code rmsnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  double *saved = a->saved;
  size_t width = row_width(k);
  (void)err;
  for (size_t r = 0; r < k->n_in / width; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width;
    REAL *y = (REAL *)a->out + r * width;
    double inverse_rms = compute_inverse_rms(x, width, k->d.attrs.eps);
    for (size_t i = 0; i < width; i++) y[i] = (REAL)(x[i] * inverse_rms * w[i]);
    if (k->has_backward) saved[r] = inverse_rms;
  }
  return CLV_OK;
}

/* Computes dx. With g = dy w and xhat = x inverse_rms: dx = inverse_rms (g - xhat mean(g xhat)). */
static clv_code rmsnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  const double *saved = a->saved;
  size_t width = row_width(k);
  (void)err;
  for (size_t r = 0; r < k->n_in / width; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width, *dy = (const REAL *)a->dout + r * width;
    REAL *dx = (REAL *)a->din[0] + r * width;
    double sum_g_xhat = 0, inverse_rms = saved[r];
    for (size_t i = 0; i < width; i++) sum_g_xhat += (double)dy[i] * w[i] * (x[i] * inverse_rms);
    for (size_t i = 0; i < width; i++)
      dx[i] = (REAL)(inverse_rms *
                     ((double)dy[i] * w[i] - x[i] * inverse_rms * sum_g_xhat / (double)width));
  }
  return CLV_OK;
}

static clv_code rmsnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  const double *saved = a->saved;
  size_t width = row_width(k);
  (void)err;
  for (size_t i = 0; i < width; i++) {
    double sum = 0;
    for (size_t r = 0; r < k->n_in / width; r++)
      sum += dy[r * width + i] * (x[r * width + i] * saved[r]);
    store_or_add(&dw[i], sum, a->accumulate);
  }
  return CLV_OK;
}

CLV_OP_ROW(rmsnorm) = {
    .name = "rmsnorm",
    .doc =
        "y = x / sqrt(mean(x^2) + eps) * weight, mean over the trailing dimensions `shape`, the "
        "last one unless given (torch.nn.functional.rms_norm)",
    .torch_module = "RMSNorm(shape=normalized_shape, eps=eps)",
    .torch_needs = "elementwise_affine=True",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_SHAPE, .low = 1, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_EPS, .default_value = FLT_EPSILON, .low = 1e-30, .high = 1}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = rmsnorm_shape,
    .slots = rmsnorm_slots,
    .max_params = 1,
    .forward = rmsnorm_forward,
    .backward_input = rmsnorm_backward_input,
    .backward_weight = rmsnorm_backward_weight,
    .saved_for_dx = CLV_SAVE_IN0,
    .saved_for_dw = CLV_SAVE_IN0,
    .saved_bytes = rmsnorm_saved_bytes,
};
