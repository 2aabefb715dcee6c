/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs of the layers of a session file. A `from` may name any earlier layer of the model, of the
 * same stage or of another. A layer without a name is named by its number; the data are named by
 * data.inputs, or "input".
 */
#include <string.h>

#include "common/model/models/models_int.h"

/* ---- names of layers ------------------------------------------------------------------------- */

static int find_node(const clv_graph *g, const char *name) {
  for (int i = 0; i < g->n_nodes; i++)
    if (strcmp(g->nodes[i].name, name) == 0) return i;
  return -1;
}

/* Returns layer i of the session file, counted over all stages; NULL behind the last layer. */
static const clv_layer_spec *layer_spec_at(const clv_session_config *c, size_t i) {
  if (i < c->model.n_layers) return &c->model.layers[i];
  for (size_t s = 0; !c->model.n_layers && s < c->n_stages; i -= c->stages[s++].n_layers)
    if (i < c->stages[s].n_layers) return &c->stages[s].layers[i];
  return NULL;
}

static bool is_layer_name(const clv_session_config *c, const char *name) {
  const clv_layer_spec *spec;
  for (size_t i = 0; (spec = layer_spec_at(c, i)) != NULL; i++)
    if (spec->name && strcmp(spec->name, name) == 0) return true;
  return false;
}

static clv_code fail_unknown_input(const clv_session_config *c, const clv_layer_spec *spec,
                                   const clv_graph *g, const char *name, clv_err *err) {
  CLV_AUTO(clv_freep) const char **names = NULL;
  if (is_layer_name(c, name))
    return clv_session_fail_at(c, spec->from_pos, err,
                               "from: layer '%.64s' does not come before this one: a layer can "
                               "read earlier layers only",
                               name);
  CLV_TRY(clv_alloc((size_t)g->n_nodes, sizeof *names, &names, err));
  for (int i = 0; i < g->n_nodes; i++) names[i] = g->nodes[i].name;
  const char *suggestion = clv_did_you_mean(name, names, (size_t)g->n_nodes);
  return clv_session_fail_at(
      c, spec->from_pos, err,
      "from: no earlier layer has the name '%.64s'%s%s%s; the layer before this one is "
      "'%s', and the first input is '%s'",
      name, suggestion ? ", did you mean '" : "", suggestion ? suggestion : "",
      suggestion ? "'?" : "", g->nodes[g->n_nodes - 1].name, g->nodes[0].name);
}

/* ---- inputs of a layer ----------------------------------------------------------------------- */

clv_code clv_layer_find_inputs(const clv_session_config *c, const clv_layer_spec *spec, clv_op op,
                               const clv_graph *g, int in[CLV_MAX_IN], int *n_in, clv_err *err) {
  const clv_op_def *def = clv_op_def_of(op);
  int max_inputs = CLV_MAX(def->max_in, def->n_in), n = (int)spec->from.n;
  if (!n && def->n_in > 1)
    return clv_session_fail_at(c, spec->op_pos, err,
                               "%s reads %d values: name them, as in from: [%s, %s]", spec->op,
                               def->n_in, g->nodes[in[0]].name, g->nodes[0].name);
  if (!n) return CLV_OK;
  if (n < def->n_in || n > max_inputs)
    return clv_session_fail_at(c, spec->from_pos, err, "from: %s reads %d%s%.0d value%s, not %d",
                               spec->op, def->n_in, max_inputs > def->n_in ? " to " : "",
                               max_inputs > def->n_in ? max_inputs : 0, CLV_S((unsigned)max_inputs),
                               n);
  for (int i = 0; i < n; i++)
    if ((in[i] = find_node(g, spec->from.items[i])) < 0)
      return fail_unknown_input(c, spec, g, spec->from.items[i], err);
  *n_in = n;
  return CLV_OK;
}

clv_code clv_layer_check_batch_dim(const clv_session_config *c, const clv_layer_spec *spec,
                                   const clv_graph *g, int node, clv_err *err) {
  if (!g->has_per_input_batches) return CLV_OK;
  return clv_session_fail_at(
      c, spec->pos, err,
      "layer %s would join the records of a batch, which dimension 0 counts: "
      "take another dim",
      g->nodes[node].name);
}

/* ---- checks that each layer is read ---------------------------------------------------------- */

static bool is_read_later(const clv_graph *g, int node) {
  for (int k = node + 1; k < g->n_nodes; k++)
    for (int i = 0; i < g->nodes[k].n_in; i++)
      if (g->nodes[k].in[i] == node) return true;
  return node == g->output_node;
}

clv_code clv_layers_check_read(const clv_session_config *c, const clv_graph *g, clv_err *err) {
  for (int k = 0; k < g->n_nodes; k++) {
    const clv_node *n = &g->nodes[k];
    const clv_layer_spec *spec = n->op == CLV_OP_INPUT ? NULL : layer_spec_at(c, n->layer);
    if (!spec || is_read_later(g, k)) continue;
    return clv_session_fail_at(c, spec->pos, err,
                               "no layer reads layer '%s': name it in the from: of a later one, or "
                               "leave it out",
                               n->name);
  }
  return CLV_OK;
}
