/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs operations. A function that waits for nodes calls api_run_blocking, which begins the
 * operation and waits for its record (an api_future). The asynchronous form of the function calls
 * api_run_async, which begins the same operation and returns a handle of the record.
 *
 * Each thread that waits for a record advances all records. The first asynchronous form starts the
 * thread of futures, which calls callbacks, and advances the records while no thread of the program
 * waits. While a thread of the program waits, the thread of futures sleeps (is parked), because
 * waking two threads for each answer would cost a second thread switch. A runtime with
 * single_thread has no thread of futures.
 */
#include "master/api/core/future_int.h"

/* ---- advancing futures ----------------------------------------------------------------------- */

void api_future_end_early(cleave_runtime *rt, api_future *f, const cleave_error *why) {
  if (f->op->withdraw) f->op->withdraw(rt, f);
  api_future_finish(rt, f, why);
}

/* Advances one future. Returns true if it has ended. */
static bool advance_future(cleave_runtime *rt, api_future *f) {
  cleave_error why;
  f->n_users++; /* the record stays until the end of this function */
  f->op->advance(rt, f);
  if (!f->is_finished && f->op->fill_deadline_error && api_is_deadline_over(rt, f->next_check_ns)) {
    f->op->fill_deadline_error(rt, f, &why);
    api_future_end_early(rt, f, &why);
  }
  bool is_deadline_over = f->is_finished;
  api_future_release_use(rt, f);
  return is_deadline_over;
}

/* Advances the futures in order until one ends. If one ends, returns true, and the caller calls the
 * function again, because other futures may have waited for that one. *ret_due_ns: monotonic time
 * at which to call the function again. */
static bool advance_all_futures(cleave_runtime *rt, uint64_t *ret_due_ns) {
  *ret_due_ns = api_step_decision_advance(rt);
  for (api_future *f = rt->futures_state->first_unfinished, *next; f; f = next) {
    next = f->next;
    if (advance_future(rt, f)) return true;
    *ret_due_ns = CLV_MIN(*ret_due_ns, f->next_check_ns);
  }
  return false;
}

uint64_t api_futures_advance(cleave_runtime *rt) {
  uint64_t due_ns;
  bool has_ended_future = false;
  while (advance_all_futures(rt, &due_ns)) has_ended_future = true;
  if (has_ended_future) api_wake(rt);
  return due_ns;
}

void api_future_abandon(cleave_runtime *rt, api_future *f) {
  cleave_error why;
  api_fail(&why, CLV_CANCELLED, "future %llu, %s of %s, was cancelled", (unsigned long long)f->id,
           f->op->name, f->subject_name);
  if (f->cannot_cancel || f->is_finished)
    api_future_settle(rt, f, &why);
  else
    api_future_end_early(rt, f, &why);
}

/* ---- the thread of futures ------------------------------------------------------------------- */

static bool run_callbacks(cleave_runtime *rt) {
  return rt->futures_state->run_callbacks && rt->futures_state->run_callbacks(rt);
}

static void *run_futures_thread(void *user) {
  cleave_runtime *rt = user;
  LOCKED(rt);
  while (rt->futures_state->has_thread) {
    uint64_t due_ns = api_futures_advance(rt);
    if (!run_callbacks(rt) && rt->futures_state->has_thread)
      api_sleep_as_futures_thread(rt, due_ns);
  }
  (void)run_callbacks(rt);
  return NULL;
}

cleave_status api_futures_start_thread(cleave_runtime *rt, cleave_error *error) {
  api_futures *futures = rt->futures_state;
  if (rt->is_single_threaded || futures->has_thread || futures->is_closing) return CLEAVE_OK;
  futures->has_thread = true;
  if (pthread_create(&futures->thread, NULL, run_futures_thread, rt) == 0) return CLEAVE_OK;
  futures->has_thread = false;
  return api_fail(error, CLV_EXHAUSTED, "no thread for the futures of the program");
}

