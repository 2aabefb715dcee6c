/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads texts with classes from CSV or JSON lines, and converts them to rows of tokens when the
 * dataset is opened. After that, the rows are used as if their tokens had been in the file.
 *
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"
#include "master/data/record_lines_int.h"
#include "master/data/text_int.h"

/* Members of a record (text, class, group), and the config keys that name their columns. */
enum { MEMBER_TEXT, MEMBER_CLASS, MEMBER_GROUP, N_MEMBERS };
static const char *const member_keys[N_MEMBERS] = {"data.text.column", "data.text.label",
                                                   "data.validation.group"};

/* Columns of a CSV file that hold the members of a record. */
typedef struct csv_columns {
  size_t n;             /* number of columns; 0: the header has not been read yet */
  size_t at[N_MEMBERS]; /* [member] index of the member's column; SIZE_MAX: the file has none */
} csv_columns;

/* State while a table is read. */
typedef struct text_table {
  csv_columns header; /* columns of the CSV header */
  clv_text_rows *rows;
  const clv_text_options *o;
  clv_bytes members[N_MEMBERS]; /* text, class and group of the current record */
  bool lacks_quote;             /* quotes without an end have taken the rest of the file */
} text_table;

/* Returns the name of the CSV column or JSON key that has the member; NULL: the member is not
 * read. */
static const char *member_name(const text_table *t, int member) {
  const char *const names[N_MEMBERS] = {t->o->column, t->rows->has_labels ? t->o->label : NULL,
                                        t->o->group};
  return names[member];
}

static clv_code add_group(text_table *t, clv_err *err) {
  int64_t group = clv_group_number(t->members[MEMBER_GROUP].data, t->members[MEMBER_GROUP].len);
  clv_bytes_add(&t->rows->groups, &group, sizeof group);
  return t->rows->groups.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for groups") : CLV_OK;
}

/* Adds the current record to the rows. location: "file:line" of the record, for messages. */
static clv_code add_record(text_table *t, const char *location, clv_err *err) {
  clv_code code = CLV_OK;
  const clv_bytes *text = &t->members[MEMBER_TEXT], *label = &t->members[MEMBER_CLASS];
  if (t->rows->has_labels) code = clv_check_class_name(label->data, label->len, err);
  if (code == CLV_OK) code = clv_text_rows_add_text(t->rows, text->data, text->len, err);
  if (code == CLV_OK && t->rows->has_labels)
    code = clv_text_rows_set_label(t->rows, label->data, label->len, err);
  if (code == CLV_OK && t->o->group) code = add_group(t, err);
  return code == CLV_OK ? CLV_OK : clv_err_prefix(err, "%s", location);
}

static const char *format_file_and_line(const char *label, size_t line, char *text, size_t len) {
  snprintf(text, len, "%.200s:%zu", label, line);
  return text;
}

/* ---- reading records of CSV ------------------------------------------------------------------ */

static clv_code note_header_column(const text_table *t, const clv_csv *c, size_t line,
                                   const char *name, csv_columns *ret, clv_err *err) {
  for (int m = 0; m < N_MEMBERS; m++) {
    if (!member_name(t, m) || strcmp(member_name(t, m), name) != 0) continue;
    if (ret->at[m] != SIZE_MAX)
      return clv_csv_fail(c, line, 0, err, "the header has '%.80s' twice", name);
    ret->at[m] = ret->n;
  }
  return CLV_OK;
}

/* Lists the names of the columns in the header, for a message. */
static const char *list_columns(const clv_csv *header, clv_key_list *ret) {
  CLV_AUTO(clv_bytes_done) clv_bytes field = {0};
  clv_csv c = {.label = header->label, .text = header->text, .len = header->len};
  bool is_last = false;
  *ret = (clv_key_list){0};
  while (!is_last && clv_csv_read_field(&c, &field, &is_last, NULL) == CLV_OK)
    clv_key_list_add(ret, field.data);
  return clv_key_list_finish(ret);
}

static clv_code read_header(text_table *t, clv_csv *c, csv_columns *ret, clv_err *err) {
  bool is_last = false;
  size_t line = c->line;
  clv_key_list present_keys;
  *ret = (csv_columns){.at = {SIZE_MAX, SIZE_MAX, SIZE_MAX}};
  for (; !is_last; ret->n++) {
    CLV_TRY(clv_csv_read_field(c, &t->members[MEMBER_TEXT], &is_last, err));
    if (ret->n == CLV_CSV_MAX_COLUMNS)
      return clv_csv_fail(c, line, 0, err, "more than %d columns", CLV_CSV_MAX_COLUMNS);
    CLV_TRY(note_header_column(t, c, line, t->members[MEMBER_TEXT].data, ret, err));
  }
  for (int m = 0; m < N_MEMBERS; m++) {
    if (!member_name(t, m) || ret->at[m] != SIZE_MAX) continue;
    return clv_csv_fail(c, line, 0, err, "the header has no '%.80s', but %s: set %s",
                        member_name(t, m), list_columns(c, &present_keys), member_keys[m]);
  }
  return CLV_OK;
}

