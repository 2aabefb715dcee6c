/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/op_int.h"

static clv_code concat_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int axis;
  char a[160], b[160];
  CLV_TRY(clv_find_dim("concat", s, &axis, err));
  clv_shape out = s->in[0];
  for (int i = 1; i < s->n_in; i++) {
    clv_shape expected = s->in[i];
    if (expected.rank == out.rank) expected.dim[axis] = s->in[0].dim[axis];
    if (!clv_shape_equal(&expected, &s->in[0]))
      return clv_fail(
          err, CLV_INVALID, "concat along dim %d needs inputs equal in all others, got %s and %s",
          axis, clv_shape_format(&s->in[0], a, sizeof a), clv_shape_format(&s->in[i], b, sizeof b));
    out.dim[axis] += s->in[i].dim[axis]; /* no overflow: the sum has at most 8 extents below 2^31 */
  }
  *ret = out;
  return CLV_OK;
}

/* Copies the inputs: each of the `outer` rows of the output consists of a row of input 0, a row of
 * input 1, and so on. */
static clv_code concat_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_axis out_axis = clv_axis_extents(&k->d.attrs, &k->d.out);
  size_t offset = 0;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++) {
    size_t values_per_row = clv_axis_extents(&k->d.attrs, &k->d.in[i]).extent * out_axis.inner;
    for (size_t o = 0; o < out_axis.outer; o++)
      memcpy((REAL *)a->out + o * out_axis.extent * out_axis.inner + offset,
             (const REAL *)a->in[i] + o * values_per_row, values_per_row * sizeof(REAL));
    offset += values_per_row;
  }
  return CLV_OK;
}

static clv_code concat_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_axis out_axis = clv_axis_extents(&k->d.attrs, &k->d.out);
  size_t offset = 0;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++) {
    size_t values_per_row = clv_axis_extents(&k->d.attrs, &k->d.in[i]).extent * out_axis.inner;
    for (size_t o = 0; a->din[i] && o < out_axis.outer; o++)
      memcpy((REAL *)a->din[i] + o * values_per_row,
             (const REAL *)a->dout + o * out_axis.extent * out_axis.inner + offset,
             values_per_row * sizeof(REAL));
    offset += values_per_row;
  }
  return CLV_OK;
}

CLV_OP_ROW(concat) = {
    .name = "concat",
    .doc =
        "2 to 8 inputs one after another along dimension dim; along 0 their batches are joined, "
        "and may differ (torch.cat)",
    .torch_module = "",
    .no_torch_module = "torch.cat is a function",
    .n_in = 2,
    .max_in = CLV_MAX_IN,
    .attrs = {DIM_ATTR(.default_value = 1)},
    .packing = CLV_PACKS_POSITIONS,
    .shape = concat_shape,
    .forward = concat_forward,
    .backward_input = concat_backward,
};
