/* SPDX-License-Identifier: Apache-2.0
 *
 * What may leave: the gate passes what a row of the egress table names, and the record has an
 * allowance for each row before its first byte does. State has one for each piece by name. What
 * workers send each other passes no gate: it is recorded as it was planned.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/train/train_int.h"

/* ---- the gate -------------------------------------------------------------------------------- */

static int stage_of(const clv_blueprint *b, const char *module) {
  if (strcmp(module, CLV_LOSS_NAME) == 0) return (int)b->n_stages;
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (strcmp(b->config->stages[i].name, module) == 0) return (int)i;
  return -1;
}

static bool row_fits(const clv_blueprint *b, const clv_egress_row *r, const cleave_sending *s) {
  if (r->kind == CLEAVE_SENDING_WEIGHTS) return true;
  if ((int)r->dtype != (int)s->dtype || r->shape.rank != s->rank) return false;
  for (int i = 1; i < s->rank; i++)
    if (r->shape.dim[i] != s->shape[i]) return false;
  return s->rank == 0 ||
         s->shape[0] <= CLV_MAX(b->micro_size, b->eval_size) * CLV_MAX(r->places, 1);
}

static bool is_of_an_input(cleave_sending_kind kind) {
  return kind == CLEAVE_SENDING_LEAF || kind == CLEAVE_SENDING_CACHED;
}

static bool row_means(const clv_blueprint *b, const clv_egress_row *r, const cleave_sending *s,
                      int stage) {
  return r->kind == s->kind && (int)r->stage == stage &&
         (!is_of_an_input(r->kind) || r->input == s->input) &&
         strcmp(b->config->workers[r->worker].name, s->worker) == 0;
}

static cleave_status refuse(const cleave_sending *s, cleave_error *error) {
  static const char *const kinds[] = {[CLEAVE_SENDING_LEAF] = "an input of",
                                      [CLEAVE_SENDING_VALUE] = "the output of",
                                      [CLEAVE_SENDING_GRADIENT] = "a gradient for",
                                      [CLEAVE_SENDING_WEIGHTS] = "state of",
                                      [CLEAVE_SENDING_CACHED] = "rows to be kept of"};
  clv_shape shape = {.rank = s->rank};
  char text[160];
  memcpy(shape.dim, s->shape, sizeof shape.dim);
  error->status = CLEAVE_DENIED;
  snprintf(error->text, sizeof error->text,
           "egress refused: %s stage '%s', %s, is not in the plan's table for %s", kinds[s->kind],
           s->module, clv_shape_format(&shape, text, sizeof text), s->worker);
  return CLEAVE_DENIED;
}

/* A piece of state that was expected. */
static clv_egress_flow *state_flow_of(clv_trainer *t, const cleave_sending *s, int stage) {
  clv_trainer_egress *e = &t->egress;
  for (size_t i = 0; i < e->n_states; i++) {
    clv_state_flow *f = &e->states[(e->next_state + i) % e->n_states];
    if ((int)f->stage != stage || f->optimizer != s->optimizer || strcmp(f->name, s->name) != 0)
      continue;
    e->next_state = (e->next_state + i) % e->n_states; /* more pieces of it may follow */
    return f->flow;
  }
  return NULL;
}

static const clv_egress_row *row_of(const clv_blueprint *b, const cleave_sending *s) {
  int stage = stage_of(b, s->module);
  for (size_t k = 0; k < b->n_egress; k++)
    if (row_means(b, &b->egress[k], s, stage) && row_fits(b, &b->egress[k], s))
      return &b->egress[k];
  return NULL;
}

/* Whatever row it stands in. */
static cleave_status refuse_shown(const cleave_sending *s, clv_findings forbidden,
                                  cleave_error *error) {
  char words[CLV_FINDINGS_TEXT];
  error->status = CLEAVE_DENIED;
  snprintf(error->text, sizeof error->text,
           "egress refused: a tensor of stage '%s' would show %s to %s, which the session's "
           "privacy does not permit",
           s->module, clv_findings_words(forbidden, words), s->worker);
  return CLEAVE_DENIED;
}

