/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts with a class each, of CSV or JSON lines, become rows of tokens when the dataset is opened:
 * what follows, from shuffling to the embedding, is that of tokens from a file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "master/data/reader_int.h"
#include "master/data/text_int.h"

/* What a record is told to be while its table is read. */
typedef struct text_table {
  clv_rows *rows;
  const clv_text_options *o;
  clv_ids ids;
  clv_bytes text, label, group; /* of the record at hand */
  bool has_text, has_label, has_group;
} text_table;

/* Name of a column that has to be there and is not, by what was seen; NULL: none. */
static const char *missing_column(const text_table *t, bool text, bool label, bool group) {
  if (!text) return t->o->column;
  if (t->rows->labelled && !label) return t->o->label;
  return t->o->group && !group ? t->o->group : NULL;
}

static clv_code add_group(text_table *t, clv_err *err) {
  int64_t group = clv_group_of(t->group.data, t->group.len);
  if (!t->o->group) return CLV_OK;
  clv_bytes_add(&t->rows->groups, &group, sizeof group);
  return t->rows->groups.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for groups") : CLV_OK;
}

/* `place`: "file:line" of the record. */
static clv_code end_record(text_table *t, const char *place, clv_err *err) {
  const char *missing = missing_column(t, t->has_text, t->has_label, t->has_group);
  clv_code code = CLV_OK;
  if (missing) return clv_fail(err, CLV_INVALID, "%s: has no '%s'", place, missing);
  t->ids.n = 0;
  code = clv_tokenizer_encode(t->rows->tokenizer, t->text.data, t->text.len, &t->ids, err);
  if (code == CLV_OK) code = clv_rows_add(t->rows, t->ids.at, t->ids.n, err);
  if (code == CLV_OK && t->rows->labelled)
    code = clv_rows_label(t->rows, t->label.data, t->label.len, err);
  if (code == CLV_OK) code = add_group(t, err);
  return code == CLV_OK ? CLV_OK : clv_err_prefix(err, "%s", place);
}

