/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a child process that parses an untrusted file. The child has its own session and process
 * group, limits that the kernel enforces, no network if it may have its own network namespace, and
 * no descriptors except the file and two pipes. Between fork and exec it makes only system calls.
 * clv_child_process_run is the main function; read.c calls it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/documents/documents_int.h"

enum {
  MAX_MESSAGE_BYTES = 4096,
  CHILD_FILE_FD = 3,
  CANNOT_START_STATUS = 127,
  MAX_READ_BYTES = 65536
};

/* Mark, the first byte that the child writes to its standard error, before exec: 'A' if it has no
 * network, 'S' if it has. */
static const char no_network_mark = 'A', network_mark = 'S';

typedef struct running_child {
  pid_t pid;
  /* ends of the pipes from the child's standard output and standard error; -1: closed */
  int out_fd, errors_fd;
  clv_bytes messages;  /* last bytes of the child's standard error */
  bool had_no_network; /* the child had no network, as its mark says */
  bool has_mark;       /* the child's mark has been read */
} running_child;

static clv_child_limits get_limits(const clv_child_process *c) {
  clv_child_limits l = c->limits ? *c->limits : (clv_child_limits){0};
  if (!l.seconds) l.seconds = CLV_CHILD_DEFAULT_SECONDS;
  if (!l.max_memory_bytes) l.max_memory_bytes = CLV_CHILD_DEFAULT_MEMORY_BYTES;
  if (!l.max_output_bytes) l.max_output_bytes = CLV_CHILD_DEFAULT_OUTPUT_BYTES;
  return l;
}

/* ---- before exec, in the child --------------------------------------------------------------- */

static void set_limit(int resource, rlim_t soft_limit, rlim_t hard_limit) {
  if (setrlimit((__rlimit_resource_t)resource, &(struct rlimit){soft_limit, hard_limit}) != 0)
    _exit(CANNOT_START_STATUS);
}

static void set_limits(const clv_child_limits *l) {
  set_limit(RLIMIT_CPU, l->seconds, l->seconds + 1);
  set_limit(RLIMIT_AS, l->max_memory_bytes, l->max_memory_bytes);
  set_limit(RLIMIT_FSIZE, 0, 0); /* the child cannot write to files; pipes are not affected */
  set_limit(RLIMIT_CORE, 0, 0);
  set_limit(RLIMIT_NOFILE, 64, 64);
  set_limit(RLIMIT_STACK, 64 << 20, 64 << 20);
}

static _Noreturn void exec_program(const clv_child_process *c, const char *const *paths, int out_fd,
                                   int errors_fd, const clv_child_limits *l) {
  static char *const environment[] = {"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "OMP_THREAD_LIMIT=1",
                                      NULL};
  int null_fd = open("/dev/null", O_RDONLY);
  bool has_no_network = unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(out_fd, 1) < 0 || dup2(errors_fd, 2) < 0 ||
      dup2(c->file_fd, CHILD_FILE_FD) < 0)
    _exit(CANNOT_START_STATUS);
  close_range(CHILD_FILE_FD + 1, ~0u, 0);
  set_limits(l);
  if (write(2, has_no_network ? &no_network_mark : &network_mark, 1) != 1)
    _exit(CANNOT_START_STATUS);
  for (size_t i = 0; i < 2; i++) execve(paths[i], (char *const *)(uintptr_t)c->args, environment);
  _exit(CANNOT_START_STATUS);
}

/* ---- reading from the child, in the parent --------------------------------------------------- */

static void end_child(running_child *r) {
  if (r->pid > 0) {
    kill(-r->pid, SIGKILL);
    kill(r->pid, SIGKILL);
    while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR) {
    }
  }
  if (r->out_fd >= 0) close(r->out_fd);
  if (r->errors_fd >= 0) close(r->errors_fd);
  clv_bytes_done(&r->messages);
}

/* Makes a pipe. Its write end, which the child gets, is a descriptor above CHILD_FILE_FD, so that
 * dup2 in the child does not close it. */
static clv_code make_pipe(int ret_fds[2], clv_err *err) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0)
    return clv_fail(err, CLV_EXHAUSTED, "pipe: %s", strerror(errno));
  ret_fds[0] = pipe_fds[0];
  ret_fds[1] = fcntl(pipe_fds[1], F_DUPFD_CLOEXEC, CHILD_FILE_FD + 1);
  close(pipe_fds[1]);
  if (ret_fds[1] >= 0) return CLV_OK;
  close(ret_fds[0]);
  return clv_fail(err, CLV_EXHAUSTED, "pipe: %s", strerror(errno));
}

static clv_code start_child(const clv_child_process *c, const clv_child_limits *l, running_child *r,
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes usr_path = {0}, bin_path = {0};
  int out_pipe[2], errors_pipe[2];
  clv_bytes_printf(&usr_path, "/usr/bin/%s", c->args[0]);
  clv_bytes_printf(&bin_path, "/bin/%s", c->args[0]);
  if (usr_path.failed || bin_path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  const char *const paths[] = {usr_path.data, bin_path.data};
  CLV_TRY(make_pipe(out_pipe, err));
  clv_code code = make_pipe(errors_pipe, err);
  if (code != CLV_OK) {
    close(out_pipe[0]);
    close(out_pipe[1]);
    return code;
  }
  r->pid = fork();
  if (r->pid == 0) exec_program(c, paths, out_pipe[1], errors_pipe[1], l);
  close(out_pipe[1]);
  close(errors_pipe[1]);
  r->out_fd = out_pipe[0];
  r->errors_fd = errors_pipe[0];
  if (r->pid > 0) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED, "%s: cannot start a process: %s", c->label, strerror(errno));
}

