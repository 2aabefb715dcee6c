/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes sealed files. A full frame is written only when another byte follows, because the last
 * frame is marked as the last one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/seal/seal_int.h"

struct clv_sealed_writer {
  clv_seal_cipher cipher;
  char *path, *tmp_path;
  int fd;
  size_t n_frame_bytes; /* number of bytes in `frame`, the frame that is being filled */
  uint8_t frame[CLV_SEAL_FRAME_BYTES], encrypted_frame[CLV_SEAL_ENCRYPTED_FRAME_BYTES];
};

void clv_sealed_writer_free(clv_sealed_writer *w) {
  if (!w) return;
  if (w->fd >= 0) unlink(w->tmp_path);
  clv_seal_close_fdp(&w->fd);
  clv_seal_cipher_done(&w->cipher);
  free(w->path);
  free(w->tmp_path);
  free(w);
}

void clv_sealed_writer_freep(clv_sealed_writer **w) {
  clv_sealed_writer_free(*w);
  *w = NULL;
}

static clv_code make_header(uint8_t header[CLV_SEAL_HEADER_BYTES], const clv_seal_key *key,
                            clv_err *err) {
  memcpy(header, clv_seal_magic, 7);
  header[7] = CLV_SEAL_VERSION;
  CLV_TRY(clv_seal_compute_key_id(&key->secret, header + 8, err));
  return clv_random_bytes(header + CLV_SEAL_HEADER_BYTES - CLV_SEAL_SALT_BYTES, CLV_SEAL_SALT_BYTES,
                          err);
}

static clv_code open_tmp_file(clv_sealed_writer *w, const char *path, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes tmp_path = {0};
  clv_bytes_printf(&tmp_path, "%s.tmp", path);
  if (tmp_path.failed) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path);
  CLV_TRY(clv_strdup(path, &w->path, err));
  w->tmp_path = clv_steal(&tmp_path.data);
  w->fd = open(w->tmp_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (w->fd >= 0) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION, "%s: %s", w->tmp_path, strerror(errno));
}

clv_code clv_sealed_writer_begin(const char *path, const clv_seal_key *key, const char *name,
                                 clv_sealed_writer **ret, clv_err *err) {
  CLV_AUTO(clv_sealed_writer_freep) clv_sealed_writer *w = NULL;
  CLV_TRY(clv_alloc(1, sizeof *w, &w, err));
  w->fd = -1;
  CLV_TRY(make_header(w->cipher.header, key, err));
  CLV_TRY(clv_seal_cipher_init(&w->cipher, key, name, true, err));
  CLV_TRY(open_tmp_file(w, path, err));
  CLV_TRY(clv_seal_write_all(w->fd, w->tmp_path, w->cipher.header, CLV_SEAL_HEADER_BYTES, err));
  *ret = clv_steal(&w);
  return CLV_OK;
}

static clv_code write_frame(clv_sealed_writer *w, bool is_last, clv_err *err) {
  CLV_TRY(
      clv_seal_encrypt(&w->cipher, w->frame, w->n_frame_bytes, is_last, w->encrypted_frame, err));
  CLV_TRY(clv_seal_write_all(w->fd, w->tmp_path, w->encrypted_frame,
                             w->n_frame_bytes + CLV_SEAL_TAG_BYTES, err));
  w->n_frame_bytes = 0;
  return CLV_OK;
}

clv_code clv_sealed_writer_add(clv_sealed_writer *w, const void *data, size_t len, clv_err *err) {
  for (const char *p = data; len;) {
    if (w->n_frame_bytes == CLV_SEAL_FRAME_BYTES) CLV_TRY(write_frame(w, false, err));
    size_t n = CLV_MIN(len, CLV_SEAL_FRAME_BYTES - w->n_frame_bytes);
    memcpy(w->frame + w->n_frame_bytes, p, n);
    w->n_frame_bytes += n;
    p += n;
    len -= n;
  }
  return CLV_OK;
}

clv_code clv_sealed_writer_finish(clv_sealed_writer *w, clv_err *err) {
  CLV_TRY(write_frame(w, true, err));
  if (fsync(w->fd) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: fsync: %s", w->tmp_path, strerror(errno));
  if (rename(w->tmp_path, w->path) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: rename: %s", w->path, strerror(errno));
  clv_seal_close_fdp(&w->fd); /* after this, clv_sealed_writer_free deletes no file */
  return clv_file_sync_folder(w->path, err);
}
