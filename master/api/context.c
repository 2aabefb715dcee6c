/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts and the values in them. Both are taken from free lists and found by ids that are never
 * given out twice, so that a handle of something gone is known for what it is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/future_int.h"
#include "master/api/life_int.h"

enum {
  MOST_ENDING = 64,         /* contexts whose end has been told and not answered */
  END_AGAIN_NS = 250000000, /* at first, then twice as long, up to so many times */
  MOST_BACKOFF = 64,
};

/* ---- values ---------------------------------------------------------------------------------- */

cleave_status api_new_value(cleave_runtime *rt, api_context *c, api_value **ret,
                            cleave_error *error) {
  api_value *v = rt->free_values;
  if (v)
    rt->free_values = v->older;
  else
    TRY(clv_alloc(1, sizeof *v, &v, &err));
  clv_tensor **parts = v->parts;
  uint32_t cap = v->parts_cap;
  *v = (api_value){.id = ++rt->next_id, .context = c, .parts = parts, .parts_cap = cap};
  clv_err err;
  if (api_id_table_put(&rt->values, v->id, v, &err) != CLV_OK) {
    v->older = rt->free_values;
    rt->free_values = v;
    return api_from(error, &err);
  }
  v->older = c->newest;
  c->newest = v;
  *ret = v;
  return CLEAVE_OK;
}

/* Back to the free list; the context's list is the caller's business. */
void api_drop_value(cleave_runtime *rt, api_value *v) {
  api_id_table_remove(&rt->values, v->id);
  if (v->kept) api_kept_unuse(rt, v->kept);
  v->kept = NULL;
  v->here = clv_tensor_unref(v->here);
  v->gradient = clv_tensor_unref(v->gradient);
  for (uint32_t i = 0; i < v->parts_cap; i++) v->parts[i] = clv_tensor_unref(v->parts[i]);
  v->older = rt->free_values;
  rt->free_values = v;
}

cleave_status api_find_value(cleave_runtime *rt, cleave_reference handle, api_value **ret,
                             cleave_error *error) {
  api_value *v = api_id_table_get(&rt->values, handle.id);
  if (v && !v->released && !v->context->closing) {
    *ret = v;
    return CLEAVE_OK;
  }
  if (handle.id == 0 || handle.id > rt->next_id)
    return api_fail(error, CLV_INVALID, "%llu is no reference of this runtime",
                    (unsigned long long)handle.id);
  return api_fail(error, CLV_NOT_FOUND, "reference %llu %s", (unsigned long long)handle.id,
                  v && !v->context->closing ? "was released"
                                            : "is gone: it was released or its context was closed");
}

/* ---- contexts -------------------------------------------------------------------------------- */

cleave_status api_context_failure(const api_context *c, cleave_error *error) {
  if (c->failed && error) *error = c->failure;
  return c->failed ? c->failure.status : CLEAVE_OK;
}

cleave_status api_find_context(cleave_runtime *rt, cleave_context handle, api_context **ret,
                               cleave_error *error) {
  api_context *c = api_id_table_get(&rt->contexts, handle.id);
  if (c && !c->closing) {
    *ret = c;
    return api_context_failure(c, error);
  }
  if (handle.id == 0 || handle.id > rt->next_context)
    return api_fail(error, CLV_INVALID, "%llu is no context of this runtime",
                    (unsigned long long)handle.id);
  return api_fail(error, CLV_NOT_FOUND, "context %llu was closed", (unsigned long long)handle.id);
}

/* Nobody else learns of a failure by itself. */
void api_context_notify(cleave_runtime *rt, api_context *c, api_node_set notified) {
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    if (!(c->nodes & ~notified & NODE_BIT(i))) continue;
    if (api_packet(rt, CLV_ABORT, c->id, ++rt->next_id, &p, NULL) != CLEAVE_OK) return;
    clv_frame_set_failure(&p->frame, (clv_code)c->failure.status, c->failure.text,
                          c->failed_at[0] ? c->failed_at : c->failure.hop);
    if (api_send(rt, i, p, NULL) != CLEAVE_OK) continue; /* lost itself: it knows nothing more */
  }
}

void api_context_fail(cleave_runtime *rt, api_context *c, const cleave_error *failure,
                      api_node_set notified) {
  if (c->failed) return;
  c->failed = true;
  c->failure = *failure;
  api_kepts_context_fail(rt, c);
  if (rt->deciding != c) api_context_notify(rt, c, notified);
  api_wake(rt);
}

