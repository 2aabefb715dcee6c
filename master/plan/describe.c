/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what `plan` shows of a blueprint, as text or JSON (clv_blueprint_describe): stages,
 * memory, bytes per step, and the egress table for a security review.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/plan/plan_int.h"

static const char *get_place_name(const clv_blueprint *b, uint32_t i) {
  return b->stages[i].worker < 0 ? "master" : b->config->workers[b->stages[i].worker].name;
}

/* Prints the frozen parameters. For a stage with adapters it prints the learning parameters
 * instead, because nearly all others are frozen. */
static void append_text_frozen_params(const clv_blueprint *b, uint32_t i, clv_bytes *out) {
  const clv_stage_plan *s = &b->stages[i];
  bool has_adapters = b->config->stages[i].lora.targets.n > 0;
  for (int k = 0; k < s->params->n; k++) {
    const clv_param *p = &s->params->list[k];
    if (p->trainable && p->frozen != has_adapters)
      clv_bytes_printf(out, "        %s: %s\n", has_adapters ? "learns" : "frozen", p->name);
  }
}

/* ---- layers of a stage as text --------------------------------------------------------------- */

static const char *get_name_without_prefix(const clv_blueprint *b, const clv_node *n) {
  size_t len = strlen(b->full_graph->name_prefix);
  return n->name + (strncmp(n->name, b->full_graph->name_prefix, len) == 0 ? len : 0);
}

/* Returns the length of the part of a layer name that names its block: up to the first numeric part
 * ("encoder.layer.3"), or else the first part ("embeddings"). */
static size_t get_block_name_len(const char *name) {
  for (const char *at = name; at;) {
    size_t len = strcspn(at, "."), digits = strspn(at, "0123456789");
    if (digits && digits == len) return (size_t)(at - name) + len;
    at = at[len] ? at + len + 1 : NULL;
  }
  return strcspn(name, ".");
}

static bool is_same_block(const clv_blueprint *b, const clv_node *n, const clv_node *m) {
  const char *name = get_name_without_prefix(b, n), *other_name = get_name_without_prefix(b, m);
  size_t len = get_block_name_len(name);
  return len == get_block_name_len(other_name) && strncmp(name, other_name, len) == 0;
}

/* Returns the index of the first node after the block that begins at node k. A model from a
 * config.json has hundreds of similar layers, so one line describes a block of them. */
static int find_block_end(const clv_blueprint *b, const clv_graph *g, int k) {
  int end = k + 1;
  while (b->config->model.hf && end < g->n_nodes && g->nodes[end].layer != CLV_GLUE_LAYER &&
         g->nodes[end].op != CLV_OP_INPUT && is_same_block(b, &g->nodes[k], &g->nodes[end]))
    end++;
  return end;
}

/* Prints one line for layers k to end - 1. */
static void append_text_block(const clv_blueprint *b, const clv_graph *g, const clv_stage_usage *f,
                              int k, int end, clv_bytes *out) {
  const clv_node *first_node = &g->nodes[k], *last_node = &g->nodes[end - 1];
  char shape_text[160], layer_range_text[24], block_name[CLV_NAME_MAX];
  bool uses_ref_kernel = false;
  for (int i = k; i < end; i++) uses_ref_kernel |= f->uses_ref_kernel[i];
  snprintf(layer_range_text, sizeof layer_range_text, "%u..%u", first_node->layer,
           last_node->layer);
  snprintf(block_name, sizeof block_name, "%.*s",
           (int)get_block_name_len(get_name_without_prefix(b, first_node)),
           get_name_without_prefix(b, first_node));
  clv_bytes_printf(out, "    %-9s %-8s %-22s %s%s\n", layer_range_text, "block", block_name,
                   clv_shape_format(&last_node->shape, shape_text, sizeof shape_text),
                   uses_ref_kernel ? "  ref" : "");
}

