/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores that follow from the order of probabilities. The area under the ROC curve of class c
 * versus the rest is the share of pairs of a place with label c and one without that the
 * probabilities of class c order rightly, equal ones counting half (Mann and Whitney). With the sum
 * of the ranks R of the P places with label c among all n, ranks of equal ones averaged: AUC = (R -
 * P (P + 1) / 2) / (P (n - P)). Log-probabilities are used, which order as probabilities do.
 */
#include <math.h>
#include <stdlib.h>

#include "master/score/score_int.h"

typedef struct ranking {
  const clv_score *s;
  size_t class;
} ranking;

static double p_of(const ranking *k, size_t i) {
  return k->s->kept_p[i * k->s->o.classes + k->class];
}

/* Orders by p; NaN ranks below all. */
static int compare_p(double x, double y) {
  if (isnan(x) || isnan(y)) return !isnan(x) - !isnan(y);
  return (x > y) - (x < y);
}

static int compare_places(const void *a, const void *b, void *user) {
  return compare_p(p_of(user, *(const uint32_t *)a), p_of(user, *(const uint32_t *)b));
}

void clv_score_rank(const clv_score *s, size_t c, uint32_t *order) {
  ranking k = {s, c};
  for (size_t i = 0; i < s->n; i++) order[i] = (uint32_t)i;
  qsort_r(order, s->n, sizeof *order, compare_places, &k);
}

/* A run of places with equal probability: how many have the label, and how many there are. */
typedef struct tie {
  uint64_t own, all;
} tie;

/* Counts the run that begins at order[at], upwards or downwards. Returns the index behind it. */
static size_t count_tie(const ranking *k, const uint32_t *order, size_t at, int step,
                        const uint32_t *w, tie *ret) {
  double p = p_of(k, order[at]);
  *ret = (tie){0, 0};
  for (; at < k->s->n && compare_p(p, p_of(k, order[at])) == 0; at += (size_t)(int64_t)step) {
    uint64_t n = count_of(w, order[at]);
    ret->all += n;
    if (has_label(k->s, order[at], k->class)) ret->own += n;
  }
  return at;
}

/* Twice the sum of the ranks of the class. Twice, because that is an integer. */
static double sum_twice_ranks(const ranking *k, const uint32_t *order, const uint32_t *w) {
  uint64_t seen = 0;
  double sum = 0;
  tie t;
  for (size_t at = 0; at < k->s->n; seen += t.all) {
    at = count_tie(k, order, at, 1, w, &t);
    sum += (double)t.own * (double)(2 * seen + t.all + 1);
  }
  return sum;
}

/* The ROC curve of one class, as it is walked from the highest threshold down. */
typedef struct curve {
  double own, rest;         /* places with the label, and without */
  double hits, false_hits;  /* places above the threshold, with the label and without */
  double average_precision; /* sum so far */
  double sensitivity;       /* the largest so far at the wanted specificity */
} curve;

static void pass_tie(curve *v, const tie *t, double specificity) {
  v->hits += (double)t->own;
  v->false_hits += (double)(t->all - t->own);
  if (t->own)
    v->average_precision += (double)t->own / v->own * (v->hits / (v->hits + v->false_hits));
  if ((v->rest - v->false_hits) / v->rest >= specificity) v->sensitivity = v->hits / v->own;
}

/* Notes the present point at the steps of the curve that it reaches. */
static void note_point(const curve *v, float *roc) {
  for (int i = 0; i <= CLV_ROC_STEPS; i++)
    if (v->false_hits * CLV_ROC_STEPS <= v->rest * i) roc[i] = (float)(v->hits / v->own);
}

static void walk_down(const ranking *k, const uint32_t *order, const uint32_t *w, curve *v,
                      float *roc) {
  tie t;
  for (size_t at = k->s->n - 1; at < k->s->n;) {
    at = count_tie(k, order, at, -1, w, &t);
    pass_tie(v, &t, k->s->o.specificity);
    if (roc && v->rest > 0) note_point(v, roc);
  }
}

void clv_score_compute_ranks(const clv_score *s, size_t c, const uint32_t *order, const uint32_t *w,
                             clv_class_score *ret) {
  const ranking k = {s, c};
  uint64_t own = 0, all = 0;
  ret->auc = ret->average_precision = ret->sensitivity = (double)NAN;
  for (size_t i = 0; i < s->n; i++) {
    all += count_of(w, i);
    if (has_label(s, i, c)) own += count_of(w, i);
  }
  if (!own) return;
  curve v = {.own = (double)own, .rest = (double)(all - own)};
  walk_down(&k, order, w, &v, w ? NULL : ret->roc);
  if (s->o.wanted & CLV_SCORE_AVERAGE_PRECISION) ret->average_precision = v.average_precision;
  if (own == all) return;
  if (s->o.wanted & CLV_SCORE_SENSITIVITY) ret->sensitivity = v.sensitivity;
  if (s->o.wanted & CLV_SCORE_AUC)
    ret->auc = (sum_twice_ranks(&k, order, w) - v.own * (v.own + 1)) / (2 * v.own * v.rest);
}
