/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_generate_greedily: generates a schedule by running the pipeline in simulated time.
 * Again and again, the rank that can start an instruction earliest starts the best one that the
 * policy allows (sched_policy). All inputs that are ready by then are known, because no other rank
 * can start earlier. A stage that takes no time is an exception, because it makes an input ready at
 * its own start; so such stages go first when several ranks can start at the same time.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdlib.h>

typedef struct stage_state {
  /* numbers of forwards, input gradients, weight gradients and steps done */
  uint32_t f, b, w, n_steps;
} stage_state;

/* Instruction that a rank could run next. */
typedef struct candidate {
  double earliest_start; /* earliest start in seconds; INFINITY: there is no instruction */
  uint32_t stage, micro_batch, urgency;
  clv_instr_kind kind;
} candidate;

typedef struct greedy {
  clv_sched *s;
  const sched_policy *p;
  const clv_sched_costs *c;
  sched_links links;
  /* [stage][micro] time in seconds at which the input of a forward [0] or the gradient for a
   * backward [1] arrives; INFINITY: not known yet */
  double *ready_seconds[2];
  double *rank_free_at; /* [n_ranks] time at which the rank is idle again, in seconds */
  /* [n_ranks] number of the rank's next instruction in the interleaved order */
  uint32_t *interleaved_pos;
  candidate *candidates; /* [n_ranks] next instruction of each rank */
  stage_state stages[CLV_SCHED_STAGES];
  clv_err *err;
} greedy;

static void greedy_clear(greedy *g) {
  free(g->links.link_free_at);
  free(g->ready_seconds[0]);
  free(g->ready_seconds[1]);
  free(g->rank_free_at);
  free(g->interleaved_pos);
  free(g->candidates);
}

static clv_code greedy_generator_init(greedy *g) {
  const clv_sched_shape *shape = &g->s->shape;
  size_t n = (size_t)shape->n_stages * shape->n_micro_batches;
  CLV_TRY(clv_sched_links_init(&g->links, shape->n_ranks, g->err));
  for (int is_backward = 0; is_backward < 2; is_backward++) {
    CLV_TRY(clv_alloc(n, sizeof(double), &g->ready_seconds[is_backward], g->err));
    for (size_t i = 0; i < n; i++)
      g->ready_seconds[is_backward][i] = is_backward || i >= shape->n_micro_batches ? INFINITY : 0;
  }
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *g->rank_free_at, &g->rank_free_at, g->err));
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *g->interleaved_pos, &g->interleaved_pos, g->err));
  return clv_alloc(shape->n_ranks, sizeof *g->candidates, &g->candidates, g->err);
}

static double *ready_time(greedy *g, bool is_backward, uint32_t stage, uint32_t micro) {
  return &g->ready_seconds[is_backward][(size_t)stage * g->s->shape.n_micro_batches + micro];
}

/* ---- instructions that the policy allows ----------------------------------------------------- */

/* Returns how many forwards the policy allows a stage to have run at this time, whether or not
 * their inputs have arrived. */
static uint32_t max_forwards_now(const greedy *g, uint32_t s) {
  const stage_state *st = &g->stages[s];
  uint64_t target = g->s->shape.n_micro_batches;
  if (!is_trained_stage(&g->s->shape, s)) return (uint32_t)target;
  if (!g->p->n_ring_ranks) target = CLV_MIN(target, (uint64_t)st->b + g->p->max_in_flight[s]);
  if (g->p->splits_backward && g->p->max_held_weight_grads)
    target = CLV_MIN(target, (uint64_t)st->w + g->p->max_held_weight_grads);
  if (g->p->has_two_versions)
    target = CLV_MIN(target, ((uint64_t)st->n_steps + 2) * g->p->micro_batches_per_step);
  return (uint32_t)target;
}

/* Replaces *best by c if c is better: it starts earlier (c.earliest_start is at least `now`), or
 * at the same time with a higher urgency, then an older micro-batch, then a later stage. */
