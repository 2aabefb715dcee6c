/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: reading, durable writing, folders, and random bytes of the system.
 */
#include "common/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
}

static clv_code read_all(int fd, const char *path, size_t size, clv_bytes *out, clv_err *err) {
  char buf[65536];
  size_t total = 0;
  while (total <= size) {
    ssize_t n = read(fd, buf, CLV_MIN(sizeof buf, size + 1 - total));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: %s", path, strerror(errno));
    if (n == 0) break;
    clv_bytes_add(out, buf, (size_t)n);
    total += (size_t)n;
  }
  if (out->failed) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path);
  if (total > size)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: grew while it was read: try again when no program writes to it", path);
  return CLV_OK;
}

clv_code clv_file_read(const char *path, size_t max_bytes, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%s: %s", path,
                    strerror(errno));
  struct stat st;
  if (fstat(fd, &st) != 0) return clv_fail(err, CLV_INVALID, "%s: %s", path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return clv_fail(err, CLV_INVALID, "%s: not a regular file", path);
  if ((uint64_t)st.st_size > max_bytes)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %lld bytes, the limit is %zu", path,
                    (long long)st.st_size, max_bytes);
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  clv_bytes_add(&out, "", 0);
  CLV_TRY(read_all(fd, path, (size_t)st.st_size, &out, err));
  clv_bytes_done(ret);
  *ret = out;
  out = (clv_bytes){0};
  return CLV_OK;
}

/* Writes all bytes. Errors have the code CLV_PRECONDITION, because CLV_UNAVAILABLE stands for
 * unreachable peers. */
static clv_code write_all(int fd, const char *path, const void *data, size_t len, clv_err *err) {
  const char *p = data;
  while (len) {
    ssize_t n = write(fd, p, len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_PRECONDITION, "%s: write: %s", path, strerror(errno));
    p += n;
    len -= (size_t)n;
  }
  if (fsync(fd) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: fsync: %s", path, strerror(errno));
  return CLV_OK;
}

clv_code clv_file_sync_folder(const char *path, clv_err *err) {
  CLV_AUTO(clv_freep) char *folder = NULL;
  CLV_TRY(clv_strdup(path, &folder, err));
  char *slash = strrchr(folder, '/');
  if (slash) *(slash == folder ? slash + 1 : slash) = '\0';
  CLV_AUTO(close_fd) int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || fsync(fd) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: fsync of its folder: %s", path, strerror(errno));
  return CLV_OK;
}

clv_code clv_file_write_durable(const char *path, const void *data, size_t len, unsigned mode,
                                clv_err *err) {
  return clv_file_write_checked(path, data, len, mode, NULL, NULL, err);
}

clv_code clv_file_write_checked(const char *path, const void *data, size_t len, unsigned mode,
                                clv_file_check_fn *check, void *user, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes tmp = {0};
  clv_bytes_printf(&tmp, "%s.tmp", path);
  if (tmp.failed) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path);
  CLV_AUTO(close_fd)
  int fd = open(tmp.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, (mode_t)mode);
  if (fd < 0) return clv_fail(err, CLV_PRECONDITION, "%s: %s", path, strerror(errno));
  /* set again, because a PATH.tmp left by a crash may have another mode */
  if (fchmod(fd, (mode_t)mode) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: chmod: %s", tmp.data, strerror(errno));
  clv_code code = write_all(fd, tmp.data, data, len, err);
  if (code == CLV_OK && check) code = check(user, err);
  if (code == CLV_OK && rename(tmp.data, path) != 0)
    code = clv_fail(err, CLV_PRECONDITION, "%s: rename: %s", path, strerror(errno));
  if (code != CLV_OK) {
    unlink(tmp.data);
    return code;
  }
  return clv_file_sync_folder(path, err);
}

#define CANNOT_MAKE "the folder %s cannot be made: %s"

/* Creates a folder, unless it exists, so that its name survives a crash. */
static clv_code make_folder(const char *path, clv_err *err) {
  if (mkdir(path, 0755) == 0) return clv_file_sync_folder(path, err);
  if (errno == EEXIST) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, CANNOT_MAKE, path, strerror(errno));
}

clv_code clv_mkdirs(const char *path, clv_err *err) {
  CLV_AUTO(clv_freep) char *copy = NULL;
  CLV_TRY(clv_strdup(path, &copy, err));
  for (char *p = copy + 1; *p; p++) {
    if (*p != '/') continue;
    *p = '\0';
    CLV_TRY(make_folder(copy, err));
    *p = '/';
  }
  return make_folder(copy, err);
}

clv_code clv_random_bytes(void *ret, size_t len, clv_err *err) {
  unsigned char *p = ret;
  while (len) {
    ssize_t n = getrandom(p, len, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_UNAVAILABLE, "getrandom: %s", strerror(errno));
    p += n;
    len -= (size_t)n;
  }
  return CLV_OK;
}

bool clv_is_file_name(const char *name) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  size_t n = strspn(name, allowed);
  return n && n <= CLV_FILE_NAME && !name[n] && name[0] != '.';
}
