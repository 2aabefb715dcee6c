/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward: one walk over the tape, from the newest value to the oldest, finds the calls that the
 * roots depend on and how many gradients come for each; then every node is told its part. A call
 * that no root needs is not in it, so nothing waits for it.
 *
 * Nodes run the calls of a module in the order in which they are told: grouped by the last of the
 * roots that depends on them, in the order of the roots, and within a group from the newest to the
 * oldest. Whatever gives a call a gradient is of an earlier group, or newer in its own, so this
 * order cannot stand still.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/future_int.h"

/* ---- the walk -------------------------------------------------------------------------------- */

static cleave_status mark_root(cleave_runtime *rt, api_context *c, cleave_reference handle,
                               float weight, uint32_t group, cleave_error *error) {
  api_value *v;
  size_t n = 0;
  PASS(api_find_value(rt, handle, &v, error));
  if (v->context != c)
    return api_fail(error, CLV_INVALID, "root %llu belongs to context %s, not to %s",
                    (unsigned long long)v->id, v->context->name, c->name);
  TRY(clv_shape_numel(&v->shape, &n, &err));
  if (n != 1) {
    char s[160];
    return api_fail(error, CLV_INVALID, "root %llu is %s; backward starts from scalars",
                    (unsigned long long)v->id, clv_shape_format(&v->shape, s, sizeof s));
  }
  if (!v->module || !v->needs_grad)
    return api_fail(error, CLV_PRECONDITION,
                    "root %llu depends on no parameter and no leaf that requires a gradient",
                    (unsigned long long)v->id);
  if (!isfinite(weight) || weight == 0)
    return api_fail(error, CLV_INVALID, "root %llu has the weight %g; it must be finite and not 0",
                    (unsigned long long)v->id, (double)weight);
  if (v->root != 0 && v->phase == c->phase)
    return api_fail(error, CLV_INVALID, "root %llu is given twice", (unsigned long long)v->id);
  v->phase = c->phase;
  v->contributions = v->arrived = 0;
  v->root = weight;
  v->group = group;
  return CLEAVE_OK;
}

/* One more gradient comes for v; returns its place in the sum. */
static uint32_t expect(api_context *c, api_value *v, uint32_t group) {
  if (v->phase != c->phase) {
    v->phase = c->phase;
    v->contributions = v->arrived = v->group = 0;
    v->root = 0;
  }
  v->group = CLV_MAX(v->group, group);
  return v->contributions++;
}

static void join_group(api_call_group *g, api_value *v) {
  v->next_needed = NULL;
  *(g->first ? &g->last->next_needed : &g->first) = v;
  g->last = v;
}

static cleave_status visit(cleave_runtime *rt, api_context *c, api_value *v, cleave_error *error) {
  cleave_module *m = v->module;
  if (v->spent) {
    api_fail(error, CLV_PRECONDITION,
             "call %llu of module '%s' has had its backward: give the first one retain = true",
             (unsigned long long)v->id, m->name);
    api_place_error(error, m->runtime->peers[m->node].name, m->name);
    return CLEAVE_PRECONDITION;
  }
  for (uint32_t i = 0; i < v->n_args; i++)
    if (v->args[i]->needs_grad) v->order[i] = expect(c, v->args[i], v->group);
  join_group(&rt->groups[v->group], v);
  c->expected |= NODE_BIT(m->node);
  return CLEAVE_OK;
}

static cleave_status ready_leaf(api_context *c, api_value *v, cleave_error *error) {
  if (v->contributions > v->parts_cap) {
    clv_tensor **more;
    TRY(clv_alloc(v->contributions, sizeof *more, &more, &err));
    free(v->parts);
    v->parts = more;
    v->parts_cap = v->contributions;
  }
  c->leaf_due += v->contributions;
  return CLEAVE_OK;
}

/* A call that waits for the backward of another one would wait for itself unless that comes
 * first. */
static cleave_status check_window(const api_context *c, const api_value *v, cleave_error *error) {
  const api_value *a = v->after;
  if (!a || a->passed || (a->phase == c->phase && a->group < v->group)) return CLEAVE_OK;
  return api_fail(
      error, CLV_PRECONDITION,
      "call %llu of module '%s' runs after the backward of call %llu, on which no earlier "
      "root depends: give the roots in the order of the window",
      (unsigned long long)v->id, v->module->name, (unsigned long long)a->id);
}

