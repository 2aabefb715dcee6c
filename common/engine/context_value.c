/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of contexts. Passes each value, or its failure, to its consumers, which are the calls and
 * nodes that use it. Handles the frames DELIVER, VALUE, DROP and SPARE. A value on a device is
 * copied to host memory when a consumer outside the device needs it. A link can send it during the
 * copy; all other consumers wait for the complete tensor.
 */
#include "common/engine/context_int.h"

/* ---- copies in host memory ------------------------------------------------------------------- */

/* Returns the tensor of a value in host memory. For a value on a device, starts a copy if there is
 * none. *ret NULL: the copy is in progress. */
static clv_code get_host_copy(clv_contexts *e, clv_value *v, clv_tensor **ret, clv_err *err) {
  *ret = v->tensor->device ? v->host_copy : v->tensor;
  if (v->copy) *ret = NULL;
  if (!v->tensor->device || v->host_copy) return CLV_OK;
  CLV_TRY(clv_copy_start(e, v->tensor, &v->copy, err));
  v->copy->value = v;
  v->host_copy = clv_tensor_ref(v->copy->to);
  return CLV_OK;
}

/* Returns the tensor of a value where module m can read it: on the device or in host memory. *ret
 * NULL: a copy to host memory is in progress. */
static clv_code get_tensor_for_module(clv_contexts *e, clv_value *v, const clv_module *m,
                                      clv_tensor **ret, clv_err *err) {
  bool can_read =
      !m || !v->tensor->device || clv_backend_can_copy_from(m->o.backend, v->tensor->device);
  if (!can_read) return get_host_copy(e, v, ret, err);
  *ret = v->tensor;
  return CLV_OK;
}

/* ---- delivering values ----------------------------------------------------------------------- */

/* Adds the tensor of a value to a VALUE packet, complete or still being copied; if the value has
 * failed, adds its failure. */
static void fill_value_packet(const clv_value *v, clv_packet *p) {
  if (v->failure) {
    p->frame.has_failure = true;
    clv_shared_err_to_frame(v->failure, &p->frame);
    return;
  }
  clv_packet_add_tensor_being_copied(p, v->tensor->device ? v->host_copy : v->tensor,
                                     v->copy ? v->copy->device_copy : NULL);
}

static bool is_rounded_for(const clv_value *v, uint32_t name) {
  return name == 0 && v->is_rounded_for_master && v->tensor && v->tensor->dtype == CLV_F32;
}

bool clv_value_can_stream_to(const clv_contexts *e, const clv_value *v, const clv_delivery *d,
                             size_t bytes) {
  bool is_rounded = d->name == 0 && v->is_rounded_for_master;
  return !d->kept_ref && !is_rounded && clv_outbox_can_stream(e, d->name, bytes);
}

static clv_code send_value(clv_contexts *e, const clv_value *v, uint32_t name, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *bf16 = NULL;
  clv_packet *p;
  if (!v->failure && is_rounded_for(v, name))
    CLV_TRY(clv_pool_convert_tensor(e->env.pool, v->tensor->device ? v->host_copy : v->tensor,
                                    CLV_BF16, &bf16, err));
  CLV_TRY(clv_outbox_new_packet(e, CLV_VALUE, v->ctx, v->id, name, &p, err));
  if (bf16)
    clv_packet_add_tensor_being_copied(p, bf16, NULL);
  else
    fill_value_packet(v, p);
  clv_context_trace_packet(e, v->ctx, CLV_TRACE_VALUE_OUT, p, clv_contexts_now(e));
  clv_outbox_send(e, p);
  return CLV_OK;
}

clv_code clv_value_on_event(clv_contexts *e, clv_value *v, clv_value_event event, clv_action *ret,
                            clv_err *err) {
  const clv_cell *cell;
  CLV_TRY(
      clv_table_apply_event(e->env.transition_counts, MACHINE_VALUE, &v->state, event, &cell, err));
  if (cell->action == CELL_REFUSE && event == VALUE_GRADIENT)
    return clv_fail(err, cell->code, "a gradient for value %llu, which %s",
                    (unsigned long long)v->id, cell->text);
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "value %llu %s", (unsigned long long)v->id, cell->text);
  *ret = cell->action;
  return CLV_OK;
}

