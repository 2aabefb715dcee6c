/* SPDX-License-Identifier: Apache-2.0
 *
 * The outbox of the engine: results of work wait here until the node takes them, after each piece
 * of work. The engine never calls the node.
 */
#include <string.h>

#include "common/engine/context_int.h"

void clv_packet_list_add(clv_packet_list *l, clv_packet *p) {
  p->next = NULL;
  *(l->last ? &l->last->next : &l->first) = p;
  l->last = p;
}

clv_packet *clv_packet_list_take(clv_packet_list *l) {
  clv_packet *p = l->first;
  if (!p) return NULL;
  l->first = p->next;
  if (!l->first) l->last = NULL;
  return p;
}

/* ---- adding results to the outbox ------------------------------------------------------------ */

clv_code clv_outbox_new_packet(clv_contexts *e, clv_frame_kind kind, const clv_context *c,
                               uint64_t message_id, uint32_t name, clv_packet **ret, clv_err *err) {
  CLV_TRY(clv_packet_new(e->env.pool, kind, ret, err));
  (*ret)->frame.context = c->id;
  (*ret)->frame.message_id = message_id;
  memcpy((*ret)->frame.to, e->names[name], sizeof(*ret)->frame.to);
  return CLV_OK;
}

void clv_outbox_send(clv_contexts *e, clv_packet *p) {
  clv_packet_list_add(&e->packets_to_send, p);
}

bool clv_outbox_can_stream(const clv_contexts *e, uint32_t name, size_t bytes) {
  return (name || !e->env.has_program) && bytes > CLV_WIRE_INLINE_MAX;
}

void clv_outbox_add_state_frame(clv_contexts *e, clv_packet *p) {
  clv_packet_list_add(&e->state_frames, p);
}

void clv_outbox_refuse(clv_contexts *e, clv_packet *p, const clv_err *why) {
  clv_frame_set_failure(&p->frame, why->code, why->text, "");
  memcpy(p->frame.failure.offending_value, why->offending_value, sizeof why->offending_value);
  clv_packet_list_add(&e->refused_packets, p);
}

void clv_outbox_add_kept_value(clv_contexts *e, clv_delivery *d, clv_tensor *tensor,
                               clv_shared_err *failed) {
  d->next = NULL;
  d->tensor = tensor ? clv_tensor_ref(tensor) : NULL;
  d->failure = failed ? clv_shared_err_ref(failed) : NULL;
  *(e->last_kept_result ? &e->last_kept_result->next : &e->kept_results) = d;
  e->last_kept_result = d;
}

/* ---- taking results from the outbox ---------------------------------------------------------- */

static bool take_packet(clv_packet_list *l, clv_result_kind kind, clv_result *ret) {
  *ret = (clv_result){.kind = kind, .packet = clv_packet_list_take(l)};
  return ret->packet;
}

static bool take_kept_value(clv_contexts *e, clv_result *ret) {
  clv_delivery *d = e->kept_results;
  if (!d) return false;
  e->kept_results = d->next;
  if (!e->kept_results) e->last_kept_result = NULL;
  *ret = (clv_result){
      .kind = CLV_RESULT_KEPT, .ref = d->kept_ref, .tensor = d->tensor, .failure = d->failure};
  clv_slab_recycle(&e->deliveries, d);
  return true;
}

bool clv_contexts_take_result(clv_contexts *e, clv_result *ret) {
  return take_packet(&e->packets_to_send, CLV_RESULT_SEND, ret) ||
         take_packet(&e->state_frames, CLV_RESULT_STATE, ret) ||
         take_packet(&e->refused_packets, CLV_RESULT_REFUSED, ret) || take_kept_value(e, ret);
}

void clv_result_clear(clv_contexts *e, clv_result *r) {
  if (!r) return;
  clv_tensor_unref(r->tensor);
  clv_shared_err_unref(e, r->failure);
}

void clv_outbox_free(clv_contexts *e) {
  if (!e) return;
  clv_result r;
  while (clv_contexts_take_result(e, &r)) {
    clv_packet_free(r.packet);
    clv_result_clear(e, &r);
  }
}
