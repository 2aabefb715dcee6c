/* SPDX-License-Identifier: Apache-2.0
 *
 * Reassembly of tensors from chunks, and of packets from tensors. lane.c calls
 * clv_reassembly_add_chunk for a CHUNK, and clv_reassembly_new_packet and clv_reassembly_add_packet
 * for any other packet, and delivers the packets that these functions return. Chunks may be
 * received before or after the head that names their transfer.
 *
 * States of a transfer (clv_partial_tensor_state):
 *
 * NONE: the table has no entry. A head enters HEADED, a chunk enters HEADLESS or BYTES.
 *
 * HEADLESS: some bytes are claimed by chunks, the head is missing. A chunk stays here or enters
 * BYTES, the head enters HEADED.
 *
 * BYTES: all bytes are claimed, the head is missing. The head enters COMPLETE. A chunk is refused.
 *
 * HEADED: the head is received, bytes are missing. A chunk stays here or enters COMPLETE. A second
 * head is refused.
 *
 * COMPLETE: head and all bytes are claimed. The entry leaves the table once all tensors of its
 * packet are received; a head or chunk before that is refused.
 */
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

/* ---- making and freeing the table ------------------------------------------------------------ */

clv_code clv_reassembly_init(clv_reassembly *a, const clv_link_options *o, clv_link *link,
                             clv_recv_window *recv_window, clv_err *err) {
  pthread_mutex_init(&a->lock, NULL);
  a->pool = clv_pool_ref(o->pool);
  a->recv_window = clv_recv_window_ref(recv_window);
  a->link = link;
  a->clock = o->clock;
  a->quota_fails_packet = o->quota_fails_packet;
  /* Preallocated, so that the first step with many tensors in transfer allocates no spans. */
  for (int i = 0; i < PREALLOC_PARTIAL; i++) {
    CLV_TRY(clv_alloc(INITIAL_SPANS, sizeof(clv_span), &a->partial_tensors[i].spans, err));
    a->partial_tensors[i].cap_spans = INITIAL_SPANS;
  }
  return CLV_OK;
}

/* Removes a packet that waits for tensors from all its entries and returns it. The caller holds the
 * lock. */
static clv_packet *detach_next_packet(clv_reassembly *a) {
  clv_packet *p = NULL;
  for (size_t i = 0; i < a->n_partial_tensors; i++) {
    if (!p) p = a->partial_tensors[i].packet;
    if (p && a->partial_tensors[i].packet == p) a->partial_tensors[i].packet = NULL;
  }
  return p;
}

/* Frees the packets whose heads were received. They own no tensor yet. */
void clv_reassembly_free_waiting_packets(clv_reassembly *a) {
  for (clv_packet *p;;) {
    pthread_mutex_lock(&a->lock);
    p = detach_next_packet(a);
    pthread_mutex_unlock(&a->lock);
    if (!p) return;
    p->frame.n_tensors = 0;
    clv_packet_free(p);
  }
}

void clv_reassembly_clear(clv_reassembly *a) {
  if (!a) return;
  if (!a->pool) return;
  clv_reassembly_free_waiting_packets(a);
  for (size_t i = 0; i < a->n_partial_tensors; i++) clv_tensor_unref(a->partial_tensors[i].tensor);
  for (size_t i = 0; i < MAX_PARTIAL; i++) free(a->partial_tensors[i].spans);
  clv_pool_unref(a->pool);
  clv_recv_window_unref(a->recv_window);
  pthread_mutex_destroy(&a->lock);
}

/* ---- tensors in transfer --------------------------------------------------------------------- */

static clv_partial_tensor *find_partial_tensor(clv_reassembly *a, uint64_t transfer) {
  for (size_t i = 0; i < a->n_partial_tensors; i++)
    if (a->partial_tensors[i].transfer_id == transfer) return &a->partial_tensors[i];
  return NULL;
}

