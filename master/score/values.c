/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the values of an evaluation from counts and kept places (clv_score_compute). Places may
 * count several times, as samples of the bootstrap have them.
 */
#include <math.h>
#include <string.h>

#include "master/score/score_int.h"

static double ratio(uint64_t part, uint64_t of) { return of ? (double)part / (double)of : 0; }

/* ---- counts ---------------------------------------------------------------------------------- */

static void compute_class_scores(const clv_class_score *counts, clv_class_score *ret) {
  *ret = (clv_class_score){
      .labels = counts->labels, .answers = counts->answers, .right = counts->right};
  ret->precision = ratio(ret->right, ret->answers);
  ret->recall = ratio(ret->right, ret->labels);
  ret->f1 = ratio(2 * ret->right, ret->labels + ret->answers);
  ret->auc = ret->average_precision = ret->sensitivity = (double)NAN;
}

/* Recomputes the counts of labels, answers and right answers of a bootstrap sample, in which place
 * i occurs w[i] times. Returns how many places (with several labels: records) are answered entirely
 * right. */
static uint64_t count_again(const clv_score *s, const uint32_t *w, clv_class_score *counts) {
  size_t classes = s->o.classes;
  uint64_t right = 0;
  memset(counts, 0, classes * sizeof *counts);
  for (size_t i = 0; i < s->n; i++) {
    size_t same = 0;
    for (size_t c = 0; s->bits && c < classes; c++) {
      uint8_t bits = s->bits[i * classes + c];
      if (bits & IS_LABEL) counts[c].labels += w[i];
      if (bits & IS_ANSWER) counts[c].answers += w[i];
      if (bits == (IS_LABEL | IS_ANSWER)) counts[c].right += w[i];
      same += bits != IS_LABEL && bits != IS_ANSWER;
    }
    if (!s->bits) {
      counts[s->labels[i]].labels += w[i];
      counts[s->answers[i]].answers += w[i];
      if (s->labels[i] == s->answers[i]) counts[s->labels[i]].right += w[i];
    }
    if (s->bits ? same == classes : s->labels[i] == s->answers[i]) right += w[i];
  }
  return right;
}

