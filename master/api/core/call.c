/* SPDX-License-Identifier: Apache-2.0
 *
 * Leaves and calls. A call becomes one value of the tape and one CALL frame. For each argument that
 * the call's node does not have, the master sends the value if this process has the value, and
 * otherwise requests delivery from a node that has the value.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/future_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"
#include "master/api/core/ties_int.h"

cleave_status cleave_leaf(cleave_runtime *runtime, cleave_context handle,
                          const cleave_tensor *tensor, bool requires_grad,
                          cleave_reference *ret_reference, cleave_error *error) {
  NOT_NULL(runtime, tensor, ret_reference);
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *t = NULL;
  api_context *c;
  api_value *v;
  TRY_API(api_copy_tensor_in(runtime->pool, tensor, &t, error));
  if (requires_grad && t->dtype != CLV_F32 && t->dtype != CLV_BF16)
    return api_fail(error, CLV_INVALID, "a leaf of %s has no gradient; only f32 and bf16 have",
                    clv_dtype_name(t->dtype));
  LOCKED(runtime);
  TRY_API(api_find_context(runtime, handle, &c, error));
  TRY_API(api_new_value(runtime, c, &v, error));
  v->dtype = t->dtype;
  v->shape = t->shape;
  v->needs_grad = requires_grad && !c->is_evaluation;
  v->local_tensor = clv_steal(&t);
  ret_reference->id = v->id;
  return CLEAVE_OK;
}

/* ---- checks of a call, before anything is sent ----------------------------------------------- */

/* Refuses a worker's value as an input of a module at the master if the program gets the value
 * rounded to bf16, because the master has only the rounded copy. */
static cleave_status check_master_gets_own_dtype(const api_value *v, cleave_error *error) {
  if (!v->is_fetched_as_bf16 || v->module->node == 0) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID,
                  "value %llu of module '%s' comes to the master in bf16, and a module there would "
                  "compute with rounded numbers: call '%s' without fetch_dtype, or make a leaf of "
                  "the tensor that was fetched",
                  (unsigned long long)v->id, v->module->name, v->module->name);
}

/* Checks that the module's node supports values in bf16, and that no module at the master computes
 * with a worker's value that was rounded to bf16 for the program. */
static cleave_status check_rounding(const cleave_module *m, uint32_t input_index,
                                    const api_value *v, cleave_error *error) {
  const api_peer *p = &m->runtime->peers[m->node];
  if (v->dtype == CLV_BF16 && m->node && !p->supports_bf16_values)
    return api_fail(error, CLV_UNIMPLEMENTED,
                    "module '%s': input %u is bf16, which worker '%s' does not take: update it, or "
                    "give the leaf as f32",
                    m->name, input_index, p->name);
  return m->node ? CLEAVE_OK : check_master_gets_own_dtype(v, error);
}

static cleave_status check_input(const cleave_module *m, uint32_t input_index, const api_value *v,
                                 int64_t batch_size, cleave_error *error) {
  const clv_node *in = &m->graph->nodes[m->input_node_indexes[input_index]];
  bool is_widened = v->dtype == CLV_BF16 && in->dtype == CLV_F32;
  clv_shape wanted_shape = in->shape;
  if (wanted_shape.rank)
    wanted_shape.dim[0] =
        m->graph->has_per_input_batches && v->shape.rank ? v->shape.dim[0] : batch_size;
  if ((v->dtype == in->dtype || is_widened) && clv_shape_equal(&wanted_shape, &v->shape))
    return check_rounding(m, input_index, v, error);
  char w[160], g[160];
  api_fail(error, CLV_INVALID,
           "module '%s' takes input %u ('%s') as %s %s, but value %llu is %s %s", m->name,
           input_index, in->name, clv_dtype_name(in->dtype),
           clv_shape_format(&wanted_shape, w, sizeof w), (unsigned long long)v->id,
           clv_dtype_name(v->dtype), clv_shape_format(&v->shape, g, sizeof g));
  return CLEAVE_INVALID;
}

/* Checks that all inputs of a module with local_only are at the module's node. The error lists the
 * node of each input. */
