/* SPDX-License-Identifier: Apache-2.0
 *
 * ARTIFACT.json: list of the files of a folder of weights with their digests. The digest of the
 * list identifies the folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights_int.h"

enum { LABEL = 512 };

/* ---- making ARTIFACT.json -------------------------------------------------------------------- */

static clv_code add_file(int dir_fd, const char *name, clv_manifest_file *ret, clv_err *err) {
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  CLV_TRY(clv_weights_fd_open(dir_fd, name, name, &fd, err));
  snprintf(ret->name, sizeof ret->name, "%s", name);
  ret->bytes = fd.size;
  return clv_sha256_fd(fd.fd, ret->bytes, NULL, name, &ret->sha256, err);
}

/* Compares the names of two files, for qsort: ARTIFACT.json lists files sorted by name. */
static int compare_files(const void *a, const void *b) {
  return strcmp(((const clv_manifest_file *)a)->name, ((const clv_manifest_file *)b)->name);
}

static clv_code list_files(int dir_fd, const clv_weights_folder *f, clv_manifest *m, clv_err *err) {
  const char *name;
  CLV_TRY(clv_alloc(CLV_CHECKPOINT_MAX_FILES + 1, sizeof *m->files, &m->files, err));
  for (size_t i = 0; (name = clv_weights_folder_file_name(f, i)); i++)
    CLV_TRY(add_file(dir_fd, name, &m->files[m->n_files++], err));
  qsort(m->files, m->n_files, sizeof *m->files, compare_files);
  return CLV_OK;
}

clv_code clv_artifact_make(const char *folder, clv_bytes *ret_text, clv_sha256 *ret_digest,
                           clv_err *err) {
  CLV_AUTO(clv_weights_folder_closep) clv_weights_folder *f = NULL;
  CLV_AUTO(clv_manifest_clear) clv_manifest m = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_weights_closefd) int dir_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir_fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%.300s: %s", folder,
                    strerror(errno));
  CLV_TRY(clv_weights_folder_open(folder, folder, (clv_weights_guard){0}, &f, err));
  CLV_TRY(clv_weights_folder_check_files(f, err));
  CLV_TRY(list_files(dir_fd, f, &m, err));
  CLV_TRY(clv_artifact_make_text(&m, &text, err));
  CLV_TRY(clv_sha256_of(text.data, text.len, ret_digest, err));
  clv_bytes_done(ret_text);
  *ret_text = text;
  text = (clv_bytes){0};
  return CLV_OK;
}

clv_code clv_artifact_check(const clv_manifest *m, const char *name, int fd, clv_err *err) {
  const clv_manifest_file *f = clv_manifest_find(m, name);
  clv_sha256 found;
  if (!f) return clv_fail(err, CLV_DATA_LOSS, "%s is not listed in %s", name, CLV_ARTIFACT_NAME);
  CLV_TRY(clv_sha256_fd(fd, f->bytes, NULL, name, &found, err));
  if (memcmp(&found, &f->sha256, sizeof found) == 0) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "%s has another SHA-256 than %s says", name,
                  CLV_ARTIFACT_NAME);
}

/* ---- reading ARTIFACT.json ------------------------------------------------------------------- */

/* limit of the length of ARTIFACT.json */
enum { MAX_ARTIFACT_BYTES = CLV_CHECKPOINT_MAX_FILES * 256 };

clv_code clv_artifact_read(const char *folder, const char *label, clv_manifest *ret,
                           clv_sha256 *ret_digest, clv_err *err) {
  CLV_AUTO(clv_weights_closefd) int dir_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CLV_AUTO(clv_weights_fd_close) clv_weights_fd fd = {.fd = -1};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  char name[LABEL];
  if (dir_fd < 0)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%.300s: %s", label,
                    strerror(errno));
  snprintf(name, sizeof name, "%.300s/%s", label, CLV_ARTIFACT_NAME);
  CLV_TRY(clv_weights_fd_open(dir_fd, CLV_ARTIFACT_NAME, name, &fd, err));
  CLV_TRY(clv_weights_fd_read_all(&fd, MAX_ARTIFACT_BYTES, &text, err));
  CLV_TRY(clv_sha256_of(text.data, text.len, ret_digest, err));
  return clv_artifact_parse(text.data, text.len, name, ret, err);
}
