/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks a blueprint against the policy of the host, before a run sends anything
 * (clv_blueprint_check_policy): each row of the egress table with its largest shape, tensors that
 * workers send each other, the workers, and the bytes of an epoch. The gate, which every sent
 * tensor passes, checks each tensor against the same policy again.
 */
#include <stdio.h>

#include "master/plan/plan_int.h"

_Static_assert(CLV_LOOK_PIXELS == 0 && CLV_LOOK_TOKENS == 1 && CLV_LOOK_LABELS == 2 &&
                   CLV_LOOK_FEATURES == 3 && CLV_LOOK_GROUPS == 4,
               "one numbering of readers");

/* ---- checking the rows of the egress table --------------------------------------------------- */

static bool is_sent_in_evaluation(const clv_egress_row *r) {
  return r->kind == CLV_EGRESS_ACTIVATION || r->kind == CLV_EGRESS_CACHED ||
         r->kind == CLV_EGRESS_INPUT;
}

/* True if the command sends the tensor of the row. Weights are sent by a resume, by an evaluation,
 * and by a new run whose initial weights are in a file; moments of the optimiser only by a
 * resume. */
static bool is_sent(const clv_blueprint *b, const clv_egress_row *r, const clv_planned_sends *s) {
  if (r->kind == CLV_EGRESS_STATE) return s->sends_optimizer;
  if (r->kind == CLV_EGRESS_WEIGHTS)
    return s->sends_weights || clv_stage_has_master_weights(&b->config->stages[r->stage]) ||
           b->stages[r->stage].adapter_folder;
  bool is_cached = b->has_cache && r->stage == 0 && s->n_train_records;
  if (r->kind == CLV_EGRESS_CACHED) return is_cached;
  return s->n_train_records || (s->n_eval_records && is_sent_in_evaluation(r));
}

static clv_code check_row(const clv_blueprint *b, const clv_egress_row *r,
                          const clv_planned_sends *s, clv_err *err) {
  clv_policy_tensor t = clv_egress_row_tensor(b->config, r);
  if (!is_sent(b, r, s)) return CLV_OK;
  if (s->n_train_records || clv_egress_is_state(r->kind))
    CLV_TRY(clv_policy_check_tensor(b->policy, &t, err));
  if (!s->n_eval_records || !is_sent_in_evaluation(r)) return CLV_OK;
  t.shape.dim[0] = b->eval_size * CLV_MAX(r->max_positions, 1);
  return clv_policy_check_tensor(b->policy, &t, err);
}

clv_egress_row clv_blueprint_hop_row(const clv_blueprint *b, uint32_t stage, bool is_gradient) {
  const clv_stage_plan *sender = &b->stages[stage], *receiver = &b->stages[stage + 1];
  const clv_node *out = &sender->graph->nodes[sender->graph->output_node];
  char findings_text[CLV_FINDINGS_TEXT_BYTES];
  clv_egress_row r = {
      .kind = is_gradient ? CLV_EGRESS_GRADIENT : CLV_EGRESS_ACTIVATION,
      .stage = stage,
      .worker = is_gradient ? sender->worker : receiver->worker,
      .dtype = out->dtype,
      .shape = out->shape,
      .max_positions = out->max_positions,
      .findings = is_gradient ? sender->gradient_findings : sender->hop_findings,
      .n_hiding_layers = is_gradient ? sender->n_head_layers : sender->n_front_layers};
  clv_findings_format(r.findings, findings_text);
  snprintf(r.name, sizeof r.name, "direct %s %s stage '%s'",
           r.findings ? findings_text : clv_egress_kind_name(r.kind), is_gradient ? "for" : "of",
           b->config->stages[stage].name);
  return r;
}

/* Checks a tensor that one worker sends directly to another, which has no row in the egress table.
 * For a gradient the policy must permit gradient_findings of the stage. For an output it must
 * permit hop_findings, or output_findings, for which policies were written up to release 0.8. */
