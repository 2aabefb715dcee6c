/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the values of an evaluation from counts and kept positions (clv_score_compute). In a
 * bootstrap sample a position may count several times or not at all: w[i] times.
 */
#include <math.h>
#include <string.h>

#include "master/score/score_int.h"

/* Returns part / total; 0 if total is 0. */
static double ratio(uint64_t part, uint64_t total) {
  return total ? (double)part / (double)total : 0;
}

/* ---- scores from counts ---------------------------------------------------------------------- */

/* Computes precision, recall and F1 of a class from its counts. Sets its other scores to NaN. */
static void compute_class_scores(const clv_class_score *counts, clv_class_score *ret) {
  *ret = (clv_class_score){
      .n_labels = counts->n_labels, .n_answers = counts->n_answers, .n_right = counts->n_right};
  ret->precision = ratio(ret->n_right, ret->n_answers);
  ret->recall = ratio(ret->n_right, ret->n_labels);
  ret->f1 = ratio(2 * ret->n_right, ret->n_labels + ret->n_answers);
  ret->auc = ret->average_precision = ret->sensitivity = (double)NAN;
}

/* Counts labels, answers and right answers of each class in a bootstrap sample. counts:
 * [n_classes]. Returns the number of positions whose answer is right; with several labels, of
 * records whose labels are all answered right. */
static uint64_t count_sample(const clv_score *s, const uint32_t *w, clv_class_score *counts) {
  size_t n_classes = s->o.n_classes;
  uint64_t n_all_right = 0;
  memset(counts, 0, n_classes * sizeof *counts);
  for (size_t i = 0; i < s->n; i++) {
    size_t n_right = 0;
    for (size_t c = 0; s->label_bits && c < n_classes; c++) {
      uint8_t bits = s->label_bits[i * n_classes + c];
      if (bits & LABEL_BIT) counts[c].n_labels += w[i];
      if (bits & ANSWER_BIT) counts[c].n_answers += w[i];
      if (bits == (LABEL_BIT | ANSWER_BIT)) counts[c].n_right += w[i];
      n_right += bits != LABEL_BIT && bits != ANSWER_BIT;
    }
    if (!s->label_bits) {
      counts[s->labels[i]].n_labels += w[i];
      counts[s->answers[i]].n_answers += w[i];
      if (s->labels[i] == s->answers[i]) counts[s->labels[i]].n_right += w[i];
    }
    if (s->label_bits ? n_right == n_classes : s->labels[i] == s->answers[i]) n_all_right += w[i];
  }
  return n_all_right;
}

/* Computes the accuracy and both F1 scores from r->classes. n_all_right: as clv_score.n_all_right,
 * of n positions or records. */
static void compute_count_values(uint64_t n_all_right, uint64_t n, clv_scores *r) {
  uint64_t n_right = 0, n_labels_and_answers = 0, n_seen_classes = 0;
  double f1_sum = 0;
  for (size_t c = 0; c < r->n_classes; c++) {
    const clv_class_score *k = &r->classes[c];
    n_right += k->n_right;
    n_labels_and_answers += k->n_labels + k->n_answers;
    f1_sum += k->f1;
    n_seen_classes += k->n_labels + k->n_answers > 0;
  }
  r->values[CLV_VALUE_ACCURACY] = n ? ratio(n_all_right, n) : (double)NAN;
  r->values[CLV_VALUE_F1_MICRO] = n ? ratio(2 * n_right, n_labels_and_answers) : (double)NAN;
  r->values[CLV_VALUE_F1_MACRO] = n_seen_classes ? f1_sum / (double)n_seen_classes : (double)NAN;
}

/* ---- scores from the order of probabilities -------------------------------------------------- */

/* Returns the mean of a score over the classes or labels for which it is not NaN. If there are two
 * classes, returns the score of class 1 instead. offset: byte offset of the score in
 * clv_class_score. */
