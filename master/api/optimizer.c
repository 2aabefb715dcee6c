/* SPDX-License-Identifier: Apache-2.0
 *
 * The distributed optimiser: one local optimiser per module, one decision for all of them. The votes
 * came with the last backward; the decision goes to every node, and if one of them cannot follow,
 * all go back.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/api_int.h"

/* ---- groups ----------------------------------------------------------------------------------------- */

static clv_optim_config config_of(const cleave_group *g) {
  static const clv_optim_kind kinds[] = {[CLEAVE_SGD] = CLV_OPTIM_SGD,
                                         [CLEAVE_ADAM] = CLV_OPTIM_ADAM,
                                         [CLEAVE_ADAMW] = CLV_OPTIM_ADAMW};
  bool unset = g->beta1 == 0 && g->beta2 == 0 && g->eps == 0;
  return (clv_optim_config){.kind = kinds[g->kind],
                            .lr = g->lr,
                            .momentum = g->momentum,
                            .nesterov = g->nesterov,
                            .weight_decay = g->weight_decay,
                            .beta1 = unset ? 0.9 : g->beta1,
                            .beta2 = unset ? 0.999 : g->beta2,
                            .eps = unset ? 1e-8 : g->eps};
}

static clv_lr_schedule schedule_of(const cleave_schedule *s) {
  static const clv_lr_curve curves[] = {[CLEAVE_CONSTANT] = CLV_LR_CURVE_CONSTANT,
                                        [CLEAVE_STEPS] = CLV_LR_CURVE_STEP,
                                        [CLEAVE_COSINE] = CLV_LR_CURVE_COSINE,
                                        [CLEAVE_LINEAR] = CLV_LR_CURVE_LINEAR};
  return (clv_lr_schedule){.curve = curves[s->curve],
                           .warmup_steps = s->warmup_steps,
                           .step_size = s->step_size,
                           .total_steps = s->total_steps,
                           .gamma = s->gamma};
}

/* The optimiser's own check of its settings, over a block of nothing. */
static cleave_status check_settings(const cleave_group *g, cleave_error *error) {
  if ((unsigned)g->kind > CLEAVE_ADAMW || (unsigned)g->schedule.curve > CLEAVE_LINEAR)
    return api_fail(error, CLV_INVALID, "optimiser %d, curve %d: there is no such", (int)g->kind,
                    (int)g->schedule.curve);
  CLV_AUTO(clv_optim_freep) clv_optim *probe = NULL;
  clv_optim_config config = config_of(g);
  clv_optim_span span = {0, 1};
  TRY(clv_optim_new(&config, 64, &span, 1, clv_backend_cpu(), &probe, &err));
  return CLEAVE_OK;
}

static cleave_status check_module(const cleave_optimizer *o, const cleave_module *m,
                                  cleave_error *error) {
  if (m->runtime != o->runtime) return api_fail(error, CLV_INVALID, "a module of another runtime");
  if (m->optimizer)
    return api_fail(error, CLV_EXISTS, "module '%s' is in an optimiser already", m->name);
  if (m->state != MODULE_NEW)
    return api_fail(error, CLV_PRECONDITION,
                    "module '%s' has been used: make its optimiser before its first call", m->name);
  if (!m->n_learning)
    return api_fail(error, CLV_INVALID, "module '%s' has no parameter that learns", m->name);
  return CLEAVE_OK;
}

static int by_index(const void *a, const void *b) {
  uint32_t x = (*(cleave_module *const *)a)->index, y = (*(cleave_module *const *)b)->index;
  return (x > y) - (x < y);
}

static cleave_status join(cleave_optimizer *o, const cleave_group *groups, size_t n_groups,
                          cleave_error *error) {
  for (size_t i = 0; i < n_groups; i++) {
    PASS(check_settings(&groups[i], error));
    for (size_t k = 0; k < groups[i].n_modules; k++) {
      cleave_module *m = groups[i].modules[k];
      PASS(check_module(o, m, error));
      m->optimizer = o;
      m->optim = config_of(&groups[i]);
      m->schedule = schedule_of(&groups[i].schedule);
      o->modules[o->n_modules++] = m;
    }
  }
  return CLEAVE_OK;
}

