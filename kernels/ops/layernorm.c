/* SPDX-License-Identifier: Apache-2.0
 *
 * y = (x - mean) / sqrt(var + eps) weight + bias over each row (Ba, Kiros & Hinton, 2016). x is
 * rows of `width` values; `saved` holds mean and 1/sqrt(var + eps) of each row in double.
 */
#include "kernels/ops/op_int.h"

static clv_code layernorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  CLV_TRY(clv_check_trailing_dims("layernorm", s, err));
  return clv_shape_of_input(s, ret, err);
}

static int layernorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  clv_shape shape = clv_trailing_dims(s);
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight", .shape = shape, .init = CLV_INIT_ONE};
  ret[CLV_SLOT_BIAS] = (clv_slot){.suffix = "bias", .shape = shape};
  return 2;
}

static size_t row_width(const clv_ref_kernel *k) {
  return clv_layout_numel(&k->d.param[CLV_SLOT_WEIGHT], 1);
}

static size_t layernorm_saved_bytes(const clv_ref_kernel *k) {
  return k->n_in / row_width(k) * 2 * sizeof(double);
}

static void compute_row_moments(const REAL *x, size_t n, double eps, double *ret_mean,
                                double *ret_inverse_std) {
  double sum = 0, square_sum = 0;
  for (size_t i = 0; i < n; i++) sum += x[i];
  double mean = sum / (double)n;
  for (size_t i = 0; i < n; i++) square_sum += (x[i] - mean) * (x[i] - mean);
  *ret_mean = mean;
  *ret_inverse_std = 1 / sqrt(square_sum / (double)n + eps);
}

static clv_code layernorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  double *saved = a->saved, mean, inverse_std;
  size_t width = row_width(k);
  (void)err;
  for (size_t r = 0; r < k->n_in / width; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width;
    REAL *y = (REAL *)a->out + r * width;
    compute_row_moments(x, width, k->d.attrs.eps, &mean, &inverse_std);
    for (size_t i = 0; i < width; i++) y[i] = (REAL)((x[i] - mean) * inverse_std * w[i] + b[i]);
    if (!k->has_backward) continue;
    saved[2 * r] = mean;
    saved[2 * r + 1] = inverse_std;
  }
  return CLV_OK;
}

/* Computes dx. With g = dy w and xhat = (x - mean) inverse_std:
 * dx = inverse_std (g - mean(g) - xhat mean(g xhat)). */
static clv_code layernorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  const double *saved = a->saved;
  size_t width = row_width(k);
  (void)err;
  for (size_t r = 0; r < k->n_in / width; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width, *dy = (const REAL *)a->dout + r * width;
    REAL *dx = (REAL *)a->din[0] + r * width;
    double sum = 0, sum_g_xhat = 0, mean = saved[2 * r], inverse_std = saved[2 * r + 1];
    for (size_t i = 0; i < width; i++) {
      sum += (double)dy[i] * w[i];
      sum_g_xhat += (double)dy[i] * w[i] * ((x[i] - mean) * inverse_std);
    }
    for (size_t i = 0; i < width; i++)
      dx[i] =
          (REAL)(inverse_std * ((double)dy[i] * w[i] -
                                (sum + (x[i] - mean) * inverse_std * sum_g_xhat) / (double)width));
  }
  return CLV_OK;
}

static clv_code layernorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT], *db = a->dparam[CLV_SLOT_BIAS];
  const double *saved = a->saved;
  size_t width = row_width(k);
  (void)err;
  for (size_t i = 0; i < width; i++) {
    double dweight = 0, dbias = 0;
    for (size_t r = 0; r < k->n_in / width; r++) {
      dbias += dy[r * width + i];
      dweight += dy[r * width + i] * ((x[r * width + i] - saved[2 * r]) * saved[2 * r + 1]);
    }
    store_or_add(&dw[i], dweight, a->accumulate);
    store_or_add(&db[i], dbias, a->accumulate);
  }
  return CLV_OK;
}

CLV_OP_ROW(layernorm) = {
    .name = "layernorm",
    .doc =
        "y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over the trailing "
        "dimensions `shape`, the last one unless given (torch.nn.functional.layer_norm)",
    .torch_module = "LayerNorm(shape=normalized_shape, eps=eps)",
    .torch_needs = "elementwise_affine=True",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_SHAPE, .low = 1, .high = CLV_EXTENT_MAX}, EPS_ATTR},
    .packing = CLV_PACKS_POSITIONS,
    .shape = layernorm_shape,
    .slots = layernorm_slots,
    .max_params = 2,
    .forward = layernorm_forward,
    .backward_input = layernorm_backward_input,
    .backward_weight = layernorm_backward_weight,
    .saved_for_dx = CLV_SAVE_IN0,
    .saved_for_dw = CLV_SAVE_IN0,
    .saved_bytes = layernorm_saved_bytes,
};
