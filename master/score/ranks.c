/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the scores that depend on the order of the probabilities. The area under the ROC curve
 * (AUC) of class c versus the rest: form all pairs of a position with label c and a position
 * without it. AUC is the fraction of pairs in which the position with label c has the larger
 * probability of c; a pair with equal probabilities counts half (Mann and Whitney). To compute AUC,
 * all n positions are ranked by this probability, and positions with equal probabilities have the
 * mean of their ranks. With R, the sum of the ranks of the P positions with label c, AUC =
 * (R - P * (P + 1) / 2) / (P * (n - P)). The code compares log-probabilities, which sort as the
 * probabilities do.
 */
#include <math.h>
#include <stdlib.h>

#include "master/score/score_int.h"

/* Context of the sort by compare_positions: the class whose probabilities are compared. */
typedef struct rank_context {
  const clv_score *s;
  size_t class;
} rank_context;

static double get_log_p(const rank_context *k, size_t i) {
  return k->s->position_log_p[i * k->s->o.n_classes + k->class];
}

/* Compares two log-probabilities; NaN is below all others. */
static int compare_log_p(double x, double y) {
  if (isnan(x) || isnan(y)) return !isnan(x) - !isnan(y);
  return (x > y) - (x < y);
}

static int compare_positions(const void *a, const void *b, void *user) {
  return compare_log_p(get_log_p(user, *(const uint32_t *)a),
                       get_log_p(user, *(const uint32_t *)b));
}

void clv_score_rank(const clv_score *s, size_t c, uint32_t *order) {
  rank_context k = {s, c};
  for (size_t i = 0; i < s->n; i++) order[i] = (uint32_t)i;
  qsort_r(order, s->n, sizeof *order, compare_positions, &k);
}

/* Positions with equal probability: how many have the label, and how many there are. */
typedef struct tie {
  uint64_t n_with_label, n;
} tie;

/* Counts the positions with the same probability as order[at]. Walks through `order` from `at`
 * upward (step 1) or downward (step -1), and returns the first index with another probability; the
 * index is outside of the array if there is none. */
static size_t find_tie_end(const rank_context *k, const uint32_t *order, size_t at, int step,
                           const uint32_t *w, tie *ret) {
  double log_p = get_log_p(k, order[at]);
  *ret = (tie){0, 0};
  for (; at < k->s->n && compare_log_p(log_p, get_log_p(k, order[at])) == 0;
       at += (size_t)(int64_t)step) {
    uint64_t n = get_position_weight(w, order[at]);
    ret->n += n;
    if (has_label(k->s, order[at], k->class)) ret->n_with_label += n;
  }
  return at;
}

/* Returns twice the sum of the ranks of the positions with the label. Tied positions have their
 * mean rank, which may be a half, but the doubled sum is always an integer. */
static double compute_twice_rank_sum(const rank_context *k, const uint32_t *order,
                                     const uint32_t *w) {
  uint64_t n_below = 0;
  double sum = 0;
  tie t;
  for (size_t at = 0; at < k->s->n; n_below += t.n) {
    at = find_tie_end(k, order, at, 1, w, &t);
    sum += (double)t.n_with_label * (double)(2 * n_below + t.n + 1);
  }
  return sum;
}

/* Sums over the positions of one class (versus the rest) whose probability reaches a threshold.
 * compute_curve lowers the threshold from the largest probability to the smallest. */
typedef struct curve_sums {
  /* weighted numbers of positions (records or tokens) that have, or do not have, the label of the
   * class */
  double n_with_label, n_without_label;
  /* weighted numbers of positions whose probability is not below the threshold: with the label
   * (true_positives) and without it (false_positives) */
  double true_positives, false_positives;
  double average_precision; /* average precision, summed over the thresholds so far */
  /* largest sensitivity so far at a threshold with at least the required specificity */
  double sensitivity;
} curve_sums;

/* Lowers the threshold to the probability that the positions of the tie t share. */
static void lower_threshold(curve_sums *v, const tie *t, double specificity) {
  v->true_positives += (double)t->n_with_label;
  v->false_positives += (double)(t->n - t->n_with_label);
  if (t->n_with_label)
    v->average_precision += (double)t->n_with_label / v->n_with_label *
                            (v->true_positives / (v->true_positives + v->false_positives));
  if ((v->n_without_label - v->false_positives) / v->n_without_label >= specificity)
    v->sensitivity = v->true_positives / v->n_with_label;
}

/* Stores the sensitivity at the present threshold in each roc[i] for which the present value of 1 -
 * specificity is at most i / CLV_ROC_STEPS. */
static void store_roc_point(const curve_sums *v, float *roc) {
  for (int i = 0; i <= CLV_ROC_STEPS; i++)
    if (v->false_positives * CLV_ROC_STEPS <= v->n_without_label * i)
      roc[i] = (float)(v->true_positives / v->n_with_label);
}

/* Computes the sums of v and the ROC curve of a class, from the highest threshold to the lowest.
 * roc: receives the points of the curve; NULL: not wanted. */
static void compute_curve(const rank_context *k, const uint32_t *order, const uint32_t *w,
                          curve_sums *v, float *roc) {
  tie t;
  for (size_t at = k->s->n - 1; at < k->s->n;) {
    at = find_tie_end(k, order, at, -1, w, &t);
    lower_threshold(v, &t, k->s->o.specificity);
    if (roc && v->n_without_label > 0) store_roc_point(v, roc);
  }
}

void clv_score_compute_ranks(const clv_score *s, size_t c, const uint32_t *order, const uint32_t *w,
                             clv_class_score *ret) {
  const rank_context k = {s, c};
  uint64_t n_with_label = 0, n = 0;
  ret->auc = ret->average_precision = ret->sensitivity = (double)NAN;
  for (size_t i = 0; i < s->n; i++) {
    n += get_position_weight(w, i);
    if (has_label(s, i, c)) n_with_label += get_position_weight(w, i);
  }
  if (!n_with_label) return;
  curve_sums v = {.n_with_label = (double)n_with_label,
                  .n_without_label = (double)(n - n_with_label)};
  compute_curve(&k, order, w, &v, w ? NULL : ret->roc);
  if (s->o.score_bits & CLV_SCORE_AVERAGE_PRECISION) ret->average_precision = v.average_precision;
  if (n_with_label == n) return;
  if (s->o.score_bits & CLV_SCORE_SENSITIVITY) ret->sensitivity = v.sensitivity;
  if (s->o.score_bits & CLV_SCORE_AUC)
    ret->auc = (compute_twice_rank_sum(&k, order, w) - v.n_with_label * (v.n_with_label + 1)) /
               (2 * v.n_with_label * v.n_without_label);
}
