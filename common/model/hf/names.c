/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of the model families, their heads, Python classes and parameter prefixes, as in
 * transformers.
 */
#include "common/model/hf/hf.h"

#include <stdio.h>
#include <string.h>

static const struct {
  const char *name, *prefix;
  const char *class_names[CLV_HF_HEADS];
} families[CLV_HF_FAMILIES] = {
    [CLV_HF_BERT] = {"bert",
                     "bert.",
                     {[CLV_HF_NO_HEAD] = "BertModel",
                      [CLV_HF_SEQUENCE] = "BertForSequenceClassification",
                      [CLV_HF_TOKEN] = "BertForTokenClassification",
                      [CLV_HF_MASKED] = "BertForMaskedLM"}},
    [CLV_HF_ROBERTA] = {"roberta",
                        "roberta.",
                        {[CLV_HF_NO_HEAD] = "RobertaModel",
                         [CLV_HF_SEQUENCE] = "RobertaForSequenceClassification",
                         [CLV_HF_TOKEN] = "RobertaForTokenClassification",
                         [CLV_HF_MASKED] = "RobertaForMaskedLM"}},
    [CLV_HF_XLM_ROBERTA] = {"xlm-roberta",
                            "roberta.",
                            {[CLV_HF_NO_HEAD] = "XLMRobertaModel",
                             [CLV_HF_SEQUENCE] = "XLMRobertaForSequenceClassification",
                             [CLV_HF_TOKEN] = "XLMRobertaForTokenClassification",
                             [CLV_HF_MASKED] = "XLMRobertaForMaskedLM"}},
    [CLV_HF_CAMEMBERT] = {"camembert",
                          "roberta.",
                          {[CLV_HF_NO_HEAD] = "CamembertModel",
                           [CLV_HF_SEQUENCE] = "CamembertForSequenceClassification",
                           [CLV_HF_TOKEN] = "CamembertForTokenClassification",
                           [CLV_HF_MASKED] = "CamembertForMaskedLM"}},
    [CLV_HF_LAYOUTLM] = {"layoutlm",
                         "layoutlm.",
                         {[CLV_HF_NO_HEAD] = "LayoutLMModel",
                          [CLV_HF_SEQUENCE] = "LayoutLMForSequenceClassification",
                          [CLV_HF_TOKEN] = "LayoutLMForTokenClassification",
                          [CLV_HF_MASKED] = "LayoutLMForMaskedLM"}},
    [CLV_HF_DISTILBERT] = {"distilbert",
                           "distilbert.",
                           {[CLV_HF_NO_HEAD] = "DistilBertModel",
                            [CLV_HF_SEQUENCE] = "DistilBertForSequenceClassification",
                            [CLV_HF_TOKEN] = "DistilBertForTokenClassification",
                            [CLV_HF_MASKED] = "DistilBertForMaskedLM"}},
    [CLV_HF_VIT] =
        {"vit",
         "vit.",
         {[CLV_HF_NO_HEAD] = "ViTModel", [CLV_HF_SEQUENCE] = "ViTForImageClassification"}},
    [CLV_HF_GPT2] = {"gpt2",
                     "transformer.",
                     {[CLV_HF_NO_HEAD] = "GPT2Model",
                      [CLV_HF_SEQUENCE] = "GPT2ForSequenceClassification",
                      [CLV_HF_TOKEN] = "GPT2ForTokenClassification",
                      [CLV_HF_CAUSAL] = "GPT2LMHeadModel"}},
    [CLV_HF_LLAMA] = {"llama",
                      "model.",
                      {[CLV_HF_NO_HEAD] = "LlamaModel",
                       [CLV_HF_SEQUENCE] = "LlamaForSequenceClassification",
                       [CLV_HF_TOKEN] = "LlamaForTokenClassification",
                       [CLV_HF_CAUSAL] = "LlamaForCausalLM"}},
    [CLV_HF_MISTRAL] = {"mistral",
                        "model.",
                        {[CLV_HF_NO_HEAD] = "MistralModel",
                         [CLV_HF_SEQUENCE] = "MistralForSequenceClassification",
                         [CLV_HF_TOKEN] = "MistralForTokenClassification",
                         [CLV_HF_CAUSAL] = "MistralForCausalLM"}},
    [CLV_HF_QWEN2] = {"qwen2",
                      "model.",
                      {[CLV_HF_NO_HEAD] = "Qwen2Model",
                       [CLV_HF_SEQUENCE] = "Qwen2ForSequenceClassification",
                       [CLV_HF_TOKEN] = "Qwen2ForTokenClassification",
                       [CLV_HF_CAUSAL] = "Qwen2ForCausalLM"}},
    [CLV_HF_QWEN3] = {"qwen3",
                      "model.",
                      {[CLV_HF_NO_HEAD] = "Qwen3Model",
                       [CLV_HF_SEQUENCE] = "Qwen3ForSequenceClassification",
                       [CLV_HF_TOKEN] = "Qwen3ForTokenClassification",
                       [CLV_HF_CAUSAL] = "Qwen3ForCausalLM"}},
    [CLV_HF_PHI3] = {"phi3",
                     "model.",
                     {[CLV_HF_NO_HEAD] = "Phi3Model",
                      [CLV_HF_SEQUENCE] = "Phi3ForSequenceClassification",
                      [CLV_HF_TOKEN] = "Phi3ForTokenClassification",
                      [CLV_HF_CAUSAL] = "Phi3ForCausalLM"}},
};

