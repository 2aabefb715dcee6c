/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes modules: checks their options, derives the keys of their layers, chooses their device, and
 * gives them an index of the runtime.
 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/recompute_blocks_int.h"
#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"
#include "master/api/core/ties_int.h"

/* ---- creating a module ----------------------------------------------------------------------- */

static cleave_status freeze_parameters(cleave_module *m, const cleave_module_options *o,
                                       cleave_error *error) {
  TRY(clv_alloc((size_t)m->params->n, sizeof *m->frozen_param_names, &m->frozen_param_names, &err));
  for (size_t k = 0; k < o->n_frozen; k++) {
    bool has_match = false;
    for (int i = 0; i < m->params->n; i++) {
      clv_param *p = &m->params->list[i];
      if (!p->trainable || fnmatch(o->frozen[k], p->name, 0) != 0) continue;
      has_match = true;
      if (!p->frozen) m->frozen_param_names[m->n_frozen_params++] = p->name;
      p->frozen = true;
    }
    if (!has_match)
      return api_fail(error, CLV_NOT_FOUND, "module '%s' has no parameter '%s' to freeze", m->name,
                      o->frozen[k]);
  }
  api_adapters_freeze_base(m, o);
  for (int i = 0; i < m->params->n; i++)
    m->n_trained_params += m->params->list[i].trainable && !m->params->list[i].frozen;
  return CLEAVE_OK;
}

cleave_status api_check_weight(const cleave_module *m, const char *name, const cleave_tensor *t,
                               cleave_error *error) {
  const clv_param *p = clv_params_find(m->params, name);
  const char *names[64];
  size_t n = 0;
  for (int i = 0; i < m->params->n && n < CLV_COUNT(names); i++)
    names[n++] = m->params->list[i].name;
  const char *suggestion = clv_did_you_mean(name, names, n);
  if (!p)
    return api_fail(error, CLV_NOT_FOUND, "module '%s' has no parameter '%s'%s%s%s", m->name, name,
                    suggestion ? "; did you mean '" : "", suggestion ? suggestion : "",
                    suggestion ? "'?" : "");
  if (!t) return CLEAVE_OK;
  char expected_type[160], given_type[160];
  clv_shape shape;
  TRY_API(api_copy_shape_in(t->rank, t->shape, &shape, error));
  if ((clv_dtype)t->dtype == p->dtype && clv_shape_equal(&shape, &p->shape)) return CLEAVE_OK;
  return api_fail(
      error, CLV_INVALID, "'%s' of module '%s' is %s %s, not %s %s", name, m->name,
      clv_dtype_name(p->dtype), clv_shape_format(&p->shape, expected_type, sizeof expected_type),
      clv_dtype_name((clv_dtype)t->dtype), clv_shape_format(&shape, given_type, sizeof given_type));
}

static cleave_status copy_weights(cleave_module *m, const cleave_module_options *o,
                                  cleave_error *error) {
  m->has_given_weights = o->n_weights > 0;
  m->has_secret_weights = o->weights_are_secret;
  m->seed = o->seed;
  TRY(clv_alloc(o->n_weights, sizeof *m->pending_weights, &m->pending_weights, &err));
  for (size_t i = 0; i < o->n_weights; i++) {
    TRY_API(api_check_weight(m, o->weights[i].name, &o->weights[i].tensor, error));
    api_pending_weight *w = &m->pending_weights[m->n_pending_weights++];
    TRY(clv_strdup(o->weights[i].name, &w->name, &err));
    TRY_API(api_copy_tensor_in(m->runtime->pool, &o->weights[i].tensor, &w->tensor, error));
  }
  return CLEAVE_OK;
}

/* Enables bf16 storage of frozen weights, if the options say so. Refuses a worker that does not
 * support bf16 storage, because rounding the weights changes results. */