static cleave_status check_input_places(cleave_runtime *rt, const cleave_module *m,
                                        api_value *const *in, cleave_error *error) {
  bool are_all_at_node = true;
  char text[CLEAVE_TEXT] = "";
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    const api_value *v = in[i];
    uint32_t node = v->module ? v->module->node : v->kept_ref ? v->kept_ref->owner_node : 0;
    size_t at = strlen(text);
    bool is_own_leaf = !v->module && !v->kept_ref && m->node == 0;
    are_all_at_node &=
        ((v->nodes_with_value | v->nodes_awaiting_module) & NODE_BIT(m->node)) || is_own_leaf;
    snprintf(text + at, sizeof text - at, "%sinput %u ('%s') is at %s", i ? ", " : "", i,
             m->graph->nodes[m->input_node_indexes[i]].name, rt->peers[node].name);
  }
  if (are_all_at_node) return CLEAVE_OK;
  const char *own_node_name = rt->peers[m->node].name;
  api_fail(error, CLV_PRECONDITION,
           "module '%s' at %s takes only inputs that are there: %.240s; bring them with "
           "cleave_send_to(..., \"%s\"), or load the module without local_only",
           m->name, own_node_name, text, own_node_name);
  api_set_error_node(error, own_node_name, m->name);
  return CLEAVE_PRECONDITION;
}

/* Returns the device of a value that a module of `node` has computed; NULL: the value is from
 * another node or from the program. */
static const char *find_value_device(const api_value *v, uint32_t node) {
  const cleave_module *m = v->module ? v->module : v->kept_ref ? v->kept_ref->module : NULL;
  return m && m->node == node ? m->device : NULL;
}

static cleave_status check_devices(cleave_runtime *rt, const cleave_module *m, api_value *const *in,
                                   cleave_error *error) {
  for (uint32_t i = 0; i < m->n_inputs && !m->copies_inputs; i++) {
    const char *device = find_value_device(in[i], m->node),
               *module_device = rt->peers[m->node].name;
    if (!device || strcmp(device, m->device) == 0) continue;
    api_fail(
        error, CLV_PRECONDITION,
        "module '%s' on device %s of %s: input %u ('%s') is on device %s of the same node; load "
        "the module with device \"%s\", or with copies_inputs, which copies inputs there",
        m->name, m->device, module_device, i, m->graph->nodes[m->input_node_indexes[i]].name,
        device, device);
    api_set_error_node(error, module_device, m->name);
    return CLEAVE_PRECONDITION;
  }
  return CLEAVE_OK;
}
/* Returns the batch size of the first input that is not a scalar. */
static int64_t find_batch_size(api_value *const *in, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (in[i]->shape.rank) return in[i]->shape.dim[0];
  return 1;
}

/* If each input of the module has a batch size of its own (a concat along dim 0), sets these sizes
 * in the graph to those of the values. Fails if the sizes do not fit together. */
static cleave_status check_batches(const cleave_module *m, api_value *const *in,
                                   cleave_error *error) {
  int64_t n[CLV_MAX_INPUTS] = {0};
  clv_err err;
  if (!m->graph->has_per_input_batches) return CLEAVE_OK;
  for (uint32_t i = 0; i < m->n_inputs; i++) n[i] = in[i]->shape.dim[0];
  if (clv_graph_set_batches(m->graph, n, &err) == CLV_OK) return CLEAVE_OK;
  (void)clv_err_prefix(&err, "module '%s'", m->name);
  return api_convert_error(error, &err);
}

static cleave_status check_call(cleave_runtime *rt, const api_context *c, const cleave_module *m,
                                const cleave_reference *inputs, size_t n_inputs, api_value **in,
                                cleave_error *error) {
  if (m->runtime != rt) return api_fail(error, CLV_INVALID, "a module of another runtime");
  if (m->is_released) return api_fail(error, CLV_NOT_FOUND, "module '%s' was released", m->name);
  if (n_inputs != m->n_inputs)
    return api_fail(error, CLV_INVALID, "module '%s' has %u input%s, not %zu", m->name, m->n_inputs,
                    CLV_S(m->n_inputs), n_inputs);
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    TRY_API(api_find_value(rt, inputs[i], &in[i], error));
    if (in[i]->context != c)
      return api_fail(error, CLV_INVALID, "input %u of '%s' belongs to context %s, not to %s", i,
                      m->name, in[i]->context->name, c->name);
  }
  TRY_API(check_devices(rt, m, in, error));
  for (uint32_t i = 0; i < m->n_inputs; i++)
    TRY_API(check_input(m, i, in[i], find_batch_size(in, m->n_inputs), error));
  TRY_API(check_batches(m, in, error));
  return m->accepts_only_local_inputs ? check_input_places(rt, m, in, error) : CLEAVE_OK;
}

