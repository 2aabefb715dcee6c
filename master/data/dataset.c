/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs stay in the type of their file (a quarter of the memory for images) and become float32 one
 * batch at a time; labels are converted once, when the dataset is opened. u8 inputs go through a
 * table of 256 floats per normalisation made by the same arithmetic. A folder of images has its
 * index in the place of inputs, and its files are read batch by batch.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"
#include "master/data/reader_int.h"

void clv_dataset_free(clv_dataset *ds) {
  if (!ds) return;
  clv_tensor_unref(ds->inputs);
  clv_tensor_unref(ds->labels);
  clv_inputs_free(ds);
  clv_images_free(ds->images);
  clv_texts_free(ds->texts);
  clv_page_set_free(ds->pages);
  free(ds->mean);
  free(ds->std);
  free(ds->table);
  free(ds->wide);
  free(ds->groups);
  free(ds->numbers);
  free(ds->inputs_path);
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
  if (!ds->labels || ds->kind != CLV_LABEL_CLASS) return false;
  *ret_min = ds->label_min;
  *ret_max = ds->label_max;
  return true;
}

int64_t clv_dataset_class_of(const clv_dataset *ds, size_t record) {
  if (!ds->labels || ds->kind != CLV_LABEL_CLASS || ds->y_shape.rank != 1) return -1;
  return ((const int64_t *)ds->labels->data)[record];
}

bool clv_dataset_largest_label(const clv_dataset *ds, size_t *ret_record) {
  int64_t low, high;
  if (!ds->labels_path || !clv_dataset_label_range(ds, &low, &high)) return false;
  *ret_record = clv_dataset_number(ds, ds->label_max_at);
  return true;
}

clv_shape clv_dataset_y_shape(const clv_dataset *ds, size_t n) {
  clv_shape shape = ds->y_shape;
  if (shape.rank) shape.dim[0] = (int64_t)n;
  return shape;
}

clv_dtype clv_dataset_y_dtype(const clv_dataset *ds) {
  return ds->kind == CLV_LABEL_CLASS ? CLV_I64 : CLV_F32;
}

/* ---- normalisation --------------------------------------------------------------------------- */

/* Each step rounds to float32, in the order of torchvision's ToTensor and Normalize. Dividing by
 * 255 and multiplying by 1/255 differ in the last bit, which is why both exist. */
static float normalise(const clv_dataset *ds, float v, size_t k) {
  float scaled = ds->divide_255 ? v / 255.0f : v * ds->scale;
  float centred = scaled - ds->mean[k];
  return centred / ds->std[k];
}

static clv_code check_norm(const char *what, const float *values, size_t n, size_t channels,
                           bool positive, clv_err *err) {
  if (n > 1 && n != channels)
    return clv_fail(err, CLV_INVALID,
                    "%s has %zu values; the inputs have %zu channels: give 1 or "
                    "%zu",
                    what, n, channels, channels);
  for (size_t i = 0; i < n; i++)
    if (!isfinite(values[i]) || (positive && values[i] <= 0))
      return clv_fail(err, CLV_INVALID, "%s[%zu] is %g, expected a %snumber", what, i,
                      (double)values[i], positive ? "positive " : "finite ");
  return CLV_OK;
}

static clv_code fill_norm(const float *values, size_t n, float standard, size_t n_norm, float **ret,
                          clv_err *err) {
  float *out;
  CLV_TRY(clv_alloc(n_norm, sizeof *out, &out, err));
  for (size_t k = 0; k < n_norm; k++) out[k] = n == 0 ? standard : values[n == 1 ? 0 : k];
  *ret = out;
  return CLV_OK;
}

static clv_code make_table(clv_dataset *ds, clv_err *err) {
  CLV_TRY(clv_alloc(ds->n_norm, 256 * sizeof(float), &ds->table, err));
  for (size_t k = 0; k < ds->n_norm; k++)
    for (int v = 0; v < 256; v++) ds->table[256 * k + (size_t)v] = normalise(ds, (float)v, k);
  return CLV_OK;
}

