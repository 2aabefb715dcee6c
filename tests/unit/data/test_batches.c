/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the order of records: complete epochs, short batches, cursors that continue at exactly the
 * next record, and a loader that delivers the same batches without allocating.
 */
#include <time.h>

#include "tests/long.h"
#include "tests/unit/data/data_test.h"

enum { N_RECORDS = 23 };

typedef struct fixture {
  clv_dataset *ds;
  clv_subset all_records;
} fixture;

/* Returns a dataset in which record i is {i, 2i} with label i. */
static fixture make_dataset(void) {
  uint8_t x[2 * N_RECORDS], y[N_RECORDS];
  for (int i = 0; i < N_RECORDS; i++) {
    x[2 * i] = (uint8_t)i;
    x[2 * i + 1] = (uint8_t)(2 * i);
    y[i] = (uint8_t)i;
  }
  CLV_AUTO(clv_bytes_done)
  clv_bytes bx = make_idx_bytes(8, 2, (uint32_t[]){N_RECORDS, 2}, x, sizeof x);
  CLV_AUTO(clv_bytes_done)
  clv_bytes by = make_idx_bytes(8, 1, (uint32_t[]){N_RECORDS}, y, sizeof y);
  clv_dataset_options o = {.inputs_path = write_scratch_file("x", bx.data, bx.len),
                           .labels_path = write_scratch_file("y", by.data, by.len),
                           .scale = 1};
  fixture f = {0};
  clv_err err;
  assert_ok(clv_dataset_open(&o, &f.ds, &err), &err);
  assert_ok(clv_subset_all(f.ds, &f.all_records, &err), &err);
  return f;
}

static void free_fixture(fixture *f) {
  clv_dataset_free(f->ds);
  clv_subset_done(&f->all_records);
}

static clv_batches *make_batches(clv_batches_options o) {
  clv_batches *b = NULL;
  clv_err err;
  assert_ok(clv_batches_new(&o, &b, &err), &err);
  return b;
}

static void each_epoch_visits_every_record_once(void **state) {
  (void)state;
  CLV_AUTO(free_fixture) fixture f = make_dataset();
  clv_batches *b = make_batches((clv_batches_options){
      .subset = &f.all_records, .batch_size = 5, .shuffles = true, .seed = 7, .epochs = 2});
  assert_int_equal(clv_batches_per_epoch(b), 5);
  uint32_t order[2][N_RECORDS];
  for (uint64_t epoch = 0; epoch < 2; epoch++) {
    unsigned seen_records = 0;
    for (size_t k = 0; k < 5; k++) {
      const uint32_t *index;
      size_t n;
      assert_int_equal(clv_batches_cursor(b).epoch, epoch);
      assert_int_equal(clv_batches_cursor(b).index, 5 * k);
      clv_batches_next(b, &index, &n);
      assert_int_equal(n, k < 4 ? 5 : 3);
      for (size_t i = 0; i < n; i++) seen_records |= 1u << (order[epoch][5 * k + i] = index[i]);
    }
    assert_int_equal(seen_records, (1u << N_RECORDS) - 1);
  }
  assert_memory_not_equal(order[0], order[1], sizeof order[0]);
  const uint32_t *index;
  size_t n = 9;
  clv_batches_next(b, &index, &n);
  assert_int_equal(n, 0);
  clv_batches_free(b);

  /* the expected order is the documented permutation */
  uint32_t want[N_RECORDS];
  clv_rng_permutation(&(clv_rng_key){.seed = 7, .step = 1, .layer = 0xfffffff0u}, want, N_RECORDS);
  assert_memory_equal(order[1], want, sizeof want);
}

static void drop_last_skips_the_short_batch(void **state) {
  (void)state;
  CLV_AUTO(free_fixture) fixture f = make_dataset();
  clv_batches *b = make_batches(
      (clv_batches_options){.subset = &f.all_records, .batch_size = 10, .drops_short_last = true});
  assert_int_equal(clv_batches_per_epoch(b), 2);
  for (uint32_t k = 0; k < 7; k++) {
    const uint32_t *index;
    size_t n;
    clv_batches_next(b, &index, &n);
    assert_int_equal(n, 10);
    assert_int_equal(index[0], 10 * (k % 2));
    assert_int_equal(index[9], 10 * (k % 2) + 9);
  }
  assert_int_equal(clv_batches_cursor(b).epoch, 3);
  assert_int_equal(clv_batches_cursor(b).index, 10);
  clv_batches_free(b);
}

/* A run that stops after any batch and resumes from the saved cursor draws the same order as a run
 * without a stop. */