/* ---- delivery of inputs ---------------------------------------------------------------------- */

/* Sends the failure of a value to the master's own node, which waits for the value. */
static cleave_status send_failure_to_master_node(cleave_runtime *rt, const api_value *v,
                                                 cleave_error *error) {
  clv_packet *p;
  TRY_API(api_packet_new(rt, CLV_VALUE, v->context->id, v->id, &p, error));
  p->frame.has_failure = true;
  api_failure_to_frame(v, &p->frame);
  return api_send(rt, 0, p, error);
}

cleave_status api_deliver_value(cleave_runtime *rt, api_value *v, uint32_t node, bool is_for_node,
                                cleave_error *error) {
  clv_packet *p;
  const char *to = node ? api_wire_name(&rt->peers[node]) : "";
  if (is_for_node ? (v->nodes_with_value & NODE_BIT(node)) != 0
                  : v->local_tensor || v->is_deliver_sent || v->has_failed)
    return CLEAVE_OK;
  bool is_own_leaf = !v->module && !v->kept_ref;
  /* the first CALL that uses the leaf carries it */
  if (is_for_node && node == 0 && is_own_leaf) return CLEAVE_OK;
  if (is_for_node && node == 0) TRY_API(check_master_gets_own_dtype(v, error));
  if (is_for_node && node && !rt->peers[node].has_module) {
    /* no module at that node could use the value */
    v->nodes_awaiting_module |= NODE_BIT(node);
    return CLEAVE_OK;
  }
  if (is_for_node && v->kept_ref) return rt->kept_ops->deliver_value(rt, v, node, error);
  if (is_for_node) {
    v->nodes_with_value |= NODE_BIT(node);
    v->context->nodes_used |= NODE_BIT(node);
    v->is_awaited_by_master_node |= node == 0;
  }
  if (v->local_tensor && is_for_node && !v->is_fetched_as_bf16) { /* the value is in this process */
    TRY(clv_packet_new_value(rt->pool, v->context->id, v->id, to, v->local_tensor, &p, &err));
    return api_send(rt, node, p, error);
  }
  if (is_for_node && node == 0 && v->has_failed) return send_failure_to_master_node(rt, v, error);
  if (v->cached_rows_module)
    return api_fail(error, CLV_PRECONDITION, "rows that a worker keeps are there alone");
  /* the VALUE frame that was requested before serves both the program and the master's node */
  if (node == 0 && v->is_deliver_sent) return CLEAVE_OK;
  v->is_deliver_sent |= node == 0;
  TRY(clv_packet_new_deliver(rt->pool, v->context->id, v->id, to, &p, &err));
  return api_send(rt, v->module->node, p, error);
}

/* True if the tensor is sent in the CALL: a leaf that the node does not have, or, for the master's
 * node, a worker's value that is in this process already. */
static bool is_sent_with_call(const api_value *a, uint32_t node) {
  return a->local_tensor && !(a->nodes_with_value & NODE_BIT(node)) && (!a->module || node == 0);
}

/* Adds the arguments to a CALL. Bit i of *ret_inline_mask: the value of input i is in this
 * packet. */
static cleave_status add_arguments(clv_packet *p, const api_value *v, uint32_t *ret_inline_mask,
                                   cleave_error *error) {
  for (uint32_t i = 0; i < v->n_args; i++) {
    api_value *a = v->args[i];
    bool is_sent_in_call = is_sent_with_call(a, v->module->node);
    TRY(clv_packet_add_arg(p, a->id, a->needs_grad, is_sent_in_call ? a->local_tensor : NULL,
                           &err));
    if (!is_sent_in_call) continue;
    a->nodes_with_value |=
        NODE_BIT(v->module->node); /* if another input is the same value, it is not sent again */
    *ret_inline_mask |= 1u << i;
  }
  return CLEAVE_OK;
}

