/* SPDX-License-Identifier: Apache-2.0
 *
 * Returns counts, bytes and times of a runtime and of its links, for monitoring.
 */
#include "master/api/core/core_int.h"

void cleave_inspect(cleave_runtime *rt, cleave_holding *ret) {
  *ret = (cleave_holding){.memory_bytes = clv_pool_charged_bytes(rt->pool),
                          .certificate_end = rt->identity ? rt->identity->not_after : 0};
  LOCKED(rt);
  ret->contexts = rt->contexts.n;
  ret->values = rt->values.n;
}

bool cleave_inspect_link(cleave_runtime *rt, uint32_t node, cleave_link_status *ret) {
  clv_link_counts c = {0};
  clv_link_load link_load = {0};
  if (node < 1 || node >= rt->n_peers) return false;
  LOCKED(rt);
  const api_peer *p = &rt->peers[node];
  uint64_t last_packet_ns = __atomic_load_n(&p->last_packet_ns, __ATOMIC_RELAXED),
           now = api_now(rt);
  if (p->link) {
    clv_link_get_counts(p->link, &c);
    clv_link_get_load(p->link, &link_load);
  }
  *ret = (cleave_link_status){
      .worker = p->name,
      .bytes_out = c.bytes_out,
      .bytes_in = c.bytes_in,
      .pending_out = link_load.bytes_out,
      .pending_in = link_load.bytes_in,
      .packets_out = link_load.frames_out,
      .packets_in = link_load.frames_in,
      .round_trip_s = (double)c.round_trip_ns * 1e-9,
      .reconnects = c.n_reconnects,
      .resent_bytes = c.resent_bytes,
      .silent_s = last_packet_ns ? (double)(now - CLV_MIN(last_packet_ns, now)) * 1e-9 : 0};
  return true;
}

clv_code cleave_ask_links(cleave_runtime *rt, uint32_t node, uint64_t timeout_ms,
                          cleave_link_report *report, void *user, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes request = {0}, answer = {0};
  CLV_AUTO(clv_wire_message_clear) clv_wire_status_reply reply = {0};
  const clv_wire_status_request q = {.session_id = rt->session_id};
  const api_peer *p = &rt->peers[node];
  CLV_TRY(clv_wire_status_request_encode(&q, &request, err));
  CLV_TRY(clv_rpc_call_unary(p->channel, CLV_METHOD_STATUS, request.data, request.len,
                             (unsigned)timeout_ms, &answer, err));
  CLV_TRY(clv_wire_status_reply_decode(&(clv_piece){answer.data, answer.len}, 1, &reply, err));
  for (uint32_t i = 0; i < reply.n_sessions; i++)
    for (uint32_t k = 0; k < reply.sessions[i].n_links; k++) {
      const clv_wire_link_status *l = &reply.sessions[i].links[k];
      report(user, p->name, l->peer_name ? l->peer_name : "", l->bytes_out);
    }
  return CLV_OK;
}
