/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks whose values are not kept until backward (as torch.utils.checkpoint does). Backward begins
 * such a block with the forward steps that it needs, computed again from the values that come into
 * the block. Random numbers are functions of the call's key, so the bits are those of the first
 * forward. plan_forward.c and plan_backward.c call these functions while they write the steps.
 */
#include "common/model/graph/plan_int.h"

bool clv_plan_is_recomputed(const clv_plan *p, int node) {
  return p->options.training && p->graph->nodes[node].recompute_block &&
         p->graph->nodes[node].op != CLV_OP_INPUT;
}

bool clv_plan_is_in_recompute_block(const clv_plan *p, int node, uint32_t number) {
  return clv_plan_is_recomputed(p, node) && p->graph->nodes[node].recompute_block == number;
}

bool clv_plan_has_weight_grad_step(const clv_plan *p, int node) {
  const clv_plan_node *q = &p->nodes[node];
  return q->is_reachable && q->kernel && q->is_trained && !q->kernel->fused_grads;
}

bool clv_plan_has_input_grad_step(const clv_plan *p, int node) {
  const clv_plan_node *q = &p->nodes[node];
  bool needs_step = q->kernel->fused_grads && q->is_trained;
  for (int i = 0; i < q->n_src; i++) needs_step |= p->nodes[q->src[i]].needs_grad;
  return needs_step;
}

unsigned clv_plan_saved_values_read(const clv_plan *p, int node) {
  const clv_plan_node *q = &p->nodes[node];
  unsigned saves = 0;
  if (!q->kernel || !q->needs_grad) return 0;
  if (clv_plan_has_input_grad_step(p, node))
    saves |= q->kernel->saved_flags & ~q->kernel->saved_flags_for_dw;
  if (clv_plan_has_weight_grad_step(p, node)) saves |= q->kernel->saved_flags;
  return saves;
}

/* Marks the inputs of `node` that its backward reads (saves: CLV_SAVE_* flags). marks_all: marks
 * every input, because the recomputed forward reads them. */
static void mark_inputs(const clv_plan *p, int node, unsigned saves, bool marks_all,
                        bool *is_needed) {
  const clv_plan_node *q = &p->nodes[node];
  for (int k = 0; k < q->n_src; k++)
    if (marks_all || saves & clv_save_flag_of_input(k)) is_needed[q->src[k]] = true;
}

void clv_plan_find_recomputed(const clv_plan *p, int top, bool *is_needed) {
  uint32_t number = p->graph->nodes[top].recompute_block;
  for (int i = top; i >= 0; i--) {
    const clv_plan_node *q = &p->nodes[i];
    if (!q->is_reachable || q->is_absorbed || !clv_plan_is_in_recompute_block(p, i, number))
      continue;
    unsigned saves = clv_plan_saved_values_read(p, i);
    bool has_backward = q->kernel && q->needs_grad;
    is_needed[i] |= saves & CLV_SAVE_OUT || (has_backward && q->kernel->saved_bytes);
    mark_inputs(p, i, saves, is_needed[i], is_needed);
  }
}
