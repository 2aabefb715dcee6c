/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests sealed files: what is read back, and that every change of a file is refused. Also tests key
 * files.
 */
#include <sys/stat.h>

#include "master/seal/seal_int.h"
#include "tests/unit/files.h"

static clv_seal_key key;

static int setup(void **state) {
  clv_err err;
  if (scratch_setup(state) != 0) return -1;
  return clv_seal_key_create(at("key"), &key, &err) == CLV_OK ? 0 : -1;
}

static int teardown(void **state) {
  clv_seal_key_done(&key);
  return scratch_teardown(state);
}

/* Returns byte i of the data that the tests seal. */
static uint8_t get_data_byte(size_t i) { return (uint8_t)(i * 7 + i / 251); }

static const char *seal_file(const char *file, const char *name, size_t len, size_t chunk_bytes) {
  CLV_AUTO(clv_sealed_writer_freep) clv_sealed_writer *w = NULL;
  clv_err err;
  uint8_t *data = malloc(len + 1);
  assert_non_null(data);
  for (size_t i = 0; i < len; i++) data[i] = get_data_byte(i);
  assert_ok(clv_sealed_writer_begin(at(file), &key, name, &w, &err), &err);
  for (size_t i = 0; i < len; i += chunk_bytes)
    assert_ok(clv_sealed_writer_add(w, data + i, CLV_MIN(chunk_bytes, len - i), &err), &err);
  assert_ok(clv_sealed_writer_finish(w, &err), &err);
  free(data);
  return at(file);
}

/* Reads a sealed file to its end, and checks each byte of its content. */
static clv_code check_sealed_file(const char *path, const char *name, const clv_seal_key *file_key,
                                  size_t *ret, clv_err *err) {
  CLV_AUTO(clv_sealed_reader_freep) clv_sealed_reader *r = NULL;
  const void *data;
  *ret = 0;
  CLV_TRY(clv_sealed_reader_open(path, file_key, name, &r, err));
  for (size_t n = 1; n; *ret += n) {
    CLV_TRY(clv_sealed_reader_next(r, &data, &n, err));
    for (size_t i = 0; i < n; i++)
      assert_int_equal(((const uint8_t *)data)[i], get_data_byte(*ret + i));
  }
  assert_int_equal(*ret, clv_sealed_reader_data_bytes(r));
  return CLV_OK;
}

static void every_size_is_read_back(void **state) {
  (void)state;
  static const size_t sizes[] = {0,
                                 1,
                                 4095,
                                 CLV_SEAL_FRAME_BYTES - 1,
                                 CLV_SEAL_FRAME_BYTES,
                                 CLV_SEAL_FRAME_BYTES + 1,
                                 3 * CLV_SEAL_FRAME_BYTES,
                                 300001};
  for (size_t i = 0; i < CLV_COUNT(sizes); i++)
    for (int k = 0; k < 2; k++) {
      clv_err err;
      size_t n;
      struct stat st;
      const char *path = seal_file("file", "run/step 4", sizes[i], k ? 100000 : 4096);
      assert_ok(check_sealed_file(path, "run/step 4", &key, &n, &err), &err);
      assert_int_equal(n, sizes[i]);
      assert_int_equal(stat(path, &st), 0);
      assert_int_equal(st.st_mode & 0777, 0600);
      assert_int_equal(access(at("file.tmp"), F_OK), -1);
    }
}

static void unfinished_file_is_removed(void **state) {
  (void)state;
  clv_err err;
  clv_sealed_writer *w = NULL;
  assert_ok(clv_sealed_writer_begin(at("none"), &key, "x", &w, &err), &err);
  assert_ok(clv_sealed_writer_add(w, "abc", 3, &err), &err);
  clv_sealed_writer_free(w);
  assert_int_equal(access(at("none.tmp"), F_OK), -1);
  assert_int_equal(access(at("none"), F_OK), -1);
}

/* ---- encrypted files that were changed ------------------------------------------------------- */

