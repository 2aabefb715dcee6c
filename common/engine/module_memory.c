/* SPDX-License-Identifier: Apache-2.0 */
#include "common/engine/module_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t clv_module_buffer_bytes(const clv_module *m) {
  return m->params->total_bytes - m->params->buffer_offset;
}

/* Charges `bytes` that are about to be allocated, or that a library has just allocated, to the pool
 * given at creation, if any, and adds them to m->bytes. */
static clv_code charge_memory(clv_module *m, size_t bytes, clv_err *err) {
  if (m->o.pool && clv_module_charge(m, m->o.pool, bytes, err) != CLV_OK)
    return clv_err_prefix(err, "module %u", m->o.index);
  if (m->o.pool) m->charged_bytes += bytes;
  m->bytes += bytes;
  return CLV_OK;
}

static clv_code mark_frozen_params(clv_module *m, const clv_module_options *o, clv_err *err) {
  for (uint32_t i = 0; i < o->n_frozen; i++) {
    clv_param *p = (clv_param *)clv_params_find(m->params, o->frozen[i]);
    if (!p) return clv_fail(err, CLV_NOT_FOUND, "no parameter '%s' to freeze", o->frozen[i]);
    p->frozen = true;
  }
  return CLV_OK;
}

static clv_code mark_shared_params(clv_module *m, const clv_module_options *o, clv_err *err) {
  for (uint32_t i = 0; i < o->n_shared_params; i++) {
    clv_param *p = (clv_param *)clv_params_find(m->params, o->shared_params[i]);
    if (!p || !p->frozen || !o->is_frozen_for_good)
      return clv_fail(err, CLV_INVALID,
                      "'%s' of module %u cannot be a shared parameter: it is not frozen for good",
                      o->shared_params[i], m->o.index);
    p->is_shared = true;
  }
  if (!o->n_shared_params) return CLV_OK;
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof(clv_tensor *), &m->shared_params, err));
  return clv_alloc((size_t)m->params->n, sizeof(void *), &m->shared_data, err);
}

static clv_code find_learning_extents(clv_module *m, clv_err *err) {
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *m->learning_extents, &m->learning_extents, err));
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *m->sums, &m->sums, err));
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (p->trainable && !p->frozen)
      m->learning_extents[m->n_learning++] = (clv_extent){p->offset / sizeof(float), p->n};
  }
  return CLV_OK;
}

/* Assigns the parameters of group g, whose number is `number`. of: [params->n] receives the group
 * of each parameter; 0: not assigned yet. */
static clv_code assign_group(const clv_module *m, const clv_module_group *g, uint8_t number,
                             uint8_t *of, clv_err *err) {
  for (uint32_t i = 0; i < g->n_params; i++) {
    const clv_param *p = clv_params_find(m->params, g->params[i]);
    if (!p)
      return clv_fail(err, CLV_NOT_FOUND, "no parameter '%s' for group %u", g->params[i], number);
    if (!p->trainable || p->frozen)
      return clv_fail(err, CLV_INVALID, "parameter '%s' of group %u does not learn", p->name,
                      number);
    uint8_t *group_of_param = &of[p - m->params->list];
    if (*group_of_param)
      return clv_fail(err, CLV_EXISTS, "parameter '%s' is in groups %u and %u", p->name,
                      *group_of_param, number);
    *group_of_param = number;
  }
  return CLV_OK;
}

/* Lists the spans of the trained parameters, each with its group. */
static clv_code find_spans(const clv_module *m, const clv_module_options *o, clv_optim_span *spans,
                           size_t *ret_n, clv_err *err) {
  CLV_AUTO(clv_freep) uint8_t *of = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *of, &of, err));
  for (uint32_t i = 0; i < o->n_groups; i++)
    CLV_TRY(assign_group(m, &o->groups[i], (uint8_t)(i + 1), of, err));
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (p->trainable && !p->frozen && (of[i] || !o->group0_is_frozen))
      spans[n++] = (clv_optim_span){p->offset, p->n, of[i]};
  }
  *ret_n = n;
  return CLV_OK;
}

