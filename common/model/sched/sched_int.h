/* SPDX-License-Identifier: Apache-2.0
 *
 * sched_int: functions that the files of this folder share: properties of a shape, growing lists,
 * links of a simulation, and the two engines. greedy.c generates lists by running a policy in
 * simulated time. simulate.c walks existing lists; check.c walks them too, to prove that they
 * cannot deadlock.
 */
#ifndef CLEAVE_SCHED_INT_H
#define CLEAVE_SCHED_INT_H

#include "common/model/sched/sched.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

clv_code clv_sched_shape_check(const clv_sched_shape *shape, clv_err *err) CLV_USE_RESULT;
/* Checks that the costs of all stages of the shape are finite and not negative. */
clv_code clv_sched_costs_check(const clv_sched_shape *shape, const clv_sched_costs *c,
                               clv_err *err) CLV_USE_RESULT;

static inline bool sched_learns(const clv_sched_shape *shape, uint32_t stage) {
  return stage >= shape->first_backward;
}
/* True if a tensor crosses between ranks on edge `edge`, which is between stages edge and
 * edge+1. */
static inline bool sched_crosses(const clv_sched_shape *shape, uint32_t edge) {
  return edge + 1 < shape->n_stages && shape->rank[edge] != shape->rank[edge + 1];
}
/* True if a gradient comes back over that edge. */
static inline bool sched_crosses_back(const clv_sched_shape *shape, uint32_t edge) {
  return sched_learns(shape, edge) && sched_crosses(shape, edge);
}
/* Returns the micro-batches per step inside the round; 0: the step comes after the round. */
uint32_t clv_sched_micros_per_step(clv_sched_kind kind, const clv_sched_shape *shape);

/* Marks the stages that take no time (the loss), which formulas do not count as stages of the
 * pipeline. If all take no time, marks none. */
void clv_sched_find_free_stages(const clv_sched_shape *shape, const clv_sched_costs *c, bool *ret);

/* ---- lists ----------------------------------------------------------------------------------- */

clv_code clv_sched_new(clv_sched_kind kind, const clv_sched_shape *shape, uint32_t window,
                       clv_sched **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_sched_add_instr(clv_sched *s, uint32_t rank, clv_instr_kind kind, uint32_t stage,
                             uint32_t micro, uint32_t weights_age, clv_err *err) CLV_USE_RESULT;

extern const char *const clv_instr_names[CLV_INSTR_KINDS];

enum { SCHED_INSTR_TEXT = 24 };
const char *clv_instr_text(const clv_instr *i, char buf[SCHED_INSTR_TEXT]); /* "sf12" */

/* ---- simulated time -------------------------------------------------------------------------- */

/* Links between ranks in a simulation. */
typedef struct sched_links {
  uint32_t n_ranks;
  double *free_at; /* [from][to] seconds at which the link is free again, owned */
} sched_links;

clv_code clv_sched_links_init(sched_links *l, uint32_t n_ranks, clv_err *err) CLV_USE_RESULT;
/* Sends a tensor over an edge, forward or `back`, at time `now`; returns its time of arrival. */
double clv_sched_links_send(sched_links *l, const clv_sched_shape *shape, const clv_sched_costs *c,
                            uint32_t edge, bool back, double now);

double clv_sched_cost(const clv_sched_costs *c, clv_instr_kind kind, uint32_t stage);

/* Runs lists whose instructions are valid one by one (the first part of check.c). Fails if ranks
 * wait for each other. c NULL: nothing takes time. ret NULL: only checks that the walk ends. */
clv_code clv_sched_walk(const clv_sched *s, const clv_sched_costs *c, bool spans,
                        clv_sched_run *ret, clv_err *err) CLV_USE_RESULT;

/* ---- the greedy generator -------------------------------------------------------------------- */

/* Policy of the generator. A free rank runs an instruction that is ready and allowed: backwards
 * before forwards before weight gradients, then older micro-batches, then deeper stages. */
typedef struct sched_policy {
  uint32_t limit[CLV_SCHED_STAGES];   /* micro-batches between F and the input gradient, at most */
  uint32_t held;                      /* of split: those between F and W of any stage; 0: any */
  uint32_t per_step;                  /* as clv_sched_micros_per_step */
  uint32_t ring;                      /* of interleaved: ranks in the circular order, else 0 */
  bool strict;                        /* no backward while a forward is allowed, ready or not */
  bool split;                         /* I and W instead of B */
  bool two_versions;                  /* rule of pipedream-2bw for versions of weights */
  bool free_stages[CLV_SCHED_STAGES]; /* stages that take no time */
} sched_policy;

clv_code clv_sched_greedy(clv_sched *s, const sched_policy *policy, const clv_sched_costs *c,
                          clv_err *err) CLV_USE_RESULT;

/* ---- windows --------------------------------------------------------------------------------- */

/* Returns the window by the formula of clv_sched_window alone. */
uint32_t clv_sched_window_formula(const clv_sched_shape *shape, const clv_sched_costs *c,
                                  const bool *free_stages);
/* Returns the number of stages from s on, without free ones, at least 1. */
uint32_t clv_sched_depth(const clv_sched_shape *shape, const bool *free_stages, uint32_t s);

#endif
