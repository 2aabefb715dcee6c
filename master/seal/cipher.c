/* SPDX-License-Identifier: Apache-2.0
 *
 * The cipher of sealed files: AES-256-GCM of libcrypto. seal_int.h has the format.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "master/seal/seal_int.h"

const char clv_seal_magic[8] = "CLVSEAL";

static const char key_id_domain[] = "cleave seal id", file_key_domain[] = "cleave seal file";

void clv_seal_close_fdp(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

clv_code clv_seal_write_all(int fd, const char *path, const void *data, size_t len, clv_err *err) {
  const char *p = data;
  while (len) {
    ssize_t n = write(fd, p, len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_PRECONDITION, "%s: write: %s", path, strerror(errno));
    p += n;
    len -= (size_t)n;
  }
  return CLV_OK;
}

clv_code clv_seal_compute_key_id(const clv_sha256 *secret, uint8_t ret[CLV_SEAL_ID_BYTES],
                                 clv_err *err) {
  clv_sha256 digest;
  CLV_TRY(clv_hmac_sha256(secret, key_id_domain, sizeof key_id_domain - 1, &digest, err));
  memcpy(ret, digest.bytes, CLV_SEAL_ID_BYTES);
  return CLV_OK;
}

static clv_code derive_file_key(const clv_seal_key *key, const uint8_t *salt, clv_sha256 *ret,
                                clv_err *err) {
  uint8_t text[sizeof file_key_domain - 1 + CLV_SEAL_SALT_BYTES];
  memcpy(text, file_key_domain, sizeof file_key_domain - 1);
  memcpy(text + sizeof file_key_domain - 1, salt, CLV_SEAL_SALT_BYTES);
  return clv_hmac_sha256(&key->secret, text, sizeof text, ret, err);
}

static clv_code fail_cipher(clv_err *err) {
  return clv_fail(err, CLV_INTERNAL, "AES-256-GCM is not available in libcrypto");
}

clv_code clv_seal_cipher_init(clv_seal_cipher *c, const clv_seal_key *key, const char *name,
                              bool encrypts, clv_err *err) {
  size_t name_bytes = strnlen(name, CLV_SEAL_MAX_NAME_BYTES);
  clv_sha256 file_key;
  if (name_bytes == 0 || name_bytes == CLV_SEAL_MAX_NAME_BYTES)
    return clv_fail(err, CLV_INVALID, "the name of a sealed file has %zu bytes, expected 1..%d",
                    name_bytes, CLV_SEAL_MAX_NAME_BYTES - 1);
  memcpy(c->name, name, name_bytes + 1);
  CLV_TRY(derive_file_key(key, c->header + CLV_SEAL_HEADER_BYTES - CLV_SEAL_SALT_BYTES, &file_key,
                          err));
  c->ctx = EVP_CIPHER_CTX_new();
  bool ok = c->ctx &&
            EVP_CipherInit_ex(c->ctx, EVP_aes_256_gcm(), NULL, file_key.bytes, NULL, encrypts) == 1;
  explicit_bzero(&file_key, sizeof file_key);
  return ok ? CLV_OK : fail_cipher(err);
}

void clv_seal_cipher_done(clv_seal_cipher *c) {
  if (!c) return;
  EVP_CIPHER_CTX_free(c->ctx);
  c->ctx = NULL;
}

/* Sets the nonce and the associated data, which is authenticated but not encrypted, of the next
 * frame. */
static bool set_nonce_and_aad(clv_seal_cipher *c, bool is_last) {
  uint8_t nonce[12] = {0};
  int n;
  for (int i = 0; i < 8; i++) nonce[10 - i] = (uint8_t)(c->frame_index >> (8 * i));
  nonce[11] = is_last;
  c->frame_index++;
  return EVP_CipherInit_ex(c->ctx, NULL, NULL, NULL, nonce, -1) == 1 &&
         EVP_CipherUpdate(c->ctx, NULL, &n, c->header, sizeof c->header) == 1 &&
         EVP_CipherUpdate(c->ctx, NULL, &n, (const uint8_t *)c->name, (int)strlen(c->name)) == 1;
}

clv_code clv_seal_encrypt(clv_seal_cipher *c, const void *data, size_t len, bool is_last,
                          uint8_t *dst, clv_err *err) {
  int n = 0, n_last = 0;
  bool ok = set_nonce_and_aad(c, is_last) &&
            (!len || EVP_CipherUpdate(c->ctx, dst, &n, data, (int)len) == 1) &&
            EVP_CipherFinal_ex(c->ctx, dst + n, &n_last) == 1 && (size_t)(n + n_last) == len &&
            EVP_CIPHER_CTX_ctrl(c->ctx, EVP_CTRL_AEAD_GET_TAG, CLV_SEAL_TAG_BYTES, dst + len) == 1;
  return ok ? CLV_OK : fail_cipher(err);
}

bool clv_seal_decrypt(clv_seal_cipher *c, uint8_t *encrypted_frame, size_t len, bool is_last,
                      uint8_t *dst) {
  int n = 0, n_last = 0;
  return set_nonce_and_aad(c, is_last) &&
         (!len || EVP_CipherUpdate(c->ctx, dst, &n, encrypted_frame, (int)len) == 1) &&
         EVP_CIPHER_CTX_ctrl(c->ctx, EVP_CTRL_AEAD_SET_TAG, CLV_SEAL_TAG_BYTES,
                             encrypted_frame + len) == 1 &&
         EVP_CipherFinal_ex(c->ctx, dst + n, &n_last) == 1;
}
