/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes the steps of the trainer (clv_trainer_step), in rounds. The master sends all calls of all
 * micro-batches, their positions and the complete backward to the nodes at the begin of a round.
 * The nodes then follow the schedule, and the master does not intervene until the end. A round is
 * one step; in an asynchronous schedule it is the steps between two points at which all stages have
 * taken the same number of steps.
 */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* ---- taking the steps of a round ------------------------------------------------------------- */

/* The batches of a round: one, or several in an asynchronous schedule. */
typedef struct round_group {
  const clv_held_batch *batches;
  uint32_t n_batches, n_micro;
  const clv_placed_schedule *l;
  cleave_context context;
  clv_step_result *results; /* [n_batches] results of the steps of the round */
} round_group;

static uint32_t count_micro_batches(clv_trainer *t, size_t rows) {
  return (uint32_t)clv_chunk_sizes(rows, t->b->micro_batches, t->micro_batch_rows);
}

/* Returns the part of a batch's loss that a micro-batch contributes: its weight divided by
 * batch_weight, the weight of the batch. A micro-batch of weight 0 has loss and gradient 0, so any
 * positive result is right. */
static float compute_loss_share(const clv_trainer *t, const clv_held_batch *b, size_t start,
                                size_t n, double batch_weight) {
  double micro_batch_weight = clv_trainer_batch_weight(t, b->y, start, n);
  return CLV_MAX((float)(micro_batch_weight > 0 ? micro_batch_weight / batch_weight
                                                : (double)n / (double)b->n),
                 FLT_MIN);
}

static void cut_into_micro_batches(clv_trainer *t, round_group *r) {
  for (uint32_t i = 0; i < r->n_batches; i++) {
    uint32_t n = count_micro_batches(t, r->batches[i].n);
    double batch_weight = clv_trainer_batch_weight(t, r->batches[i].y, 0, r->batches[i].n);
    size_t start = 0;
    for (uint32_t k = 0; k < n; start += t->micro_batch_rows[k++]) {
      t->micro_batches[r->n_micro] =
          (clv_micro_batch){.start = start, .size = t->micro_batch_rows[k], .batch = i};
      t->loss_shares[r->n_micro++] =
          compute_loss_share(t, &r->batches[i], start, t->micro_batch_rows[k], batch_weight);
    }
  }
}

static cleave_call_options make_call_options(const clv_trainer *t, const clv_placed_schedule *l,
                                             uint32_t stage, uint32_t k) {
  const clv_call_positions *positions = &l->positions[stage * l->n_micro_batches + k];
  bool is_loss = stage == t->b->n_stages;
  return (cleave_call_options){
      .size = sizeof(cleave_call_options),
      .send_to = is_loss ? NULL : cleave_module_node(t->modules[stage + 1]),
      .to_program = is_loss,
      .position = positions->forward_position,
      .backward_position = positions->backward_position,
      .weight_position = positions->weight_grad_position,
      .old_weights = positions->uses_old_weights,
      .recompute = !is_loss && positions->backward_position && t->config->stages[stage].recompute};
}

/* Calls all stages and the loss for micro-batch k. */
static clv_code call_micro_batch(clv_trainer *t, const round_group *r, uint32_t k, clv_err *err) {
  const clv_micro_batch *m = &t->micro_batches[k];
  uint32_t n = t->b->n_stages;
  const clv_held_batch *batch = &r->batches[m->batch];
  cleave_reference *refs = &t->output_references[k * (n + 1)], in[CLV_MAX_INPUTS];
  clv_sequences sequences;
  CLV_TRY(clv_trainer_select_sequences(t, batch->x, m->start, m->size, &sequences, err));
  for (uint32_t i = 0, n_in = 2; i <= n; i++) {
    cleave_call_options o = make_call_options(t, r->l, i, k);
    if (i == 0 && t->cache.data) {
      CLV_TRY(clv_trainer_make_front_leaf(t, r->context, batch->index + m->start, batch->x,
                                          &sequences, &refs[0], err));
      in[0] = refs[0];
      continue;
    }
    if (i < n)
      CLV_TRY(clv_trainer_stage_inputs(t, r->context, i, batch->x, &sequences, in, &n_in, err));
    if (i < n)
      CLV_TRY(
          clv_trainer_charge_direct_flows(t, i, m->size, (uint64_t)sequences.n_rows, true, err));
    if (i == n)
      CLV_TRY(clv_trainer_loss_inputs(t, r->context, &sequences, batch->y, in, &n_in, err));
    CLV_TRY_API(cleave_call_with(t->runtime, r->context, t->modules[i], in, n_in, &o, &refs[i],
                                 CLV_API_ERROR));
    in[0] = refs[i];
  }
  t->loss_references[k] = refs[n];
  return CLV_OK;
}

