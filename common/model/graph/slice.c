/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_graph_slice: cutting consecutive layers out of a graph. One tensor crosses each cut. If
 * several values cross, that tensor is their concatenation, a row for each record: the layers
 * before the cut end with a concat, and those behind it begin with slices. A value that later
 * layers need passes through the layers in between. So its gradient arrives as the sum of the
 * gradients of all later readers, and readers in these layers add theirs in the order of the uncut
 * graph. Therefore the bits are the same.
 */
#include "common/model/graph/graph_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct slicer {
  const clv_graph *g;
  uint32_t first_layer, last_layer; /* numbers of the first and last layer of the slice */
  clv_graph *to;
  int *new_nodes; /* [g->n_nodes] for each node of g, the node of `to` with its value */
  /* nodes of g whose values cross the cut before the slice, and the cut behind it */
  int *crossing_before, *crossing_after;
  int n_crossing_before, n_crossing_after;
} slicer;

static bool is_in_slice(const slicer *s, int node) {
  const clv_node *n = &s->g->nodes[node];
  return n->op != CLV_OP_INPUT && n->layer >= s->first_layer && n->layer <= s->last_layer;
}

/* ---- values that cross a cut ----------------------------------------------------------------- */

/* True if the value of the node crosses a cut behind the first `layers` layers: one of these layers
 * computes it, and a later layer reads it or it is the graph's output. */
static bool is_crossing(const clv_graph *g, const bool *is_read, int node, uint32_t layers) {
  const clv_node *n = &g->nodes[node];
  return n->op != CLV_OP_INPUT && n->layer < layers && (is_read[node] || node == g->output_node);
}

static int list_crossing_nodes(const clv_graph *g, uint32_t layers, int *ret_nodes) {
  bool is_read[CLV_MAX_NODES] = {false};
  int n = 0;
  for (int i = 0; i < g->n_nodes; i++)
    for (int k = 0; k < g->nodes[i].n_in; k++)
      is_read[g->nodes[i].in[k]] |= g->nodes[i].layer >= layers;
  for (int i = 0; i < g->n_nodes; i++)
    if (is_crossing(g, is_read, i, layers)) ret_nodes[n++] = i;
  return n;
}

int clv_graph_find_crossing_nodes(const clv_graph *g, uint32_t layer, int *ret_nodes) {
  return list_crossing_nodes(g, layer + 1, ret_nodes);
}

static clv_code check_can_join(const clv_graph *g, const int *nodes, int n, clv_err *err) {
  char shape[160];
  for (int i = 0; n > 1 && i < n; i++) {
    const clv_node *v = &g->nodes[nodes[i]];
    if (v->dtype == CLV_I64 || v->shape.rank < 2)
      return clv_fail(err, CLV_INVALID,
                      "%d values cross, and that of layer '%s', %s of %s, cannot be joined with "
                      "the others",
                      n, v->name, clv_shape_format(&v->shape, shape, sizeof shape),
                      clv_dtype_name(v->dtype));
    if (v->shape.dim[0] != g->nodes[nodes[0]].shape.dim[0])
      return clv_fail(err, CLV_INVALID,
                      "'%s' and '%s' cross, but have different numbers of records",
                      g->nodes[nodes[0]].name, v->name);
  }
  return CLV_OK;
}

clv_code clv_graph_check_cut(const clv_graph *g, uint32_t layer, clv_err *err) {
  int nodes[CLV_MAX_NODES] = {0};
  return check_can_join(g, nodes, clv_graph_find_crossing_nodes(g, layer, nodes), err);
}

/* ---- nodes that join and split the values at cuts -------------------------------------------- */

static clv_code join_crossing(slicer *s, clv_err *err) {
  int nodes[CLV_MAX_NODES] = {0};
  for (int i = 0; i < s->n_crossing_after; i++) nodes[i] = s->new_nodes[s->crossing_after[i]];
  return clv_graph_join(s->to, nodes, s->n_crossing_after, err);
}

static clv_code split_crossing(slicer *s, int joined_input, clv_err *err) {
  int64_t start = 0;
  for (int i = 0; i < s->n_crossing_before; i++)
    CLV_TRY(clv_graph_split(s->to, joined_input, &start, &s->g->nodes[s->crossing_before[i]].shape,
                            &s->new_nodes[s->crossing_before[i]], err));
  return CLV_OK;
}

/* ---- inputs and layers of the slice ---------------------------------------------------------- */

static bool is_input_read(const slicer *s, int input) {
  for (int i = 0; i < s->g->n_nodes; i++)
    for (int k = 0; is_in_slice(s, i) && k < s->g->nodes[i].n_in; k++)
      if (s->g->nodes[i].in[k] == input) return true;
  return false;
}

/* Returns the name of the input for the crossing values: "input", or "-.cut" if the slice also
 * reads an input of the uncut graph named "input". */
static const char *cut_input_name(const slicer *s) {
  for (int i = 0; i < s->g->n_nodes; i++)
    if (s->g->nodes[i].op == CLV_OP_INPUT && strcmp(s->g->nodes[i].name, "input") == 0 &&
        is_input_read(s, i))
      return "-.cut";
  return "input";
}