static cleave_status enable_bf16_storage(const cleave_runtime *rt, cleave_module *m,
                                         const cleave_module_options *o, cleave_error *error) {
  m->stores_frozen_as_bf16 = o->frozen_bf16;
  if (!m->stores_frozen_as_bf16) return CLEAVE_OK;
  if (m->node && !rt->peers[m->node].supports_bf16_weights)
    return api_fail(error, CLV_UNIMPLEMENTED,
                    "module '%s': worker '%s' does not know weights in bf16", m->name,
                    rt->peers[m->node].name);
  if (!m->is_frozen_set_final)
    return api_fail(error, CLV_INVALID, "module '%s': frozen_bf16 goes with `fixed`", m->name);
  clv_params_convert_frozen_to_bf16(m->graph, m->params);
  return CLEAVE_OK;
}

static cleave_status copy_artifact(cleave_module *m, const cleave_module_options *o,
                                   cleave_error *error) {
  if (!o->artifact) return CLEAVE_OK;
  if (m->node == 0)
    return api_fail(error, CLV_INVALID, "module '%s': artifacts lie on workers, it is at master",
                    m->name);
  if (!o->artifact_sha256 || !clv_sha256_parse(o->artifact_sha256, &m->artifact_sha256))
    return api_fail(error, CLV_INVALID, "module '%s': an artifact needs its sha256", m->name);
  TRY(clv_strdup(o->artifact, &m->artifact_name, &err));
  return CLEAVE_OK;
}

/* Copies the names of parameters that get initial values. Call after the parameters are listed. */
static cleave_status copy_initialized_names(cleave_module *m, const cleave_module_options *o,
                                            cleave_error *error) {
  size_t max_names = o->n_initialized + (size_t)m->params->n;
  TRY(clv_alloc(max_names, sizeof *m->initialized_param_names, &m->initialized_param_names, &err));
  for (int i = 0; o->lora && m->artifact_name && i < m->params->n; i++)
    if (clv_name_is_of_adapter(m->params->list[i].name))
      m->initialized_param_names[m->n_initialized_params++] = m->params->list[i].name;
  for (size_t i = 0; i < o->n_initialized; i++) {
    TRY_API(api_check_weight(m, o->initialized[i], NULL, error));
    m->initialized_param_names[m->n_initialized_params++] =
        clv_params_find(m->params, o->initialized[i])->name;
  }
  return CLEAVE_OK;
}

static cleave_status copy_direct_receivers(cleave_module *m, const cleave_module_options *o,
                                           cleave_error *error) {
  const cleave_runtime *rt = m->runtime;
  if (!o->direct_to) return CLEAVE_OK;
  if (o->n_direct_to >= API_MAX_NODES)
    return api_fail(error, CLV_INVALID, "module '%s': %zu workers for direct transfers; at most %d",
                    m->name, o->n_direct_to, API_MAX_NODES - 1);
  TRY(clv_alloc(o->n_direct_to, sizeof *m->direct_to, &m->direct_to, &err));
  for (size_t i = 0; i < o->n_direct_to; i++) {
    int node = api_find_node(rt, o->direct_to[i]);
    if (node <= 0)
      return api_fail(error, CLV_NOT_FOUND, "module '%s': no worker '%s' for a direct transfer",
                      m->name, o->direct_to[i]);
    m->direct_to[m->n_direct_to++] = rt->peers[node].name;
  }
  return CLEAVE_OK;
}

static cleave_status find_input_nodes(cleave_module *m, cleave_error *error) {
  for (int i = 0; i < m->graph->n_nodes; i++) {
    if (m->graph->nodes[i].op != CLV_OP_INPUT) continue;
    if (m->n_inputs == CLV_MAX_INPUTS)
      return api_fail(error, CLV_INVALID, "module '%s' has more than %d inputs", m->name,
                      CLV_MAX_INPUTS);
    m->input_node_indexes[m->n_inputs++] = i;
  }
  if (m->n_inputs && m->graph->n_nodes > (int)m->n_inputs) return CLEAVE_OK;
  return api_fail(error, CLV_INVALID, "module '%s' has %u inputs and %d ops; at least one of each",
                  m->name, m->n_inputs, m->graph->n_nodes - (int)m->n_inputs);
}

