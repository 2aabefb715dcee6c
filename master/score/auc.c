/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the area under the ROC curve from ranks. R are the ranks of the P places of a class
 * among all n places; places with equal values share the mean of their ranks. The AUC is (sum R - P
 * (P + 1) / 2) / (P (n - P)). Log-probabilities are used, which order as probabilities do.
 *
 */
#include "master/score/score_int.h"

#include <math.h>
#include <stdlib.h>

typedef struct ranked {
  double p;
  bool has_label;
} ranked;

/* Orders by p; NaN ranks below all. */
static int compare_p(const void *a, const void *b) {
  double x = ((const ranked *)a)->p, y = ((const ranked *)b)->p;
  if (isnan(x) || isnan(y)) return !isnan(x) - !isnan(y);
  return (x > y) - (x < y);
}

static bool has_equal_p(const ranked *a, const ranked *b) { return compare_p(a, b) == 0; }

/* Twice the sum of the ranks of the class. Twice, because that is an integer. */
static double sum_twice_ranks(const ranked *list, size_t n) {
  double sum = 0;
  for (size_t i = 0, end; i < n; i = end) {
    size_t own = 0;
    for (end = i; end < n && has_equal_p(&list[i], &list[end]); end++) own += list[end].has_label;
    sum += (double)own * (double)(i + 1 + end);
  }
  return sum;
}

static double compute_class_auc(const clv_score *s, size_t c, ranked *list) {
  size_t own = 0;
  for (size_t i = 0; i < s->n; i++) {
    list[i] = (ranked){.p = s->kept_p[i * s->o.classes + c], .has_label = s->labels[i] == c};
    own += list[i].has_label;
  }
  if (!own || own == s->n) return (double)NAN;
  qsort(list, s->n, sizeof *list, compare_p);
  double p = (double)own, rest = (double)(s->n - own);
  return (sum_twice_ranks(list, s->n) - p * (p + 1)) / (2 * p * rest);
}

clv_code clv_score_compute_auc(const clv_score *s, clv_class_score *classes, clv_err *err) {
  CLV_AUTO(clv_freep) ranked *list = NULL;
  CLV_TRY(clv_alloc(s->n + 1, sizeof *list, &list, err));
  for (size_t c = 0; c < s->o.classes; c++) classes[c].auc = compute_class_auc(s, c, list);
  return CLV_OK;
}
