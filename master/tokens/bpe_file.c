/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a tokenizer.json of byte-level BPE, as written by Hugging Face's tokenizers. An unsupported
 * normalizer, pattern or type of model is refused, and the message names it. clv_bpe_parse is the
 * main function.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"
#include "master/tokens/tokens_int.h"

/* The file that is being read, and what was read so far. */
typedef struct reading {
  clv_json j;
  clv_tokenizer *t;
  clv_bytes text; /* text of the current value */
  clv_json merges;
  bool has_merges, has_vocab;
} reading;

typedef clv_code (*read_value)(reading *r, clv_err *err);

typedef struct key {
  const char *name;
  read_value read; /* reads the value of the key; NULL: any value is skipped */
} key;

enum { MAX_KEYS = 16 };

/* Refuses an unknown key, because it may need an unsupported feature. Accepts it if its value is
 * null. */
static clv_code refuse_key(reading *r, size_t at, clv_err *err) {
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  clv_json from = r->j;
  from.at = at;
  CLV_TRY(clv_json_read_key(&from, &r->text, err));
  return clv_json_fail(&r->j, at, err, "the key '%.80s' is not known here", r->text.data);
}

static clv_code read_keys(reading *r, const key *keys, size_t n_keys, clv_err *err) {
  const char *names[MAX_KEYS];
  uint32_t seen = 0;
  bool more = true;
  int which;
  for (size_t i = 0; i < n_keys; i++) names[i] = keys[i].name;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, n, &more, err));
    if (!more) return CLV_OK;
    size_t at = r->j.at;
    CLV_TRY(clv_json_find_key(&r->j, names, n_keys, &seen, &which, err));
    if (which < 0)
      CLV_TRY(refuse_key(r, at, err));
    else
      CLV_TRY(keys[which].read ? keys[which].read(r, err) : clv_json_skip(&r->j, err));
  }
}

/* Refuses a value that is not supported. */
static clv_code refuse_value(const reading *r, size_t at, clv_err *err, const char *what) {
  return clv_json_fail(&r->j, at, err, "%s%s%.80s%s", what, r->text.len ? ": '" : "",
                       r->text.len ? r->text.data : "", r->text.len ? "'" : "");
}

static clv_code check_one_of(reading *r, const char *const *wanted, size_t n, const char *what,
                             size_t *ret_which, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  CLV_TRY(clv_json_read_text(&r->j, &r->text, err));
  for (size_t i = 0; i < n; i++)
    if (strcmp(wanted[i], r->text.data) == 0) {
      if (ret_which) *ret_which = i;
      return CLV_OK;
    }
  return refuse_value(r, at, err, what);
}

static clv_code check_false(reading *r, const char *what, clv_err *err) {
  bool value;
  CLV_TRY(clv_json_read_bool(&r->j, &value, err));
  return value ? clv_json_fail(&r->j, r->j.at, err, "%s", what) : CLV_OK;
}

/* Checks that a value is null or the empty text. */
static clv_code check_empty(reading *r, const char *what, clv_err *err) {
  static const char *const nothing[] = {""};
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  return check_one_of(r, nothing, 1, what, NULL, err);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static clv_code read_token(reading *r, clv_err *err) {
  int64_t id;
  uint32_t place = (uint32_t)r->j.at;
  CLV_TRY(clv_json_read_key(&r->j, &r->text, err));
  if (!r->text.len || r->text.len > CLV_TOKENS_MAX_TOKEN)
    return clv_json_fail(&r->j, place, err, "a token has %zu bytes, expected 1 to %d", r->text.len,
                         CLV_TOKENS_MAX_TOKEN);
  CLV_TRY(clv_json_read_integer(&r->j, 0, CLV_TOKENS_MAX_ID - 1, &id, err));
  return clv_vocab_add(&r->t->vocab, r->text.data, r->text.len, (int32_t)id, place, 0, err);
}

static clv_code check_no_duplicates(const reading *r, clv_vocab *v, clv_err *err) {
  clv_vocab_entry twice[2];
  if (clv_vocab_sort(v, twice)) return CLV_OK;
  return clv_json_fail(&r->j, twice[1].place, err, "the token '%.*s' appears twice",
                       (int)CLV_MIN(twice[1].len, 80u), v->text.data + twice[1].offset);
}

static clv_code read_vocab(reading *r, clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, n, &more, err));
    if (!more) break;
    CLV_TRY(read_token(r, err));
  }
  r->has_vocab = true;
  return check_no_duplicates(r, &r->t->vocab, err);
}

