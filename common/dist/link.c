/* SPDX-License-Identifier: Apache-2.0
 *
 * One logical stream over 1 + k gRPC streams, each on a connection of its own. Lane 0 carries every
 * frame that is not a CHUNK, so that an ABORT overtakes a large tensor; the bulk lanes share the
 * chunks in turn. Chunks and the head they belong to arrive in any order: whichever comes first
 * makes the entry in `incoming`, and the packet is delivered when all its tensors are whole.
 *
 * The chunks of a tensor are queued before its head, so that each is summed when it leaves, or as it
 * comes, and no pass over the whole tensor stands before or after the transfer.
 */
#include "common/dist/dist_int.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  MAX_LANES = 1 + CLV_WIRE_LANES,
  MAX_INCOMING = 512,
  MAX_SPANS = 512, /* of one tensor on its way: chunks may come in any order */
  FEW_SPANS = 64,  /* memory for these is reused from tensor to tensor */
  READY_INCOMING = 32, /* tensors that may be on their way before memory is taken for spans */
  KEPT_HEADS = 16,
  /* Packets of a peer that are not freed yet: the work of a step, several times over. */
  MAX_PACKETS = 2 * CLV_WIRE_MICRO_BATCHES,
  POLITE_CLOSE_MS = 500, /* for the peer to end its side of a lane */
  CUT_MS = 10000,        /* for a cancelled lane to be gone */
  MAX_UNSENT = MAX_PACKETS, /* frames on the control lane that the peer does not take */
};

typedef struct lane {
  clv_link *link; /* NULL until ATTACH is understood (accepting side) */
  clv_rpc_stream *stream;
  uint32_t index;
  bool dialled, attached;
  const clv_lane_acceptor *acceptor;
  char uri[CLV_WIRE_URI + 1];
} lane;

/* Bytes [from, to) of a tensor that a chunk has claimed. */
typedef struct span { uint64_t from, to; } span;

/* A tensor on its way in. `packet` is NULL until its head has come. */
typedef struct incoming {
  uint64_t transfer, total, received;
  clv_tensor *tensor;
  clv_packet *packet;
  uint32_t slot, crc32c;
  span *spans; /* [n_spans] apart from each other, in order; kept by the place in the table */
  size_t n_spans, cap_spans;
} incoming;

struct clv_link {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* attached, closed, pong */
  int refs;
  char peer[CLV_WIRE_NAME + 1];
  clv_pool *pool;
  clv_wire_limits accept;
  clv_link_events events;

  lane *lanes[MAX_LANES];
  clv_rpc_channel *channels[MAX_LANES]; /* dialling side */
  uint32_t n_lanes, n_attached, next_bulk;
  bool closed;
  clv_code close_code;
  char close_text[CLV_ERR_TEXT];

  uint64_t credit_left, credit_full;      /* what we may send */
  uint64_t held_in, credit_due;           /* what the peer has sent and not been given back */
  clv_packet *pending_first, *pending_last;
  uint64_t next_transfer;

  incoming in[MAX_INCOMING];
  size_t n_in;
  uint32_t n_packets; /* received and not freed yet */
  uint32_t n_unsent;  /* frames on lane 0 that the transport has not accepted; atomic */
  clv_bytes heads[KEPT_HEADS]; /* encode buffers, reused */
  size_t n_heads;

  clv_link_counts counts;
  uint64_t ping_sent_ns, pongs;
};

