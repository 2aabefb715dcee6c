/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention by heads. A thread takes a head of a sample (forward) or a head of keys (backward), and
 * computes it in tiles of 32 queries, or of 64 if its products have bf16 factors. A tile's scores
 * are in scratch. Backward recomputes them from the row's largest score and the inverse of its sum,
 * which forward saved. Values that a head reads often are first copied to scratch.
 *
 * Sums run over keys, queries or a head's width in ascending order, one term after the other,
 * except sums of a row of weights, which are 16 partial sums. A key that a query does not attend to
 * has weight 0, so the bits depend neither on padding nor on the batch.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/choices_int.h"
#include "kernels/cpu/draw_int.h"
#include "kernels/cpu/head_products_int.h"
#include "kernels/cpu/math_int.h"
#include "kernels/cpu/pairs_int.h"

/* TILE_ROWS, PAIRS_TILE_ROWS: queries of a tile, with f32 and with bf16 factors. LANES: number of
 * partial sums of a row of weights. */
enum { TILE_ROWS = 32, PAIRS_TILE_ROWS = 64, MAX_TILE_ROWS = 64, LANES = 16 };

typedef struct attention_kernel {
  cpu_kernel k;
  clv_heads dims; /* batch, steps and heads of the op */
  /* extents of the products with a head; its score_stride is at least dims.s values, and at least a
   * cache line */
  cpu_head_extents extents;
  size_t scratch_floats; /* number of floats of scratch for one share */
  int n_shares;          /* number of shares of the heads; a thread computes one or more */
  bool has_dropout;
} attention_kernel;

typedef struct heads_job {
  const attention_kernel *k;
  const clv_kernel_args *a;
  clv_rng_stream stream;
  size_t n_heads; /* number of heads to compute, divided among the threads */
} heads_job;

/* A head of queries of one sample, with its keys and values. A row is a position of a sequence in
 * the tensors, counted over all samples. Of the keys only the first `length` are valid. */
typedef struct attention_head {
  const heads_job *j;
  int64_t sample, query_head;
  int64_t n_queries, first_query_row;
  int64_t n_keys, length, first_key_row; /* length: number of valid keys */
  float *scratch;
} attention_head;

/* ---- indices into the tensors ---------------------------------------------------------------- */

static size_t query_row_size(const attention_kernel *k) {
  return (size_t)(k->dims.heads * k->dims.width);
}
static size_t key_row_size(const attention_kernel *k) {
  return (size_t)(k->dims.kv_heads * k->dims.width);
}

/* Returns the index of the first value of query i of the head, in queries and outputs. */
static size_t query_index(const attention_head *h, int64_t i) {
  const clv_heads *dims = &h->j->k->dims;
  return (size_t)((h->first_query_row + i) * dims->heads + h->query_head) * (size_t)dims->width;
}

static size_t key_index(const attention_head *h) {
  const clv_heads *dims = &h->j->k->dims;
  return (size_t)(h->first_key_row * dims->kv_heads + h->query_head / dims->group) *
         (size_t)dims->width;
}

/* Returns the address of the saved numbers of row i: its largest scaled score and the inverse of
 * its sum of exponentials. */
static float *saved_row(const attention_head *h, int64_t i) {
  const clv_heads *dims = &h->j->k->dims;
  return (float *)h->j->a->saved +
         2 * (size_t)(h->first_query_row * dims->heads + h->query_head * h->n_queries + i);
}

static void copy_columns(const attention_head *h, const float *x, float *ret) {
  clv_cpu_head_copy_columns(&h->j->k->extents, x + key_index(h), (size_t)h->length, ret);
}

static void copy_rows(const attention_head *h, const float *x, float *ret) {
  clv_cpu_head_copy_rows(&h->j->k->extents, x + key_index(h), (size_t)h->length, ret);
}

/* ---- dropout of the weights ------------------------------------------------------------------ */

/* Computes y = x times dropout factors: x[i] is multiplied by 0 if the upper 24 bits of
 * random_words[i] are below dropout_threshold, else by `kept_factor`. */
CPU_INLINE void apply_factors_body(const float *x, const uint32_t *random_words, size_t n,
                                   uint32_t dropout_threshold, float kept_factor, float *y) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++)
    y[i] = x[i] * (random_words[i] >> 8 >= dropout_threshold ? kept_factor : 0);
}

