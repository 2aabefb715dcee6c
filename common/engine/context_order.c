/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a context at this node. The program may give a position to a forward, a backward, a
 * weight part or a step. Such work runs in ascending order of positions, without a gap, each piece
 * as soon as its inputs have arrived. This executes the instruction list of a schedule: position i
 * is instruction i of this node. Work without a position runs when it is ready.
 *
 * Each kind of work has a queue that is sorted by position. Frames arrive nearly in the order of
 * positions, so inserting is quick. The next position is the head of one of the four queues.
 */
#include <string.h>

#include "common/engine/context_int.h"

static clv_code insert_entry(clv_contexts *e, clv_context *ctx, clv_order_kind kind,
                             clv_order_entry *p, uint32_t at, clv_err *err) {
  clv_order_queue *l = &ctx->order[kind];
  if (at <= ctx->positions_done)
    return clv_fail(err, CLV_PRECONDITION, "position %u is over: %u positions are done", at,
                    ctx->positions_done);
  bool at_head = l->first && at < l->first->position;
  clv_order_entry *before = at_head ? NULL : l->last;
  while (before && before->position > at) before = before->prev;
  bool has_begun = ctx->is_position_started && at == ctx->positions_done + 1;
  if (has_begun || (before && before->position == at))
    return clv_fail(err, CLV_EXISTS, "position %u is taken", at);
  p->position = at;
  p->prev = before;
  p->next = before ? before->next : l->first;
  *(p->next ? &p->next->prev : &l->last) = p;
  *(before ? &before->next : &l->first) = p;
  clv_context_mark_dirty(e, ctx);
  return CLV_OK;
}

void clv_order_remove(clv_context *ctx, clv_order_kind kind, clv_order_entry *p) {
  clv_order_queue *l = &ctx->order[kind];
  if (!p->position) return;
  *(p->prev ? &p->prev->next : &l->first) = p->next;
  *(p->next ? &p->next->prev : &l->last) = p->prev;
  p->position = 0;
}

bool clv_order_is_due(const clv_context *ctx, const clv_order_entry *p) {
  return !ctx->is_position_started && p->position == ctx->positions_done + 1;
}

void clv_order_advance(clv_contexts *e, clv_context *ctx) {
  if (!ctx) return;
  ctx->positions_done++;
  ctx->is_position_started = false;
  clv_context_mark_dirty(e, ctx);
}

/* ---- positions of calls ---------------------------------------------------------------------- */

clv_code clv_order_add_call(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                            clv_err *err) {
  const uint32_t positions[ORDER_CALL_KINDS] = {[ORDER_FORWARD] = f->call.forward_position,
                                                [ORDER_BACKWARD] = f->call.input_grad_position,
                                                [ORDER_WEIGHT] = f->call.weight_grad_position};
  clv_context *ctx = c->out->ctx;
  clv_code code = CLV_OK;
  for (clv_order_kind k = 0; k < ORDER_CALL_KINDS && code == CLV_OK; k++)
    if (positions[k]) code = insert_entry(e, ctx, k, &c->order_entries[k], positions[k], err);
  if (code != CLV_OK) clv_order_remove_call(c);
  c->has_position = c->order_entries[ORDER_FORWARD].position;
  c->n_missing += c->has_position;
  return code;
}

void clv_order_remove_call(clv_context_call *c) {
  for (clv_order_kind k = 0; k < ORDER_CALL_KINDS; k++)
    clv_order_remove(c->out->ctx, k, &c->order_entries[k]);
}

/* ---- positions of steps ---------------------------------------------------------------------- */

