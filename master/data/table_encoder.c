/* SPDX-License-Identifier: Apache-2.0
 *
 * Learns from the training records of a table how its columns become numbers (clv_table_learn), and
 * encodes records by what was learnt (clv_table_encode). The formulas are those of scikit-learn:
 * SimpleImputer, then StandardScaler, MinMaxScaler or QuantileTransformer; OneHotEncoder.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/cells_int.h"

enum { BLOCK_BYTES = 8 << 20 /* bytes of the inputs that are encoded at a time */ };

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

void clv_learnt_targets_free(clv_learnt_target *targets, size_t n) {
  for (size_t i = 0; i < n; i++) {
    for (size_t k = 0; k < targets[i].n_classes; k++) free(targets[i].classes[k]);
    free(targets[i].classes);
    free(targets[i].name);
  }
  free(targets);
}

void clv_learnt_free(clv_learnt *l) {
  if (!l) return;
  for (size_t i = 0; i < l->n_columns; i++) {
    clv_learnt_column *c = &l->columns[i];
    for (size_t k = 0; k < c->n_values; k++) free(c->values[k]);
    free(c->values);
    free(c->quantiles);
    free(c->name);
  }
  for (size_t k = 0; k < l->n_classes; k++) free(l->classes[k]);
  free(l->classes);
  clv_learnt_targets_free(l->targets, l->n_targets);
  free(l->columns);
  free(l);
}

void clv_learnt_freep(clv_learnt **l) {
  clv_learnt_free(*l);
  *l = NULL;
}

/* ---- learning the fill value and the scale of columns of numbers ----------------------------- */

/* Returns the most frequent of n ascending numbers, of equally frequent ones the smallest. */
static double find_most_frequent(const double *v, size_t n) {
  double most_frequent = v[0];
  size_t max_count = 0;
  for (size_t i = 0, k; i < n; i = k) {
    for (k = i; k < n && v[k] == v[i];) k++;
    if (k - i <= max_count) continue;
    max_count = k - i;
    most_frequent = v[i];
  }
  return most_frequent;
}

static double compute_mean(const double *v, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += v[i];
  return sum / (double)n;
}

static double compute_std(const double *v, size_t n, double mean) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += (v[i] - mean) * (v[i] - mean);
  return sqrt(sum / (double)n);
}

/* Reads the value that the session gives for missing values (clv_column_options.value). */
static bool read_fill_number(const clv_table_column *from, clv_learnt_column *c) {
  const char *text = from->o.value;
  size_t len = strlen(text);
  if (c->use == CLV_COLUMN_DATE)
    return clv_date_read_days(text, len, from->o.format, &c->fill_number);
  if (c->use == CLV_COLUMN_BOOLEAN) return clv_table_read_boolean(text, len, &c->fill_number);
  return clv_table_read_number(text, len, false, &c->fill_number);
}

/* Chooses the number that replaces missing ones. v: [n] the numbers that are present, ascending. */
static clv_code choose_fill_number(const clv_table_column *from, const double *v, size_t n,
                                   clv_learnt_column *c, clv_err *err) {
  if (c->missing == CLV_MISSING_VALUE) {
    if (read_fill_number(from, c)) return CLV_OK;
    return clv_fail(err, CLV_PRECONDITION, "data.table.columns.%.80s.value: '%.40s' is no %s",
                    c->name, from->o.value, clv_column_use_names[c->use]);
  }
  if (c->missing == CLV_MISSING_REFUSE) return CLV_OK;
  if (!n)
    return clv_fail(err, CLV_INVALID,
                    "column '%.80s' has no value in the training records: say as: ignore", c->name);
  if (c->missing == CLV_MISSING_MEAN) c->fill_number = compute_mean(v, n);
  if (c->missing == CLV_MISSING_MEDIAN)
    c->fill_number = n % 2 ? v[n / 2] : v[n / 2 - 1] + (v[n / 2] - v[n / 2 - 1]) / 2;
  if (c->missing == CLV_MISSING_MOST_FREQUENT) c->fill_number = find_most_frequent(v, n);
  return CLV_OK;
}

