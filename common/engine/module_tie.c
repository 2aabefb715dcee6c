/* SPDX-License-Identifier: Apache-2.0
 *
 * Tied parameters: a parameter that a module shares with another module, or that its own graph uses
 * twice. A tied parameter has one set of values, one optimiser and one name. Each module that reads
 * the parameter sums a gradient of its own, in the order of its calls. At the end of a backward
 * pass these gradients are added to the owner's, in the order of modules and graph nodes. So
 * results are the same to the bit wherever the network is cut.
 */
#include <stdlib.h>
#include <string.h>

#include "common/engine/module_int.h"

/* ---- finding the owners of tied parameters --------------------------------------------------- */

static const char *get_node_name(const clv_module *m, const clv_tie *t) {
  return m->graph->nodes[t->param.node].name;
}

static clv_module *find_given_owner(const clv_module *m, const clv_module_options *o,
                                    const clv_tie *t) {
  for (uint32_t i = 0; i < o->n_ties; i++)
    if (strcmp(o->ties[i].node, get_node_name(m, t)) == 0) return o->ties[i].owner;
  return NULL;
}

/* Checks that the module and the owner of a tied parameter are on the same device, so that both can
 * read the parameter in one memory. */
static clv_code check_same_device(const clv_module *m, const clv_module *owner, const clv_tie *t,
                                  clv_err *err) {
  if (strcmp(m->device, owner->device) == 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "module %u is on device %s, and '%s' is a parameter of module %u on %s: tied "
                  "modules share memory",
                  m->o.index, m->device, t->param.name, owner->o.index, owner->device);
}

static clv_code resolve_from_owner(clv_module *m, clv_tie *t, const clv_module *owner,
                                   clv_err *err) {
  const char *name = m->graph->nodes[t->param.node].tie_owner;
  const clv_param *of = clv_params_first_of_node(owner->graph, owner->params, name);
  if (!of || !clv_shape_equal(&of->shape, &t->param.shape) || of->dtype != t->param.dtype)
    return clv_fail(err, CLV_NOT_FOUND,
                    "module %u has no parameter of '%s' that fits '%s' of module %u",
                    owner->o.index, name, t->param.name, m->o.index);
  CLV_TRY(check_same_device(m, owner, t, err));
  t->param.owner_data = of->is_shared ? owner->shared_params[of->list_index]->data
                                      : (char *)owner->block + of->offset;
  t->param.offset = of->offset;
  t->param.frozen = of->frozen;
  t->param.is_fixed = of->is_fixed;
  return CLV_OK;
}

clv_code clv_module_resolve_ties(clv_module *m, const clv_module_options *o, clv_err *err) {
  clv_params *p = m->params;
  CLV_TRY(clv_alloc((size_t)p->n_ties, sizeof(clv_module *), &m->owners, err));
  for (int i = 0; i < p->n_ties; i++) {
    clv_tie *t = &p->ties[i];
    clv_module *owner = t->owner_index < 0 ? find_given_owner(m, o, t) : m;
    if (!owner)
      return clv_fail(err, CLV_INVALID,
                      "module %u: '%s' is tied to '%s', which is in no module of this node",
                      m->o.index, get_node_name(m, t), m->graph->nodes[t->param.node].tie_owner);
    if (t->owner_index < 0) CLV_TRY(resolve_from_owner(m, t, owner, err));
    m->owners[i] = owner;
    if (owner != m) __atomic_add_fetch(&owner->n_pins, 1, __ATOMIC_RELAXED);
  }
  clv_params_update_ties(p);
  return CLV_OK;
}

void clv_module_unpin_owners(clv_module *m) {
  for (int i = 0; m->owners && i < m->params->n_ties; i++)
    if (m->owners[i] && m->owners[i] != m)
      __atomic_sub_fetch(&m->owners[i]->n_pins, 1, __ATOMIC_RELAXED);
  free(m->owners);
  m->owners = NULL;
}

/* ---- versions and gradients of tied parameters ----------------------------------------------- */

bool clv_module_is_tied_to(const clv_module *m, const clv_module *owner) {
  bool is_tied = false;
  for (int i = 0; i < m->params->n_ties; i++) is_tied |= m->owners[i] == owner && owner != m;
  return is_tied;
}

bool clv_module_has_trainable_ties(const clv_module *m) {
  bool has_trainable = false;
  for (int i = 0; i < m->params->n_ties; i++) has_trainable |= !m->params->ties[i].param.frozen;
  return has_trainable;
}

uint64_t clv_module_version(const clv_module *m) {
  uint64_t version = m->version;
  for (int i = 0; i < m->params->n_ties; i++)
    if (m->owners[i] != m) version += m->owners[i]->version;
  return version;
}

clv_code clv_module_add_tied_gradient(const clv_module *m, int i, void *gradients, void *owner,
                                      clv_err *err) {
  const clv_param *p = &m->params->ties[i].param;
  const clv_backend *b = m->owners[i]->o.backend;
  char *mine = (char *)gradients + p->gradient_offset;
  if (p->frozen) return CLV_OK;
  b->add(b, p->dtype, (char *)owner + p->offset, mine, p->n);
  return clv_backend_fill(b, mine, 0, p->bytes, err);
}
