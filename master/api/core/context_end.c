/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends contexts. END_CONTEXT is sent to each node that took part, and is sent again until the node
 * has answered. No function of this file sleeps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/module_int.h"

/* Delay before END_CONTEXT is sent again. It doubles after each resend, up to MAX_BACKOFF_FACTOR
 * times the first delay. */
enum { FIRST_RESEND_DELAY_NS = 250000000, MAX_BACKOFF_FACTOR = 64 };

/* Sends END_CONTEXT again to nodes that have not answered. Only the first END_CONTEXT can carry a
 * final step. A node answers a repeated END_CONTEXT as well, after it has freed what it still
 * holds. */
static void resend_end_contexts(cleave_runtime *rt, api_context *c, uint64_t now_ns) {
  api_node_set silent_nodes = c->nodes_used & ~c->nodes_ended & ~api_lost_nodes(rt);
  clv_packet *p;
  c->end_resend_interval_ns =
      CLV_MIN(2 * c->end_resend_interval_ns, (uint64_t)MAX_BACKOFF_FACTOR * FIRST_RESEND_DELAY_NS);
  c->end_resend_ns = now_ns + c->end_resend_interval_ns;
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if ((silent_nodes & NODE_BIT(i)) &&
        api_packet_new(rt, CLV_END_CONTEXT, c->id, ++rt->next_id, &p, NULL) == CLEAVE_OK)
      (void)api_send(rt, i, p, NULL);
}

static uint64_t resend_due_end_contexts(cleave_runtime *rt) {
  uint64_t now_ns = api_now(rt), due_ns = UINT64_MAX;
  if (!rt->end_resend_ns || rt->end_resend_ns > now_ns)
    return rt->end_resend_ns ? rt->end_resend_ns : due_ns;
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;) {
    if (!c->end_resend_ns || !(c->nodes_used & ~c->nodes_ended & ~api_lost_nodes(rt))) continue;
    if (c->end_resend_ns <= now_ns) resend_end_contexts(rt, c, now_ns);
    due_ns = CLV_MIN(due_ns, c->end_resend_ns);
  }
  rt->end_resend_ns = due_ns == UINT64_MAX ? 0 : due_ns;
  return due_ns;
}

const api_job api_context_end_job = {.before_sleep = resend_due_end_contexts};

/* Sends END_CONTEXT to all nodes of the context. A final step (one that cannot be reverted) that is
 * not sent yet is part of the same message if no function waits for the end, or if the context
 * records events. */
static cleave_status send_end_contexts(cleave_runtime *rt, api_context *c, cleave_error *error) {
  cleave_status status = CLEAVE_OK;
  api_node_set notified_nodes = 0;
  c->end_resend_interval_ns = FIRST_RESEND_DELAY_NS;
  c->end_resend_ns = api_now(rt) + FIRST_RESEND_DELAY_NS;
  if (!rt->end_resend_ns) rt->end_resend_ns = c->end_resend_ns;
  if (rt->unsent_step_context == c && (c->state == API_CONTEXT_ENDING || c->records_events))
    api_flush_step_and_ends(rt, c, &notified_nodes);
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    if (!(c->nodes_used & ~notified_nodes & NODE_BIT(i))) continue;
    TRY(clv_packet_new_end_context(rt->pool, c->id, ++rt->next_id, &p, &err));
    cleave_status send_status = api_send(rt, i, p, status == CLEAVE_OK ? error : NULL);
    if (send_status != CLEAVE_OK)
      c->nodes_ended |= NODE_BIT(i); /* the node is lost, so it holds nothing of the context */
    if (status == CLEAVE_OK) status = send_status;
  }
  return status;
}

/* Frees the tensors that a context's values have in this process. The records of the values stay,
 * because kept values (cleave_keep) depend on them. */
static void free_local_tensors(api_context *c) {
  for (api_value *v = c->newest_value; v; v = v->older_value) {
    v->gradient = clv_tensor_unref(v->gradient);
    if (!v->is_awaited_by_master_node) v->local_tensor = clv_tensor_unref(v->local_tensor);
  }
}

static void retain_context_for_kept_values(cleave_runtime *rt, api_context *c,
                                           api_context_event event) {
  free_local_tensors(c);
  rt->n_ending_contexts -= c->state == API_CONTEXT_ENDING;
  (void)api_context_on_event(&c->state, event);
}

