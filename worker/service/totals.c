/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of all sessions together. The counters of a session are freed with the session, but
 * totals must not decrease. So clv_session_close adds the session's counters to the totals when the
 * session leaves the table. When the session's thread has ended, it adds the amounts by which the
 * counters have grown since.
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
  traffic->bytes_in += c.bytes_in;
  traffic->bytes_out += c.bytes_out;
  traffic->n_messages_in += c.messages_in;
  traffic->n_messages_out += c.messages_out;
}

static void add_module_counts(clv_session_node *node, clv_work_counts *w) {
  clv_module_counts c;
  clv_node_count_work(node, &c);
  w->n_forwards += c.forwards;
  w->n_backwards += c.backwards;
  w->n_steps += c.steps_since_load;
  w->compute_ns += c.compute_ns;
  w->n_graph_launches += c.replays;
  w->n_graph_fallbacks += c.not_recorded;
  w->within_device_bytes += c.device_bytes;
  w->between_devices_bytes += c.peer_bytes;
  w->through_host_bytes += c.host_bytes;
}

void clv_session_add_counts_to(clv_session *s, const clv_worker_config *c, clv_work_counts *w,
                               clv_link_traffic *traffic) {
  pthread_mutex_lock(&s->lock);
  add_link_counts(s->master_link, &traffic[0]);
  for (uint32_t i = 0; i < s->n_dialled_links; i++)
    add_link_counts(s->dialled_links[i].link,
                    &traffic[clv_link_traffic_index(c, s->dialled_links[i].name)]);
  for (uint32_t i = 0; i < s->n_accepted_links; i++)
    add_link_counts(s->accepted_links[i].link,
                    &traffic[clv_link_traffic_index(c, s->accepted_links[i].name)]);
  if (s->node) {
    add_module_counts(s->node, w);
    clv_node_times t;
    clv_node_time(s->node, &t);
    w->idle_ns += t.idle_ns;
    w->core_wait_ns += t.share_ns;
    w->n_wakeups += t.wakes;
  }
  pthread_mutex_unlock(&s->lock);
}

/* Adds to *total the amount by which `value` has grown, and stores `value` as the previous
 * value. */
static void add_increase(uint64_t *total, uint64_t value, uint64_t *previous_value) {
  *total += value - CLV_MIN(value, *previous_value);
  *previous_value = value;
}

void clv_session_add_to_totals(clv_session *s) {
  const clv_worker_config *c = s->settings->config;
  size_t n = CLV_N_LINK_TRAFFIC(c);
  /* the second half of the array is scratch memory */
  clv_link_traffic *traffic = s->traffic_in_totals + n;
  clv_work_counts w = {0};
  memset(traffic, 0, n * sizeof *traffic);
  clv_session_add_counts_to(s, c, &w, traffic);
  for (size_t i = 0; i + 1 < n; i++) {
    clv_link_traffic_total *total_of_peer =
        clv_service_find_traffic_total(s->service, i ? c->peers[i - 1].name : "");
    add_increase(&total_of_peer->ended_traffic.bytes_in, traffic[i].bytes_in,
                 &s->traffic_in_totals[i].bytes_in);
    add_increase(&total_of_peer->ended_traffic.bytes_out, traffic[i].bytes_out,
                 &s->traffic_in_totals[i].bytes_out);
    add_increase(&total_of_peer->ended_traffic.n_messages_in, traffic[i].n_messages_in,
                 &s->traffic_in_totals[i].n_messages_in);
    add_increase(&total_of_peer->ended_traffic.n_messages_out, traffic[i].n_messages_out,
                 &s->traffic_in_totals[i].n_messages_out);
  }
  clv_work_counts *total = &s->member->ended_work;
  add_increase(&total->n_forwards, w.n_forwards, &s->work_in_totals.n_forwards);
  add_increase(&total->n_backwards, w.n_backwards, &s->work_in_totals.n_backwards);
  add_increase(&total->n_steps, w.n_steps, &s->work_in_totals.n_steps);
  add_increase(&total->compute_ns, w.compute_ns, &s->work_in_totals.compute_ns);
  add_increase(&total->n_graph_launches, w.n_graph_launches, &s->work_in_totals.n_graph_launches);
  add_increase(&total->n_graph_fallbacks, w.n_graph_fallbacks,
               &s->work_in_totals.n_graph_fallbacks);
  add_increase(&total->within_device_bytes, w.within_device_bytes,
               &s->work_in_totals.within_device_bytes);
  add_increase(&total->between_devices_bytes, w.between_devices_bytes,
               &s->work_in_totals.between_devices_bytes);
  add_increase(&total->through_host_bytes, w.through_host_bytes,
               &s->work_in_totals.through_host_bytes);
  add_increase(&total->idle_ns, w.idle_ns, &s->work_in_totals.idle_ns);
  add_increase(&total->core_wait_ns, w.core_wait_ns, &s->work_in_totals.core_wait_ns);
  add_increase(&total->n_wakeups, w.n_wakeups, &s->work_in_totals.n_wakeups);
}

clv_code clv_session_init_totals(clv_session *s, clv_err *err) {
  return clv_alloc(2 * CLV_N_LINK_TRAFFIC(s->settings->config), sizeof *s->traffic_in_totals,
                   &s->traffic_in_totals, err);
}

clv_refusal clv_refusal_from_code(clv_code code) {
  return code == CLV_UNAVAILABLE    ? REFUSED_DRAINING
         : code == CLV_EXISTS       ? REFUSED_EXISTS
         : code == CLV_PRECONDITION ? REFUSED_EXISTS
                                    : REFUSED_OTHER;
}
