/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of parameters: APPLY makes the gradients of a context a step of each module's optimiser,
 * and REVERT undoes it, unless another context has used the module since. Both wait in the queues
 * of the modules that they change.
 */
#include "common/engine/context_int.h"

static bool matches_module(const clv_module_gradient *g, uint32_t module) {
  return module == CLV_MODULE_ALL || module == g->module;
}

void clv_context_restore_buffers(clv_contexts *e, uint64_t id, uint32_t module) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    clv_module_queue *l = &e->queues[i];
    if (l->buffers_saved_for_context != id || (module != CLV_MODULE_ALL && module != i)) continue;
    if (clv_contexts_module(e, i)->o.backend->memory)
      clv_work_enqueue(e, &l->restore_work, WORK_RESTORE, NULL, i);
    else
      clv_module_restore_buffers(clv_contexts_module(e, i));
    l->buffers_saved_for_context = 0;
    clv_context *c = clv_context_find(e, id);
    /* the context's next call saves the running statistics again */
    if (c) c->buffers_saved[i / 8] &= (uint8_t) ~(1u << (i % 8));
  }
}

void clv_context_forget_buffers(clv_contexts *e, uint64_t id, uint32_t module) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++)
    if ((!id || e->queues[i].buffers_saved_for_context == id) &&
        (module == CLV_MODULE_ALL || module == i))
      e->queues[i].buffers_saved_for_context = 0;
}

void clv_contexts_note_state_written(clv_contexts *e, uint32_t module) {
  clv_context_forget_buffers(e, 0, module);
}

static bool has_pending_revert(const clv_contexts *e, uint64_t id) {
  for (const clv_change *k = e->waiting_changes; k; k = k->next)
    if (k->kind == CLV_REVERT && k->context == id) return true;
  return false;
}

/* Makes waiting APPLYs of other contexts final. All waiting changes arrived before the new work of
 * context `working`, so an APPLY stays revertible if a REVERT of its context already waits. */
void clv_contexts_finalise_applies(clv_contexts *e, uint64_t working) {
  for (clv_change *k = e->waiting_changes; k; k = k->next)
    k->is_final |=
        k->kind == CLV_APPLY && k->context != working && !has_pending_revert(e, k->context);
  for (uint32_t i = 0; e->n_snapshots && i < CLV_MODULE_ALL; i++) {
    uint64_t of = e->queues[i].revertible_context_id;
    if (of && of != working && !has_pending_revert(e, of))
      clv_step_on_event(e, i, 0, STEP_OTHER_WORK);
  }
}

static clv_code check_pass_allows_step(clv_contexts *e, clv_context *ctx, clv_err *err) {
  const clv_cell *cell = clv_pass_on_event(e, ctx, PASS_STEP);
  if (cell->action == CELL_REFUSE)
    return clv_fail(err, cell->code, "backward pass %u %s", ctx->phase, cell->text);
  return CLV_OK;
}

static clv_code check_n_rates(const clv_module_gradient *g, const clv_change *k, clv_err *err) {
  size_t n_groups = clv_optim_n_groups(g->mod->optim);
  if (k->n_rates >= n_groups) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "%u learning rate%s for module %u, whose parameters are in %zu groups",
                  k->n_rates, CLV_S(k->n_rates), g->module, n_groups);
}

static bool has_module(const clv_change *k, uint32_t module) {
  for (const clv_queue_entry *t = k->entries; t; t = t->next_of_change)
    if (t->module == module) return true;
  return false;
}

/* True if module `i` shares tied parameters with a module of the change. */
static bool is_tied_to_changed_module(const clv_contexts *e, const clv_change *k, uint32_t i) {
  const clv_module *m = clv_contexts_module(e, i);
  for (const clv_queue_entry *t = k->entries; m && m->params->n_ties && t; t = t->next_of_change)
    if (clv_module_is_tied_to(m, clv_contexts_module(e, t->module))) return true;
  return false;
}

/* Adds the modules that are tied to a module of the change, so that their calls keep their order
 * with respect to the change. */
