/* SPDX-License-Identifier: Apache-2.0
 *
 * The op permute: dimension i of the output is dimension order[i - 1] of the input; the batch stays
 * first.
 */
#include "kernels/ops/op_int.h"

static clv_code permute_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *order = &s->attrs->order, *in = &s->in[0];
  char order_text[160], input_text[160];
  unsigned seen_dims = 1;
  *ret = *in;
  for (int i = 1; i < in->rank && order->rank == in->rank - 1; i++) {
    int64_t source_dim = order->dim[i - 1];
    if (source_dim < in->rank) seen_dims |= 1u << source_dim;
    if (source_dim < in->rank) ret->dim[i] = in->dim[source_dim];
  }
  if (in->rank > 1 && seen_dims + 1 == 1u << in->rank) return CLV_OK;
  return clv_fail(
      err, CLV_INVALID,
      "permute: %s is not a permutation of the dimensions 1 to %d of %s: name each once",
      clv_shape_format(order, order_text, sizeof order_text), in->rank - 1,
      clv_shape_format(in, input_text, sizeof input_text));
}

/* Copies to[i] = from[input_index(i)], or if is_backward to[input_index(i)] = from[i]. i counts the
 * output's values; input_index(i) is the index in the input of the output's value i. */
static void permute_values(const clv_ref_kernel *k, const REAL *from, REAL *to, bool is_backward) {
  size_t strides[CLV_MAX_RANK];
  clv_permuted_strides(&k->d.in[0], &k->d.attrs.order, strides);
  for (size_t i = 0; i < k->n_out; i++) {
    size_t input_index = clv_permuted_index(&k->d.out, strides, i);
    to[is_backward ? input_index : i] = from[is_backward ? i : input_index];
  }
}

static clv_code permute_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  permute_values((const clv_ref_kernel *)base, a->in[0], a->out, false);
  return CLV_OK;
}

static clv_code permute_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  permute_values((const clv_ref_kernel *)base, a->dout, a->din[0], true);
  return CLV_OK;
}

CLV_OP_ROW(permute) = {
    .name = "permute",
    .doc =
        "the dimensions after the batch in another order: with [2, 1] x[n, i, j] is y[n, j, i] "
        "(torch.permute(x, (0, *order)))",
    .torch_module = "",
    .no_torch_module = "torch.permute is a function",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_ORDER, .is_required = true, .low = 1, .high = CLV_MAX_RANK - 1}},
    .shape = permute_shape,
    .forward = permute_forward,
    .backward_input = permute_backward,
};
