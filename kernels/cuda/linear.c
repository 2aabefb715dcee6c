/* SPDX-License-Identifier: Apache-2.0
 *
 * Row-major x [rows, in] is column-major [in, rows], so the products below have their factors the
 * other way round: y' = W x', with W column-major [in, out].
 *
 * A weight in bf16 learns nothing. In a bf16 session it is a factor as it is; else its rows are
 * widened in scratch, as many at once as a tile has, since both factors of a product are of one
 * type. They are outputs of the product or terms of its sums.
 */
#include "kernels/cuda/bf16_int.h"

/* Beside a product, PARTS behind it, the one of all parts but the last. */
enum { FORWARD, GRAD_INPUT, GRAD_WEIGHT, PARTS };

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

/* A weight is [high][wide]. */
typedef struct linear_parts {
  int64_t high, wide, at_once;
} linear_parts;

static linear_parts parts_of(const cuda_kernel *k) {
  linear_site s = linear_of(k);
  bool t = k->r.d.attrs.transposed;
  linear_parts p = {.high = t ? s.in : s.out, .wide = t ? s.out : s.in};
  int64_t fit = (int64_t)(k->gpu->tile_bytes / sizeof(float)) / CLV_MAX(p.wide, (int64_t)1);
  p.at_once = CLV_MAX(CLV_MIN(fit, p.high), (int64_t)1);
  return p;
}

static size_t wide_bytes(const cuda_kernel *k) {
  linear_parts p = parts_of(k);
  return widens(k) ? clv_align_up((size_t)(p.at_once * p.wide) * sizeof(float), 256) : 0;
}

/* Whether W's rows are the product's outputs. */
static bool makes_rows(const cuda_kernel *k, int product) {
  return (product == FORWARD) != k->r.d.attrs.transposed;
}

static linear_room room_of(const cuda_kernel *k, const clv_kernel_args *a) {
  char *at = gpu_scratch(k, a);
  linear_room r = {.x = (cuda_bf16 *)at};
  r.dout = (cuda_bf16 *)(at += gpu_factor_bytes(k, k->r.n_in));
  r.weight = (float *)(at += gpu_factor_bytes(k, k->r.n_out));
  r.parts = at + wide_bytes(k);
  return r;
}

static const void *weight_of(const cuda_kernel *k, const clv_kernel_args *a) {
  return k->r.base.cache_bytes ? a->cache : a->param[CLV_SLOT_WEIGHT];
}

/* What the product is of W's rows from `first`, of the whole that *f says. */
static cuda_factors factors_of_part(bool rows, const cuda_factors *f, float *wide, int64_t first,
                                    bool last) {
  cuda_factors part = *f;
  part.a = wide;
  if (!rows) {
    part.b = (const float *)f->b + first;
    part.beta = first ? 1 : 0;
    part.bias = last ? f->bias : NULL;
    return part;
  }
  part.d = f->d + first;
  part.bias = f->bias ? f->bias + first : NULL;
  return part;
}

/* f->a is W as it is kept. */
static clv_code multiply_by_weight(const cuda_kernel *k, int product, const cuda_factors *f,
                                   const clv_kernel_args *a, clv_err *err) {
  linear_parts p = parts_of(k);
  const cuda_bf16 *w = f->a;
  float *wide = room_of(k, a).weight;
  if (!widens(k)) return clv_gpu_multiply(k, product, f, a, err);
  for (int64_t first = 0; first < p.high; first += p.at_once) {
    int64_t n = CLV_MIN(p.high - first, p.at_once);
    bool last = first + n == p.high;
    cuda_factors part = factors_of_part(makes_rows(k, product), f, wide, first, last);
    CLV_TRY(clv_gpu_bf16_to_f32(k->gpu, w + first * p.wide, wide, (size_t)(n * p.wide), err));
    CLV_TRY(clv_gpu_multiply(k, last ? product : product + PARTS, &part, a, err));
  }
  return CLV_OK;
}

static clv_code linear_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  return clv_gpu_f32_to_bf16(k->gpu, a->param[CLV_SLOT_WEIGHT], a->cache, weights_of(k), err);
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_factors f = {.a = weight_of(k, a),
                    .bias = k->r.d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL,
                    .d = a->out};
  CLV_TRY(clv_gpu_prepare_factor(k, a->in[0], k->r.n_in, room_of(k, a).x, &f.b, err));
  return multiply_by_weight(k, FORWARD, &f, a, err);
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_factors f = {.a = weight_of(k, a), .d = a->din[0]};
  CLV_TRY(clv_gpu_prepare_factor(k, a->dout, k->r.n_out, room_of(k, a).dout, &f.b, err));
  return multiply_by_weight(k, GRAD_INPUT, &f, a, err);
}

static clv_code multiply_gradient(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  linear_room r = room_of(k, a);
  cuda_factors f = {.beta = a->accumulate ? 1 : 0, .d = a->dparam[CLV_SLOT_WEIGHT]};
  bool t = k->r.d.attrs.transposed; /* W is column-major [out, in] then */
  CLV_TRY(clv_gpu_prepare_factor(k, a->in[0], k->r.n_in, r.x, t ? &f.b : &f.a, err));
  CLV_TRY(clv_gpu_prepare_factor(k, a->dout, k->r.n_out, r.dout, t ? &f.a : &f.b, err));
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

static clv_cuda_epilogue after_of(const cuda_kernel *k) {
  if (!k->r.d.attrs.bias) return CLV_CUDA_EPILOGUE_NONE;
  return k->r.d.tail ? CLV_CUDA_EPILOGUE_RELU_BIAS : CLV_CUDA_EPILOGUE_BIAS;
}

/* What follows a sum follows its last part. */
static clv_code open_parts(cuda_kernel *k, int product, const clv_cuda_matmul_desc *d,
                           clv_err *err) {
  linear_parts p = parts_of(k);
  clv_cuda_matmul_desc part = *d;
  bool rows = makes_rows(k, product);
  int64_t *extent = rows ? &part.m : &part.k;
  *extent = p.high ? (p.high - 1) % p.at_once + 1 : 0;
  CLV_TRY(clv_gpu_new_product(k, product, &part, err));
  if (*extent == p.high) return CLV_OK;
  *extent = p.at_once;
  if (!rows) part.after = CLV_CUDA_EPILOGUE_NONE;
  return clv_gpu_new_product(k, product + PARTS, &part, err);
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
    if (wanted[i]) CLV_TRY((widens(k) ? open_parts : clv_gpu_new_product)(k, i, &products[i], err));
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
