/* SPDX-License-Identifier: Apache-2.0
 *
 * The look: measures, before a run sends anything, how much of records and labels an observer can
 * read from the tensors that would be sent. privacy.c derives from the graph which tensors must
 * show records or labels; the look measures what these tensors do show. What either of the two
 * finds is a finding. clv_look_run runs the look, and clv_blueprint_add_look adds its results to a
 * blueprint. A *reader* is one attack of the look, its *figure* is the fraction that it read,
 * and a *draw* is one random choice of the secret weights.
 */
#include <stdio.h>
#include <string.h>

#include "master/plan/look_int.h"

static const struct {
  const char *name;
  double limit;
  clv_finding finding;
  const char *key; /* key of `privacy` that permits the finding; NULL: the finding needs no key */
} readers[CLV_LOOK_N_READERS] = {
    [CLV_LOOK_PIXELS] = {"pixels", 0.5, CLV_FINDING_PICTURE, NULL},
    [CLV_LOOK_TOKENS] = {"tokens", 0.2, CLV_FINDING_TOKENS, "tokens_readable"},
    [CLV_LOOK_LABELS] = {"labels", 0.3, CLV_FINDING_LABELS_READABLE, "labels_readable"},
    [CLV_LOOK_FEATURES] = {"features", CLV_LOOK_CERTAIN_FIGURE, CLV_FINDING_RAW_INPUT,
                           "raw_input_leaves"},
    [CLV_LOOK_GROUPS] = {"groups", 1, 0, NULL},
};

const char *clv_look_reader_name(clv_look_reader reader) { return readers[reader].name; }
double clv_look_figure_limit(clv_look_reader reader) { return readers[reader].limit; }

/* ---- draws of the secret weights ------------------------------------------------------------- */

static bool uses_workers(const clv_blueprint *b) {
  bool has_used_worker = false;
  for (size_t i = 0; i < b->config->n_workers; i++) has_used_worker |= b->is_worker_used[i];
  return has_used_worker;
}

/* Derives the seed of the secret weights for one draw of the look. A preview (`plan`, `check`) has
 * its own seeds, the same in each preview. If the session file gives the run's seed, the first draw
 * of a preview uses it. */
static clv_code derive_seed(const clv_blueprint *b, const clv_look_options *o, uint32_t draw,
                            clv_key *ret, clv_err *err) {
  *ret = b->config->train.seed.key;
  if (!o->is_preview || (!draw && b->config->train.seed.is_given)) return CLV_OK;
  return clv_key_derive("cleave look", &b->config->train.seed.key, &draw, sizeof draw, ret, err);
}

/* Merges the results of one attack over all draws of the secret weights: the largest fraction that
 * it could read counts. The first draw decides whether the attack could run, because later draws
 * may lack the time. */
static void merge_result(clv_look_result *merged, const clv_look_result *other, bool is_first) {
  bool have_both_run = other->state == CLV_LOOK_RAN && merged->state == CLV_LOOK_RAN;
  if (is_first || (have_both_run && other->figure > merged->figure)) *merged = *other;
}

static void run_draw(const clv_look_draw *r, bool is_first, clv_look *ret) {
  clv_look_result draw_results[CLV_LOOK_N_READERS] = {0};
  clv_look_read_front(r, draw_results);
  clv_look_read_head(r, &draw_results[CLV_LOOK_LABELS], &draw_results[CLV_LOOK_GROUPS]);
  for (int k = 0; k < CLV_LOOK_N_READERS; k++)
    merge_result(&ret->results[k], &draw_results[k], is_first);
}

