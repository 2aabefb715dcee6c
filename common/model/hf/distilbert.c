/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_add_distilbert: DistilBERT (Sanh et al., 2019), BERT without token types and pooler:
 *
 *   a = LN(h + O attention(Q h, K h, V h)),   h' = LN(a + dropout(F act(G a)))
 *
 * Dropout is applied where transformers applies it, so not behind attention. The head for sequences
 * is classifier(dropout(relu(pre_classifier(first position)))).
 */
#include "common/model/hf/hf_int.h"

static clv_code add_embeddings(hf_builder *b, int *x, clv_err *err) {
  hf_positions places = {.rows = b->c->max_positions};
  clv_hf_set_prefix(b, "%sembeddings.", clv_hf_param_prefix(b->c, b->head));
  CLV_TRY(clv_hf_add_token_embedding(b, "word_embeddings", x, err));
  CLV_TRY(clv_hf_add_positions(b, "position_embeddings", &places, x, err));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "LayerNorm", x, err));
  return clv_hf_add_dropout(b, "dropout", b->c->embedding_dropout, x, err);
}

static clv_code add_attention(hf_builder *b, int *x, clv_err *err) {
  int64_t width = b->c->hidden_size;
  int key = *x, value = key;
  CLV_TRY(clv_hf_add_dense(b, "attention.q_lin", width, true, x, err));
  CLV_TRY(clv_hf_add_dense(b, "attention.k_lin", width, true, &key, err));
  CLV_TRY(clv_hf_add_dense(b, "attention.v_lin", width, true, &value, err));
  CLV_TRY(clv_hf_add_attention(b, "attention.attention", false, key, value, x, err));
  return clv_hf_add_dense(b, "attention.out_lin", width, true, x, err);
}

static clv_code add_block(hf_builder *b, int64_t number, int *x, clv_err *err) {
  int before = *x;
  clv_hf_set_prefix(b, "%stransformer.layer.%d.", clv_hf_param_prefix(b->c, b->head), (int)number);
  CLV_TRY(add_attention(b, x, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_ADD, "attention.add", x, before, err));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "sa_layer_norm", x, err));
  before = *x;
  CLV_TRY(clv_hf_add_dense(b, "ffn.lin1", b->c->inner_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, b->c->activation, "ffn.activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_add_dense(b, "ffn.lin2", b->c->hidden_size, true, x, err));
  CLV_TRY(clv_hf_add_dropout(b, "ffn.dropout", b->c->hidden_dropout, x, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_ADD, "ffn.add", x, before, err));
  return clv_hf_add_norm(b, CLV_OP_LAYERNORM, "output_layer_norm", x, err);
}

static clv_code add_sequence_head(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(clv_hf_take_first_token(b, "pre_classifier.first", x, err));
  CLV_TRY(clv_hf_add_dense(b, "pre_classifier", b->c->hidden_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_RELU, "pre_classifier.activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->head_dropout, x, err));
  return clv_hf_add_dense(b, "classifier", b->labels, true, x, err);
}

static clv_code add_token_head(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->hidden_dropout, x, err));
  return clv_hf_add_dense(b, "classifier", b->labels, true, x, err);
}

static clv_code add_masked_head(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(clv_hf_add_dense(b, "vocab_transform", b->c->hidden_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, b->c->activation, "vocab_transform.activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "vocab_layer_norm", x, err));
  return clv_hf_add_lm_head(b, "vocab_projector", true, x, err);
}

clv_code clv_hf_add_distilbert(hf_builder *b, int *x, clv_err *err) {
  static clv_code (*const heads[CLV_HF_HEADS])(hf_builder *, int *, clv_err *) = {
      [CLV_HF_SEQUENCE] = add_sequence_head,
      [CLV_HF_TOKEN] = add_token_head,
      [CLV_HF_MASKED] = add_masked_head};
  CLV_TRY(add_embeddings(b, x, err));
  for (int64_t i = 0; i < b->c->n_layers; i++) CLV_TRY(add_block(b, i, x, err));
  clv_hf_set_prefix(b, "%s", "");
  return heads[b->head] ? heads[b->head](b, x, err) : CLV_OK;
}
