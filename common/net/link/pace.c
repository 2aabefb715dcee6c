/* SPDX-License-Identifier: Apache-2.0
 *
 * Congestion window of a link: how many bytes of chunks may be in flight at once. All connections
 * of a link usually share the queue of the slowest hop. TCP fills that queue, and an ABORT would
 * then wait behind seconds of chunks. So the send queue passes chunks to the transport only while
 * fewer than `window` bytes are unreported. The window adapts to the round trip of probes: it aims
 * at the round trip of an empty path plus QUEUE_NS, which keeps the link busy (the rule of FAST TCP
 * and LEDBAT, RFC 6817, applied to a link).
 *
 * A probe is a PING in the message of a chunk. Lanes keep their order, so its PONG reports this
 * chunk and those before it. The shortest recent round trip is taken for that of the empty path:
 * usually it is that of a PING on lane 0 before the first chunk after a pause, at most one in
 * EMPTY_PATH_NS. The minimum expires after PERIOD_NS, because paths change. If no pause occurred in
 * that time, the window closes for a moment, so that the new minimum does not include our own
 * queue.
 */
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

#define QUEUE_NS UINT64_C(45000000)
#define EMPTY_PATH_NS UINT64_C(50000000)
#define PERIOD_NS UINT64_C(10000000000)

/* ---- queue of chunks ------------------------------------------------------------------------- */

void clv_pace_init(clv_pace *p) { p->window = INITIAL_WINDOW; }

void clv_pace_clear(clv_pace *p) {
  for (; p->n_chunks; p->n_chunks--, p->first = (p->first + 1) % p->cap_chunks)
    clv_tensor_unref(p->chunks[p->first].tensor);
  free(p->chunks);
  p->chunks = NULL;
  p->cap_chunks = 0;
}

static clv_code reserve_chunk_slot(clv_pace *p, clv_err *err) {
  clv_chunk *more;
  size_t cap = p->cap_chunks ? 2 * p->cap_chunks : INITIAL_CHUNKS;
  if (p->n_chunks < p->cap_chunks) return CLV_OK;
  CLV_TRY(clv_alloc(cap, sizeof *more, &more, err));
  for (size_t i = 0; i < p->n_chunks; i++) more[i] = p->chunks[(p->first + i) % p->cap_chunks];
  free(p->chunks);
  p->chunks = more;
  p->cap_chunks = cap;
  p->first = 0;
  return CLV_OK;
}

clv_code clv_pace_queue_chunk(clv_pace *p, const clv_chunk *c, clv_err *err) {
  CLV_TRY(reserve_chunk_slot(p, err));
  clv_chunk *at = &p->chunks[(p->first + p->n_chunks++) % p->cap_chunks];
  *at = *c;
  clv_tensor_ref(at->tensor);
  return CLV_OK;
}

/* ---- choosing the next chunk ----------------------------------------------------------------- */

static uint64_t add_probe(clv_pace *p, uint32_t index, uint64_t now) {
  if (p->n_probes == MAX_PROBES) return 0;
  uint64_t number = PROBE_BIT | ++p->last_ping_id;
  p->probes[p->n_probes++] = (clv_probe){number, p->sent_bytes[index], now, p->in_flight, index};
  return number;
}

/* Assumes that all bytes sent so far are received. Called after a pause without open probes: the
 * last chunks of a transfer have no probe behind them, so no PONG reports them. */
static void assume_bytes_received(clv_pace *p) {
  memcpy(p->assumed_bytes, p->sent_bytes, sizeof p->assumed_bytes);
}

uint64_t clv_pace_bytes_in_flight(const clv_pace *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; p->n_probes && i < MAX_LANES; i++)
    bytes += p->sent_bytes[i] - CLV_MAX(p->assumed_bytes[i], p->confirmed_bytes[i]);
  return bytes;
}

/* Chooses the next chunk. The first chunk after a pause has a probe, and less than an eighth of the
 * window is in flight without one, so the last chunks of a transfer need no probe. If the window
 * has shrunk since, such chunks may fill it while no probe is open. One more chunk is then sent,
 * with a probe. */
