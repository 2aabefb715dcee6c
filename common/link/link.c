/* SPDX-License-Identifier: Apache-2.0 */
#include "common/link/link_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- lifetime -------------------------------------------------------------------------------- */

/* Memory that would otherwise be taken in the first step in which so many tensors come, or threads
 * send, at once. */
static clv_code make_ready(clv_link *l, clv_err *err) {
  for (int i = 0; i < READY_INCOMING; i++) {
    CLV_TRY(clv_alloc(FEW_SPANS, sizeof(clv_span), &l->in[i].spans, err));
    l->in[i].cap_spans = FEW_SPANS;
  }
  static const char nothing[HEAD_BYTES];
  for (; l->n_heads < READY_HEADS; l->n_heads++) {
    clv_bytes *b = &l->heads[l->n_heads];
    clv_bytes_add(b, nothing, sizeof nothing);
    if (b->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    b->len = 0;
  }
  return CLV_OK;
}

clv_code clv_link_new(const clv_link_options *o, clv_link **ret, clv_err *err) {
  clv_link *l;
  CLV_TRY(clv_alloc(1, sizeof *l, &l, err));
  pthread_mutex_init(&l->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&l->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  l->refs = 1;
  snprintf(l->peer, sizeof l->peer, "%s", o->peer_name);
  l->pool = clv_pool_ref(o->pool);
  l->quota_fails_packet = o->quota_fails_packet;
  l->accept = o->accept;
  l->events = o->events;
  l->credit_left = l->credit_full = o->send_credit;
  clv_link_pace_init(&l->pace);
  clv_code code = make_ready(l, err);
  if (code != CLV_OK) {
    clv_link_unref(l);
    return code;
  }
  *ret = l;
  return CLV_OK;
}

clv_link *clv_link_ref(clv_link *l) {
  __atomic_fetch_add(&l->refs, 1, __ATOMIC_RELAXED);
  return l;
}

static void drop_incoming(clv_link *l) {
  for (size_t i = 0; i < l->n_in; i++) clv_tensor_unref(l->in[i].tensor);
  for (size_t i = 0; i < MAX_INCOMING; i++) free(l->in[i].spans);
  l->n_in = 0;
}

void clv_link_unref(clv_link *l) {
  if (!l || __atomic_fetch_sub(&l->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  for (uint32_t i = 0; i < MAX_LANES; i++) clv_rpc_channel_free(l->channels[i]);
  drop_incoming(l);
  clv_link_pace_drop(&l->pace);
  for (size_t i = 0; i < l->n_heads; i++) clv_bytes_done(&l->heads[i]);
  clv_pool_unref(l->pool);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->lock);
  free(l);
}

void clv_link_unrefp(clv_link **l) {
  clv_link_unref(*l);
  *l = NULL;
}

const char *clv_link_peer(const clv_link *l) { return l->peer; }
bool clv_link_refused(const clv_link *l) { return __atomic_load_n(&l->refused, __ATOMIC_RELAXED); }

/* The packets of half-received tensors: their heads are here, so they are freed here. */
static void take_waiting_packets(clv_link *l, clv_packet **list) {
  for (size_t i = 0; i < l->n_in; i++) {
    clv_packet *p = l->in[i].packet;
    l->in[i].packet = NULL;
    if (!p) continue;
    for (size_t j = i + 1; j < l->n_in; j++)
      if (l->in[j].packet == p) l->in[j].packet = NULL;
    p->next = *list;
    *list = p;
  }
}

static void free_list(clv_packet *p) {
  for (clv_packet *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
}

void clv_link_end(clv_link *l, clv_code code, const char *text) {
  clv_rpc_stream *streams[MAX_LANES];
  uint32_t n = 0;
  clv_packet *drop = NULL;
  pthread_mutex_lock(&l->lock);
  if (l->closed) {
    pthread_mutex_unlock(&l->lock);
    return;
  }
  l->closed = true;
  l->close_code = code;
  snprintf(l->close_text, sizeof l->close_text, "%s", text);
  for (uint32_t i = 0; i < MAX_LANES; i++)
    if (l->lanes[i]) streams[n++] = clv_rpc_stream_ref(l->lanes[i]->stream);
  drop = l->pending_first;
  l->pending_first = l->pending_last = NULL;
  take_waiting_packets(l, &drop);
  clv_link_pace_drop(&l->pace);
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
  free_list(drop);
  for (uint32_t i = 0; i < n; i++) {
    if (code == CLV_OK)
      clv_rpc_stream_close(streams[i]);
    else
      clv_rpc_stream_cancel(streams[i], code, text);
    clv_rpc_stream_unref(streams[i]);
  }
  l->events.on_closed(l->events.user, l, code, text);
}

static bool wait_until(clv_link *l, uint64_t deadline_ns) {
  struct timespec ts = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
  return pthread_cond_timedwait(&l->changed, &l->lock, &ts) == 0;
}

/* Wait until no lane is left, at most `ms`; the streams of those that are, with references. */
static uint32_t lanes_left(clv_link *l, unsigned ms, clv_rpc_stream *ret[MAX_LANES]) {
  uint64_t deadline = clv_now_ns() + (uint64_t)ms * 1000000u;
  uint32_t n;
  pthread_mutex_lock(&l->lock);
  do {
    n = 0;
    for (uint32_t i = 0; i < MAX_LANES; i++)
      if (l->lanes[i]) ret[n++] = l->lanes[i]->stream;
  } while (n && wait_until(l, deadline));
  for (uint32_t i = 0; i < n; i++) clv_rpc_stream_ref(ret[i]);
  pthread_mutex_unlock(&l->lock);
  return n;
}

static void cut_lanes(clv_rpc_stream **streams, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    clv_rpc_stream_cancel(streams[i], CLV_CANCELLED, "closed");
    clv_rpc_stream_unref(streams[i]);
  }
}

/* A peer that goes on sending after our half close is cut off: nothing may run on the lanes when
 * the runtime goes. */
void clv_link_close(clv_link *l) {
  if (!l) return;
  clv_rpc_stream *left[MAX_LANES];
  clv_link_end(l, CLV_OK, "closed");
  uint32_t n = lanes_left(l, POLITE_CLOSE_MS, left);
  cut_lanes(left, n);
  if (n) cut_lanes(left, lanes_left(l, CUT_MS, left));
  for (uint32_t i = 0; i < MAX_LANES; i++) clv_rpc_channel_freep(&l->channels[i]);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void lane_attached(clv_link *l, clv_lane *ln, uint64_t credit) {
  pthread_mutex_lock(&l->lock);
  ln->attached = true;
  if (ln->index == 0) l->credit_left = l->credit_full = credit;
  l->n_attached++;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

static clv_code join_link(clv_link *l, clv_lane *ln, const clv_frame *f, clv_err *err) {
  uint32_t index = f->attach.lane, lanes = 1 + f->attach.lanes;
  pthread_mutex_lock(&l->lock);
  bool bad = l->closed || index >= MAX_LANES || index >= lanes || l->lanes[index] ||
             (l->n_lanes && l->n_lanes != lanes);
  if (!bad) {
    l->n_lanes = lanes;
    l->lanes[index] = ln;
    ln->index = index;
    ln->link = clv_link_ref(l);
  }
  pthread_mutex_unlock(&l->lock);
  if (bad)
    return clv_fail(err, CLV_PRECONDITION, "lane %u of %u is taken, out of range or too late",
                    index, lanes);
  lane_attached(l, ln, l->credit_full);
  clv_frame reply = {.kind = CLV_ATTACHED};
  reply.attached.credit_bytes = l->accept.credit_bytes;
  clv_rpc_piece pieces[1];
  return clv_link_send_frame(l, index, &reply, pieces, 0, 0, err);
}

static clv_code first_frame(clv_lane *ln, const clv_frame *f, clv_err *err) {
  if (ln->dialled) {
    if (f->kind != CLV_ATTACHED)
      return clv_fail(err, CLV_PRECONDITION, "expected ATTACHED, got %s",
                      clv_frame_kind_name(f->kind));
    lane_attached(ln->link, ln, f->attached.credit_bytes);
    return CLV_OK;
  }
  if (f->kind != CLV_ATTACH)
    return clv_fail(err, CLV_PRECONDITION, "the first frame must be ATTACH, not %s",
                    clv_frame_kind_name(f->kind));
  CLV_AUTO(clv_link_unrefp) clv_link *l = NULL;
  CLV_TRY(ln->acceptor->find_link(ln->acceptor->user, f, ln->uri, &l, err));
  return join_link(l, ln, f, err);
}

static void lane_message(void *user, clv_rpc_stream *stream, const clv_iov *iov, size_t n) {
  clv_lane *ln = user;
  const clv_piece *pieces = (const clv_piece *)iov; /* same layout, by wire.h's contract */
  clv_frame f;
  clv_payload payload;
  clv_err err;
  clv_wire_limits limits = ln->link ? ln->link->accept : clv_wire_limits_default();
  clv_code code = clv_frame_decode(pieces, n, &limits, &f, &payload, &err);
  if (code == CLV_OK && ln->link)
    __atomic_fetch_add(&ln->link->counts.bytes_in, clv_iov_bytes(iov, n), __ATOMIC_RELAXED);
  if (code == CLV_OK)
    code = ln->attached ? clv_link_on_frame(ln->link, ln->index, &f, pieces, &payload, &err)
                        : first_frame(ln, &f, &err);
  if (code == CLV_OK) return;
  if (ln->link) {
    __atomic_store_n(&ln->link->refused, code != CLV_EXHAUSTED, __ATOMIC_RELAXED);
    clv_link_end(ln->link, code, err.text);
  }
  clv_rpc_stream_cancel(stream, code, err.text);
}

static void lane_closed(void *user, clv_rpc_stream *stream, clv_code code, const char *text) {
  (void)stream;
  clv_lane *ln = user;
  clv_link *l = ln->link;
  if (l) {
    clv_link_end(l, code == CLV_OK ? CLV_UNAVAILABLE : code,
                 code == CLV_OK ? "the peer ended the stream" : text);
    pthread_mutex_lock(&l->lock);
    l->lanes[ln->index] = NULL;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    clv_link_unref(l);
  }
  clv_rpc_stream_unref(ln->stream);
  free(ln);
}

static void lane_sent(void *user, clv_rpc_stream *stream, size_t bytes) {
  clv_lane *ln = user;
  (void)stream, (void)bytes;
  if (ln->link && ln->index == 0) __atomic_sub_fetch(&ln->link->n_unsent, 1, __ATOMIC_RELAXED);
}

static const clv_rpc_stream_events lane_events = {
    .on_message = lane_message, .on_sent = lane_sent, .on_closed = lane_closed};

clv_code clv_lane_accept(const clv_lane_acceptor *acceptor, const clv_rpc_peer *peer,
                         clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err) {
  clv_lane *ln;
  CLV_TRY(clv_alloc(1, sizeof *ln, &ln, err));
  ln->acceptor = acceptor;
  ln->stream = clv_rpc_stream_ref(stream);
  snprintf(ln->uri, sizeof ln->uri, "%s", peer->uri);
  *ret_events = lane_events;
  ret_events->user = ln;
  return CLV_OK;
}

/* ---- dialling -------------------------------------------------------------------------------- */

static clv_code dial_lane(clv_rpc_runtime *runtime, clv_link *l, const clv_link_dial *d,
                          uint32_t index, clv_err *err) {
  clv_rpc_channel_options channel = {
      .target = d->address, .expected_uri = d->identity, .pem = d->pem, .limits = d->limits};
  CLV_TRY(clv_rpc_channel_new(runtime, &channel, &l->channels[index], err));
  CLV_TRY(clv_rpc_channel_connect(l->channels[index], d->timeout_ms, err));
  clv_lane *ln;
  CLV_TRY(clv_alloc(1, sizeof *ln, &ln, err));
  ln->dialled = true;
  ln->index = index;
  ln->link = clv_link_ref(l);
  clv_rpc_stream_events events = lane_events;
  events.user = ln;
  /* Held across the open (which never blocks): a stream that ends at once looks for its entry. */
  CLV_AUTO(clv_rpc_stream_unrefp) clv_rpc_stream *mine = NULL;
  pthread_mutex_lock(&l->lock);
  clv_code code = clv_rpc_stream_open(l->channels[index], CLV_METHOD_SESSION, &events, &mine, err);
  if (code == CLV_OK) {
    ln->stream = clv_rpc_stream_ref(mine);
    l->lanes[index] = ln;
  }
  pthread_mutex_unlock(&l->lock);
  if (code != CLV_OK) {
    clv_link_unref(l);
    free(ln);
    return code;
  }
  clv_frame f = {.kind = CLV_ATTACH};
  f.attach.session = d->session;
  f.attach.incarnation = d->incarnation;
  f.attach.epoch = d->epoch;
  f.attach.lane = index;
  f.attach.lanes = d->bulk_lanes;
  f.attach.role = d->role;
  if (d->owner) snprintf(f.attach.owner, sizeof f.attach.owner, "%s", d->owner);
  clv_rpc_piece pieces[1];
  return clv_link_send_frame(l, index, &f, pieces, 0, 0, err);
}

static clv_code wait_attached(clv_link *l, const clv_link_dial *d, clv_err *err) {
  uint64_t deadline = clv_now_ns() + (uint64_t)d->timeout_ms * 1000000u;
  clv_code code = CLV_OK;
  pthread_mutex_lock(&l->lock);
  while (!l->closed && l->n_attached < l->n_lanes)
    if (!wait_until(l, deadline)) break;
  if (l->closed)
    code = clv_fail(err, l->close_code, "%s", l->close_text);
  else if (l->n_attached < l->n_lanes)
    code = clv_fail(err, CLV_DEADLINE, "%s did not attach the session within %u ms", l->peer,
                    d->timeout_ms);
  pthread_mutex_unlock(&l->lock);
  return code;
}

clv_code clv_link_open(clv_rpc_runtime *runtime, const clv_link_options *options,
                       const clv_link_dial *dial, clv_link **ret, clv_err *err) {
  clv_link *l;
  CLV_TRY(clv_link_new(options, &l, err));
  l->n_lanes = 1 + CLV_MIN(dial->bulk_lanes, (uint32_t)CLV_WIRE_LANES);
  clv_code code = CLV_OK;
  for (uint32_t i = 0; i < l->n_lanes && code == CLV_OK; i++)
    code = dial_lane(runtime, l, dial, i, err);
  if (code == CLV_OK) code = wait_attached(l, dial, err);
  if (code != CLV_OK) {
    if (clv_link_refused(l)) code = err->code = CLV_ANSWER;
    clv_link_close(l);
    clv_link_unref(l);
    return code;
  }
  *ret = l;
  return CLV_OK;
}

clv_code clv_link_ping(clv_link *l, unsigned timeout_ms, uint64_t *ret_ns, clv_err *err) {
  uint64_t deadline = clv_now_ns() + (uint64_t)timeout_ms * 1000000u;
  clv_frame f = {.kind = CLV_PING};
  pthread_mutex_lock(&l->lock);
  f.message = ++l->pings;
  l->ping_sent_ns = clv_now_ns();
  pthread_mutex_unlock(&l->lock);
  CLV_TRY(clv_link_send_plain(l, &f, err));
  pthread_mutex_lock(&l->lock);
  while (l->pongs != f.message && !l->closed)
    if (!wait_until(l, deadline)) break;
  bool answered = l->pongs == f.message;
  *ret_ns = answered ? l->counts.round_trip_ns : *ret_ns;
  pthread_mutex_unlock(&l->lock);
  if (!answered) return clv_fail(err, CLV_DEADLINE, "no answer to a PING of %s", l->peer);
  return CLV_OK;
}
