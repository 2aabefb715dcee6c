/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_add_llama: Llama (Touvron et al., 2023), Mistral (Jiang et al., 2023), Qwen2 (Yang et al.,
 * 2024), which has biases at queries, keys and values, Qwen3 (Yang et al., 2025), which normalises
 * each head of queries and keys before it is turned, and Phi-3 (Abdin et al., 2024), which has
 * several projections in one layer and dropout behind each half of a block:
 *
 *   a = h + O attention(rotary(Q n), rotary(K n), V n),  n = RMSNorm(h)
 *   h' = a + D (act(G m) * (U m)),                       m = RMSNorm(a)
 */
#include <stdio.h>

#include "common/model/hf/hf_int.h"

static clv_code add_rotary_positions(hf_builder *b, const char *name, int64_t heads, int *x,
                                     clv_err *err) {
  const clv_hf_rope *r = &b->c->rope;
  bool scaled = r->kind == CLV_HF_ROPE_LINEAR || r->kind == CLV_HF_ROPE_LLAMA3;
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_HEADS, heads),
                        clv_hf_make_float_attr(CLV_ATTR_BASE, b->c->rope_base),
                        clv_hf_make_float_attr(CLV_ATTR_FACTOR, r->factor),
                        clv_hf_make_int_attr(CLV_ATTR_ORIGINAL, r->original_positions),
                        clv_hf_make_float_attr(CLV_ATTR_LOW_FREQ_FACTOR, r->low_freq_factor),
                        clv_hf_make_float_attr(CLV_ATTR_HIGH_FREQ_FACTOR, r->high_freq_factor)};
  int n = r->kind == CLV_HF_ROPE_LLAMA3 ? 6 : scaled ? 3 : 2;
  return clv_hf_add_node(b, CLV_OP_ROTARY, name, v, n, x, err);
}

/* Adds the norm of each head of *x, [N, S, heads * width], as Qwen3 has it. */
static clv_code add_head_norm(hf_builder *b, const char *name, int64_t heads, int *x,
                              clv_err *err) {
  int64_t width = clv_hf_head_width(b->c);
  clv_attr_value apart = {.key = CLV_ATTR_SHAPE, .n_ints = 3, .ints = {-1, heads, width}};
  clv_attr_value joined = {.key = CLV_ATTR_SHAPE, .n_ints = 2, .ints = {-1, heads * width}};
  char heads_name[CLV_NAME_MAX], joined_name[CLV_NAME_MAX];
  if (b->c->family != CLV_HF_QWEN3) return CLV_OK;
  snprintf(heads_name, sizeof heads_name, "%s.heads", name);
  snprintf(joined_name, sizeof joined_name, "%s.joined", name);
  CLV_TRY(clv_hf_add_node(b, CLV_OP_RESHAPE, heads_name, &apart, 1, x, err));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_RMSNORM, name, x, err));
  return clv_hf_add_node(b, CLV_OP_RESHAPE, joined_name, &joined, 1, x, err);
}

/* Takes columns [at, at + width) of *x. */
static clv_code add_column_slice(hf_builder *b, const char *name, int64_t at, int64_t width, int *x,
                                 clv_err *err) {
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_DIM, -1),
                        clv_hf_make_int_attr(CLV_ATTR_START, at),
                        clv_hf_make_int_attr(CLV_ATTR_STOP, at + width)};
  return clv_hf_add_node(b, CLV_OP_SLICE, name, v, CLV_COUNT(v), x, err);
}

/* Adds the projections to queries (*x), keys and values, which Phi-3 has in one layer. */
static clv_code add_projections(hf_builder *b, int64_t queries, int64_t keys, int *x, int *key,
                                int *value, clv_err *err) {
  bool bias = b->c->qkv_bias;
  if (b->c->family == CLV_HF_PHI3) {
    CLV_TRY(clv_hf_add_dense(b, "self_attn.qkv_proj", queries + 2 * keys, bias, x, err));
    *key = *value = *x;
    CLV_TRY(add_column_slice(b, "self_attn.query", 0, queries, x, err));
    CLV_TRY(add_column_slice(b, "self_attn.key", queries, keys, key, err));
    return add_column_slice(b, "self_attn.value", queries + keys, keys, value, err);
  }
  *key = *value = *x;
  CLV_TRY(clv_hf_add_dense(b, "self_attn.q_proj", queries, bias, x, err));
  CLV_TRY(clv_hf_add_dense(b, "self_attn.k_proj", keys, bias, key, err));
  return clv_hf_add_dense(b, "self_attn.v_proj", keys, bias, value, err);
}

