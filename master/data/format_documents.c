/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens datasets of the format documents: windows of pages, with words and boxes (pages.c).
 */
#include "master/data/dataset_int.h"

static clv_code open_pages(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  static const char *const names[] = {"ids", "lengths", "boxes"};
  if (!o->n_named_inputs || o->labels_path || (o->labels != CLV_LABEL_CLASS && !o->skips_labels))
    return clv_fail(err, CLV_INVALID,
                    "labels of documents are classes: they go with cross_entropy or nll");
  CLV_TRY(clv_page_set_open(o, &ds->pages, err));
  clv_page_set *p = ds->pages;
  ds->classes = clv_steal(&p->classes);
  ds->n_classes = p->names.n;
  ds->broken = p->broken;
  p->broken = (clv_broken_records){0};
  clv_tensor **const tensors[] = {&p->ids, &p->lengths, &p->boxes};
  CLV_TRY(clv_dataset_set_objective(ds, o, p->token_info, p->ids, p->lengths, err));
  CLV_TRY(clv_inputs_select(ds, o, names, tensors, CLV_COUNT(names), err));
  if (p->labels) clv_dataset_set_labels(ds, &p->labels, p->names.n);
  return CLV_OK;
}

static clv_code group_by_file_or_page(clv_dataset *ds, const clv_dataset_options *o, clv_err *err) {
  (void)o;
  (void)err;
  clv_dataset_set_groups(ds, &ds->pages->groups);
  return CLV_OK;
}

clv_page_counts clv_dataset_page_counts(const clv_dataset *ds) {
  return ds->pages ? ds->pages->counts : (clv_page_counts){0};
}

size_t clv_dataset_kept_page_count(const clv_dataset *ds) {
  return ds->pages ? ds->pages->kept_pages.n : 0;
}

const clv_kept_page *clv_dataset_kept_page(const clv_dataset *ds, size_t page) {
  return &ds->pages->kept_pages.pages[page];
}

const int32_t *clv_dataset_token_word_indices(const clv_dataset *ds, size_t record, size_t *ret_n) {
  const clv_tensor *t = ds->pages->token_words;
  *ret_n = (size_t)t->shape.dim[1];
  return (const int32_t *)t->data + record * *ret_n;
}

const clv_format_reader clv_reader_documents = {
    .open = open_pages, .group = group_by_file_or_page, .always_reads_groups = true};
