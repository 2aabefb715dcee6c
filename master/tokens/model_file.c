/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the section `model` of a tokenizer.json: its options, then its vocabulary, then its merges.
 * BPE is byte-level if the last step of the pre_tokenizer, which was read before, is ByteLevel.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokenizer_file_int.h"

enum { MAX_WORD_CHARS = 1000 }; /* limit of max_input_chars_per_word */

/* Values of the section `model` while it is read. Each model has some of these keys. */
typedef struct parsed_model_keys {
  clv_json vocab_at, merges_at; /* positions of the values of vocab and merges */
  clv_json unk_id_at;           /* position of the value of unk_id, a key of Unigram */
  clv_bytes unknown;            /* unk_token; empty: none */
  clv_bytes prefix, suffix;     /* continuing_subword_prefix, end_of_word_suffix */
  double dropout;
  int64_t max_word_chars; /* max_input_chars_per_word */
  bool fuses_unknown, falls_back_to_bytes, prefers_whole_piece;
} parsed_model_keys;

static void parsed_model_keys_done(parsed_model_keys *r) {
  clv_bytes_done(&r->unknown);
  clv_bytes_done(&r->prefix);
  clv_bytes_done(&r->suffix);
}

/* ---- reading vocabularies -------------------------------------------------------------------- */

static clv_code check_token_size(clv_token_file *f, size_t at, clv_err *err) {
  if (f->text.len && f->text.len <= CLV_TOKENS_MAX_TOKEN_BYTES) return CLV_OK;
  return clv_json_fail(&f->j, at, err, "a token has %zu bytes, expected 1 to %d", f->text.len,
                       CLV_TOKENS_MAX_TOKEN_BYTES);
}

static clv_code check_no_duplicates(clv_token_file *f, clv_err *err) {
  clv_vocab *v = &f->t->vocab;
  clv_vocab_entry duplicates[2];
  if (clv_vocab_sort(v, duplicates)) return CLV_OK;
  return clv_json_fail(&f->j, duplicates[1].file_position, err, "the token '%.*s' appears twice",
                       (int)CLV_MIN(duplicates[1].len, 80u), v->text.data + duplicates[1].offset);
}

static clv_code read_token(clv_token_file *f, clv_err *err) {
  int64_t id;
  size_t at = f->j.at;
  CLV_TRY(clv_json_read_key(&f->j, &f->text, err));
  CLV_TRY(check_token_size(f, at, err));
  CLV_TRY(clv_json_read_integer(&f->j, 0, CLV_TOKENS_MAX_ID - 1, &id, err));
  return clv_vocab_add(&f->t->vocab, f->text.data, f->text.len, (int32_t)id, (uint32_t)at, 0, err);
}

/* Reads a vocabulary of BPE or of WordPiece, {"token": id, ...}. */
static clv_code read_token_ids(clv_token_file *f, clv_err *err) {
  bool has_more = true;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_OBJECT, err));
  for (size_t n = 0;; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) return check_no_duplicates(f, err);
    CLV_TRY(read_token(f, err));
  }
}

/* Appends the digits at `at` to *significand, as long as a uint64_t can hold them; *is_full:
 * *significand cannot hold more. Adds to *exponent the power of ten by which *significand must be
 * multiplied: 1 for each dropped digit before the point, -1 for each digit after the point that is
 * not dropped. Returns the end of the digits. */
static const char *read_digits(const char *at, uint64_t *significand, bool *is_full, int *exponent,
                               bool after_point) {
  for (; *at >= '0' && *at <= '9'; at++) {
    uint64_t digit = (uint64_t)(*at - '0');
    *is_full = *is_full || *significand > (UINT64_MAX - digit) / 10;
    if (!*is_full) *significand = *significand * 10 + digit;
    *exponent += after_point ? -!*is_full : *is_full;
  }
  return at;
}

static double power_of_ten(int n) {
  char text[16];
  snprintf(text, sizeof text, "1e%d", n);
  return strtod(text, NULL);
}

/* Returns the value of a JSON number, rounded as in Hugging Face's library: its digits as one
 * integer, multiplied or divided by a power of ten. This rounds twice, unlike strtod. The same
 * rounding is needed because the last bit of a sum of scores may decide which tokens Unigram
 * chooses. */
