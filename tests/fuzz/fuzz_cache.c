/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser of the header of a cache's file. The parts of an accepted header fit into its
 * file, and the header is written and parsed again.
 */
#include <string.h>

#include "tests/fuzz/never.h"
#include "worker/store/cache_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t whole[CLV_CACHE_HEADER_BYTES] = {0}, again[CLV_CACHE_HEADER_BYTES];
  clv_cache_header h, back;
  clv_err err = {0};
  memcpy(whole, data, CLV_MIN(size, sizeof whole));
  NEVER(clv_cache_header_parse(data, CLV_MIN(size, (size_t)CLV_CACHE_HEADER_BYTES - 1), &h, &err) ==
        CLV_OK);
  if (clv_cache_header_parse(whole, sizeof whole, &h, &err) != CLV_OK) {
    NEVER(!err.text[0]);
    return 0;
  }
  NEVER(!h.row_bytes || !h.n_records || h.row.rank >= CLV_MAX_RANK);
  NEVER(h.rows_at < h.row_marks_at + CLV_CACHE_MARK_BYTES * h.n_records);
  NEVER(h.file_bytes < h.rows_at + h.n_records * h.row_bytes);
  clv_cache_header_write(&h, again);
  NEVER(clv_cache_header_parse(again, sizeof again, &back, &err) != CLV_OK);
  NEVER(memcmp(&h.key, &back.key, sizeof h.key) != 0 || h.file_bytes != back.file_bytes);
  return 0;
}