/* ---- merges ---------------------------------------------------------------------------------- */

/* Remembers where the merges begin and skips them. They may come before the vocabulary, which they
 * need, so read_model reads them last. */
static clv_code keep_merges(reading *r, clv_err *err) {
  r->merges = r->j;
  r->has_merges = true;
  return clv_json_skip(&r->j, err);
}

static clv_code read_text_pair(reading *r, clv_bytes *ret_right, clv_err *err) {
  size_t at = r->j.at;
  CLV_TRY(clv_json_read_text(&r->j, &r->text, err));
  char *space = memchr(r->text.data, ' ', r->text.len);
  if (!space || memchr(space + 1, ' ', r->text.len - (size_t)(space + 1 - r->text.data)))
    return refuse_value(r, at, err, "a merge is two tokens with a space between them");
  ret_right->len = 0;
  clv_bytes_add(ret_right, space + 1, r->text.len - (size_t)(space + 1 - r->text.data));
  r->text.len = (size_t)(space - r->text.data);
  return CLV_OK;
}

static clv_code read_list_pair(reading *r, clv_bytes *ret_right, clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 3; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, n, &more, err));
    if (more != (n < 2)) return clv_json_fail(&r->j, r->j.at, err, "a merge is two tokens");
    if (more) CLV_TRY(clv_json_read_text(&r->j, n ? ret_right : &r->text, err));
  }
  return CLV_OK;
}

static clv_code find_known_token(const reading *r, size_t at, const char *text, size_t len,
                                 int32_t *ret, clv_err *err) {
  const clv_vocab_entry *e = clv_vocab_find(&r->t->vocab, text, len);
  if (!e)
    return clv_json_fail(&r->j, at, err, "a merge needs '%.*s', which is not a token",
                         (int)CLV_MIN(len, (size_t)80), text);
  *ret = e->id;
  return CLV_OK;
}

static clv_code read_merge(reading *r, clv_bytes *right, clv_merge *m, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  CLV_TRY(kind == CLV_JSON_LIST ? read_list_pair(r, right, err) : read_text_pair(r, right, err));
  CLV_TRY(find_known_token(r, at, r->text.data, r->text.len, &m->left, err));
  CLV_TRY(find_known_token(r, at, right->data, right->len, &m->right, err));
  clv_bytes_add(&r->text, right->data, right->len);
  return find_known_token(r, at, r->text.data, r->text.len, &m->id, err);
}

static clv_code add_merge(clv_tokenizer *t, size_t *cap, const clv_merge *m, clv_err *err) {
  if (t->n_merges == *cap) {
    size_t more = *cap ? 2 * *cap : 1024, bytes;
    void *merges = clv_mul_size(more, sizeof *m, &bytes) ? realloc(t->merges, bytes) : NULL;
    if (!merges) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu merges", more);
    t->merges = merges;
    *cap = more;
  }
  t->merges[t->n_merges++] = *m;
  return CLV_OK;
}

static clv_code sort_merges(const reading *r, clv_err *err) {
  clv_tokenizer *t = r->t;
  if (t->n_merges) qsort(t->merges, t->n_merges, sizeof *t->merges, clv_merge_compare);
  for (size_t i = 1; i < t->n_merges; i++)
    if (clv_merge_compare(&t->merges[i - 1], &t->merges[i]) == 0)
      return clv_json_fail(&r->j, r->merges.at, err, "merges %u and %u of this list are the same",
                           t->merges[i - 1].rank, t->merges[i].rank);
  return CLV_OK;
}

static clv_code read_merges(reading *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes right = {0};
  clv_json after = r->j;
  size_t cap = 0;
  bool more = true;
  r->j = r->merges;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (uint32_t n = 0;; n++) {
    clv_merge m = {.rank = n};
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, n, &more, err));
    if (!more) break;
    CLV_TRY(read_merge(r, &right, &m, err));
    CLV_TRY(add_merge(r->t, &cap, &m, err));
  }
  r->j = after;
  return sort_merges(r, err);
}

/* ---- the model ------------------------------------------------------------------------------- */

static clv_code read_model_type(reading *r, clv_err *err) {
  static const char *const types[] = {"BPE"};
  return check_one_of(r, types, 1, "only models of type BPE are read", NULL, err);
}

static clv_code read_dropout(reading *r, clv_err *err) {
  double value = 0;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_read_real(&r->j, &value, err));
  return value == 0 ? CLV_OK
                    : clv_json_fail(&r->j, r->j.at, err, "dropout of merges is not supported");
}

