/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_graph_pack_sequences: conversion of a graph over padded sequences into one over packed
 * sequences, node by node: [N, S, ...] becomes [T, ...]. An op that combines positions without
 * reading the lengths is refused, because it would mix sequences.
 */
#include <string.h>

#include "common/model/graph/graph_int.h"

typedef struct packer {
  const clv_graph *source;
  clv_graph *to;
  /* index of the input node with the lengths, equal in both graphs */
  int lengths_node;
  int64_t n_positions, n_records; /* S, positions of a padded record, and N, records */
} packer;

static bool has_packed_positions(const packer *p, int node) {
  return p->to->nodes[node].max_positions;
}

static const clv_shape *shape_of_node(const packer *p, int node) {
  return &p->source->nodes[node].shape;
}

/* ---- inputs of the packed graph -------------------------------------------------------------- */

static clv_code find_lengths_node(packer *p, clv_err *err) {
  p->lengths_node = -1;
  for (int i = 0; i < p->source->n_nodes; i++) {
    int64_t n_positions =
        p->source->nodes[i].op == CLV_OP_INPUT ? clv_graph_length_limit(p->source, i) : 0;
    if (!n_positions) continue;
    if (p->lengths_node >= 0)
      return clv_fail(err, CLV_INVALID, "'%s' and '%s' are both lengths of sequences",
                      p->source->nodes[p->lengths_node].name, p->source->nodes[i].name);
    p->lengths_node = i;
    p->n_positions = n_positions;
    p->n_records = p->source->nodes[i].shape.dim[0];
  }
  if (p->lengths_node >= 0) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "no layer reads the lengths of sequences");
}

static clv_code add_input(packer *p, int i, clv_err *err) {
  const clv_node *n = &p->source->nodes[i];
  clv_shape shape = n->shape;
  bool has_positions = shape.rank > 1 && shape.dim[1] == p->n_positions;
  if (has_positions) {
    memmove(shape.dim + 1, shape.dim + 2, (size_t)(--shape.rank - 1) * sizeof *shape.dim);
    shape.dim[0] *= p->n_positions; /* cannot overflow, because extents are below 2^31 */
  }
  CLV_TRY(clv_graph_add_input(p->to, n->name, n->dtype, &shape, NULL, err));
  p->to->nodes[i].max_positions = has_positions ? p->n_positions : 0;
  return CLV_OK;
}

/* ---- ops of the packed graph ----------------------------------------------------------------- */

static bool has_attr(const clv_op_def *def, clv_attr_key key) {
  for (const clv_attr_row *row = def->attrs; row->key; row++)
    if (row->key == key) return true;
  return false;
}

static clv_code fail_not_packable(const clv_node *n, const char *why, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "layer %s: %s takes no packed sequences: %s", n->name,
                  clv_op_name(n->op), why);
}

/* Adjusts attributes that refer to dimensions, because a packed value has one dimension less.
 * Refuses an op that works along the positions. */
static clv_code adjust_dim_attrs(const packer *p, const clv_node *n, clv_attrs *attrs,
                                 clv_err *err) {
  const clv_op_def *def = clv_op_def_of(n->op);
  const clv_shape *in = shape_of_node(p, n->in[0]);
  bool works_on_last_dim = n->op == CLV_OP_EMBEDDING ? n->attrs.column >= 0 : !def->elementwise;
  if (works_on_last_dim && in->rank < 3)
    return fail_not_packable(n, "it would work along their positions", err);
  if (n->op == CLV_OP_RESHAPE) {
    if (n->shape.rank < 3 || n->shape.dim[1] != p->n_positions)
      return fail_not_packable(n, "it would move their positions", err);
    attrs->shape = (clv_shape){.rank = n->shape.rank - 2};
    memcpy(attrs->shape.dim, n->shape.dim + 2, (size_t)attrs->shape.rank * sizeof *in->dim);
  } else if (has_attr(def, CLV_ATTR_SHAPE) && n->attrs.shape.rank > in->rank - 2) {
    return fail_not_packable(n, "it would work along their positions", err);
  }
  if (!has_attr(def, CLV_ATTR_DIM)) return CLV_OK;
  int axis = clv_axis_index(&n->attrs, in);
  if (axis < 2) return fail_not_packable(n, "it would work along their positions", err);
  attrs->dim = axis - 1;
  return CLV_OK;
}

static clv_code check_all_packed(const packer *p, const clv_node *n, int n_in, clv_err *err) {
  for (int k = 0; k < n_in; k++)
    if (!has_packed_positions(p, n->in[k]))
      return fail_not_packable(n, "it also reads a value without positions", err);
  return CLV_OK;
}

