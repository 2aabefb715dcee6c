/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads lines of evaluations.jsonl, intervals.json and worst_records.json. Keys that the page does
 * not show are checked and skipped.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/page/page_int.h"

/* Reads a number; NaN for null. */
static clv_code read_number(clv_json *j, double *ret, clv_err *err) {
  *ret = (double)NAN;
  return clv_json_skip_null(j) ? CLV_OK : clv_json_read_real(j, ret, err);
}

/* Reads a list of numbers into ret [max_n]. Fails if the list has more than max_n numbers. */
static clv_code read_numbers(clv_json *j, double *ret, size_t max_n, size_t *ret_n, clv_err *err) {
  bool has_more;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (*ret_n = 0;; ++*ret_n) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, *ret_n, &has_more, err));
    if (!has_more) return CLV_OK;
    if (*ret_n == max_n)
      return clv_json_fail(j, j->at, err, "a list has more than %zu numbers", max_n);
    CLV_TRY(read_number(j, &ret[*ret_n], err));
  }
}

/* ---- scores by name -------------------------------------------------------------------------- */

const page_value *page_find_value(const page_scores *s, const char *name) {
  for (size_t i = 0; i < s->n_values; i++)
    if (strcmp(s->values[i].name, name) == 0) return &s->values[i];
  return NULL;
}

/* Returns the value with this name, and adds it if there is none yet. NULL: there are
 * PAGE_MAX_VALUES already, or the name is too long. */
static page_value *find_or_add_value(page_scores *s, const char *name) {
  const page_value *found = page_find_value(s, name);
  if (found) return (page_value *)(uintptr_t)found;
  if (s->n_values == PAGE_MAX_VALUES || strlen(name) >= sizeof s->values[0].name) return NULL;
  page_value *v = &s->values[s->n_values++];
  *v = (page_value){.value = (double)NAN, .low = (double)NAN, .high = (double)NAN};
  snprintf(v->name, sizeof v->name, "%s", name);
  return v;
}

/* Sets the value with this name. Ignores the value if it cannot be added. */
static void set_value(page_scores *s, const char *name, double value) {
  page_value *v = find_or_add_value(s, name);
  if (v) v->value = value;
}

/* Reads the value of the member `key` of an object into *s. */
typedef clv_code member_reader(clv_json *j, page_scores *s, const char *key, clv_err *err);

/* Reads an object. Calls `read` for each member, after its key; `read` reads the member's value. */
static clv_code read_members(clv_json *j, page_scores *s, member_reader *read, clv_err *err) {
  bool has_more;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return CLV_OK;
    CLV_TRY(clv_json_read_key(j, &key, err));
    CLV_TRY(read(j, s, key.data ? key.data : "", err));
  }
}

static clv_code read_f1(clv_json *j, page_scores *s, const char *key, clv_err *err) {
  double v;
  CLV_TRY(read_number(j, &v, err));
  set_value(s, strcmp(key, "micro") == 0 ? "f1_micro" : "f1_macro", v);
  return CLV_OK;
}

static clv_code read_interval(clv_json *j, page_scores *s, const char *key, clv_err *err) {
  double ends[2] = {(double)NAN, (double)NAN};
  size_t n;
  CLV_TRY(read_numbers(j, ends, 2, &n, err));
  page_value *v = find_or_add_value(s, key);
  if (!v) return CLV_OK;
  v->low = ends[0];
  v->high = ends[1];
  return CLV_OK;
}

/* ---- scores of classes ----------------------------------------------------------------------- */

static clv_code read_class_member(clv_json *j, page_scores *s, const char *key, clv_err *err) {
  page_class *c = &s->classes[s->n_classes - 1];
  const struct {
    const char *key;
    double *value;
  } numbers[] = {{"precision", &c->precision},
                 {"recall", &c->recall},
                 {"f1", &c->f1},
                 {"auc", &c->auc},
                 {"places", &c->n_positions}};
  if (strcmp(key, "name") == 0) {
    CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
    CLV_TRY(clv_json_read_text(j, &name, err));
    free(c->name);
    return clv_strdup(name.data ? name.data : "", &c->name, err);
  }
  for (size_t i = 0; i < CLV_COUNT(numbers); i++)
    if (strcmp(key, numbers[i].key) == 0) return read_number(j, numbers[i].value, err);
  return clv_json_skip(j, err);
}

static clv_code read_classes(clv_json *j, page_scores *s, clv_err *err) {
  bool has_more;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more) return CLV_OK;
    if (s->n_classes == PAGE_MAX_CLASSES)
      return clv_json_fail(j, j->at, err, "more than %d classes", PAGE_MAX_CLASSES);
    page_class *grown = realloc(s->classes, (s->n_classes + 1) * sizeof *grown);
    if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    s->classes = grown;
    s->classes[s->n_classes++] = (page_class){.auc = (double)NAN};
    CLV_TRY(read_members(j, s, read_class_member, err));
  }
}