/* Samples of 16 bits: v / 65535 where bytes are divided by 255; else `scale` is that of bytes, of
 * which one has 257 steps. */
static clv_code make_wide_table(clv_dataset *ds, clv_err *err) {
  float most = ds->divide_255 ? 65535.0f : 257.0f;
  CLV_TRY(clv_alloc(ds->n_norm, 65536 * sizeof(float), &ds->wide, err));
  for (size_t k = 0; k < ds->n_norm; k++)
    for (int v = 0; v < 65536; v++) {
      float scaled = (float)v / most * ds->scale;
      ds->wide[65536 * k + (size_t)v] = (scaled - ds->mean[k]) / ds->std[k];
    }
  return CLV_OK;
}

static clv_code set_norm(clv_dataset *ds, const clv_dataset_options *o, bool bytes, clv_err *err) {
  CLV_TRY(check_norm("mean", o->mean, o->n_mean, ds->channels, false, err));
  CLV_TRY(check_norm("std", o->std, o->n_std, ds->channels, true, err));
  CLV_TRY(check_norm("scale", &o->scale, 1, ds->channels, false, err));
  ds->n_norm = o->n_mean > 1 || o->n_std > 1 ? ds->channels : 1;
  ds->divide_255 = o->scale == 0 && bytes && !ds->is_bool;
  ds->scale = o->scale == 0 ? 1.0f : o->scale;
  CLV_TRY(fill_norm(o->mean, o->n_mean, 0.0f, ds->n_norm, &ds->mean, err));
  CLV_TRY(fill_norm(o->std, o->n_std, 1.0f, ds->n_norm, &ds->std, err));
  return bytes ? make_table(ds, err) : CLV_OK;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void set_x_shape(clv_dataset *ds, bool flatten, bool keeps_rank_3) {
  clv_shape shape = ds->inputs->shape;
  if (shape.rank == 1) {
    shape = CLV_SHAPE(shape.dim[0], 1);
  } else if (shape.rank == 3 && !keeps_rank_3) {
    shape = CLV_SHAPE(shape.dim[0], 1, shape.dim[1], shape.dim[2]);
  }
  ds->channels = (size_t)shape.dim[1];
  ds->inner = ds->record / ds->channels;
  ds->x_shape = flatten ? CLV_SHAPE(shape.dim[0], (int64_t)ds->record) : shape;
}

static clv_code check_tokens(const clv_tensor *t, const clv_dataset_options *o, clv_err *err) {
  if (t->dtype == CLV_F32 || t->dtype == CLV_F64)
    return clv_fail(err, CLV_INVALID,
                    "%s: the first layer is an embedding, which takes integers; found %s",
                    o->inputs_path, clv_dtype_name(t->dtype));
  if (o->n_mean || o->n_std || o->scale != 0)
    return clv_fail(err, CLV_INVALID, "%s: tokens are not normalised: remove scale, mean and std",
                    o->inputs_path);
  return CLV_OK;
}

static clv_code take_inputs(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  const clv_tensor *t = ds->inputs;
  char text[160];
  if (t->shape.rank == 0 || t->n == 0)
    return clv_fail(err, CLV_INVALID, "%s: no records: its shape is %s", o->inputs_path,
                    clv_shape_format(&t->shape, text, sizeof text));
  if (t->shape.dim[0] > UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %lld records, the limit is %u", o->inputs_path,
                    (long long)t->shape.dim[0], UINT32_MAX);
  ds->count = (size_t)t->shape.dim[0];
  ds->record = t->n / ds->count;
  set_x_shape(ds, o->flatten, o->keeps_rank_3);
  ds->adds_channel = t->shape.rank == 3 && !o->keeps_rank_3 && !o->flatten;
  ds->tokens = o->tokens;
  return o->tokens ? check_tokens(t, o, err) : set_norm(ds, o, t->dtype == CLV_U8, err);
}

static clv_code open_inputs(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  if (o->n_named) return clv_inputs_open(ds, o, err);
  if (!o->inputs_path) return clv_fail(err, CLV_INVALID, "the dataset names no inputs file");
  CLV_TRY(clv_data_read(o->inputs_path, o->format, o->max_bytes, &ds->inputs, &ds->is_bool, err));
  return take_inputs(ds, o, err);
}

/* The inputs that were asked for, of those that the records have. */
static clv_code take_named(clv_dataset *ds, const clv_dataset_options *o, const char *const *names,
                           clv_tensor **const *tensors, size_t n, clv_err *err) {
  CLV_TRY(clv_alloc(o->n_named, sizeof *ds->named, &ds->named, err));
  for (size_t k = 0; k < o->n_named; k++) {
    size_t i = 0;
    while (i < n && (!*tensors[i] || strcmp(names[i], o->names[k]) != 0)) i++;
    if (i == n)
      return clv_fail(err, CLV_INVALID, "there is no input '%s', or it is named twice: %s, %s%s",
                      o->names[k], names[0], names[1], n > 2 ? ", boxes" : "");
    CLV_TRY(clv_inputs_take(ds, o->names[k], o->inputs_path, tensors[i], err));
  }
  ds->count = (size_t)ds->named[0].data->shape.dim[0];
  return CLV_OK;
}

/* Classes are numbered without a gap. */
static void set_labels(clv_dataset *ds, clv_tensor **labels, size_t n_classes) {
  ds->labels = clv_steal(labels);
  ds->y_shape = ds->labels->shape;
  ds->label_max = (int64_t)n_classes - 1;
}

static clv_code text_inputs(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  static const char *const names[] = {"ids", "lengths"};
  clv_tensor **const tensors[] = {&ds->texts->tokens, &ds->texts->lengths};
  if (o->n_named) return take_named(ds, o, names, tensors, CLV_COUNT(names), err);
  ds->inputs = clv_steal(&ds->texts->tokens);
  return take_inputs(ds, o, err);
}

/* Labels of what was read, or of its tokens. The tensors are needed before the inputs take them. */
static clv_code make_objective(clv_dataset *ds, const clv_dataset_options *o, clv_token_kinds kinds,
                               const clv_tensor *ids, const clv_tensor *lengths, clv_err *err) {
  ds->kinds = kinds;
  ds->ignored = o->ignored ? *o->ignored : CLV_LABEL_IGNORED;
  ds->objective = o->unlabelled ? CLV_OBJECTIVE_LABELS : o->objective;
  while (ds->ids < o->n_named && strcmp(o->names[ds->ids], "ids") != 0) ds->ids++;
  if (ds->objective == CLV_OBJECTIVE_LABELS) return CLV_OK;
  if (o->n_named && ds->ids == o->n_named)
    return clv_fail(err, CLV_INVALID, "to model a language, records need the input 'ids'");
  return clv_objective_labels(ds, ids, lengths, err);
}

static clv_code open_texts(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  if ((!o->tokens && !o->n_named) || o->labels_path ||
      (o->labels != CLV_LABEL_CLASS && !o->unlabelled))
    return clv_fail(err, CLV_INVALID,
                    "texts become tokens, and their labels are classes: the first layer must be an "
                    "embedding, and the loss cross_entropy or nll");
  CLV_TRY(clv_texts_open(o, &ds->texts, err));
  const clv_texts *t = ds->texts;
  CLV_TRY(make_objective(ds, o, t->kinds, t->tokens, t->lengths, err));
  CLV_TRY(text_inputs(ds, o, err));
  if (t->labels) set_labels(ds, &ds->texts->labels, t->n_classes);
  return CLV_OK;
}

static clv_code open_pages(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  static const char *const names[] = {"ids", "lengths", "boxes"};
  if (!o->n_named || o->labels_path || (o->labels != CLV_LABEL_CLASS && !o->unlabelled))
    return clv_fail(err, CLV_INVALID,
                    "labels of documents are classes: they go with cross_entropy or nll");
  CLV_TRY(clv_page_set_open(o, &ds->pages, err));
  clv_page_set *p = ds->pages;
  clv_tensor **const tensors[] = {&p->ids, &p->lengths, &p->boxes};
  CLV_TRY(make_objective(ds, o, p->kinds, p->ids, p->lengths, err));
  CLV_TRY(take_named(ds, o, names, tensors, CLV_COUNT(names), err));
  if (p->labels) set_labels(ds, &p->labels, p->names.n);
  return CLV_OK;
}

bool clv_dataset_adds_channel(const clv_dataset *ds) { return ds->adds_channel; }

const clv_broken *clv_dataset_broken(const clv_dataset *ds) {
  static const clv_broken none;
  return ds->texts ? &ds->texts->broken : ds->pages ? &ds->pages->broken : &none;
}

size_t clv_dataset_cut(const clv_dataset *ds) { return ds->texts ? ds->texts->cut : 0; }

clv_page_counts clv_dataset_pages(const clv_dataset *ds) {
  return ds->pages ? ds->pages->counts : (clv_page_counts){0};
}

size_t clv_dataset_kept_pages(const clv_dataset *ds) { return ds->pages ? ds->pages->kept.n : 0; }

const clv_kept_page *clv_dataset_kept_page(const clv_dataset *ds, size_t page) {
  return &ds->pages->kept.list[page];
}

const int32_t *clv_dataset_places(const clv_dataset *ds, size_t record, size_t *ret_n) {
  const clv_tensor *t = ds->pages->places;
  *ret_n = (size_t)t->shape.dim[1];
  return (const int32_t *)t->data + record * *ret_n;
}

int64_t clv_dataset_tokens(const clv_dataset *ds) { return ds->kinds.count; }

static clv_code take_image_labels(clv_dataset *ds, clv_err *err) {
  const clv_folder *f = clv_images_folder(ds->images);
  ds->y_shape = CLV_SHAPE((int64_t)f->n);
  CLV_TRY(clv_tensor_new(CLV_I64, &ds->y_shape, &ds->labels, err));
  int64_t *out = ds->labels->data;
  for (size_t i = 0; i < f->n; i++) out[i] = f->label[i];
  ds->label_max = (int64_t)f->n_classes - 1;
  return CLV_OK;
}

static clv_code open_images(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  uint32_t height, width;
  if ((o->labels != CLV_LABEL_CLASS && !o->unlabelled) || o->labels_path || o->tokens)
    return clv_fail(err, CLV_INVALID,
                    "a folder of images has classes as its labels: it goes with cross_entropy or "
                    "nll, and not with an embedding as the first layer");
  CLV_TRY(clv_images_open(o, &ds->images, err));
  clv_images_size(ds->images, &height, &width);
  ds->count = clv_images_folder(ds->images)->n;
  ds->channels = o->images.channels;
  ds->inner = (size_t)height * width;
  ds->record = ds->channels * ds->inner;
  ds->x_shape = o->flatten ? CLV_SHAPE((int64_t)ds->count, (int64_t)ds->record)
                           : CLV_SHAPE((int64_t)ds->count, (int64_t)ds->channels, height, width);
  CLV_TRY(set_norm(ds, o, true, err));
  CLV_TRY(make_wide_table(ds, err));
  return o->unlabelled ? CLV_OK : take_image_labels(ds, err);
}

size_t clv_dataset_classes(const clv_dataset *ds) {
  if (ds->pages) return ds->pages->names.n;
  if (ds->texts) return ds->texts->n_classes;
  return ds->images ? clv_images_folder(ds->images)->n_classes : 0;
}

size_t clv_dataset_strays(const clv_dataset *ds, const char **ret_first) {
  const clv_folder *f = ds->images ? clv_images_folder(ds->images) : NULL;
  *ret_first = f ? f->stray : NULL;
  return f ? f->n_strays : 0;
}

const char *clv_dataset_class(const clv_dataset *ds, size_t class) {
  if (ds->pages) return ds->pages->classes[class];
  if (ds->texts) return ds->texts->classes[class];
  const clv_folder *f = clv_images_folder(ds->images);
  return f->names.data + f->classes[class];
}

const char *clv_dataset_name(const clv_dataset *ds, size_t record) {
  if (!ds->images) return NULL;
  const clv_folder *f = clv_images_folder(ds->images);
  const char *path = f->names.data + f->path[record];
  return strncmp(path, "./", 2) == 0 ? path + 2 : path;
}

clv_code clv_dataset_same_classes(const clv_dataset *train, const clv_dataset *test, clv_err *err) {
  size_t n = clv_dataset_classes(train), k = clv_dataset_classes(test);
  if (!n || !k) return CLV_OK;
  for (size_t i = 0; i < CLV_MIN(n, k); i++) {
    const char *one = clv_dataset_class(train, i), *other = clv_dataset_class(test, i);
    if (strcmp(one, other) != 0)
      return clv_fail(
          err, CLV_DATA_LOSS,
          "class %zu is '%s' in %s and '%s' in %s: both need the same classes (of documents, "
          "data.documents.labels may name them all)",
          i, one, train->inputs_path, other, test->inputs_path);
  }
  if (n == k) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "%s has %zu classes and %s has %zu: both need the same",
                  train->inputs_path, n, test->inputs_path, k);
}

