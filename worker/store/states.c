/* SPDX-License-Identifier: Apache-2.0
 *
 * Saves, loads and removes files of state: STATE_DIR/states/SHA-256 OF THE
 * IDENTITY/NAME.safetensors. Quotas are checked against the files in the folder, so they also hold
 * after a restart of the worker. The file `identity` in each folder tells an administrator whose
 * folder it is.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/store/states_int.h"

/* largest number of bytes that are written between two checks of the cancellation hook */
enum { MAX_PIECE_BYTES = 1 << 20 };

/* ---- saving a file of state ------------------------------------------------------------------ */

/* Makes the folder of an identity with the file `identity` in it, unless the folder exists. */
static clv_code make_folder(const clv_state_folder *o, const char *identity, const char *name,
                            clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, line = {0};
  if (mkdir(o->dir.data, 0700) != 0)
    return errno == EEXIST ? CLV_OK : clv_state_fail_disk(o->dir.data, name, errno, err);
  clv_bytes_printf(&path, "%s/identity", o->dir.data);
  clv_bytes_printf(&line, "%s\n", identity);
  if (path.failed || line.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (clv_file_write_durable(path.data, line.data, line.len, 0600, err) == CLV_OK &&
      clv_file_sync_folder(o->dir.data, err) == CLV_OK)
    return CLV_OK;
  int error = errno;
  unlink(path.data);
  (void)rmdir(o->dir.data);
  return clv_state_fail_disk(o->dir.data, name, error, err);
}

static void remember_digest(clv_states *s, const char *path, const clv_sha256 *digest) {
  struct stat st;
  if (lstat(path, &st) == 0) clv_known_digest_add(&s->digests, &st, digest);
}

/* Writes the data of all tensors in pieces, and checks the cancellation hook before each piece. */
static clv_code write_tensors(const clv_state_save_request *r, clv_weights_writer *w,
                              clv_err *err) {
  for (size_t i = 0; i < r->n; i++) {
    size_t bytes;
    CLV_TRY(clv_shape_bytes(&r->list[i].shape, r->list[i].dtype, &bytes, err));
    for (size_t at = 0; at < bytes; at += MAX_PIECE_BYTES) {
      CLV_TRY(clv_cancel_hook_check(r->cancel_hook, err));
      CLV_TRY(clv_weights_writer_put(w, i, at, (const char *)r->list[i].data + at,
                                     CLV_MIN(bytes - at, (size_t)MAX_PIECE_BYTES), err));
    }
  }
  if (r->on_written) r->on_written(r->user);
  return CLV_OK;
}

/* Writes a file of state and publishes it under its name. If the disk fails, errno tells how. */
static clv_code write_file(const char *path, const clv_state_save_request *r,
                           clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  CLV_AUTO(clv_weights_writer_freep) clv_weights_writer *w = NULL;
  CLV_TRY(clv_weights_writer_begin(path, r->list, r->n, NULL, 0, &w, err));
  CLV_TRY(clv_weights_writer_make_private(w, err));
  CLV_TRY(write_tensors(r, w, err));
  CLV_TRY(clv_weights_writer_sync(w, r->cancel_hook, ret_digest, err));
  CLV_TRY(clv_cancel_hook_check(r->cancel_hook, err));
  return clv_weights_writer_publish(w, ret_bytes, err);
}

/* Reserves quota for the file, and makes the folder of the identity if it does not exist. */
static clv_code reserve_and_make_folder(clv_states *s, const clv_state_save_request *r,
                                        clv_state_claim *c, clv_bytes *ret_path, clv_err *err) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  uint64_t bytes;
  CLV_TRY(clv_weights_file_size(r->list, r->n, &bytes, err));
  CLV_TRY(clv_state_folder_lock(&s->folders, c->identity, &o, err));
  CLV_TRY(clv_state_make_path(o.dir.data, c->name, ret_path, err));
  CLV_TRY(clv_state_reserve_bytes(s, &o, c, bytes, r->max_bytes, err));
  return make_folder(&o, c->identity, c->name, err);
}

static clv_code add_sentence(clv_err *err, const char *sentence, clv_code code) {
  size_t len = strlen(err->text);
  snprintf(err->text + len, sizeof err->text - len, "%s", sentence);
  return code;
}

clv_code clv_states_save_claimed(clv_states *s, clv_state_claim *c, const clv_state_save_request *r,
                                 clv_sha256 *ret_digest, uint64_t *ret_bytes, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(clv_state_check_name(c->name, err));
  CLV_TRY(clv_state_await_claims(s, c->identity, c->name, c, r->cancel_hook, err));
  CLV_TRY(reserve_and_make_folder(s, r, c, &path, err));
  errno = 0;
  clv_code code = write_file(path.data, r, ret_digest, ret_bytes, err);
  if (code == CLV_OK) remember_digest(s, path.data, ret_digest);
  if (code != CLV_UNAVAILABLE && code != CLV_PRECONDITION && code != CLV_DATA_LOSS) return code;
  code = clv_state_fail_disk(path.data, c->name, errno ? errno : EIO, err);
  return add_sentence(err, ". An earlier file of this name is still there and complete", code);
}

