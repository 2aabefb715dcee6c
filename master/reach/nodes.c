/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes a node for the analysis of one record: its shape, the shapes and attributes of its op,
 * the steps from its inputs to its output, and the summary of its elements.
 */
#include "master/reach/reach_int.h"

clv_shape reach_shape(const clv_graph *g, int node) {
  clv_shape s = g->nodes[node].shape;
  if (s.rank == 0) s.rank = 1;
  s.dim[0] = 1;
  for (int i = 1; i < s.rank; i++) s.dim[i] = CLV_MAX(s.dim[i], 1);
  return s;
}

void reach_op_site(const clv_graph *g, int node, clv_op_site *ret) {
  const clv_node *n = &g->nodes[node];
  *ret = (clv_op_site){.attrs = &n->attrs, .n_in = n->n_in};
  for (int i = 0; i < n->n_in; i++) {
    ret->in[i] = reach_shape(g, n->in[i]);
    ret->in_dtype[i] = g->nodes[n->in[i]].dtype;
  }
}

/* Sets the number of sums that the layer makes of the same places (s->width), and the axis along
 * which these sums are: axis 1 for convolutions, the last axis for all other ops. */
static void set_width(const clv_graph *g, int k, int node, reach_step *s) {
  const clv_node *n = &g->nodes[k];
  clv_shape shape = reach_shape(g, node);
  bool features = n->op == CLV_OP_LINEAR || n->op == CLV_OP_LSTM || n->op == CLV_OP_GRU;
  s->width_axis = features ? shape.rank - 1 : 1;
  s->width = shape.dim[s->width_axis] / (features ? 1 : reach_groups_of(n));
}

void reach_step_reverse(const clv_graph *g, int k, reach_step *s) {
  set_width(g, k, g->nodes[k].in[0], s);
}

reach_step reach_step_of(const clv_graph *g, int k, int i, reach_pool *pool,
                         const clv_reach_layer *layers, reach_relation *relation) {
  const clv_node *n = &g->nodes[k];
  const clv_op_def *def = clv_op_def_of(n->op);
  clv_op_site site;
  clv_shape out = reach_shape(g, k);
  reach_op_site(g, k, &site);
  *relation = (reach_relation){0};
  reach_op_of(n->op)->relate(&site, &out, i, relation);
  reach_step s = {.pool = pool,
                  .relation = relation,
                  .to = out,
                  .has_weights = def->mixing != CLV_MIXES_NOTHING,
                  .layer = layers[k],
                  .op_dropout_rate = n->op == CLV_OP_DROPOUT ? n->attrs.p : 0,
                  .key_dropout_rate = n->op == CLV_OP_ATTENTION && i == 2 ? n->attrs.p : 0,
                  .sums_two = true,
                  .sums_none = true};
  s.has_bias = s.has_weights
                   ? n->attrs.bias
                   : n->op == CLV_OP_POSITIONS || (def->slots && !def->takes_row_numbers) ||
                         (def->elementwise && !def->maps_zero_to_zero);
  set_width(g, k, k, &s);
  return s;
}

bool reach_is_constant(const clv_graph *g, int k) {
  const reach_op *op = reach_op_of(g->nodes[k].op);
  clv_op_site site;
  reach_op_site(g, k, &site);
  return op->normalizes && op->normalizes(&site) == 1;
}

void reach_summarize(const reach_pool *p, const reach_value *v, clv_reach *ret) {
  ret->n_places = p->n_places;
  ret->is_over_budget |= p->is_over_budget;
  for (size_t i = 0; i < reach_value_count(v); i++) {
    reach_element e = v->element[i];
    if (!reach_is_path(e)) continue;
    int64_t count = reach_set_count(p, reach_set_of(e));
    bool is_token = e & REACH_TOKEN, is_unmixed = e & REACH_UNMIXED;
    bool is_narrow = !is_unmixed && 2 * count < p->n_places;
    ret->is_unmixed |= is_unmixed && !is_token;
    ret->is_unmixed_token |= is_unmixed && is_token;
    ret->has_known_mixing |= (e & REACH_MIXED) != 0;
    ret->n_fewest_places = ret->n_fewest_places ? CLV_MIN(ret->n_fewest_places, count) : count;
    ret->has_narrow_element |= is_narrow && !is_token;
    ret->has_narrow_token_element |= is_narrow && is_token;
  }
}
