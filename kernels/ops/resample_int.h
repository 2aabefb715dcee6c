/* SPDX-License-Identifier: Apache-2.0
 *
 * resample_int: ops whose output is a weighted sum of neighbouring values along each axis of an
 * image: adaptive average pools and upsampling. clv_taps_of returns the indices and
 * weights of the values that one output sums.
 */
#ifndef CLEAVE_OPS_RESAMPLE_INT_H
#define CLEAVE_OPS_RESAMPLE_INT_H

#include "kernels/ops/pool_int.h"

static inline clv_code check_image_rank(const char *op, int min_rank, int max_rank,
                                        const clv_op_site *s, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (in->rank < min_rank || in->rank > max_rank)
    return clv_fail(err, CLV_INVALID, "%s needs %s, got %s", op,
                    max_rank == 3   ? "rank 3 [N, C, L]"
                    : min_rank == 4 ? "rank 4 [N, C, H, W]"
                                    : "rank 3 [N, C, L] or 4 [N, C, H, W]",
                    clv_shape_format(in, text, sizeof text));
  return clv_check_no_empty_dim(op, in, err);
}

/* Writes the output's shape to *ret: the input's shape, whose image extents are replaced by `size`.
 */
static inline clv_code replace_image_extents(const clv_op_site *s, const int64_t size[2],
                                             clv_shape *ret) {
  *ret = s->in[0];
  for (int i = 2; i < ret->rank; i++) ret->dim[i] = size[ret->rank == 3 ? 1 : i - 2];
  return CLV_OK;
}

static inline clv_code adaptive_shape(const char *op, int rank, const clv_op_site *s,
                                      clv_shape *ret, clv_err *err) {
  CLV_TRY(check_image_rank(op, rank, rank, s, err));
  if (rank == 3) CLV_TRY(check_halves_equal(op, "output_size", s->attrs->output_size, err));
  return replace_image_extents(s, s->attrs->output_size, ret);
}

static inline clv_code upsample_shape(const char *op, const clv_op_site *s, clv_shape *ret,
                                      clv_err *err) {
  const clv_attrs *a = s->attrs;
  int64_t size[2];
  CLV_TRY(check_image_rank(op, 3, 4, s, err));
  if (s->in[0].rank == 3) CLV_TRY(check_halves_equal(op, "size", a->size, err));
  if ((a->scale_factor > 0) == (a->size[0] > 0 && a->size[1] > 0))
    return clv_fail(err, CLV_INVALID, "%s needs either size or scale_factor", op);
  for (int i = 0; i < 2; i++) {
    int64_t extent = s->in[0].dim[s->in[0].rank == 3 ? 2 : 2 + i];
    size[i] = a->scale_factor > 0 ? (int64_t)((double)extent * a->scale_factor) : a->size[i];
    if (size[i] < 1 || size[i] > CLV_EXTENT_MAX)
      return clv_fail(err, CLV_INVALID,
                      "%s: scale_factor %g gives an extent of %lld, outside 1..%d", op,
                      a->scale_factor, (long long)size[i], (int)CLV_EXTENT_MAX);
  }
  return replace_image_extents(s, size, ret);
}

static inline clv_resample resample_of(const clv_ref_kernel *k) {
  return clv_resample_of(k->d.op, &k->d.attrs, &k->d.in[0], &k->d.out);
}

static inline clv_code resample_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_resample r = resample_of((const clv_ref_kernel *)base);
  int64_t n_plane_inputs = r.in[0] * r.in[1], n_plane_outputs = r.out[0] * r.out[1];
  (void)err;
  for (int64_t o = 0; o < r.n * r.c * n_plane_outputs; o++) {
    const REAL *x = (const REAL *)a->in[0] + o / n_plane_outputs * n_plane_inputs;
    clv_taps h = clv_taps_of(&r, 0, o % n_plane_outputs / r.out[1]),
             w = clv_taps_of(&r, 1, o % r.out[1]);
    double sum = 0;
    for (int64_t i = h.first; i < h.first + h.n; i++)
      for (int64_t j = w.first; j < w.first + w.n; j++)
        sum += clv_tap_weight(&h, i) * clv_tap_weight(&w, j) * x[i * r.in[1] + j];
    ((REAL *)a->out)[o] = (REAL)sum;
  }
  return CLV_OK;
}

/* Returns the gradient of input (h, w): the weighted sum of dy over the outputs that read this
 * input. */
static inline double sum_reader_gradients(const clv_resample *r, const REAL *dy, int64_t h,
                                          int64_t w) {
  int64_t row_end, column_end, row = clv_first_reading_output(r, 0, h, &row_end);
  double sum = 0;
  for (; row < row_end; row++) {
    clv_taps t = clv_taps_of(r, 0, row);
    double row_weight = clv_tap_weight(&t, h);
    for (int64_t j = clv_first_reading_output(r, 1, w, &column_end);
         row_weight > 0 && j < column_end; j++) {
      clv_taps u = clv_taps_of(r, 1, j);
      sum += row_weight * clv_tap_weight(&u, w) * dy[row * r->out[1] + j];
    }
  }
  return sum;
}

static inline clv_code resample_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_resample r = resample_of((const clv_ref_kernel *)base);
  int64_t n_plane_inputs = r.in[0] * r.in[1], n_plane_outputs = r.out[0] * r.out[1];
  (void)err;
  for (int64_t i = 0; i < r.n * r.c * n_plane_inputs; i++)
    ((REAL *)a->din[0])[i] =
        (REAL)sum_reader_gradients(&r, (const REAL *)a->dout + i / n_plane_inputs * n_plane_outputs,
                                   i % n_plane_inputs / r.in[1], i % r.in[1]);
  return CLV_OK;
}

#define SIZE_ATTRS                                            \
  {.key = CLV_ATTR_SIZE, .low = 0, .high = CLV_EXTENT_MAX}, { \
    .key = CLV_ATTR_SCALE_FACTOR, .low = 0, .high = 1024      \
  }

#endif
