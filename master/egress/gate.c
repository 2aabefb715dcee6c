/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate decides whether a tensor may leave the master. libcleave calls the trainer's callback
 * may_send before it sends a tensor or a failure, on the thread that would send it, and this
 * callback calls clv_gate_check_sending. The sections of this file follow the decision: find the
 * row of the egress table, compare the tensor with the row, check the session's privacy, ask the
 * policy of the host, take the bytes from the record's allowance.
 *
 * Tensors that workers send to each other directly do not pass the gate; tensors that the master
 * relays do. The record counts direct tensors by the plan (clv_trainer_charge_direct_flows),
 * because the master does not take part in sending such tensors.
 */
#include <stdio.h>
#include <string.h>

#include "master/egress/egress.h"

/* Kind of the egress-table row to which a tensor of each cleave_sending_kind belongs. An input of
 * the loss has kind LABELS instead of INPUT (is_row_of_sending). The row of a piece of an
 * optimiser's state is the WEIGHTS row of its stage, as for a parameter. The gate never chooses the
 * STATE row, which `plan` prints and clv_blueprint_check_policy reads. A policy counts WEIGHTS and
 * STATE as `weights`, and find_state_flow tells the pieces apart. In program_gate.c a piece of an
 * optimiser's state has kind STATE. */
static const struct {
  clv_egress_kind kind;
  const char *text;     /* words that name such a tensor in messages */
  bool has_input_index; /* a module has one row of this kind for each of its inputs */
} sending_kinds[] = {[CLEAVE_SENDING_LEAF] = {CLV_EGRESS_INPUT, "an input of", true},
                     [CLEAVE_SENDING_VALUE] = {CLV_EGRESS_ACTIVATION, "the output of", false},
                     [CLEAVE_SENDING_GRADIENT] = {CLV_EGRESS_GRADIENT, "a gradient for", false},
                     [CLEAVE_SENDING_WEIGHTS] = {CLV_EGRESS_WEIGHTS, "state of", false},
                     [CLEAVE_SENDING_CACHED] = {CLV_EGRESS_CACHED, "rows to be kept of", true}};

static cleave_status set_denied(cleave_error *error) { return error->status = CLEAVE_DENIED; }

/* ---- find the row of a tensor, compare the tensor with the row ------------------------------- */

/* Returns the index of a module in the session; n_stages for the loss; -1 for an unknown module. */
static int find_stage_index(const clv_session_config *c, const char *module) {
  if (strcmp(module, CLV_LOSS_NAME) == 0) return (int)c->n_stages;
  for (size_t i = 0; i < c->n_stages; i++)
    if (strcmp(c->stages[i].name, module) == 0) return (int)i;
  return -1;
}

/* Returns true if the row has the kind, stage, input and receiver of the tensor that is to be
 * sent. */
static bool is_row_of_sending(const clv_gate *g, const clv_egress_row *r, const cleave_sending *s,
                              int stage) {
  clv_egress_kind kind = sending_kinds[s->kind].kind;
  if (kind == CLV_EGRESS_INPUT && stage == (int)g->config->n_stages) kind = CLV_EGRESS_LABELS;
  return r->kind == kind && (int)r->stage == stage &&
         (!sending_kinds[s->kind].has_input_index || r->input == s->input) &&
         strcmp(g->config->workers[r->worker].name, s->worker) == 0;
}

/* Returns true if dtype and shape of the tensor agree with the row; the first dimension may have
 * any size up to max_samples, times max_positions if sequences are packed. A WEIGHTS row has no
 * dtype and shape: find_state_flow finds its pieces by name. */
static bool has_same_type_and_shape(const clv_gate *g, const clv_egress_row *r,
                                    const cleave_sending *s) {
  if (r->kind == CLV_EGRESS_WEIGHTS) return true;
  if ((int)r->dtype != (int)s->dtype || r->shape.rank != s->rank) return false;
  for (int i = 1; i < s->rank; i++)
    if (r->shape.dim[i] != s->shape[i]) return false;
  return s->rank == 0 || s->shape[0] <= g->max_samples * CLV_MAX(r->max_positions, 1);
}

static const clv_egress_row *find_row(const clv_gate *g, const cleave_sending *s, int stage) {
  for (size_t k = 0; k < g->n_rows; k++)
    if (is_row_of_sending(g, &g->rows[k], s, stage) && has_same_type_and_shape(g, &g->rows[k], s))
      return &g->rows[k];
  return NULL;
}

/* Returns the flow (balance of bytes) of a piece of state; NULL: the trainer has not announced the
 * piece. The search begins at the piece that was found last, because a large piece is sent in
 * several parts. */
static clv_egress_flow *find_state_flow(clv_gate *g, const cleave_sending *s, int stage) {
  for (size_t i = 0; i < g->n_state_flows; i++) {
    size_t at = (g->next_state_flow + i) % g->n_state_flows;
    clv_state_flow *f = &g->state_flows[at];
    if ((int)f->stage != stage || f->is_optimizer_state != s->optimizer ||
        strcmp(f->name, s->name) != 0)
      continue;
    g->next_state_flow = at;
    return f->flow;
  }
  return NULL;
}