static clv_partial_tensor_state transfer_state(const clv_partial_tensor *e) {
  if (!e) return CLV_PARTIAL_NONE;
  bool is_fully_claimed = e->claimed_bytes == e->total_bytes;
  if (e->packet) return is_fully_claimed ? CLV_PARTIAL_COMPLETE : CLV_PARTIAL_HEADED;
  return is_fully_claimed ? CLV_PARTIAL_BYTES : CLV_PARTIAL_HEADLESS;
}

clv_partial_tensor_state clv_reassembly_state(clv_reassembly *a, uint64_t transfer) {
  pthread_mutex_lock(&a->lock);
  clv_partial_tensor_state s = transfer_state(find_partial_tensor(a, transfer));
  pthread_mutex_unlock(&a->lock);
  return s;
}

/* Allocates the tensor of a transfer. *ret NULL: the tensor is over the quota, and the link
 * continues. */
static clv_code alloc_tensor(clv_reassembly *a, uint64_t total, clv_tensor **ret, clv_err *err) {
  clv_shape shape = CLV_SHAPE((int64_t)total);
  clv_code code = clv_pool_alloc_tensor(a->pool, CLV_U8, &shape, ret, err);
  if (code != CLV_EXHAUSTED || !a->quota_fails_packet) return code;
  a->quota_error = *err;
  *ret = NULL;
  return CLV_OK;
}

static clv_code add_partial_tensor(clv_reassembly *a, uint64_t transfer, uint64_t total,
                                   clv_partial_tensor **ret, clv_err *err) {
  clv_tensor *t;
  if (a->n_partial_tensors == MAX_PARTIAL)
    return clv_fail(err, CLV_EXHAUSTED,
                    "the peer sends more than %d tensors at once in chunks, the limit",
                    MAX_PARTIAL);
  CLV_TRY(clv_recv_window_consume(a->recv_window, total, err));
  CLV_TRY(alloc_tensor(a, total, &t, err));
  if (!a->n_partial_tensors) a->receiving_since_ns = clv_clock_now(&a->clock);
  clv_partial_tensor *e = &a->partial_tensors[a->n_partial_tensors++];
  *e = (clv_partial_tensor){.transfer_id = transfer,
                            .total_bytes = total,
                            .tensor = t,
                            .spans = e->spans,
                            .cap_spans = e->cap_spans};
  *ret = e;
  return CLV_OK;
}

/* Arguments of an event of a transfer. */
typedef struct partial_event_args {
  clv_reassembly *a;
  clv_partial_tensor *e; /* table entry of the transfer; NULL: none yet */
  uint64_t transfer_id, total_bytes;
  /* for HEAD: packet that contains the tensor of this transfer; tensor_index: its index in that
   * packet */
  clv_packet *packet;
  uint32_t tensor_index;
  uint64_t from, to; /* for CHUNK: its bytes [from, to) */
} partial_event_args;

typedef clv_code partial_action(partial_event_args *n, clv_err *err);

