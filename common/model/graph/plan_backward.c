/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing the backward steps. clv_plan_write_backward visits the nodes from the last to the first.
 * Each node adds the gradients of its inputs to the sums of these inputs, in the order of the
 * visit: descending consumer, then descending input. The order, and so the bits, are the same
 * wherever the graph is cut.
 */
#include "common/model/graph/plan_int.h"

int clv_plan_grad_block(const clv_plan *p, int node) {
  const clv_kernel *k = p->nodes[node].kernel;
  if (!k) return 1;
  return clv_plan_block(&p->graph->nodes[node].shape, k->dout_block ? k->dout_block : k->out_block);
}

int clv_plan_din_block(const clv_plan *p, int node, int i) {
  const clv_plan_node *q = &p->nodes[node];
  const clv_kernel *k = q->kernel;
  return clv_plan_block(&p->graph->nodes[q->src[i]].shape,
                        k->din_block[i] ? k->din_block[i] : k->in_block[i]);
}

/* Returns the layout in which gradients of node's value are added. Sums are in f32. */
static int sum_block(const clv_plan *p, int node) {
  int block = clv_plan_grad_block(p, node);
  return clv_plan_has_one_reader(p, node) ? block : clv_layout_f32(block);
}

static clv_code move_to_new(clv_plan *p, int node, clv_plan_layout_buf *rep, int block,
                            clv_err *err) {
  clv_plan_layout_buf to = {.block = block};
  CLV_TRY(clv_plan_value_buf(p, node, block, &to.buf, err));
  CLV_TRY(clv_plan_convert_layout(p, node, *rep, to, err));
  *rep = to;
  return CLV_OK;
}

/* True if a sum of two bf16 gradients may stay in bf16. A sum in f32 would also be rounded once, so
 * the bits are equal. */
static bool adds_in_bf16(const clv_plan *p, int node, int block) {
  return clv_layout_is_last(block) && clv_layout_is_bf16(block) &&
         block == clv_plan_grad_block(p, node) && clv_plan_n_readers(p, node) == 2;
}

/* Adds one gradient to the sum of node's value. */
static clv_code add_gradient(clv_plan *p, int node, clv_plan_layout_buf rep, clv_err *err) {
  clv_plan_layout_buf *sum = &p->nodes[node].grad;
  int block = sum_block(p, node);
  if (adds_in_bf16(p, node, rep.block) && (sum->buf < 0 || sum->block == rep.block))
    block = rep.block;
  if (rep.block != block) CLV_TRY(move_to_new(p, node, &rep, block, err));
  if (sum->buf < 0) {
    *sum = rep;
    return CLV_OK;
  }
  if (sum->block != block) CLV_TRY(move_to_new(p, node, sum, block, err));
  /* The step below writes the sum, which is never the caller's read-only dout: dout is the gradient
   * of the output, and no reachable node reads the output. */
  clv_plan_step s = clv_plan_step_of(clv_plan_run_add, "add", node);
  s.src = rep.buf;
  s.dst = sum->buf;
  s.src_block = s.dst_block = block;
  s.n = clv_layout_numel(&p->graph->nodes[node].shape, block);
  clv_plan_extend_lifetime(p, s.src);
  clv_plan_extend_lifetime(p, s.dst);
  return clv_plan_add_step(p, &s, err);
}

/* Adds buffers for the gradients of frozen parameters, which the kernel writes and nothing
 * reads. */
static clv_code add_discarded_gradients(clv_plan *p, int node, clv_plan_step *s, clv_err *err) {
  for (int i = 0; i < CLV_MAX_PARAMS; i++) {
    const clv_param *q = p->nodes[node].param[i];
    if (q && q->trainable && q->frozen)
      CLV_TRY(clv_plan_buf_new(p, q->n * clv_dtype_size(p->graph->nodes[q->node].dtype),
                               SPACE_SCRATCH, &s->discard[i], err));
  }
  return CLV_OK;
}

