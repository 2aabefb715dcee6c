/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes what a run has learnt from its training records as JSON (clv_learnt_write), and reads it
 * again (clv_learnt_parse), so that `eval` and `predict` encode records as training did.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"
#include "master/data/table_int.h"

/* ---- writing JSON ---------------------------------------------------------------------------- */

static void write_texts(clv_bytes *out, const char *key, char *const *texts, size_t n) {
  clv_bytes_printf(out, ",\"%s\":[", key);
  for (size_t i = 0; i < n; i++) {
    clv_bytes_puts(out, i ? "," : "");
    clv_bytes_add_json(out, texts[i]);
  }
  clv_bytes_puts(out, "]");
}

static void write_column(clv_bytes *out, const clv_learnt_column *c) {
  clv_bytes_puts(out, "{\"name\":");
  clv_bytes_add_json(out, c->name);
  clv_bytes_printf(out, ",\"as\":\"%s\",\"scale\":\"%s\",\"missing\":\"%s\",\"indicator\":%s",
                   clv_column_use_names[c->use], clv_column_scale_names[c->scale],
                   clv_missing_rule_names[c->missing], c->has_indicator ? "true" : "false");
  clv_bytes_printf(out, ",\"fill\":%.17g,\"offset\":%.17g,\"divisor\":%.17g,\"quantiles\":[",
                   c->fill_number, c->offset, c->divisor);
  for (size_t i = 0; i < c->n_quantiles; i++)
    clv_bytes_printf(out, "%s%.17g", i ? "," : "", c->quantiles[i]);
  clv_bytes_printf(out, "],\"fill_value\":%zu", c->fill_value_index);
  if (c->use == CLV_COLUMN_DATE) clv_bytes_printf(out, ",\"parts\":%u", c->parts);
  write_texts(out, "values", c->values, c->n_values);
  clv_bytes_puts(out, "}");
}

/* Writes several targets with their classes, if there are any. */
static void write_targets(clv_bytes *out, const clv_learnt *l) {
  for (size_t i = 0; i < l->n_targets; i++) {
    clv_bytes_puts(out, i ? ",\n{\"name\":" : ",\"targets\":[\n{\"name\":");
    clv_bytes_add_json(out, l->targets[i].name);
    write_texts(out, "classes", l->targets[i].classes, l->targets[i].n_classes);
    clv_bytes_puts(out, "}");
  }
  if (l->n_targets) clv_bytes_puts(out, "]");
}

clv_code clv_learnt_write(const clv_learnt *l, clv_bytes *out, clv_err *err) {
  clv_bytes_puts(out, "{\"version\":1");
  write_texts(out, "classes", l->classes, l->n_classes);
  write_targets(out, l);
  clv_bytes_puts(out, ",\"columns\":[");
  for (size_t i = 0; i < l->n_columns; i++) {
    clv_bytes_puts(out, i ? ",\n" : "\n");
    write_column(out, &l->columns[i]);
  }
  clv_bytes_puts(out, "]}\n");
  return out->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* ---- reading JSON ---------------------------------------------------------------------------- */

static clv_code read_text(clv_json *j, char **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t at = j->at;
  CLV_TRY(clv_json_read_text(j, &text, err));
  if (memchr(text.data, '\0', text.len)) return clv_json_fail(j, at, err, "a text has a NUL");
  free(*ret);
  *ret = NULL;
  return clv_strdup(text.data, ret, err);
}

/* Makes room in an array of *n entries for one more entry, and counts it. */
static clv_code add_entry(const clv_json *j, void *array, size_t *n, size_t element_bytes,
                          size_t max_entries, clv_err *err) {
  char *old_array;
  memcpy(&old_array, array, sizeof old_array);
  if (*n == max_entries) return clv_json_fail(j, j->at, err, "more than %zu entries", max_entries);
  /* the array is full only if *n is 0 or a power of two, because its capacity doubles from 1 on */
  if (*n & (*n - 1)) return ++*n, CLV_OK;
  char *new_array = realloc(old_array, (*n ? 2 * *n : 1) * element_bytes);
  if (!new_array) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  memset(new_array + *n * element_bytes, 0, (*n ? *n : 1) * element_bytes);
  memcpy(array, &new_array, sizeof new_array);
  ++*n;
  return CLV_OK;
}

/* Reads a list of different texts, sorted as bytes. */
static clv_code read_texts(clv_json *j, char ***texts, size_t *n_texts, clv_err *err) {
  bool new_array = true;
  if (*n_texts) return clv_json_fail(j, j->at, err, "the list comes twice");
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &new_array, err));
    if (!new_array) return CLV_OK;
    CLV_TRY(add_entry(j, texts, n_texts, sizeof **texts, CLV_LEARNT_MAX_VALUES, err));
    CLV_TRY(read_text(j, &(*texts)[n], err));
    if (n && strcmp((*texts)[n - 1], (*texts)[n]) >= 0)
      return clv_json_fail(j, j->at, err, "the texts are not sorted");
  }
}