CPU_CLONES(apply_factors,
           (const float *x, const uint32_t *random_words, size_t n, uint32_t dropout_threshold,
            float kept_factor, float *y),
           (x, random_words, n, dropout_threshold, kept_factor, y))

/* Computes dropped_p = x times the dropout factors of row i, for n weights x. Also multiplies dp
 * by these factors in place, unless it is NULL. */
static void apply_dropout(const attention_head *h, int64_t i, size_t n, const float *x,
                          float *dropped_p, float *dp) {
  const attention_kernel *k = h->j->k;
  float kept_factor = (float)(1 / (1 - k->k.d.attrs.p));
  uint32_t random_words[CPU_RANDOM_WORDS],
      dropout_threshold = clv_cpu_dropout_threshold(k->k.d.attrs.p);
  clv_rng_stream row_stream = clv_rng_stream_row(
      &h->j->stream, (uint32_t)(h->sample * k->dims.heads + h->query_head), (uint32_t)i);
  for (size_t at = 0; at < n; at += CPU_RANDOM_WORDS) {
    size_t n_block_values = CLV_MIN(n - at, (size_t)CPU_RANDOM_WORDS);
    clv_cpu_draw_words(&row_stream, (uint32_t)(at / 4), random_words);
    apply_factors(x + at, random_words, n_block_values, dropout_threshold, kept_factor,
                  dropped_p + at);
    if (dp)
      apply_factors(dp + at, random_words, n_block_values, dropout_threshold, kept_factor, dp + at);
  }
}

/* ---- rows of attention weights --------------------------------------------------------------- */

CPU_INLINE float add_lane_sums(float *lane_sums) {
  for (int width = LANES / 2; width; width /= 2)
    for (int l = 0; l < width; l++) lane_sums[l] += lane_sums[l + width];
  return lane_sums[0];
}

CPU_INLINE void find_max_body(const float *x, size_t n, float *ret) {
  float lane_max[LANES];
  size_t i = 0;
  for (int l = 0; l < LANES; l++) lane_max[l] = -INFINITY;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++)
      lane_max[l] = x[i + l] > lane_max[l] ? x[i + l] : lane_max[l];
  for (size_t l = 0; i + l < n; l++) lane_max[l] = x[i + l] > lane_max[l] ? x[i + l] : lane_max[l];
  *ret = lane_max[0];
  for (int l = 1; l < LANES; l++) *ret = lane_max[l] > *ret ? lane_max[l] : *ret;
}

/* Computes x = exp(scale x - max_score) in place. max_score: largest scale x of the row. *ret: the
 * sum of the new x. */
CPU_INLINE void exponentiate_and_sum_body(float *x, size_t n, float scale, float max_score,
                                          float *ret) {
  float lane_sums[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++)
      lane_sums[l] += x[i + l] = exp_of(scale * x[i + l] - max_score);
  for (size_t l = 0; i + l < n; l++)
    lane_sums[l] += x[i + l] = exp_of(scale * x[i + l] - max_score);
  *ret = add_lane_sums(lane_sums);
}

/* Computes the weights x = exp(scale x - max_score) inverse_sum, in place. */
CPU_INLINE void exponentiate_and_scale_body(float *x, size_t n, float scale, float max_score,
                                            float inverse_sum) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) x[i] = exp_of(scale * x[i] - max_score) * inverse_sum;
}

CPU_INLINE void compute_dot_body(const float *x, const float *y, size_t n, float *ret) {
  float lane_sums[LANES] = {0};
  size_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (size_t l = 0; l < LANES; l++) lane_sums[l] += x[i + l] * y[i + l];
  for (size_t l = 0; i + l < n; l++) lane_sums[l] += x[i + l] * y[i + l];
  *ret = add_lane_sums(lane_sums);
}

CPU_INLINE void scale_body(float *x, size_t n, float factor) {
  for (size_t i = 0; i < n; i++) x[i] *= factor;
}

/* Computes dp = p (dp - mean) scale in place. mean: sum of p dp over the row. */
CPU_INLINE void compute_score_grads_body(float *dp, const float *p, size_t n, float mean,
                                         float scale) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) dp[i] = p[i] * (dp[i] - mean) * scale;
}

CPU_CLONES(find_max, (const float *x, size_t n, float *ret), (x, n, ret))
CPU_CLONES(exponentiate_and_sum, (float *x, size_t n, float scale, float max_score, float *ret),
           (x, n, scale, max_score, ret))
