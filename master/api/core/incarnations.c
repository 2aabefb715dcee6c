/* SPDX-License-Identifier: Apache-2.0
 *
 * Incarnations of workers: finds the node that a name in a frame means, and checks whether a node
 * is present and whether a module was lost with an earlier incarnation of its node.
 */
#include "master/api/core/incarnations_int.h"

#include <string.h>

int api_find_node_by_wire_name(const cleave_runtime *rt, const char *name) {
  for (uint32_t i = 0; i < rt->n_peers; i++)
    if (strcmp(api_wire_name(&rt->peers[i]), name) == 0) return (int)i;
  return -1;
}

cleave_status api_check_node_present(const cleave_runtime *rt, uint32_t node, cleave_error *error) {
  const api_peer *p = &rt->peers[node];
  if (!api_is_peer_lost(p)) return CLEAVE_OK;
  if (error) *error = p->loss_error;
  return p->loss_error.status;
}

cleave_status api_check_module_present(const cleave_module *m, cleave_error *error) {
  const api_peer *p = &m->runtime->peers[m->node];
  TRY_API(api_check_node_present(m->runtime, m->node, error));
  if (m->state != MODULE_PLACED || m->n_rejoins_at_load == p->n_rejoins) return CLEAVE_OK;
  api_fail(error, CLV_UNAVAILABLE,
           "module '%s' was lost with worker '%s', which has come back without it: load it again "
           "with cleave_module_reload",
           m->name, p->name);
  api_set_error_node(error, p->name, m->name);
  return CLEAVE_UNAVAILABLE;
}

bool api_is_of_earlier_incarnation(const cleave_runtime *rt, const api_peer *to,
                                   const clv_frame *f) {
  const api_context *c =
      to->n_rejoins && f->context ? api_id_table_get(&rt->contexts, f->context) : NULL;
  return c && (c->nodes_since_restarted & NODE_BIT(to->index));
}
