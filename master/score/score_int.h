/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLEAVE_SCORE_INT_H
#define CLEAVE_SCORE_INT_H

#include "master/score/score.h"

struct clv_score {
  clv_score_options o;
  clv_class_score *counts; /* [classes], of which the numbers of places are kept */
  uint64_t *confusion;     /* [classes][classes], or NULL */
  double *p;               /* [classes] of the place at work: logarithms of probabilities */
  double log_loss;         /* sum of -p of the labels */
  size_t n, room;          /* places; what kept and labels have room for */
  double *kept;            /* [n][classes] p of AUC, else NULL */
  uint32_t *labels;        /* [n] */
};

/* The AUC of each class for which it is defined. */
clv_code clv_score_compute_auc(const clv_score *s, clv_class_score *classes,
                               clv_err *err) CLV_USE_RESULT;

#endif
