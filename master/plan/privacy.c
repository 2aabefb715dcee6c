/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes what a worker can read of records and labels (clv_privacy_analyze). Each path from a
 * record to a tensor counts alone: a sum is as readable as the most readable of its addends.
 *
 * Forwards from the records: on each path to a tensor that leaves, a layer of the master must mix
 * by weights whose initial values no worker can know. Otherwise the tensor shows the values that it
 * is made of. Backwards from the loss: on each path of a gradient to a worker there must be such a
 * layer, and it must learn. A gradient also shows records if layers behind a worker read them.
 *
 * Initial values are secret if they are drawn from a seed that cannot be guessed, or come from a
 * file that the session declares secret. A worker knows its own layers, and workers may talk to
 * each other, so a layer at any worker hides nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "master/plan/privacy_int.h"

/* ---- layers that hide records or labels ------------------------------------------------------ */

bool clv_privacy_is_input(const clv_privacy_view *v, int k) {
  return v->g->nodes[k].op == CLV_OP_INPUT;
}

bool clv_privacy_is_at_master(const clv_privacy_view *v, int k) {
  return v->assumes_all_at_master || v->b->stages[v->layers[k].stage].worker < 0;
}

bool clv_privacy_is_mixing(const clv_privacy_view *v, int k) {
  return !clv_privacy_is_input(v, k) && clv_privacy_is_at_master(v, k) &&
         clv_op_def_of(v->g->nodes[k].op)->mixing != CLV_MIXES_NOTHING;
}

/* True if the master also has the transposed weights of the layer, because another layer is tied to
 * it. If many features lie between the two layers, one nearly undoes the other. */
static bool has_transposed_twin(const clv_privacy_view *v, int k) {
  const clv_node *n = &v->g->nodes[k];
  for (int i = 0; i < v->g->n_nodes; i++) {
    const clv_node *m = &v->g->nodes[i];
    bool is_tied =
        i != k && (strcmp(m->tie_owner, n->name) == 0 || strcmp(n->tie_owner, m->name) == 0);
    bool is_transposed = m->op != n->op || m->attrs.transposed != n->attrs.transposed;
    if (is_tied && is_transposed && clv_privacy_is_mixing(v, i)) return true;
  }
  return false;
}

const char *clv_privacy_why_hides_nothing(const clv_privacy_view *v, int k, bool is_for_labels) {
  const clv_blueprint *b = v->b;
  const clv_stage_spec *s = &b->config->stages[v->layers[k].weights_stage];
  const clv_node *n = &v->g->nodes[k];
  bool is_adapter = clv_name_is_of_adapter(n->name),
       starts_from_seed = v->layers[k].starts_from_seed && !is_adapter;
  bool has_random_weights =
      is_adapter ? !s->lora.from : !clv_stage_has_master_weights(s) || starts_from_seed;
  if (has_random_weights && n->op == CLV_OP_LINEAR && n->attrs.init_zero) return "begins with 0";
  if (is_adapter && s->lora.from) return "has adapters from a file";
  if (s->weights_artifact && !starts_from_seed) return "has weights from a worker";
  if (!is_adapter && v->b->stages[v->layers[k].weights_stage].folder_has_other_params)
    return "has weights from a folder of adapters";
  if (clv_stage_has_master_weights(s) && !starts_from_seed && !s->weights_secret)
    return "has weights from a file that is not declared secret: true";
  if (has_random_weights && b->config->train.seed.is_guessable)
    return "has weights from a train.seed that can be tried out (leave it out)";
  if (has_transposed_twin(v, k)) return "has the transposed weights of another layer at the master";
  if (b->known_reasons && b->known_reasons[k]) return b->known_reasons[k];
  if (is_for_labels && v->layers[k].is_frozen) return "is frozen";
  return NULL;
}

/* Returns how a layer counts for the analysis: secret, known to a worker, or at a worker. An
 * embedding at the master is never CLV_WEIGHTS_AT_WORKER. */
static clv_weight_secrecy get_weight_secrecy(const clv_privacy_view *v, int k, bool is_for_labels) {
  if (clv_privacy_is_input(v, k)) return CLV_WEIGHTS_AT_WORKER;
  if (!clv_privacy_is_at_master(v, k))
    return v->worker_layers_mix ? CLV_WEIGHTS_KNOWN : CLV_WEIGHTS_AT_WORKER;
  return clv_privacy_why_hides_nothing(v, k, is_for_labels) ? CLV_WEIGHTS_KNOWN
                                                            : CLV_WEIGHTS_SECRET;
}

