/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows records in gradients (reach_walk_back). A gradient is made of the gradient after it and
 * of what derivatives read: the other factor of a product, the sign of the input of relu, the
 * position of the maximum of a window. The receiver of a gradient learns nothing new from values
 * that it knows. So the result shows what later layers have read from the records along paths that
 * do not pass through these values.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

typedef struct gradient_walk {
  reach_walk *w;
  reach_value *grads[REACH_N_PROFILES]; /* [n_nodes] gradient of each node */
  /* [n_nodes] for each node's gradient, the largest get_exposure_rank of the addends so far; a
   * larger rank shows more of the record */
  int *worst_ranks;
} gradient_walk;

static void gradient_walk_done(gradient_walk *r) {
  for (int p = 0; p < REACH_N_PROFILES; p++) {
    for (int k = 0; r->grads[p] && k < r->w->g->n_nodes; k++) reach_value_done(&r->grads[p][k]);
    free(r->grads[p]);
  }
  free(r->worst_ranks);
}

static int get_exposure_rank(const reach_set_pool *p, const reach_value *v) {
  clv_reach r = {0};
  reach_summarize_value(p, v, &r);
  if (r.has_unmixed_path) return 4;
  if (r.has_unmixed_token_path || r.has_narrow_token_element) return 3;
  return r.has_known_mixing ? 2 : r.has_narrow_element;
}

/* Adds `share`, an addend, to the gradient of node `to`, and frees it. reader_node: as in
 * clv_reach. is_direct: reader_node reads the value of `to` directly, so it replaces an earlier
 * reader node whose addend is equally exposed. */
static clv_code add_gradient_share(gradient_walk *r, int to, int p, int reader_node, bool is_direct,
                                   reach_value *share, clv_err *err) {
  int share_rank = get_exposure_rank(&r->w->pool, share);
  if (share_rank && share_rank >= r->worst_ranks[to] + !is_direct) {
    r->worst_ranks[to] = share_rank;
    r->w->results[to].reader_node = reader_node;
  }
  for (size_t i = 0; i < reach_value_element_count(share); i++)
    if (share->elements[i] == REACH_ABSENT_ELEMENT) share->elements[i] = REACH_ZERO_ELEMENT;
  clv_code code =
      reach_merge_values(&r->w->pool, (reach_profile)p, false, &r->grads[p][to], share, err);
  reach_value_done(share);
  return code;
}

/* A node that the walk back from the loss has reached, for one profile. */
typedef struct gradient_node {
  int k, p;
  reach_value grad; /* gradient of the node's output */
  /* REACH_ZERO_ELEMENT where the gradient is 0, so that the derivative has no effect there;
   * REACH_CONSTANT_ELEMENT elsewhere */
  reach_value nonzero_grad;
} gradient_node;

static void gradient_node_done(gradient_node *b) {
  reach_value_done(&b->grad);
  reach_value_done(&b->nonzero_grad);
}

static clv_code copy_value(const reach_value *from, reach_value *ret, clv_err *err) {
  *ret = *from;
  ret->elements = NULL;
  CLV_TRY(reach_value_alloc(ret, err));
  memcpy(ret->elements, from->elements, reach_value_element_count(from) * sizeof *ret->elements);
  return CLV_OK;
}

/* Prepares a node for the walk back. If its op normalizes, all elements that the op normalizes
 * together get a gradient. */
static clv_code prepare_node(gradient_walk *r, gradient_node *b, clv_err *err) {
  const clv_graph *g = r->w->g;
  const reach_op *op = reach_get_op_row(g->nodes[b->k].op);
  const reach_value *grad = &r->grads[b->p][b->k];
  reach_relation relation = {0};
  reach_step s = {.pool = &r->w->pool, .relation = &relation, .from = grad, .to = grad->shape};
  reach_value spread_grad = {0};
  clv_op_site site;
  reach_describe_op(g, b->k, &site);
  if (op->relate_spread) op->relate_spread(&site, &relation);
  CLV_TRY(op->relate_spread ? reach_propagate(&s, &b->nonzero_grad, err)
                            : copy_value(grad, &b->nonzero_grad, err));
  for (size_t i = 0; i < reach_value_element_count(&b->nonzero_grad); i++)
    if (b->nonzero_grad.elements[i] != REACH_ZERO_ELEMENT)
      b->nonzero_grad.elements[i] = REACH_CONSTANT_ELEMENT;
  CLV_TRY(copy_value(grad, &b->grad, err));
  if (!op->relate_spread) return CLV_OK;
  CLV_TRY(copy_value(&b->nonzero_grad, &spread_grad, err));
  clv_code code =
      reach_merge_values(&r->w->pool, (reach_profile)b->p, false, &b->grad, &spread_grad, err);
  reach_value_done(&spread_grad);
  return code;
}

/* Adds to the gradient of a node's input i the addend that is made of `from`, elements at the
 * node's output. */
static clv_code add_input_share(gradient_walk *r, const gradient_node *b, int i, int reader_node,
                                const reach_value *from, clv_err *err) {
  const clv_graph *g = r->w->g;
  int to = g->nodes[b->k].in[i];
  reach_relation relation;
  reach_step s = reach_make_step(g, b->k, i, &r->w->pool, r->w->layer_secrecy, &relation);
  reach_value share = {0};
  if (relation.is_independent) return CLV_OK;
  s.from = from;
  s.is_backward = true;
  s.is_widest = b->p == REACH_PROFILE_WIDE;
  s.to = reach_node_shape(g, to);
  s.has_bias = false;
  reach_reverse_step(g, b->k, &s);
  CLV_TRY(reach_propagate(&s, &share, err));
  return add_gradient_share(r, to, b->p, reader_node, reader_node == b->k, &share, err);
}

