/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

/* Returns the factor of kept elements; 0 for p = 1, which keeps no element. */
static REAL dropout_scale(const clv_ref_kernel *k) {
  double p = k->d.attrs.p;
  return (REAL)(p < 1 ? 1 / (1 - p) : 0);
}

static clv_code dropout_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  CLV_TRY(clv_check_packed_shapes("dropout", s, 1, err));
  return clv_shape_of_input(s, ret, err);
}

/* Drops some of n elements from index `at` on. `first` is the first element's index in the
 * numbering of the random numbers. Element i is kept if u_i >= p, where u_i is the top 24 bits of
 * word i%4 of Philox block i/4, over 2^24: a function of key and row-major index alone. Packed
 * sequences are numbered as if padded. The mask is a factor, so a NaN stays a NaN, as in PyTorch.
 */
static void drop_values(const clv_ref_kernel *k, const clv_kernel_args *a, size_t at, size_t n,
                        size_t first) {
  const REAL *x = a->in[0];
  REAL *y = a->out, scale = dropout_scale(k);
  uint8_t *mask = a->saved;
  uint32_t word[4] = {0};
  for (size_t j = 0; j < n; j++) {
    size_t i = first + j;
    if (i % 4 == 0 || !j) clv_rng_block(&a->key, (uint32_t)(i / 4), word);
    bool is_kept = (word[i % 4] >> 8) * 0x1p-24 >= k->d.attrs.p;
    y[at + j] = x[at + j] * (is_kept ? scale : 0);
    if (k->has_backward) mask[at + j] = is_kept;
  }
}

/* Applies dropout to packed sequences. Rows that belong to no sequence become 0. */
static clv_code drop_packed(const clv_ref_kernel *k, const clv_kernel_args *a, clv_err *err) {
  const clv_node_desc *d = &k->d;
  const int64_t *lengths = a->in[1];
  size_t row = (size_t)d->in[0].dim[1], at = 0;
  CLV_TRY(clv_check_packed(lengths, d->in[1].dim[0], d->attrs.packed, d->in[0].dim[0], err));
  for (int64_t n = 0; n < d->in[1].dim[0]; n++) {
    size_t values = (size_t)lengths[n] * row;
    drop_values(k, a, at, values, (size_t)(n * d->attrs.packed) * row);
    at += values;
  }
  memset((REAL *)a->out + at, 0, (k->n_in - at) * sizeof(REAL));
  if (k->has_backward) memset((uint8_t *)a->saved + at, 0, k->n_in - at);
  return CLV_OK;
}

static clv_code dropout_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  if (!k->d.training) return identity_forward(base, a, err);
  if (k->d.attrs.packed) return drop_packed(k, a, err);
  drop_values(k, a, 0, k->n_in, 0);
  return CLV_OK;
}

static size_t dropout_saved_bytes(const clv_ref_kernel *k) { return k->d.training ? k->n_in : 0; }

static clv_code dropout_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const uint8_t *mask = a->saved;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0], scale = dropout_scale(k);
  if (!k->d.training) return identity_backward(base, a, err);
  for (size_t i = 0; i < k->n_in; i++) dx[i] = dy[i] * (mask[i] ? scale : 0);
  return CLV_OK;
}

static clv_code check_stream(const clv_node_desc *d, clv_err *err) {
  size_t n = clv_layout_numel(&d->in[0], 1);
  if (d->attrs.packed) n = (size_t)(d->in[1].dim[0] * d->attrs.packed) * (size_t)d->in[0].dim[1];
  if (n / 4 <= UINT32_MAX) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "dropout over %zu values, more than the %zu of a random stream", n,
                  (size_t)UINT32_MAX * 4);
}

CLV_OP_ROW(dropout) = {
    .name = "dropout",
    .doc =
        "training: y = 0 with probability p, else x / (1 - p); evaluation: y = x "
        "(torch.nn.functional.dropout; other random numbers); packed: with lengths, as if the "
        "sequences were padded",
    .torch_module = "Dropout(p=p)",
    .n_in = 1,
    .max_in = 2,
    .takes_lengths = true,
    .packing = CLV_PACKS_LENGTHS,
    .attrs = {{.key = CLV_ATTR_P, .default_value = 0.5, .low = 0, .high = 1}, PACKED_ATTR},
    .shape = dropout_shape,
    .is_identity_in_eval = true,
    .elementwise = true,
    .maps_zero_to_zero = true,
    .check_kernel = check_stream,
    .forward = dropout_forward,
    .backward_input = dropout_backward,
    .in_place = true,
    .saved_bytes = dropout_saved_bytes,
};
