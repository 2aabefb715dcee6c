/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_divide_chain: division of a chain of layers between several nodes (Shoeybi et al.,
 * Megatron-LM, 2019, section 3). With X of n rows, A cut into columns and B into rows,
 *
 *   Y = act(X A):  Y_k = act(X A_k + a_k), and Y is the concatenation of all Y_k
 *   Z = Y B + b:   Z_k = Y_k B_k (+ b where k is 0), and Z = ((Z_0 + Z_1) + Z_2) + ...
 *
 * (a linear layer stores the transpose, so that its columns are rows of its weight). Segments are
 * joined by ordinary ops, concat or add, whose backward splits the gradient again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/graph/graph_int.h"

void clv_divided_chain_free(clv_divided_chain *d) {
  if (!d) return;
  for (uint32_t i = 0; i < d->n_segments; i++)
    for (uint32_t k = 0; k < CLV_MAX_IN; k++) clv_graph_free(d->segments[i].part_graphs[k]);
  free(d->segments);
  free(d);
}

void clv_divided_chain_freep(clv_divided_chain **d) {
  clv_divided_chain_free(*d);
  *d = NULL;
}

/* ---- layers that can be divided -------------------------------------------------------------- */

clv_code clv_divide_check_node(const clv_graph *g, int node, clv_parallel how, uint32_t n_parts,
                               clv_err *err) {
  const clv_node *n = &g->nodes[node];
  const clv_shape *in = &g->nodes[n->in[0]].shape;
  bool columns = how == CLV_PARALLEL_COLUMNS;
  int64_t extent = columns ? n->attrs.out : in->dim[in->rank - 1];
  if (how == CLV_PARALLEL_NONE) return CLV_OK;
  if (n->op != CLV_OP_LINEAR)
    return clv_fail(err, CLV_INVALID,
                    "parallel: only linear can be divided, '%s' is a %s: leave `parallel` out, and "
                    "the layer is computed once, where the parts are joined",
                    n->name, clv_op_name(n->op));
  if (extent % n_parts)
    return clv_fail(err, CLV_INVALID, "parallel: '%s' has %lld %s, which %u parts do not divide",
                    n->name, (long long)extent, columns ? "outputs" : "inputs", n_parts);
  return CLV_OK;
}

/* ---- segments of a divided chain ------------------------------------------------------------- */

typedef struct divider {
  const clv_graph *g;
  clv_divided_chain *d;
  clv_chain_segment *open_segment; /* segment that is being built; NULL before the first one */
  int last_nodes[CLV_MAX_IN];      /* [part] last node of each graph of that segment */
} divider;

static uint32_t n_graphs_of_segment(const divider *v) {
  return v->open_segment->is_sharded ? v->d->n_parts : 1;
}

static const clv_node *last_node_of_part(const divider *v, uint32_t k) {
  return &v->open_segment->part_graphs[k]->nodes[v->last_nodes[k]];
}

static bool is_in_sharded_segment(const divider *v) {
  return v->open_segment && v->open_segment->is_sharded;
}

/* Starts the next segment. Each of its graphs gets n_in inputs, which have the shape and type of
 * `value`. */
static clv_code begin_segment(divider *v, bool is_sharded, uint32_t n_in, const clv_node *value,
                              clv_err *err) {
  /* a copy, because adding nodes may move the array that contains `value` */
  clv_node value_copy = *value;
  char name[24];
  v->open_segment = &v->d->segments[v->d->n_segments++];
  v->open_segment->is_sharded = is_sharded;
  for (uint32_t k = 0; k < n_graphs_of_segment(v); k++) {
    CLV_TRY(clv_graph_new(&v->open_segment->part_graphs[k], err));
    for (uint32_t i = 0; i < n_in; i++) {
      snprintf(name, sizeof name, n_in > 1 ? "part%u" : "input", i);
      CLV_TRY(clv_graph_add_input(v->open_segment->part_graphs[k], name, value_copy.dtype,
                                  &value_copy.shape, &v->last_nodes[k], err));
    }
  }
  return CLV_OK;
}

