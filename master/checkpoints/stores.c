/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of checkpoints in the run folder and at workers, read in ranges of 1 MiB. All readers use
 * clv_stored_reader_next, which reads from either place.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/checkpoints/checkpoints_int.h"

typedef struct store {
  const clv_remote_spec *worker;
  /* connection to the worker; NULL: not dialled yet, or dialling failed */
  cleave_kept_client *client;
  clv_err dial_error; /* why dialling failed; code CLV_OK: dialling has not failed */
} store;

struct clv_stores {
  const clv_session_config *config;
  store *list; /* [n] one for each worker of `config` */
  size_t n;
};

/* ---- connections to workers ------------------------------------------------------------------ */

void clv_stores_free(clv_stores *s) {
  if (!s) return;
  for (size_t i = 0; i < s->n; i++) cleave_kept_close(s->list[i].client);
  free(s->list);
  free(s);
}

void clv_stores_freep(clv_stores **s) {
  clv_stores_free(*s);
  *s = NULL;
}

clv_code clv_stores_new(const clv_session_config *config, clv_stores **ret, clv_err *err) {
  CLV_AUTO(clv_stores_freep) clv_stores *s = NULL;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  s->config = config;
  CLV_TRY(clv_alloc(config->n_workers, sizeof *s->list, &s->list, err));
  s->n = config->n_workers;
  for (size_t i = 0; i < s->n; i++) s->list[i].worker = &config->workers[i];
  *ret = clv_steal(&s);
  return CLV_OK;
}

static store *find_store(const clv_stores *s, const char *keeper_identity) {
  for (size_t i = 0; i < s->n; i++)
    if (strcmp(s->list[i].worker->identity, keeper_identity) == 0) return &s->list[i];
  return NULL;
}

const char *clv_stores_worker_name(const clv_stores *s, const char *keeper_identity) {
  const store *at = find_store(s, keeper_identity);
  return at ? at->worker->name : keeper_identity;
}

/* Finds the worker with the identity `keeper_identity`, and connects to it if this is the first
 * call for it. */
static clv_code find_dialled_store(clv_stores *s, const char *keeper_identity, store **ret,
                                   clv_err *err) {
  store *at = find_store(s, keeper_identity);
  clv_err reason;
  if (!at)
    return clv_fail(err, CLV_NOT_FOUND,
                    "%s has no worker with the identity '%.200s', at which files of the run are: "
                    "add it to workers",
                    s->config->file, keeper_identity);
  *ret = at;
  if (at->client) return CLV_OK;
  if (at->dial_error.code == CLV_OK &&
      cleave_kept_open(s->config, at->worker, 0, &at->client, &reason) != CLV_OK)
    at->dial_error = reason;
  return at->client ? CLV_OK : clv_fail(err, at->dial_error.code, "%s", at->dial_error.text);
}

static clv_code prefix_worker_name(const clv_stores *s, const char *keeper_identity, clv_err *err) {
  return clv_err_prefix(err, "worker '%s'", clv_stores_worker_name(s, keeper_identity));
}

bool clv_stores_is_unreachable_error(const clv_err *err) {
  return err->code == CLV_UNAVAILABLE || err->code == CLV_DEADLINE || err->code == CLV_NOT_FOUND ||
         err->code == CLV_UNAUTHENTICATED || err->code == CLV_DENIED ||
         err->code == CLV_UNIMPLEMENTED;
}

clv_code clv_stores_list_files(clv_stores *s, const char *keeper_identity, const char *name,
                               cleave_kept_files *ret, clv_err *err) {
  store *at;
  clv_code code = find_dialled_store(s, keeper_identity, &at, err);
  if (code == CLV_OK) code = cleave_kept_list(at->client, name, ret, err);
  return code == CLV_OK ? CLV_OK : prefix_worker_name(s, keeper_identity, err);
}

clv_code clv_stores_remove_file(clv_stores *s, const char *keeper_identity, const char *name,
                                clv_err *err) {
  store *at;
  if (find_dialled_store(s, keeper_identity, &at, err) != CLV_OK)
    return prefix_worker_name(s, keeper_identity, err);
  clv_code code = cleave_kept_remove(at->client, name, err);
  return code == CLV_OK || code == CLV_NOT_FOUND ? CLV_OK
                                                 : prefix_worker_name(s, keeper_identity, err);
}

