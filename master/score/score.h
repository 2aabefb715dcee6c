/* SPDX-License-Identifier: Apache-2.0
 *
 * score: how good answers are, over places whose label is a class. Places whose label is ignored
 * count for nothing. The definitions are scikit-learn's (1.x, sklearn.metrics), with
 *
 *   n places, n_c of them with label c, a_c with the answer c, t_c with both; the answer is the
 *   class with the largest output, the first of equal ones
 *
 *   accuracy      sum_c t_c / n                                                (accuracy_score)
 *   precision_c   t_c / a_c, recall_c t_c / n_c, F1_c 2 t_c / (a_c + n_c); 0 where they divide by 0
 *                                               (precision_recall_fscore_support, zero_division=0)
 *   F1 micro      2 sum t_c / sum (a_c + n_c), which is the accuracy here      (f1_score, micro)
 *   F1 macro      mean of F1_c over the classes that are a label or an answer  (f1_score, macro)
 *   AUC_c         of the probability of c, one versus the rest: the share of pairs of a place with
 *                 label c and one without that it orders rightly, equal ones count half (Mann and
 *                 Whitney), which is the area under the curve                  (roc_auc_score)
 *   AUC           of two classes AUC_1; else the mean of AUC_c over the classes that are the label
 *                 of some places and not of all (roc_auc_score, multi_class="ovr", macro, which
 *                 refuses other classes)
 *   confusion     [label][answer] places                                       (confusion_matrix)
 *   perplexity    exp of the mean of -log p(label), without weights of classes and smoothing
 *
 * Sums are made in double, in the order of the places. Threads: one at a time.
 */
#ifndef CLEAVE_SCORE_H
#define CLEAVE_SCORE_H

#include "common/base/base.h"

typedef struct clv_score clv_score;

/* What is wanted beside the accuracy. */
enum {
  CLV_SCORE_F1 = 1u << 0,
  CLV_SCORE_AUC = 1u << 1,
  CLV_SCORE_CONFUSION = 1u << 2,
  CLV_SCORE_PERPLEXITY = 1u << 3
};

/* What outputs are: of `classes` per place the first two; of one per place, which stands for
 * class 1 of two, the others. */
typedef enum clv_score_outputs {
  CLV_SCORE_LOGITS,
  CLV_SCORE_LOG_PROBABILITIES,
  CLV_SCORE_PROBABILITY,
  CLV_SCORE_LOGIT
} clv_score_outputs;

/* AUC keeps 8 bytes for each class of each place until clv_score_reset. */
enum { CLV_SCORE_MAX_CONFUSION = 1024, CLV_SCORE_MAX_KEPT = 1 << 27 };

typedef struct clv_score_options {
  unsigned wanted; /* CLV_SCORE_* */
  clv_score_outputs outputs;
  size_t classes; /* 2 or more; 2 where there is one output */
  bool ignores;
  int64_t ignored;
} clv_score_options;

/* CLV_INVALID: fewer than 2 classes, or more than CLV_SCORE_MAX_CONFUSION with confusion. */
clv_code clv_score_new(const clv_score_options *o, clv_score **ret, clv_err *err) CLV_USE_RESULT;
void clv_score_free(clv_score *s); /* takes NULL */
void clv_score_freep(clv_score **s);
void clv_score_reset(clv_score *s); /* forgets all places */

/* outputs: [places][classes], or [places]. CLV_INVALID: a label outside the classes.
 * CLV_EXHAUSTED: more than CLV_SCORE_MAX_KEPT values for AUC, or no memory. */
clv_code clv_score_add(clv_score *s, const float *outputs, const int64_t *labels, size_t places,
                       clv_err *err) CLV_USE_RESULT;

/* NaN: not defined, or not wanted. */
typedef struct clv_class_score {
  uint64_t labels, answers, right;
  double precision, recall, f1, auc;
} clv_class_score;

typedef struct clv_scores {
  unsigned wanted;
  uint64_t places;
  double accuracy, f1_micro, f1_macro, auc, perplexity;
  size_t n_classes;
  clv_class_score *classes;  /* [n_classes] */
  const uint64_t *confusion; /* [n_classes][n_classes] of the score, or NULL */
} clv_scores;

clv_code clv_score_finish(const clv_score *s, clv_scores *ret, clv_err *err) CLV_USE_RESULT;
void clv_scores_done(clv_scores *s);

/* name(user, c): of a class, or NULL: its number. */
typedef const char *clv_class_name(const void *user, size_t c);

/* Calls each(user, "f1_macro", value) for what was wanted and is one number; NaN: not defined. */
typedef void clv_score_fn(void *user, const char *name, double value);
void clv_scores_each(const clv_scores *s, clv_score_fn *each, void *user);

/* "F1 micro 0.8000, macro 0.7500, AUC 0.9000, perplexity 1.500"; nothing where none is wanted. */
void clv_scores_line(const clv_scores *s, clv_bytes *out);
/* A line for each class, and the confusion of up to 32 classes, whose columns are numbers. */
void clv_scores_table(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out);
/* {"f1":{"micro":,"macro":},"auc":,"perplexity":,"classes":[...],"confusion":[[...]]}, of what is
 * wanted; what is not defined is null. */
void clv_scores_json(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out);

#endif
