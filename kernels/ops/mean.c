/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/op_int.h"

static clv_code mean_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int axis;
  CLV_TRY(clv_find_axis("mean", s, &axis, err));
  clv_shape out = {.rank = s->in[0].rank - 1};
  for (int i = 0; i < out.rank; i++) out.dim[i] = s->in[0].dim[i < axis ? i : i + 1];
  *ret = out;
  return CLV_OK;
}

static clv_code axis_mean_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_axis s = clv_axis_extents(&k->d.attrs, &k->d.in[0]);
  const REAL *x = a->in[0];
  REAL *y = a->out;
  (void)err;
  for (size_t o = 0; o < s.outer * s.inner; o++) {
    double sum = 0;
    for (size_t e = 0; e < s.extent; e++)
      sum += x[(o / s.inner * s.extent + e) * s.inner + o % s.inner];
    y[o] = (REAL)(sum / (double)s.extent);
  }
  return CLV_OK;
}

static clv_code axis_mean_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_axis s = clv_axis_extents(&k->d.attrs, &k->d.in[0]);
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  (void)err;
  for (size_t i = 0; i < k->n_in; i++)
    dx[i] = dy[i / s.inner / s.extent * s.inner + i % s.inner] / (REAL)s.extent;
  return CLV_OK;
}

CLV_OP_ROW(mean) = {
    .name = "mean",
    .doc = "y = mean of x over dimension dim, which is removed; dim is not 0 (torch.mean)",
    .torch_module = "",
    .no_torch_module = "torch.mean is a function",
    .n_in = 1,
    .attrs = {DIM_ATTR(.is_required = true)},
    .shape = mean_shape,
    .forward = axis_mean_forward,
    .backward_input = axis_mean_backward,
};