/* ---- lifetime -------------------------------------------------------------------------------- */

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
  l->accept = o->accept;
  l->events = o->events;
  l->credit_left = l->credit_full = o->send_credit;
  for (int i = 0; i < READY_INCOMING; i++) {
    clv_code code = clv_alloc(FEW_SPANS, sizeof(span), &l->in[i].spans, err);
    if (code != CLV_OK) {
      clv_link_unref(l);
      return code;
    }
    l->in[i].cap_spans = FEW_SPANS;
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

void clv_link_count(clv_link *l, clv_link_counts *ret) {
  const clv_link_counts *c = &l->counts; /* counted by several threads without the lock */
  *ret = (clv_link_counts){.bytes_in = __atomic_load_n(&c->bytes_in, __ATOMIC_RELAXED),
                           .bytes_out = __atomic_load_n(&c->bytes_out, __ATOMIC_RELAXED),
                           .tensors_in = __atomic_load_n(&c->tensors_in, __ATOMIC_RELAXED),
                           .tensors_out = __atomic_load_n(&c->tensors_out, __ATOMIC_RELAXED)};
  pthread_mutex_lock(&l->lock);
  ret->round_trip_ns = c->round_trip_ns;
  pthread_mutex_unlock(&l->lock);
}

bool clv_link_blocked(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  bool blocked = l->pending_first != NULL;
  pthread_mutex_unlock(&l->lock);
  return blocked;
}

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

/* The first end of any lane ends the link: streams are cancelled, what waits is dropped. */
static void link_end(clv_link *l, clv_code code, const char *text) {
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
  clv_rpc_stream *left[MAX_LANES];
  link_end(l, CLV_OK, "closed");
  uint32_t n = lanes_left(l, POLITE_CLOSE_MS, left);
  cut_lanes(left, n);
  if (n) cut_lanes(left, lanes_left(l, CUT_MS, left));
  for (uint32_t i = 0; i < MAX_LANES; i++) clv_rpc_channel_freep(&l->channels[i]);
}

/* ---- sending --------------------------------------------------------------------------------- */

static clv_bytes head_take(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  clv_bytes b = l->n_heads ? l->heads[--l->n_heads] : (clv_bytes){0};
  pthread_mutex_unlock(&l->lock);
  return b;
}

static void head_put(clv_link *l, clv_bytes b) {
  pthread_mutex_lock(&l->lock);
  bool keep = l->n_heads < KEPT_HEADS;
  if (keep) l->heads[l->n_heads++] = b;
  pthread_mutex_unlock(&l->lock);
  if (!keep) clv_bytes_done(&b);
}

static void release_tensor(void *owner) { clv_tensor_unref(owner); }

static clv_rpc_stream *lane_stream(clv_link *l, uint32_t index) {
  pthread_mutex_lock(&l->lock);
  lane *ln = l->closed ? NULL : l->lanes[index];
  clv_rpc_stream *s = ln ? clv_rpc_stream_ref(ln->stream) : NULL;
  pthread_mutex_unlock(&l->lock);
  return s;
}

/* One frame on one lane: the encoded head is copied by rpc, payload pieces go by reference. */
static clv_code send_frame(clv_link *l, uint32_t index, const clv_frame *f, clv_rpc_piece *pieces,
                           size_t n_payload, size_t payload, clv_err *err) {
  CLV_AUTO(clv_rpc_stream_unrefp) clv_rpc_stream *stream = lane_stream(l, index);
  clv_bytes head = head_take(l);
  clv_code code = clv_frame_encode(f, payload, &head, err);
  /* Who asks and never reads the answers must not make them pile up here. */
  bool counted = code == CLV_OK && index == 0;
  if (counted && __atomic_add_fetch(&l->n_unsent, 1, __ATOMIC_RELAXED) > MAX_UNSENT)
    code = clv_fail(err, CLV_EXHAUSTED, "%s does not read: %d messages wait for it", l->peer,
                    MAX_UNSENT);
  if (code == CLV_OK && !stream)
    code = clv_fail(err, CLV_UNAVAILABLE, "the connection to %s has ended: %s", l->peer,
                    l->close_text);
  pieces[0] = (clv_rpc_piece){.data = head.data, .len = head.len};
  if (code == CLV_OK) {
    /* Counted first: the peer may answer, and close, before the call below returns. */
    __atomic_fetch_add(&l->counts.bytes_out, head.len + payload, __ATOMIC_RELAXED);
    code = clv_rpc_stream_send(stream, pieces, n_payload + 1, err);
    counted &= code != CLV_OK; /* else lane_sent will */
  } else {
    for (size_t i = 1; i <= n_payload; i++)
      if (pieces[i].release) pieces[i].release(pieces[i].owner);
  }
  if (counted) __atomic_sub_fetch(&l->n_unsent, 1, __ATOMIC_RELAXED);
  head_put(l, head);
  return code;
}

static clv_code send_plain(clv_link *l, const clv_frame *f, clv_err *err) {
  clv_rpc_piece pieces[1];
  return send_frame(l, 0, f, pieces, 0, 0, err);
}

static clv_code send_inline(clv_link *l, clv_packet *p, clv_err *err) {
  clv_rpc_piece pieces[1 + CLV_WIRE_TENSORS];
  size_t payload = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    clv_tensor *t = p->tensor[i];
    p->frame.tensors[i].transfer = 0; /* a relayed packet came with ids of its own */
    p->frame.tensors[i].crc32c = clv_crc32c(0, t->data, t->bytes);
    pieces[i + 1] = (clv_rpc_piece){t->data, t->bytes, release_tensor, clv_tensor_ref(t)};
    payload += t->bytes;
  }
  return send_frame(l, 0, &p->frame, pieces, p->frame.n_tensors, payload, err);
}