static clv_code check_planned_step(const clv_contexts *e, const clv_frame *f, clv_err *err) {
  const clv_module *m = clv_contexts_module(e, f->module);
  if (!m || !m->optim)
    return clv_fail(err, CLV_NOT_FOUND, "module %u is not loaded at this node, or has no optimiser",
                    f->module);
  if (m->n_pins || clv_module_has_trainable_ties(m))
    return clv_fail(err, CLV_PRECONDITION,
                    "module %u has tied parameters, whose gradients are complete only at the end "
                    "of a backward pass: its step cannot have a position",
                    f->module);
  if (1 + f->commit.n_group_lrs < clv_optim_n_groups(m->optim))
    return clv_fail(err, CLV_PRECONDITION, "%u learning rate%s for %zu groups of module %u",
                    1 + f->commit.n_group_lrs, CLV_S(1 + f->commit.n_group_lrs),
                    clv_optim_n_groups(m->optim), f->module);
  return CLV_OK;
}

clv_code clv_order_add_step(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  clv_planned_step *s;
  CLV_TRY(check_planned_step(e, f, err));
  CLV_TRY(clv_contexts_slab_alloc(e, &e->steps, &s, err));
  s->module = f->module;
  s->scale = f->commit.scale;
  s->saves_weights = f->commit.saves_weights;
  s->n_rates = 1 + f->commit.n_group_lrs;
  s->rates[0] = f->commit.lr;
  for (uint32_t i = 1; i < s->n_rates; i++) s->rates[i] = f->commit.group_lrs[i - 1];
  clv_code code = insert_entry(e, ctx, ORDER_STEP, &s->order_entry, f->commit.step_position, err);
  if (code != CLV_OK) clv_slab_recycle(&e->steps, s);
  return code;
}

/* ---- starting the work at the due position --------------------------------------------------- */

/* Starts the forward at the due position. If inputs are missing, no other work with a position runs
 * until they arrive. */
static void start_due_forward(clv_contexts *e, clv_context *ctx, clv_order_entry *p) {
  ctx->is_position_started = true;
  clv_order_remove(ctx, ORDER_FORWARD, p);
  clv_call_dependency_done(e, clv_order_entry_call(p, ORDER_FORWARD));
}

/* Does nothing for the backward at the due position: context_pass.c starts it when its gradients
 * have arrived. */
static void skip_due_backward(clv_contexts *e, clv_context *ctx, clv_order_entry *p) {
  (void)e, (void)ctx, (void)p;
}

/* Starts the weight part at the due position. If the call had no input part, the weight part
 * computes nothing and counts as done. */
static void start_due_weight_part(clv_contexts *e, clv_context *ctx, clv_order_entry *p) {
  clv_context_call *c = clv_order_entry_call(p, ORDER_WEIGHT);
  if (c->work.state != WORK_IDLE) return;
  clv_work_enqueue(e, &c->work, WORK_WEIGHT_GRAD, ctx, c->mod ? c->module : CLV_MODULE_ALL);
}

static void start_due_step(clv_contexts *e, clv_context *ctx, clv_order_entry *p) {
  clv_planned_step *s = (clv_planned_step *)(void *)p;
  if (s->work.state == WORK_IDLE) clv_work_enqueue(e, &s->work, WORK_STEP, ctx, s->module);
}

static void (*const start_due[ORDER_KINDS])(clv_contexts *e, clv_context *ctx,
                                            clv_order_entry *p) = {
    start_due_forward, skip_due_backward, start_due_weight_part, start_due_step};

clv_code clv_order_start_due(clv_contexts *e, clv_context *ctx, clv_err *err) {
  for (clv_order_kind k = 0; k < ORDER_KINDS; k++) {
    clv_order_entry *p = ctx->order[k].first;
    if (p && p->position <= ctx->positions_done)
      return clv_fail(err, CLV_EXISTS, "position %u is given twice", p->position);
    if (!p || !clv_order_is_due(ctx, p)) continue;
    start_due[k](e, ctx, p);
    return CLV_OK;
  }
  return CLV_OK;
}

void clv_order_free(clv_contexts *e, clv_context *ctx) {
  if (!ctx) return;
  for (clv_order_entry *p = ctx->order[ORDER_STEP].first, *next; p; p = next) {
    next = p->next;
    clv_slab_recycle(&e->steps, (clv_planned_step *)(void *)p);
  }
  memset(ctx->order, 0, sizeof ctx->order);
  ctx->positions_done = 0;
  ctx->is_position_started = false;
}
