/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads sealed files. The number of frames and the length of the last one follow from the size of
 * the file, so a file that was cut short or extended fails at its last frame.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/seal/seal_int.h"

struct clv_sealed_reader {
  clv_seal_cipher cipher;
  char *label;
  int fd;
  uint64_t n_unread_bytes; /* number of bytes of the file that are not read yet: frames and tags */
  uint64_t data_bytes;     /* size of the decrypted data */
  uint8_t encrypted_frame[CLV_SEAL_ENCRYPTED_FRAME_BYTES], frame[CLV_SEAL_FRAME_BYTES];
};

void clv_sealed_reader_free(clv_sealed_reader *r) {
  if (!r) return;
  clv_seal_close_fdp(&r->fd);
  clv_seal_cipher_done(&r->cipher);
  free(r->label);
  explicit_bzero(r->frame, sizeof r->frame);
  free(r);
}

void clv_sealed_reader_freep(clv_sealed_reader **r) {
  clv_sealed_reader_free(*r);
  *r = NULL;
}

uint64_t clv_sealed_reader_data_bytes(const clv_sealed_reader *r) { return r->data_bytes; }

static clv_code read_exactly(int fd, const char *label, void *dst, size_t len, clv_err *err) {
  for (size_t n_read = 0; n_read < len;) {
    ssize_t n = read(fd, (char *)dst + n_read, len - n_read);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: read: %s", label, strerror(errno));
    if (n == 0) return clv_fail(err, CLV_DATA_LOSS, "%s: is cut short", label);
    n_read += (size_t)n;
  }
  return CLV_OK;
}

static clv_code read_header(int fd, const char *label, uint8_t header[CLV_SEAL_HEADER_BYTES],
                            clv_err *err) {
  CLV_TRY(read_exactly(fd, label, header, CLV_SEAL_HEADER_BYTES, err));
  if (memcmp(header, clv_seal_magic, 7) != 0)
    return clv_fail(err, CLV_DATA_LOSS, "%s: is no sealed file", label);
  if (header[7] != CLV_SEAL_VERSION)
    return clv_fail(err, CLV_UNIMPLEMENTED, "%s: sealed in version %d of the format, expected %d",
                    label, header[7], CLV_SEAL_VERSION);
  return CLV_OK;
}

/* Computes the size of the decrypted data from the size of the file. */
static clv_code compute_data_size(clv_sealed_reader *r, clv_err *err) {
  struct stat st;
  if (fstat(r->fd, &st) != 0)
    return clv_fail(err, CLV_INVALID, "%s: %s", r->label, strerror(errno));
  if (!S_ISREG(st.st_mode)) return clv_fail(err, CLV_INVALID, "%s: not a regular file", r->label);
  r->n_unread_bytes =
      st.st_size > CLV_SEAL_HEADER_BYTES ? (uint64_t)st.st_size - CLV_SEAL_HEADER_BYTES : 0;
  uint64_t n_frames = r->n_unread_bytes / CLV_SEAL_ENCRYPTED_FRAME_BYTES +
                      (r->n_unread_bytes % CLV_SEAL_ENCRYPTED_FRAME_BYTES != 0);
  uint64_t last_frame_bytes =
      r->n_unread_bytes - CLV_SEAL_ENCRYPTED_FRAME_BYTES * (n_frames ? n_frames - 1 : 0);
  if (last_frame_bytes < CLV_SEAL_TAG_BYTES ||
      (last_frame_bytes == CLV_SEAL_TAG_BYTES && n_frames > 1))
    return clv_fail(err, CLV_DATA_LOSS, "%s: is cut short", r->label);
  r->data_bytes = r->n_unread_bytes - CLV_SEAL_TAG_BYTES * n_frames;
  return CLV_OK;
}

static clv_code check_key_id(const clv_sealed_reader *r, const clv_seal_key *key, clv_err *err) {
  char id[17];
  clv_hex(r->cipher.header + 8, CLV_SEAL_ID_BYTES, id);
  if (strcmp(id, key->id) == 0) return CLV_OK;
  return clv_fail(err, CLV_DENIED, "%s: sealed with key %s, and %s holds key %s", r->label, id,
                  key->path, key->id);
}

clv_code clv_sealed_reader_open_fd(int fd, const char *label, const clv_seal_key *key,
                                   const char *name, clv_sealed_reader **ret, clv_err *err) {
  CLV_AUTO(clv_seal_close_fdp) int owned_fd = fd;
  CLV_AUTO(clv_sealed_reader_freep) clv_sealed_reader *r = NULL;
  CLV_TRY(clv_alloc(1, sizeof *r, &r, err));
  r->fd = owned_fd;
  owned_fd = -1;
  CLV_TRY(clv_strdup(label, &r->label, err));
  CLV_TRY(compute_data_size(r, err));
  CLV_TRY(read_header(r->fd, r->label, r->cipher.header, err));
  CLV_TRY(check_key_id(r, key, err));
  CLV_TRY(clv_seal_cipher_init(&r->cipher, key, name, false, err));
  *ret = clv_steal(&r);
  return CLV_OK;
}

static clv_code open_sealed_file(const char *path, int *ret, clv_err *err) {
  *ret = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (*ret >= 0) return CLV_OK;
  return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%s: %s", path,
                  strerror(errno));
}

clv_code clv_sealed_reader_open(const char *path, const clv_seal_key *key, const char *name,
                                clv_sealed_reader **ret, clv_err *err) {
  int fd;
  CLV_TRY(open_sealed_file(path, &fd, err));
  return clv_sealed_reader_open_fd(fd, path, key, name, ret, err);
}

clv_code clv_sealed_reader_next(clv_sealed_reader *r, const void **ret_data, size_t *ret_len,
                                clv_err *err) {
  *ret_len = 0;
  if (!r->n_unread_bytes) return CLV_OK;
  size_t encrypted_bytes =
      (size_t)CLV_MIN(r->n_unread_bytes, (uint64_t)CLV_SEAL_ENCRYPTED_FRAME_BYTES);
  size_t len = encrypted_bytes - CLV_SEAL_TAG_BYTES;
  CLV_TRY(read_exactly(r->fd, r->label, r->encrypted_frame, encrypted_bytes, err));
  r->n_unread_bytes -= encrypted_bytes;
  if (!clv_seal_decrypt(&r->cipher, r->encrypted_frame, len, !r->n_unread_bytes, r->frame))
    return clv_fail(err, CLV_DATA_LOSS,
                    "%s: changed or cut short after it was sealed, or it is not %s (frame %llu)",
                    r->label, r->cipher.name, (unsigned long long)r->cipher.frame_index);
  *ret_data = r->frame;
  *ret_len = len;
  return CLV_OK;
}

clv_code clv_sealed_read_key_id(const char *path, char ret_id[17], clv_err *err) {
  CLV_AUTO(clv_seal_close_fdp) int fd = -1;
  uint8_t header[CLV_SEAL_HEADER_BYTES];
  CLV_TRY(open_sealed_file(path, &fd, err));
  CLV_TRY(read_header(fd, path, header, err));
  clv_hex(header + 8, CLV_SEAL_ID_BYTES, ret_id);
  return CLV_OK;
}
