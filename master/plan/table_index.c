/* SPDX-License-Identifier: Apache-2.0
 *
 * Indexes of a table's columns, which an embedding reads. clv_indexes_describe prints how many rows
 * the embedding needs, clv_index_check checks that it has as many.
 */
#include <string.h>

#include "master/plan/plan_int.h"

static void append_rows(const clv_index_facts *f, clv_bytes *out) {
  clv_bytes_printf(out, "%zu row%s: %zu value%s of the training records, one for all others%s",
                   f->n_rows, CLV_S(f->n_rows), f->n_values, CLV_S(f->n_values),
                   f->has_missing_row ? ", one for missing values" : "");
}

static clv_config_pos find_column(const clv_session_config *c, const char *name) {
  for (size_t i = 0; i < c->data.table.n_columns; i++)
    if (strcmp(c->data.table.columns[i].name, name) == 0) return c->data.table.columns[i].pos;
  return c->data.table.columns_pos;
}

clv_code clv_index_check(const clv_blueprint *b, const clv_dataset *ds, size_t k,
                         const clv_node *node, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_index_facts f;
  if (!clv_dataset_index_facts(ds, k, &f) || node->attrs.rows >= (int64_t)f.n_rows) return CLV_OK;
  append_rows(&f, &text);
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_session_fail_at(
      b->config, find_column(b->config, f.column), err,
      "data.table.columns.%.80s: the embedding '%s' has rows: %lld, and this "
      "index needs %s: write rows: %zu, or more for values to come",
      f.column, node->name, (long long)node->attrs.rows, text.data, f.n_rows);
}

void clv_indexes_describe(const clv_dataset *ds, clv_bytes *out) {
  for (size_t k = 0; ds && k < clv_dataset_input_count(ds); k++) {
    CLV_AUTO(clv_bytes_done) clv_bytes name = {0};
    clv_index_facts f;
    if (!clv_dataset_index_facts(ds, k, &f)) continue;
    clv_bytes_puts(&name, f.column);
    out->failed |= name.failed;
    if (!name.failed) clv_text_to_printable(name.data);
    clv_bytes_printf(out, "index of column '%s', input '%s': an embedding needs ",
                     name.data ? name.data : "", clv_dataset_input(ds, k, 1).name);
    append_rows(&f, out);
    clv_bytes_puts(out, "\n");
  }
}
