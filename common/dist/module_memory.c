/* SPDX-License-Identifier: Apache-2.0 */
#include "common/dist/module_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t clv_module_buffer_bytes(const clv_module *s) {
  return s->params->total_bytes - s->params->trainable_bytes;
}

/* Memory that is about to be taken, or with what a library sizes has just been. */
static clv_code count(clv_module *s, size_t bytes, clv_err *err) {
  if (s->o.pool && clv_pool_charge(s->o.pool, bytes, err) != CLV_OK)
    return clv_err_prefix(err, "module %u", s->o.index);
  if (s->o.pool) s->charged += bytes;
  s->bytes += bytes;
  return CLV_OK;
}

static clv_code take_block(clv_module *s, size_t bytes, void *ret_pp, clv_err *err) {
  CLV_TRY(count(s, bytes, err));
  CLV_TRY(clv_alloc_aligned(bytes, ret_pp, err));
  memset(*(void **)ret_pp, 0, bytes);
  return CLV_OK;
}

static clv_code mark_frozen(clv_module *s, const clv_module_options *o, clv_err *err) {
  for (uint32_t i = 0; i < o->n_frozen; i++) {
    clv_param *p = (clv_param *)clv_params_find(s->params, o->frozen[i]);
    if (!p) return clv_fail(err, CLV_NOT_FOUND, "no parameter '%s' to freeze", o->frozen[i]);
    p->frozen = true;
  }
  for (int i = 0; i < s->params->n; i++)
    s->n_learning += s->params->list[i].trainable && !s->params->list[i].frozen;
  return CLV_OK;
}

/* The parameters that group `number` names. of: [params->n] the group of each, 0: not named. */
static clv_code mark_group(const clv_module *s, const clv_module_group *g, uint8_t number,
                           uint8_t *of, clv_err *err) {
  for (uint32_t i = 0; i < g->n_params; i++) {
    const clv_param *p = clv_params_find(s->params, g->params[i]);
    if (!p)
      return clv_fail(err, CLV_NOT_FOUND, "no parameter '%s' for group %u", g->params[i], number);
    if (!p->trainable || p->frozen)
      return clv_fail(err, CLV_INVALID, "parameter '%s' of group %u does not learn", p->name,
                      number);
    uint8_t *mark = &of[p - s->params->list];
    if (*mark)
      return clv_fail(err, CLV_EXISTS, "parameter '%s' is in groups %u and %u", p->name, *mark,
                      number);
    *mark = number;
  }
  return CLV_OK;
}

/* The spans that learn, with their groups. */
static clv_code find_spans(const clv_module *s, const clv_module_options *o, clv_optim_span *spans,
                           size_t *ret_n, clv_err *err) {
  CLV_AUTO(clv_freep) uint8_t *of = NULL;
  size_t n = 0;
  CLV_TRY(clv_alloc((size_t)s->params->n, sizeof *of, &of, err));
  for (uint32_t i = 0; i < o->n_groups; i++)
    CLV_TRY(mark_group(s, &o->groups[i], (uint8_t)(i + 1), of, err));
  for (int i = 0; i < s->params->n; i++) {
    const clv_param *p = &s->params->list[i];
    if (p->trainable && !p->frozen && (of[i] || !o->hold_rest))
      spans[n++] = (clv_optim_span){p->offset, p->n, of[i]};
  }
  *ret_n = n;
  return CLV_OK;
}

static clv_code make_optimizer(clv_module *s, const clv_module_options *o, clv_err *err) {
  if (!o->learns || !s->n_learning) return CLV_OK;
  CLV_AUTO(clv_freep) clv_optim_span *spans = NULL;
  clv_optim_config groups[CLV_OPTIM_MAX_GROUPS] = {o->optimizer};
  size_t n;
  if (o->n_groups > CLV_WIRE_GROUPS)
    return clv_fail(err, CLV_INVALID, "%u groups beside the first; at most %d", o->n_groups,
                    CLV_WIRE_GROUPS);
  for (uint32_t i = 0; i < o->n_groups; i++) groups[i + 1] = o->groups[i].optimizer;
  CLV_TRY(clv_alloc(s->n_learning, sizeof *spans, &spans, err));
  CLV_TRY(find_spans(s, o, spans, &n, err));
  CLV_TRY(clv_optim_new(groups, 1 + o->n_groups, s->params->trainable_bytes, spans, n, o->backend,
                        &s->optim, err));
  return count(s, (size_t)clv_optim_n_moments(s->optim) * s->params->trainable_bytes, err);
}

