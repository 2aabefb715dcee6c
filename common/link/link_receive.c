/* SPDX-License-Identifier: Apache-2.0 */
#include "common/link/link_int.h"

#include <stdlib.h>
#include <string.h>

static clv_incoming *find_incoming(clv_link *l, uint64_t transfer) {
  for (size_t i = 0; i < l->n_in; i++)
    if (l->in[i].transfer == transfer) return &l->in[i];
  return NULL;
}

/* Under the lock. Memory for a tensor; *ret NULL: it is over the quota, and the link goes on. */
static clv_code memory_for(clv_link *l, uint64_t total, clv_tensor **ret, clv_err *err) {
  clv_shape shape = CLV_SHAPE((int64_t)total);
  clv_code code = clv_pool_tensor(l->pool, CLV_U8, &shape, ret, err);
  if (code != CLV_EXHAUSTED || !l->quota_fails_packet) return code;
  l->refusal = *err;
  *ret = NULL;
  return CLV_OK;
}

/* Under the lock. The entry of a transfer, made when it is new: memory and credit are checked. */
static clv_code begin_incoming(clv_link *l, uint64_t transfer, uint64_t total, clv_incoming **ret,
                               clv_err *err) {
  clv_incoming *e = find_incoming(l, transfer);
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
    clv_tensor *t;
    CLV_TRY(memory_for(l, total, &t, err));
    l->held_in += total;
    if (!l->n_in) l->receiving_since = clv_now_ns();
    e = &l->in[l->n_in++];
    *e = (clv_incoming){.transfer = transfer,
                        .total = total,
                        .tensor = t,
                        .spans = e->spans,
                        .cap_spans = e->cap_spans};
  }
  *ret = e;
  return CLV_OK;
}

/* Without its tensors; who obeys it says why. */
static void refuse_packet(clv_packet *p, const clv_err *why) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) clv_tensor_unref(p->tensor[i]);
  p->frame.n_tensors = 0;
  p->refused = true;
  p->frame.has_failure = p->frame.kind == CLV_VALUE;
  clv_frame_set_failure(&p->frame, why->code, why->text, "");
}

static bool has_all_tensors(const clv_packet *p) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++)
    if (!p->tensor[i]) return false;
  return true;
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
    clv_incoming last = l->in[--l->n_in];
    l->in[l->n_in] = (clv_incoming){.spans = l->in[i].spans, .cap_spans = l->in[i].cap_spans};
    if (i < l->n_in) l->in[i] = last;
  }
  if (!l->n_in) l->counts.receiving_ns += clv_now_ns() - l->receiving_since;
  if (!has_all_tensors(p)) refuse_packet(p, &l->refusal);
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
  p->arrived_ns = clv_now_ns();
  l->events.on_packet(l->events.user, l, p);
  return CLV_OK;
}

static clv_code insert_span(clv_incoming *e, size_t at, clv_span s, clv_err *err) {
  if (e->n_spans == MAX_SPANS)
    return clv_fail(err, CLV_EXHAUSTED, "transfer %llu comes in more than %d pieces",
                    (unsigned long long)e->transfer, MAX_SPANS);
  if (e->n_spans == e->cap_spans) {
    size_t cap = e->cap_spans ? 2 * e->cap_spans : FEW_SPANS;
    clv_span *more = realloc(e->spans, cap * sizeof *more);
    if (!more) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    e->spans = more;
    e->cap_spans = cap;
  }
  memmove(e->spans + at + 1, e->spans + at, (e->n_spans - at) * sizeof *e->spans);
  e->spans[at] = s;
  e->n_spans++;
  return CLV_OK;
}

/* Under the lock. Claim [from, to) for one chunk: each byte comes once, or the tensor would be
 * whole with bytes that nobody sent. Neighbours melt into one span, so chunks in order need a
 * single one. */
static clv_code claim(clv_incoming *e, uint64_t from, uint64_t to, clv_err *err) {
  size_t at = e->n_spans;
  while (at > 0 && e->spans[at - 1].from >= to) at--;
  clv_span *before = at > 0 ? &e->spans[at - 1] : NULL,
           *after = at < e->n_spans ? &e->spans[at] : NULL;
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
    return insert_span(e, at, (clv_span){from, to}, err);
  }
  return CLV_OK;
}

/* The one copy on the way in: from the transport's slices into the tensor. Returns its part of the
 * sum. */
static uint32_t take_chunk(clv_tensor *t, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload) {
  char *at = (char *)t->data + f->chunk.offset;
  clv_payload_copy(pieces, payload, 0, payload->len, at);
  return clv_crc32c_shift(clv_crc32c(0, at, payload->len),
                          f->chunk.total - f->chunk.offset - payload->len);
}

