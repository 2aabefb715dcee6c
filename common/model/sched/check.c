/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_sched_check: the check before a schedule runs. It checks first the list of each rank: a stage
 * runs at one rank, so order, completeness, versions of weights and memory depend on one list only.
 * Then it runs the instructions of all lists together, without time (clv_sched_simulate_lists).
 * Every receive has a send by then, so if no rank can continue, ranks wait for each other in a
 * cycle.
 */
#include "common/model/sched/sched_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stage_state {
  /* numbers of forwards, input gradients, weight gradients and steps done */
  uint32_t n_forwards_done, n_input_grads_done, n_weight_grads_done, n_steps_done;
  /* number of versions of the weights that live micro-batches use */
  uint32_t n_live_versions;
  uint32_t n_transfers[4]; /* numbers of SEND_F, RECV_F, SEND_B, RECV_B done */
} stage_state;

typedef struct checker {
  const clv_sched *s;
  clv_sched_report *report;
  clv_err *err;
  uint32_t micros_per_step;
  /* [stage][micro] one bit each for SEND_F, RECV_F, SEND_B, RECV_B: it is done */
  uint8_t *transfers_done;
  /* [stage][micro] number of optimiser steps in the weights that the F used; NULL: synchronous kind
   */
  uint32_t *weights_version;
  uint32_t rank, at; /* rank and position of `instr`, the instruction being checked */
  const clv_instr *instr;
  stage_state stages[CLV_SCHED_STAGES];
} checker;

static void checker_clear(checker *c) {
  free(c->transfers_done);
  free(c->weights_version);
}

CLV_PRINTF(2, 3) static clv_code fail_rule(const checker *c, const char *fmt, ...) {
  char text[256], name[SCHED_INSTR_TEXT];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return clv_fail(c->err, CLV_INVALID, "rank %u, instruction %u (%s of stage %u): %s", c->rank,
                  c->at, clv_instr_text(c->instr, name), c->instr->stage, text);
}

static size_t index_of_stage_and_micro(const checker *c, uint32_t stage, uint32_t micro) {
  return (size_t)stage * c->s->shape.n_micro_batches + micro;
}

static bool has_transferred(const checker *c, uint32_t stage, uint32_t micro, clv_instr_kind kind) {
  return c->transfers_done[index_of_stage_and_micro(c, stage, micro)] >> (kind - CLV_INSTR_SEND_F) &
         1;
}

/* Checks that the instruction has the next micro-batch of its kind. done: number of instructions of
 * that kind done. */
static clv_code check_in_order(const checker *c, const char *kind, uint32_t done) {
  if (c->instr->micro_batch == done) return CLV_OK;
  if (c->instr->micro_batch < done) return fail_rule(c, "has run before");
  return fail_rule(c, "%s%u has to come first", kind, done);
}

static clv_code check_stage_learns(const checker *c) {
  if (is_trained_stage(&c->s->shape, c->instr->stage)) return CLV_OK;
  return fail_rule(c, "the stage has only forwards (the first stage with a backward is %u)",
                   c->s->shape.first_backward_stage);
}

/* ---- counting live micro-batches and versions of weights ------------------------------------- */

static clv_code check_forward_version(checker *c, stage_state *st, uint32_t *ret) {
  const clv_instr *i = c->instr;
  bool is_age_allowed = c->s->kind == CLV_SCHED_PIPEDREAM_2BW;
  uint32_t step = c->micros_per_step ? i->micro_batch / c->micros_per_step : 0;
  uint32_t expected_steps = step ? step - 1 : 0;
  if (i->weights_age > st->n_steps_done || (i->weights_age && !is_age_allowed))
    return fail_rule(c, "there are no weights of %u steps ago to run on", i->weights_age);
  *ret = st->n_steps_done - i->weights_age;
  if (!is_age_allowed || *ret == expected_steps) return CLV_OK;
  return fail_rule(c,
                   "runs on the weights after %u steps, and all of step %u run on those after %u",
                   *ret, step, expected_steps);
}

