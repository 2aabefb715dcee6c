/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention by heads. A thread takes a head of a sample (forward) or a head of keys (backward), and
 * walks it in tiles of 32 queries, or of 64 if its products have bf16 factors. A tile's scores are
 * in scratch. Backward recomputes them from the row's largest score and the inverse of its sum,
 * which forward saved. Values that a head reads often are first copied to scratch.
 *
 * Sums run over keys, queries or a head's width in ascending order, one term after the other,
 * except sums of a row of weights, which are 16 partial sums. A key that does not count has weight
 * 0, so the bits depend neither on padding nor on the batch.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/draw_int.h"
#include "kernels/cpu/head_products_int.h"
#include "kernels/cpu/math_int.h"
#include "kernels/cpu/pairs_int.h"

enum { TILE = 32, PAIRS_TILE_ROWS = 64, MAX_TILE = 64, LANES = 16 };

typedef struct attention_kernel {
  cpu_kernel k;
  clv_heads x;
  /* extents of the products with a head; its score_stride is at least x.s values, and at least a
   * cache line */
  cpu_head_extents extents;
  size_t scratch_floats; /* number of floats of scratch for one share */
  int n_shares;
  bool has_dropout;
} attention_kernel;

typedef struct heads_job {
  const attention_kernel *k;
  const clv_kernel_args *a;
  clv_rng_stream stream;
  size_t n_heads; /* number of heads to compute, divided among the threads */
} heads_job;

/* A head of queries, with its keys and values: t queries from row q on, and `steps` keys from row
 * `key` on, of which the first `length` are valid. */
typedef struct head {
  const heads_job *j;
  int64_t n, h, length;
  int64_t t, steps, q, key;
  float *scratch;
} head;

/* ---- indices into the tensors ---------------------------------------------------------------- */

static size_t query_row_size(const attention_kernel *k) {
  return (size_t)(k->x.heads * k->x.width);
}
static size_t key_row_size(const attention_kernel *k) {
  return (size_t)(k->x.kv_heads * k->x.width);
}

/* Returns the index of the first value of query i of the head, in queries and outputs. */
static size_t query_index(const head *e, int64_t i) {
  const clv_heads *x = &e->j->k->x;
  return (size_t)((e->q + i) * x->heads + e->h) * (size_t)x->width;
}

static size_t key_index(const head *e) {
  const clv_heads *x = &e->j->k->x;
  return (size_t)(e->key * x->kv_heads + e->h / x->group) * (size_t)x->width;
}

/* Returns the address of the saved numbers of row i: its largest score and the inverse of its sum.
 */
static float *saved_row(const head *e, int64_t i) {
  const clv_heads *x = &e->j->k->x;
  return (float *)e->j->a->saved + 2 * (size_t)(e->q * x->heads + e->h * e->t + i);
}

static void copy_columns(const head *e, const float *x, float *ret) {
  clv_cpu_head_copy_columns(&e->j->k->extents, x + key_index(e), (size_t)e->length, ret);
}

static void copy_rows(const head *e, const float *x, float *ret) {
  clv_cpu_head_copy_rows(&e->j->k->extents, x + key_index(e), (size_t)e->length, ret);
}

/* ---- dropout of the weights ------------------------------------------------------------------ */

/* Computes y = x times dropout factors: 0 if the top 24 bits of the random word are below the
 * limit, else `kept_factor`. */
CPU_INLINE void apply_factors_body(const float *x, const uint32_t *word, size_t n, uint32_t limit,
                                   float kept_factor, float *y) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = x[i] * (word[i] >> 8 >= limit ? kept_factor : 0);
}

CPU_CLONES(apply_factors,
           (const float *x, const uint32_t *word, size_t n, uint32_t limit, float kept_factor,
            float *y),
           (x, word, n, limit, kept_factor, y))

/* Computes dropped = n weights x of row i times the row's dropout factors. Also multiplies `other`
 * by the factors in place, unless NULL. */
