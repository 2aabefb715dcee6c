/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes: receive the messages of a stream, decode their frames and run the action for each frame in
 * the state of the lane. The transport calls clv_lane_on_message, clv_lane_on_sent and
 * clv_lane_on_ended. Complete packets are delivered to the link's owner from here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/link/link_int.h"

/* ---- frames ---------------------------------------------------------------------------------- */

/* A received frame and the lane that received it. */
typedef struct lane_frame {
  clv_link *link; /* NULL: the lane has no link yet */
  clv_lane *lane; /* lane of an ATTACH or ATTACHED; NULL: the caller is clv_link_on_frame */
  uint32_t index;
  const clv_frame *f;
  const clv_piece *pieces;
  const clv_payload *payload;
} lane_frame;

/* Classes of frames that lanes treat alike. */
typedef enum frame_class {
  ATTACH,
  ATTACHED,
  CHUNK,
  CREDIT,
  PING,
  PONG,
  PACKET,
  CLASSES
} frame_class;

static frame_class frame_class_of(clv_frame_kind kind) {
  static const frame_class classes[CLV_FRAME_KINDS] = {
      [CLV_ATTACH] = 1 + ATTACH, [CLV_ATTACHED] = 1 + ATTACHED, [CLV_CHUNK] = 1 + CHUNK,
      [CLV_CREDIT] = 1 + CREDIT, [CLV_PING] = 1 + PING,         [CLV_PONG] = 1 + PONG};
  return classes[kind] ? classes[kind] - 1 : PACKET;
}

typedef clv_code lane_action(const lane_frame *m, clv_err *err);

static void deliver_packet(clv_link *l, clv_packet *p) {
  if (p) l->events.on_packet(l->events.user, l, p);
}

static clv_code on_packet(const lane_frame *m, clv_err *err) {
  clv_packet *p, *head, *complete;
  clv_reassembly *a = &m->link->reassembly;
  CLV_TRY(clv_reassembly_new_packet(a, m->f, &p, &head, err));
  deliver_packet(m->link, head);
  CLV_TRY(clv_reassembly_add_packet(a, p, m->pieces, m->payload, &complete, err));
  deliver_packet(m->link, complete);
  return CLV_OK;
}

static clv_code on_chunk(const lane_frame *m, clv_err *err) {
  clv_packet *complete;
  CLV_TRY(
      clv_reassembly_add_chunk(&m->link->reassembly, m->f, m->pieces, m->payload, &complete, err));
  deliver_packet(m->link, complete);
  return CLV_OK;
}

static clv_code on_credit(const lane_frame *m, clv_err *err) {
  (void)err;
  clv_send_queue_add_credit(m->link->send_queue, m->f->credit.bytes);
  return CLV_OK;
}

/* Answers a PING. Ignores CLV_UNAVAILABLE, because a closing or broken link reports its own end. */
static clv_code on_ping(const lane_frame *m, clv_err *err) {
  clv_frame pong = clv_link_make_pong(m->link, m->f);
  clv_code code = clv_frame_writer_send_plain(m->link->writer, &pong, err);
  return code == CLV_UNAVAILABLE ? CLV_OK : code;
}

static clv_code on_pong(const lane_frame *m, clv_err *err) {
  if (m->f->reply_to & PROBE_BIT)
    return clv_send_queue_handle_pong(m->link->send_queue, m->f->reply_to, err);
  return clv_link_note_pong(m->link, m->f, err);
}

/* ---- the first frame ------------------------------------------------------------------------- */

static clv_code mark_attached(clv_link *l, clv_lane *ln, clv_err *err) {
  clv_link_event_args n = {.index = ln->index};
  ln->state = ln->index ? CLV_LANE_BULK : CLV_LANE_CONTROL;
  return clv_link_on_event(l, CLV_LINK_LANE_ATTACHED, &n, err);
}

static clv_code on_attached(const lane_frame *m, clv_err *err) {
  if (m->lane->index == 0)
    clv_send_queue_set_credit(m->link->send_queue, m->f->attached.credit_bytes);
  return mark_attached(m->link, m->lane, err);
}

static clv_code join_lane(clv_link *l, clv_lane *ln, const clv_frame *f, clv_err *err) {
  clv_link_event_args n = {.index = f->attach.lane, .n_lanes = 1 + f->attach.lanes};
  CLV_TRY(clv_link_on_event(l, CLV_LINK_LANE_JOINS, &n, err));
  ln->index = n.index;
  ln->link = clv_link_ref(l);
  clv_frame_writer_attach(l->writer, ln->index, ln->stream);
  clv_send_queue_set_lanes(l->send_queue, n.n_lanes);
  CLV_TRY(mark_attached(l, ln, err));
  clv_frame reply = {.kind = CLV_ATTACHED};
  reply.attached.credit_bytes = l->accept_limits.credit_bytes;
  clv_rpc_piece pieces[1];
  return clv_frame_writer_send(l->writer, ln->index, &reply, pieces, 0, 0, err);
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

static clv_code refuse_before_attached(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION, "expected ATTACHED, got %s",
                  clv_frame_kind_name(m->f->kind));
}

static clv_code refuse_repeated(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION, "%s was sent twice on one lane",
                  clv_frame_kind_name(m->f->kind));
}

