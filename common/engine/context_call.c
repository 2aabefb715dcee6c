/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls: a CALL is recorded with the things it waits for: its arguments, its turn in the queue of
 * its module, its position, and the backward of its leader. Its forward is ready when none is
 * missing.
 */
#include "common/engine/context_int.h"

static void fail_call(clv_contexts *e, clv_context_call *c, const clv_err *why) {
  if (!c->failure) c->failure = clv_shared_err_new_in_module(e, why, c->module);
  clv_queue_remove_call(e, c);
}

/* Returns the value of an argument. After END_CONTEXT no DROP will arrive, so the value is marked
 * as dropped at once: it is freed when no retained call needs it. */
static clv_code get_arg_value(clv_contexts *e, clv_context *ctx, const clv_arg *arg,
                              clv_value **ret, clv_err *err) {
  CLV_TRY(clv_context_get_or_create_value(e, ctx, arg->value_id, ret, err));
  if (ctx->state == CONTEXT_ENDING) (*ret)->is_retained = (*ret)->is_dropped = true;
  return CLV_OK;
}

/* Records a tensor that a CALL carries as the value of that argument, if the argument has a value
 * id, so that later calls can use it. */
static clv_code record_leaf_value(clv_contexts *e, clv_context *ctx, const clv_arg *arg,
                                  clv_tensor *t, clv_err *err) {
  clv_value *v;
  clv_action action;
  if (!arg->value_id) return CLV_OK;
  CLV_TRY(get_arg_value(e, ctx, arg, &v, err));
  CLV_TRY(clv_value_on_event(e, v, VALUE_RECEIVED_AS_ARG, &action, err));
  return clv_value_settle(e, v, t, NULL, err);
}

static clv_code record_arg(clv_contexts *e, clv_context_call *c, uint32_t slot, const clv_arg *arg,
                           clv_tensor *inline_tensor, clv_err *err) {
  clv_context *ctx = c->out->ctx;
  clv_value *v;
  clv_action action;
  c->arg[slot] = arg->value_id;
  if (arg->needs_grad) c->input_grads |= 1u << slot;
  if (inline_tensor) {
    c->in[slot] = clv_tensor_ref(inline_tensor);
    return record_leaf_value(e, ctx, arg, inline_tensor, err);
  }
  CLV_TRY(get_arg_value(e, ctx, arg, &v, err));
  CLV_TRY(clv_value_on_event(e, v, VALUE_USED, &action, err));
  if (action == CELL_GIVE && clv_call_take_input(e, c, slot, v)) return CLV_OK;
  c->uses[slot] = (clv_input_use){.next = v->uses, .call = c};
  v->uses = &c->uses[slot];
  c->n_missing++;
  return CLV_OK;
}

/* Makes the call wait for the backward of `leader`, unless that backward is done or cannot
 * happen. */
static clv_code wait_for_leader(clv_contexts *e, clv_context_call *c, uint64_t leader,
                                clv_err *err) {
  const clv_value *v = clv_context_find_value(e, c->out->ctx, leader);
  clv_context_call *l = v ? v->producer : NULL;
  if (!l || l == c)
    return clv_fail(
        err, CLV_NOT_FOUND,
        "call %llu, after whose backward module %u is to run, is not known at this node",
        (unsigned long long)leader, c->module);
  if (clv_call_on_event(e, l, CALL_GOT_FOLLOWER)->action == CELL_IGNORE || l->has_had_backward)
    return CLV_OK;
  if (c->out->ctx->state == CONTEXT_FAILED)
    return clv_fail(err, CLV_PRECONDITION,
                    "the backward of call %llu, after which module %u is to run, is cancelled: the "
                    "context has failed",
                    (unsigned long long)leader, c->module);
  c->leader = l;
  c->next_follower = l->followers;
  l->followers = c;
  c->n_missing++;
  return CLV_OK;
}

static clv_code check_call(const clv_context_call *c, const clv_frame *f, clv_err *err) {
  if (!c->mod)
    return clv_fail(err, CLV_NOT_FOUND, "module %u is not loaded at this node", f->module);
  if ((int)f->call.n_args != c->mod->n_inputs)
    return clv_fail(err, CLV_INVALID, "module %u has %d input%s, not %u", f->module,
                    c->mod->n_inputs, CLV_S(c->mod->n_inputs), f->call.n_args);
  for (uint32_t i = 0; i < f->call.n_args; i++)
    if (f->call.args[i].needs_grad && c->mod->in_dtype[i] != CLV_F32)
      return clv_fail(err, CLV_INVALID, "module %u: input %u is %s and has no gradient", f->module,
                      i, clv_dtype_name(c->mod->in_dtype[i]));
  return CLV_OK;
}

/* Allocates the record of a call that computes value `v`, and charges one call to the quota of
 * calls. */
static clv_code alloc_call(clv_contexts *e, clv_value *v, clv_context_call **ret, clv_err *err) {
  clv_context_call *c;
  clv_action action;
  if (v->ctx->n_calls == MAX_CONTEXT_CALLS)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d calls in one context", MAX_CONTEXT_CALLS);
  const clv_cell *cell =
      clv_table_cell(e->env.transition_counts, MACHINE_VALUE, v->state, VALUE_CALL_ADDED);
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "value %llu %s", (unsigned long long)v->id, cell->text);
  CLV_TRY(clv_contexts_slab_alloc(e, &e->calls, &c, err));
  clv_code code = clv_account_charge(clv_pool_account(e->env.pool), CLV_QUOTA_CALLS, 1, err);
  if (code == CLV_OK) code = clv_value_on_event(e, v, VALUE_CALL_ADDED, &action, err);
  if (code != CLV_OK) {
    clv_slab_recycle(&e->calls, c);
    return code;
  }
  c->is_charged = true;
  c->out = v;
  v->producer = c;
  v->ctx->n_calls++;
  *ret = c;
  return CLV_OK;
}

