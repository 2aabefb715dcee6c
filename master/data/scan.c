/* SPDX-License-Identifier: Apache-2.0
 *
 * Scans the records before a run, because one NaN spoils every step that uses it. Integers are
 * finite, so only tensors of f32 and f64 are checked. clv_dataset_scan is the main function.
 *
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"

enum {
  PROGRESS_STRIDE_BYTES = 4 << 20, /* bytes between two calls of `progress` */
  IMAGES_PER_BATCH = 64,           /* images decoded together */
};

void clv_scan_result_done(clv_scan_result *s) {
  if (!s) return;
  clv_subset_done(&s->not_finite_records);
  clv_subset_done(&s->unreadable_images);
  clv_broken_records_done(&s->unreadable_errors);
  *s = (clv_scan_result){0};
}

/* ---- finding values that are not finite ------------------------------------------------------ */

/* This loop has no branch, so that the compiler vectorises it. */
#define RETURN_IF_ALL_FINITE(type)                                                    \
  do {                                                                                \
    const type *v = values;                                                           \
    int bad = 0;                                                                      \
    for (size_t i = 0; i < n; i++) bad |= !(__builtin_fabsf((float)v[i]) <= FLT_MAX); \
    return !bad;                                                                      \
  } while (0)

static bool are_f32_finite(const void *values, size_t n) { RETURN_IF_ALL_FINITE(float); }
static bool are_f64_finite(const void *values, size_t n) { RETURN_IF_ALL_FINITE(double); }

static bool are_values_finite(const clv_tensor *t, const void *values, size_t n) {
  if (t->dtype == CLV_F32) return are_f32_finite(values, n);
  return t->dtype != CLV_F64 || are_f64_finite(values, n);
}

static size_t values_per_record(const clv_tensor *t) { return t->n / (size_t)t->shape.dim[0]; }

static bool is_record_finite(const clv_tensor *t, size_t record) {
  size_t n = values_per_record(t);
  return are_values_finite(t, (const char *)t->data + record * n * clv_dtype_size(t->dtype), n);
}

/* Returns true if element `at` is a label that is missing, where the column of its target permits
 * that. */
static bool is_missing_label(const clv_dataset *ds, const clv_tensor *t, size_t at) {
  return t == ds->labels && ds->n_targets && isnan(((const float *)t->data)[at]) &&
         ds->table->targets[at % ds->n_targets]->o.missing == CLV_MISSING_MASK;
}

/* Returns the index of the first element of a record that is neither finite nor a missing label;
 * the index of the first element after the record: there is none. */
static size_t find_not_finite(const clv_dataset *ds, const clv_tensor *t, size_t record) {
  size_t row = values_per_record(t), size = clv_dtype_size(t->dtype), i = record * row;
  if (is_record_finite(t, record)) return i + row;
  while (i < (record + 1) * row &&
         (are_values_finite(t, (const char *)t->data + i * size, 1) || is_missing_label(ds, t, i)))
    i++;
  return i;
}

static double get_float(const clv_tensor *t, size_t i) {
  return t->dtype == CLV_F32 ? (double)((const float *)t->data)[i] : ((const double *)t->data)[i];
}

/* Formats the indexes of an element, such as " (at [17, 0, 6, 5])". The extents of a tensor
 * multiply to a size_t, so the indexes have at most 28 digits, and the text has less than 60
 * characters. */
static void format_indexes(const clv_tensor *t, size_t at, char *text, size_t len) {
  size_t text_len = (size_t)snprintf(text, len, " (at ["), n_elements = t->n;
  for (int i = 0; i < t->shape.rank; i++) {
    n_elements /= (size_t)t->shape.dim[i];
    text_len +=
        (size_t)snprintf(text + text_len, len - text_len, "%s%zu", i ? ", " : "", at / n_elements);
    at %= n_elements;
  }
  snprintf(text + text_len, len - text_len, "])");
}

