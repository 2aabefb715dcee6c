/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests records with several inputs: each input has its name, type and shape, a batch takes all of
 * them by the same record numbers, and a loader returns them together.
 */
#include <math.h>

#include "tests/unit/data/data_test.h"

enum { N_RECORDS = 5, N_POSITIONS = 3 };

static const char *write_npy_file(const char *name, const char *descr, const char *shape,
                                  const void *data, size_t len) {
  char dict[160];
  snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr,
           shape);
  CLV_AUTO(clv_bytes_done) clv_bytes b = make_npy_bytes(dict, data, len);
  return write_scratch_file(name, b.data, b.len);
}

/* Returns a dataset. Record r has the ids 10 r + position, a box for each id, a length, a picture
 * of bytes and a weight. */
static clv_dataset *make_dataset(const char *labels) {
  static const char *const names[] = {"ids", "boxes", "lengths", "picture", "weight"};
  int32_t ids[N_RECORDS * N_POSITIONS], boxes[N_RECORDS * N_POSITIONS * 4], lengths[N_RECORDS];
  uint8_t picture[N_RECORDS * 4];
  double weight[N_RECORDS];
  for (int r = 0; r < N_RECORDS; r++) {
    for (int p = 0; p < N_POSITIONS; p++) ids[r * N_POSITIONS + p] = 10 * r + p;
    for (int i = 0; i < N_POSITIONS * 4; i++) boxes[r * N_POSITIONS * 4 + i] = 100 * r + i;
    for (int i = 0; i < 4; i++) picture[4 * r + i] = (uint8_t)(50 * r + i);
    lengths[r] = r + 1;
    weight[r] = 0.5 * r;
  }
  const char *paths[] = {write_npy_file("ids", "<i4", "5, 3", ids, sizeof ids),
                         write_npy_file("boxes", "<i4", "5, 3, 4", boxes, sizeof boxes),
                         write_npy_file("lengths", "<i4", "5,", lengths, sizeof lengths),
                         write_npy_file("picture", "|u1", "5, 2, 2", picture, sizeof picture),
                         write_npy_file("weight", "<f8", "5,", weight, sizeof weight)};
  clv_dataset *ds = NULL;
  clv_err err;
  clv_dataset_options o = {
      .n_named_inputs = 5, .names = names, .named_paths = paths, .labels_path = labels};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  return ds;
}

static const char *get_label_of_position(void) {
  int64_t y[N_RECORDS * N_POSITIONS];
  for (int i = 0; i < N_RECORDS * N_POSITIONS; i++)
    y[i] = i % N_POSITIONS ? i % 4 : CLV_LABEL_IGNORED;
  return write_npy_file("y", "<i8", "5, 3", y, sizeof y);
}

static void assert_has_input(const clv_dataset *ds, size_t k, const char *name, clv_dtype dtype,
                             clv_shape shape) {
  clv_data_input in = clv_dataset_input(ds, k, 2);
  assert_string_equal(in.name, name);
  assert_int_equal(in.dtype, dtype);
  assert_true(clv_shape_equal(&in.shape, &shape));
}

static void named_inputs_have_their_types_and_shapes(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = make_dataset(get_label_of_position());
  int64_t min_value, max_value;
  assert_int_equal(clv_dataset_input_count(ds), 5);
  assert_int_equal(clv_dataset_count(ds), N_RECORDS);
  assert_has_input(ds, 0, "ids", CLV_I64, CLV_SHAPE(2, N_POSITIONS));
  assert_has_input(ds, 1, "boxes", CLV_I64, CLV_SHAPE(2, N_POSITIONS, 4));
  assert_has_input(ds, 2, "lengths", CLV_I64, CLV_SHAPE(2));
  assert_has_input(ds, 3, "picture", CLV_F32, CLV_SHAPE(2, 2, 2));
  assert_has_input(ds, 4, "weight", CLV_F32, CLV_SHAPE(2));
  clv_shape y = clv_dataset_y_shape(ds, 2);
  assert_true(clv_shape_equal(&y, &CLV_SHAPE(2, N_POSITIONS)));
  assert_true(clv_dataset_label_range(ds, &min_value, &max_value));
  assert_int_equal(min_value, 0);
  assert_int_equal(max_value, 3);
  clv_data_range range;
  assert_true(clv_dataset_input_range(ds, 1, CLV_ALL_COLUMNS, &range));
  assert_int_equal(range.min, 0);
  assert_int_equal(range.max, 411);
  assert_int_equal(range.max_at, 4);
  assert_true(clv_dataset_input_range(ds, 1, (clv_data_columns){1, -1}, &range));
  assert_int_equal(range.min, 1);
  assert_int_equal(range.max, 409);
  assert_true(clv_dataset_input_range(ds, 1, (clv_data_columns){0, 2}, &range));
  assert_int_equal(range.min, -2);
  assert_int_equal(range.max, -2);
  assert_false(clv_dataset_input_range(ds, 3, CLV_ALL_COLUMNS, &range));
}

