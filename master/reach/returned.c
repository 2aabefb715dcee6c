/* SPDX-License-Identifier: Apache-2.0
 *
 * Follows records in gradients (reach_walk_back). A gradient is made of the gradient after it and
 * of what derivatives read: the other factor of a product, the sign of the input of relu, the
 * position of the maximum of a window. The receiver of a gradient learns nothing new from values
 * that it knows. So the result shows what later layers have read from the records through other
 * paths.
 */
#include <stdlib.h>
#include <string.h>

#include "master/reach/reach_int.h"

typedef struct returned_walk {
  reach_walk *w;
  reach_value *grads[REACH_PROFILES]; /* [n_nodes] gradient of each node */
  /* [n_nodes] badness (get_badness) of the worst share of each gradient so far */
  int *worst;
} returned_walk;

static void returned_walk_done(returned_walk *r) {
  for (int p = 0; p < REACH_PROFILES; p++) {
    for (int k = 0; r->grads[p] && k < r->w->g->n_nodes; k++) reach_value_done(&r->grads[p][k]);
    free(r->grads[p]);
  }
  free(r->worst);
}

static int get_badness(const reach_pool *p, const reach_value *v) {
  clv_reach r = {0};
  reach_summarize(p, v, &r);
  if (r.is_unmixed) return 4;
  if (r.is_unmixed_token || r.has_narrow_token_element) return 3;
  return r.has_known_mixing ? 2 : r.has_narrow_element;
}

/* Adds a share to the gradient of node `to` and frees the share. reader: as in clv_reach.
 * is_direct: the reader reads the value of `to` directly; it then replaces an equally bad
 * reader. */
static clv_code add_share(returned_walk *r, int to, int p, int reader, bool is_direct,
                          reach_value *share, clv_err *err) {
  int share_badness = get_badness(&r->w->pool, share);
  if (share_badness && share_badness >= r->worst[to] + !is_direct) {
    r->worst[to] = share_badness;
    r->w->results[to].reader = reader;
  }
  for (size_t i = 0; i < reach_value_count(share); i++)
    if (share->element[i] == REACH_ABSENT) share->element[i] = REACH_NOTHING;
  clv_code code = reach_merge(&r->w->pool, (reach_profile)p, false, &r->grads[p][to], share, err);
  reach_value_done(share);
  return code;
}

/* A node at which the walk back from the loss has arrived. */
typedef struct back_node {
  int k, p;
  reach_value grad; /* gradient of the node's output */
  /* elements of the gradient; REACH_NOTHING where the gradient is 0, so that the derivative has no
   * effect there */
  reach_value nonzero_grad;
} back_node;

static void back_node_done(back_node *b) {
  reach_value_done(&b->grad);
  reach_value_done(&b->nonzero_grad);
}

static clv_code copy_value(const reach_value *from, reach_value *ret, clv_err *err) {
  *ret = *from;
  ret->element = NULL;
  CLV_TRY(reach_value_alloc(ret, err));
  memcpy(ret->element, from->element, reach_value_count(from) * sizeof *ret->element);
  return CLV_OK;
}

/* Prepares a node for the walk back. If its op normalizes, all elements that it normalizes together
 * get a gradient. */
static clv_code open_node(returned_walk *r, back_node *b, clv_err *err) {
  const clv_graph *g = r->w->g;
  const reach_op *op = reach_op_of(g->nodes[b->k].op);
  const reach_value *grad = &r->grads[b->p][b->k];
  reach_relation relation = {0};
  reach_step s = {.pool = &r->w->pool, .relation = &relation, .from = grad, .to = grad->shape};
  reach_value other = {0};
  clv_op_site site;
  reach_op_site(g, b->k, &site);
  if (op->spread) op->spread(&site, &relation);
  CLV_TRY(op->spread ? reach_propagate(&s, &b->nonzero_grad, err)
                     : copy_value(grad, &b->nonzero_grad, err));
  for (size_t i = 0; i < reach_value_count(&b->nonzero_grad); i++)
    if (b->nonzero_grad.element[i] != REACH_NOTHING) b->nonzero_grad.element[i] = REACH_CONSTANT;
  CLV_TRY(copy_value(grad, &b->grad, err));
  if (!op->spread) return CLV_OK;
  CLV_TRY(copy_value(&b->nonzero_grad, &other, err));
  clv_code code = reach_merge(&r->w->pool, (reach_profile)b->p, false, &b->grad, &other, err);
  reach_value_done(&other);
  return code;
}

/* Adds the share that `from`, elements at the output of a node, has in the gradient of the node's
 * input i. */
static clv_code add_input_share(returned_walk *r, const back_node *b, int i, int reader,
                                const reach_value *from, clv_err *err) {
  const clv_graph *g = r->w->g;
  int to = g->nodes[b->k].in[i];
  reach_relation relation;
  reach_step s = reach_step_of(g, b->k, i, &r->w->pool, r->w->layers, &relation);
  reach_value share = {0};
  if (relation.is_independent) return CLV_OK;
  s.from = from;
  s.is_backward = true;
  s.is_widest = b->p == REACH_WIDE;
  s.to = reach_shape(g, to);
  s.has_bias = false;
  reach_step_reverse(g, b->k, &s);
  CLV_TRY(reach_propagate(&s, &share, err));
  return add_share(r, to, b->p, reader, reader == b->k, &share, err);
}