CPU_CLONES(exponentiate_and_scale,
           (float *x, size_t n, float scale, float max_score, float inverse_sum),
           (x, n, scale, max_score, inverse_sum))
CPU_CLONES(compute_dot, (const float *x, const float *y, size_t n, float *ret), (x, y, n, ret))
CPU_CLONES(scale, (float *x, size_t n, float factor), (x, n, factor))
CPU_CLONES(compute_score_grads,
           (float *restrict dp, const float *restrict p, size_t n, float mean, float score_scale),
           (dp, p, n, mean, score_scale))

/* ---- a tile of query rows -------------------------------------------------------------------- */

/* A tile: `rows` query rows from i on, and the number of keys that any of them attends to. */
typedef struct query_tile {
  int64_t i;
  size_t rows, keys;
} query_tile;

static query_tile make_tile(const attention_head *h, int64_t i) {
  const attention_kernel *k = h->j->k;
  int64_t rows = CLV_MIN((int64_t)k->extents.max_rows, h->n_queries - i);
  return (query_tile){i, (size_t)rows,
                      (size_t)clv_count_visible_keys(&k->k.d.attrs, i + rows - 1, h->length)};
}

/* Copies the tile's rows of the queries, or of the output's gradients. */
static void copy_tile(const attention_head *h, query_tile t, const float *x, float *ret) {
  clv_cpu_head_copy_tile(&h->j->k->extents, x + query_index(h, t.i), t.rows, ret);
}

static cpu_head_product make_product(const attention_head *h, query_tile t) {
  const attention_kernel *k = h->j->k;
  return (cpu_head_product){
      &k->extents, t.rows, t.keys, (size_t)h->length,
      h->scratch + k->scratch_floats - clv_cpu_head_scratch_size(&k->extents)};
}

/* Returns the number of keys that row r of the tile attends to, and sets the weights of the other
 * keys to 0. */
static size_t mask_hidden_keys(const attention_head *h, query_tile t, size_t r, float *weights) {
  size_t n_keys = (size_t)clv_count_visible_keys(&h->j->k->k.d.attrs, t.i + (int64_t)r, h->length);
  memset(weights + n_keys, 0, (t.keys - n_keys) * sizeof *weights);
  return n_keys;
}

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct forward_scratch {
  float *keys;    /* copy of the head's keys as columns, [width][keys] */
  float *values;  /* copy of the head's values as rows, [keys][width] */
  float *scores;  /* scores of a tile, [rows][score_stride] */
  float *queries; /* copy of the queries of a tile */
} forward_scratch;

static void forward_tile(const attention_head *h, query_tile t, const forward_scratch *s) {
  const attention_kernel *k = h->j->k;
  const clv_kernel_args *a = h->j->a;
  const cpu_head_product product = make_product(h, t);
  const float *queries = (const float *)a->in[0] + query_index(h, t.i);
  float inverse_sum[MAX_TILE_ROWS], max_score, sum, score_scale = (float)k->dims.scale;
  if (!k->extents.uses_pairs) copy_tile(h, t, a->in[0], s->queries);
  clv_cpu_head_multiply_by_columns(&product, queries, s->queries, s->keys, s->scores);
  for (size_t r = 0; r < t.rows; r++) {
    float *row = s->scores + r * k->extents.score_stride;
    size_t n_keys = mask_hidden_keys(h, t, r, row);
    find_max(row, n_keys, &max_score);
    exponentiate_and_sum(row, n_keys, score_scale, max_score *= score_scale, &sum);
    inverse_sum[r] = n_keys ? 1 / sum : 0;
    if (k->k.has_backward) saved_row(h, t.i + (int64_t)r)[0] = max_score;
    if (k->k.has_backward) saved_row(h, t.i + (int64_t)r)[1] = inverse_sum[r];
    if (k->has_dropout) apply_dropout(h, t.i + (int64_t)r, n_keys, row, row, NULL);
  }
  clv_cpu_head_multiply_by_rows(&product, s->scores, s->values,
                                (float *)a->out + query_index(h, t.i));
  for (size_t r = 0; r < t.rows; r++)
    scale((float *)a->out + query_index(h, t.i + (int64_t)r), (size_t)k->dims.width,
          inverse_sum[r]);
}

