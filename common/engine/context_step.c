/* SPDX-License-Identifier: Apache-2.0
 *
 * Work: changes of parameters. A planned step, which has a position, steps one module within its
 * context; an APPLY or a REVERT changes all its modules at once; a STATE_ packet that waited in a
 * queue is passed to the node.
 */
#include "common/engine/context_int.h"

#include <math.h>

/* ---- planned steps --------------------------------------------------------------------------- */

static clv_code check_finite(const clv_module_gradient *g, clv_err *err) {
  const clv_module *m = g->mod;
  const clv_backend *b = m->o.backend;
  double sum = 0;
  CLV_TRY(b->sum_squares(b, g->block->data, m->learning_extents, m->n_learning, m->sums, err));
  for (uint32_t i = 0; i < m->n_learning; i++) sum += m->sums[i];
  if (isfinite(sum)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "a gradient of module %u is not finite", g->module);
}

static clv_code prepare_step(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err) {
  clv_planned_step *s = clv_step_of_work(w);
  clv_module_gradient *g = clv_context_module_gradient(w->ctx, s->module);
  if (w->ctx->state != CONTEXT_OPEN || !g || !g->input_part_done) return CLV_OK;
  if (!g->weight_part_done)
    return clv_fail(err, CLV_PRECONDITION,
                    "module %u cannot step before the gradients of its parameters are complete",
                    s->module);
  CLV_TRY(clv_save_old_weights(e, w->ctx, g, s->saves_weights, &s->saved_weights, err));
  s->is_computing = *ret_computes = true;
  return CLV_OK;
}

/* Computes a planned step. Fails if a gradient of the module is not finite, because no vote over
 * all modules checks that for a planned step. */
static clv_code compute_step(clv_work *w, clv_err *err) {
  const clv_planned_step *s = clv_step_of_work(w);
  const clv_module_gradient *g = clv_context_module_gradient(w->ctx, s->module);
  if (s->saved_weights) clv_copy_old_weights(s->saved_weights);
  CLV_TRY(check_finite(g, err));
  clv_optim_step(g->mod->optim, g->mod->block, g->block->data, s->rates, s->scale);
  return clv_module_finish(g->mod, err);
}

static void count_step(clv_module *m) {
  m->version++;
  clv_counter_add(&m->steps, 1);
  clv_counter_add(&m->counts.steps_since_load, 1);
}

/* Records a planned step, after which no earlier step of the module can be reverted. */
static void record_step(clv_contexts *e, const clv_context *ctx, uint32_t module) {
  clv_module_gradient *g = clv_context_module_gradient(ctx, module);
  clv_step_on_event(e, module, 0, STEP_PLANNED);
  count_step(g->mod);
  g->input_part_done = g->weight_part_done = false;
}

static clv_code finish_step(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                            clv_err *err) {
  clv_planned_step *s = clv_step_of_work(w);
  clv_context *ctx = w->ctx;
  (void)err;
  clv_old_weights_unref(e, s->saved_weights);
  s->saved_weights = NULL;
  if (code != CLV_OK) clv_context_fail_in_module(e, ctx, why, s->module);
  if (code == CLV_OK && s->is_computing) record_step(e, ctx, s->module);
  if (ctx->state != CONTEXT_OPEN) return CLV_OK;
  clv_context_trace_step(e, ctx, s);
  clv_order_remove(ctx, ORDER_STEP, &s->order_entry);
  clv_slab_recycle(&e->steps, s);
  clv_order_advance(e, ctx);
  return CLV_OK;
}

const clv_work_type clv_work_planned_step = {
    .prepare = prepare_step, .compute = compute_step, .finish = finish_step};

/* ---- changes by APPLY and REVERT, and STATE_ packets that waited ----------------------------- */

_Static_assert((int)CLV_OPTIM_MAX_GROUPS == CLV_WIRE_GROUPS + 1,
               "a change has a rate for each group");

/* Prepares a change. Of a REVERT, finds the modules that have a step of the context to revert; a
 * step is reverted only once. */
static clv_code prepare_change(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err) {
  clv_change *k = clv_change_of_work(w);
  (void)err;
  k->saves_snapshot = !k->is_final;
  for (clv_queue_entry *t = k->entries; t && k->kind == CLV_REVERT; t = t->next_of_change) {
    if (t->waits_for_tied_owner) continue;
    bool is_own_snapshot = e->queues[t->module].revertible_context_id == k->context;
    clv_step_event event = is_own_snapshot ? STEP_REVERTED : STEP_NOT_REVERTED;
    t->has_step_to_revert = clv_step_on_event(e, t->module, 0, event) == CELL_GIVE;
  }
  *ret_computes = k->entries && !k->packet;
  return CLV_OK;
}

