/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the blueprint of a run and checks it against session and policy (clv_run_make_blueprint).
 */
#include <stdio.h>

#include "master/run/run_int.h"

/* Returns which tensors the command will send if it runs to its end. clv_blueprint_check_policy
 * checks these against the policy; while the command runs, the gate, which every tensor passes,
 * counts the bytes that are actually sent. */
static clv_planned_sends list_planned_sends(const clv_run *r) {
  if (r->purpose == RUN_EVALUATION) {
    clv_planned_sends s = clv_planned_sends_make(&r->data, CLV_COMMAND_EVALUATES);
    s.n_eval_records *= CLV_MAX(r->o->dropout_samples, UINT64_C(1));
    return s;
  }
  return clv_planned_sends_make(&r->data, r->o->resume ? CLV_COMMAND_RESUMES : CLV_COMMAND_TRAINS);
}

/* Finds the layers at the master whose weights a worker knows from an earlier session. Such layers
 * hide nothing in this session. */
static clv_code find_known_layers(clv_run *r, clv_err *err) {
  clv_blueprint *b = r->blueprint;
  CLV_TRY(clv_run_find_key(r, err));
  b->run_secret = r->has_secret ? &r->secret : NULL;
  return clv_blueprint_read_ledger(b, b->run_secret, err);
}

clv_code clv_run_check_policy(clv_run *r, clv_err *err) {
  const clv_planned_sends sends = list_planned_sends(r);
  if (r->look.has_run) clv_blueprint_add_look(r->blueprint, &r->look);
  if (!r->describes_only) CLV_TRY(clv_blueprint_check_privacy(r->blueprint, err));
  return clv_blueprint_check_policy(r->blueprint, &sends, err);
}

void clv_run_print_later_refusals(const clv_run *r) {
  static const struct {
    clv_command_kind kind;
    const char *command_text;
  } later_commands[] = {{CLV_COMMAND_RESUMES, "train --resume"},
                        {CLV_COMMAND_EVALUATES, "eval and predict"}};
  for (size_t i = 0; i < CLV_COUNT(later_commands); i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    const clv_planned_sends planned_sends =
        clv_planned_sends_make(&r->data, later_commands[i].kind);
    clv_err reason;
    if (later_commands[i].kind == CLV_COMMAND_EVALUATES && !r->data.test) continue;
    if (clv_blueprint_check_policy(r->blueprint, &planned_sends, &reason) == CLV_OK) continue;
    bool is_recovery =
        later_commands[i].kind == CLV_COMMAND_RESUMES && r->config->recovery.use == CLV_RECOVERY_ON;
    clv_bytes_printf(
        &text, "the policy will refuse %s%s: %s", later_commands[i].command_text,
        is_recovery ? ", so a worker that is lost after the first checkpoint ends the run" : "",
        reason.text);
    if (!text.failed) clv_run_warn(r, CLV_LOG_WARN, "policy", text.data);
  }
}

void clv_run_print_folds(const clv_run *r) {
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  const clv_planned_sends sends = clv_planned_sends_make(&r->data, CLV_COMMAND_TRAINS);
  const clv_repeated_runs repeats = {
      .n_runs = r->config->data.folds,
      .epoch_bytes = r->config->data.folds * clv_blueprint_epoch_bytes(r->blueprint, &sends),
      .has_same_initial_weights = r->config->train.seed.is_given};
  if (!repeats.n_runs) return;
  clv_repeated_runs_describe(&repeats, r->o->json, &text);
  if (!text.failed) printf("%s%s", r->o->json ? "" : "cross-validation: ", text.data);
}

clv_code clv_run_make_blueprint(clv_run *r, clv_err *err) {
  const clv_dataset *d = r->data.train ? r->data.train : r->data.test;
  clv_blueprint *earlier_blueprint = clv_steal(&r->blueprint);
  clv_code code = clv_blueprint_new_of_data(r->config, d, &r->blueprint, err);
  if (code == CLV_OK && earlier_blueprint) {
    r->blueprint->moved_layers = earlier_blueprint->moved_layers;
    earlier_blueprint->moved_layers = (clv_moved_layers){0};
  }
  clv_blueprint_free(earlier_blueprint);
  CLV_TRY(code);
  r->blueprint->policy = r->policy;
  CLV_TRY(find_known_layers(r, err));
  CLV_TRY(clv_run_data_find_label_order(&r->data, r->blueprint, err));
  return clv_run_check_policy(r, err);
}