static clv_code add_tied_modules(clv_contexts *e, clv_change *k, clv_err *err) {
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    if (has_module(k, i) || !is_tied_to_changed_module(e, k, i)) continue;
    CLV_TRY(clv_change_add_module(e, k, i, NULL, err));
    k->entries->waits_for_tied_owner = true;
  }
  return CLV_OK;
}

/* Adds the modules that an APPLY steps. Allocates all memory of the step here, so that computing it
 * cannot fail after some modules have stepped. The change references the gradients, because the
 * context may end before the step runs. */
static clv_code add_modules_to_step(clv_contexts *e, const clv_context *ctx, clv_change *k,
                                    uint32_t module, clv_err *err) {
  for (const clv_module_gradient *g = ctx->gradients; g; g = g->next) {
    if (!matches_module(g, module) || !g->mod->optim || !g->input_part_done) continue;
    CLV_TRY(check_n_rates(g, k, err));
    CLV_TRY(clv_module_prepare_snapshot(g->mod, err));
    CLV_TRY(clv_change_add_module(e, k, g->module, g->block, err));
  }
  return add_tied_modules(e, k, err);
}

static clv_code add_modules_to_revert(clv_contexts *e, const clv_context *ctx, clv_change *k,
                                      clv_err *err) {
  const clv_module_gradient *g = ctx->gradients;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    while (g && g->module < i) g = g->next;
    bool has_step = g && g->module == i && g->mod->optim;
    if (has_step || e->queues[i].revertible_context_id == ctx->id)
      CLV_TRY(clv_change_add_module(e, k, i, NULL, err));
  }
  return add_tied_modules(e, k, err);
}

static void discard_step(clv_contexts *e, clv_context *ctx, uint32_t module) {
  clv_context_forget_gradients(e, ctx, module);
  clv_context_restore_buffers(e, ctx->id, module);
}

static clv_code enqueue_step(clv_contexts *e, clv_context *ctx, uint32_t module, const clv_frame *f,
                             clv_err *err) {
  clv_change *k;
  CLV_TRY(check_pass_allows_step(e, ctx, err));
  CLV_TRY(clv_change_new(e, f, ctx->id, &k, err));
  clv_code code = CLV_OK;
  if (f->commit.applies_step)
    code = add_modules_to_step(e, ctx, k, module, err);
  else
    discard_step(e, ctx, module);
  if (code != CLV_OK) {
    clv_change_free(e, k);
    return code;
  }
  if (f->commit.applies_step) clv_contexts_finalise_applies(e, ctx->id);
  clv_change_enqueue(e, k);
  return CLV_OK;
}

void clv_context_apply_at_end(clv_contexts *e, clv_context *ctx, const clv_frame *f) {
  clv_err why;
  if (enqueue_step(e, ctx, CLV_MODULE_ALL, f, &why) != CLV_OK)
    clv_context_fail_in_module(e, ctx, &why, CLV_MODULE_ALL);
}

/* Refuses a frame whose module has been unloaded and replaced by another one at the same index. */
static clv_code check_generation(const clv_contexts *e, const clv_frame *f, clv_err *err) {
  const clv_module *m = clv_contexts_module(e, f->module);
  if (!m || m->o.generation == f->module_generation) return CLV_OK;
  return clv_fail(err, CLV_NOT_FOUND, "module %u (generation %u) is not loaded at this node",
                  f->module, f->module_generation);
}

clv_code clv_on_apply(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_err why;
  (void)err;
  const clv_frame *f = &p->frame;
  clv_code code = check_generation(e, f, &why);
  if (code == CLV_OK)
    code = f->commit.step_position ? clv_order_add_step(e, ctx, f, &why)
                                   : enqueue_step(e, ctx, f->module, f, &why);
  if (code != CLV_OK) clv_context_fail_in_module(e, ctx, &why, p->frame.module);
  return CLV_OK;
}

clv_code clv_on_revert(clv_contexts *e, clv_context *ctx, clv_packet *p, clv_err *err) {
  clv_change *k;
  CLV_TRY(clv_change_new(e, &p->frame, ctx->id, &k, err));
  clv_code code = add_modules_to_revert(e, ctx, k, err);
  if (code != CLV_OK) {
    clv_change_free(e, k);
    return code;
  }
  clv_change_enqueue(e, k);
  return CLV_OK;
}