static double average_classes(const clv_score *s, const clv_scores *r, size_t offset) {
  double sum = 0;
  uint64_t n = 0;
  for (size_t c = 0; c < r->n_classes; c++) {
    double v = *(const double *)(const void *)((const char *)&r->classes[c] + offset);
    if (r->n_classes == 2 && !s->label_bits && c == 1) return v;
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
  r->values[CLV_VALUE_AUC] = average_classes(s, r, offsetof(clv_class_score, auc));
  r->values[CLV_VALUE_AVERAGE_PRECISION] =
      average_classes(s, r, offsetof(clv_class_score, average_precision));
  r->values[CLV_VALUE_SENSITIVITY] = average_classes(s, r, offsetof(clv_class_score, sensitivity));
}

/* ---- scores from probabilities --------------------------------------------------------------- */

/* Returns the index of the calibration bin of a probability. A probability on the edge of two bins
 * belongs to the lower one. */
static size_t find_bin_index(double p) {
  size_t b = 0;
  while (b + 1 < CLV_CALIBRATION_BINS && p > (double)(b + 1) * (1.0 / CLV_CALIBRATION_BINS)) b++;
  return b;
}

static void compute_ece(const clv_score *s, const uint32_t *w, clv_scores *r) {
  double sum = 0;
  uint64_t n = 0;
  memset(r->bins, 0, sizeof r->bins);
  for (size_t i = 0; i < s->n; i++) {
    const double *p = s->position_log_p + i * s->o.n_classes;
    size_t c = 1;
    for (size_t k = 0; s->o.n_classes > 2 && k < s->o.n_classes; k++)
      if (k == 0 || p[k] > p[c]) c = k;
    clv_calibration_bin *b = &r->bins[find_bin_index(exp(p[c]))];
    b->n_positions += get_position_weight(w, i);
    b->p_sum += (double)get_position_weight(w, i) * exp(p[c]);
    if (s->labels[i] == c) b->n_right += get_position_weight(w, i);
    n += get_position_weight(w, i);
  }
  for (int b = 0; b < CLV_CALIBRATION_BINS; b++)
    sum += fabs((double)r->bins[b].n_right - r->bins[b].p_sum);
  r->values[CLV_VALUE_ECE] = n ? sum / (double)n : (double)NAN;
}

static void compute_perplexity(const clv_score *s, const uint32_t *w, clv_scores *r) {
  double sum = s->log_loss;
  uint64_t n = s->n;
  if (w) sum = 0, n = 0;
  for (size_t i = 0; w && i < s->n; i++) {
    sum -= w[i] * s->position_log_p[i * s->o.n_classes + s->labels[i]];
    n += w[i];
  }
  if (n) r->values[CLV_VALUE_PERPLEXITY] = exp(sum / (double)n);
}

/* ---- scores of predicted numbers ------------------------------------------------------------- */

/* Sums over the positions for one predicted column. The error of a number x for its target t is x -
 * t. square_deviation_sum: sum of (t - mean of t)^2. */
typedef struct column_sums {
  double n, target_sum, absolute_error_sum, square_error_sum, square_deviation_sum;
} column_sums;

static column_sums sum_column(const clv_score *s, const uint32_t *w, size_t c) {
  size_t width = s->o.n_classes;
  column_sums m = {0};
  for (size_t i = 0; i < s->n; i++) {
    const float *row = s->numbers + i * 2 * width;
    double d = (double)row[c] - (double)row[width + c], k = (double)get_position_weight(w, i);
    m.n += k;
    m.target_sum += k * (double)row[width + c];
    m.absolute_error_sum += k * fabs(d);
    m.square_error_sum += k * d * d;
  }
  for (size_t i = 0; i < s->n; i++) {
    double d = (double)s->numbers[(i * 2 + 1) * width + c] - m.target_sum / m.n;
    m.square_deviation_sum += (double)get_position_weight(w, i) * d * d;
  }
  return m;
}

static double compute_r2(const column_sums *m) {
  if (m->n < 2) return (double)NAN;
  if (m->square_deviation_sum > 0 || isnan(m->square_deviation_sum))
    return 1 - m->square_error_sum / m->square_deviation_sum;
  return m->square_error_sum > 0 ? 0 : 1;
}

static void compute_number_values(const clv_score *s, const uint32_t *w, clv_scores *r) {
  double mae_sum = 0, rmse_sum = 0, r2_sum = 0, width = (double)s->o.n_classes;
  if (!s->n) return;
  for (size_t c = 0; c < s->o.n_classes; c++) {
    const column_sums m = sum_column(s, w, c);
    mae_sum += m.absolute_error_sum / m.n;
    rmse_sum += sqrt(m.square_error_sum / m.n);
    r2_sum += compute_r2(&m);
  }
  r->values[CLV_VALUE_MAE] = mae_sum / width;
  r->values[CLV_VALUE_RMSE] = rmse_sum / width;
  r->values[CLV_VALUE_R2] = r2_sum / width;
}

/* ---- all values of an evaluation ------------------------------------------------------------- */

void clv_score_compute(const clv_score *s, const uint32_t *w, const uint32_t *orders,
                       uint32_t *scratch, clv_scores *r) {
  uint64_t n_all_right = s->n_all_right, n = s->n;
  for (int i = 0; i < CLV_SCORE_VALUES; i++) r->values[i] = (double)NAN;
  if (has_numbers(s)) {
    compute_number_values(s, w, r);
    return;
  }
  if (w) {
    n_all_right = count_sample(s, w, r->classes);
    for (size_t i = n = 0; i < s->n; i++) n += w[i];
  }
  for (size_t c = 0; c < r->n_classes; c++) {
    const clv_class_score counts = w ? r->classes[c] : s->counts[c];
    compute_class_scores(&counts, &r->classes[c]);
  }
  compute_count_values(n_all_right, n, r);
  if (needs_ranks(s)) compute_rank_values(s, w, orders, scratch, r);
  if (s->o.score_bits & CLV_SCORE_PERPLEXITY) compute_perplexity(s, w, r);
  if (s->o.score_bits & CLV_SCORE_ECE) compute_ece(s, w, r);
}
