/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_dataset_open: calls the reader of the dataset's format, then reads the groups.
 */
#include "master/data/dataset_int.h"

static const clv_format_reader *const readers[] = {
    [CLV_FORMAT_AUTO] = &clv_reader_arrays,
#define CLV_ARRAY_FORMAT(NAME, ...) [CLV_FORMAT_##NAME] = &clv_reader_arrays,
#define CLV_DATA_FORMAT(NAME, name, ...) [CLV_FORMAT_##NAME] = &clv_reader_##name,
#include "common/base/settings/formats.def"
};

/* Reads the groups if they are needed. Call it after the reader has read the records. */
static clv_code read_groups(clv_dataset *ds, const clv_format_reader *r,
                            const clv_dataset_options *o, clv_err *err) {
  bool needs_groups = (o->reads_groups || r->always_reads_groups) && !o->skips_labels;
  if (!needs_groups && !o->kept_set_bits) return CLV_OK;
  CLV_TRY(clv_alloc(ds->count, sizeof *ds->groups, &ds->groups, err));
  CLV_TRY(r->group(ds, o, err));
  return o->kept_set_bits ? clv_dataset_keep_sets(ds, o->kept_set_bits, err) : CLV_OK;
}

clv_code clv_dataset_open(const clv_dataset_options *options, clv_dataset **ret, clv_err *err) {
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  const clv_format_reader *r = readers[options->format];
  CLV_TRY(clv_alloc(1, sizeof *ds, &ds, err));
  ds->label_kind = options->labels;
  if (options->inputs_path) CLV_TRY(clv_strdup(options->inputs_path, &ds->inputs_path, err));
  if (options->labels_path) CLV_TRY(clv_strdup(options->labels_path, &ds->labels_path, err));
  CLV_TRY(r->open(ds, options, err));
  CLV_TRY(read_groups(ds, r, options, err));
  if (options->limit && options->limit < ds->count) ds->count = options->limit;
  *ret = clv_steal(&ds);
  return CLV_OK;
}