/* ---- labels ---------------------------------------------------------------------------------- */

double clv_dataset_element(const clv_tensor *t, size_t i) {
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

static clv_code check_class(clv_dataset *ds, const clv_dataset_options *o, int64_t v, size_t i,
                            clv_err *err) {
  size_t per_record = ds->labels->n / (size_t)ds->y_shape.dim[0];
  if (v == (o->ignored ? *o->ignored : CLV_LABEL_IGNORED) && ds->y_shape.rank > 1) return CLV_OK;
  if (v < 0 || (o->n_classes && (uint64_t)v >= o->n_classes))
    return clv_fail(err, CLV_INVALID, "%s: label %lld of record %zu is no class: expected %s%lld%s",
                    o->labels_path, (long long)v, i / per_record, o->n_classes ? "0.." : "",
                    o->n_classes ? (long long)o->n_classes - 1 : 0LL,
                    o->n_classes ? "" : " or more (loss.ignore_index is for labels of places)");
  if (v > ds->label_max) ds->label_max_at = i / per_record;
  ds->label_min = CLV_MIN(v, ds->label_min);
  ds->label_max = CLV_MAX(v, ds->label_max);
  return CLV_OK;
}

static clv_code take_classes(clv_dataset *ds, const clv_dataset_options *o, const clv_tensor *raw,
                             clv_err *err) {
  char text[160];
  if (raw->dtype == CLV_F32 || raw->dtype == CLV_F64)
    return clv_fail(err, CLV_INVALID,
                    "%s: class labels must be integers, found %s (targets that are floats go with "
                    "the losses mse and bce)",
                    o->labels_path, clv_dtype_name(raw->dtype));
  bool places = raw->n != (size_t)raw->shape.dim[0];
  if (places && !o->n_named && !o->tokens)
    return clv_fail(err, CLV_INVALID, "%s: class labels must have the shape [%zu], found %s",
                    o->labels_path, ds->count, clv_shape_format(&raw->shape, text, sizeof text));
  ds->y_shape = places ? raw->shape : CLV_SHAPE((int64_t)raw->n);
  ds->label_min = INT64_MAX;
  ds->label_max = INT64_MIN;
  CLV_TRY(clv_tensor_new(CLV_I64, &ds->y_shape, &ds->labels, err));
  int64_t *out = ds->labels->data;
  for (size_t i = 0; i < raw->n; i++) {
    out[i] = clv_dataset_integer(raw, i);
    CLV_TRY(check_class(ds, o, out[i], i, err));
  }
  if (ds->label_min <= ds->label_max) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: all labels are %lld, which counts for nothing",
                  o->labels_path, (long long)(o->ignored ? *o->ignored : CLV_LABEL_IGNORED));
}