/* Plans the optimiser steps that each stage takes by itself in an asynchronous round. */
static clv_code plan_optimizer_steps(clv_trainer *t, const round_group *r, clv_err *err) {
  bool keeps_old_weights = t->config->pipeline.schedule == CLV_PIPE_PIPEDREAM_2BW;
  for (uint32_t s = 0; s < t->b->n_stages; s++)
    for (uint32_t i = 0; i < r->n_batches; i++) {
      uint32_t position = r->l->step_positions[s * r->l->n_steps + i];
      if (position)
        CLV_TRY_API(cleave_step_at(t->runtime, t->optimizer, r->context, t->modules[s], i, position,
                                   keeps_old_weights, &r->results[i].lr, CLV_API_ERROR));
    }
  return CLV_OK;
}

/* Waits for the loss of each micro-batch. If the loss is computed at the master, also fetches the
 * predictions and counts the right ones. */
static clv_code collect_losses(clv_trainer *t, const round_group *r, clv_err *err) {
  uint32_t n = t->b->n_stages;
  bool counts_correct = clv_trainer_has_accuracy(t) && t->b->stages[n].worker < 0;
  for (uint32_t k = 0; k < r->n_micro; k++) {
    const clv_micro_batch *m = &t->micro_batches[k];
    clv_step_result *result = &r->results[m->batch];
    CLV_TRY_API(
        cleave_to_here(t->runtime, t->loss_references[k], 0, &t->fetched_value, CLV_API_ERROR));
    result->loss += *(const float *)t->fetched_value.data * (double)t->loss_shares[k];
    if (!counts_correct) continue;
    CLV_TRY_API(cleave_to_here(t->runtime, t->output_references[k * (n + 1) + n - 1], 0,
                               &t->fetched_value, CLV_API_ERROR));
    const clv_held_batch *batch = &r->batches[m->batch];
    clv_sequences sequences;
    cleave_tensor output;
    CLV_TRY(clv_trainer_select_sequences(t, batch->x, m->start, m->size, &sequences, err));
    CLV_TRY(clv_trainer_unpack_output(t, &sequences, &t->fetched_value, &output, err));
    result->n_correct += clv_trainer_count_correct(t, &output, batch->y, m->start, m->size);
  }
  return CLV_OK;
}

static clv_code take_optimizer_step(clv_trainer *t, const round_group *r, clv_err *err) {
  cleave_step_result step_result;
  CLV_TRY_API(cleave_step(t->runtime, t->optimizer, r->context, 0, &step_result, CLV_API_ERROR));
  r->results[0].changed_weights = step_result.applied;
  r->results[0].grad_norm = step_result.norm;
  r->results[0].lr = step_result.lr;
  return CLV_OK;
}

/* Returns the time limit of a round in ms: limits.step_timeout for each step, or less if the usual
 * time of a step is known, so that a stall is detected sooner. */
static uint64_t round_timeout_ms(const clv_trainer *t, const round_group *r) {
  uint64_t step_limit_ms = t->config->limits.step_timeout_ms,
           usual_ms = (uint64_t)(1e3 * t->step_meter.usual_step_s);
  return usual_ms ? CLV_MIN(step_limit_ms * r->n_batches, step_limit_ms + 4 * usual_ms)
                  : step_limit_ms * r->n_batches;
}

static clv_code run_round_in_context(clv_trainer *t, round_group *r, clv_err *err) {
  bool is_async = t->n_round_steps > 1;
  uint64_t timeout_ms = is_async ? round_timeout_ms(t, r) : 0;
  for (uint32_t k = 0; k < r->n_micro; k++) CLV_TRY(call_micro_batch(t, r, k, err));
  if (is_async) CLV_TRY(plan_optimizer_steps(t, r, err));
  const cleave_backward_options o = {
      .size = sizeof o, .weights = t->loss_shares, .deadline_ms = timeout_ms};
  CLV_TRY_API(cleave_backward_with(t->runtime, r->context, t->loss_references, r->n_micro, &o,
                                   CLV_API_ERROR));
  CLV_TRY(collect_losses(t, r, err));
  return is_async ? CLV_OK : take_optimizer_step(t, r, err);
}

