/* SPDX-License-Identifier: Apache-2.0
 *
 * Work: reading or writing the state of a module on a device. No other work of the module runs
 * meanwhile. The answers are sent when all items have been read or written.
 */
#include <stddef.h>
#include <stdlib.h>

#include "common/engine/context_int.h"

static clv_state_transfer *get_transfer(clv_work *w) {
  return (clv_state_transfer *)(void *)((char *)w - offsetof(clv_state_transfer, work));
}

static void free_transfer(clv_contexts *e, clv_state_transfer *t) {
  for (clv_packet *p; (p = clv_packet_list_take(&t->answers)) != NULL;) clv_packet_free(p);
  clv_packet_free(t->request);
  free(t->items);
  free(t->host_data);
  clv_slab_recycle(&e->transfers, t);
}

clv_code clv_contexts_transfer_state(clv_contexts *e, const clv_state_transfer *what,
                                     clv_err *err) {
  clv_state_transfer *t;
  CLV_TRY(clv_contexts_slab_alloc(e, &e->transfers, &t, err));
  *t = *what;
  clv_work_enqueue(e, &t->work, WORK_TRANSFER, NULL, what->request->frame.module);
  return CLV_OK;
}

static clv_code prepare_transfer(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err) {
  (void)e, (void)w, (void)err;
  *ret_computes = true;
  return CLV_OK;
}

static clv_code compute_transfer(clv_work *w, clv_err *err) {
  const clv_state_transfer *t = get_transfer(w);
  for (uint32_t i = 0; i < t->n; i++)
    CLV_TRY(t->is_write ? clv_state_item_set_async(&t->items[i], t->host_data[i], err)
                        : clv_state_item_get(&t->items[i], t->host_data[i], err));
  return t->is_write ? clv_backend_finish(w->env->modules[w->module]->o.backend, err) : CLV_OK;
}

static void record_written(clv_contexts *e, const clv_state_transfer *t) {
  const clv_frame *f = &t->request->frame;
  clv_module *m = clv_contexts_module(e, t->work.module);
  for (uint32_t i = 0; f->state.part != CLV_STATE_GRADIENTS && i < t->n; i++)
    clv_module_note_state_written(m, f->state.part, t->items[i].name, !f->state.piece_length);
}

static clv_code finish_transfer(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                                clv_err *err) {
  clv_state_transfer *t = get_transfer(w);
  (void)err;
  if (code == CLV_OK && t->is_write) record_written(e, t);
  if (code != CLV_OK)
    clv_outbox_refuse(e, clv_steal(&t->request), why);
  else if (t->requeue_when_done)
    clv_outbox_add_state_frame(e, clv_steal(&t->request));
  for (clv_packet *p; code == CLV_OK && (p = clv_packet_list_take(&t->answers)) != NULL;)
    clv_outbox_send(e, p);
  free_transfer(e, t);
  return CLV_OK;
}

const clv_work_type clv_work_of_transfer = {.prepare = prepare_transfer,
                                            .compute = compute_transfer,
                                            .finish = finish_transfer,
                                            .bypasses_scheduler = true};

/* ---- restoring the running statistics of a module -------------------------------------------- */

/* Restores the running statistics. An error of the device is recorded in the module. */
static clv_code compute_restore(clv_work *w, clv_err *err) {
  (void)err;
  clv_module_restore_buffers(w->env->modules[w->module]);
  return CLV_OK;
}

static clv_code finish_restore(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                               clv_err *err) {
  (void)e, (void)w, (void)code, (void)why, (void)err;
  return CLV_OK;
}

const clv_work_type clv_work_of_restore = {.prepare = prepare_transfer,
                                           .compute = compute_restore,
                                           .finish = finish_restore,
                                           .bypasses_scheduler = true};
