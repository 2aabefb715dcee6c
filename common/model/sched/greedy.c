/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_greedy: generation of lists by running the pipeline in simulated time. In each turn the
 * rank that can start an instruction first starts the best one allowed (sched_policy). All inputs
 * that are ready at that time are known, because no instruction can start earlier any more. Only a
 * stage that takes no time makes an input ready at its own start, so such stages go first among
 * equals.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdlib.h>

typedef struct stage_state {
  uint32_t f, b, w, steps; /* forwards, input gradients, weight gradients and steps done */
} stage_state;

/* Next instruction of a rank. */
typedef struct candidate {
  double start; /* seconds; INFINITY: there is none */
  uint32_t stage, micro, urgency;
  clv_instr_kind kind;
} candidate;

typedef struct greedy {
  clv_sched *s;
  const sched_policy *p;
  const clv_sched_costs *c;
  sched_links links;
  double *ready[2];  /* [stage][micro] seconds at which the forward's input, the backward's
                      * gradient arrive; INFINITY: unknown */
  double *free_at;   /* [n_ranks] seconds at which a rank is free */
  uint32_t *ordinal; /* [n_ranks] position in the interleaved order */
  candidate *next;   /* [n_ranks] */
  stage_state stage[CLV_SCHED_STAGES];
  clv_err *err;
} greedy;

static void greedy_done(greedy *g) {
  free(g->links.free_at);
  free(g->ready[0]);
  free(g->ready[1]);
  free(g->free_at);
  free(g->ordinal);
  free(g->next);
}

static clv_code greedy_init(greedy *g) {
  const clv_sched_shape *shape = &g->s->shape;
  size_t n = (size_t)shape->n_stages * shape->n_micro;
  CLV_TRY(clv_sched_links_init(&g->links, shape->n_ranks, g->err));
  for (int back = 0; back < 2; back++) {
    CLV_TRY(clv_alloc(n, sizeof(double), &g->ready[back], g->err));
    for (size_t i = 0; i < n; i++) g->ready[back][i] = back || i >= shape->n_micro ? INFINITY : 0;
  }
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *g->free_at, &g->free_at, g->err));
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *g->ordinal, &g->ordinal, g->err));
  return clv_alloc(shape->n_ranks, sizeof *g->next, &g->next, g->err);
}

static double *ready(greedy *g, bool back, uint32_t stage, uint32_t micro) {
  return &g->ready[back][(size_t)stage * g->s->shape.n_micro + micro];
}

/* ---- allowed instructions -------------------------------------------------------------------- */

/* Returns how many forwards a stage may have run by now, whether their inputs have arrived or
 * not. */
static uint32_t forward_target(const greedy *g, uint32_t s) {
  const stage_state *st = &g->stage[s];
  uint64_t target = g->s->shape.n_micro;
  if (!sched_learns(&g->s->shape, s)) return (uint32_t)target;
  if (!g->p->ring) target = CLV_MIN(target, (uint64_t)st->b + g->p->limit[s]);
  if (g->p->split && g->p->held) target = CLV_MIN(target, (uint64_t)st->w + g->p->held);
  if (g->p->two_versions) target = CLV_MIN(target, ((uint64_t)st->steps + 2) * g->p->per_step);
  return (uint32_t)target;
}

/* Replaces *best by c if c is better: it starts earlier (but not before `now`), or at the same time
 * with a higher urgency, an older micro-batch or a deeper stage. */
static void offer(candidate *best, candidate c, double now) {
  c.start = fmax(c.start, now);
  if (c.start > best->start || isinf(c.start)) return;
  bool better = c.start < best->start || c.urgency > best->urgency ||
                (c.urgency == best->urgency &&
                 (c.micro < best->micro || (c.micro == best->micro && c.stage > best->stage)));
  if (better) *best = c;
}

/* Strict zb-h1: true if the stage has delayed more weight gradients than it may keep. The weight
 * gradients of its first micro-batches then fill its bubble. */
static bool has_weight_due(const greedy *g, uint32_t s) {
  const stage_state *st = &g->stage[s];
  return st->b - st->w > g->p->held - CLV_MIN(g->p->held, g->p->limit[s]);
}

