/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes WordPiece: a vocab.txt and a text. The first byte says how case and accents are treated.
 */
#include "tests/fuzz/fuzz_tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char valid_vocabulary[] =
      "[UNK]\n[SEP]\na\n##b\n##a\nab\n!\n\xc3\xa9\n\xe6\xbc\xa2\n#\n##\n###\n";
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  clv_err err = {0};
  if (!size) return 0;
  clv_tokenizer_options o = {.keeps_case = data[0] & 1, .accents = (clv_accents)(data[0] / 2 % 3)};
  const char *text = (const char *)data + 1, *nul = memchr(text, '\0', size - 1);
  size_t file = nul ? (size_t)(nul - text) : 0, len = size - 1 - file - (nul != NULL);
  clv_code code = nul ? clv_wordpiece_parse(text, file, "fuzz", &o, &t, &err)
                      : clv_wordpiece_parse(valid_vocabulary, sizeof valid_vocabulary - 1, "good",
                                            &o, &t, &err);
  NEVER(code != CLV_OK && (!nul || !strstr(err.text, "fuzz:")));
  if (code == CLV_OK) encode_text(t, nul ? nul + 1 : text, len);
  return 0;
}
