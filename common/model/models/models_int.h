/* SPDX-License-Identifier: Apache-2.0
 *
 * models_int: functions that the files of this folder share. models.c builds the uncut graph of a
 * session: a named architecture is a function that appends nodes with a builder (arch.c, resnet.c),
 * a config.json is read by hf.c, and the layers of a file by models.c itself. Afterwards ranges.c
 * looks up the ranges of the stages in the graph, and blocks.c marks recompute blocks.
 */
#ifndef CLEAVE_MODELS_INT_H
#define CLEAVE_MODELS_INT_H

#include "common/model/models/models.h"

/* Settings of a named architecture, from the attributes of `model:`. */
typedef struct clv_arch_args {
  clv_arch arch;
  int64_t hidden_widths[CLV_MAX_RANK];
  int n_hidden;
  int64_t width, n_classes;
  double dropout;
  bool batchnorm;
  clv_op activation;
} clv_arch_args;

typedef struct clv_arch_builder {
  clv_graph *g;
  uint32_t *next_layer; /* number of the next layer to add */
  int *last_node;       /* last node added, which the next node reads */
} clv_arch_builder;

/* Adds the next layer: a node that reads the nodes `in`. values: its attributes. name NULL: the
 * layer's number is its name. */
clv_code clv_arch_add_node(clv_arch_builder *b, clv_op op, const char *name,
                           const clv_attr_value *values, int n, const int *in, int n_in,
                           clv_err *err) CLV_USE_RESULT;
clv_attr_value clv_arch_make_int_attr(clv_attr_key key, int64_t v);

/* Appends the layers of the session's named architecture. *layer: in, number of the first layer;
 * out, number behind the last one. *last: in, the node that the first layer reads; out, the node of
 * the last layer. */
clv_code clv_arch_add_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer, int *last,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_arch_add_resnet(const clv_arch_args *a, clv_arch_builder *b,
                             clv_err *err) CLV_USE_RESULT;

/* Sets `in` to the nodes that the layer's `from` names. Without `from` leaves in[0] unchanged.
 * Fails for unknown names and for a wrong number of inputs. */
clv_code clv_layer_find_inputs(const clv_session_config *c, const clv_layer_spec *spec, clv_op op,
                               const clv_graph *g, int in[CLV_MAX_IN], int *n_in,
                               clv_err *err) CLV_USE_RESULT;
/* Checks that dimension 0 of the value of a layer, whose node is `node`, still counts records. */
clv_code clv_layer_check_batch_dim(const clv_session_config *c, const clv_layer_spec *spec,
                                   const clv_graph *g, int node, clv_err *err) CLV_USE_RESULT;
/* Checks that each layer, except the last one, is read by a later layer. */
clv_code clv_layers_check_read(const clv_session_config *c, const clv_graph *g,
                               clv_err *err) CLV_USE_RESULT;

/* Checks for each stage that the values that cross the cut behind it can be joined into one tensor.
 * last: [n_stages] last layer of each stage. */
clv_code clv_stages_check_cuts(const clv_session_config *c, const clv_graph *g,
                               const uint32_t *last, clv_err *err) CLV_USE_RESULT;
/* Checks that only one value crosses the cut behind layer `last`, where the stage ends. */
clv_code clv_stage_check_single_output(const clv_session_config *c, const clv_graph *g,
                                       size_t stage, uint32_t last, clv_err *err) CLV_USE_RESULT;

/* As clv_arch_add_layers, but appends the layers of the session's model.hf. */
clv_code clv_hf_model_add_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer,
                                 int *last, clv_err *err) CLV_USE_RESULT;
/* True if the session's model.hf reads tokens, or if its config.json cannot be read. */
bool clv_hf_model_takes_tokens(const clv_session_config *c);

/* Returns the number of inputs of g. This function and those below take the uncut graph of a model,
 * which has its input nodes first and then one node for each layer. */
uint32_t clv_model_n_inputs(const clv_graph *g);
/* Returns the name of a layer without the model's prefix. */
const char *clv_layer_name(const clv_graph *g, uint32_t layer);
/* Finds the first and the last layer that are named `block` or `block`.SOMETHING. Returns false if
 * there is none. */
bool clv_block_find_layers(const clv_graph *g, const char *block, uint32_t *ret_first,
                           uint32_t *ret_last);
/* Finds the first and the last layer of a range. Errors name the stage and give the position `pos`.
 */
clv_code clv_range_find_layers(const clv_session_config *c, const clv_graph *g,
                               const clv_stage_spec *s, clv_config_pos pos,
                               const clv_layer_range *range, uint32_t *ret_first,
                               uint32_t *ret_last, clv_err *err) CLV_USE_RESULT;

/* Finds the first and the last layer of a stage's range. */
clv_code clv_stage_find_layers(const clv_session_config *c, const clv_graph *g, size_t stage,
                               uint32_t *ret_first, uint32_t *ret_last,
                               clv_err *err) CLV_USE_RESULT;

/* Marks the layers that stages[].recompute_blocks names as recompute blocks. first, last:
 * [n_stages] layers of each stage. */
clv_code clv_stage_mark_recompute(const clv_session_config *c, clv_graph *g, const uint32_t *first,
                                  const uint32_t *last, clv_err *err) CLV_USE_RESULT;

/* Finds the layers of all stages, and checks that the ranges follow each other and cover the model.
 */
clv_code clv_stages_find_layers(const clv_session_config *c, const clv_graph *g,
                                uint32_t *ret_first, uint32_t *ret_last,
                                clv_err *err) CLV_USE_RESULT;

#endif