static uint32_t bulk_lane(clv_link *l) {
  if (l->n_lanes < 2) return 0;
  uint32_t turn = __atomic_fetch_add(&l->next_bulk, 1, __ATOMIC_RELAXED);
  return 1 + turn % (l->n_lanes - 1);
}

static clv_code send_chunks(clv_link *l, clv_tensor *t, clv_tensor_head *head, clv_err *err) {
  head->crc32c = 0;
  for (size_t offset = 0; offset < t->bytes; offset += CLV_WIRE_CHUNK_BYTES) {
    size_t len = CLV_MIN(t->bytes - offset, (size_t)CLV_WIRE_CHUNK_BYTES);
    clv_frame f = {.kind = CLV_CHUNK};
    f.chunk.transfer = head->transfer;
    f.chunk.offset = offset;
    f.chunk.total = t->bytes;
    clv_rpc_piece pieces[2];
    head->crc32c = clv_crc32c(head->crc32c, (char *)t->data + offset, len);
    pieces[1] = (clv_rpc_piece){(char *)t->data + offset, len, release_tensor, clv_tensor_ref(t)};
    CLV_TRY(send_frame(l, bulk_lane(l), &f, pieces, 1, len, err));
  }
  return CLV_OK;
}

static clv_code send_chunked(clv_link *l, clv_packet *p, clv_err *err) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    p->frame.tensors[i].transfer = __atomic_add_fetch(&l->next_transfer, 1, __ATOMIC_RELAXED);
    CLV_TRY(send_chunks(l, p->tensor[i], &p->frame.tensors[i], err));
  }
  return send_plain(l, &p->frame, err);
}

static uint64_t tensor_bytes(const clv_packet *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) bytes += p->tensor[i]->bytes;
  return bytes;
}

static clv_code send_now(clv_link *l, clv_packet *p, clv_err *err) {
  uint64_t bytes = tensor_bytes(p);
  __atomic_fetch_add(&l->counts.tensors_out, p->frame.n_tensors, __ATOMIC_RELAXED);
  clv_code code =
      bytes <= CLV_WIRE_INLINE_MAX ? send_inline(l, p, err) : send_chunked(l, p, err);
  clv_packet_free(p);
  return code;
}

clv_code clv_link_send(clv_link *l, clv_packet *p, clv_err *err) {
  uint64_t bytes = tensor_bytes(p);
  if (p->frame.n_tensors && l->events.may_send) {
    clv_code code = l->events.may_send(l->events.user, l, p, err);
    if (code != CLV_OK) {
      clv_packet_free(p);
      return code;
    }
  }
  pthread_mutex_lock(&l->lock);
  /* The receiver may hold back the bytes of a frame that carried its tensors itself. */
  bool closed = l->closed;
  bool too_large = bytes > l->credit_full ||
                   (bytes > CLV_WIRE_INLINE_MAX && bytes > l->credit_full - CLV_WIRE_INLINE_MAX);
  bool wait = !closed && !too_large && (l->pending_first || bytes > l->credit_left);
  if (wait) {
    p->next = NULL;
    *(l->pending_last ? &l->pending_last->next : &l->pending_first) = p;
    l->pending_last = p;
  } else if (!closed && !too_large) {
    l->credit_left -= bytes;
  }
  pthread_mutex_unlock(&l->lock);
  if (wait) return CLV_OK;
  if (!closed && !too_large) return send_now(l, p, err);
  clv_packet_free(p);
  if (closed)
    return clv_fail(err, CLV_UNAVAILABLE, "the connection to %s has ended: %s", l->peer,
                    l->close_text);
  return clv_fail(err, CLV_EXHAUSTED,
                  "a message with %llu bytes of tensors exceeds the credit of %llu bytes that %s "
                  "grants; raise limits.credit there",
                  (unsigned long long)bytes, (unsigned long long)l->credit_full, l->peer);
}

