/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens datasets of formats with one array per file, such as npy. A dataset has a file of records,
 * or one file per named input, and may have a file of labels and one of groups.
 *
 */
#include <stdio.h>
#include <string.h>

#include "master/data/dataset_int.h"

/* ---- inputs of records ----------------------------------------------------------------------- */

static void set_x_shape(clv_dataset *ds, bool flattens, bool keeps_rank_3) {
  clv_shape shape = ds->inputs->shape;
  if (shape.rank == 1) {
    shape = CLV_SHAPE(shape.dim[0], 1);
  } else if (shape.rank == 3 && !keeps_rank_3) {
    shape = CLV_SHAPE(shape.dim[0], 1, shape.dim[1], shape.dim[2]);
  }
  ds->channels = (size_t)shape.dim[1];
  ds->values_per_channel = ds->elements_per_record / ds->channels;
  ds->x_shape = flattens ? CLV_SHAPE(shape.dim[0], (int64_t)ds->elements_per_record) : shape;
}

static clv_code check_tokens(const clv_tensor *t, const clv_dataset_options *o, clv_err *err) {
  if (t->dtype == CLV_F32 || t->dtype == CLV_F64)
    return clv_fail(err, CLV_INVALID,
                    "%s: the first layer is an embedding, which takes integers; found %s",
                    o->inputs_path, clv_dtype_name(t->dtype));
  if (o->n_mean || o->n_std || o->scale != 0)
    return clv_fail(err, CLV_PRECONDITION,
                    "%s: the first layer is an embedding, and tokens are not normalised: remove "
                    "data.scale and data.normalize",
                    o->inputs_path);
  return CLV_OK;
}

clv_code clv_arrays_set_records(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  const clv_tensor *t = ds->inputs;
  char text[160];
  if (t->shape.rank == 0 || t->n == 0)
    return clv_fail(err, CLV_INVALID, "%s: no records: its shape is %s; name a file that has some",
                    o->inputs_path, clv_shape_format(&t->shape, text, sizeof text));
  if (t->shape.dim[0] > UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %lld records, the limit is %u", o->inputs_path,
                    (long long)t->shape.dim[0], UINT32_MAX);
  ds->count = (size_t)t->shape.dim[0];
  ds->elements_per_record = t->n / ds->count;
  set_x_shape(ds, o->flattens_records, o->keeps_rank_3);
  ds->adds_channel = t->shape.rank == 3 && !o->keeps_rank_3 && !o->flattens_records;
  ds->has_tokens = o->holds_tokens;
  return o->holds_tokens ? check_tokens(t, o, err)
                         : clv_dataset_set_normalisation(ds, o, t->dtype == CLV_U8, err);
}

static clv_code open_inputs(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  if (o->n_named_inputs) return clv_inputs_open(ds, o, err);
  if (!o->inputs_path) return clv_fail(err, CLV_INVALID, "the dataset names no inputs file");
  CLV_TRY(clv_array_read(o->inputs_path, o->format, o->max_bytes, &ds->inputs, &ds->is_bool, err));
  return clv_arrays_set_records(ds, o, err);
}

/* ---- labels of records ----------------------------------------------------------------------- */

double clv_tensor_element_as_double(const clv_tensor *t, size_t i) {
  switch (t->dtype) {
    case CLV_U8:
      return ((const uint8_t *)t->data)[i];
    case CLV_I32:
      return ((const int32_t *)t->data)[i];
    case CLV_I64:
      return (double)((const int64_t *)t->data)[i];
    case CLV_F32:
      return (double)((const float *)t->data)[i];
    default:
      return ((const double *)t->data)[i];
  }
}

static clv_code check_class_label(clv_dataset *ds, const clv_dataset_options *o, int64_t v,
                                  size_t i, clv_err *err) {
  size_t labels_per_record = ds->labels->n / (size_t)ds->y_shape.dim[0];
  if (v == (o->ignored_label ? *o->ignored_label : CLV_LABEL_IGNORED) && ds->y_shape.rank > 1)
    return CLV_OK;
  if (v < 0 || (o->n_classes && (uint64_t)v >= o->n_classes))
    return clv_fail(err, CLV_INVALID, "%s: label %lld of record %zu is no class: expected %s%lld%s",
                    o->labels_path, (long long)v, i / labels_per_record, o->n_classes ? "0.." : "",
                    o->n_classes ? (long long)o->n_classes - 1 : 0LL,
                    o->n_classes ? "" : " or more (loss.ignore_index is for labels of places)");
  if (v > ds->label_max) ds->label_max_record = i / labels_per_record;
  ds->label_min = CLV_MIN(v, ds->label_min);
  ds->label_max = CLV_MAX(v, ds->label_max);
  return CLV_OK;
}