static clv_code take_targets(clv_dataset *ds, const clv_tensor *raw, clv_err *err) {
  ds->y_shape = raw->shape.rank == 1 ? CLV_SHAPE(raw->shape.dim[0], 1) : raw->shape;
  CLV_TRY(clv_tensor_new(CLV_F32, &ds->y_shape, &ds->labels, err));
  float *out = ds->labels->data;
  for (size_t i = 0; i < raw->n; i++) out[i] = (float)clv_dataset_element(raw, i);
  return CLV_OK;
}

static clv_code open_labels(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *raw = NULL;
  CLV_TRY(clv_data_read(o->labels_path, o->format, o->max_bytes, &raw, NULL, err));
  size_t found = raw->shape.rank ? (size_t)raw->shape.dim[0] : 0;
  if (found != ds->count)
    return clv_fail(err, CLV_INVALID,
                    "%s holds %zu records and %s holds %zu labels: expected the "
                    "same number",
                    o->inputs_path, ds->count, o->labels_path, found);
  return o->labels == CLV_LABEL_CLASS ? take_classes(ds, o, raw, err) : take_targets(ds, raw, err);
}

clv_code clv_dataset_open(const clv_dataset_options *options, clv_dataset **ret, clv_err *err) {
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  CLV_TRY(clv_alloc(1, sizeof *ds, &ds, err));
  ds->kind = options->labels;
  if (options->inputs_path) CLV_TRY(clv_strdup(options->inputs_path, &ds->inputs_path, err));
  if (options->labels_path) CLV_TRY(clv_strdup(options->labels_path, &ds->labels_path, err));
  if (options->format == CLV_FORMAT_IMAGES) {
    CLV_TRY(open_images(ds, options, err));
  } else if (options->format == CLV_FORMAT_TEXT) {
    CLV_TRY(open_texts(ds, options, err));
  } else if (options->format == CLV_FORMAT_DOCUMENTS) {
    CLV_TRY(open_pages(ds, options, err));
  } else {
    CLV_TRY(open_inputs(ds, options, err));
    if (options->labels_path) CLV_TRY(open_labels(ds, options, err));
  }
  CLV_TRY(clv_dataset_take_groups(ds, options, err));
  if (options->limit && options->limit < ds->count) ds->count = options->limit;
  *ret = clv_steal(&ds);
  return CLV_OK;
}

