/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>

#include "kernels/ops/op_int.h"

static clv_code prelu_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  int64_t n = s->attrs->num_parameters, channels = in->rank > 1 ? in->dim[1] : 1;
  if (n != 1 && n != channels)
    return clv_fail(err, CLV_INVALID,
                    "prelu: num_parameters %lld is neither 1 nor the channels of %s", (long long)n,
                    clv_shape_format(in, text, sizeof text));
  return clv_shape_of_input(s, ret, err);
}

static int prelu_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight",
                                    .shape = CLV_SHAPE(s->attrs->num_parameters),
                                    .init = CLV_INIT_NUMBER,
                                    .bound = s->attrs->init};
  return 1;
}

/* Returns how many adjacent values are multiplied by the same weight. */
static size_t values_per_weight(const clv_ref_kernel *k) {
  size_t sample_size = k->n_in / (size_t)k->d.in[0].dim[0];
  return k->d.attrs.num_parameters == 1 ? sample_size
                                        : sample_size / (size_t)k->d.attrs.num_parameters;
}

static clv_code prelu_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *w = a->param[CLV_SLOT_WEIGHT];
  REAL *y = a->out;
  size_t run_length = values_per_weight(k), n = (size_t)k->d.attrs.num_parameters;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] > 0 ? x[i] : w[i / run_length % n] * x[i];
  return CLV_OK;
}

static clv_code prelu_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *w = a->param[CLV_SLOT_WEIGHT], *dy = a->dout;
  REAL *dx = a->din[0];
  size_t run_length = values_per_weight(k), n = (size_t)k->d.attrs.num_parameters;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = x[i] > 0 ? dy[i] : w[i / run_length % n] * dy[i];
  return CLV_OK;
}

static clv_code prelu_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  size_t run_length = values_per_weight(k), n = (size_t)k->d.attrs.num_parameters;
  (void)err;
  for (size_t c = 0; c < n; c++) {
    double sum = 0;
    for (size_t r = c; r < k->n_in / run_length; r += n)
      for (size_t i = r * run_length; i < (r + 1) * run_length; i++)
        sum += x[i] > 0 ? 0 : (double)x[i] * dy[i];
    store_or_add((REAL *)a->dparam[CLV_SLOT_WEIGHT] + c, sum, a->accumulate);
  }
  return CLV_OK;
}

CLV_OP_ROW(prelu) = {
    .name = "prelu",
    .doc =
        "y = x where x > 0, else weight x, with one weight or one for each channel, x: [N, C, ...] "
        "(torch.nn.functional.prelu)",
    .torch_module = "PReLU(num_parameters=num_parameters)",
    .n_in = 1,
    .attrs =
        {{.key = CLV_ATTR_NUM_PARAMETERS, .default_value = 1, .low = 1, .high = CLV_EXTENT_MAX},
         {.key = CLV_ATTR_INIT, .default_value = 0.25, .low = -FLT_MAX, .high = FLT_MAX}},
    .shape = prelu_shape,
    .slots = prelu_slots,
    .max_params = 1,
    .forward = prelu_forward,
    .backward_input = prelu_backward_input,
    .backward_weight = prelu_backward_weight,
    .saved_for_dx = CLV_SAVE_IN0,
    .saved_for_dw = CLV_SAVE_IN0,
};
