/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the JSON file in the cache of a table (clv_table_cache_write), and reads this file
 * (clv_table_cache_parse). The cells of the table are in other files of the cache. The JSON file
 * has the number of records, the texts of the words, which are numbers in the cells, and the errors
 * of broken records.
 */
#include <string.h>

#include "common/base/json/json.h"
#include "master/data/cells_int.h"

static void write_names(const clv_name_table *names, clv_bytes *out) {
  CLV_AUTO(clv_freep) const char **by_number = NULL;
  if (clv_alloc(names->n + 1, sizeof *by_number, &by_number, NULL) != CLV_OK) {
    out->failed = true;
    return;
  }
  for (size_t i = 0; i < names->n; i++)
    by_number[names->sorted[i].number] = names->text.data + names->sorted[i].at;
  for (size_t i = 0; i < names->n; i++) {
    clv_bytes_puts(out, i ? "," : "");
    clv_bytes_add_json(out, by_number[i]);
  }
}

void clv_table_cache_write(const clv_cell_table *t, const char *key, clv_bytes *out) {
  clv_bytes_printf(out, "{\"version\":%d,\"key\":\"%s\",\"records\":%zu,\"broken\":%zu",
                   CLV_CELL_CACHE_VERSION, key, t->count, t->broken.n);
  clv_bytes_puts(out, ",\"errors\":");
  clv_bytes_add_json(out, t->broken.error_lines.len ? t->broken.error_lines.data : "");
  clv_bytes_puts(out, ",\"names\":[");
  for (size_t i = 0; i < t->n_columns; i++) {
    clv_bytes_puts(out, i ? ",\n[" : "\n[");
    write_names(&t->columns[i].names, out);
    clv_bytes_puts(out, "]");
  }
  clv_bytes_puts(out, "]}\n");
}

/* Reads the names of a column in the order of their numbers. */
static clv_code read_names(clv_json *j, clv_name_table *names, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  bool has_more = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    int32_t number;
    clv_err reason;
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more) return CLV_OK;
    size_t at = j->at;
    CLV_TRY(clv_json_read_text(j, &text, err));
    if (memchr(text.data, '\0', text.len)) return clv_json_fail(j, at, err, "a text has a NUL");
    if (clv_name_table_find_or_add(names, text.data, text.len, &number, &reason) != CLV_OK)
      return clv_json_fail(j, at, err, "%s", reason.text);
    if ((size_t)number != n) return clv_json_fail(j, at, err, "this name comes twice");
  }
}

static clv_code read_all_names(clv_json *j, clv_cell_table *t, clv_err *err) {
  bool has_more = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more && n == t->n_columns) return CLV_OK;
    if (!has_more || n == t->n_columns)
      return clv_json_fail(j, j->at, err, "names of %zu columns are expected", t->n_columns);
    CLV_TRY(read_names(j, &t->columns[n].names, err));
  }
}

static clv_code read_count(clv_json *j, int64_t min_count, size_t *ret, clv_err *err) {
  int64_t n;
  CLV_TRY(clv_json_read_integer(j, min_count, UINT32_MAX, &n, err));
  *ret = (size_t)n;
  return CLV_OK;
}

static clv_code read_key(clv_json *j, const char *key, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  size_t at = j->at;
  CLV_TRY(clv_json_read_text(j, &text, err));
  if (strcmp(text.data, key) == 0) return CLV_OK;
  return clv_json_fail(j, at, err, "it is of another table, or of other rules");
}

static clv_code read_member(clv_json *j, int member, const char *key, clv_cell_table *t,
                            clv_err *err) {
  int64_t version;
  switch (member) {
    case 0:
      return clv_json_read_integer(j, CLV_CELL_CACHE_VERSION, CLV_CELL_CACHE_VERSION, &version,
                                   err);
    case 1:
      return read_key(j, key, err);
    case 2:
      return read_count(j, 1, &t->count, err);
    case 3:
      return read_count(j, 0, &t->broken.n, err);
    case 4:
      return clv_json_read_text(j, &t->broken.error_lines, err);
    default:
      return read_all_names(j, t, err);
  }
}

clv_code clv_table_cache_parse(const char *text, size_t len, const char *label, const char *key,
                               clv_cell_table *t, clv_err *err) {
  static const char *const members[] = {"version", "key", "records", "broken", "errors", "names"};
  clv_json j = {.label = label, .text = text, .len = len};
  bool has_more = true;
  uint32_t seen_members = 0;
  int member;
  CLV_TRY(clv_json_open(&j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(clv_json_find_key(&j, members, CLV_COUNT(members), &seen_members, &member, err));
    if (member < 0) return clv_json_fail(&j, j.at, err, "this key is not known");
    CLV_TRY(read_member(&j, member, key, t, err));
  }
  CLV_TRY(clv_json_end(&j, err));
  if (seen_members == (1u << CLV_COUNT(members)) - 1) return CLV_OK;
  return clv_json_fail(&j, j.at, err, "a key is missing");
}
