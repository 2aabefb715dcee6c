/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusion of nodes around a relu. clv_plan_fuse lets one kernel compute a normalisation that takes
 * tails (batchnorm), the relu behind it and, if there is one, the addition between them. The relu's
 * node then stands for all of them, in forward and backward. clv_plan_fuse_forward lets the kernels
 * of other ops compute the relu behind them in forward only, where the backend can. Such a relu has
 * no forward step, and its value is that of its input.
 *
 * The bits must equal those of the separate ops. So no other node may read a value between the
 * fused ones, and each sum of gradients must receive its terms in the same order: the fused node
 * passes its gradients on when backward visits the relu, not the addition or the batchnorm.
 */
#include "common/model/graph/plan_int.h"

#include <string.h>

int clv_plan_n_readers_between(const clv_plan *p, int node, int from, int to) {
  const clv_graph *g = p->graph;
  int n = g->output_node == node && to > g->output_node;
  for (int i = from + 1; i < to && i < g->n_nodes; i++)
    for (int j = 0; p->nodes[i].is_reachable && j < g->nodes[i].n_in; j++)
      n += g->nodes[i].in[j] == node;
  return n;
}

int clv_plan_n_readers(const clv_plan *p, int node) {
  return clv_plan_n_readers_between(p, node, node, p->graph->n_nodes);
}

bool clv_plan_has_one_reader(const clv_plan *p, int node) {
  return clv_plan_n_readers(p, node) == 1;
}

bool clv_plan_has_one_shape(const clv_plan *p, int node) {
  const clv_node *all = p->graph->nodes, *n = &all[node];
  for (int i = 0; i < n->n_in; i++)
    if (!clv_shape_equal(&all[n->in[i]].shape, &n->shape)) return false;
  return true;
}

static bool is_fusible_norm(const clv_plan *p, int node) {
  const clv_node *n = &p->graph->nodes[node];
  const clv_op_def *def = clv_op_def_of(n->op);
  return def && def->takes_tails && clv_plan_has_one_reader(p, node) &&
         clv_plan_has_one_reader(p, n->in[0]);
}

void clv_plan_fuse_nodes(clv_plan *p, const int *nodes, int n) {
  clv_plan_node *q = &p->nodes[nodes[n - 1]];
  q->first_fused_node = nodes[0];
  q->n_fused = n;
  for (int i = 0; i < n; i++) {
    q->fused_nodes[i] = nodes[i];
    p->nodes[nodes[i]].is_absorbed = i < n - 1;
  }
}

/* Fuses the relu with the batchnorm `norm` before it. add: node between them that adds the value of
 * `other`; -1: none. */
static void fuse_norm_relu(clv_plan *p, int relu, int add, int norm, int other) {
  clv_plan_node *q = &p->nodes[relu], *from = &p->nodes[norm];
  const int nodes[] = {norm, add < 0 ? relu : add, relu};
  clv_plan_fuse_nodes(p, nodes, add < 0 ? 2 : 3);
  memcpy(q->slot_params, from->slot_params, sizeof q->slot_params);
  q->is_trained = from->is_trained;
  q->src[0] = p->graph->nodes[norm].in[0];
  q->fused_tail_flags = CLV_TAIL_RELU;
  if (add < 0) return;
  q->src[1] = other;
  q->n_src = 2;
  q->fused_tail_flags |= CLV_TAIL_ADD;
}

static void try_fuse_norm_relu(clv_plan *p, int relu) {
  const clv_node *nodes = p->graph->nodes;
  int x = nodes[relu].in[0];
  if (!clv_plan_has_one_reader(p, x)) return;
  if (is_fusible_norm(p, x)) {
    fuse_norm_relu(p, relu, -1, x, -1);
    return;
  }
  if (nodes[x].op != CLV_OP_ADD || !clv_plan_has_one_shape(p, x)) return;
  for (int i = 0; i < 2; i++) {
    int norm = nodes[x].in[i], other = nodes[x].in[1 - i];
    if (!is_fusible_norm(p, norm) || clv_plan_n_readers_between(p, other, x, relu)) continue;
    fuse_norm_relu(p, relu, x, norm, other);
    return;
  }
}

static void try_fuse_relu_forward(clv_plan *p, int relu) {
  int x = p->graph->nodes[relu].in[0];
  clv_plan_node *from = &p->nodes[x];
  /* A value of rank 4 may be stored in bf16, and such a relu is not fused. */
  bool may_be_bf16 = p->options.bf16 && p->graph->nodes[relu].shape.rank == 4;
  if (may_be_bf16 || p->nodes[relu].first_fused_node != relu || p->nodes[relu].is_absorbed ||
      from->is_absorbed || from->is_alias || from->fused_tail_flags ||
      !clv_plan_has_one_reader(p, x) ||
      !(p->backend->tails(p->graph->nodes[x].op) & CLV_TAIL_RELU_FORWARD))
    return;
  from->fused_tail_flags = CLV_TAIL_RELU_FORWARD;
  p->nodes[relu].forward_is_fused = true;
}

void clv_plan_unfuse_relu(clv_plan *p, int node) {
  p->nodes[node].fused_tail_flags = 0;
  for (int i = node + 1; i < p->graph->n_nodes; i++)
    if (p->nodes[i].forward_is_fused && p->graph->nodes[i].in[0] == node)
      p->nodes[i].forward_is_fused = false;
}

static bool is_relu(const clv_plan *p, int node) {
  return p->nodes[node].is_reachable && p->graph->nodes[node].op == CLV_OP_RELU;
}

/* Resets a node, so that its kernel computes its own op only. */
static void reset_fusion(clv_plan *p, int node) {
  clv_plan_node *q = &p->nodes[node];
  const clv_node *n = &p->graph->nodes[node];
  q->first_fused_node = q->rng_node = node;
  q->fused_tail_flags = 0;
  q->n_fused = 0;
  q->n_src = n->n_in;
  for (int i = 0; i < n->n_in; i++) q->src[i] = n->in[i];
}

void clv_plan_fuse(clv_plan *p) {
  for (int i = 0; i < p->graph->n_nodes; i++) reset_fusion(p, i);
  for (int i = 0; i < p->graph->n_nodes; i++)
    if (is_relu(p, i)) try_fuse_norm_relu(p, i);
}

void clv_plan_fuse_forward(clv_plan *p) {
  for (int i = 0; i < p->graph->n_nodes && p->backend->tails; i++)
    if (is_relu(p, i)) try_fuse_relu_forward(p, i);
}

void clv_plan_unfuse(clv_plan *p, int node) {
  clv_plan_node *q = &p->nodes[node];
  for (int i = 0; i < q->n_fused; i++) p->nodes[q->fused_nodes[i]].is_absorbed = false;
  if (q->fused_tail_flags) {
    memset(q->slot_params, 0, sizeof q->slot_params);
    q->is_trained = false;
  }
  reset_fusion(p, node);
}