static void classify_layers(clv_privacy_view *v, bool is_for_labels) {
  for (int k = 0; k < v->g->n_nodes; k++)
    v->layer_secrecy[k] = get_weight_secrecy(v, k, is_for_labels);
}

/* ---- the view, the analysis of the full model ------------------------------------------------ */

/* Finds for each node of a stage's graph the same node of the full model. Both graphs have the
 * nodes in the same order. */
static void map_stage_nodes(const clv_privacy_view *v, const clv_graph *stage,
                            int *full_model_nodes) {
  int k = 0;
  for (int i = 0; i < stage->n_nodes; i++) {
    if (stage->nodes[i].op == CLV_OP_INPUT) continue;
    while (k + 1 < v->g->n_nodes && strcmp(v->g->nodes[k].name, stage->nodes[i].name) != 0) k++;
    full_model_nodes[i] = k;
  }
}

static void note_layer_params(clv_privacy_view *v, const clv_stage_plan *s,
                              const clv_stage_spec *spec) {
  int full_model_nodes[CLV_MAX_NODES] = {0};
  map_stage_nodes(v, s->graph, full_model_nodes);
  for (int i = 0; i < s->params->n; i++) {
    const clv_param *p = &s->params->list[i];
    clv_layer_facts *f = &v->layers[full_model_nodes[p->node]];
    if (p->shape.rank < 2) continue;
    f->has_matrix_weights = true;
    f->is_frozen |= p->frozen;
    f->starts_from_seed &= clv_weights_is_newly_initialised(
        p->name, (const char *const *)spec->weights_new.items, spec->weights_new.n);
  }
}

/* Copies to a tied layer the facts about its weights (stage, frozen, initial values) from the layer
 * that owns them. */
static void copy_owner_facts(clv_privacy_view *v, int k, int owner) {
  const clv_layer_facts own_facts = v->layers[k], *owner_facts = &v->layers[owner];
  v->layers[k] =
      (clv_layer_facts){own_facts.stage, owner_facts->weights_stage, owner_facts->is_frozen,
                        owner_facts->has_matrix_weights, owner_facts->starts_from_seed};
}

static uint32_t find_stage_of_layer(const clv_blueprint *b, uint32_t layer) {
  uint32_t stage = 0;
  while (stage + 1 < b->n_stages && layer > b->stages[stage].last_layer) stage++;
  return stage;
}

static void collect_layer_facts(clv_privacy_view *v) {
  for (int k = 0; k < v->g->n_nodes; k++) {
    uint32_t layer = v->g->nodes[k].layer;
    if (clv_privacy_is_input(v, k)) continue;
    v->layers[k] = (clv_layer_facts){.stage = find_stage_of_layer(v->b, layer),
                                     .weights_stage = find_stage_of_layer(v->b, layer),
                                     .starts_from_seed = true};
  }
  for (uint32_t s = 0; s < v->b->n_stages; s++)
    note_layer_params(v, &v->b->stages[s], &v->b->config->stages[s]);
  for (int k = 0; k < v->g->n_nodes; k++)
    for (int i = 0; v->g->nodes[k].tie_owner[0] && i < v->g->n_nodes; i++)
      if (strcmp(v->g->nodes[i].name, v->g->nodes[k].tie_owner) == 0) copy_owner_facts(v, k, i);
}

static void find_last_readers(clv_privacy_view *v) {
  for (int k = 0; k < v->g->n_nodes; k++) v->last_reader[k] = 0;
  for (int k = 0; k < v->g->n_nodes; k++)
    for (int i = 0; i < v->g->nodes[k].n_in; i++) {
      uint32_t *last_reader = &v->last_reader[v->g->nodes[k].in[i]];
      *last_reader = CLV_MAX(*last_reader, v->g->nodes[k].layer);
    }
  v->last_reader[v->g->output_node] = CLV_NO_PATH;
}

/* ---- findings of records in values ----------------------------------------------------------- */

int clv_privacy_find_worst_input(const clv_privacy_view *v, int k) {
  const clv_node *n = &v->g->nodes[k];
  int worst_node = n->in[0];
  for (int i = 1; i < n->n_in; i++)
    if (v->record_findings[n->in[i]] > v->record_findings[worst_node]) worst_node = n->in[i];
  return worst_node;
}

/* Returns the findings of a model input. The lengths of sequences are no finding; `plan` says
 * separately that they are sent. */
static clv_findings get_input_findings(const clv_graph *g, int k) {
  return clv_graph_length_limit(g, k) ? CLV_FINDING_MIXED : CLV_FINDING_RAW_INPUT;
}

/* True if the layer hides its input: each of its outputs sums at least two positions by secret
 * weights. */
