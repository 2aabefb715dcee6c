/* SPDX-License-Identifier: Apache-2.0
 *
 * models_int: what the files of this folder share. A named architecture is a function over its
 * arguments that appends nodes through a builder; the stages' ranges are looked up in the finished
 * graph.
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
  uint32_t *layer; /* counts the layers */
  int *last;       /* node that they continue from and end at */
} clv_arch_builder;

/* One node over `in`, with its values, as the next layer; name NULL: called by its number. */
clv_code clv_arch_node(clv_arch_builder *b, clv_op op, const char *name,
                       const clv_attr_value *values, int n, const int *in, int n_in,
                       clv_err *err) CLV_USE_RESULT;
clv_attr_value clv_arch_int_attr(clv_attr_key key, int64_t v);

/* Appends the layers of the session's named architecture; *layer counts them, *last is the node
 * they continue from and end at. */
clv_code clv_arch_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer, int *last,
                         clv_err *err) CLV_USE_RESULT;
clv_code clv_arch_resnet(const clv_arch_args *a, clv_arch_builder *b, clv_err *err) CLV_USE_RESULT;

/* The nodes that a layer reads: those its `from` names, or in[0] as it is. */
clv_code clv_layer_inputs(const clv_session_config *c, const clv_layer_spec *spec, clv_op op,
                          const clv_graph *g, int in[CLV_MAX_IN], int *n_in,
                          clv_err *err) CLV_USE_RESULT;
/* The layer's value, of node `node`, has a row for each record. */
clv_code clv_layer_check_batch_dim(const clv_session_config *c, const clv_layer_spec *spec,
                                   const clv_graph *g, int node, clv_err *err) CLV_USE_RESULT;
/* Each layer but the last is read by a later one. */
clv_code clv_layers_check_read(const clv_session_config *c, const clv_graph *g,
                               clv_err *err) CLV_USE_RESULT;

/* What crosses behind each stage can go as one tensor; last: [n_stages]. */
clv_code clv_stage_cuts_check(const clv_session_config *c, const clv_graph *g, const uint32_t *last,
                              clv_err *err) CLV_USE_RESULT;
/* One value crosses behind layer `last`, where the stage ends. */
clv_code clv_stage_check_single_output(const clv_session_config *c, const clv_graph *g,
                                       size_t stage, uint32_t last, clv_err *err) CLV_USE_RESULT;

/* The same of the session's model.hf; and whether its records are tokens. */
clv_code clv_hf_model_layers(const clv_session_config *c, clv_graph *g, uint32_t *layer, int *last,
                             clv_err *err) CLV_USE_RESULT;
bool clv_hf_model_takes_tokens(const clv_session_config *c);

/* Of the graph of a model, in which a node for each layer stands behind the inputs: their number, a
 * layer's name without the model's prefix, and the layers that are called `block` or so and a dot.
 */
uint32_t clv_model_n_inputs(const clv_graph *g);
const char *clv_layer_name(const clv_graph *g, uint32_t layer);
bool clv_find_layers(const clv_graph *g, const char *block, uint32_t *ret_first,
                     uint32_t *ret_last);
/* A range as layers of the whole graph; errors are at `pos`, and of the stage. */
clv_code clv_stage_find_range(const clv_session_config *c, const clv_graph *g,
                              const clv_stage_spec *s, clv_config_pos pos,
                              const clv_layer_range *range, uint32_t *ret_first, uint32_t *ret_last,
                              clv_err *err) CLV_USE_RESULT;

/* One stage's range as layers of the whole graph. */
clv_code clv_stage_range(const clv_session_config *c, const clv_graph *g, size_t stage,
                         uint32_t *ret_first, uint32_t *ret_last, clv_err *err) CLV_USE_RESULT;

/* Marks the layers of the stages' recompute_blocks. */
clv_code clv_stage_mark_recompute(const clv_session_config *c, clv_graph *g, const uint32_t *first,
                                  const uint32_t *last, clv_err *err) CLV_USE_RESULT;

/* The stages' ranges as layers of the whole graph: they follow each other without a gap. */
clv_code clv_stage_ranges(const clv_session_config *c, const clv_graph *g, uint32_t *ret_first,
                          uint32_t *ret_last, clv_err *err) CLV_USE_RESULT;

#endif