static clv_code insert_span(clv_partial_tensor *e, size_t at, clv_span s, clv_err *err) {
  if (e->n_spans == MAX_SPANS)
    return clv_fail(err, CLV_EXHAUSTED,
                    "the chunks of transfer %llu form more than %d separate ranges, the limit",
                    (unsigned long long)e->transfer_id, MAX_SPANS);
  if (e->n_spans == e->cap_spans) {
    size_t cap = e->cap_spans ? 2 * e->cap_spans : INITIAL_SPANS;
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

/* Claims [from, to) for one chunk. Each byte may be sent once; otherwise a tensor could complete
 * with bytes that were never sent. Adjacent spans are merged, so chunks in order need one span. The
 * caller holds the lock. */
static clv_code claim_span(clv_partial_tensor *e, uint64_t from, uint64_t to, clv_err *err) {
  size_t at = e->n_spans;
  while (at > 0 && e->spans[at - 1].from >= to) at--;
  clv_span *previous_span = at > 0 ? &e->spans[at - 1] : NULL,
           *next_span = at < e->n_spans ? &e->spans[at] : NULL;
  if (previous_span && previous_span->to > from)
    return clv_fail(err, CLV_INVALID, "bytes %llu to %llu of transfer %llu were sent twice",
                    (unsigned long long)from, (unsigned long long)CLV_MIN(to, previous_span->to),
                    (unsigned long long)e->transfer_id);
  bool joins_previous = previous_span && previous_span->to == from,
       joins_next = next_span && next_span->from == to;
  if (joins_previous && joins_next) {
    previous_span->to = next_span->to;
    memmove(next_span, next_span + 1, (e->n_spans - at - 1) * sizeof *next_span);
    e->n_spans--;
  } else if (joins_previous) {
    previous_span->to = to;
  } else if (joins_next) {
    next_span->from = from;
  } else {
    return insert_span(e, at, (clv_span){from, to}, err);
  }
  return CLV_OK;
}

static clv_code claim_chunk(partial_event_args *n, clv_err *err) {
  CLV_TRY(claim_span(n->e, n->from, n->to, err));
  n->e->claimed_bytes += n->to - n->from;
  return CLV_OK;
}

static clv_code set_head(partial_event_args *n, clv_err *err) {
  (void)err;
  const clv_tensor_head *h = &n->packet->frame.tensors[n->tensor_index];
  clv_partial_tensor *e = n->e;
  e->packet = n->packet;
  e->tensor_index = n->tensor_index;
  n->packet->credit_bytes += h->bytes;
  if (!e->tensor) return CLV_OK;
  e->tensor->dtype = h->dtype;
  e->tensor->shape = h->shape;
  e->tensor->n = h->bytes / clv_dtype_size(h->dtype);
  return CLV_OK;
}

static clv_code begin_tensor_with_chunk(partial_event_args *n, clv_err *err) {
  CLV_TRY(add_partial_tensor(n->a, n->transfer_id, n->total_bytes, &n->e, err));
  return claim_chunk(n, err);
}

static clv_code begin_tensor_with_head(partial_event_args *n, clv_err *err) {
  CLV_TRY(add_partial_tensor(n->a, n->transfer_id, n->total_bytes, &n->e, err));
  return set_head(n, err);
}

static clv_code refuse_second_tensor_of_transfer(partial_event_args *n, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "transfer %llu is named by two tensors",
                  (unsigned long long)n->transfer_id);
}

static clv_code refuse_repeated_bytes(partial_event_args *n, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "bytes %llu to %llu of transfer %llu were sent twice",
                  (unsigned long long)n->from, (unsigned long long)n->to,
                  (unsigned long long)n->transfer_id);
}

/* Actions for each state and event. PROTOCOL.md 4: chunks are received in any order, before or
 * after their head, each byte once. */
static partial_action *const actions[CLV_PARTIAL_STATES][CLV_PARTIAL_EVENTS] = {
    /*                          HEAD         CHUNK */
    [CLV_PARTIAL_NONE] = {begin_tensor_with_head, begin_tensor_with_chunk},
    [CLV_PARTIAL_HEADLESS] = {set_head, claim_chunk},
    [CLV_PARTIAL_BYTES] = {set_head, refuse_repeated_bytes},
    [CLV_PARTIAL_HEADED] = {refuse_second_tensor_of_transfer, claim_chunk},
    [CLV_PARTIAL_COMPLETE] = {refuse_second_tensor_of_transfer, refuse_repeated_bytes},
};

/* Runs the action for an event. The caller holds the lock. */
static clv_code run_partial_event(clv_partial_tensor_event event, partial_event_args *n,
                                  clv_err *err) {
  n->e = find_partial_tensor(n->a, n->transfer_id);
  if (n->e && n->e->total_bytes != n->total_bytes)
    return clv_fail(err, CLV_INVALID, "transfer %llu states %llu bytes, then %llu",
                    (unsigned long long)n->transfer_id, (unsigned long long)n->e->total_bytes,
                    (unsigned long long)n->total_bytes);
  return actions[transfer_state(n->e)][event](n, err);
}

/* ---- packets whose tensors are complete ------------------------------------------------------ */

