/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of LoadModule; part of wire.h, which includes this file.
 */
#ifndef CLEAVE_WIRE_LOAD_INT_H
#define CLEAVE_WIRE_LOAD_INT_H

/* A graph as numbers. The decoder checks counts, that inputs are below the node's own index, that
 * outputs are inside the graph, and that numbers are finite. The graph folder checks ops and
 * keys. */
typedef struct clv_wire_attr {
  uint32_t key, n_ints, n_floats;
  int64_t *ints;
  double scalar;
  float *floats;
} clv_wire_attr;
typedef struct clv_wire_node {
  /* uncut_index: index of the node in the graph before that was cut into modules */
  uint32_t op, uncut_index, n_inputs, n_attrs;
  const char *name;
  uint32_t *input_nodes; /* [n_inputs] indices of nodes */
  clv_wire_attr *attrs;
  uint32_t recompute_block;
} clv_wire_node;
typedef struct clv_wire_graph {
  uint32_t n_nodes, n_outputs;
  clv_wire_node *nodes;
  uint32_t *output_nodes;
} clv_wire_graph;
typedef struct clv_wire_spec {
  clv_dtype dtype;
  clv_shape shape;
} clv_wire_spec;
typedef struct clv_wire_param {
  const char *name;
  clv_wire_spec tensor_spec;
  clv_sha256 digest;
} clv_wire_param;

/* Optimiser of a module: 1 + its index in common/base/settings; 0: none. */
typedef enum clv_wire_opt_kind { CLV_WIRE_OPT_NONE } clv_wire_opt_kind;
#define CLV_WIRE_OPT_OF(kind) ((clv_wire_opt_kind)((int)(kind) + 1))

typedef struct clv_wire_optimizer {
  clv_wire_opt_kind kind;
  bool steps_are_final; /* nothing is kept from before a step, so REVERT is not possible */
  CLV_OPTIM_FIELDS
  double ema; /* decay of the average of the parameters; 0: no average */
  bool ema_warmup;
} clv_wire_optimizer;

/* Parameters with settings of their own. The decoder checks that kind and final are the module's,
 * and that all groups together have at most CLV_WIRE_PARAMS names. */
typedef struct clv_wire_group {
  clv_wire_optimizer optimizer;
  uint32_t n_params;
  const char **param_names;
} clv_wire_group;

typedef enum clv_wire_init {
  CLV_WIRE_INIT_SEED,
  CLV_WIRE_INIT_PUSHED,
  CLV_WIRE_INIT_ARTIFACT,
} clv_wire_init;

/* A node whose first parameter is shared with another node. */
typedef struct clv_wire_tie {
  /* owner_module: 1 + index of the owner's module; 0: the same graph */
  uint32_t node_index, owner_module;
  const char *owner_node_name; /* name of the owner node in its module */
} clv_wire_tie;

typedef struct clv_wire_load_request {
  clv_wire_mem *mem;
  clv_wire_id session_id;
  uint64_t attempt_number;
  uint32_t module_index, module_generation, n_threads, max_calls_in_flight, n_frozen, n_new_params,
      n_inputs, n_peers, n_groups;
  uint32_t n_ties;
  clv_wire_graph graph;
  const clv_key *node_keys; /* key of each node, [graph.n_nodes] */
  /* names of the nodes that get values or gradients from the module */
  const char **peer_names;
  bool input_needs_grad;
  bool freezes_rest;     /* parameters in no group are frozen; group 0 is empty */
  bool computes_in_bf16; /* conv2d and linear compute in bf16 */
  bool allows_tf32;      /* factors may be rounded to tf32 */
  /* frozen parameters have no gradients and no optimiser moments */
  bool frozen_has_no_grads_or_moments;
  bool stores_frozen_as_bf16;   /* frozen weights of linear are bf16 */
  clv_wire_optimizer optimizer; /* group 0: learning parameters that are in none of `groups` */
  clv_wire_group *groups;       /* parameter groups 1, 2, ... */
  const char *device_name;
  /* the program's name of the module, up to CLV_WIRE_NAME bytes; may be empty */
  const char *module_name;
  clv_wire_init init_source;
  clv_wire_artifact artifact; /* artifact with the initial weights, for CLV_WIRE_INIT_ARTIFACT */
  const char **frozen_names;
  /* [n_new_params] exact names, with CLV_WIRE_INIT_ARTIFACT: initialised, not read from the
   * artifact */
  const char **new_param_names;
  clv_wire_spec *input_specs;
  clv_wire_tie *ties; /* [n_ties] ties of the graph's nodes */
} clv_wire_load_request;

typedef struct clv_wire_load_reply {
  clv_wire_mem *mem;
  uint32_t n_params, n_outputs;
  clv_wire_param *params;
  clv_wire_spec *output_specs;
  uint64_t memory_bytes;
  const char *device_name; /* device on which the worker has put the module, such as "cpu" */
} clv_wire_load_reply;

#endif