/* ---- files in the run folder ----------------------------------------------------------------- */

void clv_checkpoints_close_fdp(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

static clv_code fail_short_file(const char *label, uint64_t bytes, const clv_manifest_file *f,
                                clv_err *err) {
  return clv_fail(err, CLV_DATA_LOSS, "%s: %llu bytes, the manifest says %llu", label,
                  (unsigned long long)bytes, (unsigned long long)f->bytes);
}

static clv_code open_in_folder(const char *folder, const clv_manifest_file *f, int *ret_fd,
                               clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_AUTO(clv_checkpoints_close_fdp) int fd = -1;
  struct stat st;
  clv_bytes_printf(&path, "%s/%s", folder, f->name);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  fd = open(path.data, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 || fstat(fd, &st) != 0)
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: is in the manifest, but cannot be opened: %s; restore it", path.data,
                    strerror(errno));
  if (!S_ISREG(st.st_mode))
    return clv_fail(err, CLV_DATA_LOSS, "%s: not a regular file", path.data);
  if ((uint64_t)st.st_size != f->bytes)
    return fail_short_file(path.data, (uint64_t)st.st_size, f, err);
  *ret_fd = fd;
  fd = -1;
  return CLV_OK;
}

static clv_code read_file_in_folder(int fd, const clv_manifest_file *f, uint64_t offset, void *data,
                                    size_t len, clv_err *err) {
  for (size_t n_read = 0; n_read < len;) {
    ssize_t n = pread(fd, (char *)data + n_read, len - n_read, (off_t)(offset + n_read));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: read: %s", f->name, strerror(errno));
    if (n == 0) return fail_short_file(f->name, offset + n_read, f, err);
    n_read += (size_t)n;
  }
  return CLV_OK;
}

/* ---- reading a file in ranges ---------------------------------------------------------------- */

clv_code clv_checkpoints_compare_digest(const clv_sha256 *found_digest, const clv_manifest_file *f,
                                        clv_err *err) {
  char found_text[65], listed_text[65];
  if (memcmp(found_digest, &f->sha256, sizeof *found_digest) == 0) return CLV_OK;
  clv_sha256_hex(found_digest, found_text);
  clv_sha256_hex(&f->sha256, listed_text);
  return clv_fail(err, CLV_DATA_LOSS,
                  "%s: damaged: SHA-256 is %.12s..., the manifest says %.12s...: restore the file",
                  f->name, found_text, listed_text);
}

struct clv_stored_reader {
  clv_stores *stores;
  const clv_manifest_file *file;
  int fd;        /* file in the folder of the checkpoint; -1: the file is at a worker */
  store *keeper; /* worker that has the file; NULL: it is in the checkpoint's folder */
  uint64_t kept_file_version;
  uint64_t offset; /* offset of the next range to read */
  /* SHA-256 of the bytes read so far; NULL: reading does not begin at offset 0, or the digest was
   * compared with the manifest already */
  clv_sha256_parts *digest;
  char range_data[CLV_CHECKPOINTS_RANGE_BYTES];
};

void clv_stored_reader_close(clv_stored_reader *r) {
  if (!r) return;
  clv_checkpoints_close_fdp(&r->fd);
  clv_sha256_parts_freep(&r->digest);
  free(r);
}

void clv_stored_reader_closep(clv_stored_reader **r) {
  clv_stored_reader_close(*r);
  *r = NULL;
}

clv_code clv_stored_reader_open(clv_stores *s, const char *folder, const clv_manifest_file *f,
                                uint64_t begin_offset, clv_stored_reader **ret, clv_err *err) {
  CLV_AUTO(clv_stored_reader_closep) clv_stored_reader *r = NULL;
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  r->stores = s;
  r->file = f;
  r->fd = -1;
  r->offset = begin_offset;
  if (!f->keeper_identity)
    CLV_TRY(open_in_folder(folder, f, &r->fd, err));
  else if (find_dialled_store(s, f->keeper_identity, &r->keeper, err) != CLV_OK)
    return prefix_worker_name(s, f->keeper_identity, err);
  if (!begin_offset) CLV_TRY(clv_sha256_begin(&r->digest, err));
  *ret = clv_steal(&r);
  return CLV_OK;
}

