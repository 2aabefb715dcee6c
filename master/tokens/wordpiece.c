/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes words by WordPiece. From its beginning on, a word is cut into the longest tokens that the
 * vocabulary has. Tokens that continue a word begin with a prefix, "##".
 * Source: WordPiece of Hugging Face's tokenizers.
 */
#include <string.h>

#include "master/tokens/tokens_int.h"

/* Finds the longest token at the beginning of `word`; NULL: there is none. w: state of a prefix
 * search that has read no byte yet, or has read "##". ret_len: receives the bytes of `word` that
 * the token has. */
static const clv_vocab_entry *find_longest_token(const clv_tokenizer *t, clv_prefix_search w,
                                                 const char *word, size_t len, size_t *ret_len) {
  const clv_vocab_entry *longest = NULL;
  for (size_t i = 0; i < len && clv_prefix_search_add_byte(&t->vocab, &w, word[i]); i++) {
    const clv_vocab_entry *e = clv_prefix_search_token(&t->vocab, &w);
    if (!e) continue;
    longest = e;
    *ret_len = i + 1;
  }
  return longest;
}

static size_t count_characters(const char *text, size_t len) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++) n += (text[i] & 0xc0) != 0x80;
  return n;
}

clv_code clv_wordpiece_encode(clv_encoding *e, const char *word, size_t len, clv_err *err) {
  const clv_tokenizer *t = e->t;
  size_t n_ids_before = e->out->n, n = 0;
  if (count_characters(word, len) > t->max_word_chars)
    return clv_ids_add(e->out, t->unknown_id, err);
  for (size_t at = 0; at < len; at += n) {
    clv_prefix_search from = at ? t->inside_word_search : clv_prefix_search_begin(&t->vocab);
    const clv_vocab_entry *v = find_longest_token(t, from, word + at, len - at, &n);
    if (!v) {
      e->out->n = n_ids_before; /* if any part of a word is unknown, the complete word is unknown */
      return clv_ids_add(e->out, t->unknown_id, err);
    }
    CLV_TRY(clv_ids_add(e->out, v->id, err));
  }
  return CLV_OK;
}

void clv_wordpiece_set_prefix(clv_tokenizer *t, const char *prefix, size_t len) {
  t->inside_word_search = clv_prefix_search_begin(&t->vocab);
  for (size_t i = 0; i < len; i++)
    clv_prefix_search_add_byte(&t->vocab, &t->inside_word_search, prefix[i]);
}
