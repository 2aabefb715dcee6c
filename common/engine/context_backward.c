/* SPDX-License-Identifier: Apache-2.0
 *
 * Work: the backward of a call, in two parts. The input part sums the gradients of the call's value
 * and computes those of its inputs, which are sent when it ends. The weight part computes the
 * gradients of parameters; it is the next work of its module, or has a position of its own.
 */
#include "common/engine/context_int.h"

#include <string.h>

/* ---- the gradient of a call's value ---------------------------------------------------------- */

static clv_code check_gradient(const clv_context_call *c, const clv_tensor *t, clv_err *err) {
  if (t->dtype == CLV_F32 && clv_shape_equal(&t->shape, &c->out_shape)) return CLV_OK;
  char w[160], g[160];
  return clv_fail(err, CLV_INVALID, "the value of module %u is f32 %s, its gradient %s %s",
                  c->module, clv_shape_format(&c->out_shape, w, sizeof w), clv_dtype_name(t->dtype),
                  clv_shape_format(&t->shape, g, sizeof g));
}

/* Allocates a tensor for the input part. The tensor stays charged until the input part ends. */
static clv_code alloc_tensor(clv_contexts *e, clv_context_call *c, clv_dtype dtype,
                             const clv_shape *shape, clv_tensor **ret, clv_err *err) {
  return clv_module_alloc_tensor(c->mod, e->env.pool, dtype, shape, &c->charged_for_backward, ret,
                                 err);
}

static clv_code alloc_root_gradient(clv_contexts *e, clv_context_call *c, clv_err *err) {
  CLV_TRY(alloc_tensor(e, c, CLV_F32, &c->out_shape, &c->dout, err));
  if (c->dout->n != 1)
    return clv_fail(err, CLV_INVALID, "the value of module %u has %zu elements; a root is a scalar",
                    c->module, c->dout->n);
  *(float *)c->dout->data = c->root_gradient;
  return CLV_OK;
}

/* Moves the gradients of the pass, and any of earlier passes, from the call's value to the call's
 * gradients_to_sum. */
static void take_contributions(clv_context_call *c, uint32_t phase) {
  clv_contribution **end = &c->out->received_gradients;
  while (*end && (*end)->phase <= phase) end = &(*end)->next;
  clv_contribution *rest = *end;
  *end = NULL;
  c->gradients_to_sum = c->out->received_gradients;
  c->out->received_gradients = rest;
}

static bool has_gradient_in_phase(const clv_context_call *c, const clv_contribution *k) {
  return k->phase == c->out->ctx->phase && k->tensor;
}

/* Allocates the sum on the call's device, and a buffer for the next gradient to add. Used if there
 * are several gradients and at least one is on a device. */
static clv_code prepare_device_sum(clv_context_call *c, clv_err *err) {
  c->dout = clv_tensor_unref(c->dout);
  CLV_TRY(clv_module_alloc_device_tensor(c->mod, CLV_F32, &c->out_shape, &c->dout, err));
  return clv_module_alloc_device_tensor(c->mod, CLV_F32, &c->out_shape, &c->addend_buffer, err);
}

/* Allocates the sum of the gradients and sets its initial value. A single gradient becomes the sum
 * itself, without a copy. Without a gradient c->dout stays NULL. */
static clv_code prepare_sum(clv_contexts *e, clv_context_call *c, clv_err *err) {
  clv_tensor *last_gradient = NULL;
  uint32_t n = 0;
  bool has_device_gradient = false;
  take_contributions(c, c->out->ctx->phase);
  if (c->root_gradient != 0) CLV_TRY(alloc_root_gradient(e, c, err));
  for (const clv_contribution *k = c->gradients_to_sum; k; k = k->next) {
    if (!has_gradient_in_phase(c, k)) continue;
    CLV_TRY(check_gradient(c, k->tensor, err));
    last_gradient = k->tensor;
    has_device_gradient |= last_gradient->device != NULL;
    n++;
  }
  if (has_device_gradient && (c->dout || n > 1)) return prepare_device_sum(c, err);
  if (c->dout || !n) return CLV_OK;
  if (n > 1) return alloc_tensor(e, c, CLV_F32, &c->out_shape, &c->dout, err);
  c->dout = clv_tensor_ref(last_gradient);
  return CLV_OK;
}

