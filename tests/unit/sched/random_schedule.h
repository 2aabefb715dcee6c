/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes random valid schedules: all instructions of a round in a random order in which each comes
 * after what it needs, and each stage's forwards, input gradients and weight gradients ascend. Also
 * damages schedules.
 */
#ifndef CLEAVE_RANDOM_SCHEDULE_H
#define CLEAVE_RANDOM_SCHEDULE_H

#include "tests/unit/sched/sched_test.h"

enum { RANDOM_STAGES = 5, RANDOM_MICROS = 8 };

typedef struct schedule_builder {
  clv_sched *s;
  uint64_t *rng_state;
  clv_instr possible[RANDOM_STAGES * (4 * RANDOM_MICROS + 4)];
  uint32_t n_possible;
  uint32_t n_forwards[RANDOM_STAGES], n_input_grads[RANDOM_STAGES], n_weight_grads[RANDOM_STAGES],
      n_steps[RANDOM_STAGES];
  bool is_moved[4][RANDOM_STAGES][RANDOM_MICROS];
  /* true: instruction B, the whole backward, replaces I and W */
  bool has_whole_backward[RANDOM_STAGES][RANDOM_MICROS];
} schedule_builder;

static inline clv_sched_shape draw_shape(uint64_t *seed, clv_sched_kind kind) {
  clv_sched_shape shape = make_shape(1 + draw_below(seed, RANDOM_STAGES), 1 + draw_below(seed, 4),
                                     1 + draw_below(seed, RANDOM_MICROS));
  for (uint32_t s = 0; s < shape.n_stages; s++)
    shape.stage_rank[s] = (uint16_t)draw_below(seed, shape.n_ranks);
  if (draw_below(seed, 3) == 0) shape.first_backward_stage = draw_below(seed, shape.n_stages + 1);
  if (kind == CLV_SCHED_PIPEDREAM_2BW) {
    shape.n_accumulate = 1 + draw_below(seed, 3);
    shape.n_micro_batches =
        shape.n_accumulate * (1 + draw_below(seed, RANDOM_MICROS / shape.n_accumulate));
  }
  return shape;
}

static inline void add_possible(schedule_builder *x, clv_instr_kind kind, uint32_t stage,
                                uint32_t micro, uint32_t age) {
  x->possible[x->n_possible++] = (clv_instr){.kind = (uint8_t)kind,
                                             .stage = (uint16_t)stage,
                                             .micro_batch = micro,
                                             .weights_age = (uint8_t)age};
}

static inline bool *get_is_moved(schedule_builder *x, clv_instr_kind kind, uint32_t stage,
                                 uint32_t micro) {
  return &x->is_moved[kind - CLV_INSTR_SEND_F][stage][micro];
}

static inline void add_possible_transfer(schedule_builder *x, uint32_t s, uint32_t k) {
  const clv_sched_shape *shape = &x->s->shape;
  if (is_cross_rank_edge(shape, s) && k < x->n_forwards[s] &&
      !*get_is_moved(x, CLV_INSTR_SEND_F, s, k))
    add_possible(x, CLV_INSTR_SEND_F, s, k, 0);
  if (s && is_cross_rank_edge(shape, s - 1) && *get_is_moved(x, CLV_INSTR_SEND_F, s - 1, k) &&
      !*get_is_moved(x, CLV_INSTR_RECV_F, s, k))
    add_possible(x, CLV_INSTR_RECV_F, s, k, 0);
  if (s && has_cross_rank_gradient(shape, s - 1) && k < x->n_input_grads[s] &&
      !*get_is_moved(x, CLV_INSTR_SEND_B, s, k))
    add_possible(x, CLV_INSTR_SEND_B, s, k, 0);
  if (has_cross_rank_gradient(shape, s) && *get_is_moved(x, CLV_INSTR_SEND_B, s + 1, k) &&
      !*get_is_moved(x, CLV_INSTR_RECV_B, s, k))
    add_possible(x, CLV_INSTR_RECV_B, s, k, 0);
}

static inline void add_possible_forward(schedule_builder *x, uint32_t s, uint32_t micros_per_step) {
  const clv_sched_shape *shape = &x->s->shape;
  uint32_t k = x->n_forwards[s],
           oldest_version = micros_per_step && k >= micros_per_step ? k / micros_per_step - 1 : 0;
  bool keeps_versions = x->s->kind == CLV_SCHED_PIPEDREAM_2BW && is_trained_stage(shape, s);
  if (k == shape->n_micro_batches || (keeps_versions && x->n_steps[s] < oldest_version)) return;
  if (s && !(is_cross_rank_edge(shape, s - 1) ? *get_is_moved(x, CLV_INSTR_RECV_F, s, k)
                                              : x->n_forwards[s - 1] > k))
    return;
  add_possible(x, CLV_INSTR_FORWARD, s, k, keeps_versions ? x->n_steps[s] - oldest_version : 0);
}

static inline void add_possible_backward(schedule_builder *x, uint32_t s,
                                         uint32_t micros_per_step) {
  const clv_sched_shape *shape = &x->s->shape;
  uint32_t k = x->n_input_grads[s], n_weight_grads = x->n_weight_grads[s];
  bool is_last = s + 1 == shape->n_stages;
  bool has_gradient =
      k < x->n_forwards[s] &&
      (is_last || (is_cross_rank_edge(shape, s) ? *get_is_moved(x, CLV_INSTR_RECV_B, s, k)
                                                : x->n_input_grads[s + 1] > k));
  bool is_of_step = !micros_per_step || n_weight_grads / micros_per_step == x->n_steps[s];
  if (has_gradient && !x->has_whole_backward[s][k]) add_possible(x, CLV_INSTR_INPUT, s, k, 0);
  if (has_gradient && x->has_whole_backward[s][k] && n_weight_grads == k && is_of_step)
    add_possible(x, CLV_INSTR_BACKWARD, s, k, 0);
  if (n_weight_grads < k && is_of_step) add_possible(x, CLV_INSTR_WEIGHT, s, n_weight_grads, 0);
  if (micros_per_step && n_weight_grads == (x->n_steps[s] + 1) * micros_per_step)
    add_possible(x, CLV_INSTR_STEP, s, x->n_steps[s], 0);
}

