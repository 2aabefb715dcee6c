/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the module of a LoadModule message, and describes it for the reply.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/service/service_int.h"

/* Adds node number `index` of the message to the graph, with the same checks as for a node of a
 * session file. *n_inputs: number of input nodes so far. */
static clv_code add_node(clv_graph *g, const clv_wire_load_request *r, uint32_t index,
                         uint32_t *n_inputs, clv_err *err) {
  const clv_wire_node *w = &r->graph.nodes[index];
  int node, input_nodes[CLV_MAX_IN];
  if (w->op == CLV_OP_INPUT) {
    if (*n_inputs == r->n_inputs)
      return clv_fail(err, CLV_INVALID, "the graph has more inputs than the message has specs");
    const clv_wire_spec *spec = &r->input_specs[(*n_inputs)++];
    return clv_graph_add_input(g, w->name, spec->dtype, &spec->shape, &node, err);
  }
  if (w->op >= CLV_OP_COUNT || !clv_op_def_of((clv_op)w->op))
    return clv_fail(
        err, CLV_INVALID,
        "layer '%s' has op number %u, which this worker does not know: its version " CLV_VERSION
        " is older than the master's, or newer; update either",
        w->name, w->op);
  if (w->n_inputs > CLV_MAX_IN)
    return clv_fail(err, CLV_INVALID, "node %u: op %u with %u inputs, which has at most %d", index,
                    w->op, w->n_inputs, (int)CLV_MAX_IN);
  clv_attr_value attr_values[CLV_WIRE_ATTRS];
  for (uint32_t i = 0; i < w->n_attrs; i++) {
    const clv_wire_attr *a = &w->attrs[i];
    if (a->n_ints > CLV_MAX_RANK)
      return clv_fail(err, CLV_INVALID, "node %u: %u integers in one attribute, the limit is %d",
                      index, a->n_ints, (int)CLV_MAX_RANK);
    attr_values[i] = (clv_attr_value){.key = (clv_attr_key)a->key,
                                      .n_ints = (int)a->n_ints,
                                      .is_number = !a->n_ints && !a->n_floats,
                                      .number = a->scalar,
                                      .n_numbers = (int)a->n_floats,
                                      .numbers = a->floats};
    for (uint32_t j = 0; j < a->n_ints; j++) attr_values[i].ints[j] = a->ints[j];
  }
  clv_attrs attrs;
  CLV_TRY(clv_attrs_parse((clv_op)w->op, attr_values, (int)w->n_attrs, &attrs, err));
  for (uint32_t i = 0; i < w->n_inputs; i++) input_nodes[i] = (int)w->input_nodes[i];
  CLV_TRY(clv_graph_add(g, (clv_op)w->op, &attrs, w->name, w->uncut_index, input_nodes,
                        (int)w->n_inputs, &node, err));
  g->nodes[node].key = r->node_keys[index];
  g->nodes[node].recompute_block = w->recompute_block;
  return CLV_OK;
}

/* Ties parameters to parameters of other nodes. Call after the last node is added, because any node
 * may own a tied parameter. */
static clv_code add_ties(clv_graph *g, const clv_wire_load_request *r, clv_err *err) {
  for (uint32_t i = 0; i < r->n_ties; i++) {
    const clv_wire_tie *t = &r->ties[i];
    CLV_TRY(clv_graph_tie_param(g, (int)t->node_index, t->owner_node_name, t->owner_module, err));
  }
  return CLV_OK;
}

static clv_code build_graph(const clv_wire_load_request *r, clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *g = NULL;
  uint32_t n_inputs = 0;
  CLV_TRY(clv_graph_new(&g, err));
  for (uint32_t i = 0; i < r->graph.n_nodes; i++) CLV_TRY(add_node(g, r, i, &n_inputs, err));
  CLV_TRY(add_ties(g, r, err));
  if (r->graph.n_outputs != 1 || n_inputs != r->n_inputs || n_inputs == 0)
    return clv_fail(err, CLV_INVALID,
                    "a module has one output and a spec for each input (%u, %u of %u)",
                    r->graph.n_outputs, n_inputs, r->n_inputs);
  g->output_node = (int)r->graph.output_nodes[0];
  *ret = clv_steal(&g);
  return CLV_OK;
}

static clv_optim_config decode_optimizer(const clv_wire_optimizer *o) {
  clv_optim_config c = {.kind = o->kind ? (clv_optim_kind)(o->kind - 1) : CLV_OPTIM_SGD,
                        .ema = o->ema,
                        .ema_warmup = o->ema_warmup};
  CLV_OPTIM_COPY(&c, o);
  return c;
}