static clv_code count_inputs(clv_module *s, clv_err *err) {
  for (int i = 0; i < s->graph->n_nodes; i++) {
    if (s->graph->nodes[i].op != CLV_OP_INPUT) continue;
    if (s->n_inputs == CLV_MAX_INPUTS)
      return clv_fail(err, CLV_INVALID, "module %u has more than %d inputs", s->o.index,
                      CLV_MAX_INPUTS);
    s->in_dtype[s->n_inputs++] = s->graph->nodes[i].dtype;
  }
  if (!s->n_inputs) return clv_fail(err, CLV_INVALID, "module %u has no input", s->o.index);
  return CLV_OK;
}

static clv_code module_fill(clv_module *s, const clv_module_options *o, clv_err *err) {
  CLV_TRY(count_inputs(s, err));
  CLV_TRY(clv_params_of(s->graph, &s->params, err));
  CLV_TRY(mark_frozen(s, o, err));
  CLV_TRY(take_block(s, s->params->total_bytes, &s->block, err));
  CLV_TRY(take_block(s, clv_module_buffer_bytes(s), &s->shadow, err));
  CLV_TRY(make_optimizer(s, o, err));
  clv_params_init(s->graph, s->params, o->seed, s->block);
  s->version = 1;
  return CLV_OK;
}

clv_code clv_module_new(const clv_module_options *o, clv_module **ret, clv_err *err) {
  clv_module *s;
  clv_code code = clv_alloc(1, sizeof *s, &s, err);
  if (code != CLV_OK) {
    clv_graph_free(o->graph);
    return code;
  }
  s->o = *o;
  s->o.frozen = NULL; /* the caller's lists, not kept */
  s->o.groups = NULL;
  s->o.name = NULL;
  snprintf(s->name, sizeof s->name, "%s", o->name ? o->name : "");
  s->graph = o->graph;
  code = module_fill(s, o, err);
  if (code != CLV_OK) {
    clv_module_free(s);
    return code;
  }
  *ret = s;
  return CLV_OK;
}

void clv_module_free(clv_module *s) {
  if (!s) return;
  for (int i = 0; i < s->n_plans; i++) clv_plan_free(s->plans[i].plan);
  clv_tensor_unref(s->snapshot);
  clv_optim_free(s->optim);
  free(s->block);
  free(s->shadow);
  clv_params_free(s->params);
  clv_graph_free(s->graph);
  if (s->o.pool) clv_pool_discharge(s->o.pool, s->charged);
  free(s);
}

void clv_module_freep(clv_module **s) {
  clv_module_free(*s);
  *s = NULL;
}

void clv_module_bind(clv_module *s, clv_pool *pool) { s->pool = pool; }

const char *clv_module_name(const clv_module *s) { return s->name; }

void clv_module_count(const clv_module *s, clv_module_counts *ret) {
  const clv_module_counts *c = &s->counts;
  *ret = (clv_module_counts){.forwards = __atomic_load_n(&c->forwards, __ATOMIC_RELAXED),
                             .backwards = __atomic_load_n(&c->backwards, __ATOMIC_RELAXED),
                             .evals = __atomic_load_n(&c->evals, __ATOMIC_RELAXED),
                             .steps = __atomic_load_n(&s->steps, __ATOMIC_RELAXED),
                             .stepped = __atomic_load_n(&c->stepped, __ATOMIC_RELAXED),
                             .compute_ns = __atomic_load_n(&c->compute_ns, __ATOMIC_RELAXED),
                             .most_versions = __atomic_load_n(&c->most_versions, __ATOMIC_RELAXED)};
}

uint32_t clv_module_index(const clv_module *s) { return s->o.index; }
const clv_graph *clv_module_graph(const clv_module *s) { return s->graph; }
const clv_params *clv_module_params(const clv_module *s) { return s->params; }
size_t clv_module_bytes(const clv_module *s) { return s->bytes; }

static clv_code reserve_value(const clv_module *s, const clv_node *n, clv_pool *pool,
                              clv_err *err) {
  uint32_t most = CLV_MIN(2 * s->o.in_flight + 2, 64u); /* beyond that, growth is rare */
  return clv_pool_reserve(pool, n->dtype, &n->shape, most, err);
}