static void fill_call(clv_contexts *e, clv_context_call *c, const clv_frame *f) {
  const clv_context *ctx = c->out->ctx;
  c->module = f->module;
  c->micro_batch = f->micro_batch;
  c->step = f->step ? f->step : ctx->id & (((uint64_t)1 << 48) - 1);
  c->flags = f->flags;
  c->mod = clv_contexts_module_of_frame(e, f);
  c->number = ctx->calls_seen;
  c->uses_old_weights = f->call.uses_old_weights;
  for (uint32_t i = 0; i < f->call.n_args; i++) c->arg[i] = f->call.args[i].value_id;
}

/* Creates a call. n_missing starts at 1, for the arguments that are not recorded yet; waiting in
 * the module's queue and for a position each add 1. */
static clv_code new_call(clv_contexts *e, clv_context *ctx, const clv_frame *f,
                         clv_call_state state, clv_context_call **ret, clv_err *err) {
  clv_value *v;
  clv_context_call *c = NULL;
  clv_err why;
  CLV_TRY(clv_context_get_or_create_value(e, ctx, f->message_id, &v, err));
  CLV_TRY(alloc_call(e, v, &c, err));
  fill_call(e, c, f);
  c->call_state = (uint8_t)state;
  c->n_missing = 1;
  __atomic_store_n(&e->counts.calls_waiting, e->counts.calls_waiting + 1, __ATOMIC_RELAXED);
  if (c->mod) clv_queue_add_call(e, c);
  if (c->flags & CLV_FLAG_TRACE) clv_context_begin_trace(e, ctx);
  if (clv_order_add_call(e, c, f, &why) != CLV_OK) fail_call(e, c, &why);
  *ret = c;
  return CLV_OK;
}

/* Returns the announced call that a complete CALL belongs to; NULL: none. */
static clv_context_call *find_announced_call(clv_contexts *e, const clv_context *ctx,
                                             const clv_frame *f) {
  const clv_value *v = clv_context_find_value(e, ctx, f->message_id);
  clv_context_call *c = v ? v->producer : NULL;
  bool is_announced_call =
      c && c->call_state == CALL_ANNOUNCED && c->module == f->module && c->flags == f->flags;
  return is_announced_call ? c : NULL;
}

clv_code clv_on_call_announcement(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_context_call *c;
  clv_contexts_finalise_applies(e, ctx->id);
  ctx->calls_seen++;
  CLV_TRY(new_call(e, ctx, &p->frame, CALL_ANNOUNCED, &c, err));
  clv_context_call **at = &ctx->announced_calls;
  while (*at) at = &(*at)->next_announced;
  *at = c;
  return CLV_OK;
}

/* Records the arguments of a call. Fails at the first argument that is wrong. */
static clv_code record_args(clv_contexts *e, clv_context_call *c, const clv_packet *p,
                            clv_err *err) {
  const clv_frame *f = &p->frame;
  if (p->is_over_quota) return clv_fail(err, f->failure.code, "%s", f->failure.text);
  CLV_TRY(check_call(c, f, err));
  c->n_in = f->call.n_args;
  for (uint32_t i = 0, next = 0; i < c->n_in; i++) {
    clv_tensor *inline_tensor = f->call.args[i].is_inline ? p->tensor[next++] : NULL;
    CLV_TRY(record_arg(e, c, i, &f->call.args[i], inline_tensor, err));
  }
  return f->call.runs_after_call ? wait_for_leader(e, c, f->call.runs_after_call, err) : CLV_OK;
}

/* Returns the call record for a complete CALL: the announced call, or a new record. */
static clv_code complete_call(clv_contexts *e, clv_context *ctx, const clv_packet *p,
                              clv_context_call **ret, clv_err *err) {
  *ret = p->was_announced ? find_announced_call(e, ctx, &p->frame) : NULL;
  ctx->calls_seen += !p->was_announced;
  if (*ret) {
    clv_call_end_announcement(*ret);
    clv_call_on_event(e, *ret, CALL_TENSORS_RECEIVED);
    return CLV_OK;
  }
  clv_contexts_finalise_applies(e, ctx->id);
  return new_call(e, ctx, &p->frame, CALL_WAITING, ret, err);
}

clv_code clv_on_call(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_context_call *c;
  clv_err why;
  uint32_t to;
  CLV_TRY(complete_call(e, ctx, p, &c, err));
  if (p->frame.flags & CLV_FLAG_DELIVER) {
    CLV_TRY(clv_contexts_index_of_name(e, p->frame.to, &to, err));
    CLV_TRY(clv_value_add_delivery(e, c->out, to, err));
  }
  c->out->is_rounded_for_master = p->frame.flags & CLV_FLAG_BF16;
  if (record_args(e, c, p, &why) != CLV_OK) fail_call(e, c, &why);
  clv_call_dependency_done(e, c);
  return CLV_OK;
}