/* ---- batches --------------------------------------------------------------------------------- */

#define FILL_RECORD(type)                                              \
  do {                                                                 \
    const type *src = (const type *)ds->inputs->data + r * ds->record; \
    for (size_t c = 0; c < ds->channels; c++)                          \
      for (size_t i = 0; i < ds->inner; i++, src++)                    \
        *dst++ = normalise(ds, (float)*src, ds->n_norm > 1 ? c : 0);   \
  } while (0)

static void fill_u8(const clv_dataset *ds, size_t r, float *dst) {
  const uint8_t *src = (const uint8_t *)ds->inputs->data + r * ds->record;
  size_t runs = ds->n_norm, run = ds->record / runs;
  for (size_t k = 0; k < runs; k++) {
    const float *table = ds->table + 256 * k;
    for (size_t i = 0; i < run; i++) *dst++ = table[*src++];
  }
}

static void fill_i32(const clv_dataset *ds, size_t r, float *dst) { FILL_RECORD(int32_t); }
static void fill_i64(const clv_dataset *ds, size_t r, float *dst) { FILL_RECORD(int64_t); }
static void fill_f32(const clv_dataset *ds, size_t r, float *dst) { FILL_RECORD(float); }
static void fill_f64(const clv_dataset *ds, size_t r, float *dst) { FILL_RECORD(double); }

