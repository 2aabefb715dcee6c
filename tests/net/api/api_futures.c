/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests futures. `api_futures SESSION.yaml A B [single]` runs modules at the nodes A and B, and
 * ends with a digest of the results. `api_futures SESSION.yaml A B lost PID` kills the worker A,
 * whose process is PID.
 */
#include <pthread.h>

#include "api_futures_int.h"

/* ---- futures and blocking functions ---------------------------------------------------------- */

/* Takes a whole training step by futures; the program waits for the step's future first. The result
 * must equal that of run_blocking_step bit for bit. */
static bool run_step_by_futures(unsigned seed, cleave_step_result *ret, cleave_tensor *ret_value) {
  cleave_context c;
  cleave_reference loss;
  cleave_future value_future, backward_future, step_future, close_future;
  DO(open_context(&c));
  DO(run_network(&small_network, c, seed, NULL, NULL, &loss));
  MUST(cleave_to_here_async(rt, loss, 0, &value_future, e));
  DO(start_backward(c, loss, false, &backward_future));
  MUST(cleave_step_async(rt, optimizer, c, 0, &step_future, e));
  DO(wait_for_future(step_future));
  MUST(cleave_future_step_result(rt, step_future, ret, e));
  DO(wait_for_future(value_future)); /* the value was computed and sent before the backward */
  MUST(cleave_context_close_async(rt, c, 0, &close_future, e));
  DO(wait_for_future(close_future));
  MUST(cleave_future_tensor(rt, value_future, ret_value, e));
  /* a future's result can be read after its context is closed */
  MUST(cleave_future_step_result(rt, step_future, ret, e));
  DO(release_future(backward_future));
  DO(release_future(step_future));
  DO(release_future(close_future));
  return release_future(value_future);
}

static bool run_blocking_step(unsigned seed, cleave_step_result *ret, cleave_tensor *ret_value) {
  cleave_context c;
  cleave_reference loss;
  DO(open_context(&c));
  DO(run_network(&small_network, c, seed, NULL, NULL, &loss));
  MUST(cleave_to_here(rt, loss, 0, ret_value, e));
  DO(backward(c, loss, false));
  MUST(cleave_step(rt, optimizer, c, 0, ret, e));
  return close_context(c);
}

static bool write_state(const cleave_state *s) {
  MUST(cleave_state_write(rt, small_network.a, CLEAVE_STATE_WEIGHTS, s->items, s->n, 0, e));
  return true;
}

static bool futures_give_the_results_of_blocking_calls(void) {
  cleave_state state_before[2] = {{0}}, state_after[2] = {{0}};
  cleave_step_result step_results[2];
  cleave_tensor losses[2] = {{0}}, weight = {0};
  cleave_module *both[] = {small_network.a, small_network.b};
  cleave_future f;
  for (int i = 0; i < 2; i++) DO(read_state_by_future(both[i], &state_before[i]));
  DO(run_step_by_futures(3, &step_results[0], &losses[0]));
  for (int i = 0; i < 2; i++) DO(read_state_by_future(both[i], &state_after[i]));
  DO(write_state(&state_before[0]));
  MUST(cleave_state_write(rt, small_network.b, CLEAVE_STATE_WEIGHTS, state_before[1].items,
                          state_before[1].n, 0, e));
  DO(run_blocking_step(3, &step_results[1], &losses[1]));
  CHECK(step_results[0].applied && step_results[0].norm == step_results[1].norm);
  CHECK(step_results[0].number + 1 == step_results[1].number);
  DO(is_same_tensor(&losses[0], &losses[1]));
  for (int i = 0; i < 2; i++)
    for (size_t k = 0; k < state_after[i].n; k++) {
      MUST(cleave_weight_read_async(rt, both[i], state_after[i].items[k].name, 0, &f, e));
      MUST(cleave_wait(rt, f, 0, &weight, e));
      DO(is_same_tensor(&weight, &state_after[i].items[k].tensor));
      add_to_digest(&weight);
    }
  for (int i = 0; i < 2; i++) {
    cleave_state_free(&state_before[i]);
    cleave_state_free(&state_after[i]);
    cleave_tensor_free(&losses[i]);
  }
  cleave_tensor_free(&weight);
  return true;
}

