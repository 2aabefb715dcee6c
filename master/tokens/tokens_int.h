/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the tokenizers: classes of characters, texts as code points, a vocabulary with prefix
 * search, and tokens that are found in raw text. Private to master/tokens.
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
/* As in BERT: ASCII symbols count as punctuation. */
bool clv_char_is_punctuation(uint32_t c);
/* As in BERT: controls, formats and private use, but not tab and line ends. */
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
/* Lower case of a character. Returns the number of code points in ret, 1 or 2. */
size_t clv_codepoint_lower(uint32_t c, uint32_t ret[2]);

/* Convert the list to NFD and to NFC. A run of n marks is sorted in O(n log n). */
clv_code clv_codepoints_decompose(clv_codepoints *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_codepoints_compose(clv_codepoints *p, clv_err *err) CLV_USE_RESULT;

/* ---- vocabulary (vocab.c) -------------------------------------------------------------------- */

typedef struct clv_vocab_entry {
  uint32_t offset, len; /* its text, in clv_vocab.text */
  int32_t id;
  uint32_t place; /* line or byte in the file, for messages */
  uint8_t flags;  /* CLV_ADDED_* bits */
} clv_vocab_entry;

/* A list of tokens, sorted by text, so that a search is fast for any choice of tokens. */
typedef struct clv_vocab {
  clv_bytes text;
  clv_vocab_entry *entries;
  size_t n, cap;
  int32_t most; /* largest id; -1: no tokens */
} clv_vocab;

void clv_vocab_done(clv_vocab *v);
clv_code clv_vocab_add(clv_vocab *v, const char *text, size_t len, int32_t id, uint32_t place,
                       uint8_t flags, clv_err *err) CLV_USE_RESULT;
/* Sorts the list. Call it after the last clv_vocab_add, before the functions below. False: a token
 * occurs twice; ret_twice has both entries in the order of the file. */
bool clv_vocab_sort(clv_vocab *v, clv_vocab_entry ret_twice[2]);
const clv_vocab_entry *clv_vocab_find(const clv_vocab *v, const char *text, size_t len);

/* A prefix search: the tokens that begin with the bytes given so far. */
typedef struct clv_vocab_walk {
  size_t low, high; /* range of entries with this prefix */
  uint32_t depth;   /* bytes of the prefix */
} clv_vocab_walk;

clv_vocab_walk clv_vocab_walk_begin(const clv_vocab *v);
/* Extends the prefix by a byte. False: no token has this prefix. */
bool clv_vocab_walk_step(const clv_vocab *v, clv_vocab_walk *w, char byte);
/* Token that equals the prefix; NULL: there is none. */
const clv_vocab_entry *clv_vocab_walk_token(const clv_vocab *v, const clv_vocab_walk *w);

/* ---- tokens in raw text (added_tokens.c) ----------------------------------------------------- */

enum { CLV_ADDED_LSTRIP = 1, CLV_ADDED_RSTRIP = 2, CLV_ADDED_MAX_BYTES = 256 /* bytes */ };

/* An added token in a text. */
typedef struct clv_added_token_match {
  size_t start, end; /* bytes of the text, including the white space that the token strips */
  int32_t id;
} clv_added_token_match;

/* Finds the first added token at or after `from`, the longest one at that position. */
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
  clv_vocab raw;        /* added tokens to find in the original text */
  clv_vocab normalised; /* added tokens to find in the normalised text */
  /* Encodes a text that contains no added tokens. */
  clv_code (*encode)(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                     clv_err *err);
  /* WordPiece */
  bool lower, strip;           /* convert to lower case; strip accents */
  int32_t unknown;             /* token of an unknown word */
  clv_vocab_walk after_hashes; /* prefix search after "##" */
  /* byte-level BPE */
  bool compose;      /* normalise to NFC */
  bool prefix_space; /* add a space before a text */
  bool whole_first;  /* ignore_merges: a piece that is a token is not merged */
  clv_token_pattern pattern;
  clv_merge *merges; /* sorted by left, right */
  size_t n_merges;
  int32_t of_byte[256];  /* token of each byte */
  int32_t before, after; /* post_processor: tokens before and after a text; -1: none */
  int32_t filler;        /* padding: token of pads; -1: not given */
  int64_t most;          /* truncation: most tokens of a text with its ends; 0: not given */
};

clv_code clv_tokenizer_new(clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;

/* ---- byte-level BPE -------------------------------------------------------------------------- */

/* End of the piece that begins at `from` < len; greater than `from` (split.c). */
size_t clv_split_piece_end(clv_token_pattern pattern, const char *text, size_t len, size_t from);

/* Character for a byte in the byte alphabet of GPT-2 (bpe.c). */
uint32_t clv_byte_char(unsigned char byte);
/* Known keys of a JSON object, and the progress of reading it. */
typedef struct clv_known_keys {
  const char *const *names;
  size_t n_names;
  const char *what; /* the object, for messages: "an added token" */
  uint32_t seen;    /* a bit per name: the key has been read */
  size_t n_read;    /* keys read; 0: the object has not been opened */
} clv_known_keys;

/* Reads the next key. *ret_which: its index in names; -1: end of the object. Refuses an unknown key
 * (post_processor.c). */
clv_code clv_read_known_key(clv_json *j, clv_known_keys *k, int *ret_which,
                            clv_err *err) CLV_USE_RESULT;
/* Read the value of the key post_processor, truncation or padding into t (post_processor.c). */
clv_code clv_read_post_processor(clv_json *j, clv_tokenizer *t, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_truncation(clv_json *j, clv_tokenizer *t, clv_err *err) CLV_USE_RESULT;
clv_code clv_read_padding(clv_json *j, clv_tokenizer *t, clv_err *err) CLV_USE_RESULT;
const clv_merge *clv_merge_find(const clv_tokenizer *t, int32_t left, int32_t right);
int clv_merge_compare(const void *a, const void *b); /* compares clv_merge by left, then right */
clv_code clv_bpe_encode(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                        clv_err *err) CLV_USE_RESULT;

#endif
