/* SPDX-License-Identifier: Apache-2.0
 *
 * The normalizer of a tokenizer: its kinds of steps, and the reader of its section in a
 * tokenizer.json. A step changes a text, a list of code points, in time that is linear in its
 * length, except for sorting combining marks.
 */
#include <string.h>

#include "master/tokens/tokenizer_file_int.h"

/* ---- steps that treat each character by itself ----------------------------------------------- */

static bool is_removed_by_cleaning(uint32_t c) {
  return c == 0 || c == 0xfffd || clv_char_is_control(c);
}

/* Removes the characters for which is_removed() is true. */
static void remove_characters_if(clv_codepoints *p, bool (*is_removed)(uint32_t)) {
  size_t n = 0;
  for (size_t i = 0; i < p->n; i++)
    if (!is_removed((uint32_t)p->at[i])) p->at[n++] = p->at[i];
  p->n = n;
}

/* Applies clean_text of BertNormalizer: removes controls, and replaces white space by spaces. */
static void clean_text(clv_codepoints *p) {
  remove_characters_if(p, is_removed_by_cleaning);
  for (size_t i = 0; i < p->n; i++)
    if (clv_char_is_space((uint32_t)p->at[i])) p->at[i] = ' ';
}

/* Applies handle_chinese_chars of BertNormalizer: puts spaces around each CJK character. */
static clv_code put_spaces_around_cjk(clv_codepoints *p, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints out = {.max_n = p->max_n};
  for (size_t i = 0; i < p->n; i++) {
    bool is_cjk = clv_char_is_cjk((uint32_t)p->at[i]);
    if (is_cjk) CLV_TRY(clv_codepoints_add(&out, ' ', err));
    CLV_TRY(clv_codepoints_add(&out, (uint32_t)p->at[i], err));
    if (is_cjk) CLV_TRY(clv_codepoints_add(&out, ' ', err));
  }
  clv_codepoints_move(p, &out);
  return CLV_OK;
}

static clv_code convert_to_lower(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints out = {.max_n = p->max_n};
  (void)s;
  for (size_t i = 0; i < p->n; i++) {
    uint32_t c[2];
    size_t n = clv_codepoint_to_lower((uint32_t)p->at[i], c);
    for (size_t k = 0; k < n; k++) CLV_TRY(clv_codepoints_add(&out, c[k], err));
  }
  clv_codepoints_move(p, &out);
  return CLV_OK;
}

static clv_code strip_accents(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  (void)s;
  (void)err;
  remove_characters_if(p, clv_char_is_any_mark);
  return CLV_OK;
}

