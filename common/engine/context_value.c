/* SPDX-License-Identifier: Apache-2.0
 *
 * Values: who waits for one gets it, or its failure; DELIVER, VALUE and DROP. One that lies on a
 * device comes to the host's memory when somebody wants it who is not on a device.
 */
#include "common/engine/context_int.h"

/* ---- where it lies --------------------------------------------------------------------------- */

clv_code clv_contexts_bring(const clv_contexts *e, const clv_tensor *t, clv_tensor **ret,
                            clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *host = NULL;
  CLV_TRY(clv_pool_tensor(e->env.pool, t->dtype, &t->shape, &host, err));
  pthread_mutex_t *computing = e->env.computing;
  if (computing) pthread_mutex_lock(computing);
  clv_code code = clv_backend_get(t->home, host->data, t->data, t->bytes, err);
  if (computing) pthread_mutex_unlock(computing);
  CLV_TRY(code);
  *ret = clv_steal(&host);
  return CLV_OK;
}

static clv_code on_host(const clv_contexts *e, clv_value *v, clv_tensor **ret, clv_err *err) {
  if (v->tensor->home && !v->host) CLV_TRY(clv_contexts_bring(e, v->tensor, &v->host, err));
  *ret = v->tensor->home ? v->host : v->tensor;
  return CLV_OK;
}

/* Where a call of the module can take it from. */
static clv_code for_module(const clv_contexts *e, clv_value *v, const clv_module *m,
                           clv_tensor **ret, clv_err *err) {
  bool reads = !m || !v->tensor->home || clv_backend_reaches(m->o.backend, v->tensor->home);
  if (!reads) return on_host(e, v, ret, err);
  *ret = v->tensor;
  return CLV_OK;
}

/* ---- who gets it ----------------------------------------------------------------------------- */

/* The tensor, or why there is none. */
static void fill_value(clv_contexts *e, clv_value *v, clv_packet *p) {
  clv_tensor *t = NULL;
  clv_err why;
  clv_code code = v->tensor ? on_host(e, v, &t, &why) : CLV_OK;
  if (t) {
    clv_packet_add(p, t);
    return;
  }
  clv_shared_err *failed = code != CLV_OK ? clv_shared_err_of(e, &why, "") : v->failed;
  p->frame.has_failure = true;
  clv_shared_err_put(failed, &p->frame);
  if (code != CLV_OK) clv_shared_err_unref(e, failed);
}

static clv_code send_value(clv_contexts *e, clv_value *v, uint32_t name, clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_exit_packet(e, CLV_VALUE, v->ctx, v->id, name, &p, err));
  fill_value(e, v, p);
  clv_context_note_packet(e, v->ctx, CLV_TRACE_VALUE_OUT, p, clv_contexts_now(e));
  clv_exit_send(e, p);
  return CLV_OK;
}

clv_code clv_value_meets(clv_contexts *e, clv_value *v, clv_value_fact fact, clv_action *ret,
                         clv_err *err) {
  const clv_cell *cell;
  CLV_TRY(clv_table_step(e->env.walked, MACHINE_VALUE, &v->state, fact, &cell, err));
  if (cell->action == CELL_REFUSE && fact == VALUE_GRADIENT)
    return clv_fail(err, cell->code, "a gradient for %llu, which %s", (unsigned long long)v->id,
                    cell->text);
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "value %llu %s", (unsigned long long)v->id, cell->text);
  *ret = cell->action;
  return CLV_OK;
}

void clv_call_take_input(clv_contexts *e, clv_context_call *c, uint32_t slot, clv_value *v) {
  clv_tensor *t = NULL;
  clv_err why;
  clv_code code = v->tensor ? for_module(e, v, c->mod, &t, &why) : CLV_OK;
  if (t) {
    c->in[slot] = clv_tensor_ref(t);
    if (v->maker && v->maker->mod && c->mod) clv_module_count_move(c->mod, v->maker->mod, t);
    return;
  }
  if (!c->failed)
    c->failed =
        code != CLV_OK ? clv_shared_err_at(e, &why, c->module) : clv_shared_err_ref(v->failed);
  clv_queue_leave(e, c);
}