static bool kept_value_is_fetched_by_a_future(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_kept k;
  cleave_future f[2];
  cleave_tensor t[3] = {{0}};
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  MUST(cleave_keep(rt, y, &k, e));
  for (int i = 0; i < 2; i++) MUST(cleave_kept_fetch_async(rt, k, 0, &f[i], e));
  DO(close_context(c)); /* closing the context does not end fetches of a value that is kept */
  MUST(cleave_wait(rt, f[0], 0, &t[0], e));
  DO(wait_for_future(f[1]));
  MUST(cleave_future_tensor(rt, f[1], &t[1], e));
  MUST(cleave_kept_fetch(rt, k, 0, &t[2], e));
  DO(is_same_tensor(&t[0], &t[1]));
  DO(is_same_tensor(&t[0], &t[2]));
  for (int i = 0; i < 3; i++) cleave_tensor_free(&t[i]);
  MUST(cleave_kept_release(rt, k, e));
  return release_future(f[1]);
}

/* ---- polling futures, and waiting for one of many futures ------------------------------------ */

static bool poll_reports_a_done_future(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f;
  bool is_ready = false, was_ready_at_once = true;
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(start_backward(c, loss, false, &f));
  if (!is_single_threaded) MUST(cleave_future_poll(rt, f, &was_ready_at_once, e));
  CHECK(is_single_threaded || !was_ready_at_once);
  while (!is_ready) {
    MUST(cleave_future_poll(rt, f, &is_ready, e));
    usleep(1000);
  }
  DO(wait_for_future(f));
  DO(wait_for_future(f)); /* waiting for a future that is done is allowed any number of times */
  DO(release_future(f));
  REFUSED(cleave_future_poll(rt, f, &is_ready, e), CLEAVE_NOT_FOUND, "released");
  return close_context(c);
}

static bool wait_any_returns_after_one_future(void) {
  enum { N_STARTED = 4 };
  cleave_context c[N_STARTED], slow_context;
  cleave_future f[N_STARTED + 1] = {{0}};
  cleave_reference y, loss;
  bool is_seen[N_STARTED + 1] = {false};
  size_t index;
  DO(open_context(&slow_context));
  DO(call_slow_module(slow_context, &y, &loss));
  DO(start_backward(slow_context, loss, false, &f[N_STARTED]));
  /* this check is left out if the program has one thread and the slow module is at the master,
   * because cleave_wait_any would then compute the slow backward itself */
  if (!is_single_threaded || strcmp(at_b, "master") != 0)
    REFUSED(cleave_wait_any(rt, f, N_STARTED + 1, 1, &index, e), CLEAVE_DEADLINE,
            "none of 5 futures");
  for (int i = 0; i < N_STARTED; i++) {
    DO(open_context(&c[i]));
    DO(run_network(&small_network, c[i], (unsigned)i, NULL, NULL, &loss));
    DO(start_backward(c[i], loss, false, &f[i]));
  }
  for (int i = 0; i < N_STARTED + 1; i++) {
    MUST(cleave_wait_any(rt, f, N_STARTED + 1, 0, &index, e));
    CHECK(index <= N_STARTED && !is_seen[index]);
    is_seen[index] = true;
    DO(release_future(f[index]));
    f[index].id = 0;
  }
  REFUSED(cleave_wait_any(rt, f, N_STARTED + 1, 0, &index, e), CLEAVE_INVALID, "no future");
  f[2].id = UINT64_C(1) << 40;
  REFUSED(cleave_wait_any(rt, f, N_STARTED + 1, 0, &index, e), CLEAVE_INVALID, "no future of this");
  for (int i = 0; i < N_STARTED; i++) DO(close_context(c[i]));
  return close_context(slow_context);
}

/* ---- callbacks of futures -------------------------------------------------------------------- */

