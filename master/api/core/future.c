/* SPDX-License-Identifier: Apache-2.0
 *
 * The records of operations in progress, called futures (future_int.h). No function of this file
 * waits, wakes a thread or sends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/future_int.h"

/* ---- making and finding records of operations ------------------------------------------------ */

cleave_status api_futures_new(cleave_runtime *rt, cleave_error *error) {
  TRY(clv_alloc(1, sizeof *rt->futures_state, &rt->futures_state, &err));
  rt->futures_state->unfinished_tail = &rt->futures_state->first_unfinished;
  rt->futures_state->ready_tail = &rt->futures_state->first_ready;
  return CLEAVE_OK;
}

static void free_future_contents(cleave_runtime *rt, api_future *f) {
  f->tensor = clv_tensor_unref(f->tensor);
  clv_tensor_unref(f->request.item_tensor);
  for (uint32_t i = 0; f->items && i < f->n_items; i++) clv_tensor_unref(f->items[i].tensor);
  free(f->items);
  if (f->op->free) f->op->free(rt, f);
  for (size_t i = 0; f->backward_roots.gradients && i < f->backward_roots.n; i++)
    clv_tensor_unref(f->backward_roots.gradients[i]);
  free(f->backward_roots.gradients);
  free(f->backward_roots.roots);
  free(f->backward_roots.root_weights);
}

static void free_callbacks(api_callback *c) {
  for (api_callback *next; c; c = next) {
    next = c->next;
    free(c);
  }
}

static void free_futures(api_future *f) {
  for (api_future *next; f; f = next) {
    next = f->next;
    free(f);
  }
}

void api_futures_free(cleave_runtime *rt) {
  size_t at = 0;
  if (!rt || !rt->futures_state) return;
  for (api_future *f; (f = api_id_table_next(&rt->futures, &at)) != NULL;) {
    free_future_contents(rt, f);
    free_callbacks(f->callbacks);
    free(f);
  }
  free_futures(rt->futures_state->future_free_list);
  free_callbacks(rt->futures_state->callback_free_list);
  free(rt->futures_state);
  rt->futures_state = NULL;
  api_id_table_free(&rt->futures);
}

cleave_status api_future_new(cleave_runtime *rt, const api_operation *op, uint64_t until_ns,
                             uint64_t deadline_ms, api_future **ret, cleave_error *error) {
  api_futures *futures = rt->futures_state;
  api_future *f = futures->future_free_list;
  if (futures->is_closing && !op->may_begin_while_closing)
    return api_fail(error, CLV_PRECONDITION, "the runtime is being closed: nothing new begins");
  if (f)
    futures->future_free_list = f->next;
  else
    TRY(clv_alloc(1, sizeof *f, &f, &err));
  *f = (api_future){.op = op,
                    .n_users = 1,
                    .is_released = true,
                    .until_ns = until_ns,
                    .next_check_ns = until_ns,
                    .deadline_ms = deadline_ms};
  f->callbacks_tail = &f->callbacks;
  *ret = f;
  return CLEAVE_OK;
}

void api_future_enqueue(cleave_runtime *rt, api_future *f) {
  f->next = NULL;
  f->prev_link = rt->futures_state->unfinished_tail;
  *rt->futures_state->unfinished_tail = f;
  rt->futures_state->unfinished_tail = &f->next;
}

cleave_status api_future_assign_handle(cleave_runtime *rt, api_future *f, cleave_future *ret,
                                       cleave_error *error) {
  uint64_t id = ++rt->next_id;
  TRY(api_id_table_put(&rt->futures, id, f, &err));
  f->id = ret->id = id;
  f->is_released = false;
  return CLEAVE_OK;
}

cleave_status api_future_find(cleave_runtime *rt, cleave_future handle, api_future **ret,
                              cleave_error *error) {
  api_future *f = api_id_table_get(&rt->futures, handle.id);
  if (f && !f->is_released) {
    f->n_users++;
    *ret = f;
    return CLEAVE_OK;
  }
  if (handle.id == 0 || handle.id > rt->next_id)
    return api_fail(error, CLV_INVALID, "%llu is no future of this runtime",
                    (unsigned long long)handle.id);
  return api_fail(error, CLV_NOT_FOUND, "future %llu is gone: it was waited for, or released",
                  (unsigned long long)handle.id);
}

