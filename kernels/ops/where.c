/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/op_int.h"

static clv_code where_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char condition_text[160], other_text[160];
  for (int i = 1; i < s->n_in; i++)
    if (!clv_shape_equal(&s->in[0], &s->in[i]))
      return clv_fail(err, CLV_INVALID, "where needs three inputs of one shape; got %s and %s",
                      clv_shape_format(&s->in[0], condition_text, sizeof condition_text),
                      clv_shape_format(&s->in[i], other_text, sizeof other_text));
  return clv_shape_of_input(s, ret, err);
}

static clv_code where_forward(clv_kernel *base, const clv_kernel_args *args, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *condition = args->in[0], *a = args->in[1], *b = args->in[2];
  REAL *y = args->out, threshold = (REAL)k->d.attrs.threshold;
  (void)err;
  for (size_t i = 0; i < k->n_out; i++) y[i] = condition[i] > threshold ? a[i] : b[i];
  return CLV_OK;
}

static clv_code where_backward(clv_kernel *base, const clv_kernel_args *args, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *condition = args->in[0], *dy = args->dout;
  REAL threshold = (REAL)k->d.attrs.threshold;
  (void)err;
  for (int j = 0; j < 3; j++) {
    REAL *dx = args->din[j];
    for (size_t i = 0; dx && i < k->n_out; i++)
      dx[i] = j && (condition[i] > threshold) == (j == 1) ? dy[i] : 0;
  }
  return CLV_OK;
}

CLV_OP_ROW(where) = {
    .name = "where",
    .doc =
        "y = a where x > threshold, else b, of the inputs x, a and b; x has no gradient "
        "(torch.where(x > threshold, a, b))",
    .torch_module = "",
    .no_torch_module = "torch.where is a function",
    .n_in = 3,
    .attrs = {{.key = CLV_ATTR_THRESHOLD, .default_value = 0, .low = -FLT_MAX, .high = FLT_MAX}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = where_shape,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .forward = where_forward,
    .backward_input = where_backward,
    .saved_for_dx = CLV_SAVE_IN0,
};
