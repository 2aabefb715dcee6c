/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a clv_score, counts and kept values, and the functions that its files share. score.c
 * collects counts and values of each record. values.c computes scores from them, with ranks.c for
 * the scores that depend on the order of probabilities. intervals.c computes the scores again for
 * bootstrap samples of the records. print.c formats the result.
 */
#ifndef CLEAVE_SCORE_INT_H
#define CLEAVE_SCORE_INT_H

#include "master/score/score.h"

/* Bits of clv_score.label_bits. LABEL_BIT: the record has the label. ANSWER_BIT: the model predicts
 * the label. */
enum { LABEL_BIT = 1, ANSWER_BIT = 2 };

struct clv_score {
  clv_score_options o;
  clv_class_score *counts; /* [n_classes]; only n_labels, n_answers and n_right are used */
  uint64_t *confusion;     /* [n_classes][n_classes]; NULL: not requested */
  double *log_p;           /* [n_classes] log-probabilities of the current position */
  double log_loss;         /* sum of -log_p[label] over all positions */
  /* number of positions whose answer is right; with several labels: of records whose labels are all
   * answered right */
  uint64_t n_all_right;
  /* number of positions (of records, if they have targets); capacity of the arrays */
  size_t n, capacity;
  /* arrays of kept positions; NULL: no requested score needs the array */
  double *position_log_p;   /* [n][n_classes] log_p of each position */
  uint32_t *labels;         /* [n] label of each position */
  uint32_t *answers;        /* [n] answer of each position, for intervals */
  uint32_t *record_indices; /* [n] index of the position's record, from 0, for intervals */
  uint8_t *label_bits; /* [n][n_classes] LABEL_BIT and ANSWER_BIT of each label of each record */
  float *numbers;      /* [n][2][n_classes] outputs, then targets, of each record */
  size_t n_records;    /* records added, without those that have no position */
  clv_worst_record worst_records[CLV_SCORE_MAX_WORST_RECORDS]; /* largest loss first */
  size_t n_worst_records;
};

static inline bool has_several_labels(const clv_score *s) {
  return s->o.outputs == CLV_SCORE_LABEL_PROBABILITIES || s->o.outputs == CLV_SCORE_LABEL_LOGITS;
}
static inline bool has_numbers(const clv_score *s) { return s->o.outputs >= CLV_SCORE_NUMBERS; }

/* Returns how often position i counts: w[i] times, or once if w is NULL. */
static inline uint64_t get_position_weight(const uint32_t *w, size_t i) { return w ? w[i] : 1; }
/* True if position i has label c. */
static inline bool has_label(const clv_score *s, size_t i, size_t c) {
  return s->label_bits ? s->label_bits[i * s->o.n_classes + c] & LABEL_BIT : s->labels[i] == c;
}

/* Orders the positions by their probability of class c, ascending; NaN is below all. order: [n]
 * receives the indices of the positions. */
void clv_score_rank(const clv_score *s, size_t c, uint32_t *order);
/* Computes auc, average_precision and sensitivity of class c, and also roc if w is NULL; NaN where
 * they are not defined. order: result of clv_score_rank. w: [n] how often each position counts;
 * NULL: once. */
void clv_score_compute_ranks(const clv_score *s, size_t c, const uint32_t *order, const uint32_t *w,
                             clv_class_score *ret);
/* Computes r->values and r->classes. w: [n] how often each position counts; NULL: once. orders:
 * [n_classes][n] results of clv_score_rank; NULL: computed here, with `scratch` [n]. The caller
 * allocates r->classes [n_classes]. */
void clv_score_compute(const clv_score *s, const uint32_t *w, const uint32_t *orders,
                       uint32_t *scratch, clv_scores *r);
/* Computes r->intervals from bootstrap samples of the records. */
clv_code clv_score_compute_intervals(const clv_score *s, clv_scores *r,
                                     clv_err *err) CLV_USE_RESULT;

/* True if a requested score depends on the order of the probabilities. */
static inline bool needs_ranks(const clv_score *s) {
  return s->o.score_bits & (CLV_SCORE_AUC | CLV_SCORE_AVERAGE_PRECISION | CLV_SCORE_SENSITIVITY);
}

#endif
