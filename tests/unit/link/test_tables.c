/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests every cell of the state tables of a link, of a lane and of a partial tensor: sends each
 * event in each state, and expects the action or the refusal that proto/PROTOCOL.md 4 and 5 state.
 */
#include "common/net/link/link_int.h"
#include "tests/unit/engine/engine_test.h"

/* ---- a transport that counts the calls of the link ------------------------------------------- */

typedef struct fake_stream {
  int n_references, n_sent, n_closes, n_cancels;
  clv_code cancel_code; /* code of the first cancel */
} fake_stream;

static clv_code fake_send(void *stream, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  (void)err;
  ((fake_stream *)stream)->n_sent++;
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  return CLV_OK;
}
static void fake_close(void *stream) { ((fake_stream *)stream)->n_closes++; }
static void fake_cancel(void *stream, clv_code code, const char *text) {
  fake_stream *f = stream;
  (void)text;
  if (!f->n_cancels++) f->cancel_code = code;
}
static bool fake_defer(void *stream, clv_rpc_job *job) {
  (void)stream, (void)job;
  return false;
}
static void fake_ref(void *stream) { ((fake_stream *)stream)->n_references++; }
static void fake_unref(void *stream) { ((fake_stream *)stream)->n_references--; }
static const clv_transport transport = {.send = fake_send,
                                        .close = fake_close,
                                        .cancel = fake_cancel,
                                        .defer = fake_defer,
                                        .ref = fake_ref,
                                        .unref = fake_unref};

/* ---- a link with two lanes ------------------------------------------------------------------- */

enum { LANES = 2, TENSOR_BYTES = 8, HALF_BYTES = 4, LEASE_MS = 10000 };

static struct {
  clv_pool *pool;
  clv_link *link;
  fake_stream streams[LANES];
  int n_packets, n_ends;
} w;

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  (void)user, (void)link;
  w.n_packets++;
  clv_packet_free(p);
}
static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  (void)user, (void)link, (void)code, (void)text;
  w.n_ends++;
}

static clv_link_options make_options(void) {
  return (clv_link_options){.peer_name = "peer",
                            .pool = w.pool,
                            .accept_limits = clv_wire_limits_default(),
                            .initial_send_credit = 1 << 20,
                            .lease_ms = LEASE_MS,
                            .events = {.on_packet = on_packet, .on_closed = on_closed}};
}

static void begin_pool(void) {
  clv_err err = {0};
  memset(&w, 0, sizeof w);
  assert_ok(clv_pool_new(1 << 20, 64, &w.pool, &err));
}

static void begin_link(void) {
  clv_err err = {0};
  begin_pool();
  clv_link_options o = make_options();
  assert_ok(clv_link_new(&o, &w.link, &err));
}

static void free_link_and_pool(void) {
  clv_link_unref(w.link);
  clv_pool_unref(w.pool);
}

/* ---- states of a link ------------------------------------------------------------------------ */

static clv_code send_event(clv_link_state_event event, uint32_t index) {
  clv_err err;
  clv_link_event_args n = {
      .lane_index = index, .n_lanes = LANES, .end_code = CLV_OK, .end_text = "over"};
  return clv_link_on_event(w.link, event, &n, &err);
}

/* Brings a new link into a state, by the events that lead there. */
static void bring_link_to_state(clv_link_state state) {
  begin_link();
  if (state == CLV_LINK_NEW) return;
  for (uint32_t i = 0; i < LANES; i++) assert_int_equal(send_event(CLV_LINK_LANE_JOINS, i), CLV_OK);
  assert_int_equal(send_event(CLV_LINK_LANE_ATTACHED, 1), CLV_OK);
  if (state >= CLV_LINK_OPEN) assert_int_equal(send_event(CLV_LINK_LANE_ATTACHED, 0), CLV_OK);
  if (state == CLV_LINK_MENDING) assert_int_equal(send_event(CLV_LINK_LANE_LOST, 0), CLV_OK);
  if (state >= CLV_LINK_ENDING) assert_int_equal(send_event(CLV_LINK_ENDS, 0), CLV_OK);
  for (uint32_t i = 0; i < LANES && state == CLV_LINK_ENDED; i++)
    assert_int_equal(send_event(CLV_LINK_LANE_ENDED, i), CLV_OK);
  assert_int_equal(w.link->state, state);
}

enum { REFUSED = -1 };

