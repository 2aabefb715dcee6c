/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward pass. One walk over the tape, from the newest value to the oldest, finds the calls
 * on which the roots depend, and counts the gradients that each call will receive. Then each node
 * is sent its calls (PREPARE). A call on which no root depends takes no part, so no node waits for
 * it.
 *
 * Nodes run the backwards of a module's calls in the order in which PREPARE lists the calls. The
 * calls are grouped by the last root that depends on them. The groups are in the order of the
 * roots, and the calls of a group are from the newest to the oldest. A call gets its gradient from
 * calls of earlier groups, or from newer calls of its own group, so this order cannot deadlock.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/incarnations_int.h"

/* ---- the roots of a backward ----------------------------------------------------------------- */

static clv_tensor *find_given_gradient(const api_backward_roots *s, size_t i) {
  return s->gradients ? s->gradients[i] : NULL;
}

static cleave_status check_scalar_root(const api_value *v, float weight, cleave_error *error) {
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
  char wanted_text[160], given_text[160];
  bool is_rounded = t->dtype == CLV_BF16 && v->dtype == CLV_F32;
  if ((t->dtype == v->dtype || is_rounded) && clv_shape_equal(&t->shape, &v->shape))
    return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "root %llu is %s %s, the gradient given for it %s %s",
                  (unsigned long long)v->id, clv_dtype_name(v->dtype),
                  clv_shape_format(&v->shape, wanted_text, sizeof wanted_text),
                  clv_dtype_name(t->dtype),
                  clv_shape_format(&t->shape, given_text, sizeof given_text));
}

/* Marks a root of the pass. A gradient that the program gives is the first contribution to the
 * root's gradient. */
static cleave_status mark_root(cleave_runtime *rt, api_context *c, const api_backward_roots *s,
                               uint32_t i, cleave_error *error) {
  api_value *v;
  const clv_tensor *given_gradient = find_given_gradient(s, i);
  float weight = given_gradient ? 0 : s->root_weights ? s->root_weights[i] : 1;
  TRY_API(api_find_value(rt, s->roots[i], &v, error));
  if (v->context != c)
    return api_fail(error, CLV_INVALID, "root %llu belongs to context %s, not to %s",
                    (unsigned long long)v->id, v->context->name, c->name);
  TRY_API(given_gradient ? check_gradient(v, given_gradient, error)
                         : check_scalar_root(v, weight, error));
  if (!v->module || !v->needs_grad)
    return api_fail(error, CLV_PRECONDITION,
                    "root %llu depends on no parameter and no leaf that requires a gradient",
                    (unsigned long long)v->id);
  if (v->last_pass_number == c->last_pass_number)
    return api_fail(error, CLV_INVALID, "root %llu is given twice", (unsigned long long)v->id);
  v->last_pass_number = c->last_pass_number;
  v->n_contributions = v->n_contributions_received = given_gradient != NULL;
  v->root_weight = weight;
  v->last_root_index = i;
  return CLEAVE_OK;
}

/* ---- the walk over the tape ------------------------------------------------------------------ */

/* Counts one more gradient that will arrive for v. Returns the index of this gradient in the sum
 * that is v's gradient. */
static uint32_t add_expected_gradient(api_context *c, api_value *v, uint32_t group_index) {
  if (v->last_pass_number != c->last_pass_number) {
    v->last_pass_number = c->last_pass_number;
    v->n_contributions = v->n_contributions_received = v->last_root_index = 0;
    v->root_weight = 0;
  }
  v->last_root_index = CLV_MAX(v->last_root_index, group_index);
  return v->n_contributions++;
}

static void append_call_to_group(api_call_group *g, api_value *v) {
  v->next_in_list = NULL;
  *(g->first_call ? &g->last_call->next_in_list : &g->first_call) = v;
  g->last_call = v;
}

/* True if the call's backward reads parameters that have changed since the call. Its node would
 * detect this as well, but only after the pass has begun. After a backward with `retain`, the node
 * repeats the forward before the next backward, so that backward always reads the parameters. */
static bool is_call_outdated(const api_context *c, const api_value *v) {
  const cleave_module *m = v->module;
  uint32_t input_grad_mask = 0;
  if (v->weights_version == m->weights_version || c->has_stepped_at_position[m->index])
    return false;
  for (uint32_t i = 0; i < v->n_args; i++)
    if (v->args[i]->needs_grad) input_grad_mask |= 1u << i;
  return v->had_backward || clv_graph_backward_reads_params(m->graph, m->params, input_grad_mask);
}