static void apply_dropout(const head *e, int64_t i, size_t n, const float *x, float *dropped,
                          float *other) {
  const attention_kernel *k = e->j->k;
  float kept_factor = (float)(1 / (1 - k->k.d.attrs.p));
  uint32_t word[CPU_WORDS], limit = clv_cpu_dropout_threshold(k->k.d.attrs.p);
  clv_rng_stream row =
      clv_rng_stream_row(&e->j->stream, (uint32_t)(e->n * k->x.heads + e->h), (uint32_t)i);
  for (size_t at = 0; at < n; at += CPU_WORDS) {
    size_t n_block = CLV_MIN(n - at, (size_t)CPU_WORDS);
    clv_cpu_random_words(&row, (uint32_t)(at / 4), word);
    apply_factors(x + at, word, n_block, limit, kept_factor, dropped + at);
    if (other) apply_factors(other + at, word, n_block, limit, kept_factor, other + at);
  }
}

/* ---- rows of attention weights --------------------------------------------------------------- */

CPU_INLINE float sum_lanes(float *lane) {
  for (int width = LANES / 2; width; width /= 2)
    for (int l = 0; l < width; l++) lane[l] += lane[l + width];
  return lane[0];
}

CPU_INLINE void find_max_body(const float *x, size_t n, float *ret) {
  float lane[LANES];
  size_t i = 0;
  for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  for (size_t l = 0; i + l < n; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  *ret = lane[0];
  for (int l = 1; l < LANES; l++) *ret = lane[l] > *ret ? lane[l] : *ret;
}

/* Computes x = exp(scale x - top) in place. *ret: the sum of the new x. */
CPU_INLINE void exp_and_sum_body(float *x, size_t n, float scale, float top, float *ret) {
  float lane[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane[l] += x[i + l] = exp_of(scale * x[i + l] - top);
  for (size_t l = 0; i + l < n; l++) lane[l] += x[i + l] = exp_of(scale * x[i + l] - top);
  *ret = sum_lanes(lane);
}

/* Computes x = exp(scale x - top) times inverse, in place. */
CPU_INLINE void exp_scaled_body(float *x, size_t n, float scale, float top, float inverse) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) x[i] = exp_of(scale * x[i] - top) * inverse;
}

CPU_INLINE void dot_body(const float *x, const float *y, size_t n, float *ret) {
  float lane[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane[l] += x[i + l] * y[i + l];
  for (size_t l = 0; i + l < n; l++) lane[l] += x[i + l] * y[i + l];
  *ret = sum_lanes(lane);
}

CPU_INLINE void scale_body(float *x, size_t n, float factor) {
  for (size_t i = 0; i < n; i++) x[i] *= factor;
}

/* Computes dp = p (dp - mean) scale in place. */
CPU_INLINE void score_grads_body(float *dp, const float *p, size_t n, float mean, float scale) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) dp[i] = p[i] * (dp[i] - mean) * scale;
}

CPU_CLONES(find_max, (const float *x, size_t n, float *ret), (x, n, ret))
CPU_CLONES(exp_and_sum, (float *x, size_t n, float scale, float top, float *ret),
           (x, n, scale, top, ret))
CPU_CLONES(exp_scaled, (float *x, size_t n, float scale, float top, float inverse),
           (x, n, scale, top, inverse))
CPU_CLONES(dot, (const float *x, const float *y, size_t n, float *ret), (x, y, n, ret))
CPU_CLONES(scale, (float *x, size_t n, float factor), (x, n, factor))
CPU_CLONES(score_grads,
           (float *restrict dp, const float *restrict p, size_t n, float mean, float factor),
           (dp, p, n, mean, factor))

/* ---- a tile of query rows -------------------------------------------------------------------- */

/* A tile: `rows` query rows from i on, and the number of keys that any of them attends to. */
typedef struct tile {
  int64_t i;
  size_t rows, keys;
} tile;

static tile tile_at(const head *e, int64_t i) {
  const attention_kernel *k = e->j->k;
  int64_t rows = CLV_MIN((int64_t)k->extents.max_rows, e->t - i);
  return (tile){i, (size_t)rows,
                (size_t)clv_heads_visible_keys(&k->k.d.attrs, i + rows - 1, e->length)};
}