/* Drops the tensors of a packet over the quota and stores the error in the packet, for the engine
 * to report. */
static void drop_tensors_over_quota(clv_packet *p, const clv_err *why) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) clv_tensor_unref(p->tensor[i]);
  p->frame.n_tensors = 0;
  p->is_over_quota = true;
  p->frame.has_failure = p->frame.kind == CLV_VALUE || p->frame.kind == CLV_REF_VALUE;
  clv_frame_set_failure(&p->frame, why->code, why->text, "");
}

static bool has_all_tensors(const clv_packet *p) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++)
    if (!p->tensor[i]) return false;
  return true;
}

/* True if all bytes of the packet's tensors are received. The caller holds the lock. */
static bool has_all_bytes(const clv_reassembly *a, const clv_packet *p) {
  for (size_t i = 0; i < a->n_partial_tensors; i++)
    if (a->partial_tensors[i].packet == p &&
        a->partial_tensors[i].copied_bytes < a->partial_tensors[i].total_bytes)
      return false;
  return true;
}

/* Moves a received tensor from its table entry to its packet. The caller holds the lock. */
static void move_tensor_to_packet(clv_reassembly *a, size_t i) {
  clv_partial_tensor *e = &a->partial_tensors[i], last = a->partial_tensors[--a->n_partial_tensors];
  e->packet->tensor[e->tensor_index] = e->tensor;
  e->packet->crc32c[e->tensor_index] = e->crc32c;
  a->partial_tensors[a->n_partial_tensors] =
      (clv_partial_tensor){.spans = e->spans, .cap_spans = e->cap_spans};
  if (i < a->n_partial_tensors) *e = last;
}

/* Takes a packet from the table if all its tensors are received. NULL: tensors are missing. The
 * caller holds the lock. */
static clv_packet *take_packet_if_complete(clv_reassembly *a, clv_packet *p) {
  if (!p || !has_all_bytes(a, p)) return NULL;
  for (size_t i = 0; i < a->n_partial_tensors;)
    if (a->partial_tensors[i].packet == p)
      move_tensor_to_packet(a, i);
    else
      i++;
  if (!a->n_partial_tensors) a->receiving_ns += clv_clock_now(&a->clock) - a->receiving_since_ns;
  if (!has_all_tensors(p)) drop_tensors_over_quota(p, &a->quota_error);
  return p;
}

/* Compares the checksums of a complete packet and returns the packet. The error does not state the
 * checksums, because the checksum of a single number reveals that number. */
static clv_code check_packet_checksums(clv_reassembly *a, clv_packet *p, clv_packet **ret,
                                       clv_err *err) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    if (p->crc32c[i] == p->frame.tensors[i].crc32c) continue;
    clv_fail(err, CLV_DATA_LOSS, "tensor %u of a %s frame has another CRC32C than the frame states",
             i, clv_frame_kind_name(p->frame.kind));
    clv_packet_free(p);
    return CLV_DATA_LOSS;
  }
  __atomic_fetch_add(&a->tensors_in, p->frame.n_tensors, __ATOMIC_RELAXED);
  p->completed_ns = clv_clock_now(&a->clock);
  *ret = p;
  return CLV_OK;
}

/* ---- handling received chunks ---------------------------------------------------------------- */

/* Copies a chunk from the transport's slices into its tensor, the only copy of received bytes.
 * Returns its contribution to the tensor's CRC32C. */
static uint32_t copy_chunk(clv_tensor *t, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload) {
  char *at = (char *)t->data + f->chunk.offset;
  uint64_t behind = f->chunk.total_bytes - f->chunk.offset - payload->len;
  if (f->chunk.total_bytes >= PAST_CACHE_BYTES)
    return clv_crc32c_shift(clv_payload_copy_past_cache(pieces, payload, at), behind);
  clv_payload_copy(pieces, payload, 0, payload->len, at);
  return clv_crc32c_shift(clv_crc32c(0, at, payload->len), behind);
}

/* Adds the bytes of a copied chunk to its transfer. Returns the packet that they complete, else
 * NULL. */
