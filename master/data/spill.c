/* SPDX-License-Identifier: Apache-2.0
 *
 * Files without a name for values that are too many for memory, such as the encoded inputs of a
 * table. A caller appends values (clv_spill_file_append) and then maps the file
 * (clv_spill_file_map). The system deletes such a file when the process ends, however it ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/data/cells_int.h"

struct clv_spill_file {
  char *folder; /* folder of the file, for messages */
  int fd;
  size_t n_bytes; /* number of bytes that were appended */
};

void clv_spill_file_freep(clv_spill_file **s) {
  if (!*s) return;
  if ((*s)->fd >= 0) close((*s)->fd);
  free((*s)->folder);
  free(*s);
  *s = NULL;
}

/* Creates a file in a folder whose file system has no O_TMPFILE, and removes the name of the
 * file. */
static int open_unnamed_file(const char *folder) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/spill-XXXXXX", folder);
  int fd = path.failed ? -1 : mkostemp(path.data, O_CLOEXEC);
  if (fd >= 0) unlink(path.data);
  return fd;
}

clv_code clv_spill_file_new(const char *folder, clv_spill_file **ret, clv_err *err) {
  CLV_AUTO(clv_spill_file_freep) clv_spill_file *s = NULL;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->fd = -1;
  CLV_TRY(clv_strdup(folder, &s->folder, err));
  s->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (s->fd < 0) s->fd = open_unnamed_file(folder);
  if (s->fd < 0)
    return clv_fail(err, CLV_PRECONDITION, "%.200s: no file can be made in it: %s", folder,
                    strerror(errno));
  *ret = clv_steal(&s);
  return CLV_OK;
}

clv_code clv_cells_write_bytes(int fd, const char *path, const void *data, size_t n, clv_err *err) {
  const char *from = data;
  while (n) {
    ssize_t n_written = write(fd, from, n);
    if (n_written < 0 && errno == EINTR) continue;
    if (n_written < 0)
      return clv_fail(err, CLV_EXHAUSTED,
                      "%.200s: cannot be written: %s: a table on disk needs 8 bytes for each cell "
                      "and 4 for each place of the input",
                      path, strerror(errno));
    from += n_written;
    n -= (size_t)n_written;
  }
  return CLV_OK;
}

clv_code clv_spill_file_append(clv_spill_file *s, const void *data, size_t n, clv_err *err) {
  CLV_TRY(clv_cells_write_bytes(s->fd, s->folder, data, n, err));
  s->n_bytes += n;
  return CLV_OK;
}

clv_code clv_spill_file_map(const clv_spill_file *s, clv_dtype dtype, const clv_shape *shape,
                            clv_tensor **ret, clv_err *err) {
  size_t n;
  CLV_TRY(clv_shape_numel(shape, &n, err));
  if (n != s->n_bytes / clv_dtype_size(dtype))
    return clv_fail(err, CLV_INTERNAL, "%.200s: a file of %zu bytes has not %zu values", s->folder,
                    s->n_bytes, n);
  return clv_map_tensor(s->fd, s->folder, 0, dtype, shape, ret, err);
}
