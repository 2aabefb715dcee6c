/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens datasets of the format images: a folder of PNG and JPEG files, with a folder per class. A
 * file is read when a batch needs it (images.c).
 *
 */
#include <string.h>

#include "master/data/dataset_int.h"

static clv_code set_folder_labels(clv_dataset *ds, clv_err *err) {
  const clv_image_folder *f = clv_images_folder(ds->images);
  ds->y_shape = CLV_SHAPE((int64_t)f->n);
  CLV_TRY(clv_tensor_new(CLV_I64, &ds->y_shape, &ds->labels, err));
  int64_t *out = ds->labels->data;
  for (size_t i = 0; i < f->n; i++) out[i] = f->labels[i];
  ds->label_max = (int64_t)f->n_classes - 1;
  return CLV_OK;
}

static clv_code set_class_names(clv_dataset *ds, clv_err *err) {
  const clv_image_folder *f = clv_images_folder(ds->images);
  CLV_TRY(clv_alloc(f->n_classes, sizeof *ds->classes, &ds->classes, err));
  for (size_t i = 0; i < f->n_classes; i++) ds->classes[i] = f->names.data + f->classes[i];
  ds->n_classes = f->n_classes;
  return CLV_OK;
}

clv_code clv_images_set_records(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  uint32_t height, width;
  clv_images_record_size(ds->images, &height, &width);
  ds->count = clv_images_folder(ds->images)->n;
  ds->channels = o->images.channels;
  ds->values_per_channel = (size_t)height * width;
  ds->elements_per_record = ds->channels * ds->values_per_channel;
  ds->x_shape = o->flattens_records
                    ? CLV_SHAPE((int64_t)ds->count, (int64_t)ds->elements_per_record)
                    : CLV_SHAPE((int64_t)ds->count, (int64_t)ds->channels, height, width);
  CLV_TRY(clv_dataset_set_normalisation(ds, o, true, err));
  return clv_dataset_make_normalised_u16_values(ds, err);
}

static clv_code open_images(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  if ((o->labels != CLV_LABEL_CLASS && !o->skips_labels) || o->labels_path || o->holds_tokens)
    return clv_fail(err, CLV_INVALID,
                    "a folder of images has classes as its labels: it goes with cross_entropy or "
                    "nll, and not with an embedding as the first layer");
  CLV_TRY(clv_images_open(o, &ds->images, err));
  CLV_TRY(set_class_names(ds, err));
  CLV_TRY(clv_images_set_records(ds, o, err));
  return o->skips_labels ? CLV_OK : set_folder_labels(ds, err);
}

/* Groups images by the folders below the class: "cat/anna/1.png" is in the group "anna". */
static clv_code group_by_folder(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  const clv_image_folder *f = clv_images_folder(ds->images);
  (void)o;
  for (size_t i = 0; i < ds->count; i++) {
    const char *path = f->names.data + f->paths[i];
    const char *folder_below_class = strchr(path, '/') + 1, *name = strrchr(path, '/') + 1;
    if (folder_below_class == name)
      return clv_fail(err, CLV_INVALID,
                      "%s/%s is in no group: data.validation.by: group needs a folder for each "
                      "group in the folders of the classes, as in cat/anna/1.png",
                      f->root, path);
    ds->groups[i] = clv_group_number(folder_below_class, (size_t)(name - folder_below_class));
  }
  return CLV_OK;
}

size_t clv_dataset_stray_file_count(const clv_dataset *ds, const char **ret_first) {
  const clv_image_folder *f = ds->images ? clv_images_folder(ds->images) : NULL;
  *ret_first = f ? f->first_stray_file : NULL;
  return f ? f->n_stray_files : 0;
}

const char *clv_dataset_image_path(const clv_dataset *ds, size_t record) {
  if (!ds->images) return NULL;
  const clv_image_folder *f = clv_images_folder(ds->images);
  const char *path = f->names.data + f->paths[record];
  return strncmp(path, "./", 2) == 0 ? path + 2 : path;
}

const clv_format_reader clv_reader_images = {.open = open_images, .group = group_by_folder};
