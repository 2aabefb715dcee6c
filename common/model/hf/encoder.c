/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_add_encoder: BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and LayoutLM (Xu et
 * al., 2020), which differ in their embedding tables and heads. Dropout is applied where
 * transformers applies it: behind the norm of the embeddings, on attention probabilities, and on
 * the output of each half of a block before it is added.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/hf/hf_int.h"

/* ---- embeddings of an encoder ---------------------------------------------------------------- */

enum { LEFT, TOP, RIGHT, BOTTOM };

/* Name of a node. Returned by value, so that it needs no buffer of the caller. */
typedef struct node_name {
  char text[CLV_NAME_MAX];
} node_name;

static node_name node_name_of_table(const char *table, const char *what, int64_t column) {
  node_name n;
  snprintf(n.text, sizeof n.text, "%s.%s%d", table, what, (int)column);
  return n;
}

/* Adds to *x the embeddings of one column of the boxes. rows: node with the embeddings of all four
 * columns, [N, S, 4, hidden]. */
static clv_code add_column_embedding(hf_builder *b, const char *table, int64_t column, int rows,
                                     int *x, clv_err *err) {
  clv_attr_value one[] = {clv_hf_make_int_attr(CLV_ATTR_DIM, 2),
                          clv_hf_make_int_attr(CLV_ATTR_START, column),
                          clv_hf_make_int_attr(CLV_ATTR_STOP, column + 1)};
  clv_attr_value flat = {.key = CLV_ATTR_SHAPE, .n_ints = 2, .ints = {-1, b->c->hidden_size}};
  CLV_TRY(clv_hf_add_node(b, CLV_OP_SLICE, node_name_of_table(table, "column", column).text, one,
                          CLV_COUNT(one), &rows, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_RESHAPE, node_name_of_table(table, "rows", column).text, &flat,
                          1, &rows, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, node_name_of_table(table, "add", column).text, x, rows,
                           err);
}

/* Adds to *x the embeddings of columns `first` and `second` of the boxes from one table. A single
 * embedding node looks up all four columns, and slices take these two. */
static clv_code add_two_column_embeddings(hf_builder *b, const char *table, int64_t first,
                                          int64_t second, int *x, clv_err *err) {
  int all = b->in.boxes;
  CLV_TRY(clv_hf_add_embedding(b, table, b->c->max_box_positions, &all, err));
  CLV_TRY(add_column_embedding(b, table, first, all, x, err));
  return add_column_embedding(b, table, second, all, x, err);
}

/* Adds to *x the embedding of the difference of two columns of the boxes. */
static clv_code add_difference_embedding(hf_builder *b, const char *table, int64_t column,
                                         int64_t minus, int *x, clv_err *err) {
  int rows = b->in.boxes;
  CLV_TRY(
      clv_hf_add_column_embedding(b, table, b->c->max_box_positions, column, minus, &rows, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, node_name_of_table(table, "add", column).text, x, rows,
                           err);
}

/* Adds to *x all embeddings of the boxes, in the order in which transformers adds them. */
static clv_code add_box_embeddings(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(add_two_column_embeddings(b, "x_position_embeddings", LEFT, RIGHT, x, err));
  CLV_TRY(add_two_column_embeddings(b, "y_position_embeddings", TOP, BOTTOM, x, err));
  CLV_TRY(add_difference_embedding(b, "h_position_embeddings", BOTTOM, TOP, x, err));
  return add_difference_embedding(b, "w_position_embeddings", RIGHT, LEFT, x, err);
}

/* Adds row 0 of the token type table to every position, because pairs of sentences are not
 * supported. The row index is computed as a token minus itself, which is 0. */
static clv_code add_first_token_type(hf_builder *b, int *x, clv_err *err) {
  int rows = b->in.records;
  CLV_TRY(clv_hf_add_column_embedding(b, "token_type_embeddings", b->c->n_token_types, -1, 0, &rows,
                                      err));
  return clv_hf_add_binary(b, CLV_OP_ADD, "token_type_embeddings.add", x, rows, err);
}

static clv_code add_embeddings(hf_builder *b, int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  hf_positions places = {
      .rows = c->max_positions,
      .first_row = clv_hf_numbers_from_padding(c->family) ? c->padding_token + 1 : 0};
  clv_hf_set_prefix(b, "%sembeddings.", clv_hf_param_prefix(c, b->head));
  CLV_TRY(clv_hf_add_token_embedding(b, "word_embeddings", x, err));
  CLV_TRY(clv_hf_add_positions(b, "position_embeddings", &places, x, err));
  if (c->family == CLV_HF_LAYOUTLM) CLV_TRY(add_box_embeddings(b, x, err));
  CLV_TRY(add_first_token_type(b, x, err));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "LayerNorm", x, err));
  return clv_hf_add_dropout(b, "dropout", c->embedding_dropout, x, err);
}

/* ---- blocks of an encoder -------------------------------------------------------------------- */

