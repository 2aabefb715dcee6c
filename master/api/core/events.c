/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles the answers of nodes. The functions run on the threads of rpc for workers, and on the
 * node's thread for the master's own node, so they neither compute nor wait. Answers of a worker
 * are not trusted: an answer is dropped unless it names a context, value or request that waits for
 * it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/api/core/module_int.h"
#include "master/api/core/incarnations_int.h"

/* time for which a worker's report of a broken link to another worker is held back, ns; if that
 * worker is lost, its own link to the master ends within this time */
enum { BROKEN_LINK_WAIT_NS = 500 * 1000 * 1000 };

/* Handler of one kind of frame. Returns true if it has taken ownership of the packet. Sets
 * rt->needs_wake if sleeping threads must check again what they wait for. They are not woken after
 * each frame, because a wake-up costs more than most handlers. */
typedef bool packet_handler(cleave_runtime *rt, api_peer *from, clv_packet *p);

/* Forwards a packet that is addressed to another node. Returns false if there is no such node. */
static bool relay_packet(cleave_runtime *rt, clv_packet *p) {
  int to = api_find_node_by_wire_name(rt, p->frame.to);
  uint64_t id = p->frame.context; /* saved for the error below, because api_send frees the packet */
  cleave_error why;
  if (to <= 0) return false;
  if (api_send(rt, (uint32_t)to, p, &why) != CLEAVE_OK) {
    api_context *c = api_id_table_get(&rt->contexts, id);
    if (c) api_context_fail(rt, c, &why, 0);
  }
  return true;
}

static bool has_same_type_and_shape(const clv_tensor *t, const api_value *v) {
  return t->dtype == v->dtype && clv_shape_equal(&t->shape, &v->shape);
}

/* True if the tensor is the copy of a value that the program asked for in bf16. */
static bool is_rounded_copy(const clv_tensor *t, const api_value *v) {
  return v->is_fetched_as_bf16 && t->dtype == CLV_BF16 && clv_shape_equal(&t->shape, &v->shape);
}

/* Stores the program's copy of a value. If the program wants bf16 and the worker does not support
 * it, the worker has sent f32, which is rounded here. */
static void store_local_tensor(cleave_runtime *rt, api_value *v, clv_tensor *t) {
  clv_err err;
  if (v->local_tensor) return;
  if (!v->is_fetched_as_bf16 || t->dtype == CLV_BF16) {
    v->local_tensor = clv_tensor_ref(t);
  } else if (clv_pool_convert_tensor(rt->pool, t, CLV_BF16, &v->local_tensor, &err) != CLV_OK) {
    v->has_failed = true;
    api_convert_error(&v->failure, &err);
  }
}

static bool on_value(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  if (p->frame.to[0]) return relay_packet(rt, p);
  api_value *v = api_id_table_get(&rt->values, p->frame.message_id);
  if (!v || !v->module || v->module->node != from->index || v->context->id != p->frame.context)
    return false;
  rt->needs_wake |= v->n_waiters > 0;
  if (p->frame.has_failure && !v->has_failed) {
    v->has_failed = true;
    api_failure_from_frame(from, &p->frame, &v->failure);
  }
  if (p->frame.n_tensors == 1 && !has_same_type_and_shape(p->tensor[0], v) &&
      !is_rounded_copy(p->tensor[0], v)) {
    v->has_failed = true;
    api_fail(&v->failure, CLV_BAD_ANSWER, "module '%s' answered with a tensor of another shape",
             v->module->name);
    api_set_error_node(&v->failure, from->name, v->module->name);
    if (v->is_awaited_by_master_node) api_context_fail(rt, v->context, &v->failure, 0);
    return false;
  }
  v->is_received |= p->frame.n_tensors == 1;
  if (p->frame.n_tensors == 1) store_local_tensor(rt, v, p->tensor[0]);
  if (from->index == 0 || !v->is_awaited_by_master_node) return false;
  if (v->has_failed) api_failure_to_frame(v, &p->frame);
  clv_node_post(rt->node, p);
  return true;
}

/* Sums the contributions to a leaf's gradient in the order of the tape, so that the sum does not
 * depend on the order in which they have arrived. */
static void sum_contributions(cleave_runtime *rt, api_value *v) {
  for (uint32_t i = 0; i < v->n_contributions; i++) {
    clv_tensor *t = clv_steal(&v->contributions[i]);
    if (t && !v->gradient) {
      clv_err err;
      cleave_error why;
      if (clv_pool_alloc_tensor(rt->pool, v->dtype, &v->shape, &v->gradient, &err) == CLV_OK) {
        memcpy(v->gradient->data, t->data, t->bytes);
      } else {
        api_convert_error(&why, &err);
        api_context_fail(rt, v->context, &why, 0);
      }
    } else if (t && t->dtype == CLV_BF16) {
      clv_bf16_add(v->gradient->data, t->data, t->n);
    } else if (t) {
      clv_backend_cpu()->add(clv_backend_cpu(), CLV_F32, v->gradient->data, t->data, t->n);
    }
    clv_tensor_unref(t);
  }
}

