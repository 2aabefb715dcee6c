/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats scores as text and as JSON.
 */
#include "master/score/score.h"

#include <math.h>
#include <stdio.h>

enum { MAX_SHOWN_CLASSES = 32 };

/* Names of the values in the line of clv_scores_append_line; NULL: the line does not have the
 * value. */
static const char *const line_names[CLV_SCORE_VALUES] = {
    [CLV_VALUE_ACCURACY] = "accuracy",
    [CLV_VALUE_F1_MICRO] = "F1 micro",
    [CLV_VALUE_F1_MACRO] = "macro",
    [CLV_VALUE_AUC] = "AUC",
    [CLV_VALUE_PERPLEXITY] = "perplexity",
    [CLV_VALUE_AVERAGE_PRECISION] = "average precision",
    [CLV_VALUE_SENSITIVITY] = "sensitivity",
    [CLV_VALUE_ECE] = "calibration error",
    [CLV_VALUE_MAE] = "MAE",
    [CLV_VALUE_RMSE] = "RMSE",
    [CLV_VALUE_R2] = "R2",
};

static void append_number(clv_bytes *out, double v) {
  if (isnan(v))
    clv_bytes_puts(out, "not defined");
  else
    clv_bytes_printf(out, v < 10 ? "%.4f" : "%.6g", v);
}

static void append_score(clv_bytes *out, const clv_scores *s, clv_score_value value) {
  const clv_interval *i = &s->intervals[value];
  clv_bytes_printf(out, "%s%s ", out->len ? ", " : "", line_names[value]);
  append_number(out, s->values[value]);
  if (!s->has_intervals || isnan(i->low)) return;
  clv_bytes_puts(out, " (");
  append_number(out, i->low);
  clv_bytes_puts(out, " to ");
  append_number(out, i->high);
  clv_bytes_puts(out, ")");
}

double clv_scores_value(const clv_scores *s, clv_score_value value) {
  unsigned needed_bits = clv_score_value_row_of(value)->needs;
  return needed_bits & ~s->score_bits ? (double)NAN : s->values[value];
}

static bool is_requested(const clv_scores *s, clv_score_value value) {
  return s->score_bits & clv_score_value_row_of(value)->needs;
}

void clv_scores_for_each(const clv_scores *s, clv_score_fn *fn, void *user) {
  for (clv_score_value v = 0; v < CLV_SCORE_VALUES; v++)
    if (is_requested(s, v)) fn(user, clv_score_value_row_of(v)->name, s->values[v]);
}

void clv_scores_append_line(const clv_scores *s, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  for (clv_score_value v = 0; v < CLV_SCORE_VALUES; v++) {
    /* the line of an evaluation shows the accuracy already: repeats it only with its interval */
    bool is_accuracy = v == CLV_VALUE_ACCURACY && s->has_intervals && s->n_classes;
    if (is_accuracy || (is_requested(s, v) && line_names[v])) append_score(&line, s, v);
  }
  if (line.failed)
    out->failed = true;
  else if (line.len)
    clv_bytes_puts(out, line.data);
}

static const char *class_name_or_number(clv_class_name_fn *name, const void *user, size_t c,
                                        char number[24]) {
  const char *known_name = name ? name(user, c) : NULL;
  if (known_name) return known_name;
  snprintf(number, 24, "%zu", c);
  return number;
}

/* Columns of the table of classes after precision, recall and F1, in their order. A column is
 * printed only if its `score_bit` is requested. */
static const struct {
  unsigned score_bit;
  const char *title, *key;
  size_t offset; /* offset in clv_class_score */
} columns[] = {
    {CLV_SCORE_AUC, "AUC", "auc", offsetof(clv_class_score, auc)},
    {CLV_SCORE_AVERAGE_PRECISION, "AP", "average_precision",
     offsetof(clv_class_score, average_precision)},
    {CLV_SCORE_SENSITIVITY, "sensit.", "sensitivity", offsetof(clv_class_score, sensitivity)}};

/* Returns the score of class `k` that column i shows. */
static double get_column_value(const clv_class_score *k, size_t i) {
  return *(const double *)(const void *)((const char *)k + columns[i].offset);
}

static void append_class(const clv_scores *s, size_t c, const char *name, clv_bytes *out) {
  const clv_class_score *k = &s->classes[c];
  char shown_name[25];
  clv_bytes_printf(out, "%6zu  %-24s %9.4f %9.4f %9.4f", c,
                   clv_text_truncate(name, shown_name, sizeof shown_name), k->precision, k->recall,
                   k->f1);
  for (size_t i = 0; i < CLV_COUNT(columns); i++) {
    if (!(s->score_bits & columns[i].score_bit)) continue;
    if (isnan(get_column_value(k, i)))
      clv_bytes_puts(out, "         -");
    else
      clv_bytes_printf(out, " %9.4f", get_column_value(k, i));
  }
  clv_bytes_printf(out, " %9llu\n", (unsigned long long)k->n_labels);
}

