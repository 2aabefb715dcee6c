/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_hf_add_layers: checks head and inputs, and calls the function that adds the layers of the
 * model's family.
 */
#include "common/model/hf/hf.h"

#include <stdio.h>

#include "common/model/hf/hf_int.h"

static clv_code (*const builds[CLV_HF_FAMILIES])(hf_builder *b, int *x, clv_err *err) = {
    [CLV_HF_BERT] = clv_hf_add_encoder,
    [CLV_HF_ROBERTA] = clv_hf_add_encoder,
    [CLV_HF_XLM_ROBERTA] = clv_hf_add_encoder,
    [CLV_HF_CAMEMBERT] = clv_hf_add_encoder,
    [CLV_HF_LAYOUTLM] = clv_hf_add_encoder,
    [CLV_HF_DISTILBERT] = clv_hf_add_distilbert,
    [CLV_HF_VIT] = clv_hf_add_vit,
    [CLV_HF_GPT2] = clv_hf_add_gpt2,
    [CLV_HF_LLAMA] = clv_hf_add_llama,
    [CLV_HF_MISTRAL] = clv_hf_add_llama,
    [CLV_HF_QWEN2] = clv_hf_add_llama,
    [CLV_HF_QWEN3] = clv_hf_add_llama,
    [CLV_HF_PHI3] = clv_hf_add_llama};

static clv_code check_head(const clv_hf_config *c, clv_hf_head head, clv_err *err) {
  char known[96] = "";
  size_t used = 0;
  if (clv_hf_class_name(c->family, head)) return CLV_OK;
  for (int h = 0; h < CLV_HF_HEADS; h++)
    if (clv_hf_class_name(c->family, (clv_hf_head)h))
      used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                               clv_hf_head_name((clv_hf_head)h));
  return clv_fail(err, CLV_INVALID, "a %s has no head '%s', only %s", clv_hf_family_name(c->family),
                  clv_hf_head_name(head), known);
}

/* Checks shape and type of the input node with the records. */
static clv_code check_records_input(const clv_hf_config *c, const clv_graph *g, int node,
                                    clv_err *err) {
  const clv_shape *s = &g->nodes[node].shape;
  char text[160];
  clv_shape_format(s, text, sizeof text);
  if (!clv_hf_takes_tokens(c)) {
    if (s->rank == 4 && s->dim[1] == c->channels && s->dim[2] == c->image_size &&
        s->dim[3] == c->image_size)
      return CLV_OK;
    return clv_fail(err, CLV_INVALID,
                    "records are %s; the model takes images [N, %lld, %lld, %lld]", text,
                    (long long)c->channels, (long long)c->image_size, (long long)c->image_size);
  }
  if (s->rank == 2 && g->nodes[node].dtype == CLV_I64) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "records are %s %s; the model takes tokens [N, positions] as whole numbers (i64)",
                  clv_dtype_name(g->nodes[node].dtype), text);
}

/* Refuses sequences for which transformers would compute something other than the graph: sequences
 * longer than the sliding window, or longer than the positions up to which the angles of dynamic
 * rotary positions are the default ones. */
static clv_code check_length(const clv_hf_config *c, const clv_graph *g, int node, clv_err *err) {
  int64_t length = g->nodes[node].shape.dim[1];
  if (!clv_hf_takes_tokens(c)) return CLV_OK;
  if (c->window && length > c->window)
    return clv_fail(err, CLV_INVALID,
                    "records have %lld positions, and sliding_window of config.json lets a "
                    "position see %lld: give records of at most that length",
                    (long long)length, (long long)c->window);
  if (c->rope.kind == CLV_HF_ROPE_DYNAMIC && length > c->rope.original_positions)
    return clv_fail(err, CLV_INVALID,
                    "records have %lld positions, and rope_type dynamic of config.json turns those "
                    "beyond %lld (max_position_embeddings) by other angles for every length: give "
                    "records of at most that length",
                    (long long)length, (long long)c->rope.original_positions);
  return CLV_OK;
}

clv_code clv_hf_add_layers(const clv_hf_config *c, clv_hf_head head, int64_t labels,
                           const clv_hf_inputs *inputs, clv_graph *g, uint32_t *layer, int *last,
                           clv_err *err) {
  hf_builder b = {.c = c,
                  .head = head,
                  .labels = labels ? labels : c->labels,
                  .in = *inputs,
                  .g = g,
                  .layer = layer};
  int x = inputs->records;
  CLV_TRY(check_head(c, head, err));
  CLV_TRY(check_records_input(c, g, x, err));
  CLV_TRY(check_length(c, g, x, err));
  if (clv_hf_takes_boxes(c) && inputs->boxes < 0)
    return clv_fail(err, CLV_INVALID, "a layoutlm needs the input 'boxes' in addition to tokens");
  snprintf(g->name_prefix, sizeof g->name_prefix, "%s", clv_hf_param_prefix(c, head));
  CLV_TRY(builds[c->family](&b, &x, err));
  *last = x;
  return CLV_OK;
}
