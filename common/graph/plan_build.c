/* SPDX-License-Identifier: Apache-2.0 */
#include "common/graph/plan_int.h"

#include <stdlib.h>
#include <string.h>

static int step_now(const clv_plan *p) { return p->forward.n + p->backward.n + p->weight.n; }

static void touch(clv_plan *p, int b) {
  if (b >= 0) p->buffers[b].last = step_now(p);
}

/* Index of a new buffer, -1 on failure. */
int clv_plan_add_buffer(clv_plan *p, place where, int index, size_t bytes, clv_err *err) {
  if (p->n_buffers == p->cap_buffers) {
    int cap = p->cap_buffers ? 2 * p->cap_buffers : 32;
    buffer *more = realloc(p->buffers, (size_t)cap * sizeof *more);
    if (!more) {
      clv_fail(err, CLV_EXHAUSTED, "out of memory");
      return -1;
    }
    p->buffers = more;
    p->cap_buffers = cap;
  }
  p->buffers[p->n_buffers] = (buffer){
      .place = where, .index = index, .bytes = bytes, .first = step_now(p), .last = step_now(p)};
  return p->n_buffers++;
}

clv_code clv_plan_add_step(step_list *l, const step *s, clv_err *err) {
  if (l->n == l->cap) {
    int cap = l->cap ? 2 * l->cap : 32;
    step *more = realloc(l->items, (size_t)cap * sizeof *more);
    if (!more) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    l->items = more;
    l->cap = cap;
  }
  l->items[l->n++] = *s;
  return CLV_OK;
}

static size_t value_bytes(const clv_plan *p, int node, int block) {
  const clv_node *n = &p->graph->nodes[node];
  return clv_layout_numel(&n->shape, block) * clv_dtype_size(n->dtype);
}

static clv_code new_buffer(clv_plan *p, place where, int index, size_t bytes, int *ret,
                           clv_err *err) {
  *ret = clv_plan_add_buffer(p, where, index, bytes, err);
  return *ret < 0 ? CLV_EXHAUSTED : CLV_OK;
}

/* ---- who takes part ------------------------------------------------------------------------------ */

static void mark_used(clv_plan *p) {
  p->values[p->graph->output].used = true;
  for (int i = p->graph->n_nodes - 1; i >= 0; i--)
    for (int k = 0; p->values[i].used && k < p->graph->nodes[i].n_in; k++)
      p->values[p->graph->nodes[i].in[k]].used = true;
}

static void mark_params(clv_plan *p, const clv_params *params) {
  for (int i = 0; i < params->n; i++) {
    const clv_param *q = &params->list[i];
    node_state *s = &p->nodes[q->node];
    s->has_param[q->slot] = true;
    s->param_offset[q->slot] = q->offset;
    s->learns[q->slot] = p->o.training && q->trainable && !q->frozen;
    if (s->learns[q->slot]) s->weight = true;
    if (q->trainable) p->dummy_bytes = CLV_MAX(p->dummy_bytes, q->bytes);
  }
}

static void mark_grads(clv_plan *p) {
  for (int i = 0, input = 0; i < p->graph->n_nodes; i++) {
    const clv_node *n = &p->graph->nodes[i];
    value *v = &p->values[i];
    v->grad = -1;
    if (n->op == CLV_OP_INPUT) {
      v->needs_grad = p->o.training && p->o.need_input_grad[input++];
      continue;
    }
    v->needs_grad = p->nodes[i].weight;
    for (int k = 0; k < n->n_in; k++) v->needs_grad |= p->values[n->in[k]].needs_grad;
    p->nodes[i].backward = v->needs_grad && v->used;
  }
}

/* ---- kernels --------------------------------------------------------------------------------------- */

static bool is_alias(const clv_plan *p, int node) {
  const clv_op_def *def = clv_op_def_of(p->graph->nodes[node].op);
  return def && (def->alias || (def->identity_in_eval && !p->o.training));
}

