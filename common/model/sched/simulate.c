/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_simulate_lists: runs the lists of a schedule in simulated time. The time of a rank
 * depends only on its own last instruction and on arrivals, and a link carries the tensors of one
 * rank in that rank's order. So ranks can be run one after another, each until it has to wait, with
 * the same result as running all at once.
 */
#include "common/model/sched/sched_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- links between ranks --------------------------------------------------------------------- */

clv_code clv_sched_links_init(sched_links *l, uint32_t n_ranks, clv_err *err) {
  l->n_ranks = n_ranks;
  return clv_alloc((size_t)n_ranks * n_ranks, sizeof *l->link_free_at, &l->link_free_at, err);
}

double clv_sched_links_send(sched_links *l, const clv_sched_shape *shape, const clv_sched_costs *c,
                            uint32_t edge, bool is_backward, double now) {
  uint32_t from = shape->stage_rank[edge + is_backward],
           to = shape->stage_rank[edge + !is_backward];
  double *free_at = &l->link_free_at[(size_t)from * l->n_ranks + to];
  *free_at = fmax(*free_at, now) +
             (is_backward ? c->serialise_backward_seconds : c->serialise_forward_seconds)[edge];
  return *free_at + c->latency_seconds[edge];
}

double clv_sched_instr_seconds(const clv_sched_costs *c, clv_instr_kind kind, uint32_t stage) {
  const double cost[CLV_INSTR_KINDS] = {
      [CLV_INSTR_FORWARD] = c->forward_seconds[stage],
      [CLV_INSTR_BACKWARD] = c->input_grad_seconds[stage] + c->weight_grad_seconds[stage],
      [CLV_INSTR_INPUT] = c->input_grad_seconds[stage],
      [CLV_INSTR_WEIGHT] = c->weight_grad_seconds[stage],
      [CLV_INSTR_STEP] = c->step_seconds[stage],
  };
  return cost[kind];
}

/* ---- running the lists in simulated time ----------------------------------------------------- */

typedef struct simulation {
  const clv_sched *s;
  const clv_sched_costs *c;
  clv_sched_run *run;
  sched_links links;
  /* [edge][micro] arrival time of the activation [0], of the gradient [1]; < 0: not sent yet */
  double *arrival_time[2];
  /* [stage][micro] time at which the input gradient of a B or I is computed */
  double *input_gradient_time;
  double *rank_time;    /* [rank] time at which the rank's last instruction ended */
  uint32_t *next_instr; /* [rank] position of the next instruction */
  /* circular queue of ranks that may be able to continue, each rank at most once */
  uint32_t *rank_queue;
  uint32_t queue_head, n_queued_ranks;
  bool *is_queued;
} simulation;

static void simulation_clear(simulation *w) {
  free(w->links.link_free_at);
  free(w->arrival_time[0]);
  free(w->arrival_time[1]);
  free(w->input_gradient_time);
  free(w->rank_time);
  free(w->next_instr);
  free(w->rank_queue);
  free(w->is_queued);
}

static clv_code simulation_init(simulation *w, clv_err *err) {
  const clv_sched_shape *shape = &w->s->shape;
  size_t n = (size_t)shape->n_stages * shape->n_micro_batches;
  CLV_TRY(clv_sched_links_init(&w->links, shape->n_ranks, err));
  for (int is_backward = 0; is_backward < 2; is_backward++) {
    CLV_TRY(clv_alloc(n, sizeof(double), &w->arrival_time[is_backward], err));
    for (size_t i = 0; i < n; i++) w->arrival_time[is_backward][i] = -1;
  }
  CLV_TRY(clv_alloc(n, sizeof *w->input_gradient_time, &w->input_gradient_time, err));
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *w->rank_time, &w->rank_time, err));
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *w->next_instr, &w->next_instr, err));
  CLV_TRY(clv_alloc(shape->n_ranks, sizeof *w->rank_queue, &w->rank_queue, err));
  return clv_alloc(shape->n_ranks, sizeof *w->is_queued, &w->is_queued, err);
}

static void enqueue_rank(simulation *w, uint32_t rank) {
  if (w->is_queued[rank]) return;
  w->is_queued[rank] = true;
  w->rank_queue[(w->queue_head + w->n_queued_ranks++) % w->s->shape.n_ranks] = rank;
}

/* Returns the address of the arrival time of the tensor that a send or receive instruction moves.
 */
static double *arrival_of(simulation *w, const clv_instr *i) {
  bool is_backward = i->kind == CLV_INSTR_SEND_B || i->kind == CLV_INSTR_RECV_B;
  bool is_edge_above = i->kind == CLV_INSTR_RECV_F || i->kind == CLV_INSTR_SEND_B;
  size_t edge = i->stage - (size_t)is_edge_above;
  return &w->arrival_time[is_backward][edge * w->s->shape.n_micro_batches + i->micro_batch];
}

static void send_tensor(simulation *w, const clv_instr *i, double now) {
  bool is_backward = i->kind == CLV_INSTR_SEND_B;
  uint32_t edge = i->stage - (uint32_t)is_backward;
  if (is_backward && w->c->sends_input_gradient_first)
    now = fmin(
        now,
        w->input_gradient_time[(size_t)i->stage * w->s->shape.n_micro_batches + i->micro_batch]);
  *arrival_of(w, i) = clv_sched_links_send(&w->links, &w->s->shape, w->c, edge, is_backward, now);
  enqueue_rank(w, w->s->shape.stage_rank[edge + !is_backward]);
}

