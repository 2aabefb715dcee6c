/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens datasets of the format text: a table of texts with classes (texts.c).
 */
#include "master/data/dataset_int.h"

static clv_code set_text_inputs(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  static const char *const names[] = {"ids", "lengths"};
  clv_tensor **const tensors[] = {&ds->texts->tokens, &ds->texts->lengths};
  if (o->n_named_inputs) return clv_inputs_select(ds, o, names, tensors, CLV_COUNT(names), err);
  ds->inputs = clv_steal(&ds->texts->tokens);
  return clv_arrays_set_records(ds, o, err);
}

static clv_code open_texts(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  if ((!o->holds_tokens && !o->n_named_inputs) || o->labels_path ||
      (o->labels != CLV_LABEL_CLASS && !o->skips_labels))
    return clv_fail(err, CLV_PRECONDITION,
                    "texts become tokens, and their labels are classes: the first layer must be an "
                    "embedding, and the loss cross_entropy or nll");
  CLV_TRY(clv_texts_open(o, &ds->texts, err));
  clv_texts *t = ds->texts;
  ds->classes = clv_steal(&t->classes);
  ds->n_classes = t->n_classes;
  ds->broken = t->broken;
  t->broken = (clv_broken_records){0};
  CLV_TRY(clv_dataset_set_objective(ds, o, t->token_info, t->tokens, t->lengths, err));
  CLV_TRY(set_text_inputs(ds, o, err));
  if (t->labels) clv_dataset_set_labels(ds, &t->labels, t->n_classes);
  return CLV_OK;
}

static clv_code group_by_text_column(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  (void)o;
  (void)err;
  clv_dataset_set_groups(ds, &ds->texts->groups);
  return CLV_OK;
}

size_t clv_dataset_truncated_count(const clv_dataset *ds) {
  return ds->texts ? ds->texts->n_truncated : 0;
}

const clv_format_reader clv_reader_text = {.open = open_texts, .group = group_by_text_column};
