/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the cuts of plan --suggest-cuts, as text or JSON.
 */
#include <stdio.h>
#include <string.h>

#include "master/plan/suggest_int.h"

static const char *get_place_name(const clv_cut_search *c, uint32_t s) {
  int worker = c->b->stages[s].worker;
  return worker < 0 ? "master" : c->b->config->workers[worker].name;
}

static const char *get_layer_name(const clv_cut_search *c, uint32_t layer) {
  const clv_graph *g = c->b->full_graph;
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op != CLV_OP_INPUT && g->nodes[i].layer == layer) {
      size_t digits = strspn(g->nodes[i].name, "0123456789");
      return g->nodes[i].name[digits] ? g->nodes[i].name : clv_op_name(g->nodes[i].op);
    }
  return "?";
}

/* ---- suggested cuts as text ------------------------------------------------------------------ */

static void append_text_stage(const clv_cut_search *c, const clv_cut_plan *w, uint32_t s,
                              clv_bytes *out) {
  char memory_text[24], sent_text[24], layer_range_text[64], stage_name[25];
  const clv_cut_stage *stage = &w->stages[s];
  snprintf(layer_range_text, sizeof layer_range_text, "%u..%u (%s)", stage->first_layer,
           stage->last_layer,
           clv_text_truncate(get_layer_name(c, stage->last_layer), stage_name, sizeof stage_name));
  clv_bytes_printf(out, "    %-12s %-12s layers %-28s computes %8.1f ms  memory %10s",
                   c->b->config->stages[s].name, get_place_name(c, s), layer_range_text,
                   1e3 * stage->busy_s,
                   clv_format_size(stage->memory_bytes, memory_text, sizeof memory_text));
  if (stage->send_s > 0)
    clv_bytes_printf(out, "  -> %s each way, %.1f ms on the link",
                     clv_format_size((uint64_t)stage->sent_bytes, sent_text, sizeof sent_text),
                     1e3 * stage->send_s);
  clv_bytes_puts(out, "\n");
}

static void append_text_plan(const clv_cut_search *c, const char *title, const clv_cut_plan *w,
                             clv_bytes *out) {
  clv_bytes_printf(out, "%s: %.1f ms a step", title, 1e3 * w->split.seconds);
  if (w != &c->session_plan)
    clv_bytes_printf(out, " (%.2f of now)", w->split.seconds / c->session_plan.split.seconds);
  clv_bytes_printf(out, ", bubble %.1f %%, %u micro-batch%s", 100 * w->split.bubble,
                   w->split.n_micro_batches, w->split.n_micro_batches > 1 ? "es" : "");
  if (w->split.window) clv_bytes_printf(out, ", window %u", w->split.window);
  clv_bytes_puts(out, "\n");
  for (uint32_t s = 0; s < c->b->n_stages; s++) append_text_stage(c, w, s, out);
}

static void append_text_sizes(const clv_cut_search *c, clv_bytes *out) {
  const clv_profile *p = c->profiles[0];
  clv_bytes_printf(out, "layers timed on this machine with %d thread%s", p->threads,
                   p->threads > 1 ? "s" : "");
  for (uint32_t i = 1; i < c->n_profiles; i++)
    clv_bytes_printf(out, " and with %d", c->profiles[i]->threads);
  clv_bytes_puts(out, ", and");
  for (uint32_t i = 0; i < p->n_sizes; i++)
    clv_bytes_printf(out, "%s %lld", i ? "," : "", (long long)p->sample_counts[i]);
  clv_bytes_puts(out, " samples\n");
}

/* Warns if the best plan cuts nearer to the input than the session does, because this shows more of
 * the records. */
static void warn_of_earlier_cut(const clv_cut_search *c, clv_bytes *out) {
  uint32_t session_cut_layer = c->session_plan.split.last_layers[0],
           suggested_cut_layer = c->best_plans[0].split.last_layers[0];
  if (c->b->stages[0].worker >= 0 || suggested_cut_layer >= session_cut_layer) return;
  clv_bytes_printf(
      out,
      "note: the master would keep layers 0..%u instead of 0..%u, and what leaves behind "
      "layer %u shows more of the records\n",
      suggested_cut_layer, session_cut_layer, suggested_cut_layer);
}

/* Warns if the best plan has another number of micro-batches and the model has batch norm, because
 * batch norm uses the statistics of a micro-batch. */
