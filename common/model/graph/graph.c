/* SPDX-License-Identifier: Apache-2.0
 *
 * Building a graph. clv_graph_add checks a node and infers its shape at once, so that a graph is
 * consistent at any time, whether a session file, a program or a peer's message describes it.
 */
#include "common/model/graph/graph_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* largest layer number that key.layer can hold beside the bits of the slot */
enum { LAYER_MAX = (1 << (32 - RNG_SLOT_BITS)) - 1 };

clv_code clv_graph_new(clv_graph **ret, clv_err *err) {
  clv_graph *g;
  CLV_TRY(clv_alloc(1, sizeof *g, &g, err));
  g->output_node = -1;
  g->dtype = CLV_F32;
  *ret = g;
  return CLV_OK;
}

clv_graph *clv_graph_free(clv_graph *g) {
  if (g) free(g->nodes);
  free(g);
  return NULL;
}

void clv_graph_freep(clv_graph **g) { *g = clv_graph_free(*g); }

static bool is_float_dtype(clv_dtype dtype) { return dtype == CLV_F32 || dtype == CLV_F64; }

void clv_node_get_site(const clv_graph *g, const clv_node *node, clv_op_site *ret) {
  *ret = (clv_op_site){.attrs = &node->attrs, .n_in = node->n_in};
  for (int i = 0; i < node->n_in; i++) {
    ret->in[i] = g->nodes[node->in[i]].shape;
    ret->in_dtype[i] = g->nodes[node->in[i]].dtype;
  }
}

int clv_node_get_slots(const clv_graph *g, const clv_node *node, clv_slot ret[CLV_MAX_PARAMS]) {
  const clv_op_def *def = clv_op_def_of(node->op);
  clv_op_site site;
  if (!def || !def->slots) return 0;
  clv_node_get_site(g, node, &site);
  return def->slots(&site, ret);
}

int64_t clv_node_fan_in(const clv_graph *g, const clv_node *node) {
  clv_op_site site;
  if (node->op == CLV_OP_INPUT) return 0;
  clv_node_get_site(g, node, &site);
  return clv_op_fan_in(node->op, &site);
}

static clv_code check_dtypes(const clv_op_def *def, const clv_op_site *s, clv_err *err) {
  for (int i = 0; i < s->n_in; i++) {
    const char *int_text = clv_op_int_input_text(def, i);
    if (int_text ? s->in_dtype[i] != CLV_I64 : !is_float_dtype(s->in_dtype[i]))
      return clv_fail(
          err, CLV_INVALID, "%s needs %s as input %d, got %s%s", def->name,
          int_text ? int_text : "a float tensor", i, clv_dtype_name(s->in_dtype[i]),
          int_text ? " (in files whole numbers are <i4 or <i8)" : " (in files floats are <f4)");
    if (!int_text && s->in_dtype[i] != s->in_dtype[0])
      return clv_fail(err, CLV_INVALID, "%s has inputs of different dtypes, %s and %s", def->name,
                      clv_dtype_name(s->in_dtype[0]), clv_dtype_name(s->in_dtype[i]));
  }
  return CLV_OK;
}

/* Refuses ops for tests, which only keep a compute thread busy, unless CLEAVE_TEST_OPS=1 is in the
 * environment. */
static clv_code check_test_op_allowed(const clv_op_def *def, clv_err *err) {
  const char *on = getenv("CLEAVE_TEST_OPS");
  if (!def->is_test_only || (on && strcmp(on, "1") == 0)) return CLV_OK;
  return clv_fail(err, CLV_DENIED,
                  "%s is an op for tests: it needs a process that was started with "
                  "CLEAVE_TEST_OPS=1 in its environment",
                  def->name);
}

static clv_code check_param_has_values(const clv_op_def *def, const clv_op_site *site,
                                       const clv_slot *slot, clv_err *err) {
  char in[160], of[160];
  if (clv_layout_numel(&slot->shape, 1)) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "%s on %s has a parameter '%s' %s without values", def->name,
                  clv_shape_format(&site->in[0], in, sizeof in), slot->suffix,
                  clv_shape_format(&slot->shape, of, sizeof of));
}

