/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a context at this node. What the program gave a position (forwards, backwards,
 * gradients of parameters, steps) runs in ascending positions, one after the other without a gap,
 * each as soon as what it needs is here. This is how an instruction list of a schedule is executed:
 * position i is instruction i of this node. What has no position runs when it is ready, as ever.
 *
 * Each kind has a queue; frames bring positions nearly in order, so that joining is quick, and what
 * is due is the head of one of the four.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "common/engine/context_int.h"

static clv_context_call *call_of(clv_order_place *p, clv_order_kind kind) {
  return (clv_context_call *)(void *)((char *)(p - kind) - offsetof(clv_context_call, places));
}

static clv_code join(clv_contexts *e, clv_context *ctx, clv_order_kind kind, clv_order_place *p,
                     uint32_t at, clv_err *err) {
  clv_order_queue *l = &ctx->order[kind];
  if (at <= ctx->positions_done)
    return clv_fail(err, CLV_PRECONDITION, "position %u is over: %u are done", at,
                    ctx->positions_done);
  bool at_head = l->first && at < l->first->position;
  clv_order_place *before = at_head ? NULL : l->last;
  while (before && before->position > at) before = before->prev;
  bool begun = ctx->position_begun && at == ctx->positions_done + 1;
  if (begun || (before && before->position == at))
    return clv_fail(err, CLV_EXISTS, "position %u is taken", at);
  p->position = at;
  p->prev = before;
  p->next = before ? before->next : l->first;
  *(p->next ? &p->next->prev : &l->last) = p;
  *(before ? &before->next : &l->first) = p;
  clv_order_mark_ready(e, ctx);
  return CLV_OK;
}

void clv_order_leave(clv_context *ctx, clv_order_kind kind, clv_order_place *p) {
  clv_order_queue *l = &ctx->order[kind];
  if (!p->position) return;
  *(p->prev ? &p->prev->next : &l->first) = p->next;
  *(p->next ? &p->next->prev : &l->last) = p->prev;
  p->position = 0;
}

bool clv_order_is_due(const clv_context *ctx, const clv_order_place *p) {
  return !ctx->position_begun && p->position == ctx->positions_done + 1;
}

void clv_order_mark_ready(clv_contexts *e, clv_context *ctx) {
  if (ctx->order_ready) return;
  ctx->order_ready = true;
  ctx->next_order_ready = e->order_ready;
  e->order_ready = ctx;
}

void clv_order_done(clv_contexts *e, clv_context *ctx) {
  if (!ctx) return;
  ctx->positions_done++;
  ctx->position_begun = false;
  clv_order_mark_ready(e, ctx);
}

/* ---- calls ----------------------------------------------------------------------------------- */

clv_code clv_order_join_call(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                             clv_err *err) {
  const uint32_t positions[ORDER_CALL_KINDS] = {[ORDER_FORWARD] = f->call.position,
                                                [ORDER_BACKWARD] = f->call.input_position,
                                                [ORDER_WEIGHT] = f->call.weight_position};
  clv_context *ctx = c->out->ctx;
  clv_code code = CLV_OK;
  for (clv_order_kind k = 0; k < ORDER_CALL_KINDS && code == CLV_OK; k++)
    if (positions[k]) code = join(e, ctx, k, &c->places[k], positions[k], err);
  if (code != CLV_OK) clv_order_leave_call(c);
  c->in_order = c->places[ORDER_FORWARD].position;
  c->n_missing += c->in_order;
  return code;
}

void clv_order_leave_call(clv_context_call *c) {
  for (clv_order_kind k = 0; k < ORDER_CALL_KINDS; k++)
    clv_order_leave(c->out->ctx, k, &c->places[k]);
}

