/* SPDX-License-Identifier: Apache-2.0
 *
 * The queues of modules, which make results independent of timing. Each module has a queue of the
 * calls and changes that have arrived and are not done. Calls wait for their inputs; changes
 * (APPLY, REVERT, STATE_PUT, reads of state) wait for the calls before them.
 *
 * A change is ready when it is the head of the queue of every module that it changes. A call may
 * run when no change is before it. In a module with running statistics a call must be the head, so
 * these calls run in ascending id. There is no deadlock, because calls depend on smaller ids alone
 * and changes on earlier arrivals. The end of a context removes its calls from the queues.
 */
#include <string.h>

#include "common/engine/context_int.h"

static clv_module_queue *get_queue(clv_contexts *e, uint32_t module) { return &e->queues[module]; }

static void mark_dirty(clv_contexts *e, clv_module_queue *l) {
  if (l->is_dirty) return;
  l->is_dirty = true;
  l->next_dirty = e->dirty_queues;
  e->dirty_queues = l;
}

/* Links entry t into a queue behind entry `after`; NULL: at the head. */
static void link_entry(clv_module_queue *l, clv_queue_entry *t, clv_queue_entry *after) {
  t->queue = l;
  t->prev = after;
  t->next = after ? after->next : l->first;
  *(t->next ? &t->next->prev : &l->last) = t;
  *(after ? &after->next : &l->first) = t;
}

static void unlink_entry(clv_contexts *e, clv_queue_entry *t) {
  clv_module_queue *l = t->queue;
  *(t->prev ? &t->prev->next : &l->first) = t->next;
  *(t->next ? &t->next->prev : &l->last) = t->prev;
  t->queue = NULL;
  if (t->change) l->n_changes--;
  if (t->change || l->n_changes || l->runs_in_id_order) mark_dirty(e, l);
}

/* ---- calls in the queue of a module ---------------------------------------------------------- */

void clv_call_dependency_done(clv_contexts *e, clv_context_call *c) {
  if (--c->n_missing) return;
  __atomic_store_n(&e->counts.calls_waiting, e->counts.calls_waiting - 1, __ATOMIC_RELAXED);
  if (clv_call_on_event(e, c, CALL_IS_READY)->action != CELL_BEGIN) return;
  clv_work_enqueue(e, &c->work, WORK_FORWARD, c->out->ctx, c->mod ? c->module : CLV_MODULE_ALL);
}

/* True if call `c` goes before `other` in a module with running statistics. A call that is ready
 * already is not overtaken. */
static bool may_overtake(const clv_context_call *c, const clv_context_call *other) {
  return other && other->out->id > c->out->id && other->call_state <= CALL_WAITING;
}

void clv_queue_add_call(clv_contexts *e, clv_context_call *c) {
  clv_module_queue *l = get_queue(e, c->module);
  clv_queue_entry *after = l->last;
  l->runs_in_id_order = clv_module_buffer_bytes(c->mod) > 0;
  while (l->runs_in_id_order && after && may_overtake(c, after->call)) after = after->prev;
  c->queue_entry.call = c;
  c->n_missing++;
  link_entry(l, &c->queue_entry, after);
  clv_queue_entry *next = c->queue_entry.next;
  if (next && next->is_granted) { /* `next` was the head and had its turn; now it must wait for c */
    next->is_granted = false;
    next->call->n_missing++;
  }
  if (l->runs_in_id_order ? l->first != &c->queue_entry : l->n_changes > 0) return;
  c->queue_entry.is_granted = true;
  c->n_missing--;
}

void clv_queue_remove_call(clv_contexts *e, clv_context_call *c) {
  if (!c->queue_entry.queue) return;
  if (!c->queue_entry.is_granted) c->n_missing--;
  c->queue_entry.is_granted = true;
  unlink_entry(e, &c->queue_entry);
}

/* ---- changes in the queues of modules -------------------------------------------------------- */

/* Appends a change whose entries are the heads of their queues to the ready changes.
 * clv_changes_start_due starts it when no other work is left. */
static void make_change_ready(clv_contexts *e, clv_change *k) {
  k->next_ready = NULL;
  *(e->ready_changes ? &e->last_ready_change->next_ready : &e->ready_changes) = k;
  e->last_ready_change = k;
}

bool clv_changes_start_due(clv_contexts *e) {
  clv_change *k = e->ready_changes;
  if (!k || e->n_work) return false;
  e->ready_changes = k->next_ready;
  clv_work_enqueue(e, &k->work, WORK_CHANGE, NULL,
                   k->entries ? k->entries->module : CLV_MODULE_ALL);
  return true;
}

clv_code clv_change_new(clv_contexts *e, const clv_frame *f, uint64_t id, clv_change **ret,
                        clv_err *err) {
  clv_change *k;
  CLV_TRY(clv_contexts_slab_alloc(e, &e->changes, &k, err));
  k->has_no_answer = f->kind == CLV_END_CONTEXT;
  k->kind = k->has_no_answer ? CLV_APPLY : f->kind;
  k->context = id;
  k->message = f->message_id;
  k->module = f->module;
  k->rates[0] = f->commit.lr;
  memcpy(k->rates + 1, f->commit.group_lrs, sizeof f->commit.group_lrs);
  k->n_rates = 1 + f->commit.n_group_lrs;
  k->scale = f->commit.scale;
  k->number = ++e->n_events;
  k->next = e->waiting_changes;
  k->prev_next = &e->waiting_changes;
  if (k->next) k->next->prev_next = &k->next;
  e->waiting_changes = k;
  *ret = k;
  return CLV_OK;
}

