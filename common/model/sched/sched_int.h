/* SPDX-License-Identifier: Apache-2.0
 *
 * sched_int: functions that the files of this folder share: properties of a shape, growing lists,
 * links of a simulation, and two simulations. greedy.c generates lists by running a policy in
 * simulated time. simulate.c runs existing lists; check.c calls it, too, to prove that the ranks
 * cannot deadlock.
 */
#ifndef CLEAVE_SCHED_INT_H
#define CLEAVE_SCHED_INT_H

#include "common/model/sched/sched.h"

/* ---- shapes of pipelines --------------------------------------------------------------------- */

clv_code clv_sched_shape_check(const clv_sched_shape *shape, clv_err *err) CLV_USE_RESULT;
/* Checks that all costs of the shape's stages and edges are from 0 to 1e9 seconds. */
clv_code clv_sched_costs_check(const clv_sched_shape *shape, const clv_sched_costs *c,
                               clv_err *err) CLV_USE_RESULT;

static inline bool is_trained_stage(const clv_sched_shape *shape, uint32_t stage) {
  return stage >= shape->first_backward_stage;
}
/* True if tensors on edge `edge`, between stages edge and edge+1, go from one rank to another. */
static inline bool is_cross_rank_edge(const clv_sched_shape *shape, uint32_t edge) {
  return edge + 1 < shape->n_stages && shape->stage_rank[edge] != shape->stage_rank[edge + 1];
}
/* True if gradients on edge `edge` go from one rank to another. */
static inline bool has_cross_rank_gradient(const clv_sched_shape *shape, uint32_t edge) {
  return is_trained_stage(shape, edge) && is_cross_rank_edge(shape, edge);
}
/* Returns the number of micro-batches per optimiser step of an asynchronous kind; 0: the kind is
 * synchronous, with one step after the round. */
uint32_t clv_sched_micro_batches_per_step(clv_sched_kind kind, const clv_sched_shape *shape);

/* Sets ret[s] for each stage that takes no time (the loss), which formulas do not count as stages.
 * If all stages take no time, marks none. */
void clv_sched_mark_timeless_stages(const clv_sched_shape *shape, const clv_sched_costs *c,
                                    bool *ret);

/* ---- lists of instructions ------------------------------------------------------------------- */

clv_code clv_sched_new(clv_sched_kind kind, const clv_sched_shape *shape, uint32_t window,
                       clv_sched **ret, clv_err *err) CLV_USE_RESULT;
clv_code clv_sched_add_instr(clv_sched *s, uint32_t rank, clv_instr_kind kind, uint32_t stage,
                             uint32_t micro, uint32_t weights_age, clv_err *err) CLV_USE_RESULT;

extern const char *const clv_instr_names[CLV_INSTR_KINDS];

enum { SCHED_INSTR_TEXT = 24 };
/* writes the instruction as schedule files have it, such as "sf12" */
const char *clv_instr_text(const clv_instr *i, char buf[SCHED_INSTR_TEXT]);

/* ---- simulated time -------------------------------------------------------------------------- */

/* Links between ranks in a simulation. */
typedef struct sched_links {
  uint32_t n_ranks;
  /* [from][to] time at which the link can send the next tensor, in seconds; owned */
  double *link_free_at;
} sched_links;

clv_code clv_sched_links_init(sched_links *l, uint32_t n_ranks, clv_err *err) CLV_USE_RESULT;
/* Simulates sending a tensor at time `now` over an edge, forward or (if is_backward) backward.
 * Returns the time of its arrival. */
double clv_sched_links_send(sched_links *l, const clv_sched_shape *shape, const clv_sched_costs *c,
                            uint32_t edge, bool is_backward, double now);

double clv_sched_instr_seconds(const clv_sched_costs *c, clv_instr_kind kind, uint32_t stage);

/* Runs the instructions of all ranks in simulated time. Fails if ranks wait for each other forever.
 * Call it only for a schedule whose lists of instructions clv_sched_check has passed one by one
 * (check_rank in check.c). c NULL: nothing takes time. ret NULL: only checks that all instructions
 * run. */
clv_code clv_sched_simulate_lists(const clv_sched *s, const clv_sched_costs *c, bool spans,
                                  clv_sched_run *ret, clv_err *err) CLV_USE_RESULT;

/* ---- the greedy generator -------------------------------------------------------------------- */

/* Rules by which the generator chooses the next instruction of an idle rank. Among instructions
 * that can start and are allowed, backwards go before forwards, forwards before weight gradients,
 * then older micro-batches first, then later stages. */
typedef struct sched_policy {
  /* [stage] maximum micro-batches between F and the input gradient */
  uint32_t max_in_flight[CLV_SCHED_STAGES];
  /* if splits_backward: maximum micro-batches of a stage whose forward has run and whose weight
   * gradient has not; 0: no limit */
  uint32_t max_held_weight_grads;
  /* see clv_sched_micro_batches_per_step, which returns this number */
  uint32_t micro_batches_per_step;
  /* for interleaved: number of ranks in the circular order; else 0 */
  uint32_t n_ring_ranks;
  /* no backward runs while a forward is allowed, even if its input has not arrived */
  bool runs_forwards_first;
  bool splits_backward; /* a backward is an I and a W, not a B */
  /* forwards of step t wait for step t-2, as in pipedream-2bw */
  bool has_two_versions;
  bool takes_no_time[CLV_SCHED_STAGES]; /* [stage] the stage takes no time */
} sched_policy;

clv_code clv_sched_generate_greedily(clv_sched *s, const sched_policy *policy,
                                     const clv_sched_costs *c, clv_err *err) CLV_USE_RESULT;

/* ---- windows of 1f1b ------------------------------------------------------------------------- */

/* Returns the window that the formula of clv_sched_find_window gives, without its search by
 * simulation.
 */
uint32_t clv_sched_window_by_formula(const clv_sched_shape *shape, const clv_sched_costs *c,
                                     const bool *takes_no_time);
/* Returns the number of stages from s on that take time, at least 1. */
uint32_t clv_sched_pipeline_depth(const clv_sched_shape *shape, const bool *takes_no_time,
                                  uint32_t s);

#endif
