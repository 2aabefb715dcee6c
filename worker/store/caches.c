/* SPDX-License-Identifier: Apache-2.0
 *
 * Caches of rows: STATE_DIR/cached/SHA-256 OF THE IDENTITY/SHA-256 OF THE KEY.rows. Quotas and
 * expiry are checked against the files on the disk, so they also hold after a restart of the
 * worker. The modification time of a file is the time of the cache's last use.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "worker/store/cache_int.h"
#include "worker/store/folder_int.h"

#define CACHE_SUFFIX ".rows"

struct clv_caches {
  clv_state_folders folders;
};

/* An open cache. */
typedef struct cache_file {
  int fd;
  clv_bytes path;
  clv_cache_header header;
  int64_t last_used_s; /* time of the last use, seconds since 1970 */
} cache_file;

static void cache_file_done(cache_file *f) {
  if (f->fd >= 0) close(f->fd);
  clv_bytes_done(&f->path);
}

static int64_t now_s(void) { return (int64_t)(clv_wall_ms() / 1000); }

/* True if the last use of the cache and time_s (seconds since 1970) are at least keep_s seconds
 * apart. The last use may be later than time_s, if the clock was set back. */
static bool has_expired(const cache_file *f, int64_t time_s) {
  uint64_t unused_s =
      (uint64_t)(time_s > f->last_used_s ? time_s - f->last_used_s : f->last_used_s - time_s);
  return unused_s >= f->header.keep_s;
}

/* ---- paths of caches ------------------------------------------------------------------------- */

/* Appends the path of a cache to *ret. The file name is the digest of the key, because a master
 * chooses the key. */
static clv_code make_cache_path(const clv_state_folder *o, const clv_sha256 *key, clv_bytes *ret,
                                clv_err *err) {
  clv_sha256 digest;
  char hex[65];
  CLV_TRY(clv_sha256_of(key, sizeof *key, &digest, err));
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(ret, "%s/%s" CACHE_SUFFIX, o->dir.data, hex);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* ---- opening and closing a cache ------------------------------------------------------------- */

static clv_code read_at(const cache_file *f, uint64_t offset, void *data, size_t len,
                        clv_err *err) {
  for (size_t n_read = 0; n_read < len;) {
    ssize_t n = pread(f->fd, (char *)data + n_read, len - n_read, (off_t)(offset + n_read));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail_errno(f->path.data, err);
    if (n == 0) return clv_fail(err, CLV_DATA_LOSS, "the file of the cache has been truncated");
    n_read += (size_t)n;
  }
  return CLV_OK;
}

static clv_code write_at(const cache_file *f, uint64_t offset, const void *data, size_t len,
                         clv_err *err) {
  for (size_t n_written = 0; n_written < len;) {
    ssize_t n =
        pwrite(f->fd, (const char *)data + n_written, len - n_written, (off_t)(offset + n_written));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail_errno(f->path.data, err);
    n_written += (size_t)n;
  }
  return CLV_OK;
}

static clv_code open_file(cache_file *f, clv_err *err) {
  uint8_t header[CLV_CACHE_HEADER_BYTES];
  struct stat st;
  f->fd = open(f->path.data, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (f->fd < 0 && errno == ENOENT) return clv_fail(err, CLV_NOT_FOUND, "no such cache");
  if (f->fd < 0 || fstat(f->fd, &st) != 0) return clv_fail_errno(f->path.data, err);
  CLV_TRY(read_at(f, 0, header, sizeof header, err));
  CLV_TRY(clv_cache_header_parse(header, sizeof header, &f->header, err));
  if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->header.file_bytes)
    return clv_fail(err, CLV_DATA_LOSS,
                    "the file of the cache has another length than its header says");
  f->last_used_s = st.st_mtim.tv_sec;
  return CLV_OK;
}

/* Opens a cache. Deletes it if it is damaged or has expired. CLV_NOT_FOUND: the cache does not
 * exist, or was deleted. */
static clv_code open_cache(const clv_state_folder *o, const clv_sha256 *key, cache_file *f,
                           clv_err *err) {
  CLV_TRY(make_cache_path(o, key, &f->path, err));
  clv_code code = open_file(f, err);
  bool is_damaged = code == CLV_DATA_LOSS;
  if (code != CLV_OK && !is_damaged) return code;
  bool is_right_key = !is_damaged &&
                      memcmp(&f->header.owner, &o->identity, sizeof o->identity) == 0 &&
                      memcmp(&f->header.key, key, sizeof *key) == 0;
  if (is_right_key && !has_expired(f, now_s())) return CLV_OK;
  unlink(f->path.data);
  return clv_fail(err, CLV_NOT_FOUND, "a cache that %s is gone",
                  is_right_key ? "no session has used for its keep time" : "was damaged");
}

static clv_code mark_used(const cache_file *f, clv_err *err) {
  return futimens(f->fd, NULL) == 0 ? CLV_OK : clv_fail_errno(f->path.data, err);
}

/* ---- quotas of identities -------------------------------------------------------------------- */

/* Number of caches of an identity on the disk, and the bytes of their files. */
typedef struct cache_usage {
  uint64_t bytes;
  uint32_t n_caches;
} cache_usage;

static cache_usage measure_disk_usage(const char *dir) {
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(dir);
  cache_usage u = {0};
  struct stat st;
  while (clv_folder_files_next(&f)) {
    if (!clv_name_has_ending(f.name, CACHE_SUFFIX) || lstat(f.path.data, &st) != 0 ||
        !S_ISREG(st.st_mode))
      continue;
    u.bytes += (uint64_t)st.st_size;
    u.n_caches++;
  }
  return u;
}

static clv_code check_quota(const clv_state_folder *o, uint64_t bytes, uint64_t max_bytes,
                            clv_err *err) {
  cache_usage u = measure_disk_usage(o->dir.data);
  if (u.n_caches >= CLV_MAX_CACHES)
    return clv_fail(err, CLV_EXHAUSTED, "this identity has %u caches already; at most %d",
                    u.n_caches, CLV_MAX_CACHES);
  if (u.bytes <= max_bytes && bytes <= max_bytes - u.bytes) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "%llu bytes more exceed the quota of caches of this identity: %llu in use, the "
                  "limit is %llu; raise allow[].cache_bytes in worker.yaml",
                  (unsigned long long)bytes, (unsigned long long)u.bytes,
                  (unsigned long long)max_bytes);
}

