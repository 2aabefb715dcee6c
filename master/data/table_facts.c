/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes facts about the columns of a table: range, missing values, distinct values, and reasons
 * for suspicion (clv_dataset_column_facts). The command `check` prints these facts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/cells_int.h"
#include "master/data/dataset_int.h"

/* A column may reveal the target if their correlation is above this, or below its negative. */
#define LEAK_CORRELATION 0.99
enum { MIN_RECORDS = 20 /* with fewer records no column is suspicious */ };

static clv_code count_numbers(const clv_cell_table *t, const clv_table_column *c,
                              const clv_subset *rows, clv_column_facts *f, clv_err *err) {
  CLV_AUTO(clv_sorted_values_done) clv_sorted_values s = {0};
  CLV_TRY(clv_sorted_values_make(t, c, rows, &s, err));
  f->n_missing = rows->n - s.n;
  f->low = s.n ? s.v[0] : NAN;
  f->high = s.n ? s.v[s.n - 1] : NAN;
  f->has_integers = true;
  for (size_t i = 0; i < s.n; i++) {
    f->n_distinct += !i || s.v[i] != s.v[i - 1];
    f->has_integers = f->has_integers && s.v[i] == floor(s.v[i]);
  }
  return CLV_OK;
}

static clv_code count_words(const clv_cell_table *t, const clv_table_column *c,
                            const clv_subset *rows, clv_column_facts *f, clv_err *err) {
  CLV_AUTO(clv_freep) bool *seen = NULL;
  CLV_TRY(clv_alloc(c->names.n + 1, sizeof *seen, &seen, err));
  for (size_t i = 0; i < rows->n; i++) {
    int32_t code = c->codes[clv_table_row(t, rows->index[i])];
    if (code == CLV_MISSING_CODE) {
      f->n_missing++;
      continue;
    }
    f->n_distinct += !seen[code];
    seen[code] = true;
  }
  return CLV_OK;
}

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Counts the different ids, or paths of images, whose offsets are `texts`. An id that occurs twice
 * may be one patient with two records. */
static clv_code count_texts(const clv_cell_table *t, const size_t *texts, const clv_subset *rows,
                            clv_column_facts *f, clv_err *err) {
  CLV_AUTO(clv_freep) const char **ids = NULL;
  CLV_TRY(clv_alloc(rows->n + 1, sizeof *ids, &ids, err));
  for (size_t i = 0; i < rows->n; i++) ids[i] = clv_table_text(t, texts, rows->index[i]);
  qsort(ids, rows->n, sizeof *ids, compare_texts);
  for (size_t i = 0; i < rows->n; i++) f->n_distinct += !i || strcmp(ids[i - 1], ids[i]) != 0;
  return CLV_OK;
}

/* Returns the number of columns with labels. */
static size_t count_targets(const clv_dataset *ds) {
  return ds->table->n_targets ? ds->table->n_targets : ds->table->target != NULL;
}

static const clv_table_column *target_column(const clv_dataset *ds, size_t k) {
  return ds->table->n_targets ? ds->table->targets[k] : ds->table->target;
}

/* Returns the class of a record in target k, which has classes. */
static int64_t target_class(const clv_dataset *ds, size_t k, uint32_t record) {
  return ds->table->n_targets ? clv_dataset_target_class(ds, k, record)
                              : clv_dataset_record_class(ds, record);
}

/* Returns target k of a record as a number: the number itself, or 0 or 1 for one of two classes.
 * NaN: the record has no label of the target, or the target has more classes. */
static double target_number(const clv_dataset *ds, size_t k, uint32_t record) {
  const clv_table_column *t = target_column(ds, k);
  size_t n = ds->table->n_targets ? clv_dataset_target_class_count(ds, k) : ds->n_classes;
  if (t->has_numbers) return t->numbers[clv_table_row(ds->table, record)];
  bool has_label = !ds->table->n_targets || clv_dataset_has_target(ds, k, record);
  return n == 2 && has_label ? (double)target_class(ds, k, record) : NAN;
}

/* Returns Pearson's correlation of a column of numbers with target k; 0: it is not defined, because
 * the column or the target has no two different numbers. */
static double compute_correlation(const clv_dataset *ds, const clv_table_column *c, size_t k,
                                  const clv_subset *rows) {
  double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < rows->n; i++) {
    double a = c->numbers[clv_table_row(ds->table, rows->index[i])];
    double b = target_number(ds, k, rows->index[i]);
    if (isnan(a) || isnan(b)) continue;
    n++;
    double da = a - x, db = b - y;
    x += da / n;
    y += db / n;
    xx += da * (a - x);
    yy += db * (b - y);
    xy += da * (b - y);
  }
  return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

/* Sets *ret to true if, for each word of the column, all records with this word have one class in
 * target k. */
