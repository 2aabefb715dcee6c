/* SPDX-License-Identifier: Apache-2.0
 *
 * The operation of a step. It waits for the backwards and steps of its context that were begun
 * before. Then the nodes to which the program has written gradients send new votes, the sums of
 * their squared gradients, and the step is decided.
 */
#include <stdio.h>

#include "master/api/core/future_int.h"

/* States of a step (api_future.operation_state): it waits for earlier operations of the context,
 * for new votes after the program has written gradients, for the end of a revert because sending
 * the decision has failed. */
enum { WAITS_FOR_EARLIER, WAITS_FOR_VOTES, WAITS_FOR_REVERT };

/* Checks that the context has used a module of the optimiser. A context that has used a module
 * keeps the module's optimiser until the context is closed. */
static cleave_status check_context_has_module(const cleave_optimizer *o, const api_context *c,
                                              cleave_error *error) {
  for (size_t i = 0; i < o->n_modules; i++)
    if (c->has_used_module[o->modules[i]->index]) return CLEAVE_OK;
  return api_fail(error, CLV_PRECONDITION,
                  "context %s has no gradient of any module of this optimiser", c->name);
}

cleave_status api_step_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                             cleave_error *error) {
  api_context *c;
  api_flush_final_step(rt);
  TRY_API(api_take_deferred_error(rt, error));
  TRY_API(api_find_context(rt, a->context, &c, error));
  TRY_API(check_context_has_module(a->optimizer, c, error));
  f->context = c;
  f->optimizer = a->optimizer;
  if (a->step_options) {
    f->own_gradients_squared_sum = a->step_options->other_square;
    f->has_nonfinite_own_gradient = a->step_options->other_not_finite;
  }
  snprintf(f->subject_name, sizeof f->subject_name, "context %.64s", c->name);
  return CLEAVE_OK;
}

/* Requests new votes (sums of squared gradients) from the nodes to which the program has written
 * gradients. Returns true once all requested votes have arrived. */
static bool have_votes_arrived(cleave_runtime *rt, api_future *f) {
  api_context *c = f->context;
  if (f->operation_state == WAITS_FOR_EARLIER && c->nodes_with_written_gradients) {
    f->operation_state = WAITS_FOR_VOTES;
    f->owns_pass = true;
    api_step_vote_begin(rt, c);
  }
  if (f->operation_state == WAITS_FOR_VOTES && !api_is_pass_done(c)) return false;
  if (f->operation_state == WAITS_FOR_VOTES) c->is_backward_running = f->owns_pass = false;
  f->operation_state = WAITS_FOR_EARLIER;
  return true;
}

/* Decides the step. If sending the decision has failed, the future waits until the nodes have
 * reverted the step. */
static void decide_step(cleave_runtime *rt, api_future *f) {
  const api_context *c = f->context;
  cleave_error why = {.status = CLEAVE_OK};
  if (api_decide_step(rt, f, &why) != CLEAVE_OK || !c->has_failed || rt->undecided_context != c) {
    api_future_finish(rt, f, &why);
    return;
  }
  f->operation_state = WAITS_FOR_REVERT;
  f->cannot_cancel = true;
  f->next_check_ns = UINT64_MAX;
}

void api_step_advance(cleave_runtime *rt, api_future *f) {
  const api_context *c = f->context;
  if (f->operation_state == WAITS_FOR_REVERT && rt->undecided_context == c) return;
  if (c->has_failed) {
    api_future_finish(rt, f, &c->failure);
    return;
  }
  bool is_other_step_pending =
      rt->undecided_context && (rt->undecided_context != c || rt->is_reverting);
  if (is_other_step_pending || api_future_has_earlier_operation(rt, f)) return;
  if (have_votes_arrived(rt, f) && !c->has_failed) decide_step(rt, f);
}

void api_step_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  const api_context *c = rt->undecided_context ? rt->undecided_context : f->context;
  if (f->operation_state == WAITS_FOR_VOTES)
    api_fill_late_pass_error(rt, f, ret);
  else
    api_fail(ret, CLV_DEADLINE, "the step of context %s was not decided in time", c->name);
}

cleave_status api_copy_step_result(const api_future *f, void *ret, cleave_error *error) {
  cleave_step_result *to = ret;
  (void)error;
  const cleave_step_decision *d = &f->step_decision;
  *to = (cleave_step_result){
      .applied = d->applied, .norm = d->norm, .lr = d->lr, .number = d->number};
  return CLEAVE_OK;
}