static clv_code add_cut_input(slicer *s, clv_err *err) {
  clv_shape shape = {.rank = 2};
  int joined_input;
  if (!s->n_crossing_before) return CLV_OK;
  const clv_node *v = &s->g->nodes[s->crossing_before[0]];
  if (s->n_crossing_before == 1) {
    CLV_TRY(clv_graph_add_input(s->to, cut_input_name(s), v->dtype, &v->shape,
                                &s->new_nodes[s->crossing_before[0]], err));
    s->to->nodes[s->new_nodes[s->crossing_before[0]]].max_positions = v->max_positions;
    return CLV_OK;
  }
  shape.dim[0] = v->shape.dim[0];
  for (int i = 0; i < s->n_crossing_before; i++)
    shape.dim[1] += clv_graph_values_per_record(&s->g->nodes[s->crossing_before[i]]);
  CLV_TRY(clv_graph_add_input(s->to, cut_input_name(s), v->dtype, &shape, &joined_input, err));
  s->to->nodes[joined_input].max_positions = v->max_positions;
  return CLV_OK;
}

static clv_code add_inputs(slicer *s, clv_err *err) {
  CLV_TRY(add_cut_input(s, err));
  for (int i = 0; i < s->g->n_nodes; i++) {
    const clv_node *n = &s->g->nodes[i];
    if (n->op != CLV_OP_INPUT || !is_input_read(s, i)) continue;
    CLV_TRY(clv_graph_add_input(s->to, n->name, n->dtype, &n->shape, &s->new_nodes[i], err));
    s->to->nodes[s->new_nodes[i]].max_positions = n->max_positions;
  }
  return s->n_crossing_before > 1 ? split_crossing(s, 0, err) : CLV_OK;
}

/* Copies the tie of a node. Sets tie_owner_is_outside if the owner is not in the slice. */
static void copy_tie(const slicer *s, const clv_node *n, clv_node *to) {
  bool has_owner_in_slice = false;
  for (int i = 0; n->tie_owner[0] && i < s->g->n_nodes; i++)
    has_owner_in_slice |= is_in_slice(s, i) && strcmp(s->g->nodes[i].name, n->tie_owner) == 0;
  memcpy(to->tie_owner, n->tie_owner, sizeof n->tie_owner);
  to->tie_owner_is_outside = n->tie_owner[0] && (n->tie_owner_is_outside || !has_owner_in_slice);
}

static clv_code add_layers(slicer *s, clv_err *err) {
  for (int i = 0; i < s->g->n_nodes; i++) {
    const clv_node *n = &s->g->nodes[i];
    int in[CLV_MAX_IN] = {0};
    if (!is_in_slice(s, i)) continue;
    for (int j = 0; j < n->n_in; j++) in[j] = s->new_nodes[n->in[j]];
    CLV_TRY(clv_graph_add(s->to, n->op, &n->attrs, n->name, n->layer, in, n->n_in, &s->new_nodes[i],
                          err));
    s->to->nodes[s->new_nodes[i]].key = n->key;
    s->to->nodes[s->new_nodes[i]].recompute_block = n->recompute_block;
    copy_tie(s, n, &s->to->nodes[s->new_nodes[i]]);
    s->to->nodes[s->new_nodes[i]].max_positions = n->max_positions;
  }
  if (s->n_crossing_after > 1) return join_crossing(s, err);
  s->to->output_node = s->new_nodes[s->crossing_after[0]];
  return CLV_OK;
}

static clv_code find_cut_values(slicer *s, clv_err *err) {
  const clv_graph *g = s->g;
  int last = -1;
  for (int i = 0; i < g->n_nodes; i++)
    if (is_in_slice(s, i)) last = i;
  if (last < 0)
    return clv_fail(err, CLV_INVALID, "the graph has no layer from %" PRIu32 " to %" PRIu32,
                    s->first_layer, s->last_layer);
  s->n_crossing_before = list_crossing_nodes(g, s->first_layer, s->crossing_before);
  s->n_crossing_after = list_crossing_nodes(g, s->last_layer + 1, s->crossing_after);
  if (!s->n_crossing_after) s->crossing_after[s->n_crossing_after++] = last;
  CLV_TRY(check_can_join(g, s->crossing_before, s->n_crossing_before, err));
  return check_can_join(g, s->crossing_after, s->n_crossing_after, err);
}

clv_code clv_graph_slice(const clv_graph *g, uint32_t first_layer, uint32_t last_layer,
                         clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *part = NULL;
  CLV_AUTO(clv_freep) int *nodes = NULL;
  size_t n = (size_t)g->n_nodes;
  if (g->output_node < 0 || g->output_node >= g->n_nodes)
    return clv_fail(err, CLV_INVALID, "the graph has no output node %d", g->output_node);
  CLV_TRY(clv_alloc(3 * n, sizeof *nodes, &nodes, err));
  CLV_TRY(clv_graph_new(&part, err));
  part->dtype = g->dtype;
  slicer s = {.g = g,
              .first_layer = first_layer,
              .last_layer = last_layer,
              .to = part,
              .new_nodes = nodes,
              .crossing_before = nodes + n,
              .crossing_after = nodes + 2 * n};
  CLV_TRY(find_cut_values(&s, err));
  CLV_TRY(add_inputs(&s, err));
  CLV_TRY(add_layers(&s, err));
  *ret = clv_steal(&part);
  return CLV_OK;
}
