/* SPDX-License-Identifier: Apache-2.0
 *
 * Frame writer: encodes frames, appends them to the logs of their lanes and passes them to the
 * streams of the lanes. Does not know packets, credit or the congestion window.
 *
 * One thread at a time passes the messages of a lane to its stream (pass_waiting_messages), so that
 * the stream gets them in the order of the log although no lock is held during the call. A thread
 * that appends a message meanwhile leaves it to the first one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

/* ---- messages of lanes ----------------------------------------------------------------------- */

static void free_message(clv_frame_writer *o, clv_logged_message *m) {
  __atomic_sub_fetch(&o->n_allocated_messages, 1, __ATOMIC_RELAXED);
  clv_bytes_done(&m->head);
  free(m);
}

/* Makes a message, with memory for a head of HEAD_BYTES if at most MAX_SPARE_MESSAGES are
 * allocated, because the writer reuses those. More messages get no memory ahead, so that a peer
 * that acknowledges nothing costs less. */
static clv_code new_message(clv_frame_writer *o, clv_logged_message **ret, clv_err *err) {
  static const char zeros[HEAD_BYTES];
  clv_logged_message *m;
  CLV_TRY(clv_alloc(1, sizeof *m, &m, err));
  if (__atomic_add_fetch(&o->n_allocated_messages, 1, __ATOMIC_RELAXED) <= MAX_SPARE_MESSAGES)
    clv_bytes_add(&m->head, zeros, sizeof zeros);
  if (m->head.failed) {
    free_message(o, m);
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  }
  *ret = m;
  return CLV_OK;
}

static void release_payload(clv_logged_message *m) {
  for (uint32_t i = 0; i < m->n_payload_tensors; i++) clv_tensor_unref(m->payload_tensors[i]);
  m->n_payload_tensors = 0;
}

/* Releases the tensors of a list of messages and keeps the messages for later ones. */
static void recycle_messages(clv_frame_writer *o, clv_logged_message *list) {
  clv_logged_message *surplus = NULL;
  for (clv_logged_message *m = list; m; m = m->next) release_payload(m);
  pthread_mutex_lock(&o->lock);
  for (clv_logged_message *m; (m = list) != NULL;) {
    list = m->next;
    m->is_removed = false;
    bool is_kept = o->n_free_messages < MAX_SPARE_MESSAGES;
    o->n_free_messages += is_kept;
    m->next = is_kept ? o->free_messages : surplus;
    *(is_kept ? &o->free_messages : &surplus) = m;
  }
  pthread_mutex_unlock(&o->lock);
  for (clv_logged_message *m; (m = surplus) != NULL;) {
    surplus = m->next;
    free_message(o, m);
  }
}

static void recycle_message(clv_frame_writer *o, clv_logged_message *m) {
  m->next = NULL;
  recycle_messages(o, m);
}

static clv_logged_message *take_spare_message(clv_frame_writer *o) {
  pthread_mutex_lock(&o->lock);
  clv_logged_message *m = o->free_messages;
  if (m) {
    o->free_messages = m->next;
    o->n_free_messages--;
  }
  pthread_mutex_unlock(&o->lock);
  return m;
}

static clv_code add_spare_messages(clv_frame_writer *o, int n, clv_err *err) {
  for (int i = 0; i < n; i++) {
    clv_logged_message *m;
    CLV_TRY(new_message(o, &m, err));
    recycle_message(o, m);
  }
  return CLV_OK;
}

static clv_code take_message(clv_frame_writer *o, clv_logged_message **ret, clv_err *err) {
  clv_logged_message *m = take_spare_message(o);
  if (!m) {
    CLV_TRY(add_spare_messages(o, MESSAGE_BATCH, err));
    m = take_spare_message(o);
  }
  /* makes one more, because other threads have taken the new ones */
  if (!m) CLV_TRY(new_message(o, &m, err));
  m->head.len = m->head_len = m->message_bytes = 0;
  m->head.failed = false;
  *ret = m;
  return CLV_OK;
}

/* ---- making and freeing a frame writer ------------------------------------------------------- */

