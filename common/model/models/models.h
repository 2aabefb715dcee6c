/* SPDX-License-Identifier: Apache-2.0
 *
 * models: from the layers of a session file, or a named architecture, to one uncut graph.
 *
 * A model is a list of layers, each over the one before it or over those that its `from` names.
 * Stages take consecutive runs of it, either by listing their layers or by a range into `model`;
 * layers are counted over all stages, so that names, initial weights and dropout are the same
 * wherever the cuts are.
 *
 * Ownership: returned graphs belong to the caller. Threads: no state.
 */
#ifndef CLEAVE_MODELS_H
#define CLEAVE_MODELS_H

#include "common/model/config/config.h"
#include "common/model/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Inputs of a model. Each has a name, a type and a shape [N, ...]. */
typedef struct clv_model_inputs {
  size_t n;
  struct {
    char name[CLV_NAME_MAX];
    clv_dtype dtype;
    clv_shape shape;
  } list[CLV_MAX_INPUTS];
} clv_model_inputs;

/* One input called "input": f32, or i64 if the model takes tokens. */
clv_model_inputs clv_model_one_input(const clv_session_config *config, const clv_shape *shape);

/* The uncut graph of all stages of a session over these inputs; the first layer reads the first one
 * unless it says otherwise. ret_first_layer, ret_last_layer: [n_stages], the layers each stage runs
 * (both included), for clv_graph_slice; at least one layer each. CLV_INVALID points at the layer of
 * the session file (file:line:column) and names op, attribute or shape with a suggestion. */
clv_code clv_model_graph_of_inputs(const clv_session_config *config, const clv_model_inputs *inputs,
                                   clv_graph **ret_whole, uint32_t *ret_first_layer,
                                   uint32_t *ret_last_layer, clv_err *err) CLV_USE_RESULT;

/* As clv_model_graph_of_inputs, with one input of shape `input_sample` ([N, ...]). */
clv_code clv_model_graph(const clv_session_config *config, const clv_shape *input_sample,
                         clv_graph **ret_whole, uint32_t *ret_first_layer, uint32_t *ret_last_layer,
                         clv_err *err) CLV_USE_RESULT;

/* Whether the first layer is an embedding: then the input holds token numbers, i64. */
bool clv_model_takes_tokens(const clv_session_config *config);
/* True if the first layer takes [N, a, b] alone, as an lstm and a conv1d do. */
bool clv_model_takes_sequences(const clv_session_config *config);
/* True if records [N, a, b] may have been meant as sequences: the first layer neither takes images
 * alone nor makes the same of both. */
bool clv_model_takes_anything(const clv_session_config *config);

/* The graph of `model:` alone, whatever the stages take of it. */
clv_code clv_model_full_graph(const clv_session_config *config, const clv_shape *input_sample,
                              clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* The layers of `model:` that the first stage takes, wherever they begin; input_sample is that of
 * the whole model. */
clv_code clv_model_first_stage_graph(const clv_session_config *config,
                                     const clv_shape *input_sample, clv_graph **ret,
                                     clv_err *err) CLV_USE_RESULT;

/* CLV_INVALID, with its place in the session: what is wrong with the config.json of `model.hf`. */
clv_code clv_model_check(const clv_session_config *config, clv_err *err) CLV_USE_RESULT;

/* How transformers treats the padding token that a model by `model.hf` names. */
typedef struct clv_model_padding {
  int64_t token;          /* -1: none; -2: a number that no token has */
  bool numbers_places;    /* places are numbered without pads */
  bool scores_last_token; /* the class is that of the last token that is no pad */
  bool shifts_labels;     /* a place is compared with the label of the next one */
} clv_model_padding;
/* Returns token -1 and false for another model, or if its config.json cannot be read. */
clv_model_padding clv_model_padding_of(const clv_session_config *config);

/* The family of a model by `model.hf`; -1: another model, or its config.json cannot be read. */
int clv_model_family(const clv_session_config *config);
/* Returns the name that peft's files use for a parameter or a module of that family. */
enum { CLV_PEFT_PARAM = 256 };
const char *clv_model_peft_name(int family, const char *name, char ret[CLV_PEFT_PARAM]);

/* Whether a loss has i64 class numbers as its target; false for what is no loss. */
bool clv_loss_has_labels(const char *kind);

/* The graph of a loss by its op name ("cross_entropy"): input 0 "prediction" of shape `pred` with
 * N replaced by `batch`, input 1 "target" (i64 class indices for losses that have labels: [N], or
 * [N, S] of predictions [N, S, classes]; else f32 shaped as the prediction), output [] the mean
 * over the batch. */
clv_code clv_loss_graph(const char *kind, const clv_shape *pred, int64_t batch, clv_graph **ret,
                        clv_err *err) CLV_USE_RESULT;
/* As clv_loss_graph, for the loss of a session with its attributes. */
clv_code clv_session_loss_graph(const clv_session_config *config, const clv_shape *pred,
                                int64_t batch, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
