/* SPDX-License-Identifier: Apache-2.0
 *
 * Send queue: packets and chunks that wait for credit, for the congestion window or for a device
 * copy. clv_send_queue_send sends a small packet at once and queues others; the jobs packet_job
 * (packets) and chunk_job (chunks) run on a thread of the transport. A packet that fails in a job
 * breaks the writer, because no caller is left to return the error to.
 */
#include <stddef.h>
#include <stdlib.h>

#include "common/net/link/link_int.h"

/* Packets of this size or more are sent by a job: to checksum, encrypt and copy them takes longer
 * than to wake another thread, so the compute thread continues. */
enum { DEFERRED_BYTES = 256 * 1024 };

static void run_packet_job(clv_rpc_job *job);
static void run_chunk_job(clv_rpc_job *job);

/* ---- making and freeing a send queue --------------------------------------------------------- */

clv_code clv_send_queue_new(clv_frame_writer *writer, const clv_clock *clock, uint64_t credit,
                            clv_send_queue **ret, clv_err *err) {
  clv_send_queue *d;
  CLV_TRY(clv_alloc(1, sizeof *d, &d, err));
  pthread_mutex_init(&d->lock, NULL);
  d->refs = 1;
  d->writer = clv_frame_writer_ref(writer);
  d->clock = *clock;
  d->available_credit = d->granted_credit = credit;
  d->packet_job.run = run_packet_job;
  d->chunk_job.run = run_chunk_job;
  d->copy_waiter.send_queue = d;
  clv_pace_init(&d->pace);
  *ret = d;
  return CLV_OK;
}

clv_send_queue *clv_send_queue_ref(clv_send_queue *d) {
  __atomic_fetch_add(&d->refs, 1, __ATOMIC_RELAXED);
  return d;
}

static void free_packets(clv_packet *p) {
  for (clv_packet *next; p; p = next) {
    next = p->next;
    clv_packet_free(p);
  }
}

