/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which records are held back for validation, and which records remain if their number is
 * limited.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/unit/data/data_test.h"

/* Opens a dataset of n records, each of which has its number as its only value. labels: label of
 * each record; groups: group of each record, NULL: no groups. */
static clv_dataset *open_dataset(const int32_t *labels, const int32_t *groups, uint32_t n) {
  CLV_AUTO(clv_freep) float *x = calloc(n, sizeof *x);
  CLV_AUTO(clv_bytes_done) clv_bytes npy = {0};
  clv_dataset *ds = NULL;
  clv_err err;
  char dict[128], paths[3][128];
  const char *const descr[] = {"<f4", "<i4", "<i4"};
  const void *data[] = {x, labels, groups};
  for (uint32_t i = 0; i < n; i++) x[i] = (float)i;
  for (size_t i = 0; i < 3 && data[i]; i++) {
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%u,), }",
             descr[i], n);
    npy = make_npy_bytes(dict, data[i], 4 * n);
    strcpy(paths[i], write_scratch_file((const char *[]){"x", "y", "g"}[i], npy.data, npy.len));
    clv_bytes_done(&npy);
  }
  clv_dataset_options o = {.inputs_path = paths[0],
                           .labels_path = labels ? paths[1] : NULL,
                           .reads_groups = groups != NULL,
                           .group_path = groups ? paths[2] : NULL};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  return ds;
}

typedef struct halves {
  clv_subset training, held_back;
} halves;

static void free_halves(halves *h) {
  clv_subset_done(&h->training);
  clv_subset_done(&h->held_back);
}

/* Splits the dataset into training and validation records. Asserts that each record is in one half,
 * and that both halves ascend unless the split permutes them. */
static halves split_dataset(const clv_dataset *ds, double fraction, clv_split_kind kind,
                            uint64_t seed) {
  halves h = {0};
  clv_err err;
  assert_ok(clv_subset_split(ds, fraction, kind, seed, &h.training, &h.held_back, &err), &err);
  CLV_AUTO(clv_freep) uint8_t *seen = calloc(clv_dataset_count(ds), 1);
  for (size_t i = 0; i < h.training.n; i++) seen[h.training.index[i]]++;
  for (size_t i = 0; i < h.held_back.n; i++) seen[h.held_back.index[i]]++;
  for (size_t i = 0; i < clv_dataset_count(ds); i++) assert_int_equal(seen[i], 1);
  if (clv_dataset_split_kind(ds, kind) == CLV_SPLIT_SHUFFLED) return h;
  for (size_t i = 1; i < h.training.n; i++)
    assert_true(h.training.index[i - 1] < h.training.index[i]);
  for (size_t i = 1; i < h.held_back.n; i++)
    assert_true(h.held_back.index[i - 1] < h.held_back.index[i]);
  return h;
}

static size_t count_class(const clv_subset *s, const int32_t *labels, int32_t class) {
  size_t n = 0;
  for (size_t i = 0; i < s->n; i++) n += labels[s->index[i]] == class;
  return n;
}

static void stratified_split_keeps_class_shares(void **state) {
  (void)state;
  int32_t labels[200];
  for (int i = 0; i < 200; i++) labels[i] = i < 100 ? 0 : i < 180 ? 1 : i < 199 ? 7 : 9;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, NULL, 200);
  for (uint64_t seed = 1; seed < 20; seed++) {
    CLV_AUTO(free_halves) halves h = split_dataset(ds, 0.1, CLV_SPLIT_STRATIFIED, seed);
    assert_int_equal(h.held_back.n, 20);
    assert_int_equal(count_class(&h.held_back, labels, 0), 10);
    assert_int_equal(count_class(&h.held_back, labels, 1), 8);
    assert_int_equal(count_class(&h.held_back, labels, 7), 2);
    /* class 9 has one record, which must be in the training half */
    assert_int_equal(count_class(&h.held_back, labels, 9), 0);
  }
}

static void same_seed_gives_the_same_split(void **state) {
  (void)state;
  int32_t labels[60];
  for (int i = 0; i < 60; i++) labels[i] = i / 20;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, NULL, 60);
  CLV_AUTO(free_halves) halves a = split_dataset(ds, 0.2, CLV_SPLIT_STRATIFIED, 5);
  CLV_AUTO(free_halves) halves b = split_dataset(ds, 0.2, CLV_SPLIT_STRATIFIED, 5);
  CLV_AUTO(free_halves) halves c = split_dataset(ds, 0.2, CLV_SPLIT_STRATIFIED, 6);
  assert_memory_equal(a.held_back.index, b.held_back.index, a.held_back.n * 4);
  assert_memory_not_equal(a.held_back.index, c.held_back.index, a.held_back.n * 4);
}

/* A class with so few records that its part of the validation records rounds to 0 gets one
 * validation record, if the validation half has room. */