static void each_link_event_reaches_its_state_or_is_refused(void **state) {
  (void)state;
  static const int next_states[CLV_LINK_STATES][CLV_LINK_STATE_EVENTS] = {
      /* Columns are the events: JOIN of lane 0, ATTACHED, LOST, END, GONE of lane 0. */
      [CLV_LINK_NEW] = {CLV_LINK_ATTACHING, REFUSED, REFUSED, CLV_LINK_ENDED, REFUSED},
      [CLV_LINK_ATTACHING] = {REFUSED, CLV_LINK_OPEN, REFUSED, CLV_LINK_ENDING, REFUSED},
      [CLV_LINK_OPEN] = {REFUSED, REFUSED, CLV_LINK_MENDING, CLV_LINK_ENDING, REFUSED},
      /* JOIN is refused because connection 0 existed before, LOST because the lane has no
       * connection; ATTACHED of a connection that has left changes nothing */
      [CLV_LINK_MENDING] = {REFUSED, CLV_LINK_MENDING, REFUSED, CLV_LINK_ENDING, REFUSED},
      [CLV_LINK_ENDING] = {REFUSED, CLV_LINK_ENDING, REFUSED, CLV_LINK_ENDING, CLV_LINK_ENDING},
      [CLV_LINK_ENDED] = {REFUSED, REFUSED, REFUSED, CLV_LINK_ENDED, REFUSED},
  };
  for (int s = 0; s < CLV_LINK_STATES; s++)
    for (int f = 0; f < CLV_LINK_STATE_EVENTS; f++) {
      bring_link_to_state((clv_link_state)s);
      clv_code code = send_event((clv_link_state_event)f, 0);
      int wanted = next_states[s][f];
      assert_int_equal(code, wanted == REFUSED ? CLV_PRECONDITION : CLV_OK);
      assert_int_equal((int)w.link->state, wanted == REFUSED ? s : wanted);
      free_link_and_pool();
    }
}

static void repeated_or_out_of_range_lane_is_refused(void **state) {
  (void)state;
  clv_err err;
  begin_link();
  clv_link_event_args out = {.lane_index = LANES, .n_lanes = LANES},
                      other_join = {.lane_index = 1, .n_lanes = LANES + 1};
  assert_int_equal(clv_link_on_event(w.link, CLV_LINK_LANE_JOINS, &out, &err), CLV_PRECONDITION);
  assert_int_equal(send_event(CLV_LINK_LANE_JOINS, 0), CLV_OK);
  assert_int_equal(send_event(CLV_LINK_LANE_JOINS, 0), CLV_PRECONDITION);
  assert_int_equal(clv_link_on_event(w.link, CLV_LINK_LANE_JOINS, &other_join, &err),
                   CLV_PRECONDITION);
  free_link_and_pool();
}

/* A link may be ended several times, for different reasons. Its end is reported once, and frames
 * and PINGs that are sent later are refused with the first reason. */
static void link_end_is_reported_once_with_the_first_reason(void **state) {
  (void)state;
  clv_err err = {0};
  uint64_t round_trip_ns = 0;
  clv_packet *p;
  begin_link();
  clv_link_end(w.link, CLV_DATA_LOSS, "the first");
  clv_link_end(w.link, CLV_OK, "the second");
  assert_int_equal(w.n_ends, 1);
  assert_ok(clv_packet_new_end_context(w.pool, 1, 1, &p, &err));
  assert_int_equal(clv_link_send(w.link, p, &err), CLV_UNAVAILABLE);
  assert_non_null(strstr(err.text, "the first"));
  free_link_and_pool();
  /* a PING in the moment before the link's writer has ended, too */
  bring_link_to_state(CLV_LINK_OPEN);
  clv_link_event_args end = {.end_code = CLV_DATA_LOSS, .end_text = "the first"};
  assert_ok(clv_link_on_event(w.link, CLV_LINK_ENDS, &end, &err));
  assert_int_equal(clv_link_ping(w.link, 1, &round_trip_ns, &err), CLV_UNAVAILABLE);
  assert_non_null(strstr(err.text, "has ended: the first"));
  free_link_and_pool();
  bring_link_to_state(CLV_LINK_OPEN); /* the link ends while its lanes still exist */
  clv_link_end(w.link, CLV_DATA_LOSS, "the first");
  assert_int_equal(w.link->state, CLV_LINK_ENDING);
  clv_link_end(w.link, CLV_OK, "the second");
  assert_int_equal(w.n_ends, 1);
  assert_int_equal(w.link->close_code, CLV_DATA_LOSS);
  free_link_and_pool();
}