/* Computes the values of counts. n_right: places of which all is right; n: places. */
static void compute_count_values(uint64_t n_right, uint64_t n, clv_scores *r) {
  uint64_t right = 0, of = 0, seen = 0;
  double f1 = 0;
  for (size_t c = 0; c < r->n_classes; c++) {
    const clv_class_score *k = &r->classes[c];
    right += k->right;
    of += k->labels + k->answers;
    f1 += k->f1;
    seen += k->labels + k->answers > 0;
  }
  r->values[CLV_VALUE_ACCURACY] = n ? ratio(n_right, n) : (double)NAN;
  r->values[CLV_VALUE_F1_MICRO] = n ? ratio(2 * right, of) : (double)NAN;
  r->values[CLV_VALUE_F1_MACRO] = seen ? f1 / (double)seen : (double)NAN;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Returns the mean over the classes that define a score; of two classes that of class 1. offset: of
 * the score in clv_class_score. */
static double mean_of_classes(const clv_score *s, const clv_scores *r, size_t offset) {
  double sum = 0;
  uint64_t n = 0;
  for (size_t c = 0; c < r->n_classes; c++) {
    double v = *(const double *)(const void *)((const char *)&r->classes[c] + offset);
    if (r->n_classes == 2 && !s->bits && c == 1) return v;
    if (isnan(v)) continue;
    sum += v;
    n++;
  }
  return n ? sum / (double)n : (double)NAN;
}

static void compute_rank_values(const clv_score *s, const uint32_t *w, const uint32_t *orders,
                                uint32_t *scratch, clv_scores *r) {
  for (size_t c = 0; c < r->n_classes && s->n; c++) {
    const uint32_t *order = orders ? orders + c * s->n : scratch;
    if (!orders) clv_score_rank(s, c, scratch);
    clv_score_compute_ranks(s, c, order, w, &r->classes[c]);
  }
  r->values[CLV_VALUE_AUC] = mean_of_classes(s, r, offsetof(clv_class_score, auc));
  r->values[CLV_VALUE_AVERAGE_PRECISION] =
      mean_of_classes(s, r, offsetof(clv_class_score, average_precision));
  r->values[CLV_VALUE_SENSITIVITY] = mean_of_classes(s, r, offsetof(clv_class_score, sensitivity));
}

/* ---- probabilities --------------------------------------------------------------------------- */

/* Returns the bin of a probability: the number of inner edges below it, so that an edge belongs to
 * the bin below. */
static size_t bin_of(double p) {
  size_t b = 0;
  while (b + 1 < CLV_CALIBRATION_BINS && p > (double)(b + 1) * (1.0 / CLV_CALIBRATION_BINS)) b++;
  return b;
}

static void compute_ece(const clv_score *s, const uint32_t *w, clv_scores *r) {
  double sum = 0;
  uint64_t n = 0;
  memset(r->bins, 0, sizeof r->bins);
  for (size_t i = 0; i < s->n; i++) {
    const double *p = s->kept_p + i * s->o.classes;
    size_t c = 1;
    for (size_t k = 0; s->o.classes > 2 && k < s->o.classes; k++)
      if (k == 0 || p[k] > p[c]) c = k;
    clv_calibration_bin *b = &r->bins[bin_of(exp(p[c]))];
    b->places += count_of(w, i);
    b->sum += (double)count_of(w, i) * exp(p[c]);
    if (s->labels[i] == c) b->right += count_of(w, i);
    n += count_of(w, i);
  }
  for (int b = 0; b < CLV_CALIBRATION_BINS; b++)
    sum += fabs((double)r->bins[b].right - r->bins[b].sum);
  r->values[CLV_VALUE_ECE] = n ? sum / (double)n : (double)NAN;
}

static void compute_perplexity(const clv_score *s, const uint32_t *w, clv_scores *r) {
  double sum = s->log_loss;
  uint64_t n = s->n;
  if (w) sum = 0, n = 0;
  for (size_t i = 0; w && i < s->n; i++) {
    sum -= w[i] * s->kept_p[i * s->o.classes + s->labels[i]];
    n += w[i];
  }
  if (n) r->values[CLV_VALUE_PERPLEXITY] = exp(sum / (double)n);
}

/* ---- numbers --------------------------------------------------------------------------------- */

typedef struct column_sums {
  double n, target, absolute, square, spread;
} column_sums;

static column_sums sum_column(const clv_score *s, const uint32_t *w, size_t c) {
  size_t width = s->o.classes;
  column_sums m = {0};
  for (size_t i = 0; i < s->n; i++) {
    const float *row = s->numbers + i * 2 * width;
    double d = (double)row[c] - (double)row[width + c], k = (double)count_of(w, i);
    m.n += k;
    m.target += k * (double)row[width + c];
    m.absolute += k * fabs(d);
    m.square += k * d * d;
  }
  for (size_t i = 0; i < s->n; i++) {
    double d = (double)s->numbers[(i * 2 + 1) * width + c] - m.target / m.n;
    m.spread += (double)count_of(w, i) * d * d;
  }
  return m;
}

static double r2_of(const column_sums *m) {
  if (m->n < 2) return (double)NAN;
  if (m->spread > 0 || isnan(m->spread)) return 1 - m->square / m->spread;
  return m->square > 0 ? 0 : 1;
}

static void compute_number_values(const clv_score *s, const uint32_t *w, clv_scores *r) {
  double absolute = 0, root = 0, r2 = 0, width = (double)s->o.classes;
  if (!s->n) return;
  for (size_t c = 0; c < s->o.classes; c++) {
    const column_sums m = sum_column(s, w, c);
    absolute += m.absolute / m.n;
    root += sqrt(m.square / m.n);
    r2 += r2_of(&m);
  }
  r->values[CLV_VALUE_MAE] = absolute / width;
  r->values[CLV_VALUE_RMSE] = root / width;
  r->values[CLV_VALUE_R2] = r2 / width;
}

/* ---- all ------------------------------------------------------------------------------------- */

void clv_score_compute(const clv_score *s, const uint32_t *w, const uint32_t *orders,
                       uint32_t *scratch, clv_scores *r) {
  uint64_t right = s->n_all_right, n = s->n;
  for (int i = 0; i < CLV_SCORE_VALUES; i++) r->values[i] = (double)NAN;
  if (has_numbers(s)) {
    compute_number_values(s, w, r);
    return;
  }
  if (w) {
    right = count_again(s, w, r->classes);
    for (size_t i = n = 0; i < s->n; i++) n += w[i];
  }
  for (size_t c = 0; c < r->n_classes; c++) {
    const clv_class_score counts = w ? r->classes[c] : s->counts[c];
    compute_class_scores(&counts, &r->classes[c]);
  }
  compute_count_values(right, n, r);
  if (needs_ranks(s)) compute_rank_values(s, w, orders, scratch, r);
  if (s->o.wanted & CLV_SCORE_PERPLEXITY) compute_perplexity(s, w, r);
  if (s->o.wanted & CLV_SCORE_ECE) compute_ece(s, w, r);
}
