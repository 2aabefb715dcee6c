/* SPDX-License-Identifier: Apache-2.0
 *
 * Datasets: normalisation and batches. Inputs keep the type of their file, which for images needs a
 * quarter of the memory of float32, and are converted to float32 batch by batch. Labels are
 * converted once, when the dataset is opened. u8 inputs are converted by a table of 256 floats per
 * channel, which has the results of normalise_value. For a folder of images only names are in
 * memory; the files are read batch by batch.
 *
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"

void clv_dataset_free(clv_dataset *ds) {
  if (!ds) return;
  clv_tensor_unref(ds->inputs);
  clv_tensor_unref(ds->labels);
  clv_inputs_free(ds);
  clv_images_free(ds->images);
  clv_texts_free(ds->texts);
  clv_page_set_free(ds->pages);
  clv_table_free(ds->table);
  clv_bytes_done(&ds->class_names);
  free(ds->mean);
  free(ds->std);
  free(ds->normalised_u8_values);
  free(ds->normalised_u16_values);
  clv_broken_records_done(&ds->broken);
  free(ds->classes);
  free(ds->groups);
  free(ds->record_numbers);
  free(ds->inputs_path);
  clv_learnt_targets_free(ds->targets, ds->n_targets);
  free(ds->labels_path);
  free(ds);
}

void clv_dataset_freep(clv_dataset **ds) {
  clv_dataset_free(*ds);
  *ds = NULL;
}

size_t clv_dataset_count(const clv_dataset *ds) { return ds->count; }
bool clv_dataset_has_labels(const clv_dataset *ds) { return ds->labels != NULL; }

bool clv_dataset_label_range(const clv_dataset *ds, int64_t *ret_min, int64_t *ret_max) {
  if (!ds->labels || ds->label_kind != CLV_LABEL_CLASS) return false;
  *ret_min = ds->label_min;
  *ret_max = ds->label_max;
  return true;
}

int64_t clv_dataset_record_class(const clv_dataset *ds, size_t record) {
  if (!ds->labels || ds->label_kind != CLV_LABEL_CLASS || ds->y_shape.rank != 1) return -1;
  return ((const int64_t *)ds->labels->data)[record];
}

bool clv_dataset_largest_label(const clv_dataset *ds, size_t *ret_record) {
  int64_t low, high;
  if (!ds->labels_path || !clv_dataset_label_range(ds, &low, &high)) return false;
  *ret_record = clv_dataset_record_number(ds, ds->label_max_record);
  return true;
}

clv_shape clv_dataset_y_shape(const clv_dataset *ds, size_t n) {
  clv_shape shape = ds->y_shape;
  if (shape.rank) shape.dim[0] = (int64_t)n;
  return shape;
}

clv_dtype clv_dataset_y_dtype(const clv_dataset *ds) {
  return ds->label_kind == CLV_LABEL_CLASS ? CLV_I64 : CLV_F32;
}

/* ---- normalisation --------------------------------------------------------------------------- */

/* Normalises a value of channel k. Each step rounds to float32, in the order of torchvision's
 * ToTensor and Normalize. Dividing by 255 and multiplying by 1/255 differ in the last bit, so this
 * function can do either. */
static float normalise_value(const clv_dataset *ds, float v, size_t k) {
  float scaled_value = ds->divides_by_255 ? v / 255.0f : v * ds->scale;
  float centred_value = scaled_value - ds->mean[k];
  return centred_value / ds->std[k];
}

static clv_code check_norm_values(const char *label, const float *values, size_t n, size_t channels,
                                  bool must_be_positive, clv_err *err) {
  if (n > 1 && n != channels)
    return clv_fail(err, CLV_INVALID,
                    "%s has %zu values; the inputs have %zu channels: give 1 or "
                    "%zu",
                    label, n, channels, channels);
  for (size_t i = 0; i < n; i++)
    if (!isfinite(values[i]) || (must_be_positive && values[i] <= 0))
      return clv_fail(err, CLV_INVALID, "%s[%zu] is %g, expected a %snumber", label, i,
                      (double)values[i], must_be_positive ? "positive " : "finite ");
  return CLV_OK;
}

static clv_code copy_norm_values(const float *values, size_t n, float default_value,
                                 size_t n_norm_values, float **ret, clv_err *err) {
  float *out;
  CLV_TRY(clv_alloc(n_norm_values, sizeof *out, &out, err));
  for (size_t k = 0; k < n_norm_values; k++)
    out[k] = n == 0 ? default_value : values[n == 1 ? 0 : k];
  *ret = out;
  return CLV_OK;
}

static clv_code make_normalised_u8_values(clv_dataset *ds, clv_err *err) {
  CLV_TRY(clv_alloc(ds->n_norm_values, 256 * sizeof(float), &ds->normalised_u8_values, err));
  for (size_t k = 0; k < ds->n_norm_values; k++)
    for (int v = 0; v < 256; v++)
      ds->normalised_u8_values[256 * k + (size_t)v] = normalise_value(ds, (float)v, k);
  return CLV_OK;
}

