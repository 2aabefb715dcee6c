/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a tokenizer.json of byte-level BPE, as written by Hugging Face's tokenizers. An unsupported
 * normalizer, pattern or type of model is refused, and the message names it. clv_bpe_parse is the
 * main function.
 *
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json/json.h"
#include "master/tokens/tokens_int.h"

/* The file being read. */
typedef struct reading {
  clv_json j;
  clv_tokenizer *t;
  clv_bytes text; /* the current value */
  clv_json merges;
  bool has_merges, has_vocab;
} reading;

typedef clv_code (*take_value)(reading *r, clv_err *err);

typedef struct key {
  const char *name;
  take_value take; /* NULL: any value, which is skipped */
} key;

enum { MAX_KEYS = 16 };

/* Refuses an unknown key, because it may need an unsupported feature. A value of null is
 * accepted. */
static clv_code refuse_key(reading *r, size_t at, clv_err *err) {
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  clv_json from = r->j;
  from.at = at;
  CLV_TRY(clv_json_key(&from, &r->text, err));
  return clv_json_fail(&r->j, at, err, "the key '%.80s' is not known here", r->text.data);
}

static clv_code take_keys(reading *r, const key *keys, size_t n_keys, clv_err *err) {
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
      CLV_TRY(keys[which].take ? keys[which].take(r, err) : clv_json_skip(&r->j, err));
  }
}

/* Refuses a value for which only others are supported. */
static clv_code refuse(const reading *r, size_t at, clv_err *err, const char *what) {
  return clv_json_fail(&r->j, at, err, "%s%s%.80s%s", what, r->text.len ? ": '" : "",
                       r->text.len ? r->text.data : "", r->text.len ? "'" : "");
}

static clv_code must_be(reading *r, const char *const *wanted, size_t n, const char *what,
                        size_t *ret_which, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  CLV_TRY(clv_json_text(&r->j, &r->text, err));
  for (size_t i = 0; i < n; i++)
    if (strcmp(wanted[i], r->text.data) == 0) {
      if (ret_which) *ret_which = i;
      return CLV_OK;
    }
  return refuse(r, at, err, what);
}

static clv_code must_be_false(reading *r, const char *what, clv_err *err) {
  bool value;
  CLV_TRY(clv_json_bool(&r->j, &value, err));
  return value ? clv_json_fail(&r->j, r->j.at, err, "%s", what) : CLV_OK;
}

/* Accepts null or the empty text. */
static clv_code must_be_empty(reading *r, const char *what, clv_err *err) {
  static const char *const nothing[] = {""};
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  return must_be(r, nothing, 1, what, NULL, err);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static clv_code take_token(reading *r, clv_err *err) {
  int64_t id;
  uint32_t place = (uint32_t)r->j.at;
  CLV_TRY(clv_json_key(&r->j, &r->text, err));
  if (!r->text.len || r->text.len > CLV_TOKENS_MAX_TOKEN)
    return clv_json_fail(&r->j, place, err, "a token has %zu bytes, expected 1 to %d", r->text.len,
                         CLV_TOKENS_MAX_TOKEN);
  CLV_TRY(clv_json_integer(&r->j, 0, CLV_TOKENS_MAX_ID - 1, &id, err));
  return clv_vocab_add(&r->t->vocab, r->text.data, r->text.len, (int32_t)id, place, 0, err);
}

static clv_code no_twins(const reading *r, clv_vocab *v, clv_err *err) {
  clv_vocab_entry twice[2];
  if (clv_vocab_sort(v, twice)) return CLV_OK;
  return clv_json_fail(&r->j, twice[1].place, err, "the token '%.*s' appears twice",
                       (int)CLV_MIN(twice[1].len, 80u), v->text.data + twice[1].offset);
}

static clv_code take_vocab(reading *r, clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_OBJECT, n, &more, err));
    if (!more) break;
    CLV_TRY(take_token(r, err));
  }
  r->has_vocab = true;
  return no_twins(r, &r->t->vocab, err);
}

/* ---- merges ---------------------------------------------------------------------------------- */

/* Notes where the merges begin. They may come before the vocabulary, so take_model reads them
 * last. */
static clv_code keep_merges(reading *r, clv_err *err) {
  r->merges = r->j;
  r->has_merges = true;
  return clv_json_skip(&r->j, err);
}

