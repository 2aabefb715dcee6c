/* SPDX-License-Identifier: Apache-2.0
 *
 * Work: the state of a module on a device is read. Nothing else of the module runs meanwhile. Its
 * answers leave when all that they carry is there.
 */
#include <stddef.h>
#include <stdlib.h>

#include "common/engine/context_int.h"

static clv_read *read_of(clv_work *w) {
  return (clv_read *)(void *)((char *)w - offsetof(clv_read, work));
}

static void read_free(clv_contexts *e, clv_read *r) {
  for (clv_packet *p; (p = clv_packet_list_take(&r->answers)) != NULL;) clv_packet_free(p);
  clv_packet_free(r->request);
  free(r->items);
  clv_slab_give(&e->reads, r);
}

clv_code clv_contexts_read(clv_contexts *e, const clv_read *what, clv_err *err) {
  clv_read *r;
  CLV_TRY(clv_slab_take(e, &e->reads, &r, err));
  *r = *what;
  clv_work_ready(e, &r->work, WORK_READ, NULL, what->request->frame.module);
  return CLV_OK;
}

static clv_code ready(clv_contexts *e, clv_work *w, bool *ret_computes, clv_err *err) {
  (void)e, (void)w, (void)err;
  *ret_computes = true;
  return CLV_OK;
}

static clv_code compute(clv_work *w, clv_err *err) {
  const clv_read *r = read_of(w);
  const clv_packet *p = r->answers.first;
  for (uint32_t i = 0; i < r->n; i++, p = p->next)
    CLV_TRY(clv_state_item_get(&r->items[i], p->tensor[0]->data, err));
  return CLV_OK;
}

static clv_code finish(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                       clv_err *err) {
  clv_read *r = read_of(w);
  (void)err;
  if (code != CLV_OK) clv_exit_refuse(e, clv_steal(&r->request), why);
  for (clv_packet *p; code == CLV_OK && (p = clv_packet_list_take(&r->answers)) != NULL;)
    clv_exit_send(e, p);
  read_free(e, r);
  return CLV_OK;
}

const clv_work_type clv_work_of_read = {
    .ready = ready, .compute = compute, .finish = finish, .aside = true};
