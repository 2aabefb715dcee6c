/* SPDX-License-Identifier: Apache-2.0
 *
 * pool_int: pools, which slide a window over each image plane separately.
 */
#ifndef CLEAVE_OPS_POOL_INT_H
#define CLEAVE_OPS_POOL_INT_H

#include "kernels/ops/op_int.h"

/* Fails unless both halves of an attribute of an op over [N, C, L] are equal. */
static inline clv_code check_halves_equal(const char *op, const char *name, const int64_t v[2],
                                          clv_err *err) {
  if (v[0] == v[1]) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s.%s is one integer, got [%lld, %lld]", op, name,
                  (long long)v[0], (long long)v[1]);
}

/* Computes the output shape of a pool. rank: 4 for pools over images, 3 for pools over [N, C,
 * L]. */
static inline clv_code pool_shape(const char *op, int rank, const clv_op_site *s, clv_shape *ret,
                                  clv_err *err) {
  int64_t out_extents[2];
  CLV_TRY(clv_check_rank(op, &s->in[0], rank, rank == 4 ? "[N, C, H, W]" : "[N, C, L]", "", err));
  CLV_TRY(clv_check_no_empty_dim(op, &s->in[0], err));
  if (rank == 3) {
    CLV_TRY(check_halves_equal(op, "kernel", s->attrs->kernel, err));
    CLV_TRY(check_halves_equal(op, "stride", s->attrs->stride, err));
    CLV_TRY(check_halves_equal(op, "pad", s->attrs->pad, err));
  }
  for (int i = 0; i < rank - 2; i++)
    if (s->attrs->pad[i] > s->attrs->kernel[i] / 2)
      return clv_fail(err, CLV_INVALID, "%s: pad %lld must be at most half of kernel %lld", op,
                      (long long)s->attrs->pad[i], (long long)s->attrs->kernel[i]);
  CLV_TRY(clv_window_extents(op, s, out_extents, err));
  *ret = s->in[0];
  memcpy(&ret->dim[2], out_extents, (size_t)(rank - 2) * sizeof *out_extents);
  return CLV_OK;
}

#define WINDOW_ATTRS                                                                 \
  {                                                                                  \
    {.key = CLV_ATTR_KERNEL, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX}, \
        {.key = CLV_ATTR_STRIDE, .low = 1, .high = CLV_EXTENT_MAX}, {                \
      .key = CLV_ATTR_PAD, .low = 0, .high = CLV_EXTENT_MAX                          \
    }                                                                                \
  }

#endif