/* Allocates the memory for frames that are held back, so that a step allocates none. */
static clv_code reserve_held_frames(clv_frame_writer *o, clv_err *err) {
  static const char zeros[COALESCED_BYTES];
  clv_bytes_add(&o->held_frames, zeros, sizeof zeros);
  if (o->held_frames.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  o->held_frames.len = 0;
  return CLV_OK;
}

clv_code clv_frame_writer_new(const char *peer, clv_frame_writer **ret, clv_err *err) {
  clv_frame_writer *o;
  CLV_TRY(clv_alloc(1, sizeof *o, &o, err));
  pthread_mutex_init(&o->lock, NULL);
  o->refs = 1;
  snprintf(o->peer_name, sizeof o->peer_name, "%s", peer);
  clv_code code = reserve_held_frames(o, err);
  if (code == CLV_OK) code = add_spare_messages(o, PREALLOC_MESSAGES, err);
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
  clv_logged_message *removed = NULL;
  for (uint32_t i = 0; i < MAX_LANES; i++) {
    clv_stream_unref(&o->lane_logs[i].stream);
    clv_lane_log_clear(&o->lane_logs[i], &removed);
  }
  recycle_messages(o, removed);
  for (clv_logged_message *m; (m = take_spare_message(o)) != NULL;) free_message(o, m);
  clv_bytes_done(&o->held_frames);
  pthread_mutex_destroy(&o->lock);
  free(o);
}

/* ---- references to streams ------------------------------------------------------------------- */

clv_stream clv_stream_ref(clv_stream s) {
  if (s.transport) s.transport->ref(s.handle);
  return s;
}

void clv_stream_unref(clv_stream *s) {
  if (!s) return;
  if (s->transport) s->transport->unref(s->handle);
  *s = (clv_stream){0};
}

/* ---- passing messages to a stream ------------------------------------------------------------ */

static void release_tensor(void *owner) { clv_tensor_unref(owner); }

clv_rpc_piece clv_rpc_piece_of_tensor(clv_tensor *t, size_t offset, size_t len) {
  return (clv_rpc_piece){(char *)t->data + offset, len, release_tensor, t};
}

/* Passes a message to a stream, with references of its own to the tensors. */
static clv_code pass_message_to_stream(clv_stream s, const clv_logged_message *m, clv_err *err) {
  clv_rpc_piece pieces[2 + CLV_WIRE_TENSORS];
  size_t n = 0, n_bytes_behind_head = m->head.len - m->head_len;
  if (m->head_len) pieces[n++] = (clv_rpc_piece){.data = m->head.data, .len = m->head_len};
  for (uint32_t i = 0; i < m->n_payload_tensors; i++) {
    clv_tensor *t = clv_tensor_ref(m->payload_tensors[i]);
    pieces[n++] = clv_rpc_piece_of_tensor(t, i ? 0 : m->first_tensor_offset,
                                          i ? t->bytes : m->first_tensor_len);
  }
  if (n_bytes_behind_head)
    pieces[n++] = (clv_rpc_piece){.data = m->head.data + m->head_len, .len = n_bytes_behind_head};
  return s.transport->send(s.handle, pieces, n, err);
}

/* Passes one message to its stream. The caller holds the lock, which is released meanwhile. The
 * end of a stream that takes nothing any more is reported to its lane, and the message stays in
 * the log. */
static void pass_current_message(clv_frame_writer *o, clv_lane_log *g,
                                 const clv_logged_message *m) {
  clv_err err;
  clv_stream s = clv_stream_ref(g->stream);
  pthread_mutex_unlock(&o->lock);
  clv_code code = pass_message_to_stream(s, m, &err);
  if (code == CLV_INVALID) clv_frame_writer_break(o, &err);
  if (code == CLV_EXHAUSTED) s.transport->cancel(s.handle, CLV_CANCELLED, err.text);
  clv_stream_unref(&s);
  pthread_mutex_lock(&o->lock);
  clv_logged_message *removed = clv_lane_log_finish_message(g);
  if (!removed) return;
  pthread_mutex_unlock(&o->lock);
  recycle_message(o, removed);
  pthread_mutex_lock(&o->lock);
}

/* Closes the stream of a lane whose writer was shut while its messages were passed. The caller
 * holds the lock, which this function releases. */
static void close_stream_if_shut(clv_frame_writer *o, clv_lane_log *g) {
  clv_logged_message *removed = NULL;
  clv_stream s = {0};
  g->is_passing_messages = false;
  if (o->is_shut) {
    clv_lane_log_clear(g, &removed);
    s = clv_stream_ref(g->stream);
  }
  bool ends_orderly = o->end_code == CLV_OK;
  pthread_mutex_unlock(&o->lock);
  if (s.transport && ends_orderly) s.transport->close(s.handle);
  clv_stream_unref(&s);
  recycle_messages(o, removed);
}

/* Passes all waiting messages of a lane to its stream, unless another thread does. The caller
 * holds the lock, which this function releases. */
static void pass_waiting_messages(clv_frame_writer *o, clv_lane_log *g) {
  if (g->is_passing_messages) {
    pthread_mutex_unlock(&o->lock);
    return;
  }
  g->is_passing_messages = true;
  for (const clv_logged_message *m; (m = clv_lane_log_take_next(g)) != NULL;)
    pass_current_message(o, g, m);
  if (o->is_shut) {
    close_stream_if_shut(o, g);
    return;
  }
  g->is_passing_messages = false;
  pthread_mutex_unlock(&o->lock);
}

/* ---- streams of lanes ------------------------------------------------------------------------ */

void clv_frame_writer_attach_stream(clv_frame_writer *o, uint32_t index, uint64_t connection,
                                    clv_stream s) {
  clv_lane_log *g = &o->lane_logs[index];
  clv_stream old_stream = {0};
  pthread_mutex_lock(&o->lock);
  bool was_shut = o->is_shut;
  if (!was_shut && connection >= g->min_connection_number) {
    old_stream = g->stream;
    g->stream = clv_stream_ref(s);
    g->connection_number = connection;
    g->is_stream_attached = false;
  }
  pthread_mutex_unlock(&o->lock);
  clv_stream_unref(&old_stream);
  if (was_shut)
    s.transport->cancel(s.handle, o->end_code == CLV_OK ? CLV_CANCELLED : o->end_code, o->end_text);
}

clv_code clv_frame_writer_resume_lane(clv_frame_writer *o, uint32_t index, uint64_t connection,
                                      uint64_t received, clv_err *err) {
  clv_lane_log *g = &o->lane_logs[index];
  clv_logged_message *removed = NULL;
  uint64_t resent_bytes = 0;
  clv_code code = CLV_OK;
  pthread_mutex_lock(&o->lock);
  if (!o->is_shut && g->stream.transport && g->connection_number == connection)
    code = clv_lane_log_continue_after(g, received, &removed, &resent_bytes, err);
  __atomic_fetch_add(&o->resent_bytes, resent_bytes, __ATOMIC_RELAXED);
  pass_waiting_messages(o, g);
  recycle_messages(o, removed);
  return code;
}

void clv_frame_writer_detach_stream(clv_frame_writer *o, uint32_t index, uint64_t connection) {
  clv_lane_log *g = &o->lane_logs[index];
  clv_stream s = {0};
  pthread_mutex_lock(&o->lock);
  g->min_connection_number = CLV_MAX(g->min_connection_number, connection + 1);
  if (g->stream.transport && g->connection_number == connection) {
    s = g->stream;
    g->stream = (clv_stream){0};
    g->is_stream_attached = false;
  }
  pthread_mutex_unlock(&o->lock);
  clv_stream_unref(&s);
}

clv_code clv_frame_writer_remove_acked(clv_frame_writer *o, uint32_t index, uint64_t received,
                                       clv_err *err) {
  clv_logged_message *removed = NULL;
  pthread_mutex_lock(&o->lock);
  clv_code code = o->is_shut
                      ? CLV_OK
                      : clv_lane_log_remove_acked(&o->lane_logs[index], received, &removed, err);
  pthread_mutex_unlock(&o->lock);
  recycle_messages(o, removed);
  return code;
}

static uint32_t ref_streams(clv_frame_writer *o, clv_stream ret[MAX_LANES]) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < MAX_LANES; i++)
    if (o->lane_logs[i].stream.transport) ret[n++] = clv_stream_ref(o->lane_logs[i].stream);
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

