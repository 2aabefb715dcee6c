/* SPDX-License-Identifier: Apache-2.0
 *
 * `stop`: signals the process that holds the run's lock, if its id and start time are those in the
 * record. The signal is sent through a descriptor of the process (pidfd), so that a process that
 * reuses the id is never signalled. clv_history_stop_run is the main function.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "master/history/history_int.h"

enum { STOP_SIGNAL_VALUE = 0x57094e, POLL_MS = 50 };

bool clv_is_stop_request(const siginfo_t *info) {
  return info->si_code == SI_QUEUE && info->si_value.sival_int == STOP_SIGNAL_VALUE;
}

/* Wrappers of the system calls pidfd_open and pidfd_send_signal. glibc has such functions only from
 * 2.36 on, but the Python wheel must run with 2.34. */
static int open_process(long pid) { return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0); }
static int signal_process(int process_fd, siginfo_t *info) {
  return (int)syscall(SYS_pidfd_send_signal, process_fd, info->si_signo, info, 0);
}

static clv_code send_signal(int process_fd, bool kills_now, clv_err *err) {
  siginfo_t request = {.si_code = SI_QUEUE};
  request.si_signo = kills_now ? SIGKILL : SIGINT;
  request.si_pid = getpid();
  request.si_uid = getuid();
  request.si_value.sival_int = STOP_SIGNAL_VALUE;
  if (signal_process(process_fd, &request) == 0 || errno == ESRCH)
    return CLV_OK; /* ESRCH: the process has ended before it was signalled */
  return clv_fail(
      err, errno == EPERM ? CLV_DENIED : CLV_UNAVAILABLE,
      errno == EPERM ? "its process belongs to another user: %s" : "cannot signal its process: %s",
      strerror(errno));
}

/* ---- finding the process of a run ------------------------------------------------------------ */

static clv_code fail_not_running(const clv_run_entry *e, clv_err *err) {
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  if (e->state == CLV_STATE_ELSEWHERE)
    return clv_fail(err, CLV_UNAVAILABLE, "%s runs on host '%s': stop it there", e->folder,
                    a->host);
  return clv_fail(err, CLV_PRECONDITION, "%s does not run: %s; there is nothing to stop", e->folder,
                  e->state == CLV_STATE_DIED ? "its process died" : clv_run_state_name(e->state));
}

/* Checks that the holder of the lock is the process that the record names. */
static clv_code check_holder(const clv_run_entry *e, clv_err *err) {
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  clv_run_attempt this_process = {0};
  clv_process_describe_self(&this_process);
  if (e->state != CLV_STATE_RUNNING) return fail_not_running(e, err);
  if (a && strcmp(a->boot_id, this_process.boot_id) != 0)
    return clv_fail(err, CLV_UNAVAILABLE, "%s runs on host '%s': stop it there", e->folder,
                    a->host);
  if (!e->holder_pid)
    return clv_fail(
        err, CLV_UNAVAILABLE,
        "%s runs in a process that cannot be seen from here (a container?): stop it from "
        "where it was started",
        e->folder);
  if (a && a->pid == (uint64_t)e->holder_pid &&
      a->pid_start == clv_process_start_time(e->holder_pid))
    return CLV_OK;
  return clv_fail(
      err, CLV_PRECONDITION,
      "%s is locked by process %ld, which is not the one in its record (%s): inspect that process "
      "before you end it with kill -INT %ld",
      e->folder, e->holder_pid, a ? "another process" : e->read_error.text, e->holder_pid);
}

/* Opens a descriptor of the process that holds the run's lock, then reads the lock again. If the
 * same process still holds it, the descriptor refers to this process. */
static clv_code open_holder(const char *folder, long *ret_pid, int *ret, clv_err *err) {
  CLV_AUTO(clv_run_entry_done) clv_run_entry entry_before = {0}, entry_after = {0};
  CLV_AUTO(clv_fd_closep) int process_fd = -1;
  CLV_TRY(clv_run_entry_read(folder, &entry_before, err));
  CLV_TRY(check_holder(&entry_before, err));
  process_fd = open_process(entry_before.holder_pid);
  if (process_fd < 0 && errno != ESRCH)
    return clv_fail(err, CLV_UNAVAILABLE, "process %ld cannot be opened: %s; kill -INT %ld ends it",
                    entry_before.holder_pid, strerror(errno), entry_before.holder_pid);
  CLV_TRY(clv_run_entry_read(folder, &entry_after, err));
  CLV_TRY(check_holder(&entry_after, err));
  if (entry_after.holder_pid != entry_before.holder_pid || process_fd < 0)
    return clv_fail(err, CLV_ABORTED, "%s: another process has just taken over the run: try again",
                    folder);
  *ret_pid = entry_before.holder_pid;
  *ret = process_fd;
  process_fd = -1;
  return CLV_OK;
}

