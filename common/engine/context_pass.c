/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward passes: PREPARE says which calls take part and how many gradients come for each. Those
 * of one module run in the order in which it lists them, each when its gradients are here, so that
 * every sum has one order; modules do not wait for each other.
 */
#include "common/engine/context_int.h"

#include <string.h>

/* ---- gradients of values --------------------------------------------------------------------- */

clv_code clv_pass_add_gradient(clv_contexts *e, clv_value *v, uint32_t phase, uint32_t order,
                               clv_tensor *t, clv_err *err) {
  clv_contribution **at = &v->got, *k;
  uint32_t before = 0;
  for (; *at && ((*at)->phase < phase || ((*at)->phase == phase && (*at)->order < order)); before++)
    at = &(*at)->next;
  if (before >= 2 * CLV_WIRE_CONTRIBUTIONS) /* those of a pass and of the next */
    return clv_fail(err, CLV_EXHAUSTED, "more than %u gradients of call %llu wait", before,
                    (unsigned long long)v->id);
  if (*at && (*at)->phase == phase && (*at)->order == order)
    return clv_fail(err, CLV_EXISTS, "call %llu has gradient %u of phase %u already",
                    (unsigned long long)v->id, order, phase);
  CLV_TRY(clv_contexts_slab_alloc(e, &e->contributions, &k, err));
  *k = (clv_contribution){.next = *at, .phase = phase, .order = order};
  if (t) k->tensor = clv_tensor_ref(t);
  *at = k;
  if (v->maker) clv_context_mark_dirty(e, v->ctx);
  return CLV_OK;
}

static uint32_t count_got(const clv_context_call *c, uint32_t phase) {
  uint32_t n = 0;
  for (const clv_contribution *k = c->out->got; k; k = k->next) n += k->phase == phase;
  return n;
}

void clv_contributions_free(clv_contexts *e, clv_contribution *first) {
  for (clv_contribution *k = first, *next; k; k = next) {
    next = k->next;
    clv_tensor_unref(k->tensor);
    clv_slab_recycle(&e->contributions, k);
  }
}

/* ---- what is ready --------------------------------------------------------------------------- */

/* The first of the strand has had its part. */
static void pop_needed(clv_context *ctx, clv_context_call *c) {
  clv_backward_queue *s = ctx->strands;
  while (s->first != c) s = s->next;
  s->first = c->next_needed;
  ctx->n_needed--;
  c->needed = false;
  c->root = 0;
  memset(c->targets, 0, sizeof c->targets);
}

void clv_pass_call_done(clv_contexts *e, clv_context_call *c) {
  clv_context *ctx = c->out->ctx;
  pop_needed(ctx, c);
  if (c->places[ORDER_BACKWARD].position) {
    clv_order_remove(ctx, ORDER_BACKWARD, &c->places[ORDER_BACKWARD]);
    clv_order_advance(e, ctx);
  }
  clv_value_forget_gradients(e, c->out, ctx->phase);
  clv_call_let_followers_run(e, c);
  clv_value_free_if_dropped(e, c->out);
  clv_context_mark_dirty(e, ctx);
}

/* Whether the strand's next call can run, or be refused. */
static bool has_come(const clv_contexts *e, const clv_context *ctx, const clv_backward_queue *s) {
  const clv_context_call *c = s->first;
  if (!c || c->progress <= CALL_READY || c->work.state != WORK_IDLE) return false;
  const clv_order_entry *p = &c->places[ORDER_BACKWARD];
  if (p->position && !clv_order_is_due(ctx, p)) return false;
  if (clv_queue_has_change_before(e, c->module, ctx->prepared)) return false;
  return c->out->failed || count_got(c, ctx->phase) >= c->contributions;
}

static clv_code refused(const clv_context_call *c, const clv_cell *cell, clv_err *err) {
  const char *why = c->flags & CLV_FLAG_TRAINING ? "nothing in it needs a gradient"
                                                 : "it was made without TRAINING";
  bool alone = c->progress == CALL_NO_BACKWARD;
  return clv_fail(err, cell->code, "call %llu of module %u %s%s%s", (unsigned long long)c->out->id,
                  c->module, cell->text, alone ? ": " : "", alone ? why : "");
}

static clv_code no_place(const clv_context_call *c, uint32_t order, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "call %llu has no place %u for a gradient: %u are announced",
                  (unsigned long long)c->out->id, order, c->contributions);
}

