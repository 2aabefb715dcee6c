/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a worker's caches of rows, each of which belongs to one identity: who may use them, their
 * quota, rows that are damaged or cut short, and how caches expire.
 */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
// cmocka.h requires the headers above
#include <cmocka.h>

#include "worker/store/cache_int.h"

#define A "spiffe://a/m"
#define B "spiffe://b/m"
#define MIB ((uint64_t)1 << 20)

enum { WIDTH = 6, RECORDS = 9 };

static char folder[] = "/tmp/clv-caches-XXXXXX";
static clv_err err;

static clv_caches *open_caches(void) {
  clv_caches *c = NULL;
  if (clv_caches_open(folder, &c, &err) != CLV_OK) fail_msg("%s", err.text);
  return c;
}

static clv_cache make_cache(uint8_t key, uint64_t keep_s) {
  return (clv_cache){.key = {{key}}, .n_records = RECORDS, .keep_s = keep_s};
}

/* Writes rows of numbers 10 * row, 10 * row + 1, ... */
static clv_code write_rows(clv_caches *c, const char *owner, uint64_t quota_bytes,
                           const clv_cache *cache, const int64_t *rows, int64_t n) {
  clv_tensor *t;
  assert_int_equal(clv_tensor_new(CLV_F32, &CLV_SHAPE(n, 2, WIDTH / 2), &t, &err), CLV_OK);
  for (int64_t i = 0; i < n * WIDTH; i++)
    ((float *)t->data)[i] = (float)(10 * rows[i / WIDTH] + i % WIDTH);
  clv_code code = clv_caches_put(c, owner, quota_bytes, cache, rows, t, &err);
  clv_tensor_unref(t);
  return code;
}

static clv_code read_rows(clv_caches *c, const char *owner, const clv_cache *cache,
                          const int64_t *rows, int64_t n) {
  clv_tensor *t;
  clv_dtype dtype;
  clv_shape shape;
  clv_code code = clv_caches_get_rows_shape(c, owner, cache, (size_t)n, &dtype, &shape, &err);
  if (code != CLV_OK) return code;
  assert_true(dtype == CLV_F32 && clv_shape_equal(&shape, &CLV_SHAPE(n, 2, WIDTH / 2)));
  assert_int_equal(clv_tensor_new(dtype, &shape, &t, &err), CLV_OK);
  code = clv_caches_get(c, owner, cache, rows, t, &err);
  for (int64_t i = 0; code == CLV_OK && i < n * WIDTH; i++)
    assert_true(((float *)t->data)[i] == (float)(10 * rows[i / WIDTH] + i % WIDTH));
  clv_tensor_unref(t);
  return code;
}

static uint32_t count_caches(clv_caches *c, const char *owner, const clv_sha256 *key, bool remove,
                             clv_cache_status *ret) {
  clv_cache_status list[CLV_MAX_CACHES];
  uint32_t n;
  assert_int_equal(clv_caches_list(c, owner, key, remove, list, &n, &err), CLV_OK);
  if (n && ret) *ret = list[0];
  return n;
}

/* Returns the path of A's cache. Fails if its mode or name is wrong. */
static void get_path(uint8_t key, clv_bytes *ret) {
  clv_sha256 owner, name, k = {{key}};
  char of[65], as[65];
  struct stat at;
  assert_int_equal(clv_sha256_of(A, strlen(A), &owner, &err), CLV_OK);
  assert_int_equal(clv_sha256_of(&k, sizeof k, &name, &err), CLV_OK);
  clv_sha256_hex(&owner, of);
  clv_sha256_hex(&name, as);
  ret->len = 0;
  clv_bytes_printf(ret, "%s/cached/%s/%s.rows", folder, of, as);
  assert_int_equal(stat(ret->data, &at), 0);
  assert_int_equal(at.st_mode & 0777, 0600);
}

