/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing the backward steps. clv_plan_add_backward_steps visits the nodes from the last to the
 * first. Each node adds the gradients of its inputs to the sums of these inputs, in the order of
 * the visit: descending consumer, then descending input. The order, and so the bits, are the same
 * wherever the graph is cut.
 */
#include "common/model/graph/plan_int.h"

int clv_plan_output_grad_layout(const clv_plan *p, int node) {
  const clv_kernel *k = p->nodes[node].kernel;
  if (!k) return 1;
  return clv_plan_layout_for_rank(&p->graph->nodes[node].shape,
                                  k->dout_block ? k->dout_block : k->out_block);
}

int clv_plan_input_grad_layout(const clv_plan *p, int node, int i) {
  const clv_plan_node *q = &p->nodes[node];
  const clv_kernel *k = q->kernel;
  return clv_plan_layout_for_rank(&p->graph->nodes[q->src[i]].shape,
                                  k->din_block[i] ? k->din_block[i] : k->in_block[i]);
}

/* Returns the layout in which the gradients of a node's value are summed. Sums of several gradients
 * are in f32. */
static int gradient_sum_block(const clv_plan *p, int node) {
  int block = clv_plan_output_grad_layout(p, node);
  return clv_plan_has_one_reader(p, node) ? block : clv_layout_f32(block);
}

static clv_code convert_to_new_buf(clv_plan *p, int node, clv_plan_layout_buf *layout_buf,
                                   int block, clv_err *err) {
  clv_plan_layout_buf to = {.layout = block};
  CLV_TRY(clv_plan_add_value_buf(p, node, block, &to.buf, err));
  CLV_TRY(clv_plan_convert_layout(p, node, *layout_buf, to, err));
  *layout_buf = to;
  return CLV_OK;
}

/* True if the sum of a node's two gradients may be computed in bf16. An f32 sum would also be
 * rounded to bf16 once, so the bits are equal. */
static bool can_add_in_bf16(const clv_plan *p, int node, int block) {
  return clv_layout_is_channels_last(block) && clv_layout_is_bf16(block) &&
         block == clv_plan_output_grad_layout(p, node) && clv_plan_n_readers(p, node) == 2;
}

/* Adds the steps that add one gradient, in buffer `gradient`, to the gradient sum of a node's
 * value. */
static clv_code add_gradient(clv_plan *p, int node, clv_plan_layout_buf gradient, clv_err *err) {
  clv_plan_layout_buf *sum = &p->nodes[node].grad_sum;
  int block = gradient_sum_block(p, node);
  if (can_add_in_bf16(p, node, gradient.layout) && (sum->buf < 0 || sum->layout == gradient.layout))
    block = gradient.layout;
  if (gradient.layout != block) CLV_TRY(convert_to_new_buf(p, node, &gradient, block, err));
  if (sum->buf < 0) {
    *sum = gradient;
    return CLV_OK;
  }
  if (sum->layout != block) CLV_TRY(convert_to_new_buf(p, node, sum, block, err));
  /* The add step writes the sum in place. The sum is never the caller's read-only dout, because
   * dout is the gradient of the output, and no reachable node reads the output. */
  clv_plan_step s = clv_plan_make_bare_step(clv_plan_run_add, "add", node);
  s.src = gradient.buf;
  s.dst = sum->buf;
  s.src_layout = s.dst_layout = block;
  s.n = clv_layout_numel(&p->graph->nodes[node].shape, block);
  clv_plan_extend_lifetime(p, s.src);
  clv_plan_extend_lifetime(p, s.dst);
  return clv_plan_add_step(p, &s, err);
}

/* Adds buffers for the gradients of frozen parameters, which the kernel computes although nothing
 * reads them. */
static clv_code add_discarded_gradients(clv_plan *p, int node, clv_plan_step *s, clv_err *err) {
  for (int i = 0; i < CLV_MAX_PARAMS; i++) {
    const clv_param *q = p->nodes[node].slot_params[i];
    if (q && q->trainable && q->frozen)
      CLV_TRY(clv_plan_buf_new(p, q->n * clv_dtype_size(p->graph->nodes[q->node].dtype),
                               SPACE_SCRATCH, &s->discard_bufs[i], err));
  }
  return CLV_OK;
}

/* True if backward can recompute input 0 of `node` instead of keeping it: the kernel that computed
 * the input offers that, and `node` is the input's only reader. */
static bool can_recompute_in0(const clv_plan *p, int node) {
  const clv_plan_node *q = &p->nodes[node], *from = &p->nodes[q->src[0]];
  if (clv_plan_is_recomputed(p, node) || clv_plan_is_recomputed(p, q->src[0])) return false;
  return from->kernel && from->kernel->recompute && q->in[0] == from->value_bufs[0].buf &&
         clv_plan_has_one_reader(p, q->src[0]);
}

