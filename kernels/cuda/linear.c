/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-major x [rows, in] is column-major [in, rows], so the products below have their factors the
 * other way round: y' = W x', with W column-major [in, out].
 *
 * A weight in bf16 learns nothing. In a bf16 session it is a factor as it is; else it is widened in
 * scratch for each product, since both factors of one are of one type.
 */
#include "kernels/cuda/bf16_int.h"

enum { FORWARD, GRAD_INPUT, GRAD_WEIGHT };

typedef struct linear_site {
  int64_t rows, in, out;
} linear_site;

static linear_site linear_of(const cuda_kernel *k) {
  int64_t in = k->r.d.in[0].dim[k->r.d.in[0].rank - 1];
  return (linear_site){in ? (int64_t)k->r.n_in / in : 0, in, k->r.d.attrs.out};
}

/* What of scratch holds factors in another type than theirs, and behind them the parts of a sum. */
typedef struct linear_room {
  cuda_bf16 *x, *dout;
  float *weight;
  void *parts;
} linear_room;

static bool widens(const cuda_kernel *k) { return k->r.d.bf16_weight && !k->bf16; }

static bool weight_learns(const cuda_kernel *k) { return k->r.d.need_dw && !k->r.d.bf16_weight; }

static size_t weights_of(const cuda_kernel *k) {
  linear_site s = linear_of(k);
  return (size_t)(s.in * s.out);
}

static size_t wide_bytes(const cuda_kernel *k) {
  return widens(k) ? clv_align_up(weights_of(k) * sizeof(float), 256) : 0;
}

static linear_room room_of(const cuda_kernel *k, const clv_kernel_args *a) {
  char *at = gpu_scratch(k, a);
  linear_room r = {.x = (cuda_bf16 *)at};
  r.dout = (cuda_bf16 *)(at += gpu_factor_bytes(k, k->r.n_in));
  r.weight = (float *)(at += gpu_factor_bytes(k, k->r.n_out));
  r.parts = at + wide_bytes(k);
  return r;
}

static clv_code take_weight(const cuda_kernel *k, const clv_kernel_args *a, const void **ret,
                            clv_err *err) {
  float *wide = room_of(k, a).weight;
  *ret = k->r.base.cache_bytes ? a->cache : a->param[CLV_SLOT_WEIGHT];
  if (!widens(k)) return CLV_OK;
  CLV_TRY(clv_gpu_widen(k->gpu, *ret, wide, weights_of(k), err));
  *ret = wide;
  return CLV_OK;
}

static clv_code linear_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  return clv_gpu_round(k->gpu, a->param[CLV_SLOT_WEIGHT], a->cache, weights_of(k), err);
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_factors f = {.bias = k->r.d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL, .d = a->out};
  CLV_TRY(take_weight(k, a, &f.a, err));
  CLV_TRY(clv_gpu_factor(k, a->in[0], k->r.n_in, room_of(k, a).x, &f.b, err));
  return clv_gpu_multiply(k, FORWARD, &f, a, err);
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_factors f = {.d = a->din[0]};
  CLV_TRY(take_weight(k, a, &f.a, err));
  CLV_TRY(clv_gpu_factor(k, a->dout, k->r.n_out, room_of(k, a).dout, &f.b, err));
  return clv_gpu_multiply(k, GRAD_INPUT, &f, a, err);
}

static clv_code multiply_gradient(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  linear_room r = room_of(k, a);
  cuda_factors f = {.beta = a->accumulate ? 1 : 0, .d = a->dparam[CLV_SLOT_WEIGHT]};
  bool t = k->r.d.attrs.transposed; /* W is column-major [out, in] then */
  CLV_TRY(clv_gpu_factor(k, a->in[0], k->r.n_in, r.x, t ? &f.b : &f.a, err));
  CLV_TRY(clv_gpu_factor(k, a->dout, k->r.n_out, r.dout, t ? &f.a : &f.b, err));
  return clv_gpu_multiply(k, GRAD_WEIGHT, &f, a, err);
}

static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  linear_site s = linear_of(k);
  linear_room r = room_of(k, a);
  cuda_sums sums = gpu_sums_of((size_t)s.rows, (size_t)s.out, 1);
  if (weight_learns(k)) CLV_TRY(multiply_gradient(k, a, err));
  if (!k->r.d.attrs.bias) return CLV_OK;
  return clv_gpu_channel_sums(k->gpu, &sums, false, a->dout, r.parts, a->dparam[CLV_SLOT_BIAS],
                              a->accumulate, err);
}

static clv_cuda_after after_of(const cuda_kernel *k) {
  if (!k->r.d.attrs.bias) return CLV_CUDA_AFTER_NOTHING;
  return k->r.d.tail ? CLV_CUDA_AFTER_BIAS_RELU : CLV_CUDA_AFTER_BIAS;
}

static clv_code linear_open(cuda_kernel *k, clv_err *err) {
  linear_site s = linear_of(k);
  if (k->r.d.tail && !k->r.d.attrs.bias)
    return clv_fail(err, CLV_UNIMPLEMENTED, "a relu behind a product without bias");
  bool t = k->r.d.attrs.transposed;
  const clv_cuda_matmul_desc products[] = {
      [FORWARD] = {.a_t = !t,
                   .m = s.out,
                   .n = s.rows,
                   .k = s.in,
                   .lda = t ? s.out : s.in,
                   .ldb = s.in,
                   .ldd = s.out,
                   .batch = 1,
                   .after = after_of(k)},
      [GRAD_INPUT] = {.a_t = t,
                      .m = s.in,
                      .n = s.rows,
                      .k = s.out,
                      .lda = t ? s.out : s.in,
                      .ldb = s.out,
                      .ldd = s.in,
                      .batch = 1},
      [GRAD_WEIGHT] = {.b_t = true,
                       .m = t ? s.out : s.in,
                       .n = t ? s.in : s.out,
                       .k = s.rows,
                       .lda = t ? s.out : s.in,
                       .ldb = t ? s.in : s.out,
                       .ldd = t ? s.out : s.in,
                       .batch = 1},
  };
  const bool wanted[] = {true, k->r.d.need_dx[0], weight_learns(k)};
  cuda_sums sums = gpu_sums_of((size_t)s.rows, (size_t)s.out, 1);
  for (int i = FORWARD; i <= GRAD_WEIGHT; i++)
    if (wanted[i]) CLV_TRY(clv_gpu_product(k, i, &products[i], err));
  if (!k->r.d.bf16_weight) k->r.base.cache_bytes = gpu_factor_bytes(k, weights_of(k));
  k->r.base.scratch_bytes = k->workspace + gpu_factor_bytes(k, k->r.n_in) +
                            gpu_factor_bytes(k, k->r.n_out) + wide_bytes(k) +
                            (k->r.d.need_dw ? gpu_parts_bytes(&sums) : 0);
  if (k->r.d.bf16_weight) k->r.base.saves &= ~(unsigned)CLV_SAVE_IN0;
  return CLV_OK;
}

CLV_CUDA_OP(linear) = {.forward = linear_forward,
                       .backward_input = linear_backward_input,
                       .backward_weight = linear_backward_weight,
                       .refresh = linear_refresh,
                       .bf16 = true,
                       .open = linear_open,
                       .tails = CLV_TAIL_RELU_FORWARD};