static void credit_arrived(clv_link *l, uint64_t bytes) {
  pthread_mutex_lock(&l->lock);
  l->credit_left = CLV_MIN(l->credit_full, l->credit_left + CLV_MIN(bytes, l->credit_full));
  for (;;) {
    clv_packet *p = l->pending_first;
    if (!p || l->closed || tensor_bytes(p) > l->credit_left) break;
    l->credit_left -= tensor_bytes(p);
    l->pending_first = p->next;
    if (!p->next) l->pending_last = NULL;
    pthread_mutex_unlock(&l->lock);
    clv_err err;
    if (send_now(l, p, &err) != CLV_OK) link_end(l, err.code, err.text);
    pthread_mutex_lock(&l->lock);
  }
  pthread_mutex_unlock(&l->lock);
}

void clv_link_return_credit(clv_link *l, uint64_t bytes) {
  uint64_t grant = 0;
  pthread_mutex_lock(&l->lock);
  l->n_packets--;
  l->credit_due += bytes;
  /* What is held back when all is consumed must not be what the peer's next message waits for. */
  bool idle = l->credit_due == l->held_in && l->credit_due > CLV_WIRE_INLINE_MAX;
  if (idle || l->credit_due >= l->accept.credit_bytes / 4) {
    grant = l->credit_due;
    l->credit_due = 0;
    l->held_in -= CLV_MIN(grant, l->held_in);
  }
  bool closed = l->closed;
  pthread_mutex_unlock(&l->lock);
  if (!grant || closed) return;
  clv_frame f = {.kind = CLV_CREDIT};
  f.credit.bytes = grant;
  clv_err err;
  if (send_plain(l, &f, &err) != CLV_OK) link_end(l, err.code, err.text);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static incoming *find_incoming(clv_link *l, uint64_t transfer) {
  for (size_t i = 0; i < l->n_in; i++)
    if (l->in[i].transfer == transfer) return &l->in[i];
  return NULL;
}

/* Under the lock. The entry of a transfer, made when it is new: memory and credit are checked. */
static clv_code begin_incoming(clv_link *l, uint64_t transfer, uint64_t total, incoming **ret,
                               clv_err *err) {
  incoming *e = find_incoming(l, transfer);
  if (e && e->total != total)
    return clv_fail(err, CLV_INVALID, "transfer %llu states %llu bytes, then %llu",
                    (unsigned long long)transfer, (unsigned long long)e->total,
                    (unsigned long long)total);
  if (!e) {
    if (l->n_in == MAX_INCOMING)
      return clv_fail(err, CLV_EXHAUSTED, "more than %d tensors on their way", MAX_INCOMING);
    if (total > l->accept.credit_bytes - CLV_MIN(l->held_in, l->accept.credit_bytes))
      return clv_fail(err, CLV_EXHAUSTED, "%llu bytes of tensors exceed the credit of %llu",
                      (unsigned long long)(l->held_in + total),
                      (unsigned long long)l->accept.credit_bytes);
    clv_shape shape = CLV_SHAPE((int64_t)total);
    clv_tensor *t;
    CLV_TRY(clv_pool_tensor(l->pool, CLV_U8, &shape, &t, err));
    l->held_in += total;
    e = &l->in[l->n_in++];
    *e = (incoming){.transfer = transfer, .total = total, .tensor = t, .spans = e->spans,
                    .cap_spans = e->cap_spans};
  }
  *ret = e;
  return CLV_OK;
}

/* Under the lock. A packet whose tensors are all whole leaves the table; NULL otherwise. */
static clv_packet *finished(clv_link *l, clv_packet *p) {
  if (!p) return NULL;
  for (size_t i = 0; i < l->n_in; i++)
    if (l->in[i].packet == p && l->in[i].received < l->in[i].total) return NULL;
  for (size_t i = 0; i < l->n_in;) {
    if (l->in[i].packet != p) {
      i++;
      continue;
    }
    p->tensor[l->in[i].slot] = l->in[i].tensor;
    p->crc32c[l->in[i].slot] = l->in[i].crc32c;
    incoming last = l->in[--l->n_in];
    l->in[l->n_in] = (incoming){.spans = l->in[i].spans, .cap_spans = l->in[i].cap_spans};
    if (i < l->n_in) l->in[i] = last;
  }
  return p;
}

static clv_code deliver(clv_link *l, clv_packet *p, clv_err *err) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    const clv_tensor_head *h = &p->frame.tensors[i];
    uint32_t crc = p->crc32c[i];
    if (crc != h->crc32c) {
      clv_packet_free(p);
      return clv_fail(err, CLV_DATA_LOSS, "tensor %u of a %s frame: CRC32C is %08x, stated %08x", i,
                      clv_frame_kind_name(p->frame.kind), crc, h->crc32c);
    }
  }
  __atomic_fetch_add(&l->counts.tensors_in, p->frame.n_tensors, __ATOMIC_RELAXED);
  l->events.on_packet(l->events.user, l, p);
  return CLV_OK;
}

