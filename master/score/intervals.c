/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes intervals of scores by the percentile bootstrap (Efron, 1979). Each of
 * N_BOOTSTRAP_SAMPLES samples has as many records as the evaluation, drawn from them with
 * replacement. The draws depend on the number of records alone, so equal evaluations have equal
 * intervals.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/score/score_int.h"

enum { N_BOOTSTRAP_SAMPLES = 1000 };
static const double LOW_SHARE = 0.025, HIGH_SHARE = 0.975; /* both ends: percentile / 100 */

/* Buffers for computing the intervals of all scores. */
typedef struct bootstrap {
  const clv_score *s;
  uint32_t *orders;         /* [n_classes][n] results of clv_score_rank, if a score needs ranks */
  uint32_t *n_draws;        /* [n_records] how often the present sample has each record */
  uint32_t *w;              /* [n] how often the present sample has each position */
  double *values;           /* [CLV_SCORE_VALUES][N_BOOTSTRAP_SAMPLES] scores of each sample */
  clv_class_score *classes; /* [n_classes] class scores of the present sample */
} bootstrap;

static void free_bootstrap(bootstrap *b) {
  free(b->orders);
  free(b->n_draws);
  free(b->w);
  free(b->values);
  free(b->classes);
}

static clv_code open_bootstrap(const clv_score *s, bootstrap *ret, clv_err *err) {
  size_t n_orders = needs_ranks(s) ? s->o.n_classes : 0, n;
  if (!clv_mul_size(n_orders, s->n, &n) || n > CLV_SCORE_MAX_KEPT_VALUES)
    return clv_fail(err, CLV_EXHAUSTED, "intervals of %zu places of %zu classes are too many", s->n,
                    s->o.n_classes);
  CLV_TRY(clv_alloc(n + 1, sizeof *ret->orders, &ret->orders, err));
  CLV_TRY(clv_alloc(s->n_records + 1, sizeof *ret->n_draws, &ret->n_draws, err));
  CLV_TRY(clv_alloc(s->n + 1, sizeof *ret->w, &ret->w, err));
  CLV_TRY(clv_alloc((size_t)CLV_SCORE_VALUES * N_BOOTSTRAP_SAMPLES, sizeof *ret->values,
                    &ret->values, err));
  CLV_TRY(clv_alloc(s->o.n_classes, sizeof *ret->classes, &ret->classes, err));
  for (size_t c = 0; c < n_orders; c++) clv_score_rank(s, c, ret->orders + c * s->n);
  return CLV_OK;
}

/* Draws sample number k: computes b->n_draws and b->w. */
static void draw_sample(bootstrap *b, uint32_t k) {
  const clv_score *s = b->s;
  const clv_rng_key key = {.seed = UINT64_C(0x626f6f7473747261), .step = k};
  uint32_t random_words[4];
  memset(b->n_draws, 0, s->n_records * sizeof *b->n_draws);
  for (size_t i = 0; i < s->n_records; i++) {
    if (i % 4 == 0) clv_rng_block(&key, (uint32_t)(i / 4), random_words);
    b->n_draws[(uint64_t)random_words[i % 4] * s->n_records >> 32]++;
  }
  for (size_t i = 0; i < s->n; i++) b->w[i] = b->n_draws[s->record_indices[i]];
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Returns a percentile of sorted values, interpolated linearly between two of them, as
 * numpy.percentile does. share: percentile / 100. */
static double percentile(const double *sorted_values, size_t n, double share) {
  double at = share * (double)(n - 1);
  size_t i = (size_t)at;
  return i + 1 < n ? sorted_values[i] + (at - (double)i) * (sorted_values[i + 1] - sorted_values[i])
                   : sorted_values[n - 1];
}

/* Returns the interval of a score. Sorts `values`, the scores of the samples, in place. */
static clv_interval compute_interval(double *values) {
  size_t n = 0;
  for (size_t i = 0; i < N_BOOTSTRAP_SAMPLES; i++)
    if (isfinite(values[i])) values[n++] = values[i];
  if (n < N_BOOTSTRAP_SAMPLES / 2) return (clv_interval){(double)NAN, (double)NAN};
  qsort(values, n, sizeof *values, compare_doubles);
  return (clv_interval){percentile(values, n, LOW_SHARE), percentile(values, n, HIGH_SHARE)};
}

clv_code clv_score_compute_intervals(const clv_score *s, clv_scores *r, clv_err *err) {
  CLV_AUTO(free_bootstrap) bootstrap b = {.s = s};
  CLV_TRY(open_bootstrap(s, &b, err));
  clv_scores sample = {
      .score_bits = r->score_bits, .n_classes = r->n_classes, .classes = b.classes};
  for (uint32_t k = 0; k < N_BOOTSTRAP_SAMPLES; k++) {
    draw_sample(&b, k);
    clv_score_compute(s, b.w, b.orders, NULL, &sample);
    for (size_t v = 0; v < CLV_SCORE_VALUES; v++)
      b.values[v * N_BOOTSTRAP_SAMPLES + k] = sample.values[v];
  }
  for (size_t v = 0; v < CLV_SCORE_VALUES; v++)
    r->intervals[v] = compute_interval(b.values + v * N_BOOTSTRAP_SAMPLES);
  return CLV_OK;
}