static void destructors_accept_null(void **state) {
  (void)state;
  clv_link_close(NULL);
  clv_link_unref(NULL);
  clv_packet_free(NULL);
}

/* A packet can be freed after its link. Its bytes are then returned to no receive window. */
static void packet_can_be_freed_after_its_link(void **state) {
  (void)state;
  clv_err err = {0};
  clv_packet *p, *head;
  clv_frame f = {.kind = CLV_END_CONTEXT, .context = 1};
  begin_link();
  assert_ok(clv_reassembly_new_packet(&w.link->reassembly, &f, &p, &head, &err));
  clv_link_end(w.link, CLV_OK, "closed");
  clv_link_unref(clv_steal(&w.link));
  assert_string_equal(clv_link_peer_name(p->received_by), "peer");
  clv_packet_free(p);
  free_link_and_pool();
}

/* ---- states of a lane ------------------------------------------------------------------------ */

static clv_code find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                          clv_err *err) {
  (void)user, (void)attach, (void)uri, (void)err;
  *ret = clv_link_ref(w.link);
  return CLV_OK;
}

static const clv_lane_acceptor acceptor = {.find_link = find_link};

static clv_lane *dialled[LANES];
static clv_code dial_lane(void *user, uint32_t index, clv_lane *lane, const bool *stop, void **ret,
                          clv_err *err) {
  (void)user, (void)stop, (void)err;
  dialled[index] = lane;
  fake_ref(&w.streams[index]);
  *ret = &w.streams[index];
  return CLV_OK;
}

static void receive_frame(clv_lane *lane, const clv_frame *f, const char *payload, size_t len) {
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes head = {0};
  assert_ok(clv_frame_encode(f, len, &head, &err));
  clv_iov parts[] = {{head.data, head.len}, {payload, len}};
  clv_lane_on_message(lane, parts, len ? 2 : 1);
}

static clv_frame make_attach(uint32_t index) {
  clv_frame f = {.kind = CLV_ATTACH};
  f.attach.session_id.bytes[0] = f.attach.incarnation.bytes[0] = 1;
  f.attach.attempt_number = 1;
  f.attach.role = CLV_ATTACH_MASTER;
  f.attach.lane_index = index;
  f.attach.n_lanes = LANES - 1;
  return f;
}

/* Makes a link with all its lanes. The lanes are dialled, accepted or attached, as `state` needs.
 * If they are attached, lane 0 is CONTROL and lane 1 is BULK. */
static void make_lanes(clv_lane_state state, clv_lane *ret[LANES]) {
  clv_err err = {0};
  begin_pool();
  clv_link_options o = make_options();
  clv_link_dial d = {
      .attach_role = CLV_ATTACH_MASTER, .n_bulk_lanes = LANES - 1, .attempt_number = 1};
  clv_dialler dialler = {.transport = &transport, .dial_stream = dial_lane};
  if (state == CLV_LANE_DIALLED) {
    assert_ok(clv_link_start(&o, &d, &dialler, &w.link, &err));
    for (uint32_t i = 0; i < LANES; i++) ret[i] = dialled[i];
    return;
  }
  assert_ok(clv_link_new(&o, &w.link, &err));
  for (uint32_t i = 0; i < LANES; i++) {
    clv_frame attach = make_attach(i);
    assert_ok(clv_lane_new(&acceptor, "spiffe://x", &transport, &w.streams[i], &ret[i], &err));
    if (state != CLV_LANE_ACCEPTED) receive_frame(ret[i], &attach, NULL, 0);
  }
}

static clv_frame make_frame(clv_frame_kind kind, uint32_t lane) {
  clv_frame f = {.kind = kind};
  if (kind == CLV_ATTACH) f = make_attach(lane);
  if (kind == CLV_ATTACHED) f.attached.credit_bytes = 1 << 20;
  if (kind == CLV_CREDIT) f.credit.bytes = 1;
  if (kind == CLV_PING || kind == CLV_PONG) f.message_id = f.reply_to = 7;
  if (kind == CLV_ACK) f.ack.n_lanes = LANES;
  if (kind == CLV_END_CONTEXT) f.context = f.message_id = 1;
  f.chunk.transfer_id = kind == CLV_CHUNK ? 5 : 0;
  f.chunk.total_bytes = kind == CLV_CHUNK ? TENSOR_BYTES : 0;
  return f;
}

