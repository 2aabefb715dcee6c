/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of a cache: a head of HEAD bytes, a mark for each record, then its rows. A mark says
 * that the row is there, and what the CRC-32C of its number and bytes is; it is written behind the
 * row. All of it is little-endian, and has its whole length from the start.
 */
#ifndef CLEAVE_STORE_CACHE_INT_H
#define CLEAVE_STORE_CACHE_INT_H

#include "worker/store/store.h"

enum { CLV_CACHE_HEADER_BYTES = 4096, CLV_CACHE_MARK_BYTES = 8 };

typedef struct clv_cache_header {
  clv_sha256 key, owner; /* owner: SHA-256 of the identity */
  uint64_t records, keep_s;
  clv_dtype dtype;
  clv_shape row;      /* of one record */
  uint64_t row_bytes; /* follow from the others, as the next */
  uint64_t marks_at, rows_at, file_bytes;
} clv_cache_header;

/* Fills what follows from records, dtype and row. CLV_INVALID: rows of no bytes, or too many. */
clv_code clv_cache_header_derive(clv_cache_header *h, clv_err *err) CLV_USE_RESULT;
void clv_cache_header_write(const clv_cache_header *h, uint8_t ret[CLV_CACHE_HEADER_BYTES]);
/* CLV_DATA_LOSS: it is none, or damaged. */
clv_code clv_cache_header_parse(const void *data, size_t len, clv_cache_header *ret,
                                clv_err *err) CLV_USE_RESULT;

#endif
