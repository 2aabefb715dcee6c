/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the builder (see hf_int.h). Names of nodes with parameters are those of PyTorch's
 * state_dict. A node without parameters is named after the PyTorch module with the same function,
 * or after its op.
 */
#include <stdarg.h>
#include <stdio.h>

#include "common/model/hf/hf_int.h"

void clv_hf_set_prefix(hf_builder *b, const char *prefix, ...) {
  va_list args;
  va_start(args, prefix);
  vsnprintf(b->prefix, sizeof b->prefix, prefix, args);
  va_end(args);
}

clv_attr_value clv_hf_make_int_attr(clv_attr_key key, int64_t v) {
  return (clv_attr_value){.key = key, .n_ints = 1, .ints = {v}};
}

clv_attr_value clv_hf_make_float_attr(clv_attr_key key, double v) {
  return (clv_attr_value){.key = key, .is_number = true, .number = v};
}

clv_code clv_hf_add_node_over(hf_builder *b, clv_op op, const char *name,
                              const clv_attr_value *values, int n, const int *in, int n_in,
                              int *ret, clv_err *err) {
  clv_attrs attrs;
  char full_name[2 * CLV_NAME_MAX];
  snprintf(full_name, sizeof full_name, "%s%s", b->prefix, name);
  CLV_TRY(clv_attrs_parse(op, values, n, &attrs, err));
  return clv_graph_add(b->g, op, &attrs, full_name, (*b->layer)++, in, n_in, ret, err);
}

clv_code clv_hf_add_node(hf_builder *b, clv_op op, const char *name, const clv_attr_value *values,
                         int n, int *x, clv_err *err) {
  return clv_hf_add_node_over(b, op, name, values, n, x, 1, x, err);
}

clv_code clv_hf_add_binary(hf_builder *b, clv_op op, const char *name, int *x, int other,
                           clv_err *err) {
  int in[] = {*x, other};
  return clv_hf_add_node_over(b, op, name, NULL, 0, in, 2, x, err);
}

clv_code clv_hf_add_linear(hf_builder *b, const char *name, const hf_linear *l, int *x,
                           clv_err *err) {
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_OUT, l->out_features),
                        clv_hf_make_int_attr(CLV_ATTR_BIAS, l->has_bias),
                        clv_hf_make_int_attr(CLV_ATTR_TRANSPOSED, l->is_transposed),
                        clv_hf_make_float_attr(CLV_ATTR_INIT_STD, l->init_deviation)};
  return clv_hf_add_node(b, CLV_OP_LINEAR, name, v, CLV_COUNT(v), x, err);
}

clv_code clv_hf_add_dense(hf_builder *b, const char *name, int64_t out, bool bias, int *x,
                          clv_err *err) {
  hf_linear l = {.out_features = out, .has_bias = bias, .init_deviation = b->c->init_deviation};
  return clv_hf_add_linear(b, name, &l, x, err);
}

clv_code clv_hf_add_embedding(hf_builder *b, const char *name, int64_t rows, int *x, clv_err *err) {
  return clv_hf_add_column_embedding(b, name, rows, -1, -1, x, err);
}

clv_code clv_hf_add_column_embedding(hf_builder *b, const char *name, int64_t rows, int64_t column,
                                     int64_t minus, int *x, clv_err *err) {
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_ROWS, rows),
                        clv_hf_make_int_attr(CLV_ATTR_OUT, b->c->hidden_size),
                        clv_hf_make_int_attr(CLV_ATTR_COLUMN, column),
                        clv_hf_make_int_attr(CLV_ATTR_MINUS, minus),
                        clv_hf_make_float_attr(CLV_ATTR_INIT_STD, b->c->init_deviation)};
  return clv_hf_add_node(b, CLV_OP_EMBEDDING, name, v, CLV_COUNT(v), x, err);
}