static cleave_status ready_groups(cleave_runtime *rt, size_t n, cleave_error *error) {
  if (n > UINT32_MAX) return api_fail(error, CLV_INVALID, "%zu roots", n);
  if (n > rt->groups_cap) {
    api_call_group *more;
    TRY(clv_alloc(n, sizeof *more, &more, &err));
    free(rt->groups);
    rt->groups = more;
    rt->groups_cap = (uint32_t)n;
  }
  memset(rt->groups, 0, n * sizeof *rt->groups);
  return CLEAVE_OK;
}

static cleave_status walk(cleave_runtime *rt, api_context *c, const cleave_reference *roots,
                          const float *weights, size_t n_roots, cleave_error *error) {
  c->expected = c->finished = 0;
  c->leaf_due = 0;
  PASS(ready_groups(rt, n_roots, error));
  for (size_t i = 0; i < n_roots; i++)
    PASS(mark_root(rt, c, roots[i], weights ? weights[i] : 1, (uint32_t)i, error));
  for (api_value *v = c->newest; v; v = v->older) {
    if (v->phase != c->phase) continue;
    PASS(v->module ? visit(rt, c, v, error) : ready_leaf(c, v, error));
  }
  for (size_t g = 0; g < n_roots; g++)
    for (const api_value *v = rt->groups[g].first; v; v = v->next_needed)
      PASS(check_window(c, v, error));
  return CLEAVE_OK;
}

/* ---- telling the nodes ----------------------------------------------------------------------- */

typedef struct preparing {
  cleave_runtime *rt;
  api_context *c;
  uint32_t node;
  bool retain, vote;
  uint32_t skipped;
  clv_packet *packet;
} preparing;

static cleave_status flush(preparing *p, bool more, cleave_error *error) {
  if (!p->packet) return CLEAVE_OK;
  p->packet->frame.backward.more = more;
  p->packet->frame.backward.skipped = p->skipped;
  return api_send_with_next(p->rt, p->node, clv_steal(&p->packet), error);
}

static bool has_room(const preparing *p, const api_value *v) {
  const clv_frame *f = &p->packet->frame;
  return f->backward.n_calls < CLV_WIRE_NEEDED &&
         f->backward.n_targets + v->n_args <= CLV_WIRE_TARGETS &&
         f->backward.n_peers + v->n_args <= CLV_WIRE_HOPS;
}

static cleave_status add_call(preparing *p, const api_value *v, cleave_error *error) {
  if (p->packet && !has_room(p, v)) PASS(flush(p, true, error));
  if (!p->packet)
    TRY(clv_packet_prepare(p->rt->pool, p->c->id, p->c->phase, 0, p->retain, p->vote, false,
                           &p->packet, &err));
  p->packet->frame.step =
      CLV_MAX(p->packet->frame.step, v->number); /* it waits for no later call */
  TRY(clv_packet_need(p->packet, v->id, v->contributions, v->root, &err));
  for (uint32_t i = 0; i < v->n_args; i++) {
    const api_value *a = v->args[i];
    const char *to = a->module && a->module->node ? p->rt->peers[a->module->node].name : "";
    if (a->needs_grad) TRY(clv_packet_target(p->packet, i, a->id, to, v->order[i], &err));
  }
  return CLEAVE_OK;
}

static cleave_status prepare_node(cleave_runtime *rt, api_context *c, uint32_t node,
                                  size_t n_groups, bool retain, cleave_error *error) {
  preparing p = {.rt = rt, .c = c, .node = node, .retain = retain};
  p.skipped = c->phase - c->phase_at[node] - 1;
  c->phase_at[node] = c->phase;
  for (uint32_t i = 0; i < rt->n_modules; i++)
    p.vote |= rt->modules[i]->node == node && rt->modules[i]->optimizer;
  cleave_status status = CLEAVE_OK;
  for (size_t g = 0; g < n_groups; g++)
    for (api_value *v = rt->groups[g].first; v && status == CLEAVE_OK; v = v->next_needed)
      if (v->module->node == node) status = add_call(&p, v, error);
  if (status == CLEAVE_OK) status = flush(&p, false, error);
  clv_packet_free(p.packet);
  return status;
}

