/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes: receive the messages of a stream, decode their frames and run the action for each frame in
 * the state of the lane. The transport calls clv_lane_on_message, clv_lane_on_sent and
 * clv_lane_on_ended. Complete packets are delivered to the link's owner from here.
 *
 * A clv_lane is one connection of a lane. The peer connects a lane again by an ATTACH with a higher
 * number. If the earlier connection has not ended here, it is cancelled, and ATTACHED is sent after
 * its clv_lane_on_ended: until then a message of it may still be handled, which the number of
 * received messages has to include.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

/* ---- actions for received frames ------------------------------------------------------------- */

/* A received frame and the lane that received it. */
typedef struct lane_frame {
  clv_link *link; /* link of the lane; NULL: it has none yet */
  clv_lane *lane; /* lane of an ATTACH or ATTACHED; NULL: the caller is clv_link_on_frame */
  uint32_t lane_index;
  const clv_frame *f;
  const clv_piece *pieces;
  const clv_payload *payload;
} lane_frame;

/* Classes of frames: the table of actions has one column for each class. */
typedef enum frame_class {
  ATTACH,
  ATTACHED,
  CHUNK,
  CREDIT,
  ACK,
  PING,
  PONG,
  PACKET,
  CLASSES
} frame_class;

static frame_class frame_class_of(clv_frame_kind kind) {
  static const frame_class classes[CLV_FRAME_KINDS] = {
      [CLV_ATTACH] = 1 + ATTACH, [CLV_ATTACHED] = 1 + ATTACHED, [CLV_CHUNK] = 1 + CHUNK,
      [CLV_CREDIT] = 1 + CREDIT, [CLV_PING] = 1 + PING,         [CLV_PONG] = 1 + PONG,
      [CLV_ACK] = 1 + ACK};
  return classes[kind] ? classes[kind] - 1 : PACKET;
}

typedef clv_code lane_action(const lane_frame *m, clv_err *err);

/* Delivers a packet. One with tensors makes an ACK due, because the peer keeps them until then. */
static void deliver_packet(clv_link *l, clv_packet *p) {
  if (!p) return;
  if (p->frame.n_tensors) __atomic_store_n(&l->is_ack_due, true, __ATOMIC_RELAXED);
  l->events.on_packet(l->events.user, l, p);
}

static clv_code on_packet(const lane_frame *m, clv_err *err) {
  clv_packet *p, *head, *complete_packet;
  clv_reassembly *a = &m->link->reassembly;
  CLV_TRY(clv_reassembly_new_packet(a, m->f, &p, &head, err));
  deliver_packet(m->link, head);
  CLV_TRY(clv_reassembly_add_packet(a, p, m->pieces, m->payload, &complete_packet, err));
  deliver_packet(m->link, complete_packet);
  return CLV_OK;
}

static clv_code on_chunk(const lane_frame *m, clv_err *err) {
  clv_packet *complete_packet;
  CLV_TRY(clv_reassembly_add_chunk(&m->link->reassembly, m->f, m->pieces, m->payload,
                                   &complete_packet, err));
  deliver_packet(m->link, complete_packet);
  return CLV_OK;
}

static clv_code on_credit(const lane_frame *m, clv_err *err) {
  (void)err;
  clv_send_queue_add_credit(m->link->send_queue, m->f->credit.bytes);
  return CLV_OK;
}

static clv_code on_ack(const lane_frame *m, clv_err *err) {
  return clv_link_handle_ack(m->link, m->f, err);
}

/* Answers a PING. If the PING came in one message with a chunk, the PONG is held back: it is sent
 * with the first frame that this side sends because of the chunk, or after the chunk is handled
 * (handle_message). Ignores CLV_UNAVAILABLE, because a closing or broken link reports its own
 * end. */
static clv_code on_ping(const lane_frame *m, clv_err *err) {
  clv_frame pong = clv_link_make_pong(m->link, m->f);
  if (m->lane_index && clv_frame_writer_hold_back(m->link->writer, &pong, NULL, 0, 0))
    return CLV_OK;
  clv_code code = clv_frame_writer_send_without_payload(m->link->writer, &pong, err);
  return code == CLV_UNAVAILABLE ? CLV_OK : code;
}