static clv_code add_recompute_step(clv_plan *p, int node, int *ret_buf, clv_err *err) {
  int from = p->nodes[node].src[0];
  clv_plan_step s = clv_plan_make_bare_step(clv_plan_run_recompute, "again", from);
  CLV_TRY(clv_plan_add_value_buf(p, from, p->nodes[from].value_bufs[0].layout, &s.dst, err));
  CLV_TRY(clv_plan_add_scratch(p, from, &s, err));
  clv_plan_bind_step_bufs(p, &s);
  clv_plan_extend_lifetime(p, p->nodes[from].in[0]);
  clv_plan_extend_lifetime(p, p->nodes[from].saved_buf);
  *ret_buf = s.dst;
  return clv_plan_add_step(p, &s, err);
}

/* Sets the buffers of backward step s, which is written next, and extends the lifetime of all
 * buffers that s may read, the output's gradient only if reads_dout. Adds a step before s that
 * recomputes input 0 where that is possible. */
static clv_code bind_saved_values(clv_plan *p, int node, clv_plan_step *s, unsigned saves,
                                  bool reads_dout, clv_err *err) {
  const clv_plan_node *q = &p->nodes[node];
  bool recompute = saves & CLV_SAVE_IN0 && can_recompute_in0(p, node);
  if (recompute) CLV_TRY(add_recompute_step(p, node, &s->recomputed_in0, err));
  if (saves & CLV_SAVE_IN0 && !recompute) clv_plan_extend_lifetime(p, q->in[0]);
  for (int i = 1; i < q->n_src; i++)
    if (saves & clv_save_flag_of_input(i)) clv_plan_extend_lifetime(p, q->in[i]);
  if (saves & CLV_SAVE_OUT) clv_plan_extend_lifetime(p, q->value_bufs[0].buf);
  clv_plan_extend_lifetime(p, s->recomputed_in0);
  clv_plan_extend_lifetime(p, q->saved_buf);
  if (reads_dout) clv_plan_extend_lifetime(p, q->grad_sum.buf);
  clv_plan_bind_step_bufs(p, s);
  return CLV_OK;
}

static clv_code add_input_gradient_step(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  clv_plan_step s = clv_plan_make_bare_step(clv_plan_run_backward_input, "backward_input", node);
  clv_plan_layout_buf dx[CLV_MAX_IN];
  if (!clv_plan_has_input_grad_step(p, node)) return CLV_OK;
  CLV_TRY(bind_saved_values(p, node, &s, q->kernel->saved_flags & ~q->kernel->saved_flags_for_dw,
                            true, err));
  for (int i = 0; i < q->n_src; i++) {
    if (!p->nodes[q->src[i]].needs_grad) continue;
    dx[i].layout = clv_plan_input_grad_layout(p, node, i);
    CLV_TRY(clv_plan_add_value_buf(p, q->src[i], dx[i].layout, &dx[i].buf, err));
    s.din[i] = dx[i].buf;
  }
  if (q->kernel->fused_grads && q->is_trained) CLV_TRY(add_discarded_gradients(p, node, &s, err));
  CLV_TRY(clv_plan_add_scratch(p, node, &s, err));
  CLV_TRY(clv_plan_add_weight_buf(p, node, &s, err));
  CLV_TRY(clv_plan_add_step(p, &s, err));
  for (int i = q->n_src - 1; i >= 0; i--)
    if (s.din[i] >= 0) CLV_TRY(add_gradient(p, q->src[i], dx[i], err));
  return CLV_OK;
}

static clv_code add_weight_gradient_step(clv_plan *p, int node, clv_err *err) {
  clv_plan_step s = clv_plan_make_bare_step(clv_plan_run_backward_weight, "backward_weight", node);
  const clv_kernel *k = p->nodes[node].kernel;
  CLV_TRY(bind_saved_values(p, node, &s, k->saved_flags, !k->weight_part_is_last, err));
  CLV_TRY(add_discarded_gradients(p, node, &s, err));
  CLV_TRY(clv_plan_add_scratch(p, node, &s, err));
  return clv_plan_add_step(p, &s, err);
}

static clv_code add_input_gradient_copy(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  clv_plan_layout_buf din = {.layout = 1};
  CLV_TRY(clv_plan_add_value_buf(p, node, 1, &din.buf, err));
  p->bufs[din.buf].space = SPACE_DIN + q->input_index;
  if (q->grad_sum.buf >= 0) return clv_plan_convert_layout(p, node, q->grad_sum, din, err);
  clv_plan_step s =
      /* this step is needed if the output does not depend on the input */
      clv_plan_make_bare_step(clv_plan_run_zero, "zero", node);
  s.dst = din.buf;
  s.n = p->input_bytes[q->input_index];
  return clv_plan_add_step(p, &s, err);
}

