/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a clv_score: counts (score.c) and the values from which auc.c computes the AUC.
 */
#ifndef CLEAVE_SCORE_INT_H
#define CLEAVE_SCORE_INT_H

#include "master/score/score.h"

struct clv_score {
  clv_score_options o;
  clv_class_score *counts; /* [classes]; only labels, answers and right are used */
  uint64_t *confusion;     /* [classes][classes], or NULL */
  double *p;               /* [classes] log-probabilities of the current place */
  double log_loss;         /* sum of -p[label] over all places */
  size_t n, capacity;      /* number of places; capacity of kept and labels */
  double *kept_p;          /* [n][classes] p of all places, for AUC; else NULL */
  uint32_t *labels;        /* [n] labels of all places, for AUC; else NULL */
};

/* Sets classes[c].auc for each class; NaN where it is not defined. */
clv_code clv_score_compute_auc(const clv_score *s, clv_class_score *classes,
                               clv_err *err) CLV_USE_RESULT;

#endif