static clv_code check_words_determine_target(const clv_dataset *ds, const clv_table_column *c,
                                             size_t k, const clv_subset *rows, bool *ret,
                                             clv_err *err) {
  CLV_AUTO(clv_freep) int64_t *class_of = NULL;
  *ret = false;
  if (target_column(ds, k)->has_numbers) return CLV_OK;
  CLV_TRY(clv_alloc(c->names.n + 1, sizeof *class_of, &class_of, err));
  for (size_t i = 0; i < rows->n; i++) {
    int32_t code = c->codes[clv_table_row(ds->table, rows->index[i])];
    int64_t class = target_class(ds, k, rows->index[i]) + 1;
    if (code == CLV_MISSING_CODE || !class) continue;
    if (class_of[code] && class_of[code] != class) return CLV_OK;
    class_of[code] = class;
  }
  *ret = true;
  return CLV_OK;
}

/* Sets f->correlation to the largest correlation of the column with a target, and f->suspicion if
 * the column reveals a target (CLV_COLUMN_REVEALS_TARGET). */
static clv_code find_revealed_target(const clv_dataset *ds, const clv_table_column *c,
                                     const clv_subset *rows, clv_column_facts *f, clv_err *err) {
  bool has_words = !c->has_numbers, has_few_values = f->n_distinct * 2 < rows->n - f->n_missing;
  for (size_t k = 0; k < count_targets(ds); k++) {
    bool determines_target = false;
    double correlation = has_words ? 0 : compute_correlation(ds, c, k, rows);
    if (has_words && has_few_values)
      CLV_TRY(check_words_determine_target(ds, c, k, rows, &determines_target, err));
    if (fabs(correlation) > fabs(f->correlation)) f->correlation = correlation;
    if (!determines_target && !(fabs(correlation) > LEAK_CORRELATION)) continue;
    f->suspicion = CLV_COLUMN_REVEALS_TARGET;
    if (!f->revealed_target && ds->table->n_targets)
      f->revealed_target = target_column(ds, k)->o.name;
  }
  return CLV_OK;
}

static clv_code find_suspicion(const clv_dataset *ds, const clv_table_column *c,
                               const clv_subset *rows, clv_column_facts *f, clv_err *err) {
  size_t n_present = rows->n - f->n_missing;
  if (c->is_read_target && rows->n >= MIN_RECORDS && f->n_distinct <= 1)
    f->suspicion = CLV_COLUMN_IS_CONSTANT_TARGET;
  if (c->o.use == CLV_COLUMN_ID && f->n_distinct < rows->n) f->suspicion = CLV_COLUMN_REPEATS_IDS;
  if (!clv_column_is_input(c->o.use) || rows->n < MIN_RECORDS) return CLV_OK;
  if (f->n_distinct <= 1 && !f->n_missing) f->suspicion = CLV_COLUMN_IS_CONSTANT;
  /* texts usually differ in all records, so this is no reason for suspicion */
  if (c->o.use == CLV_COLUMN_TEXT) return CLV_OK;
  bool has_words = !c->has_numbers;
  if ((has_words || (f->has_integers && c->o.use != CLV_COLUMN_DATE)) &&
      f->n_distinct == n_present && n_present == rows->n)
    f->suspicion = CLV_COLUMN_NAMES_RECORDS;
  return f->suspicion ? CLV_OK : find_revealed_target(ds, c, rows, f, err);
}

size_t clv_dataset_column_count(const clv_dataset *ds) {
  return ds->table ? ds->table->n_columns : 0;
}

/* Returns the number of rows that an embedding needs for the index of a column; 0: the column makes
 * no index. */
static size_t count_index_rows(const clv_dataset *ds, const char *name) {
  for (size_t k = 0; k < ds->n_named_inputs; k++) {
    const clv_index_facts *f = &ds->named_inputs[k].index_facts;
    if (f->n_rows && strcmp(f->column, name) == 0) return f->n_rows;
  }
  return 0;
}

clv_code clv_dataset_column_facts(const clv_dataset *ds, const clv_subset *rows, size_t column,
                                  clv_column_facts *ret, clv_err *err) {
  const clv_table_column *c = &ds->table->columns[column];
  *ret = (clv_column_facts){.name = c->o.name, .use = c->o.use, .low = NAN, .high = NAN};
  const clv_cell_table *t = ds->table;
  ret->n_rows = count_index_rows(ds, c->o.name);
  if (c->has_numbers && c->numbers) CLV_TRY(count_numbers(t, c, rows, ret, err));
  if (c->o.use == CLV_COLUMN_TEXT) CLV_TRY(clv_table_count_texts(ds, c, rows, ret, err));
  if (!c->has_numbers && c->codes && c->o.use != CLV_COLUMN_TEXT)
    CLV_TRY(count_words(t, c, rows, ret, err));
  if (c->o.use == CLV_COLUMN_ID) CLV_TRY(count_texts(t, t->id_offsets, rows, ret, err));
  if (c->o.use == CLV_COLUMN_FILE) CLV_TRY(count_texts(t, t->path_offsets, rows, ret, err));
  return find_suspicion(ds, c, rows, ret, err);
}
