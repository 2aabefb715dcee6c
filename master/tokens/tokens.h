/* SPDX-License-Identifier: Apache-2.0
 *
 * tokens: text to token numbers, as the tokenizers of Hugging Face do it: WordPiece from a
 * vocab.txt (BERT, LayoutLM), byte-level BPE from a tokenizer.json (GPT-2, RoBERTa, Qwen2,
 * Llama 3).
 * What such a file asks for and is not here is refused by its name.
 *
 * Files may be anybody's: they are bounded in every direction, and errors say line and column.
 * Ownership: a tokenizer copies what it needs. Threads: it never changes and may be used by many.
 */
#ifndef CLEAVE_TOKENS_H
#define CLEAVE_TOKENS_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CLV_TOKENS_MAX_FILE = 64 << 20, /* bytes */
  CLV_TOKENS_MAX_TOKEN = 1024,    /* bytes */
  CLV_TOKENS_MAX_ID = 4 << 20,    /* numbers are below it */
};

typedef enum clv_accents {
  CLV_ACCENTS_AUTO = 0, /* stripped where text becomes lower-case */
  CLV_ACCENTS_KEEP,
  CLV_ACCENTS_STRIP,
} clv_accents;

/* Of WordPiece; a tokenizer.json says itself what it wants. */
typedef struct clv_tokenizer_options {
  bool keep_case;
  clv_accents accents;
} clv_tokenizer_options;

typedef struct clv_tokenizer clv_tokenizer;

/* By the name: *.json is byte-level BPE, everything else a list of pieces, one a line. CLV_INVALID,
 * CLV_EXHAUSTED and CLV_NOT_FOUND name the file, and the place in it. */
clv_code clv_tokenizer_open(const char *path, const clv_tokenizer_options *options,
                            clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;
/* From memory; `label` stands for the file's name. */
clv_code clv_wordpiece_parse(const char *text, size_t len, const char *label,
                             const clv_tokenizer_options *options, clv_tokenizer **ret,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_bpe_parse(const char *text, size_t len, const char *label, clv_tokenizer **ret,
                       clv_err *err) CLV_USE_RESULT;
void clv_tokenizer_free(clv_tokenizer *t);
void clv_tokenizer_freep(clv_tokenizer **t);

/* A growing list of token numbers. Zero-initialise; release with clv_ids_done. */
typedef struct clv_ids {
  int32_t *at;
  size_t n, cap;
} clv_ids;

void clv_ids_done(clv_ids *ids);
clv_code clv_ids_add(clv_ids *ids, int32_t id, clv_err *err) CLV_USE_RESULT;

/* Appends the tokens of a text, without those that stand at its ends. CLV_INVALID: no UTF-8; the
 * message says at which byte. */
clv_code clv_tokenizer_encode(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                              clv_err *err) CLV_USE_RESULT;

/* The number of a token by its text; -1: it has none. */
int32_t clv_tokenizer_token_id(const clv_tokenizer *t, const char *token);
/* What a tokenizer.json does around a text (post_processor, padding, truncation): tokens before and
 * behind it, the one that fills, each -1 where it says nothing; and how many tokens a text has at
 * most, these included; 0: any number. */
typedef struct clv_tokenizer_ends {
  int32_t before, after, filler;
  int64_t most;
} clv_tokenizer_ends;
clv_tokenizer_ends clv_tokenizer_ends_of(const clv_tokenizer *t);
/* One more than the largest number. */
int32_t clv_tokenizer_vocab_size(const clv_tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
