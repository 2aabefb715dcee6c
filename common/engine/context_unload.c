/* SPDX-License-Identifier: Apache-2.0
 *
 * A module goes. Whatever of a context is left of it keeps it: a call, a step to come, its part in
 * a pass and so its gradients, running statistics to be put back. UNLOAD is a change, so those
 * before it in the queue of the module are done. An APPLY or a REVERT behind it keeps the module,
 * also when its context has ended.
 */
#include "common/engine/context_int.h"

static bool has_bit(const uint8_t *bits, uint32_t module) {
  return bits[module / 8] >> (module % 8) & 1;
}

static bool steps_it(const clv_context *c, uint32_t module) {
  for (const clv_order_entry *p = c->order[ORDER_STEP].first; p; p = p->next)
    if (((const clv_planned_step *)(const void *)p)->module == module) return true;
  return false;
}

static bool uses(const clv_context *c, uint32_t module) {
  if (has_bit(c->kept, module) || has_bit(c->took_part, module) || steps_it(c, module)) return true;
  for (const clv_value *v = c->values; v; v = v->next)
    if (v->maker && v->maker->mod && v->maker->module == module) return true;
  return false;
}

/* Packets of state find at their time whether the module is here. */
static bool will_change(const clv_contexts *e, uint32_t module) {
  const clv_queue_entry *t = e->queues[module].first;
  while (t && (!t->change || t->change->packet || t->follows)) t = t->next;
  return t;
}

bool clv_contexts_is_module_in_use(const clv_contexts *e, uint32_t module) {
  if (will_change(e, module)) return true;
  for (const clv_context *c = e->open; c; c = c->next)
    if (uses(c, module)) return true;
  return false;
}

void clv_contexts_forget_module(clv_contexts *e, uint32_t module) {
  clv_module_queue *l = &e->queues[module];
  if (l->snapshot_of) e->n_snapshots--;
  l->snapshot_of = l->shadow_of = 0;
  l->ordered = false;
}
