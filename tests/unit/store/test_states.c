/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of state of identities: whose they are, their names, their quota, a restart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// after the above
#include <cmocka.h>

#include "worker/store/store.h"

#define A "spiffe://a/m"
#define B "spiffe://b/m"

static char folder[] = "/tmp/clv-states-XXXXXX";
static float numbers[2000];
static clv_err err;

static clv_states *opened(void) {
  clv_states *s = NULL;
  if (clv_states_open(folder, &s, &err) != CLV_OK) fail_msg("%s", err.text);
  return s;
}

/* Of so many numbers. */
static clv_code save(clv_states *s, const char *who, uint64_t most, const char *name, int64_t n) {
  clv_sha256 digest;
  uint64_t bytes;
  const clv_weights_tensor t = {
      .name = "w", .dtype = CLV_F32, .shape = CLV_SHAPE(n), .data = numbers};
  clv_code code = clv_states_save(s, who, most, name, &t, 1, &digest, &bytes, &err);
  if (code == CLV_OK) assert_true(bytes > (uint64_t)n * 4 && bytes < (uint64_t)n * 4 + 256);
  return code;
}

/* The first number of the file, or a code below 0. */
static int first_of(clv_states *s, const char *who, const char *name, size_t most) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_code code = clv_states_open_file(s, who, name, most, &f, &err);
  if (code != CLV_OK) return -(int)code;
  float first;
  memcpy(&first, clv_weights_find(f, "w")->data, sizeof first);
  return (int)first;
}

static void state_is_visible_only_to_its_identity(void **state) {
  (void)state;
  clv_states *s = opened();
  numbers[0] = 5;
  assert_int_equal(save(s, A, 1 << 20, "x", 100), CLV_OK);
  assert_int_equal(first_of(s, B, "x", 1 << 20), -CLV_NOT_FOUND);
  assert_int_equal(clv_states_remove(s, B, "x", &err), CLV_NOT_FOUND);
  numbers[0] = 6;
  assert_int_equal(save(s, B, 1 << 20, "x", 100), CLV_OK);
  clv_states_free(s);
  s = opened(); /* the worker was started again */
  assert_int_equal(first_of(s, A, "x", 1 << 20), 5);
  assert_int_equal(first_of(s, B, "x", 1 << 20), 6);
  assert_int_equal(first_of(s, A, "x", 100), -CLV_EXHAUSTED);
  assert_null(strstr(err.text, folder));
  assert_int_equal(clv_states_remove(s, B, "x", &err), CLV_OK);
  assert_int_equal(clv_states_remove(s, A, "x", &err), CLV_OK);
  assert_int_equal(clv_states_remove(s, A, "x", &err), CLV_NOT_FOUND);
  clv_states_free(s);
}

static void invalid_state_names_are_refused(void **state) {
  (void)state;
  char lengthy[130] = "";
  memset(lengthy, 'n', 129);
  const char *const bad[] = {"",   ".",   "..",  "../x",     "/x",   "a/b",
                             ".x", "a b", "a\n", "\xc3\xa4", lengthy};
  clv_states *s = opened();
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    assert_int_equal(save(s, A, 1 << 20, bad[i], 10), CLV_INVALID);
    assert_int_equal(first_of(s, A, bad[i], 1 << 20), -CLV_INVALID);
    assert_int_equal(clv_states_remove(s, A, bad[i], &err), CLV_INVALID);
  }
  lengthy[128] = '\0';
  assert_int_equal(save(s, A, 1 << 20, lengthy, 10), CLV_OK);
  assert_int_equal(clv_states_remove(s, A, lengthy, &err), CLV_OK);
  clv_states_free(s);
}

static void state_quota_counts_stored_files(void **state) {
  (void)state;
  clv_states *s = opened();
  assert_int_equal(save(s, A, 0, "x", 10), CLV_EXHAUSTED);
  assert_non_null(strstr(err.text, "allow[].state_bytes"));
  assert_int_equal(save(s, A, 12288, "x", 10), CLV_OK);
  assert_int_equal(save(s, A, 12288, "y", 2000), CLV_OK); /* two times 4 KiB */
  assert_int_equal(save(s, A, 12288, "z", 10), CLV_EXHAUSTED);
  assert_int_equal(save(s, B, 4096, "z", 10), CLV_OK);
  assert_int_equal(save(s, A, 12288, "y", 2000), CLV_OK); /* over itself */
  assert_int_equal(save(s, A, 12288, "x", 2000), CLV_EXHAUSTED);
  assert_int_equal(save(s, A, 12288, "y", 10), CLV_OK);
  clv_states_free(s);
  s = opened();
  assert_int_equal(save(s, A, 12288, "z", 10), CLV_OK);
  assert_int_equal(save(s, A, 12288, "zz", 10), CLV_EXHAUSTED);
  assert_int_equal(clv_states_remove(s, A, "x", &err), CLV_OK);
  assert_int_equal(save(s, A, 12288, "zz", 10), CLV_OK);
  clv_states_free(s);
}

/* A folder stands where the file should. */
static void disk_error_is_returned_as_unavailable(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_sha256 digest;
  char hex[65];
  clv_states *s = opened();
  assert_int_equal(clv_sha256_of(A, strlen(A), &digest, &err), CLV_OK);
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(&path, "%s/states/%s/in-the-way.safetensors/x", folder, hex);
  assert_int_equal(clv_mkdirs(path.data, &err), CLV_OK);
  assert_int_equal(save(s, A, 1 << 20, "in-the-way", 10), CLV_PRECONDITION);
  assert_int_equal(clv_states_remove(s, A, "in-the-way", &err), CLV_UNAVAILABLE);
  clv_states_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(state_is_visible_only_to_its_identity),
      cmocka_unit_test(invalid_state_names_are_refused),
      cmocka_unit_test(state_quota_counts_stored_files),
      cmocka_unit_test(disk_error_is_returned_as_unavailable),
  };
  if (!mkdtemp(folder)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command) == 0 ? failed : 1;
}