static clv_code check_hop(const clv_blueprint *b, uint32_t i, bool is_gradient, clv_err *err) {
  if (!b->stages[i].sends_directly || (is_gradient && !b->stages[i + 1].input_needs_grad))
    return CLV_OK;
  clv_egress_row r = clv_blueprint_hop_row(b, i, is_gradient);
  clv_policy_tensor t = clv_egress_row_tensor(b->config, &r);
  if (!is_gradient) t.findings = b->stages[i].output_findings;
  if (!is_gradient && clv_policy_check_tensor(b->policy, &t, err) == CLV_OK) return CLV_OK;
  t.findings = r.findings;
  return clv_policy_check_tensor(b->policy, &t, err);
}

/* Checks that the policy names each worker, also a worker to which the master sends no tensor. */
static clv_code check_workers(const clv_blueprint *b, clv_err *err) {
  for (size_t i = 0; i < b->config->n_workers; i++) {
    const clv_policy_tensor t = {.name = "descriptions of stages",
                                 .kind = CLV_EGRESS_FAILURE,
                                 .worker = b->config->workers[i].name,
                                 .identity = b->config->workers[i].identity};
    if (b->is_worker_used[i]) CLV_TRY(clv_policy_check_tensor(b->policy, &t, err));
  }
  return CLV_OK;
}

/* ---- counting the bytes of an epoch ---------------------------------------------------------- */

/* Returns the bytes of a row in an epoch. r->bytes_per_step is for a full batch, so it is scaled to
 * the records of the epoch. */
static double estimate_row_epoch_bytes(const clv_blueprint *b, const clv_egress_row *r,
                                       const clv_planned_sends *s) {
  double bytes_per_sample = (double)r->bytes_per_step / (double)b->config->train.batch;
  if (!is_sent(b, r, s) || r->is_for_spare) return 0;
  if (clv_egress_is_state(r->kind)) return (double)r->bytes_per_step;
  return bytes_per_sample *
         (double)(s->n_train_records + (is_sent_in_evaluation(r) ? s->n_eval_records : 0));
}

uint64_t clv_blueprint_epoch_bytes(const clv_blueprint *b, const clv_planned_sends *sends) {
  double bytes = 0;
  for (size_t i = 0; i < b->n_egress; i++)
    bytes += estimate_row_epoch_bytes(b, &b->egress[i], sends);
  return bytes < 1e18 ? (uint64_t)bytes : UINT64_MAX;
}

static clv_code check_look_readings(const clv_blueprint *b, clv_err *err) {
  for (int k = 0; b->look.has_run && k < CLV_LOOK_N_READERS; k++) {
    const clv_look_result *reader_result = &b->look.results[k];
    const clv_policy_look_result r = {
        .reader = k,
        .share = reader_result->state == CLV_LOOK_COULD_NOT_RUN ? -1 : reader_result->figure,
        .why_not_run = reader_result->reason};
    CLV_TRY(clv_policy_check_look_result(b->policy, &r, err));
  }
  return CLV_OK;
}

clv_planned_sends clv_planned_sends_make(const clv_run_data *d, clv_command_kind command_kind) {
  bool is_evaluation = command_kind == CLV_COMMAND_EVALUATES,
       starts_run = command_kind == CLV_COMMAND_TRAINS;
  uint64_t n_test_records =
      d->test && (is_evaluation || clv_dataset_has_labels(d->test)) ? d->test_rows.n : 0;
  return (clv_planned_sends){
      .sends_weights = !starts_run,
      .sends_optimizer = command_kind == CLV_COMMAND_RESUMES,
      .n_train_records = is_evaluation ? 0 : d->train_rows.n,
      .n_eval_records = n_test_records + (is_evaluation ? 0 : d->validation_rows.n)};
}

clv_code clv_blueprint_check_policy(const clv_blueprint *b, const clv_planned_sends *sends,
                                    clv_err *err) {
  if (!b->policy) return CLV_OK;
  CLV_TRY(check_workers(b, err));
  CLV_TRY(check_look_readings(b, err));
  for (size_t i = 0; i < b->n_egress; i++) CLV_TRY(check_row(b, &b->egress[i], sends, err));
  for (uint32_t i = 0; i + 1 < b->n_stages; i++) {
    CLV_TRY(check_hop(b, i, false, err));
    CLV_TRY(check_hop(b, i, true, err));
  }
  return clv_policy_check_epoch(b->policy, clv_blueprint_epoch_bytes(b, sends), err);
}