static clv_code make_optimizer(clv_module *m, const clv_module_options *o, clv_err *err) {
  if (!o->is_trainable || !m->params->trainable_bytes) return CLV_OK;
  CLV_AUTO(clv_freep) clv_optim_span *spans = NULL;
  clv_optim_config groups[CLV_OPTIM_MAX_GROUPS] = {o->optimizer};
  size_t n;
  if (o->n_groups > CLV_WIRE_GROUPS)
    return clv_fail(err, CLV_INVALID, "%u parameter groups after the first; at most %d",
                    o->n_groups, CLV_WIRE_GROUPS);
  for (uint32_t i = 0; i < o->n_groups; i++) groups[i + 1] = o->groups[i].optimizer;
  CLV_TRY(clv_alloc(m->n_learning, sizeof *spans, &spans, err));
  CLV_TRY(find_spans(m, o, spans, &n, err));
  CLV_TRY(clv_optim_new(groups, 1 + o->n_groups, m->params->trainable_bytes, spans, n, m->o.backend,
                        &m->optim, err));
  return clv_optim_begin_ema(m->optim, m->block, err);
}

static size_t moment_bytes(const clv_module *m, const clv_module_options *o) {
  if (!o->is_trainable) return 0;
  uint32_t moments = clv_optim_moment_mask(&o->optimizer);
  for (uint32_t i = 0; i < CLV_MIN(o->n_groups, (uint32_t)CLV_WIRE_GROUPS); i++)
    moments |= clv_optim_moment_mask(&o->groups[i].optimizer);
  return (size_t)clv_optim_count_moments(moments) * m->params->trainable_bytes;
}

/* Charges all memory whose size is known from shapes, before any of it is allocated, so that a
 * module over the quota costs the host nothing. */
static clv_code charge_known_memory(clv_module *m, const clv_module_options *o, clv_err *err) {
  size_t state = m->params->total_bytes + m->params->shared_bytes;
  if (state > SIZE_MAX / 8)
    return clv_fail(err, CLV_EXHAUSTED, "module %u: %zu bytes of parameters", m->o.index, state);
  CLV_TRY(charge_memory(m, state + clv_module_buffer_bytes(m) + moment_bytes(m, o), err));
  if (o->batch) CLV_TRY(clv_module_warm_up(m, o->batch, err));
  return clv_cancel_hook_check(o->cancel_hook, err);
}

static clv_code alloc_memory(clv_module *m, clv_err *err) {
  const clv_backend *b = m->o.backend;
  CLV_TRY(clv_backend_allocate(b, m->params->total_bytes, &m->block, err));
  CLV_TRY(clv_backend_allocate(b, clv_module_buffer_bytes(m), &m->saved_buffers, err));
  return clv_backend_fill(b, m->saved_buffers, 0, clv_module_buffer_bytes(m), err);
}

/* Initialises the parameters in host memory, and copies them to the device if the module is on
 * one. */
static clv_code init_params(clv_module *m, const clv_cancel_hook *cancel_hook, clv_err *err) {
  const clv_backend *b = m->o.backend;
  CLV_AUTO(clv_freep) void *drawn = NULL;
  if (!b->memory)
    return clv_params_init_cancellable(cancel_hook, m->graph, m->params, m->block, err);
  CLV_TRY(clv_alloc_aligned(m->params->total_bytes, &drawn, err));
  CLV_TRY(clv_params_init_cancellable(cancel_hook, m->graph, m->params, drawn, err));
  CLV_TRY(clv_backend_put(b, m->block, drawn, m->params->total_bytes, err));
  return clv_backend_finish(b, err);
}

static clv_code count_inputs(clv_module *m, clv_err *err) {
  for (int i = 0; i < m->graph->n_nodes; i++) {
    if (m->graph->nodes[i].op != CLV_OP_INPUT) continue;
    if (m->n_inputs == CLV_MAX_INPUTS)
      return clv_fail(err, CLV_INVALID, "module %u has more than %d inputs", m->o.index,
                      CLV_MAX_INPUTS);
    m->in_dtype[m->n_inputs++] = m->graph->nodes[i].dtype;
  }
  if (!m->n_inputs) return clv_fail(err, CLV_INVALID, "module %u has no input", m->o.index);
  return CLV_OK;
}

static clv_pool *pool_to_charge(const clv_module *m) { return m->o.pool ? m->o.pool : m->pool; }

static clv_code charge_record(void *user, size_t bytes, clv_err *err) {
  const clv_module *m = user;
  return pool_to_charge(m) ? clv_module_charge(m, pool_to_charge(m), bytes, err) : CLV_OK;
}

static void discharge_record(void *user, size_t bytes) {
  const clv_module *m = user;
  if (pool_to_charge(m)) clv_module_discharge(m, pool_to_charge(m), bytes);
}

