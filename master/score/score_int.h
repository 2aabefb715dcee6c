/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a clv_score: counts and kept values. score.c collects them, values.c computes scores
 * from them, ranks.c those that follow from the order of probabilities, intervals.c repeats that on
 * samples of the records.
 */
#ifndef CLEAVE_SCORE_INT_H
#define CLEAVE_SCORE_INT_H

#include "master/score/score.h"

/* Bits of `bits` of a record and label. */
enum { IS_LABEL = 1, IS_ANSWER = 2 };

struct clv_score {
  clv_score_options o;
  clv_class_score *counts; /* [classes]; only labels, answers and right are used */
  uint64_t *confusion;     /* [classes][classes], or NULL */
  double *p;               /* [classes] log-probabilities of the current place */
  double log_loss;         /* sum of -p[label] over all places */
  /* number of places whose answer is right; with several labels: of records whose labels are all
   * answered right */
  uint64_t n_all_right;
  size_t n, capacity;  /* number of places; capacity of the arrays below */
  double *kept_p;      /* [n][classes] p of all places; else NULL */
  uint32_t *labels;    /* [n] labels of all places; else NULL */
  uint32_t *answers;   /* [n] with intervals; else NULL */
  uint32_t *record_of; /* [n] index of the record, from 0; with intervals, else NULL */
  uint8_t *bits;       /* [n][classes] several labels; else NULL */
  float *numbers;      /* [n][2][classes] outputs, targets; else NULL */
  size_t n_records;
  clv_worst_record worst[CLV_SCORE_WORST]; /* largest loss first */
  size_t n_worst;
};

static inline bool has_several_labels(const clv_score *s) {
  return s->o.outputs == CLV_SCORE_LABEL_PROBABILITIES || s->o.outputs == CLV_SCORE_LABEL_LOGITS;
}
static inline bool has_numbers(const clv_score *s) { return s->o.outputs >= CLV_SCORE_NUMBERS; }

/* How often a place counts: w[i], or once if w is NULL. */
static inline uint64_t count_of(const uint32_t *w, size_t i) { return w ? w[i] : 1; }
static inline bool has_label(const clv_score *s, size_t i, size_t c) {
  return s->bits ? s->bits[i * s->o.classes + c] & IS_LABEL : s->labels[i] == c;
}

/* Orders the places by their probability of class c, ascending; NaN is below all. order: [n]. */
void clv_score_rank(const clv_score *s, size_t c, uint32_t *order);
/* Computes auc, average_precision and sensitivity of class c, and its curve unless w is given; NaN
 * where they are not defined. order: of clv_score_rank. */
void clv_score_compute_ranks(const clv_score *s, size_t c, const uint32_t *order, const uint32_t *w,
                             clv_class_score *ret);
/* Computes all values, of the places as often as w says. orders: [classes][n] of clv_score_rank, or
 * NULL, then `scratch` [n] is used. r->classes: [classes], is overwritten. */
void clv_score_compute(const clv_score *s, const uint32_t *w, const uint32_t *orders,
                       uint32_t *scratch, clv_scores *r);
/* Sets r->intervals. */
clv_code clv_score_compute_intervals(const clv_score *s, clv_scores *r,
                                     clv_err *err) CLV_USE_RESULT;

static inline bool needs_ranks(const clv_score *s) {
  return s->o.wanted & (CLV_SCORE_AUC | CLV_SCORE_AVERAGE_PRECISION | CLV_SCORE_SENSITIVITY);
}

#endif
