/* SPDX-License-Identifier: Apache-2.0
 *
 * Freeing records, and failing a context. A record whose work is ready or runs is never freed:
 * frames that free records wait (context_frames.c), no work becomes ready while a context is
 * closing (context_end.c), and a dropped value stays until its call's work has ended.
 */
#include "common/engine/context_int.h"

/* ---- freeing calls --------------------------------------------------------------------------- */

void clv_call_drop_state(clv_context_call *c) {
  if (c->plan) clv_module_call_put(c->plan, c->state);
  c->state = NULL;
}

void clv_call_release(clv_contexts *e, clv_context_call *c) {
  if (!c) return;
  for (uint32_t i = 0; i < c->n_in; i++) c->in[i] = clv_tensor_unref(c->in[i]);
  clv_call_drop_state(c);
  clv_old_weights_unref(e, c->weights);
  c->weights = NULL;
}

/* Unlinks a call from its leader and its followers. All of them belong to the same context, and end
 * when the context ends. */
static void unlink_from_leader(clv_context_call *c) {
  for (clv_context_call *f = c->followers; f; f = f->next_follower) f->leader = NULL;
  if (!c->leader) return;
  clv_context_call **at = &c->leader->followers;
  while (*at != c) at = &(*at)->next_follower;
  *at = c->next_follower;
}

void clv_call_end_announcement(clv_context_call *c) {
  clv_context_call **at = &c->out->ctx->announced_calls;
  if (c->call_state != CALL_ANNOUNCED) return;
  while (*at != c) at = &(*at)->next_announced;
  *at = c->next_announced;
}

void clv_call_discharge_quota(clv_contexts *e, clv_context_call *c) {
  if (c->is_charged) clv_account_discharge(clv_pool_account(e->env.pool), CLV_QUOTA_CALLS, 1);
  c->is_charged = false;
}

static void free_call(clv_contexts *e, clv_context_call *c) {
  clv_call_end_announcement(c);
  clv_call_discharge_quota(e, c);
  unlink_from_leader(c);
  if (c->n_missing)
    __atomic_store_n(&e->counts.calls_waiting, e->counts.calls_waiting - 1, __ATOMIC_RELAXED);
  clv_queue_remove_call(e, c);
  clv_order_remove_call(c);
  clv_call_release(e, c);
  clv_module_uncharge_tensors(c->mod, &c->charged_for_value);
  clv_module_uncharge_tensors(c->mod, &c->charged_for_backward);
  clv_shared_err_unref(e, c->failure);
  c->out->ctx->n_calls--;
  clv_slab_recycle(&e->calls, c);
}

/* ---- freeing values -------------------------------------------------------------------------- */

void clv_value_forget_gradients(clv_contexts *e, clv_value *v, uint32_t phase) {
  while (v->received_gradients && v->received_gradients->phase <= phase) {
    clv_contribution *k = v->received_gradients;
    v->received_gradients = k->next;
    clv_tensor_unref(k->tensor);
    clv_slab_recycle(&e->contributions, k);
  }
}

void clv_value_free(clv_contexts *e, clv_value *v) {
  if (!v) return;
  for (clv_delivery *d = v->deliveries, *next; d; d = next) {
    next = d->next;
    if (d->kept_ref)
      clv_outbox_add_kept_value(e, d, NULL,
                                v->ctx->failure ? v->ctx->failure : &clv_shared_err_context_ended);
    else
      clv_slab_recycle(&e->deliveries, d);
  }
  if (v->producer) free_call(e, v->producer);
  clv_value_forget_gradients(e, v, UINT32_MAX);
  clv_tensor_unref(v->tensor);
  clv_tensor_unref(v->host_copy);
  if (v->copy) v->copy->value = NULL;
  clv_shared_err_unref(e, v->failure);
  clv_value_unlink(e, v);
}

/* True if the call has not run, has work, is in a backward pass, or still has a position. */
static bool is_call_busy(const clv_context_call *c) {
  /* a call whose weight part has a position is not freed before that position counts as done */
  return c->call_state <= CALL_READY || c->work.state != WORK_IDLE || c->is_in_pass ||
         c->followers || c->call_state == CALL_WEIGHT_GRAD ||
         c->order_entries[ORDER_WEIGHT].position;
}

/* True if an announced call may still use the value. */
static bool is_retained_for_announced_call(const clv_value *v) {
  return v->is_retained && v->ctx->announced_calls;
}