void clv_send_queue_unref(clv_send_queue *d) {
  if (!d || __atomic_fetch_sub(&d->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  free_packets(d->first);
  clv_packet_free(d->suspended_packet);
  clv_pace_clear(&d->pace);
  clv_frame_writer_unref(d->writer);
  pthread_mutex_destroy(&d->lock);
  free(d);
}

void clv_send_queue_end(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  d->has_ended = true;
  clv_packet *dropped_packets = d->first, *suspended = clv_steal(&d->suspended_packet);
  bool is_waiting =
      suspended && clv_device_copy_remove_waiter(
                       suspended->device_copy[suspended->sending_tensor_index], &d->copy_waiter);
  d->first = d->last = NULL;
  clv_pace_clear(&d->pace);
  pthread_mutex_unlock(&d->lock);
  free_packets(dropped_packets);
  clv_packet_free(suspended);
  if (is_waiting) clv_send_queue_unref(d);
}

void clv_send_queue_set_lanes(clv_send_queue *d, uint32_t n_lanes) {
  pthread_mutex_lock(&d->lock);
  d->pace.n_lanes = n_lanes;
  pthread_mutex_unlock(&d->lock);
}

void clv_send_queue_set_credit(clv_send_queue *d, uint64_t credit) {
  pthread_mutex_lock(&d->lock);
  d->available_credit = d->granted_credit = credit;
  pthread_mutex_unlock(&d->lock);
}

/* Handles a failed send in a job: stops the queue and breaks the writer. */
static void break_writer(clv_send_queue *d, const clv_err *why) {
  pthread_mutex_lock(&d->lock);
  d->has_ended = true;
  pthread_mutex_unlock(&d->lock);
  clv_frame_writer_break(d->writer, why);
}

/* ---- sending chunks -------------------------------------------------------------------------- */

/* Sends a chunk, in one message with its PING. */
static clv_code send_chunk(clv_send_queue *d, const clv_chunk_send *s, clv_err *err) {
  const clv_chunk *c = &s->chunk;
  clv_frame f = {.kind = CLV_CHUNK}, ping = {.kind = CLV_PING, .message_id = s->ping_id_with_chunk};
  f.chunk.transfer_id = c->transfer_id;
  f.chunk.offset = c->offset;
  f.chunk.total_bytes = c->tensor->bytes;
  clv_rpc_piece pieces[2];
  pieces[1] = clv_rpc_piece_of_tensor(c->tensor, c->offset, c->len);
  return clv_frame_writer_send_with_preceding(
      d->writer, s->lane_index, ping.message_id ? &ping : NULL, &f, pieces, 1, c->len, err);
}

static clv_code send_probe(clv_send_queue *d, uint64_t number, clv_err *err) {
  clv_frame f = {.kind = CLV_PING, .message_id = number};
  return number ? clv_frame_writer_send_without_payload(d->writer, &f, err) : CLV_OK;
}

static bool take_next_chunk(clv_send_queue *d, clv_chunk_send *ret) {
  uint64_t now = clv_clock_now(&d->clock);
  pthread_mutex_lock(&d->lock);
  bool has_chunk = !d->has_ended && clv_pace_take_next_chunk(&d->pace, now, ret);
  pthread_mutex_unlock(&d->lock);
  return has_chunk;
}

/* Sends the chunks that the congestion window admits now. */
static clv_code send_chunks(clv_send_queue *d, clv_err *err) {
  for (clv_chunk_send c; take_next_chunk(d, &c);) {
    clv_code probe_code = send_probe(d, c.ping_id_before, err);
    /* send_chunk takes over the tensor in all cases */
    clv_code code = send_chunk(d, &c, err);
    CLV_TRY(probe_code);
    CLV_TRY(code);
  }
  return CLV_OK;
}

static clv_code queue_chunk(clv_send_queue *d, const clv_chunk *c, clv_err *err) {
  pthread_mutex_lock(&d->lock);
  clv_code code = d->has_ended ? CLV_OK : clv_pace_queue_chunk(&d->pace, c, err);
  pthread_mutex_unlock(&d->lock);
  return code;
}

static void run_chunk_job(clv_rpc_job *job) {
  clv_send_queue *d = (clv_send_queue *)(void *)((char *)job - offsetof(clv_send_queue, chunk_job));
  clv_err err;
  pthread_mutex_lock(&d->lock);
  d->is_chunk_job_queued = false; /* a PONG after this point starts another job */
  pthread_mutex_unlock(&d->lock);
  if (send_chunks(d, &err) != CLV_OK) break_writer(d, &err);
  clv_send_queue_unref(d);
}

/* Starts chunk_job, which sends the chunks. The reading thread must not send them itself, because
 * to encrypt them takes long. */
static void start_chunk_job(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  bool must_start = d->pace.n_chunks && !d->is_chunk_job_queued && !d->has_ended;
  d->is_chunk_job_queued |= must_start;
  pthread_mutex_unlock(&d->lock);
  if (!must_start) return;
  clv_send_queue_ref(d); /* reference of the job */
  if (!clv_frame_writer_defer_job(d->writer, &d->chunk_job)) run_chunk_job(&d->chunk_job);
}

clv_code clv_send_queue_handle_pong(clv_send_queue *d, uint64_t number, clv_err *err) {
  uint64_t now = clv_clock_now(&d->clock);
  pthread_mutex_lock(&d->lock);
  clv_code code = clv_pace_handle_pong(&d->pace, number, now, err);
  pthread_mutex_unlock(&d->lock);
  CLV_TRY(code);
  start_chunk_job(d);
  return CLV_OK;
}

/* ---- waiting for device copies --------------------------------------------------------------- */

typedef enum copy_progress { PART_COPIED, PART_PENDING, PART_FAILED } copy_progress;

/* Checks whether the first `bytes` of the current tensor are copied. PART_PENDING: the queue
 * keeps the packet as suspended_packet, and the caller's job ends. */
static copy_progress check_copied_or_suspend(clv_send_queue *d, clv_packet *p, size_t bytes,
                                             clv_err *err) {
  clv_device_copy *c = p->device_copy[p->sending_tensor_index];
  if (!c) return PART_COPIED;
  pthread_mutex_lock(&d->lock);
  d->copy_waiter.awaited_bytes = bytes;
  bool has_ended = d->has_ended,
       must_wait = !has_ended && !clv_device_copy_add_waiter(c, &d->copy_waiter);
  if (must_wait) {
    clv_send_queue_ref(d);
    d->suspended_packet = p;
    d->is_packet_job_active = false;
  }
  pthread_mutex_unlock(&d->lock);
  if (must_wait) return PART_PENDING;
  clv_code code = has_ended ? clv_frame_writer_end_error(d->writer, err)
                            : clv_device_copy_check_failure(c, bytes, err);
  return code == CLV_OK ? PART_COPIED : PART_FAILED;
}

/* ---- sending packets ------------------------------------------------------------------------- */

static bool has_pending_copy(const clv_packet *p) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++)
    if (p->device_copy[i]) return true;
  return false;
}