/* Adds a copy of node `n`, with the attributes `attrs`, to the graph of part k. */
static clv_code add_node_copy(divider *v, uint32_t k, const clv_node *n, const clv_attrs *attrs,
                              clv_err *err) {
  CLV_TRY(clv_graph_add(v->open_segment->part_graphs[k], n->op, attrs, n->name, n->layer,
                        &v->last_nodes[k], 1, &v->last_nodes[k], err));
  v->open_segment->part_graphs[k]->nodes[v->last_nodes[k]].key = n->key;
  v->open_segment->part_graphs[k]->nodes[v->last_nodes[k]].recompute_block = n->recompute_block;
  return CLV_OK;
}

/* Adds a node that joins or splits values to the graph of part k. Its name begins with "-." and
 * contains the node's index, so it is unique. */
static clv_code add_glue_node(divider *v, uint32_t k, clv_op op, const clv_attr_value *values,
                              int n_values, const int *in, int n_in, clv_err *err) {
  clv_graph *g = v->open_segment->part_graphs[k];
  clv_attrs attrs;
  char name[32];
  snprintf(name, sizeof name, "-.%s%d", clv_op_name(op), g->n_nodes);
  CLV_TRY(clv_attrs_parse(op, values, n_values, &attrs, err));
  return clv_graph_add(g, op, &attrs, name, CLV_GLUE_LAYER, in, n_in, &v->last_nodes[k], err);
}

static clv_attr_value make_int_attr(clv_attr_key key, int64_t v) {
  return (clv_attr_value){.key = key, .n_ints = 1, .ints = {v}};
}

/* ---- joining the values of the parts --------------------------------------------------------- */

static clv_code join_concat(divider *v, clv_err *err) {
  clv_attr_value dim = make_int_attr(CLV_ATTR_DIM, -1);
  int in[CLV_MAX_IN];
  for (int k = 0; k < CLV_MAX_IN; k++) in[k] = k;
  return add_glue_node(v, 0, CLV_OP_CONCAT, &dim, 1, in, (int)v->d->n_parts, err);
}

/* Adds nodes that sum the values of the parts in a fixed order, so that the bits do not depend on
 * which part finishes first. */
static clv_code join_sum(divider *v, clv_err *err) {
  int in[2] = {0, 0};
  for (uint32_t k = 1; k < v->d->n_parts; k++) {
    in[1] = (int)k;
    CLV_TRY(add_glue_node(v, 0, CLV_OP_ADD, NULL, 0, in, 2, err));
    in[0] = v->last_nodes[0];
  }
  return CLV_OK;
}

static clv_code join_segments(divider *v, clv_code (*how)(divider *v, clv_err *err), clv_err *err) {
  CLV_TRY(begin_segment(v, false, v->d->n_parts, last_node_of_part(v, 0), err));
  return how(v, err);
}

/* ---- adding the layers of a chain ------------------------------------------------------------ */

/* True if each output value of the node depends on one input value only, and on no random number,
 * so that each part can compute its own values. */
static bool can_stay_sharded(const clv_node *n) {
  return clv_op_def_of(n->op)->elementwise && n->op != CLV_OP_DROPOUT;
}

static clv_code add_undivided_layer(divider *v, const clv_node *n, clv_err *err) {
  if (is_in_sharded_segment(v) && !can_stay_sharded(n)) CLV_TRY(join_segments(v, join_concat, err));
  if (!v->open_segment) CLV_TRY(begin_segment(v, false, 1, &v->g->nodes[n->in[0]], err));
  for (uint32_t k = 0; k < n_graphs_of_segment(v); k++)
    CLV_TRY(add_node_copy(v, k, n, &n->attrs, err));
  return CLV_OK;
}

static clv_code add_layer_by_columns(divider *v, const clv_node *n, clv_err *err) {
  clv_attrs attrs = n->attrs;
  attrs.out /= v->d->n_parts;
  if (is_in_sharded_segment(v)) CLV_TRY(join_segments(v, join_concat, err));
  CLV_TRY(begin_segment(v, true, 1, &v->g->nodes[n->in[0]], err));
  for (uint32_t k = 0; k < v->d->n_parts; k++) CLV_TRY(add_node_copy(v, k, n, &attrs, err));
  return CLV_OK;
}