typedef struct callback_log {
  int n_calls, call_order[8];
  cleave_status last_status;
  cleave_future last_future;
} callback_log;

typedef struct listener {
  callback_log *at;
  int number;
} listener;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void record_callback(void *user, cleave_future future, const cleave_error *error) {
  const listener *l = user;
  pthread_mutex_lock(&log_lock);
  l->at->call_order[l->at->n_calls++ & 7] = l->number;
  l->at->last_status = error->status;
  l->at->last_future = future;
  pthread_mutex_unlock(&log_lock);
}

static int read_n_calls(const callback_log *log) {
  pthread_mutex_lock(&log_lock);
  int n = log->n_calls;
  pthread_mutex_unlock(&log_lock);
  return n;
}

/* True if n_expected callbacks were called. In a runtime with one thread, cleave_future_poll calls
 * them; otherwise another thread does, soon after the future is done. */
static bool wait_until_called(const callback_log *log, cleave_future f, int n_expected) {
  for (int i = 0; i < 20000 && read_n_calls(log) < n_expected; i++) {
    bool is_ready;
    if (is_single_threaded && f.id) MUST(cleave_future_poll(rt, f, &is_ready, e));
    usleep(1000);
  }
  usleep(2000);
  CHECK(read_n_calls(log) == n_expected);
  return true;
}

static bool callbacks_are_called_once_and_in_order(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f;
  callback_log h = {0};
  listener l[4] = {{&h, 0}, {&h, 1}, {&h, 2}, {&h, 3}};
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(start_backward(c, loss, false, &f));
  for (int i = 0; i < 3; i++) MUST(cleave_future_then(rt, f, record_callback, &l[i], e));
  CHECK(read_n_calls(&h) == 0);
  DO(wait_for_future(f));
  DO(wait_until_called(&h, f, 3));
  /* a callback that is added to a done future is called, too */
  MUST(cleave_future_then(rt, f, record_callback, &l[3], e));
  DO(wait_until_called(&h, f, 4));
  for (int i = 0; i < 4; i++) CHECK(h.call_order[i] == i);
  CHECK(h.last_status == CLEAVE_OK && h.last_future.id == f.id);
  REFUSED(cleave_future_then(rt, f, NULL, NULL, e), CLEAVE_INVALID, "NULL");
  DO(release_future(f));
  return close_context(c);
}

/* A chain of calls: the callback of each call makes the next call, on the previous call's value. */
typedef struct chain {
  cleave_context context;
  cleave_reference at;
  cleave_future last_call;
  int n_calls_left;
  bool has_failed, is_over;
} chain;

static void make_next_call(void *user, cleave_future future, const cleave_error *error) {
  chain *s = user;
  cleave_error wait_error;
  cleave_future f = {0};
  (void)cleave_future_release(rt, future, NULL);
  bool is_error = error->status != CLEAVE_OK;
  if (!is_error && s->n_calls_left)
    is_error = cleave_rpc_async(rt, s->context, small_network.b, &s->at, 1, NULL, &f,
                                &wait_error) != CLEAVE_OK ||
               cleave_future_then(rt, f, make_next_call, s, &wait_error) != CLEAVE_OK;
  pthread_mutex_lock(&log_lock);
  s->has_failed |= is_error;
  s->is_over = is_error || !s->n_calls_left--;
  if (f.id) s->last_call = f;
  pthread_mutex_unlock(&log_lock);
}

static bool a_callback_begins_the_next_call(void) {
  chain s = {.n_calls_left = 5};
  float x[12] = {0};
  cleave_reference in;
  cleave_future f;
  DO(open_context(&s.context));
  DO(make_leaf(s.context, x, 4, 3, false, &in));
  MUST(cleave_rpc_async(rt, s.context, small_network.a, &in, 1, &s.at, &f, e));
  MUST(cleave_future_then(rt, f, make_next_call, &s, e));
  for (bool is_over = false; !is_over;) {
    bool is_ready;
    pthread_mutex_lock(&log_lock);
    is_over = s.is_over;
    f = s.last_call.id ? s.last_call : f;
    pthread_mutex_unlock(&log_lock);
    if (is_single_threaded && !is_over) (void)!cleave_future_poll(rt, f, &is_ready, NULL);
    usleep(500);
  }
  CHECK(!s.has_failed && s.n_calls_left == -1);
  return close_context(s.context);
}

