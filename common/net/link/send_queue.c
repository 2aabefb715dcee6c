/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets and chunks that wait until they may leave, and the credit they wait for. What cannot
 * leave when its time has come breaks the writer.
 */
#include <stddef.h>
#include <stdlib.h>

#include "common/net/link/link_int.h"

/* From here on summing, encrypting and copying a tensor takes longer than waking a thread that does
 * it, so the compute thread goes on instead. */
enum { DEFERRED_BYTES = 256 * 1024 };

static void drain(clv_rpc_job *job);
static void send_more(clv_rpc_job *job);

/* ---- lifetime -------------------------------------------------------------------------------- */

clv_code clv_send_queue_new(clv_frame_writer *writer, const clv_clock *clock, uint64_t credit,
                            clv_send_queue **ret, clv_err *err) {
  clv_send_queue *d;
  CLV_TRY(clv_alloc(1, sizeof *d, &d, err));
  pthread_mutex_init(&d->lock, NULL);
  d->refs = 1;
  d->writer = clv_frame_writer_ref(writer);
  d->clock = *clock;
  d->credit_left = d->credit_full = credit;
  d->drain.run = drain;
  d->send.run = send_more;
  d->awaiting.of = d;
  clv_pace_init(&d->pace);
  *ret = d;
  return CLV_OK;
}

clv_send_queue *clv_send_queue_ref(clv_send_queue *d) {
  __atomic_fetch_add(&d->refs, 1, __ATOMIC_RELAXED);
  return d;
}