/* Makes a link with a lane in this state, gives the lane a frame of this kind, and frees both.
 * Returns true if the lane accepts the frame. */
static bool is_frame_accepted(clv_lane_state state, clv_frame_kind kind) {
  clv_lane *lanes[LANES];
  uint32_t index = state == CLV_LANE_BULK;
  clv_frame f = make_frame(kind, index);
  make_lanes(state, lanes);
  w.link->n_pings = 7;
  receive_frame(lanes[index], &f, "bits", kind == CLV_CHUNK ? HALF_BYTES : 0);
  const fake_stream *s = &w.streams[index];
  bool is_refused = s->n_cancels > 0;
  assert_int_equal(s->cancel_code, is_refused ? CLV_PRECONDITION : CLV_OK);
  assert_int_equal(w.n_packets, kind == CLV_END_CONTEXT && !is_refused);
  for (uint32_t i = 0; i < LANES; i++) clv_lane_on_ended(lanes[i], CLV_CANCELLED, "over");
  free_link_and_pool();
  for (uint32_t i = 0; i < LANES; i++) assert_int_equal(w.streams[i].n_references, 0);
  return !is_refused;
}

static void each_lane_accepts_only_its_frame_kinds(void **state) {
  (void)state;
  static const clv_frame_kind kinds[] = {CLV_ATTACH, CLV_ATTACHED, CLV_CHUNK,       CLV_CREDIT,
                                         CLV_PING,   CLV_PONG,     CLV_END_CONTEXT, CLV_ACK};
  static const bool is_legal[CLV_LANE_STATES][CLV_COUNT(kinds)] = {
      [CLV_LANE_ACCEPTED] = {true, false, false, false, false, false, false, false},
      [CLV_LANE_DIALLED] = {false, true, false, false, false, false, false, false},
      [CLV_LANE_CONTROL] = {false, false, true, true, true, true, true, true},
      [CLV_LANE_BULK] = {false, false, true, false, true, false, false, false},
  };
  for (int s = 0; s < CLV_LANE_STATES; s++)
    for (size_t k = 0; k < CLV_COUNT(kinds) && s != CLV_LANE_WAITING; k++)
      if (is_frame_accepted((clv_lane_state)s, kinds[k]) != is_legal[s][k])
        fail_msg("%s in state %d of a lane", clv_frame_kind_name(kinds[k]), s);
}

/* A PING may arrive after the link has ended. The PING is no protocol violation, so the link does
 * not cancel the stream. */
static void ping_during_close_is_no_violation(void **state) {
  (void)state;
  clv_lane *lanes[LANES];
  clv_frame f = make_frame(CLV_PING, 0);
  make_lanes(CLV_LANE_CONTROL, lanes);
  clv_link_end(w.link, CLV_OK, "closed");
  receive_frame(lanes[0], &f, NULL, 0);
  assert_false(clv_link_has_violation(w.link));
  assert_int_equal(w.streams[0].n_cancels, 0);
  for (uint32_t i = 0; i < LANES; i++) clv_lane_on_ended(lanes[i], CLV_CANCELLED, "over");
  free_link_and_pool();
}

static clv_code receive_pong(uint64_t reply_to) {
  clv_err err;
  const clv_frame f = {.kind = CLV_PONG, .reply_to = reply_to};
  return clv_link_on_frame(w.link, 0, &f, NULL, &(clv_payload){0}, &err);
}

/* A PONG that answers no PING is refused. It would acknowledge bytes that the peer has not
 * received, or stop the measurement of the round trip. */
static void unsolicited_pong_is_refused(void **state) {
  (void)state;
  clv_link_counts c;
  begin_link();
  assert_int_equal(receive_pong(0), CLV_INVALID);
  assert_int_equal(receive_pong(5), CLV_INVALID);
  clv_link_get_counts(w.link, &c);
  assert_int_equal(c.round_trip_ns, 0);
  w.link->n_pings = 2;
  w.link->ping_sent_ns = clv_now_ns();
  assert_int_equal(receive_pong(1), CLV_OK);
  assert_int_equal(receive_pong(1), CLV_INVALID);
  assert_int_equal(receive_pong(2), CLV_OK);
  assert_int_equal(receive_pong(2), CLV_INVALID);
  assert_int_equal(w.link->n_pongs, 2);
  free_link_and_pool();
}