static clv_code insert_span(incoming *e, size_t at, span s, clv_err *err) {
  if (e->n_spans == MAX_SPANS)
    return clv_fail(err, CLV_EXHAUSTED, "transfer %llu comes in more than %d pieces",
                    (unsigned long long)e->transfer, MAX_SPANS);
  if (e->n_spans == e->cap_spans) {
    size_t cap = e->cap_spans ? 2 * e->cap_spans : FEW_SPANS;
    span *more = realloc(e->spans, cap * sizeof *more);
    if (!more) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    e->spans = more;
    e->cap_spans = cap;
  }
  memmove(e->spans + at + 1, e->spans + at, (e->n_spans - at) * sizeof *e->spans);
  e->spans[at] = s;
  e->n_spans++;
  return CLV_OK;
}

/* Under the lock. Claim [from, to) for one chunk: each byte comes once, or the tensor would be whole
 * with bytes that nobody sent. Neighbours melt into one span, so chunks in order need a single one. */
static clv_code claim(incoming *e, uint64_t from, uint64_t to, clv_err *err) {
  size_t at = e->n_spans;
  while (at > 0 && e->spans[at - 1].from >= to) at--;
  span *before = at > 0 ? &e->spans[at - 1] : NULL, *after = at < e->n_spans ? &e->spans[at] : NULL;
  if (before && before->to > from)
    return clv_fail(err, CLV_INVALID, "bytes %llu to %llu of transfer %llu came twice",
                    (unsigned long long)from, (unsigned long long)CLV_MIN(to, before->to),
                    (unsigned long long)e->transfer);
  bool joins_before = before && before->to == from, joins_after = after && after->from == to;
  if (joins_before && joins_after) {
    before->to = after->to;
    memmove(after, after + 1, (e->n_spans - at - 1) * sizeof *after);
    e->n_spans--;
  } else if (joins_before) {
    before->to = to;
  } else if (joins_after) {
    after->from = from;
  } else {
    return insert_span(e, at, (span){from, to}, err);
  }
  return CLV_OK;
}

static clv_code on_chunk(clv_link *l, const clv_frame *f, const clv_piece *pieces,
                         const clv_payload *payload, clv_err *err) {
  incoming *e;
  pthread_mutex_lock(&l->lock);
  clv_code code = begin_incoming(l, f->chunk.transfer, f->chunk.total, &e, err);
  if (code == CLV_OK) code = claim(e, f->chunk.offset, f->chunk.offset + payload->len, err);
  clv_tensor *t = code == CLV_OK ? clv_tensor_ref(e->tensor) : NULL;
  pthread_mutex_unlock(&l->lock);
  if (code != CLV_OK) return code;
  /* The one copy on the way in: from the transport's slices into the tensor. */
  char *at = (char *)t->data + f->chunk.offset;
  clv_payload_copy(pieces, payload, 0, payload->len, at);
  uint32_t crc = clv_crc32c_shift(clv_crc32c(0, at, payload->len),
                                  f->chunk.total - f->chunk.offset - payload->len);
  clv_packet *done = NULL;
  pthread_mutex_lock(&l->lock);
  e = find_incoming(l, f->chunk.transfer); /* it cannot be whole without this chunk */
  e->received += payload->len;
  e->crc32c ^= crc;
  done = finished(l, e->packet);
  pthread_mutex_unlock(&l->lock);
  clv_tensor_unref(t);
  return done ? deliver(l, done, err) : CLV_OK;
}

