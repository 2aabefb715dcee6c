/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls: their inputs come, they run, they are in nobody's way any more.
 */
#include "common/engine/context_int.h"

#include <stdio.h>
#include <string.h>

/* ---- waiting --------------------------------------------------------------------------------- */

static void push_ready(clv_contexts *e, clv_context_call *c) {
  c->next_ready = NULL;
  if (e->ready_last)
    e->ready_last->next_ready = c;
  else
    e->ready_first = c;
  e->ready_last = c;
}

void clv_call_one_less(clv_contexts *e, clv_context_call *c) {
  if (--c->n_missing) return;
  __atomic_store_n(&e->counts.calls_waiting, e->counts.calls_waiting - 1, __ATOMIC_RELAXED);
  push_ready(e, c);
}

void clv_call_let_followers_run(clv_contexts *e, clv_context_call *c) {
  for (clv_context_call *f = c->followers, *next; f; f = next) {
    next = f->next_follower;
    f->leader = NULL;
    clv_call_one_less(e, f);
  }
  c->followers = NULL;
}

/* ---- running a call -------------------------------------------------------------------------- */

static clv_code check_input(const clv_context_call *c, uint32_t slot, const clv_node *node,
                            clv_err *err) {
  const clv_tensor *t = c->in[slot];
  clv_shape want = node->shape;
  bool batched = want.rank && t->shape.rank;
  if (batched && t->shape.dim[0] > 0) want.dim[0] = t->shape.dim[0];
  if (t->dtype != node->dtype || !clv_shape_equal(&want, &t->shape)) {
    char w[160], g[160];
    return clv_fail(err, CLV_INVALID, "module %u expects input %u as %s %s, got %s %s", c->module,
                    slot, clv_dtype_name(node->dtype), clv_shape_format(&want, w, sizeof w),
                    clv_dtype_name(t->dtype), clv_shape_format(&t->shape, g, sizeof g));
  }
  if (batched && c->in[0]->shape.rank && t->shape.dim[0] != c->in[0]->shape.dim[0])
    return clv_fail(err, CLV_INVALID, "module %u: input 0 is a batch of %lld, input %u one of %lld",
                    c->module, (long long)c->in[0]->shape.dim[0], slot, (long long)t->shape.dim[0]);
  return CLV_OK;
}

static int64_t batch_of(const clv_context_call *c) {
  return c->in[0]->shape.rank ? c->in[0]->shape.dim[0] : 1;
}

clv_code clv_call_output(clv_contexts *e, clv_context_call *c, clv_tensor **ret, clv_err *err) {
  const clv_node *node = &c->mod->graph->nodes[c->mod->graph->output];
  c->out_shape = node->shape;
  if (c->out_shape.rank > 0) c->out_shape.dim[0] = batch_of(c);
  return clv_pool_tensor(e->env.pool, node->dtype, &c->out_shape, ret, err);
}

static void *buffers_in(const clv_module *m, void *block) {
  return (char *)block + m->params->trainable_bytes;
}

/* Running statistics are those of now, whatever the age of the weights: a copy of a few KiB each
 * way. */
static void lend_buffers(const clv_context_call *c) {
  const clv_module *m = c->mod;
  if (c->weights)
    memcpy(buffers_in(m, c->weights->block->data), buffers_in(m, m->block),
           clv_module_buffer_bytes(m));
}

static void return_buffers(const clv_context_call *c) {
  const clv_module *m = c->mod;
  if (c->weights)
    memcpy(buffers_in(m, m->block), buffers_in(m, c->weights->block->data),
           clv_module_buffer_bytes(m));
}

clv_code clv_call_forward(clv_context_call *c, clv_tensor *out, clv_err *err) {
  const void *in[CLV_MAX_INPUTS] = {0};
  clv_module *m = c->mod;
  CLV_TRY(clv_module_plan_for(m, batch_of(c), c->flags & CLV_FLAG_TRAINING, c->input_grads,
                              &c->plan, err));
  CLV_TRY(clv_module_call_get(m, c->plan, &c->state, err));
  for (uint32_t i = 0; i < c->n_in; i++) in[i] = c->in[i]->data;
  clv_rng_key key = {.step = c->step, .micro_batch = c->micro_batch};
  c->version = c->weights ? c->weights->version : m->version;
  uint64_t begin = clv_now_ns();
  lend_buffers(c);
  CLV_TRY(clv_plan_forward(c->plan->plan, c->state, clv_call_block(c), c->version, in, true,
                           out->data, &key, err));
  return_buffers(c);
  clv_counter_add(&m->counts.compute_ns, clv_now_ns() - begin);
  return CLV_OK;
}

/* A step that is not taken, or a context that fails, leaves running statistics as they were. */
static void keep_buffers(clv_contexts *e, const clv_context_call *c) {
  clv_context *ctx = c->out->ctx;
  uint8_t *kept = &ctx->kept[c->module / 8], bit = (uint8_t)(1u << (c->module % 8));
  if (!(c->flags & CLV_FLAG_TRAINING) || !clv_module_buffer_bytes(c->mod) || (*kept & bit)) return;
  clv_module_keep_buffers(c->mod);
  e->queues[c->module].shadow_of = ctx->id;
  *kept |= bit;
}

