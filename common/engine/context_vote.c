/* SPDX-License-Identifier: Apache-2.0
 *
 * Work: the end of a backward pass. Gradients of tied parameters are added to those of their
 * owners. Then FINISHED is sent. It may carry a vote: whether the gradients of this node are
 * finite, and their sums of squares.
 */
#include "common/engine/context_int.h"

#include <math.h>

static bool was_in_pass(const clv_context *ctx, uint32_t module) {
  return ctx->was_in_pass[module / 8] >> (module % 8) & 1;
}

static int64_t count_learning(const clv_contexts *e, const clv_context *ctx) {
  int64_t n = 0;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++)
    if (was_in_pass(ctx, i)) n += clv_contexts_module(e, i)->n_learning;
  return n;
}

/* Computes the sum of squares of each gradient of module m into `at`; 0 for all if the module has
 * no gradients. */
static clv_code compute_sum_squares(const clv_module *m, const clv_module_gradient *g, double *at,
                                    clv_err *err) {
  const clv_backend *b = m->o.backend;
  if (g && g->input_part_done)
    return b->sum_squares(b, g->block->data, m->learning_extents, m->n_learning, at, err);
  for (uint32_t i = 0; i < m->n_learning; i++) at[i] = 0;
  return CLV_OK;
}

/* ---- gradients of tied parameters ------------------------------------------------------------ */

/* True if the tied parameter number `tie` has a gradient, from this backward pass or an earlier
 * one. */
static bool tie_has_gradient(const clv_module_gradient *g, int tie) {
  return g->input_part_done && !g->mod->params->ties[tie].param.frozen;
}

static clv_code check_owner_has_gradient(const clv_context *ctx, const clv_module_gradient *g,
                                         int tie, bool *ret_any, clv_err *err) {
  const clv_module *owner = g->mod->owners[tie];
  const clv_module_gradient *to = clv_context_module_gradient(ctx, owner->o.index);
  if (!tie_has_gradient(g, tie)) return CLV_OK;
  *ret_any = true;
  if (to && to->input_part_done) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "'%s' of module %u is a parameter of module %u, which got no gradients in this "
                  "backward pass: call both modules in every context",
                  g->mod->params->ties[tie].param.name, g->module, owner->o.index);
}

/* Checks that every owner of a tied parameter with a gradient has gradients of its own, to which
 * that gradient can be added. *ret_any: set to true if there is such a parameter. */
static clv_code check_ties(const clv_context *ctx, bool *ret_any, clv_err *err) {
  for (const clv_module_gradient *g = ctx->gradients; g; g = g->next)
    for (int i = 0; i < g->mod->params->n_ties; i++)
      CLV_TRY(check_owner_has_gradient(ctx, g, i, ret_any, err));
  return CLV_OK;
}

/* Adds the gradients of tied parameters to those of their owners, in the order of modules and
 * nodes. */
static clv_code add_ties(const clv_context *ctx, clv_err *err) {
  for (const clv_module_gradient *g = ctx->gradients; g; g = g->next)
    for (int i = 0; i < g->mod->params->n_ties; i++) {
      if (!tie_has_gradient(g, i)) continue;
      clv_module_gradient *to = clv_context_module_gradient(ctx, g->mod->owners[i]->o.index);
      CLV_TRY(clv_module_add_tied_gradient(g->mod, i, g->block->data, to->block->data, err));
    }
  return CLV_OK;
}

/* ---- the work of a vote ---------------------------------------------------------------------- */

static clv_code prepare_vote(clv_contexts *e, clv_context *ctx, bool *ret_computes, clv_err *err) {
  /* the memory is allocated now, because a later APPLY must not fail */
  for (const clv_module_gradient *g = ctx->gradients; g; g = g->next)
    CLV_TRY(clv_module_prepare_snapshot(g->mod, err));
  clv_shape shape = CLV_SHAPE(count_learning(e, ctx));
  ctx->total = 0;
  if (!shape.dim[0]) return CLV_OK;
  CLV_TRY(clv_pool_alloc_tensor(e->env.pool, CLV_F64, &shape, &ctx->sums, err));
  *ret_computes = true;
  return CLV_OK;
}

static clv_code prepare_end_of_pass(clv_contexts *e, clv_work *w, bool *ret_computes,
                                    clv_err *err) {
  clv_context *ctx = w->ctx;
  if (ctx->pass_state != PASS_ENDING) return CLV_OK;
  CLV_TRY(check_ties(ctx, ret_computes, err));
  return ctx->needs_vote ? prepare_vote(e, ctx, ret_computes, err) : CLV_OK;
}

/* Computes the sums of squares of all gradients of the modules in the pass, in the order of modules
 * and parameters. */
static clv_code compute_vote(const clv_work *w, clv_context *ctx, clv_err *err) {
  const clv_module_gradient *g = ctx->gradients;
  double *sums = ctx->sums->data, *at = sums;
  for (uint32_t i = 0; i < CLV_MODULE_ALL; i++) {
    while (g && g->module < i) g = g->next;
    if (!was_in_pass(ctx, i)) continue;
    const clv_module *m = w->env->modules[i];
    CLV_TRY(compute_sum_squares(m, g && g->module == i ? g : NULL, at, err));
    at += m->n_learning;
  }
  for (const double *k = sums; k < at; k++) ctx->total += *k;
  return CLV_OK;
}

static clv_code compute_end_of_pass(clv_work *w, clv_err *err) {
  CLV_TRY(add_ties(w->ctx, err));
  return w->ctx->sums ? compute_vote(w, w->ctx, err) : CLV_OK;
}

static clv_code send_finished(clv_contexts *e, clv_context *ctx, clv_err *err) {
  CLV_AUTO(clv_tensor_unrefp) clv_tensor *sums = clv_steal(&ctx->sums);
  clv_packet *p;
  clv_pass_on_event(e, ctx, PASS_ENDED);
  CLV_TRY(clv_outbox_new_packet(e, CLV_FINISHED, ctx, ++*e->env.next_message, 0, &p, err));
  p->frame.backward_pass_number = ctx->phase;
  p->frame.has_vote = ctx->needs_vote;
  p->frame.vote.is_finite = ctx->needs_vote && isfinite(ctx->total);
  if (sums) clv_packet_add_tensor(p, sums);
  clv_outbox_send(e, p);
  return CLV_OK;
}

/* Sends FINISHED. Sends nothing if the context has failed meanwhile, because its failure has been
 * sent already. */
static clv_code finish_end_of_pass(clv_contexts *e, clv_work *w, clv_code code, const clv_err *why,
                                   clv_err *err) {
  clv_context *ctx = w->ctx;
  clv_err send_err;
  (void)err;
  if (code == CLV_OK && ctx->pass_state == PASS_ENDING) {
    code = send_finished(e, ctx, &send_err);
    why = &send_err;
  }
  if (code != CLV_OK) clv_context_fail_in_module(e, ctx, why, CLV_MODULE_ALL);
  ctx->sums = clv_tensor_unref(ctx->sums);
  return CLV_OK;
}

const clv_work_type clv_work_vote = {
    .prepare = prepare_end_of_pass, .compute = compute_end_of_pass, .finish = finish_end_of_pass};
