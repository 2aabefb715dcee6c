/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes queries of a database: the input is the text of a query. The query runs on
 * tests/golden/table/tables.db. If this file is missing, only the query's words are checked.
 */
#include <strings.h>
#include <unistd.h>

#include "master/data/cell_source_int.h"
#include "tests/fuzz/never.h"

#define DATABASE "tests/golden/table/tables.db"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* True if the text has the word, in upper or lower case. */
static bool has_word(const char *text, const char *word) {
  for (; *text; text++)
    if (strncasecmp(text, word, strlen(word)) == 0) return true;
  return false;
}

/* Reads all cells of the query's result. If the reading ends early, for example because the query
 * runs for too long, the error must name the database. */
static void read_all(clv_cell_source *s) {
  clv_source_cell cell;
  clv_err err = {0};
  bool has_more = true;
  while (s->reader->start_next_record(s, &has_more, &err) == CLV_OK && has_more)
    while (s->reader->read_cell(s, &cell, &has_more, &err) == CLV_OK && has_more)
      NEVER(cell.field >= s->fields.n || cell.text[cell.len] != '\0');
  NEVER(has_more && !strstr(err.text, DATABASE));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes sql = {0};
  clv_cell_source s;
  clv_err err = {0};
  clv_bytes_add(&sql, data, size);
  clv_bytes_add(&sql, "", 0);
  bool is_query = clv_query_text_check(sql.data, &err) == CLV_OK;
  NEVER(is_query && !(has_word(sql.data, "order") && has_word(sql.data, "by")));
  const clv_dataset_options o = {.inputs_path = DATABASE,
                                 .table = {.query = sql.data, .query_rows = 100}};
  if (access(DATABASE, R_OK) != 0) return 0;
  if (clv_cells_open(&o, &s, &err) != CLV_OK) {
    NEVER(!strstr(err.text, DATABASE));
    return 0;
  }
  NEVER(!is_query);
  read_all(&s);
  clv_cells_done(&s);
  return 0;
}
