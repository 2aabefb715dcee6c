/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 digests, HMAC and derived keys with libcrypto; CRC32C.
 */
#include "common/base/base.h"

#include <errno.h>
#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

clv_code clv_sha256_of(const void *data, size_t len, clv_sha256 *ret, clv_err *err) {
  if (EVP_Digest(data, len, ret->bytes, NULL, EVP_sha256(), NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "SHA-256 is not available in libcrypto");
  return CLV_OK;
}

static void free_md(EVP_MD_CTX **ctx) { EVP_MD_CTX_free(*ctx); }
static void close_file(FILE **f) {
  if (*f) fclose(*f);
}

enum { DIGEST_PIECE_BYTES = 16 << 20 };

clv_code clv_sha256_cancellable(const clv_cancel_hook *cancel_hook, const void *data, size_t len,
                                clv_sha256 *ret, clv_err *err) {
  if (len <= DIGEST_PIECE_BYTES) return clv_sha256_of(data, len, ret, err);
  CLV_AUTO(free_md) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
  bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
  for (size_t done = 0; ok && done < len; done += DIGEST_PIECE_BYTES) {
    CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
    ok = EVP_DigestUpdate(ctx, (const char *)data + done,
                          CLV_MIN(len - done, (size_t)DIGEST_PIECE_BYTES)) == 1;
  }
  if (ok && EVP_DigestFinal_ex(ctx, ret->bytes, NULL) == 1) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL, "SHA-256 is not available in libcrypto");
}