static api_future *find_first_threaded_future(const cleave_runtime *rt) {
  api_future *f = rt->futures_state->first_unfinished;
  while (f && !f->op->has_own_thread) f = f->next;
  return f;
}

void api_futures_stop(cleave_runtime *rt) {
  if (!rt) return;
  api_lock(rt);
  for (api_future *f; (f = find_first_threaded_future(rt)) != NULL;)
    if (!advance_future(rt, f)) (void)api_sleep(rt, UINT64_MAX);
  bool had_futures_thread = rt->futures_state->has_thread;
  cleave_error why;
  api_fail(&why, CLV_CANCELLED, "the runtime was closed");
  while (rt->futures_state->first_unfinished)
    api_future_end_early(rt, rt->futures_state->first_unfinished, &why);
  rt->futures_state->has_thread = false;
  api_wake(rt);
  pthread_cond_signal(&rt->futures_thread_cond);
  if (!had_futures_thread) (void)run_callbacks(rt);
  api_unlock(rt);
  if (had_futures_thread) pthread_join(rt->futures_state->thread, NULL);
}

/* ---- waiting for futures --------------------------------------------------------------------- */

/* Records for which a function waits: the record `future` alone or, if `future` is NULL, any one of
 * the records with the handles `futures`. */
typedef struct awaited_futures {
  const api_future *future;
  const cleave_future *futures; /* [n] handles; a handle with id 0 is skipped */
  size_t n;
} awaited_futures;

static bool is_any_done(const cleave_runtime *rt, const awaited_futures *a, size_t *ret_index) {
  if (a->future) return a->future->is_done;
  for (size_t i = 0; i < a->n; i++) {
    const api_future *f = api_id_table_get(&rt->futures, a->futures[i].id);
    *ret_index = i;
    if (f && f->is_done) return true;
  }
  return false;
}

static void unpark_for_callbacks(cleave_runtime *rt) {
  if (rt->futures_state->first_ready) pthread_cond_signal(&rt->futures_thread_cond);
}

static bool advance_until_done(cleave_runtime *rt, const awaited_futures *a, uint64_t until_ns,
                               size_t *ret_index) {
  for (;;) {
    uint64_t due_ns = api_futures_advance(rt);
    bool has_run_callbacks = rt->is_single_threaded && run_callbacks(rt);
    unpark_for_callbacks(rt);
    if (is_any_done(rt, a, ret_index)) return true;
    if (api_is_deadline_over(rt, until_ns) || api_is_interrupted(rt)) return false;
    if (!has_run_callbacks) (void)api_sleep(rt, CLV_MIN(due_ns, until_ns));
  }
}

/* Counts a thread that begins (1) or ends (-1) to advance futures. The caller holds the lock. The
 * number is atomic, because api_wake reads it without the lock. */
static void count_awaiting_thread(cleave_runtime *rt, int change) {
  __atomic_fetch_add(&rt->n_awaiting_threads, (uint32_t)change, __ATOMIC_RELAXED);
}

/* Advances futures until an awaited one is done; the thread of futures then advances the others.
 * Returns false if until_ns passes before, or if the program interrupts the wait. */
static bool await_future(cleave_runtime *rt, const awaited_futures *a, uint64_t until_ns,
                         size_t *ret_index) {
  count_awaiting_thread(rt, 1);
  bool is_done = advance_until_done(rt, a, until_ns, ret_index);
  count_awaiting_thread(rt, -1);
  if (!rt->n_awaiting_threads && rt->futures_state->first_unfinished)
    pthread_cond_signal(&rt->futures_thread_cond);
  return is_done;
}

bool api_futures_await_any(cleave_runtime *rt, const cleave_future *futures, size_t n,
                           uint64_t until_ns, size_t *ret_index) {
  const awaited_futures a = {.futures = futures, .n = n};
  return await_future(rt, &a, until_ns, ret_index);
}

cleave_status api_future_result(const api_future *f, cleave_error *error) {
  if (f->outcome.status != CLEAVE_OK && error) *error = f->outcome;
  return f->outcome.status;
}