/* a graph node's key is derived from this number of bytes of the digest of the node's name */
enum { NODE_NAME_DIGEST_BYTES = 16 };
_Static_assert(12 + sizeof(clv_sha256) + NODE_NAME_DIGEST_BYTES <= CLV_KEY_MAX_INPUT,
               "what a key is derived of");

/* True if the graph node is not the first of its layer, such as an adapter. Such nodes have keys of
 * their own. */
static bool is_later_node_of_layer(const clv_graph *g, int i) {
  const clv_node *n = &g->nodes[i];
  return i > 0 && n[-1].op != CLV_OP_INPUT && n[-1].layer == n->layer;
}

clv_code clv_layer_keys(const clv_key *session, const char *network_name, uint64_t seed,
                        clv_graph *g, clv_err *err) {
  const char *key_domain = seed ? "cleave layer of a seed" : "cleave layer of a module";
  uint8_t of[12 + sizeof(clv_sha256) + NODE_NAME_DIGEST_BYTES] = {0};
  clv_sha256 name, node;
  CLV_TRY(clv_sha256_of(network_name, strlen(network_name), &name, err));
  for (int i = 0; i < 8; i++) of[i] = (uint8_t)(seed >> 8 * i);
  if (!seed) memcpy(of + 12, &name, sizeof name);
  for (int i = 0; i < g->n_nodes; i++) {
    clv_node *n = &g->nodes[i];
    if (n->op == CLV_OP_INPUT) continue;
    for (int k = 0; k < 4; k++) of[8 + k] = (uint8_t)(n->layer >> 8 * k);
    size_t len = seed ? 12 : 12 + sizeof name;
    if (is_later_node_of_layer(g, i)) {
      CLV_TRY(clv_sha256_of(n->name, strlen(n->name), &node, err));
      memcpy(of + len, &node, NODE_NAME_DIGEST_BYTES);
      len += NODE_NAME_DIGEST_BYTES;
    }
    CLV_TRY(clv_key_derive(key_domain, session, of, len, &n->key, err));
  }
  return CLV_OK;
}

/* Derives the keys of a graph's layers. A worker receives these keys with the module, and never the
 * session's seed. */
cleave_status api_derive_keys(const cleave_runtime *rt, const char *network_name, uint64_t seed,
                              clv_graph *g, cleave_error *error) {
  TRY(clv_layer_keys(&rt->seed, network_name, seed, g, &err));
  return CLEAVE_OK;
}

/* Returns the master's backend for a device name; NULL: no such device. "cpu", "cpu:0" and "cpu:1"
 * are all the processor. */
static const clv_backend *find_own_backend(const cleave_runtime *rt, const char *device) {
  static const char *const cpu_device_names[] = {"cpu", "cpu:0", "cpu:1"};
  const clv_backends *other_backends = &rt->platform.other_backends;
  for (size_t i = 0; i < CLV_COUNT(cpu_device_names); i++)
    if (strcmp(device, cpu_device_names[i]) == 0)
      return rt->platform.backend ? rt->platform.backend : clv_backend_cpu();
  for (size_t i = 0; i < other_backends->n; i++)
    if (strcmp(device, other_backends->list[i]->device) == 0) return other_backends->list[i];
  return NULL;
}

static cleave_status fail_no_device(const cleave_module *m, cleave_error *error) {
  const clv_backends *other_backends = &m->runtime->platform.other_backends;
  CLV_AUTO(clv_bytes_done) clv_bytes has = {0};
  for (size_t i = 0; i < other_backends->n; i++)
    clv_bytes_printf(&has, "%s, ", other_backends->list[i]->device);
  return api_fail(error, CLV_INVALID,
                  "module '%s': no device '%s' at master, only %scpu, cpu:0 and cpu:1", m->name,
                  m->device, has.len ? (const char *)has.data : "");
}

/* Checks that the module's device supports TF32. For a worker's device other than a processor the
 * worker itself checks. */