/* The head of a packet whose tensors come in chunks. */
static clv_code on_chunked(clv_link *l, clv_packet *p, clv_err *err) {
  clv_code code = CLV_OK;
  pthread_mutex_lock(&l->lock);
  for (uint32_t i = 0; i < p->frame.n_tensors && code == CLV_OK; i++) {
    const clv_tensor_head *h = &p->frame.tensors[i];
    incoming *e;
    code = begin_incoming(l, h->transfer, h->bytes, &e, err);
    if (code == CLV_OK && e->packet)
      code = clv_fail(err, CLV_INVALID, "transfer %llu is named twice",
                      (unsigned long long)h->transfer);
    if (code != CLV_OK) break;
    e->packet = p;
    e->slot = i;
    e->tensor->dtype = h->dtype;
    e->tensor->shape = h->shape;
    e->tensor->n = h->bytes / clv_dtype_size(h->dtype);
    p->credit += h->bytes;
  }
  if (code != CLV_OK)
    for (size_t i = 0; i < l->n_in; i++)
      if (l->in[i].packet == p) l->in[i].packet = NULL;
  clv_packet *done = code == CLV_OK ? finished(l, p) : NULL;
  pthread_mutex_unlock(&l->lock);
  if (code != CLV_OK) {
    p->frame.n_tensors = 0; /* no tensor of it is here yet */
    clv_packet_free(p);
  }
  return done ? deliver(l, done, err) : code;
}

static clv_code on_inline(clv_link *l, clv_packet *p, const clv_piece *pieces,
                          const clv_payload *payload, clv_err *err) {
  uint32_t n = p->frame.n_tensors;
  size_t from = 0;
  pthread_mutex_lock(&l->lock);
  bool over = payload->len > l->accept.credit_bytes - CLV_MIN(l->held_in, l->accept.credit_bytes);
  if (!over) l->held_in += payload->len;
  pthread_mutex_unlock(&l->lock);
  p->frame.n_tensors = 0;
  clv_code code = over ? clv_fail(err, CLV_EXHAUSTED, "tensors exceed the credit of %llu bytes",
                                  (unsigned long long)l->accept.credit_bytes)
                       : CLV_OK;
  p->credit = over ? 0 : payload->len;
  for (uint32_t i = 0; i < n && code == CLV_OK; i++) {
    const clv_tensor_head *h = &p->frame.tensors[i];
    code = clv_pool_tensor(l->pool, h->dtype, &h->shape, &p->tensor[i], err);
    if (code != CLV_OK) break;
    p->frame.n_tensors = i + 1;
    clv_payload_copy(pieces, payload, from, h->bytes, p->tensor[i]->data);
    p->crc32c[i] = clv_crc32c(0, p->tensor[i]->data, h->bytes);
    from += h->bytes;
  }
  if (code != CLV_OK) {
    clv_packet_free(p);
    return code;
  }
  return deliver(l, p, err);
}

static clv_code on_packet_frame(clv_link *l, const clv_frame *f, const clv_piece *pieces,
                                const clv_payload *payload, clv_err *err) {
  clv_packet *p;
  pthread_mutex_lock(&l->lock);
  bool flood = l->n_packets == MAX_PACKETS;
  l->n_packets += !flood;
  pthread_mutex_unlock(&l->lock);
  if (flood) return clv_fail(err, CLV_EXHAUSTED, "more than %d messages wait here", MAX_PACKETS);
  CLV_TRY(clv_packet_new(l->pool, f->kind, &p, err)); /* which ends the link: no need to count */
  p->frame = *f;
  p->from = clv_link_ref(l);
  bool chunked = f->n_tensors && f->tensors[0].transfer;
  return chunked ? on_chunked(l, p, err) : on_inline(l, p, pieces, payload, err);
}

static clv_code on_ping(clv_link *l, const clv_frame *f, clv_err *err) {
  clv_frame pong = {.kind = CLV_PONG, .message = f->message, .reply_to = f->message};
  return send_plain(l, &pong, err);
}

