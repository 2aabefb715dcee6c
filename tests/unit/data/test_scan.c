/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the scan of all records for values that are not finite: which records have such values,
 * where the first one is, how far the scan has come, and which records of a list remain without
 * them.
 */
#include <math.h>

#include "tests/unit/data/data_test.h"

enum { RECORDS = 500, COLUMNS = 12 };

static const char *write_npy_file(const char *name, const char *descr, const char *shape,
                                  const void *data, size_t len) {
  char dict[160];
  snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr,
           shape);
  CLV_AUTO(clv_bytes_done) clv_bytes b = make_npy_bytes(dict, data, len);
  return write_scratch_file(name, b.data, b.len);
}

static clv_dataset *open_dataset(const clv_dataset_options *o) {
  clv_dataset *ds = NULL;
  clv_err err;
  assert_ok(clv_dataset_open(o, &ds, &err), &err);
  return ds;
}

static void assert_bad_records(const clv_scan_result *s, const uint32_t *want, size_t n,
                               const char *says) {
  assert_int_equal(s->not_finite_records.n, n);
  for (size_t i = 0; i < n; i++) assert_int_equal(s->not_finite_records.index[i], want[i]);
  if (!strstr(s->first_not_finite, says))
    fail_msg("\"%s\" does not say \"%s\"", s->first_not_finite, says);
}

static clv_dataset *open_table(float *x) {
  clv_dataset_options o = {
      .inputs_path = write_npy_file("x.npy", "<f4", "500, 12", x, RECORDS * COLUMNS * sizeof *x)};
  return open_dataset(&o);
}

static void scan_names_record_and_column_of_first_nan(void **state) {
  (void)state;
  static float x[RECORDS * COLUMNS];
  CLV_AUTO(clv_scan_result_done) clv_scan_result none = {0}, some = {0};
  clv_err err;
  CLV_AUTO(clv_dataset_freep) clv_dataset *good = open_table(x);
  assert_ok(clv_dataset_scan(good, &(clv_scan_options){0}, &none, &err), &err);
  assert_bad_records(&none, NULL, 0, "");
  assert_int_equal(none.n_checked, RECORDS);
  x[17 * COLUMNS + 3] = NAN;
  x[17 * COLUMNS + 5] = INFINITY;
  x[499 * COLUMNS + 11] = -INFINITY;
  CLV_AUTO(clv_dataset_freep) clv_dataset *bad = open_table(x);
  assert_ok(clv_dataset_scan(bad, &(clv_scan_options){0}, &some, &err), &err);
  assert_bad_records(&some, (uint32_t[]){17, 499}, 2, "/x.npy: record 17, column 3 is nan");
}

/* If a record has more than one dimension, the position is printed as NumPy's index. */
static void scan_gives_the_numpy_index_inside_a_record(void **state) {
  (void)state;
  static double x[4 * 2 * 3];
  x[1 * 6 + 1 * 3 + 2] = 1e300; /* f32 cannot represent this number */
  CLV_AUTO(clv_scan_result_done) clv_scan_result s = {0};
  clv_err err;
  clv_dataset_options o = {.inputs_path = write_npy_file("d.npy", "<f8", "4, 2, 3", x, sizeof x)};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(&o);
  assert_ok(clv_dataset_scan(ds, &(clv_scan_options){0}, &s, &err), &err);
  assert_bad_records(&s, (uint32_t[]){1}, 1, "/d.npy: record 1, column 5 (at [1, 1, 2]) is 1e+300");
  if (!strstr(s.first_not_finite, "too large for f32")) fail_msg("%s", s.first_not_finite);
}

static void scan_finds_nan_labels(void **state) {
  (void)state;
  static uint8_t x[4 * 3];
  float y[4] = {0, 1, NAN, 1};
  CLV_AUTO(clv_scan_result_done) clv_scan_result s = {0};
  clv_err err;
  clv_dataset_options o = {.inputs_path = write_npy_file("u.npy", "|u1", "4, 3", x, sizeof x),
                           .labels_path = write_npy_file("y.npy", "<f4", "4,", y, sizeof y),
                           .labels = CLV_LABEL_FLOAT};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(&o);
  assert_ok(clv_dataset_scan(ds, &(clv_scan_options){0}, &s, &err), &err);
  assert_bad_records(&s, (uint32_t[]){2}, 1, "/y.npy: label of record 2, column 0 is nan");
}