static bool failed_call_runs_its_callback(void) {
  static const int64_t rows[] = {0, 1, 9, 2};
  cleave_tensor numbers = CLEAVE_TENSOR_I64(rows, 4), t = {0};
  cleave_context c;
  cleave_reference x;
  cleave_future f;
  callback_log h = {0};
  listener l = {&h, 0};
  DO(open_context(&c));
  MUST(cleave_leaf(rt, c, &numbers, false, &x, e));
  MUST(cleave_rpc_async(rt, c, embedding, &x, 1, NULL, &f, e));
  MUST(cleave_future_then(rt, f, record_callback, &l, e));
  cleave_error wait_error;
  cleave_status status = cleave_future_wait(rt, f, 0, &wait_error);
  CHECK(status != CLEAVE_OK && strstr(wait_error.text, "row number of sample 2"));
  CHECK(cleave_future_tensor(rt, f, &t, &wait_error) == status);
  CHECK(cleave_wait(rt, f, 0, &t, &wait_error) == status);
  DO(wait_until_called(&h, f, 1));
  CHECK(h.last_status == status);
  DO(release_future(f));
  return close_context(c);
}

/* ---- cancelling futures ---------------------------------------------------------------------- */

/* The step waits for the backward. A step that is cancelled while it waits changes nothing, and
 * another step can be taken. */
static bool cancelled_waiting_step_changes_nothing(void) {
  cleave_context c;
  cleave_reference y, loss, other_value;
  cleave_future backward_done, step_future, read_future;
  cleave_tensor weight_before = {0}, weight_after = {0};
  cleave_step_result step_result;
  callback_log h = {0};
  listener l = {&h, 0};
  DO(read_weight(small_network.a, "0.weight", &weight_before));
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(run_network(&small_network, c, 9, NULL, NULL, &other_value));
  MUST(cleave_backward_async(rt, c, (cleave_reference[]){loss, other_value}, 2, NULL,
                             &backward_done, e));
  MUST(cleave_step_async(rt, optimizer, c, 0, &step_future, e));
  MUST(cleave_future_then(rt, step_future, record_callback, &l, e));
  MUST(cleave_future_cancel(rt, step_future, e));
  REFUSED(cleave_future_wait(rt, step_future, 0, e), CLEAVE_CANCELLED, "was cancelled");
  REFUSED(cleave_future_step_result(rt, step_future, &step_result, e), CLEAVE_CANCELLED,
          "was cancelled");
  DO(wait_until_called(&h, step_future, 1));
  CHECK(h.last_status == CLEAVE_CANCELLED);
  DO(wait_for_future(backward_done));
  MUST(cleave_weight_read_async(rt, small_network.a, "0.weight", 0, &read_future, e));
  MUST(cleave_wait(rt, read_future, 0, &weight_after, e));
  DO(is_same_tensor(&weight_before, &weight_after));
  /* another step works, because the context stays open */
  MUST(cleave_step(rt, optimizer, c, 0, &step_result, e));
  CHECK(step_result.applied);
  /* cancelling a future that is done does nothing */
  MUST(cleave_future_cancel(rt, backward_done, e));
  DO(wait_for_future(backward_done));
  DO(release_future(backward_done));
  DO(release_future(step_future));
  DO(close_context(c));
  DO(read_weight(small_network.a, "0.weight", &weight_after));
  CHECK(memcmp(weight_before.data, weight_after.data, 60) != 0);
  cleave_tensor_free(&weight_before);
  cleave_tensor_free(&weight_after);
  return true;
}

/* Cancelling the future of a backward that has begun does not stop the backward. The next backward
 * runs after it and adds its own gradients. */
