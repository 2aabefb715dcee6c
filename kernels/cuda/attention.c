/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention as batched products with the softmax of score rows between them. Queries, keys and
 * values are transposed first, so that each head is one matrix. Scratch holds the scores of a tile:
 * some query rows of each head, in at most clv_gpu.tile_bytes, or one row of each head. Backward
 * recomputes the scores. The size of a tile does not change the results of a row, but gradients of
 * keys and values are sums over rows, which are added tile by tile.
 *
 * Packed sequences are padded in scratch, because the host must know the extents of a product, and
 * only the device knows the lengths. The results are the same, to the bit, as of padded sequences.
 *
 * Queries of heads that share keys are stored one after another, so a head of keys is multiplied by
 * one matrix of `n_query_rows` rows. Row-major [rows, width] is column-major [width, rows], so
 * products have their factors in reverse order.
 */
#include "kernels/cuda/attention_int.h"

/* Indices of the kernel's products, named after the dimension that a product sums. SUM_OVER_WIDTH:
 * query rows times keys or values. SUM_OVER_KEYS: scores times values or keys. SUM_OVER_ROWS:
 * transposed scores times query rows. Each has one product for full tiles and, at the next index,
 * one for a smaller last tile. */
enum { SUM_OVER_WIDTH = 0, SUM_OVER_KEYS = 2, SUM_OVER_ROWS = 4 };

typedef struct heads_extents {
  clv_heads x;
  size_t n_kv_heads;     /* heads of keys of all samples */
  size_t n_query_rows;   /* query rows that share one head of keys */
  size_t tile_rows;      /* query rows of one head of keys in a tile */
  size_t q_size, k_size; /* numbers of values of queries and of keys, in multiples of 64 */
  size_t tile_floats;    /* number of scores of a tile, a multiple of 64 */
  cuda_packed p;
} heads_extents;

static size_t align_float_count(int64_t n) { return clv_align_up((size_t)n, 64); }

static heads_extents describe_heads(const cuda_kernel *k) {
  heads_extents v = {.x = clv_heads_of(&k->r.d)};
  v.n_kv_heads = (size_t)(v.x.n * v.x.kv_heads);
  v.n_query_rows = (size_t)(v.x.group * v.x.t);
  size_t row_bytes = v.n_kv_heads * (size_t)v.x.s * sizeof(float);
  v.tile_rows = CLV_MIN(CLV_MAX(k->gpu->tile_bytes / CLV_MAX(row_bytes, (size_t)1), (size_t)1),
                        v.n_query_rows);
  v.q_size = align_float_count(v.x.n * v.x.t * v.x.heads * v.x.width);
  v.k_size = align_float_count(v.x.n * v.x.s * v.x.kv_heads * v.x.width);
  v.tile_floats = align_float_count((int64_t)(v.n_kv_heads * v.tile_rows) * v.x.s);
  return v;
}

/* Buffers in scratch after the workspace. Only backward uses dq, dk, dv and dweights. Products read
 * q, k, v and weights.operand; in backward also `out`, which then holds the output's gradient. */
typedef struct heads_buffers {
  void *first_rows, *q, *k, *v, *out;
  cuda_attention_weights weights, dweights;
  float *dq, *dk, *dv;
} heads_buffers;

static size_t operand_value_bytes(const cuda_kernel *k) {
  return k->bf16 ? sizeof(cuda_bf16) : sizeof(float);
}

static void *reserve_buffer(uintptr_t *next_address, size_t bytes) {
  void *address = (void *)*next_address;
  *next_address += clv_align_up(bytes, 256);
  return address;
}

static float *reserve_floats(uintptr_t *next_address, size_t n) {
  return reserve_buffer(next_address, n * sizeof(float));
}

static cuda_attention_weights reserve_weights(const cuda_kernel *k, size_t n,
                                              uintptr_t *next_address) {
  cuda_attention_weights w = {.x = reserve_floats(next_address, n)};
  w.operand = k->bf16 ? reserve_buffer(next_address, n * sizeof(cuda_bf16)) : w.x;
  return w;
}

/* Returns the buffers, which begin at `address`. *ret_forward_end: end of the buffers that forward
 * uses; *ret_all_end: end of all buffers. */
static heads_buffers lay_out_buffers(const cuda_kernel *k, const heads_extents *v,
                                     uintptr_t address, uintptr_t *ret_forward_end,
                                     uintptr_t *ret_all_end) {
  size_t value_bytes = operand_value_bytes(k);
  heads_buffers m = {.first_rows = reserve_buffer(&address, gpu_packed_bytes(k))};
  m.q = reserve_buffer(&address, v->q_size * value_bytes);
  m.out = reserve_floats(&address, v->q_size);
  m.k = reserve_buffer(&address, v->k_size * value_bytes);
  m.v = reserve_buffer(&address, v->k_size * value_bytes);
  m.weights = reserve_weights(k, v->tile_floats, &address);
  *ret_forward_end = address;
  m.dq = reserve_floats(&address, v->q_size);
  m.dk = reserve_floats(&address, v->k_size);
  m.dv = reserve_floats(&address, v->k_size);
  m.dweights = reserve_weights(k, v->tile_floats, &address);
  *ret_all_end = address;
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
static char *operand_address(const cuda_kernel *k, void *factor, size_t i) {
  return (char *)factor + i * operand_value_bytes(k);
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
                      .is_causal = k->r.d.attrs.causal,
                      .dropout_threshold = limit + ((double)limit * 0x1p-24 < p),
                      .dropout_factor = (float)(1 / (1 - p)),
                      .stream = clv_rng_stream_of(&key),
                      .rng_position = a->rng_position,
                      .layer = a->key.layer,
                      .bf16 = k->bf16,
                      .first_rows = v->p.first_rows};
}

