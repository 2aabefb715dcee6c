/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes a graph and an optimiser's settings as a LoadModule message.
 */
#include <stdlib.h>

#include "common/engine/module_int.h"

void clv_module_message_clear(clv_module_message *m) {
  if (!m) return;
  free(m->nodes);
  free(m->inputs);
  free(m->attrs);
  free(m->values);
  free(m->keys);
  free(m->ties);
}

static void add_node(const clv_graph *g, int i, clv_module_message *m) {
  const clv_node *n = &g->nodes[i];
  int n_attrs =
      n->op == CLV_OP_INPUT ? 0 : clv_attrs_encode(n->op, &n->attrs, m->values[i], CLV_WIRE_ATTRS);
  for (int k = 0; k < n->n_in; k++) m->inputs[i][k] = (uint32_t)n->in[k];
  for (int k = 0; k < n_attrs; k++) {
    clv_attr_value *v = &m->values[i][k];
    m->attrs[i][k] = (clv_wire_attr){.key = (uint32_t)v->key,
                                     .n_ints = (uint32_t)v->n_ints,
                                     .n_floats = (uint32_t)v->n_numbers,
                                     .ints = v->ints,
                                     .scalar = v->number,
                                     .floats = (float *)(uintptr_t)v->numbers};
  }
  m->keys[i] = n->key;
  m->nodes[i] = (clv_wire_node){.op = (uint32_t)n->op,
                                .uncut_index = n->layer,
                                .n_inputs = (uint32_t)n->n_in,
                                .n_attrs = (uint32_t)n_attrs,
                                .name = n->name,
                                .input_nodes = m->inputs[i],
                                .attrs = m->attrs[i],
                                .recompute_block = n->recompute_block};
  if (n->tie_owner[0])
    m->ties[m->n_ties++] =
        (clv_wire_tie){.node_index = (uint32_t)i, .owner_node_name = n->tie_owner};
  if (n->op == CLV_OP_INPUT && m->n_specs < CLV_MAX_INPUTS)
    m->specs[m->n_specs++] = (clv_wire_spec){n->dtype, n->shape};
}

clv_code clv_module_message_make(const clv_graph *g, clv_module_message *m,
                                 clv_wire_load_request *q, clv_err *err) {
  size_t n = (size_t)g->n_nodes, n_ties = 0;
  *m = (clv_module_message){.output = (uint32_t)g->output_node};
  CLV_TRY(clv_alloc(n, sizeof *m->nodes, &m->nodes, err));
  CLV_TRY(clv_alloc(n, sizeof *m->inputs, &m->inputs, err));
  CLV_TRY(clv_alloc(n, sizeof *m->attrs, &m->attrs, err));
  CLV_TRY(clv_alloc(n, sizeof *m->values, &m->values, err));
  CLV_TRY(clv_alloc(n, sizeof *m->keys, &m->keys, err));
  for (int i = 0; i < g->n_nodes; i++) n_ties += g->nodes[i].tie_owner[0] != '\0';
  CLV_TRY(clv_alloc(n_ties, sizeof *m->ties, &m->ties, err));
  for (int i = 0; i < g->n_nodes; i++) add_node(g, i, m);
  q->graph = (clv_wire_graph){(uint32_t)n, 1, m->nodes, &m->output};
  q->node_keys = m->keys;
  q->input_specs = m->specs;
  q->n_inputs = m->n_specs;
  q->ties = m->ties;
  q->n_ties = m->n_ties;
  return CLV_OK;
}

clv_wire_optimizer clv_module_message_optimizer(const clv_optim_config *o, bool is_final) {
  clv_wire_optimizer m = {.kind = CLV_WIRE_OPT_OF(o->kind), .steps_are_final = is_final};
  CLV_OPTIM_COPY(&m, o);
  m.ema = o->ema;
  m.ema_warmup = o->ema_warmup;
  return m;
}