/* Counts a micro-batch as live from its forward at a trained stage; uncount_live ends this after
 * its weight gradient. Micro-batches start and end in order and versions never decrease, so
 * micro-batches of one version are neighbours. */
static clv_code count_live(checker *c, stage_state *st) {
  uint32_t s = c->instr->stage, k = c->instr->micro_batch, version = 0,
           *weights_versions = c->weights_version;
  CLV_TRY(check_forward_version(c, st, &version));
  if (weights_versions) {
    weights_versions[index_of_stage_and_micro(c, s, k)] = version;
    if (st->n_weight_grads_done == k ||
        weights_versions[index_of_stage_and_micro(c, s, k) - 1] != version)
      st->n_live_versions++;
  }
  uint32_t n_live = k + 1 - st->n_weight_grads_done;
  c->report->max_live_micros[s] = CLV_MAX(c->report->max_live_micros[s], n_live);
  return CLV_OK;
}

static void uncount_live(checker *c, stage_state *st) {
  uint32_t s = c->instr->stage, k = c->instr->micro_batch, *weights_versions = c->weights_version;
  if (weights_versions &&
      (st->n_forwards_done == k + 1 || weights_versions[index_of_stage_and_micro(c, s, k) + 1] !=
                                           weights_versions[index_of_stage_and_micro(c, s, k)]))
    st->n_live_versions--;
}

/* Updates the maximum number of versions of the weights in memory: those of live micro-batches, and
 * the newest. */
static void count_versions(checker *c, uint32_t s) {
  const stage_state *st = &c->stages[s];
  uint32_t n = 1;
  if (c->weights_version) {
    bool newest_is_live =
        st->n_weight_grads_done < st->n_forwards_done &&
        c->weights_version[index_of_stage_and_micro(c, s, st->n_forwards_done - 1)] ==
            st->n_steps_done;
    n = st->n_live_versions + !newest_is_live;
  }
  c->report->max_weight_versions[s] = CLV_MAX(c->report->max_weight_versions[s], n);
}

static void count_staleness(checker *c) {
  uint32_t s = c->instr->stage;
  if (!c->weights_version) return;
  uint32_t age = c->stages[s].n_steps_done -
                 c->weights_version[index_of_stage_and_micro(c, s, c->instr->micro_batch)];
  c->report->max_staleness[s] = CLV_MAX(c->report->max_staleness[s], age);
}

/* ---- the rules, one function per kind of instruction ----------------------------------------- */

static clv_code check_forward_instr(checker *c, stage_state *st) {
  const clv_instr *i = c->instr;
  uint32_t s = i->stage, k = i->micro_batch;
  CLV_TRY(check_in_order(c, "F", st->n_forwards_done));
  if (s > 0 && is_cross_rank_edge(&c->s->shape, s - 1) &&
      !has_transferred(c, s, k, CLV_INSTR_RECV_F))
    return fail_rule(c, "its input was not received before (rf%u)", k);
  if (s > 0 && !is_cross_rank_edge(&c->s->shape, s - 1) && c->stages[s - 1].n_forwards_done <= k)
    return fail_rule(c, "F%u of stage %u has to come first", k, s - 1);
  if (is_trained_stage(&c->s->shape, s)) {
    CLV_TRY(count_live(c, st));
  } else if (i->weights_age) {
    return fail_rule(c, "a stage that takes no steps has no older weights");
  }
  st->n_forwards_done++;
  return CLV_OK;
}

