/* SPDX-License-Identifier: Apache-2.0
 *
 * Ties: parameters of a module that belong to another module, the owner. The owner is loaded before
 * the tied module and unloaded after it. When the owner is loaded again, the modules that are tied
 * to it are loaded again as well.
 */
#include <string.h>

#include "master/api/core/ties_int.h"

#include "master/api/core/module_int.h"

/* ---- making a tied module -------------------------------------------------------------------- */

static cleave_status find_node_to_tie(const cleave_module *m, const char *weight, int *ret,
                                      cleave_error *error) {
  CLV_AUTO(clv_params_freep) clv_params *all = NULL;
  TRY(clv_params_make(m->graph, &all, &err));
  const clv_param *p = clv_params_find(all, weight);
  for (int i = 0; i < all->n_ties && !p; i++)
    if (strcmp(all->ties[i].param.name, weight) == 0) p = &all->ties[i].param;
  if (!p || p->slot)
    return api_fail(error, CLV_NOT_FOUND, "module '%s' has no layer whose first parameter is '%s'",
                    m->name, weight);
  *ret = p->node;
  return CLEAVE_OK;
}

/* Checks that both modules are on one device of one node. Across nodes the shared parameter would
 * be sent in every step, and another node would see it. */
static cleave_status check_same_node(const cleave_module *m, const cleave_tie *t,
                                     cleave_error *error) {
  const cleave_runtime *rt = m->runtime;
  const cleave_module *of = t->of;
  if (of->runtime != rt || of->is_released)
    return api_fail(error, CLV_INVALID, "module '%s': '%s' is tied to a module %s", m->name,
                    t->weight, of->is_released ? "that was released" : "of another runtime");
  if (of->node != m->node)
    return api_fail(error, CLV_INVALID,
                    "module '%s' is at %s, and '%s' is a parameter of module '%s' at %s; across "
                    "nodes it would be sent in every step: load both at one",
                    m->name, rt->peers[m->node].name, t->weight, of->name,
                    rt->peers[of->node].name);
  if (strcmp(of->device, m->device) == 0) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID,
                  "module '%s' is on device %s, and '%s' is a parameter of module '%s' on %s: load "
                  "both on one device",
                  m->name, m->device, t->weight, of->name, of->device);
}

static cleave_status add_tie(cleave_module *m, const cleave_tie *t, cleave_error *error) {
  int node = 0;
  if (!t->weight || !t->of || !t->of_weight)
    return api_fail(error, CLV_INVALID, "module '%s': a tie has weight, of and of_weight", m->name);
  TRY_API(check_same_node(m, t, error));
  TRY_API(find_node_to_tie(m, t->weight, &node, error));
  const clv_param *p = clv_params_find(t->of->params, t->of_weight);
  if (!p || p->slot || !p->trainable)
    return api_fail(error, CLV_INVALID, "'%s' of module '%s' is not the first parameter of a layer",
                    t->of_weight, t->of->name);
  TRY(clv_graph_tie_param(m->graph, node, t->of->graph->nodes[p->node].name, true, &err));
  return CLEAVE_OK;
}

cleave_status api_ties_add_to_graph(cleave_module *m, const cleave_module_options *o,
                                    cleave_error *error) {
  for (size_t i = 0; i < o->n_ties; i++) TRY_API(add_tie(m, &o->ties[i], error));
  return CLEAVE_OK;
}

static cleave_status check_tied_shape(const cleave_module *m, const clv_param *p,
                                      const cleave_module *of, const clv_param *owner_param,
                                      cleave_error *error) {
  char expected_type[160], given_type[160];
  if (clv_shape_equal(&p->shape, &owner_param->shape)) return CLEAVE_OK;
  return api_fail(
      error, CLV_INVALID, "'%s' of module '%s' is %s, and '%s' of module '%s' %s", p->name, m->name,
      clv_shape_format(&p->shape, expected_type, sizeof expected_type), owner_param->name, of->name,
      clv_shape_format(&owner_param->shape, given_type, sizeof given_type));
}

static const clv_param *find_owner_param(const cleave_module *m, const clv_tie *t,
                                         const cleave_module *of) {
  return clv_params_first_of_node(of->graph, of->params, m->graph->nodes[t->param.node].tie_owner);
}

static cleave_status find_owner(cleave_module *m, int i, const cleave_module_options *o,
                                cleave_error *error) {
  const clv_tie *t = &m->params->ties[i];
  for (size_t k = 0; k < o->n_ties && t->owner_index < 0; k++)
    if (strcmp(o->ties[k].weight, t->param.name) == 0) m->tie_owners[i] = o->ties[k].of;
  if (t->owner_index >= 0) return CLEAVE_OK;
  if (m->tie_owners[i])
    return check_tied_shape(m, &t->param, m->tie_owners[i],
                            find_owner_param(m, t, m->tie_owners[i]), error);
  return api_fail(error, CLV_INVALID, "module '%s': '%s' is tied to layer '%s', which is not in it",
                  m->name, t->param.name, m->graph->nodes[t->param.node].tie_owner);
}

cleave_status api_ties_find_owners(cleave_module *m, const cleave_module_options *o,
                                   cleave_error *error) {
  TRY(clv_alloc((size_t)m->params->n_ties, sizeof(cleave_module *), &m->tie_owners, &err));
  for (int i = 0; i < m->params->n_ties; i++) TRY_API(find_owner(m, i, o, error));
  return CLEAVE_OK;
}

/* ---- finding modules that are tied ----------------------------------------------------------- */

bool api_is_tied_to(const cleave_module *m, const cleave_module *owner) {
  bool is_tied = false;
  for (int i = 0; m->tie_owners && i < m->params->n_ties; i++) is_tied |= m->tie_owners[i] == owner;
  return is_tied;
}

bool api_has_trainable_tie(const cleave_module *m) {
  bool has_trainable_tie = false;
  for (int i = 0; i < m->params->n_ties; i++) {
    const clv_tie *t = &m->params->ties[i];
    const cleave_module *of = m->tie_owners[i];
    has_trainable_tie |=
        api_requires_grad(of ? find_owner_param(m, t, of) : &m->params->list[t->owner_index]);
  }
  return has_trainable_tie;
}

bool api_is_tie_owner(const cleave_module *m) {
  const cleave_runtime *rt = m->runtime;
  bool is_owner = false;
  for (uint32_t i = 0; i < rt->n_modules; i++)
    is_owner |= rt->modules[i] && rt->modules[i] != m && api_is_tied_to(rt->modules[i], m);
  return is_owner;
}
