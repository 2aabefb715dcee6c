/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the sections of a tokenizer.json for the ends of a text: the tokens that post_processor
 * puts before and after it, the length limit of truncation, and the token of padding. Keys for
 * pairs of texts, offsets and strides are skipped, because a record is one text without offsets.
 */
#include <string.h>

#include "master/tokens/tokenizer_file_int.h"

enum { MAX_TRUNCATION_TOKENS = 1 << 30 };

/* A post-processor while it is read. */
typedef struct parsed_processor {
  clv_bytes before, after; /* names of the special tokens of a template; empty: none */
  /* id of the template's element that was read last: a special token, or A for the text */
  clv_bytes id;
  int64_t type; /* type_id of the element that was read last */
  /* n_texts: number of texts of a template read so far; n_tokens: number of special tokens read
   * since the text, or, before the text, since the beginning */
  int n_texts, n_tokens;
  /* positions of the values of special_tokens, single, sep, cls, processors */
  clv_json specials_at, single_at, sep_at, cls_at, processors_at;
} parsed_processor;

/* An element of a template's list `single`. One of its two members is the position in the file of a
 * special token or of the text; the other member is unused and has a NULL text. */
typedef struct template_part {
  clv_json special_at, text_at;
} template_part;

static void parsed_processor_done(parsed_processor *p) {
  clv_bytes_done(&p->before);
  clv_bytes_done(&p->after);
  clv_bytes_done(&p->id);
}

/* ---- reading templates of post-processors ---------------------------------------------------- */

#define AT(member) offsetof(parsed_processor, member)

static const clv_json_key_row part_keys[] = {
    {.name = "id", .kind = CLV_KEY_BYTES, .offset = AT(id)},
    {.name = "type_id", .kind = CLV_KEY_INTEGER, .offset = AT(type), .max_integer = UINT32_MAX}};

/* Reads the special token or the text at `at` into p->id. Refuses a type_id other than 0, because
 * the embedding of token types gets 0 for each token of a record. */
static clv_code read_template_part(clv_token_file *f, parsed_processor *p, const clv_json *at,
                                   const char *what, clv_err *err) {
  CLV_TRY(clv_token_file_read_keys_at(f, at, what, part_keys, CLV_COUNT(part_keys), p, err));
  if (p->type == 0) return CLV_OK;
  return clv_json_fail(&f->j, at->at, err, "type_id is %lld: only type 0 is supported in `single`",
                       (long long)p->type);
}

static clv_code read_special_token(clv_token_file *f, parsed_processor *p, const clv_json *at,
                                   clv_err *err) {
  clv_bytes *to = p->n_texts ? &p->after : &p->before;
  if (p->n_tokens++)
    return clv_json_fail(&f->j, at->at, err,
                         "post_processor puts several tokens %s a text: only one is supported",
                         p->n_texts ? "after" : "before");
  CLV_TRY(read_template_part(f, p, at, "a special token", err));
  to->len = 0;
  clv_bytes_add(to, p->id.data, p->id.len);
  return to->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a token") : CLV_OK;
}

static clv_code read_text_part(clv_token_file *f, parsed_processor *p, const clv_json *at,
                               clv_err *err) {
  p->n_texts++;
  p->n_tokens = 0;
  CLV_TRY(read_template_part(f, p, at, "a sequence", err));
  if (p->id.len == 1 && p->id.data[0] == 'A') return CLV_OK;
  return clv_json_fail(&f->j, at->at, err, "single has the text '%.40s', expected 'A'",
                       p->id.len ? p->id.data : "");
}

/* Reads the list `single` of a template: the text A, which it must have once, and at most one
 * special token before the text and one after it. */
