/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how an old run is moved aside for a new one: completely or not at all, at whichever rename
 * the process is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "master/history/history_int.h"
#include "tests/unit/scratch.h"

enum { KILLED = 9, MAX_RENAMES = 64 };

static int n_renames_left; /* calls of rename until the process exits in one; 0: it does not exit */

/* Replaces rename of the C library. */
int rename(const char *from, const char *to) {
  if (n_renames_left && --n_renames_left == 0) _exit(KILLED);
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static const char *deleted_lock_path; /* path of a lock that is deleted just before it is locked */

int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void *argument = va_arg(list, void *);
  va_end(list);
  if (command == F_SETLK && deleted_lock_path) unlink(deleted_lock_path);
  if (command == F_SETLK) deleted_lock_path = NULL;
  return (int)syscall(SYS_fcntl, fd, command, argument);
}

static int setup(void **state) {
  if (scratch_setup(state) != 0) return -1;
  return chdir(scratch) == 0 && mkdir("runs", 0755) == 0 ? 0 : -1;
}

static void write_file(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static bool has_content(const char *folder, const char *name, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, found = {0};
  clv_bytes_printf(&path, "%s/%s", folder, name);
  return clv_file_read(path.data, 1 << 20, &found, NULL) == CLV_OK &&
         (!text || strcmp(found.data ? found.data : "", text) == 0);
}

static bool does_file_exist(const char *path) { return access(path, F_OK) == 0; }

/* ---- files of an old run, and of a new run in the same folder -------------------------------- */

static const char *const old_files[] = {"session.effective.yaml", "log.txt",
                                        "metrics.jsonl",          "checkpoint-4/MANIFEST.json",
                                        "tensorboard/events",     CLV_RUN_CLASSES_FILE};

static void make_old_run(const char *dir, clv_run_status status) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  clv_run_attempt *a = NULL;
  clv_err err = {0};
  char path[256], command[300];
  snprintf(command, sizeof command, "rm -rf %s %s.[0-9]*", dir, dir);
  assert_int_equal(system(command), 0);
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", dir, i ? "tensorboard" : "checkpoint-4");
    assert_ok(clv_mkdirs(path, &err), &err);
  }
  for (size_t i = 0; i < CLV_COUNT(old_files); i++) {
    snprintf(path, sizeof path, "%s/%s", dir, old_files[i]);
    write_file(path, "old");
  }
  snprintf(path, sizeof path, "%s/notes of mine", dir);
  write_file(path, "mine");
  assert_ok(clv_run_record_add_attempt(&r, &a, &err), &err);
  a->status = status;
  strcpy(r.name, "old");
  assert_ok(clv_run_record_write(dir, &r, &err), &err);
}

static bool is_old_run(const char *dir) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  for (size_t i = 0; i < CLV_COUNT(old_files); i++)
    if (!has_content(dir, old_files[i], "old")) return false;
  return clv_run_record_read(dir, &r, NULL) == CLV_OK && strcmp(r.name, "old") == 0;
}

static bool is_new_run(const char *dir) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  for (size_t i = 0; i < CLV_COUNT(old_files); i++)
    if (has_content(dir, old_files[i], "old")) return false;
  return clv_run_record_read(dir, &r, NULL) == CLV_OK && strcmp(r.name, "new") == 0;
}

/* Prepares the folder as `train --fresh` does before it connects. */
static clv_run_lock *prepare_folder(const char *dir) {
  const clv_run_lock_info info = {.name = "new", .session = "/s.yaml"};
  clv_run_lock *c = NULL;
  clv_err err = {0};
  char path[256];
  assert_ok(clv_run_lock_new(dir, &c, &err), &err);
  assert_ok(clv_run_lock_move_earlier_run(c, &err), &err);
  snprintf(path, sizeof path, "%s/log.txt", dir);
  write_file(path, "new");
  snprintf(path, sizeof path, "%s/egress.table", dir);
  write_file(path, "new");
  assert_ok(clv_run_lock_begin(c, &info, &err), &err);
  return c;
}

static void start_run(clv_run_lock *c) {
  clv_sha256 digest = {{1}};
  clv_run_lock_note_start(c, 0, 10, &digest);
}

/* Starts a new run in a child process, which is killed at its `rename_number`-th call of rename.
 * Returns false if the child makes fewer calls. */