static clv_code check_tf32(const cleave_module *m, clv_err *err) {
  const clv_backend *b = strncmp(m->device, "cpu", 3) == 0 ? clv_backend_cpu() : m->backend;
  if (!m->allows_tf32 || !b || clv_backend_check_tf32(b, err) == CLV_OK) return CLV_OK;
  return clv_err_prefix(err, "module '%s' at %s", m->name, m->runtime->peers[m->node].name);
}

/* Replaces "auto" and "cuda" by the name of the device that they mean at the module's node. */
static void resolve_device(const cleave_runtime *rt, cleave_module *m) {
  const api_peer *p = &rt->peers[m->node];
  const char *cuda_device_name = m->node ? strstr(p->devices, "cuda:") : NULL;
  if (strcmp(m->device, "auto") == 0)
    snprintf(m->device, sizeof m->device, "%s", m->node ? p->device : "cpu");
  else if (strcmp(m->device, "cuda") == 0 && cuda_device_name)
    snprintf(m->device, sizeof m->device, "%.*s", (int)strcspn(cuda_device_name, ","),
             cuda_device_name);
}

static cleave_status fill_new_module(cleave_module *m, const cleave_module_options *o,
                                     const char *network_name, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  const char *at = o->at ? o->at : "master";
  int node = api_find_node(rt, at);
  if (!o->name || !o->name[0] || strlen(o->name) > CLEAVE_NAME || !clv_wire_is_text(o->name))
    return api_fail(error, CLV_INVALID,
                    "a module needs a name of 1 to %d bytes, UTF-8 without control characters",
                    CLEAVE_NAME);
  snprintf(m->name, sizeof m->name, "%s", o->name);
  snprintf(m->device, sizeof m->device, "%s", o->device ? o->device : "auto");
  if (node < 0)
    return api_fail(error, CLV_NOT_FOUND,
                    "module '%s' is at '%s', which is neither master nor a "
                    "worker of %s",
                    m->name, at, rt->config->file);
  m->node = (uint32_t)node;
  resolve_device(rt, m);
  const clv_backend *own = m->backend = m->node ? NULL : find_own_backend(rt, m->device);
  if (m->node == 0 && !own) return fail_no_device(m, error);
  m->copies_inputs = o->copies_inputs;
  m->n_threads = CLV_MAX(o->threads, 1u);
  m->max_calls_in_flight = CLV_MIN(CLV_MAX(o->in_flight, 1u), (uint32_t)CLV_WIRE_CONTRIBUTIONS);
  m->accepts_only_local_inputs = o->local_only;
  TRY_API(copy_direct_receivers(m, o, error));
  m->computes_in_bf16 = o->bf16;
  m->allows_tf32 = o->tf32;
  if (m->computes_in_bf16 && own && own->check_bf16) TRY(own->check_bf16(own, &err));
  TRY(check_tf32(m, &err));
  TRY_API(copy_artifact(m, o, error));
  TRY_API(api_adapters_add_to_graph(m, o, error));
  TRY_API(find_input_nodes(m, error));
  TRY_API(api_mark_recompute_blocks(m, o, error));
  TRY_API(api_ties_add_to_graph(m, o, error));
  TRY(clv_params_make(m->graph, &m->params, &err));
  TRY_API(api_ties_find_owners(m, o, error));
  TRY_API(copy_initialized_names(m, o, error));
  TRY_API(freeze_parameters(m, o, error));
  m->is_frozen_set_final =
      o->frozen_is_final && (m->node == 0 || rt->peers[m->node].supports_fixed_modules);
  TRY_API(enable_bf16_storage(rt, m, o, error));
  if (m->is_frozen_set_final) clv_params_fix_frozen(m->params);
  TRY_API(api_derive_keys(rt, network_name ? network_name : m->name, o->seed, m->graph, error));
  return copy_weights(m, o, error);
}

