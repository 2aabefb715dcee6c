/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests files of state that a worker keeps, each of which belongs to one identity: who may use
 * them, their names, their quota, and a restart of the worker.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>
// cmocka.h requires the headers above
#include <cmocka.h>

#include "worker/store/store.h"

#define A "spiffe://a/m"
#define B "spiffe://b/m"
#define C "spiffe://c/m"

static char folder[] = "/tmp/clv-states-XXXXXX";
static float numbers[2000];
static clv_err err;

static clv_states *open_states(void) {
  clv_states *s = NULL;
  if (clv_states_open(folder, &s, &err) != CLV_OK) fail_msg("%s", err.text);
  return s;
}

/* Saves a file with `n` numbers. */
static clv_code save_file(clv_states *s, const char *identity, uint64_t quota_bytes,
                          const char *name, int64_t n) {
  clv_sha256 digest;
  uint64_t bytes;
  const clv_weights_tensor t = {
      .name = "w", .dtype = CLV_F32, .shape = CLV_SHAPE(n), .data = numbers};
  const clv_state_save_request r = {.list = &t, .n = 1, .max_bytes = quota_bytes};
  clv_code code = clv_states_save(s, identity, name, &r, &digest, &bytes, &err);
  if (code == CLV_OK) assert_true(bytes > (uint64_t)n * 4 && bytes < (uint64_t)n * 4 + 256);
  return code;
}

/* Returns the first number of the file, or a negative code. */
static int read_first_number(clv_states *s, const char *identity, const char *name,
                             size_t quota_bytes) {
  CLV_AUTO(clv_weights_closep) clv_weights_file *f = NULL;
  clv_code code = clv_states_open_file(s, identity, name, quota_bytes, NULL, &f, &err);
  if (code != CLV_OK) return -(int)code;
  float first;
  memcpy(&first, clv_weights_find_entry(f, "w")->data, sizeof first);
  return (int)first;
}

static void state_is_visible_only_to_its_identity(void **state) {
  (void)state;
  clv_states *s = open_states();
  numbers[0] = 5;
  assert_int_equal(save_file(s, A, 1 << 20, "x", 100), CLV_OK);
  assert_int_equal(read_first_number(s, B, "x", 1 << 20), -CLV_NOT_FOUND);
  assert_int_equal(clv_states_remove(s, B, "x", NULL, &err), CLV_NOT_FOUND);
  numbers[0] = 6;
  assert_int_equal(save_file(s, B, 1 << 20, "x", 100), CLV_OK);
  clv_states_free(s);
  s = open_states(); /* opens the folder again, as a restarted worker does */
  assert_int_equal(read_first_number(s, A, "x", 1 << 20), 5);
  assert_int_equal(read_first_number(s, B, "x", 1 << 20), 6);
  assert_int_equal(read_first_number(s, A, "x", 100), -CLV_EXHAUSTED);
  assert_null(strstr(err.text, folder));
  assert_int_equal(clv_states_remove(s, B, "x", NULL, &err), CLV_OK);
  assert_int_equal(clv_states_remove(s, A, "x", NULL, &err), CLV_OK);
  assert_int_equal(clv_states_remove(s, A, "x", NULL, &err), CLV_NOT_FOUND);
  clv_states_free(s);
}

static void invalid_state_names_are_refused(void **state) {
  (void)state;
  char long_name[130] = "";
  memset(long_name, 'n', 129);
  const char *const bad[] = {"",   ".",   "..",  "../x",     "/x",     "a/b",
                             ".x", "a b", "a\n", "\xc3\xa4", long_name};
  clv_states *s = open_states();
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    assert_int_equal(save_file(s, A, 1 << 20, bad[i], 10), CLV_INVALID);
    assert_int_equal(read_first_number(s, A, bad[i], 1 << 20), -CLV_INVALID);
    assert_int_equal(clv_states_remove(s, A, bad[i], NULL, &err), CLV_INVALID);
  }
  long_name[128] = '\0';
  assert_int_equal(save_file(s, A, 1 << 20, long_name, 10), CLV_OK);
  assert_int_equal(clv_states_remove(s, A, long_name, NULL, &err), CLV_OK);
  clv_states_free(s);
}