static clv_code read_single_template(clv_token_file *f, parsed_processor *p, clv_err *err) {
  static const clv_json_key_row keys[] = {{.name = "SpecialToken",
                                           .kind = CLV_KEY_POSITION,
                                           .offset = offsetof(template_part, special_at),
                                           .is_optional = true},
                                          {.name = "Sequence",
                                           .kind = CLV_KEY_POSITION,
                                           .offset = offsetof(template_part, text_at),
                                           .is_optional = true}};
  bool has_more = true;
  f->j = p->single_at;
  size_t at = clv_token_file_position(f);
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; has_more; n++) {
    template_part x = {0};
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(clv_token_file_read_keys(f, "single", keys, CLV_COUNT(keys), &x, err));
    if (x.special_at.text) CLV_TRY(read_special_token(f, p, &x.special_at, err));
    if (x.text_at.text) CLV_TRY(read_text_part(f, p, &x.text_at, err));
  }
  return p->n_texts == 1 ? CLV_OK
                         : clv_json_fail(&f->j, at, err,
                                         "single has the text %d times, expected once", p->n_texts);
}

/* Reads a list `ids`, which must have exactly one id. */
static clv_code read_one_id(clv_json *j, int64_t *ret, clv_err *err) {
  bool has_more = true;
  CLV_TRY(clv_json_open(j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 2; n++) {
    CLV_TRY(clv_json_next(j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more != (n < 1))
      return clv_json_fail(j, j->at, err, "a special token of post_processor has one number");
    if (has_more) CLV_TRY(clv_json_read_integer(j, 0, CLV_TOKENS_MAX_ID - 1, ret, err));
  }
  return CLV_OK;
}

/* Finds the id of the token `name` in the object special_tokens at j; -1 if the name is empty. */
static clv_code find_special_token(clv_json j, const clv_bytes *name, int32_t *ret, clv_err *err) {
  static const char *const names[] = {"ids"};
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  int64_t id = -1;
  bool has_more = true;
  int key_index;
  size_t at = j.at;
  *ret = -1;
  if (!name->len) return CLV_OK;
  CLV_TRY(clv_json_open(&j, CLV_JSON_OBJECT, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(&j, CLV_JSON_OBJECT, n, &has_more, err));
    if (!has_more) break;
    CLV_TRY(clv_json_read_key(&j, &key, err));
    bool has_name = key.len == name->len && memcmp(key.data, name->data, key.len) == 0;
    bool more_members = true;
    uint32_t seen_keys = 0;
    CLV_TRY(clv_json_open(&j, CLV_JSON_OBJECT, err));
    for (size_t k = 0; more_members; k++) {
      CLV_TRY(clv_json_next(&j, CLV_JSON_OBJECT, k, &more_members, err));
      if (!more_members) break;
      CLV_TRY(clv_json_find_key(&j, names, 1, &seen_keys, &key_index, err));
      CLV_TRY(key_index == 0 && has_name ? read_one_id(&j, &id, err) : clv_json_skip(&j, err));
    }
  }
  *ret = (int32_t)id;
  if (id >= 0) return CLV_OK;
  return clv_json_fail(&j, at, err, "special_tokens has no '%.80s'", name->data);
}

/* ---- reading post-processors ----------------------------------------------------------------- */

/* Reads a token and its id, such as ["</s>", 2], and returns the id. */
static clv_code read_token_and_id(clv_token_file *f, const clv_json *at, int64_t *ret,
                                  clv_err *err) {
  bool has_more = true;
  f->j = *at;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; n < 3; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more != (n < 2))
      return clv_json_fail(&f->j, f->j.at, err, "sep and cls are a token and its number");
    if (n == 0) CLV_TRY(clv_json_read_text(&f->j, &f->text, err));
    if (n == 1) CLV_TRY(clv_json_read_integer(&f->j, 0, CLV_TOKENS_MAX_ID - 1, ret, err));
  }
  return CLV_OK;
}

/* Sets the ids of the tokens before and after a text; -1: none. Refuses a second processor that
 * puts tokens around a text. */
static clv_code set_end_tokens(clv_token_file *f, size_t at, int64_t before, int64_t after,
                               clv_err *err) {
  if (f->t->before >= 0 || f->t->after >= 0)
    return clv_json_fail(&f->j, at, err,
                         "two processors put tokens around a text: only one is supported");
  f->t->before = (int32_t)before;
  f->t->after = (int32_t)after;
  return CLV_OK;
}

