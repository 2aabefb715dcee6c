/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of the page: series.c keeps curves, run_files.c reads the folder of a run,
 * score_lines.c the lines of evaluations, charts.c draws, page.c puts the page together, html.c
 * escapes.
 */
#ifndef CLEAVE_PAGE_INT_H
#define CLEAVE_PAGE_INT_H

#include "common/base/json/json.h"
#include "common/model/weights/weights.h"
#include "master/egress/egress.h"
#include "master/page/page.h"

enum {
  PAGE_MAX_POINTS = 1024,  /* points of a curve; a longer one keeps every second, fourth, ... */
  PAGE_MAX_VALUES = 32,    /* scores of an evaluation */
  PAGE_MAX_CLASSES = 1024, /* classes of an evaluation */
  PAGE_SHOWN_CLASSES = 16, /* classes whose confusion and curves are drawn */
  PAGE_MAX_BINS = 64,
  PAGE_MAX_WORST = 64
};

/* Points of a curve, thinned out: one of every `skip` points is kept. n: points kept; seen: finite
 * points added. */
typedef struct page_series {
  double x[PAGE_MAX_POINTS], y[PAGE_MAX_POINTS];
  size_t n, seen, skip;
} page_series;

/* A score, with its interval; NaN: it has none. */
typedef struct page_value {
  char name[40];
  double value, low, high;
} page_value;

typedef struct page_class {
  char *name;
  double precision, recall, f1, auc, places;
  page_series *roc; /* NULL: not known */
} page_class;

typedef struct page_scores {
  bool is_set;
  int64_t step, samples;
  page_value values[PAGE_MAX_VALUES]; /* [n_values] loss and accuracy first */
  size_t n_values;
  page_class *classes; /* [n_classes] */
  size_t n_classes;
  double *confusion; /* [n_confusion][n_confusion] or NULL */
  size_t n_confusion;
  /* [n_bins] calibration bins: number of labelled positions, mean probability, share of right
   * answers */
  double bins[PAGE_MAX_BINS][3];
  size_t n_bins;
} page_scores;

typedef struct page_worst_record {
  char *id;
  double loss;
} page_worst_record;

typedef struct page_run {
  const char *folder;
  clv_run_record record;
  clv_egress_summary egress;
  bool has_egress;
  page_series train_loss, validation_loss, validation_accuracy;
  page_scores test_scores, interval_scores;
  page_worst_record worst[PAGE_MAX_WORST];
  size_t n_worst;
  uint64_t n_steps, n_pace;                   /* lines of metrics.jsonl and of pace.jsonl */
  double wait_share, up, down, samples_per_s; /* sums over the steps of pace.jsonl */
  clv_bytes session; /* the session without paths, addresses and the seed; empty: not known */
} page_run;

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads all files of the run in r->folder. Files that a run need not have may be missing. */
clv_code page_read_run(page_run *r, clv_err *err) CLV_USE_RESULT;
void page_run_done(page_run *r);
/* Reads one line of evaluations.jsonl, or intervals.json. `number`: its index, from 0. */
clv_code page_read_evaluation(page_run *r, const char *label, const char *line, size_t len,
                              size_t number, clv_err *err) CLV_USE_RESULT;
clv_code page_read_worst(page_run *r, const char *label, const char *text, size_t len,
                         clv_err *err) CLV_USE_RESULT;
void page_scores_done(page_scores *s);
void page_series_add(page_series *s, double x, double y);
/* Returns a value of the evaluation by its name; NULL: it has none. */
const page_value *page_find_value(const page_scores *s, const char *name);

/* ---- writing --------------------------------------------------------------------------------- */

/* Appends text that a run may have chosen: escaped, without characters that alter the display. */
void page_put(clv_bytes *out, const char *text);
/* Appends a number with four significant digits, or a dash for NaN. */
void page_put_number(clv_bytes *out, double v);

/* A curve of a chart. */
typedef struct page_curve {
  const char *name;
  const page_series *points;
  int color; /* number of the colour, from 0 */
} page_curve;

/* Appends a chart of n curves with a legend. has_unit_axes: both axes are from 0 to 1. */
void page_put_chart(clv_bytes *out, const char *title, const char *x_name, const page_curve *curves,
                    size_t n, bool has_unit_axes);

/* Appends the page. */
clv_code page_put_all(const page_run *runs, size_t n, clv_bytes *out, clv_err *err) CLV_USE_RESULT;

#endif
