/* SPDX-License-Identifier: Apache-2.0
 *
 * The safetensors writer. Tensors are ordered by descending element size and then by name, as in
 * the reference implementation. This aligns every tensor to its element, and the bytes depend only
 * on the tensors.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/weights/weights_int.h"

typedef struct item {
  const clv_weights_tensor *t;
  const clv_weights_type *type_row;
  size_t bytes;
} item;

static int compare_items(const void *a, const void *b) {
  const item *x = a, *y = b;
  if (x->type_row->bytes != y->type_row->bytes)
    return x->type_row->bytes > y->type_row->bytes ? -1 : 1;
  return strcmp(x->t->name, y->t->name);
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(const item *const *)a)->t->name, (*(const item *const *)b)->t->name);
}

static clv_code check_item(const clv_weights_tensor *t, item *ret, clv_err *err) {
  size_t bytes = 0;
  if (!t->name || !clv_weights_is_name(t->name) || strcmp(t->name, "__metadata__") == 0)
    return clv_fail(err, CLV_INVALID,
                    "tensor name '%.64s' is not 1..%d bytes of UTF-8 without control characters",
                    t->name ? t->name : "", CLV_WEIGHTS_MAX_NAME);
  if (clv_shape_bytes(&t->shape, t->dtype, &bytes, err) != CLV_OK)
    return clv_err_prefix(err, "tensor '%.64s'", t->name);
  *ret = (item){t, clv_weights_type_of(t->dtype), bytes};
  return CLV_OK;
}

static clv_code check_unique(item *items, size_t n, clv_err *err) {
  CLV_AUTO(clv_freep) item **by_name = NULL;
  CLV_TRY(clv_alloc(n, sizeof *by_name, &by_name, err));
  for (size_t i = 0; i < n; i++) by_name[i] = &items[i];
  qsort(by_name, n, sizeof *by_name, compare_names);
  for (size_t i = 1; i < n; i++)
    if (strcmp(by_name[i - 1]->t->name, by_name[i]->t->name) == 0)
      return clv_fail(err, CLV_INVALID, "tensor name '%.64s' is used twice", by_name[i]->t->name);
  for (size_t i = 1; i < n; i++)
    if (!items[i - 1].bytes && !items[i].bytes)
      return clv_fail(err, CLV_INVALID, "empty tensors '%.64s' and '%.64s' would share an offset",
                      items[i - 1].t->name, items[i].t->name);
  return CLV_OK;
}

static clv_code sort_items(const clv_weights_tensor *tensors, size_t n, item **ret, clv_err *err) {
  CLV_AUTO(clv_freep) item *items = NULL;
  if (n > CLV_WEIGHTS_MAX_TENSORS)
    return clv_fail(err, CLV_EXHAUSTED, "%zu tensors, the limit is %d", n, CLV_WEIGHTS_MAX_TENSORS);
  CLV_TRY(clv_alloc(n, sizeof *items, &items, err));
  for (size_t i = 0; i < n; i++) CLV_TRY(check_item(&tensors[i], &items[i], err));
  qsort(items, n, sizeof *items, compare_items);
  CLV_TRY(check_unique(items, n, err));
  *ret = clv_steal(&items);
  return CLV_OK;
}

static clv_code append_metadata(clv_bytes *h, const clv_kv *meta, size_t n, clv_err *err) {
  clv_bytes_puts(h, "{\"__metadata__\":{\"format\":\"pt\"");
  for (size_t i = 0; i < n; i++) {
    bool is_repeated = strcmp(meta[i].key, "format") == 0;
    for (size_t k = 0; k < i; k++) is_repeated |= strcmp(meta[i].key, meta[k].key) == 0;
    if (is_repeated || !clv_weights_is_utf8(meta[i].key) || !clv_weights_is_utf8(meta[i].value))
      return clv_fail(err, CLV_INVALID, "metadata '%.64s' is %s", meta[i].key,
                      is_repeated ? "given twice" : "not UTF-8");
    clv_bytes_puts(h, ",");
    clv_bytes_add_json(h, meta[i].key);
    clv_bytes_puts(h, ":");
    clv_bytes_add_json(h, meta[i].value);
  }
  clv_bytes_puts(h, "}");
  return CLV_OK;
}

static void append_header_entry(clv_bytes *h, const item *it, size_t *at) {
  clv_bytes_puts(h, ",");
  clv_bytes_add_json(h, it->t->name);
  clv_bytes_printf(h, ":{\"dtype\":\"%s\",\"shape\":[", it->type_row->name);
  for (int d = 0; d < it->t->shape.rank; d++)
    clv_bytes_printf(h, "%s%lld", d ? "," : "", (long long)it->t->shape.dim[d]);
  clv_bytes_printf(h, "],\"data_offsets\":[%zu,%zu]}", *at, *at + it->bytes);
  *at += it->bytes;
}

/* Makes the start of a file: the length of the header in 8 bytes, and the padded header. */
static clv_code make_header(const item *items, size_t n, const clv_kv *meta, size_t n_meta,
                            clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes h = {0};
  size_t at = 0, total = 0;
  for (size_t i = 0; i < n; i++)
    if (!clv_add_size(total, items[i].bytes, &total) || total > INT64_MAX)
      return clv_fail(err, CLV_EXHAUSTED, "the tensors take more than 2^63 bytes");
  clv_bytes_add(&h, "\0\0\0\0\0\0\0\0", 8);
  CLV_TRY(append_metadata(&h, meta, n_meta, err));
  for (size_t i = 0; i < n; i++) append_header_entry(&h, &items[i], &at);
  clv_bytes_puts(&h, "}");
  while (h.len % 8 && !h.failed) clv_bytes_puts(&h, " ");
  if (h.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  uint64_t len = h.len - 8;
  if (len > CLV_WEIGHTS_MAX_HEADER)
    return clv_fail(err, CLV_EXHAUSTED, "header of %llu bytes, the limit is %d",
                    (unsigned long long)len, CLV_WEIGHTS_MAX_HEADER);
  for (int i = 0; i < 8; i++) h.data[i] = (char)(len >> (8 * i));
  *ret = h;
  h = (clv_bytes){0};
  return CLV_OK;
}

clv_code clv_weights_encode(const clv_weights_tensor *tensors, size_t n, const clv_kv *meta,
                            size_t n_meta, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_freep) item *items = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  CLV_TRY(sort_items(tensors, n, &items, err));
  CLV_TRY(make_header(items, n, meta, n_meta, &out, err));
  for (size_t i = 0; i < n; i++) clv_bytes_add(&out, items[i].t->data, items[i].bytes);
  if (out.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_bytes_done(ret);
  *ret = out;
  out = (clv_bytes){0};
  return CLV_OK;
}

clv_code clv_weights_file_size(const clv_weights_tensor *tensors, size_t n, uint64_t *ret_bytes,
                               clv_err *err) {
  CLV_AUTO(clv_freep) item *items = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes header = {0};
  CLV_TRY(sort_items(tensors, n, &items, err));
  CLV_TRY(make_header(items, n, NULL, 0, &header, err));
  *ret_bytes = header.len;
  for (size_t i = 0; i < n; i++) *ret_bytes += items[i].bytes;
  return CLV_OK;
}

/* ---- writing a file in parts ----------------------------------------------------------------- */

/* Place of a tensor's data in the file, and number of its bytes that are written so far. */
typedef struct target {
  uint64_t at;
  size_t bytes, bytes_written;
} target;

struct clv_weights_writer {
  char *path, *tmp_path;
  int fd;               /* descriptor of the file being written; -1: none */
  target *destinations; /* [n] one for each tensor, in the caller's order */
  size_t n;
  uint64_t file_bytes; /* size of the complete file in bytes */
};

void clv_weights_writer_free(clv_weights_writer *w) {
  if (!w) return;
  int saved_errno = errno; /* saves errno for the caller, whose write has failed */
  clv_weights_closefd(&w->fd);
  if (w->tmp_path) unlink(w->tmp_path); /* deletes the unfinished file */
  errno = saved_errno;
  free(w->destinations);
  free(w->path);
  free(w->tmp_path);
  free(w);
}

void clv_weights_writer_freep(clv_weights_writer **w) {
  clv_weights_writer_free(*w);
  *w = NULL;
}

static clv_code write_all_at(const clv_weights_writer *w, const void *data, size_t len, uint64_t at,
                             clv_err *err) {
  for (size_t bytes_written = 0; bytes_written < len;) {
    ssize_t n = pwrite(w->fd, (const char *)data + bytes_written, len - bytes_written,
                       (off_t)(at + bytes_written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return clv_fail(err, CLV_PRECONDITION, "%s: write: %s", w->tmp_path, strerror(errno));
    bytes_written += (size_t)n;
  }
  return CLV_OK;
}

static clv_code assign_destinations(clv_weights_writer *w, const clv_weights_tensor *tensors,
                                    const item *items, size_t n, uint64_t header, clv_err *err) {
  CLV_TRY(clv_alloc(n, sizeof *w->destinations, &w->destinations, err));
  w->n = n;
  w->file_bytes = header;
  for (size_t i = 0; i < n; i++) {
    w->destinations[items[i].t - tensors] = (target){.at = w->file_bytes, .bytes = items[i].bytes};
    w->file_bytes += items[i].bytes;
  }
  return CLV_OK;
}

static clv_code open_file(clv_weights_writer *w, const char *path, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes tmp_path = {0};
  CLV_TRY(clv_strdup(path, &w->path, err));
  clv_bytes_printf(&tmp_path, "%s.tmp", path);
  if (tmp_path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  w->fd = open(tmp_path.data, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (w->fd < 0) return clv_fail(err, CLV_PRECONDITION, "%s: %s", path, strerror(errno));
  w->tmp_path = clv_steal(&tmp_path.data);
  return CLV_OK;
}

clv_code clv_weights_writer_begin(const char *path, const clv_weights_tensor *tensors, size_t n,
                                  const clv_kv *meta, size_t n_meta, clv_weights_writer **ret,
                                  clv_err *err) {
  CLV_AUTO(clv_weights_writer_freep) clv_weights_writer *w = NULL;
  CLV_AUTO(clv_freep) item *items = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes header = {0};
  CLV_TRY(sort_items(tensors, n, &items, err));
  CLV_TRY(make_header(items, n, meta, n_meta, &header, err));
  CLV_TRY(clv_alloc(1, sizeof *w, &w, err));
  w->fd = -1;
  CLV_TRY(assign_destinations(w, tensors, items, n, header.len, err));
  CLV_TRY(open_file(w, path, err));
  CLV_TRY(write_all_at(w, header.data, header.len, 0, err));
  *ret = clv_steal(&w);
  return CLV_OK;
}

clv_code clv_weights_writer_make_private(clv_weights_writer *w, clv_err *err) {
  if (fchmod(w->fd, 0600) == 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "%s: %s", w->tmp_path, strerror(errno));
}

clv_code clv_weights_writer_put(clv_weights_writer *w, size_t i, uint64_t offset, const void *data,
                                size_t len, clv_err *err) {
  target *t = i < w->n ? &w->destinations[i] : NULL;
  if (!t || offset != t->bytes_written || len > t->bytes - t->bytes_written)
    return clv_fail(err, CLV_INVALID, "%s: %zu bytes at %llu of tensor %zu, where others come next",
                    w->path, len, (unsigned long long)offset, i);
  CLV_TRY(write_all_at(w, data, len, t->at + offset, err));
  t->bytes_written += len;
  return CLV_OK;
}

static clv_code sync_parent(const char *path, clv_err *err) {
  CLV_AUTO(clv_freep) char *dir = NULL;
  CLV_TRY(clv_strdup(path, &dir, err));
  char *slash = strrchr(dir, '/');
  if (slash) *(slash == dir ? slash + 1 : slash) = '\0';
  return clv_weights_sync_dir(slash ? dir : ".", err);
}

static clv_code check_complete(const clv_weights_writer *w, clv_err *err) {
  for (size_t i = 0; i < w->n; i++)
    if (w->destinations[i].bytes_written != w->destinations[i].bytes)
      return clv_fail(err, CLV_PRECONDITION, "%s: only %zu of %zu bytes of tensor %zu were written",
                      w->path, w->destinations[i].bytes_written, w->destinations[i].bytes, i);
  return CLV_OK;
}

clv_code clv_weights_writer_sync(clv_weights_writer *w, const clv_cancel_hook *cancel_hook,
                                 clv_sha256 *ret_digest, clv_err *err) {
  CLV_TRY(check_complete(w, err));
  if (fsync(w->fd) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: fsync: %s", w->tmp_path, strerror(errno));
  CLV_TRY(clv_sha256_fd(w->fd, w->file_bytes, cancel_hook, w->tmp_path, ret_digest, err));
  CLV_FAILPOINT("file.synced");
  return CLV_OK;
}

clv_code clv_weights_writer_publish(clv_weights_writer *w, uint64_t *ret_bytes, clv_err *err) {
  if (rename(w->tmp_path, w->path) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: rename: %s", w->path, strerror(errno));
  clv_freep(&w->tmp_path);
  CLV_FAILPOINT("file.renamed");
  CLV_TRY(sync_parent(w->path, err));
  if (ret_bytes) *ret_bytes = w->file_bytes;
  return CLV_OK;
}

clv_code clv_weights_writer_finish(clv_weights_writer *w, clv_sha256 *ret_digest,
                                   uint64_t *ret_bytes, clv_err *err) {
  clv_sha256 digest;
  CLV_TRY(clv_weights_writer_sync(w, NULL, &digest, err));
  CLV_TRY(clv_weights_writer_publish(w, ret_bytes, err));
  if (ret_digest) *ret_digest = digest;
  return CLV_OK;
}

clv_code clv_weights_write_file(const char *path, const clv_weights_tensor *tensors, size_t n,
                                const clv_kv *meta, size_t n_meta, clv_sha256 *ret_digest,
                                uint64_t *ret_bytes, clv_err *err) {
  CLV_AUTO(clv_weights_writer_freep) clv_weights_writer *w = NULL;
  CLV_TRY(clv_weights_writer_begin(path, tensors, n, meta, n_meta, &w, err));
  for (size_t i = 0; i < n; i++)
    CLV_TRY(clv_weights_writer_put(w, i, 0, tensors[i].data, w->destinations[i].bytes, err));
  return clv_weights_writer_finish(w, ret_digest, ret_bytes, err);
}
