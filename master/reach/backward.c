/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows labels from the loss backwards (clv_reach_labels_in_gradients): finds, for each element
 * of a gradient, the outputs of the model from whose gradients it is computed. An element that is
 * computed from the gradient of one output alone can show the label of that output. So this
 * analysis takes each output for a place, as the analysis of records takes each pixel or token.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

/* Most outputs for which each output of the model is a place (a unit of the analysis) of its own.
 * In a model with more outputs, all outputs of one row are one place. */
enum { MAX_OUTPUT_PLACES = 1 << 18 };

typedef struct backward_walk {
  const clv_graph *g;
  const clv_weight_secrecy *layer_secrecy;
  reach_set_pool pool;
  /* [n_nodes] gradient of each node, for the profiles (rules that choose among paths)
   * REACH_PROFILE_EXPOSED and REACH_PROFILE_NARROW */
  reach_value *grads[REACH_PROFILE_WIDE];
} backward_walk;

static void backward_walk_done(backward_walk *w) {
  for (int p = 0; p < REACH_PROFILE_WIDE; p++) {
    for (int k = 0; w->grads[p] && k < w->g->n_nodes; k++) reach_value_done(&w->grads[p][k]);
    free(w->grads[p]);
  }
  reach_pool_done(&w->pool);
}

/* Sets the shape of the gradient of the model's output: one element for each output; in a model
 * with more than MAX_OUTPUT_PLACES outputs, one for each row. */
static void set_output_shape(const clv_graph *g, reach_value *ret) {
  int64_t n = 1;
  *ret = (reach_value){.shape = reach_node_shape(g, g->output_node)};
  for (int i = 0; i < CLV_MAX_RANK; i++) {
    ret->stored_extents[i] = i < ret->shape.rank ? ret->shape.dim[i] : 1;
    n = n > MAX_OUTPUT_PLACES ? n : n * ret->stored_extents[i];
  }
  if (n <= MAX_OUTPUT_PLACES) return;
  ret->sibling_axis = ret->shape.rank - 1;
  ret->stored_extents[ret->sibling_axis] = 1;
}

static clv_code fill_output_elements(backward_walk *w, const reach_value *layout, reach_value *ret,
                                     clv_err *err) {
  *ret = *layout;
  CLV_TRY(reach_value_alloc(ret, err));
  for (size_t i = 0, n = reach_value_element_count(ret); i < n; i++) {
    reach_pool_add_span(&w->pool, (int64_t)i, 1);
    uint32_t set_number = reach_pool_take_set(&w->pool);
    ret->elements[i] = reach_make_element(set_number, REACH_FLAG_UNMIXED);
  }
  return CLV_OK;
}

static void replace_absent_by_zero(reach_value *v) {
  for (size_t i = 0; i < reach_value_element_count(v); i++)
    if (v->elements[i] == REACH_ABSENT_ELEMENT) v->elements[i] = REACH_ZERO_ELEMENT;
}

/* Adds the gradient that node k passes to its input i to the gradients from other nodes that read
 * that input. */
static clv_code pass_gradient_back(backward_walk *w, int k, int i, int p, clv_reach *layer_result,
                                   clv_err *err) {
  const clv_node *n = &w->g->nodes[k];
  reach_relation relation;
  reach_step s = reach_make_step(w->g, k, i, &w->pool, w->layer_secrecy, &relation);
  reach_value input_share = {0};
  int to = n->in[i];
  if (relation.is_independent || w->g->nodes[to].dtype == CLV_I64 || reach_is_constant(w->g, k))
    return CLV_OK;
  s.from = &w->grads[p][k];
  s.is_backward = s.places_are_outputs = true;
  s.to = reach_node_shape(w->g, to);
  s.has_bias = false;
  s.has_one_output = w->pool.n_places == 1 && !s.from->sibling_axis;
  s.has_several_inputs = clv_node_fan_in(w->g, n) > 1;
  reach_reverse_step(w->g, k, &s);
  CLV_TRY(reach_propagate(&s, &input_share, err));
  layer_result->sums_two_places &= s.sums_two_places;
  layer_result->never_sums_two_places &= s.never_sums_two_places;
  layer_result->is_thinned_by_dropout |= s.is_thinned_by_dropout;
  replace_absent_by_zero(&input_share);
  clv_code code =
      reach_merge_values(&w->pool, (reach_profile)p, false, &w->grads[p][to], &input_share, err);
  reach_value_done(&input_share);
  return code;
}

static clv_code walk_nodes_back(backward_walk *w, uint32_t first_layer, clv_reach *ret,
                                clv_err *err) {
  for (int k = w->g->n_nodes; k-- > 0;) {
    const clv_node *n = &w->g->nodes[k];
    bool passes_gradient = n->op != CLV_OP_INPUT && n->layer > first_layer;
    ret[k].sums_two_places = ret[k].never_sums_two_places = true;
    for (int p = 0; p < REACH_PROFILE_WIDE; p++) {
      if (!w->grads[p][k].elements) continue;
      reach_summarize_value(&w->pool, &w->grads[p][k], &ret[k]);
      for (int i = 0; passes_gradient && i < n->n_in; i++)
        CLV_TRY(pass_gradient_back(w, k, i, p, &ret[k], err));
      reach_value_done(&w->grads[p][k]);
    }
  }
  return CLV_OK;
}

clv_code clv_reach_labels_in_gradients(const clv_graph *g, const clv_weight_secrecy *layer_secrecy,
                                       uint32_t first_layer, clv_reach *ret, clv_err *err) {
  CLV_AUTO(backward_walk_done) backward_walk w = {.g = g, .layer_secrecy = layer_secrecy};
  reach_value outputs;
  memset(ret, 0, (size_t)g->n_nodes * sizeof *ret);
  for (int p = 0; p < REACH_PROFILE_WIDE; p++)
    CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *w.grads[p], &w.grads[p], err));
  set_output_shape(g, &outputs);
  CLV_TRY(reach_pool_init(&w.pool, (int64_t)reach_value_element_count(&outputs), err));
  for (int p = 0; p < REACH_PROFILE_WIDE; p++)
    CLV_TRY(fill_output_elements(&w, &outputs, &w.grads[p][g->output_node], err));
  return walk_nodes_back(&w, first_layer, ret, err);
}