/* Changes one byte of the file, at an offset from its start, or from its end if negative. */
static void change_byte(uint8_t key, off_t at) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  uint8_t byte;
  get_path(key, &path);
  int fd = open(path.data, O_RDWR);
  if (at < 0) at += lseek(fd, 0, SEEK_END);
  assert_int_equal(pread(fd, &byte, 1, at), 1);
  byte ^= 1;
  assert_int_equal(pwrite(fd, &byte, 1, at), 1);
  close(fd);
}

/* Counts files and folders in the folder of all caches. */
static int count_leftovers(void) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  int n = 0;
  clv_bytes_printf(&path, "%s/cached", folder);
  DIR *d = opendir(path.data);
  for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

static void cached_rows_are_read_in_any_order(void **state) {
  (void)state;
  clv_caches *c = open_caches();
  const clv_cache one = make_cache(1, 60);
  clv_cache_status s;
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){8, 0, 3}, 3), CLV_OK);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){3, 3, 8, 0}, 4), CLV_OK);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){3, 1}, 2), CLV_NOT_FOUND);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){1}, 1), CLV_OK);
  clv_caches_free(c);
  c = open_caches(); /* opens the folder again, as a restarted worker does */
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){3, 1}, 2), CLV_OK);
  assert_int_equal(count_caches(c, A, NULL, false, &s), 1);
  assert_true(s.n_records == RECORDS && s.n_rows == 4 && s.row_bytes == WIDTH * 4);
  assert_true(s.expires_s <= 60 && s.expires_s >= 50 && s.disk_bytes == 12288);
  assert_int_equal(count_caches(c, A, NULL, true, NULL), 1);
  assert_int_equal(count_leftovers(), 0);
  clv_caches_free(c);
}

static void cache_is_visible_only_to_its_identity(void **state) {
  (void)state;
  clv_caches *c = open_caches();
  const clv_cache one = make_cache(1, 60), other_cache = make_cache(2, 60);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){2}, 1), CLV_OK);
  assert_int_equal(write_rows(c, A, MIB, &other_cache, (int64_t[]){2}, 1), CLV_OK);
  assert_int_equal(read_rows(c, B, &one, (int64_t[]){2}, 1), CLV_NOT_FOUND);
  assert_int_equal(count_caches(c, B, NULL, true, NULL), 0);
  assert_int_equal(count_caches(c, A, &one.key, true, NULL), 1);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){2}, 1), CLV_NOT_FOUND);
  assert_int_equal(read_rows(c, A, &other_cache, (int64_t[]){2}, 1), CLV_OK);
  assert_int_equal(count_caches(c, A, NULL, true, NULL), 1);
  clv_caches_free(c);
}

static void invalid_row_numbers_and_shapes_are_refused(void **state) {
  (void)state;
  clv_caches *c = open_caches();
  clv_cache one = make_cache(1, 60);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){RECORDS}, 1), CLV_INVALID);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){-1}, 1), CLV_INVALID);
  assert_int_equal(count_caches(c, A, NULL, false, NULL), 0);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0, RECORDS}, 2), CLV_INVALID);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){INT64_MIN}, 1), CLV_INVALID);
  one.n_records++;
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){0}, 1), CLV_INVALID);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0}, 1), CLV_INVALID);
  assert_int_equal(count_caches(c, A, NULL, true, NULL), 1);
  clv_caches_free(c);
}

static bool is_row_refused(int64_t row) {
  char number[24];
  snprintf(number, sizeof number, "%lld", (long long)row);
  return strstr(err.text, number) || strstr(err.offending_value, number);
}

/* Row numbers are the caller's data. Texts that reach the worker's log, its status and other
 * workers have the position in the batch instead. */
