/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and functions that the files of master/tokens share: classes of characters, texts as code
 * points, a vocabulary with prefix search, added tokens, the steps of normalizers and
 * pre_tokenizers, and the models.
 */
#ifndef CLEAVE_TOKENS_INT_H
#define CLEAVE_TOKENS_INT_H

#include "common/base/json/json.h"
#include "master/tokens/tokens.h"

/* ---- characters (chars.c) -------------------------------------------------------------------- */

/* True for a character that has the Unicode property White_Space. */
bool clv_char_is_space(uint32_t c);
bool clv_char_is_letter(uint32_t c);
bool clv_char_is_number(uint32_t c);
/* True for punctuation as BERT defines it, which includes ASCII symbols such as $ and +. */
bool clv_char_is_punctuation(uint32_t c);
/* True for control characters as BERT defines them: controls, formats and private use, but not tab
 * and line ends. */
bool clv_char_is_control(uint32_t c);
bool clv_char_is_cjk(uint32_t c);
bool clv_char_is_mark(uint32_t c);     /* true for a mark without a width (category Mn) */
bool clv_char_is_any_mark(uint32_t c); /* true for a mark (categories Mn, Mc, Me) */
/* True for a character that \w of regular expressions matches. */
bool clv_char_is_word(uint32_t c);

