/* SPDX-License-Identifier: Apache-2.0
 *
 * models: builds the uncut graph of a session from the layers of its file, a named architecture or
 * a config.json (clv_model_graph_of_inputs, clv_model_graph), and the graph of its loss.
 *
 * A model is a list of layers, each of which reads the one before it or those that its `from`
 * names. A stage has consecutive layers of it, as a list of its own or as a range of `model`.
 * Layers are numbered over all stages, so that names, initial weights and dropout are the same
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

/* Returns one input named "input": f32, or i64 if the model takes tokens. */
clv_model_inputs clv_model_one_input(const clv_session_config *config, const clv_shape *shape);

/* Builds the uncut graph of all stages of a session. The first layer reads the first input, unless
 * its `from` says otherwise. ret_first_layer, ret_last_layer: [n_stages], the layers of each stage
 * (both included, at least one), for clv_graph_slice. CLV_INVALID: the text points at the layer in
 * the session file (file:line:column) and names op, attribute or shape with a suggestion. */
clv_code clv_model_graph_of_inputs(const clv_session_config *config, const clv_model_inputs *inputs,
                                   clv_graph **ret_whole, uint32_t *ret_first_layer,
                                   uint32_t *ret_last_layer, clv_err *err) CLV_USE_RESULT;

/* As clv_model_graph_of_inputs, with one input of shape `input_sample` ([N, ...]). */
clv_code clv_model_graph(const clv_session_config *config, const clv_shape *input_sample,
                         clv_graph **ret_whole, uint32_t *ret_first_layer, uint32_t *ret_last_layer,
                         clv_err *err) CLV_USE_RESULT;

/* True if the first layer is an embedding, so that the input holds token numbers, i64. */
bool clv_model_takes_tokens(const clv_session_config *config);
/* True if the first layer takes only [N, a, b], as an lstm and a conv1d do. */
bool clv_model_takes_sequences(const clv_session_config *config);
/* True if records [N, a, b] may be sequences or images: the first layer neither takes only images
 * nor gives the same result for both. */
bool clv_model_takes_anything(const clv_session_config *config);

/* Builds the graph of the complete `model:`, independently of the stages. */
clv_code clv_model_full_graph(const clv_session_config *config, const clv_shape *input_sample,
                              clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* Builds the graph of the first stage, which may begin anywhere in `model:`. input_sample: shape of
 * the input of the complete model. */
clv_code clv_model_first_stage_graph(const clv_session_config *config,
                                     const clv_shape *input_sample, clv_graph **ret,
                                     clv_err *err) CLV_USE_RESULT;

/* Checks the config.json of `model.hf`, if there is one. CLV_INVALID points at model.hf in the
 * session file, and then at the place in the config. */
clv_code clv_model_check(const clv_session_config *config, clv_err *err) CLV_USE_RESULT;

/* Treatment of padding in transformers for a model by `model.hf`. */
typedef struct clv_model_padding {
  int64_t token;          /* padding token; -1: none; -2: a number that no token has */
  bool numbers_places;    /* positions are numbered without padding */
  bool scores_last_token; /* the head classifies the last token that is no padding */
  bool shifts_labels;     /* a position is compared with the label of the next one */
} clv_model_padding;
/* Returns token -1 and false for another model, or if its config.json cannot be read. */
clv_model_padding clv_model_padding_of(const clv_session_config *config);

/* Returns the family of a model by `model.hf`; -1: another model, or its config.json cannot be
 * read. */
int clv_model_family(const clv_session_config *config);
enum { CLV_PEFT_PARAM = 256 };
/* Returns the name that peft's files use for a parameter or a module of that family. */
const char *clv_model_peft_name(int family, const char *name, char ret[CLV_PEFT_PARAM]);

/* True if the op of that name is a loss whose targets are class numbers, i64. */
bool clv_loss_has_labels(const char *kind);

/* Builds the graph of a loss, given its op name ("cross_entropy"). Input 0, "prediction", has the
 * shape `pred` with N replaced by `batch`. Input 1, "target", holds i64 class numbers for losses
 * with labels ([N], or [N, S] for predictions [N, S, classes]), else f32 of the prediction's shape.
 * The output [] is the mean over the batch. */
clv_code clv_loss_graph(const char *kind, const clv_shape *pred, int64_t batch, clv_graph **ret,
                        clv_err *err) CLV_USE_RESULT;
/* As clv_loss_graph, for the loss of a session with its attributes. */
clv_code clv_session_loss_graph(const clv_session_config *config, const clv_shape *pred,
                                int64_t batch, clv_graph **ret, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