static void label_outside_the_range_is_found(void **state) {
  (void)state;
  static uint8_t x[4 * 3];
  float y[4 * 2] = {0, 1, 1, 0, 0.5f, -0.25f, 7, 1};
  char first_label_text[CLV_SCAN_TEXT_BYTES];
  clv_dataset_options o = {.inputs_path = write_npy_file("u.npy", "|u1", "4, 3", x, sizeof x),
                           .labels_path = write_npy_file("y.npy", "<f4", "4, 2", y, sizeof y),
                           .labels = CLV_LABEL_FLOAT};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(&o);
  assert_true(clv_dataset_has_labels_in_range(ds, -1, 7, first_label_text));
  assert_false(clv_dataset_has_labels_in_range(ds, 0, 1, first_label_text));
  if (!strstr(first_label_text, "/y.npy: label of record 2, column 1 is -0.25"))
    fail_msg("%s", first_label_text);
}

/* A scan with a limit checks a sample of that many records, spread over the whole file. */
static void sampled_scan_spreads_over_the_file(void **state) {
  (void)state;
  static float x[RECORDS * COLUMNS];
  x[490 * COLUMNS] = NAN;
  CLV_AUTO(clv_scan_result_done) clv_scan_result s = {0}, all = {0};
  clv_err err;
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_table(x);
  assert_ok(clv_dataset_scan(ds, &(clv_scan_options){.max_records = 50}, &s, &err), &err);
  assert_int_equal(s.n_checked, 50);
  assert_bad_records(&s, (uint32_t[]){490}, 1, "record 490, column 0");
  assert_ok(clv_dataset_scan(ds, &(clv_scan_options){.max_records = 4000}, &all, &err), &err);
  assert_int_equal(all.n_checked, RECORDS);
}

typedef struct scan_progress {
  size_t n, last_done, n_records;
} scan_progress;

static void record_progress(void *user, size_t n_done, size_t n_all) {
  scan_progress *h = user;
  if (n_done < h->last_done || n_done > n_all)
    fail_msg("%zu of %zu after %zu", n_done, n_all, h->last_done);
  h->n++;
  h->last_done = n_done;
  h->n_records = n_all;
}

static void scan_reports_progress_until_done(void **state) {
  (void)state;
  enum { WIDE_COLUMNS = 40000 };
  CLV_AUTO(clv_freep) float *x = calloc(100 * WIDE_COLUMNS, sizeof *x);
  CLV_AUTO(clv_scan_result_done) clv_scan_result s = {0};
  scan_progress h = {0};
  clv_err err;
  clv_dataset_options o = {.inputs_path = write_npy_file("wide.npy", "<f4", "100, 40000", x,
                                                         100 * WIDE_COLUMNS * sizeof *x)};
  CLV_AUTO(clv_dataset_freep) clv_dataset *ds = open_dataset(&o);
  clv_scan_options so = {.progress = record_progress, .user = &h};
  assert_ok(clv_dataset_scan(ds, &so, &s, &err), &err);
  if (h.n < 3) fail_msg("16 MB: told %zu times", h.n);
  assert_int_equal(h.last_done, 100);
  assert_int_equal(h.n_records, 100);
}

static void removed_records_leave_the_subset(void **state) {
  (void)state;
  uint32_t kept_records[6] = {5, 0, 3, 1, 4, 2}, removed_records[3] = {0, 3, 5};
  clv_subset s = {kept_records, 6};
  clv_subset_remove(&s, &(clv_subset){removed_records, 3});
  assert_int_equal(s.n, 3);
  assert_memory_equal(kept_records, ((uint32_t[]){1, 4, 2}), 12);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(scan_names_record_and_column_of_first_nan),
      cmocka_unit_test(scan_gives_the_numpy_index_inside_a_record),
      cmocka_unit_test(scan_finds_nan_labels),
      cmocka_unit_test(label_outside_the_range_is_found),
      cmocka_unit_test(sampled_scan_spreads_over_the_file),
      cmocka_unit_test(scan_reports_progress_until_done),
      cmocka_unit_test(removed_records_leave_the_subset),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
