/* SPDX-License-Identifier: Apache-2.0
 *
 * Refuses sessions in which a worker could read more than the session permits (clv_privacy_check).
 * The message names the path of layers on which nothing hides the records or labels, the first
 * mixing layer on this path, why it hides nothing, and what helps.
 */
#include <stdio.h>
#include <string.h>

#include "master/plan/privacy_int.h"

enum { MAX_SHOWN_NODES = 6, MAX_SHOWN_NAME_LEN = 24 };

typedef struct layer_path {
  int n, nodes[CLV_MAX_NODES]; /* nodes of the full model, in their order */
} layer_path;

static void find_path_from_records(const clv_privacy_view *v, int k, layer_path *w) {
  int n = 0;
  for (int i = k; !clv_privacy_is_input(v, i); i = clv_privacy_find_worst_input(v, i)) n++;
  w->n = n;
  for (int i = k; !clv_privacy_is_input(v, i); i = clv_privacy_find_worst_input(v, i))
    w->nodes[--n] = i;
}

/* Returns the node that reads node k on the path to the loss with the fewest hiding layers. */
static int find_reader_to_loss(const clv_privacy_view *v, int k) {
  for (int m = k + 1; m < v->g->n_nodes; m++)
    for (int i = 0; i < v->g->nodes[m].n_in; i++)
      if (v->g->nodes[m].in[i] == k && clv_privacy_count_head_layers(v, m) == v->n_head_layers[k])
        return m;
  return -1;
}

static void find_path_to_loss(const clv_privacy_view *v, uint32_t last_layer, layer_path *w) {
  int k = 0;
  while (k < v->g->n_nodes &&
         !(clv_privacy_is_crossing(v, k, last_layer) && v->n_head_layers[k] == 0))
    k++;
  for (w->n = 0; k >= 0 && k < v->g->n_nodes && k != v->g->output_node; w->n++)
    if ((k = find_reader_to_loss(v, k)) >= 0) w->nodes[w->n] = k;
}

/* Returns the end of a long layer name, because the end identifies the layer and messages have
 * limited room. */
static const char *get_short_name(const clv_node *n) {
  const char *name = n->name, *last_dot;
  while (strlen(name) > MAX_SHOWN_NAME_LEN && (last_dot = strchr(name, '.'))) name = last_dot + 1;
  return name;
}

/* Appends a path of layers, such as "3 (flatten) -> fc (linear)". Leaves out the middle of a long
 * path. */
static void append_path(const clv_privacy_view *v, const layer_path *w, clv_bytes *out) {
  for (int i = 0; i < w->n; i++) {
    bool has_gap = w->n > MAX_SHOWN_NODES && i == MAX_SHOWN_NODES / 2;
    const clv_node *n = &v->g->nodes[w->nodes[i]];
    if (i) clv_bytes_puts(out, " -> ");
    if (has_gap) i = w->n - MAX_SHOWN_NODES / 2 - 1;
    if (has_gap)
      clv_bytes_puts(out, "...");
    else
      clv_bytes_printf(out, "%.24s (%s)", get_short_name(n), clv_op_name(n->op));
  }
  if (!w->n) clv_bytes_puts(out, "of no layer at all");
}

/* Returns why a mixing layer hides nothing of records or, if is_for_labels, of labels; NULL: the
 * layer hides them. */
static const char *why_layer_hides_nothing(const clv_privacy_view *v, int k, bool is_for_labels) {
  const char *why = clv_privacy_why_hides_nothing(v, k, is_for_labels);
  const clv_reach *r = is_for_labels ? &v->label_reach[k] : &v->record_reach[k];
  if (why || r->sums_two_places) return why;
  if (r->exceeds_limits) return "is of a model that is too large to be followed place by place";
  if (r->is_thinned_by_dropout)
    return "is often left with one value alone by the dropout in front of it";
  if (is_for_labels)
    return r->never_sums_two_places ? "sums the gradient of one output alone"
                                    : "sums the gradient of one output alone in places";
  return r->never_sums_two_places
             ? "sums one place alone in each output"
             : "sums one place alone in some outputs (a border, a first step, a group)";
}

