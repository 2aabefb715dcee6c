/* SPDX-License-Identifier: Apache-2.0
 *
 * y = (x - mean) / sqrt(var + eps) weight + bias, for each channel (Ioffe & Szegedy, ICML 2015),
 * with the numbers of torch.nn.BatchNorm1d/2d. x is [N, C], [N, C, L] or [N, C, H, W]. `saved`
 * holds mean and 1/sqrt(var + eps) of each channel in double: the statistics that forward used, in
 * training or evaluation, and that backward must use.
 */
#include "kernels/ops/op_int.h"

static clv_code batchnorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char text[160];
  if (s->in[0].rank < 2 || s->in[0].rank > 4)
    return clv_fail(err, CLV_INVALID,
                    "batchnorm needs rank 2 [N, C], 3 [N, C, L] or 4 [N, C, H, W], got %s",
                    clv_shape_format(&s->in[0], text, sizeof text));
  return clv_shape_of_input(s, ret, err);
}

static int batchnorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  clv_shape channels = CLV_SHAPE(s->in[0].dim[1]);
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight", .shape = channels, .init = CLV_INIT_ONE};
  ret[CLV_SLOT_BIAS] = (clv_slot){.suffix = "bias", .shape = channels};
  ret[CLV_SLOT_MEAN] = (clv_slot){.suffix = "running_mean", .shape = channels, .is_buffer = true};
  ret[CLV_SLOT_VAR] = (clv_slot){
      .suffix = "running_var", .shape = channels, .is_buffer = true, .init = CLV_INIT_ONE};
  ret[CLV_SLOT_TRACKED] =
      (clv_slot){.suffix = "num_batches_tracked", .is_buffer = true, .is_i64 = true};
  return 5;
}

static clv_code check_batchnorm_training(const clv_op_site *s, clv_err *err) {
  const clv_shape *in = &s->in[0];
  int64_t n_values = in->dim[0];
  char text[160];
  for (int i = 2; i < in->rank; i++) n_values *= in->dim[i];
  if (n_values > 1) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "Expected more than 1 value per channel when training, got input size %s",
                  clv_shape_format(in, text, sizeof text));
}

static clv_code check_several_values_per_channel(const clv_node_desc *d, clv_err *err) {
  if (!d->training || clv_layout_numel(&d->in[0], 1) != (size_t)d->in[0].dim[1]) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "batchnorm in training needs more than one value per channel");
}

typedef struct norm_extents {
  int64_t n, c;              /* batch size and number of channels */
  int64_t channel_size;      /* values of one channel in one sample */
  double values_per_channel; /* values of one channel in the batch */
} norm_extents;

static norm_extents compute_extents(const clv_ref_kernel *k) {
  norm_extents s = {k->d.in[0].dim[0], k->d.in[0].dim[1], 1, 0};
  for (int i = 2; i < k->d.in[0].rank; i++) s.channel_size *= k->d.in[0].dim[i];
  s.values_per_channel = (double)(s.n * s.channel_size);
  return s;
}

static void compute_statistics(const norm_extents *s, const REAL *x, int64_t c, double *ret_mean,
                               double *ret_square_sum) {
  double sum = 0, square_sum = 0;
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t i = 0; i < s->channel_size; i++) sum += x[(n * s->c + c) * s->channel_size + i];
  double mean = sum / s->values_per_channel;
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t i = 0; i < s->channel_size; i++) {
      double d = x[(n * s->c + c) * s->channel_size + i] - mean;
      square_sum += d * d;
    }
  *ret_mean = mean;
  *ret_square_sum = square_sum;
}

/* Computes mean and biased variance of channel c. In training, computes them over the batch and
 * updates the running statistics, with the unbiased variance; otherwise returns the running
 * statistics. */
static void compute_moments(const clv_ref_kernel *k, const clv_kernel_args *a,
                            const norm_extents *s, int64_t c, double *ret_mean, double *ret_var) {
  REAL *running_mean = a->param[CLV_SLOT_MEAN], *running_var = a->param[CLV_SLOT_VAR];
  double m = k->d.attrs.momentum, square_sum;
  if (!k->d.training) {
    *ret_mean = running_mean[c];
    *ret_var = running_var[c];
    return;
  }
  compute_statistics(s, a->in[0], c, ret_mean, &square_sum);
  *ret_var = square_sum / s->values_per_channel;
  running_mean[c] = (REAL)(m * *ret_mean + (1 - m) * running_mean[c]);
  running_var[c] =
      (REAL)(m * (square_sum / (s->values_per_channel - 1)) + (1 - m) * running_var[c]);
}

