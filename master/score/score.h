/* SPDX-License-Identifier: Apache-2.0
 *
 * score: metrics of classes over places (positions with a label), of labels and of numbers. Places
 * with the ignored label are skipped. Evaluations call clv_score_add or clv_score_add_targets for
 * each record, then clv_score_finish, and print the result. The definitions are those of
 * scikit-learn (1.x, sklearn.metrics), with
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
 *   average precision_c  sum over thresholds of (R_k - R_(k-1)) P_k, of recall R and precision P of
 *                 class c versus the rest; of two classes that of class 1, else the mean over the
 *                 classes with places                                   (average_precision_score)
 *   sensitivity_c the largest recall of class c over thresholds whose specificity is at least
 *                 `specificity`; averaged as AUC                          (max of tpr of roc_curve)
 *   ECE           sum over 10 bins of equal width of n_b / n |right_b - p_b|: of two classes the
 *                 share of class 1 and the mean probability of class 1, else the share of right
 *                 answers and the mean probability of the answer              (calibration_curve)
 *
 * With several labels per record, each of them yes or no, class c is label c, and a place of class
 * c is a record whose label c is 1:
 *
 *   accuracy      share of the records of which every label is right           (accuracy_score)
 *   F1 micro      2 sum t_c / sum (a_c + n_c)                                  (f1_score, micro)
 *   AUC, average precision, sensitivity  the mean over the labels that define them
 *
 * Numbers x for targets t, each the mean over columns:
 *
 *   MAE           mean |x - t|                                            (mean_absolute_error)
 *   RMSE          sqrt(mean (x - t)^2)                                 (root_mean_squared_error)
 *   R2            1 - sum (x - t)^2 / sum (t - mean t)^2; for a constant target 1 if all is right,
 *                 else 0                                                             (r2_score)
 *
 * Intervals are percentiles 2.5 and 97.5 of the values over 1,000 samples of the records, drawn
 * with replacement from a fixed seed (Efron's percentile bootstrap). Samples without a value do not
 * count, and with fewer than half of them there is no interval.
 *
 * Sums are made in double, in the order of the places. Threads: one at a time.
 */
#ifndef CLEAVE_SCORE_H
#define CLEAVE_SCORE_H

#include "common/base/settings/settings.h"

typedef struct clv_score clv_score;

/* Meaning of the model's outputs. LOGITS and LOG_PROBABILITIES: one per class and place.
 * PROBABILITY and LOGIT: one per place, for class 1 of two. LABEL_*: one per label and record.
 * NUMBERS: one per column and record; LOG_NUMBERS: its logarithm. */
typedef enum clv_score_outputs {
  CLV_SCORE_LOGITS,
  CLV_SCORE_LOG_PROBABILITIES,
  CLV_SCORE_PROBABILITY,
  CLV_SCORE_LOGIT,
  CLV_SCORE_LABEL_PROBABILITIES,
  CLV_SCORE_LABEL_LOGITS,
  CLV_SCORE_NUMBERS,
  CLV_SCORE_LOG_NUMBERS
} clv_score_outputs;

/* CLV_SCORE_MAX_CONFUSION: most classes of a confusion matrix. CLV_SCORE_MAX_KEPT: most values
 * kept. AUC, average precision, sensitivity, ECE, scores of numbers and intervals keep 8 bytes for
 * each class or column of each place until clv_score_reset. */
enum { CLV_SCORE_MAX_CONFUSION = 1024, CLV_SCORE_MAX_KEPT = 1 << 27 };

typedef struct clv_score_options {
  unsigned wanted; /* CLV_SCORE_* bits */
  clv_score_outputs outputs;
  /* number of classes, 2 or more (exactly 2 with one output per place); for LABEL_* the number of
   * labels, for NUMBERS and LOG_NUMBERS of columns */
  size_t classes;
  bool has_ignored;      /* skip places whose label is ignored_label */
  int64_t ignored_label; /* label to skip */
  double specificity;    /* lowest specificity at which the score `sensitivity` is taken */
  bool has_intervals;    /* also compute intervals */
} clv_score_options;