static const char *const head_names[CLV_HF_HEADS] = {"none", "sequence", "token", "masked",
                                                     "causal"};

const char *clv_hf_family_name(clv_hf_family family) { return families[family].name; }
const char *clv_hf_head_name(clv_hf_head head) { return head_names[head]; }

const char *clv_hf_class_name(clv_hf_family family, clv_hf_head head) {
  return families[family].class_names[head];
}

/* The prefix is empty for a model without a head, because transformers writes its files so. */
const char *clv_hf_param_prefix(const clv_hf_config *c, clv_hf_head head) {
  return head == CLV_HF_NO_HEAD ? "" : families[c->family].prefix;
}

/* ---- names in memory ------------------------------------------------------------------------- */

static const struct {
  const char *name_in_file, *name_in_memory;
} vit_names[] = {{"encoder.layer.", "layers."},
                 {"attention.attention.query", "attention.q_proj"},
                 {"attention.attention.key", "attention.k_proj"},
                 {"attention.attention.value", "attention.v_proj"},
                 {"attention.output.dense", "attention.o_proj"},
                 {"intermediate.dense", "mlp.fc1"},
                 {"output.dense", "mlp.fc2"}};

const char *clv_hf_name_in_memory(clv_hf_family family, const char *name, char ret[CLV_HF_NAME]) {
  bool block = family == CLV_HF_VIT && strstr(name, vit_names[0].name_in_file);
  snprintf(ret, CLV_HF_NAME, "%s", name);
  for (size_t i = 0; block && i < CLV_COUNT(vit_names); i++) {
    char *at = strstr(ret, vit_names[i].name_in_file);
    if (!at) continue;
    size_t from = strlen(vit_names[i].name_in_file), to = strlen(vit_names[i].name_in_memory);
    memmove(at + to, at + from, strlen(at + from) + 1);
    memcpy(at, vit_names[i].name_in_memory, to);
  }
  return ret;
}

bool clv_hf_takes_tokens(const clv_hf_config *c) { return c->family != CLV_HF_VIT; }
bool clv_hf_is_decoder(const clv_hf_config *c) { return c->family >= CLV_HF_GPT2; }
bool clv_hf_numbers_from_padding(clv_hf_family family) {
  return family == CLV_HF_ROBERTA || family == CLV_HF_XLM_ROBERTA || family == CLV_HF_CAMEMBERT;
}
bool clv_hf_takes_boxes(const clv_hf_config *c) { return c->family == CLV_HF_LAYOUTLM; }
