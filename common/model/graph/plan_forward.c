/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing the forward steps: one kernel step per node, with a reorder step in front if the kernel
 * computes in another layout than its input has. clv_plan_add_forward_steps runs once, after
 * fusion. It prepares the kernels; where the backend has no kernel for fused nodes, it undoes the
 * fusion. Backward calls clv_plan_add_value_steps for the nodes that it recomputes.
 */
#include "common/model/graph/plan_int.h"

#include <string.h>

/* Returns a buffer with the value of `node` in a layout: an existing buffer, or a new one that a
 * reorder step fills from the buffer that the node's kernel writes. */
static clv_code find_or_add_value_buf(clv_plan *p, int node, int block, int *ret_buf,
                                      clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  clv_plan_layout_buf to = {.layout = block};
  for (int i = 0; i < q->n_value_bufs; i++)
    if (q->value_bufs[i].layout == block) {
      *ret_buf = q->value_bufs[i].buf;
      return CLV_OK;
    }
  CLV_TRY(clv_plan_add_value_buf(p, node, block, &to.buf, err));
  CLV_TRY(clv_plan_convert_layout(p, node, q->value_bufs[0], to, err));
  if (q->n_value_bufs < PLAN_MAX_LAYOUT_BUFS) q->value_bufs[q->n_value_bufs++] = to;
  *ret_buf = to.buf;
  return CLV_OK;
}

static int preferred_gradient_layout(const clv_plan *p, int node) {
  return p->nodes[node].kernel && clv_plan_has_one_reader(p, node)
             ? clv_plan_output_grad_layout(p, node)
             : 0;
}

static void describe_node(const clv_plan *p, int node, clv_node_desc *d) {
  const clv_node *nodes = p->graph->nodes;
  const clv_plan_node *q = &p->nodes[node];
  *d = (clv_node_desc){.op = nodes[q->first_fused_node].op,
                       .attrs = nodes[q->first_fused_node].attrs,
                       .dtype = p->options.dtype,
                       .n_in = q->n_src,
                       .out = nodes[node].shape,
                       .training = p->options.training,
                       .need_dw = q->is_trained,
                       .threads = p->options.threads,
                       .tail = q->fused_tail_flags,
                       .bf16 = p->options.bf16,
                       .tf32 = p->options.tf32};
  if (q->n_fused && !q->fused_tail_flags)
    for (; d->n_links < q->n_fused; d->n_links++)
      d->link[d->n_links] = clv_plan_make_chain_link(p, q->fused_nodes[d->n_links]);
  for (int i = 0; i < q->n_src; i++) {
    d->in[i] = nodes[q->src[i]].shape;
    d->in_dtype[i] = nodes[q->src[i]].dtype;
    d->offered_block[i] = p->nodes[q->src[i]].value_bufs[0].layout;
    d->need_dx[i] = p->nodes[q->src[i]].needs_grad;
    d->wanted_din[i] = preferred_gradient_layout(p, q->src[i]);
  }
  for (; d->n_params < CLV_MAX_PARAMS && q->slot_params[d->n_params]; d->n_params++)
    d->param[d->n_params] = q->slot_params[d->n_params]->shape;
  d->bf16_weight = d->n_params && q->slot_params[CLV_SLOT_WEIGHT]->dtype == CLV_BF16;
}

static clv_code check_kernel(const clv_plan *p, const clv_node_desc *d, const clv_kernel *k,
                             clv_err *err) {
  bool dx = false;
  for (int i = 0; i < d->n_in; i++) dx |= d->need_dx[i];
  if (!k->forward || (dx && !k->backward_input) ||
      (d->need_dw && !(k->fused_grads ? k->backward_input : k->backward_weight)))
    return clv_fail(err, CLV_INTERNAL, "the %s kernel of %s lacks a function", k->impl,
                    clv_op_name(d->op));
  if (p->info.weight_cache_bytes > CLV_VALUE_BYTES_MAX || k->cache_bytes > CLV_VALUE_BYTES_MAX ||
      k->saved_bytes > CLV_VALUE_BYTES_MAX || k->scratch_bytes > CLV_VALUE_BYTES_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "the kernel of %s needs more than 1 TiB",
                    clv_op_name(d->op));
  return CLV_OK;
}

static clv_code find_preferred_output_layout(clv_plan *p, int node, int *ret, clv_err *err);

