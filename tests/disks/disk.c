/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates a disk that fails, in a library that the loader puts before the C library (LD_PRELOAD).
 *
 *   CLEAVE_TEST_DISK=OP:PART:FIRST:TIMES:ERROR
 *
 * OP is write, fsync, rename, open (for writing), mkdir or any; PART is a substring of the file's
 * path. Counts the operations that match: from the FIRST-th on (the first is 1), TIMES of them fail
 * (0: all). ERROR is ENOSPC, EIO, EROFS or EDQUOT. If it is SLOW or STUCK, the operation succeeds
 * but takes 10 ms or 2 s longer.
 *
 *   CLEAVE_TEST_DISK_LOG=FOLDER
 *
 * Writes each operation that changes a file to FOLDER/log, one line each, and keeps a copy of each
 * file as of its last fsync in FOLDER/N. From the log and the copies, power_cut.py makes the files
 * that a power cut would leave.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
  char operation[16], path_part[128];
  long first_failure, n_failures;
  int error_number; /* errno of the fault; 0: the disk is slow instead */
  long delay_ms;
  bool is_enabled;
  int log_fd; /* file descriptor of FOLDER/log; -1: no operations are logged */
  char folder[256];
  atomic_long n_matched, n_copies;
} disk = {.log_fd = -1};

#define REAL(name) (__extension__(__typeof__(&name)) dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void read_settings(void) {
  static const struct {
    const char *name;
    int error_number;
    long delay_ms;
  } errors[] = {{"ENOSPC", ENOSPC, 0}, {"EIO", EIO, 0}, {"EROFS", EROFS, 0},
                {"EDQUOT", EDQUOT, 0}, {"SLOW", 0, 10}, {"STUCK", 0, 2000}};
  const char *text = getenv("CLEAVE_TEST_DISK"), *folder = getenv("CLEAVE_TEST_DISK_LOG");
  char error[16], path[300];
  if (text && sscanf(text, "%15[^:]:%127[^:]:%ld:%ld:%15s", disk.operation, disk.path_part,
                     &disk.first_failure, &disk.n_failures, error) == 5)
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
      if (strcmp(error, errors[i].name) == 0) {
        disk.error_number = errors[i].error_number;
        disk.delay_ms = errors[i].delay_ms;
        disk.is_enabled = true;
      }
  if (!folder) return;
  snprintf(disk.folder, sizeof disk.folder, "%s", folder);
  snprintf(path, sizeof path, "%s/log", folder);
  disk.log_fd = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

/* ---- making calls of the C library fail ------------------------------------------------------ */

static const char *get_path_of_fd(int fd, char path[PATH_MAX]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, PATH_MAX - 1);
  path[n > 0 ? n : 0] = '\0';
  return path;
}

static bool is_failure_due(const char *op, const char *path) {
  if (!disk.is_enabled || (strcmp(disk.operation, op) != 0 && strcmp(disk.operation, "any") != 0))
    return false;
  if (!strstr(path, disk.path_part)) return false;
  long n = ++disk.n_matched;
  if (n < disk.first_failure || (disk.n_failures && n >= disk.first_failure + disk.n_failures))
    return false;
  if (!disk.error_number)
    nanosleep(&(struct timespec){disk.delay_ms / 1000, disk.delay_ms % 1000 * 1000000}, NULL);
  errno = disk.error_number;
  return disk.error_number != 0;
}

static bool is_failure_due_for_fd(const char *op, int fd) {
  char path[PATH_MAX];
  int saved_errno = errno;
  if (!disk.is_enabled) return false;
  bool must_fail_now = is_failure_due(op, get_path_of_fd(fd, path));
  if (!must_fail_now) errno = saved_errno;
  return must_fail_now;
}

/* ---- the log of a power cut ------------------------------------------------------------------ */

static void add_log_line(const char *op, const char *path, const char *argument) {
  char line[2 * PATH_MAX + 64];
  if (disk.log_fd < 0) return;
  int n = snprintf(line, sizeof line, "%s\t%s\t%s\n", op, path, argument);
  (void)!REAL(write)(disk.log_fd, line, (size_t)n);
}

