/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles rows of the egress table. clv_egress_record_kind returns the kind under which the record
 * counts a row; clv_egress_row_tensor returns the row in the form that a policy checks. The plan,
 * the gate and the trainer call both.
 */
#include "master/egress/egress.h"

bool clv_egress_is_state(clv_egress_kind kind) {
  return kind == CLV_EGRESS_WEIGHTS || kind == CLV_EGRESS_STATE;
}

clv_egress_kind clv_egress_record_kind(clv_egress_kind kind, clv_findings findings) {
  if (kind != CLV_EGRESS_ACTIVATION) return kind;
  if (findings & CLV_FINDING_RAW_INPUT) return CLV_EGRESS_INPUT;
  return findings & CLV_FINDING_TOKENS ? CLV_EGRESS_TOKENS : CLV_EGRESS_ACTIVATION;
}

clv_policy_tensor clv_egress_row_tensor(const clv_session_config *c, const clv_egress_row *r) {
  const clv_remote_spec *w = &c->workers[r->worker];
  return (clv_policy_tensor){.name = r->name,
                             .kind = r->kind,
                             .findings = r->findings,
                             .n_hiding_layers = r->n_hiding_layers,
                             .worker = w->name,
                             .identity = w->identity,
                             .dtype = r->dtype,
                             .shape = r->shape};
}
