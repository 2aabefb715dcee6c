/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, ...] i64, W [rows, out], y [N, ..., out]; with a column, x [N, ..., columns]. With minus 0
 * and no column, each number is subtracted from itself, so every position reads row 0. The row
 * padding_idx is initialised with 0 and gets no gradient, as in torch.nn.Embedding.
 */
#include "kernels/ops/op_int.h"

static clv_code check_columns(const clv_op_site *s, clv_err *err) {
  const clv_shape *in = &s->in[0];
  int64_t column = s->attrs->column, minus_column = s->attrs->minus;
  char text[160];
  if (column < 0 && minus_column <= 0) return CLV_OK;
  if (column < 0)
    return clv_fail(
        err, CLV_INVALID,
        "embedding has minus: %lld, but no column to subtract it from: give column, too",
        (long long)minus_column);
  if (in->rank < 2 || CLV_MAX(column, minus_column) >= in->dim[in->rank - 1])
    return clv_fail(err, CLV_INVALID, "embedding reads column %lld of the last dimension, got %s",
                    (long long)CLV_MAX(column, minus_column),
                    clv_shape_format(in, text, sizeof text));
  return CLV_OK;
}

static clv_code embedding_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_shape *in = &s->in[0];
  char text[160];
  if (!in->rank) return clv_fail(err, CLV_INVALID, "embedding needs a batch, got a scalar");
  if (s->attrs->padding_idx >= s->attrs->rows)
    return clv_fail(err, CLV_INVALID, "embedding has padding_idx: %lld, outside its rows 0..%lld",
                    (long long)s->attrs->padding_idx, (long long)s->attrs->rows - 1);
  CLV_TRY(check_columns(s, err));
  *ret = *in;
  if (s->attrs->column >= 0) ret->rank--;
  if (ret->rank >= CLV_MAX_RANK)
    return clv_fail(err, CLV_INVALID,
                    "embedding adds a dimension to %s, which already has the most, %d",
                    clv_shape_format(in, text, sizeof text), CLV_MAX_RANK);
  ret->dim[ret->rank++] = s->attrs->out;
  return CLV_OK;
}

static int embedding_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight",
                                    .shape = CLV_SHAPE(s->attrs->rows, s->attrs->out),
                                    .init = CLV_INIT_NORMAL,
                                    .bound = s->attrs->init_std,
                                    .zero_row = s->attrs->padding_idx + 1};
  return 1;
}

static clv_code embedding_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *w = a->param[CLV_SLOT_WEIGHT];
  size_t row_size = (size_t)k->d.attrs.out;
  clv_row_numbers l = clv_row_numbers_of(&k->d);
  CLV_TRY(clv_check_rows(&l, a->in[0], err));
  for (size_t i = 0; i < l.n; i++)
    memcpy((REAL *)a->out + i * row_size, w + (size_t)clv_row_number_at(&l, a->in[0], i) * row_size,
           row_size * sizeof *w);
  return CLV_OK;
}

/* Returns the sum of value o of dy over the positions >= i that have the row number of position
 * i. */
static double sum_row_gradient(const clv_row_numbers *l, const clv_kernel_args *a, size_t i,
                               size_t row_size, size_t o) {
  const REAL *dy = a->dout;
  int64_t row = clv_row_number_at(l, a->in[0], i);
  double sum = 0;
  for (size_t n = i; n < l->n; n++)
    if (clv_row_number_at(l, a->in[0], n) == row) sum += dy[n * row_size + o];
  return sum;
}

/* Computes dW: row r is the sum of dy over the positions with row number r, computed at the first
 * of these positions. The row padding_idx gets no gradient. */
static clv_code embedding_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  size_t row_size = (size_t)k->d.attrs.out;
  clv_row_numbers l = clv_row_numbers_of(&k->d);
  CLV_TRY(clv_check_rows(&l, a->in[0], err));
  if (!a->accumulate) memset(dw, 0, (size_t)k->d.attrs.rows * row_size * sizeof *dw);
  for (size_t i = 0; i < l.n; i++) {
    int64_t row = clv_row_number_at(&l, a->in[0], i);
    size_t first_position = 0;
    if (row == l.padding) continue;
    while (clv_row_number_at(&l, a->in[0], first_position) != row) first_position++;
    for (size_t o = 0; first_position == i && o < row_size; o++)
      store_or_add(&dw[(size_t)row * row_size + o], sum_row_gradient(&l, a, i, row_size, o), true);
  }
  return CLV_OK;
}

CLV_OP_ROW(embedding) = {
    .name = "embedding",
    .doc =
        "y = W[x], x: i64 row numbers [N, ...], W: [rows, out], y: [N, ..., out]; with column: "
        "y = W[x[..., column] - x[..., minus]], with minus: 0 alone y = W[0]; the row padding_idx "
        "gets no gradient "
        "(torch.nn.functional.embedding)",
    .torch_module =
        "Embedding(rows=num_embeddings, out=embedding_dim, "
        "padding_idx=padding_idx)",
    .torch_needs = "max_norm=None, scale_grad_by_freq=False, sparse=False",
    .n_in = 1,
    .attrs =
        {{.key = CLV_ATTR_ROWS, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX},
         OUT_ATTR,
         INIT_STD_ATTR,
         {.key = CLV_ATTR_COLUMN, .default_value = -1, .low = -1, .high = CLV_EXTENT_MAX},
         {.key = CLV_ATTR_MINUS, .default_value = -1, .low = -1, .high = CLV_EXTENT_MAX},
         {.key = CLV_ATTR_PADDING_IDX, .default_value = -1, .low = -1, .high = CLV_EXTENT_MAX}},
    .packing = CLV_PACKS_POSITIONS,
    .shape = embedding_shape,
    .slots = embedding_slots,
    .max_params = 1,
    .takes_row_numbers = true,
    .forward = embedding_forward,
    .backward_weight = embedding_backward_weight,
    .saved_for_dw = CLV_SAVE_IN0,
};
