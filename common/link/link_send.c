/* SPDX-License-Identifier: Apache-2.0 */
#include "common/link/link_int.h"

#include <stddef.h>

/* From here on summing, encrypting and copying a tensor takes longer than waking a thread that does
 * it, so the compute thread goes on instead. */
enum { DEFERRED_BYTES = 256 * 1024 };

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

void clv_link_release_tensor(void *owner) { clv_tensor_unref(owner); }

static clv_rpc_stream *lane_stream(clv_link *l, uint32_t index) {
  pthread_mutex_lock(&l->lock);
  clv_lane *ln = l->closed ? NULL : l->lanes[index];
  clv_rpc_stream *s = ln ? clv_rpc_stream_ref(ln->stream) : NULL;
  pthread_mutex_unlock(&l->lock);
  return s;
}

clv_code clv_link_send_frame(clv_link *l, uint32_t index, const clv_frame *f, clv_rpc_piece *pieces,
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

clv_code clv_link_send_plain(clv_link *l, const clv_frame *f, clv_err *err) {
  clv_rpc_piece pieces[1];
  return clv_link_send_frame(l, 0, f, pieces, 0, 0, err);
}

static clv_code send_inline(clv_link *l, clv_packet *p, clv_err *err) {
  clv_rpc_piece pieces[1 + CLV_WIRE_TENSORS];
  size_t payload = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    clv_tensor *t = p->tensor[i];
    p->frame.tensors[i].transfer = 0; /* a relayed packet came with ids of its own */
    p->frame.tensors[i].crc32c = clv_crc32c(0, t->data, t->bytes);
    pieces[i + 1] = (clv_rpc_piece){t->data, t->bytes, clv_link_release_tensor, clv_tensor_ref(t)};
    payload += t->bytes;
  }
  return clv_link_send_frame(l, 0, &p->frame, pieces, p->frame.n_tensors, payload, err);
}

/* The chunks' sum is complete when they are queued, and the head need not wait until they have
 * left. */
static clv_code queue_chunks(clv_link *l, clv_tensor *t, clv_tensor_head *head, clv_err *err) {
  head->crc32c = 0;
  for (size_t offset = 0; offset < t->bytes; offset += CLV_WIRE_CHUNK_BYTES) {
    clv_chunk c = {t, head->transfer, offset,
                   CLV_MIN(t->bytes - offset, (size_t)CLV_WIRE_CHUNK_BYTES)};
    head->crc32c = clv_crc32c(head->crc32c, (char *)t->data + offset, c.len);
    CLV_TRY(clv_link_pace_queue(l, &c, err));
    CLV_TRY(clv_link_pace_send(l, err));
  }
  return CLV_OK;
}

static clv_code send_chunked(clv_link *l, clv_packet *p, clv_err *err) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    p->frame.tensors[i].transfer = __atomic_add_fetch(&l->next_transfer, 1, __ATOMIC_RELAXED);
    CLV_TRY(queue_chunks(l, p->tensor[i], &p->frame.tensors[i], err));
  }
  return clv_link_send_plain(l, &p->frame, err);
}

static uint64_t tensor_bytes(const clv_packet *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) bytes += p->tensor[i]->bytes;
  return bytes;
}

static clv_code send_now(clv_link *l, clv_packet *p, clv_err *err) {
  uint64_t bytes = tensor_bytes(p);
  __atomic_fetch_add(&l->counts.tensors_out, p->frame.n_tensors, __ATOMIC_RELAXED);
  clv_code code = bytes <= CLV_WIRE_INLINE_MAX ? send_inline(l, p, err) : send_chunked(l, p, err);
  clv_packet_free(p);
  return code;
}

/* ---- packets that wait ----------------------------------------------------------------------- */

/* Under the lock. The first that waits, if it may leave now. */
static clv_packet *next_pending(clv_link *l) {
  clv_packet *p = l->pending_first;
  if (!p || l->closed || tensor_bytes(p) > l->credit_left) return NULL;
  l->credit_left -= tensor_bytes(p);
  l->pending_first = p->next;
  if (!p->next) l->pending_last = NULL;
  return p;
}