static inline void take_instruction(schedule_builder *x, const clv_instr *i) {
  uint32_t s = i->stage;
  x->n_forwards[s] += i->kind == CLV_INSTR_FORWARD;
  x->n_input_grads[s] += i->kind == CLV_INSTR_BACKWARD || i->kind == CLV_INSTR_INPUT;
  x->n_weight_grads[s] += i->kind == CLV_INSTR_BACKWARD || i->kind == CLV_INSTR_WEIGHT;
  x->n_steps[s] += i->kind == CLV_INSTR_STEP;
  if (i->kind >= CLV_INSTR_SEND_F && i->kind <= CLV_INSTR_RECV_B)
    *get_is_moved(x, i->kind, s, i->micro_batch) = true;
  ok(clv_sched_add_instr(x->s, x->s->shape.stage_rank[s], i->kind, s, i->micro_batch,
                         i->weights_age, err));
}

static inline clv_sched *make_random_of_shape(const clv_sched_shape *shape, clv_sched_kind kind,
                                              uint64_t *seed) {
  schedule_builder x = {.rng_state = seed};
  uint32_t per_step = clv_sched_micro_batches_per_step(kind, shape);
  ok(clv_sched_new(kind, shape, 0, &x.s, err));
  for (uint32_t s = 0; s < shape->n_stages; s++)
    for (uint32_t k = 0; k < shape->n_micro_batches; k++)
      x.has_whole_backward[s][k] = draw_below(seed, 2);
  for (;;) {
    x.n_possible = 0;
    for (uint32_t s = 0; s < shape->n_stages; s++) {
      add_possible_forward(&x, s, per_step);
      if (is_trained_stage(shape, s)) add_possible_backward(&x, s, per_step);
      for (uint32_t k = 0; k < shape->n_micro_batches; k++) add_possible_transfer(&x, s, k);
    }
    if (!x.n_possible) return x.s;
    take_instruction(&x, &x.possible[draw_below(seed, x.n_possible)]);
  }
}

static inline clv_sched *make_random_schedule(uint64_t *seed) {
  static const clv_sched_kind kinds[] = {CLV_SCHED_CUSTOM, CLV_SCHED_CUSTOM, CLV_SCHED_PIPEDREAM,
                                         CLV_SCHED_PIPEDREAM_2BW};
  clv_sched_kind kind = kinds[draw_below(seed, CLV_COUNT(kinds))];
  clv_sched_shape shape = draw_shape(seed, kind);
  return make_random_of_shape(&shape, kind, seed);
}

/* ---- damaging a schedule --------------------------------------------------------------------- */

static inline void insert_instruction(clv_sched *s, uint32_t rank, uint32_t at, clv_instr i) {
  ok(clv_sched_add_instr(s, rank, i.kind, i.stage, i.micro_batch, i.weights_age, err));
  clv_instr *list = s->instrs[rank];
  memmove(&list[at + 1], &list[at], (s->n[rank] - 1 - at) * sizeof *list);
  list[at] = i;
}

static inline clv_instr remove_instruction(clv_sched *s, uint32_t rank, uint32_t at) {
  clv_instr *list = s->instrs[rank], i = list[at];
  memmove(&list[at], &list[at + 1], (s->n[rank] - 1 - at) * sizeof *list);
  s->n[rank]--;
  return i;
}

/* Damages a schedule at random: drops, duplicates, swaps or moves an instruction, or changes its
 * rank, stage, micro-batch, kind or weights_age. */
static inline void damage_schedule(clv_sched *s, uint64_t *seed) {
  uint32_t rank = draw_below(seed, s->shape.n_ranks),
           other_rank = draw_below(seed, s->shape.n_ranks);
  for (uint32_t r = 0; !s->n[rank]; r++) {
    if (r == s->shape.n_ranks) return;
    rank = r;
  }
  uint32_t at = draw_below(seed, s->n[rank]), to = draw_below(seed, s->n[rank]);
  clv_instr *i = &s->instrs[rank][at], old_instr = *i;
  switch (draw_below(seed, 9)) {
    case 0:
      remove_instruction(s, rank, at);
      break;
    case 1:
      insert_instruction(s, rank, to, old_instr);
      break;
    case 2:
      *i = s->instrs[rank][to], s->instrs[rank][to] = old_instr;
      break;
    case 3:
      old_instr = remove_instruction(s, rank, at),
      insert_instruction(s, rank, draw_below(seed, s->n[rank] + 1), old_instr);
      break;
    case 4:
      old_instr = remove_instruction(s, rank, at),
      insert_instruction(s, other_rank, draw_below(seed, s->n[other_rank] + 1), old_instr);
      break;
    case 5:
      i->stage = (uint16_t)draw_below(seed, s->shape.n_stages + 2);
      break;
    case 6:
      i->micro_batch = draw_below(seed, s->shape.n_micro_batches + 2);
      break;
    case 7:
      i->kind = (uint8_t)draw_below(seed, CLV_INSTR_KINDS + 1);
      break;
    case 8:
      i->weights_age = (uint8_t)draw_below(seed, 3);
      break;
  }
}

#endif