static clv_code read_quantiles(clv_json *j, clv_learnt_column *c, clv_err *err) {
  bool new_array = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &new_array, err));
    if (!new_array) return CLV_OK;
    CLV_TRY(add_entry(j, &c->quantiles, &c->n_quantiles, sizeof *c->quantiles, CLV_QUANTILES, err));
    CLV_TRY(clv_json_read_real(j, &c->quantiles[n], err));
    if (n && c->quantiles[n] < c->quantiles[n - 1])
      return clv_json_fail(j, j->at, err, "the quantiles are not sorted");
  }
}

/* Reads a text that must be one of `names`, and returns its index. */
static clv_code read_word_index(clv_json *j, const char *const *names, unsigned *ret,
                                clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t at = j->at;
  CLV_TRY(clv_json_read_text(j, &text, err));
  for (unsigned i = 0; names[i]; i++)
    if (strcmp(names[i], text.data) == 0) return *ret = i, CLV_OK;
  return clv_json_fail(j, at, err, "'%.40s' is not known", text.data);
}

static clv_code read_name(clv_json *j, clv_learnt_column *c, clv_err *err) {
  return read_text(j, &c->name, err);
}

static clv_code read_column_use(clv_json *j, clv_learnt_column *c, clv_err *err) {
  unsigned word_index = 0;
  CLV_TRY(read_word_index(j, clv_column_use_names, &word_index, err));
  c->use = (clv_column_use)word_index;
  return CLV_OK;
}

static clv_code read_scale(clv_json *j, clv_learnt_column *c, clv_err *err) {
  unsigned word_index = 0;
  CLV_TRY(read_word_index(j, clv_column_scale_names, &word_index, err));
  c->scale = (clv_column_scale)word_index;
  return CLV_OK;
}

static clv_code read_missing_rule(clv_json *j, clv_learnt_column *c, clv_err *err) {
  unsigned word_index = 0;
  CLV_TRY(read_word_index(j, clv_missing_rule_names, &word_index, err));
  c->missing = (clv_missing_rule)word_index;
  return CLV_OK;
}

static clv_code read_indicator(clv_json *j, clv_learnt_column *c, clv_err *err) {
  return clv_json_read_bool(j, &c->has_indicator, err);
}

static clv_code read_fill_number(clv_json *j, clv_learnt_column *c, clv_err *err) {
  return clv_json_read_real(j, &c->fill_number, err);
}

static clv_code read_offset(clv_json *j, clv_learnt_column *c, clv_err *err) {
  return clv_json_read_real(j, &c->offset, err);
}

static clv_code read_divisor(clv_json *j, clv_learnt_column *c, clv_err *err) {
  return clv_json_read_real(j, &c->divisor, err);
}

static clv_code read_fill_value_index(clv_json *j, clv_learnt_column *c, clv_err *err) {
  int64_t index;
  CLV_TRY(clv_json_read_integer(j, 0, CLV_LEARNT_MAX_VALUES, &index, err));
  c->fill_value_index = (size_t)index;
  return CLV_OK;
}

/* Reads the parts of a date, stored as one number: bits 1 << clv_date_part. */
static clv_code read_parts(clv_json *j, clv_learnt_column *c, clv_err *err) {
  int64_t parts;
  CLV_TRY(clv_json_read_integer(j, 0, (1 << CLV_DATE_PARTS) - 1, &parts, err));
  c->parts = (unsigned)parts;
  return CLV_OK;
}

static clv_code read_values(clv_json *j, clv_learnt_column *c, clv_err *err) {
  return read_texts(j, &c->values, &c->n_values, err);
}

/* Members of the JSON object of a column. All are required, except that only a date has `parts`. */
static const char *const keys[] = {"name",      "as",         "scale",  "missing",
                                   "indicator", "fill",       "offset", "divisor",
                                   "quantiles", "fill_value", "values", "parts"};
static clv_code (*const key_readers[])(clv_json *j, clv_learnt_column *c, clv_err *err) = {
    read_name,      read_column_use,       read_scale,  read_missing_rule,
    read_indicator, read_fill_number,      read_offset, read_divisor,
    read_quantiles, read_fill_value_index, read_values, read_parts};