static void append_text_layers(const clv_blueprint *b, uint32_t i, const clv_stage_usage *f,
                               clv_bytes *out) {
  const clv_graph *g = b->stages[i].graph;
  char shape_text[160];
  for (int k = 0, end; k < g->n_nodes; k = end) {
    const clv_node *n = &g->nodes[k];
    end = k + 1;
    if (n->op == CLV_OP_INPUT || n->layer == CLV_GLUE_LAYER) continue;
    end = find_block_end(b, g, k);
    if (end > k + 1)
      append_text_block(b, g, f, k, end, out);
    else
      clv_bytes_printf(out, "    %3u %-14s %-22s %s%s\n", n->layer, clv_op_name(n->op), n->name,
                       clv_shape_format(&n->shape, shape_text, sizeof shape_text),
                       f->uses_ref_kernel[k] ? "  ref" : "");
  }
}

/* Prints the source of the initial weights, if the weights do not start from the seed. */
static void append_text_weights(const clv_stage_spec *s, clv_bytes *out) {
  const char *weights_source = s->weights_folder ? s->weights_folder : s->weights_file;
  if (s->weights_artifact)
    clv_bytes_printf(out, "    begins with artifact '%s' of its worker", s->weights_artifact);
  else if (weights_source)
    clv_bytes_printf(out, "    begins with %s", weights_source);
  else
    return;
  if (s->weights_sha256) clv_bytes_printf(out, " (sha256 %.16s...)", s->weights_sha256);
  for (size_t i = 0; i < s->weights_new.n; i++)
    clv_bytes_printf(out, "%s%s", i ? ", " : "; from the seed: ", s->weights_new.items[i]);
  clv_bytes_puts(out, "\n");
}

static void append_text_ties(const clv_blueprint *b, uint32_t i, clv_bytes *out) {
  const clv_params *p = b->stages[i].params;
  for (int k = 0; k < p->n_ties; k++) {
    uint32_t owner_stage;
    const char *weight_name = "";
    bool is_owned_by_other_stage = clv_stage_tie_owner(b, i, k, &owner_stage, &weight_name);
    clv_bytes_printf(out, "    tied: %s is %s%s%s\n", p->ties[k].param.name, weight_name,
                     is_owned_by_other_stage ? " of stage " : "",
                     is_owned_by_other_stage ? b->config->stages[owner_stage].name : "");
  }
}

static void append_json_ties(const clv_blueprint *b, uint32_t i, clv_bytes *out) {
  const clv_params *p = b->stages[i].params;
  clv_bytes_puts(out, ",\"ties\":[");
  for (int k = 0; k < p->n_ties; k++) {
    uint32_t owner_stage;
    const char *weight = "";
    (void)clv_stage_tie_owner(b, i, k, &owner_stage, &weight);
    clv_bytes_puts(out, k ? ",{\"weight\":" : "{\"weight\":");
    clv_bytes_add_json(out, p->ties[k].param.name);
    clv_bytes_puts(out, ",\"owner_weight\":");
    clv_bytes_add_json(out, weight);
    /* repeats the name of the owner's weight under the key that releases before 0.9 used */
    clv_bytes_puts(out, ",\"of\":");
    clv_bytes_add_json(out, weight);
    clv_bytes_puts(out, ",\"stage\":");
    clv_bytes_add_json(out, b->config->stages[owner_stage].name);
    clv_bytes_puts(out, "}");
  }
  clv_bytes_puts(out, "]");
}

/* Prints the device, because results are bit-identical only on devices of the same kind, and
 * because the printed memory was computed for this kind. */
static void append_text_device(const char *device, const clv_stage_usage *f, clv_bytes *out) {
  char workspace_text[24];
  if (!f->is_on_device) return;
  clv_bytes_printf(
      out, "    computes on %s: its bits are those of such devices, and so is its memory", device);
  if (f->max_workspace_bytes)
    clv_bytes_printf(
        out, "; libraries may use up to %s more",
        clv_format_size(f->max_workspace_bytes, workspace_text, sizeof workspace_text));
  clv_bytes_puts(out, "\n");
}

