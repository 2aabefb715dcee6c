/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, S, ...], W [rows, ...], y = x + W[offset .. offset + S - 1]. With the attribute `bare`, W
 * is stored as in ViT: its shape is [1, rows, ...], and its name is that of the layer.
 */
#include "kernels/ops/pointwise_int.h"

static clv_code positions_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_attrs *a = s->attrs;
  const clv_shape *in = &s->in[0];
  char text[160];
  CLV_TRY(clv_check_packed_shapes("positions", s, 1, err));
  if (!a->packed) CLV_TRY(clv_check_rank("positions", in, 3, "[N, S, F]", "", err));
  int64_t steps = a->packed ? a->packed : in->dim[1];
  if (steps + a->offset > a->rows)
    return clv_fail(err, CLV_INVALID,
                    "positions has %lld rows, but %s needs rows %lld to %lld: let a sequence have "
                    "at most %lld places (max_tokens), or give it more rows",
                    (long long)a->rows, clv_shape_format(in, text, sizeof text),
                    (long long)a->offset, (long long)(steps + a->offset - 1),
                    (long long)CLV_MAX(a->rows - a->offset, 0));
  return clv_shape_of_input(s, ret, err);
}

static int positions_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  int64_t rows = s->attrs->rows, features = s->in[0].dim[s->in[0].rank - 1];
  ret[CLV_SLOT_WEIGHT] =
      (clv_slot){.suffix = "weight",
                 .is_named_as_node = s->attrs->bare,
                 .shape = s->attrs->bare ? CLV_SHAPE(1, rows, features) : CLV_SHAPE(rows, features),
                 .init = CLV_INIT_NORMAL,
                 .bound = s->attrs->init_std};
  return 1;
}

/* Returns the number of values of a sample or, for packed sequences, of the longest sequence that
 * is possible. *ret_n_before: number of values of W before the first value that is added to x. */
static size_t count_sample_values(const clv_ref_kernel *k, size_t *ret_n_before) {
  const clv_shape *in = &k->d.in[0];
  int64_t packed_steps = k->d.attrs.packed, features = in->dim[in->rank - 1];
  *ret_n_before = (size_t)(k->d.attrs.offset * features);
  return (size_t)((packed_steps ? packed_steps : in->dim[1]) * features);
}

/* Adds W to each packed sequence, from the first position of the sequence on. */
static clv_code add_packed(const clv_ref_kernel *k, const clv_kernel_args *a, clv_err *err) {
  const clv_node_desc *d = &k->d;
  const int64_t *lengths = a->in[1];
  size_t row_size = (size_t)d->in[0].dim[1], n_before = (size_t)d->attrs.offset * row_size;
  const REAL *w = (const REAL *)a->param[CLV_SLOT_WEIGHT] + n_before;
  CLV_TRY(clv_check_packed(lengths, d->in[1].dim[0], d->attrs.packed, d->in[0].dim[0], err));
  memmove(a->out, a->in[0], k->n_in * sizeof(REAL));
  REAL *y = a->out;
  for (int64_t n = 0; n < d->in[1].dim[0]; n++)
    for (size_t i = 0; i < (size_t)lengths[n] * row_size; i++) *y++ += w[i];
  return CLV_OK;
}

/* Returns the sum of value j of the gradients of all packed sequences that have a value j. */
static double sum_packed_gradients(const clv_ref_kernel *k, const clv_kernel_args *a, size_t j) {
  const int64_t *lengths = a->in[1];
  const REAL *dy = a->dout;
  size_t row_size = (size_t)k->d.in[0].dim[1];
  double sum = 0;
  for (int64_t n = 0; n < k->d.in[1].dim[0]; dy += (size_t)lengths[n++] * row_size)
    if (j < (size_t)lengths[n] * row_size) sum += dy[j];
  return sum;
}

static clv_code positions_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  if (k->d.attrs.packed) return add_packed(k, a, err);
  size_t n_before, n_values = count_sample_values(k, &n_before);
  const REAL *x = a->in[0], *w = (const REAL *)a->param[CLV_SLOT_WEIGHT] + n_before;
  REAL *y = a->out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) y[i] = x[i] + w[i % n_values];
  return CLV_OK;
}

static clv_code positions_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t n_before, n_values = count_sample_values(k, &n_before);
  const REAL *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  (void)err;
  size_t features = (size_t)k->d.in[0].dim[k->d.in[0].rank - 1];
  if (!a->accumulate) memset(dw, 0, (size_t)k->d.attrs.rows * features * sizeof *dw);
  for (size_t j = 0; j < n_values; j++) {
    double sum = k->d.attrs.packed ? sum_packed_gradients(k, a, j) : 0;
    for (size_t i = j; !k->d.attrs.packed && i < k->n_in; i += n_values) sum += dy[i];
    store_or_add(&dw[n_before + j], sum, true);
  }
  return CLV_OK;
}

CLV_OP_ROW(positions) = {
    .name = "positions",
    .doc =
        "y[n, s] = x[n, s] + W[offset + s], W: [rows, F], x: [N, S, F] (torch.nn.functional."
        "embedding of torch.arange, and a sum); packed: s is counted in each sequence of [T, F]",
    .torch_module = "",
    .no_torch_module = "torch has no such module",
    .n_in = 1,
    .max_in = 2,
    .takes_lengths = true,
    .packing = CLV_PACKS_LENGTHS,
    .attrs = {{.key = CLV_ATTR_ROWS, .is_required = true, .low = 1, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_OFFSET, .low = 0, .high = CLV_EXTENT_MAX},
              INIT_STD_ATTR,
              {.key = CLV_ATTR_BARE, .low = 0, .high = 1},
              PACKED_ATTR},
    .shape = positions_shape,
    .slots = positions_slots,
    .max_params = 1,
    .forward = positions_forward,
    .backward_input = identity_backward,
    .backward_weight = positions_backward_weight,
    .saved_for_dw = CLV_SAVE_IN1,
    .in_place = true,
};