static void free_list(clv_packet *p) {
  for (clv_packet *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
}

void clv_send_queue_unref(clv_send_queue *d) {
  if (!d || __atomic_fetch_sub(&d->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  free_list(d->first);
  clv_packet_free(d->partially_sent);
  clv_pace_clear(&d->pace);
  clv_frame_writer_unref(d->writer);
  pthread_mutex_destroy(&d->lock);
  free(d);
}

void clv_send_queue_end(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  d->ended = true;
  clv_packet *drop = d->first, *partially_sent = clv_steal(&d->partially_sent);
  bool waits = partially_sent && clv_device_copy_cancel_wait(
                                     partially_sent->device_copy[partially_sent->at], &d->awaiting);
  d->first = d->last = NULL;
  clv_pace_clear(&d->pace);
  pthread_mutex_unlock(&d->lock);
  free_list(drop);
  clv_packet_free(partially_sent);
  if (waits) clv_send_queue_unref(d);
}

void clv_send_queue_lanes(clv_send_queue *d, uint32_t n_lanes) {
  pthread_mutex_lock(&d->lock);
  d->pace.n_lanes = n_lanes;
  pthread_mutex_unlock(&d->lock);
}

void clv_send_queue_grant(clv_send_queue *d, uint64_t credit) {
  pthread_mutex_lock(&d->lock);
  d->credit_left = d->credit_full = credit;
  pthread_mutex_unlock(&d->lock);
}

/* A job could not send: nothing that waits behind it may leave, and the streams end. */
static void give_up(clv_send_queue *d, const clv_err *why) {
  pthread_mutex_lock(&d->lock);
  d->ended = true;
  pthread_mutex_unlock(&d->lock);
  clv_frame_writer_fail(d->writer, why);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static clv_code send_chunk(clv_send_queue *d, const clv_chunk *c, uint32_t index, clv_err *err) {
  clv_frame f = {.kind = CLV_CHUNK};
  f.chunk.transfer = c->transfer;
  f.chunk.offset = c->offset;
  f.chunk.total = c->tensor->bytes;
  clv_rpc_piece pieces[2];
  pieces[1] = clv_frame_writer_piece(c->tensor, c->offset, c->len);
  return clv_frame_writer_send(d->writer, index, &f, pieces, 1, c->len, err);
}

static clv_code send_probe(clv_send_queue *d, uint64_t number, uint32_t index, clv_err *err) {
  clv_frame f = {.kind = CLV_PING, .message = number};
  clv_rpc_piece pieces[1];
  return number ? clv_frame_writer_send(d->writer, index, &f, pieces, 0, 0, err) : CLV_OK;
}

static bool next_chunk(clv_send_queue *d, clv_chunk_send *ret) {
  uint64_t now = clv_clock_now(&d->clock);
  pthread_mutex_lock(&d->lock);
  bool any = !d->ended && clv_pace_next(&d->pace, now, ret);
  pthread_mutex_unlock(&d->lock);
  return any;
}

/* What may leave now of the chunks that wait. */
static clv_code send_chunks(clv_send_queue *d, clv_err *err) {
  for (clv_chunk_send c; next_chunk(d, &c);) {
    clv_code probed = send_probe(d, c.before, 0, err);
    clv_code code = send_chunk(d, &c.chunk, c.index, err); /* takes the tensor in any case */
    CLV_TRY(probed);
    CLV_TRY(code);
    CLV_TRY(send_probe(d, c.after, c.index, err));
  }
  return CLV_OK;
}

static clv_code queue_chunk(clv_send_queue *d, const clv_chunk *c, clv_err *err) {
  pthread_mutex_lock(&d->lock);
  clv_code code = d->ended ? CLV_OK : clv_pace_queue(&d->pace, c, err);
  pthread_mutex_unlock(&d->lock);
  return code;
}

static void send_more(clv_rpc_job *job) {
  clv_send_queue *d = (clv_send_queue *)(void *)((char *)job - offsetof(clv_send_queue, send));
  clv_err err;
  pthread_mutex_lock(&d->lock);
  d->sending = false; /* a report that comes from now on starts another */
  pthread_mutex_unlock(&d->lock);
  if (send_chunks(d, &err) != CLV_OK) give_up(d, &err);
  clv_send_queue_unref(d);
}

/* Summing is done, encrypting is not: that is no work for the thread that reads. */
static void start_sending(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  bool start = d->pace.n_chunks && !d->sending && !d->ended;
  d->sending |= start;
  pthread_mutex_unlock(&d->lock);
  if (!start) return;
  clv_send_queue_ref(d); /* the job's */
  if (!clv_frame_writer_defer(d->writer, &d->send)) send_more(&d->send);
}

clv_code clv_send_queue_pong(clv_send_queue *d, uint64_t number, clv_err *err) {
  uint64_t now = clv_clock_now(&d->clock);
  pthread_mutex_lock(&d->lock);
  clv_code code = clv_pace_report(&d->pace, number, now, err);
  pthread_mutex_unlock(&d->lock);
  CLV_TRY(code);
  start_sending(d);
  return CLV_OK;
}

/* ---- tensors that are still copied ----------------------------------------------------------- */

typedef enum presence { PART_IS_HERE, PART_COMES, PART_NEVER } presence;

/* Asks the device copy for the first `bytes` of a tensor. PART_COMES: the queue has taken the
 * packet as partially_sent, and the job ends. */
static presence find_part(clv_send_queue *d, clv_packet *p, size_t bytes, clv_err *err) {
  clv_device_copy *c = p->device_copy[p->at];
  if (!c) return PART_IS_HERE;
  pthread_mutex_lock(&d->lock);
  d->awaiting.bytes = bytes;
  bool ended = d->ended, partially_sent = !ended && !clv_device_copy_wait(c, &d->awaiting);
  if (partially_sent) {
    clv_send_queue_ref(d);
    d->partially_sent = p;
    d->draining = false;
  }
  pthread_mutex_unlock(&d->lock);
  if (partially_sent) return PART_COMES;
  clv_code code =
      ended ? clv_frame_writer_refuse(d->writer, err) : clv_device_copy_check(c, bytes, err);
  return code == CLV_OK ? PART_IS_HERE : PART_NEVER;
}

/* ---- packets --------------------------------------------------------------------------------- */

static bool comes(const clv_packet *p) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++)
    if (p->device_copy[i]) return true;
  return false;
}

static uint64_t tensor_bytes(const clv_packet *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) bytes += p->tensor[i]->bytes;
  return bytes;
}

static void release(const clv_rpc_piece *pieces, size_t n) {
  for (size_t i = 0; i < n; i++) pieces[i].release(pieces[i].owner);
}

static clv_code send_inline(clv_send_queue *d, clv_packet *p, clv_err *err) {
  clv_rpc_piece pieces[1 + CLV_WIRE_TENSORS];
  size_t payload = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    clv_tensor *t = p->tensor[i];
    p->frame.tensors[i].transfer = 0; /* a relayed packet came with ids of its own */
    p->frame.tensors[i].crc32c = clv_crc32c(0, t->data, t->bytes);
    pieces[i + 1] = clv_frame_writer_piece(clv_tensor_ref(t), 0, t->bytes);
    payload += t->bytes;
  }
  if (p->with_next &&
      clv_frame_writer_coalesce(d->writer, &p->frame, pieces + 1, p->frame.n_tensors, payload)) {
    release(pieces + 1, p->frame.n_tensors);
    return CLV_OK;
  }
  return clv_frame_writer_send(d->writer, 0, &p->frame, pieces, p->frame.n_tensors, payload, err);
}

/* The chunks' sum is complete when they are queued, and the head need not wait until they have
 * left. */
