/* SPDX-License-Identifier: Apache-2.0
 *
 * Random valid schedules: all instructions of a round in a random order in which each comes after
 * what it needs, and each stage's forwards, input gradients and weight gradients ascend. And ways
 * to damage one.
 */
#ifndef CLEAVE_RANDOM_SCHEDULE_H
#define CLEAVE_RANDOM_SCHEDULE_H

#include "tests/unit/sched/sched_test.h"

enum { RANDOM_STAGES = 5, RANDOM_MICROS = 8 };

typedef struct shuffle {
  clv_sched *s;
  uint64_t *seed;
  clv_instr may[RANDOM_STAGES * (4 * RANDOM_MICROS + 4)];
  uint32_t n_may;
  uint32_t f[RANDOM_STAGES], i[RANDOM_STAGES], w[RANDOM_STAGES], steps[RANDOM_STAGES];
  bool moved[4][RANDOM_STAGES][RANDOM_MICROS];
  bool whole[RANDOM_STAGES][RANDOM_MICROS]; /* true: B, the whole backward, in place of I and W */
} shuffle;

static inline clv_sched_shape random_shape(uint64_t *seed, clv_sched_kind kind) {
  clv_sched_shape shape =
      shape_of(1 + roll(seed, RANDOM_STAGES), 1 + roll(seed, 4), 1 + roll(seed, RANDOM_MICROS));
  for (uint32_t s = 0; s < shape.n_stages; s++)
    shape.stage_rank[s] = (uint16_t)roll(seed, shape.n_ranks);
  if (roll(seed, 3) == 0) shape.first_backward_stage = roll(seed, shape.n_stages + 1);
  if (kind == CLV_SCHED_PIPEDREAM_2BW) {
    shape.n_accumulate = 1 + roll(seed, 3);
    shape.n_micro_batches =
        shape.n_accumulate * (1 + roll(seed, RANDOM_MICROS / shape.n_accumulate));
  }
  return shape;
}

static inline void may(shuffle *x, clv_instr_kind kind, uint32_t stage, uint32_t micro,
                       uint32_t age) {
  x->may[x->n_may++] = (clv_instr){.kind = (uint8_t)kind,
                                   .stage = (uint16_t)stage,
                                   .micro_batch = micro,
                                   .weights_age = (uint8_t)age};
}

static inline bool *moved(shuffle *x, clv_instr_kind kind, uint32_t stage, uint32_t micro) {
  return &x->moved[kind - CLV_INSTR_SEND_F][stage][micro];
}

static inline void may_move(shuffle *x, uint32_t s, uint32_t k) {
  const clv_sched_shape *shape = &x->s->shape;
  if (is_cross_rank_edge(shape, s) && k < x->f[s] && !*moved(x, CLV_INSTR_SEND_F, s, k))
    may(x, CLV_INSTR_SEND_F, s, k, 0);
  if (s && is_cross_rank_edge(shape, s - 1) && *moved(x, CLV_INSTR_SEND_F, s - 1, k) &&
      !*moved(x, CLV_INSTR_RECV_F, s, k))
    may(x, CLV_INSTR_RECV_F, s, k, 0);
  if (s && has_cross_rank_gradient(shape, s - 1) && k < x->i[s] &&
      !*moved(x, CLV_INSTR_SEND_B, s, k))
    may(x, CLV_INSTR_SEND_B, s, k, 0);
  if (has_cross_rank_gradient(shape, s) && *moved(x, CLV_INSTR_SEND_B, s + 1, k) &&
      !*moved(x, CLV_INSTR_RECV_B, s, k))
    may(x, CLV_INSTR_RECV_B, s, k, 0);
}

static inline void may_forward(shuffle *x, uint32_t s, uint32_t per_step) {
  const clv_sched_shape *shape = &x->s->shape;
  uint32_t k = x->f[s], oldest = per_step && k >= per_step ? k / per_step - 1 : 0;
  bool versions = x->s->kind == CLV_SCHED_PIPEDREAM_2BW && is_trained_stage(shape, s);
  if (k == shape->n_micro_batches || (versions && x->steps[s] < oldest)) return;
  if (s &&
      !(is_cross_rank_edge(shape, s - 1) ? *moved(x, CLV_INSTR_RECV_F, s, k) : x->f[s - 1] > k))
    return;
  may(x, CLV_INSTR_FORWARD, s, k, versions ? x->steps[s] - oldest : 0);
}

static inline void may_backward(shuffle *x, uint32_t s, uint32_t per_step) {
  const clv_sched_shape *shape = &x->s->shape;
  uint32_t k = x->i[s], w = x->w[s];
  bool last = s + 1 == shape->n_stages;
  bool there =
      k < x->f[s] && (last || (is_cross_rank_edge(shape, s) ? *moved(x, CLV_INSTR_RECV_B, s, k)
                                                            : x->i[s + 1] > k));
  bool of_step = !per_step || w / per_step == x->steps[s];
  if (there && !x->whole[s][k]) may(x, CLV_INSTR_INPUT, s, k, 0);
  if (there && x->whole[s][k] && w == k && of_step) may(x, CLV_INSTR_BACKWARD, s, k, 0);
  if (w < k && of_step) may(x, CLV_INSTR_WEIGHT, s, w, 0);
  if (per_step && w == (x->steps[s] + 1) * per_step) may(x, CLV_INSTR_STEP, s, x->steps[s], 0);
}