void api_context_free_if_ended(cleave_runtime *rt, api_context *c) {
  api_node_set silent_nodes = c->nodes_used & ~c->nodes_ended & ~api_lost_nodes(rt);
  if (c->state == API_CONTEXT_ENDING && silent_nodes && !(silent_nodes & ~c->nodes_keeping_calls))
    retain_context_for_kept_values(rt, c, API_CONTEXT_ONLY_KEPT_LEFT);
  bool is_ending = c->state == API_CONTEXT_ENDING || c->state == API_CONTEXT_ENDING_KEPT;
  if (is_ending && !c->n_waiters && !silent_nodes) api_context_free(rt, c);
}

/* Sends each node the ids of the calls that it must finish for kept values (cleave_keep). Returns
 * false if there are no such calls. */
static bool send_needed_calls(cleave_runtime *rt, api_context *c) {
  return rt->kept_ops && rt->kept_ops->send_needed_calls(rt, c);
}

void api_context_on_owners_answered(cleave_runtime *rt, api_context *c) {
  if (api_context_on_event(&c->state, API_CONTEXT_OWNERS_ANSWERED) != API_ACTION_SETTLE) return;
  c->keeps_needed_calls = send_needed_calls(rt, c);
  (void)send_end_contexts(rt, c, NULL);
}

/* Defers the end of the context until the owners of kept values have answered, because the end
 * would cancel calls whose values the owners are about to keep. Returns CLEAVE_DEADLINE. */
static cleave_status defer_end_until_owners_answer(cleave_runtime *rt, api_context *c,
                                                   cleave_error *error) {
  retain_context_for_kept_values(rt, c, API_CONTEXT_OWNERS_LATE);
  return api_fail(error, CLV_DEADLINE,
                  "the owners of %u kept values of context %s have not answered in time: it ends "
                  "when they have",
                  c->n_unconfirmed_kept_values, c->name);
}

/* Cancels the work in progress of the context. If calls must be finished for kept values
 * (cleave_keep), sends no ABORT. */
static void cancel_context_work(cleave_runtime *rt, api_context *c) {
  cleave_error why;
  bool is_busy = c->n_waiters || c->is_backward_running || api_has_waiter_in_context(rt, c);
  api_fail(&why, CLV_CANCELLED, "context %s was closed", c->name);
  if (is_busy && !c->keeps_needed_calls) api_context_fail(rt, c, &why, 0);
  if (is_busy && !c->has_failed) {
    c->has_failed = true;
    c->failure = why;
  }
  api_futures_end_in_context(rt, c);
  api_wake(rt);
}

/* Begins the end of a context and cancels its work. Returns true if the program has kept values
 * (cleave_keep) whose owners have not answered: END_CONTEXT is sent after their answers. */
static bool begin_context_end(cleave_runtime *rt, api_context *c) {
  bool must_await_owners = c->n_unconfirmed_kept_values && !c->has_failed;
  c->keeps_needed_calls = !c->has_failed && (must_await_owners || send_needed_calls(rt, c));
  cancel_context_work(rt, c);
  return must_await_owners;
}

cleave_status cleave_context_end(cleave_runtime *runtime, cleave_context handle,
                                 cleave_error *error) {
  NOT_NULL(runtime);
  LOCKED(runtime);
  api_context *c = api_id_table_get(&runtime->contexts, handle.id);
  if (c && c->n_unconfirmed_kept_values && c->state == API_CONTEXT_OPEN)
    runtime->kept_ops->await_owners(runtime, c, api_deadline_ns(runtime, 0));
  c = api_id_table_get(&runtime->contexts, handle.id);
  if (!c || c->state != API_CONTEXT_OPEN) return api_find_context(runtime, handle, &c, error);
  if (c->n_waiters || api_has_waiter_in_context(runtime, c) || runtime->undecided_context == c)
    return api_fail(error, CLV_PRECONDITION,
                    "something waits in context %s, or a step that may be taken back: close it",
                    c->name);
  (void)api_context_on_event(&c->state, API_CONTEXT_ENDS);
  runtime->n_ending_contexts++;
  bool had_not_failed = !c->has_failed;
  if (begin_context_end(runtime, c)) return defer_end_until_owners_answer(runtime, c, error);
  bool has_just_failed = had_not_failed && c->has_failed;
  cleave_status status = send_end_contexts(runtime, c, error);
  if (status == CLEAVE_OK && c->has_final_step && !has_just_failed)
    status = api_context_failure(c, error);
  if (status == CLEAVE_OK) status = api_take_deferred_error(runtime, error);
  if (c->keeps_needed_calls)
    free_local_tensors(c);
  else
    api_drop_values(runtime, c);
  api_context_free_if_ended(runtime, c);
  return status;
}

/* ---- closing a context ----------------------------------------------------------------------- */

