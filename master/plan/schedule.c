/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns a session's schedule into positions (clv_placed_schedule_new): the index of each forward,
 * backward and optimiser step of a stage among the instructions of its node. Ranks are the nodes
 * that compute: the master first, then the workers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan.h"

_Static_assert((int)CLV_PIPE_CUSTOM == CLV_SCHED_CUSTOM && (int)CLV_PIPE_ZB_H1 == CLV_SCHED_ZB_H1,
               "the kinds of the session file are those of schedules");

/* ---- the pipeline of a blueprint ------------------------------------------------------------- */

uint32_t clv_pipeline_list_ranks(const clv_blueprint *b, clv_sched_shape *shape,
                                 const char *rank_names[CLV_SCHED_RANKS]) {
  uint16_t stage_ranks[CLV_SCHED_RANKS] = {0};
  uint32_t n = 0;
  for (int worker = -1; worker < (int)b->config->n_workers; worker++) {
    bool is_used = false;
    for (uint32_t s = 0; s <= b->n_stages; s++) is_used |= b->stages[s].worker == worker;
    if (!is_used) continue;
    rank_names[n] = worker < 0 ? "master" : b->config->workers[worker].name;
    stage_ranks[worker + 1] = (uint16_t)n++;
  }
  shape->n_ranks = n;
  shape->n_stages = b->n_stages + 1;
  shape->first_backward_stage = 0;
  while (shape->first_backward_stage < b->n_stages &&
         !b->stages[shape->first_backward_stage].has_backward)
    shape->first_backward_stage++;
  for (uint32_t s = 0; s <= b->n_stages; s++)
    shape->stage_rank[s] = stage_ranks[b->stages[s].worker + 1];
  return n;
}

/* Returns the costs to use where nothing has been measured, as in diagrams: all stages take the
 * same time; links and the loss take none. */
void clv_pipeline_default_costs(const clv_blueprint *b, clv_sched_costs *ret) {
  clv_sched_costs_set_equal(ret, 1, 1, 1);
  ret->sends_input_gradient_first = true;
  ret->forward_seconds[b->n_stages] = ret->input_grad_seconds[b->n_stages] =
      ret->weight_grad_seconds[b->n_stages] = 0;
}

static clv_code read_schedule_file(const clv_session_config *c, const clv_sched_shape *shape,
                                   clv_sched **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_AUTO(clv_sched_freep) clv_sched *s = NULL;
  clv_err reason;
  if (clv_file_read(c->pipeline.file, 64u << 20, &text, &reason) != CLV_OK)
    return clv_fail(err, CLV_INVALID, "pipeline.file: %s", reason.text);
  CLV_TRY(clv_sched_parse(c->pipeline.file, text.data ? text.data : "", text.len, &s, err));
  if (clv_sched_is_async(s->kind))
    return clv_fail(
        err, CLV_INVALID,
        "%s: the instructions of a %s schedule take steps of their own, which depend on "
        "pipeline.flush_every: set pipeline.schedule to %s instead",
        c->pipeline.file, clv_sched_name(s->kind), clv_sched_name(s->kind));
  const clv_sched_shape *is = &s->shape;
  if (is->n_stages != shape->n_stages || is->n_ranks != shape->n_ranks ||
      is->n_micro_batches != shape->n_micro_batches ||
      is->first_backward_stage != shape->first_backward_stage ||
      memcmp(is->stage_rank, shape->stage_rank, shape->n_stages * sizeof *is->stage_rank) != 0)
    return clv_fail(err, CLV_INVALID,
                    "%s: a schedule of %u stages at %u ranks for %u micro-batches, backward from "
                    "stage %u; the session has %u (the loss is the last), %u, %u and %u, or places "
                    "them differently: `plan --schedule --output FILE` writes one that fits, "
                    "with another pipeline.schedule",
                    c->pipeline.file, is->n_stages, is->n_ranks, is->n_micro_batches,
                    is->first_backward_stage, shape->n_stages, shape->n_ranks,
                    shape->n_micro_batches, shape->first_backward_stage);
  *ret = clv_steal(&s);
  return CLV_OK;
}

/* ---- positions of instructions in the order of their node ------------------------------------ */

static bool is_stage_learning(const clv_blueprint *b, uint32_t stage) {
  return stage < b->n_stages && b->stages[stage].n_learning_params > 0;
}

/* Gives the instructions of a rank their positions, in the order of its list. Sends and receives
 * have no position, because the node does them as soon as possible. */
static void number_instructions(const clv_blueprint *b, clv_placed_schedule *l, uint32_t rank) {
  uint32_t position = 0;
  for (uint32_t i = 0; i < l->sched->n[rank]; i++) {
    const clv_instr *in = &l->sched->instrs[rank][i];
    clv_call_positions *t = &l->positions[in->stage * l->n_micro_batches];
    if (b->has_cache && in->stage == 0) continue; /* a step does not call a cached stage */
    switch ((clv_instr_kind)in->kind) {
      case CLV_INSTR_FORWARD:
        t[in->micro_batch].forward_position = ++position;
        t[in->micro_batch].uses_old_weights = in->weights_age;
        break;
      case CLV_INSTR_BACKWARD:
      case CLV_INSTR_INPUT:
        t[in->micro_batch].backward_position = ++position;
        break;
      case CLV_INSTR_WEIGHT:
        t[in->micro_batch].weight_grad_position = ++position;
        break;
      case CLV_INSTR_STEP:
        if (is_stage_learning(b, in->stage))
          l->step_positions[in->stage * l->n_steps + in->micro_batch] = ++position;
        break;
      default:
        break;
    }
  }
}

