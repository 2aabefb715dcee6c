/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that come in chunks, before or after the head that names them, and packets that are whole
 * with the last of theirs. Records and gives back; whoever calls delivers.
 */
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

/* ---- lifetime -------------------------------------------------------------------------------- */

clv_code clv_reassembly_init(clv_reassembly *a, const clv_link_options *o, clv_link *link,
                             clv_recv_window *recv_window, clv_err *err) {
  pthread_mutex_init(&a->lock, NULL);
  a->pool = clv_pool_ref(o->pool);
  a->recv_window = clv_recv_window_ref(recv_window);
  a->link = link;
  a->clock = o->clock;
  a->quota_fails_packet = o->quota_fails_packet;
  /* Memory that would otherwise be taken in the first step in which so many tensors come at
   * once. */
  for (int i = 0; i < PREALLOC_PARTIAL; i++) {
    CLV_TRY(clv_alloc(KEPT_SPANS, sizeof(clv_span), &a->in[i].spans, err));
    a->in[i].cap_spans = KEPT_SPANS;
  }
  return CLV_OK;
}

/* Under the lock: a packet that waits for tensors; none names it any more. */
static clv_packet *take_headed(clv_reassembly *a) {
  clv_packet *p = NULL;
  for (size_t i = 0; i < a->n_in; i++) {
    if (!p) p = a->in[i].packet;
    if (p && a->in[i].packet == p) a->in[i].packet = NULL;
  }
  return p;
}

/* Their heads are here, so they are freed here. No tensor of theirs is. */
void clv_reassembly_end(clv_reassembly *a) {
  for (clv_packet *p;;) {
    pthread_mutex_lock(&a->lock);
    p = take_headed(a);
    pthread_mutex_unlock(&a->lock);
    if (!p) return;
    p->frame.n_tensors = 0;
    clv_packet_free(p);
  }
}

void clv_reassembly_done(clv_reassembly *a) {
  if (!a) return;
  if (!a->pool) return;
  clv_reassembly_end(a);
  for (size_t i = 0; i < a->n_in; i++) clv_tensor_unref(a->in[i].tensor);
  for (size_t i = 0; i < MAX_PARTIAL; i++) free(a->in[i].spans);
  clv_pool_unref(a->pool);
  clv_recv_window_unref(a->recv_window);
  pthread_mutex_destroy(&a->lock);
}

/* ---- a tensor on its way --------------------------------------------------------------------- */

static clv_partial_tensor *find_partial(clv_reassembly *a, uint64_t transfer) {
  for (size_t i = 0; i < a->n_in; i++)
    if (a->in[i].transfer == transfer) return &a->in[i];
  return NULL;
}

static clv_partial_tensor_state state_of(const clv_partial_tensor *e) {
  if (!e) return CLV_PARTIAL_NONE;
  bool all = e->claimed == e->total;
  if (e->packet) return all ? CLV_PARTIAL_COMPLETE : CLV_PARTIAL_HEADED;
  return all ? CLV_PARTIAL_BYTES : CLV_PARTIAL_HEADLESS;
}

clv_partial_tensor_state clv_reassembly_state(clv_reassembly *a, uint64_t transfer) {
  pthread_mutex_lock(&a->lock);
  clv_partial_tensor_state s = state_of(find_partial(a, transfer));
  pthread_mutex_unlock(&a->lock);
  return s;
}

/* Memory for a tensor; *ret NULL: it is over the quota, and the link goes on. */
static clv_code memory_for(clv_reassembly *a, uint64_t total, clv_tensor **ret, clv_err *err) {
  clv_shape shape = CLV_SHAPE((int64_t)total);
  clv_code code = clv_pool_tensor(a->pool, CLV_U8, &shape, ret, err);
  if (code != CLV_EXHAUSTED || !a->quota_fails_packet) return code;
  a->refusal = *err;
  *ret = NULL;
  return CLV_OK;
}