static clv_code check_gradient_available(const checker *c, const stage_state *st) {
  uint32_t s = c->instr->stage, k = c->instr->micro_batch;
  if (st->n_forwards_done <= k) return fail_rule(c, "F%u has to come first", k);
  if (s + 1 == c->s->shape.n_stages) return CLV_OK;
  if (is_cross_rank_edge(&c->s->shape, s) && !has_transferred(c, s, k, CLV_INSTR_RECV_B))
    return fail_rule(c, "its gradient was not received before (rb%u)", k);
  if (!is_cross_rank_edge(&c->s->shape, s) && c->stages[s + 1].n_input_grads_done <= k)
    return fail_rule(c, "the gradient of micro-batch %u of stage %u has to come first", k, s + 1);
  return CLV_OK;
}

static clv_code check_input_gradient_instr(checker *c, stage_state *st) {
  CLV_TRY(check_stage_learns(c));
  CLV_TRY(check_in_order(c, "I", st->n_input_grads_done));
  CLV_TRY(check_gradient_available(c, st));
  st->n_input_grads_done++;
  return CLV_OK;
}

static clv_code check_weight_gradient_instr(checker *c, stage_state *st) {
  CLV_TRY(check_stage_learns(c));
  CLV_TRY(check_in_order(c, "W", st->n_weight_grads_done));
  if (st->n_input_grads_done <= c->instr->micro_batch)
    return fail_rule(c, "I%u has to come first", c->instr->micro_batch);
  if (c->micros_per_step && c->instr->micro_batch / c->micros_per_step != st->n_steps_done)
    return fail_rule(c, "belongs to step %u, and S%u has to come first",
                     c->instr->micro_batch / c->micros_per_step, st->n_steps_done);
  count_staleness(c);
  uncount_live(c, st);
  st->n_weight_grads_done++;
  return CLV_OK;
}

static clv_code check_backward_instr(checker *c, stage_state *st) {
  CLV_TRY(check_stage_learns(c));
  CLV_TRY(check_in_order(c, "B", st->n_input_grads_done));
  CLV_TRY(check_input_gradient_instr(c, st));
  return check_weight_gradient_instr(c, st);
}

static clv_code check_send_or_receive(checker *c, stage_state *st) {
  const clv_instr *i = c->instr;
  const clv_sched_shape *shape = &c->s->shape;
  bool is_backward = i->kind == CLV_INSTR_SEND_B || i->kind == CLV_INSTR_RECV_B;
  bool is_edge_above = i->kind == CLV_INSTR_RECV_F || i->kind == CLV_INSTR_SEND_B;
  bool crosses_ranks = (i->stage > 0 || !is_edge_above) &&
                       (is_backward ? has_cross_rank_gradient : is_cross_rank_edge)(
                           shape, i->stage - (uint32_t)is_edge_above);
  if (!crosses_ranks) return fail_rule(c, "nothing crosses between ranks there");
  if (has_transferred(c, i->stage, i->micro_batch, i->kind)) return fail_rule(c, "has run before");
  if (i->kind == CLV_INSTR_SEND_F && st->n_forwards_done <= i->micro_batch)
    return fail_rule(c, "F%u has to come first", i->micro_batch);
  if (i->kind == CLV_INSTR_SEND_B && st->n_input_grads_done <= i->micro_batch)
    return fail_rule(c, "the gradient of micro-batch %u has to come first", i->micro_batch);
  c->transfers_done[index_of_stage_and_micro(c, i->stage, i->micro_batch)] |=
      (uint8_t)(1u << (i->kind - CLV_INSTR_SEND_F));
  st->n_transfers[i->kind - CLV_INSTR_SEND_F]++;
  return CLV_OK;
}

static clv_code check_step_instr(checker *c, stage_state *st) {
  CLV_TRY(check_stage_learns(c));
  if (!c->micros_per_step)
    return fail_rule(c, "the step of a %s schedule comes after the round",
                     clv_sched_name(c->s->kind));
  CLV_TRY(check_in_order(c, "S", st->n_steps_done));
  uint64_t n_gradients_due = ((uint64_t)st->n_steps_done + 1) * c->micros_per_step;
  if (st->n_weight_grads_done != n_gradients_due)
    return fail_rule(c, "%u of its %llu gradients are there", st->n_weight_grads_done,
                     (unsigned long long)n_gradients_due);
  st->n_steps_done++;
  return CLV_OK;
}