static bool has_zero_element(const reach_value *v) {
  for (size_t i = 0; i < reach_value_element_count(v); i++)
    if (v->elements[i] == REACH_ZERO_ELEMENT) return true;
  return false;
}

/* Adds the other factor of a product to the gradient of input i, by the relation that the op has
 * for this (relate_back). If part of the gradient is 0, that relation does not say which addends
 * remain, so each element counts as exposed and as narrow as the worst element of the factor. */
static clv_code add_factor_share(gradient_walk *r, const gradient_node *b, int i, reach_step *s,
                                 clv_err *err) {
  const clv_graph *g = r->w->g;
  int to = g->nodes[b->k].in[i];
  reach_relation relation = {0};
  reach_value share = {0};
  clv_op_site site;
  reach_describe_op(g, b->k, &site);
  reach_get_op_row(g->nodes[b->k].op)->relate_back(&site, i, &relation);
  s->relation = &relation;
  s->to = reach_node_shape(g, to);
  CLV_TRY(has_zero_element(&b->nonzero_grad) ? reach_propagate_worst_case(s, &share, err)
                                             : reach_propagate(s, &share, err));
  return add_gradient_share(r, to, b->p, b->k, true, &share, err);
}

/* Adds to the gradient of input i the elements of input `of` that the derivative of the op
 * reads. */
static clv_code add_read_share(gradient_walk *r, const gradient_node *b, int i, int of,
                               clv_err *err) {
  const clv_graph *g = r->w->g;
  reach_relation relation;
  reach_step s = reach_make_step(g, b->k, of, &r->w->pool, r->w->layer_secrecy, &relation);
  reach_value share = {0}, nonzero_grad = {0};
  s.from = &r->w->values[b->p][g->nodes[b->k].in[of]];
  s.is_widest = b->p == REACH_PROFILE_WIDE;
  if (reach_get_op_row(g->nodes[b->k].op)->relate_back) return add_factor_share(r, b, i, &s, err);
  if (relation.is_independent) return CLV_OK;
  CLV_TRY(reach_propagate(&s, &share, err));
  clv_code code = copy_value(&b->nonzero_grad, &nonzero_grad, err);
  if (code == CLV_OK)
    code = reach_merge_values(&r->w->pool, (reach_profile)b->p, true, &share, &nonzero_grad, err);
  if (code == CLV_OK) code = add_input_share(r, b, i, b->k, &share, err);
  reach_value_done(&nonzero_grad);
  reach_value_done(&share);
  return code;
}

static clv_code pass_gradient_of_node(gradient_walk *r, int k, int p, clv_err *err) {
  const clv_graph *g = r->w->g;
  const clv_node *n = &g->nodes[k];
  CLV_AUTO(gradient_node_done) gradient_node b = {.k = k, .p = p};
  if (reach_is_constant(g, k)) return CLV_OK;
  CLV_TRY(prepare_node(r, &b, err));
  for (int i = 0; i < n->n_in; i++) {
    if (g->nodes[n->in[i]].dtype == CLV_I64) continue;
    CLV_TRY(add_input_share(r, &b, i, r->w->results[k].reader_node, &b.grad, err));
    for (int of = 0; of < n->n_in; of++)
      if (reach_get_op_row(n->op)->derivative_reads(i, of))
        CLV_TRY(add_read_share(r, &b, i, of, err));
  }
  return CLV_OK;
}

/* Starts the walk at the model's output: the derivative of the loss depends on the output, and may
 * be different from 0 at each of its elements. */
static clv_code set_output_gradient(gradient_walk *r, clv_err *err) {
  reach_walk *w = r->w;
  int k = w->g->output_node;
  for (int p = 0; p < REACH_N_PROFILES; p++) {
    reach_value *grad = &r->grads[p][k];
    CLV_TRY(copy_value(&w->values[p][k], grad, err));
    for (size_t i = 0; i < reach_value_element_count(grad); i++)
      if (grad->elements[i] == REACH_ZERO_ELEMENT) grad->elements[i] = REACH_CONSTANT_ELEMENT;
    r->worst_ranks[k] = CLV_MAX(r->worst_ranks[k], get_exposure_rank(&w->pool, grad));
  }
  return CLV_OK;
}

clv_code reach_walk_back(reach_walk *w, clv_err *err) {
  CLV_AUTO(gradient_walk_done) gradient_walk r = {.w = w};
  size_t n = (size_t)w->g->n_nodes;
  for (int p = 0; p < REACH_N_PROFILES; p++)
    CLV_TRY(clv_alloc(n, sizeof *r.grads[p], &r.grads[p], err));
  CLV_TRY(clv_alloc(n, sizeof *r.worst_ranks, &r.worst_ranks, err));
  for (size_t k = 0; k < n; k++) w->results[k] = (clv_reach){.reader_node = -1};
  CLV_TRY(set_output_gradient(&r, err));
  for (int k = (int)n; k-- > 0;) {
    bool passes_gradient =
        w->g->nodes[k].op != CLV_OP_INPUT && w->g->nodes[k].layer > w->gradient_end_layer;
    for (int p = 0; p < REACH_N_PROFILES; p++) {
      if (!r.grads[p][k].elements) continue;
      reach_summarize_value(&w->pool, &r.grads[p][k], &w->results[k]);
      if (passes_gradient) CLV_TRY(pass_gradient_of_node(&r, k, p, err));
      reach_value_done(&r.grads[p][k]);
    }
  }
  return CLV_OK;
}
