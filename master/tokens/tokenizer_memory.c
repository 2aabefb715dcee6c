/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocation of tokenizers and of lists of token ids.
 */
#include <stdlib.h>

#include "master/tokens/tokens_int.h"

clv_code clv_tokenizer_new(clv_tokenizer **ret, clv_err *err) {
  CLV_TRY(clv_alloc(1, sizeof **ret, ret, err));
  (*ret)->unknown = (*ret)->before = (*ret)->after = (*ret)->filler = -1;
  return CLV_OK;
}

void clv_tokenizer_free(clv_tokenizer *t) {
  if (!t) return;
  clv_vocab_done(&t->vocab);
  clv_vocab_done(&t->raw_added);
  clv_vocab_done(&t->normalised_added);
  free(t->merges);
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
    int32_t *more = clv_mul_size(cap, sizeof *more, &bytes) ? realloc(ids->at, bytes) : NULL;
    if (!more) return clv_fail(err, CLV_EXHAUSTED, "no memory for %zu tokens", cap);
    ids->at = more;
    ids->cap = cap;
  }
  ids->at[ids->n++] = id;
  return CLV_OK;
}