static const char *get_transfer_name(const clv_blueprint *b, uint32_t i) {
  const clv_stage_plan *s = &b->stages[i], *next_stage = s + 1;
  if (s->worker == next_stage->worker) return "same process";
  if (s->sends_directly) return "direct";
  return s->worker >= 0 && next_stage->worker >= 0 ? "via the master" : "master <-> worker";
}

/* Prints the findings of a direct transfer between workers (how records and labels can be read from
 * it), because such a transfer has no row in the egress table. */
static void append_text_hop(const clv_stage_plan *s, clv_bytes *out) {
  char value_text[CLV_FINDINGS_TEXT_BYTES], gradient_text[CLV_FINDINGS_TEXT_BYTES];
  clv_findings_format(s->hop_findings, value_text);
  clv_findings_format(s->gradient_findings, gradient_text);
  if (*value_text) clv_bytes_printf(out, ": %s", value_text);
  if (*gradient_text && s[1].input_needs_grad)
    clv_bytes_printf(out, "%s %s", *value_text ? "," : ":", gradient_text);
}

static void append_text_cut(const clv_blueprint *b, uint32_t i, size_t bytes, int64_t n_positions,
                            clv_bytes *out) {
  char size_text[24];
  clv_bytes_printf(out, "    -> %s: %s a step each way",
                   i + 1 < b->n_stages ? b->config->stages[i + 1].name : "loss",
                   clv_format_size(bytes, size_text, sizeof size_text));
  clv_lengths_append_expected(b, n_positions, bytes, out);
  clv_bytes_printf(out, ", %s", get_transfer_name(b, i));
  if (b->stages[i].sends_directly) append_text_hop(&b->stages[i], out);
  clv_bytes_puts(out, "\n");
}

static void append_text_stage(const clv_blueprint *b, uint32_t i, const clv_stage_usage *f,
                              clv_bytes *out) {
  const clv_stage_plan *s = &b->stages[i];
  char weights_text[24], memory_text[24];
  size_t cut_bytes = 0;
  const clv_node *last = &s->graph->nodes[s->graph->output_node];
  clv_shape batch_shape = last->shape;
  batch_shape.dim[0] = (int64_t)b->config->train.batch * CLV_MAX(last->max_positions, 1);
  if (clv_shape_bytes(&batch_shape, last->dtype, &cut_bytes, NULL) != CLV_OK) cut_bytes = 0;
  clv_bytes_printf(
      out, "  %-12s %-12s layers %u..%u  %zu parameters (%s)  memory %s  reorders/step %d\n",
      b->config->stages[i].name, get_place_name(b, i), s->first_layer, s->last_layer,
      f->n_param_values, clv_format_size(f->weight_bytes, weights_text, sizeof weights_text),
      clv_format_size(f->total_bytes, memory_text, sizeof memory_text), f->n_reorders);
  append_text_device(clv_stage_device(b, i), f, out);
  append_text_weights(&b->config->stages[i], out);
  append_text_layers(b, i, f, out);
  append_text_frozen_params(b, i, out);
  append_text_ties(b, i, out);
  if (i + 1 < b->n_stages || b->stages[b->n_stages].worker >= 0)
    append_text_cut(b, i, cut_bytes, last->max_positions, out);
}

static void append_text_tf32(const clv_blueprint *b, clv_bytes *out) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->config->stages[i].tf32)
      clv_bytes_printf(out, "stage '%s' may round factors to tf32, on a device that can\n",
                       b->config->stages[i].name);
}

static void append_text_policy(const clv_policy *p, clv_bytes *out) {
  const char *approver = clv_policy_approver(p);
  if (!p)
    clv_bytes_puts(out, "no policy: `privacy` in the session file decides\n");
  else
    clv_bytes_printf(out, "policy: %s, sha256 %.16s..., %s%s\n", clv_policy_path(p),
                     clv_policy_sha256(p), approver[0] ? "signed by " : "not signed", approver);
}

