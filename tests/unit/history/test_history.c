/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the locks and records (run.json) of runs, and the commands that read them, with a child
 * process that trains.
 */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "master/history/history_int.h"
#include "master/report/report.h"
#include "tests/unit/scratch.h"

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

/* ---- a process that trains ------------------------------------------------------------------- */

typedef struct child {
  pid_t pid;
  int end_pipe; /* pipe; closing it ends the process */
} child;

/* Main of the child process: locks the folder, starts a run at `step`, writes a byte to `ready_fd`,
 * and waits until the other end of `end_fd` is closed. */
static void lock_and_wait(const char *dir, bool is_resume, uint64_t step, int ready_fd,
                          int end_fd) {
  clv_run_lock *c;
  clv_err err = {0};
  clv_sha256 digest = {{1}};
  char byte = 'k';
  if (clv_run_lock_new(dir, &c, &err) != CLV_OK ||
      clv_run_lock_begin(
          c, &(clv_run_lock_info){.name = "n", .session = "s.yaml", .is_resume = is_resume},
          &err) != CLV_OK)
    _exit(1);
  clv_run_lock_note_start(c, step, 50, &digest);
  clv_run_lock_note_step(c, step + 1, 0.5, NAN);
  if (write(ready_fd, &byte, 1) != 1) _exit(1);
  if (read(end_fd, &byte, 1) < 0) _exit(1);
  clv_run_lock_end(c, CLV_RUN_FAILED, 6, "worker 'w1' was lost");
  clv_run_lock_free(c);
  _exit(0);
}

static child begin_child(const char *dir, bool is_resume, uint64_t step) {
  int ready_pipe[2], end_pipe[2];
  char byte;
  assert_int_equal(pipe(ready_pipe), 0);
  assert_int_equal(pipe(end_pipe), 0);
  pid_t pid = fork();
  if (!pid) {
    close(end_pipe[1]);
    lock_and_wait(dir, is_resume, step, ready_pipe[1], end_pipe[0]);
  }
  close(ready_pipe[1]);
  close(end_pipe[0]);
  assert_int_equal(read(ready_pipe[0], &byte, 1), 1);
  close(ready_pipe[0]);
  return (child){pid, end_pipe[1]};
}

static void end_child(child c, int signal) {
  int status;
  if (signal) kill(c.pid, signal);
  close(c.end_pipe);
  assert_int_equal(waitpid(c.pid, &status, 0), c.pid);
}

static clv_run_entry read_entry(const char *dir) {
  clv_run_entry e = {0};
  clv_err err = {0};
  assert_ok(clv_run_entry_read(dir, &e, &err), &err);
  return e;
}

/* ---- states and logs of runs ----------------------------------------------------------------- */

static void second_trainer_of_a_folder_is_refused(void **state) {
  clv_err err = {0};
  clv_run_lock *second = NULL;
  char pid[32];
  (void)state;
  child c = begin_child("runs/one", false, 0);
  assert_int_equal(clv_run_lock_new("runs/one", &second, &err), CLV_PRECONDITION);
  assert_null(second);
  snprintf(pid, sizeof pid, "process %d", (int)c.pid);
  assert_says(&err, pid);
  assert_says(&err, "cleave-master stop runs/one");
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = read_entry("runs/one");
  assert_int_equal(e.state, CLV_STATE_RUNNING);
  assert_int_equal(e.holder_pid, c.pid);
  assert_int_equal(clv_run_entry_last_attempt(&e)->pid_start, clv_process_start_time(c.pid));
  end_child(c, 0);
  assert_ok(clv_run_lock_new("runs/one", &second, &err), &err);
  clv_run_lock_free(second);
}

static void exit_is_recorded_and_kill_is_detected(void **state) {
  (void)state;
  end_child(begin_child("runs/two", false, 0), 0);
  CLV_AUTO(clv_run_entry_done) clv_run_entry failed = read_entry("runs/two");
  assert_int_equal(failed.state, CLV_STATE_FAILED);
  assert_int_equal(clv_run_entry_exit_code(&failed), 6);
  assert_string_equal(clv_run_entry_last_attempt(&failed)->text, "worker 'w1' was lost");
  assert_int_equal(failed.step, 1);
  end_child(begin_child("runs/two", true, 1), SIGKILL);
  CLV_AUTO(clv_run_entry_done) clv_run_entry died = read_entry("runs/two");
  assert_int_equal(died.state, CLV_STATE_DIED);
  assert_int_equal(died.record.n_attempts, 2);
  assert_int_equal(clv_run_entry_exit_code(&died), 1);
  /* a run that starts with --fresh deletes the record of earlier attempts */
  end_child(begin_child("runs/two", false, 0), 0);
  CLV_AUTO(clv_run_entry_done) clv_run_entry fresh = read_entry("runs/two");
  assert_int_equal(fresh.record.n_attempts, 1);
}

