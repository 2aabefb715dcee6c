/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealed (encrypted) copies of checkpoints. A copy has all files of a checkpoint, so it restores
 * the run even if workers and run folder have lost their files. A sealed file can only be read
 * under the run id, step and file name with which it was written.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/checkpoints/checkpoints_int.h"

#define MANIFEST_FILE "MANIFEST.json"
#define SEALED_SUFFIX ".sealed"

enum { MAX_MANIFEST_BYTES = 4 << 20 };

/* Paths and names of one sealed copy of a checkpoint. */
typedef struct sealed_copy {
  const clv_escrow_location *at;
  const clv_seal_key *key;
  uint64_t step;
  /* paths of the run's copies, DIR/ID, and of this copy, DIR/ID/checkpoint-STEP */
  clv_bytes run_path, folder_path;
} sealed_copy;

static void sealed_copy_done(sealed_copy *c) {
  clv_bytes_done(&c->run_path);
  clv_bytes_done(&c->folder_path);
}

static clv_code set_paths(sealed_copy *c, clv_err *err) {
  clv_bytes_printf(&c->run_path, "%s/%s", c->at->dir, c->at->id);
  clv_bytes_printf(&c->folder_path, "%s/checkpoint-%llu", c->run_path.data,
                   (unsigned long long)c->step);
  return c->run_path.failed || c->folder_path.failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory")
                                                     : CLV_OK;
}

static clv_code make_sealed_path(const sealed_copy *c, const char *file, clv_bytes *ret,
                                 clv_err *err) {
  clv_bytes_printf(ret, "%s/%s" SEALED_SUFFIX, c->folder_path.data, file);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* Makes the name that the encryption binds to a sealed file: run, step and file. A reader refuses a
 * sealed file that was put in the place of another one. */
static void make_bound_name(const sealed_copy *c, const char *file,
                            char name[CLV_SEAL_MAX_NAME_BYTES]) {
  snprintf(name, CLV_SEAL_MAX_NAME_BYTES, "%.40s/checkpoint-%llu/%s", c->at->id,
           (unsigned long long)c->step, file);
}

static bool has_file(const sealed_copy *c, const char *file) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  return make_sealed_path(c, file, &path, NULL) == CLV_OK && access(path.data, F_OK) == 0;
}

/* ---- writing a sealed copy ------------------------------------------------------------------- */

/* Returns true if an earlier call has sealed the file with the key of `c`. */
static bool is_sealed_already(const sealed_copy *c, const char *path) {
  char id[17];
  return clv_sealed_read_key_id(path, id, NULL) == CLV_OK && strcmp(id, c->key->id) == 0;
}

/* Seals a file of the checkpoint. Compares the digest of the data with the manifest before the
 * sealed file gets its name. */
static clv_code seal_file(const sealed_copy *c, const char *folder, const clv_manifest_file *f,
                          clv_stores *stores, const clv_cancel_hook *cancel_hook, clv_err *err) {
  CLV_AUTO(clv_sealed_writer_freep) clv_sealed_writer *w = NULL;
  CLV_AUTO(clv_stored_reader_closep) clv_stored_reader *r = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char name[CLV_SEAL_MAX_NAME_BYTES];
  const void *data;
  CLV_TRY(make_sealed_path(c, f->name, &path, err));
  if (is_sealed_already(c, path.data)) return CLV_OK;
  make_bound_name(c, f->name, name);
  CLV_TRY(clv_sealed_writer_begin(path.data, c->key, name, &w, err));
  CLV_TRY(clv_stored_reader_open(stores, folder, f, 0, &r, err));
  for (size_t n = 1; n;) {
    CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
    CLV_TRY(clv_stored_reader_next(r, &data, &n, err));
    CLV_TRY(clv_sealed_writer_add(w, data, n, err));
  }
  return clv_sealed_writer_finish(w, err);
}

