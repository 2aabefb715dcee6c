/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/store/folder_int.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

clv_code clv_fail_errno(const char *path, clv_err *err) {
  if (errno == ENOSPC || errno == EDQUOT)
    return clv_fail(err, CLV_EXHAUSTED, "the worker's disk is full");
  return clv_fail(err, CLV_UNAVAILABLE, "%s: %s", path, strerror(errno));
}

bool clv_name_has_ending(const char *name, const char *ending) {
  size_t n = strlen(name), m = strlen(ending);
  return n > m && strcmp(name + n - m, ending) == 0;
}

clv_folder_files clv_folder_files_open(const char *folder_path) {
  return (clv_folder_files){.dir = opendir(folder_path), .folder_path = folder_path};
}

bool clv_folder_files_next(clv_folder_files *f) {
  for (struct dirent *e; f->dir && (e = readdir(f->dir)) != NULL;) {
    clv_bytes_done(&f->path);
    clv_bytes_printf(&f->path, "%s/%s", f->folder_path, e->d_name);
    f->name = e->d_name;
    if (f->name[0] != '.' && !f->path.failed) return true;
  }
  return false;
}

void clv_folder_files_close(clv_folder_files *f) {
  if (!f) return;
  if (f->dir) closedir(f->dir);
  clv_bytes_done(&f->path);
}

clv_code clv_state_folders_open(const char *state_dir, const char *kind, clv_state_folders *ret,
                                clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s", state_dir, kind);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  if (mkdir(path.data, 0700) != 0 && errno != EEXIST) return clv_fail_errno(path.data, err);
  for (size_t i = 0; i < CLV_N_STATE_FOLDER_LOCKS; i++) pthread_mutex_init(&ret->locks[i], NULL);
  ret->dir = path.data;
  path = (clv_bytes){0};
  return CLV_OK;
}

void clv_state_folders_done(clv_state_folders *f) {
  if (!f || !f->dir) return;
  for (size_t i = 0; i < CLV_N_STATE_FOLDER_LOCKS; i++) pthread_mutex_destroy(&f->locks[i]);
  free(f->dir);
}

static void lock_folder(clv_state_folders *f, clv_state_folder *ret) {
  ret->lock = &f->locks[ret->identity.bytes[0] % CLV_N_STATE_FOLDER_LOCKS];
  pthread_mutex_lock(ret->lock);
}

clv_code clv_state_folder_lock(clv_state_folders *f, const char *identity, clv_state_folder *ret,
                               clv_err *err) {
  char hex[65];
  CLV_TRY(clv_sha256_of(identity, strlen(identity), &ret->identity, err));
  clv_sha256_hex(&ret->identity, hex);
  clv_bytes_printf(&ret->dir, "%s/%s", f->dir, hex);
  if (ret->dir.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  lock_folder(f, ret);
  return CLV_OK;
}

bool clv_state_folder_lock_named(clv_state_folders *f, const char *name, clv_state_folder *ret) {
  if (!clv_sha256_parse(name, &ret->identity)) return false;
  clv_bytes_printf(&ret->dir, "%s/%s", f->dir, name);
  if (ret->dir.failed) return false;
  lock_folder(f, ret);
  return true;
}

void clv_state_folder_unlock(clv_state_folder *f) {
  if (!f) return;
  if (f->lock) pthread_mutex_unlock(f->lock);
  clv_bytes_done(&f->dir);
}
