/* SPDX-License-Identifier: Apache-2.0
 *
 * hf: the models that a config.json as Hugging Face writes it describes, as graphs whose parameters
 * have the names of its files.
 *
 *   LayoutLM   h = dropout(LN(W[id] + P[place] + X[x0] + Y[y0] + X[x1] + Y[y1] + H[y1 - y0]
 *                             + B[x1 - x0] + T[0]))
 *   block      a = LN(h + dropout(O attention(Q h, K h, V h))), h' = LN(a + dropout(F act(G a)))
 *
 * BERT and RoBERTa are the same without boxes; ViT, GPT-2, Llama and Qwen2 norm before instead of
 * behind. N, S are the batch and the places of a sample.
 *
 * Ownership: nothing is kept; a config is a plain struct. Threads: no state.
 * Limits: 1 MiB of config.json; sizes as the table of config.c says.
 */
#ifndef CLEAVE_HF_H
#define CLEAVE_HF_H

#include "common/model/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum clv_hf_family {
  CLV_HF_BERT,
  CLV_HF_ROBERTA,
  CLV_HF_LAYOUTLM,
  CLV_HF_VIT,
  CLV_HF_GPT2,
  CLV_HF_LLAMA,
  CLV_HF_QWEN2,
  CLV_HF_FAMILIES
} clv_hf_family;

/* Head on the last block, and the shape of its output. NO_HEAD: [N, S, hidden]. SEQUENCE: a class
 * of the sample, [N, labels]. TOKEN: a class per position, [N, S, labels]. MASKED and CAUSAL: a
 * token per position, [N, S, vocabulary], the masked one or the next one. */
typedef enum clv_hf_head {
  CLV_HF_NO_HEAD,
  CLV_HF_SEQUENCE,
  CLV_HF_TOKEN,
  CLV_HF_MASKED,
  CLV_HF_CAUSAL,
  CLV_HF_HEADS
} clv_hf_head;

/* Contents of a config.json. Keys of other families are 0 or false. */
typedef struct clv_hf_config {
  clv_hf_family family;
  int64_t vocabulary, hidden, layers, heads, kv_heads, inner; /* kv_heads 0: as many as heads */
  int64_t head_width;                                         /* 0: hidden / heads */
  int64_t positions, types, boxes;                            /* rows of the tables */
  int64_t padding;     /* the token of pads; -1: none; -2: a number below 0, which no token is */
  int64_t padding_row; /* of the table of tokens, which gets no gradient; -1: none */
  int64_t image, patch, channels; /* pixels of a side */
  int64_t labels;                 /* that it names; 2 unless it does */
  double embedding_dropout, hidden_dropout, attention_dropout, head_dropout;
  double eps, deviation, base; /* of norms; of first weights; of rotary positions */
  clv_op activation;
  bool tied; /* the table of tokens is the weight of the head as well */
  bool qkv_bias, out_bias, inner_bias;
} clv_hf_config;

/* CLV_INVALID is `label:line:column: text`, or `label: text` for a key that is missing. */
clv_code clv_hf_config_parse(const char *label, const char *text, size_t len, clv_hf_config *ret,
                             clv_err *err) CLV_USE_RESULT;
/* FOLDER/config.json; CLV_NOT_FOUND or CLV_EXHAUSTED too. */
clv_code clv_hf_config_read(const char *folder, clv_hf_config *ret, clv_err *err) CLV_USE_RESULT;

/* FOLDER/config.json and what is in it. */
clv_code clv_hf_config_text(const char *folder, clv_bytes *ret_path, clv_bytes *ret_text,
                            clv_err *err) CLV_USE_RESULT;

/* Names of classes 0 to n - 1, all different from NULL; n 0: none has one. */
typedef struct clv_hf_labels {
  char **names;
  size_t n;
} clv_hf_labels;

void clv_hf_labels_done(clv_hf_labels *l);
clv_code clv_hf_labels_parse(const char *label, const char *text, size_t len, clv_hf_labels *ret,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_hf_labels_read(const char *folder, clv_hf_labels *ret, clv_err *err) CLV_USE_RESULT;

const char *clv_hf_family_name(clv_hf_family family); /* "layoutlm", as model_type has it */
const char *clv_hf_head_name(clv_hf_head head);       /* "token" */
/* The longest name of a module or parameter, with its NUL. */
enum { CLV_HF_NAME = 256 };
/* Returns the name that transformers 5 uses in memory for the module or parameter `name` of its
 * files. They differ in ViT's blocks; peft's files use the names in memory. */
const char *clv_hf_memory_name(clv_hf_family family, const char *name, char ret[CLV_HF_NAME]);
/* Returns the prefix of all parameter names but the head's: "layoutlm." */
const char *clv_hf_prefix(const clv_hf_config *c, clv_hf_head head);
/* The class of transformers that has these parameters, "LayoutLMForTokenClassification"; NULL: the
 * family has no such head. */
const char *clv_hf_class(clv_hf_family family, clv_hf_head head);

/* Whether it takes tokens, and boxes; else images. */
bool clv_hf_takes_tokens(const clv_hf_config *c);
bool clv_hf_takes_boxes(const clv_hf_config *c);
/* True if a place sees only those before it. */
bool clv_hf_is_decoder(const clv_hf_config *c);

/* Nodes of the graph that are its inputs; -1: there is none. */
typedef struct clv_hf_inputs {
  int records; /* i64 [N, S], or f32 [N, channels, image, image] */
  int boxes;   /* i64 [N, S, 4]: x0, y0, x1, y1 */
  int lengths; /* i64 [N]; without, all S places are real */
} clv_hf_inputs;

/* Appends all layers; *layer counts them, *last is the node with the output. labels 0: as many as
 * the config names. CLV_INVALID: the family has no such head, or shapes do not fit. */
clv_code clv_hf_add_layers(const clv_hf_config *c, clv_hf_head head, int64_t labels,
                           const clv_hf_inputs *inputs, clv_graph *g, uint32_t *layer, int *last,
                           clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