/* A run is not running if its folder is not locked. That is so even if run.json says that it runs,
 * and another process now has the process id of run.json. */
static void record_without_a_lock_is_not_running(void **state) {
  clv_run_attempt *a = NULL, own_attempt = {0};
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  clv_err err = {0};
  int exit_code;
  (void)state;
  clv_process_describe_self(&own_attempt);
  assert_ok(clv_mkdirs("runs/three", &err), &err);
  assert_ok(clv_run_record_add_attempt(&r, &a, &err), &err);
  *a = own_attempt;
  a->pid = (uint64_t)getppid(); /* the parent process runs, but never trained */
  a->pid_start = clv_process_start_time(getppid());
  assert_ok(clv_run_record_write("runs/three", &r, &err), &err);
  CLV_AUTO(clv_run_entry_done) clv_run_entry died = read_entry("runs/three");
  assert_int_equal(died.state, CLV_STATE_DIED);
  assert_int_equal(clv_history_stop_run("three", false, false, &exit_code, &err), CLV_PRECONDITION);
  assert_says(&err, "does not run");

  strcpy(a->boot_id, "another boot of this machine");
  assert_ok(clv_run_record_write("runs/three", &r, &err), &err);
  CLV_AUTO(clv_run_entry_done) clv_run_entry rebooted = read_entry("runs/three");
  assert_int_equal(rebooted.state, CLV_STATE_DIED);

  strcpy(a->host, "far");
  assert_ok(clv_run_record_write("runs/three", &r, &err), &err);
  CLV_AUTO(clv_run_entry_done) clv_run_entry elsewhere = read_entry("runs/three");
  assert_int_equal(elsewhere.state, CLV_STATE_ELSEWHERE);
  assert_int_equal(clv_history_stop_run("three", false, false, &exit_code, &err), CLV_UNAVAILABLE);
  assert_says(&err, "host 'far'");
}

/* If the folder is locked by a process that run.json does not name, no signal is sent to the
 * process that run.json names. */
static void process_unlike_its_record_is_not_stopped(void **state) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  clv_err err = {0};
  int exit_code;
  (void)state;
  child c = begin_child("runs/four", false, 0);
  assert_ok(clv_run_record_read("runs/four", &r, &err), &err);
  r.attempts[0].pid_start++;
  assert_ok(clv_run_record_write("runs/four", &r, &err), &err);
  assert_int_equal(clv_history_stop_run("four", true, false, &exit_code, &err), CLV_PRECONDITION);
  assert_says(&err, "not the one in its record");
  assert_int_equal(kill(c.pid, 0), 0);
  write_file("runs/four/run.json", "{");
  assert_int_equal(clv_history_stop_run("four", true, false, &exit_code, &err), CLV_PRECONDITION);
  assert_says(&err, "bad JSON");
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = read_entry("runs/four");
  assert_int_equal(e.state, CLV_STATE_RUNNING);
  end_child(c, 0);
}

static void progress_comes_from_the_last_complete_line(void **state) {
  static const struct {
    const char *text;
    uint64_t step;
    double loss;
  } cases[] = {
      {"{\"step\":30,\"loss\":0.25,\"accuracy\":0.5}\n", 30, 0.25},
      {"{\"step\":30,\"loss\":0.25}\n{\"step\":31,\"lo", 30, 0.25},
      {"{\"step\":31,\"loss\":null}\n", 31, NAN},
      /* the step of this line is before that of the record */
      {"{\"step\":4,\"loss\":0.25}\n", 8, 0.5},
      {"{\"step\":1e300,\"loss\":0.25}\n", 8, 0.5},
      {"{\"step\":-5}\n", 8, 0.5},
      {"\n\n", 8, 0.5},
      {"", 8, 0.5},
      {"no end", 8, 0.5},
  };
  (void)state;
  child c = begin_child("runs/five", false, 7);
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    write_file("runs/five/metrics.jsonl", cases[i].text);
    CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
    assert_int_equal(clv_run_record_read("runs/five", &r, NULL), CLV_OK);
    r.attempts[0].step = 8;
    r.attempts[0].loss = 0.5;
    assert_int_equal(clv_run_record_write("runs/five", &r, NULL), CLV_OK);
    CLV_AUTO(clv_run_entry_done) clv_run_entry e = read_entry("runs/five");
    assert_int_equal(e.step, cases[i].step);
    assert_true(e.loss == cases[i].loss || (isnan(e.loss) && isnan(cases[i].loss)));
  }
  end_child(c, 0);
}

