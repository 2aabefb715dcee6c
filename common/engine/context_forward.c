/* SPDX-License-Identifier: Apache-2.0
 *
 * Work: the forward of a call. An error of the call becomes the failure of its value.
 */
#include "common/engine/context_int.h"

/* Returns the batch size of a call: the first dimension of its first input that is not a scalar; 1
 * if all are scalars. */
static int64_t get_batch_size(const clv_context_call *c) {
  for (uint32_t i = 0; i < c->n_in; i++)
    if (c->in[i]->shape.rank) return c->in[i]->shape.dim[0];
  return 1;
}

static clv_code check_input(const clv_context_call *c, uint32_t slot, const clv_node *node,
                            clv_err *err) {
  const clv_tensor *t = c->in[slot];
  clv_shape expected_shape = node->shape;
  bool has_batch = expected_shape.rank && t->shape.rank;
  if (has_batch) expected_shape.dim[0] = t->shape.dim[0];
  bool has_allowed_dtype =
      t->dtype == node->dtype || (t->dtype == CLV_BF16 && node->dtype == CLV_F32);
  if (!has_allowed_dtype || !clv_shape_equal(&expected_shape, &t->shape)) {
    char w[160], g[160];
    return clv_fail(err, CLV_INVALID, "module %u expects input %u as %s %s, got %s %s", c->module,
                    slot, clv_dtype_name(node->dtype),
                    clv_shape_format(&expected_shape, w, sizeof w), clv_dtype_name(t->dtype),
                    clv_shape_format(&t->shape, g, sizeof g));
  }
  if (c->mod->graph->has_per_input_batches)
    return CLV_OK; /* the ops of a graph that joins batches check which batch sizes must agree */
  if (has_batch && t->shape.dim[0] != get_batch_size(c))
    return clv_fail(err, CLV_INVALID, "module %u: input %u is a batch of %lld, others are of %lld",
                    c->module, slot, (long long)t->shape.dim[0], (long long)get_batch_size(c));
  return CLV_OK;
}

/* True if all receivers of the output can take it while it is copied from the device. */
static bool can_stream_output(const clv_contexts *e, const clv_context_call *c, clv_dtype dtype) {
  size_t bytes;
  if (!clv_module_can_copy_from(c->mod, c->mod)) return false;
  if (clv_shape_bytes(&c->out_shape, dtype, &bytes, NULL) != CLV_OK) return false;
  for (const clv_delivery *d = c->out->deliveries; d; d = d->next)
    if (!clv_value_can_stream_to(e, c->out, d, bytes)) return false;
  return true;
}

/* Finds the consumers of a call's output that are known so far. *ret_on_device: a module can read
 * the output on its device; *ret_host: a consumer needs the output in host memory. */
static void find_consumers(const clv_context_call *c, bool can_stream_output, bool *ret_on_device,
                           bool *ret_host) {
  *ret_on_device = false;
  *ret_host = c->out->deliveries && !can_stream_output;
  for (const clv_input_use *u = c->out->uses; u; u = u->next) {
    bool on_device = u->call->mod && clv_module_can_copy_from(u->call->mod, c->mod);
    *(on_device ? ret_on_device : ret_host) = true;
  }
}

/* Allocates the output of a forward on the device, in host memory or in both, depending on the
 * consumers known so far. */
static clv_code alloc_output(clv_contexts *e, clv_context_call *c, clv_err *err) {
  clv_dtype dtype = c->mod->graph->nodes[c->mod->graph->output_node].dtype;
  bool on_device = false, in_host_memory = false;
  uint64_t *charged = c->is_recompute ? &c->charged_for_backward : &c->charged_for_value;
  c->out_shape = *clv_plan_output_shape(c->plan->plan);
  if (!c->is_recompute)
    find_consumers(c, can_stream_output(e, c, dtype), &on_device, &in_host_memory);
  on_device = (on_device || !in_host_memory) && clv_module_can_copy_from(c->mod, c->mod);
  if (on_device)
    CLV_TRY(clv_module_alloc_device_tensor(c->mod, dtype, &c->out_shape, &c->result, err));
  if (on_device && !in_host_memory) return CLV_OK;
  return clv_module_alloc_tensor(c->mod, e->env.pool, dtype, &c->out_shape, charged,
                                 on_device ? &c->host_result : &c->result, err);
}