static void offer_stage(greedy *g, uint32_t s, double now, candidate *best) {
  const stage_state *st = &g->stage[s];
  bool split = g->p->split && !g->p->free_stages[s];
  uint32_t target = forward_target(g, s), top = g->p->free_stages[s] ? 10 : 0;
  candidate forward = {.kind = CLV_INSTR_FORWARD, .stage = s, .micro = st->f, .urgency = top + 1};
  candidate weight = {.kind = CLV_INSTR_WEIGHT, .stage = s, .micro = st->w};
  candidate back = {.kind = CLV_INSTR_BACKWARD, .stage = s, .micro = st->b, .urgency = top + 2};
  bool pending = split && st->w < st->b, all_back = st->b == g->s->shape.n_micro;
  if (pending && (!g->p->strict || all_back || has_weight_due(g, s))) {
    offer(best, weight, now);
    if (g->p->strict) return;
  }
  if (st->f < target) {
    forward.start = *ready(g, false, s, st->f);
    offer(best, forward, now);
    if (g->p->strict) return;
  }
  if (!sched_learns(&g->s->shape, s) || st->b == st->f) return;
  if (split) back.kind = CLV_INSTR_INPUT;
  back.start = *ready(g, true, s, st->b);
  offer(best, back, now);
}

/* ---- Megatron's interleaved order ------------------------------------------------------------ */

/* Returns the i-th instruction of the rank at index `place` of a circular order of p ranks. The
 * rank has v stages: place, place + p, ... It runs forwards in groups of p micro-batches per stage.
 * After the first 2 (p - place - 1) + (v - 1) p forwards, a backward follows each forward; the
 * stages of backwards come in descending order.
 * (Narayanan et al. 2021, and forward_backward_pipelining_with_interleaving in Megatron-LM.) */
static candidate interleaved(uint32_t p, uint32_t v, uint32_t n_micro, uint32_t place, uint32_t i) {
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

/* Offers the next instruction of the interleaved order. Stages that take no time come last (make.c
 * checks it), so the order's stage numbers are those of the shape. */
static void offer_ring(greedy *g, uint32_t rank, double now, candidate *best) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t p = g->p->ring, v = clv_sched_depth(shape, g->p->free_stages, 0) / p, place = 0;
  while (place < p && shape->rank[place] != rank) place++;
  while (place < p && g->ordinal[rank] < 2 * shape->n_micro * v) {
    candidate c = interleaved(p, v, shape->n_micro, place, g->ordinal[rank]);
    bool back = c.kind == CLV_INSTR_BACKWARD;
    if (!back || sched_learns(shape, c.stage)) {
      c.start = *ready(g, back, c.stage, c.micro);
      offer(best, c, now);
      return;
    }
    g->ordinal[rank]++;
  }
}

static void find_next(greedy *g, uint32_t rank) {
  candidate best = {.start = INFINITY};
  for (uint32_t s = 0; s < g->s->shape.n_stages; s++)
    if (g->s->shape.rank[s] == rank && (!g->p->ring || g->p->free_stages[s]))
      offer_stage(g, s, g->free_at[rank], &best);
  if (g->p->ring) offer_ring(g, rank, g->free_at[rank], &best);
  g->next[rank] = best;
}

/* ---- running --------------------------------------------------------------------------------- */

static clv_code push(greedy *g, clv_instr_kind kind, uint32_t stage, uint32_t micro, uint32_t age) {
  return clv_sched_add_instr(g->s, g->s->shape.rank[stage], kind, stage, micro, age, g->err);
}

static uint32_t weights_age(const greedy *g, uint32_t s, uint32_t micro) {
  if (!g->p->two_versions || !sched_learns(&g->s->shape, s)) return 0;
  uint32_t step = micro / g->p->per_step;
  return g->stage[s].steps - (step ? step - 1 : 0);
}