static bool cancelled_backward_that_was_sent_still_adds_gradients(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f[3];
  cleave_tensor one_gradient = {0}, two_gradients = {0};
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(start_backward(c, loss, true, &f[0]));
  MUST(cleave_future_cancel(rt, f[0], e));
  REFUSED(cleave_future_wait(rt, f[0], 0, e), CLEAVE_CANCELLED, "a backward of context");
  MUST(cleave_to_here_async(rt, y, 0, &f[1], e));
  MUST(cleave_future_cancel(rt, f[1], e));
  REFUSED(cleave_wait(rt, f[1], 0, &one_gradient, e), CLEAVE_CANCELLED, "the value of slow");
  /* waits until the backward whose future was cancelled is complete, and returns its gradient */
  DO(read_gradient(c, slow_module, "0.weight", &one_gradient));
  DO(start_backward(c, loss, true, &f[2]));
  DO(wait_for_future(f[2]));
  DO(read_gradient(c, slow_module, "0.weight", &two_gradients));
  CHECK(is_near(*(float *)two_gradients.data, 2 * *(float *)one_gradient.data));
  DO(close_context(c));
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(backward(c, loss, false));
  DO(read_gradient(c, slow_module, "0.weight", &one_gradient));
  CHECK(is_near(*(float *)two_gradients.data, 2 * *(float *)one_gradient.data));
  DO(close_context(c));
  for (int i = 0; i < 3; i++) DO(release_future(f[i]));
  cleave_tensor_free(&one_gradient);
  cleave_tensor_free(&two_gradients);
  return true;
}

/* Closing a context waits for the owner of a kept value. The test cancels the close while it
 * waits. */
static bool waiting_close_can_be_cancelled(void) {
  cleave_context c;
  cleave_reference y, loss, z;
  cleave_kept k;
  cleave_future f;
  cleave_tensor t = {0};
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  MUST(cleave_keep(rt, y, &k, e));
  MUST(cleave_context_close_async(rt, c, 0, &f, e));
  MUST(cleave_future_cancel(rt, f, e));
  cleave_status status = cleave_call(rt, c, slow_module, &y, 1, &z, NULL);
  if (status == CLEAVE_OK) MUST(cleave_context_close(rt, c, 0, e));
  /* NOT_FOUND: the owner answered before the cancellation, so the context is closed */
  CHECK(status == CLEAVE_OK || status == CLEAVE_NOT_FOUND);
  MUST(cleave_kept_fetch(rt, k, 0, &t, e));
  MUST(cleave_kept_release(rt, k, e));
  cleave_tensor_free(&t);
  return release_future(f);
}

/* ---- futures with deadlines, ended contexts and several threads ------------------------------ */

static bool future_and_wait_have_separate_deadlines(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f[3];
  cleave_tensor t = {0};
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  MUST(cleave_to_here_async(rt, y, 20, &f[0], e));
  MUST(cleave_to_here_async(rt, y, 0, &f[1], e));
  if (!is_single_threaded || strcmp(at_b, "master") != 0) {
    REFUSED(cleave_future_wait(rt, f[0], 0, e), CLEAVE_DEADLINE, "module 'slow'");
    REFUSED(cleave_future_wait(rt, f[1], 1, e), CLEAVE_DEADLINE, "did not come from");
  }
  DO(wait_for_future(f[1]));
  MUST(cleave_wait(rt, f[1], 0, &t, e));
  DO(release_future(f[0]));
  MUST(cleave_to_here(rt, y, 0, &t, e));
  DO(close_context(c));
  if (is_single_threaded) return cleave_tensor_free(&t), true;
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  const cleave_backward_options short_deadline = {.size = sizeof short_deadline, .deadline_ms = 20};
  MUST(cleave_backward_async(rt, c, &loss, 1, &short_deadline, &f[2], e));
  REFUSED(cleave_future_wait(rt, f[2], 0, e), CLEAVE_DEADLINE, "took longer than 20 ms");
  REFUSED(cleave_to_here(rt, y, 0, &t, e), CLEAVE_DEADLINE, "took longer than 20 ms");
  cleave_tensor_free(&t);
  DO(release_future(f[2]));
  return close_context(c);
}

