/* SPDX-License-Identifier: Apache-2.0
 *
 * What a link can tell of itself: sums, what is on its way now, how far its other end is.
 */
#include "common/link/link_int.h"

uint64_t clv_link_receiving_ns(const clv_link *l, uint64_t now) {
  return l->counts.receiving_ns + (l->n_in ? now - CLV_MIN(l->receiving_since, now) : 0);
}

void clv_link_count(clv_link *l, clv_link_counts *ret) {
  const clv_link_counts *c = &l->counts; /* some are counted by several threads without the lock */
  pthread_mutex_lock(&l->lock);
  *ret = (clv_link_counts){.round_trip_ns = c->round_trip_ns,
                           .clock_ahead_ns = c->clock_ahead_ns,
                           .received_bytes = c->received_bytes,
                           .peer_received_bytes = c->peer_received_bytes,
                           .peer_receiving_ns = c->peer_receiving_ns,
                           .peer_measured_ns = c->peer_measured_ns};
  uint64_t now = clv_now_ns();
  ret->receiving_ns = clv_link_receiving_ns(l, now);
  /* The answer that is late is news as well. */
  if (l->pongs != l->pings) ret->round_trip_ns = CLV_MAX(ret->round_trip_ns, now - l->ping_sent_ns);
  pthread_mutex_unlock(&l->lock);
  ret->awaits = __atomic_load_n(&c->awaits, __ATOMIC_RELAXED);
  ret->awaited_ns = __atomic_load_n(&c->awaited_ns, __ATOMIC_RELAXED);
  ret->bytes_in = __atomic_load_n(&c->bytes_in, __ATOMIC_RELAXED);
  ret->bytes_out = __atomic_load_n(&c->bytes_out, __ATOMIC_RELAXED);
  ret->tensors_in = __atomic_load_n(&c->tensors_in, __ATOMIC_RELAXED);
  ret->tensors_out = __atomic_load_n(&c->tensors_out, __ATOMIC_RELAXED);
}

/* Under the lock: packets that wait for credit or their turn. */
static void add_pending_load(const clv_link *l, clv_link_load *ret) {
  for (const clv_packet *p = l->pending_first; p; p = p->next) {
    ret->frames_out++;
    ret->tensors_out += p->frame.n_tensors;
    for (uint32_t i = 0; i < p->frame.n_tensors; i++) ret->bytes_out += p->tensor[i]->bytes;
  }
}

/* Under the lock: chunks that wait, those of a tensor behind each other. */
static void add_chunk_load(const clv_pace *p, clv_link_load *ret) {
  uint64_t last = 0;
  for (size_t i = 0; i < p->n_chunks; i++) {
    const clv_chunk *c = &p->chunks[(p->first + i) % p->cap_chunks];
    ret->tensors_out += c->transfer != last;
    ret->bytes_out += c->len;
    last = c->transfer;
  }
  ret->bytes_out += clv_link_pace_on_the_way(p);
}

void clv_link_measure_load(clv_link *l, clv_link_load *ret) {
  *ret = (clv_link_load){.frames_out = __atomic_load_n(&l->n_unsent, __ATOMIC_RELAXED)};
  pthread_mutex_lock(&l->lock);
  ret->frames_in = l->n_packets;
  ret->tensors_in = l->n_in;
  for (size_t i = 0; i < l->n_in; i++) ret->bytes_in += l->in[i].total - l->in[i].received;
  add_pending_load(l, ret);
  add_chunk_load(&l->pace, ret);
  pthread_mutex_unlock(&l->lock);
}

void clv_link_awaited(clv_link *l, uint64_t ns) {
  if (ns >= LONG_WAIT_NS) __atomic_fetch_add(&l->counts.awaits, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&l->counts.awaited_ns, ns, __ATOMIC_RELAXED);
}

void clv_link_ask(clv_link *l) {
  clv_frame f = {.kind = CLV_PING};
  uint64_t now = clv_now_ns();
  pthread_mutex_lock(&l->lock);
  bool ask = !l->closed && l->n_lanes && l->n_attached == l->n_lanes && l->pongs == l->pings &&
             now - l->ping_sent_ns > (uint64_t)ASK_MS * 1000000u;
  if (ask) {
    f.message = ++l->pings;
    l->ping_sent_ns = now;
  }
  pthread_mutex_unlock(&l->lock);
  clv_err ignored; /* a link that cannot send has ended, or its PONG is what does not come */
  if (ask && clv_link_send_plain(l, &f, &ignored) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "no PING to %s: %s", l->peer, ignored.text);
}