static bool hides_input(const clv_privacy_view *v, const clv_reach *r, int k) {
  return clv_privacy_is_mixing(v, k) && v->layer_secrecy[k] == CLV_WEIGHTS_SECRET &&
         r[k].sums_two_places;
}

static uint32_t count_front_layers(const clv_privacy_view *v, int k) {
  uint32_t n_fewest_layers = CLV_NO_PATH;
  for (int i = 0; i < v->g->nodes[k].n_in; i++)
    n_fewest_layers = CLV_MIN(n_fewest_layers, v->n_front_layers[v->g->nodes[k].in[i]]);
  return n_fewest_layers == CLV_NO_PATH ? n_fewest_layers
                                        : n_fewest_layers + hides_input(v, v->record_reach, k);
}

/* Returns the last layer whose value is sent to another node. */
static uint32_t find_last_cut(const clv_privacy_view *v) {
  uint32_t last_cut_layer = 0;
  for (uint32_t i = 0; i < v->b->n_stages; i++)
    if (v->assumes_all_at_master || v->b->stages[i].worker >= 0 || v->b->stages[i + 1].worker >= 0)
      last_cut_layer = v->b->stages[i].last_layer;
  return last_cut_layer;
}

static clv_code follow_records(clv_privacy_view *v, clv_err *err) {
  classify_layers(v, false);
  CLV_TRY(
      clv_reach_records_in_values(v->g, v->layer_secrecy, find_last_cut(v), v->record_reach, err));
  for (int k = 0; k < v->g->n_nodes; k++) {
    bool is_input = clv_privacy_is_input(v, k);
    v->record_findings[k] =
        is_input ? get_input_findings(v->g, k) : clv_reach_findings(&v->record_reach[k]);
    v->n_front_layers[k] = !is_input               ? count_front_layers(v, k)
                           : v->record_findings[k] ? 0
                                                   : CLV_NO_PATH;
  }
  return CLV_OK;
}

/* ---- findings of records in gradients -------------------------------------------------------- */

/* True if workers receive the value of node k: a layer at a worker reads the model input, or the
 * value crosses a cut before a stage at a worker. */
static bool is_known_to_workers(const clv_privacy_view *v, int k) {
  const clv_blueprint *b = v->b;
  bool is_input = clv_privacy_is_input(v, k);
  for (int m = 0; is_input && m < v->g->n_nodes; m++)
    for (int i = 0; !clv_privacy_is_at_master(v, m) && i < v->g->nodes[m].n_in; i++)
      if (v->g->nodes[m].in[i] == k) return true;
  for (uint32_t s = 0; !is_input && s < b->n_stages; s++)
    if (b->stages[s + 1].worker >= 0 && clv_privacy_is_crossing(v, k, b->stages[s].last_layer))
      return true;
  return false;
}

/* Sets ret[k] for the values that workers receive. Returns true if a layer behind layer `first`
 * reads a value that is made of records and that workers do not receive. */
static bool find_known_values(const clv_privacy_view *v, uint32_t first, bool *ret) {
  bool is_hidden[CLV_MAX_NODES], has_hidden_value = false;
  for (int k = 0; k < v->g->n_nodes; k++) {
    ret[k] = is_known_to_workers(v, k);
    is_hidden[k] = clv_privacy_is_input(v, k) && !clv_graph_length_limit(v->g, k);
    for (int i = 0; i < v->g->nodes[k].n_in; i++) is_hidden[k] |= is_hidden[v->g->nodes[k].in[i]];
    is_hidden[k] &= !ret[k];
    has_hidden_value |= is_hidden[k] && !clv_privacy_is_input(v, k) && v->g->nodes[k].layer > first;
  }
  return has_hidden_value;
}

/* Computes the findings of records in gradients. A gradient shows records if layers of the master,
 * behind a worker's layers, read records. */
static clv_code follow_records_back(clv_privacy_view *v, clv_err *err) {
  bool is_known[CLV_MAX_NODES];
  uint32_t s = 0;
  while (s < v->b->n_stages && v->b->stages[s].worker < 0) s++;
  if (v->assumes_all_at_master || s == v->b->n_stages ||
      !find_known_values(v, v->b->stages[s].last_layer, is_known))
    return CLV_OK;
  classify_layers(v, false);
  return clv_reach_records_in_gradients(v->g, v->layer_secrecy, is_known,
                                        v->b->stages[s].last_layer, v->record_gradient_reach, err);
}

/* ---- findings of labels in gradients --------------------------------------------------------- */

clv_findings clv_privacy_gradient_findings(const clv_privacy_view *v, int k) {
  return clv_reach_findings(&v->record_gradient_reach[k]);
}