static bool kill_at_rename(const char *dir, int rename_number) {
  int status;
  pid_t pid = fork();
  if (!pid) {
    n_renames_left = rename_number;
    clv_run_lock *c = prepare_folder(dir);
    start_run(c);
    _exit(0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == KILLED));
  return WEXITSTATUS(status) == KILLED;
}

/* Locks the folder of the run in a child process, which is killed at its `rename_number`-th call of
 * rename, if it makes so many. Then locks the folder in this process, which must succeed. */
static void kill_later_start(const char *dir, int rename_number) {
  clv_run_lock *c = NULL;
  clv_err err = {0};
  int status;
  pid_t pid = fork();
  if (!pid) {
    n_renames_left = rename_number;
    _exit(clv_run_lock_new(dir, &c, &err) == CLV_OK ? 0 : 1);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == KILLED));
  assert_ok(clv_run_lock_new(dir, &c, &err), &err);
  clv_run_lock_free(c);
}

/* ---- runs whose process is killed or fails while it moves an old run ------------------------- */

static void kill_while_moving_leaves_old_or_new_run_intact(void **state) {
  int rename_number = 1, n_unmoved = 0;
  bool has_died = true;
  (void)state;
  for (; has_died; rename_number++) {
    assert_true(rename_number < MAX_RENAMES);
    for (int later_rename = 1; later_rename < 12; later_rename += 3) {
      make_old_run("runs/a", CLV_RUN_FINISHED);
      has_died = kill_at_rename("runs/a", rename_number);
      kill_later_start("runs/a", later_rename);
      bool is_unmoved = is_old_run("runs/a") && !does_file_exist("runs/a.1/run.json");
      bool is_moved_aside = is_new_run("runs/a") && is_old_run("runs/a.1");
      if (!is_unmoved && !is_moved_aside)
        fail_msg("died at rename %d, then at %d: neither is whole", rename_number, later_rename);
      assert_false(does_file_exist("runs/a/run.moving"));
      assert_true(has_content("runs/a", "notes of mine", "mine"));
      assert_int_equal(is_unmoved && has_content("runs/a", "egress.table", NULL), 0);
      n_unmoved += is_unmoved;
    }
  }
  assert_true(n_unmoved > 4 * (int)CLV_COUNT(old_files));
  /* the last process made fewer renames, so it was not killed */
  assert_true(is_new_run("runs/a") && is_old_run("runs/a.1"));
}

static void failed_start_restores_the_old_run(void **state) {
  clv_run_lock *c;
  clv_err err = {0};
  (void)state;
  make_old_run("runs/b", CLV_RUN_FINISHED);
  c = prepare_folder("runs/b");
  assert_true(is_old_run("runs/b.1"));
  clv_run_lock_end(c, CLV_RUN_FAILED, 4, "nobody listens there");
  clv_run_lock_free(c);
  assert_true(is_old_run("runs/b") && !does_file_exist("runs/b.1"));
  assert_false(does_file_exist("runs/b/egress.table"));

  c = prepare_folder("runs/c/deep");
  assert_true(does_file_exist("runs/c/deep/run.json"));
  clv_run_lock_end(c, CLV_RUN_FAILED, 4, "nobody listens there");
  clv_run_lock_free(c);
  assert_false(does_file_exist("runs/c/deep"));

  c = prepare_folder("runs/c/deep");
  start_run(c);
  clv_run_lock_end(c, CLV_RUN_FAILED, 6, "lost");
  clv_run_lock_free(c);
  assert_true(is_new_run("runs/c/deep"));
  /* begins a run in a folder inside the folder of an existing run */
  assert_ok(clv_run_lock_new("runs/c/deep", &c, &err), &err);
  clv_run_lock_end(c, CLV_RUN_FAILED, 4, "nobody listens there");
  clv_run_lock_free(c);
  assert_true(is_new_run("runs/c/deep"));
}

static void only_a_finished_run_is_moved_aside(void **state) {
  static const struct {
    clv_run_status status;
    bool is_kept;
  } cases[] = {{CLV_RUN_FINISHED, true}, {CLV_RUN_INTERRUPTED, false}, {CLV_RUN_RUNNING, false}};
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    make_old_run("runs/d", cases[i].status);
    clv_run_lock *c = prepare_folder("runs/d");
    assert_true(is_old_run("runs/d.1")); /* the old run stays until the new one has started */
    start_run(c);
    assert_int_equal(clv_run_lock_moved_folder(c) != NULL, cases[i].is_kept);
    clv_run_lock_end(c, CLV_RUN_FINISHED, 0, "");
    clv_run_lock_free(c);
    assert_true(is_new_run("runs/d"));
    assert_int_equal(does_file_exist("runs/d.1"), cases[i].is_kept);
  }
  make_old_run("runs/d", CLV_RUN_FINISHED);
  /* the folder runs/d.1 is taken, and is not that of a moved run */
  assert_int_equal(mkdir("runs/d.1", 0755), 0);
  write_file("runs/d/run.json", "{");
  clv_run_lock *c = prepare_folder("runs/d");
  start_run(c);
  assert_non_null(strstr(clv_run_lock_moved_folder(c), "/runs/d.2"));
  /* the old log is kept, because the damaged run.json does not say whether the run had finished */
  assert_true(has_content("runs/d.2", "log.txt", "old"));
  clv_run_lock_free(c);
}

