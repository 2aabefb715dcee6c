/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of state: STATE_DIR/states/SHA-256 OF THE IDENTITY/NAME.safetensors. The files on disk
 * count: quotas are checked against the folder, so they hold across restarts. The file `identity`
 * next to them is for the administrator of the disk.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/store/states_int.h"

enum { BLOCK = 4096 };

/* ---- names ----------------------------------------------------------------------------------- */

clv_code clv_state_check_name(const char *name, clv_err *err) {
  if (clv_is_file_name(name)) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the name of a file of state must be 1 to %d characters of [A-Za-z0-9._-], "
                  "without a leading dot",
                  CLV_FILE_NAME);
}

clv_code clv_state_path(const char *dir, const char *name, clv_bytes *ret, clv_err *err) {
  clv_bytes_printf(ret, "%s/%s" CLV_STATE_SUFFIX, dir, name);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

clv_code clv_state_fail_missing(const char *name, clv_err *err) {
  return clv_fail(err, CLV_NOT_FOUND, "this identity has no file of state '%s'", name);
}

static clv_code lock_named_folder(clv_states *s, const char *identity, const char *name,
                                  clv_state_folder *o, clv_err *err) {
  CLV_TRY(clv_state_check_name(name, err));
  return clv_state_folder_begin(&s->folders, identity, o, err);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

uint64_t clv_state_round_to_block(uint64_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }

static uint64_t size_on_disk(const char *path) {
  struct stat at;
  return lstat(path, &at) == 0 && S_ISREG(at.st_mode)
             ? clv_state_round_to_block((uint64_t)at.st_size)
             : 0;
}

static uint64_t bytes_used_in(const char *dir) {
  CLV_AUTO(clv_folder_files_done) clv_folder_files f = clv_folder_files_in(dir);
  uint64_t used = 0;
  while (clv_folder_files_next(&f))
    if (clv_name_ends_with(f.name, CLV_STATE_SUFFIX)) used += size_on_disk(f.path.data);
  return used;
}

/* Checks the quota. A file that the new one replaces does not count. */
static clv_code check_quota(const clv_state_folder *o, const char *path, uint64_t bytes,
                            uint64_t most, clv_err *err) {
  uint64_t used = bytes_used_in(o->dir.data);
  used -= CLV_MIN(used, size_on_disk(path));
  if (used + clv_state_round_to_block(bytes) <= most) return CLV_OK;
  return clv_fail(err, CLV_EXHAUSTED,
                  "%llu bytes more exceed the quota of files of state of this identity: %llu in "
                  "use, the limit is %llu; raise allow[].state_bytes in worker.yaml",
                  (unsigned long long)clv_state_round_to_block(bytes), (unsigned long long)used,
                  (unsigned long long)most);
}

static clv_code make_folder(const clv_state_folder *o, const char *identity, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, line = {0};
  if (mkdir(o->dir.data, 0700) != 0)
    return errno == EEXIST ? CLV_OK : clv_fail_errno(o->dir.data, err);
  clv_bytes_printf(&path, "%s/identity", o->dir.data);
  clv_bytes_printf(&line, "%s\n", identity);
  if (path.failed || line.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_write_durable(path.data, line.data, line.len, 0600, err));
  return clv_file_sync_folder(o->dir.data, err);
}

/* ---- outward --------------------------------------------------------------------------------- */

static void remember_digest(clv_states *s, const char *path, const clv_sha256 *digest) {
  struct stat at;
  if (lstat(path, &at) == 0) clv_known_digest_add(&s->digests, &at, digest);
}

static clv_code write_file(const char *path, const clv_weights_tensor *list, size_t n,
                           clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  CLV_AUTO(clv_weights_writer_freep) clv_weights_writer *w = NULL;
  CLV_TRY(clv_weights_begin(path, list, n, NULL, 0, &w, err));
  CLV_TRY(clv_weights_writer_make_private(w, err));
  for (size_t i = 0; i < n; i++) {
    size_t bytes;
    CLV_TRY(clv_shape_bytes(&list[i].shape, list[i].dtype, &bytes, err));
    CLV_TRY(clv_weights_put(w, i, 0, list[i].data, bytes, err));
  }
  return clv_weights_finish(w, ret_digest, ret_bytes, err);
}

clv_code clv_states_save(clv_states *s, const char *identity, uint64_t most, const char *name,
                         const clv_weights_tensor *list, size_t n, clv_sha256 *ret_digest,
                         uint64_t *ret_bytes, clv_err *err) {
  CLV_AUTO(clv_state_folder_done) clv_state_folder o = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  uint64_t bytes;
  CLV_TRY(clv_weights_size(list, n, &bytes, err));
  CLV_TRY(lock_named_folder(s, identity, name, &o, err));
  CLV_TRY(clv_state_path(o.dir.data, name, &path, err));
  CLV_TRY(check_quota(&o, path.data, bytes, most, err));
  CLV_TRY(make_folder(&o, identity, err));
  CLV_TRY(write_file(path.data, list, n, ret_digest, ret_bytes, err));
  remember_digest(s, path.data, ret_digest);
  return CLV_OK;
}

clv_code clv_states_open_file(clv_states *s, const char *identity, const char *name,
                              size_t max_bytes, clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_state_folder_done) clv_state_folder o = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, label = {0};
  CLV_TRY(lock_named_folder(s, identity, name, &o, err));
  CLV_TRY(clv_state_path(o.dir.data, name, &path, err));
  clv_bytes_printf(&label, "file of state '%s'", name);
  if (label.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_weights_open_as(path.data, label.data, max_bytes, ret, err);
  return code == CLV_NOT_FOUND ? clv_state_fail_missing(name, err) : code;
}

clv_code clv_states_remove(clv_states *s, const char *identity, const char *name, clv_err *err) {
  CLV_AUTO(clv_state_folder_done) clv_state_folder o = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(lock_named_folder(s, identity, name, &o, err));
  CLV_TRY(clv_state_path(o.dir.data, name, &path, err));
  if (unlink(path.data) == 0) return clv_file_sync_folder(path.data, err);
  if (errno == ENOENT || errno == ENOTDIR) return clv_state_fail_missing(name, err);
  return clv_fail_errno(path.data, err);
}

/* Deletes an unfinished file of a process that was killed. */
static void remove_unfinished(clv_states *s, const char *name) {
  CLV_AUTO(clv_state_folder_done) clv_state_folder o = {0};
  if (!clv_state_folder_begin_named(&s->folders, name, &o)) return;
  CLV_AUTO(clv_folder_files_done) clv_folder_files f = clv_folder_files_in(o.dir.data);
  while (clv_folder_files_next(&f))
    if (clv_name_ends_with(f.name, ".tmp")) unlink(f.path.data);
}

static void remove_all_unfinished(clv_states *s) {
  CLV_AUTO(clv_folder_files_done) clv_folder_files f = clv_folder_files_in(s->folders.dir);
  while (clv_folder_files_next(&f)) remove_unfinished(s, f.name);
}

clv_code clv_states_open(const char *state_dir, clv_states **ret, clv_err *err) {
  CLV_AUTO(clv_freep) clv_states *s = NULL;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  CLV_TRY(clv_state_folders_open(state_dir, "states", &s->folders, err));
  pthread_mutex_init(&s->digests.lock, NULL);
  pthread_mutex_init(&s->hashing, NULL);
  remove_all_unfinished(s);
  *ret = clv_steal(&s);
  return CLV_OK;
}

void clv_states_free(clv_states *s) {
  if (!s) return;
  clv_state_folders_done(&s->folders);
  pthread_mutex_destroy(&s->digests.lock);
  pthread_mutex_destroy(&s->hashing);
  free(s);
}
