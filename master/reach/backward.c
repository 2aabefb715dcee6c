/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows labels from the loss backwards (clv_reach_backward): finds from which outputs' gradients
 * each element of a gradient is made. Here each output of the model is a place, because the
 * gradient of one output shows its label.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

/* most outputs of the model that are places, the units of the analysis, of their own; in a model
 * with more outputs, those of one row are one place */
enum { MAX_OUTPUTS = 1 << 18 };

typedef struct backward_walk {
  const clv_graph *g;
  const clv_reach_layer *layers;
  reach_pool pool;
  /* [n_nodes] gradient of each node, for the profiles REACH_EXPOSED and REACH_NARROW */
  reach_value *grads[REACH_WIDE];
} backward_walk;

static void backward_walk_done(backward_walk *w) {
  for (int p = 0; p < REACH_WIDE; p++) {
    for (int k = 0; w->grads[p] && k < w->g->n_nodes; k++) reach_value_done(&w->grads[p][k]);
    free(w->grads[p]);
  }
  reach_pool_done(&w->pool);
}

/* Sets the shape of the gradient of the model's output: one element for each output; if there are
 * too many, one for each row. */
static void set_output_shape(const clv_graph *g, reach_value *ret) {
  int64_t n = 1;
  *ret = (reach_value){.shape = reach_shape(g, g->output_node)};
  for (int i = 0; i < CLV_MAX_RANK; i++) {
    ret->stored_extents[i] = i < ret->shape.rank ? ret->shape.dim[i] : 1;
    n = n > MAX_OUTPUTS ? n : n * ret->stored_extents[i];
  }
  if (n <= MAX_OUTPUTS) return;
  ret->sibling_axis = ret->shape.rank - 1;
  ret->stored_extents[ret->sibling_axis] = 1;
}

static clv_code fill_outputs(backward_walk *w, const reach_value *form, reach_value *ret,
                             clv_err *err) {
  *ret = *form;
  CLV_TRY(reach_value_alloc(ret, err));
  for (size_t i = 0, n = reach_value_count(ret); i < n; i++) {
    reach_pool_add_run(&w->pool, (int64_t)i, 1);
    uint32_t set = reach_pool_take(&w->pool);
    ret->element[i] = reach_make_element(set, REACH_UNMIXED);
  }
  return CLV_OK;
}

static void replace_absent_by_nothing(reach_value *v) {
  for (size_t i = 0; i < reach_value_count(v); i++)
    if (v->element[i] == REACH_ABSENT) v->element[i] = REACH_NOTHING;
}

/* Adds the gradient that node k passes to its input i to the gradients from other readers of that
 * input. */
static clv_code pass_gradient_back(backward_walk *w, int k, int i, int p, clv_reach *found,
                                   clv_err *err) {
  const clv_node *n = &w->g->nodes[k];
  reach_relation relation;
  reach_step s = reach_step_of(w->g, k, i, &w->pool, w->layers, &relation);
  reach_value share = {0};
  int to = n->in[i];
  if (relation.is_independent || w->g->nodes[to].dtype == CLV_I64 || reach_is_constant(w->g, k))
    return CLV_OK;
  s.from = &w->grads[p][k];
  s.is_backward = s.places_are_outputs = true;
  s.to = reach_shape(w->g, to);
  s.has_bias = false;
  s.has_one_output = w->pool.n_places == 1 && !s.from->sibling_axis;
  s.has_several_inputs = clv_node_fan_in(w->g, n) > 1;
  reach_step_reverse(w->g, k, &s);
  CLV_TRY(reach_propagate(&s, &share, err));
  found->sums_two &= s.sums_two;
  found->sums_none &= s.sums_none;
  found->is_thinned |= s.is_thinned;
  replace_absent_by_nothing(&share);
  clv_code code = reach_merge(&w->pool, (reach_profile)p, false, &w->grads[p][to], &share, err);
  reach_value_done(&share);
  return code;
}

static clv_code walk_nodes_back(backward_walk *w, uint32_t first, clv_reach *ret, clv_err *err) {
  for (int k = w->g->n_nodes; k-- > 0;) {
    const clv_node *n = &w->g->nodes[k];
    bool passes = n->op != CLV_OP_INPUT && n->layer > first;
    ret[k].sums_two = ret[k].sums_none = true;
    for (int p = 0; p < REACH_WIDE; p++) {
      if (!w->grads[p][k].element) continue;
      reach_summarize(&w->pool, &w->grads[p][k], &ret[k]);
      for (int i = 0; passes && i < n->n_in; i++)
        CLV_TRY(pass_gradient_back(w, k, i, p, &ret[k], err));
      reach_value_done(&w->grads[p][k]);
    }
  }
  return CLV_OK;
}

clv_code clv_reach_backward(const clv_graph *g, const clv_reach_layer *layers, uint32_t first,
                            clv_reach *ret, clv_err *err) {
  CLV_AUTO(backward_walk_done) backward_walk w = {.g = g, .layers = layers};
  reach_value outputs;
  memset(ret, 0, (size_t)g->n_nodes * sizeof *ret);
  for (int p = 0; p < REACH_WIDE; p++)
    CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *w.grads[p], &w.grads[p], err));
  set_output_shape(g, &outputs);
  CLV_TRY(reach_pool_init(&w.pool, (int64_t)reach_value_count(&outputs), err));
  for (int p = 0; p < REACH_WIDE; p++)
    CLV_TRY(fill_outputs(&w, &outputs, &w.grads[p][g->output_node], err));
  return walk_nodes_back(&w, first, ret, err);
}