static clv_code prepare(clv_plan *p, int i, clv_err *err) {
  const clv_node *n = &p->graph->nodes[i];
  const clv_op_def *def = clv_op_def_of(n->op);
  clv_op_site site;
  clv_node_site(p->graph, n, &site);
  if (p->o.training && def->check_training && def->check_training(&site, err) != CLV_OK)
    return clv_err_prefix(err, "layer %s", n->name);
  if (is_alias(p, i)) return CLV_OK;
  clv_node_desc d = {.op = n->op, .attrs = n->attrs, .dtype = p->o.dtype, .n_in = n->n_in,
                     .out = n->shape, .training = p->o.training, .threads = p->o.threads,
                     .need_dw = p->nodes[i].weight};
  for (int k = 0; k < n->n_in; k++) {
    d.in[k] = site.in[k];
    d.in_dtype[k] = site.in_dtype[k];
    d.offered_block[k] = p->values[n->in[k]].block;
    d.need_dx[k] = p->values[n->in[k]].needs_grad;
  }
  clv_slot slots[CLV_MAX_PARAMS];
  d.n_params = clv_node_slots(p->graph, n, slots);
  for (int k = 0; k < d.n_params; k++) d.param[k] = slots[k].shape;
  clv_code code = p->o.dtype == CLV_F32 ? p->o.backend->prepare(&d, &p->nodes[i].kernel, err)
                                        : CLV_UNIMPLEMENTED;
  if (code == CLV_UNIMPLEMENTED) code = clv_backend_ref()->prepare(&d, &p->nodes[i].kernel, err);
  if (code != CLV_OK) return clv_err_prefix(err, "layer %s", n->name);
  return CLV_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------- */

/* The value of `node` in layout `block`: itself, or a reorder that this consumer pays for. */
static clv_code in_layout(clv_plan *p, int node, int block, int *ret, clv_err *err) {
  value *v = &p->values[node];
  *ret = v->buffer;
  if (v->block == block) return CLV_OK;
  CLV_TRY(new_buffer(p, PLACE_SCRATCH, 0, value_bytes(p, node, block), ret, err));
  step s = {.kind = STEP_REORDER, .node = node, .src = v->buffer, .dst = *ret,
            .src_block = v->block, .dst_block = block};
  touch(p, v->buffer);
  p->info.reorders_forward++;
  return clv_plan_add_step(&p->forward, &s, err);
}

static int consumers(const clv_plan *p, int node) {
  int n = node == p->graph->output;
  for (int i = 0; i < p->graph->n_nodes; i++)
    for (int k = 0; p->values[i].used && k < p->graph->nodes[i].n_in; k++)
      n += p->graph->nodes[i].in[k] == node;
  return n;
}

/* May the output take its first input's memory? Only if nobody reads that again. */
static bool can_overwrite(const clv_plan *p, int i) {
  const node_state *s = &p->nodes[i];
  int from = p->graph->nodes[i].in[0];
  const buffer *b = &p->buffers[s->in_buffer[0]];
  return s->kernel->in_place && !is_alias(p, from) && !(s->kernel->saves & CLV_SAVE_IN0) && b->place == PLACE_SCRATCH &&
         !b->saved && s->kernel->in_block[0] == s->kernel->out_block && consumers(p, from) == 1 &&
         b->bytes == value_bytes(p, i, s->kernel->out_block);
}

static void save_for_backward(clv_plan *p, int i) {
  const node_state *s = &p->nodes[i];
  static const unsigned bits[CLV_MAX_IN] = {CLV_SAVE_IN0, CLV_SAVE_IN1};
  if (!s->backward) return;
  for (int k = 0; k < p->graph->nodes[i].n_in; k++)
    if (s->kernel->saves & bits[k]) p->buffers[s->in_buffer[k]].saved = true;
  if (s->kernel->saves & CLV_SAVE_OUT) p->buffers[p->values[i].buffer].saved = true;
}

static clv_code forward_node(clv_plan *p, int i, clv_err *err) {
  const clv_node *n = &p->graph->nodes[i];
  node_state *s = &p->nodes[i];
  value *v = &p->values[i];
  CLV_TRY(prepare(p, i, err));
  if (is_alias(p, i)) {
    bool plain = clv_op_def_of(n->op)->alias; /* another shape needs row-major; dropout does not */
    v->block = plain ? 1 : p->values[n->in[0]].block;
    CLV_TRY(in_layout(p, n->in[0], v->block, &v->buffer, err));
    s->in_buffer[0] = v->buffer;
    return CLV_OK;
  }
  for (int k = 0; k < n->n_in; k++)
    CLV_TRY(in_layout(p, n->in[k], s->kernel->in_block[k], &s->in_buffer[k], err));
  v->block = s->kernel->out_block;
  if (can_overwrite(p, i))
    v->buffer = s->in_buffer[0];
  else
    CLV_TRY(new_buffer(p, PLACE_SCRATCH, 0, value_bytes(p, i, v->block), &v->buffer, err));
  save_for_backward(p, i);
  step st = {.kind = STEP_KERNEL, .node = i, .out = v->buffer, .dout = -1};
  for (int k = 0; k < CLV_MAX_IN; k++) {
    st.in[k] = k < n->n_in ? s->in_buffer[k] : -1;
    st.din[k] = -1;
    touch(p, st.in[k]);
  }
  touch(p, v->buffer);
  p->info.reorders_forward += s->kernel->reorders_forward;
  p->info.reorders_refresh += s->kernel->reorders_refresh;
  p->kernel_scratch = CLV_MAX(p->kernel_scratch, s->kernel->scratch_bytes);
  return clv_plan_add_step(&p->forward, &st, err);
}

/* The output is row-major in the caller's memory: written there at once where nobody else needs the
 * buffer, else by one named reorder or copy. */
static clv_code forward_output(clv_plan *p, clv_err *err) {
  int out = p->graph->output;
  value *v = &p->values[out];
  buffer *b = &p->buffers[v->buffer];
  if (v->block == 1 && !b->saved && b->place == PLACE_SCRATCH && consumers(p, out) == 1 &&
      !is_alias(p, out)) {
    b->place = PLACE_OUTPUT;
    return CLV_OK;
  }
  step s = {.kind = v->block == 1 ? STEP_COPY : STEP_REORDER, .node = out, .src = v->buffer,
            .src_block = v->block, .dst_block = 1};
  CLV_TRY(new_buffer(p, PLACE_OUTPUT, 0, value_bytes(p, out, 1), &s.dst, err));
  touch(p, v->buffer);
  p->info.reorders_forward += v->block != 1;
  return clv_plan_add_step(&p->forward, &s, err);
}

static clv_code forward_program(clv_plan *p, clv_err *err) {
  for (int i = 0; i < p->graph->n_nodes; i++) {
    value *v = &p->values[i];
    if (p->graph->nodes[i].op == CLV_OP_INPUT) {
      if (p->n_inputs == CLV_MAX_INPUTS)
        return clv_fail(err, CLV_INVALID, "more than %d inputs", CLV_MAX_INPUTS);
      v->block = 1;
      CLV_TRY(new_buffer(p, PLACE_INPUT, p->n_inputs, value_bytes(p, i, 1), &v->buffer, err));
      p->inputs[p->n_inputs++] = i;
    } else if (v->used) {
      CLV_TRY(forward_node(p, i, err));
    }
  }
  return forward_output(p, err);
}

/* ---- backward ------------------------------------------------------------------------------------------ */

static clv_code reorder_grad(clv_plan *p, int node, int src, int src_block, int dst_block,
                             int *ret, clv_err *err) {
  *ret = src;
  if (src_block == dst_block) return CLV_OK;
  CLV_TRY(new_buffer(p, PLACE_SCRATCH, 0, value_bytes(p, node, dst_block), ret, err));
  step s = {.kind = STEP_REORDER, .node = node, .src = src, .dst = *ret, .src_block = src_block,
            .dst_block = dst_block};
  touch(p, src);
  touch(p, *ret);
  p->info.reorders_backward++;
  return clv_plan_add_step(&p->backward, &s, err);
}

/* One consumer's gradient of a value joins what later consumers gave. */
static clv_code contribute(clv_plan *p, int node, int grad, int block, clv_err *err) {
  value *v = &p->values[node];
  int mine;
  CLV_TRY(reorder_grad(p, node, grad, block, v->block, &mine, err));
  if (v->grad < 0) {
    v->grad = mine;
    return CLV_OK;
  }
  if (p->buffers[v->grad].place != PLACE_SCRATCH) { /* the caller's, or kept: add into a copy */
    int copy;
    CLV_TRY(new_buffer(p, PLACE_SCRATCH, 0, value_bytes(p, node, v->block), &copy, err));
    step c = {.kind = STEP_COPY, .node = node, .src = v->grad, .dst = copy};
    touch(p, v->grad);
    CLV_TRY(clv_plan_add_step(&p->backward, &c, err));
    v->grad = copy;
  }
  step s = {.kind = STEP_ADD, .node = node, .src = mine, .dst = v->grad};
  touch(p, mine);
  touch(p, v->grad);
  return clv_plan_add_step(&p->backward, &s, err);
}

static clv_code backward_kernel(clv_plan *p, int i, clv_err *err) {
  const clv_node *n = &p->graph->nodes[i];
  node_state *s = &p->nodes[i];
  step st = {.kind = STEP_KERNEL, .node = i, .dout = p->values[i].grad, .out = p->values[i].buffer};
  bool any = false;
  for (int k = 0; k < CLV_MAX_IN; k++) {
    st.in[k] = k < n->n_in ? s->in_buffer[k] : -1;
    st.din[k] = -1;
    if (k >= n->n_in || !p->values[n->in[k]].needs_grad) continue;
    any = true;
    CLV_TRY(new_buffer(p, PLACE_SCRATCH, 0, value_bytes(p, n->in[k], s->kernel->in_block[k]),
                       &st.din[k], err));
  }
  touch(p, st.dout);
  p->info.reorders_backward += s->kernel->reorders_backward;
  bool split_weight = s->weight && !s->kernel->fused_grads;
  if (any || (s->weight && s->kernel->fused_grads))
    CLV_TRY(clv_plan_add_step(&p->backward, &st, err));
  if (split_weight && p->buffers[st.dout].place == PLACE_SCRATCH)
    p->buffers[st.dout].saved = true; /* the weight part reads it, perhaps much later */
  for (int k = 0; k < n->n_in; k++) {
    if (st.din[k] < 0) continue;
    touch(p, st.din[k]);
    CLV_TRY(contribute(p, n->in[k], st.din[k], s->kernel->in_block[k], err));
  }
  return CLV_OK;
}

static clv_code backward_inputs(clv_plan *p, clv_err *err) {
  for (int i = 0; i < p->n_inputs; i++) {
    const value *v = &p->values[p->inputs[i]];
    if (!v->needs_grad || v->grad < 0) continue;
    buffer *b = &p->buffers[v->grad];
    if (b->place == PLACE_SCRATCH && !b->saved) {
      b->place = PLACE_DIN;
      b->index = i;
      continue;
    }
    step s = {.kind = STEP_COPY, .node = p->inputs[i], .src = v->grad};
    CLV_TRY(new_buffer(p, PLACE_DIN, i, b->bytes, &s.dst, err));
    touch(p, v->grad);
    CLV_TRY(clv_plan_add_step(&p->backward, &s, err));
  }
  return CLV_OK;
}

static clv_code backward_program(clv_plan *p, clv_err *err) {
  int out = p->graph->output, dout;
  if (!p->values[out].needs_grad) return CLV_OK;
  CLV_TRY(new_buffer(p, PLACE_DOUT, 0, value_bytes(p, out, 1), &dout, err));
  CLV_TRY(contribute(p, out, dout, 1, err));
  for (int i = out; i >= 0; i--) {
    const clv_node *n = &p->graph->nodes[i];
    if (!p->nodes[i].backward || p->values[i].grad < 0) continue;
    if (is_alias(p, i))
      CLV_TRY(contribute(p, n->in[0], p->values[i].grad, p->values[i].block, err));
    else
      CLV_TRY(backward_kernel(p, i, err));
  }
  CLV_TRY(backward_inputs(p, err));
  for (int i = out; i >= 0; i--) {
    const node_state *s = &p->nodes[i];
    if (!s->backward || !s->weight || !s->kernel || s->kernel->fused_grads || p->values[i].grad < 0)
      continue;
    step st = {.kind = STEP_KERNEL, .node = i, .dout = p->values[i].grad, .out = p->values[i].buffer};
    for (int k = 0; k < CLV_MAX_IN; k++) {
      st.in[k] = k < p->graph->nodes[i].n_in ? s->in_buffer[k] : -1;
      st.din[k] = -1;
    }
    CLV_TRY(clv_plan_add_step(&p->weight, &st, err));
  }
  return CLV_OK;
}

clv_code clv_plan_build(clv_plan *p, const clv_params *params, clv_err *err) {
  mark_used(p);
  mark_params(p, params);
  mark_grads(p);
  CLV_TRY(forward_program(p, err));
  if (p->o.training) CLV_TRY(backward_program(p, err));
  p->info.n_steps_forward = p->forward.n;
  p->info.n_steps_backward = p->backward.n + p->weight.n;
  return CLV_OK;
}