static clv_code seal_manifest(const sealed_copy *c, const clv_bytes *text, clv_err *err) {
  CLV_AUTO(clv_sealed_writer_freep) clv_sealed_writer *w = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char name[CLV_SEAL_MAX_NAME_BYTES];
  CLV_TRY(make_sealed_path(c, MANIFEST_FILE, &path, err));
  make_bound_name(c, MANIFEST_FILE, name);
  CLV_TRY(clv_sealed_writer_begin(path.data, c->key, name, &w, err));
  CLV_TRY(clv_sealed_writer_add(w, text->data, text->len, err));
  return clv_sealed_writer_finish(w, err);
}

/* Deletes a copy, its manifest first, so that a crash leaves an unfinished copy. */
static clv_code delete_copy(const clv_escrow_location *at, uint64_t step, clv_err *err) {
  CLV_AUTO(sealed_copy_done) sealed_copy c = {.at = at, .step = step};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(set_paths(&c, err));
  CLV_TRY(make_sealed_path(&c, MANIFEST_FILE, &path, err));
  (void)!unlink(path.data);
  return clv_checkpoint_remove(c.run_path.data, step, err);
}

/* Deletes the copy of step `chosen_step`. With `deletes_others`, keeps this copy, and deletes the
 * copies of all other steps instead. */
static clv_code delete_copies(const clv_escrow_location *at, uint64_t chosen_step,
                              bool deletes_others, clv_err *err) {
  CLV_AUTO(sealed_copy_done) sealed_copy c = {.at = at};
  CLV_AUTO(clv_freep) uint64_t *steps = NULL;
  size_t n = 0;
  CLV_TRY(set_paths(&c, err));
  clv_code code = clv_checkpoint_list_steps(c.run_path.data, &steps, &n, err);
  if (code != CLV_OK) return code == CLV_NOT_FOUND ? CLV_OK : code;
  for (size_t i = 0; i < n; i++)
    if ((steps[i] == chosen_step) != deletes_others) CLV_TRY(delete_copy(at, steps[i], err));
  return CLV_OK;
}

clv_code clv_escrow_remove_copy(const clv_escrow_location *at, uint64_t step, clv_err *err) {
  return delete_copies(at, step, false, err);
}

static clv_code read_manifest(const char *folder, clv_bytes *ret_text, clv_manifest *ret,
                              clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/" MANIFEST_FILE, folder);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_file_read(path.data, MAX_MANIFEST_BYTES, ret_text, err));
  return clv_manifest_parse(ret_text->data, ret_text->len, path.data, ret, err);
}

