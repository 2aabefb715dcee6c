/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the check that compares tokenizer_config.json and special_tokens_map.json with a
 * tokenizer, for three tokenizers of different kinds. A file must also be accepted if unknown keys
 * are ignored.
 */
#include "master/tokens/tokens.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Files of three small tokenizers, with BertNormalizer, with ByteLevel and with Metaspace, with
 * which the settings are compared. */
static const char *const paths[] = {"tests/golden/tokens/bert.json",
                                    "tests/golden/tokens/gpt2.json",
                                    "tests/golden/tokens/xlmr.json"};

static const clv_tokenizer *get_tokenizer(size_t i) {
  static clv_tokenizer *tokenizers[CLV_COUNT(paths)];
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  clv_err err;
  if (tokenizers[i]) return tokenizers[i];
  NEVER(clv_file_read(paths[i], 1 << 20, &file, &err) != CLV_OK);
  NEVER(clv_tokenizer_parse_json(file.data, file.len, "good", &tokenizers[i], &err) != CLV_OK);
  return tokenizers[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const unknown[] = {"auto_map", "surprise"};
  static const clv_tokenizer_options default_options = {0},
                                     ignoring_options = {.ignored_keys = unknown,
                                                         .n_ignored_keys = CLV_COUNT(unknown)};
  for (size_t i = 0; i < CLV_COUNT(paths); i++) {
    clv_err err = {0}, other_err = {0};
    clv_code code = clv_tokenizer_check_settings(get_tokenizer(i), (const char *)data, size, "fuzz",
                                                 &default_options, &err);
    clv_code ignoring_code = clv_tokenizer_check_settings(
        get_tokenizer(i), (const char *)data, size, "fuzz", &ignoring_options, &other_err);
    NEVER(code == CLV_OK && ignoring_code != CLV_OK);
    NEVER(code != CLV_OK && !strstr(err.text, "fuzz:"));
  }
  return 0;
}