bool clv_pace_take_next_chunk(clv_pace *p, uint64_t now, clv_chunk_send *ret) {
  if (!p->n_chunks) return false;
  *ret = (clv_chunk_send){.chunk = p->chunks[p->first]};
  size_t len = ret->chunk.len;
  bool has_no_open_probe = !p->n_probes,
       is_window_full = p->in_flight && p->in_flight + len > p->window;
  if (is_window_full && !has_no_open_probe) return false;
  p->first = (p->first + 1) % p->cap_chunks;
  p->n_chunks--;
  if (has_no_open_probe) assume_bytes_received(p);
  uint32_t n_bulk_lanes = p->n_lanes > 1 ? p->n_lanes - 1 : 0,
           i = n_bulk_lanes ? 1 + p->next_lane++ % n_bulk_lanes : 0;
  bool is_due = !p->empty_path_probed_ns || now - p->empty_path_probed_ns >= EMPTY_PATH_NS;
  /* sends the PING on lane 0, where no chunk of this link is in front of it */
  if (has_no_open_probe && n_bulk_lanes && is_due) {
    ret->ping_id_before = add_probe(p, 0, now);
    p->empty_path_probed_ns = now;
  }
  p->in_flight += len;
  p->sent_bytes[i] += len;
  ret->lane_index = i;
  bool is_covered =
      (p->sent_bytes[i] - p->probed_bytes[i]) * 8 * CLV_MAX(n_bulk_lanes, 1u) < p->window;
  if (is_covered && p->n_probes && !is_window_full) return true;
  ret->ping_id_with_chunk = add_probe(p, i, now);
  if (ret->ping_id_with_chunk) p->probed_bytes[i] = p->sent_bytes[i];
  return true;
}

/* ---- adapting the window --------------------------------------------------------------------- */

/* Records a round trip. Keeps the minimum of this period and of the one before. True: a new period
 * begins. */
static bool update_min_rtt(clv_pace *p, uint64_t now, uint64_t round_trip_ns) {
  bool is_new_period = p->min_rtt_ns && now - p->rtt_period_start_ns > PERIOD_NS;
  if (!p->min_rtt_ns || is_new_period) {
    p->prev_min_rtt_ns = p->min_rtt_ns ? p->min_rtt_ns : round_trip_ns;
    p->min_rtt_ns = round_trip_ns;
    p->rtt_period_start_ns = now;
  }
  p->min_rtt_ns = CLV_MIN(p->min_rtt_ns, round_trip_ns);
  return is_new_period;
}

static void close_window(clv_pace *p, uint64_t now) {
  p->window_before_closing = p->window;
  p->window = MIN_WINDOW;
  p->window_changed_ns = now;
}

/* Adapts the window to the round trip of a probe, while b->in_flight bytes were in flight. The
 * window grows only up to these bytes, because a smaller load does not show that a larger window is
 * good. */
static void adjust_window(clv_pace *p, uint64_t now, const clv_probe *b) {
  uint64_t round_trip_ns = CLV_MAX(now - b->sent_ns, UINT64_C(1)),
           saved_window = p->window_before_closing;
  if (update_min_rtt(p, now, round_trip_ns) && !saved_window) close_window(p, now);
  if (b->sent_ns < p->window_changed_ns)
    /* the probe was sent before the last change of the window, so it does not show the effect */
    return;
  double target_rtt_ns = (double)(CLV_MIN(p->min_rtt_ns, p->prev_min_rtt_ns) + QUEUE_NS);
  double by = target_rtt_ns / (double)round_trip_ns, window = (double)p->window;
  if (saved_window)
    window = (double)saved_window;
  else if (by < 1)
    window *= CLV_MAX(by, 0.5);
  else
    window = CLV_MAX(window, CLV_MIN(2 * window, by * (double)b->in_flight));
  p->window = (uint64_t)CLV_MIN(CLV_MAX(window, (double)MIN_WINDOW), (double)MAX_WINDOW);
  p->window_before_closing = 0;
  p->window_changed_ns = now;
}

/* Subtracts the bytes that a probe confirms from those in flight. */
static void subtract_confirmed_bytes(clv_pace *p, const clv_probe *b) {
  if (b->confirmed_bytes <= p->confirmed_bytes[b->lane_index]) return;
  p->in_flight -= b->confirmed_bytes - p->confirmed_bytes[b->lane_index];
  p->confirmed_bytes[b->lane_index] = b->confirmed_bytes;
}

clv_code clv_pace_handle_pong(clv_pace *p, uint64_t number, uint64_t now, clv_err *err) {
  uint32_t at = 0;
  while (at < p->n_probes && p->probes[at].ping_id != number) at++;
  if (at == p->n_probes)
    return clv_fail(err, CLV_INVALID,
                    "PONG to PING %llu, which was not sent or was answered before",
                    (unsigned long long)number);
  clv_probe b = p->probes[at];
  memmove(&p->probes[at], &p->probes[at + 1], (--p->n_probes - at) * sizeof b);
  subtract_confirmed_bytes(p, &b);
  if (b.lane_index || p->n_lanes < 2)
    adjust_window(p, now, &b);
  else
    (void)update_min_rtt(p, now, now - b.sent_ns);
  return CLV_OK;
}
