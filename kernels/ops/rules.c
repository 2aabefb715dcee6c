/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions for the shape rules and loops of several ops.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/ops/ops.h"

clv_code clv_check_rank(const char *op, const clv_shape *in, int rank, const char *layout,
                        const char *hint, clv_err *err) {
  char text[160];
  if (in->rank == rank) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s needs rank %d %s, got %s%s", op, rank, layout,
                  clv_shape_format(in, text, sizeof text), hint);
}

clv_code clv_shape_of_input(const clv_op_site *site, clv_shape *ret, clv_err *err) {
  (void)err;
  *ret = site->in[0];
  return CLV_OK;
}

clv_code clv_window_extents(const char *op, const clv_op_site *site, int64_t ret[2], clv_err *err) {
  const clv_attrs *a = site->attrs;
  char text[160], dilation_text[64] = "";
  int64_t out[2] = {0};
  for (int i = 0; i < site->in[0].rank - 2; i++) {
    /* Extents and attributes are at most 2^31 - 1 each: no overflow in 64 bits. */
    int64_t padded = site->in[0].dim[2 + i] + 2 * a->pad[i], dilation = CLV_MAX(a->dilation[i], 1);
    int64_t window_extent = (a->kernel[i] - 1) * dilation + 1;
    if (dilation > 1)
      snprintf(dilation_text, sizeof dilation_text, ", %lld wide by dilation,",
               (long long)window_extent);
    if (padded < window_extent)
      return clv_fail(err, CLV_INVALID,
                      "%s: kernel %lld x %lld%s does not fit the input %s with pad %lld x %lld", op,
                      (long long)a->kernel[0], (long long)a->kernel[1], dilation_text,
                      clv_shape_format(&site->in[0], text, sizeof text), (long long)a->pad[0],
                      (long long)a->pad[1]);
    out[i] = (padded - window_extent) / a->stride[i] + 1;
  }
  memcpy(ret, out, (size_t)(site->in[0].rank - 2) * sizeof *out);
  return CLV_OK;
}

clv_code clv_check_shape_and_dtype(const char *what, const clv_shape *shape, clv_dtype dtype,
                                   clv_err *err) {
  char text[160];
  if (shape->rank < 0 || shape->rank > CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "%s has rank %d, outside 0..%d", what, shape->rank,
                    (int)CLV_MAX_RANK);
  for (int i = 0; i < shape->rank; i++)
    if (shape->dim[i] < (i ? 0 : 1) || shape->dim[i] > CLV_EXTENT_MAX)
      return clv_fail(err, CLV_INVALID, "%s %s has an extent outside %d..%d", what,
                      clv_shape_format(shape, text, sizeof text), i ? 0 : 1, (int)CLV_EXTENT_MAX);
  size_t bytes;
  if (clv_shape_bytes(shape, dtype, &bytes, err) != CLV_OK || bytes > CLV_VALUE_BYTES_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s %s of %s is larger than the limit of 1 TiB", what,
                    clv_shape_format(shape, text, sizeof text), clv_dtype_name(dtype));
  return CLV_OK;
}

clv_code clv_check_no_empty_dim(const char *op, const clv_shape *in, clv_err *err) {
  char text[160];
  for (int i = 1; i < in->rank; i++)
    if (!in->dim[i])
      return clv_fail(err, CLV_INVALID, "%s: no extent of %s but the batch may be 0", op,
                      clv_shape_format(in, text, sizeof text));
  return CLV_OK;
}

clv_code clv_check_label(const int64_t *labels, int64_t i, int64_t classes, int64_t *ret,
                         clv_err *err) {
  if (labels[i] < 0 || labels[i] >= classes) {
    clv_fail(err, CLV_INVALID, "the label of sample %lld is outside 0..%lld", (long long)i,
             (long long)classes - 1);
    return clv_err_set_offending_value(err, "%lld", (long long)labels[i]);
  }
  *ret = labels[i];
  return CLV_OK;
}

clv_code clv_check_position_label(const int64_t *labels, int64_t i, int64_t n_positions,
                                  int64_t classes, int64_t *ret, clv_err *err) {
  if (n_positions == 1 || (labels[i] >= 0 && labels[i] < classes))
    return clv_check_label(labels, i, classes, ret, err);
  clv_fail(err, CLV_INVALID, "the label of sample %lld, place %lld, is outside 0..%lld",
           (long long)(i / n_positions), (long long)(i % n_positions), (long long)classes - 1);
  return clv_err_set_offending_value(err, "%lld", (long long)labels[i]);
}

