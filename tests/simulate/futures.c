/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the blocking calls of random programs. Now and then starts an operation as a future
 * instead, with a callback, and waits for the future. Also starts futures and cancels them.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/simulate/program_int.h"

/* ---- operations that are started as futures -------------------------------------------------- */

static bool draws_future(program *p) { return sim_draw_below(&p->shape_rng, 3) == 0; }

/* Number of callbacks called, in all programs. A runtime with a thread may call one after the wait
 * has ended. */
static atomic_int n_callbacks_called;
enum { MAX_CALLBACK_MS = 10000 };

static void count_callback(void *user, cleave_future future, const cleave_error *error) {
  (void)user, (void)future, (void)error;
  atomic_fetch_add(&n_callbacks_called, 1);
}

/* Asserts that the callback was called exactly once, soon after the future was done. */
static cleave_status check_called_once(program *p, int n_calls_before, cleave_status status) {
  for (int ms = 0; atomic_load(&n_callbacks_called) == n_calls_before && ms < MAX_CALLBACK_MS; ms++)
    usleep(1000);
  int n = atomic_load(&n_callbacks_called) - n_calls_before;
  return n == 1 ? status : report_impossible(p, "its callback was called %d times", n);
}

/* Returns the final status of the future of an operation that was started. */
static cleave_status wait_for_future(program *p, cleave_status start_status, cleave_future f) {
  int n_calls_before = atomic_load(&n_callbacks_called);
  if (start_status != CLEAVE_OK) return start_status;
  cleave_status status = cleave_future_then(p->rt, f, count_callback, NULL, &p->last_error);
  if (status == CLEAVE_OK) status = cleave_future_wait(p->rt, f, 0, &p->last_error);
  return check_called_once(p, n_calls_before, status);
}

static cleave_status wait_for_tensor(program *p, cleave_status start_status, cleave_future f) {
  cleave_status status = wait_for_future(p, start_status, f);
  if (status == CLEAVE_OK) status = cleave_future_tensor(p->rt, f, &p->last_tensor, &p->last_error);
  if (f.id) (void)cleave_future_release(p->rt, f, NULL);
  return status;
}

/* Cancels the future of an operation that was just started. The results of the program must not
 * depend on the cancellation. */
static void cancel_at_once(program *p, cleave_status start_status, cleave_future f) {
  if (start_status != CLEAVE_OK) return;
  (void)cleave_future_cancel(p->rt, f, NULL);
  (void)cleave_future_release(p->rt, f, NULL);
}

cleave_status fetch_to_here(program *p, cleave_reference from) {
  cleave_future f = {0}, cancelled_future = {0};
  bool cancels = sim_draw_below(&p->shape_rng, 2);
  if (!draws_future(p)) return cleave_to_here(p->rt, from, 0, &p->last_tensor, &p->last_error);
  cleave_status start_status = cleave_to_here_async(p->rt, from, 0, &f, &p->last_error);
  if (cancels)
    cancel_at_once(p, cleave_to_here_async(p->rt, from, 0, &cancelled_future, NULL),
                   cancelled_future);
  return wait_for_tensor(p, start_status, f);
}

cleave_status fetch_kept_to_here(program *p, cleave_kept from) {
  cleave_future f = {0}, cancelled_future = {0};
  bool cancels = sim_draw_below(&p->shape_rng, 2);
  if (!draws_future(p)) return cleave_kept_fetch(p->rt, from, 0, &p->last_tensor, &p->last_error);
  cleave_status start_status = cleave_kept_fetch_async(p->rt, from, 0, &f, &p->last_error);
  if (cancels)
    cancel_at_once(p, cleave_kept_fetch_async(p->rt, from, 0, &cancelled_future, NULL),
                   cancelled_future);
  return wait_for_tensor(p, start_status, f);
}

cleave_status read_weight_tensor(program *p, cleave_module *m, const char *name) {
  cleave_future f = {0};
  if (!draws_future(p))
    return cleave_weight_read(p->rt, m, name, 0, &p->last_tensor, &p->last_error);
  cleave_status start_status = cleave_weight_read_async(p->rt, m, name, 0, &f, &p->last_error);
  return wait_for_tensor(p, start_status, f);
}

/* Asserts that a context does not exist any more, because its close had begun before it was
 * cancelled. */
static cleave_status check_context_is_closed(program *p, cleave_context c) {
  cleave_status status = cleave_context_close(p->rt, c, 0, &p->last_error);
  return status == CLEAVE_NOT_FOUND ? CLEAVE_OK : status;
}

