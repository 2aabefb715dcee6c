/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls the encoder of a tokenizer's model.
 */
#include "master/tokens/tokens_int.h"

clv_code clv_model_encode(clv_encoding *e, const char *text, size_t len, clv_err *err) {
  switch (e->t->model) {
    case CLV_TOKEN_MODEL_WORDPIECE:
      return clv_wordpiece_encode(e, text, len, err);
    case CLV_TOKEN_MODEL_BPE:
      return clv_bpe_encode(e, text, len, err);
    case CLV_TOKEN_MODEL_UNIGRAM:
      return clv_unigram_encode(e, text, len, err);
  }
  return clv_fail(err, CLV_INTERNAL, "a tokenizer has model %d", (int)e->t->model);
}
