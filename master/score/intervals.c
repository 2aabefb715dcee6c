/* SPDX-License-Identifier: Apache-2.0
 *
 * Intervals of scores by the percentile bootstrap (Efron, 1979): the scores of SAMPLES samples of
 * the records, as many as there are, drawn with replacement. The draws depend on the number of
 * records alone, so equal evaluations have equal intervals.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/score/score_int.h"

enum { SAMPLES = 1000 };
static const double LOW = 0.025, HIGH = 0.975;

typedef struct bootstrap {
  const clv_score *s;
  uint32_t *orders;         /* [classes][n]; NULL: no score needs ranks */
  uint32_t *times, *w;      /* [n_records] times a record was drawn; [n] times a place counts */
  double *values;           /* [CLV_SCORE_VALUES][SAMPLES] */
  clv_class_score *classes; /* [classes] of the present sample */
} bootstrap;

static void free_bootstrap(bootstrap *b) {
  free(b->orders);
  free(b->times);
  free(b->w);
  free(b->values);
  free(b->classes);
}

static clv_code open_bootstrap(const clv_score *s, bootstrap *ret, clv_err *err) {
  size_t n_orders = needs_ranks(s) ? s->o.classes : 0, n;
  if (!clv_mul_size(n_orders, s->n, &n) || n > CLV_SCORE_MAX_KEPT)
    return clv_fail(err, CLV_EXHAUSTED, "intervals of %zu places of %zu classes are too many", s->n,
                    s->o.classes);
  CLV_TRY(clv_alloc(n + 1, sizeof *ret->orders, &ret->orders, err));
  CLV_TRY(clv_alloc(s->n_records + 1, sizeof *ret->times, &ret->times, err));
  CLV_TRY(clv_alloc(s->n + 1, sizeof *ret->w, &ret->w, err));
  CLV_TRY(clv_alloc((size_t)CLV_SCORE_VALUES * SAMPLES, sizeof *ret->values, &ret->values, err));
  CLV_TRY(clv_alloc(s->o.classes, sizeof *ret->classes, &ret->classes, err));
  for (size_t c = 0; c < n_orders; c++) clv_score_rank(s, c, ret->orders + c * s->n);
  return CLV_OK;
}

/* Draws sample number `k`: sets how often each place counts. */
static void draw_sample(bootstrap *b, uint32_t k) {
  const clv_score *s = b->s;
  const clv_rng_key key = {.seed = UINT64_C(0x626f6f7473747261), .step = k};
  uint32_t word[4];
  memset(b->times, 0, s->n_records * sizeof *b->times);
  for (size_t i = 0; i < s->n_records; i++) {
    if (i % 4 == 0) clv_rng_block(&key, (uint32_t)(i / 4), word);
    b->times[(uint64_t)word[i % 4] * s->n_records >> 32]++;
  }
  for (size_t i = 0; i < s->n; i++) b->w[i] = b->times[s->record_of[i]];
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Returns a percentile of sorted values, linear between two of them, as numpy.percentile. */
static double percentile(const double *sorted, size_t n, double share) {
  double at = share * (double)(n - 1);
  size_t i = (size_t)at;
  return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

static clv_interval make_interval(double *values) {
  size_t n = 0;
  for (size_t i = 0; i < SAMPLES; i++)
    if (isfinite(values[i])) values[n++] = values[i];
  if (n < SAMPLES / 2) return (clv_interval){(double)NAN, (double)NAN};
  qsort(values, n, sizeof *values, compare_doubles);
  return (clv_interval){percentile(values, n, LOW), percentile(values, n, HIGH)};
}

clv_code clv_score_compute_intervals(const clv_score *s, clv_scores *r, clv_err *err) {
  CLV_AUTO(free_bootstrap) bootstrap b = {.s = s};
  CLV_TRY(open_bootstrap(s, &b, err));
  clv_scores sample = {.wanted = r->wanted, .n_classes = r->n_classes, .classes = b.classes};
  for (uint32_t k = 0; k < SAMPLES; k++) {
    draw_sample(&b, k);
    clv_score_compute(s, b.w, b.orders, NULL, &sample);
    for (size_t v = 0; v < CLV_SCORE_VALUES; v++) b.values[v * SAMPLES + k] = sample.values[v];
  }
  for (size_t v = 0; v < CLV_SCORE_VALUES; v++)
    r->intervals[v] = make_interval(b.values + v * SAMPLES);
  return CLV_OK;
}
