/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests files of weights that are never in memory completely: they are written piece by piece, and
 * read in parts.
 */
#include <fcntl.h>

#include "tests/unit/weights/weights_test.h"

static const float w[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static const uint8_t m[3] = {0, 1, 255};
static const clv_weights_tensor list[] = {{"mask", CLV_U8, {.rank = 1, .dim = {3}}, m},
                                          {"fc.weight", CLV_F32, {.rank = 2, .dim = {2, 3}}, w},
                                          {"empty", CLV_F32, {.rank = 1, .dim = {0}}, NULL}};

static clv_weights_writer *begin_file(const char *name) {
  clv_weights_writer *f;
  clv_err err;
  assert_ok(clv_weights_writer_begin(at(name), list, 3, NULL, 0, &f, &err), &err);
  return f;
}

static void finish_file(clv_weights_writer *f, clv_sha256 *digest, uint64_t *bytes) {
  clv_err err;
  assert_ok(clv_weights_writer_finish(f, digest, bytes, &err), &err);
  clv_weights_writer_free(f);
}

/* Tensors may be written in any order; the file equals that of a single write. */
static void file_written_in_parts_equals_one_write(void **state) {
  (void)state;
  clv_sha256 digest_of_one_write, digest_of_parts;
  uint64_t bytes_of_one_write, bytes_of_parts;
  clv_err err;
  assert_ok(clv_weights_write_file(at("whole"), list, 3, NULL, 0, &digest_of_one_write,
                                   &bytes_of_one_write, &err),
            &err);
  clv_weights_writer *f = begin_file("parts");
  assert_ok(clv_weights_writer_put(f, 1, 0, w, 4, &err), &err);
  assert_ok(clv_weights_writer_put(f, 0, 0, m, 3, &err), &err);
  assert_ok(clv_weights_writer_put(f, 1, 4, w + 1, 20, &err), &err);
  assert_int_equal(access(at("parts"), F_OK), -1);
  finish_file(f, &digest_of_parts, &bytes_of_parts);
  assert_memory_equal(&digest_of_one_write, &digest_of_parts, sizeof digest_of_one_write);
  assert_int_equal(bytes_of_one_write, bytes_of_parts);
  assert_int_equal(access(at("parts.tmp"), F_OK), -1);
}

static void assert_part_refused(clv_weights_writer *f, size_t i, uint64_t offset, size_t len) {
  static const char bytes[64];
  clv_err err;
  assert_int_equal(clv_weights_writer_put(f, i, offset, bytes, len, &err), CLV_INVALID);
  assert_says(&err, "where others come next");
}

/* Each byte must be written exactly once. A file that is abandoned is deleted, and the older file
 * of its name stays. */
static void invalid_parts_are_refused_and_keep_the_old_file(void **state) {
  (void)state;
  clv_err err;
  write_scratch_file("kept", "old", 3);
  clv_weights_writer *f = begin_file("kept");
  assert_part_refused(f, 3, 0, 1);
  assert_part_refused(f, 1, 4, 4);
  assert_part_refused(f, 1, 0, 25);
  assert_ok(clv_weights_writer_put(f, 1, 0, w, 20, &err), &err);
  assert_part_refused(f, 1, 0, 4);
  assert_part_refused(f, 1, UINT64_MAX, 4);
  assert_part_refused(f, 1, 20, SIZE_MAX);
  assert_ok(clv_weights_writer_put(f, 0, 0, m, 3, &err), &err);
  assert_int_equal(clv_weights_writer_finish(f, NULL, NULL, &err), CLV_PRECONDITION);
  assert_says(&err, "only 20 of 24 bytes of tensor 1 were written");
  assert_int_equal(access(at("kept.tmp"), F_OK), 0);
  clv_weights_writer_free(f);
  assert_int_equal(access(at("kept.tmp"), F_OK), -1);
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  assert_ok(clv_file_read(at("kept"), 100, &text, &err), &err);
  assert_int_equal(text.len, 3);
  assert_int_equal(clv_weights_writer_begin(at("no/where"), list, 3, NULL, 0, &f, &err),
                   CLV_PRECONDITION);
}

static void tensor_ranges_are_read(void **state) {
  (void)state;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL, *full_file = NULL;
  float got[6];
  clv_sha256 digest;
  clv_err err;
  assert_ok(clv_weights_write_file(at("read"), list, 3, NULL, 0, &digest, NULL, &err), &err);
  assert_ok(clv_weights_open_lazy(at("read"), &f, &err), &err);
  assert_ok(clv_weights_open(at("read"), 0, &full_file, &err), &err);
  assert_memory_equal(clv_weights_digest(f), &digest, sizeof digest);
  const clv_weights_entry *e = clv_weights_find_entry(f, "fc.weight");
  assert_null(e->data);
  assert_ok(clv_weights_read_range(f, e, 8, got, 16, &err), &err);
  assert_memory_equal(got, w + 2, 16);
  assert_ok(clv_weights_read_range(f, e, 24, got, 0, &err), &err);
  assert_ok(clv_weights_read_range(full_file, clv_weights_find_entry(full_file, "fc.weight"), 8,
                                   got + 4, 8, &err),
            &err);
  assert_memory_equal(got + 4, w + 2, 8);
  assert_int_equal(clv_weights_read_range(f, e, 20, got, 8, &err), CLV_INVALID);
  assert_int_equal(clv_weights_read_range(f, e, UINT64_MAX, got, 8, &err), CLV_INVALID);
  assert_says(&err, "tensor 'fc.weight', which has 24");
}

/* The reader hashes and reads a file through one descriptor, so a file that changes meanwhile is
 * refused. */
static void file_changed_while_open_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  struct timespec old_times[2] = {{1000, 0}, {1000, 0}};
  float got[6];
  clv_err err;
  assert_ok(clv_weights_write_file(at("changes"), list, 3, NULL, 0, NULL, NULL, &err), &err);
  assert_ok(clv_weights_open_lazy(at("changes"), &f, &err), &err);
  const clv_weights_entry *e = clv_weights_find_entry(f, "fc.weight");
  assert_ok(clv_weights_read_range(f, e, 0, got, 24, &err), &err);
  assert_int_equal(utimensat(AT_FDCWD, at("changes"), old_times, 0), 0);
  assert_int_equal(clv_weights_read_range(f, e, 0, got, 24, &err), CLV_DATA_LOSS);
  assert_says(&err, "was changed while it was read");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(file_written_in_parts_equals_one_write),
      cmocka_unit_test(invalid_parts_are_refused_and_keep_the_old_file),
      cmocka_unit_test(tensor_ranges_are_read),
      cmocka_unit_test(file_changed_while_open_is_refused),
  };
  return cmocka_run_group_tests_name("parts", tests, scratch_setup, scratch_teardown);
}
