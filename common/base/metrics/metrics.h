/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics: writes numbers in the text format of Prometheus (0.0.4). A program has one table of its
 * metrics. A row has a name, a kind, a unit, a help text, and either the offset of the number in a
 * struct that the program fills for each scrape, or a function that writes a sample for each label.
 *
 * Names end in their unit (seconds, bytes), and in _total if they only grow. Values of labels come
 * from configurations and fixed lists, never from a peer, because Prometheus keeps a series for
 * each value.
 *
 * Threads: starts none. Only one thread at a time may use a clv_metrics_out or a histogram.
 */
#ifndef CLEAVE_METRICS_H
#define CLEAVE_METRICS_H

#include "common/base/base.h"

/* Content-Type of the text of clv_metrics_write. */
#define CLV_METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef enum clv_metric_kind { CLV_COUNTER, CLV_GAUGE, CLV_HISTOGRAM } clv_metric_kind;

/* Output of one metric, to which its write() adds samples. */
typedef struct clv_metrics_out clv_metrics_out;

typedef struct clv_metric {
  const char *name;
  clv_metric_kind kind;
  const char *unit; /* unit: "seconds", "bytes", or "" for counts */
  const char *help; /* meaning of the metric, in one sentence */
  /* offset of a double in `numbers` of clv_metrics_write; unused if `write` is set */
  size_t at;
  void (*write)(clv_metrics_out *out, const void *numbers);
  /* name of the metric in the previous version, written as a second metric; NULL: none */
  const char *old_name;
} clv_metric;

/* Appends HELP, TYPE and samples of each row. Leaves out a row whose `write` writes nothing. */
void clv_metrics_write(const clv_metric *table, size_t n, const void *numbers, clv_bytes *ret);

typedef struct clv_metric_label {
  const char *name; /* name of the label; static text */
  /* value of the label: any text, which is escaped and cut to CLV_METRIC_LABEL bytes */
  const char *value;
} clv_metric_label;

enum { CLV_METRIC_LABEL = 256 };

/* Writes one sample of the row whose `write` is running; labels: [n]. */
void clv_metric_sample(clv_metrics_out *out, double value, const clv_metric_label *labels,
                       size_t n);

/* ---- histograms of measured numbers ---------------------------------------------------------- */

enum { CLV_HISTOGRAM_BOUNDS = 16 };

typedef struct clv_histogram {
  const double *bounds; /* [n_bounds] ascending; the last bucket ends at infinity */
  uint32_t n_bounds;
  uint64_t counts[CLV_HISTOGRAM_BOUNDS + 1]; /* number of values in each bucket, not cumulative */
  double sum;
} clv_histogram;

void clv_histogram_add(clv_histogram *h, double value);
void clv_metric_histogram(clv_metrics_out *out, const clv_histogram *h,
                          const clv_metric_label *labels, size_t n);

/* ---- metrics of this process ----------------------------------------------------------------- */

/* Appends metrics of this process (memory, CPU time, descriptors, start time) under the names that
 * Prometheus' own libraries use, and cleave_build_info. Leaves out numbers that the system does not
 * report. */
void clv_metrics_process(const char *program, clv_bytes *ret);
uint64_t clv_metrics_resident(void); /* bytes of resident memory of this process; 0: not known */

#endif
