/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that tell from a graph alone what its ops read: whether backward reads parameters, and
 * which input holds the lengths of sequences. The master has no plans of the modules that run at
 * workers, but needs to know this for its tape.
 */
#include <stdlib.h>

#include "common/model/graph/graph_int.h"

typedef struct node_properties {
  bool is_reachable, is_trained, has_params, needs_grad;
} node_properties;

static void mark_node_of_param(const clv_param *p, node_properties *nodes) {
  nodes[p->node].has_params = true;
  nodes[p->node].is_trained |= p->trainable && !p->frozen;
}

static void mark_nodes_of_params(const clv_params *params, node_properties *nodes) {
  for (int i = 0; i < params->n; i++) mark_node_of_param(&params->list[i], nodes);
  for (int i = 0; i < params->n_ties; i++) mark_node_of_param(&params->ties[i].param, nodes);
}

static void find_reachable(const clv_graph *g, node_properties *nodes) {
  nodes[g->output_node].is_reachable = true;
  for (int i = g->output_node; i >= 0; i--)
    for (int k = 0; nodes[i].is_reachable && k < g->nodes[i].n_in; k++)
      nodes[g->nodes[i].in[k]].is_reachable = true;
}

/* True if at least one backend may compute the op's input and weight gradients in one kernel. */
static bool can_fuse_input_and_weight_gradients(const clv_op_def *def) {
  return def->fused_grads || def->uses_batch_statistics;
}

/* True if backward of node i reads the node's parameters: to compute input gradients, or because
 * one kernel computes input and weight gradients. Also sets needs_grad of the node. */
static bool reads_params_in_backward(const clv_graph *g, node_properties *nodes, int i) {
  const clv_node *n = &g->nodes[i];
  bool reads_params =
      nodes[i].is_trained && can_fuse_input_and_weight_gradients(clv_op_def_of(n->op));
  nodes[i].needs_grad = nodes[i].is_trained;
  for (int k = 0; k < n->n_in; k++) {
    reads_params |= nodes[n->in[k]].needs_grad;
    nodes[i].needs_grad |= nodes[n->in[k]].needs_grad;
  }
  return reads_params && nodes[i].is_reachable && nodes[i].has_params;
}

/* True if backward recomputes at least one node with parameters. */
static bool reads_params_in_recompute(const clv_graph *g, const node_properties *nodes) {
  bool reads_params = false, needed = false;
  for (int i = 0; i < g->n_nodes; i++) {
    if (!g->nodes[i].recompute_block || !nodes[i].is_reachable) continue;
    reads_params |= nodes[i].has_params;
    needed |= nodes[i].needs_grad;
  }
  return reads_params && needed;
}

bool clv_graph_backward_reads_params(const clv_graph *g, const clv_params *params,
                                     uint32_t input_grads) {
  clv_err unused_err;
  node_properties *nodes;
  bool reads_params = false;
  int input = 0;
  if (clv_alloc((size_t)g->n_nodes, sizeof *nodes, &nodes, &unused_err) != CLV_OK) return false;
  mark_nodes_of_params(params, nodes);
  find_reachable(g, nodes);
  for (int i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT)
      nodes[i].needs_grad = input_grads >> input++ & 1;
    else
      reads_params |= reads_params_in_backward(g, nodes, i);
  reads_params |= reads_params_in_recompute(g, nodes);
  free(nodes);
  return reads_params;
}

/* ---- the input with the lengths of sequences ------------------------------------------------- */

static bool is_lengths_slot(const clv_node *n, int slot) {
  const clv_op_def *def = clv_op_def_of(n->op);
  return def->takes_lengths && slot == def->max_in - 1;
}

int64_t clv_graph_length_limit(const clv_graph *g, int node) {
  int64_t steps = 0;
  for (int i = node + 1; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i].n_in; k++) {
      const clv_shape *of = &g->nodes[g->nodes[i].in[0]].shape;
      int64_t packed = g->nodes[i].attrs.packed, n_positions = packed ? packed : of->dim[1];
      if (g->nodes[i].in[k] != node) continue;
      if (!is_lengths_slot(&g->nodes[i], k) || of->rank < 2) return 0;
      steps = steps ? CLV_MIN(steps, n_positions) : n_positions;
    }
  return steps;
}