/* CLV_INVALID: fewer than 2 classes, or more than CLV_SCORE_MAX_CONFUSION with confusion. */
clv_code clv_score_new(const clv_score_options *o, clv_score **ret, clv_err *err) CLV_USE_RESULT;
void clv_score_free(clv_score *s); /* takes NULL */
void clv_score_freep(clv_score **s);
void clv_score_reset(clv_score *s); /* drops all places */

/* Adds the places of record number `record`. outputs: [places][classes], or [places]. CLV_INVALID:
 * a label outside the classes. CLV_EXHAUSTED: more than CLV_SCORE_MAX_KEPT values, or no memory. */
clv_code clv_score_add(clv_score *s, size_t record, const float *outputs, const int64_t *labels,
                       size_t places, clv_err *err) CLV_USE_RESULT;
/* Adds a record with several labels, or with numbers: outputs and targets [classes]. */
clv_code clv_score_add_targets(clv_score *s, size_t record, const float *outputs,
                               const float *targets, clv_err *err) CLV_USE_RESULT;

/* Returns true if records are added with clv_score_add. */
bool clv_score_has_classes(const clv_score *s);

enum { CLV_ROC_STEPS = 64, CLV_CALIBRATION_BINS = 10, CLV_SCORE_WORST = 20 };

/* Scores of one class. NaN: not defined, or not requested. */
typedef struct clv_class_score {
  uint64_t labels, answers, right; /* places with this label, with this answer, with both */
  double precision, recall, f1, auc, average_precision, sensitivity;
  /* with AUC: largest sensitivity where 1 - specificity is at most i / CLV_ROC_STEPS */
  float roc[CLV_ROC_STEPS + 1];
} clv_class_score;

/* A bin of the calibration: places, sum of their probabilities, and how many were right. */
typedef struct clv_calibration_bin {
  uint64_t places, right;
  double sum;
} clv_calibration_bin;

/* A record with a large loss: the mean of -log p(label), or the largest |x - t|. */
typedef struct clv_worst_record {
  size_t record;
  double loss;
} clv_worst_record;

typedef struct clv_interval {
  double low, high;
} clv_interval;

typedef struct clv_scores {
  unsigned wanted;
  bool has_intervals;
  uint64_t places; /* number of places; with several labels or numbers: of records */
  double values[CLV_SCORE_VALUES];
  clv_interval intervals[CLV_SCORE_VALUES]; /* NaN: there is none */
  size_t n_classes;                         /* 0 for numbers */
  clv_class_score *classes;                 /* [n_classes] */
  const uint64_t *confusion; /* [n_classes][n_classes], owned by the clv_score; or NULL */
  clv_calibration_bin bins[CLV_CALIBRATION_BINS]; /* with ECE */
  clv_worst_record worst[CLV_SCORE_WORST];        /* [n_worst] largest loss first */
  size_t n_worst;
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
 * score is requested. With intervals: "AUC 0.9000 (0.8700 to 0.9300)". */
void clv_scores_line(const clv_scores *s, clv_bytes *out);
/* Appends a line per class, and the confusion matrix of up to 32 classes. */
void clv_scores_table(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out);
/* Appends {"f1":{"micro":,"macro":},"auc":,"perplexity":,"classes":[...],"confusion":[[...]]}
 * with the requested scores; null: not defined. */
void clv_scores_json(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out);
/* Appends {"roc":[[...],...],"calibration":[[places,mean,share],...]} with those that are known, or
 * nothing. */
void clv_scores_json_curves(const clv_scores *s, clv_bytes *out);
/* Returns the id of a record; NULL: its number. */
typedef const char *clv_record_name(const void *user, size_t record);
/* Appends [{"id":"p012","loss":2.5},...], the records with the largest losses. */
void clv_scores_json_worst(const clv_scores *s, clv_record_name *name, const void *user,
                           clv_bytes *out);

#endif
