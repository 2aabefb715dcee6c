/* SPDX-License-Identifier: Apache-2.0
 *
 * The pre_tokenizer of a tokenizer: the steps that cut a text into pieces, and the reader of its
 * section in a tokenizer.json. Each step passes its pieces to the next step, and the last step
 * passes them to the model. Empty pieces are dropped.
 */
#include <string.h>

#include "master/tokens/tokenizer_file_int.h"

clv_code clv_piece_encode(clv_encoding *e, size_t step, clv_token_piece piece, clv_err *err) {
  if (!piece.len) return CLV_OK;
  if (step == e->t->n_pre_tokenizer_steps) return clv_model_encode(e, piece.text, piece.len, err);
  const clv_token_step *s = &e->t->pre_tokenizer[step];
  return s->cut(s, e, step + 1, piece, err);
}

/* Passes bytes from..end - 1 of a piece to the step with index `next_step`. */
static clv_code encode_part(clv_encoding *e, size_t next_step, clv_token_piece piece, size_t from,
                            size_t end, clv_err *err) {
  return clv_piece_encode(
      e, next_step, (clv_token_piece){piece.text + from, end - from, piece.is_first && !from}, err);
}

/* Indices in clv_token_step.flags. FLAG_INVERTS: exchanges the roles of matches and of the parts
 * between matches. FLAG_PREPENDS_SPACE: a space is put before a piece. FLAG_CUTS: the step cuts;
 * false: it only changes the text. */
enum { FLAG_INVERTS, FLAG_PREPENDS_SPACE, FLAG_CUTS };

/* ---- cuts at matches ------------------------------------------------------------------------- */

/* Finds the first match of a step at or after `from`. False: there is none. */
typedef bool (*find_match_fn)(const clv_token_step *s, clv_token_piece piece, size_t from,
                              size_t *ret_begin, size_t *ret_end);

/* Bytes begin..end - 1 of a piece that are not yet passed to the next step, because the part after
 * them may be merged with them. is_match: the part that was merged into them last is a match. */
typedef struct pending_part {
  size_t begin, end;
  bool is_match;
} pending_part;

/* True if `behavior` merges the next part with the pending part. is_match: the next part is a
 * match. */
static bool must_merge(size_t behavior, const pending_part *p, bool is_match) {
  if (p->begin == p->end) return false;
  if (behavior == CLV_SPLIT_CONTIGUOUS) return is_match == p->is_match;
  if (behavior == CLV_SPLIT_MERGED_WITH_PREVIOUS) return is_match && !p->is_match;
  return behavior == CLV_SPLIT_MERGED_WITH_NEXT && !is_match && p->is_match;
}

/* Merges the next part into *p, or passes *p to the next step and makes the part pending. Drops a
 * match if matches are to be removed. */
static clv_code add_part(const clv_token_step *s, clv_encoding *e, size_t next_step,
                         clv_token_piece piece, pending_part *p, pending_part part, clv_err *err) {
  if (part.begin == part.end || (s->choice == CLV_SPLIT_REMOVED && part.is_match)) return CLV_OK;
  if (must_merge(s->choice, p, part.is_match)) {
    p->end = part.end;
    p->is_match = part.is_match;
    return CLV_OK;
  }
  pending_part previous_part = *p;
  *p = part;
  return encode_part(e, next_step, piece, previous_part.begin, previous_part.end, err);
}

/* Cuts a piece at the matches of find_match(), with the behavior s->choice. */
static clv_code cut_at_matches(const clv_token_step *s, clv_encoding *e, size_t next_step,
                               clv_token_piece piece, find_match_fn find_match, clv_err *err) {
  bool is_inverted = s->flags[FLAG_INVERTS];
  pending_part p = {0};
  for (size_t at = 0, begin, end; at < piece.len; at = end) {
    if (!find_match(s, piece, at, &begin, &end)) begin = end = piece.len;
    CLV_TRY(add_part(s, e, next_step, piece, &p, (pending_part){at, begin, is_inverted}, err));
    CLV_TRY(add_part(s, e, next_step, piece, &p, (pending_part){begin, end, !is_inverted}, err));
  }
  return encode_part(e, next_step, piece, p.begin, p.end, err);
}

