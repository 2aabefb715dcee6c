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
 * one matrix of `n_query_rows` rows. Row-major [rows, width] is column-major [width, rows], so
 * products have their factors in reverse order.
 */
#include "kernels/cuda/attention_int.h"

/* Indices of the kernel's products. WITH_KEYS: query rows times keys or values, a sum over a head's
 * width. OVER_KEYS: scores times values or keys, a sum over keys. OVER_ROWS: transposed scores
 * times query rows, a sum over query rows. Each kind has one product for full tiles and, at the
 * next index, one for a smaller last tile. */
enum { WITH_KEYS = 0, OVER_KEYS = 2, OVER_ROWS = 4 };

typedef struct heads_extents {
  clv_heads x;
  /* n_kv_heads: heads of keys of all samples; n_query_rows: query rows of one such head; rows: rows
   * of a tile */
  size_t n_kv_heads, n_query_rows, rows;
  size_t q, k; /* number of values of the queries and of the keys, rounded up to a multiple of 64 */
  size_t tile_floats;
  cuda_packed p;
} heads_extents;

static size_t align_floats(int64_t n) { return clv_align_up((size_t)n, 64); }

static heads_extents describe_heads(const cuda_kernel *k) {
  heads_extents v = {.x = clv_heads_of(&k->r.d)};
  v.n_kv_heads = (size_t)(v.x.n * v.x.kv_heads);
  v.n_query_rows = (size_t)(v.x.group * v.x.t);
  size_t row = v.n_kv_heads * (size_t)v.x.s * sizeof(float);
  v.rows =
      CLV_MIN(CLV_MAX(k->gpu->tile_bytes / CLV_MAX(row, (size_t)1), (size_t)1), v.n_query_rows);
  v.q = align_floats(v.x.n * v.x.t * v.x.heads * v.x.width);
  v.k = align_floats(v.x.n * v.x.s * v.x.kv_heads * v.x.width);
  v.tile_floats = align_floats((int64_t)(v.n_kv_heads * v.rows) * v.x.s);
  return v;
}

/* Buffers in scratch after the workspace; those from dq on are used only by backward. Products read
 * q, k, v, the operand of weights, and in backward the output's gradient, which is in `out`. */
typedef struct heads_buffers {
  void *first_rows, *q, *k, *v, *out;
  cuda_weights weights, dweights;
  float *dq, *dk, *dv;
} heads_buffers;

static size_t factor_size(const cuda_kernel *k) {
  return k->bf16 ? sizeof(cuda_bf16) : sizeof(float);
}

static void *reserve_buffer(uintptr_t *at, size_t bytes) {
  void *address = (void *)*at;
  *at += clv_align_up(bytes, 256);
  return address;
}

static float *reserve_floats(uintptr_t *at, size_t n) {
  return reserve_buffer(at, n * sizeof(float));
}

static cuda_weights reserve_weights(const cuda_kernel *k, size_t n, uintptr_t *at) {
  cuda_weights w = {.x = reserve_floats(at, n)};
  w.operand = k->bf16 ? reserve_buffer(at, n * sizeof(cuda_bf16)) : w.x;
  return w;
}

/* Returns the buffers, laid out from address `at` on. *ret_forward: end of the buffers that forward
 * uses; *ret_all: end of all buffers. */
static heads_buffers lay_out_buffers(const cuda_kernel *k, const heads_extents *v, uintptr_t at,
                                     uintptr_t *ret_forward, uintptr_t *ret_all) {
  size_t size = factor_size(k);
  heads_buffers m = {.first_rows = reserve_buffer(&at, gpu_packed_bytes(k))};
  m.q = reserve_buffer(&at, v->q * size);
  m.out = reserve_floats(&at, v->q);
  m.k = reserve_buffer(&at, v->k * size);
  m.v = reserve_buffer(&at, v->k * size);
  m.weights = reserve_weights(k, v->tile_floats, &at);
  *ret_forward = at;
  m.dq = reserve_floats(&at, v->q);
  m.dk = reserve_floats(&at, v->k);
  m.dv = reserve_floats(&at, v->k);
  m.dweights = reserve_weights(k, v->tile_floats, &at);
  *ret_all = at;
  return m;
}

static heads_buffers find_buffers(const cuda_kernel *k, const heads_extents *v,
                                  const clv_kernel_args *a) {
  uintptr_t forward_end, all_end;
  return lay_out_buffers(k, v, (uintptr_t)gpu_scratch(k, a), &forward_end, &all_end);
}

static size_t count_buffer_bytes(const cuda_kernel *k, const heads_extents *v) {
  uintptr_t forward_end, all_end;
  (void)lay_out_buffers(k, v, 0, &forward_end, &all_end);
  return k->r.has_backward ? all_end : forward_end;
}

