/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds duplicate records: within one set, or between two sets, such as training and test. Two
 * records are duplicates if all their inputs are equal bit by bit, or, for a search by id, if they
 * have the same id.
 */
#include <stdlib.h>
#include <string.h>

#include "master/data/dataset_int.h"

/* A record and the digest of what is compared: its id or its inputs. */
typedef struct keyed_record {
  clv_sha256 key;
  uint32_t record;
} keyed_record;

static int compare_records(const void *a, const void *b) {
  const keyed_record *x = a, *y = b;
  int order = memcmp(&x->key, &y->key, sizeof x->key);
  if (order) return order;
  return x->record < y->record ? -1 : x->record > y->record;
}

static clv_code digest_row(const clv_tensor *t, size_t record, clv_bytes *text, clv_err *err) {
  clv_sha256 row_digest;
  size_t row_bytes = t->bytes / (size_t)t->shape.dim[0];
  CLV_TRY(clv_sha256_of((const char *)t->data + record * row_bytes, row_bytes, &row_digest, err));
  clv_bytes_add(text, &row_digest, sizeof row_digest);
  return CLV_OK;
}

/* Computes the digest of a record's inputs: of the single input, or of all named inputs. */
static clv_code digest_inputs(const clv_dataset *ds, size_t record, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  if (ds->inputs) CLV_TRY(digest_row(ds->inputs, record, &text, err));
  for (size_t k = 0; k < ds->n_named_inputs; k++)
    CLV_TRY(digest_row(ds->named_inputs[k].data, record, &text, err));
  if (text.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return clv_sha256_of(text.data, text.len, ret, err);
}

/* Fills the keys of `rows`, digests of ids or inputs. file_digests: [count] digests of images;
 * NULL: the inputs are in memory. */
static clv_code fill_keys(const clv_dataset *ds, const clv_subset *rows, bool by_id,
                          const clv_sha256 *file_digests, keyed_record *keyed_records,
                          clv_err *err) {
  for (size_t i = 0; i < rows->n; i++) {
    uint32_t record = rows->index[i];
    const char *id = by_id ? clv_dataset_record_id(ds, record) : NULL;
    keyed_records[i].record = record;
    if (by_id)
      CLV_TRY(clv_sha256_of(id, strlen(id), &keyed_records[i].key, err));
    else if (file_digests)
      keyed_records[i].key = file_digests[record];
    else
      CLV_TRY(digest_inputs(ds, record, &keyed_records[i].key, err));
  }
  qsort(keyed_records, rows->n, sizeof *keyed_records, compare_records);
  return CLV_OK;
}

/* Lists the records `rows` with their keys (digests of ids or inputs), sorted by key. */
static clv_code list_keyed_records(const clv_dataset *ds, const clv_subset *rows, bool by_id,
                                   keyed_record **ret, clv_err *err) {
  CLV_AUTO(clv_freep) clv_sha256 *file_digests = NULL;
  CLV_TRY(clv_alloc(rows->n + 1, sizeof **ret, ret, err));
  if (ds->images && !by_id) {
    CLV_TRY(clv_alloc(ds->count, sizeof *file_digests, &file_digests, err));
    CLV_TRY(clv_images_digest(ds->images, file_digests, err));
  }
  return fill_keys(ds, rows, by_id, file_digests, *ret, err);
}

static void count_duplicate(clv_duplicates *d, const clv_dataset *a, uint32_t record,
                            const clv_dataset *b, uint32_t same_record) {
  size_t number = clv_dataset_record_number(a, record);
  if (d->n && number >= d->record) return;
  d->record = number;
  d->equal_record = clv_dataset_record_number(b, same_record);
}

/* Counts the records whose key an earlier record of the same list has. */
static void count_duplicates_in_list(const clv_dataset *ds, const keyed_record *keyed_records,
                                     size_t n, clv_duplicates *ret) {
  for (size_t i = 1, first = 0; i < n; i++) {
    double label_hash = 0, first_label_hash = 0;
    if (memcmp(&keyed_records[first].key, &keyed_records[i].key, sizeof keyed_records->key) != 0) {
      first = i;
      continue;
    }
    count_duplicate(ret, ds, keyed_records[i].record, ds, keyed_records[first].record);
    ret->n++;
    bool has_other_label =
        clv_dataset_label_hash(ds, keyed_records[i].record, &label_hash) &&
        clv_dataset_label_hash(ds, keyed_records[first].record, &first_label_hash) &&
        label_hash != first_label_hash;
    ret->n_with_other_label += has_other_label;
  }
}

static int compare_keys(const void *a, const void *b) {
  return memcmp(&((const keyed_record *)a)->key, &((const keyed_record *)b)->key,
                sizeof(clv_sha256));
}

/* Returns true if the records of two datasets can be compared: by_id: both have ids; false: both
 * have inputs of the same kind. */
static bool have_comparable_keys(const clv_dataset *a, const clv_dataset *b, bool by_id) {
  bool have_both_ids = a->table && b->table && a->table->id_offsets && b->table->id_offsets;
  return by_id ? have_both_ids : !a->images == !b->images && a->n_named_inputs == b->n_named_inputs;
}

clv_code clv_dataset_find_duplicates(const clv_dataset *ds, const clv_subset *rows,
                                     const clv_dataset *other, const clv_subset *other_rows,
                                     bool by_id, clv_duplicates *ret, clv_err *err) {
  CLV_AUTO(clv_freep) keyed_record *keyed_records = NULL, *others = NULL;
  bool is_same_set = ds == other && rows == other_rows;
  *ret = (clv_duplicates){0};
  if (!have_comparable_keys(ds, other, by_id)) return CLV_OK;
  CLV_TRY(list_keyed_records(ds, rows, by_id, &keyed_records, err));
  if (is_same_set) return count_duplicates_in_list(ds, keyed_records, rows->n, ret), CLV_OK;
  CLV_TRY(list_keyed_records(other, other_rows, by_id, &others, err));
  for (size_t i = 0; i < rows->n; i++) {
    const keyed_record *same_record =
        bsearch(&keyed_records[i], others, other_rows->n, sizeof *others, compare_keys);
    if (!same_record) continue;
    count_duplicate(ret, ds, keyed_records[i].record, other, same_record->record);
    ret->n++;
  }
  return CLV_OK;
}
