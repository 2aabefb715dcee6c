/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts the runs of a sweep, each as `cleave-master train` in a process of its own, and waits for
 * them. A child is killed when this process dies; `train --resume` then continues its run. An
 * interrupt of the user is passed on once, so each run ends after a checkpoint.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "master/sweep/sweep_int.h"

static const uint64_t FIRST_PROGRESS_REPORT_DELAY_NS = 2000000000,
                      PROGRESS_REPORT_INTERVAL_NS = 60000000000;

enum {
  CHILD_POLL_INTERVAL_MS = 20,
  CANNOT_START_EXIT_CODE = 127,
  MAX_PATH_BYTES = 4096,
  OUTPUT_TAIL_BYTES = 4096,
  N_FIXED_ARGS = 5
};

static bool is_interrupted(const sweep_work *s) { return s->o->interrupted && *s->o->interrupted; }

static size_t count_runs(const sweep_work *s, sweep_run_state state) {
  size_t n = 0;
  for (size_t i = 0; i < s->n_runs; i++) n += s->runs[i].state == state;
  return n;
}

/* ---- starting runs --------------------------------------------------------------------------- */

/* Executes `cleave-master train` in the child after fork. Calls only async-signal-safe
 * functions. */
static _Noreturn void exec_run(char *const *args, int out_fd, pid_t parent_pid) {
  int null_fd = open("/dev/null", O_RDONLY);
  setpgid(0, 0); /* Ctrl-C then reaches only the sweep, which passes it on */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid || null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(out_fd, 1) < 0 ||
      dup2(out_fd, 2) < 0)
    _exit(CANNOT_START_EXIT_CODE);
  execv(args[0], args);
  _exit(CANNOT_START_EXIT_CODE);
}

static clv_code open_output(const sweep_work *s, const sweep_run *r, int *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s.txt", s->folder, r->name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret = open(path.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (*ret < 0) return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path.data, strerror(errno));
  return CLV_OK;
}

static clv_code find_own_program_path(char ret[MAX_PATH_BYTES], clv_err *err) {
  ssize_t n = readlink("/proc/self/exe", ret, MAX_PATH_BYTES - 1);
  if (n <= 0) return clv_fail(err, CLV_UNAVAILABLE, "/proc/self/exe: %s", strerror(errno));
  ret[n] = '\0';
  return CLV_OK;
}

/* Starts the process of a run with the option --resume, so that the run waits for workers that it
 * cannot reach yet. Omits --resume if the run is new and the policy forbids what it may send. */
static clv_code start_run(const sweep_work *s, sweep_run *r, clv_err *err) {
  char program_path[MAX_PATH_BYTES];
  CLV_AUTO(sweep_set_options_done) sweep_set_options set_options = {.n = 0};
  CLV_AUTO(clv_freep) const char **args = NULL;
  sweep_stored_state stored_state;
  int out_fd = -1;
  size_t n = 0;
  CLV_TRY(find_own_program_path(program_path, err));
  CLV_TRY(sweep_set_options_make(s, r, &set_options, err));
  CLV_TRY(sweep_stored_state_read(r->folder, &stored_state, err));
  CLV_TRY(clv_alloc(2 * set_options.n + N_FIXED_ARGS, sizeof *args, &args, err));
  args[n++] = program_path;
  args[n++] = "train";
  args[n++] = s->o->session;
  if (stored_state.exists || s->may_resume) args[n++] = "--resume";
  for (size_t i = 0; i < set_options.n; i++) {
    args[n++] = "--set";
    args[n++] = set_options.items[i];
  }
  CLV_TRY(open_output(s, r, &out_fd, err));
  pid_t parent_pid = getpid();
  r->pid = fork();
  if (r->pid == 0) exec_run((char *const *)(uintptr_t)args, out_fd, parent_pid);
  close(out_fd);
  if (r->pid < 0)
    return clv_fail(err, CLV_EXHAUSTED, "cannot start a process: %s", strerror(errno));
  r->state = SWEEP_RUN_RUNNING;
  r->next_report_ns = clv_now_ns() + FIRST_PROGRESS_REPORT_DELAY_NS;
  return CLV_OK;
}