/* A growing list of code points. */
typedef struct clv_codepoints {
  int32_t *at; /* [n], with capacity cap */
  size_t n, cap;
  size_t max_n; /* limit of n; 0: no limit */
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
/* Frees the list *p, moves the list *by to *p, and leaves *by empty. */
void clv_codepoints_move(clv_codepoints *p, clv_codepoints *by);
/* Converts a character to lower case. Returns the number of code points in ret, 1 or 2. */
size_t clv_codepoint_to_lower(uint32_t c, uint32_t ret[2]);

/* Convert a text to the Unicode normal form NFD (decompose) or NFC (compose); with is_compat to
 * NFKD or NFKC. Combining marks are sorted in O(n log n). */
clv_code clv_codepoints_decompose(clv_codepoints *p, bool is_compat, clv_err *err) CLV_USE_RESULT;
clv_code clv_codepoints_compose(clv_codepoints *p, bool is_compat, clv_err *err) CLV_USE_RESULT;
/* True if a grapheme cluster ends between two neighbouring characters. Call it for each pair of
 * neighbours of a text in order, with *state 0 before the first. */
bool clv_char_breaks_grapheme(uint32_t prev_char, uint32_t next_char, int32_t *state);

/* ---- vocabulary (vocab.c) -------------------------------------------------------------------- */

typedef struct clv_vocab_entry {
  uint32_t offset, len; /* byte range of the token's text in clv_vocab.text */
  int32_t id;
  uint32_t file_position; /* for errors: line of a vocab.txt, or byte of a tokenizer.json */
  uint8_t flags;          /* of an added token: set of CLV_ADDED_... bits */
} clv_vocab_entry;

/* Tree (trie) of the prefixes of all tokens; a node is a prefix. The nodes are stored level by
 * level: node 0 is the empty prefix, and the children of node i are the nodes first_child[i] to
 * first_child[i + 1] - 1, sorted by label. */
typedef struct clv_prefix_tree {
  uint32_t *first_child; /* [n + 1] */
  uint32_t *entry; /* [n] index of the token that equals the prefix; UINT32_MAX: there is none */
  uint8_t *label;  /* [n] last byte of the prefix */
  size_t n;        /* number of nodes; 0: no tree was made */
} clv_prefix_tree;

/* A list of tokens. After clv_vocab_sort it is sorted by text, so a search is fast for any contents
 * of a file, which a hash table is not. */
typedef struct clv_vocab {
  clv_bytes text;           /* texts of all tokens, one after the other */
  clv_vocab_entry *entries; /* [n], with capacity cap */
  size_t n, cap;
  int32_t max_id;       /* largest token id; -1: the list has no tokens */
  clv_prefix_tree tree; /* tree for prefix searches; if tree.n is 0, they use the sorted list */
} clv_vocab;

void clv_vocab_done(clv_vocab *v);
/* Appends a token; copies its text. */
clv_code clv_vocab_add(clv_vocab *v, const char *text, size_t len, int32_t id,
                       uint32_t file_position, uint8_t flags, clv_err *err) CLV_USE_RESULT;
/* Sorts the list. Call it after the last clv_vocab_add, before the functions below. False: a token
 * occurs twice; ret_duplicates receives both entries in the order of the file. */
bool clv_vocab_sort(clv_vocab *v, clv_vocab_entry ret_duplicates[2]);
/* Returns the token with this text; NULL: there is none. */
const clv_vocab_entry *clv_vocab_find(const clv_vocab *v, const char *text, size_t len);

/* Makes v->tree of a sorted list, which speeds a prefix search up several times. Makes none if the
 * texts have more than CLV_VOCAB_TREE_MAX_BYTES. */
clv_code clv_vocab_make_tree(clv_vocab *v, clv_err *err) CLV_USE_RESULT;
enum { CLV_VOCAB_TREE_MAX_BYTES = 8 << 20 };

/* State of a prefix search: the tokens that begin with the bytes given so far. */
typedef struct clv_prefix_search {
  /* low..high - 1 are the entries with this prefix; with a tree, `low` is the node of the prefix
   * and high is low + 1. If low equals high, no token has the prefix. */
  size_t low, high;
  uint32_t depth; /* number of bytes of the prefix */
} clv_prefix_search;

clv_prefix_search clv_prefix_search_begin(const clv_vocab *v);
/* Extends the prefix by a byte. False: no token has this prefix. */
bool clv_prefix_search_add_byte(const clv_vocab *v, clv_prefix_search *w, char byte);
/* Returns the token that equals the prefix; NULL: there is none. */
const clv_vocab_entry *clv_prefix_search_token(const clv_vocab *v, const clv_prefix_search *w);

/* ---- added tokens, such as [SEP], in a text (added_tokens.c) --------------------------------- */

/* Flags of an added token, each a key of its object in a tokenizer.json; then the most bytes that
 * an added token may have. */
enum {
  CLV_ADDED_LSTRIP = 1,      /* white space before the token belongs to it */
  CLV_ADDED_RSTRIP = 2,      /* white space after the token belongs to it */
  CLV_ADDED_SINGLE_WORD = 4, /* found only if no word character is next to it */
  CLV_ADDED_NORMALIZED = 8,  /* the token is found in normalised text, not in the original one */
  CLV_ADDED_MAX_BYTES = 256
};

/* An added token that was found in a text. */
typedef struct clv_added_token_match {
  /* range of bytes in the text, including the white space that the token strips */
  size_t start, end;
  size_t next; /* byte where the search for the next token begins */
  int32_t id;
  size_t space_begin, space_end; /* range of white space that was stripped last after a token */
} clv_added_token_match;

/* Finds the first added token at or after byte `from`, and the longest one if several begin there.
 * prev_end: end of the previous match, whose white space is not stripped again; 0 for the first
 * call. *m: receives the match; zero-initialise it for each text, then leave it as it is between
 * calls. False: no token was found. */
bool clv_added_token_find(const clv_vocab *added_tokens, const char *text, size_t len, size_t from,
                          size_t prev_end, clv_added_token_match *m);

/* ---- steps of a normalizer and of a pre_tokenizer -------------------------------------------- */

enum {
  CLV_TOKEN_MAX_STEPS = 16, /* most steps of a normalizer, and of a pre_tokenizer */
  /* most bytes of a text that a step has as an option, such as the text that Replace searches
   * for */
  CLV_TOKEN_MAX_STEP_BYTES = 256,
  /* limits of a normalised text: at most CLV_TOKEN_MAX_GROWTH * n + CLV_TOKEN_FREE_GROWTH
   * characters if the original text has n characters */
  CLV_TOKEN_MAX_GROWTH = 64,
  CLV_TOKEN_FREE_GROWTH = 4096,
};

/* The table of a Precompiled normalizer (charsmap.c): a double-array trie whose keys are short
 * texts in UTF-8. The value of a key is the offset in `texts` of the text that replaces the key. */
typedef struct clv_charsmap {
  uint32_t *units; /* [n_units] the trie */
  size_t n_units;
  clv_bytes texts; /* texts that end with NUL, one after the other */
} clv_charsmap;

void clv_charsmap_done(clv_charsmap *m);
/* Reads a table as sentencepiece writes it. *ret_error_text: receives a static text that says why
 * the table is invalid; NULL: it is valid, and *ret receives it. */
clv_code clv_charsmap_parse(const clv_bytes *b, clv_charsmap *ret, const char **ret_error_text,
                            clv_err *err) CLV_USE_RESULT;
/* Finds the shortest key that `text` begins with; len is at most CLV_CHARSMAP_KEY_BYTES. Returns
 * the text that replaces the key; NULL: there is no such key. */
const char *clv_charsmap_find(const clv_charsmap *m, const char *text, size_t len);
/* Most bytes of a key that is found, and of a text that replaces a key. */
enum { CLV_CHARSMAP_KEY_BYTES = 5, CLV_CHARSMAP_TEXT_BYTES = 256 };

/* How a cutting step makes pieces of its matches and of the parts between matches. ISOLATED: each
 * is a piece. REMOVED: matches are dropped. MERGED_WITH_PREVIOUS, _NEXT: a match is joined to the
 * part before or after it. CONTIGUOUS: adjacent matches are one piece. */
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
  bool is_first; /* the piece begins at the first byte of the text of clv_tokenizer_encode */
} clv_token_piece;

