/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention as batched products with the softmax of score rows between them. Queries, keys and
 * values are transposed to heads first. Scratch holds the scores of some rows at a time, a tile of
 * at most clv_gpu.tile_bytes, or one row of each head. Backward recomputes the scores. The tile's
 * size does not change the results of a row, but gradients of keys and values are sums over rows,
 * which are added tile by tile.
 *
 * Packed sequences are padded in scratch, because the extents of a product must be known before the
 * lengths are. The results have the bits of padded sequences.
 *
 * Queries of heads that share keys are stored one after another, so a head of keys is multiplied by
 * one matrix of `all` rows. Row-major [rows, width] is column-major [width, rows], so products have
 * their factors in reverse order.
 */
#include "kernels/cuda/attention_int.h"

/* Indices of products: each kind has one product for full tiles, and the next index for a
 * smaller last tile. */
enum { WITH_KEYS = 0, OVER_KEYS = 2, OVER_ROWS = 4 };

typedef struct heads_site {
  clv_heads x;
  /* heads of keys of all samples; query rows of one such head; rows of a tile */
  size_t shared, all, rows;
  size_t q, k; /* number of values of queries and of keys, rounded up to a multiple of 64 */
  size_t tile;
  cuda_packed p;
} heads_site;

static size_t floats(int64_t n) { return clv_align_up((size_t)n, 64); }

static heads_site heads_of(const cuda_kernel *k) {
  heads_site v = {.x = clv_heads_of(&k->r.d)};
  v.shared = (size_t)(v.x.n * v.x.kv_heads);
  v.all = (size_t)(v.x.group * v.x.t);
  size_t row = v.shared * (size_t)v.x.s * sizeof(float);
  v.rows = CLV_MIN(CLV_MAX(k->gpu->tile_bytes / CLV_MAX(row, (size_t)1), (size_t)1), v.all);
  v.q = floats(v.x.n * v.x.t * v.x.heads * v.x.width);
  v.k = floats(v.x.n * v.x.s * v.x.kv_heads * v.x.width);
  v.tile = floats((int64_t)(v.shared * v.rows) * v.x.s);
  return v;
}

/* Buffers in scratch after the workspace; from dq on only for backward. Products read q, k, v, the
 * factors of weights, and the output's gradient in `out`. */
typedef struct heads_room {
  void *begin, *q, *k, *v, *out;
  cuda_weights weights, back;
  float *dq, *dk, *dv;
} heads_room;

static size_t factor_size(const cuda_kernel *k) {
  return k->bf16 ? sizeof(cuda_bf16) : sizeof(float);
}

static void *carve(uintptr_t *at, size_t bytes) {
  void *from = (void *)*at;
  *at += clv_align_up(bytes, 256);
  return from;
}

static float *carve_floats(uintptr_t *at, size_t n) { return carve(at, n * sizeof(float)); }

static cuda_weights carve_weights(const cuda_kernel *k, size_t n, uintptr_t *at) {
  cuda_weights w = {.x = carve_floats(at, n)};
  w.factor = k->bf16 ? carve(at, n * sizeof(cuda_bf16)) : w.x;
  return w;
}

/* Lays out the buffers from address `at`. *ret_forward: end of the buffers that forward uses;
 * *ret_all: end of all. */
static heads_room room_at(const cuda_kernel *k, const heads_site *v, uintptr_t at,
                          uintptr_t *ret_forward, uintptr_t *ret_all) {
  size_t size = factor_size(k);
  heads_room m = {.begin = carve(&at, gpu_packed_bytes(k))};
  m.q = carve(&at, v->q * size);
  m.out = carve_floats(&at, v->q);
  m.k = carve(&at, v->k * size);
  m.v = carve(&at, v->k * size);
  m.weights = carve_weights(k, v->tile, &at);
  *ret_forward = at;
  m.dq = carve_floats(&at, v->q);
  m.dk = carve_floats(&at, v->k);
  m.dv = carve_floats(&at, v->k);
  m.back = carve_weights(k, v->tile, &at);
  *ret_all = at;
  return m;
}

static heads_room room_of(const cuda_kernel *k, const heads_site *v, const clv_kernel_args *a) {
  uintptr_t forward, all;
  return room_at(k, v, (uintptr_t)gpu_scratch(k, a), &forward, &all);
}

static size_t room_bytes(const cuda_kernel *k, const heads_site *v) {
  uintptr_t forward, all;
  (void)room_at(k, v, 0, &forward, &all);
  return k->r.learns ? all : forward;
}

/* Address of value i of an operand of products. */
static char *factor_at(const cuda_kernel *k, void *factor, size_t i) {
  return (char *)factor + i * factor_size(k);
}