static clv_code run_forward(greedy *g, const candidate *c, double end) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t s = c->stage, k = c->micro;
  if (s > 0 && sched_crosses(shape, s - 1)) CLV_TRY(push(g, CLV_INSTR_RECV_F, s, k, 0));
  CLV_TRY(push(g, CLV_INSTR_FORWARD, s, k, weights_age(g, s, k)));
  g->stage[s].f++;
  if (s + 1 == shape->n_stages) {
    *ready(g, true, s, k) = end;
  } else if (!sched_crosses(shape, s)) {
    *ready(g, false, s + 1, k) = end;
  } else {
    *ready(g, false, s + 1, k) = clv_sched_links_send(&g->links, shape, g->c, s, false, end);
    return push(g, CLV_INSTR_SEND_F, s, k, 0);
  }
  return CLV_OK;
}

static clv_code run_backward(greedy *g, const candidate *c, double end) {
  const clv_sched_shape *shape = &g->s->shape;
  uint32_t s = c->stage, k = c->micro;
  if (sched_crosses_back(shape, s)) CLV_TRY(push(g, CLV_INSTR_RECV_B, s, k, 0));
  CLV_TRY(push(g, c->kind, s, k, 0));
  g->stage[s].b++;
  g->stage[s].w += c->kind == CLV_INSTR_BACKWARD;
  double sent = g->c->input_first ? c->start + g->c->input[s] : end;
  if (s == 0 || !sched_learns(shape, s - 1)) return CLV_OK;
  if (!sched_crosses(shape, s - 1)) {
    *ready(g, true, s - 1, k) = end;
    return CLV_OK;
  }
  *ready(g, true, s - 1, k) = clv_sched_links_send(&g->links, shape, g->c, s - 1, true, sent);
  return push(g, CLV_INSTR_SEND_B, s, k, 0);
}

static clv_code run_weight(greedy *g, const candidate *c, double end) {
  (void)end;
  g->stage[c->stage].w++;
  return push(g, CLV_INSTR_WEIGHT, c->stage, c->micro, 0);
}

/* Adds the stage's step if one is due after `c`. */
static clv_code add_step(greedy *g, const candidate *c, double *end) {
  stage_state *st = &g->stage[c->stage];
  if (!g->p->per_step || c->kind == CLV_INSTR_FORWARD) return CLV_OK;
  if (st->w != (st->steps + 1) * g->p->per_step) return CLV_OK;
  *end += clv_sched_cost(g->c, CLV_INSTR_STEP, c->stage);
  return push(g, CLV_INSTR_STEP, c->stage, st->steps++, 0);
}

static clv_code run(greedy *g, uint32_t rank) {
  static clv_code (*const runs[CLV_INSTR_KINDS])(greedy *, const candidate *, double) = {
      [CLV_INSTR_FORWARD] = run_forward,
      [CLV_INSTR_BACKWARD] = run_backward,
      [CLV_INSTR_INPUT] = run_backward,
      [CLV_INSTR_WEIGHT] = run_weight,
  };
  const clv_sched_shape *shape = &g->s->shape;
  candidate c = g->next[rank];
  double end = c.start + clv_sched_cost(g->c, c.kind, c.stage);
  CLV_TRY(runs[c.kind](g, &c, end));
  CLV_TRY(add_step(g, &c, &end));
  g->free_at[rank] = end;
  if (g->p->ring && !g->p->free_stages[c.stage]) g->ordinal[rank]++;
  find_next(g, rank);
  if (c.stage > 0) find_next(g, shape->rank[c.stage - 1]);
  if (c.stage + 1 < shape->n_stages) find_next(g, shape->rank[c.stage + 1]);
  return CLV_OK;
}

/* Returns the rank that starts first; among equals one whose stage takes no time. */
static uint32_t first_rank(const greedy *g) {
  uint32_t best = 0;
  for (uint32_t r = 1; r < g->s->shape.n_ranks; r++) {
    const candidate *a = &g->next[r], *b = &g->next[best];
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
  for (uint32_t r = 0; r < s->shape.n_ranks; r++) find_next(&g, r);
  for (uint32_t r = first_rank(&g); !isinf(g.next[r].start); r = first_rank(&g))
    CLV_TRY(run(&g, r));
  return CLV_OK;
}