static void warn_of_batch_norm(const clv_cut_search *c, clv_bytes *out) {
  const clv_graph *g = c->b->full_graph;
  uint32_t n_session_micro_batches = c->session_plan.split.n_micro_batches,
           n_suggested_micro_batches = c->best_plans[0].split.n_micro_batches;
  double batch = (double)c->b->config->train.batch;
  bool has_batch_norm = false;
  for (int i = 0; i < g->n_nodes; i++) {
    const clv_op_def *def = clv_op_def_of(g->nodes[i].op);
    has_batch_norm |= def && def->uses_batch_statistics;
  }
  if (has_batch_norm && n_suggested_micro_batches != n_session_micro_batches)
    clv_bytes_printf(out, "note: batch norm would see %.4g samples at a time instead of %.4g\n",
                     batch / n_suggested_micro_batches, batch / n_session_micro_batches);
}

static void print_text(const clv_cut_search *c, clv_bytes *out) {
  char title[24];
  append_text_sizes(c, out);
  if (c->links->notes.len)
    clv_bytes_printf(out, "links: %s; nothing was sent\n", c->links->notes.data);
  if (c->notes.len) clv_bytes_puts(out, c->notes.data);
  clv_bytes_printf(out,
                   "%u places to cut, %llu ways with the numbers of micro-batches, %llu of them "
                   "simulated (%s)\n\n",
                   c->cuts.n_cut_places, (unsigned long long)c->search.n_possible,
                   (unsigned long long)c->search.n_simulated,
                   c->search.is_optimal ? "the others cannot be better" : "too many to be sure");
  append_text_plan(c, "as it is", &c->session_plan, out);
  for (uint32_t i = 0; i < c->n_best_plans; i++) {
    snprintf(title, sizeof title, "%u", i + 1);
    append_text_plan(c, title, &c->best_plans[i], out);
  }
  warn_of_earlier_cut(c, out);
  warn_of_batch_norm(c, out);
  clv_bytes_printf(out, "\n# 1, for the session file; under pipeline: micro_batches: %u\n%s",
                   c->best_plans[0].split.n_micro_batches, c->best_plans[0].yaml.data);
}

/* ---- suggested cuts as JSON ------------------------------------------------------------------ */

static void append_json_plan(const clv_cut_search *c, const clv_cut_plan *w, clv_bytes *out) {
  clv_bytes_printf(
      out, "{\"step_s\":%.9f,\"bubble\":%.6f,\"micro_batches\":%u,\"window\":%u,\"stages\":[",
      w->split.seconds, w->split.bubble, w->split.n_micro_batches, w->split.window);
  for (uint32_t s = 0; s < c->b->n_stages; s++) {
    const clv_cut_stage *stage = &w->stages[s];
    clv_bytes_printf(out, "%s{\"name\":", s ? "," : "");
    clv_bytes_add_json(out, c->b->config->stages[s].name);
    clv_bytes_puts(out, ",\"at\":");
    clv_bytes_add_json(out, get_place_name(c, s));
    clv_bytes_printf(out,
                     ",\"layers\":[%u,%u],\"busy_s\":%.9f,\"memory_bytes\":%zu,\"cut_bytes\":%.0f,"
                     "\"link_s\":%.9f}",
                     stage->first_layer, stage->last_layer, stage->busy_s, stage->memory_bytes,
                     stage->sent_bytes, stage->send_s);
  }
  clv_bytes_puts(out, "],\"yaml\":");
  clv_bytes_add_json(out, w->yaml.data);
  clv_bytes_puts(out, "}");
}

static void print_json(const clv_cut_search *c, clv_bytes *out) {
  clv_bytes_puts(out, "{\"session\":");
  clv_bytes_add_json(out, c->b->config->name);
  clv_bytes_puts(out, ",\"links\":");
  clv_bytes_add_json(out, c->links->notes.len ? c->links->notes.data : "");
  clv_bytes_printf(
      out, ",\"places\":%u,\"possible\":%llu,\"simulated\":%llu,\"complete\":%s,\"now\":",
      c->cuts.n_cut_places, (unsigned long long)c->search.n_possible,
      (unsigned long long)c->search.n_simulated, c->search.is_optimal ? "true" : "false");
  append_json_plan(c, &c->session_plan, out);
  clv_bytes_puts(out, ",\"best\":[");
  for (uint32_t i = 0; i < c->n_best_plans; i++) {
    clv_bytes_puts(out, i ? "," : "");
    append_json_plan(c, &c->best_plans[i], out);
  }
  clv_bytes_puts(out, "]}\n");
}

void clv_cut_search_print(const clv_cut_search *c, bool json, clv_bytes *out) {
  (json ? print_json : print_text)(c, out);
}