static clv_code take_text_pair(reading *r, clv_bytes *ret_right, clv_err *err) {
  size_t at = r->j.at;
  CLV_TRY(clv_json_text(&r->j, &r->text, err));
  char *space = memchr(r->text.data, ' ', r->text.len);
  if (!space || memchr(space + 1, ' ', r->text.len - (size_t)(space + 1 - r->text.data)))
    return refuse(r, at, err, "a merge is two tokens with a space between them");
  ret_right->len = 0;
  clv_bytes_add(ret_right, space + 1, r->text.len - (size_t)(space + 1 - r->text.data));
  r->text.len = (size_t)(space - r->text.data);
  return CLV_OK;
}

static clv_code take_list_pair(reading *r, clv_bytes *ret_right, clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 3; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, n, &more, err));
    if (more != (n < 2)) return clv_json_fail(&r->j, r->j.at, err, "a merge is two tokens");
    if (more) CLV_TRY(clv_json_text(&r->j, n ? ret_right : &r->text, err));
  }
  return CLV_OK;
}

static clv_code known(const reading *r, size_t at, const char *text, size_t len, int32_t *ret,
                      clv_err *err) {
  const clv_vocab_entry *e = clv_vocab_find(&r->t->vocab, text, len);
  if (!e)
    return clv_json_fail(&r->j, at, err, "a merge needs '%.*s', which is not a token",
                         (int)CLV_MIN(len, (size_t)80), text);
  *ret = e->id;
  return CLV_OK;
}

static clv_code take_merge(reading *r, clv_bytes *right, clv_merge *m, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  CLV_TRY(kind == CLV_JSON_LIST ? take_list_pair(r, right, err) : take_text_pair(r, right, err));
  CLV_TRY(known(r, at, r->text.data, r->text.len, &m->left, err));
  CLV_TRY(known(r, at, right->data, right->len, &m->right, err));
  clv_bytes_add(&r->text, right->data, right->len);
  return known(r, at, r->text.data, r->text.len, &m->id, err);
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

static clv_code take_merges(reading *r, clv_err *err) {
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
    CLV_TRY(take_merge(r, &right, &m, err));
    CLV_TRY(add_merge(r->t, &cap, &m, err));
  }
  r->j = after;
  return sort_merges(r, err);
}

/* ---- the model ------------------------------------------------------------------------------- */

static clv_code take_model_type(reading *r, clv_err *err) {
  static const char *const types[] = {"BPE"};
  return must_be(r, types, 1, "only models of type BPE are read", NULL, err);
}

static clv_code take_dropout(reading *r, clv_err *err) {
  double value = 0;
  if (clv_json_skip_null(&r->j)) return CLV_OK;
  CLV_TRY(clv_json_real(&r->j, &value, err));
  return value == 0 ? CLV_OK
                    : clv_json_fail(&r->j, r->j.at, err, "dropout of merges is not supported");
}

static clv_code take_prefix(reading *r, clv_err *err) {
  return must_be_empty(r, "continuing_subword_prefix is not of byte-level BPE", err);
}

static clv_code take_suffix(reading *r, clv_err *err) {
  return must_be_empty(r, "end_of_word_suffix is not of byte-level BPE", err);
}

static clv_code take_fallback(reading *r, clv_err *err) {
  return must_be_false(r, "byte_fallback is not of byte-level BPE", err);
}

static clv_code take_ignore_merges(reading *r, clv_err *err) {
  return clv_json_bool(&r->j, &r->t->whole_first, err);
}

static clv_code take_bytes(reading *r, size_t at, clv_err *err) {
  for (unsigned b = 0; b < 256; b++) {
    CLV_AUTO(clv_bytes_done) clv_bytes c = {0};
    clv_codepoint_to_utf8(clv_byte_char((unsigned char)b), &c);
    const clv_vocab_entry *e = c.failed ? NULL : clv_vocab_find(&r->t->vocab, c.data, c.len);
    if (!e)
      return clv_json_fail(&r->j, at, err,
                           "this vocabulary has no token for the byte 0x%02x: byte-level BPE "
                           "needs all 256",
                           b);
    r->t->of_byte[b] = e->id;
  }
  return CLV_OK;
}

static clv_code take_model(reading *r, clv_err *err) {
  static const key keys[] = {{"type", take_model_type},
                             {"dropout", take_dropout},
                             {"continuing_subword_prefix", take_prefix},
                             {"end_of_word_suffix", take_suffix},
                             {"byte_fallback", take_fallback},
                             {"ignore_merges", take_ignore_merges},
                             {"unk_token", NULL}, /* every byte is a token */
                             {"fuse_unk", NULL},
                             {"vocab", take_vocab},
                             {"merges", keep_merges}};
  size_t at = r->j.at;
  CLV_TRY(take_keys(r, keys, CLV_COUNT(keys), err));
  if (!r->has_vocab || !r->has_merges)
    return clv_json_fail(&r->j, at, err, "the model has no %s", r->has_vocab ? "merges" : "vocab");
  CLV_TRY(take_bytes(r, at, err));
  return take_merges(r, err);
}

