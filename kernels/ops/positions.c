/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, S, ...], W [rows, ...], y = x + W[offset .. offset + S - 1]. `bare` is how ViT stores it:
 * W [1, rows, ...], called as the layer.
 */
#include "kernels/ops/pointwise_int.h"

static clv_code positions_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_attrs *a = s->attrs;
  const clv_shape *in = &s->in[0];
  char text[160];
  CLV_TRY(clv_need_rank("positions", in, 3, "[N, S, F]", "", err));
  if (in->dim[1] + a->offset > a->rows)
    return clv_fail(err, CLV_INVALID,
                    "positions has %lld rows, and %s needs rows %lld to %lld: let a sequence have "
                    "at most %lld places (max_tokens), or give it more rows",
                    (long long)a->rows, clv_shape_format(in, text, sizeof text),
                    (long long)a->offset, (long long)(in->dim[1] + a->offset - 1),
                    (long long)CLV_MAX(a->rows - a->offset, 0));
  return clv_same_shape(s, ret, err);
}

static int positions_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  int64_t rows = s->attrs->rows, features = s->in[0].dim[2];
  ret[CLV_SLOT_WEIGHT] =
      (clv_slot){.suffix = "weight",
                 .bare = s->attrs->bare,
                 .shape = s->attrs->bare ? CLV_SHAPE(1, rows, features) : CLV_SHAPE(rows, features),
                 .init = CLV_INIT_NORMAL,
                 .bound = s->attrs->init_std};
  return 1;
}

/* Values of a sample, and those of W before the first that is added. */
static size_t extent_of(const clv_ref_kernel *k, size_t *ret_before) {
  const int64_t *dim = k->d.in[0].dim;
  *ret_before = (size_t)(k->d.attrs.offset * dim[2]);
  return (size_t)(dim[1] * dim[2]);
}

static clv_code positions_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t before, extent = extent_of(k, &before);
  const REAL *x = a->in[0], *w = (const REAL *)a->param[CLV_SLOT_WEIGHT] + before;
  REAL *y = a->out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] + w[i % extent];
  return CLV_OK;
}

static clv_code positions_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t before, extent = extent_of(k, &before);
  const REAL *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  (void)err;
  if (!a->accumulate) memset(dw, 0, (size_t)(k->d.attrs.rows * k->d.in[0].dim[2]) * sizeof *dw);
  for (size_t j = 0; j < extent; j++) {
    double sum = 0;
    for (size_t i = j; i < k->n_in; i += extent) sum += dy[i];
    put(&dw[before + j], sum, true);
  }
  return CLV_OK;
}

CLV_OP_ROW(positions) = {
    .name = "positions",
    .doc =
        "y[n, s] = x[n, s] + W[offset + s], W: [rows, F], x: [N, S, F] (torch.nn.functional."
        "embedding of torch.arange, and a sum)",
    .torch_module = "",
    .no_torch_module = "torch has no such module",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_ROWS, .required = true, .low = 1, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_OFFSET, .low = 0, .high = CLV_EXTENT_MAX},
              INIT_STD_ATTR,
              {.key = CLV_ATTR_BARE, .low = 0, .high = 1}},
    .shape = positions_shape,
    .slots = positions_slots,
    .most_params = 1,
    .forward = positions_forward,
    .backward_input = pass_backward,
    .backward_weight = positions_backward_weight,
    .in_place = true,
};