static void error_texts_omit_row_numbers(void **state) {
  const int64_t row = 87654, missing_row = 9876543;
  clv_cache one = make_cache(1, 60);
  (void)state;
  clv_caches *c = open_caches();
  one.n_records = 100000;
  assert_int_equal(write_rows(c, A, MIB * MIB, &one, (int64_t[]){0, row}, 2), CLV_OK);
  assert_int_equal(write_rows(c, A, MIB * MIB, &one, (int64_t[]){0, missing_row}, 2), CLV_INVALID);
  assert_false(is_row_refused(missing_row));
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0, -missing_row}, 2), CLV_INVALID);
  assert_false(is_row_refused(missing_row));
  assert_non_null(strstr(err.text, "sample 1"));
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){row, 0, row + 1}, 3), CLV_NOT_FOUND);
  assert_false(is_row_refused(row + 1));
  assert_non_null(strstr(err.text, "sample 2"));
  change_byte(1, 806912 + row * WIDTH * 4);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0, row}, 2), CLV_DATA_LOSS);
  assert_false(is_row_refused(row));
  assert_non_null(strstr(err.text, "sample 1"));
  assert_int_equal(count_caches(c, A, NULL, true, NULL), 1);
  clv_caches_free(c);
}

static void cache_quota_counts_whole_files(void **state) {
  (void)state;
  clv_caches *c = open_caches();
  const clv_cache one = make_cache(1, 60), other = make_cache(2, 60);
  assert_int_equal(write_rows(c, A, 0, &one, (int64_t[]){0}, 1), CLV_EXHAUSTED);
  assert_non_null(strstr(err.text, "allow[].cache_bytes"));
  assert_int_equal(write_rows(c, A, 12287, &one, (int64_t[]){0}, 1), CLV_EXHAUSTED);
  assert_int_equal(write_rows(c, A, 20000, &one, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(write_rows(c, A, 20000, &other, (int64_t[]){0}, 1), CLV_EXHAUSTED);
  assert_int_equal(write_rows(c, B, 20000, &other, (int64_t[]){0}, 1), CLV_OK);
  for (int64_t i = 0; i < RECORDS; i++)
    assert_int_equal(write_rows(c, A, 20000, &one, (int64_t[]){i}, 1), CLV_OK);
  assert_int_equal(count_caches(c, A, NULL, true, NULL), 1);
  assert_int_equal(write_rows(c, A, 20000, &other, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(count_caches(c, A, NULL, true, NULL), 1);
  assert_int_equal(count_caches(c, B, NULL, true, NULL), 1);
  for (uint8_t k = 0; k < CLV_MAX_CACHES; k++) {
    const clv_cache cache = make_cache(k, 60);
    assert_int_equal(write_rows(c, A, MIB, &cache, (int64_t[]){0}, 1), CLV_OK);
  }
  const clv_cache cache_over_limit = make_cache(CLV_MAX_CACHES, 60);
  assert_int_equal(write_rows(c, A, MIB, &cache_over_limit, (int64_t[]){0}, 1), CLV_EXHAUSTED);
  assert_int_equal(count_caches(c, A, NULL, true, NULL), CLV_MAX_CACHES);
  clv_caches_free(c);
}

static void damaged_row_is_detected_and_dropped(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_caches *c = open_caches();
  const clv_cache one = make_cache(1, 60);
  clv_cache_status s;
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){0, 1, 2}, 3), CLV_OK);
  change_byte(1, 8192 + WIDTH * 4); /* the first byte of row 1 */
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0, 2}, 2), CLV_OK);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0, 1, 2}, 3), CLV_DATA_LOSS);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){1}, 1), CLV_NOT_FOUND);
  assert_int_equal(count_caches(c, A, NULL, false, &s), 1);
  assert_int_equal(s.n_rows, 2);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){1}, 1), CLV_OK);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){1}, 1), CLV_OK);
  get_path(1, &path);
  /* a truncated cache is deleted, and can be written again */
  assert_int_equal(truncate(path.data, 8200), 0);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){1}, 1), CLV_NOT_FOUND);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){1}, 1), CLV_OK);
  change_byte(1, 20);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){1}, 1), CLV_NOT_FOUND);
  assert_int_equal(count_caches(c, A, NULL, true, NULL), 0);
  clv_caches_free(c);
}