/* Runs one instruction of a rank. Returns false if the tensor that it receives has not been sent
 * yet. */
static bool run_instr(simulation *w, uint32_t rank, const clv_instr *i) {
  double begin = w->rank_time[rank], end = begin;
  if (i->kind == CLV_INSTR_RECV_F || i->kind == CLV_INSTR_RECV_B) {
    double arrival_time = *arrival_of(w, i);
    if (arrival_time < 0) return false;
    end = fmax(begin, arrival_time);
  } else if (i->kind == CLV_INSTR_SEND_F || i->kind == CLV_INSTR_SEND_B) {
    send_tensor(w, i, begin);
  } else {
    double cost = clv_sched_instr_seconds(w->c, i->kind, i->stage);
    end = begin + cost;
    if (i->kind == CLV_INSTR_BACKWARD || i->kind == CLV_INSTR_INPUT)
      w->input_gradient_time[(size_t)i->stage * w->s->shape.n_micro_batches + i->micro_batch] =
          begin + w->c->input_grad_seconds[i->stage];
    if (w->run) w->run->busy_seconds[rank] += cost;
  }
  w->rank_time[rank] = end;
  if (w->run && w->run->spans)
    w->run->spans[rank][w->next_instr[rank]] = (clv_sched_span){.begin = begin, .end = end};
  return true;
}

static void run_ranks(simulation *w) {
  for (uint32_t r = 0; r < w->s->shape.n_ranks; r++) enqueue_rank(w, r);
  while (w->n_queued_ranks) {
    uint32_t r = w->rank_queue[w->queue_head];
    w->queue_head = (w->queue_head + 1) % w->s->shape.n_ranks;
    w->n_queued_ranks--;
    w->is_queued[r] = false;
    while (w->next_instr[r] < w->s->n[r] && run_instr(w, r, &w->s->instrs[r][w->next_instr[r]]))
      w->next_instr[r]++;
  }
}

/* Fails because no rank can continue. The text says which instruction waits for which. */
static clv_code fail_deadlock(const simulation *w, uint32_t rank, clv_err *err) {
  char text[SCHED_INSTR_TEXT], send_text[SCHED_INSTR_TEXT], other_text[SCHED_INSTR_TEXT];
  const clv_sched *s = w->s;
  const clv_instr *i = &s->instrs[rank][w->next_instr[rank]];
  bool is_backward = i->kind == CLV_INSTR_RECV_B;
  clv_instr want = {.kind = is_backward ? CLV_INSTR_SEND_B : CLV_INSTR_SEND_F,
                    .stage = (uint16_t)(is_backward ? i->stage + 1 : i->stage - 1),
                    .micro_batch = i->micro_batch};
  uint32_t peer = s->shape.stage_rank[want.stage], at = w->next_instr[peer];
  const clv_instr *other = &s->instrs[peer][at];
  return clv_fail(
      err, CLV_INVALID,
      "rank %u, instruction %u (%s of stage %u): waits for %s of stage %u for ever: rank "
      "%u, which sends it, waits at instruction %u (%s of stage %u) before it does",
      rank, w->next_instr[rank], clv_instr_text(i, text), i->stage,
      clv_instr_text(&want, send_text), want.stage, peer, at, clv_instr_text(other, other_text),
      other->stage);
}

static clv_code alloc_spans(const clv_sched *s, clv_sched_run *run, clv_err *err) {
  CLV_TRY(clv_alloc(s->shape.n_ranks, sizeof *run->spans, &run->spans, err));
  for (uint32_t r = 0; r < s->shape.n_ranks; r++)
    CLV_TRY(clv_alloc(s->n[r], sizeof **run->spans, &run->spans[r], err));
  return CLV_OK;
}

static void compute_totals(const simulation *w) {
  double busy = 0;
  uint32_t n_computing_ranks = 0;
  for (uint32_t r = 0; r < w->s->shape.n_ranks; r++) {
    w->run->seconds = fmax(w->run->seconds, w->rank_time[r]);
    busy += w->run->busy_seconds[r];
    n_computing_ranks += w->run->busy_seconds[r] > 0;
  }
  w->run->bubble = n_computing_ranks ? 1 - busy / (w->run->seconds * n_computing_ranks) : 0;
}

void clv_sched_run_clear(clv_sched_run *r, const clv_sched *s) {
  if (!r) return;
  for (uint32_t i = 0; r->spans && i < s->shape.n_ranks; i++) free(r->spans[i]);
  free(r->spans);
  memset(r, 0, sizeof *r);
}

clv_code clv_sched_simulate_lists(const clv_sched *s, const clv_sched_costs *c, bool spans,
                                  clv_sched_run *ret, clv_err *err) {
  static const clv_sched_costs no_costs;
  CLV_AUTO(simulation_clear) simulation w = {.s = s, .c = c ? c : &no_costs, .run = ret};
  CLV_TRY(simulation_init(&w, err));
  if (spans) CLV_TRY(alloc_spans(s, ret, err));
  run_ranks(&w);
  for (uint32_t r = 0; r < s->shape.n_ranks; r++)
    if (w.next_instr[r] < s->n[r]) return fail_deadlock(&w, r, err);
  if (ret) compute_totals(&w);
  return CLV_OK;
}