static clv_code step_module(const clv_change *k, clv_module *m, const clv_tensor *gradients,
                            clv_err *err) {
  double rates[CLV_OPTIM_MAX_GROUPS];
  if (k->saves_snapshot && !m->o.has_no_revert) clv_module_take_snapshot(m);
  for (uint32_t i = 0; i < k->n_rates; i++) rates[i] = k->rates[i];
  clv_optim_step(m->optim, m->block, gradients->data, rates, k->scale);
  return clv_module_finish(m, err);
}

/* Applies a change to one module. Only an error of a device can fail it. That module is then
 * unusable, but the caller changes the other modules all the same, so that all are at the same
 * step. */
static clv_code change_module(const clv_change *k, const clv_queue_entry *t, clv_module *m,
                              clv_err *err) {
  if (t->waits_for_tied_owner) return CLV_OK;
  if (k->kind == CLV_APPLY) return step_module(k, m, t->gradients, err);
  if (t->has_step_to_revert) clv_module_restore_snapshot(m);
  return clv_module_check_device(m, err);
}

static clv_code compute_change(clv_work *w, clv_err *err) {
  const clv_change *k = clv_change_of_work(w);
  clv_code first = CLV_OK;
  CLV_FAILPOINT("step.compute_change");
  clv_err why;
  for (const clv_queue_entry *t = k->entries; t; t = t->next_of_change) {
    clv_code code = change_module(k, t, w->env->modules[t->module], &why);
    if (first != CLV_OK || code == CLV_OK) continue;
    first = code;
    *err = why;
  }
  return first;
}

/* Sends APPLIED; if `failed` is not NULL, sends ERROR with that failure instead. */
static void send_answer(clv_contexts *e, const clv_change *k, const clv_err *failed) {
  clv_packet *p;
  clv_err why;
  if (clv_packet_new(e->env.pool, failed ? CLV_ERROR : CLV_APPLIED, &p, &why) != CLV_OK) return;
  p->frame.context = k->context;
  p->frame.message_id = ++*e->env.next_message;
  p->frame.reply_to = k->message;
  p->frame.module = k->module;
  if (failed) clv_frame_set_failure(&p->frame, failed->code, failed->text, "");
  clv_outbox_send(e, p);
}

/* Records an APPLY. The step is not revertible if work of another context arrived while it was
 * computed. */
static void record_apply(clv_contexts *e, const clv_change *k, uint32_t module) {
  clv_module *m = clv_contexts_module(e, module);
  bool is_revertible = k->saves_snapshot && !k->is_final && !m->o.has_no_revert;
  clv_step_on_event(e, module, k->context,
                    is_revertible ? STEP_TAKEN_REVERTIBLE : STEP_TAKEN_FINAL);
  count_step(m);
}

static void record_change(clv_contexts *e, const clv_change *k, const clv_err *failed) {
  static const clv_err no_step_to_revert = {
      .code = CLV_PRECONDITION,
      .text =
          "this context has no step to revert: it made none, or another context has worked since"};
  bool has_effect = k->kind == CLV_APPLY;
  for (const clv_queue_entry *t = k->entries; t; t = t->next_of_change) {
    has_effect |= t->has_step_to_revert;
    if (t->waits_for_tied_owner) continue;
    if (k->kind == CLV_APPLY)
      record_apply(e, k, t->module);
    else if (t->has_step_to_revert)
      clv_counter_add(&clv_contexts_module(e, t->module)->steps, -(uint64_t)1);
  }
  if (!k->has_no_answer)
    send_answer(e, k, failed ? failed : has_effect ? NULL : &no_step_to_revert);
}

/* Finishes a change. Marks all contexts with a backward pass as dirty, because calls of these
 * passes may have waited for the change. */
static clv_code finish_change(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                              clv_err *err) {
  clv_change *k = clv_change_of_work(w);
  (void)err;
  CLV_FAILPOINT("step.finish_change");
  if (k->packet)
    clv_outbox_add_state_frame(e, clv_steal(&k->packet));
  else
    record_change(e, k, code == CLV_OK ? NULL : why);
  clv_change_free(e, k);
  for (clv_context *c = e->open_contexts; c; c = c->next)
    if (c->pass_state != PASS_NONE) clv_context_mark_dirty(e, c);
  return CLV_OK;
}

const clv_work_type clv_work_of_change = {
    .prepare = prepare_change, .compute = compute_change, .finish = finish_change};
