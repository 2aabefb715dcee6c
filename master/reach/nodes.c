/* SPDX-License-Identifier: Apache-2.0
 *
 * Describes a node for the analysis of one record: its shape, the shapes and attributes of its op,
 * the steps from its inputs to its output, and the summary of the elements of its value.
 */
#include "master/reach/reach_int.h"

clv_shape reach_node_shape(const clv_graph *g, int node) {
  clv_shape s = g->nodes[node].shape;
  if (s.rank == 0) s.rank = 1;
  s.dim[0] = 1;
  for (int i = 1; i < s.rank; i++) s.dim[i] = CLV_MAX(s.dim[i], 1);
  return s;
}

void reach_describe_op(const clv_graph *g, int node, clv_op_site *ret) {
  const clv_node *n = &g->nodes[node];
  *ret = (clv_op_site){.attrs = &n->attrs, .n_in = n->n_in};
  for (int i = 0; i < n->n_in; i++) {
    ret->in[i] = reach_node_shape(g, n->in[i]);
    ret->in_dtype[i] = g->nodes[n->in[i]].dtype;
  }
}

/* Sets the number of sums that the layer makes of the same places (s->n_sums), and the axis of the
 * result along which these sums follow each other: axis 1 for convolutions, the last axis for all
 * other ops. */
static void set_sums(const clv_graph *g, int k, int node, reach_step *s) {
  const clv_node *n = &g->nodes[k];
  clv_shape shape = reach_node_shape(g, node);
  bool has_features_last = n->op == CLV_OP_LINEAR || n->op == CLV_OP_LSTM || n->op == CLV_OP_GRU;
  s->sums_axis = has_features_last ? shape.rank - 1 : 1;
  s->n_sums = shape.dim[s->sums_axis] / (has_features_last ? 1 : reach_group_count(n));
}

void reach_reverse_step(const clv_graph *g, int k, reach_step *s) {
  set_sums(g, k, g->nodes[k].in[0], s);
}

reach_step reach_make_step(const clv_graph *g, int k, int i, reach_set_pool *pool,
                           const clv_weight_secrecy *layer_secrecy, reach_relation *relation) {
  const clv_node *n = &g->nodes[k];
  const clv_op_def *def = clv_op_def_of(n->op);
  clv_op_site site;
  clv_shape out = reach_node_shape(g, k);
  reach_describe_op(g, k, &site);
  *relation = (reach_relation){0};
  reach_get_op_row(n->op)->relate_output(&site, &out, i, relation);
  reach_step s = {.pool = pool,
                  .relation = relation,
                  .to = out,
                  .has_weights = def->mixing != CLV_MIXES_NOTHING,
                  .weight_secrecy = layer_secrecy[k],
                  .op_dropout_rate = n->op == CLV_OP_DROPOUT ? n->attrs.p : 0,
                  .key_dropout_rate = n->op == CLV_OP_ATTENTION && i == 2 ? n->attrs.p : 0,
                  .sums_two_places = true,
                  .never_sums_two_places = true};
  s.has_bias = s.has_weights
                   ? n->attrs.bias
                   : n->op == CLV_OP_POSITIONS || (def->slots && !def->takes_row_numbers) ||
                         (def->elementwise && !def->maps_zero_to_zero);
  set_sums(g, k, k, &s);
  return s;
}

bool reach_is_constant(const clv_graph *g, int k) {
  const reach_op *op = reach_get_op_row(g->nodes[k].op);
  clv_op_site site;
  reach_describe_op(g, k, &site);
  return op->count_normalized && op->count_normalized(&site) == 1;
}

void reach_summarize_value(const reach_set_pool *p, const reach_value *v, clv_reach *ret) {
  ret->n_places = p->n_places;
  ret->exceeds_limits |= p->exceeds_limits;
  for (size_t i = 0; i < reach_value_element_count(v); i++) {
    reach_element e = v->elements[i];
    if (!reach_element_has_places(e)) continue;
    int64_t n_set_places = reach_set_place_count(p, reach_element_set(e));
    bool is_token = e & REACH_FLAG_TOKEN, is_unmixed = e & REACH_FLAG_UNMIXED;
    bool is_narrow = !is_unmixed && 2 * n_set_places < p->n_places;
    ret->has_unmixed_path |= is_unmixed && !is_token;
    ret->has_unmixed_token_path |= is_unmixed && is_token;
    ret->has_known_mixing |= (e & REACH_FLAG_MIXED) != 0;
    ret->n_fewest_places =
        ret->n_fewest_places ? CLV_MIN(ret->n_fewest_places, n_set_places) : n_set_places;
    ret->has_narrow_element |= is_narrow && !is_token;
    ret->has_narrow_token_element |= is_narrow && is_token;
  }
}
