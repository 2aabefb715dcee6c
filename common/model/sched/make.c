/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_make: generation of schedules. Each kind is a policy of the greedy generator. The limit
 * of a stage is the most micro-batches between their forward and their input gradient there. The
 * textbook's kinds are strict: a stage runs forwards up to its limit, and then a backward and a
 * forward in turn, independently of costs, which only decide how the stages of one rank mix. Kinds
 * with a window take the instruction that can start first, and the window is the limit of every
 * stage; backwards come before forwards, so later stages keep fewer micro-batches.
 *
 *   naive        limit 1
 *   gpipe        limit: the micro-batches of the round
 *   1f1b         limit of stage s: the number of stages from s on
 *   interleaved  the order of Megatron-LM
 *   zb-h1        as 1f1b, split; stage s delays the weight gradients of s micro-batches, so that
 *                it keeps as many as the first stage (Qi et al. 2023: p M_B at every worker)
 *   pipedream    as 1f1b, a step after every backward (Narayanan et al. 2019)
 *   -2bw         as 1f1b, forwards of step t wait for step t-2 (Narayanan et al. 2021)
 */
#include "common/model/sched/sched_int.h"

typedef clv_code make_fn(const clv_sched_options *o, sched_policy *p, clv_err *err);

static void set_in_flight_limits(const clv_sched_options *o, sched_policy *p, uint32_t limit) {
  for (uint32_t s = 0; s < o->shape.n_stages; s++) p->max_in_flight[s] = limit;
}

static clv_code make_naive(const clv_sched_options *o, sched_policy *p, clv_err *err) {
  (void)err;
  set_in_flight_limits(o, p, 1);
  return CLV_OK;
}

static clv_code make_gpipe(const clv_sched_options *o, sched_policy *p, clv_err *err) {
  (void)err;
  set_in_flight_limits(o, p, o->shape.n_micro_batches);
  return CLV_OK;
}

static clv_code make_1f1b(const clv_sched_options *o, sched_policy *p, clv_err *err) {
  (void)err;
  for (uint32_t s = 0; s < o->shape.n_stages; s++)
    p->max_in_flight[s] = clv_sched_pipeline_depth(&o->shape, p->takes_no_time, s);
  if (o->window) set_in_flight_limits(o, p, o->window);
  p->runs_forwards_first = o->window == 0;
  return CLV_OK;
}

static clv_code make_zb_h1(const clv_sched_options *o, sched_policy *p, clv_err *err) {
  CLV_TRY(make_1f1b(o, p, err));
  p->splits_backward = true;
  p->max_held_weight_grads = o->shape.first_backward_stage < o->shape.n_stages
                                 ? p->max_in_flight[o->shape.first_backward_stage]
                                 : 0;
  return CLV_OK;
}

static clv_code make_2bw(const clv_sched_options *o, sched_policy *p, clv_err *err) {
  p->has_two_versions = true;
  return make_1f1b(o, p, err);
}

/* Checks that the stages that take time are at ranks in circular order (0 1 .. p-1 0 1 .. p-1), and
 * that stages that take no time come last. */
static clv_code make_interleaved(const clv_sched_options *o, sched_policy *p, clv_err *err) {
  const clv_sched_shape *shape = &o->shape;
  uint32_t n = clv_sched_pipeline_depth(shape, p->takes_no_time, 0), n_ring_ranks = 1;
  while (n_ring_ranks < n && shape->stage_rank[n_ring_ranks] != shape->stage_rank[0])
    n_ring_ranks++;
  for (uint32_t s = 0; s < n; s++) {
    if (p->takes_no_time[s])
      return clv_fail(err, CLV_INVALID, "interleaved: stage %u takes no time, but later stages do",
                      s);
    if (s >= n_ring_ranks && shape->stage_rank[s] != shape->stage_rank[s % n_ring_ranks])
      return clv_fail(err, CLV_INVALID,
                      "interleaved: stages go round the ranks in one order, so stage %u must be at "
                      "rank %u, as stage %u is, but it is at rank %u",
                      s, shape->stage_rank[s % n_ring_ranks], s % n_ring_ranks,
                      shape->stage_rank[s]);
    for (uint32_t e = 0; s < n_ring_ranks && e < s; e++)
      if (shape->stage_rank[e] == shape->stage_rank[s])
        return clv_fail(
            err, CLV_INVALID,
            "interleaved: stages %u and %u are both at rank %u before each rank has one", e, s,
            shape->stage_rank[s]);
  }
  if (n < 2 * n_ring_ranks || n % n_ring_ranks)
    return clv_fail(err, CLV_INVALID,
                    "interleaved: %u stages over %u ranks: each rank needs the same number of "
                    "stages, two or more (%u or %u stages would do)",
                    n, n_ring_ranks, 2 * n_ring_ranks, 3 * n_ring_ranks);
  if (shape->n_micro_batches % n_ring_ranks)
    return clv_fail(err, CLV_INVALID,
                    "interleaved: %u micro-batches are no multiple of the %u ranks (%u would be)",
                    shape->n_micro_batches, n_ring_ranks,
                    (shape->n_micro_batches / n_ring_ranks + 1) * n_ring_ranks);
  p->n_ring_ranks = n_ring_ranks;
  for (uint32_t s = n; s < shape->n_stages; s++) p->max_in_flight[s] = shape->n_micro_batches;
  p->runs_forwards_first = false;
  return CLV_OK;
}

