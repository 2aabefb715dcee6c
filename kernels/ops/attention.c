/* SPDX-License-Identifier: Apache-2.0
 *
 * Each head of y is softmax(q k^T / sqrt(width)) v (Vaswani et al., 2017); several heads of q may
 * share one of k and v (Ainslie et al., 2023). Forward saves only log sum exp of each row of
 * scores, in double; backward recomputes the scores (Dao et al., 2022).
 *
 * Dropout: the weight of key j for query i, head h and sample n is kept if u >= p. u is the top 24
 * bits of word j%4 of block j/4, divided by 2^24, in row i of part n * heads + h of the random
 * stream (clv_kernel_args.key). So u depends neither on the size of the batch nor on padding.
 */
#include "kernels/ops/op_int.h"

static clv_code check_attention_heads(const clv_op_site *s, clv_err *err) {
  const clv_attrs *a = s->attrs;
  int64_t kv = a->kv_heads ? a->kv_heads : a->heads, q = s->in[0].dim[s->in[0].rank - 1],
          k = s->in[1].dim[s->in[1].rank - 1];
  if (a->heads % kv)
    return clv_fail(err, CLV_INVALID, "attention: kv_heads %lld does not divide heads %lld",
                    (long long)kv, (long long)a->heads);
  if (q % a->heads || !q)
    return clv_fail(err, CLV_INVALID,
                    "attention: queries of %lld values do not divide into %lld heads", (long long)q,
                    (long long)a->heads);
  if (k != q / a->heads * kv)
    return clv_fail(err, CLV_INVALID,
                    "attention: keys have %lld values, but %lld heads as wide as the queries' have "
                    "%lld",
                    (long long)k, (long long)kv, (long long)(q / a->heads * kv));
  return CLV_OK;
}

static clv_code attention_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  char text[160], expected_text[160];
  bool is_packed = s->attrs->packed;
  for (int i = 0; i < 3; i++)
    CLV_TRY(clv_check_rank("attention", &s->in[i], is_packed ? 2 : 3,
                           is_packed ? "[T, F]" : "[N, T, F]",
                           is_packed ? "; its sequences are packed" : "", err));
  if (is_packed) CLV_TRY(clv_check_packed_shapes("attention", s, 3, err));
  if (!clv_shape_equal(&s->in[1], &s->in[2]))
    return clv_fail(err, CLV_INVALID, "attention: keys %s and values %s differ",
                    clv_shape_format(&s->in[1], text, sizeof text),
                    clv_shape_format(&s->in[2], expected_text, sizeof expected_text));
  if (s->in[1].dim[0] != s->in[0].dim[0])
    return clv_fail(err, CLV_INVALID,
                    "attention: queries %s and keys %s have different batch sizes",
                    clv_shape_format(&s->in[0], text, sizeof text),
                    clv_shape_format(&s->in[1], expected_text, sizeof expected_text));
  if (s->n_in == 4 && !is_packed && (s->in[3].rank != 1 || s->in[3].dim[0] != s->in[0].dim[0]))
    return clv_fail(err, CLV_INVALID, "attention: lengths are [N], got %s",
                    clv_shape_format(&s->in[3], text, sizeof text));
  CLV_TRY(clv_check_no_empty_dim("attention", &s->in[1], err));
  CLV_TRY(check_attention_heads(s, err));
  *ret = s->in[0];
  return CLV_OK;
}

/* ---- one row of scores ----------------------------------------------------------------------- */

/* State of the loops over samples. x.t and x.s are the numbers of queries and keys of the current
 * sample. */
typedef struct attention_loop_state {
  const clv_ref_kernel *k;
  const clv_kernel_args *a;
  clv_heads x;
  clv_rng_stream stream;
  int64_t query_row, key_row; /* first row of the current sample in the queries, in the keys */
} attention_loop_state;

static attention_loop_state start_loops(clv_kernel *base, const clv_kernel_args *a) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  return (attention_loop_state){k, a, clv_heads_of(&k->d), clv_rng_stream_of(&a->key), 0, 0};
}

/* Returns the index of the first value of row i of head h in a tensor [rows, heads * width]. */
static size_t value_index(const attention_loop_state *s, int64_t i, int64_t heads, int64_t h) {
  return (size_t)((i * heads + h) * s->x.width);
}

