/* SPDX-License-Identifier: Apache-2.0
 *
 * suggest_int: ways to cut a session's model, judged, for suggest.c that finds them,
 * suggest_cut_places.c that says where they may be, and suggest_text.c that prints them.
 */
#ifndef CLEAVE_SUGGEST_INT_H
#define CLEAVE_SUGGEST_INT_H

#include "master/plan/plan_int.h"

enum { MAX_SUGGESTIONS = 3 };

/* One stage of one way. */
typedef struct clv_cut_stage {
  uint32_t first, last; /* layers */
  double busy_s;        /* computing, in a step */
  size_t memory;     /* 0: not known, the session's schedule does not take so many micro-batches */
  double edge_bytes; /* to the next stage or the loss, in a step and one way */
  double edge_s;     /* that these are on the link; 0: the same node */
} clv_cut_stage;

typedef struct clv_cut_plan {
  clv_sched_split split;
  clv_cut_stage *stages; /* [n_stages], owned */
  clv_bytes yaml;        /* stages: as a session file takes it */
} clv_cut_plan;

typedef struct clv_cut_search {
  const clv_blueprint *b;
  const clv_links *links;
  clv_profile *profile[CLV_MAX_STAGES]; /* [n_profiles], of each number of threads */
  uint32_t n_profiles, profile_of[CLV_MAX_STAGES];
  uint32_t *micros, n_micros;
  double *sums;  /* [profile][choice][FORWARD, INPUT, WEIGHT][n_layers + 1], running sums */
  double *bytes; /* [n_layers] of the value that crosses behind each, of a batch */
  uint32_t *places, *least, *most;
  clv_sched_cuts cuts;
  clv_sched_search search;
  clv_cut_plan now, best[MAX_SUGGESTIONS];
  uint32_t n_best;
  clv_bytes notes; /* lines */
} clv_cut_search;

/* Fills places, bytes, least, most and first_learning, with notes (suggest_cut_places.c). */
clv_code clv_cut_search_find_places(clv_cut_search *c, clv_err *err) CLV_USE_RESULT;
void clv_cut_search_print(const clv_cut_search *c, bool json, clv_bytes *out);

#endif