static void saved_cursor_resumes_the_same_order(void **state) {
  (void)state;
  CLV_AUTO(free_fixture) fixture f = make_dataset();
  for (int drops_short_last = 0; drops_short_last < 2; drops_short_last++) {
    clv_batches_options o = {.subset = &f.all_records,
                             .batch_size = 4,
                             .shuffles = true,
                             .seed = 99,
                             .drops_short_last = drops_short_last};
    clv_batches *uninterrupted = make_batches(o);
    for (int step = 0; step < 20; step++) {
      o.start = clv_batches_cursor(uninterrupted);
      clv_batches *resumed = make_batches(o);
      const uint32_t *a, *c;
      size_t na, nc;
      clv_batches_next(uninterrupted, &a, &na);
      clv_batches_next(resumed, &c, &nc);
      assert_int_equal(na, nc);
      assert_memory_equal(a, c, na * sizeof *a);
      clv_batches_free(resumed);
    }
    clv_batches_free(uninterrupted);
  }
  clv_batches *end = make_batches(
      (clv_batches_options){.subset = &f.all_records, .batch_size = 4, .start = {3, N_RECORDS}});
  assert_int_equal(clv_batches_cursor(end).epoch, 4);
  assert_int_equal(clv_batches_cursor(end).index, 0);
  clv_batches_free(end);
}

static void assert_refused(clv_batches_options o, const char *message) {
  clv_batches *b = NULL;
  clv_err err = {0};
  assert_int_equal(clv_batches_new(&o, &b, &err), CLV_INVALID);
  assert_says(&err, message);
  assert_null(b);
}

static void invalid_batch_options_are_refused(void **state) {
  (void)state;
  CLV_AUTO(free_fixture) fixture f = make_dataset();
  clv_subset empty = {0};
  assert_refused((clv_batches_options){.subset = &empty, .batch_size = 4}, "");
  assert_refused((clv_batches_options){.subset = &f.all_records}, "");
  assert_refused(
      (clv_batches_options){.subset = &f.all_records, .batch_size = 24, .drops_short_last = true},
      "leaves no batch of 23 records");
  assert_refused((clv_batches_options){.subset = &f.all_records, .batch_size = 4, .start = {0, 24}},
                 "cursor 24 is past the 23 records");
}

static void check_batch(const clv_batch *got, const clv_batches *b, const uint32_t *index,
                        size_t n) {
  assert_int_equal(got->n, n);
  assert_memory_equal(got->index, index, n * sizeof *index);
  assert_int_equal(got->x->shape.dim[0], n);
  assert_int_equal(got->y->shape.dim[0], n);
  assert_int_equal(got->x->bytes, n * 8);
  for (size_t i = 0; i < n; i++) {
    assert_true(((float *)got->x->data)[2 * i] == (float)index[i]);
    assert_true(((float *)got->x->data)[2 * i + 1] == (float)(2 * index[i]));
    assert_int_equal(((int64_t *)got->y->data)[i], index[i]);
  }
  clv_cursor next_cursor = clv_batches_cursor(b);
  assert_int_equal(got->next.epoch, next_cursor.epoch);
  assert_int_equal(got->next.index, next_cursor.index);
  assert_int_equal(got->is_last_of_epoch, next_cursor.index == 0);
}

static void loader_matches_batch_order_without_allocating(void **state) {
  (void)state;
  CLV_AUTO(free_fixture) fixture f = make_dataset();
  clv_batches_options o = {
      .subset = &f.all_records, .batch_size = 6, .shuffles = true, .seed = 1, .epochs = 50};
  clv_batches *b = make_batches(o);
  CLV_AUTO(clv_loader_freep) clv_loader *l = NULL;
  clv_err err;
  assert_ok(clv_loader_new(f.ds, &o, &l, &err), &err);
  assert_int_equal(clv_loader_per_epoch(l), 4);
  uint64_t before = clv_alloc_count();
  for (int step = 0; step < 200; step++) {
    const uint32_t *index;
    size_t n;
    clv_batch got;
    clv_cursor start = clv_batches_cursor(b);
    clv_batches_next(b, &index, &n);
    assert_ok(clv_loader_next(l, &got, &err), &err);
    assert_int_equal(got.at.epoch, start.epoch);
    assert_int_equal(got.at.index, start.index);
    /* gives the loader's thread time to prepare batches in advance */
    if (step % 50 == 0) nanosleep(&(struct timespec){0, 2000000}, NULL);
    check_batch(&got, b, index, n);
  }
  clv_batch end;
  assert_ok(clv_loader_next(l, &end, &err), &err);
  assert_int_equal(end.n, 0);
  assert_ok(clv_loader_next(l, &end, &err), &err);
  assert_int_equal(end.n, 0);
  assert_int_equal(clv_alloc_count(), before);
  clv_batches_free(b);
}

