/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the table of a Precompiled normalizer. The first byte is the length of a text; the table
 * follows the text. Each suffix of the text is looked up in the table.
 */
#include "master/tokens/tokens_int.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text) {
  size_t n = strlen(text);
  NEVER(n > CLV_CHARSMAP_TEXT_BYTES);
  for (size_t i = 0, k; i < n; i += k) {
    uint32_t c;
    k = clv_utf8_decode(text + i, n - i, &c);
    NEVER(!k);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_charsmap_done) clv_charsmap m = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes table = {0};
  const char *wrong = NULL;
  clv_err err = {0};
  size_t len = size ? data[0] : 0;
  if (size < 1 + len) return 0;
  clv_bytes_add(&table, data + 1 + len, size - 1 - len);
  NEVER(clv_charsmap_parse(&table, &m, &wrong, &err) != CLV_OK);
  for (size_t i = 0; !wrong && i < len; i++) {
    size_t n = CLV_MIN(len - i, (size_t)CLV_CHARSMAP_KEY_BYTES);
    const char *text = clv_charsmap_find(&m, (const char *)data + 1 + i, n);
    if (text) check_text(text);
  }
  return 0;
}