/* Appends the first mixing layer of the path that hides nothing, and the reason. */
static void append_why_nothing_hides(const clv_privacy_view *v, const layer_path *w,
                                     bool is_for_labels, clv_bytes *out) {
  for (int i = 0; i < w->n; i++) {
    const char *why = NULL;
    if (clv_privacy_is_mixing(v, w->nodes[i]))
      why = why_layer_hides_nothing(v, w->nodes[i], is_for_labels);
    if (!why) continue;
    clv_bytes_printf(out, "; %.24s %s", get_short_name(&v->g->nodes[w->nodes[i]]), why);
    return;
  }
}

/* Appends the names of the ops that mix: "linear, conv2d or lstm". */
static void append_mixing_ops(clv_bytes *out) {
  const char *last = NULL;
  for (int op = 0, n = 0; op < CLV_OP_COUNT; op++) {
    const clv_op_def *def = clv_op_def_of((clv_op)op);
    if (!def || def->mixing == CLV_MIXES_NOTHING) continue;
    if (last) clv_bytes_printf(out, "%s%s", n++ ? ", " : "", last);
    last = def->name;
  }
  clv_bytes_printf(out, " or %s", last);
}

const char *clv_privacy_get_worker_name(const clv_blueprint *b, uint32_t stage) {
  return b->config->workers[b->stages[stage].worker].name;
}

/* Message about records that a worker receives, and the key of `privacy` that permits them. */
typedef struct records_refusal {
  clv_finding finding;
  const char *text, *key;
} records_refusal;

static const records_refusal refusals[] = {
    {CLV_FINDING_RAW_INPUT, "is sent the records in all but name", "raw_input_leaves"},
    {CLV_FINDING_TOKENS, "is sent one vector per token", "tokens_readable"},
    {CLV_FINDING_FRONT_KNOWN, "is sent records that only known weights have mixed", "front_known"}};
static const records_refusal text_refusal = {
    CLV_FINDING_TOKENS, "is sent one vector per text, made of those of its tokens,",
    "tokens_readable"};

/* Returns the message for the worst finding that the session does not permit. */
static const records_refusal *find_refusal(const clv_blueprint *b, uint32_t stage,
                                           clv_findings findings) {
  clv_finding worst_finding =
      clv_worst_finding(clv_privacy_forbidden_findings(b->config, findings));
  if (worst_finding == CLV_FINDING_TOKENS && !clv_privacy_has_vector_per_position(b, stage))
    return &text_refusal;
  for (size_t i = 0; i < CLV_COUNT(refusals); i++)
    if (refusals[i].finding == worst_finding) return &refusals[i];
  return &refusals[0];
}

static clv_code refuse_records(const clv_blueprint *b, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, ops = {0};
  const records_refusal *r = find_refusal(b, i, b->stages[i].output_findings);
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  layer_path w;
  CLV_TRY(clv_privacy_view_analyze(b, false, &v, err));
  find_path_from_records(v, clv_privacy_find_worst_crossing(v, b->stages[i].last_layer), &w);
  append_path(v, &w, &path);
  append_why_nothing_hides(v, &w, false, &path);
  append_mixing_ops(&ops);
  clv_config_pos pos =
      i + 1 < b->n_stages ? b->config->stages[i + 1].at_pos : b->config->loss.at_pos;
  return clv_session_fail_at(
      b->config, pos, err,
      "worker '%s' %s by stage '%s': no %s with secret first values that sums two "
      "places is on the path; put one there, at master, or set privacy.%s: true; the path: %s",
      clv_privacy_get_worker_name(b, i + 1), r->text, b->config->stages[i].name, ops.data, r->key,
      path.data);
}

/* Checks the model inputs of a stage. If the first stage is at a worker, the session file has been
 * refused already, before the model was made. */
static clv_code check_model_inputs(const clv_blueprint *b, uint32_t i, clv_err *err) {
  const clv_stage_plan *s = &b->stages[i];
  clv_findings findings;
  if (!i || !clv_privacy_collect_input_findings(b, i, &findings) ||
      !clv_privacy_forbidden_findings(b->config, findings))
    return CLV_OK;
  uint32_t k = 0;
  while (clv_privacy_input_findings(b, i, k + 1) != findings) k++;
  return clv_session_fail_at(b->config, b->config->stages[i].at_pos, err,
                             "worker '%s' is sent the records: layers of stage '%s' read '%s'; "
                             "read it at master, or set privacy.raw_input_leaves: true",
                             clv_privacy_get_worker_name(b, i), b->config->stages[i].name,
                             b->inputs.inputs[s->model_inputs[k]].name);
}