static clv_code open_recorder(clv_module *m, clv_err *err) {
  const clv_record_account account = {m, charge_record, discharge_record};
  CLV_TRY(clv_recorder_new(m->o.backend, &m->recorder, err));
  clv_recorder_set_account(m->recorder, &account);
  return CLV_OK;
}

/* ---- shared parameters ----------------------------------------------------------------------- */

/* True if the module's kernels can read the tensor where it is stored, without a copy. */
static bool can_read_in_place(const clv_module *m, const clv_tensor *t) {
  const clv_backend *b = m->o.backend;
  return b->memory ? t->device && strcmp(t->device->device, b->device) == 0 : !t->device;
}

clv_code clv_module_set_shared_param(clv_module *m, const char *param, clv_tensor *t,
                                     clv_err *err) {
  const clv_param *p = clv_params_find(m->params, param);
  if (!p || !p->is_shared || t->dtype != p->dtype || !clv_shape_equal(&t->shape, &p->shape) ||
      !can_read_in_place(m, t))
    return clv_fail(err, CLV_INVALID,
                    "module %u: the shared tensor for '%s' has another type, shape or device than "
                    "the parameter",
                    m->o.index, param);
  size_t i = (size_t)(p - m->params->list);
  if (m->shared_params[i])
    return clv_fail(err, CLV_EXISTS, "module %u has a shared tensor for '%s' already", m->o.index,
                    param);
  m->shared_params[i] = clv_tensor_ref(t);
  m->shared_data[i] = t->data;
  return CLV_OK;
}

clv_code clv_module_check_complete(const clv_module *m, clv_err *err) {
  for (int i = 0; i < m->params->n; i++)
    if (m->params->list[i].is_shared && !m->shared_params[i])
      return clv_fail(err, CLV_INTERNAL, "module %u: no shared tensor was set for '%s'", m->o.index,
                      m->params->list[i].name);
  return CLV_OK;
}

/* Drops the shared parameters, after the backend has finished reading them. */
static void release_shared_params(clv_module *m) {
  clv_err why;
  if (!m->shared_params) return;
  (void)!clv_backend_finish(m->o.backend, &why);
  for (int i = 0; i < m->params->n; i++) clv_tensor_unref(m->shared_params[i]);
  free(m->shared_params);
  free(m->shared_data);
}

static clv_code fill_module(clv_module *m, const clv_module_options *o, clv_err *err) {
  CLV_TRY(open_recorder(m, err));
  CLV_TRY(count_inputs(m, err));
  CLV_TRY(clv_params_make(m->graph, &m->params, err));
  CLV_TRY(mark_frozen_params(m, o, err));
  CLV_TRY(mark_shared_params(m, o, err));
  if (o->is_frozen_for_good && o->frozen_bf16)
    clv_params_convert_frozen_to_bf16(m->graph, m->params);
  if (o->is_frozen_for_good) clv_params_fix_frozen(m->params);
  CLV_TRY(clv_module_resolve_ties(m, o, err));
  CLV_TRY(find_learning_extents(m, err));
  CLV_TRY(charge_known_memory(m, o, err));
  CLV_TRY(alloc_memory(m, err));
  CLV_TRY(init_params(m, o->cancel_hook, err));
  CLV_TRY(make_optimizer(m, o, err));
  m->version = 1;
  return CLV_OK;
}

clv_code clv_module_new(const clv_module_options *o, clv_module **ret, clv_err *err) {
  clv_module *m;
  clv_code code = clv_alloc(1, sizeof *m, &m, err);
  if (code != CLV_OK) {
    clv_graph_free(o->graph);
    return code;
  }
  m->o = *o;
  /* these lists belong to the caller, and are not used after this call */
  m->o.frozen = m->o.shared_params = NULL;
  m->o.groups = NULL;
  m->o.cancel_hook = NULL;
  m->o.ties = NULL;
  m->o.name = NULL;
  m->o.device = NULL;
  snprintf(m->name, sizeof m->name, "%s", o->name ? o->name : "");
  snprintf(m->device, sizeof m->device, "%s", o->device ? o->device : o->backend->device);
  m->graph = o->graph;
  m->o.backend = NULL;
  code = clv_backend_branch(o->backend, &m->o.backend, err);
  if (code == CLV_OK) code = fill_module(m, o, err);
  if (code != CLV_OK) {
    clv_module_free(m);
    return code;
  }
  *ret = m;
  return CLV_OK;
}