static void assert_refused(const char *data, size_t len, const char *what, size_t position) {
  clv_err err;
  size_t n;
  if (check_sealed_file(write_scratch_file("changed", data, len), "x", &key, &n, &err) == CLV_OK)
    fail_msg("%s at %zu was not noticed", what, position);
}

static void every_changed_bit_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  clv_err err;
  assert_ok(clv_file_read(seal_file("file", "x", 200, 200), 1 << 20, &file, &err), &err);
  assert_int_equal(file.len, CLV_SEAL_HEADER_BYTES + 200 + CLV_SEAL_TAG_BYTES);
  for (size_t i = 0; i < file.len * 8; i++) {
    file.data[i / 8] ^= (char)(1 << i % 8);
    assert_refused(file.data, file.len, "a flipped bit", i);
    file.data[i / 8] ^= (char)(1 << i % 8);
  }
}

static void every_truncation_is_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0}, large = {0};
  clv_err err;
  assert_ok(clv_file_read(seal_file("file", "x", 200, 200), 1 << 20, &file, &err), &err);
  for (size_t n = 0; n < file.len; n++) assert_refused(file.data, n, "a truncation", n);
  clv_bytes_add(&file, "", 1);
  assert_refused(file.data, file.len, "a further byte", file.len);
  assert_ok(
      clv_file_read(seal_file("file", "x", 3 * CLV_SEAL_FRAME_BYTES, 4096), 1 << 20, &large, &err),
      &err);
  for (size_t k = 0; k < 3; k++)
    for (size_t by = 0; by < 40; by++)
      assert_refused(large.data, CLV_SEAL_HEADER_BYTES + k * CLV_SEAL_ENCRYPTED_FRAME_BYTES + by,
                     "a truncation between frames", k);
}

static void exchanged_frames_are_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0}, other = {0};
  clv_err err;
  static uint8_t saved_frame[CLV_SEAL_ENCRYPTED_FRAME_BYTES];
  assert_ok(
      clv_file_read(seal_file("file", "x", 3 * CLV_SEAL_FRAME_BYTES, 4096), 1 << 20, &file, &err),
      &err);
  assert_ok(
      clv_file_read(seal_file("other", "x", 3 * CLV_SEAL_FRAME_BYTES, 4096), 1 << 20, &other, &err),
      &err);
  char *first_frame = file.data + CLV_SEAL_HEADER_BYTES,
       *second_frame = first_frame + CLV_SEAL_ENCRYPTED_FRAME_BYTES;
  memcpy(saved_frame, first_frame, sizeof saved_frame);
  memcpy(first_frame, second_frame, sizeof saved_frame);
  memcpy(second_frame, saved_frame, sizeof saved_frame);
  assert_refused(file.data, file.len, "an exchange of frames", 0);
  memcpy(second_frame, first_frame, sizeof saved_frame);
  memcpy(first_frame, saved_frame, sizeof saved_frame);
  memcpy(second_frame, other.data + CLV_SEAL_HEADER_BYTES + CLV_SEAL_ENCRYPTED_FRAME_BYTES,
         sizeof saved_frame);
  assert_refused(file.data, file.len, "a frame of another file", 1);
}

static void file_sealed_under_another_name_is_refused(void **state) {
  (void)state;
  clv_err err;
  size_t n;
  const char *path = seal_file("file", "x", 100, 100);
  assert_int_equal(check_sealed_file(path, "y", &key, &n, &err), CLV_DATA_LOSS);
  assert_says(&err, "or it is not y");
  assert_int_equal(check_sealed_file(path, "", &key, &n, &err), CLV_INVALID);
}

