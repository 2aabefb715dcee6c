/* SPDX-License-Identifier: Apache-2.0
 *
 * `log`: what a run printed, and with -f what it prints until it ends. The file is looked at again
 * and
 * again: a run writes a few lines a minute.
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
  PART = 16384, /* bytes that are read and printed at a time */
  POLL_MS = 100,
  WORD_POLLS = 10, /* after a death: `stop --now` kills first and writes that down then */
};

typedef struct tail {
  clv_bytes path;
  int fd;   /* -1: not there yet */
  off_t at; /* what was printed */
  bool lived;
  unsigned dead; /* polls since it died, if it lived at the first one */
} tail;

static void tail_done(tail *t) {
  clv_fd_closep(&t->fd);
  clv_bytes_done(&t->path);
}

static clv_code open_tail(tail *t, clv_err *err) {
  struct stat st;
  if (t->fd >= 0) return CLV_OK;
  t->fd = open(t->path.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (t->fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_UNAVAILABLE, "%s: %s", t->path.data,
                    strerror(errno));
  if (fstat(t->fd, &st) == 0 && S_ISREG(st.st_mode)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s: not a regular file", t->path.data);
}

/* Of n bytes those before a character that goes on behind them; all, if they are but that. */
static size_t whole_characters(const char *text, size_t n) {
  size_t back = 1;
  while (back < 4 && back < n && ((unsigned char)text[n - back] & 0xc0) == 0x80) back++;
  unsigned char first = (unsigned char)text[n - back];
  size_t len = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
  return len > back && back < n ? n - back : n;
}

static void print_part(char *part, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!part[i]) part[i] = '?';
  part[n] = '\0';
  clv_print_sanitized(part);
}

/* What is new; a file that became shorter belongs to a run that began afresh. */
static clv_code print_new(tail *t, clv_err *err) {
  char part[PART + 1];
  struct stat st;
  CLV_TRY(open_tail(t, err));
  if (fstat(t->fd, &st) == 0 && st.st_size < t->at) t->at = 0;
  ssize_t n;
  while ((n = pread(t->fd, part, PART, t->at)) > 0) {
    size_t whole = whole_characters(part, (size_t)n);
    print_part(part, whole);
    t->at += (off_t)whole;
  }
  if (n < 0) return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", t->path.data, strerror(errno));
  fflush(stdout);
  return CLV_OK;
}

/* Says how it ended, where its last line does not. */
static void explain(const clv_run_entry *e) {
  static const char *const texts[] = {
      [CLV_STATE_DIED] = CLV_DIED_TEXT,
      [CLV_STATE_DAMAGED] = "it has ended, and its record cannot be read",
      [CLV_STATE_UNRECORDED] = "it has ended, and left no record",
  };
  const char *text = (size_t)e->state < CLV_COUNT(texts) ? texts[e->state] : NULL;
  if (text) clv_notice(CLV_LOG_ERROR, "died", "%s: %s", e->folder, text);
}

static bool is_over(tail *t, const clv_run_entry *e) {
  if (e->state == CLV_STATE_RUNNING || e->state == CLV_STATE_ELSEWHERE) {
    t->lived = true;
    return false;
  }
  return e->state != CLV_STATE_DIED || !t->lived || ++t->dead > WORD_POLLS;
}

/* Whether it lives is asked before what it wrote is read, so that nothing is missed at the end. */
static clv_code poll_run(tail *t, const char *folder, bool *ret_over, int *ret_exit, clv_err *err) {
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = {0};
  CLV_TRY(clv_run_entry_read(folder, &e, err));
  *ret_over = is_over(t, &e);
  clv_code code = print_new(t, err);
  if (code == CLV_NOT_FOUND && !*ret_over) return CLV_OK; /* nothing is printed yet */
  CLV_TRY(code);
  if (!*ret_over) return CLV_OK;
  *ret_exit = clv_run_entry_exit_code(&e);
  explain(&e);
  return CLV_OK;
}

static clv_code go_along(tail *t, const char *folder, int *ret_exit, clv_err *err) {
  const struct timespec pause = {.tv_nsec = POLL_MS * 1000000};
  bool over;
  for (;;) {
    CLV_TRY(poll_run(t, folder, &over, ret_exit, err));
    if (over || ferror(stdout)) return CLV_OK;
    nanosleep(&pause, NULL);
  }
}

/* A folder that is no run's, or a run that never came to print. */
static clv_code why_nothing(const char *folder, const tail *t, clv_err *err) {
  CLV_AUTO(clv_run_entry_done) clv_run_entry e = {0};
  CLV_TRY(clv_run_entry_read(folder, &e, err));
  return clv_fail(err, CLV_NOT_FOUND, "%s is not there: this run has printed nothing yet (%s)",
                  t->path.data, clv_run_state_name(e.state));
}

clv_code clv_history_log(const char *run, bool follow, bool json, int *ret_exit, clv_err *err) {
  CLV_AUTO(tail_done) tail t = {.fd = -1};
  CLV_AUTO(clv_freep) char *folder = NULL;
  CLV_TRY(clv_run_entry_find_folder(run, &folder, err));
  clv_bytes_printf(&t.path, "%s/%s", folder, json ? CLV_JOURNAL_JSON : CLV_JOURNAL_TEXT);
  if (t.path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret_exit = 0;
  if (follow) return go_along(&t, folder, ret_exit, err);
  clv_code code = print_new(&t, err);
  return code == CLV_NOT_FOUND ? why_nothing(folder, &t, err) : code;
}