static inline void take(shuffle *x, const clv_instr *i) {
  uint32_t s = i->stage;
  x->f[s] += i->kind == CLV_INSTR_FORWARD;
  x->i[s] += i->kind == CLV_INSTR_BACKWARD || i->kind == CLV_INSTR_INPUT;
  x->w[s] += i->kind == CLV_INSTR_BACKWARD || i->kind == CLV_INSTR_WEIGHT;
  x->steps[s] += i->kind == CLV_INSTR_STEP;
  if (i->kind >= CLV_INSTR_SEND_F && i->kind <= CLV_INSTR_RECV_B)
    *moved(x, i->kind, s, i->micro_batch) = true;
  ok(clv_sched_add_instr(x->s, x->s->shape.stage_rank[s], i->kind, s, i->micro_batch,
                         i->weights_age, err));
}

static inline clv_sched *random_of(const clv_sched_shape *shape, clv_sched_kind kind,
                                   uint64_t *seed) {
  shuffle x = {.seed = seed};
  uint32_t per_step = clv_sched_micro_batches_per_step(kind, shape);
  ok(clv_sched_new(kind, shape, 0, &x.s, err));
  for (uint32_t s = 0; s < shape->n_stages; s++)
    for (uint32_t k = 0; k < shape->n_micro_batches; k++) x.whole[s][k] = roll(seed, 2);
  for (;;) {
    x.n_may = 0;
    for (uint32_t s = 0; s < shape->n_stages; s++) {
      may_forward(&x, s, per_step);
      if (is_trained_stage(shape, s)) may_backward(&x, s, per_step);
      for (uint32_t k = 0; k < shape->n_micro_batches; k++) may_move(&x, s, k);
    }
    if (!x.n_may) return x.s;
    take(&x, &x.may[roll(seed, x.n_may)]);
  }
}

static inline clv_sched *random_schedule(uint64_t *seed) {
  static const clv_sched_kind kinds[] = {CLV_SCHED_CUSTOM, CLV_SCHED_CUSTOM, CLV_SCHED_PIPEDREAM,
                                         CLV_SCHED_PIPEDREAM_2BW};
  clv_sched_kind kind = kinds[roll(seed, CLV_COUNT(kinds))];
  clv_sched_shape shape = random_shape(seed, kind);
  return random_of(&shape, kind, seed);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static inline void insert(clv_sched *s, uint32_t rank, uint32_t at, clv_instr i) {
  ok(clv_sched_add_instr(s, rank, i.kind, i.stage, i.micro_batch, i.weights_age, err));
  clv_instr *list = s->instrs[rank];
  memmove(&list[at + 1], &list[at], (s->n[rank] - 1 - at) * sizeof *list);
  list[at] = i;
}

static inline clv_instr cut(clv_sched *s, uint32_t rank, uint32_t at) {
  clv_instr *list = s->instrs[rank], i = list[at];
  memmove(&list[at], &list[at + 1], (s->n[rank] - 1 - at) * sizeof *list);
  s->n[rank]--;
  return i;
}

/* Damages a schedule at random: drops, duplicates, swaps or moves an instruction, or changes its
 * rank, stage, micro-batch, kind or the version. */
static inline void damage(clv_sched *s, uint64_t *seed) {
  uint32_t rank = roll(seed, s->shape.n_ranks), other = roll(seed, s->shape.n_ranks);
  for (uint32_t r = 0; !s->n[rank]; r++) {
    if (r == s->shape.n_ranks) return;
    rank = r;
  }
  uint32_t at = roll(seed, s->n[rank]), to = roll(seed, s->n[rank]);
  clv_instr *i = &s->instrs[rank][at], was = *i;
  switch (roll(seed, 9)) {
    case 0:
      cut(s, rank, at);
      break;
    case 1:
      insert(s, rank, to, was);
      break;
    case 2:
      *i = s->instrs[rank][to], s->instrs[rank][to] = was;
      break;
    case 3:
      was = cut(s, rank, at), insert(s, rank, roll(seed, s->n[rank] + 1), was);
      break;
    case 4:
      was = cut(s, rank, at), insert(s, other, roll(seed, s->n[other] + 1), was);
      break;
    case 5:
      i->stage = (uint16_t)roll(seed, s->shape.n_stages + 2);
      break;
    case 6:
      i->micro_batch = roll(seed, s->shape.n_micro_batches + 2);
      break;
    case 7:
      i->kind = (uint8_t)roll(seed, CLV_INSTR_KINDS + 1);
      break;
    case 8:
      i->weights_age = (uint8_t)roll(seed, 3);
      break;
  }
}

#endif
