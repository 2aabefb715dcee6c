/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/axis_int.h"

static clv_code cumsum_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  return axis_shape("cumsum", s, ret, err);
}

/* Writes to y the running sums of x along the dimension, from its end on if `sums_from_end`. */
static void write_running_sums(const clv_ref_kernel *k, bool sums_from_end, const REAL *x,
                               REAL *y) {
  clv_axis s = clv_axis_extents(&k->d.attrs, &k->d.in[0]);
  for (size_t o = 0; o < s.outer * s.inner; o++) {
    size_t first_index = o / s.inner * s.extent * s.inner + o % s.inner;
    double sum = 0;
    for (size_t e = 0; e < s.extent; e++) {
      size_t index = first_index + (sums_from_end ? s.extent - 1 - e : e) * s.inner;
      sum += (double)x[index];
      y[index] = (REAL)sum;
    }
  }
}

static clv_code cumsum_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  write_running_sums((const clv_ref_kernel *)base, false, a->in[0], a->out);
  return CLV_OK;
}

static clv_code cumsum_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  write_running_sums((const clv_ref_kernel *)base, true, a->dout, a->din[0]);
  return CLV_OK;
}

CLV_OP_ROW(cumsum) = {
    .name = "cumsum",
    .doc = "y[i] = the sum of x[0..i] along dimension dim, which is not 0 (torch.cumsum)",
    .torch_module = "",
    .no_torch_module = "torch.cumsum is a function",
    .n_in = 1,
    .attrs = {DIM_ATTR(.is_required = true)},
    .shape = cumsum_shape,
    .forward = cumsum_forward,
    .backward_input = cumsum_backward,
};