/* Normalises the text *p; one function for each kind of normalizer step. */
typedef clv_code (*clv_normalize_fn)(const clv_token_step *s, clv_codepoints *p, clv_err *err);
/* Cuts a piece into parts, and calls clv_piece_encode for each part. next: index of the step to
 * which the parts are passed. */
typedef clv_code (*clv_cut_piece_fn)(const clv_token_step *s, clv_encoding *e, size_t next,
                                     clv_token_piece piece, clv_err *err);

/* A step of a normalizer or of a pre_tokenizer. Each kind of step uses some members. */
struct clv_token_step {
  /* function of a normalizer's step; NULL: the step is of a pre_tokenizer */
  clv_normalize_fn normalize;
  clv_cut_piece_fn cut; /* function of a pre_tokenizer's step; NULL: the step is of a normalizer */
  /* booleans of the step. Enums in the files of the steps name their indices: BERT_..., STRIPS_...,
   * FLAG_... */
  bool flags[4];
  size_t pattern; /* of Split: its clv_token_pattern; of Replace: row of its regular expression */
  /* clv_split_behavior of a cut, prepend_scheme of Metaspace, clv_accents of BertNormalizer */
  size_t choice;
  /* of Replace: text to find, and its replacement; of Prepend: `to` is the text to put first */
  clv_codepoints from, to;
  clv_bytes bytes; /* of a pre_tokenizer: text to cut at; of Metaspace: replacement of a space */
  clv_charsmap charsmap; /* table of a Precompiled normalizer */
};

/* Applies all steps of the normalizer. */
clv_code clv_tokenizer_normalize(const clv_tokenizer *t, clv_codepoints *p,
                                 clv_err *err) CLV_USE_RESULT;
/* True if each step of the normalizer replaces one character by one character, or there is no step,
 * so each character keeps its index in the text. */
bool clv_normalizer_keeps_offsets(const clv_tokenizer *t);
/* True if the last step of the pre_tokenizer is ByteLevel, so the pieces are for a byte-level
 * model. */
bool clv_pre_tokenizer_is_byte_level(const clv_tokenizer *t);
/* Settings of a BertNormalizer. */
typedef struct clv_bert_options {
  bool lowers, spaces_cjk, strips_accents;
} clv_bert_options;
/* Finds the first BertNormalizer among the steps. False: there is none. */
bool clv_normalizer_find_bert(const clv_tokenizer *t, clv_bert_options *ret);
/* Returns 1 if ByteLevel or Metaspace puts a space before a text, 0 if they put no space; -1:
 * neither of them is among the steps. */