/* Learns the quantiles as numpy.percentile computes them, by linear interpolation. v: [n]
 * ascending. */
static clv_code learn_quantiles(const double *v, size_t n, clv_learnt_column *c, clv_err *err) {
  size_t k = CLV_MIN(n, (size_t)CLV_QUANTILES);
  CLV_TRY(clv_alloc(k, sizeof *c->quantiles, &c->quantiles, err));
  c->n_quantiles = k;
  for (size_t i = 0; i < k; i++) {
    double at = k == 1 ? 0 : (double)(i * (n - 1)) / (double)(k - 1);
    size_t low = (size_t)at, high = CLV_MIN(low + 1, n - 1);
    c->quantiles[i] = v[low] + (v[high] - v[low]) * (at - (double)low);
  }
  return CLV_OK;
}

/* Learns the scale from all numbers, with missing ones replaced. s: the numbers that are present;
 * this function adds those that replace missing ones. */
static clv_code learn_scale(const clv_cell_table *t, clv_sorted_values *s, size_t n_missing,
                            clv_learnt_column *c, clv_err *err) {
  bool takes_log = c->scale == CLV_SCALE_LOG;
  if (c->use == CLV_COLUMN_BOOLEAN || c->scale == CLV_SCALE_NONE) return CLV_OK;
  CLV_TRY(clv_sorted_values_add_fills(t, s, c->fill_number, n_missing, takes_log, err));
  if (c->scale == CLV_SCALE_QUANTILE) return learn_quantiles(s->v, s->n, c, err);
  bool is_min_max = c->scale == CLV_SCALE_MIN_MAX;
  c->offset = is_min_max ? s->v[0] : compute_mean(s->v, s->n);
  double range = is_min_max ? s->v[s->n - 1] - s->v[0] : compute_std(s->v, s->n, c->offset);
  if (range > 0) c->divisor = range;
  return CLV_OK;
}

/* Learns, from the numbers that are present, the number that replaces missing ones, and then the
 * scale. */
static clv_code learn_numbers(const clv_cell_table *t, const clv_table_column *from,
                              const clv_subset *rows, clv_learnt_column *c, clv_err *err) {
  CLV_AUTO(clv_sorted_values_done) clv_sorted_values s = {0};
  CLV_TRY(clv_sorted_values_make(t, from, rows, &s, err));
  CLV_TRY(choose_fill_number(from, s.v, s.n, c, err));
  if (c->scale == CLV_SCALE_LOG && !(c->fill_number > -1))
    return clv_fail(err, CLV_PRECONDITION, "data.table.columns.%.80s.value: %g is not above -1",
                    c->name, c->fill_number);
  return learn_scale(t, &s, rows->n - s.n, c, err);
}

/* ---- learning the values of columns of words ------------------------------------------------- */

/* Counts how often each name of a column occurs in the rows. counts: [names.n]. */
static void count_codes(const clv_cell_table *t, const clv_table_column *from,
                        const clv_subset *rows, size_t *counts) {
  for (size_t i = 0; i < rows->n; i++) {
    int32_t code = from->codes[clv_table_row(t, rows->index[i])];
    if (code != CLV_MISSING_CODE) counts[code]++;
  }
}

/* Lists copies of the names that occur in the rows, sorted. */
static clv_code list_used_names(const clv_table_column *from, const size_t *counts, char ***ret,
                                size_t *ret_n, clv_err *err) {
  CLV_TRY(clv_alloc(from->names.n, sizeof **ret, ret, err));
  for (size_t i = 0; i < from->names.n; i++) {
    const struct clv_name_entry *e = &from->names.sorted[i];
    if (!counts[e->number]) continue;
    CLV_TRY(clv_strdup(from->names.text.data + e->at, &(*ret)[*ret_n], err));
    ++*ret_n;
  }
  return CLV_OK;
}