static clv_code set_class_labels(clv_dataset *ds, const clv_dataset_options *o,
                                 const clv_tensor *raw_labels, clv_err *err) {
  char text[160];
  if (raw_labels->dtype == CLV_F32 || raw_labels->dtype == CLV_F64)
    return clv_fail(err, CLV_INVALID,
                    "%s: class labels must be integers, found %s (targets that are floats go with "
                    "the losses mse and bce)",
                    o->labels_path, clv_dtype_name(raw_labels->dtype));
  bool has_label_per_position = raw_labels->n != (size_t)raw_labels->shape.dim[0];
  if (has_label_per_position && !o->n_named_inputs && !o->holds_tokens)
    return clv_fail(err, CLV_INVALID, "%s: class labels must have the shape [%zu], found %s",
                    o->labels_path, ds->count,
                    clv_shape_format(&raw_labels->shape, text, sizeof text));
  ds->y_shape = has_label_per_position ? raw_labels->shape : CLV_SHAPE((int64_t)raw_labels->n);
  ds->label_min = INT64_MAX;
  ds->label_max = INT64_MIN;
  CLV_TRY(clv_tensor_new(CLV_I64, &ds->y_shape, &ds->labels, err));
  int64_t *out = ds->labels->data;
  for (size_t i = 0; i < raw_labels->n; i++) {
    out[i] = clv_tensor_element_as_integer(raw_labels, i);
    CLV_TRY(check_class_label(ds, o, out[i], i, err));
  }
  if (ds->label_min <= ds->label_max) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: all labels are %lld, the label that is ignored",
                  o->labels_path,
                  (long long)(o->ignored_label ? *o->ignored_label : CLV_LABEL_IGNORED));
}

static clv_code set_float_labels(clv_dataset *ds, const clv_tensor *raw_labels, clv_err *err) {
  ds->y_shape =
      raw_labels->shape.rank == 1 ? CLV_SHAPE(raw_labels->shape.dim[0], 1) : raw_labels->shape;
  CLV_TRY(clv_tensor_new(CLV_F32, &ds->y_shape, &ds->labels, err));
  float *out = ds->labels->data;
  for (size_t i = 0; i < raw_labels->n; i++)
    out[i] = (float)clv_tensor_element_as_double(raw_labels, i);
  return CLV_OK;
}

static clv_code open_labels(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *raw_labels = NULL;
  CLV_TRY(clv_array_read(o->labels_path, o->format, o->max_bytes, &raw_labels, NULL, err));
  size_t n_label_records = raw_labels->shape.rank ? (size_t)raw_labels->shape.dim[0] : 0;
  if (n_label_records != ds->count)
    return clv_fail(err, CLV_INVALID,
                    "%s holds %zu records and %s holds %zu labels: expected the "
                    "same number",
                    o->inputs_path, ds->count, o->labels_path, n_label_records);
  return o->labels == CLV_LABEL_CLASS ? set_class_labels(ds, o, raw_labels, err)
                                      : set_float_labels(ds, raw_labels, err);
}

/* ---- opening a dataset ----------------------------------------------------------------------- */

static clv_code open_arrays(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  CLV_TRY(open_inputs(ds, o, err));
  return o->labels_path ? open_labels(ds, o, err) : CLV_OK;
}

/* Reads the groups from a file with one integer per record. */
static clv_code group_by_file(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  char text[160];
  CLV_TRY(clv_array_read(o->group_path, o->format, o->max_bytes, &t, NULL, err));
  if (t->dtype == CLV_F32 || t->dtype == CLV_F64)
    return clv_fail(err, CLV_INVALID, "%s: groups are whole numbers, found %s", o->group_path,
                    clv_dtype_name(t->dtype));
  if (t->n != ds->count)
    return clv_fail(err, CLV_INVALID, "%s: a number for each of %zu records is expected, found %s",
                    o->group_path, ds->count, clv_shape_format(&t->shape, text, sizeof text));
  for (size_t i = 0; i < ds->count; i++) ds->groups[i] = clv_tensor_element_as_integer(t, i);
  return CLV_OK;
}

const clv_format_reader clv_reader_arrays = {.open = open_arrays, .group = group_by_file};