int clv_pre_tokenizer_prefix_space(const clv_tokenizer *t);
/* Return the normalizer step and the pre_tokenizer step of BERT, which a tokenizer from a vocab.txt
 * has. lowers: convert the text to lower case. */
clv_token_step clv_bert_normalizer(bool lowers, clv_accents accents);
clv_token_step clv_bert_pre_tokenizer(void);
void clv_token_step_done(clv_token_step *s);
/* Applies the steps of the pre_tokenizer from index `step` on, then the model, to a piece. */
clv_code clv_piece_encode(clv_encoding *e, size_t step, clv_token_piece piece,
                          clv_err *err) CLV_USE_RESULT;

/* ---- tokenizers ------------------------------------------------------------------------------ */

/* A row of the list of merges of BPE: the tokens left and right may be joined to the token id. */
typedef struct clv_merge {
  int32_t left, right, id;
  uint32_t rank; /* index in the file's list; the smallest rank is joined first */
} clv_merge;

/* Regular expressions by which clv_find_piece_end cuts a text. */
typedef enum clv_token_pattern {
  CLV_TOKEN_PATTERN_GPT2,
  CLV_TOKEN_PATTERN_LLAMA3,
  CLV_TOKEN_PATTERN_QWEN2
} clv_token_pattern;

enum { CLV_SYMBOL_NONE = -1 };

/* A token of the piece (part of a text) that BPE encodes, in a doubly linked list. A symbol is
 * removed from the list when it is joined to its left neighbour. */
typedef struct clv_symbol {
  int32_t id;            /* token id; CLV_SYMBOL_NONE: the symbol was removed */
  int64_t before, after; /* indices of its neighbours; CLV_SYMBOL_NONE: none */
} clv_symbol;

/* Two neighbouring symbols that a merge may join, in the heap of BPE. */
typedef struct clv_symbol_pair {
  uint32_t rank; /* rank of the merge */
  int32_t id;    /* token id of the joined pair */
  int64_t at;    /* index of the pair's left symbol */
} clv_symbol_pair;

/* Best sequence of tokens that ends at a given byte of the piece (part of a text) that Unigram
 * encodes. */
typedef struct clv_best_path {
  double score;    /* sum of the tokens' scores */
  size_t from;     /* byte where the last of these tokens begins */
  int32_t id;      /* id of the last of these tokens */
  bool is_reached; /* a sequence of tokens ends at this position */
} clv_best_path;

/* A call of clv_tokenizer_encode: its output, and scratch memory that the model reuses for each
 * piece. */
struct clv_encoding {
  const clv_tokenizer *t;
  clv_ids *out;          /* receives the token ids */
  clv_symbol *symbols;   /* [capacity] for BPE: symbols of the piece */
  clv_symbol_pair *heap; /* [3 capacity] for BPE: pairs of symbols */
  clv_best_path *paths;  /* [capacity] for Unigram: best path to each byte */
  size_t capacity;
  size_t n_symbols, n_pairs; /* symbols in use; pairs in the heap */
};

typedef enum clv_token_model {
  CLV_TOKEN_MODEL_WORDPIECE,
  CLV_TOKEN_MODEL_BPE,
  CLV_TOKEN_MODEL_UNIGRAM
} clv_token_model;

