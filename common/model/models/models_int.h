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

/* The session's settings for an architecture. */
typedef struct clv_arch_args {
  clv_arch arch;
  int64_t hidden[CLV_MAX_RANK];
  int n_hidden;
  int64_t width, classes;
  double dropout;
  bool batchnorm;
  clv_op activation;
} clv_arch_args;

typedef struct clv_arch_builder {
  clv_graph *g;
  uint32_t *layer; /* number of the next layer */
  int *last;       /* last node added; the next one reads it */
} clv_arch_builder;

/* Adds the next layer: a node that reads `in`. values: its attributes; name NULL: named by its
 * number. */
clv_code clv_arch_node(clv_arch_builder *b, clv_op op, const char *name,
                       const clv_attr_value *values, int n, const int *in, int n_in,
                       clv_err *err) CLV_USE_RESULT;
clv_attr_value clv_arch_int_attr(clv_attr_key key, int64_t v);

/* Appends the layers of the session's named architecture. *layer: number of the next layer; *last:
 * the node that the first of them reads, afterwards the last of them. */
clv_code clv_arch_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer, int *last,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_arch_resnet(const clv_arch_args *a, clv_arch_builder *b, clv_err *err) CLV_USE_RESULT;

/* Finds the nodes that a layer reads: those that its `from` names. Without `from` in[0] stays. */
clv_code clv_layer_inputs(const clv_session_config *c, const clv_layer_spec *spec, clv_op op,
                          const clv_graph *g, int in[CLV_MAX_IN], int *n_in,
                          clv_err *err) CLV_USE_RESULT;
/* Checks that the value of a layer, whose node is `node`, still has a row for each record. */
clv_code clv_layer_check_batch_dim(const clv_session_config *c, const clv_layer_spec *spec,
                                   const clv_graph *g, int node, clv_err *err) CLV_USE_RESULT;
/* Checks that a later layer reads each layer but the last. */
clv_code clv_layers_check_read(const clv_session_config *c, const clv_graph *g,
                               clv_err *err) CLV_USE_RESULT;

/* Checks that the values that cross behind each stage can be one tensor. last: [n_stages]
 * layers. */
clv_code clv_stage_cuts_check(const clv_session_config *c, const clv_graph *g, const uint32_t *last,
                              clv_err *err) CLV_USE_RESULT;
/* Checks that only one value crosses behind layer `last`, the end of the stage. */
clv_code clv_stage_check_single_output(const clv_session_config *c, const clv_graph *g,
                                       size_t stage, uint32_t last, clv_err *err) CLV_USE_RESULT;

/* As clv_arch_layers, for the session's model.hf. */
clv_code clv_hf_model_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer, int *last,
                             clv_err *err) CLV_USE_RESULT;
/* True if the records of the session's model.hf are tokens, or if its config cannot be read. */
bool clv_hf_model_takes_tokens(const clv_session_config *c);

/* The functions below take the uncut graph of a model, which has first its inputs and then a node
 * for each layer. Returns the number of inputs. */
uint32_t clv_model_n_inputs(const clv_graph *g);
/* Returns the name of a layer without the model's prefix. */
const char *clv_layer_name(const clv_graph *g, uint32_t layer);
/* Finds the first and the last layer named `block` or `block`.SOMETHING; false: none. */
bool clv_find_layers(const clv_graph *g, const char *block, uint32_t *ret_first,
                     uint32_t *ret_last);
/* Finds the layers of a range. Errors name the stage and point at `pos`. */
clv_code clv_stage_find_range(const clv_session_config *c, const clv_graph *g,
                              const clv_stage_spec *s, clv_config_pos pos,
                              const clv_layer_range *range, uint32_t *ret_first, uint32_t *ret_last,
                              clv_err *err) CLV_USE_RESULT;

/* Finds the layers of one stage's range. */
clv_code clv_stage_range(const clv_session_config *c, const clv_graph *g, size_t stage,
                         uint32_t *ret_first, uint32_t *ret_last, clv_err *err) CLV_USE_RESULT;

/* Marks the layers of the stages' recompute_blocks. */
clv_code clv_stage_mark_recompute(const clv_session_config *c, clv_graph *g, const uint32_t *first,
                                  const uint32_t *last, clv_err *err) CLV_USE_RESULT;

/* Finds the layers of all stages, and checks that their ranges cover the model without a gap. */
clv_code clv_stage_ranges(const clv_session_config *c, const clv_graph *g, uint32_t *ret_first,
                          uint32_t *ret_last, clv_err *err) CLV_USE_RESULT;

#endif