static clv_code on_pong(const lane_frame *m, clv_err *err) {
  if (m->f->reply_to & PROBE_BIT)
    return clv_send_queue_handle_pong(m->link->send_queue, m->f->reply_to, err);
  return clv_link_handle_pong(m->link, m->f, err);
}

/* ---- ATTACH and ATTACHED, the first frame of a stream ---------------------------------------- */

static void set_lane_state(clv_lane *ln, clv_lane_state state) {
  __atomic_store_n(&ln->state, state, __ATOMIC_RELAXED);
}

static clv_code mark_attached(clv_link *l, uint32_t index, uint64_t connection, clv_err *err) {
  clv_link_event_args n = {.lane_index = index, .connection_number = connection};
  return clv_link_on_event(l, CLV_LINK_LANE_ATTACHED, &n, err);
}

static clv_code on_attached(const lane_frame *m, clv_err *err) {
  clv_lane *ln = m->lane;
  const bool is_first = ln->connection_number == 0;
  if (is_first && m->f->attached.n_received)
    return clv_fail(err, CLV_INVALID, "ATTACHED counts messages, but none was sent");
  if (is_first && ln->lane_index == 0)
    clv_send_queue_set_credit(m->link->send_queue, m->f->attached.credit_bytes);
  set_lane_state(ln, ln->lane_index ? CLV_LANE_BULK : CLV_LANE_CONTROL);
  CLV_TRY(mark_attached(m->link, ln->lane_index, ln->connection_number, err));
  return clv_frame_writer_resume_lane(m->link->writer, ln->lane_index, ln->connection_number,
                                      m->f->attached.n_received, err);
}

/* Copy of the fields of an accepted clv_lane that has joined, because another thread may free the
 * clv_lane. */
typedef struct joined_lane {
  clv_link *link;
  clv_stream stream;
  uint32_t lane_index;
  uint64_t connection_number, n_peer_received;
} joined_lane;

/* Sends ATTACHED on a lane that has joined, and passes the messages that the peer has not received
 * to its stream. */
static clv_code answer_attach(const joined_lane *j, clv_err *err) {
  clv_frame reply = {.kind = CLV_ATTACHED};
  reply.attached.credit_bytes = j->link->accept_limits.credit_bytes;
  reply.attached.n_received = clv_link_n_received(j->link, j->lane_index);
  clv_frame_writer_attach_stream(j->link->writer, j->lane_index, j->connection_number, j->stream);
  CLV_TRY(mark_attached(j->link, j->lane_index, j->connection_number, err));
  if (clv_stream_send_first_frame(j->stream, &reply, err) != CLV_OK) {
    /* the stream has ended meanwhile, and its lane reports that */
    j->stream.transport->cancel(j->stream.handle, CLV_CANCELLED, err->text);
    return CLV_OK;
  }
  return clv_frame_writer_resume_lane(j->link->writer, j->lane_index, j->connection_number,
                                      j->n_peer_received, err);
}

/* Describes a lane that has joined. Takes a reference to its stream. */
static joined_lane describe_joined_lane(clv_link *l, clv_lane *ln) {
  set_lane_state(ln, ln->lane_index ? CLV_LANE_BULK : CLV_LANE_CONTROL);
  return (joined_lane){l, clv_stream_ref(ln->stream), ln->lane_index, ln->connection_number,
                       ln->n_peer_received};
}