clv_code clv_check_length(const int64_t *lengths, int64_t i, int64_t steps, int64_t *ret,
                          clv_err *err) {
  if (lengths[i] < 0 || lengths[i] > steps) {
    clv_fail(err, CLV_INVALID, "the length of sample %lld is outside 0..%lld", (long long)i,
             (long long)steps);
    return clv_err_set_offending_value(err, "%lld", (long long)lengths[i]);
  }
  *ret = lengths[i];
  return CLV_OK;
}

clv_code clv_check_packed(const int64_t *lengths, int64_t n, int64_t steps, int64_t rows,
                          clv_err *err) {
  int64_t length = 0, total = 0;
  for (int64_t i = 0; i < n; i++) {
    CLV_TRY(clv_check_length(lengths, i, steps, &length, err));
    total += length;
    if (total <= rows) continue;
    clv_fail(err, CLV_INVALID, "the lengths up to sample %lld add up to more than %lld rows",
             (long long)i, (long long)rows);
    return clv_err_set_offending_value(err, "%lld", (long long)length);
  }
  return CLV_OK;
}

clv_code clv_check_packed_shapes(const char *op, const clv_op_site *s, int lengths_input,
                                 clv_err *err) {
  char text[160];
  if (!s->attrs->packed && s->n_in > lengths_input)
    return clv_fail(err, CLV_INVALID, "%s has lengths, but no packed sequences", op);
  if (!s->attrs->packed) return CLV_OK;
  if (s->n_in <= lengths_input)
    return clv_fail(err, CLV_INVALID, "%s of packed sequences needs their lengths", op);
  CLV_TRY(clv_check_rank(op, &s->in[0], 2, "[T, F]", "; its sequences are packed", err));
  if (s->in[lengths_input].rank == 1) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: lengths are [N], got %s", op,
                  clv_shape_format(&s->in[lengths_input], text, sizeof text));
}

clv_code clv_find_dim(const char *op, const clv_op_site *s, int *ret, clv_err *err) {
  char text[160];
  *ret = clv_axis_index(s->attrs, &s->in[0]);
  if (*ret >= 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: dim %lld is not a dimension of %s", op,
                  (long long)s->attrs->dim, clv_shape_format(&s->in[0], text, sizeof text));
}

clv_code clv_find_axis(const char *op, const clv_op_site *s, int *ret, clv_err *err) {
  char text[160];
  CLV_TRY(clv_find_dim(op, s, ret, err));
  if (*ret > 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: dim %lld of %s is the batch", op, (long long)s->attrs->dim,
                  clv_shape_format(&s->in[0], text, sizeof text));
}

clv_shape clv_trailing_dims(const clv_op_site *site) {
  const clv_shape *in = &site->in[0];
  return site->attrs->shape.rank ? site->attrs->shape : CLV_SHAPE(in->dim[in->rank - 1]);
}

clv_code clv_check_trailing_dims(const char *op, const clv_op_site *site, clv_err *err) {
  const clv_shape *in = &site->in[0];
  char shape_text[160], input_text[160];
  if (in->rank < 2)
    return clv_fail(err, CLV_INVALID, "%s needs rank 2 or more ([N, ...]), got %s", op,
                    clv_shape_format(in, input_text, sizeof input_text));
  clv_shape expected = clv_trailing_dims(site);
  bool is_possible = expected.rank < in->rank;
  for (int i = 0; is_possible && i < expected.rank; i++)
    is_possible = expected.dim[i] == in->dim[in->rank - expected.rank + i];
  if (is_possible) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s over %s needs an input [N, ...] that ends in these extents, got %s", op,
                  clv_shape_format(&expected, shape_text, sizeof shape_text),
                  clv_shape_format(in, input_text, sizeof input_text));
}

/* Returns the attribute at `offset` in clv_attrs; 0 if offset is 0. */
static double read_formula_number(const clv_attrs *attrs, size_t offset) {
  double number;
  if (!offset) return 0;
  memcpy(&number, (const char *)attrs + offset, sizeof number);
  return fabs(number) > 3.4e38 ? copysign((double)INFINITY, number) : number;
}

clv_formula_numbers clv_op_formula_numbers_of_row(const clv_op_def *def, const clv_attrs *attrs) {
  return (clv_formula_numbers){read_formula_number(attrs, def->formula_attr_offsets[0]),
                               read_formula_number(attrs, def->formula_attr_offsets[1])};
}
