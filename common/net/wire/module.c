/* SPDX-License-Identifier: Apache-2.0
 *
 * LoadModule: a graph as data. The decoder checks counts, order and sizes; shape inference on the
 * worker checks the ops.
 */
#include "common/net/wire/unary_int.h"

#include <string.h>

enum { OP_MAX = 65535, MAX_LAYER_INDEX = 1 << 20 };

/* ---- specs of tensors ------------------------------------------------------------------------ */

/* Reads a tensor spec. Its size in bytes must not overflow, because the worker allocates it
 * later. */
static clv_code decode_spec(const Cleave__V1__TensorSpec *from, const char *what,
                            clv_wire_spec *ret, clv_err *err) {
  size_t bytes;
  if (!from) return clv_fail(err, CLV_INVALID, "%s has no shape", what);
  CLV_TRY(clv_check_count(from->n_dims, CLV_MAX_RANK, "dimensions", err));
  *ret = (clv_wire_spec){.dtype = (clv_dtype)from->dtype, .shape.rank = (int)from->n_dims};
  for (size_t i = 0; i < from->n_dims; i++) {
    if (from->dims[i] > INT64_MAX)
      return clv_fail(err, CLV_INVALID, "dimension %zu of %s is %llu", i, what,
                      (unsigned long long)from->dims[i]);
    ret->shape.dim[i] = (int64_t)from->dims[i];
  }
  CLV_TRY(clv_shape_bytes(&ret->shape, ret->dtype, &bytes, err));
  if (bytes > CLV_WIRE_BYTES_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s of %zu bytes is over the limit of %llu", what, bytes,
                    (unsigned long long)CLV_WIRE_BYTES_MAX);
  return CLV_OK;
}

static clv_code decode_specs(Cleave__V1__TensorSpec **from, size_t n, const char *what,
                             clv_wire_mem *mem, clv_wire_spec **ret_specs, uint32_t *ret_n,
                             clv_err *err) {
  clv_wire_spec *specs;
  CLV_TRY(clv_check_count(n, CLV_WIRE_TENSORS, what, err));
  CLV_TRY(clv_wire_mem_alloc(mem, n, sizeof *specs, &specs, err));
  for (size_t i = 0; i < n; i++) CLV_TRY(decode_spec(from[i], what, &specs[i], err));
  *ret_specs = specs;
  *ret_n = (uint32_t)n;
  return CLV_OK;
}

/* A spec with the memory of its dimensions. */
typedef struct spec_parts {
  Cleave__V1__TensorSpec spec;
  uint64_t dims[CLV_MAX_RANK];
} spec_parts;

static void encode_spec(const clv_wire_spec *spec, spec_parts *to) {
  cleave__v1__tensor_spec__init(&to->spec);
  to->spec.dtype = (uint32_t)spec->dtype;
  to->spec.n_dims = (size_t)CLV_MAX(0, CLV_MIN(spec->shape.rank, CLV_MAX_RANK));
  to->spec.dims = to->dims;
  for (size_t i = 0; i < to->spec.n_dims; i++) to->dims[i] = (uint64_t)spec->shape.dim[i];
}

static clv_code encode_specs(const clv_wire_spec *specs, uint32_t n, clv_wire_mem *mem,
                             Cleave__V1__TensorSpec ***ret, clv_err *err) {
  spec_parts *items;
  CLV_TRY(clv_alloc_proto_array(mem, n, sizeof *items, ret, &items, err));
  for (uint32_t i = 0; i < n; i++) encode_spec(&specs[i], &items[i]);
  return CLV_OK;
}

/* ---- decoding a graph ------------------------------------------------------------------------ */