static clv_code join_lane(clv_link *l, clv_lane *ln, const clv_frame *f, clv_err *err) {
  clv_link_event_args n = {.lane_index = f->attach.lane_index,
                           .n_lanes = 1 + f->attach.n_lanes,
                           .lane = ln,
                           .connection_number = f->attach.connection_number};
  ln->lane_index = n.lane_index;
  ln->connection_number = f->attach.connection_number;
  ln->n_peer_received = f->attach.n_received;
  ln->link = clv_link_ref(l);
  set_lane_state(ln, CLV_LANE_WAITING);
  clv_code code = clv_link_on_event(l, CLV_LINK_LANE_JOINS, &n, err);
  if (code != CLV_OK) {
    ln->link = NULL;
    clv_link_unref(l);
    return code;
  }
  if (n.must_wait) {
    if (n.replaced_stream.transport)
      n.replaced_stream.transport->cancel(n.replaced_stream.handle, CLV_CANCELLED,
                                          "a newer connection came");
    clv_stream_unref(&n.replaced_stream);
    clv_frame_writer_cancel_lane_stream(l->writer, n.lane_index, "a newer connection came");
    return CLV_OK;
  }
  joined_lane j = describe_joined_lane(l, ln);
  if (!ln->connection_number) clv_send_queue_set_lanes(l->send_queue, n.n_lanes);
  code = answer_attach(&j, err);
  clv_stream_unref(&j.stream);
  return code;
}

static clv_code on_attach(const lane_frame *m, clv_err *err) {
  const clv_lane_acceptor *a = m->lane->acceptor;
  CLV_AUTO(clv_link_unrefp) clv_link *l = NULL;
  CLV_TRY(a->find_link(a->user, m->f, m->lane->peer_uri, &l, err));
  return join_lane(l, m->lane, m->f, err);
}

/* ---- illegal frames and the table of actions ------------------------------------------------- */

static clv_code refuse_before_attach(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION, "the first frame must be ATTACH, not %s",
                  clv_frame_kind_name(m->f->kind));
}

static clv_code refuse_while_waiting(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION, "%s was sent before ATTACHED",
                  clv_frame_kind_name(m->f->kind));
}

static clv_code refuse_before_attached(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION, "expected ATTACHED, got %s",
                  clv_frame_kind_name(m->f->kind));
}

static clv_code refuse_repeated_attach(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION, "%s was sent twice on one lane",
                  clv_frame_kind_name(m->f->kind));
}

static clv_code refuse_on_bulk_lane(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION,
                  "%s was sent on bulk lane %u, which carries only CHUNK and PING",
                  clv_frame_kind_name(m->f->kind), m->lane_index);
}

/* Actions for each state, from PROTOCOL.md 5, "Where frames are legal". */
static lane_action *const actions[CLV_LANE_STATES][CLASSES] = {
    [CLV_LANE_ACCEPTED] = {[ATTACH] = on_attach,
                           [ATTACHED] = refuse_before_attach,
                           [CHUNK] = refuse_before_attach,
                           [CREDIT] = refuse_before_attach,
                           [ACK] = refuse_before_attach,
                           [PING] = refuse_before_attach,
                           [PONG] = refuse_before_attach,
                           [PACKET] = refuse_before_attach},
    [CLV_LANE_WAITING] = {[ATTACH] = refuse_while_waiting,
                          [ATTACHED] = refuse_while_waiting,
                          [CHUNK] = refuse_while_waiting,
                          [CREDIT] = refuse_while_waiting,
                          [ACK] = refuse_while_waiting,
                          [PING] = refuse_while_waiting,
                          [PONG] = refuse_while_waiting,
                          [PACKET] = refuse_while_waiting},
    [CLV_LANE_DIALLED] = {[ATTACH] = refuse_before_attached,
                          [ATTACHED] = on_attached,
                          [CHUNK] = refuse_before_attached,
                          [CREDIT] = refuse_before_attached,
                          [ACK] = refuse_before_attached,
                          [PING] = refuse_before_attached,
                          [PONG] = refuse_before_attached,
                          [PACKET] = refuse_before_attached},
    [CLV_LANE_CONTROL] = {[ATTACH] = refuse_repeated_attach,
                          [ATTACHED] = refuse_repeated_attach,
                          [CHUNK] = on_chunk,
                          [CREDIT] = on_credit,
                          [ACK] = on_ack,
                          [PING] = on_ping,
                          [PONG] = on_pong,
                          [PACKET] = on_packet},
    [CLV_LANE_BULK] = {[ATTACH] = refuse_on_bulk_lane,
                       [ATTACHED] = refuse_on_bulk_lane,
                       [CHUNK] = on_chunk,
                       [CREDIT] = refuse_on_bulk_lane,
                       [ACK] = refuse_on_bulk_lane,
                       [PING] = on_ping,
                       [PONG] = refuse_on_bulk_lane,
                       [PACKET] = refuse_on_bulk_lane},
};