/* ---- making a cache -------------------------------------------------------------------------- */

/* Allocates the disk space for all rows of a cache, if the file system can, so that a full disk is
 * reported before the first row is stored. */
static clv_code allocate_file(const cache_file *f, clv_err *err) {
  if (fallocate(f->fd, 0, 0, (off_t)f->header.file_bytes) == 0) return CLV_OK;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return clv_fail_errno(f->path.data, err);
  return ftruncate(f->fd, (off_t)f->header.file_bytes) == 0 ? CLV_OK
                                                            : clv_fail_errno(f->path.data, err);
}

static clv_code write_new_file(const cache_file *f, const char *path, clv_err *err) {
  uint8_t header[CLV_CACHE_HEADER_BYTES];
  clv_cache_header_write(&f->header, header);
  CLV_TRY(allocate_file(f, err));
  CLV_TRY(write_at(f, 0, header, sizeof header, err));
  return rename(f->path.data, path) == 0 ? CLV_OK : clv_fail_errno(path, err);
}

static clv_code make_cache(const clv_state_folder *o, cache_file *f, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(make_cache_path(o, &f->header.key, &path, err));
  if (mkdir(o->dir.data, 0700) != 0 && errno != EEXIST) return clv_fail_errno(o->dir.data, err);
  clv_bytes_done(&f->path);
  clv_bytes_printf(&f->path, "%s.tmp", path.data);
  if (f->path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  f->fd = open(f->path.data, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (f->fd < 0) return clv_fail_errno(f->path.data, err);
  clv_code code = write_new_file(f, path.data, err);
  if (code == CLV_OK) return CLV_OK;
  unlink(f->path.data);
  (void)rmdir(o->dir.data); /* deletes the folder only if it is empty */
  return code;
}

static clv_code make_header(const clv_state_folder *o, const clv_cache *c, const clv_tensor *values,
                            clv_cache_header *ret, clv_err *err) {
  *ret = (clv_cache_header){.key = c->key,
                            .owner = o->identity,
                            .n_records = c->n_records,
                            .keep_s = c->keep_s,
                            .dtype = values->dtype,
                            .row_shape.rank = values->shape.rank - 1};
  for (int i = 0; i < ret->row_shape.rank; i++) ret->row_shape.dim[i] = values->shape.dim[i + 1];
  return clv_cache_header_derive(ret, err);
}

static bool has_same_layout(const clv_cache_header *a, const clv_cache_header *b) {
  return a->n_records == b->n_records && a->dtype == b->dtype &&
         clv_shape_equal(&a->row_shape, &b->row_shape);
}

static clv_code fail_other_layout(const clv_cache_header *given_header,
                                  const clv_cache_header *stored_header, clv_err *err) {
  char given_shape_text[160], stored_shape_text[160];
  return clv_fail(
      err, CLV_INVALID,
      "rows are %s %s of %llu records, but the cache stores %s %s of %llu records: "
      "delete the cache or use another key",
      clv_dtype_name(given_header->dtype),
      clv_shape_format(&given_header->row_shape, given_shape_text, sizeof given_shape_text),
      (unsigned long long)given_header->n_records, clv_dtype_name(stored_header->dtype),
      clv_shape_format(&stored_header->row_shape, stored_shape_text, sizeof stored_shape_text),
      (unsigned long long)stored_header->n_records);
}

/* Opens the cache that `c` names. If it does not exist, makes it for rows like those of
 * `values`. */
static clv_code open_or_make_cache(const clv_state_folder *o, const clv_cache *c,
                                   uint64_t max_bytes, const clv_tensor *values, cache_file *f,
                                   clv_err *err) {
  clv_cache_header expected_header;
  clv_err why;
  CLV_TRY(make_header(o, c, values, &expected_header, err));
  clv_code code = open_cache(o, &c->key, f, &why);
  if (code == CLV_OK && has_same_layout(&f->header, &expected_header)) return CLV_OK;
  if (code == CLV_OK) return fail_other_layout(&expected_header, &f->header, err);
  if (code != CLV_NOT_FOUND) return clv_fail(err, code, "%s", why.text);
  cache_file_done(f);
  *f = (cache_file){.fd = -1, .header = expected_header};
  CLV_TRY(check_quota(o, expected_header.file_bytes, max_bytes, err));
  return make_cache(o, f, err);
}

/* ---- rows of a cache ------------------------------------------------------------------------- */

/* Status of a row in the file. */
typedef struct row_status {
  uint32_t is_stored; /* 1: the row is stored; 0: the row is not stored */
  uint32_t crc32c;    /* checksum of the row's number and data */
} row_status;

_Static_assert(sizeof(row_status) == CLV_CACHE_ROW_STATUS_BYTES, "as it lies in the file");

static row_status compute_row_status(const cache_file *f, int64_t row, const void *data) {
  uint32_t crc = clv_crc32c(0, &row, sizeof row);
  return (row_status){1, clv_crc32c(crc, data, (size_t)f->header.row_bytes)};
}

static uint64_t row_status_offset(const cache_file *f, int64_t row) {
  return f->header.row_statuses_offset + CLV_CACHE_ROW_STATUS_BYTES * (uint64_t)row;
}

static uint64_t row_offset(const cache_file *f, int64_t row) {
  return f->header.rows_offset + f->header.row_bytes * (uint64_t)row;
}

/* Checks record numbers. An error names a record by its index in the batch. */
static clv_code check_rows(const clv_cache *c, const int64_t *rows, size_t n, clv_err *err) {
  for (size_t i = 0; i < n; i++)
    if (rows[i] < 0 || (uint64_t)rows[i] >= c->n_records)
      return clv_fail(err, CLV_INVALID, "the row number of sample %zu is outside 0..%llu", i,
                      (unsigned long long)c->n_records - 1);
  return CLV_OK;
}

static clv_code put_row(const cache_file *f, int64_t row, const void *data, clv_err *err) {
  row_status m = compute_row_status(f, row, data);
  CLV_TRY(write_at(f, row_offset(f, row), data, (size_t)f->header.row_bytes, err));
  return write_at(f, row_status_offset(f, row), &m, sizeof m, err);
}

static clv_code get_row(const cache_file *f, int64_t row, int64_t sample_index, void *data,
                        clv_err *err) {
  row_status m, no_status = {0};
  CLV_TRY(read_at(f, row_status_offset(f, row), &m, sizeof m, err));
  if (m.is_stored != 1)
    return clv_fail(err, CLV_NOT_FOUND, "the row of sample %lld is not in the cache",
                    (long long)sample_index);
  CLV_TRY(read_at(f, row_offset(f, row), data, (size_t)f->header.row_bytes, err));
  if (m.crc32c == compute_row_status(f, row, data).crc32c) return CLV_OK;
  CLV_TRY(write_at(f, row_status_offset(f, row), &no_status, sizeof no_status, err));
  return clv_fail(
      err, CLV_DATA_LOSS,
      "the row of sample %lld is damaged in the cache (its CRC does not fit) and was dropped",
      (long long)sample_index);
}

/* ---- storing and reading rows ---------------------------------------------------------------- */

clv_code clv_caches_put(clv_caches *c, const char *identity, uint64_t max_bytes,
                        const clv_cache *cache, const int64_t *rows, const clv_tensor *values,
                        clv_err *err) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  CLV_AUTO(cache_file_done) cache_file f = {.fd = -1};
  size_t n = values->shape.rank ? (size_t)values->shape.dim[0] : 0;
  if (!n || !values->bytes)
    return clv_fail(err, CLV_INVALID, "there are no rows to store in the cache");
  CLV_TRY(check_rows(cache, rows, n, err));
  CLV_TRY(clv_state_folder_lock(&c->folders, identity, &o, err));
  CLV_TRY(open_or_make_cache(&o, cache, max_bytes, values, &f, err));
  const char *data = values->data;
  for (size_t i = 0; i < n; i++) CLV_TRY(put_row(&f, rows[i], data + i * f.header.row_bytes, err));
  return mark_used(&f, err);
}

clv_code clv_caches_get_rows_shape(clv_caches *c, const char *identity, const clv_cache *cache,
                                   size_t n, clv_dtype *ret_dtype, clv_shape *ret_shape,
                                   clv_err *err) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  CLV_AUTO(cache_file_done) cache_file f = {.fd = -1};
  CLV_TRY(clv_state_folder_lock(&c->folders, identity, &o, err));
  CLV_TRY(open_cache(&o, &cache->key, &f, err));
  *ret_dtype = f.header.dtype;
  *ret_shape = (clv_shape){.rank = f.header.row_shape.rank + 1, .dim = {(int64_t)n}};
  for (int i = 0; i < f.header.row_shape.rank; i++)
    ret_shape->dim[i + 1] = f.header.row_shape.dim[i];
  return CLV_OK;
}

