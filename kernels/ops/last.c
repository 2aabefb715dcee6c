/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, S, F], lengths [N], y [N, F]: copies the last valid step of each sample.
 */
#include "kernels/ops/op_int.h"

static clv_code last_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = s->in;
  char a[160], b[160];
  if (s->attrs->packed) {
    CLV_TRY(clv_check_packed_shapes("last", s, 1, err));
    *ret = CLV_SHAPE(in[1].dim[0], in[0].dim[1]);
    return CLV_OK;
  }
  if (s->attrs->first)
    return clv_fail(err, CLV_INVALID,
                    "last has `first` only for packed sequences: use slice for "
                    "others");
  CLV_TRY(clv_check_rank("last", &in[0], 3, "[N, S, F]", "", err));
  if (in[1].rank != 1 || in[1].dim[0] != in[0].dim[0])
    return clv_fail(err, CLV_INVALID, "last needs a length for each sample of %s, got %s",
                    clv_shape_format(&in[0], a, sizeof a), clv_shape_format(&in[1], b, sizeof b));
  *ret = CLV_SHAPE(in[0].dim[0], in[0].dim[2]);
  return CLV_OK;
}

/* Writes to *ret the index in x at which the last step of sample n starts, or its first step if the
 * attribute `first` is set; -1 if the sample has length 0. */
static clv_code find_step(const clv_ref_kernel *k, const clv_kernel_args *a, int64_t n,
                          int64_t *ret, clv_err *err) {
  const clv_shape *in = &k->d.in[0];
  int64_t packed_steps = k->d.attrs.packed, steps = packed_steps ? packed_steps : in->dim[1],
          length;
  if (packed_steps) CLV_TRY(clv_check_packed(a->in[1], n + 1, packed_steps, in->dim[0], err));
  CLV_TRY(clv_check_length(a->in[1], n, steps, &length, err));
  int64_t first_row = packed_steps ? clv_packed_rows_before(a->in[1], n) : n * steps;
  int64_t index = k->d.attrs.first ? first_row : first_row + length - 1;
  *ret = length ? index * in->dim[in->rank - 1] : -1;
  return CLV_OK;
}

static clv_code last_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t features = (size_t)k->d.out.dim[1];
  REAL *y = a->out;
  int64_t index;
  memset(y, 0, k->n_out * sizeof *y);
  for (int64_t n = 0; n < k->d.out.dim[0]; n++, y += features) {
    CLV_TRY(find_step(k, a, n, &index, err));
    if (index >= 0) memcpy(y, (const REAL *)a->in[0] + index, features * sizeof *y);
  }
  return CLV_OK;
}

static clv_code last_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t features = (size_t)k->d.out.dim[1];
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  int64_t index;
  memset(dx, 0, k->n_in * sizeof *dx);
  for (int64_t n = 0; n < k->d.out.dim[0]; n++, dy += features) {
    CLV_TRY(find_step(k, a, n, &index, err));
    if (index >= 0) memcpy(dx + index, dy, features * sizeof *dx);
  }
  return CLV_OK;
}

CLV_OP_ROW(last) = {
    .name = "last",
    .doc =
        "y[n] = x[n, length n - 1], 0 where the length is 0, x: [N, S, F], i64 lengths: [N] "
        "(torch.Tensor.gather); packed: of each sequence of [T, F], or, with first, its first one",
    .torch_module = "",
    .no_torch_module = "torch has no such module",
    .n_in = 2,
    .max_in = 2,
    .takes_lengths = true,
    .packing = CLV_PACKS_SEQUENCES,
    .attrs = {PACKED_ATTR, {.key = CLV_ATTR_FIRST, .low = 0, .high = 1}},
    .shape = last_shape,
    .forward = last_forward,
    .backward_input = last_backward,
    .saved_for_dx = CLV_SAVE_IN1,
};