static clv_code fill_schedule(const clv_blueprint *b, const clv_sched_costs *costs,
                              clv_placed_schedule *l, clv_err *err) {
  const clv_session_config *c = b->config;
  const char *rank_names[CLV_SCHED_RANKS];
  clv_sched_options o = {.kind = (clv_sched_kind)c->pipeline.schedule, .window = l->window};
  clv_sched_costs default_costs;
  bool is_full_round = l->n_micro_batches == b->micro_batches * l->n_steps;
  if (!is_full_round && (o.kind == CLV_SCHED_INTERLEAVED || o.kind == CLV_SCHED_CUSTOM))
    /* the short last batch of an epoch has too few micro-batches for the session's schedule, so its
     * schedule is 1F1B */
    o.kind = CLV_SCHED_1F1B;
  clv_pipeline_list_ranks(b, &o.shape, rank_names);
  o.shape.n_micro_batches = l->n_micro_batches;
  if (o.kind == CLV_SCHED_PIPEDREAM_2BW) o.shape.n_accumulate = l->n_micro_batches / l->n_steps;
  clv_pipeline_default_costs(b, &default_costs);
  o.costs = costs ? costs : &default_costs;
  if (o.kind == CLV_SCHED_CUSTOM)
    CLV_TRY(read_schedule_file(c, &o.shape, &l->sched, err));
  else
    CLV_TRY(clv_sched_make(&o, &l->sched, err));
  CLV_TRY(clv_sched_check(l->sched, &l->report, err));
  CLV_TRY(clv_alloc((size_t)o.shape.n_stages * l->n_micro_batches, sizeof *l->positions,
                    &l->positions, err));
  CLV_TRY(clv_alloc((size_t)o.shape.n_stages * l->n_steps, sizeof *l->step_positions,
                    &l->step_positions, err));
  for (uint32_t r = 0; r < o.shape.n_ranks; r++) number_instructions(b, l, r);
  return CLV_OK;
}

/* Appends the names of the ranks to an error, because a schedule knows only their numbers. */
static void append_rank_names(const clv_blueprint *b, clv_err *err) {
  clv_sched_shape shape;
  const char *rank_names[CLV_SCHED_RANKS];
  size_t at = strlen(err->text);
  uint32_t n = clv_pipeline_list_ranks(b, &shape, rank_names);
  for (uint32_t i = 0; i < n && at < sizeof err->text; i++)
    at += (size_t)snprintf(err->text + at, sizeof err->text - at, "%s%u is %s",
                           i ? ", " : " (rank ", i, rank_names[i]);
  if (at < sizeof err->text) snprintf(err->text + at, sizeof err->text - at, ")");
}

clv_code clv_placed_schedule_new(const clv_blueprint *b, uint32_t n_micro, uint32_t n_steps,
                                 uint32_t window, const clv_sched_costs *costs,
                                 clv_placed_schedule **ret, clv_err *err) {
  clv_placed_schedule *l;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  l->n_micro_batches = n_micro;
  l->n_steps = n_steps;
  l->window = window;
  clv_code code = fill_schedule(b, costs, l, err);
  if (code != CLV_OK) {
    clv_placed_schedule_free(l);
    if (err && strstr(err->text, "rank ")) append_rank_names(b, err);
    return clv_err_prefix(err, "%s: pipeline.schedule %s", b->config->file,
                          clv_pipeline_name(b->config->pipeline.schedule));
  }
  *ret = l;
  return CLV_OK;
}

void clv_placed_schedule_free(clv_placed_schedule *l) {
  if (!l) return;
  clv_sched_free(l->sched);
  free(l->positions);
  free(l->step_positions);
  free(l);
}

void clv_placed_schedule_freep(clv_placed_schedule **l) {
  clv_placed_schedule_free(*l);
  *l = NULL;
}

clv_code clv_pipeline_check(const clv_blueprint *b, clv_err *err) {
  CLV_AUTO(clv_placed_schedule_freep) clv_placed_schedule *l = NULL;
  uint32_t n_steps = clv_pipeline_steps_per_round(b->config);
  return clv_placed_schedule_new(b, b->micro_batches * n_steps, n_steps,
                                 clv_pipeline_initial_window(b->config), NULL, &l, err);
}

/* ---- steps per round and window of the session's schedule ------------------------------------ */

uint32_t clv_pipeline_steps_per_round(const clv_session_config *c) {
  return clv_sched_is_async((clv_sched_kind)c->pipeline.schedule)
             ? (uint32_t)c->pipeline.flush_every
             : 1;
}

uint32_t clv_pipeline_initial_window(const clv_session_config *c) {
  uint64_t w = c->pipeline.window;
  return w == CLV_WINDOW_AUTO || w == CLV_WINDOW_TEXTBOOK ? 0 : (uint32_t)w;
}
