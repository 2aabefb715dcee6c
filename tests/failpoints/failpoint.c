/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements the failpoints of the programs that the proofs run (build/release/failpoints).
 * CLV_FAILPOINT is empty in the product; files that use it are compiled a second time with
 * -DCLV_FAILPOINTS for these programs.
 *
 *   CLEAVE_FAILPOINT=NAME:COUNT:ACTION[,...]   acts when the process reaches NAME the COUNT-th time
 *   CLEAVE_FAILPOINT_TRACE=FILE                appends a line for each point that is reached
 *
 * Actions: crash (SIGKILL), exit (status 1, without clean-up), stop (SIGSTOP), delay (300 ms), and
 * error: the next file operation of the same thread fails with ENOSPC. The linker
 * redirects those operations to this file (--wrap).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CLV_FAILPOINTS
#include "common/base/base.h"

enum { MAX_SPECS = 16, MAX_NAME = 64 };

static __thread bool fails_next; /* the next file operation of this thread fails */

/* ---- file operations that a failpoint makes fail --------------------------------------------- */

static bool take_failure(void) {
  if (!fails_next) return false;
  fails_next = false;
  errno = ENOSPC;
  return true;
}

#define WRAPPED(type, name, params, args) \
  type __real_##name params;              \
  type __wrap_##name params;              \
  type __wrap_##name params { return take_failure() ? -1 : __real_##name args; }

WRAPPED(ssize_t, write, (int fd, const void *data, size_t len), (fd, data, len))
WRAPPED(ssize_t, pwrite, (int fd, const void *data, size_t len, off_t at), (fd, data, len, at))
WRAPPED(int, fsync, (int fd), (fd))
WRAPPED(int, fdatasync, (int fd), (fd))
WRAPPED(int, rename, (const char *from, const char *to), (from, to))
WRAPPED(int, mkdir, (const char *path, mode_t mode), (path, mode))

/* ---- actions of failpoints ------------------------------------------------------------------- */

static void kill_process(void) { kill(getpid(), SIGKILL); }
static void exit_process(void) { _exit(1); }
static void stop_process(void) { kill(getpid(), SIGSTOP); }
static void make_next_call_fail(void) { fails_next = true; }
static void delay_process(void) { nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); }

static const struct {
  const char *name;
  void (*action)(void);
} actions[] = {{"crash", kill_process},
               {"exit", exit_process},
               {"stop", stop_process},
               {"error", make_next_call_fail},
               {"delay", delay_process}};

/* ---- failpoints that the environment requests ------------------------------------------------ */

static struct {
  char name[MAX_NAME];
  atomic_long calls_left; /* calls left until the failpoint acts; 0 or less: it has acted */
  void (*action)(void);
} specs[MAX_SPECS];
static size_t n_specs;
static int trace_fd = -1;

static void add_spec(const char *text) {
  char name[MAX_NAME], action[MAX_NAME];
  long count;
  if (n_specs == MAX_SPECS || sscanf(text, "%63[^:]:%ld:%63s", name, &count, action) != 3) goto bad;
  for (size_t i = 0; i < CLV_COUNT(actions); i++) {
    if (strcmp(action, actions[i].name) != 0) continue;
    strcpy(specs[n_specs].name, name);
    specs[n_specs].calls_left = count;
    specs[n_specs++].action = actions[i].action;
    return;
  }
bad:
  dprintf(2, "CLEAVE_FAILPOINT: '%s' is not NAME:COUNT:ACTION\n", text);
  _exit(1);
}

__attribute__((constructor)) static void read_specs(void) {
  const char *text = getenv("CLEAVE_FAILPOINT"), *file = getenv("CLEAVE_FAILPOINT_TRACE");
  char copy[1024], *rest = copy;
  if (file) trace_fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (!text) return;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *spec_text; (spec_text = strsep(&rest, ","));) add_spec(spec_text);
}

static void add_line(int fd, const char *prefix, const char *name) {
  char line[MAX_NAME + 32];
  int n = snprintf(line, sizeof line, "%s%s\n", prefix, name);
  (void)!__real_write(fd, line, (size_t)n);
}

void clv_failpoint(const char *format, ...) {
  char name[MAX_NAME];
  va_list args;
  va_start(args, format);
  vsnprintf(name, sizeof name, format, args);
  va_end(args);
  if (trace_fd >= 0) add_line(trace_fd, "", name);
  for (size_t i = 0; i < n_specs; i++) {
    if (strcmp(specs[i].name, name) != 0 || --specs[i].calls_left) continue;
    add_line(2, "failpoint ", name);
    specs[i].action();
  }
}
