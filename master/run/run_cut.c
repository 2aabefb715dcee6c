/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the cut of a session as text, and compares it with the cut of the last attempt
 * (clv_run_compare_cut).
 */
#include <string.h>

#include "common/model/models/models.h"
#include "master/run/run_int.h"

/* The layers of a session and their stages. */
typedef struct cut {
  clv_graph *graph;
  uint32_t first_layer[CLV_MAX_STAGES], last_layer[CLV_MAX_STAGES];
  clv_bytes text; /* "front at master: layers 0 to 2; back at w1: layer 3" */
} cut;

static void free_cut(cut *c) {
  clv_graph_free(c->graph);
  clv_bytes_done(&c->text);
}

/* Computes the cut of a session. inputs: input shapes of the data that the command has opened. */
static clv_code make_cut(const clv_session_config *c, const clv_model_inputs *inputs, cut *ret,
                         clv_err *err) {
  if (c->n_stages > CLV_MAX_STAGES) return clv_fail(err, CLV_INVALID, "too many stages");
  CLV_TRY(clv_model_make_graph_of_inputs(c, inputs, &ret->graph, ret->first_layer, ret->last_layer,
                                         err));
  for (size_t i = 0; i < c->n_stages; i++) {
    clv_bytes_printf(&ret->text, "%s%s at %s: layer", i ? "; " : "", c->stages[i].name,
                     c->stages[i].at);
    if (ret->first_layer[i] == ret->last_layer[i])
      clv_bytes_printf(&ret->text, " %u", ret->first_layer[i]);
    else
      clv_bytes_printf(&ret->text, "s %u to %u", ret->first_layer[i], ret->last_layer[i]);
  }
  return ret->text.failed ? clv_fail(err, CLV_EXHAUSTED, "out of memory") : CLV_OK;
}

static bool has_same_layers(const clv_graph *a, const clv_graph *b) {
  bool is_same = a->n_nodes == b->n_nodes;
  for (int i = 0; is_same && i < a->n_nodes; i++)
    is_same = a->nodes[i].op == b->nodes[i].op && a->nodes[i].dtype == b->nodes[i].dtype &&
              strcmp(a->nodes[i].name, b->nodes[i].name) == 0 &&
              memcmp(&a->nodes[i].attrs, &b->nodes[i].attrs, sizeof a->nodes[i].attrs) == 0 &&
              clv_shape_equal(&a->nodes[i].shape, &b->nodes[i].shape);
  return is_same;
}

clv_code clv_run_compare_cut(const clv_run *r, const clv_session_config *earlier_session,
                             clv_bytes *ret_before, clv_bytes *ret_after, bool *ret_has_same_layers,
                             clv_err *err) {
  CLV_AUTO(free_cut) cut before = {0}, after = {0};
  clv_err reason;
  *ret_has_same_layers = false;
  if (make_cut(earlier_session, &r->blueprint->inputs, &before, &reason) != CLV_OK) return CLV_OK;
  CLV_TRY(make_cut(r->config, &r->blueprint->inputs, &after, err));
  *ret_has_same_layers = has_same_layers(before.graph, after.graph);
  if (strcmp(before.text.data, after.text.data) == 0) return CLV_OK;
  *ret_before = before.text;
  *ret_after = after.text;
  before.text = after.text = (clv_bytes){0};
  return CLV_OK;
}