static void append_json_policy(const clv_policy *p, clv_bytes *out) {
  if (!p) {
    clv_bytes_puts(out, "null");
    return;
  }
  clv_bytes_puts(out, "{\"path\":");
  clv_bytes_add_json(out, clv_policy_path(p));
  clv_bytes_printf(out, ",\"sha256\":\"%s\",\"approver\":", clv_policy_sha256(p));
  clv_bytes_add_json(out, clv_policy_approver(p));
  clv_bytes_puts(out, "}");
}

/* Prints a line for each value that crosses a cut, if several values cross the cut together. */
static void append_text_crossing_values(const clv_blueprint *b, const clv_egress_row *r,
                                        clv_bytes *out) {
  const clv_node *crossing_values[CLV_MAX_NODES];
  char shape_text[160], value_name[96];
  if (r->n_values < 2) return;
  clv_blueprint_list_cut_values(b, r->stage, crossing_values);
  for (uint32_t k = 0; k < r->n_values; k++) {
    snprintf(value_name, sizeof value_name, "of layer %u '%s'", crossing_values[k]->layer,
             crossing_values[k]->name);
    clv_bytes_printf(out, "    %-46s %s\n", value_name,
                     clv_shape_format(&crossing_values[k]->shape, shape_text, sizeof shape_text));
  }
}

static void append_text_egress(const clv_blueprint *b, clv_bytes *out) {
  char shape_text[160], size_text[24], findings_buf[CLV_FINDINGS_TEXT_BYTES];
  clv_bytes_puts(out, "leaves the private network:\n");
  if (!b->n_egress) clv_bytes_puts(out, "  nothing: every stage runs on the master\n");
  for (size_t i = 0; i < b->n_egress; i++) {
    const clv_egress_row *r = &b->egress[i];
    const clv_remote_spec *w = &b->config->workers[r->worker];
    bool is_state = clv_egress_is_state(r->kind);
    bool has_no_findings =
        r->kind == CLV_EGRESS_INPUT || r->kind == CLV_EGRESS_LABELS || r->is_relayed;
    const char *findings_text =
        has_no_findings ? "" : clv_findings_format(r->findings, findings_buf);
    clv_bytes_printf(
        out, "  %-48s %-18s %-4s %10s%s  to %s%s (%s)%s%s%s", r->name,
        r->kind == CLV_EGRESS_STATE ? "moments"
        : is_state                  ? "parameters"
                                    : clv_shape_format(&r->shape, shape_text, sizeof shape_text),
        clv_dtype_name(r->dtype), clv_format_size(r->bytes_per_step, size_text, sizeof size_text),
        is_state ? " once  " : "/step", r->is_for_spare ? "spare " : "", w->name, w->identity,
        r->is_relayed ? ", relayed" : "", *findings_text ? ", " : "", findings_text);
    clv_lengths_append_expected(b, r->max_positions, r->bytes_per_step, out);
    clv_bytes_puts(out, "\n");
    append_text_crossing_values(b, r, out);
  }
  clv_privacy_describe(b, false, out);
  clv_look_describe(b, out);
  clv_known_layers_describe(b, false, out);
  clv_moved_layers_describe(&b->moved_layers, false, out);
  clv_label_order_describe(b, false, out);
  clv_sampling_describe(b, false, out);
  clv_cache_describe(b, false, out);
  append_text_policy(b->policy, out);
}

/* Appends a JSON list, with the key `key`, of the layers that the reference kernel computes. */
static void append_json_ref_layers(const char *key, const clv_graph *g, const clv_stage_usage *f,
                                   clv_bytes *out) {
  clv_bytes_printf(out, ",\"%s\":[", key);
  for (int k = 0, n = 0; k < g->n_nodes; k++)
    if (f->uses_ref_kernel[k]) clv_bytes_printf(out, "%s%u", n++ ? "," : "", g->nodes[k].layer);
  clv_bytes_puts(out, "]");
}

