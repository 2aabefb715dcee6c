/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists and reads files of state for the identity that wrote them. A new version of a file replaces
 * the old one by a rename. So an open descriptor keeps showing the old version, and no lock is held
 * while a file is read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/store/states_int.h"

/* ---- an open file of state ------------------------------------------------------------------- */

/* An open file of state. */
typedef struct state_file {
  int fd;
  struct stat stat;
  clv_bytes path;
} state_file;

static void state_file_done(state_file *f) {
  if (f->fd >= 0) close(f->fd);
  clv_bytes_done(&f->path);
}

static clv_code open_file(clv_states *s, const char *identity, const char *name, state_file *f,
                          clv_err *err) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  CLV_TRY(clv_state_check_name(name, err));
  CLV_TRY(clv_state_folder_lock(&s->folders, identity, &o, err));
  CLV_TRY(clv_state_make_path(o.dir.data, name, &f->path, err));
  f->fd = open(f->path.data, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (f->fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return clv_state_fail_missing(name, err);
  if (f->fd < 0 || fstat(f->fd, &f->stat) != 0)
    return clv_state_fail_disk(f->path.data, name, errno, err);
  return S_ISREG(f->stat.st_mode) ? CLV_OK : clv_state_fail_missing(name, err);
}

static void fill_status(clv_states *s, const char *name, const struct stat *st,
                        clv_state_status *ret) {
  int64_t age_s = (int64_t)(clv_wall_ms() / 1000) - st->st_mtim.tv_sec;
  *ret = (clv_state_status){.bytes = (uint64_t)st->st_size,
                            .age_s = (uint64_t)CLV_MAX(age_s, (int64_t)0),
                            .version = clv_file_version_number(st)};
  snprintf(ret->name, sizeof ret->name, "%s", name);
  ret->has_sha256 = clv_known_digest_find(&s->digests, st, &ret->sha256);
}

/* ---- listing files of state ------------------------------------------------------------------ */

void clv_state_list_done(clv_state_list *l) {
  if (!l) return;
  free(l->files);
  *l = (clv_state_list){0};
}

static int compare_names(const void *a, const void *b) {
  return strcmp(((const clv_state_status *)a)->name, ((const clv_state_status *)b)->name);
}

/* Sorts the list by name, and drops all files after the first CLV_MAX_LISTED_STATES. */
static void sort_and_truncate(clv_state_list *l) {
  qsort(l->files, l->n, sizeof *l->files, compare_names);
  l->has_more |= l->n > CLV_MAX_LISTED_STATES;
  l->n = CLV_MIN(l->n, (uint32_t)CLV_MAX_LISTED_STATES);
}

static void list_file(clv_states *s, const clv_folder_files *f, const char *wanted_name,
                      const char *after_name, clv_state_list *l) {
  char listed_name[CLV_FILE_NAME + 1];
  struct stat st;
  if (!clv_state_parse_file_name(f->name, listed_name) || lstat(f->path.data, &st) != 0 ||
      !S_ISREG(st.st_mode))
    return;
  l->used_bytes += clv_state_round_to_block((uint64_t)st.st_size);
  if (wanted_name[0] ? strcmp(listed_name, wanted_name) != 0 : strcmp(listed_name, after_name) <= 0)
    return;
  fill_status(s, listed_name, &st, &l->files[l->n++]);
  if (l->n == 2 * CLV_MAX_LISTED_STATES) sort_and_truncate(l);
}

clv_code clv_states_list(clv_states *s, const char *identity, const char *name,
                         const char *after_name, clv_state_list *ret, clv_err *err) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  CLV_AUTO(clv_state_list_done) clv_state_list l = {0};
  if (name[0]) CLV_TRY(clv_state_check_name(name, err));
  CLV_TRY(clv_alloc((size_t)2 * CLV_MAX_LISTED_STATES, sizeof *l.files, &l.files, err));
  CLV_TRY(clv_state_folder_lock(&s->folders, identity, &o, err));
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(o.dir.data);
  while (clv_folder_files_next(&f)) list_file(s, &f, name, after_name, &l);
  sort_and_truncate(&l);
  *ret = l;
  l = (clv_state_list){0};
  return CLV_OK;
}

