/* SPDX-License-Identifier: Apache-2.0
 *
 * How modules end. A released module stays while a context that has used it is not forgotten, or
 * its optimiser is not released. Then its node is told to unload it, and when that has answered,
 * its index is free for another one, with the next generation.
 */
#include <stdlib.h>
#include <string.h>

#include "master/api/life_int.h"

/* ---- coming ---------------------------------------------------------------------------------- */

static cleave_status check_name(const cleave_runtime *rt, const cleave_module *m,
                                cleave_error *error) {
  for (uint32_t i = 0; i < rt->n_modules; i++)
    if (rt->modules[i] && !rt->modules[i]->released && strcmp(rt->modules[i]->name, m->name) == 0)
      return api_fail(error, CLV_EXISTS, "there is a module called '%s' already", m->name);
  return CLEAVE_OK;
}

/* The lowest that is free. *ret_leaving: so many will be. */
static bool find_index(const cleave_runtime *rt, uint32_t *ret, uint32_t *ret_leaving) {
  *ret_leaving = 0;
  for (*ret = 0; *ret < API_MAX_MODULES; ++*ret) {
    const cleave_module *m = rt->modules[*ret];
    if (!m) return true;
    *ret_leaving += m->state == MODULE_LEAVING;
  }
  return false;
}

cleave_status api_module_enter(cleave_module *m, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  uint64_t until = api_until(rt, 0);
  uint32_t leaving, released = 0;
  bool found = find_index(rt, &m->index, &leaving);
  while (!found && leaving && api_sleep(rt, until)) found = find_index(rt, &m->index, &leaving);
  for (uint32_t i = 0; i < rt->n_modules; i++)
    released += rt->modules[i] && rt->modules[i]->released;
  if (!found)
    return api_fail(error, CLV_EXHAUSTED,
                    "module '%s': a runtime has at most %d modules; %u of these are released, and "
                    "stay until contexts that used them have ended and their optimisers are "
                    "released",
                    m->name, API_MAX_MODULES, released);
  PASS(check_name(rt, m, error));
  m->generation = rt->generations[m->index]++;
  m->number = ++rt->n_loaded;
  rt->modules[m->index] = m;
  rt->n_modules = CLV_MAX(rt->n_modules, m->index + 1);
  return CLEAVE_OK;
}

/* ---- going ----------------------------------------------------------------------------------- */

void api_module_free(cleave_module *m) {
  if (!m) return;
  for (size_t i = 0; i < m->n_weights; i++) {
    free(m->weights[i].name);
    clv_tensor_unref(m->weights[i].tensor);
  }
  clv_graph_free(m->graph);
  clv_params_free(m->params);
  free(m->weights);
  free(m->frozen);
  free(m->artifact);
  free(m->direct_to);
  free(m->group_of);
  free(m);
}

static void gone(cleave_module *m) {
  cleave_runtime *rt = m->runtime;
  rt->modules[m->index] = NULL;
  m->state = MODULE_GONE;
  if (!m->keeps) api_module_free(m);
  clv_pool_shrink(rt->pool); /* sizes that it alone had */
  api_wake(rt);
}

/* One that nobody holds goes with its last module. */
static void leave_optimizer(cleave_module *m) {
  cleave_optimizer *o = m->optimizer;
  size_t at = 0;
  if (!o) return;
  m->optimizer = NULL;
  while (o->modules[at] != m) at++;
  memmove(&o->modules[at], &o->modules[at + 1], (--o->n_modules - at) * sizeof(cleave_module *));
  if (o->n_modules) return;
  cleave_optimizer **link = &m->runtime->optimizers;
  while (*link != o) link = &(*link)->next;
  *link = o->next;
  api_optimizer_free(o);
}

static void unload(cleave_module *m) {
  cleave_runtime *rt = m->runtime;
  clv_packet *p;
  bool there = (m->state == MODULE_PLACED || m->tried) && !rt->peers[m->node].lost;
  if (!there || api_packet(rt, CLV_UNLOAD, 0, m->unload = ++rt->next_id, &p, NULL) != CLEAVE_OK) {
    gone(m);
    return;
  }
  api_name_module(p, m);
  m->state = MODULE_LEAVING;
  if (api_send(rt, m->node, p, NULL) != CLEAVE_OK && m->state == MODULE_LEAVING) gone(m);
}

static bool is_needed(const cleave_module *m) {
  bool travels = m->state == MODULE_PLACING || m->state == MODULE_LEAVING;
  return !m->released || m->contexts || travels || (m->optimizer && !m->optimizer->released);
}

void api_module_look(cleave_module *m) {
  if (is_needed(m) || !m->runtime->node) return; /* without one the runtime is being closed */
  leave_optimizer(m);
  unload(m);
}

void api_optimizer_look(cleave_optimizer *o) {
  bool last = false;
  for (size_t i = o->n_modules; i-- > 0 && !last;) {
    last = o->n_modules == 1; /* with it goes the optimiser */
    api_module_look(o->modules[i]);
  }
}

/* ---- who needs it ---------------------------------------------------------------------------- */

void api_module_used(api_context *c, cleave_module *m) {
  m->contexts += !c->uses[m->index];
  c->uses[m->index] = true;
}

void api_modules_unused(cleave_runtime *rt, api_context *c) {
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    if (!c->uses[i]) continue;
    c->uses[i] = false;
    rt->modules[i]->contexts--;
    api_module_look(rt->modules[i]);
  }
}

void api_module_keep(cleave_module *m) {
  if (m) m->keeps++;
}

void api_module_unkeep(cleave_module *m) {
  if (m && --m->keeps == 0 && m->state == MODULE_GONE) api_module_free(m);
}

/* ---- answers --------------------------------------------------------------------------------- */

static cleave_module *leaving(cleave_runtime *rt, const api_peer *from, const clv_frame *f) {
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    cleave_module *m = rt->modules[i];
    if (m && m->state == MODULE_LEAVING && m->unload == f->reply_to && m->node == from->index)
      return m;
  }
  return NULL;
}

bool api_on_unloaded(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  cleave_module *m = leaving(rt, from, &p->frame);
  if (m) gone(m);
  return false;
}

/* It is not there: the call that should have taken it there failed on its way back. One that the
 * node does not let go keeps its index. */
bool api_unload_refused(cleave_runtime *rt, const api_peer *from, const clv_frame *f) {
  cleave_module *m = leaving(rt, from, f);
  if (m && (f->failure.code == CLV_NOT_FOUND || m->tried)) gone(m);
  return m;
}

void api_modules_node_fail(cleave_runtime *rt, uint32_t node) {
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    cleave_module *m = rt->modules[i];
    if (m && m->node == node && m->state == MODULE_LEAVING) gone(m);
  }
}

void cleave_module_release(cleave_module *module) {
  if (!module) return;
  LOCKED(module->runtime);
  module->released = true;
  api_module_look(module);
}