static clv_code read_range(clv_stored_reader *r, size_t len, clv_err *err) {
  CLV_TRY(clv_interrupt_check(err));
  if (!r->keeper) return read_file_in_folder(r->fd, r->file, r->offset, r->range_data, len, err);
  clv_code code = cleave_kept_read(r->keeper->client, r->file->kept_file_name, r->offset,
                                   r->range_data, len, &r->kept_file_version, err);
  if (code == CLV_OK) return CLV_OK;
  if (code == CLV_NOT_FOUND || code == CLV_RANGE || code == CLV_ABORTED)
    /* the worker does not have the file, the range or the version any more, so the file is lost */
    err->code = CLV_DATA_LOSS;
  return prefix_worker_name(r->stores, r->file->keeper_identity, err);
}

static clv_code compare_digest(clv_stored_reader *r, clv_err *err) {
  CLV_AUTO(clv_sha256_parts_freep) clv_sha256_parts *digest = clv_steal(&r->digest);
  clv_sha256 found_digest;
  if (!digest) return CLV_OK;
  CLV_TRY(clv_sha256_end(digest, &found_digest, err));
  clv_code code = clv_checkpoints_compare_digest(&found_digest, r->file, err);
  return code == CLV_OK || !r->file->keeper_identity
             ? code
             : prefix_worker_name(r->stores, r->file->keeper_identity, err);
}

clv_code clv_stored_reader_next(clv_stored_reader *r, const void **ret_data, size_t *ret_len,
                                clv_err *err) {
  size_t n = (size_t)CLV_MIN(r->file->bytes - r->offset, (uint64_t)CLV_CHECKPOINTS_RANGE_BYTES);
  *ret_len = 0;
  if (!n) return compare_digest(r, err);
  CLV_TRY(read_range(r, n, err));
  if (r->digest) CLV_TRY(clv_sha256_add(r->digest, r->range_data, n, err));
  r->offset += n;
  *ret_data = r->range_data;
  *ret_len = n;
  return CLV_OK;
}

clv_code clv_stores_check_file(clv_stores *s, const char *folder, const clv_manifest_file *f,
                               clv_err *err) {
  CLV_AUTO(clv_stored_reader_closep) clv_stored_reader *r = NULL;
  const void *data;
  CLV_TRY(clv_stored_reader_open(s, folder, f, 0, &r, err));
  for (size_t n = 1; n;) CLV_TRY(clv_stored_reader_next(r, &data, &n, err));
  return CLV_OK;
}

/* Compares with the manifest the name, size and digest that a worker reports for a file. */
static clv_code compare_with_reported_list(const cleave_kept_files *l, const clv_manifest_file *f,
                                           clv_err *err) {
  if (l->n != 1 || strcmp(l->files[0].name, f->kept_file_name) != 0)
    return clv_fail(err, CLV_DATA_LOSS, "there is no file '%s', which is %s", f->kept_file_name,
                    f->name);
  if (l->files[0].bytes != f->bytes) return fail_short_file(f->name, l->files[0].bytes, f, err);
  if (!l->files[0].has_sha256)
    return clv_fail(err, CLV_BAD_ANSWER, "it reports no digest of '%s'", f->kept_file_name);
  return clv_checkpoints_compare_digest(&l->files[0].sha256, f, err);
}

clv_code clv_stores_check_reported_digest(clv_stores *s, const char *folder,
                                          const clv_manifest_file *f, clv_err *err) {
  CLV_AUTO(cleave_kept_files_done) cleave_kept_files l = {0};
  if (!f->keeper_identity) return clv_stores_check_file(s, folder, f, err);
  CLV_TRY(clv_stores_list_files(s, f->keeper_identity, f->kept_file_name, &l, err));
  clv_code code = compare_with_reported_list(&l, f, err);
  return code == CLV_OK ? CLV_OK : prefix_worker_name(s, f->keeper_identity, err);
}