void clv_module_free(clv_module *m) {
  if (!m) return;
  for (int i = 0; i < m->n_plans; i++) clv_plan_free(m->plans[i].plan);
  clv_recorder_free(m->recorder);
  clv_tensor_unref(m->snapshot);
  clv_module_uncharge_tensors(m, &m->charged_on_device);
  clv_module_blocks_free(m);
  clv_optim_free(m->optim);
  if (m->block) clv_backend_free_memory(m->o.backend, m->block);
  if (m->saved_buffers) clv_backend_free_memory(m->o.backend, m->saved_buffers);
  release_shared_params(m);
  free(m->withheld_params);
  if (m->params) clv_module_unpin_owners(m);
  free(m->learning_extents);
  free(m->sums);
  clv_params_free(m->params);
  clv_graph_free(m->graph);
  if (pool_to_charge(m)) clv_module_discharge(m, pool_to_charge(m), m->charged_bytes);
  clv_backend_release(m->o.backend);
  free(m);
}

void clv_module_freep(clv_module **m) {
  clv_module_free(*m);
  *m = NULL;
}

void clv_module_set_pool(clv_module *m, clv_pool *pool) { m->pool = pool; }

void clv_module_count(const clv_module *m, clv_module_counts *ret) {
  const clv_module_counts *c = &m->counts;
  clv_record_counts r;
  clv_recorder_count(m->recorder, &r);
  *ret = (clv_module_counts){
      .device_bytes = __atomic_load_n(&c->device_bytes, __ATOMIC_RELAXED),
      .peer_bytes = __atomic_load_n(&c->peer_bytes, __ATOMIC_RELAXED),
      .host_bytes = __atomic_load_n(&c->host_bytes, __ATOMIC_RELAXED),
      .forwards = __atomic_load_n(&c->forwards, __ATOMIC_RELAXED),
      .backwards = __atomic_load_n(&c->backwards, __ATOMIC_RELAXED),
      .evals = __atomic_load_n(&c->evals, __ATOMIC_RELAXED),
      .steps = __atomic_load_n(&m->steps, __ATOMIC_RELAXED),
      .steps_since_load = __atomic_load_n(&c->steps_since_load, __ATOMIC_RELAXED),
      .compute_ns = __atomic_load_n(&c->compute_ns, __ATOMIC_RELAXED),
      .replays = r.replays,
      .not_recorded = r.keys_refused,
      .max_versions = __atomic_load_n(&c->max_versions, __ATOMIC_RELAXED)};
}

uint32_t clv_module_index(const clv_module *m) { return m->o.index; }
const char *clv_module_device(const clv_module *m) { return m->device; }
const clv_graph *clv_module_graph(const clv_module *m) { return m->graph; }
const clv_params *clv_module_params(const clv_module *m) { return m->params; }
size_t clv_module_bytes(const clv_module *m) { return m->bytes; }

static clv_code reserve_value(const clv_module *m, const clv_node *n, clv_pool *pool,
                              clv_err *err) {
  /* a step seldom needs more tensors than this */
  uint32_t n_tensors = CLV_MIN(2 * m->o.max_calls_in_flight + 2, 64u);
  return clv_pool_reserve_tensors(pool, n->dtype, &n->shape, n_tensors, err);
}

clv_code clv_module_reserve(const clv_module *m, clv_pool *pool, clv_err *err) {
  for (int i = 0; i < m->graph->n_nodes; i++)
    if (m->graph->nodes[i].op == CLV_OP_INPUT)
      CLV_TRY(reserve_value(m, &m->graph->nodes[i], pool, err));
  CLV_TRY(reserve_value(m, &m->graph->nodes[m->graph->output_node], pool, err));
  return clv_pool_reserve_packets(pool, m->o.max_calls_in_flight, err);
}

/* ---- plans of a module ----------------------------------------------------------------------- */