static void append_confusion(const clv_scores *s, clv_bytes *out) {
  clv_bytes_puts(out, "places by label (rows) and answer (columns)\n       ");
  for (size_t c = 0; c < s->n_classes; c++) clv_bytes_printf(out, " %8zu", c);
  for (size_t r = 0; r < s->n_classes; r++) {
    clv_bytes_printf(out, "\n%6zu ", r);
    for (size_t c = 0; c < s->n_classes; c++)
      clv_bytes_printf(out, " %8llu", (unsigned long long)s->confusion[r * s->n_classes + c]);
  }
  clv_bytes_puts(out, "\n");
}

/* Returns true if a requested score has a value for each class. */
static bool has_class_scores(const clv_scores *s) {
  unsigned per_class_scores = CLV_SCORE_F1;
  for (size_t i = 0; i < CLV_COUNT(columns); i++) per_class_scores |= columns[i].score_bit;
  return s->n_classes && s->score_bits & per_class_scores;
}

void clv_scores_append_table(const clv_scores *s, clv_class_name_fn *name, const void *user,
                             clv_bytes *out) {
  char number[24];
  if (has_class_scores(s)) {
    clv_bytes_printf(out, "%6s  %-24s %9s %9s %9s", "class", "", "precision", "recall", "F1");
    for (size_t i = 0; i < CLV_COUNT(columns); i++)
      if (s->score_bits & columns[i].score_bit) clv_bytes_printf(out, " %9s", columns[i].title);
    clv_bytes_printf(out, " %9s\n", "places");
    for (size_t c = 0; c < s->n_classes; c++)
      if (s->classes[c].n_labels + s->classes[c].n_answers)
        append_class(s, c, class_name_or_number(name, user, c, number), out);
  }
  if (s->confusion && s->n_classes <= MAX_SHOWN_CLASSES) append_confusion(s, out);
}

/* ---- scores as JSON -------------------------------------------------------------------------- */

static void append_json_number(clv_bytes *out, const char *key, double v) {
  clv_bytes_printf(out, "\"%s\":", key);
  if (isfinite(v))
    clv_bytes_printf(out, "%.9g", v);
  else
    clv_bytes_puts(out, "null");
}

static void append_json_class(const clv_scores *s, size_t c, const char *name, clv_bytes *out) {
  const clv_class_score *k = &s->classes[c];
  clv_bytes_puts(out, "{\"name\":");
  clv_bytes_add_json(out, name);
  const double values[] = {k->precision, k->recall, k->f1};
  static const char *const keys[] = {"precision", "recall", "f1"};
  for (size_t i = 0; i < CLV_COUNT(keys); i++) {
    clv_bytes_puts(out, ",");
    append_json_number(out, keys[i], values[i]);
  }
  for (size_t i = 0; i < CLV_COUNT(columns); i++) {
    if (!(s->score_bits & columns[i].score_bit)) continue;
    clv_bytes_puts(out, ",");
    append_json_number(out, columns[i].key, get_column_value(k, i));
  }
  clv_bytes_printf(out, ",\"places\":%llu,\"answers\":%llu}", (unsigned long long)k->n_labels,
                   (unsigned long long)k->n_answers);
}

static void append_json_confusion(const clv_scores *s, clv_bytes *out) {
  clv_bytes_puts(out, ",\"confusion\":[");
  for (size_t r = 0; r < s->n_classes; r++)
    for (size_t c = 0; c < s->n_classes; c++)
      clv_bytes_printf(out, "%s%llu%s",
                       c   ? ","
                       : r ? ",["
                           : "[",
                       (unsigned long long)s->confusion[r * s->n_classes + c],
                       c + 1 == s->n_classes ? "]" : "");
  clv_bytes_puts(out, "]");
}

static void append_json_classes(const clv_scores *s, clv_class_name_fn *name, const void *user,
                                clv_bytes *out) {
  char text[24];
  clv_bytes_puts(out, ",\"classes\":[");
  for (size_t c = 0; c < s->n_classes; c++) {
    if (c) clv_bytes_puts(out, ",");
    append_json_class(s, c, class_name_or_number(name, user, c, text), out);
  }
  clv_bytes_puts(out, "]");
}

