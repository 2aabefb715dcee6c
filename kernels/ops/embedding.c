/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, ...] i64, W [rows, out], y [N, ..., out].
 */
#include "kernels/ops/op_int.h"

static clv_code embedding_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (!in->rank) return clv_fail(err, CLV_INVALID, "embedding needs a batch, got a scalar");
  if (in->rank >= CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID, "embedding adds a dimension to %s, which has the most, %d",
                    clv_shape_format(in, text, sizeof text), CLV_MAX_RANK);
  *ret = *in;
  ret->dim[ret->rank++] = s->attrs->out;
  return CLV_OK;
}

static int embedding_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight",
                                    .shape = CLV_SHAPE(s->attrs->rows, s->attrs->out),
                                    .init = CLV_INIT_NORMAL};
  return 1;
}

static clv_code embedding_check(const clv_ref_kernel *k, const clv_kernel_args *a, clv_err *err) {
  return clv_check_rows(a->in[0], k->n_in, k->n_in / (size_t)k->d.in[0].dim[0], k->d.attrs.rows,
                        err);
}

static clv_code embedding_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const int64_t *row = a->in[0];
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  size_t out = (size_t)k->d.attrs.out;
  CLV_TRY(embedding_check(k, a, err));
  for (size_t i = 0; i < k->n_in; i++)
    memcpy((REAL *)a->out + i * out, w + (size_t)row[i] * out, out * sizeof *w);
  return CLV_OK;
}

/* dW[r] = sum of dy over the places that name row r, each sum taken at the first of them. */
static clv_code embedding_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const int64_t *row = a->in[0];
  const REAL *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  size_t out = (size_t)k->d.attrs.out;
  CLV_TRY(embedding_check(k, a, err));
  if (!a->accumulate) memset(dw, 0, (size_t)k->d.attrs.rows * out * sizeof *dw);
  for (size_t i = 0; i < k->n_in; i++) {
    size_t first = 0;
    while (row[first] != row[i]) first++;
    for (size_t o = 0; first == i && o < out; o++) {
      double sum = 0;
      for (size_t n = i; n < k->n_in; n++)
        if (row[n] == row[i]) sum += dy[n * out + o];
      put(&dw[(size_t)row[i] * out + o], sum, true);
    }
  }
  return CLV_OK;
}

CLV_OP_ROW(embedding) = {
    .name = "embedding",
    .doc =
        "y = W[x], x: i64 row numbers [N, ...], W: [rows, out], y: [N, ..., out] "
        "(torch.nn.functional.embedding)",
    .torch_module = "Embedding(rows=num_embeddings, out=embedding_dim)",
    .torch_needs = "padding_idx=None, max_norm=None, scale_grad_by_freq=False, sparse=False",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_ROWS, .required = true, .low = 1, .high = CLV_EXTENT_MAX}, OUT_ATTR},
    .shape = embedding_shape,
    .slots = embedding_slots,
    .most_params = 1,
    .rows = true,
    .forward = embedding_forward,
    .backward_weight = embedding_backward_weight,
    .saves_dw = CLV_SAVE_IN0,
};