static clv_code run_round(clv_trainer *t, round_group *r, clv_err *err) {
  uint64_t begin_ns = clv_now_ns();
  cleave_link_totals before, after;
  clv_trainer_set_activity(t, "step", t->n_committed_steps + 1);
  clv_trainer_choose_cache_use(t, r->batches[0].index, r->batches[0].n);
  CLV_TRY(clv_trainer_allow_batch(t, t->config->train.batch, true, err));
  cut_into_micro_batches(t, r);
  for (uint32_t i = 0; i < r->n_batches; i++)
    r->results[i] = (clv_step_result){
        .samples = r->batches[i].n,
        .n_labelled = clv_trainer_count_labelled(t, r->batches[i].y, 0, r->batches[i].n),
        .changed_weights = true};
  CLV_TRY(clv_trainer_placed_schedule(t, r->n_micro, r->n_batches, &r->l, err));
  cleave_context_options o = {
      .size = sizeof o, .step = t->n_committed_steps + 1, .events = clv_step_meter_begin(t)};
  cleave_get_link_totals(t->runtime, &before);
  CLV_TRY_API(cleave_context_open(t->runtime, &o, &r->context, CLV_API_ERROR));
  CLV_TRY(run_round_in_context(t, r, err));
  if (o.events) /* cleave_context_close fetches the events; cleave_context_end does not */
    CLV_TRY_API(cleave_context_close(t->runtime, r->context, 0, CLV_API_ERROR));
  else
    CLV_TRY_API(cleave_context_end(t->runtime, r->context, CLV_API_ERROR));
  t->n_committed_steps += r->n_batches;
  if (t->n_round_steps > 1)
    CLV_TRY_API(
        cleave_optimizer_set_steps(t->runtime, t->optimizer, t->n_committed_steps, CLV_API_ERROR));
  cleave_get_link_totals(t->runtime, &after);
  uint64_t now_ns = clv_now_ns();
  for (uint32_t i = 0; i < r->n_batches; i++) {
    r->results[i].wait_ns = (after.idle_ns - before.idle_ns) / r->n_batches;
    r->results[i].step_ns = (now_ns - begin_ns) / r->n_batches;
  }
  return clv_step_meter_end(t, r->l, o.events, (double)(now_ns - begin_ns) * 1e-9, err);
}

/* ---- batches that wait for a full round ------------------------------------------------------ */

static clv_code copy_tensor(const clv_tensor *from, clv_tensor **ret, clv_err *err) {
  CLV_TRY(clv_tensor_new(from->dtype, &from->shape, ret, err));
  memcpy((*ret)->data, from->data, from->bytes);
  return CLV_OK;
}

static void drop_held_batch(clv_held_batch *h) {
  for (size_t k = 0; k < CLV_MAX_INPUTS; k++) clv_tensor_unref(h->x[k]);
  clv_tensor_unref(h->y);
  *h = (clv_held_batch){0};
}

static clv_code hold_batch(clv_trainer *t, const clv_batch *batch, clv_err *err) {
  clv_held_batch *h = &t->held_batches[t->n_held_batches];
  clv_code code = copy_tensor(batch->y, &h->y, err);
  for (size_t k = 0; code == CLV_OK && k < t->b->inputs.n; k++)
    code = copy_tensor(clv_batch_input(batch, k), &h->x[k], err);
  if (code != CLV_OK) return drop_held_batch(h), code;
  h->n = batch->n;
  t->n_held_batches++;
  return CLV_OK;
}

void clv_trainer_drop_held_batches(clv_trainer *t) {
  while (t->n_held_batches) drop_held_batch(&t->held_batches[--t->n_held_batches]);
}

/* Takes the steps of the held batches, even if their round is not full, and adds the number of
 * steps to *n_done. */
static clv_code run_held_batches(clv_trainer *t, uint32_t *n_done, clv_err *err) {
  round_group r = {
      .batches = t->held_batches, .n_batches = t->n_held_batches, .results = t->results + *n_done};
  if (!t->n_held_batches) return CLV_OK;
  clv_code code = run_round(t, &r, err);
  *n_done += t->n_held_batches;
  clv_trainer_drop_held_batches(t);
  return code;
}

clv_code clv_trainer_step(clv_trainer *t, const clv_batch *batch, bool flushes, uint32_t *ret_done,
                          const clv_step_result **ret_results, clv_err *err) {
  uint32_t n_done = 0;
  *ret_done = 0;
  *ret_results = t->results;
  if (!batch->n || !batch->y) return clv_fail(err, CLV_INVALID, "an empty batch or no labels");
  if (t->n_round_steps == 1) {
    clv_held_batch present_batch = {.y = batch->y, .index = batch->index, .n = batch->n};
    for (size_t k = 0; k < t->b->inputs.n; k++) present_batch.x[k] = clv_batch_input(batch, k);
    round_group r = {.batches = &present_batch, .n_batches = 1, .results = t->results};
    *ret_done = 1;
    return run_round(t, &r, err);
  }
  /* All batches of a round have the same number of micro-batches. A batch with another number
   * begins the next round. */
  if (t->n_held_batches &&
      count_micro_batches(t, batch->n) != count_micro_batches(t, t->held_batches[0].n))
    CLV_TRY(run_held_batches(t, &n_done, err));
  CLV_TRY(hold_batch(t, batch, err));
  if (flushes || t->n_held_batches == t->n_round_steps) CLV_TRY(run_held_batches(t, &n_done, err));
  *ret_done = n_done;
  return CLV_OK;
}