/* Appends "intervals":{"auc":[0.87,0.93],...} for the values that have an interval. */
static void append_json_intervals(const clv_scores *s, clv_bytes *out) {
  bool is_first = true;
  clv_bytes_puts(out, ",\"intervals\":{");
  for (clv_score_value v = 0; v < CLV_SCORE_VALUES; v++) {
    const clv_interval *i = &s->intervals[v];
    if (isnan(i->low) || isnan(clv_scores_value(s, v))) continue;
    clv_bytes_printf(out, "%s\"%s\":[%.9g,%.9g]", is_first ? "" : ",",
                     clv_score_value_row_of(v)->name, i->low, i->high);
    is_first = false;
  }
  clv_bytes_puts(out, "}");
}

void clv_scores_append_json(const clv_scores *s, clv_class_name_fn *name, const void *user,
                            clv_bytes *out) {
  clv_bytes_puts(out, "{");
  if (s->n_classes) append_json_number(out, "accuracy", s->values[CLV_VALUE_ACCURACY]);
  if (s->score_bits & CLV_SCORE_F1) {
    clv_bytes_puts(out, ",\"f1\":{");
    append_json_number(out, "micro", s->values[CLV_VALUE_F1_MICRO]);
    clv_bytes_puts(out, ",");
    append_json_number(out, "macro", s->values[CLV_VALUE_F1_MACRO]);
    clv_bytes_puts(out, "}");
  }
  for (clv_score_value v = CLV_VALUE_AUC; v < CLV_SCORE_VALUES; v++) {
    if (!is_requested(s, v)) continue;
    if (out->len && out->data[out->len - 1] != '{') clv_bytes_puts(out, ",");
    append_json_number(out, clv_score_value_row_of(v)->name, s->values[v]);
  }
  if (s->has_intervals) append_json_intervals(s, out);
  if (has_class_scores(s)) append_json_classes(s, name, user, out);
  if (s->confusion) append_json_confusion(s, out);
  clv_bytes_puts(out, "}");
}

/* ---- curves as JSON -------------------------------------------------------------------------- */

static void append_json_roc(const clv_scores *s, clv_bytes *out) {
  clv_bytes_puts(out, "\"roc\":[");
  for (size_t c = 0; c < CLV_MIN(s->n_classes, (size_t)MAX_SHOWN_CLASSES); c++) {
    clv_bytes_puts(out, c ? ",[" : "[");
    for (int i = 0; i <= CLV_ROC_STEPS && !isnan(s->classes[c].auc); i++)
      clv_bytes_printf(out, "%s%.4g", i ? "," : "", (double)s->classes[c].roc[i]);
    clv_bytes_puts(out, "]");
  }
  clv_bytes_puts(out, "]");
}

static void append_json_calibration(const clv_scores *s, clv_bytes *out) {
  clv_bytes_puts(out, "\"calibration\":[");
  for (int b = 0; b < CLV_CALIBRATION_BINS; b++) {
    const clv_calibration_bin *k = &s->bins[b];
    double n = k->n_positions ? (double)k->n_positions : 1;
    clv_bytes_printf(out, "%s[%llu,%.6g,%.6g]", b ? "," : "", (unsigned long long)k->n_positions,
                     k->p_sum / n, (double)k->n_right / n);
  }
  clv_bytes_puts(out, "]");
}

void clv_scores_append_curves_json(const clv_scores *s, clv_bytes *out) {
  bool has_roc = s->score_bits & CLV_SCORE_AUC, has_bins = s->score_bits & CLV_SCORE_ECE;
  if (!has_roc && !has_bins) return;
  clv_bytes_puts(out, "{");
  if (has_roc) append_json_roc(s, out);
  if (has_roc && has_bins) clv_bytes_puts(out, ",");
  if (has_bins) append_json_calibration(s, out);
  clv_bytes_puts(out, "}");
}

void clv_scores_append_worst_json(const clv_scores *s, const char *target, clv_record_name_fn *name,
                                  const void *user, bool needs_comma, clv_bytes *out) {
  for (size_t i = 0; i < s->n_worst_records; i++) {
    const char *id = name ? name(user, s->worst_records[i].record) : NULL;
    clv_bytes_puts(out, i || needs_comma ? ",\n{\"id\":" : "{\"id\":");
    if (id)
      clv_bytes_add_json(out, id);
    else
      clv_bytes_printf(out, "\"%zu\"", s->worst_records[i].record);
    if (target) clv_bytes_puts(out, ",\"target\":");
    if (target) clv_bytes_add_json(out, target);
    clv_bytes_puts(out, ",");
    append_json_number(out, "loss", s->worst_records[i].loss);
    clv_bytes_puts(out, "}");
  }
}