static clv_code check_column(const clv_json *j, const clv_learnt_column *c, uint32_t seen_keys,
                             clv_err *err) {
  bool has_words = clv_column_has_words(c->use);
  size_t n_texts = c->use == CLV_COLUMN_TEXT && c->missing == CLV_MISSING_VALUE;
  bool is_date = c->use == CLV_COLUMN_DATE;
  bool has_quantiles = (is_date || c->use == CLV_COLUMN_NUMBER) && c->scale == CLV_SCALE_QUANTILE;
  uint32_t required_keys = (1u << (CLV_COUNT(keys) - !is_date)) - 1;
  if (seen_keys != required_keys || (is_date && !(fabs(c->fill_number) < CLV_MAX_DAYS)) ||
      !clv_column_is_input(c->use) || !(c->divisor > 0) || (!has_words && c->n_values != n_texts) ||
      c->fill_value_index > c->n_values || has_quantiles != (c->n_quantiles > 0) ||
      (c->scale == CLV_SCALE_LOG && !(c->fill_number > -1)))
    return clv_json_fail(j, j->at, err, "this column lacks a value, or has one out of range");
  return CLV_OK;
}

static clv_code read_column(clv_json *j, clv_learnt_column *c, clv_err *err) {
  bool new_array = true;
  uint32_t seen_keys = 0;
  int key;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &new_array, err));
    if (!new_array) return check_column(j, c, seen_keys, err);
    CLV_TRY(clv_json_find_key(j, keys, CLV_COUNT(keys), &seen_keys, &key, err));
    if (key < 0) return clv_json_fail(j, j->at, err, "this key is not known");
    CLV_TRY(key_readers[key](j, c, err));
  }
}

static clv_code read_columns(clv_json *j, clv_learnt *l, clv_err *err) {
  bool new_array = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &new_array, err));
    if (!new_array) return CLV_OK;
    CLV_TRY(
        add_entry(j, &l->columns, &l->n_columns, sizeof *l->columns, CLV_LEARNT_MAX_COLUMNS, err));
    CLV_TRY(read_column(j, &l->columns[n], err));
  }
}

static clv_code read_target(clv_json *j, clv_learnt_target *t, clv_err *err) {
  static const char *const names[] = {"name", "classes"};
  bool new_array = true;
  uint32_t seen_keys = 0;
  int key;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &new_array, err));
    if (!new_array) break;
    CLV_TRY(clv_json_find_key(j, names, CLV_COUNT(names), &seen_keys, &key, err));
    if (key < 0) return clv_json_fail(j, j->at, err, "this key is not known");
    CLV_TRY(key ? read_texts(j, &t->classes, &t->n_classes, err) : read_text(j, &t->name, err));
  }
  return seen_keys == 3 ? CLV_OK
                        : clv_json_fail(j, j->at, err, "a target lacks its name or classes");
}

static clv_code read_targets(clv_json *j, clv_learnt *l, clv_err *err) {
  bool new_array = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &new_array, err));
    if (!new_array) return CLV_OK;
    CLV_TRY(add_entry(j, &l->targets, &l->n_targets, sizeof *l->targets, CLV_MAX_TARGETS, err));
    CLV_TRY(read_target(j, &l->targets[n], err));
  }
}

static clv_code read_learnt(clv_json *j, clv_learnt *l, clv_err *err) {
  static const char *const names[] = {"version", "classes", "columns", "targets"};
  bool new_array = true;
  uint32_t seen_keys = 0;
  int64_t version;
  int key;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &new_array, err));
    if (!new_array) break;
    CLV_TRY(clv_json_find_key(j, names, CLV_COUNT(names), &seen_keys, &key, err));
    if (key < 0) return clv_json_fail(j, j->at, err, "this key is not known");
    if (key == 0) CLV_TRY(clv_json_read_integer(j, 1, 1, &version, err));
    if (key == 1) CLV_TRY(read_texts(j, &l->classes, &l->n_classes, err));
    if (key == 2) CLV_TRY(read_columns(j, l, err));
    if (key == 3) CLV_TRY(read_targets(j, l, err));
  }
  CLV_TRY(clv_json_end(j, err));
  if ((seen_keys & 7) == 7) return CLV_OK;
  return clv_json_fail(j, j->at, err, "version, classes or columns are missing");
}

clv_code clv_learnt_parse(const char *text, size_t len, const char *label, clv_learnt **ret,
                          clv_err *err) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  clv_json j = {.label = label, .text = text, .len = len};
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  CLV_TRY(read_learnt(&j, l, err));
  *ret = clv_steal(&l);
  return CLV_OK;
}
