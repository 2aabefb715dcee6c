/* SPDX-License-Identifier: Apache-2.0
 *
 * What the end of a context spares. A kept value that is still to be computed needs its call, and
 * that call its inputs: they stay, and run when what they wait for comes. Their places in an order
 * and behind a backward are given up with what made them wait. All else is freed.
 */
#include "common/engine/context_int.h"

static void spare(clv_value *v, clv_value **todo) {
  if (!v || v->spared) return;
  v->spared = v->dropped = true;
  v->next_spared = *todo;
  *todo = v;
}

/* For a reference here, or for another node. */
static bool is_needed(const clv_value *v) {
  const clv_delivery *d = v->deliveries;
  while (d && !d->keep) d = d->next;
  return d || v->wanted;
}

/* One whose tensors are on their way takes its inputs when they are here. */
static void spare_inputs(clv_contexts *e, const clv_context_call *c, clv_value **todo) {
  for (uint32_t i = 0; i < CLV_MAX_INPUTS; i++) {
    clv_value *v = c->arg[i] ? clv_context_find_value(e, c->out->ctx, c->arg[i]) : NULL;
    bool waits = v && c->uses[i].call && !clv_value_is_settled(v);
    if (v && (waits || c->progress == CALL_ANNOUNCED)) spare(v, todo);
  }
}

uint32_t clv_context_mark_retained(clv_contexts *e, clv_context *ctx) {
  clv_value *todo = NULL;
  uint32_t n = 0;
  for (clv_value *v = ctx->values; v; v = v->next)
    if (v->state == VALUE_PENDING && is_needed(v)) spare(v, &todo);
  while (todo) {
    const clv_value *v = todo;
    todo = v->next_spared;
    if (v->state != VALUE_PENDING) continue;
    spare_inputs(e, v->maker, &todo);
    n++;
  }
  return n;
}

/* ---- what holds them ------------------------------------------------------------------------- */

static void leave_leader(clv_contexts *e, clv_context_call *c) {
  if (!c->leader) return;
  clv_context_call **at = &c->leader->followers;
  while (*at != c) at = &(*at)->next_follower;
  *at = c->next_follower;
  c->leader = NULL;
  clv_call_dependency_done(e, c);
}

static void leave_order(clv_contexts *e, clv_context_call *c) {
  bool waits = c->places[ORDER_FORWARD].position;
  clv_order_remove_call(c);
  c->in_order = false;
  if (waits) clv_call_dependency_done(e, c);
}

static void forget_uses(clv_value *v) {
  for (clv_input_use **at = &v->uses; *at;)
    if ((*at)->call->out->spared)
      at = &(*at)->next;
    else
      *at = (*at)->next;
}

/* A value that stays on its way to another one is sent to nobody. */
static void forget_deliveries(clv_contexts *e, clv_value *v) {
  for (clv_delivery **at = &v->deliveries, *d; (d = *at) != NULL;) {
    if (d->keep || v->wanted) {
      at = &d->next;
      continue;
    }
    *at = d->next;
    clv_slab_recycle(&e->deliveries, d);
  }
}

static void let_go(clv_contexts *e, clv_value *v) {
  forget_uses(v);
  forget_deliveries(e, v);
  clv_value_forget_gradients(e, v, UINT32_MAX);
  if (!v->maker) return;
  leave_leader(e, v->maker);
  leave_order(e, v->maker);
}

void clv_context_free_unretained(clv_contexts *e, clv_context *ctx) {
  for (clv_value *v = ctx->values; v; v = v->next)
    if (v->spared) let_go(e, v);
  for (clv_value *v = ctx->values, *next; v; v = next) {
    next = v->next;
    if (!v->spared) clv_value_free(e, v);
  }
}

/* ---- afterwards ------------------------------------------------------------------------------ */

uint32_t clv_context_n_retained(const clv_context *ctx) {
  uint32_t n = 0;
  for (const clv_value *v = ctx->values; v; v = v->next) n += v->state == VALUE_PENDING;
  return n;
}

bool clv_context_needs_frame(clv_contexts *e, const clv_context *ctx, const clv_frame *f) {
  const clv_value *v = clv_context_find_value(e, ctx, f->message);
  if (!v) return false;
  return f->kind == CLV_CALL ? v->maker && v->maker->progress == CALL_ANNOUNCED
                             : v->state == VALUE_AWAITED;
}

bool clv_context_drop_unneeded(clv_contexts *e, clv_context *ctx) {
  for (clv_value *v = ctx->values, *next; v; v = next) {
    next = v->next;
    if (v->state != VALUE_AWAITED) clv_value_free_if_dropped(e, v);
  }
  return !ctx->values;
}