/* Infers shape and type of a node from the shapes and types of its inputs, and checks them. */
static clv_code infer_shape_of_node(const clv_graph *g, clv_node *node, clv_err *err) {
  const clv_op_def *def = clv_op_def_of(node->op);
  clv_op_site site;
  clv_slot slots[CLV_MAX_PARAMS];
  clv_shape shape;
  clv_node_get_site(g, node, &site);
  CLV_TRY(check_dtypes(def, &site, err));
  CLV_TRY(def->shape(&site, &shape, err));
  clv_dtype dtype = def->takes_row_numbers ? g->dtype : site.in_dtype[0];
  CLV_TRY(clv_check_shape_and_dtype("the output", &shape, dtype, err));
  int n = def->slots ? def->slots(&site, slots) : 0;
  if (n > def->max_params)
    return clv_fail(err, CLV_INTERNAL, "%s has %d parameters, its row says %d at most", def->name,
                    n, def->max_params);
  for (int i = 0; i < n; i++) {
    CLV_TRY(check_param_has_values(def, &site, &slots[i], err));
    CLV_TRY(clv_check_shape_and_dtype(slots[i].suffix, &slots[i].shape, dtype, err));
  }
  node->shape = shape;
  node->dtype = dtype;
  return CLV_OK;
}

static clv_code check_name(const clv_graph *g, const char *name, clv_err *err) {
  static const char legal[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  size_t len = strlen(name);
  if (len == 0 || len >= CLV_NAME_MAX)
    return clv_fail(err, CLV_INVALID, "a node's name has 1 to %d characters, '%.64s' has %zu",
                    CLV_NAME_MAX - 1, name, len);
  if (strspn(name, legal) != len)
    return clv_fail(err, CLV_INVALID,
                    "a node's name consists of [A-Za-z0-9_.-]; '%s' has another character", name);
  for (int i = 0; i < g->n_nodes; i++)
    if (strcmp(g->nodes[i].name, name) == 0)
      return clv_fail(err, CLV_EXISTS, "two nodes have the name '%s': give one of them another",
                      name);
  return CLV_OK;
}

static clv_code append_node(clv_graph *g, const clv_node *node, int *ret_node, clv_err *err) {
  if (g->n_nodes == g->cap) {
    int cap = CLV_MIN(CLV_MAX(g->cap * 2, 16), CLV_MAX_NODES);
    clv_node *nodes;
    if (g->n_nodes >= CLV_MAX_NODES)
      return clv_fail(err, CLV_EXHAUSTED, "a graph has at most %d nodes", CLV_MAX_NODES);
    CLV_TRY(clv_alloc((size_t)cap, sizeof *nodes, &nodes, err));
    if (g->nodes) memcpy(nodes, g->nodes, (size_t)g->n_nodes * sizeof *nodes);
    free(g->nodes);
    g->nodes = nodes;
    g->cap = cap;
  }
  g->nodes[g->n_nodes] = *node;
  g->output_node = g->n_nodes;
  if (ret_node) *ret_node = g->n_nodes;
  g->n_nodes++;
  return CLV_OK;
}

clv_code clv_graph_add_input(clv_graph *g, const char *name, clv_dtype dtype,
                             const clv_shape *shape, int *ret_node, clv_err *err) {
  clv_node node = {.op = CLV_OP_INPUT, .dtype = dtype, .shape = *shape};
  int inputs = 0;
  CLV_TRY(check_name(g, name, err));
  for (int i = 0; i < g->n_nodes; i++) inputs += g->nodes[i].op == CLV_OP_INPUT;
  if (inputs >= CLV_MAX_INPUTS)
    return clv_fail(err, CLV_EXHAUSTED, "a graph has at most %d inputs", CLV_MAX_INPUTS);
  if (!is_float_dtype(dtype) && dtype != CLV_I64)
    return clv_fail(err, CLV_INVALID, "input '%s' is %s; graphs take f32, f64 and i64", name,
                    clv_dtype_name(dtype));
  if (clv_check_shape_and_dtype("its shape", shape, dtype, err) != CLV_OK)
    return clv_err_prefix(err, "input '%s'", name);
  memcpy(node.name, name, strlen(name) + 1);
  return append_node(g, &node, ret_node, err);
}

static clv_code check_inputs(const clv_graph *g, const clv_op_def *def, const int *in, int n_in,
                             clv_err *err) {
  int max_inputs = CLV_MAX(def->max_in, def->n_in);
  if (n_in < def->n_in || n_in > max_inputs)
    return max_inputs > def->n_in ? clv_fail(err, CLV_INVALID, "%s takes %d to %d inputs, got %d",
                                             def->name, def->n_in, max_inputs, n_in)
                                  : clv_fail(err, CLV_INVALID, "%s takes %d input%s, got %d",
                                             def->name, def->n_in, def->n_in == 1 ? "" : "s", n_in);
  for (int i = 0; i < n_in; i++)
    if (in[i] < 0 || in[i] >= g->n_nodes)
      return clv_fail(err, CLV_INVALID, "input %d of %s is node %d, there are %d before it", i,
                      def->name, in[i], g->n_nodes);
  return CLV_OK;
}

static clv_code check_and_add_node(clv_graph *g, const clv_op_def *def, clv_node *node,
                                   const int *in, int n_in, int *ret_node, clv_err *err) {
  CLV_TRY(check_test_op_allowed(def, err));
  CLV_TRY(check_inputs(g, def, in, n_in, err));
  CLV_TRY(clv_attrs_check(node->op, &node->attrs, err));
  node->n_in = n_in;
  memcpy(node->in, in, (size_t)n_in * sizeof in[0]);
  CLV_TRY(infer_shape_of_node(g, node, err));
  CLV_TRY(append_node(g, node, ret_node, err));
  g->has_per_input_batches |=
      node->op == CLV_OP_CONCAT && clv_axis_index(&node->attrs, &node->shape) == 0;
  g->has_per_input_batches |= node->attrs.packed > 0;
  return CLV_OK;
}

clv_code clv_graph_add(clv_graph *g, clv_op op, const clv_attrs *attrs, const char *name,
                       uint32_t layer, const int *in, int n_in, int *ret_node, clv_err *err) {
  const clv_op_def *def = clv_op_def_of(op);
  clv_node node = {.op = op, .layer = layer};
  if (!def) return clv_fail(err, CLV_INVALID, "unknown op number %d", (int)op);
  if (layer > LAYER_MAX)
    return clv_fail(err, CLV_INVALID, "layer %" PRIu32 " is above %d", layer, LAYER_MAX);
  if (!name || !*name)
    snprintf(node.name, sizeof node.name, "%" PRIu32, layer);
  else
    snprintf(node.name, sizeof node.name, "%s", name);
  CLV_TRY(check_name(g, name && *name ? name : node.name, err));
  if (attrs) node.attrs = *attrs;
  if (check_and_add_node(g, def, &node, in, n_in, ret_node, err) != CLV_OK)
    return clv_err_prefix(err, "layer %s", node.name);
  return CLV_OK;
}

/* ---- ties between parameters ----------------------------------------------------------------- */

/* Gets the first parameter slot of a node, the one that a tie shares. Returns false if the node has
 * no parameter, or a buffer as its first one. */
static bool get_first_param_slot(const clv_graph *g, const clv_node *n, clv_slot *ret) {
  clv_slot slots[CLV_MAX_PARAMS];
  if (!clv_node_get_slots(g, n, slots) || slots[0].is_buffer) return false;
  *ret = slots[0];
  return true;
}

static clv_code fail_no_parameter(const clv_node *n, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "layer %s (%s) has no trainable parameter that could be tied",
                  n->name, clv_op_name(n->op));
}

