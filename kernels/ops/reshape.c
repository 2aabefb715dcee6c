/* SPDX-License-Identifier: Apache-2.0
 *
 * The op reshape changes the shape only: no arithmetic, and no copy if the input is row-major.
 */
#include "kernels/ops/pointwise_int.h"

static clv_code fail_mismatch(const clv_shape *expected, const clv_shape *in,
                              int64_t values_per_sample, clv_err *err) {
  char shape_text[160], input_text[160];
  return clv_fail(
      err, CLV_INVALID, "reshape to %s per sample does not fit the %lld values per sample of %s",
      clv_shape_format(expected, shape_text, sizeof shape_text), (long long)values_per_sample,
      clv_shape_format(in, input_text, sizeof input_text));
}

static clv_code reshape_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *expected = &s->attrs->shape, *in = &s->in[0];
  int64_t values_per_sample = 1, known_dims_product = 1;
  int inferred_dim = -1;
  if (in->rank < 1) return clv_fail(err, CLV_INVALID, "reshape needs a batch, got a scalar");
  if (expected->rank < 1 || expected->rank >= CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "reshape needs 1 to %d extents per sample, got %d",
                    CLV_MAX_RANK - 1, expected->rank);
  for (int i = 1; i < in->rank; i++) values_per_sample *= in->dim[i];
  for (int i = 0; i < expected->rank; i++) {
    if (expected->dim[i] == -1 && inferred_dim < 0)
      inferred_dim = i;
    else if (expected->dim[i] < 0 ||
             __builtin_mul_overflow(known_dims_product, expected->dim[i], &known_dims_product))
      return fail_mismatch(expected, in, values_per_sample, err);
  }
  bool is_possible = inferred_dim < 0
                         ? known_dims_product == values_per_sample
                         : known_dims_product && values_per_sample % known_dims_product == 0;
  if (!is_possible) return fail_mismatch(expected, in, values_per_sample, err);
  clv_shape out = {.rank = expected->rank + 1, .dim = {in->dim[0]}};
  for (int i = 0; i < expected->rank; i++)
    out.dim[i + 1] = i == inferred_dim ? values_per_sample / known_dims_product : expected->dim[i];
  *ret = out;
  return CLV_OK;
}

CLV_OP_ROW(reshape) = {
    .name = "reshape",
    .doc = "[N, ...] -> [N, shape...], one extent may be -1 (torch.reshape)",
    .torch_module = "Unflatten(shape=unflattened_size)",
    .torch_needs = "dim=1",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_SHAPE, .is_required = true, .low = -1, .high = CLV_EXTENT_MAX}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = reshape_shape,
    .is_alias = true,
    .forward = identity_forward,
    .backward_input = identity_backward,
    .in_place = true,
};