cleave_status cleave_optimizer_new(cleave_runtime *runtime, const cleave_group *groups,
                                   size_t n_groups, double clip_norm,
                                   cleave_optimizer **ret_optimizer, cleave_error *error) {
  cleave_optimizer *o;
  size_t n = 0;
  for (size_t i = 0; i < n_groups; i++) n += groups[i].n_modules;
  if (!n) return api_fail(error, CLV_INVALID, "an optimiser without modules");
  TRY(clv_alloc(1, sizeof *o, &o, &err));
  o->runtime = runtime;
  o->clip_norm = clip_norm;
  clv_err err;
  cleave_status status = CLEAVE_OK;
  if (clv_alloc(n, sizeof *o->modules, &o->modules, &err) != CLV_OK) status = api_from(error, &err);
  LOCKED(runtime);
  if (status == CLEAVE_OK) status = join(o, groups, n_groups, error);
  if (status != CLEAVE_OK) {
    for (size_t i = 0; i < o->n_modules; i++) o->modules[i]->optimizer = NULL;
    free(o->modules);
    free(o);
    return status;
  }
  qsort(o->modules, o->n_modules, sizeof(cleave_module *), by_index);
  o->next = runtime->optimizers;
  runtime->optimizers = o;
  *ret_optimizer = o;
  return CLEAVE_OK;
}

void cleave_optimizer_release(cleave_optimizer *optimizer) {
  if (!optimizer) return;
  LOCKED(optimizer->runtime);
  optimizer->released = true;
}

/* ---- the vote -------------------------------------------------------------------------------------------- */

/* A node's sums come in the order of modules, then parameters, over those of its modules that have
 * gradients here. Each is taken when its module's turn comes, so the norm does not depend on where
 * modules are. */
static cleave_status total_norm(const cleave_optimizer *o, const context *c, double *ret,
                                cleave_error *error) {
  const cleave_runtime *rt = o->runtime;
  size_t at[API_MAX_NODES] = {0};
  double total = 0;
  for (uint32_t i = 0; i < rt->n_modules; i++) {
    const cleave_module *m = rt->modules[i];
    if (!c->graded[i]) continue;
    const clv_tensor *sums = c->votes[m->node];
    if (!sums || at[m->node] + m->n_learning > sums->n) {
      api_fail(error, CLV_DATA_LOSS, "the vote of '%s' lacks module '%s'", rt->peers[m->node].name,
               m->name);
      api_place_error(error, rt->peers[m->node].name, m->name);
      return CLEAVE_DATA_LOSS;
    }
    const double *d = (const double *)sums->data + at[m->node];
    for (uint32_t k = 0; m->optimizer == o && k < m->n_learning; k++) total += d[k];
    at[m->node] += m->n_learning;
  }
  *ret = total;
  return CLEAVE_OK;
}

/* ---- the decision ------------------------------------------------------------------------------------------ */

static cleave_status apply_all(cleave_optimizer *o, context *c, bool apply, double scale,
                               cleave_error *error) {
  cleave_runtime *rt = o->runtime;
  for (size_t i = 0; i < o->n_modules; i++) {
    const cleave_module *m = o->modules[i];
    clv_packet *p;
    if (!c->graded[m->index]) continue;
    double lr = clv_lr_at(&m->schedule, m->optim.lr, o->steps);
    TRY(clv_packet_apply(rt->pool, c->id, ++rt->next_id, m->index, (float)scale, (float)lr, apply,
                         &p, &err));
    PASS(api_send(rt, m->node, p, error));
    c->moved |= NODE_BIT(m->node);
    c->applying++;
  }
  return CLEAVE_OK;
}

/* Every node that can be reached has the bytes it had before the step. */
static void revert_all(cleave_runtime *rt, context *c) {
  uint64_t until = api_until(rt, c->step_ms);
  clv_err err;
  c->applying = 0;
  c->applying_from = rt->next_id + 1;
  for (uint32_t i = 0; i < rt->n_peers; i++) {
    clv_packet *p;
    if (!(c->moved & NODE_BIT(i)) || rt->peers[i].lost) continue;
    if (clv_packet_revert(rt->pool, c->id, ++rt->next_id, &p, &err) != CLV_OK) continue;
    c->applying += api_send(rt, i, p, NULL) == CLEAVE_OK;
  }
  while (c->applying && api_sleep(rt, until)) continue;
}

void api_step_taken(cleave_runtime *rt, context *c) {
  if (rt->deciding != c) return;
  c->moved = 0;
  rt->deciding = NULL;
  for (cleave_optimizer *o = rt->optimizers; o; o = o->next) o->undecided = false;
}

/* Nodes hear of the failure behind REVERT: it would make them forget what to take back. */
static void undo(cleave_runtime *rt, context *c) {
  cleave_error late;
  api_fail(&late, CLV_DEADLINE, "not every node took the step of context %s in time", c->name);
  api_context_fail(rt, c, &late, 0);
  revert_all(rt, c);
  for (cleave_optimizer *o = rt->optimizers; o; o = o->next) o->steps -= o->undecided;
  c->undone = true;
  api_step_taken(rt, c);
  api_context_tell(rt, c, 0);
}

