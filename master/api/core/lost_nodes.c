/* SPDX-License-Identifier: Apache-2.0
 *
 * Fails the contexts, modules and requests that use a lost node, and the contexts that use both
 * workers of a lost link.
 */
#include <stdio.h>

#include "master/api/core/module_int.h"

api_node_set api_lost_nodes(const cleave_runtime *rt) {
  api_node_set lost_nodes = 0;
  for (uint32_t i = 1; i < rt->n_peers; i++)
    if (api_is_peer_lost(&rt->peers[i])) lost_nodes |= NODE_BIT(i);
  return lost_nodes;
}

const char *api_describe_silence(const cleave_runtime *rt, char *buf, size_t len) {
  size_t n_bytes_written = 0;
  uint64_t now_ns = api_now(rt);
  buf[0] = '\0';
  for (uint32_t i = 1; i < rt->n_peers && n_bytes_written < len; i++) {
    uint64_t last_packet_ns = __atomic_load_n(&rt->peers[i].last_packet_ns, __ATOMIC_RELAXED);
    n_bytes_written +=
        (size_t)snprintf(buf + n_bytes_written, len - n_bytes_written, "%s'%.64s' %llu ms ago",
                         n_bytes_written ? ", " : "; last heard of worker ", rt->peers[i].name,
                         (unsigned long long)(now_ns - CLV_MIN(last_packet_ns, now_ns)) / 1000000u);
  }
  return buf;
}

void api_node_fail(cleave_runtime *rt, uint32_t node, const cleave_error *failure) {
  size_t at = 0;
  for (api_context *c; (c = api_id_table_next(&rt->contexts, &at)) != NULL;)
    if (c->nodes_used & ~(c->state > API_CONTEXT_ENDING ? c->nodes_ended : 0) & NODE_BIT(node))
      api_context_fail(rt, c, failure, NODE_BIT(node));
  if (rt->kept_ops) rt->kept_ops->on_node_failed(rt, node, failure);
  api_modules_drop_at_node(rt, node);
  for (api_state_request *r = rt->state_requests; r; r = r->next) {
    if (r->node != node || r->has_failed) continue;
    r->has_failed = true;
    r->failure = *failure;
  }
  api_wake(rt);
}

/* Fails the contexts that use both workers of a broken link, once broken_link_wait_until_ns has
 * passed. If either worker were lost, its link to the master would have ended before that time.
 * Other contexts and kept values (cleave_keep) are not affected. */
static void fail_broken_link(cleave_runtime *rt) {
  if (!rt->broken_link_error.status || api_now(rt) < rt->broken_link_wait_until_ns) return;
  cleave_error why = rt->broken_link_error;
  rt->broken_link_error.status = CLEAVE_OK;
  api_node_set nodes_of_broken_link =
      NODE_BIT(rt->broken_link_worker) | NODE_BIT(rt->broken_link_neighbour);
  for (size_t i = 0; i < rt->contexts.cap; i++) {
    api_context *c = rt->contexts.ids[i] ? rt->contexts.entries[i] : NULL;
    if (c && !(nodes_of_broken_link & ~c->nodes_used)) api_context_fail(rt, c, &why, 0);
  }
}

static uint64_t get_broken_link_failure_ns(cleave_runtime *rt) {
  return rt->broken_link_error.status ? rt->broken_link_wait_until_ns : UINT64_MAX;
}

const api_job api_broken_link_job = {.before_sleep = get_broken_link_failure_ns,
                                     .after_sleep = fail_broken_link};