clv_code clv_sha256_file(const char *path, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(close_file) FILE *f = fopen(path, "rbe");
  if (!f)
    return clv_fail(err, errno == ENOENT ? CLV_NOT_FOUND : CLV_INVALID, "%s: %s", path,
                    strerror(errno));
  CLV_AUTO(free_md) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
  if (!ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "SHA-256 is not available in libcrypto");
  char buf[65536];
  size_t n;
  while ((n = fread(buf, 1, sizeof buf, f)) > 0)
    if (EVP_DigestUpdate(ctx, buf, n) != 1)
      return clv_fail(err, CLV_INTERNAL, "%s: SHA-256 failed in libcrypto", path);
  if (ferror(f)) return clv_fail(err, CLV_DATA_LOSS, "%s: read error", path);
  if (EVP_DigestFinal_ex(ctx, ret->bytes, NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "%s: SHA-256 failed in libcrypto", path);
  return CLV_OK;
}

static clv_code digest_fd(EVP_MD_CTX *ctx, int fd, uint64_t bytes,
                          const clv_cancel_hook *cancel_hook, const char *label, clv_err *err) {
  char buf[65536];
  for (uint64_t at = 0; at < bytes;) {
    ssize_t n = pread(fd, buf, (size_t)CLV_MIN(bytes - at, (uint64_t)sizeof buf), (off_t)at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return clv_fail(err, CLV_DATA_LOSS, "%s: %s", label, n ? strerror(errno) : "is cut short");
    if (EVP_DigestUpdate(ctx, buf, (size_t)n) != 1)
      return clv_fail(err, CLV_INTERNAL, "%s: SHA-256 failed in libcrypto", label);
    at += (uint64_t)n;
    if (cancel_hook && at % DIGEST_PIECE_BYTES < sizeof buf)
      CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
  }
  return CLV_OK;
}

clv_code clv_sha256_fd(int fd, uint64_t bytes, const clv_cancel_hook *cancel_hook,
                       const char *label, clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(free_md) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
  if (!ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "SHA-256 is not available in libcrypto");
  CLV_TRY(digest_fd(ctx, fd, bytes, cancel_hook, label, err));
  if (EVP_DigestFinal_ex(ctx, ret->bytes, NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "%s: SHA-256 failed in libcrypto", label);
  return CLV_OK;
}

struct clv_sha256_parts {
  EVP_MD_CTX *ctx;
};

void clv_sha256_parts_freep(clv_sha256_parts **d) {
  if (*d) EVP_MD_CTX_free((*d)->ctx);
  free(*d);
  *d = NULL;
}

clv_code clv_sha256_begin(clv_sha256_parts **ret, clv_err *err) {
  CLV_AUTO(clv_sha256_parts_freep) clv_sha256_parts *d = NULL;
  CLV_TRY(clv_alloc(1, sizeof *d, &d, err));
  d->ctx = EVP_MD_CTX_new();
  if (!d->ctx || EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "SHA-256 is not available in libcrypto");
  *ret = clv_steal(&d);
  return CLV_OK;
}

clv_code clv_sha256_add(clv_sha256_parts *d, const void *data, size_t len, clv_err *err) {
  if (EVP_DigestUpdate(d->ctx, data, len) == 1) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL, "SHA-256 failed in libcrypto");
}

clv_code clv_sha256_end(clv_sha256_parts *d, clv_sha256 *ret, clv_err *err) {
  if (EVP_DigestFinal_ex(d->ctx, ret->bytes, NULL) == 1) return CLV_OK;
  return clv_fail(err, CLV_INTERNAL, "SHA-256 failed in libcrypto");
}

void clv_hex(const uint8_t *bytes, size_t n, char *ret) {
  for (size_t i = 0; i < n; i++) snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

void clv_sha256_hex(const clv_sha256 *digest, char hex[65]) { clv_hex(digest->bytes, 32, hex); }

static int parse_hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool clv_hex_parse(const char *hex, uint8_t *ret, size_t n) {
  if (strlen(hex) != 2 * n) return false;
  for (size_t i = 0; i < 2 * n; i++)
    if (parse_hex_digit(hex[i]) < 0) return false;
  for (size_t i = 0; i < n; i++)
    ret[i] = (uint8_t)(parse_hex_digit(hex[2 * i]) * 16 + parse_hex_digit(hex[2 * i + 1]));
  return true;
}

bool clv_sha256_parse(const char *hex, clv_sha256 *ret) {
  return clv_hex_parse(hex, ret->bytes, sizeof ret->bytes);
}

clv_code clv_hmac_sha256(const clv_sha256 *secret, const void *data, size_t len, clv_sha256 *ret,
                         clv_err *err) {
  unsigned n = sizeof ret->bytes;
  if (!HMAC(EVP_sha256(), secret->bytes, sizeof secret->bytes, data, len, ret->bytes, &n))
    return clv_fail(err, CLV_INTERNAL, "HMAC-SHA256 is not available in libcrypto");
  return CLV_OK;
}

clv_code clv_key_derive(const char *domain, const clv_key *seed, const void *of, size_t len,
                        clv_key *ret, clv_err *err) {
  uint8_t text[192];
  size_t n = strlen(domain) + 1;
  clv_sha256 digest;
  if (n + sizeof *seed + len > sizeof text || len > CLV_KEY_MAX_INPUT)
    return clv_fail(err, CLV_INTERNAL, "a key of %zu bytes in '%s'", len, domain);
  memcpy(text, domain, n);
  memcpy(text + n, seed, sizeof *seed);
  if (len) memcpy(text + n + sizeof *seed, of, len);
  clv_code code = clv_sha256_of(text, n + sizeof *seed + len, &digest, err);
  explicit_bzero(text, sizeof text);
  if (code == CLV_OK) memcpy(ret->bytes, digest.bytes, sizeof ret->bytes);
  explicit_bzero(&digest, sizeof digest);
  return code;
}

uint32_t clv_crc32c(uint32_t crc, const void *data, size_t len) {
  const unsigned char *p = data;
  crc = ~crc;
  while (len) { /* the library takes an int length */
    size_t part = CLV_MIN(len, (size_t)1 << 30);
    crc = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)part, crc);
    p += part;
    len -= part;
  }
  return ~crc;
}