static clv_code begin(clv_reassembly *a, uint64_t transfer, uint64_t total,
                      clv_partial_tensor **ret, clv_err *err) {
  clv_tensor *t;
  if (a->n_in == MAX_PARTIAL)
    return clv_fail(err, CLV_EXHAUSTED, "more than %d tensors on their way", MAX_PARTIAL);
  CLV_TRY(clv_recv_window_consume(a->recv_window, total, err));
  CLV_TRY(memory_for(a, total, &t, err));
  if (!a->n_in) a->receiving_since = clv_clock_now(&a->clock);
  clv_partial_tensor *e = &a->in[a->n_in++];
  *e = (clv_partial_tensor){.transfer = transfer,
                            .total = total,
                            .tensor = t,
                            .spans = e->spans,
                            .cap_spans = e->cap_spans};
  *ret = e;
  return CLV_OK;
}

/* Contents of a fact about a transfer. */
typedef struct clv_partial_tensor_on_event {
  clv_reassembly *a;
  clv_partial_tensor *e; /* NULL until it is begun */
  uint64_t transfer, total;
  clv_packet *packet; /* HEAD: whose tensor `slot` it is */
  uint32_t slot;
  uint64_t from, to; /* CHUNK */
} clv_partial_tensor_on_event;

typedef clv_code partial_action(clv_partial_tensor_on_event *n, clv_err *err);

static clv_code insert_span(clv_partial_tensor *e, size_t at, clv_span s, clv_err *err) {
  if (e->n_spans == MAX_SPANS)
    return clv_fail(err, CLV_EXHAUSTED, "transfer %llu comes in more than %d pieces",
                    (unsigned long long)e->transfer, MAX_SPANS);
  if (e->n_spans == e->cap_spans) {
    size_t cap = e->cap_spans ? 2 * e->cap_spans : KEPT_SPANS;
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
static clv_code claim(clv_partial_tensor *e, uint64_t from, uint64_t to, clv_err *err) {
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

/* A chunk takes its bytes. */
static clv_code take_bytes(clv_partial_tensor_on_event *n, clv_err *err) {
  CLV_TRY(claim(n->e, n->from, n->to, err));
  n->e->claimed += n->to - n->from;
  return CLV_OK;
}

static clv_code take_head(clv_partial_tensor_on_event *n, clv_err *err) {
  (void)err;
  const clv_tensor_head *h = &n->packet->frame.tensors[n->slot];
  clv_partial_tensor *e = n->e;
  e->packet = n->packet;
  e->slot = n->slot;
  n->packet->credit += h->bytes;
  if (!e->tensor) return CLV_OK;
  e->tensor->dtype = h->dtype;
  e->tensor->shape = h->shape;
  e->tensor->n = h->bytes / clv_dtype_size(h->dtype);
  return CLV_OK;
}

static clv_code begin_bytes(clv_partial_tensor_on_event *n, clv_err *err) {
  CLV_TRY(begin(n->a, n->transfer, n->total, &n->e, err));
  return take_bytes(n, err);
}

static clv_code begin_head(clv_partial_tensor_on_event *n, clv_err *err) {
  CLV_TRY(begin(n->a, n->transfer, n->total, &n->e, err));
  return take_head(n, err);
}

static clv_code refuse_head(clv_partial_tensor_on_event *n, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "transfer %llu is named twice",
                  (unsigned long long)n->transfer);
}

static clv_code refuse_bytes(clv_partial_tensor_on_event *n, clv_err *err) {
  return clv_fail(err, CLV_INVALID, "bytes %llu to %llu of transfer %llu came twice",
                  (unsigned long long)n->from, (unsigned long long)n->to,
                  (unsigned long long)n->transfer);
}

/* PROTOCOL.md 4: chunks come in any order, before or after their head, each byte once. */
static partial_action *const actions[CLV_PARTIAL_STATES][CLV_PARTIAL_EVENTS] = {
    /*                          HEAD         CHUNK */
    [CLV_PARTIAL_NONE] = {begin_head, begin_bytes},
    [CLV_PARTIAL_HEADLESS] = {take_head, take_bytes},
    [CLV_PARTIAL_BYTES] = {take_head, refuse_bytes},
    [CLV_PARTIAL_HEADED] = {refuse_head, take_bytes},
    [CLV_PARTIAL_COMPLETE] = {refuse_head, refuse_bytes},
};

/* Under the lock. */
static clv_code note_fact(clv_partial_tensor_event fact, clv_partial_tensor_on_event *n,
                          clv_err *err) {
  n->e = find_partial(n->a, n->transfer);
  if (n->e && n->e->total != n->total)
    return clv_fail(err, CLV_INVALID, "transfer %llu states %llu bytes, then %llu",
                    (unsigned long long)n->transfer, (unsigned long long)n->e->total,
                    (unsigned long long)n->total);
  return actions[state_of(n->e)][fact](n, err);
}

/* ---- whole packets --------------------------------------------------------------------------- */

/* Without its tensors; who obeys it says why. */
static void refuse_packet(clv_packet *p, const clv_err *why) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) clv_tensor_unref(p->tensor[i]);
  p->frame.n_tensors = 0;
  p->refused = true;
  p->frame.has_failure = p->frame.kind == CLV_VALUE || p->frame.kind == CLV_REF_VALUE;
  clv_frame_set_failure(&p->frame, why->code, why->text, "");
}