/* Refuses a module with more threads than the worker has cores, and a module in bf16 or TF32 if the
 * backend cannot compute in that type. */
static clv_code check_request(const clv_wire_load_request *r, const clv_backend *backend,
                              clv_err *err) {
  long n_cores = CLV_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
  if (r->n_threads > (unsigned long)n_cores)
    return clv_fail(err, CLV_EXHAUSTED, "%u threads for module %u: this worker has %ld cores",
                    r->n_threads, r->module_index, n_cores);
  if (r->computes_in_bf16 && backend->check_bf16) CLV_TRY(backend->check_bf16(backend, err));
  if (r->allows_tf32) CLV_TRY(clv_backend_check_tf32(backend, err));
  return CLV_OK;
}

static clv_code fail_too_many_params(clv_err *err) {
  return clv_fail(err, CLV_EXHAUSTED, "more than %d parameters and buffers in one module",
                  CLV_WIRE_PARAMS);
}

/* Refuses a graph with more parameters than the reply can list, before the graph is built. */
static clv_code check_params(const clv_wire_graph *g, clv_err *err) {
  uint32_t n = 0; /* cannot overflow: CLV_WIRE_NODES nodes with at most CLV_MAX_PARAMS each */
  for (uint32_t i = 0; i < g->n_nodes; i++)
    n += (uint32_t)clv_op_max_params((clv_op)g->nodes[i].op);
  return n > CLV_WIRE_PARAMS ? fail_too_many_params(err) : CLV_OK;
}

/* Returns the batch size: the first extent of the first input that is not a scalar. If all inputs
 * are scalars, returns 1. */
static int64_t get_batch_size(const clv_wire_load_request *r) {
  for (uint32_t i = 0; i < r->n_inputs; i++)
    if (r->input_specs[i].shape.rank) return r->input_specs[i].shape.dim[0];
  return 1;
}

/* Lists the frozen parameters that the artifact has and that modules can share. The list is empty
 * if the module is not loaded from an artifact, or if frozen parameters may be unfrozen later. */
static clv_code list_shareable_params(const clv_wire_load_request *r, const char ***ret,
                                      uint32_t *ret_n, clv_err *err) {
  CLV_TRY(clv_alloc(r->n_frozen, sizeof(char *), ret, err));
  for (uint32_t i = 0; i < r->n_frozen; i++)
    if (!clv_name_is_of_adapter(r->frozen_names[i]) &&
        !clv_weights_is_newly_initialised(r->frozen_names[i], r->new_param_names, r->n_new_params))
      (*ret)[(*ret_n)++] = r->frozen_names[i];
  if (r->init_source != CLV_WIRE_INIT_ARTIFACT || !r->frozen_has_no_grads_or_moments) *ret_n = 0;
  return CLV_OK;
}

/* ---- modules that own tied parameters -------------------------------------------------------- */

/* Modules that own the tied parameters of a module that is being made. They are pinned, so that
 * they are not unloaded meanwhile. The finished module pins them itself. */
typedef struct pinned_owners {
  clv_module_tie *ties;
  uint32_t n_ties;
} pinned_owners;

static void unpin_owners(pinned_owners *o) {
  for (uint32_t i = 0; i < o->n_ties; i++) clv_node_unpin_module(o->ties[i].owner);
  free(o->ties);
}

static clv_code pin_owners(const clv_wire_load_request *r, clv_session_node *node, pinned_owners *o,
                           clv_err *err) {
  CLV_TRY(clv_alloc(r->n_ties, sizeof *o->ties, &o->ties, err));
  for (uint32_t i = 0; i < r->n_ties; i++) {
    const clv_wire_tie *t = &r->ties[i];
    clv_module_tie *tie = &o->ties[o->n_ties];
    if (!t->owner_module) continue;
    if (!node)
      return clv_fail(err, CLV_NOT_FOUND,
                      "module %u, to which another is to be tied, is not loaded at this node",
                      t->owner_module - 1);
    CLV_TRY(clv_node_pin_module(node, t->owner_module - 1, &tie->owner, err));
    tie->node = r->graph.nodes[t->node_index].name;
    o->n_ties++;
  }
  return CLV_OK;
}

/* ---- making and describing the module -------------------------------------------------------- */

static void decode_groups(const clv_wire_load_request *r, clv_module_group *groups) {
  for (uint32_t i = 0; i < r->n_groups; i++)
    groups[i] = (clv_module_group){decode_optimizer(&r->groups[i].optimizer),
                                   r->groups[i].param_names, r->groups[i].n_params};
}