/* Empties the logs. A lane whose messages a thread passes now keeps them for an orderly end, and
 * close_stream_if_shut then closes its stream. Returns the number of streams to end. The caller
 * holds the lock. */
static uint32_t clear_logs(clv_frame_writer *o, clv_code code, clv_stream streams[MAX_LANES],
                           clv_logged_message **removed) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < MAX_LANES; i++) {
    clv_lane_log *g = &o->lane_logs[i];
    if (code == CLV_OK && g->is_passing_messages) continue;
    if (g->stream.transport) streams[n++] = clv_stream_ref(g->stream);
    clv_lane_log_clear(g, removed);
  }
  return n;
}

void clv_frame_writer_shut(clv_frame_writer *o, clv_code code, const char *text) {
  clv_stream streams[MAX_LANES];
  clv_logged_message *removed = NULL;
  clv_frame_writer_flush(o);
  pthread_mutex_lock(&o->lock);
  uint32_t n = o->is_shut ? 0 : clear_logs(o, code, streams, &removed);
  if (!o->is_shut) {
    o->end_code = code;
    snprintf(o->end_text, sizeof o->end_text, "%s", text);
  }
  o->is_shut = true;
  pthread_mutex_unlock(&o->lock);
  end_streams(streams, n, code, text);
  recycle_messages(o, removed);
}

