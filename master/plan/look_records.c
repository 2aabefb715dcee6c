/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the records on which the look (look.c) runs its attacks: at random by the seed of the
 * run, with equally many of each class as far as possible.
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/look_int.h"

enum { MAX_POOL_RECORDS = 16384 }; /* most records among which the look chooses */

typedef struct look_record {
  int64_t class_number;
  uint32_t record_number, random_order;
  uint32_t rank_in_class; /* index of the record among those of its class, from 0 on */
  /* true: the record is in the half that an attack is tested with; false: in the half that it
   * learns from */
  bool is_in_second_half;
} look_record;

static int compare_by_class(const void *a, const void *b) {
  const look_record *x = a, *y = b;
  if (x->class_number != y->class_number) return x->class_number < y->class_number ? -1 : 1;
  return x->random_order < y->random_order ? -1 : x->random_order > y->random_order;
}

static int compare_by_rank(const void *a, const void *b) {
  const look_record *x = a, *y = b;
  if (x->rank_in_class != y->rank_in_class) return x->rank_in_class < y->rank_in_class ? -1 : 1;
  return x->random_order < y->random_order ? -1 : x->random_order > y->random_order;
}

static clv_code fill_pool(const clv_look_options *o, const clv_key *seed, size_t n,
                          look_record *pool, clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *random_order = NULL;
  const clv_rng_key key = clv_rng_key_of(seed);
  CLV_TRY(clv_alloc(n, sizeof *random_order, &random_order, err));
  clv_rng_permutation(&key, random_order, n);
  for (size_t i = 0; i < n; i++) {
    uint32_t record = o->rows->index[(size_t)((double)i * (double)o->rows->n / (double)n)];
    pool[i] = (look_record){.class_number = clv_dataset_record_class(o->dataset, record),
                            .record_number = record,
                            .random_order = random_order[i]};
  }
  return CLV_OK;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Numbers the classes of numeric labels. If the labels have few different numbers, each number is a
 * class. */
static clv_code number_label_classes(const clv_look_options *o, look_record *pool, size_t n,
                                     clv_err *err) {
  CLV_AUTO(clv_freep) double *label_values = NULL;
  double y;
  size_t n_different = 0;
  if (clv_dataset_y_dtype(o->dataset) != CLV_F32) return CLV_OK;
  CLV_TRY(clv_alloc(n, sizeof *label_values, &label_values, err));
  for (size_t i = 0; i < n; i++)
    if (!clv_dataset_label(o->dataset, pool[i].record_number, &label_values[i])) return CLV_OK;
  qsort(label_values, n, sizeof *label_values, compare_doubles);
  for (size_t i = 0; i < n; i++)
    if (!n_different || label_values[i] > label_values[n_different - 1])
      label_values[n_different++] = label_values[i];
  if (n_different > CLV_MIN(n / 2, (size_t)CLV_LOOK_MAX_CLASSES)) return CLV_OK;
  for (size_t i = 0; i < n; i++) {
    clv_dataset_label(o->dataset, pool[i].record_number, &y);
    pool[i].class_number = 0;
    while ((size_t)pool[i].class_number + 1 < n_different && label_values[pool[i].class_number] < y)
      pool[i].class_number++;
  }
  return CLV_OK;
}

/* Ranks the records within their classes, and assigns them in turn to the half that an attack
 * learns from and the half that it is tested with. If the first record of one class is in one half,
 * that of the next class is in the other. */
static void rank_records(look_record *pool, size_t n) {
  uint32_t class_number = 0;
  qsort(pool, n, sizeof *pool, compare_by_class);
  for (size_t i = 0; i < n; i++) {
    bool is_same_class = i && pool[i].class_number == pool[i - 1].class_number;
    class_number += i && !is_same_class;
    pool[i].rank_in_class = is_same_class ? pool[i - 1].rank_in_class + 1 : 0;
    pool[i].is_in_second_half = (pool[i].rank_in_class + class_number) & 1;
  }
  qsort(pool, n, sizeof *pool, compare_by_rank);
}

static void split_halves(const look_record *pool, size_t max_records, uint32_t *record_indexes,
                         clv_look_split *ret) {
  *ret = (clv_look_split){0};
  for (int half = 0; half < 2; half++) {
    for (size_t i = 0; i < max_records; i++)
      if (pool[i].is_in_second_half == half) record_indexes[ret->n++] = pool[i].record_number;
    if (!half) ret->n_fit = ret->n;
  }
}

static clv_code read_records(const clv_look_options *o, const uint32_t *record_indexes,
                             clv_look_sample *s, clv_err *err) {
  s->n_inputs = clv_dataset_input_count(o->dataset);
  for (size_t k = 0; k < s->n_inputs; k++) {
    clv_data_input in = clv_dataset_input(o->dataset, k, s->record_counts.n);
    CLV_TRY(clv_tensor_new(in.dtype, &in.shape, &s->x[k], err));
  }
  if (clv_dataset_has_labels(o->dataset)) {
    clv_shape shape = clv_dataset_y_shape(o->dataset, s->record_counts.n);
    CLV_TRY(clv_tensor_new(clv_dataset_y_dtype(o->dataset), &shape, &s->y, err));
  }
  return clv_batch_fill_inputs(o->dataset, NULL, record_indexes, s->record_counts.n, s->x, s->y,
                               err);
}

static clv_code sample_new(const clv_look_options *o, const clv_key *seed, size_t max_records,
                           clv_look_sample *ret, clv_err *err) {
  CLV_AUTO(clv_look_sample_done) clv_look_sample s = {0};
  CLV_AUTO(clv_freep) look_record *pool = NULL;
  uint32_t record_indexes[CLV_LOOK_MAX_RECORDS];
  size_t n = CLV_MIN(o->rows->n, (size_t)MAX_POOL_RECORDS);
  CLV_TRY(clv_alloc(n, sizeof *pool, &pool, err));
  CLV_TRY(fill_pool(o, seed, n, pool, err));
  CLV_TRY(number_label_classes(o, pool, n, err));
  rank_records(pool, n);
  max_records = CLV_MIN(CLV_MIN(max_records, n), (size_t)CLV_LOOK_MAX_RECORDS);
  split_halves(pool, max_records, record_indexes, &s.record_counts);
  if (max_records) CLV_TRY(read_records(o, record_indexes, &s, err));
  *ret = s;
  s = (clv_look_sample){0};
  return CLV_OK;
}

clv_code clv_look_choose_records(const clv_look_draw *r, size_t max_records, clv_err *err) {
  clv_look_sample *s = r->sample;
  if (!s->record_counts.n) CLV_TRY(sample_new(r->o, r->weights.seed, max_records, s, err));
  if (s->record_counts.n >= CLV_LOOK_MIN_RECORDS) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "%zu records are too few, %d at least", s->record_counts.n,
                  CLV_LOOK_MIN_RECORDS);
}

void clv_look_sample_done(clv_look_sample *s) {
  if (!s) return;
  for (size_t k = 0; k < s->n_inputs; k++) clv_tensor_unref(s->x[k]);
  clv_tensor_unref(s->y);
  *s = (clv_look_sample){0};
}