static bool the_end_of_a_context_ends_its_futures(bool ends_without_waiting) {
  cleave_context c;
  cleave_reference y, loss, other;
  cleave_future f[3];
  cleave_tensor t = {0};
  callback_log h = {0};
  listener l = {&h, 0};
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(run_network(&small_network, c, 2, NULL, NULL, &other));
  DO(start_backward(c, loss, false, &f[0]));
  MUST(cleave_step_async(rt, optimizer, c, 0, &f[1], e));
  MUST(cleave_to_here_async(rt, y, 0, &f[2], e));
  for (int i = 0; i < 3; i++) MUST(cleave_future_then(rt, f[i], record_callback, &l, e));
  if (ends_without_waiting)
    MUST(cleave_context_end(rt, c, e));
  else
    DO(close_context(c));
  for (int i = 0; i < 3; i++) {
    bool is_ready = false;
    MUST(cleave_future_poll(rt, f[i], &is_ready, e));
    CHECK(is_ready);
    REFUSED(cleave_future_wait(rt, f[i], 0, e), CLEAVE_CANCELLED, "was closed");
  }
  REFUSED(cleave_wait(rt, f[2], 0, &t, e), CLEAVE_CANCELLED, "was closed");
  DO(wait_until_called(&h, f[0], 3));
  CHECK(h.last_status == CLEAVE_CANCELLED);
  for (int i = 0; i < 3; i++) DO(release_future(f[i]));
  return true;
}

static bool closing_a_context_ends_its_futures(void) {
  return the_end_of_a_context_ends_its_futures(false) &&
         the_end_of_a_context_ends_its_futures(true);
}

static bool callbacks_of_a_released_future_are_called(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f, next_backward;
  cleave_tensor t = {0};
  callback_log h = {0};
  listener l = {&h, 0};
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(start_backward(c, loss, true, &f));
  MUST(cleave_future_then(rt, f, record_callback, &l, e));
  DO(release_future(f));
  REFUSED(cleave_future_wait(rt, f, 0, e), CLEAVE_NOT_FOUND, "released");
  REFUSED(cleave_future_cancel(rt, f, e), CLEAVE_NOT_FOUND, "released");
  DO(start_backward(c, loss, true, &next_backward)); /* runs after the first backward */
  DO(wait_for_future(next_backward));
  DO(wait_until_called(&h, next_backward, 1));
  CHECK(h.last_status == CLEAVE_OK && h.last_future.id == f.id);
  DO(read_gradient(c, slow_module, "0.weight", &t));
  cleave_tensor_free(&t);
  DO(release_future(next_backward));
  return close_context(c);
}

static void *wait_in_thread(void *user) {
  const cleave_future *f = user;
  return (void *)(uintptr_t)(cleave_future_wait(rt, *f, 0, NULL) == CLEAVE_OK);
}

static bool threads_wait_for_one_future(void) {
  enum { THREADS = 3 };
  pthread_t threads[THREADS];
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f;
  bool is_good = true;
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  DO(start_backward(c, loss, false, &f));
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, wait_in_thread, &f) == 0);
  for (int i = 0; i < THREADS; i++) {
    void *result;
    CHECK(pthread_join(threads[i], &result) == 0);
    is_good &= result != NULL;
  }
  CHECK(is_good);
  DO(release_future(f));
  return close_context(c);
}

