/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of run.json. An accepted record is written and read again as the same text.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/weights/weights.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_run_record_clear) clv_run_record r = {0}, parsed_again = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes first = {0}, second = {0};
  clv_err err = {0};
  clv_code code = clv_run_record_parse(data, size, "fuzz", &r, &err);
  NEVER((code == CLV_OK) != (r.n_attempts > 0) || (code != CLV_OK && !err.text[0]));
  if (code != CLV_OK) return 0;
  NEVER(clv_run_record_format(&r, &first, &err) != CLV_OK ||
        clv_run_record_parse(first.data, first.len, "again", &parsed_again, &err) != CLV_OK ||
        clv_run_record_format(&parsed_again, &second, &err) != CLV_OK || first.len != second.len ||
        memcmp(first.data, second.data, first.len) != 0);
  return 0;
}
