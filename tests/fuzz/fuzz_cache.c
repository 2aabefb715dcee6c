/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the parser of the header of a cache file. The parts that an accepted header describes must
 * fit into the file, and the header that is written again must be parsed to the same values.
 */
#include <string.h>

#include "tests/fuzz/never.h"
#include "worker/store/cache_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t header_bytes[CLV_CACHE_HEADER_BYTES] = {0}, written_bytes[CLV_CACHE_HEADER_BYTES];
  clv_cache_header h, parsed_again;
  clv_err err = {0};
  memcpy(header_bytes, data, CLV_MIN(size, sizeof header_bytes));
  NEVER(clv_cache_header_parse(data, CLV_MIN(size, (size_t)CLV_CACHE_HEADER_BYTES - 1), &h, &err) ==
        CLV_OK);
  if (clv_cache_header_parse(header_bytes, sizeof header_bytes, &h, &err) != CLV_OK) {
    NEVER(!err.text[0]);
    return 0;
  }
  NEVER(!h.row_bytes || !h.n_records || h.row_shape.rank >= CLV_MAX_RANK);
  NEVER(h.rows_offset < h.row_statuses_offset + CLV_CACHE_ROW_STATUS_BYTES * h.n_records);
  NEVER(h.file_bytes < h.rows_offset + h.n_records * h.row_bytes);
  clv_cache_header_write(&h, written_bytes);
  NEVER(clv_cache_header_parse(written_bytes, sizeof written_bytes, &parsed_again, &err) != CLV_OK);
  NEVER(memcmp(&h.key, &parsed_again.key, sizeof h.key) != 0 ||
        h.file_bytes != parsed_again.file_bytes);
  return 0;
}
