/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusion of chains of element-wise ops into one kernel, where the backend has such a kernel. Each
 * op of a chain is the only reader of the one before. The last node stands for all of them, in
 * forward and backward, so the chain passes the gradients of its inputs on when backward visits its
 * last node. To keep the order of each sum of gradients, no other node between the first and the
 * last may read an input of the chain.
 */
#include "common/model/graph/plan_int.h"

typedef struct plan_chain {
  int n, nodes[CLV_MAX_LINKS];
  clv_chain_link links[CLV_MAX_LINKS];
  /* the one node of the chain that is an addition, and its other operand; add -1: none */
  int addition, other_operand;
} plan_chain;

clv_chain_link clv_plan_make_chain_link(const clv_plan *p, int node) {
  const clv_node *n = &p->graph->nodes[node];
  return (clv_chain_link){n->op, n->op == CLV_OP_DROPOUT ? n->attrs.p : n->attrs.factor};
}

static bool can_join_chain(const clv_plan *p, int node) {
  const clv_plan_node *q = &p->nodes[node];
  const clv_op_def *def = clv_op_def_of(p->graph->nodes[node].op);
  return def && def->elementwise && clv_plan_has_one_shape(p, node) && q->is_reachable &&
         !q->is_alias && !q->is_absorbed && !q->n_fused;
}

/* Returns the only node that reads the value of `node`; -1: it has several readers, or the caller
 * reads it as the output. */
static int find_only_reader(const clv_plan *p, int node) {
  const clv_graph *g = p->graph;
  if (g->output_node == node || !clv_plan_has_one_reader(p, node)) return -1;
  int i = node + 1;
  while (!clv_plan_n_readers_between(p, node, i - 1, i + 1)) i++;
  return i;
}

static bool keeps_gradient_order(const clv_plan *p, const plan_chain *c, int last) {
  const int first = p->graph->nodes[c->nodes[0]].in[0];
  return !clv_plan_n_readers_between(p, first, c->nodes[0], last) &&
         (c->addition < 0 || !clv_plan_n_readers_between(p, c->other_operand, c->addition, last));
}

/* Appends the reader of the chain's last node to the chain. Returns false if the chain cannot be
 * extended. */
static bool extend_chain(const clv_plan *p, plan_chain *c) {
  int last = c->nodes[c->n - 1], next = find_only_reader(p, last);
  plan_chain extended = *c;
  if (c->n == CLV_MAX_LINKS || next < 0 || !can_join_chain(p, next)) return false;
  if (p->graph->nodes[next].op == CLV_OP_ADD) {
    const int *in = p->graph->nodes[next].in;
    if (c->addition >= 0) return false;
    extended.addition = next;
    extended.other_operand = in[in[0] == last];
  }
  extended.nodes[extended.n] = next;
  extended.links[extended.n++] = clv_plan_make_chain_link(p, next);
  if (!keeps_gradient_order(p, &extended, next) || !p->backend->chains(extended.links, extended.n))
    return false;
  *c = extended;
  return true;
}

static void fuse_chain(clv_plan *p, const plan_chain *c) {
  clv_plan_node *q = &p->nodes[c->nodes[c->n - 1]];
  clv_plan_fuse_nodes(p, c->nodes, c->n);
  q->src[0] = p->graph->nodes[c->nodes[0]].in[0];
  q->n_src = c->addition < 0 ? 1 : 2;
  if (c->addition >= 0) q->src[1] = c->other_operand;
  for (int i = 0; i < c->n; i++)
    if (c->links[i].op == CLV_OP_DROPOUT) q->rng_node = c->nodes[i];
}

void clv_plan_fuse_chains(clv_plan *p) {
  for (int i = 0; i < p->graph->n_nodes && p->backend->chains; i++) {
    plan_chain c = {.n = 1, .nodes = {i}, .addition = -1};
    if (!can_join_chain(p, i)) continue;
    c.links[0] = clv_plan_make_chain_link(p, i);
    if (p->graph->nodes[i].op == CLV_OP_ADD) {
      c.addition = i;
      c.other_operand = p->graph->nodes[i].in[1];
    }
    while (extend_chain(p, &c)) continue;
    if (c.n > 1) fuse_chain(p, &c);
  }
}
