/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/pointwise_int.h"

/* Returns the factor of kept records; 0 for p = 1, which keeps no record. */
static REAL kept_factor(const clv_ref_kernel *k) {
  double p = k->d.attrs.p;
  return (REAL)(p < 1 ? 1 / (1 - p) : 0);
}

static size_t count_records(const clv_ref_kernel *k) { return (size_t)k->d.in[0].dim[0]; }

/* Keeps record n, one sample of the batch, if u_n >= p, where u_n is the random number that the op
 * dropout draws for its value n. */
static clv_code stochastic_depth_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t values_per_record = k->n_in / count_records(k);
  uint32_t random_words[4] = {0};
  if (!k->d.training) return identity_forward(base, a, err);
  for (size_t n = 0; n < count_records(k); n++) {
    if (n % 4 == 0) clv_rng_block(&a->key, (uint32_t)(n / 4), random_words);
    bool is_kept = (random_words[n % 4] >> 8) * 0x1p-24 >= k->d.attrs.p;
    for (size_t i = n * values_per_record; i < (n + 1) * values_per_record; i++)
      ((REAL *)a->out)[i] = ((const REAL *)a->in[0])[i] * (is_kept ? kept_factor(k) : 0);
    if (k->has_backward) ((uint8_t *)a->saved)[n] = is_kept;
  }
  return CLV_OK;
}

static clv_code stochastic_depth_backward(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const uint8_t *is_kept_record = a->saved;
  size_t values_per_record = k->n_in / count_records(k);
  if (!k->d.training) return identity_backward(base, a, err);
  for (size_t i = 0; i < k->n_in; i++)
    ((REAL *)a->din[0])[i] =
        ((const REAL *)a->dout)[i] * (is_kept_record[i / values_per_record] ? kept_factor(k) : 0);
  return CLV_OK;
}

static size_t stochastic_depth_saved_bytes(const clv_ref_kernel *k) {
  return k->d.training ? count_records(k) : 0;
}

CLV_OP_ROW(stochastic_depth) = {
    .name = "stochastic_depth",
    .doc =
        "training: a record becomes 0 with probability p, else x / (1 - p); evaluation: y = x "
        "(torchvision.ops.stochastic_depth, mode='row'; other random numbers)",
    .torch_module = "",
    .no_torch_module = "StochasticDepth is a module of torchvision",
    .n_in = 1,
    .attrs = {{.key = CLV_ATTR_P, .is_required = true, .low = 0, .high = 1}},
    .shape = clv_shape_of_input,
    .is_identity_in_eval = true,
    .forward = stochastic_depth_forward,
    .backward_input = stochastic_depth_backward,
    .in_place = true,
    .saved_bytes = stochastic_depth_saved_bytes,
};