static double parse_score(const char *at) {
  bool is_negative = *at == '-', is_full = false;
  uint64_t significand = 0;
  int exponent = 0;
  at = read_digits(at + is_negative, &significand, &is_full, &exponent, false);
  if (*at == '.') at = read_digits(at + 1, &significand, &is_full, &exponent, true);
  if (*at == 'e' || *at == 'E')
    exponent += (int)CLV_MIN(CLV_MAX(strtol(at + 1, NULL, 10), -9999), 9999);
  double value = (double)significand;
  for (; value != 0 && exponent < -308; exponent += 308) value /= 1e308;
  if (value != 0)
    value = exponent < 0 ? value / power_of_ten(-exponent)
                         : value * power_of_ten(CLV_MIN(exponent, 308));
  return is_negative ? -value : value;
}

static clv_code read_score(clv_token_file *f, double *ret, clv_err *err) {
  char number_text[128];
  size_t at = clv_token_file_position(f);
  CLV_TRY(clv_json_read_real(&f->j, ret, err));
  snprintf(number_text, sizeof number_text, "%.*s",
           (int)CLV_MIN(f->j.at - at, sizeof number_text - 1), f->j.text + at);
  *ret = parse_score(number_text);
  return isfinite(*ret) ? CLV_OK : clv_json_fail(&f->j, at, err, "this score is too large");
}

/* Reads a token of Unigram and its score: ["token", -3.5]. */
static clv_code read_scored_token(clv_token_file *f, clv_bytes *scores, clv_err *err) {
  size_t at = clv_token_file_position(f), id = scores->len / sizeof(double);
  bool has_more = true;
  double score = 0;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 3; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more != (n < 2))
      return clv_json_fail(&f->j, at, err, "a token is a text and its score");
    if (n == 0) CLV_TRY(clv_json_read_text(&f->j, &f->text, err));
    if (n == 1) CLV_TRY(read_score(f, &score, err));
  }
  CLV_TRY(check_token_size(f, at, err));
  if (id == CLV_TOKENS_MAX_ID)
    return clv_json_fail(&f->j, at, err, "more than %d tokens", CLV_TOKENS_MAX_ID);
  clv_bytes_add(scores, &score, sizeof score);
  return clv_vocab_add(&f->t->vocab, f->text.data, f->text.len, (int32_t)id, (uint32_t)at, 0, err);
}

/* Reads a vocabulary of Unigram: a list of tokens and scores. The id of a token is its index. */
static clv_code read_scores(clv_token_file *f, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes scores = {0};
  double min_score = INFINITY;
  bool has_more = true;
  size_t at = clv_token_file_position(f), n = 0;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (;; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(read_scored_token(f, &scores, err));
  }
  if (!n) return clv_json_fail(&f->j, at, err, "this vocabulary has no tokens");
  CLV_TRY(clv_alloc(n, sizeof(double), &f->t->scores, err));
  if (scores.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu scores", n);
  memcpy(f->t->scores, scores.data, n * sizeof(double));
  for (size_t i = 0; i < n; i++) min_score = CLV_MIN(min_score, f->t->scores[i]);
  f->t->unknown_score = min_score - 10;
  return check_no_duplicates(f, err);
}

/* ---- reading merges -------------------------------------------------------------------------- */

/* Reads a merge that is one text, "left right", into f->text and *ret_right. */
static clv_code read_text_pair(clv_token_file *f, clv_bytes *ret_right, clv_err *err) {
  size_t at = f->j.at;
  CLV_TRY(clv_json_read_text(&f->j, &f->text, err));
  char *space = memchr(f->text.data, ' ', f->text.len);
  if (!space || memchr(space + 1, ' ', f->text.len - (size_t)(space + 1 - f->text.data)))
    return clv_json_fail(&f->j, at, err, "a merge is two tokens with a space between them: '%.80s'",
                         f->text.data);
  ret_right->len = 0;
  clv_bytes_add(ret_right, space + 1, f->text.len - (size_t)(space + 1 - f->text.data));
  f->text.len = (size_t)(space - f->text.data);
  return CLV_OK;
}

/* Reads a merge that is a list, ["left", "right"], into f->text and *ret_right. */
static clv_code read_list_pair(clv_token_file *f, clv_bytes *ret_right, clv_err *err) {
  bool has_more = true;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 3; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more != (n < 2)) return clv_json_fail(&f->j, f->j.at, err, "a merge is two tokens");
    if (has_more) CLV_TRY(clv_json_read_text(&f->j, n ? ret_right : &f->text, err));
  }
  return CLV_OK;
}