static clv_code read_confusion(clv_json *j, page_scores *s, clv_err *err) {
  bool has_more;
  size_t n, width = s->n_classes ? s->n_classes : PAGE_MAX_SHOWN_CLASSES;
  free(clv_steal(&s->confusion));
  CLV_TRY(clv_alloc(width * width, sizeof *s->confusion, &s->confusion, err));
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (s->confusion_width = 0;; s->confusion_width++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, s->confusion_width, &has_more, err));
    if (!has_more) break;
    if (s->confusion_width == width)
      return clv_json_fail(j, j->at, err, "a confusion matrix of more than %zu rows", width);
    CLV_TRY(read_numbers(j, s->confusion + s->confusion_width * width, width, &n, err));
  }
  /* drops a matrix that does not have one row for each class */
  if (s->confusion_width && s->confusion_width != width) s->confusion_width = 0;
  return CLV_OK;
}

/* Reads a list with the ROC curve of each class: sensitivities at equally spaced values of 1 -
 * specificity from 0 to 1. */
static clv_code read_roc(clv_json *j, page_scores *s, clv_err *err) {
  double points[256];
  bool has_more;
  size_t n;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t c = 0;; c++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, c, &has_more, err));
    if (!has_more) return CLV_OK;
    CLV_TRY(read_numbers(j, points, CLV_COUNT(points), &n, err));
    if (c >= s->n_classes || n < 2) continue;
    page_class *k = &s->classes[c];
    if (!k->roc) CLV_TRY(clv_alloc(1, sizeof *k->roc, &k->roc, err));
    *k->roc = (page_series){.n = 0};
    for (size_t i = 0; i < n; i++) page_series_add(k->roc, (double)i / (double)(n - 1), points[i]);
  }
}

static clv_code read_bins(clv_json *j, page_scores *s, clv_err *err) {
  bool has_more;
  size_t n;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (s->n_bins = 0;; s->n_bins++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, s->n_bins, &has_more, err));
    if (!has_more) return CLV_OK;
    if (s->n_bins == PAGE_MAX_BINS)
      return clv_json_fail(j, j->at, err, "more than %d bins", PAGE_MAX_BINS);
    CLV_TRY(read_numbers(j, s->bins[s->n_bins], 3, &n, err));
  }
}

const page_scores *page_find_target(const page_scores *s, const char *name) {
  for (size_t i = 0; i < s->n_targets; i++)
    if (strcmp(s->targets[i].target, name) == 0) return &s->targets[i];
  return NULL;
}

/* Adds a target without scores. */
static clv_code add_target(const clv_json *j, page_scores *s, const char *name, clv_err *err) {
  if (s->n_targets == CLV_MAX_TARGETS)
    return clv_json_fail(j, j->at, err, "more than %d targets", CLV_MAX_TARGETS);
  if (!s->targets) CLV_TRY(clv_alloc(CLV_MAX_TARGETS, sizeof *s->targets, &s->targets, err));
  CLV_TRY(clv_strdup(name, &s->targets[s->n_targets].target, err));
  s->n_targets++;
  return CLV_OK;
}

static clv_code read_score(clv_json *j, page_scores *s, const char *key, clv_err *err);

/* Reads the scores, or the curves, of the target `key`, and adds the target if it is new. */
static clv_code read_target(clv_json *j, page_scores *s, const char *key, clv_err *err) {
  if (!page_find_target(s, key)) CLV_TRY(add_target(j, s, key, err));
  return read_members(j, (page_scores *)(uintptr_t)page_find_target(s, key), read_score, err);
}

static clv_code read_score(clv_json *j, page_scores *s, const char *key, clv_err *err) {
  clv_json_kind kind;
  double v;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind == CLV_JSON_OBJECT && strcmp(key, "targets") == 0 && !s->target)
    return read_members(j, s, read_target, err);
  if (kind == CLV_JSON_OBJECT && strcmp(key, "f1") == 0) return read_members(j, s, read_f1, err);
  if (kind == CLV_JSON_OBJECT && strcmp(key, "intervals") == 0)
    return read_members(j, s, read_interval, err);
  if (kind == CLV_JSON_LIST && strcmp(key, "classes") == 0) return read_classes(j, s, err);
  if (kind == CLV_JSON_LIST && strcmp(key, "confusion") == 0) return read_confusion(j, s, err);
  if (kind == CLV_JSON_LIST && strcmp(key, "roc") == 0) return read_roc(j, s, err);
  if (kind == CLV_JSON_LIST && strcmp(key, "calibration") == 0) return read_bins(j, s, err);
  if (kind != CLV_JSON_NUMERAL && kind != CLV_JSON_NULL) return clv_json_skip(j, err);
  CLV_TRY(read_number(j, &v, err));
  set_value(s, key, v);
  return CLV_OK;
}

void page_scores_done(page_scores *s) {
  for (size_t i = 0; i < s->n_targets; i++) page_scores_done(&s->targets[i]);
  free(s->targets);
  free(s->target);
  for (size_t i = 0; i < s->n_classes; i++) {
    free(s->classes[i].name);
    free(s->classes[i].roc);
  }
  free(s->classes);
  free(s->confusion);
  *s = (page_scores){.is_set = false};
}