static clv_code sum_on_device(clv_context_call *c, clv_err *err) {
  const clv_backend *b = c->mod->o.backend;
  clv_tensor *sum = c->dout;
  bool has_sum = c->root_gradient != 0;
  if (has_sum)
    CLV_TRY(clv_backend_put(b, sum->data, &c->root_gradient, sizeof c->root_gradient, err));
  for (const clv_contribution *k = c->gradients_to_sum; k; k = k->next) {
    if (!has_gradient_in_phase(c, k)) continue;
    void *to = has_sum ? c->addend_buffer->data : sum->data;
    CLV_TRY(clv_backend_copy_from(b, to, k->tensor->device, k->tensor->data, sum->bytes, err));
    if (has_sum) b->add(b, CLV_F32, sum->data, to, sum->n);
    has_sum = true;
  }
  return CLV_OK;
}

/* Adds the gradients of the pass to the sum, in ascending `order`. */
static clv_code add_contributions(clv_context_call *c, clv_err *err) {
  clv_tensor *sum = c->dout;
  if (c->addend_buffer) return sum_on_device(c, err);
  bool has_sum = c->root_gradient != 0;
  for (const clv_contribution *k = c->gradients_to_sum; k; k = k->next) {
    if (!has_gradient_in_phase(c, k) || k->tensor == sum) continue;
    if (has_sum)
      clv_backend_cpu()->add(clv_backend_cpu(), CLV_F32, sum->data, k->tensor->data, sum->n);
    else
      memcpy(sum->data, k->tensor->data, k->tensor->bytes);
    has_sum = true;
  }
  return CLV_OK;
}

/* ---- sending the gradients of a call's inputs ------------------------------------------------ */

/* Sends the gradient of one input. A gradient on a device is streamed while it is copied to host
 * memory, or sent after the copy is complete. */
static clv_code send_gradient(clv_contexts *e, clv_context *ctx, const clv_gradient_target *t,
                              clv_tensor *din, bool as_bf16, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *bf16 = NULL;
  clv_value *v = clv_context_find_value(e, ctx, t->value);
  clv_copy *copy = NULL;
  if (v && v->producer) return clv_pass_add_gradient(e, v, ctx->phase, t->order, din, err);
  if (din && as_bf16) {
    CLV_TRY(clv_pool_convert_tensor(e->env.pool, din, CLV_BF16, &bf16, err));
    din = bf16;
  }
  if (din && din->device) CLV_TRY(clv_copy_start(e, din, &copy, err));
  clv_packet *p;
  CLV_TRY(clv_outbox_new_packet(e, CLV_GRADIENT, ctx, t->value, t->name, &p, err));
  p->frame.backward_pass_number = ctx->phase;
  p->frame.contribution_index = t->order;
  bool must_wait_for_copy = copy && !clv_outbox_can_stream(e, t->name, din->bytes);
  if (din)
    clv_packet_add_tensor_being_copied(p, copy ? copy->to : din,
                                       copy && !must_wait_for_copy ? copy->device_copy : NULL);
  clv_context_trace_packet(e, ctx, CLV_TRACE_GRADIENT_OUT, p, clv_contexts_now(e));
  if (must_wait_for_copy)
    copy->packet = p;
  else
    clv_outbox_send(e, p);
  return CLV_OK;
}

/* Sends a gradient for each target. A target for which the call has no gradient receives an empty
 * GRADIENT. */
static clv_code send_gradients(clv_contexts *e, clv_context_call *c, clv_err *err) {
  for (uint32_t i = 0; i < c->n_in; i++)
    if (c->targets[i].value)
      CLV_TRY(
          send_gradient(e, c->out->ctx, &c->targets[i], c->dins[i], c->bf16_inputs >> i & 1, err));
  return CLV_OK;
}

/* Returns the parameter gradients of the call's module in a context, and creates their record if
 * there is none. *ret NULL: the module has no trainable parameters. */
static clv_code get_or_create_gradients(clv_contexts *e, clv_context *ctx,
                                        const clv_context_call *c, clv_module_gradient **ret,
                                        clv_err *err) {
  clv_module_gradient **at = &ctx->gradients, *g;
  *ret = NULL;
  if (!c->mod->n_learning && !clv_module_has_trainable_ties(c->mod)) return CLV_OK;
  while (*at && (*at)->module < c->module) at = &(*at)->next;
  if (*at && (*at)->module == c->module) {
    *ret = *at;
    return CLV_OK;
  }
  CLV_TRY(clv_contexts_slab_alloc(e, &e->gradients, &g, err));
  *g = (clv_module_gradient){.next = *at, .module = c->module, .mod = c->mod};
  clv_code code = clv_module_alloc_block(c->mod, c->mod->params->gradient_bytes,
                                         &g->charged_on_device, &g->block, err);
  if (code != CLV_OK) {
    clv_slab_recycle(&e->gradients, g);
    return code;
  }
  *at = g;
  *ret = g;
  return CLV_OK;
}

