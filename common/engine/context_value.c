/* SPDX-License-Identifier: Apache-2.0
 *
 * Values: who waits for one gets it, or its failure; DELIVER, VALUE and DROP.
 */
#include "common/engine/context_int.h"

#include <stdio.h>
#include <string.h>

static clv_code send_value(clv_contexts *e, const clv_value *v, uint32_t name, clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_context_packet(e, CLV_VALUE, v->ctx, v->id, name, &p, err));
  if (v->tensor) {
    clv_packet_add(p, v->tensor);
  } else {
    p->frame.has_failure = true;
    clv_shared_err_put(v->failed, &p->frame);
  }
  clv_context_note_packet(e, v->ctx, CLV_TRACE_VALUE_OUT, p, clv_now_ns());
  e->env.emit(e->env.user, p);
  return CLV_OK;
}

bool clv_value_is_settled(const clv_value *v) { return v->tensor || v->failed; }

void clv_call_take_input(clv_contexts *e, clv_context_call *c, uint32_t slot, const clv_value *v) {
  if (v->tensor) {
    c->in[slot] = clv_tensor_ref(v->tensor);
    return;
  }
  if (!c->failed) c->failed = clv_shared_err_ref(v->failed);
  clv_queue_leave(e, c);
}

clv_code clv_value_settle(clv_contexts *e, clv_value *v, clv_tensor *tensor, clv_shared_err *failed,
                          clv_err *err) {
  clv_code code = CLV_OK;
  if (tensor) v->tensor = clv_tensor_ref(tensor);
  v->failed = failed;
  for (clv_input_use *u = v->uses, *next; u; u = next) {
    next = u->next;
    clv_context_call *c = u->call;
    clv_call_take_input(e, c, (uint32_t)(u - c->uses), v);
    clv_call_one_less(e, c);
  }
  v->uses = NULL;
  while (v->deliveries) {
    clv_delivery *d = v->deliveries;
    if (d->keep)
      e->env.kept(e->env.user, d->keep, v->tensor, v->failed);
    else if (code == CLV_OK)
      code = send_value(e, v, d->name, err);
    v->deliveries = d->next;
    clv_slab_give(&e->deliveries, d);
  }
  return code;
}

/* A dropped value stays while something here waits for it. */
void clv_value_free_if_dropped(clv_contexts *e, clv_value *v) {
  const clv_context_call *c = v->maker;
  bool waiting = c && (c->phase == WAITING || c->needed || c->followers || c->weight_due ||
                       c->places[ORDER_WEIGHT].position); /* which is to be counted, due or not */
  if (v->dropped && !v->uses && !v->deliveries && !waiting) clv_value_free(e, v);
}

clv_code clv_value_add_delivery(clv_contexts *e, clv_value *v, uint32_t name, clv_err *err) {
  clv_delivery *d;
  CLV_TRY(clv_slab_take(e, &e->deliveries, &d, err));
  d->name = name;
  d->next = v->deliveries;
  v->deliveries = d;
  return CLV_OK;
}

/* ---- DELIVER, VALUE, DROP -------------------------------------------------------------------- */

clv_code clv_on_deliver(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  uint32_t name;
  clv_value *v;
  CLV_TRY(clv_name_index(e, p->frame.to, &name, err));
  CLV_TRY(clv_context_value_made(e, ctx, p->frame.message, &v, err));
  return clv_value_is_settled(v) ? send_value(e, v, name, err)
                                 : clv_value_add_delivery(e, v, name, err);
}

clv_code clv_contexts_keep(clv_contexts *e, uint64_t ref, uint64_t id, uint64_t value_id,
                           clv_err *err) {
  clv_context *ctx;
  clv_value *v;
  CLV_TRY(clv_context_open(e, id, &ctx, err));
  if (!ctx) {
    e->env.kept(e->env.user, ref, NULL, &clv_shared_err_ended);
    return CLV_OK;
  }
  CLV_TRY(clv_context_value_made(e, ctx, value_id, &v, err));
  if (clv_value_is_settled(v)) {
    e->env.kept(e->env.user, ref, v->tensor, v->failed);
    return CLV_OK;
  }
  CLV_TRY(clv_value_add_delivery(e, v, 0, err));
  v->deliveries->keep = ref;
  return CLV_OK;
}

clv_code clv_on_value(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_value *v;
  clv_shared_err *failed = NULL;
  clv_context_note_packet(e, ctx, CLV_TRACE_VALUE_IN, p, p->arrived_ns);
  CLV_TRY(clv_context_value_made(e, ctx, f->message, &v, err));
  if (v->maker)
    return clv_fail(err, CLV_PRECONDITION, "value %llx is made here",
                    (unsigned long long)f->message);
  if (clv_value_is_settled(v)) return CLV_OK; /* a repeat */
  if (f->has_failure) {
    clv_err why = {.code = f->failure.code};
    snprintf(why.text, sizeof why.text, "%s", f->failure.text);
    memcpy(why.element, f->failure.element, sizeof why.element); /* empty from another process */
    failed = clv_shared_err_of(e, &why, f->failure.hop);
  }
  CLV_TRY(clv_value_settle(e, v, f->n_tensors ? p->tensor[0] : NULL, failed, err));
  clv_value_free_if_dropped(e, v);
  return clv_contexts_run(e, err);
}

clv_code clv_on_drop(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  (void)err;
  for (uint32_t i = 0; i < p->frame.n_upstream; i++) {
    clv_value *v = clv_context_value(e, ctx, p->frame.upstream[i]);
    if (!v) continue;
    v->dropped = true;
    clv_value_free_if_dropped(e, v);
  }
  return CLV_OK;
}
