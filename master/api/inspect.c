/* SPDX-License-Identifier: Apache-2.0 */
#include "master/api/api_int.h"

void cleave_inspect(cleave_runtime *rt, cleave_holding *ret) {
  *ret = (cleave_holding){.memory_bytes = clv_pool_bytes(rt->pool),
                          .certificate_end = rt->identity ? rt->identity->not_after : 0};
  LOCKED(rt);
  ret->contexts = rt->contexts.n;
  ret->values = rt->values.n;
}

bool cleave_inspect_link(cleave_runtime *rt, uint32_t node, cleave_link_status *ret) {
  clv_link_counts c = {0};
  clv_link_load load = {0};
  if (node < 1 || node >= rt->n_peers) return false;
  const peer *p = &rt->peers[node];
  uint64_t heard = __atomic_load_n(&p->heard_ns, __ATOMIC_RELAXED), now = clv_now_ns();
  if (p->link) {
    clv_link_count(p->link, &c);
    clv_link_measure_load(p->link, &load);
  }
  *ret = (cleave_link_status){.worker = p->name,
                              .bytes_out = c.bytes_out,
                              .bytes_in = c.bytes_in,
                              .pending_out = load.bytes_out,
                              .pending_in = load.bytes_in,
                              .packets_out = load.frames_out,
                              .packets_in = load.frames_in,
                              .round_trip_s = (double)c.round_trip_ns * 1e-9,
                              .silent_s = heard ? (double)(now - CLV_MIN(heard, now)) * 1e-9 : 0};
  return true;
}
