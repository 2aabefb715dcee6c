/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the reader of tokenizer.json. The tokenizer of an accepted file then encodes a text.
 */
#include "master/tokens/tokens_int.h"
#include "tests/fuzz/fuzz_tokens.h"

/* the smallest valid file; an input that is only a text is encoded with its tokenizer */
static const char good_path[] = "tests/fuzz/corpus/tokenizer/qwen2";

static clv_tokenizer *valid_tokenizer(void) {
  static clv_tokenizer *t;
  CLV_AUTO(clv_bytes_done) clv_bytes file = {0};
  clv_err err;
  if (t) return t;
  NEVER(clv_file_read(good_path, 1 << 20, &file, &err) != CLV_OK);
  NEVER(clv_tokenizer_parse_json(file.data, strlen(file.data), "good", &t, &err) != CLV_OK);
  return t;
}

/* Queries the two settings of a tokenizer that are compared with tokenizer_config.json: the options
 * of its BertNormalizer, and whether it puts a space before a text. */
static void find_steps(const clv_tokenizer *t) {
  clv_bert_options flags;
  (void)clv_normalizer_find_bert(t, &flags);
  int prepends = clv_pre_tokenizer_prefix_space(t);
  NEVER(prepends < -1 || prepends > 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  clv_err err = {0};
  const char *text = (const char *)data, *nul = size ? memchr(text, '\0', size) : NULL;
  if (!nul) {
    encode_text(valid_tokenizer(), text, size);
    return 0;
  }
  clv_code code = clv_tokenizer_parse_json(text, (size_t)(nul - text), "fuzz", &t, &err);
  NEVER(code != CLV_OK && !strstr(err.text, "fuzz:"));
  if (code == CLV_OK) find_steps(t);
  if (code == CLV_OK) encode_text(t, nul + 1, size - (size_t)(nul - text) - 1);
  return 0;
}