static clv_code on_chunk(clv_link *l, const clv_frame *f, const clv_piece *pieces,
                         const clv_payload *payload, clv_err *err) {
  clv_incoming *e;
  pthread_mutex_lock(&l->lock);
  /* The time of the first chunk itself is not known: it began before it came. */
  if (l->n_in) l->counts.received_bytes += payload->len;
  clv_code code = begin_incoming(l, f->chunk.transfer, f->chunk.total, &e, err);
  if (code == CLV_OK) code = claim(e, f->chunk.offset, f->chunk.offset + payload->len, err);
  clv_tensor *t = code == CLV_OK && e->tensor ? clv_tensor_ref(e->tensor) : NULL;
  pthread_mutex_unlock(&l->lock);
  if (code != CLV_OK) return code;
  uint32_t crc = t ? take_chunk(t, f, pieces, payload) : 0;
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

/* A CALL may be overtaken by what was sent after it. That it is coming is told in order. */
static clv_code announce(clv_link *l, clv_packet *p, clv_err *err) {
  clv_packet *head;
  if (p->frame.kind != CLV_CALL) return CLV_OK;
  CLV_TRY(clv_packet_new(l->pool, CLV_CALL, &head, err));
  pthread_mutex_lock(&l->lock);
  l->n_packets++;
  pthread_mutex_unlock(&l->lock);
  head->frame = p->frame;
  head->frame.n_tensors = 0;
  head->from = clv_link_ref(l);
  head->head = p->headed = true;
  l->events.on_packet(l->events.user, l, head);
  return CLV_OK;
}

/* The head of a packet whose tensors come in chunks. */
static clv_code on_chunked(clv_link *l, clv_packet *p, clv_err *err) {
  clv_code code = announce(l, p, err);
  pthread_mutex_lock(&l->lock);
  for (uint32_t i = 0; i < p->frame.n_tensors && code == CLV_OK; i++) {
    const clv_tensor_head *h = &p->frame.tensors[i];
    clv_incoming *e;
    code = begin_incoming(l, h->transfer, h->bytes, &e, err);
    if (code == CLV_OK && e->packet)
      code = clv_fail(err, CLV_INVALID, "transfer %llu is named twice",
                      (unsigned long long)h->transfer);
    if (code != CLV_OK) break;
    e->packet = p;
    e->slot = i;
    p->credit += h->bytes;
    if (!e->tensor) continue;
    e->tensor->dtype = h->dtype;
    e->tensor->shape = h->shape;
    e->tensor->n = h->bytes / clv_dtype_size(h->dtype);
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
  if (code == CLV_EXHAUSTED && !over && l->quota_fails_packet) {
    refuse_packet(p, err);
    code = CLV_OK;
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
  clv_frame pong = {
      .kind = CLV_PONG, .message = f->message, .reply_to = f->message, .has_measure = true};
  pthread_mutex_lock(&l->lock);
  pong.measure.received_bytes = l->counts.received_bytes;
  pong.measure.receiving_ns = clv_link_receiving_ns(l, clv_now_ns());
  pthread_mutex_unlock(&l->lock);
  pong.measure.clock_ns = clv_now_ns();
  return clv_link_send_plain(l, &pong, err);
}

/* Its clock was read halfway, as far as one can tell; nearest to the truth when all was quick. */
static void take_measure(clv_link *l, const clv_frame *f) {
  uint64_t halfway = l->ping_sent_ns + l->counts.round_trip_ns / 2;
  l->counts.peer_received_bytes = f->measure.received_bytes;
  l->counts.peer_receiving_ns = f->measure.receiving_ns;
  l->counts.peer_measured_ns = clv_now_ns();
  if (l->quickest_ns && l->quickest_ns <= l->counts.round_trip_ns) return;
  l->quickest_ns = l->counts.round_trip_ns;
  l->counts.clock_ahead_ns = (int64_t)(f->measure.clock_ns - halfway);
}

static clv_code on_pong(clv_link *l, const clv_frame *f, clv_err *err) {
  if (f->reply_to & PROBE_BIT) return clv_link_pace_report(l, f->reply_to, err);
  pthread_mutex_lock(&l->lock);
  if (f->reply_to == l->pings) {
    l->counts.round_trip_ns = clv_now_ns() - l->ping_sent_ns;
    if (f->has_measure) take_measure(l, f);
  }
  l->pongs = f->reply_to;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->lock);
  return CLV_OK;
}

clv_code clv_link_on_frame(clv_link *l, uint32_t index, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload, clv_err *err) {
  if (index && f->kind != CLV_CHUNK && f->kind != CLV_PING)
    return clv_fail(err, CLV_PRECONDITION, "%s on bulk lane %u, where only CHUNK and PING belong",
                    clv_frame_kind_name(f->kind), index);
  switch (f->kind) {
    case CLV_CHUNK:
      return on_chunk(l, f, pieces, payload, err);
    case CLV_CREDIT:
      clv_link_credit_arrived(l, f->credit.bytes);
      return CLV_OK;
    case CLV_PING:
      return on_ping(l, f, err);
    case CLV_PONG:
      return on_pong(l, f, err);
    case CLV_ATTACH:
    case CLV_ATTACHED:
      return clv_fail(err, CLV_PRECONDITION, "a second %s on one lane",
                      clv_frame_kind_name(f->kind));
    default:
      return on_packet_frame(l, f, pieces, payload, err);
  }
}
