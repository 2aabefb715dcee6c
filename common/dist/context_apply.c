/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of a context become a step of each module's optimiser, which REVERT can take back as
 * long as no other context has done anything.
 */
#include "common/dist/context_int.h"

#include <stdio.h>
#include <string.h>

static bool meant(const gradient *g, uint32_t module) {
  return module == CLV_MODULE_ALL || module == g->module;
}

static void forget_gradients(clv_contexts *e, context *ctx, uint32_t module) {
  for (gradient **at = &ctx->gradients; *at;) {
    gradient *g = *at;
    if (!meant(g, module)) {
      at = &g->next;
      continue;
    }
    *at = g->next;
    clv_tensor_unref(g->block);
    clv_slab_give(&e->gradients, g);
  }
}

static bool revert_waits(const clv_contexts *e, uint64_t id) {
  for (const change *k = e->waiting_changes; k; k = k->next)
    if (k->kind == CLV_REVERT && k->context == id) return true;
  return false;
}

/* A REVERT that waits came before this work, and an APPLY that waits too. */
void clv_context_finalise(clv_contexts *e, uint64_t working) {
  for (change *k = e->waiting_changes; k; k = k->next)
    k->final |= k->kind == CLV_APPLY && k->context != working && !revert_waits(e, k->context);
  for (uint32_t i = 0; e->n_snapshots && i < CLV_MODULE_ALL; i++) {
    line *l = &e->lines[i];
    if (!l->snapshot_of || l->snapshot_of == working || revert_waits(e, l->snapshot_of)) continue;
    l->snapshot_of = 0;
    e->n_snapshots--;
  }
}

static void step_module(clv_contexts *e, const change *k, uint32_t module, clv_tensor *gradients) {
  clv_stage *s = e->env.stage(e->env.user, module);
  line *l = &e->lines[module];
  if (!k->final) {
    clv_stage_snapshot(s);
    e->n_snapshots += !l->snapshot_of;
    l->snapshot_of = k->context;
  }
  clv_optim_step(s->optim, s->block, gradients->data, k->lr, k->scale);
  s->version++;
  s->committed++;
}

static bool revert_module(clv_contexts *e, const change *k, uint32_t module) {
  clv_stage *s = e->env.stage(e->env.user, module);
  line *l = &e->lines[module];
  if (l->snapshot_of != k->context) return false;
  clv_stage_revert(s);
  s->committed--;
  l->snapshot_of = 0;
  e->n_snapshots--;
  return true;
}

static void answer(clv_contexts *e, const change *k, bool done) {
  clv_packet *p;
  clv_err why;
  if (clv_packet_new(e->env.pool, done ? CLV_APPLIED : CLV_ERROR, &p, &why) != CLV_OK) return;
  p->frame.context = k->context;
  p->frame.message = ++*e->env.next_message;
  p->frame.reply_to = k->message;
  p->frame.stage = k->module;
  if (!done)
    clv_frame_set_failure(&p->frame, CLV_PRECONDITION,
                          "nothing of this context can be taken back: no APPLY, or work of another "
                          "context since",
                          "");
  e->env.emit(e->env.user, p);
}

void clv_context_perform(clv_contexts *e, const change *k) {
  bool done = k->kind == CLV_APPLY;
  for (const turn *t = k->turns; t; t = t->next_of_change) {
    if (k->kind == CLV_APPLY)
      step_module(e, k, t->module, t->gradients);
    else
      done |= revert_module(e, k, t->module);
  }
  if (!k->silent) answer(e, k, done);
}

static clv_code check_apply(const context *ctx, clv_err *err) {
  if (ctx->failed)
    return clv_fail(err, CLV_ABORTED, "the context has failed: %s", ctx->failed->text);
  if (ctx->active || ctx->collecting)
    return clv_fail(err, CLV_PRECONDITION, "backward pass %u is in progress", ctx->phase);
  return CLV_OK;
}

/* The modules that APPLY means; all memory first: after that nothing can fail, and no module steps
 * alone. The gradients are held, so that the context may end before their turn comes. */
static clv_code modules_to_step(clv_contexts *e, const context *ctx, change *k, uint32_t module,
                                clv_err *err) {
  for (const gradient *g = ctx->gradients; g; g = g->next) {
    if (!meant(g, module) || !g->stage->optim) continue;
    CLV_TRY(clv_stage_snapshot_ready(g->stage, err));
    CLV_TRY(clv_change_means(e, k, g->module, g->block, err));
  }
  return CLV_OK;
}

static clv_code modules_to_revert(clv_contexts *e, const context *ctx, change *k, clv_err *err) {
  const gradient *g = ctx->gradients;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    while (g && g->module < i) g = g->next;
    bool stepped = g && g->module == i && g->stage->optim;
    if (stepped || e->lines[i].snapshot_of == ctx->id)
      CLV_TRY(clv_change_means(e, k, i, NULL, err));
  }
  return CLV_OK;
}

static clv_code apply(clv_contexts *e, context *ctx, uint32_t module, const clv_frame *f,
                      clv_err *err) {
  change *k;
  CLV_TRY(check_apply(ctx, err));
  CLV_TRY(clv_change_new(e, f, ctx->id, &k, err));
  clv_code code = CLV_OK;
  if (f->commit.apply)
    code = modules_to_step(e, ctx, k, module, err);
  else
    forget_gradients(e, ctx, module);
  if (code != CLV_OK) {
    clv_change_free(e, k);
    return code;
  }
  if (f->commit.apply) clv_context_finalise(e, ctx->id);
  clv_change_wait(e, k);
  return CLV_OK;
}

/* The CALL behind it joins the lines after it. */
clv_code clv_context_obey(clv_contexts *e, const clv_frame *f, clv_err *err) {
  context *c;
  clv_err why;
  if (!f->commit.step || clv_context_open(e, f->commit.step, &c, &why) != CLV_OK || !c)
    return CLV_OK;
  if (apply(e, c, CLV_MODULE_ALL, f, &why) != CLV_OK) clv_context_fail_at(e, c, &why, f->stage);
  return clv_contexts_run(e, err);
}

clv_code clv_on_apply(clv_contexts *e, context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  if (apply(e, ctx, p->frame.stage, &p->frame, &why) != CLV_OK)
    clv_context_fail_at(e, ctx, &why, p->frame.stage);
  return clv_contexts_run(e, err);
}

clv_code clv_on_revert(clv_contexts *e, context *ctx, clv_packet *p, clv_err *err) {
  change *k;
  CLV_TRY(clv_change_new(e, &p->frame, ctx->id, &k, err));
  clv_code code = modules_to_revert(e, ctx, k, err);
  if (code != CLV_OK) {
    clv_change_free(e, k);
    return code;
  }
  clv_change_wait(e, k);
  return clv_contexts_run(e, err);
}

bool clv_contexts_gradient_item(clv_contexts *e, uint64_t id, uint32_t module, uint32_t index,
                                clv_state_item *ret) {
  const context *ctx = clv_context_find(e, id);
  const gradient *g = ctx ? ctx->gradients : NULL;
  while (g && g->module != module) g = g->next;
  for (int i = 0; g && i < g->stage->params->n; i++) {
    const clv_param *p = &g->stage->params->list[i];
    if (!p->trainable || p->frozen || index-- != 0) continue;
    *ret = (clv_state_item){.dtype = p->dtype,
                            .shape = p->shape,
                            .bytes = p->bytes,
                            .data = (char *)g->block->data + p->offset};
    snprintf(ret->name, sizeof ret->name, "%s", p->name);
    return true;
  }
  return false;
}