/* ---- waiting for the end of the process ------------------------------------------------------ */

static void await_process_end(const char *folder, long pid) {
  const struct timespec pause = {.tv_nsec = POLL_MS * 1000000};
  long holder_pid;
  while (clv_run_folder_is_locked(folder, &holder_pid) && holder_pid == pid)
    nanosleep(&pause, NULL);
}

/* Records the end of a killed process, which could not do so itself. Does nothing if another
 * process has already resumed the run. */
static clv_code record_kill(const char *folder, long pid, clv_err *err) {
  CLV_AUTO(clv_fd_closep) int lock = -1;
  CLV_AUTO(clv_run_record_clear) clv_run_record record = {0};
  CLV_AUTO(clv_run_entry_done) clv_run_entry dead = {0};
  long other_pid;
  CLV_TRY(clv_run_entry_read(folder, &dead,
                             err)); /* takes the step from the last line of metrics.jsonl */
  if (clv_run_folder_lock(folder, &lock, &other_pid, err) != CLV_OK) return CLV_OK;
  CLV_TRY(clv_run_record_read(folder, &record, err));
  clv_run_attempt *a = &record.attempts[record.n_attempts - 1];
  if (a->pid != (uint64_t)pid || a->status != CLV_RUN_RUNNING) return CLV_OK;
  a->status = CLV_RUN_STOPPED;
  a->exit_code = 130;
  a->step = dead.step;
  a->loss = dead.loss;
  a->accuracy = dead.accuracy;
  a->ended_ms = clv_wall_ms();
  snprintf(a->text, sizeof a->text, "stopped at once: what came after its last checkpoint is lost");
  return clv_run_record_write(folder, &record, err);
}

static void print_result(const clv_run_entry *e, bool json) {
  const clv_run_attempt *a = clv_run_entry_last_attempt(e);
  if (json) {
    CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
    clv_bytes_puts(&out, "{\"event\":\"stop\",\"folder\":");
    clv_bytes_add_json(&out, e->folder);
    clv_bytes_printf(&out, ",\"state\":\"%s\",\"step\":%" PRIu64 "}", clv_run_state_name(e->state),
                     e->step);
    if (!out.failed) puts(out.data);
    return;
  }
  bool has_checkpoint = e->record.n_checkpoints > 0;
  printf("%s: %s after step %" PRIu64, e->folder, clv_run_state_name(e->state), e->step);
  if (e->state == CLV_STATE_STOPPED && has_checkpoint)
    printf("; train --resume goes on from checkpoint %" PRIu64, e->record.checkpoints[0]);
  if (a && e->state == CLV_STATE_FAILED) {
    printf(": ");
    clv_print_sanitized(a->text);
  }
  putchar('\n');
}

clv_code clv_history_stop_run(const char *run, bool kills_now, bool json, int *ret_exit_code,
                              clv_err *err) {
  CLV_AUTO(clv_freep) char *folder = NULL;
  CLV_AUTO(clv_fd_closep) int process_fd = -1;
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = {0};
  long pid = 0;
  CLV_TRY(clv_run_entry_find_folder(run, &folder, err));
  CLV_TRY(open_holder(folder, &pid, &process_fd, err));
  CLV_TRY(send_signal(process_fd, kills_now, err));
  if (!json && !kills_now) {
    printf("asked process %ld to end after a checkpoint\n", pid);
    fflush(stdout);
  }
  await_process_end(folder, pid);
  if (kills_now) CLV_TRY(record_kill(folder, pid, err));
  CLV_TRY(clv_run_entry_read(folder, &e, err));
  print_result(&e, json);
  bool has_ended_without_failure = e.state == CLV_STATE_STOPPED || e.state == CLV_STATE_FINISHED ||
                                   e.state == CLV_STATE_INTERRUPTED;
  *ret_exit_code = has_ended_without_failure ? 0 : clv_run_entry_exit_code(&e);
  return CLV_OK;
}
