/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans one run of several, such as those of a sweep: checks whether it can be trained, and
 * computes the bytes that it would send.
 */
#include "master/run/run_int.h"

clv_exit_code clv_run_preview(const clv_session_config *config, clv_run_outline *ret) {
  const clv_run_options o = {.is_quick = true};
  CLV_AUTO(clv_run_done) clv_run r = {.config = config, .o = &o};
  clv_err err;
  if (clv_run_open_blueprint(&r, true, CLV_SCAN_NOTHING, &err) != CLV_OK)
    return clv_run_fail(&r, clv_run_setup_exit_code(&err), &err);
  const clv_planned_sends training_sends = clv_planned_sends_make(&r.data, CLV_COMMAND_TRAINS),
                          resumed_sends = clv_planned_sends_make(&r.data, CLV_COMMAND_RESUMES);
  *ret = (clv_run_outline){
      .epoch_bytes = clv_blueprint_epoch_bytes(r.blueprint, &training_sends),
      .may_resume = clv_blueprint_check_policy(r.blueprint, &resumed_sends, &err) == CLV_OK};
  return CLV_EXIT_OK;
}
