/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of a link: totals, tensors in transfer, round-trip time and clock offset of the peer.
 */
#include "common/net/link/link_int.h"

void clv_link_get_counts(clv_link *l, clv_link_counts *ret) {
  /* several threads change some of the counters without the lock */
  const clv_link_counts *c = &l->counts;
  uint64_t bytes, ns;
  clv_reassembly_get_received_counts(&l->reassembly, &bytes, &ns);
  pthread_mutex_lock(&l->lock);
  /* read the time under the lock, so that no PING is sent after it */
  uint64_t now = clv_clock_now(&l->clock);
  *ret = (clv_link_counts){.round_trip_ns = c->round_trip_ns,
                           .clock_offset_ns = c->clock_offset_ns,
                           .received_bytes = bytes,
                           .receiving_ns = ns,
                           .peer_received_bytes = c->peer_received_bytes,
                           .peer_receiving_ns = c->peer_receiving_ns,
                           .last_pong_ns = c->last_pong_ns,
                           .n_reconnects = c->n_reconnects,
                           .n_outages = c->n_outages,
                           .last_outage_ns = c->last_outage_ns};
  if (l->outage_ended_ns) ret->last_outage_age_ns = now - l->outage_ended_ns;
  if (l->outage_since_ns) ret->current_outage_ns = CLV_MAX(now - l->outage_since_ns, UINT64_C(1));
  /* While the last PING has no PONG, its age is a lower bound of the round trip: report it if it is
   * longer. */
  if (l->n_pongs != l->n_pings)
    ret->round_trip_ns = CLV_MAX(ret->round_trip_ns, now - l->ping_sent_ns);
  pthread_mutex_unlock(&l->lock);
  ret->n_node_waits = __atomic_load_n(&c->n_node_waits, __ATOMIC_RELAXED);
  ret->node_wait_ns = __atomic_load_n(&c->node_wait_ns, __ATOMIC_RELAXED);
  ret->bytes_in = __atomic_load_n(&c->bytes_in, __ATOMIC_RELAXED);
  ret->bytes_out = __atomic_load_n(&l->writer->bytes_out, __ATOMIC_RELAXED);
  ret->messages_in = __atomic_load_n(&c->messages_in, __ATOMIC_RELAXED);
  ret->messages_out = __atomic_load_n(&l->writer->messages_out, __ATOMIC_RELAXED);
  ret->resent_bytes = __atomic_load_n(&l->writer->resent_bytes, __ATOMIC_RELAXED);
  ret->tensors_in = __atomic_load_n(&l->reassembly.tensors_in, __ATOMIC_RELAXED);
  ret->tensors_out = __atomic_load_n(&l->send_queue->tensors_out, __ATOMIC_RELAXED);
}

void clv_link_get_load(clv_link *l, clv_link_load *ret) {
  *ret = (clv_link_load){0};
  pthread_mutex_lock(&l->recv_window->lock);
  ret->frames_in = l->recv_window->n_packets;
  pthread_mutex_unlock(&l->recv_window->lock);
  clv_reassembly_add_load(&l->reassembly, ret);
  clv_send_queue_add_load(l->send_queue, ret);
}

void clv_link_record_node_wait(clv_link *l, uint64_t ns) {
  if (ns >= LONG_WAIT_NS) __atomic_fetch_add(&l->counts.n_node_waits, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&l->counts.node_wait_ns, ns, __ATOMIC_RELAXED);
}

/* ---- handling PING and PONG ------------------------------------------------------------------ */

void clv_link_ping_async(clv_link *l) {
  clv_frame f = {.kind = CLV_PING};
  pthread_mutex_lock(&l->lock);
  uint64_t now = clv_clock_now(&l->clock);
  bool is_open = l->state == CLV_LINK_OPEN || l->state == CLV_LINK_MENDING;
  bool can_ping = is_open && l->n_pongs == l->n_pings &&
                  now - l->ping_sent_ns > (uint64_t)PING_INTERVAL_MS * 1000000u;
  if (can_ping) {
    f.message_id = ++l->n_pings;
    l->ping_sent_ns = now;
  }
  pthread_mutex_unlock(&l->lock);
  clv_err ignored; /* a link that cannot send a PING has ended, or the missing PONG ends it */
  if (can_ping && clv_frame_writer_send_without_payload(l->writer, &f, &ignored) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "cannot send a PING to %s: %s", l->peer_name, ignored.text);
}