static void state_quota_counts_stored_files(void **state) {
  (void)state;
  clv_states *s = open_states();
  assert_int_equal(save_file(s, A, 0, "x", 10), CLV_EXHAUSTED);
  assert_non_null(strstr(err.text, "allow[].state_bytes"));
  assert_int_equal(save_file(s, A, 12288, "x", 10), CLV_OK);
  /* the quota allows two files of 4 KiB */
  assert_int_equal(save_file(s, A, 12288, "y", 2000), CLV_OK);
  assert_int_equal(save_file(s, A, 12288, "z", 10), CLV_EXHAUSTED);
  assert_int_equal(save_file(s, B, 4096, "z", 10), CLV_OK);
  /* the file replaces the earlier file of its name */
  assert_int_equal(save_file(s, A, 12288, "y", 2000), CLV_OK);
  assert_int_equal(save_file(s, A, 12288, "x", 2000), CLV_EXHAUSTED);
  assert_int_equal(save_file(s, A, 12288, "y", 10), CLV_OK);
  clv_states_free(s);
  s = open_states();
  assert_int_equal(save_file(s, A, 12288, "z", 10), CLV_OK);
  assert_int_equal(save_file(s, A, 12288, "zz", 10), CLV_EXHAUSTED);
  assert_int_equal(clv_states_remove(s, A, "x", NULL, &err), CLV_OK);
  assert_int_equal(save_file(s, A, 12288, "zz", 10), CLV_OK);
  clv_states_free(s);
}

/* ---- several writers at the same time -------------------------------------------------------- */

