/* SPDX-License-Identifier: Apache-2.0
 *
 * tokens: converts texts to token ids, with the same results as the tokenizers of Hugging Face:
 * WordPiece from a vocab.txt (BERT, LayoutLM); WordPiece, BPE and Unigram from a tokenizer.json
 * (BERT, GPT-2, RoBERTa, Llama, Mistral, Qwen, XLM-R, CamemBERT). A file that needs an unsupported
 * feature is refused, and the message names the feature. master/data opens a tokenizer once per
 * dataset and encodes each text with it.
 *
 * Files are untrusted: all sizes have limits, and errors name line and column. Ownership: a
 * tokenizer keeps no pointers to its file's text. Threads: an open tokenizer does not change, so
 * many threads may use it.
 */
#ifndef CLEAVE_TOKENS_H
#define CLEAVE_TOKENS_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CLV_TOKENS_MAX_FILE_BYTES = 64 << 20, /* most bytes of a tokenizer file */
  CLV_TOKENS_MAX_TOKEN_BYTES = 1024,    /* most bytes of the text of a token */
  CLV_TOKENS_MAX_ID = 4 << 20,          /* token ids are below this number */
};

typedef enum clv_accents {
  CLV_ACCENTS_AUTO = 0, /* strip accents if and only if the text is converted to lower case */
  CLV_ACCENTS_KEEP,
  CLV_ACCENTS_STRIP,
} clv_accents;

/* Options of a vocab.txt. A tokenizer.json has its own options. */
typedef struct clv_tokenizer_options {
  bool keeps_case; /* false: the text is converted to lower case */
  clv_accents accents;
  /* [n_ignored_keys] keys of the files beside a tokenizer.json that are skipped although they are
   * not known (model.ignore_keys of a session); caller-owned */
  const char *const *ignored_keys;
  size_t n_ignored_keys;
} clv_tokenizer_options;

typedef struct clv_tokenizer clv_tokenizer;

/* Opens a tokenizer: *.json is a tokenizer.json, any other name is a WordPiece vocabulary with one
 * piece a line. If its name is tokenizer.json, the files tokenizer_config.json and
 * special_tokens_map.json of its folder are compared with it. All errors name the file; CLV_INVALID
 * and CLV_EXHAUSTED also line and column. */
clv_code clv_tokenizer_open(const char *path, const clv_tokenizer_options *options,
                            clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_tokenizer_open, but the contents of the file are in memory. `label` replaces the file name
 * in messages. */
clv_code clv_wordpiece_parse(const char *text, size_t len, const char *label,
                             const clv_tokenizer_options *options, clv_tokenizer **ret,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_tokenizer_parse_json(const char *text, size_t len, const char *label,
                                  clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;
/* Compares the text of a tokenizer_config.json or special_tokens_map.json with the tokenizer of its
 * folder. CLV_INVALID: they differ, or a key is neither known nor in options->ignored_keys. */
clv_code clv_tokenizer_check_settings(const clv_tokenizer *t, const char *text, size_t len,
                                      const char *label, const clv_tokenizer_options *options,
                                      clv_err *err) CLV_USE_RESULT;

/* A row of the table that says how the keys of a tokenizer_config.json and a
 * special_tokens_map.json are treated. Texts are static. */
typedef struct clv_tokenizer_setting {
  /* names of keys, separated by blanks; "*_token": all other keys that end with _token */
  const char *keys;
  const char *outcome; /* treatment of these keys, such as "harmless" or "refused where" */
  const char *reason;
} clv_tokenizer_setting;
/* Returns false if the table has fewer than i + 1 rows. */
bool clv_tokenizer_describe_setting(size_t i, clv_tokenizer_setting *ret);

void clv_tokenizer_free(clv_tokenizer *t);
void clv_tokenizer_freep(clv_tokenizer **t);

/* A growing list of token ids. Zero-initialise; release with clv_ids_done. */
typedef struct clv_ids {
  int32_t *at; /* [n], with capacity cap */
  size_t n, cap;
} clv_ids;

void clv_ids_done(clv_ids *ids);
clv_code clv_ids_add(clv_ids *ids, int32_t id, clv_err *err) CLV_USE_RESULT;

/* Appends the token ids of a text, without the tokens of clv_tokenizer_end_settings. CLV_INVALID:
 * the text is not UTF-8; the message names the byte. CLV_EXHAUSTED: the normalised text has more
 * than 64 * n + 4096 characters, where the original text has n. */
clv_code clv_tokenizer_encode(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                              clv_err *err) CLV_USE_RESULT;

/* Returns the id of the token with this text; -1: there is no such token. */
int32_t clv_tokenizer_token_id(const clv_tokenizer *t, const char *token);
/* Settings of a tokenizer.json for the ends of a text (post_processor, padding, truncation). */
typedef struct clv_tokenizer_end_settings {
  int32_t before, after; /* ids of the tokens put before and after each text; -1: none */
  int32_t pad_id;        /* id of the token that fills a row; -1: the file has no padding */
  /* most tokens of a text including those before and after it; 0: no limit */
  int64_t max_tokens;
} clv_tokenizer_end_settings;
clv_tokenizer_end_settings clv_tokenizer_get_end_settings(const clv_tokenizer *t);
/* Returns one more than the largest token id. */
int32_t clv_tokenizer_vocab_size(const clv_tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
