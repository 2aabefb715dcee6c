/* SPDX-License-Identifier: Apache-2.0
 *
 * Records with several named inputs, each with its own tensor, such as the tokens of a page and
 * their boxes. Inputs keep the types of their files until a batch is made.
 *
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"
#include "master/data/reader_int.h"

void clv_inputs_free(clv_dataset *ds) {
  if (!ds) return;
  for (size_t k = 0; k < ds->n_named_inputs; k++) {
    free(ds->named_inputs[k].name);
    free(ds->named_inputs[k].path);
    clv_tensor_unref(ds->named_inputs[k].data);
  }
  free(ds->named_inputs);
}

clv_shape clv_dataset_x_shape(const clv_dataset *ds, size_t n) {
  if (ds->named_inputs) return clv_dataset_input(ds, 0, n).shape;
  clv_shape shape = ds->x_shape;
  shape.dim[0] = (int64_t)n;
  return shape;
}

clv_dtype clv_dataset_x_dtype(const clv_dataset *ds) {
  if (ds->named_inputs) return ds->named_inputs[0].dtype;
  return ds->has_tokens ? CLV_I64 : CLV_F32;
}

size_t clv_dataset_input_count(const clv_dataset *ds) {
  return ds->named_inputs ? ds->n_named_inputs : 1;
}

clv_data_input clv_dataset_input(const clv_dataset *ds, size_t k, size_t n) {
  if (!ds->named_inputs)
    return (clv_data_input){"input", clv_dataset_x_dtype(ds), clv_dataset_x_shape(ds, n)};
  const clv_named_input *in = &ds->named_inputs[k];
  clv_data_input ret = {.name = in->name, .dtype = in->dtype, .shape = in->data->shape};
  ret.shape.dim[0] = (int64_t)n;
  return ret;
}

clv_code clv_inputs_add(clv_dataset *ds, const char *name, const char *path, clv_tensor **data,
                        clv_err *err) {
  const clv_tensor *t = *data;
  clv_named_input *in = &ds->named_inputs[ds->n_named_inputs];
  if (t->shape.rank == 0 || t->n == 0)
    return clv_fail(err, CLV_INVALID, "%s: no records for the input '%s'", path, name);
  if (t->shape.dim[0] > UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %lld records, the limit is %u", path,
                    (long long)t->shape.dim[0], UINT32_MAX);
  if (ds->n_named_inputs && t->shape.dim[0] != ds->named_inputs[0].data->shape.dim[0])
    return clv_fail(err, CLV_INVALID,
                    "%s holds %lld records and %s holds %lld: inputs need the same number",
                    ds->named_inputs[0].path, (long long)ds->named_inputs[0].data->shape.dim[0],
                    path, (long long)t->shape.dim[0]);
  *in = (clv_named_input){.dtype = CLV_F32, .elements_per_record = t->n / (size_t)t->shape.dim[0]};
  if (t->dtype == CLV_I32 || t->dtype == CLV_I64) in->dtype = CLV_I64;
  in->data = clv_steal(data);
  ds->n_named_inputs++;
  CLV_TRY(clv_strdup(name, &in->name, err));
  return clv_strdup(path, &in->path, err);
}

static clv_code read_input(clv_dataset *ds, const clv_dataset_options *o, size_t k, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *data = NULL;
  bool is_bool;
  for (size_t i = 0; i < k; i++)
    if (strcmp(o->names[i], o->names[k]) == 0)
      return clv_fail(err, CLV_INVALID, "two inputs have the name '%s'", o->names[k]);
  CLV_TRY(clv_array_read(o->named_paths[k], o->format, o->max_bytes, &data, &is_bool, err));
  CLV_TRY(clv_inputs_add(ds, o->names[k], o->named_paths[k], &data, err));
  ds->named_inputs[k].is_bool = is_bool;
  return CLV_OK;
}

clv_code clv_inputs_open(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  if (o->n_named_inputs > CLV_DATA_MAX_INPUTS)
    return clv_fail(err, CLV_INVALID, "%zu inputs: at most %d are possible", o->n_named_inputs,
                    CLV_DATA_MAX_INPUTS);
  if (o->holds_tokens || o->flattens_records || o->n_mean || o->n_std || o->scale != 0)
    return clv_fail(err, CLV_INVALID,
                    "inputs with names are taken as they are: remove flatten, scale, mean and std");
  CLV_TRY(clv_alloc(o->n_named_inputs, sizeof *ds->named_inputs, &ds->named_inputs, err));
  for (size_t k = 0; k < o->n_named_inputs; k++) CLV_TRY(read_input(ds, o, k, err));
  ds->count = (size_t)ds->named_inputs[0].data->shape.dim[0];
  return CLV_OK;
}

clv_code clv_inputs_select(clv_dataset *ds, const clv_dataset_options *o, const char *const *names,
                           clv_tensor **const *tensors, size_t n, clv_err *err) {
  CLV_TRY(clv_alloc(o->n_named_inputs, sizeof *ds->named_inputs, &ds->named_inputs, err));
  for (size_t k = 0; k < o->n_named_inputs; k++) {
    size_t i = 0;
    while (i < n && (!*tensors[i] || strcmp(names[i], o->names[k]) != 0)) i++;
    if (i == n)
      return clv_fail(err, CLV_INVALID,
                      "the records have no input '%s', or it is named twice: they have %s, %s%s",
                      o->names[k], names[0], names[1], n > 2 ? ", boxes" : "");
    CLV_TRY(clv_inputs_add(ds, o->names[k], o->inputs_path, tensors[i], err));
  }
  ds->count = (size_t)ds->named_inputs[0].data->shape.dim[0];
  return CLV_OK;
}

/* ---- filling batches ------------------------------------------------------------------------- */