static clv_code run_call(clv_contexts *e, clv_context_call *c, clv_tensor **ret, clv_err *err) {
  const clv_graph *g = c->mod->graph;
  uint32_t slot = 0;
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT) CLV_TRY(check_input(c, slot++, &g->nodes[i], err));
  CLV_TRY(clv_call_output(e, c, ret, err));
  CLV_TRY(clv_context_core(e, c->mod, err));
  keep_buffers(e, c);
  clv_call_take_weights(c->out->ctx, c);
  uint64_t begin = clv_now_ns();
  CLV_TRY(clv_call_forward(c, *ret, err));
  clv_context_note(e, c->out->ctx, CLV_TRACE_FORWARD, c, begin);
  bool training = c->flags & CLV_FLAG_TRAINING;
  bool differentiable = training && (c->input_grads || c->mod->n_learning);
  c->phase = differentiable ? FORWARD : INFERRED;
  clv_module_counts *counts = &c->mod->counts;
  clv_counter_add(training ? &counts->forwards : &counts->evals, 1);
  if (!differentiable) {
    clv_call_release(e, c);
  } else if (c->flags & CLV_FLAG_RECOMPUTE) {
    clv_module_call_put(c->plan, c->state);
    c->state = NULL;
    c->phase = RETAINED;
  }
  return CLV_OK;
}

/* A call with all its inputs; what is wrong with it becomes its value's error. */
static clv_code finish_call(clv_contexts *e, clv_context_call *c, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *out = NULL;
  clv_value *v = c->out;
  clv_shared_err *failed = c->failed;
  clv_err why;
  c->failed = NULL;
  if (!failed && run_call(e, c, &out, &why) != CLV_OK) {
    failed = clv_shared_err_at(e, &why, c->module);
    out = clv_tensor_unref(out);
  }
  if (failed) {
    clv_call_release(e, c);
    c->phase = INFERRED;
  }
  if (c->phase == INFERRED) clv_call_let_followers_run(e, c);
  clv_call_has_run(e, c);
  clv_queue_leave(e, c);
  if (c->in_order) clv_order_done(e, v->ctx);
  return clv_value_settle(e, v, out, failed, err);
}

clv_code clv_call_run_next(clv_contexts *e, clv_err *err) {
  clv_context_call *c = e->ready_first;
  clv_context *ctx = c->out->ctx;
  e->ready_first = c->next_ready;
  if (!e->ready_first) e->ready_last = NULL;
  clv_code code = finish_call(e, c, err);
  bool needed = c->needed;
  clv_value_free_if_dropped(e, c->out);
  if (needed) clv_context_run_backward(e, ctx);
  return code;
}

/* ---- CALL ------------------------------------------------------------------------------------ */

static void refuse_call(clv_contexts *e, clv_context_call *c, const clv_err *why) {
  if (!c->failed) c->failed = clv_shared_err_at(e, why, c->module);
  clv_queue_leave(e, c);
}

/* A leaf given along gets a record if it has an id, so that later calls can use it. */
static clv_code take_here(clv_contexts *e, clv_context *ctx, const clv_arg *arg, clv_tensor *t,
                          clv_err *err) {
  clv_value *v;
  if (!arg->value) return CLV_OK;
  CLV_TRY(clv_context_value_made(e, ctx, arg->value, &v, err));
  if (clv_value_is_settled(v) || v->maker)
    return clv_fail(err, CLV_EXISTS, "value %llx is here already", (unsigned long long)arg->value);
  return clv_value_settle(e, v, t, NULL, err);
}

static clv_code take_arg(clv_contexts *e, clv_context_call *c, uint32_t slot, const clv_arg *arg,
                         clv_tensor *here, clv_err *err) {
  clv_context *ctx = c->out->ctx;
  clv_value *v;
  c->arg[slot] = arg->value;
  if (arg->needs_grad) c->input_grads |= 1u << slot;
  if (here) {
    c->in[slot] = clv_tensor_ref(here);
    return take_here(e, ctx, arg, here, err);
  }
  CLV_TRY(clv_context_value_made(e, ctx, arg->value, &v, err));
  if (clv_value_is_settled(v)) {
    clv_call_take_input(e, c, slot, v);
    return CLV_OK;
  }
  c->uses[slot] = (clv_input_use){.next = v->uses, .call = c};
  v->uses = &c->uses[slot];
  c->n_missing++;
  return CLV_OK;
}

/* It waits for the backward of a call that is here already, if that has one to come. */
static clv_code follow(clv_contexts *e, clv_context_call *c, uint64_t leader, clv_err *err) {
  const clv_value *v = clv_context_value(e, c->out->ctx, leader);
  clv_context_call *l = v ? v->maker : NULL;
  if (!l || l == c)
    return clv_fail(err, CLV_NOT_FOUND,
                    "call %llx, after whose backward module %u is to run, is not here",
                    (unsigned long long)leader, c->module);
  if (l->had_backward || l->phase == INFERRED) return CLV_OK;
  c->leader = l;
  c->next_follower = l->followers;
  l->followers = c;
  c->n_missing++;
  return CLV_OK;
}

