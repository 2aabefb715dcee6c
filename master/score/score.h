/* SPDX-License-Identifier: Apache-2.0
 *
 * score: metrics of classification over places (positions with a label). Places with the ignored
 * label are skipped. Evaluations call clv_score_add for each batch, then clv_score_finish, and
 * print the result. The definitions are those of scikit-learn (1.x, sklearn.metrics), with
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
 *
 */
#ifndef CLEAVE_SCORE_H
#define CLEAVE_SCORE_H

#include "common/base/settings/settings.h"

typedef struct clv_score clv_score;

/* Meaning of the model's outputs. LOGITS and LOG_PROBABILITIES: one per class and place.
 * PROBABILITY and LOGIT: one per place, for class 1 of two. */
typedef enum clv_score_outputs {
  CLV_SCORE_LOGITS,
  CLV_SCORE_LOG_PROBABILITIES,
  CLV_SCORE_PROBABILITY,
  CLV_SCORE_LOGIT
} clv_score_outputs;

/* AUC keeps 8 bytes for each class of each place until clv_score_reset. */
enum { CLV_SCORE_MAX_CONFUSION = 1024, CLV_SCORE_MAX_KEPT = 1 << 27 };

typedef struct clv_score_options {
  unsigned wanted; /* CLV_SCORE_* bits */
  clv_score_outputs outputs;
  size_t classes;        /* 2 or more; 2 with one output per place */
  bool has_ignored;      /* skip places whose label is `ignored` */
  int64_t ignored_label; /* label to skip */
} clv_score_options;

/* CLV_INVALID: fewer than 2 classes, or more than CLV_SCORE_MAX_CONFUSION with confusion. */
clv_code clv_score_new(const clv_score_options *o, clv_score **ret, clv_err *err) CLV_USE_RESULT;
void clv_score_free(clv_score *s); /* takes NULL */
void clv_score_freep(clv_score **s);
void clv_score_reset(clv_score *s); /* drops all places */

/* Adds places. outputs: [places][classes], or [places]. CLV_INVALID: a label outside the classes.
 * CLV_EXHAUSTED: more than CLV_SCORE_MAX_KEPT values for AUC, or no memory. */
clv_code clv_score_add(clv_score *s, const float *outputs, const int64_t *labels, size_t places,
                       clv_err *err) CLV_USE_RESULT;

/* Scores of one class. NaN: not defined, or not requested. */
typedef struct clv_class_score {
  uint64_t labels, answers, right; /* places with this label, with this answer, with both */
  double precision, recall, f1, auc;
} clv_class_score;

typedef struct clv_scores {
  unsigned wanted;
  uint64_t places;
  double accuracy, f1_micro, f1_macro, auc, perplexity;
  size_t n_classes;
  clv_class_score *classes;  /* [n_classes] */
  const uint64_t *confusion; /* [n_classes][n_classes], owned by the clv_score; or NULL */
} clv_scores;

clv_code clv_score_finish(const clv_score *s, clv_scores *ret, clv_err *err) CLV_USE_RESULT;
void clv_scores_done(clv_scores *s);

/* Returns one number of an evaluation; NaN: not defined, not requested, or the loss, which is not a
 * score. */
double clv_scores_value(const clv_scores *s, clv_score_value value);

/* Returns the name of class c; NULL: print its number. */
typedef const char *clv_class_name(const void *user, size_t c);

/* clv_scores_each calls each(user, "f1_macro", value) for every requested score that is a single
 * number. NaN: not defined. */
typedef void clv_score_fn(void *user, const char *name, double value);
void clv_scores_each(const clv_scores *s, clv_score_fn *each, void *user);

/* Appends "F1 micro 0.8000, macro 0.7500, AUC 0.9000, perplexity 1.500", or nothing if no such
 * score is requested. */
void clv_scores_line(const clv_scores *s, clv_bytes *out);
/* Appends a line per class, and the confusion matrix of up to 32 classes. */
void clv_scores_table(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out);
/* Appends {"f1":{"micro":,"macro":},"auc":,"perplexity":,"classes":[...],"confusion":[[...]]}
 * with the requested scores; null: not defined. */
void clv_scores_json(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out);

#endif
