/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of a plan that was stored on disk. A file is refused unless its first line has
 * the digest of this library and the digest of the other lines, which are the plan's text. The last
 * byte of the input says whether a correct first line is put before it.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/load/load.h"

/* a larger file is refused, whether or not its first line is correct */
enum { MAX_FILE_BYTES = 64 << 10 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_parsed_plan(const char *data, size_t n, const clv_sha256 *digest,
                              bool must_be_accepted) {
  const char *text = NULL;
  size_t len = 0;
  clv_err err = {0};
  clv_code code = clv_plan_parse(data, n, digest, &text, &len, &err);
  if (code != CLV_OK && (must_be_accepted || !err.text[0])) abort();
  if (code == CLV_OK && (len == 0 || text < data || text + len != data + n)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  clv_sha256 digest, text;
  char hex[65];
  clv_err err;
  if (size < 2 || size > MAX_FILE_BYTES || clv_sha256_of("fuzz", 4, &digest, &err) != CLV_OK ||
      clv_sha256_of(data, size - 1, &text, &err) != CLV_OK)
    return 0;
  check_parsed_plan((const char *)data, size, &digest, false);
  if (!(data[size - 1] & 1)) return 0;
  clv_sha256_hex(&digest, hex);
  clv_bytes_printf(&file, "cleave-plan 1 %s", hex);
  clv_sha256_hex(&text, hex);
  clv_bytes_printf(&file, " %s\n", hex);
  clv_bytes_add(&file, data, size - 1);
  if (file.failed) return 0;
  check_parsed_plan(file.data, file.len, &digest, true);
  file.data[data[0] % file.len] ^= 1;
  if (clv_plan_parse(file.data, file.len, &digest, &(const char *){0}, &(size_t){0}, &err) ==
      CLV_OK)
    abort();
  return 0;
}