/* True if the weight gradients of `node` are computed in the phase backward_weight. Recomputed
 * nodes compute them in backward_input, because recomputed values do not live longer. */
static bool has_deferred_weight_gradient(const clv_plan *p, int node) {
  return p->options.split_backward && !clv_plan_is_recomputed(p, node) &&
         clv_plan_has_weight_grad_step(p, node);
}

/* Adds the node's forward step a second time, for backward. If its value is not needed, only sets
 * the inputs that its backward step reads. */
static clv_code add_recomputed_node_steps(clv_plan *p, int node, bool is_needed, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  q->has_recompute_steps = true;
  if (!q->is_reachable || q->is_absorbed) return CLV_OK;
  if (is_needed) return clv_plan_add_value_steps(p, node, true, err);
  return clv_plan_saved_values_read(p, node) ? clv_plan_bind_input_bufs(p, node, err) : CLV_OK;
}

/* Adds the forward steps of a recompute block a second time, before the first backward step of the
 * block. */
static clv_code add_recomputed_block_steps(clv_plan *p, int node, clv_err *err) {
  CLV_AUTO(clv_freep) bool *is_needed = NULL;
  uint32_t number = p->graph->nodes[node].recompute_block;
  if (!clv_plan_is_recomputed(p, node) || p->nodes[node].has_recompute_steps) return CLV_OK;
  CLV_TRY(clv_alloc((size_t)p->graph->n_nodes, sizeof *is_needed, &is_needed, err));
  clv_plan_find_recomputed(p, node, is_needed);
  for (int i = 0; i <= node; i++)
    if (clv_plan_is_in_recompute_block(p, i, number))
      CLV_TRY(add_recomputed_node_steps(p, i, is_needed[i], err));
  return CLV_OK;
}

static clv_code add_node_backward_steps(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  if (!q->needs_grad) return CLV_OK;
  if (q->input_index >= 0) return add_input_gradient_copy(p, node, err);
  if (!q->is_reachable || q->is_absorbed) return CLV_OK;
  if (q->is_alias) return add_gradient(p, p->graph->nodes[node].in[0], q->grad_sum, err);
  CLV_TRY(add_recomputed_block_steps(p, node, err));
  bool dw = clv_plan_has_weight_grad_step(p, node),
       is_deferred = has_deferred_weight_gradient(p, node),
       is_last = dw && q->kernel->weight_part_is_last;
  int block = clv_plan_output_grad_layout(p, node);
  if (q->grad_sum.buf >= 0 && q->grad_sum.layout != block)
    CLV_TRY(convert_to_new_buf(p, node, &q->grad_sum, block, err));
  /* Copies the caller's dout, because its memory is not available in backward_weight. */
  if (dw && is_deferred && !is_last && p->bufs[q->grad_sum.buf].space == SPACE_DOUT)
    CLV_TRY(convert_to_new_buf(p, node, &q->grad_sum, q->grad_sum.layout, err));
  /* The weight gradient comes first where it can, so that the input gradient is still in the cache
   * when the next node reads it. */
  if (dw && !is_deferred && !is_last) CLV_TRY(add_weight_gradient_step(p, node, err));
  CLV_TRY(add_input_gradient_step(p, node, err));
  return dw && !is_deferred && is_last ? add_weight_gradient_step(p, node, err) : CLV_OK;
}

clv_code clv_plan_add_backward_steps(clv_plan *p, clv_err *err) {
  int output = p->graph->output_node;
  clv_plan_layout_buf dout = {.layout = 1};
  if (p->nodes[output].needs_grad) {
    CLV_TRY(clv_plan_add_value_buf(p, output, 1, &dout.buf, err));
    p->bufs[dout.buf].space = SPACE_DOUT;
    CLV_TRY(add_gradient(p, output, dout, err));
  }
  for (int i = p->graph->n_nodes - 1; i >= 0; i--) CLV_TRY(add_node_backward_steps(p, i, err));
  p->phase_end[PHASE_BACKWARD_INPUT] = p->n_steps;
  for (int i = p->graph->n_nodes - 1; i >= 0; i--)
    if (has_deferred_weight_gradient(p, i) && p->nodes[i].grad_sum.buf >= 0)
      CLV_TRY(add_weight_gradient_step(p, i, err));
  p->phase_end[PHASE_BACKWARD_WEIGHT] = p->n_steps;
  return CLV_OK;
}