static clv_code read_prefix(reading *r, clv_err *err) {
  return check_empty(r, "continuing_subword_prefix is not of byte-level BPE", err);
}

static clv_code read_suffix(reading *r, clv_err *err) {
  return check_empty(r, "end_of_word_suffix is not of byte-level BPE", err);
}

static clv_code read_fallback(reading *r, clv_err *err) {
  return check_false(r, "byte_fallback is not of byte-level BPE", err);
}

static clv_code read_ignore_merges(reading *r, clv_err *err) {
  return clv_json_read_bool(&r->j, &r->t->prefers_whole_piece, err);
}

static clv_code read_bytes(reading *r, size_t at, clv_err *err) {
  for (unsigned b = 0; b < 256; b++) {
    CLV_AUTO(clv_bytes_done) clv_bytes c = {0};
    clv_codepoint_to_utf8(clv_byte_char((unsigned char)b), &c);
    const clv_vocab_entry *e = c.failed ? NULL : clv_vocab_find(&r->t->vocab, c.data, c.len);
    if (!e)
      return clv_json_fail(&r->j, at, err,
                           "this vocabulary has no token for the byte 0x%02x: byte-level BPE "
                           "needs all 256",
                           b);
    r->t->byte_tokens[b] = e->id;
  }
  return CLV_OK;
}

static clv_code read_model(reading *r, clv_err *err) {
  static const key keys[] = {{"type", read_model_type},
                             {"dropout", read_dropout},
                             {"continuing_subword_prefix", read_prefix},
                             {"end_of_word_suffix", read_suffix},
                             {"byte_fallback", read_fallback},
                             {"ignore_merges", read_ignore_merges},
                             {"unk_token", NULL}, /* ignored, because every byte is a token */
                             {"fuse_unk", NULL},
                             {"vocab", read_vocab},
                             {"merges", keep_merges}};
  size_t at = r->j.at;
  CLV_TRY(read_keys(r, keys, CLV_COUNT(keys), err));
  if (!r->has_vocab || !r->has_merges)
    return clv_json_fail(&r->j, at, err, "the model has no %s", r->has_vocab ? "merges" : "vocab");
  CLV_TRY(read_bytes(r, at, err));
  return read_merges(r, err);
}

/* ---- before the model ------------------------------------------------------------------------ */

static clv_code read_normalizer_type(reading *r, clv_err *err) {
  static const char *const types[] = {"NFC"};
  r->t->compose = true;
  return check_one_of(r, types, 1, "only the normalizer NFC is supported", NULL, err);
}

static clv_code read_normalizer(reading *r, clv_err *err) {
  static const key keys[] = {{"type", read_normalizer_type}};
  return clv_json_skip_null(&r->j) ? CLV_OK : read_keys(r, keys, CLV_COUNT(keys), err);
}

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char gpt2_short_pattern[] =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Kinds of steps of a pre_tokenizer; STEP_LIST is a list of steps. */
typedef enum step_kind { STEP_BYTES, STEP_SPLIT, STEP_LIST, STEP_NONE } step_kind;

typedef struct step {
  size_t kind, pattern;
  bool adds_prefix_space, by_pattern, has_pattern;
} step;

enum { MAX_STEPS = 2 };

/* State while the steps of a pre_tokenizer are read. */
typedef struct stepping {
  reading r; /* must be the first member, because get_step casts a reading to this struct */
  step steps[MAX_STEPS + 1], *at;
  size_t n;
} stepping;

static step *get_step(reading *r) { return ((stepping *)(void *)r)->at; }

static clv_code read_step_type(reading *r, clv_err *err) {
  static const char *const types[] = {
      [STEP_BYTES] = "ByteLevel", [STEP_SPLIT] = "Split", [STEP_LIST] = "Sequence"};
  return check_one_of(r, types, CLV_COUNT(types), "this pre_tokenizer is not known",
                      &get_step(r)->kind, err);
}

static clv_code read_prefix_space(reading *r, clv_err *err) {
  return clv_json_read_bool(&r->j, &get_step(r)->adds_prefix_space, err);
}

static clv_code read_use_regex(reading *r, clv_err *err) {
  return clv_json_read_bool(&r->j, &get_step(r)->by_pattern, err);
}

static clv_code read_invert(reading *r, clv_err *err) {
  return check_false(r, "invert: true is not supported", err);
}

