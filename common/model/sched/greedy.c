/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_greedy: generates a schedule by running the pipeline in simulated time. Again and
 * again, the rank that can start an instruction earliest starts the best one that the policy allows
 * (sched_policy). All inputs that are ready by then are known, because no other rank can start
 * earlier. A stage that takes no time is an exception, because it makes an input ready at its own
 * start; so such stages go first when several ranks can start at the same time.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdlib.h>

typedef struct stage_state {
  /* numbers of forwards, input gradients, weight gradients and steps done */
  uint32_t f, b, w, steps;
} stage_state;

/* Instruction that a rank could run next. */
typedef struct candidate {
  double start; /* earliest start in seconds; INFINITY: there is no instruction */
  uint32_t stage, micro, urgency;
  clv_instr_kind kind;
} candidate;

typedef struct greedy {
  clv_sched *s;
  const sched_policy *p;
  const clv_sched_costs *c;
  sched_links links;
  /* [stage][micro] time at which the input of the forward [0], the gradient for the backward [1] is
   * there, in seconds; INFINITY: not known yet */
  double *ready_seconds[2];
  double *rank_free_at; /* [n_ranks] time at which the rank is idle again, in seconds */
  /* [n_ranks] number of the rank's next instruction in the interleaved order */
  uint32_t *interleaved_pos;
  candidate *candidates; /* [n_ranks] next instruction of each rank */
  stage_state stage[CLV_SCHED_STAGES];
  clv_err *err;
} greedy;

static void greedy_done(greedy *g) {
  free(g->links.free_at);
  free(g->ready_seconds[0]);
  free(g->ready_seconds[1]);
  free(g->rank_free_at);
  free(g->interleaved_pos);
  free(g->candidates);
}

static clv_code greedy_init(greedy *g) {
  const clv_sched_shape *shape = &g->s->shape;
  size_t n = (size_t)shape->n_stages * shape->n_micro;
  CLV_TRY(clv_sched_links_init(&g->links, shape->n_ranks, g->err));
  for (int back = 0; back < 2; back++) {
    CLV_TRY(clv_alloc(n, sizeof(double), &g->ready_seconds[back], g->err));
    for (size_t i = 0; i < n; i++)
      g->ready_seconds[back][i] = back || i >= shape->n_micro ? INFINITY : 0;
  }
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *g->rank_free_at, &g->rank_free_at, g->err));
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *g->interleaved_pos, &g->interleaved_pos, g->err));
  return clv_alloc(shape->n_ranks, sizeof *g->candidates, &g->candidates, g->err);
}

static double *ready_at(greedy *g, bool back, uint32_t stage, uint32_t micro) {
  return &g->ready_seconds[back][(size_t)stage * g->s->shape.n_micro + micro];
}

/* ---- allowed instructions -------------------------------------------------------------------- */

/* Returns how many forwards the policy allows a stage to have run at this time, whether or not
 * their inputs have arrived. */
static uint32_t max_forwards_now(const greedy *g, uint32_t s) {
  const stage_state *st = &g->stage[s];
  uint64_t target = g->s->shape.n_micro;
  if (!is_trained_stage(&g->s->shape, s)) return (uint32_t)target;
  if (!g->p->ring_ranks) target = CLV_MIN(target, (uint64_t)st->b + g->p->limit[s]);
  if (g->p->splits_backward && g->p->max_held)
    target = CLV_MIN(target, (uint64_t)st->w + g->p->max_held);
  if (g->p->has_two_versions)
    target = CLV_MIN(target, ((uint64_t)st->steps + 2) * g->p->micros_per_step);
  return (uint32_t)target;
}

/* Replaces *best by c if c is better: it starts earlier (c.start is at least `now`), or at the same
 * time with a higher urgency, then an older micro-batch, then a later stage. */
static void take_if_better(candidate *best, candidate c, double now) {
  c.start = fmax(c.start, now);
  if (c.start > best->start || isinf(c.start)) return;
  bool better = c.start < best->start || c.urgency > best->urgency ||
                (c.urgency == best->urgency &&
                 (c.micro < best->micro || (c.micro == best->micro && c.stage > best->stage)));
  if (better) *best = c;
}

/* For strict zb-h1: true if the stage has delayed more weight gradients than it may keep, so that a
 * weight gradient must run next. */
static bool has_weight_due(const greedy *g, uint32_t s) {
  const stage_state *st = &g->stage[s];
  return st->b - st->w > g->p->max_held - CLV_MIN(g->p->max_held, g->p->limit[s]);
}

