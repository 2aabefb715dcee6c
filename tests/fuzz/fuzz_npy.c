/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of .npy data, from memory, from a file and from a mapped file, and the function
 * that maps the cache of a table (clv_npy_map). All must read the same values.
 */
#include "tests/fuzz/fuzz_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL, *mapped = NULL;
  clv_err err = {0};
  read_from_memory_and_file(clv_npy_parse, &clv_array_reader_npy, data, size);
  if (clv_npy_parse(data, size, "fuzz", MAX_BYTES, &t, &err) != CLV_OK) return 0;
  NEVER(clv_npy_map(put_in_file(data, size), &mapped, &err) != CLV_OK);
  compare_tensors(t, mapped);
  return 0;
}