static void take_if_better(candidate *best, candidate c, double now) {
  c.earliest_start = fmax(c.earliest_start, now);
  if (c.earliest_start > best->earliest_start || isinf(c.earliest_start)) return;
  bool is_better = c.earliest_start < best->earliest_start || c.urgency > best->urgency ||
                   (c.urgency == best->urgency &&
                    (c.micro_batch < best->micro_batch ||
                     (c.micro_batch == best->micro_batch && c.stage > best->stage)));
  if (is_better) *best = c;
}

/* For strict zb-h1: true if the stage has delayed more weight gradients than it may keep, so that a
 * weight gradient must run next. */
static bool must_run_weight_gradient(const greedy *g, uint32_t s) {
  const stage_state *st = &g->stages[s];
  return st->b - st->w >
         g->p->max_held_weight_grads - CLV_MIN(g->p->max_held_weight_grads, g->p->max_in_flight[s]);
}

static void offer_instrs_of_stage(greedy *g, uint32_t s, double now, candidate *best) {
  const stage_state *st = &g->stages[s];
  bool splits_backward = g->p->splits_backward && !g->p->takes_no_time[s];
  uint32_t target = max_forwards_now(g, s), top = g->p->takes_no_time[s] ? 10 : 0;
  candidate forward = {
      .kind = CLV_INSTR_FORWARD, .stage = s, .micro_batch = st->f, .urgency = top + 1};
  candidate weight = {.kind = CLV_INSTR_WEIGHT, .stage = s, .micro_batch = st->w};
  candidate back = {
      .kind = CLV_INSTR_BACKWARD, .stage = s, .micro_batch = st->b, .urgency = top + 2};
  bool has_pending_weight_gradient = splits_backward && st->w < st->b,
       has_all_backwards = st->b == g->s->shape.n_micro_batches;
  if (has_pending_weight_gradient &&
      (!g->p->runs_forwards_first || has_all_backwards || must_run_weight_gradient(g, s))) {
    take_if_better(best, weight, now);
    if (g->p->runs_forwards_first) return;
  }
  if (st->f < target) {
    forward.earliest_start = *ready_time(g, false, s, st->f);
    take_if_better(best, forward, now);
    if (g->p->runs_forwards_first) return;
  }
  if (!is_trained_stage(&g->s->shape, s) || st->b == st->f) return;
  if (splits_backward) back.kind = CLV_INSTR_INPUT;
  back.earliest_start = *ready_time(g, true, s, st->b);
  take_if_better(best, back, now);
}

/* ---- instructions in Megatron's interleaved order -------------------------------------------- */

/* Returns instruction i of Megatron-LM's interleaved order for the rank at index `place` in a
 * circular order of p ranks. The rank has the v stages place, place + p, and so on. It runs
 * forwards in groups of p micro-batches per stage. After the first 2 (p - place - 1) + (v - 1) p
 * forwards, a backward follows each forward; backwards visit the stages in descending order.
 * (Narayanan et al. 2021; forward_backward_pipelining_with_interleaving in Megatron-LM.) */
static candidate interleaved_instr(uint32_t p, uint32_t v, uint32_t n_micro, uint32_t place,
                                   uint32_t i) {
  uint32_t total = n_micro * v;
  uint32_t n_warm_up = CLV_MIN(total, 2 * (p - place - 1) + (v - 1) * p);
  uint32_t after_warm_up = i - CLV_MIN(i, n_warm_up);
  bool is_drain = i >= 2 * total - n_warm_up,
       is_backward = is_drain || (i >= n_warm_up && after_warm_up % 2);
  uint32_t q = is_drain        ? i - total
               : is_backward   ? after_warm_up / 2
               : i < n_warm_up ? i
                               : n_warm_up + after_warm_up / 2;
  uint32_t chunk = q / p % v;
  return (candidate){.kind = is_backward ? CLV_INSTR_BACKWARD : CLV_INSTR_FORWARD,
                     .stage = place + p * (is_backward ? v - 1 - chunk : chunk),
                     .micro_batch = q / (p * v) * p + q % p};
}