static clv_code add_attention(hf_builder *b, int *x, clv_err *err) {
  int64_t width = b->c->hidden_size;
  int key = *x;
  int value = key;
  CLV_TRY(clv_hf_add_dense(b, "attention.self.query", width, true, x, err));
  CLV_TRY(clv_hf_add_dense(b, "attention.self.key", width, true, &key, err));
  CLV_TRY(clv_hf_add_dense(b, "attention.self.value", width, true, &value, err));
  return clv_hf_add_attention(b, "attention.self.attention", false, key, value, x, err);
}

/* Adds LN(before + dropout(dense(x))), the end of each half of a block. at: prefix of the names of
 * its nodes, such as "output.". */
static clv_code add_residual_norm(hf_builder *b, const char *at, int before, int *x, clv_err *err) {
  char outer_prefix[CLV_NAME_MAX];
  memcpy(outer_prefix, b->prefix, sizeof outer_prefix);
  clv_hf_set_prefix(b, "%s%s", outer_prefix, at);
  CLV_TRY(clv_hf_add_dense(b, "dense", b->c->hidden_size, true, x, err));
  CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->hidden_dropout, x, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_ADD, "add", x, before, err));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "LayerNorm", x, err));
  clv_hf_set_prefix(b, "%s", outer_prefix);
  return CLV_OK;
}

static clv_code add_block(hf_builder *b, int64_t number, int *x, clv_err *err) {
  int before = *x;
  clv_hf_set_prefix(b, "%sencoder.layer.%d.", clv_hf_param_prefix(b->c, b->head), (int)number);
  CLV_TRY(add_attention(b, x, err));
  CLV_TRY(add_residual_norm(b, "attention.output.", before, x, err));
  before = *x;
  CLV_TRY(clv_hf_add_dense(b, "intermediate.dense", b->c->inner_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, b->c->activation, "intermediate.activation", NULL, 0, x, err));
  return add_residual_norm(b, "output.", before, x, err);
}

/* ---- heads of an encoder --------------------------------------------------------------------- */

/* Adds RoBERTa's head for sequences: dropout, dense, tanh, dropout and out_proj on the first
 * position. */
static clv_code add_roberta_sequence_head(hf_builder *b, int *x, clv_err *err) {
  clv_hf_set_prefix(b, "classifier.");
  CLV_TRY(clv_hf_take_first_token(b, "first", x, err));
  CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->head_dropout, x, err));
  CLV_TRY(clv_hf_add_dense(b, "dense", b->c->hidden_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_TANH, "activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_add_dropout(b, "dropout2", b->c->head_dropout, x, err));
  return clv_hf_add_dense(b, "out_proj", b->labels, true, x, err);
}

static clv_code add_token_head(hf_builder *b, int *x, clv_err *err) {
  clv_hf_set_prefix(b, "%s", "");
  CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->head_dropout, x, err));
  return clv_hf_add_dense(b, "classifier", b->labels, true, x, err);
}

static clv_code add_sequence_head(hf_builder *b, int *x, clv_err *err) {
  if (clv_hf_numbers_from_padding(b->c->family)) return add_roberta_sequence_head(b, x, err);
  clv_hf_set_prefix(b, "%spooler.", clv_hf_param_prefix(b->c, b->head));
  CLV_TRY(clv_hf_take_first_token(b, "first", x, err));
  CLV_TRY(clv_hf_add_dense(b, "dense", b->c->hidden_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_TANH, "activation", NULL, 0, x, err));
  return add_token_head(b, x, err);
}

/* Adds the head for masked tokens: dense, activation, norm and the linear layer to the vocabulary.
 */
static clv_code add_masked_head(hf_builder *b, int *x, clv_err *err) {
  bool is_roberta = clv_hf_numbers_from_padding(b->c->family);
  clv_op act = is_roberta ? CLV_OP_GELU : b->c->activation;
  clv_hf_set_prefix(b, is_roberta ? "lm_head." : "cls.predictions.transform.");
  CLV_TRY(clv_hf_add_dense(b, "dense", b->c->hidden_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, act, "activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, is_roberta ? "layer_norm" : "LayerNorm", x, err));
  clv_hf_set_prefix(b, is_roberta ? "lm_head." : "cls.predictions.");
  return clv_hf_add_lm_head(b, "decoder", true, x, err);
}

clv_code clv_hf_add_encoder(hf_builder *b, int *x, clv_err *err) {
  static clv_code (*const heads[CLV_HF_HEADS])(hf_builder *, int *, clv_err *) = {
      [CLV_HF_SEQUENCE] = add_sequence_head,
      [CLV_HF_TOKEN] = add_token_head,
      [CLV_HF_MASKED] = add_masked_head};
  CLV_TRY(add_embeddings(b, x, err));
  for (int64_t i = 0; i < b->c->n_layers; i++) CLV_TRY(add_block(b, i, x, err));
  return heads[b->head] ? heads[b->head](b, x, err) : CLV_OK;
}