static void best_validation_is_recorded(void **state) {
  /* The best result is that of a validation: results on the test data count only if an attempt has
   * no validation. Step 2 has the highest accuracy whose loss is a number. */
  static const clv_run_best evaluations[] = {
      {"test", 0, 0.2, 1},         {"validation", 1, 0.5, 0.7}, {"validation", 2, 0.4, 0.9},
      {"validation", 3, 0.3, 0.8}, {"validation", 4, NAN, 0.9}, {"test", 5, 0.1, 1}};
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0};
  clv_err err = {0};
  clv_run_lock *c = NULL;
  (void)state;
  assert_ok(clv_run_lock_new("runs/six", &c, &err), &err);
  assert_ok(clv_run_lock_begin(c, &(clv_run_lock_info){.name = "six", .session = "/s.yaml"}, &err),
            &err);
  clv_run_lock_note_start(c, 0, 5, &(clv_sha256){{1}});
  for (size_t i = 0; i < CLV_COUNT(evaluations); i++)
    clv_run_lock_note_evaluation(c, &evaluations[i]);
  clv_run_lock_end(c, CLV_RUN_FINISHED, 0, "");
  clv_run_lock_free(c);
  assert_ok(clv_run_record_read("runs/six", &r, &err), &err);
  assert_int_equal(r.best.step, 2);
  assert_string_equal(r.best.evaluated_set, "validation");
}

static void count_notice(void *user, const char *text) {
  int *n = user;
  assert_non_null(strstr(text, "run.json"));
  assert_non_null(strstr(text, "the record of earlier attempts is dropped, and a new one begins"));
  ++*n;
}

/* A record (run.json) that cannot be read does not stop a new run, which replaces it. */
static void new_run_replaces_a_damaged_record(void **state) {
  clv_err err = {0};
  clv_run_lock *c = NULL;
  int n_notices = 0;
  const clv_run_lock_info lock_info = {.name = "seven",
                                       .session = "/s.yaml",
                                       .is_resume = true,
                                       .notifier = {count_notice, &n_notices}};
  (void)state;
  assert_ok(clv_mkdirs("runs/seven", &err), &err);
  write_file("runs/seven/run.json", "{\"format\": \"cleave-run\", \"version\": 1}");
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = read_entry("runs/seven");
  assert_int_equal(e.state, CLV_STATE_DAMAGED);
  assert_says(&e.read_error, "run.json");
  assert_int_equal(clv_run_entry_exit_code(&e), 1);
  assert_ok(clv_run_lock_new("runs/seven", &c, &err), &err);
  assert_ok(clv_run_lock_begin(c, &lock_info, &err), &err);
  assert_int_equal(n_notices, 1);
  clv_run_lock_end(c, CLV_RUN_FINISHED, 0, "");
  clv_run_lock_free(c);
  CLV_AUTO(clv_run_entry_done) clv_run_entry after = read_entry("runs/seven");
  assert_int_equal(after.state, CLV_STATE_FINISHED);
}

