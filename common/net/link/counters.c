/* SPDX-License-Identifier: Apache-2.0
 *
 * What a link can tell of itself: sums, what is on its way now, how far its other end is.
 */
#include "common/net/link/link_int.h"

void clv_link_count(clv_link *l, clv_link_counts *ret) {
  const clv_link_counts *c = &l->counts; /* some are counted by several threads without the lock */
  uint64_t bytes, ns;
  clv_reassembly_measure(&l->in, &bytes, &ns);
  pthread_mutex_lock(&l->lock);
  uint64_t now = clv_clock_now(&l->clock); /* no PING is sent after it */
  *ret = (clv_link_counts){.round_trip_ns = c->round_trip_ns,
                           .clock_ahead_ns = c->clock_ahead_ns,
                           .received_bytes = bytes,
                           .receiving_ns = ns,
                           .peer_received_bytes = c->peer_received_bytes,
                           .peer_receiving_ns = c->peer_receiving_ns,
                           .peer_measured_ns = c->peer_measured_ns};
  /* The answer that is late is news as well. */
  if (l->pongs != l->pings) ret->round_trip_ns = CLV_MAX(ret->round_trip_ns, now - l->ping_sent_ns);
  pthread_mutex_unlock(&l->lock);
  ret->awaits = __atomic_load_n(&c->awaits, __ATOMIC_RELAXED);
  ret->awaited_ns = __atomic_load_n(&c->awaited_ns, __ATOMIC_RELAXED);
  ret->bytes_in = __atomic_load_n(&c->bytes_in, __ATOMIC_RELAXED);
  ret->bytes_out = __atomic_load_n(&l->writer->bytes_out, __ATOMIC_RELAXED);
  ret->messages_in = __atomic_load_n(&c->messages_in, __ATOMIC_RELAXED);
  ret->messages_out = __atomic_load_n(&l->writer->messages_out, __ATOMIC_RELAXED);
  ret->tensors_in = __atomic_load_n(&l->in.tensors_in, __ATOMIC_RELAXED);
  ret->tensors_out = __atomic_load_n(&l->out->tensors_out, __ATOMIC_RELAXED);
}

void clv_link_measure_load(clv_link *l, clv_link_load *ret) {
  *ret = (clv_link_load){0};
  pthread_mutex_lock(&l->recv_window->lock);
  ret->frames_in = l->recv_window->n_packets;
  pthread_mutex_unlock(&l->recv_window->lock);
  clv_reassembly_load(&l->in, ret);
  clv_send_queue_load(l->out, ret);
}

void clv_link_count_wait(clv_link *l, uint64_t ns) {
  if (ns >= LONG_WAIT_NS) __atomic_fetch_add(&l->counts.awaits, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&l->counts.awaited_ns, ns, __ATOMIC_RELAXED);
}

/* ---- PING and PONG --------------------------------------------------------------------------- */

void clv_link_ping_async(clv_link *l) {
  clv_frame f = {.kind = CLV_PING};
  pthread_mutex_lock(&l->lock);
  uint64_t now = clv_clock_now(&l->clock);
  bool ask = l->life == CLV_LINK_OPEN && l->pongs == l->pings &&
             now - l->ping_sent_ns > (uint64_t)ASK_MS * 1000000u;
  if (ask) {
    f.message = ++l->pings;
    l->ping_sent_ns = now;
  }
  pthread_mutex_unlock(&l->lock);
  clv_err ignored; /* a link that cannot send has ended, or its PONG is what does not come */
  if (ask && clv_frame_writer_send_plain(l->writer, &f, &ignored) != CLV_OK)
    clv_log(CLV_LOG_DEBUG, "no PING to %s: %s", l->peer, ignored.text);
}

void clv_link_ping_or_end(clv_link *l, unsigned ms, const char *text) {
  clv_link_ping_async(l);
  pthread_mutex_lock(&l->lock);
  uint64_t waited = clv_clock_now(&l->clock) - l->ping_sent_ns;
  bool silent = l->pongs != l->pings && waited >= (uint64_t)ms * 1000000u;
  pthread_mutex_unlock(&l->lock);
  if (silent) clv_link_end(l, CLV_UNAVAILABLE, text);
}

static bool ended(const clv_link *l) { return l->life >= CLV_LINK_ENDING; }

clv_code clv_link_ping(clv_link *l, unsigned timeout_ms, uint64_t *ret_ns, clv_err *err) {
  uint64_t now = clv_clock_now(&l->clock), deadline = now + (uint64_t)timeout_ms * 1000000u;
  clv_frame f = {.kind = CLV_PING};
  pthread_mutex_lock(&l->lock);
  f.message = ++l->pings;
  l->ping_sent_ns = now;
  pthread_mutex_unlock(&l->lock);
  CLV_TRY(clv_frame_writer_send_plain(l->writer, &f, err));
  pthread_mutex_lock(&l->lock);
  while (l->pongs != f.message && !ended(l))
    if (!clv_link_wait(l, deadline)) break;
  bool answered = l->pongs == f.message;
  *ret_ns = answered ? l->counts.round_trip_ns : *ret_ns;
  pthread_mutex_unlock(&l->lock);
  if (!answered) return clv_fail(err, CLV_DEADLINE, "no answer to a PING of %s", l->peer);
  return CLV_OK;
}

clv_frame clv_link_pong(clv_link *l, const clv_frame *ping) {
  clv_frame pong = {
      .kind = CLV_PONG, .message = ping->message, .reply_to = ping->message, .has_measure = true};
  clv_reassembly_measure(&l->in, &pong.measure.received_bytes, &pong.measure.receiving_ns);
  pong.measure.clock_ns = clv_clock_now(&l->clock);
  return pong;
}

/* Its clock was read halfway, as far as one can tell; nearest to the truth when all was quick. */
static void take_measure(clv_link *l, const clv_frame *f, uint64_t now) {
  uint64_t halfway = l->ping_sent_ns + l->counts.round_trip_ns / 2;
  l->counts.peer_received_bytes = f->measure.received_bytes;
  l->counts.peer_receiving_ns = f->measure.receiving_ns;
  l->counts.peer_measured_ns = now;
  if (l->quickest_ns && l->quickest_ns <= l->counts.round_trip_ns) return;
  l->quickest_ns = l->counts.round_trip_ns;
  l->counts.clock_ahead_ns = (int64_t)(f->measure.clock_ns - halfway);
}

/* Under the lock. */
static void take_pong(clv_link *l, const clv_frame *f) {
  uint64_t now = clv_clock_now(&l->clock);
  if (f->reply_to == l->pings) {
    l->counts.round_trip_ns = now - l->ping_sent_ns;
    if (f->has_measure) take_measure(l, f, now);
  }
  l->pongs = f->reply_to;
  pthread_cond_broadcast(&l->changed);
}

clv_code clv_link_note_pong(clv_link *l, const clv_frame *f, clv_err *err) {
  pthread_mutex_lock(&l->lock);
  bool awaited = f->reply_to > l->pongs && f->reply_to <= l->pings;
  if (awaited) take_pong(l, f);
  pthread_mutex_unlock(&l->lock);
  if (awaited) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "a PONG to PING %llu, which was not sent or was answered",
                  (unsigned long long)f->reply_to);
}
