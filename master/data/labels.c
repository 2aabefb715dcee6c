/* SPDX-License-Identifier: Apache-2.0
 *
 * Access to the labels of a dataset.
 */
#include <string.h>

#include "master/data/dataset_int.h"

/* Returns the number of labels of a record. */
static size_t count_labels_per_record(const clv_dataset *ds) {
  size_t n_labels = 1;
  for (int i = 1; i < ds->y_shape.rank; i++) n_labels *= (size_t)ds->y_shape.dim[i];
  return n_labels;
}

static double get_label(const clv_dataset *ds, size_t at) {
  return ds->labels->dtype == CLV_F32 ? (double)((const float *)ds->labels->data)[at]
                                      : (double)clv_tensor_element_as_integer(ds->labels, at);
}

bool clv_dataset_label(const clv_dataset *ds, size_t record, double *ret) {
  if (!ds->labels || record >= ds->count || count_labels_per_record(ds) != 1) return false;
  *ret = get_label(ds, record);
  return true;
}

bool clv_dataset_label_hash(const clv_dataset *ds, size_t record, double *ret) {
  if (clv_dataset_label(ds, record, ret)) return true;
  if (!ds->labels || record >= ds->count) return false;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t n = count_labels_per_record(ds), i = 0; i < n; i++) {
    double value = get_label(ds, record * n + i);
    uint64_t value_bits;
    memcpy(&value_bits, &value, sizeof value_bits);
    hash = (hash ^ value_bits) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  *ret = (double)(hash >> 11); /* 53 bits of the hash, which a double holds exactly */
  return true;
}

void clv_dataset_set_labels(clv_dataset *ds, clv_tensor **labels, size_t n_classes) {
  ds->labels = clv_steal(labels);
  ds->y_shape = ds->labels->shape;
  ds->label_max = (int64_t)n_classes - 1;
}