/* Frees a dropped value, unless a consumer at this node still waits for it. */
void clv_value_free_if_dropped(clv_contexts *e, clv_value *v) {
  bool is_awaited =
      v->uses || v->deliveries || v->copy || (v->producer && is_call_busy(v->producer));
  if (v->is_dropped && !is_awaited && !is_retained_for_announced_call(v)) clv_value_free(e, v);
}

/* ---- freeing and failing contexts ------------------------------------------------------------ */

void clv_backward_queues_free(clv_contexts *e, clv_context *c) {
  if (!c) return;
  for (clv_backward_queue *s = c->backward_queues, *next; s; s = next) {
    next = s->next;
    for (clv_context_call *k = s->first; k; k = k->next_in_pass) k->is_in_pass = false;
    clv_slab_recycle(&e->backward_queue_slab, s);
  }
  c->backward_queues = NULL;
  c->n_calls_in_pass = 0;
}

void clv_context_forget_gradients(clv_contexts *e, clv_context *ctx, uint32_t module) {
  for (clv_module_gradient **at = &ctx->gradients; *at;) {
    clv_module_gradient *g = *at;
    if (module != CLV_MODULE_ALL && module != g->module) {
      at = &g->next;
      continue;
    }
    *at = g->next;
    clv_tensor_unref(g->block);
    clv_module_uncharge_tensors(g->mod, &g->charged_on_device);
    clv_old_weights_unref(e, g->weights_before_step);
    clv_slab_recycle(&e->gradients, g);
  }
}

void clv_context_clear(clv_contexts *e, clv_context *c) {
  clv_backward_queues_free(e, c);
  c->pass_state = PASS_NONE;
  while (c->values) clv_value_free(e, c->values);
  clv_order_free(e, c);
  c->trace = clv_tensor_unref(c->trace);
  c->n_trace_rows = 0;
  clv_context_forget_gradients(e, c, CLV_MODULE_ALL);
  clv_shared_err_unref(e, c->failure);
  c->failure = NULL;
  clv_context_forget_frames(c);
}

void clv_context_forget_frames(clv_context *c) {
  for (clv_packet *p = c->deferred_frames, *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
  c->deferred_frames = c->last_deferred_frame = NULL;
  c->n_deferred_frames = 0;
}

void clv_call_let_followers_run(clv_contexts *e, clv_context_call *c) {
  for (clv_context_call *f = c->followers, *next; f; f = next) {
    next = f->next_follower;
    f->leader = NULL;
    clv_call_dependency_done(e, f);
  }
  c->followers = NULL;
}

void clv_context_fail_followers(clv_contexts *e, clv_context *ctx) {
  for (const clv_value *v = ctx->values; v; v = v->next) {
    if (!v->producer) continue;
    for (clv_context_call *f = v->producer->followers; f; f = f->next_follower) {
      if (!f->failure) f->failure = clv_shared_err_ref(ctx->failure);
      clv_queue_remove_call(e, f);
    }
    clv_call_let_followers_run(e, v->producer);
  }
}

static void send_abort(clv_contexts *e, const clv_context *c) {
  clv_packet *p;
  clv_err ignored;
  if (clv_outbox_new_packet(e, CLV_ABORT, c, ++*e->env.next_message, 0, &p, &ignored) != CLV_OK)
    return;
  clv_shared_err_to_frame(c->failure, &p->frame);
  clv_outbox_send(e, p);
}

void clv_context_fail(clv_contexts *e, clv_context *c, clv_shared_err *why) {
  clv_action action = clv_context_on_event(e, c, CONTEXT_FAILS)->action;
  if (action == CELL_BEGIN) {
    c->failure = why;
    clv_context_fail_followers(e, c);
  } else {
    clv_shared_err_unref(e, why);
  }
  if (action == CELL_IMPOSSIBLE) return;
  clv_backward_queues_free(e, c);
  clv_pass_on_event(e, c, PASS_ENDED);
  send_abort(e, c);
}

void clv_context_fail_in_module(clv_contexts *e, clv_context *c, const clv_err *why,
                                uint32_t module) {
  clv_context_fail(e, c, clv_shared_err_new_in_module(e, why, module));
}

bool clv_contexts_fail_context(clv_contexts *e, uint64_t context, uint32_t module,
                               const clv_err *why) {
  clv_context *c = clv_context_find(e, context);
  if (!c || c->state == CONTEXT_ENDING) return false;
  clv_context_fail_in_module(e, c, why, module);
  return true;
}

void clv_context_resend_failure(clv_contexts *e, clv_context *c) {
  clv_context_fail(e, c, clv_shared_err_ref(c->failure));
}
