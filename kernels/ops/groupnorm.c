/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, C, ...]: mean and variance over the channels of a group and all positions, then a weight
 * and a bias for each channel. saved: mean and 1 / sqrt(var + eps) of each sample's groups.
 */
#include "kernels/ops/op_int.h"

static clv_code groupnorm_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (in->rank < 2)
    return clv_fail(err, CLV_INVALID, "groupnorm needs rank 2 or more ([N, C, ...]), got %s",
                    clv_shape_format(in, text, sizeof text));
  CLV_TRY(clv_check_no_empty_dim("groupnorm", in, err));
  if (in->dim[1] % s->attrs->groups)
    return clv_fail(err, CLV_INVALID,
                    "groupnorm: the channels of %s do not divide into %lld groups",
                    clv_shape_format(in, text, sizeof text), (long long)s->attrs->groups);
  return clv_shape_of_input(s, ret, err);
}

static int groupnorm_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  clv_shape channels = CLV_SHAPE(s->in[0].dim[1]);
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight", .shape = channels, .init = CLV_INIT_ONE};
  ret[CLV_SLOT_BIAS] = (clv_slot){.suffix = "bias", .shape = channels, .init = CLV_INIT_ZERO};
  return 2;
}

/* Extents. rows: number of groups of all samples; channels: channels of one group; inner: values of
 * one channel of a sample. */
typedef struct group_extents {
  size_t rows, groups, channels, inner;
} group_extents;

static group_extents compute_extents(const clv_ref_kernel *k) {
  const clv_shape *in = &k->d.in[0];
  group_extents s = {.groups = (size_t)k->d.attrs.groups, .inner = 1};
  for (int i = 2; i < in->rank; i++) s.inner *= (size_t)in->dim[i];
  s.rows = (size_t)in->dim[0] * s.groups;
  s.channels = (size_t)in->dim[1] / s.groups;
  return s;
}

static size_t groupnorm_saved_bytes(const clv_ref_kernel *k) {
  return compute_extents(k).rows * 2 * sizeof(double);
}

/* Returns the channel of value i of row r. */
static size_t channel_index(const group_extents *s, size_t r, size_t i) {
  return r % s->groups * s->channels + i / s->inner;
}

static void compute_statistics(const REAL *x, size_t width, double eps, double ret[2]) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < width; i++) sum += x[i];
  ret[0] = sum / (double)width;
  for (size_t i = 0; i < width; i++) squares += (x[i] - ret[0]) * (x[i] - ret[0]);
  ret[1] = 1 / sqrt(squares / (double)width + eps);
}

static clv_code groupnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  group_extents s = compute_extents(k);
  size_t width = s.channels * s.inner;
  (void)err;
  for (size_t r = 0; r < s.rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width;
    REAL *y = (REAL *)a->out + r * width;
    double of[2];
    compute_statistics(x, width, k->d.attrs.eps, of);
    if (k->has_backward) memcpy((double *)a->saved + 2 * r, of, sizeof of);
    for (size_t i = 0; i < width; i++) {
      size_t c = channel_index(&s, r, i);
      y[i] = (REAL)((x[i] - of[0]) * of[1] * w[c] + b[c]);
    }
  }
  return CLV_OK;
}

static clv_code groupnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  group_extents s = compute_extents(k);
  size_t width = s.channels * s.inner;
  (void)err;
  for (size_t r = 0; r < s.rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width, *dy = (const REAL *)a->dout + r * width;
    REAL *dx = (REAL *)a->din[0] + r * width;
    const double *of = (const double *)a->saved + 2 * r;
    double sum = 0, with_x = 0;
    for (size_t i = 0; i < width; i++) {
      double d = (double)dy[i] * w[channel_index(&s, r, i)];
      sum += d;
      with_x += d * ((x[i] - of[0]) * of[1]);
    }
    for (size_t i = 0; i < width; i++)
      dx[i] = (REAL)(of[1] * ((double)dy[i] * w[channel_index(&s, r, i)] -
                              (sum + (x[i] - of[0]) * of[1] * with_x) / (double)width));
  }
  return CLV_OK;
}

static clv_code groupnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  group_extents s = compute_extents(k);
  size_t width = s.channels * s.inner;
  (void)err;
  for (size_t c = 0; c < s.groups * s.channels; c++) {
    double weight = 0, bias = 0;
    for (size_t r = c / s.channels; r < s.rows; r += s.groups) {
      const double *of = (const double *)a->saved + 2 * r;
      size_t at = r * width + c % s.channels * s.inner;
      const REAL *x = (const REAL *)a->in[0] + at, *dy = (const REAL *)a->dout + at;
      for (size_t i = 0; i < s.inner; i++) {
        bias += dy[i];
        weight += dy[i] * ((x[i] - of[0]) * of[1]);
      }
    }
    store_or_add((REAL *)a->dparam[CLV_SLOT_WEIGHT] + c, weight, a->accumulate);
    store_or_add((REAL *)a->dparam[CLV_SLOT_BIAS] + c, bias, a->accumulate);
  }
  return CLV_OK;
}

CLV_OP_ROW(groupnorm) = {
    .name = "groupnorm",
    .doc =
        "y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over the channels "
        "of a group and all places, x: [N, C, ...] (torch.nn.functional.group_norm)",
    .torch_module = "GroupNorm(groups=num_groups, eps=eps)",
    .torch_needs = "affine=True",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_GROUPS, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX},
              EPS_ATTR},
    .shape = groupnorm_shape,
    .slots = groupnorm_slots,
    .max_params = 2,
    .forward = groupnorm_forward,
    .backward_input = groupnorm_backward_input,
    .backward_weight = groupnorm_backward_weight,
    .saves_dx = CLV_SAVE_IN0,
    .saves_dw = CLV_SAVE_IN0,
    .saved_bytes = groupnorm_saved_bytes,
};