static bool result_of_another_kind_is_refused(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f;
  cleave_tensor t = {0};
  cleave_step_result s;
  cleave_state state;
  bool is_ready;
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  REFUSED(cleave_step_async(rt, optimizer, c, 0, &f, e), CLEAVE_PRECONDITION, "has no gradient");
  REFUSED(cleave_backward_async(rt, c, &y, 1, NULL, &f, e), CLEAVE_INVALID, "from scalars");
  REFUSED(cleave_backward_async(rt, c, &loss, 1, NULL, NULL, e), CLEAVE_INVALID, "NULL");
  REFUSED(cleave_to_here_async(NULL, y, 0, &f, e), CLEAVE_INVALID, "runtime is NULL");
  MUST(cleave_to_here_async(rt, y, 0, &f, e));
  REFUSED(cleave_future_step_result(rt, f, &s, e), CLEAVE_INVALID, "brings no step");
  REFUSED(cleave_future_state(rt, f, &state, e), CLEAVE_INVALID, "brings no state");
  if (!is_single_threaded)
    REFUSED(cleave_future_tensor(rt, f, &t, e), CLEAVE_PRECONDITION, "is not done");
  REFUSED(cleave_future_tensor(rt, f, NULL, e), CLEAVE_INVALID, "NULL");
  REFUSED(cleave_future_poll(rt, f, NULL, e), CLEAVE_INVALID, "NULL");
  REFUSED(cleave_future_poll(rt, (cleave_future){0}, &is_ready, e), CLEAVE_INVALID, "no future");
  MUST(cleave_wait(rt, f, 0, &t, e));
  DO(start_backward(c, loss, false, &f));
  REFUSED(cleave_wait(rt, f, 0, &t, e), CLEAVE_INVALID, "brings no tensor");
  DO(wait_for_future(f));
  DO(release_future(f));
  cleave_tensor_free(&t);
  return close_context(c);
}

/* The expiry of a wait is reported differently from the expiry of the operation's deadline. A
 * program with one thread computes its own node's part while it waits, and a wait does not end in
 * the middle of this computation. */
static bool expired_wait_is_no_error(void) {
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f;
  bool is_ready = true;
  if (is_single_threaded) return true;
  DO(open_context(&c));
  DO(call_slow_module(c, &y, &loss));
  MUST(cleave_to_here_async(rt, y, 100, &f, e));
  MUST(cleave_future_wait_for(rt, f, 0, &is_ready, e));
  CHECK(!is_ready);
  MUST(cleave_future_wait_for(rt, f, 10, &is_ready, e));
  CHECK(!is_ready);
  REFUSED(cleave_future_wait_for(rt, f, 5000, &is_ready, e), CLEAVE_DEADLINE, "did not come");
  DO(release_future(f));
  MUST(cleave_to_here_async(rt, y, 0, &f, e));
  MUST(cleave_future_wait_for(rt, f, 5000, &is_ready, e));
  CHECK(is_ready);
  DO(release_future(f));
  return close_context(c);
}

static const test tests[] = {
    TEST(futures_give_the_results_of_blocking_calls),
    TEST(kept_value_is_fetched_by_a_future),
    TEST(poll_reports_a_done_future),
    TEST(wait_any_returns_after_one_future),
    TEST(callbacks_are_called_once_and_in_order),
    TEST(a_callback_begins_the_next_call),
    TEST(failed_call_runs_its_callback),
    TEST(cancelled_waiting_step_changes_nothing),
    TEST(cancelled_backward_that_was_sent_still_adds_gradients),
    TEST(waiting_close_can_be_cancelled),
    TEST(future_and_wait_have_separate_deadlines),
    TEST(expired_wait_is_no_error),
    TEST(closing_a_context_ends_its_futures),
    TEST(callbacks_of_a_released_future_are_called),
    TEST(threads_wait_for_one_future),
    TEST(result_of_another_kind_is_refused),
};

/* ---- futures when the runtime is closed ------------------------------------------------------ */

static void close_in_callback(void *user, cleave_future future, const cleave_error *error) {
  cleave_error wait_error;
  (void)future;
  callback_log *h = user;
  cleave_status close_status = cleave_close(rt, 0, NULL, &wait_error);
  pthread_mutex_lock(&log_lock);
  h->n_calls += close_status == CLEAVE_PRECONDITION && strstr(wait_error.text, "by a callback");
  h->last_status = error->status;
  pthread_mutex_unlock(&log_lock);
}

