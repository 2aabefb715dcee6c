/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_add_gpt2: GPT-2 (Radford et al., 2019). A norm precedes attention and the feed-forward
 * part, whose results are added to the unnormalised input:
 *
 *   a = h + dropout(P attention(QKV LN(h))),   h' = a + dropout(C act(F LN(a)))
 *
 * Weight files of GPT-2 store the weights of projections as [in, out]. Queries, keys and values
 * come from one projection.
 */
#include <math.h>

#include "common/model/hf/hf_int.h"

/* Adds a linear layer. ends_half_block: the layer is the last of half a block, so the deviation of
 * its initial weights is divided by the square root of the number of such layers, as in
 * transformers. */
static clv_code add_projection(hf_builder *b, const char *name, int64_t out, bool ends_half_block,
                               int *x, clv_err *err) {
  double n_half_blocks = 2 * (double)b->c->n_layers;
  hf_linear l = {.out_features = out,
                 .has_bias = true,
                 .is_transposed = true,
                 .init_deviation = ends_half_block ? b->c->init_deviation / sqrt(n_half_blocks)
                                                   : b->c->init_deviation};
  return clv_hf_add_linear(b, name, &l, x, err);
}

/* Slices out one third of the columns. at: which third, 0 to 2. */
static clv_code add_third_slice(hf_builder *b, const char *name, int64_t at, int *x, clv_err *err) {
  int64_t width = b->c->hidden_size;
  clv_attr_value v[] = {clv_hf_make_int_attr(CLV_ATTR_DIM, -1),
                        clv_hf_make_int_attr(CLV_ATTR_START, at * width),
                        clv_hf_make_int_attr(CLV_ATTR_STOP, (at + 1) * width)};
  return clv_hf_add_node(b, CLV_OP_SLICE, name, v, CLV_COUNT(v), x, err);
}

static clv_code add_attention(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "ln_1", x, err));
  CLV_TRY(add_projection(b, "attn.c_attn", 3 * b->c->hidden_size, false, x, err));
  int key = *x, value = key;
  CLV_TRY(add_third_slice(b, "attn.query", 0, x, err));
  CLV_TRY(add_third_slice(b, "attn.key", 1, &key, err));
  CLV_TRY(add_third_slice(b, "attn.value", 2, &value, err));
  CLV_TRY(clv_hf_add_attention(b, "attn.attention", true, key, value, x, err));
  CLV_TRY(add_projection(b, "attn.c_proj", b->c->hidden_size, true, x, err));
  return clv_hf_add_dropout(b, "attn.resid_dropout", b->c->hidden_dropout, x, err);
}

static clv_code add_feed_forward(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "ln_2", x, err));
  CLV_TRY(add_projection(b, "mlp.c_fc", b->c->inner_size, false, x, err));
  CLV_TRY(clv_hf_add_node(b, b->c->activation, "mlp.act", NULL, 0, x, err));
  CLV_TRY(add_projection(b, "mlp.c_proj", b->c->hidden_size, true, x, err));
  return clv_hf_add_dropout(b, "mlp.dropout", b->c->hidden_dropout, x, err);
}

static clv_code add_block(hf_builder *b, int64_t number, int *x, clv_err *err) {
  int before = *x;
  clv_hf_set_prefix(b, "%sh.%d.", clv_hf_param_prefix(b->c, b->head), (int)number);
  CLV_TRY(add_attention(b, x, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_ADD, "attn.add", x, before, err));
  before = *x;
  CLV_TRY(add_feed_forward(b, x, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, "mlp.add", x, before, err);
}

static clv_code add_head(hf_builder *b, int *x, clv_err *err) {
  clv_hf_set_prefix(b, "%s", "");
  switch (b->head) {
    case CLV_HF_SEQUENCE:
      CLV_TRY(clv_hf_take_last_token(b, "last", x, err));
      return clv_hf_add_dense(b, "score", b->labels, false, x, err);
    case CLV_HF_TOKEN:
      CLV_TRY(clv_hf_add_dropout(b, "dropout", b->c->head_dropout, x, err));
      return clv_hf_add_dense(b, "classifier", b->labels, true, x, err);
    case CLV_HF_CAUSAL:
      return clv_hf_add_lm_head(b, "lm_head", false, x, err);
    default:
      return CLV_OK;
  }
}

clv_code clv_hf_add_gpt2(hf_builder *b, int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  hf_positions places = {.rows = c->max_positions};
  clv_hf_set_prefix(b, "%s", clv_hf_param_prefix(c, b->head));
  CLV_TRY(clv_hf_add_token_embedding(b, "wte", x, err));
  CLV_TRY(clv_hf_add_positions(b, "wpe", &places, x, err));
  CLV_TRY(clv_hf_add_dropout(b, "drop", c->embedding_dropout, x, err));
  for (int64_t i = 0; i < c->n_layers; i++) CLV_TRY(add_block(b, i, x, err));
  clv_hf_set_prefix(b, "%s", clv_hf_param_prefix(c, b->head));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "ln_f", x, err));
  return add_head(b, x, err);
}
