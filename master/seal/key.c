/* SPDX-License-Identifier: Apache-2.0
 *
 * Key files: 64 hexadecimal digits and a line end, which only the owner may read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/seal/seal_int.h"

enum { N_HEX_DIGITS = 64, KEY_FILE_BYTES = N_HEX_DIGITS + 1 };

void clv_seal_key_done(clv_seal_key *k) {
  if (!k) return;
  free(k->path);
  explicit_bzero(k, sizeof *k);
}

static clv_code set_id_and_path(clv_seal_key *k, const char *path, clv_err *err) {
  uint8_t id[CLV_SEAL_ID_BYTES];
  CLV_TRY(clv_seal_compute_key_id(&k->secret, id, err));
  clv_hex(id, sizeof id, k->id);
  return clv_strdup(path, &k->path, err);
}

/* Checks that only the owner may read the key file. Checks the open descriptor, not the path, so
 * that no other file can take its place before it is read. */
static clv_code check_only_owner_has_access(int fd, const char *path, clv_err *err) {
  struct stat st;
  if (fstat(fd, &st) != 0) return clv_fail(err, CLV_INVALID, "%s: %s", path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return clv_fail(err, CLV_INVALID, "%s: not a regular file", path);
  if (!(st.st_mode & 077)) return CLV_OK;
  return clv_fail(err, CLV_DENIED,
                  "%s: this key has mode %04o, so others than its owner may read it; fix: chmod "
                  "600 %s",
                  path, (unsigned)(st.st_mode & 07777), path);
}

/* Reads the digits of a key file to text [KEY_FILE_BYTES + 1]. */
static clv_code read_key_digits(int fd, const char *path, char *text, clv_err *err) {
  size_t len = 0;
  for (ssize_t n; len <= KEY_FILE_BYTES; len += (size_t)n) {
    n = read(fd, text + len, KEY_FILE_BYTES + 1 - len);
    if (n < 0 && errno == EINTR)
      n = 0;
    else if (n < 0)
      return clv_fail(err, CLV_DATA_LOSS, "%s: %s", path, strerror(errno));
    else if (n == 0)
      break;
  }
  if (len == KEY_FILE_BYTES && text[N_HEX_DIGITS] == '\n') len--;
  text[CLV_MIN(len, (size_t)KEY_FILE_BYTES)] = '\0';
  if (len == N_HEX_DIGITS) return CLV_OK;
  return clv_fail(err, CLV_DATA_LOSS, "%s: is no key, which is a line of %d hexadecimal digits",
                  path, N_HEX_DIGITS);
}

clv_code clv_seal_key_read(const char *path, clv_seal_key *ret, clv_err *err) {
  CLV_AUTO(clv_seal_key_done) clv_seal_key key = {0};
  CLV_AUTO(clv_seal_close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  char text[KEY_FILE_BYTES + 2];
  if (fd < 0)
    return clv_fail(err,
                    errno == ENOENT   ? CLV_NOT_FOUND
                    : errno == EACCES ? CLV_DENIED
                                      : CLV_INVALID,
                    "%s: %s: without this key nothing that was sealed with it can be read", path,
                    strerror(errno));
  CLV_TRY(check_only_owner_has_access(fd, path, err));
  clv_code code = read_key_digits(fd, path, text, err);
  if (code == CLV_OK && !clv_sha256_parse(text, &key.secret))
    code = clv_fail(err, CLV_DATA_LOSS, "%s: is no key, which is a line of %d hexadecimal digits",
                    path, N_HEX_DIGITS);
  explicit_bzero(text, sizeof text);
  if (code == CLV_OK) code = set_id_and_path(&key, path, err);
  if (code != CLV_OK) return code;
  *ret = key;
  key = (clv_seal_key){0};
  return CLV_OK;
}

/* Writes the key to the new, empty file `fd`. */
static clv_code write_key_digits(int fd, const char *path, const clv_seal_key *key, clv_err *err) {
  char text[KEY_FILE_BYTES + 1];
  clv_sha256_hex(&key->secret, text);
  text[N_HEX_DIGITS] = '\n';
  clv_code code = clv_seal_write_all(fd, path, text, KEY_FILE_BYTES, err);
  explicit_bzero(text, sizeof text);
  CLV_TRY(code);
  if (fsync(fd) != 0)
    return clv_fail(err, CLV_PRECONDITION, "%s: fsync: %s", path, strerror(errno));
  return clv_file_sync_folder(path, err);
}

clv_code clv_seal_key_create(const char *path, clv_seal_key *ret, clv_err *err) {
  CLV_AUTO(clv_seal_key_done) clv_seal_key key = {0};
  CLV_AUTO(clv_seal_close_fdp) int fd = -1;
  CLV_TRY(clv_random_bytes(&key.secret, sizeof key.secret, err));
  CLV_TRY(set_id_and_path(&key, path, err));
  fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0)
    return clv_fail(err, errno == EEXIST ? CLV_EXISTS : CLV_PRECONDITION, "%s: %s", path,
                    strerror(errno));
  clv_code code = write_key_digits(fd, path, &key, err);
  if (code != CLV_OK) {
    unlink(path);
    return code;
  }
  *ret = key;
  key = (clv_seal_key){0};
  return CLV_OK;
}
