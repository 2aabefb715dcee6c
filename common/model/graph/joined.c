/* SPDX-License-Identifier: Apache-2.0
 *
 * Several values as one tensor: their concatenation, a row for each record. Modules have one
 * output, so a cut that several values cross, and a module with several outputs, end with a concat.
 * Readers begin with slices.
 */
#include <stdio.h>
#include <string.h>

#include "common/model/graph/graph_int.h"

int64_t clv_graph_values_per_record(const clv_node *n) {
  int64_t width = 1; /* cannot overflow, because clv_graph_add has checked the size */
  for (int i = 1; i < n->shape.rank; i++) width *= n->shape.dim[i];
  return width;
}

/* Adds a node that joins or splits values. Its layer number and name do not occur in a model, so
 * the RNG keys and names of other nodes stay the same. */
static clv_code add_glue_node(clv_graph *g, clv_op op, const clv_attrs *attrs, const int *in,
                              int n_in, int *ret, clv_err *err) {
  char name[32];
  snprintf(name, sizeof name, "-.%s%d", clv_op_name(op), g->n_nodes);
  return clv_graph_add(g, op, attrs, name, CLV_GLUE_LAYER, in, n_in, ret, err);
}

static clv_code add_reshape(clv_graph *g, int node, const clv_shape *target, int *ret,
                            clv_err *err) {
  clv_attrs attrs = {.shape = {.rank = target->rank - 1}};
  memcpy(attrs.shape.dim, target->dim + 1, (size_t)attrs.shape.rank * sizeof *target->dim);
  if (target->rank == g->nodes[node].shape.rank) return *ret = node, CLV_OK;
  return add_glue_node(g, CLV_OP_RESHAPE, &attrs, &node, 1, ret, err);
}

/* Adds nodes that concatenate the values, CLV_MAX_IN at a time. */
clv_code clv_graph_join(clv_graph *g, const int *nodes, int n, clv_err *err) {
  const clv_attrs concat_attrs = {.dim = 1};
  int in[CLV_MAX_IN] = {0}, n_in = 0;
  for (int i = 0; i < n; i++) {
    const clv_node *v = &g->nodes[nodes[i]];
    const clv_shape flat_shape = {.rank = 2,
                                  .dim = {v->shape.dim[0], clv_graph_values_per_record(v)}};
    CLV_TRY(add_reshape(g, nodes[i], &flat_shape, &in[n_in++], err));
    if (n_in < CLV_MAX_IN && i + 1 < n) continue;
    CLV_TRY(add_glue_node(g, CLV_OP_CONCAT, &concat_attrs, in, n_in, &in[0], err));
    n_in = 1;
  }
  g->output_node = in[0];
  g->nodes[in[0]].max_positions = g->nodes[nodes[0]].max_positions;
  return CLV_OK;
}

clv_code clv_graph_split(clv_graph *g, int joined, int64_t *start, const clv_shape *shape, int *ret,
                         clv_err *err) {
  clv_attrs part = {.dim = 1, .start = *start, .stop = *start};
  int64_t width = 1;
  int at;
  for (int i = 1; i < shape->rank; i++) width *= shape->dim[i];
  *start = part.stop += width;
  CLV_TRY(add_glue_node(g, CLV_OP_SLICE, &part, &joined, 1, &at, err));
  return add_reshape(g, at, shape, ret, err);
}

/* ---- outputs of a module --------------------------------------------------------------------- */

static clv_code check_output(const clv_graph *g, const int *outputs, int k, clv_err *err) {
  const clv_node *v = &g->nodes[outputs[k]];
  char shape[160];
  if (v->dtype == CLV_I64 || v->shape.rank < 2)
    return clv_fail(err, CLV_INVALID,
                    "output %d ('%s') is %s %s; of several outputs each is f32 with a row for each "
                    "record, [N, 1] at least",
                    k, v->name, clv_dtype_name(v->dtype),
                    clv_shape_format(&v->shape, shape, sizeof shape));
  if (v->shape.dim[0] != g->nodes[outputs[0]].shape.dim[0])
    return clv_fail(err, CLV_INVALID, "outputs 0 ('%s') and %d ('%s') have %lld and %lld records",
                    g->nodes[outputs[0]].name, k, v->name,
                    (long long)g->nodes[outputs[0]].shape.dim[0], (long long)v->shape.dim[0]);
  return CLV_OK;
}

clv_code clv_graph_join_outputs(clv_graph *g, const int *outputs, int n, clv_err *err) {
  for (int k = 0; k < n; k++) CLV_TRY(check_output(g, outputs, k, err));
  return clv_graph_join(g, outputs, n, err);
}

clv_code clv_graph_take_output(const clv_graph *g, const int *outputs, int k, clv_graph **ret,
                               clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *part = NULL;
  const clv_node *joined = &g->nodes[g->output_node], *v = &g->nodes[outputs[k]];
  int64_t start = 0;
  int input;
  CLV_TRY(clv_graph_new(&part, err));
  part->dtype = g->dtype;
  CLV_TRY(clv_graph_add_input(part, "input", joined->dtype, &joined->shape, &input, err));
  part->nodes[input].max_positions = joined->max_positions;
  for (int i = 0; i < k; i++) start += clv_graph_values_per_record(&g->nodes[outputs[i]]);
  CLV_TRY(clv_graph_split(part, input, &start, &v->shape, &part->output_node, err));
  *ret = clv_steal(&part);
  return CLV_OK;
}