/* True for a control character that the step Nmt removes. */
static bool is_removed_by_nmt(uint32_t c) {
  return (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
         c == 0x9f;
}

/* True for a character that the step Nmt replaces by a space. */
static bool is_space_of_nmt(uint32_t c) {
  static const uint32_t other_spaces[] = {'\t',   '\n',   '\f',   '\r',   0x1680,
                                          0x2028, 0x2029, 0x2581, 0xfeff, 0xfffd};
  for (size_t i = 0; i < CLV_COUNT(other_spaces); i++)
    if (c == other_spaces[i]) return true;
  return c >= 0x200b && c <= 0x200f;
}

static clv_code apply_nmt(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  (void)s;
  (void)err;
  remove_characters_if(p, is_removed_by_nmt);
  for (size_t i = 0; i < p->n; i++)
    if (is_space_of_nmt((uint32_t)p->at[i])) p->at[i] = ' ';
  return CLV_OK;
}

/* ---- BertNormalizer -------------------------------------------------------------------------- */

/* Indices in clv_token_step.flags: clean_text, handle_chinese_chars, lowercase. */
enum { BERT_CLEANS, BERT_SPACES_CJK, BERT_LOWERS };

static clv_code apply_bert(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  bool lowers = s->flags[BERT_LOWERS];
  if (s->flags[BERT_CLEANS]) clean_text(p);
  if (s->flags[BERT_SPACES_CJK]) CLV_TRY(put_spaces_around_cjk(p, err));
  if (s->choice == CLV_ACCENTS_STRIP || (s->choice == CLV_ACCENTS_AUTO && lowers)) {
    CLV_TRY(clv_codepoints_decompose(p, false, err));
    remove_characters_if(p, clv_char_is_mark);
  }
  return lowers ? convert_to_lower(s, p, err) : CLV_OK;
}

clv_token_step clv_bert_normalizer(bool lowers, clv_accents accents) {
  return (clv_token_step){
      .normalize = apply_bert,
      .flags = {[BERT_CLEANS] = true, [BERT_SPACES_CJK] = true, [BERT_LOWERS] = lowers},
      .choice = accents};
}

/* ---- Unicode normal forms -------------------------------------------------------------------- */

static clv_code apply_nfc(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  (void)s;
  return clv_codepoints_compose(p, false, err);
}

static clv_code apply_nfkc(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  (void)s;
  return clv_codepoints_compose(p, true, err);
}

static clv_code apply_nfd(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  (void)s;
  return clv_codepoints_decompose(p, false, err);
}

static clv_code apply_nfkd(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  (void)s;
  return clv_codepoints_decompose(p, true, err);
}

/* ---- steps that have a text or flags --------------------------------------------------------- */

/* Indices in clv_token_step.flags of Strip. */
enum { STRIPS_LEFT, STRIPS_RIGHT };

static clv_code strip_spaces(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  size_t from = 0;
  (void)err;
  if (s->flags[STRIPS_RIGHT])
    while (p->n && clv_char_is_space((uint32_t)p->at[p->n - 1])) p->n--;
  if (s->flags[STRIPS_LEFT])
    while (from < p->n && clv_char_is_space((uint32_t)p->at[from])) from++;
  p->n -= from;
  if (from) memmove(p->at, p->at + from, p->n * sizeof *p->at);
  return CLV_OK;
}

static clv_code append_codepoints(clv_codepoints *to, const clv_codepoints *from, clv_err *err) {
  for (size_t i = 0; i < from->n; i++) CLV_TRY(clv_codepoints_add(to, (uint32_t)from->at[i], err));
  return CLV_OK;
}

static clv_code prepend_text(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints out = {.max_n = p->max_n};
  if (!p->n) return CLV_OK;
  CLV_TRY(append_codepoints(&out, &s->to, err));
  CLV_TRY(append_codepoints(&out, p, err));
  clv_codepoints_move(p, &out);
  return CLV_OK;
}

/* Matcher of Replace. Returns the number of code points that match at the beginning of `at` [n]; 0:
 * none. */
typedef size_t (*match_fn)(const clv_token_step *s, const int32_t *at, size_t n);

static size_t match_text(const clv_token_step *s, const int32_t *at, size_t n) {
  if (s->from.n > n) return 0;
  for (size_t i = 0; i < s->from.n; i++)
    if (at[i] != s->from.at[i]) return 0;
  return s->from.n;
}

static size_t count_spaces(const int32_t *at, size_t n) {
  size_t i = 0;
  while (i < n && at[i] == ' ') i++;
  return i;
}

static size_t match_multiple_spaces(const clv_token_step *s, const int32_t *at, size_t n) {
  size_t n_spaces = count_spaces(at, n);
  (void)s;
  return n_spaces >= 2 ? n_spaces : 0;
}

static size_t match_any_spaces(const clv_token_step *s, const int32_t *at, size_t n) {
  (void)s;
  return count_spaces(at, n);
}

static size_t match_white_space(const clv_token_step *s, const int32_t *at, size_t n) {
  size_t i = 0;
  (void)s;
  while (i < n && clv_char_is_space((uint32_t)at[i])) i++;
  return i;
}

static size_t match_line_end_or_tab(const clv_token_step *s, const int32_t *at, size_t n) {
  (void)s;
  return n && (at[0] == '\n' || at[0] == '\r' || at[0] == '\t');
}

/* Matches \s{2,}|[\n\r\t]. */
static size_t match_spaces_or_line_end(const clv_token_step *s, const int32_t *at, size_t n) {
  size_t n_spaces = match_white_space(s, at, n);
  return n_spaces >= 2 ? n_spaces : match_line_end_or_tab(s, at, n);
}

/* Regular expressions that Replace knows, by clv_token_step.pattern. Row 0 is for a pattern that is
 * a String. */
static const struct {
  const char *pattern;
  match_fn match;
} matchers[] = {{"", match_text},
                {" {2,}", match_multiple_spaces},
                {" +", match_any_spaces},
                {"\\s+", match_white_space},
                {"[\\n\\r\\t]", match_line_end_or_tab},
                {"\\s{2,}|[\\n\\r\\t]", match_spaces_or_line_end}};

static clv_code replace_matches(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints out = {.max_n = p->max_n};
  for (size_t i = 0, n; i < p->n; i += CLV_MAX(n, (size_t)1)) {
    n = matchers[s->pattern].match(s, p->at + i, p->n - i);
    CLV_TRY(n ? append_codepoints(&out, &s->to, err)
              : clv_codepoints_add(&out, (uint32_t)p->at[i], err));
  }
  clv_codepoints_move(p, &out);
  return CLV_OK;
}

/* ---- Precompiled, which replaces texts by a table -------------------------------------------- */

/* Appends the text that replaces the n code points at `at`, if these begin with a key of the table;
 * then *ret_is_mapped is true. `key`: scratch memory. */
static clv_code map_cluster(const clv_charsmap *m, const int32_t *at, size_t n, clv_bytes *key,
                            clv_codepoints *out, bool *ret_is_mapped, clv_err *err) {
  *ret_is_mapped = false;
  key->len = 0;
  for (size_t i = 0; i < n && key->len <= CLV_CHARSMAP_KEY_BYTES; i++)
    clv_codepoint_to_utf8((uint32_t)at[i], key);
  if (key->failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for a character");
  if (key->len > CLV_CHARSMAP_KEY_BYTES) return CLV_OK;
  const char *text = clv_charsmap_find(m, key->data, key->len);
  if (!text) return CLV_OK;
  *ret_is_mapped = true;
  return clv_codepoints_from_utf8(out, text, strlen(text), err);
}

/* Returns the end of the grapheme cluster that begins at `from`. */
static size_t find_cluster_end(const clv_codepoints *p, size_t from, int32_t *state) {
  size_t at = from + 1;
  while (at < p->n &&
         !clv_char_breaks_grapheme((uint32_t)p->at[at - 1], (uint32_t)p->at[at], state))
    at++;
  return at;
}

/* Applies Precompiled as Hugging Face's library does. A grapheme cluster of at most 5 bytes that
 * begins with a key of the table is replaced completely by the text of its shortest key. In any
 * other cluster each character is replaced by the text that the table has for it, if any. */
static clv_code apply_charsmap(const clv_token_step *s, clv_codepoints *p, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints out = {.max_n = p->max_n};
  CLV_AUTO(clv_bytes_done) clv_bytes key = {0};
  int32_t state = 0;
  for (size_t i = 0, end; i < p->n; i = end) {
    bool is_cluster_mapped, is_char_mapped;
    end = find_cluster_end(p, i, &state);
    CLV_TRY(map_cluster(&s->charsmap, p->at + i, end - i, &key, &out, &is_cluster_mapped, err));
    for (size_t k = i; !is_cluster_mapped && k < end; k++) {
      CLV_TRY(map_cluster(&s->charsmap, p->at + k, 1, &key, &out, &is_char_mapped, err));
      if (!is_char_mapped) CLV_TRY(clv_codepoints_add(&out, (uint32_t)p->at[k], err));
    }
  }
  clv_codepoints_move(p, &out);
  return CLV_OK;
}

clv_code clv_tokenizer_normalize(const clv_tokenizer *t, clv_codepoints *p, clv_err *err) {
  for (size_t i = 0; i < t->n_normalizer_steps; i++)
    CLV_TRY(t->normalizer[i].normalize(&t->normalizer[i], p, err));
  return CLV_OK;
}

/* ---- reading the section `normalizer` -------------------------------------------------------- */

/* A step while it is read. at: position of the value that a row of the key table cannot describe:
 * strip_accents, pattern or precompiled_charsmap. */
typedef struct step_reader {
  clv_token_step step;
  clv_json at;
} step_reader;

/* Returns the value of a base64 digit, 0 to 63; -1: c is no such digit. */
static int get_base64_digit(char c) {
  static const char base64_digits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *at = c ? strchr(base64_digits, c) : NULL;
  return at ? (int)(at - base64_digits) : -1;
}

/* Decodes base64 with its padding. False: the text is not base64. */
static bool decode_base64(const char *text, size_t len, clv_bytes *ret) {
  size_t n_pads = 0;
  if (len % 4) return false;
  while (n_pads < 2 && n_pads < len && text[len - 1 - n_pads] == '=') n_pads++;
  uint32_t decoded_bits = 0;
  for (size_t i = 0; i < len - n_pads; i++) {
    int digit = get_base64_digit(text[i]);
    if (digit < 0) return false;
    decoded_bits = decoded_bits << 6 | (uint32_t)digit;
    if (i % 4 == 3)
      clv_bytes_add(
          ret, (char[]){(char)(decoded_bits >> 16), (char)(decoded_bits >> 8), (char)decoded_bits},
          3);
  }
  if (n_pads == 1)
    clv_bytes_add(ret, (char[]){(char)(decoded_bits >> 10), (char)(decoded_bits >> 2)}, 2);
  if (n_pads == 2) clv_bytes_add(ret, (char[]){(char)(decoded_bits >> 4)}, 1);
  return true;
}

static clv_code finish_charsmap(clv_token_file *f, step_reader *r, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  const char *error_text = NULL;
  f->j = r->at;
  size_t at = clv_token_file_position(f);
  CLV_TRY(clv_json_read_text(&f->j, &f->text, err));
  if (!decode_base64(f->text.data, f->text.len, &b))
    error_text = "is not base64";
  else if (b.failed)
    return clv_fail(err, CLV_EXHAUSTED, "no memory for a table of %zu bytes", f->text.len);
  else
    CLV_TRY(clv_charsmap_parse(&b, &r->step.charsmap, &error_text, err));
  return error_text ? clv_json_fail(&f->j, at, err, "precompiled_charsmap %s", error_text) : CLV_OK;
}

static clv_code finish_bert(clv_token_file *f, step_reader *r, clv_err *err) {
  bool strips_accents;
  f->j = r->at;
  r->step.choice = CLV_ACCENTS_AUTO;
  if (clv_json_skip_null(&f->j)) return CLV_OK;
  CLV_TRY(clv_json_read_bool(&f->j, &strips_accents, err));
  r->step.choice = strips_accents ? CLV_ACCENTS_STRIP : CLV_ACCENTS_KEEP;
  return CLV_OK;
}

#define STEP_OFFSET(member) (offsetof(step_reader, step) + offsetof(clv_token_step, member))
#define AT offsetof(step_reader, at)

static clv_code finish_replace(clv_token_file *f, step_reader *r, clv_err *err) {
  const char *names[CLV_COUNT(matchers)];
  for (size_t i = 0; i < CLV_COUNT(matchers); i++) names[i] = matchers[i].pattern;
  const clv_json_key_row keys[] = {
      {.name = "String",
       .kind = CLV_KEY_CODEPOINTS,
       .offset = STEP_OFFSET(from),
       .is_optional = true},
      {.name = "Regex",
       .kind = CLV_KEY_CHOICE,
       .offset = STEP_OFFSET(pattern),
       .is_optional = true,
       .names = names,
       .n_names = CLV_COUNT(names),
       .error_text = "a Replace knows only the regular expressions ' {2,}', ' +', '\\s+', "
                     "'[\\n\\r\\t]' and '\\s{2,}|[\\n\\r\\t]'"}};
  CLV_TRY(clv_token_file_read_keys_at(f, &r->at, "a pattern", keys, CLV_COUNT(keys), r, err));
  if ((r->step.from.n != 0) != (r->step.pattern != 0)) return CLV_OK;
  return clv_json_fail(&f->j, r->at.at, err,
                       "the pattern of a Replace is one String or one Regex, and not empty");
}

static clv_code finish_prepend(clv_token_file *f, step_reader *r, clv_err *err) {
  return r->step.to.n ? CLV_OK : clv_json_fail(&f->j, f->j.at, err, "a Prepend has an empty text");
}

static const clv_json_key_row type_only_keys[] = {{.name = "type"}};
static const clv_json_key_row bert_keys[] = {
    {.name = "type"},
    {.name = "clean_text", .kind = CLV_KEY_FLAG, .offset = STEP_OFFSET(flags[BERT_CLEANS])},
    {.name = "handle_chinese_chars",
     .kind = CLV_KEY_FLAG,
     .offset = STEP_OFFSET(flags[BERT_SPACES_CJK])},
    {.name = "strip_accents", .kind = CLV_KEY_POSITION, .offset = AT},
    {.name = "lowercase", .kind = CLV_KEY_FLAG, .offset = STEP_OFFSET(flags[BERT_LOWERS])}};
static const clv_json_key_row strip_keys[] = {
    {.name = "type"},
    {.name = "strip_left", .kind = CLV_KEY_FLAG, .offset = STEP_OFFSET(flags[STRIPS_LEFT])},
    {.name = "strip_right", .kind = CLV_KEY_FLAG, .offset = STEP_OFFSET(flags[STRIPS_RIGHT])}};
static const clv_json_key_row replace_keys[] = {
    {.name = "type"},
    {.name = "pattern", .kind = CLV_KEY_POSITION, .offset = AT},
    {.name = "content", .kind = CLV_KEY_CODEPOINTS, .offset = STEP_OFFSET(to)}};
static const clv_json_key_row prepend_keys[] = {
    {.name = "type"}, {.name = "prepend", .kind = CLV_KEY_CODEPOINTS, .offset = STEP_OFFSET(to)}};
static const clv_json_key_row charsmap_keys[] = {
    {.name = "type"}, {.name = "precompiled_charsmap", .kind = CLV_KEY_POSITION, .offset = AT}};

#define KEY_LIST(list) .keys = list, .n_keys = CLV_COUNT(list)
static const struct {
  const char *name;
  clv_normalize_fn normalize;
  const clv_json_key_row *keys; /* [n_keys] read into a `step_reader` */
  size_t n_keys;
  /* completes the step after the keys are read; NULL: nothing to complete */
  clv_code (*finish)(clv_token_file *f, step_reader *r, clv_err *err);
} step_types[] = {{"BertNormalizer", apply_bert, KEY_LIST(bert_keys), finish_bert},
                  {"NFC", apply_nfc, KEY_LIST(type_only_keys), NULL},
                  {"NFD", apply_nfd, KEY_LIST(type_only_keys), NULL},
                  {"NFKC", apply_nfkc, KEY_LIST(type_only_keys), NULL},
                  {"NFKD", apply_nfkd, KEY_LIST(type_only_keys), NULL},
                  {"Lowercase", convert_to_lower, KEY_LIST(type_only_keys), NULL},
                  {"Strip", strip_spaces, KEY_LIST(strip_keys), NULL},
                  {"StripAccents", strip_accents, KEY_LIST(type_only_keys), NULL},
                  {"Replace", replace_matches, KEY_LIST(replace_keys), finish_replace},
                  {"Prepend", prepend_text, KEY_LIST(prepend_keys), finish_prepend},
                  {"Precompiled", apply_charsmap, KEY_LIST(charsmap_keys), finish_charsmap},
                  {"Nmt", apply_nmt, KEY_LIST(type_only_keys), NULL}};

static clv_code refuse_step_type(clv_token_file *f, size_t at, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes known = {0};
  for (size_t i = 0; i < CLV_COUNT(step_types); i++)
    clv_bytes_printf(&known, "%s, ", step_types[i].name);
  return clv_json_fail(&f->j, at, err,
                       "the normalizer '%.60s' is not known here, known are %sand Sequence",
                       f->text.data, known.failed ? "" : known.data);
}

static clv_code read_step(clv_token_file *f, size_t at, clv_err *err) {
  size_t i = 0;
  while (i < CLV_COUNT(step_types) && !clv_token_file_text_equals(f, step_types[i].name)) i++;
  if (i == CLV_COUNT(step_types)) return refuse_step_type(f, at, err);
  if (f->t->n_normalizer_steps == CLV_TOKEN_MAX_STEPS)
    return clv_json_fail(&f->j, at, err, "a normalizer has more than %d steps",
                         CLV_TOKEN_MAX_STEPS);
  step_reader r = {.step = {.normalize = step_types[i].normalize}};
  clv_code code = clv_token_file_read_keys(f, step_types[i].name, step_types[i].keys,
                                           step_types[i].n_keys, &r, err);
  clv_json saved_position = f->j;
  if (code == CLV_OK && step_types[i].finish) code = step_types[i].finish(f, &r, err);
  f->j = saved_position;
  f->t->normalizer[f->t->n_normalizer_steps++] = r.step;
  return code;
}

/* Appends the steps of the section `normalizer`. Calls itself for each step of a Sequence, so a
 * Sequence within a Sequence adds its steps in order. */
clv_code clv_read_normalizer(clv_token_file *f, clv_err *err) {
  static const clv_json_key_row keys[] = {
      {.name = "type"}, {.name = "normalizers", .kind = CLV_KEY_POSITION, .offset = 0}};
  clv_json steps = {0};
  bool has_more = true;
  size_t at = clv_token_file_position(f);
  if (clv_json_skip_null(&f->j)) return CLV_OK;
  CLV_TRY(clv_token_file_find_type(f, "normalizer", err));
  if (!clv_token_file_text_equals(f, "Sequence")) return read_step(f, at, err);
  CLV_TRY(clv_token_file_read_keys(f, "normalizer", keys, CLV_COUNT(keys), &steps, err));
  clv_json saved_position = f->j;
  f->j = steps;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more) CLV_TRY(clv_read_normalizer(f, err));
  }
  f->j = saved_position;
  return CLV_OK;
}

bool clv_normalizer_find_bert(const clv_tokenizer *t, clv_bert_options *ret) {
  for (size_t i = 0; i < t->n_normalizer_steps; i++) {
    const clv_token_step *s = &t->normalizer[i];
    if (s->normalize != apply_bert) continue;
    bool lowers = s->flags[BERT_LOWERS];
    *ret = (clv_bert_options){.lowers = lowers,
                              .spaces_cjk = s->flags[BERT_SPACES_CJK],
                              .strips_accents = s->choice == CLV_ACCENTS_STRIP ||
                                                (s->choice == CLV_ACCENTS_AUTO && lowers)};
    return true;
  }
  return false;
}

bool clv_normalizer_keeps_offsets(const clv_tokenizer *t) {
  for (size_t i = 0; i < t->n_normalizer_steps; i++) {
    const clv_token_step *s = &t->normalizer[i];
    if (s->normalize != replace_matches || s->pattern || s->from.n != 1 || s->to.n != 1)
      return false;
  }
  return true;
}