bool clv_call_take_input(clv_contexts *e, clv_context_call *c, uint32_t slot, clv_value *v) {
  clv_tensor *t = NULL;
  clv_err why;
  clv_code code = v->tensor && !v->failure ? get_tensor_for_module(e, v, c->mod, &t, &why) : CLV_OK;
  if (code == CLV_OK && !t && !v->failure) return false;
  if (t) {
    c->in[slot] = clv_tensor_ref(t);
    if (v->producer && v->producer->mod && c->mod)
      clv_module_count_transfer(c->mod, v->producer->mod, t);
    return true;
  }
  if (!c->failure)
    c->failure = code != CLV_OK ? clv_shared_err_new_in_module(e, &why, c->module)
                                : clv_shared_err_ref(v->failure);
  clv_queue_remove_call(e, c);
  return true;
}

/* Sends a settled value to its deliveries. While the value is being copied from a device,
 * deliveries that need the complete tensor wait. Kept values are stored in host memory, because
 * they outlive modules. */
static clv_code deliver_to_consumers(clv_contexts *e, clv_value *v, clv_err *err) {
  clv_code code = CLV_OK;
  clv_tensor *t = NULL;
  clv_err why;
  if (v->deliveries && v->tensor && !v->failure && get_host_copy(e, v, &t, &why) != CLV_OK)
    v->failure = clv_shared_err_new(e, &why, "");
  for (clv_delivery **at = &v->deliveries, *d; (d = *at) != NULL;) {
    bool waits = !t && !v->failure;
    if (waits && !clv_value_can_stream_to(e, v, d, v->tensor->bytes)) {
      at = &d->next;
      continue;
    }
    *at = d->next;
    if (d->kept_ref) {
      clv_outbox_add_kept_value(e, d, t, v->failure);
      continue;
    }
    if (code == CLV_OK) code = send_value(e, v, d->name, err);
    clv_slab_recycle(&e->deliveries, d);
  }
  return code;
}

/* Passes a settled value to the calls that use it. */
static void pass_value_to_calls(clv_contexts *e, clv_value *v) {
  for (clv_input_use **at = &v->uses, *u; (u = *at) != NULL;) {
    clv_context_call *c = u->call;
    if (!clv_call_take_input(e, c, (uint32_t)(u - c->uses), v)) {
      at = &u->next;
      continue;
    }
    *at = u->next;
    clv_call_dependency_done(e, c);
  }
}

clv_code clv_value_settle(clv_contexts *e, clv_value *v, clv_tensor *tensor, clv_shared_err *failed,
                          clv_err *err) {
  if (tensor) v->tensor = clv_tensor_ref(tensor);
  v->failure = failed;
  pass_value_to_calls(e, v);
  return deliver_to_consumers(e, v, err);
}

/* ---- the end of a copy ----------------------------------------------------------------------- */

/* Fails a value whose copy to host memory failed. */
static void fail_value_copy(clv_contexts *e, clv_value *v, const clv_err *why) {
  v->host_copy = clv_tensor_unref(v->host_copy);
  if (!v->failure) v->failure = clv_shared_err_new(e, why, "");
}

static clv_code finish_copy(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                            clv_err *err) {
  clv_copy *k = clv_copy_of_work(w);
  clv_value *v = k->value;
  if (code == CLV_OK && k->packet) clv_outbox_send(e, clv_steal(&k->packet));
  clv_copy_free(e, k);
  if (!v) return CLV_OK;
  if (code != CLV_OK) fail_value_copy(e, v, why);
  pass_value_to_calls(e, v);
  code = deliver_to_consumers(e, v, err);
  clv_value_free_if_dropped(e, v);
  return code;
}

const clv_work_type clv_work_of_copy = {.compute = clv_copy_compute, .finish = finish_copy};

/* ---- adding consumers of a value ------------------------------------------------------------- */

