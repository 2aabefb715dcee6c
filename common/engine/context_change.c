/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of a context become a step of each module's optimiser, which REVERT can take back
 * as long as no other context has done anything. Both are changes, which wait in the queues of
 * their modules.
 */
#include "common/engine/context_int.h"

static bool meant(const clv_module_gradient *g, uint32_t module) {
  return module == CLV_MODULE_ALL || module == g->module;
}

void clv_context_restore_buffers(clv_contexts *e, uint64_t id, uint32_t module) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    clv_module_queue *l = &e->queues[i];
    if (l->shadow_of != id || (module != CLV_MODULE_ALL && module != i)) continue;
    if (clv_contexts_module(e, i)->o.backend->memory)
      clv_work_enqueue(e, &l->restore, WORK_RESTORE, NULL, i);
    else
      clv_module_restore_buffers(clv_contexts_module(e, i));
    l->shadow_of = 0;
    clv_context *c = clv_context_find(e, id);
    if (c) c->kept[i / 8] &= (uint8_t) ~(1u << (i % 8)); /* the next call keeps them again */
  }
}

void clv_context_forget_buffers(clv_contexts *e, uint64_t id, uint32_t module) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++)
    if ((!id || e->queues[i].shadow_of == id) && (module == CLV_MODULE_ALL || module == i))
      e->queues[i].shadow_of = 0;
}

void clv_contexts_note_state_written(clv_contexts *e, uint32_t module) {
  clv_context_forget_buffers(e, 0, module);
}

static bool revert_waits(const clv_contexts *e, uint64_t id) {
  for (const clv_change *k = e->waiting_changes; k; k = k->next)
    if (k->kind == CLV_REVERT && k->context == id) return true;
  return false;
}

/* A REVERT that waits came before this work, and an APPLY that waits too. */
void clv_contexts_finalise_applies(clv_contexts *e, uint64_t working) {
  for (clv_change *k = e->waiting_changes; k; k = k->next)
    k->final |= k->kind == CLV_APPLY && k->context != working && !revert_waits(e, k->context);
  for (uint32_t i = 0; e->n_snapshots && i < CLV_MODULE_ALL; i++) {
    uint64_t of = e->queues[i].snapshot_of;
    if (of && of != working && !revert_waits(e, of)) clv_step_on_event(e, i, 0, STEP_OTHER_WORK);
  }
}

static clv_code check_apply(clv_contexts *e, clv_context *ctx, clv_err *err) {
  const clv_cell *cell = clv_pass_on_event(e, ctx, PASS_STEP);
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "backward pass %u %s", ctx->phase, cell->text);
  return CLV_OK;
}

static clv_code check_rates(const clv_module_gradient *g, const clv_change *k, clv_err *err) {
  size_t groups = clv_optim_n_groups(g->mod->optim);
  if (k->n_rates >= groups) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "%u learning rate%s for module %u, whose parameters are in %zu groups",
                  k->n_rates, CLV_S(k->n_rates), g->module, groups);
}

static bool is_meant(const clv_change *k, uint32_t module) {
  for (const clv_queue_entry *t = k->entries; t; t = t->next_of_change)
    if (t->module == module) return true;
  return false;
}

/* Whether what the change means has a parameter that module `i` has as well. */
static bool follows(const clv_contexts *e, const clv_change *k, uint32_t i) {
  const clv_module *m = clv_contexts_module(e, i);
  for (const clv_queue_entry *t = k->entries; m && m->params->n_ties && t; t = t->next_of_change)
    if (clv_module_is_tied_to(m, clv_contexts_module(e, t->module))) return true;
  return false;
}

/* The calls of those that are tied to a module of the change keep their place before it, or behind
 * it. */
static clv_code add_followers(clv_contexts *e, clv_change *k, clv_err *err) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    if (is_meant(k, i) || !follows(e, k, i)) continue;
    CLV_TRY(clv_change_add_module(e, k, i, NULL, err));
    k->entries->follows = true;
  }
  return CLV_OK;
}

/* The modules that APPLY means; all memory first: after that nothing can fail, and no module steps
 * alone. The gradients are held, so that the context may end before. */
static clv_code modules_to_step(clv_contexts *e, const clv_context *ctx, clv_change *k,
                                uint32_t module, clv_err *err) {
  for (const clv_module_gradient *g = ctx->gradients; g; g = g->next) {
    if (!meant(g, module) || !g->mod->optim || !g->filled) continue;
    CLV_TRY(check_rates(g, k, err));
    CLV_TRY(clv_module_prepare_snapshot(g->mod, err));
    CLV_TRY(clv_change_add_module(e, k, g->module, g->block, err));
  }
  return add_followers(e, k, err);
}

static clv_code modules_to_revert(clv_contexts *e, const clv_context *ctx, clv_change *k,
                                  clv_err *err) {
  const clv_module_gradient *g = ctx->gradients;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    while (g && g->module < i) g = g->next;
    bool stepped = g && g->module == i && g->mod->optim;
    if (stepped || e->queues[i].snapshot_of == ctx->id)
      CLV_TRY(clv_change_add_module(e, k, i, NULL, err));
  }
  return add_followers(e, k, err);
}

static void give_up_step(clv_contexts *e, clv_context *ctx, uint32_t module) {
  clv_context_forget_gradients(e, ctx, module);
  clv_context_restore_buffers(e, ctx->id, module);
}

static clv_code apply(clv_contexts *e, clv_context *ctx, uint32_t module, const clv_frame *f,
                      clv_err *err) {
  clv_change *k;
  CLV_TRY(check_apply(e, ctx, err));
  CLV_TRY(clv_change_new(e, f, ctx->id, &k, err));
  clv_code code = CLV_OK;
  if (f->commit.apply)
    code = modules_to_step(e, ctx, k, module, err);
  else
    give_up_step(e, ctx, module);
  if (code != CLV_OK) {
    clv_change_free(e, k);
    return code;
  }
  if (f->commit.apply) clv_contexts_finalise_applies(e, ctx->id);
  clv_change_enqueue(e, k);
  return CLV_OK;
}

void clv_context_apply_at_end(clv_contexts *e, clv_context *ctx, const clv_frame *f) {
  clv_err why;
  if (apply(e, ctx, CLV_MODULE_ALL, f, &why) != CLV_OK)
    clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
}

/* A frame of the module that had this index before. */
static clv_code check_generation(const clv_contexts *e, const clv_frame *f, clv_err *err) {
  const clv_module *m = clv_contexts_module(e, f->module);
  if (!m || m->o.generation == f->generation) return CLV_OK;
  return clv_fail(err, CLV_NOT_FOUND, "module %u of generation %u is not here", f->module,
                  f->generation);
}

clv_code clv_on_apply(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  (void)err;
  const clv_frame *f = &p->frame;
  clv_code code = check_generation(e, f, &why);
  if (code == CLV_OK)
    code = f->commit.position ? clv_order_add_step(e, ctx, f, &why)
                              : apply(e, ctx, f->module, f, &why);
  if (code != CLV_OK) clv_context_fail_in_module(e, ctx, &why, p->frame.module);
  return CLV_OK;
}

clv_code clv_on_revert(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_change *k;
  CLV_TRY(clv_change_new(e, &p->frame, ctx->id, &k, err));
  clv_code code = modules_to_revert(e, ctx, k, err);
  if (code != CLV_OK) {
    clv_change_free(e, k);
    return code;
  }
  clv_change_enqueue(e, k);
  return CLV_OK;
}