clv_code clv_call_prepare_forward(clv_contexts *e, clv_context_call *c, clv_err *err) {
  clv_module *m = c->mod;
  int64_t batch[CLV_MAX_INPUTS] = {0};
  CLV_TRY(clv_module_check_device(m, err));
  for (uint32_t i = 0; i < c->n_in; i++)
    batch[i] = m->graph->has_per_input_batches && c->in[i]->shape.rank ? c->in[i]->shape.dim[0]
                                                                       : get_batch_size(c);
  CLV_TRY(
      clv_module_plan_for(m, batch, c->flags & CLV_FLAG_TRAINING, c->input_grads, &c->plan, err));
  CLV_TRY(alloc_output(e, c, err));
  CLV_TRY(clv_module_call_get(m, c->plan, &c->state, err));
  c->version = c->weights ? c->weights->version : clv_module_version(m);
  return CLV_OK;
}

static void *get_buffers(const clv_module *m, void *block) {
  return (char *)block + m->params->buffer_offset;
}

/* Copies the module's running statistics into the old weights before a forward that uses old
 * weights; copy_buffers_from_old_weights copies the updated statistics back. Each copy has a few
 * KiB. */
static void copy_buffers_to_old_weights(const clv_context_call *c) {
  clv_module *m = c->mod;
  if (c->weights)
    clv_module_copy_bytes(m, get_buffers(m, c->weights->block->data), get_buffers(m, m->block),
                          clv_module_buffer_bytes(m));
}

static void copy_buffers_from_old_weights(const clv_context_call *c) {
  clv_module *m = c->mod;
  if (c->weights)
    clv_module_copy_bytes(m, get_buffers(m, m->block), get_buffers(m, c->weights->block->data),
                          clv_module_buffer_bytes(m));
}

clv_code clv_call_run_forward(clv_context_call *c, clv_err *err) {
  const void *in[CLV_MAX_INPUTS] = {0};
  clv_plan_memories memories = {.out = c->result->device};
  for (uint32_t i = 0; i < c->n_in; i++) {
    in[i] = c->in[i]->data;
    memories.in[i] = c->in[i]->device;
  }
  clv_plan_call_set_memories(c->state, &memories);
  clv_rng_key key = {.step = c->step, .micro_batch = c->micro_batch};
  copy_buffers_to_old_weights(c);
  CLV_TRY(clv_plan_forward(c->plan->plan, c->state, clv_call_param_block(c), c->version, in, true,
                           c->result->data, &key, err));
  copy_buffers_from_old_weights(c);
  if (!c->host_result) return CLV_OK;
  return clv_backend_get(c->result->device, c->host_result->data, c->result->data, c->result->bytes,
                         err);
}

/* Makes the first training call of a context in a module save the running statistics, so that they
 * can be restored if the step is discarded or the context fails. */
static void request_buffer_save(clv_contexts *e, clv_context_call *c) {
  clv_context *ctx = c->out->ctx;
  uint8_t *saved_bits = &ctx->buffers_saved[c->module / 8], bit = (uint8_t)(1u << (c->module % 8));
  if (!(c->flags & CLV_FLAG_TRAINING) || !clv_module_buffer_bytes(c->mod) || (*saved_bits & bit))
    return;
  c->saves_buffers = true;
  e->queues[c->module].buffers_saved_for_context = ctx->id;
  *saved_bits |= bit;
}

static clv_code check_inputs(const clv_context_call *c, clv_err *err) {
  const clv_graph *g = c->mod->graph;
  uint32_t slot = 0;
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT) CLV_TRY(check_input(c, slot++, &g->nodes[i], err));
  return CLV_OK;
}