static uint64_t bytes_of_tensors(const clv_packet *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) bytes += p->tensor[i]->bytes;
  return bytes;
}

static void release_pieces(const clv_rpc_piece *pieces, size_t n) {
  for (size_t i = 0; i < n; i++) pieces[i].release_owner(pieces[i].owner);
}

static clv_code send_packet_inline(clv_send_queue *d, clv_packet *p, clv_err *err) {
  clv_rpc_piece pieces[1 + CLV_WIRE_TENSORS];
  size_t payload = 0;
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    clv_tensor *t = p->tensor[i];
    /* a packet that this process relays still has the ids of its sender */
    p->frame.tensors[i].transfer_id = 0;
    p->frame.tensors[i].crc32c = clv_crc32c(0, t->data, t->bytes);
    pieces[i + 1] = clv_rpc_piece_of_tensor(clv_tensor_ref(t), 0, t->bytes);
    payload += t->bytes;
  }
  if (p->coalesces_with_next &&
      clv_frame_writer_hold_back(d->writer, &p->frame, pieces + 1, p->frame.n_tensors, payload)) {
    release_pieces(pieces + 1, p->frame.n_tensors);
    return CLV_OK;
  }
  return clv_frame_writer_send(d->writer, 0, &p->frame, pieces, p->frame.n_tensors, payload, err);
}

/* Queues the chunks of the current tensor as far as they are copied, and adds each to the checksum.
 * The caller sends the packet's frame, which has the heads of the tensors, when all chunks are
 * queued; it need not wait until they are sent. */
static copy_progress queue_chunks(clv_send_queue *d, clv_packet *p, clv_err *err) {
  clv_tensor *t = p->tensor[p->sending_tensor_index];
  clv_tensor_head *head = &p->frame.tensors[p->sending_tensor_index];
  while (p->bytes_queued < t->bytes) {
    clv_chunk c = {t, head->transfer_id, p->bytes_queued,
                   CLV_MIN(t->bytes - p->bytes_queued, (size_t)CLV_WIRE_CHUNK_BYTES)};
    copy_progress progress = check_copied_or_suspend(d, p, p->bytes_queued + c.len, err);
    if (progress != PART_COPIED) return progress;
    head->crc32c = clv_crc32c(head->crc32c, (char *)t->data + p->bytes_queued, c.len);
    p->bytes_queued += c.len;
    if (queue_chunk(d, &c, err) != CLV_OK || send_chunks(d, err) != CLV_OK) return PART_FAILED;
  }
  return PART_COPIED;
}

/* Sends the tensors of a packet in chunks, then its frame. Continues a suspended packet where it
 * stopped. */
static copy_progress send_packet_chunked(clv_send_queue *d, clv_packet *p, clv_err *err) {
  for (; p->sending_tensor_index < p->frame.n_tensors;
       p->sending_tensor_index++, p->bytes_queued = 0, p->has_transfer_id = false) {
    clv_tensor_head *head = &p->frame.tensors[p->sending_tensor_index];
    if (!p->has_transfer_id) {
      head->crc32c = 0;
      head->transfer_id = __atomic_add_fetch(&d->last_transfer_id, 1, __ATOMIC_RELAXED);
    }
    p->has_transfer_id = true;
    copy_progress progress = queue_chunks(d, p, err);
    if (progress != PART_COPIED) return progress;
  }
  return clv_frame_writer_send_without_payload(d->writer, &p->frame, err) == CLV_OK ? PART_COPIED
                                                                                    : PART_FAILED;
}

static copy_progress send_inline_once_copied(clv_send_queue *d, clv_packet *p, clv_err *err) {
  for (; p->sending_tensor_index < p->frame.n_tensors; p->sending_tensor_index++) {
    copy_progress progress =
        check_copied_or_suspend(d, p, p->tensor[p->sending_tensor_index]->bytes, err);
    if (progress != PART_COPIED) return progress;
  }
  return send_packet_inline(d, p, err) == CLV_OK ? PART_COPIED : PART_FAILED;
}