/* Copies the tile's rows of the queries, or of the output's gradients. */
static void copy_tile(const head *e, tile t, const float *x, float *ret) {
  clv_cpu_head_copy_tile(&e->j->k->extents, x + query_index(e, t.i), t.rows, ret);
}

static cpu_head_product make_product(const head *e, tile t) {
  const attention_kernel *k = e->j->k;
  return (cpu_head_product){
      &k->extents, t.rows, t.keys, (size_t)e->length,
      e->scratch + k->scratch_floats - clv_cpu_head_scratch_size(&k->extents)};
}

/* Returns the number of keys that row r of the tile attends to, and sets the weights of the other
 * keys to 0. */
static size_t mask_hidden_keys(const head *e, tile t, size_t r, float *weights) {
  size_t n_keys = (size_t)clv_heads_visible_keys(&e->j->k->k.d.attrs, t.i + (int64_t)r, e->length);
  memset(weights + n_keys, 0, (t.keys - n_keys) * sizeof *weights);
  return n_keys;
}

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct forward_scratch {
  float *keys;   /* copy of the head's keys as columns, [width][keys] */
  float *values; /* copy of the head's values as rows, [keys][width] */
  float *score, *q;
} forward_scratch;

static void forward_tile(const head *e, tile t, const forward_scratch *s) {
  const attention_kernel *k = e->j->k;
  const clv_kernel_args *a = e->j->a;
  const cpu_head_product product = make_product(e, t);
  const float *q = (const float *)a->in[0] + query_index(e, t.i);
  float inverse[MAX_TILE], top, sum, factor = (float)k->x.scale;
  if (!k->extents.uses_pairs) copy_tile(e, t, a->in[0], s->q);
  clv_cpu_head_multiply_by_columns(&product, q, s->q, s->keys, s->score);
  for (size_t r = 0; r < t.rows; r++) {
    float *row = s->score + r * k->extents.score_stride;
    size_t n_keys = mask_hidden_keys(e, t, r, row);
    find_max(row, n_keys, &top);
    exp_and_sum(row, n_keys, factor, top *= factor, &sum);
    inverse[r] = n_keys ? 1 / sum : 0;
    if (k->k.has_backward) saved_row(e, t.i + (int64_t)r)[0] = top;
    if (k->k.has_backward) saved_row(e, t.i + (int64_t)r)[1] = inverse[r];
    if (k->has_dropout) apply_dropout(e, t.i + (int64_t)r, n_keys, row, row, NULL);
  }
  clv_cpu_head_multiply_by_rows(&product, s->score, s->values,
                                (float *)a->out + query_index(e, t.i));
  for (size_t r = 0; r < t.rows; r++)
    scale((float *)a->out + query_index(e, t.i + (int64_t)r), (size_t)k->x.width, inverse[r]);
}

