/* SPDX-License-Identifier: Apache-2.0
 *
 * The backward program. Nodes are visited from the last to the first; each hands the gradients of
 * its inputs on, where they are added in the order in which they come: descending consumer, then
 * descending input. That order is the same wherever the graph is cut.
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

/* The layout in which gradients of node's value come together: sums are taken in f32. */
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

/* A sum of two in bf16 may be taken in bf16: in f32 it would be rounded once as well. */
static bool adds_in_bf16(const clv_plan *p, int node, int block) {
  return clv_layout_is_last(block) && clv_layout_is_bf16(block) &&
         block == clv_plan_grad_block(p, node) && clv_plan_n_readers(p, node) == 2;
}

/* One more gradient of node's value. */
static clv_code contribute(clv_plan *p, int node, clv_plan_layout_buf rep, clv_err *err) {
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
  /* The sum so far is never the caller's dout, which is only lent for reading: that one belongs to
   * the output alone, and no live node consumes the output. */
  clv_plan_step s = clv_plan_step_of(clv_plan_run_add, "add", node);
  s.src = rep.buf;
  s.dst = sum->buf;
  s.src_block = s.dst_block = block;
  s.n = clv_layout_numel(&p->graph->nodes[node].shape, block);
  clv_plan_extend_lifetime(p, s.src);
  clv_plan_extend_lifetime(p, s.dst);
  return clv_plan_add_step(p, &s, err);
}

/* Somewhere for a kernel to write gradients that a frozen parameter does not want. */
static clv_code spare_gradients(clv_plan *p, int node, clv_plan_step *s, clv_err *err) {
  for (int i = 0; i < CLV_MAX_PARAMS; i++) {
    const clv_param *q = p->nodes[node].param[i];
    if (q && q->trainable && q->frozen)
      CLV_TRY(clv_plan_buf_new(p, q->n * clv_dtype_size(p->graph->nodes[q->node].dtype),
                               SPACE_SCRATCH, &s->spare[i], err));
  }
  return CLV_OK;
}

/* in[0] of node is cheaper to make once more than to keep, and nobody else kept it. */
static bool can_recompute(const clv_plan *p, int node) {
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

/* Everything a backward function may read stays alive until step s, which is written next, or is
 * made again for it. */
static clv_code use_saved(clv_plan *p, int node, clv_plan_step *s, unsigned saves, clv_err *err) {
  const clv_plan_node *q = &p->nodes[node];
  bool recompute = saves & CLV_SAVE_IN0 && can_recompute(p, node);
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
  CLV_TRY(use_saved(p, node, &s, q->kernel->saves & ~q->kernel->saves_for_dw, err));
  for (int i = 0; i < q->n_src; i++) {
    if (!p->nodes[q->src[i]].needs_grad) continue;
    dx[i].block = clv_plan_din_block(p, node, i);
    CLV_TRY(clv_plan_value_buf(p, q->src[i], dx[i].block, &dx[i].buf, err));
    s.din[i] = dx[i].buf;
  }
  if (q->kernel->fused_grads && q->learns) CLV_TRY(spare_gradients(p, node, &s, err));
  CLV_TRY(clv_plan_add_scratch(p, node, &s, err));
  CLV_TRY(clv_plan_add_cache(p, node, &s, err));
  CLV_TRY(clv_plan_add_step(p, &s, err));
  for (int i = q->n_src - 1; i >= 0; i--)
    if (s.din[i] >= 0) CLV_TRY(contribute(p, q->src[i], dx[i], err));
  return CLV_OK;
}

static clv_code write_dw(clv_plan *p, int node, clv_err *err) {
  clv_plan_step s = clv_plan_step_of(clv_plan_run_backward_weight, "backward_weight", node);
  CLV_TRY(use_saved(p, node, &s, p->nodes[node].kernel->saves, err));
  CLV_TRY(spare_gradients(p, node, &s, err));
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

/* What is computed again does not stay until the last phase. */
static bool has_late_dw(const clv_plan *p, int node) {
  return p->options.split_backward && !clv_plan_is_recomputed(p, node) && clv_plan_has_dw(p, node);
}

/* Forward's step of the node, or where it is not wanted, what its backward reads of others. */
static clv_code write_one_again(clv_plan *p, int node, bool wanted, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  q->again = true;
  if (!q->live || q->absorbed) return CLV_OK;
  if (wanted) return clv_plan_write_value(p, node, true, err);
  return clv_plan_reads_saved(p, node) ? clv_plan_bind_inputs(p, node, err) : CLV_OK;
}

/* Before the first step of backward of a node whose values are not kept: forward of its block. */
static clv_code write_again(clv_plan *p, int node, clv_err *err) {
  CLV_AUTO(clv_freep) bool *wanted = NULL;
  uint32_t number = p->graph->nodes[node].recompute;
  if (!clv_plan_is_recomputed(p, node) || p->nodes[node].again) return CLV_OK;
  CLV_TRY(clv_alloc((size_t)p->graph->n_nodes, sizeof *wanted, &wanted, err));
  clv_plan_find_recomputed(p, node, wanted);
  for (int i = 0; i <= node; i++)
    if (clv_plan_is_in_block(p, i, number)) CLV_TRY(write_one_again(p, i, wanted[i], err));
  return CLV_OK;
}

static clv_code write_node(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  if (!q->needs_grad) return CLV_OK;
  if (q->input >= 0) return write_din(p, node, err);
  if (!q->live || q->absorbed) return CLV_OK;
  if (q->alias) return contribute(p, p->graph->nodes[node].in[0], q->grad, err);
  CLV_TRY(write_again(p, node, err));
  bool dw = clv_plan_has_dw(p, node), split = has_late_dw(p, node);
  int block = clv_plan_grad_block(p, node);
  if (q->grad.buf >= 0 && q->grad.block != block)
    CLV_TRY(move_to_new(p, node, &q->grad, block, err));
  /* The caller's dout is gone when backward_weight comes. */
  if (dw && split && p->bufs[q->grad.buf].space == SPACE_DOUT)
    CLV_TRY(move_to_new(p, node, &q->grad, q->grad.block, err));
  /* dW before dX, whose output the next node reads while it is in the cache. */
  if (dw && !split) CLV_TRY(write_dw(p, node, err));
  return write_dx(p, node, err);
}

clv_code clv_plan_write_backward(clv_plan *p, clv_err *err) {
  int output = p->graph->output;
  clv_plan_layout_buf dout = {.block = 1};
  if (p->nodes[output].needs_grad) {
    CLV_TRY(clv_plan_value_buf(p, output, 1, &dout.buf, err));
    p->bufs[dout.buf].space = SPACE_DOUT;
    CLV_TRY(contribute(p, output, dout, err));
  }
  for (int i = p->graph->n_nodes - 1; i >= 0; i--) CLV_TRY(write_node(p, i, err));
  p->phase_end[PHASE_BACKWARD_INPUT] = p->n_steps;
  for (int i = p->graph->n_nodes - 1; i >= 0; i--)
    if (has_late_dw(p, i) && p->nodes[i].grad.buf >= 0) CLV_TRY(write_dw(p, i, err));
  p->phase_end[PHASE_BACKWARD_WEIGHT] = p->n_steps;
  return CLV_OK;
}