/* Frees the loader while its thread is in each possible state, and before any request. */
static void loader_can_be_freed_in_every_state(void **state) {
  (void)state;
  CLV_AUTO(free_fixture) fixture f = make_dataset();
  clv_batches_options o = {.subset = &f.all_records, .batch_size = 100};
  for (int k = 0; k < 60; k++) {
    CLV_AUTO(clv_loader_freep) clv_loader *l = NULL;
    clv_err err;
    clv_batch got;
    assert_ok(clv_loader_new(f.ds, &o, &l, &err), &err);
    for (int i = 0; i < k % 4; i++) {
      assert_ok(clv_loader_next(l, &got, &err), &err);
      assert_int_equal(got.n, N_RECORDS);
      assert_true(got.is_last_of_epoch);
    }
  }
}

/* Compares clv_chunk_sizes with the definition of torch.chunk: a split after every ceil(n / chunks)
 * rows. */
static void chunk_sizes_match_the_definition(void **state) {
  (void)state;
  size_t sizes[80];
  assert_int_equal(clv_chunk_sizes(11, 6, sizes), 6); /* the example in torch.chunk's manual */
  assert_memory_equal(sizes, ((size_t[]){2, 2, 2, 2, 2, 1}), 6 * sizeof *sizes);
  assert_int_equal(clv_chunk_sizes(12, 6, sizes), 6);
  assert_int_equal(clv_chunk_sizes(13, 6, sizes), 5);
  assert_memory_equal(sizes, ((size_t[]){3, 3, 3, 3, 1}), 5 * sizeof *sizes);
  assert_int_equal(clv_chunk_sizes(0, 4, sizes), 0);
  assert_int_equal(clv_chunk_sizes(3, 0, sizes), 0);
  for (size_t n = 1; n < 70; n++)
    for (size_t k = 1; k < 80; k++) {
      size_t full_size = (n + k - 1) / k, n_chunks = clv_chunk_sizes(n, k, sizes);
      assert_int_equal(n_chunks, (n + full_size - 1) / full_size);
      for (size_t i = 0; i < n_chunks; i++)
        assert_int_equal(sizes[i], (i + 1) * full_size <= n ? full_size : n - i * full_size);
    }
}

static const char torch_script[] =
    "import torch\n"
    "for n in range(1, 40):\n"
    "  for k in range(1, 40):\n"
    "    print(n, k, *[len(c) for c in torch.chunk(torch.zeros(n), k)])\n";

/* Compares clv_chunk_sizes with a line "n k SIZES" of torch_script: the sizes that torch makes of n
 * rows in k chunks. */
static void check_chunks(char *line) {
  char *p = line;
  size_t n = strtoul(p, &p, 10), k = strtoul(p, &p, 10), sizes[40];
  size_t count = clv_chunk_sizes(n, k, sizes);
  for (size_t i = 0; i < count; i++) assert_int_equal(sizes[i], strtoul(p, &p, 10));
  assert_int_equal(*p, '\n');
}

/* Returns the share of class 1, the last three records, among all records that 400 epochs draw. */
static double measure_share_of_class_1(const clv_subset *records, const double *sums,
                                       uint64_t seed) {
  size_t n_drawn = 0, n_rare = 0, n;
  const uint32_t *index;
  clv_batches *b = make_batches((clv_batches_options){.subset = records,
                                                      .batch_size = 5,
                                                      .shuffles = true,
                                                      .sampling_sums = sums,
                                                      .seed = seed,
                                                      .epochs = 400});
  assert_int_equal(clv_batches_per_epoch(b), 5);
  for (clv_batches_next(b, &index, &n); n; clv_batches_next(b, &index, &n))
    for (size_t i = 0; i < n; i++, n_drawn++) n_rare += index[i] >= N_RECORDS - 3;
  clv_batches_free(b);
  assert_int_equal(n_drawn, 400 * N_RECORDS);
  return (double)n_rare / (double)n_drawn;
}

static clv_dataset *make_unbalanced_dataset(void) {
  uint8_t x[N_RECORDS] = {0}, y[N_RECORDS] = {0};
  memset(y + N_RECORDS - 3, 1, 3);
  CLV_AUTO(clv_bytes_done)
  clv_bytes bx = make_idx_bytes(8, 2, (uint32_t[]){N_RECORDS, 1}, x, sizeof x);
  CLV_AUTO(clv_bytes_done)
  clv_bytes by = make_idx_bytes(8, 1, (uint32_t[]){N_RECORDS}, y, sizeof y);
  clv_dataset_options o = {.inputs_path = write_scratch_file("ux", bx.data, bx.len),
                           .labels_path = write_scratch_file("uy", by.data, by.len),
                           .scale = 1};
  clv_dataset *ds = NULL;
  clv_err err;
  assert_ok(clv_dataset_open(&o, &ds, &err), &err);
  return ds;
}

