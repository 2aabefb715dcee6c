/* SPDX-License-Identifier: Apache-2.0
 *
 * Closes a runtime: lists the handles that are still open, closes the contexts and ends the
 * futures.
 */
#include "master/api/core/future_int.h"

static void report_values(const api_context *c, cleave_leaks *l) {
  for (const api_value *v = c->newest_value; v; v = v->older_value) {
    if (v->is_released) continue;
    l->references++;
    api_add_leak(l, "reference %llu of %s '%s', context %s\n", (unsigned long long)v->id,
                 v->module ? "module" : "the", v->module ? v->module->name : "program's leaf",
                 c->name);
  }
}

static void report_leaks(cleave_runtime *rt, cleave_leaks *l) {
  size_t at = 0;
  LOCKED(rt);
  *l = (cleave_leaks){0};
  for (const api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;) {
    if (c->state > API_CONTEXT_CLOSING) continue; /* the program has ended this context */
    l->contexts++;
    api_add_leak(l, "context %s\n", c->name);
    report_values(c, l);
  }
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    const cleave_module *m = rt->modules[i];
    if (!m || m->is_released || m->output_owner_name[0]) continue;
    l->modules++;
    api_add_leak(l, "module '%s' at %s\n", m->name, rt->peers[m->node].name);
  }
  for (const cleave_optimizer *o = rt->optimizers; o; o = o->next) {
    if (o->is_released) continue;
    l->optimizers++;
    api_add_leak(l, "optimiser of '%s' and %zu more modules\n", o->modules[0]->name,
                 o->n_modules - 1);
  }
  if (rt->kept_ops) rt->kept_ops->report_leaks(rt, l);
  api_futures_report_leaks(rt, l);
}

/* Returns the id of an open context; 0: none is left. Waits for contexts that are ending. */
static uint64_t find_open_context_id(cleave_runtime *rt, uint64_t until_ns) {
  LOCKED(rt);
  rt->n_end_waiters++; /* never decremented, because the runtime is freed afterwards */
  for (bool is_any_ending = true; is_any_ending;) {
    size_t at = 0;
    uint64_t due_ns = api_futures_advance(rt);
    is_any_ending = false;
    for (const api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;) {
      if (c->state == API_CONTEXT_OPEN) return c->id;
      is_any_ending |= c->state <= API_CONTEXT_ENDING;
    }
    is_any_ending = is_any_ending && !api_is_deadline_over(rt, until_ns) && !api_is_interrupted(rt);
    if (is_any_ending) (void)api_sleep(rt, CLV_MIN(due_ns, until_ns));
  }
  return 0;
}

/* Marks the runtime as closing. Fails if a callback calls cleave_close, because that would wait for
 * the callback. */
static cleave_status begin_closing(cleave_runtime *rt, cleave_error *error) {
  LOCKED(rt);
  if (rt->futures_state->is_callback_running &&
      pthread_equal(rt->futures_state->callback_thread, pthread_self()))
    return api_fail(error, CLV_PRECONDITION, "cleave_close is called by a callback of a future");
  rt->futures_state->is_closing = true;
  return CLEAVE_OK;
}

static cleave_status close_contexts(cleave_runtime *rt, uint64_t deadline_ms, cleave_error *error) {
  cleave_status status = CLEAVE_OK;
  cleave_error why;
  uint64_t until_ns = api_deadline_ns(rt, deadline_ms);
  for (uint64_t id; !api_is_interrupted(rt) && (id = find_open_context_id(rt, until_ns)) != 0;) {
    cleave_context c = {id};
    if (cleave_context_close(rt, c, deadline_ms, &why) != CLEAVE_OK && status == CLEAVE_OK) {
      status = why.status;
      if (error) *error = why;
    }
  }
  if (status == CLEAVE_OK && api_is_interrupted(rt))
    return api_fail(error, CLV_CANCELLED, "the program has interrupted cleave_close");
  return status;
}

cleave_status cleave_close(cleave_runtime *runtime, uint64_t deadline_ms, cleave_leaks *ret_leaks,
                           cleave_error *error) {
  if (ret_leaks) *ret_leaks = (cleave_leaks){0};
  if (!runtime) return CLEAVE_OK;
  TRY_API(begin_closing(runtime, error));
  CLV_AUTO(api_interruptible_end) api_interruptible waits;
  api_interruptible_begin(runtime, &waits);
  if (ret_leaks) report_leaks(runtime, ret_leaks);
  cleave_status status = close_contexts(runtime, deadline_ms, error);
  api_futures_stop(runtime);
  if (runtime->gate.before_close) runtime->gate.before_close(runtime->gate.owner, runtime);
  if (status == CLEAVE_OK) status = api_take_deferred_error(runtime, error);
  api_runtime_free(runtime);
  return status;
}
