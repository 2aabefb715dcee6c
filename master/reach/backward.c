/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows labels from the loss backwards (clv_reach_backward): of which outputs' gradients each
 * element of a gradient is made. Each output of the model is a place of its own, since the gradient
 * of one output shows its label.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

enum { MAX_OUTPUTS = 1 << 18 }; /* of a model with more, those of one row count as one place */

typedef struct walk_back {
  const clv_graph *g;
  const clv_reach_layer *layers;
  reach_pool pool;
  reach_value *grads[REACH_WIDE]; /* [n_nodes] of the profiles REACH_EXPOSED and REACH_NARROW */
} walk_back;

static void walk_back_done(walk_back *w) {
  for (int p = 0; p < REACH_WIDE; p++) {
    for (int k = 0; w->grads[p] && k < w->g->n_nodes; k++) reach_value_done(&w->grads[p][k]);
    free(w->grads[p]);
  }
  reach_pool_done(&w->pool);
}

/* Makes the gradient of the output: one element for each output, or for each row of many. */
static void shape_outputs(const clv_graph *g, reach_value *ret) {
  int64_t n = 1;
  *ret = (reach_value){.shape = reach_shape(g, g->output)};
  for (int i = 0; i < CLV_MAX_RANK; i++) {
    ret->kept[i] = i < ret->shape.rank ? ret->shape.dim[i] : 1;
    n = n > MAX_OUTPUTS ? n : n * ret->kept[i];
  }
  if (n <= MAX_OUTPUTS) return;
  ret->siblings = ret->shape.rank - 1;
  ret->kept[ret->siblings] = 1;
}

static clv_code fill_outputs(walk_back *w, const reach_value *form, reach_value *ret,
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

static void no_path_is_nothing(reach_value *v) {
  for (size_t i = 0; i < reach_value_count(v); i++)
    if (v->element[i] == REACH_ABSENT) v->element[i] = REACH_NOTHING;
}

/* Adds the gradient of input i of node k to those from the other readers of that value. */
static clv_code pass_back(walk_back *w, int k, int i, int p, clv_reach *found, clv_err *err) {
  const clv_node *n = &w->g->nodes[k];
  reach_relation relation;
  reach_step s = reach_step_of(w->g, k, i, &w->pool, w->layers, &relation);
  reach_value share = {0};
  int to = n->in[i];
  if (relation.none || w->g->nodes[to].dtype == CLV_I64 || reach_is_constant(w->g, k))
    return CLV_OK;
  s.from = &w->grads[p][k];
  s.back = s.labels = true;
  s.to = reach_shape(w->g, to);
  s.constant = false;
  s.scalar = w->pool.places == 1 && !s.from->siblings;
  s.several = clv_node_fan_in(w->g, n) > 1;
  reach_step_reverse(w->g, k, &s);
  CLV_TRY(reach_propagate(&s, &share, err));
  found->sums &= s.sums;
  found->sums_none &= s.sums_none;
  found->thinned |= s.thinned;
  no_path_is_nothing(&share);
  clv_code code = reach_merge(&w->pool, (reach_profile)p, false, &w->grads[p][to], &share, err);
  reach_value_done(&share);
  return code;
}

static clv_code walk_nodes_back(walk_back *w, uint32_t first, clv_reach *ret, clv_err *err) {
  for (int k = w->g->n_nodes; k-- > 0;) {
    const clv_node *n = &w->g->nodes[k];
    bool passes = n->op != CLV_OP_INPUT && n->layer > first;
    ret[k].sums = ret[k].sums_none = true;
    for (int p = 0; p < REACH_WIDE; p++) {
      if (!w->grads[p][k].element) continue;
      reach_summarize(&w->pool, &w->grads[p][k], &ret[k]);
      for (int i = 0; passes && i < n->n_in; i++) CLV_TRY(pass_back(w, k, i, p, &ret[k], err));
      reach_value_done(&w->grads[p][k]);
    }
  }
  return CLV_OK;
}

clv_code clv_reach_backward(const clv_graph *g, const clv_reach_layer *layers, uint32_t first,
                            clv_reach *ret, clv_err *err) {
  CLV_AUTO(walk_back_done) walk_back w = {.g = g, .layers = layers};
  reach_value outputs;
  memset(ret, 0, (size_t)g->n_nodes * sizeof *ret);
  for (int p = 0; p < REACH_WIDE; p++)
    CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *w.grads[p], &w.grads[p], err));
  shape_outputs(g, &outputs);
  CLV_TRY(reach_pool_init(&w.pool, (int64_t)reach_value_count(&outputs), err));
  for (int p = 0; p < REACH_WIDE; p++)
    CLV_TRY(fill_outputs(&w, &outputs, &w.grads[p][g->output], err));
  return walk_nodes_back(&w, first, ret, err);
}