clv_code clv_dataset_make_normalised_u16_values(clv_dataset *ds, clv_err *err) {
  float divisor = ds->divides_by_255 ? 65535.0f : 257.0f;
  CLV_TRY(clv_alloc(ds->n_norm_values, 65536 * sizeof(float), &ds->normalised_u16_values, err));
  for (size_t k = 0; k < ds->n_norm_values; k++)
    for (int v = 0; v < 65536; v++) {
      float scaled_value = (float)v / divisor * ds->scale;
      ds->normalised_u16_values[65536 * k + (size_t)v] = (scaled_value - ds->mean[k]) / ds->std[k];
    }
  return CLV_OK;
}

clv_code clv_dataset_set_normalisation(clv_dataset *ds, const clv_dataset_options *o, bool is_u8,
                                       clv_err *err) {
  CLV_TRY(check_norm_values("mean", o->mean, o->n_mean, ds->channels, false, err));
  CLV_TRY(check_norm_values("std", o->std, o->n_std, ds->channels, true, err));
  CLV_TRY(check_norm_values("scale", &o->scale, 1, ds->channels, false, err));
  ds->n_norm_values = o->n_mean > 1 || o->n_std > 1 ? ds->channels : 1;
  ds->divides_by_255 = o->scale == 0 && is_u8 && !ds->is_bool;
  ds->scale = o->scale == 0 ? 1.0f : o->scale;
  CLV_TRY(copy_norm_values(o->mean, o->n_mean, 0.0f, ds->n_norm_values, &ds->mean, err));
  CLV_TRY(copy_norm_values(o->std, o->n_std, 1.0f, ds->n_norm_values, &ds->std, err));
  return is_u8 ? make_normalised_u8_values(ds, err) : CLV_OK;
}

bool clv_dataset_adds_channel(const clv_dataset *ds) { return ds->adds_channel; }

const clv_broken_records *clv_dataset_broken_records(const clv_dataset *ds) { return &ds->broken; }
int64_t clv_dataset_vocab_size(const clv_dataset *ds) { return ds->token_info.count; }

size_t clv_dataset_class_count(const clv_dataset *ds) { return ds->n_classes; }
const char *clv_dataset_class_name(const clv_dataset *ds, size_t class) {
  return ds->classes[class];
}

clv_code clv_dataset_check_same_classes(const clv_dataset *train, const clv_dataset *test,
                                        clv_err *err) {
  size_t n = clv_dataset_class_count(train), k = clv_dataset_class_count(test);
  if (!n || !k) return CLV_OK;
  for (size_t i = 0; i < CLV_MIN(n, k); i++) {
    const char *train_name = clv_dataset_class_name(train, i),
               *test_name = clv_dataset_class_name(test, i);
    if (strcmp(train_name, test_name) != 0)
      return clv_fail(
          err, CLV_DATA_LOSS,
          "class %zu is '%s' in %s and '%s' in %s: both need the same classes (of documents, "
          "data.documents.labels may name them all)",
          i, train_name, train->inputs_path, test_name, test->inputs_path);
  }
  if (n == k) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "%s has %zu classes and %s has %zu: both need the same",
                  train->inputs_path, n, test->inputs_path, k);
}

/* ---- filling batches ------------------------------------------------------------------------- */

#define FILL_RECORD(type)                                                           \
  do {                                                                              \
    const type *src = (const type *)ds->inputs->data + r * ds->elements_per_record; \
    for (size_t c = 0; c < ds->channels; c++)                                       \
      for (size_t i = 0; i < ds->values_per_channel; i++, src++)                    \
        *dst++ = normalise_value(ds, (float)*src, ds->n_norm_values > 1 ? c : 0);   \
  } while (0)

static void fill_record_from_u8(const clv_dataset *ds, size_t r, float *dst) {
  const uint8_t *src = (const uint8_t *)ds->inputs->data + r * ds->elements_per_record;
  size_t n_blocks = ds->n_norm_values, block_len = ds->elements_per_record / n_blocks;
  for (size_t k = 0; k < n_blocks; k++) {
    const float *channel_values = ds->normalised_u8_values + 256 * k;
    for (size_t i = 0; i < block_len; i++) *dst++ = channel_values[*src++];
  }
}

static void fill_record_from_i32(const clv_dataset *ds, size_t r, float *dst) {
  FILL_RECORD(int32_t);
}
static void fill_record_from_i64(const clv_dataset *ds, size_t r, float *dst) {
  FILL_RECORD(int64_t);
}
static void fill_record_from_f32(const clv_dataset *ds, size_t r, float *dst) {
  FILL_RECORD(float);
}
static void fill_record_from_f64(const clv_dataset *ds, size_t r, float *dst) {
  FILL_RECORD(double);
}