static presence queue_chunks(clv_send_queue *d, clv_packet *p, clv_err *err) {
  clv_tensor *t = p->tensor[p->at];
  clv_tensor_head *head = &p->frame.tensors[p->at];
  while (p->left < t->bytes) {
    clv_chunk c = {t, head->transfer, p->left,
                   CLV_MIN(t->bytes - p->left, (size_t)CLV_WIRE_CHUNK_BYTES)};
    presence found = find_part(d, p, p->left + c.len, err);
    if (found != PART_IS_HERE) return found;
    head->crc32c = clv_crc32c(head->crc32c, (char *)t->data + p->left, c.len);
    p->left += c.len;
    if (queue_chunk(d, &c, err) != CLV_OK || send_chunks(d, err) != CLV_OK) return PART_NEVER;
  }
  return PART_IS_HERE;
}

/* It may have begun to leave before. */
static presence send_chunked(clv_send_queue *d, clv_packet *p, clv_err *err) {
  for (; p->at < p->frame.n_tensors; p->at++, p->left = 0, p->begun = false) {
    clv_tensor_head *head = &p->frame.tensors[p->at];
    if (!p->begun) {
      head->crc32c = 0;
      head->transfer = __atomic_add_fetch(&d->next_transfer, 1, __ATOMIC_RELAXED);
    }
    p->begun = true;
    presence found = queue_chunks(d, p, err);
    if (found != PART_IS_HERE) return found;
  }
  return clv_frame_writer_send_plain(d->writer, &p->frame, err) == CLV_OK ? PART_IS_HERE
                                                                          : PART_NEVER;
}

static presence send_whole(clv_send_queue *d, clv_packet *p, clv_err *err) {
  for (; p->at < p->frame.n_tensors; p->at++) {
    presence found = find_part(d, p, p->tensor[p->at]->bytes, err);
    if (found != PART_IS_HERE) return found;
  }
  return send_inline(d, p, err) == CLV_OK ? PART_IS_HERE : PART_NEVER;
}

/* Takes the packet, unless it is partially_sent. */
static presence send_now(clv_send_queue *d, clv_packet *p, clv_err *err) {
  uint64_t bytes = tensor_bytes(p);
  presence found = bytes <= CLV_WIRE_INLINE_MAX ? send_whole(d, p, err) : send_chunked(d, p, err);
  if (found == PART_COMES) return found;
  __atomic_fetch_add(&d->tensors_out, p->frame.n_tensors, __ATOMIC_RELAXED);
  clv_packet_free(p);
  return found;
}

/* One of which everything is here. */
static clv_code send_at_once(clv_send_queue *d, clv_packet *p, clv_err *err) {
  clv_err why;
  if (send_now(d, p, &why) == PART_IS_HERE) return CLV_OK;
  if (err) *err = why;
  return why.code;
}

/* ---- packets that wait ----------------------------------------------------------------------- */

/* Under the lock. The one that has begun to leave, or the first that waits, if it may leave now. */
static clv_packet *next_packet(clv_send_queue *d) {
  if (d->partially_sent && !d->ended) return clv_steal(&d->partially_sent);
  clv_packet *p = d->first;
  if (!p || d->ended || tensor_bytes(p) > d->credit_left) return NULL;
  d->credit_left -= tensor_bytes(p);
  d->first = p->next;
  if (!p->next) d->last = NULL;
  return p;
}

static void drain(clv_rpc_job *job) {
  clv_send_queue *d = (clv_send_queue *)(void *)((char *)job - offsetof(clv_send_queue, drain));
  pthread_mutex_lock(&d->lock);
  for (clv_packet *p; (p = next_packet(d)) != NULL;) {
    pthread_mutex_unlock(&d->lock);
    clv_err err;
    presence found = send_now(d, p, &err);
    if (found == PART_NEVER) give_up(d, &err);
    if (found == PART_COMES) {
      clv_send_queue_unref(d);
      return;
    }
    pthread_mutex_lock(&d->lock);
  }
  d->draining = false;
  pthread_mutex_unlock(&d->lock);
  clv_send_queue_unref(d);
}

/* Continues with the partially_sent packet. The job takes over the reference of d->awaiting. */
void clv_send_queue_resume(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  bool start = d->partially_sent && !d->ended;
  d->draining |= start;
  pthread_mutex_unlock(&d->lock);
  if (!start)
    clv_send_queue_unref(d);
  else if (!clv_frame_writer_defer(d->writer, &d->drain))
    drain(&d->drain);
}

