/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights from before a step. A planned step (schedule pipedream) keeps a copy of the weights that
 * it changes for the calls whose forward used them and whose backward has not run. There is one
 * copy for each version that calls between forward and backward use, and one more if the program
 * asks for the version before the last (pipedream-2bw).
 */
#include <stddef.h>
#include <string.h>

#include "common/engine/context_int.h"

clv_module_gradient *clv_context_module_gradient(const clv_context *ctx, uint32_t module) {
  clv_module_gradient *g = ctx->gradients;
  while (g && g->module != module) g = g->next;
  return g;
}

clv_context_call *clv_order_entry_call(clv_order_entry *p, clv_order_kind kind) {
  return (clv_context_call *)(void *)((char *)(p - kind) -
                                      offsetof(clv_context_call, order_entries));
}

void clv_old_weights_unref(clv_contexts *e, clv_old_weights *w) {
  if (!w || --w->refs) return;
  w->mod->n_old_weights--;
  clv_tensor_unref(w->block);
  clv_module_uncharge_tensors(w->mod, &w->charged_on_device);
  clv_slab_recycle(&e->weights, w);
}

static clv_old_weights *ref_old_weights(clv_old_weights *w) {
  w->refs++;
  return w;
}

void *clv_call_param_block(const clv_context_call *c) {
  return c->weights ? c->weights->block->data : c->mod->block;
}

/* Allocates a copy of all parameters of a module, with one reference. The step fills the copy
 * later. */
static clv_code alloc_copy(clv_contexts *e, clv_module *m, clv_old_weights **ret, clv_err *err) {
  clv_old_weights *w;
  CLV_TRY(clv_contexts_slab_alloc(e, &e->weights, &w, err));
  clv_code code =
      clv_module_alloc_block(m, m->params->total_bytes, &w->charged_on_device, &w->block, err);
  if (code != CLV_OK) {
    clv_slab_recycle(&e->weights, w);
    return code;
  }
  w->refs = 1;
  w->mod = m;
  w->version = m->version;
  m->n_old_weights++;
  uint32_t n_versions = CLV_MAX(m->counts.max_versions, 1 + m->n_old_weights);
  __atomic_store_n(&m->counts.max_versions, n_versions, __ATOMIC_RELAXED);
  *ret = w;
  return CLV_OK;
}

/* True if the backward of call c will read the weights that module m has now. */
static bool needs_old_weights(const clv_context_call *c, const clv_module *m) {
  bool has_run = c->call_state >= CALL_FORWARD_DONE && c->call_state <= CALL_WEIGHT_GRAD;
  if (c->mod != m || !has_run || c->weights) return false;
  return c->call_state == CALL_RETAINED || c->is_recompute ||
         clv_plan_get_info(c->plan->plan)->backward_reads_params;
}

static clv_code save_for_calls(clv_contexts *e, const clv_context *ctx, clv_order_kind kind,
                               clv_module *m, clv_old_weights **kept, clv_err *err) {
  for (clv_order_entry *p = ctx->order[kind].first; p; p = p->next) {
    clv_context_call *c = clv_order_entry_call(p, kind);
    if (!needs_old_weights(c, m)) continue;
    if (!*kept) CLV_TRY(alloc_copy(e, m, kept, err));
    c->weights = ref_old_weights(*kept);
  }
  return CLV_OK;
}

clv_code clv_save_old_weights(clv_contexts *e, clv_context *ctx, clv_module_gradient *g,
                              bool keeps_copy, clv_old_weights **ret, clv_err *err) {
  clv_old_weights *kept = NULL;
  clv_old_weights_unref(e, g->weights_before_step);
  g->weights_before_step = NULL;
  clv_code code = keeps_copy ? alloc_copy(e, g->mod, &kept, err) : CLV_OK;
  if (code == CLV_OK) code = save_for_calls(e, ctx, ORDER_BACKWARD, g->mod, &kept, err);
  if (code == CLV_OK) code = save_for_calls(e, ctx, ORDER_WEIGHT, g->mod, &kept, err);
  if (code == CLV_OK && keeps_copy) g->weights_before_step = ref_old_weights(kept);
  *ret = kept;
  return code;
}

void clv_copy_old_weights(const clv_old_weights *w) {
  clv_module *m = w->mod;
  clv_module_copy_bytes(m, w->block->data, m->block, m->params->total_bytes);
}

void clv_call_use_old_weights(const clv_context *ctx, clv_context_call *c) {
  const clv_module_gradient *g =
      c->uses_old_weights ? clv_context_module_gradient(ctx, c->module) : NULL;
  if (g && g->weights_before_step && !c->weights)
    c->weights = ref_old_weights(g->weights_before_step);
}