/* A save that stops after its data until the test lets it continue. */
typedef struct slow_save {
  clv_states *s;
  const char *name;
  int64_t n;
  uint64_t max_bytes;
  clv_code result_code;
  bool is_cancelled, is_written, may_continue;
  pthread_t thread;
} slow_save;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void wait_for_flag(const bool *flag) {
  pthread_mutex_lock(&lock);
  while (!*flag) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void set_flag(bool *flag) {
  pthread_mutex_lock(&lock);
  *flag = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void wait_after_data(void *user) {
  slow_save *w = user;
  set_flag(&w->is_written);
  wait_for_flag(&w->may_continue);
}

static bool is_cancelled(void *user) { return __atomic_load_n((bool *)user, __ATOMIC_RELAXED); }

static void *run_slow_save(void *user) {
  slow_save *w = user;
  const clv_weights_tensor t = {
      .name = "w", .dtype = CLV_F32, .shape = CLV_SHAPE(w->n), .data = numbers};
  const clv_cancel_hook cancel_hook = {is_cancelled, &w->is_cancelled};
  const clv_state_save_request r = {.list = &t,
                                    .n = 1,
                                    .max_bytes = w->max_bytes,
                                    .cancel_hook = &cancel_hook,
                                    .on_written = wait_after_data,
                                    .user = w};
  clv_sha256 digest;
  uint64_t bytes;
  clv_err own_err;
  w->result_code = clv_states_save(w->s, A, w->name, &r, &digest, &bytes, &own_err);
  return NULL;
}

static void begin_slow_save(slow_save *w) {
  assert_int_equal(pthread_create(&w->thread, NULL, run_slow_save, w), 0);
  wait_for_flag(&w->is_written);
}

static void end_slow_save(slow_save *w) {
  set_flag(&w->may_continue);
  pthread_join(w->thread, NULL);
}

static void two_sessions_at_once_keep_the_quota(void **state) {
  (void)state;
  clv_states *s = open_states();
  assert_int_equal(save_file(s, A, 1 << 20, "q1", 10), CLV_OK);
  clv_state_list l = {0};
  assert_int_equal(clv_states_list(s, A, "", "", &l, &err), CLV_OK);
  const uint64_t quota_bytes = l.used_bytes + 8192;
  clv_state_list_done(&l);
  slow_save first = {.s = s, .name = "q2", .n = 2000, .max_bytes = quota_bytes};
  begin_slow_save(&first);
  assert_int_equal(save_file(s, A, quota_bytes, "q3", 10), CLV_EXHAUSTED);
  assert_int_equal(save_file(s, A, quota_bytes, "q1", 2000), CLV_EXHAUSTED);
  assert_int_equal(save_file(s, A, quota_bytes, "q1", 10), CLV_OK);
  assert_int_equal(save_file(s, C, 4096, "q3", 10), CLV_OK);
  end_slow_save(&first);
  assert_int_equal(first.result_code, CLV_OK);
  slow_save smaller_save = {.s = s, .name = "q2", .n = 10, .max_bytes = quota_bytes};
  begin_slow_save(&smaller_save); /* the old file of 8 KiB counts until the new one is complete */
  assert_int_equal(save_file(s, A, quota_bytes, "q3", 10), CLV_EXHAUSTED);
  end_slow_save(&smaller_save);
  assert_int_equal(save_file(s, A, quota_bytes, "q3", 10), CLV_OK);
  for (int i = 1; i <= 3; i++) {
    const char name[] = {'q', (char)('0' + i), '\0'};
    assert_int_equal(clv_states_remove(s, A, name, NULL, &err), CLV_OK);
  }
  assert_int_equal(clv_states_remove(s, C, "q3", NULL, &err), CLV_OK);
  clv_states_free(s);
}

static void *load_slowly(void *user) {
  slow_save *w = user;
  w->result_code = (clv_code)read_first_number(w->s, A, w->name, 1 << 20);
  set_flag(&w->is_written);
  return NULL;
}

static void load_waits_for_the_writer_of_its_name(void **state) {
  (void)state;
  clv_states *s = open_states();
  numbers[0] = 1;
  assert_int_equal(save_file(s, A, 1 << 20, "x", 10), CLV_OK);
  numbers[0] = 2;
  slow_save w = {.s = s, .name = "x", .n = 10, .max_bytes = 1 << 20};
  slow_save slow_load = {.s = s, .name = "x"};
  begin_slow_save(&w);
  assert_int_equal(pthread_create(&slow_load.thread, NULL, load_slowly, &slow_load), 0);
  usleep(50000);
  pthread_mutex_lock(&lock);
  assert_false(slow_load.is_written);
  pthread_mutex_unlock(&lock);
  bool has_left = true;
  const clv_cancel_hook cancel_hook = {is_cancelled, &has_left};
  assert_int_equal(clv_states_remove(s, A, "x", &cancel_hook, &err), CLV_CANCELLED);
  end_slow_save(&w);
  pthread_join(slow_load.thread, NULL);
  assert_int_equal(slow_load.result_code, 2);
  clv_states_free(s);
}

static void cancelled_save_leaves_the_old_file(void **state) {
  (void)state;
  clv_states *s = open_states();
  numbers[0] = 3;
  assert_int_equal(save_file(s, A, 1 << 20, "x", 10), CLV_OK);
  numbers[0] = 4;
  slow_save w = {.s = s, .name = "x", .n = 10, .max_bytes = 1 << 20};
  begin_slow_save(&w);
  __atomic_store_n(&w.is_cancelled, true, __ATOMIC_RELAXED);
  end_slow_save(&w);
  assert_int_equal(w.result_code, CLV_CANCELLED);
  assert_int_equal(read_first_number(s, A, "x", 1 << 20), 3);
  assert_int_equal(clv_states_remove(s, A, "x", NULL, &err), CLV_OK);
  char command[128];
  snprintf(command, sizeof command, "test -z \"$(find %s -name '*.tmp')\"", folder);
  assert_int_equal(system(command), 0);
  clv_states_free(s);
}

/* ---- errors of the disk ---------------------------------------------------------------------- */

static int fsync_error; /* error of fsync; 0: none */

/* Replaces fsync of the C library. */
int fsync(int fd) {
  (void)fd;
  errno = fsync_error;
  return fsync_error ? -1 : 0;
}

static void disk_errors_name_the_file_and_leave_the_old_one(void **state) {
  (void)state;
  static const struct {
    int error;
    clv_code result_code;
    const char *text;
  } cases[] = {{ENOSPC, CLV_EXHAUSTED, "file of state 'd': the worker's disk is full ("},
               {EDQUOT, CLV_EXHAUSTED, "the disk quota of the worker's user is used up"},
               {EROFS, CLV_UNAVAILABLE, "the worker's disk is mounted read-only"},
               {EIO, CLV_UNAVAILABLE, "the worker's disk reported an I/O error"},
               {ENXIO, CLV_UNAVAILABLE, "check the worker's disk"}};
  clv_states *s = open_states();
  numbers[0] = 7;
  assert_int_equal(save_file(s, A, 1 << 20, "d", 10), CLV_OK);
  numbers[0] = 8;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    fsync_error = cases[i].error;
    assert_int_equal(save_file(s, A, 1 << 20, "d", 10), cases[i].result_code);
    fsync_error = 0;
    if (!strstr(err.text, cases[i].text)) fail_msg("%s", err.text);
    assert_non_null(strstr(err.text, " are free)"));
    assert_non_null(strstr(err.text, "An earlier file of this name is still there"));
    assert_null(strstr(err.text, folder));
    assert_int_equal(read_first_number(s, A, "d", 1 << 20), 7);
  }
  assert_int_equal(save_file(s, A, 1 << 20, "d", 10), CLV_OK);
  assert_int_equal(read_first_number(s, A, "d", 1 << 20), 8);
  clv_states_free(s);
}

/* ---- lists of files, and ranges of their bytes ----------------------------------------------- */

static void lists_are_sorted_and_have_pages(void **state) {
  (void)state;
  CLV_AUTO(clv_state_list_done) clv_state_list l = {0};
  clv_states *s = open_states();
  char name[16], last_name[16];
  for (int i = 0; i < CLV_MAX_LISTED_STATES + 3; i++) {
    snprintf(name, sizeof name, "n%04d", (i * 7) % (CLV_MAX_LISTED_STATES + 3));
    assert_int_equal(save_file(s, C, 1 << 30, name, 10), CLV_OK);
  }
  strcpy(last_name, name);
  assert_int_equal(clv_states_list(s, C, "", "", &l, &err), CLV_OK);
  assert_true(l.n == CLV_MAX_LISTED_STATES && l.has_more);
  for (uint32_t i = 0; i < l.n; i++) {
    snprintf(name, sizeof name, "n%04u", i);
    assert_string_equal(l.files[i].name, name);
    assert_true(l.files[i].bytes > 40 && l.files[i].version && l.files[i].age_s < 600);
  }
  assert_true(l.used_bytes >= (CLV_MAX_LISTED_STATES + 3) * 4096u);
  clv_state_list_done(&l);
  assert_int_equal(clv_states_list(s, C, "", "n0511", &l, &err), CLV_OK);
  assert_true(l.n == 3 && !l.has_more && strcmp(l.files[2].name, "n0514") == 0);
  clv_state_list_done(&l);
  assert_int_equal(clv_states_list(s, C, last_name, "", &l, &err), CLV_OK);
  assert_true(l.n == 1 && l.files[0].has_sha256);
  clv_state_list_done(&l);
  assert_int_equal(clv_states_list(s, C, "none", "", &l, &err), CLV_OK);
  assert_int_equal(l.n, 0);
  clv_states_free(s);
}

/* If a folder is at the path of a file, the save fails as UNAVAILABLE. */
static void disk_error_is_returned_as_unavailable(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_sha256 digest;
  char hex[65];
  clv_states *s = open_states();
  assert_int_equal(clv_sha256_of(A, strlen(A), &digest, &err), CLV_OK);
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(&path, "%s/states/%s/in-the-way.safetensors/x", folder, hex);
  assert_int_equal(clv_mkdirs(path.data, &err), CLV_OK);
  assert_int_equal(save_file(s, A, 1 << 20, "in-the-way", 10), CLV_UNAVAILABLE);
  assert_int_equal(clv_states_remove(s, A, "in-the-way", NULL, &err), CLV_UNAVAILABLE);
  clv_states_free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(state_is_visible_only_to_its_identity),
      cmocka_unit_test(invalid_state_names_are_refused),
      cmocka_unit_test(state_quota_counts_stored_files),
      cmocka_unit_test(disk_error_is_returned_as_unavailable),
      cmocka_unit_test(two_sessions_at_once_keep_the_quota),
      cmocka_unit_test(load_waits_for_the_writer_of_its_name),
      cmocka_unit_test(cancelled_save_leaves_the_old_file),
      cmocka_unit_test(disk_errors_name_the_file_and_leave_the_old_one),
      cmocka_unit_test(lists_are_sorted_and_have_pages),
  };
  if (!mkdtemp(folder)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command) == 0 ? failed : 1;
}