/* Passes a gradient to the master's own node, if the gradient is for a call at that node. Returns
 * true if the gradient was passed on. */
static bool take_local_gradient(cleave_runtime *rt, const api_peer *from, api_value *v,
                                clv_packet *p) {
  cleave_error why;
  if (v->module->node != 0 || from->index == 0) return false;
  if (p->frame.n_tensors == 1 && !has_same_type_and_shape(p->tensor[0], v)) {
    api_fail(&why, CLV_BAD_ANSWER, "worker '%s' sent a gradient of another shape for module '%s'",
             from->name, v->module->name);
    api_set_error_node(&why, from->name, v->module->name);
    api_context_fail(rt, v->context, &why, 0);
    return false;
  }
  v->n_contributions_received++;
  clv_node_post(rt->node, p);
  return true;
}

static bool on_gradient(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  const clv_frame *f = &p->frame;
  if (f->to[0]) return relay_packet(rt, p);
  api_value *v = api_id_table_get(&rt->values, f->message_id);
  if (!v || v->context->id != f->context || f->backward_pass_number != v->last_pass_number ||
      f->contribution_index >= v->n_contributions ||
      v->n_contributions_received >= v->n_contributions)
    return false;
  if (v->module) return take_local_gradient(rt, from, v, p);
  api_context *c = v->context;
  if (f->n_tensors == 1) {
    clv_tensor **contribution = &v->contributions[f->contribution_index];
    if (*contribution || !has_same_type_and_shape(p->tensor[0], v)) return false;
    *contribution = clv_tensor_ref(p->tensor[0]);
  }
  if (++v->n_contributions_received == v->n_contributions) sum_contributions(rt, v);
  rt->needs_wake |= --c->n_leaf_gradients_missing == 0;
  return false;
}

static bool on_finished(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  api_context *c = api_id_table_get(&rt->contexts, p->frame.context);
  if (!c || !c->is_backward_running || p->frame.backward_pass_number != c->last_pass_number)
    return false;
  c->nodes_finished_pass |= NODE_BIT(from->index);
  rt->needs_wake |= !(c->nodes_in_pass & ~c->nodes_finished_pass);
  if (!p->frame.has_vote) return false;
  c->nodes_with_nonfinite_gradients &= ~NODE_BIT(from->index);
  if (!p->frame.vote.is_finite) c->nodes_with_nonfinite_gradients |= NODE_BIT(from->index);
  clv_tensor_unref(c->votes[from->index]);
  c->votes[from->index] =
      p->frame.n_tensors && p->tensor[0]->dtype == CLV_F64 ? clv_tensor_ref(p->tensor[0]) : NULL;
  return false;
}

/* Counts an answer to APPLY or REVERT, which may be an error. After the last answer the step is
 * decided or reverted. */
static void count_step_answer(cleave_runtime *rt, api_context *c, const clv_packet *p) {
  if (!c || !c->n_step_answers_missing || p->frame.reply_to < c->first_apply_message_id ||
      --c->n_step_answers_missing)
    return;
  rt->needs_wake = true;
  if (!c->has_failed && p->frame.kind == CLV_APPLIED) api_on_step_answered(rt, c);
}

static bool on_applied(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  api_context *c = api_id_table_get(&rt->contexts, p->frame.context);
  (void)from;
  count_step_answer(rt, c, p);
  return false;
}

static bool on_ended(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  api_context *c = api_id_table_get(&rt->contexts, p->frame.context);
  if (!c) return false;
  if (c->records_events && !((c->nodes_ended | c->nodes_keeping_calls) & NODE_BIT(from->index)))
    api_report_events(rt, from, p);
  bool keeps_calls = c->keeps_needed_calls && p->frame.step;
  *(keeps_calls ? &c->nodes_keeping_calls : &c->nodes_ended) |= NODE_BIT(from->index);
  bool is_awaited = c->state != API_CONTEXT_ENDING || rt->n_end_waiters;
  rt->needs_wake |= is_awaited && !(c->nodes_used & ~c->nodes_ended & ~c->nodes_keeping_calls &
                                    ~api_lost_nodes(rt));
  api_context_free_if_ended(rt, c);
  return false;
}