static size_t find_value_index(char *const *values, size_t n, const char *value) {
  char *const *found = n ? bsearch(&value, values, n, sizeof *values, compare_texts) : NULL;
  return found ? (size_t)(found - values) : n;
}

static clv_code choose_fill_value_index(const clv_table_column *from, const size_t *counts,
                                        clv_learnt_column *c, clv_err *err) {
  size_t max_count = 0;
  c->fill_value_index = c->n_values;
  if (c->missing == CLV_MISSING_VALUE)
    c->fill_value_index = find_value_index(c->values, c->n_values, from->o.value);
  if (c->missing != CLV_MISSING_MOST_FREQUENT) return CLV_OK;
  if (!c->n_values)
    return clv_fail(err, CLV_INVALID,
                    "column '%.80s' has no value in the training records: say as: ignore", c->name);
  for (size_t i = 0; i < from->names.n; i++) {
    const struct clv_name_entry *e = &from->names.sorted[i];
    if (counts[e->number] <= max_count) continue;
    max_count = counts[e->number];
    c->fill_value_index = find_value_index(c->values, c->n_values, from->names.text.data + e->at);
  }
  return CLV_OK;
}

static clv_code learn_words(const clv_cell_table *t, const clv_table_column *from,
                            const clv_subset *rows, clv_learnt_column *c, clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  CLV_TRY(clv_alloc(from->names.n + 1, sizeof *counts, &counts, err));
  count_codes(t, from, rows, counts);
  CLV_TRY(list_used_names(from, counts, &c->values, &c->n_values, err));
  return choose_fill_value_index(from, counts, c, err);
}

/* Keeps the text that replaces missing texts, because later commands must use the same text as
 * training. */
static clv_code learn_text(const clv_table_column *from, clv_learnt_column *c, clv_err *err) {
  if (c->missing != CLV_MISSING_VALUE) return CLV_OK;
  CLV_TRY(clv_alloc(1, sizeof *c->values, &c->values, err));
  CLV_TRY(clv_strdup(from->o.value ? from->o.value : "", &c->values[0], err));
  c->n_values = 1;
  return CLV_OK;
}

/* ---- learning a table ------------------------------------------------------------------------ */

static clv_code learn_column(const clv_cell_table *t, const clv_table_column *from,
                             const clv_subset *rows, clv_learnt_column *c, clv_err *err) {
  c->use = from->o.use;
  c->scale = from->o.scale;
  c->missing = from->o.missing;
  c->has_indicator = from->o.has_indicator;
  c->parts = from->o.parts;
  c->divisor = 1;
  CLV_TRY(clv_strdup(from->o.name, &c->name, err));
  if (c->use == CLV_COLUMN_TEXT) return learn_text(from, c, err);
  return (from->has_numbers ? learn_numbers : learn_words)(t, from, rows, c, err);
}

/* Copies the names of the classes that records have in a target column, sorted. Skips records
 * without a label. */
static clv_code list_classes(const clv_cell_table *t, const clv_table_column *target, char ***ret,
                             size_t *ret_n, clv_err *err) {
  CLV_AUTO(clv_freep) size_t *counts = NULL;
  CLV_TRY(clv_alloc(target->names.n + 1, sizeof *counts, &counts, err));
  for (size_t i = 0; i < t->count; i++) {
    int32_t code = target->codes[clv_table_row(t, i)];
    if (code != CLV_MISSING_CODE) counts[code]++;
  }
  return list_used_names(target, counts, ret, ret_n, err);
}

/* Lists the classes of all targets in the order of y. */
static clv_code learn_target_classes(const clv_cell_table *t, clv_learnt *l, clv_err *err) {
  CLV_TRY(clv_alloc(t->n_targets, sizeof *l->targets, &l->targets, err));
  for (size_t i = 0; i < t->n_targets; i++) {
    clv_learnt_target *to = &l->targets[l->n_targets++];
    CLV_TRY(clv_strdup(t->targets[i]->o.name, &to->name, err));
    if (t->targets[i]->has_numbers) continue;
    CLV_TRY(list_classes(t, t->targets[i], &to->classes, &to->n_classes, err));
  }
  return CLV_OK;
}