clv_code clv_look_run(const clv_blueprint *b, const clv_look_options *o, clv_look *ret,
                      clv_err *err) {
  CLV_AUTO(clv_look_sample_done) clv_look_sample sample = {0};
  uint64_t begin_ns = clv_now_ns(), max_ns = (uint64_t)CLV_LOOK_MAX_SECONDS * 1000000000,
           now_ns = begin_ns;
  uint32_t n_draws = o->is_preview ? CLV_LOOK_PREVIEW_DRAWS : 1;
  *ret = (clv_look){0};
  if (!uses_workers(b)) return CLV_OK;
  while (ret->n_draws < n_draws &&
         now_ns - begin_ns <= max_ns / n_draws * (n_draws - ret->n_draws)) {
    clv_key seed;
    CLV_TRY(derive_seed(b, o, ret->n_draws, &seed, err));
    const clv_look_draw r = {
        .weights = {b, &seed, o->checkpoint},
        .o = o,
        .sample = &sample,
        .draw_end_ns = now_ns + (begin_ns + max_ns - now_ns) / (n_draws - ret->n_draws),
        .look_end_ns = begin_ns + max_ns};
    run_draw(&r, ret->n_draws == 0, ret);
    ret->n_draws++;
    now_ns = clv_now_ns();
  }
  ret->has_run = true;
  ret->n_records = (uint32_t)sample.record_counts.n;
  ret->duration_s = (double)(now_ns - begin_ns) * 1e-9;
  return CLV_OK;
}

/* ---- findings from the results of the look --------------------------------------------------- */

static bool is_above_limit(const clv_look *look, clv_look_reader k) {
  return look->results[k].state == CLV_LOOK_RAN && look->results[k].figure > readers[k].limit;
}

static clv_findings get_reader_findings(const clv_look *look, int k) {
  return look->results[k].findings ? look->results[k].findings : (clv_findings)readers[k].finding;
}

static clv_findings find_uncertain_findings(const clv_look *look) {
  clv_findings ret = 0;
  for (int k = 0; k < CLV_LOOK_N_READERS; k++)
    if (is_above_limit(look, (clv_look_reader)k) &&
        look->results[k].figure < CLV_LOOK_CERTAIN_FIGURE)
      ret |= get_reader_findings(look, k);
  return ret;
}

/* True if a worker receives the gradient from which the look tries to read labels. Layers at
 * workers hide nothing, so each worker between this stage and the next stage of the master receives
 * the gradient. */
static bool does_worker_receive_gradient(const clv_blueprint *b, uint32_t stage) {
  uint32_t i = stage;
  while (i < b->n_stages && b->stages[i].worker >= 0) i++;
  return i > stage && i > clv_look_find_last_worker_stage(b) &&
         b->stages[stage + 1].input_needs_grad;
}

/* Returns the findings of the look for a kind of tensor: for values that the master sends, how
 * records can be read; for gradients from layers behind the last worker, how labels can be read. */
static clv_findings get_kind_findings(const clv_blueprint *b, const clv_look *look,
                                      clv_egress_kind kind, uint32_t stage) {
  bool uses_gradient = kind == CLV_EGRESS_GRADIENT && does_worker_receive_gradient(b, stage);
  bool uses_value = kind == CLV_EGRESS_ACTIVATION && b->stages[stage].worker < 0;
  clv_findings ret = 0;
  for (int k = 0; k < CLV_LOOK_N_READERS; k++)
    if ((k == CLV_LOOK_LABELS ? uses_gradient : uses_value) &&
        is_above_limit(look, (clv_look_reader)k))
      ret |= get_reader_findings(look, k);
  return ret;
}

static bool has_token_input(const clv_blueprint *b) {
  bool has_tokens = false;
  for (uint32_t k = 0; k < b->inputs.n; k++) has_tokens |= b->inputs.inputs[k].dtype == CLV_I64;
  return has_tokens;
}

/* Removes from look_findings those that RAW INPUT includes, if graph_findings has RAW INPUT:
 * records that are sent as they are need not be reported as PICTURE too, nor repeated vectors as
 * TOKENS. */
static clv_findings remove_included_findings(const clv_blueprint *b, clv_findings look_findings,
                                             clv_findings graph_findings) {
  clv_findings included_findings = CLV_FINDING_PICTURE;
  if (!has_token_input(b)) included_findings |= CLV_FINDING_TOKENS;
  return graph_findings & CLV_FINDING_RAW_INPUT ? look_findings & ~included_findings
                                                : look_findings;
}