int64_t clv_tensor_element_as_integer(const clv_tensor *t, size_t i) {
  switch (t->dtype) {
    case CLV_U8:
      return ((const uint8_t *)t->data)[i];
    case CLV_I32:
      return ((const int32_t *)t->data)[i];
    default:
      return ((const int64_t *)t->data)[i];
  }
}

static void copy_integers(const clv_named_input *in, size_t from, int64_t *dst) {
  for (size_t i = 0; i < in->elements_per_record; i++)
    dst[i] = clv_tensor_element_as_integer(in->data, from + i);
}

static void convert_bytes(const clv_named_input *in, size_t from, float *dst) {
  const uint8_t *src = (const uint8_t *)in->data->data + from;
  float max_value = in->is_bool ? 1.0f : 255.0f;
  for (size_t i = 0; i < in->elements_per_record; i++) dst[i] = (float)src[i] / max_value;
}

static void convert_doubles(const clv_named_input *in, size_t from, float *dst) {
  const double *src = (const double *)in->data->data + from;
  for (size_t i = 0; i < in->elements_per_record; i++) dst[i] = (float)src[i];
}

void clv_inputs_fill(const clv_dataset *ds, size_t k, size_t record, clv_tensor *x, size_t i) {
  const clv_named_input *in = &ds->named_inputs[k];
  size_t from = record * in->elements_per_record, to = i * in->elements_per_record;
  if (in->dtype == CLV_I64)
    copy_integers(in, from, (int64_t *)x->data + to);
  else if (in->data->dtype == CLV_U8)
    convert_bytes(in, from, (float *)x->data + to);
  else if (in->data->dtype == CLV_F64)
    convert_doubles(in, from, (float *)x->data + to);
  else
    memcpy((float *)x->data + to, (const float *)in->data->data + from,
           in->elements_per_record * sizeof(float));
}

/* ---- ranges of the numbers in an input ------------------------------------------------------- */

/* Returns the number in column columns.column of the row that begins at element i (if the column is
 * -1, element i itself), minus the number in columns.minus_column unless that is -1. Returns
 * INT64_MIN or INT64_MAX if the difference overflows. */
static int64_t get_row_index(const clv_tensor *t, size_t i, clv_data_columns columns) {
  int64_t number =
      clv_tensor_element_as_integer(t, columns.column < 0 ? i : i + (size_t)columns.column);
  if (columns.minus_column < 0) return number;
  int64_t subtracted = clv_tensor_element_as_integer(t, i + (size_t)columns.minus_column),
          difference;
  if (__builtin_sub_overflow(number, subtracted, &difference))
    return number < 0 ? INT64_MIN : INT64_MAX;
  return difference;
}

bool clv_dataset_input_range(const clv_dataset *ds, size_t k, clv_data_columns columns,
                             clv_data_range *ret) {
  const clv_tensor *t = ds->named_inputs ? ds->named_inputs[k].data : ds->inputs;
  size_t elements_per_record =
      ds->named_inputs ? ds->named_inputs[k].elements_per_record : ds->elements_per_record;
  size_t stride = columns.column < 0 ? 1 : (size_t)t->shape.dim[t->shape.rank - 1];
  if (clv_dataset_input(ds, k, 1).dtype != CLV_I64) return false;
  double sum = 0;
  *ret = (clv_data_range){.min = INT64_MAX, .max = INT64_MIN};
  for (size_t i = 0; i < ds->count * elements_per_record; i += stride) {
    int64_t number = get_row_index(t, i, columns);
    sum += (double)number;
    size_t at = clv_dataset_record_number(ds, i / elements_per_record);
    if (number < ret->min) *ret = (clv_data_range){number, ret->max, at, ret->max_at, 0};
    if (number > ret->max) *ret = (clv_data_range){ret->min, number, ret->min_at, at, 0};
  }
  ret->sum = sum;
  return true;
}
