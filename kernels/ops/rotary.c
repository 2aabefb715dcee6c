/* SPDX-License-Identifier: Apache-2.0
 *
 * Su et al., 2021, in the form of Llama: the two halves of a head are the two coordinates. At step
 * t values d and d + width/2 are rotated by t / base^(2 d / width), backward by as much back.
 */
#include "kernels/ops/op_int.h"

static clv_code rotary_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int64_t heads = s->attrs->heads;
  CLV_TRY(clv_need_rank("rotary", &s->in[0], 3, "[N, T, F]", "", err));
  if (s->in[0].dim[2] % (2 * heads))
    return clv_fail(err, CLV_INVALID, "rotary: %lld values are no %lld heads of an even width",
                    (long long)s->in[0].dim[2], (long long)heads);
  return clv_same_shape(s, ret, err);
}

static void rotate(const clv_ref_kernel *k, const REAL *x, REAL *y, double sign) {
  int64_t steps = k->d.in[0].dim[1], heads = k->d.attrs.heads, width = k->d.in[0].dim[2] / heads;
  for (size_t i = 0; i < k->n_in; i++) {
    int64_t d = (int64_t)i % width, half = width / 2;
    int64_t t = (int64_t)i / (width * heads) % steps;
    double angle = (double)t * pow(k->d.attrs.base, -2.0 * (double)(d % half) / (double)width);
    double other = d < half ? -(double)x[i + (size_t)half] : (double)x[i - (size_t)half];
    y[i] = (REAL)(cos(angle) * x[i] + sign * sin(angle) * other);
  }
}

static clv_code rotary_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  rotate((const clv_ref_kernel *)base, a->in[0], a->out, 1);
  return CLV_OK;
}

static clv_code rotary_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  rotate((const clv_ref_kernel *)base, a->dout, a->din[0], -1);
  return CLV_OK;
}

CLV_OP_ROW(rotary) = {
    .name = "rotary",
    .doc =
        "rotary positions: in each head of [N, T, heads width] values d and d + width/2 of step t "
        "are rotated by t / base^(2 d / width) (no function of torch; transformers' "
        "apply_rotary_pos_emb)",
    .torch_module = "",
    .no_torch_module = "apply_rotary_pos_emb is a function",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_HEADS, .required = true, .low = 1, .high = 65536},
              {.key = CLV_ATTR_BASE, .fallback = 10000, .low = 1, .high = 1e12}},
    .shape = rotary_shape,
    .forward = rotary_forward,
    .backward_input = rotary_backward,
};
