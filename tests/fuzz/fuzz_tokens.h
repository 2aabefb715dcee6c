/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the fuzz targets of tokenizers. An input is a tokenizer file, a NUL, and a text;
 * without a NUL it is a text for a tokenizer that is known to be valid. One .c file of each target
 * includes this header.
 */
#ifndef CLEAVE_TESTS_FUZZ_TOKENS_H
#define CLEAVE_TESTS_FUZZ_TOKENS_H

#include "master/tokens/tokens.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode_text(const clv_tokenizer *t, const char *text, size_t len) {
  CLV_AUTO(clv_ids_done) clv_ids ids = {0};
  clv_err err = {0};
  clv_code code = clv_tokenizer_encode(t, text, len, &ids, &err);
  NEVER(code != CLV_OK && code != CLV_INVALID && code != CLV_EXHAUSTED);
  NEVER(code == CLV_INVALID && !strstr(err.text, "not UTF-8"));
  NEVER(code == CLV_EXHAUSTED && !strstr(err.text, "the normalizer of the tokenizer makes more"));
  for (size_t i = 0; i < ids.n; i++)
    NEVER(ids.at[i] < 0 || ids.at[i] >= clv_tokenizer_vocab_size(t));
}

#endif