/* Returns the address of value i of an operand of products. */
static char *factor_address(const cuda_kernel *k, void *factor, size_t i) {
  return (char *)factor + i * factor_size(k);
}

static cuda_heads describe_tile(const cuda_kernel *k, const heads_extents *v,
                                const clv_kernel_args *a) {
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
                      .dropout_threshold = limit + ((double)limit * 0x1p-24 < p),
                      .dropout_factor = (float)(1 / (1 - p)),
                      .stream = clv_rng_stream_of(&key),
                      .rng_position = a->rng_position,
                      .layer = a->key.layer,
                      .bf16 = k->bf16,
                      .first_rows = v->p.first_rows};
}

/* Returns the lengths of padded sequences, or NULL. For packed sequences describe_tile passes their
 * first rows instead. */
static const int64_t *padded_lengths(const cuda_kernel *k, const clv_kernel_args *a) {
  return k->r.d.n_in > 3 && !k->r.d.attrs.packed ? a->in[3] : NULL;
}

/* Starts a call: lays out scratch, and computes the first rows of packed sequences. */
static clv_code begin_call(const cuda_kernel *k, const clv_kernel_args *a, heads_extents *v,
                           heads_buffers *ret, clv_err *err) {
  *v = describe_heads(k);
  *ret = find_buffers(k, v, a);
  return k->r.d.attrs.packed ? clv_gpu_find_first_rows(k, a, ret->first_rows, &v->p, err) : CLV_OK;
}

static cuda_by_heads describe_queries(const heads_extents *v) {
  const clv_heads *x = &v->x;
  return (cuda_by_heads){(size_t)x->n, (size_t)x->t, (size_t)x->heads, (size_t)x->width, v->p};
}

static cuda_by_heads describe_keys(const heads_extents *v) {
  const clv_heads *x = &v->x;
  return (cuda_by_heads){(size_t)x->n, (size_t)x->s, (size_t)x->kv_heads, (size_t)x->width, v->p};
}

static clv_code split_query_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                  void *y, clv_err *err) {
  cuda_by_heads t = describe_queries(v);
  return clv_gpu_to_heads(k->gpu, &t, x, y, k->bf16, err);
}

static clv_code split_key_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                void *y, clv_err *err) {
  cuda_by_heads t = describe_keys(v);
  return clv_gpu_to_heads(k->gpu, &t, x, y, k->bf16, err);
}

static clv_code merge_query_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                  float *y, clv_err *err) {
  cuda_by_heads t = describe_queries(v);
  return clv_gpu_from_heads(k->gpu, &t, x, y, err);
}

static clv_code merge_key_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                float *y, clv_err *err) {
  cuda_by_heads t = describe_keys(v);
  return clv_gpu_from_heads(k->gpu, &t, x, y, err);
}

/* Computes product `which` for the tile that begins at row `first`. */
static clv_code multiply_tile(const cuda_kernel *k, const heads_extents *v,
                              const clv_kernel_args *a, int which, size_t first,
                              const cuda_factors *f, clv_err *err) {
  return clv_gpu_multiply(k, which + (first + v->rows > v->n_query_rows), f, a, err);
}

/* ---- forward --------------------------------------------------------------------------------- */

static clv_code forward_tile(const cuda_kernel *k, const heads_extents *v, const clv_kernel_args *a,
                             const heads_buffers *m, cuda_heads *h, clv_err *err) {
  size_t at = h->first * h->width;
  cuda_factors scores = {.a = m->k, .b = factor_address(k, m->q, at), .d = m->weights.x};
  cuda_factors out = {.a = m->v, .b = m->weights.operand, .d = (float *)m->out + at};
  CLV_TRY(multiply_tile(k, v, a, WITH_KEYS, h->first, &scores, err));
  CLV_TRY(clv_gpu_attention_softmax(k->gpu, h, &m->weights, padded_lengths(k, a),
                                    k->r.has_backward ? a->saved : NULL, err));
  return multiply_tile(k, v, a, OVER_KEYS, h->first, &out, err);
}

static clv_code attention_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  heads_extents v;
  heads_buffers m;
  CLV_TRY(begin_call(k, a, &v, &m, err));
  cuda_heads h = describe_tile(k, &v, a);
  CLV_TRY(split_query_heads(k, &v, a->in[0], m.q, err));
  CLV_TRY(split_key_heads(k, &v, a->in[1], m.k, err));
  CLV_TRY(split_key_heads(k, &v, a->in[2], m.v, err));
  for (; h.first < v.n_query_rows; h.first += v.rows) {
    h.rows = CLV_MIN(v.rows, v.n_query_rows - h.first);
    CLV_TRY(forward_tile(k, &v, a, &m, &h, err));
  }
  if (padded_lengths(k, a)) CLV_TRY(clv_gpu_note_bad_length(k->gpu, &h, padded_lengths(k, a), err));
  return merge_query_heads(k, &v, m.out, a->out, err);
}

