/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats scores as text and as JSON.
 */
#include "master/score/score.h"

#include <math.h>
#include <stdio.h>

enum { MOST_SHOWN = 32 };

static void append_score(clv_bytes *out, const char *what, double v) {
  clv_bytes_printf(out, "%s%s ", out->len ? ", " : "", what);
  if (isnan(v))
    clv_bytes_puts(out, "not defined");
  else
    clv_bytes_printf(out, v < 10 ? "%.4f" : "%.6g", v);
}

double clv_scores_value(const clv_scores *s, clv_score_value value) {
  const double values[CLV_SCORE_VALUES] = {
      [CLV_VALUE_LOSS] = (double)NAN,     [CLV_VALUE_ACCURACY] = s->accuracy,
      [CLV_VALUE_F1_MICRO] = s->f1_micro, [CLV_VALUE_F1_MACRO] = s->f1_macro,
      [CLV_VALUE_AUC] = s->auc,           [CLV_VALUE_PERPLEXITY] = s->perplexity};
  unsigned needs = clv_score_value_row_of(value)->needs;
  return needs & ~s->wanted ? (double)NAN : values[value];
}

void clv_scores_each(const clv_scores *s, clv_score_fn *each, void *user) {
  for (int i = 0; i < CLV_SCORE_VALUES; i++) {
    const clv_score_value_row *row = clv_score_value_row_of((clv_score_value)i);
    if (s->wanted & row->needs) each(user, row->name, clv_scores_value(s, (clv_score_value)i));
  }
}

void clv_scores_line(const clv_scores *s, clv_bytes *out) {
  CLV_AUTO(clv_bytes_done) clv_bytes line = {0};
  if (s->wanted & CLV_SCORE_F1) append_score(&line, "F1 micro", s->f1_micro);
  if (s->wanted & CLV_SCORE_F1) append_score(&line, "macro", s->f1_macro);
  if (s->wanted & CLV_SCORE_AUC) append_score(&line, "AUC", s->auc);
  if (s->wanted & CLV_SCORE_PERPLEXITY) append_score(&line, "perplexity", s->perplexity);
  if (line.failed)
    out->failed = true;
  else if (line.len)
    clv_bytes_puts(out, line.data);
}

static const char *class_name_or_number(clv_class_name *name, const void *user, size_t c,
                                        char number[24]) {
  const char *given = name ? name(user, c) : NULL;
  if (given) return given;
  snprintf(number, 24, "%zu", c);
  return number;
}

static void append_class(const clv_scores *s, size_t c, const char *name, clv_bytes *out) {
  const clv_class_score *k = &s->classes[c];
  char shown[25];
  clv_bytes_printf(out, "%6zu  %-24s %9.4f %9.4f %9.4f", c,
                   clv_text_truncate(name, shown, sizeof shown), k->precision, k->recall, k->f1);
  if ((s->wanted & CLV_SCORE_AUC) && isnan(k->auc))
    clv_bytes_puts(out, "         -");
  else if (s->wanted & CLV_SCORE_AUC)
    clv_bytes_printf(out, " %9.4f", k->auc);
  clv_bytes_printf(out, " %9llu\n", (unsigned long long)k->labels);
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

void clv_scores_table(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out) {
  char number[24];
  if (s->wanted & (CLV_SCORE_F1 | CLV_SCORE_AUC)) {
    clv_bytes_printf(out, "%6s  %-24s %9s %9s %9s%s %9s\n", "class", "", "precision", "recall",
                     "F1", s->wanted & CLV_SCORE_AUC ? "       AUC" : "", "places");
    for (size_t c = 0; c < s->n_classes; c++)
      if (s->classes[c].labels + s->classes[c].answers)
        append_class(s, c, class_name_or_number(name, user, c, number), out);
  }
  if (s->confusion && s->n_classes <= MOST_SHOWN) append_confusion(s, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_number(clv_bytes *out, const char *key, double v) {
  clv_bytes_printf(out, "\"%s\":", key);
  if (isfinite(v))
    clv_bytes_printf(out, "%.9g", v);
  else
    clv_bytes_puts(out, "null");
}

static void json_class(const clv_scores *s, size_t c, const char *name, clv_bytes *out) {
  const clv_class_score *k = &s->classes[c];
  clv_bytes_puts(out, "{\"name\":");
  clv_bytes_add_json(out, name);
  const double values[] = {k->precision, k->recall, k->f1, k->auc};
  static const char *const keys[] = {"precision", "recall", "f1", "auc"};
  for (size_t i = 0; i < CLV_COUNT(keys) - !(s->wanted & CLV_SCORE_AUC); i++) {
    clv_bytes_puts(out, ",");
    json_number(out, keys[i], values[i]);
  }
  clv_bytes_printf(out, ",\"places\":%llu,\"answers\":%llu}", (unsigned long long)k->labels,
                   (unsigned long long)k->answers);
}

static void json_confusion(const clv_scores *s, clv_bytes *out) {
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

static void json_classes(const clv_scores *s, clv_class_name *name, const void *user,
                         clv_bytes *out) {
  char text[24];
  clv_bytes_puts(out, ",\"classes\":[");
  for (size_t c = 0; c < s->n_classes; c++) {
    if (c) clv_bytes_puts(out, ",");
    json_class(s, c, class_name_or_number(name, user, c, text), out);
  }
  clv_bytes_puts(out, "]");
}

void clv_scores_json(const clv_scores *s, clv_class_name *name, const void *user, clv_bytes *out) {
  clv_bytes_puts(out, "{");
  json_number(out, "accuracy", s->accuracy);
  if (s->wanted & CLV_SCORE_F1) {
    clv_bytes_puts(out, ",\"f1\":{");
    json_number(out, "micro", s->f1_micro);
    clv_bytes_puts(out, ",");
    json_number(out, "macro", s->f1_macro);
    clv_bytes_puts(out, "}");
  }
  if (s->wanted & CLV_SCORE_AUC) {
    clv_bytes_puts(out, ",");
    json_number(out, "auc", s->auc);
  }
  if (s->wanted & CLV_SCORE_PERPLEXITY) {
    clv_bytes_puts(out, ",");
    json_number(out, "perplexity", s->perplexity);
  }
  if (s->wanted & (CLV_SCORE_F1 | CLV_SCORE_AUC)) json_classes(s, name, user, out);
  if (s->confusion) json_confusion(s, out);
  clv_bytes_puts(out, "}");
}