static void append_json_stage(const clv_blueprint *b, uint32_t i, const clv_stage_usage *f,
                              clv_bytes *out) {
  char findings_text[CLV_FINDINGS_TEXT_BYTES];
  clv_bytes_printf(out, "%s{\"name\":", i ? "," : "");
  clv_bytes_add_json(out, b->config->stages[i].name);
  clv_bytes_puts(out, ",\"at\":");
  clv_bytes_add_json(out, get_place_name(b, i));
  clv_bytes_puts(out, ",\"device\":");
  clv_bytes_add_json(out, b->config->stages[i].device);
  clv_bytes_puts(out, ",\"computes_on\":");
  if (b->stages[i].device[0])
    clv_bytes_add_json(out, b->stages[i].device);
  else
    clv_bytes_puts(out, "null");
  clv_bytes_printf(out, ",\"tf32\":%s", b->config->stages[i].tf32 ? "true" : "false");
  clv_bytes_printf(out,
                   ",\"layers\":[%u,%u],\"parameters\":%zu,\"weight_bytes\":%zu,"
                   "\"optimizer_bytes\":%zu,\"activation_bytes\":%zu,\"scratch_bytes\":%zu,"
                   "\"cache_bytes\":%zu,\"value_bytes\":%zu,\"kept_bytes\":%zu,"
                   "\"evaluation_bytes\":%zu,"
                   "\"memory_bytes\":%zu,\"library_workspace_bytes\":%zu,\"borrowed_bytes\":%zu,"
                   "\"reorders_per_step\":%d,\"direct\":%s,\"direct_shows\":\"%s\"",
                   b->stages[i].first_layer, b->stages[i].last_layer, f->n_param_values,
                   f->weight_bytes, f->optimizer_bytes, f->activation_bytes, f->scratch_bytes,
                   f->cache_bytes, f->value_bytes, f->resident_bytes, f->evaluation_bytes,
                   f->total_bytes, f->max_workspace_bytes, f->max_workspace_bytes, f->n_reorders,
                   b->stages[i].sends_directly ? "true" : "false",
                   clv_findings_format(
                       b->stages[i].sends_directly ? b->stages[i].hop_findings : CLV_FINDING_MIXED,
                       findings_text));
  append_json_ref_layers("fallback_layers", b->stages[i].graph, f, out);
  append_json_ref_layers("ref_layers", b->stages[i].graph, f,
                         out); /* repeats the list under the key that releases before 0.9 used */
  append_json_ties(b, i, out);
  clv_bytes_puts(out, "}");
}

static void append_json_shape(const clv_shape *shape, clv_bytes *out) {
  for (int d = 0; d < shape->rank; d++)
    clv_bytes_printf(out, "%s%lld", d ? "," : "", (long long)shape->dim[d]);
}

static void append_json_crossing_values(const clv_blueprint *b, const clv_egress_row *r,
                                        clv_bytes *out) {
  const clv_node *crossing_values[CLV_MAX_NODES];
  if (r->n_values < 2) return;
  clv_blueprint_list_cut_values(b, r->stage, crossing_values);
  for (uint32_t k = 0; k < r->n_values; k++) {
    clv_bytes_printf(out, "%s{\"layer\":%u,\"name\":", k ? "," : ",\"values\":[",
                     crossing_values[k]->layer);
    clv_bytes_add_json(out, crossing_values[k]->name);
    clv_bytes_puts(out, ",\"shape\":[");
    append_json_shape(&crossing_values[k]->shape, out);
    clv_bytes_puts(out, "]}");
  }
  clv_bytes_puts(out, "]");
}

