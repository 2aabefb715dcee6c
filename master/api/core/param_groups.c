/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of an optimiser: adds the parameters of modules to groups, and numbers the groups of each
 * module for its node. A module numbers its own groups in the order in which the program gave them.
 * If some of its trainable parameters are in no group, group 0 is for these and is not stepped.
 */
#include <float.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/module_int.h"

/* ---- settings of a group --------------------------------------------------------------------- */

/* Checks that the optimiser kinds of cleave.h have the numbers of common/base/settings. */
#define CLV_OPTIMIZER(NAME, name, ...) \
  _Static_assert((int)CLEAVE_##NAME == (int)CLV_OPTIM_##NAME, #name " in cleave.h");
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER

static clv_optim_config convert_optimizer_config(const cleave_group *g) {
  clv_optim_config c = {.kind = (clv_optim_kind)g->kind};
  CLV_OPTIM_COPY(&c, g);
  clv_optim_set_defaults(&c);
  return c;
}

clv_lr_schedule api_convert_lr_schedule(const cleave_schedule *s) {
  static const clv_lr_curve lr_curves[] = {[CLEAVE_CONSTANT] = CLV_LR_CURVE_CONSTANT,
                                           [CLEAVE_STEPS] = CLV_LR_CURVE_STEP,
                                           [CLEAVE_COSINE] = CLV_LR_CURVE_COSINE,
                                           [CLEAVE_LINEAR] = CLV_LR_CURVE_LINEAR};
  return (clv_lr_schedule){.curve = lr_curves[s->curve],
                           .warmup_steps = s->warmup_steps,
                           .step_size = s->step_size,
                           .total_steps = s->total_steps,
                           .gamma = s->gamma,
                           .starts_at_zero = s->from_zero};
}

cleave_status api_check_lr_schedule(const cleave_schedule *s, cleave_error *error) {
  if ((unsigned)s->curve > CLEAVE_LINEAR)
    return api_fail(error, CLV_INVALID, "schedule curve %d: there is no such", (int)s->curve);
  if (s->curve == CLEAVE_STEPS && !s->step_size)
    return api_fail(error, CLV_INVALID, "a schedule in steps needs a step_size above 0");
  if (s->curve == CLEAVE_STEPS && !(s->gamma >= 0 && s->gamma <= DBL_MAX))
    return api_fail(error, CLV_INVALID, "schedule gamma is %g; it must be a number from 0 up",
                    s->gamma);
  return CLEAVE_OK;
}

static cleave_status check_group_settings(const cleave_group *g, cleave_error *error) {
  clv_optim_config config = convert_optimizer_config(g);
  TRY_API(api_check_lr_schedule(&g->schedule, error));
  TRY(clv_optim_check(&config, &err));
  return CLEAVE_OK;
}

/* ---- names of a group's parameters ----------------------------------------------------------- */

static bool is_param_named_by(const cleave_group *g, const char *param_name) {
  if (!g->parameters) return true;
  for (size_t i = 0; i < g->n_parameters; i++)
    if (fnmatch(g->parameters[i], param_name, 0) == 0) return true;
  return false;
}

static bool matches_any(const cleave_group *g, const char *pattern) {
  for (size_t k = 0; k < g->n_modules; k++)
    for (int i = 0; i < g->modules[k]->params->n; i++) {
      const clv_param *p = &g->modules[k]->params->list[i];
      if (api_requires_grad(p) && fnmatch(pattern, p->name, 0) == 0) return true;
    }
  return false;
}

/* Checks that each name or glob of the group matches a trainable parameter. */
static cleave_status check_param_names(const cleave_group *g, cleave_error *error) {
  const char *trainable_names[64];
  size_t n = 0;
  if (g->parameters && !g->n_parameters)
    return api_fail(error, CLV_INVALID, "a group with a list of 0 parameters");
  for (size_t k = 0; k < g->n_modules; k++)
    for (int i = 0; i < g->modules[k]->params->n && n < CLV_COUNT(trainable_names); i++)
      if (api_requires_grad(&g->modules[k]->params->list[i]))
        trainable_names[n++] = g->modules[k]->params->list[i].name;
  for (size_t i = 0; g->parameters && i < g->n_parameters; i++) {
    if (matches_any(g, g->parameters[i])) continue;
    const char *suggestion = clv_did_you_mean(g->parameters[i], trainable_names, n);
    return api_fail(error, CLV_NOT_FOUND,
                    "no parameter '%s' that learns in the modules of this group%s%s%s",
                    g->parameters[i], suggestion ? "; did you mean '" : "",
                    suggestion ? suggestion : "", suggestion ? "'?" : "");
  }
  return CLEAVE_OK;
}

/* ---- modules that join an optimiser ---------------------------------------------------------- */

static cleave_status check_module(const cleave_optimizer *o, const cleave_module *m,
                                  cleave_error *error) {
  if (m->runtime != o->runtime) return api_fail(error, CLV_INVALID, "a module of another runtime");
  if (m->optimizer && m->optimizer != o && !m->optimizer->is_released)
    return api_fail(error, CLV_EXISTS,
                    "module '%s' is in an optimiser already: release that one first", m->name);
  if (!m->n_trained_params)
    return api_fail(error, CLV_INVALID, "module '%s' has no parameter that learns", m->name);
  return CLEAVE_OK;
}

static cleave_status fail_too_many_groups(const cleave_module *m, cleave_error *error) {
  return api_fail(error, CLV_EXHAUSTED,
                  "module '%s' is in too many groups: at most %d, one fewer when some of its "
                  "parameters are in none",
                  m->name, CLV_OPTIM_MAX_GROUPS);
}

/* Adds a group to a module. With its first group the module becomes a module of the optimiser. */
static cleave_status add_group(cleave_optimizer *o, const api_optimizer_group *g, cleave_module *m,
                               cleave_error *error) {
  if (m->n_groups == CLV_OPTIM_MAX_GROUPS) return fail_too_many_groups(m, error);
  if (m->n_groups && m->groups[0]->optim.kind != g->optim.kind)
    return api_fail(error, CLV_INVALID, "module '%s' is in groups of different kinds", m->name);
  if (!m->optimizer) {
    api_module_mark_for_reload(m, true);
    TRY(clv_alloc((size_t)m->params->n, sizeof *m->param_group_numbers, &m->param_group_numbers,
                  &err));
    m->optimizer = o;
    o->modules[o->n_modules++] = m;
  }
  m->groups[m->n_groups++] = g;
  return CLEAVE_OK;
}

static cleave_status add_module_params(cleave_optimizer *o, const cleave_group *from,
                                       const api_optimizer_group *g, cleave_module *m,
                                       cleave_error *error) {
  bool has_joined = false;
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (!api_requires_grad(p) || !is_param_named_by(from, p->name)) continue;
    if (m->param_group_numbers && m->param_group_numbers[i])
      return api_fail(error, CLV_EXISTS, "parameter '%s' of module '%s' is in two groups", p->name,
                      m->name);
    if (!has_joined) TRY_API(add_group(o, g, m, error));
    has_joined = true;
    m->param_group_numbers[i] = (uint8_t)m->n_groups;
  }
  return CLEAVE_OK;
}

