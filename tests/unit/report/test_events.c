/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests event files: framing and fields byte by byte, the order of files, and disks without space.
 */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "master/report/report_int.h"
#include "tests/unit/scratch.h"

static int n_notices;

static void count_notice(void *user, const char *text) {
  (void)user;
  assert_non_null(strstr(text, "the run continues and drops the lines that cannot be written"));
  n_notices++;
}

static clv_event_file *open_event_file(const char *folder, uint64_t step) {
  clv_event_file *e = NULL;
  clv_err err = {0};
  if (clv_event_file_open(folder, step, (clv_notifier){count_notice, NULL}, &e, &err) != CLV_OK)
    fail_msg("%s", err.text);
  return e;
}

/* Lists the folder's event files in reading order. */
static size_t list_event_files(const char *folder, char paths[8][200]) {
  struct dirent **entries;
  int n = scandir(folder, &entries, NULL, alphasort);
  size_t n_found = 0;
  for (int i = 0; i < n; i++) {
    if (entries[i]->d_name[0] != '.' && n_found < 8)
      snprintf(paths[n_found++], 200, "%s/%.120s", folder, entries[i]->d_name);
    free(entries[i]);
  }
  free(entries);
  return n_found;
}

/* ---- reading event files --------------------------------------------------------------------- */

static uint64_t read_little_endian(const char *p, size_t n) {
  uint64_t v = 0;
  memcpy(&v, p, n);
  return v;
}