/* Clock of the link. Each reading of the time simulates another thread that sends a PING right
 * after it, unless the reader holds the lock of the link, for which that thread would wait. */
static uint64_t measure_round_trip(void *user) {
  uint64_t *now = user;
  *now += 100;
  if (w.link && pthread_mutex_trylock(&w.link->lock) == 0) {
    w.link->n_pings++;
    w.link->ping_sent_ns = *now + 1;
    pthread_mutex_unlock(&w.link->lock);
  }
  return *now;
}

static void ping_during_count_does_not_inflate_round_trip(void **state) {
  (void)state;
  clv_err err = {0};
  clv_link_counts c;
  uint64_t now = 1000;
  begin_pool();
  clv_link_options o = make_options();
  o.clock = (clv_clock){measure_round_trip, &now};
  assert_ok(clv_link_new(&o, &w.link, &err));
  clv_link_get_counts(w.link, &c);
  assert_in_range(c.round_trip_ns, 0, 100);
  free_link_and_pool();
}

/* ---- states of a tensor that is received in chunks ------------------------------------------- */

/* Receives the announcement of a CALL with two tensors: transfer 5, and one that never arrives. */
static clv_code receive_announcement(void) {
  static uint64_t last_other_id = 100;
  clv_err err = {0};
  clv_packet *p, *announced, *complete_packet;
  clv_frame f = {.kind = CLV_CALL, .context = 1, .message_id = 1, .n_tensors = 2};
  for (uint32_t i = 0; i < 2; i++)
    f.tensors[i] = (clv_tensor_head){.dtype = CLV_U8,
                                     .shape = CLV_SHAPE(TENSOR_BYTES),
                                     .bytes = TENSOR_BYTES,
                                     .transfer_id = i ? last_other_id++ : 5};
  assert_ok(clv_reassembly_new_packet(&w.link->reassembly, &f, &p, &announced, &err));
  clv_packet_free(announced);
  clv_code code = clv_reassembly_add_packet(&w.link->reassembly, p, NULL, &(clv_payload){0},
                                            &complete_packet, &err);
  assert_null(complete_packet);
  return code;
}

static clv_code receive_chunk(uint64_t offset) {
  static const char bits[HALF_BYTES] = "bits";
  clv_err err;
  clv_packet *complete_packet = NULL;
  clv_piece piece = {bits, HALF_BYTES};
  clv_payload payload = {.len = HALF_BYTES};
  clv_frame f = {.kind = CLV_CHUNK,
                 .chunk = {.transfer_id = 5, .offset = offset, .total_bytes = TENSOR_BYTES}};
  clv_code code =
      clv_reassembly_add_chunk(&w.link->reassembly, &f, &piece, &payload, &complete_packet, &err);
  assert_null(complete_packet);
  return code;
}

static void bring_partial_to_state(clv_partial_tensor_state state) {
  begin_link();
  if (state >= CLV_PARTIAL_HEADED) assert_int_equal(receive_announcement(), CLV_OK);
  bool has_first_half = state == CLV_PARTIAL_HEADLESS || state == CLV_PARTIAL_BYTES;
  if (has_first_half || state == CLV_PARTIAL_COMPLETE) assert_int_equal(receive_chunk(0), CLV_OK);
  if (state == CLV_PARTIAL_BYTES || state == CLV_PARTIAL_COMPLETE)
    assert_int_equal(receive_chunk(HALF_BYTES), CLV_OK);
  assert_int_equal(clv_reassembly_state(&w.link->reassembly, 5), state);
}

static void each_partial_tensor_event_reaches_its_state(void **state) {
  (void)state;
  static const int next_states[CLV_PARTIAL_STATES][CLV_PARTIAL_EVENTS] = {
      /* columns are the events: the HEAD, and the CHUNK with the second half of the tensor */
      [CLV_PARTIAL_NONE] = {CLV_PARTIAL_HEADED, CLV_PARTIAL_HEADLESS},
      [CLV_PARTIAL_HEADLESS] = {CLV_PARTIAL_HEADED, CLV_PARTIAL_BYTES},
      [CLV_PARTIAL_BYTES] = {CLV_PARTIAL_COMPLETE, REFUSED},
      [CLV_PARTIAL_HEADED] = {REFUSED, CLV_PARTIAL_HEADED},
      [CLV_PARTIAL_COMPLETE] = {REFUSED, REFUSED},
  };
  for (int s = 0; s < CLV_PARTIAL_STATES; s++)
    for (int f = 0; f < CLV_PARTIAL_EVENTS; f++) {
      bring_partial_to_state((clv_partial_tensor_state)s);
      clv_code code = f == CLV_PARTIAL_HEAD ? receive_announcement() : receive_chunk(HALF_BYTES);
      int wanted = next_states[s][f];
      assert_int_equal(code, wanted == REFUSED ? CLV_INVALID : CLV_OK);
      if (wanted != REFUSED)
        assert_int_equal((int)clv_reassembly_state(&w.link->reassembly, 5), wanted);
      free_link_and_pool();
    }
}