static void append_json_egress(const clv_blueprint *b, clv_bytes *out) {
  char findings_buf[CLV_FINDINGS_TEXT_BYTES];
  for (size_t i = 0; i < b->n_egress; i++) {
    const clv_egress_row *r = &b->egress[i];
    clv_bytes_printf(out, "%s{\"tensor\":", i ? "," : "");
    clv_bytes_add_json(out, r->name);
    clv_bytes_puts(out, ",\"to\":");
    clv_bytes_add_json(out, b->config->workers[r->worker].name);
    clv_bytes_puts(out, ",\"identity\":");
    clv_bytes_add_json(out, b->config->workers[r->worker].identity);
    clv_bytes_puts(out, ",\"shape\":[");
    append_json_shape(&r->shape, out);
    clv_bytes_printf(
        out,
        "],\"dtype\":\"%s\",\"bytes_per_step\":%llu,\"expected_bytes_per_step\":%llu,"
        "\"relayed\":%s,\"spare\":%s,\"shows\":\"%s\"",
        clv_dtype_name(r->dtype), (unsigned long long)r->bytes_per_step,
        (unsigned long long)clv_lengths_expected_bytes(b, r->max_positions, r->bytes_per_step),
        r->is_relayed ? "true" : "false", r->is_for_spare ? "true" : "false",
        clv_findings_format(r->findings, findings_buf));
    append_json_crossing_values(b, r, out);
    clv_bytes_puts(out, "}");
  }
}

void clv_blueprint_describe_egress(const clv_blueprint *b, bool json, clv_bytes *out) {
  if (!json) {
    append_text_egress(b, out);
    return;
  }
  clv_bytes_puts(out, "\"egress\":[");
  append_json_egress(b, out);
  clv_bytes_puts(out, "],\"policy\":");
  append_json_policy(b->policy, out);
}

static void append_json_seed(const clv_blueprint *b, clv_bytes *out) {
  const clv_seed *seed = &b->config->train.seed;
  const char *seed_origin = seed->is_guessable ? "guessable" : seed->is_given ? "given" : "drawn";
  clv_bytes_printf(out, ",\"seed\":\"%s\"", seed_origin);
}

/* Appends when checkpoints are written: "of every 500 steps". */
static void append_checkpoint_interval(const clv_session_config *c, clv_bytes *out) {
  if (c->checkpoint.every)
    clv_bytes_printf(out, "(checkpoint.every: %s)", c->checkpoint.every);
  else
    clv_bytes_printf(out, "of every %llu steps", (unsigned long long)c->checkpoint.every_steps);
}

/* Appends what the run does after it has lost a worker. */
static void append_text_recovery(const clv_blueprint *b, clv_bytes *out) {
  const clv_session_config *c = b->config;
  bool has_worker = false;
  for (size_t i = 0; i < c->n_workers; i++) has_worker |= b->is_worker_used[i];
  if (!has_worker) return;
  if (c->recovery.use == CLV_RECOVERY_OFF) {
    clv_bytes_puts(out, "a lost worker ends the run (recovery: off)\n");
    return;
  }
  clv_bytes_printf(out,
                   "a lost worker: the run connects again for up to %.0f s, and goes on from its "
                   "newest checkpoint, ",
                   (double)c->recovery.give_up_after_ms / 1e3);
  append_checkpoint_interval(c, out);
  clv_bytes_puts(out, " (recovery)\n");
}

static void append_json_recovery(const clv_blueprint *b, clv_bytes *out) {
  const clv_session_config *c = b->config;
  if (c->recovery.use == CLV_RECOVERY_OFF)
    clv_bytes_puts(out, ",\"recovery\":null");
  else
    clv_bytes_printf(out,
                     ",\"recovery\":{\"attempts\":%llu,\"wait_s\":%.3f,\"give_up_after_s\":%.3f}",
                     (unsigned long long)c->recovery.attempts, (double)c->recovery.wait_ms / 1e3,
                     (double)c->recovery.give_up_after_ms / 1e3);
}