/* Starts a sharded segment in which each part begins with its own slice of `value`. */
static clv_code slice_for_parts(divider *v, const clv_node *value, clv_err *err) {
  int64_t width = value->shape.dim[value->shape.rank - 1] / v->d->n_parts;
  CLV_TRY(begin_segment(v, true, 1, value, err));
  for (uint32_t k = 0; k < v->d->n_parts; k++) {
    clv_attr_value values[] = {make_int_attr(CLV_ATTR_DIM, -1),
                               make_int_attr(CLV_ATTR_START, k * width),
                               make_int_attr(CLV_ATTR_STOP, (k + 1) * width)};
    CLV_TRY(add_glue_node(v, k, CLV_OP_SLICE, values, 3, &v->last_nodes[k], 1, err));
  }
  return CLV_OK;
}

/* Adds a layer divided by rows to all parts, and then the sum of the parts' outputs. Only the first
 * part adds the bias. */
static clv_code add_layer_by_rows(divider *v, const clv_node *n, clv_err *err) {
  clv_attrs attrs = n->attrs;
  if (!is_in_sharded_segment(v)) CLV_TRY(slice_for_parts(v, &v->g->nodes[n->in[0]], err));
  for (uint32_t k = 0; k < v->d->n_parts; k++) {
    CLV_TRY(add_node_copy(v, k, n, &attrs, err));
    attrs.bias = false;
  }
  return join_segments(v, join_sum, err);
}

static clv_code add_layers(divider *v, const clv_parallel *how, clv_err *err) {
  static clv_code (*const add_fns[])(divider *, const clv_node *, clv_err *) = {
      [CLV_PARALLEL_NONE] = add_undivided_layer,
      [CLV_PARALLEL_COLUMNS] = add_layer_by_columns,
      [CLV_PARALLEL_ROWS] = add_layer_by_rows};
  for (int i = 1; i < v->g->n_nodes; i++) {
    if (v->g->nodes[i].op == CLV_OP_INPUT || v->g->nodes[i].n_in != 1 ||
        v->g->nodes[i].in[0] != i - 1)
      return clv_fail(err, CLV_INVALID, "only a chain of layers can be divided");
    CLV_TRY(clv_divide_check_node(v->g, i, how[i], v->d->n_parts, err));
    CLV_TRY(add_fns[how[i]](v, &v->g->nodes[i], err));
  }
  return is_in_sharded_segment(v) ? join_segments(v, join_concat, err) : CLV_OK;
}

clv_code clv_divide_chain(const clv_graph *chain, const clv_parallel *how, uint32_t n_parts,
                          clv_divided_chain **ret, clv_err *err) {
  CLV_AUTO(clv_divided_chain_freep) clv_divided_chain *d = NULL;
  if (n_parts < 2 || n_parts > CLV_MAX_IN)
    return clv_fail(err, CLV_INVALID, "a chain can be divided into 2 to %d parts, not %u",
                    CLV_MAX_IN, n_parts);
  CLV_TRY(clv_alloc(1, sizeof *d, &d, err));
  CLV_TRY(clv_alloc(2 * (size_t)chain->n_nodes, sizeof *d->segments, &d->segments, err));
  d->n_parts = n_parts;
  divider v = {.g = chain, .d = d};
  CLV_TRY(add_layers(&v, how, err));
  *ret = clv_steal(&d);
  return CLV_OK;
}

/* ---- parts of parameters --------------------------------------------------------------------- */

void clv_tensor_part_copy(const clv_tensor_part *p, void *tensor, void *part, bool into_tensor) {
  size_t outer = 1, inner = p->element_bytes;
  int axis = 0;
  while (axis < p->shape.rank && p->shape.dim[axis] == p->full_shape.dim[axis])
    outer *= (size_t)p->shape.dim[axis++];
  for (int i = axis + 1; i < p->shape.rank; i++) inner *= (size_t)p->shape.dim[i];
  bool is_cut = axis < p->shape.rank;
  size_t run_bytes = is_cut ? (size_t)p->shape.dim[axis] * inner : inner;
  size_t full_run_bytes = is_cut ? (size_t)p->full_shape.dim[axis] * inner : inner;
  for (size_t o = 0; o < outer; o++) {
    char *full_at = (char *)tensor + o * full_run_bytes + (is_cut ? p->index * run_bytes : 0),
         *part_at = (char *)part + o * run_bytes;
    memcpy(into_tensor ? full_at : part_at, into_tensor ? part_at : full_at, run_bytes);
  }
}