static void add_findings(clv_blueprint *b, const clv_look *look) {
  for (size_t i = 0; i < b->n_egress; i++) {
    clv_egress_row *r = &b->egress[i];
    bool is_output = r->kind == CLV_EGRESS_CACHED && !r->input;
    clv_findings row_findings = remove_included_findings(
        b, get_kind_findings(b, look, is_output ? CLV_EGRESS_ACTIVATION : r->kind, r->stage),
        r->findings);
    r->look_findings = row_findings & ~(r->findings & ~r->look_findings);
    r->findings |= row_findings;
  }
  for (uint32_t i = 0; i < b->n_stages; i++) {
    bool is_sent = b->stages[i].worker < 0 && b->stages[i + 1].worker >= 0;
    clv_stage_plan *s = &b->stages[i];
    clv_findings value_findings =
        is_sent ? remove_included_findings(b, get_kind_findings(b, look, CLV_EGRESS_ACTIVATION, i),
                                           s->output_findings)
                : 0;
    clv_findings gradient_findings = get_kind_findings(b, look, CLV_EGRESS_GRADIENT, i);
    s->output_look_findings = value_findings & ~(s->output_findings & ~s->output_look_findings);
    s->gradient_look_findings =
        gradient_findings & ~(s->gradient_findings & ~s->gradient_look_findings);
    s->output_findings |= value_findings;
    s->gradient_findings |= gradient_findings;
  }
}

static const char *get_permitting_key(const clv_look *look, int k) {
  return look->results[k].findings & CLV_FINDING_TOKENS ? readers[CLV_LOOK_TOKENS].key
                                                        : readers[k].key;
}

static clv_code fail_readable_row(const clv_blueprint *b, const clv_egress_row *r,
                                  clv_findings forbidden_findings, clv_err *err) {
  int k = CLV_LOOK_TOKENS;
  const clv_session_config *c = b->config;
  while (k + 1 < CLV_LOOK_N_READERS && !(forbidden_findings & get_reader_findings(&b->look, k) &&
                                         is_above_limit(&b->look, (clv_look_reader)k)))
    k++;
  const clv_look_result *reader_result = &b->look.results[k];
  clv_config_pos pos = r->kind == CLV_EGRESS_GRADIENT ? c->stages[r->stage].at_pos
                       : r->stage + 1 < b->n_stages   ? c->stages[r->stage + 1].at_pos
                                                      : c->loss.at_pos;
  bool reads_tokens = reader_result->findings & CLV_FINDING_TOKENS,
       can_scale_columns = k == CLV_LOOK_FEATURES && !reads_tokens;
  return clv_session_fail_at(
      c, pos, err,
      "worker '%s' can read %s from the %s: of %u records %.0f %% more than a guess, by %s, and "
      "from %.0f %% on that needs a key; put more layers %s it at master%s, or set privacy.%s: "
      "true",
      c->workers[r->worker].name, readers[reads_tokens ? CLV_LOOK_TOKENS : k].name, r->name,
      b->look.n_records, reader_result->figure * 100, reader_result->method,
      CLV_LOOK_CERTAIN_FIGURE * 100, k == CLV_LOOK_LABELS ? "behind" : "before",
      can_scale_columns ? ", or give all columns and factors similar sizes (standardize the data)"
                        : "",
      get_permitting_key(&b->look, k));
}

void clv_blueprint_add_look(clv_blueprint *b, const clv_look *look) {
  b->look = *look;
  b->look.uncertain_findings = find_uncertain_findings(look);
  add_findings(b, look);
}

clv_code clv_look_refuse_readable(const clv_blueprint *b, clv_err *err) {
  for (size_t i = 0; i < b->n_egress; i++) {
    clv_findings certain_findings = b->egress[i].look_findings & ~b->look.uncertain_findings;
    clv_findings forbidden_findings = clv_privacy_forbidden_findings(b->config, certain_findings);
    if (forbidden_findings) return fail_readable_row(b, &b->egress[i], forbidden_findings, err);
  }
  return CLV_OK;
}
