/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokenizer of the fuzz targets of texts and documents: WordPiece of 8 tokens.
 */
#ifndef CLEAVE_TESTS_FUZZ_VOCABULARY_H
#define CLEAVE_TESTS_FUZZ_VOCABULARY_H

#include "master/tokens/tokens.h"
#include "tests/fuzz/never.h"

enum { VOCABULARY_TOKENS = 8 };

/* Returns the tokenizer. The first call makes it, and it is never freed. */
static inline clv_tokenizer *small_tokenizer(void) {
  static const char vocabulary[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\nb\n,\n";
  static const clv_tokenizer_options options;
  static clv_tokenizer *t;
  clv_err err = {0};
  if (!t)
    NEVER(clv_wordpiece_parse(vocabulary, sizeof vocabulary - 1, "good", &options, &t, &err) !=
          CLV_OK);
  return t;
}

#endif