struct clv_tokenizer {
  clv_vocab vocab;
  clv_vocab added_tokens;     /* all added tokens, as the file spells them */
  clv_vocab raw_added_tokens; /* added tokens that are found in the original text */
  /* normalised added tokens that are found in the normalised text */
  clv_vocab normalised_added_tokens;
  clv_token_step normalizer[CLV_TOKEN_MAX_STEPS], pre_tokenizer[CLV_TOKEN_MAX_STEPS];
  size_t n_normalizer_steps, n_pre_tokenizer_steps; /* numbers of steps */
  clv_token_model model;
  int32_t unknown_id; /* id of the token for unknown text, such as [UNK]; -1: there is none */
  /* WordPiece */
  size_t max_word_chars; /* longer words become the unknown token */
  /* state of a prefix search that has read continuing_subword_prefix */
  clv_prefix_search inside_word_search;
  /* BPE */
  bool is_byte_level; /* symbols are bytes; else characters */
  /* a piece that is itself a token is not merged from symbols (key ignore_merges) */
  bool prefers_whole_piece;
  bool fuses_unknown; /* neighbouring unknown characters become one token (key fuse_unk) */
  clv_merge *merges;  /* [n_merges] sorted by left, then right */
  size_t n_merges;
  /* [vocab.max_id + 2] index of the first merge whose left token has this id or a larger one */
  uint32_t *first_merge_of_left_id;
  /* [256] token id of each byte, for byte-level BPE and for byte_fallback; -1: the byte has no
   * token */
  int32_t byte_tokens[256];
  bool falls_back_to_bytes; /* unknown characters become their bytes (key byte_fallback) */
  /* Unigram */
  double *scores;       /* [token id] logarithm of the token's probability */
  double unknown_score; /* score of an unknown character */
  /* all models: members of clv_tokenizer_end_settings, from the keys post_processor, padding,
   * truncation */
  int32_t before, after, pad_id;
  int64_t max_tokens;
};

clv_code clv_tokenizer_new(clv_tokenizer **ret, clv_err *err) CLV_USE_RESULT;
/* If `path`, from which the tokenizer was read, is named tokenizer.json, compares the files
 * tokenizer_config.json and special_tokens_map.json of its folder with the tokenizer.
 * CLV_EXHAUSTED: one of them is larger than 16 MiB; CLV_INVALID: as
 * clv_tokenizer_check_settings. */
clv_code clv_tokenizer_check_folder(const clv_tokenizer *t, const char *path,
                                    const clv_tokenizer_options *options,
                                    clv_err *err) CLV_USE_RESULT;
/* Allocates scratch memory for n symbols of BPE, or n positions of Unigram. The former contents are
 * lost. */
clv_code clv_encoding_reserve(clv_encoding *e, size_t n, clv_err *err) CLV_USE_RESULT;
void clv_encoding_done(clv_encoding *e);

/* ---- encoding pieces by the models ----------------------------------------------------------- */

/* Encodes a piece from the pre_tokenizer with the tokenizer's model. Appends the ids to e->out. */
clv_code clv_model_encode(clv_encoding *e, const char *text, size_t len,
                          clv_err *err) CLV_USE_RESULT;

clv_code clv_wordpiece_encode(clv_encoding *e, const char *text, size_t len,
                              clv_err *err) CLV_USE_RESULT;
/* Sets t->inside_word_search. prefix: continuing_subword_prefix, such as "##", the first characters
 * of each token that continues a word. */
void clv_wordpiece_set_prefix(clv_tokenizer *t, const char *prefix, size_t len);
clv_code clv_bpe_encode(clv_encoding *e, const char *text, size_t len, clv_err *err) CLV_USE_RESULT;
clv_code clv_unigram_encode(clv_encoding *e, const char *text, size_t len,
                            clv_err *err) CLV_USE_RESULT;

/* Returns the end of the piece that begins at byte `from`, which is less than len (split.c). A
 * piece has at least one byte. */
size_t clv_find_piece_end(clv_token_pattern pattern, const char *text, size_t len, size_t from);

/* Returns the character that represents a byte in vocabularies of byte-level BPE, such as that of
 * GPT-2 (bpe.c). */
uint32_t clv_byte_char(unsigned char byte);
/* Returns the merge that joins two tokens; NULL: there is none. */
const clv_merge *clv_merge_find(const clv_tokenizer *t, int32_t left, int32_t right);
int clv_merge_compare(const void *a, const void *b); /* compares clv_merge by left, then right */

#endif