/* Makes the lengths node the last input of an op. Refuses an op that already reads other lengths.
 */
static clv_code add_lengths_input(const packer *p, const clv_node *n, clv_attrs *attrs,
                                  int in[CLV_MAX_IN], int *n_in, clv_err *err) {
  int at = clv_op_def_of(n->op)->max_in - 1;
  CLV_TRY(check_all_packed(p, n, at, err));
  if (clv_op_def_of(n->op)->n_in > 1 && (n->n_in <= at || n->in[at] != p->lengths_node))
    return fail_not_packable(n, "it does not read their lengths", err);
  attrs->packed = p->n_positions;
  in[at] = p->lengths_node;
  *n_in = at + 1;
  return CLV_OK;
}

static clv_code pack_node(const packer *p, const clv_node *n, clv_attrs *attrs, int in[CLV_MAX_IN],
                          int *n_in, clv_err *err) {
  switch (clv_op_def_of(n->op)->packing) {
    case CLV_PACKS_POSITIONS:
      CLV_TRY(check_all_packed(p, n, n->n_in, err));
      return adjust_dim_attrs(p, n, attrs, err);
    case CLV_PACKS_LENGTHS:
    case CLV_PACKS_SEQUENCES:
      return add_lengths_input(p, n, attrs, in, n_in, err);
    default:
      return fail_not_packable(n, "it cannot separate one sequence from the next", err);
  }
}

/* True if node i slices out the first position, and only flatten nodes read it, as at the start of
 * a BERT pooler. */
static bool is_first_position_slice(const packer *p, int i) {
  const clv_node *n = &p->source->nodes[i];
  int64_t stop;
  if (n->op != CLV_OP_SLICE || !has_packed_positions(p, n->in[0])) return false;
  if (clv_axis_index(&n->attrs, shape_of_node(p, n->in[0])) != 1) return false;
  for (int k = i + 1; k < p->source->n_nodes; k++)
    for (int j = 0; j < p->source->nodes[k].n_in; j++)
      if (p->source->nodes[k].in[j] == i && p->source->nodes[k].op != CLV_OP_FLATTEN) return false;
  return clv_slice_start(&n->attrs, p->n_positions, &stop) == 0 && stop == 1 &&
         i != p->source->output_node;
}

static clv_code add_first_position(packer *p, int i, clv_err *err) {
  const clv_node *n = &p->source->nodes[i];
  const clv_attrs attrs = {.packed = p->n_positions, .first = true};
  const int in[] = {n->in[0], p->lengths_node};
  CLV_TRY(clv_graph_add(p->to, CLV_OP_LAST, &attrs, n->name, n->layer, in, 2, NULL, err));
  p->to->nodes[i].recompute_block = n->recompute_block;
  return CLV_OK;
}

static clv_code add_node(packer *p, int i, clv_err *err) {
  const clv_node *n = &p->source->nodes[i];
  clv_attrs attrs = n->attrs;
  int in[CLV_MAX_IN], n_in = n->n_in;
  bool has_packed_input = false;
  if (is_first_position_slice(p, i)) return add_first_position(p, i, err);
  memcpy(in, n->in, sizeof in);
  for (int k = 0; k < n->n_in; k++) has_packed_input |= has_packed_positions(p, n->in[k]);
  if (has_packed_input) CLV_TRY(pack_node(p, n, &attrs, in, &n_in, err));
  CLV_TRY(clv_graph_add(p->to, n->op, &attrs, n->name, n->layer, in, n_in, NULL, err));
  clv_node *packed_node = &p->to->nodes[i];
  packed_node->key = n->key;
  packed_node->recompute_block = n->recompute_block;
  memcpy(packed_node->tie_owner, n->tie_owner, sizeof packed_node->tie_owner);
  packed_node->tie_owner_is_outside = n->tie_owner_is_outside;
  packed_node->max_positions =
      has_packed_input && clv_op_def_of(n->op)->packing != CLV_PACKS_SEQUENCES ? p->n_positions : 0;
  return CLV_OK;
}

clv_code clv_graph_pack_sequences(const clv_graph *g, clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *to = NULL;
  packer p = {.source = g};
  CLV_TRY(find_lengths_node(&p, err));
  CLV_TRY(clv_graph_new(&to, err));
  p.to = to;
  to->dtype = g->dtype;
  for (int i = 0; i < g->n_nodes; i++)
    CLV_TRY((g->nodes[i].op == CLV_OP_INPUT ? add_input : add_node)(&p, i, err));
  to->output_node = g->output_node;
  *ret = clv_steal(&to);
  return CLV_OK;
}