/* A chunk that repeats or overlaps an earlier one is refused. Otherwise a tensor would count as
 * complete without some of its bytes. */
static void duplicate_or_overlapping_chunk_is_refused(void **state) {
  (void)state;
  for (uint64_t first_offset = 0; first_offset <= HALF_BYTES; first_offset += HALF_BYTES)
    for (uint64_t second_offset = 1; second_offset < TENSOR_BYTES - HALF_BYTES; second_offset++) {
      begin_link();
      assert_int_equal(receive_chunk(first_offset), CLV_OK);
      assert_int_equal(receive_chunk(first_offset), CLV_INVALID);
      assert_int_equal(receive_chunk(second_offset), CLV_INVALID);
      assert_int_equal(clv_reassembly_state(&w.link->reassembly, 5), CLV_PARTIAL_HEADLESS);
      free_link_and_pool();
    }
}

/* If the pool has no space for the tensor of a REF_VALUE, the packet is delivered without the
 * tensor, with the reason. */
static void ref_value_over_the_quota_becomes_a_failure(void **state) {
  (void)state;
  clv_err err = {0};
  clv_packet *p, *empty_packet, *complete_packet;
  clv_frame f = {.kind = CLV_REF_VALUE, .n_tensors = 1};
  f.tensors[0] = (clv_tensor_head){
      .dtype = CLV_U8, .shape = CLV_SHAPE(2 << 20), .bytes = 2 << 20, .transfer_id = 5};
  clv_frame c = {.kind = CLV_CHUNK, .chunk = {.transfer_id = 5, .total_bytes = 2 << 20}};
  static const char bits[2 << 20];
  clv_piece piece = {bits, sizeof bits};
  begin_link();
  w.link->reassembly.quota_fails_packet = true;
  assert_ok(clv_reassembly_new_packet(&w.link->reassembly, &f, &p, &empty_packet, &err));
  assert_ok(clv_reassembly_add_packet(&w.link->reassembly, p, NULL, &(clv_payload){0},
                                      &complete_packet, &err));
  assert_null(complete_packet);
  assert_ok(clv_reassembly_add_chunk(&w.link->reassembly, &c, &piece,
                                     &(clv_payload){.len = sizeof bits}, &complete_packet, &err));
  assert_non_null(complete_packet);
  assert_true(complete_packet->is_over_quota && complete_packet->frame.has_failure);
  assert_int_equal(complete_packet->frame.failure.code, CLV_EXHAUSTED);
  clv_packet_free(complete_packet);
  free_link_and_pool();
}

/* ---- credit and message numbers -------------------------------------------------------------- */

static void bytes_over_the_credit_are_refused(void **state) {
  (void)state;
  clv_err err = {0};
  begin_link();
  uint64_t limit_bytes = w.link->recv_window->limit_bytes;
  assert_ok(clv_recv_window_consume(w.link->recv_window, limit_bytes, &err));
  assert_int_equal(clv_recv_window_consume(w.link->recv_window, 1, &err), CLV_EXHAUSTED);
  free_link_and_pool();
}

static void packets_over_the_queue_limit_are_refused(void **state) {
  (void)state;
  clv_err err = {0};
  begin_link();
  for (int i = 0; i < MAX_PACKETS; i++)
    assert_ok(clv_recv_window_add_packet(w.link->recv_window, false, &err));
  assert_int_equal(clv_recv_window_add_packet(w.link->recv_window, false, &err), CLV_EXHAUSTED);
  free_link_and_pool();
}

/* ---- frames that wait for credit ------------------------------------------------------------- */