static bool has_all_tensors(const clv_packet *p) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++)
    if (!p->tensor[i]) return false;
  return true;
}

/* Under the lock. */
static bool is_whole(const clv_reassembly *a, const clv_packet *p) {
  for (size_t i = 0; i < a->n_in; i++)
    if (a->in[i].packet == p && a->in[i].received < a->in[i].total) return false;
  return true;
}

/* Under the lock. The packet has the tensor from here on. */
static void hand_over(clv_reassembly *a, size_t i) {
  clv_partial_tensor *e = &a->in[i], last = a->in[--a->n_in];
  e->packet->tensor[e->slot] = e->tensor;
  e->packet->crc32c[e->slot] = e->crc32c;
  a->in[a->n_in] = (clv_partial_tensor){.spans = e->spans, .cap_spans = e->cap_spans};
  if (i < a->n_in) *e = last;
}

/* Under the lock. A packet whose tensors are all whole leaves the table; NULL otherwise. */
static clv_packet *finished(clv_reassembly *a, clv_packet *p) {
  if (!p || !is_whole(a, p)) return NULL;
  for (size_t i = 0; i < a->n_in;)
    if (a->in[i].packet == p)
      hand_over(a, i);
    else
      i++;
  if (!a->n_in) a->receiving_ns += clv_clock_now(&a->clock) - a->receiving_since;
  if (!has_all_tensors(p)) refuse_packet(p, &a->refusal);
  return p;
}

/* Returns a complete packet once its checksums are compared. The error names no checksum, because
 * that of a single number tells the number. */
