/* SPDX-License-Identifier: Apache-2.0
 *
 * Divides records into folds, the equal parts of a cross-validation. A permutation from the seed
 * orders the records. SHUFFLED gives them to the folds in turn; STRATIFIED does so class by class;
 * GROUPS gives each group to the fold with the fewest records.
 */
#include <stdlib.h>

#include "master/data/dataset_int.h"

/* RNG stream of the folds; a comment in split.c lists the other streams. */
static const uint32_t fold_rng_stream = 0xfffffff5u;

/* A record, or a group of records, that is dealt to a fold. */
typedef struct fold_item {
  int64_t key;     /* class or group of the record; 0: classes and groups do not matter */
  uint32_t order;  /* position in the permutation; for a group, the position of its first record */
  uint32_t record; /* index of the record; for a group, index in `list` of its first record */
  size_t n;        /* number of records */
} fold_item;

static int compare_by_class_or_group(const void *a, const void *b) {
  const fold_item *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

static int compare_by_size(const void *a, const void *b) {
  const fold_item *x = a, *y = b;
  if (x->n != y->n) return x->n > y->n ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

/* Lists the records, sorted by class or group, and within a class or group by their position in the
 * permutation. */
static clv_code list_fold_items(const clv_dataset *ds, clv_split_kind kind, uint64_t seed,
                                fold_item **ret, clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *order = NULL;
  CLV_TRY(clv_alloc(ds->count, sizeof *order, &order, err));
  CLV_TRY(clv_alloc(ds->count, sizeof **ret, ret, err));
  clv_rng_permutation(&(clv_rng_key){.seed = seed, .layer = fold_rng_stream}, order, ds->count);
  for (size_t i = 0; i < ds->count; i++) {
    uint32_t record = order[i];
    int64_t key = kind == CLV_SPLIT_GROUPS       ? ds->groups[record]
                  : kind == CLV_SPLIT_STRATIFIED ? clv_dataset_split_class(ds, record)
                                                 : 0;
    (*ret)[i] = (fold_item){key, (uint32_t)i, record, 1};
  }
  qsort(*ret, ds->count, sizeof **ret, compare_by_class_or_group);
  return CLV_OK;
}

/* Gives each group, the largest first, to the fold with the fewest records. fold_of_record:
 * [count]. */
static clv_code assign_groups_to_folds(const fold_item *list, size_t n_records, size_t n_folds,
                                       uint32_t *fold_of_record, clv_err *err) {
  CLV_AUTO(clv_freep) fold_item *groups = NULL;
  CLV_AUTO(clv_freep) size_t *sizes = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc(n_records, sizeof *groups, &groups, err));
  CLV_TRY(clv_alloc(n_folds, sizeof *sizes, &sizes, err));
  for (size_t i = 0; i < n_records; i++) {
    if (n && groups[n - 1].key == list[i].key)
      groups[n - 1].n++;
    else
      groups[n++] = (fold_item){list[i].key, list[i].order, (uint32_t)i, 1};
  }
  if (n < n_folds)
    return clv_fail(err, CLV_INVALID, "%zu groups make no %zu folds, and a group is never divided",
                    n, n_folds);
  qsort(groups, n, sizeof *groups, compare_by_size);
  for (size_t i = 0; i < n; i++) {
    size_t smallest_fold = 0;
    for (size_t k = 1; k < n_folds; k++)
      if (sizes[k] < sizes[smallest_fold]) smallest_fold = k;
    sizes[smallest_fold] += groups[i].n;
    for (size_t k = 0; k < groups[i].n; k++)
      fold_of_record[list[groups[i].record + k].record] = (uint32_t)smallest_fold;
  }
  return CLV_OK;
}

static clv_code assign_folds(const clv_dataset *ds, clv_split_kind kind, size_t n_folds,
                             uint64_t seed, uint32_t *fold_of_record, clv_err *err) {
  CLV_AUTO(clv_freep) fold_item *list = NULL;
  CLV_TRY(list_fold_items(ds, kind, seed, &list, err));
  if (kind == CLV_SPLIT_GROUPS)
    return assign_groups_to_folds(list, ds->count, n_folds, fold_of_record, err);
  for (size_t i = 0; i < ds->count; i++) fold_of_record[list[i].record] = (uint32_t)(i % n_folds);
  return CLV_OK;
}

clv_code clv_subset_split_fold(const clv_dataset *ds, clv_split_kind kind, size_t n_folds,
                               size_t fold, uint64_t seed, clv_subset *ret_train,
                               clv_subset *ret_validation, clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *fold_of_record = NULL;
  CLV_AUTO(clv_subset_done) clv_subset rest = {0}, taken = {0};
  kind = clv_dataset_split_kind(ds, kind);
  if (ds->count < n_folds)
    return clv_fail(err, CLV_INVALID, "%zu record%s make no %zu folds", ds->count, CLV_S(ds->count),
                    n_folds);
  if (kind == CLV_SPLIT_GROUPS && !ds->groups)
    return clv_fail(err, CLV_INVALID,
                    "the records have no groups: data.validation.group names them");
  CLV_TRY(clv_alloc(ds->count, sizeof *fold_of_record, &fold_of_record, err));
  CLV_TRY(assign_folds(ds, kind, n_folds, seed, fold_of_record, err));
  CLV_TRY(clv_subset_all(ds, &rest, err));
  CLV_TRY(clv_subset_all(ds, &taken, err));
  rest.n = taken.n = 0;
  for (size_t i = 0; i < ds->count; i++) {
    clv_subset *to = fold_of_record[i] + 1 == fold ? &taken : &rest;
    to->index[to->n++] = (uint32_t)i;
  }
  *ret_train = rest;
  *ret_validation = taken;
  rest = taken = (clv_subset){0};
  return CLV_OK;
}