static cleave_status refuse_outdated_call(const api_value *v, cleave_error *error) {
  const cleave_module *m = v->module;
  api_fail(error, CLV_PRECONDITION,
           "the parameters of module '%s' have changed, by a step or a write, since its call %llu, "
           "whose backward reads them as they were: run the backward before, or call it again",
           m->name, (unsigned long long)v->id);
  api_set_error_node(error, m->runtime->peers[m->node].name, m->name);
  return CLEAVE_PRECONDITION;
}

static cleave_status visit_call(cleave_runtime *rt, api_context *c, api_value *v,
                                cleave_error *error) {
  cleave_module *m = v->module;
  if (v->are_saved_tensors_freed) {
    api_fail(error, CLV_PRECONDITION,
             "call %llu of module '%s' has had its backward: give the first one retain = true",
             (unsigned long long)v->id, m->name);
    api_set_error_node(error, m->runtime->peers[m->node].name, m->name);
    return CLEAVE_PRECONDITION;
  }
  if (is_call_outdated(c, v)) return refuse_outdated_call(v, error);
  for (uint32_t i = 0; i < v->n_args; i++)
    if (v->args[i]->needs_grad)
      v->contribution_indexes[i] = add_expected_gradient(c, v->args[i], v->last_root_index);
  append_call_to_group(&rt->call_groups[v->last_root_index], v);
  c->nodes_in_pass |= NODE_BIT(m->node);
  return CLEAVE_OK;
}

static cleave_status prepare_leaf(api_context *c, api_value *v, cleave_error *error) {
  if (v->n_contributions > v->contributions_cap) {
    clv_tensor **grown_contributions;
    TRY(clv_alloc(v->n_contributions, sizeof *grown_contributions, &grown_contributions, &err));
    free(v->contributions);
    v->contributions = grown_contributions;
    v->contributions_cap = v->n_contributions;
  }
  c->n_leaf_gradients_missing += v->n_contributions;
  return CLEAVE_OK;
}

/* Checks the call whose backward must run before v (cleave_call_options.after): it must belong to
 * an earlier root than v. Otherwise v would wait for its own backward. */
static cleave_status check_runs_after(const api_context *c, const api_value *v,
                                      cleave_error *error) {
  const api_value *a = v->runs_after_backward_of;
  if (!a || a->had_backward ||
      (a->last_pass_number == c->last_pass_number && a->last_root_index < v->last_root_index))
    return CLEAVE_OK;
  return api_fail(
      error, CLV_PRECONDITION,
      "call %llu of module '%s' runs after the backward of call %llu, on which no earlier "
      "root depends: give the roots in the order of the window",
      (unsigned long long)v->id, v->module->name, (unsigned long long)a->id);
}

static cleave_status clear_call_groups(cleave_runtime *rt, size_t n, cleave_error *error) {
  if (n > UINT32_MAX) return api_fail(error, CLV_INVALID, "%zu roots", n);
  if (n > rt->call_groups_cap) {
    api_call_group *grown_groups;
    TRY(clv_alloc(n, sizeof *grown_groups, &grown_groups, &err));
    free(rt->call_groups);
    rt->call_groups = grown_groups;
    rt->call_groups_cap = (uint32_t)n;
  }
  memset(rt->call_groups, 0, n * sizeof *rt->call_groups);
  return CLEAVE_OK;
}

static cleave_status walk_tape(cleave_runtime *rt, api_context *c, const api_backward_roots *s,
                               cleave_error *error) {
  c->nodes_in_pass = c->nodes_finished_pass = 0;
  c->n_leaf_gradients_missing = 0;
  TRY_API(clear_call_groups(rt, s->n, error));
  for (size_t i = 0; i < s->n; i++) TRY_API(mark_root(rt, c, s, (uint32_t)i, error));
  for (api_value *v = c->newest_value; v; v = v->older_value) {
    if (v->last_pass_number != c->last_pass_number) continue;
    TRY_API(v->module ? visit_call(rt, c, v, error) : prepare_leaf(c, v, error));
  }
  for (size_t g = 0; g < s->n; g++)
    for (const api_value *v = rt->call_groups[g].first_call; v; v = v->next_in_list)
      TRY_API(check_runs_after(c, v, error));
  return CLEAVE_OK;
}

