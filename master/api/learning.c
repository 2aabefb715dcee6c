/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a module learns, after its first call: parameters that are frozen and thawed, optimisers
 * that are replaced. Its node has been told when the module was loaded, so it is loaded again
 * before its next use, with the state that it has, which is held here meanwhile.
 */
#include <fnmatch.h>

#include "master/api/life_int.h"
#include "master/api/rejoin_int.h"

/* ---- loading it again ------------------------------------------------------------------------ */

void api_module_unhold(cleave_module *m, int kind) {
  api_state_items_done(clv_steal(&m->held[kind]), m->n_held[kind]);
  m->n_held[kind] = 0;
}

void api_module_outdated(cleave_module *m, bool anew) {
  if (anew) api_module_unhold(m, 1);
  if (m->state != MODULE_PLACED) return;
  m->stale = true;
  m->anew |= anew;
}

cleave_status api_module_let_go(cleave_module *m, uint32_t generation, uint64_t until,
                                cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  clv_packet *p;
  PASS(api_packet(rt, CLV_UNLOAD, 0, m->unload = ++rt->next_id, &p, error));
  api_name_module(p, m);
  p->frame.generation = generation;
  PASS(api_send(rt, m->node, p, error));
  while (m->unload) {
    PASS(api_node_is_there(rt, m->node, error));
    if (!api_sleep(rt, until))
      return api_fail(error, CLV_DEADLINE, "'%s' has not let go of module '%s' in time",
                      rt->peers[m->node].name, m->name);
  }
  return CLEAVE_OK;
}

static cleave_status hold(cleave_module *m, uint64_t until, cleave_error *error) {
  PASS(api_state_take(m, CLEAVE_STATE_WEIGHTS, until, &m->held[0], &m->n_held[0], error));
  if (m->anew) return CLEAVE_OK;
  return api_state_take(m, CLEAVE_STATE_OPTIMIZER, until, &m->held[1], &m->n_held[1], error);
}

/* When this fails with nothing held, the module is as before; else its next use goes on. */
cleave_status api_module_take_off(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  m->state = MODULE_PLACING;
  rt->peers[m->node].loading++;
  cleave_status status = hold(m, until_ns, error);
  bool held = status == CLEAVE_OK;
  if (held) status = api_module_let_go(m, m->generation, until_ns, error);
  rt->peers[m->node].loading--;
  m->state = held ? MODULE_NEW : MODULE_PLACED;
  if (held) {
    m->unload = 0;
    m->stale = m->anew = false;
    api_module_tried(m, status);
  } else {
    for (int k = 0; k < 2; k++) api_module_unhold(m, k);
  }
  api_wake(rt);
  return status;
}

cleave_status api_module_put_back(cleave_module *m, uint64_t until_ns, cleave_error *error) {
  static const clv_state_what what[] = {CLV_STATE_WEIGHTS, CLV_STATE_OPTIMIZER};
  for (int k = 0; k < 2; k++)
    if (m->n_held[k]) PASS(api_state_put(m, what[k], 0, m->held[k], m->n_held[k], until_ns, error));
  for (int k = 0; k < 2; k++) api_module_unhold(m, k);
  return CLEAVE_OK;
}

/* ---- while nobody uses it -------------------------------------------------------------------- */

static bool is_busy(const cleave_module *m) { return m->contexts || m->state == MODULE_PLACING; }

static cleave_status check_closing(const cleave_module *m, const char *what, cleave_error *error) {
  const cleave_runtime *rt = m->runtime;
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;)
    if (c->uses[m->index] && !c->closing)
      return api_fail(error, CLV_PRECONDITION,
                      "module '%s' %s while context %s, which has called it, is open: close that "
                      "first",
                      m->name, what, c->name);
  return CLEAVE_OK;
}

cleave_status api_modules_idle(cleave_module *const *modules, size_t n, const char *what,
                               uint64_t until_ns, cleave_error *error) {
  for (size_t i = 0; i < n; i++) {
    const cleave_module *m = modules[i];
    if (!is_busy(m)) continue;
    PASS(check_closing(m, what, error));
    if (!api_sleep(m->runtime, until_ns))
      return api_fail(error, CLV_DEADLINE, "module '%s' %s: its contexts have not ended in time",
                      m->name, what);
    i = (size_t)-1; /* others may be used now */
  }
  return CLEAVE_OK;
}

/* ---- freezing and thawing -------------------------------------------------------------------- */

static bool is_meant(const clv_param *p, const char *name) {
  return p->trainable && fnmatch(name, p->name, 0) == 0;
}

static cleave_status check_names(const cleave_module *m, const char *const *names, size_t n,
                                 const char *what, cleave_error *error) {
  for (size_t k = 0; k < n; k++) {
    bool any = false;
    if (!names[k]) return api_fail(error, CLV_INVALID, "names[%zu] is NULL", k);
    for (int i = 0; i < m->params->n; i++) any |= is_meant(&m->params->list[i], names[k]);
    if (!any)
      return api_fail(error, CLV_NOT_FOUND, "module '%s' has no parameter '%s' to %s", m->name,
                      names[k], what);
  }
  return CLEAVE_OK;
}

/* From what its parameters say. */
static void count_learning(cleave_module *m) {
  m->n_frozen = m->n_learning = 0;
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (p->frozen) m->frozen[m->n_frozen++] = p->name;
    m->n_learning += p->trainable && !p->frozen;
  }
}

static cleave_status set_frozen(cleave_module *m, const char *const *names, size_t n, bool frozen,
                                cleave_error *error) {
  CLV_AUTO(clv_freep) bool *before = NULL;
  uint32_t learned = m->n_learning;
  TRY(clv_alloc((size_t)m->params->n, sizeof *before, &before, &err));
  for (int i = 0; i < m->params->n; i++) {
    clv_param *p = &m->params->list[i];
    before[i] = p->frozen;
    for (size_t k = 0; k < n; k++)
      if (is_meant(p, names[k])) p->frozen = frozen;
  }
  cleave_status status = api_groups_hold(m, error);
  for (int i = 0; i < m->params->n && status != CLEAVE_OK; i++)
    m->params->list[i].frozen = before[i];
  count_learning(m);
  if (m->n_learning != learned) api_module_outdated(m, false);
  return status;
}

static cleave_status change(cleave_runtime *rt, cleave_module *m, const char *const *names,
                            size_t n, bool frozen, uint64_t deadline_ms, cleave_error *error) {
  const char *what = frozen ? "freeze" : "thaw",
             *cannot = frozen ? "freezes nothing" : "thaws nothing";
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  PASS(check_names(m, names, n, what, error));
  LOCKED(rt);
  if (m->released) return api_fail(error, CLV_NOT_FOUND, "module '%s' was released", m->name);
  PASS(api_modules_idle(&m, 1, cannot, api_until(rt, deadline_ms), error));
  return set_frozen(m, names, n, frozen, error);
}

cleave_status cleave_parameter_freeze(cleave_runtime *runtime, cleave_module *module,
                                      const char *const *names, size_t n, uint64_t deadline_ms,
                                      cleave_error *error) {
  GIVEN(runtime, module, names);
  return change(runtime, module, names, n, true, deadline_ms, error);
}

cleave_status cleave_parameter_thaw(cleave_runtime *runtime, cleave_module *module,
                                    const char *const *names, size_t n, uint64_t deadline_ms,
                                    cleave_error *error) {
  GIVEN(runtime, module, names);
  return change(runtime, module, names, n, false, deadline_ms, error);
}