/* Makes sample n the current sample of the loops. *ret: number of the sample's valid keys. */
static clv_code select_sample(attention_loop_state *s, int64_t n, int64_t *ret, clv_err *err) {
  const int64_t *lengths = s->k->d.n_in < 4 ? NULL : s->a->in[3];
  int64_t max_keys = clv_heads_of(&s->k->d).s;
  *ret = max_keys;
  if (lengths) CLV_TRY(clv_check_length(lengths, n, max_keys, ret, err));
  if (s->k->d.attrs.packed) {
    s->x.t = s->x.s = *ret;
    s->query_row = s->key_row = clv_packed_rows_before(lengths, n);
  } else {
    s->query_row = n * s->x.t;
    s->key_row = n * s->x.s;
  }
  return CLV_OK;
}

/* For packed sequences, checks their lengths and zeroes, in each x that is not NULL, the rows that
 * follow the last sequence. */
static clv_code zero_unused_rows(const attention_loop_state *s, REAL *const x[3], clv_err *err) {
  const clv_node_desc *d = &s->k->d;
  if (!d->attrs.packed) return CLV_OK;
  CLV_TRY(clv_check_packed(s->a->in[3], s->x.n, d->attrs.packed, d->in[0].dim[0], err));
  int64_t n_used_rows = clv_packed_rows_before(s->a->in[3], s->x.n);
  for (int i = 0; i < 3; i++) {
    size_t row_size = (size_t)d->in[i].dim[1];
    if (x[i])
      memset(x[i] + (size_t)n_used_rows * row_size, 0,
             (size_t)(d->in[i].dim[0] - n_used_rows) * row_size * sizeof(REAL));
  }
  return CLV_OK;
}

static double dot_product(const REAL *x, const REAL *y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * y[i];
  return sum;
}

/* Computes the scores of query i of head h for the keys it attends to, and returns their number. */
static int64_t compute_scores(const attention_loop_state *s, int64_t h, int64_t i, int64_t length,
                              double *ret) {
  int64_t n_keys = clv_count_visible_keys(&s->k->d.attrs, i, length);
  const REAL *q = (const REAL *)s->a->in[0] + value_index(s, s->query_row + i, s->x.heads, h);
  for (int64_t j = 0; j < n_keys; j++)
    ret[j] =
        s->x.scale * dot_product(q,
                                 (const REAL *)s->a->in[1] +
                                     value_index(s, s->key_row + j, s->x.kv_heads, h / s->x.group),
                                 s->x.width);
  return n_keys;
}

/* Returns log sum exp of n values; -inf for n = 0. */
static double log_sum_exp(const double *x, int64_t n) {
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
  for (int64_t i = 0; i < n; i++) sum += exp(x[i] - largest);
  return n ? largest + log(sum) : largest;
}

/* Draws the dropout factors of the weights of query i: 0 for a dropped key, else 1 / (1 - p). */
static void draw_dropout_factors(const attention_loop_state *s, int64_t n, int64_t h, int64_t i,
                                 int64_t n_keys, double *ret) {
  double p = s->k->d.attrs.p;
  uint32_t random_words[4] = {0};
  clv_rng_stream row_stream =
      clv_rng_stream_row(&s->stream, (uint32_t)(n * s->x.heads + h), (uint32_t)i);
  for (int64_t j = 0; j < n_keys; j++) {
    if (j % 4 == 0) clv_rng_stream_block(&row_stream, (uint32_t)(j / 4), random_words);
    ret[j] = (random_words[j % 4] >> 8) * 0x1p-24 >= p ? 1 / (1 - p) : 0;
  }
}

static void fill_ones(int64_t n, double *ret) {
  for (int64_t j = 0; j < n; j++) ret[j] = 1;
}

static void fill_dropout_factors(const attention_loop_state *s, int64_t n, int64_t h, int64_t i,
                                 int64_t n_keys, double *ret) {
  bool has_dropout = s->k->d.training && s->k->d.attrs.p > 0;
  if (has_dropout)
    draw_dropout_factors(s, n, h, i, n_keys, ret);
  else
    fill_ones(n_keys, ret);
}

