/* SPDX-License-Identifier: Apache-2.0
 *
 * hf_int: the builder that the files of this folder share. clv_hf_add_layers (build in hf.c) makes
 * one and calls the function of the model's family, which appends named nodes to the graph with the
 * functions below. In all of them *x is the node that they read, and afterwards the node that they
 * have added.
 */
#ifndef CLEAVE_HF_INT_H
#define CLEAVE_HF_INT_H

#include "common/model/hf/hf.h"

typedef struct hf_builder {
  const clv_hf_config *c;
  clv_hf_head head;
  int64_t labels;
  clv_hf_inputs in;
  clv_graph *g;
  uint32_t *layer;           /* number of the next layer to add */
  int token_table_node;      /* embedding node whose parameter is the token table */
  char prefix[CLV_NAME_MAX]; /* prefix of the names of new nodes, such as "bert.encoder.layer.3." */
} hf_builder;

/* Sets the prefix of the names of all nodes added from now on; arguments as for printf. */
void clv_hf_set_prefix(hf_builder *b, const char *prefix, ...) CLV_PRINTF(2, 3);

clv_attr_value clv_hf_make_int_attr(clv_attr_key key, int64_t v);
clv_attr_value clv_hf_make_float_attr(clv_attr_key key, double v);

/* Adds a node with several inputs. */
clv_code clv_hf_add_node_over(hf_builder *b, clv_op op, const char *name,
                              const clv_attr_value *values, int n, const int *in, int n_in,
                              int *ret, clv_err *err) CLV_USE_RESULT;
/* Adds a node with one input. */
clv_code clv_hf_add_node(hf_builder *b, clv_op op, const char *name, const clv_attr_value *values,
                         int n, int *x, clv_err *err) CLV_USE_RESULT;
/* Adds a node with the inputs *x and `other`. */
clv_code clv_hf_add_binary(hf_builder *b, clv_op op, const char *name, int *x, int other,
                           clv_err *err) CLV_USE_RESULT;

/* Linear layer from [.., in] to [.., out]. */
typedef struct hf_linear {
  int64_t out_features;
  bool has_bias;
  bool is_transposed;    /* the weight is stored as [in, out] */
  double init_deviation; /* standard deviation of the initial weights; biases start at 0 */
} hf_linear;
clv_code clv_hf_add_linear(hf_builder *b, const char *name, const hf_linear *l, int *x,
                           clv_err *err) CLV_USE_RESULT;
/* As clv_hf_add_linear, with the config's deviation and the weight stored as [out, in]. */
clv_code clv_hf_add_dense(hf_builder *b, const char *name, int64_t out, bool bias, int *x,
                          clv_err *err) CLV_USE_RESULT;

/* Adds an embedding: the integers of *x are indices of rows in a table [rows, hidden]. */
clv_code clv_hf_add_embedding(hf_builder *b, const char *name, int64_t rows, int *x,
                              clv_err *err) CLV_USE_RESULT;
/* As clv_hf_add_embedding, but the row index is one column of the last dimension of *x, minus
 * another column if `minus` is not -1 (width = x1 - x0). */
clv_code clv_hf_add_column_embedding(hf_builder *b, const char *name, int64_t rows, int64_t column,
                                     int64_t minus, int *x, clv_err *err) CLV_USE_RESULT;
/* Embedding table of positions. Row first_row is added to the first position, row first_row + 1 to
 * the second, and so on. */
typedef struct hf_positions {
  int64_t rows, first_row;
  bool has_bare_name; /* the parameter's name is the node's name, without ".weight" */
} hf_positions;
clv_code clv_hf_add_positions(hf_builder *b, const char *name, const hf_positions *p, int *x,
                              clv_err *err) CLV_USE_RESULT;
/* Adds a layernorm or rmsnorm with the config's eps. */
clv_code clv_hf_add_norm(hf_builder *b, clv_op op, const char *name, int *x,
                         clv_err *err) CLV_USE_RESULT;
/* Adds a dropout with probability p. Does nothing if p is 0. */
clv_code clv_hf_add_dropout(hf_builder *b, const char *name, double p, int *x,
                            clv_err *err) CLV_USE_RESULT;
/* Adds attention with the queries *x, the keys `key` and the values `value`, which are nodes. */
clv_code clv_hf_add_attention(hf_builder *b, const char *name, bool causal, int key, int value,
                              int *x, clv_err *err) CLV_USE_RESULT;
/* Reduce *x from [N, S, hidden] to [N, hidden]: _first_token takes the first position, _last_token
 * the last position that is not padding. */
clv_code clv_hf_take_first_token(hf_builder *b, const char *name, int *x,
                                 clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_take_last_token(hf_builder *b, const char *name, int *x,
                                clv_err *err) CLV_USE_RESULT;

/* Returns the width of one attention head. */
static inline int64_t clv_hf_head_width(const clv_hf_config *c) {
  return c->head_width ? c->head_width : c->hidden_size / c->n_heads;
}

/* Adds the embedding of tokens. The padding row of its table gets no gradient. */
clv_code clv_hf_add_token_embedding(hf_builder *b, const char *name, int *x,
                                    clv_err *err) CLV_USE_RESULT;
/* Adds the linear layer to the vocabulary. Its weight is the token table if the config ties them.
 */
clv_code clv_hf_add_lm_head(hf_builder *b, const char *name, bool bias, int *x,
                            clv_err *err) CLV_USE_RESULT;

/* Each of these functions adds all nodes of a model of its family, from the inputs to the output of
 * the head. */
clv_code clv_hf_add_encoder(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_add_distilbert(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_add_vit(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_add_gpt2(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_add_llama(hf_builder *b, int *x, clv_err *err) CLV_USE_RESULT;

#endif
