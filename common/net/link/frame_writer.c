/* SPDX-License-Identifier: Apache-2.0
 *
 * Frame writer: encodes frames and passes them to the streams of the lanes. Does not know packets,
 * credit or the congestion window. After a failed send it cancels the streams; the end of their
 * lanes then ends the link.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/net/link/link_int.h"

/* ---- encode buffers -------------------------------------------------------------------------- */

/* Preallocates encode buffers, so that the first step with many sending threads allocates none. */
static clv_code preallocate_heads(clv_frame_writer *o, clv_err *err) {
  static const char nothing[HEAD_BYTES];
  for (; o->n_head_buffers < PREALLOC_HEADS; o->n_head_buffers++) {
    clv_bytes *b = &o->head_buffers[o->n_head_buffers];
    clv_bytes_add(b, nothing, sizeof nothing);
    if (b->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
    b->len = 0;
  }
  return CLV_OK;
}

static clv_bytes take_head_buffer(clv_frame_writer *o) {
  pthread_mutex_lock(&o->lock);
  clv_bytes b = o->n_head_buffers ? o->head_buffers[--o->n_head_buffers] : (clv_bytes){0};
  pthread_mutex_unlock(&o->lock);
  return b;
}

static void return_head_buffer(clv_frame_writer *o, clv_bytes b) {
  pthread_mutex_lock(&o->lock);
  bool keep = o->n_head_buffers < MAX_HEAD_BUFFERS;
  if (keep) o->head_buffers[o->n_head_buffers++] = b;
  pthread_mutex_unlock(&o->lock);
  if (!keep) clv_bytes_done(&b);
}

/* ---- lifetime -------------------------------------------------------------------------------- */

clv_code clv_frame_writer_new(const char *peer, clv_frame_writer **ret, clv_err *err) {
  clv_frame_writer *o;
  CLV_TRY(clv_alloc(1, sizeof *o, &o, err));
  pthread_mutex_init(&o->lock, NULL);
  o->refs = 1;
  snprintf(o->peer, sizeof o->peer, "%s", peer);
  clv_code code = preallocate_heads(o, err);
  if (code != CLV_OK) {
    clv_frame_writer_unref(o);
    return code;
  }
  *ret = o;
  return CLV_OK;
}

clv_frame_writer *clv_frame_writer_ref(clv_frame_writer *o) {
  __atomic_fetch_add(&o->refs, 1, __ATOMIC_RELAXED);
  return o;
}

void clv_frame_writer_unref(clv_frame_writer *o) {
  if (!o || __atomic_fetch_sub(&o->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
  for (size_t i = 0; i < o->n_head_buffers; i++) clv_bytes_done(&o->head_buffers[i]);
  pthread_mutex_destroy(&o->lock);
  free(o);
}

/* ---- streams --------------------------------------------------------------------------------- */

clv_stream clv_stream_ref(clv_stream s) {
  if (s.transport) s.transport->ref(s.handle);
  return s;
}

void clv_stream_unref(clv_stream *s) {
  if (!s) return;
  if (s->transport) s->transport->unref(s->handle);
  *s = (clv_stream){0};
}

void clv_frame_writer_attach(clv_frame_writer *o, uint32_t index, clv_stream s) {
  pthread_mutex_lock(&o->lock);
  bool shut = o->is_shut;
  if (!shut) o->streams[index] = clv_stream_ref(s);
  pthread_mutex_unlock(&o->lock);
  if (shut) s.transport->cancel(s.handle, o->code == CLV_OK ? CLV_CANCELLED : o->code, o->text);
}

void clv_frame_writer_detach(clv_frame_writer *o, uint32_t index) {
  pthread_mutex_lock(&o->lock);
  clv_stream s = o->streams[index];
  o->streams[index] = (clv_stream){0};
  pthread_mutex_unlock(&o->lock);
  clv_stream_unref(&s);
}

static uint32_t ref_streams(clv_frame_writer *o, clv_stream ret[MAX_LANES]) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < MAX_LANES; i++)
    if (o->streams[i].transport) ret[n++] = clv_stream_ref(o->streams[i]);
  return n;
}

static void end_streams(clv_stream *streams, uint32_t n, clv_code code, const char *text) {
  for (uint32_t i = 0; i < n; i++) {
    if (code == CLV_OK)
      streams[i].transport->close(streams[i].handle);
    else
      streams[i].transport->cancel(streams[i].handle, code, text);
    clv_stream_unref(&streams[i]);
  }
}

void clv_frame_writer_shut(clv_frame_writer *o, clv_code code, const char *text) {
  clv_stream streams[MAX_LANES];
  pthread_mutex_lock(&o->lock);
  uint32_t n = o->is_shut ? 0 : ref_streams(o, streams);
  if (!o->is_shut) {
    o->code = code;
    snprintf(o->text, sizeof o->text, "%s", text);
  }
  o->is_shut = true;
  pthread_mutex_unlock(&o->lock);
  end_streams(streams, n, code, text);
}

void clv_frame_writer_cancel(clv_frame_writer *o, clv_code code, const char *text) {
  clv_stream streams[MAX_LANES];
  pthread_mutex_lock(&o->lock);
  uint32_t n = ref_streams(o, streams);
  pthread_mutex_unlock(&o->lock);
  end_streams(streams, n, code, text);
}

void clv_frame_writer_fail(clv_frame_writer *o, const clv_err *why) {
  pthread_mutex_lock(&o->lock);
  bool first = !o->is_shut && !o->is_broken;
  if (first) snprintf(o->text, sizeof o->text, "%s", why->text);
  o->is_broken = true;
  pthread_mutex_unlock(&o->lock);
  if (first) clv_frame_writer_cancel(o, why->code, why->text);
}

static clv_stream ref_lane_stream(clv_frame_writer *o, uint32_t index) {
  pthread_mutex_lock(&o->lock);
  bool over = o->is_shut || o->is_broken;
  clv_stream s = {0};
  if (!over) s = clv_stream_ref(o->streams[index]);
  pthread_mutex_unlock(&o->lock);
  return s;
}

bool clv_frame_writer_defer(clv_frame_writer *o, clv_rpc_job *job) {
  CLV_AUTO(clv_stream_unref) clv_stream s = ref_lane_stream(o, 0);
  return s.transport && s.transport->defer(s.handle, job);
}

/* ---- frames ---------------------------------------------------------------------------------- */

clv_code clv_frame_writer_refuse(clv_frame_writer *o, clv_err *err) {
  pthread_mutex_lock(&o->lock);
  clv_code code =
      clv_fail(err, CLV_UNAVAILABLE, "the connection to %s has ended: %s", o->peer, o->text);
  pthread_mutex_unlock(&o->lock);
  return code;
}

/* Counts a message that the transport has not accepted. A peer that sends PINGs and never reads the
 * PONGs would fill the memory otherwise. */
static clv_code count_unsent_message(clv_frame_writer *o, clv_err *err) {
  if (__atomic_add_fetch(&o->n_unsent, 1, __ATOMIC_RELAXED) <= MAX_UNSENT) return CLV_OK;
  clv_frame_writer_count_accepted(o);
  return clv_fail(err, CLV_EXHAUSTED,
                  "%s does not read its stream: %d messages to it wait, the limit", o->peer,
                  MAX_UNSENT);
}

void clv_frame_writer_count_accepted(clv_frame_writer *o) {
  __atomic_sub_fetch(&o->n_unsent, 1, __ATOMIC_RELAXED);
}

static void release_tensor(void *owner) { clv_tensor_unref(owner); }

clv_rpc_piece clv_frame_writer_piece(clv_tensor *t, size_t offset, size_t len) {
  return (clv_rpc_piece){(char *)t->data + offset, len, release_tensor, t};
}

static void release_pieces(const clv_rpc_piece *pieces, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release) pieces[i].release(pieces[i].owner);
}

