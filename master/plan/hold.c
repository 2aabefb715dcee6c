/* SPDX-License-Identifier: Apache-2.0
 *
 * A blueprint held to the policy of the host, before anything is sent: each row of the table at its
 * largest, what workers send each other, who takes part, and the bytes of an epoch. The gate holds
 * each tensor to the same policy again.
 */
#include <stdio.h>

#include "master/plan/plan_int.h"

_Static_assert((int)CLV_SHOWS_PICTURE == (int)CLV_POLICY_PICTURE &&
                   (int)CLV_SHOWS_RAW_INPUT == (int)CLV_POLICY_RAW &&
                   (int)CLV_SHOWS_LABELS == (int)CLV_POLICY_LABELS,
               "one numbering of findings");

static clv_egress_kind kind_of(const clv_blueprint *b, const clv_egress_row *r) {
  static const clv_egress_kind kinds[] = {[CLEAVE_SENDING_VALUE] = CLV_EGRESS_ACTIVATION,
                                          [CLEAVE_SENDING_GRADIENT] = CLV_EGRESS_GRADIENT,
                                          [CLEAVE_SENDING_WEIGHTS] = CLV_EGRESS_WEIGHTS,
                                          [CLEAVE_SENDING_CACHED] = CLV_EGRESS_CACHED};
  if (r->kind != CLEAVE_SENDING_LEAF) return kinds[r->kind];
  return r->stage == b->n_stages ? CLV_EGRESS_LABELS : CLV_EGRESS_INPUT;
}

clv_policy_tensor clv_egress_row_tensor(const clv_blueprint *b, const clv_egress_row *r) {
  const clv_remote_spec *w = &b->config->workers[r->worker];
  return (clv_policy_tensor){.name = r->name,
                             .kind = kind_of(b, r),
                             .shows = r->shows,
                             .layers_at_home = r->layers_at_home,
                             .worker = w->name,
                             .identity = w->identity,
                             .dtype = r->dtype,
                             .shape = r->shape};
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool is_evaluated(const clv_blueprint *b, const clv_egress_row *r) {
  return r->kind == CLEAVE_SENDING_VALUE || r->kind == CLEAVE_SENDING_CACHED ||
         (r->kind == CLEAVE_SENDING_LEAF && r->stage < b->n_stages);
}

/* State goes out on a resume, for an evaluation, and where a file has the first weights. */
static bool is_sent(const clv_blueprint *b, const clv_egress_row *r, const clv_sends *s) {
  if (r->kind == CLEAVE_SENDING_WEIGHTS)
    return s->weights || clv_stage_pushes(&b->config->stages[r->stage]) ||
           b->stages[r->stage].adapters;
  bool cached = b->caches && r->stage == 0 && s->trained;
  if (r->kind == CLEAVE_SENDING_CACHED) return cached;
  return s->trained || (s->evaluated && is_evaluated(b, r));
}

static clv_code hold_row(const clv_blueprint *b, const clv_egress_row *r, const clv_sends *s,
                         clv_err *err) {
  clv_policy_tensor t = clv_egress_row_tensor(b, r);
  if (!is_sent(b, r, s)) return CLV_OK;
  if (s->trained || r->kind == CLEAVE_SENDING_WEIGHTS)
    CLV_TRY(clv_policy_permits(b->policy, &t, err));
  if (!s->evaluated || !is_evaluated(b, r)) return CLV_OK;
  t.shape.dim[0] = b->eval_size * CLV_MAX(r->places, 1);
  return clv_policy_permits(b->policy, &t, err);
}

/* What goes from worker to worker is in no row, and the policy is of it as well. */
static clv_code hold_hop(const clv_blueprint *b, uint32_t i, clv_err *err) {
  const clv_stage_plan *from = &b->stages[i], *to = &b->stages[i + 1];
  const clv_node *out = &from->graph->nodes[from->graph->output];
  clv_egress_row r = {.kind = CLEAVE_SENDING_VALUE,
                      .stage = i,
                      .worker = to->worker,
                      .dtype = out->dtype,
                      .shape = out->shape,
                      .shows = from->shows,
                      .layers_at_home = from->front_layers};
  snprintf(r.name, sizeof r.name, "direct activation of stage '%s'", b->config->stages[i].name);
  clv_policy_tensor t = clv_egress_row_tensor(b, &r);
  CLV_TRY(clv_policy_permits(b->policy, &t, err));
  if (!to->input_needs_grad) return CLV_OK;
  r.kind = CLEAVE_SENDING_GRADIENT;
  r.worker = from->worker;
  r.shows = from->gradient_shows;
  r.layers_at_home = from->head_layers;
  snprintf(r.name, sizeof r.name, "direct gradient for stage '%s'", b->config->stages[i].name);
  t = clv_egress_row_tensor(b, &r);
  return clv_policy_permits(b->policy, &t, err);
}

/* One that gets its tensors from other workers, or none at all, is named by the policy too. */
static clv_code hold_workers(const clv_blueprint *b, clv_err *err) {
  for (size_t i = 0; i < b->config->n_workers; i++) {
    const clv_policy_tensor t = {.name = "descriptions of stages",
                                 .kind = CLV_EGRESS_FAILURE,
                                 .worker = b->config->workers[i].name,
                                 .identity = b->config->workers[i].identity};
    if (b->worker_used[i]) CLV_TRY(clv_policy_permits(b->policy, &t, err));
  }
  return CLV_OK;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A row's bytes of a step are those of a whole batch. */
static double epoch_bytes(const clv_blueprint *b, const clv_egress_row *r, const clv_sends *s) {
  double sample = (double)r->bytes_per_step / (double)b->config->train.batch;
  if (!is_sent(b, r, s)) return 0;
  if (r->kind == CLEAVE_SENDING_WEIGHTS) return (double)r->bytes_per_step;
  return sample * (double)(s->trained + (is_evaluated(b, r) ? s->evaluated : 0));
}

clv_code clv_blueprint_hold(const clv_blueprint *b, const clv_sends *sends, clv_err *err) {
  double bytes = 0;
  if (!b->policy) return CLV_OK;
  CLV_TRY(hold_workers(b, err));
  for (size_t i = 0; i < b->n_egress; i++) {
    CLV_TRY(hold_row(b, &b->egress[i], sends, err));
    bytes += epoch_bytes(b, &b->egress[i], sends);
  }
  for (uint32_t i = 0; i + 1 < b->n_stages; i++)
    if (b->stages[i].direct) CLV_TRY(hold_hop(b, i, err));
  return clv_policy_permits_epoch(b->policy, bytes < 1e18 ? (uint64_t)bytes : UINT64_MAX, err);
}
