/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of all sessions together. A session's counters are freed with it, but totals must not
 * decrease. So clv_session_close adds them to the service's totals when the session leaves the
 * table, and again, when its thread has ended, what they have grown since.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/service/service_int.h"

size_t clv_link_traffic_index(const clv_worker_config *c, const char *peer) {
  size_t i = 0;
  while (i < c->n_peers && strcmp(c->peers[i].name, peer) != 0) i++;
  return *peer ? 1 + i : 0;
}

static void add_link_counts(clv_link *link, clv_link_traffic *traffic) {
  clv_link_counts c;
  if (!link) return;
  clv_link_get_counts(link, &c);
  traffic->in += c.bytes_in;
  traffic->out += c.bytes_out;
  traffic->messages_in += c.messages_in;
  traffic->messages_out += c.messages_out;
}

static void add_module_counts(clv_session_node *node, clv_work_counts *w) {
  clv_module_counts c;
  clv_node_count_work(node, &c);
  w->forwards += c.forwards;
  w->backwards += c.backwards;
  w->steps += c.steps_since_load;
  w->compute_ns += c.compute_ns;
  w->replays += c.replays;
  w->not_recorded += c.not_recorded;
  w->device_bytes += c.device_bytes;
  w->peer_bytes += c.peer_bytes;
  w->host_bytes += c.host_bytes;
}

void clv_session_add_work(clv_session *s, const clv_worker_config *c, clv_work_counts *w,
                          clv_link_traffic *traffic) {
  pthread_mutex_lock(&s->lock);
  add_link_counts(s->master_link, &traffic[0]);
  for (uint32_t i = 0; i < s->n_out; i++)
    add_link_counts(s->out[i].link, &traffic[clv_link_traffic_index(c, s->out[i].name)]);
  for (uint32_t i = 0; i < s->n_in; i++)
    add_link_counts(s->in[i].link, &traffic[clv_link_traffic_index(c, s->in[i].name)]);
  if (s->node) {
    add_module_counts(s->node, w);
    clv_node_times t;
    clv_node_time(s->node, &t);
    w->idle_ns += t.idle_ns;
    w->share_ns += t.share_ns;
    w->wakes += t.wakes;
  }
  pthread_mutex_unlock(&s->lock);
}

static void add_increase(uint64_t *total, uint64_t value, uint64_t *added_before) {
  *total += value - CLV_MIN(value, *added_before);
  *added_before = value;
}

void clv_session_add_to_totals(clv_session *s) {
  const clv_worker_config *c = s->settings->config;
  size_t n = CLV_N_LINK_TRAFFIC(c);
  /* scratch memory: the second half of the array */
  clv_link_traffic *traffic = s->traffic_in_totals + n;
  clv_work_counts w = {0};
  memset(traffic, 0, n * sizeof *traffic);
  clv_session_add_work(s, c, &w, traffic);
  for (size_t i = 0; i + 1 < n; i++) {
    clv_link_traffic_total *e =
        clv_service_find_traffic_total(s->service, i ? c->peers[i - 1].name : "");
    add_increase(&e->ended_counts.in, traffic[i].in, &s->traffic_in_totals[i].in);
    add_increase(&e->ended_counts.out, traffic[i].out, &s->traffic_in_totals[i].out);
    add_increase(&e->ended_counts.messages_in, traffic[i].messages_in,
                 &s->traffic_in_totals[i].messages_in);
    add_increase(&e->ended_counts.messages_out, traffic[i].messages_out,
                 &s->traffic_in_totals[i].messages_out);
  }
  clv_work_counts *total = &s->member->ended_counts;
  add_increase(&total->forwards, w.forwards, &s->counts_in_totals.forwards);
  add_increase(&total->backwards, w.backwards, &s->counts_in_totals.backwards);
  add_increase(&total->steps, w.steps, &s->counts_in_totals.steps);
  add_increase(&total->compute_ns, w.compute_ns, &s->counts_in_totals.compute_ns);
  add_increase(&total->replays, w.replays, &s->counts_in_totals.replays);
  add_increase(&total->not_recorded, w.not_recorded, &s->counts_in_totals.not_recorded);
  add_increase(&total->device_bytes, w.device_bytes, &s->counts_in_totals.device_bytes);
  add_increase(&total->peer_bytes, w.peer_bytes, &s->counts_in_totals.peer_bytes);
  add_increase(&total->host_bytes, w.host_bytes, &s->counts_in_totals.host_bytes);
  add_increase(&total->idle_ns, w.idle_ns, &s->counts_in_totals.idle_ns);
  add_increase(&total->share_ns, w.share_ns, &s->counts_in_totals.share_ns);
  add_increase(&total->wakes, w.wakes, &s->counts_in_totals.wakes);
}

clv_code clv_session_init_totals(clv_session *s, clv_err *err) {
  return clv_alloc(2 * CLV_N_LINK_TRAFFIC(s->settings->config), sizeof *s->traffic_in_totals,
                   &s->traffic_in_totals, err);
}

clv_refusal clv_refusal_of(clv_code code) {
  return code == CLV_UNAVAILABLE    ? REFUSED_DRAINING
         : code == CLV_EXISTS       ? REFUSED_EXISTS
         : code == CLV_PRECONDITION ? REFUSED_EXISTS
                                    : REFUSED_QUOTA;
}