uint32_t clv_privacy_count_head_layers(const clv_privacy_view *v, int k) {
  return v->n_head_layers[k] == CLV_NO_PATH
             ? CLV_NO_PATH
             : v->n_head_layers[k] + hides_input(v, v->label_reach, k);
}

static clv_code follow_labels_back(clv_privacy_view *v, clv_err *err) {
  classify_layers(v, true);
  CLV_TRY(clv_reach_labels_in_gradients(v->g, v->layer_secrecy,
                                        v->assumes_all_at_master ? 0 : v->b->stages[0].last_layer,
                                        v->label_reach, err));
  for (int k = 0; k < v->g->n_nodes; k++) v->n_head_layers[k] = CLV_NO_PATH;
  v->n_head_layers[v->g->output_node] = 0;
  for (int k = v->g->n_nodes - 1; k >= 0; k--)
    for (int i = 0; i < v->g->nodes[k].n_in; i++) {
      uint32_t *n_head_layers = &v->n_head_layers[v->g->nodes[k].in[i]];
      *n_head_layers = CLV_MIN(*n_head_layers, clv_privacy_count_head_layers(v, k));
    }
  return CLV_OK;
}

/* ---- findings at the cuts -------------------------------------------------------------------- */

clv_code clv_privacy_view_new(const clv_blueprint *b, bool assumes_all_at_master,
                              clv_privacy_view **ret, clv_err *err) {
  clv_privacy_view *v;
  CLV_TRY(clv_alloc(1, sizeof *v, &v, err));
  v->b = b;
  v->g = b->full_graph;
  v->assumes_all_at_master = assumes_all_at_master;
  collect_layer_facts(v);
  find_last_readers(v);
  *ret = v;
  return CLV_OK;
}

clv_code clv_privacy_view_analyze(const clv_blueprint *b, bool assumes_all_at_master,
                                  clv_privacy_view **ret, clv_err *err) {
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  CLV_TRY(clv_privacy_view_new(b, assumes_all_at_master, &v, err));
  CLV_TRY(follow_records(v, err));
  CLV_TRY(follow_records_back(v, err));
  CLV_TRY(follow_labels_back(v, err));
  *ret = clv_steal(&v);
  return CLV_OK;
}

/* True if the value of node k is made before the cut behind layer `last_layer` and read behind it.
 * A model input crosses no cut, because the master sends it to each stage that reads it; only the
 * analysis of all cuts (assumes_all_at_master) counts it. */
bool clv_privacy_is_crossing(const clv_privacy_view *v, int k, uint32_t last_layer) {
  bool is_made_before =
      clv_privacy_is_input(v, k)
          ? v->assumes_all_at_master && (v->record_findings[k] & CLV_FINDING_RAW_INPUT)
          : v->g->nodes[k].layer <= last_layer;
  return is_made_before && v->last_reader[k] > last_layer;
}

bool clv_privacy_has_vector_per_position(const clv_blueprint *b, uint32_t stage) {
  uint32_t last = b->stages[stage].last_layer;
  const clv_node *nodes = b->full_graph->nodes;
  for (int k = 0; k < b->full_graph->n_nodes; k++)
    for (int i = 0; nodes[k].layer > last && i < nodes[k].n_in; i++) {
      const clv_node *sent_node = &nodes[nodes[k].in[i]];
      if (sent_node->op != CLV_OP_INPUT && sent_node->layer <= last && sent_node->shape.rank > 2)
        return true;
    }
  return false;
}

int clv_privacy_find_worst_crossing(const clv_privacy_view *v, uint32_t last_layer) {
  int worst_node = -1;
  for (int k = 0; k < v->g->n_nodes; k++)
    if (clv_privacy_is_crossing(v, k, last_layer) &&
        (worst_node < 0 || v->record_findings[k] > v->record_findings[worst_node]))
      worst_node = k;
  return worst_node;
}

/* Findings of all values that together cross the cut behind a layer. */
typedef struct cut_facts {
  /* how records can be read from the values (value_findings), labels from their gradients
   * (label_findings), and records from these gradients (gradient_findings) */
  clv_findings value_findings, label_findings, gradient_findings;
  /* fewest hiding layers before the cut and behind it, as in clv_stage_plan */
  uint32_t n_front_layers, n_head_layers;
  clv_narrowest_element narrowest_in_value, narrowest_in_gradient;
} cut_facts;

static void keep_narrower_element(const clv_reach *r, clv_narrowest_element *to) {
  bool is_narrower = (double)r->n_fewest_places * (double)to->n_total_positions <
                     (double)to->n_source_positions * (double)r->n_places;
  if (r->has_narrow_element && (!to->n_total_positions || is_narrower))
    *to = (clv_narrowest_element){r->n_fewest_places, r->n_places};
}