static clv_code decode_attrs(const Cleave__V1__Node *from, clv_wire_mem *mem, clv_wire_node *node,
                             clv_err *err) {
  CLV_TRY(clv_check_count(from->n_attrs, CLV_WIRE_ATTRS, "attributes", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_attrs, sizeof *node->attrs, &node->attrs, err));
  node->n_attrs = (uint32_t)from->n_attrs;
  for (size_t i = 0; i < from->n_attrs; i++) {
    const Cleave__V1__Attr *attr = from->attrs[i];
    CLV_TRY(clv_check_count(attr->key, OP_MAX, "is an attribute key", err));
    CLV_TRY(clv_check_count(attr->n_ints, CLV_WIRE_ATTR_INTS, "numbers in an attribute", err));
    CLV_TRY(clv_check_finite(attr->number, "an attribute", err));
    CLV_TRY(
        clv_check_count(attr->n_numbers, CLV_WIRE_ATTR_NUMBERS, "numbers in an attribute", err));
    for (size_t k = 0; k < attr->n_numbers; k++)
      CLV_TRY(clv_check_finite((double)attr->numbers[k], "an attribute", err));
    node->attrs[i] = (clv_wire_attr){.key = attr->key,
                                     .n_ints = (uint32_t)attr->n_ints,
                                     .n_floats = (uint32_t)attr->n_numbers,
                                     .ints = attr->ints,
                                     .scalar = attr->number,
                                     .floats = attr->numbers};
  }
  return CLV_OK;
}

static clv_code decode_node(const Cleave__V1__Node *from, size_t index, clv_wire_mem *mem,
                            clv_wire_node *ret, clv_err *err) {
  CLV_TRY(clv_check_count(from->op, OP_MAX, "is an op number", err));
  CLV_TRY(clv_check_count(from->layer, MAX_LAYER_INDEX, "is a layer index", err));
  CLV_TRY(clv_check_count(from->recompute, MAX_LAYER_INDEX, "is a number of recompute", err));
  CLV_TRY(clv_check_count(from->n_inputs, CLV_WIRE_NODE_INPUTS, "inputs", err));
  CLV_TRY(clv_check_count(strlen(from->name), CLV_WIRE_NAME, "bytes of node name", err));
  for (size_t i = 0; i < from->n_inputs; i++)
    if (from->inputs[i] >= index)
      return clv_fail(err, CLV_INVALID, "input %zu is node %u, which is not an earlier node", i,
                      from->inputs[i]);
  *ret = (clv_wire_node){
      .op = from->op,
      .uncut_index = from->layer,
      .n_inputs = (uint32_t)from->n_inputs,
      .name = from->name,
      .input_nodes = from->inputs,
      .recompute_block = from->recompute,
  };
  return decode_attrs(from, mem, ret, err);
}

static clv_code decode_graph(const Cleave__V1__Graph *from, clv_wire_mem *mem, clv_wire_graph *ret,
                             clv_err *err) {
  if (!from || !from->n_nodes) return clv_fail(err, CLV_INVALID, "the graph has no nodes");
  CLV_TRY(clv_check_count(from->n_nodes, CLV_WIRE_NODES, "nodes", err));
  CLV_TRY(clv_check_count(from->n_outputs, CLV_WIRE_TENSORS, "outputs of the graph", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_nodes, sizeof *ret->nodes, &ret->nodes, err));
  for (size_t i = 0; i < from->n_nodes; i++) {
    clv_code code = decode_node(from->nodes[i], i, mem, &ret->nodes[i], err);
    if (code != CLV_OK) {
      clv_err_prefix(err, "node %zu", i);
      return code;
    }
  }
  for (size_t i = 0; i < from->n_outputs; i++)
    if (from->outputs[i] >= from->n_nodes)
      return clv_fail(err, CLV_INVALID, "output %zu is node %u of %zu", i, from->outputs[i],
                      from->n_nodes);
  ret->n_nodes = (uint32_t)from->n_nodes;
  ret->n_outputs = (uint32_t)from->n_outputs;
  ret->output_nodes = from->outputs;
  return CLV_OK;
}

/* ---- encoding a graph ------------------------------------------------------------------------ */

static size_t graph_encoding_bytes(const clv_wire_graph *graph) {
  size_t n_bytes = CLV_ENCODED_ARRAY_BYTES(graph->n_nodes, Cleave__V1__Node);
  for (uint32_t i = 0; i < graph->n_nodes; i++)
    n_bytes += CLV_ENCODED_ARRAY_BYTES(graph->nodes[i].n_attrs, Cleave__V1__Attr);
  return n_bytes;
}

