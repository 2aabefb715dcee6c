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
bool clv_char_is_mark(uint32_t c);     /* true for a mark without a width (category Mn) */
bool clv_char_is_any_mark(uint32_t c); /* true for a mark (categories Mn, Mc, Me) */
/* True for a character of a word: class \w of regular expressions. */
bool clv_char_is_word(uint32_t c);

/* A growing list of code points. */
typedef struct clv_codepoints {
  int32_t *at;
  size_t n, cap;
  size_t most; /* most code points that the list may have; 0: no limit */
} clv_codepoints;

void clv_codepoints_done(clv_codepoints *p);
clv_code clv_codepoints_add(clv_codepoints *p, uint32_t c, clv_err *err) CLV_USE_RESULT;
/* Appends the code points of a text. CLV_INVALID: the text is not UTF-8. */
clv_code clv_codepoints_from_utf8(clv_codepoints *p, const char *text, size_t len,
                                  clv_err *err) CLV_USE_RESULT;
void clv_codepoint_to_utf8(uint32_t c, clv_bytes *out);
/* Appends the list in UTF-8. */
clv_code clv_codepoints_to_utf8(const clv_codepoints *p, clv_bytes *out,
                                clv_err *err) CLV_USE_RESULT;
/* Replaces *p by *by, and releases the former list. */
void clv_codepoints_take(clv_codepoints *p, clv_codepoints *by);
/* Converts a character to lower case. Returns the number of code points in ret, 1 or 2. */
size_t clv_codepoint_lower(uint32_t c, uint32_t ret[2]);

/* Convert the list to NFD and to NFC; with is_compat to NFKD and to NFKC. A run of n marks is
 * sorted in O(n log n). */
clv_code clv_codepoints_decompose(clv_codepoints *p, bool is_compat, clv_err *err) CLV_USE_RESULT;
clv_code clv_codepoints_compose(clv_codepoints *p, bool is_compat, clv_err *err) CLV_USE_RESULT;
/* True if a grapheme cluster ends between two characters. *state: 0 at the beginning of a text. */
bool clv_char_breaks_grapheme(uint32_t before, uint32_t after, int32_t *state);

/* ---- vocabulary (vocab.c) -------------------------------------------------------------------- */

typedef struct clv_vocab_entry {
  uint32_t offset, len; /* position of the token's text in clv_vocab.text */
  int32_t id;
  uint32_t place; /* line, or byte, of the token in the file, for messages */
  uint8_t flags;  /* set of CLV_ADDED_... bits */
} clv_vocab_entry;

/* The prefixes of all tokens as a tree, level by level: node 0 is the empty prefix, and the
 * children of node i are the nodes first[i]..first[i + 1] - 1, sorted by label. */
typedef struct clv_prefix_tree {
  uint32_t *first; /* [n + 1] */
  uint32_t *entry; /* [n] index of the token that equals the prefix; UINT32_MAX: there is none */
  uint8_t *label;  /* [n] last byte of the prefix */
  size_t n;
} clv_prefix_tree;

/* A list of tokens, sorted by text, so that a search is fast for any choice of tokens. */
typedef struct clv_vocab {
  clv_bytes text;
  clv_vocab_entry *entries;
  size_t n, cap;
  int32_t most;         /* largest token id; -1: the list has no tokens */
  clv_prefix_tree tree; /* n is 0: a prefix search looks into the sorted list */
} clv_vocab;

void clv_vocab_done(clv_vocab *v);
clv_code clv_vocab_add(clv_vocab *v, const char *text, size_t len, int32_t id, uint32_t place,
                       uint8_t flags, clv_err *err) CLV_USE_RESULT;
/* Sorts the list. Call it after the last clv_vocab_add, before the functions below. False: a token
 * occurs twice; ret_twice receives both entries in the order of the file. */
bool clv_vocab_sort(clv_vocab *v, clv_vocab_entry ret_twice[2]);
const clv_vocab_entry *clv_vocab_find(const clv_vocab *v, const char *text, size_t len);

/* Makes the tree of prefixes of a sorted list, unless the texts have more bytes than
 * CLV_VOCAB_TREE_MAX_TEXT. A prefix search is several times as fast with it. */