void clv_frame_writer_cancel_all_streams(clv_frame_writer *o, clv_code code, const char *text) {
  clv_stream streams[MAX_LANES];
  pthread_mutex_lock(&o->lock);
  uint32_t n = ref_streams(o, streams);
  pthread_mutex_unlock(&o->lock);
  end_streams(streams, n, code, text);
}

void clv_frame_writer_cancel_lane_stream(clv_frame_writer *o, uint32_t index, const char *text) {
  pthread_mutex_lock(&o->lock);
  clv_stream s = clv_stream_ref(o->lane_logs[index].stream);
  pthread_mutex_unlock(&o->lock);
  if (s.transport) s.transport->cancel(s.handle, CLV_CANCELLED, text);
  clv_stream_unref(&s);
}

void clv_frame_writer_break(clv_frame_writer *o, const clv_err *why) {
  pthread_mutex_lock(&o->lock);
  bool is_first_failure = !o->is_shut && !o->is_broken;
  if (is_first_failure) snprintf(o->end_text, sizeof o->end_text, "%s", why->text);
  o->is_broken = true;
  pthread_mutex_unlock(&o->lock);
  if (is_first_failure) clv_frame_writer_cancel_all_streams(o, why->code, why->text);
}

bool clv_frame_writer_is_broken(clv_frame_writer *o, char *text) {
  pthread_mutex_lock(&o->lock);
  bool is_broken = o->is_broken && !o->is_shut;
  if (is_broken) memcpy(text, o->end_text, sizeof o->end_text);
  pthread_mutex_unlock(&o->lock);
  return is_broken;
}

bool clv_frame_writer_defer_job(clv_frame_writer *o, clv_rpc_job *job) {
  CLV_AUTO(clv_stream_unref) clv_stream s = {0};
  pthread_mutex_lock(&o->lock);
  bool has_ended = o->is_shut || o->is_broken;
  for (uint32_t i = 0; i < MAX_LANES && !has_ended && !s.transport; i++)
    s = clv_stream_ref(o->lane_logs[i].stream);
  pthread_mutex_unlock(&o->lock);
  return s.transport && s.transport->defer(s.handle, job);
}

/* ---- sending frames -------------------------------------------------------------------------- */

clv_code clv_frame_writer_end_error(clv_frame_writer *o, clv_err *err) {
  pthread_mutex_lock(&o->lock);
  clv_code code = clv_fail(err, CLV_UNAVAILABLE, "the connection to %s has ended: %s", o->peer_name,
                           o->end_text);
  pthread_mutex_unlock(&o->lock);
  return code;
}

static uint64_t count_unaccepted(const clv_lane_log *g) {
  return g->n_appended - __atomic_load_n(&g->n_accepted, __ATOMIC_RELAXED);
}

/* Fails if the lane has too many messages. A peer that sends PINGs and never reads the PONGs, or
 * that acknowledges nothing, would fill the memory otherwise. The caller holds the lock. */
