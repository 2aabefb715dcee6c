/* SPDX-License-Identifier: Apache-2.0
 *
 * privacy_int: types and functions that the privacy files share. privacy.c computes findings,
 * privacy_refuse.c refuses sessions for them, privacy_describe.c prints them for `plan`.
 */
#ifndef CLEAVE_MASTER_PRIVACY_INT_H
#define CLEAVE_MASTER_PRIVACY_INT_H

#include "master/plan/plan_int.h"
#include "master/reach/reach.h"

/* number of hiding layers if there is no path on which to count them */
#define CLV_NO_PATH UINT32_MAX

/* Facts about a layer: the stages that have it and its weights, and whether the weights are frozen
 * or start from the seed. */
typedef struct clv_layer_facts {
  uint32_t stage; /* stage that has the layer */
  /* stage that owns the layer's weights; another stage if the weights are tied */
  uint32_t weights_stage;
  bool is_frozen, has_matrix_weights; /* has_matrix_weights: some weight has rank 2 or more */
  /* weights.new names each weight of the layer, so all start from the seed */
  bool starts_from_seed;
} clv_layer_facts;

/* Analysis of the full model: what workers could read of records and labels. All arrays are indexed
 * by node. */
typedef struct clv_privacy_view {
  const clv_blueprint *b;
  const clv_graph *g;
  bool assumes_all_at_master; /* analyse as if the master had every layer */
  bool worker_layers_mix;     /* layers at workers count as mixing, with weights that are known */
  clv_layer_facts layers[CLV_MAX_NODES];
  /* what workers know of the layer's weights: secret, known to a worker, or at a worker */
  clv_weight_secrecy layer_secrecy[CLV_MAX_NODES];
  /* summary of the elements of the node's value that depend on the record (reach.h) */
  clv_reach record_reach[CLV_MAX_NODES];
  /* summary of the elements of the node's gradient that depend on labels (reach.h) */
  clv_reach label_reach[CLV_MAX_NODES];
  /* summary of the elements of the node's gradient that depend on the record; all 0: none do */
  clv_reach record_gradient_reach[CLV_MAX_NODES];
  /* [node] ways in which records (not labels) can be read from the node's value */
  clv_findings record_findings[CLV_MAX_NODES];
  /* fewest hiding layers on a path from the records to the node */
  uint32_t n_front_layers[CLV_MAX_NODES];
  /* fewest secret learning layers on a path from the node to the loss */
  uint32_t n_head_layers[CLV_MAX_NODES];
  uint32_t last_reader[CLV_MAX_NODES]; /* last layer that reads the value */
} clv_privacy_view;

/* Make a view, the analysis of a blueprint; the caller frees it. _new fills only `layers` and
 * last_reader, _analyze all fields. */
clv_code clv_privacy_view_new(const clv_blueprint *b, bool assumes_all_at_master,
                              clv_privacy_view **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_privacy_view_analyze(const clv_blueprint *b, bool assumes_all_at_master,
                                  clv_privacy_view **ret, clv_err *err) CLV_USE_RESULT;

bool clv_privacy_is_input(const clv_privacy_view *v, int k);
bool clv_privacy_is_at_master(const clv_privacy_view *v, int k);
/* True if the layer is at the master and mixes its inputs by weights. */
bool clv_privacy_is_mixing(const clv_privacy_view *v, int k);
/* Returns, as text for messages, why the weights of a mixing layer hide nothing. NULL: the weights
 * are secret, so they hide records or labels. is_for_labels: true asks about labels in gradients,
 * which weights that do not learn cannot hide; false asks about records in values. */
const char *clv_privacy_why_hides_nothing(const clv_privacy_view *v, int k, bool is_for_labels);
/* Returns the fewest secret learning layers on a path from node k to the loss; node k itself
 * counts, too. */
uint32_t clv_privacy_count_head_layers(const clv_privacy_view *v, int k);
/* Return the node with the worst finding. _worst_input searches the inputs of node k,
 * _worst_crossing the values that cross behind layer `last_layer` (-1: no value crosses). */
int clv_privacy_find_worst_input(const clv_privacy_view *v, int k);
int clv_privacy_find_worst_crossing(const clv_privacy_view *v, uint32_t last_layer);
bool clv_privacy_is_crossing(const clv_privacy_view *v, int k, uint32_t last_layer);

/* Returns the ways in which records (not labels) can be read from the gradient of node k. */
clv_findings clv_privacy_gradient_findings(const clv_privacy_view *v, int k);
/* True if a value that is sent behind the stage has a vector per position, not one per record. */
bool clv_privacy_has_vector_per_position(const clv_blueprint *b, uint32_t stage);
/* Returns the name of the worker that has the stage. */
const char *clv_privacy_get_worker_name(const clv_blueprint *b, uint32_t stage);
/* True if the worker of stage i receives the gradient of the stage's output. */
bool clv_privacy_has_gradient(const clv_blueprint *b, uint32_t i);
/* Returns the findings of the model inputs that the worker of stage i receives. False: the master
 * has the stage, or the stage reads no model input. */
bool clv_privacy_collect_input_findings(const clv_blueprint *b, uint32_t i, clv_findings *ret);

#endif