static void runs_are_found_by_name_and_folder(void **state) {
  static const struct {
    const char *run, *wanted_folder, *says;
  } cases[] = {
      {"eight", "runs/eight", NULL},
      {"runs/eight", "runs/eight", NULL},
      {"./runs/eight/", "./runs/eight/", NULL},
      {"runs", "runs", NULL},
      {"eigth", NULL, "did you mean 'eight'"},
      {"zzzzzzzz", NULL, "cleave-master runs"},
      {"runs/nothing", NULL, "no folder 'runs/nothing'"},
      {"", NULL, "no folder ''"},
      {"../../../../../../nowhere", NULL, "no folder"},
  };
  clv_err err = {0};
  (void)state;
  assert_ok(clv_mkdirs("runs/eight", &err), &err);
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    CLV_AUTO(clv_freep) char *folder = NULL;
    clv_code code = clv_run_entry_find_folder(cases[i].run, &folder, &err);
    assert_int_equal(code, cases[i].wanted_folder ? CLV_OK : CLV_NOT_FOUND);
    if (cases[i].wanted_folder)
      assert_string_equal(folder, cases[i].wanted_folder);
    else
      assert_says(&err, cases[i].says);
  }
  clv_run_entry none = {0};
  assert_int_equal(clv_run_entry_read("runs/eight", &none, &err), CLV_NOT_FOUND);
  assert_says(&err, "not the folder of a run");
  /* a folder without run.json, as older versions left it, is a run if it has this file */
  write_file("runs/eight/metrics.jsonl", "{\"step\":3,\"loss\":1}\n");
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = read_entry("runs/eight");
  assert_int_equal(e.state, CLV_STATE_UNRECORDED);
  assert_int_equal(e.step, 3);
}

/* Runs the command `log`, and writes its output to the file "printed". */
static clv_code print_log(const char *run, clv_err *err) {
  int exit_code, saved_stdout = dup(STDOUT_FILENO);
  int file = open("printed", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  fflush(stdout);
  dup2(file, STDOUT_FILENO);
  clv_code code = clv_history_print_log(run, false, false, &exit_code, err);
  fflush(stdout);
  dup2(saved_stdout, STDOUT_FILENO);
  close(saved_stdout);
  close(file);
  return code;
}

/* A character is printed whole even if a read ends between its bytes. Terminal escapes are never
 * printed. */
static void printed_log_has_no_terminal_escapes(void **state) {
  enum { LINE = 16383 }; /* a length at which the next character is cut by the end of a read */
  CLV_AUTO(clv_bytes_done) clv_bytes journal = {0}, printed = {0}, want = {0};
  clv_err err = {0};
  (void)state;
  for (int i = 0; i < LINE; i++) clv_bytes_puts(&journal, "a");
  clv_bytes_add(&want, journal.data, journal.len);
  clv_bytes_puts(&journal, "\xc4\x9b\xe2\x98\x83\t\xc3\xa9\x9b[2J \x1b[2J \xc2\x9b[2J \x80\n\xc4");
  clv_bytes_puts(&want, "\xc4\x9b\xe2\x98\x83\t\xc3\xa9?[2J ?[2J ?[2J ?\n?");
  assert_ok(clv_mkdirs("runs/nine", &err), &err);
  write_file("runs/nine/metrics.jsonl", "");
  write_file("runs/nine/" CLV_JOURNAL_TEXT, journal.data);
  assert_ok(print_log("nine", &err), &err);
  assert_ok(clv_file_read("printed", 1 << 20, &printed, &err), &err);
  assert_string_equal(printed.data, want.data);
}

/* /proc/self/mem is a regular file whose beginning cannot be read, like a file on a broken disk. */
static void unreadable_log_is_an_error(void **state) {
  clv_err err = {0};
  (void)state;
  assert_ok(clv_mkdirs("runs/ten", &err), &err);
  assert_int_equal(symlink("/proc/self/mem", "runs/ten/" CLV_JOURNAL_TEXT), 0);
  assert_int_equal(print_log("ten", &err), CLV_UNAVAILABLE);
  assert_says(&err, CLV_JOURNAL_TEXT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(second_trainer_of_a_folder_is_refused),
      cmocka_unit_test(exit_is_recorded_and_kill_is_detected),
      cmocka_unit_test(record_without_a_lock_is_not_running),
      cmocka_unit_test(process_unlike_its_record_is_not_stopped),
      cmocka_unit_test(progress_comes_from_the_last_complete_line),
      cmocka_unit_test(best_validation_is_recorded),
      cmocka_unit_test(new_run_replaces_a_damaged_record),
      cmocka_unit_test(runs_are_found_by_name_and_folder),
      cmocka_unit_test(printed_log_has_no_terminal_escapes),
      cmocka_unit_test(unreadable_log_is_an_error),
  };
  return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
