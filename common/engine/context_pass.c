/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward passes: PREPARE lists the calls that take part, with the number of gradients that each
 * call must receive. The calls of one module run in the order of the list, each when its gradients
 * have arrived, so every sum has a fixed order. Modules do not wait for each other.
 */
#include "common/engine/context_int.h"

#include <string.h>

/* ---- gradients of values --------------------------------------------------------------------- */

clv_code clv_pass_add_gradient(clv_contexts *e, clv_value *v, uint32_t phase, uint32_t order,
                               clv_tensor *t, clv_err *err) {
  clv_contribution **at = &v->received_gradients, *k;
  uint32_t before = 0;
  for (; *at && ((*at)->phase < phase || ((*at)->phase == phase && (*at)->order < order)); before++)
    at = &(*at)->next;
  /* twice the limit, for the gradients of this pass and of the next one */
  if (before >= 2 * CLV_WIRE_CONTRIBUTIONS)
    return clv_fail(err, CLV_EXHAUSTED, "more than %u gradients of call %llu wait", before,
                    (unsigned long long)v->id);
  if (*at && (*at)->phase == phase && (*at)->order == order)
    return clv_fail(err, CLV_EXISTS, "call %llu has gradient %u of phase %u already",
                    (unsigned long long)v->id, order, phase);
  CLV_TRY(clv_contexts_slab_alloc(e, &e->contributions, &k, err));
  *k = (clv_contribution){.next = *at, .phase = phase, .order = order};
  if (t) k->tensor = clv_tensor_ref(t);
  *at = k;
  if (v->producer) clv_context_mark_dirty(e, v->ctx);
  return CLV_OK;
}

static uint32_t count_received_gradients(const clv_context_call *c, uint32_t phase) {
  uint32_t n = 0;
  for (const clv_contribution *k = c->out->received_gradients; k; k = k->next)
    n += k->phase == phase;
  return n;
}

void clv_contributions_free(clv_contexts *e, clv_contribution *first) {
  for (clv_contribution *k = first, *next; k; k = next) {
    next = k->next;
    clv_tensor_unref(k->tensor);
    clv_slab_recycle(&e->contributions, k);
  }
}

/* ---- starting the calls of a pass that are ready --------------------------------------------- */

/* Removes call c, which is the first of its module's backward queue, from the pass. */
static void pop_call(clv_context *ctx, clv_context_call *c) {
  clv_backward_queue *s = ctx->backward_queues;
  while (s->first != c) s = s->next;
  s->first = c->next_in_pass;
  ctx->n_calls_in_pass--;
  c->is_in_pass = false;
  c->root_gradient = 0;
  memset(c->targets, 0, sizeof c->targets);
}

void clv_pass_remove_call(clv_contexts *e, clv_context_call *c) {
  clv_context *ctx = c->out->ctx;
  pop_call(ctx, c);
  if (c->order_entries[ORDER_BACKWARD].position) {
    clv_order_remove(ctx, ORDER_BACKWARD, &c->order_entries[ORDER_BACKWARD]);
    clv_order_advance(e, ctx);
  }
  clv_value_forget_gradients(e, c->out, ctx->phase);
  clv_call_let_followers_run(e, c);
  clv_value_free_if_dropped(e, c->out);
  clv_context_mark_dirty(e, ctx);
}

/* True if the backward of the first call of queue s can start: the call has run, its position is
 * due, no earlier change waits, and all its gradients have arrived or its value has failed. */
static bool can_run_next(const clv_contexts *e, const clv_context *ctx,
                         const clv_backward_queue *s) {
  const clv_context_call *c = s->first;
  if (!c || c->call_state <= CALL_READY || c->work.state != WORK_IDLE) return false;
  const clv_order_entry *p = &c->order_entries[ORDER_BACKWARD];
  if (p->position && !clv_order_is_due(ctx, p)) return false;
  if (clv_queue_has_change_before(e, c->module, ctx->prepare_number)) return false;
  return c->out->failure || count_received_gradients(c, ctx->phase) >= c->n_contributions;
}

static clv_code fail_backward(const clv_context_call *c, const clv_cell *cell, clv_err *err) {
  const char *why = c->flags & CLV_FLAG_TRAINING ? "nothing in it needs a gradient"
                                                 : "it was made without TRAINING";
  bool has_no_backward = c->call_state == CALL_NO_BACKWARD;
  return clv_fail(err, cell->code, "call %llu of module %u %s%s%s", (unsigned long long)c->out->id,
                  c->module, cell->text, has_no_backward ? ": " : "", has_no_backward ? why : "");
}

static clv_code fail_gradient_order(const clv_context_call *c, uint32_t order, clv_err *err) {
  return clv_fail(err, CLV_INVALID,
                  "gradient %u of call %llu is out of range: its PREPARE announces %u", order,
                  (unsigned long long)c->out->id, c->n_contributions);
}

/* Checks the `order` of all gradients of the pass that the call has received, including those that
 * arrived before the PREPARE. */
static clv_code check_gradient_orders(const clv_context_call *c, uint32_t phase, clv_err *err) {
  for (const clv_contribution *k = c->out->received_gradients; k; k = k->next)
    if (k->phase == phase && k->order >= c->n_contributions)
      return fail_gradient_order(c, k->order, err);
  return CLV_OK;
}