static clv_code refuse_on_bulk(const lane_frame *m, clv_err *err) {
  return clv_fail(err, CLV_PRECONDITION,
                  "%s was sent on bulk lane %u, which carries only CHUNK and PING",
                  clv_frame_kind_name(m->f->kind), m->index);
}

/* Actions for each state, from PROTOCOL.md 5, "Where frames are legal". */
static lane_action *const actions[CLV_LANE_STATES][CLASSES] = {
    [CLV_LANE_ACCEPTED] = {[ATTACH] = on_attach,
                           [ATTACHED] = refuse_before_attach,
                           [CHUNK] = refuse_before_attach,
                           [CREDIT] = refuse_before_attach,
                           [PING] = refuse_before_attach,
                           [PONG] = refuse_before_attach,
                           [PACKET] = refuse_before_attach},
    [CLV_LANE_DIALLED] = {[ATTACH] = refuse_before_attached,
                          [ATTACHED] = on_attached,
                          [CHUNK] = refuse_before_attached,
                          [CREDIT] = refuse_before_attached,
                          [PING] = refuse_before_attached,
                          [PONG] = refuse_before_attached,
                          [PACKET] = refuse_before_attached},
    [CLV_LANE_CONTROL] = {[ATTACH] = refuse_repeated,
                          [ATTACHED] = refuse_repeated,
                          [CHUNK] = on_chunk,
                          [CREDIT] = on_credit,
                          [PING] = on_ping,
                          [PONG] = on_pong,
                          [PACKET] = on_packet},
    [CLV_LANE_BULK] = {[ATTACH] = refuse_on_bulk,
                       [ATTACHED] = refuse_on_bulk,
                       [CHUNK] = on_chunk,
                       [CREDIT] = refuse_on_bulk,
                       [PING] = on_ping,
                       [PONG] = refuse_on_bulk,
                       [PACKET] = refuse_on_bulk},
};

static clv_code run_action(clv_lane_state state, const lane_frame *m, clv_err *err) {
  return actions[state][frame_class_of(m->f->kind)](m, err);
}

clv_code clv_link_on_frame(clv_link *l, uint32_t index, const clv_frame *f, const clv_piece *pieces,
                           const clv_payload *payload, clv_err *err) {
  lane_frame m = {.link = l, .index = index, .f = f, .pieces = pieces, .payload = payload};
  return run_action(index ? CLV_LANE_BULK : CLV_LANE_CONTROL, &m, err);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

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

clv_code clv_lane_new_dialled(clv_link *l, uint32_t index, clv_lane **ret, clv_err *err) {
  clv_lane *ln;
  CLV_TRY(clv_alloc(1, sizeof *ln, &ln, err));
  ln->state = CLV_LANE_DIALLED;
  ln->index = index;
  ln->link = clv_link_ref(l);
  *ret = ln;
  return CLV_OK;
}

static uint64_t total_bytes(const clv_iov *iov, size_t n) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < n; i++) bytes += iov[i].len;
  return bytes;
}

static void count_message(clv_link *l, uint64_t bytes) {
  __atomic_fetch_add(&l->counts.bytes_in, bytes, __ATOMIC_RELAXED);
  __atomic_fetch_add(&l->counts.messages_in, 1, __ATOMIC_RELAXED);
}

static clv_code handle_frame(clv_lane *ln, const clv_frame *f, const clv_piece *pieces,
                             const clv_payload *payload, clv_err *err) {
  lane_frame m = {ln->link, ln, ln->index, f, pieces, payload};
  return run_action(ln->state, &m, err);
}

/* Handles the frames of a bundle before the last one, in order. */
static clv_code handle_bundled(clv_lane *ln, const clv_bundle *before, const clv_piece *pieces,
                               size_t n, const clv_wire_limits *limits, clv_err *err) {
  for (uint32_t i = 0; i < before->n; i++) {
    clv_frame f;
    clv_payload payload;
    CLV_TRY(clv_frame_decode_bundled(pieces, n, &before->frames[i], limits, &f, &payload, err));
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
  clv_wire_limits limits = ln->link ? ln->link->accept_limits : clv_wire_limits_default();
  CLV_TRY(clv_frame_decode_bundle(pieces, n, &limits, &before, &f, &payload, err));
  if (ln->link) count_message(ln->link, total_bytes(iov, n));
  CLV_TRY(handle_bundled(ln, &before, pieces, n, &limits, err));
  return f.kind ? handle_frame(ln, &f, pieces, &payload, err) : CLV_OK;
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
  clv_frame_writer_cancel(ln->link->writer, code, err.text);
}

void clv_lane_on_sent(clv_lane *ln) {
  if (ln->link && ln->index == 0) clv_frame_writer_count_accepted(ln->link->writer);
}

void clv_lane_on_ended(clv_lane *ln, clv_code code, const char *text) {
  clv_link *l = ln->link;
  if (l) {
    clv_link_end(l, code == CLV_OK ? CLV_UNAVAILABLE : code,
                 code == CLV_OK ? "the peer ended the stream" : text);
    clv_link_lane_ended(l, ln->index);
    clv_link_unref(l);
  }
  clv_stream_unref(&ln->stream);
  free(ln);
}
