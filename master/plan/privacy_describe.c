/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints for `plan` how records and labels can be read (clv_privacy_describe), the worst finding
 * first. No text says that anything is safe.
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/privacy_int.h"

/* Returns how records can be read from the tensor that is sent to a worker at the cut behind stage
 * i: the gradient of the output of stage i, if the worker of stage i receives that gradient;
 * otherwise the output, if the master sends it to a worker. Returns CLV_FINDING_MIXED if neither is
 * sent. */
static clv_findings get_cut_findings(const clv_blueprint *b, uint32_t i) {
  if (clv_privacy_has_gradient(b, i))
    return b->stages[i].gradient_findings & ~(clv_findings)CLV_FINDING_LABELS_READABLE;
  bool is_sent = b->stages[i].worker < 0 && b->stages[i + 1].worker >= 0;
  return is_sent ? b->stages[i].output_findings : CLV_FINDING_MIXED;
}

/* Returns how records can be read from any tensor that is sent. False: no tensor made of records is
 * sent. */
static bool find_record_findings(const clv_blueprint *b, clv_findings *ret) {
  clv_findings input_findings;
  bool is_any_sent = false;
  *ret = 0;
  for (uint32_t i = 0; i < b->n_stages; i++) {
    if (clv_privacy_collect_input_findings(b, i, &input_findings))
      is_any_sent = true, *ret |= input_findings;
    is_any_sent |= b->stages[i].worker < 0 && b->stages[i + 1].worker >= 0;
    *ret |= get_cut_findings(b, i);
  }
  return is_any_sent;
}

/* Returns the stage with the fewest secret layers between its output and the loss, among stages
 * whose worker receives a gradient; n_stages: no worker receives a gradient. */
static uint32_t find_stage_of_fewest_head_layers(const clv_blueprint *b) {
  uint32_t found_stage = b->n_stages;
  for (uint32_t i = 0; i < b->n_stages; i++) {
    if (!clv_privacy_has_gradient(b, i)) continue;
    if (found_stage == b->n_stages ||
        b->stages[i].n_head_layers <= b->stages[found_stage].n_head_layers)
      found_stage = i;
  }
  return found_stage;
}

static bool has_single_output(const clv_blueprint *b) {
  const clv_shape *out = &b->full_graph->nodes[b->full_graph->output_node].shape;
  int64_t n = 1;
  for (int i = 1; i < out->rank; i++) n *= out->dim[i];
  return n == 1;
}

static const char *get_label_exposure(const clv_blueprint *b, uint32_t at) {
  if (b->stages[b->n_stages].worker >= 0) return "leave";
  if (at == b->n_stages) return "stay";
  return b->stages[at].gradient_findings & CLV_FINDING_LABELS_READABLE ? "readable" : "inferable";
}

static void append_text_labels(const clv_blueprint *b, uint32_t at, clv_bytes *out) {
  const char *exposure = get_label_exposure(b, at);
  clv_bytes_puts(out, "labels: ");
  if (strcmp(exposure, "leave") == 0)
    clv_bytes_printf(out, "LEAVE, to %s (privacy.labels_leave)\n",
                     clv_privacy_get_worker_name(b, b->n_stages));
  else if (strcmp(exposure, "stay") == 0)
    clv_bytes_puts(out, "stay on the master; no worker is sent a gradient\n");
  else if (strcmp(exposure, "readable") == 0)
    clv_bytes_printf(out,
                     "READABLE by %s from the gradient for stage '%s' "
                     "(privacy.labels_readable)\n",
                     clv_privacy_get_worker_name(b, at), b->config->stages[at].name);
  else
    clv_bytes_printf(
        out,
        "not sent; they can be inferred: %u secret layer%s behind stage '%s', and gradients gave "
        "99.98 %% of Fashion-MNIST's labels behind one, 91.9 %% behind two%s\n",
        b->stages[at].n_head_layers, CLV_S(b->stages[at].n_head_layers), b->config->stages[at].name,
        has_single_output(b) ? "; the one output shows its sign" : "");
}

