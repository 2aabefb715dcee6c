/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of IDX data, from memory, from a file and from a mapped file.
 */
#include "tests/fuzz/fuzz_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  read_from_memory_and_file(clv_idx_parse, &clv_array_reader_idx, data, size);
  return 0;
}
