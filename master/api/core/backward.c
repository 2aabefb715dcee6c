/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward: one walk over the tape, from the newest value to the oldest, finds the calls that the
 * roots depend on, and counts the gradients of each; then every node is sent its part. A call that
 * no root needs takes no part, so no node waits for it.
 *
 * Nodes run the backwards of a module's calls in the order of the frame: grouped by the last root
 * that depends on them, in the order of the roots, and within a group from the newest to the
 * oldest. A call gets its gradient from calls of an earlier group, or from newer ones of its own
 * group, so this order cannot deadlock.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/incarnations_int.h"

/* ---- roots ----------------------------------------------------------------------------------- */

static clv_tensor *gradient_of(const api_backward_roots *s, size_t i) {
  return s->gradients ? s->gradients[i] : NULL;
}

static cleave_status check_scalar(const api_value *v, float weight, cleave_error *error) {
  char s[160];
  size_t n = 0;
  TRY(clv_shape_numel(&v->shape, &n, &err));
  if (n != 1)
    return api_fail(error, CLV_INVALID,
                    "root %llu is %s; backward starts from scalars, or from a gradient that is "
                    "given (cleave_backward_options.gradients)",
                    (unsigned long long)v->id, clv_shape_format(&v->shape, s, sizeof s));
  if (!isfinite(weight) || weight == 0)
    return api_fail(error, CLV_INVALID, "root %llu has the weight %g; it must be finite and not 0",
                    (unsigned long long)v->id, (double)weight);
  return CLEAVE_OK;
}

static cleave_status check_gradient(const api_value *v, const clv_tensor *t, cleave_error *error) {
  char want[160], got[160];
  if (t->dtype == v->dtype && clv_shape_equal(&t->shape, &v->shape)) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "root %llu is %s %s, the gradient given for it %s %s",
                  (unsigned long long)v->id, clv_dtype_name(v->dtype),
                  clv_shape_format(&v->shape, want, sizeof want), clv_dtype_name(t->dtype),
                  clv_shape_format(&t->shape, got, sizeof got));
}

