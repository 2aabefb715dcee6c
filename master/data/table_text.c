/* SPDX-License-Identifier: Apache-2.0
 *
 * A table's column of texts. The texts become rows of tokens, as in the format text. The rows are
 * made while the table is read, and become inputs when the table is encoded (table_text_inputs.c).
 */
#include "master/data/table_int.h"

bool clv_table_has_texts(const clv_table_options *o) {
  for (size_t i = 0; i < o->n_columns; i++)
    if (o->columns[i].use == CLV_COLUMN_TEXT) return true;
  return false;
}

/* Checks that only one column has texts, that the options name a tokenizer, and that the input of
 * tokens has a name if the table makes other inputs, too. */
static clv_code check_columns(const clv_dataset_options *o, clv_err *err) {
  size_t n_texts = 0, n_others = 0;
  for (size_t i = 0; i < o->table.n_columns; i++) {
    clv_column_use use = o->table.columns[i].use;
    n_texts += use == CLV_COLUMN_TEXT;
    n_others += use != CLV_COLUMN_TEXT && clv_column_is_input(use);
    if (use == CLV_COLUMN_FILE)
      return clv_fail(err, CLV_PRECONDITION, "a record has a text or an image, and not both");
  }
  if (n_texts > 1) return clv_fail(err, CLV_PRECONDITION, "a record has one text");
  if (!o->text.tokenizer || !o->text.max_tokens)
    return clv_fail(err, CLV_PRECONDITION, "a column of texts needs a tokenizer and max_tokens");
  if (!n_others || o->n_named_inputs) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "a text beside other inputs needs the input name 'ids'");
}

clv_code clv_table_open_tokenizer(const clv_dataset_options *o, clv_cell_table *t, clv_err *err) {
  if (!clv_table_has_texts(&o->table)) return CLV_OK;
  CLV_TRY(check_columns(o, err));
  CLV_TRY(clv_text_rows_open(&t->texts, o, err));
  /* another column of the table has the labels */
  t->texts.has_labels = false;
  return CLV_OK;
}

clv_code clv_table_add_text(clv_cell_table *t, clv_table_column *c, const char *text, size_t len,
                            bool is_missing, clv_err *err) {
  CLV_TRY(clv_text_rows_add_text(&t->texts, text, len, err));
  c->codes[t->count] = is_missing ? CLV_MISSING_CODE : t->texts.lengths.at[t->texts.n - 1];
  return CLV_OK;
}