/* ---- the input part -------------------------------------------------------------------------- */

static clv_code fail_params_changed(const clv_context_call *c, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION,
                  "the parameters of module %u have changed since the forward of call %llu, whose "
                  "backward needs them as they were",
                  c->module, (unsigned long long)c->out->id);
}

static clv_code check_params_unchanged(const clv_context_call *c, clv_err *err) {
  bool reads_params = c->is_recompute || clv_plan_get_info(c->plan->plan)->backward_reads_params;
  bool has_changed = !c->weights && c->version != clv_module_version(c->mod);
  return reads_params && has_changed ? fail_params_changed(c, err) : CLV_OK;
}

static void *get_buffers(const clv_module *m) {
  return (char *)m->block + m->params->buffer_offset;
}

/* Allocates memory to compute the call's forward again, because its saved tensors are freed. The
 * second forward uses the same random numbers, and the running statistics are restored after it. */
static clv_code prepare_recompute(clv_contexts *e, clv_context_call *c, clv_err *err) {
  size_t bytes = clv_module_buffer_bytes(c->mod);
  if (bytes)
    CLV_TRY(
        clv_module_alloc_block(c->mod, bytes, &c->charged_for_backward, &c->saved_buffers, err));
  return clv_call_prepare_forward(e, c, err);
}

static clv_code recompute_forward(clv_context_call *c, clv_err *err) {
  clv_tensor *saved_buffers = c->saved_buffers;
  if (saved_buffers)
    clv_module_copy_bytes(c->mod, saved_buffers->data, get_buffers(c->mod), saved_buffers->bytes);
  clv_code code = clv_call_run_forward(c, err);
  if (saved_buffers)
    clv_module_copy_bytes(c->mod, get_buffers(c->mod), saved_buffers->data, saved_buffers->bytes);
  return code;
}

/* Refreshes the plan's copies of the weights. They may be of another version, if another call of
 * the plan ran before or after a step. */
static clv_code refresh_weights(const clv_context_call *c, clv_err *err) {
  if (!clv_plan_get_info(c->plan->plan)->backward_reads_params) return CLV_OK;
  return clv_plan_refresh_weights(c->plan->plan, c->state, clv_call_param_block(c), c->version,
                                  err);
}

/* Checks that gradients of parameters are added in the order of positions: fails if an earlier call
 * of the module has a later position for its weight part. */
static clv_code check_weight_order(const clv_context_call *c, clv_module_gradient *g,
                                   clv_err *err) {
  uint32_t own_position = c->order_entries[ORDER_WEIGHT].position;
  if (g && g->weight_position > (own_position ? own_position : c->out->ctx->positions_done))
    return clv_fail(
        err, CLV_PRECONDITION,
        "an earlier call of module %u has position %u for the gradients of its parameters, "
        "and those of call %llu would be added before",
        c->module, g->weight_position, (unsigned long long)c->out->id);
  if (g && own_position) g->weight_position = own_position;
  return CLV_OK;
}

/* Returns the module of this node that receives the gradient of input i; NULL: another node
 * receives it. */
static clv_module *find_producer_module(clv_contexts *e, const clv_context_call *c, uint32_t i) {
  uint64_t id = c->targets[i].value;
  const clv_value *v = id ? clv_context_find_value(e, c->out->ctx, id) : NULL;
  return v && v->producer ? v->producer->mod : NULL;
}

/* True if the gradient of input i can be streamed over a link while it is copied from the
 * device. */
static bool can_stream_input_grad(const clv_contexts *e, const clv_context_call *c, uint32_t i) {
  const clv_gradient_target *t = &c->targets[i];
  /* the gradient is first rounded to bf16 in host memory */
  if (c->bf16_inputs >> i & 1) return false;
  return t->value && clv_outbox_can_stream(e, t->name, c->in[i]->n * sizeof(float));
}