/* Returns the lengths of padded sequences; NULL if there are none. For packed sequences
 * describe_tile passes the first rows of the sequences instead of lengths. */
static const int64_t *padded_lengths(const cuda_kernel *k, const clv_kernel_args *a) {
  return k->r.d.n_in > 3 && !k->r.d.attrs.packed ? a->in[3] : NULL;
}

/* Begins a forward or backward: finds the buffers in scratch, and computes the first rows of packed
 * sequences. */
static clv_code begin_call(const cuda_kernel *k, const clv_kernel_args *a, heads_extents *v,
                           heads_buffers *ret, clv_err *err) {
  *v = describe_heads(k);
  *ret = find_buffers(k, v, a);
  return k->r.d.attrs.packed ? clv_gpu_find_first_rows(k, a, ret->first_rows, &v->p, err) : CLV_OK;
}

static cuda_head_tensor describe_queries(const heads_extents *v) {
  const clv_heads *x = &v->x;
  return (cuda_head_tensor){(size_t)x->n, (size_t)x->t, (size_t)x->heads, (size_t)x->width, v->p};
}

static cuda_head_tensor describe_keys(const heads_extents *v) {
  const clv_heads *x = &v->x;
  return (cuda_head_tensor){(size_t)x->n, (size_t)x->s, (size_t)x->kv_heads, (size_t)x->width,
                            v->p};
}

static clv_code split_query_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                  void *y, clv_err *err) {
  cuda_head_tensor t = describe_queries(v);
  return clv_gpu_split_heads(k->gpu, &t, x, y, k->bf16, err);
}

static clv_code split_key_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                void *y, clv_err *err) {
  cuda_head_tensor t = describe_keys(v);
  return clv_gpu_split_heads(k->gpu, &t, x, y, k->bf16, err);
}

static clv_code merge_query_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                  float *y, clv_err *err) {
  cuda_head_tensor t = describe_queries(v);
  return clv_gpu_merge_heads(k->gpu, &t, x, y, err);
}

static clv_code merge_key_heads(const cuda_kernel *k, const heads_extents *v, const float *x,
                                float *y, clv_err *err) {
  cuda_head_tensor t = describe_keys(v);
  return clv_gpu_merge_heads(k->gpu, &t, x, y, err);
}

/* Computes a product (SUM_OVER_...) for the tile that begins at query row first_row. */
static clv_code multiply_tile(const cuda_kernel *k, const heads_extents *v,
                              const clv_kernel_args *a, int product, size_t first_row,
                              const cuda_product_args *f, clv_err *err) {
  return clv_gpu_multiply(k, product + (first_row + v->tile_rows > v->n_query_rows), f, a, err);
}

/* ---- forward --------------------------------------------------------------------------------- */

static clv_code forward_tile(const cuda_kernel *k, const heads_extents *v, const clv_kernel_args *a,
                             const heads_buffers *m, cuda_heads *h, clv_err *err) {
  size_t offset = h->first_row * h->width;
  cuda_product_args scores = {.a = m->k, .b = operand_address(k, m->q, offset), .d = m->weights.x};
  cuda_product_args out = {.a = m->v, .b = m->weights.operand, .d = (float *)m->out + offset};
  CLV_TRY(multiply_tile(k, v, a, SUM_OVER_WIDTH, h->first_row, &scores, err));
  CLV_TRY(clv_gpu_attention_softmax(k->gpu, h, &m->weights, padded_lengths(k, a),
                                    k->r.has_backward ? a->saved : NULL, err));
  return multiply_tile(k, v, a, SUM_OVER_KEYS, h->first_row, &out, err);
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
  for (; h.first_row < v.n_query_rows; h.first_row += v.tile_rows) {
    h.rows = CLV_MIN(v.tile_rows, v.n_query_rows - h.first_row);
    CLV_TRY(forward_tile(k, &v, a, &m, &h, err));
  }
  if (padded_lengths(k, a))
    CLV_TRY(clv_gpu_record_bad_length(k->gpu, &h, padded_lengths(k, a), err));
  return merge_query_heads(k, &v, m.out, a->out, err);
}

/* ---- backward -------------------------------------------------------------------------------- */