/* Sends a packet and frees it. PART_PENDING: the queue keeps it as suspended_packet. */
static copy_progress send_packet(clv_send_queue *d, clv_packet *p, clv_err *err) {
  uint64_t bytes = bytes_of_tensors(p);
  copy_progress progress = bytes <= CLV_WIRE_INLINE_MAX ? send_inline_once_copied(d, p, err)
                                                        : send_packet_chunked(d, p, err);
  if (progress == PART_PENDING) return progress;
  __atomic_fetch_add(&d->tensors_out, p->frame.n_tensors, __ATOMIC_RELAXED);
  clv_packet_free(p);
  return progress;
}

/* Sends a packet that waits for nothing, on the caller's thread. */
static clv_code send_packet_now(clv_send_queue *d, clv_packet *p, clv_err *err) {
  clv_err why;
  if (send_packet(d, p, &why) == PART_COPIED) return CLV_OK;
  if (err) *err = why;
  return why.code;
}

/* ---- the queue of packets -------------------------------------------------------------------- */

/* Returns the packet to send next: the suspended one, else the first of the queue if the credit
 * covers it. The caller holds the lock. */
static clv_packet *take_next_packet(clv_send_queue *d) {
  if (d->suspended_packet && !d->has_ended) return clv_steal(&d->suspended_packet);
  clv_packet *p = d->first;
  if (!p || d->has_ended || bytes_of_tensors(p) > d->available_credit) return NULL;
  d->available_credit -= bytes_of_tensors(p);
  d->first = p->next;
  if (!p->next) d->last = NULL;
  return p;
}

static void run_packet_job(clv_rpc_job *job) {
  clv_send_queue *d =
      (clv_send_queue *)(void *)((char *)job - offsetof(clv_send_queue, packet_job));
  pthread_mutex_lock(&d->lock);
  for (clv_packet *p; (p = take_next_packet(d)) != NULL;) {
    pthread_mutex_unlock(&d->lock);
    clv_err err;
    copy_progress progress = send_packet(d, p, &err);
    if (progress == PART_FAILED) break_writer(d, &err);
    if (progress == PART_PENDING) {
      clv_send_queue_unref(d);
      return;
    }
    pthread_mutex_lock(&d->lock);
  }
  d->is_packet_job_active = false;
  pthread_mutex_unlock(&d->lock);
  clv_send_queue_unref(d);
}

/* Starts packet_job, which takes over the reference of d->copy_waiter. */
void clv_send_queue_resume_after_copy(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  bool must_start = d->suspended_packet && !d->has_ended;
  d->is_packet_job_active |= must_start;
  pthread_mutex_unlock(&d->lock);
  if (!must_start)
    clv_send_queue_unref(d);
  else if (!clv_frame_writer_defer_job(d->writer, &d->packet_job))
    run_packet_job(&d->packet_job);
}

/* Starts packet_job, which sends the queued packets, if the credit covers the first one. */
static void start_packet_job(clv_send_queue *d) {
  pthread_mutex_lock(&d->lock);
  clv_packet *p = d->first;
  bool is_busy = d->is_packet_job_active || d->suspended_packet || d->has_ended;
  bool must_start = p && !is_busy && bytes_of_tensors(p) <= d->available_credit;
  d->is_packet_job_active |= must_start;
  pthread_mutex_unlock(&d->lock);
  if (!must_start) return;
  clv_send_queue_ref(d); /* reference of the job */
  if (!clv_frame_writer_defer_job(d->writer, &d->packet_job)) run_packet_job(&d->packet_job);
}

void clv_send_queue_add_credit(clv_send_queue *d, uint64_t bytes) {
  pthread_mutex_lock(&d->lock);
  d->available_credit =
      CLV_MIN(d->granted_credit, d->available_credit + CLV_MIN(bytes, d->granted_credit));
  pthread_mutex_unlock(&d->lock);
  start_packet_job(d);
}

typedef enum send_decision { SEND_NOW, SEND_QUEUED, SEND_ENDED, SEND_TOO_LARGE } send_decision;

/* Returns the most bytes of tensors that a packet may have. A larger one might wait for ever,
 * because the receiver may keep the credit of one inline frame unreturned (take_due_credit in
 * recv_window.c). */
