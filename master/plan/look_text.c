/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the results of a look, which measures what can be read from sent tensors, as text or
 * JSON.
 */
#include <stdio.h>

#include "master/plan/plan_int.h"

/* Appends the limits that a figure (the fraction that an attack has read) exceeds.
 * max_permitted_figure: the largest figure that the host's policy permits for this attack; 1: the
 * policy sets no limit. */
static void append_limit(double figure, double limit, double max_permitted_figure, clv_bytes *out) {
  if (figure > limit) clv_bytes_printf(out, ", above %.1f", limit);
  if (max_permitted_figure < 1)
    clv_bytes_printf(out, ", the policy's limit is %g", max_permitted_figure);
}

/* Figure (fraction that was read) of the attack on groups of equal labels. If the figure is larger
 * than this, the text explains what it means. */
static const double MIN_GROUP_FRACTION_TO_EXPLAIN = 0.5;

static const char *const state_texts[] = {[CLV_LOOK_NOTHING_TO_READ] = "not applicable",
                                          [CLV_LOOK_RAN] = "looked at",
                                          [CLV_LOOK_COULD_NOT_RUN] = "not looked at"};

void clv_look_format_result(const clv_look_result *r, char ret[CLV_LOOK_RESULT_TEXT_BYTES]) {
  if (r->state == CLV_LOOK_RAN)
    snprintf(ret, CLV_LOOK_RESULT_TEXT_BYTES, "%.2f", r->figure);
  else
    snprintf(ret, CLV_LOOK_RESULT_TEXT_BYTES, "%s", state_texts[r->state]);
}

void clv_look_append_summary(const clv_look *look, clv_bytes *out) {
  char result_text[CLV_LOOK_RESULT_TEXT_BYTES];
  for (int k = 0; k < CLV_LOOK_N_READERS; k++) {
    clv_look_format_result(&look->results[k], result_text);
    clv_bytes_printf(out, "%s%s %s", k ? ", " : "", clv_look_reader_name((clv_look_reader)k),
                     result_text);
  }
}

/* Appends the result of one attack with its method or reason, and the limits that it exceeds. p:
 * policy of the host, which may set lower limits. */
static void append_result(const clv_look *look, clv_look_reader k, const clv_policy *p,
                          clv_bytes *out) {
  const clv_look_result *r = &look->results[k];
  char result_text[CLV_LOOK_RESULT_TEXT_BYTES];
  clv_look_format_result(r, result_text);
  clv_bytes_printf(out, "%s%s %s", k == CLV_LOOK_GROUPS ? "label " : "", clv_look_reader_name(k),
                   result_text);
  if (r->state != CLV_LOOK_RAN) {
    clv_bytes_printf(out, " (%s)", r->reason);
    return;
  }
  if (*r->method) clv_bytes_printf(out, " by %s", r->method);
  if (k == CLV_LOOK_GROUPS && r->figure > MIN_GROUP_FRACTION_TO_EXPLAIN)
    clv_bytes_puts(out,
                   ": which records share a label can be read; one known label per class names "
                   "them");
  append_limit(r->figure, clv_look_figure_limit(k), clv_policy_max_read_share(p, k), out);
}

/* For a loss of several targets, appends a line if class weights, or labels that are missing, show
 * in the norm of a gradient. */
static void describe_targets(const clv_session_config *c, clv_bytes *out) {
  bool has_weights = false, masks_missing = false;
  for (size_t k = 0; k < c->loss.n_targets; k++) {
    has_weights = has_weights || c->loss.targets[k].weight.n;
    masks_missing = masks_missing || c->loss.targets[k].masks_missing;
  }
  if (has_weights)
    clv_bytes_puts(out,
                   "labels: weight of a target in loss.targets makes gradients of some classes "
                   "longer than others, so that lengths may name classes\n");
  if (masks_missing)
    clv_bytes_puts(out,
                   "labels: a record without labels (missing: mask) has shorter gradients, and one "
                   "without any label gradients of zeros, which name it\n");
}

/* Appends a line for each way in which the loss lets the norm of a gradient show labels: class
 * weights (loss.weight), missing labels, and an ignored label (loss.ignore_index) or positions
 * without a label. */
static void describe_loss(const clv_blueprint *b, clv_bytes *out) {
  const clv_graph *g = b->stages[b->n_stages].graph;
  const clv_node *loss_node = &g->nodes[g->output_node];
  bool has_ignored_label = clv_loss_row_of(b->config->loss.kind)->keys & CLV_LOSS_KEY_IGNORE_INDEX;
  long long ignored_label = loss_node->attrs.ignore_index;
  if (b->look.results[CLV_LOOK_LABELS].state == CLV_LOOK_NOTHING_TO_READ) return;
  if (loss_node->attrs.class_weights.n)
    clv_bytes_puts(out,
                   "labels: loss.weight makes gradients of some classes longer than others, so "
                   "that lengths name classes, and zeros those of weight 0\n");
  describe_targets(b->config, out);
  if (has_ignored_label && ignored_label >= 0)
    clv_bytes_printf(out,
                     "labels: those that are %lld (loss.ignore_index) have gradients of zeros, "
                     "which name them\n",
                     ignored_label);
  else if (g->nodes[1].dtype == CLV_I64 && g->nodes[1].shape.rank > 1)
    clv_bytes_puts(out,
                   "labels: places without a label have gradients of zeros, which say where "
                   "there are labels\n");
}

void clv_look_describe(const clv_blueprint *b, clv_bytes *out) {
  const clv_look *look = &b->look;
  if (!look->has_run) return;
  clv_bytes_printf(out, "read from what leaves (%u record%s, ", look->n_records,
                   CLV_S(look->n_records));
  if (look->n_draws > 1)
    clv_bytes_printf(out, "the worst of %u draws of the secrets, ", look->n_draws);
  clv_bytes_printf(out, "%.1f s): ", look->duration_s);
  for (int k = 0; k < CLV_LOOK_N_READERS; k++) {
    clv_bytes_puts(out, k ? "; " : "");
    append_result(look, (clv_look_reader)k, b->policy, out);
  }
  clv_bytes_puts(out, "\n");
  describe_loss(b, out);
}

static void append_json_result(const clv_look *look, clv_look_reader k, clv_bytes *out) {
  const clv_look_result *r = &look->results[k];
  clv_bytes_printf(out, ",\"%s\":{\"state\":\"%s\"", clv_look_reader_name(k),
                   state_texts[r->state]);
  if (r->state == CLV_LOOK_RAN)
    clv_bytes_printf(out, ",\"read\":%.4f,\"limit\":%.2f,\"by\":\"%s\"}", r->figure,
                     clv_look_figure_limit(k), r->method);
  else {
    clv_bytes_puts(out, ",\"why\":");
    clv_bytes_add_json(out, r->reason);
    clv_bytes_puts(out, "}");
  }
}

void clv_look_describe_json(const clv_blueprint *b, clv_bytes *out) {
  const clv_look *look = &b->look;
  clv_bytes_puts(out, ",\"look\":");
  if (!look->has_run) {
    clv_bytes_puts(out, "null");
    return;
  }
  clv_bytes_printf(out, "{\"records\":%u,\"draws\":%u,\"seconds\":%.3f", look->n_records,
                   look->n_draws, look->duration_s);
  for (int k = 0; k < CLV_LOOK_N_READERS; k++) append_json_result(look, (clv_look_reader)k, out);
  clv_bytes_puts(out, "}");
}
