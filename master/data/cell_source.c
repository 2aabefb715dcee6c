/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the records of a table, with the reader that the file needs.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "master/data/cell_source_int.h"
#include "master/data/reader_int.h"

/* First bytes of files that are no table but that people take for one, such as workbooks, and what
 * to do with them. */
static const struct {
  const char *magic;
  size_t len;
  const char *advice;
} foreign_formats[] = {
    {"PK\x03\x04", 4, "is a workbook (.xlsx, .ods) or an archive: save the sheet as CSV UTF-8"},
    {"\xd0\xcf\x11\xe0", 4, "is a workbook of old Excel (.xls): save the sheet as CSV UTF-8"},
    {"PAR1", 4,
     "is Parquet: convert it, as with pandas.read_parquet(FILE).to_csv(OUT, index=False)"},
    {"ARROW1", 6,
     "is Arrow: convert it, as with pandas.read_feather(FILE).to_csv(OUT, index=False)"},
    {"\x89HDF", 4, "is HDF5: convert it, as with pandas.read_hdf(FILE).to_csv(OUT, index=False)"},
    {"$FL2", 4, "is of SPSS: convert it, as with pandas.read_spss(FILE).to_csv(OUT, index=False)"},
    {"<stata_dta>", 11,
     "is of Stata: convert it, as with pandas.read_stata(FILE).to_csv(OUT, index=False)"},
    {"\x93NUMPY", 6, "is a .npy file: data.format: npy"},
    {"%PDF", 4, "is a PDF: data.format: documents reads its words"},
    {"BZh", 3, "is compressed by bzip2: bunzip2 it, or use gzip"},
    {"\xfd"
     "7zXZ",
     5, "is compressed by xz: unxz it, or use gzip"},
    {"\x28\xb5\x2f\xfd", 4, "is compressed by zstd: unzstd it, or use gzip"},
    {"<!DOCTYPE", 9, "is HTML: save the table itself as CSV"},
    {"<html", 5, "is HTML: save the table itself as CSV"},
};
enum { FILE_HEAD_BYTES = 16 };
static const char sqlite_magic[FILE_HEAD_BYTES] = "SQLite format 3";

bool clv_cells_has_json_name(const char *path) {
  static const char *const suffixes[] = {".jsonl", ".ndjson"};
  size_t n = strlen(path);
  if (n > 3 && strcasecmp(path + n - 3, ".gz") == 0) n -= 3;
  for (size_t i = 0; i < CLV_COUNT(suffixes); i++) {
    size_t k = strlen(suffixes[i]);
    if (n > k && strncasecmp(path + n - k, suffixes[i], k) == 0) return true;
  }
  return false;
}

char clv_cells_separator(const clv_dataset_options *o) {
  size_t n = strlen(o->inputs_path);
  if (o->table.separator) return o->table.separator;
  if (n > 3 && strcmp(o->inputs_path + n - 3, ".gz") == 0) n -= 3;
  return n > 4 && strncmp(o->inputs_path + n - 4, ".tsv", 4) == 0 ? '\t' : ',';
}

static clv_code open_records(const clv_dataset_options *o, clv_cell_source *s, clv_err *err) {
  if (clv_cells_has_json_name(o->inputs_path)) return clv_cells_jsonl_open(s, err);
  return clv_cells_csv_open(s, clv_cells_separator(o), err);
}

clv_code clv_cells_check_file(const clv_dataset_options *o, bool *ret_is_database, clv_err *err) {
  CLV_AUTO(clv_byte_source_freep) clv_byte_source *s = NULL;
  char head[FILE_HEAD_BYTES];
  size_t n;
  CLV_TRY(clv_byte_source_open(o->inputs_path, &s, err));
  CLV_TRY(clv_byte_source_read(s, head, FILE_HEAD_BYTES, &n, err));
  for (size_t i = 0; i < CLV_COUNT(foreign_formats); i++)
    if (n >= foreign_formats[i].len &&
        memcmp(head, foreign_formats[i].magic, foreign_formats[i].len) == 0)
      return clv_fail(err, CLV_INVALID, "%.200s: %s", o->inputs_path, foreign_formats[i].advice);
  *ret_is_database = n == FILE_HEAD_BYTES && memcmp(head, sqlite_magic, FILE_HEAD_BYTES) == 0;
  return CLV_OK;
}

static clv_code open_file(const clv_dataset_options *o, clv_cell_source *s, clv_err *err) {
  size_t max_bytes = o->max_bytes ? o->max_bytes : CLV_DATA_MAX_BYTES;
  char separator = clv_cells_has_json_name(o->inputs_path) ? 0 : clv_cells_separator(o);
  bool is_database;
  CLV_TRY(clv_cells_check_file(o, &is_database, err));
  if (is_database) return clv_cells_sqlite_open(s, &o->table, err);
  if (o->table.query)
    return clv_fail(err, CLV_INVALID,
                    "%.200s: is no SQLite database, and data.table.query goes with one: remove "
                    "the key",
                    o->inputs_path);
  CLV_TRY(clv_record_lines_open(o->inputs_path, separator, max_bytes, &s->lines, err));
  return open_records(o, s, err);
}

static clv_code open_text(const clv_dataset_options *o, const char *text, size_t len,
                          clv_cell_source *s, clv_err *err) {
  char separator = clv_cells_has_json_name(o->inputs_path) ? 0 : clv_cells_separator(o);
  CLV_TRY(clv_record_lines_open_memory(text, len, o->inputs_path, separator, &s->lines, err));
  return open_records(o, s, err);
}

void clv_cells_done(clv_cell_source *s) {
  if (!s) return;
  clv_fields_done(&s->fields);
  clv_bytes_done(&s->text);
  clv_record_lines_freep(&s->lines);
  clv_query_free(s->query);
  *s = (clv_cell_source){0};
}

static clv_code close_on_error(clv_cell_source *s, clv_code code) {
  if (code != CLV_OK) clv_cells_done(s);
  return code;
}

clv_code clv_cells_open(const clv_dataset_options *o, clv_cell_source *ret, clv_err *err) {
  *ret = (clv_cell_source){.path = o->inputs_path};
  return close_on_error(ret, open_file(o, ret, err));
}

clv_code clv_cells_open_memory(const clv_dataset_options *o, const char *text, size_t len,
                               clv_cell_source *ret, clv_err *err) {
  *ret = (clv_cell_source){.path = o->inputs_path};
  return close_on_error(ret, open_text(o, text, len, ret, err));
}

/* ---- errors with a position in the table ----------------------------------------------------- */

/* Writes the message of a printf into `text`, a char [CLV_ERR_TEXT]. */
#define FORMAT_VARARGS(text, fmt)            \
  do {                                       \
    va_list args;                            \
    va_start(args, fmt);                     \
    vsnprintf(text, sizeof text, fmt, args); \
    va_end(args);                            \
  } while (0)

clv_code clv_cells_fail(const clv_cell_source *s, clv_err *err, const char *fmt, ...) {
  char text[CLV_ERR_TEXT];
  FORMAT_VARARGS(text, fmt);
  return s->reader->fail_cell(s, text, err);
}

clv_code clv_cells_fail_record(const clv_cell_source *s, clv_err *err, const char *fmt, ...) {
  char text[CLV_ERR_TEXT];
  FORMAT_VARARGS(text, fmt);
  return s->reader->fail_record(s, text, err);
}

clv_code clv_cells_fail_field(const clv_cell_source *s, size_t field, clv_err *err, const char *fmt,
                              ...) {
  char text[CLV_ERR_TEXT];
  FORMAT_VARARGS(text, fmt);
  return s->reader->fail_field(s, field, text, err);
}