/* Appends the members of the JSON object that follow the list of stages. */
static void append_json_after_stages(const clv_blueprint *b, clv_bytes *out) {
  clv_bytes_puts(out, "],");
  clv_blueprint_describe_egress(b, true, out);
  clv_bytes_puts(out, ",\"privacy\":");
  clv_privacy_describe(b, true, out);
  clv_bytes_puts(out, ",\"known_layers\":");
  clv_known_layers_describe(b, true, out);
  clv_bytes_puts(out, ",\"moved_layers\":");
  clv_moved_layers_describe(&b->moved_layers, true, out);
  clv_bytes_puts(out, ",\"labels_by_order\":");
  clv_label_order_describe(b, true, out);
  clv_bytes_puts(out, ",\"labels_by_frequency\":");
  clv_sampling_describe(b, true, out);
  clv_look_describe_json(b, out);
  clv_bytes_puts(out, ",\"cache\":");
  clv_cache_describe(b, true, out);
  clv_bytes_puts(out, ",\"checkpoints_at_workers\":");
  clv_kept_bytes_describe(b, true, out);
  clv_ema_describe(b, true, out);
  append_json_recovery(b, out);
  append_json_seed(b, out);
  clv_bytes_puts(out, "}\n");
}

/* Returns which ops compute in bf16, and with which instructions of this processor. Workers may
 * have other processors. */
static const char *get_bf16_text(const clv_session_config *c) {
  const clv_backend *cpu = clv_backend_cpu();
  const char *isa = clv_backend_isa(cpu);
  clv_err reason;
  if (c->train.dtype != CLV_COMPUTE_BF16) return "";
  if (cpu->check_bf16(cpu, &reason) != CLV_OK) return ", conv2d and linear in bf16";
  if (strstr(isa, "amx") && !strstr(isa, "refused"))
    return ", conv2d, linear, lstm and attention in bf16 (with AMX on this processor)";
  return ", conv2d and linear in bf16 (this processor has AVX512-BF16 without AMX)";
}

/* Returns the time of an op in bf16 in percent of its time in f32: the largest
 * clv_backend_cpu_bf16_percent of the session's nodes with this op. */
static unsigned find_max_bf16_percent(const clv_blueprint *b, clv_op op,
                                      const char **ret_processor) {
  unsigned max_percent = 0;
  for (uint32_t i = 0; i < b->n_stages; i++)
    for (int k = 0; k < b->stages[i].graph->n_nodes; k++) {
      const clv_node *nodes = b->stages[i].graph->nodes, *node = &nodes[k];
      if (node->op != op) continue;
      const clv_node_desc d = {.op = op,
                               .attrs = node->attrs,
                               .n_in = 1,
                               .in = {nodes[node->in[0]].shape},
                               .out = node->shape};
      max_percent = CLV_MAX(max_percent, clv_backend_cpu_bf16_percent(&d, ret_processor));
    }
  return max_percent;
}

/* Names the ops of the session that take longer in bf16 than in f32 on this processor. Differences
 * of up to TOLERATED_EXCESS_PERCENT are not reported, because measurements differ as much. */
static void append_ops_slower_in_bf16(const clv_blueprint *b, bool json, clv_bytes *out) {
  enum { TOLERATED_EXCESS_PERCENT = 5 };
  static const clv_op compared_ops[] = {CLV_OP_CONV2D, CLV_OP_LINEAR, CLV_OP_LSTM,
                                        CLV_OP_ATTENTION};
  const char *processor = "";
  bool is_first = true;
  if (json) clv_bytes_puts(out, ",\"slower_in_bf16\":[");
  for (size_t i = 0; i < CLV_COUNT(compared_ops) && clv_blueprint_is_bf16(b); i++) {
    unsigned bf16_percent = find_max_bf16_percent(b, compared_ops[i], &processor);
    if (bf16_percent <= 100 + TOLERATED_EXCESS_PERCENT) continue;
    if (json)
      clv_bytes_printf(out, "%s{\"op\":\"%s\",\"times\":%.2f,\"measured_on\":\"%s\"}",
                       is_first ? "" : ",", clv_op_name(compared_ops[i]), bf16_percent / 100.0,
                       processor);
    else
      clv_bytes_printf(out,
                       "  on this processor %s takes up to %.2f times as long in bf16 as in f32 "
                       "(measured on %s): train.dtype: f32 is faster\n",
                       clv_op_name(compared_ops[i]), bf16_percent / 100.0, processor);
    is_first = false;
  }
  if (json) clv_bytes_puts(out, "]");
}