static clv_code encode_node(const clv_wire_node *node, clv_wire_mem *mem, Cleave__V1__Node *to,
                            clv_err *err) {
  Cleave__V1__Attr *attrs;
  cleave__v1__node__init(to);
  CLV_TRY(clv_alloc_proto_array(mem, node->n_attrs, sizeof *attrs, &to->attrs, &attrs, err));
  for (uint32_t i = 0; i < node->n_attrs; i++) {
    cleave__v1__attr__init(&attrs[i]);
    attrs[i].key = node->attrs[i].key;
    attrs[i].n_ints = node->attrs[i].n_ints;
    attrs[i].ints = node->attrs[i].ints;
    attrs[i].number = node->attrs[i].scalar;
    attrs[i].n_numbers = node->attrs[i].n_floats;
    attrs[i].numbers = node->attrs[i].floats;
  }
  to->op = node->op;
  to->name = clv_text_or_empty(node->name);
  to->layer = node->uncut_index;
  to->n_inputs = node->n_inputs;
  to->inputs = node->input_nodes;
  to->n_attrs = node->n_attrs;
  to->recompute = node->recompute_block;
  return CLV_OK;
}

static clv_code encode_graph(const clv_wire_graph *graph, clv_wire_mem *mem, Cleave__V1__Graph *to,
                             clv_err *err) {
  Cleave__V1__Node *nodes;
  cleave__v1__graph__init(to);
  CLV_TRY(clv_alloc_proto_array(mem, graph->n_nodes, sizeof *nodes, &to->nodes, &nodes, err));
  for (uint32_t i = 0; i < graph->n_nodes; i++)
    CLV_TRY(encode_node(&graph->nodes[i], mem, &nodes[i], err));
  to->n_nodes = graph->n_nodes;
  to->n_outputs = graph->n_outputs;
  to->outputs = graph->output_nodes;
  return CLV_OK;
}

/* ---- the request of LoadModule --------------------------------------------------------------- */