/* True if no layer of the master up to the stage is secret. A worker can then compute the vectors
 * of the tokens that it guesses. Adapters do not count, because they begin as zero. */
static bool worker_knows_front_layers(const clv_privacy_view *v, uint32_t stage) {
  for (int k = 0; k < v->g->n_nodes; k++) {
    const clv_node *n = &v->g->nodes[k];
    if (clv_privacy_is_input(v, k) || n->layer > v->b->stages[stage].last_layer ||
        !clv_privacy_is_at_master(v, k))
      continue;
    if (v->layers[k].has_matrix_weights && !clv_name_is_of_adapter(n->name) &&
        !clv_privacy_why_hides_nothing(v, k, false))
      return false;
  }
  return true;
}

/* True if, for some vector of a token that is sent, a worker knows all layers that compute the
 * vector. Also true if memory runs out. */
static bool are_layers_before_tokens_known(const clv_blueprint *b) {
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  clv_err err;
  if (clv_privacy_view_new(b, false, &v, &err) != CLV_OK) return true;
  for (uint32_t i = 0; i < b->n_stages; i++)
    if ((get_cut_findings(b, i) & CLV_FINDING_TOKENS) &&
        worker_knows_front_layers(v, b->stages[i].worker < 0 ? i : b->n_stages - 1))
      return true;
  return false;
}

/* True if some stage sends tokens as one vector per position. */
static bool is_vector_per_token_sent(const clv_blueprint *b) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    if ((get_cut_findings(b, i) & CLV_FINDING_TOKENS) && clv_privacy_has_vector_per_position(b, i))
      return true;
  return false;
}

/* Prints how many tokens can be read from their vectors. tests/seeds/seed000.py measures the first
 * number of each line, at the first step, where most can be read; the other numbers are from
 * publications. */
static void append_text_tokens(const clv_blueprint *b, clv_bytes *out) {
  bool is_vector_per_token = is_vector_per_token_sent(b);
  clv_bytes_printf(
      out,
      "records: TOKENS: one vector per %s is sent%s (privacy.tokens_readable), %s of tokens were "
      "read off behind the first block of a LayoutLM%s; published: 59 %% behind two blocks, 35 %% "
      "behind eight (arXiv 2602.16760)\n",
      is_vector_per_token ? "token" : "text",
      is_vector_per_token ? "" : ", made of those of its tokens",
      are_layers_before_tokens_known(b)
          ? "by layers whose weights are known: with these, 92 %"
          : "by layers with secret weights: with the words of ten pages, 54 %",
      is_vector_per_token ? "" : " that sends one per token");
}

/* Returns the narrowest element of all cuts at which a picture is sent. An element is a single
 * number that is sent; the narrowest one depends on the smallest fraction of a record's
 * positions. */
static clv_narrowest_element find_narrowest_picture_element(const clv_blueprint *b) {
  clv_narrowest_element narrowest = {0};
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_narrowest_element s = b->stages[i].narrowest_picture_element;
    bool is_picture_sent = get_cut_findings(b, i) & CLV_FINDING_PICTURE;
    bool is_narrower = (double)s.n_source_positions * (double)narrowest.n_total_positions <
                       (double)narrowest.n_source_positions * (double)s.n_total_positions;
    if (is_picture_sent && s.n_total_positions && (!narrowest.n_total_positions || is_narrower))
      narrowest = s;
  }
  return narrowest;
}

static void append_text_picture(const clv_blueprint *b, clv_bytes *out) {
  clv_narrowest_element s = find_narrowest_picture_element(b);
  if (!s.n_total_positions)
    clv_bytes_puts(out, "records: PICTURE: a channel of what is sent looks like the record\n");
  else
    clv_bytes_printf(
        out,
        "records: PICTURE: some value that is sent is made of %lld of the %lld places of "
        "a record, so what is sent may look like the record\n",
        (long long)s.n_source_positions, (long long)s.n_total_positions);
}

static void append_text_mixed(bool sends_records, clv_bytes *out) {
  clv_bytes_printf(
      out, "records: %s\n",
      sends_records
          ? "MIXED: not sent; each value is made of half of a record's places or more, by layers "
            "with secret first values. It still tells about the record: MIXED never means safe"
          : "stay on the master");
}

