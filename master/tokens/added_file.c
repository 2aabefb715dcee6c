/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the added tokens of a tokenizer.json. A token whose key `normalized` is true is normalised
 * when it is read, because it is found in normalised text.
 */
#include "master/tokens/tokenizer_file_int.h"

/* Values of an object in the list added_tokens of a tokenizer.json. */
typedef struct added_token {
  clv_bytes content;
  int64_t id;
  bool single_word, lstrip, rstrip, normalized;
} added_token;

static void added_token_done(added_token *a) { clv_bytes_done(&a->content); }

#define AT(member) offsetof(added_token, member)

static clv_code read_added_token(clv_token_file *f, clv_err *err) {
  static const clv_json_key_row keys[] = {
      {.name = "id",
       .kind = CLV_KEY_INTEGER,
       .offset = AT(id),
       .max_integer = CLV_TOKENS_MAX_ID - 1},
      {.name = "content", .kind = CLV_KEY_BYTES, .offset = AT(content)},
      {.name = "single_word", .kind = CLV_KEY_FLAG, .offset = AT(single_word), .is_optional = true},
      {.name = "lstrip", .kind = CLV_KEY_FLAG, .offset = AT(lstrip), .is_optional = true},
      {.name = "rstrip", .kind = CLV_KEY_FLAG, .offset = AT(rstrip), .is_optional = true},
      {.name = "normalized", .kind = CLV_KEY_FLAG, .offset = AT(normalized), .is_optional = true},
      /* skipped, because it only matters for converting tokens to text */
      {.name = "special", .is_optional = true}};
  CLV_AUTO(added_token_done) added_token a = {0};
  size_t at = clv_token_file_position(f);
  CLV_TRY(clv_token_file_read_keys(f, "an added token", keys, CLV_COUNT(keys), &a, err));
  if (!a.content.len || a.content.len > CLV_ADDED_MAX_BYTES)
    return clv_json_fail(&f->j, at, err, "an added token has %zu bytes, expected 1 to %d",
                         a.content.len, CLV_ADDED_MAX_BYTES);
  uint8_t flags = (uint8_t)((a.lstrip ? CLV_ADDED_LSTRIP : 0) | (a.rstrip ? CLV_ADDED_RSTRIP : 0) |
                            (a.single_word ? CLV_ADDED_SINGLE_WORD : 0) |
                            (a.normalized ? CLV_ADDED_NORMALIZED : 0));
  return clv_vocab_add(&f->t->added_tokens, a.content.data, a.content.len, (int32_t)a.id,
                       (uint32_t)at, flags, err);
}

/* Sorts a list of added tokens. Refuses a token that appears twice; `what`: kind of the tokens, for
 * the error. */
static clv_code sort_added_tokens(const clv_token_file *f, clv_vocab *v, const char *what,
                                  clv_err *err) {
  clv_vocab_entry duplicates[2];
  if (clv_vocab_sort(v, duplicates)) return CLV_OK;
  return clv_json_fail(&f->j, duplicates[1].file_position, err, "the %s '%.*s' appears twice", what,
                       (int)CLV_MIN(duplicates[1].len, 80u), v->text.data + duplicates[1].offset);
}

/* Finds an added token whose id in the file is not the id that Hugging Face's library gives it. The
 * library ignores ids in the file: a token of the vocabulary keeps its id in the vocabulary, and
 * each other token gets the next free id, in the order of the file. True: the token
 * *ret_wrong_token has another id than *ret_id_of_library. */
static bool find_wrong_id(const clv_tokenizer *t, clv_vocab_entry *ret_wrong_token,
                          int32_t *ret_id_of_library) {
  int32_t max_id = -1;
  for (size_t i = 0; i < t->added_tokens.n; i++) {
    const clv_vocab_entry *a = &t->added_tokens.entries[i];
    const clv_vocab_entry *e =
        clv_vocab_find(&t->vocab, t->added_tokens.text.data + a->offset, a->len);
    *ret_wrong_token = *a;
    *ret_id_of_library = e ? e->id : CLV_MAX(max_id + 1, (int32_t)t->vocab.n);
    if (*ret_id_of_library != a->id) return true;
    max_id = CLV_MAX(max_id, a->id);
  }
  return false;
}

/* Adds the normalised text of an added token to t->normalised_added_tokens. */
static clv_code add_normalised_token(clv_token_file *f, const clv_vocab_entry *a, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints p = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  const char *text = f->t->added_tokens.text.data + a->offset;
  CLV_TRY(clv_codepoints_from_utf8(&p, text, a->len, err));
  p.max_n = p.n * CLV_TOKEN_MAX_GROWTH + CLV_TOKEN_FREE_GROWTH;
  if (clv_tokenizer_normalize(f->t, &p, err) != CLV_OK)
    return clv_err_prefix(err, "%s", f->j.label);
  CLV_TRY(clv_codepoints_to_utf8(&p, &b, err));
  if (!b.len || b.len > CLV_TOKENS_MAX_TOKEN_BYTES)
    return clv_json_fail(&f->j, a->file_position, err,
                         "the normalizer makes %zu bytes of the added token '%.*s', expected 1 to "
                         "%d",
                         b.len, (int)CLV_MIN(a->len, 80u), text, CLV_TOKENS_MAX_TOKEN_BYTES);
  return clv_vocab_add(&f->t->normalised_added_tokens, b.data, b.len, a->id, a->file_position,
                       a->flags, err);
}

/* Checks all added tokens, and sorts them into the list of those found in the original text and the
 * list of those found in normalised text. */
static clv_code finish_added_tokens(clv_token_file *f, clv_err *err) {
  clv_tokenizer *t = f->t;
  clv_vocab_entry wrong_token;
  int32_t expected_id;
  bool is_wrong = find_wrong_id(t, &wrong_token, &expected_id);
  CLV_TRY(sort_added_tokens(f, &t->added_tokens, "added token", err));
  if (is_wrong)
    return clv_json_fail(&f->j, wrong_token.file_position, err,
                         "the added token '%.*s' has the id %d, and the library gives it %d: save "
                         "the file with the library",
                         (int)CLV_MIN(wrong_token.len, 80u),
                         t->added_tokens.text.data + wrong_token.offset, wrong_token.id,
                         expected_id);
  for (size_t i = 0; i < t->added_tokens.n; i++) {
    const clv_vocab_entry *a = &t->added_tokens.entries[i];
    CLV_TRY(a->flags & CLV_ADDED_NORMALIZED
                ? add_normalised_token(f, a, err)
                : clv_vocab_add(&t->raw_added_tokens, t->added_tokens.text.data + a->offset, a->len,
                                a->id, a->file_position, a->flags, err));
  }
  CLV_TRY(sort_added_tokens(f, &t->raw_added_tokens, "added token", err));
  return sort_added_tokens(f, &t->normalised_added_tokens, "normalised added token", err);
}

clv_code clv_read_added_tokens(clv_token_file *f, clv_err *err) {
  bool has_more = true;
  CLV_TRY(clv_json_open(&f->j, CLV_JSON_LIST, err));
  for (size_t n = 0; has_more; n++) {
    CLV_TRY(clv_json_next(&f->j, CLV_JSON_LIST, n, &has_more, err));
    if (has_more) CLV_TRY(read_added_token(f, err));
  }
  return finish_added_tokens(f, err);
}
