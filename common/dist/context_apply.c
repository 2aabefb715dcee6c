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

void clv_context_finalise(clv_contexts *e, uint64_t working) {
  if (e->snapshot_of == working || !e->snapshot_of) return;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    clv_stage *s = e->env.stage(e->env.user, i);
    if (s) s->has_snapshot = false;
  }
  e->snapshot_of = 0;
}

/* All memory first: after that nothing can fail, and no module steps alone. */
clv_code clv_context_apply(clv_contexts *e, context *ctx, uint32_t module, const clv_frame *f,
                           clv_err *err) {
  if (ctx->failed)
    return clv_fail(err, CLV_ABORTED, "the context has failed: %s", ctx->failed->text);
  if (ctx->active || ctx->collecting)
    return clv_fail(err, CLV_PRECONDITION, "backward pass %u is in progress", ctx->phase);
  if (!f->commit.apply) {
    forget_gradients(e, ctx, module);
    return CLV_OK;
  }
  for (gradient *g = ctx->gradients; g; g = g->next)
    if (meant(g, module)) CLV_TRY(clv_stage_snapshot_ready(g->stage, err));
  clv_context_finalise(e, ctx->id);
  for (gradient *g = ctx->gradients; g; g = g->next) {
    clv_stage *s = g->stage;
    if (!meant(g, module) || !s->optim) continue;
    clv_stage_snapshot(s);
    clv_optim_step(s->optim, s->block, g->block->data, f->commit.lr, f->commit.scale);
    s->version++;
    s->committed++;
    e->snapshot_of = ctx->id;
  }
  return CLV_OK;
}

void clv_context_obey(clv_contexts *e, const clv_frame *f) {
  context *c;
  clv_err why;
  if (!f->commit.step || clv_context_open(e, f->commit.step, &c, &why) != CLV_OK || !c) return;
  if (clv_context_apply(e, c, CLV_MODULE_ALL, f, &why) != CLV_OK)
    clv_context_fail_at(e, c, &why, f->stage);
}

static clv_code applied(clv_contexts *e, context *ctx, const clv_frame *f, clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_context_packet(e, CLV_APPLIED, ctx, ++*e->env.next_message, 0, &p, err));
  p->frame.reply_to = f->message;
  p->frame.stage = f->stage;
  e->env.emit(e->env.user, p);
  return CLV_OK;
}

clv_code clv_on_apply(clv_contexts *e, context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  if (clv_context_apply(e, ctx, p->frame.stage, &p->frame, &why) == CLV_OK)
    return applied(e, ctx, &p->frame, err);
  clv_context_fail_at(e, ctx, &why, p->frame.stage);
  return CLV_OK;
}

clv_code clv_on_revert(clv_contexts *e, context *ctx, clv_packet *p, clv_err *err) {
  if (e->snapshot_of != ctx->id)
    return clv_fail(err, CLV_PRECONDITION,
                    "nothing of this context can be taken back: no APPLY, or work of another "
                    "context since");
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    clv_stage *s = e->env.stage(e->env.user, i);
    if (!s || !s->has_snapshot) continue;
    clv_stage_revert(s);
    s->committed--;
  }
  e->snapshot_of = 0;
  return applied(e, ctx, &p->frame, err);
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