/* Lists the classes of all records, so that a class which only validation has is known, too. */
static clv_code learn_classes(const clv_cell_table *t, clv_learnt *l, clv_err *err) {
  if (t->n_targets) return learn_target_classes(t, l, err);
  if (!t->target || t->target->has_numbers) return CLV_OK;
  return list_classes(t, t->target, &l->classes, &l->n_classes, err);
}

clv_code clv_table_learn_classes(const clv_cell_table *t, clv_learnt **ret, clv_err *err) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  CLV_TRY(learn_classes(t, l, err));
  *ret = clv_steal(&l);
  return CLV_OK;
}

clv_code clv_table_learn(const clv_cell_table *t, const clv_subset *rows, clv_learnt **ret,
                         clv_err *err) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  CLV_TRY(clv_alloc(t->n_columns, sizeof *l->columns, &l->columns, err));
  for (size_t i = 0; i < t->n_columns; i++)
    if (clv_column_is_input(t->columns[i].o.use))
      CLV_TRY(learn_column(t, &t->columns[i], rows, &l->columns[l->n_columns++], err));
  CLV_TRY(learn_classes(t, l, err));
  *ret = clv_steal(&l);
  return CLV_OK;
}

/* ---- encoding a table ------------------------------------------------------------------------ */

/* Returns the number of input elements that encode the value of a category column: one for each
 * learnt value, one for all values that the training records lack, and, if the column says
 * `missing: own`, one for missing values. */
static size_t count_value_elements(const clv_learnt_column *c) {
  return c->n_values + 1 + (c->missing == CLV_MISSING_OWN);
}

size_t clv_learnt_index_row_count(const clv_learnt_column *c) { return count_value_elements(c); }

size_t clv_learnt_column_element_count(const clv_learnt_column *c) {
  if (c->use == CLV_COLUMN_INDEX || c->use == CLV_COLUMN_TEXT) return 0;
  size_t n = c->use == CLV_COLUMN_CATEGORY ? count_value_elements(c) : 1;
  return n + 2 * (size_t)__builtin_popcount(c->parts) + c->has_indicator;
}

/* Returns where v lies among the n ascending numbers x: 0 at the first, 1 at the last, and linear
 * between neighbours, as numpy.interp computes it. If several numbers equal v, the last of them
 * counts; is_mirrored: the first. */
static double interpolate(const double *x, size_t n, double v, bool is_mirrored) {
  size_t low = 0, high = n - 1;
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    bool is_below = is_mirrored ? x[middle] < v : x[middle] <= v;
    *(is_below ? &low : &high) = middle;
  }
  double width = x[high] - x[low], fraction = width > 0 ? (v - x[low]) / width : 0;
  return ((double)low + fraction) / (double)(n - 1);
}

/* Returns the fraction of the training records below v, as QuantileTransformer does: the mean of
 * the interpolation from below and from above, which differ where records have equal values. */
static double map_to_quantile(const clv_learnt_column *c, double v) {
  const double *q = c->quantiles;
  size_t n = c->n_quantiles;
  if (v <= q[0]) return 0;
  if (v >= q[n - 1]) return 1;
  return (interpolate(q, n, v, false) + interpolate(q, n, v, true)) / 2;
}

static double encode_number(const clv_learnt_column *c, double v) {
  if (isnan(v)) v = c->fill_number;
  if (c->use != CLV_COLUMN_BOOLEAN && c->scale == CLV_SCALE_QUANTILE) return map_to_quantile(c, v);
  if (c->use == CLV_COLUMN_NUMBER && c->scale == CLV_SCALE_LOG) v = log1p(v);
  return (v - c->offset) / c->divisor;
}