/* Properties of a call besides its inputs. */
typedef struct call_mode {
  uint64_t awaited_call_id; /* id of the call whose backward must run before this call; 0: none */
  bool has_delivery;        /* the node sends the value without a request */
  bool is_for_program;      /* the program receives the delivery */
  /* receiver of the delivery if is_for_program is false: index of a node */
  uint32_t delivery_node;
  bool is_fetched_as_bf16; /* the program gets the value in bf16 */
  /* calls of output modules (outputs.c) follow at once, so the CALL may be buffered */
  bool is_followed_by_calls;
  const cleave_call_options *options; /* options of the program; NULL: none */
} call_mode;

static cleave_status add_deliver_request(cleave_runtime *rt, api_value *v, const call_mode *mode,
                                         clv_packet *p, cleave_error *error) {
  if (!mode->has_delivery || (mode->delivery_node == v->module->node && !mode->is_for_program))
    return CLEAVE_OK;
  if (!mode->delivery_node && !mode->is_for_program) TRY_API(check_master_gets_own_dtype(v, error));
  if (mode->delivery_node && !rt->peers[mode->delivery_node].has_module) {
    v->nodes_awaiting_module |= NODE_BIT(mode->delivery_node);
    return CLEAVE_OK;
  }
  TRY(clv_packet_add_delivery(
      p, mode->delivery_node ? api_wire_name(&rt->peers[mode->delivery_node]) : "", &err));
  v->is_deliver_sent |= mode->delivery_node == 0;
  if (mode->is_for_program) return CLEAVE_OK;
  v->nodes_with_value |= NODE_BIT(mode->delivery_node);
  v->context->nodes_used |= NODE_BIT(mode->delivery_node);
  v->is_awaited_by_master_node |= mode->delivery_node == 0;
  return CLEAVE_OK;
}

static bool supports_bf16_values(const api_value *v) {
  uint32_t node = v->module->node;
  return !node || v->module->runtime->peers[node].supports_bf16_values;
}

static void add_positions(clv_packet *p, const api_value *v, const cleave_call_options *o) {
  if (v->context->records_events) p->frame.flags |= CLV_FLAG_TRACE;
  if (v->is_fetched_as_bf16 && supports_bf16_values(v)) p->frame.flags |= CLV_FLAG_BF16;
  if (!o) return;
  clv_packet_set_execution_positions(p, o->position, o->backward_position, o->weight_position,
                                     o->old_weights);
  if (o->recompute) p->frame.flags |= CLV_FLAG_RECOMPUTE;
}

/* True if an input of v comes from a call at the master's own node that cannot have run yet,
 * because no thread has run that node since the call. Then the CALL of v need not be sent at
 * once. */
static bool waits_for_master_node(const cleave_runtime *rt, const api_value *v) {
  for (uint32_t i = 0; i < v->n_args && !rt->is_node_driven_by_caller; i++) {
    const api_value *a = v->args[i];
    if (a->module && a->module->node == 0 && a->n_node_drives_begun == rt->n_node_drives_begun)
      return true;
  }
  return false;
}

/* Sends a CALL. Then requests the inputs that are not in the CALL from the nodes that have them,
 * unless these inputs were requested for the same node before. */
static cleave_status send_call(cleave_runtime *rt, api_value *v, const call_mode *mode,
                               cleave_error *error) {
  cleave_module *m = v->module;
  api_context *c = v->context;
  uint32_t inline_input_mask = 0;
  CLV_AUTO(clv_packet_freep) clv_packet *p = NULL;
  TRY(clv_packet_new_call(rt->pool, c->id, v->id, m->index, !c->is_evaluation, &p, &err));
  api_set_frame_module(p, m);
  p->frame.step = c->rng_step;
  p->frame.micro_batch = c->n_module_calls[m->index]; /* each call has random numbers of its own */
  p->frame.call.runs_after_call = mode->awaited_call_id;
  add_positions(p, v, mode->options);
  cleave_status status = add_deliver_request(rt, v, mode, p, error);
  if (status == CLEAVE_OK) status = add_arguments(p, v, &inline_input_mask, error);
  if (status == CLEAVE_OK)
    status = mode->is_followed_by_calls || waits_for_master_node(rt, v)
                 ? api_send_buffered(rt, m->node, clv_steal(&p), error)
                 : api_send(rt, m->node, clv_steal(&p), error);
  for (uint32_t i = 0; status != CLEAVE_OK && i < v->n_args; i++)
    if (inline_input_mask & 1u << i) v->args[i]->nodes_with_value &= ~NODE_BIT(m->node);
  TRY_API(status);
  c->nodes_used |= NODE_BIT(m->node);
  v->call_number = ++c->n_calls_sent[m->node];
  v->n_node_drives_begun = rt->n_node_drives_begun;
  v->runs_after_backward_of =
      mode->awaited_call_id ? api_id_table_get(&rt->values, mode->awaited_call_id) : NULL;
  if (v->runs_after_backward_of && !v->runs_after_backward_of->had_backward) {
    v->runs_after_backward_of->n_calls_after_backward++;
    c->n_calls_awaiting_backward++;
  }
  c->n_module_calls[m->index]++;
  api_context_use_module(c, m);
  for (uint32_t i = 0; i < v->n_args; i++)
    TRY_API(api_deliver_value(rt, v->args[i], m->node, true, error));
  return CLEAVE_OK;
}

