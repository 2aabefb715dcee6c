/* SPDX-License-Identifier: Apache-2.0
 *
 * Adds low-rank adapters to the graph of a module (cleave_module_options.lora).
 */
#include "master/api/core/core_int.h"

static cleave_status check_lora(const cleave_module *m, const cleave_lora *l, cleave_error *error) {
  if (!l->targets || !l->n_targets)
    return api_fail(error, CLV_INVALID, "module '%s': lora.targets is empty: name linear layers",
                    m->name);
  if (!l->r)
    return api_fail(error, CLV_INVALID, "module '%s': lora.r is 0, at least 1 is needed", m->name);
  if (l->alpha > 0 && l->dropout >= 0 && l->dropout < 1) return CLEAVE_OK;
  return api_fail(
      error, CLV_INVALID,
      "module '%s': lora.alpha is %g, lora.dropout %g: alpha is above 0, dropout from 0 "
      "to below 1",
      m->name, l->alpha, l->dropout);
}

cleave_status api_adapters_add_to_graph(cleave_module *m, const cleave_module_options *o,
                                        cleave_error *error) {
  if (!o->lora) return CLEAVE_OK;
  COPY_OPTIONS_IN(cleave_lora, l, o->lora);
  TRY_API(check_lora(m, &l, error));
  const clv_lora lora = {.targets = l.targets,
                         .n_targets = l.n_targets,
                         .r = l.r,
                         .alpha = l.alpha,
                         .dropout = l.dropout,
                         .rslora = l.rslora};
  clv_graph *adapted_graph;
  clv_err err;
  if (clv_graph_add_lora(m->graph, 0, UINT32_MAX, &lora, &adapted_graph, &err) != CLV_OK) {
    (void)clv_err_prefix(&err, "module '%s': lora.targets", m->name);
    return api_convert_error(error, &err);
  }
  clv_graph_free(m->graph);
  m->graph = adapted_graph;
  return CLEAVE_OK;
}

void api_adapters_freeze_base(cleave_module *m, const cleave_module_options *o) {
  for (int i = 0; o->lora && i < m->params->n; i++) {
    clv_param *p = &m->params->list[i];
    if (!p->trainable || p->frozen || clv_name_is_of_adapter(p->name)) continue;
    m->frozen_param_names[m->n_frozen_params++] = p->name;
    p->frozen = true;
  }
}