static clv_code read_behavior(reading *r, clv_err *err) {
  static const char *const wanted[] = {"Isolated"};
  return check_one_of(r, wanted, 1, "a split keeps what matches: behavior Isolated", NULL, err);
}

static clv_code read_regex(reading *r, clv_err *err) {
  static const char *const patterns[] = {gpt2_pattern, llama3_pattern, qwen2_pattern,
                                         gpt2_short_pattern};
  static const clv_token_pattern kinds[] = {CLV_TOKEN_PATTERN_GPT2, CLV_TOKEN_PATTERN_LLAMA3,
                                            CLV_TOKEN_PATTERN_QWEN2, CLV_TOKEN_PATTERN_GPT2};
  step *s = get_step(r);
  size_t which = 0;
  CLV_TRY(check_one_of(r, patterns, CLV_COUNT(patterns),
                       "only the patterns of GPT-2, Llama 3 and Qwen2 are known", &which, err));
  s->pattern = kinds[which];
  s->has_pattern = true;
  return CLV_OK;
}

static clv_code read_pattern(reading *r, clv_err *err) {
  static const key keys[] = {{"Regex", read_regex},
                             /* skipped, so has_pattern stays false and the step is refused */
                             {"String", NULL}};
  return read_keys(r, keys, CLV_COUNT(keys), err);
}

static clv_code read_steps(reading *r, clv_err *err);

static clv_code read_step(reading *r, clv_err *err) {
  static const key keys[] = {{"type", read_step_type},      {"add_prefix_space", read_prefix_space},
                             {"use_regex", read_use_regex}, {"pattern", read_pattern},
                             {"behavior", read_behavior},   {"invert", read_invert},
                             {"pretokenizers", read_steps}, {"trim_offsets", NULL}};
  *get_step(r) = (step){.kind = STEP_NONE, .by_pattern = true};
  return read_keys(r, keys, CLV_COUNT(keys), err);
}

static clv_code read_steps(reading *r, clv_err *err) {
  stepping *s = (stepping *)(void *)r;
  bool more = true;
  step *list = s->at;
  if (list != s->steps) return clv_json_fail(&r->j, r->j.at, err, "a list within a list of steps");
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (;; s->n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, s->n, &more, err));
    if (!more) break;
    if (s->n == MAX_STEPS)
      return clv_json_fail(&r->j, r->j.at, err, "more than %d steps of a pre_tokenizer", MAX_STEPS);
    s->at = &s->steps[1 + s->n];
    CLV_TRY(read_step(r, err));
  }
  s->at = list;
  return CLV_OK;
}

/* Checks the steps: ByteLevel alone, or Split and then ByteLevel without a pattern. */
static clv_code check_steps(stepping *s, size_t at, clv_err *err) {
  const step *first = &s->steps[0], *split = &s->steps[1], *bytes = &s->steps[2];
  clv_tokenizer *t = s->r.t;
  bool alone = first->kind == STEP_BYTES && !s->n && first->by_pattern;
  bool both = first->kind == STEP_LIST && s->n == 2 && split->kind == STEP_SPLIT &&
              split->has_pattern && bytes->kind == STEP_BYTES && !bytes->by_pattern &&
              !bytes->adds_prefix_space;
  if (!alone && !both)
    return clv_json_fail(&s->r.j, at, err,
                         "this pre_tokenizer is not known: expected ByteLevel, or Split and then "
                         "ByteLevel with use_regex: false and add_prefix_space: false");
  t->adds_prefix_space = alone && first->adds_prefix_space;
  t->pattern = alone ? CLV_TOKEN_PATTERN_GPT2 : (clv_token_pattern)split->pattern;
  return CLV_OK;
}