static clv_code find_known_token(const clv_token_file *f, size_t at, const char *text, size_t len,
                                 int32_t *ret, clv_err *err) {
  const clv_vocab_entry *e = clv_vocab_find(&f->t->vocab, text, len);
  if (!e)
    return clv_json_fail(&f->j, at, err, "a merge needs '%.*s', which is not a token",
                         (int)CLV_MIN(len, (size_t)80), text);
  *ret = e->id;
  return CLV_OK;
}

static clv_code read_merge(clv_token_file *f, clv_bytes *right_text, clv_merge *m, clv_err *err) {
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(&f->j, &kind, err));
  size_t at = f->j.at;
  CLV_TRY(kind == CLV_JSON_LIST ? read_list_pair(f, right_text, err)
                                : read_text_pair(f, right_text, err));
  CLV_TRY(find_known_token(f, at, f->text.data, f->text.len, &m->left, err));
  CLV_TRY(find_known_token(f, at, right_text->data, right_text->len, &m->right, err));
  clv_bytes_add(&f->text, right_text->data, right_text->len);
  return find_known_token(f, at, f->text.data, f->text.len, &m->id, err);
}

static clv_code add_merge(clv_tokenizer *t, size_t *cap, const clv_merge *m, clv_err *err) {
  if (t->n_merges == *cap) {
    size_t new_cap = *cap ? 2 * *cap : 1024, bytes;
    void *new_merges = clv_mul_size(new_cap, sizeof *m, &bytes) ? realloc(t->merges, bytes) : NULL;
    if (!new_merges) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu merges", new_cap);
    t->merges = new_merges;
    *cap = new_cap;
  }
  t->merges[t->n_merges++] = *m;
  return CLV_OK;
}

/* Makes t->first_merge_of_left_id from the sorted merges. */
static clv_code index_merges(clv_tokenizer *t, clv_err *err) {
  size_t n = (size_t)t->vocab.max_id + 2;
  CLV_TRY(clv_alloc(n, sizeof *t->first_merge_of_left_id, &t->first_merge_of_left_id, err));
  for (size_t i = 0; i < t->n_merges; i++) t->first_merge_of_left_id[t->merges[i].left + 1]++;
  for (size_t i = 1; i < n; i++) t->first_merge_of_left_id[i] += t->first_merge_of_left_id[i - 1];
  return CLV_OK;
}

static clv_code sort_merges(const clv_token_file *f, size_t at, clv_err *err) {
  clv_tokenizer *t = f->t;
  if (t->n_merges) qsort(t->merges, t->n_merges, sizeof *t->merges, clv_merge_compare);
  for (size_t i = 1; i < t->n_merges; i++)
    if (clv_merge_compare(&t->merges[i - 1], &t->merges[i]) == 0)
      return clv_json_fail(&f->j, at, err, "merges %u and %u of this list are the same",
                           t->merges[i - 1].rank, t->merges[i].rank);
  return index_merges(t, err);
}

static clv_code read_merges(clv_token_file *f, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes right_text = {0};
  size_t cap = 0, at = clv_token_file_position(f);
  bool has_more = true;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (uint32_t n = 0;; n++) {
    clv_merge m = {.rank = n};
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(read_merge(f, &right_text, &m, err));
    CLV_TRY(add_merge(f->t, &cap, &m, err));
  }
  return sort_merges(f, at, err);
}

/* ---- options of BPE, WordPiece and Unigram --------------------------------------------------- */

static clv_code find_unknown_token(clv_token_file *f, const parsed_model_keys *r, size_t at,
                                   clv_err *err) {
  const char *text = r->unknown.len ? r->unknown.data : "";
  const clv_vocab_entry *e = clv_vocab_find(&f->t->vocab, text, r->unknown.len);
  if (!e) return clv_json_fail(&f->j, at, err, "unk_token '%.80s' is not a token of vocab", text);
  f->t->unknown_id = e->id;
  return CLV_OK;
}

