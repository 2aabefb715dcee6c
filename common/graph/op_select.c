/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops along one dimension. Dimension 0 is the batch: its samples never meet.
 */
#include "common/graph/op_int.h"

static clv_code find_axis(const char *op, const clv_op_site *s, int *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  int axis = clv_axis_of(s->attrs, in);
  char text[160];
  if (axis < 0)
    return clv_fail(err, CLV_INVALID, "%s: dim %lld is no dimension of %s", op,
                    (long long)s->attrs->dim, clv_shape_format(in, text, sizeof text));
  if (axis == 0)
    return clv_fail(err, CLV_INVALID, "%s: dim %lld of %s is the batch", op,
                    (long long)s->attrs->dim, clv_shape_format(in, text, sizeof text));
  *ret = axis;
  return CLV_OK;
}

static clv_code mean_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int axis;
  CLV_TRY(find_axis("mean", s, &axis, err));
  clv_shape out = {.rank = s->in[0].rank - 1};
  for (int i = 0; i < out.rank; i++) out.dim[i] = s->in[0].dim[i < axis ? i : i + 1];
  *ret = out;
  return CLV_OK;
}

static clv_code concat_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int axis;
  char a[160], b[160];
  CLV_TRY(find_axis("concat", s, &axis, err));
  clv_shape out = s->in[0];
  for (int i = 1; i < s->n_in; i++) {
    clv_shape like = s->in[i];
    if (like.rank == out.rank) like.dim[axis] = s->in[0].dim[axis];
    if (!clv_shape_equal(&like, &s->in[0]))
      return clv_fail(
          err, CLV_INVALID, "concat along dim %d needs inputs alike in all others, got %s and %s",
          axis, clv_shape_format(&s->in[0], a, sizeof a), clv_shape_format(&s->in[i], b, sizeof b));
    out.dim[axis] += s->in[i].dim[axis]; /* at most 8 extents below 2^31 */
  }
  *ret = out;
  return CLV_OK;
}

static clv_code slice_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int axis;
  int64_t start, stop;
  char text[160];
  CLV_TRY(find_axis("slice", s, &axis, err));
  clv_shape out = s->in[0];
  start = clv_slice_start(s->attrs, out.dim[axis], &stop);
  if (start < 0 || stop > out.dim[axis] || start >= stop)
    return clv_fail(err, CLV_INVALID,
                    "slice %lld..%lld is empty or not within 0..%lld, dim %d of %s",
                    (long long)start, (long long)stop, (long long)out.dim[axis], axis,
                    clv_shape_format(&out, text, sizeof text));
  out.dim[axis] = stop - start;
  *ret = out;
  return CLV_OK;
}

#define DIM(...) \
  { .key = CLV_ATTR_DIM, .low = -CLV_MAX_RANK, .high = CLV_MAX_RANK - 1, __VA_ARGS__ }

static const clv_op_def ops[] = {
    {.op = CLV_OP_MEAN,
     .name = "mean",
     .doc = "y = mean of x over dimension dim, which goes; dim is not 0 (torch.mean)",
     .n_in = 1,
     .attrs = {DIM(.required = true)},
     .shape = mean_shape},
    {.op = CLV_OP_CONCAT,
     .name = "concat",
     .doc = "2 to 8 inputs one behind the other along dimension dim, not 0 (torch.cat)",
     .n_in = 2,
     .max_in = CLV_MAX_IN,
     .attrs = {DIM(.fallback = 1)},
     .shape = concat_shape},
    {.op = CLV_OP_SLICE,
     .name = "slice",
     .doc = "x[:, start:stop] for dim 1: start to stop - 1 along dimension dim, not 0; negative "
            "ones count from the end, without stop it goes to the end (indexing; torch.narrow)",
     .n_in = 1,
     .attrs = {DIM(.required = true),
               {.key = CLV_ATTR_START, .low = -CLV_EXTENT_MAX, .high = CLV_EXTENT_MAX},
               {.key = CLV_ATTR_STOP,
                .fallback = CLV_TO_END,
                .low = -CLV_EXTENT_MAX,
                .high = CLV_EXTENT_MAX}},
     .shape = slice_shape},
};

const clv_op_family clv_family_select = {ops, CLV_COUNT(ops)};