/* The answers to APPLY are waited for by whoever needs them first. */
static cleave_status settle(cleave_runtime *rt, uint64_t until_ns, cleave_error *error) {
  context *c = rt->deciding;
  bool in_time = true;
  uint64_t until = CLV_MIN(until_ns, c->decide_by);
  rt->settling = true;
  c->users++;
  while (in_time && rt->deciding == c && !c->failed) in_time = api_sleep(rt, until);
  if (rt->deciding == c && (c->failed || until == c->decide_by)) undo(rt, c);
  c->users--;
  rt->settling = false;
  pthread_cond_broadcast(&rt->changed);
  if (rt->deciding != c) return CLEAVE_OK;
  return api_fail(error, CLV_DEADLINE, "the step of context %s was not decided in time", c->name);
}

cleave_status api_decided(cleave_runtime *rt, uint64_t until_ns, cleave_error *error) {
  while (rt->deciding) {
    if (!rt->settling)
      PASS(settle(rt, until_ns, error));
    else if (!api_sleep(rt, until_ns))
      return api_fail(error, CLV_DEADLINE, "another step was not decided in time");
  }
  return CLEAVE_OK;
}

static cleave_status check_step(const cleave_optimizer *o, const context *c, cleave_error *error) {
  bool any = false;
  for (size_t i = 0; i < o->n_modules; i++) {
    any |= c->graded[o->modules[i]->index];
    if (c->stepped[o->modules[i]->index])
      return api_fail(error, CLV_PRECONDITION, "module '%s' has taken its step of context %s",
                      o->modules[i]->name, c->name);
  }
  if (c->running)
    return api_fail(error, CLV_PRECONDITION, "a backward of context %s is running", c->name);
  if (!any)
    return api_fail(error, CLV_PRECONDITION,
                    "context %s has no gradient of any module of this optimiser", c->name);
  return CLEAVE_OK;
}

/* Steps of one context go out together; one that cannot even be sent is taken back at once. */
static cleave_status decide(cleave_optimizer *o, context *c, bool apply, double scale,
                            uint64_t deadline_ms, cleave_error *error) {
  cleave_runtime *rt = o->runtime;
  uint64_t until_ns = api_until(rt, deadline_ms);
  if (rt->deciding != c) {
    c->applying = 0;
    c->applying_from = rt->next_id + 1;
    c->decide_by = until_ns;
    c->step_ms = deadline_ms;
  }
  c->decide_by = CLV_MIN(c->decide_by, until_ns);
  rt->deciding = c;
  o->undecided = true;
  o->steps++;
  cleave_error why;
  cleave_status status = apply_all(o, c, apply, scale, &why);
  for (size_t i = 0; i < o->n_modules; i++)
    c->stepped[o->modules[i]->index] = c->graded[o->modules[i]->index];
  if (status == CLEAVE_OK) return CLEAVE_OK;
  api_context_fail(rt, c, &why, 0);
  PASS(settle(rt, until_ns, error));
  return api_context_failure(c, error);
}

cleave_status cleave_step(cleave_runtime *runtime, cleave_optimizer *optimizer,
                          cleave_context handle, uint64_t deadline_ms, cleave_stepped *ret,
                          cleave_error *error) {
  context *c;
  double norm_sq;
  LOCKED(runtime);
  uint64_t until = api_until(runtime, deadline_ms);
  if (!runtime->deciding || runtime->settling || runtime->deciding->id != handle.id)
    PASS(api_decided(runtime, until, error));
  PASS(api_find_context(runtime, handle, &c, error));
  PASS(check_step(optimizer, c, error));
  PASS(total_norm(optimizer, c, &norm_sq, error));
  bool apply = !c->not_finite && isfinite(norm_sq) && norm_sq >= 0;
  double scale = apply ? clv_clip_scale(norm_sq, optimizer->clip_norm) : 1;
  cleave_stepped done = {.applied = apply,
                         .norm = sqrt(norm_sq),
                         .lr = clv_lr_at(&optimizer->modules[0]->schedule,
                                         optimizer->modules[0]->optim.lr, optimizer->steps),
                         .number = optimizer->steps + 1};
  PASS(decide(optimizer, c, apply, scale, deadline_ms, error));
  if (ret) *ret = done;
  return CLEAVE_OK;
}
