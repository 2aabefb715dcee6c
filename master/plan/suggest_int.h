/* SPDX-License-Identifier: Apache-2.0
 *
 * suggest_int: the search of `plan --suggest-cuts`. suggest_cut_places.c finds the permitted cuts,
 * suggest.c searches for the best ones, and suggest_text.c prints them.
 */
#ifndef CLEAVE_SUGGEST_INT_H
#define CLEAVE_SUGGEST_INT_H

#include "master/plan/plan_int.h"

enum { MAX_SUGGESTIONS = 3 };

/* One stage of a cut plan, with its costs. */
typedef struct clv_cut_stage {
  uint32_t first_layer, last_layer; /* index of the first and of the last layer */
  double busy_s;                    /* seconds that the stage computes in a step */
  /* memory of the stage in bytes; 0: unknown, because the schedule does not permit so many
   * micro-batches */
  size_t memory_bytes;
  double sent_bytes; /* bytes that the stage sends in a step to the next stage or the loss, one
                         * way */
  double send_s;     /* seconds that sent_bytes take on the link; 0: the next stage is at the same
                  * node */
} clv_cut_stage;

typedef struct clv_cut_plan {
  clv_sched_split split;
  clv_cut_stage *stages; /* [n_stages] stages of the plan, freed with the plan */
  clv_bytes yaml;        /* key `stages` of the session file that has these cuts */
} clv_cut_plan;

typedef struct clv_cut_search {
  const clv_blueprint *b;
  const clv_link_estimates *links;
  /* [n_profiles] measured times of the layers, one profile for each number of threads */
  clv_profile *profiles[CLV_MAX_STAGES];
  uint32_t n_profiles;
  uint32_t stage_profile_indexes[CLV_MAX_STAGES]; /* [n_stages] index in profiles of each stage */
  uint32_t *micro_batch_choices; /* [n_choices] numbers of micro-batches to compare, ascending */
  uint32_t n_choices;
  /* [profile][choice][N_PASSES][n_layers + 1] seconds that all layers before each layer take
   * together, in a pass: forward, gradient of the input, gradient of the weights */
  double *time_sums;
  /* [n_layers] bytes of the values that cross behind the layer, for a batch */
  double *crossing_bytes;
  uint32_t *cut_layers; /* [cuts.n_cut_places] layers behind which a cut may be */
  /* [n_stages] first and last layer behind which the cut after each stage may be */
  uint32_t *min_cut_layers, *max_cut_layers;
  clv_sched_cuts cuts;
  clv_sched_search search;
  clv_cut_plan session_plan, best_plans[MAX_SUGGESTIONS];
  uint32_t n_best_plans;
  clv_bytes notes; /* lines for the user */
} clv_cut_search;

/* Fills cut_layers, crossing_bytes, min_cut_layers, max_cut_layers and cuts.first_trained_layer,
 * and adds notes (suggest_cut_places.c). */
clv_code clv_cut_search_find_places(clv_cut_search *c, clv_err *err) CLV_USE_RESULT;
void clv_cut_search_print(const clv_cut_search *c, bool json, clv_bytes *out);

#endif