static void other_versions_and_files_are_named(void **state) {
  (void)state;
  clv_err err;
  char id[17], text[128] = "CLVSEAL\2";
  assert_int_equal(clv_sealed_read_key_id(write_scratch_file("v2", text, sizeof text), id, &err),
                   CLV_UNIMPLEMENTED);
  assert_says(&err, "version 2 of the format, expected 1");
  memset(text, 'a', sizeof text);
  assert_int_equal(clv_sealed_read_key_id(write_scratch_file("text", text, sizeof text), id, &err),
                   CLV_DATA_LOSS);
  assert_says(&err, "no sealed file");
  assert_int_equal(clv_sealed_read_key_id(at("nowhere"), id, &err), CLV_NOT_FOUND);
}

/* ---- keys of encrypted files ----------------------------------------------------------------- */

static void wrong_key_is_named_with_the_right_one(void **state) {
  (void)state;
  CLV_AUTO(clv_seal_key_done) clv_seal_key other = {0};
  clv_err err;
  size_t n;
  char id[17];
  const char *path = seal_file("file", "x", 10, 10);
  assert_ok(clv_seal_key_create(at("other.key"), &other, &err), &err);
  assert_int_equal(check_sealed_file(path, "x", &other, &n, &err), CLV_DENIED);
  assert_says(&err, key.id);
  assert_says(&err, other.id);
  assert_says(&err, "other.key");
  assert_ok(clv_sealed_read_key_id(path, id, &err), &err);
  assert_string_equal(id, key.id);
}

static void key_is_read_back_from_its_file(void **state) {
  (void)state;
  CLV_AUTO(clv_seal_key_done) clv_seal_key again = {0}, none = {0};
  clv_err err;
  struct stat st;
  assert_ok(clv_seal_key_read(key.path, &again, &err), &err);
  assert_string_equal(again.id, key.id);
  assert_memory_equal(&again.secret, &key.secret, sizeof key.secret);
  assert_int_equal(stat(key.path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  assert_int_equal(clv_seal_key_create(key.path, &none, &err), CLV_EXISTS);
  assert_int_equal(clv_seal_key_read(at("no.key"), &none, &err), CLV_NOT_FOUND);
  assert_says(&err, "nothing that was sealed with it can be read");
}

static void bad_key_files_are_refused(void **state) {
  (void)state;
  CLV_AUTO(clv_seal_key_done) clv_seal_key none = {0};
  clv_err err;
  char digits[80];
  memset(digits, 'a', sizeof digits);
  const size_t sizes[] = {0, 1, 63, 65, 66, 67, 80};
  for (size_t i = 0; i < CLV_COUNT(sizes); i++) {
    assert_int_equal(chmod(write_scratch_file("bad.key", digits, sizes[i]), 0600), 0);
    assert_int_equal(clv_seal_key_read(at("bad.key"), &none, &err), CLV_DATA_LOSS);
  }
  assert_ok(clv_seal_key_read(write_scratch_file("bad.key", digits, 64), &none, &err), &err);
  clv_seal_key_done(&none);
  digits[9] = 'g';
  assert_int_equal(clv_seal_key_read(write_scratch_file("bad.key", digits, 64), &none, &err),
                   CLV_DATA_LOSS);
  digits[9] = 'a';
  assert_int_equal(chmod(write_scratch_file("bad.key", digits, 64), 0640), 0);
  assert_int_equal(clv_seal_key_read(at("bad.key"), &none, &err), CLV_DENIED);
  assert_says(&err, "mode 0640");
  assert_int_equal(mkdir(at("folder"), 0700), 0);
  assert_int_equal(clv_seal_key_read(at("folder"), &none, &err), CLV_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_size_is_read_back),
      cmocka_unit_test(unfinished_file_is_removed),
      cmocka_unit_test(every_changed_bit_is_refused),
      cmocka_unit_test(every_truncation_is_refused),
      cmocka_unit_test(exchanged_frames_are_refused),
      cmocka_unit_test(file_sealed_under_another_name_is_refused),
      cmocka_unit_test(other_versions_and_files_are_named),
      cmocka_unit_test(wrong_key_is_named_with_the_right_one),
      cmocka_unit_test(key_is_read_back_from_its_file),
      cmocka_unit_test(bad_key_files_are_refused),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