static void moving_note_is_parsed_strictly(void **state) {
  static const struct {
    const char *text;
    unsigned number;
    bool is_complete;
  } cases[] = {
      {"1 moving\n", 1, false},
      {"99999 moved\n", 99999, true},
      {"0 moved\n", 0, false},
      {"100000 moved\n", 0, false},
      {"01 moved\n", 0, false},
      {"+1 moved\n", 0, false},
      {" 1 moved\n", 0, false},
      {"1 moved", 0, false},
      {"1 moved\n\n", 0, false},
      {"1 moved\n2 moved\n", 0, false},
      {"18446744073709551617 moved\n", 0, false},
      {"../../x moved\n", 0, false},
      {"1", 0, false},
      {"", 0, false},
  };
  (void)state;
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_move_note m = {0};
    clv_err err = {0};
    clv_code code =
        clv_move_note_parse(cases[i].text, strlen(cases[i].text), "run.moving", &m, &err);
    assert_int_equal(code, cases[i].number ? CLV_OK : CLV_DATA_LOSS);
    assert_int_equal(m.number, cases[i].number);
    assert_int_equal(m.is_complete, cases[i].is_complete);
  }
}

/* run.moving is the note of an interrupted move. If it is damaged or old, no files of the folder
 * are moved or deleted. */
static void damaged_moving_note_moves_no_files(void **state) {
  clv_run_lock *c = NULL;
  clv_err err = {0};
  (void)state;
  make_old_run("runs/e", CLV_RUN_FINISHED);
  write_file("runs/e/run.moving", "7 moved");
  assert_int_equal(clv_run_lock_new("runs/e", &c, &err), CLV_DATA_LOSS);
  assert_says(&err, "runs/e/run.moving is damaged");
  assert_true(is_old_run("runs/e"));
  write_file("runs/e/run.moving", "7 moved\n"); /* runs/e.7 does not exist any more */
  assert_ok(clv_run_lock_new("runs/e", &c, &err), &err);
  clv_run_lock_free(c);
  assert_true(is_old_run("runs/e") && !does_file_exist("runs/e/run.moving"));
  assert_int_equal(symlink("/tmp", "runs/e.7"), 0);
  write_file("runs/e/run.moving", "7 moving\n");
  assert_int_equal(clv_run_lock_new("runs/e", &c, &err), CLV_UNAVAILABLE);
  assert_true(is_old_run("runs/e"));
}

/* Another process may delete the folder after this process has opened the lock file, and before it
 * locks that file. */
static void lock_fails_when_its_folder_is_deleted(void **state) {
  clv_run_lock *c = NULL;
  clv_err err = {0};
  long pid;
  int fd = -1;
  (void)state;
  assert_int_equal(clv_run_folder_lock("runs/nowhere", &fd, &pid, &err), CLV_NOT_FOUND);
  assert_ok(clv_mkdirs("runs/f", &err), &err);
  deleted_lock_path = "runs/f/run.lock";
  assert_int_equal(clv_run_folder_lock("runs/f", &fd, &pid, &err), CLV_NOT_FOUND);
  deleted_lock_path = "runs/f/run.lock";
  assert_ok(clv_run_lock_new("runs/f", &c, &err), &err); /* the next try succeeds */
  assert_true(does_file_exist("runs/f/run.lock"));
  clv_run_lock_free(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kill_while_moving_leaves_old_or_new_run_intact),
      cmocka_unit_test(failed_start_restores_the_old_run),
      cmocka_unit_test(only_a_finished_run_is_moved_aside),
      cmocka_unit_test(moving_note_is_parsed_strictly),
      cmocka_unit_test(damaged_moving_note_moves_no_files),
      cmocka_unit_test(lock_fails_when_its_folder_is_deleted),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
