/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the look of a command (clv_look_run), which measures, before anything is sent, what an
 * observer could read from the tensors that the command would send. `plan` and `check` run it with
 * secret weights drawn only for the look. `train` uses the initial weights of the run, or its
 * newest checkpoint if it resumes. `eval` and `predict` use their checkpoint.
 */
#include "master/run/run_int.h"

static clv_code take_look(clv_run *r, const clv_checkpoint *c, bool is_preview, clv_err *err) {
  bool only_evaluates = r->purpose == RUN_EVALUATION;
  const clv_run_data *d = &r->data;
  const clv_look_options o = {.dataset = only_evaluates ? d->test : d->train,
                              .rows = only_evaluates ? &d->test_rows : &d->train_rows,
                              .checkpoint = c,
                              .is_preview = is_preview,
                              .only_evaluates = only_evaluates};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  CLV_TRY(clv_look_run(r->blueprint, &o, &r->look, err));
  clv_look_append_summary(&r->look, &text);
  if (r->look.has_run && text.data) clv_run_lock_note_look(r->lock, text.data);
  return clv_run_check_policy(r, err);
}

clv_code clv_run_take_look(clv_run *r, const clv_checkpoint *c, clv_err *err) {
  return take_look(r, c, false, err);
}

clv_code clv_run_take_look_in_plan(clv_run *r, clv_err *err) {
  return take_look(r, NULL, true, err);
}

clv_code clv_run_take_look_before_training(clv_run *r, clv_err *err) {
  CLV_AUTO(clv_checkpoint_freep) clv_checkpoint *c = NULL;
  if (r->is_resumed) {
    CLV_TRY(clv_run_load_start_checkpoint(r, &c, err));
    CLV_TRY(clv_run_check_moved_layers(r, c, err));
  }
  return take_look(r, c, false, err);
}
