/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of the fields of a table, and the search of a field by its name.
 */
#include <stdlib.h>

#include "master/data/cell_source_int.h"

bool clv_cells_is_utf8(const char *text, size_t len) {
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t code_point;
    if (!(n = clv_utf8_decode(text + i, len - i, &code_point))) return false;
  }
  return true;
}

void clv_fields_done(clv_fields *f) {
  if (!f) return;
  clv_bytes_done(&f->text);
  clv_name_table_done(&f->index_of_name);
  free(f->list);
  *f = (clv_fields){0};
}

const char *clv_field_name(const clv_fields *f, size_t field) {
  return f->text.data + f->list[field].name_offset;
}

clv_code clv_fields_add(clv_fields *f, const char *name, size_t len, size_t column, clv_err *err) {
  if (f->n == CLV_CSV_MAX_COLUMNS)
    return clv_fail(err, CLV_INVALID, "more than %d columns", CLV_CSV_MAX_COLUMNS);
  if (f->n == f->cap) {
    size_t new_cap = f->cap ? 2 * f->cap : 16;
    void *new_list = realloc(f->list, new_cap * sizeof *f->list);
    if (!new_list) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu columns", new_cap);
    f->list = new_list;
    f->cap = new_cap;
  }
  f->list[f->n] = (struct clv_cell_field){.name_offset = f->text.len, .column = column};
  clv_bytes_add(&f->text, name, len);
  clv_bytes_add(&f->text, "", 1);
  if (f->text.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for names of columns");
  f->n++;
  return CLV_OK;
}

clv_code clv_fields_find_or_add(clv_fields *f, const char *name, size_t len, size_t *ret,
                                clv_err *err) {
  int32_t number;
  f->index_of_name.has_texts = true;
  CLV_TRY(clv_name_table_find_or_add(&f->index_of_name, name, len, &number, err));
  *ret = (size_t)number;
  return *ret < f->n ? CLV_OK : clv_fields_add(f, name, len, 0, err);
}