static clv_code check_instr(checker *c) {
  static clv_code (*const rules[CLV_INSTR_KINDS])(checker *, stage_state *) = {
      [CLV_INSTR_FORWARD] = check_forward_instr,
      [CLV_INSTR_BACKWARD] = check_backward_instr,
      [CLV_INSTR_INPUT] = check_input_gradient_instr,
      [CLV_INSTR_WEIGHT] = check_weight_gradient_instr,
      [CLV_INSTR_SEND_F] = check_send_or_receive,
      [CLV_INSTR_RECV_F] = check_send_or_receive,
      [CLV_INSTR_SEND_B] = check_send_or_receive,
      [CLV_INSTR_RECV_B] = check_send_or_receive,
      [CLV_INSTR_STEP] = check_step_instr,
  };
  const clv_instr *i = c->instr;
  const clv_sched_shape *shape = &c->s->shape;
  if (i->kind >= CLV_INSTR_KINDS) return fail_rule(c, "there is no instruction %u", i->kind);
  if (i->stage >= shape->n_stages) return fail_rule(c, "there are %u stages", shape->n_stages);
  if (shape->stage_rank[i->stage] != c->rank)
    return fail_rule(c, "the stage is at rank %u", shape->stage_rank[i->stage]);
  if (i->micro_batch >= shape->n_micro_batches)
    return fail_rule(c, "there are %u micro-batches", shape->n_micro_batches);
  if (i->weights_age && i->kind != CLV_INSTR_FORWARD)
    return fail_rule(c, "forwards alone choose their weights");
  CLV_TRY(rules[i->kind](c, &c->stages[i->stage]));
  if (is_trained_stage(shape, i->stage)) count_versions(c, i->stage);
  return CLV_OK;
}

/* ---- completeness of the lists --------------------------------------------------------------- */

static clv_code check_instr_count(const checker *c, uint32_t s, clv_instr_kind kind, uint32_t done,
                                  uint32_t expected_steps) {
  uint32_t missing = done, rank = c->s->shape.stage_rank[s];
  if (done >= expected_steps) return CLV_OK;
  if (kind >= CLV_INSTR_SEND_F && kind <= CLV_INSTR_RECV_B)
    for (missing = 0; has_transferred(c, s, missing, kind);) missing++;
  return clv_fail(c->err, CLV_INVALID,
                  "rank %u, instruction %u (the end): %s%u of stage %u is missing", rank,
                  c->s->n[rank], clv_instr_names[kind], missing, s);
}

static clv_code check_complete(const checker *c) {
  const clv_sched_shape *shape = &c->s->shape;
  for (uint32_t s = 0; s < shape->n_stages; s++) {
    const stage_state *st = &c->stages[s];
    uint32_t m = shape->n_micro_batches, n_backwards = is_trained_stage(shape, s) ? m : 0;
    uint32_t n_steps = c->micros_per_step ? n_backwards / c->micros_per_step : 0;
    /* stage 0 has no edge above it, so takes n_stages, which is the number of no edge */
    uint32_t edge_above = s > 0 ? s - 1 : shape->n_stages;
    const uint32_t n_transfers_due[4] = {
        is_cross_rank_edge(shape, s) * m, is_cross_rank_edge(shape, edge_above) * m,
        has_cross_rank_gradient(shape, edge_above) * m, has_cross_rank_gradient(shape, s) * m};
    CLV_TRY(check_instr_count(c, s, CLV_INSTR_FORWARD, st->n_forwards_done, m));
    CLV_TRY(check_instr_count(c, s, CLV_INSTR_BACKWARD, st->n_input_grads_done, n_backwards));
    CLV_TRY(check_instr_count(c, s, CLV_INSTR_WEIGHT, st->n_weight_grads_done, n_backwards));
    CLV_TRY(check_instr_count(c, s, CLV_INSTR_STEP, st->n_steps_done, n_steps));
    for (uint32_t i = 0; i < 4; i++)
      CLV_TRY(
          check_instr_count(c, s, CLV_INSTR_SEND_F + i, st->n_transfers[i], n_transfers_due[i]));
  }
  return CLV_OK;
}

