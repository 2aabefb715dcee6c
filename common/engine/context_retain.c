/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the records that outlive END_CONTEXT. A kept value that is not computed yet needs its
 * call, and that call needs its inputs. clv_context_mark_retained marks these values and their
 * calls, which run when their inputs arrive. Retained calls lose their position and their leader,
 * so they wait for neither. clv_context_free_unretained_values frees all other records.
 * context_end.c calls both.
 */
#include "common/engine/context_int.h"

static void retain_value(clv_value *v, clv_value **unvisited) {
  if (!v || v->is_retained) return;
  v->is_retained = v->is_dropped = true;
  v->next_retained = *unvisited;
  *unvisited = v;
}

/* True if a reference of this node or of another node needs the value. */
static bool is_needed_by_reference(const clv_value *v) {
  const clv_delivery *d = v->deliveries;
  while (d && !d->kept_ref) d = d->next;
  return d || v->needed_by_peer;
}

/* Retains the inputs that a retained call still waits for; of an announced call all inputs, because
 * it takes them when the complete CALL arrives. */
static void retain_inputs(clv_contexts *e, const clv_context_call *c, clv_value **unvisited) {
  for (uint32_t i = 0; i < CLV_MAX_INPUTS; i++) {
    clv_value *v = c->arg[i] ? clv_context_find_value(e, c->out->ctx, c->arg[i]) : NULL;
    bool waits = v && c->uses[i].call && !clv_value_is_settled(v);
    if (v && (waits || c->call_state == CALL_ANNOUNCED)) retain_value(v, unvisited);
  }
}

uint32_t clv_context_mark_retained(clv_contexts *e, clv_context *ctx) {
  clv_value *unvisited = NULL;
  uint32_t n = 0;
  for (clv_value *v = ctx->values; v; v = v->next)
    if (v->state == VALUE_PENDING && is_needed_by_reference(v)) retain_value(v, &unvisited);
  while (unvisited) {
    const clv_value *v = unvisited;
    unvisited = v->next_retained;
    if (v->state != VALUE_PENDING) continue;
    retain_inputs(e, v->producer, &unvisited);
    n++;
  }
  return n;
}

/* ---- ending the waits of retained calls ------------------------------------------------------ */

static void remove_from_followers(clv_contexts *e, clv_context_call *c) {
  if (!c->leader) return;
  clv_context_call **at = &c->leader->followers;
  while (*at != c) at = &(*at)->next_follower;
  *at = c->next_follower;
  c->leader = NULL;
  clv_call_dependency_done(e, c);
}

static void remove_from_order(clv_contexts *e, clv_context_call *c) {
  bool waits = c->order_entries[ORDER_FORWARD].position;
  clv_order_remove_call(c);
  c->has_position = false;
  if (waits) clv_call_dependency_done(e, c);
}

static void forget_uses(clv_value *v) {
  for (clv_input_use **at = &v->uses; *at;)
    if ((*at)->call->out->is_retained)
      at = &(*at)->next;
    else
      *at = (*at)->next;
}

/* Drops the deliveries of a retained value, unless a reference or another node needs it. */
static void forget_deliveries(clv_contexts *e, clv_value *v) {
  for (clv_delivery **at = &v->deliveries, *d; (d = *at) != NULL;) {
    if (d->kept_ref || v->needed_by_peer) {
      at = &d->next;
      continue;
    }
    *at = d->next;
    clv_slab_recycle(&e->deliveries, d);
  }
}

static void unlink_from_waiters(clv_contexts *e, clv_value *v) {
  forget_uses(v);
  forget_deliveries(e, v);
  clv_value_forget_gradients(e, v, UINT32_MAX);
  if (!v->producer) return;
  remove_from_followers(e, v->producer);
  remove_from_order(e, v->producer);
}

void clv_context_free_unretained_values(clv_contexts *e, clv_context *ctx) {
  for (clv_value *v = ctx->values; v; v = v->next)
    if (v->is_retained) unlink_from_waiters(e, v);
  for (clv_value *v = ctx->values, *next; v; v = next) {
    next = v->next;
    if (!v->is_retained) clv_value_free(e, v);
  }
}

/* ---- retained values after END_CONTEXT ------------------------------------------------------- */

uint32_t clv_context_n_retained(const clv_context *ctx) {
  uint32_t n = 0;
  for (const clv_value *v = ctx->values; v; v = v->next) n += v->state == VALUE_PENDING;
  return n;
}

bool clv_context_needs_frame(clv_contexts *e, const clv_context *ctx, const clv_frame *f) {
  const clv_value *v = clv_context_find_value(e, ctx, f->message_id);
  if (!v) return false;
  return f->kind == CLV_CALL ? v->producer && v->producer->call_state == CALL_ANNOUNCED
                             : v->state == VALUE_AWAITED;
}

bool clv_context_free_unneeded_values(clv_contexts *e, clv_context *ctx) {
  for (clv_value *v = ctx->values, *next; v; v = next) {
    next = v->next;
    if (v->state != VALUE_AWAITED) clv_value_free_if_dropped(e, v);
  }
  return !ctx->values;
}