static void set_output_shape(const cleave_module *m, api_value *v) {
  const clv_node *out = &m->graph->nodes[m->graph->output_node];
  v->dtype = out->dtype;
  v->shape = out->shape;
  if (v->shape.rank && !m->graph->has_per_input_batches)
    v->shape.dim[0] = find_batch_size(v->args, v->n_args);
}

/* True if a backward pass reaches a call of the module on these inputs. */
static bool needs_backward(const cleave_module *m, api_value *const *in) {
  bool needs_grad = m->n_trained_params > 0 || api_has_trainable_tie(m);
  for (uint32_t i = 0; i < m->n_inputs; i++) needs_grad |= in[i]->needs_grad;
  return needs_grad;
}

static cleave_status add_call(cleave_runtime *rt, api_context *c, cleave_module *m,
                              const cleave_reference *inputs, size_t n_inputs,
                              const call_mode *mode, api_value **ret, cleave_error *error) {
  api_value *in[CLV_MAX_INPUTS], *v;
  TRY_API(check_call(rt, c, m, inputs, n_inputs, in, error));
  if (mode->awaited_call_id && !needs_backward(m, in))
    return api_fail(error, CLV_PRECONDITION,
                    "module '%s' learns nothing here, so a window cannot hold it", m->name);
  TRY_API(api_new_value(rt, c, &v, error));
  v->module = m;
  v->n_args = m->n_inputs;
  v->weights_version = m->weights_version;
  v->nodes_with_value = NODE_BIT(m->node);
  for (uint32_t i = 0; i < v->n_args; i++) v->args[i] = in[i];
  v->needs_grad = needs_backward(m, in) && !c->is_evaluation;
  v->is_fetched_as_bf16 = mode->is_fetched_as_bf16;
  set_output_shape(m, v);
  m->was_called = true;
  cleave_status status = send_call(rt, v, mode, error);
  if (status != CLEAVE_OK) { /* the value can be freed, because no other record refers to it yet */
    c->newest_value = v->older_value;
    api_drop_value(rt, v);
    return status;
  }
  *ret = v;
  return CLEAVE_OK;
}

/* Checks cleave_call_options.after: it must be an earlier call of the context at the same node,
 * with a backward to come. */
static cleave_status check_runs_after(cleave_runtime *rt, const api_context *c,
                                      const cleave_module *m, uint64_t awaited_call_id,
                                      cleave_error *error) {
  api_value *v;
  if (!awaited_call_id) return CLEAVE_OK;
  TRY_API(api_find_value(rt, (cleave_reference){awaited_call_id}, &v, error));
  bool is_call_at_node = v->context == c && v->module && v->module->node == m->node;
  if (is_call_at_node && v->needs_grad && !v->are_saved_tensors_freed) return CLEAVE_OK;
  return api_fail(error, CLV_PRECONDITION,
                  "module '%s' cannot run after the backward of value %llu: that is %s", m->name,
                  (unsigned long long)v->id,
                  is_call_at_node ? "a call without a backward to come"
                                  : "no call of this context at its node");
}

/* Returns the id of the call that computes value `id`. If the value is one of several outputs of a
 * module, returns the id of the call of that module. */
