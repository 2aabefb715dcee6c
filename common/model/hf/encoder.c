/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_encoder: BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and LayoutLM (Xu et al.,
 * 2020), which differ in their embedding tables and heads. Dropout is applied where transformers
 * applies it: behind the norm of the embeddings, on attention probabilities, and on the output of
 * each half of a block before it is added.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/hf/hf_int.h"

/* ---- embeddings ------------------------------------------------------------------------------ */

enum { LEFT, TOP, RIGHT, BOTTOM };

/* Name of a node that belongs to a table: "TABLE.WHATn". */
typedef struct long_name {
  char text[CLV_NAME_MAX];
} long_name;

static long_name name_after(const char *table, const char *what, int64_t column) {
  long_name n;
  snprintf(n.text, sizeof n.text, "%s.%s%d", table, what, (int)column);
  return n;
}

/* Adds to *x the rows of one column of the boxes; rows: node [N, S, 4, hidden]. */
static clv_code add_column(hf_builder *b, const char *table, int64_t column, int rows, int *x,
                           clv_err *err) {
  clv_attr_value one[] = {clv_hf_int_attr(CLV_ATTR_DIM, 2), clv_hf_int_attr(CLV_ATTR_START, column),
                          clv_hf_int_attr(CLV_ATTR_STOP, column + 1)};
  clv_attr_value flat = {.key = CLV_ATTR_SHAPE, .n_ints = 2, .ints = {-1, b->c->hidden}};
  CLV_TRY(clv_hf_add_node(b, CLV_OP_SLICE, name_after(table, "column", column).text, one,
                          CLV_COUNT(one), &rows, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_RESHAPE, name_after(table, "rows", column).text, &flat, 1,
                          &rows, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, name_after(table, "add", column).text, x, rows, err);
}

/* Adds the rows for columns `first` and `second` of the boxes, both from one table. One embedding
 * looks up all four columns, and slices take the two. */
static clv_code add_two_columns(hf_builder *b, const char *table, int64_t first, int64_t second,
                                int *x, clv_err *err) {
  int all = b->in.boxes;
  CLV_TRY(clv_hf_embed(b, table, b->c->boxes, &all, err));
  CLV_TRY(add_column(b, table, first, all, x, err));
  return add_column(b, table, second, all, x, err);
}

/* Adds the rows for the difference of two columns of the boxes. */
static clv_code add_difference(hf_builder *b, const char *table, int64_t column, int64_t minus,
                               int *x, clv_err *err) {
  int rows = b->in.boxes;
  CLV_TRY(clv_hf_embed_column(b, table, b->c->boxes, column, minus, &rows, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, name_after(table, "add", column).text, x, rows, err);
}

/* Adds the embeddings of the boxes, in the order in which transformers adds its tables. */
static clv_code add_boxes(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(add_two_columns(b, "x_position_embeddings", LEFT, RIGHT, x, err));
  CLV_TRY(add_two_columns(b, "y_position_embeddings", TOP, BOTTOM, x, err));
  CLV_TRY(add_difference(b, "h_position_embeddings", BOTTOM, TOP, x, err));
  return add_difference(b, "w_position_embeddings", RIGHT, LEFT, x, err);
}

/* Adds row 0 of the table of token types to every position, because pairs of sentences are not
 * supported. The row index is a token minus itself, which is 0. */
static clv_code add_first_token_type(hf_builder *b, int *x, clv_err *err) {
  int rows = b->in.records;
  CLV_TRY(clv_hf_embed_column(b, "token_type_embeddings", b->c->types, -1, 0, &rows, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, "token_type_embeddings.add", x, rows, err);
}

static clv_code embeddings(hf_builder *b, int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  hf_positions places = {.rows = c->positions,
                         .first = c->family == CLV_HF_ROBERTA ? c->padding + 1 : 0};
  clv_hf_set_prefix(b, "%sembeddings.", clv_hf_prefix(c, b->head));
  CLV_TRY(clv_hf_token_embedding(b, "word_embeddings", x, err));
  CLV_TRY(clv_hf_positions(b, "position_embeddings", &places, x, err));
  if (c->family == CLV_HF_LAYOUTLM) CLV_TRY(add_boxes(b, x, err));
  CLV_TRY(add_first_token_type(b, x, err));
  CLV_TRY(clv_hf_norm(b, CLV_OP_LAYERNORM, "LayerNorm", x, err));
  return clv_hf_dropout(b, "dropout", c->embedding_dropout, x, err);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static clv_code attend(hf_builder *b, int *x, clv_err *err) {
  int64_t width = b->c->hidden;
  int key = *x;
  int value = key;
  CLV_TRY(clv_hf_dense(b, "attention.self.query", width, true, x, err));
  CLV_TRY(clv_hf_dense(b, "attention.self.key", width, true, &key, err));
  CLV_TRY(clv_hf_dense(b, "attention.self.value", width, true, &value, err));
  return clv_hf_attention(b, "attention.self.attention", false, key, value, x, err);
}

/* Adds LN(before + dropout(dense(x))), with `at` before the names of its nodes. */
static clv_code half_end(hf_builder *b, const char *at, int before, int *x, clv_err *err) {
  char outer[CLV_NAME_MAX];
  memcpy(outer, b->prefix, sizeof outer);
  clv_hf_set_prefix(b, "%s%s", outer, at);
  CLV_TRY(clv_hf_dense(b, "dense", b->c->hidden, true, x, err));
  CLV_TRY(clv_hf_dropout(b, "dropout", b->c->hidden_dropout, x, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_ADD, "add", x, before, err));
  CLV_TRY(clv_hf_norm(b, CLV_OP_LAYERNORM, "LayerNorm", x, err));
  clv_hf_set_prefix(b, "%s", outer);
  return CLV_OK;
}

static clv_code block(hf_builder *b, int64_t number, int *x, clv_err *err) {
  int before = *x;
  clv_hf_set_prefix(b, "%sencoder.layer.%d.", clv_hf_prefix(b->c, b->head), (int)number);
  CLV_TRY(attend(b, x, err));
  CLV_TRY(half_end(b, "attention.output.", before, x, err));
  before = *x;
  CLV_TRY(clv_hf_dense(b, "intermediate.dense", b->c->inner, true, x, err));
  CLV_TRY(clv_hf_add_node(b, b->c->activation, "intermediate.activation", NULL, 0, x, err));
  return half_end(b, "output.", before, x, err);
}

/* ---- heads ----------------------------------------------------------------------------------- */

/* Adds RoBERTa's head: dropout, dense, tanh, dropout, out_proj on the first position. */
static clv_code roberta_sequence(hf_builder *b, int *x, clv_err *err) {
  clv_hf_set_prefix(b, "classifier.");
  CLV_TRY(clv_hf_first_token(b, "first", x, err));
  CLV_TRY(clv_hf_dropout(b, "dropout", b->c->head_dropout, x, err));
  CLV_TRY(clv_hf_dense(b, "dense", b->c->hidden, true, x, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_TANH, "activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_dropout(b, "dropout2", b->c->head_dropout, x, err));
  return clv_hf_dense(b, "out_proj", b->labels, true, x, err);
}

static clv_code token(hf_builder *b, int *x, clv_err *err) {
  clv_hf_set_prefix(b, "%s", "");
  CLV_TRY(clv_hf_dropout(b, "dropout", b->c->head_dropout, x, err));
  return clv_hf_dense(b, "classifier", b->labels, true, x, err);
}

static clv_code sequence(hf_builder *b, int *x, clv_err *err) {
  if (b->c->family == CLV_HF_ROBERTA) return roberta_sequence(b, x, err);
  clv_hf_set_prefix(b, "%spooler.", clv_hf_prefix(b->c, b->head));
  CLV_TRY(clv_hf_first_token(b, "first", x, err));
  CLV_TRY(clv_hf_dense(b, "dense", b->c->hidden, true, x, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_TANH, "activation", NULL, 0, x, err));
  return token(b, x, err);
}

/* Adds dense, activation, norm and the projection to the vocabulary. */
static clv_code masked(hf_builder *b, int *x, clv_err *err) {
  bool roberta = b->c->family == CLV_HF_ROBERTA;
  clv_op act = roberta ? CLV_OP_GELU : b->c->activation;
  clv_hf_set_prefix(b, roberta ? "lm_head." : "cls.predictions.transform.");
  CLV_TRY(clv_hf_dense(b, "dense", b->c->hidden, true, x, err));
  CLV_TRY(clv_hf_add_node(b, act, "activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_norm(b, CLV_OP_LAYERNORM, roberta ? "layer_norm" : "LayerNorm", x, err));
  clv_hf_set_prefix(b, roberta ? "lm_head." : "cls.predictions.");
  return clv_hf_lm_head(b, "decoder", true, x, err);
}

clv_code clv_hf_encoder(hf_builder *b, int *x, clv_err *err) {
  static clv_code (*const heads[CLV_HF_HEADS])(hf_builder *, int *, clv_err *) = {
      [CLV_HF_SEQUENCE] = sequence, [CLV_HF_TOKEN] = token, [CLV_HF_MASKED] = masked};
  CLV_TRY(embeddings(b, x, err));
  for (int64_t i = 0; i < b->c->layers; i++) CLV_TRY(block(b, i, x, err));
  return heads[b->head] ? heads[b->head](b, x, err) : CLV_OK;
}