/* Returns a value that crosses behind layer `last_layer` and whose gradient has the finding
 * `worst`. */
static int find_value_of_gradient_finding(const clv_privacy_view *v, uint32_t last_layer,
                                          clv_findings worst) {
  for (int k = 0; k < v->g->n_nodes; k++)
    if (clv_privacy_is_crossing(v, k, last_layer) && (clv_privacy_gradient_findings(v, k) & worst))
      return k;
  return v->g->output_node;
}

static clv_code refuse_gradient(const clv_blueprint *b, uint32_t i, clv_findings findings,
                                clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes ops = {0};
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  const records_refusal *r = find_refusal(b, i, findings);
  char reader_text[MAX_SHOWN_NAME_LEN + 64] = "the loss";
  CLV_TRY(clv_privacy_view_analyze(b, false, &v, err));
  int k = find_value_of_gradient_finding(v, b->stages[i].last_layer, r->finding),
      by = v->record_gradient_reach[k].reader_node;
  if (by >= 0)
    snprintf(reader_text, sizeof reader_text, "%.24s (%s)", get_short_name(&v->g->nodes[by]),
             clv_op_name(v->g->nodes[by].op));
  append_mixing_ops(&ops);
  return clv_session_fail_at(
      b->config, b->config->stages[i].at_pos, err,
      "worker '%s' %s in the gradient for stage '%s': the derivative of %s reads them; put a %s "
      "with secret first values that sums two places between the records and %s, at master, or set "
      "privacy.%s: true",
      clv_privacy_get_worker_name(b, i), r->text, b->config->stages[i].name, reader_text, ops.data,
      reader_text, r->key);
}

static clv_code refuse_labels(const clv_blueprint *b, uint32_t i, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0}, ops = {0};
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  layer_path w;
  CLV_TRY(clv_privacy_view_analyze(b, false, &v, err));
  find_path_to_loss(v, b->stages[i].last_layer, &w);
  append_path(v, &w, &path);
  append_why_nothing_hides(v, &w, true, &path);
  append_mixing_ops(&ops);
  return clv_session_fail_at(
      b->config, b->config->stages[i].at_pos, err,
      "stage '%s' at '%s' can read the labels from its gradient: no %s that learns from secret "
      "first values and sums the gradients of two outputs is on the path to the loss; end with "
      "such a layer at "
      "master, or set "
      "privacy.labels_readable: true; the path: %s",
      b->config->stages[i].name, clv_privacy_get_worker_name(b, i), ops.data, path.data);
}

bool clv_privacy_has_gradient(const clv_blueprint *b, uint32_t i) {
  return b->stages[i].worker >= 0 && b->stages[i + 1].input_needs_grad;
}

static clv_findings get_forbidden_gradient_findings(const clv_blueprint *b, uint32_t i,
                                                    clv_findings considered_findings) {
  const clv_stage_plan *s = &b->stages[i];
  clv_findings findings = s->gradient_findings &
                          ~(s->gradient_look_findings & b->look.uncertain_findings) &
                          considered_findings;
  return clv_privacy_has_gradient(b, i) ? clv_privacy_forbidden_findings(b->config, findings) : 0;
}

/* Refuses the first finding that the session does not permit. Of several stages with readable
 * gradients it refuses the one nearest to the loss. */
clv_code clv_privacy_check(const clv_blueprint *b, clv_err *err) {
  clv_findings uncertain_findings = b->look.uncertain_findings;
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].worker < 0 && b->stages[i + 1].worker >= 0 &&
        clv_privacy_forbidden_findings(
            b->config, b->stages[i].output_findings &
                           ~(b->stages[i].output_look_findings & uncertain_findings)))
      return refuse_records(b, i, err);
  for (uint32_t i = 0; i < b->n_stages; i++) CLV_TRY(check_model_inputs(b, i, err));
  for (uint32_t i = b->n_stages; i-- > 0;) {
    clv_findings record_findings =
        get_forbidden_gradient_findings(b, i, ~(clv_findings)CLV_FINDING_LABELS_READABLE);
    if (record_findings) return refuse_gradient(b, i, record_findings, err);
  }
  for (uint32_t i = b->n_stages; i-- > 0;)
    if (get_forbidden_gradient_findings(b, i, CLV_FINDING_LABELS_READABLE))
      return refuse_labels(b, i, err);
  return CLV_OK;
}