static void forward_head(const head *e) {
  const attention_kernel *k = e->j->k;
  const clv_kernel_args *a = e->j->a;
  size_t keys_size = clv_cpu_head_keys_size(&k->extents);
  float *at = e->scratch;
  forward_scratch s = {at, at + keys_size, at + 2 * keys_size,
                       at + 2 * keys_size + k->extents.max_rows * k->extents.score_stride};
  copy_columns(e, a->in[1], s.keys);
  copy_rows(e, a->in[2], s.values);
  for (int64_t i = 0; i < e->t; i += (int64_t)k->extents.max_rows)
    forward_tile(e, tile_at(e, i), &s);
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct backward_scratch {
  /* copies of the head's keys and values, both as columns, [width][keys] */
  float *keys, *values;
  float *key_rows;        /* copy of the head's keys as rows, [keys][width] */
  float *dkeys, *dvalues; /* gradients of keys and values */
  /* buffers of one tile: weights, weights after dropout, their gradients, copy of the queries, copy
   * of the gradients of the outputs */
  float *p, *dropped, *dp, *q, *d;
} backward_scratch;

/* Computes, for the rows of a tile, P, P times the dropout factors (P itself without dropout), and
 * dS in place of dP: see kernels/ops/attention.c for the formulas. */
static void backward_rows(const head *e, tile t, const backward_scratch *s) {
  const attention_kernel *k = e->j->k;
  float factor = (float)k->x.scale, mean;
  for (size_t r = 0; r < t.rows; r++) {
    float *p = s->p + r * k->extents.score_stride,
          *dropped = s->dropped + r * k->extents.score_stride,
          *dp = s->dp + r * k->extents.score_stride;
    const float *saved = saved_row(e, t.i + (int64_t)r);
    size_t n_keys = mask_hidden_keys(e, t, r, p);
    exp_scaled(p, n_keys, factor, saved[0], saved[1]);
    if (k->has_dropout) apply_dropout(e, t.i + (int64_t)r, n_keys, p, dropped, dp);
    mask_hidden_keys(e, t, r, dropped);
    dot(p, dp, n_keys, &mean);
    score_grads(dp, p, n_keys, mean, factor);
    mask_hidden_keys(e, t, r, dp);
  }
}

/* Computes the gradients of a tile. is_first_tile: overwrite the gradients of keys and values
 * instead of adding to them. */
static void backward_tile(const head *e, tile t, bool is_first_tile, const backward_scratch *s) {
  const clv_kernel_args *a = e->j->a;
  const cpu_head_product product = make_product(e, t);
  const size_t at = query_index(e, t.i);
  copy_tile(e, t, a->in[0], s->q);
  copy_tile(e, t, a->dout, s->d);
  clv_cpu_head_multiply_by_columns(&product, (const float *)a->in[0] + at, s->q, s->keys, s->p);
  clv_cpu_head_multiply_by_columns(&product, (const float *)a->dout + at, s->d, s->values, s->dp);
  backward_rows(e, t, s);
  if (a->din[0])
    clv_cpu_head_multiply_by_rows(&product, s->dp, s->key_rows, (float *)a->din[0] + at);
  if (a->din[1]) clv_cpu_head_multiply_over_tile(&product, s->dp, s->q, !is_first_tile, s->dkeys);
  if (a->din[2])
    clv_cpu_head_multiply_over_tile(&product, s->dropped, s->d, !is_first_tile, s->dvalues);
}

/* Copies the gradients of the head's keys or values to x. Rows of x after the sample's length
 * become 0. */
static void store_gradients(const head *e, const float *from, float *x) {
  const attention_kernel *k = e->j->k;
  size_t width = (size_t)k->x.width;
  if (!x) return;
  for (size_t s = 0; s < (size_t)e->length; s++)
    memcpy(x + key_index(e) + s * key_row_size(k), from + s * width, width * sizeof *x);
  for (size_t s = (size_t)e->length; s < (size_t)e->steps; s++)
    memset(x + key_index(e) + s * key_row_size(k), 0, width * sizeof *x);
}

static backward_scratch lay_out_backward(const attention_kernel *k, float *at) {
  const cpu_head_extents *x = &k->extents;
  size_t keys_size = clv_cpu_head_keys_size(x), scores_size = x->max_rows * x->score_stride;
  size_t dkeys_size = x->width * x->score_stride;
  float *dkeys = at + 3 * keys_size, *p = dkeys + 2 * dkeys_size, *q = p + 3 * scores_size;
  return (backward_scratch){.keys = at,
                            .values = at + keys_size,
                            .key_rows = at + 2 * keys_size,
                            .dkeys = dkeys,
                            .dvalues = dkeys + dkeys_size,
                            .p = p,
                            .dropped = k->has_dropout ? p + scores_size : p,
                            .dp = p + 2 * scores_size,
                            .q = q,
                            .d = q + clv_cpu_head_tile_size(x)};
}

/* Returns the scratch of one share in floats; the scratch of the products is at its end. */
static size_t count_scratch(const attention_kernel *k) {
  const cpu_head_extents *x = &k->extents;
  size_t keys_size = clv_cpu_head_keys_size(x), scores_size = x->max_rows * x->score_stride;
  size_t dkeys_size = x->width * x->score_stride, tile_size = clv_cpu_head_tile_size(x);
  size_t scratch_size = k->k.has_backward
                            ? 3 * keys_size + 2 * dkeys_size + 3 * scores_size + 2 * tile_size
                            : 2 * keys_size + scores_size + tile_size;
  return scratch_size + clv_cpu_head_scratch_size(x);
}

/* Computes the gradients of query head e.h and of the following heads that share its keys. The
 * first tile overwrites the gradients of the keys it attends to and later tiles add to them, so the
 * gradients of the other keys are zeroed first. */
static void backward_heads(head e) {
  const attention_kernel *k = e.j->k;
  const clv_kernel_args *a = e.j->a;
  const int64_t first_head = e.h;
  const size_t first_keys = tile_at(&e, 0).keys, n_other_keys = (size_t)e.length - first_keys;
  const size_t width = (size_t)k->x.width;
  backward_scratch s = lay_out_backward(k, e.scratch);
  copy_columns(&e, a->in[1], s.keys);
  copy_columns(&e, a->in[2], s.values);
  copy_rows(&e, a->in[1], s.key_rows);
  memset(s.dkeys + first_keys * width, 0, n_other_keys * width * sizeof(float));
  memset(s.dvalues + first_keys * width, 0, n_other_keys * width * sizeof(float));
  for (; e.h < first_head + k->x.group; e.h++)
    for (int64_t i = 0; i < e.t; i += (int64_t)k->extents.max_rows)
      backward_tile(&e, tile_at(&e, i), e.h == first_head && i == 0, &s);
  e.h = first_head;
  store_gradients(&e, s.dkeys, a->din[1]);
  store_gradients(&e, s.dvalues, a->din[2]);
}

/* ---- making and running the kernel ----------------------------------------------------------- */

static head make_head(const heads_job *j, size_t item, int64_t heads, int64_t group, size_t share) {
  const clv_heads *x = &j->k->x;
  const int64_t *lengths = j->k->k.d.n_in > 3 ? j->a->in[3] : NULL;
  int64_t n = (int64_t)item / heads, length = lengths ? lengths[n] : x->s;
  head e = {.j = j,
            .n = n,
            .h = (int64_t)item % heads * group,
            .length = length,
            .t = x->t,
            .steps = x->s,
            .q = n * x->t,
            .key = n * x->s,
            .scratch = (float *)j->a->scratch + share * j->k->scratch_floats};
  if (!j->k->k.d.attrs.packed) return e;
  e.t = e.steps = length;
  e.q = e.key = clv_packed_rows_before(lengths, n);
  return e;
}

/* Zeroes the rows after the last packed sequence, in the output or, if is_backward, in the input
 * gradients. */
static void zero_unused_rows(const attention_kernel *k, const clv_kernel_args *a,
                             bool is_backward) {
  const clv_node_desc *d = &k->k.d;
  int64_t n_used_rows =
      d->attrs.packed ? clv_packed_rows_before(a->in[3], k->x.n) : d->in[0].dim[0];
  for (int i = 0; i < (is_backward ? 3 : 1); i++) {
    float *x = is_backward ? a->din[i] : a->out;
    size_t row = (size_t)d->in[i].dim[1];
    if (x && n_used_rows < d->in[0].dim[0])
      memset(x + (size_t)n_used_rows * row, 0,
             (size_t)(d->in[0].dim[0] - n_used_rows) * row * sizeof *x);
  }
}

static clv_code check_lengths(const attention_kernel *k, const clv_kernel_args *a, clv_err *err) {
  const clv_node_desc *d = &k->k.d;
  int64_t length;
  if (d->attrs.packed)
    return clv_check_packed(a->in[3], k->x.n, d->attrs.packed, d->in[0].dim[0], err);
  for (int64_t n = 0; d->n_in > 3 && n < k->x.n; n++)
    CLV_TRY(clv_check_length(a->in[3], n, k->x.s, &length, err));
  return CLV_OK;
}

/* Computes the heads of shares [begin, end); each thread computes one share. */
static void compute_forward_shares(void *arg, size_t begin, size_t end) {
  const heads_job *j = arg;
  size_t n_shares = (size_t)j->k->n_shares;
  for (size_t p = begin; p < end; p++)
    for (size_t i = j->n_heads * p / n_shares; i < j->n_heads * (p + 1) / n_shares; i++) {
      head e = make_head(j, i, j->k->x.heads, 1, p);
      forward_head(&e);
    }
}

static void compute_backward_shares(void *arg, size_t begin, size_t end) {
  const heads_job *j = arg;
  size_t n_shares = (size_t)j->k->n_shares;
  for (size_t p = begin; p < end; p++)
    for (size_t i = j->n_heads * p / n_shares; i < j->n_heads * (p + 1) / n_shares; i++)
      backward_heads(make_head(j, i, j->k->x.kv_heads, j->k->x.group, p));
}

static clv_code run_heads(clv_kernel *base, const clv_kernel_args *a, int64_t heads,
                          clv_cpu_range_fn *fn, clv_err *err) {
  const attention_kernel *k = (const attention_kernel *)base;
  heads_job j = {k, a, clv_rng_stream_of(&a->key), (size_t)(k->x.n * heads)};
  size_t work = clv_layout_numel(&k->k.d.in[0], 1) * (size_t)k->x.s;
  CLV_TRY(check_lengths(k, a, err));
  zero_unused_rows(k, a, fn == compute_backward_shares);
  clv_cpu_parallel(CLV_MIN(clv_cpu_useful_threads(k->k.threads, work), k->n_shares),
                   (size_t)k->n_shares, fn, &j);
  return CLV_OK;
}

static clv_code attention_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_heads(base, a, ((const attention_kernel *)base)->x.heads, compute_forward_shares, err);
}

