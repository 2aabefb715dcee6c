/* SPDX-License-Identifier: Apache-2.0 */
#include "common/engine/module_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t clv_module_buffer_bytes(const clv_module *m) {
  return m->params->total_bytes - m->params->buffer_offset;
}

/* Memory that is about to be taken, or with what a library sizes has just been. */
static clv_code count(clv_module *m, size_t bytes, clv_err *err) {
  if (m->o.pool && clv_module_charge(m, m->o.pool, bytes, err) != CLV_OK)
    return clv_err_prefix(err, "module %u", m->o.index);
  if (m->o.pool) m->charged += bytes;
  m->bytes += bytes;
  return CLV_OK;
}

static clv_code mark_frozen(clv_module *m, const clv_module_options *o, clv_err *err) {
  for (uint32_t i = 0; i < o->n_frozen; i++) {
    clv_param *p = (clv_param *)clv_params_find(m->params, o->frozen[i]);
    if (!p) return clv_fail(err, CLV_NOT_FOUND, "no parameter '%s' to freeze", o->frozen[i]);
    p->frozen = true;
  }
  return CLV_OK;
}

static clv_code mark_lent(clv_module *m, const clv_module_options *o, clv_err *err) {
  for (uint32_t i = 0; i < o->n_lent; i++) {
    clv_param *p = (clv_param *)clv_params_find(m->params, o->lent[i]);
    if (!p || !p->frozen || !o->fixed)
      return clv_fail(err, CLV_INVALID, "'%s' of module %u cannot be lent to it", o->lent[i],
                      m->o.index);
    p->is_shared = true;
  }
  if (!o->n_lent) return CLV_OK;
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof(clv_tensor *), &m->lent, err));
  return clv_alloc((size_t)m->params->n, sizeof(void *), &m->lent_at, err);
}

static clv_code find_learning(clv_module *m, clv_err *err) {
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *m->learning, &m->learning, err));
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *m->sums, &m->sums, err));
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (p->trainable && !p->frozen)
      m->learning[m->n_learning++] = (clv_extent){p->offset / sizeof(float), p->n};
  }
  return CLV_OK;
}

/* The parameters that group `number` names. of: [params->n] the group of each, 0: not named. */
static clv_code mark_group(const clv_module *m, const clv_module_group *g, uint8_t number,
                           uint8_t *of, clv_err *err) {
  for (uint32_t i = 0; i < g->n_params; i++) {
    const clv_param *p = clv_params_find(m->params, g->params[i]);
    if (!p)
      return clv_fail(err, CLV_NOT_FOUND, "no parameter '%s' for group %u", g->params[i], number);
    if (!p->trainable || p->frozen)
      return clv_fail(err, CLV_INVALID, "parameter '%s' of group %u does not learn", p->name,
                      number);
    uint8_t *mark = &of[p - m->params->list];
    if (*mark)
      return clv_fail(err, CLV_EXISTS, "parameter '%s' is in groups %u and %u", p->name, *mark,
                      number);
    *mark = number;
  }
  return CLV_OK;
}

/* The spans that learn, with their groups. */
static clv_code find_spans(const clv_module *m, const clv_module_options *o, clv_optim_span *spans,
                           size_t *ret_n, clv_err *err) {
  CLV_AUTO(clv_freep) uint8_t *of = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc((size_t)m->params->n, sizeof *of, &of, err));
  for (uint32_t i = 0; i < o->n_groups; i++)
    CLV_TRY(mark_group(m, &o->groups[i], (uint8_t)(i + 1), of, err));
  for (int i = 0; i < m->params->n; i++) {
    const clv_param *p = &m->params->list[i];
    if (p->trainable && !p->frozen && (of[i] || !o->hold_rest))
      spans[n++] = (clv_optim_span){p->offset, p->n, of[i]};
  }
  *ret_n = n;
  return CLV_OK;
}

