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
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/link/link_int.h"

#define QUEUE_NS UINT64_C(45000000)
#define PERIOD_NS UINT64_C(10000000000)

/* ---- what waits ------------------------------------------------------------------------------ */

void clv_link_pace_init(clv_pace *p) { p->window = FIRST_WINDOW; }

void clv_link_pace_drop(clv_pace *p) {
  for (; p->n_chunks; p->n_chunks--, p->first = (p->first + 1) % p->cap_chunks)
    clv_tensor_unref(p->chunks[p->first].tensor);
  free(p->chunks);
  p->chunks = NULL;
  p->cap_chunks = 0;
}

static clv_code make_room(clv_pace *p, clv_err *err) {
  clv_chunk *more;
  size_t cap = p->cap_chunks ? 2 * p->cap_chunks : FEW_CHUNKS;
  if (p->n_chunks < p->cap_chunks) return CLV_OK;
  CLV_TRY(clv_alloc(cap, sizeof *more, &more, err));
  for (size_t i = 0; i < p->n_chunks; i++) more[i] = p->chunks[(p->first + i) % p->cap_chunks];
  free(p->chunks);
  p->chunks = more;
  p->cap_chunks = cap;
  p->first = 0;
  return CLV_OK;
}

clv_code clv_link_pace_queue(clv_link *l, const clv_chunk *c, clv_err *err) {
  pthread_mutex_lock(&l->lock);
  clv_pace *p = &l->pace;
  clv_code code = l->closed ? CLV_OK : make_room(p, err); /* the end of the link drops it */
  if (code == CLV_OK && !l->closed) {
    clv_chunk *at = &p->chunks[(p->first + p->n_chunks++) % p->cap_chunks];
    *at = *c;
    clv_tensor_ref(at->tensor);
  }
  pthread_mutex_unlock(&l->lock);
  return code;
}

/* ---- what leaves ----------------------------------------------------------------------------- */

static uint64_t add_probe(clv_pace *p, uint32_t index) {
  if (p->n_probes == MAX_PROBES) return 0;
  uint64_t number = PROBE_BIT | ++p->last_probe;
  p->probes[p->n_probes++] = (clv_probe){number, p->sent[index], clv_now_ns(), p->in_flight, index};
  return number;
}

/* What came last in transfers is never reported: of it nothing shows that it is still under way. */
static void settle(clv_pace *p) {
#ifdef CLV_MUTATE_ON_THE_WAY
  return;
#endif
  memcpy(p->settled, p->sent, sizeof p->settled);
}

uint64_t clv_link_pace_on_the_way(const clv_pace *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; p->n_probes && i < MAX_LANES; i++)
    bytes += p->sent[i] - CLV_MAX(p->settled[i], p->reported[i]);
  return bytes;
}

/* Probes are so close that less than an eighth of the window can be on its way
 * without
 * one: what comes last in a transfer needs none. But a window that has become smaller since may be
 * full of it, with nobody to report that it has come: then a chunk leaves all the same, and
 * asks. */
bool clv_link_pace_next(clv_link *l, clv_departure *ret) {
  clv_pace *p = &l->pace;
  if (!p->n_chunks || l->closed) return false;
  *ret = (clv_departure){.chunk = p->chunks[p->first]};
  size_t len = ret->chunk.len;
  bool silent = !p->n_probes, full = p->in_flight && p->in_flight + len > p->window;
  if (full && !silent) return false;
  p->first = (p->first + 1) % p->cap_chunks;
  p->n_chunks--;
  if (silent) settle(p);
  uint32_t bulk = l->n_lanes > 1 ? l->n_lanes - 1 : 0, i = bulk ? 1 + p->next_lane++ % bulk : 0;
  if (!p->n_probes && bulk) ret->before = add_probe(p, 0); /* nothing of ours is in its way */
  p->in_flight += len;
  p->sent[i] += len;
  ret->index = i;
  if (!full && (p->sent[i] - p->probed[i]) * 8 * CLV_MAX(bulk, 1u) < p->window) return true;
  ret->behind = add_probe(p, i);
  if (ret->behind) p->probed[i] = p->sent[i];
  return true;
}