/* Returns the text of the member that is in column n; `unused_field` if the column has no
 * member. */
static clv_bytes *find_member_for_column(text_table *t, const csv_columns *header, size_t n,
                                         clv_bytes *unused_field) {
  for (int m = 0; m < N_MEMBERS; m++)
    if (header->at[m] == n) return &t->members[m];
  return unused_field;
}

static clv_code read_fields(text_table *t, clv_csv *c, const csv_columns *header, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes unused_field = {0};
  bool is_last = false;
  size_t n = 0, line = c->line, from = c->at;
  for (; !is_last; n++) {
    CLV_TRY(
        clv_csv_read_field(c, find_member_for_column(t, header, n, &unused_field), &is_last, err));
    /* the record has more fields than the header: stop at the first of them */
    if (n == header->n) is_last = true;
  }
  if (n == header->n) return CLV_OK;
  return clv_csv_fail(c, line, from, err,
                      "this record has %s%zu field%s, the header has %zu: correct the line",
                      n > header->n ? "more than " : "", CLV_MIN(n, header->n),
                      CLV_S(CLV_MIN(n, header->n)), header->n);
}

static clv_code read_csv_record(text_table *t, const clv_text_record *r, clv_err *err) {
  clv_csv c = {.label = t->rows->path, .text = r->text, .len = r->len, .line = r->lines_before};
  char location[256];
  if (!clv_csv_has_record(&c)) return CLV_OK;
  if (!t->header.n) return read_header(t, &c, &t->header, err);
  clv_code code = read_fields(t, &c, &t->header, err);
  t->lacks_quote = c.lacks_quote;
  CLV_TRY(code);
  return add_record(
      t, format_file_and_line(c.label, r->lines_before + 1, location, sizeof location), err);
}

/* ---- lines of JSON --------------------------------------------------------------------------- */

/* Reads a text, or a list of words as `cleave-master words` prints it. */
static clv_code read_text_or_words(clv_json *j, clv_bytes *text, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes word = {0};
  clv_json_kind kind;
  bool has_more = true;
  CLV_TRY(clv_json_peek(j, &kind, err));
  if (kind != CLV_JSON_LIST) return clv_json_read_text(j, text, err);
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  text->len = 0;
  clv_bytes_add(text, "", 0);
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more)
      return text->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for words") : CLV_OK;
    CLV_TRY(clv_json_read_text(j, &word, err));
    if (n) clv_bytes_add(text, " ", 1);
    clv_bytes_add(text, word.data, word.len);
  }
}

static clv_code read_object(text_table *t, clv_json *j, clv_err *err) {
  const char *const names[] = {t->o->column, t->o->label, t->o->group};
  clv_key_list present_keys;
  uint32_t seen_members = 0;
  bool has_more = true;
  int m;
  CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(clv_json_find_key(j, names, t->o->group ? N_MEMBERS : MEMBER_GROUP, &seen_members, &m,
                              err));
    if (m < 0 || !member_name(t, m))
      CLV_TRY(clv_json_skip(j, err));
    else
      CLV_TRY(
          (m == MEMBER_TEXT ? read_text_or_words : clv_read_class_name)(j, &t->members[m], err));
  }
  CLV_TRY(clv_json_end(j, err));
  for (m = 0; m < N_MEMBERS; m++)
    if (member_name(t, m) && !(seen_members & 1u << m))
      return clv_json_fail(j, 0, err, "has no '%.80s', but %s: set %s", names[m],
                           clv_key_list_of_object(j, &present_keys), member_keys[m]);
  return CLV_OK;
}

static clv_code read_json_line(text_table *t, const clv_text_record *r, clv_err *err) {
  char location[256];
  size_t n_bom_bytes =
      clv_bom_length(r->text, r->len); /* a byte order mark in the middle, after files were
                                                 * joined */
  const char *text = r->text + n_bom_bytes;
  size_t len = r->len - n_bom_bytes;
  /* excludes the line end, so that an error at the end of the record names this line */
  len -= len && text[len - 1] == '\n';
  if (strspn(text, " \t\r\n") >= len) return CLV_OK;
  clv_json j = {.label = t->rows->path, .text = text, .len = len, .lines_before = r->lines_before};
  CLV_TRY(read_object(t, &j, err));
  return add_record(
      t, format_file_and_line(j.label, r->lines_before + 1, location, sizeof location), err);
}

/* ---- reading a table ------------------------------------------------------------------------- */

static bool has_suffix(const char *path, const char *suffix) {
  size_t n = strlen(path), k = strlen(suffix);
  if (n > 3 && strcmp(path + n - 3, ".gz") == 0) n -= 3;
  return n > k && strncmp(path + n - k, suffix, k) == 0;
}

static clv_code check_is_csv_path(const char *path, bool *ret_is_csv, clv_err *err) {
  *ret_is_csv = has_suffix(path, ".csv");
  if (*ret_is_csv || has_suffix(path, ".jsonl")) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: texts come as .csv or .jsonl, or these with .gz", path);
}