void api_future_drop_if_unused(cleave_runtime *rt, api_future *f) {
  if (!f->is_finished || !f->is_released || f->n_users || f->callbacks) return;
  if (f->id) api_id_table_remove(&rt->futures, f->id);
  free_future_contents(rt, f);
  f->next = rt->futures_state->future_free_list;
  rt->futures_state->future_free_list = f;
}

void api_future_release_use(cleave_runtime *rt, api_future *f) {
  f->n_users--;
  api_future_drop_if_unused(rt, f);
}

void api_future_set_watched(api_future *f, bool is_watched) {
  f->n_watchers += is_watched ? 1 : (uint32_t)-1;
  if (f->value) f->value->n_waiters += is_watched ? 1 : (uint32_t)-1;
}

cleave_status api_copy_tensor_result(const api_future *f, void *ret, cleave_error *error) {
  if (f->runtime) TRY_API(api_note_weight_read(f, error));
  return api_copy_tensor_out(f->tensor, ret, error);
}

/* ---- ending the record of an operation ------------------------------------------------------- */

void api_future_settle(cleave_runtime *rt, api_future *f, const cleave_error *why) {
  if (f->is_done) return;
  f->is_done = true;
  f->outcome.status = CLEAVE_OK;
  if (why) f->outcome = *why;
  if (!f->callbacks) return;
  f->next_ready = NULL;
  *rt->futures_state->ready_tail = f;
  rt->futures_state->ready_tail = &f->next_ready;
}

static void remove_from_unfinished_list(cleave_runtime *rt, api_future *f) {
  if (!f->prev_link) return;
  *f->prev_link = f->next;
  if (f->next)
    f->next->prev_link = f->prev_link;
  else
    rt->futures_state->unfinished_tail = f->prev_link;
}

static void remove_request(cleave_runtime *rt, const api_state_request *r) {
  if (!r->id) return;
  api_state_request **at = &rt->state_requests;
  while (*at && *at != r) at = &(*at)->next;
  if (*at) *at = r->next;
}

static void detach_from_context(cleave_runtime *rt, api_future *f) {
  if (f->owns_pass) f->context->is_backward_running = false;
  if (f->owns_pass && f->optimizer)
    /* the step has ended before these nodes have voted (sent their sums of squared gradients), so
     * they must vote again */
    f->context->nodes_with_written_gradients |= f->context->nodes_in_pass;
  remove_request(rt, &f->request);
  if (f->value) f->value->n_waiters -= f->n_watchers;
  f->value = NULL;
  f->context = NULL;
}

void api_future_finish(cleave_runtime *rt, api_future *f, const cleave_error *why) {
  detach_from_context(rt, f);
  remove_from_unfinished_list(rt, f);
  f->is_finished = true;
  api_future_settle(rt, f, why);
  api_future_drop_if_unused(rt, f);
}

bool api_future_has_earlier_operation(const cleave_runtime *rt, const api_future *f) {
  for (const api_future *o = rt->futures_state->first_unfinished; o && o != f; o = o->next)
    if (o->op->runs_in_order && o->context == f->context) return true;
  return false;
}

/* ---- ending the records of all operations in a context --------------------------------------- */

bool api_has_waiter_in_context(const cleave_runtime *rt, const api_context *c) {
  bool has_waiter = false;
  for (const api_future *f = rt->futures_state->first_unfinished; f && !has_waiter; f = f->next)
    has_waiter = f->context == c && f->n_users;
  return has_waiter;
}

static api_future *find_first_in_context(const cleave_runtime *rt, const api_context *c) {
  api_future *f = rt->futures_state->first_unfinished;
  while (f && f->context != c) f = f->next;
  return f;
}

void api_futures_end_in_context(cleave_runtime *rt, api_context *c) {
  cleave_error why;
  api_fail(&why, CLV_CANCELLED, "context %s was closed", c->name);
  for (api_future *f; (f = find_first_in_context(rt, c)) != NULL;)
    api_future_finish(rt, f, c->has_failed ? &c->failure : &why);
}

void api_futures_report_leaks(cleave_runtime *rt, cleave_leaks *l) {
  size_t at = 0;
  for (const api_future *f; (f = api_id_table_next(&rt->futures, &at)) != NULL;) {
    if (f->is_released) continue;
    l->futures++;
    api_add_leak(l, "future %llu, %s of %s\n", (unsigned long long)f->id,
                 strchr(f->op->name, ' ') + 1, f->subject_name);
  }
}