cleave_status close_context(program *p, cleave_context c) {
  cleave_future f = {0};
  bool cancels = sim_draw_below(&p->shape_rng, 4) == 0;
  if (!draws_future(p)) return cleave_context_close(p->rt, c, 0, &p->last_error);
  cleave_status start_status = cleave_context_close_async(p->rt, c, 0, &f, &p->last_error);
  if (cancels) {
    cancel_at_once(p, start_status, f);
    return start_status == CLEAVE_OK ? check_context_is_closed(p, c) : start_status;
  }
  cleave_status status = wait_for_future(p, start_status, f);
  if (f.id) (void)cleave_future_release(p->rt, f, NULL);
  return status;
}

cleave_status step_optimizer(program *p, cleave_optimizer *o, cleave_context c,
                             cleave_step_result *ret) {
  cleave_future f = {0};
  if (!draws_future(p)) return cleave_step(p->rt, o, c, 0, ret, &p->last_error);
  cleave_status start_status = cleave_step_async(p->rt, o, c, 0, &f, &p->last_error);
  cleave_status status = wait_for_future(p, start_status, f);
  if (status == CLEAVE_OK) status = cleave_future_step_result(p->rt, f, ret, &p->last_error);
  if (f.id) (void)cleave_future_release(p->rt, f, NULL);
  return status;
}

cleave_status run_backward(program *p, cleave_context c, const cleave_reference *roots, size_t n,
                           const cleave_backward_options *o) {
  cleave_future f = {0};
  if (!draws_future(p)) return cleave_backward_with(p->rt, c, roots, n, o, &p->last_error);
  cleave_status start_status = cleave_backward_async(p->rt, c, roots, n, o, &f, &p->last_error);
  cleave_status status = wait_for_future(p, start_status, f);
  if (f.id) (void)cleave_future_release(p->rt, f, NULL);
  return status;
}

/* ---- cancelled futures ----------------------------------------------------------------------- */

/* Cancels a future. The future must then be done, either cancelled or with the result of its
 * operation. */
static cleave_status cancel_future(program *p, cleave_future f) {
  bool is_ready = false;
  cleave_status status = cleave_future_cancel(p->rt, f, &p->last_error);
  if (status == CLEAVE_OK) status = cleave_future_poll(p->rt, f, &is_ready, &p->last_error);
  if (status != CLEAVE_OK || is_ready) return status;
  return report_impossible(p, "it is not done when it has been cancelled");
}

/* Waits some time, or not at all, then cancels. The callback of the future must be called exactly
 * once. */
static cleave_status wait_briefly_and_cancel(program *p, cleave_future f) {
  int n_calls_before = atomic_load(&n_callbacks_called);
  cleave_status status = cleave_future_then(p->rt, f, count_callback, NULL, &p->last_error);
  for (uint32_t n_left = sim_draw_below(&p->shape_rng, 3);
       n_left > 0 && p->environment->pause_program; n_left--)
    p->environment->pause_program(p->environment->user);
  if (status == CLEAVE_OK) status = cancel_future(p, f);
  cleave_status wait_status = cleave_future_wait(p->rt, f, 0, &p->last_error);
  if (status != CLEAVE_OK || wait_status == CLEAVE_CANCELLED) wait_status = status;
  return check_called_once(p, n_calls_before, wait_status);
}

static cleave_status finish_or_cancel(program *p, cleave_status start_status, cleave_future f,
                                      bool waits_for_end) {
  if (start_status == CLEAVE_OK)
    start_status =
        waits_for_end ? wait_for_future(p, start_status, f) : wait_briefly_and_cancel(p, f);
  if (f.id) (void)cleave_future_release(p->rt, f, NULL);
  return start_status;
}

/* Starts reads and cancels them, which must change nothing. */
static void cancel_reading(program *p, scope *s) {
  cleave_future f = {0};
  int i = (int)draw_below(p, MAX_VALUES), module = (int)draw_below(p, (uint32_t)p->n_stages);
  stage *m = &p->stages[module];
  const char *name = cleave_module_weight_name(m->module, 0);
  bool reads_weight = happens_once_in(p, 2) && name;
  if (!reads_weight && (i >= s->n || s->values[i].is_released)) return;
  if (!reads_weight && !s->values[i].ref.id) {
    skip_statement(p, "given up");
    return;
  }
  begin_statement(p);
  cleave_status status =
      reads_weight ? cleave_weight_read_async(p->rt, m->module, name, 0, &f, &p->last_error)
                   : cleave_to_here_async(p->rt, s->values[i].ref, 0, &f, &p->last_error);
  status = finish_or_cancel(p, status, f, false);
  /* the first use loads the module at its node */
  if (reads_weight) m->is_placed |= status == CLEAVE_OK;
  uint32_t needed_places = reads_weight ? place_bit(m->place) : s->needed_places;
  end_statement(p, status, needed_places, reads_weight ? m->depended_places : s->depended_places,
                "c%d: reading %s given up", index_of_scope(p, s),
                reads_weight ? "a weight" : "a value");
  mark_may_report_other_failure(p);
}