static clv_code make_optimizer(clv_module *m, const clv_module_options *o, clv_err *err) {
  if (!o->learns || !m->params->trainable_bytes) return CLV_OK;
  CLV_AUTO(clv_freep) clv_optim_span *spans = NULL;
  clv_optim_config groups[CLV_OPTIM_MAX_GROUPS] = {o->optimizer};
  size_t n;
  if (o->n_groups > CLV_WIRE_GROUPS)
    return clv_fail(err, CLV_INVALID, "%u groups beside the first; at most %d", o->n_groups,
                    CLV_WIRE_GROUPS);
  for (uint32_t i = 0; i < o->n_groups; i++) groups[i + 1] = o->groups[i].optimizer;
  CLV_TRY(clv_alloc(m->n_learning, sizeof *spans, &spans, err));
  CLV_TRY(find_spans(m, o, spans, &n, err));
  return clv_optim_new(groups, 1 + o->n_groups, m->params->trainable_bytes, spans, n, m->o.backend,
                       &m->optim, err);
}

static size_t moment_bytes(const clv_module *m, const clv_module_options *o) {
  if (!o->learns) return 0;
  uint32_t moments = clv_optim_moments_of(&o->optimizer);
  for (uint32_t i = 0; i < CLV_MIN(o->n_groups, (uint32_t)CLV_WIRE_GROUPS); i++)
    moments |= clv_optim_moments_of(&o->groups[i].optimizer);
  return (size_t)clv_optim_count_moments(moments) * m->params->trainable_bytes;
}

/* All that shapes tell is charged before the first byte of it is taken: what does not fit costs its
 * host nothing. */
static clv_code charge_ahead(clv_module *m, const clv_module_options *o, clv_err *err) {
  size_t state = m->params->total_bytes + m->params->shared_bytes;
  if (state > SIZE_MAX / 8)
    return clv_fail(err, CLV_EXHAUSTED, "module %u: %zu bytes of parameters", m->o.index, state);
  CLV_TRY(count(m, state + clv_module_buffer_bytes(m) + moment_bytes(m, o), err));
  if (o->batch) CLV_TRY(clv_module_warm_up(m, o->batch, err));
  return clv_cancel_hook_check(o->waiter, err);
}

static clv_code take_memory(clv_module *m, clv_err *err) {
  const clv_backend *b = m->o.backend;
  CLV_TRY(clv_backend_take(b, m->params->total_bytes, &m->block, err));
  CLV_TRY(clv_backend_take(b, clv_module_buffer_bytes(m), &m->shadow, err));
  return clv_backend_fill(b, m->shadow, 0, clv_module_buffer_bytes(m), err);
}

