/* SPDX-License-Identifier: Apache-2.0
 *
 * Who goes on with futures, and who waits for them. Whoever waits for one goes on with all; beside
 * that, the thread of futures does, which begins with the first one that the program does not wait
 * for at once, and calls its callbacks. A runtime with single_thread has no such thread.
 */
#include "master/api/future_int.h"

/* ---- going on -------------------------------------------------------------------------------- */

static const struct {
  void (*advance)(cleave_runtime *rt, api_future *f);
  void (*late)(cleave_runtime *rt, const api_future *f, cleave_error *ret); /* NULL: by itself */
  void (*leave)(cleave_runtime *rt, api_future *f); /* before it is over early; may be NULL */
  const char *name;
} kinds[API_FUTURE_KINDS] = {
    [API_FUTURE_VALUE] = {api_fetch_advance, api_fetch_late, NULL, "the value"},
    [API_FUTURE_KEPT] = {api_kept_fetch_advance, api_kept_fetch_late, api_kept_fetch_leave,
                         "the kept value"},
    [API_FUTURE_BACKWARD] = {api_backward_advance, api_backward_late, NULL, "a backward"},
    [API_FUTURE_STEP] = {api_step_advance, api_step_late, NULL, "a step"},
    [API_FUTURE_STATE] = {api_state_advance, api_state_late, api_state_forget, "the state"},
    [API_FUTURE_FILE] = {api_file_advance, api_file_late, api_state_forget, "a file of state"},
    [API_FUTURE_CLOSE] = {api_close_advance, NULL, NULL, "the closing"},
    [API_FUTURE_GRADIENT] = {api_gradient_advance, api_gradients_late, NULL, "the gradient"},
    [API_FUTURE_GRADIENTS] = {api_gradients_advance, api_gradients_late, NULL, "the gradients"},
    [API_FUTURE_WRITE] = {api_gradient_write_advance, api_gradients_late, NULL, "a gradient"},
    [API_FUTURE_PUT] = {api_state_write_advance, api_state_write_late, api_state_forget,
                        "the state"},
    [API_FUTURE_ERRAND] = {api_errand_advance, NULL, NULL, "the way"},
};

static void end_early(cleave_runtime *rt, api_future *f, const cleave_error *why) {
  if (kinds[f->kind].leave) kinds[f->kind].leave(rt, f);
  api_future_finish(rt, f, why);
}

/* True: it is over. */
static bool go_on(cleave_runtime *rt, api_future *f) {
  cleave_error why;
  f->waiting++; /* it stays */
  kinds[f->kind].advance(rt, f);
  if (!f->over && kinds[f->kind].late && api_is_late(rt, f->due_ns)) {
    kinds[f->kind].late(rt, f, &why);
    end_early(rt, f, &why);
  }
  bool over = f->over;
  api_future_leave(rt, f);
  return over;
}

/* What is over may be what another one waits for, or have ended it: then from the first again. */
static bool pass_over(cleave_runtime *rt, uint64_t *ret_due) {
  *ret_due = api_decision_advance(rt);
  for (api_future *f = rt->open->first, *next; f; f = next) {
    next = f->next;
    if (go_on(rt, f)) return true;
    *ret_due = CLV_MIN(*ret_due, f->due_ns);
  }
  return false;
}

uint64_t api_futures_advance(cleave_runtime *rt) {
  uint64_t due;
  bool any = false;
  while (pass_over(rt, &due)) any = true;
  if (any) api_wake(rt);
  return due;
}

/* ---- callbacks ------------------------------------------------------------------------------- */

/* One at a time, with nothing held. True: some were due. */
static bool call_back(cleave_runtime *rt) {
  api_futures *all = rt->open;
  api_callback c;
  cleave_future future;
  cleave_error why;
  bool any = false;
  if (all->calling) return false;
  all->calling = true;
  all->caller = pthread_self();
  while (api_future_take_callback(rt, &c, &future, &why)) {
    any = true;
    api_unlock(rt);
    c.function(c.user, future, &why);
    api_lock(rt);
  }
  all->calling = false;
  return any;
}

static void *attend(void *user) {
  cleave_runtime *rt = user;
  LOCKED(rt);
  while (rt->open->running) {
    uint64_t due = api_futures_advance(rt);
    if (!call_back(rt) && rt->open->running) (void)api_sleep(rt, due);
  }
  (void)call_back(rt);
  return NULL;
}