static void add_folder_usage(const char *path, clv_state_usage *u) {
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(path);
  char name[CLV_FILE_NAME + 1];
  struct stat st;
  while (clv_folder_files_next(&f)) {
    if (!clv_state_parse_file_name(f.name, name) || lstat(f.path.data, &st) != 0) continue;
    u->n_files++;
    u->bytes += (uint64_t)st.st_size;
  }
}

clv_state_usage clv_states_usage(const clv_states *s) {
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(s->folders.dir);
  clv_state_usage u = {0};
  while (clv_folder_files_next(&f)) add_folder_usage(f.path.data, &u);
  return u;
}

clv_code clv_states_compute_digest(clv_states *s, const char *identity, const char *name,
                                   const clv_cancel_hook *cancel_hook, clv_sha256 *ret,
                                   clv_err *err) {
  CLV_AUTO(state_file_done) state_file f = {.fd = -1};
  char label[CLV_FILE_NAME + 20];
  uint64_t bytes;
  CLV_TRY(open_file(s, identity, name, &f, err));
  snprintf(label, sizeof label, "file of state '%s'", name);
  if (pthread_mutex_trylock(&s->hashing_lock) != 0)
    return clv_fail(err, CLV_EXHAUSTED,
                    "%s: the worker is hashing another file; try again in a few seconds", label);
  clv_code code =
      clv_known_digest_find_or_hash(&s->digests, f.fd, cancel_hook, label, ret, &bytes, err);
  pthread_mutex_unlock(&s->hashing_lock);
  return code;
}

/* ---- reading a range of a file --------------------------------------------------------------- */

static clv_code fail_changed(const char *name, clv_err *err) {
  return clv_fail(err, CLV_ABORTED,
                  "file of state '%s' has changed since it was read first: read it again from its "
                  "beginning",
                  name);
}

static clv_code check_range(const state_file *f, const char *name, uint64_t offset, size_t length,
                            clv_err *err) {
  uint64_t file_bytes = (uint64_t)f->stat.st_size;
  if (offset <= file_bytes && length <= file_bytes - offset) return CLV_OK;
  return clv_fail(err, CLV_RANGE,
                  "file of state '%s' has %llu bytes: bytes %llu to %llu end behind it", name,
                  (unsigned long long)file_bytes, (unsigned long long)offset,
                  (unsigned long long)(offset + length));
}

static clv_code read_range(const state_file *f, const char *name, uint64_t offset, char *to,
                           size_t len, clv_err *err) {
  for (size_t n_read = 0; n_read < len;) {
    ssize_t n = pread(f->fd, to + n_read, len - n_read, (off_t)(offset + n_read));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_state_fail_disk(f->path.data, name, errno, err);
    if (n == 0) return fail_changed(name, err);
    n_read += (size_t)n;
  }
  return CLV_OK;
}

clv_code clv_states_read(clv_states *s, const char *identity, const char *name, uint64_t offset,
                         size_t length, uint64_t version, clv_bytes *ret,
                         clv_state_status *ret_status, clv_err *err) {
  CLV_AUTO(state_file_done) state_file f = {.fd = -1};
  CLV_AUTO(clv_freep) char *data = NULL;
  struct stat stat_after;
  CLV_TRY(open_file(s, identity, name, &f, err));
  fill_status(s, name, &f.stat, ret_status);
  if (version && version != ret_status->version) return fail_changed(name, err);
  CLV_TRY(check_range(&f, name, offset, length, err));
  CLV_TRY(clv_alloc(length, 1, &data, err));
  CLV_TRY(read_range(&f, name, offset, data, length, err));
  if (fstat(f.fd, &stat_after) != 0) return clv_state_fail_disk(f.path.data, name, errno, err);
  /* Compare only the size and the time of the last write. The version number depends on the ctime
   * too, and the ctime changes when another file is renamed over this one, although no byte of this
   * file changes. */
  if (stat_after.st_size != f.stat.st_size || stat_after.st_mtim.tv_sec != f.stat.st_mtim.tv_sec ||
      stat_after.st_mtim.tv_nsec != f.stat.st_mtim.tv_nsec)
    return fail_changed(name, err);
  *ret = (clv_bytes){.data = clv_steal(&data), .len = length, .cap = length};
  return CLV_OK;
}