/* Appends the values of the run's point: "train.batch=64 train.optimizer.lr=0.1". */
static void append_point_values(const sweep_work *s, const sweep_run *r, clv_bytes *out) {
  for (size_t k = 0; k < s->points.n_keys; k++)
    clv_bytes_printf(out, " %s=%s", s->points.keys[k].name,
                     sweep_point_value(&s->points, r->point_index, k));
  if (r->fold)
    clv_bytes_printf(out, " fold %llu of %llu", (unsigned long long)r->fold,
                     (unsigned long long)s->o->folds);
}

static void print_started_run(const sweep_work *s, const sweep_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes values = {0};
  append_point_values(s, r, &values);
  if (!values.failed)
    clv_notice(CLV_LOG_INFO, "started", "%s started:%s", r->name, values.data ? values.data : "");
}

/* ---- handling runs that have ended ----------------------------------------------------------- */

/* Reads the last line of the file with the run's output. */
static void read_last_line(const sweep_work *s, const sweep_run *r, char ret[CLV_ERR_TEXT]) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char output_tail[OUTPUT_TAIL_BYTES + 1];
  ret[0] = '\0';
  clv_bytes_printf(&path, "%s/%s.txt", s->folder, r->name);
  int fd = path.failed ? -1 : open(path.data, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  off_t size = lseek(fd, 0, SEEK_END);
  ssize_t n =
      pread(fd, output_tail, OUTPUT_TAIL_BYTES, CLV_MAX(size - OUTPUT_TAIL_BYTES, (off_t)0));
  close(fd);
  while (n > 0 && (output_tail[n - 1] == '\n' || output_tail[n - 1] == '\r')) n--;
  if (n <= 0) return;
  output_tail[n] = '\0';
  const char *line = memrchr(output_tail, '\n', (size_t)n);
  clv_text_truncate(line ? line + 1 : output_tail, ret, CLV_ERR_TEXT);
  clv_text_to_printable(ret);
}

/* Finds why a run failed: from run.json or, without a reason there, from the last line that the run
 * printed. */
static void find_failure_reason(const sweep_work *s, const sweep_run *r, char ret[CLV_ERR_TEXT]) {
  sweep_stored_state state;
  if (sweep_stored_state_read(r->folder, &state, NULL) == CLV_OK && state.reason[0])
    snprintf(ret, CLV_ERR_TEXT, "%s", state.reason);
  else
    read_last_line(s, r, ret);
}

/* Returns true if the run may have failed because other runs used up the capacity of a worker. */
static bool may_lack_worker_capacity(const sweep_run *r) {
  return r->exit_code == CLV_EXIT_FAILED || r->exit_code == CLV_EXIT_CONNECT ||
         r->exit_code == CLV_EXIT_TIMEOUT || r->exit_code == CLV_EXIT_WORKER_LOST;
}

/* Handles a run that has failed. If other runs were in progress during this run and may have caused
 * the failure, the run is started once more later, and fewer runs are in progress at a time. */
static void handle_failed_run(const sweep_work *s, sweep_run *r, size_t *n_jobs) {
  char reason[CLV_ERR_TEXT];
  size_t n_other_runs = count_runs(s, SWEEP_RUN_RUNNING);
  find_failure_reason(s, r, reason);
  if (r->had_other_runs && !r->is_retried && may_lack_worker_capacity(r)) {
    r->is_retried = true;
    r->state = SWEEP_RUN_WAITING;
    *n_jobs = CLV_MAX(n_other_runs, (size_t)1);
    clv_notice(CLV_LOG_WARN, "retry",
               "%s failed while other runs were under way, and is tried again when one of them has "
               "ended; the sweep goes on with %zu at a time: %s",
               r->name, *n_jobs, reason);
    return;
  }
  r->state = SWEEP_RUN_FAILED;
  clv_notice(CLV_LOG_ERROR, "failed", "%s failed (%s %d): %s; %s/%s.txt has all that it printed",
             r->name, r->exit_code < 0 ? "signal" : "exit", abs(r->exit_code), reason, s->folder,
             r->name);
}