static void forward_head(const attention_head *h) {
  const attention_kernel *k = h->j->k;
  const clv_kernel_args *a = h->j->a;
  size_t keys_size = clv_cpu_head_keys_size(&k->extents);
  float *at = h->scratch;
  forward_scratch s = {at, at + keys_size, at + 2 * keys_size,
                       at + 2 * keys_size + k->extents.max_rows * k->extents.score_stride};
  copy_columns(h, a->in[1], s.keys);
  copy_rows(h, a->in[2], s.values);
  for (int64_t i = 0; i < h->n_queries; i += (int64_t)k->extents.max_rows)
    forward_tile(h, make_tile(h, i), &s);
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct backward_scratch {
  /* copies of the head's keys and values, both as columns, [width][keys] */
  float *keys, *values;
  float *key_rows;        /* copy of the head's keys as rows, [keys][width] */
  float *dkeys, *dvalues; /* gradients of keys and values */
  float *p;               /* weights of a tile, [rows][score_stride] */
  float *dropped_p;       /* weights of a tile times their dropout factors; without dropout: p */
  float *dp;              /* gradients of a tile's weights, then of its scores */
  float *queries;         /* copy of the queries of a tile */
  float *douts;           /* copy of the gradients of a tile's outputs */
} backward_scratch;

/* Computes, for the rows of a tile, the weights P, P times the dropout factors (P itself without
 * dropout), and the gradients dS of the scores in place of the gradients dP of the weights: see
 * kernels/ops/attention.c for the formulas. */
static void compute_score_grads_of_tile(const attention_head *h, query_tile t,
                                        const backward_scratch *s) {
  const attention_kernel *k = h->j->k;
  float score_scale = (float)k->dims.scale, mean;
  for (size_t r = 0; r < t.rows; r++) {
    float *p = s->p + r * k->extents.score_stride,
          *dropped_p = s->dropped_p + r * k->extents.score_stride,
          *dp = s->dp + r * k->extents.score_stride;
    const float *saved = saved_row(h, t.i + (int64_t)r);
    size_t n_keys = mask_hidden_keys(h, t, r, p);
    exponentiate_and_scale(p, n_keys, score_scale, saved[0], saved[1]);
    if (k->has_dropout) apply_dropout(h, t.i + (int64_t)r, n_keys, p, dropped_p, dp);
    mask_hidden_keys(h, t, r, dropped_p);
    compute_dot(p, dp, n_keys, &mean);
    compute_score_grads(dp, p, n_keys, mean, score_scale);
    mask_hidden_keys(h, t, r, dp);
  }
}

/* Computes the gradients of a tile. is_first_tile: overwrite the gradients of keys and values
 * instead of adding to them. */
static void backward_tile(const attention_head *h, query_tile t, bool is_first_tile,
                          const backward_scratch *s) {
  const clv_kernel_args *a = h->j->a;
  const cpu_head_product product = make_product(h, t);
  const size_t at = query_index(h, t.i);
  copy_tile(h, t, a->in[0], s->queries);
  copy_tile(h, t, a->dout, s->douts);
  clv_cpu_head_multiply_by_columns(&product, (const float *)a->in[0] + at, s->queries, s->keys,
                                   s->p);
  clv_cpu_head_multiply_by_columns(&product, (const float *)a->dout + at, s->douts, s->values,
                                   s->dp);
  compute_score_grads_of_tile(h, t, s);
  if (a->din[0])
    clv_cpu_head_multiply_by_rows(&product, s->dp, s->key_rows, (float *)a->din[0] + at);
  if (a->din[1])
    clv_cpu_head_multiply_scores_transposed(&product, s->dp, s->queries, !is_first_tile, s->dkeys);
  if (a->din[2])
    clv_cpu_head_multiply_scores_transposed(&product, s->dropped_p, s->douts, !is_first_tile,
                                            s->dvalues);
}

/* Copies the gradients of the head's keys or values to x. Rows of x after the sample's length
 * become 0. */
static void store_gradients(const attention_head *h, const float *gradients, float *x) {
  const attention_kernel *k = h->j->k;
  size_t width = (size_t)k->dims.width;
  if (!x) return;
  for (size_t s = 0; s < (size_t)h->length; s++)
    memcpy(x + key_index(h) + s * key_row_size(k), gradients + s * width, width * sizeof *x);
  for (size_t s = (size_t)h->length; s < (size_t)h->n_keys; s++)
    memset(x + key_index(h) + s * key_row_size(k), 0, width * sizeof *x);
}

static backward_scratch lay_out_backward(const attention_kernel *k, float *scratch) {
  const cpu_head_extents *extents = &k->extents;
  size_t keys_size = clv_cpu_head_keys_size(extents),
         scores_size = extents->max_rows * extents->score_stride;
  size_t dkeys_size = extents->width * extents->score_stride;
  float *dkeys = scratch + 3 * keys_size, *p = dkeys + 2 * dkeys_size,
        *queries = p + 3 * scores_size;
  return (backward_scratch){.keys = scratch,
                            .values = scratch + keys_size,
                            .key_rows = scratch + 2 * keys_size,
                            .dkeys = dkeys,
                            .dvalues = dkeys + dkeys_size,
                            .p = p,
                            .dropped_p = k->has_dropout ? p + scores_size : p,
                            .dp = p + 2 * scores_size,
                            .queries = queries,
                            .douts = queries + clv_cpu_head_tile_size(extents)};
}

/* Returns the size in floats of the scratch of one share, whose end is scratch of the products. */
static size_t count_scratch_floats(const attention_kernel *k) {
  const cpu_head_extents *extents = &k->extents;
  size_t keys_size = clv_cpu_head_keys_size(extents),
         scores_size = extents->max_rows * extents->score_stride;
  size_t dkeys_size = extents->width * extents->score_stride,
         tile_size = clv_cpu_head_tile_size(extents);
  size_t scratch_size = k->k.has_backward
                            ? 3 * keys_size + 2 * dkeys_size + 3 * scores_size + 2 * tile_size
                            : 2 * keys_size + scores_size + tile_size;
  return scratch_size + clv_cpu_head_scratch_size(extents);
}

/* Computes the gradients of query head h.query_head and of the following heads that share its keys.
 * The first tile overwrites the gradients of the keys it attends to, and later tiles add to these,
 * so the gradients of the other keys are zeroed first. */
static void backward_heads(attention_head h) {
  const attention_kernel *k = h.j->k;
  const clv_kernel_args *a = h.j->a;
  const int64_t first_head = h.query_head;
  const size_t n_first_tile_keys = make_tile(&h, 0).keys,
               n_other_keys = (size_t)h.length - n_first_tile_keys;
  const size_t width = (size_t)k->dims.width;
  backward_scratch s = lay_out_backward(k, h.scratch);
  copy_columns(&h, a->in[1], s.keys);
  copy_columns(&h, a->in[2], s.values);
  copy_rows(&h, a->in[1], s.key_rows);
  memset(s.dkeys + n_first_tile_keys * width, 0, n_other_keys * width * sizeof(float));
  memset(s.dvalues + n_first_tile_keys * width, 0, n_other_keys * width * sizeof(float));
  for (; h.query_head < first_head + k->dims.group; h.query_head++)
    for (int64_t i = 0; i < h.n_queries; i += (int64_t)k->extents.max_rows)
      backward_tile(&h, make_tile(&h, i), h.query_head == first_head && i == 0, &s);
  h.query_head = first_head;
  store_gradients(&h, s.dkeys, a->din[1]);
  store_gradients(&h, s.dvalues, a->din[2]);
}

/* ---- making and running the kernel ----------------------------------------------------------- */

/* Describes head number item_index of a list with `heads` heads for each sample. Head i of a sample
 * stands for `group` query heads, of which the first has the index i * group. share_index: index of
 * the share whose scratch the head uses. */
static attention_head make_head(const heads_job *j, size_t item_index, int64_t heads, int64_t group,
                                size_t share_index) {
  const clv_heads *dims = &j->k->dims;
  const int64_t *lengths = j->k->k.d.n_in > 3 ? j->a->in[3] : NULL;
  int64_t n = (int64_t)item_index / heads, length = lengths ? lengths[n] : dims->s;
  attention_head h = {.j = j,
                      .sample = n,
                      .query_head = (int64_t)item_index % heads * group,
                      .length = length,
                      .n_queries = dims->t,
                      .n_keys = dims->s,
                      .first_query_row = n * dims->t,
                      .first_key_row = n * dims->s,
                      .scratch = (float *)j->a->scratch + share_index * j->k->scratch_floats};
  if (!j->k->k.d.attrs.packed) return h;
  h.n_queries = h.n_keys = length;
  h.first_query_row = h.first_key_row = clv_packed_rows_before(lengths, n);
  return h;
}

/* Zeroes the rows after the last packed sequence, in the output or, if is_backward, in the input
 * gradients. */
static void zero_unused_rows(const attention_kernel *k, const clv_kernel_args *a,
                             bool is_backward) {
  const clv_node_desc *d = &k->k.d;
  int64_t n_used_rows =
      d->attrs.packed ? clv_packed_rows_before(a->in[3], k->dims.n) : d->in[0].dim[0];
  for (int i = 0; i < (is_backward ? 3 : 1); i++) {
    float *x = is_backward ? a->din[i] : a->out;
    size_t row_size = (size_t)d->in[i].dim[1];
    if (x && n_used_rows < d->in[0].dim[0])
      memset(x + (size_t)n_used_rows * row_size, 0,
             (size_t)(d->in[0].dim[0] - n_used_rows) * row_size * sizeof *x);
  }
}

static clv_code check_lengths(const attention_kernel *k, const clv_kernel_args *a, clv_err *err) {
  const clv_node_desc *d = &k->k.d;
  int64_t length;
  if (d->attrs.packed)
    return clv_check_packed(a->in[3], k->dims.n, d->attrs.packed, d->in[0].dim[0], err);
  for (int64_t n = 0; d->n_in > 3 && n < k->dims.n; n++)
    CLV_TRY(clv_check_length(a->in[3], n, k->dims.s, &length, err));
  return CLV_OK;
}

/* Computes forward for the heads in the shares [begin, end). A share is a range of all heads. */
static void compute_forward_shares(void *arg, size_t begin, size_t end) {
  const heads_job *j = arg;
  size_t n_shares = (size_t)j->k->n_shares;
  for (size_t share_index = begin; share_index < end; share_index++)
    for (size_t i = j->n_heads * share_index / n_shares;
         i < j->n_heads * (share_index + 1) / n_shares; i++) {
      attention_head h = make_head(j, i, j->k->dims.heads, 1, share_index);
      forward_head(&h);
    }
}

static void compute_backward_shares(void *arg, size_t begin, size_t end) {
  const heads_job *j = arg;
  size_t n_shares = (size_t)j->k->n_shares;
  for (size_t share_index = begin; share_index < end; share_index++)
    for (size_t i = j->n_heads * share_index / n_shares;
         i < j->n_heads * (share_index + 1) / n_shares; i++)
      backward_heads(make_head(j, i, j->k->dims.kv_heads, j->k->dims.group, share_index));
}

static clv_code run_heads(clv_kernel *base, const clv_kernel_args *a, int64_t heads,
                          clv_cpu_range_fn *fn, clv_err *err) {
  const attention_kernel *k = (const attention_kernel *)base;
  heads_job j = {k, a, clv_rng_stream_of(&a->key), (size_t)(k->dims.n * heads)};
  size_t work = clv_layout_numel(&k->k.d.in[0], 1) * (size_t)k->dims.s;
  CLV_TRY(check_lengths(k, a, err));
  zero_unused_rows(k, a, fn == compute_backward_shares);
  clv_cpu_parallel(CLV_MIN(clv_cpu_useful_threads(k->k.threads, work), k->n_shares),
                   (size_t)k->n_shares, fn, &j);
  return CLV_OK;
}

static clv_code attention_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_heads(base, a, ((const attention_kernel *)base)->dims.heads, compute_forward_shares,
                   err);
}

static clv_code attention_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_heads(base, a, ((const attention_kernel *)base)->dims.kv_heads,
                   compute_backward_shares, err);
}

static cpu_head_extents make_extents(const attention_kernel *k) {
  bool uses_pairs =
      k->k.d.bf16 &&
      clv_cpu_choose(CPU_ATTENTION_BF16, clv_cpu_class_of_attention(k->dims.width)) == CPU_PAIRS;
  return (cpu_head_extents){.uses_pairs = uses_pairs,
                            .width = (size_t)k->dims.width,
                            .max_rows = uses_pairs ? PAIRS_TILE_ROWS : TILE_ROWS,
                            .max_keys = (size_t)k->dims.s,
                            .query_stride = query_row_size(k),
                            .key_stride = key_row_size(k),
                            .score_stride = clv_align_up((size_t)k->dims.s, LANES) + LANES};
}

static clv_code attention_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  attention_kernel *k;
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, 1, 1, &k, err));
  k->dims = clv_heads_of(d);
  k->extents = make_extents(k);
  k->n_shares = (int)CLV_MIN((int64_t)k->k.threads, k->dims.n * k->dims.kv_heads);
  size_t width = (size_t)k->dims.width;
  k->scratch_floats = count_scratch_floats(k);
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
