/* SPDX-License-Identifier: Apache-2.0
 *
 * The inputs that a table's column of texts makes from its rows of tokens, and facts about them for
 * `check`.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"

/* ---- inputs made from texts ------------------------------------------------------------------ */

static const char *const input_names[CLV_TEXT_INPUTS] = {"ids", "lengths"};

/* Sets ds->text_inputs to the inputs of the texts that the options name. */
static clv_code choose_inputs(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  bool has_ids = false;
  for (size_t i = 0; i < o->n_named_inputs; i++) {
    size_t k = 0;
    while (k < CLV_TEXT_INPUTS && strcmp(input_names[k], o->names[i]) != 0) k++;
    if (k == CLV_TEXT_INPUTS || i == CLV_TEXT_INPUTS)
      return clv_fail(err, CLV_INVALID,
                      "the texts of a table have no input '%s', or it is named twice: they have "
                      "ids and lengths",
                      o->names[i]);
    has_ids |= k == 0;
    ds->text_inputs[ds->n_text_inputs++] = input_names[k];
  }
  return has_ids ? CLV_OK : clv_fail(err, CLV_INVALID, "the texts of a table need the input 'ids'");
}

clv_code clv_table_prepare_texts(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  clv_text_rows *r = &ds->table->texts;
  if (!r->width) return CLV_OK;
  r->path = ds->inputs_path;
  if (o->n_named_inputs) return choose_inputs(ds, o, err);
  if (o->holds_tokens) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "the column `as: text` becomes tokens: the first layer must be an embedding");
}

clv_code clv_table_encode_texts(clv_dataset *ds, clv_err *err) {
  if (!ds->table->texts.width) return CLV_OK;
  CLV_TRY(clv_texts_from_rows(&ds->table->texts, &ds->texts, err));
  clv_text_rows_done(&ds->table->texts);
  ds->token_info = ds->texts->token_info;
  return CLV_OK;
}

clv_code clv_table_add_text_inputs(clv_dataset *ds, clv_err *err) {
  for (size_t i = 0; i < ds->n_text_inputs; i++) {
    const char *name = ds->text_inputs[i];
    bool is_ids = name == input_names[0];
    if (ds->n_named_inputs == CLV_DATA_MAX_INPUTS)
      return clv_fail(err, CLV_INVALID, "input '%s': a record has at most %d inputs", name,
                      CLV_DATA_MAX_INPUTS);
    CLV_TRY(clv_inputs_add(ds, name, ds->inputs_path,
                           is_ids ? &ds->texts->tokens : &ds->texts->lengths, err));
  }
  return CLV_OK;
}

/* ---- facts about texts ----------------------------------------------------------------------- */

/* Returns the rows of tokens, and how many tokens a row has. */
static const int32_t *find_token_rows(const clv_dataset *ds, size_t *ret_width) {
  const clv_tensor *ids = ds->inputs;
  *ret_width = ds->table->texts.width;
  if (*ret_width) return ds->table->texts.at;
  for (size_t k = 0; k < ds->n_named_inputs; k++)
    if (strcmp(ds->named_inputs[k].name, input_names[0]) == 0) ids = ds->named_inputs[k].data;
  *ret_width = (size_t)ids->shape.dim[1];
  return ids->data;
}

/* A row of tokens. Rows are sorted to count the different ones. */
typedef struct sorted_row {
  const int32_t *at;
  size_t width;
} sorted_row;

static int compare_rows(const void *a, const void *b) {
  const sorted_row *x = a, *y = b;
  return memcmp(x->at, y->at, x->width * sizeof *x->at);
}

clv_code clv_table_count_texts(const clv_dataset *ds, const clv_table_column *c,
                               const clv_subset *rows, clv_column_facts *f, clv_err *err) {
  CLV_AUTO(clv_freep) sorted_row *sorted = NULL;
  size_t n = 0, width;
  const int32_t *at = find_token_rows(ds, &width);
  CLV_TRY(clv_alloc(rows->n + 1, sizeof *sorted, &sorted, err));
  for (size_t i = 0; i < rows->n; i++) {
    int32_t length = c->codes[rows->index[i]];
    if (length == CLV_MISSING_CODE) continue;
    f->low = n && f->low < length ? f->low : length;
    f->high = n && f->high > length ? f->high : length;
    sorted[n++] = (sorted_row){at + rows->index[i] * width, width};
  }
  f->n_missing = rows->n - n;
  qsort(sorted, n, sizeof *sorted, compare_rows);
  for (size_t i = 0; i < n; i++)
    f->n_distinct += !i || compare_rows(&sorted[i - 1], &sorted[i]) != 0;
  return CLV_OK;
}