/* Keeps the last messages of the child. The first byte that the child writes is the mark
 * (no_network_mark or network_mark). */
static void append_messages(running_child *r, const char *data, size_t n) {
  if (n && !r->has_mark) {
    r->had_no_network = data[0] == no_network_mark;
    r->has_mark = true;
    data++;
    n--;
  }
  if (r->messages.len + n > MAX_MESSAGE_BYTES) r->messages.len = 0;
  clv_bytes_add(&r->messages, data, CLV_MIN(n, (size_t)MAX_MESSAGE_BYTES));
}

/* Reads at most MAX_READ_BYTES from a pipe of the child that has data, and closes the pipe when the
 * child has closed its end. */
static void read_available_bytes(running_child *r, int *fd, clv_bytes *out) {
  char chunk[MAX_READ_BYTES];
  ssize_t n = read(*fd, chunk, sizeof chunk);
  if (n < 0 && errno == EINTR) return;
  if (n > 0 && out) clv_bytes_add(out, chunk, (size_t)n);
  if (n > 0 && !out) append_messages(r, chunk, (size_t)n);
  if (n > 0) return;
  close(*fd);
  *fd = -1;
}

static clv_code read_pipes(const clv_child_process *c, const clv_child_limits *l, running_child *r,
                           clv_bytes *out, clv_err *err) {
  uint64_t deadline_ns = clv_now_ns() + (uint64_t)l->seconds * 1000000000;
  while (r->out_fd >= 0 || r->errors_fd >= 0) {
    struct pollfd fds[] = {{r->out_fd, POLLIN, 0}, {r->errors_fd, POLLIN, 0}};
    uint64_t now_ns = clv_now_ns();
    if (now_ns >= deadline_ns)
      return clv_fail(err, CLV_EXHAUSTED, "%s: %s takes longer than %u s", c->label, c->args[0],
                      l->seconds);
    int n = poll(fds, 2, (int)CLV_MIN((deadline_ns - now_ns) / 1000000 + 1, (uint64_t)1000));
    if (n <= 0) continue;
    if (fds[0].revents) read_available_bytes(r, &r->out_fd, out);
    if (fds[1].revents) read_available_bytes(r, &r->errors_fd, NULL);
    if (out->failed || out->len > l->max_output_bytes)
      return clv_fail(err, CLV_EXHAUSTED, "%s: %s prints more than %llu bytes", c->label,
                      c->args[0], (unsigned long long)l->max_output_bytes);
  }
  return CLV_OK;
}

/* Returns the last line of the child's messages, made printable. */
static const char *last_line(running_child *r) {
  char *text = r->messages.len ? r->messages.data : NULL;
  while (text && r->messages.len && text[r->messages.len - 1] == '\n')
    text[--r->messages.len] = '\0';
  if (!text) return "";
  clv_text_to_printable(text);
  char *at = strrchr(text, '?'); /* clv_text_to_printable replaces each line end by '?' */
  return at && at[1] ? at + 1 : text;
}

static clv_code check_exit_status(const clv_child_process *c, const clv_child_limits *l,
                                  running_child *r, int status, clv_err *err) {
  const char *program = c->args[0];
  int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return CLV_OK;
  if (signal == SIGXCPU || signal == SIGKILL)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %s takes more than %u s of processor time", c->label,
                    program, l->seconds);
  if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_START_STATUS)
    return clv_fail(err, CLV_NOT_FOUND, "%s: %s cannot be started: is it installed (Debian: %s)?",
                    c->label, program,
                    strcmp(program, "tesseract") == 0 ? "tesseract-ocr" : "poppler-utils");
  return clv_fail(
      err, CLV_DATA_LOSS, "%s: %s ends with %s %d (it may have %llu MiB of memory)%s%.150s",
      c->label, program, signal ? "signal" : "exit code", signal ? signal : WEXITSTATUS(status),
      (unsigned long long)(l->max_memory_bytes >> 20), r->messages.len ? ": " : "", last_line(r));
}

static clv_code wait_for_exit(const clv_child_process *c, const clv_child_limits *l,
                              running_child *r, clv_err *err) {
  int status = 0;
  uint64_t deadline_ns = clv_now_ns() + (uint64_t)l->seconds * 1000000000;
  pid_t pid;
  while ((pid = waitpid(r->pid, &status, WNOHANG)) <= 0) {
    if (pid < 0 && errno != EINTR)
      return clv_fail(err, CLV_INTERNAL, "%s: wait: %s", c->label, strerror(errno));
    if (clv_now_ns() > deadline_ns)
      return clv_fail(err, CLV_EXHAUSTED, "%s: %s takes longer than %u s", c->label, c->args[0],
                      l->seconds);
    poll(NULL, 0, 1);
  }
  kill(-r->pid, SIGKILL); /* ends all processes that are left in the child's process group */
  r->pid = 0;
  return check_exit_status(c, l, r, status, err);
}

clv_code clv_child_process_run(const clv_child_process *c, clv_bytes *ret, bool *ret_no_network,
                               clv_err *err) {
  clv_child_limits l = get_limits(c);
  running_child r = {.out_fd = -1, .errors_fd = -1};
  clv_code code = start_child(c, &l, &r, err);
  if (code == CLV_OK) code = read_pipes(c, &l, &r, ret, err);
  if (code == CLV_OK) code = wait_for_exit(c, &l, &r, err);
  *ret_no_network = r.had_no_network;
  end_child(&r);
  return code;
}