static api_state_request *find_request(cleave_runtime *rt, const api_peer *from, uint64_t id) {
  for (api_state_request *r = rt->state_requests; r; r = r->next)
    if (r->id == id && r->node == from->index) return r;
  return NULL;
}

/* Stores an item of an answer. Items arrive in any order. An index outside the list is ignored, and
 * a later check reports the missing item. */
static void store_item(api_state_request *r, const clv_packet *p) {
  uint32_t i = p->frame.state.item_index;
  if (i >= r->n_items_expected || r->items[i].tensor || p->frame.n_tensors != 1) return;
  r->items[i].tensor = clv_tensor_ref(p->tensor[0]);
  memcpy(r->items[i].name, p->frame.state.item_or_file_name, sizeof r->items[i].name);
}

static bool on_state_item(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  api_state_request *r = find_request(rt, from, p->frame.reply_to);
  if (!r) return false;
  r->n_items_received++;
  rt->needs_wake |= r->is_answered;
  if (r->items) store_item(r, p);
  if (r->item_name && !r->item_tensor && p->frame.n_tensors == 1 &&
      strcmp(r->item_name, p->frame.state.item_or_file_name) == 0) {
    r->item_tensor = clv_tensor_ref(p->tensor[0]);
    snprintf(r->device, sizeof r->device, "%.*s", API_DEVICE_NAME_BYTES - 1,
             p->frame.state.device_name);
  }
  return false;
}

/* Handles STATE_DONE, the last answer to STATE_GET. The frame has the number of items, because it
 * may arrive before large items do. */
static bool on_state_done(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  api_state_request *r = find_request(rt, from, p->frame.reply_to);
  if (!r || r->is_for_file) return false;
  r->is_answered = rt->needs_wake = true;
  if (!r->items) r->n_items_expected = r->item_name ? p->frame.state.n_items : 0;
  if (r->may_have_fewer_items)
    r->n_items_expected = CLV_MIN(r->n_items_expected, p->frame.state.n_items);
  return false;
}

static bool on_state_file(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  api_state_request *r = find_request(rt, from, p->frame.reply_to);
  if (!r || !r->is_for_file) return false;
  r->is_answered = rt->needs_wake = true;
  r->file_bytes = p->frame.state.file_bytes;
  r->file_sha256 = p->frame.state.file_sha256;
  return false;
}

/* Records the report of worker `from` that its link to worker `to` has ended. Either `to` is lost,
 * which its own link to the master will show soon, or both workers are alive and cannot reach each
 * other. */
static void record_broken_link(cleave_runtime *rt, const api_peer *from, const char *to,
                               const cleave_error *why) {
  int other_node = api_find_node(rt, to);
  bool is_of_earlier_incarnation =
      from->n_rejoins || (other_node > 0 && rt->peers[other_node].n_rejoins);
  if (rt->broken_link_error.status || is_of_earlier_incarnation) return;
  rt->broken_link_error = *why;
  rt->broken_link_error.status = (cleave_status)api_get_loss_code((clv_code)why->status);
  rt->broken_link_worker = from->index;
  rt->broken_link_neighbour = other_node > 0 ? (uint32_t)other_node : from->index;
  rt->broken_link_wait_until_ns = api_now(rt) + BROKEN_LINK_WAIT_NS;
}

void api_on_suppressed_logs(void *user, const clv_log_entry *e) {
  const cleave_runtime *rt = user;
  clv_notify(rt->on_notice, "worker '%s': %llu more %s were left out", e->peer,
             (unsigned long long)e->n_dropped, e->event_kind);
}

/* Notifies the program of a worker's error that answers no request of this process. Limits the rate
 * of such notices, because a worker may send any number of such errors. */
static void notify_unrequested(cleave_runtime *rt, const api_peer *from, const char *text) {
  const clv_log_source source = {.peer = from->name, .event_kind = "complaints"};
  if (clv_log_limiter_pass(&rt->worker_log_limiter, CLV_LOG_WARN, "notice", &source,
                           api_now(rt) / 1000000u))
    clv_notify(rt->on_notice, "worker '%s': %s", from->name, text);
}