cleave_status api_futures_attend(cleave_runtime *rt, cleave_error *error) {
  api_futures *all = rt->open;
  if (rt->single_thread || all->running || all->closing) return CLEAVE_OK;
  all->running = true;
  if (pthread_create(&all->thread, NULL, attend, rt) == 0) return CLEAVE_OK;
  all->running = false;
  return api_fail(error, CLV_EXHAUSTED, "no thread for the futures of the program");
}

void api_futures_stop(cleave_runtime *rt) {
  if (!rt) return;
  api_lock(rt);
  api_errands_wait(rt);
  bool running = rt->open->running;
  cleave_error why;
  api_fail(&why, CLV_CANCELLED, "the runtime was closed");
  while (rt->open->first) end_early(rt, rt->open->first, &why);
  rt->open->running = false;
  api_wake(rt);
  if (!running) (void)call_back(rt);
  api_unlock(rt);
  if (running) pthread_join(rt->open->thread, NULL);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* A record, or the first of some handles. */
typedef struct awaited {
  const api_future *one;
  const cleave_future *futures; /* [n] id 0: none */
  size_t n;
} awaited;

static bool is_any_done(const cleave_runtime *rt, const awaited *a, size_t *ret_index) {
  if (a->one) return a->one->done;
  for (size_t i = 0; i < a->n; i++) {
    const api_future *f = api_id_table_get(&rt->futures, a->futures[i].id);
    *ret_index = i;
    if (f && f->done) return true;
  }
  return false;
}

/* False: not in time. */
static bool await(cleave_runtime *rt, const awaited *a, uint64_t until_ns, size_t *ret_index) {
  for (;;) {
    uint64_t due = api_futures_advance(rt);
    bool called = rt->single_thread && call_back(rt);
    if (is_any_done(rt, a, ret_index)) return true;
    if (api_is_late(rt, until_ns)) return false;
    if (!called) (void)api_sleep(rt, CLV_MIN(due, until_ns));
  }
}

static cleave_status result_of(const api_future *f, cleave_error *error) {
  if (f->why.status != CLEAVE_OK && error) *error = f->why;
  return f->why.status;
}

cleave_status api_future_await(cleave_runtime *rt, api_future *f, uint64_t until_ns,
                               cleave_error *error) {
  size_t none;
  const awaited a = {.one = f};
  char heard[200];
  api_future_watch(f, true);
  bool in_time = await(rt, &a, until_ns, &none);
  api_future_watch(f, false);
  if (in_time) return result_of(f, error);
  if (f->kind == API_FUTURE_VALUE) {
    cleave_error late;
    api_fetch_late(rt, f, &late);
    if (error) *error = late;
    return late.status;
  }
  return api_fail(error, CLV_DEADLINE, "future %llu, %s of %s, was not done in time%s",
                  (unsigned long long)f->id, kinds[f->kind].name, f->of,
                  api_silence(rt, heard, sizeof heard));
}

/* What fails at once is refused. */
cleave_status api_future_start(cleave_runtime *rt, api_future *f, cleave_future *ret,
                               cleave_error *error) {
  api_future_list(rt, f);
  (void)api_futures_advance(rt);
  cleave_status status = f->done ? result_of(f, error) : CLEAVE_OK;
  if (status == CLEAVE_OK) status = api_future_name(rt, f, ret, error);
  if (status != CLEAVE_OK && !f->over) end_early(rt, f, NULL);
  api_future_leave(rt, f);
  return status;
}

/* ---- of the program -------------------------------------------------------------------------- */

cleave_status cleave_future_poll(cleave_runtime *runtime, cleave_future future, bool *ret_ready,
                                 cleave_error *error) {
  api_future *f;
  GIVEN(runtime, ret_ready);
  LOCKED(runtime);
  PASS(api_future_find(runtime, future, &f, error));
  if (runtime->single_thread) api_look(runtime);
  (void)api_futures_advance(runtime);
  if (runtime->single_thread) (void)call_back(runtime);
  *ret_ready = f->done;
  api_future_leave(runtime, f);
  return CLEAVE_OK;
}

cleave_status cleave_future_wait(cleave_runtime *runtime, cleave_future future,
                                 uint64_t deadline_ms, cleave_error *error) {
  api_future *f;
  GIVEN(runtime);
  LOCKED(runtime);
  PASS(api_future_find(runtime, future, &f, error));
  cleave_status status = api_future_await(runtime, f, api_until(runtime, deadline_ms), error);
  api_future_leave(runtime, f);
  return status;
}

static void leave_all(cleave_runtime *rt, const cleave_future *futures, size_t n) {
  for (size_t i = 0; i < n; i++) {
    api_future *f = api_id_table_get(&rt->futures, futures[i].id);
    if (!f) continue;
    api_future_watch(f, false);
    api_future_leave(rt, f);
  }
}

static cleave_status find_all(cleave_runtime *rt, const cleave_future *futures, size_t n,
                              cleave_error *error) {
  bool any = false;
  for (size_t i = 0; i < n; i++) {
    api_future *f;
    if (!futures[i].id) continue;
    cleave_status status = api_future_find(rt, futures[i], &f, error);
    if (status != CLEAVE_OK) {
      leave_all(rt, futures, i);
      return status;
    }
    api_future_watch(f, true);
    any = true;
  }
  return any ? CLEAVE_OK : api_fail(error, CLV_INVALID, "no future to wait for");
}

cleave_status cleave_wait_any(cleave_runtime *runtime, const cleave_future *futures, size_t n,
                              uint64_t deadline_ms, size_t *ret_index, cleave_error *error) {
  size_t index = 0;
  char heard[200];
  GIVEN(runtime, futures, ret_index);
  LOCKED(runtime);
  const awaited a = {.futures = futures, .n = n};
  PASS(find_all(runtime, futures, n, error));
  bool in_time = await(runtime, &a, api_until(runtime, deadline_ms), &index);
  leave_all(runtime, futures, n);
  if (!in_time)
    return api_fail(error, CLV_DEADLINE, "none of %zu futures was done in time%s", n,
                    api_silence(runtime, heard, sizeof heard));
  *ret_index = index;
  return CLEAVE_OK;
}

cleave_status cleave_future_then(cleave_runtime *runtime, cleave_future future,
                                 void (*function)(void *user, cleave_future future,
                                                  const cleave_error *error),
                                 void *user, cleave_error *error) {
  api_future *f;
  GIVEN(runtime);
  if (!function) return api_fail(error, CLV_INVALID, "the argument function is NULL");
  LOCKED(runtime);
  PASS(api_futures_attend(runtime, error));
  PASS(api_future_find(runtime, future, &f, error));
  const api_callback call = {.function = function, .user = user};
  cleave_status status = api_future_then(runtime, f, &call, error);
  api_future_leave(runtime, f);
  api_wake(runtime);
  return status;
}

/* What has been sent and moves something goes on, and nobody hears of its end. */
cleave_status cleave_future_cancel(cleave_runtime *runtime, cleave_future future,
                                   cleave_error *error) {
  api_future *f;
  cleave_error why;
  GIVEN(runtime);
  LOCKED(runtime);
  PASS(api_future_find(runtime, future, &f, error));
  api_fail(&why, CLV_CANCELLED, "future %llu, %s of %s, was cancelled",
           (unsigned long long)future.id, kinds[f->kind].name, f->of);
  if (f->bound || f->over)
    api_future_settle(runtime, f, &why);
  else
    end_early(runtime, f, &why);
  api_future_leave(runtime, f);
  api_wake(runtime);
  return CLEAVE_OK;
}

cleave_status cleave_future_release(cleave_runtime *runtime, cleave_future future,
                                    cleave_error *error) {
  api_future *f;
  GIVEN(runtime);
  LOCKED(runtime);
  PASS(api_future_find(runtime, future, &f, error));
  f->released = true;
  api_future_leave(runtime, f);
  return CLEAVE_OK;
}

/* ---- what came ------------------------------------------------------------------------------- */

/* Of a future that is done, went well, and is of the kind. */
static cleave_status find_done(cleave_runtime *rt, cleave_future future, const char *what,
                               bool (*brings)(const api_future *f), api_future **ret,
                               cleave_error *error) {
  api_future *f;
  PASS(api_future_find(rt, future, &f, error));
  cleave_status status = CLEAVE_OK;
  if (!brings(f))
    status = api_fail(error, CLV_INVALID, "future %llu, %s of %s, brings no %s",
                      (unsigned long long)future.id, kinds[f->kind].name, f->of, what);
  else if (!f->done)
    status = api_fail(error, CLV_PRECONDITION, "future %llu, %s of %s, is not done: wait for it",
                      (unsigned long long)future.id, kinds[f->kind].name, f->of);
  else
    status = result_of(f, error);
  if (status == CLEAVE_OK)
    *ret = f;
  else
    api_future_leave(rt, f);
  return status;
}

static bool brings_tensor(const api_future *f) {
  return f->kind == API_FUTURE_VALUE || f->kind == API_FUTURE_KEPT || f->request.wanted;
}
static bool brings_gradients(const api_future *f) { return f->kind == API_FUTURE_GRADIENTS; }
static bool brings_step(const api_future *f) { return f->kind == API_FUTURE_STEP; }
static bool brings_file(const api_future *f) { return f->kind == API_FUTURE_FILE; }
static bool brings_state(const api_future *f) {
  return f->kind == API_FUTURE_STATE && !f->request.wanted;
}

cleave_status cleave_future_tensor(cleave_runtime *runtime, cleave_future future,
                                   cleave_tensor *ret_tensor, cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  GIVEN(runtime, ret_tensor);
  {
    api_future *f;
    LOCKED(runtime);
    PASS(find_done(runtime, future, "tensor", brings_tensor, &f, error));
    t = clv_tensor_ref(f->tensor);
    api_future_leave(runtime, f);
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_future_stepped(cleave_runtime *runtime, cleave_future future,
                                    cleave_stepped *ret, cleave_error *error) {
  api_future *f;
  GIVEN(runtime, ret);
  LOCKED(runtime);
  PASS(find_done(runtime, future, "step", brings_step, &f, error));
  *ret = f->stepped;
  api_future_leave(runtime, f);
  return CLEAVE_OK;
}

cleave_status cleave_future_state_file(cleave_runtime *runtime, cleave_future future,
                                       cleave_state_file *ret_file, cleave_error *error) {
  api_future *f;
  GIVEN(runtime, ret_file);
  PASS(api_file_check_result(ret_file, error));
  LOCKED(runtime);
  PASS(find_done(runtime, future, "file of state", brings_file, &f, error));
  api_file_out(f, ret_file);
  api_future_leave(runtime, f);
  return CLEAVE_OK;
}

/* It is copied without the lock: what is done does not change. */
cleave_status cleave_future_state(cleave_runtime *runtime, cleave_future future,
                                  cleave_state *ret_state, cleave_error *error) {
  api_future *f;
  GIVEN(runtime, ret_state);
  {
    LOCKED(runtime);
    PASS(find_done(runtime, future, "state", brings_state, &f, error));
  }
  cleave_status status = api_state_out(f, ret_state, error);
  LOCKED(runtime);
  api_future_leave(runtime, f);
  return status;
}

cleave_status cleave_future_gradients(cleave_runtime *runtime, cleave_future future,
                                      cleave_gradients *ret_gradients, cleave_error *error) {
  api_future *f;
  GIVEN(runtime, ret_gradients);
  {
    LOCKED(runtime);
    PASS(find_done(runtime, future, "gradients", brings_gradients, &f, error));
  }
  cleave_status status = api_gradients_out(f, ret_gradients, error);
  LOCKED(runtime);
  api_future_leave(runtime, f);
  return status;
}

/* It goes with its tensor. */
cleave_status cleave_wait(cleave_runtime *runtime, cleave_future future, uint64_t deadline_ms,
                          cleave_tensor *ret_tensor, cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  GIVEN(runtime, ret_tensor);
  {
    api_future *f;
    LOCKED(runtime);
    PASS(api_future_find(runtime, future, &f, error));
    cleave_status status =
        brings_tensor(f) ? api_future_await(runtime, f, api_until(runtime, deadline_ms), error)
                         : api_fail(error, CLV_INVALID, "future %llu, %s of %s, brings no tensor",
                                    (unsigned long long)future.id, kinds[f->kind].name, f->of);
    if (status == CLEAVE_OK) {
      t = clv_tensor_ref(f->tensor);
      f->released = true;
    }
    api_future_leave(runtime, f);
    if (status != CLEAVE_OK) return status;
  }
  return api_tensor_out(t, ret_tensor, error);
}