static bool open_futures_are_listed_as_leaks_and_end(void) {
  cleave_context_options o = {.size = sizeof o, .name = "autumn"};
  cleave_context c;
  cleave_reference y, loss;
  cleave_future f[2];
  cleave_leaks leaks;
  callback_log log = {0}, close_log = {0};
  listener l = {&log, 0};
  MUST(cleave_context_open(rt, &o, &c, e));
  DO(call_slow_module(c, &y, &loss));
  DO(start_backward(c, loss, false, &f[0]));
  MUST(cleave_to_here_async(rt, y, 0, &f[1], e));
  MUST(cleave_future_then(rt, f[0], record_callback, &l, e));
  MUST(cleave_future_then(rt, f[1], close_in_callback, &close_log, e));
  MUST(cleave_close(rt, 0, &leaks, e));
  CHECK(leaks.futures == 2u + (unsigned)n_failed || n_failed);
  CHECK(strstr(leaks.text, "backward of context 'autumn'") && strstr(leaks.text, "value of slow"));
  CHECK(log.n_calls == 1 && log.last_status == CLEAVE_CANCELLED);
  CHECK(close_log.n_calls == 1 && close_log.last_status == CLEAVE_CANCELLED);
  return true;
}

/* ---- futures when a worker is lost ----------------------------------------------------------- */

static bool the_loss_of_a_worker_ends_its_futures(pid_t worker) {
  cleave_context c;
  cleave_reference x, y, loss;
  cleave_future f[3];
  callback_log h = {0};
  listener l = {&h, 0};
  DO(open_context(&c));
  DO(run_network(&small_network, c, 1, &x, &y, &loss));
  DO(backward(c, loss, false));
  DO(close_context(c));
  DO(stop_process_and_threads(worker));
  DO(open_context(&c));
  DO(run_network(&small_network, c, 1, &x, &y, &loss));
  DO(start_backward(c, loss, false, &f[0]));
  MUST(cleave_step_async(rt, optimizer, c, 0, &f[1], e));
  MUST(cleave_weight_read_async(rt, small_network.a, "0.weight", 0, &f[2], e));
  for (int i = 0; i < 3; i++) MUST(cleave_future_then(rt, f[i], record_callback, &l, e));
  CHECK(kill(worker, SIGKILL) == 0);
  for (int i = 0; i < 3; i++)
    REFUSED(cleave_future_wait(rt, f[i], 0, e), CLEAVE_UNAVAILABLE, "was lost");
  DO(wait_until_called(&h, f[0], 3));
  CHECK(h.last_status == CLEAVE_UNAVAILABLE);
  for (int i = 0; i < 3; i++) DO(release_future(f[i]));
  REFUSED(cleave_context_close(rt, c, 0, e), CLEAVE_UNAVAILABLE, "was lost");
  return true;
}

int main(int argc, char **argv) {
  cleave_options o = {.size = sizeof o, .deadline_ms = 20000};
  cleave_error e = {0};
  if (argc < 4) return 2;
  at_a = argv[2];
  at_b = argv[3];
  o.single_thread = is_single_threaded = argc > 4 && strcmp(argv[4], "single") == 0;
  bool is_ready = cleave_open(argv[1], &o, &rt, &e) == CLEAVE_OK && load_modules();
  if (e.text[0]) snprintf(why, sizeof why, "%.900s", e.text);
  print_result(is_ready, "open");
  if (!is_ready) return 1;
  if (argc > 5 && strcmp(argv[4], "lost") == 0) {
    print_result(the_loss_of_a_worker_ends_its_futures((pid_t)atoi(argv[5])),
                 "the_loss_of_a_worker_ends_its_futures");
    (void)!cleave_close(rt, 0, NULL, NULL);
    return n_failed != 0;
  }
  (void)RUN_ALL(tests);
  print_digest();
  print_result(open_futures_are_listed_as_leaks_and_end(), "open_futures_are_listed_and_end");
  return n_failed != 0;
}