clv_code clv_module_reserve(const clv_module *s, clv_pool *pool, clv_err *err) {
  for (int i = 0; i < s->graph->n_nodes; i++)
    if (s->graph->nodes[i].op == CLV_OP_INPUT)
      CLV_TRY(reserve_value(s, &s->graph->nodes[i], pool, err));
  CLV_TRY(reserve_value(s, &s->graph->nodes[s->graph->output], pool, err));
  return clv_pool_reserve_packets(pool, s->o.in_flight, err);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static clv_code make_plan(clv_module *s, int64_t batch, bool training, uint32_t input_grads,
                          clv_plan **ret, clv_err *err) {
  bool alone = s->o.in_flight <= 1; /* no other call's work to put between */
  clv_plan_options po = {.backend = s->o.backend,
                         .dtype = CLV_F32,
                         .batch = batch,
                         .training = training,
                         .threads = s->o.threads,
                         .bf16 = s->o.bf16,
                         .split_backward = input_grads || !alone,
                         .transient_weights = training && alone};
  for (int i = 0; i < s->n_inputs; i++) po.need_input_grad[i] = training && (input_grads >> i & 1);
  clv_plan *plan;
  s->o.backend->set_threads(s->o.threads); /* the library fixes its thread count when it plans */
  CLV_TRY(clv_plan_new(s->graph, s->params, &po, &plan, err));
  const clv_plan_info *info = clv_plan_get_info(plan);
  size_t bytes = info->call_bytes + info->scratch_bytes + info->cache_bytes;
  if (s->pool) { /* charged by clv_module_call_get */
    s->bytes += bytes;
  } else if (count(s, bytes, err) != CLV_OK) {
    clv_plan_free(plan);
    return clv_err_prefix(err, "a batch of %lld", (long long)batch);
  }
  *ret = plan;
  return CLV_OK;
}

/* As many calls as may be in flight at once, so that none is made in the middle of a step. */
static clv_code prepare_calls(clv_module *s, clv_plan *plan, uint32_t n, clv_err *err) {
  clv_call *call[CLV_WIRE_CONTRIBUTIONS];
  size_t each = clv_plan_get_info(plan)->call_bytes; /* one is counted with the plan */
  if (count(s, (n - 1) * each, err) != CLV_OK)
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

clv_code clv_module_plan_for(clv_module *s, int64_t batch, bool training, uint32_t input_grads,
                             module_plan **ret, clv_err *err) {
  for (int i = 0; i < s->n_plans; i++) {
    module_plan *p = &s->plans[i];
    if (p->batch != batch || p->training != training || p->input_grads != input_grads) continue;
    *ret = p;
    return CLV_OK;
  }
  if (s->n_plans == MAX_PLANS)
    return clv_fail(err, CLV_EXHAUSTED, "module %u has seen more than %d batch sizes", s->o.index,
                    MAX_PLANS);
  module_plan made = {.batch = batch, .training = training, .input_grads = input_grads};
  CLV_TRY(make_plan(s, batch, training, input_grads, &made.plan, err));
  if (!s->pool) { /* made while the module is: whoever adds it to a session counts its bytes */
    made.charged = true;
    made.calls = training ? CLV_MAX(s->o.in_flight, 1u) : 1;
    clv_code code = prepare_calls(s, made.plan, made.calls, err);
    if (code != CLV_OK) {
      clv_plan_free(made.plan);
      return code;
    }
  }
  s->plans[s->n_plans] = made;
  *ret = &s->plans[s->n_plans++];
  return CLV_OK;
}

clv_code clv_module_call_get(clv_module *s, module_plan *p, clv_call **ret, clv_err *err) {
  const clv_plan_info *info = clv_plan_get_info(p->plan);
  size_t bytes = p->charged ? 0 : info->scratch_bytes + info->cache_bytes;
  bool more = p->calls_out == p->calls;
  if (more) bytes += info->call_bytes;
  if (bytes) CLV_TRY(clv_pool_charge(s->pool, bytes, err));
  clv_code code = clv_plan_call_get(p->plan, ret, err);
  if (code != CLV_OK) {
    clv_pool_discharge(s->pool, bytes);
    return code;
  }
  p->charged = true;
  p->calls += more;
  p->calls_out++;
  return CLV_OK;
}

void clv_module_call_put(module_plan *p, clv_call *call) {
  if (!call) return;
  clv_plan_call_put(p->plan, call);
  p->calls_out--;
}

/* ---- snapshots ------------------------------------------------------------------------------- */

clv_code clv_module_snapshot_ready(clv_module *s, clv_err *err) {
  if (s->snapshot || !s->optim || s->o.final) return CLV_OK;
  size_t blocks = 1 + (size_t)clv_optim_n_moments(s->optim);
  clv_shape shape = CLV_SHAPE((int64_t)(blocks * s->params->trainable_bytes + sizeof(int64_t)));
  return clv_pool_tensor(s->pool, CLV_U8, &shape, &s->snapshot, err);
}

/* Parameters, each moment, then the step counter: one copy in one direction. */
static void copy_state(clv_module *s, bool save) {
  size_t bytes = s->params->trainable_bytes;
  char *at = s->snapshot->data;
  for (int i = -1; i < clv_optim_n_moments(s->optim); i++, at += bytes) {
    void *block = i < 0 ? s->block : (void *)clv_optim_moment(s->optim, i);
    memcpy(save ? at : block, save ? block : at, bytes);
  }
  void *count = clv_optim_step_count(s->optim);
  memcpy(save ? at : count, save ? count : at, sizeof(int64_t));
}

void clv_module_snapshot(clv_module *s) { copy_state(s, true); }

void clv_module_keep_buffers(clv_module *s) {
  memcpy(s->shadow, (char *)s->block + s->params->trainable_bytes, clv_module_buffer_bytes(s));
}

void clv_module_restore_buffers(clv_module *s) {
  memcpy((char *)s->block + s->params->trainable_bytes, s->shadow, clv_module_buffer_bytes(s));
}

void clv_module_revert(clv_module *s) {
  copy_state(s, false);
  s->version++;
}

clv_code clv_module_warm(clv_module *s, int64_t batch, clv_err *err) {
  module_plan *p;
  return clv_module_plan_for(s, batch, true, s->o.input_needs_grad, &p, err);
}

/* ---- state by name --------------------------------------------------------------------------- */

static uint32_t n_trainable(const clv_module *s) {
  uint32_t n = 0;
  for (int i = 0; i < s->params->n; i++) n += s->params->list[i].trainable;
  return n;
}

uint32_t clv_module_state_count(const clv_module *s, clv_state_what what) {
  if (what == CLV_STATE_WEIGHTS) return (uint32_t)s->params->n;
  if (what != CLV_STATE_OPTIMIZER || !s->optim) return 0;
  return (uint32_t)clv_optim_n_moments(s->optim) * n_trainable(s) + 1;
}

static void weight_item(clv_module *s, uint32_t index, clv_state_item *ret) {
  const clv_param *p = &s->params->list[index];
  *ret = (clv_state_item){.dtype = p->dtype,
                          .shape = p->shape,
                          .bytes = p->bytes,
                          .data = (char *)s->block + p->offset};
  snprintf(ret->name, sizeof ret->name, "%s", p->name);
}

static void moment_item(clv_module *s, uint32_t index, clv_state_item *ret) {
  uint32_t moment = index / n_trainable(s), which = index % n_trainable(s);
  for (int i = 0; i < s->params->n; i++) {
    const clv_param *p = &s->params->list[i];
    if (!p->trainable || which-- != 0) continue;
    *ret = (clv_state_item){.dtype = CLV_F32,
                            .shape = p->shape,
                            .bytes = p->bytes,
                            .data = (char *)clv_optim_moment(s->optim, (int)moment) + p->offset};
    snprintf(ret->name, sizeof ret->name, "%s.%s", p->name,
             clv_optim_moment_name(s->optim, (int)moment));
    return;
  }
}

bool clv_module_state_item(clv_module *s, clv_state_what what, uint32_t index,
                           clv_state_item *ret) {
  uint32_t n = clv_module_state_count(s, what);
  if (index >= n) return false;
  if (what == CLV_STATE_WEIGHTS) {
    weight_item(s, index, ret);
  } else if (index + 1 < n) {
    moment_item(s, index, ret);
  } else {
    *ret = (clv_state_item){
        .name = "step", .dtype = CLV_I64, .bytes = 8, .data = clv_optim_step_count(s->optim)};
  }
  return true;
}

clv_code clv_module_state_set(clv_module *s, clv_state_what what, const char *name, clv_dtype dtype,
                              const clv_shape *shape, const void *data, clv_err *err) {
  clv_state_item item;
  for (uint32_t i = 0; clv_module_state_item(s, what, i, &item); i++) {
    if (strcmp(item.name, name) != 0) continue;
    if (item.dtype != dtype || !clv_shape_equal(&item.shape, shape)) {
      char want[160], got[160];
      return clv_fail(err, CLV_INVALID, "'%s' is %s %s here, the given one %s %s", name,
                      clv_dtype_name(item.dtype), clv_shape_format(&item.shape, want, sizeof want),
                      clv_dtype_name(dtype), clv_shape_format(shape, got, sizeof got));
    }
    memcpy(item.data, data, item.bytes);
    if (what == CLV_STATE_OPTIMIZER && strcmp(name, "step") == 0)
      __atomic_store_n(&s->steps, (uint64_t)CLV_MAX(*(int64_t *)item.data, 0), __ATOMIC_RELAXED);
    s->version++;
    return CLV_OK;
  }
  return clv_fail(err, CLV_NOT_FOUND, "module %u has no '%s'", s->o.index, name);
}