static clv_code read_records(text_table *t, clv_record_lines *l, bool is_csv, clv_err *err) {
  clv_text_record r;
  clv_err reason;
  bool has_more;
  for (;;) {
    CLV_TRY(clv_record_lines_next(l, &r, &has_more, err));
    if (!has_more) break;
    bool is_header = is_csv && !t->header.n;
    clv_code code = (is_csv ? read_csv_record : read_json_line)(t, &r, &reason);
    if (code != CLV_OK && (is_header || t->lacks_quote))
      return clv_fail(err, code, "%s", reason.text);
    if (code != CLV_OK) CLV_TRY(clv_text_rows_skip_broken(t->rows, &reason, err));
  }
  if (is_csv && !t->header.n)
    return clv_fail(err, CLV_INVALID, "%s:1:1: no header: the file is empty", t->rows->path);
  if (!t->rows->n) CLV_TRY(clv_text_rows_check_broken(t->rows, err));
  return t->rows->n ? CLV_OK : clv_fail(err, CLV_INVALID, "%s: no records", t->rows->path);
}

static clv_code read_table(clv_text_rows *r, const clv_text_options *o, clv_record_lines *l,
                           bool is_csv, clv_err *err) {
  text_table t = {.rows = r, .o = o};
  clv_code code = read_records(&t, l, is_csv, err);
  for (int m = 0; m < N_MEMBERS; m++) clv_bytes_done(&t.members[m]);
  return code;
}

clv_code clv_text_rows_read_table(clv_text_rows *r, const clv_text_options *o, const char *text,
                                  size_t len, clv_err *err) {
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  bool is_csv;
  CLV_TRY(check_is_csv_path(r->path, &is_csv, err));
  CLV_TRY(clv_record_lines_open_memory(text, len, r->path, is_csv ? ',' : 0, &l, err));
  return read_table(r, o, l, is_csv, err);
}

/* ---- numbering the classes ------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts the names of the classes and removes duplicates. */
static clv_code sort_classes(clv_texts *t, size_t n, clv_err *err) {
  CLV_TRY(clv_alloc(n, sizeof *t->classes, &t->classes, err));
  char *at = t->names.data;
  for (size_t i = 0; i < n; i++, at += strlen(at) + 1) t->classes[i] = at;
  qsort(t->classes, n, sizeof *t->classes, compare_names);
  for (size_t i = 0; i < n; i++)
    if (!t->n_classes || strcmp(t->classes[t->n_classes - 1], t->classes[i]) != 0)
      t->classes[t->n_classes++] = t->classes[i];
  return CLV_OK;
}

static clv_code set_labels(clv_texts *t, clv_text_rows *r, clv_err *err) {
  t->names = r->labels;
  r->labels = (clv_bytes){0};
  CLV_TRY(sort_classes(t, r->n, err));
  CLV_TRY(clv_tensor_new(CLV_I64, &CLV_SHAPE((int64_t)r->n), &t->labels, err));
  int64_t *out = t->labels->data;
  const char *at = t->names.data;
  for (size_t i = 0; i < r->n; i++, at += strlen(at) + 1) {
    char **found = bsearch(&at, t->classes, t->n_classes, sizeof *t->classes, compare_names);
    out[i] = found - t->classes;
  }
  return CLV_OK;
}

clv_code clv_texts_from_rows(clv_text_rows *r, clv_texts **ret, clv_err *err) {
  clv_texts *t = NULL;
  CLV_TRY(clv_alloc(1, sizeof *t, &t, err));
  t->n_truncated = r->n_truncated;
  t->broken = r->broken;
  r->broken = (clv_broken_records){0};
  t->token_info = clv_text_rows_token_info(r);
  clv_shape shape = CLV_SHAPE((int64_t)r->n, (int64_t)r->width);
  clv_code code = clv_tensor_new(CLV_I32, &shape, &t->tokens, err);
  if (code == CLV_OK) memcpy(t->tokens->data, r->at, t->tokens->bytes);
  if (code == CLV_OK) code = clv_tensor_new(CLV_I32, &CLV_SHAPE((int64_t)r->n), &t->lengths, err);
  if (code == CLV_OK) memcpy(t->lengths->data, r->lengths.at, t->lengths->bytes);
  if (code == CLV_OK && r->has_labels) code = set_labels(t, r, err);
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
  clv_broken_records_done(&t->broken);
  free(t->classes);
  free(t);
}

/* ---- opening a file -------------------------------------------------------------------------- */

clv_code clv_texts_open(const clv_dataset_options *o, clv_texts **ret, clv_err *err) {
  CLV_AUTO(clv_text_rows_done) clv_text_rows r = {0};
  CLV_AUTO(clv_record_lines_freep) clv_record_lines *l = NULL;
  bool is_csv;
  CLV_TRY(clv_text_rows_open(&r, o, err));
  CLV_TRY(check_is_csv_path(r.path, &is_csv, err));
  CLV_TRY(clv_record_lines_open(r.path, is_csv ? ',' : 0, r.max_bytes, &l, err));
  CLV_TRY(read_table(&r, &o->text, l, is_csv, err));
  return clv_texts_from_rows(&r, ret, err);
}
