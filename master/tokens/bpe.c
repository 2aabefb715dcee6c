/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes pieces by BPE (byte-pair encoding). Each byte, or each character, of a piece starts as a
 * symbol. Then the pair of neighbouring symbols that is first in the list of merges is joined to
 * one symbol; of equal pairs, the leftmost. This repeats until no pair is in the list. A heap holds
 * the pairs, so a piece of n symbols takes O(n log n) steps for any contents.
 */
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokens_int.h"

/* A printable byte of Latin-1 is represented by its own character, the others by U+0100, U+0101 and
 * so on in order. */
uint32_t clv_byte_char(unsigned char byte) {
  uint32_t n_unprintable = 0;
  for (unsigned b = 0; b <= byte; b++) {
    bool is_printable = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
    if (b == byte) return is_printable ? b : 256 + n_unprintable;
    n_unprintable += !is_printable;
  }
  return 0;
}

int clv_merge_compare(const void *a, const void *b) {
  const clv_merge *x = a, *y = b;
  if (x->left != y->left) return x->left < y->left ? -1 : 1;
  return (x->right > y->right) - (x->right < y->right);
}

const clv_merge *clv_merge_find(const clv_tokenizer *t, int32_t left, int32_t right) {
  const clv_merge searched_merge = {.left = left, .right = right};
  if (!t->n_merges) return NULL;
  const uint32_t *of = t->first_merge_of_left_id + left;
  return bsearch(&searched_merge, t->merges + of[0], of[1] - of[0], sizeof searched_merge,
                 clv_merge_compare);
}

/* ---- the heap of pairs ----------------------------------------------------------------------- */