static clv_code make_plan(clv_module *m, const int64_t batch[CLV_MAX_INPUTS], bool is_training,
                          uint32_t input_grads, clv_plan **ret, clv_err *err) {
  /* no work of another call can run between a call's forward and backward */
  bool is_one_call_at_a_time = m->o.max_calls_in_flight <= 1;
  clv_plan_options po = {
      .backend = m->o.backend,
      .dtype = CLV_F32,
      .batch = batch[0],
      .training = is_training,
      .threads = m->o.threads,
      .bf16 = m->o.bf16,
      .tf32 = m->o.tf32,
      .split_backward = input_grads || !is_one_call_at_a_time,
      .transient_weights = (is_training && is_one_call_at_a_time) || m->shared_params,
      .recorder = m->recorder,
      .shared_params = m->shared_data};
  for (int i = 0; i < m->n_inputs; i++)
    po.needs_input_grad[i] = is_training && (input_grads >> i & 1);
  memcpy(po.batches, batch, sizeof po.batches);
  clv_plan *plan;
  /* the kernel library fixes its thread count when a plan is made */
  m->o.backend->set_threads(m->o.threads);
  CLV_TRY(clv_plan_new(m->graph, m->params, &po, &plan, err));
  const clv_plan_info *info = clv_plan_get_info(plan);
  size_t bytes =
      info->call_bytes + info->scratch_bytes + info->weight_cache_bytes + info->kernel_bytes;
  if (m->pool) { /* clv_module_call_get charges the plan later */
    m->bytes += bytes;
  } else if (charge_memory(m, bytes, err) != CLV_OK) {
    clv_plan_free(plan);
    return clv_err_prefix(err, "a batch of %lld", (long long)batch[0]);
  }
  *ret = plan;
  return CLV_OK;
}

/* Allocates the clv_calls of a plan for `n` calls in flight, so that no step has to allocate
 * one. */
static clv_code prepare_calls(clv_module *m, clv_plan *plan, uint32_t n, clv_err *err) {
  clv_call *call[CLV_WIRE_CONTRIBUTIONS];
  /* the first call is charged together with the plan */
  size_t call_bytes = clv_plan_get_info(plan)->call_bytes;
  if (charge_memory(m, (n - 1) * call_bytes, err) != CLV_OK)
    return clv_err_prefix(err, "%u call%s in flight", n, CLV_S(n));
  clv_code code = CLV_OK;
  uint32_t made = 0;
  while (made < n && code == CLV_OK) {
    code = clv_plan_call_get(plan, &call[made], err);
    made += code == CLV_OK;
  }
  for (uint32_t i = 0; i < made; i++) clv_plan_call_put(plan, call[i]);
  return code;
}

/* Frees a plan none of whose calls is in use. */
static void free_plan(clv_module *m, clv_module_plan *p) {
  clv_plan_free(p->plan);
  if (pool_to_charge(m)) clv_module_discharge(m, pool_to_charge(m), p->charged_bytes);
  m->charged_bytes -= p->charged_bytes;
  m->bytes -= p->bytes;
  *p = (clv_module_plan){0};
}

/* Returns an unused entry of the module's plans. If there is none, or MAX_IDLE_PLANS plans are
 * idle, frees the least recently used idle plan first. */
static clv_code find_plan_entry(clv_module *m, clv_module_plan **ret, clv_err *err) {
  clv_module_plan *oldest = NULL, *empty = NULL;
  int n_idle = 0;
  for (int i = 0; i < m->n_plans; i++) {
    clv_module_plan *p = &m->plans[i];
    if (!p->plan) empty = p;
    if (!p->plan || p->n_calls_in_use) continue;
    if (!oldest || p->last_used < oldest->last_used) oldest = p;
    n_idle++;
  }
  bool is_full = !empty && m->n_plans == MAX_PLANS;
  if (oldest && (is_full || (m->graph->has_per_input_batches && n_idle >= MAX_IDLE_PLANS))) {
    free_plan(m, oldest);
    empty = oldest;
  }
  if (!empty && m->n_plans < MAX_PLANS) empty = &m->plans[m->n_plans++];
  if (!empty)
    return clv_fail(err, CLV_EXHAUSTED, "module %u has calls of more than %d batch sizes",
                    m->o.index, MAX_PLANS);
  *ret = empty;
  return CLV_OK;
}