/* Finds the first character at or after `from` for which is_in_class() is true. */
static bool find_char_of_class(clv_token_piece piece, bool (*is_in_class)(uint32_t), size_t from,
                               size_t *ret_begin, size_t *ret_end) {
  for (size_t n; from < piece.len; from += n) {
    uint32_t c = 0;
    n = clv_utf8_decode(piece.text + from, piece.len - from, &c);
    if (!is_in_class(c)) continue;
    *ret_begin = from;
    *ret_end = from + n;
    return true;
  }
  return false;
}

static bool find_space(const clv_token_step *s, clv_token_piece piece, size_t from, size_t *begin,
                       size_t *end) {
  (void)s;
  return find_char_of_class(piece, clv_char_is_space, from, begin, end);
}

static bool find_number(const clv_token_step *s, clv_token_piece piece, size_t from, size_t *begin,
                        size_t *end) {
  (void)s;
  return find_char_of_class(piece, clv_char_is_number, from, begin, end);
}

static bool find_punctuation(const clv_token_step *s, clv_token_piece piece, size_t from,
                             size_t *begin, size_t *end) {
  (void)s;
  return find_char_of_class(piece, clv_char_is_punctuation, from, begin, end);
}

static bool find_text(const clv_token_step *s, clv_token_piece piece, size_t from, size_t *begin,
                      size_t *end) {
  const char *at = memmem(piece.text + from, piece.len - from, s->bytes.data, s->bytes.len);
  if (!at) return false;
  *begin = (size_t)(at - piece.text);
  *end = *begin + s->bytes.len;
  return true;
}

/* Finds the match of the step's pattern. Always finds one: each pattern matches at any position, so
 * *begin is `from`. */
static bool find_pattern(const clv_token_step *s, clv_token_piece piece, size_t from, size_t *begin,
                         size_t *end) {
  *begin = from;
  *end = clv_find_piece_end((clv_token_pattern)s->pattern, piece.text, piece.len, from);
  return true;
}

/* ---- steps that cut a piece ------------------------------------------------------------------ */

static clv_code cut_at_spaces(const clv_token_step *s, clv_encoding *e, size_t next_step,
                              clv_token_piece piece, clv_err *err) {
  return cut_at_matches(s, e, next_step, piece, find_space, err);
}

static clv_code cut_at_punctuation(const clv_token_step *s, clv_encoding *e, size_t next_step,
                                   clv_token_piece piece, clv_err *err) {
  return cut_at_matches(s, e, next_step, piece, find_punctuation, err);
}

static clv_code cut_at_digits(const clv_token_step *s, clv_encoding *e, size_t next_step,
                              clv_token_piece piece, clv_err *err) {
  return cut_at_matches(s, e, next_step, piece, find_number, err);
}

static clv_code cut_by_pattern(const clv_token_step *s, clv_encoding *e, size_t next_step,
                               clv_token_piece piece, clv_err *err) {
  return cut_at_matches(s, e, next_step, piece, s->bytes.len ? find_text : find_pattern, err);
}

/* Cuts as BertPreTokenizer: at white space, which it drops, and around each punctuation mark, which
 * becomes a piece. */
static clv_code cut_bert_words(const clv_token_step *s, clv_encoding *e, size_t next_step,
                               clv_token_piece piece, clv_err *err) {
  (void)s;
  for (size_t at = 0, word_begin = 0, n; at <= piece.len; at += n) {
    uint32_t c = ' ';
    n = at < piece.len ? clv_utf8_decode(piece.text + at, piece.len - at, &c) : 1;
    bool is_space = clv_char_is_space(c), is_punctuation = clv_char_is_punctuation(c);
    if (!is_space && !is_punctuation) continue;
    CLV_TRY(encode_part(e, next_step, piece, word_begin, at, err));
    if (is_punctuation) CLV_TRY(encode_part(e, next_step, piece, at, at + n, err));
    word_begin = at + n;
  }
  return CLV_OK;
}

/* Returns the class of a character in \w+|[^\w\s]+: 0: white space, 1: \w, 2: any other. ret_n:
 * receives the bytes of the character. */
static int get_char_class(clv_token_piece piece, size_t at, size_t *ret_n) {
  uint32_t c = 0;
  *ret_n = clv_utf8_decode(piece.text + at, piece.len - at, &c);
  return clv_char_is_word(c) ? 1 : clv_char_is_space(c) ? 0 : 2;
}