static clv_code run_lane_action(clv_lane_state state, const lane_frame *m, clv_err *err) {
  return actions[state][frame_class_of(m->f->kind)](m, err);
}

clv_code clv_link_on_frame(clv_link *l, uint32_t index, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload, clv_err *err) {
  lane_frame m = {.link = l, .lane_index = index, .f = f, .pieces = pieces, .payload = payload};
  return run_lane_action(index ? CLV_LANE_BULK : CLV_LANE_CONTROL, &m, err);
}

/* ---- making lanes and handling the messages of lanes ----------------------------------------- */

clv_code clv_lane_new(const clv_lane_acceptor *acceptor, const char *peer_uri,
                      const clv_transport *transport, void *stream, clv_lane **ret, clv_err *err) {
  clv_lane *ln;
  CLV_TRY(clv_alloc(1, sizeof *ln, &ln, err));
  ln->acceptor = acceptor;
  ln->stream = clv_stream_ref((clv_stream){transport, stream});
  snprintf(ln->peer_uri, sizeof ln->peer_uri, "%s", peer_uri);
  *ret = ln;
  return CLV_OK;
}

clv_code clv_lane_new_dialled(clv_link *l, uint32_t index, uint64_t connection, clv_lane **ret,
                              clv_err *err) {
  clv_lane *ln;
  CLV_TRY(clv_alloc(1, sizeof *ln, &ln, err));
  ln->state = CLV_LANE_DIALLED;
  ln->lane_index = index;
  ln->connection_number = connection;
  ln->link = clv_link_ref(l);
  *ret = ln;
  return CLV_OK;
}

static uint64_t bytes_of_pieces(const clv_iov *iov, size_t n) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < n; i++) bytes += iov[i].len;
  return bytes;
}

static void count_received_message(clv_link *l, uint64_t bytes) {
  __atomic_fetch_add(&l->counts.bytes_in, bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&l->counts.messages_in, 1, __ATOMIC_RELAXED);
}

static clv_code handle_frame(clv_lane *ln, const clv_frame *f, const clv_piece *pieces,
                             const clv_payload *payload, clv_err *err) {
  lane_frame m = {ln->link, ln, ln->lane_index, f, pieces, payload};
  return run_lane_action(__atomic_load_n(&ln->state, __ATOMIC_RELAXED), &m, err);
}

/* Handles the frames of a bundle before the last one, in order. */
static clv_code handle_preceding_frames(clv_lane *ln, const clv_bundle *before,
                                        const clv_piece *pieces, size_t n,
                                        const clv_wire_limits *limits, clv_err *err) {
  for (uint32_t i = 0; i < before->n_frames; i++) {
    clv_frame f;
    clv_payload payload;
    CLV_TRY(clv_frame_decode_preceding(pieces, n, &before->frame_positions[i], limits, &f, &payload,
                                       err));
    CLV_TRY(handle_frame(ln, &f, pieces, &payload, err));
  }
  return CLV_OK;
}

static clv_code handle_message(clv_lane *ln, const clv_iov *iov, size_t n, clv_err *err) {
  /* clv_iov and clv_piece have the same layout */
  const clv_piece *pieces = (const clv_piece *)iov;
  clv_frame f;
  clv_payload payload;
  clv_bundle before;
  const bool is_attached = __atomic_load_n(&ln->state, __ATOMIC_RELAXED) >= CLV_LANE_CONTROL;
  clv_wire_limits limits = ln->link ? ln->link->accept_limits : clv_wire_limits_default();
  CLV_TRY(clv_frame_decode_last(pieces, n, &limits, &before, &f, &payload, err));
  if (ln->link) count_received_message(ln->link, bytes_of_pieces(iov, n));
  CLV_TRY(handle_preceding_frames(ln, &before, pieces, n, &limits, err));
  if (f.kind) CLV_TRY(handle_frame(ln, &f, pieces, &payload, err));
  if (is_attached) CLV_TRY(clv_link_record_received(ln->link, ln->lane_index, err));
  if (is_attached && ln->lane_index) clv_frame_writer_flush(ln->link->writer);
  return CLV_OK;
}

