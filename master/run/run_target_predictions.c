/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats predictions of records with several targets as CSV and JSON
 * (clv_target_predictions_add_*). The columns of a target are adjacent, and their names contain the
 * name of the target.
 */
#include <math.h>
#include <string.h>

#include "master/run/run_int.h"

/* ---- texts in cells of CSV ------------------------------------------------------------------- */

void clv_predictions_add_csv_text(clv_bytes *out, const char *text) {
  const char *apostrophe = *text && strchr("=+-@\t\r", *text) ? "'" : "";
  if (!text[strcspn(text, ",\"\r\n")]) {
    clv_bytes_printf(out, "%s%s", apostrophe, text);
    return;
  }
  clv_bytes_printf(out, "\"%s", apostrophe);
  for (; *text; text++) {
    if (*text == '"') clv_bytes_puts(out, "\"");
    clv_bytes_add(out, text, 1);
  }
  clv_bytes_puts(out, "\"");
}

/* ---- outputs of a row, and the classes and numbers that they predict ------------------------- */

static bool has_classes(const clv_target_spec *s) { return clv_loss_has_accuracy(s->kind); }

/* Returns the name of a class of a target; NULL: the class has no name. */
static const char *class_name(const clv_predictions *r, const clv_target_spec *s, size_t class) {
  if (!s->n_classes) return class ? "yes" : "no";
  return r->learnt ? clv_learnt_class_name(r->learnt, s->name, class) : NULL;
}

static size_t predicted_class(const clv_target_spec *s, const float *outputs) {
  return s->n_classes ? clv_argmax_row(outputs, (size_t)s->n_classes)
                      : clv_is_positive_output(s->kind, outputs[0]);
}

static size_t count_outputs(const clv_predictions *r) {
  size_t n = 0;
  for (size_t k = 0; k < r->n_targets; k++) n += clv_target_width(&r->targets[k]);
  return n;
}

/* Returns the values of all outputs in a row of t; NULL if t is NULL. */
static const float *outputs_of_row(const clv_predictions *r, const clv_tensor *t, size_t row) {
  return t ? (const float *)t->data + row * count_outputs(r) : NULL;
}

/* Converts an output to the predicted number. An output of poisson is the number's logarithm. */
static double predicted_number(const clv_target_spec *s, float output) {
  return s->kind == CLV_LOSS_POISSON ? exp((double)output) : (double)output;
}

/* ---- names of CSV columns -------------------------------------------------------------------- */

/* Appends the name of output j of a target: "outcome_benign", or "days" if it has one output. */
static void append_output_name(clv_bytes *out, const clv_predictions *r, const clv_target_spec *s,
                               size_t j) {
  const char *name = s->n_classes ? class_name(r, s, j) : NULL;
  clv_bytes_puts(out, s->name);
  if (name) clv_bytes_printf(out, "_%s", name);
  if (!name && s->n_classes) clv_bytes_printf(out, "_%zu", j);
}

static void append_column(clv_bytes *out, const clv_predictions *r, const clv_target_spec *s,
                          size_t j, const char *prefix) {
  CLV_AUTO(clv_bytes_done) clv_bytes column = {0};
  clv_bytes_puts(&column, prefix);
  append_output_name(&column, r, s, j);
  out->failed |= column.failed;
  clv_bytes_puts(out, ",");
  clv_predictions_add_csv_text(out, column.data ? column.data : "");
}

void clv_target_predictions_add_header(clv_bytes *out, const clv_predictions *r) {
  const char *column_prefix = r->probabilities ? "probability_" : "output_";
  for (size_t k = 0; k < r->n_targets; k++) {
    const clv_target_spec *s = &r->targets[k];
    clv_bytes_puts(out, ",");
    clv_predictions_add_csv_text(out, s->name);
    for (size_t j = 0; has_classes(s) && j < clv_target_width(s); j++)
      append_column(out, r, s, j, column_prefix);
    for (size_t j = 0; r->low && j < clv_target_width(s); j++) append_column(out, r, s, j, "low_");
    for (size_t j = 0; r->high && j < clv_target_width(s); j++)
      append_column(out, r, s, j, "high_");
  }
}

void clv_target_predictions_add_names(clv_bytes *out, const clv_predictions *r) {
  clv_bytes_puts(out, "[");
  for (size_t k = 0, n = 0; k < r->n_targets; k++)
    for (size_t j = 0; j < clv_target_width(&r->targets[k]); j++) {
      CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
      append_output_name(&name, r, &r->targets[k], j);
      out->failed |= name.failed;
      clv_bytes_puts(out, n++ ? "," : "");
      clv_bytes_add_json(out, name.data ? name.data : "");
    }
  clv_bytes_puts(out, "]");
}