static clv_packet *add_received_bytes(clv_reassembly *a, uint64_t transfer, uint64_t bytes,
                                      uint32_t crc) {
  pthread_mutex_lock(&a->lock);
  clv_partial_tensor *e = find_partial_tensor(a, transfer);
  e->copied_bytes += bytes;
  e->crc32c ^= crc;
  clv_packet *complete = take_packet_if_complete(a, e->packet);
  pthread_mutex_unlock(&a->lock);
  return complete;
}

clv_code clv_reassembly_add_chunk(clv_reassembly *a, const clv_frame *f, const clv_piece *pieces,
                                  const clv_payload *payload, clv_packet **ret, clv_err *err) {
  partial_event_args n = {.a = a,
                          .transfer_id = f->chunk.transfer_id,
                          .total_bytes = f->chunk.total_bytes,
                          .from = f->chunk.offset,
                          .to = f->chunk.offset + payload->len};
  pthread_mutex_lock(&a->lock);
  /* The first chunk of a transfer is not counted, because the time when it began to arrive is not
   * known. */
  if (a->n_partial_tensors) a->received_bytes += payload->len;
  clv_code code = run_partial_event(CLV_PARTIAL_CHUNK, &n, err);
  clv_tensor *t = code == CLV_OK && n.e->tensor ? clv_tensor_ref(n.e->tensor) : NULL;
  pthread_mutex_unlock(&a->lock);
  CLV_TRY(code);
  uint32_t crc = t ? copy_chunk(t, f, pieces, payload) : 0;
  clv_packet *complete = add_received_bytes(a, f->chunk.transfer_id, payload->len, crc);
  clv_tensor_unref(t);
  *ret = NULL;
  return complete ? check_packet_checksums(a, complete, ret, err) : CLV_OK;
}

/* ---- handling received frames other than chunks ---------------------------------------------- */

static void set_packet_origin(clv_reassembly *a, clv_packet *p) {
  p->received_by = a->link;
  p->recv_window = clv_recv_window_ref(a->recv_window);
}

static bool is_in_chunks(const clv_frame *f) { return f->n_tensors && f->tensors[0].transfer_id; }

/* Makes the announcement of a CALL whose tensors come in chunks. The node receives it at once, so
 * that the CALL keeps its place in the order of frames although later frames may overtake the
 * chunks. */
static clv_code make_announcement(clv_reassembly *a, clv_packet *p, clv_packet **ret,
                                  clv_err *err) {
  clv_packet *head;
  *ret = NULL;
  if (p->frame.kind != CLV_CALL || !is_in_chunks(&p->frame)) return CLV_OK;
  CLV_TRY(clv_packet_new(a->pool, CLV_CALL, &head, err));
  (void)!clv_recv_window_add_packet(a->recv_window, true, err);
  set_packet_origin(a, head);
  head->frame = p->frame;
  head->frame.n_tensors = 0;
  head->is_announcement = p->was_announced = true;
  *ret = head;
  return CLV_OK;
}

clv_code clv_reassembly_new_packet(clv_reassembly *a, const clv_frame *f, clv_packet **ret_packet,
                                   clv_packet **ret_head, clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_recv_window_add_packet(a->recv_window, false, err));
  /* after a failure the link ends, so the packet may stay counted */
  CLV_TRY(clv_packet_new(a->pool, f->kind, &p, err));
  set_packet_origin(a, p);
  p->frame = *f;
  clv_code code = make_announcement(a, p, ret_head, err);
  if (code != CLV_OK) {
    p->frame.n_tensors = 0; /* the packet owns no tensor yet */
    clv_packet_free(p);
    return code;
  }
  *ret_packet = p;
  return CLV_OK;
}

