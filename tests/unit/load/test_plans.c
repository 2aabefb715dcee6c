/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests plans that are stored in a folder: a stored plan is found again, and a file that is not
 * ours or not complete is not used.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "kernels/load/load.h"
#include "tests/unit/scratch.h"

static const char what[] = "a convolution";
static const char plan[] = "{\"cudnnVersion\":91900}";

static char folder[100], file[200];

static int n_notices;

static void count_notice(void *user, const char *text) {
  (void)user;
  n_notices += text[0] != 0;
}

static const clv_notifier notifier = {.notify = count_notice};

/* Returns a new store whose only file is `file`. */
static const clv_plan_store *make_store(void) {
  clv_sha256 digest;
  char hex[65], command[120];
  clv_err err;
  snprintf(folder, sizeof folder, "%s/plans", scratch);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  assert_int_equal(system(command), 0);
  const clv_plan_store *s = clv_plan_store_in_folder(folder, notifier);
  assert_non_null(s);
  assert_ok(clv_sha256_of(what, strlen(what), &digest, &err), &err);
  clv_sha256_hex(&digest, hex);
  snprintf(file, sizeof file, "%s/%s", folder, hex);
  s->store(what, plan, strlen(plan));
  return s;
}

static bool is_plan_found(const clv_plan_store *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  bool is = s->find(what, &text);
  if (is) assert_int_equal(text.len, strlen(plan));
  if (is) assert_memory_equal(text.data, plan, strlen(plan));
  return is;
}

static void stored_plan_is_found_again(void **state) {
  struct stat s;
  (void)state;
  const clv_plan_store *store = make_store();
  assert_true(is_plan_found(store));
  assert_int_equal(stat(folder, &s), 0);
  assert_int_equal(s.st_mode & 0777, 0700);
  assert_int_equal(stat(file, &s), 0);
  assert_int_equal(s.st_mode & 0777, 0600);
  assert_true(is_plan_found(clv_plan_store_in_folder(folder, notifier)));
  clv_bytes other = {0};
  assert_false(store->find("another convolution", &other));
}

/* Asserts that a damaged file is refused and written again. */
static void assert_damage_refused(void (*damage)(void)) {
  const clv_plan_store *s = make_store();
  damage();
  n_notices = 0;
  assert_false(is_plan_found(s));
  assert_int_equal(n_notices, 1);
  s->store(what, plan, strlen(plan));
  assert_true(is_plan_found(s));
}

static void overwrite_file(long at, const char *bytes, const char *mode) {
  FILE *f = fopen(file, mode);
  assert_non_null(f);
  assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
  fputs(bytes, f);
  fclose(f);
}

static void change_text(void) { overwrite_file(-2, "8", "r+"); }
static void change_version(void) { overwrite_file(12, "2", "r+"); }
static void change_key(void) { overwrite_file(14, "zz", "r+"); }
static void make_file_empty(void) { overwrite_file(0, "", "w"); }
static void let_others_write(void) { assert_int_equal(chmod(file, 0620), 0); }

static void make_file_large(void) {
  overwrite_file(0, "", "w");
  assert_int_equal(truncate(file, 10 << 20), 0);
}

static void replace_by_link(void) {
  char other[300];
  snprintf(other, sizeof other, "%s.moved", file);
  assert_int_equal(rename(file, other), 0);
  assert_int_equal(symlink(other, file), 0);
}

static void replace_by_fifo(void) {
  assert_int_equal(unlink(file), 0);
  assert_int_equal(mkfifo(file, 0600), 0);
}

static void damaged_or_foreign_plan_is_rebuilt(void **state) {
  (void)state;
  void (*const damages[])(void) = {change_text,     change_version,  change_key,
                                   make_file_empty, make_file_large, let_others_write,
                                   replace_by_link, replace_by_fifo};
  for (size_t i = 0; i < CLV_COUNT(damages); i++) assert_damage_refused(damages[i]);
}

static void insecure_plan_folder_is_not_used(void **state) {
  (void)state;
  make_store();
  assert_int_equal(chmod(folder, 0770), 0);
  assert_null(clv_plan_store_in_folder(folder, notifier));
  assert_int_equal(chmod(folder, 0700), 0);
  assert_null(clv_plan_store_in_folder(file, notifier));
  assert_null(clv_plan_store_in_folder("/proc/no/such/folder", notifier));
}

static void oversized_plan_is_not_stored(void **state) {
  (void)state;
  const clv_plan_store *s = make_store();
  assert_int_equal(unlink(file), 0);
  char *large = calloc(1, 1 << 20);
  s->store(what, large, 1 << 20);
  free(large);
  assert_int_equal(access(file, F_OK), -1);
}

static void number_of_stored_plans_is_bounded(void **state) {
  (void)state;
  const clv_plan_store *s = make_store();
  for (int i = 0; i < 4200; i++) {
    char name[16];
    snprintf(name, sizeof name, "%d", i);
    s->store(name, plan, strlen(plan));
  }
  clv_bytes text = {0};
  assert_true(s->find("10", &text));
  clv_bytes_done(&text);
  assert_false(s->find("4199", &text));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(stored_plan_is_found_again),
      cmocka_unit_test(damaged_or_foreign_plan_is_rebuilt),
      cmocka_unit_test(insecure_plan_folder_is_not_used),
      cmocka_unit_test(oversized_plan_is_not_stored),
      cmocka_unit_test(number_of_stored_plans_is_bounded),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
