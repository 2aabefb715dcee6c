/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocates and frees tokenizers, lists of token ids and the scratch memory of an encoding.
 */
#include <stdlib.h>

#include "master/tokens/tokens_int.h"

clv_code clv_tokenizer_new(clv_tokenizer **ret, clv_err *err) {
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->unknown_id = (*ret)->before = (*ret)->after = (*ret)->pad_id = -1;
  return CLV_OK;
}

void clv_token_step_done(clv_token_step *s) {
  if (!s) return;
  clv_codepoints_done(&s->from);
  clv_codepoints_done(&s->to);
  clv_bytes_done(&s->bytes);
  clv_charsmap_done(&s->charsmap);
}

void clv_tokenizer_free(clv_tokenizer *t) {
  if (!t) return;
  clv_vocab_done(&t->vocab);
  clv_vocab_done(&t->added_tokens);
  clv_vocab_done(&t->raw_added_tokens);
  clv_vocab_done(&t->normalised_added_tokens);
  for (size_t i = 0; i < CLV_TOKEN_MAX_STEPS; i++) {
    clv_token_step_done(&t->normalizer[i]);
    clv_token_step_done(&t->pre_tokenizer[i]);
  }
  free(t->merges);
  free(t->first_merge_of_left_id);
  free(t->scores);
  free(t);
}

void clv_tokenizer_freep(clv_tokenizer **t) {
  clv_tokenizer_free(*t);
  *t = NULL;
}

void clv_ids_done(clv_ids *ids) {
  if (!ids) return;
  free(ids->at);
  *ids = (clv_ids){0};
}

clv_code clv_ids_add(clv_ids *ids, int32_t id, clv_err *err) {
  if (ids->n == ids->cap) {
    size_t cap = ids->cap ? 2 * ids->cap : 256, bytes;
    int32_t *new_list =
        clv_mul_size(cap, sizeof *new_list, &bytes) ? realloc(ids->at, bytes) : NULL;
    if (!new_list) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu tokens", cap);
    ids->at = new_list;
    ids->cap = cap;
  }
  ids->at[ids->n++] = id;
  return CLV_OK;
}

void clv_encoding_done(clv_encoding *e) {
  if (!e) return;
  free(e->symbols);
  free(e->heap);
  free(e->paths);
  *e = (clv_encoding){0};
}

clv_code clv_encoding_reserve(clv_encoding *e, size_t n, clv_err *err) {
  bool is_unigram = e->t->scores != NULL;
  if (n <= e->capacity) return CLV_OK;
  free(e->symbols);
  free(e->heap);
  free(e->paths);
  e->symbols = NULL;
  e->heap = NULL;
  e->paths = NULL;
  e->capacity = 0;
  if (is_unigram) CLV_TRY(clv_alloc(n, sizeof *e->paths, &e->paths, err));
  if (!is_unigram) CLV_TRY(clv_alloc(n, sizeof *e->symbols, &e->symbols, err));
  /* the heap needs room for 3 * n pairs, because each join pushes at most two */
  if (!is_unigram) CLV_TRY(clv_alloc(n, 3 * sizeof *e->heap, &e->heap, err));
  e->capacity = n;
  return CLV_OK;
}
