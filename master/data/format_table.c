/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens datasets of the format table. A dataset has its cells when it is opened; clv_dataset_encode
 * makes the input from them, after the split has chosen the training records.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/cells_int.h"
#include "master/data/dataset_int.h"

static clv_code set_number_labels(clv_dataset *ds, clv_err *err) {
  const clv_table_column *target = ds->table->target;
  ds->y_shape = CLV_SHAPE((int64_t)ds->count, 1);
  CLV_TRY(clv_tensor_new(CLV_F32, &ds->y_shape, &ds->labels, err));
  float *labels = ds->labels->data;
  for (size_t i = 0; i < ds->count; i++)
    labels[i] = (float)target->numbers[clv_table_row(ds->table, i)];
  return CLV_OK;
}

/* Sets the labels to class numbers, and the class names of the dataset, both as in the learnt facts
 * `l`. */
static clv_code set_class_labels(clv_dataset *ds, const clv_learnt *l, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *y = NULL;
  CLV_AUTO(clv_freep) char **classes = NULL;
  CLV_TRY(clv_table_class_labels(ds->table, l, ds->inputs_path, &y, err));
  CLV_TRY(clv_alloc(l->n_classes, sizeof *classes, &classes, err));
  ds->class_names.len = 0;
  for (size_t i = 0; i < l->n_classes; i++)
    clv_bytes_add(&ds->class_names, l->classes[i], strlen(l->classes[i]) + 1);
  if (ds->class_names.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for classes");
  for (size_t i = 0, at = 0; i < l->n_classes; i++) {
    classes[i] = ds->class_names.data + at;
    at += strlen(classes[i]) + 1;
  }
  free(ds->classes);
  ds->classes = clv_steal(&classes);
  ds->n_classes = l->n_classes;
  clv_tensor_unref(ds->labels);
  ds->labels = NULL;
  clv_dataset_set_labels(ds, &y, l->n_classes);
  return CLV_OK;
}

/* Sets the labels when the table is opened, because the split needs them. Classes are numbered
 * among the classes of all records of the table. */
static clv_code set_labels(clv_dataset *ds, clv_err *err) {
  CLV_AUTO(clv_learnt_freep) clv_learnt *l = NULL;
  if (!ds->table->target && !ds->table->n_targets) return CLV_OK;
  if (ds->table->target && ds->table->target->has_numbers) return set_number_labels(ds, err);
  CLV_TRY(clv_table_learn_classes(ds->table, &l, err));
  return ds->table->n_targets ? clv_targets_set_labels(ds, l, err) : set_class_labels(ds, l, err);
}

/* Opens the images whose paths are in a column. Each image is a record. */
static clv_code open_image_files(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  CLV_AUTO(clv_image_folder_done) clv_image_folder folder = {0};
  const clv_cell_table *t = ds->table;
  size_t n = o->limit ? CLV_MIN(o->limit, t->count) : t->count;
  CLV_TRY(clv_image_folder_list(t->image_folder_path, clv_table_id_texts(t), t->path_offsets, n,
                                &folder, err));
  CLV_TRY(clv_images_open_list(o, &folder, &ds->images, err));
  return clv_images_set_records(ds, o, err);
}

static clv_code open_table(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  if ((o->holds_tokens && !clv_table_has_texts(&o->table)) || o->labels_path)
    return clv_fail(err, CLV_PRECONDITION,
                    "a record of a table is a row of numbers: an embedding reads a column with "
                    "as: index or as: text");
  CLV_TRY((clv_table_is_on_disk(o) ? clv_table_open_on_disk : clv_table_open)(o, &ds->table, err));
  ds->count = ds->table->count;
  ds->broken = ds->table->broken;
  ds->table->broken = (clv_broken_records){0};
  CLV_TRY(clv_table_prepare_texts(ds, o, err));
  if (ds->table->path_offsets) CLV_TRY(open_image_files(ds, o, err));
  CLV_TRY(set_labels(ds, err));
  for (size_t k = 0; o->table.split_target && k < ds->n_targets; k++)
    if (strcmp(ds->targets[k].name, o->table.split_target) == 0) ds->split_target = k + 1;
  return CLV_OK;
}

static clv_code group_by_column(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  const clv_tensor *group_file = ds->table->group_file;
  (void)o;
  (void)err;
  if (group_file)
    memcpy(ds->groups, group_file->data, group_file->bytes);
  else
    clv_dataset_set_groups(ds, &ds->table->groups);
  return CLV_OK;
}

const clv_format_reader clv_reader_table = {.open = open_table, .group = group_by_column};

bool clv_dataset_has_table(const clv_dataset *ds) { return ds->table != NULL; }

clv_code clv_dataset_learn(const clv_dataset *ds, const clv_subset *rows, clv_learnt **ret,
                           clv_err *err) {
  clv_err reason;
  if (clv_table_learn(ds->table, rows, ret, &reason) == CLV_OK) return CLV_OK;
  return clv_fail(err, reason.code, "%.200s: %s", ds->inputs_path, reason.text);
}

/* Returns the session's options of the column `name`, which must be in the table. */
static const clv_column_options *find_column_options(const clv_dataset *ds, const char *name) {
  size_t i = 0;
  while (strcmp(ds->table->columns[i].o.name, name) != 0) i++;
  return &ds->table->columns[i].o;
}

/* Adds an input: for each record the number of its value among the learnt values of a column. */
static clv_code add_index_input(clv_dataset *ds, const clv_learnt *l, size_t column, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL;
  const clv_learnt_column *c = &l->columns[column];
  if (ds->n_named_inputs == CLV_DATA_MAX_INPUTS)
    return clv_fail(err, CLV_INVALID, "column '%.80s': a record has at most %d inputs", c->name,
                    CLV_DATA_MAX_INPUTS);
  CLV_TRY(clv_table_encode_index(ds->table, l, column, &x, err));
  const clv_column_options *o = find_column_options(ds, c->name);
  clv_named_input *in = &ds->named_inputs[ds->n_named_inputs];
  CLV_TRY(clv_inputs_add(ds, o->input ? o->input : o->name, ds->inputs_path, &x, err));
  in->index_facts = (clv_index_facts){.column = o->name,
                                      .n_values = c->n_values,
                                      .has_missing_row = c->missing == CLV_MISSING_OWN,
                                      .n_rows = clv_learnt_index_row_count(c)};
  return CLV_OK;
}

/* Makes the named inputs of a table that has index columns, or texts whose inputs have names. The
 * first input has the elements of all other columns. */
static clv_code add_table_inputs(clv_dataset *ds, const clv_learnt *l, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = clv_steal(&ds->inputs);
  CLV_TRY(clv_alloc(CLV_DATA_MAX_INPUTS, sizeof *ds->named_inputs, &ds->named_inputs, err));
  if (x) CLV_TRY(clv_inputs_add(ds, "input", ds->inputs_path, &x, err));
  for (size_t i = 0; i < l->n_columns; i++)
    if (l->columns[i].use == CLV_COLUMN_INDEX) CLV_TRY(add_index_input(ds, l, i, err));
  return clv_table_add_text_inputs(ds, err);
}

static bool has_index_column(const clv_learnt *l) {
  for (size_t i = 0; i < l->n_columns; i++)
    if (l->columns[i].use == CLV_COLUMN_INDEX) return true;
  return false;
}

/* Makes the inputs of records that are not images. */
static clv_code set_inputs(clv_dataset *ds, const clv_learnt *l, clv_err *err) {
  const clv_dataset_options options = {
      .inputs_path = ds->inputs_path, .max_bytes = SIZE_MAX, .holds_tokens = ds->texts != NULL};
  size_t count = ds->count;
  if (has_index_column(l) || ds->n_text_inputs) return add_table_inputs(ds, l, err);
  if (ds->texts) ds->inputs = clv_steal(&ds->texts->tokens);
  CLV_TRY(clv_arrays_set_records(ds, &options, err));
  /* clv_arrays_set_records counts all rows of the table, but a limit may have kept fewer records */
  ds->count = count;
  return CLV_OK;
}

clv_code clv_dataset_encode(clv_dataset *ds, const clv_learnt *l, clv_err *err) {
  if (!ds->images) CLV_TRY(clv_table_encode(ds->table, l, &ds->inputs, err));
  CLV_TRY(clv_table_encode_texts(ds, err));
  if (ds->table->target && !ds->table->target->has_numbers) CLV_TRY(set_class_labels(ds, l, err));
  if (ds->table->n_targets) CLV_TRY(clv_targets_set_labels(ds, l, err));
  return ds->images ? CLV_OK : set_inputs(ds, l, err);
}

bool clv_dataset_index_facts(const clv_dataset *ds, size_t k, clv_index_facts *ret) {
  if (!ds->named_inputs) return false;
  *ret = ds->named_inputs[k].index_facts;
  return ret->n_rows > 0;
}

const char *clv_dataset_record_id(const clv_dataset *ds, size_t record) {
  if (!ds->table || !ds->table->id_offsets) return NULL;
  return clv_table_text(ds->table, ds->table->id_offsets, record);
}