void clv_link_ping_or_end(clv_link *l, unsigned ms, const char *text) {
  clv_link_ping_async(l);
  pthread_mutex_lock(&l->lock);
  uint64_t waited_ns = clv_clock_now(&l->clock) - l->ping_sent_ns;
  bool is_overdue = l->n_pongs != l->n_pings && waited_ns >= (uint64_t)ms * 1000000u;
  pthread_mutex_unlock(&l->lock);
  if (is_overdue) clv_link_end(l, CLV_UNAVAILABLE, text);
}

static bool link_has_ended(const clv_link *l) { return l->state >= CLV_LINK_ENDING; }

clv_code clv_link_ping(clv_link *l, unsigned timeout_ms, uint64_t *ret_ns, clv_err *err) {
  uint64_t now = clv_clock_now(&l->clock), deadline_ns = now + (uint64_t)timeout_ms * 1000000u;
  clv_frame f = {.kind = CLV_PING};
  pthread_mutex_lock(&l->lock);
  f.message_id = ++l->n_pings;
  l->ping_sent_ns = now;
  pthread_mutex_unlock(&l->lock);
  CLV_TRY(clv_frame_writer_send_without_payload(l->writer, &f, err));
  pthread_mutex_lock(&l->lock);
  while (l->n_pongs < f.message_id && !link_has_ended(l))
    if (!clv_link_wait_unless_stopped(l, deadline_ns)) break;
  bool is_answered = l->n_pongs >= f.message_id, has_ended = link_has_ended(l);
  *ret_ns = is_answered ? l->counts.round_trip_ns : *ret_ns;
  if (!is_answered && has_ended)
    clv_fail(err, CLV_UNAVAILABLE, "the connection to %s has ended: %s", l->peer_name,
             l->close_text);
  pthread_mutex_unlock(&l->lock);
  if (!is_answered && clv_rpc_has_cancel_hook()) CLV_TRY(clv_rpc_check_cancel_hook(err));
  if (is_answered) return CLV_OK;
  if (has_ended) return CLV_UNAVAILABLE;
  return clv_fail(err, CLV_DEADLINE, "%s did not answer a PING in time", l->peer_name);
}

clv_frame clv_link_make_pong(clv_link *l, const clv_frame *ping) {
  clv_frame pong = {.kind = CLV_PONG,
                    .message_id = ping->message_id,
                    .reply_to = ping->message_id,
                    .has_measure = true};
  clv_reassembly_get_received_counts(&l->reassembly, &pong.measure.received_bytes,
                                     &pong.measure.receiving_ns);
  pong.measure.clock_ns = clv_clock_now(&l->clock);
  if (l->events.count_mending_links && !(ping->message_id & PROBE_BIT))
    pong.measure.n_mending_links = l->events.count_mending_links(l->events.user);
  return pong;
}

/* Stores what a PONG reports. The peer is assumed to have read its clock halfway through the round
 * trip, so the offset is taken from the shortest round trip. */
static void record_peer_measure(clv_link *l, const clv_frame *f, uint64_t now) {
  uint64_t halfway = l->ping_sent_ns + l->counts.round_trip_ns / 2;
  l->counts.peer_received_bytes = f->measure.received_bytes;
  l->counts.peer_receiving_ns = f->measure.receiving_ns;
  l->counts.last_pong_ns = now;
  __atomic_store_n(&l->is_peer_mending, f->measure.n_mending_links > 0, __ATOMIC_RELAXED);
  if (l->min_rtt_ns && l->min_rtt_ns <= l->counts.round_trip_ns) return;
  l->min_rtt_ns = l->counts.round_trip_ns;
  l->counts.clock_offset_ns = (int64_t)(f->measure.clock_ns - halfway);
}

/* Stores the round trip of a PONG. The caller holds the lock. */
static void record_round_trip(clv_link *l, const clv_frame *f) {
  uint64_t now = clv_clock_now(&l->clock);
  if (f->reply_to == l->n_pings) {
    l->counts.round_trip_ns = now - l->ping_sent_ns;
    if (f->has_measure) record_peer_measure(l, f, now);
  }
  l->n_pongs = f->reply_to;
  pthread_cond_broadcast(&l->state_changed);
}

clv_code clv_link_handle_pong(clv_link *l, const clv_frame *f, clv_err *err) {
  pthread_mutex_lock(&l->lock);
  bool is_open_ping = f->reply_to > l->n_pongs && f->reply_to <= l->n_pings;
  if (is_open_ping) record_round_trip(l, f);
  pthread_mutex_unlock(&l->lock);
  if (is_open_ping) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "PONG to PING %llu, which was not sent or was answered before",
                  (unsigned long long)f->reply_to);
}
