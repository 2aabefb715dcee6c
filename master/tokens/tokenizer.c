/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps that all tokenizers share. clv_tokenizer_encode cuts a text at added tokens, first in
 * the original text, then in the normalised text, and encodes the parts in between.
 */
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokens_int.h"

/* Function that encodes the text between added tokens, for encode_between_added. */
typedef clv_code (*clv_encode_between)(const clv_tokenizer *t, const char *text, size_t len,
                                       clv_ids *out, clv_err *err);

static clv_code encode_between_added(const clv_tokenizer *t, const clv_vocab *added,
                                     clv_encode_between between, const char *text, size_t len,
                                     clv_ids *out, clv_err *err) {
  clv_added_token_match hit;
  size_t from = 0;
  for (; clv_added_token_find(added, text, len, from, &hit); from = hit.end) {
    if (hit.start > from) CLV_TRY(between(t, text + from, hit.start - from, out, err));
    CLV_TRY(clv_ids_add(out, hit.id, err));
  }
  return from < len ? between(t, text + from, len - from, out, err) : CLV_OK;
}

static clv_code encode_normalised(const clv_tokenizer *t, const char *text, size_t len,
                                  clv_ids *out, clv_err *err) {
  return encode_between_added(t, &t->normalised_added, t->encode, text, len, out, err);
}

static clv_code compose_nfc(const char *text, size_t len, clv_bytes *ret, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints p = {0};
  CLV_TRY(clv_codepoints_from_utf8(&p, text, len, err));
  CLV_TRY(clv_codepoints_compose(&p, err));
  for (size_t i = 0; i < p.n; i++) clv_codepoint_to_utf8((uint32_t)p.at[i], ret);
  return ret->failed ? clv_fail(err, CLV_EXHAUSTED, "no memory for a text of %zu bytes", len)
                     : CLV_OK;
}

static clv_code encode_raw(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                           clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  if (!t->compose) return encode_normalised(t, text, len, out, err);
  CLV_TRY(compose_nfc(text, len, &b, err));
  return encode_normalised(t, b.data, b.len, out, err);
}

static clv_code check_utf8(const char *text, size_t len, clv_err *err) {
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c;
    if (!(n = clv_utf8_decode(text + i, len - i, &c)))
      return clv_fail(err, CLV_INVALID, "byte %zu is not UTF-8: convert the file to it", i);
  }
  return CLV_OK;
}

clv_code clv_tokenizer_encode(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                              clv_err *err) {
  CLV_TRY(check_utf8(text, len, err));
  return encode_between_added(t, &t->raw_added, encode_raw, text, len, out, err);
}

int32_t clv_tokenizer_token_id(const clv_tokenizer *t, const char *token) {
  const clv_vocab *all[] = {&t->vocab, &t->raw_added, &t->normalised_added};
  for (size_t i = 0; i < CLV_COUNT(all); i++) {
    const clv_vocab_entry *e = clv_vocab_find(all[i], token, strlen(token));
    if (e) return e->id;
  }
  return -1;
}

clv_tokenizer_ends clv_tokenizer_ends_of(const clv_tokenizer *t) {
  return (clv_tokenizer_ends){t->before, t->after, t->filler, t->most};
}

int32_t clv_tokenizer_vocab_size(const clv_tokenizer *t) {
  const clv_vocab *all[] = {&t->vocab, &t->raw_added, &t->normalised_added};
  int32_t most = -1;
  for (size_t i = 0; i < CLV_COUNT(all); i++)
    if (all[i]->n) most = CLV_MAX(most, all[i]->most);
  return most + 1;
}
