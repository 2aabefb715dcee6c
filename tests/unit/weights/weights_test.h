/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes safetensors bytes from a header and data written by hand, for the tests of
 * common/model/weights.
 */
#ifndef CLEAVE_WEIGHTS_TEST_H
#define CLEAVE_WEIGHTS_TEST_H

#include <sys/stat.h>

#include "common/model/weights/weights.h"
#include "tests/unit/files.h"

/* Returns the bytes of a safetensors file: the header's length, the header, and n_data zero bytes.
 */
static inline clv_bytes make_raw_file(const char *header, size_t n_data) {
  clv_bytes b = {0};
  uint64_t n = strlen(header);
  clv_bytes_add(&b, &n, 8);
  clv_bytes_puts(&b, header);
  for (size_t i = 0; i < n_data; i++) clv_bytes_add(&b, "", 1);
  assert_false(b.failed);
  return b;
}

#endif