static clv_code prepare_kernel(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  clv_node_desc d;
  /* find_preferred_output_layout for an earlier node has prepared the kernel */
  if (q->kernel) return CLV_OK;
  describe_node(p, node, &d);
  if (d.bf16 && clv_op_def_of(d.op)->may_output_bf16)
    CLV_TRY(find_preferred_output_layout(p, node, &d.wanted_out, err));
  bool has_empty_input = clv_plan_has_empty_input(&d);
  clv_code code = has_empty_input ? clv_plan_make_empty_kernel(&d, p->backend, &q->kernel, err)
                                  : p->backend->prepare(p->backend, &d, &q->kernel, err);
  if (code == CLV_UNIMPLEMENTED && d.tail & CLV_TAIL_RELU_FORWARD) {
    clv_plan_unfuse_relu(p, node);
    return prepare_kernel(p, node, err);
  }
  if (code == CLV_UNIMPLEMENTED && q->n_fused) return code;
  if (code == CLV_UNIMPLEMENTED && !has_empty_input && !p->backend->memory)
    code = clv_backend_ref()->prepare(clv_backend_ref(), &d, &q->kernel, err);
  if (code == CLV_OK) code = check_kernel(p, &d, q->kernel, err);
  if (code != CLV_OK)
    return clv_err_prefix(err, "layer %s (%s)", p->graph->nodes[node].name, clv_op_name(d.op));
  if (p->options.transient_weights) return CLV_OK;
  q->weight_cache_offset = p->info.weight_cache_bytes;
  p->info.weight_cache_bytes +=
      clv_align_up(q->kernel->cache_bytes, p->backend->memory ? DEVICE_ALIGN : 64);
  return CLV_OK;
}

/* Finds the layout in which all readers of a node's value compute. Only if all readers are
 * convolutions: the layout of others depends on that of their input. *ret 0: there is no such
 * layout. */
static clv_code find_preferred_output_layout(clv_plan *p, int node, int *ret, clv_err *err) {
  const clv_graph *g = p->graph;
  int common_layout = 0, n_readers = g->output_node == node ? 2 : 0, n_agreeing = 0;
  for (int i = node + 1; i < g->n_nodes; i++) {
    if (!p->nodes[i].is_reachable) continue;
    for (int j = 0; j < g->nodes[i].n_in; j++) {
      if (g->nodes[i].in[j] != node) continue;
      n_readers++;
      if (!clv_op_def_of(g->nodes[i].op)->computes_in_bf16) continue;
      CLV_TRY(prepare_kernel(p, i, err));
      if (!common_layout) common_layout = p->nodes[i].kernel->in_block[0];
      n_agreeing += common_layout == p->nodes[i].kernel->in_block[0];
    }
  }
  *ret = n_agreeing == n_readers ? common_layout : 0;
  return CLV_OK;
}

void clv_plan_bind_step_bufs(const clv_plan *p, clv_plan_step *step) {
  const clv_plan_node *q = &p->nodes[step->node];
  for (int i = 0; i < q->n_src; i++) step->in[i] = q->in[i];
  step->out = q->value_bufs[0].buf;
  step->saved_buf = q->saved_buf;
}

clv_code clv_plan_bind_input_bufs(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  for (int i = 0; i < q->n_src; i++) {
    int block = clv_plan_layout_for_rank(&p->graph->nodes[q->src[i]].shape, q->kernel->in_block[i]);
    CLV_TRY(find_or_add_value_buf(p, q->src[i], block, &q->in[i], err));
  }
  return CLV_OK;
}

/* Gives the kernel temporary buffers in place of the running statistics, because a recomputed
 * forward must not update these a second time. */
static clv_code add_discarded_statistics(clv_plan *p, int node, clv_plan_step *step, clv_err *err) {
  for (int i = 0; i < CLV_MAX_PARAMS; i++) {
    const clv_param *q = p->nodes[node].slot_params[i];
    if (!q || q->trainable) continue;
    clv_plan_step zero = clv_plan_make_bare_step(clv_plan_run_zero, "zero", node);
    zero.n = q->bytes;
    CLV_TRY(clv_plan_buf_new(p, q->bytes, SPACE_SCRATCH, &step->discard_bufs[i], err));
    zero.dst = step->discard_bufs[i];
    CLV_TRY(clv_plan_add_step(p, &zero, err));
  }
  for (int i = 0; i < CLV_MAX_PARAMS; i++) clv_plan_extend_lifetime(p, step->discard_bufs[i]);
  return CLV_OK;
}

static clv_code add_forward_step(clv_plan *p, int node, bool is_recompute, clv_err *err) {
  const clv_node *n = &p->graph->nodes[node];
  clv_plan_node *q = &p->nodes[node];
  clv_plan_step s = clv_plan_make_bare_step(clv_plan_run_forward,
                                            is_recompute ? "forward again" : "forward", node);
  CLV_TRY(clv_plan_bind_input_bufs(p, node, err));
  if (is_recompute) CLV_TRY(add_discarded_statistics(p, node, &s, err));
  /* Extends the lifetimes of all inputs up to this step, so that a reorder step for the second
   * input does not reuse the memory of the first. */
  for (int i = 0; i < q->n_src; i++) clv_plan_extend_lifetime(p, q->in[i]);
  clv_plan_layout_buf out = {.layout = clv_plan_layout_for_rank(&n->shape, q->kernel->out_block)};
  CLV_TRY(clv_plan_add_value_buf(p, node, out.layout, &out.buf, err));
  q->value_bufs[0] = out;
  q->n_value_bufs = 1;
  if (q->kernel->saved_bytes)
    CLV_TRY(clv_plan_buf_new(p, q->kernel->saved_bytes, SPACE_SCRATCH, &q->saved_buf, err));
  CLV_TRY(clv_plan_add_scratch(p, node, &s, err));
  CLV_TRY(clv_plan_add_weight_buf(p, node, &s, err));
  clv_plan_bind_step_bufs(p, &s);
  return clv_plan_add_step(p, &s, err);
}

