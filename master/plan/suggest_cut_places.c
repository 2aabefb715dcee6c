/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the places where a session's model may be cut: behind a layer where only one value crosses,
 * and so that each layer that must stay at its node stays there.
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/suggest_int.h"

/* ---- layers behind which a cut may be -------------------------------------------------------- */

/* True if the op outputs as many values as it reads. A cut then belongs behind the op, because the
 * kernel of the layer before the op may compute the op as well. */
static bool is_natural_cut_after(clv_op op) {
  const clv_op_def *def = clv_op_def_of(op);
  return def->is_alias || def->takes_tails || (def->elementwise && def->n_in == 1);
}

/* Finds for each node the last layer that reads its value. */
static clv_code find_last_readers(const clv_graph *g, uint32_t n_layers, uint32_t *last_readers) {
  for (int i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i].n_in; k++) {
      uint32_t *last_reader = &last_readers[g->nodes[i].in[k]];
      *last_reader = CLV_MAX(*last_reader, g->nodes[i].layer);
    }
  last_readers[g->output_node] = n_layers;
  return CLV_OK;
}

/* Returns the node of the only value that crosses behind a layer. -1: no value crosses, or several
 * do, or a layer behind it reads a model input, which a new cut should not send to a worker. */
static int find_crossing_node(const clv_graph *g, const uint32_t *last_readers, uint32_t layer) {
  int crossing_node = -1;
  for (int i = 0; i < g->n_nodes; i++) {
    bool is_input = g->nodes[i].op == CLV_OP_INPUT;
    if ((!is_input && g->nodes[i].layer > layer) || last_readers[i] <= layer) continue;
    if (is_input && clv_graph_length_limit(g, i)) continue;
    if (crossing_node >= 0 || is_input) return -1;
    crossing_node = i;
  }
  return crossing_node;
}

static bool is_natural_cut_after_next(const clv_graph *g, uint32_t layer) {
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op != CLV_OP_INPUT && g->nodes[i].layer == layer + 1)
      return is_natural_cut_after(g->nodes[i].op);
  return false;
}

static clv_code find_natural_places(clv_cut_search *c, clv_err *err) {
  CLV_AUTO(clv_freep) uint32_t *last_readers = NULL;
  const clv_graph *g = c->b->full_graph;
  uint32_t n = c->cuts.n_layers;
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *last_readers, &last_readers, err));
  CLV_TRY(clv_alloc(n, sizeof *c->cut_layers, &c->cut_layers, err));
  CLV_TRY(clv_alloc(n, sizeof *c->crossing_bytes, &c->crossing_bytes, err));
  CLV_TRY(find_last_readers(g, n, last_readers));
  for (uint32_t layer = 0; layer < n; layer++) {
    int node = find_crossing_node(g, last_readers, layer);
    size_t bytes;
    if (node < 0) continue;
    CLV_TRY(clv_shape_bytes(&g->nodes[node].shape, g->nodes[node].dtype, &bytes, err));
    c->crossing_bytes[layer] =
        (double)bytes / (double)c->b->micro_size * (double)c->b->config->train.batch;
    if (layer + 1 < n && g->nodes[node].dtype == CLV_F32 && !is_natural_cut_after_next(g, layer))
      c->cut_layers[c->cuts.n_cut_places++] = layer;
  }
  return CLV_OK;
}

/* ---- limits of the places for each cut ------------------------------------------------------- */

static bool is_same_text(const char *a, const char *b) {
  return a == b || (a && b && strcmp(a, b) == 0);
}

static bool are_same_texts(const clv_text_list *a, const clv_text_list *b) {
  if (a->n != b->n) return false;
  for (size_t i = 0; i < a->n; i++)
    if (strcmp(a->items[i], b->items[i]) != 0) return false;
  return true;
}

static bool are_same_adapters(const clv_lora_config *a, const clv_lora_config *b) {
  return are_same_texts(&a->targets, &b->targets) && are_same_texts(&a->train, &b->train) &&
         a->r == b->r && a->alpha == b->alpha && a->dropout == b->dropout &&
         a->rslora == b->rslora && a->base_type == b->base_type;
}

/* Returns why the cut between two stages must stay; NULL: it may move. */
static const char *why_cut_is_pinned(const clv_stage_spec *a, const clv_stage_spec *b) {
  if (a->freeze != b->freeze)
    return "one of them is frozen (train.freeze names parameters instead)";
  if (a->weights_artifact || b->weights_artifact)
    return "an artifact has the weights of its layers";
  if (!are_same_adapters(&a->lora, &b->lora)) return "they have other adapters (lora)";
  if (!is_same_text(a->weights_file, b->weights_file))
    return "their weights are in different files";
  if (!is_same_text(a->weights_folder, b->weights_folder) ||
      !are_same_texts(&a->weights_new, &b->weights_new))
    return "their weights are in different folders";
  return NULL;
}

/* Returns the first layer that learns; n_layers: no layer learns. */
static uint32_t find_first_learning_layer(const clv_cut_search *c) {
  uint32_t first_learning_layer = c->cuts.n_layers;
  for (uint32_t s = 0; s < c->b->n_stages; s++) {
    const clv_stage_plan *stage = &c->b->stages[s];
    for (int i = 0; i < stage->params->n; i++) {
      const clv_param *p = &stage->params->list[i];
      uint32_t layer = stage->graph->nodes[p->node].layer;
      if (p->trainable && !p->frozen) first_learning_layer = CLV_MIN(first_learning_layer, layer);
    }
  }
  return first_learning_layer;
}