static cleave_status prepare(cleave_runtime *rt, api_context *c, size_t n_groups, bool retain,
                             cleave_error *error) {
  for (size_t g = 0; g < n_groups; g++)
    for (api_value *v = rt->groups[g].first; v; v = v->next_needed) {
      v->spent = !retain;
      v->passed = true;
      c->n_windowed -= v->n_followers;
      v->n_followers = 0;
      if (v->module->n_learning) c->has_gradient[v->module->index] = true;
    }
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if (c->expected & NODE_BIT(i)) PASS(prepare_node(rt, c, i, n_groups, retain, error));
  return CLEAVE_OK;
}

/* ---- one after the other --------------------------------------------------------------------- */

enum { WAITS_FOR_EARLIER, RUNS };

static cleave_status start(cleave_runtime *rt, api_future *f, const api_backward_roots *roots,
                           cleave_error *error) {
  api_context *c = f->context;
  cleave_error why;
  c->phase++;
  PASS(walk(rt, c, roots->roots, roots->weights, roots->n, error));
  c->running = true;
  f->stage = RUNS;
  f->bound = true;
  if (prepare(rt, c, roots->n, roots->retain, &why) != CLEAVE_OK) api_context_fail(rt, c, &why, 0);
  return CLEAVE_OK;
}

static cleave_status copy_roots(const api_backward_roots *from, api_backward_roots *ret,
                                cleave_error *error) {
  TRY(clv_alloc(from->n, sizeof *ret->roots, &ret->roots, &err));
  if (from->weights) TRY(clv_alloc(from->n, sizeof *ret->weights, &ret->weights, &err));
  memcpy(ret->roots, from->roots, from->n * sizeof *ret->roots);
  if (from->weights) memcpy(ret->weights, from->weights, from->n * sizeof *ret->weights);
  ret->n = from->n;
  ret->retain = from->retain;
  return CLEAVE_OK;
}

cleave_status api_backward_begin(cleave_runtime *rt, cleave_context handle,
                                 const api_backward_roots *roots, api_future *f,
                                 cleave_error *error) {
  api_context *c;
  PASS(api_find_context(rt, handle, &c, error));
  if (c->evaluation)
    return api_fail(error, CLV_PRECONDITION, "context %s evaluates: it has no backward", c->name);
  if (!roots->n) return api_fail(error, CLV_INVALID, "a backward without roots");
  f->context = c;
  snprintf(f->of, sizeof f->of, "context %.64s", c->name);
  return api_future_has_earlier(rt, f) ? copy_roots(roots, &f->backward, error)
                                       : start(rt, f, roots, error);
}

void api_backward_advance(cleave_runtime *rt, api_future *f) {
  const api_context *c = f->context;
  cleave_error why;
  if (c->failed) {
    api_future_finish(rt, f, &c->failure);
  } else if (f->stage == RUNS) {
    if (!(c->expected & ~c->finished) && !c->leaf_due) api_future_finish(rt, f, NULL);
  } else if (!api_future_has_earlier(rt, f) && start(rt, f, &f->backward, &why) != CLEAVE_OK) {
    api_future_finish(rt, f, &why);
  }
}

/* Who has not finished: a worker, if any, since the master's own node may be waiting for it. */
static void too_late(const cleave_runtime *rt, const api_context *c, uint64_t deadline_ms,
                     cleave_error *ret) {
  char heard[200];
  const char *who = NULL;
  for (uint32_t i = rt->n_peers; i-- > 0 && !who;)
    if (c->expected & ~c->finished & NODE_BIT(i)) who = rt->peers[i].name;
  api_fail(ret, CLV_DEADLINE, "backward of context %s took longer than %llu ms%s%s", c->name,
           (unsigned long long)(deadline_ms ? deadline_ms : rt->deadline_ms),
           deadline_ms ? "" : " (limits.step_timeout)", api_silence(rt, heard, sizeof heard));
  if (who) api_place_error(ret, who, "");
}

void api_backward_late(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  api_context *c = f->context;
  if (f->stage == RUNS) {
    too_late(rt, c, f->deadline_ms, ret);
    api_context_fail(rt, c, ret, 0);
  } else {
    api_fail(ret, CLV_DEADLINE, "what context %s does before this backward was not done in time",
             c->name);
  }
}

