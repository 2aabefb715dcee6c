/* SPDX-License-Identifier: Apache-2.0
 *
 * groupnorm_int: the loops of groupnorm, and of instancenorm, whose groups are the channels. saved:
 * mean and 1 / sqrt(var + eps) of each sample's groups. Without parameters the weight is 1 and the
 * bias 0.
 */
#ifndef CLEAVE_OPS_GROUPNORM_INT_H
#define CLEAVE_OPS_GROUPNORM_INT_H

#include "kernels/ops/op_int.h"

static inline clv_slot channel_slot(const clv_op_site *s, const char *suffix, clv_init init) {
  return (clv_slot){.suffix = suffix, .shape = CLV_SHAPE(s->in[0].dim[1]), .init = init};
}

/* Extents. rows: number of groups of all samples; channels: channels of one group; inner: values of
 * one channel of a sample. */
typedef struct ops_groups {
  size_t rows, groups, channels, inner;
} ops_groups;

static ops_groups compute_extents(const clv_ref_kernel *k) {
  const clv_shape *in = &k->d.in[0];
  bool is_instancenorm = k->d.op == CLV_OP_INSTANCENORM;
  ops_groups s = {.groups = (size_t)(is_instancenorm ? in->dim[1] : k->d.attrs.groups), .inner = 1};
  for (int i = 2; i < in->rank; i++) s.inner *= (size_t)in->dim[i];
  s.rows = (size_t)in->dim[0] * s.groups;
  s.channels = (size_t)in->dim[1] / s.groups;
  return s;
}

static size_t groupnorm_saved_bytes(const clv_ref_kernel *k) {
  return compute_extents(k).rows * 2 * sizeof(double);
}

/* Returns the channel of value i of row r. */
static size_t channel_index(const ops_groups *s, size_t r, size_t i) {
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
  ops_groups s = compute_extents(k);
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
      y[i] = (REAL)((x[i] - of[0]) * of[1] * (w ? w[c] : 1) + (b ? b[c] : 0));
    }
  }
  return CLV_OK;
}

static clv_code groupnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  ops_groups s = compute_extents(k);
  size_t width = s.channels * s.inner;
  (void)err;
  for (size_t r = 0; r < s.rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * width, *dy = (const REAL *)a->dout + r * width;
    REAL *dx = (REAL *)a->din[0] + r * width;
    const double *of = (const double *)a->saved + 2 * r;
    double sum = 0, sum_g_xhat = 0;
    for (size_t i = 0; i < width; i++) {
      double d = (double)dy[i] * (w ? w[channel_index(&s, r, i)] : 1);
      sum += d;
      sum_g_xhat += d * ((x[i] - of[0]) * of[1]);
    }
    for (size_t i = 0; i < width; i++)
      dx[i] = (REAL)(of[1] * ((double)dy[i] * (w ? w[channel_index(&s, r, i)] : 1) -
                              (sum + (x[i] - of[0]) * of[1] * sum_g_xhat) / (double)width));
  }
  return CLV_OK;
}

static clv_code groupnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  ops_groups s = compute_extents(k);
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

#endif