static clv_code check_log_room(const clv_frame_writer *o, uint32_t index, clv_err *err) {
  const clv_lane_log *g = &o->lane_logs[index];
  if (index == 0 && count_unaccepted(g) >= MAX_UNSENT)
    return clv_fail(err, CLV_EXHAUSTED,
                    "%s does not read its stream: %d messages to it wait, the limit", o->peer_name,
                    MAX_UNSENT);
  if (g->n_appended - g->n_acked >= MAX_LOGGED)
    return clv_fail(err, CLV_EXHAUSTED, "%s has not acknowledged %d messages of a lane, the limit",
                    o->peer_name, MAX_LOGGED);
  return CLV_OK;
}

uint64_t clv_frame_writer_n_unaccepted(clv_frame_writer *o) {
  pthread_mutex_lock(&o->lock);
  uint64_t n = o->is_shut ? 0 : count_unaccepted(&o->lane_logs[0]);
  pthread_mutex_unlock(&o->lock);
  return n;
}

void clv_frame_writer_record_accepted(clv_frame_writer *o, uint32_t index) {
  clv_err ignored; /* the transport accepts only what was sent */
  uint64_t n = __atomic_add_fetch(&o->lane_logs[index].n_accepted, 1, __ATOMIC_RELAXED);
  if (o->forgets_accepted_messages) (void)!clv_frame_writer_remove_acked(o, index, n, &ignored);
}

/* Appends the held-back frames to a message of lane 0, so that the message carries them. The
 * caller holds the lock. */
static void append_held_frames(clv_frame_writer *o, clv_logged_message *m) {
  clv_bytes_add(&m->head, o->held_frames.data, o->held_frames.len);
  m->message_bytes += o->held_frames.len;
  o->held_frames.len = 0;
  o->n_held_frames = o->n_held_acks = 0;
}

/* Appends a message to its lane. The caller holds the lock. */
static clv_code append_message(clv_frame_writer *o, uint32_t index, clv_logged_message *m,
                               clv_err *err) {
  CLV_TRY(check_log_room(o, index, err));
  if (index == 0 && o->n_held_frames) append_held_frames(o, m);
  if (m->head.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a message");
  clv_lane_log_append(&o->lane_logs[index], m);
  __atomic_fetch_add(&o->bytes_out, m->message_bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&o->messages_out, 1, __ATOMIC_RELAXED);
  return CLV_OK;
}

/* Appends a message to its lane and passes it to the stream. Takes the message in all cases. */
static clv_code send_message(clv_frame_writer *o, uint32_t index, clv_logged_message *m,
                             clv_err *err) {
  pthread_mutex_lock(&o->lock);
  bool has_ended = o->is_shut || o->is_broken;
  clv_code code = has_ended ? CLV_UNAVAILABLE : append_message(o, index, m, err);
  if (code == CLV_OK) {
    pass_waiting_messages(o, &o->lane_logs[index]);
    return CLV_OK;
  }
  pthread_mutex_unlock(&o->lock);
  recycle_message(o, m);
  return has_ended ? clv_frame_writer_end_error(o, err) : code;
}

static void release_pieces(const clv_rpc_piece *pieces, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
}

/* Appends a frame without payload to the message that it precedes. */
static clv_code append_preceding_frame(clv_frame_writer *o, clv_logged_message *m,
                                       const clv_frame *before, clv_err *err) {
  uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX];
  clv_logged_message *encoded_frame;
  CLV_TRY(take_message(o, &encoded_frame, err));
  clv_code code = clv_frame_encode(before, 0, &encoded_frame->head, err);
  if (code == CLV_OK) {
    clv_bytes_add(&m->head, prefix, clv_frame_write_bundle_prefix(prefix, encoded_frame->head.len));
    clv_bytes_add(&m->head, encoded_frame->head.data, encoded_frame->head.len);
  }
  recycle_message(o, encoded_frame);
  return code;
}

clv_code clv_frame_writer_send(clv_frame_writer *o, uint32_t index, const clv_frame *f,
                               clv_rpc_piece *pieces, size_t n_payload, size_t payload,
                               clv_err *err) {
  return clv_frame_writer_send_with_preceding(o, index, NULL, f, pieces, n_payload, payload, err);
}