clv_code clv_table_map_codes(const clv_table_column *from, char *const *values, size_t n,
                             size_t **ret, clv_err *err) {
  CLV_TRY(clv_alloc(from->names.n + 1, sizeof **ret, ret, err));
  for (size_t i = 0; i < from->names.n; i++) {
    const struct clv_name_entry *e = &from->names.sorted[i];
    (*ret)[e->number] = find_value_index(values, n, from->names.text.data + e->at);
  }
  return CLV_OK;
}

/* A column of the table, and how its cells become elements of the input. */
typedef struct encoded_column {
  const clv_learnt_column *c;
  const clv_table_column *from;
  size_t at; /* index of the column's first element in the input of a record */
  /* element of each code, counted from `at`; for an index column, the index of each code; NULL: the
   * column has numbers */
  size_t *element_of_code;
} encoded_column;

/* How a table becomes inputs. Release with table_encoder_done. */
typedef struct table_encoder {
  encoded_column *columns; /* [n] */
  size_t n, width;         /* width: elements of a record */
} table_encoder;

static void table_encoder_done(table_encoder *e) {
  for (size_t i = 0; e->columns && i < e->n; i++) free(e->columns[i].element_of_code);
  free(e->columns);
}

/* For a category column, returns which element is 1 for a code, counted from the column's first
 * element. For an index column, returns the index that stands for the code. */
static size_t find_element_of_code(const encoded_column *e, int32_t code) {
  const clv_learnt_column *c = e->c;
  if (code != CLV_MISSING_CODE) return e->element_of_code[code];
  return c->missing == CLV_MISSING_OWN ? c->n_values + 1 : c->fill_value_index;
}

/* Encodes a category column for n records from `first` on. to: the column's first element in the
 * first of these records. width: elements per record. */
static void encode_words(const clv_cell_table *t, const encoded_column *e, size_t first, size_t n,
                         float *to, size_t width) {
  for (size_t i = 0; i < n; i++) {
    int32_t code = e->from->codes[clv_table_row(t, first + i)];
    to[i * width + find_element_of_code(e, code)] = 1;
    if (e->c->has_indicator) to[i * width + count_value_elements(e->c)] = code == CLV_MISSING_CODE;
  }
}

static void encode_indexes(const clv_cell_table *t, const encoded_column *e, size_t first, size_t n,
                           int64_t *to) {
  for (size_t i = 0; i < n; i++)
    to[i] = (int64_t)find_element_of_code(e, e->from->codes[clv_table_row(t, first + i)]);
}

/* Writes two elements for each part of a date, sine and cosine of its angle. Returns the number of
 * elements written. */
static size_t encode_date_parts(const clv_learnt_column *c, double days, float *to) {
  size_t n = 0;
  if (isnan(days)) days = c->fill_number;
  for (int part = 0; part < CLV_DATE_PARTS; part++) {
    if (!(c->parts >> part & 1)) continue;
    double angle = 2 * M_PI * clv_date_fraction_passed(days, (clv_date_part)part);
    to[n++] = (float)sin(angle);
    to[n++] = (float)cos(angle);
  }
  return n;
}

static void encode_numbers(const clv_cell_table *t, const encoded_column *e, size_t first, size_t n,
                           float *to, size_t width) {
  for (size_t i = 0; i < n; i++) {
    float *row = to + i * width;
    double number = e->from->numbers[clv_table_row(t, first + i)];
    row[0] = (float)encode_number(e->c, number);
    size_t n_written = 1 + encode_date_parts(e->c, number, row + 1);
    if (e->c->has_indicator) row[n_written] = isnan(number);
  }
}

/* Returns true if missing texts of a column are replaced as they were in training. */
static bool has_same_text(const clv_column_options *o, const clv_learnt_column *c) {
  if (c->use != CLV_COLUMN_TEXT || c->missing != CLV_MISSING_VALUE) return true;
  return strcmp(o->value ? o->value : "", c->values[0]) == 0;
}

/* Finds the table's column that a learnt column was learnt from. CLV_DATA_LOSS: the session has
 * changed. */