/* The message stores each optimiser under its number and each setting under its name. */
#define CLV_OPTIMIZER(NAME, name, ...)                                                      \
  _Static_assert((int)CLEAVE__V1__OPTIMIZER_KIND__OPTIMIZER_##NAME == CLV_OPTIM_##NAME + 1, \
                 #name " in cleave.proto");
#include "common/base/settings/optimizers.def"
#undef CLV_OPTIMIZER

static clv_code decode_optimizer(const Cleave__V1__Optimizer *from, clv_wire_optimizer *m,
                                 clv_err *err) {
  if (!from) return CLV_OK; /* the module has no optimiser */
  if ((unsigned)from->kind > CLV_OPTIM_COUNT)
    return clv_fail(err, CLV_INVALID, "unknown optimizer %d", (int)from->kind);
#define FINITE(name, ...) CLV_TRY(clv_check_finite(from->name, "a number of the optimizer", err));
  CLV_OPTIM_NUMBERS(FINITE)
  FINITE(ema)
  *m = (clv_wire_optimizer){.kind = (clv_wire_opt_kind)from->kind,
                            .steps_are_final = from->final,
                            .ema = from->ema,
                            .ema_warmup = from->ema_warmup};
  CLV_OPTIM_COPY(m, from);
  return CLV_OK;
}

static clv_code decode_group(const Cleave__V1__ParamGroup *from, const clv_wire_load_request *m,
                             clv_wire_group *ret, clv_err *err) {
  CLV_TRY(decode_optimizer(from->optimizer, &ret->optimizer, err));
  if (ret->optimizer.kind == CLV_WIRE_OPT_NONE || ret->optimizer.kind != m->optimizer.kind ||
      ret->optimizer.steps_are_final != m->optimizer.steps_are_final)
    return clv_fail(err, CLV_INVALID, "optimizer kind %d, final %d; that of the module is %d, %d",
                    (int)ret->optimizer.kind, ret->optimizer.steps_are_final,
                    (int)m->optimizer.kind, m->optimizer.steps_are_final);
  for (size_t i = 0; i < from->n_params; i++)
    CLV_TRY(clv_check_name(from->params[i], "parameter name", err));
  ret->n_params = (uint32_t)from->n_params;
  ret->param_names = (const char **)from->params;
  return CLV_OK;
}

/* Decodes the parameter groups of the request. Call it after the optimiser is decoded, because each
 * group has the kind of the module's optimiser. */
static clv_code decode_groups(const Cleave__V1__LoadModuleRequest *from, clv_wire_mem *mem,
                              clv_wire_load_request *m, clv_err *err) {
  size_t names = 0;
  CLV_TRY(clv_check_count(from->n_groups, CLV_WIRE_GROUPS, "groups of parameters", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_groups, sizeof *m->groups, &m->groups, err));
  m->n_groups = (uint32_t)from->n_groups;
  m->freezes_rest = from->hold_rest;
  for (size_t i = 0; i < from->n_groups; i++) {
    names += from->groups[i]->n_params;
    clv_code code = clv_check_count(names, CLV_WIRE_PARAMS, "names in groups of parameters", err);
    if (code == CLV_OK) code = decode_group(from->groups[i], m, &m->groups[i], err);
    if (code == CLV_OK) continue;
    clv_err_prefix(err, "group %zu", i + 1);
    return code;
  }
  return CLV_OK;
}

static clv_code decode_init(const Cleave__V1__LoadModuleRequest *from, clv_wire_load_request *m,
                            clv_err *err) {
  if ((unsigned)from->init > CLV_WIRE_INIT_ARTIFACT)
    return clv_fail(err, CLV_INVALID, "unknown source of initial weights %d", (int)from->init);
  m->init_source = (clv_wire_init)from->init;
  m->artifact.name = "";
  if ((m->init_source == CLV_WIRE_INIT_ARTIFACT) != (from->artifact != NULL))
    return clv_fail(err, CLV_INVALID, "an artifact may be given with INIT_ARTIFACT only");
  CLV_TRY(clv_check_count(from->n_fresh, CLV_WIRE_PARAMS, "fresh names", err));
  if (from->n_fresh && !from->artifact)
    return clv_fail(err, CLV_INVALID, "fresh parameters may be given with INIT_ARTIFACT only");
  m->n_new_params = (uint32_t)from->n_fresh;
  m->new_param_names = (const char **)from->fresh;
  return from->artifact ? clv_artifact_decode(from->artifact, &m->artifact, err) : CLV_OK;
}

/* Decodes the ties of the request. Call it after the graph is decoded, because ties name its
 * nodes. */
static clv_code decode_ties(const Cleave__V1__LoadModuleRequest *from, clv_wire_mem *mem,
                            clv_wire_load_request *m, clv_err *err) {
  CLV_TRY(clv_check_count(from->n_ties, CLV_WIRE_PARAMS, "ties", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_ties, sizeof *m->ties, &m->ties, err));
  m->n_ties = (uint32_t)from->n_ties;
  for (size_t i = 0; i < from->n_ties; i++) {
    const Cleave__V1__Tie *tie = from->ties[i];
    if (tie->node >= m->graph.n_nodes || tie->module > CLV_WIRE_MODULES)
      return clv_fail(err, CLV_INVALID, "tie %zu is of node %u of %u, to module %u - 1", i,
                      tie->node, m->graph.n_nodes, tie->module);
    CLV_TRY(clv_check_name(tie->owner, "owner of a tie", err));
    m->ties[i] = (clv_wire_tie){tie->node, tie->module, tie->owner};
  }
  return CLV_OK;
}

static clv_code decode_module_settings(const Cleave__V1__LoadModuleRequest *from,
                                       clv_wire_load_request *m, clv_err *err) {
  if (from->module >= CLV_WIRE_MODULES)
    return clv_fail(err, CLV_INVALID, "module %u; a session has at most %d", from->module,
                    CLV_WIRE_MODULES);
  CLV_TRY(clv_check_count(from->in_flight, CLV_WIRE_CONTRIBUTIONS, "calls in flight", err));
  CLV_TRY(clv_check_count(from->n_frozen, CLV_WIRE_PARAMS, "frozen names", err));
  CLV_TRY(clv_check_count(strlen(from->name), CLV_WIRE_NAME, "bytes of module name", err));
  m->attempt_number = from->epoch;
  m->module_index = from->module;
  m->module_generation = from->generation;
  m->n_threads = from->threads;
  m->max_calls_in_flight = from->in_flight;
  m->n_frozen = (uint32_t)from->n_frozen;
  m->frozen_names = (const char **)from->frozen;
  m->device_name = from->device;
  m->module_name = from->name;
  m->computes_in_bf16 = from->bf16;
  m->allows_tf32 = from->tf32;
  m->frozen_has_no_grads_or_moments = from->fixed;
  m->stores_frozen_as_bf16 = from->frozen_bf16;
  m->input_needs_grad = from->route && from->route->input_needs_grad;
  if (from->route) {
    CLV_TRY(clv_check_count(from->route->n_peers, CLV_WIRE_PEERS, "peers", err));
    m->n_peers = (uint32_t)from->route->n_peers;
    m->peer_names = (const char **)from->route->peers;
  }
  return clv_decode_id(from->session, "session id", &m->session_id, err);
}

/* Decodes the RNG keys of the graph's nodes. Call it after the graph is decoded, because it has a
 * key for each node. */
static clv_code decode_node_keys(const Cleave__V1__LoadModuleRequest *from,
                                 clv_wire_load_request *m, clv_err *err) {
  if (from->keys.len != m->graph.n_nodes * sizeof *m->node_keys)
    return clv_fail(err, CLV_INVALID, "%zu bytes of keys for %u nodes; each has %zu",
                    from->keys.len, m->graph.n_nodes, sizeof *m->node_keys);
  m->node_keys = (const clv_key *)from->keys.data;
  return CLV_OK;
}

clv_code clv_wire_load_request_decode(const clv_piece *pieces, size_t n_pieces,
                                      clv_wire_load_request *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__LoadModuleRequest *from;
  clv_wire_load_request m = {0};
  CLV_TRY(clv_wire_unpack(&cleave__v1__load_module_request__descriptor, pieces, n_pieces, &mem,
                          &from, err));
  CLV_TRY(decode_module_settings(from, &m, err));
  CLV_TRY(decode_optimizer(from->optimizer, &m.optimizer, err));
  CLV_TRY(decode_groups(from, mem, &m, err));
  CLV_TRY(decode_init(from, &m, err));
  CLV_TRY(
      decode_specs(from->inputs, from->n_inputs, "inputs", mem, &m.input_specs, &m.n_inputs, err));
  CLV_TRY(decode_graph(from->graph, mem, &m.graph, err));
  CLV_TRY(decode_node_keys(from, &m, err));
  CLV_TRY(decode_ties(from, mem, &m, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

/* Memory of the nested messages of a request. */
typedef struct request_parts {
  Cleave__V1__Graph graph;
  Cleave__V1__Route route;
  Cleave__V1__Optimizer optimizer;
  Cleave__V1__Artifact artifact;
} request_parts;

static void encode_module_settings(const clv_wire_load_request *m, request_parts *parts,
                                   Cleave__V1__LoadModuleRequest *to) {
  cleave__v1__route__init(&parts->route);
  parts->route.input_needs_grad = m->input_needs_grad;
  parts->route.n_peers = m->n_peers;
  parts->route.peers = (char **)(uintptr_t)m->peer_names;
  to->session = clv_proto_bytes(&m->session_id, sizeof m->session_id);
  to->epoch = m->attempt_number;
  to->module = m->module_index;
  to->generation = m->module_generation;
  to->route = &parts->route;
  to->threads = m->n_threads;
  to->device = clv_text_or_empty(m->device_name);
  to->name = clv_text_or_empty(m->module_name);
  to->bf16 = m->computes_in_bf16;
  to->tf32 = m->allows_tf32;
  to->fixed = m->frozen_has_no_grads_or_moments;
  to->frozen_bf16 = m->stores_frozen_as_bf16;
  to->n_fresh = m->n_new_params;
  to->fresh = (char **)(uintptr_t)m->new_param_names;
  to->n_frozen = m->n_frozen;
  to->frozen = (char **)(uintptr_t)m->frozen_names;
  to->in_flight = m->max_calls_in_flight;
  to->init = (Cleave__V1__InitSource)m->init_source;
  clv_artifact_encode(&m->artifact, &parts->artifact);
  if (m->init_source == CLV_WIRE_INIT_ARTIFACT) to->artifact = &parts->artifact;
}

static void encode_optimizer(const clv_wire_optimizer *from, Cleave__V1__Optimizer *to) {
  cleave__v1__optimizer__init(to);
  to->kind = (Cleave__V1__OptimizerKind)from->kind;
  to->final = from->steps_are_final;
  to->ema = from->ema;
  to->ema_warmup = from->ema_warmup;
  CLV_OPTIM_COPY(to, from);
}

/* Memory of a group with its settings. */
typedef struct group_parts {
  /* must be the first member, because protobuf-c gets an array of pointers to these structs as an
   * array of pointers to groups */
  Cleave__V1__ParamGroup group;
  Cleave__V1__Optimizer optimizer;
} group_parts;

static clv_code encode_groups(const clv_wire_load_request *m, clv_wire_mem *mem,
                              Cleave__V1__LoadModuleRequest *to, clv_err *err) {
  group_parts *parts;
  CLV_TRY(clv_alloc_proto_array(mem, m->n_groups, sizeof *parts, &to->groups, &parts, err));
  for (uint32_t i = 0; i < m->n_groups; i++) {
    cleave__v1__param_group__init(&parts[i].group);
    encode_optimizer(&m->groups[i].optimizer, &parts[i].optimizer);
    parts[i].group.optimizer = &parts[i].optimizer;
    parts[i].group.n_params = m->groups[i].n_params;
    parts[i].group.params = (char **)(uintptr_t)m->groups[i].param_names;
  }
  to->n_groups = m->n_groups;
  to->hold_rest = m->freezes_rest;
  return CLV_OK;
}

static clv_code encode_ties(const clv_wire_load_request *m, clv_wire_mem *mem,
                            Cleave__V1__LoadModuleRequest *to, clv_err *err) {
  Cleave__V1__Tie *ties;
  CLV_TRY(clv_alloc_proto_array(mem, m->n_ties, sizeof *ties, &to->ties, &ties, err));
  for (uint32_t i = 0; i < m->n_ties; i++) {
    cleave__v1__tie__init(&ties[i]);
    ties[i].node = m->ties[i].node_index;
    ties[i].module = m->ties[i].owner_module;
    ties[i].owner = clv_text_or_empty(m->ties[i].owner_node_name);
  }
  to->n_ties = m->n_ties;
  return CLV_OK;
}

clv_code clv_wire_load_request_encode(const clv_wire_load_request *message, clv_bytes *ret,
                                      clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__LoadModuleRequest to = CLEAVE__V1__LOAD_MODULE_REQUEST__INIT;
  request_parts parts;
  CLV_TRY(clv_wire_mem_new(graph_encoding_bytes(&message->graph) +
                               CLV_ENCODED_ARRAY_BYTES(message->n_inputs, spec_parts) +
                               CLV_ENCODED_ARRAY_BYTES(message->n_groups, group_parts) +
                               CLV_ENCODED_ARRAY_BYTES(message->n_ties, Cleave__V1__Tie),
                           &mem, err));
  encode_module_settings(message, &parts, &to);
  encode_optimizer(&message->optimizer, &parts.optimizer);
  CLV_TRY(encode_groups(message, mem, &to, err));
  CLV_TRY(encode_graph(&message->graph, mem, &parts.graph, err));
  CLV_TRY(encode_ties(message, mem, &to, err));
  CLV_TRY(encode_specs(message->input_specs, message->n_inputs, mem, &to.inputs, err));
  to.n_inputs = message->n_inputs;
  to.keys =
      clv_proto_bytes(message->node_keys, message->graph.n_nodes * sizeof *message->node_keys);
  to.graph = &parts.graph;
  to.optimizer = &parts.optimizer;
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_request back = {0};
  return clv_wire_load_request_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}

/* ---- the reply of LoadModule ----------------------------------------------------------------- */

static clv_code decode_params(const Cleave__V1__LoadModuleReply *from, clv_wire_mem *mem,
                              clv_wire_load_reply *m, clv_err *err) {
  CLV_TRY(clv_check_count(from->n_params, CLV_WIRE_PARAMS, "parameters", err));
  CLV_TRY(clv_wire_mem_alloc(mem, from->n_params, sizeof *m->params, &m->params, err));
  m->n_params = (uint32_t)from->n_params;
  for (size_t i = 0; i < from->n_params; i++) {
    const Cleave__V1__ParamSpec *param = from->params[i];
    CLV_TRY(clv_check_name(param->name, "parameter name", err));
    CLV_TRY(decode_spec(param->spec, param->name, &m->params[i].tensor_spec, err));
    CLV_TRY(clv_decode_sha256(param->digest, param->name, &m->params[i].digest, err));
    m->params[i].name = param->name;
  }
  return CLV_OK;
}

clv_code clv_wire_load_reply_decode(const clv_piece *pieces, size_t n_pieces,
                                    clv_wire_load_reply *ret, clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__LoadModuleReply *from;
  CLV_TRY(clv_wire_unpack(&cleave__v1__load_module_reply__descriptor, pieces, n_pieces, &mem, &from,
                          err));
  clv_wire_load_reply m = {.memory_bytes = from->memory_bytes, .device_name = from->device};
  CLV_TRY(decode_params(from, mem, &m, err));
  CLV_TRY(decode_specs(from->outputs, from->n_outputs, "outputs", mem, &m.output_specs,
                       &m.n_outputs, err));
  m.mem = clv_steal(&mem);
  *ret = m;
  return CLV_OK;
}

/* Memory of a parameter with its spec. */
typedef struct param_parts {
  /* must be the first member, because protobuf-c gets an array of pointers to these structs as an
   * array of pointers to parameters */
  Cleave__V1__ParamSpec param;
  spec_parts spec;
} param_parts;

clv_code clv_wire_load_reply_encode(const clv_wire_load_reply *message, clv_bytes *ret,
                                    clv_err *err) {
  CLV_AUTO(clv_wire_mem_freep) clv_wire_mem *mem = NULL;
  Cleave__V1__LoadModuleReply to = CLEAVE__V1__LOAD_MODULE_REPLY__INIT;
  param_parts *params;
  CLV_TRY(clv_wire_mem_new(CLV_ENCODED_ARRAY_BYTES(message->n_params, param_parts) +
                               CLV_ENCODED_ARRAY_BYTES(message->n_outputs, spec_parts),
                           &mem, err));
  CLV_TRY(clv_alloc_proto_array(mem, message->n_params, sizeof *params, &to.params, &params, err));
  for (uint32_t i = 0; i < message->n_params; i++) {
    const clv_wire_param *from = &message->params[i];
    cleave__v1__param_spec__init(&params[i].param);
    encode_spec(&from->tensor_spec, &params[i].spec);
    params[i].param.name = clv_text_or_empty(from->name);
    params[i].param.spec = &params[i].spec.spec;
    params[i].param.digest = clv_proto_bytes(&from->digest, sizeof from->digest);
  }
  CLV_TRY(encode_specs(message->output_specs, message->n_outputs, mem, &to.outputs, err));
  to.n_params = message->n_params;
  to.n_outputs = message->n_outputs;
  to.memory_bytes = message->memory_bytes;
  to.device = clv_text_or_empty(message->device_name);
  CLV_TRY(clv_wire_pack(&to.base, ret, err));
  CLV_AUTO(clv_wire_message_clear) clv_wire_load_reply back = {0};
  return clv_wire_load_reply_decode(&(clv_piece){ret->data, ret->len}, 1, &back, err);
}