/* Starts two backwards and cancels one. A backward that has begun continues. A backward that waits
 * for another one never begins, unless a thread of the runtime has started it. */
static cleave_status cancel_one_of_two_backwards(program *p, scope *s, bool cancels_second,
                                                 cleave_future f[2]) {
  const cleave_backward_options o = {.size = sizeof o, .retain = true};
  s->n_backwards += cancels_second ? 1 : 2;
  for (int i = 0; i < 2; i++) {
    const cleave_reference *root = &s->losses[s->n_losses - 1 - i].ref;
    cleave_status start_status =
        cleave_backward_async(p->rt, s->id, root, 1, &o, &f[i], &p->last_error);
    if (start_status != CLEAVE_OK) return start_status;
  }
  if (cancels_second) (void)cleave_future_cancel(p->rt, f[1], NULL);
  cleave_status first_status =
      cancels_second ? wait_for_future(p, CLEAVE_OK, f[0]) : wait_briefly_and_cancel(p, f[0]);
  if (first_status != CLEAVE_OK) return first_status;
  cleave_status second_status = cleave_future_wait(p->rt, f[1], 0, &p->last_error);
  if (cancels_second && second_status == CLEAVE_OK)
    return report_impossible(p, "what was cancelled has ended well");
  return cancels_second && second_status == CLEAVE_CANCELLED ? CLEAVE_OK : second_status;
}

static void cancel_backward(program *p, scope *s) {
  cleave_future f[2] = {{0}};
  bool cancels_second = happens_once_in(p, 2) && !p->environment->has_threads;
  if (s->has_changed_weights || s->is_evaluation) return;
  while (s->n_losses < 2 && s->n + 3 <= MAX_VALUES) do_compute_loss(p, s);
  if (s->n_losses < 2) return;
  s->has_backward = true;
  if (!s->is_made || !s->losses[s->n_losses - 1].ref.id || !s->losses[s->n_losses - 2].ref.id) {
    skip_statement(p, "backward given up");
  } else {
    begin_statement(p);
    cleave_status status = cancel_one_of_two_backwards(p, s, cancels_second, f);
    end_statement(p, status, s->needed_places, s->depended_places,
                  "c%d: of two backwards the %s is given up", index_of_scope(p, s),
                  cancels_second ? "second" : "first");
  }
  for (int i = 0; i < 2; i++)
    if (f[i].id) (void)cleave_future_release(p->rt, f[i], NULL);
  read_gradients(p, s);
}

/* Returns true if a step of the context may wait before it begins: for the decision of an earlier
 * step, for the end of another context's step, or for votes about gradients that were written. */
static bool may_step_wait(const program *p, const scope *s) {
  bool is_other_step_pending = false;
  for (int i = 0; i < p->n_scopes; i++)
    is_other_step_pending |= &p->scopes[i] != s && p->scopes[i].has_undecided_step;
  return p->has_cancelled_step || is_other_step_pending || s->has_written_gradient;
}

/* Starts a step and cancels it. A step that has begun is completed, and later reads see its
 * changes. A step that waits has not begun, and is withdrawn. Whether a step still waits depends on
 * places and time, so one that may wait is not cancelled but waited for. */
static void cancel_step(program *p, scope *s) {
  cleave_future f = {0};
  int o = p->n_optimizers ? (int)draw_below(p, (uint32_t)p->n_optimizers) : 0;
  if (!p->n_optimizers || !s->has_backward) return;
  record_step(p, s, o);
  if (!s->is_made) {
    skip_statement(p, "step given up");
    return;
  }
  begin_statement(p);
  cleave_status status = cleave_step_async(p->rt, p->optimizers[o], s->id, 0, &f, &p->last_error);
  bool waits_for_end = may_step_wait(p, s);
  p->has_cancelled_step = !waits_for_end;
  status = finish_or_cancel(p, status, f, waits_for_end);
  end_statement(p, status, s->needed_places, s->depended_places, "c%d: step of optimizer %d, %s",
                index_of_scope(p, s), o, waits_for_end ? "in a future" : "given up");
  mark_may_report_other_failure(p);
}

void do_cancel_future(program *p, scope *s) {
  static void (*const all[])(program *, scope *) = {cancel_reading, cancel_reading, cancel_backward,
                                                    cancel_step};
  all[draw_below(p, CLV_COUNT(all))](p, s);
}
