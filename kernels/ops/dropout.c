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

/* Applies dropout to n elements from index `start` on. Their random numbers are first_random_index,
 * first_random_index + 1, and so on: random number i is u_i, the top 24 bits of word i%4 of Philox
 * block i/4, divided by 2^24. An element is kept if u_i >= p. i is the row-major index of the
 * element, in packed sequences that of the padded input. A dropped element is multiplied by 0, so a
 * NaN stays a NaN, as in PyTorch. */
static void drop_values(const clv_ref_kernel *k, const clv_kernel_args *a, size_t start, size_t n,
                        size_t first_random_index) {
  const REAL *x = a->in[0];
  REAL *y = a->out, scale = dropout_scale(k);
  uint8_t *mask = a->saved;
  uint32_t random_words[4] = {0};
  for (size_t j = 0; j < n; j++) {
    size_t i = first_random_index + j;
    if (i % 4 == 0 || !j) clv_rng_block(&a->key, (uint32_t)(i / 4), random_words);
    bool is_kept = (random_words[i % 4] >> 8) * 0x1p-24 >= k->d.attrs.p;
    y[start + j] = x[start + j] * (is_kept ? scale : 0);
    if (k->has_backward) mask[start + j] = is_kept;
  }
}

/* Applies dropout to packed sequences. Rows after the last sequence become 0. */
static clv_code drop_packed(const clv_ref_kernel *k, const clv_kernel_args *a, clv_err *err) {
  const clv_node_desc *d = &k->d;
  const int64_t *lengths = a->in[1];
  size_t row_size = (size_t)d->in[0].dim[1], start = 0;
  CLV_TRY(clv_check_packed(lengths, d->in[1].dim[0], d->attrs.packed, d->in[0].dim[0], err));
  for (int64_t n = 0; n < d->in[1].dim[0]; n++) {
    size_t n_values = (size_t)lengths[n] * row_size;
    drop_values(k, a, start, n_values, (size_t)(n * d->attrs.packed) * row_size);
    start += n_values;
  }
  memset((REAL *)a->out + start, 0, (k->n_in - start) * sizeof(REAL));
  if (k->has_backward) memset((uint8_t *)a->saved + start, 0, k->n_in - start);
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

static clv_code check_random_stream_length(const clv_node_desc *d, clv_err *err) {
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
    .check_kernel = check_random_stream_length,
    .forward = dropout_forward,
    .backward_input = dropout_backward,
    .in_place = true,
    .saved_bytes = dropout_saved_bytes,
};