/* A gradient that is given is the first in the sum of those that come for its value. */
static cleave_status mark_root(cleave_runtime *rt, api_context *c, const api_backward_roots *s,
                               uint32_t i, cleave_error *error) {
  api_value *v;
  const clv_tensor *given = gradient_of(s, i);
  float weight = given ? 0 : s->weights ? s->weights[i] : 1;
  PASS(api_find_value(rt, s->roots[i], &v, error));
  if (v->context != c)
    return api_fail(error, CLV_INVALID, "root %llu belongs to context %s, not to %s",
                    (unsigned long long)v->id, v->context->name, c->name);
  PASS(given ? check_gradient(v, given, error) : check_scalar(v, weight, error));
  if (!v->module || !v->needs_grad)
    return api_fail(error, CLV_PRECONDITION,
                    "root %llu depends on no parameter and no leaf that requires a gradient",
                    (unsigned long long)v->id);
  if (v->phase == c->phase)
    return api_fail(error, CLV_INVALID, "root %llu is given twice", (unsigned long long)v->id);
  v->phase = c->phase;
  v->n_contributions = v->n_arrived = given != NULL;
  v->root_weight = weight;
  v->group = i;
  return CLEAVE_OK;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* One more gradient comes for v; returns its place in the sum. */
static uint32_t expect(api_context *c, api_value *v, uint32_t group) {
  if (v->phase != c->phase) {
    v->phase = c->phase;
    v->n_contributions = v->n_arrived = v->group = 0;
    v->root_weight = 0;
  }
  v->group = CLV_MAX(v->group, group);
  return v->n_contributions++;
}

static void join_group(api_call_group *g, api_value *v) {
  v->next_needed = NULL;
  *(g->first ? &g->last->next_needed : &g->first) = v;
  g->last = v;
}

/* True if its backward reads the parameters of its module, which have changed since the call: as
 * its node would find, but before anything has moved. After a backward that retained, the forward
 * runs again. */
static bool is_outdated(const api_context *c, const api_value *v) {
  const cleave_module *m = v->module;
  uint32_t input_grads = 0;
  if (v->weights_version == m->weights_version || c->has_step_at[m->index]) return false;
  for (uint32_t i = 0; i < v->n_args; i++)
    if (v->args[i]->needs_grad) input_grads |= 1u << i;
  return v->had_backward || clv_graph_backward_reads_params(m->graph, m->params, input_grads);
}

static cleave_status refuse_outdated(const api_value *v, cleave_error *error) {
  const cleave_module *m = v->module;
  api_fail(error, CLV_PRECONDITION,
           "the parameters of module '%s' have changed, by a step or a write, since its call %llu, "
           "whose backward reads them as they were: run the backward before, or call it again",
           m->name, (unsigned long long)v->id);
  api_set_error_node(error, m->runtime->peers[m->node].name, m->name);
  return CLEAVE_PRECONDITION;
}

static cleave_status visit(cleave_runtime *rt, api_context *c, api_value *v, cleave_error *error) {
  cleave_module *m = v->module;
  if (v->saved_tensors_freed) {
    api_fail(error, CLV_PRECONDITION,
             "call %llu of module '%s' has had its backward: give the first one retain = true",
             (unsigned long long)v->id, m->name);
    api_set_error_node(error, m->runtime->peers[m->node].name, m->name);
    return CLEAVE_PRECONDITION;
  }
  if (is_outdated(c, v)) return refuse_outdated(v, error);
  for (uint32_t i = 0; i < v->n_args; i++)
    if (v->args[i]->needs_grad) v->order[i] = expect(c, v->args[i], v->group);
  join_group(&rt->groups[v->group], v);
  c->expected |= NODE_BIT(m->node);
  return CLEAVE_OK;
}

static cleave_status ready_leaf(api_context *c, api_value *v, cleave_error *error) {
  if (v->n_contributions > v->parts_cap) {
    clv_tensor **more;
    TRY(clv_alloc(v->n_contributions, sizeof *more, &more, &err));
    free(v->parts);
    v->parts = more;
    v->parts_cap = v->n_contributions;
  }
  c->n_leaf_gradients_missing += v->n_contributions;
  return CLEAVE_OK;
}

/* A call that waits for the backward of another one would wait for itself unless that comes
 * first. */
static cleave_status check_window(const api_context *c, const api_value *v, cleave_error *error) {
  const api_value *a = v->runs_after_backward_of;
  if (!a || a->had_backward || (a->phase == c->phase && a->group < v->group)) return CLEAVE_OK;
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

static cleave_status walk(cleave_runtime *rt, api_context *c, const api_backward_roots *s,
                          cleave_error *error) {
  c->expected = c->finished = 0;
  c->n_leaf_gradients_missing = 0;
  PASS(ready_groups(rt, s->n, error));
  for (size_t i = 0; i < s->n; i++) PASS(mark_root(rt, c, s, (uint32_t)i, error));
  for (api_value *v = c->newest; v; v = v->older) {
    if (v->phase != c->phase) continue;
    PASS(v->module ? visit(rt, c, v, error) : ready_leaf(c, v, error));
  }
  for (size_t g = 0; g < s->n; g++)
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
  return api_send_buffered(p->rt, p->node, clv_steal(&p->packet), error);
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
  TRY(clv_packet_add_needed_call(p->packet, v->id, v->n_contributions, v->root_weight, &err));
  for (uint32_t i = 0; i < v->n_args; i++) {
    const api_value *a = v->args[i];
    const char *to =
        a->module && a->module->node ? api_wire_name(&p->rt->peers[a->module->node]) : "";
    if (a->needs_grad) TRY(clv_packet_add_target(p->packet, i, a->id, to, v->order[i], &err));
  }
  return CLEAVE_OK;
}

static preparing begin_part(cleave_runtime *rt, api_context *c, uint32_t node, bool retain) {
  preparing p = {.rt = rt, .c = c, .node = node, .retain = retain};
  p.skipped = c->phase - c->phase_at[node] - 1;
  c->phase_at[node] = c->phase;
  c->nodes_with_written_gradients &= ~NODE_BIT(node); /* it votes behind that */
  for (uint32_t i = 0; i < rt->n_modules; i++)
    p.vote |= rt->modules[i] && rt->modules[i]->node == node && rt->modules[i]->optimizer;
  return p;
}

static cleave_status prepare_node(cleave_runtime *rt, api_context *c, uint32_t node,
                                  size_t n_groups, bool retain, cleave_error *error) {
  preparing p = begin_part(rt, c, node, retain);
  cleave_status status = CLEAVE_OK;
  for (size_t g = 0; g < n_groups; g++)
    for (api_value *v = rt->groups[g].first; v && status == CLEAVE_OK; v = v->next_needed)
      if (v->module->node == node) status = add_call(&p, v, error);
  if (status == CLEAVE_OK) status = flush(&p, false, error);
  clv_packet_free(p.packet);
  return status;
}

static cleave_status send_gradients(cleave_runtime *rt, const api_context *c,
                                    const api_backward_roots *s, cleave_error *error) {
  for (size_t i = 0; i < s->n; i++) {
    const api_value *v = api_id_table_get(&rt->values, s->roots[i].id);
    clv_packet *p;
    if (!gradient_of(s, i)) continue;
    TRY(clv_packet_gradient(rt->pool, c->id, c->phase, v->id, 0, "", gradient_of(s, i), &p, &err));
    PASS(api_send(rt, v->module->node, p, error));
  }
  return CLEAVE_OK;
}

static cleave_status prepare(cleave_runtime *rt, api_context *c, const api_backward_roots *s,
                             bool retain, cleave_error *error) {
  for (size_t g = 0; g < s->n; g++)
    for (api_value *v = rt->groups[g].first; v; v = v->next_needed) {
      v->saved_tensors_freed = !retain;
      v->had_backward = true;
      c->n_calls_awaiting_backward -= v->n_followers;
      v->n_followers = 0;
      if (v->module->n_learning) c->has_gradient[v->module->index] = true;
    }
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if (c->expected & NODE_BIT(i)) PASS(prepare_node(rt, c, i, s->n, retain, error));
  return send_gradients(rt, c, s, error);
}

/* Fills in a deadline error that names a node that has not finished: a worker if possible, because
 * the master's own node may be waiting for it. */
static void fill_deadline_error(const cleave_runtime *rt, const api_context *c,
                                uint64_t deadline_ms, cleave_error *ret) {
  char heard[200];
  const char *who = NULL;
  for (uint32_t i = rt->n_peers; i-- > 0 && !who;)
    if (c->expected & ~c->finished & NODE_BIT(i)) who = rt->peers[i].name;
  api_fail(ret, CLV_DEADLINE, "backward of context %s took longer than %llu ms%s%s", c->name,
           (unsigned long long)(deadline_ms ? deadline_ms : rt->deadline_ms),
           deadline_ms ? "" : " (limits.step_timeout)",
           api_describe_silence(rt, heard, sizeof heard));
  if (who) api_set_error_node(ret, who, "");
}

/* ---- one after the other --------------------------------------------------------------------- */

enum { WAITS_FOR_EARLIER, RUNS };

static cleave_status start(cleave_runtime *rt, api_future *f, const api_backward_roots *s,
                           cleave_error *error) {
  api_context *c = f->context;
  cleave_error why;
  c->phase++;
  PASS(walk(rt, c, s, error));
  c->is_backward_running = f->owns_pass = true;
  f->stage = RUNS;
  f->cannot_cancel = true;
  if (prepare(rt, c, s, s->retain, &why) != CLEAVE_OK) api_context_fail(rt, c, &why, 0);
  return CLEAVE_OK;
}

static cleave_status take_gradient(cleave_runtime *rt, const cleave_backward_options *o, size_t i,
                                   clv_tensor **ret, cleave_error *error) {
  if (!o->gradients[i].dtype) return CLEAVE_OK;
  if (o->weights && o->weights[i] != 0)
    return api_fail(error, CLV_INVALID,
                    "root number %zu has both a weight and a gradient: it starts with one", i);
  return api_copy_tensor_in(rt->pool, &o->gradients[i], ret, error);
}

cleave_status api_copy_backward_roots(cleave_runtime *rt, const cleave_reference *roots, size_t n,
                                      const cleave_backward_options *o, api_backward_roots *ret,
                                      cleave_error *error) {
  cleave_status status = CLEAVE_OK;
  *ret = (api_backward_roots){.roots = (cleave_reference *)(uintptr_t)roots,
                              .weights = (float *)(uintptr_t)o->weights,
                              .n = n,
                              .retain = o->retain};
  if (!n) return api_fail(error, CLV_INVALID, "a backward without roots");
  if (!o->gradients) return CLEAVE_OK;
  TRY(clv_alloc(n, sizeof *ret->gradients, &ret->gradients, &err));
  for (size_t i = 0; i < n && status == CLEAVE_OK; i++)
    status = take_gradient(rt, o, i, &ret->gradients[i], error);
  if (status != CLEAVE_OK) api_backward_roots_done(ret);
  return status;
}

void api_backward_roots_done(api_backward_roots *s) {
  if (!s) return;
  for (size_t i = 0; s->gradients && i < s->n; i++) clv_tensor_unref(s->gradients[i]);
  free(s->gradients);
  s->gradients = NULL;
}

static cleave_status copy_starts(const api_backward_roots *from, api_backward_roots *ret,
                                 cleave_error *error) {
  *ret = (api_backward_roots){.n = from->n, .retain = from->retain};
  TRY(clv_alloc(from->n, sizeof *ret->roots, &ret->roots, &err));
  if (from->weights) TRY(clv_alloc(from->n, sizeof *ret->weights, &ret->weights, &err));
  if (from->gradients) TRY(clv_alloc(from->n, sizeof *ret->gradients, &ret->gradients, &err));
  memcpy(ret->roots, from->roots, from->n * sizeof *ret->roots);
  if (from->weights) memcpy(ret->weights, from->weights, from->n * sizeof *ret->weights);
  for (size_t i = 0; from->gradients && i < from->n; i++)
    ret->gradients[i] = clv_tensor_ref(from->gradients[i]);
  return CLEAVE_OK;
}

cleave_status api_backward_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                 cleave_error *error) {
  const api_backward_roots *s = a->starts;
  api_context *c;
  PASS(api_find_context(rt, a->context, &c, error));
  if (c->evaluation)
    return api_fail(error, CLV_PRECONDITION, "context %s evaluates: it has no backward", c->name);
  f->context = c;
  snprintf(f->subject, sizeof f->subject, "context %.64s", c->name);
  return api_future_has_earlier(rt, f) ? copy_starts(s, &f->backward, error)
                                       : start(rt, f, s, error);
}

void api_backward_advance(cleave_runtime *rt, api_future *f) {
  const api_context *c = f->context;
  cleave_error why;
  if (c->failed) {
    api_future_finish(rt, f, &c->failure);
  } else if (f->stage == RUNS) {
    if (api_pass_is_done(c)) api_future_finish(rt, f, NULL);
  } else if (!api_future_has_earlier(rt, f) && start(rt, f, &f->backward, &why) != CLEAVE_OK) {
    api_future_finish(rt, f, &why);
  }
}

void api_pass_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  fill_deadline_error(rt, f->context, f->deadline_ms, ret);
  api_context_fail(rt, f->context, ret, 0);
}

void api_backward_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  if (f->stage == RUNS)
    api_pass_deadline_error(rt, f, ret);
  else
    api_fail(ret, CLV_DEADLINE, "what context %s does before this backward was not done in time",
             f->context->name);
}

/* ---- a vote on what the program has written -------------------------------------------------- */

/* A pass without calls. */
static cleave_status ask_for_vote(cleave_runtime *rt, api_context *c, uint32_t node,
                                  cleave_error *error) {
  preparing p = begin_part(rt, c, node, false);
  TRY(clv_packet_prepare(rt->pool, c->id, c->phase, 0, false, p.vote, false, &p.packet, &err));
  return flush(&p, false, error);
}

void api_vote_begin(cleave_runtime *rt, api_context *c) {
  cleave_error why;
  c->phase++;
  c->expected = c->nodes_with_written_gradients;
  c->finished = 0;
  c->n_leaf_gradients_missing = 0;
  c->is_backward_running = true;
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if ((c->expected & NODE_BIT(i)) && ask_for_vote(rt, c, i, &why) != CLEAVE_OK)
      api_context_fail(rt, c, &why, 0);
}