static clv_code pass_to_stream(clv_frame_writer *o, clv_stream s, uint32_t index,
                               const clv_rpc_piece *pieces, size_t n, size_t bytes, clv_err *err) {
  /* Count before the send: the peer may answer, and close, before send returns. */
  if (index == 0) {
    clv_code code = count_unsent_message(o, err);
    if (code != CLV_OK) {
      release_pieces(pieces, n);
      return code;
    }
  }
  __atomic_fetch_add(&o->bytes_out, bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&o->messages_out, 1, __ATOMIC_RELAXED);
  clv_code code = s.transport->send(s.handle, pieces, n, err);
  if (code == CLV_OK) return code;
  if (index == 0) clv_frame_writer_count_accepted(o);
  return clv_err_prefix(err, "the connection to %s", o->peer);
}

clv_code clv_frame_writer_send(clv_frame_writer *o, uint32_t index, const clv_frame *f,
                               clv_rpc_piece *pieces, size_t n_payload, size_t payload,
                               clv_err *err) {
  CLV_AUTO(clv_stream_unref) clv_stream s = ref_lane_stream(o, index);
  clv_bytes head = take_head_buffer(o);
  clv_code code = clv_frame_encode(f, payload, &head, err);
  if (code == CLV_OK && !s.transport) code = clv_frame_writer_refuse(o, err);
  pieces[0] = (clv_rpc_piece){.data = head.data, .len = head.len};
  if (code == CLV_OK)
    code = pass_to_stream(o, s, index, pieces, n_payload + 1, head.len + payload, err);
  else
    release_pieces(pieces + 1, n_payload);
  return_head_buffer(o, head);
  return code;
}

