/* SPDX-License-Identifier: Apache-2.0
 *
 * privacy_int: types and functions that the privacy files share. privacy.c computes findings,
 * privacy_refuse.c refuses sessions for them, privacy_describe.c prints them for `plan`.
 */
#ifndef CLEAVE_MASTER_PRIVACY_INT_H
#define CLEAVE_MASTER_PRIVACY_INT_H

#include "master/plan/plan_int.h"
#include "master/reach/reach.h"

#define CLV_NO_PATH UINT32_MAX

/* Stage and weights of one layer. */
typedef struct clv_layer_facts {
  uint32_t stage;                  /* stage of the layer */
  uint32_t weights_at;             /* stage that has its weights; differs from `stage` by a tie */
  bool frozen, has_matrix_weights; /* has_matrix_weights: it has weights of rank 2 or more */
  bool drawn; /* weights.new names each of its weights: they start from the seed */
} clv_layer_facts;

/* Analysis of the full model. Arrays are indexed by node. */
typedef struct clv_privacy_view {
  const clv_blueprint *b;
  const clv_graph *g;
  bool all_at_master;     /* analyze as if the master had every layer */
  bool worker_layers_mix; /* count layers of workers as layers with known weights, which mix */
  clv_layer_facts of[CLV_MAX_NODES];
  clv_reach_layer layers[CLV_MAX_NODES];
  clv_reach reach[CLV_MAX_NODES];    /* of records, in values */
  clv_reach gradient[CLV_MAX_NODES]; /* of labels, in gradients */
  clv_reach returned[CLV_MAX_NODES]; /* of records, in gradients; all 0: nothing */
  clv_findings shows[CLV_MAX_NODES];
  uint32_t front[CLV_MAX_NODES]; /* hiding layers on the shortest path from the records */
  uint32_t head[CLV_MAX_NODES];  /* secret learning layers on the shortest path to the loss */
  uint32_t until[CLV_MAX_NODES]; /* the last layer that reads the value */
} clv_privacy_view;

/* _new fills the facts of layers alone, _analyze all fields. The caller frees the view. */
clv_code clv_privacy_view_new(const clv_blueprint *b, bool all_at_master, clv_privacy_view **ret,
                              clv_err *err) CLV_USE_RESULT;
clv_code clv_privacy_view_analyze(const clv_blueprint *b, bool all_at_master,
                                  clv_privacy_view **ret, clv_err *err) CLV_USE_RESULT;

bool clv_privacy_is_input(const clv_privacy_view *v, int k);
bool clv_privacy_is_at_master(const clv_privacy_view *v, int k);
/* True if the master has the layer and it mixes by weights. */
bool clv_privacy_is_mixing(const clv_privacy_view *v, int k);
/* Why the weights of a mixing layer hide nothing, text for messages; NULL: they are secret. */
const char *clv_privacy_why_hides_nothing(const clv_privacy_view *v, int k, bool labels);
/* Number of secret learning layers from node k, inclusive, to the loss. */
uint32_t clv_privacy_head_through(const clv_privacy_view *v, int k);
/* The input of node k, and the value that crosses behind layer `last`, with the worst finding. */
int clv_privacy_worst_input(const clv_privacy_view *v, int k);
int clv_privacy_worst_crossing(const clv_privacy_view *v, uint32_t last);
bool clv_privacy_is_crossing(const clv_privacy_view *v, int k, uint32_t last);

/* Findings of records in the gradient of node k. */
clv_findings clv_privacy_returned(const clv_privacy_view *v, int k);
/* True if the value at the end of a stage has a vector for each place, not one for each record. */
bool clv_privacy_has_vector_per_place(const clv_blueprint *b, uint32_t stage);
/* Name in the session of the worker that has the stage. */
const char *clv_privacy_worker_name(const clv_blueprint *b, uint32_t stage);
/* True if the worker of stage i receives a gradient of its output. */
bool clv_privacy_has_gradient(const clv_blueprint *b, uint32_t i);
/* Findings of the model inputs that the worker of stage i receives; false: the master has the
 * stage, or it reads no input. */
bool clv_privacy_findings_of_leaves(const clv_blueprint *b, uint32_t i, clv_findings *ret);

#endif
