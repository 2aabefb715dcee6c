/* SPDX-License-Identifier: Apache-2.0
 *
 * What LoadModule's messages say: a part of wire.h, which includes it where it belongs.
 */
#ifndef CLEAVE_WIRE_LOAD_INT_H
#define CLEAVE_WIRE_LOAD_INT_H

/* Numbers only: what ops and keys mean, and whether they fit together, is the graph's business.
 * Checked here: counts, inputs below the node's own index, outputs inside the graph, finite
 * numbers. */
typedef struct clv_wire_attr {
  uint32_t key, n_ints, n_numbers;
  int64_t *ints;
  double number;
  float *numbers;
} clv_wire_attr;
typedef struct clv_wire_node {
  uint32_t op, layer, n_inputs, n_attrs;
  const char *name;
  uint32_t *inputs;
  clv_wire_attr *attrs;
  uint32_t recompute;
} clv_wire_node;
typedef struct clv_wire_graph {
  uint32_t n_nodes, n_outputs;
  clv_wire_node *nodes;
  uint32_t *outputs;
} clv_wire_graph;
typedef struct clv_wire_spec {
  clv_dtype dtype;
  clv_shape shape;
} clv_wire_spec;
typedef struct clv_wire_param {
  const char *name;
  clv_wire_spec spec;
  clv_sha256 digest;
} clv_wire_param;

/* 0: none; else 1 + the optimiser's place in the list of common/base/settings. */
typedef enum clv_wire_opt_kind { CLV_WIRE_OPT_NONE } clv_wire_opt_kind;
#define CLV_WIRE_OPT_OF(kind) ((clv_wire_opt_kind)((int)(kind) + 1))

typedef struct clv_wire_optimizer {
  clv_wire_opt_kind kind;
  bool final;
  CLV_OPTIM_FIELDS
} clv_wire_optimizer;

/* Parameters with settings of their own. Checked here: kind and final are the module's, and there
 * are at most CLV_WIRE_PARAMS names in all groups. */
typedef struct clv_wire_group {
  clv_wire_optimizer optimizer;
  uint32_t n_params;
  const char **params;
} clv_wire_group;

typedef enum clv_wire_init {
  CLV_WIRE_INIT_SEED,
  CLV_WIRE_INIT_PUSHED,
  CLV_WIRE_INIT_ARTIFACT,
} clv_wire_init;

/* A node's first parameter that is another node's. */
typedef struct clv_wire_tie {
  uint32_t node, module; /* module: 1 + the index of the owner's; 0: it is in the same graph */
  const char *owner;     /* the node's name there */
} clv_wire_tie;

typedef struct clv_wire_load_request {
  clv_wire_mem *mem;
  clv_wire_id session;
  uint64_t epoch;
  uint32_t module, generation, threads, in_flight, n_frozen, n_fresh, n_inputs, n_peers, n_groups;
  uint32_t n_ties;
  clv_wire_graph graph;
  const clv_key *keys; /* [graph.n_nodes] */
  const char **peers;  /* for values and gradients */
  bool input_needs_grad;
  bool hold_rest;               /* nobody is in group 0 */
  bool bf16;                    /* conv2d and linear compute in it */
  bool tf32;                    /* factors may be rounded to it */
  bool fixed;                   /* what is frozen has no gradients and no moments */
  bool frozen_bf16;             /* and weights of linear among that are bf16 */
  clv_wire_optimizer optimizer; /* group 0: what learns and is in none of `groups` */
  clv_wire_group *groups;       /* 1.. */
  const char *device;
  const char *name; /* the program's for the module, up to CLV_WIRE_NAME bytes; may be empty */
  clv_wire_init init;
  clv_wire_artifact artifact; /* with CLV_WIRE_INIT_ARTIFACT */
  const char **frozen;
  const char **fresh; /* [n_fresh] exact names, with CLV_WIRE_INIT_ARTIFACT: not of the artifact */
  clv_wire_spec *inputs;
  clv_wire_tie *ties; /* [n_ties] */
} clv_wire_load_request;

typedef struct clv_wire_load_reply {
  clv_wire_mem *mem;
  uint32_t n_params, n_outputs;
  clv_wire_param *params;
  clv_wire_spec *outputs;
  uint64_t memory_bytes;
  const char *device; /* "cpu" */
} clv_wire_load_reply;

#endif