static void offer_stage(greedy *g, uint32_t s, double now, candidate *best) {
  const stage_state *st = &g->stage[s];
  bool split = g->p->splits_backward && !g->p->free_stages[s];
  uint32_t target = max_forwards_now(g, s), top = g->p->free_stages[s] ? 10 : 0;
  candidate forward = {.kind = CLV_INSTR_FORWARD, .stage = s, .micro = st->f, .urgency = top + 1};
  candidate weight = {.kind = CLV_INSTR_WEIGHT, .stage = s, .micro = st->w};
  candidate back = {.kind = CLV_INSTR_BACKWARD, .stage = s, .micro = st->b, .urgency = top + 2};
  bool pending = split && st->w < st->b, all_back = st->b == g->s->shape.n_micro;
  if (pending && (!g->p->is_strict || all_back || has_weight_due(g, s))) {
    take_if_better(best, weight, now);
    if (g->p->is_strict) return;
  }
  if (st->f < target) {
    forward.start = *ready_at(g, false, s, st->f);
    take_if_better(best, forward, now);
    if (g->p->is_strict) return;
  }
  if (!is_trained_stage(&g->s->shape, s) || st->b == st->f) return;
  if (split) back.kind = CLV_INSTR_INPUT;
  back.start = *ready_at(g, true, s, st->b);
  take_if_better(best, back, now);
}

/* ---- Megatron's interleaved order ------------------------------------------------------------ */

/* Returns instruction i of Megatron-LM's interleaved order for the rank at index `place` in a
 * circular order of p ranks. The rank has the v stages place, place + p, and so on. It runs
 * forwards in groups of p micro-batches per stage. After the first 2 (p - place - 1) + (v - 1) p
 * forwards, a backward follows each forward; backwards visit the stages in descending order.
 * (Narayanan et al. 2021; forward_backward_pipelining_with_interleaving in Megatron-LM.) */
static candidate interleaved_instr(uint32_t p, uint32_t v, uint32_t n_micro, uint32_t place,
                                   uint32_t i) {
  uint32_t total = n_micro * v;
  uint32_t warm = CLV_MIN(total, 2 * (p - place - 1) + (v - 1) * p);
  uint32_t rest = i - CLV_MIN(i, warm);
  bool drain = i >= 2 * total - warm, back = drain || (i >= warm && rest % 2);
  uint32_t q = drain ? i - total : back ? rest / 2 : i < warm ? i : warm + rest / 2;
  uint32_t chunk = q / p % v;
  return (candidate){.kind = back ? CLV_INSTR_BACKWARD : CLV_INSTR_FORWARD,
                     .stage = place + p * (back ? v - 1 - chunk : chunk),
                     .micro = q / (p * v) * p + q % p};
}

/* Offers the rank's next instruction of the interleaved order as a candidate. make.c has checked
 * that stages that take no time come last, so the stage numbers of the order are those of the
 * shape. */
static void offer_interleaved(greedy *g, uint32_t rank, double now, candidate *best) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t p = g->p->ring_ranks, v = clv_sched_depth(shape, g->p->free_stages, 0) / p, place = 0;
  while (place < p && shape->rank[place] != rank) place++;
  while (place < p && g->interleaved_pos[rank] < 2 * shape->n_micro * v) {
    candidate c = interleaved_instr(p, v, shape->n_micro, place, g->interleaved_pos[rank]);
    bool back = c.kind == CLV_INSTR_BACKWARD;
    if (!back || is_trained_stage(shape, c.stage)) {
      c.start = *ready_at(g, back, c.stage, c.micro);
      take_if_better(best, c, now);
      return;
    }
    g->interleaved_pos[rank]++;
  }
}

static void find_next_candidate(greedy *g, uint32_t rank) {
  candidate best = {.start = INFINITY};
  for (uint32_t s = 0; s < g->s->shape.n_stages; s++)
    if (g->s->shape.rank[s] == rank && (!g->p->ring_ranks || g->p->free_stages[s]))
      offer_stage(g, s, g->rank_free_at[rank], &best);
  if (g->p->ring_ranks) offer_interleaved(g, rank, g->rank_free_at[rank], &best);
  g->candidates[rank] = best;
}

/* ---- running --------------------------------------------------------------------------------- */

static clv_code add_instr(greedy *g, clv_instr_kind kind, uint32_t stage, uint32_t micro,
                          uint32_t age) {
  return clv_sched_add_instr(g->s, g->s->shape.rank[stage], kind, stage, micro, age, g->err);
}

static uint32_t weights_age(const greedy *g, uint32_t s, uint32_t micro) {
  if (!g->p->has_two_versions || !is_trained_stage(&g->s->shape, s)) return 0;
  uint32_t step = micro / g->p->micros_per_step;
  return g->stage[s].steps - (step ? step - 1 : 0);
}