/* A worker that does not answer must not make records pile up here. */
static cleave_status wait_for_ends(cleave_runtime *rt, cleave_error *error) {
  uint64_t until = api_until(rt, 0);
  char heard[200];
  bool in_time = true;
  rt->n_awaiting++;
  while (in_time && rt->n_ending > MOST_ENDING) in_time = api_sleep(rt, until);
  rt->n_awaiting--;
  if (in_time) return CLEAVE_OK;
  return api_fail(error, CLV_DEADLINE, "%u contexts that have ended are not freed everywhere%s",
                  rt->n_ending, api_silence(rt, heard, sizeof heard));
}

cleave_status api_no_window(const cleave_runtime *rt, cleave_error *error) {
  size_t at = 0;
  for (const api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;)
    if (c->n_windowed && !c->failed && !c->closing)
      return api_fail(
          error, CLV_PRECONDITION,
          "calls of context %s wait for its backward (cleave_call_options.after): begin "
          "that, or close it, before parameters are changed or read",
          c->name);
  return CLEAVE_OK;
}

void api_node_fail(cleave_runtime *rt, uint32_t node, const cleave_error *failure) {
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;)
    if (c->nodes & ~(c->lingers ? c->ended : 0) & NODE_BIT(node))
      api_context_fail(rt, c, failure, NODE_BIT(node));
  api_kepts_node_fail(rt, node, failure);
  api_modules_node_fail(rt, node);
  for (api_state_request *r = rt->requests; r; r = r->next) {
    if (r->node != node || r->failed) continue;
    r->failed = true;
    r->failure = *failure;
  }
  api_wake(rt);
}

cleave_status cleave_context_open(cleave_runtime *runtime, const cleave_context_options *options,
                                  cleave_context *ret_context, cleave_error *error) {
  GIVEN(runtime, ret_context);
  OPTIONS_IN(cleave_context_options, o, options);
  LOCKED(runtime);
  if (runtime->open->closing)
    return api_fail(error, CLV_PRECONDITION, "the runtime is being closed: nothing new begins");
  PASS(api_take_late_error(runtime, error));
  PASS(wait_for_ends(runtime, error));
  api_context *c = runtime->free_contexts;
  if (c)
    runtime->free_contexts = c->next;
  else
    TRY(clv_alloc(1, sizeof *c, &c, &err));
  *c = (api_context){.id = ++runtime->next_context,
                     .evaluation = o.evaluation,
                     .step = o.step,
                     .events = o.events};
  char name[sizeof c->name - 2];
  if (o.name)
    snprintf(c->name, sizeof c->name, "'%s'", clv_text_fit(o.name, name, sizeof name));
  else
    snprintf(c->name, sizeof c->name, "%llu", (unsigned long long)c->id);
  clv_err err;
  if (api_id_table_put(&runtime->contexts, c->id, c, &err) != CLV_OK) {
    c->next = runtime->free_contexts;
    runtime->free_contexts = c;
    return api_from(error, &err);
  }
  ret_context->id = c->id;
  return CLEAVE_OK;
}

/* Nobody can name the values of a context that is ending; its record stays until all have
 * answered. */
static void drop_values(cleave_runtime *rt, api_context *c) {
  for (api_value *v = c->newest, *older; v; v = older) {
    older = v->older;
    api_drop_value(rt, v);
  }
  c->newest = NULL;
  for (uint32_t i = 0; i < rt->n_peers; i++) c->votes[i] = clv_tensor_unref(c->votes[i]);
}

void api_context_forget(cleave_runtime *rt, api_context *c) {
  if (rt->stepping == c) rt->stepping = NULL;
  api_futures_end(rt, c);
  api_kepts_leave(rt, c);
  rt->n_ending -= c->ending;
  drop_values(rt, c);
  api_modules_unused(rt, c);
  api_id_table_remove(&rt->contexts, c->id);
  c->next = rt->free_contexts;
  rt->free_contexts = c;
}

/* An end is said until it is answered, the second time without its step: that frees what is left,
 * and is answered again. */
static void resend_ends(cleave_runtime *rt, api_context *c, uint64_t now) {
  api_node_set silent = c->nodes & ~c->ended & ~api_lost_nodes(rt);
  clv_packet *p;
  c->ends_wait_ns = CLV_MIN(2 * c->ends_wait_ns, (uint64_t)MOST_BACKOFF * END_AGAIN_NS);
  c->ends_due_ns = now + c->ends_wait_ns;
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if ((silent & NODE_BIT(i)) &&
        api_packet(rt, CLV_END_CONTEXT, c->id, ++rt->next_id, &p, NULL) == CLEAVE_OK)
      (void)api_send(rt, i, p, NULL);
}

