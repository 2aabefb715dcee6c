/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "worker/store/cache_int.h"

static const char magic[8] = "clvcache";

/* Layout of the header in the file. Zeros fill the header up to CLV_CACHE_HEADER_BYTES. */
typedef struct header_layout {
  char magic[8];
  uint32_t version, dtype;
  clv_sha256 key, owner;
  uint64_t n_records, keep_s, rank;
  int64_t dim[CLV_MAX_RANK];
  uint32_t crc32c; /* checksum of the fields before this field */
  uint32_t reserved_zero;
} header_layout;

_Static_assert(sizeof(header_layout) <= CLV_CACHE_HEADER_BYTES, "a head holds it");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers lie in files as in memory");

enum { FORMAT_VERSION = 1 };

static uint32_t compute_header_crc(const header_layout *b) {
  return clv_crc32c(0, b, offsetof(header_layout, crc32c));
}

clv_code clv_cache_header_derive(clv_cache_header *h, clv_err *err) {
  size_t row_bytes, all_rows_bytes, file_bytes;
  CLV_TRY(clv_shape_bytes(&h->row_shape, h->dtype, &row_bytes, err));
  uint64_t statuses_bytes = CLV_CACHE_ROW_STATUS_BYTES * h->n_records;
  if (!row_bytes || !h->n_records || h->n_records > (uint64_t)1 << 32)
    return clv_fail(err, CLV_INVALID, "a cache of %llu rows of %zu bytes",
                    (unsigned long long)h->n_records, row_bytes);
  h->row_bytes = row_bytes;
  h->row_statuses_offset = CLV_CACHE_HEADER_BYTES;
  h->rows_offset = clv_align_up(CLV_CACHE_HEADER_BYTES + statuses_bytes, CLV_CACHE_HEADER_BYTES);
  if (!clv_mul_size(row_bytes, h->n_records, &all_rows_bytes) ||
      !clv_add_size(all_rows_bytes, h->rows_offset, &file_bytes) || file_bytes > (uint64_t)1 << 50)
    return clv_fail(err, CLV_INVALID, "a cache of %llu rows of %zu bytes is too large",
                    (unsigned long long)h->n_records, row_bytes);
  h->file_bytes = clv_align_up(file_bytes, CLV_CACHE_HEADER_BYTES);
  return CLV_OK;
}

void clv_cache_header_write(const clv_cache_header *h, uint8_t ret[CLV_CACHE_HEADER_BYTES]) {
  header_layout b = {.version = FORMAT_VERSION,
                     .dtype = h->dtype,
                     .key = h->key,
                     .owner = h->owner,
                     .n_records = h->n_records,
                     .keep_s = h->keep_s,
                     .rank = (uint64_t)h->row_shape.rank};
  memcpy(b.magic, magic, sizeof b.magic);
  for (int i = 0; i < h->row_shape.rank; i++) b.dim[i] = h->row_shape.dim[i];
  b.crc32c = compute_header_crc(&b);
  memset(ret, 0, CLV_CACHE_HEADER_BYTES);
  memcpy(ret, &b, sizeof b);
}

clv_code clv_cache_header_parse(const void *data, size_t len, clv_cache_header *ret, clv_err *err) {
  header_layout b;
  if (len < CLV_CACHE_HEADER_BYTES)
    return clv_fail(err, CLV_DATA_LOSS, "a cache's header has %zu bytes", len);
  memcpy(&b, data, sizeof b);
  if (memcmp(b.magic, magic, sizeof magic) != 0 || b.version != FORMAT_VERSION ||
      b.crc32c != compute_header_crc(&b))
    return clv_fail(err, CLV_DATA_LOSS,
                    "the header of the cache is damaged, or the file is not a cache");
  if (b.rank >= CLV_MAX_RANK || !clv_dtype_size((clv_dtype)b.dtype))
    return clv_fail(err, CLV_DATA_LOSS, "a cache of %llu dimensions of dtype %u",
                    (unsigned long long)b.rank, b.dtype);
  clv_cache_header h = {.key = b.key,
                        .owner = b.owner,
                        .n_records = b.n_records,
                        .keep_s = b.keep_s,
                        .dtype = (clv_dtype)b.dtype,
                        .row_shape.rank = (int)b.rank};
  for (int i = 0; i < h.row_shape.rank; i++) h.row_shape.dim[i] = b.dim[i];
  clv_err why;
  if (clv_cache_header_derive(&h, &why) != CLV_OK)
    return clv_fail(err, CLV_DATA_LOSS, "%s", why.text);
  *ret = h;
  return CLV_OK;
}
