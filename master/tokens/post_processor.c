/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the parts of a tokenizer.json for the ends of a text: the tokens that post_processor adds
 * before and after, the limit of truncation, and the token of padding. Each text is one sequence,
 * so `pair` is skipped. Offsets, types and strides are skipped, because records have none.
 */
#include <string.h>

#include "common/base/json/json.h"
#include "master/tokens/tokens_int.h"

enum { MOST_LENGTH = 1 << 30 };

/* A post-processor that is being read. check_processor checks it after all its keys, which come in
 * any order. */
typedef struct processor {
  clv_tokenizer *t;
  clv_bytes type, before, after; /* before, after: special tokens of a template, by name */
  /* for a template: number of texts; number of special tokens on the current side of the text */
  int n_texts, n_tokens;
  int64_t cls, sep;  /* -1: not given */
  clv_json specials; /* position of the value of special_tokens */
  bool has_template, has_specials, is_inner;
} processor;

static void processor_done(processor *p) {
  clv_bytes_done(&p->type);
  clv_bytes_done(&p->before);
  clv_bytes_done(&p->after);
}

clv_code clv_read_known_key(clv_json *j, clv_known_keys *k, int *ret_which, clv_err *err) {
  bool more = true;
  *ret_which = -1;
  if (!k->n_read) CLV_TRY(clv_json_open(j, CLV_JSON_OBJECT, err));
  CLV_TRY(clv_json_next(j, CLV_JSON_OBJECT, k->n_read++, &more, err));
  if (!more) return CLV_OK;
  size_t at = j->at;
  CLV_TRY(clv_json_find_key(j, k->names, k->n_names, &k->seen, ret_which, err));
  return *ret_which >= 0 ? CLV_OK
                         : clv_json_fail(j, at, err, "a key of %s that is not known", k->what);
}

typedef clv_code (*read_part)(clv_json *j, processor *p, int which, clv_err *err);

/* Reads an object whose keys are `names`, and calls read() for each value. */
static clv_code read_object(clv_json *j, processor *p, const char *const *names, size_t n_names,
                            read_part read, const char *what, clv_err *err) {
  clv_known_keys keys = {.names = names, .n_names = n_names, .what = what};
  int which;
  for (;;) {
    CLV_TRY(clv_read_known_key(j, &keys, &which, err));
    if (which < 0) return CLV_OK;
    CLV_TRY(read(j, p, which, err));
  }
}

/* ---- templates ------------------------------------------------------------------------------- */

enum { PIECE_ID, PIECE_TYPE };

static clv_code read_special_piece(clv_json *j, processor *p, int which, clv_err *err) {
  clv_bytes *to = p->n_texts ? &p->after : &p->before;
  return which == PIECE_ID ? clv_json_read_text(j, to, err) : clv_json_skip(j, err);
}

static clv_code read_text_piece(clv_json *j, processor *p, int which, clv_err *err) {
  (void)p;
  (void)which;
  return clv_json_skip(j, err);
}

static clv_code read_piece(clv_json *j, processor *p, int which, clv_err *err) {
  static const char *const names[] = {"id", "type_id"};
  size_t at = j->at;
  if (which) {
    p->n_texts++;
    p->n_tokens = 0;
    return read_object(j, p, names, CLV_COUNT(names), read_text_piece, "a sequence", err);
  }
  if (p->n_tokens++)
    return clv_json_fail(j, at, err,
                         "post_processor puts several tokens %s a text: only one is supported",
                         p->n_texts ? "after" : "before");
  return read_object(j, p, names, CLV_COUNT(names), read_special_piece, "a special token", err);
}

static clv_code read_single(clv_json *j, processor *p, clv_err *err) {
  static const char *const names[] = {"SpecialToken", "Sequence"};
  bool more = true;
  size_t at = j->at;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0; more; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &more, err));
    if (more) CLV_TRY(read_object(j, p, names, CLV_COUNT(names), read_piece, "single", err));
  }
  p->has_template = true;
  return p->n_texts == 1
             ? CLV_OK
             : clv_json_fail(j, at, err, "single has the text %d times, expected once", p->n_texts);
}

