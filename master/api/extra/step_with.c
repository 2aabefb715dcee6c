/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps for programs that also step parameters of their own with the same decision. The program
 * gives the sum of squares of its gradients, and gets the decision and the clipping factor.
 */
#include "master/api/extra/extra_int.h"

static cleave_status copy_decision(const api_future *f, void *ret, cleave_error *error) {
  cleave_step_decision *to = ret;
  (void)error;
  *to = f->step_decision;
  to->size = sizeof *to;
  return CLEAVE_OK;
}

static const api_operation step_operation = {.name = "a step",
                                             .begin = api_step_begin,
                                             .advance = api_step_advance,
                                             .fill_deadline_error = api_step_deadline_error,
                                             .copy_result = copy_decision,
                                             .runs_in_order = true};

static cleave_status check_result(const cleave_step_decision *ret, cleave_error *error) {
  if (!ret || ret->size == sizeof *ret) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "a cleave_step_decision of %zu bytes; its size is %zu",
                  ret->size, sizeof *ret);
}

static cleave_status check_options(const cleave_step_options *o, cleave_error *error) {
  if (!(o->other_square < 0)) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "other_square is %g; a sum of squares is not negative",
                  o->other_square);
}

cleave_status cleave_step_with(cleave_runtime *runtime, cleave_optimizer *optimizer,
                               cleave_context context, const cleave_step_options *options,
                               cleave_step_decision *ret, cleave_error *error) {
  NOT_NULL(runtime, optimizer);
  COPY_OPTIONS_IN(cleave_step_options, o, options);
  TRY_API(check_options(&o, error));
  TRY_API(check_result(ret, error));
  api_arguments a = {
      .deadline_ms = o.deadline_ms, .context = context, .optimizer = optimizer, .step_options = &o};
  return api_run_blocking(runtime, &step_operation, &a, ret, error);
}

cleave_status cleave_step_with_async(cleave_runtime *runtime, cleave_optimizer *optimizer,
                                     cleave_context context, const cleave_step_options *options,
                                     cleave_future *ret_future, cleave_error *error) {
  NOT_NULL(runtime, optimizer, ret_future);
  COPY_OPTIONS_IN(cleave_step_options, o, options);
  TRY_API(check_options(&o, error));
  api_arguments a = {
      .deadline_ms = o.deadline_ms, .context = context, .optimizer = optimizer, .step_options = &o};
  return api_run_async(runtime, &step_operation, &a, ret_future, error);
}

cleave_status cleave_future_step_decision(cleave_runtime *runtime, cleave_future future,
                                          cleave_step_decision *ret, cleave_error *error) {
  NOT_NULL(runtime, ret);
  TRY_API(check_result(ret, error));
  return api_future_take_result(runtime, future, "decision on a step", copy_decision, ret, error);
}
