/* SPDX-License-Identifier: Apache-2.0
 *
 * Which records belong together, such as the images of a patient: a number for each record, equal
 * in a group. Where groups have names, the number is a digest of the name.
 */
#include <string.h>

#include "master/data/dataset_int.h"
#include "master/data/reader_int.h"

/* FNV-1a of 64 bits: two names with one number would be held back together, and no more. */
int64_t clv_group_of(const char *name, size_t len) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
  return (int64_t)h;
}

/* A whole number for each record, in a file of its own. */
static clv_code of_file(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  char text[160];
  CLV_TRY(clv_data_read(o->group, o->format, o->max_bytes, &t, NULL, err));
  if (t->dtype == CLV_F32 || t->dtype == CLV_F64)
    return clv_fail(err, CLV_INVALID, "%s: groups are whole numbers, found %s", o->group,
                    clv_dtype_name(t->dtype));
  if (t->n != ds->count)
    return clv_fail(err, CLV_INVALID, "%s: a number for each of %zu records is expected, found %s",
                    o->group, ds->count, clv_shape_format(&t->shape, text, sizeof text));
  for (size_t i = 0; i < ds->count; i++) ds->groups[i] = clv_dataset_integer(t, i);
  return CLV_OK;
}

/* The folders of an image below that of its class: "cat/anna/1.png" is of the group "anna". */
static clv_code of_folder(clv_dataset *ds, clv_err *err) {
  const clv_folder *f = clv_images_folder(ds->images);
  for (size_t i = 0; i < ds->count; i++) {
    const char *path = f->names.data + f->path[i];
    const char *below = strchr(path, '/') + 1, *name = strrchr(path, '/') + 1;
    if (below == name)
      return clv_fail(err, CLV_INVALID,
                      "%s/%s is in no group: data.validation.by: group needs a folder for each "
                      "group in the folders of the classes, as in cat/anna/1.png",
                      f->root, path);
    ds->groups[i] = clv_group_of(below, (size_t)(name - below));
  }
  return CLV_OK;
}

clv_code clv_dataset_take_groups(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  const clv_bytes *read = ds->pages ? &ds->pages->groups : ds->texts ? &ds->texts->groups : NULL;
  if ((!o->grouped && !ds->pages) || o->unlabelled) return CLV_OK;
  CLV_TRY(clv_alloc(ds->count, sizeof *ds->groups, &ds->groups, err));
  if (read) {
    memcpy(ds->groups, read->data, CLV_MIN(read->len, ds->count * sizeof *ds->groups));
    return CLV_OK;
  }
  return ds->images ? of_folder(ds, err) : of_file(ds, o, err);
}