static clv_code send_chunk(clv_link *l, const clv_chunk *c, uint32_t index, clv_err *err) {
  clv_frame f = {.kind = CLV_CHUNK};
  f.chunk.transfer = c->transfer;
  f.chunk.offset = c->offset;
  f.chunk.total = c->tensor->bytes;
  clv_rpc_piece pieces[2];
  pieces[1] = (clv_rpc_piece){(char *)c->tensor->data + c->offset, c->len, clv_link_release_tensor,
                              c->tensor};
  return clv_link_send_frame(l, index, &f, pieces, 1, c->len, err);
}

static clv_code send_probe(clv_link *l, uint64_t number, uint32_t index, clv_err *err) {
  clv_frame f = {.kind = CLV_PING, .message = number};
  clv_rpc_piece pieces[1];
  return number ? clv_link_send_frame(l, index, &f, pieces, 0, 0, err) : CLV_OK;
}

clv_code clv_link_pace_send(clv_link *l, clv_err *err) {
  clv_departure d;
  for (;;) {
    pthread_mutex_lock(&l->lock);
    bool any = clv_link_pace_next(l, &d);
    pthread_mutex_unlock(&l->lock);
    if (!any) return CLV_OK;
    clv_code probed = send_probe(l, d.before, 0, err);
    clv_code code = send_chunk(l, &d.chunk, d.index, err); /* takes the tensor in any case */
    CLV_TRY(probed);
    CLV_TRY(code);
    CLV_TRY(send_probe(l, d.behind, d.index, err));
  }
}

static void send_more(clv_rpc_job *job) {
  clv_link *l = (clv_link *)(void *)((char *)job - offsetof(clv_link, pace.job));
  clv_err err;
  pthread_mutex_lock(&l->lock);
  l->pace.sending = false; /* a report that comes from now on starts another */
  pthread_mutex_unlock(&l->lock);
  if (clv_link_pace_send(l, &err) != CLV_OK) clv_link_end(l, err.code, err.text);
  clv_link_unref(l);
}

/* Summing is done, encrypting is not: that is no work for the thread that reads. */
static void start_sending(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  bool start = l->pace.n_chunks && !l->pace.sending && !l->closed && l->lanes[0];
  CLV_AUTO(clv_rpc_stream_unrefp)
  clv_rpc_stream *stream = start ? clv_rpc_stream_ref(l->lanes[0]->stream) : NULL;
  l->pace.sending |= start;
  pthread_mutex_unlock(&l->lock);
  if (!start) return;
  clv_link_ref(l); /* the job's */
  l->pace.job.run = send_more;
  if (!clv_rpc_stream_defer(stream, &l->pace.job)) send_more(&l->pace.job);
}

/* ---- what is learned ------------------------------------------------------------------------- */

/* The shortest time of this period and the one before. True when a new period begins. */
static bool learn_way(clv_pace *p, uint64_t now, uint64_t took) {
  bool turn = p->shortest && now - p->period_began > PERIOD_NS;
  if (!p->shortest || turn) {
    p->shortest_before = p->shortest ? p->shortest : took;
    p->shortest = took;
    p->period_began = now;
  }
  p->shortest = CLV_MIN(p->shortest, took);
  return turn;
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

clv_code clv_link_pace_report(clv_link *l, uint64_t number, clv_err *err) {
  uint64_t now = clv_now_ns();
  pthread_mutex_lock(&l->lock);
  clv_pace *p = &l->pace;
  uint32_t at = 0;
  while (at < p->n_probes && p->probes[at].number != number) at++;
  bool known = at < p->n_probes;
  if (known) {
    clv_probe b = p->probes[at];
    memmove(&p->probes[at], &p->probes[at + 1], (--p->n_probes - at) * sizeof b);
    if (b.until > p->reported[b.lane]) {
      p->in_flight -= b.until - p->reported[b.lane];
      p->reported[b.lane] = b.until;
    }
    if (b.lane || l->n_lanes < 2)
      adapt(p, now, &b);
    else
      (void)learn_way(p, now, now - b.at);
  }
  pthread_mutex_unlock(&l->lock);
  if (!known)
    return clv_fail(err, CLV_INVALID, "a PONG to PING %llu, which was not sent or was answered",
                    (unsigned long long)number);
  start_sending(l);
  return CLV_OK;
}
