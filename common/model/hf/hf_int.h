/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_int: what the files of this folder share: a builder that appends named nodes to a graph.
 */
#ifndef CLEAVE_HF_INT_H
#define CLEAVE_HF_INT_H

#include "common/model/hf/hf.h"

/* at: what stands before the names of nodes now, "bert.encoder.layer.3."; lengths: -1 or a node. */
typedef struct hf_builder {
  const clv_hf_config *c;
  clv_hf_head head;
  int64_t labels;
  clv_hf_inputs in;
  clv_graph *g;
  uint32_t *layer;
  int words; /* the node with the table of tokens */
  char at[CLV_NAME_MAX];
} hf_builder;

/* Names of nodes go on behind this from now on; `prefix` as printf. */
void clv_hf_set_prefix(hf_builder *b, const char *prefix, ...) CLV_PRINTF(2, 3);

clv_attr_value clv_hf_int_attr(clv_attr_key key, int64_t v);
clv_attr_value clv_hf_float_attr(clv_attr_key key, double v);

/* One node over several. */
clv_code clv_hf_add_node_over(hf_builder *b, clv_op op, const char *name,
                              const clv_attr_value *values, int n, const int *in, int n_in,
                              int *ret, clv_err *err) CLV_USE_RESULT;
/* One node; *x is its input, and then it. */
clv_code clv_hf_add_node(hf_builder *b, clv_op op, const char *name, const clv_attr_value *values,
                         int n, int *x, clv_err *err) CLV_USE_RESULT;
/* The same over two inputs, and then *x is it. */
clv_code clv_hf_add_binary(hf_builder *b, clv_op op, const char *name, int *x, int other,
                           clv_err *err) CLV_USE_RESULT;

/* A projection of [.., in] to [.., out]. transposed: its weight is kept as [in, out]. */
typedef struct hf_linear {
  int64_t out;
  bool bias, transposed;
  double deviation; /* of first weights; biases begin with 0 */
} hf_linear;
clv_code clv_hf_linear(hf_builder *b, const char *name, const hf_linear *l, int *x,
                       clv_err *err) CLV_USE_RESULT;
/* With the config's deviation, and not transposed. */
clv_code clv_hf_dense(hf_builder *b, const char *name, int64_t out, bool bias, int *x,
                      clv_err *err) CLV_USE_RESULT;

/* Rows of a table of `rows` by hidden. */
clv_code clv_hf_embed(hf_builder *b, const char *name, int64_t rows, int *x,
                      clv_err *err) CLV_USE_RESULT;
/* The same by a column of the last dimension, less another one. */
clv_code clv_hf_embed_column(hf_builder *b, const char *name, int64_t rows, int64_t column,
                             int64_t minus, int *x, clv_err *err) CLV_USE_RESULT;
/* A row of a table is added to each place: row `first` to the first. bare: the table has the name
 * itself, without .weight. */
typedef struct hf_positions {
  int64_t rows, first;
  bool bare;
} hf_positions;
clv_code clv_hf_positions(hf_builder *b, const char *name, const hf_positions *p, int *x,
                          clv_err *err) CLV_USE_RESULT;
/* layernorm or rmsnorm with the config's eps. */
clv_code clv_hf_norm(hf_builder *b, clv_op op, const char *name, int *x,
                     clv_err *err) CLV_USE_RESULT;
/* Nothing where p is 0. */
clv_code clv_hf_dropout(hf_builder *b, const char *name, double p, int *x,
                        clv_err *err) CLV_USE_RESULT;
/* *x are the queries. */
clv_code clv_hf_attention(hf_builder *b, const char *name, bool causal, int key, int value, int *x,
                          clv_err *err) CLV_USE_RESULT;
/* [N, S, hidden] to [N, hidden]: the first place; the last real one. */
clv_code clv_hf_first_token(hf_builder *b, const char *name, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_last_token(hf_builder *b, const char *name, int *x, clv_err *err) CLV_USE_RESULT;

/* Outputs of queries; keys and values. */
static inline int64_t clv_hf_head_width(const clv_hf_config *c) {
  return c->head_width ? c->head_width : c->hidden / c->heads;
}

/* The table of tokens, whose row of pads learns nothing. */
clv_code clv_hf_token_embedding(hf_builder *b, const char *name, int *x,
                                clv_err *err) CLV_USE_RESULT;
/* Tokens of each place; tied, by the table that they came from. */
clv_code clv_hf_lm_head(hf_builder *b, const char *name, bool bias, int *x,
                        clv_err *err) CLV_USE_RESULT;

/* From the inputs to the head's output. */
clv_code clv_hf_encoder(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_vit(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_gpt2(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_llama(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;

#endif