uint64_t api_resend_ends(cleave_runtime *rt) {
  uint64_t now = api_now(rt), due = UINT64_MAX;
  if (!rt->ends_due_ns || rt->ends_due_ns > now) return rt->ends_due_ns ? rt->ends_due_ns : due;
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;) {
    if (!c->ends_due_ns || !(c->nodes & ~c->ended & ~api_lost_nodes(rt))) continue;
    if (c->ends_due_ns <= now) resend_ends(rt, c, now);
    due = CLV_MIN(due, c->ends_due_ns);
  }
  rt->ends_due_ns = due == UINT64_MAX ? 0 : due;
  return due;
}

/* An end that is waited for is said behind its step and not with it, or its rows are asked for:
 * nodes do not let that one wait for another packet. */
static cleave_status send_ends(cleave_runtime *rt, api_context *c, cleave_error *error) {
  cleave_status status = CLEAVE_OK;
  api_node_set notified = 0;
  c->ends_wait_ns = END_AGAIN_NS;
  c->ends_due_ns = api_now(rt) + END_AGAIN_NS;
  if (!rt->ends_due_ns) rt->ends_due_ns = c->ends_due_ns;
  if (rt->stepping == c && (c->ending || c->events)) api_send_step_and_ends(rt, c, &notified);
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    if (!(c->nodes & ~notified & NODE_BIT(i))) continue;
    TRY(clv_packet_end_context(rt->pool, c->id, ++rt->next_id, &p, &err));
    cleave_status sent = api_send(rt, i, p, status == CLEAVE_OK ? error : NULL);
    if (sent != CLEAVE_OK) c->ended |= NODE_BIT(i); /* gone, and everything with it */
    if (status == CLEAVE_OK) status = sent;
  }
  return status;
}

api_node_set api_lost_nodes(const cleave_runtime *rt) {
  api_node_set lost = 0;
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (rt->peers[i].lost) lost |= NODE_BIT(i);
  return lost;
}

/* Its values travel still, on the way to those that are kept, but nobody can name them. */
static void hide_values(api_context *c) {
  for (api_value *v = c->newest; v; v = v->older) {
    v->gradient = clv_tensor_unref(v->gradient);
    if (!v->node_wants) v->here = clv_tensor_unref(v->here);
  }
}

static void linger(cleave_runtime *rt, api_context *c) {
  hide_values(c);
  rt->n_ending -= c->ending;
  c->ending = false;
  c->lingers = true;
}

void api_context_ended(cleave_runtime *rt, api_context *c) {
  api_node_set silent = c->nodes & ~c->ended & ~api_lost_nodes(rt);
  if (c->ending && silent && !(silent & ~c->sparing)) linger(rt, c);
  if ((c->ending || c->lingers) && !c->owes_end && !c->users && !silent) api_context_forget(rt, c);
}

void api_context_end_owed(cleave_runtime *rt, api_context *c) {
  if (!c->owes_end) return;
  c->owes_end = false;
  c->spares = api_kepts_spare(rt, c);
  (void)send_ends(rt, c, NULL);
}

cleave_status api_take_late_error(cleave_runtime *rt, cleave_error *error) {
  cleave_status status = rt->late.status;
  if (status != CLEAVE_OK && error) *error = rt->late;
  rt->late.status = CLEAVE_OK;
  return status;
}

/* Not before it is known that nothing is given up which somebody keeps. */
static cleave_status end_later(cleave_runtime *rt, api_context *c, cleave_error *error) {
  linger(rt, c);
  c->owes_end = true;
  return api_fail(error, CLV_DEADLINE,
                  "the owners of %u kept values of context %s have not answered in time: it ends "
                  "when they have",
                  c->keeping, c->name);
}

/* Whatever goes on in it does so no longer. Nodes that are to finish something do not hear of
 * it. */
static void give_up(cleave_runtime *rt, api_context *c) {
  cleave_error why;
  bool busy = c->users || c->running || api_futures_wait_in(rt, c);
  api_fail(&why, CLV_CANCELLED, "context %s was closed", c->name);
  if (busy && !c->spares) api_context_fail(rt, c, &why, 0);
  if (busy && !c->failed) {
    c->failed = true;
    c->failure = why;
  }
  api_futures_end(rt, c);
  api_wake(rt);
}

/* Nobody finds it any more. True: its end is said later. */
static bool begin_end(cleave_runtime *rt, api_context *c) {
  bool later = c->keeping && !c->failed;
  c->closing = true;
  c->spares = !c->failed && (later || api_kepts_spare(rt, c));
  give_up(rt, c);
  return later;
}