clv_code clv_vocab_make_tree(clv_vocab *v, clv_err *err) CLV_USE_RESULT;
enum { CLV_VOCAB_TREE_MAX_TEXT = 8 << 20 };

/* State of a prefix search: the tokens that begin with the bytes given so far. */
typedef struct clv_vocab_walk {
  size_t low, high; /* low..high - 1: entries with this prefix, or the node of the tree */
  uint32_t depth;   /* number of bytes of the prefix */
} clv_vocab_walk;

clv_vocab_walk clv_vocab_walk_begin(const clv_vocab *v);
/* Extends the prefix by a byte. False: no token has this prefix. */
bool clv_vocab_walk_step(const clv_vocab *v, clv_vocab_walk *w, char byte);
/* Returns the token that equals the prefix; NULL: there is none. */
const clv_vocab_entry *clv_vocab_walk_token(const clv_vocab *v, const clv_vocab_walk *w);

/* ---- tokens in raw text (added_tokens.c) ----------------------------------------------------- */

enum {
  CLV_ADDED_LSTRIP = 1,
  CLV_ADDED_RSTRIP = 2,
  CLV_ADDED_SINGLE_WORD = 4,
  CLV_ADDED_NORMALIZED = 8,
  CLV_ADDED_MAX_BYTES = 256 /* bytes */
};

/* An added token that was found in a text. */
typedef struct clv_added_token_match {
  /* range of bytes in the text, including the white space that the token strips */
  size_t start, end;
  size_t next; /* byte where the search goes on */
  int32_t id;
  size_t space_begin, space_end; /* white space that was stripped last */
} clv_added_token_match;

/* Finds the first added token at or after `from`, the longest one at that position. `taken`: end of
 * the token before it, whose white space is not stripped again. *m: zeros for the first token of a
 * text, then the token before. */
bool clv_added_token_find(const clv_vocab *added, const char *text, size_t len, size_t from,
                          size_t taken, clv_added_token_match *m);

/* ---- steps of a normalizer and of a pre_tokenizer -------------------------------------------- */

enum {
  CLV_TOKEN_STEPS = 16,         /* most steps of a normalizer, and of a pre_tokenizer */
  CLV_TOKEN_STEP_BYTES = 256,   /* most bytes of a text of a step, such as what it looks for */
  CLV_TOKEN_GROWTH = 64,        /* most characters that a normalizer makes of one */
  CLV_TOKEN_GROWTH_FREE = 4096, /* characters that it may make of any text */
};

/* The table of a Precompiled normalizer (charsmap.c): a double-array trie of texts of UTF-8, whose
 * values are offsets of texts that replace them. */
typedef struct clv_charsmap {
  uint32_t *units; /* [n_units] */
  size_t n_units;
  clv_bytes texts; /* texts that end with NUL, one after the other */
} clv_charsmap;

void clv_charsmap_done(clv_charsmap *m);
/* Reads a table of sentencepiece. *ret_wrong: why it is refused, static; NULL: it is read. */
clv_code clv_charsmap_parse(const clv_bytes *b, clv_charsmap *ret, const char **ret_wrong,
                            clv_err *err) CLV_USE_RESULT;
/* Finds the shortest key that `text` begins with; text has at most CLV_CHARSMAP_KEY bytes. Returns
 * the text that replaces it; NULL: there is none. */
const char *clv_charsmap_find(const clv_charsmap *m, const char *text, size_t len);
enum { CLV_CHARSMAP_KEY = 5, CLV_CHARSMAP_TEXT = 256 }; /* bytes */

/* Behavior of a cut: which pieces its matches, and the parts between them, become. */
typedef enum clv_split_behavior {
  CLV_SPLIT_ISOLATED,
  CLV_SPLIT_REMOVED,
  CLV_SPLIT_MERGED_WITH_PREVIOUS,
  CLV_SPLIT_MERGED_WITH_NEXT,
  CLV_SPLIT_CONTIGUOUS
} clv_split_behavior;

typedef struct clv_token_step clv_token_step;
typedef struct clv_encoding clv_encoding;

/* Part of a text between two cuts. */
typedef struct clv_token_piece {
  const char *text;
  size_t len;
  bool is_first; /* begins where the text begins that clv_tokenizer_encode was given */
} clv_token_piece;