clv_code clv_escrow_write_copy(const clv_escrow_location *at, const clv_seal_key *key,
                               const char *run_dir, uint64_t step, clv_stores *s,
                               const clv_cancel_hook *cancel_hook, uint64_t *ret_bytes,
                               clv_err *err) {
  CLV_AUTO(sealed_copy_done) sealed_copy c = {.at = at, .key = key, .step = step};
  CLV_AUTO(clv_bytes_done) clv_bytes checkpoint_folder = {0}, text = {0};
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  *ret_bytes = 0;
  CLV_TRY(set_paths(&c, err));
  if (has_file(&c, MANIFEST_FILE)) return CLV_OK;
  clv_bytes_printf(&checkpoint_folder, "%s/checkpoint-%llu", run_dir, (unsigned long long)step);
  if (checkpoint_folder.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(read_manifest(checkpoint_folder.data, &text, &m, err));
  CLV_TRY(clv_mkdirs(c.folder_path.data, err));
  for (size_t i = 0; i < m.n_files; i++) {
    CLV_TRY(seal_file(&c, checkpoint_folder.data, &m.files[i], s, cancel_hook, err));
    *ret_bytes += m.files[i].bytes;
  }
  CLV_TRY(seal_manifest(&c, &text, err));
  return delete_copies(at, step, true, err);
}

/* ---- restoring a sealed copy ----------------------------------------------------------------- */

/* Finds the newest complete copy that is older than `before_step`. Sets the paths of *c. */
static clv_code find_copy(sealed_copy *c, uint64_t before_step, clv_err *err) {
  CLV_AUTO(clv_freep) uint64_t *steps = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes run_path = {0};
  size_t n = 0;
  clv_bytes_printf(&run_path, "%s/%s", c->at->dir, c->at->id);
  if (run_path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = clv_checkpoint_list_steps(run_path.data, &steps, &n, err);
  if (code != CLV_OK && code != CLV_NOT_FOUND) return code;
  for (size_t i = 0; i < n; i++) {
    sealed_copy_done(c);
    c->step = steps[i];
    CLV_TRY(set_paths(c, err));
    if (steps[i] < before_step && has_file(c, MANIFEST_FILE)) return CLV_OK;
  }
  return clv_fail(err, CLV_NOT_FOUND, "%s has no complete copy of a checkpoint", run_path.data);
}

uint64_t clv_escrow_newest_step(const clv_escrow_location *at) {
  CLV_AUTO(sealed_copy_done) sealed_copy c = {.at = at};
  return find_copy(&c, CLV_CHECKPOINT_NONE, NULL) == CLV_OK ? c.step : CLV_CHECKPOINT_NONE;
}

clv_code clv_escrow_key_id(const clv_escrow_location *at, char ret_id[17], clv_err *err) {
  CLV_AUTO(sealed_copy_done) sealed_copy c = {.at = at};
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  CLV_TRY(find_copy(&c, CLV_CHECKPOINT_NONE, err));
  CLV_TRY(make_sealed_path(&c, MANIFEST_FILE, &path, err));
  return clv_sealed_read_key_id(path.data, ret_id, err);
}

typedef clv_code data_consumer_fn(void *user, const void *data, size_t len, clv_err *err);

/* Decrypts a sealed file from begin to end, and passes its data to the callback `consume`. */
static clv_code unseal_file(const sealed_copy *c, const char *file, data_consumer_fn *consume,
                            void *user, clv_err *err) {
  CLV_AUTO(clv_sealed_reader_freep) clv_sealed_reader *r = NULL;
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  char name[CLV_SEAL_MAX_NAME_BYTES];
  const void *data;
  CLV_TRY(make_sealed_path(c, file, &path, err));
  make_bound_name(c, file, name);
  clv_code code = clv_sealed_reader_open(path.data, c->key, name, &r, err);
  if (code == CLV_NOT_FOUND)
    return clv_fail(err, CLV_DATA_LOSS, "%s: is missing in the sealed copy", path.data);
  CLV_TRY(code);
  for (size_t n = 1; n;) {
    CLV_TRY(clv_sealed_reader_next(r, &data, &n, err));
    if (n) CLV_TRY(consume(user, data, n, err));
  }
  return CLV_OK;
}

static clv_code append_text(void *user, const void *data, size_t len, clv_err *err) {
  clv_bytes *text = user;
  if (text->len + len > MAX_MANIFEST_BYTES)
    return clv_fail(err, CLV_DATA_LOSS, "a manifest is too long");
  clv_bytes_add(text, data, len);
  return text->failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

/* A file of the run folder that is being written with the decrypted data of a sealed file. */
typedef struct unsealed_file {
  int fd;
  const char *path;
  clv_sha256_parts *digest;
} unsealed_file;

static clv_code write_part(void *user, const void *data, size_t len, clv_err *err) {
  unsealed_file *u = user;
  CLV_TRY(clv_interrupt_check(err));
  CLV_TRY(clv_sha256_add(u->digest, data, len, err));
  for (const char *p = data; len;) {
    ssize_t n = write(u->fd, p, len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_PRECONDITION, "%s: write: %s", u->path, strerror(errno));
    p += n;
    len -= (size_t)n;
  }
  return CLV_OK;
}

/* Decrypts the sealed copy of file `f` to `path`, and compares the digest of the data with the
 * manifest. */
static clv_code unseal_file_to_path(const sealed_copy *c, const clv_manifest_file *f,
                                    const char *path, clv_err *err) {
  CLV_AUTO(clv_checkpoints_close_fdp)
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  CLV_AUTO(clv_sha256_parts_freep) clv_sha256_parts *digest = NULL;
  clv_sha256 found_digest;
  if (fd < 0) return clv_fail(err, CLV_PRECONDITION, "%s: %s", path, strerror(errno));
  CLV_TRY(clv_sha256_begin(&digest, err));
  CLV_TRY(unseal_file(c, f->name, write_part, &(unsealed_file){fd, path, digest}, err));
  CLV_TRY(clv_sha256_end(digest, &found_digest, err));
  CLV_TRY(clv_checkpoints_compare_digest(&found_digest, f, err));
  if (fsync(fd) == 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "%s: fsync: %s", path, strerror(errno));
}

/* Writes a file of the checkpoint to the folder, unless an undamaged file is there already. */
static clv_code restore_file(const sealed_copy *c, const char *folder, const clv_manifest_file *f,
                             clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, tmp = {0};
  if (clv_stores_check_file(NULL, folder, f, NULL) == CLV_OK) return CLV_OK;
  clv_bytes_printf(&path, "%s/%s", folder, f->name);
  clv_bytes_printf(&tmp, "%s/%s.tmp", folder, f->name);
  if (path.failed || tmp.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  clv_code code = unseal_file_to_path(c, f, tmp.data, err);
  if (code != CLV_OK) unlink(tmp.data);
  CLV_TRY(code);
  if (rename(tmp.data, path.data) == 0) return clv_file_sync_folder(path.data, err);
  return clv_fail(err, CLV_PRECONDITION, "%s: rename: %s", path.data, strerror(errno));
}

static void forget_keepers(clv_manifest *m) {
  for (size_t i = 0; i < m->n_files; i++) {
    free(clv_steal(&m->files[i].keeper_identity));
    free(clv_steal(&m->files[i].kept_file_name));
  }
}

static clv_code restore_copy(const sealed_copy *c, const char *run_dir, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0}, folder = {0};
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  CLV_TRY(unseal_file(c, MANIFEST_FILE, append_text, &text, err));
  CLV_TRY(clv_manifest_parse(text.data, text.len, "sealed " MANIFEST_FILE, &m, err));
  forget_keepers(&m);
  clv_bytes_printf(&folder, "%s/checkpoint-%llu", run_dir, (unsigned long long)c->step);
  if (folder.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  CLV_TRY(clv_mkdirs(folder.data, err));
  for (size_t i = 0; i < m.n_files; i++) CLV_TRY(restore_file(c, folder.data, &m.files[i], err));
  CLV_TRY(clv_manifest_write(folder.data, &m, err));
  return clv_file_sync_folder(folder.data, err);
}

clv_code clv_escrow_restore_checkpoint(const clv_escrow_location *at, const clv_seal_key *key,
                                       const char *run_dir, uint64_t *ret_step, clv_err *err) {
  CLV_AUTO(sealed_copy_done) sealed_copy c = {.at = at, .key = key};
  clv_code code = CLV_DATA_LOSS;
  clv_err first_err = {0}, reason;
  for (uint64_t before_step = CLV_CHECKPOINT_NONE; code == CLV_DATA_LOSS; before_step = c.step) {
    code = find_copy(&c, before_step, &reason);
    if (code == CLV_OK) code = restore_copy(&c, run_dir, &reason);
    if (code != CLV_OK && first_err.code == CLV_OK) first_err = reason;
  }
  /* if no copy could be restored, reports the error of the newest copy, which says how it is
   * damaged */
  if (code == CLV_NOT_FOUND || code == CLV_OK) reason = first_err;
  if (code != CLV_OK) return clv_fail(err, reason.code, "%s", reason.text);
  *ret_step = c.step;
  return CLV_OK;
}