static const char *find_path(const clv_dataset *ds, const clv_tensor *t) {
  for (size_t k = 0; k < ds->n_named_inputs; k++)
    if (t == ds->named_inputs[k].data) return ds->named_inputs[k].path;
  return t == ds->labels ? ds->labels_path : ds->inputs_path;
}

static void describe_value(const clv_dataset *ds, const clv_tensor *t, size_t at,
                           char text[CLV_SCAN_TEXT_BYTES]) {
  char index_text[64] = "";
  size_t row = values_per_record(t), number = clv_dataset_record_number(ds, at / row);
  bool label = t == ds->labels;
  double value = get_float(t, at);
  if (isnan(value)) value = fabs(value); /* printf would print the sign of a NaN */
  if (t->shape.rank > 2) format_indexes(t, number * row + at % row, index_text, sizeof index_text);
  snprintf(text, CLV_SCAN_TEXT_BYTES, "%.150s: %srecord %zu, column %zu%s is %g%s",
           find_path(ds, t), label ? "label of " : "", number, at % row, index_text, value,
           isfinite(value) && !isfinite((float)value) ? ", too large for f32" : "");
}

/* ---- scanning the records -------------------------------------------------------------------- */

typedef struct scan_state {
  const clv_dataset *ds;
  const clv_scan_options *o;
  clv_scan_result *result;
  size_t n, cap;           /* n: number of records to check; cap: capacity of the list */
  size_t unreported_bytes; /* bytes since the last call of `progress` */
} scan_state;

static bool has_floats(const clv_tensor *t) {
  return t && (t->dtype == CLV_F32 || t->dtype == CLV_F64);
}

/* Returns the number of tensors to scan: all inputs and the labels. */
static size_t count_tensors(const clv_dataset *ds) { return clv_dataset_input_count(ds) + 1; }

static const clv_tensor *get_tensor(const clv_dataset *ds, size_t i) {
  if (i == clv_dataset_input_count(ds)) return ds->labels;
  return ds->named_inputs ? ds->named_inputs[i].data : ds->inputs;
}

static void report_progress(scan_state *s, size_t bytes) {
  s->unreported_bytes += bytes;
  if (s->result->n_checked < s->n && s->unreported_bytes < PROGRESS_STRIDE_BYTES) return;
  s->unreported_bytes = 0;
  if (s->o->progress) s->o->progress(s->o->user, s->result->n_checked, s->n);
}

static uint32_t get_record(const scan_state *s, size_t i) {
  return (uint32_t)(i * clv_dataset_count(s->ds) / s->n);
}

static clv_code add_record(scan_state *s, clv_subset *list, uint32_t record, clv_err *err) {
  if (list->n == s->cap) {
    size_t cap = s->cap ? 2 * s->cap : 64;
    uint32_t *new_list = realloc(list->index, cap * sizeof *new_list);
    if (!new_list) return clv_fail(err, CLV_EXHAUSTED, "no memory for a list of %zu records", cap);
    list->index = new_list;
    s->cap = cap;
  }
  list->index[list->n++] = record;
  return CLV_OK;
}

static clv_code scan_record(scan_state *s, uint32_t record, clv_err *err) {
  for (size_t i = 0; i < count_tensors(s->ds); i++) {
    const clv_tensor *t = get_tensor(s->ds, i);
    if (!has_floats(t)) continue;
    report_progress(s, values_per_record(t) * clv_dtype_size(t->dtype));
    size_t at = find_not_finite(s->ds, t, record);
    if (at == (record + (size_t)1) * values_per_record(t)) continue;
    if (!s->result->not_finite_records.n) describe_value(s->ds, t, at, s->result->first_not_finite);
    return add_record(s, &s->result->not_finite_records, record, err);
  }
  return CLV_OK;
}

