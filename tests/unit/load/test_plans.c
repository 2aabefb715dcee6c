/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the folder in which a backend stores its plans: a stored plan is found again, and a file
 * that is damaged, or that others can write, is not used.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "kernels/load/load.h"
#include "tests/unit/scratch.h"

static const char described_op[] = "a convolution";
static const char plan_text[] = "{\"cudnnVersion\":91900}";

static char folder[100], plan_path[200];

static int n_notices;

static void count_notice(void *user, const char *text) {
  (void)user;
  n_notices += text[0] != 0;
}

static const clv_notifier notifier = {.notify = count_notice};

/* Returns a new store of plans. Its only file is at plan_path. */
static const clv_plan_store *make_store(void) {
  clv_sha256 digest;
  char hex[65], command[120];
  clv_err err;
  snprintf(folder, sizeof folder, "%s/plans", scratch);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  assert_int_equal(system(command), 0);
  const clv_plan_store *s = clv_plan_store_in_folder(folder, notifier);
  assert_non_null(s);
  assert_ok(clv_sha256_of(described_op, strlen(described_op), &digest, &err), &err);
  clv_sha256_hex(&digest, hex);
  snprintf(plan_path, sizeof plan_path, "%s/%s", folder, hex);
  s->store(described_op, plan_text, strlen(plan_text));
  return s;
}

static bool is_plan_found(const clv_plan_store *s) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  bool is_found = s->find(described_op, &text);
  if (is_found) assert_int_equal(text.len, strlen(plan_text));
  if (is_found) assert_memory_equal(text.data, plan_text, strlen(plan_text));
  return is_found;
}

static void stored_plan_is_found_again(void **state) {
  struct stat s;
  (void)state;
  const clv_plan_store *store = make_store();
  assert_true(is_plan_found(store));
  assert_int_equal(stat(folder, &s), 0);
  assert_int_equal(s.st_mode & 0777, 0700);
  assert_int_equal(stat(plan_path, &s), 0);
  assert_int_equal(s.st_mode & 0777, 0600);
  assert_true(is_plan_found(clv_plan_store_in_folder(folder, notifier)));
  clv_bytes found_plan = {0};
  assert_false(store->find("another convolution", &found_plan));
}

/* Damages the file of the store. Asserts that the store refuses the file and writes it again. */
static void assert_damage_refused(void (*damage)(void)) {
  const clv_plan_store *s = make_store();
  damage();
  n_notices = 0;
  assert_false(is_plan_found(s));
  assert_int_equal(n_notices, 1);
  s->store(described_op, plan_text, strlen(plan_text));
  assert_true(is_plan_found(s));
}

static void overwrite_file(long offset, const char *bytes, const char *mode) {
  FILE *f = fopen(plan_path, mode);
  assert_non_null(f);
  assert_int_equal(fseek(f, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
  fputs(bytes, f);
  fclose(f);
}

static void change_text(void) { overwrite_file(-2, "8", "r+"); }
static void change_version(void) { overwrite_file(12, "2", "r+"); }
static void change_key(void) { overwrite_file(14, "zz", "r+"); }
static void make_file_empty(void) { overwrite_file(0, "", "w"); }
static void let_others_write(void) { assert_int_equal(chmod(plan_path, 0620), 0); }

static void make_file_large(void) {
  overwrite_file(0, "", "w");
  assert_int_equal(truncate(plan_path, 10 << 20), 0);
}

static void replace_by_link(void) {
  char moved_path[300];
  snprintf(moved_path, sizeof moved_path, "%s.moved", plan_path);
  assert_int_equal(rename(plan_path, moved_path), 0);
  assert_int_equal(symlink(moved_path, plan_path), 0);
}

static void replace_by_fifo(void) {
  assert_int_equal(unlink(plan_path), 0);
  assert_int_equal(mkfifo(plan_path, 0600), 0);
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
  assert_null(clv_plan_store_in_folder(plan_path, notifier));
  assert_null(clv_plan_store_in_folder("/proc/no/such/folder", notifier));
}

static void oversized_plan_is_not_stored(void **state) {
  (void)state;
  const clv_plan_store *s = make_store();
  assert_int_equal(unlink(plan_path), 0);
  char *large = calloc(1, 1 << 20);
  s->store(described_op, large, 1 << 20);
  free(large);
  assert_int_equal(access(plan_path, F_OK), -1);
}

static void number_of_stored_plans_is_bounded(void **state) {
  (void)state;
  const clv_plan_store *s = make_store();
  for (int i = 0; i < 4200; i++) {
    char name[16];
    snprintf(name, sizeof name, "%d", i);
    s->store(name, plan_text, strlen(plan_text));
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