static clv_packet *make_value_packet(uint64_t id, int64_t bytes) {
  clv_err err = {0};
  clv_packet *p;
  clv_tensor *t;
  assert_ok(clv_tensor_new(CLV_U8, &CLV_SHAPE(bytes), &t, &err));
  memset(t->data, 1, (size_t)bytes);
  assert_ok(clv_packet_new_value(w.pool, 1, id, "", t, &p, &err));
  clv_tensor_unref(t);
  return p;
}

static void send_large_value(uint64_t id, int64_t bytes) {
  clv_err err = {0};
  assert_ok(clv_link_send(w.link, make_value_packet(id, bytes), &err));
}

static void send_empty(clv_frame_kind kind) {
  clv_err err = {0};
  clv_packet *p;
  assert_ok(clv_packet_new(w.pool, kind, &p, &err));
  p->frame.context = 1;
  if (kind == CLV_ABORT) clv_frame_set_failure(&p->frame, CLV_ABORTED, "over", "");
  assert_ok(clv_link_send(w.link, p, &err));
}

/* If a frame waits for credit, the frames that are queued after it wait, too, except for ABORT. */
static void only_abort_passes_frames_waiting_for_credit(void **state) {
  (void)state;
  const fake_stream *s = &w.streams[0];
  clv_lane *lanes[LANES];
  make_lanes(CLV_LANE_CONTROL, lanes);
  clv_send_queue_set_credit(w.link->send_queue, 100000);
  send_large_value(1, 60000);
  int before = s->n_sent;
  send_large_value(2, 60000);
  send_empty(CLV_DROP);
  assert_int_equal(s->n_sent, before);
  send_empty(CLV_ABORT);
  assert_int_equal(s->n_sent, before + 1);
  assert_int_equal(w.link->send_queue->first->frame.kind, CLV_VALUE);
  clv_send_queue_add_credit(w.link->send_queue, 60000);
  assert_int_equal(s->n_sent, before + 3);
  for (uint32_t i = 0; i < LANES; i++) clv_lane_on_ended(lanes[i], CLV_CANCELLED, "over");
  free_link_and_pool();
}

/* A message that exceeds the usable credit of the link is refused. The error states the limit. */
static void message_over_the_usable_credit_is_refused(void **state) {
  (void)state;
  clv_err err = {0};
  begin_link();
  clv_send_queue_set_credit(w.link->send_queue, 200000);
  send_large_value(1, 200000 - CLV_WIRE_INLINE_MAX);
  assert_int_equal(clv_link_send(w.link, make_value_packet(2, 200001 - CLV_WIRE_INLINE_MAX), &err),
                   CLV_EXHAUSTED);
  assert_string_equal(err.text,
                      "a message with 134465 bytes of tensors exceeds 134464 bytes, the most that "
                      "the credit of 200000 bytes from peer permits; raise limits.receive_window "
                      "there");
  clv_send_queue_set_credit(w.link->send_queue, 100000);
  send_large_value(3, CLV_WIRE_INLINE_MAX);
  assert_int_equal(clv_link_send(w.link, make_value_packet(4, CLV_WIRE_INLINE_MAX + 1), &err),
                   CLV_EXHAUSTED);
  clv_send_queue_set_credit(w.link->send_queue, 1000);
  assert_int_equal(clv_link_send(w.link, make_value_packet(5, 1001), &err), CLV_EXHAUSTED);
  clv_link_close(w.link);
  free_link_and_pool();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_link_event_reaches_its_state_or_is_refused),
      cmocka_unit_test(repeated_or_out_of_range_lane_is_refused),
      cmocka_unit_test(link_end_is_reported_once_with_the_first_reason),
      cmocka_unit_test(destructors_accept_null),
      cmocka_unit_test(packet_can_be_freed_after_its_link),
      cmocka_unit_test(each_lane_accepts_only_its_frame_kinds),
      cmocka_unit_test(unsolicited_pong_is_refused),
      cmocka_unit_test(ping_during_close_is_no_violation),
      cmocka_unit_test(ping_during_count_does_not_inflate_round_trip),
      cmocka_unit_test(each_partial_tensor_event_reaches_its_state),
      cmocka_unit_test(duplicate_or_overlapping_chunk_is_refused),
      cmocka_unit_test(ref_value_over_the_quota_becomes_a_failure),
      cmocka_unit_test(only_abort_passes_frames_waiting_for_credit),
      cmocka_unit_test(message_over_the_usable_credit_is_refused),
      cmocka_unit_test(bytes_over_the_credit_are_refused),
      cmocka_unit_test(packets_over_the_queue_limit_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
