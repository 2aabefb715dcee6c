/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/axis_int.h"

static clv_code var_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int axis;
  CLV_TRY(clv_find_axis("var", s, &axis, err));
  if (s->in[0].dim[axis] <= s->attrs->correction)
    return clv_fail(
        err, CLV_INVALID, "var: dim %lld has %lld values, not more than correction %lld",
        (long long)s->attrs->dim, (long long)s->in[0].dim[axis], (long long)s->attrs->correction);
  clv_shape out = {.rank = s->in[0].rank - 1};
  for (int i = 0; i < out.rank; i++) out.dim[i] = s->in[0].dim[i < axis ? i : i + 1];
  *ret = out;
  return CLV_OK;
}

/* Input values x[first_index + e * stride], e < n_values, of which one output is the variance. The
 * sum of their squared distances from the mean is divided by `divisor`. */
typedef struct column {
  size_t first_index, stride, n_values;
  double divisor;
} column;

static column column_of(const clv_ref_kernel *k, size_t o) {
  clv_axis s = clv_axis_extents(&k->d.attrs, &k->d.in[0]);
  return (column){o / s.inner * s.extent * s.inner + o % s.inner, s.inner, s.extent,
                  (double)s.extent - (double)k->d.attrs.correction};
}

static double compute_mean(const column *c, const REAL *x) {
  double sum = 0;
  for (size_t e = 0; e < c->n_values; e++) sum += (double)x[c->first_index + e * c->stride];
  return sum / (double)c->n_values;
}

static clv_code var_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0];
  (void)err;
  for (size_t o = 0; o < k->n_out; o++) {
    column c = column_of(k, o);
    double mean = compute_mean(&c, x), square_sum = 0;
    for (size_t e = 0; e < c.n_values; e++) {
      double distance = (double)x[c.first_index + e * c.stride] - mean;
      square_sum += distance * distance;
    }
    ((REAL *)a->out)[o] = (REAL)(square_sum / c.divisor);
  }
  return CLV_OK;
}

static clv_code var_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  (void)err;
  for (size_t o = 0; o < k->n_out; o++) {
    column c = column_of(k, o);
    double mean = compute_mean(&c, x), slope = 2 * (double)dy[o] / c.divisor;
    for (size_t e = 0; e < c.n_values; e++) {
      size_t index = c.first_index + e * c.stride;
      ((REAL *)a->din[0])[index] = (REAL)(slope * ((double)x[index] - mean));
    }
  }
  return CLV_OK;
}

CLV_OP_ROW(var) = {
    .name = "var",
    .doc =
        "y = variance of x over dimension dim, which is removed, the divisor being its extent "
        "less correction; dim is not 0 (torch.var)",
    .torch_module = "",
    .no_torch_module = "torch.var is a function",
    .n_in = 1,
    .attrs = {DIM_ATTR(.is_required = true),
              {.key = CLV_ATTR_CORRECTION, .default_value = 1, .low = 0, .high = CLV_EXTENT_MAX}},
    .shape = var_shape,
    .forward = var_forward,
    .backward_input = var_backward,
    .saved_for_dx = CLV_SAVE_IN0,
};