static clv_code check_call(const clv_context_call *c, const clv_frame *f, clv_err *err) {
  if (!c->mod) return clv_fail(err, CLV_NOT_FOUND, "module %u is not here", f->module);
  if ((int)f->call.n_args != c->mod->n_inputs)
    return clv_fail(err, CLV_INVALID, "module %u has %d input%s, not %u", f->module,
                    c->mod->n_inputs, CLV_S(c->mod->n_inputs), f->call.n_args);
  for (uint32_t i = 0; i < f->call.n_args; i++)
    if (f->call.args[i].needs_grad && c->mod->in_dtype[i] != CLV_F32)
      return clv_fail(err, CLV_INVALID, "module %u: input %u is %s and has no gradient", f->module,
                      i, clv_dtype_name(c->mod->in_dtype[i]));
  return CLV_OK;
}

static clv_code new_call(clv_contexts *e, clv_context *ctx, const clv_frame *f,
                         clv_context_call **ret, clv_err *err) {
  clv_value *v;
  clv_context_call *c;
  if (ctx->n_calls == MAX_CONTEXT_CALLS)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d calls in one context", MAX_CONTEXT_CALLS);
  CLV_TRY(clv_context_value_made(e, ctx, f->message, &v, err));
  if (v->maker || clv_value_is_settled(v))
    return clv_fail(err, CLV_EXISTS, "value %llx exists already", (unsigned long long)f->message);
  CLV_TRY(clv_slab_take(e, &e->calls, &c, err));
  clv_code code = clv_account_charge(clv_pool_account(e->env.pool), CLV_QUOTA_CALLS, 1, err);
  if (code != CLV_OK) {
    clv_slab_give(&e->calls, c);
    return code;
  }
  c->charged = true;
  v->maker = c;
  ctx->n_calls++;
  c->out = v;
  c->module = f->module;
  c->micro_batch = f->micro_batch;
  c->step = f->step ? f->step : ctx->id & (((uint64_t)1 << 48) - 1);
  c->flags = f->flags;
  c->mod = e->env.module(e->env.user, f->module);
  c->number = ctx->calls_seen;
  c->n_missing = 1; /* its arguments, until all of them are known */
  __atomic_store_n(&e->counts.calls_waiting, e->counts.calls_waiting + 1, __ATOMIC_RELAXED);
  if (c->mod) clv_queue_join(e, c);
  if (c->flags & CLV_FLAG_TRACE) clv_context_begin_trace(e, ctx);
  c->previous_weights = f->call.old_weights;
  clv_err why;
  if (clv_order_join_call(e, c, f, &why) != CLV_OK) refuse_call(e, c, &why);
  *ret = c;
  return CLV_OK;
}

/* The call whose head has come, or NULL. */
static clv_context_call *call_on_its_way(clv_contexts *e, const clv_context *ctx,
                                         const clv_frame *f) {
  const clv_value *v = clv_context_value(e, ctx, f->message);
  clv_context_call *c = v ? v->maker : NULL;
  bool same = c && c->on_its_way && c->module == f->module && c->flags == f->flags;
  return same ? c : NULL;
}

clv_code clv_on_call_head(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_context_call *c;
  clv_context_finalise(e, ctx->id);
  ctx->calls_seen++;
  CLV_TRY(new_call(e, ctx, &p->frame, &c, err));
  clv_context_call **at = &ctx->coming;
  while (*at) at = &(*at)->next_coming;
  *at = c;
  c->on_its_way = true;
  return CLV_OK;
}

clv_code clv_on_call(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_context_call *c = p->headed ? call_on_its_way(e, ctx, f) : NULL;
  clv_err why;
  ctx->calls_seen += !p->headed;
  if (!c) {
    clv_context_finalise(e, ctx->id);
    CLV_TRY(new_call(e, ctx, f, &c, err));
  }
  clv_call_has_come(c);
  uint32_t to;
  if (f->flags & CLV_FLAG_DELIVER) {
    CLV_TRY(clv_name_index(e, f->to, &to, err));
    CLV_TRY(clv_value_add_delivery(e, c->out, to, err));
  }
  clv_code code =
      p->refused ? clv_fail(&why, f->failure.code, "%s", f->failure.text) : check_call(c, f, &why);
  if (code == CLV_OK) c->n_in = f->call.n_args;
  for (uint32_t i = 0, next = 0; i < c->n_in && code == CLV_OK; i++) {
    clv_tensor *here = f->call.args[i].here ? p->tensor[next++] : NULL;
    code = take_arg(e, c, i, &f->call.args[i], here, &why);
  }
  if (code == CLV_OK && f->call.after) code = follow(e, c, f->call.after, &why);
  if (code != CLV_OK) refuse_call(e, c, &why);
  clv_call_one_less(e, c);
  return clv_contexts_run(e, err);
}