static void (*const fill_record[])(const clv_dataset *ds, size_t r, float *dst) = {
    [CLV_U8] = fill_u8,   [CLV_I32] = fill_i32, [CLV_I64] = fill_i64,
    [CLV_F32] = fill_f32, [CLV_F64] = fill_f64,
};

static void fill_tokens(const clv_dataset *ds, size_t r, int64_t *dst) {
  for (size_t i = 0; i < ds->record; i++)
    dst[i] = clv_dataset_integer(ds->inputs, r * ds->record + i);
}

static clv_code check_output(const char *what, const clv_tensor *t, clv_dtype dtype,
                             clv_shape wanted, clv_err *err) {
  char want[160], found[160];
  clv_shape have = t->shape;
  if (have.rank == wanted.rank && have.rank > 0 && have.dim[0] >= wanted.dim[0])
    have.dim[0] = wanted.dim[0];
  if (t->dtype == dtype && clv_shape_equal(&have, &wanted)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "batch %s: expected %s %s (or more rows), found %s %s", what,
                  clv_dtype_name(dtype), clv_shape_format(&wanted, want, sizeof want),
                  clv_dtype_name(t->dtype), clv_shape_format(&t->shape, found, sizeof found));
}

static clv_code check_inputs(const clv_dataset *ds, size_t n, clv_tensor *const *x, clv_err *err) {
  for (size_t k = 0; k < clv_dataset_inputs(ds); k++) {
    clv_data_input want = clv_dataset_input(ds, k, n);
    CLV_TRY(check_output(ds->named ? want.name : "x", x[k], want.dtype, want.shape, err));
  }
  return CLV_OK;
}

