/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-level BPE. Each byte of a piece starts as a token. Then the pair of neighbours that comes
 * first in the list of merges is joined, the leftmost among equals, until no pair of neighbours is
 * in the list. A heap holds the pairs, so a piece of n bytes takes O(n log n) steps for any
 * contents.
 */
#include <stdlib.h>
#include <string.h>

#include "master/tokens/tokens_int.h"

uint32_t clv_byte_char(unsigned char byte) {
  uint32_t hidden = 0;
  for (unsigned b = 0; b <= byte; b++) {
    bool shown = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
    if (b == byte) return shown ? b : 256 + hidden;
    hidden += !shown;
  }
  return 0;
}

int clv_merge_compare(const void *a, const void *b) {
  const clv_merge *x = a, *y = b;
  if (x->left != y->left) return x->left < y->left ? -1 : 1;
  return (x->right > y->right) - (x->right < y->right);
}

const clv_merge *clv_merge_find(const clv_tokenizer *t, int32_t left, int32_t right) {
  const clv_merge wanted = {.left = left, .right = right};
  if (!t->n_merges) return NULL;
  return bsearch(&wanted, t->merges, t->n_merges, sizeof wanted, clv_merge_compare);
}

/* ---- the heap of pairs ----------------------------------------------------------------------- */

enum { NONE = -1 };

/* A token of the piece. A symbol is removed when it is joined to its left neighbour. */
typedef struct symbol {
  int32_t id; /* token id; NONE: the symbol was removed */
  int64_t before, after;
} symbol;

typedef struct pair {
  uint32_t rank;
  int32_t id; /* token id of the joined pair */
  int64_t at; /* index of the pair's left symbol */
} pair;

/* Scratch memory of clv_bpe_encode, reused for each piece. */
typedef struct work {
  symbol *symbols;
  pair *heap;
  /* room, n: capacity and number of symbols; waiting: number of pairs in the heap */
  size_t room, n, waiting;
} work;

static bool comes_before(const pair *a, const pair *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push_pair(work *w, pair p) {
  size_t i = w->waiting++;
  for (; i && comes_before(&p, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
    w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = p;
}

static pair pop_pair(work *w) {
  pair top = w->heap[0], last = w->heap[--w->waiting];
  size_t i = 0;
  for (size_t k; (k = 2 * i + 1) < w->waiting; i = k) {
    if (k + 1 < w->waiting && comes_before(&w->heap[k + 1], &w->heap[k])) k++;
    if (!comes_before(&w->heap[k], &last)) break;
    w->heap[i] = w->heap[k];
  }
  w->heap[i] = last;
  return top;
}

static void push_if_mergeable(const clv_tokenizer *t, work *w, int64_t left) {
  if (left == NONE || w->symbols[left].after == NONE) return;
  const symbol *a = &w->symbols[left], *b = &w->symbols[a->after];
  const clv_merge *m = clv_merge_find(t, a->id, b->id);
  if (m) push_pair(w, (pair){m->rank, m->id, left});
}

/* True if a pair from the heap still exists: neither of its symbols has been joined since. */
static bool is_current(const clv_tokenizer *t, const work *w, const pair *p) {
  const symbol *a = &w->symbols[p->at];
  if (a->id == NONE || a->after == NONE) return false;
  const clv_merge *m = clv_merge_find(t, a->id, w->symbols[a->after].id);
  return m && m->id == p->id;
}

static void join_pair(const clv_tokenizer *t, work *w, const pair *p) {
  symbol *a = &w->symbols[p->at], *b = &w->symbols[a->after];
  a->id = p->id;
  a->after = b->after;
  b->id = NONE;
  if (a->after != NONE) w->symbols[a->after].before = p->at;
  push_if_mergeable(t, w, a->before);
  push_if_mergeable(t, w, p->at);
}

/* ---- a piece --------------------------------------------------------------------------------- */

static clv_code make_room(work *w, size_t n, clv_err *err) {
  if (n <= w->room) return CLV_OK;
  free(w->symbols);
  free(w->heap);
  w->symbols = NULL;
  w->heap = NULL;
  w->room = 0;
  CLV_TRY(clv_alloc(n, sizeof *w->symbols, &w->symbols, err));
  /* the heap needs room for 3 n pairs, because each join pushes at most two */
  CLV_TRY(clv_alloc(n, 3 * sizeof *w->heap, &w->heap, err));
  w->room = n;
  return CLV_OK;
}

static clv_code add_merged(const clv_tokenizer *t, work *w, const char *piece, size_t n,
                           clv_ids *out, clv_err *err) {
  CLV_TRY(make_room(w, n, err));
  w->n = n;
  w->waiting = 0;
  for (size_t i = 0; i < n; i++)
    w->symbols[i] = (symbol){t->byte_tokens[(unsigned char)piece[i]], (int64_t)i - 1,
                             i + 1 < n ? (int64_t)i + 1 : NONE};
  for (size_t i = 0; i < n; i++) push_if_mergeable(t, w, (int64_t)i);
  while (w->waiting) {
    pair p = pop_pair(w);
    if (is_current(t, w, &p)) join_pair(t, w, &p);
  }
  for (int64_t i = 0; i != NONE; i = w->symbols[i].after)
    CLV_TRY(clv_ids_add(out, w->symbols[i].id, err));
  return CLV_OK;
}

/* Returns the token that equals the complete piece; NULL: there is none, or prefers_whole_piece is
 * false. */
static const clv_vocab_entry *find_whole(const clv_tokenizer *t, const char *piece, size_t n) {
  CLV_AUTO(clv_bytes_done) clv_bytes b = {0};
  if (!t->prefers_whole_piece || n > CLV_TOKENS_MAX_TOKEN) return NULL;
  for (size_t i = 0; i < n; i++) clv_codepoint_to_utf8(clv_byte_char((unsigned char)piece[i]), &b);
  return b.failed ? NULL : clv_vocab_find(&t->vocab, b.data, b.len);
}

static clv_code add_pieces(const clv_tokenizer *t, work *w, const char *text, size_t len,
                           clv_ids *out, clv_err *err) {
  for (size_t at = 0, end; at < len; at = end) {
    end = clv_split_piece_end(t->pattern, text, len, at);
    const clv_vocab_entry *e = find_whole(t, text + at, end - at);
    CLV_TRY(e ? clv_ids_add(out, e->id, err) : add_merged(t, w, text + at, end - at, out, err));
  }
  return CLV_OK;
}

clv_code clv_bpe_encode(const clv_tokenizer *t, const char *text, size_t len, clv_ids *out,
                        clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes spaced = {0};
  work w = {0};
  if (t->adds_prefix_space && text[0] != ' ') {
    clv_bytes_puts(&spaced, " ");
    clv_bytes_add(&spaced, text, len);
    if (spaced.failed) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu bytes", len);
    text = spaced.data;
    len = spaced.len;
  }
  clv_code code = add_pieces(t, &w, text, len, out, err);
  free(w.symbols);
  free(w.heap);
  return code;
}