/* Asserts that row i of a batch is record r in every input. */
static void check_row(const clv_batch *b, size_t i, uint32_t r) {
  for (int p = 0; p < N_POSITIONS; p++)
    assert_int_equal(((int64_t *)b->inputs[0]->data)[i * N_POSITIONS + (size_t)p], 10 * (int)r + p);
  for (int q = 0; q < N_POSITIONS * 4; q++)
    assert_int_equal(((int64_t *)b->inputs[1]->data)[i * N_POSITIONS * 4 + (size_t)q],
                     100 * (int)r + q);
  assert_int_equal(((int64_t *)b->inputs[2]->data)[i], r + 1);
  for (int q = 0; q < 4; q++) {
    volatile float want = (float)(50 * (int)r + q);
    want = want / 255.0f;
    assert_true(((float *)b->inputs[3]->data)[i * 4 + (size_t)q] == want);
  }
  assert_true(((float *)b->inputs[4]->data)[i] == 0.5f * (float)r);
  for (size_t p = 0; p < N_POSITIONS; p++)
    assert_int_equal(((int64_t *)b->y->data)[i * N_POSITIONS + p],
                     p ? (int)(r * N_POSITIONS + p) % 4 : CLV_LABEL_IGNORED);
}

static void loader_fills_every_named_input(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = make_dataset(get_label_of_position());
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_loader_freep) clv_loader *l = NULL;
  clv_err err;
  clv_batch b;
  unsigned seen_records = 0;
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  clv_batches_options o = {
      .subset = &all, .batch_size = 2, .shuffles = true, .seed = 3, .epochs = 1};
  assert_ok(clv_loader_new(ds, &o, &l, &err), &err);
  for (;;) {
    assert_ok(clv_loader_next(l, &b, &err), &err);
    if (!b.n) break;
    assert_int_equal(b.n_inputs, 5);
    assert_ptr_equal(b.x, b.inputs[0]);
    for (size_t k = 0; k < 5; k++) assert_int_equal(b.inputs[k]->shape.dim[0], b.n);
    for (size_t i = 0; i < b.n; i++) {
      check_row(&b, i, b.index[i]);
      seen_records |= 1u << b.index[i];
    }
  }
  assert_int_equal(seen_records, (1u << N_RECORDS) - 1);
}

static void unnamed_input_is_called_input(void **state) {
  (void)state;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  clv_err err;
  float x[4] = {1, 2, 3, 4};
  clv_dataset_options o = {.inputs_path = write_npy_file("x", "<f4", "2, 2", x, sizeof x)};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  assert_int_equal(clv_dataset_input_count(ds), 1);
  assert_has_input(ds, 0, "input", CLV_F32, CLV_SHAPE(2, 2));
}

static void assert_refused(clv_dataset_options o, const char *says) {
  clv_dataset *ds = NULL;
  clv_err err;
  assert_int_equal(clv_dataset_open(&o, &ds, &err), CLV_INVALID);
  assert_says(&err, says);
  assert_null(ds);
}

static void inconsistent_named_inputs_are_refused(void **state) {
  (void)state;
  const char *names[9] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"}, *equal_names[] = {"a", "a"};
  int32_t x[6] = {0};
  int64_t none[4] = {CLV_LABEL_IGNORED, CLV_LABEL_IGNORED, CLV_LABEL_IGNORED, CLV_LABEL_IGNORED};
  int64_t bad_labels[4] = {0, 1, CLV_LABEL_IGNORED, -1};
  const char *path_of_two = write_npy_file("two", "<i4", "2, 2", x, 16),
             *path_of_three = write_npy_file("three", "<i4", "3,", x, 12);
  const char *unequal_paths[9] = {path_of_two, path_of_three},
             *paths_of_two[] = {path_of_two, path_of_two};
  assert_refused(
      (clv_dataset_options){.n_named_inputs = 2, .names = names, .named_paths = unequal_paths},
      "two holds 2 records and ");
  assert_refused(
      (clv_dataset_options){.n_named_inputs = 2, .names = equal_names, .named_paths = paths_of_two},
      "two inputs have the name 'a'");
  assert_refused(
      (clv_dataset_options){.n_named_inputs = 9, .names = names, .named_paths = unequal_paths},
      "9 inputs: at most 8");
  assert_refused(
      (clv_dataset_options){
          .n_named_inputs = 2, .names = names, .named_paths = paths_of_two, .scale = 2},
      "taken as they are");
  clv_dataset_options labelled = {.n_named_inputs = 2, .names = names, .named_paths = paths_of_two};
  labelled.labels_path = write_npy_file("none", "<i8", "2, 2", none, sizeof none);
  assert_refused(labelled, "all labels are -100");
  labelled.labels_path = write_npy_file("bad", "<i8", "2, 2", bad_labels, sizeof bad_labels);
  assert_refused(labelled, "label -1 of record 1 is no class");
}

static void scan_finds_nan_in_a_named_input(void **state) {
  (void)state;
  static const char *const names[] = {"a", "b"};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = NULL;
  CLV_AUTO(clv_scan_result_done) clv_scan_result found = {0};
  clv_err err;
  int32_t a[2] = {1, 2};
  float b[4] = {1, 2, 3, NAN};
  const char *paths[] = {write_npy_file("a", "<i4", "2,", a, sizeof a),
                         write_npy_file("b", "<f4", "2, 2", b, sizeof b)};
  clv_dataset_options o = {.n_named_inputs = 2, .names = names, .named_paths = paths};
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  assert_ok(clv_dataset_scan(ds, &(clv_scan_options){0}, &found, &err), &err);
  assert_int_equal(found.not_finite_records.n, 1);
  assert_int_equal(found.not_finite_records.index[0], 1);
  assert_non_null(strstr(found.first_not_finite, "b: record 1, column 1 is nan"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(named_inputs_have_their_types_and_shapes),
      cmocka_unit_test(loader_fills_every_named_input),
      cmocka_unit_test(unnamed_input_is_called_input),
      cmocka_unit_test(inconsistent_named_inputs_are_refused),
      cmocka_unit_test(scan_finds_nan_in_a_named_input),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
