/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/op_int.h"

static clv_code slice_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int axis;
  int64_t start, stop;
  char text[160];
  CLV_TRY(clv_find_axis("slice", s, &axis, err));
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

/* Returns the index at which the slice starts in each outer row of the input.
 * *ret_values_per_row: number of values of the slice in an outer row. */
static size_t get_slice_offset(const clv_ref_kernel *k, const clv_axis *s,
                               size_t *ret_values_per_row) {
  int64_t stop, start = clv_slice_start(&k->d.attrs, (int64_t)s->extent, &stop);
  *ret_values_per_row = (size_t)(stop - start) * s->inner;
  return (size_t)start * s->inner;
}

static clv_code slice_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_axis s = clv_axis_extents(&k->d.attrs, &k->d.in[0]);
  size_t values_per_row, offset = get_slice_offset(k, &s, &values_per_row);
  (void)err;
  for (size_t o = 0; o < s.outer; o++)
    memcpy((REAL *)a->out + o * values_per_row,
           (const REAL *)a->in[0] + o * s.extent * s.inner + offset, values_per_row * sizeof(REAL));
  return CLV_OK;
}

static clv_code slice_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_axis s = clv_axis_extents(&k->d.attrs, &k->d.in[0]);
  size_t values_per_row, offset = get_slice_offset(k, &s, &values_per_row);
  (void)err;
  memset(a->din[0], 0, k->n_in * sizeof(REAL));
  for (size_t o = 0; o < s.outer; o++)
    memcpy((REAL *)a->din[0] + o * s.extent * s.inner + offset,
           (const REAL *)a->dout + o * values_per_row, values_per_row * sizeof(REAL));
  return CLV_OK;
}

CLV_OP_ROW(slice) = {
    .name = "slice",
    .doc =
        "x[:, start:stop] for dim 1: start to stop - 1 along dimension dim, not 0; negative "
        "ones count from the end, without stop to the end (indexing; torch.narrow)",
    .torch_module = "",
    .no_torch_module = "indexing is an expression",
    .n_in = 1,
    .attrs = {DIM_ATTR(.is_required = true),
              {.key = CLV_ATTR_START, .low = -CLV_EXTENT_MAX, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_STOP,
               .default_value = CLV_TO_END,
               .low = -CLV_EXTENT_MAX,
               .high = CLV_EXTENT_MAX}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = slice_shape,
    .forward = slice_forward,
    .backward_input = slice_backward,
};