static void on_pong(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  l->counts.round_trip_ns = clv_now_ns() - l->ping_sent_ns;
  l->pongs++;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

static clv_code on_frame(clv_link *l, uint32_t lane_index, const clv_frame *f,
                         const clv_piece *pieces, const clv_payload *payload, clv_err *err) {
  if (lane_index && f->kind != CLV_CHUNK)
    return clv_fail(err, CLV_PRECONDITION, "%s on bulk lane %u, where only CHUNK belongs",
                    clv_frame_kind_name(f->kind), lane_index);
  switch (f->kind) {
    case CLV_CHUNK: return on_chunk(l, f, pieces, payload, err);
    case CLV_CREDIT: credit_arrived(l, f->credit.bytes); return CLV_OK;
    case CLV_PING: return on_ping(l, f, err);
    case CLV_PONG: on_pong(l); return CLV_OK;
    case CLV_ATTACH:
    case CLV_ATTACHED:
      return clv_fail(err, CLV_PRECONDITION, "a second %s on one lane",
                      clv_frame_kind_name(f->kind));
    default: return on_packet_frame(l, f, pieces, payload, err);
  }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void lane_attached(clv_link *l, lane *ln, uint64_t credit) {
  pthread_mutex_lock(&l->lock);
  ln->attached = true;
  if (ln->index == 0) l->credit_left = l->credit_full = credit;
  l->n_attached++;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
}

static clv_code join_link(clv_link *l, lane *ln, const clv_frame *f, clv_err *err) {
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
  return send_frame(l, index, &reply, pieces, 0, 0, err);
}

static clv_code first_frame(lane *ln, const clv_frame *f, clv_err *err) {
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
  lane *ln = user;
  const clv_piece *pieces = (const clv_piece *)iov; /* same layout, by wire.h's contract */
  clv_frame f;
  clv_payload payload;
  clv_err err;
  clv_wire_limits limits = ln->link ? ln->link->accept : clv_wire_limits_default();
  clv_code code = clv_frame_decode(pieces, n, &limits, &f, &payload, &err);
  if (code == CLV_OK && ln->link)
    __atomic_fetch_add(&ln->link->counts.bytes_in, clv_iov_bytes(iov, n), __ATOMIC_RELAXED);
  if (code == CLV_OK)
    code = ln->attached ? on_frame(ln->link, ln->index, &f, pieces, &payload, &err)
                        : first_frame(ln, &f, &err);
  if (code == CLV_OK) return;
  if (ln->link) link_end(ln->link, code, err.text);
  clv_rpc_stream_cancel(stream, code, err.text);
}

static void lane_closed(void *user, clv_rpc_stream *stream, clv_code code, const char *text) {
  (void)stream;
  lane *ln = user;
  clv_link *l = ln->link;
  if (l) {
    link_end(l, code == CLV_OK ? CLV_UNAVAILABLE : code,
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
  lane *ln = user;
  (void)stream, (void)bytes;
  if (ln->link && ln->index == 0) __atomic_sub_fetch(&ln->link->n_unsent, 1, __ATOMIC_RELAXED);
}

static const clv_rpc_stream_events lane_events = {.on_message = lane_message,
                                                  .on_sent = lane_sent,
                                                  .on_closed = lane_closed};

clv_code clv_lane_accept(const clv_lane_acceptor *acceptor, const clv_rpc_peer *peer,
                         clv_rpc_stream *stream, clv_rpc_stream_events *ret_events, clv_err *err) {
  lane *ln;
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
  lane *ln;
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
  clv_rpc_piece pieces[1];
  return send_frame(l, index, &f, pieces, 0, 0, err);
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
  uint64_t before = l->pongs;
  l->ping_sent_ns = clv_now_ns();
  f.message = before + 1;
  pthread_mutex_unlock(&l->lock);
  CLV_TRY(send_plain(l, &f, err));
  pthread_mutex_lock(&l->lock);
  while (l->pongs == before && !l->closed)
    if (!wait_until(l, deadline)) break;
  bool answered = l->pongs != before;
  *ret_ns = answered ? l->counts.round_trip_ns : *ret_ns;
  pthread_mutex_unlock(&l->lock);
  if (!answered) return clv_fail(err, CLV_DEADLINE, "no answer to a PING of %s", l->peer);
  return CLV_OK;
}
