/* SPDX-License-Identifier: Apache-2.0
 *
 * The file format of a cache: a header of CLV_CACHE_HEADER_BYTES, a mark for each record, then the
 * rows. A mark says that the row is stored, and has the CRC-32C of its number and bytes; it is
 * written after the row. All numbers are little-endian, and the file has its full length from the
 * start.
 */
#ifndef CLEAVE_STORE_CACHE_INT_H
#define CLEAVE_STORE_CACHE_INT_H

#include "worker/store/store.h"

enum { CLV_CACHE_HEADER_BYTES = 4096, CLV_CACHE_MARK_BYTES = 8 };

typedef struct clv_cache_header {
  clv_sha256 key, owner;      /* owner: SHA-256 of the identity */
  uint64_t n_records, keep_s; /* as in clv_cache */
  clv_dtype dtype;
  clv_shape row; /* shape of one record's row */
  /* derived from the fields above by clv_cache_header_derive, as are the fields below */
  uint64_t row_bytes;
  uint64_t row_marks_at; /* offset of the marks, one for each record */
  uint64_t rows_at;      /* offset of the rows */
  uint64_t file_bytes;   /* length of the file */
} clv_cache_header;

/* Fills the derived fields from n_records, dtype and row. CLV_INVALID: empty rows, or too many
 * bytes. */
clv_code clv_cache_header_derive(clv_cache_header *h, clv_err *err) CLV_USE_RESULT;
void clv_cache_header_write(const clv_cache_header *h, uint8_t ret[CLV_CACHE_HEADER_BYTES]);
/* Reads a header. CLV_DATA_LOSS: the bytes are not a header, or are damaged. */
clv_code clv_cache_header_parse(const void *data, size_t len, clv_cache_header *ret,
                                clv_err *err) CLV_USE_RESULT;

#endif