static clv_code check_tie_owner(const clv_graph *g, const clv_node *n, const clv_node *owner,
                                clv_err *err) {
  clv_slot slot, owner_slot;
  char shape_text[160], owner_shape_text[160];
  if (!get_first_param_slot(g, owner, &owner_slot)) return fail_no_parameter(owner, err);
  if (owner == n || owner->tie_owner[0])
    return clv_fail(err, CLV_INVALID, "layer %s is tied to '%s', which %s%s", n->name, owner->name,
                    owner == n ? "is itself" : "is tied to ", owner == n ? "" : owner->tie_owner);
  if (get_first_param_slot(g, n, &slot) && clv_shape_equal(&slot.shape, &owner_slot.shape))
    return CLV_OK;
  return clv_fail(err, CLV_INVALID, "layer %s has a %s %s, and is tied to '%s', which has %s",
                  n->name, slot.suffix,
                  clv_shape_format(&slot.shape, shape_text, sizeof shape_text), owner->name,
                  clv_shape_format(&owner_slot.shape, owner_shape_text, sizeof owner_shape_text));
}

static clv_code check_tie_owner_in_graph(const clv_graph *g, const clv_node *n, const char *owner,
                                         clv_err *err) {
  for (int i = 0; i < g->n_nodes; i++)
    if (strcmp(g->nodes[i].name, owner) == 0) return check_tie_owner(g, n, &g->nodes[i], err);
  return clv_fail(err, CLV_INVALID, "layer %s is tied to '%s', but no layer has that name", n->name,
                  owner);
}