/* Makes the backward of a call ready. All gradients of the call have arrived. */
static clv_code make_backward_ready(clv_contexts *e, clv_context *ctx, clv_context_call *c,
                                    clv_err *err) {
  CLV_TRY(check_gradient_orders(c, ctx->phase, err));
  bool is_retained = c->call_state == CALL_RETAINED;
  const clv_cell *cell = clv_call_on_event(e, c, CALL_BACKWARD_DUE);
  if (cell->action == CELL_REFUSE) return fail_backward(c, cell, err);
  if (cell->action != CELL_BEGIN) return CLV_OK;
  c->is_recompute = is_retained;
  clv_work_enqueue(e, &c->work, WORK_INPUT_GRAD, ctx, c->module);
  return CLV_OK;
}

/* Makes the backward of a call ready, or fails the context. Returns false if the context has
 * failed, because its backward queues are then freed. */
static bool start_next_backward(clv_contexts *e, clv_context *ctx, clv_context_call *c) {
  clv_err why;
  if (c->out->failure) {
    clv_context_fail(e, ctx, clv_shared_err_ref(c->out->failure));
    return false;
  }
  if (make_backward_ready(e, ctx, c, &why) == CLV_OK) return true;
  clv_context_fail_in_module(e, ctx, &why, c->module);
  return false;
}

static bool is_pass_done(const clv_context *ctx) {
  return ctx->pass_state == PASS_ACTIVE && !ctx->n_calls_in_pass &&
         !ctx->order[ORDER_WEIGHT].first && !ctx->order[ORDER_STEP].first;
}

void clv_pass_start_ready(clv_contexts *e, clv_context *ctx) {
  for (clv_backward_queue *s = ctx->backward_queues; s; s = s->next)
    if (can_run_next(e, ctx, s) && !start_next_backward(e, ctx, s->first)) return;
  if (!is_pass_done(ctx)) return;
  clv_backward_queues_free(e, ctx);
  clv_pass_on_event(e, ctx, PASS_DONE);
  clv_work_enqueue(e, &ctx->end_of_pass_work, WORK_VOTE, ctx, CLV_MODULE_ALL);
}

/* ---- handling PREPARE and GRADIENT ----------------------------------------------------------- */

/* Appends a call to the backward queue of its module. */
static clv_code append_call(clv_contexts *e, clv_context *ctx, clv_context_call *c, clv_err *err) {
  clv_backward_queue **at = &ctx->backward_queues;
  while (*at && (*at)->module != c->module) at = &(*at)->next;
  if (!*at) {
    CLV_TRY(clv_contexts_slab_alloc(e, &e->backward_queue_slab, at, err));
    (*at)->module = c->module;
  }
  clv_backward_queue *s = *at;
  c->next_in_pass = NULL;
  *(s->first ? &s->last->next_in_pass : &s->first) = c;
  s->last = c;
  if (c->mod) ctx->was_in_pass[c->module / 8] |= (uint8_t)(1u << (c->module % 8));
  ctx->n_calls_in_pass++;
  c->is_in_pass = true;
  return CLV_OK;
}

static clv_code record_targets(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                               uint32_t first, uint32_t n, clv_err *err) {
  for (uint32_t i = first; i < first + n; i++) {
    const clv_target *t = &f->backward.grad_targets[i];
    if (t->input_index >= c->n_in || !(c->input_grads >> t->input_index & 1))
      return clv_fail(err, CLV_INVALID, "input %u of call %llu was called without a gradient",
                      t->input_index, (unsigned long long)c->out->id);
    /* an argument that the CALL carried as a tensor may have no value id */
    if (c->arg[t->input_index] && c->arg[t->input_index] != t->value_id)
      return clv_fail(err, CLV_INVALID, "input %u of call %llu was value %llu, not %llu",
                      t->input_index, (unsigned long long)c->out->id,
                      (unsigned long long)c->arg[t->input_index], (unsigned long long)t->value_id);
    clv_gradient_target *own_target = &c->targets[t->input_index];
    *own_target = (clv_gradient_target){.value = t->value_id, .order = t->contribution_index};
    const char *name = t->to_peer ? f->backward.peer_names[t->to_peer - 1] : "";
    CLV_TRY(clv_contexts_index_of_name(e, name, &own_target->name, err));
  }
  return CLV_OK;
}

/* True if the call is part of the pass already, also if its input part is done and its weight part
 * waits for a position. */
static bool is_part_of_pass(const clv_context_call *c) {
  return c->is_in_pass || c->call_state == CALL_WEIGHT_GRAD;
}