/* Returns the absolute path of `name`, which is relative to the folder with descriptor `dir`. */
static const char *make_absolute_path(int dir, const char *name, char path[2 * PATH_MAX]) {
  char folder[PATH_MAX];
  if (name[0] == '/') return strcpy(path, name);
  if (dir == AT_FDCWD && !getcwd(folder, sizeof folder)) folder[0] = '\0';
  if (dir != AT_FDCWD) get_path_of_fd(dir, folder);
  snprintf(path, 2 * PATH_MAX, "%s/%s", folder, name);
  return path;
}

/* Copies the file's present content to the log's folder: a power cut would leave this content. */
static void log_content(int fd) {
  char path[PATH_MAX], copy[400], number[32], buf[65536];
  struct stat st;
  if (disk.log_fd < 0 || fstat(fd, &st) != 0) return;
  get_path_of_fd(fd, path);
  if (S_ISDIR(st.st_mode)) {
    add_log_line("fsyncdir", path, "");
    return;
  }
  snprintf(number, sizeof number, "%ld", ++disk.n_copies);
  snprintf(copy, sizeof copy, "%s/%ld.%s", disk.folder, (long)getpid(), number);
  int in = REAL(open)(path, O_RDONLY | O_CLOEXEC);
  int out = REAL(open)(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  for (ssize_t n; in >= 0 && (n = read(in, buf, sizeof buf)) > 0;)
    (void)!REAL(write)(out, buf, (size_t)n);
  if (in >= 0) close(in);
  if (out >= 0) close(out);
  add_log_line("fsync", path, copy);
}

/* ---- functions that replace those of the C library ------------------------------------------- */

ssize_t write(int fd, const void *data, size_t len) {
  return is_failure_due_for_fd("write", fd) ? -1 : REAL(write)(fd, data, len);
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t at) {
  return is_failure_due_for_fd("write", fd) ? -1 : REAL(pwrite)(fd, data, len, at);
}

int fsync(int fd) {
  if (is_failure_due_for_fd("fsync", fd)) return -1;
  log_content(fd);
  return REAL(fsync)(fd);
}

int fdatasync(int fd) {
  if (is_failure_due_for_fd("fsync", fd)) return -1;
  log_content(fd);
  return REAL(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
  char a[2 * PATH_MAX], b[2 * PATH_MAX];
  if (is_failure_due("rename", to)) return -1;
  int r = REAL(rename)(from, to);
  if (r == 0)
    add_log_line("rename", make_absolute_path(AT_FDCWD, from, a),
                 make_absolute_path(AT_FDCWD, to, b));
  return r;
}

int mkdir(const char *path, mode_t mode) {
  char a[2 * PATH_MAX];
  if (is_failure_due("mkdir", path)) return -1;
  int r = REAL(mkdir)(path, mode);
  if (r == 0) add_log_line("mkdir", make_absolute_path(AT_FDCWD, path, a), "");
  return r;
}

int unlink(const char *path) {
  char a[2 * PATH_MAX];
  int r = REAL(unlink)(path);
  if (r == 0) add_log_line("unlink", make_absolute_path(AT_FDCWD, path, a), "");
  return r;
}

int unlinkat(int dir, const char *path, int flags) {
  char a[2 * PATH_MAX];
  make_absolute_path(dir, path, a);
  int r = REAL(unlinkat)(dir, path, flags);
  if (r == 0) add_log_line(flags & AT_REMOVEDIR ? "rmdir" : "unlink", a, "");
  return r;
}

int rmdir(const char *path) {
  char a[2 * PATH_MAX];
  int r = REAL(rmdir)(path);
  if (r == 0) add_log_line("rmdir", make_absolute_path(AT_FDCWD, path, a), "");
  return r;
}

static int open_logged(int dir, const char *path, int flags, mode_t mode) {
  char a[2 * PATH_MAX];
  bool opens_for_writing = (flags & O_ACCMODE) != O_RDONLY;
  if (opens_for_writing && is_failure_due("open", path)) return -1;
  bool is_new = opens_for_writing && (flags & O_CREAT) && faccessat(dir, path, F_OK, 0) != 0;
  int fd = REAL(openat)(dir, path, flags, mode);
  if (fd >= 0 && is_new) add_log_line("create", make_absolute_path(dir, path, a), "");
  return fd;
}

#define MODE_OF(flags, mode)             \
  mode_t mode = 0;                       \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list args;                        \
    va_start(args, flags);               \
    mode = va_arg(args, mode_t);         \
    va_end(args);                        \
  }

int open(const char *path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_logged(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_logged(dir, path, flags, mode);
}
