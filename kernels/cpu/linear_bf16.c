/* SPDX-License-Identifier: Apache-2.0
 *
 * linear in sessions that compute in bf16, with our own products.
 *
 * y = x W^T + b, dx = dy W, dW = dy^T x: the factors are rounded to nearest even; the bias, its
 * gradient and all results are f32. Sums start with the bias.
 *
 * refresh packs the weights twice, for forward and for backward. The input and the gradient of the
 * output are packed in scratch, which also rounds them.
 */
#include "kernels/cpu/pairs_int.h"

typedef struct linear_bf16_kernel {
  cpu_kernel k;
  size_t rows, in_features, out_features; /* rows of the input, input features, output features */
  /* offset in the cache of the weights packed for backward, in bytes */
  size_t backward_weights_offset;
  size_t right_factor_offset; /* offset in scratch of the right factor of dW's product, in bytes */
} linear_bf16_kernel;

static uint16_t *address_at_offset(void *memory, size_t bytes) {
  return (uint16_t *)((char *)memory + bytes);
}

/* Describes W, or if `transposes` is set W^T, as the right factor of a product. W is [out][in]; it
 * may be stored transposed, as [in][out]. */
static cpu_pairs_factor make_weight_factor(const linear_bf16_kernel *k, const clv_kernel_args *a,
                                           bool transposes) {
  bool is_transposed = k->k.d.attrs.transposed, is_bf16 = k->k.d.bf16_weight;
  const void *w = a->param[CLV_SLOT_WEIGHT];
  return (cpu_pairs_factor){.x = is_bf16 ? NULL : w,
                            .bf16_x = is_bf16 ? w : NULL,
                            .rows = is_transposed ? k->in_features : k->out_features,
                            .columns = is_transposed ? k->out_features : k->in_features,
                            .is_right = true,
                            .is_transposed = transposes != is_transposed};
}

static clv_code linear_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_bf16_kernel *k = (const linear_bf16_kernel *)base;
  const cpu_pairs_factor forward = make_weight_factor(k, a, true),
                         backward = make_weight_factor(k, a, false);
  (void)err;
  if (a->refresh_for & CLV_FOR_FORWARD)
    clv_cpu_pairs_pack(k->k.threads, &forward, address_at_offset(a->cache, 0));
  if (a->refresh_for & CLV_FOR_BACKWARD && base->backward_input)
    clv_cpu_pairs_pack(k->k.threads, &backward,
                       address_at_offset(a->cache, k->backward_weights_offset));
  return CLV_OK;
}

/* Computes c [rows][n] = x [rows][columns] times packed weights. The caller has set n,
 * right_packed, bias and c of the product p. */
static void multiply_by_weights(const linear_bf16_kernel *k, const clv_kernel_args *a,
                                const float *x, size_t columns, const cpu_pairs_product *p) {
  cpu_pairs_product product = *p;
  product.left_factor = (cpu_pairs_factor){.x = x, .rows = k->rows, .columns = columns};
  product.m = k->rows;
  product.k = columns;
  product.scratch = address_at_offset(a->scratch, 0);
  clv_cpu_pairs_multiply(k->k.threads, &product);
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_bf16_kernel *k = (const linear_bf16_kernel *)base;
  (void)err;
  multiply_by_weights(
      k, a, a->in[0], k->in_features,
      &(cpu_pairs_product){.n = k->out_features,
                           .right_packed = address_at_offset(a->cache, 0),
                           .bias = k->k.d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL,
                           .c = a->out});
  return CLV_OK;
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_bf16_kernel *k = (const linear_bf16_kernel *)base;
  (void)err;
  multiply_by_weights(
      k, a, a->dout, k->out_features,
      &(cpu_pairs_product){.n = k->in_features,
                           .right_packed = address_at_offset(a->cache, k->backward_weights_offset),
                           .c = a->din[0]});
  return CLV_OK;
}

static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const linear_bf16_kernel *k = (const linear_bf16_kernel *)base;
  bool is_transposed = k->k.d.attrs.transposed;
  const cpu_pairs_factor x = {.x = a->in[0],
                              .rows = k->rows,
                              .columns = k->in_features,
                              .is_right = !is_transposed,
                              .is_transposed = is_transposed};
  const cpu_pairs_factor dy = {.x = a->dout,
                               .rows = k->rows,
                               .columns = k->out_features,
                               .is_right = is_transposed,
                               .is_transposed = !is_transposed};
  uint16_t *right = address_at_offset(a->scratch, k->right_factor_offset);
  float *bias = k->k.d.attrs.bias ? a->dparam[CLV_SLOT_BIAS] : NULL;
  (void)err;
  clv_cpu_pairs_pack(k->k.threads, is_transposed ? &dy : &x, right);
  clv_cpu_pairs_multiply(k->k.threads,
                         &(cpu_pairs_product){.left_factor = is_transposed ? x : dy,
                                              .m = is_transposed ? k->in_features : k->out_features,
                                              .n = is_transposed ? k->out_features : k->in_features,
                                              .k = k->rows,
                                              .right_packed = right,
                                              .scratch = address_at_offset(a->scratch, 0),
                                              .c = a->dparam[CLV_SLOT_WEIGHT],
                                              .accumulate = a->accumulate,
                                              .sums = is_transposed ? NULL : bias});
  if (is_transposed && bias)
    clv_cpu_sum_columns(a->dout, k->rows, k->out_features, bias, a->accumulate);
  return CLV_OK;
}

static void lay_out_buffers(linear_bf16_kernel *k) {
  clv_kernel *base = &k->k.base;
  bool is_transposed = k->k.d.attrs.transposed;
  int threads = k->k.threads;
  size_t left_factor_bytes = clv_cpu_pairs_scratch_bytes(threads, k->rows, k->in_features),
         right_factor_bytes = 0;
  base->cache_bytes = k->backward_weights_offset =
      clv_cpu_pairs_bytes(k->out_features, k->in_features);
  if (base->backward_input) {
    base->cache_bytes += clv_cpu_pairs_bytes(k->in_features, k->out_features);
    left_factor_bytes =
        CLV_MAX(left_factor_bytes, clv_cpu_pairs_scratch_bytes(threads, k->rows, k->out_features));
  }
  if (base->backward_weight) {
    left_factor_bytes = CLV_MAX(
        left_factor_bytes, clv_cpu_pairs_scratch_bytes(
                               threads, is_transposed ? k->in_features : k->out_features, k->rows));
    right_factor_bytes =
        clv_cpu_pairs_bytes(is_transposed ? k->out_features : k->in_features, k->rows);
  }
  k->right_factor_offset = left_factor_bytes;
  base->scratch_bytes = left_factor_bytes + right_factor_bytes;
}

clv_code clv_cpu_linear_bf16(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const clv_shape *in = &d->in[0];
  linear_bf16_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->in_features = (size_t)in->dim[in->rank - 1];
  k->out_features = (size_t)d->attrs.out;
  k->rows = k->in_features ? k->k.n_in / k->in_features : 0;
  k->k.base.refresh = linear_refresh;
  k->k.base.forward = linear_forward;
  k->k.base.backward_input = d->need_dx[0] ? linear_backward_input : NULL;
  k->k.base.backward_weight = d->need_dw ? linear_backward_weight : NULL;
  k->k.base.saved_flags = k->k.base.saved_flags_for_dw = d->need_dw ? CLV_SAVE_IN0 : 0;
  k->k.base.impl = clv_cpu_pairs_impl()->name;
  lay_out_buffers(k);
  *ret = &k->k.base;
  return CLV_OK;
}