/* Offers the rank's next instruction of the interleaved order as a candidate. make.c has checked
 * that stages that take no time come last, so the stage numbers of the order are those of the
 * shape. */
static void offer_interleaved(greedy *g, uint32_t rank, double now, candidate *best) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t p = g->p->n_ring_ranks, v = clv_sched_pipeline_depth(shape, g->p->takes_no_time, 0) / p,
           place = 0;
  while (place < p && shape->stage_rank[place] != rank) place++;
  while (place < p && g->interleaved_pos[rank] < 2 * shape->n_micro_batches * v) {
    candidate c = interleaved_instr(p, v, shape->n_micro_batches, place, g->interleaved_pos[rank]);
    bool is_backward = c.kind == CLV_INSTR_BACKWARD;
    if (!is_backward || is_trained_stage(shape, c.stage)) {
      c.earliest_start = *ready_time(g, is_backward, c.stage, c.micro_batch);
      take_if_better(best, c, now);
      return;
    }
    g->interleaved_pos[rank]++;
  }
}

static void find_next_candidate(greedy *g, uint32_t rank) {
  candidate best = {.earliest_start = INFINITY};
  for (uint32_t s = 0; s < g->s->shape.n_stages; s++)
    if (g->s->shape.stage_rank[s] == rank && (!g->p->n_ring_ranks || g->p->takes_no_time[s]))
      offer_instrs_of_stage(g, s, g->rank_free_at[rank], &best);
  if (g->p->n_ring_ranks) offer_interleaved(g, rank, g->rank_free_at[rank], &best);
  g->candidates[rank] = best;
}

/* ---- running the greedy generator ------------------------------------------------------------ */

static clv_code add_instr(greedy *g, clv_instr_kind kind, uint32_t stage, uint32_t micro,
                          uint32_t age) {
  return clv_sched_add_instr(g->s, g->s->shape.stage_rank[stage], kind, stage, micro, age, g->err);
}

static uint32_t weights_age_of_forward(const greedy *g, uint32_t s, uint32_t micro) {
  if (!g->p->has_two_versions || !is_trained_stage(&g->s->shape, s)) return 0;
  uint32_t step = micro / g->p->micro_batches_per_step;
  return g->stages[s].n_steps - (step ? step - 1 : 0);
}

static clv_code run_forward(greedy *g, const candidate *c, double end) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t s = c->stage, k = c->micro_batch;
  if (s > 0 && is_cross_rank_edge(shape, s - 1)) CLV_TRY(add_instr(g, CLV_INSTR_RECV_F, s, k, 0));
  CLV_TRY(add_instr(g, CLV_INSTR_FORWARD, s, k, weights_age_of_forward(g, s, k)));
  g->stages[s].f++;
  if (s + 1 == shape->n_stages) {
    *ready_time(g, true, s, k) = end;
  } else if (!is_cross_rank_edge(shape, s)) {
    *ready_time(g, false, s + 1, k) = end;
  } else {
    *ready_time(g, false, s + 1, k) = clv_sched_links_send(&g->links, shape, g->c, s, false, end);
    return add_instr(g, CLV_INSTR_SEND_F, s, k, 0);
  }
  return CLV_OK;
}

static clv_code run_backward(greedy *g, const candidate *c, double end) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t s = c->stage, k = c->micro_batch;
  if (has_cross_rank_gradient(shape, s)) CLV_TRY(add_instr(g, CLV_INSTR_RECV_B, s, k, 0));
  CLV_TRY(add_instr(g, c->kind, s, k, 0));
  g->stages[s].b++;
  g->stages[s].w += c->kind == CLV_INSTR_BACKWARD;
  double sent_at =
      g->c->sends_input_gradient_first ? c->earliest_start + g->c->input_grad_seconds[s] : end;
  if (s == 0 || !is_trained_stage(shape, s - 1)) return CLV_OK;
  if (!is_cross_rank_edge(shape, s - 1)) {
    *ready_time(g, true, s - 1, k) = end;
    return CLV_OK;
  }
  *ready_time(g, true, s - 1, k) =
      clv_sched_links_send(&g->links, shape, g->c, s - 1, true, sent_at);
  return add_instr(g, CLV_INSTR_SEND_B, s, k, 0);
}