clv_code clv_change_add_module(clv_contexts *e, clv_change *k, uint32_t module,
                               clv_tensor *gradients, clv_err *err) {
  clv_queue_entry *t;
  CLV_TRY(clv_contexts_slab_alloc(e, &e->entries, &t, err));
  t->change = k;
  t->module = module;
  if (gradients) t->gradients = clv_tensor_ref(gradients);
  t->next_of_change = k->entries;
  k->entries = t;
  return CLV_OK;
}

void clv_change_enqueue(clv_contexts *e, clv_change *k) {
  for (clv_queue_entry *t = k->entries; t; t = t->next_of_change) {
    clv_module_queue *l = get_queue(e, t->module);
    link_entry(l, t, l->last);
    l->n_changes++;
    k->n_missing++;
    mark_dirty(e, l);
  }
  if (!k->n_missing) make_change_ready(e, k);
}

void clv_change_free(clv_contexts *e, clv_change *k) {
  if (!k) return;
  for (clv_queue_entry *t = k->entries, *next; t; t = next) {
    next = t->next_of_change;
    if (t->queue) unlink_entry(e, t);
    clv_tensor_unref(t->gradients);
    clv_slab_recycle(&e->entries, t);
  }
  *k->prev_next = k->next;
  if (k->next) k->next->prev_next = k->prev_next;
  clv_packet_free(k->packet);
  clv_slab_recycle(&e->changes, k);
}

bool clv_queue_has_change_before(const clv_contexts *e, uint32_t module, uint64_t number) {
  const clv_module_queue *l = &e->queues[module];
  if (!l->n_changes) return false;
  for (const clv_queue_entry *t = l->first; t; t = t->next)
    if (t->change && t->change->number < number) return true;
  return false;
}

/* Adds the modules to change k that are tied to m and have calls or changes waiting, because these
 * must be done before m's weights are written. *ret_any: set to true if there are such modules. k
 * NULL: only sets *ret_any. */
static clv_code wait_for_tied_calls(clv_contexts *e, const clv_module *m, clv_change *k,
                                    bool *ret_any, clv_err *err) {
  for (uint32_t i = 0; m->n_pins && i < CLV_MODULE_ALL; i++) {
    const clv_module *other = clv_contexts_module(e, i);
    if (!other || !e->queues[i].first || !clv_module_is_tied_to(other, m)) continue;
    *ret_any = true;
    if (!k) continue;
    CLV_TRY(clv_change_add_module(e, k, i, NULL, err));
    k->entries->waits_for_tied_owner = true;
  }
  return CLV_OK;
}

static clv_code wait_for_calls(clv_contexts *e, clv_change *k, clv_packet *p, clv_err *err) {
  bool has_waiting;
  CLV_TRY(clv_change_add_module(e, k, p->frame.module, NULL, err));
  if (p->frame.kind == CLV_STATE_PUT)
    CLV_TRY(
        wait_for_tied_calls(e, clv_contexts_module_of_frame(e, &p->frame), k, &has_waiting, err));
  k->packet = p;
  clv_change_enqueue(e, k);
  return CLV_OK;
}

clv_code clv_change_defer_packet(clv_contexts *e, clv_packet *p, bool *ret_kept, clv_err *err) {
  const clv_frame *f = &p->frame;
  const clv_module *m = clv_contexts_module_of_frame(e, f);
  clv_change *k;
  *ret_kept = false;
  bool is_for_gradients = f->state.part == CLV_STATE_GRADIENTS;
  if (!m || (is_for_gradients && f->kind == CLV_STATE_GET)) return CLV_OK;
  const clv_module_queue *l = &e->queues[f->module];
  /* Only steps change gradients, so calls need not be waited for. */
  bool is_read = f->kind == CLV_STATE_GET || f->kind == CLV_STATE_SAVE;
  bool waits_for_changes_only = is_for_gradients || (is_read && !clv_module_buffer_bytes(m));
  bool waits = waits_for_changes_only ? l->n_changes > 0 : l->first != NULL;
  if (f->kind == CLV_STATE_PUT && !is_for_gradients)
    CLV_TRY(wait_for_tied_calls(e, m, NULL, &waits, err));
  if (!waits) return CLV_OK;
  CLV_TRY(clv_change_new(e, f, 0, &k, err));
  clv_code code = wait_for_calls(e, k, p, err);
  if (code != CLV_OK) {
    clv_change_free(e, k);
    return code;
  }
  *ret_kept = true;
  return CLV_OK;
}

/* ---- giving the first entries of a queue their turn ------------------------------------------ */

static void give_turn_to_call(clv_contexts *e, clv_queue_entry *t) {
  if (t->is_granted) return;
  t->is_granted = true;
  clv_call_dependency_done(e, t->call);
}

static void grant_head(clv_contexts *e, clv_module_queue *l) {
  clv_queue_entry *t = l->first;
  if (t && t->change) {
    if (!t->is_granted && --t->change->n_missing == 0) make_change_ready(e, t->change);
    t->is_granted = true;
    return;
  }
  /* if the head has its turn, all calls up to the next change have theirs */
  if (t && t->is_granted && !l->runs_in_id_order) return;
  for (; t && t->call; t = l->runs_in_id_order ? NULL : t->next) give_turn_to_call(e, t);
}

void clv_queues_grant_heads(clv_contexts *e) {
  while (e->dirty_queues) {
    clv_module_queue *l = e->dirty_queues;
    e->dirty_queues = l->next_dirty;
    l->is_dirty = false;
    grant_head(e, l);
  }
}