/* Prints that OpenBLAS is not used, because on this processor its kernels are slower than those of
 * oneDNN. */
static void append_unused_blas(clv_bytes *out) {
  const char *libraries = clv_backend_libraries(clv_backend_cpu());
  const char *blas_name = strstr(libraries, "OpenBLAS "),
             *why_unused = strstr(libraries, " (not used: ");
  if (blas_name && why_unused)
    clv_bytes_printf(out,
                     "  on this processor %.*s is not used, because its vectors are too narrow: "
                     "OPENBLAS_CORETYPE names other kernels\n",
                     (int)(why_unused - blas_name), blas_name);
}

/* Appends the keys of Hugging Face's files that the session ignores (model.ignore_keys). */
static void append_ignored_keys(const clv_session_config *c, bool json, clv_bytes *out) {
  const clv_text_list *ignored_keys = &c->model.ignore_keys;
  if (json) clv_bytes_puts(out, ",\"ignored_keys\":[");
  if (!json && ignored_keys->n)
    clv_bytes_puts(out, "  not read of Hugging Face's files (model.ignore_keys): ");
  for (size_t i = 0; i < ignored_keys->n; i++) {
    if (i) clv_bytes_puts(out, json ? "," : ", ");
    if (json)
      clv_bytes_add_json(out, ignored_keys->items[i]);
    else
      clv_bytes_puts(out, ignored_keys->items[i]);
  }
  clv_bytes_puts(out, json ? "]" : ignored_keys->n ? "\n" : "");
}

clv_code clv_blueprint_describe(const clv_blueprint *b, bool json, clv_bytes *out, clv_err *err) {
  const clv_session_config *c = b->config;
  CLV_AUTO(clv_placed_schedule_freep) clv_placed_schedule *l = NULL;
  uint32_t n_steps = clv_pipeline_steps_per_round(c);
  CLV_TRY(clv_placed_schedule_new(b, b->micro_batches * n_steps, n_steps,
                                  clv_pipeline_initial_window(c), NULL, &l, err));
  if (json) {
    clv_bytes_puts(out, "{\"session\":");
    clv_bytes_add_json(out, c->name);
    clv_bytes_printf(out, ",\"batch\":%llu,\"micro_batches\":%u,\"dtype\":\"%s\"",
                     (unsigned long long)c->train.batch, b->micro_batches,
                     clv_compute_name(c->train.dtype));
    clv_targets_describe(c, true, out);
    append_ops_slower_in_bf16(b, true, out);
    append_ignored_keys(c, true, out);
    clv_bytes_puts(out, ",\"stages\":[");
  } else {
    clv_bytes_printf(out, "session %s: batch %llu in %u micro-batches%s (%s), loss %s at %s%s\n",
                     c->name, (unsigned long long)c->train.batch, b->micro_batches,
                     c->pipeline.micro_batches == CLV_MICRO_AUTO ? ", until a run chooses" : "",
                     clv_pipeline_name(c->pipeline.schedule), clv_loss_name(c->loss.kind),
                     get_place_name(b, b->n_stages), get_bf16_text(c));
    clv_targets_describe(c, false, out);
    append_ops_slower_in_bf16(b, false, out);
    append_unused_blas(out);
    append_ignored_keys(c, false, out);
    clv_pictures_describe(c, out);
  }
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_stage_usage f;
    CLV_TRY(clv_stage_usage_compute(b, i, CLV_MAX(l->report.max_live_micros[i], 1u),
                                    CLV_MAX(l->report.max_weight_versions[i], 1u), &f, err));
    (json ? append_json_stage : append_text_stage)(b, i, &f, out);
  }
  if (json) {
    append_json_after_stages(b, out);
  } else {
    append_text_tf32(b, out);
    clv_blueprint_describe_egress(b, false, out);
    append_text_recovery(b, out);
    clv_kept_bytes_describe(b, false, out);
    clv_ema_describe(b, false, out);
  }
  return CLV_OK;
}