static clv_code find_source_column(const clv_cell_table *t, const clv_learnt_column *c,
                                   const clv_table_column **ret, clv_err *err) {
  for (size_t i = 0; i < t->n_columns; i++) {
    const clv_column_options *o = &t->columns[i].o;
    if (strcmp(o->name, c->name) != 0) continue;
    *ret = &t->columns[i];
    if (o->use == c->use && o->scale == c->scale && o->missing == c->missing &&
        o->has_indicator == c->has_indicator && o->parts == c->parts && has_same_text(o, c))
      return CLV_OK;
  }
  return clv_fail(err, CLV_DATA_LOSS,
                  "column '%.80s' is not read as the run's training read it: give it in "
                  "data.table.columns what it had then, or train again with --fresh",
                  c->name);
}

static clv_code check_same_inputs(const clv_cell_table *t, const clv_learnt *l, clv_err *err) {
  size_t n = 0;
  for (size_t i = 0; i < t->n_columns; i++) {
    if (!clv_column_is_input(t->columns[i].o.use)) continue;
    if (n == l->n_columns)
      return clv_fail(err, CLV_DATA_LOSS, "column '%.80s' was no input when the run was trained",
                      t->columns[i].o.name);
    n++;
  }
  return CLV_OK;
}

static clv_code make_table_encoder(const clv_cell_table *t, const clv_learnt *l, table_encoder *e,
                                   clv_err *err) {
  CLV_TRY(check_same_inputs(t, l, err));
  CLV_TRY(clv_alloc(l->n_columns, sizeof *e->columns, &e->columns, err));
  for (; e->n < l->n_columns; e->n++) {
    encoded_column *to = &e->columns[e->n];
    *to = (encoded_column){.c = &l->columns[e->n], .at = e->width};
    CLV_TRY(find_source_column(t, to->c, &to->from, err));
    e->width += clv_learnt_column_element_count(to->c);
    if (clv_column_has_words(to->c->use))
      CLV_TRY(
          clv_table_map_codes(to->from, to->c->values, to->c->n_values, &to->element_of_code, err));
  }
  return CLV_OK;
}

/* Arguments for encoding all records into one tensor: the columns that are neither indexes nor
 * texts, or one index column. */
typedef struct encoding_task {
  const clv_cell_table *t;
  const table_encoder *e;
  const encoded_column *index_column; /* NULL: all columns but indexes and texts */
  clv_dtype dtype;
  clv_shape shape;
  size_t row_bytes;
} encoding_task;

/* Encodes n records from record `first` on. */
static void encode_records(const encoding_task *g, size_t first, size_t n, void *to) {
  if (g->index_column) {
    encode_indexes(g->t, g->index_column, first, n, to);
    return;
  }
  float *values = memset(to, 0, n * g->row_bytes);
  for (size_t i = 0; i < g->e->n; i++) {
    const encoded_column *c = &g->e->columns[i];
    if (!clv_learnt_column_element_count(c->c)) continue;
    (c->element_of_code ? encode_words : encode_numbers)(g->t, c, first, n, values + c->at,
                                                         g->e->width);
  }
}

static clv_code encode_in_memory(const encoding_task *g, clv_tensor **ret, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  CLV_TRY(clv_tensor_new(g->dtype, &g->shape, &x, err));
  encode_records(g, 0, g->t->count, x->data);
  *ret = clv_steal(&x);
  return CLV_OK;
}

/* Fails if a number is missing in a column that refuses missing values. The reader of the table has
 * checked this, but the cache's file of the column may have been changed since. */