/* Cuts as Whitespace: the matches of \w+|[^\w\s]+ become pieces, white space is dropped. */
static clv_code cut_at_class_changes(const clv_token_step *s, clv_encoding *e, size_t next_step,
                                     clv_token_piece piece, clv_err *err) {
  (void)s;
  for (size_t at = 0, end, n; at < piece.len; at = end) {
    int class = get_char_class(piece, at, &n);
    for (end = at + n; end < piece.len && get_char_class(piece, end, &n) == class;) end += n;
    if (class) CLV_TRY(encode_part(e, next_step, piece, at, end, err));
  }
  return CLV_OK;
}

/* prepend_scheme of Metaspace. PREPEND_FIRST: the replacement of spaces is put before the first
 * piece only. */
enum { PREPEND_ALWAYS, PREPEND_NEVER, PREPEND_FIRST };

/* Appends a piece to *ret with s->bytes in place of each space. Puts s->bytes before the piece if
 * the scheme s->choice says so, unless the piece begins with a space or with s->bytes. */
static clv_code put_metaspaces(const clv_token_step *s, clv_token_piece piece, clv_bytes *ret,
                               clv_err *err) {
  bool begins_with_replacement =
      piece.text[0] == ' ' ||
      (piece.len >= s->bytes.len && memcmp(piece.text, s->bytes.data, s->bytes.len) == 0);
  if (!begins_with_replacement &&
      (s->choice == PREPEND_ALWAYS || (s->choice == PREPEND_FIRST && piece.is_first)))
    clv_bytes_add(ret, s->bytes.data, s->bytes.len);
  for (size_t at = 0; at < piece.len;) {
    const char *space = memchr(piece.text + at, ' ', piece.len - at);
    size_t end = space ? (size_t)(space - piece.text) : piece.len;
    clv_bytes_add(ret, piece.text + at, end - at);
    if (space) clv_bytes_add(ret, s->bytes.data, s->bytes.len);
    at = end + 1;
  }
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", piece.len) : CLV_OK;
}

static clv_code cut_at_metaspaces(const clv_token_step *s, clv_encoding *e, size_t next_step,
                                  clv_token_piece piece, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  clv_token_step cut_step = {.choice = CLV_SPLIT_MERGED_WITH_NEXT, .bytes = s->bytes};
  CLV_TRY(put_metaspaces(s, piece, &b, err));
  clv_token_piece marked_piece = {b.data, b.len, piece.is_first};
  return s->flags[FLAG_CUTS] ? cut_at_matches(&cut_step, e, next_step, marked_piece, find_text, err)
                             : clv_piece_encode(e, next_step, marked_piece, err);
}