/* A device gets what the host has drawn. */
static clv_code init_params(clv_module *m, const clv_cancel_hook *waiter, clv_err *err) {
  const clv_backend *b = m->o.backend;
  CLV_AUTO(clv_freep) void *drawn = NULL;
  if (!b->memory) return clv_params_init_cancellable(waiter, m->graph, m->params, m->block, err);
  CLV_TRY(clv_alloc_aligned(m->params->total_bytes, &drawn, err));
  CLV_TRY(clv_params_init_cancellable(waiter, m->graph, m->params, drawn, err));
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

static clv_pool *payer(const clv_module *m) { return m->o.pool ? m->o.pool : m->pool; }

static clv_code charge_record(void *user, size_t bytes, clv_err *err) {
  const clv_module *m = user;
  return payer(m) ? clv_module_charge(m, payer(m), bytes, err) : CLV_OK;
}

static void discharge_record(void *user, size_t bytes) {
  const clv_module *m = user;
  if (payer(m)) clv_module_discharge(m, payer(m), bytes);
}

static clv_code open_records(clv_module *m, clv_err *err) {
  const clv_record_account account = {m, charge_record, discharge_record};
  CLV_TRY(clv_recorder_new(m->o.backend, &m->records, err));
  clv_recorder_charge(m->records, &account);
  return CLV_OK;
}

/* ---- what is lent ---------------------------------------------------------------------------- */

/* Whether the module's kernels can read it where it is. */
static bool is_in_reach(const clv_module *m, const clv_tensor *t) {
  const clv_backend *b = m->o.backend;
  return b->memory ? t->home && strcmp(t->home->device, b->device) == 0 : !t->home;
}

clv_code clv_module_set_shared_param(clv_module *m, const char *param, clv_tensor *t,
                                     clv_err *err) {
  const clv_param *p = clv_params_find(m->params, param);
  if (!p || !p->is_shared || t->dtype != p->dtype || !clv_shape_equal(&t->shape, &p->shape) ||
      !is_in_reach(m, t))
    return clv_fail(err, CLV_INVALID, "module %u is lent another '%s'", m->o.index, param);
  size_t i = (size_t)(p - m->params->list);
  if (m->lent[i]) return clv_fail(err, CLV_EXISTS, "module %u has '%s'", m->o.index, param);
  m->lent[i] = clv_tensor_ref(t);
  m->lent_at[i] = t->data;
  return CLV_OK;
}

clv_code clv_module_check_complete(const clv_module *m, clv_err *err) {
  for (int i = 0; i < m->params->n; i++)
    if (m->params->list[i].is_shared && !m->lent[i])
      return clv_fail(err, CLV_INTERNAL, "module %u was lent no '%s'", m->o.index,
                      m->params->list[i].name);
  return CLV_OK;
}

/* What the module's backend still reads there is read before it goes. */
static void return_lent(clv_module *m) {
  clv_err why;
  if (!m->lent) return;
  (void)!clv_backend_finish(m->o.backend, &why);
  for (int i = 0; i < m->params->n; i++) clv_tensor_unref(m->lent[i]);
  free(m->lent);
  free(m->lent_at);
}

static clv_code module_fill(clv_module *m, const clv_module_options *o, clv_err *err) {
  CLV_TRY(open_records(m, err));
  CLV_TRY(count_inputs(m, err));
  CLV_TRY(clv_params_of(m->graph, &m->params, err));
  CLV_TRY(mark_frozen(m, o, err));
  CLV_TRY(mark_lent(m, o, err));
  if (o->fixed && o->frozen_bf16) clv_params_frozen_to_bf16(m->graph, m->params);
  if (o->fixed) clv_params_fix_frozen(m->params);
  CLV_TRY(clv_module_resolve_ties(m, o, err));
  CLV_TRY(find_learning(m, err));
  CLV_TRY(charge_ahead(m, o, err));
  CLV_TRY(take_memory(m, err));
  CLV_TRY(init_params(m, o->waiter, err));
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
  m->o.frozen = m->o.lent = NULL; /* the caller's lists, not kept */
  m->o.groups = NULL;
  m->o.waiter = NULL;
  m->o.ties = NULL;
  m->o.name = NULL;
  m->o.device = NULL;
  snprintf(m->name, sizeof m->name, "%s", o->name ? o->name : "");
  snprintf(m->device, sizeof m->device, "%s", o->device ? o->device : o->backend->device);
  m->graph = o->graph;
  m->o.backend = NULL;
  code = clv_backend_branch(o->backend, &m->o.backend, err);
  if (code == CLV_OK) code = module_fill(m, o, err);
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
  clv_recorder_free(m->records);
  clv_tensor_unref(m->snapshot);
  clv_module_uncharge_tensors(m, &m->on_device);
  clv_module_blocks_done(m);
  clv_optim_free(m->optim);
  if (m->block) clv_backend_give(m->o.backend, m->block);
  if (m->shadow) clv_backend_give(m->o.backend, m->shadow);
  return_lent(m);
  free(m->withheld);
  if (m->params) clv_module_unpin_owners(m);
  free(m->learning);
  free(m->sums);
  clv_params_free(m->params);
  clv_graph_free(m->graph);
  if (payer(m)) clv_module_discharge(m, payer(m), m->charged);
  clv_backend_drop(m->o.backend);
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
  clv_recorder_count(m->records, &r);
  *ret = (clv_module_counts){.device_bytes = __atomic_load_n(&c->device_bytes, __ATOMIC_RELAXED),
                             .peer_bytes = __atomic_load_n(&c->peer_bytes, __ATOMIC_RELAXED),
                             .host_bytes = __atomic_load_n(&c->host_bytes, __ATOMIC_RELAXED),
                             .forwards = __atomic_load_n(&c->forwards, __ATOMIC_RELAXED),
                             .backwards = __atomic_load_n(&c->backwards, __ATOMIC_RELAXED),
                             .evals = __atomic_load_n(&c->evals, __ATOMIC_RELAXED),
                             .steps = __atomic_load_n(&m->steps, __ATOMIC_RELAXED),
                             .stepped = __atomic_load_n(&c->stepped, __ATOMIC_RELAXED),
                             .compute_ns = __atomic_load_n(&c->compute_ns, __ATOMIC_RELAXED),
                             .replays = r.replays,
                             .not_recorded = r.refused,
                             .most_versions = __atomic_load_n(&c->most_versions, __ATOMIC_RELAXED)};
}

uint32_t clv_module_index(const clv_module *m) { return m->o.index; }
const char *clv_module_device(const clv_module *m) { return m->device; }
const clv_graph *clv_module_graph(const clv_module *m) { return m->graph; }
const clv_params *clv_module_params(const clv_module *m) { return m->params; }
size_t clv_module_bytes(const clv_module *m) { return m->bytes; }

static clv_code reserve_value(const clv_module *m, const clv_node *n, clv_pool *pool,
                              clv_err *err) {
  uint32_t most = CLV_MIN(2 * m->o.in_flight + 2, 64u); /* beyond that, growth is rare */
  return clv_pool_reserve(pool, n->dtype, &n->shape, most, err);
}

clv_code clv_module_reserve(const clv_module *m, clv_pool *pool, clv_err *err) {
  for (int i = 0; i < m->graph->n_nodes; i++)
    if (m->graph->nodes[i].op == CLV_OP_INPUT)
      CLV_TRY(reserve_value(m, &m->graph->nodes[i], pool, err));
  CLV_TRY(reserve_value(m, &m->graph->nodes[m->graph->output], pool, err));
  return clv_pool_reserve_packets(pool, m->o.in_flight, err);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static clv_code make_plan(clv_module *m, const int64_t batch[CLV_MAX_INPUTS], bool training,
                          uint32_t input_grads, clv_plan **ret, clv_err *err) {
  bool alone = m->o.in_flight <= 1; /* no other call's work to put between */
  clv_plan_options po = {.backend = m->o.backend,
                         .dtype = CLV_F32,
                         .batch = batch[0],
                         .training = training,
                         .threads = m->o.threads,
                         .bf16 = m->o.bf16,
                         .tf32 = m->o.tf32,
                         .split_backward = input_grads || !alone,
                         .transient_weights = (training && alone) || m->lent,
                         .records = m->records,
                         .shared_params = m->lent_at};
  for (int i = 0; i < m->n_inputs; i++) po.need_input_grad[i] = training && (input_grads >> i & 1);
  memcpy(po.batches, batch, sizeof po.batches);
  clv_plan *plan;
  m->o.backend->set_threads(m->o.threads); /* the library fixes its thread count when it plans */
  CLV_TRY(clv_plan_new(m->graph, m->params, &po, &plan, err));
  const clv_plan_info *info = clv_plan_get_info(plan);
  size_t bytes = info->call_bytes + info->scratch_bytes + info->cache_bytes + info->kernel_bytes;
  if (m->pool) { /* charged by clv_module_call_get */
    m->bytes += bytes;
  } else if (count(m, bytes, err) != CLV_OK) {
    clv_plan_free(plan);
    return clv_err_prefix(err, "a batch of %lld", (long long)batch[0]);
  }
  *ret = plan;
  return CLV_OK;
}

/* As many calls as may be in flight at once, so that none is made in the middle of a step. */
static clv_code prepare_calls(clv_module *m, clv_plan *plan, uint32_t n, clv_err *err) {
  clv_call *call[CLV_WIRE_CONTRIBUTIONS];
  size_t each = clv_plan_get_info(plan)->call_bytes; /* one is counted with the plan */
  if (count(m, (n - 1) * each, err) != CLV_OK)
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

/* No call of it is under way. */
static void forget_plan(clv_module *m, clv_module_plan *p) {
  clv_plan_free(p->plan);
  if (payer(m)) clv_module_discharge(m, payer(m), p->paid);
  m->charged -= p->paid;
  m->bytes -= p->bytes;
  *p = (clv_module_plan){0};
}

/* A free one; where there is none, or enough are kept, the idle one that was used longest ago. */
static clv_code place_for_plan(clv_module *m, clv_module_plan **ret, clv_err *err) {
  clv_module_plan *oldest = NULL, *empty = NULL;
  int idle = 0;
  for (int i = 0; i < m->n_plans; i++) {
    clv_module_plan *p = &m->plans[i];
    if (!p->plan) empty = p;
    if (!p->plan || p->calls_out) continue;
    if (!oldest || p->used < oldest->used) oldest = p;
    idle++;
  }
  bool full = !empty && m->n_plans == MAX_PLANS;
  if (oldest && (full || (m->graph->has_per_input_batches && idle >= KEPT_PLANS))) {
    forget_plan(m, oldest);
    empty = oldest;
  }
  if (!empty && m->n_plans < MAX_PLANS) empty = &m->plans[m->n_plans++];
  if (!empty)
    return clv_fail(err, CLV_EXHAUSTED, "module %u has calls of more than %d batch sizes",
                    m->o.index, MAX_PLANS);
  *ret = empty;
  return CLV_OK;
}

clv_code clv_module_plan_for(clv_module *m, const int64_t batch[CLV_MAX_INPUTS], bool training,
                             uint32_t input_grads, clv_module_plan **ret, clv_err *err) {
  clv_module_plan *place = NULL;
  for (int i = 0; i < m->n_plans; i++) {
    clv_module_plan *p = &m->plans[i];
    bool sizes = memcmp(p->batch, batch, (size_t)m->n_inputs * sizeof *batch) == 0;
    if (!p->plan || !sizes || p->training != training || p->input_grads != input_grads) continue;
    p->used = ++m->plan_uses;
    *ret = p;
    return CLV_OK;
  }
  CLV_TRY(place_for_plan(m, &place, err));
  size_t bytes = m->bytes, charged = m->charged;
  clv_module_plan made = {.training = training, .input_grads = input_grads, .used = ++m->plan_uses};
  memcpy(made.batch, batch, sizeof made.batch);
  CLV_TRY(make_plan(m, batch, training, input_grads, &made.plan, err));
  if (!m->pool) { /* made while the module is: whoever adds it to a session counts its bytes */
    made.charged = true;
    made.calls = training ? CLV_MAX(m->o.in_flight, 1u) : 1;
    clv_code code = prepare_calls(m, made.plan, made.calls, err);
    if (code != CLV_OK) {
      clv_plan_free(made.plan);
      return code;
    }
  }
  made.bytes = m->bytes - bytes;
  made.paid = m->pool || m->o.pool ? m->charged - charged : made.bytes;
  *place = made;
  *ret = place;
  return CLV_OK;
}

clv_code clv_module_call_get(clv_module *m, clv_module_plan *p, clv_call **ret, clv_err *err) {
  const clv_plan_info *info = clv_plan_get_info(p->plan);
  size_t bytes = p->charged ? 0 : info->scratch_bytes + info->cache_bytes + info->kernel_bytes;
  bool more = p->calls_out == p->calls;
  if (more) bytes += info->call_bytes;
  if (bytes) CLV_TRY(clv_module_charge(m, m->pool, bytes, err));
  clv_code code = clv_plan_call_get(p->plan, ret, err);
  if (code != CLV_OK) {
    clv_module_discharge(m, m->pool, bytes);
    return code;
  }
  m->charged += bytes;
  p->paid += bytes;
  p->charged = true;
  p->calls += more;
  p->calls_out++;
  return CLV_OK;
}

void clv_module_call_put(clv_module_plan *p, clv_call *call) {
  if (!call) return;
  clv_plan_call_put(p->plan, call);
  p->calls_out--;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

clv_code clv_module_prepare_snapshot(clv_module *m, clv_err *err) {
  if (m->snapshot || !m->optim || m->o.final) return CLV_OK;
  size_t blocks = 1 + (size_t)clv_optim_n_moments(m->optim);
  return clv_module_block(m, blocks * m->params->trainable_bytes, &m->on_device, &m->snapshot, err);
}

/* Parameters, then each moment, and the step counter: one copy in one direction. */
static void copy_state(clv_module *m, bool save) {
  size_t bytes = m->params->trainable_bytes;
  char *at = m->snapshot->data;
  for (int i = -1; i < clv_optim_n_moments(m->optim); i++, at += bytes) {
    void *block = i < 0 ? m->block : (void *)clv_optim_moment(m->optim, i);
    clv_module_copy(m, save ? at : block, save ? block : at, bytes);
  }
  int64_t *count = clv_optim_step_count(m->optim);
  *(save ? &m->snapshot_steps : count) = *(save ? count : &m->snapshot_steps);
}

void clv_module_take_snapshot(clv_module *m) { copy_state(m, true); }

void clv_module_save_buffers(clv_module *m) {
  clv_module_copy(m, m->shadow, (char *)m->block + m->params->buffer_offset,
                  clv_module_buffer_bytes(m));
}

void clv_module_restore_buffers(clv_module *m) {
  clv_module_copy(m, (char *)m->block + m->params->buffer_offset, m->shadow,
                  clv_module_buffer_bytes(m));
}

void clv_module_restore_snapshot(clv_module *m) {
  copy_state(m, false);
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