clv_code clv_states_save(clv_states *s, const char *identity, const char *name,
                         const clv_state_save_request *r, clv_sha256 *ret_digest,
                         uint64_t *ret_bytes, clv_err *err) {
  clv_state_claim c;
  CLV_TRY(clv_state_check_name(name, err));
  clv_states_begin_claim(s, identity, name, &c);
  clv_code code = clv_states_save_claimed(s, &c, r, ret_digest, ret_bytes, err);
  clv_states_end_claim(s, &c);
  return code;
}

/* ---- loading and removing a file of state ---------------------------------------------------- */

/* Waits until all claims on the name have ended, and then locks the folder of the identity. */
static clv_code lock_folder_when_unclaimed(clv_states *s, const char *identity, const char *name,
                                           const clv_cancel_hook *cancel_hook, clv_state_folder *o,
                                           clv_bytes *ret_path, clv_err *err) {
  CLV_TRY(clv_state_check_name(name, err));
  CLV_TRY(clv_state_await_claims(s, identity, name, NULL, cancel_hook, err));
  CLV_TRY(clv_state_folder_lock(&s->folders, identity, o, err));
  return clv_state_make_path(o->dir.data, name, ret_path, err);
}

clv_code clv_states_open_file(clv_states *s, const char *identity, const char *name,
                              size_t max_bytes, const clv_cancel_hook *cancel_hook,
                              clv_weights_file **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, label = {0};
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  CLV_TRY(lock_folder_when_unclaimed(s, identity, name, cancel_hook, &o, &path, err));
  clv_bytes_printf(&label, "file of state '%s'", name);
  if (label.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_weights_open_labelled(path.data, label.data, max_bytes, ret, err);
  return code == CLV_NOT_FOUND ? clv_state_fail_missing(name, err) : code;
}

clv_code clv_states_remove(clv_states *s, const char *identity, const char *name,
                           const clv_cancel_hook *cancel_hook, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  CLV_TRY(lock_folder_when_unclaimed(s, identity, name, cancel_hook, &o, &path, err));
  if (unlink(path.data) == 0 && clv_file_sync_folder(path.data, err) == CLV_OK) return CLV_OK;
  if (errno == ENOENT || errno == ENOTDIR) return clv_state_fail_missing(name, err);
  return clv_state_fail_disk(path.data, name, errno, err);
}

/* ---- opening the store ----------------------------------------------------------------------- */

/* Deletes unfinished files of a killed process in the folder `name`. */
static void remove_unfinished_files(clv_states *s, const char *name) {
  CLV_AUTO(clv_state_folder_unlock) clv_state_folder o = {0};
  if (!clv_state_folder_lock_named(&s->folders, name, &o)) return;
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(o.dir.data);
  while (clv_folder_files_next(&f))
    if (clv_name_has_ending(f.name, ".tmp")) unlink(f.path.data);
}

static void remove_all_unfinished_files(clv_states *s) {
  CLV_AUTO(clv_folder_files_close) clv_folder_files f = clv_folder_files_open(s->folders.dir);
  while (clv_folder_files_next(&f)) remove_unfinished_files(s, f.name);
}

clv_code clv_states_open(const char *state_dir, clv_states **ret, clv_err *err) {
  CLV_AUTO(clv_freep) clv_states *s = NULL;
  CLV_TRY(clv_alloc(1, sizeof *s, &s, err));
  CLV_TRY(clv_state_folders_open(state_dir, "states", &s->folders, err));
  pthread_mutex_init(&s->digests.lock, NULL);
  pthread_mutex_init(&s->hashing_lock, NULL);
  pthread_mutex_init(&s->lock, NULL);
  pthread_condattr_t cond_attr;
  pthread_condattr_init(&cond_attr);
  pthread_condattr_setclock(&cond_attr, CLOCK_MONOTONIC);
  pthread_cond_init(&s->claim_ended, &cond_attr);
  pthread_condattr_destroy(&cond_attr);
  remove_all_unfinished_files(s);
  *ret = clv_steal(&s);
  return CLV_OK;
}

void clv_states_free(clv_states *s) {
  if (!s) return;
  clv_state_folders_done(&s->folders);
  pthread_mutex_destroy(&s->digests.lock);
  pthread_mutex_destroy(&s->hashing_lock);
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->claim_ended);
  free(s);
}