static clv_code backward_tile(const cuda_kernel *k, const heads_extents *v,
                              const clv_kernel_args *a, const heads_buffers *m, cuda_heads *h,
                              clv_err *err) {
  size_t offset = h->first_row * h->width;
  float beta = h->first_row ? 1 : 0;
  const void *query_rows = operand_address(k, m->q, offset),
             *dout = operand_address(k, m->out, offset);
  cuda_product_args scores = {.a = m->k, .b = query_rows, .d = m->weights.x};
  cuda_product_args dweights = {.a = m->v, .b = dout, .d = m->dweights.x};
  cuda_product_args dq = {.a = m->k, .b = m->dweights.operand, .d = m->dq + offset};
  cuda_product_args dk = {.a = query_rows, .b = m->dweights.operand, .beta = beta, .d = m->dk};
  cuda_product_args dv = {.a = dout, .b = m->weights.operand, .beta = beta, .d = m->dv};
  CLV_TRY(multiply_tile(k, v, a, SUM_OVER_WIDTH, h->first_row, &scores, err));
  CLV_TRY(multiply_tile(k, v, a, SUM_OVER_WIDTH, h->first_row, &dweights, err));
  CLV_TRY(clv_gpu_attention_softmax_back(k->gpu, h, &m->weights, &m->dweights, padded_lengths(k, a),
                                         a->saved, err));
  if (a->din[0]) CLV_TRY(multiply_tile(k, v, a, SUM_OVER_KEYS, h->first_row, &dq, err));
  if (a->din[1]) CLV_TRY(multiply_tile(k, v, a, SUM_OVER_ROWS, h->first_row, &dk, err));
  return a->din[2] ? multiply_tile(k, v, a, SUM_OVER_ROWS, h->first_row, &dv, err) : CLV_OK;
}

/* Computes the gradients of queries, keys and values. The buffer `out`, in which forward keeps the
 * output, holds the output's gradient here. */
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
  for (; h.first_row < v.n_query_rows; h.first_row += v.tile_rows) {
    h.rows = CLV_MIN(v.tile_rows, v.n_query_rows - h.first_row);
    CLV_TRY(backward_tile(k, &v, a, &m, &h, err));
  }
  if (a->din[0]) CLV_TRY(merge_query_heads(k, &v, m.dq, a->din[0], err));
  if (a->din[1]) CLV_TRY(merge_key_heads(k, &v, m.dk, a->din[1], err));
  return a->din[2] ? merge_key_heads(k, &v, m.dv, a->din[2], err) : CLV_OK;
}

/* ---- products and buffers of the kernel ------------------------------------------------------ */

/* Makes the products for tiles of `rows` query rows. is_last_tile: 1 for the smaller last tile,
 * else 0. */
static clv_code make_products(cuda_kernel *k, const heads_extents *v, size_t rows, int is_last_tile,
                              clv_err *err) {
  int64_t w = v->x.width, s = v->x.s, r = (int64_t)rows, batch = (int64_t)v->n_kv_heads;
  int64_t key_size = s * w, query_size = (int64_t)v->n_query_rows * w, tile_size = r * s;
  const clv_cuda_matmul_desc products[] = {
      [SUM_OVER_WIDTH] = {true, false, s, r, w, w, w, s, batch, key_size, query_size, tile_size,
                          CLV_CUDA_EPILOGUE_NONE, CLV_CUDA_F32},
      [SUM_OVER_KEYS] = {false, false, w, r, s, w, s, w, batch, key_size, tile_size, query_size,
                         CLV_CUDA_EPILOGUE_NONE, CLV_CUDA_F32},
      [SUM_OVER_ROWS] = {false, true, w, s, r, w, s, w, batch, query_size, tile_size, key_size,
                         CLV_CUDA_EPILOGUE_NONE, CLV_CUDA_F32},
  };
  CLV_TRY(clv_gpu_new_product(k, SUM_OVER_WIDTH + is_last_tile, &products[SUM_OVER_WIDTH], err));
  CLV_TRY(clv_gpu_new_product(k, SUM_OVER_KEYS + is_last_tile, &products[SUM_OVER_KEYS], err));
  return k->r.has_backward
             ? clv_gpu_new_product(k, SUM_OVER_ROWS + is_last_tile, &products[SUM_OVER_ROWS], err)
             : CLV_OK;
}

static clv_code attention_open(cuda_kernel *k, clv_err *err) {
  heads_extents v = describe_heads(k);
  size_t n_last_tile_rows = v.tile_rows ? v.n_query_rows % v.tile_rows : 0;
  CLV_TRY(make_products(k, &v, v.tile_rows, 0, err));
  if (n_last_tile_rows) CLV_TRY(make_products(k, &v, n_last_tile_rows, 1, err));
  k->r.base.reads_rng_position = k->r.d.training && k->r.d.attrs.p > 0;
  k->r.base.scratch_bytes = k->workspace_bytes + count_buffer_bytes(k, &v);
  return CLV_OK;
}

CLV_CUDA_OP(attention) = {.forward = attention_forward,
                          .backward_input = attention_backward,
                          .bf16 = true,
                          .open = attention_open};