clv_code clv_caches_get(clv_caches *c, const char *identity, const clv_cache *cache,
                        const int64_t *rows, clv_tensor *values, clv_err *err) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  CLV_AUTO(cache_file_done) cache_file f = {.fd = -1};
  clv_cache_header expected_header;
  CLV_TRY(check_rows(cache, rows, (size_t)values->shape.dim[0], err));
  CLV_TRY(clv_state_folder_lock(&c->folders, identity, &o, err));
  CLV_TRY(make_header(&o, cache, values, &expected_header, err));
  CLV_TRY(open_cache(&o, &cache->key, &f, err));
  if (!has_same_layout(&f.header, &expected_header))
    return fail_other_layout(&expected_header, &f.header, err);
  char *data = values->data;
  for (int64_t i = 0; i < values->shape.dim[0]; i++)
    CLV_TRY(get_row(&f, rows[i], i, data + (size_t)i * f.header.row_bytes, err));
  return mark_used(&f, err);
}

/* ---- listing and deleting caches ------------------------------------------------------------- */

static clv_code count_rows(const cache_file *f, uint64_t *ret, clv_err *err) {
  row_status statuses[512];
  *ret = 0;
  for (uint64_t first_record = 0; first_record < f->header.n_records;
       first_record += CLV_COUNT(statuses)) {
    size_t n = (size_t)CLV_MIN(f->header.n_records - first_record, (uint64_t)CLV_COUNT(statuses));
    CLV_TRY(read_at(f, row_status_offset(f, (int64_t)first_record), statuses, n * sizeof *statuses,
                    err));
    for (size_t i = 0; i < n; i++) *ret += statuses[i].is_stored == 1;
  }
  return CLV_OK;
}

