/* SPDX-License-Identifier: Apache-2.0
 *
 * Implements clv_sink, a file that stays readable when the disk is full (report_int.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/report/report_int.h"

static clv_code open_file(clv_sink *s, clv_sink_start start, clv_err *err) {
  static const int flags[] = {
      [CLV_SINK_APPEND] = 0, [CLV_SINK_EMPTY] = O_TRUNC, [CLV_SINK_NEW] = O_EXCL};
  struct stat st;
  s->fd =
      open(s->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags[start], 0644);
  if (s->fd < 0)
    return clv_fail(err, errno == EEXIST ? CLV_EXISTS : CLV_UNAVAILABLE, "%s: %s", s->path,
                    strerror(errno));
  if (fstat(s->fd, &st) != 0 || !S_ISREG(st.st_mode))
    return clv_fail(err, CLV_INVALID, "%s: not a regular file", s->path);
  s->complete_bytes = st.st_size;
  return CLV_OK;
}

clv_code clv_sink_open(char *path, clv_sink_start start, clv_sink *ret, clv_err *err) {
  clv_sink s = {.fd = -1, .path = path};
  clv_code code = path ? open_file(&s, start, err) : clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (code == CLV_OK)
    *ret = s;
  else
    clv_sink_close(&s);
  return code;
}

/* Writes all of `data` at offset `at` of the file. Returns false, with errno set, on failure. */
static bool write_all_at(int fd, const char *data, size_t len, off_t at) {
  while (len) {
    ssize_t n = pwrite(fd, data, len, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    len -= (size_t)n;
    at += n;
  }
  return true;
}

void clv_sink_write(clv_sink *s, const void *data, size_t len) {
  if (s->fd < 0 || !len) return;
  if (write_all_at(s->fd, data, len, s->complete_bytes)) {
    s->complete_bytes += (off_t)len;
    return;
  }
  int write_errno = errno;
  /* closes the file, because a partial piece stays in it */
  if (ftruncate(s->fd, s->complete_bytes) != 0) {
    close(s->fd);
    s->fd = -1;
  }
  if (!s->has_warned)
    clv_notify(s->notifier,
               "%s: write failed: %s; the run continues and drops the lines that cannot be written",
               s->path, strerror(write_errno));
  s->has_warned = true;
}

void clv_sink_close(clv_sink *s) {
  if (!s) return;
  if (s->fd >= 0) close(s->fd);
  free(s->path);
  *s = (clv_sink){.fd = -1};
}