static void fill_input(const clv_dataset *ds, size_t r, clv_tensor *const *inputs, size_t i) {
  clv_tensor *x = inputs[0];
  if (ds->named)
    for (size_t k = 0; k < ds->n_named; k++) clv_inputs_fill(ds, k, r, inputs[k], i);
  else if (ds->tokens)
    fill_tokens(ds, r, (int64_t *)x->data + i * ds->record);
  else
    fill_record[ds->inputs->dtype](ds, r, (float *)x->data + i * ds->record);
}

/* Of record r in row i of a batch. */
static void hide(const clv_dataset *ds, const clv_draw *draw, uint32_t r, clv_tensor *ids,
                 clv_tensor *y, size_t i) {
  size_t from = i * (size_t)ds->y_shape.dim[1];
  clv_objective_mask(ds, draw, r, (int64_t *)ids->data + from, (int64_t *)y->data + from);
}

clv_code clv_batch_draw(const clv_dataset *ds, const clv_draw *draw, const uint32_t *index,
                        size_t n, clv_tensor *const *x, clv_tensor *y, clv_err *err) {
  CLV_TRY(check_inputs(ds, n, x, err));
  if (y && !ds->labels)
    return clv_fail(err, CLV_PRECONDITION, "batch y: the dataset has no labels");
  if (y) CLV_TRY(check_output("y", y, clv_dataset_y_dtype(ds), clv_dataset_y_shape(ds, n), err));
  size_t row = y ? ds->labels->bytes / (size_t)ds->labels->shape.dim[0] : 0;
  for (size_t i = 0; i < n; i++) {
    if (index[i] >= ds->count)
      return clv_fail(err, CLV_INVALID, "record %u is outside 0..%zu", index[i], ds->count - 1);
    if (!ds->images) fill_input(ds, index[i], x, i);
    if (y) memcpy((char *)y->data + i * row, (const char *)ds->labels->data + index[i] * row, row);
    if (y && ds->objective == CLV_OBJECTIVE_MASKED) hide(ds, draw, index[i], x[ds->ids], y, i);
  }
  if (!ds->images) return CLV_OK;
  const clv_sample_tables tables = {ds->table, ds->wide, ds->n_norm > 1};
  return clv_images_fill(ds->images, draw, index, n, &tables, x[0]->data, err);
}

clv_code clv_batch_fill(const clv_dataset *ds, const uint32_t *index, size_t n, clv_tensor *x,
                        clv_tensor *y, clv_err *err) {
  if (clv_dataset_inputs(ds) > 1)
    return clv_fail(err, CLV_INVALID, "a record has %zu inputs, and one tensor is to be filled",
                    clv_dataset_inputs(ds));
  return clv_batch_draw(ds, NULL, index, n, &x, y, err);
}