/* States of a close operation (api_future.operation_state): it waits for the owners of kept values
 * (cleave_keep), for a pending step, for other functions that wait in the context, for the nodes'
 * answers to END_CONTEXT. */
enum { WAITS_FOR_REF_OWNERS, WAITS_FOR_STEP, WAITS_FOR_OTHER_WAITERS, WAITS_FOR_END_ANSWERS };

cleave_status api_close_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                              cleave_error *error) {
  api_context *c = api_id_table_get(&rt->contexts, a->context.id);
  if (!c || c->state != API_CONTEXT_OPEN) return api_find_context(rt, a->context, &c, error);
  f->context_id = a->context.id;
  snprintf(f->subject_name, sizeof f->subject_name, "context %.64s", c->name);
  return CLEAVE_OK;
}

/* Returns the context that f closes. NULL: another function has closed it meanwhile, so f has been
 * ended with an error. */
static api_context *find_closing_context(cleave_runtime *rt, api_future *f) {
  cleave_error why;
  api_context *c = api_id_table_get(&rt->contexts, f->context_id);
  if (c && (f->operation_state >= WAITS_FOR_OTHER_WAITERS || c->state == API_CONTEXT_OPEN))
    return c;
  (void)api_find_context(rt, (cleave_context){f->context_id}, &c, &why);
  api_future_finish(rt, f, &why);
  return NULL;
}

/* True if f still waits for the owners of kept values (cleave_keep), or for a pending step, which
 * has a deadline of its own. */
static bool must_wait_to_close(const cleave_runtime *rt, const api_context *c, api_future *f) {
  if (f->operation_state == WAITS_FOR_REF_OWNERS && c->n_unconfirmed_kept_values &&
      !c->has_failed && !api_is_deadline_over(rt, f->until_ns))
    return true;
  f->operation_state = WAITS_FOR_STEP;
  f->next_check_ns = UINT64_MAX;
  return rt->undecided_context == c;
}

/* Sends END_CONTEXT of the context that f closes to the nodes of the context. */
static void send_end_for_close(cleave_runtime *rt, api_context *c, api_future *f) {
  cleave_error why = {.status = CLEAVE_OK};
  f->operation_state = WAITS_FOR_END_ANSWERS;
  f->next_check_ns = f->until_ns;
  if (f->end_awaits_owners) c->keeps_needed_calls = send_needed_calls(rt, c);
  (void)send_end_contexts(rt, c, &why);
  if (why.status == CLEAVE_OK && c->has_reverted_step) (void)api_context_failure(c, &why);
  if (!f->is_done) f->outcome = why;
}

static void await_end_answers(cleave_runtime *rt, api_context *c, api_future *f) {
  cleave_error why = f->outcome;
  api_node_set silent_nodes = c->nodes_used & ~c->nodes_ended & ~api_lost_nodes(rt);
  bool have_all_answered = !(silent_nodes & ~c->nodes_keeping_calls);
  if (!have_all_answered && !api_is_deadline_over(rt, f->until_ns)) return;
  if (!have_all_answered)
    api_fail(&why, CLV_DEADLINE, "not every node has freed context %s in time", c->name);
  if (why.status == CLEAVE_OK && silent_nodes)
    retain_context_for_kept_values(rt, c, API_CONTEXT_ONLY_KEPT_LEFT);
  else
    api_context_free(rt, c);
  api_future_finish(rt, f, &why);
}

void api_close_advance(cleave_runtime *rt, api_future *f) {
  api_context *c = find_closing_context(rt, f);
  cleave_error why;
  if (!c || (f->operation_state < WAITS_FOR_OTHER_WAITERS && must_wait_to_close(rt, c, f))) return;
  if (f->operation_state < WAITS_FOR_OTHER_WAITERS) {
    f->operation_state = WAITS_FOR_OTHER_WAITERS;
    f->cannot_cancel = true;
    (void)api_context_on_event(&c->state, API_CONTEXT_CLOSES);
    f->end_awaits_owners = begin_context_end(rt, c);
  }
  if (f->operation_state == WAITS_FOR_OTHER_WAITERS && c->n_waiters) return;
  if (f->operation_state == WAITS_FOR_OTHER_WAITERS && f->end_awaits_owners &&
      c->n_unconfirmed_kept_values) {
    (void)defer_end_until_owners_answer(rt, c, &why);
    api_future_finish(rt, f, &why);
    return;
  }
  if (f->operation_state == WAITS_FOR_OTHER_WAITERS) send_end_for_close(rt, c, f);
  await_end_answers(rt, c, f);
}