static bool is_nothing(const reach_value *v) {
  for (size_t i = 0; i < reach_value_count(v); i++)
    if (v->element[i] == REACH_NOTHING) return true;
  return false;
}

/* Adds the other factor of a product by the op's own backward relation. If part of the gradient is
 * 0, that relation does not say which addends remain, so each element counts as a sum of one. */
static clv_code read_directly(returned_walk *r, const back_node *b, int i, reach_step *s,
                              clv_err *err) {
  const clv_graph *g = r->w->g;
  int to = g->nodes[b->k].in[i];
  reach_relation relation = {0};
  reach_value share = {0};
  clv_op_site site;
  reach_op_site(g, b->k, &site);
  reach_op_of(g->nodes[b->k].op)->back(&site, i, &relation);
  s->relation = &relation;
  s->to = reach_shape(g, to);
  CLV_TRY(is_nothing(&b->nonzero_grad) ? reach_give_up(s, &share, err)
                                       : reach_propagate(s, &share, err));
  return add_share(r, to, b->p, b->k, true, &share, err);
}

/* Adds to the gradient of input i the elements of input `of` that the derivative reads. */
static clv_code read_factor(returned_walk *r, const back_node *b, int i, int of, clv_err *err) {
  const clv_graph *g = r->w->g;
  reach_relation relation;
  reach_step s = reach_step_of(g, b->k, of, &r->w->pool, r->w->layers, &relation);
  reach_value share = {0}, nonzero_grad = {0};
  s.from = &r->w->values[b->p][g->nodes[b->k].in[of]];
  s.is_widest = b->p == REACH_WIDE;
  if (reach_op_of(g->nodes[b->k].op)->back) return read_directly(r, b, i, &s, err);
  if (relation.is_independent) return CLV_OK;
  CLV_TRY(reach_propagate(&s, &share, err));
  clv_code code = copy_value(&b->nonzero_grad, &nonzero_grad, err);
  if (code == CLV_OK)
    code = reach_merge(&r->w->pool, (reach_profile)b->p, true, &share, &nonzero_grad, err);
  if (code == CLV_OK) code = add_input_share(r, b, i, b->k, &share, err);
  reach_value_done(&nonzero_grad);
  reach_value_done(&share);
  return code;
}

static clv_code walk_node(returned_walk *r, int k, int p, clv_err *err) {
  const clv_graph *g = r->w->g;
  const clv_node *n = &g->nodes[k];
  CLV_AUTO(back_node_done) back_node b = {.k = k, .p = p};
  if (reach_is_constant(g, k)) return CLV_OK;
  CLV_TRY(open_node(r, &b, err));
  for (int i = 0; i < n->n_in; i++) {
    if (g->nodes[n->in[i]].dtype == CLV_I64) continue;
    CLV_TRY(add_input_share(r, &b, i, r->w->results[k].reader, &b.grad, err));
    for (int of = 0; of < n->n_in; of++)
      if (reach_op_of(n->op)->reads(i, of)) CLV_TRY(read_factor(r, &b, i, of, err));
  }
  return CLV_OK;
}

/* Starts the walk at the model's output: the derivative of the loss depends on the output, and may
 * be different from 0 at each of its elements. */
static clv_code begin_at_output(returned_walk *r, clv_err *err) {
  reach_walk *w = r->w;
  int k = w->g->output_node;
  for (int p = 0; p < REACH_PROFILES; p++) {
    reach_value *grad = &r->grads[p][k];
    CLV_TRY(copy_value(&w->values[p][k], grad, err));
    for (size_t i = 0; i < reach_value_count(grad); i++)
      if (grad->element[i] == REACH_NOTHING) grad->element[i] = REACH_CONSTANT;
    r->worst[k] = CLV_MAX(r->worst[k], get_badness(&w->pool, grad));
  }
  return CLV_OK;
}

clv_code reach_walk_back(reach_walk *w, clv_err *err) {
  CLV_AUTO(returned_walk_done) returned_walk r = {.w = w};
  size_t n = (size_t)w->g->n_nodes;
  for (int p = 0; p < REACH_PROFILES; p++)
    CLV_TRY(clv_alloc(n, sizeof *r.grads[p], &r.grads[p], err));
  CLV_TRY(clv_alloc(n, sizeof *r.worst, &r.worst, err));
  for (size_t k = 0; k < n; k++) w->results[k] = (clv_reach){.reader = -1};
  CLV_TRY(begin_at_output(&r, err));
  for (int k = (int)n; k-- > 0;) {
    bool passes = w->g->nodes[k].op != CLV_OP_INPUT && w->g->nodes[k].layer > w->gradient_end_layer;
    for (int p = 0; p < REACH_PROFILES; p++) {
      if (!r.grads[p][k].element) continue;
      reach_summarize(&w->pool, &r.grads[p][k], &w->results[k]);
      if (passes) CLV_TRY(walk_node(&r, k, p, err));
      reach_value_done(&r.grads[p][k]);
    }
  }
  return CLV_OK;
}
