/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains of element-wise ops, which one kernel does where the backend has one: each op is the only
 * reader of the one before. The last node stands for all, in both directions, so nobody may hand on
 * gradients of what the chain reads between its first node and its last: that is when they are
 * handed on there.
 */
#include "common/model/graph/plan_int.h"

typedef struct plan_chain {
  int n, node[CLV_MAX_LINKS];
  clv_chain_link link[CLV_MAX_LINKS];
  int add, other; /* the sum among them, and what is added there; -1: none */
} plan_chain;

clv_chain_link clv_plan_chain_link(const clv_plan *p, int node) {
  const clv_node *n = &p->graph->nodes[node];
  return (clv_chain_link){n->op, n->op == CLV_OP_DROPOUT ? n->attrs.p : n->attrs.factor};
}

static bool can_be(const clv_plan *p, int node) {
  const clv_plan_node *q = &p->nodes[node];
  const clv_op_def *def = clv_op_def_of(p->graph->nodes[node].op);
  return def && def->elementwise && clv_plan_has_one_shape(p, node) && q->live && !q->alias &&
         !q->absorbed && !q->n_joined;
}

/* The only node that reads the value of `node`; -1: there are more, or it is the output. */
static int reader_of(const clv_plan *p, int node) {
  const clv_graph *g = p->graph;
  if (g->output == node || !clv_plan_has_one_reader(p, node)) return -1;
  int i = node + 1;
  while (!clv_plan_n_readers_between(p, node, i - 1, i + 1)) i++;
  return i;
}

static bool keeps_order(const clv_plan *p, const plan_chain *c, int last) {
  const int first = p->graph->nodes[c->node[0]].in[0];
  return !clv_plan_n_readers_between(p, first, c->node[0], last) &&
         (c->add < 0 || !clv_plan_n_readers_between(p, c->other, c->add, last));
}

/* c with the node behind it; false: it ends here. */
static bool extend(const clv_plan *p, plan_chain *c) {
  int last = c->node[c->n - 1], next = reader_of(p, last);
  plan_chain more = *c;
  if (c->n == CLV_MAX_LINKS || next < 0 || !can_be(p, next)) return false;
  if (p->graph->nodes[next].op == CLV_OP_ADD) {
    const int *in = p->graph->nodes[next].in;
    if (c->add >= 0) return false;
    more.add = next;
    more.other = in[in[0] == last];
  }
  more.node[more.n] = next;
  more.link[more.n++] = clv_plan_chain_link(p, next);
  if (!keeps_order(p, &more, next) || !p->backend->chains(more.link, more.n)) return false;
  *c = more;
  return true;
}

static void join(clv_plan *p, const plan_chain *c) {
  clv_plan_node *q = &p->nodes[c->node[c->n - 1]];
  clv_plan_fuse_nodes(p, c->node, c->n);
  q->src[0] = p->graph->nodes[c->node[0]].in[0];
  q->n_src = c->add < 0 ? 1 : 2;
  if (c->add >= 0) q->src[1] = c->other;
  for (int i = 0; i < c->n; i++)
    if (c->link[i].op == CLV_OP_DROPOUT) q->key_node = c->node[i];
}

void clv_plan_fuse_chains(clv_plan *p) {
  for (int i = 0; i < p->graph->n_nodes && p->backend->chains; i++) {
    plan_chain c = {.n = 1, .node = {i}, .add = -1};
    if (!can_be(p, i)) continue;
    c.link[0] = clv_plan_chain_link(p, i);
    if (p->graph->nodes[i].op == CLV_OP_ADD) {
      c.add = i;
      c.other = p->graph->nodes[i].in[1];
    }
    while (extend(p, &c)) continue;
    if (c.n > 1) join(p, &c);
  }
}