/* Of those that came ahead of the pass, too. */
static clv_code check_orders(const clv_context_call *c, uint32_t phase, clv_err *err) {
  for (const clv_contribution *k = c->out->got; k; k = k->next)
    if (k->phase == phase && k->order >= c->contributions) return no_place(c, k->order, err);
  return CLV_OK;
}

/* Its gradients are here: its backward is ready. */
static clv_code make_ready(clv_contexts *e, clv_context *ctx, clv_context_call *c, clv_err *err) {
  CLV_TRY(check_orders(c, ctx->phase, err));
  bool again = c->progress == CALL_RETAINED;
  const clv_cell *cell = clv_call_on_event(e, c, CALL_BACKWARD_DUE);
  if (cell->action == CELL_REFUSE) return refused(c, cell, err);
  if (cell->action != CELL_BEGIN) return CLV_OK;
  c->again = again;
  clv_work_enqueue(e, &c->work, WORK_INPUT_GRAD, ctx, c->module);
  return CLV_OK;
}

/* Returns false when the context has failed, and the strands with it. */
static bool make_next_ready(clv_contexts *e, clv_context *ctx, clv_context_call *c) {
  clv_err why;
  if (c->out->failed) {
    clv_context_fail(e, ctx, clv_shared_err_ref(c->out->failed));
    return false;
  }
  if (make_ready(e, ctx, c, &why) == CLV_OK) return true;
  clv_context_fail_in_module(e, ctx, &why, c->module);
  return false;
}

static bool is_done(const clv_context *ctx) {
  return ctx->pass == PASS_ACTIVE && !ctx->n_needed && !ctx->order[ORDER_WEIGHT].first &&
         !ctx->order[ORDER_STEP].first;
}

void clv_pass_start_ready(clv_contexts *e, clv_context *ctx) {
  for (clv_backward_queue *s = ctx->strands; s; s = s->next)
    if (has_come(e, ctx, s) && !make_next_ready(e, ctx, s->first)) return;
  if (!is_done(ctx)) return;
  clv_backward_queues_free(e, ctx);
  clv_pass_on_event(e, ctx, PASS_DONE);
  clv_work_enqueue(e, &ctx->end_of_pass, WORK_VOTE, ctx, CLV_MODULE_ALL);
}

/* ---- PREPARE and GRADIENT -------------------------------------------------------------------- */

/* Behind what the pass has of the same module already. */
static clv_code append_needed(clv_contexts *e, clv_context *ctx, clv_context_call *c,
                              clv_err *err) {
  clv_backward_queue **at = &ctx->strands;
  while (*at && (*at)->module != c->module) at = &(*at)->next;
  if (!*at) {
    CLV_TRY(clv_contexts_slab_alloc(e, &e->strands, at, err));
    (*at)->module = c->module;
  }
  clv_backward_queue *s = *at;
  c->next_needed = NULL;
  *(s->first ? &s->last->next_needed : &s->first) = c;
  s->last = c;
  if (c->mod) ctx->took_part[c->module / 8] |= (uint8_t)(1u << (c->module % 8));
  ctx->n_needed++;
  c->needed = true;
  return CLV_OK;
}

static clv_code take_targets(clv_contexts *e, clv_context_call *c, const clv_frame *f,
                             uint32_t first, uint32_t n, clv_err *err) {
  for (uint32_t i = first; i < first + n; i++) {
    const clv_target *t = &f->backward.targets[i];
    if (t->slot >= c->n_in || !(c->input_grads >> t->slot & 1))
      return clv_fail(err, CLV_INVALID, "input %u of call %llu was not to have a gradient", t->slot,
                      (unsigned long long)c->out->id);
    if (c->arg[t->slot] && c->arg[t->slot] != t->value) /* a leaf that came along may have no id */
      return clv_fail(err, CLV_INVALID, "input %u of call %llu was value %llu, not %llu", t->slot,
                      (unsigned long long)c->out->id, (unsigned long long)c->arg[t->slot],
                      (unsigned long long)t->value);
    clv_gradient_target *mine = &c->targets[t->slot];
    *mine = (clv_gradient_target){.value = t->value, .order = t->order};
    const char *name = t->to ? f->backward.peers[t->to - 1] : "";
    CLV_TRY(clv_contexts_index_of_name(e, name, &mine->name, err));
  }
  return CLV_OK;
}

/* A pass has a call once: also when the first part of its backward is done, and the second waits
 * for its position. */