/* Handles a message. After an error the link ends and its streams are cancelled: a link that had
 * ended before has only half-closed them, and the peer may keep sending. */
void clv_lane_on_message(clv_lane *ln, const clv_iov *iov, size_t n) {
  clv_err err;
  clv_code code = handle_message(ln, iov, n, &err);
  if (code == CLV_OK) return;
  if (!ln->link) {
    ln->stream.transport->cancel(ln->stream.handle, code, err.text);
    return;
  }
  __atomic_store_n(&ln->link->has_violation, code != CLV_EXHAUSTED, __ATOMIC_RELAXED);
  clv_link_end(ln->link, code, err.text);
  clv_frame_writer_cancel_all_streams(ln->link->writer, code, err.text);
}

void clv_lane_on_sent(clv_lane *ln) {
  if (!ln->link) return;
  if (__atomic_exchange_n(&ln->is_attach_accepted, true, __ATOMIC_RELAXED))
    clv_frame_writer_record_accepted(ln->link->writer, ln->lane_index);
}

/* ---- the end of a connection ----------------------------------------------------------------- */

/* True if a stream that ended with this code may be connected again. Other codes are a decision of
 * the peer, or of this side. A redial that was refused for want of room, or in the handshake, may
 * succeed later. */
static bool may_reconnect(const clv_lane *ln, clv_code code) {
  bool was_attached = __atomic_load_n(&ln->state, __ATOMIC_RELAXED) >= CLV_LANE_CONTROL;
  return code == CLV_UNAVAILABLE || code == CLV_CANCELLED || code == CLV_UNKNOWN ||
         code == CLV_INTERNAL || code == CLV_DEADLINE ||
         (!was_attached && (code == CLV_EXHAUSTED || code == CLV_UNAUTHENTICATED));
}

/* Returns true if the link goes on without this connection. Answers the ATTACH of a connection that
 * waited for its end. */
static bool lose_connection(clv_link *l, const clv_lane *ln, clv_code code, const char *text) {
  clv_err err;
  char unused[CLV_ERR_TEXT];
  clv_link_event_args n = {.lane_index = ln->lane_index, .end_code = code, .end_text = text};
  if (!may_reconnect(ln, code) || clv_frame_writer_is_broken(l->writer, unused)) return false;
  clv_frame_writer_detach_stream(l->writer, ln->lane_index, ln->connection_number);
  if (clv_link_on_event(l, CLV_LINK_LANE_LOST, &n, &err) != CLV_OK) return false;
  if (!n.joining_stream.transport) return true;
  joined_lane j = {l, n.joining_stream, n.lane_index, n.connection_number, n.n_peer_received};
  if (answer_attach(&j, &err) != CLV_OK) clv_link_end(l, err.code, err.text);
  clv_stream_unref(&j.stream);
  return true;
}

/* Records that the connection has left the link. Returns true if the connection had joined its
 * lane; otherwise it no longer waits to join. */
static bool remove_from_link(clv_link *l, const clv_lane *ln) {
  pthread_mutex_lock(&l->lock);
  clv_lane_slot *s = &l->lanes[ln->lane_index];
  if (s->waiting_lane == ln) s->waiting_lane = NULL;
  bool has_joined = ln->has_joined;
  pthread_mutex_unlock(&l->lock);
  return has_joined;
}

void clv_lane_on_ended(clv_lane *ln, clv_code code, const char *text) {
  clv_link *l = ln->link;
  if (l && remove_from_link(l, ln) && !lose_connection(l, ln, code, text)) {
    clv_link_end(l, code == CLV_OK ? CLV_UNAVAILABLE : code,
                 code == CLV_OK ? "the peer ended the stream" : text);
    clv_link_record_lane_end(l, ln->lane_index, ln->connection_number);
  }
  clv_link_unref(l);
  clv_stream_unref(&ln->stream);
  free(ln);
}