/* Sets byte_tokens for byte-level BPE. Refuses a vocabulary that lacks the token of a byte. */
static clv_code find_byte_char_tokens(clv_token_file *f, size_t at, clv_err *err) {
  for (unsigned b = 0; b < 256; b++) {
    CLV_AUTO(clv_bytes_done) clv_bytes c = {0};
    clv_codepoint_to_utf8(clv_byte_char((unsigned char)b), &c);
    const clv_vocab_entry *e = c.failed ? NULL : clv_vocab_find(&f->t->vocab, c.data, c.len);
    if (!e)
      return clv_json_fail(&f->j, at, err,
                           "this vocabulary has no token for the byte 0x%02x: byte-level BPE "
                           "needs all 256",
                           b);
    f->t->byte_tokens[b] = e->id;
  }
  return CLV_OK;
}

/* Sets byte_tokens to the tokens <0x00> to <0xFF>, which byte_fallback uses for the bytes of an
 * unknown character; -1 for a byte without such a token. */
static void find_fallback_byte_tokens(clv_tokenizer *t) {
  for (unsigned b = 0; b < 256; b++) {
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", b);
    const clv_vocab_entry *e = clv_vocab_find(&t->vocab, name, strlen(name));
    t->byte_tokens[b] = e ? e->id : -1;
  }
}

/* Refuses options of BPE that are not supported. */
static clv_code refuse_option(clv_token_file *f, const parsed_model_keys *r, size_t at,
                              clv_err *err) {
  if (r->dropout != 0) return clv_json_fail(&f->j, at, err, "dropout of merges is not supported");
  if (r->prefix.len)
    return clv_json_fail(&f->j, at, err,
                         "continuing_subword_prefix of BPE is not supported: '%.80s'",
                         r->prefix.data);
  if (r->suffix.len)
    return clv_json_fail(&f->j, at, err, "end_of_word_suffix of BPE is not supported: '%.80s'",
                         r->suffix.data);
  return CLV_OK;
}

static clv_code finish_bpe(clv_token_file *f, const parsed_model_keys *r, size_t at, clv_err *err) {
  clv_tokenizer *t = f->t;
  CLV_TRY(refuse_option(f, r, at, err));
  f->j = r->vocab_at;
  CLV_TRY(read_token_ids(f, err));
  t->is_byte_level = clv_pre_tokenizer_is_byte_level(t);
  t->fuses_unknown = r->fuses_unknown;
  t->falls_back_to_bytes = r->falls_back_to_bytes;
  t->prefers_whole_piece = r->prefers_whole_piece;
  find_fallback_byte_tokens(t);
  if (t->is_byte_level)
    CLV_TRY(find_byte_char_tokens(f, at, err));
  else if (r->unknown.len)
    CLV_TRY(find_unknown_token(f, r, at, err));
  f->j = r->merges_at;
  return read_merges(f, err);
}

static clv_code finish_wordpiece(clv_token_file *f, const parsed_model_keys *r, size_t at,
                                 clv_err *err) {
  if (!r->max_word_chars)
    return clv_json_fail(&f->j, at, err, "max_input_chars_per_word is 0, expected 1 to %d",
                         MAX_WORD_CHARS);
  f->j = r->vocab_at;
  CLV_TRY(read_token_ids(f, err));
  CLV_TRY(clv_vocab_make_tree(&f->t->vocab, err));
  f->t->max_word_chars = (size_t)r->max_word_chars;
  clv_wordpiece_set_prefix(f->t, r->prefix.len ? r->prefix.data : "", r->prefix.len);
  return find_unknown_token(f, r, at, err);
}

static clv_code finish_unigram(clv_token_file *f, const parsed_model_keys *r, size_t at,
                               clv_err *err) {
  clv_tokenizer *t = f->t;
  int64_t id;
  f->j = r->unk_id_at;
  if (clv_json_skip_null(&f->j))
    return clv_json_fail(&f->j, at, err,
                         "unk_id is null: Unigram needs a token for what it does not know");
  CLV_TRY(clv_json_read_integer(&f->j, 0, CLV_TOKENS_MAX_ID - 1, &id, err));
  f->j = r->vocab_at;
  CLV_TRY(read_scores(f, err));
  CLV_TRY(clv_vocab_make_tree(&t->vocab, err));
  t->unknown_id = (int32_t)id;
  t->falls_back_to_bytes = r->falls_back_to_bytes;
  find_fallback_byte_tokens(t);
  if (t->unknown_id <= t->vocab.max_id) return CLV_OK;
  return clv_json_fail(&f->j, at, err, "unk_id is %d, and vocab has %zu tokens", t->unknown_id,
                       t->vocab.n);
}

/* ---- reading the section `model` ------------------------------------------------------------- */

