/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and functions that the files of master/tokens share: classes of characters, texts as code
 * points, a vocabulary with prefix search, and added tokens, which are found in raw text.
 */
#ifndef CLEAVE_TOKENS_INT_H
#define CLEAVE_TOKENS_INT_H

#include "common/base/json/json.h"
#include "master/tokens/tokens.h"

/* ---- characters (chars.c) -------------------------------------------------------------------- */

/* True if Unicode's property White_Space holds. */
bool clv_char_is_space(uint32_t c);
bool clv_char_is_letter(uint32_t c);
bool clv_char_is_number(uint32_t c);
/* True for punctuation as BERT defines it: ASCII symbols count, too. */
bool clv_char_is_punctuation(uint32_t c);
/* True for control characters as BERT defines them: controls, formats and private use, but not tab
 * and line ends. */
bool clv_char_is_control(uint32_t c);
bool clv_char_is_cjk(uint32_t c);
bool clv_char_is_mark(uint32_t c); /* true for a mark without a width (category Mn) */

/* A growing list of code points. */
typedef struct clv_codepoints {
  int32_t *at;
  size_t n, cap;
} clv_codepoints;

void clv_codepoints_done(clv_codepoints *p);
clv_code clv_codepoints_add(clv_codepoints *p, uint32_t c, clv_err *err) CLV_USE_RESULT;
/* Appends the code points of a text. CLV_INVALID: the text is not UTF-8. */
clv_code clv_codepoints_from_utf8(clv_codepoints *p, const char *text, size_t len,
                                  clv_err *err) CLV_USE_RESULT;
void clv_codepoint_to_utf8(uint32_t c, clv_bytes *out);
/* Converts a character to lower case. Returns the number of code points in ret, 1 or 2. */
size_t clv_codepoint_lower(uint32_t c, uint32_t ret[2]);

/* Convert the list to NFD and to NFC. A run of n marks is sorted in O(n log n). */
clv_code clv_codepoints_decompose(clv_codepoints *p, clv_err *err) CLV_USE_RESULT;
clv_code clv_codepoints_compose(clv_codepoints *p, clv_err *err) CLV_USE_RESULT;

/* ---- vocabulary (vocab.c) -------------------------------------------------------------------- */

typedef struct clv_vocab_entry {
  uint32_t offset, len; /* position of the token's text in clv_vocab.text */
  int32_t id;
  uint32_t place; /* line, or byte, of the token in the file, for messages */
  uint8_t flags;  /* set of CLV_ADDED_... bits */
} clv_vocab_entry;

/* A list of tokens, sorted by text, so that a search is fast for any choice of tokens. */
typedef struct clv_vocab {
  clv_bytes text;
  clv_vocab_entry *entries;
  size_t n, cap;
  int32_t most; /* largest token id; -1: the list has no tokens */
} clv_vocab;

void clv_vocab_done(clv_vocab *v);
clv_code clv_vocab_add(clv_vocab *v, const char *text, size_t len, int32_t id, uint32_t place,
                       uint8_t flags, clv_err *err) CLV_USE_RESULT;
/* Sorts the list. Call it after the last clv_vocab_add, before the functions below. False: a token
 * occurs twice; ret_twice receives both entries in the order of the file. */
bool clv_vocab_sort(clv_vocab *v, clv_vocab_entry ret_twice[2]);
const clv_vocab_entry *clv_vocab_find(const clv_vocab *v, const char *text, size_t len);

/* State of a prefix search: the range of tokens that begin with the bytes given so far. */
typedef struct clv_vocab_walk {
  size_t low, high; /* low..high - 1: entries with this prefix */
  uint32_t depth;   /* number of bytes of the prefix */
} clv_vocab_walk;

clv_vocab_walk clv_vocab_walk_begin(const clv_vocab *v);
/* Extends the prefix by a byte. False: no token has this prefix. */
bool clv_vocab_walk_step(const clv_vocab *v, clv_vocab_walk *w, char byte);
/* Returns the token that equals the prefix; NULL: there is none. */
const clv_vocab_entry *clv_vocab_walk_token(const clv_vocab *v, const clv_vocab_walk *w);

/* ---- tokens in raw text (added_tokens.c) ----------------------------------------------------- */

enum { CLV_ADDED_LSTRIP = 1, CLV_ADDED_RSTRIP = 2, CLV_ADDED_MAX_BYTES = 256 /* bytes */ };

/* An added token that was found in a text. */
typedef struct clv_added_token_match {
  /* range of bytes in the text, including the white space that the token strips */
  size_t start, end;
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
  clv_vocab raw_added;        /* added tokens to find in the original text */
  clv_vocab normalised_added; /* added tokens to find in the normalised text */
  /* Encodes a text that contains no added tokens. */
  clv_code (*encode)(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                     clv_err *err);
  /* WordPiece */
  bool lower, strip;           /* convert to lower case; strip accents */
  int32_t unknown;             /* id of the token for unknown words */
  clv_vocab_walk after_hashes; /* state of a prefix search after the bytes "##" */
  /* byte-level BPE */
  bool compose;           /* normalise to NFC */
  bool adds_prefix_space; /* add a space before a text */
  /* a piece that is itself a token is not merged from bytes (key ignore_merges) */
  bool prefers_whole_piece;
  clv_token_pattern pattern;
  clv_merge *merges; /* [n_merges] sorted by left, then right */
  size_t n_merges;
  int32_t byte_tokens[256]; /* [256] token id of each byte */
  int32_t before, after;    /* tokens before and after a text (key post_processor); -1: none */
  int32_t filler;           /* token that pads a row (key padding); -1: not given */
  /* most tokens of a text including those before and after it (key truncation); 0: not given */
  int64_t most;
};

clv_code clv_tokenizer_new(clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;

/* ---- byte-level BPE -------------------------------------------------------------------------- */

/* Returns the end of the piece that begins at `from` < len (split.c). A piece has at least one
 * byte. */
size_t clv_split_piece_end(clv_token_pattern pattern, const char *text, size_t len, size_t from);

/* Returns the character that stands for a byte in the byte alphabet of GPT-2 (bpe.c). */
uint32_t clv_byte_char(unsigned char byte);
/* Known keys of a JSON object, and the state of reading it. */
typedef struct clv_known_keys {
  const char *const *names;
  size_t n_names;
  const char *what; /* name of the object, for messages: "an added token" */
  uint32_t seen;    /* set of the keys read so far, a bit per name */
  size_t n_read;    /* number of keys read; 0: the object has not been opened */
} clv_known_keys;

/* Reads the next key. *ret_which: index of the key in names; -1: end of the object. Refuses an
 * unknown key (post_processor.c). */
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
