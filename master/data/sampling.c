/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted sampling (data.sampling). Adds up the chances of the records, and draws the records of
 * an epoch with replacement by these sums. The draws of an epoch depend only on (seed, epoch), as a
 * shuffle does.
 */
#include <float.h>
#include <stdlib.h>

#include "master/data/dataset_int.h"

/* RNG stream of the draws; a comment in split.c lists the other streams. */
static const uint32_t sampling_rng_stream = 0xfffffff6u;

static int compare_classes(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* Returns how many of the n classes in an ascending list are less than `class`. */
static size_t count_classes_below(const int64_t *sorted_classes, size_t n, int64_t class) {
  size_t low = 0, high = n;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (sorted_classes[middle] < class)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Records that are drawn by class: by the record's single class, or by its class in one of several
 * targets. */
typedef struct drawn_records {
  const clv_dataset *ds;
  const clv_subset *rows;
  size_t target; /* number of the target, from 1; 0: a record has one class */
} drawn_records;

/* Returns the class of the i-th record; -1: the record has no label of the target. */
static int64_t class_of(const drawn_records *r, size_t i) {
  return r->target ? clv_dataset_target_class(r->ds, r->target - 1, r->rows->index[i])
                   : clv_dataset_split_class(r->ds, r->rows->index[i]);
}

/* Sets the chance of each record to 1 divided by the number of records of its class, so that each
 * class is drawn equally often. */
static clv_code set_chances_by_class_count(const drawn_records *r, double *chances, clv_err *err) {
  CLV_AUTO(clv_freep) int64_t *sorted = NULL;
  const clv_subset *rows = r->rows;
  CLV_TRY(clv_alloc(rows->n, sizeof *sorted, &sorted, err));
  for (size_t i = 0; i < rows->n; i++) sorted[i] = class_of(r, i);
  qsort(sorted, rows->n, sizeof *sorted, compare_classes);
  for (size_t i = 0; i < rows->n; i++) {
    int64_t class = class_of(r, i);
    size_t n = count_classes_below(sorted, rows->n, class + 1) -
               count_classes_below(sorted, rows->n, class);
    chances[i] = 1.0 / (double)n;
  }
  return CLV_OK;
}

/* Sets the chance of each record to its weight in a column. */
static clv_code read_chances(const clv_dataset *ds, const clv_subset *rows, double *chances,
                             clv_err *err) {
  const clv_table_column *c = ds->table ? ds->table->weight : NULL;
  if (!c) return clv_fail(err, CLV_INVALID, "these records have no column of weights");
  for (size_t i = 0; i < rows->n; i++) {
    chances[i] = c->numbers[clv_table_row(ds->table, rows->index[i])];
    if (!(chances[i] >= 0 && chances[i] <= DBL_MAX))
      return clv_fail(err, CLV_DATA_LOSS, "record %zu has the weight %g in '%.80s': 0 or more",
                      clv_dataset_record_number(ds, rows->index[i]), chances[i], c->o.name);
  }
  return CLV_OK;
}

/* Sets the chance of each record to the weight of its class. */
static clv_code set_chances_by_class(const drawn_records *r, const double *weights,
                                     size_t n_weights, double *chances, clv_err *err) {
  for (size_t i = 0; i < r->rows->n; i++) {
    int64_t class = class_of(r, i);
    if (class < 0 && r->target) continue; /* average_unlabelled sets the chance of this record */
    if (class < 0 || (uint64_t) class >= n_weights)
      return clv_fail(err, CLV_INVALID,
                      "record %zu has class %lld, and there are weights of %zu classes, from 0",
                      clv_dataset_record_number(r->ds, r->rows->index[i]), (long long)class,
                      n_weights);
    chances[i] = weights[class];
  }
  return CLV_OK;
}

/* Sets the chance of each record without a label of the target to the mean chance of the others. */
static void average_unlabelled(const drawn_records *r, double *chances) {
  double sum = 0;
  size_t n = 0;
  for (size_t i = 0; i < r->rows->n; i++) {
    if (class_of(r, i) < 0) continue;
    sum += chances[i];
    n++;
  }
  for (size_t i = 0; i < r->rows->n; i++)
    if (class_of(r, i) < 0) chances[i] = n ? sum / (double)n : 0;
}

/* Adds to each chance the chances of all records before it. Returns true if the total is above 0
 * and finite. */
static bool accumulate_chances(double *chances, size_t n) {
  for (size_t i = 1; i < n; i++) chances[i] += chances[i - 1];
  return n && chances[n - 1] > 0 && chances[n - 1] <= DBL_MAX;
}

static clv_code make_sums(const drawn_records *r, const double *weights, size_t n_weights,
                          double **ret, clv_err *err) {
  CLV_AUTO(clv_freep) double *sums = NULL;
  CLV_TRY(clv_alloc(r->rows->n, sizeof *sums, &sums, err));
  CLV_TRY(n_weights ? set_chances_by_class(r, weights, n_weights, sums, err)
                    : set_chances_by_class_count(r, sums, err));
  if (r->target) average_unlabelled(r, sums);
  if (!accumulate_chances(sums, r->rows->n))
    return clv_fail(err, CLV_INVALID, "no training record has a class whose weight is above 0");
  *ret = clv_steal(&sums);
  return CLV_OK;
}

clv_code clv_sampling_sums(const clv_dataset *ds, const clv_subset *rows, const double *weights,
                           size_t n_weights, double **ret, clv_err *err) {
  if (!clv_dataset_has_record_classes(ds))
    return clv_fail(err, CLV_INVALID, "these records do not have one class each");
  return make_sums(&(drawn_records){ds, rows, 0}, weights, n_weights, ret, err);
}

clv_code clv_sampling_sums_of_target(const clv_dataset *ds, const clv_subset *rows, size_t target,
                                     const double *weights, size_t n_weights, double **ret,
                                     clv_err *err) {
  return make_sums(&(drawn_records){ds, rows, target + 1}, weights, n_weights, ret, err);
}

clv_code clv_sampling_sums_of_column(const clv_dataset *ds, const clv_subset *rows, double **ret,
                                     clv_err *err) {
  CLV_AUTO(clv_freep) double *sums = NULL;
  CLV_TRY(clv_alloc(rows->n, sizeof *sums, &sums, err));
  CLV_TRY(read_chances(ds, rows, sums, err));
  if (!accumulate_chances(sums, rows->n))
    return clv_fail(err, CLV_INVALID,
                    "%.200s: the column '%.80s' is 0 in all %zu training records, or too large to "
                    "add up: give records that are to be drawn a weight above 0",
                    ds->inputs_path, ds->table->weight->o.name, rows->n);
  *ret = clv_steal(&sums);
  return CLV_OK;
}

void clv_sampling_draw(const double *sums, size_t n, uint64_t seed, uint64_t epoch,
                       uint32_t *ret_order) {
  const clv_rng_key key = {.seed = seed, .step = epoch, .layer = sampling_rng_stream};
  for (size_t i = 0; i < n; i++) {
    uint32_t random_words[4];
    clv_rng_block(&key, (uint32_t)i, random_words);
    double u =
        (double)(((uint64_t)random_words[0] << 32 | random_words[1]) >> 11) * 0x1p-53 * sums[n - 1];
    size_t low = 0, high = n - 1;
    while (low < high) { /* finds the first sum above u */
      size_t middle = low + (high - low) / 2;
      if (sums[middle] > u)
        high = middle;
      else
        low = middle + 1;
    }
    ret_order[i] = (uint32_t)low;
  }
}