/* ---- lines of evaluations -------------------------------------------------------------------- */

/* A line of evaluations.jsonl while it is read. */
typedef struct evaluation_line {
  page_scores scores;
  char event[16];
} evaluation_line;

static void evaluation_line_done(evaluation_line *l) { page_scores_done(&l->scores); }

static clv_code read_line_member(clv_json *j, evaluation_line *l, const char *key, clv_err *err) {
  double v;
  if (strcmp(key, "event") == 0 || strcmp(key, "weights") == 0) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    CLV_TRY(clv_json_read_text(j, &text, err));
    const char *value = text.data ? text.data : "";
    if (key[0] == 'w') l->scores.is_ema = strcmp(value, "ema") == 0;
    if (key[0] == 'e') snprintf(l->event, sizeof l->event, "%s", value);
    return CLV_OK;
  }
  if (strcmp(key, "step") == 0) return clv_json_read_integer(j, 0, INT64_MAX, &l->scores.step, err);
  if (strcmp(key, "samples") == 0)
    return clv_json_read_integer(j, 0, INT64_MAX, &l->scores.n_samples, err);
  if (strcmp(key, "scores") == 0 || strcmp(key, "curves") == 0)
    return read_members(j, &l->scores, read_score, err);
  if (strcmp(key, "loss") != 0 && strcmp(key, "accuracy") != 0) return clv_json_skip(j, err);
  CLV_TRY(read_number(j, &v, err));
  set_value(&l->scores, key, v);
  return CLV_OK;
}

static clv_code read_line(clv_json *j, evaluation_line *l, clv_err *err) {
  bool has_more;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return clv_json_end(j, err);
    CLV_TRY(clv_json_read_key(j, &key, err));
    CLV_TRY(read_line_member(j, l, key.data ? key.data : "", err));
  }
}

/* Returns the value with this name; NaN if there is none. */
static double value_or_nan(const page_scores *s, const char *name) {
  const page_value *v = page_find_value(s, name);
  return v ? v->value : (double)NAN;
}

clv_code page_read_evaluation(page_run *r, const char *label, const char *text, size_t len,
                              size_t line_number, clv_err *err) {
  CLV_AUTO(evaluation_line_done) evaluation_line l = {.event = ""};
  clv_json j = {.label = label, .text = text, .len = len, .lines_before = line_number};
  CLV_TRY(read_line(&j, &l, err));
  double step = (double)l.scores.step;
  if (strcmp(l.event, "validation") == 0) {
    page_series_add(&r->validation_loss, step, value_or_nan(&l.scores, "loss"));
    page_series_add(&r->validation_accuracy, step, value_or_nan(&l.scores, "accuracy"));
    return CLV_OK;
  }
  page_scores *to = strcmp(l.event, "eval") == 0 ? &r->interval_scores : &r->test_scores;
  page_scores_done(to);
  *to = l.scores;
  to->is_set = true;
  l.scores = (page_scores){.is_set = false};
  return CLV_OK;
}

/* ---- records with the largest losses --------------------------------------------------------- */

static clv_code read_worst_record(clv_json *j, page_worst_record *w, clv_err *err) {
  bool has_more;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_AUTO(clv_bytes_done) clv_bytes key = {0}, id = {0};
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return CLV_OK;
    CLV_TRY(clv_json_read_key(j, &key, err));
    if (key.data && strcmp(key.data, "loss") == 0) {
      CLV_TRY(read_number(j, &w->loss, err));
    } else if (key.data && strcmp(key.data, "id") == 0) {
      CLV_TRY(clv_json_read_text(j, &id, err));
      free(w->id);
      CLV_TRY(clv_strdup(id.data ? id.data : "", &w->id, err));
    } else if (key.data && strcmp(key.data, "target") == 0) {
      CLV_TRY(clv_json_read_text(j, &id, err));
      free(w->target);
      CLV_TRY(clv_strdup(id.data ? id.data : "", &w->target, err));
    } else {
      CLV_TRY(clv_json_skip(j, err));
    }
  }
}

clv_code page_read_worst(page_run *r, const char *label, const char *text, size_t len,
                         clv_err *err) {
  clv_json j = {.label = label, .text = text, .len = len};
  bool has_more;
  CLV_TRY(clv_json_open(&j, CLV_JSON_LIST, err));
  for (;;) {
    CLV_TRY(clv_json_next(&j, CLV_JSON_LIST, r->n_worst_records, &has_more, err));
    if (!has_more) return clv_json_end(&j, err);
    if (r->n_worst_records == PAGE_MAX_WORST_RECORDS)
      return clv_json_fail(&j, j.at, err, "more than %d records", PAGE_MAX_WORST_RECORDS);
    CLV_TRY(read_worst_record(&j, &r->worst_records[r->n_worst_records++], err));
  }
}