static const char *place_text(const char *label, size_t line, char *text, size_t len) {
  snprintf(text, len, "%.200s:%zu", label, line);
  return text;
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Where the columns are that are read. */
typedef struct columns {
  size_t n, text, label, group;
} columns;

static clv_code one_column(const clv_csv *c, const char *name, size_t at, size_t *ret,
                           clv_err *err) {
  if (*ret != SIZE_MAX) return clv_csv_fail(c, 0, 0, err, "the header has '%.80s' twice", name);
  *ret = at;
  return CLV_OK;
}

static clv_code take_header(text_table *t, clv_csv *c, columns *ret, clv_err *err) {
  bool last = false;
  *ret = (columns){.text = SIZE_MAX, .label = SIZE_MAX, .group = SIZE_MAX};
  if (!clv_csv_more(c)) return clv_csv_fail(c, 0, 0, err, "no header: the file is empty");
  for (; !last; ret->n++) {
    CLV_TRY(clv_csv_field(c, &t->text, &last, err));
    if (ret->n == CLV_CSV_MOST)
      return clv_csv_fail(c, 0, 0, err, "more than %d columns", CLV_CSV_MOST);
    if (strcmp(t->text.data, t->o->column) == 0)
      CLV_TRY(one_column(c, t->o->column, ret->n, &ret->text, err));
    if (strcmp(t->text.data, t->o->label) == 0)
      CLV_TRY(one_column(c, t->o->label, ret->n, &ret->label, err));
    if (t->o->group && strcmp(t->text.data, t->o->group) == 0)
      CLV_TRY(one_column(c, t->o->group, ret->n, &ret->group, err));
  }
  const char *missing =
      missing_column(t, ret->text != SIZE_MAX, ret->label != SIZE_MAX, ret->group != SIZE_MAX);
  if (!missing) return CLV_OK;
  return clv_csv_fail(c, 0, 0, err, "the header has no '%.80s'", missing);
}

static clv_bytes *field_of(text_table *t, const columns *of, size_t n, clv_bytes *other) {
  if (n == of->text) return &t->text;
  return n == of->label ? &t->label : n == of->group ? &t->group : other;
}

static clv_code take_fields(text_table *t, clv_csv *c, const columns *of, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes other = {0};
  bool last = false;
  size_t n = 0, line = c->line, from = c->at;
  for (; !last; n++) {
    CLV_TRY(clv_csv_field(c, field_of(t, of, n, &other), &last, err));
    if (n == of->n) last = true; /* one more than there should be */
  }
  if (n == of->n) return CLV_OK;
  return clv_csv_fail(c, line, from, err, "this record has %s%zu fields, the header has %zu",
                      n > of->n ? "more than " : "", CLV_MIN(n, of->n), of->n);
}

static clv_code take_csv(text_table *t, const char *text, size_t len, clv_err *err) {
  clv_csv c = {.label = t->rows->path, .text = text, .len = len};
  columns of;
  char place[256];
  CLV_TRY(take_header(t, &c, &of, err));
  t->has_text = t->has_label = t->has_group = true;
  while (clv_csv_more(&c)) {
    size_t line = c.line + 1;
    CLV_TRY(take_fields(t, &c, &of, err));
    CLV_TRY(end_record(t, place_text(c.label, line, place, sizeof place), err));
  }
  return CLV_OK;
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

/* A class or a group may be a number there. */
static clv_code take_name(clv_json *j, clv_bytes *ret, clv_err *err) {
  clv_json_kind kind;
  int64_t number;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_NUMERAL) return clv_json_text(j, ret, err);
  CLV_TRY(clv_json_integer(j, 0, INT32_MAX, &number, err));
  ret->len = 0;
  clv_bytes_printf(ret, "%lld", (long long)number);
  return CLV_OK;
}

/* A text, or a list of words, as `cleave-master words` prints them. */
static clv_code take_words(text_table *t, clv_json *j, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes word = {0};
  clv_json_kind kind;
  bool more = true;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_LIST) return clv_json_text(j, &t->text, err);
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  t->text.len = 0;
  clv_bytes_add(&t->text, "", 0);
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &more, err));
    if (!more) return t->text.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for words") : CLV_OK;
    CLV_TRY(clv_json_text(j, &word, err));
    if (n) clv_bytes_add(&t->text, " ", 1);
    clv_bytes_add(&t->text, word.data, word.len);
  }
}

enum { TEXT, CLASS, GROUP };

static clv_code take_member(text_table *t, clv_json *j, int which, clv_err *err) {
  if (which < 0 || (which == CLASS && !t->rows->labelled)) return clv_json_skip(j, err);
  if (which == TEXT) return take_words(t, j, err);
  return take_name(j, which == CLASS ? &t->label : &t->group, err);
}

static clv_code take_object(text_table *t, clv_json *j, clv_err *err) {
  const char *const names[] = {t->o->column, t->o->label, t->o->group};
  uint32_t seen = 0;
  bool more = true;
  int which;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &more, err));
    if (!more) break;
    CLV_TRY(clv_json_which(j, names, t->o->group ? 3 : 2, &seen, &which, err));
    CLV_TRY(take_member(t, j, which, err));
  }
  t->has_text = seen & 1u << TEXT;
  t->has_label = seen & 1u << CLASS;
  t->has_group = seen & 1u << GROUP;
  return clv_json_end(j, err);
}

static clv_code take_lines(text_table *t, const char *text, size_t len, clv_err *err) {
  char place[256];
  size_t line = 0;
  for (size_t at = 0, n; at < len; at += n + 1, line++) {
    const char *stop = memchr(text + at, '\n', len - at);
    n = stop ? (size_t)(stop - text) - at : len - at;
    if (strspn(text + at, " \t\r") >= n) continue; /* the text ends in a NUL */
    clv_json j = {.label = t->rows->path, .text = text + at, .len = n, .lines_before = line};
    CLV_TRY(take_object(t, &j, err));
    CLV_TRY(end_record(t, place_text(t->rows->path, line + 1, place, sizeof place), err));
  }
  return CLV_OK;
}