static bool takes_part(const clv_context_call *c) {
  return c->needed || c->progress == CALL_WEIGHT_GRAD;
}

static clv_code take_needed(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  uint32_t first = 0;
  for (uint32_t i = 0; i < f->backward.n_calls; i++) {
    const clv_needed *n = &f->backward.calls[i];
    clv_value *v = clv_context_find_value(e, ctx, n->call);
    clv_context_call *c = v ? v->maker : NULL;
    if (!c || takes_part(c))
      return clv_fail(err, c ? CLV_EXISTS : CLV_NOT_FOUND, "call %llu is %s",
                      (unsigned long long)n->call, c ? "named twice" : "not here");
    c->root = n->root;
    c->contributions = n->contributions;
    CLV_TRY(append_needed(e, ctx, c, err));
    CLV_TRY(take_targets(e, c, f, first, n->n_targets, err));
    first += n->n_targets;
  }
  return CLV_OK;
}

static clv_code begin_phase(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  clv_pass_event fact = f->phase > ctx->phase    ? PASS_PREPARE_LATER
                        : f->phase == ctx->phase ? PASS_PREPARE_SAME
                                                 : PASS_PREPARE_EARLIER;
  const clv_cell *cell = clv_pass_on_event(e, ctx, fact);
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "PREPARE of phase %u, but phase %u %s", f->phase, ctx->phase,
                    cell->text);
  if (cell->action != CELL_BEGIN) return CLV_OK;
  uint64_t next = (uint64_t)ctx->phase + 1 + f->backward.skipped;
  if (f->phase != next)
    return clv_fail(err, CLV_PRECONDITION,
                    "PREPARE of phase %u; the next, with %u skipped, is %llu", f->phase,
                    f->backward.skipped, (unsigned long long)next);
  ctx->phase = f->phase;
  ctx->prepared = ++e->n_events;
  return CLV_OK;
}

static clv_code prepare(clv_contexts *e, clv_context *ctx, const clv_frame *f, clv_err *err) {
  CLV_TRY(begin_phase(e, ctx, f, err));
  if (!f->backward.more) clv_pass_on_event(e, ctx, PASS_COLLECTED);
  ctx->retain = f->backward.retain;
  ctx->vote = f->backward.vote;
  return take_needed(e, ctx, f, err);
}

clv_code clv_on_prepare(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  (void)err;
  if (prepare(e, ctx, &p->frame, &why) != CLV_OK)
    clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
  else
    clv_context_mark_dirty(e, ctx);
  return CLV_OK;
}

/* Where a GRADIENT stands beside the pass. A call whose gradients are being added up is over. */
static clv_pass_event fact_of(const clv_context *ctx, const clv_value *v, uint32_t phase) {
  if (!phase || phase < ctx->phase) return PASS_GRADIENT_EARLIER;
  if (phase > ctx->phase) return PASS_GRADIENT_LATER;
  const clv_context_call *c = v->maker;
  bool begun = c && (c->progress == CALL_BACKWARD || c->progress == CALL_WEIGHT_GRAD);
  return c && c->needed && !begun ? PASS_GRADIENT_NEEDED : PASS_GRADIENT_OTHER;
}

static clv_code take_gradient(clv_contexts *e, clv_context *ctx, const clv_packet *p,
                              clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_value *v;
  clv_action action;
  clv_context_trace_packet(e, ctx, CLV_TRACE_GRADIENT_IN, p, p->completed_ns);
  CLV_TRY(clv_context_get_or_create_value(e, ctx, f->message, &v, err));
  CLV_TRY(clv_value_on_event(e, v, VALUE_GRADIENT, &action, err));
  const clv_cell *cell = clv_pass_on_event(e, ctx, fact_of(ctx, v, f->phase));
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "a gradient of phase %u for call %llu %s", f->phase,
                    (unsigned long long)f->message, cell->text);
  bool announced = f->phase == ctx->phase && v->maker && v->maker->needed;
  if (announced && f->order >= v->maker->contributions) return no_place(v->maker, f->order, err);
  return clv_pass_add_gradient(e, v, f->phase, f->order, f->n_tensors ? p->tensor[0] : NULL, err);
}

clv_code clv_on_gradient(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  (void)err;
  clv_code code = p->is_over_quota
                      ? clv_fail(&why, p->frame.failure.code, "%s", p->frame.failure.text)
                      : take_gradient(e, ctx, p, &why);
  if (code != CLV_OK) clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
  return CLV_OK;
}