static uint64_t max_packet_bytes(const clv_send_queue *d) {
  uint64_t max_inline_bytes = CLV_MIN(d->granted_credit, (uint64_t)CLV_WIRE_INLINE_MAX);
  return CLV_MAX(max_inline_bytes, d->granted_credit - max_inline_bytes);
}

/* Decides whether a packet is sent now, is queued or is refused. The caller holds the lock. */
static send_decision decide_send(clv_send_queue *d, const clv_packet *p, uint64_t bytes) {
  /* an ABORT overtakes the packets of its context */
  bool is_urgent = p->frame.kind == CLV_ABORT && !bytes;
  if (d->has_ended) return SEND_ENDED;
  if (bytes > max_packet_bytes(d)) return SEND_TOO_LARGE;
  if (is_urgent) return SEND_NOW;
  bool has_queue = d->first || d->is_packet_job_active || d->suspended_packet;
  bool must_wait = bytes > d->available_credit || bytes >= DEFERRED_BYTES || has_pending_copy(p);
  return has_queue || must_wait ? SEND_QUEUED : SEND_NOW;
}

/* Queues a packet. Clears coalesces_with_next, because no caller flushes when the job sends the
 * packet. */
static void append_packet(clv_send_queue *d, clv_packet *p) {
  p->coalesces_with_next = false;
  p->next = NULL;
  *(d->last ? &d->last->next : &d->first) = p;
  d->last = p;
}

static clv_code refuse_packet(clv_send_queue *d, send_decision why, uint64_t bytes, clv_err *err) {
  if (why == SEND_ENDED) return clv_frame_writer_end_error(d->writer, err);
  return clv_fail(
      err, CLV_EXHAUSTED,
      "a message with %llu bytes of tensors exceeds %llu bytes, the most that the credit "
      "of %llu bytes from %s permits; raise limits.receive_window there",
      (unsigned long long)bytes, (unsigned long long)max_packet_bytes(d),
      (unsigned long long)d->granted_credit, d->writer->peer_name);
}

clv_code clv_send_queue_send(clv_send_queue *d, clv_packet *p, clv_err *err) {
  uint64_t bytes = bytes_of_tensors(p);
  pthread_mutex_lock(&d->lock);
  send_decision what = decide_send(d, p, bytes);
  if (what == SEND_QUEUED) append_packet(d, p);
  if (what == SEND_NOW) d->available_credit -= bytes;
  pthread_mutex_unlock(&d->lock);
  if (what == SEND_NOW) return send_packet_now(d, p, err);
  if (what == SEND_QUEUED) {
    start_packet_job(d);
    return CLV_OK;
  }
  clv_packet_free(p);
  return refuse_packet(d, what, bytes, err);
}

/* ---- counters of waiting packets and chunks -------------------------------------------------- */

/* Adds packets that wait for credit, for a device copy or behind others. The caller holds the
 * lock. */
static void add_packet_load(const clv_send_queue *d, clv_link_load *load) {
  if (d->suspended_packet) {
    load->frames_out++;
    load->tensors_out +=
        d->suspended_packet->frame.n_tensors - d->suspended_packet->sending_tensor_index;
    load->bytes_out += bytes_of_tensors(d->suspended_packet) - d->suspended_packet->bytes_queued;
  }
  for (const clv_packet *p = d->first; p; p = p->next) {
    load->frames_out++;
    load->tensors_out += p->frame.n_tensors;
    load->bytes_out += bytes_of_tensors(p);
  }
}

/* Adds chunks that wait; those of one tensor are adjacent. The caller holds the lock. */
static void add_chunk_load(const clv_pace *p, clv_link_load *load) {
  uint64_t last = 0;
  for (size_t i = 0; i < p->n_chunks; i++) {
    const clv_chunk *c = &p->chunks[(p->first + i) % p->cap_chunks];
    load->tensors_out += c->transfer_id != last;
    load->bytes_out += c->len;
    last = c->transfer_id;
  }
  load->bytes_out += clv_pace_bytes_in_flight(p);
}

void clv_send_queue_add_load(clv_send_queue *d, clv_link_load *load) {
  load->frames_out += clv_frame_writer_n_unaccepted(d->writer);
  pthread_mutex_lock(&d->lock);
  add_packet_load(d, load);
  add_chunk_load(&d->pace, load);
  pthread_mutex_unlock(&d->lock);
}
