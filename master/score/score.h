/* SPDX-License-Identifier: Apache-2.0
 *
 * score: metrics of classes, of yes/no labels and of numbers. A position is one prediction that has
 * a label: a record, or a token or pixel of a record. Positions with the ignored label are skipped.
 * Texts that users read call a position a place.
 *
 * Evaluations call clv_score_add or clv_score_add_targets for each record, then clv_score_finish,
 * and print the result. The definitions are those of scikit-learn (1.x, sklearn.metrics), with
 *
 *   n positions, n_c of them with label c, a_c with the answer c, t_c with both; the answer is the
 *   class with the largest output, or the first of these if several outputs are equal
 *
 *   accuracy      sum_c t_c / n                                                (accuracy_score)
 *   precision_c   t_c / a_c; recall_c: t_c / n_c; F1_c: 2 * t_c / (a_c + n_c); each 0 if it divides
 *                 by 0
 *                                               (precision_recall_fscore_support, zero_division=0)
 *   F1 micro      2 * sum t_c / sum (a_c + n_c), which is the accuracy here    (f1_score, micro)
 *   F1 macro      mean of F1_c over the classes that are a label or an answer  (f1_score, macro)
 *   AUC_c         class c versus the rest: of all pairs of a position with label c and a position
 *                 without it, the fraction in which the first has the larger probability of c; a
 *                 pair with equal probabilities counts half (Mann and Whitney). This is the area
 *                 under the ROC curve (roc_auc_score)
 *   AUC           AUC_1 if there are two classes; else the mean of AUC_c over the classes that are
 *                 the label of some positions and not of all (roc_auc_score, multi_class="ovr",
 *                 macro, which refuses other classes)
 *   confusion     [label][answer] number of positions                          (confusion_matrix)
 *   perplexity    exp of the mean of -log p(label), without class weights and label smoothing
 *   average precision_c  sum over thresholds of (R_k - R_(k-1)) * P_k, with recall R and precision
 *                 P of class c versus the rest; the average precision is that of class 1 if there
 *                 are two classes, else the mean over the classes with positions
 *                 (average_precision_score)
 *   sensitivity_c the largest recall of class c over thresholds whose specificity is at least
 *                 `specificity`; averaged like AUC                        (max of tpr of roc_curve)
 *   ECE           sum over 10 bins of equal width of n_b / n * |right_b - p_b|. If there are two
 *                 classes, right_b is the share of class 1 and p_b the mean probability of class 1;
 *                 else right_b is the share of right answers and p_b the mean probability of the
 *                 answer                                                      (calibration_curve)
 *
 * With several labels per record, each of them yes or no, class c is label c, and a position of
 * class c is a record whose label c is 1:
 *
 *   accuracy      share of the records whose labels are all answered right     (accuracy_score)
 *   F1 micro      2 * sum t_c / sum (a_c + n_c)                                (f1_score, micro)
 *   AUC, average precision, sensitivity  the mean over the labels for which they are defined
 *
 * For predicted numbers x and targets t, each score is the mean over the columns of
 *
 *   MAE           mean |x - t|                                            (mean_absolute_error)
 *   RMSE          sqrt(mean (x - t)^2)                                 (root_mean_squared_error)
 *   R2            1 - sum (x - t)^2 / sum (t - mean t)^2; for a constant target 1 if all numbers
 *                 are right, else 0                                                  (r2_score)
 *
 * Intervals go from percentile 2.5 to 97.5 of a score's values over 1,000 samples of the records,
 * drawn with replacement from a fixed seed (Efron's percentile bootstrap). Samples for which the
 * score is not defined do not count. If these are more than half of the samples, the score has no
 * interval.
 *
 * Sums are computed in double, in the order in which positions were added. Threads: use a
 * clv_score in one thread at a time.
 */
#ifndef CLEAVE_SCORE_H
#define CLEAVE_SCORE_H

#include "common/base/settings/settings.h"

typedef struct clv_score clv_score;