/* Enters all tensors of a packet in the table, or none. The caller holds the lock. */
static clv_code add_tensors(clv_reassembly *a, clv_packet *p, clv_err *err) {
  clv_code code = CLV_OK;
  for (uint32_t i = 0; i < p->frame.n_tensors && code == CLV_OK; i++) {
    partial_event_args n = {.a = a,
                            .transfer_id = p->frame.tensors[i].transfer_id,
                            .total_bytes = p->frame.tensors[i].bytes,
                            .packet = p,
                            .tensor_index = i};
    code = run_partial_event(CLV_PARTIAL_HEAD, &n, err);
  }
  for (size_t i = 0; code != CLV_OK && i < a->n_partial_tensors; i++)
    if (a->partial_tensors[i].packet == p) a->partial_tensors[i].packet = NULL;
  return code;
}

static clv_code add_chunked_packet(clv_reassembly *a, clv_packet *p, clv_packet **ret,
                                   clv_err *err) {
  pthread_mutex_lock(&a->lock);
  clv_code code = add_tensors(a, p, err);
  clv_packet *complete = code == CLV_OK ? take_packet_if_complete(a, p) : NULL;
  pthread_mutex_unlock(&a->lock);
  if (code != CLV_OK) {
    p->frame.n_tensors = 0; /* the packet owns no tensor yet */
    clv_packet_free(p);
  }
  return complete ? check_packet_checksums(a, complete, ret, err) : code;
}

/* Copies the payload into new tensors, until the quota is reached. */
static clv_code copy_tensors(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                             const clv_payload *payload, clv_err *err) {
  uint32_t n = p->frame.n_tensors;
  size_t from = 0;
  p->frame.n_tensors = 0;
  for (uint32_t i = 0; i < n; i++) {
    const clv_tensor_head *h = &p->frame.tensors[i];
    CLV_TRY(clv_pool_alloc_tensor(a->pool, h->dtype, &h->shape, &p->tensor[i], err));
    p->frame.n_tensors = i + 1;
    clv_payload_copy(pieces, payload, from, h->bytes, p->tensor[i]->data);
    p->crc32c[i] = clv_crc32c(0, p->tensor[i]->data, h->bytes);
    from += h->bytes;
  }
  return CLV_OK;
}

static clv_code add_inline_packet(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                                  const clv_payload *payload, clv_packet **ret, clv_err *err) {
  clv_code code = clv_recv_window_consume(a->recv_window, payload->len, err);
  if (code != CLV_OK) {
    p->frame.n_tensors = 0;
    clv_packet_free(p);
    return code;
  }
  p->credit_bytes = payload->len;
  code = copy_tensors(a, p, pieces, payload, err);
  if (code == CLV_EXHAUSTED && a->quota_fails_packet) {
    drop_tensors_over_quota(p, err);
    code = CLV_OK;
  }
  if (code == CLV_OK) return check_packet_checksums(a, p, ret, err);
  clv_packet_free(p);
  return code;
}

clv_code clv_reassembly_add_packet(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                                   const clv_payload *payload, clv_packet **ret, clv_err *err) {
  *ret = NULL;
  if (is_in_chunks(&p->frame)) return add_chunked_packet(a, p, ret, err);
  return add_inline_packet(a, p, pieces, payload, ret, err);
}

/* ---- counters of received tensors ------------------------------------------------------------ */

void clv_reassembly_get_received_counts(clv_reassembly *a, uint64_t *ret_bytes, uint64_t *ret_ns) {
  uint64_t now = clv_clock_now(&a->clock);
  pthread_mutex_lock(&a->lock);
  *ret_bytes = a->received_bytes;
  *ret_ns =
      a->receiving_ns + (a->n_partial_tensors ? now - CLV_MIN(a->receiving_since_ns, now) : 0);
  pthread_mutex_unlock(&a->lock);
}

void clv_reassembly_add_load(clv_reassembly *a, clv_link_load *load) {
  pthread_mutex_lock(&a->lock);
  load->tensors_in += a->n_partial_tensors;
  for (size_t i = 0; i < a->n_partial_tensors; i++)
    load->bytes_in += a->partial_tensors[i].total_bytes - a->partial_tensors[i].copied_bytes;
  pthread_mutex_unlock(&a->lock);
}