/* ---- before the model ------------------------------------------------------------------------ */

static clv_code take_normalizer_type(reading *r, clv_err *err) {
  static const char *const types[] = {"NFC"};
  r->t->compose = true;
  return must_be(r, types, 1, "only the normalizer NFC is supported", NULL, err);
}

static clv_code take_normalizer(reading *r, clv_err *err) {
  static const key keys[] = {{"type", take_normalizer_type}};
  return clv_json_skip_null(&r->j) ? CLV_OK : take_keys(r, keys, CLV_COUNT(keys), err);
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
  bool prefix_space, by_pattern, has_pattern;
} step;

enum { MAX_STEPS = 2 };

/* State while the steps are read. */
typedef struct stepping {
  reading r; /* first, because step_of casts a reading to this struct */
  step steps[MAX_STEPS + 1], *at;
  size_t n;
} stepping;

static step *step_of(reading *r) { return ((stepping *)(void *)r)->at; }

static clv_code take_step_type(reading *r, clv_err *err) {
  static const char *const types[] = {
      [STEP_BYTES] = "ByteLevel", [STEP_SPLIT] = "Split", [STEP_LIST] = "Sequence"};
  return must_be(r, types, CLV_COUNT(types), "this pre_tokenizer is not known", &step_of(r)->kind,
                 err);
}

static clv_code take_prefix_space(reading *r, clv_err *err) {
  return clv_json_bool(&r->j, &step_of(r)->prefix_space, err);
}

static clv_code take_use_regex(reading *r, clv_err *err) {
  return clv_json_bool(&r->j, &step_of(r)->by_pattern, err);
}

static clv_code take_invert(reading *r, clv_err *err) {
  return must_be_false(r, "invert: true is not supported", err);
}

static clv_code take_behavior(reading *r, clv_err *err) {
  static const char *const wanted[] = {"Isolated"};
  return must_be(r, wanted, 1, "a split keeps what matches: behavior Isolated", NULL, err);
}

static clv_code take_regex(reading *r, clv_err *err) {
  static const char *const patterns[] = {gpt2_pattern, llama3_pattern, qwen2_pattern,
                                         gpt2_short_pattern};
  static const clv_token_pattern kinds[] = {CLV_TOKEN_PATTERN_GPT2, CLV_TOKEN_PATTERN_LLAMA3,
                                            CLV_TOKEN_PATTERN_QWEN2, CLV_TOKEN_PATTERN_GPT2};
  step *s = step_of(r);
  size_t which = 0;
  CLV_TRY(must_be(r, patterns, CLV_COUNT(patterns),
                  "only the patterns of GPT-2, Llama 3 and Qwen2 are known", &which, err));
  s->pattern = kinds[which];
  s->has_pattern = true;
  return CLV_OK;
}

static clv_code take_pattern(reading *r, clv_err *err) {
  static const key keys[] = {{"Regex", take_regex},
                             {"String", NULL}}; /* not supported: has_pattern stays false */
  return take_keys(r, keys, CLV_COUNT(keys), err);
}

static clv_code take_steps(reading *r, clv_err *err);

static clv_code take_step(reading *r, clv_err *err) {
  static const key keys[] = {{"type", take_step_type},      {"add_prefix_space", take_prefix_space},
                             {"use_regex", take_use_regex}, {"pattern", take_pattern},
                             {"behavior", take_behavior},   {"invert", take_invert},
                             {"pretokenizers", take_steps}, {"trim_offsets", NULL}};
  *step_of(r) = (step){.kind = STEP_NONE, .by_pattern = true};
  return take_keys(r, keys, CLV_COUNT(keys), err);
}

static clv_code take_steps(reading *r, clv_err *err) {
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
    CLV_TRY(take_step(r, err));
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
              !bytes->prefix_space;
  if (!alone && !both)
    return clv_json_fail(&s->r.j, at, err,
                         "this pre_tokenizer is not known: expected ByteLevel, or Split and then "
                         "ByteLevel with use_regex: false and add_prefix_space: false");
  t->prefix_space = alone && first->prefix_space;
  t->pattern = alone ? CLV_TOKEN_PATTERN_GPT2 : (clv_token_pattern)split->pattern;
  return CLV_OK;
}