/* Meaning of the model's outputs. LOGITS and LOG_PROBABILITIES: one output per class and position.
 * PROBABILITY and LOGIT: one output per position, for class 1 of two classes. LABEL_*: one output
 * per label and record. NUMBERS: one output per column and record, the predicted number;
 * LOG_NUMBERS: the logarithm of the predicted number. */
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

/* CLV_SCORE_MAX_CONFUSION_CLASSES: most classes of a confusion matrix. CLV_SCORE_MAX_KEPT_VALUES:
 * most values that a clv_score keeps. For AUC, average precision, sensitivity, ECE, scores of
 * numbers and intervals, a clv_score keeps 8 bytes for each class or column of each position until
 * clv_score_reset. */
enum { CLV_SCORE_MAX_CONFUSION_CLASSES = 1024, CLV_SCORE_MAX_KEPT_VALUES = 1 << 27 };

typedef struct clv_score_options {
  unsigned score_bits; /* scores to compute: CLV_SCORE_* bits */
  clv_score_outputs outputs;
  /* number of classes, 2 or more (exactly 2 with one output per position); for LABEL_* the number
   * of labels, for NUMBERS and LOG_NUMBERS the number of columns */
  size_t n_classes;
  bool has_ignored_label; /* skip positions whose label is ignored_label */
  int64_t ignored_label;  /* label to skip */
  /* lowest specificity of the thresholds that the score `sensitivity` considers */
  double specificity;
  bool has_intervals; /* also compute intervals */
} clv_score_options;

/* Makes a clv_score without positions. CLV_INVALID: `o` has fewer than 2 classes, or the confusion
 * matrix is requested for more than CLV_SCORE_MAX_CONFUSION_CLASSES. */
clv_code clv_score_new(const clv_score_options *o, clv_score **ret, clv_err *err) CLV_USE_RESULT;
void clv_score_free(clv_score *s); /* NULL is allowed */
void clv_score_freep(clv_score **s);
void clv_score_reset(clv_score *s); /* drops all positions, to begin another evaluation */

/* Adds the positions of record number `record`. outputs: [n_positions][n_classes], or [n_positions]
 * with one output per position; labels: [n_positions]. CLV_INVALID: a label is not in
 * 0..n_classes - 1. CLV_EXHAUSTED: more than CLV_SCORE_MAX_KEPT_VALUES values, or no memory. */
clv_code clv_score_add(clv_score *s, size_t record, const float *outputs, const int64_t *labels,
                       size_t n_positions, clv_err *err) CLV_USE_RESULT;
/* Adds a record with several labels, or with numbers. outputs, targets: [n_classes]; a label is yes
 * if its target is above 0.5. */
clv_code clv_score_add_targets(clv_score *s, size_t record, const float *outputs,
                               const float *targets, clv_err *err) CLV_USE_RESULT;

/* Returns true if records are added with clv_score_add, false if with clv_score_add_targets. */
bool clv_score_has_classes(const clv_score *s);

/* CLV_SCORE_MAX_WORST_RECORDS: number of records with the largest losses that a clv_score lists. */
enum { CLV_ROC_STEPS = 64, CLV_CALIBRATION_BINS = 10, CLV_SCORE_MAX_WORST_RECORDS = 20 };

/* Scores of one class. NaN: not defined, or not requested. */
typedef struct clv_class_score {
  /* numbers of positions with this label, with this answer, and with both */
  uint64_t n_labels, n_answers, n_right;
  double precision, recall, f1, auc, average_precision, sensitivity;
  /* if AUC is requested: roc[i] is the largest sensitivity at which 1 - specificity is at most
   * i / CLV_ROC_STEPS */
  float roc[CLV_ROC_STEPS + 1];
} clv_class_score;

/* A calibration bin: the positions whose probability is in one tenth of 0..1. p_sum: sum of their
 * probabilities; n_right: number of those with label 1 if there are two classes, else of those
 * whose answer is right. */
typedef struct clv_calibration_bin {
  uint64_t n_positions, n_right;
  double p_sum;
} clv_calibration_bin;

