/* SPDX-License-Identifier: Apache-2.0
 *
 * Unloading a module. A module cannot be unloaded while an open context has a call of it, a planned
 * step, gradients of a backward pass, or running statistics to restore. UNLOAD waits in the
 * module's queue, so the changes before it are done. An APPLY or a REVERT behind it in the queue
 * also keeps the module loaded, even if the context of that frame has ended.
 */
#include "common/engine/context_int.h"

static bool has_bit(const uint8_t *bits, uint32_t module) {
  return bits[module / 8] >> (module % 8) & 1;
}

static bool has_planned_step(const clv_context *c, uint32_t module) {
  for (const clv_order_entry *p = c->order[ORDER_STEP].first; p; p = p->next)
    if (((const clv_planned_step *)(const void *)p)->module == module) return true;
  return false;
}

static bool is_used_by_context(const clv_context *c, uint32_t module) {
  if (has_bit(c->buffers_saved, module) || has_bit(c->was_in_pass, module) ||
      has_planned_step(c, module))
    return true;
  for (const clv_value *v = c->values; v; v = v->next)
    if (v->producer && v->producer->mod && v->producer->module == module) return true;
  return false;
}

/* True if an APPLY or a REVERT waits in the module's queue. STATE_ packets there do not count,
 * because the node checks later whether their module is loaded. */
static bool has_pending_change(const clv_contexts *e, uint32_t module) {
  const clv_queue_entry *t = e->queues[module].first;
  while (t && (!t->change || t->change->packet || t->waits_for_tied_owner)) t = t->next;
  return t;
}

bool clv_contexts_is_module_in_use(const clv_contexts *e, uint32_t module) {
  if (has_pending_change(e, module)) return true;
  for (const clv_context *c = e->open_contexts; c; c = c->next)
    if (is_used_by_context(c, module)) return true;
  return false;
}

void clv_contexts_forget_module(clv_contexts *e, uint32_t module) {
  clv_module_queue *l = &e->queues[module];
  if (l->revertible_context_id) e->n_snapshots--;
  l->revertible_context_id = l->buffers_saved_for_context = 0;
  l->runs_in_id_order = false;
}