/* ---- gradients ------------------------------------------------------------------------------- */

static api_future *running_in(const cleave_runtime *rt, const api_context *c) {
  api_future *f = rt->open->first;
  while (f && (f->context != c || f->kind != API_FUTURE_BACKWARD || f->stage != RUNS)) f = f->next;
  return f;
}

/* A backward that runs is waited for, whoever has begun it. */
static cleave_status await_backward(cleave_runtime *rt, api_context *c, uint64_t until_ns,
                                    cleave_error *error) {
  bool in_time = true;
  c->users++;
  for (api_future *f; in_time && (f = running_in(rt, c)) != NULL;) {
    api_backward_advance(rt, f);
    if (c->running)
      in_time = api_sleep(rt, until_ns);
    else
      api_wake(rt);
  }
  c->users--;
  if (c->closing) api_wake(rt);
  PASS(api_context_failure(c, error));
  if (in_time) return CLEAVE_OK;
  return api_fail(error, CLV_DEADLINE, "a backward of context %s was not done in time", c->name);
}

/* With the lock. */
static cleave_status gradient(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                              const char *name, uint64_t deadline_ms, clv_tensor **ret,
                              char *ret_device, cleave_error *error) {
  api_context *c;
  PASS(api_find_context(rt, handle, &c, error));
  const clv_param *p = clv_params_find(m->params, name);
  if (!p || !p->trainable)
    return api_fail(error, CLV_NOT_FOUND, "module '%s' has no parameter '%s'", m->name, name);
  if (p->frozen)
    return api_fail(error, CLV_NOT_FOUND, "'%s' of module '%s' is frozen: it has no gradient", name,
                    m->name);
  if (c->running) PASS(await_backward(rt, c, api_until(rt, deadline_ms), error));
  if (c->has_gradient[m->index]) {
    c->users++;
    cleave_status status = api_state_get(m, CLV_STATE_GRADIENTS, c->id, name,
                                         api_until(rt, deadline_ms), ret, ret_device, error);
    c->users--;
    if (c->closing) api_wake(rt);
    PASS(status);
  }
  if (*ret) return CLEAVE_OK;
  return api_fail(error, CLV_NOT_FOUND,
                  "context %s has no gradient of '%s' of module '%s': no backward got there",
                  c->name, name, m->name);
}

cleave_status cleave_gradient(cleave_runtime *runtime, cleave_context handle, cleave_module *module,
                              const char *name, uint64_t deadline_ms, cleave_tensor *ret_tensor,
                              cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    LOCKED(runtime);
    PASS(gradient(runtime, handle, module, name, deadline_ms, &t, NULL, error));
  }
  return api_tensor_out(t, ret_tensor, error);
}

cleave_status cleave_gradient_place(cleave_runtime *runtime, cleave_context handle,
                                    cleave_module *module, const char *name, uint64_t deadline_ms,
                                    cleave_place *ret_place, cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  char device[API_DEVICE] = "";
  LOCKED(runtime);
  PASS(gradient(runtime, handle, module, name, deadline_ms, &t, device, error));
  api_module_is_on(module, device);
  ret_place->node = runtime->peers[module->node].name;
  ret_place->device = module->device;
  return CLEAVE_OK;
}

cleave_status cleave_leaf_gradient(cleave_runtime *runtime, cleave_reference leaf,
                                   cleave_tensor *ret_tensor, cleave_error *error) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  {
    api_value *v;
    LOCKED(runtime);
    PASS(api_find_value(runtime, leaf, &v, error));
    if (v->module || !v->needs_grad)
      return api_fail(error, CLV_INVALID, "reference %llu is no leaf that requires a gradient",
                      (unsigned long long)leaf.id);
    if (v->context->running)
      return api_fail(error, CLV_PRECONDITION, "a backward of context %s is running",
                      v->context->name);
    if (!v->gradient)
      return api_fail(error, CLV_NOT_FOUND, "no backward got to leaf %llu",
                      (unsigned long long)leaf.id);
    t = clv_tensor_ref(v->gradient);
  }
  return api_tensor_out(t, ret_tensor, error);
}