/* True if in[0] of node is cheaper to recompute than to keep, and node is its only reader. */
static bool can_recompute_in0(const clv_plan *p, int node) {
  const clv_plan_node *q = &p->nodes[node], *from = &p->nodes[q->src[0]];
  if (clv_plan_is_recomputed(p, node) || clv_plan_is_recomputed(p, q->src[0])) return false;
  return from->kernel && from->kernel->recompute && q->in[0] == from->reps[0].buf &&
         clv_plan_has_one_reader(p, q->src[0]);
}

static clv_code write_recompute(clv_plan *p, int node, int *ret_buf, clv_err *err) {
  int from = p->nodes[node].src[0];
  clv_plan_step s = clv_plan_step_of(clv_plan_run_recompute, "again", from);
  CLV_TRY(clv_plan_value_buf(p, from, p->nodes[from].reps[0].block, &s.dst, err));
  clv_plan_bind_step(p, &s);
  clv_plan_extend_lifetime(p, p->nodes[from].in[0]);
  clv_plan_extend_lifetime(p, p->nodes[from].saved);
  *ret_buf = s.dst;
  return clv_plan_add_step(p, &s, err);
}

/* Extends the lifetime of all buffers that the backward step s may read up to s, which is written
 * next. Adds a step that recomputes in[0] where that is possible. */
static clv_code bind_saved(clv_plan *p, int node, clv_plan_step *s, unsigned saves, clv_err *err) {
  const clv_plan_node *q = &p->nodes[node];
  bool recompute = saves & CLV_SAVE_IN0 && can_recompute_in0(p, node);
  if (recompute) CLV_TRY(write_recompute(p, node, &s->recompute, err));
  if (saves & CLV_SAVE_IN0 && !recompute) clv_plan_extend_lifetime(p, q->in[0]);
  for (int i = 1; i < q->n_src; i++)
    if (saves & clv_save_in(i)) clv_plan_extend_lifetime(p, q->in[i]);
  if (saves & CLV_SAVE_OUT) clv_plan_extend_lifetime(p, q->reps[0].buf);
  clv_plan_extend_lifetime(p, s->recompute);
  clv_plan_extend_lifetime(p, q->saved);
  clv_plan_extend_lifetime(p, q->grad.buf);
  clv_plan_bind_step(p, s);
  return CLV_OK;
}

static clv_code write_dx(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  clv_plan_step s = clv_plan_step_of(clv_plan_run_backward_input, "backward_input", node);
  clv_plan_layout_buf dx[CLV_MAX_IN];
  if (!clv_plan_has_dx(p, node)) return CLV_OK;
  CLV_TRY(bind_saved(p, node, &s, q->kernel->saves & ~q->kernel->saves_for_dw, err));
  for (int i = 0; i < q->n_src; i++) {
    if (!p->nodes[q->src[i]].needs_grad) continue;
    dx[i].block = clv_plan_din_block(p, node, i);
    CLV_TRY(clv_plan_value_buf(p, q->src[i], dx[i].block, &dx[i].buf, err));
    s.din[i] = dx[i].buf;
  }
  if (q->kernel->fused_grads && q->learns) CLV_TRY(add_discarded_gradients(p, node, &s, err));
  CLV_TRY(clv_plan_add_scratch(p, node, &s, err));
  CLV_TRY(clv_plan_add_cache(p, node, &s, err));
  CLV_TRY(clv_plan_add_step(p, &s, err));
  for (int i = q->n_src - 1; i >= 0; i--)
    if (s.din[i] >= 0) CLV_TRY(add_gradient(p, q->src[i], dx[i], err));
  return CLV_OK;
}

static clv_code write_dw(clv_plan *p, int node, clv_err *err) {
  clv_plan_step s = clv_plan_step_of(clv_plan_run_backward_weight, "backward_weight", node);
  CLV_TRY(bind_saved(p, node, &s, p->nodes[node].kernel->saves, err));
  CLV_TRY(add_discarded_gradients(p, node, &s, err));
  CLV_TRY(clv_plan_add_scratch(p, node, &s, err));
  return clv_plan_add_step(p, &s, err);
}

