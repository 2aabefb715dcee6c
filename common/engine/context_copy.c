/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of tensors from devices to host memory. A copy is work that belongs to no module, and
 * needs no share of the cores: the copy thread of the node makes it while devices compute. A link
 * may send the tensor while it is being copied.
 */
#include <stddef.h>

#include "common/engine/context_int.h"

clv_copy *clv_copy_of_work(clv_work *w) {
  return (clv_copy *)(void *)((char *)w - offsetof(clv_copy, work));
}

/* Takes an idle progress record of a copy, or allocates one. */
static clv_code take_device_copy(clv_contexts *e, clv_device_copy **ret, clv_err *err) {
  for (size_t i = 0; i < CLV_COUNT(e->device_copies); i++) {
    clv_device_copy **kept = &e->device_copies[i];
    if (!*kept) CLV_TRY(clv_device_copy_new(kept, err));
    if (!clv_device_copy_try_reset(*kept)) continue;
    *ret = clv_device_copy_ref(*kept);
    return CLV_OK;
  }
  return clv_device_copy_new(ret, err);
}

static void append_copy(clv_contexts *e, clv_work *w) {
  w->next = NULL;
  *(e->pending_copies ? &e->last_pending_copy->next : &e->pending_copies) = w;
  e->last_pending_copy = w;
}

static void begin_copy(clv_contexts *e, clv_copy *k) {
  clv_work *w = &k->work;
  w->kind = WORK_COPY;
  w->env = &e->env;
  w->module = CLV_MODULE_ALL;
  (void)clv_contexts_on_event(e, 0, MACHINE_WORK, &w->state, WORK_IS_READY);
  (void)clv_contexts_on_event(e, 0, MACHINE_WORK, &w->state, WORK_STARTS);
  e->n_work++;
  append_copy(e, w);
}

clv_code clv_copy_start(clv_contexts *e, clv_tensor *from, clv_copy **ret, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *to = NULL;
  clv_copy *k;
  CLV_TRY(clv_pool_alloc_tensor(e->env.pool, from->dtype, &from->shape, &to, err));
  CLV_TRY(clv_contexts_slab_alloc(e, &e->copies, &k, err));
  clv_code code = take_device_copy(e, &k->device_copy, err);
  if (code != CLV_OK) {
    clv_slab_recycle(&e->copies, k);
    return code;
  }
  k->from = clv_tensor_ref(from);
  k->to = clv_steal(&to);
  begin_copy(e, k);
  *ret = k;
  return CLV_OK;
}

clv_work *clv_contexts_take_copy(clv_contexts *e) {
  clv_work *w = e->pending_copies;
  if (w) e->pending_copies = w->next;
  return w;
}

void clv_copy_free(clv_contexts *e, clv_copy *k) {
  if (!k) return;
  if (k->value) k->value->copy = NULL;
  clv_packet_free(k->packet);
  clv_tensor_unref(k->from);
  clv_tensor_unref(k->to);
  clv_device_copy_unref(k->device_copy);
  clv_slab_recycle(&e->copies, k);
}

void clv_copies_free(clv_contexts *e) {
  if (!e) return;
  for (clv_work *w; (w = clv_contexts_take_copy(e)) != NULL;) clv_copy_free(e, clv_copy_of_work(w));
  for (size_t i = 0; i < CLV_COUNT(e->device_copies); i++)
    clv_device_copy_unref(e->device_copies[i]);
}

static void report_progress(void *copy, size_t bytes) { clv_device_copy_advance(copy, bytes); }

/* Makes the copy, on the thread that copies. */
clv_code clv_copy_compute(clv_work *w, clv_err *err) {
  const clv_copy *k = clv_copy_of_work(w);
  const clv_copy_progress to = {.report = report_progress, .user = k->device_copy};
  clv_err why;
  clv_code code = clv_backend_get_in_pieces(k->copier ? k->copier : k->from->device, k->to->data,
                                            k->from->data, k->from->bytes, &to, &why);
  if (code == CLV_OK) return CLV_OK;
  clv_device_copy_fail(k->device_copy, &why);
  if (err) *err = why;
  return code;
}
