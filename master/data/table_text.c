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

/* Returns the index of the first column at or after `from` with that use, or n_columns. */
static size_t find_use(const clv_table_options *o, clv_column_use use, size_t from) {
  while (from < o->n_columns && o->columns[from].use != use) from++;
  return from;
}

/* Checks that only one column has texts and no column has images, that the options name a
 * tokenizer, and that the input of tokens has a name if the table makes other inputs, too. */
static clv_code check_columns(const clv_dataset_options *o, clv_err *err) {
  const clv_table_options *t = &o->table;
  size_t text = find_use(t, CLV_COLUMN_TEXT, 0), n_others = 0;
  size_t second = find_use(t, CLV_COLUMN_TEXT, text + 1), file = find_use(t, CLV_COLUMN_FILE, 0);
  const char *name = t->columns[text].name;
  for (size_t i = 0; i < t->n_columns; i++)
    n_others += i != text && clv_column_is_input(t->columns[i].use);
  if (file < t->n_columns)
    return clv_fail(err, CLV_PRECONDITION,
                    "%.200s: column '%.64s' has texts and column '%.64s' images; a record has one "
                    "of them, so ignore one of these columns",
                    o->inputs_path, name, t->columns[file].name);
  if (second < t->n_columns)
    return clv_fail(err, CLV_PRECONDITION,
                    "%.200s: columns '%.64s' and '%.64s' have texts, the limit is 1 column; ignore "
                    "one of them",
                    o->inputs_path, name, t->columns[second].name);
  if (!o->text.tokenizer || !o->text.max_tokens)
    return clv_fail(err, CLV_PRECONDITION,
                    "%.200s: column '%.64s' has texts, which need a tokenizer and max_tokens",
                    o->inputs_path, name);
  if (!n_others || o->n_named_inputs) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "%.200s: column '%.64s' has texts beside other inputs; name the input 'ids' of "
                  "the model for them",
                  o->inputs_path, name);
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