/* ---- rows of predictions in CSV and JSON ----------------------------------------------------- */

/* Appends the numbers of a target's outputs; nothing if x is NULL. */
static void append_csv_numbers(clv_bytes *out, const clv_target_spec *s, const float *x) {
  char number[CLV_JSON_NUMBER_BYTES];
  for (size_t j = 0; x && j < clv_target_width(s); j++)
    clv_bytes_printf(out, ",%s", clv_format_number("%.9g", predicted_number(s, x[j]), number));
}

static void append_csv_class(clv_bytes *out, const clv_predictions *r, const clv_target_spec *s,
                             const float *outputs) {
  size_t class = predicted_class(s, outputs);
  const char *name = class_name(r, s, class);
  clv_bytes_puts(out, ",");
  if (name)
    clv_predictions_add_csv_text(out, name);
  else
    clv_bytes_printf(out, "%zu", class);
}

void clv_target_predictions_add_csv(clv_bytes *out, const clv_predictions *r, size_t row) {
  const float *outputs = outputs_of_row(r, r->outputs, row), *low = outputs_of_row(r, r->low, row);
  const float *values = r->probabilities ? outputs_of_row(r, r->probabilities, row) : outputs;
  const float *high = outputs_of_row(r, r->high, row);
  for (size_t k = 0; k < r->n_targets; k++) {
    const clv_target_spec *s = &r->targets[k];
    size_t width = clv_target_width(s);
    if (has_classes(s)) append_csv_class(out, r, s, outputs);
    append_csv_numbers(out, s, values);
    append_csv_numbers(out, s, low);
    append_csv_numbers(out, s, high);
    outputs += width;
    values += width;
    if (low) low += width;
    if (high) high += width;
  }
}

/* Appends the numbers of a target's outputs as a member with a list; nothing if x is NULL. */
static void append_json_numbers(clv_bytes *out, const char *key, const clv_target_spec *s,
                                const float *x) {
  char number[CLV_JSON_NUMBER_BYTES];
  if (!x) return;
  clv_bytes_printf(out, ",\"%s\":[", key);
  for (size_t j = 0; j < clv_target_width(s); j++)
    clv_bytes_printf(out, "%s%s", j ? "," : "",
                     clv_json_number(predicted_number(s, x[j]), 9, number));
  clv_bytes_puts(out, "]");
}

/* Appends the predicted class of a target and its name or, if it has no classes, the predicted
 * number. */
static void append_json_prediction(clv_bytes *out, const clv_predictions *r,
                                   const clv_target_spec *s, const float *outputs) {
  char number[CLV_JSON_NUMBER_BYTES];
  size_t class = predicted_class(s, outputs);
  const char *name = class_name(r, s, class);
  if (!has_classes(s)) {
    clv_bytes_printf(out, "\"number\":%s",
                     clv_json_number(predicted_number(s, outputs[0]), 9, number));
    return;
  }
  clv_bytes_printf(out, "\"class\":%zu", class);
  if (name) clv_bytes_puts(out, ",\"name\":");
  if (name) clv_bytes_add_json(out, name);
}

void clv_target_predictions_add_json(clv_bytes *out, const clv_predictions *r, size_t row) {
  const float *outputs = outputs_of_row(r, r->outputs, row), *low = outputs_of_row(r, r->low, row);
  const float *values = r->probabilities ? outputs_of_row(r, r->probabilities, row) : outputs;
  const float *high = outputs_of_row(r, r->high, row);
  clv_bytes_puts(out, ",\"targets\":{");
  for (size_t k = 0; k < r->n_targets; k++) {
    const clv_target_spec *s = &r->targets[k];
    size_t width = clv_target_width(s);
    clv_bytes_puts(out, k ? "," : "");
    clv_bytes_add_json(out, s->name);
    clv_bytes_puts(out, ":{");
    append_json_prediction(out, r, s, outputs);
    if (has_classes(s))
      append_json_numbers(out, r->probabilities ? "probabilities" : "outputs", s, values);
    append_json_numbers(out, "low", s, low);
    append_json_numbers(out, "high", s, high);
    clv_bytes_puts(out, "}");
    outputs += width;
    values += width;
    if (low) low += width;
    if (high) high += width;
  }
  clv_bytes_puts(out, "}");
}