static void rare_class_gets_a_validation_record(void **state) {
  (void)state;
  int32_t labels[1000];
  for (int i = 0; i < 1000; i++) labels[i] = i >= 997;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, NULL, 1000);
  CLV_AUTO(free_halves) halves h = split_dataset(ds, 0.1, CLV_SPLIT_STRATIFIED, 3);
  assert_int_equal(h.held_back.n, 100);
  assert_int_equal(count_class(&h.held_back, labels, 1), 1);
  int64_t class;
  assert_false(clv_subset_is_one_class(ds, &h.held_back, &class));
  CLV_AUTO(free_halves) halves end = split_dataset(ds, 0.002, CLV_SPLIT_LAST, 3);
  assert_int_equal(end.held_back.n, 2);
  assert_true(clv_subset_is_one_class(ds, &end.held_back, &class));
  assert_int_equal(class, 1);
}

/* For classes of any size, the split has the exact number of validation records, and leaves each
 * class a training record. */
static void split_sizes_are_exact_and_empty_no_class(void **state) {
  (void)state;
  int32_t labels[97];
  for (uint32_t shape = 1; shape < 40; shape++) {
    for (uint32_t i = 0; i < 97; i++) labels[i] = (int32_t)(i * i / shape % (1 + shape % 50));
    CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, NULL, 97);
    for (int percent = 1; percent <= 50; percent += 7) {
      CLV_AUTO(free_halves)
      halves h = split_dataset(ds, percent / 100.0, CLV_SPLIT_STRATIFIED, shape);
      assert_int_equal(h.held_back.n, CLV_MAX(1L, lround(0.97 * percent)));
      for (int32_t c = 0; c < 50; c++)
        if (count_class(&h.held_back, labels, c))
          assert_true(count_class(&h.training, labels, c) > 0);
    }
  }
}

static void small_fraction_holds_back_one_record(void **state) {
  (void)state;
  int32_t labels[3] = {0, 1, 1};
  clv_err err;
  clv_subset none = {0};
  const clv_split_kind kinds[] = {CLV_SPLIT_STRATIFIED, CLV_SPLIT_SHUFFLED, CLV_SPLIT_LAST};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, NULL, 3);
  for (size_t i = 0; i < CLV_COUNT(kinds); i++) {
    CLV_AUTO(free_halves) halves h = split_dataset(ds, 0.01, kinds[i], 1);
    assert_int_equal(h.held_back.n, 1);
    CLV_AUTO(free_halves) halves all = split_dataset(ds, 0, kinds[i], 1);
    assert_int_equal(all.held_back.n, 0);
  }
  CLV_AUTO(clv_dataset_freep) clv_dataset *single = open_dataset(labels, NULL, 1);
  assert_int_equal(clv_subset_split(single, 0.1, CLV_SPLIT_STRATIFIED, 1, &none, &none, &err),
                   CLV_INVALID);
  assert_says(&err, "takes all 1 record");
}

static void stratified_split_without_labels_is_shuffled(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(NULL, NULL, 50);
  assert_int_equal(clv_dataset_split_kind(ds, CLV_SPLIT_STRATIFIED), CLV_SPLIT_SHUFFLED);
  CLV_AUTO(free_halves) halves a = split_dataset(ds, 0.2, CLV_SPLIT_STRATIFIED, 5);
  CLV_AUTO(free_halves) halves b = split_dataset(ds, 0.2, CLV_SPLIT_SHUFFLED, 5);
  assert_memory_equal(a.held_back.index, b.held_back.index, 40);
}

static void group_split_keeps_groups_together(void **state) {
  (void)state;
  int32_t labels[90], groups[90];
  for (int i = 0; i < 90; i++) {
    labels[i] = i % 2;
    groups[i] = i % 3 ? 5 * (i / 9) : -i / 9; /* makes 19 groups of 3 or 6 records */
  }
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, groups, 90);
  for (uint64_t seed = 0; seed < 20; seed++) {
    CLV_AUTO(free_halves) halves h = split_dataset(ds, 0.2, CLV_SPLIT_GROUPS, seed);
    assert_in_range(h.held_back.n, 15, 21);
    for (size_t i = 0; i < h.held_back.n; i++)
      for (size_t k = 0; k < h.training.n; k++)
        assert_int_not_equal(groups[h.held_back.index[i]], groups[h.training.index[k]]);
  }
}

static void one_group_cannot_be_split(void **state) {
  (void)state;
  int32_t equal_values[4] = {3, 3, 3, 3};
  clv_subset none = {0};
  clv_err err;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(equal_values, equal_values, 4);
  assert_int_equal(clv_subset_split(ds, 0.3, CLV_SPLIT_GROUPS, 1, &none, &none, &err), CLV_INVALID);
  assert_says(&err, "all 4 records are in one group");
  CLV_AUTO(clv_dataset_freep) clv_dataset *without = open_dataset(equal_values, NULL, 4);
  assert_int_equal(clv_subset_split(without, 0.3, CLV_SPLIT_GROUPS, 1, &none, &none, &err),
                   CLV_INVALID);
  assert_says(&err, "data.validation.group");
}