/* Removes a module from its optimiser, if that optimiser was released and is not `o`. */
static void leave_released_optimizer(const cleave_optimizer *o, cleave_module *m) {
  if (!m->optimizer || m->optimizer == o) return;
  api_module_leave_optimizer(m);
  api_module_mark_for_reload(m, true);
}

static cleave_status add_group_params(cleave_optimizer *o, const cleave_group *from,
                                      cleave_error *error) {
  api_optimizer_group *g = &o->groups[o->n_groups++];
  TRY_API(check_group_settings(from, error));
  if (from->no_rollback != o->cannot_revert)
    return api_fail(error, CLV_INVALID, "groups with final steps and groups without");
  *g = (api_optimizer_group){convert_optimizer_config(from),
                             api_convert_lr_schedule(&from->schedule)};
  for (size_t k = 0; k < from->n_modules; k++) TRY_API(check_module(o, from->modules[k], error));
  TRY_API(check_param_names(from, error));
  for (size_t k = 0; k < from->n_modules; k++) leave_released_optimizer(o, from->modules[k]);
  for (size_t k = 0; k < from->n_modules; k++)
    TRY_API(add_module_params(o, from, g, from->modules[k], error));
  return CLEAVE_OK;
}

/* Inserts group 0 for the trainable parameters that are in no group, if there are any. */
cleave_status api_module_add_unstepped_group(cleave_module *m, cleave_error *error) {
  bool has_ungrouped_param = false;
  if (!m->optimizer || m->has_unstepped_group) return CLEAVE_OK;
  for (int i = 0; i < m->params->n; i++)
    has_ungrouped_param |= api_requires_grad(&m->params->list[i]) && !m->param_group_numbers[i];
  if (!has_ungrouped_param) return CLEAVE_OK;
  if (m->n_groups == CLV_OPTIM_MAX_GROUPS) return fail_too_many_groups(m, error);
  m->has_unstepped_group = true;
  memmove(m->groups + 1, m->groups, m->n_groups++ * sizeof(api_optimizer_group *));
  for (int i = 0; i < m->params->n; i++) m->param_group_numbers[i] += m->param_group_numbers[i] > 0;
  return CLEAVE_OK;
}

/* True if the module may join the optimiser: it is of the same runtime, and in no other optimiser
 * that the program still uses. */
static bool may_add_module(const cleave_optimizer *o, const cleave_module *m) {
  return m->runtime == o->runtime && (!m->optimizer || m->optimizer->is_released);
}

cleave_status api_groups_await_idle(const cleave_optimizer *o, const cleave_group *groups,
                                    size_t n_groups, cleave_error *error) {
  CLV_AUTO(clv_freep) cleave_module **all = NULL;
  size_t n = 0;
  for (size_t i = 0; i < n_groups; i++) n += groups[i].n_modules;
  TRY(clv_alloc(n, sizeof *all, &all, &err));
  for (size_t i = n = 0; i < n_groups; i++)
    for (size_t k = 0; k < groups[i].n_modules; k++)
      if (may_add_module(o, groups[i].modules[k])) all[n++] = groups[i].modules[k];
  return api_modules_await_idle(all, n, "gets no other optimiser", api_deadline_ns(o->runtime, 0),
                                error);
}

cleave_status api_optimizer_add_groups(cleave_optimizer *o, const cleave_group *groups,
                                       size_t n_groups, cleave_error *error) {
  o->cannot_revert = groups[0].no_rollback;
  for (size_t i = 0; i < n_groups; i++) TRY_API(add_group_params(o, &groups[i], error));
  for (size_t i = 0; i < o->n_modules; i++)
    TRY_API(api_module_add_unstepped_group(o->modules[i], error));
  return CLEAVE_OK;
}

void api_optimizer_remove_params(cleave_optimizer *o) {
  for (size_t i = 0; i < o->n_modules; i++) {
    cleave_module *m = o->modules[i];
    free(m->param_group_numbers);
    m->param_group_numbers = NULL;
    m->optimizer = NULL;
    m->n_groups = 0;
    m->has_unstepped_group = false;
  }
}
