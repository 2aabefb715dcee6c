/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of ready work. Each module has a list, in the order in which its work became ready; pieces
 * of work that must keep their order become ready one after the other (context_queue.c,
 * context_order.c, context_pass.c). One piece of work of a module runs at a time, and the oldest
 * ready work starts first. A change may need several modules: it is in the list of one of them and
 * starts when all are idle.
 */
#include "common/engine/context_int.h"

#include <stddef.h>

static clv_work_list *get_list(clv_contexts *e, uint32_t module) { return &e->work[module]; }

/* Links list l into e->ready_lists, which has all lists with ready work, sorted by the number of
 * their first work. */
static void link_list(clv_contexts *e, clv_work_list *l) {
  clv_work_list **at = &e->ready_lists;
  while (*at && (*at)->first->number < l->first->number) at = &(*at)->next;
  l->next = *at;
  *at = l;
}

static void unlink_list(clv_contexts *e, const clv_work_list *l) {
  clv_work_list **at = &e->ready_lists;
  while (*at != l) at = &(*at)->next;
  *at = l->next;
}

/* Applies an event to the state of a piece of work. False: the event is impossible. */
static bool apply_event(clv_contexts *e, clv_work *w, const clv_context *ctx,
                        clv_work_event event) {
  uint64_t context = ctx ? ctx->id : 0;
  return clv_contexts_on_event(e, context, MACHINE_WORK, &w->state, event)->action !=
         CELL_IMPOSSIBLE;
}

/* ---- adding work to the lists ---------------------------------------------------------------- */

void clv_work_enqueue(clv_contexts *e, clv_work *w, clv_work_kind kind, clv_context *ctx,
                      uint32_t module) {
  clv_work_list *l = get_list(e, module);
  if (ctx && clv_context_on_event(e, ctx, CONTEXT_WORK_READY)->action != CELL_RECORD) return;
  if (!apply_event(e, w, ctx, WORK_IS_READY)) return;
  w->kind = (uint8_t)kind;
  w->env = &e->env;
  w->ctx = ctx;
  w->module = module;
  w->number = ++e->n_ready_so_far;
  w->next = NULL;
  e->n_work++;
  if (l->first) {
    l->last->next = w;
    l->last = w;
    return;
  }
  l->first = l->last = w;
  link_list(e, l);
}

void clv_work_enqueue_front(clv_contexts *e, clv_work *w, clv_work_kind kind) {
  clv_work_list *l = get_list(e, w->module);
  if (!apply_event(e, w, w->ctx, WORK_IS_READY)) return;
  w->kind = (uint8_t)kind;
  e->n_work++;
  if (l->first) unlink_list(e, l);
  w->next = l->first;
  l->first = w;
  if (!w->next) l->last = w;
  link_list(e, l);
}

/* ---- taking work from the lists -------------------------------------------------------------- */

clv_context_call *clv_call_of_work(clv_work *w) {
  return (clv_context_call *)(void *)((char *)w - offsetof(clv_context_call, work));
}

clv_planned_step *clv_step_of_work(clv_work *w) {
  return (clv_planned_step *)(void *)((char *)w - offsetof(clv_planned_step, work));
}

clv_change *clv_change_of_work(clv_work *w) { return (clv_change *)(void *)w; }

static bool is_module_on_device(const clv_contexts *e, uint32_t module) {
  const clv_module *m = module == CLV_MODULE_ALL ? NULL : clv_contexts_module(e, module);
  return m && m->o.backend->memory;
}

static bool has_bit(const uint8_t *bits, uint32_t i) { return bits[i / 8] >> (i % 8) & 1; }

/* True if the vote covers the module and the module is on a device. The vote then needs the module
 * idle, because only one thread at a time may use its backend. */
static bool is_voting_module_on_device(const clv_contexts *e, const clv_work *w, uint32_t module) {
  return has_bit(w->ctx->was_in_pass, module) && is_module_on_device(e, module);
}

bool clv_work_is_on_device(const clv_contexts *e, clv_work *w) {
  bool on_device =
      w->kind != WORK_CHANGE && w->kind != WORK_VOTE && is_module_on_device(e, w->module);
  for (uint32_t i = 0; w->kind == WORK_VOTE && i < CLV_MODULE_ALL; i++)
    on_device |= is_voting_module_on_device(e, w, i);
  if (w->kind != WORK_CHANGE) return on_device;
  for (const clv_queue_entry *t = clv_change_of_work(w)->entries; t; t = t->next_of_change)
    on_device |= is_module_on_device(e, t->module);
  return on_device;
}

static bool are_voters_idle(clv_contexts *e, const clv_work *w) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++)
    if (is_voting_module_on_device(e, w, i) && get_list(e, i)->is_running) return false;
  return true;
}

/* Marks the modules on devices that a vote covers as busy or idle. ctx->voting_modules records
 * which are busy, because ctx->was_in_pass may change before the vote ends. */
static void set_voters_busy(clv_contexts *e, const clv_work *w, bool is_busy) {
  uint8_t *voting = w->ctx->voting_modules;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    if (is_busy ? !is_voting_module_on_device(e, w, i) : !has_bit(voting, i)) continue;
    voting[i / 8] ^= (uint8_t)(1u << (i % 8));
    get_list(e, i)->is_running = is_busy;
  }
}

/* True if all modules of the work are idle, or the work belongs to no module. */
static bool are_modules_idle(clv_contexts *e, clv_work *w) {
  if (w->kind == WORK_VOTE) return are_voters_idle(e, w);
  if (w->kind != WORK_CHANGE)
    return w->module == CLV_MODULE_ALL || !get_list(e, w->module)->is_running;
  const clv_queue_entry *t = clv_change_of_work(w)->entries;
  while (t && !get_list(e, t->module)->is_running) t = t->next_of_change;
  return !t;
}

static void set_modules_busy(clv_contexts *e, clv_work *w, bool is_busy) {
  if (w->kind == WORK_VOTE) set_voters_busy(e, w, is_busy);
  if (w->kind != WORK_CHANGE) {
    get_list(e, w->module)->is_running = is_busy && w->module != CLV_MODULE_ALL;
    return;
  }
  for (const clv_queue_entry *t = clv_change_of_work(w)->entries; t; t = t->next_of_change)
    get_list(e, t->module)->is_running = is_busy;
}

clv_work *clv_work_take(clv_contexts *e) {
  clv_work_list *l = e->ready_lists;
  while (l && !are_modules_idle(e, l->first)) l = l->next;
  if (!l) return NULL;
  clv_work *w = l->first;
  unlink_list(e, l);
  l->first = w->next;
  if (l->first)
    link_list(e, l);
  else
    l->last = NULL;
  (void)apply_event(e, w, w->ctx, WORK_STARTS);
  set_modules_busy(e, w, true);
  return w;
}

void clv_work_note_end(clv_contexts *e, clv_work *w) {
  if (!apply_event(e, w, w->ctx, WORK_ENDS)) return;
  set_modules_busy(e, w, false);
  e->n_work--;
}