/* A listing of the caches of an identity, while list_file adds entries. */
typedef struct listing {
  const clv_sha256 *key; /* NULL: all keys */
  bool deletes_listed;   /* each listed cache is deleted */
  clv_cache_status *entries;
  uint32_t n_entries;
} listing;

static void list_file(listing *l, const char *path, const char *name) {
  CLV_AUTO(cache_file_done) cache_file f = {.fd = -1};
  clv_err err;
  clv_bytes_printf(&f.path, "%s", path);
  if (!clv_name_has_ending(name, CACHE_SUFFIX) || f.path.failed || l->n_entries == CLV_MAX_CACHES)
    return;
  clv_code code = open_file(&f, &err);
  bool is_listed =
      code == CLV_OK && (!l->key || memcmp(&f.header.key, l->key, sizeof *l->key) == 0);
  if (l->deletes_listed && (is_listed || (!l->key && code == CLV_DATA_LOSS))) unlink(path);
  if (!is_listed || has_expired(&f, now_s())) return;
  clv_cache_status *s = &l->entries[l->n_entries];
  *s = (clv_cache_status){.key = f.header.key,
                          .n_records = f.header.n_records,
                          .row_bytes = f.header.row_bytes,
                          .disk_bytes = f.header.file_bytes,
                          .unused_s = (uint64_t)CLV_MAX(now_s() - f.last_used_s, (int64_t)0)};
  s->expires_s = f.header.keep_s - CLV_MIN(s->unused_s, f.header.keep_s);
  if (count_rows(&f, &s->n_rows, &err) == CLV_OK) l->n_entries++;
}