static uint64_t find_call_id(const cleave_runtime *rt, uint64_t id) {
  const api_value *v = id ? api_id_table_get(&rt->values, id) : NULL;
  return v && v->module && v->module->output_owner_name[0] && v->n_args ? v->args[0]->id : id;
}

static bool needs_first_input_grad(cleave_runtime *rt, const cleave_reference *inputs, size_t n) {
  api_value *v;
  return n && api_find_value(rt, inputs[0], &v, NULL) == CLEAVE_OK && v->needs_grad;
}

/* Makes a call. Loads the module first, which takes time only for its first use. Caller holds the
 * runtime's lock. */
static cleave_status make_call(cleave_runtime *rt, cleave_context handle, cleave_module *m,
                               const cleave_reference *inputs, size_t n_inputs,
                               const call_mode *mode, api_value **ret, cleave_error *error) {
  api_context *c;
  TRY_API(api_module_place(m, needs_first_input_grad(rt, inputs, n_inputs), 0, error));
  TRY_API(api_await_step_decision(rt, api_deadline_ns(rt, 0), error));
  TRY_API(api_find_context(rt, handle, &c, error));
  TRY_API(check_runs_after(rt, c, m, mode->awaited_call_id, error));
  return add_call(rt, c, m, inputs, n_inputs, mode, ret, error);
}

/* Checks the positions of a call here, because a worker refuses invalid positions by ending the
 * session, and the master's own node does not check them. */
static cleave_status check_positions(const cleave_call_options *o, cleave_error *error) {
  uint32_t backward_position = o->backward_position, weight_position = o->weight_position;
  bool is_ascending =
      (!backward_position || (o->position && o->position < backward_position)) &&
      (!weight_position || (backward_position && backward_position < weight_position));
  uint32_t last_position = CLV_MAX(CLV_MAX(o->position, backward_position), weight_position);
  if (is_ascending && last_position <= CLV_WIRE_POSITIONS) return CLEAVE_OK;
  return api_fail(
      error, CLV_INVALID,
      "the positions %u, %u and %u of a call: they ascend to at most %d, each with the one "
      "before it alone",
      o->position, backward_position, weight_position, CLV_WIRE_POSITIONS);
}

static cleave_status check_one_output(const cleave_module *m, cleave_error *error) {
  if (m->n_outputs == 1) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID,
                  "module '%s' has %u outputs, and this call has one reference: use "
                  "cleave_call_outputs",
                  m->name, m->n_outputs);
}

static cleave_status read_call_options(const cleave_runtime *rt, const cleave_call_options *o,
                                       call_mode *ret, cleave_error *error) {
  *ret = (call_mode){.awaited_call_id = o ? find_call_id(rt, o->after.id) : 0,
                     .has_delivery = o && o->send_to,
                     .is_fetched_as_bf16 = o && o->fetch_dtype == CLEAVE_BF16,
                     .options = o};
  if (o) TRY_API(check_positions(o, error));
  if (o && o->fetch_dtype && o->fetch_dtype != CLEAVE_F32 && o->fetch_dtype != CLEAVE_BF16)
    return api_fail(error, CLV_INVALID, "fetch_dtype %d; CLEAVE_F32 and CLEAVE_BF16 are possible",
                    (int)o->fetch_dtype);
  if (o && o->to_program && o->send_to && strcmp(o->send_to, rt->peers[0].name) != 0)
    return api_fail(error, CLV_INVALID,
                    "a value goes unasked to one node: to the program, or to '%s'", o->send_to);
  if (o && o->to_program) ret->has_delivery = ret->is_for_program = true;
  if (!o || !o->send_to) return CLEAVE_OK;
  int node = api_find_node(rt, o->send_to);
  if (node < 0)
    return api_fail(error, CLV_NOT_FOUND, "'%s' is neither master nor a worker of %s", o->send_to,
                    rt->config->file);
  ret->delivery_node = (uint32_t)node;
  return api_check_node_present(rt, ret->delivery_node, error);
}

