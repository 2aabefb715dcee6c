/* SPDX-License-Identifier: Apache-2.0
 *
 * Freezes and thaws parameters of a module. Its node gets the set of frozen parameters only when it
 * loads the module, so the module is loaded again before its next use (module_load.c).
 */
#include <fnmatch.h>

#include "master/api/core/core.h"

/* ---- freezing and thawing -------------------------------------------------------------------- */

static bool is_param_matched_by(const clv_param *p, const char *name) {
  return p->trainable && fnmatch(name, p->name, 0) == 0;
}

static cleave_status check_names(const cleave_module *m, const char *const *names, size_t n,
                                 const char *what, cleave_error *error) {
  for (size_t k = 0; k < n; k++) {
    bool has_match = false;
    if (!names[k]) return api_fail(error, CLV_INVALID, "names[%zu] is NULL", k);
    for (int i = 0; i < m->params->n; i++)
      has_match |= is_param_matched_by(&m->params->list[i], names[k]);
    if (!has_match)
      return api_fail(error, CLV_NOT_FOUND, "module '%s' has no parameter '%s' to %s", m->name,
                      names[k], what);
  }
  return CLEAVE_OK;
}

/* Lists the frozen parameters, and counts the parameters that learn. */
static void count_trainable_params(cleave_module *m) {
  m->n_frozen_params = m->n_trained_params = 0;
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (p->frozen) m->frozen_param_names[m->n_frozen_params++] = p->name;
    m->n_trained_params += p->trainable && !p->frozen;
  }
}

static cleave_status set_frozen_params(cleave_module *m, const char *const *names, size_t n,
                                       bool is_frozen, cleave_error *error) {
  CLV_AUTO(clv_freep) bool *before = NULL;
  uint32_t n_trained_params_before = m->n_trained_params;
  TRY(clv_alloc((size_t)m->params->n, sizeof *before, &before, &err));
  for (int i = 0; i < m->params->n; i++) {
    clv_param *p = &m->params->list[i];
    before[i] = p->frozen;
    for (size_t k = 0; k < n; k++)
      if (is_param_matched_by(p, names[k])) p->frozen = is_frozen;
  }
  cleave_status status = api_module_add_unstepped_group(m, error);
  for (int i = 0; i < m->params->n && status != CLEAVE_OK; i++)
    m->params->list[i].frozen = before[i];
  count_trainable_params(m);
  if (m->n_trained_params != n_trained_params_before) api_module_mark_for_reload(m, false);
  return status;
}

static cleave_status change_frozen_params(cleave_runtime *rt, cleave_module *m,
                                          const char *const *names, size_t n, bool is_frozen,
                                          uint64_t deadline_ms, cleave_error *error) {
  const char *what = is_frozen ? "freeze" : "thaw",
             *refusal_text = is_frozen ? "freezes nothing" : "thaws nothing";
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  TRY_API(check_names(m, names, n, what, error));
  if (m->is_frozen_set_final)
    return api_fail(error, CLV_PRECONDITION,
                    "module '%s' was loaded with `fixed`: what learns stays as it is", m->name);
  LOCKED(rt);
  if (m->is_released) return api_fail(error, CLV_NOT_FOUND, "module '%s' was released", m->name);
  TRY_API(api_modules_await_idle(&m, 1, refusal_text, api_deadline_ns(rt, deadline_ms), error));
  return set_frozen_params(m, names, n, is_frozen, error);
}

cleave_status cleave_parameter_freeze(cleave_runtime *runtime, cleave_module *module,
                                      const char *const *names, size_t n, uint64_t deadline_ms,
                                      cleave_error *error) {
  NOT_NULL(runtime, module, names);
  return change_frozen_params(runtime, module, names, n, true, deadline_ms, error);
}

cleave_status cleave_parameter_thaw(cleave_runtime *runtime, cleave_module *module,
                                    const char *const *names, size_t n, uint64_t deadline_ms,
                                    cleave_error *error) {
  NOT_NULL(runtime, module, names);
  return change_frozen_params(runtime, module, names, n, false, deadline_ms, error);
}