clv_code clv_module_plan_for(clv_module *m, const int64_t batch[CLV_MAX_INPUTS], bool is_training,
                             uint32_t input_grads, clv_module_plan **ret, clv_err *err) {
  clv_module_plan *entry = NULL;
  for (int i = 0; i < m->n_plans; i++) {
    clv_module_plan *p = &m->plans[i];
    bool has_same_batch = memcmp(p->batch, batch, (size_t)m->n_inputs * sizeof *batch) == 0;
    if (!p->plan || !has_same_batch || p->is_training != is_training ||
        p->input_grads != input_grads)
      continue;
    p->last_used = ++m->n_plan_uses;
    *ret = p;
    return CLV_OK;
  }
  CLV_TRY(find_plan_entry(m, &entry, err));
  size_t bytes = m->bytes, charged = m->charged_bytes;
  clv_module_plan made = {
      .is_training = is_training, .input_grads = input_grads, .last_used = ++m->n_plan_uses};
  memcpy(made.batch, batch, sizeof made.batch);
  CLV_TRY(make_plan(m, batch, is_training, input_grads, &made.plan, err));
  /* the plan is made during clv_module_new: clv_node_add_module charges its bytes */
  if (!m->pool) {
    made.is_charged = true;
    made.n_calls = is_training ? CLV_MAX(m->o.max_calls_in_flight, 1u) : 1;
    clv_code code = prepare_calls(m, made.plan, made.n_calls, err);
    if (code != CLV_OK) {
      clv_plan_free(made.plan);
      return code;
    }
  }
  made.bytes = m->bytes - bytes;
  made.charged_bytes = m->pool || m->o.pool ? m->charged_bytes - charged : made.bytes;
  *entry = made;
  *ret = entry;
  return CLV_OK;
}

clv_code clv_module_call_get(clv_module *m, clv_module_plan *p, clv_call **ret, clv_err *err) {
  const clv_plan_info *info = clv_plan_get_info(p->plan);
  size_t bytes =
      p->is_charged ? 0 : info->scratch_bytes + info->weight_cache_bytes + info->kernel_bytes;
  bool needs_new_call = p->n_calls_in_use == p->n_calls;
  if (needs_new_call) bytes += info->call_bytes;
  if (bytes) CLV_TRY(clv_module_charge(m, m->pool, bytes, err));
  clv_code code = clv_plan_call_get(p->plan, ret, err);
  if (code != CLV_OK) {
    clv_module_discharge(m, m->pool, bytes);
    return code;
  }
  m->charged_bytes += bytes;
  p->charged_bytes += bytes;
  p->is_charged = true;
  p->n_calls += needs_new_call;
  p->n_calls_in_use++;
  return CLV_OK;
}

void clv_module_call_put(clv_module_plan *p, clv_call *call) {
  if (!call) return;
  clv_plan_call_put(p->plan, call);
  p->n_calls_in_use--;
}

/* ---- snapshots of parameters and moments ----------------------------------------------------- */

clv_code clv_module_prepare_snapshot(clv_module *m, clv_err *err) {
  if (m->snapshot || !m->optim || m->o.has_no_revert) return CLV_OK;
  size_t blocks = 1 + (size_t)clv_optim_n_moments(m->optim);
  return clv_module_alloc_block(m, blocks * m->params->trainable_bytes, &m->charged_on_device,
                                &m->snapshot, err);
}

/* Copies parameters, moments and the step count to the snapshot (is_save), or back from it. */
static void copy_snapshot_state(clv_module *m, bool is_save) {
  size_t bytes = m->params->trainable_bytes;
  char *at = m->snapshot->data;
  for (int i = -1; i < clv_optim_n_moments(m->optim); i++, at += bytes) {
    void *block = i < 0 ? m->block : (void *)clv_optim_moment(m->optim, i);
    clv_module_copy_bytes(m, is_save ? at : block, is_save ? block : at, bytes);
  }
  int64_t *count = clv_optim_step_count(m->optim);
  *(is_save ? &m->snapshot_steps : count) = *(is_save ? count : &m->snapshot_steps);
}

void clv_module_take_snapshot(clv_module *m) { copy_snapshot_state(m, true); }

void clv_module_save_buffers(clv_module *m) {
  clv_module_copy_bytes(m, m->saved_buffers, (char *)m->block + m->params->buffer_offset,
                        clv_module_buffer_bytes(m));
}

void clv_module_restore_buffers(clv_module *m) {
  clv_module_copy_bytes(m, (char *)m->block + m->params->buffer_offset, m->saved_buffers,
                        clv_module_buffer_bytes(m));
}

void clv_module_restore_snapshot(clv_module *m) {
  copy_snapshot_state(m, false);
  m->version++;
}

clv_code clv_module_warm_up(clv_module *m, int64_t batch, clv_err *err) {
  clv_module_plan *p;
  int64_t n[CLV_MAX_INPUTS] = {0};
  for (int i = 0, input = 0; i < m->graph->n_nodes; i++)
    if (m->graph->nodes[i].op == CLV_OP_INPUT)
      n[input++] = m->graph->has_per_input_batches ? m->graph->nodes[i].shape.dim[0] : batch;
  return clv_module_plan_for(m, n, true, m->o.input_needs_grad, &p, err);
}