static void (*const record_fillers[])(const clv_dataset *ds, size_t r, float *dst) = {
    [CLV_U8] = fill_record_from_u8,   [CLV_I32] = fill_record_from_i32,
    [CLV_I64] = fill_record_from_i64, [CLV_F32] = fill_record_from_f32,
    [CLV_F64] = fill_record_from_f64,
};

static void fill_token_record(const clv_dataset *ds, size_t r, int64_t *dst) {
  for (size_t i = 0; i < ds->elements_per_record; i++)
    dst[i] = clv_tensor_element_as_integer(ds->inputs, r * ds->elements_per_record + i);
}

static clv_code check_output(const char *label, const clv_tensor *t, clv_dtype dtype,
                             clv_shape expected_shape, clv_err *err) {
  char expected_text[160], found_text[160];
  clv_shape shape = t->shape;
  if (shape.rank == expected_shape.rank && shape.rank > 0 && shape.dim[0] >= expected_shape.dim[0])
    shape.dim[0] = expected_shape.dim[0];
  if (t->dtype == dtype && clv_shape_equal(&shape, &expected_shape)) return CLV_OK;
  return clv_fail(
      err, CLV_INVALID, "batch %s: expected %s %s (or more rows), found %s %s", label,
      clv_dtype_name(dtype), clv_shape_format(&expected_shape, expected_text, sizeof expected_text),
      clv_dtype_name(t->dtype), clv_shape_format(&t->shape, found_text, sizeof found_text));
}

static clv_code check_inputs(const clv_dataset *ds, size_t n, clv_tensor *const *x, clv_err *err) {
  for (size_t k = 0; k < clv_dataset_input_count(ds); k++) {
    clv_data_input expected_input = clv_dataset_input(ds, k, n);
    CLV_TRY(check_output(ds->named_inputs ? expected_input.name : "x", x[k], expected_input.dtype,
                         expected_input.shape, err));
  }
  return CLV_OK;
}

static void fill_input(const clv_dataset *ds, size_t r, clv_tensor *const *inputs, size_t i) {
  clv_tensor *x = inputs[0];
  if (ds->named_inputs)
    for (size_t k = 0; k < ds->n_named_inputs; k++) clv_inputs_fill(ds, k, r, inputs[k], i);
  else if (ds->has_tokens)
    fill_token_record(ds, r, (int64_t *)x->data + i * ds->elements_per_record);
  else
    record_fillers[ds->inputs->dtype](ds, r, (float *)x->data + i * ds->elements_per_record);
}

/* Masks tokens of record r, which is row i of a batch, and removes the labels of the tokens that
 * are not masked. */
static void mask_tokens(const clv_dataset *ds, const clv_draw_seed *draw, uint32_t r,
                        clv_tensor *ids, clv_tensor *y, size_t i) {
  size_t from = i * (size_t)ds->y_shape.dim[1];
  clv_dataset_mask_tokens(ds, draw, r, (int64_t *)ids->data + from, (int64_t *)y->data + from);
}

clv_code clv_batch_fill_inputs(const clv_dataset *ds, const clv_draw_seed *draw,
                               const uint32_t *record_indexes, size_t n, clv_tensor *const *x,
                               clv_tensor *y, clv_err *err) {
  CLV_TRY(check_inputs(ds, n, x, err));
  if (y && !ds->labels)
    return clv_fail(err, CLV_PRECONDITION, "batch y: the dataset has no labels");
  if (y) CLV_TRY(check_output("y", y, clv_dataset_y_dtype(ds), clv_dataset_y_shape(ds, n), err));
  size_t label_bytes = y ? ds->labels->bytes / (size_t)ds->labels->shape.dim[0] : 0;
  for (size_t i = 0; i < n; i++) {
    if (record_indexes[i] >= ds->count)
      return clv_fail(err, CLV_INVALID, "record %u is outside 0..%zu", record_indexes[i],
                      ds->count - 1);
    if (!ds->images) fill_input(ds, record_indexes[i], x, i);
    if (y)
      memcpy((char *)y->data + i * label_bytes,
             (const char *)ds->labels->data + record_indexes[i] * label_bytes, label_bytes);
    if (y && ds->objective == CLV_OBJECTIVE_MASKED)
      mask_tokens(ds, draw, record_indexes[i], x[ds->token_input], y, i);
  }
  if (!ds->images) return CLV_OK;
  const clv_pixel_tables tables = {ds->normalised_u8_values, ds->normalised_u16_values,
                                   ds->n_norm_values > 1};
  return clv_images_fill(ds->images, draw, record_indexes, n, &tables, x[0]->data, err);
}

clv_code clv_batch_fill(const clv_dataset *ds, const uint32_t *record_indexes, size_t n,
                        clv_tensor *x, clv_tensor *y, clv_err *err) {
  if (clv_dataset_input_count(ds) > 1)
    return clv_fail(err, CLV_INVALID, "a record has %zu inputs, and one tensor is to be filled",
                    clv_dataset_input_count(ds));
  return clv_batch_fill_inputs(ds, NULL, record_indexes, n, &x, y, err);
}