static clv_code scan_values(scan_state *s, clv_err *err) {
  bool has_any_floats = false;
  for (size_t i = 0; i < count_tensors(s->ds); i++)
    has_any_floats = has_any_floats || has_floats(get_tensor(s->ds, i));
  for (size_t i = 0; has_any_floats && i < s->n; i++) {
    CLV_TRY(scan_record(s, get_record(s, i), err));
    s->result->n_checked = i + 1;
  }
  s->result->n_checked = s->n;
  report_progress(s, 0);
  return CLV_OK;
}

/* ---- scanning images ------------------------------------------------------------------------- */

/* Decodes images one by one, to find which ones cannot be read. */
static clv_code scan_images_singly(scan_state *s, const uint32_t *record_indexes, size_t n,
                                   clv_tensor *x, clv_err *err) {
  clv_err reason;
  for (size_t i = 0; i < n; i++) {
    clv_code code =
        clv_batch_fill_inputs(s->ds, s->o->draw, record_indexes + i, 1, &x, NULL, &reason);
    if (code == CLV_OK) continue;
    if (code != CLV_DATA_LOSS) return clv_fail(err, code, "%s", reason.text);
    clv_broken_records_add(&s->result->unreadable_errors, &reason);
    CLV_TRY(add_record(s, &s->result->unreadable_images, record_indexes[i], err));
  }
  return CLV_OK;
}

static clv_code scan_image_batch(scan_state *s, const uint32_t *record_indexes, size_t n,
                                 clv_tensor *x, clv_err *err) {
  clv_code code = clv_batch_fill_inputs(s->ds, s->o->draw, record_indexes, n, &x, NULL, err);
  if (code != CLV_DATA_LOSS || !clv_images_can_skip_broken(s->ds->images)) return code;
  return scan_images_singly(s, record_indexes, n, x, err);
}

static clv_code scan_images(scan_state *s, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  uint32_t record_indexes[IMAGES_PER_BATCH];
  clv_shape shape = clv_dataset_x_shape(s->ds, CLV_MIN(s->n, (size_t)IMAGES_PER_BATCH));
  CLV_TRY(clv_tensor_new(CLV_F32, &shape, &x, err));
  for (size_t n_done = 0; n_done < s->n; report_progress(s, PROGRESS_STRIDE_BYTES)) {
    size_t n = CLV_MIN(s->n - n_done, (size_t)IMAGES_PER_BATCH);
    for (size_t i = 0; i < n; i++) record_indexes[i] = get_record(s, n_done + i);
    CLV_TRY(scan_image_batch(s, record_indexes, n, x, err));
    s->result->n_checked = n_done += n;
  }
  return CLV_OK;
}

clv_code clv_dataset_scan(const clv_dataset *ds, const clv_scan_options *options,
                          clv_scan_result *ret, clv_err *err) {
  CLV_AUTO(clv_scan_result_done) clv_scan_result result = {0};
  size_t n_records = clv_dataset_count(ds);
  scan_state s = {.ds = ds, .o = options, .result = &result};
  s.n = options->max_records ? CLV_MIN(options->max_records, n_records) : n_records;
  if (!ds->images)
    CLV_TRY(scan_values(&s, err));
  else if (options->decodes_images)
    CLV_TRY(scan_images(&s, err));
  else
    CLV_TRY(clv_images_probe_error(ds->images, err));
  *ret = result;
  result = (clv_scan_result){0};
  return CLV_OK;
}

/* ---- ranges of labels ------------------------------------------------------------------------ */

bool clv_dataset_has_labels_in_range(const clv_dataset *ds, double low, double high,
                                     char first_outside[CLV_SCAN_TEXT_BYTES]) {
  const clv_tensor *t = ds->labels;
  if (!has_floats(t)) return true;
  for (size_t i = 0; i < ds->count * values_per_record(t); i++)
    if (!(get_float(t, i) >= low && get_float(t, i) <= high)) {
      describe_value(ds, t, i, first_outside);
      return false;
    }
  return true;
}
