/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser of cells.json (clv_table_cache_parse). A table's cache on disk has this file
 * beside the files of cells, with the number of records and the words of each column.
 */
#include "master/data/cells_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char key[] =
    "00000000000000000000000000000000"
    "00000000000000000000000000000000";
static const clv_column_options columns[] = {
    {.name = "d", .use = CLV_COLUMN_CATEGORY},
    {.name = "n"},
    {.name = "t", .use = CLV_COLUMN_TARGET},
};

static clv_cell_table *parse(const char *text, size_t len, clv_err *err) {
  const clv_dataset_options o = {.inputs_path = "fuzz.csv",
                                 .table = {.columns = columns, .n_columns = CLV_COUNT(columns)}};
  CLV_AUTO(clv_table_freep) clv_cell_table *t = NULL;
  NEVER(clv_table_new(&o, &t, err) != CLV_OK);
  return clv_table_cache_parse(text, len, "cells.json", key, t, err) == CLV_OK ? clv_steal(&t)
                                                                               : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, written = {0}, again = {0};
  clv_err err = {0};
  clv_bytes_add(&text, data, size);
  clv_bytes_add(&text, "", 0);
  CLV_AUTO(clv_table_freep) clv_cell_table *t = parse(text.data, text.len, &err);
  if (!t) {
    NEVER(!strstr(err.text, "cells.json:"));
    return 0;
  }
  NEVER(!t->count || t->count > UINT32_MAX);
  for (size_t i = 0; i < t->columns[0].names.n; i++)
    NEVER(t->columns[0].names.sorted[i].number < 0 ||
          (size_t)t->columns[0].names.sorted[i].number >= t->columns[0].names.n);
  clv_table_cache_write(t, key, &written);
  CLV_AUTO(clv_table_freep) clv_cell_table *same = parse(written.data, written.len, &err);
  NEVER(!same);
  clv_table_cache_write(same, key, &again);
  NEVER(written.len != again.len || memcmp(written.data, again.data, written.len) != 0);
  return 0;
}
