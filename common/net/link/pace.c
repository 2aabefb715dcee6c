/* SPDX-License-Identifier: Apache-2.0
 *
 * How many bytes of chunks may be on their way at once. All connections of a link usually wait in
 * one queue, that of its slowest hop, and TCP likes to fill it: an ABORT would wait behind seconds
 * of chunks. So chunks are handed to the transport only while less than `window` of them have not
 * been reported, and the window follows the time they take: what the way takes when its queue is
 * empty, and QUEUE_NS more, which keeps the link busy (the rule of FAST TCP and LEDBAT, RFC 6817,
 * per link).
 *
 * A report is the PONG to a PING that was sent behind chunks on their lane: lanes keep their order.
 * A PING on lane 0 before the first chunk after a pause shows the way when it is empty: the
 * shortest time of late is taken for that. It is forgotten in PERIOD_NS, because ways change; when
 * there was no pause so long, the window closes for a moment, so that what is measured anew is not
 * our own queue.
 */
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

#define QUEUE_NS UINT64_C(45000000)
#define PERIOD_NS UINT64_C(10000000000)

/* ---- what waits ------------------------------------------------------------------------------ */

void clv_pace_init(clv_pace *p) { p->window = FIRST_WINDOW; }

void clv_pace_clear(clv_pace *p) {
  for (; p->n_chunks; p->n_chunks--, p->first = (p->first + 1) % p->cap_chunks)
    clv_tensor_unref(p->chunks[p->first].tensor);
  free(p->chunks);
  p->chunks = NULL;
  p->cap_chunks = 0;
}

static clv_code make_room(clv_pace *p, clv_err *err) {
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

clv_code clv_pace_queue(clv_pace *p, const clv_chunk *c, clv_err *err) {
  CLV_TRY(make_room(p, err));
  clv_chunk *at = &p->chunks[(p->first + p->n_chunks++) % p->cap_chunks];
  *at = *c;
  clv_tensor_ref(at->tensor);
  return CLV_OK;
}

/* ---- what leaves ----------------------------------------------------------------------------- */

static uint64_t add_probe(clv_pace *p, uint32_t index, uint64_t now) {
  if (p->n_probes == MAX_PROBES) return 0;
  uint64_t number = PROBE_BIT | ++p->last_probe;
  p->probes[p->n_probes++] = (clv_probe){number, p->sent[index], now, p->in_flight, index};
  return number;
}

/* What came last in transfers is never reported: of it nothing shows that it is still under way. */
static void settle(clv_pace *p) { memcpy(p->settled, p->sent, sizeof p->settled); }

uint64_t clv_pace_in_flight(const clv_pace *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; p->n_probes && i < MAX_LANES; i++)
    bytes += p->sent[i] - CLV_MAX(p->settled[i], p->reported[i]);
  return bytes;
}

/* Probes are so close that less than an eighth of the window can be on its way without one: what
 * comes last in a transfer needs none. But a window that has become smaller since may be full of
 * it, with nobody to report that it has come: then a chunk leaves all the same, and asks. */
bool clv_pace_next(clv_pace *p, uint64_t now, clv_chunk_send *ret) {
  if (!p->n_chunks) return false;
  *ret = (clv_chunk_send){.chunk = p->chunks[p->first]};
  size_t len = ret->chunk.len;
  bool silent = !p->n_probes, full = p->in_flight && p->in_flight + len > p->window;
  if (full && !silent) return false;
  p->first = (p->first + 1) % p->cap_chunks;
  p->n_chunks--;
  if (silent) settle(p);
  uint32_t bulk = p->n_lanes > 1 ? p->n_lanes - 1 : 0, i = bulk ? 1 + p->next_lane++ % bulk : 0;
  if (!p->n_probes && bulk) ret->before = add_probe(p, 0, now); /* nothing of ours is in its way */
  p->in_flight += len;
  p->sent[i] += len;
  ret->index = i;
  if (!full && (p->sent[i] - p->probed[i]) * 8 * CLV_MAX(bulk, 1u) < p->window) return true;
  ret->after = add_probe(p, i, now);
  if (ret->after) p->probed[i] = p->sent[i];
  return true;
}

/* ---- what is learned ------------------------------------------------------------------------- */

/* The shortest time of this period and the one before. True when a new period begins. */
static bool learn_way(clv_pace *p, uint64_t now, uint64_t took) {
  bool over = p->shortest && now - p->period_began > PERIOD_NS;
  if (!p->shortest || over) {
    p->shortest_before = p->shortest ? p->shortest : took;
    p->shortest = took;
    p->period_began = now;
  }
  p->shortest = CLV_MIN(p->shortest, took);
  return over;
}

static void close_window(clv_pace *p, uint64_t now) {
  p->kept = p->window;
  p->window = LEAST_WINDOW;
  p->changed = now;
}

/* What a probe behind chunks says: so many bytes were on their way and took so long. A larger
 * window is not known to be good because less than it was well. */
static void adapt(clv_pace *p, uint64_t now, const clv_probe *b) {
  uint64_t took = CLV_MAX(now - b->at, UINT64_C(1)), kept = p->kept;
  if (learn_way(p, now, took) && !kept) close_window(p, now);
  if (b->at < p->changed) return; /* it does not show yet what the last change did */
  double want = (double)(CLV_MIN(p->shortest, p->shortest_before) + QUEUE_NS);
  double by = want / (double)took, window = (double)p->window;
  if (kept)
    window = (double)kept;
  else if (by < 1)
    window *= CLV_MAX(by, 0.5);
  else
    window = CLV_MAX(window, CLV_MIN(2 * window, by * (double)b->in_flight));
  p->window = (uint64_t)CLV_MIN(CLV_MAX(window, (double)LEAST_WINDOW), (double)MOST_WINDOW);
  p->kept = 0;
  p->changed = now;
}

/* What a probe was sent behind has come. */
static void note_come(clv_pace *p, const clv_probe *b) {
  if (b->until <= p->reported[b->lane]) return;
  p->in_flight -= b->until - p->reported[b->lane];
  p->reported[b->lane] = b->until;
}

clv_code clv_pace_report(clv_pace *p, uint64_t number, uint64_t now, clv_err *err) {
  uint32_t at = 0;
  while (at < p->n_probes && p->probes[at].number != number) at++;
  if (at == p->n_probes)
    return clv_fail(err, CLV_INVALID, "a PONG to PING %llu, which was not sent or was answered",
                    (unsigned long long)number);
  clv_probe b = p->probes[at];
  memmove(&p->probes[at], &p->probes[at + 1], (--p->n_probes - at) * sizeof b);
  note_come(p, &b);
  if (b.lane || p->n_lanes < 2)
    adapt(p, now, &b);
  else
    (void)learn_way(p, now, now - b.at);
  return CLV_OK;
}