/* Reads a list `ids`, which must have exactly one id. */
static clv_code read_ids(clv_json *j, int64_t *ret, clv_err *err) {
  bool more = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 2; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &more, err));
    if (more != (n < 1))
      return clv_json_fail(j, j->at, err, "a special token of post_processor has one number");
    if (more) CLV_TRY(clv_json_read_integer(j, 0, CLV_TOKENS_MAX_ID - 1, ret, err));
  }
  return CLV_OK;
}

/* Finds the id of the token `name` in special_tokens. *ret: -1 if the name is empty. */
static clv_code find_special(clv_json j, const clv_bytes *name, int32_t *ret, clv_err *err) {
  static const char *const names[] = {"ids"};
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  int64_t id = -1;
  bool more = true;
  int which;
  size_t at = j.at;
  *ret = -1;
  if (!name->len) return CLV_OK;
  CLV_TRY(clv_json_open(&j, CLV_JSON_OBJECT, err));
  for (size_t n = 0; more; n++) {
    CLV_TRY(clv_json_next(&j, CLV_JSON_OBJECT, n, &more, err));
    if (!more) break;
    CLV_TRY(clv_json_read_key(&j, &key, err));
    bool meant = key.len == name->len && memcmp(key.data, name->data, key.len) == 0, inner = true;
    uint32_t seen = 0;
    CLV_TRY(clv_json_open(&j, CLV_JSON_OBJECT, err));
    for (size_t k = 0; inner; k++) {
      CLV_TRY(clv_json_next(&j, CLV_JSON_OBJECT, k, &inner, err));
      if (!inner) break;
      CLV_TRY(clv_json_find_key(&j, names, 1, &seen, &which, err));
      CLV_TRY(which == 0 && meant ? read_ids(&j, &id, err) : clv_json_skip(&j, err));
    }
  }
  *ret = (int32_t)id;
  if (id >= 0) return CLV_OK;
  return clv_json_fail(&j, at, err, "special_tokens has no '%.80s'", name->data);
}

/* ---- processors ------------------------------------------------------------------------------ */

/* Reads a token and its id: ["</s>", 2]. */
static clv_code read_pair(clv_json *j, int64_t *ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  bool more = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 3; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &more, err));
    if (more != (n < 2))
      return clv_json_fail(j, j->at, err, "sep and cls are a token and its number");
    if (n == 0) CLV_TRY(clv_json_read_text(j, &text, err));
    if (n == 1) CLV_TRY(clv_json_read_integer(j, 0, CLV_TOKENS_MAX_ID - 1, ret, err));
  }
  return CLV_OK;
}

static clv_code read_processor(clv_json *j, clv_tokenizer *t, bool is_inner, clv_err *err);

static clv_code read_processors(clv_json *j, processor *p, clv_err *err) {
  bool more = true;
  if (p->is_inner) return clv_json_fail(j, j->at, err, "a list within a list of processors");
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0; more; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &more, err));
    if (more) CLV_TRY(read_processor(j, p->t, true, err));
  }
  return CLV_OK;
}

enum { TYPE, SEP, CLS, SINGLE, SPECIALS, PROCESSORS };

static clv_code read_processor_key(clv_json *j, processor *p, int which, clv_err *err) {
  if (which == TYPE) return clv_json_read_text(j, &p->type, err);
  if (which == SEP) return read_pair(j, &p->sep, err);
  if (which == CLS) return read_pair(j, &p->cls, err);
  if (which == SINGLE) return read_single(j, p, err);
  if (which == PROCESSORS) return read_processors(j, p, err);
  if (which == SPECIALS) {
    p->specials = *j;
    p->has_specials = true;
  }
  return clv_json_skip(j, err);
}

static bool is_type(const processor *p, const char *name) {
  return p->type.len == strlen(name) && memcmp(p->type.data, name, p->type.len) == 0;
}

/* Sets the tokens before and after a text. Refuses a second processor that has such tokens. */
static clv_code set_ends(clv_json *j, clv_tokenizer *t, size_t at, int64_t before, int64_t after,
                         clv_err *err) {
  if (t->before >= 0 || t->after >= 0)
    return clv_json_fail(j, at, err,
                         "two processors put tokens around a text: only one is supported");
  t->before = (int32_t)before;
  t->after = (int32_t)after;
  return CLV_OK;
}