static clv_code alloc_input_grad(clv_contexts *e, clv_context_call *c, uint32_t i, clv_err *err) {
  clv_module *to = find_producer_module(e, c, i);
  if (clv_module_can_copy_from(to ? to : c->mod, c->mod) && (to || can_stream_input_grad(e, c, i)))
    CLV_TRY(clv_module_alloc_device_tensor(c->mod, CLV_F32, &c->in[i]->shape, &c->dins[i], err));
  else
    CLV_TRY(alloc_tensor(e, c, CLV_F32, &c->in[i]->shape, &c->dins[i], err));
  if (to) clv_module_count_transfer(to, c->mod, c->dins[i]);
  return CLV_OK;
}

static clv_code alloc_input_grads(clv_contexts *e, clv_context_call *c, clv_err *err) {
  for (uint32_t i = 0; i < c->n_in; i++)
    if (c->input_grads >> i & 1) CLV_TRY(alloc_input_grad(e, c, i, err));
  return CLV_OK;
}

static clv_code prepare_input_part(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  clv_module_gradient *g;
  if (!c->is_in_pass) return CLV_OK;
  CLV_TRY(check_params_unchanged(c, err));
  CLV_TRY(prepare_sum(e, c, err));
  if (!c->dout) return CLV_OK;
  CLV_TRY(get_or_create_gradients(e, w->ctx, c, &g, err));
  CLV_TRY(check_weight_order(c, g, err));
  if (c->is_recompute) CLV_TRY(prepare_recompute(e, c, err));
  CLV_TRY(alloc_input_grads(e, c, err));
  c->accumulates_input_grads = g && g->input_part_done;
  if (g) g->input_part_done = true;
  c->gradients = g ? g->block : NULL;
  *ret_computes = true;
  return CLV_OK;
}

static clv_code compute_input_part(clv_work *w, clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  void *to[CLV_MAX_INPUTS] = {0};
  clv_plan_memories memories = {.dout = c->dout->device};
  CLV_TRY(add_contributions(c, err));
  if (c->is_recompute) CLV_TRY(recompute_forward(c, err));
  CLV_TRY(refresh_weights(c, err));
  for (uint32_t i = 0; i < c->n_in; i++) {
    to[i] = c->dins[i] ? c->dins[i]->data : NULL;
    memories.din[i] = c->dins[i] ? c->dins[i]->device : NULL;
  }
  clv_plan_call_set_memories(c->state, &memories);
  return clv_plan_backward_input(c->plan->plan, c->state, clv_call_param_block(c), c->dout->data,
                                 to, c->gradients ? c->gradients->data : NULL,
                                 c->accumulates_input_grads, err);
}

/* Frees the memory that only the input part of a backward needs. */
static void release_input_part(clv_contexts *e, clv_context_call *c) {
  clv_contributions_free(e, c->gradients_to_sum);
  c->gradients_to_sum = NULL;
  c->dout = clv_tensor_unref(c->dout);
  c->addend_buffer = clv_tensor_unref(c->addend_buffer);
  c->result = clv_tensor_unref(c->result);
  c->saved_buffers = clv_tensor_unref(c->saved_buffers);
  for (uint32_t i = 0; i < c->n_in; i++) c->dins[i] = clv_tensor_unref(c->dins[i]);
  clv_module_uncharge_tensors(c->mod, &c->charged_for_backward);
}

static void end_backward(clv_contexts *e, clv_context_call *c) {
  clv_call_drop_state(c);
  c->has_had_backward = c->out->ctx->retains_inputs;
  c->is_recompute = false;
  clv_call_on_event(e, c,
                    c->out->ctx->retains_inputs ? CALL_BACKWARD_RETAINED : CALL_BACKWARD_DONE);
  if (c->call_state == CALL_SAVED_FREED) clv_call_release(e, c);
}

static void record_input_part(clv_contexts *e, clv_context_call *c) {
  clv_module_counts *counts = &c->mod->counts;
  c->backward_began_ns = c->work.begin_ns;
  clv_counter_add(&counts->compute_ns, clv_work_duration_ns(e, &c->work));
  clv_counter_add(&counts->backwards, 1);
  if (c->order_entries[ORDER_WEIGHT].position)
    clv_context_trace_call(e, c->out->ctx, CLV_TRACE_INPUT_GRAD, c, c->backward_began_ns);
  clv_call_on_event(e, c, CALL_INPUT_GRAD_DONE);
}