static cuda_heads tile_of(const cuda_kernel *k, const heads_site *v, const clv_kernel_args *a) {
  double p = k->r.d.training ? k->r.d.attrs.p : 0;
  clv_rng_key key = a->key;
  if (a->rng_position) key.step = key.micro_batch = 0;
  uint32_t limit = (uint32_t)(p * 0x1p24);
  const clv_heads *x = &v->x;
  return (cuda_heads){.n = (size_t)x->n,
                      .t = (size_t)x->t,
                      .s = (size_t)x->s,
                      .heads = (size_t)x->heads,
                      .kv_heads = (size_t)x->kv_heads,
                      .width = (size_t)x->width,
                      .group = (size_t)x->group,
                      .scale = (float)x->scale,
                      .causal = k->r.d.attrs.causal,
                      .limit = limit + ((double)limit * 0x1p-24 < p),
                      .factor = (float)(1 / (1 - p)),
                      .stream = clv_rng_stream_of(&key),
                      .rng_position = a->rng_position,
                      .layer = a->key.layer,
                      .bf16 = k->bf16,
                      .begin = v->p.begin};
}

/* Lengths of padded sequences, or NULL. For packed sequences tile_of passes their
 * first rows instead. */
static const int64_t *lengths_of(const cuda_kernel *k, const clv_kernel_args *a) {
  return k->r.d.n_in > 3 && !k->r.d.attrs.packed ? a->in[3] : NULL;
}

/* Lays out scratch, and computes the first rows of packed sequences. */
static clv_code enter(const cuda_kernel *k, const clv_kernel_args *a, heads_site *v,
                      heads_room *ret, clv_err *err) {
  *v = heads_of(k);
  *ret = room_of(k, v, a);
  return k->r.d.attrs.packed ? clv_gpu_find_packed(k, a, ret->begin, &v->p, err) : CLV_OK;
}

static cuda_by_heads queries_of(const heads_site *v) {
  const clv_heads *x = &v->x;
  return (cuda_by_heads){(size_t)x->n, (size_t)x->t, (size_t)x->heads, (size_t)x->width, v->p};
}

static cuda_by_heads keys_of(const heads_site *v) {
  const clv_heads *x = &v->x;
  return (cuda_by_heads){(size_t)x->n, (size_t)x->s, (size_t)x->kv_heads, (size_t)x->width, v->p};
}

static clv_code queries_to_heads(const cuda_kernel *k, const heads_site *v, const float *x, void *y,
                                 clv_err *err) {
  cuda_by_heads t = queries_of(v);
  return clv_gpu_to_heads(k->gpu, &t, x, y, k->bf16, err);
}

static clv_code keys_to_heads(const cuda_kernel *k, const heads_site *v, const float *x, void *y,
                              clv_err *err) {
  cuda_by_heads t = keys_of(v);
  return clv_gpu_to_heads(k->gpu, &t, x, y, k->bf16, err);
}

static clv_code queries_from_heads(const cuda_kernel *k, const heads_site *v, const float *x,
                                   float *y, clv_err *err) {
  cuda_by_heads t = queries_of(v);
  return clv_gpu_from_heads(k->gpu, &t, x, y, err);
}

static clv_code keys_from_heads(const cuda_kernel *k, const heads_site *v, const float *x, float *y,
                                clv_err *err) {
  cuda_by_heads t = keys_of(v);
  return clv_gpu_from_heads(k->gpu, &t, x, y, err);
}

/* Multiplies by product `which`, for the tile that begins at row `first`. */
static clv_code multiply(const cuda_kernel *k, const heads_site *v, const clv_kernel_args *a,
                         int which, size_t first, const cuda_factors *f, clv_err *err) {
  return clv_gpu_multiply(k, which + (first + v->rows > v->all), f, a, err);
}

/* ---- forward --------------------------------------------------------------------------------- */

static clv_code forward_tile(const cuda_kernel *k, const heads_site *v, const clv_kernel_args *a,
                             const heads_room *m, cuda_heads *h, clv_err *err) {
  size_t at = h->first * h->width;
  cuda_factors scores = {.a = m->k, .b = factor_at(k, m->q, at), .d = m->weights.x};
  cuda_factors out = {.a = m->v, .b = m->weights.factor, .d = (float *)m->out + at};
  CLV_TRY(multiply(k, v, a, WITH_KEYS, h->first, &scores, err));
  CLV_TRY(clv_gpu_attention_softmax(k->gpu, h, &m->weights, lengths_of(k, a),
                                    k->r.learns ? a->saved : NULL, err));
  return multiply(k, v, a, OVER_KEYS, h->first, &out, err);
}

static clv_code attention_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  heads_site v;
  heads_room m;
  CLV_TRY(enter(k, a, &v, &m, err));
  cuda_heads h = tile_of(k, &v, a);
  CLV_TRY(queries_to_heads(k, &v, a->in[0], m.q, err));
  CLV_TRY(keys_to_heads(k, &v, a->in[1], m.k, err));
  CLV_TRY(keys_to_heads(k, &v, a->in[2], m.v, err));
  for (; h.first < v.all; h.first += v.rows) {
    h.rows = CLV_MIN(v.rows, v.all - h.first);
    CLV_TRY(forward_tile(k, &v, a, &m, &h, err));
  }
  if (lengths_of(k, a)) CLV_TRY(clv_gpu_note_bad_length(k->gpu, &h, lengths_of(k, a), err));
  return queries_from_heads(k, &v, m.out, a->out, err);
}