static clv_code read_pre_tokenizer(reading *r, clv_err *err) {
  stepping *s = (stepping *)(void *)r;
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  s->at = s->steps;
  s->n = 0;
  CLV_TRY(read_step(r, err));
  return check_steps(s, at, err);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

enum { SINGLE_WORD, LSTRIP, RSTRIP, NORMALIZED, ADDED_FLAGS, ID = ADDED_FLAGS, CONTENT, SPECIAL };

typedef struct added_token {
  clv_bytes *content;
  int64_t id; /* -1: not given */
  bool flags[ADDED_FLAGS];
} added_token;

static clv_code read_added_keys(clv_json *j, added_token *a, clv_err *err) {
  static const char *const names[] = {
      [SINGLE_WORD] = "single_word", [LSTRIP] = "lstrip", [RSTRIP] = "rstrip",
      [NORMALIZED] = "normalized",   [ID] = "id",         [CONTENT] = "content",
      [SPECIAL] = "special"}; /* matters only for decoding */
  clv_known_keys keys = {.names = names, .n_names = CLV_COUNT(names), .what = "an added token"};
  int which;
  for (;;) {
    CLV_TRY(clv_read_known_key(j, &keys, &which, err));
    if (which < 0) return CLV_OK;
    if (which < ADDED_FLAGS)
      CLV_TRY(clv_json_read_bool(j, &a->flags[which], err));
    else if (which == ID)
      CLV_TRY(clv_json_read_integer(j, 0, CLV_TOKENS_MAX_ID - 1, &a->id, err));
    else
      CLV_TRY(which == CONTENT ? clv_json_read_text(j, a->content, err) : clv_json_skip(j, err));
  }
}

static clv_code read_added_one(reading *r, clv_err *err) {
  added_token a = {.content = &r->text, .id = -1};
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  r->text.len = 0;
  CLV_TRY(read_added_keys(&r->j, &a, err));
  if (a.id < 0 || !r->text.len || r->text.len > CLV_ADDED_MAX_BYTES)
    return clv_json_fail(&r->j, at, err, "an added token needs id and content, of 1 to %d bytes",
                         CLV_ADDED_MAX_BYTES);
  if (a.flags[SINGLE_WORD])
    return refuse_value(r, at, err, "single_word is not known, of the added token");
  uint8_t strip = (uint8_t)((a.flags[LSTRIP] ? CLV_ADDED_LSTRIP : 0) |
                            (a.flags[RSTRIP] ? CLV_ADDED_RSTRIP : 0));
  return clv_vocab_add(a.flags[NORMALIZED] ? &r->t->normalised_added : &r->t->raw_added,
                       r->text.data, r->text.len, (int32_t)a.id, (uint32_t)at, strip, err);
}

static clv_code read_added(reading *r, clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, n, &more, err));
    if (!more) break;
    CLV_TRY(read_added_one(r, err));
  }
  CLV_TRY(check_no_duplicates(r, &r->t->raw_added, err));
  return check_no_duplicates(r, &r->t->normalised_added, err);
}

/* ---- the file -------------------------------------------------------------------------------- */

static clv_code read_post_processor(reading *r, clv_err *err) {
  return clv_read_post_processor(&r->j, r->t, err);
}
static clv_code read_truncation(reading *r, clv_err *err) {
  return clv_read_truncation(&r->j, r->t, err);
}
static clv_code read_padding(reading *r, clv_err *err) {
  return clv_read_padding(&r->j, r->t, err);
}

static clv_code read_file(stepping *s, clv_err *err) {
  static const key keys[] = {{"added_tokens", read_added},
                             {"normalizer", read_normalizer},
                             {"pre_tokenizer", read_pre_tokenizer},
                             {"model", read_model},
                             {"post_processor", read_post_processor},
                             {"truncation", read_truncation},
                             {"padding", read_padding},
                             {"version", NULL},
                             {"decoder", NULL}}; /* matters only for decoding */
  CLV_TRY(read_keys(&s->r, keys, CLV_COUNT(keys), err));
  CLV_TRY(clv_json_end(&s->r.j, err));
  if (!s->r.has_vocab)
    return clv_json_fail(&s->r.j, 0, err, "there is no model in this tokenizer.json");
  if (!s->at) return clv_json_fail(&s->r.j, 0, err, "there is no pre_tokenizer");
  const clv_tokenizer *t = s->r.t;
  int32_t most =
      CLV_MAX(t->vocab.most, CLV_MAX(t->raw_added.n ? t->raw_added.most : -1,
                                     t->normalised_added.n ? t->normalised_added.most : -1));
  if (CLV_MAX(CLV_MAX(t->before, t->after), t->filler) <= most) return CLV_OK;
  return clv_json_fail(&s->r.j, 0, err, "post_processor or padding has a number that no token has");
}

clv_code clv_bpe_parse(const char *text, size_t len, const char *label, clv_tokenizer **ret,
                       clv_err *err) {
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_TRY(clv_tokenizer_new(&t, err));
  t->encode = clv_bpe_encode;
  stepping s = {.r = {.j = {.label = label, .text = text, .len = len}, .t = t}};
  clv_code code = read_file(&s, err);
  clv_bytes_done(&s.r.text);
  CLV_TRY(code);
  *ret = clv_steal(&t);
  return CLV_OK;
}