/* Kept values are the host's: they outlive modules. */
static void keep_value(clv_contexts *e, clv_value *v, clv_delivery *d) {
  clv_tensor *t = NULL;
  clv_err why;
  clv_code code = v->tensor ? on_host(e, v, &t, &why) : CLV_OK;
  clv_shared_err *failed = code != CLV_OK ? clv_shared_err_of(e, &why, "") : v->failed;
  clv_exit_keep(e, d, t, failed);
  if (code != CLV_OK) clv_shared_err_unref(e, failed);
}

/* Whoever asked for it gets it. */
static clv_code hand_out(clv_contexts *e, clv_value *v, clv_err *err) {
  clv_code code = CLV_OK;
  while (v->deliveries) {
    clv_delivery *d = v->deliveries;
    v->deliveries = d->next;
    if (d->keep) {
      keep_value(e, v, d);
      continue;
    }
    if (code == CLV_OK) code = send_value(e, v, d->name, err);
    clv_slab_give(&e->deliveries, d);
  }
  return code;
}

clv_code clv_value_settle(clv_contexts *e, clv_value *v, clv_tensor *tensor, clv_shared_err *failed,
                          clv_err *err) {
  if (tensor) v->tensor = clv_tensor_ref(tensor);
  v->failed = failed;
  for (clv_input_use *u = v->uses, *next; u; u = next) {
    next = u->next;
    clv_context_call *c = u->call;
    clv_call_take_input(e, c, (uint32_t)(u - c->uses), v);
    clv_call_one_less(e, c);
  }
  v->uses = NULL;
  return hand_out(e, v, err);
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
  clv_action action;
  CLV_TRY(clv_name_index(e, p->frame.to, &name, err));
  CLV_TRY(clv_context_value_made(e, ctx, p->frame.message, &v, err));
  CLV_TRY(clv_value_meets(e, v, VALUE_ASKED, &action, err));
  return action == CELL_GIVE ? send_value(e, v, name, err)
                             : clv_value_add_delivery(e, v, name, err);
}

/* Of a context that has ended nothing is kept. */
static clv_code keep_nothing(clv_contexts *e, uint64_t ref, clv_err *err) {
  clv_delivery *d;
  CLV_TRY(clv_slab_take(e, &e->deliveries, &d, err));
  d->keep = ref;
  clv_exit_keep(e, d, NULL, &clv_shared_err_ended);
  return CLV_OK;
}

clv_code clv_contexts_keep(clv_contexts *e, uint64_t ref, uint64_t id, uint64_t value_id,
                           clv_err *err) {
  clv_context *ctx;
  clv_value *v;
  clv_action action;
  CLV_TRY(clv_context_open(e, id, &ctx, err));
  bool gone = ctx->state == CONTEXT_ENDING && !clv_context_value(e, ctx, value_id);
  if (gone || ctx->state == CONTEXT_ENDED) return keep_nothing(e, ref, err);
  CLV_TRY(clv_context_value_made(e, ctx, value_id, &v, err));
  CLV_TRY(clv_value_meets(e, v, VALUE_KEPT, &action, err));
  CLV_TRY(clv_value_add_delivery(e, v, 0, err));
  v->deliveries->keep = ref;
  return action == CELL_GIVE ? hand_out(e, v, err) : CLV_OK;
}

clv_code clv_on_value(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  const clv_frame *f = &p->frame;
  clv_value *v;
  clv_action action;
  clv_context_note_packet(e, ctx, CLV_TRACE_VALUE_IN, p, p->arrived_ns);
  CLV_TRY(clv_context_value_made(e, ctx, f->message, &v, err));
  CLV_TRY(clv_value_meets(e, v, VALUE_CAME, &action, err));
  if (action == CELL_IGNORE) return CLV_OK; /* a repeat */
  clv_code code = clv_value_settle(e, v, f->n_tensors ? p->tensor[0] : NULL,
                                   f->has_failure ? clv_shared_err_in(e, f) : NULL, err);
  clv_value_free_if_dropped(e, v);
  return code;
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

/* One that is here already, or that nothing here makes, needs nothing. */
clv_code clv_on_spare(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  (void)err;
  for (uint32_t i = 0; i < p->frame.n_upstream; i++) {
    clv_value *v = clv_context_value(e, ctx, p->frame.upstream[i]);
    if (v) v->wanted = true;
  }
  return CLV_OK;
}
