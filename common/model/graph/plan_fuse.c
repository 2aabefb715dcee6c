/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ops one kernel takes together: a normalisation that takes tails (batchnorm) and the relu
 * behind it, with an addition between them or not. The relu's node then stands for all, in both
 * directions. Of other ops a backend may do the relu behind them in forward alone; the relu then
 * has no step there, and its value is its input's.
 *
 * The bits must be those of the ops apart, so nobody else may see what lies between them, and no
 * gradient may come to a sum earlier or later than it would have: gradients are handed on when the
 * relu is visited, instead of at the addition and the batchnorm.
 */
#include "common/model/graph/plan_int.h"

#include <string.h>

int clv_plan_n_readers_between(const clv_plan *p, int node, int from, int to) {
  const clv_graph *g = p->graph;
  int n = g->output == node && to > g->output;
  for (int i = from + 1; i < to && i < g->n_nodes; i++)
    for (int j = 0; p->nodes[i].live && j < g->nodes[i].n_in; j++) n += g->nodes[i].in[j] == node;
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

static bool is_norm(const clv_plan *p, int node) {
  const clv_node *n = &p->graph->nodes[node];
  const clv_op_def *def = clv_op_def_of(n->op);
  return def && def->takes_tails && clv_plan_has_one_reader(p, node) &&
         clv_plan_has_one_reader(p, n->in[0]);
}

void clv_plan_fuse_nodes(clv_plan *p, const int *nodes, int n) {
  clv_plan_node *q = &p->nodes[nodes[n - 1]];
  q->fused_from = nodes[0];
  q->n_joined = n;
  for (int i = 0; i < n; i++) {
    q->joined[i] = nodes[i];
    p->nodes[nodes[i]].absorbed = i < n - 1;
  }
}

/* relu takes the batchnorm in, and the addition where there is one. */
static void join(clv_plan *p, int relu, int add, int norm, int other) {
  clv_plan_node *q = &p->nodes[relu], *from = &p->nodes[norm];
  const int nodes[] = {norm, add < 0 ? relu : add, relu};
  clv_plan_fuse_nodes(p, nodes, add < 0 ? 2 : 3);
  memcpy(q->param, from->param, sizeof q->param);
  q->learns = from->learns;
  q->src[0] = p->graph->nodes[norm].in[0];
  q->fused_after = CLV_TAIL_RELU;
  if (add < 0) return;
  q->src[1] = other;
  q->n_src = 2;
  q->fused_after |= CLV_TAIL_ADD;
}

static void try_relu(clv_plan *p, int relu) {
  const clv_node *nodes = p->graph->nodes;
  int x = nodes[relu].in[0];
  if (!clv_plan_has_one_reader(p, x)) return;
  if (is_norm(p, x)) {
    join(p, relu, -1, x, -1);
    return;
  }
  if (nodes[x].op != CLV_OP_ADD || !clv_plan_has_one_shape(p, x)) return;
  for (int i = 0; i < 2; i++) {
    int norm = nodes[x].in[i], other = nodes[x].in[1 - i];
    if (!is_norm(p, norm) || clv_plan_n_readers_between(p, other, x, relu)) continue;
    join(p, relu, x, norm, other);
    return;
  }
}

static void try_forward(clv_plan *p, int relu) {
  int x = p->graph->nodes[relu].in[0];
  clv_plan_node *from = &p->nodes[x];
  bool wide = p->options.bf16 && p->graph->nodes[relu].shape.rank == 4; /* may be in bf16 */
  if (wide || p->nodes[relu].fused_from != relu || p->nodes[relu].absorbed || from->absorbed ||
      from->alias || from->fused_after || !clv_plan_has_one_reader(p, x) ||
      !(p->backend->tails(p->graph->nodes[x].op) & CLV_TAIL_RELU_FORWARD))
    return;
  from->fused_after = CLV_TAIL_RELU_FORWARD;
  p->nodes[relu].forwarded = true;
}

void clv_plan_unfuse_relu(clv_plan *p, int node) {
  p->nodes[node].fused_after = 0;
  for (int i = node + 1; i < p->graph->n_nodes; i++)
    if (p->nodes[i].forwarded && p->graph->nodes[i].in[0] == node) p->nodes[i].forwarded = false;
}

static bool is_relu(const clv_plan *p, int node) {
  return p->nodes[node].live && p->graph->nodes[node].op == CLV_OP_RELU;
}

/* The kernel has the node's own op. */
static void stand_alone(clv_plan *p, int node) {
  clv_plan_node *q = &p->nodes[node];
  const clv_node *n = &p->graph->nodes[node];
  q->fused_from = q->key_node = node;
  q->fused_after = 0;
  q->n_joined = 0;
  q->n_src = n->n_in;
  for (int i = 0; i < n->n_in; i++) q->src[i] = n->in[i];
}

void clv_plan_fuse(clv_plan *p) {
  for (int i = 0; i < p->graph->n_nodes; i++) stand_alone(p, i);
  for (int i = 0; i < p->graph->n_nodes; i++)
    if (is_relu(p, i)) try_relu(p, i);
}

void clv_plan_fuse_forward(clv_plan *p) {
  for (int i = 0; i < p->graph->n_nodes && p->backend->tails; i++)
    if (is_relu(p, i)) try_forward(p, i);
}

void clv_plan_unfuse(clv_plan *p, int node) {
  clv_plan_node *q = &p->nodes[node];
  for (int i = 0; i < q->n_joined; i++) p->nodes[q->joined[i]].absorbed = false;
  if (q->fused_after) {
    memset(q->param, 0, sizeof q->param);
    q->learns = false;
  }
  stand_alone(p, node);
}
