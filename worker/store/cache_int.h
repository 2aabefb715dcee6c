/* SPDX-License-Identifier: Apache-2.0
 *
 * The file format of a cache: a header of CLV_CACHE_HEADER_BYTES, a row status for each record,
 * then a row for each record. A row status says whether the row is stored, and has the CRC-32C of
 * the row's number and bytes; it is written after the row. All numbers are little-endian. A new
 * file has its full length at once.
 */
#ifndef CLEAVE_STORE_CACHE_INT_H
#define CLEAVE_STORE_CACHE_INT_H

#include "worker/store/store.h"

enum { CLV_CACHE_HEADER_BYTES = 4096, CLV_CACHE_ROW_STATUS_BYTES = 8 };

/* Header of a cache. */
typedef struct clv_cache_header {
  clv_sha256 key;             /* key of the cache */
  clv_sha256 owner;           /* SHA-256 of the identity that owns the cache */
  uint64_t n_records, keep_s; /* as in clv_cache */
  clv_dtype dtype;
  clv_shape row_shape; /* shape of one record's row */
  /* bytes of a row. clv_cache_header_derive computes this field and those below it */
  uint64_t row_bytes;
  uint64_t row_statuses_offset; /* offset in the file of the row statuses */
  uint64_t rows_offset;         /* offset in the file of the rows */
  uint64_t file_bytes;          /* length of the file */
} clv_cache_header;

/* Computes row_bytes, the offsets and file_bytes from n_records, dtype and row_shape. CLV_INVALID:
 * the rows are empty, or the file would be too large. */
clv_code clv_cache_header_derive(clv_cache_header *h, clv_err *err) CLV_USE_RESULT;
/* Encodes a header. */
void clv_cache_header_write(const clv_cache_header *h, uint8_t ret[CLV_CACHE_HEADER_BYTES]);
/* Decodes a header. CLV_DATA_LOSS: the bytes are not a header, or are damaged. */
clv_code clv_cache_header_parse(const void *data, size_t len, clv_cache_header *ret,
                                clv_err *err) CLV_USE_RESULT;

#endif