static bool on_abort(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  cleave_error why;
  api_failure_from_frame(from, &p->frame, &why);
  api_context *c = api_id_table_get(&rt->contexts, p->frame.context);
  api_state_request *r = find_request(rt, from, p->frame.reply_to);
  if (p->frame.kind == CLV_ERROR && api_on_unload_error(rt, from, &p->frame) &&
      p->frame.failure.code == CLV_NOT_FOUND)
    return false;
  count_step_answer(rt, c, p);
  rt->needs_wake = true;
  if (!p->frame.context && p->frame.kind == CLV_ABORT)
    record_broken_link(rt, from, p->frame.failure.detected_at, &why);
  if (!p->frame.context && p->frame.kind == CLV_ERROR && !r) notify_unrequested(rt, from, why.text);
  /* a context that had failed before has reported its error already */
  if (c && c->state == API_CONTEXT_ENDING && !c->has_failed &&
      rt->deferred_error.status == CLEAVE_OK)
    rt->deferred_error = why;
  if (c && !c->has_failed)
    memcpy(c->failure_hop, p->frame.failure.detected_at, sizeof c->failure_hop);
  if (c && !r) api_context_fail(rt, c, &why, 0);
  if (r && !r->has_failed) {
    r->has_failed = true;
    r->failure = why;
  }
  return false;
}

/* Forwards a reference frame to another node. If the tensor of the frame cannot be sent, the
 * receiver gets the failure in place of the tensor. */
static void relay_reference(cleave_runtime *rt, const api_peer *from, clv_packet *p) {
  int to = api_find_node_by_wire_name(rt, p->frame.to);
  cleave_error why;
  clv_packet *failure_packet;
  if (to <= 0) {
    clv_packet_free(p);
    return;
  }
  memset(p->frame.reference.node_name, 0, sizeof p->frame.reference.node_name);
  snprintf(p->frame.reference.node_name, sizeof p->frame.reference.node_name, "%s",
           api_wire_name(from));
  clv_frame frame = p->frame; /* a copy, because api_send frees the packet */
  if (api_send(rt, (uint32_t)to, p, &why) == CLEAVE_OK || !frame.n_tensors) return;
  if (api_packet_new(rt, CLV_REF_VALUE, 0, 0, &failure_packet, NULL) != CLEAVE_OK) return;
  failure_packet->frame.reference = frame.reference;
  memcpy(failure_packet->frame.to, frame.to, sizeof frame.to);
  failure_packet->frame.has_failure = true;
  clv_frame_set_failure(&failure_packet->frame, (clv_code)why.status, why.text, "master");
  (void)api_send(rt, (uint32_t)to, failure_packet, NULL);
}

/* Handles a REF_ frame. A frame of the master's own node answers the program. A worker's request to
 * the master is passed to the master's own node. Only the program makes references and passes them
 * on, so KEEP, USE and ACCEPT of workers are dropped. Returns true if the packet was passed on. */
static bool on_reference(cleave_runtime *rt, api_peer *from, clv_packet *p) {
  clv_frame_kind kind = p->frame.kind;
  if (!from->index) {
    if (rt->kept_ops) rt->kept_ops->on_owner_answer(rt, p);
    return false;
  }
  if (kind == CLV_REF_KEEP || kind == CLV_REF_USE) return false;
  if (!p->frame.to[0]) {
    clv_node_post(rt->node, p);
    return true;
  }
  if (kind == CLV_REF_ACCEPT) return false;
  relay_reference(rt, from, p);
  return true;
}

static packet_handler *const packet_handlers[CLV_FRAME_KINDS] = {
    [CLV_VALUE] = on_value,           [CLV_GRADIENT] = on_gradient,
    [CLV_FINISHED] = on_finished,     [CLV_APPLIED] = on_applied,
    [CLV_ENDED] = on_ended,           [CLV_STATE_ITEM] = on_state_item,
    [CLV_STATE_DONE] = on_state_done, [CLV_STATE_FILE] = on_state_file,
    [CLV_UNLOADED] = api_on_unloaded, [CLV_ABORT] = on_abort,
    [CLV_ERROR] = on_abort,           [CLV_REF_KEEP] = on_reference,
    [CLV_REF_USE] = on_reference,     [CLV_REF_FORK] = on_reference,
    [CLV_REF_ACCEPT] = on_reference,  [CLV_REF_DELETE] = on_reference,
    [CLV_REF_FETCH] = on_reference,   [CLV_REF_VALUE] = on_reference,
    [CLV_REF_RENEW] = on_reference,   [CLV_REF_ACK] = on_reference,
};

void api_on_packet(api_peer *from, clv_packet *p) {
  cleave_runtime *rt = from->runtime;
  bool is_packet_taken = false;
  api_lock(rt);
  if (packet_handlers[p->frame.kind]) is_packet_taken = packet_handlers[p->frame.kind](rt, from, p);
  bool must_wake = rt->needs_wake;
  rt->needs_wake = false;
  api_unlock(rt);
  if (must_wake) api_wake(rt);
  if (!is_packet_taken) clv_packet_free(p);
}

void api_on_program_packet(void *user, clv_packet *p) {
  cleave_runtime *rt = user;
  api_on_packet(&rt->peers[0], p);
}