static cleave_status check_module_name(const cleave_runtime *rt, const cleave_module *m,
                                       cleave_error *error) {
  for (uint32_t i = 0; i < rt->n_modules; i++)
    if (rt->modules[i] && !rt->modules[i]->is_released &&
        strcmp(rt->modules[i]->name, m->name) == 0)
      return api_fail(error, CLV_EXISTS, "there is a module called '%s' already", m->name);
  return CLEAVE_OK;
}

/* Finds the lowest free index. *ret_n_unloading: number of modules whose index becomes free when
 * their node answers UNLOAD. */
static bool find_free_index(const cleave_runtime *rt, uint32_t *ret, uint32_t *ret_n_unloading) {
  *ret_n_unloading = 0;
  for (*ret = 0; *ret < API_MAX_MODULES; ++*ret) {
    const cleave_module *m = rt->modules[*ret];
    if (!m) return true;
    *ret_n_unloading += m->state == MODULE_UNLOADING;
  }
  return false;
}

cleave_status api_module_assign_index(cleave_module *m, cleave_error *error) {
  cleave_runtime *rt = m->runtime;
  uint64_t until_ns = api_deadline_ns(rt, 0);
  uint32_t n_unloading, n_released = 0;
  bool is_found = find_free_index(rt, &m->index, &n_unloading);
  while (!is_found && n_unloading && api_wait(rt, until_ns))
    is_found = find_free_index(rt, &m->index, &n_unloading);
  for (uint32_t i = 0; i < rt->n_modules; i++)
    n_released += rt->modules[i] && rt->modules[i]->is_released;
  if (!is_found)
    return api_fail(error, CLV_EXHAUSTED,
                    "module '%s': a runtime has at most %d modules; %u of these are released, and "
                    "stay until contexts that used them have ended and their optimisers are "
                    "released",
                    m->name, API_MAX_MODULES, n_released);
  TRY_API(check_module_name(rt, m, error));
  m->load_number = ++rt->last_load_number;
  rt->modules[m->index] = m;
  rt->n_modules = CLV_MAX(rt->n_modules, m->index + 1);
  return CLEAVE_OK;
}

cleave_status api_module_new(cleave_runtime *rt, const cleave_module_options *o,
                             const char *network_name, clv_graph *graph, cleave_module **ret,
                             cleave_error *error) {
  cleave_module *m;
  clv_err err;
  if (clv_alloc(1, sizeof *m, &m, &err) != CLV_OK) {
    clv_graph_free(graph);
    return api_convert_error(error, &err);
  }
  m->runtime = rt;
  m->graph = graph;
  m->n_outputs = 1;
  cleave_status status = fill_new_module(m, o, network_name, error);
  LOCKED(rt);
  if (status == CLEAVE_OK) status = api_check_node_present(rt, m->node, error);
  if (status == CLEAVE_OK) status = api_module_assign_index(m, error);
  if (status != CLEAVE_OK) {
    api_module_free(m);
    return status;
  }
  *ret = m;
  return CLEAVE_OK;
}

cleave_status cleave_load_layers(cleave_runtime *runtime, const cleave_module_options *options,
                                 const char *layers, const cleave_input *input,
                                 cleave_module **ret_module, cleave_error *error) {
  NOT_NULL(runtime, options, layers, input, ret_module);
  COPY_OPTIONS_IN(cleave_module_options, o, options);
  clv_graph *graph;
  TRY_API(api_graph_from_layers(layers, input, o.first_layer, 0, NULL, &graph, error));
  return api_module_new(runtime, &o, NULL, graph, ret_module, error);
}

cleave_status cleave_load_architecture(cleave_runtime *runtime,
                                       const cleave_module_options *options, const char *arch,
                                       const char *attributes, const cleave_input *input,
                                       cleave_module **ret_module, cleave_error *error) {
  NOT_NULL(runtime, options, arch, input, ret_module);
  COPY_OPTIONS_IN(cleave_module_options, o, options);
  clv_graph *graph;
  TRY_API(api_graph_from_arch(arch, attributes, o.layers, input, &graph, error));
  return api_module_new(runtime, &o, NULL, graph, ret_module, error);
}