static clv_code run_forward(greedy *g, const candidate *c, double end) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t s = c->stage, k = c->micro;
  if (s > 0 && is_cross_rank_edge(shape, s - 1)) CLV_TRY(add_instr(g, CLV_INSTR_RECV_F, s, k, 0));
  CLV_TRY(add_instr(g, CLV_INSTR_FORWARD, s, k, weights_age(g, s, k)));
  g->stage[s].f++;
  if (s + 1 == shape->n_stages) {
    *ready_at(g, true, s, k) = end;
  } else if (!is_cross_rank_edge(shape, s)) {
    *ready_at(g, false, s + 1, k) = end;
  } else {
    *ready_at(g, false, s + 1, k) = clv_sched_links_send(&g->links, shape, g->c, s, false, end);
    return add_instr(g, CLV_INSTR_SEND_F, s, k, 0);
  }
  return CLV_OK;
}

static clv_code run_backward(greedy *g, const candidate *c, double end) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t s = c->stage, k = c->micro;
  if (has_cross_rank_gradient(shape, s)) CLV_TRY(add_instr(g, CLV_INSTR_RECV_B, s, k, 0));
  CLV_TRY(add_instr(g, c->kind, s, k, 0));
  g->stage[s].b++;
  g->stage[s].w += c->kind == CLV_INSTR_BACKWARD;
  double sent = g->c->input_first ? c->start + g->c->input[s] : end;
  if (s == 0 || !is_trained_stage(shape, s - 1)) return CLV_OK;
  if (!is_cross_rank_edge(shape, s - 1)) {
    *ready_at(g, true, s - 1, k) = end;
    return CLV_OK;
  }
  *ready_at(g, true, s - 1, k) = clv_sched_links_send(&g->links, shape, g->c, s - 1, true, sent);
  return add_instr(g, CLV_INSTR_SEND_B, s, k, 0);
}

static clv_code run_weight(greedy *g, const candidate *c, double end) {
  (void)end;
  g->stage[c->stage].w++;
  return add_instr(g, CLV_INSTR_WEIGHT, c->stage, c->micro, 0);
}

/* Adds an optimiser step of the stage if the gradients for it are complete after `c`, and its time
 * to *end. */
static clv_code add_step(greedy *g, const candidate *c, double *end) {
  stage_state *st = &g->stage[c->stage];
  if (!g->p->micros_per_step || c->kind == CLV_INSTR_FORWARD) return CLV_OK;
  if (st->w != (st->steps + 1) * g->p->micros_per_step) return CLV_OK;
  *end += clv_sched_cost(g->c, CLV_INSTR_STEP, c->stage);
  return add_instr(g, CLV_INSTR_STEP, c->stage, st->steps++, 0);
}

static clv_code run_next(greedy *g, uint32_t rank) {
  static clv_code (*const runs[CLV_INSTR_KINDS])(greedy *, const candidate *, double) = {
      [CLV_INSTR_FORWARD] = run_forward,
      [CLV_INSTR_BACKWARD] = run_backward,
      [CLV_INSTR_INPUT] = run_backward,
      [CLV_INSTR_WEIGHT] = run_weight,
  };
  const clv_sched_shape *shape = &g->s->shape;
  candidate c = g->candidates[rank];
  double end = c.start + clv_sched_cost(g->c, c.kind, c.stage);
  CLV_TRY(runs[c.kind](g, &c, end));
  CLV_TRY(add_step(g, &c, &end));
  g->rank_free_at[rank] = end;
  if (g->p->ring_ranks && !g->p->free_stages[c.stage]) g->interleaved_pos[rank]++;
  find_next_candidate(g, rank);
  if (c.stage > 0) find_next_candidate(g, shape->rank[c.stage - 1]);
  if (c.stage + 1 < shape->n_stages) find_next_candidate(g, shape->rank[c.stage + 1]);
  return CLV_OK;
}

/* Returns the rank whose candidate starts earliest. If several start then, prefers one whose stage
 * takes no time. */
static uint32_t find_earliest_rank(const greedy *g) {
  uint32_t best = 0;
  for (uint32_t r = 1; r < g->s->shape.n_ranks; r++) {
    const candidate *a = &g->candidates[r], *b = &g->candidates[best];
    if (a->start < b->start || (a->start == b->start && !isinf(a->start) &&
                                g->p->free_stages[a->stage] > g->p->free_stages[b->stage]))
      best = r;
  }
  return best;
}

clv_code clv_sched_greedy(clv_sched *s, const sched_policy *policy, const clv_sched_costs *c,
                          clv_err *err) {
  CLV_AUTO(greedy_done) greedy g = {.s = s, .p = policy, .c = c, .err = err};
  CLV_TRY(greedy_init(&g));
  for (uint32_t r = 0; r < s->shape.n_ranks; r++) find_next_candidate(&g, r);
  for (uint32_t r = find_earliest_rank(&g); !isinf(g.candidates[r].start);
       r = find_earliest_rank(&g))
    CLV_TRY(run_next(&g, r));
  return CLV_OK;
}