/* A record with a large loss. loss: mean of -log p(label) of the record; for numbers the largest
 * |x - t|. */
typedef struct clv_worst_record {
  size_t record; /* number of the record, as given to clv_score_add */
  double loss;
} clv_worst_record;

typedef struct clv_interval {
  double low, high;
} clv_interval;

typedef struct clv_scores {
  unsigned score_bits; /* as in clv_score_options */
  bool has_intervals;
  /* number of positions; of records, if they have several labels or numbers */
  uint64_t n_positions;
  double values[CLV_SCORE_VALUES];
  clv_interval intervals[CLV_SCORE_VALUES]; /* low and high NaN: there is no interval */
  /* number of classes or labels; 0 for predicted numbers */
  size_t n_classes;
  clv_class_score *classes; /* [n_classes] */
  /* [n_classes][n_classes] confusion matrix, owned by the clv_score; NULL: not requested */
  const uint64_t *confusion;
  clv_calibration_bin bins[CLV_CALIBRATION_BINS]; /* if ECE is requested; else zeros */
  /* [n_worst_records] largest loss first */
  clv_worst_record worst_records[CLV_SCORE_MAX_WORST_RECORDS];
  size_t n_worst_records;
} clv_scores;

/* Computes the scores of all positions added so far. Release *ret with clv_scores_done. */
clv_code clv_score_finish(const clv_score *s, clv_scores *ret, clv_err *err) CLV_USE_RESULT;
void clv_scores_done(clv_scores *s);

/* Returns one value of an evaluation; NaN: it is not defined or not requested, or it is the loss,
 * which a clv_scores does not have. */
double clv_scores_value(const clv_scores *s, clv_score_value value);

/* Callback that returns the name of class c; NULL: the class has no name, so its number is
 * printed. */
typedef const char *clv_class_name_fn(const void *user, size_t c);

/* clv_scores_for_each calls fn(user, "f1_macro", value) for every requested score that is a single
 * number. value NaN: the score is not defined. */
typedef void clv_score_fn(void *user, const char *name, double value);
void clv_scores_for_each(const clv_scores *s, clv_score_fn *fn, void *user);

/* Appends "F1 micro 0.8000, macro 0.7500, AUC 0.9000, perplexity 1.500", or nothing if no such
 * score is requested. With intervals: "AUC 0.9000 (0.8700 to 0.9300)". */
void clv_scores_append_line(const clv_scores *s, clv_bytes *out);
/* Appends a line per class, and the confusion matrix of up to 32 classes. */
void clv_scores_append_table(const clv_scores *s, clv_class_name_fn *name, const void *user,
                             clv_bytes *out);
/* Appends {"f1":{"micro":,"macro":},"auc":,"perplexity":,"classes":[...],"confusion":[[...]]}
 * with the requested scores; null for a score that is not defined. */
void clv_scores_append_json(const clv_scores *s, clv_class_name_fn *name, const void *user,
                            clv_bytes *out);
/* Appends a JSON object with the requested curves; nothing if none is requested. "roc":[[...],...]
 * for AUC: the points of clv_class_score.roc, a list for each class.
 * "calibration":[[n,mean,share],...] for ECE: a list for each bin, with its number of positions,
 * mean probability and n_right / n. */
void clv_scores_append_curves_json(const clv_scores *s, clv_bytes *out);
/* Callback that returns the id of a record; NULL: the record has no id, so its number is
 * printed. */
typedef const char *clv_record_name_fn(const void *user, size_t record);
/* Appends the records with the largest losses as JSON objects with commas between them:
 * {"id":"p012","loss":2.5},... target: value of the member "target", the name of the model's target
 * that has the losses; NULL: no such member. needs_comma: `out` already has records, so a comma
 * comes before the first one. */
void clv_scores_append_worst_json(const clv_scores *s, const char *target, clv_record_name_fn *name,
                                  const void *user, bool needs_comma, clv_bytes *out);

#endif