static clv_code check_sums(clv_reassembly *a, clv_packet *p, clv_packet **ret, clv_err *err) {
  for (uint32_t i = 0; i < p->frame.n_tensors; i++) {
    if (p->crc32c[i] == p->frame.tensors[i].crc32c) continue;
    clv_fail(err, CLV_DATA_LOSS, "tensor %u of a %s frame has another CRC32C than is stated", i,
             clv_frame_kind_name(p->frame.kind));
    clv_packet_free(p);
    return CLV_DATA_LOSS;
  }
  __atomic_fetch_add(&a->tensors_in, p->frame.n_tensors, __ATOMIC_RELAXED);
  p->arrived_ns = clv_clock_now(&a->clock);
  *ret = p;
  return CLV_OK;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* The one copy on the way in: from the transport's slices into the tensor. Returns its part of the
 * sum. */
static uint32_t take_chunk(clv_tensor *t, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload) {
  char *at = (char *)t->data + f->chunk.offset;
  clv_payload_copy(pieces, payload, 0, payload->len, at);
  return clv_crc32c_shift(clv_crc32c(0, at, payload->len),
                          f->chunk.total - f->chunk.offset - payload->len);
}

/* Adds the bytes of a copied chunk to its transfer, which is never complete before that. */
static clv_packet *note_received(clv_reassembly *a, uint64_t transfer, uint64_t bytes,
                                 uint32_t crc) {
  pthread_mutex_lock(&a->lock);
  clv_partial_tensor *e = find_partial(a, transfer);
  e->received += bytes;
  e->crc32c ^= crc;
  clv_packet *whole = finished(a, e->packet);
  pthread_mutex_unlock(&a->lock);
  return whole;
}

clv_code clv_reassembly_add_chunk(clv_reassembly *a, const clv_frame *f, const clv_piece *pieces,
                                  const clv_payload *payload, clv_packet **ret, clv_err *err) {
  clv_partial_tensor_on_event n = {.a = a,
                                   .transfer = f->chunk.transfer,
                                   .total = f->chunk.total,
                                   .from = f->chunk.offset,
                                   .to = f->chunk.offset + payload->len};
  pthread_mutex_lock(&a->lock);
  /* The time of the first chunk itself is not known: it began before it came. */
  if (a->n_in) a->received_bytes += payload->len;
  clv_code code = note_fact(CLV_PARTIAL_CHUNK, &n, err);
  clv_tensor *t = code == CLV_OK && n.e->tensor ? clv_tensor_ref(n.e->tensor) : NULL;
  pthread_mutex_unlock(&a->lock);
  CLV_TRY(code);
  uint32_t crc = t ? take_chunk(t, f, pieces, payload) : 0;
  clv_packet *whole = note_received(a, f->chunk.transfer, payload->len, crc);
  clv_tensor_unref(t);
  *ret = NULL;
  return whole ? check_sums(a, whole, ret, err) : CLV_OK;
}

/* ---- frames ---------------------------------------------------------------------------------- */

static void come_from(clv_reassembly *a, clv_packet *p) {
  p->from = a->link;
  p->recv_window = clv_recv_window_ref(a->recv_window);
}

static bool comes_in_chunks(const clv_frame *f) { return f->n_tensors && f->tensors[0].transfer; }

/* Makes an announcement of a CALL in chunks. It keeps the CALL's place in the order of frames when
 * later frames overtake the chunks. */
static clv_code announce(clv_reassembly *a, clv_packet *p, clv_packet **ret, clv_err *err) {
  clv_packet *head;
  *ret = NULL;
  if (p->frame.kind != CLV_CALL || !comes_in_chunks(&p->frame)) return CLV_OK;
  CLV_TRY(clv_packet_new(a->pool, CLV_CALL, &head, err));
  (void)!clv_recv_window_add_packet(a->recv_window, true, err);
  come_from(a, head);
  head->frame = p->frame;
  head->frame.n_tensors = 0;
  head->head = p->headed = true;
  *ret = head;
  return CLV_OK;
}

clv_code clv_reassembly_new_packet(clv_reassembly *a, const clv_frame *f, clv_packet **ret_packet,
                                   clv_packet **ret_head, clv_err *err) {
  clv_packet *p;
  CLV_TRY(clv_recv_window_add_packet(a->recv_window, false, err));
  CLV_TRY(clv_packet_new(a->pool, f->kind, &p, err)); /* which ends the link: no need to count */
  come_from(a, p);
  p->frame = *f;
  clv_code code = announce(a, p, ret_head, err);
  if (code != CLV_OK) {
    p->frame.n_tensors = 0; /* no tensor of it is here yet */
    clv_packet_free(p);
    return code;
  }
  *ret_packet = p;
  return CLV_OK;
}

/* Under the lock: its tensors are named, or none is. */
static clv_code name_tensors(clv_reassembly *a, clv_packet *p, clv_err *err) {
  clv_code code = CLV_OK;
  for (uint32_t i = 0; i < p->frame.n_tensors && code == CLV_OK; i++) {
    clv_partial_tensor_on_event n = {.a = a,
                                     .transfer = p->frame.tensors[i].transfer,
                                     .total = p->frame.tensors[i].bytes,
                                     .packet = p,
                                     .slot = i};
    code = note_fact(CLV_PARTIAL_HEAD, &n, err);
  }
  for (size_t i = 0; code != CLV_OK && i < a->n_in; i++)
    if (a->in[i].packet == p) a->in[i].packet = NULL;
  return code;
}

static clv_code take_chunked(clv_reassembly *a, clv_packet *p, clv_packet **ret, clv_err *err) {
  pthread_mutex_lock(&a->lock);
  clv_code code = name_tensors(a, p, err);
  clv_packet *whole = code == CLV_OK ? finished(a, p) : NULL;
  pthread_mutex_unlock(&a->lock);
  if (code != CLV_OK) {
    p->frame.n_tensors = 0; /* no tensor of it is here yet */
    clv_packet_free(p);
  }
  return whole ? check_sums(a, whole, ret, err) : code;
}

/* From the payload into tensors of their own; as many as there is room for. */
static clv_code copy_tensors(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                             const clv_payload *payload, clv_err *err) {
  uint32_t n = p->frame.n_tensors;
  size_t from = 0;
  p->frame.n_tensors = 0;
  for (uint32_t i = 0; i < n; i++) {
    const clv_tensor_head *h = &p->frame.tensors[i];
    CLV_TRY(clv_pool_tensor(a->pool, h->dtype, &h->shape, &p->tensor[i], err));
    p->frame.n_tensors = i + 1;
    clv_payload_copy(pieces, payload, from, h->bytes, p->tensor[i]->data);
    p->crc32c[i] = clv_crc32c(0, p->tensor[i]->data, h->bytes);
    from += h->bytes;
  }
  return CLV_OK;
}

static clv_code take_inline(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                            const clv_payload *payload, clv_packet **ret, clv_err *err) {
  clv_code code = clv_recv_window_consume(a->recv_window, payload->len, err);
  if (code != CLV_OK) {
    p->frame.n_tensors = 0;
    clv_packet_free(p);
    return code;
  }
  p->credit = payload->len;
  code = copy_tensors(a, p, pieces, payload, err);
  if (code == CLV_EXHAUSTED && a->quota_fails_packet) {
    refuse_packet(p, err);
    code = CLV_OK;
  }
  if (code == CLV_OK) return check_sums(a, p, ret, err);
  clv_packet_free(p);
  return code;
}

clv_code clv_reassembly_add_packet(clv_reassembly *a, clv_packet *p, const clv_piece *pieces,
                                   const clv_payload *payload, clv_packet **ret, clv_err *err) {
  *ret = NULL;
  if (comes_in_chunks(&p->frame)) return take_chunked(a, p, ret, err);
  return take_inline(a, p, pieces, payload, ret, err);
}

/* ---- what there is of it --------------------------------------------------------------------- */

void clv_reassembly_measure(clv_reassembly *a, uint64_t *ret_bytes, uint64_t *ret_ns) {
  uint64_t now = clv_clock_now(&a->clock);
  pthread_mutex_lock(&a->lock);
  *ret_bytes = a->received_bytes;
  *ret_ns = a->receiving_ns + (a->n_in ? now - CLV_MIN(a->receiving_since, now) : 0);
  pthread_mutex_unlock(&a->lock);
}

void clv_reassembly_load(clv_reassembly *a, clv_link_load *load) {
  pthread_mutex_lock(&a->lock);
  load->tensors_in += a->n_in;
  for (size_t i = 0; i < a->n_in; i++) load->bytes_in += a->in[i].total - a->in[i].received;
  pthread_mutex_unlock(&a->lock);
}