static void sampling_draws_classes_by_their_weights(void **state) {
  static const double weights[] = {1, 20}, only_0[] = {1, 0}, none[] = {0, 0};
  (void)state;
  clv_dataset *ds = make_unbalanced_dataset();
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_freep) double *balanced = NULL;
  CLV_AUTO(clv_freep) double *weighted = NULL;
  CLV_AUTO(clv_freep) double *one_class = NULL;
  double *unused = NULL;
  clv_err err;
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  assert_ok(clv_sampling_sums(ds, &all, NULL, 0, &balanced, &err), &err);
  assert_ok(clv_sampling_sums(ds, &all, weights, 2, &weighted, &err), &err);
  assert_ok(clv_sampling_sums(ds, &all, only_0, 2, &one_class, &err), &err);
  double share = measure_share_of_class_1(&all, balanced, 1);
  /* the tolerance, 0.02, is 4 standard deviations of the share in 9,200 draws */
  assert_true(share > 0.48 && share < 0.52);
  assert_true(share == measure_share_of_class_1(&all, balanced, 1));
  assert_true(share != measure_share_of_class_1(&all, balanced, 2));
  share = measure_share_of_class_1(&all, weighted, 1);
  /* expected: 60 / 80, since class 1 has 3 records of weight 20 and class 0 has 20 of weight 1 */
  assert_true(share > 0.73 && share < 0.77);
  assert_true(measure_share_of_class_1(&all, one_class, 1) == 0);
  assert_int_equal(clv_sampling_sums(ds, &all, weights, 1, &unused, &err), CLV_INVALID);
  assert_says(&err, "record 20 has class 1, and there are weights of 1 classes");
  assert_int_equal(clv_sampling_sums(ds, &all, none, 2, &unused, &err), CLV_INVALID);
  assert_says(&err, "whose weight is above 0");
  clv_dataset_free(ds);
}

static void sampled_order_continues_at_a_cursor(void **state) {
  (void)state;
  clv_dataset *ds = make_unbalanced_dataset();
  CLV_AUTO(clv_subset_done) clv_subset all = {0};
  CLV_AUTO(clv_freep) double *sums = NULL;
  const uint32_t *wanted_index, *resumed_index;
  size_t n, n_resumed;
  clv_err err;
  assert_ok(clv_subset_all(ds, &all, &err), &err);
  assert_ok(clv_sampling_sums(ds, &all, NULL, 0, &sums, &err), &err);
  clv_batches_options o = {
      .subset = &all, .batch_size = 5, .shuffles = true, .sampling_sums = sums, .seed = 3};
  clv_batches *uninterrupted = make_batches(o);
  for (int i = 0; i < 7; i++) clv_batches_next(uninterrupted, &wanted_index, &n);
  o.start = clv_batches_cursor(uninterrupted);
  clv_batches *resumed = make_batches(o);
  for (int i = 0; i < 9; i++) {
    clv_batches_next(uninterrupted, &wanted_index, &n);
    clv_batches_next(resumed, &resumed_index, &n_resumed);
    assert_int_equal(n, n_resumed);
    assert_memory_equal(wanted_index, resumed_index, n * sizeof *wanted_index);
  }
  clv_batches_free(uninterrupted);
  clv_batches_free(resumed);
  clv_dataset_free(ds);
}

static void chunk_sizes_match_torch_chunk(void **state) {
  (void)state;
  char command[256], line[512];
  write_scratch_file("chunk.py", torch_script, sizeof torch_script - 1);
  snprintf(command, sizeof command, "/usr/bin/python3 %s/chunk.py 2>/dev/null", scratch);
  FILE *f = popen(command, "r");
  assert_non_null(f);
  int n_lines = 0;
  for (; fgets(line, sizeof line, f); n_lines++) check_chunks(line);
  if (pclose(f) != 0) {
    print_message("because /usr/bin/python3 has no torch\n");
    skip();
  }
  assert_int_equal(n_lines, 39 * 39);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_epoch_visits_every_record_once),
      cmocka_unit_test(drop_last_skips_the_short_batch),
      cmocka_unit_test(saved_cursor_resumes_the_same_order),
      cmocka_unit_test(invalid_batch_options_are_refused),
      cmocka_unit_test(loader_matches_batch_order_without_allocating),
      cmocka_unit_test(loader_can_be_freed_in_every_state),
      cmocka_unit_test(sampling_draws_classes_by_their_weights),
      cmocka_unit_test(sampled_order_continues_at_a_cursor),
      cmocka_unit_test(chunk_sizes_match_the_definition),
      cmocka_unit_test(chunk_sizes_match_torch_chunk),
  };
  size_t n = CLV_COUNT(tests) - !is_long();
  return _cmocka_run_group_tests("tests", tests, n, scratch_setup, scratch_teardown);
}