/* ---- sending PREPARE to the nodes ------------------------------------------------------------ */

typedef struct prepare_message {
  cleave_runtime *rt;
  api_context *c;
  uint32_t node;
  bool retain_graph, needs_vote;
  uint32_t n_passes_skipped;
  clv_packet *packet;
} prepare_message;

static cleave_status send_prepare(prepare_message *p, bool does_more_follow, cleave_error *error) {
  if (!p->packet) return CLEAVE_OK;
  p->packet->frame.backward.more_follow = does_more_follow;
  p->packet->frame.backward.n_skipped_phases = p->n_passes_skipped;
  return api_send_buffered(p->rt, p->node, clv_steal(&p->packet), error);
}

static bool has_room_for_call(const prepare_message *p, const api_value *v) {
  const clv_frame *f = &p->packet->frame;
  return f->backward.n_needed_calls < CLV_WIRE_NEEDED_CALLS &&
         f->backward.n_grad_targets + v->n_args <= CLV_WIRE_TARGETS &&
         f->backward.n_peers + v->n_args <= CLV_WIRE_PREPARE_PEERS;
}

static cleave_status add_call_to_prepare(prepare_message *p, const api_value *v,
                                         cleave_error *error) {
  if (p->packet && !has_room_for_call(p, v)) TRY_API(send_prepare(p, true, error));
  if (!p->packet)
    TRY(clv_packet_new_prepare(p->rt->pool, p->c->id, p->c->last_pass_number, 0, p->retain_graph,
                               p->needs_vote, false, &p->packet, &err));
  p->packet->frame.step = CLV_MAX(
      p->packet->frame.step, v->call_number); /* the node waits for the calls up to this number */
  TRY(clv_packet_add_needed_call(p->packet, v->id, v->n_contributions, v->root_weight, &err));
  for (uint32_t i = 0; i < v->n_args; i++) {
    const api_value *a = v->args[i];
    const char *to =
        a->module && a->module->node ? api_wire_name(&p->rt->peers[a->module->node]) : "";
    if (a->needs_grad)
      TRY(clv_packet_add_target(p->packet, i, a->id, to, v->contribution_indexes[i], &err));
  }
  return CLEAVE_OK;
}

static prepare_message begin_prepare(cleave_runtime *rt, api_context *c, uint32_t node,
                                     bool retain_graph) {
  prepare_message p = {.rt = rt, .c = c, .node = node, .retain_graph = retain_graph};
  p.n_passes_skipped = c->last_pass_number - c->last_pass_number_at_node[node] - 1;
  c->last_pass_number_at_node[node] = c->last_pass_number;
  /* the node's vote (its sums of squared gradients) after this pass counts the gradients that the
   * program has written */
  c->nodes_with_written_gradients &= ~NODE_BIT(node);
  for (uint32_t i = 0; i < rt->n_modules; i++)
    p.needs_vote |= rt->modules[i] && rt->modules[i]->node == node && rt->modules[i]->optimizer;
  return p;
}

static cleave_status prepare_node(cleave_runtime *rt, api_context *c, uint32_t node,
                                  size_t n_groups, bool retain_graph, cleave_error *error) {
  prepare_message p = begin_prepare(rt, c, node, retain_graph);
  cleave_status status = CLEAVE_OK;
  for (size_t g = 0; g < n_groups; g++)
    for (api_value *v = rt->call_groups[g].first_call; v && status == CLEAVE_OK;
         v = v->next_in_list)
      if (v->module->node == node) status = add_call_to_prepare(&p, v, error);
  if (status == CLEAVE_OK) status = send_prepare(&p, false, error);
  clv_packet_free(p.packet);
  return status;
}

/* Copies a gradient that the program gives, as f32 if the worker does not support values in
 * bf16. */
static cleave_status make_gradient_for_node(cleave_runtime *rt, clv_tensor *t, uint32_t node,
                                            clv_tensor **ret, cleave_error *error) {
  if (t->dtype == CLV_BF16 && node && !rt->peers[node].supports_bf16_values)
    TRY(clv_pool_convert_tensor(rt->pool, t, CLV_F32, ret, &err));
  else
    *ret = clv_tensor_ref(t);
  return CLEAVE_OK;
}

