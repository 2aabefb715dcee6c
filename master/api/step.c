/* SPDX-License-Identifier: Apache-2.0
 *
 * A step as the program asks for it: nodes whose gradients it has written vote again first.
 */
#include "master/api/gradients_int.h"

cleave_status cleave_step(cleave_runtime *runtime, cleave_optimizer *optimizer,
                          cleave_context handle, uint64_t deadline_ms, cleave_stepped *ret,
                          cleave_error *error) {
  GIVEN(runtime, optimizer);
  LOCKED(runtime);
  uint64_t until = api_until(runtime, deadline_ms);
  api_send_step(runtime);
  PASS(api_take_late_error(runtime, error));
  PASS(api_judge_written(runtime, handle, deadline_ms, until, error));
  return api_take_step(optimizer, handle, deadline_ms, until, ret, error);
}