/* Changes a text. */
typedef clv_code (*clv_normalize)(const clv_token_step *s, clv_codepoints *p, clv_err *err);
/* Cuts a piece, and gives its parts to clv_pieces_encode with the number of the next step. */
typedef clv_code (*clv_cut_piece)(const clv_token_step *s, clv_encoding *e, size_t next,
                                  clv_token_piece piece, clv_err *err);

/* A step of a normalizer or of a pre_tokenizer. Each kind of step uses some members. */
struct clv_token_step {
  clv_normalize normalize;
  clv_cut_piece cut;
  bool flags[4];  /* the booleans of the step, in the order of its row */
  size_t pattern; /* of Split: its clv_token_pattern; of Replace: row of its regular expression */
  size_t choice;  /* behavior of a cut, prepend_scheme of Metaspace */
  clv_codepoints from, to; /* of a normalizer: text to look for, text to put */
  clv_bytes bytes;         /* of a pre_tokenizer: text to look for, or to put */
  clv_charsmap map;
};

/* Applies all steps of the normalizer. */
clv_code clv_tokenizer_normalize(const clv_tokenizer *t, clv_codepoints *p,
                                 clv_err *err) CLV_USE_RESULT;
/* True if the normalizer keeps the number of characters before each character. */
bool clv_normalizer_keeps_offsets(const clv_tokenizer *t);
/* True if the pieces are for a byte-level model: the last step is ByteLevel. */
bool clv_pre_tokenizer_is_byte_level(const clv_tokenizer *t);
/* Settings of a BertNormalizer. */
typedef struct clv_bert_flags {
  bool lowers, spaces_cjk, strips_accents;
} clv_bert_flags;
/* Finds the first BertNormalizer among the steps. False: there is none. */
bool clv_normalizer_find_bert(const clv_tokenizer *t, clv_bert_flags *ret);
/* Returns 1 if ByteLevel or Metaspace puts a space before a text, 0 if they put none; -1: neither
 * is among the steps. */
int clv_pre_tokenizer_prepends(const clv_tokenizer *t);
/* Return the normalizer and pre_tokenizer steps of BERT, which a tokenizer read from a vocab.txt
 * uses. */
clv_token_step clv_bert_normalizer(bool lowers, clv_accents accents);
clv_token_step clv_bert_pre_tokenizer(void);
void clv_token_step_done(clv_token_step *s);
/* Applies the steps of the pre_tokenizer from step number `step` on, and then the model. */
clv_code clv_pieces_encode(clv_encoding *e, size_t step, clv_token_piece piece,
                           clv_err *err) CLV_USE_RESULT;

/* ---- tokenizers ------------------------------------------------------------------------------ */

typedef struct clv_merge {
  int32_t left, right, id;
  uint32_t rank;
} clv_merge;

/* Patterns that clv_split_piece_end knows. */
typedef enum clv_token_pattern {
  CLV_TOKEN_PATTERN_GPT2,
  CLV_TOKEN_PATTERN_LLAMA3,
  CLV_TOKEN_PATTERN_QWEN2
} clv_token_pattern;

enum { CLV_SYMBOL_NONE = -1 };

/* A token of the piece that BPE encodes. A symbol is removed when it is joined to its left
 * neighbour. */
typedef struct clv_symbol {
  int32_t id; /* token id; CLV_SYMBOL_NONE: the symbol was removed */
  int64_t before, after;
} clv_symbol;

typedef struct clv_pair {
  uint32_t rank;
  int32_t id; /* token id of the joined pair */
  int64_t at; /* index of the pair's left symbol */
} clv_pair;

/* Best tokens that end at a place of the piece that Unigram encodes. */
typedef struct clv_best_path {
  double score;
  size_t from; /* where the last of these tokens begins */
  int32_t id;  /* the last of these tokens */
  bool is_reached;
} clv_best_path;

/* Scratch memory of the models, reused for each piece, and where tokens go. One per call of
 * clv_tokenizer_encode. */
struct clv_encoding {
  const clv_tokenizer *t;
  clv_ids *out;
  clv_symbol *symbols;  /* [room] of BPE */
  clv_pair *heap;       /* [3 room] of BPE */
  clv_best_path *paths; /* [room] of Unigram */
  size_t room;
  size_t n, waiting; /* number of symbols; number of pairs in the heap */
};

