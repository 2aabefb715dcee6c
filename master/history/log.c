/* SPDX-License-Identifier: Apache-2.0
 *
 * `log`: prints the log of a run, and with -f continues until the run ends. -f polls the file,
 * because a run writes only a few lines a minute.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "master/history/history_int.h"
#include "master/report/report.h"

enum {
  MAX_READ_BYTES = 16384, /* bytes read and printed at a time */
  POLL_MS = 100,
  /* number of further polls after the process has ended without a record, because `stop --now`
   * first kills the process and then records its end */
  N_GRACE_POLLS = 10,
};

typedef struct log_tail {
  clv_bytes path;
  int fd;          /* descriptor of the log; -1: the file does not exist yet */
  off_t n_printed; /* number of bytes that were printed */
  bool was_alive;  /* the run was alive at some earlier poll */
  /* number of polls since the last one at which the run was alive; 0 unless was_alive */
  unsigned n_polls_since_death;
} log_tail;

static void log_tail_done(log_tail *t) {
  clv_fd_closep(&t->fd);
  clv_bytes_done(&t->path);
}

static clv_code open_tail(log_tail *t, clv_err *err) {
  struct stat st;
  if (t->fd >= 0) return CLV_OK;
  t->fd = open(t->path.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (t->fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_UNAVAILABLE, "%s: %s", t->path.data,
                    strerror(errno));
  if (fstat(t->fd, &st) == 0 && S_ISREG(st.st_mode)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: not a regular file", t->path.data);
}

/* Returns the largest number of bytes, at most n, that end at a character boundary; n if there is
 * only part of one character. */
static size_t complete_characters_len(const char *text, size_t n) {
  size_t n_back = 1;
  while (n_back < 4 && n_back < n && ((unsigned char)text[n - n_back] & 0xc0) == 0x80) n_back++;
  unsigned char first_byte = (unsigned char)text[n - n_back];
  size_t character_len = first_byte >= 0xf0   ? 4
                         : first_byte >= 0xe0 ? 3
                         : first_byte >= 0xc0 ? 2
                                              : 1;
  return character_len > n_back && n_back < n ? n - n_back : n;
}

static void print_chunk(char *chunk, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!chunk[i]) chunk[i] = '?';
  chunk[n] = '\0';
  clv_print_sanitized(chunk);
}

/* Prints the bytes added since the last call. If the file has become shorter, a new run has started
 * in the folder: prints it from its beginning. */
static clv_code print_new_bytes(log_tail *t, clv_err *err) {
  char chunk[MAX_READ_BYTES + 1];
  struct stat st;
  CLV_TRY(open_tail(t, err));
  if (fstat(t->fd, &st) == 0 && st.st_size < t->n_printed) t->n_printed = 0;
  ssize_t n;
  while ((n = pread(t->fd, chunk, MAX_READ_BYTES, t->n_printed)) > 0) {
    size_t complete_len = complete_characters_len(chunk, (size_t)n);
    print_chunk(chunk, complete_len);
    t->n_printed += (off_t)complete_len;
  }
  if (n < 0) return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", t->path.data, strerror(errno));
  fflush(stdout);
  return CLV_OK;
}

/* Prints that the run has ended, if run.json does not say how: the run died without recording its
 * end, or its record is damaged or missing. */
static void log_run_outcome(const clv_run_entry *e) {
  static const char *const outcome_texts[] = {
      [CLV_STATE_DIED] = CLV_DIED_TEXT,
      [CLV_STATE_DAMAGED] = "the run has ended, and its record cannot be read",
      [CLV_STATE_UNRECORDED] = "the run has ended and left no record",
  };
  const char *text = (size_t)e->state < CLV_COUNT(outcome_texts) ? outcome_texts[e->state] : NULL;
  if (text) clv_notice(CLV_LOG_ERROR, "died", "%s: %s", e->folder, text);
}

/* Returns true if the run has ended. A run that died between two polls counts as ended only after
 * N_GRACE_POLLS more. */
static bool has_run_ended(log_tail *t, const clv_run_entry *e) {
  if (e->state == CLV_STATE_RUNNING || e->state == CLV_STATE_ELSEWHERE) {
    t->was_alive = true;
    return false;
  }
  return e->state != CLV_STATE_DIED || !t->was_alive || ++t->n_polls_since_death > N_GRACE_POLLS;
}

/* Prints the new lines of the log, and at the end of the run its outcome. First checks whether the
 * run has ended, then reads the log, so that the last lines of a run are never missed. */
static clv_code poll_run(log_tail *t, const char *folder, bool *ret_has_ended, int *ret_exit_code,
                         clv_err *err) {
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = {0};
  CLV_TRY(clv_run_entry_read(folder, &e, err));
  *ret_has_ended = has_run_ended(t, &e);
  clv_code code = print_new_bytes(t, err);
  if (code == CLV_NOT_FOUND && !*ret_has_ended) return CLV_OK; /* the run has printed nothing yet */
  CLV_TRY(code);
  if (!*ret_has_ended) return CLV_OK;
  *ret_exit_code = clv_run_entry_exit_code(&e);
  log_run_outcome(&e);
  return CLV_OK;
}

static clv_code follow_run(log_tail *t, const char *folder, int *ret_exit_code, clv_err *err) {
  const struct timespec pause = {.tv_nsec = POLL_MS * 1000000};
  bool has_ended;
  for (;;) {
    CLV_TRY(poll_run(t, folder, &has_ended, ret_exit_code, err));
    if (has_ended || ferror(stdout)) return CLV_OK;
    nanosleep(&pause, NULL);
  }
}

/* Fails because the log file is missing: the folder has no run, or the run has printed nothing. */
static clv_code fail_missing_log(const char *folder, const log_tail *t, clv_err *err) {
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = {0};
  CLV_TRY(clv_run_entry_read(folder, &e, err));
  return clv_fail(err, CLV_NOT_FOUND,
                  "%s does not exist: this run has printed nothing yet (state: %s)", t->path.data,
                  clv_run_state_name(e.state));
}

clv_code clv_history_print_log(const char *run, bool follows, bool json, int *ret_exit_code,
                               clv_err *err) {
  CLV_AUTO(log_tail_done) log_tail t = {.fd = -1};
  CLV_AUTO(clv_freep) char *folder = NULL;
  CLV_TRY(clv_run_entry_find_folder(run, &folder, err));
  clv_bytes_printf(&t.path, "%s/%s", folder, json ? CLV_JOURNAL_JSON : CLV_JOURNAL_TEXT);
  if (t.path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret_exit_code = 0;
  if (follows) return follow_run(&t, folder, ret_exit_code, err);
  clv_code code = print_new_bytes(&t, err);
  return code == CLV_NOT_FOUND ? fail_missing_log(folder, &t, err) : code;
}