static clv_code attention_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_heads(base, a, ((const attention_kernel *)base)->x.kv_heads, compute_backward_shares,
                   err);
}

static cpu_head_extents make_extents(const attention_kernel *k) {
  bool uses_pairs =
      k->k.d.bf16 &&
      clv_cpu_choose(CPU_ATTENTION_BF16, clv_cpu_class_of_attention(k->x.width)) == CPU_PAIRS;
  return (cpu_head_extents){.uses_pairs = uses_pairs,
                            .width = (size_t)k->x.width,
                            .max_rows = uses_pairs ? PAIRS_TILE_ROWS : TILE,
                            .max_keys = (size_t)k->x.s,
                            .query_stride = query_row_size(k),
                            .key_stride = key_row_size(k),
                            .score_stride = clv_align_up((size_t)k->x.s, LANES) + LANES};
}

static clv_code attention_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  attention_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->x = clv_heads_of(d);
  k->extents = make_extents(k);
  k->n_shares = (int)CLV_MIN((int64_t)k->k.threads, k->x.n * k->x.kv_heads);
  size_t width = (size_t)k->x.width;
  k->scratch_floats = count_scratch(k);
  k->has_dropout = d->training && d->attrs.p > 0;
  k->k.base.forward = attention_forward;
  k->k.base.backward_input = k->k.has_backward ? attention_backward : NULL;
  for (int i = 0; k->k.has_backward && i < d->n_in; i++)
    k->k.base.saved_flags |= clv_save_flag_of_input(i);
  size_t rows = clv_layout_numel(&d->in[0], 1) / width; /* number of rows of all heads */
  k->k.base.saved_bytes = k->k.has_backward ? rows * 2 * sizeof(float) : 0;
  k->k.base.scratch_bytes = (size_t)k->n_shares * k->scratch_floats * sizeof(float);
  if (k->extents.uses_pairs) k->k.base.impl = clv_cpu_pairs_impl()->name;
  *ret = &k->k.base;
  return CLV_OK;
}

CLV_CPU_OP(attention, attention_prepare)