cleave_status api_future_await(cleave_runtime *rt, api_future *f, uint64_t until_ns,
                               cleave_error *error) {
  size_t unused_index;
  const awaited_futures a = {.future = f};
  char silence_text[200];
  api_future_set_watched(f, true);
  bool is_in_time = await_future(rt, &a, until_ns, &unused_index);
  api_future_set_watched(f, false);
  if (is_in_time) return api_future_result(f, error);
  if (f->value && !api_is_interrupted(rt)) {
    cleave_error late_error;
    f->op->fill_deadline_error(rt, f, &late_error);
    if (error) *error = late_error;
    return late_error.status;
  }
  return api_fail_late(rt, error, "future %llu, %s of %s, was not done in time%s",
                       (unsigned long long)f->id, f->op->name, f->subject_name,
                       api_describe_silence(rt, silence_text, sizeof silence_text));
}

/* ---- beginning operations -------------------------------------------------------------------- */

/* Makes a future and begins its operation. Frees the future if the operation cannot begin. */
static cleave_status begin_operation(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                                     api_future **ret, cleave_error *error) {
  api_future *f;
  TRY_API(api_future_new(rt, op, api_deadline_ns(rt, a->deadline_ms), a->deadline_ms, &f, error));
  cleave_status status = op->begin(rt, a, f, error);
  if (status == CLEAVE_OK) {
    *ret = f;
    return CLEAVE_OK;
  }
  f->is_finished = true;
  api_future_release_use(rt, f);
  return status;
}

/* Begins an operation and waits for it. The deadline of a call begins when the call has been sent,
 * because the first use of a module takes time. */
static cleave_status begin_and_await(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                                     api_future **ret, cleave_error *error) {
  LOCKED(rt);
  *ret = NULL;
  TRY_API(begin_operation(rt, op, a, ret, error));
  if (op->advances_without_thread)
    (*ret)->until_ns = (*ret)->next_check_ns = api_deadline_ns(rt, a->deadline_ms);
  api_future_enqueue(rt, *ret);
  cleave_status status = api_future_await(rt, *ret, UINT64_MAX, error);
  if ((*ret)->is_done) return status;
  api_future_abandon(rt, *ret); /* the program has interrupted the wait */
  /* the thread of futures completes an operation that cannot be cancelled */
  (void)api_futures_start_thread(rt, NULL);
  return status;
}

/* Runs an operation and copies its result. Copies without the runtime's lock, because a record that
 * is done does not change. */
cleave_status api_run_blocking(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                               void *ret, cleave_error *error) {
  api_future *f;
  cleave_status status = begin_and_await(rt, op, a, &f, error);
  if (status == CLEAVE_OK && f->op->copy_result && ret) status = f->op->copy_result(f, ret, error);
  LOCKED(rt);
  if (f) api_future_release_use(rt, f);
  return status;
}

/* Begins an operation and returns a future. If the operation fails at once, returns its error and
 * no future. */
cleave_status api_run_async(cleave_runtime *rt, const api_operation *op, api_arguments *a,
                            cleave_future *ret, cleave_error *error) {
  api_future *f;
  LOCKED(rt);
  if (!op->advances_without_thread) TRY_API(api_futures_start_thread(rt, error));
  TRY_API(begin_operation(rt, op, a, &f, error));
  api_future_enqueue(rt, f);
  /* the thread of futures stays parked, because this thread advances futures */
  count_awaiting_thread(rt, 1);
  (void)api_futures_advance(rt);
  count_awaiting_thread(rt, -1);
  unpark_for_callbacks(rt);
  cleave_status status = f->is_done ? api_future_result(f, error) : CLEAVE_OK;
  if (status == CLEAVE_OK) status = api_future_assign_handle(rt, f, ret, error);
  if (status != CLEAVE_OK && !f->is_finished && !op->has_own_thread)
    api_future_end_early(rt, f, NULL);
  api_future_release_use(rt, f);
  return status;
}
