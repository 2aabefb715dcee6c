/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that the tests of master/data share: files made by hand, plain and gzipped, in a
 * scratch folder.
 */
#ifndef CLEAVE_DATA_TEST_H
#define CLEAVE_DATA_TEST_H

#include <zlib.h>

#include "master/data/data.h"
#include "tests/unit/files.h"

static inline const char *write_gzip_file(const char *name, const void *data, size_t len) {
  const char *path = at(name);
  gzFile f = gzopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(gzwrite(f, data, (unsigned)len), (int)len);
  assert_int_equal(gzclose(f), Z_OK);
  return path;
}

/* Returns the bytes of an IDX file: magic, extents, data. */
static inline clv_bytes make_idx_bytes(uint8_t type, int rank, const uint32_t *extent,
                                       const void *data, size_t len) {
  clv_bytes b = {0};
  uint8_t magic[4] = {0, 0, type, (uint8_t)rank};
  clv_bytes_add(&b, magic, 4);
  for (int i = 0; i < rank; i++) {
    uint32_t e = __builtin_bswap32(extent[i]);
    clv_bytes_add(&b, &e, 4);
  }
  clv_bytes_add(&b, data, len);
  assert_false(b.failed);
  return b;
}

static inline clv_bytes make_npy_bytes(const char *dict, const void *data, size_t len) {
  clv_bytes b = {0};
  size_t n = strlen(dict) + 1, pad = (64 - (10 + n) % 64) % 64;
  uint8_t head[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)(n + pad), (uint8_t)((n + pad) >> 8)};
  clv_bytes_add(&b, head, 10);
  clv_bytes_printf(&b, "%s%*s\n", dict, (int)pad, "");
  clv_bytes_add(&b, data, len);
  assert_false(b.failed);
  return b;
}

#endif
