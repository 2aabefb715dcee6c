/* SPDX-License-Identifier: Apache-2.0
 *
 * What is ready runs: the one place that takes from the lists of work, when the node has its share
 * of the cores, starts work and learns of its end. Without an executor work ends at once.
 */
#include "common/engine/context_int.h"

static const clv_work_type *const types[WORK_KINDS] = {
    [WORK_FORWARD] = &clv_work_forward,
    [WORK_INPUT_GRAD] = &clv_work_input_grad,
    [WORK_WEIGHT_GRAD] = &clv_work_weight_grad,
    [WORK_STEP] = &clv_work_planned_step,
    [WORK_CHANGE] = &clv_work_of_change,
    [WORK_VOTE] = &clv_work_vote,
    [WORK_COPY] = &clv_work_of_copy,
    [WORK_TRANSFER] = &clv_work_of_transfer,
    [WORK_RESTORE] = &clv_work_of_restore,
};

/* ---- looking --------------------------------------------------------------------------------- */

static void look_at_context(clv_contexts *e, clv_context *ctx) {
  clv_err why;
  if (ctx->state != CONTEXT_OPEN) return;
  if (clv_order_start_due(e, ctx, &why) != CLV_OK)
    clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
  else
    clv_pass_start_ready(e, ctx);
}

/* What facts have marked becomes ready work, where nothing is missing. */
static void look(clv_contexts *e) {
  clv_queues_grant_heads(e);
  while (e->marked_contexts) {
    clv_context *c = e->marked_contexts;
    e->marked_contexts = c->next_marked;
    c->marked = false;
    look_at_context(e, c);
  }
}

/* A fact that met what cannot be is a failure of its context, or of nobody when that has gone. */
static clv_code report_mistake(clv_contexts *e, clv_err *err) {
  if (e->mistake.code == CLV_OK) return CLV_OK;
  *err = e->mistake;
  e->mistake = (clv_err){0};
  bool told = clv_contexts_fail_context(e, e->mistaken, CLV_MODULE_ALL, err);
  return told ? CLV_OK : err->code;
}

/* ---- starting and finishing ------------------------------------------------------------------ */

/* Waits for the share of the cores, before each piece of work. What changes parameters has begun,
 * whether or not the session ends. */
static clv_code take_share(clv_contexts *e, const clv_work *w, clv_err *err) {
  bool of_call = types[w->kind]->of_call;
  const clv_module *m = of_call ? clv_contexts_module(e, w->module) : NULL;
  if (types[w->kind]->aside) return CLV_OK;
  if (clv_share_take(e->env.share, m ? (unsigned)m->o.threads : 1) || !of_call) return CLV_OK;
  return clv_fail(err, CLV_CANCELLED, "module %u: the session is being closed", w->module);
}

/* NULL: the host's clock has to do. */
static const clv_backend *timed_by(const clv_work *w) {
  bool timed = types[w->kind]->of_call || w->kind == WORK_STEP;
  const clv_module *m = timed ? w->env->modules[w->module] : NULL;
  return m && m->o.backend->timer ? m->o.backend : NULL;
}

clv_code clv_work_compute(clv_work *w, clv_err *err) {
  const clv_backend *b = timed_by(w);
  double ms = 0;
  if (b) b->timer->begin(b);
  clv_code code = types[w->kind]->compute(w, err);
  w->device_ns = b && b->timer->end(b, &ms) && ms > 0 ? (uint64_t)(ms * 1e6) : 0;
  return code;
}

clv_code clv_contexts_finish_work(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                                  clv_err *err) {
  const clv_work_type *type = types[w->kind];
  clv_work_note_end(e, w);
  return type->finish(e, w, code, why, err);
}

clv_work *clv_contexts_take_device_work(clv_contexts *e) {
  clv_work *w = e->far;
  if (w) e->far = w->next;
  return w;
}

/* False: it is computed at once. */
static bool hand_over(clv_contexts *e, clv_work *w) {
  bool far = !e->env.executor && e->env.computing && clv_work_is_on_device(e, w);
  if (e->env.executor) e->env.executor->start(e->env.executor->user, w);
  if (!far) return e->env.executor;
  w->next = NULL;
  *(e->far ? &e->last_far->next : &e->far) = w;
  e->last_far = w;
  return true;
}

static clv_code start(clv_contexts *e, clv_work *w, clv_err *err) {
  bool computes = false;
  clv_err why;
  clv_code code = types[w->kind]->ready(e, w, &computes, &why);
  if (code == CLV_OK && computes) code = take_share(e, w, &why);
  w->begin_ns = clv_contexts_now(e);
  computes = computes && code == CLV_OK;
  if (computes && hand_over(e, w)) return CLV_OK;
  if (computes) code = clv_work_compute(w, &why);
  return clv_contexts_finish_work(e, w, code, &why, err);
}

/* Where there is a thread for devices, the node has another one make copies. */
static bool make_copy(clv_contexts *e, clv_code *ret, clv_err *err) {
  clv_work *w = e->env.computing ? NULL : clv_contexts_take_copy(e);
  clv_err why;
  if (!w) return false;
  w->begin_ns = clv_contexts_now(e);
  *ret = CLV_OK;
  if (e->env.executor)
    e->env.executor->start(e->env.executor->user, w);
  else
    *ret = clv_contexts_finish_work(e, w, clv_work_compute(w, &why), &why, err);
  return true;
}

bool clv_contexts_run_one(clv_contexts *e, clv_code *ret, clv_err *err) {
  if (make_copy(e, ret, err)) return true;
  look(e);
  *ret = report_mistake(e, err);
  if (*ret != CLV_OK) return true;
  clv_work *w = clv_work_take(e);
  if (!w && clv_changes_start_due(e)) w = clv_work_take(e);
  *ret = w ? start(e, w, err) : CLV_OK;
  return w;
}