/* ---- a table --------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *ending) {
  size_t n = strlen(path), k = strlen(ending);
  if (n > 3 && strcmp(path + n - 3, ".gz") == 0) n -= 3;
  return n > k && strncmp(path + n - k, ending, k) == 0;
}

clv_code clv_text_table(clv_rows *r, const clv_text_options *o, const char *text, size_t len,
                        clv_err *err) {
  text_table t = {.rows = r, .o = o};
  bool csv = ends_in(r->path, ".csv");
  if (!csv && !ends_in(r->path, ".jsonl"))
    return clv_fail(err, CLV_INVALID, "%s: texts come as .csv or .jsonl, or these with .gz",
                    r->path);
  clv_code code = csv ? take_csv(&t, text, len, err) : take_lines(&t, text, len, err);
  if (code == CLV_OK && !r->n) code = clv_fail(err, CLV_INVALID, "%s: no records", r->path);
  clv_ids_done(&t.ids);
  clv_bytes_done(&t.text);
  clv_bytes_done(&t.label);
  clv_bytes_done(&t.group);
  return code;
}

/* ---- classes --------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted, each once. */
static clv_code sort_classes(clv_texts *t, size_t n, clv_err *err) {
  CLV_TRY(clv_alloc(n, sizeof *t->classes, &t->classes, err));
  char *at = t->names.data;
  for (size_t i = 0; i < n; i++, at += strlen(at) + 1) t->classes[i] = at;
  qsort(t->classes, n, sizeof *t->classes, by_name);
  for (size_t i = 0; i < n; i++)
    if (!t->n_classes || strcmp(t->classes[t->n_classes - 1], t->classes[i]) != 0)
      t->classes[t->n_classes++] = t->classes[i];
  return CLV_OK;
}

static clv_code take_labels(clv_texts *t, clv_rows *r, clv_err *err) {
  t->names = r->labels;
  r->labels = (clv_bytes){0};
  CLV_TRY(sort_classes(t, r->n, err));
  CLV_TRY(clv_tensor_new(CLV_I64, &CLV_SHAPE((int64_t)r->n), &t->labels, err));
  int64_t *out = t->labels->data;
  const char *at = t->names.data;
  for (size_t i = 0; i < r->n; i++, at += strlen(at) + 1) {
    char **found = bsearch(&at, t->classes, t->n_classes, sizeof *t->classes, by_name);
    out[i] = found - t->classes;
  }
  return CLV_OK;
}

clv_code clv_texts_of(clv_rows *r, clv_texts **ret, clv_err *err) {
  clv_texts *t = NULL;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->cut = r->cut;
  t->kinds = clv_rows_kinds(r);
  clv_shape shape = CLV_SHAPE((int64_t)r->n, (int64_t)r->width);
  clv_code code = clv_tensor_new(CLV_I32, &shape, &t->tokens, err);
  if (code == CLV_OK) memcpy(t->tokens->data, r->at, t->tokens->bytes);
  if (code == CLV_OK) code = clv_tensor_new(CLV_I32, &CLV_SHAPE((int64_t)r->n), &t->lengths, err);
  if (code == CLV_OK) memcpy(t->lengths->data, r->lengths.at, t->lengths->bytes);
  if (code == CLV_OK && r->labelled) code = take_labels(t, r, err);
  t->groups = r->groups;
  r->groups = (clv_bytes){0};
  if (code == CLV_OK)
    *ret = t;
  else
    clv_texts_free(t);
  return code;
}

void clv_texts_free(clv_texts *t) {
  if (!t) return;
  clv_tensor_unref(t->tokens);
  clv_tensor_unref(t->lengths);
  clv_tensor_unref(t->labels);
  clv_bytes_done(&t->names);
  clv_bytes_done(&t->groups);
  free(t->classes);
  free(t);
}

/* ---- a file ---------------------------------------------------------------------------------- */

clv_code clv_texts_open(const clv_dataset_options *o, clv_texts **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_rows_done) clv_rows r = {0};
  CLV_TRY(clv_rows_open(&r, o, err));
  CLV_TRY(clv_read_all(o->inputs_path, r.max_bytes, &text, err));
  CLV_TRY(clv_text_table(&r, &o->text, text.data ? text.data : "", text.len, err));
  return clv_texts_of(&r, ret, err);
}
