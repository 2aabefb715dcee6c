/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-rank adapters of stages. clv_adapters_add_to_graph adds them to the layers before the graph
 * is cut into stages. The other functions find the parameters that learn, besides the adapters, in
 * a stage with adapters (lora.train), and the parameters that are in checkpoints.
 */
#include <string.h>

#include "master/plan/plan_int.h"

static clv_lora make_lora_options(const clv_lora_config *l) {
  return (clv_lora){.targets = (const char *const *)l->targets.items,
                    .n_targets = l->targets.n,
                    .r = (int64_t)l->r,
                    .alpha = l->alpha,
                    .dropout = l->dropout,
                    .rslora = l->rslora};
}

static clv_code add_adapters(clv_blueprint *b, uint32_t i, uint32_t first_layer,
                             uint32_t last_layer, clv_err *err) {
  const clv_stage_spec *s = &b->config->stages[i];
  clv_lora lora = make_lora_options(&s->lora);
  clv_graph *adapted_graph;
  clv_err reason;
  if (clv_graph_add_lora(b->full_graph, first_layer, last_layer, &lora, &adapted_graph, &reason) !=
      CLV_OK)
    return clv_session_fail_at(b->config, s->lora.targets_pos, err, "stage '%s': lora.targets: %s",
                               s->name, reason.text);
  clv_graph_free(b->full_graph);
  b->full_graph = adapted_graph;
  return CLV_OK;
}

clv_code clv_adapters_add_to_graph(clv_blueprint *b, const uint32_t *first_layers,
                                   const uint32_t *last_layers, clv_err *err) {
  for (uint32_t i = 0; i < b->n_stages; i++)
    if (b->config->stages[i].lora.targets.n)
      CLV_TRY(add_adapters(b, i, first_layers[i], last_layers[i], err));
  return CLV_OK;
}

/* ---- parameters that a stage with adapters freezes ------------------------------------------- */

bool clv_is_param_frozen_by_lora(const clv_lora_config *l, const char *param) {
  if (!l->targets.n || clv_name_is_of_adapter(param)) return false;
  for (size_t i = 0; i < l->train.n; i++)
    if (clv_name_is_in_module(param, l->train.items[i])) return false;
  return true;
}

bool clv_is_param_checkpointed(const clv_stage_spec *s, const clv_param *p) {
  return !(s->weights_artifact && p->trainable && p->frozen);
}

static bool has_trainable_param_in(const clv_stage_plan *s, const char *path) {
  for (int i = 0; i < s->params->n; i++)
    if (s->params->list[i].trainable && clv_name_is_in_module(s->params->list[i].name, path))
      return true;
  return false;
}

static clv_code fail_unknown_module(const clv_blueprint *b, uint32_t stage, const char *path,
                                    clv_err *err) {
  const clv_stage_spec *spec = &b->config->stages[stage];
  const clv_graph *g = b->stages[stage].graph;
  CLV_AUTO(clv_freep) const char **names = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *names, &names, err));
  for (int i = 0; i < g->n_nodes; i++) {
    const char *last_dot = strrchr(g->nodes[i].name, '.');
    bool is_listed = g->nodes[i].op != CLV_OP_INPUT && !clv_name_is_of_adapter(g->nodes[i].name);
    if (is_listed) names[n++] = last_dot ? last_dot + 1 : g->nodes[i].name;
  }
  const char *similar_name = clv_did_you_mean(path, names, n);
  return clv_session_fail_at(b->config, spec->lora.train_pos, err,
                             "stage '%s': lora.train: nothing with parameters is called "
                             "'%s'%s%s%s (`cleave-master plan` lists the names)",
                             spec->name, path, similar_name ? ", did you mean '" : "",
                             similar_name ? similar_name : "", similar_name ? "'?" : "");
}

clv_code clv_adapters_check(const clv_blueprint *b, uint32_t stage, clv_err *err) {
  const clv_lora_config *l = &b->config->stages[stage].lora;
  for (size_t i = 0; i < l->train.n; i++)
    if (!has_trainable_param_in(&b->stages[stage], l->train.items[i]))
      return fail_unknown_module(b, stage, l->train.items[i], err);
  return CLV_OK;
}
