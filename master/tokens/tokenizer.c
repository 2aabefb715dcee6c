/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps that all tokenizers share. clv_tokenizer_encode cuts the original text at the added
 * tokens in it. It normalises each part between them, cuts this part at the added tokens of
 * normalised text, and encodes the parts that remain.
 */
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokens_int.h"

/* Encodes a part of a text that has no added token. */
typedef clv_code (*encode_between_fn)(clv_encoding *e, clv_token_piece piece, clv_err *err);

/* Appends the added tokens that `piece` has, and calls `encode_text` for each part between them. */
static clv_code encode_between_added(clv_encoding *e, const clv_vocab *added_tokens,
                                     encode_between_fn encode_text, clv_token_piece piece,
                                     clv_err *err) {
  clv_added_token_match token_match = {0};
  const char *text = piece.text;
  size_t prev_end = 0, len = piece.len;
  if (!len) return CLV_OK;
  for (; clv_added_token_find(added_tokens, text, len, token_match.next, prev_end, &token_match);
       prev_end = token_match.end) {
    clv_token_piece piece_before = {text + prev_end, token_match.start - prev_end,
                                    piece.is_first && !prev_end};
    if (token_match.start > prev_end) CLV_TRY(encode_text(e, piece_before, err));
    /* Hugging Face's library drops a token whose text another token has stripped as white space */
    if (token_match.end > token_match.start) CLV_TRY(clv_ids_add(e->out, token_match.id, err));
  }
  clv_token_piece last_piece = {text + prev_end, len - prev_end, piece.is_first && !prev_end};
  return prev_end < len ? encode_text(e, last_piece, err) : CLV_OK;
}

static clv_code encode_pieces(clv_encoding *e, clv_token_piece piece, clv_err *err) {
  return clv_piece_encode(e, 0, piece, err);
}

static clv_code encode_normalised_text(clv_encoding *e, clv_token_piece piece, clv_err *err) {
  return encode_between_added(e, &e->t->normalised_added_tokens, encode_pieces, piece, err);
}

static clv_code encode_raw_text(clv_encoding *e, clv_token_piece piece, clv_err *err) {
  CLV_AUTO(clv_codepoints_done) clv_codepoints p = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  if (!e->t->n_normalizer_steps) return encode_normalised_text(e, piece, err);
  CLV_TRY(clv_codepoints_from_utf8(&p, piece.text, piece.len, err));
  p.max_n = p.n * CLV_TOKEN_MAX_GROWTH + CLV_TOKEN_FREE_GROWTH;
  CLV_TRY(clv_tokenizer_normalize(e->t, &p, err));
  CLV_TRY(clv_codepoints_to_utf8(&p, &b, err));
  return encode_normalised_text(e, (clv_token_piece){b.data, b.len, piece.is_first}, err);
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
  CLV_AUTO(clv_encoding_done) clv_encoding e = {.t = t, .out = out};
  CLV_TRY(check_utf8(text, len, err));
  return encode_between_added(&e, &t->raw_added_tokens, encode_raw_text,
                              (clv_token_piece){text, len, true}, err);
}

int32_t clv_tokenizer_token_id(const clv_tokenizer *t, const char *token) {
  const clv_vocab *vocabs[] = {&t->vocab, &t->added_tokens};
  for (size_t i = 0; i < CLV_COUNT(vocabs); i++) {
    const clv_vocab_entry *e = clv_vocab_find(vocabs[i], token, strlen(token));
    if (e) return e->id;
  }
  return -1;
}

clv_tokenizer_end_settings clv_tokenizer_get_end_settings(const clv_tokenizer *t) {
  return (clv_tokenizer_end_settings){t->before, t->after, t->pad_id, t->max_tokens};
}

int32_t clv_tokenizer_vocab_size(const clv_tokenizer *t) {
  const clv_vocab *vocabs[] = {&t->vocab, &t->added_tokens};
  int32_t max_id = -1;
  for (size_t i = 0; i < CLV_COUNT(vocabs); i++)
    if (vocabs[i]->n) max_id = CLV_MAX(max_id, vocabs[i]->max_id);
  return max_id + 1;
}