/* Cuts as ByteLevel. The model converts the bytes of a piece to tokens. */
static clv_code cut_byte_level(const clv_token_step *s, clv_encoding *e, size_t next_step,
                               clv_token_piece piece, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes spaced = {0};
  if (s->flags[FLAG_PREPENDS_SPACE] && piece.text[0] != ' ') {
    clv_bytes_puts(&spaced, " ");
    clv_bytes_add(&spaced, piece.text, piece.len);
    if (spaced.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", piece.len);
    piece.text = spaced.data;
    piece.len = spaced.len;
  }
  return s->flags[FLAG_CUTS] ? cut_by_pattern(s, e, next_step, piece, err)
                             : clv_piece_encode(e, next_step, piece, err);
}

clv_token_step clv_bert_pre_tokenizer(void) { return (clv_token_step){.cut = cut_bert_words}; }

/* ---- reading the section `pre_tokenizer` ----------------------------------------------------- */

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

/* A step while it is read. at: position of the value that a row of the key table cannot describe:
 * pattern, or in finish_split the String in it. */
typedef struct step_reader {
  clv_token_step step;
  clv_json at;
} step_reader;

static clv_code check_text(clv_token_file *f, const clv_bytes *b, clv_err *err) {
  if (b->len && b->len <= CLV_TOKEN_MAX_STEP_BYTES) return CLV_OK;
  return clv_json_fail(&f->j, f->j.at, err, "a text of a step has %zu bytes, expected 1 to %d",
                       b->len, CLV_TOKEN_MAX_STEP_BYTES);
}

static clv_code check_character(clv_token_file *f, const clv_bytes *b, clv_err *err) {
  uint32_t c;
  CLV_TRY(check_text(f, b, err));
  if (clv_utf8_decode(b->data, b->len, &c) == b->len) return CLV_OK;
  return clv_json_fail(&f->j, f->j.at, err, "'%.80s' is not one character", b->data);
}

#define STEP_OFFSET(member) (offsetof(step_reader, step) + offsetof(clv_token_step, member))
#define AT offsetof(step_reader, at)

static clv_code finish_split(clv_token_file *f, step_reader *r, clv_err *err) {
  static const char *const patterns[] = {"", gpt2_pattern, llama3_pattern, qwen2_pattern,
                                         gpt2_short_pattern};
  static const clv_token_pattern pattern_ids[] = {CLV_TOKEN_PATTERN_GPT2, CLV_TOKEN_PATTERN_GPT2,
                                                  CLV_TOKEN_PATTERN_LLAMA3, CLV_TOKEN_PATTERN_QWEN2,
                                                  CLV_TOKEN_PATTERN_GPT2};
  static const clv_json_key_row keys[] = {
      {.name = "String", .kind = CLV_KEY_POSITION, .offset = AT, .is_optional = true},
      {.name = "Regex",
       .kind = CLV_KEY_CHOICE,
       .offset = STEP_OFFSET(pattern),
       .is_optional = true,
       .names = patterns,
       .n_names = CLV_COUNT(patterns),
       .error_text = "only the patterns of GPT-2, Llama 3 and Qwen2 are known"}};
  clv_json pattern = r->at;
  r->at = (clv_json){0};
  CLV_TRY(clv_token_file_read_keys_at(f, &pattern, "a pattern", keys, CLV_COUNT(keys), r, err));
  if ((r->at.text != NULL) == (r->step.pattern != 0))
    return clv_json_fail(&f->j, pattern.at, err,
                         "the pattern of a Split is one String or one Regex");
  r->step.pattern = pattern_ids[r->step.pattern];
  if (!r->at.text) return CLV_OK;
  f->j = r->at;
  CLV_TRY(clv_json_read_text(&f->j, &r->step.bytes, err));
  return check_text(f, &r->step.bytes, err);
}

/* Checks a Metaspace. Files of former versions of Hugging Face's library have add_prefix_space
 * instead of prepend_scheme. */
static clv_code finish_metaspace(clv_token_file *f, step_reader *r, clv_err *err) {
  CLV_TRY(check_character(f, &r->step.bytes, err));
  if (r->step.choice == PREPEND_FIRST && !clv_normalizer_keeps_offsets(f->t))
    return clv_json_fail(&f->j, f->j.at, err,
                         "prepend_scheme 'first' is known only without a normalizer that changes "
                         "the length of a text: 'always' and 'never' are");
  if (r->step.flags[FLAG_PREPENDS_SPACE] || r->step.choice == PREPEND_NEVER) return CLV_OK;
  return clv_json_fail(&f->j, f->j.at, err,
                       "add_prefix_space of Metaspace is false, and prepend_scheme is not 'never'");
}

static clv_code finish_delimiter(clv_token_file *f, step_reader *r, clv_err *err) {
  return check_character(f, &r->step.bytes, err);
}

/* Sets the behavior of Digits: with individual_digits each digit is a piece, else each run of
 * digits. */
static clv_code finish_digits(clv_token_file *f, step_reader *r, clv_err *err) {
  (void)f;
  (void)err;
  r->step.choice = r->step.flags[FLAG_CUTS] ? CLV_SPLIT_ISOLATED : CLV_SPLIT_CONTIGUOUS;
  return CLV_OK;
}

static const char *const behavior_names[] = {
    [CLV_SPLIT_REMOVED] = "Removed",
    [CLV_SPLIT_ISOLATED] = "Isolated",
    [CLV_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
    [CLV_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
    [CLV_SPLIT_CONTIGUOUS] = "Contiguous"};
static const char *const prepend_scheme_names[] = {
    [PREPEND_ALWAYS] = "always", [PREPEND_NEVER] = "never", [PREPEND_FIRST] = "first"};
#define BEHAVIOR_KEY                                                           \
  {                                                                            \
    .name = "behavior", .kind = CLV_KEY_CHOICE, .offset = STEP_OFFSET(choice), \
    .names = behavior_names, .n_names = CLV_COUNT(behavior_names),             \
    .error_text = "this behavior is not known"                                 \
  }
static const clv_json_key_row type_only_keys[] = {{.name = "type"}};
static const clv_json_key_row byte_level_keys[] = {
    {.name = "type"},
    {.name = "add_prefix_space",
     .kind = CLV_KEY_FLAG,
     .offset = STEP_OFFSET(flags[FLAG_PREPENDS_SPACE])},
    {.name = "use_regex",
     .kind = CLV_KEY_FLAG,
     .offset = STEP_OFFSET(flags[FLAG_CUTS]),
     .is_optional = true},
    {.name = "trim_offsets", .is_optional = true}}; /* skipped, because tokens have no offsets */
static const clv_json_key_row split_keys[] = {
    {.name = "type"},
    {.name = "pattern", .kind = CLV_KEY_POSITION, .offset = AT},
    BEHAVIOR_KEY,
    {.name = "invert", .kind = CLV_KEY_FLAG, .offset = STEP_OFFSET(flags[FLAG_INVERTS])}};
static const clv_json_key_row metaspace_keys[] = {
    {.name = "type"},
    {.name = "replacement", .kind = CLV_KEY_BYTES, .offset = STEP_OFFSET(bytes)},
    {.name = "prepend_scheme",
     .kind = CLV_KEY_CHOICE,
     .offset = STEP_OFFSET(choice),
     .is_optional = true,
     .names = prepend_scheme_names,
     .n_names = CLV_COUNT(prepend_scheme_names),
     .error_text = "this prepend_scheme is not known"},
    {.name = "add_prefix_space",
     .kind = CLV_KEY_FLAG,
     .offset = STEP_OFFSET(flags[FLAG_PREPENDS_SPACE]),
     .is_optional = true},
    /* skipped: a copy of `replacement` in files of former versions of Hugging Face's library */
    {.name = "str_rep", .is_optional = true},
    {.name = "split",
     .kind = CLV_KEY_FLAG,
     .offset = STEP_OFFSET(flags[FLAG_CUTS]),
     .is_optional = true}};
static const clv_json_key_row digits_keys[] = {
    {.name = "type"},
    {.name = "individual_digits", .kind = CLV_KEY_FLAG, .offset = STEP_OFFSET(flags[FLAG_CUTS])}};
static const clv_json_key_row punctuation_keys[] = {{.name = "type"}, BEHAVIOR_KEY};
static const clv_json_key_row delimiter_keys[] = {
    {.name = "type"}, {.name = "delimiter", .kind = CLV_KEY_BYTES, .offset = STEP_OFFSET(bytes)}};

#define KEY_LIST(list) .keys = list, .n_keys = CLV_COUNT(list)
static const struct {
  const char *name;
  clv_cut_piece_fn cut;
  const clv_json_key_row *keys; /* [n_keys] read into a `step_reader` */
  size_t n_keys;
  /* completes the step after the keys are read; NULL: nothing to complete */
  clv_code (*finish)(clv_token_file *f, step_reader *r, clv_err *err);
  /* defaults of the members of clv_token_step, for keys that the file lacks */
  size_t choice;
  bool flags[3];
} step_types[] = {
    {.name = "ByteLevel",
     .cut = cut_byte_level,
     KEY_LIST(byte_level_keys),
     .flags = {[FLAG_CUTS] = true}},
    {.name = "Split", .cut = cut_by_pattern, KEY_LIST(split_keys), .finish = finish_split},
    {.name = "Metaspace",
     .cut = cut_at_metaspaces,
     KEY_LIST(metaspace_keys),
     .finish = finish_metaspace,
     .flags = {[FLAG_PREPENDS_SPACE] = true, [FLAG_CUTS] = true}},
    {.name = "BertPreTokenizer", .cut = cut_bert_words, KEY_LIST(type_only_keys)},
    {.name = "Whitespace", .cut = cut_at_class_changes, KEY_LIST(type_only_keys)},
    {.name = "WhitespaceSplit",
     .cut = cut_at_spaces,
     KEY_LIST(type_only_keys),
     .choice = CLV_SPLIT_REMOVED},
    {.name = "Digits", .cut = cut_at_digits, KEY_LIST(digits_keys), .finish = finish_digits},
    {.name = "Punctuation", .cut = cut_at_punctuation, KEY_LIST(punctuation_keys)},
    {.name = "CharDelimiterSplit",
     .cut = cut_by_pattern,
     KEY_LIST(delimiter_keys),
     .finish = finish_delimiter,
     .choice = CLV_SPLIT_REMOVED}};

static clv_code refuse_step_type(clv_token_file *f, size_t at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes known = {0};
  for (size_t i = 0; i < CLV_COUNT(step_types); i++)
    clv_bytes_printf(&known, "%s, ", step_types[i].name);
  return clv_json_fail(&f->j, at, err,
                       "the pre_tokenizer '%.60s' is not known here, known are %sand Sequence",
                       f->text.data, known.failed ? "" : known.data);
}

static clv_code read_step(clv_token_file *f, size_t at, clv_err *err) {
  clv_tokenizer *t = f->t;
  size_t i = 0;
  while (i < CLV_COUNT(step_types) && !clv_token_file_text_equals(f, step_types[i].name)) i++;
  if (i == CLV_COUNT(step_types)) return refuse_step_type(f, at, err);
  if (t->n_pre_tokenizer_steps == CLV_TOKEN_MAX_STEPS)
    return clv_json_fail(&f->j, at, err, "a pre_tokenizer has more than %d steps",
                         CLV_TOKEN_MAX_STEPS);
  if (clv_pre_tokenizer_is_byte_level(t))
    return clv_json_fail(&f->j, at, err, "ByteLevel is the last step of a pre_tokenizer");
  step_reader r = {.step = {.cut = step_types[i].cut, .choice = step_types[i].choice}};
  memcpy(r.step.flags, step_types[i].flags, sizeof step_types[i].flags);
  clv_code code = clv_token_file_read_keys(f, step_types[i].name, step_types[i].keys,
                                           step_types[i].n_keys, &r, err);
  clv_json saved_position = f->j;
  if (code == CLV_OK && step_types[i].finish) code = step_types[i].finish(f, &r, err);
  f->j = saved_position;
  t->pre_tokenizer[t->n_pre_tokenizer_steps++] = r.step;
  return code;
}

/* Appends the steps of the section `pre_tokenizer`. Calls itself for each step of a Sequence, so a
 * Sequence within a Sequence adds its steps in order. */
clv_code clv_read_pre_tokenizer(clv_token_file *f, clv_err *err) {
  static const clv_json_key_row keys[] = {
      {.name = "type"}, {.name = "pretokenizers", .kind = CLV_KEY_POSITION, .offset = 0}};
  clv_json steps = {0};
  bool has_more = true;
  size_t at = clv_token_file_position(f);
  if (clv_json_skip_null(&f->j)) return CLV_OK;
  CLV_TRY(clv_token_file_find_type(f, "pre_tokenizer", err));
  if (!clv_token_file_text_equals(f, "Sequence")) return read_step(f, at, err);
  CLV_TRY(clv_token_file_read_keys(f, "pre_tokenizer", keys, CLV_COUNT(keys), &steps, err));
  clv_json saved_position = f->j;
  f->j = steps;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more) CLV_TRY(clv_read_pre_tokenizer(f, err));
  }
  f->j = saved_position;
  return CLV_OK;
}

bool clv_pre_tokenizer_is_byte_level(const clv_tokenizer *t) {
  return t->n_pre_tokenizer_steps &&
         t->pre_tokenizer[t->n_pre_tokenizer_steps - 1].cut == cut_byte_level;
}

int clv_pre_tokenizer_prefix_space(const clv_tokenizer *t) {
  for (size_t i = 0; i < t->n_pre_tokenizer_steps; i++) {
    const clv_token_step *s = &t->pre_tokenizer[i];
    if (s->cut == cut_byte_level) return s->flags[FLAG_PREPENDS_SPACE];
    if (s->cut == cut_at_metaspaces) return s->choice != PREPEND_NEVER;
  }
  return -1;
}