static cleave_status send_given_gradients(cleave_runtime *rt, const api_context *c,
                                          const api_backward_roots *s, cleave_error *error) {
  for (size_t i = 0; i < s->n; i++) {
    const api_value *v = api_id_table_get(&rt->values, s->roots[i].id);
    CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
    clv_packet *p;
    if (!find_given_gradient(s, i)) continue;
    TRY_API(make_gradient_for_node(rt, find_given_gradient(s, i), v->module->node, &t, error));
    TRY(clv_packet_new_gradient(rt->pool, c->id, c->last_pass_number, v->id, 0, "", t, &p, &err));
    TRY_API(api_send(rt, v->module->node, p, error));
  }
  return CLEAVE_OK;
}

static cleave_status prepare_pass(cleave_runtime *rt, api_context *c, const api_backward_roots *s,
                                  bool retain_graph, cleave_error *error) {
  for (size_t g = 0; g < s->n; g++)
    for (api_value *v = rt->call_groups[g].first_call; v; v = v->next_in_list) {
      v->are_saved_tensors_freed = !retain_graph;
      v->had_backward = true;
      c->n_calls_awaiting_backward -= v->n_calls_after_backward;
      v->n_calls_after_backward = 0;
      if (v->module->n_trained_params) c->has_gradient[v->module->index] = true;
    }
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if (c->nodes_in_pass & NODE_BIT(i)) TRY_API(prepare_node(rt, c, i, s->n, retain_graph, error));
  return send_given_gradients(rt, c, s, error);
}

/* Fills in a deadline error that names a node that has not finished: a worker if possible, because
 * the master's own node may be waiting for that worker. */
static void fill_deadline_error(const cleave_runtime *rt, const api_context *c,
                                uint64_t deadline_ms, cleave_error *ret) {
  char silence_text[200];
  const char *late_node = NULL;
  for (uint32_t i = rt->n_peers; i-- > 0 && !late_node;)
    if (c->nodes_in_pass & ~c->nodes_finished_pass & NODE_BIT(i)) late_node = rt->peers[i].name;
  api_fail(ret, CLV_DEADLINE, "backward of context %s took longer than %llu ms%s%s", c->name,
           (unsigned long long)(deadline_ms ? deadline_ms : rt->deadline_ms),
           deadline_ms ? "" : " (limits.step_timeout)",
           api_describe_silence(rt, silence_text, sizeof silence_text));
  if (late_node) api_set_error_node(ret, late_node, "");
}

/* ---- the operation of a backward: one pass at a time in a context ---------------------------- */

/* States of a backward (api_future.operation_state): earlier operations of the context have not
 * ended; the pass is running. */
enum { WAITS_FOR_EARLIER, PASS_IS_RUNNING };

static cleave_status start_pass(cleave_runtime *rt, api_future *f, const api_backward_roots *s,
                                cleave_error *error) {
  api_context *c = f->context;
  cleave_error why;
  c->last_pass_number++;
  TRY_API(walk_tape(rt, c, s, error));
  c->is_backward_running = f->owns_pass = true;
  f->operation_state = PASS_IS_RUNNING;
  f->cannot_cancel = true;
  if (prepare_pass(rt, c, s, s->retain_graph, &why) != CLEAVE_OK) api_context_fail(rt, c, &why, 0);
  return CLEAVE_OK;
}

static cleave_status copy_given_gradient(cleave_runtime *rt, const cleave_backward_options *o,
                                         size_t i, clv_tensor **ret, cleave_error *error) {
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
                              .root_weights = (float *)(uintptr_t)o->weights,
                              .n = n,
                              .retain_graph = o->retain};
  if (!n) return api_fail(error, CLV_INVALID, "a backward without roots");
  if (!o->gradients) return CLEAVE_OK;
  TRY(clv_alloc(n, sizeof *ret->gradients, &ret->gradients, &err));
  for (size_t i = 0; i < n && status == CLEAVE_OK; i++)
    status = copy_given_gradient(rt, o, i, &ret->gradients[i], error);
  if (status != CLEAVE_OK) api_backward_roots_free(ret);
  return status;
}