/* Computes CRC32C bit by bit, with TensorFlow's mask. */
static uint32_t compute_masked_crc(const char *p, size_t n) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; i++) {
    crc ^= (uint8_t)p[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* Returns the event at *at and moves *at to the next one; NULL at the end. */
static const char *next_event(const clv_bytes *file, size_t *at, size_t *ret_len) {
  if (*at == file->len) return NULL;
  const char *p = file->data + *at;
  assert_true(file->len - *at >= 16);
  size_t n = read_little_endian(p, 8);
  assert_true(n <= file->len - *at - 16);
  assert_int_equal(read_little_endian(p + 8, 4), compute_masked_crc(p, 8));
  assert_int_equal(read_little_endian(p + 12 + n, 4), compute_masked_crc(p + 12, n));
  *at += 16 + n;
  *ret_len = n;
  return p + 12;
}

static size_t count_events(const char *path) {
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  size_t at = 0, n = 0, len;
  assert_int_equal(clv_file_read(path, 1 << 24, &file, NULL), CLV_OK);
  while (next_event(&file, &at, &len)) n++;
  return n;
}

/* Asserts that the event at *at has the bytes `want` after its wall time, and that the wall time is
 * now. */
static void assert_event(const clv_bytes *file, size_t *at, const char *want, size_t want_len) {
  size_t len;
  double wall_time_s;
  const char *p = next_event(file, at, &len);
  assert_non_null(p);
  assert_int_equal(p[0], 1 << 3 | 1);
  memcpy(&wall_time_s, p + 1, 8);
  assert_true(fabs(wall_time_s - (double)clv_wall_ms() / 1e3) < 60);
  assert_int_equal(len - 9, want_len);
  assert_memory_equal(p + 9, want, want_len);
}

#define EXPECT(file, at, text) assert_event(file, at, text, sizeof(text) - 1)

/* ---- writing event files --------------------------------------------------------------------- */

static void event_file_bytes_match_the_protobuf(void **state) {
  static const clv_scalar two_scalars[] = {{"a", 1.5}, {"bc", -2}};
  char folder[100], paths[8][200];
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  size_t at = 0, len;
  (void)state;
  snprintf(folder, sizeof folder, "%s/one/deep", scratch);
  clv_event_file *e = open_event_file(folder, 301);
  clv_event_file_add_text(e, 300, "t", "hello");
  clv_event_file_add_scalars(e, 301, two_scalars, 2);
  clv_event_file_close(e);
  assert_int_equal(list_event_files(folder, paths), 1);
  assert_int_equal(clv_file_read(paths[0], 1 << 20, &file, NULL), CLV_OK);
  EXPECT(&file, &at,
         "\x1a\x0d"
         "brain.Event:2");
  EXPECT(&file, &at,
         "\x10\xad\x02"
         "\x3a\x02\x08\x01"); /* step 301, session_log {status: START} */
  EXPECT(&file, &at,
         "\x10\xac\x02"
         "\x2a\x1a" /* field step = 300, then the tag of field summary */
         "\x0a\x18"
         "\x0a\x01t"                      /* the value's tag */
         "\x42\x09\x08\x07\x42\x05hello"  /* tensor {dtype: string, string_val} */
         "\x4a\x08\x0a\x06\x0a\x04text"); /* metadata {plugin_data {plugin_name}} */
  EXPECT(&file, &at,
         "\x10\xad\x02"
         "\x2a\x15"
         "\x0a\x08\x0a\x01"
         "a\x15\0\0\xc0\x3f"
         "\x0a\x09\x0a\x02"
         "bc\x15\0\0\0\xc0");
  assert_null(next_event(&file, &at, &len));
}

static void later_event_file_sorts_last(void **state) {
  char folder[100], paths[8][200], last_path[200];
  (void)state;
  snprintf(folder, sizeof folder, "%s/order", scratch);
  for (int i = 0; i < 3; i++) { /* one process opens three files within a second */
    clv_event_file_close(open_event_file(folder, (uint64_t)i));
    assert_int_equal(list_event_files(folder, paths), i + 1);
    if (i) assert_string_equal(paths[i - 1], last_path);
    strcpy(last_path, paths[i]);
  }
  snprintf(last_path, sizeof last_path, "%s/events.out.tfevents.9999999998.z.1.0", folder);
  /* makes the file of a process whose clock is ahead; the next file must sort behind this one */
  fclose(fopen(last_path, "w"));
  clv_event_file_close(open_event_file(folder, 9));
  assert_int_equal(list_event_files(folder, paths), 5);
  assert_non_null(strstr(paths[4], ".9999999999."));
}

static void records_are_buffered_until_flush(void **state) {
  static const clv_scalar one_scalar[] = {{"x", 1}};
  char folder[100], paths[8][200];
  (void)state;
  snprintf(folder, sizeof folder, "%s/wait", scratch);
  clv_event_file *e = open_event_file(folder, 0);
  assert_int_equal(list_event_files(folder, paths), 1);
  assert_int_equal(count_events(paths[0]), 2);
  clv_event_file_add_scalars(e, 1, one_scalar, 1);
  assert_int_equal(count_events(paths[0]), 2);
  clv_event_file_flush(e);
  assert_int_equal(count_events(paths[0]), 3);
  uint64_t before = clv_alloc_count();
  /* adds more records than the buffer holds */
  for (uint64_t i = 2; i <= 10000; i++) clv_event_file_add_scalars(e, i, one_scalar, 1);
  assert_true(count_events(paths[0]) > 1000);
  assert_true(clv_alloc_count() - before < 16); /* only the growing buffers allocate */
  before = clv_alloc_count();
  for (uint64_t i = 1; i <= 10000; i++) clv_event_file_add_scalars(e, 10000 + i, one_scalar, 1);
  assert_int_equal(clv_alloc_count(), before);
  clv_event_file_close(e);
  assert_int_equal(count_events(paths[0]), 2 + 20000);
}

/* Records that were written stay readable. When the disk has space again, later records follow. */
static void full_disk_loses_only_unwritten_records(void **state) {
  static const clv_scalar one_scalar[] = {{"x", 1}};
  const struct rlimit small_limit = {4096, RLIM_INFINITY},
                      no_limit = {RLIM_INFINITY, RLIM_INFINITY};
  char folder[100], paths[8][200];
  (void)state;
  snprintf(folder, sizeof folder, "%s/full", scratch);
  clv_event_file *e = open_event_file(folder, 0);
  n_notices = 0;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small_limit);
  for (uint64_t i = 1; i <= 300; i++) {
    clv_event_file_add_scalars(e, i, one_scalar, 1);
    if (i % 20 == 0) clv_event_file_flush(e);
  }
  setrlimit(RLIMIT_FSIZE, &no_limit);
  assert_int_equal(n_notices, 1);
  assert_int_equal(list_event_files(folder, paths), 1);
  size_t n_readable = count_events(paths[0]);
  assert_true(n_readable > 40 && n_readable < 200);
  clv_event_file_add_scalars(e, 301, one_scalar, 1);
  clv_event_file_close(e);
  assert_int_equal(count_events(paths[0]), n_readable + 1);
}

static void folder_that_cannot_be_created_is_an_error(void **state) {
  char path[100];
  clv_event_file *e = NULL;
  clv_err err = {0};
  (void)state;
  snprintf(path, sizeof path, "%s/file", scratch);
  fclose(fopen(path, "w"));
  assert_int_not_equal(clv_event_file_open(path, 0, (clv_notifier){0}, &e, &err), CLV_OK);
  assert_non_null(strstr(err.text, path));
  assert_null(e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(event_file_bytes_match_the_protobuf),
      cmocka_unit_test(later_event_file_sorts_last),
      cmocka_unit_test(records_are_buffered_until_flush),
      cmocka_unit_test(full_disk_loses_only_unwritten_records),
      cmocka_unit_test(folder_that_cannot_be_created_is_an_error),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
