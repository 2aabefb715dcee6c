/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads cells of lines of JSON, each an object. A key that a record lacks is a missing value, which
 * table.c handles.
 */
#include <string.h>

#include "master/data/cell_source_int.h"

static clv_code start_next_record(clv_cell_source *s, bool *ret_has_more, clv_err *err) {
  clv_text_record record;
  for (;;) {
    CLV_TRY(clv_record_lines_next(s->lines, &record, ret_has_more, err));
    if (!*ret_has_more) return CLV_OK;
    /* bytes of a byte order mark that joining files may have left in front of the record */
    size_t n_bom_bytes = clv_bom_length(record.text, record.len), len = record.len - n_bom_bytes;
    const char *text = record.text + n_bom_bytes;
    /* excludes the line end, so that an error at the end of the record names this line */
    len -= len && text[len - 1] == '\n';
    s->json =
        (clv_json){.label = s->path, .text = text, .len = len, .lines_before = record.lines_before};
    if (strspn(text, " \t\r\n") < len) break;
  }
  s->n_records++;
  s->n_cells = 0;
  s->at = s->key_offset = 0;
  return CLV_OK;
}

static clv_code fail_cell(const clv_cell_source *s, const char *text, clv_err *err) {
  return clv_json_fail(&s->json, s->at, err, "%s", text);
}

static clv_code fail_record(const clv_cell_source *s, const char *text, clv_err *err) {
  return clv_json_fail(&s->json, 0, err, "%s", text);
}

static clv_code fail_field(const clv_cell_source *s, size_t field, const char *text, clv_err *err) {
  (void)field;
  return clv_json_fail(&s->json, s->key_offset, err, "%s", text);
}

/* ---- values of a record ---------------------------------------------------------------------- */

/* Copies the value's bytes as they are in the file. */
static clv_code copy_value(clv_cell_source *s, clv_err *err) {
  size_t from = s->json.at;
  CLV_TRY(clv_json_skip(&s->json, err));
  s->text.len = 0;
  clv_bytes_add(&s->text, s->json.text + from, s->json.at - from);
  return s->text.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a cell") : CLV_OK;
}

static clv_code skip_nested(clv_cell_source *s, const char *noun, clv_err *err) {
  CLV_TRY(clv_json_skip(&s->json, err));
  s->text.len = 0;
  clv_bytes_puts(&s->text, noun);
  return s->text.failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a cell") : CLV_OK;
}

/* Fails if the value is one of the words of Python that JSON does not have. */
static clv_code check_no_python_word(clv_cell_source *s, clv_err *err) {
  static const char *const python_words[] = {"NaN",  "Infinity", "-Infinity",
                                             "None", "True",     "False"};
  const char *text = s->json.text + s->json.at;
  size_t n_left = s->json.len - s->json.at;
  for (size_t i = 0; i < CLV_COUNT(python_words); i++)
    if (n_left >= strlen(python_words[i]) &&
        memcmp(text, python_words[i], strlen(python_words[i])) == 0)
      return clv_json_fail(&s->json, s->json.at, err,
                           "%s is no value of JSON: a missing one is null, truth is true or false",
                           python_words[i]);
  return CLV_OK;
}

static clv_code read_value(clv_cell_source *s, clv_source_cell *ret, clv_err *err) {
  static const clv_cell_kind cell_kinds[] = {
      [CLV_JSON_NULL] = CLV_CELL_MISSING,   [CLV_JSON_BOOL] = CLV_CELL_TEXT,
      [CLV_JSON_NUMERAL] = CLV_CELL_NUMBER, [CLV_JSON_TEXT] = CLV_CELL_TEXT,
      [CLV_JSON_LIST] = CLV_CELL_OTHER,     [CLV_JSON_OBJECT] = CLV_CELL_OTHER};
  clv_json_kind kind;
  while (s->json.at < s->json.len && memchr(" \t\r\n", s->json.text[s->json.at], 4)) s->json.at++;
  CLV_TRY(check_no_python_word(s, err));
  CLV_TRY(clv_json_peek(&s->json, &kind, err));
  s->at = s->json.at;
  if (kind >= CLV_JSON_LIST)
    CLV_TRY(skip_nested(s, kind == CLV_JSON_LIST ? "a list" : "an object", err));
  else if (kind == CLV_JSON_TEXT)
    CLV_TRY(clv_json_read_text(&s->json, &s->text, err));
  else
    CLV_TRY(copy_value(s, err));
  ret->kind = cell_kinds[kind];
  ret->text = s->text.data;
  ret->len = s->text.len;
  return CLV_OK;
}

/* ---- keys of a record ------------------------------------------------------------------------ */

/* Finds the field of the key in s->text. Tries the next field first, because most records have
 * their keys in the order of the first record. */
static clv_code find_field(clv_cell_source *s, size_t *ret, clv_err *err) {
  size_t next_field = s->n_cells;
  *ret = next_field;
  clv_err reason;
  bool is_expected_field =
      next_field < s->fields.n && strcmp(clv_field_name(&s->fields, next_field), s->text.data) == 0;
  if (memchr(s->text.data, '\0', s->text.len)) return fail_cell(s, "this key has a NUL", err);
  if (!is_expected_field &&
      clv_fields_find_or_add(&s->fields, s->text.data, s->text.len, ret, &reason) != CLV_OK)
    return fail_cell(s, reason.text, err);
  size_t *last_record = &s->fields.list[*ret].last_record;
  if (*last_record == s->n_records)
    return clv_json_fail(&s->json, s->at, err, "the key '%.80s' is there twice: leave one of them",
                         s->text.data);
  *last_record = s->n_records;
  return CLV_OK;
}

static clv_code read_cell(clv_cell_source *s, clv_source_cell *ret, bool *ret_has_more,
                          clv_err *err) {
  if (!s->n_cells) CLV_TRY(clv_json_open(&s->json, CLV_JSON_OBJECT, err));
  CLV_TRY(clv_json_next(&s->json, CLV_JSON_OBJECT, s->n_cells, ret_has_more, err));
  if (!*ret_has_more) return clv_json_end(&s->json, err);
  while (s->json.at < s->json.len && memchr(" \t\r\n", s->json.text[s->json.at], 4)) s->json.at++;
  s->at = s->key_offset = s->json.at;
  CLV_TRY(clv_json_read_key(&s->json, &s->text, err));
  CLV_TRY(find_field(s, &ret->field, err));
  s->n_cells++;
  return read_value(s, ret, err);
}

static const clv_cell_reader jsonl_reader = {.start_next_record = start_next_record,
                                             .read_cell = read_cell,
                                             .fail_cell = fail_cell,
                                             .fail_record = fail_record,
                                             .fail_field = fail_field,
                                             .has_late_fields = true};

clv_code clv_cells_jsonl_open(clv_cell_source *s, clv_err *err) {
  (void)err;
  s->reader = &jsonl_reader;
  return CLV_OK;
}