/* Refuses to tie a node to which another node is tied, because ties must not form chains. */
static clv_code check_owns_no_tie(const clv_graph *g, const clv_node *n, clv_err *err) {
  for (int i = 0; i < g->n_nodes; i++)
    if (!g->nodes[i].tie_owner_is_outside && strcmp(g->nodes[i].tie_owner, n->name) == 0)
      return clv_fail(err, CLV_INVALID,
                      "layer %s is to be tied, but layer %s is tied to it: tie both to one owner",
                      n->name, g->nodes[i].name);
  return CLV_OK;
}

clv_code clv_graph_tie_param(clv_graph *g, int node, const char *owner, bool owner_is_outside,
                             clv_err *err) {
  clv_node *n = &g->nodes[node];
  clv_slot slot;
  size_t len = strlen(owner);
  if (!get_first_param_slot(g, n, &slot)) return fail_no_parameter(n, err);
  if (!len || len >= CLV_NAME_MAX)
    return clv_fail(err, CLV_INVALID, "layer %s is tied to '%.64s': a name has 1 to %d characters",
                    n->name, owner, CLV_NAME_MAX - 1);
  if (!owner_is_outside) CLV_TRY(check_tie_owner_in_graph(g, n, owner, err));
  CLV_TRY(check_owns_no_tie(g, n, err));
  memcpy(n->tie_owner, owner, len + 1);
  n->tie_owner_is_outside = owner_is_outside;
  return CLV_OK;
}

/* ---- batch sizes of a graph ------------------------------------------------------------------ */

static clv_code infer_shapes_for_batches(clv_graph *g, const int64_t n[CLV_MAX_INPUTS],
                                         clv_err *err) {
  for (int i = 0, input = 0; i < g->n_nodes; i++) {
    clv_node *node = &g->nodes[i];
    clv_code code;
    if (node->op == CLV_OP_INPUT) {
      int64_t input_batch = n[input++];
      if (node->shape.rank) node->shape.dim[0] = input_batch;
      code = clv_check_shape_and_dtype("its shape", &node->shape, node->dtype, err);
    } else {
      code = infer_shape_of_node(g, node, err);
    }
    if (code != CLV_OK)
      return clv_err_prefix(err, "%s %s", node->op == CLV_OP_INPUT ? "input" : "layer", node->name);
  }
  return CLV_OK;
}

clv_code clv_graph_set_batches(clv_graph *g, const int64_t n[CLV_MAX_INPUTS], clv_err *err) {
  int64_t previous_n[CLV_MAX_INPUTS];
  clv_err unused_err;
  for (int i = 0, input = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT) previous_n[input++] = g->nodes[i].shape.dim[0];
  clv_code code = infer_shapes_for_batches(g, n, err);
  /* restores the previous shapes; cannot fail */
  if (code != CLV_OK) (void)infer_shapes_for_batches(g, previous_n, &unused_err);
  return code;
}

clv_code clv_graph_set_batch(clv_graph *g, int64_t batch, clv_err *err) {
  int64_t n[CLV_MAX_INPUTS];
  for (int i = 0, input = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == CLV_OP_INPUT &&
        __builtin_mul_overflow(batch, CLV_MAX(g->nodes[i].max_positions, 1), &n[input++]))
      return clv_fail(err, CLV_RANGE, "a batch of %" PRId64 " overflows the number of rows", batch);
  return clv_graph_set_batches(g, n, err);
}

clv_code clv_graph_clone(const clv_graph *g, clv_graph **ret, clv_err *err) {
  CLV_AUTO(clv_graph_freep) clv_graph *copy = NULL;
  CLV_TRY(clv_graph_new(&copy, err));
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *g->nodes, &copy->nodes, err));
  if (g->n_nodes) memcpy(copy->nodes, g->nodes, (size_t)g->n_nodes * sizeof *g->nodes);
  copy->n_nodes = copy->cap = g->n_nodes;
  copy->output_node = g->output_node;
  copy->dtype = g->dtype;
  copy->has_per_input_batches = g->has_per_input_batches;
  *ret = clv_steal(&copy);
  return CLV_OK;
}