/* ---- backward -------------------------------------------------------------------------------- */

static clv_code backward_tile(const cuda_kernel *k, const heads_site *v, const clv_kernel_args *a,
                              const heads_room *m, cuda_heads *h, clv_err *err) {
  size_t at = h->first * h->width;
  float beta = h->first ? 1 : 0;
  const void *query = factor_at(k, m->q, at), *dout = factor_at(k, m->out, at);
  cuda_factors scores = {.a = m->k, .b = query, .d = m->weights.x};
  cuda_factors back = {.a = m->v, .b = dout, .d = m->back.x};
  cuda_factors dq = {.a = m->k, .b = m->back.factor, .d = m->dq + at};
  cuda_factors dk = {.a = query, .b = m->back.factor, .beta = beta, .d = m->dk};
  cuda_factors dv = {.a = dout, .b = m->weights.factor, .beta = beta, .d = m->dv};
  CLV_TRY(multiply(k, v, a, WITH_KEYS, h->first, &scores, err));
  CLV_TRY(multiply(k, v, a, WITH_KEYS, h->first, &back, err));
  CLV_TRY(clv_gpu_attention_softmax_back(k->gpu, h, &m->weights, &m->back, lengths_of(k, a),
                                         a->saved, err));
  if (a->din[0]) CLV_TRY(multiply(k, v, a, OVER_KEYS, h->first, &dq, err));
  if (a->din[1]) CLV_TRY(multiply(k, v, a, OVER_ROWS, h->first, &dk, err));
  return a->din[2] ? multiply(k, v, a, OVER_ROWS, h->first, &dv, err) : CLV_OK;
}

/* The output's gradient uses the buffer that forward uses for the output. */
static clv_code attention_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  heads_site v;
  heads_room m;
  CLV_TRY(enter(k, a, &v, &m, err));
  cuda_heads h = tile_of(k, &v, a);
  CLV_TRY(queries_to_heads(k, &v, a->in[0], m.q, err));
  CLV_TRY(queries_to_heads(k, &v, a->dout, m.out, err));
  CLV_TRY(keys_to_heads(k, &v, a->in[1], m.k, err));
  CLV_TRY(keys_to_heads(k, &v, a->in[2], m.v, err));
  for (; h.first < v.all; h.first += v.rows) {
    h.rows = CLV_MIN(v.rows, v.all - h.first);
    CLV_TRY(backward_tile(k, &v, a, &m, &h, err));
  }
  if (a->din[0]) CLV_TRY(queries_from_heads(k, &v, m.dq, a->din[0], err));
  if (a->din[1]) CLV_TRY(keys_from_heads(k, &v, m.dk, a->din[1], err));
  return a->din[2] ? keys_from_heads(k, &v, m.dv, a->din[2], err) : CLV_OK;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Makes the products for tiles of `rows` rows. last: 1 for the smaller last tile, else 0. */
static clv_code open_products(cuda_kernel *k, const heads_site *v, size_t rows, int last,
                              clv_err *err) {
  int64_t w = v->x.width, s = v->x.s, r = (int64_t)rows, batch = (int64_t)v->shared;
  int64_t key = s * w, query = (int64_t)v->all * w, tile = r * s;
  const clv_cuda_matmul_desc products[] = {
      [WITH_KEYS] = {true, false, s, r, w, w, w, s, batch, key, query, tile, CLV_CUDA_EPILOGUE_NONE,
                     CLV_CUDA_F32},
      [OVER_KEYS] = {false, false, w, r, s, w, s, w, batch, key, tile, query,
                     CLV_CUDA_EPILOGUE_NONE, CLV_CUDA_F32},
      [OVER_ROWS] = {false, true, w, s, r, w, s, w, batch, query, tile, key, CLV_CUDA_EPILOGUE_NONE,
                     CLV_CUDA_F32},
  };
  CLV_TRY(clv_gpu_new_product(k, WITH_KEYS + last, &products[WITH_KEYS], err));
  CLV_TRY(clv_gpu_new_product(k, OVER_KEYS + last, &products[OVER_KEYS], err));
  return k->r.learns ? clv_gpu_new_product(k, OVER_ROWS + last, &products[OVER_ROWS], err) : CLV_OK;
}

static clv_code attention_open(cuda_kernel *k, clv_err *err) {
  heads_site v = heads_of(k);
  size_t last = v.rows ? v.all % v.rows : 0;
  CLV_TRY(open_products(k, &v, v.rows, 0, err));
  if (last) CLV_TRY(open_products(k, &v, last, 1, err));
  k->r.base.reads_rng_position = k->r.d.training && k->r.d.attrs.p > 0;
  k->r.base.scratch_bytes = k->workspace + room_bytes(k, &v);
  return CLV_OK;
}

CLV_CUDA_OP(attention) = {.forward = attention_forward,
                          .backward_input = attention_backward,
                          .bf16 = true,
                          .open = attention_open};