static clv_code finish_pair(clv_token_file *f, parsed_processor *p, size_t at, clv_err *err) {
  int64_t cls_id, sep_id;
  CLV_TRY(read_token_and_id(f, &p->cls_at, &cls_id, err));
  CLV_TRY(read_token_and_id(f, &p->sep_at, &sep_id, err));
  return set_end_tokens(f, at, cls_id, sep_id, err);
}

static clv_code finish_template(clv_token_file *f, parsed_processor *p, size_t at, clv_err *err) {
  int32_t before = -1, after = -1;
  CLV_TRY(read_single_template(f, p, err));
  CLV_TRY(find_special_token(p->specials_at, &p->before, &before, err));
  CLV_TRY(find_special_token(p->specials_at, &p->after, &after, err));
  return set_end_tokens(f, at, before, after, err);
}

static clv_code finish_sequence(clv_token_file *f, parsed_processor *p, size_t at, clv_err *err) {
  bool has_more = true;
  (void)at;
  f->j = p->processors_at;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more) CLV_TRY(clv_read_post_processor(f, err));
  }
  return CLV_OK;
}

/* Keys of the processors. Rows without a kind skip the value: `type` is read before, `pair` is for
 * pairs of texts, and the others change only offsets, which records do not have. */
static const clv_json_key_row sequence_keys[] = {
    {.name = "type"},
    {.name = "processors", .kind = CLV_KEY_POSITION, .offset = AT(processors_at)}};
static const clv_json_key_row byte_level_keys[] = {
    {.name = "type"},
    {.name = "add_prefix_space", .is_optional = true},
    {.name = "trim_offsets", .is_optional = true},
    {.name = "use_regex", .is_optional = true}};
static const clv_json_key_row bert_keys[] = {
    {.name = "type"},
    {.name = "sep", .kind = CLV_KEY_POSITION, .offset = AT(sep_at)},
    {.name = "cls", .kind = CLV_KEY_POSITION, .offset = AT(cls_at)}};
static const clv_json_key_row roberta_keys[] = {
    {.name = "type"},
    {.name = "sep", .kind = CLV_KEY_POSITION, .offset = AT(sep_at)},
    {.name = "cls", .kind = CLV_KEY_POSITION, .offset = AT(cls_at)},
    {.name = "trim_offsets", .is_optional = true},
    {.name = "add_prefix_space", .is_optional = true}};
static const clv_json_key_row template_keys[] = {
    {.name = "type"},
    {.name = "single", .kind = CLV_KEY_POSITION, .offset = AT(single_at)},
    {.name = "pair", .is_optional = true},
    {.name = "special_tokens", .kind = CLV_KEY_POSITION, .offset = AT(specials_at)}};

#define KEY_LIST(list) list, CLV_COUNT(list)
static const struct {
  const char *name;
  const clv_json_key_row *keys; /* [n_keys] read into a `parsed_processor` */
  size_t n_keys;
  /* completes the processor after the keys are read; at: byte where its section begins; NULL:
   * nothing to complete */
  clv_code (*finish)(clv_token_file *f, parsed_processor *p, size_t at, clv_err *err);
} processor_types[] = {{"ByteLevel", KEY_LIST(byte_level_keys), NULL},
                       {"RobertaProcessing", KEY_LIST(roberta_keys), finish_pair},
                       {"BertProcessing", KEY_LIST(bert_keys), finish_pair},
                       {"TemplateProcessing", KEY_LIST(template_keys), finish_template},
                       {"Sequence", KEY_LIST(sequence_keys), finish_sequence}};

