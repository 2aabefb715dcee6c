/* SPDX-License-Identifier: Apache-2.0
 *
 * x [rows, F], W [out, F], y [rows, out]; rows: product of N and the dimensions between N and F.
 */
#include "kernels/ops/bias_int.h"

static clv_code linear_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (in->rank < 2) /* the first extent is the batch, so an input of rank 1 has no features */
    return clv_fail(err, CLV_INVALID, "linear needs rank 2 or more ([N, ..., F]), got %s",
                    clv_shape_format(in, text, sizeof text));
  *ret = *in;
  ret->dim[in->rank - 1] = s->attrs->out;
  return CLV_OK;
}

/* Returns a slot with the initialisation of the weight or of the bias. The bound of uniform values
 * is 1 / sqrt(features), also if the weight is stored transposed. */
static clv_slot choose_init(const clv_op_site *s, int64_t features, bool is_bias) {
  const clv_attrs *a = s->attrs;
  if (a->init_zero || (is_bias && a->init_std > 0)) return (clv_slot){.init = CLV_INIT_ZERO};
  if (a->init_std > 0) return (clv_slot){.init = CLV_INIT_NORMAL, .bound = a->init_std};
  if (a->transposed && features)
    return (clv_slot){.init = CLV_INIT_UNIFORM, .bound = 1 / sqrt((double)features)};
  return (clv_slot){.init = CLV_INIT_FAN_IN};
}

static int linear_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  int64_t features = s->in[0].dim[s->in[0].rank - 1], out = s->attrs->out;
  ret[CLV_SLOT_WEIGHT] = choose_init(s, features, false);
  ret[CLV_SLOT_WEIGHT].suffix = "weight";
  ret[CLV_SLOT_WEIGHT].shape =
      s->attrs->transposed ? CLV_SHAPE(features, out) : CLV_SHAPE(out, features);
  ret[CLV_SLOT_BIAS] = choose_init(s, features, true);
  ret[CLV_SLOT_BIAS].suffix = "bias";
  ret[CLV_SLOT_BIAS].shape = CLV_SHAPE(out);
  return s->attrs->bias ? 2 : 1;
}

static int64_t count_linear_inputs(const clv_op_site *s) { return s->in[0].dim[s->in[0].rank - 1]; }

/* Returns the number of rows of input 0, and in *ret_features the number of values of a row. */
static int64_t count_rows(const clv_ref_kernel *k, int64_t *ret_features) {
  *ret_features = k->d.in[0].dim[k->d.in[0].rank - 1];
  return (int64_t)k->n_in / *ret_features;
}

/* Returns the index in W of the weight with which feature f is added to output o. */
static size_t weight_index(const clv_ref_kernel *k, int64_t features, int64_t o, int64_t f) {
  return (size_t)(k->d.attrs.transposed ? f * k->d.attrs.out + o : o * features + f);
}

static double read_weight(const clv_ref_kernel *k, const void *w, size_t index) {
  return k->d.bf16_weight ? (double)clv_bf16_value(((const uint16_t *)w)[index])
                          : (double)((const REAL *)w)[index];
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *b = a->param[CLV_SLOT_BIAS];
  const void *w = a->param[CLV_SLOT_WEIGHT];
  REAL *y = a->out;
  int64_t features, n_rows = count_rows(k, &features), out = k->d.attrs.out;
  (void)err;
  for (int64_t n = 0; n < n_rows; n++)
    for (int64_t o = 0; o < out; o++) {
      double sum = k->d.attrs.bias ? b[o] : 0;
      for (int64_t f = 0; f < features; f++)
        sum += (double)x[n * features + f] * read_weight(k, w, weight_index(k, features, o, f));
      y[n * out + o] = (REAL)sum;
    }
  return CLV_OK;
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *dy = a->dout;
  const void *w = a->param[CLV_SLOT_WEIGHT];
  REAL *dx = a->din[0];
  int64_t features, n_rows = count_rows(k, &features), out = k->d.attrs.out;
  (void)err;
  for (int64_t n = 0; n < n_rows; n++)
    for (int64_t f = 0; f < features; f++) {
      double sum = 0;
      for (int64_t o = 0; o < out; o++)
        sum += (double)dy[n * out + o] * read_weight(k, w, weight_index(k, features, o, f));
      dx[n * features + f] = (REAL)sum;
    }
  return CLV_OK;
}

static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  int64_t features, n_rows = count_rows(k, &features), out = k->d.attrs.out;
  (void)err;
  for (int64_t o = 0; o < out; o++)
    for (int64_t f = 0; f < features; f++) {
      double sum = 0;
      for (int64_t n = 0; n < n_rows; n++) sum += (double)dy[n * out + o] * x[n * features + f];
      store_or_add(&dw[weight_index(k, features, o, f)], sum, a->accumulate);
    }
  if (k->d.attrs.bias)
    compute_bias_gradient(dy, n_rows, out, 1, a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}

CLV_OP_ROW(linear) = {
    .name = "linear",
    .doc =
        "y = x W^T + b, x: [N, ..., F], W: [out, F], or [F, out] if transposed "
        "(torch.nn.functional.linear)",
    .torch_module = "Linear(out=out_features, bias=bias)",
    .n_in = 1,
    .mixing = CLV_MIXES_LAST,
    .count_inputs_per_output = count_linear_inputs,
    .attrs = {OUT_ATTR,
              BIAS_ATTR,
              INIT_ZERO_ATTR,
              INIT_STD_ATTR,
              {.key = CLV_ATTR_TRANSPOSED, .low = 0, .high = 1}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = linear_shape,
    .slots = linear_slots,
    .max_params = 2,
    .forward = linear_forward,
    .backward_input = linear_backward_input,
    .backward_weight = linear_backward_weight,
    .saved_for_dw = CLV_SAVE_IN0,
};
