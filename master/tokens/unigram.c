/* SPDX-License-Identifier: Apache-2.0
 *
 * Unigram. Each token has a score, the logarithm of its probability, and a piece becomes the tokens
 * whose scores have the largest sum. Viterbi finds them: for each place, in order, the best sum of
 * tokens that end there. A character that is no token costs the lowest score less 10.
 * Source: Unigram of Hugging Face's tokenizers, whose order of additions decides between equal
 * sums.
 */
#include <string.h>

#include "master/tokens/tokens_int.h"

/* Sets the best path to a place if a token that begins at `from` makes a better one. The first path
 * among equal ones stays. */
static void offer_path(clv_best_path *to, double score, size_t from, int32_t id) {
  if (to->is_reached && !(score > to->score)) return;
  *to = (clv_best_path){score, from, id, true};
}

/* Offers all tokens that begin at `from`, and the unknown token if none is the first character. */
static void offer_tokens(clv_encoding *e, const char *text, size_t len, size_t from, size_t n) {
  const clv_tokenizer *t = e->t;
  double before = e->paths[from].score;
  bool is_known = false;
  clv_vocab_walk w = clv_vocab_walk_begin(&t->vocab);
  for (size_t i = from; i < len && clv_vocab_walk_step(&t->vocab, &w, text[i]); i++) {
    const clv_vocab_entry *v = clv_vocab_walk_token(&t->vocab, &w);
    if (!v) continue;
    offer_path(&e->paths[i + 1], t->scores[v->id] + before, from, v->id);
    is_known = is_known || i + 1 - from == n;
  }
  if (!is_known) offer_path(&e->paths[from + n], t->unknown_score + before, from, t->unknown);
}

/* Adds text[from..end - 1], which Unigram left unknown: as one token if the vocabulary has that
 * text, else as byte tokens if byte_fallback has all of them, else as the unknown token. */
static clv_code add_unknown(clv_encoding *e, const char *text, size_t from, size_t end,
                            clv_err *err) {
  const clv_tokenizer *t = e->t;
  const clv_vocab_entry *v = clv_vocab_find(&t->vocab, text + from, end - from);
  bool has_bytes = !v && t->falls_back_to_bytes;
  for (size_t i = from; has_bytes && i < end; i++)
    has_bytes = t->byte_tokens[(unsigned char)text[i]] >= 0;
  if (!has_bytes) return clv_ids_add(e->out, v ? v->id : t->unknown, err);
  for (size_t i = from; i < end; i++)
    CLV_TRY(clv_ids_add(e->out, t->byte_tokens[(unsigned char)text[i]], err));
  return CLV_OK;
}

/* Turns the links of the best path around, so that they lead from the beginning to the end: then
 * paths[i].from is the end of the token that begins at i. */
static void reverse_path(clv_encoding *e, size_t len) {
  int32_t id = -1;
  for (size_t at = len, end = len;;) {
    clv_best_path here = e->paths[at];
    e->paths[at].from = end;
    e->paths[at].id = id;
    if (!at) return;
    end = at;
    id = here.id;
    at = here.from;
  }
}

clv_code clv_unigram_encode(clv_encoding *e, const char *text, size_t len, clv_err *err) {
  CLV_TRY(clv_encoding_make_room(e, len + 1, err));
  memset(e->paths, 0, (len + 1) * sizeof *e->paths);
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c;
    n = CLV_MAX(clv_utf8_decode(text + i, len - i, &c), (size_t)1);
    offer_tokens(e, text, len, i, n);
  }
  reverse_path(e, len);
  for (size_t at = 0, end; at < len; at = end) {
    bool is_unknown = e->paths[at].id == e->t->unknown;
    for (end = e->paths[at].from; is_unknown && end < len && e->paths[end].id == e->t->unknown;)
      end = e->paths[end].from;
    CLV_TRY(is_unknown ? add_unknown(e, text, at, end, err)
                       : clv_ids_add(e->out, e->paths[at].id, err));
  }
  return CLV_OK;
}