cleave_status clv_trainer_admit(const clv_blueprint *b, const cleave_sending *s,
                                const clv_egress_row **ret, cleave_error *error) {
  const clv_egress_row *r = row_of(b, s);
  if (!r) return refuse(s, error);
#ifndef CLV_MUTATE_GATE_SHOWS
  clv_findings said = r->looked & b->look.uncertain;
  clv_findings forbidden = clv_privacy_forbids(b->config, r->shows & ~said);
  if (forbidden) return refuse_shown(s, forbidden, error);
#endif
  *ret = r;
  return CLEAVE_OK;
}

static clv_egress_flow *flow_of(clv_trainer *t, const clv_egress_row *r, const cleave_sending *s) {
  return s->kind == CLEAVE_SENDING_WEIGHTS ? state_flow_of(t, s, (int)r->stage)
                                           : t->egress.rows[r - t->b->egress].flow;
}

/* What the table names is held to the policy as well, at its size and with its bytes. */
static cleave_status hold(const clv_blueprint *b, const clv_egress_row *r, const cleave_sending *s,
                          cleave_error *error) {
  clv_policy_tensor t = clv_egress_row_tensor(b, r);
  clv_err why;
  t.dtype = (clv_dtype)s->dtype;
  t.shape.rank = s->rank;
  memcpy(t.shape.dim, s->shape, sizeof t.shape.dim);
  if (clv_policy_take(b->policy, &t, s->bytes, &why) == CLV_OK) return CLEAVE_OK;
  error->status = CLEAVE_DENIED;
  snprintf(error->text, sizeof error->text, "egress refused: %.440s", why.text);
  return CLEAVE_DENIED;
}

/* A code and its place. It is in no row of the table, and in the record all the same. */
static clv_egress_flow *failure_flow_of(const clv_trainer *t, const cleave_sending *s) {
  for (size_t i = 0; t->egress.failures && i < t->config->n_workers; i++)
    if (strcmp(t->config->workers[i].name, s->worker) == 0) return t->egress.failures[i];
  return NULL;
}

static cleave_status note(clv_egress_flow *f, const cleave_sending *s, cleave_error *error) {
  clv_err err;
  if (clv_egress_take(f, s->bytes, &err) == CLV_OK) return CLEAVE_OK;
  error->status = (cleave_status)err.code;
  snprintf(error->text, sizeof error->text, "nothing leaves without a record: %.400s", err.text);
  return error->status;
}

/* Nothing leaves that the plan's table does not name, the policy does not permit or the record does
 * not cover. Any thread. */
cleave_status clv_trainer_may_send(void *user, const cleave_sending *s, cleave_error *error) {
  clv_trainer *t = user;
  const clv_egress_row *r;
  if (s->kind == CLEAVE_SENDING_FAILURE) {
    clv_egress_flow *told = failure_flow_of(t, s);
    return told ? note(told, s, error) : CLEAVE_DENIED;
  }
  if (clv_trainer_admit(t->b, s, &r, error) != CLEAVE_OK) return CLEAVE_DENIED;
  clv_egress_flow *f = flow_of(t, r, s);
  if (!f) return refuse(s, error);
  if (hold(t->b, r, s, error) != CLEAVE_OK) return CLEAVE_DENIED;
  return note(f, s, error);
}

/* ---- flows ----------------------------------------------------------------------------------- */

/* Of a value, by what it shows: records that were only moved or scaled are no activation. */
static clv_egress_kind kind_of_value(clv_findings shows) {
  if (shows & CLV_SHOWS_RAW_INPUT) return CLV_EGRESS_INPUT;
  return shows & CLV_SHOWS_TOKENS ? CLV_EGRESS_TOKENS : CLV_EGRESS_ACTIVATION;
}