static clv_code add_attention(hf_builder *b, int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  int64_t width = clv_hf_head_width(c), kv = c->n_kv_heads ? c->n_kv_heads : c->n_heads;
  int key, value;
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_RMSNORM, "input_layernorm", x, err));
  CLV_TRY(add_projections(b, c->n_heads * width, kv * width, x, &key, &value, err));
  CLV_TRY(add_head_norm(b, "self_attn.q_norm", c->n_heads, x, err));
  CLV_TRY(add_head_norm(b, "self_attn.k_norm", kv, &key, err));
  CLV_TRY(add_rotary_positions(b, "self_attn.rotary_q", c->n_heads, x, err));
  CLV_TRY(add_rotary_positions(b, "self_attn.rotary_k", kv, &key, err));
  CLV_TRY(clv_hf_add_attention(b, "self_attn.attention", true, key, value, x, err));
  CLV_TRY(clv_hf_add_dense(b, "self_attn.o_proj", c->hidden_size, c->out_bias, x, err));
  return clv_hf_add_dropout(b, "resid_attn_dropout", c->hidden_dropout, x, err);
}

/* Adds the projections of the feed-forward part, which Phi-3 has in one layer. */
static clv_code add_gate_and_up(hf_builder *b, int *x, int *up, clv_err *err) {
  const clv_hf_config *c = b->c;
  if (c->family == CLV_HF_PHI3) {
    CLV_TRY(clv_hf_add_dense(b, "mlp.gate_up_proj", 2 * c->inner_size, c->inner_bias, x, err));
    *up = *x;
    CLV_TRY(add_column_slice(b, "mlp.gate", 0, c->inner_size, x, err));
    CLV_TRY(add_column_slice(b, "mlp.up", c->inner_size, c->inner_size, up, err));
    return clv_hf_add_node(b, c->activation, "mlp.act_fn", NULL, 0, x, err);
  }
  *up = *x;
  CLV_TRY(clv_hf_add_dense(b, "mlp.gate_proj", c->inner_size, c->inner_bias, x, err));
  CLV_TRY(clv_hf_add_node(b, c->activation, "mlp.act_fn", NULL, 0, x, err));
  return clv_hf_add_dense(b, "mlp.up_proj", c->inner_size, c->inner_bias, up, err);
}

static clv_code add_feed_forward(hf_builder *b, int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  int up;
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_RMSNORM, "post_attention_layernorm", x, err));
  CLV_TRY(add_gate_and_up(b, x, &up, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_MUL, "mlp.mul", x, up, err));
  CLV_TRY(clv_hf_add_dense(b, "mlp.down_proj", c->hidden_size, c->inner_bias, x, err));
  return clv_hf_add_dropout(b, "resid_mlp_dropout", c->hidden_dropout, x, err);
}

static clv_code add_block(hf_builder *b, int64_t number, int *x, clv_err *err) {
  int before = *x;
  clv_hf_set_prefix(b, "%slayers.%d.", clv_hf_param_prefix(b->c, b->head), (int)number);
  CLV_TRY(add_attention(b, x, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_ADD, "self_attn.add", x, before, err));
  before = *x;
  CLV_TRY(add_feed_forward(b, x, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, "mlp.add", x, before, err);
}

/* Adds the head. The class of a sequence is scored at its last position, without a bias; classes of
 * tokens are scored at every position, with a bias. */
static clv_code add_head(hf_builder *b, int *x, clv_err *err) {
  clv_hf_set_prefix(b, "%s", "");
  if (b->head == CLV_HF_CAUSAL) return clv_hf_add_lm_head(b, "lm_head", false, x, err);
  if (b->head == CLV_HF_SEQUENCE) CLV_TRY(clv_hf_take_last_token(b, "last", x, err));
  if (b->head == CLV_HF_TOKEN)
    CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->head_dropout, x, err));
  return b->head == CLV_HF_NO_HEAD
             ? CLV_OK
             : clv_hf_add_dense(b, "score", b->labels, b->head == CLV_HF_TOKEN, x, err);
}

clv_code clv_hf_add_llama(hf_builder *b, int *x, clv_err *err) {
  clv_hf_set_prefix(b, "%s", clv_hf_param_prefix(b->c, b->head));
  CLV_TRY(clv_hf_add_token_embedding(b, "embed_tokens", x, err));
  for (int64_t i = 0; i < b->c->n_layers; i++) CLV_TRY(add_block(b, i, x, err));
  clv_hf_set_prefix(b, "%s", clv_hf_param_prefix(b->c, b->head));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_RMSNORM, "norm", x, err));
  return add_head(b, x, err);
}
