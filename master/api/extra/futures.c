/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions on futures that only programs use: waiting for the first of several futures,
 * cancelling, callbacks, and some results.
 */
#include <string.h>

#include "master/api/extra/extra_int.h"

static void release_awaited_futures(cleave_runtime *rt, const cleave_future *futures, size_t n) {
  for (size_t i = 0; i < n; i++) {
    api_future *f = api_id_table_get(&rt->futures, futures[i].id);
    if (!f) continue;
    api_future_set_watched(f, false);
    api_future_release_use(rt, f);
  }
}

static cleave_status set_all_watched(cleave_runtime *rt, const cleave_future *futures, size_t n,
                                     cleave_error *error) {
  bool has_future = false;
  for (size_t i = 0; i < n; i++) {
    api_future *f;
    if (!futures[i].id) continue;
    cleave_status status = api_future_find(rt, futures[i], &f, error);
    if (status != CLEAVE_OK) {
      release_awaited_futures(rt, futures, i);
      return status;
    }
    api_future_set_watched(f, true);
    has_future = true;
  }
  return has_future ? CLEAVE_OK : api_fail(error, CLV_INVALID, "no future to wait for");
}

cleave_status cleave_wait_any(cleave_runtime *runtime, const cleave_future *futures, size_t n,
                              uint64_t deadline_ms, size_t *ret_index, cleave_error *error) {
  size_t index = 0;
  char silence_text[200];
  NOT_NULL(runtime, futures, ret_index);
  LOCKED(runtime);
  TRY_API(set_all_watched(runtime, futures, n, error));
  bool is_in_time =
      api_futures_await_any(runtime, futures, n, api_deadline_ns(runtime, deadline_ms), &index);
  release_awaited_futures(runtime, futures, n);
  if (!is_in_time)
    return api_fail_late(runtime, error, "none of %zu futures was done in time%s", n,
                         api_describe_silence(runtime, silence_text, sizeof silence_text));
  *ret_index = index;
  return CLEAVE_OK;
}

cleave_status cleave_future_cancel(cleave_runtime *runtime, cleave_future future,
                                   cleave_error *error) {
  api_future *f;
  NOT_NULL(runtime);
  LOCKED(runtime);
  TRY_API(api_future_find(runtime, future, &f, error));
  api_future_abandon(runtime, f);
  api_future_release_use(runtime, f);
  api_wake(runtime);
  return CLEAVE_OK;
}

