/* SPDX-License-Identifier: Apache-2.0
 *
 * seal_int: the format of sealed files, and the cipher that writing and reading share (cipher.c).
 *
 * The header has 48 bytes: the 7 bytes "CLVSEAL", 1 byte with the version 1, 8 bytes with the id of
 * the key (the first bytes of HMAC-SHA256(key, "cleave seal id")), and 32 random bytes, the salt.
 * The frames follow the header, each with its tag of 16 bytes. A frame has CLV_SEAL_FRAME_BYTES
 * bytes; the last frame has the rest, at least 1 byte unless the file is empty.
 *
 * The key of the frames is HMAC-SHA256(key, "cleave seal file" || salt), so each file has its own
 * key. The nonce of frame i has 12 bytes: 3 zeros, i as 8 bytes, the highest first, and 1 for the
 * last frame, else 0. The associated data of each frame are the header and the name of the file.
 */
#ifndef CLEAVE_SEAL_INT_H
#define CLEAVE_SEAL_INT_H

#include <openssl/evp.h>

#include "master/seal/seal.h"

enum {
  CLV_SEAL_VERSION = 1,
  CLV_SEAL_ID_BYTES = 8,
  CLV_SEAL_SALT_BYTES = 32,
  CLV_SEAL_HEADER_BYTES = 48,
  CLV_SEAL_TAG_BYTES = 16,
  /* bytes of an encrypted frame with its tag; only the last frame may be shorter */
  CLV_SEAL_ENCRYPTED_FRAME_BYTES = CLV_SEAL_FRAME_BYTES + CLV_SEAL_TAG_BYTES,
};

/* the 7 bytes "CLVSEAL" with which a sealed file begins, and a NUL */
extern const char clv_seal_magic[8];

/* The cipher of one sealed file. */
typedef struct clv_seal_cipher {
  EVP_CIPHER_CTX *ctx;
  uint8_t header[CLV_SEAL_HEADER_BYTES];
  char name[CLV_SEAL_MAX_NAME_BYTES];
  uint64_t frame_index; /* index of the next frame */
} clv_seal_cipher;

/* Derives the file's key from `key` and the salt of c->header. CLV_INVALID: the name is empty or
 * too long. */
clv_code clv_seal_cipher_init(clv_seal_cipher *c, const clv_seal_key *key, const char *name,
                              bool encrypts, clv_err *err) CLV_USE_RESULT;
void clv_seal_cipher_done(clv_seal_cipher *c);
/* Encrypts the next frame: data [len] to dst [len + CLV_SEAL_TAG_BYTES]. */
clv_code clv_seal_encrypt(clv_seal_cipher *c, const void *data, size_t len, bool is_last,
                          uint8_t *dst, clv_err *err) CLV_USE_RESULT;
/* Decrypts the next frame: encrypted_frame [len + CLV_SEAL_TAG_BYTES] to dst [len]. Returns false
 * if the tag does not match; the bytes at dst are then not to be used. */
bool clv_seal_decrypt(clv_seal_cipher *c, uint8_t *encrypted_frame, size_t len, bool is_last,
                      uint8_t *dst);

/* Computes the id of a key. */
clv_code clv_seal_compute_key_id(const clv_sha256 *secret, uint8_t ret[CLV_SEAL_ID_BYTES],
                                 clv_err *err) CLV_USE_RESULT;

void clv_seal_close_fdp(int *fd); /* closes *fd and sets it to -1; cleanup function for CLV_AUTO */
/* Writes all `len` bytes. CLV_PRECONDITION: the write failed, for example on a full disk. */
clv_code clv_seal_write_all(int fd, const char *path, const void *data, size_t len,
                            clv_err *err) CLV_USE_RESULT;

#endif