static clv_code run_weight(greedy *g, const candidate *c, double end) {
  (void)end;
  g->stages[c->stage].w++;
  return add_instr(g, CLV_INSTR_WEIGHT, c->stage, c->micro_batch, 0);
}

/* Adds an optimiser step of the stage if the gradients for it are complete after `c`, and its time
 * to *end. */
static clv_code add_optimizer_step(greedy *g, const candidate *c, double *end) {
  stage_state *st = &g->stages[c->stage];
  if (!g->p->micro_batches_per_step || c->kind == CLV_INSTR_FORWARD) return CLV_OK;
  if (st->w != (st->n_steps + 1) * g->p->micro_batches_per_step) return CLV_OK;
  *end += clv_sched_instr_seconds(g->c, CLV_INSTR_STEP, c->stage);
  return add_instr(g, CLV_INSTR_STEP, c->stage, st->n_steps++, 0);
}

static clv_code run_next_instr(greedy *g, uint32_t rank) {
  static clv_code (*const runs[CLV_INSTR_KINDS])(greedy *, const candidate *, double) = {
      [CLV_INSTR_FORWARD] = run_forward,
      [CLV_INSTR_BACKWARD] = run_backward,
      [CLV_INSTR_INPUT] = run_backward,
      [CLV_INSTR_WEIGHT] = run_weight,
  };
  const clv_sched_shape *shape = &g->s->shape;
  candidate c = g->candidates[rank];
  double end = c.earliest_start + clv_sched_instr_seconds(g->c, c.kind, c.stage);
  CLV_TRY(runs[c.kind](g, &c, end));
  CLV_TRY(add_optimizer_step(g, &c, &end));
  g->rank_free_at[rank] = end;
  if (g->p->n_ring_ranks && !g->p->takes_no_time[c.stage]) g->interleaved_pos[rank]++;
  find_next_candidate(g, rank);
  if (c.stage > 0) find_next_candidate(g, shape->stage_rank[c.stage - 1]);
  if (c.stage + 1 < shape->n_stages) find_next_candidate(g, shape->stage_rank[c.stage + 1]);
  return CLV_OK;
}

/* Returns the rank whose candidate starts earliest. If several start then, prefers one whose stage
 * takes no time. */
static uint32_t find_earliest_rank(const greedy *g) {
  uint32_t earliest_rank = 0;
  for (uint32_t r = 1; r < g->s->shape.n_ranks; r++) {
    const candidate *a = &g->candidates[r], *b = &g->candidates[earliest_rank];
    if (a->earliest_start < b->earliest_start ||
        (a->earliest_start == b->earliest_start && !isinf(a->earliest_start) &&
         g->p->takes_no_time[a->stage] > g->p->takes_no_time[b->stage]))
      earliest_rank = r;
  }
  return earliest_rank;
}

clv_code clv_sched_generate_greedily(clv_sched *s, const sched_policy *policy,
                                     const clv_sched_costs *c, clv_err *err) {
  CLV_AUTO(greedy_clear) greedy g = {.s = s, .p = policy, .c = c, .err = err};
  CLV_TRY(greedy_generator_init(&g));
  for (uint32_t r = 0; r < s->shape.n_ranks; r++) find_next_candidate(&g, r);
  for (uint32_t r = find_earliest_rank(&g); !isinf(g.candidates[r].earliest_start);
       r = find_earliest_rank(&g))
    CLV_TRY(run_next_instr(&g, r));
  return CLV_OK;
}