clv_code clv_read_post_processor(clv_token_file *f, clv_err *err) {
  CLV_AUTO(parsed_processor_done) parsed_processor p = {0};
  size_t at = clv_token_file_position(f), i = 0;
  if (clv_json_skip_null(&f->j)) return CLV_OK;
  CLV_TRY(clv_token_file_find_type(f, "post_processor", err));
  while (i < CLV_COUNT(processor_types) && !clv_token_file_text_equals(f, processor_types[i].name))
    i++;
  if (i == CLV_COUNT(processor_types))
    return clv_json_fail(&f->j, at, err,
                         "the post_processor '%.40s' is not known: there are ByteLevel, "
                         "RobertaProcessing, BertProcessing, TemplateProcessing and a Sequence",
                         f->text.data);
  CLV_TRY(clv_token_file_read_keys(f, processor_types[i].name, processor_types[i].keys,
                                   processor_types[i].n_keys, &p, err));
  clv_json saved_position = f->j;
  if (processor_types[i].finish) CLV_TRY(processor_types[i].finish(f, &p, at, err));
  f->j = saved_position;
  return CLV_OK;
}

/* ---- reading the sections `truncation` and `padding` ----------------------------------------- */

/* Values of the sections truncation and padding. */
typedef struct length_limits {
  clv_bytes direction;
  int64_t max_tokens, pad_id;
} length_limits;

static void length_limits_done(length_limits *l) { clv_bytes_done(&l->direction); }

#define LIMIT_OFFSET(member) offsetof(length_limits, member)

/* Refuses a direction other than Right. For the error: `what` names the section, and `participle`
 * is "cut" or "filled". */
static clv_code check_direction(clv_token_file *f, const length_limits *l, size_t at,
                                const char *what, const char *participle, clv_err *err) {
  const char *direction = l->direction.len ? l->direction.data : "Right";
  if (strcmp(direction, "Right") == 0) return CLV_OK;
  return clv_json_fail(&f->j, at, err, "%s.direction is '%.20s': texts are %s at their end here",
                       what, direction, participle);
}

/* Skips the keys strategy and stride, because each text becomes one row. */
clv_code clv_read_truncation(clv_token_file *f, clv_err *err) {
  static const clv_json_key_row keys[] = {{.name = "direction",
                                           .kind = CLV_KEY_BYTES,
                                           .offset = LIMIT_OFFSET(direction),
                                           .is_optional = true},
                                          {.name = "max_length",
                                           .kind = CLV_KEY_INTEGER,
                                           .offset = LIMIT_OFFSET(max_tokens),
                                           .max_integer = MAX_TRUNCATION_TOKENS},
                                          {.name = "strategy", .is_optional = true},
                                          {.name = "stride", .is_optional = true}};
  CLV_AUTO(length_limits_done) length_limits l = {0};
  size_t at = clv_token_file_position(f);
  if (clv_json_skip_null(&f->j)) return CLV_OK;
  CLV_TRY(clv_token_file_read_keys(f, "truncation", keys, CLV_COUNT(keys), &l, err));
  CLV_TRY(check_direction(f, &l, at, "truncation", "cut", err));
  f->t->max_tokens = l.max_tokens;
  if (l.max_tokens) return CLV_OK;
  return clv_json_fail(&f->j, at, err, "truncation.max_length is 0: set truncation to null");
}

/* Skips the keys for the length of padding, because the dataset decides the width of rows. */
clv_code clv_read_padding(clv_token_file *f, clv_err *err) {
  static const clv_json_key_row keys[] = {
      {.name = "direction", .kind = CLV_KEY_BYTES, .offset = LIMIT_OFFSET(direction)},
      {.name = "pad_id",
       .kind = CLV_KEY_INTEGER,
       .offset = LIMIT_OFFSET(pad_id),
       .max_integer = CLV_TOKENS_MAX_ID - 1},
      {.name = "pad_token", .is_optional = true},
      {.name = "strategy", .is_optional = true},
      {.name = "pad_type_id", .is_optional = true},
      {.name = "pad_to_multiple_of", .is_optional = true}};
  CLV_AUTO(length_limits_done) length_limits l = {0};
  size_t at = clv_token_file_position(f);
  if (clv_json_skip_null(&f->j)) return CLV_OK;
  CLV_TRY(clv_token_file_read_keys(f, "padding", keys, CLV_COUNT(keys), &l, err));
  f->t->pad_id = (int32_t)l.pad_id;
  return check_direction(f, &l, at, "padding", "filled", err);
}
