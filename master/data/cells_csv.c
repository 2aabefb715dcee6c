/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the cells of a CSV with a header.
 */
#include <string.h>

#include "master/data/cell_source_int.h"

static clv_code start_next_record(clv_cell_source *s, bool *ret_has_more, clv_err *err) {
  clv_text_record record;
  for (;;) {
    CLV_TRY(clv_record_lines_next(s->lines, &record, ret_has_more, err));
    if (!*ret_has_more) return CLV_OK;
    s->csv.text = record.text;
    s->csv.len = record.len;
    s->csv.line = record.lines_before;
    s->csv.at = 0;
    if (clv_csv_has_record(&s->csv)) break;
  }
  s->record_csv = s->csv;
  s->n_records++;
  s->n_cells = 0;
  return CLV_OK;
}

static clv_code fail_field_count(const clv_cell_source *s, size_t n, clv_err *err) {
  size_t n_expected_fields = s->fields.n;
  return clv_csv_fail(
      &s->record_csv, s->record_csv.line, s->record_csv.at, err,
      "this record has %s%zu field%s, the header has %zu: correct the line, or put a field that "
      "has the separator in quotes",
      n > n_expected_fields ? "more than " : "", CLV_MIN(n, n_expected_fields),
      CLV_S(CLV_MIN(n, n_expected_fields)), n_expected_fields);
}

static clv_code read_cell(clv_cell_source *s, clv_source_cell *ret, bool *ret_has_more,
                          clv_err *err) {
  bool is_last;
  *ret_has_more = s->n_cells < s->fields.n;
  if (!*ret_has_more) return CLV_OK;
  s->line = s->csv.line;
  s->at = s->csv.at;
  clv_code code = clv_csv_read_field(&s->csv, &s->text, &is_last, err);
  s->has_ended_early = s->csv.lacks_quote;
  CLV_TRY(code);
  *ret = (clv_source_cell){.field = s->n_cells++, .text = s->text.data, .len = s->text.len};
  if (is_last == (s->n_cells == s->fields.n)) return CLV_OK;
  return fail_field_count(s, s->n_cells + !is_last, err);
}

static clv_code fail_cell(const clv_cell_source *s, const char *text, clv_err *err) {
  return clv_csv_fail(&s->csv, s->line, s->at, err, "%s", text);
}

static clv_code fail_record(const clv_cell_source *s, const char *text, clv_err *err) {
  return clv_csv_fail(&s->record_csv, s->record_csv.line, s->record_csv.at, err, "%s", text);
}

static clv_code fail_field(const clv_cell_source *s, size_t field, const char *text, clv_err *err) {
  size_t column = field < s->fields.n ? s->fields.list[field].column : 1;
  return clv_fail(err, CLV_INVALID, "%.200s:%zu:%zu: %s", s->path, s->record_csv.line + 1, column,
                  text);
}

static const clv_cell_reader csv_reader = {.start_next_record = start_next_record,
                                           .read_cell = read_cell,
                                           .fail_cell = fail_cell,
                                           .fail_record = fail_record,
                                           .fail_field = fail_field};

/* Fails if the header is a single field that another separator would divide, or if it is empty. */
static clv_code check_header(const clv_cell_source *s, clv_err *err) {
  char name[44];
  const char *first_name = clv_field_name(&s->fields, 0);
  if (strncmp(first_name, "{\"", 2) == 0 || strncmp(first_name, "[{", 2) == 0 ||
      strcmp(first_name, "[") == 0 || strcmp(first_name, "{") == 0)
    return fail_field(s, 0,
                      "this is JSON: lines of JSON are in files named .jsonl, and a list becomes "
                      "lines with jq -c '.[]'",
                      err);
  if (strncmp(first_name, "sep=", 4) == 0)
    return fail_field(s, 0,
                      "this line is for Excel alone: delete it, so that the names of the columns "
                      "come first, and set data.table.separator",
                      err);
  if (s->fields.n > 1 || !strpbrk(first_name, ";\t|,")) return CLV_OK;
  clv_text_truncate(first_name, name, sizeof name);
  clv_text_to_printable(name);
  return clv_fail(err, CLV_INVALID,
                  "%.200s:%zu:1: the header is one field, '%s': set data.table.separator", s->path,
                  s->record_csv.line + 1, name);
}

/* Returns the column of byte `at` in its line, in characters from 1. */
static size_t get_column_at(const clv_csv *c, size_t at) {
  size_t column = 1;
  for (size_t i = at; i > 0 && c->text[i - 1] != '\n'; i--)
    column += (c->text[i - 1] & 0xc0) != 0x80;
  return column;
}

clv_code clv_cells_csv_open(clv_cell_source *s, char separator, clv_err *err) {
  bool has_more, is_last = false;
  s->reader = &csv_reader;
  s->csv = (clv_csv){.label = s->path, .separator = separator};
  CLV_TRY(start_next_record(s, &has_more, err));
  if (!has_more)
    return clv_fail(err, CLV_INVALID, "%.200s:1:1: no header: the file is empty", s->path);
  while (!is_last) {
    clv_err reason;
    size_t at = s->csv.at;
    CLV_TRY(clv_csv_read_field(&s->csv, &s->text, &is_last, err));
    if (!clv_cells_is_utf8(s->text.data, s->text.len))
      return clv_csv_fail(&s->record_csv, s->record_csv.line, at, err,
                          "this name of a column is not UTF-8: convert the file, as with iconv -f "
                          "LATIN1 -t UTF-8");
    if (clv_fields_add(&s->fields, s->text.data, s->text.len, get_column_at(&s->record_csv, at),
                       &reason) != CLV_OK)
      return fail_field(s, SIZE_MAX, reason.text, err);
  }
  s->n_records = 0;
  return check_header(s, err);
}