/* Have what waits sent by a thread of the transport's. */
static void start_draining(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  clv_packet *p = d->first;
  bool busy = d->draining || d->partially_sent || d->ended;
  bool start = p && !busy && tensor_bytes(p) <= d->credit_left;
  d->draining |= start;
  pthread_mutex_unlock(&d->lock);
  if (!start) return;
  clv_send_queue_ref(d); /* the job's */
  if (!clv_frame_writer_defer(d->writer, &d->drain)) drain(&d->drain);
}

void clv_send_queue_credit(clv_send_queue *d, uint64_t bytes) {
  pthread_mutex_lock(&d->lock);
  d->credit_left = CLV_MIN(d->credit_full, d->credit_left + CLV_MIN(bytes, d->credit_full));
  pthread_mutex_unlock(&d->lock);
  start_draining(d);
}

typedef enum send_decision { NOW, WAITS, ENDED, TOO_LARGE } send_decision;

/* Under the lock: what becomes of a packet. */
static send_decision judge(clv_send_queue *d, const clv_packet *p, uint64_t bytes) {
  bool urgent = p->frame.kind == CLV_ABORT && !bytes; /* overtakes what it is about */
  if (d->ended) return ENDED;
  /* The receiver may hold back the bytes of a frame that carried its tensors itself. */
  if (bytes > d->credit_full ||
      (bytes > CLV_WIRE_INLINE_MAX && bytes > d->credit_full - CLV_WIRE_INLINE_MAX))
    return TOO_LARGE;
  if (urgent) return NOW;
  bool queued = d->first || d->draining || d->partially_sent;
  bool later = bytes > d->credit_left || bytes >= DEFERRED_BYTES || comes(p);
  return queued || later ? WAITS : NOW;
}

/* Nobody flushes when it leaves at last. */
static void add_waiting(clv_send_queue *d, clv_packet *p) {
  p->with_next = false;
  p->next = NULL;
  *(d->last ? &d->last->next : &d->first) = p;
  d->last = p;
}

static clv_code refuse(clv_send_queue *d, send_decision why, uint64_t bytes, clv_err *err) {
  if (why == ENDED) return clv_frame_writer_refuse(d->writer, err);
  return clv_fail(err, CLV_EXHAUSTED,
                  "a message with %llu bytes of tensors exceeds the credit of %llu bytes that %s "
                  "grants; raise limits.receive_window there",
                  (unsigned long long)bytes, (unsigned long long)d->credit_full, d->writer->peer);
}

clv_code clv_send_queue_send(clv_send_queue *d, clv_packet *p, clv_err *err) {
  uint64_t bytes = tensor_bytes(p);
  pthread_mutex_lock(&d->lock);
  send_decision what = judge(d, p, bytes);
  if (what == WAITS) add_waiting(d, p);
  if (what == NOW) d->credit_left -= bytes;
  pthread_mutex_unlock(&d->lock);
  if (what == NOW) return send_at_once(d, p, err);
  if (what == WAITS) {
    start_draining(d);
    return CLV_OK;
  }
  clv_packet_free(p);
  return refuse(d, what, bytes, err);
}

/* ---- what there is of it --------------------------------------------------------------------- */

/* Under the lock: packets that wait for credit, for their bytes or behind others. */
static void add_waiting_load(const clv_send_queue *d, clv_link_load *load) {
  if (d->partially_sent) {
    load->frames_out++;
    load->tensors_out += d->partially_sent->frame.n_tensors - d->partially_sent->at;
    load->bytes_out += tensor_bytes(d->partially_sent) - d->partially_sent->left;
  }
  for (const clv_packet *p = d->first; p; p = p->next) {
    load->frames_out++;
    load->tensors_out += p->frame.n_tensors;
    load->bytes_out += tensor_bytes(p);
  }
}

/* Under the lock: chunks that wait, those of a tensor behind each other. */
static void add_chunk_load(const clv_pace *p, clv_link_load *load) {
  uint64_t last = 0;
  for (size_t i = 0; i < p->n_chunks; i++) {
    const clv_chunk *c = &p->chunks[(p->first + i) % p->cap_chunks];
    load->tensors_out += c->transfer != last;
    load->bytes_out += c->len;
    last = c->transfer;
  }
  load->bytes_out += clv_pace_in_flight(p);
}

void clv_send_queue_load(clv_send_queue *d, clv_link_load *load) {
  load->frames_out += __atomic_load_n(&d->writer->n_unsent, __ATOMIC_RELAXED);
  pthread_mutex_lock(&d->lock);
  add_waiting_load(d, load);
  add_chunk_load(&d->pace, load);
  pthread_mutex_unlock(&d->lock);
}