#define AT(member) offsetof(parsed_model_keys, member)

static const clv_json_key_row bpe_keys[] = {
    {.name = "type"},
    {.name = "dropout", .kind = CLV_KEY_REAL, .offset = AT(dropout), .is_optional = true},
    {.name = "unk_token", .kind = CLV_KEY_BYTES, .offset = AT(unknown), .is_optional = true},
    {.name = "continuing_subword_prefix",
     .kind = CLV_KEY_BYTES,
     .offset = AT(prefix),
     .is_optional = true},
    {.name = "end_of_word_suffix",
     .kind = CLV_KEY_BYTES,
     .offset = AT(suffix),
     .is_optional = true},
    {.name = "fuse_unk", .kind = CLV_KEY_FLAG, .offset = AT(fuses_unknown), .is_optional = true},
    {.name = "byte_fallback",
     .kind = CLV_KEY_FLAG,
     .offset = AT(falls_back_to_bytes),
     .is_optional = true},
    {.name = "ignore_merges",
     .kind = CLV_KEY_FLAG,
     .offset = AT(prefers_whole_piece),
     .is_optional = true},
    {.name = "vocab", .kind = CLV_KEY_POSITION, .offset = AT(vocab_at)},
    {.name = "merges", .kind = CLV_KEY_POSITION, .offset = AT(merges_at)}};
static const clv_json_key_row wordpiece_keys[] = {
    {.name = "type"},
    {.name = "unk_token", .kind = CLV_KEY_BYTES, .offset = AT(unknown)},
    {.name = "continuing_subword_prefix", .kind = CLV_KEY_BYTES, .offset = AT(prefix)},
    {.name = "max_input_chars_per_word",
     .kind = CLV_KEY_INTEGER,
     .offset = AT(max_word_chars),
     .max_integer = MAX_WORD_CHARS},
    {.name = "vocab", .kind = CLV_KEY_POSITION, .offset = AT(vocab_at)}};
static const clv_json_key_row unigram_keys[] = {
    {.name = "type"},
    {.name = "unk_id", .kind = CLV_KEY_POSITION, .offset = AT(unk_id_at)},
    {.name = "byte_fallback",
     .kind = CLV_KEY_FLAG,
     .offset = AT(falls_back_to_bytes),
     .is_optional = true},
    {.name = "vocab", .kind = CLV_KEY_POSITION, .offset = AT(vocab_at)}};

#define KEY_LIST(list) list, CLV_COUNT(list)
static const struct {
  const char *name;
  const clv_json_key_row *keys; /* [n_keys] read into a `parsed_model_keys` */
  size_t n_keys;
  /* reads vocabulary and merges, after the keys are read; at: byte where the section begins */
  clv_code (*finish)(clv_token_file *f, const parsed_model_keys *r, size_t at, clv_err *err);
} models[] = {
    [CLV_TOKEN_MODEL_BPE] = {"BPE", KEY_LIST(bpe_keys), finish_bpe},
    [CLV_TOKEN_MODEL_WORDPIECE] = {"WordPiece", KEY_LIST(wordpiece_keys), finish_wordpiece},
    [CLV_TOKEN_MODEL_UNIGRAM] = {"Unigram", KEY_LIST(unigram_keys), finish_unigram}};

clv_code clv_read_model(clv_token_file *f, clv_err *err) {
  CLV_AUTO(parsed_model_keys_done) parsed_model_keys r = {0};
  size_t at = clv_token_file_position(f), i = 0;
  CLV_TRY(clv_token_file_find_type(f, "model", err));
  while (i < CLV_COUNT(models) && !clv_token_file_text_equals(f, models[i].name)) i++;
  if (i == CLV_COUNT(models))
    return clv_json_fail(&f->j, at, err,
                         "only models of type BPE, WordPiece and Unigram are read: '%.60s'",
                         f->text.data);
  f->t->model = (clv_token_model)i;
  CLV_TRY(clv_token_file_read_keys(f, "model", models[i].keys, models[i].n_keys, &r, err));
  if (i != CLV_TOKEN_MODEL_BPE && clv_pre_tokenizer_is_byte_level(f->t))
    return clv_json_fail(&f->j, at, err,
                         "the pre_tokenizer ByteLevel is read with models of type BPE, not %s",
                         models[i].name);
  return models[i].finish(f, &r, at, err);
}