/* An expired cache is deleted, in this process and after a restart. */
static void expired_caches_are_deleted(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, unfinished = {0};
  clv_caches *c = open_caches();
  const clv_cache short_cache = make_cache(1, 60), long_cache = make_cache(2, 6000);
  int64_t now = (int64_t)(clv_wall_ms() / 1000);
  assert_int_equal(write_rows(c, A, MIB, &short_cache, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(write_rows(c, A, MIB, &long_cache, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(clv_caches_evict_expired(c, now + 30), 0);
  assert_int_equal(clv_caches_evict_expired(c, now + 90), 1);
  assert_int_equal(read_rows(c, A, &short_cache, (int64_t[]){0}, 1), CLV_NOT_FOUND);
  assert_int_equal(read_rows(c, A, &long_cache, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(clv_caches_evict_expired(c, now - 7000), 1); /* the clock was set back */
  assert_int_equal(count_leftovers(), 0);
  assert_int_equal(write_rows(c, A, MIB, &short_cache, (int64_t[]){0}, 1), CLV_OK);
  get_path(1, &path);
  clv_bytes_printf(&unfinished, "%s.tmp", path.data);
  close(open(unfinished.data, O_CREAT | O_WRONLY, 0600));
  const struct timespec expired_times[2] = {{now - 61, 0}, {now - 61, 0}};
  assert_int_equal(utimensat(AT_FDCWD, path.data, expired_times, 0), 0);
  clv_caches_free(c);
  c = open_caches();
  assert_int_equal(count_leftovers(), 0);
  assert_int_equal(write_rows(c, A, MIB, &short_cache, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(utimensat(AT_FDCWD, path.data, expired_times, 0), 0);
  /* the cache has expired, but has not been deleted yet */
  assert_int_equal(read_rows(c, A, &short_cache, (int64_t[]){0}, 1), CLV_NOT_FOUND);
  assert_int_equal(clv_caches_evict_expired(c, now), 0);
  assert_int_equal(count_leftovers(), 0);
  clv_caches_free(c);
}

/* A cache that does not fit leaves no file, and is written when there is space again. */
static void failed_cache_write_leaves_no_file(void **state) {
  const struct rlimit small_limit = {CLV_CACHE_HEADER_BYTES + 8, RLIM_INFINITY},
                      no_limit = {RLIM_INFINITY, RLIM_INFINITY};
  const clv_cache one = make_cache(1, 60);
  clv_caches *c = open_caches();
  (void)state;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small_limit);
  clv_code code = write_rows(c, A, MIB, &one, (int64_t[]){0}, 1);
  setrlimit(RLIMIT_FSIZE, &no_limit);
  assert_int_equal(code, CLV_UNAVAILABLE);
  assert_int_equal(count_leftovers(), 0);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){0}, 1), CLV_OK);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0}, 1), CLV_OK);
  clv_caches_free(c);
}

/* A symbolic link at the path of a cache's file is not followed. */
static void symbolic_links_are_not_followed(void **state) {
  (void)state;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_caches *c = open_caches();
  const clv_cache one = make_cache(1, 60);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){0}, 1), CLV_OK);
  get_path(1, &path);
  assert_int_equal(unlink(path.data), 0);
  assert_int_equal(symlink("/etc/hostname", path.data), 0);
  assert_int_equal(read_rows(c, A, &one, (int64_t[]){0}, 1), CLV_UNAVAILABLE);
  assert_int_equal(write_rows(c, A, MIB, &one, (int64_t[]){0}, 1), CLV_UNAVAILABLE);
  assert_int_equal(unlink(path.data), 0);
  clv_caches_free(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cached_rows_are_read_in_any_order),
      cmocka_unit_test(cache_is_visible_only_to_its_identity),
      cmocka_unit_test(invalid_row_numbers_and_shapes_are_refused),
      cmocka_unit_test(error_texts_omit_row_numbers),
      cmocka_unit_test(cache_quota_counts_whole_files),
      cmocka_unit_test(damaged_row_is_detected_and_dropped),
      cmocka_unit_test(expired_caches_are_deleted),
      cmocka_unit_test(failed_cache_write_leaves_no_file),
      cmocka_unit_test(symbolic_links_are_not_followed),
  };
  if (!mkdtemp(folder)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command) == 0 ? failed : 1;
}
