/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes pieces by the Unigram model. Each token has a score, the logarithm of its probability. A
 * piece becomes the sequence of tokens whose scores have the largest sum. The Viterbi algorithm
 * finds it: for each byte position of the piece, in order, it keeps the best sequence that ends
 * there. A character that is no token has the lowest score of the vocabulary minus 10.
 * Source: Unigram of Hugging Face's tokenizers. Sums are added in its order, because the last bit
 * of a sum may decide between two sequences.
 */
#include <string.h>

#include "master/tokens/tokens_int.h"

/* Replaces the best path *to by one that ends with the token `id` from position `from`, if its
 * score is larger. Of paths with equal scores the first is kept. */
static void improve_path(clv_best_path *to, double score, size_t from, int32_t id) {
  if (to->is_reached && !(score > to->score)) return;
  *to = (clv_best_path){score, from, id, true};
}

/* Extends the best path to position `from` by each token that begins there. Also extends it by the
 * unknown token, unless the character at `from` (n bytes) is a token itself. */
static void improve_paths_from(clv_encoding *e, const char *text, size_t len, size_t from,
                               size_t n) {
  const clv_tokenizer *t = e->t;
  double score_before = e->paths[from].score;
  bool is_known = false;
  clv_prefix_search w = clv_prefix_search_begin(&t->vocab);
  for (size_t i = from; i < len && clv_prefix_search_add_byte(&t->vocab, &w, text[i]); i++) {
    const clv_vocab_entry *v = clv_prefix_search_token(&t->vocab, &w);
    if (!v) continue;
    improve_path(&e->paths[i + 1], t->scores[v->id] + score_before, from, v->id);
    is_known = is_known || i + 1 - from == n;
  }
  if (!is_known)
    improve_path(&e->paths[from + n], t->unknown_score + score_before, from, t->unknown_id);
}

/* Appends the tokens of text[from..end - 1], a run of unknown characters: one token if the
 * vocabulary has this text; else a token for each byte if byte_fallback is set and all bytes have
 * one; else the unknown token. */
static clv_code add_unknown_tokens(clv_encoding *e, const char *text, size_t from, size_t end,
                                   clv_err *err) {
  const clv_tokenizer *t = e->t;
  const clv_vocab_entry *v = clv_vocab_find(&t->vocab, text + from, end - from);
  bool has_bytes = !v && t->falls_back_to_bytes;
  for (size_t i = from; has_bytes && i < end; i++)
    has_bytes = t->byte_tokens[(unsigned char)text[i]] >= 0;
  if (!has_bytes) return clv_ids_add(e->out, v ? v->id : t->unknown_id, err);
  for (size_t i = from; i < end; i++)
    CLV_TRY(clv_ids_add(e->out, t->byte_tokens[(unsigned char)text[i]], err));
  return CLV_OK;
}

/* Reverses the links of the best path, so that they lead from the beginning to the end. Afterwards
 * paths[i].from is the end, and paths[i].id the id, of the token that begins at i. */
static void reverse_path(clv_encoding *e, size_t len) {
  int32_t id = -1;
  for (size_t at = len, end = len;;) {
    clv_best_path path = e->paths[at];
    e->paths[at].from = end;
    e->paths[at].id = id;
    if (!at) return;
    end = at;
    id = path.id;
    at = path.from;
  }
}

clv_code clv_unigram_encode(clv_encoding *e, const char *text, size_t len, clv_err *err) {
  CLV_TRY(clv_encoding_reserve(e, len + 1, err));
  memset(e->paths, 0, (len + 1) * sizeof *e->paths);
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c;
    n = CLV_MAX(clv_utf8_decode(text + i, len - i, &c), (size_t)1);
    improve_paths_from(e, text, len, i, n);
  }
  reverse_path(e, len);
  for (size_t at = 0, end; at < len; at = end) {
    bool is_unknown = e->paths[at].id == e->t->unknown_id;
    for (end = e->paths[at].from; is_unknown && end < len && e->paths[end].id == e->t->unknown_id;)
      end = e->paths[end].from;
    CLV_TRY(is_unknown ? add_unknown_tokens(e, text, at, end, err)
                       : clv_ids_add(e->out, e->paths[at].id, err));
  }
  return CLV_OK;
}