static clv_egress_kind kind_of(const clv_trainer *t, const clv_egress_row *r) {
  bool labels = r->kind == CLEAVE_SENDING_LEAF && r->stage == t->b->n_stages;
  if (r->kind == CLEAVE_SENDING_GRADIENT) return CLV_EGRESS_GRADIENT;
  if (r->kind == CLEAVE_SENDING_CACHED) return CLV_EGRESS_CACHED;
  if (r->kind == CLEAVE_SENDING_LEAF) return labels ? CLV_EGRESS_LABELS : CLV_EGRESS_INPUT;
  return kind_of_value(r->shows);
}

static void place(const clv_trainer *t, int from, int to, clv_egress_what *ret) {
  const clv_remote_spec *w = &t->config->workers[to];
  snprintf(ret->from, sizeof ret->from, "%s",
           from < 0 ? CLV_EGRESS_MASTER : t->config->workers[from].name);
  snprintf(ret->to, sizeof ret->to, "%s", w->name);
  snprintf(ret->identity, sizeof ret->identity, "%s", w->identity);
}

static void name_stage(const clv_trainer *t, uint32_t stage, clv_egress_what *ret) {
  snprintf(ret->stage, sizeof ret->stage, "%s",
           stage == t->b->n_stages ? CLV_LOSS_NAME : t->config->stages[stage].name);
}

/* What a sample is of it; of packed sequences a place, and a sample at most so many. */
static clv_code measure(clv_dtype dtype, const clv_shape *batch, int64_t places,
                        clv_egress_what *what, clv_flow *ret, clv_err *err) {
  size_t bytes;
  what->shape.rank = CLV_MAX(batch->rank - 1, 0);
  memcpy(what->shape.dim, batch->dim + 1, (size_t)what->shape.rank * sizeof *batch->dim);
  snprintf(what->dtype, sizeof what->dtype, "%s", clv_dtype_name(dtype));
  CLV_TRY(clv_shape_bytes(&what->shape, dtype, &bytes, err));
  ret->place_bytes = places ? bytes : 0;
  ret->sample_bytes = bytes * (uint64_t)CLV_MAX(places, 1);
  return CLV_OK;
}

/* For how long, and what workers see of them. */
static void name_kept(const clv_trainer *t, const clv_egress_row *r, clv_egress_what *what) {
  char words[CLV_FINDINGS_TEXT];
  if (r->input)
    snprintf(what->name, sizeof what->name, "numbers of records");
  else
    snprintf(what->name, sizeof what->name, "kept there, unused for at most %llu s%s%s",
             (unsigned long long)(t->config->stages[0].cache_ttl_ms / 1000), r->shows ? ", " : "",
             clv_findings_words(r->shows, words));
}

static clv_code make_row(clv_trainer *t, const clv_egress_row *r, clv_flow *ret, clv_err *err) {
  clv_egress_what what = {.kind = kind_of(t, r), .random = t->egress.random};
  if (r->kind == CLEAVE_SENDING_WEIGHTS) return CLV_OK;
  place(t, -1, r->worker, &what);
  name_stage(t, r->stage, &what);
  if (r->kind == CLEAVE_SENDING_LEAF && r->stage < t->b->n_stages && t->b->inputs.n > 1)
    snprintf(what.name, sizeof what.name, "%s", t->b->stages[r->stage].graph->nodes[r->input].name);
  if (r->kind == CLEAVE_SENDING_CACHED) name_kept(t, r, &what);
  CLV_TRY(measure(r->dtype, &r->shape, r->places, &what, ret, err));
  return clv_egress_flow_new(t->egress.record, &what, false, &ret->flow, err);
}

/* The value of a stage on its way to the next worker; or, back, the gradient. */
static clv_code make_hop(clv_trainer *t, uint32_t stage, bool back, clv_flow *ret, clv_err *err) {
  const clv_stage_plan *s = &t->b->stages[stage];
  const clv_node *value = &s->graph->nodes[s->graph->output];
  char words[CLV_FINDINGS_TEXT];
  clv_egress_what what = {.kind = back ? CLV_EGRESS_GRADIENT : kind_of_value(s->hop_shows),
                          .random = t->egress.random};
  if (!s->direct || (back && !s[1].input_needs_grad)) return CLV_OK;
  place(t, s[back].worker, s[!back].worker, &what);
  name_stage(t, stage, &what);
  clv_findings_words(back ? s->gradient_shows : s->hop_shows, words);
  snprintf(what.name, sizeof what.name, "%s", words);
  CLV_TRY(measure(value->dtype, &value->shape, value->places, &what, ret, err));
  return clv_egress_flow_new(t->egress.record, &what, false, &ret->flow, err);
}

