/* SPDX-License-Identifier: Apache-2.0
 *
 * privacy_int: what the files about findings know for each other. privacy.c makes findings,
 * privacy_refuse.c refuses sessions for them, privacy_describe.c prints them for `plan`.
 */
#ifndef CLEAVE_MASTER_PRIVACY_INT_H
#define CLEAVE_MASTER_PRIVACY_INT_H

#include "master/plan/plan_int.h"
#include "master/reach/reach.h"

#define CLV_NO_PATH UINT32_MAX

typedef struct clv_layer_facts {
  uint32_t stage;
  uint32_t weights_at; /* the stage whose weights it has */
  bool frozen, weighs; /* weighs: it has weights of rank 2 or more */
  bool drawn;          /* each of its weights is, though others of the stage are not */
} clv_layer_facts;

/* The whole model; arrays by node. */
typedef struct clv_privacy_view {
  const clv_blueprint *b;
  const clv_graph *g;
  bool all_home;   /* as if the master had every layer */
  bool away_known; /* as if the master had those of workers, who know them */
  clv_layer_facts of[CLV_MAX_NODES];
  clv_reach_layer layers[CLV_MAX_NODES];
  clv_reach reach[CLV_MAX_NODES], gradient[CLV_MAX_NODES]; /* of records, of labels */
  clv_reach returned[CLV_MAX_NODES]; /* of records, in gradients; all 0: nothing */
  clv_findings shows[CLV_MAX_NODES];
  uint32_t front[CLV_MAX_NODES]; /* layers that hide on the shortest way from the records */
  uint32_t head[CLV_MAX_NODES];  /* secret layers that learn on the shortest way to the loss */
  uint32_t until[CLV_MAX_NODES]; /* the last layer that reads the value */
} clv_privacy_view;

/* Facts of layers alone, and all; to be freed. */
clv_code clv_privacy_view_new(const clv_blueprint *b, bool all_home, clv_privacy_view **ret,
                              clv_err *err) CLV_USE_RESULT;
clv_code clv_privacy_view_analyze(const clv_blueprint *b, bool all_home, clv_privacy_view **ret,
                                  clv_err *err) CLV_USE_RESULT;

bool clv_privacy_is_input(const clv_privacy_view *v, int k);
bool clv_privacy_is_at_master(const clv_privacy_view *v, int k);
bool clv_privacy_is_mixing(const clv_privacy_view *v, int k); /* at home, by weights */
/* Why a layer that mixes hides nothing, whatever it sums; NULL: no reason. */
const char *clv_privacy_why_hides_nothing(const clv_privacy_view *v, int k, bool labels);
/* Secret layers that learn, from the output of node k on with k itself. */
uint32_t clv_privacy_head_through(const clv_privacy_view *v, int k);
/* The input of node k, and the value behind a layer, that shows most. */
int clv_privacy_worst_input(const clv_privacy_view *v, int k);
int clv_privacy_worst_crossing(const clv_privacy_view *v, uint32_t last);
bool clv_privacy_is_crossing(const clv_privacy_view *v, int k, uint32_t last);

/* What the gradient of node k shows of the records. */
clv_findings clv_privacy_returned(const clv_privacy_view *v, int k);
/* Of a stage at a worker, its name in the session. */
/* True if what crosses the end of a stage has a vector for each place, not one for each record. */
bool clv_privacy_has_vector_per_place(const clv_blueprint *b, uint32_t stage);
const char *clv_privacy_worker_name(const clv_blueprint *b, uint32_t stage);
/* Is a gradient sent to the worker of stage i? */
bool clv_privacy_has_gradient(const clv_blueprint *b, uint32_t i);
/* What inputs of stage i show to its worker; false: it is at home, or reads none. */
bool clv_privacy_findings_of_leaves(const clv_blueprint *b, uint32_t i, clv_findings *ret);

#endif