cleave_status cleave_load_hf(cleave_runtime *runtime, const cleave_module_options *options,
                             const char *folder, const char *layers, const char *head,
                             const cleave_input *input, cleave_module **ret_module,
                             cleave_error *error) {
  NOT_NULL(runtime, options, folder, input, ret_module);
  COPY_OPTIONS_IN(cleave_module_options, o, options);
  clv_graph *graph;
  TRY_API(api_graph_from_hf(folder, &o, layers ? layers : o.layers, head, input, &graph, error));
  return api_module_new(runtime, &o, NULL, graph, ret_module, error);
}

cleave_status cleave_load_loss(cleave_runtime *runtime, const cleave_module_options *options,
                               const char *kind, const cleave_input *prediction,
                               cleave_module **ret_module, cleave_error *error) {
  NOT_NULL(runtime, options, kind, prediction, ret_module);
  COPY_OPTIONS_IN(cleave_module_options, o, options);
  clv_graph *graph;
  clv_shape shape;
  TRY_API(api_copy_shape_in(prediction->rank, prediction->shape, &shape, error));
  if (!shape.rank) return api_fail(error, CLV_INVALID, "a prediction without a batch");
  TRY(clv_loss_make_graph(kind, &shape, shape.dim[0], &graph, &err));
  return api_module_new(runtime, &o, NULL, graph, ret_module, error);
}

const char *cleave_module_name(const cleave_module *module) { return module ? module->name : NULL; }
const char *cleave_module_device(const cleave_module *module) {
  return module ? module->device : NULL;
}
const char *cleave_module_node(const cleave_module *module) {
  return module ? module->runtime->peers[module->node].name : NULL;
}
const char *cleave_module_weight_name(const cleave_module *module, size_t index) {
  return module && index < (size_t)module->params->n ? module->params->list[index].name : NULL;
}
API_DEPRECATED_ALIAS(cleave_module_weight, cleave_module_weight_name);

/* ---- waiting until modules are idle ---------------------------------------------------------- */

static bool is_module_busy(const cleave_module *m) {
  return m->n_contexts || m->state == MODULE_PLACING;
}

static cleave_status check_contexts_closing(const cleave_module *m, const char *what,
                                            cleave_error *error) {
  const cleave_runtime *rt = m->runtime;
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;)
    if (c->has_used_module[m->index] && c->state == API_CONTEXT_OPEN)
      return api_fail(error, CLV_PRECONDITION,
                      "module '%s' %s while context %s, which has called it, is open: close that "
                      "first",
                      m->name, what, c->name);
  return CLEAVE_OK;
}

cleave_status api_modules_await_idle(cleave_module *const *modules, size_t n, const char *what,
                                     uint64_t until_ns, cleave_error *error) {
  for (size_t i = 0; i < n; i++) {
    const cleave_module *m = modules[i];
    if (!is_module_busy(m)) continue;
    TRY_API(check_contexts_closing(m, what, error));
    if (!api_wait(m->runtime, until_ns))
      return api_fail_late(m->runtime, error, "module '%s' %s: its contexts have not ended in time",
                           m->name, what);
    i = (size_t)-1; /* start over, since a call may have used another module during the wait */
  }
  return CLEAVE_OK;
}

cleave_status cleave_module_release(cleave_runtime *runtime, cleave_module *module,
                                    cleave_error *error) {
  if (!module) return CLEAVE_OK;
  NOT_NULL(runtime);
  if (module->runtime != runtime)
    return api_fail(error, CLV_INVALID, "module '%s' is of another runtime", module->name);
  LOCKED(runtime);
  for (uint32_t i = 0; i < module->n_outputs && module->output_modules[i] && !module->is_released;
       i++) {
    module->output_modules[i]->is_released = true;
    api_module_unload_if_unused(module->output_modules[i]);
  }
  module->is_released = true;
  api_module_unload_if_unused(module);
  return CLEAVE_OK;
}