static clv_code make_failure(clv_trainer *t, size_t worker, clv_err *err) {
  clv_egress_what what = {.kind = CLV_EGRESS_FAILURE};
  place(t, -1, (int)worker, &what);
  return clv_egress_flow_new(t->egress.record, &what, false, &t->egress.failures[worker], err);
}

clv_code clv_trainer_make_flows(clv_trainer *t, clv_err *err) {
  clv_trainer_egress *e = &t->egress;
  uint32_t n = t->b->n_stages;
  CLV_TRY(clv_alloc(t->config->n_workers, sizeof *e->failures, &e->failures, err));
  CLV_TRY(clv_alloc(t->b->n_egress, sizeof *e->rows, &e->rows, err));
  CLV_TRY(clv_alloc(2 * (size_t)n, sizeof *e->hops, &e->hops, err));
  if (!e->record) return CLV_OK;
  for (size_t i = 0; i < t->config->n_workers; i++) CLV_TRY(make_failure(t, i, err));
  for (size_t k = 0; k < t->b->n_egress; k++)
    CLV_TRY(make_row(t, &t->b->egress[k], &e->rows[k], err));
  for (uint32_t i = 0; i < 2 * n; i++) CLV_TRY(make_hop(t, i / 2, i % 2, &e->hops[i], err));
  return CLV_OK;
}

void clv_trainer_drop_flows(clv_trainer *t) {
  free(t->egress.failures);
  free(t->egress.rows);
  free(t->egress.hops);
  free(t->egress.states);
}

/* ---- ahead ----------------------------------------------------------------------------------- */

/* A batch is kept with its numbers, named by them, or has nothing to do with the cache. */
static bool is_of_batch(const clv_egress_row *r, clv_cache_use use) {
  return r->input ? use != CLV_CACHE_NONE : use == CLV_CACHE_ROWS;
}

/* Nothing comes back and no labels leave when nothing is trained. */
static bool flows(const clv_trainer *t, const clv_egress_row *r, bool training) {
  uint32_t n_stages = t->b->n_stages;
  if (r->kind == CLEAVE_SENDING_CACHED) return is_of_batch(r, t->cache.use);
  bool kept = t->cache.use != CLV_CACHE_NONE && r->stage == 0;
  if (r->kind == CLEAVE_SENDING_VALUE && kept) return false;
  return training || r->kind == CLEAVE_SENDING_VALUE ||
         (r->kind == CLEAVE_SENDING_LEAF && r->stage != n_stages);
}

clv_code clv_trainer_expect(clv_trainer *t, uint64_t samples, bool training, clv_err *err) {
  clv_trainer_egress *e = &t->egress;
  const clv_blueprint *b = t->b;
  uint64_t what = 8 * samples + 2 * (uint64_t)t->cache.use + training;
  if (!e->record || e->samples == what) return CLV_OK;
  for (size_t k = 0; k < b->n_egress; k++)
    if (e->rows[k].flow && flows(t, &b->egress[k], training))
      clv_egress_expect(e->rows[k].flow, samples * e->rows[k].sample_bytes);
  for (uint32_t i = 0; i < 2 * b->n_stages; i++)
    if (e->hops[i].flow && (training || i % 2 == 0))
      clv_egress_expect(e->hops[i].flow, samples * e->hops[i].sample_bytes);
  CLV_TRY(clv_egress_ahead(e->record, err));
  e->samples = what;
  return CLV_OK;
}

static uint64_t bytes_of(const clv_flow *f, uint64_t samples, uint64_t places) {
  return f->place_bytes ? places * f->place_bytes : samples * f->sample_bytes;
}

