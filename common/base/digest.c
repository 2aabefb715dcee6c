/* SPDX-License-Identifier: Apache-2.0 */
#include "common/base/base.h"

#include <errno.h>
#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

clv_code clv_sha256_of(const void *data, size_t len, clv_sha256 *ret, clv_err *err) {
  if (EVP_Digest(data, len, ret->bytes, NULL, EVP_sha256(), NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "SHA-256 is not available in libcrypto");
  return CLV_OK;
}

static void free_md(EVP_MD_CTX **ctx) { EVP_MD_CTX_free(*ctx); }
static void close_file(FILE **f) {
  if (*f) fclose(*f);
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
    if (EVP_DigestUpdate(ctx, buf, n) != 1) return clv_fail(err, CLV_INTERNAL, "SHA-256 failed");
  if (ferror(f)) return clv_fail(err, CLV_DATA_LOSS, "%s: read error", path);
  if (EVP_DigestFinal_ex(ctx, ret->bytes, NULL) != 1)
    return clv_fail(err, CLV_INTERNAL, "SHA-256 failed");
  return CLV_OK;
}

void clv_sha256_hex(const clv_sha256 *digest, char hex[65]) {
  for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest->bytes[i]);
}

static int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool clv_sha256_parse(const char *hex, clv_sha256 *ret) {
  clv_sha256 out;
  if (strlen(hex) != 64) return false;
  for (int i = 0; i < 32; i++) {
    int hi = hex_value(hex[2 * i]), lo = hex_value(hex[2 * i + 1]);
    if (hi < 0 || lo < 0) return false;
    out.bytes[i] = (uint8_t)(hi * 16 + lo);
  }
  *ret = out;
  return true;
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