cleave_status cleave_context_end(cleave_runtime *runtime, cleave_context handle,
                                 cleave_error *error) {
  GIVEN(runtime);
  LOCKED(runtime);
  api_context *c = api_id_table_get(&runtime->contexts, handle.id);
  if (c && !c->closing) api_kepts_wait(runtime, c, api_until(runtime, 0));
  c = api_id_table_get(&runtime->contexts, handle.id);
  if (!c || c->closing) return api_find_context(runtime, handle, &c, error);
  if (c->users || api_futures_wait_in(runtime, c) || runtime->deciding == c)
    return api_fail(error, CLV_PRECONDITION,
                    "something waits in context %s, or a step that may be taken back: close it",
                    c->name);
  c->ending = true;
  runtime->n_ending++;
  bool gone_on = !c->failed;
  if (begin_end(runtime, c)) return end_later(runtime, c, error);
  bool given_up = gone_on && c->failed;
  cleave_status status = send_ends(runtime, c, error);
  if (status == CLEAVE_OK && c->final_step && !given_up) status = api_context_failure(c, error);
  if (status == CLEAVE_OK) status = api_take_late_error(runtime, error);
  if (c->spares)
    hide_values(c);
  else
    drop_values(runtime, c);
  api_context_ended(runtime, c);
  return status;
}

/* ---- closing --------------------------------------------------------------------------------- */

enum { WAITS_FOR_KEPTS, WAITS_FOR_STEP, WAITS_FOR_USERS, WAITS_FOR_ENDS };

cleave_status api_close_begin(cleave_runtime *rt, cleave_context handle, api_future *f,
                              cleave_error *error) {
  api_context *c = api_id_table_get(&rt->contexts, handle.id);
  if (!c || c->closing) return api_find_context(rt, handle, &c, error);
  f->context_id = handle.id;
  snprintf(f->of, sizeof f->of, "context %.64s", c->name);
  return CLEAVE_OK;
}

/* Whose closing this is; NULL when somebody else has closed it meanwhile, which ends this. */
static api_context *still_open(cleave_runtime *rt, api_future *f) {
  cleave_error why;
  api_context *c = api_id_table_get(&rt->contexts, f->context_id);
  if (c && (f->stage >= WAITS_FOR_USERS || !c->closing)) return c;
  (void)api_find_context(rt, (cleave_context){f->context_id}, &c, &why);
  api_future_finish(rt, f, &why);
  return NULL;
}

/* A step on its way is waited for as long as that may take. */
static bool is_held_up(const cleave_runtime *rt, const api_context *c, api_future *f) {
  if (f->stage == WAITS_FOR_KEPTS && c->keeping && !c->failed && !api_is_late(rt, f->until_ns))
    return true;
  f->stage = WAITS_FOR_STEP;
  f->due_ns = UINT64_MAX;
  return rt->deciding == c;
}

/* The nodes are told. */
static void send_end_of(cleave_runtime *rt, api_context *c, api_future *f) {
  cleave_error why = {.status = CLEAVE_OK};
  f->stage = WAITS_FOR_ENDS;
  f->due_ns = f->until_ns;
  if (f->later) c->spares = api_kepts_spare(rt, c);
  (void)send_ends(rt, c, &why);
  if (why.status == CLEAVE_OK && c->undone) (void)api_context_failure(c, &why);
  if (!f->done) f->why = why;
}

static void take_ends(cleave_runtime *rt, api_context *c, api_future *f) {
  cleave_error why = f->why;
  api_node_set silent = c->nodes & ~c->ended & ~api_lost_nodes(rt);
  bool all = !(silent & ~c->sparing);
  if (!all && !api_is_late(rt, f->until_ns)) return;
  if (!all) api_fail(&why, CLV_DEADLINE, "not every node has freed context %s in time", c->name);
  if (why.status == CLEAVE_OK && silent)
    linger(rt, c);
  else
    api_context_forget(rt, c);
  api_future_finish(rt, f, &why);
}

void api_close_advance(cleave_runtime *rt, api_future *f) {
  api_context *c = still_open(rt, f);
  cleave_error why;
  if (!c || (f->stage < WAITS_FOR_USERS && is_held_up(rt, c, f))) return;
  if (f->stage < WAITS_FOR_USERS) {
    f->stage = WAITS_FOR_USERS;
    f->bound = true;
    f->later = begin_end(rt, c);
  }
  if (f->stage == WAITS_FOR_USERS && c->users) return;
  if (f->stage == WAITS_FOR_USERS && f->later && c->keeping) {
    (void)end_later(rt, c, &why);
    api_future_finish(rt, f, &why);
    return;
  }
  if (f->stage == WAITS_FOR_USERS) send_end_of(rt, c, f);
  take_ends(rt, c, f);
}