static void run_weight(clv_contexts *e, clv_context *ctx, clv_order_place *p) {
  clv_context_call *c = call_of(p, ORDER_WEIGHT);
  clv_err why;
  clv_code code = c->weight_due ? clv_context_core(e, c->mod, &why) : CLV_OK;
  uint64_t begin = clv_now_ns();
  if (code == CLV_OK && c->weight_due) code = clv_call_backward_weight(e, c, &why);
  if (code != CLV_OK) {
    clv_context_fail_at(e, ctx, &why, c->module);
    return;
  }
  if (c->weight_due) {
    clv_context_note(e, ctx, CLV_TRACE_WEIGHT, c, begin);
    clv_call_after_backward(e, c);
  }
  c->weight_due = false;
  clv_order_leave(ctx, ORDER_WEIGHT, p);
  clv_order_done(e, ctx);
  clv_value_free_if_dropped(e, c->out);
  clv_context_run_backward(e, ctx);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static clv_code check_rates(const clv_contexts *e, const clv_frame *f, clv_err *err) {
  const clv_module *m = f->module < CLV_MODULE_ALL ? e->env.module(e->env.user, f->module) : NULL;
  if (!m || !m->optim)
    return clv_fail(err, CLV_NOT_FOUND, "module %u is not here, or has no optimiser", f->module);
  if (1 + f->commit.n_more_lrs < clv_optim_n_groups(m->optim))
    return clv_fail(err, CLV_PRECONDITION, "%u learning rate%s for %zu groups of module %u",
                    1 + f->commit.n_more_lrs, CLV_S(1 + f->commit.n_more_lrs),
                    clv_optim_n_groups(m->optim), f->module);
  return CLV_OK;
}

clv_code clv_order_add_step(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  clv_planned_step *s;
  if (ctx->failed)
    return clv_fail(err, CLV_ABORTED, "the context has failed: %s", ctx->failed->text);
  CLV_TRY(check_rates(e, f, err));
  CLV_TRY(clv_slab_take(e, &e->steps, &s, err));
  s->module = f->module;
  s->scale = f->commit.scale;
  s->keep = f->commit.keep;
  s->n_rates = 1 + f->commit.n_more_lrs;
  s->rates[0] = f->commit.lr;
  for (uint32_t i = 1; i < s->n_rates; i++) s->rates[i] = f->commit.more_lrs[i - 1];
  clv_code code = join(e, ctx, ORDER_STEP, &s->place, f->commit.position, err);
  if (code != CLV_OK) clv_slab_give(&e->steps, s);
  return code;
}

/* What REVERT would take back is not there any more. */
static void make_final(clv_contexts *e, uint32_t module) {
  clv_module_queue *l = &e->queues[module];
  e->n_snapshots -= l->snapshot_of != 0;
  l->snapshot_of = 0;
}

/* There is no vote over all modules here, so what is not finite ends the context. */
static clv_code take_step(clv_contexts *e, clv_context *ctx, const clv_planned_step *s,
                          clv_err *err) {
  clv_module_gradient *g = clv_context_gradient(ctx, s->module);
  if (!g || !g->filled) return CLV_OK;
  if (!g->weights_filled)
    return clv_fail(err, CLV_PRECONDITION,
                    "module %u is to step before the gradients of its parameters are here",
                    s->module);
  if (!isfinite(clv_gradient_square(g)))
    return clv_fail(err, CLV_INVALID, "a gradient of module %u is not finite", s->module);
  CLV_TRY(clv_keep_weights(e, ctx, g, s->keep, err));
  make_final(e, s->module);
  clv_optim_step(g->mod->optim, g->mod->block, g->block->data, s->rates, s->scale);
  g->mod->version++;
  clv_counter_add(&g->mod->steps, 1);
  clv_counter_add(&g->mod->counts.stepped, 1);
  g->filled = g->weights_filled = false;
  return CLV_OK;
}

static void run_step(clv_contexts *e, clv_context *ctx, clv_order_place *p) {
  clv_planned_step *s = (clv_planned_step *)(void *)p;
  clv_err why;
  (void)clv_share_take(e->env.share, 1); /* whether or not: it is over soon */
  uint64_t begin = clv_now_ns();
  if (take_step(e, ctx, s, &why) != CLV_OK) {
    clv_context_fail_at(e, ctx, &why, s->module);
    return;
  }
  clv_context_note_step(e, ctx, s->module, begin);
  clv_order_leave(ctx, ORDER_STEP, p);
  clv_slab_give(&e->steps, s);
  clv_order_done(e, ctx);
  clv_context_run_backward(e, ctx);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Its inputs may be missing, and nothing else runs until they are here. */
static void run_forward(clv_contexts *e, clv_context *ctx, clv_order_place *p) {
  ctx->position_begun = true;
  clv_order_leave(ctx, ORDER_FORWARD, p);
  clv_call_one_less(e, call_of(p, ORDER_FORWARD));
}

static void run_backward(clv_contexts *e, clv_context *ctx, clv_order_place *p) {
  (void)p;
  clv_context_run_backward(e, ctx);
}

static void (*const run[ORDER_KINDS])(clv_contexts *e, clv_context *ctx, clv_order_place *p) = {
    run_forward, run_backward, run_weight, run_step};

void clv_order_run(clv_contexts *e, clv_context *ctx) {
  clv_err why;
  for (clv_order_kind k = 0; k < ORDER_KINDS && !ctx->failed; k++) {
    clv_order_place *p = ctx->order[k].first;
    if (p && p->position <= ctx->positions_done) {
      (void)!clv_fail(&why, CLV_EXISTS, "position %u is given twice", p->position);
      clv_context_fail_at(e, ctx, &why, CLV_MODULE_ALL);
    } else if (p && clv_order_is_due(ctx, p)) {
      run[k](e, ctx, p);
      return;
    }
  }
}

void clv_order_free(clv_contexts *e, clv_context *ctx) {
  if (!ctx) return;
  for (clv_order_place *p = ctx->order[ORDER_STEP].first, *next; p; p = next) {
    next = p->next;
    clv_slab_give(&e->steps, (clv_planned_step *)(void *)p);
  }
  memset(ctx->order, 0, sizeof ctx->order);
  ctx->positions_done = 0;
  ctx->position_begun = false;
  clv_context **at = &e->order_ready;
  while (*at && *at != ctx) at = &(*at)->next_order_ready;
  if (*at) *at = ctx->next_order_ready;
  ctx->order_ready = false;
}