/* Findings (ways to read records or labels) of each cut, if the master had all layers on its side
 * of the cut. */
typedef struct cut_findings {
  /* [n_layers] findings of the values that cross behind each layer, and of their gradients */
  clv_findings *value_findings, *gradient_findings;
} cut_findings;

static void free_cut_findings(cut_findings *f) {
  free(f->value_findings);
  free(f->gradient_findings);
}

/* Finds how many of the first layers the master must keep, so that no new cut before the first
 * worker shows more of the records than the session's cut. */
static void limit_front_cuts(clv_cut_search *c, const cut_findings *f) {
  const clv_blueprint *b = c->b;
  uint32_t s = 0, min_layer = 0;
  while (s < b->n_stages && b->stages[s].worker < 0) s++;
  if (s == 0 || s == b->n_stages) return;
  while (min_layer < b->stages[s - 1].last_layer &&
         (f->value_findings[min_layer] & ~b->stages[s - 1].output_findings))
    min_layer++;
  c->min_cut_layers[s - 1] = min_layer;
  if (!min_layer) return;
  clv_bytes_printf(&c->notes,
                   "the master keeps layers 0..%u at least: with fewer, what leaves would show "
                   "more of the records\n",
                   min_layer);
}

/* Finds how many of the last layers the master must keep, if it has the loss, so that no new cut
 * behind the last worker makes labels readable. */
static void limit_head_cuts(clv_cut_search *c, const cut_findings *f) {
  const clv_blueprint *b = c->b;
  uint32_t s = b->n_stages, max_layer = c->cuts.n_layers - 1;
  while (s > 0 && b->stages[s].worker < 0) s--;
  if (s >= b->n_stages - 1 || b->stages[s].worker < 0) return;
  if (b->stages[s].gradient_findings & CLV_FINDING_LABELS_READABLE) {
    /* the cut stays before the first learning layer, where no gradient is sent */
    if (clv_privacy_forbidden_findings(b->config, CLV_FINDING_LABELS_READABLE))
      c->max_cut_layers[s] = c->cuts.first_trained_layer - 1;
    return;
  }
  while (max_layer > 0 && f->gradient_findings[max_layer - 1] != CLV_FINDING_MIXED) max_layer--;
  c->max_cut_layers[s] = max_layer - 1;
  clv_bytes_printf(&c->notes,
                   "the master keeps layer %u and those behind it, with the loss, between the "
                   "labels and the workers\n",
                   max_layer);
}

static clv_code set_cut_limits(clv_cut_search *c, clv_err *err) {
  const clv_blueprint *b = c->b;
  CLV_AUTO(free_cut_findings) cut_findings f = {0};
  uint32_t n_cuts = b->n_stages - 1;
  CLV_TRY(clv_alloc(c->cuts.n_layers, sizeof *f.value_findings, &f.value_findings, err));
  CLV_TRY(clv_alloc(c->cuts.n_layers, sizeof *f.gradient_findings, &f.gradient_findings, err));
  CLV_TRY(clv_privacy_find_cut_findings(b, f.value_findings, f.gradient_findings, err));
  CLV_TRY(clv_alloc(n_cuts + 1, sizeof *c->min_cut_layers, &c->min_cut_layers, err));
  CLV_TRY(clv_alloc(n_cuts + 1, sizeof *c->max_cut_layers, &c->max_cut_layers, err));
  c->cuts.first_trained_layer = find_first_learning_layer(c);
  for (uint32_t i = 0; i < n_cuts; i++) c->max_cut_layers[i] = c->cuts.n_layers - 1;
  limit_front_cuts(c, &f);
  limit_head_cuts(c, &f);
  for (uint32_t i = 0; i < n_cuts; i++) {
    const clv_stage_spec *s = &b->config->stages[i];
    const char *why = why_cut_is_pinned(s, s + 1);
    if (!why) continue;
    c->min_cut_layers[i] = c->max_cut_layers[i] = b->stages[i].last_layer;
    clv_bytes_printf(&c->notes, "the cut between '%s' and '%s' stays: %s\n", s->name, s[1].name,
                     why);
  }
  return CLV_OK;
}

/* Adds to the list of places the session's own cuts that must stay, unless the list has them
 * already. */
static void add_pinned_places(clv_cut_search *c) {
  for (uint32_t i = 0; i + 1 < c->b->n_stages; i++) {
    uint32_t at = c->min_cut_layers[i], k = c->cuts.n_cut_places;
    if (at != c->max_cut_layers[i]) continue;
    for (uint32_t j = 0; j < c->cuts.n_cut_places; j++)
      if (c->cut_layers[j] == at) k = UINT32_MAX;
    if (k == UINT32_MAX) continue;
    for (; k > 0 && c->cut_layers[k - 1] > at; k--) c->cut_layers[k] = c->cut_layers[k - 1];
    c->cut_layers[k] = at;
    c->cuts.n_cut_places++;
  }
}

clv_code clv_cut_search_find_places(clv_cut_search *c, clv_err *err) {
  CLV_TRY(find_natural_places(c, err));
  CLV_TRY(set_cut_limits(c, err));
  add_pinned_places(c);
  return CLV_OK;
}