clv_code clv_load_make_module(const clv_wire_load_request *r, const clv_device *device,
                              clv_session_node *node, clv_pool *pool,
                              const clv_cancel_hook *cancel_hook, clv_module **ret, clv_err *err) {
  CLV_AUTO(unpin_owners) pinned_owners pinned = {0};
  CLV_AUTO(clv_graph_freep) clv_graph *graph = NULL;
  CLV_AUTO(clv_freep) const char **shared_params = NULL;
  uint32_t n_shared_params = 0;
  clv_module_group groups[CLV_WIRE_GROUPS];
  CLV_TRY(check_request(r, device->backend, err));
  CLV_TRY(check_params(&r->graph, err));
  CLV_TRY(build_graph(r, &graph, err));
  CLV_TRY(list_shareable_params(r, &shared_params, &n_shared_params, err));
  CLV_TRY(pin_owners(r, node, &pinned, err));
  decode_groups(r, groups);
  clv_module_options o = {.index = r->module_index,
                          .generation = r->module_generation,
                          .name = r->module_name,
                          .graph = clv_steal(&graph),
                          .backend = device->backend,
                          .device = device->name,
                          .account = device->account,
                          .threads = (int)CLV_MAX(r->n_threads, 1u),
                          .bf16 = r->computes_in_bf16,
                          .tf32 = r->allows_tf32,
                          .is_frozen_for_good = r->frozen_has_no_grads_or_moments,
                          .frozen_bf16 = r->stores_frozen_as_bf16,
                          .input_needs_grad = r->input_needs_grad,
                          .optimizer = decode_optimizer(&r->optimizer),
                          .groups = groups,
                          .n_groups = r->n_groups,
                          .group0_is_frozen = r->freezes_rest,
                          .is_trainable = r->optimizer.kind != CLV_WIRE_OPT_NONE,
                          .has_no_revert = r->optimizer.steps_are_final,
                          .max_calls_in_flight = r->max_calls_in_flight,
                          .frozen = r->frozen_names,
                          .n_frozen = r->n_frozen,
                          .shared_params = shared_params,
                          .n_shared_params = n_shared_params,
                          .ties = pinned.ties,
                          .n_ties = pinned.n_ties,
                          .pool = pool,
                          .batch = get_batch_size(r),
                          .cancel_hook = cancel_hook};
  return clv_module_new(&o, ret, err);
}

/* Computes the digest of a parameter or buffer of a module. Copies it from device memory if
 * needed. */
static clv_code hash_item(const clv_state_item *item, const clv_cancel_hook *cancel_hook,
                          clv_sha256 *ret, clv_err *err) {
  CLV_AUTO(clv_freep) void *copy = NULL;
  CLV_TRY(clv_cancel_hook_check(cancel_hook, err));
  if (!item->backend || !item->backend->memory)
    return clv_sha256_cancellable(cancel_hook, item->data, item->bytes, ret, err);
  CLV_TRY(clv_alloc(item->bytes, 1, &copy, err));
  CLV_TRY(clv_state_item_get(item, copy, err));
  return clv_sha256_cancellable(cancel_hook, copy, item->bytes, ret, err);
}

/* Lists the module's parameters and buffers with their digests in *reply. */
static clv_code describe_params(clv_module *module, const clv_cancel_hook *cancel_hook,
                                clv_wire_load_reply *reply, clv_err *err) {
  const clv_params *params = clv_module_params(module);
  reply->n_params = (uint32_t)params->n;
  for (int i = 0; i < params->n; i++) {
    clv_state_item item;
    if (!clv_module_state_item(module, CLV_STATE_WEIGHTS, (uint32_t)i, &item)) break;
    reply->params[i].name = params->list[i].name;
    reply->params[i].tensor_spec = (clv_wire_spec){item.dtype, item.shape};
    CLV_TRY(hash_item(&item, cancel_hook, &reply->params[i].digest, err));
  }
  return CLV_OK;
}

clv_code clv_load_describe_module(clv_module *module, const clv_cancel_hook *cancel_hook,
                                  clv_wire_load_reply *reply, clv_err *err) {
  if (clv_module_params(module)->n > CLV_WIRE_PARAMS) return fail_too_many_params(err);
  const clv_graph *g = clv_module_graph(module);
  reply->memory_bytes = clv_module_bytes(module);
  reply->device_name = clv_module_device(module);
  reply->n_outputs = 1;
  reply->output_specs[0] =
      (clv_wire_spec){g->nodes[g->output_node].dtype, g->nodes[g->output_node].shape};
  return describe_params(module, cancel_hook, reply, err);
}