static void drain(clv_rpc_job *job) {
  clv_link *l = (clv_link *)(void *)((char *)job - offsetof(clv_link, drain));
  pthread_mutex_lock(&l->lock);
  for (clv_packet *p; (p = next_pending(l)) != NULL;) {
    pthread_mutex_unlock(&l->lock);
    clv_err err;
    if (send_now(l, p, &err) != CLV_OK) clv_link_end(l, err.code, err.text);
    pthread_mutex_lock(&l->lock);
  }
  l->draining = false;
  pthread_mutex_unlock(&l->lock);
  clv_link_unref(l);
}

/* Have what waits sent by a thread of rpc's. */
static void start_draining(clv_link *l) {
  pthread_mutex_lock(&l->lock);
  clv_packet *p = l->pending_first;
  bool start = p && !l->draining && !l->closed && tensor_bytes(p) <= l->credit_left;
  CLV_AUTO(clv_rpc_stream_unrefp)
  clv_rpc_stream *stream = start && l->lanes[0] ? clv_rpc_stream_ref(l->lanes[0]->stream) : NULL;
  l->draining |= start;
  pthread_mutex_unlock(&l->lock);
  if (!start) return;
  clv_link_ref(l); /* the job's */
  l->drain.run = drain;
  if (!stream || !clv_rpc_stream_defer(stream, &l->drain)) drain(&l->drain);
}

static void add_pending(clv_link *l, clv_packet *p) {
  p->next = NULL;
  *(l->pending_last ? &l->pending_last->next : &l->pending_first) = p;
  l->pending_last = p;
}

static clv_code refuse(const clv_link *l, clv_packet *p, bool closed, clv_err *err) {
  unsigned long long bytes = tensor_bytes(p);
  clv_packet_free(p);
  if (closed)
    return clv_fail(err, CLV_UNAVAILABLE, "the connection to %s has ended: %s", l->peer,
                    l->close_text);
  return clv_fail(err, CLV_EXHAUSTED,
                  "a message with %llu bytes of tensors exceeds the credit of %llu bytes that %s "
                  "grants; raise limits.credit there",
                  bytes, (unsigned long long)l->credit_full, l->peer);
}

clv_code clv_link_send(clv_link *l, clv_packet *p, clv_err *err) {
  uint64_t bytes = tensor_bytes(p);
  if (l->events.may_send && (p->frame.n_tensors || clv_frame_fails(&p->frame))) {
    clv_code code = l->events.may_send(l->events.user, l, p, err);
    if (code != CLV_OK) {
      clv_packet_free(p);
      return code;
    }
  }
  bool urgent = p->frame.kind == CLV_ABORT && !bytes; /* overtakes what it is about */
  pthread_mutex_lock(&l->lock);
  /* The receiver may hold back the bytes of a frame that carried its tensors itself. */
  bool closed = l->closed;
  bool too_large = bytes > l->credit_full ||
                   (bytes > CLV_WIRE_INLINE_MAX && bytes > l->credit_full - CLV_WIRE_INLINE_MAX);
  bool wait =
      !closed && !too_large && !urgent &&
      (l->pending_first || l->draining || bytes > l->credit_left || bytes >= DEFERRED_BYTES);
  if (wait)
    add_pending(l, p);
  else if (!closed && !too_large)
    l->credit_left -= bytes;
  pthread_mutex_unlock(&l->lock);
  if (wait) {
    start_draining(l);
    return CLV_OK;
  }
  return closed || too_large ? refuse(l, p, closed, err) : send_now(l, p, err);
}

void clv_link_credit_arrived(clv_link *l, uint64_t bytes) {
  pthread_mutex_lock(&l->lock);
  l->credit_left = CLV_MIN(l->credit_full, l->credit_left + CLV_MIN(bytes, l->credit_full));
  pthread_mutex_unlock(&l->lock);
  start_draining(l);
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
  if (clv_link_send_plain(l, &f, &err) != CLV_OK) clv_link_end(l, err.code, err.text);
}
