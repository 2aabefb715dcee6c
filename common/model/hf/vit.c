/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_add_vit: ViT (Dosovitskiy et al., 2021). An image is a sequence of patches, with one more
 * position in front that the head classifies. A norm precedes attention and the feed-forward part.
 * Names are those of the weight files, some of which transformers 5 maps to other names in memory
 * (clv_hf_name_in_memory).
 */
#include "common/model/hf/hf_int.h"

/* Adds the layers that turn an image [N, channels, image, image] into patches [N, patches, hidden].
 * */
static clv_code add_patch_embedding(hf_builder *b, int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  int64_t side = c->image_size / c->patch_size;
  clv_attr_value conv[] = {clv_hf_make_int_attr(CLV_ATTR_OUT, c->hidden_size),
                           clv_hf_make_int_attr(CLV_ATTR_KERNEL, c->patch_size),
                           clv_hf_make_int_attr(CLV_ATTR_STRIDE, c->patch_size)};
  clv_attr_value rows = {.key = CLV_ATTR_SHAPE, .n_ints = 2, .ints = {c->hidden_size, side * side}};
  clv_attr_value order = {.key = CLV_ATTR_ORDER, .n_ints = 2, .ints = {2, 1}};
  CLV_TRY(clv_hf_add_node(b, CLV_OP_CONV2D, "patch_embeddings.projection", conv, CLV_COUNT(conv), x,
                          err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_RESHAPE, "patch_embeddings.flatten", &rows, 1, x, err));
  return clv_hf_add_node(b, CLV_OP_PERMUTE, "patch_embeddings.transpose", &order, 1, x, err);
}

static clv_code add_embeddings(hf_builder *b, int *x, clv_err *err) {
  const clv_hf_config *c = b->c;
  int64_t side = c->image_size / c->patch_size;
  hf_positions places = {.rows = side * side + 1, .has_bare_name = true};
  clv_attr_value deviation = clv_hf_make_float_attr(CLV_ATTR_INIT_STD, c->init_deviation);
  clv_hf_set_prefix(b, "%sembeddings.", clv_hf_param_prefix(c, b->head));
  CLV_TRY(add_patch_embedding(b, x, err));
  CLV_TRY(clv_hf_add_node(b, CLV_OP_PREPEND, "cls_token", &deviation, 1, x, err));
  CLV_TRY(clv_hf_add_positions(b, "position_embeddings", &places, x, err));
  return clv_hf_add_dropout(b, "dropout", c->embedding_dropout, x, err);
}

static clv_code add_attention(hf_builder *b, int *x, clv_err *err) {
  int64_t width = b->c->hidden_size;
  bool bias = b->c->qkv_bias;
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "layernorm_before", x, err));
  int key = *x, value = key;
  CLV_TRY(clv_hf_add_dense(b, "attention.attention.query", width, bias, x, err));
  CLV_TRY(clv_hf_add_dense(b, "attention.attention.key", width, bias, &key, err));
  CLV_TRY(clv_hf_add_dense(b, "attention.attention.value", width, bias, &value, err));
  CLV_TRY(clv_hf_add_attention(b, "attention.attention.attention", false, key, value, x, err));
  CLV_TRY(clv_hf_add_dense(b, "attention.output.dense", width, true, x, err));
  return clv_hf_add_dropout(b, "attention.output.dropout", b->c->hidden_dropout, x, err);
}

static clv_code add_feed_forward(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "layernorm_after", x, err));
  CLV_TRY(clv_hf_add_dense(b, "intermediate.dense", b->c->inner_size, true, x, err));
  CLV_TRY(clv_hf_add_node(b, b->c->activation, "intermediate.activation", NULL, 0, x, err));
  CLV_TRY(clv_hf_add_dense(b, "output.dense", b->c->hidden_size, true, x, err));
  return clv_hf_add_dropout(b, "output.dropout", b->c->hidden_dropout, x, err);
}

static clv_code add_block(hf_builder *b, int64_t number, int *x, clv_err *err) {
  int before = *x;
  clv_hf_set_prefix(b, "%sencoder.layer.%d.", clv_hf_param_prefix(b->c, b->head), (int)number);
  CLV_TRY(add_attention(b, x, err));
  CLV_TRY(clv_hf_add_binary(b, CLV_OP_ADD, "attention.output.add", x, before, err));
  before = *x;
  CLV_TRY(add_feed_forward(b, x, err));
  return clv_hf_add_binary(b, CLV_OP_ADD, "output.add", x, before, err);
}

clv_code clv_hf_add_vit(hf_builder *b, int *x, clv_err *err) {
  CLV_TRY(add_embeddings(b, x, err));
  for (int64_t i = 0; i < b->c->n_layers; i++) CLV_TRY(add_block(b, i, x, err));
  clv_hf_set_prefix(b, "%s", clv_hf_param_prefix(b->c, b->head));
  CLV_TRY(clv_hf_add_norm(b, CLV_OP_LAYERNORM, "layernorm", x, err));
  if (b->head == CLV_HF_NO_HEAD) return CLV_OK;
  clv_hf_set_prefix(b, "%s", "");
  CLV_TRY(clv_hf_take_first_token(b, "first", x, err));
  return clv_hf_add_dense(b, "classifier", b->labels, true, x, err);
}