/* Passes bundle prefix, head and payload to the stream. Returns their bytes; 0: they do not fit. */
static size_t coalesce_frame(clv_stream s, const clv_bytes *head, const clv_rpc_piece *payload,
                             size_t n, size_t bytes) {
  uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX];
  clv_iov pieces[2 + CLV_WIRE_TENSORS] = {
      {prefix, clv_frame_bundle_prefix(prefix, head->len + bytes)}, {head->data, head->len}};
  for (size_t i = 0; i < n; i++) pieces[2 + i] = (clv_iov){payload[i].data, payload[i].len};
  return s.transport->coalesce(s.handle, pieces, 2 + n) ? pieces[0].len + head->len + bytes : 0;
}

bool clv_frame_writer_coalesce(clv_frame_writer *o, const clv_frame *f,
                               const clv_rpc_piece *payload, size_t n_payload, size_t bytes) {
  clv_err ignored;
  CLV_AUTO(clv_stream_unref) clv_stream s = ref_lane_stream(o, 0);
  if (!s.transport || !s.transport->coalesce) return false;
  clv_bytes head = take_head_buffer(o);
  size_t sent = 0;
  if (clv_frame_encode(f, bytes, &head, &ignored) == CLV_OK)
    sent = coalesce_frame(s, &head, payload, n_payload, bytes);
  __atomic_fetch_add(&o->bytes_out, sent, __ATOMIC_RELAXED);
  return_head_buffer(o, head);
  return sent > 0;
}

void clv_frame_writer_flush(clv_frame_writer *o) {
  clv_err ignored;
  CLV_AUTO(clv_stream_unref) clv_stream s = ref_lane_stream(o, 0);
  if (!s.transport || !s.transport->flush || count_unsent_message(o, &ignored) != CLV_OK) return;
  if (s.transport->flush(s.handle))
    __atomic_fetch_add(&o->messages_out, 1, __ATOMIC_RELAXED);
  else
    clv_frame_writer_count_accepted(o);
}

clv_code clv_frame_writer_send_plain(clv_frame_writer *o, const clv_frame *f, clv_err *err) {
  clv_rpc_piece pieces[1];
  return clv_frame_writer_send(o, 0, f, pieces, 0, 0, err);
}