/* Returns the address of the saved log sum exp of row i of head h. */
static double *saved_log_sum_address(const attention_loop_state *s, int64_t h, int64_t i) {
  return (double *)s->a->saved + s->query_row * s->x.heads + h * s->x.t + i;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Computes row i of head h of the output. The scratch buffer holds the scores of the row, followed
 * by its dropout factors. */
static void compute_output_row(const attention_loop_state *s, int64_t n, int64_t h, int64_t i,
                               int64_t length) {
  double *scores = s->a->scratch, *factors = scores + s->x.s;
  int64_t n_keys = compute_scores(s, h, i, length, scores);
  double log_sum = log_sum_exp(scores, n_keys);
  fill_dropout_factors(s, n, h, i, n_keys, factors);
  REAL *out = (REAL *)s->a->out + value_index(s, s->query_row + i, s->x.heads, h);
  const REAL *v =
      (const REAL *)s->a->in[2] + value_index(s, s->key_row, s->x.kv_heads, h / s->x.group);
  for (int64_t d = 0; d < s->x.width; d++) {
    double sum = 0;
    for (int64_t j = 0; j < n_keys; j++)
      sum += exp(scores[j] - log_sum) * factors[j] * v[j * s->x.kv_heads * s->x.width + d];
    out[d] = (REAL)sum;
  }
  if (s->k->has_backward) *saved_log_sum_address(s, h, i) = log_sum;
}

static clv_code attention_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  attention_loop_state s = start_loops(base, a);
  int64_t length;
  CLV_TRY(zero_unused_rows(&s, (REAL *const[3]){a->out, NULL, NULL}, err));
  for (int64_t n = 0; n < s.x.n; n++) {
    CLV_TRY(select_sample(&s, n, &length, err));
    for (int64_t h = 0; h < s.x.heads; h++)
      for (int64_t i = 0; i < s.x.t; i++) compute_output_row(&s, n, h, i, length);
  }
  return CLV_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Gradients of the keys and of the values of one head, [S, width] each. */
typedef struct head_key_value_grads {
  double *dk, *dv;
} head_key_value_grads;

/* Adds the gradients of query i of head h. With the weights P = exp(score - log sum) and the
 * dropout factors M: dv_j += P_j M_j dout, dP_j = M_j dout v_j, dS_j = P_j (dP_j - sum_j P_j dP_j),
 * dq += dS_j k_j scale, dk_j += dS_j q scale. The scratch buffer holds the scores, the dropout
 * factors and dP, one after another. Source: Dao et al., 2022. */
static void add_row_gradients(const attention_loop_state *s, int64_t n, int64_t h, int64_t i,
                              int64_t length, head_key_value_grads to) {
  double *scores = s->a->scratch, *factors = scores + s->x.s, *dp = factors + s->x.s, mean_dp = 0;
  int64_t n_keys = compute_scores(s, h, i, length, scores), width = s->x.width;
  int64_t row_stride = s->x.kv_heads * width;
  size_t query_index = value_index(s, s->query_row + i, s->x.heads, h);
  size_t key_index = value_index(s, s->key_row, s->x.kv_heads, h / s->x.group);
  const REAL *q = (const REAL *)s->a->in[0] + query_index,
             *dy = (const REAL *)s->a->dout + query_index;
  const REAL *k = (const REAL *)s->a->in[1] + key_index, *v = (const REAL *)s->a->in[2] + key_index;
  const double log_sum = *saved_log_sum_address(s, h, i);
  fill_dropout_factors(s, n, h, i, n_keys, factors);
  for (int64_t j = 0; j < n_keys; j++) {
    scores[j] = exp(scores[j] - log_sum);
    dp[j] = factors[j] * dot_product(dy, v + j * row_stride, width);
    mean_dp += scores[j] * dp[j];
  }
  for (int64_t j = 0; j < n_keys; j++) {
    double ds = scores[j] * (dp[j] - mean_dp) * s->x.scale;
    for (int64_t d = 0; d < width; d++) {
      to.dv[j * width + d] += scores[j] * factors[j] * dy[d];
      to.dk[j * width + d] += ds * q[d];
    }
    dp[j] = ds;
  }
  REAL *dq = s->a->din[0] ? (REAL *)s->a->din[0] + query_index : NULL;
  for (int64_t d = 0; dq && d < width; d++) {
    double sum = 0;
    for (int64_t j = 0; j < n_keys; j++) sum += dp[j] * k[j * row_stride + d];
    dq[d] = (REAL)sum;
  }
}

/* Writes the gradients of head g of the keys (input 1) or of the values (input 2), unless
 * din[input] is NULL. */
static void store_key_grads(const attention_loop_state *s, int64_t g, int input,
                            const double *from) {
  REAL *to = s->a->din[input];
  for (int64_t j = 0; to && j < s->x.s; j++)
    for (int64_t d = 0; d < s->x.width; d++)
      to[value_index(s, s->key_row + j, s->x.kv_heads, g) + (size_t)d] =
          (REAL)from[j * s->x.width + d];
}

static clv_code attention_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  attention_loop_state s = start_loops(base, a);
  size_t key_grads_size = (size_t)(s.x.s * s.x.width);
  double *rows = a->scratch;
  head_key_value_grads to = {rows + 3 * s.x.s, rows + 3 * s.x.s + key_grads_size};
  int64_t length;
  CLV_TRY(zero_unused_rows(&s, (REAL *const[3]){a->din[0], a->din[1], a->din[2]}, err));
  for (int64_t n = 0; n < s.x.n; n++) {
    CLV_TRY(select_sample(&s, n, &length, err));
    for (int64_t g = 0; g < s.x.kv_heads; g++) {
      memset(to.dk, 0, 2 * key_grads_size * sizeof *to.dk);
      for (int64_t h = g * s.x.group; h < (g + 1) * s.x.group; h++)
        for (int64_t i = 0; i < s.x.t; i++) add_row_gradients(&s, n, h, i, length, to);
      store_key_grads(&s, g, 1, to.dk);
      store_key_grads(&s, g, 2, to.dv);
    }
  }
  return CLV_OK;
}