/* Prints the findings of records, the worst one first. */
static void append_text_records(const clv_blueprint *b, bool sends_records, clv_findings findings,
                                clv_bytes *out) {
  if (findings & CLV_FINDING_RAW_INPUT)
    clv_bytes_puts(out, "records: RAW INPUT LEAVES (privacy.raw_input_leaves)\n");
  if (findings & CLV_FINDING_TOKENS) append_text_tokens(b, out);
  if (findings & CLV_FINDING_FRONT_KNOWN)
    clv_bytes_puts(out,
                   "records: FRONT KNOWN: on some path only known weights have mixed what is sent "
                   "(privacy.front_known)\n");
  if (findings & CLV_FINDING_PICTURE) append_text_picture(b, out);
  if (!findings) append_text_mixed(sends_records, out);
}

/* Appends the findings as JSON: `records` is the worst finding in one word, for scripts; `findings`
 * lists all. */
static void append_json_findings(bool sends_records, clv_findings findings, clv_bytes *out) {
  static const struct {
    clv_finding finding;
    const char *word;
  } finding_words[] = {{CLV_FINDING_RAW_INPUT, "raw_input"},
                       {CLV_FINDING_TOKENS, "tokens"},
                       {CLV_FINDING_FRONT_KNOWN, "front_known"},
                       {CLV_FINDING_PICTURE, "picture"}};
  const char *worst_word = sends_records ? "mixed" : "stay";
  for (size_t i = CLV_COUNT(finding_words); i-- > 0;)
    if (findings & finding_words[i].finding) worst_word = finding_words[i].word;
  clv_bytes_printf(out, "\"records\":\"%s\",\"findings\":[", worst_word);
  for (size_t i = 0, n = 0; i < CLV_COUNT(finding_words); i++)
    if (findings & finding_words[i].finding)
      clv_bytes_printf(out, "%s\"%s\"", n++ ? "," : "", finding_words[i].word);
  clv_bytes_puts(out, "],");
}

static void append_json_privacy(const clv_blueprint *b, uint32_t at, bool sends_records,
                                clv_findings findings, clv_bytes *out) {
  const char *exposure = get_label_exposure(b, at);
  bool is_inferable = strcmp(exposure, "inferable") == 0;
  clv_bytes_printf(out, "{\"labels\":\"%s\",\"head_layers\":%u,\"single_output\":%s,", exposure,
                   is_inferable ? b->stages[at].n_head_layers : 0,
                   has_single_output(b) ? "true" : "false");
  append_json_findings(sends_records, findings, out);
  if (findings & CLV_FINDING_PICTURE && find_narrowest_picture_element(b).n_total_positions)
    clv_bytes_printf(out, "\"picture\":{\"min_places\":%lld,\"least\":%lld,\"places\":%lld},",
                     (long long)find_narrowest_picture_element(b).n_source_positions,
                     (long long)find_narrowest_picture_element(b).n_source_positions,
                     (long long)find_narrowest_picture_element(b).n_total_positions);
  if (findings & CLV_FINDING_TOKENS)
    clv_bytes_printf(out, "\"front\":\"%s\",",
                     are_layers_before_tokens_known(b) ? "known" : "secret");
  clv_bytes_printf(out, "%s\"seed_guessable\":%s}", clv_lengths_describe_json(b, sends_records),
                   b->config->train.seed.is_guessable ? "true" : "false");
}

void clv_privacy_describe(const clv_blueprint *b, bool json, clv_bytes *out) {
  clv_findings findings;
  bool sends_records = find_record_findings(b, &findings);
  uint32_t at = find_stage_of_fewest_head_layers(b);
  if (json) {
    append_json_privacy(b, at, sends_records, findings, out);
    return;
  }
  append_text_labels(b, at, out);
  append_text_records(b, sends_records, findings, out);
  clv_lengths_describe(b, sends_records, out);
  if (sends_records && b->config->train.seed.is_guessable)
    clv_bytes_puts(out,
                   "train.seed can be tried out: weights that are drawn from it count as known\n");
}
