/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests of the data that training reads: inputs and labels as they are in memory, so a file that
 * was compressed again has the same digest. For images, the bytes of the files are digested.
 *
 */
#include <stdio.h>

#include "master/data/dataset_int.h"

/* Computes SHA-256 over the type, the shape and the digest of the values. */
static clv_code digest_values(const char *type_name, const clv_shape *shape, const void *values,
                              size_t n_bytes, clv_sha256 *ret, clv_err *err) {
  char shape_text[160], hex[65], text[320];
  CLV_TRY(clv_sha256_of(values, n_bytes, ret, err));
  clv_sha256_hex(ret, hex);
  int n = snprintf(text, sizeof text, "cleave data 1 %s %s %s", type_name,
                   clv_shape_format(shape, shape_text, sizeof shape_text), hex);
  return clv_sha256_of(text, (size_t)n, ret, err);
}

static clv_code digest_tensor(const clv_dataset *ds, const clv_tensor *t, clv_sha256 *ret,
                              clv_err *err) {
  clv_shape shape = t->shape;
  size_t row_bytes = t->bytes / (size_t)t->shape.dim[0];
  shape.dim[0] = (int64_t)ds->count;
  return digest_values(clv_dtype_name(t->dtype), &shape, t->data, ds->count * row_bytes, ret, err);
}

static clv_code digest_images(const clv_dataset *ds, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_freep) clv_sha256 *of = NULL;
  CLV_TRY(clv_alloc(ds->count, sizeof *of, &of, err));
  CLV_TRY(clv_images_digest(ds->images, of, err));
  return digest_values("images", &CLV_SHAPE((int64_t)ds->count), of, ds->count * sizeof *of, ret,
                       err);
}

size_t clv_dataset_part_count(const clv_dataset *ds) {
  return clv_dataset_input_count(ds) + (ds->labels != NULL);
}

const char *clv_dataset_part_name(const clv_dataset *ds, size_t part_index) {
  if (part_index == clv_dataset_input_count(ds)) return "labels";
  return ds->named_inputs ? ds->named_inputs[part_index].name : "records";
}

const char *clv_dataset_part_path(const clv_dataset *ds, size_t part_index) {
  if (part_index < ds->n_named_inputs) return ds->named_inputs[part_index].path;
  bool is_labels_part = part_index == clv_dataset_input_count(ds);
  return is_labels_part && ds->labels_path ? ds->labels_path : ds->inputs_path;
}

clv_code clv_dataset_digest(const clv_dataset *ds, size_t part_index, clv_sha256 *ret,
                            clv_err *err) {
  if (part_index == clv_dataset_input_count(ds)) return digest_tensor(ds, ds->labels, ret, err);
  if (ds->images) return digest_images(ds, ret, err);
  return digest_tensor(ds, ds->named_inputs ? ds->named_inputs[part_index].data : ds->inputs, ret,
                       err);
}

clv_code clv_dataset_digest_file_stamps(const clv_dataset *ds, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes lines = {0};
  *ret = (clv_sha256){{0}};
  if (!ds->images) return CLV_OK;
  CLV_TRY(clv_images_list_file_stamps(ds->images, &lines, err));
  return clv_sha256_of(lines.data ? lines.data : "", lines.len, ret, err);
}

clv_code clv_subset_digest(const clv_dataset *ds, const clv_subset *s, clv_sha256 *ret,
                           clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *numbers = NULL;
  CLV_TRY(clv_alloc(s->n, sizeof *numbers, &numbers, err));
  for (size_t i = 0; i < s->n; i++)
    numbers[i] = (uint32_t)clv_dataset_record_number(ds, s->index[i]);
  return digest_values("rows", &CLV_SHAPE((int64_t)s->n), numbers, s->n * sizeof *numbers, ret,
                       err);
}
