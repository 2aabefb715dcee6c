/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel lock on a run folder. clv_run_folder_lock takes it for the process that trains, or for
 * `stop`; clv_run_folder_is_locked finds the process that holds the lock. clv_process_describe_self
 * and clv_process_start_time identify processes, also after their ids have been reused.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/history/history_int.h"

void clv_fd_closep(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

/* ---- identity of a process ------------------------------------------------------------------- */

/* Reads the first line of a file in /proc. Such files report a size of 0. */
static bool read_line(const char *path, char *ret, size_t len) {
  FILE *f = fopen(path, "re");
  bool ok = f && fgets(ret, (int)len, f);
  if (f) fclose(f);
  if (ok) ret[strcspn(ret, "\n")] = '\0';
  return ok;
}

uint64_t clv_process_start_time(long pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%ld/stat", pid);
  if (pid <= 0 || !read_line(path, text, sizeof text)) return 0;
  /* the name of the process, in parentheses before this field, may hold any character */
  const char *at = strrchr(text, ')');
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at, NULL, 10) : 0;
}

void clv_process_describe_self(clv_run_attempt *ret) {
  if (gethostname(ret->host, sizeof ret->host - 1) != 0) ret->host[0] = '\0';
  if (!read_line("/proc/sys/kernel/random/boot_id", ret->boot_id, sizeof ret->boot_id))
    ret->boot_id[0] = '\0';
  ret->pid = (uint64_t)getpid();
  ret->pid_start = clv_process_start_time(getpid());
}

/* ---- the kernel lock on run.lock ------------------------------------------------------------- */

static clv_code open_lock(const char *run_dir, int flags, int *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" CLV_RUN_LOCK_FILE, run_dir);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret = open(path.data, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (*ret >= 0) return CLV_OK;
  return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_UNAVAILABLE, "%s: %s", path.data,
                  strerror(errno));
}

static bool is_locked_by_other(int fd, long *ret_pid) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  *ret_pid = 0;
  if (fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return false;
  *ret_pid = CLV_MAX(lock.l_pid, 0);
  return true;
}

/* True if the previous holder has deleted run.lock, and perhaps the folder. */
static bool is_lock_file_deleted(int fd) {
  struct stat st;
  return fstat(fd, &st) != 0 || st.st_nlink == 0;
}

clv_code clv_run_folder_lock(const char *run_dir, int *ret_fd, long *ret_pid, clv_err *err) {
  CLV_AUTO(clv_fd_closep) int fd = -1;
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  CLV_TRY(open_lock(run_dir, O_RDWR | O_CREAT, &fd, err));
  if (fcntl(fd, F_SETLK, &lock) != 0) {
    bool is_taken = errno == EAGAIN || errno == EACCES;
    clv_code code = clv_fail(err, CLV_UNAVAILABLE,
                             "%s/" CLV_RUN_LOCK_FILE
                             " cannot be locked: %s; put run.dir on a file system that has locks",
                             run_dir, strerror(errno));
    if (!is_taken) return code;
    is_locked_by_other(fd, ret_pid);
    return clv_fail(err, CLV_PRECONDITION, "%s is in use by another process", run_dir);
  }
  if (is_lock_file_deleted(fd)) return clv_fail(err, CLV_NOT_FOUND, "%s was removed", run_dir);
  *ret_fd = fd;
  fd = -1;
  return CLV_OK;
}

bool clv_run_folder_is_locked(const char *run_dir, long *ret_pid) {
  CLV_AUTO(clv_fd_closep) int fd = -1;
  *ret_pid = 0;
  return open_lock(run_dir, O_RDONLY, &fd, NULL) == CLV_OK && is_locked_by_other(fd, ret_pid);
}