static clv_code write_din(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  clv_plan_layout_buf din = {.block = 1};
  CLV_TRY(clv_plan_value_buf(p, node, 1, &din.buf, err));
  p->bufs[din.buf].space = SPACE_DIN + q->input;
  if (q->grad.buf >= 0) return clv_plan_convert_layout(p, node, q->grad, din, err);
  clv_plan_step s =
      clv_plan_step_of(clv_plan_run_zero, "zero", node); /* the output ignores this input */
  s.dst = din.buf;
  s.n = p->input_bytes[q->input];
  return clv_plan_add_step(p, &s, err);
}

/* True if the weight gradients of node are computed in the phase backward_weight. Those of
 * recomputed nodes are not, because recomputed values do not live until that phase. */
static bool has_late_dw(const clv_plan *p, int node) {
  return p->options.split_backward && !clv_plan_is_recomputed(p, node) && clv_plan_has_dw(p, node);
}

/* Adds the node's forward step once more. If its value is not needed, only binds the inputs that
 * its backward reads. */
static clv_code write_recomputed_node(clv_plan *p, int node, bool needed, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  q->forward_written_twice = true;
  if (!q->is_reachable || q->is_absorbed) return CLV_OK;
  if (needed) return clv_plan_write_value(p, node, true, err);
  return clv_plan_reads_saved(p, node) ? clv_plan_bind_inputs(p, node, err) : CLV_OK;
}

/* Adds the repeated forward steps of a recomputed block, before the first backward step of it. */
static clv_code write_recomputed_block(clv_plan *p, int node, clv_err *err) {
  CLV_AUTO(clv_freep) bool *needed = NULL;
  uint32_t number = p->graph->nodes[node].recompute;
  if (!clv_plan_is_recomputed(p, node) || p->nodes[node].forward_written_twice) return CLV_OK;
  CLV_TRY(clv_alloc((size_t)p->graph->n_nodes, sizeof *needed, &needed, err));
  clv_plan_find_recomputed(p, node, needed);
  for (int i = 0; i <= node; i++)
    if (clv_plan_is_in_block(p, i, number)) CLV_TRY(write_recomputed_node(p, i, needed[i], err));
  return CLV_OK;
}

static clv_code write_node(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  if (!q->needs_grad) return CLV_OK;
  if (q->input >= 0) return write_din(p, node, err);
  if (!q->is_reachable || q->is_absorbed) return CLV_OK;
  if (q->alias) return add_gradient(p, p->graph->nodes[node].in[0], q->grad, err);
  CLV_TRY(write_recomputed_block(p, node, err));
  bool dw = clv_plan_has_dw(p, node), split = has_late_dw(p, node);
  int block = clv_plan_grad_block(p, node);
  if (q->grad.buf >= 0 && q->grad.block != block)
    CLV_TRY(move_to_new(p, node, &q->grad, block, err));
  /* The caller's dout is not available any more in backward_weight. */
  if (dw && split && p->bufs[q->grad.buf].space == SPACE_DOUT)
    CLV_TRY(move_to_new(p, node, &q->grad, q->grad.block, err));
  /* dW comes before dX, because the next node reads the result of dX while it is in the cache. */
  if (dw && !split) CLV_TRY(write_dw(p, node, err));
  return write_dx(p, node, err);
}

clv_code clv_plan_write_backward(clv_plan *p, clv_err *err) {
  int output = p->graph->output;
  clv_plan_layout_buf dout = {.block = 1};
  if (p->nodes[output].needs_grad) {
    CLV_TRY(clv_plan_value_buf(p, output, 1, &dout.buf, err));
    p->bufs[dout.buf].space = SPACE_DOUT;
    CLV_TRY(add_gradient(p, output, dout, err));
  }
  for (int i = p->graph->n_nodes - 1; i >= 0; i--) CLV_TRY(write_node(p, i, err));
  p->phase_end[PHASE_BACKWARD_INPUT] = p->n_steps;
  for (int i = p->graph->n_nodes - 1; i >= 0; i--)
    if (has_late_dw(p, i) && p->nodes[i].grad.buf >= 0) CLV_TRY(write_dw(p, i, err));
  p->phase_end[PHASE_BACKWARD_WEIGHT] = p->n_steps;
  return CLV_OK;
}