clv_code clv_hf_add_positions(hf_builder *b, const char *name, const hf_positions *p, int *x,
                              clv_err *err) {
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_ROWS, p->rows),
                        clv_hf_make_int_attr(CLV_ATTR_OFFSET, p->first_row),
                        clv_hf_make_int_attr(CLV_ATTR_BARE, p->has_bare_name),
                        clv_hf_make_float_attr(CLV_ATTR_INIT_STD, b->c->init_deviation)};
  return clv_hf_add_node(b, CLV_OP_POSITIONS, name, v, CLV_COUNT(v), x, err);
}

clv_code clv_hf_add_norm(hf_builder *b, clv_op op, const char *name, int *x, clv_err *err) {
  clv_attr_value v = clv_hf_make_float_attr(CLV_ATTR_EPS, b->c->eps);
  return clv_hf_add_node(b, op, name, &v, 1, x, err);
}

clv_code clv_hf_add_dropout(hf_builder *b, const char *name, double p, int *x, clv_err *err) {
  clv_attr_value v = clv_hf_make_float_attr(CLV_ATTR_P, p);
  return p > 0 ? clv_hf_add_node(b, CLV_OP_DROPOUT, name, &v, 1, x, err) : CLV_OK;
}

clv_code clv_hf_add_attention(hf_builder *b, const char *name, bool causal, int key, int value,
                              int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  int in[] = {*x, key, value, b->in.lengths};
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_HEADS, c->n_heads),
                        clv_hf_make_int_attr(CLV_ATTR_KV_HEADS, c->n_kv_heads),
                        clv_hf_make_int_attr(CLV_ATTR_CAUSAL, causal),
                        clv_hf_make_float_attr(CLV_ATTR_P, c->attention_dropout)};
  return clv_hf_add_node_over(b, CLV_OP_ATTENTION, name, v, CLV_COUNT(v), in,
                              b->in.lengths < 0 ? 3 : 4, x, err);
}

/* Adds a slice that takes one position of dimension 1, and a flatten that removes that dimension.
 * */
static clv_code add_position_slice(hf_builder *b, const char *name, int64_t start, int64_t stop,
                                   int *x, clv_err *err) {
  char flat_name[CLV_NAME_MAX];
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_DIM, 1),
                        clv_hf_make_int_attr(CLV_ATTR_START, start),
                        clv_hf_make_int_attr(CLV_ATTR_STOP, stop)};
  snprintf(flat_name, sizeof flat_name, "%s.flatten", name);
  CLV_TRY(clv_hf_add_node(b, CLV_OP_SLICE, name, v, CLV_COUNT(v), x, err));
  return clv_hf_add_node(b, CLV_OP_FLATTEN, flat_name, NULL, 0, x, err);
}

clv_code clv_hf_take_first_token(hf_builder *b, const char *name, int *x, clv_err *err) {
  return add_position_slice(b, name, 0, 1, x, err);
}

clv_code clv_hf_take_last_token(hf_builder *b, const char *name, int *x, clv_err *err) {
  if (b->in.lengths >= 0) return clv_hf_add_binary(b, CLV_OP_LAST, name, x, b->in.lengths, err);
  return add_position_slice(b, name, -1, CLV_TO_END, x, err);
}

clv_code clv_hf_add_token_embedding(hf_builder *b, const char *name, int *x, clv_err *err) {
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_ROWS, b->c->vocabulary),
                        clv_hf_make_int_attr(CLV_ATTR_OUT, b->c->hidden_size),
                        clv_hf_make_int_attr(CLV_ATTR_PADDING_IDX, b->c->padding_row),
                        clv_hf_make_float_attr(CLV_ATTR_INIT_STD, b->c->init_deviation)};
  CLV_TRY(clv_hf_add_node(b, CLV_OP_EMBEDDING, name, v, CLV_COUNT(v), x, err));
  b->token_table_node = *x;
  return CLV_OK;
}

clv_code clv_hf_add_lm_head(hf_builder *b, const char *name, bool bias, int *x, clv_err *err) {
  CLV_TRY(clv_hf_add_dense(b, name, b->c->vocabulary, bias, x, err));
  return b->c->is_head_tied
             ? clv_graph_tie_param(b->g, *x, b->g->nodes[b->token_table_node].name, false, err)
             : CLV_OK;
}