/* Lets a relu whose forward is fused share the buffer of its input, because the input's kernel has
 * already applied the relu. Backward still has a step for the relu. */
static clv_code share_input_value(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  const clv_plan_node *from = &p->nodes[q->src[0]];
  bool has_same_layout = clv_plan_output_grad_layout(p, node) == from->value_bufs[0].layout;
  if (!has_same_layout || q->kernel->saved_flags & ~CLV_SAVE_OUT ||
      from->kernel->saved_flags & CLV_SAVE_OUT)
    return clv_fail(err, CLV_INTERNAL, "layer %s cannot share the value of the layer before it",
                    p->graph->nodes[node].name);
  q->in[0] = from->value_bufs[0].buf;
  q->value_bufs[0] = from->value_bufs[0];
  q->n_value_bufs = 1;
  return CLV_OK;
}

static clv_code add_single_node_step(clv_plan *p, int node, clv_err *err) {
  CLV_TRY(prepare_kernel(p, node, err));
  return p->nodes[node].forward_is_fused ? share_input_value(p, node, err)
                                         : add_forward_step(p, node, false, err);
}

/* Adds the forward step of a node. If the backend has no kernel for the node's fused ops, undoes
 * the fusion and adds a step for each fused node. */
static clv_code add_kernel_steps(clv_plan *p, int node, clv_err *err) {
  const clv_plan_node q = p->nodes[node];
  if (q.is_absorbed) return CLV_OK;
  clv_code code = prepare_kernel(p, node, err);
  if (code == CLV_OK) return add_single_node_step(p, node, err);
  if (code != CLV_UNIMPLEMENTED || !q.n_fused) return code;
  clv_plan_unfuse(p, node);
  for (int i = 0; i < q.n_fused; i++) CLV_TRY(add_single_node_step(p, q.fused_nodes[i], err));
  return CLV_OK;
}

/* Lets an alias node share its input's buffer. Flatten and reshape need that buffer in row-major
 * order. */
static clv_code share_alias_buffer(clv_plan *p, int node, clv_err *err) {
  const clv_node *n = &p->graph->nodes[node];
  clv_plan_node *q = &p->nodes[node];
  clv_plan_layout_buf rep = p->nodes[n->in[0]].value_bufs[0];
  if (clv_op_def_of(n->op)->is_alias) rep.layout = 1;
  CLV_TRY(find_or_add_value_buf(p, n->in[0], rep.layout, &rep.buf, err));
  q->value_bufs[0] = rep;
  q->n_value_bufs = 1;
  return CLV_OK;
}

static clv_code add_input_buffer(clv_plan *p, int node, clv_err *err) {
  clv_plan_node *q = &p->nodes[node];
  q->value_bufs[0].layout = 1;
  q->n_value_bufs = 1;
  return clv_plan_buf_new(p, p->input_bytes[q->input_index], SPACE_IN + q->input_index,
                          &q->value_bufs[0].buf, err);
}

clv_code clv_plan_add_value_steps(clv_plan *p, int node, bool is_recompute, clv_err *err) {
  if (p->nodes[node].is_alias) return share_alias_buffer(p, node, err);
  if (!is_recompute) return add_kernel_steps(p, node, err);
  return p->nodes[node].forward_is_fused ? share_input_value(p, node, err)
                                         : add_forward_step(p, node, true, err);
}

clv_code clv_plan_add_forward_steps(clv_plan *p, clv_err *err) {
  int output = p->graph->output_node;
  clv_plan_layout_buf out = {.layout = 1};
  for (int i = 0; i < p->graph->n_nodes; i++) {
    if (!p->nodes[i].is_reachable) continue;
    if (p->nodes[i].input_index >= 0)
      CLV_TRY(add_input_buffer(p, i, err));
    else
      CLV_TRY(clv_plan_add_value_steps(p, i, false, err));
  }
  clv_plan_layout_buf from = p->nodes[output].value_bufs[0];
  CLV_TRY(clv_plan_add_value_buf(p, output, 1, &out.buf, err));
  p->bufs[out.buf].space = SPACE_OUT;
  p->out_bytes = p->bufs[out.buf].bytes;
  for (int i = 0; i < p->nodes[output].n_value_bufs; i++)
    if (p->nodes[output].value_bufs[i].layout == 1) from = p->nodes[output].value_bufs[i];
  CLV_TRY(clv_plan_convert_layout(p, output, from, out, err));
  p->phase_end[PHASE_FORWARD] = p->n_steps;
  return CLV_OK;
}