static clv_code add_calls_to_pass(clv_contexts *e, clv_context *ctx, const clv_frame *f,
                                  clv_err *err) {
  uint32_t first = 0;
  for (uint32_t i = 0; i < f->backward.n_needed_calls; i++) {
    const clv_needed_call *n = &f->backward.needed_calls[i];
    clv_value *v = clv_context_find_value(e, ctx, n->call_id);
    clv_context_call *c = v ? v->producer : NULL;
    if (!c || is_part_of_pass(c))
      return clv_fail(err, c ? CLV_EXISTS : CLV_NOT_FOUND, "call %llu is %s",
                      (unsigned long long)n->call_id, c ? "named twice" : "not known at this node");
    c->root_gradient = n->root_gradient;
    c->n_contributions = n->n_contributions;
    CLV_TRY(append_call(e, ctx, c, err));
    CLV_TRY(record_targets(e, c, f, first, n->n_grad_targets, err));
    first += n->n_grad_targets;
  }
  return CLV_OK;
}

static clv_code begin_phase(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  clv_pass_event event = f->backward_pass_number > ctx->phase    ? PASS_PREPARE_LATER
                         : f->backward_pass_number == ctx->phase ? PASS_PREPARE_SAME
                                                                 : PASS_PREPARE_EARLIER;
  const clv_cell *cell = clv_pass_on_event(e, ctx, event);
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "PREPARE of phase %u, but phase %u %s",
                    f->backward_pass_number, ctx->phase, cell->text);
  if (cell->action != CELL_BEGIN) return CLV_OK;
  uint64_t next = (uint64_t)ctx->phase + 1 + f->backward.n_skipped_phases;
  if (f->backward_pass_number != next)
    return clv_fail(
        err, CLV_PRECONDITION, "PREPARE of phase %u; the next, with %u skipped, is %llu",
        f->backward_pass_number, f->backward.n_skipped_phases, (unsigned long long)next);
  ctx->phase = f->backward_pass_number;
  ctx->prepare_number = ++e->n_events;
  return CLV_OK;
}

static clv_code handle_prepare(clv_contexts *e, clv_context *ctx, const clv_frame *f,
                               clv_err *err) {
  CLV_TRY(begin_phase(e, ctx, f, err));
  if (!f->backward.more_follow) clv_pass_on_event(e, ctx, PASS_COLLECTED);
  ctx->retains_inputs = f->backward.retains_graph;
  ctx->needs_vote = f->backward.needs_vote;
  return add_calls_to_pass(e, ctx, f, err);
}

clv_code clv_on_prepare(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  (void)err;
  if (handle_prepare(e, ctx, &p->frame, &why) != CLV_OK)
    clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
  else
    clv_context_mark_dirty(e, ctx);
  return CLV_OK;
}

/* Returns the pass event of a GRADIENT. A call that already sums its gradients accepts no more. */
static clv_pass_event get_gradient_event(const clv_context *ctx, const clv_value *v,
                                         uint32_t phase) {
  if (!phase || phase < ctx->phase) return PASS_GRADIENT_EARLIER;
  if (phase > ctx->phase) return PASS_GRADIENT_LATER;
  const clv_context_call *c = v->producer;
  bool has_begun = c && (c->call_state == CALL_BACKWARD || c->call_state == CALL_WEIGHT_GRAD);
  return c && c->is_in_pass && !has_begun ? PASS_GRADIENT_NEEDED : PASS_GRADIENT_OTHER;
}

/* Returns the gradient that a GRADIENT carries, as f32, in which gradients are summed. *ret NULL:
 * it carries none. */
static clv_code get_gradient(const clv_contexts *e, const clv_packet *p, clv_tensor **ret,
                             clv_err *err) {
  clv_tensor *t = p->frame.n_tensors ? p->tensor[0] : NULL;
  if (t && t->dtype == CLV_BF16) return clv_pool_convert_tensor(e->env.pool, t, CLV_F32, ret, err);
  *ret = t ? clv_tensor_ref(t) : NULL;
  return CLV_OK;
}

static clv_code record_gradient(clv_contexts *e, clv_context *ctx, const clv_packet *p,
                                clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *gradient = NULL;
  const clv_frame *f = &p->frame;
  clv_value *v;
  clv_action action;
  clv_context_trace_packet(e, ctx, CLV_TRACE_GRADIENT_IN, p, p->completed_ns);
  CLV_TRY(clv_context_get_or_create_value(e, ctx, f->message_id, &v, err));
  CLV_TRY(clv_value_on_event(e, v, VALUE_GRADIENT, &action, err));
  const clv_cell *cell =
      clv_pass_on_event(e, ctx, get_gradient_event(ctx, v, f->backward_pass_number));
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "a gradient of phase %u for call %llu %s",
                    f->backward_pass_number, (unsigned long long)f->message_id, cell->text);
  bool is_announced =
      f->backward_pass_number == ctx->phase && v->producer && v->producer->is_in_pass;
  if (is_announced && f->contribution_index >= v->producer->n_contributions)
    return fail_gradient_order(v->producer, f->contribution_index, err);
  CLV_TRY(get_gradient(e, p, &gradient, err));
  return clv_pass_add_gradient(e, v, f->backward_pass_number, f->contribution_index, gradient, err);
}

clv_code clv_on_gradient(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  (void)err;
  clv_code code = p->is_over_quota
                      ? clv_fail(&why, p->frame.failure.code, "%s", p->frame.failure.text)
                      : record_gradient(e, ctx, p, &why);
  if (code != CLV_OK) clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
  return CLV_OK;
}