/* Ends the input part: sends the gradients of inputs, then makes the weight part ready. If no
 * gradient arrived with a tensor, the backward ends here, without a weight part. */
static clv_code end_input_part(clv_contexts *e, clv_context_call *c, clv_err *err) {
  bool has_no_gradient = !c->dout;
  if (has_no_gradient)
    end_backward(e, c);
  else
    record_input_part(e, c);
  /* sent before the weight part runs, so that other modules can start */
  CLV_TRY(send_gradients(e, c, err));
  /* done first, because clv_pass_remove_call may free the call */
  release_input_part(e, c);
  if (has_no_gradient || c->order_entries[ORDER_WEIGHT].position)
    clv_pass_remove_call(e, c);
  else
    clv_work_enqueue_front(e, &c->work, WORK_WEIGHT_GRAD);
  return CLV_OK;
}

/* Finishes the input part. Discards its result if the context has failed meanwhile. */
static clv_code finish_input_part(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                                  clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  clv_err send_err;
  (void)err;
  if (code == CLV_OK && c->is_in_pass) {
    code = end_input_part(e, c, &send_err);
    why = &send_err;
    if (code == CLV_OK) return CLV_OK;
  }
  if (code != CLV_OK) clv_context_fail_in_module(e, w->ctx, why, c->module);
  release_input_part(e, c);
  return CLV_OK;
}

/* ---- the weight part ------------------------------------------------------------------------- */

/* True if the weight part can be computed. False if its position is due but the call had no input
 * part, or if the context has failed: then the position only counts as done. */
static bool can_compute_weight_part(const clv_work *w, const clv_context_call *c) {
  return c->call_state == CALL_WEIGHT_GRAD && w->ctx->state == CONTEXT_OPEN;
}

static clv_code prepare_weight_part(clv_contexts *e, clv_work *w, bool *ret_computes,
                                    clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  clv_module_gradient *g;
  if (!can_compute_weight_part(w, c)) return CLV_OK;
  CLV_TRY(get_or_create_gradients(e, w->ctx, c, &g, err));
  c->accumulates_weight_grads = g && g->weight_part_done;
  if (g) g->weight_part_done = true;
  c->gradients = g ? g->block : NULL;
  *ret_computes = true;
  return CLV_OK;
}

static clv_code compute_weight_part(clv_work *w, clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  return clv_plan_backward_weight(c->plan->plan, c->state, clv_call_param_block(c),
                                  c->gradients ? c->gradients->data : NULL,
                                  c->accumulates_weight_grads, err);
}

static void record_weight_part(clv_contexts *e, clv_context_call *c) {
  bool has_own_position = c->order_entries[ORDER_WEIGHT].position;
  clv_counter_add(&c->mod->counts.compute_ns, clv_work_duration_ns(e, &c->work));
  clv_context_trace_call(e, c->out->ctx,
                         has_own_position ? CLV_TRACE_WEIGHT_GRAD : CLV_TRACE_BACKWARD, c,
                         has_own_position ? c->work.begin_ns : c->backward_began_ns);
  end_backward(e, c);
}

static clv_code finish_weight_part(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                                   clv_err *err) {
  clv_context_call *c = clv_call_of_work(w);
  clv_context *ctx = w->ctx;
  (void)err;
  if (code != CLV_OK) clv_context_fail_in_module(e, ctx, why, c->module);
  if (ctx->state != CONTEXT_OPEN) return CLV_OK;
  if (c->call_state == CALL_WEIGHT_GRAD) record_weight_part(e, c);
  if (!c->order_entries[ORDER_WEIGHT].position) {
    clv_pass_remove_call(e, c);
    return CLV_OK;
  }
  clv_order_remove(ctx, ORDER_WEIGHT, &c->order_entries[ORDER_WEIGHT]);
  clv_order_advance(e, ctx);
  clv_value_free_if_dropped(e, c->out);
  return CLV_OK;
}

const clv_work_type clv_work_input_grad = {.prepare = prepare_input_part,
                                           .compute = compute_input_part,
                                           .finish = finish_input_part,
                                           .needs_core_share = true};
const clv_work_type clv_work_weight_grad = {.prepare = prepare_weight_part,
                                            .compute = compute_weight_part,
                                            .finish = finish_weight_part,
                                            .needs_core_share = true};