void api_backward_roots_free(api_backward_roots *s) {
  if (!s) return;
  for (size_t i = 0; s->gradients && i < s->n; i++) clv_tensor_unref(s->gradients[i]);
  free(s->gradients);
  s->gradients = NULL;
}

static cleave_status copy_roots(const api_backward_roots *from, api_backward_roots *ret,
                                cleave_error *error) {
  *ret = (api_backward_roots){.n = from->n, .retain_graph = from->retain_graph};
  TRY(clv_alloc(from->n, sizeof *ret->roots, &ret->roots, &err));
  if (from->root_weights)
    TRY(clv_alloc(from->n, sizeof *ret->root_weights, &ret->root_weights, &err));
  if (from->gradients) TRY(clv_alloc(from->n, sizeof *ret->gradients, &ret->gradients, &err));
  memcpy(ret->roots, from->roots, from->n * sizeof *ret->roots);
  if (from->root_weights)
    memcpy(ret->root_weights, from->root_weights, from->n * sizeof *ret->root_weights);
  for (size_t i = 0; from->gradients && i < from->n; i++)
    ret->gradients[i] = clv_tensor_ref(from->gradients[i]);
  return CLEAVE_OK;
}

cleave_status api_backward_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                                 cleave_error *error) {
  const api_backward_roots *s = a->backward_roots;
  api_context *c;
  TRY_API(api_find_context(rt, a->context, &c, error));
  if (c->is_evaluation)
    return api_fail(error, CLV_PRECONDITION, "context %s evaluates: it has no backward", c->name);
  f->context = c;
  snprintf(f->subject_name, sizeof f->subject_name, "context %.64s", c->name);
  return api_future_has_earlier_operation(rt, f) ? copy_roots(s, &f->backward_roots, error)
                                                 : start_pass(rt, f, s, error);
}

/* Ends a backward. Then frees values that the program has forgotten and only this backward
 * needed. */
static void finish_pass(cleave_runtime *rt, api_context *c, api_future *f) {
  api_future_finish(rt, f, NULL);
  if (c->has_forgotten_calls) (void)api_forget_unneeded_values(rt, c, NULL);
}

void api_backward_advance(cleave_runtime *rt, api_future *f) {
  api_context *c = f->context;
  cleave_error why;
  if (c->has_failed) {
    api_future_finish(rt, f, &c->failure);
  } else if (f->operation_state == PASS_IS_RUNNING) {
    if (api_is_pass_done(c)) finish_pass(rt, c, f);
  } else if (!api_future_has_earlier_operation(rt, f) &&
             start_pass(rt, f, &f->backward_roots, &why) != CLEAVE_OK) {
    api_future_finish(rt, f, &why);
  }
}

void api_fill_late_pass_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  fill_deadline_error(rt, f->context, f->deadline_ms, ret);
  api_context_fail(rt, f->context, ret, 0);
}

void api_backward_deadline_error(cleave_runtime *rt, const api_future *f, cleave_error *ret) {
  if (f->operation_state == PASS_IS_RUNNING)
    api_fill_late_pass_error(rt, f, ret);
  else
    api_fail(ret, CLV_DEADLINE, "what context %s does before this backward was not done in time",
             f->context->name);
}

/* ---- new votes after the program has written gradients --------------------------------------- */

/* Sends a PREPARE without calls. The node answers with its vote: whether its gradients are finite,
 * and their sums of squares. */
static cleave_status request_vote(cleave_runtime *rt, api_context *c, uint32_t node,
                                  cleave_error *error) {
  prepare_message p = begin_prepare(rt, c, node, false);
  TRY(clv_packet_new_prepare(rt->pool, c->id, c->last_pass_number, 0, false, p.needs_vote, false,
                             &p.packet, &err));
  return send_prepare(&p, false, error);
}

void api_step_vote_begin(cleave_runtime *rt, api_context *c) {
  cleave_error why;
  c->last_pass_number++;
  c->nodes_in_pass = c->nodes_with_written_gradients;
  c->nodes_finished_pass = 0;
  c->n_leaf_gradients_missing = 0;
  c->is_backward_running = true;
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if ((c->nodes_in_pass & NODE_BIT(i)) && request_vote(rt, c, i, &why) != CLEAVE_OK)
      api_context_fail(rt, c, &why, 0);
}