static clv_code check_processor(clv_json *j, const processor *p, size_t at, clv_err *err) {
  int32_t before = -1, after = -1;
  if (is_type(p, "ByteLevel") || is_type(p, "Sequence")) return CLV_OK;
  if ((is_type(p, "RobertaProcessing") || is_type(p, "BertProcessing")) && p->sep >= 0 &&
      p->cls >= 0)
    return set_ends(j, p->t, at, p->cls, p->sep, err);
  if (!is_type(p, "TemplateProcessing") || !p->has_template)
    return clv_json_fail(j, at, err,
                         "the post_processor '%.40s' is not known: there are ByteLevel, "
                         "RobertaProcessing, BertProcessing, TemplateProcessing and a Sequence",
                         p->type.len ? p->type.data : "");
  if ((p->before.len || p->after.len) && !p->has_specials)
    return clv_json_fail(j, at, err, "post_processor has no special_tokens");
  CLV_TRY(find_special(p->specials, &p->before, &before, err));
  CLV_TRY(find_special(p->specials, &p->after, &after, err));
  return set_ends(j, p->t, at, before, after, err);
}

static clv_code read_processor(clv_json *j, clv_tokenizer *t, bool is_inner, clv_err *err) {
  static const char *const names[] = {[TYPE] = "type",
                                      [SEP] = "sep",
                                      [CLS] = "cls",
                                      [SINGLE] = "single",
                                      [SPECIALS] = "special_tokens",
                                      [PROCESSORS] = "processors",
                                      "pair",
                                      "trim_offsets",
                                      "add_prefix_space",
                                      "use_regex"};
  CLV_AUTO(processor_done) processor p = {.t = t, .cls = -1, .sep = -1, .is_inner = is_inner};
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(j, &kind, err));
  size_t at = j->at;
  CLV_TRY(read_object(j, &p, names, CLV_COUNT(names), read_processor_key, "post_processor", err));
  return check_processor(j, &p, at, err);
}

clv_code clv_read_post_processor(clv_json *j, clv_tokenizer *t, clv_err *err) {
  return clv_json_skip_null(j) ? CLV_OK : read_processor(j, t, false, err);
}

/* ---- truncation and padding ------------------------------------------------------------------ */

static clv_code read_right(clv_json *j, const char *what, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_json_kind kind;
  CLV_TRY(clv_json_peek(j, &kind, err));
  size_t at = j->at;
  CLV_TRY(clv_json_read_text(j, &text, err));
  if (strcmp(text.data, "Right") == 0) return CLV_OK;
  return clv_json_fail(j, at, err, "%s.direction is '%.20s': texts are %s at their end here", what,
                       text.data, strcmp(what, "padding") == 0 ? "filled" : "cut");
}

static clv_code read_truncation_key(clv_json *j, processor *p, int which, clv_err *err) {
  if (which == 0) return read_right(j, "truncation", err);
  if (which == 1) return clv_json_read_integer(j, 1, MOST_LENGTH, &p->t->most, err);
  return clv_json_skip(j, err);
}

clv_code clv_read_truncation(clv_json *j, clv_tokenizer *t, clv_err *err) {
  static const char *const names[] = {"direction", "max_length", "strategy", "stride"};
  processor p = {.t = t};
  if (clv_json_skip_null(j)) return CLV_OK;
  return read_object(j, &p, names, CLV_COUNT(names), read_truncation_key, "truncation", err);
}

static clv_code read_padding_key(clv_json *j, processor *p, int which, clv_err *err) {
  int64_t id;
  if (which == 0) return read_right(j, "padding", err);
  if (which > 1) return clv_json_skip(j, err);
  CLV_TRY(clv_json_read_integer(j, 0, CLV_TOKENS_MAX_ID - 1, &id, err));
  p->t->filler = (int32_t)id;
  return CLV_OK;
}

/* Reads direction and token of padding. Ignores its length, because the data set decides the width
 * of rows. */
clv_code clv_read_padding(clv_json *j, clv_tokenizer *t, clv_err *err) {
  static const char *const names[] = {"direction", "pad_id",      "pad_token",
                                      "strategy",  "pad_type_id", "pad_to_multiple_of"};
  processor p = {.t = t};
  if (clv_json_skip_null(j)) return CLV_OK;
  return read_object(j, &p, names, CLV_COUNT(names), read_padding_key, "padding", err);
}