/* Replaces inputs that came as bf16 by f32, in which modules compute. */
static clv_code widen_inputs(const clv_contexts *e, clv_context_call *c, clv_err *err) {
  for (uint32_t i = 0; i < c->n_in; i++) {
    clv_tensor *f32_tensor;
    if (c->in[i]->dtype != CLV_BF16) continue;
    CLV_TRY(clv_pool_convert_tensor(e->env.pool, c->in[i], CLV_F32, &f32_tensor, err));
    clv_tensor_unref(c->in[i]);
    c->in[i] = f32_tensor;
    c->bf16_inputs |= 1u << i;
  }
  return CLV_OK;
}

static clv_code prepare_forward(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  if (c->failure) return CLV_OK;
  CLV_TRY(check_inputs(c, err));
  CLV_TRY(widen_inputs(e, c, err));
  clv_call_use_old_weights(c->out->ctx, c);
  CLV_TRY(clv_call_prepare_forward(e, c, err));
  request_buffer_save(e, c);
  *ret_computes = true;
  return CLV_OK;
}

static clv_code compute_forward(clv_work *w, clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  if (c->saves_buffers) clv_module_save_buffers(c->mod);
  c->saves_buffers = false;
  return clv_call_run_forward(c, err);
}

/* ---- the end of a forward -------------------------------------------------------------------- */

static void note_forward_done(clv_contexts *e, clv_context_call *c) {
  bool is_training = c->flags & CLV_FLAG_TRAINING;
  bool has_backward = is_training && (c->input_grads || c->mod->n_learning);
  clv_module_counts *counts = &c->mod->counts;
  clv_counter_add(&counts->compute_ns, clv_work_duration_ns(e, &c->work));
  clv_context_trace_call(e, c->out->ctx, CLV_TRACE_FORWARD, c, c->work.begin_ns);
  clv_counter_add(is_training ? &counts->forwards : &counts->evals, 1);
  if (!has_backward) {
    clv_call_release(e, c);
    clv_call_on_event(e, c, CALL_RAN_KEEPING_NOTHING);
  } else if (c->flags & CLV_FLAG_RECOMPUTE) {
    clv_call_drop_state(c);
    clv_call_on_event(e, c, CALL_RAN_KEEPING_INPUTS);
  } else {
    clv_call_on_event(e, c, CALL_RAN_KEEPING_SAVED);
  }
}

static void note_forward_failed(clv_contexts *e, clv_context_call *c) {
  clv_call_release(e, c);
  c->result = clv_tensor_unref(c->result);
  c->host_result = clv_tensor_unref(c->host_result);
  clv_call_on_event(e, c, CALL_FORWARD_FAILED);
}

static clv_code settle_value(clv_contexts *e, clv_context_call *c, clv_shared_err *failed,
                             clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *out = clv_steal(&c->result);
  clv_value *v = c->out;
  v->host_copy = clv_steal(&c->host_result);
  clv_context *ctx = v->ctx;
  clv_action action;
  if (c->call_state == CALL_NO_BACKWARD) clv_call_let_followers_run(e, c);
  clv_call_discharge_quota(e, c);
  clv_queue_remove_call(e, c);
  if (c->has_position) clv_order_advance(e, v->ctx);
  if (c->is_in_pass || c->order_entries[ORDER_WEIGHT].position) clv_context_mark_dirty(e, v->ctx);
  clv_code code = clv_value_on_event(e, v, VALUE_CALL_DONE, &action, err);
  if (code == CLV_OK) code = clv_value_settle(e, v, out, failed, err);
  clv_value_free_if_dropped(e, v);
  clv_context_end_if_complete(e, ctx);
  return code;
}

static clv_code finish_forward(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                               clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  clv_shared_err *failed = c->failure;
  c->failure = NULL;
  if (code != CLV_OK) failed = clv_shared_err_new_in_module(e, why, c->module);
  if (failed)
    note_forward_failed(e, c);
  else
    note_forward_done(e, c);
  return settle_value(e, c, failed, err);
}

const clv_work_type clv_work_forward = {.prepare = prepare_forward,
                                        .compute = compute_forward,
                                        .finish = finish_forward,
                                        .needs_core_share = true};