clv_code clv_caches_list(clv_caches *c, const char *identity, const clv_sha256 *key,
                         bool deletes_listed, clv_cache_status ret[CLV_MAX_CACHES], uint32_t *ret_n,
                         clv_err *err) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  listing l = {.key = key, .deletes_listed = deletes_listed, .entries = ret};
  CLV_TRY(clv_state_folder_lock(&c->folders, identity, &o, err));
  CLV_AUTO(clv_folder_files_close) clv_folder_files files = clv_folder_files_open(o.dir.data);
  while (clv_folder_files_next(&files)) list_file(&l, files.path.data, files.name);
  if (deletes_listed) (void)rmdir(o.dir.data); /* deletes the folder only if it is empty */
  *ret_n = l.n_entries;
  return CLV_OK;
}

/* Deletes a file if it is an expired or damaged cache, or an unfinished file of a killed process.
 * True: the file was deleted. */
static bool sweep_file(const char *path, const char *name, int64_t time_s) {
  CLV_AUTO(cache_file_done) cache_file f = {.fd = -1};
  clv_err err;
  clv_bytes_printf(&f.path, "%s", path);
  if (f.path.failed) return false;
  clv_code code = clv_name_has_ending(name, CACHE_SUFFIX) ? open_file(&f, &err) : CLV_DATA_LOSS;
  bool is_kept = code == CLV_OK ? !has_expired(&f, time_s) : code != CLV_DATA_LOSS;
  return !is_kept && unlink(path) == 0;
}

/* Deletes the files in the identity's folder `name` that sweep_file finds expired or damaged.
 * Returns the number of deleted files. */
static uint32_t sweep_folder(clv_caches *c, const char *name, int64_t time_s) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  uint32_t n_deleted = 0;
  if (!clv_state_folder_lock_named(&c->folders, name, &o)) return 0;
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(o.dir.data);
  while (clv_folder_files_next(&f)) n_deleted += sweep_file(f.path.data, f.name, time_s);
  (void)rmdir(o.dir.data); /* deletes the folder only if it is empty */
  return n_deleted;
}

uint32_t clv_caches_evict_expired(clv_caches *c, int64_t time_s) {
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(c->folders.dir);
  uint32_t n_deleted = 0;
  while (clv_folder_files_next(&f)) n_deleted += sweep_folder(c, f.name, time_s);
  return n_deleted;
}

clv_code clv_caches_open(const char *state_dir, clv_caches **ret, clv_err *err) {
  CLV_AUTO(clv_freep) clv_caches *c = NULL;
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  CLV_TRY(clv_state_folders_open(state_dir, "cached", &c->folders, err));
  (void)clv_caches_evict_expired(c, now_s());
  *ret = clv_steal(&c);
  return CLV_OK;
}

void clv_caches_free(clv_caches *c) {
  if (!c) return;
  clv_state_folders_done(&c->folders);
  free(c);
}