static const struct {
  make_fn *make_policy;
  bool has_window;
} rows[CLV_SCHED_KINDS] = {
    [CLV_SCHED_NAIVE] = {make_naive, false},
    [CLV_SCHED_GPIPE] = {make_gpipe, false},
    [CLV_SCHED_1F1B] = {make_1f1b, true},
    [CLV_SCHED_INTERLEAVED] = {make_interleaved, false},
    [CLV_SCHED_ZB_H1] = {make_zb_h1, true},
    [CLV_SCHED_PIPEDREAM] = {make_1f1b, true},
    [CLV_SCHED_PIPEDREAM_2BW] = {make_2bw, true},
};

/* ---- checks of options ----------------------------------------------------------------------- */

static clv_code check_steps(const clv_sched_options *o, clv_err *err) {
  uint32_t micros_per_step = o->shape.n_accumulate, n = o->shape.n_micro_batches;
  if (o->kind != CLV_SCHED_PIPEDREAM_2BW)
    return micros_per_step == 0
               ? CLV_OK
               : clv_fail(err, CLV_INVALID,
                          "%s takes no number of micro-batches per step (pipedream-2bw does)",
                          clv_sched_name(o->kind));
  if (micros_per_step == 0 || n % micros_per_step)
    return clv_fail(err, CLV_INVALID,
                    "pipedream-2bw: %u micro-batches are no multiple of %u, the number per step", n,
                    micros_per_step);
  return CLV_OK;
}

static clv_code check_schedule_size(const clv_sched_options *o, clv_err *err) {
  const clv_sched_shape *shape = &o->shape;
  uint64_t instrs_per_micro = 0;
  for (uint32_t s = 0; s < shape->n_stages; s++) {
    instrs_per_micro +=
        1 + 2 * is_cross_rank_edge(shape, s) + 2 * has_cross_rank_gradient(shape, s);
    if (is_trained_stage(shape, s)) instrs_per_micro += 2;
  }
  if (instrs_per_micro * shape->n_micro_batches <= CLV_SCHED_INSTRUCTIONS) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%u stages and %u micro-batches make up to %llu instructions: the limit is %d",
                  shape->n_stages, shape->n_micro_batches,
                  (unsigned long long)(instrs_per_micro * shape->n_micro_batches),
                  CLV_SCHED_INSTRUCTIONS);
}

static clv_code check_options(const clv_sched_options *o, clv_err *err) {
  CLV_TRY(clv_sched_shape_check(&o->shape, err));
  if ((unsigned)o->kind >= CLV_SCHED_KINDS || !rows[o->kind].make_policy)
    return clv_fail(err, CLV_INVALID, "a %s schedule cannot be generated: read it from a file",
                    clv_sched_name(o->kind));
  if (o->costs) CLV_TRY(clv_sched_costs_check(&o->shape, o->costs, err));
  if (o->window && !rows[o->kind].has_window)
    return clv_fail(err, CLV_INVALID,
                    "%s has no window (1f1b, zb-h1, pipedream and pipedream-2bw have)",
                    clv_sched_name(o->kind));
  CLV_TRY(check_steps(o, err));
  return check_schedule_size(o, err);
}

clv_code clv_sched_make(const clv_sched_options *o, clv_sched **ret, clv_err *err) {
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  sched_policy policy = {.runs_forwards_first = true};
  clv_sched_costs equal_costs;
  CLV_TRY(check_options(o, err));
  clv_sched_costs_set_equal(&equal_costs, 1, 1, 1);
  const clv_sched_costs *costs = o->costs ? o->costs : &equal_costs;
  clv_sched_mark_timeless_stages(&o->shape, costs, policy.takes_no_time);
  policy.micro_batches_per_step = clv_sched_micro_batches_per_step(o->kind, &o->shape);
  CLV_TRY(rows[o->kind].make_policy(o, &policy, err));
  CLV_TRY(clv_sched_new(o->kind, &o->shape, o->window, &s, err));
  CLV_TRY(clv_sched_generate_greedily(s, &policy, costs, err));
  CLV_TRY(clv_sched_check(s, NULL, err));
  *ret = clv_steal(&s);
  return CLV_OK;
}