static clv_code check_no_refused_missing(const clv_cell_table *t, const table_encoder *e,
                                         size_t first, size_t n, clv_err *err) {
  for (size_t k = 0; k < e->n; k++) {
    const encoded_column *c = &e->columns[k];
    if (!c->from->has_numbers || c->c->missing != CLV_MISSING_REFUSE) continue;
    for (size_t i = first; i < first + n; i++)
      if (isnan(c->from->numbers[clv_table_row(t, i)]))
        return clv_fail(err, CLV_DATA_LOSS,
                        "%.300s: the cells of column '%.80s' in this cache are damaged, as in "
                        "record %zu: delete the folder, and it is made again",
                        t->folder, c->c->name, i);
  }
  return CLV_OK;
}

/* Encodes the records block by block into a file. */
static clv_code encode_on_disk(const encoding_task *g, clv_tensor **ret, clv_err *err) {
  CLV_AUTO(clv_spill_file_freep) clv_spill_file *s = NULL;
  CLV_AUTO(clv_freep) char *block = NULL;
  const clv_cell_table *t = g->t;
  size_t bytes = t->block_bytes ? t->block_bytes : BLOCK_BYTES;
  size_t max_n = CLV_MAX(bytes / g->row_bytes, (size_t)1);
  CLV_TRY(clv_alloc(max_n, g->row_bytes, &block, err));
  CLV_TRY(clv_spill_file_new(t->folder, &s, err));
  for (size_t at = 0, n; at < t->count; at += n) {
    n = CLV_MIN(max_n, t->count - at);
    CLV_TRY(check_no_refused_missing(t, g->e, at, n, err));
    encode_records(g, at, n, block);
    CLV_TRY(clv_spill_file_append(s, block, n * g->row_bytes, err));
    if (clv_ms_since_interrupt()) return clv_fail(err, CLV_CANCELLED, "interrupted");
  }
  return clv_spill_file_map(s, g->dtype, &g->shape, ret, err);
}

static clv_code encode_table(const encoding_task *g, clv_tensor **ret, clv_err *err) {
  return (g->t->folder ? encode_on_disk : encode_in_memory)(g, ret, err);
}

clv_code clv_table_encode(const clv_cell_table *t, const clv_learnt *l, clv_tensor **ret,
                          clv_err *err) {
  CLV_AUTO(table_encoder_done) table_encoder e = {.n = 0};
  CLV_TRY(make_table_encoder(t, l, &e, err));
  const encoding_task g = {.t = t,
                           .e = &e,
                           .dtype = CLV_F32,
                           .shape = CLV_SHAPE((int64_t)t->count, (int64_t)e.width),
                           .row_bytes = e.width * sizeof(float)};
  *ret = NULL;
  return e.width ? encode_table(&g, ret, err) : CLV_OK;
}

clv_code clv_table_encode_index(const clv_cell_table *t, const clv_learnt *l, size_t column,
                                clv_tensor **ret, clv_err *err) {
  CLV_AUTO(table_encoder_done) table_encoder e = {.n = 0};
  CLV_TRY(make_table_encoder(t, l, &e, err));
  const encoding_task g = {.t = t,
                           .e = &e,
                           .index_column = &e.columns[column],
                           .dtype = CLV_I64,
                           .shape = CLV_SHAPE((int64_t)t->count),
                           .row_bytes = sizeof(int64_t)};
  return encode_table(&g, ret, err);
}

clv_code clv_table_class_labels(const clv_cell_table *t, const clv_learnt *l, const char *path,
                                clv_tensor **ret, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *y = NULL;
  CLV_AUTO(clv_freep) size_t *classes = NULL;
  CLV_TRY(clv_table_map_codes(t->target, l->classes, l->n_classes, &classes, err));
  CLV_TRY(clv_tensor_new(CLV_I64, &CLV_SHAPE((int64_t)t->count), &y, err));
  int64_t *labels = y->data;
  for (size_t i = 0; i < t->count; i++) {
    labels[i] = (int64_t)classes[t->target->codes[clv_table_row(t, i)]];
    if ((size_t)labels[i] == l->n_classes)
      return clv_fail(err, CLV_INVALID,
                      "%.200s: record %zu has a class that no record of data.train has", path, i);
  }
  *ret = clv_steal(&y);
  return CLV_OK;
}
