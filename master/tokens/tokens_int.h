/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tokenizers share: classes of characters, texts as code points, a vocabulary that is
 * walked byte by byte, tokens that are found in raw text. Stays inside master/tokens.
 */
#ifndef CLEAVE_TOKENS_INT_H
#define CLEAVE_TOKENS_INT_H

#include "common/base/json/json.h"
#include "master/tokens/tokens.h"

/* ---- characters (chars.c) -------------------------------------------------------------------- */

/* Unicode's White_Space. */
bool clv_char_is_space(uint32_t c);
bool clv_char_is_letter(uint32_t c);
bool clv_char_is_number(uint32_t c);
/* As BERT has it: ASCII's symbols count. */
bool clv_char_is_punctuation(uint32_t c);
/* As BERT has it: controls, formats and private use, without tab and line ends. */
bool clv_char_is_control(uint32_t c);
bool clv_char_is_cjk(uint32_t c);
bool clv_char_is_mark(uint32_t c); /* a mark without a width */

/* A growing list of code points. */
typedef struct clv_codepoints {
  int32_t *at;
  size_t n, cap;
} clv_codepoints;

void clv_codepoints_done(clv_codepoints *p);
clv_code clv_codepoints_add(clv_codepoints *p, uint32_t c, clv_err *err) CLV_USE_RESULT;
/* CLV_INVALID: no UTF-8. */
clv_code clv_codepoints_from_utf8(clv_codepoints *p, const char *text, size_t len,
                                  clv_err *err) CLV_USE_RESULT;
void clv_codepoint_to_utf8(uint32_t c, clv_bytes *out);
/* Lower case of one character, one or two points. */
size_t clv_codepoint_lower(uint32_t c, uint32_t ret[2]);

/* NFD and NFC of all of them. Marks in a row are sorted in n log n. */
clv_code clv_codepoints_decompose(clv_codepoints *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_codepoints_compose(clv_codepoints *p, clv_err *err) CLV_USE_RESULT;

/* ---- vocabulary (vocab.c) -------------------------------------------------------------------- */

typedef struct clv_vocab_entry {
  uint32_t offset, len; /* of its text */
  int32_t id;
  uint32_t place; /* of the file, for messages: a line, or a byte */
  uint8_t flags;
} clv_vocab_entry;

/* Sorted by text, so that no choice of tokens makes it slow. */
typedef struct clv_vocab {
  clv_bytes text;
  clv_vocab_entry *entries;
  size_t n, cap;
  int32_t most; /* the largest number, -1 of none */
} clv_vocab;

void clv_vocab_done(clv_vocab *v);
clv_code clv_vocab_add(clv_vocab *v, const char *text, size_t len, int32_t id, uint32_t place,
                       uint8_t flags, clv_err *err) CLV_USE_RESULT;
/* After the last one and before all below. False: *ret_twice is there twice, at two places. */
bool clv_vocab_sort(clv_vocab *v, clv_vocab_entry ret_twice[2]);
const clv_vocab_entry *clv_vocab_find(const clv_vocab *v, const char *text, size_t len);

/* All tokens that begin with the `depth` bytes that were stepped over. */
typedef struct clv_vocab_walk {
  size_t low, high;
  uint32_t depth;
} clv_vocab_walk;

clv_vocab_walk clv_vocab_walk_begin(const clv_vocab *v);
/* false: there is none */
bool clv_vocab_walk_step(const clv_vocab *v, clv_vocab_walk *w, char byte);
/* ends here; NULL */
const clv_vocab_entry *clv_vocab_walk_token(const clv_vocab *v, const clv_vocab_walk *w);

/* ---- tokens in raw text (added_tokens.c) ----------------------------------------------------- */

enum { CLV_ADDED_LSTRIP = 1, CLV_ADDED_RSTRIP = 2, CLV_ADDED_MAX_BYTES = 256 /* bytes */ };

/* Where one is: the white space that it swallows belongs to it. */
typedef struct clv_added_token_match {
  size_t start, end;
  int32_t id;
} clv_added_token_match;

/* The first one at or behind `from`, the longest there. */
bool clv_added_token_find(const clv_vocab *added, const char *text, size_t len, size_t from,
                          clv_added_token_match *ret);

/* ---- tokenizers ------------------------------------------------------------------------------ */

typedef struct clv_merge {
  int32_t left, right, id;
  uint32_t rank;
} clv_merge;

typedef enum clv_token_pattern {
  CLV_TOKEN_PATTERN_GPT2,
  CLV_TOKEN_PATTERN_LLAMA3,
  CLV_TOKEN_PATTERN_QWEN2
} clv_token_pattern;

struct clv_tokenizer {
  clv_vocab vocab;
  clv_vocab raw;        /* added tokens that are found in text as it is */
  clv_vocab normalised; /* and in text that was normalised */
  /* The tokens of a text without added ones. */
  clv_code (*encode)(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                     clv_err *err);
  /* WordPiece */
  bool lower, strip;
  int32_t unknown;
  clv_vocab_walk inner; /* behind "##" */
  /* byte-level BPE */
  bool compose, prefix_space, whole_first;
  clv_token_pattern pattern;
  clv_merge *merges; /* sorted by left, right */
  size_t n_merges;
  int32_t of_byte[256];
  int32_t before, after; /* tokens around a text, of post_processor; -1: none */
  int32_t filler;        /* the token of pads, of padding; -1: not given */
  int64_t most;          /* tokens of a text with its ends, of truncation; 0: not given */
};

clv_code clv_tokenizer_new(clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;

/* ---- byte-level BPE -------------------------------------------------------------------------- */

/* Where the piece that begins at `from` < len ends, which is behind it (split.c). */
size_t clv_split_piece_end(clv_token_pattern pattern, const char *text, size_t len, size_t from);

/* The character of the byte alphabet of GPT-2 that stands for a byte (bpe.c). */
uint32_t clv_byte_char(unsigned char byte);
/* The keys that an object may have, and how far it is read. */
typedef struct clv_known_keys {
  const char *const *names;
  size_t n_names;
  const char *what; /* the object, for messages: "an added token" */
  uint32_t seen;    /* a bit for each of `names` */
  size_t n_read;    /* 0: the object was not opened yet */
} clv_known_keys;

/* Reads the next key; *ret_which: its index, -1 at the end of the object. A key that is not known
 * is refused (post_processor.c). */
clv_code clv_read_known_key(clv_json *j, clv_known_keys *k, int *ret_which,
                            clv_err *err) CLV_USE_RESULT;
/* What the keys post_processor, truncation and padding say, whose value comes
 * (post_processor.c). */
clv_code clv_read_post_processor(clv_json *j, clv_tokenizer *t, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_truncation(clv_json *j, clv_tokenizer *t, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_padding(clv_json *j, clv_tokenizer *t, clv_err *err) CLV_USE_RESULT;
const clv_merge *clv_merge_find(const clv_tokenizer *t, int32_t left, int32_t right);
int clv_merge_compare(const void *a, const void *b); /* of clv_merge, by left and right */
clv_code clv_bpe_encode(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                        clv_err *err) CLV_USE_RESULT;

#endif