clv_code clv_value_add_delivery(clv_contexts *e, clv_value *v, uint32_t name, clv_err *err) {
  clv_delivery *d;
  CLV_TRY(clv_contexts_slab_alloc(e, &e->deliveries, &d, err));
  d->name = name;
  d->next = v->deliveries;
  v->deliveries = d;
  return CLV_OK;
}

/* ---- handling DELIVER, VALUE and DROP -------------------------------------------------------- */

clv_code clv_on_deliver(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  uint32_t name;
  clv_value *v;
  clv_action action;
  CLV_TRY(clv_contexts_index_of_name(e, p->frame.to, &name, err));
  CLV_TRY(clv_context_get_or_create_value(e, ctx, p->frame.message_id, &v, err));
  CLV_TRY(clv_value_on_event(e, v, VALUE_DELIVERY_ADDED, &action, err));
  CLV_TRY(clv_value_add_delivery(e, v, name, err));
  return action == CELL_GIVE ? deliver_to_consumers(e, v, err) : CLV_OK;
}

/* Queues a failure as the result for reference `ref`, because the context of its value has
 * ended. */
static clv_code add_kept_failure(clv_contexts *e, uint64_t ref, clv_err *err) {
  clv_delivery *d;
  CLV_TRY(clv_contexts_slab_alloc(e, &e->deliveries, &d, err));
  d->kept_ref = ref;
  clv_outbox_add_kept_value(e, d, NULL, &clv_shared_err_context_ended);
  return CLV_OK;
}

clv_code clv_contexts_keep_value(clv_contexts *e, uint64_t ref, uint64_t id, uint64_t value_id,
                                 clv_err *err) {
  clv_context *ctx;
  clv_value *v;
  clv_action action;
  CLV_TRY(clv_context_get_or_create(e, id, &ctx, err));
  bool is_freed = ctx->state == CONTEXT_ENDING && !clv_context_find_value(e, ctx, value_id);
  if (is_freed || ctx->state == CONTEXT_ENDED) return add_kept_failure(e, ref, err);
  CLV_TRY(clv_context_get_or_create_value(e, ctx, value_id, &v, err));
  CLV_TRY(clv_value_on_event(e, v, VALUE_KEPT, &action, err));
  CLV_TRY(clv_value_add_delivery(e, v, 0, err));
  v->deliveries->kept_ref = ref;
  return action == CELL_GIVE ? deliver_to_consumers(e, v, err) : CLV_OK;
}

clv_code clv_on_value(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_value *v;
  clv_action action;
  clv_context_trace_packet(e, ctx, CLV_TRACE_VALUE_IN, p, p->completed_ns);
  CLV_TRY(clv_context_get_or_create_value(e, ctx, f->message_id, &v, err));
  CLV_TRY(clv_value_on_event(e, v, VALUE_RECEIVED, &action, err));
  if (action == CELL_IGNORE) return CLV_OK; /* the VALUE was repeated */
  clv_code code = clv_value_settle(e, v, f->n_tensors ? p->tensor[0] : NULL,
                                   f->has_failure ? clv_shared_err_from_frame(e, f) : NULL, err);
  clv_value_free_if_dropped(e, v);
  return code;
}

clv_code clv_on_drop(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  (void)err;
  for (uint32_t i = 0; i < p->frame.n_value_ids; i++) {
    clv_value *v = clv_context_find_value(e, ctx, p->frame.value_ids[i]);
    if (!v) continue;
    v->is_dropped = true;
    clv_value_free_if_dropped(e, v);
  }
  return CLV_OK;
}

/* Handles SPARE: marks values that another node's kept values depend on. Ids without a record are
 * skipped; the mark of a settled value has no effect. */
clv_code clv_on_spare(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  (void)err;
  for (uint32_t i = 0; i < p->frame.n_value_ids; i++) {
    clv_value *v = clv_context_find_value(e, ctx, p->frame.value_ids[i]);
    if (v) v->needed_by_peer = true;
  }
  return CLV_OK;
}
