/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of the page: run_files.c reads the folder of a run, score_lines.c reads its
 * evaluations, series.c keeps the points of curves, charts.c draws curves as SVG, html.c escapes
 * texts, and page.c puts the page together.
 */
#ifndef CLEAVE_PAGE_INT_H
#define CLEAVE_PAGE_INT_H

#include "common/base/json/json.h"
#include "common/model/weights/weights.h"
#include "master/egress/egress.h"
#include "master/page/page.h"

enum {
  /* most points kept of a curve; a longer curve keeps every 2nd, 4th or 8th point, and so on */
  PAGE_MAX_POINTS = 1024,
  PAGE_MAX_VALUES = 32,        /* most scores of an evaluation */
  PAGE_MAX_CLASSES = 1024,     /* most classes of an evaluation */
  PAGE_MAX_SHOWN_CLASSES = 16, /* most classes whose confusion matrix and ROC curves are shown */
  PAGE_MAX_BINS = 64,          /* most calibration bins of an evaluation */
  PAGE_MAX_WORST_RECORDS = 64  /* most records of worst_records.json */
};

/* Points of a curve, thinned out: one of every `stride` points is kept. n: points kept; n_added:
 * points added so far, without those whose y is not finite. */
typedef struct page_series {
  double x[PAGE_MAX_POINTS], y[PAGE_MAX_POINTS];
  size_t n, n_added, stride;
} page_series;

/* A score and the ends of its interval; low and high are NaN if there is no interval. */
typedef struct page_value {
  char name[40];
  double value, low, high;
} page_value;

/* Scores of one class. n_positions: number of positions with this label, the JSON key `places`. */
typedef struct page_class {
  char *name;
  double precision, recall, f1, auc, n_positions;
  page_series *roc; /* ROC curve; NULL: the file has none */
} page_class;

/* An evaluation, from one line of evaluations.jsonl or from intervals.json. */
typedef struct page_scores {
  bool is_set;             /* an evaluation has been read */
  bool is_ema;             /* the evaluation used averages of the weights */
  int64_t step, n_samples; /* step of the evaluated weights; number of evaluated records */
  page_value values[PAGE_MAX_VALUES]; /* [n_values] in the order of the line */
  size_t n_values;
  page_class *classes; /* [n_classes] */
  size_t n_classes;
  double *confusion; /* [confusion_width][confusion_width] confusion matrix; NULL: none */
  size_t confusion_width;
  /* [n_bins] calibration bins: number of labelled positions, mean probability, share of right
   * answers */
  double bins[PAGE_MAX_BINS][3];
  size_t n_bins;
  char *target; /* name of the target that has the scores; NULL: the scores are of the evaluation */
  /* [n_targets] scores of each target; NULL: the evaluated records have one label */
  struct page_scores *targets;
  size_t n_targets;
} page_scores;

/* A test record with one of the largest losses. */
typedef struct page_worst_record {
  char *id;
  char *target; /* target that has the loss; NULL: the record has one label */
  double loss;
} page_worst_record;

/* A run, as the files of its folder describe it. */
typedef struct page_run {
  const char *folder; /* path of the run folder, as the caller gave it */
  clv_run_record record;
  clv_egress_summary egress;
  bool has_egress;
  page_series train_loss, validation_loss, validation_accuracy; /* x: step */
  /* scores of the run's newest test; scores that `eval --intervals` computed */
  page_scores test_scores, interval_scores;
  page_worst_record worst_records[PAGE_MAX_WORST_RECORDS];
  size_t n_worst_records;
  uint64_t n_steps, n_pace_lines; /* numbers of lines of metrics.jsonl and of pace.jsonl */
  /* sums over the lines of pace.jsonl; bytes_up: sent by the master, bytes_down: received */
  double wait_share_sum, bytes_up_sum, bytes_down_sum, samples_per_s_sum;
  clv_bytes session; /* the session without paths, addresses and the seed; empty: not known */
} page_run;

/* ---- reading the files of a run -------------------------------------------------------------- */

/* Reads all files of the run in r->folder. Files that a run need not have may be missing. */
clv_code page_read_run(page_run *r, clv_err *err) CLV_USE_RESULT;
void page_run_done(page_run *r);
/* Reads one line of evaluations.jsonl or intervals.json into *r. label: path of the file, for
 * errors; line_number: index of the line, from 0. */
clv_code page_read_evaluation(page_run *r, const char *label, const char *line, size_t len,
                              size_t line_number, clv_err *err) CLV_USE_RESULT;
/* Reads the text of worst_records.json into *r. label: path of the file, for errors. */
clv_code page_read_worst(page_run *r, const char *label, const char *text, size_t len,
                         clv_err *err) CLV_USE_RESULT;
void page_scores_done(page_scores *s);
/* Adds a point; ignores it if y is not finite. */
void page_series_add(page_series *s, double x, double y);
/* Returns the value of an evaluation that has this name; NULL: there is none. */
const page_value *page_find_value(const page_scores *s, const char *name);
/* Returns the scores of the target that has this name; NULL: there is none. */
const page_scores *page_find_target(const page_scores *s, const char *name);

/* ---- writing HTML and SVG -------------------------------------------------------------------- */

/* Appends a text from a run's files, escaped for HTML. Replaces characters that would alter the
 * display of the page, such as control characters, by '?'. */
void page_put_text(clv_bytes *out, const char *text);
/* Appends a number with four significant digits, or a dash for NaN. */
void page_put_number(clv_bytes *out, double v);

/* A curve of a chart. */
typedef struct page_curve {
  const char *name; /* name of the curve in the legend */
  const page_series *points;
  int color; /* index of the colour in the page's style, from 0 */
} page_curve;

/* Appends a chart of n curves with a legend; nothing if no curve has a point. has_unit_axes: both
 * axes go from 0 to 1, and a dashed diagonal is drawn. */
void page_put_chart(clv_bytes *out, const char *title, const char *x_name, const page_curve *curves,
                    size_t n, bool has_unit_axes);

/* Appends the complete page of the runs [n]. */
clv_code page_put_report(const page_run *runs, size_t n, clv_bytes *out,
                         clv_err *err) CLV_USE_RESULT;

#endif