cleave_status cleave_future_wait_for(cleave_runtime *runtime, cleave_future future,
                                     uint64_t wait_ms, bool *ret_ready, cleave_error *error) {
  api_future *f;
  cleave_error why = {.status = CLEAVE_OK};
  NOT_NULL(runtime, ret_ready);
  if (!wait_ms) TRY_API(cleave_future_poll(runtime, future, ret_ready, error));
  LOCKED(runtime);
  TRY_API(api_future_find(runtime, future, &f, error));
  uint64_t until_ns = wait_ms ? api_deadline_ns(runtime, wait_ms) : api_now(runtime);
  cleave_status status = api_future_await(runtime, f, until_ns, &why);
  bool is_ready = f->is_done, is_late = status == CLEAVE_DEADLINE && !is_ready;
  api_future_release_use(runtime, f);
  if (status == CLEAVE_OK || is_late) {
    *ret_ready = is_ready;
    return CLEAVE_OK;
  }
  if (error) *error = why;
  return status;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static bool take_callback(cleave_runtime *rt, api_callback *ret, cleave_future *ret_future,
                          cleave_error *ret_failure) {
  api_futures *futures = rt->futures_state;
  api_future *f = futures->first_ready;
  if (!f) return false;
  api_callback *c = f->callbacks;
  *ret = *c;
  ret_future->id = f->id;
  *ret_failure = f->outcome;
  f->callbacks = c->next;
  c->next = futures->callback_free_list;
  futures->callback_free_list = c;
  if (f->callbacks) return true;
  f->callbacks_tail = &f->callbacks;
  futures->first_ready = f->next_ready;
  if (!futures->first_ready) futures->ready_tail = &futures->first_ready;
  api_future_drop_if_unused(rt, f);
  return true;
}

/* Calls the callbacks that are due, one at a time and without the runtime's lock. Returns true if a
 * callback was called. */
static bool run_callbacks(cleave_runtime *rt) {
  api_futures *futures = rt->futures_state;
  api_callback c;
  cleave_future future;
  cleave_error why;
  bool has_called_callback = false;
  if (futures->is_callback_running) return false;
  futures->is_callback_running = true;
  futures->callback_thread = pthread_self();
  while (take_callback(rt, &c, &future, &why)) {
    has_called_callback = true;
    api_unlock(rt);
    c.function(c.user, future, &why);
    api_lock(rt);
  }
  futures->is_callback_running = false;
  return has_called_callback;
}

static cleave_status add_callback(cleave_runtime *rt, api_future *f, const api_callback *callback,
                                  cleave_error *error) {
  api_futures *futures = rt->futures_state;
  api_callback *c = futures->callback_free_list;
  if (c)
    futures->callback_free_list = c->next;
  else
    TRY(clv_alloc(1, sizeof *c, &c, &err));
  *c = *callback;
  c->next = NULL;
  bool is_first = !f->callbacks;
  *f->callbacks_tail = c;
  f->callbacks_tail = &c->next;
  if (!f->is_finished) api_future_set_watched(f, true);
  if (!f->is_done || !is_first) return CLEAVE_OK;
  f->is_done = false; /* api_future_settle sets it again and queues the future */
  cleave_error why = f->outcome;
  api_future_settle(rt, f, &why);
  return CLEAVE_OK;
}

cleave_status cleave_future_then(cleave_runtime *runtime, cleave_future future,
                                 void (*function)(void *user, cleave_future future,
                                                  const cleave_error *error),
                                 void *user, cleave_error *error) {
  api_future *f;
  NOT_NULL(runtime);
  if (!function) return api_fail(error, CLV_INVALID, "the argument function is NULL");
  LOCKED(runtime);
  runtime->futures_state->run_callbacks = run_callbacks;
  TRY_API(api_futures_start_thread(runtime, error));
  TRY_API(api_future_find(runtime, future, &f, error));
  const api_callback call = {.function = function, .user = user};
  cleave_status status = add_callback(runtime, f, &call, error);
  api_future_release_use(runtime, f);
  api_wake(runtime);
  return status;
}

/* ---- results of futures ---------------------------------------------------------------------- */

cleave_status cleave_future_tensor(cleave_runtime *runtime, cleave_future future,
                                   cleave_tensor *ret_tensor, cleave_error *error) {
  NOT_NULL(runtime, ret_tensor);
  return api_future_take_result(runtime, future, "tensor", api_copy_tensor_result, ret_tensor,
                                error);
}

cleave_status cleave_future_step_result(cleave_runtime *runtime, cleave_future future,
                                        cleave_step_result *ret, cleave_error *error) {
  NOT_NULL(runtime, ret);
  return api_future_take_result(runtime, future, "step", api_copy_step_result, ret, error);
}
API_DEPRECATED_ALIAS(cleave_future_stepped, cleave_future_step_result);

cleave_status cleave_future_state(cleave_runtime *runtime, cleave_future future,
                                  cleave_state *ret_state, cleave_error *error) {
  NOT_NULL(runtime, ret_state);
  return api_future_take_result(runtime, future, "state", api_copy_state_result, ret_state, error);
}

cleave_status cleave_future_gradients(cleave_runtime *runtime, cleave_future future,
                                      cleave_gradients *ret_gradients, cleave_error *error) {
  NOT_NULL(runtime, ret_gradients);
  return api_future_take_result(runtime, future, "gradients", api_copy_gradients_result,
                                ret_gradients, error);
}