clv_code clv_trainer_hop(clv_trainer *t, uint32_t stage, uint64_t samples, uint64_t places,
                         bool training, clv_err *err) {
  const clv_flow *there = &t->egress.hops[2 * stage], *back = there + 1;
  if (there->flow) CLV_TRY(clv_egress_take(there->flow, bytes_of(there, samples, places), err));
  if (!training || !back->flow) return CLV_OK;
  return clv_egress_take(back->flow, bytes_of(back, samples, places), err);
}

/* ---- what workers say ------------------------------------------------------------------------ */

static bool sends(const clv_trainer *t, const char *from, const char *to) {
  for (uint32_t i = 0; i + 1 < t->b->n_stages; i++) {
    const clv_stage_plan *s = &t->b->stages[i];
    if (!s->direct) continue;
    const char *one = t->config->workers[s->worker].name,
               *other = t->config->workers[s[1].worker].name;
    if ((strcmp(one, from) == 0 && strcmp(other, to) == 0) ||
        (strcmp(one, to) == 0 && strcmp(other, from) == 0))
      return true;
  }
  return false;
}

static void on_link(void *user, const char *worker, const char *peer, uint64_t bytes) {
  clv_trainer *t = user;
  if (sends(t, worker, peer)) clv_egress_hop(t->egress.record, worker, peer, bytes);
}

void clv_trainer_report_hops(clv_trainer *t) {
  enum { ASK_MS = 2000 };
  const char *name;
  clv_err err;
  bool any = false;
  for (uint32_t i = 0; t->egress.hops && i < t->b->n_stages; i++)
    any |= t->egress.hops[2 * i].flow != NULL;
  for (uint32_t i = 1; any && (name = cleave_node_name(t->runtime, i)) != NULL; i++)
    if (strcmp(name, t->lost) != 0 &&
        cleave_ask_links(t->runtime, i, ASK_MS, on_link, t, &err) != CLV_OK)
      clv_log(CLV_LOG_DEBUG, "worker '%s' does not say what it sent: %s", name, err.text);
}

/* ---- state ----------------------------------------------------------------------------------- */

static clv_code make_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                           const clv_weights_want *item, clv_state_flow *ret, clv_err *err) {
  bool optimizer = kind == CLEAVE_STATE_OPTIMIZER;
  clv_egress_what what = {.kind = optimizer ? CLV_EGRESS_STATE : CLV_EGRESS_WEIGHTS,
                          .shape = item->shape};
  place(t, -1, t->b->stages[stage].worker, &what);
  name_stage(t, stage, &what);
  snprintf(what.name, sizeof what.name, "%s", item->name);
  snprintf(what.dtype, sizeof what.dtype, "%s", clv_dtype_name(item->dtype));
  *ret = (clv_state_flow){.stage = stage, .optimizer = optimizer};
  memcpy(ret->name, what.name, sizeof ret->name);
  return clv_egress_flow_new(t->egress.record, &what, true, &ret->flow, err);
}

clv_code clv_trainer_expect_state(clv_trainer *t, uint32_t stage, cleave_state_kind kind,
                                  const clv_weights_want *items, size_t n, clv_err *err) {
  clv_trainer_egress *e = &t->egress;
  if (!e->record || t->b->stages[stage].worker < 0) return CLV_OK;
  clv_state_flow *grown = reallocarray(e->states, e->n_states + n + 1, sizeof *grown);
  if (!grown) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  e->states = grown;
  e->next_state = e->n_states;
  for (size_t i = 0; i < n; i++) {
    clv_state_flow *f = &e->states[e->n_states];
    size_t bytes;
    CLV_TRY(clv_shape_bytes(&items[i].shape, items[i].dtype, &bytes, err));
    CLV_TRY(make_state(t, stage, kind, &items[i], f, err));
    e->n_states++;
    clv_egress_expect(f->flow, bytes);
  }
  return clv_egress_ahead(e->record, err);
}
