/* SPDX-License-Identifier: Apache-2.0
 *
 * groupnorm_int: the loops of groupnorm, and of instancenorm, whose groups are single channels.
 * `saved` holds mean and 1 / sqrt(var + eps) of each group of each sample. If the op has no
 * parameters, its weight is 1 and its bias 0.
 */
#ifndef CLEAVE_OPS_GROUPNORM_INT_H
#define CLEAVE_OPS_GROUPNORM_INT_H

#include "kernels/ops/op_int.h"

static inline clv_slot channel_slot(const clv_op_site *s, const char *suffix, clv_init init) {
  return (clv_slot){.suffix = suffix, .shape = CLV_SHAPE(s->in[0].dim[1]), .init = init};
}

/* Sizes of a normalisation by groups. A row is one group of one sample. */
typedef struct ops_groupnorm_extents {
  size_t n_rows;             /* groups of all samples */
  size_t n_groups;           /* groups of one sample */
  size_t channels_per_group; /* channels of one group */
  size_t channel_size;       /* values of one channel of one sample */
} ops_groupnorm_extents;

static ops_groupnorm_extents compute_extents(const clv_ref_kernel *k) {
  const clv_shape *in = &k->d.in[0];
  bool is_instancenorm = k->d.op == CLV_OP_INSTANCENORM;
  ops_groupnorm_extents s = {.n_groups = (size_t)(is_instancenorm ? in->dim[1] : k->d.attrs.groups),
                             .channel_size = 1};
  for (int i = 2; i < in->rank; i++) s.channel_size *= (size_t)in->dim[i];
  s.n_rows = (size_t)in->dim[0] * s.n_groups;
  s.channels_per_group = (size_t)in->dim[1] / s.n_groups;
  return s;
}

static size_t groupnorm_saved_bytes(const clv_ref_kernel *k) {
  return compute_extents(k).n_rows * 2 * sizeof(double);
}

/* Returns the channel to which value i of row r belongs; a row is one group of one sample. */
static size_t channel_index(const ops_groupnorm_extents *s, size_t r, size_t i) {
  return r % s->n_groups * s->channels_per_group + i / s->channel_size;
}

static void compute_statistics(const REAL *x, size_t group_size, double eps, double ret[2]) {
  double sum = 0, square_sum = 0;
  for (size_t i = 0; i < group_size; i++) sum += x[i];
  ret[0] = sum / (double)group_size;
  for (size_t i = 0; i < group_size; i++) square_sum += (x[i] - ret[0]) * (x[i] - ret[0]);
  ret[1] = 1 / sqrt(square_sum / (double)group_size + eps);
}

static clv_code groupnorm_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  ops_groupnorm_extents s = compute_extents(k);
  size_t group_size = s.channels_per_group * s.channel_size;
  (void)err;
  for (size_t r = 0; r < s.n_rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * group_size;
    REAL *y = (REAL *)a->out + r * group_size;
    double moments[2];
    compute_statistics(x, group_size, k->d.attrs.eps, moments);
    if (k->has_backward) memcpy((double *)a->saved + 2 * r, moments, sizeof moments);
    for (size_t i = 0; i < group_size; i++) {
      size_t c = channel_index(&s, r, i);
      y[i] = (REAL)((x[i] - moments[0]) * moments[1] * (w ? w[c] : 1) + (b ? b[c] : 0));
    }
  }
  return CLV_OK;
}

static clv_code groupnorm_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  ops_groupnorm_extents s = compute_extents(k);
  size_t group_size = s.channels_per_group * s.channel_size;
  (void)err;
  for (size_t r = 0; r < s.n_rows; r++) {
    const REAL *x = (const REAL *)a->in[0] + r * group_size,
               *dy = (const REAL *)a->dout + r * group_size;
    REAL *dx = (REAL *)a->din[0] + r * group_size;
    const double *moments = (const double *)a->saved + 2 * r;
    double sum = 0, sum_g_xhat = 0;
    for (size_t i = 0; i < group_size; i++) {
      double d = (double)dy[i] * (w ? w[channel_index(&s, r, i)] : 1);
      sum += d;
      sum_g_xhat += d * ((x[i] - moments[0]) * moments[1]);
    }
    for (size_t i = 0; i < group_size; i++)
      dx[i] = (REAL)(moments[1] *
                     ((double)dy[i] * (w ? w[channel_index(&s, r, i)] : 1) -
                      (sum + (x[i] - moments[0]) * moments[1] * sum_g_xhat) / (double)group_size));
  }
  return CLV_OK;
}

static clv_code groupnorm_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  ops_groupnorm_extents s = compute_extents(k);
  size_t group_size = s.channels_per_group * s.channel_size;
  (void)err;
  for (size_t c = 0; c < s.n_groups * s.channels_per_group; c++) {
    double dweight = 0, dbias = 0;
    for (size_t r = c / s.channels_per_group; r < s.n_rows; r += s.n_groups) {
      const double *moments = (const double *)a->saved + 2 * r;
      size_t offset = r * group_size + c % s.channels_per_group * s.channel_size;
      const REAL *x = (const REAL *)a->in[0] + offset, *dy = (const REAL *)a->dout + offset;
      for (size_t i = 0; i < s.channel_size; i++) {
        dbias += dy[i];
        dweight += dy[i] * ((x[i] - moments[0]) * moments[1]);
      }
    }
    store_or_add((REAL *)a->dparam[CLV_SLOT_WEIGHT] + c, dweight, a->accumulate);
    store_or_add((REAL *)a->dparam[CLV_SLOT_BIAS] + c, dbias, a->accumulate);
  }
  return CLV_OK;
}

#endif
