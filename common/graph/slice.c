/* SPDX-License-Identifier: Apache-2.0
 *
 * Cutting a run of layers out of a graph: one tensor goes in, one comes out.
 */
#include "common/graph/graph_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct cut {
  const clv_graph *g;
  uint32_t first, last; /* layers */
  int enters;           /* node whose value goes in, or -1 */
  int leaves;           /* node whose value comes out, or -1 */
} cut;

static bool inside(const cut *c, int node) {
  const clv_node *n = &c->g->nodes[node];
  return n->op != CLV_OP_INPUT && n->layer >= c->first && n->layer <= c->last;
}

static clv_code one_of(const cut *c, const char *verb, int node, int *have, clv_err *err) {
  char a[160], b[160];
  const clv_node *nodes = c->g->nodes;
  if (*have >= 0 && *have != node)
    return clv_fail(
        err, CLV_INVALID,
        "layers %" PRIu32 "..%" PRIu32 " are no place to cut: both '%s' %s and '%s' %s %s them",
        c->first, c->last, nodes[*have].name, clv_shape_format(&nodes[*have].shape, a, sizeof a),
        nodes[node].name, clv_shape_format(&nodes[node].shape, b, sizeof b), verb);
  *have = node;
  return CLV_OK;
}

static clv_code find_edges(cut *c, clv_err *err) {
  const clv_graph *g = c->g;
  int last = -1;
  for (int i = 0; i < g->n_nodes; i++) {
    if (inside(c, i)) last = i;
    for (int j = 0; j < g->nodes[i].n_in; j++) {
      int from = g->nodes[i].in[j];
      if (inside(c, i) && !inside(c, from)) CLV_TRY(one_of(c, "enter", from, &c->enters, err));
      if (!inside(c, i) && inside(c, from)) CLV_TRY(one_of(c, "leave", from, &c->leaves, err));
    }
  }
  if (last < 0)
    return clv_fail(err, CLV_INVALID, "there is no layer in %" PRIu32 "..%" PRIu32, c->first,
                    c->last);
  if (inside(c, g->output)) CLV_TRY(one_of(c, "leave", g->output, &c->leaves, err));
  if (c->leaves < 0) c->leaves = last;
  return CLV_OK;
}

static clv_code copy_nodes(const cut *c, clv_graph *to, int *place, clv_err *err) {
  const clv_graph *g = c->g;
  const clv_node *enters = &g->nodes[c->enters];
  CLV_TRY(clv_graph_add_input(to, "input", enters->dtype, &enters->shape, &place[c->enters], err));
  for (int i = 0; i < g->n_nodes; i++) {
    const clv_node *n = &g->nodes[i];
    int in[CLV_MAX_IN];
    if (!inside(c, i)) continue;
    for (int j = 0; j < n->n_in; j++) in[j] = place[n->in[j]];
    CLV_TRY(clv_graph_add(to, n->op, &n->attrs, n->name, n->layer, in, n->n_in, &place[i], err));
    to->nodes[place[i]].key = n->key;
  }
  to->output = place[c->leaves];
  return CLV_OK;
}

clv_code clv_graph_slice(const clv_graph *g, uint32_t first_layer, uint32_t last_layer,
                         clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *part = NULL;
  CLV_AUTO(clv_freep) int *place = NULL;
  cut c = {.g = g, .first = first_layer, .last = last_layer, .enters = -1, .leaves = -1};
  if (g->output < 0 || g->output >= g->n_nodes)
    return clv_fail(err, CLV_INVALID, "the graph has no output node %d", g->output);
  CLV_TRY(find_edges(&c, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *place, &place, err));
  CLV_TRY(clv_graph_new(&part, err));
  part->dtype = g->dtype;
  CLV_TRY(copy_nodes(&c, part, place, err));
  *ret = clv_steal(&part);
  return CLV_OK;
}
