/* SPDX-License-Identifier: Apache-2.0
 *
 * Drops records of a dataset. The kept records move to the front of its tensors, so that code that
 * counts records, such as the cache of a front, sees only the kept records.
 */
#include <string.h>

#include "master/data/dataset_int.h"

size_t clv_dataset_record_number(const clv_dataset *ds, size_t record) {
  return ds->record_numbers ? ds->record_numbers[record] : record;
}

size_t clv_dataset_other_set_count(const clv_dataset *ds) { return ds->n_records_of_other_sets; }

static void keep_tensor_rows(clv_tensor *t, const clv_subset *kept_records) {
  if (!t) return;
  size_t row = t->bytes / (size_t)t->shape.dim[0];
  char *at = t->data;
  for (size_t i = 0; i < kept_records->n; i++)
    memmove(at + i * row, at + kept_records->index[i] * row, row);
}

/* Finds the smallest and largest class label of the kept records, and the first record with the
 * largest. */
static void update_label_range(clv_dataset *ds) {
  size_t labels_per_record = ds->labels->n / (size_t)ds->labels->shape.dim[0];
  const int64_t *y = ds->labels->data;
  bool has_label = false;
  for (size_t i = 0; i < ds->count * labels_per_record; i++) {
    if (y[i] < 0) continue;
    if (!has_label || y[i] > ds->label_max) ds->label_max_record = i / labels_per_record;
    ds->label_max = has_label ? CLV_MAX(ds->label_max, y[i]) : y[i];
    ds->label_min = has_label ? CLV_MIN(ds->label_min, y[i]) : y[i];
    has_label = true;
  }
}

clv_code clv_dataset_keep_records(clv_dataset *ds, const clv_subset *kept_records, clv_err *err) {
  if (!ds->record_numbers) {
    CLV_TRY(clv_alloc(ds->count, sizeof *ds->record_numbers, &ds->record_numbers, err));
    for (size_t i = 0; i < ds->count; i++) ds->record_numbers[i] = (uint32_t)i;
  }
  keep_tensor_rows(ds->inputs, kept_records);
  keep_tensor_rows(ds->labels, kept_records);
  for (size_t k = 0; k < ds->n_named_inputs; k++)
    keep_tensor_rows(ds->named_inputs[k].data, kept_records);
  for (size_t i = 0; i < kept_records->n; i++) {
    ds->record_numbers[i] = ds->record_numbers[kept_records->index[i]];
    if (ds->groups) ds->groups[i] = ds->groups[kept_records->index[i]];
  }
  if (ds->images) clv_images_keep_records(ds->images, kept_records);
  if (ds->table) CLV_TRY(clv_table_keep_records(ds->table, kept_records, err));
  ds->count = kept_records->n;
  if (ds->labels && ds->label_kind == CLV_LABEL_CLASS && ds->labels_path) update_label_range(ds);
  return CLV_OK;
}