static clv_code batchnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  norm_extents s = compute_extents(k);
  const REAL *x = a->in[0], *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  REAL *y = a->out;
  double *saved = a->saved, mean, var;
  (void)err;
  for (int64_t c = 0; c < s.c; c++) {
    compute_moments(k, a, &s, c, &mean, &var);
    double inverse_std = 1 / sqrt(var + k->d.attrs.eps);
    for (int64_t i = 0; i < s.n * s.channel_size; i++) {
      int64_t index = (i / s.channel_size * s.c + c) * s.channel_size + i % s.channel_size;
      y[index] = (REAL)((x[index] - mean) * inverse_std * w[c] + b[c]);
    }
    if (!k->has_backward) continue;
    saved[2 * c] = mean;
    saved[2 * c + 1] = inverse_std;
  }
  if (k->d.training) ++*(int64_t *)a->param[CLV_SLOT_TRACKED];
  return CLV_OK;
}

static size_t batchnorm_saved_bytes(const clv_ref_kernel *k) {
  return (size_t)k->d.in[0].dim[1] * 2 * sizeof(double);
}

/* Computes the gradients of bias and weight of channel c: dbias = sum dy, and
 * dweight = sum dy (x - mean) / sqrt(var + eps), both over the values of the channel. */
static void compute_param_grads(const norm_extents *s, const clv_kernel_args *a, int64_t c,
                                double *ret_dbias, double *ret_dweight) {
  const REAL *x = a->in[0], *dy = a->dout;
  const double *saved = a->saved;
  double dbias = 0, dweight = 0;
  for (int64_t n = 0; n < s->n; n++)
    for (int64_t i = 0; i < s->channel_size; i++) {
      int64_t index = (n * s->c + c) * s->channel_size + i;
      dbias += dy[index];
      dweight += dy[index] * ((x[index] - saved[2 * c]) * saved[2 * c + 1]);
    }
  *ret_dbias = dbias;
  *ret_dweight = dweight;
}

/* Computes dx. With inverse_std = 1 / sqrt(var + eps) and xhat = (x - mean) inverse_std, in
 * training dx = w inverse_std (dy - mean(dy) - xhat mean(dy xhat)). Otherwise the statistics are
 * constants, and dx = w inverse_std dy. */
static clv_code batchnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  norm_extents s = compute_extents(k);
  const REAL *x = a->in[0], *dy = a->dout, *w = a->param[CLV_SLOT_WEIGHT];
  const double *saved = a->saved;
  REAL *dx = a->din[0];
  (void)err;
  for (int64_t c = 0; c < s.c; c++) {
    double dbias = 0, dweight = 0, mean = saved[2 * c], inverse_std = saved[2 * c + 1];
    if (k->d.training) compute_param_grads(&s, a, c, &dbias, &dweight);
    for (int64_t i = 0; i < s.n * s.channel_size; i++) {
      int64_t index = (i / s.channel_size * s.c + c) * s.channel_size + i % s.channel_size;
      double mean_term = (dbias + (x[index] - mean) * inverse_std * dweight) / s.values_per_channel;
      dx[index] = (REAL)((dy[index] - mean_term) * inverse_std * w[c]);
    }
  }
  return CLV_OK;
}

static clv_code batchnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  norm_extents s = compute_extents((const clv_ref_kernel *)base);
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT], *db = a->dparam[CLV_SLOT_BIAS];
  double dbias, dweight;
  (void)err;
  for (int64_t c = 0; c < s.c; c++) {
    compute_param_grads(&s, a, c, &dbias, &dweight);
    store_or_add(&dw[c], dweight, a->accumulate);
    store_or_add(&db[c], dbias, a->accumulate);
  }
  return CLV_OK;
}

CLV_OP_ROW(batchnorm) = {
    .name = "batchnorm",
    .doc =
        "y = (x - mean) / sqrt(var + eps) * weight + bias per channel; training uses the "
        "batch's statistics and updates the running ones by momentum "
        "(torch.nn.BatchNorm1d, BatchNorm2d)",
    .torch_module = "BatchNorm1d|BatchNorm2d(eps=eps, momentum=momentum)",
    .torch_needs = "affine=True, track_running_stats=True",
    .n_in = 1,
    .attrs = {EPS_ATTR, {.key = CLV_ATTR_MOMENTUM, .default_value = 0.1, .low = 0, .high = 1}},
    .shape = batchnorm_shape,
    .slots = batchnorm_slots,
    .max_params = 5,
    .takes_tails = true,
    .uses_batch_statistics = true,
    .may_output_bf16 = true,
    .check_training = check_batchnorm_training,
    .check_kernel = check_several_values_per_channel,
    .forward = batchnorm_forward,
    .backward_input = batchnorm_backward_input,
    .backward_weight = batchnorm_backward_weight,
    .saved_for_dx = CLV_SAVE_IN0,
    .saved_for_dw = CLV_SAVE_IN0,
    .saved_bytes = batchnorm_saved_bytes,
};