static clv_code handle_ended_run(sweep_work *s, sweep_run *r, int status, size_t *n_jobs,
                                 clv_err *err) {
  r->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  r->state = SWEEP_RUN_FINISHED;
  if (r->exit_code && is_interrupted(s)) {
    r->state = SWEEP_RUN_WAITING;
    return CLV_OK;
  }
  if (r->exit_code) {
    handle_failed_run(s, r, n_jobs);
    return CLV_OK;
  }
  char name[CLV_BEST_NAME_BYTES];
  CLV_TRY(sweep_score_read(&s->score, r, err));
  clv_notice(CLV_LOG_INFO, "finished", "%s finished: %s %.6g at step %llu (%zu of %zu)", r->name,
             clv_best_name(s->score.metric, s->score.target, name), r->value,
             (unsigned long long)r->step, count_runs(s, SWEEP_RUN_FINISHED), s->n_runs);
  return CLV_OK;
}

/* Prints, from time to time, the last line that a run has written: the step that the run has
 * reached, or the event for which the run waits. */
static void report_progress(const sweep_work *s, sweep_run *r) {
  char line[CLV_ERR_TEXT];
  uint64_t now_ns = clv_now_ns();
  if (now_ns < r->next_report_ns) return;
  r->next_report_ns = now_ns + PROGRESS_REPORT_INTERVAL_NS;
  read_last_line(s, r, line);
  if (line[0]) clv_notice(CLV_LOG_INFO, "progress", "%s: %s", r->name, line);
}

/* Checks the process of each run once, without waiting: handles it if it has ended, else reports
 * the run's progress. */
static clv_code handle_ended_runs(sweep_work *s, size_t *n_jobs, clv_err *err) {
  for (size_t i = 0; i < s->n_runs; i++) {
    int status;
    sweep_run *r = &s->runs[i];
    if (r->state != SWEEP_RUN_RUNNING) continue;
    if (waitpid(r->pid, &status, WNOHANG) == r->pid)
      CLV_TRY(handle_ended_run(s, r, status, n_jobs, err));
    else
      report_progress(s, r);
  }
  return CLV_OK;
}

/* Sends a signal to the processes of all runs, and waits until they end. */
static void stop_all_runs(sweep_work *s, int signal_number) {
  for (size_t i = 0; i < s->n_runs; i++)
    if (s->runs[i].state == SWEEP_RUN_RUNNING) kill(s->runs[i].pid, signal_number);
  for (size_t i = 0; i < s->n_runs; i++) {
    sweep_run *r = &s->runs[i];
    if (r->state != SWEEP_RUN_RUNNING) continue;
    int status;
    while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR) {
    }
    r->state = SWEEP_RUN_WAITING;
  }
}

static clv_code start_runs(sweep_work *s, size_t n_jobs, clv_err *err) {
  for (size_t i = 0; i < s->n_runs && count_runs(s, SWEEP_RUN_RUNNING) < n_jobs; i++) {
    if (s->runs[i].state != SWEEP_RUN_WAITING) continue;
    CLV_TRY(start_run(s, &s->runs[i], err));
    s->runs[i].had_other_runs = false;
    print_started_run(s, &s->runs[i]);
  }
  bool has_several_running = count_runs(s, SWEEP_RUN_RUNNING) > 1;
  for (size_t i = 0; i < s->n_runs; i++)
    s->runs[i].had_other_runs |= has_several_running && s->runs[i].state == SWEEP_RUN_RUNNING;
  return CLV_OK;
}

static clv_code run_until_finished(sweep_work *s, clv_err *err) {
  const struct timespec poll_interval = {.tv_nsec = CHILD_POLL_INTERVAL_MS * 1000000L};
  size_t n_jobs = CLV_MAX((size_t)s->o->jobs, (size_t)1);
  while (!is_interrupted(s)) {
    CLV_TRY(start_runs(s, n_jobs, err));
    if (!count_runs(s, SWEEP_RUN_RUNNING)) return CLV_OK;
    nanosleep(&poll_interval, NULL);
    CLV_TRY(handle_ended_runs(s, &n_jobs, err));
  }
  clv_notice(CLV_LOG_WARN, "interrupted",
             "interrupted: the runs under way end after a checkpoint, and the same command "
             "continues the sweep");
  return CLV_OK;
}

clv_code sweep_run_all(sweep_work *s, clv_err *err) {
  clv_code code = run_until_finished(s, err);
  stop_all_runs(s, SIGINT);
  return code;
}
