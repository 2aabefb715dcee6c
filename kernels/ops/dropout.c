/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

/* The factor of kept elements; with p = 1 nothing is kept. */
static REAL dropout_scale(const clv_ref_kernel *k) {
  double p = k->d.attrs.p;
  return (REAL)(p < 1 ? 1 / (1 - p) : 0);
}

/* Element i is kept when u_i >= p, u_i the top 24 bits of word i%4 of Philox block i/4 over 2^24:
 * a function of key and row-major index alone. Factors multiply, so NaN passes as in torch. */
static clv_code dropout_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0];
  REAL *y = a->out, scale = dropout_scale(k);
  uint8_t *mask = a->saved;
  uint32_t word[4] = {0};
  if (!k->d.training) return pass_forward(base, a, err);
  for (size_t i = 0; i < k->n_in; i++) {
    if (i % 4 == 0) clv_rng_block(&a->key, (uint32_t)(i / 4), word);
    bool keep = (word[i % 4] >> 8) * 0x1p-24 >= k->d.attrs.p;
    y[i] = x[i] * (keep ? scale : 0);
    if (k->learns) mask[i] = keep;
  }
  return CLV_OK;
}

static size_t dropout_saved(const clv_ref_kernel *k) { return k->d.training ? k->n_in : 0; }

static clv_code dropout_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const uint8_t *mask = a->saved;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0], scale = dropout_scale(k);
  if (!k->d.training) return pass_backward(base, a, err);
  for (size_t i = 0; i < k->n_in; i++) dx[i] = dy[i] * (mask[i] ? scale : 0);
  return CLV_OK;
}

static clv_code check_stream(const clv_node_desc *d, clv_err *err) {
  size_t n = clv_layout_numel(&d->in[0], 1);
  if (n / 4 <= UINT32_MAX) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED, "dropout over %zu values; a stream has %zu", n,
                  (size_t)UINT32_MAX * 4);
}

CLV_OP_ROW(dropout) = {
    .name = "dropout",
    .doc =
        "training: y = 0 with probability p, else x / (1 - p); evaluation: y = x "
        "(torch.nn.functional.dropout; other random numbers)",
    .torch_module = "Dropout(p=p)",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_P, .fallback = 0.5, .low = 0, .high = 1}},
    .shape = clv_same_shape,
    .identity_in_eval = true,
    .elementwise = true,
    .zero_stays = true,
    .check_kernel = check_stream,
    .forward = dropout_forward,
    .backward_input = dropout_backward,
    .in_place = true,
    .saved_bytes = dropout_saved,
};