/* Asserts that the folds of a seed together hold back each record once, that each fold holds back
 * range[0] to range[1] records, and range[2] to range[3] of class 1. */
static void assert_folds(const clv_dataset *ds, clv_split_kind kind, const int32_t *labels,
                         const size_t range[4]) {
  enum { FOLDS = 4 };
  uint8_t seen[90] = {0};
  for (size_t fold = 1; fold <= FOLDS; fold++) {
    CLV_AUTO(free_halves) halves h = {0};
    clv_err err;
    assert_ok(clv_subset_split_fold(ds, kind, FOLDS, fold, 7, &h.training, &h.held_back, &err),
              &err);
    assert_int_equal(h.training.n + h.held_back.n, clv_dataset_count(ds));
    assert_in_range(h.held_back.n, range[0], range[1]);
    assert_in_range(count_class(&h.held_back, labels, 1), range[2], range[3]);
    for (size_t i = 0; i < h.held_back.n; i++) seen[h.held_back.index[i]]++;
  }
  for (size_t i = 0; i < clv_dataset_count(ds); i++) assert_int_equal(seen[i], 1);
}

static void folds_hold_back_each_record_once(void **state) {
  (void)state;
  int32_t labels[90], groups[90];
  for (int i = 0; i < 90; i++) {
    labels[i] = i < 13;
    groups[i] = i % 3 ? 5 * (i / 9) : -i / 9;
  }
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, groups, 90);
  assert_folds(ds, CLV_SPLIT_STRATIFIED, labels, (const size_t[]){22, 23, 3, 4});
  assert_folds(ds, CLV_SPLIT_SHUFFLED, labels, (const size_t[]){22, 23, 0, 13});
  assert_folds(ds, CLV_SPLIT_GROUPS, labels, (const size_t[]){21, 24, 0, 13});
  clv_subset a = {0}, b = {0};
  clv_err err;
  assert_ok(clv_subset_split_fold(ds, CLV_SPLIT_GROUPS, 5, 2, 7, &a, &b, &err), &err);
  for (size_t i = 0; i < a.n; i++)
    for (size_t k = 0; k < b.n; k++) assert_int_not_equal(groups[a.index[i]], groups[b.index[k]]);
  clv_subset_done(&a);
  clv_subset_done(&b);
  assert_int_equal(clv_subset_split_fold(ds, CLV_SPLIT_GROUPS, 20, 1, 7, &a, &b, &err),
                   CLV_INVALID);
  assert_says(&err, "19 groups make no 20 folds");
  assert_int_equal(clv_subset_split_fold(ds, CLV_SPLIT_SHUFFLED, 91, 1, 7, &a, &b, &err),
                   CLV_INVALID);
  assert_says(&err, "90 records make no 91 folds");
}

static void limit_keeps_records_of_each_class(void **state) {
  (void)state;
  int32_t labels[100];
  for (int i = 0; i < 100; i++) labels[i] = i / 25;
  clv_err err;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(labels, NULL, 100);
  assert_ok(clv_dataset_limit(ds, 8, CLV_SPLIT_STRATIFIED, 4, &err), &err);
  assert_int_equal(clv_dataset_count(ds), 8);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *x = NULL, *y = NULL;
  clv_shape xs = clv_dataset_x_shape(ds, 8), ys = clv_dataset_y_shape(ds, 8);
  assert_ok(clv_tensor_new(CLV_F32, &xs, &x, &err), &err);
  assert_ok(clv_tensor_new(CLV_I64, &ys, &y, &err), &err);
  assert_ok(clv_batch_fill(ds, (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7}, 8, x, y, &err), &err);
  for (size_t i = 0; i < 8; i++) {
    /* the inputs, labels and numbers of the records are permuted in the same order */
    size_t number = clv_dataset_record_number(ds, i);
    assert_true(((float *)x->data)[i] == (float)number);
    assert_int_equal(((int64_t *)y->data)[i], labels[number]);
    assert_int_equal(((int64_t *)y->data)[i], i / 2);
    if (i) assert_true(number > clv_dataset_record_number(ds, i - 1));
  }
  int64_t low, high;
  assert_ok(clv_dataset_limit(ds, 0, CLV_SPLIT_STRATIFIED, 4, &err), &err);
  assert_int_equal(clv_dataset_count(ds), 8);
  assert_true(clv_dataset_label_range(ds, &low, &high));
  assert_int_equal(low, 0);
  assert_int_equal(high, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stratified_split_keeps_class_shares),
      cmocka_unit_test(same_seed_gives_the_same_split),
      cmocka_unit_test(rare_class_gets_a_validation_record),
      cmocka_unit_test(split_sizes_are_exact_and_empty_no_class),
      cmocka_unit_test(small_fraction_holds_back_one_record),
      cmocka_unit_test(stratified_split_without_labels_is_shuffled),
      cmocka_unit_test(group_split_keeps_groups_together),
      cmocka_unit_test(one_group_cannot_be_split),
      cmocka_unit_test(folds_hold_back_each_record_once),
      cmocka_unit_test(limit_keeps_records_of_each_class),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