/* ---- the check of a schedule ----------------------------------------------------------------- */

/* Checks the sizes of a schedule before memory is allocated, so that later allocations take at most
 * a few bytes per instruction. */
static clv_code check_sizes(const clv_sched *s, clv_err *err) {
  const clv_sched_shape *shape = &s->shape;
  uint64_t total = 0, n_forwards = (uint64_t)shape->n_stages * shape->n_micro_batches;
  if ((unsigned)s->kind >= CLV_SCHED_KINDS)
    return clv_fail(err, CLV_INVALID, "there is no kind %d of schedule", (int)s->kind);
  for (uint32_t r = 0; r < shape->n_ranks; r++) total += s->n[r];
  total = CLV_MAX(total, n_forwards);
  if (total > CLV_SCHED_INSTRUCTIONS)
    return clv_fail(err, CLV_INVALID, "%llu instructions: the limit is %d",
                    (unsigned long long)total, CLV_SCHED_INSTRUCTIONS);
  bool needs_accumulate = s->kind == CLV_SCHED_PIPEDREAM_2BW;
  bool is_multiple = shape->n_accumulate && shape->n_micro_batches % shape->n_accumulate == 0;
  if (needs_accumulate ? !is_multiple : shape->n_accumulate != 0)
    return clv_fail(err, CLV_INVALID, "%s: %u micro-batches in steps of %u",
                    clv_sched_name(s->kind), shape->n_micro_batches, shape->n_accumulate);
  return CLV_OK;
}

static clv_code check_rank(checker *c, uint32_t rank) {
  c->rank = rank;
  for (uint32_t i = 0; i < c->s->n[rank]; i++) {
    c->at = i;
    c->instr = &c->s->instrs[rank][i];
    CLV_TRY(check_instr(c));
  }
  return CLV_OK;
}

static clv_code compute_bubble(const clv_sched *s, double *ret, clv_err *err) {
  clv_sched_costs equal_costs;
  clv_sched_run run = {0};
  clv_sched_costs_set_equal(&equal_costs, 1, 1, 1);
  CLV_TRY(clv_sched_simulate_lists(s, &equal_costs, false, &run, err));
  *ret = run.bubble;
  return CLV_OK;
}

clv_code clv_sched_check(const clv_sched *s, clv_sched_report *ret, clv_err *err) {
  clv_sched_report report = {0};
  CLV_AUTO(checker_clear) checker c = {.s = s, .report = &report, .err = err};
  CLV_TRY(clv_sched_shape_check(&s->shape, err));
  CLV_TRY(check_sizes(s, err));
  size_t n_cells = (size_t)s->shape.n_stages * s->shape.n_micro_batches;
  c.micros_per_step = clv_sched_micro_batches_per_step(s->kind, &s->shape);
  CLV_TRY(clv_alloc(n_cells, sizeof *c.transfers_done, &c.transfers_done, err));
  if (c.micros_per_step)
    CLV_TRY(clv_alloc(n_cells, sizeof *c.weights_version, &c.weights_version, err));
  for (uint32_t r = 0; r < s->shape.n_ranks; r++) CLV_TRY(check_rank(&c, r));
  CLV_TRY(check_complete(&c));
  CLV_TRY(clv_sched_simulate_lists(s, NULL, false, NULL, err));
  if (!ret) return CLV_OK;
  CLV_TRY(compute_bubble(s, &report.bubble, err));
  *ret = report;
  return CLV_OK;
}
