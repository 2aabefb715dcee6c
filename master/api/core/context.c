/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens contexts. Waits while too many contexts have ended and are not yet freed at all nodes.
 */
#include <stdio.h>

#include "master/api/core/module_int.h"
#include "master/api/core/future_int.h"

/* largest number of ended contexts whose END_CONTEXT some node has not answered */
enum { MAX_ENDING_CONTEXTS = 64 };

#include "master/api/core/future_int.h"
#include "master/api/core/module_int.h"

/* Waits while the ends of too many contexts are unanswered, so that a worker that does not answer
 * cannot exhaust the memory of this process. */
static cleave_status wait_for_context_ends(cleave_runtime *rt, cleave_error *error) {
  uint64_t until_ns = api_deadline_ns(rt, 0);
  char silence_text[200];
  bool is_in_time = true;
  rt->n_end_waiters++;
  while (is_in_time && rt->n_ending_contexts > MAX_ENDING_CONTEXTS)
    is_in_time = api_wait(rt, until_ns);
  rt->n_end_waiters--;
  if (is_in_time) return CLEAVE_OK;
  return api_fail_late(rt, error, "%u contexts that have ended are not freed everywhere%s",
                       rt->n_ending_contexts,
                       api_describe_silence(rt, silence_text, sizeof silence_text));
}

cleave_status cleave_context_open(cleave_runtime *runtime, const cleave_context_options *options,
                                  cleave_context *ret_context, cleave_error *error) {
  NOT_NULL(runtime, ret_context);
  COPY_OPTIONS_IN(cleave_context_options, o, options);
  LOCKED(runtime);
  if (runtime->futures_state->is_closing)
    return api_fail(error, CLV_PRECONDITION, "the runtime is being closed: nothing new begins");
  TRY_API(api_take_deferred_error(runtime, error));
  TRY_API(wait_for_context_ends(runtime, error));
  api_context *c = runtime->context_free_list;
  if (c)
    runtime->context_free_list = c->next;
  else
    TRY(clv_alloc(1, sizeof *c, &c, &err));
  *c = (api_context){.id = ++runtime->next_context_id,
                     .is_evaluation = o.evaluation,
                     .rng_step = o.step,
                     .records_events = o.events};
  char name[sizeof c->name - 2];
  if (o.name)
    snprintf(c->name, sizeof c->name, "'%s'", clv_text_truncate(o.name, name, sizeof name));
  else
    snprintf(c->name, sizeof c->name, "%llu", (unsigned long long)c->id);
  clv_err err;
  if (api_id_table_put(&runtime->contexts, c->id, c, &err) != CLV_OK) {
    c->next = runtime->context_free_list;
    runtime->context_free_list = c;
    return api_convert_error(error, &err);
  }
  ret_context->id = c->id;
  return CLEAVE_OK;
}