static bool is_pair_before(const clv_symbol_pair *a, const clv_symbol_pair *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push_pair(clv_encoding *w, clv_symbol_pair p) {
  size_t i = w->n_pairs++;
  for (; i && is_pair_before(&p, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
    w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = p;
}

static clv_symbol_pair pop_pair(clv_encoding *w) {
  clv_symbol_pair top = w->heap[0], last = w->heap[--w->n_pairs];
  size_t i = 0;
  for (size_t k; (k = 2 * i + 1) < w->n_pairs; i = k) {
    if (k + 1 < w->n_pairs && is_pair_before(&w->heap[k + 1], &w->heap[k])) k++;
    if (!is_pair_before(&w->heap[k], &last)) break;
    w->heap[i] = w->heap[k];
  }
  w->heap[i] = last;
  return top;
}

/* Pushes symbol `left` and its right neighbour to the heap as a pair, if a merge (a rule of BPE)
 * joins these two symbols. */
static void push_pair_if_mergeable(clv_encoding *w, int64_t left) {
  if (left == CLV_SYMBOL_NONE || w->symbols[left].after == CLV_SYMBOL_NONE) return;
  const clv_symbol *a = &w->symbols[left], *b = &w->symbols[a->after];
  const clv_merge *m = clv_merge_find(w->t, a->id, b->id);
  if (m) push_pair(w, (clv_symbol_pair){m->rank, m->id, left});
}

/* True if a pair from the heap can still be joined: its left symbol exists, and a merge joins it
 * with its present right neighbour to the same token. */
static bool is_pair_current(const clv_encoding *w, const clv_symbol_pair *p) {
  const clv_symbol *a = &w->symbols[p->at];
  if (a->id == CLV_SYMBOL_NONE || a->after == CLV_SYMBOL_NONE) return false;
  const clv_merge *m = clv_merge_find(w->t, a->id, w->symbols[a->after].id);
  return m && m->id == p->id;
}

static void join_pair(clv_encoding *w, const clv_symbol_pair *p) {
  clv_symbol *a = &w->symbols[p->at], *b = &w->symbols[a->after];
  a->id = p->id;
  a->after = b->after;
  b->id = CLV_SYMBOL_NONE;
  if (a->after != CLV_SYMBOL_NONE) w->symbols[a->after].before = p->at;
  push_pair_if_mergeable(w, a->before);
  push_pair_if_mergeable(w, p->at);
}

/* ---- symbols of a piece ---------------------------------------------------------------------- */

static void add_symbol(clv_encoding *w, int32_t id) {
  int64_t at = (int64_t)w->n_symbols++;
  w->symbols[at] = (clv_symbol){id, at - 1, at + 1};
}

/* Adds a symbol for each of the n bytes at `at`. False: one of the bytes has no token, so no symbol
 * is added. */
static bool add_byte_symbols(clv_encoding *w, const char *at, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (w->t->byte_tokens[(unsigned char)at[i]] < 0) return false;
  for (size_t i = 0; i < n; i++) add_symbol(w, w->t->byte_tokens[(unsigned char)at[i]]);
  return true;
}

/* Adds a symbol for each character of a piece. The symbol of an unknown character is pending until
 * the next known character, because neighbouring unknown characters may become one token. Symbols
 * of bytes are added before a pending one, as in Hugging Face's library. Unknown characters are
 * dropped if the model has no unknown token. */
static void add_character_symbols(clv_encoding *w, const char *piece, size_t len) {
  const clv_tokenizer *t = w->t;
  bool is_unknown_pending = false;
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c;
    n = CLV_MAX(clv_utf8_decode(piece + i, len - i, &c), (size_t)1);
    const clv_vocab_entry *e = clv_vocab_find(&t->vocab, piece + i, n);
    if (!e && t->falls_back_to_bytes && add_byte_symbols(w, piece + i, n)) continue;
    if (is_unknown_pending && (e || !t->fuses_unknown)) add_symbol(w, t->unknown_id);
    if (e) add_symbol(w, e->id);
    is_unknown_pending = !e && t->unknown_id >= 0;
  }
  if (is_unknown_pending) add_symbol(w, t->unknown_id);
}

/* Encodes a piece (part of a text) by merging neighbouring symbols (tokens) of it. */
static clv_code encode_by_merges(clv_encoding *w, const char *piece, size_t len, clv_err *err) {
  CLV_TRY(clv_encoding_reserve(w, len, err));
  w->n_symbols = w->n_pairs = 0;
  if (w->t->is_byte_level)
    add_byte_symbols(w, piece, len);
  else
    add_character_symbols(w, piece, len);
  if (!w->n_symbols) return CLV_OK;
  w->symbols[w->n_symbols - 1].after = CLV_SYMBOL_NONE;
  for (size_t i = 0; i < w->n_symbols; i++) push_pair_if_mergeable(w, (int64_t)i);
  while (w->n_pairs) {
    clv_symbol_pair p = pop_pair(w);
    if (is_pair_current(w, &p)) join_pair(w, &p);
  }
  for (int64_t i = 0; i != CLV_SYMBOL_NONE; i = w->symbols[i].after)
    CLV_TRY(clv_ids_add(w->out, w->symbols[i].id, err));
  return CLV_OK;
}

/* Returns the token that equals the complete piece (part of a text that BPE encodes); NULL: there
 * is none, or prefers_whole_piece is false. */
static const clv_vocab_entry *find_token_of_piece(const clv_tokenizer *t, const char *piece,
                                                  size_t n) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  if (!t->prefers_whole_piece || n > CLV_TOKENS_MAX_TOKEN_BYTES) return NULL;
  if (!t->is_byte_level) return clv_vocab_find(&t->vocab, piece, n);
  for (size_t i = 0; i < n; i++) clv_codepoint_to_utf8(clv_byte_char((unsigned char)piece[i]), &b);
  return b.failed ? NULL : clv_vocab_find(&t->vocab, b.data, b.len);
}

clv_code clv_bpe_encode(clv_encoding *e, const char *text, size_t len, clv_err *err) {
  const clv_vocab_entry *piece_token = find_token_of_piece(e->t, text, len);
  return piece_token ? clv_ids_add(e->out, piece_token->id, err)
                     : encode_by_merges(e, text, len, err);
}
