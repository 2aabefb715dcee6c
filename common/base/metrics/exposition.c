/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes metrics in the text format of Prometheus.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/metrics/metrics.h"

struct clv_metrics_out {
  clv_bytes *text;
  const clv_metric *row;
  bool is_header_written; /* HELP and TYPE of the row have been written */
};

/* ---- writing the numbers and labels of metrics ----------------------------------------------- */

/* Writes a number with the fewest digits that read back as the same number. */
static void put_number(clv_bytes *b, double v) {
  char text[40];
  if (isnan(v)) {
    clv_bytes_puts(b, "NaN");
  } else if (isinf(v)) {
    clv_bytes_puts(b, v > 0 ? "+Inf" : "-Inf");
  } else {
    snprintf(text, sizeof text, "%.15g", v);
    if (strtod(text, NULL) != v) snprintf(text, sizeof text, "%.17g", v);
    clv_bytes_puts(b, text);
  }
}

/* Appends the first max_bytes bytes of a HELP text or of a label's value, escaped. escapes_quotes:
 * true for a label. A byte that is not printable ASCII becomes a question mark, because the format
 * requires UTF-8 and the text may be cut inside a character. */
static void put_escaped(clv_bytes *b, const char *text, size_t max_bytes, bool escapes_quotes) {
  for (size_t i = 0; i < max_bytes && text[i]; i++) {
    char c = text[i];
    if (c == '\\')
      clv_bytes_puts(b, "\\\\");
    else if (c == '\n')
      clv_bytes_puts(b, "\\n");
    else if (c == '"' && escapes_quotes)
      clv_bytes_puts(b, "\\\"");
    else
      clv_bytes_add(b, c >= ' ' && c < 0x7f ? &c : "?", 1);
  }
}

static void write_header_once(clv_metrics_out *o) {
  static const char *const kinds[] = {"counter", "gauge", "histogram"};
  if (o->is_header_written) return;
  o->is_header_written = true;
  clv_bytes_printf(o->text, "# HELP %s ", o->row->name);
  put_escaped(o->text, o->row->help, SIZE_MAX, false);
  clv_bytes_printf(o->text, "\n# TYPE %s %s\n", o->row->name, kinds[o->row->kind]);
}

/* Writes name_suffix{labels,le="bound"} value; bound NULL: no le. */
static void put_sample(clv_metrics_out *o, const char *suffix, const clv_metric_label *labels,
                       size_t n, const double *bound, double value) {
  clv_bytes *b = o->text;
  write_header_once(o);
  clv_bytes_printf(b, "%s%s", o->row->name, suffix);
  for (size_t i = 0; i < n; i++) {
    clv_bytes_printf(b, "%s%s=\"", i ? "," : "{", labels[i].name);
    put_escaped(b, labels[i].value, CLV_METRIC_LABEL, true);
    clv_bytes_puts(b, "\"");
  }
  if (bound) {
    clv_bytes_puts(b, n ? ",le=\"" : "{le=\"");
    put_number(b, *bound);
    clv_bytes_puts(b, "\"");
  }
  clv_bytes_puts(b, n || bound ? "} " : " ");
  put_number(b, value);
  clv_bytes_puts(b, "\n");
}

/* ---- writing the samples of metrics ---------------------------------------------------------- */

void clv_metric_sample(clv_metrics_out *o, double value, const clv_metric_label *labels, size_t n) {
  put_sample(o, "", labels, n, NULL, value);
}

void clv_histogram_add(clv_histogram *h, double value) {
  uint32_t i = 0;
  while (i < h->n_bounds && value > h->bounds[i]) i++;
  h->counts[i]++;
  h->sum += value;
}

void clv_metric_histogram(clv_metrics_out *o, const clv_histogram *h,
                          const clv_metric_label *labels, size_t n) {
  uint64_t n_up_to_bound = 0;
  for (uint32_t i = 0; i <= h->n_bounds; i++) {
    double bound = i < h->n_bounds ? h->bounds[i] : INFINITY;
    n_up_to_bound += h->counts[i];
    put_sample(o, "_bucket", labels, n, &bound, (double)n_up_to_bound);
  }
  put_sample(o, "_sum", labels, n, NULL, h->sum);
  put_sample(o, "_count", labels, n, NULL, (double)n_up_to_bound);
}

static void write_row(const clv_metric *row, const void *numbers, clv_bytes *ret) {
  clv_metrics_out o = {.text = ret, .row = row};
  if (row->write)
    row->write(&o, numbers);
  else
    clv_metric_sample(&o, *(const double *)((const char *)numbers + row->at), NULL, 0);
}

/* Writes the samples of a row a second time, under the row's old name. */
static void write_old_row(const clv_metric *row, const void *numbers, clv_bytes *ret) {
  char help[160];
  clv_metric old_row = *row;
  snprintf(help, sizeof help, "Old name of %s; the next version leaves it out.", row->name);
  old_row.name = row->old_name;
  old_row.help = help;
  write_row(&old_row, numbers, ret);
}

void clv_metrics_write(const clv_metric *table, size_t n, const void *numbers, clv_bytes *ret) {
  for (size_t i = 0; i < n; i++) {
    write_row(&table[i], numbers, ret);
    if (table[i].old_name) write_old_row(&table[i], numbers, ret);
  }
}