cleave_status cleave_call_with(cleave_runtime *runtime, cleave_context handle,
                               cleave_module *module, const cleave_reference *inputs,
                               size_t n_inputs, const cleave_call_options *options,
                               cleave_reference *ret_reference, cleave_error *error) {
  NOT_NULL(runtime, module, inputs, ret_reference);
  COPY_OPTIONS_IN(cleave_call_options, o, options);
  api_value *v;
  call_mode mode;
  TRY_API(check_one_output(module, error));
  LOCKED(runtime);
  TRY_API(read_call_options(runtime, options ? &o : NULL, &mode, error));
  TRY_API(make_call(runtime, handle, module, inputs, n_inputs, &mode, &v, error));
  ret_reference->id = v->id;
  return CLEAVE_OK;
}

cleave_status cleave_call(cleave_runtime *runtime, cleave_context handle, cleave_module *module,
                          const cleave_reference *inputs, size_t n_inputs,
                          cleave_reference *ret_reference, cleave_error *error) {
  NOT_NULL(runtime, module, inputs, ret_reference);
  return cleave_call_with(runtime, handle, module, inputs, n_inputs, NULL, ret_reference, error);
}

/* Calls the output modules of a module with several outputs. Each takes one output out of the
 * joined value, the concatenation of all outputs. */
static cleave_status call_outputs(cleave_runtime *rt, const api_value *joined_value,
                                  const call_mode *mode, cleave_reference *ret_references,
                                  cleave_error *error) {
  const cleave_module *m = joined_value->module;
  call_mode output_mode = *mode;
  output_mode.awaited_call_id = 0;
  output_mode.options = NULL;
  for (uint32_t k = 0; k < m->n_outputs; k++) {
    api_value *v;
    output_mode.is_followed_by_calls = k + 1 < m->n_outputs;
    TRY_API(add_call(rt, joined_value->context, m->output_modules[k],
                     &(cleave_reference){joined_value->id}, 1, &output_mode, &v, error));
    ret_references[k].id = v->id;
  }
  return CLEAVE_OK;
}

cleave_status cleave_call_outputs(cleave_runtime *runtime, cleave_context handle,
                                  cleave_module *module, const cleave_reference *inputs,
                                  size_t n_inputs, const cleave_call_options *options,
                                  cleave_reference *ret_references, size_t n_outputs,
                                  cleave_error *error) {
  NOT_NULL(runtime, module, inputs, ret_references);
  COPY_OPTIONS_IN(cleave_call_options, o, options);
  cleave_reference outputs[CLV_MAX_OUTPUTS] = {0};
  api_value *v;
  call_mode mode;
  if (n_outputs != module->n_outputs)
    return api_fail(error, CLV_INVALID, "module '%s' has %u output%s, not %zu", module->name,
                    module->n_outputs, CLV_S(module->n_outputs), n_outputs);
  if (n_outputs == 1)
    return cleave_call_with(runtime, handle, module, inputs, n_inputs, options, ret_references,
                            error);
  LOCKED(runtime);
  TRY_API(read_call_options(runtime, options ? &o : NULL, &mode, error));
  call_mode joined_mode = {.awaited_call_id = mode.awaited_call_id,
                           .options = mode.options,
                           .is_followed_by_calls = true};
  TRY_API(make_call(runtime, handle, module, inputs, n_inputs, &joined_mode, &v, error));
  cleave_status status = call_outputs(runtime, v, &mode, outputs, error);
  v->is_released = true; /* the program has handles of the outputs, not of the joined value */
  if (status == CLEAVE_OK) memcpy(ret_references, outputs, n_outputs * sizeof *outputs);
  return status;
}

/* Begins a call. The future has no deadline, because the value may arrive at any time before its
 * context ends. The functions that wait for the value have deadlines. */
cleave_status api_call_begin(cleave_runtime *rt, api_arguments *a, api_future *f,
                             cleave_error *error) {
  api_value *v;
  const call_mode mode = {.has_delivery = true, .is_for_program = true};
  TRY_API(check_one_output(a->module, error));
  TRY_API(make_call(rt, a->context, a->module, a->inputs, a->n_inputs, &mode, &v, error));
  v->is_released = !a->ret_reference;
  f->value = v;
  f->context = v->context;
  f->until_ns = f->next_check_ns = UINT64_MAX;
  f->deadline_ms = 0;
  snprintf(f->subject_name, sizeof f->subject_name, "%s", a->module->name);
  if (a->ret_reference) a->ret_reference->id = v->id;
  return CLEAVE_OK;
}