typedef enum clv_token_model {
  CLV_TOKEN_MODEL_WORDPIECE,
  CLV_TOKEN_MODEL_BPE,
  CLV_TOKEN_MODEL_UNIGRAM
} clv_token_model;

struct clv_tokenizer {
  clv_vocab vocab;
  clv_vocab added;            /* all added tokens, as the file spells them */
  clv_vocab raw_added;        /* those to find in the original text */
  clv_vocab normalised_added; /* normalised, those to find in the normalised text */
  clv_token_step normalizer[CLV_TOKEN_STEPS], pre_tokenizer[CLV_TOKEN_STEPS];
  size_t n_normalizer, n_pre_tokenizer; /* number of steps */
  clv_token_model model;
  int32_t unknown; /* id of the token for what is unknown; -1: there is none */
  /* WordPiece */
  size_t max_word;            /* most characters of a word; longer words are unknown */
  clv_vocab_walk inside_word; /* state of a prefix search after continuing_subword_prefix */
  /* BPE */
  bool is_byte_level; /* symbols are bytes; else characters */
  /* a piece that is itself a token is not merged from symbols (key ignore_merges) */
  bool prefers_whole_piece;
  bool fuses_unknown; /* neighbours that are unknown are one token */
  clv_merge *merges;  /* [n_merges] sorted by left, then right */
  size_t n_merges;
  uint32_t *merges_of; /* [most token id + 2] index of the first merge whose left is this token */
  /* [256] token id of each byte: of byte-level BPE, or of byte_fallback; -1: none */
  int32_t byte_tokens[256];
  bool falls_back_to_bytes; /* unknown characters become their bytes (key byte_fallback) */
  /* Unigram */
  double *scores; /* [token id] logarithm of its probability */
  size_t n_scores;
  double unknown_score;
  int32_t before, after; /* tokens before and after a text (key post_processor); -1: none */
  int32_t filler;        /* token that pads a row (key padding); -1: not given */
  /* most tokens of a text including those before and after it (key truncation); 0: not given */
  int64_t most;
};

clv_code clv_tokenizer_new(clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;
/* Compares the other files of the folder with the tokenizer, which was read from `path`, if that is
 * named tokenizer.json. CLV_EXHAUSTED: one is larger than 16 MiB; CLV_INVALID: as
 * clv_tokenizer_check_settings. */
clv_code clv_tokenizer_check_folder(const clv_tokenizer *t, const char *path,
                                    const clv_tokenizer_options *options,
                                    clv_err *err) CLV_USE_RESULT;
/* Makes room for the n symbols, or the n places, of a piece. */
clv_code clv_encoding_make_room(clv_encoding *e, size_t n, clv_err *err) CLV_USE_RESULT;
void clv_encoding_done(clv_encoding *e);

/* ---- models ---------------------------------------------------------------------------------- */

/* Encodes a piece that the pre_tokenizer made. */
clv_code clv_model_encode(clv_encoding *e, const char *text, size_t len,
                          clv_err *err) CLV_USE_RESULT;

clv_code clv_wordpiece_encode(clv_encoding *e, const char *text, size_t len,
                              clv_err *err) CLV_USE_RESULT;
/* Sets what WordPiece needs of the vocabulary: pieces within a word begin with `prefix`. */
void clv_wordpiece_prepare(clv_tokenizer *t, const char *prefix, size_t len);
clv_code clv_bpe_encode(clv_encoding *e, const char *text, size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_unigram_encode(clv_encoding *e, const char *text, size_t len,
                            clv_err *err) CLV_USE_RESULT;

/* Returns the end of the piece that begins at `from` < len (split.c). A piece has at least one
 * byte. */
size_t clv_split_piece_end(clv_token_pattern pattern, const char *text, size_t len, size_t from);

/* Returns the character that stands for a byte in the byte alphabet of GPT-2 (bpe.c). */
uint32_t clv_byte_char(unsigned char byte);
const clv_merge *clv_merge_find(const clv_tokenizer *t, int32_t left, int32_t right);
int clv_merge_compare(const void *a, const void *b); /* compares clv_merge by left, then right */

#endif