clv_code clv_frame_writer_send_with_preceding(clv_frame_writer *o, uint32_t index,
                                              const clv_frame *before, const clv_frame *f,
                                              clv_rpc_piece *pieces, size_t n_payload,
                                              size_t payload, clv_err *err) {
  clv_logged_message *m;
  clv_code code = take_message(o, &m, err);
  if (code != CLV_OK) {
    release_pieces(pieces + 1, n_payload);
    return code;
  }
  for (size_t i = 0; i < n_payload; i++) m->payload_tensors[i] = pieces[i + 1].owner;
  m->n_payload_tensors = (uint32_t)n_payload;
  if (n_payload) {
    m->first_tensor_offset =
        (size_t)((const char *)pieces[1].data - (const char *)m->payload_tensors[0]->data);
    m->first_tensor_len = pieces[1].len;
  }
  code = clv_frame_encode(f, payload, &m->head, err);
  m->head_len = m->head.len;
  if (code == CLV_OK && before) code = append_preceding_frame(o, m, before, err);
  m->message_bytes = m->head.len + payload;
  if (code == CLV_OK) return send_message(o, index, m, err);
  recycle_message(o, m);
  return code;
}

clv_code clv_stream_send_first_frame(clv_stream s, const clv_frame *f, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes head = {0};
  CLV_TRY(clv_frame_encode(f, 0, &head, err));
  const clv_rpc_piece piece = {.data = head.data, .len = head.len};
  return s.transport->send(s.handle, &piece, 1, err);
}

/* ---- frames that are held back --------------------------------------------------------------- */

/* Holds an encoded frame back: prefix, head, payload. False: there is no room. The caller holds the
 * lock. */
static bool hold_frame_back(clv_frame_writer *o, const clv_bytes *head,
                            const clv_rpc_piece *payload, size_t n, size_t bytes) {
  uint8_t prefix[CLV_WIRE_BUNDLE_PREFIX];
  size_t prefix_len = clv_frame_write_bundle_prefix(prefix, head->len + bytes);
  clv_bytes *to = &o->held_frames;
  if (o->is_shut || o->is_broken || to->failed || o->n_held_frames == CLV_WIRE_BUNDLED ||
      prefix_len + head->len + bytes > COALESCED_BYTES - to->len)
    return false;
  size_t before = to->len;
  clv_bytes_add(to, prefix, prefix_len);
  clv_bytes_add(to, head->data, head->len);
  for (size_t i = 0; i < n; i++) clv_bytes_add(to, payload[i].data, payload[i].len);
  if (to->failed)
    to->len = before;
  else
    o->n_held_frames++;
  return !to->failed;
}

bool clv_frame_writer_hold_back(clv_frame_writer *o, const clv_frame *f,
                                const clv_rpc_piece *payload, size_t n_payload, size_t bytes) {
  clv_err ignored;
  clv_logged_message *encoded_frame;
  bool is_held = false;
  if (take_message(o, &encoded_frame, &ignored) != CLV_OK) return false;
  if (clv_frame_encode(f, bytes, &encoded_frame->head, &ignored) == CLV_OK) {
    pthread_mutex_lock(&o->lock);
    is_held = hold_frame_back(o, &encoded_frame->head, payload, n_payload, bytes);
    o->n_held_acks += is_held && f->kind == CLV_ACK;
    pthread_mutex_unlock(&o->lock);
  }
  recycle_message(o, encoded_frame);
  return is_held;
}

void clv_frame_writer_flush(clv_frame_writer *o) {
  clv_err ignored;
  clv_logged_message *m;
  pthread_mutex_lock(&o->lock);
  bool needs_message = o->n_held_frames > o->n_held_acks && !o->is_shut && !o->is_broken;
  pthread_mutex_unlock(&o->lock);
  if (!needs_message || take_message(o, &m, &ignored) != CLV_OK) return;
  pthread_mutex_lock(&o->lock);
  needs_message = o->n_held_frames > o->n_held_acks && !o->is_shut && !o->is_broken &&
                  append_message(o, 0, m, &ignored) == CLV_OK;
  if (needs_message) {
    pass_waiting_messages(o, &o->lane_logs[0]);
    return;
  }
  pthread_mutex_unlock(&o->lock);
  recycle_message(o, m);
}

clv_code clv_frame_writer_send_without_payload(clv_frame_writer *o, const clv_frame *f,
                                               clv_err *err) {
  clv_rpc_piece pieces[1];
  return clv_frame_writer_send(o, 0, f, pieces, 0, 0, err);
}