static cut_facts find_cut_facts(const clv_privacy_view *v, uint32_t last_layer) {
  cut_facts f = {.n_front_layers = CLV_NO_PATH, .n_head_layers = CLV_NO_PATH};
  for (int k = 0; k < v->g->n_nodes; k++) {
    const clv_reach *r = &v->record_reach[k], *g = &v->label_reach[k];
    if (!clv_privacy_is_crossing(v, k, last_layer)) continue;
    f.value_findings |= v->record_findings[k];
    f.gradient_findings |= clv_privacy_gradient_findings(v, k);
    f.n_front_layers = CLV_MIN(f.n_front_layers, v->n_front_layers[k]);
    f.n_head_layers = CLV_MIN(f.n_head_layers, v->n_head_layers[k]);
    if (g->has_unmixed_path || g->has_known_mixing) f.label_findings = CLV_FINDING_LABELS_READABLE;
    keep_narrower_element(r, &f.narrowest_in_value);
    keep_narrower_element(&v->record_gradient_reach[k], &f.narrowest_in_gradient);
  }
  if (!f.label_findings) f.n_head_layers = CLV_MAX(f.n_head_layers, 1);
  return f;
}

clv_code clv_privacy_find_cut_findings(const clv_blueprint *b, clv_findings *ret_values,
                                       clv_findings *ret_gradients, clv_err *err) {
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  CLV_TRY(clv_privacy_view_analyze(b, true, &v, err));
  for (uint32_t layer = 0; layer <= b->stages[b->n_stages - 1].last_layer; layer++) {
    cut_facts f = find_cut_facts(v, layer);
    ret_values[layer] = f.value_findings;
    ret_gradients[layer] = f.label_findings;
  }
  return CLV_OK;
}

/* Computes the findings of direct transfers from worker to worker. For such a transfer the layers
 * of the sending worker count as mixing, with weights that are known, so a record that this worker
 * received raw is not raw behind its layers. For tensors that the master sends, layers at workers
 * never count as mixing. */
static clv_code find_hop_findings(clv_blueprint *b, clv_err *err) {
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  bool may_show_records = false;
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_stage_plan *s = &b->stages[i];
    s->hop_findings = s->output_findings;
    may_show_records |=
        s->sends_directly && (s->output_findings & (CLV_FINDING_RAW_INPUT | CLV_FINDING_TOKENS));
  }
  if (!may_show_records) return CLV_OK;
  CLV_TRY(clv_privacy_view_new(b, false, &v, err));
  v->worker_layers_mix = true;
  CLV_TRY(follow_records(v, err));
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->stages[i].sends_directly)
      b->stages[i].hop_findings = find_cut_facts(v, b->stages[i].last_layer).value_findings;
  return CLV_OK;
}

clv_code clv_privacy_analyze(clv_blueprint *b, clv_err *err) {
  CLV_AUTO(clv_freep) clv_privacy_view *v = NULL;
  bool is_loss_at_master = b->stages[b->n_stages].worker < 0;
  CLV_TRY(clv_privacy_view_analyze(b, false, &v, err));
  for (uint32_t i = 0; i < b->n_stages; i++) {
    clv_stage_plan *s = &b->stages[i];
    cut_facts f = find_cut_facts(v, s->last_layer);
    s->output_findings = f.value_findings;
    s->narrowest_picture_element = s->worker < 0 ? f.narrowest_in_value : f.narrowest_in_gradient;
    s->n_front_layers = f.n_front_layers;
    s->n_head_layers = f.n_head_layers;
    s->gradient_findings = (is_loss_at_master ? f.label_findings : CLV_FINDING_MIXED) |
                           (s->worker < 0 ? 0 : f.gradient_findings);
  }
  return find_hop_findings(b, err);
}

/* Input 0 of all stages but the first is the value that crosses the cut, which model_inputs does
 * not list. So input k is entry k - 1 there. */
clv_findings clv_privacy_input_findings(const clv_blueprint *b, uint32_t stage, uint32_t input) {
  return get_input_findings(b->full_graph, (int)b->stages[stage].model_inputs[input - (stage > 0)]);
}

bool clv_privacy_collect_input_findings(const clv_blueprint *b, uint32_t i, clv_findings *ret) {
  const clv_stage_plan *s = &b->stages[i];
  if (s->worker < 0 || !s->n_model_inputs) return false;
  *ret = 0;
  for (uint32_t k = 0; k < s->n_model_inputs; k++)
    *ret |= clv_privacy_input_findings(b, i, k + (i > 0));
  return true;
}
