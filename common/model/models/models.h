/* SPDX-License-Identifier: Apache-2.0
 *
 * models: builds the uncut graph of a session from the layers of its file, a named architecture or
 * a config.json (clv_model_make_graph_of_inputs, clv_model_make_graph), and the graph of its loss.
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

/* Inputs of a model: name, type and shape [N, ...] of each. */
typedef struct clv_model_inputs {
  size_t n;
  struct {
    char name[CLV_NAME_MAX];
    clv_dtype dtype;
    clv_shape shape;
  } inputs[CLV_MAX_INPUTS];
} clv_model_inputs;

/* Describes a single input named "input" of this shape. Its type is i64 if the model takes tokens,
 * else f32. */
clv_model_inputs clv_model_describe_input(const clv_session_config *config, const clv_shape *shape);

/* Builds the uncut graph of all stages of a session. The first layer reads the first input, unless
 * its `from` says otherwise. ret_first_layer, ret_last_layer: [n_stages], the layers of each stage
 * (both included, at least one), for clv_graph_slice. CLV_INVALID: the text points at the layer in
 * the session file (file:line:column) and names op, attribute or shape with a suggestion. */
clv_code clv_model_make_graph_of_inputs(const clv_session_config *config,
                                        const clv_model_inputs *inputs, clv_graph **ret_whole,
                                        uint32_t *ret_first_layer, uint32_t *ret_last_layer,
                                        clv_err *err) CLV_USE_RESULT;

/* As clv_model_make_graph_of_inputs, with a single input "input" of shape `input_sample` ([N,
 * ...]). */
clv_code clv_model_make_graph(const clv_session_config *config, const clv_shape *input_sample,
                              clv_graph **ret_whole, uint32_t *ret_first_layer,
                              uint32_t *ret_last_layer, clv_err *err) CLV_USE_RESULT;

/* True if the model's input holds token numbers, i64: its first layer is an embedding, or model.hf
 * reads tokens. */
bool clv_model_takes_tokens(const clv_session_config *config);
/* True if the model's first layer accepts only inputs [N, a, b], as an lstm and a conv1d do. */
bool clv_model_takes_sequences(const clv_session_config *config);
/* True if the first layer does not tell whether records [N, a, b] are sequences or images: it does
 * not require images, and its result would differ between the two. */
bool clv_model_takes_sequences_or_images(const clv_session_config *config);

/* Builds the graph of the complete `model:` of the session, without regard to stages. */
clv_code clv_model_make_full_graph(const clv_session_config *config, const clv_shape *input_sample,
                                   clv_graph **ret, clv_err *err) CLV_USE_RESULT;

/* Builds the graph of the first stage, whose range may begin at any layer of `model:`.
 * input_sample: shape of the input of the complete model. */
clv_code clv_model_make_first_stage_graph(const clv_session_config *config,
                                          const clv_shape *input_sample, clv_graph **ret,
                                          clv_err *err) CLV_USE_RESULT;

/* Checks the config.json of `model.hf`, if the session has one. CLV_INVALID: the text has the
 * position of model.hf in the session file, then the position in config.json. */
clv_code clv_model_check_hf(const clv_session_config *config, clv_err *err) CLV_USE_RESULT;

/* How transformers treats padding for the model of `model.hf`. */
typedef struct clv_model_padding {
  /* number of the padding token; -1: the config names none; -2: it names a negative number, so no
   * token is padding */
  int64_t padding_token;
  bool skips_padding_positions; /* positions count only tokens that are no padding */
  bool scores_last_token; /* the head classifies a sequence by its last token that is no padding */
  /* the loss compares the output of a position with the label of the next position */
  bool shifts_labels;
} clv_model_padding;
/* Describes the padding of the session's model. For a model without `hf`, or whose config.json
 * cannot be read, token is -1 and the flags are false. */
clv_model_padding clv_model_padding_of(const clv_session_config *config);

/* Returns the clv_hf_family of the session's model; -1: the model is not by `hf`, or its
 * config.json cannot be read. */
int clv_model_hf_family(const clv_session_config *config);
enum { CLV_PEFT_PARAM = 256 };
/* Returns the name that files of peft use for a parameter or module `name`. family: as
 * clv_model_hf_family returns it. */
const char *clv_model_peft_name(int family, const char *name, char ret[CLV_PEFT_PARAM]);

/* True if `kind` names an op that is a loss whose targets are class numbers (i64). */
bool clv_loss_has_labels(const char *kind);

/* Builds the graph of a loss, given its op name ("cross_entropy"). Input 0, "prediction", has the
 * shape `pred` with N replaced by `batch`. Input 1, "target", holds i64 class numbers for losses
 * with labels ([N], or [N, S] for predictions [N, S, classes]), else f32 of the prediction's shape.
 * The output [] is the mean over the batch. */
clv_code clv_loss_make_graph(const char *kind, const clv_shape *pred, int64_t batch,
                             clv_graph **ret, clv_err *err) CLV_USE_RESULT;
/* As clv_loss_make_graph, for the loss that the session file describes, with its weights and
 * options. */
clv_code clv_session_make_loss_graph(const clv_session_config *config, const clv_shape *pred,
                                     int64_t batch, clv_graph **ret, clv_err *err) CLV_USE_RESULT;
/* Returns the number of mask columns that a target adds to the f32 input of the loss of several
 * targets. They say where labels are missing, and the weights of the other labels. 0: no label may
 * be missing, and all weights are equal; 1: a loss with ignore_index; 2: other losses. */
size_t clv_target_mask_width(const clv_target_spec *s);
/* Returns the width of the f32 input of the loss of several targets: one column for each target
 * without classes, then the columns of clv_target_mask_width of each target. */
size_t clv_targets_number_width(const clv_session_config *c);
/* Builds the graph of the loss of one target (loss.targets), without its loss_weight. Inputs:
 * predictions [batch, width of the target] f32, and labels [batch, 1] f32 or, of classes, [batch]
 * i64. The graph that clv_session_make_loss_graph builds for several targets is the sum of all,
 * each times its loss_weight. Its inputs are the predictions of all targets, [N, widths]; then, if
 * there are any, the labels that are numbers and the masks, [N, clv_targets_number_width] f32; then
 * the classes [N] i64 of each target that has classes. clv_target_inputs (plan.h) says what masks
 * are. */
clv_code clv_target_make_loss_graph(const clv_session_config *config, size_t target, int64_t batch,
                                    clv_graph **ret, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