static clv_code take_pre_tokenizer(reading *r, clv_err *err) {
  stepping *s = (stepping *)(void *)r;
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  s->at = s->steps;
  s->n = 0;
  CLV_TRY(take_step(r, err));
  return check_steps(s, at, err);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

enum { SINGLE_WORD, LSTRIP, RSTRIP, NORMALIZED, ADDED_FLAGS, ID = ADDED_FLAGS, CONTENT, SPECIAL };

typedef struct added_token {
  clv_bytes *content;
  int64_t id; /* -1: not given */
  bool flags[ADDED_FLAGS];
} added_token;

static clv_code take_added_keys(clv_json *j, added_token *a, clv_err *err) {
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
      CLV_TRY(clv_json_bool(j, &a->flags[which], err));
    else if (which == ID)
      CLV_TRY(clv_json_integer(j, 0, CLV_TOKENS_MAX_ID - 1, &a->id, err));
    else
      CLV_TRY(which == CONTENT ? clv_json_text(j, a->content, err) : clv_json_skip(j, err));
  }
}

static clv_code take_added_one(reading *r, clv_err *err) {
  added_token a = {.content = &r->text, .id = -1};
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&r->j, &kind, err));
  size_t at = r->j.at;
  r->text.len = 0;
  CLV_TRY(take_added_keys(&r->j, &a, err));
  if (a.id < 0 || !r->text.len || r->text.len > CLV_ADDED_MAX_BYTES)
    return clv_json_fail(&r->j, at, err, "an added token needs id and content, of 1 to %d bytes",
                         CLV_ADDED_MAX_BYTES);
  if (a.flags[SINGLE_WORD])
    return refuse(r, at, err, "single_word is not known, of the added token");
  uint8_t strip = (uint8_t)((a.flags[LSTRIP] ? CLV_ADDED_LSTRIP : 0) |
                            (a.flags[RSTRIP] ? CLV_ADDED_RSTRIP : 0));
  return clv_vocab_add(a.flags[NORMALIZED] ? &r->t->normalised : &r->t->raw, r->text.data,
                       r->text.len, (int32_t)a.id, (uint32_t)at, strip, err);
}

static clv_code take_added(reading *r, clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(&r->j, CLV_JSON_LIST, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&r->j, CLV_JSON_LIST, n, &more, err));
    if (!more) break;
    CLV_TRY(take_added_one(r, err));
  }
  CLV_TRY(no_twins(r, &r->t->raw, err));
  return no_twins(r, &r->t->normalised, err);
}

/* ---- the file -------------------------------------------------------------------------------- */

static clv_code take_post_processor(reading *r, clv_err *err) {
  return clv_read_post_processor(&r->j, r->t, err);
}
static clv_code take_truncation(reading *r, clv_err *err) {
  return clv_read_truncation(&r->j, r->t, err);
}
static clv_code take_padding(reading *r, clv_err *err) {
  return clv_read_padding(&r->j, r->t, err);
}

static clv_code take_file(stepping *s, clv_err *err) {
  static const key keys[] = {{"added_tokens", take_added},
                             {"normalizer", take_normalizer},
                             {"pre_tokenizer", take_pre_tokenizer},
                             {"model", take_model},
                             {"post_processor", take_post_processor},
                             {"truncation", take_truncation},
                             {"padding", take_padding},
                             {"version", NULL},
                             {"decoder", NULL}}; /* matters only for decoding */
  CLV_TRY(take_keys(&s->r, keys, CLV_COUNT(keys), err));
  CLV_TRY(clv_json_end(&s->r.j, err));
  if (!s->r.has_vocab)
    return clv_json_fail(&s->r.j, 0, err, "there is no model in this tokenizer.json");
  if (!s->at) return clv_json_fail(&s->r.j, 0, err, "there is no pre_tokenizer");
  const clv_tokenizer *t = s->r.t;
  int32_t most = CLV_MAX(t->vocab.most, CLV_MAX(t->raw.n ? t->raw.most : -1,
                                                t->normalised.n ? t->normalised.most : -1));
  if (CLV_MAX(CLV_MAX(t->before, t->after), t->filler) <= most) return CLV_OK;
  return clv_json_fail(&s->r.j, 0, err, "post_processor or padding has a number that no token has");
}

clv_code clv_bpe_parse(const char *text, size_t len, const char *label, clv_tokenizer **ret,
                       clv_err *err) {
  CLV_AUTO(clv_tokenizer_freep) clv_tokenizer *t = NULL;
  CLV_TRY(clv_tokenizer_new(&t, err));
  t->encode = clv_bpe_encode;
  stepping s = {.r = {.j = {.label = label, .text = text, .len = len}, .t = t}};
  clv_code code = take_file(&s, err);
  clv_bytes_done(&s.r.text);
  CLV_TRY(code);
  *ret = clv_steal(&t);
  return CLV_OK;
}