/* ---- buffers, limits and row of the op ------------------------------------------------------- */

static size_t attention_saved_bytes(const clv_ref_kernel *k) {
  clv_heads x = clv_heads_of(&k->d);
  return k->n_in / (size_t)x.width * sizeof(double);
}

static size_t attention_scratch_bytes(const clv_ref_kernel *k) {
  clv_heads x = clv_heads_of(&k->d);
  return (size_t)(x.s * (3 + 2 * x.width)) * sizeof(double);
}

/* Fails if samples times heads exceed the 32 bits in which the random stream numbers them. */
static clv_code check_attention_limits(const clv_node_desc *d, clv_err *err) {
  int64_t n = clv_heads_of(d).n;
  if (n <= UINT32_MAX / d->attrs.heads) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "attention of %lld samples by %lld heads: the product must be below 2^32",
                  (long long)n, (long long)d->attrs.heads);
}

CLV_OP_ROW(attention) = {
    .name = "attention",
    .doc =
        "y = dropout(softmax(q k' / sqrt(width))) v in each head: queries [N, T, heads width], "
        "keys "
        "and values [N, S, kv_heads width]; with lengths [N] only the first keys of a sample "
        "count; "
        "packed: [T, ...] for [N, T, ...], one sequence after another "
        "(torch.nn.functional.scaled_dot_product_attention; other random numbers)",
    .torch_module = "",
    .no_torch_module = "scaled_dot_product_attention is a function",
    .n_in = 3,
    .max_in = 4,
    .takes_lengths = true,
    .packing = CLV_PACKS_LENGTHS,
    .attrs = {{.key = CLV_ATTR_HEADS, .is_required = true, .low = 1, .high = 65536},
              {.key = CLV_ATTR_KV_HEADS, .low = 0, .high = 65536},
              {.key = CLV_ATTR_CAUSAL, .low = 0, .high = 1},
              {.key = CLV_ATTR_P, .low = 0, .high = 0.999},
              PACKED_ATTR},
    .shape = attention_shape,
    .check_kernel = check_attention_limits,
    .forward = attention_forward,
    .backward_input = attention_backward,
    .saved_for_dx = CLV_SAVE_IN0 | CLV_SAVE_IN1 | CLV_SAVE_IN2 | CLV_SAVE_IN3,
    .saved_bytes = attention_saved_bytes,
    .scratch_bytes = attention_scratch_bytes,
};