/* ---- backward -------------------------------------------------------------------------------- */

static clv_code backward_tile(const cuda_kernel *k, const heads_extents *v,
                              const clv_kernel_args *a, const heads_buffers *m, cuda_heads *h,
                              clv_err *err) {
  size_t at = h->first * h->width;
  float beta = h->first ? 1 : 0;
  const void *query = factor_address(k, m->q, at), *dout = factor_address(k, m->out, at);
  cuda_factors scores = {.a = m->k, .b = query, .d = m->weights.x};
  cuda_factors dweights = {.a = m->v, .b = dout, .d = m->dweights.x};
  cuda_factors dq = {.a = m->k, .b = m->dweights.operand, .d = m->dq + at};
  cuda_factors dk = {.a = query, .b = m->dweights.operand, .beta = beta, .d = m->dk};
  cuda_factors dv = {.a = dout, .b = m->weights.operand, .beta = beta, .d = m->dv};
  CLV_TRY(multiply_tile(k, v, a, WITH_KEYS, h->first, &scores, err));
  CLV_TRY(multiply_tile(k, v, a, WITH_KEYS, h->first, &dweights, err));
  CLV_TRY(clv_gpu_attention_softmax_back(k->gpu, h, &m->weights, &m->dweights, padded_lengths(k, a),
                                         a->saved, err));
  if (a->din[0]) CLV_TRY(multiply_tile(k, v, a, OVER_KEYS, h->first, &dq, err));
  if (a->din[1]) CLV_TRY(multiply_tile(k, v, a, OVER_ROWS, h->first, &dk, err));
  return a->din[2] ? multiply_tile(k, v, a, OVER_ROWS, h->first, &dv, err) : CLV_OK;
}

/* Stores the output's gradient in the buffer in which forward stores the output. */
static clv_code attention_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  heads_extents v;
  heads_buffers m;
  CLV_TRY(begin_call(k, a, &v, &m, err));
  cuda_heads h = describe_tile(k, &v, a);
  CLV_TRY(split_query_heads(k, &v, a->in[0], m.q, err));
  CLV_TRY(split_query_heads(k, &v, a->dout, m.out, err));
  CLV_TRY(split_key_heads(k, &v, a->in[1], m.k, err));
  CLV_TRY(split_key_heads(k, &v, a->in[2], m.v, err));
  for (; h.first < v.n_query_rows; h.first += v.rows) {
    h.rows = CLV_MIN(v.rows, v.n_query_rows - h.first);
    CLV_TRY(backward_tile(k, &v, a, &m, &h, err));
  }
  if (a->din[0]) CLV_TRY(merge_query_heads(k, &v, m.dq, a->din[0], err));
  if (a->din[1]) CLV_TRY(merge_key_heads(k, &v, m.dk, a->din[1], err));
  return a->din[2] ? merge_key_heads(k, &v, m.dv, a->din[2], err) : CLV_OK;
}

/* ---- making the kernel ----------------------------------------------------------------------- */

/* Makes the products for tiles of `rows` rows. last: 1 for the smaller last tile, else 0. */
static clv_code open_products(cuda_kernel *k, const heads_extents *v, size_t rows, int last,
                              clv_err *err) {
  int64_t w = v->x.width, s = v->x.s, r = (int64_t)rows, batch = (int64_t)v->n_kv_heads;
  int64_t key = s * w, query = (int64_t)v->n_query_rows * w, tile = r * s;
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
  return k->r.has_backward ? clv_gpu_new_product(k, OVER_ROWS + last, &products[OVER_ROWS], err)
                           : CLV_OK;
}

static clv_code attention_open(cuda_kernel *k, clv_err *err) {
  heads_extents v = describe_heads(k);
  size_t last = v.rows ? v.n_query_rows % v.rows : 0;
  CLV_TRY(open_products(k, &v, v.rows, 0, err));
  if (last) CLV_TRY(open_products(k, &v, last, 1, err));
  k->r.base.reads_rng_position = k->r.d.training && k->r.d.attrs.p > 0;
  k->r.base.scratch_bytes = k->workspace_bytes + count_buffer_bytes(k, &v);
  return CLV_OK;
}

CLV_CUDA_OP(attention) = {.forward = attention_forward,
                          .backward_input = attention_backward,
                          .bf16 = true,
                          .open = attention_open};