/* Refuses a tensor that matches no row of the egress table, or a piece of state that the trainer
 * has not announced. */
static cleave_status deny_unplanned_tensor(const clv_gate *g, const cleave_sending *s,
                                           cleave_error *error) {
  clv_shape shape = {.rank = s->rank};
  char text[160], samples_text[64] = "";
  memcpy(shape.dim, s->shape, sizeof shape.dim);
  if (s->kind != CLEAVE_SENDING_WEIGHTS)
    snprintf(samples_text, sizeof samples_text, ", for at most %lld samples",
             (long long)g->max_samples);
  snprintf(error->text, sizeof error->text,
           "egress refused: %s stage '%.60s'%s%.60s, %s %.100s, is not in the plan's table for "
           "%.60s%s: compare it with the table that `plan` prints",
           sending_kinds[s->kind].text, s->module, *s->name ? ", " : "", s->name,
           clv_dtype_name((clv_dtype)s->dtype), clv_shape_format(&shape, text, sizeof text),
           s->worker, samples_text);
  return set_denied(error);
}

/* ---- check the findings against the session's privacy and the policy ------------------------- */

/* Refuses a tensor with findings that the session's privacy does not permit. A finding that only
 * the look (the measurement before the run) has made does not count if the look is not certain of
 * it (g->uncertain_findings). */
static cleave_status check_privacy(const clv_gate *g, const clv_egress_row *r,
                                   const cleave_sending *s, cleave_error *error) {
  char findings_text[CLV_FINDINGS_TEXT_BYTES];
  clv_findings uncertain_findings = r->look_findings & g->uncertain_findings;
  clv_findings forbidden_findings =
      clv_privacy_forbidden_findings(g->config, r->findings & ~uncertain_findings);
  if (!forbidden_findings) return CLEAVE_OK;
  snprintf(error->text, sizeof error->text,
           "egress refused: a tensor of stage '%s' would show %s to %s, which the session's "
           "privacy does not permit",
           s->module, clv_findings_format(forbidden_findings, findings_text), s->worker);
  return set_denied(error);
}

/* Asks the policy whether the tensor may be sent, with its actual dtype, shape and bytes instead of
 * those of the row. */
static cleave_status check_policy(const clv_gate *g, const clv_egress_row *r,
                                  const cleave_sending *s, cleave_error *error) {
  clv_policy_tensor t = clv_egress_row_tensor(g->config, r);
  clv_err reason;
  t.dtype = (clv_dtype)s->dtype;
  t.shape.rank = s->rank;
  memcpy(t.shape.dim, s->shape, sizeof t.shape.dim);
  if (clv_policy_charge(g->policy, &t, s->bytes, &reason) == CLV_OK) return CLEAVE_OK;
  snprintf(error->text, sizeof error->text, "egress refused: %.440s", reason.text);
  return set_denied(error);
}

/* ---- take the bytes from the record's allowance ---------------------------------------------- */

/* Takes the tensor's bytes from the allowance, the bytes that the egress record has granted to the
 * tensor's flow. */
static cleave_status charge_to_flow(clv_egress_flow *f, const cleave_sending *s,
                                    cleave_error *error) {
  clv_err err;
  if (clv_egress_charge(f, s->bytes, &err) == CLV_OK) return CLEAVE_OK;
  error->status = (cleave_status)err.code;
  snprintf(error->text, sizeof error->text, "nothing leaves without a record: %.400s", err.text);
  return error->status;
}

/* Takes the bytes of a failure report from the flow (balance of bytes) of its receiver. A report
 * has an error code and names the failed module or call, and no row of the egress table. Refuses
 * the report if its receiver has no flow. */
static cleave_status charge_failure_report(const clv_gate *g, const cleave_sending *s,
                                           cleave_error *error) {
  for (size_t i = 0; g->failure_flows && i < g->config->n_workers; i++)
    if (strcmp(g->config->workers[i].name, s->worker) == 0 && g->failure_flows[i])
      return charge_to_flow(g->failure_flows[i], s, error);
  snprintf(error->text, sizeof error->text, "egress refused: no record of failures for %s",
           s->worker);
  return set_denied(error);
}

/* ---- the decision whether a tensor may leave ------------------------------------------------- */

cleave_status clv_gate_check_sending(void *gate, const cleave_sending *s, cleave_error *error) {
  clv_gate *g = gate;
  int stage = find_stage_index(g->config, s->module);
  cleave_status status;
  if (s->kind == CLEAVE_SENDING_FAILURE) return charge_failure_report(g, s, error);
  const clv_egress_row *r = find_row(g, s, stage);
  if (!r) return deny_unplanned_tensor(g, s, error);
  clv_egress_flow *f =
      r->kind == CLV_EGRESS_WEIGHTS ? find_state_flow(g, s, stage) : g->flows[r - g->rows].flow;
  if ((status = check_privacy(g, r, s, error)) != CLEAVE_OK) return status;
  if (!f) return deny_unplanned_tensor(g, s, error);
  if ((status = check_policy(g, r, s, error)) != CLEAVE_OK) return status;
  return charge_to_flow(f, s, error);
}
