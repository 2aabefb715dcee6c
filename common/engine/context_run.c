/* SPDX-License-Identifier: Apache-2.0
 *
 * Running ready work: this is the only file that takes work from the lists of ready work. It waits
 * for a share of the cores, starts work and finishes it. Without an executor, work is computed at
 * once.
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

/* ---- finding ready work ---------------------------------------------------------------------- */

static void make_context_work_ready(clv_contexts *e, clv_context *ctx) {
  clv_err why;
  if (ctx->state != CONTEXT_OPEN) return;
  if (clv_order_start_due(e, ctx, &why) != CLV_OK)
    clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
  else
    clv_pass_start_ready(e, ctx);
}

/* Makes work of dirty queues and dirty contexts ready, if the work waits for nothing any more. */
static void make_dirty_work_ready(clv_contexts *e) {
  clv_queues_grant_heads(e);
  while (e->dirty_contexts) {
    clv_context *c = e->dirty_contexts;
    e->dirty_contexts = c->next_dirty;
    c->is_dirty = false;
    make_context_work_ready(e, c);
  }
}

/* Fails the context of an impossible event. If the context does not exist any more, the error is
 * returned instead. */
static clv_code report_impossible_event(clv_contexts *e, clv_err *err) {
  if (e->impossible_event.code == CLV_OK) return CLV_OK;
  *err = e->impossible_event;
  e->impossible_event = (clv_err){0};
  bool has_failed_context =
      clv_contexts_fail_context(e, e->impossible_event_context, CLV_MODULE_ALL, err);
  return has_failed_context ? CLV_OK : err->code;
}

/* ---- starting and finishing work ------------------------------------------------------------- */

/* Waits for a share of the cores before a piece of work. Work of a call is cancelled if the session
 * closes; a change of parameters is computed all the same. */
static clv_code wait_for_share(clv_contexts *e, const clv_work *w, clv_err *err) {
  bool is_of_call = types[w->kind]->needs_core_share;
  const clv_module *m = is_of_call ? clv_contexts_module(e, w->module) : NULL;
  if (types[w->kind]->bypasses_scheduler) return CLV_OK;
  if (clv_share_acquire_cores(e->env.share, m ? (unsigned)m->o.threads : 1) || !is_of_call)
    return CLV_OK;
  return clv_fail(err, CLV_CANCELLED, "module %u: the session is being closed", w->module);
}

/* Returns the backend whose timer measures the work on its device; NULL: the host's clock is
 * used. */
static const clv_backend *timing_backend(const clv_work *w) {
  bool is_timed_on_device = types[w->kind]->needs_core_share || w->kind == WORK_STEP;
  const clv_module *m = is_timed_on_device ? w->env->modules[w->module] : NULL;
  return m && m->o.backend->timer ? m->o.backend : NULL;
}

clv_code clv_work_compute(clv_work *w, clv_err *err) {
  const clv_backend *b = timing_backend(w);
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
  clv_work *w = e->device_work;
  if (w) e->device_work = w->next;
  return w;
}

/* Passes work to the executor or to the queue of the device thread. False: the caller must compute
 * the work itself. */
static bool dispatch_work(clv_contexts *e, clv_work *w) {
  bool is_for_device_thread =
      !e->env.executor && e->env.compute_lock && clv_work_is_on_device(e, w);
  if (e->env.executor) e->env.executor->start(e->env.executor->user, w);
  if (!is_for_device_thread) return e->env.executor;
  w->next = NULL;
  *(e->device_work ? &e->last_device_work->next : &e->device_work) = w;
  e->last_device_work = w;
  return true;
}

static clv_code start_work(clv_contexts *e, clv_work *w, clv_err *err) {
  bool computes = false;
  clv_err why;
  clv_code code = types[w->kind]->prepare(e, w, &computes, &why);
  if (code == CLV_OK && computes) code = wait_for_share(e, w, &why);
  w->begin_ns = clv_contexts_now(e);
  computes = computes && code == CLV_OK;
  if (computes && dispatch_work(e, w)) return CLV_OK;
  if (computes) code = clv_work_compute(w, &why);
  return clv_contexts_finish_work(e, w, code, &why, err);
}

/* Starts a copy, if there is one. A node with a copy thread starts none here: that thread takes the
 * copies. Returns true if a copy was started. */
static bool start_copy(clv_contexts *e, clv_code *ret, clv_err *err) {
  clv_work *w = e->env.compute_lock ? NULL : clv_contexts_take_copy(e);
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
  if (start_copy(e, ret, err)) return true;
  make_dirty_work_ready(e);
  *ret = report_impossible_event(e, err);
  if (*ret != CLV_OK) return true;
  clv_work *w = clv_work_take(e);
  if (!w && clv_changes_start_due(e)) w = clv_work_take(e);
  *ret = w ? start_work(e, w, err) : CLV_OK;
  return w;
}
