/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests lanes over several connections: messages that the peer has not received are sent again,
 * each once, and none before an earlier connection has ended. Also tests when a link is given up.
 */
#include <stdio.h>

#include "common/net/link/link_int.h"
#include "tests/unit/engine/engine_test.h"

enum { LANES = 2, MAX_FRAMES = 64, LEASE_MS = 60000, MAX_STREAMS = 40 };
#define MS UINT64_C(1000000)

/* A stream (connection of a lane) of the test, with the frames that the link has sent on it. */
typedef struct stream {
  clv_lane *lane;
  uint32_t lane_index;
  clv_frame_kind frame_kinds[MAX_FRAMES];
  clv_frame last_frame;
  uint32_t n;
  bool is_cancelled, is_closed, refuses_messages;
} stream;

static struct {
  clv_pool *pool;
  clv_link *link;
  stream streams[MAX_STREAMS];
  uint32_t n_streams;
  uint64_t clock_ns;
  clv_code dial_refusal; /* error of dialling; CLV_OK: dialling succeeds */
  const char *dial_refusal_text;
  uint32_t n_packets, n_ends;
  char end_text[CLV_ERR_TEXT];
  uint64_t last_refusal_ns; /* time of the last refusal */
} w;

static clv_code record_frames(void *handle, const clv_rpc_piece *pieces, size_t n, clv_err *err) {
  stream *s = handle;
  clv_piece all[2 + CLV_WIRE_TENSORS];
  clv_bundle before;
  clv_payload payload;
  clv_wire_limits limits = clv_wire_limits_default();
  for (size_t i = 0; i < n; i++) all[i] = (clv_piece){pieces[i].data, pieces[i].len};
  if (!s->refuses_messages) {
    clv_code code = clv_frame_decode_last(all, n, &limits, &before, &s->last_frame, &payload, err);
    assert_int_equal(code, CLV_OK);
    assert_true(s->n < MAX_FRAMES);
    s->frame_kinds[s->n++] = s->last_frame.kind;
  }
  for (size_t i = 0; i < n; i++)
    if (pieces[i].release_owner) pieces[i].release_owner(pieces[i].owner);
  return s->refuses_messages ? clv_fail(err, CLV_UNAVAILABLE, "the stream has ended") : CLV_OK;
}
static void close_stream(void *handle) { ((stream *)handle)->is_closed = true; }
static void cancel_stream(void *handle, clv_code code, const char *text) {
  (void)code, (void)text;
  ((stream *)handle)->is_cancelled = true;
}
static bool refuse_defer(void *handle, clv_rpc_job *job) {
  (void)handle, (void)job;
  return false;
}
static void do_nothing(void *handle) { (void)handle; }
static const clv_transport transport = {record_frames, close_stream, cancel_stream,
                                        refuse_defer,  do_nothing,   do_nothing};

static clv_code dial_stream(void *user, uint32_t index, clv_lane *lane, const bool *stop,
                            void **ret, clv_err *err) {
  (void)user, (void)stop;
  w.last_refusal_ns = w.clock_ns;
  if (w.dial_refusal) return clv_fail(err, w.dial_refusal, "%s", w.dial_refusal_text);
  stream *s = &w.streams[w.n_streams++];
  s->lane = lane;
  s->lane_index = index;
  *ret = s;
  return CLV_OK;
}

static void on_packet(void *user, clv_link *link, clv_packet *p) {
  (void)user, (void)link;
  w.n_packets++;
  clv_packet_free(p);
}
static void on_closed(void *user, clv_link *link, clv_code code, const char *text) {
  (void)user, (void)link, (void)code;
  w.n_ends++;
  snprintf(w.end_text, sizeof w.end_text, "%s", text);
}
static uint64_t read_clock(void *user) {
  (void)user;
  return w.clock_ns;
}
static clv_code find_link(void *user, const clv_frame *attach, const char *uri, clv_link **ret,
                          clv_err *err) {
  (void)user, (void)attach, (void)uri, (void)err;
  *ret = clv_link_ref(w.link);
  return CLV_OK;
}
static const clv_lane_acceptor acceptor = {.find_link = find_link};

static void receive_frame(stream *s, const clv_frame *f) {
  clv_err err = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes head = {0};
  assert_ok(clv_frame_encode(f, 0, &head, &err));
  clv_lane_on_message(s->lane, &(clv_iov){head.data, head.len}, 1);
}

static void receive_attach(stream *s, uint32_t lane_index, uint64_t connection_number,
                           uint64_t n_received) {
  clv_frame f = {.kind = CLV_ATTACH};
  f.attach.attempt_number = 1;
  f.attach.role = CLV_ATTACH_MASTER;
  f.attach.lane_index = lane_index;
  f.attach.n_lanes = LANES - 1;
  f.attach.connection_number = connection_number;
  f.attach.n_received = n_received;
  receive_frame(s, &f);
}

static void receive_attached(stream *s, uint64_t n_received) {
  const clv_frame f = {.kind = CLV_ATTACHED, .attached = {1 << 20, n_received}};
  receive_frame(s, &f);
}

static void receive_packets(stream *s, int n) {
  const clv_frame f = {.kind = CLV_END_CONTEXT, .context = 1, .message_id = 1};
  while (n--) receive_frame(s, &f);
}

static stream *accept_stream(void) {
  clv_err err = {0};
  stream *s = &w.streams[w.n_streams++];
  assert_ok(clv_lane_new(&acceptor, "spiffe://x", &transport, s, &s->lane, &err));
  return s;
}

static void end_stream(stream *s, clv_code code) {
  clv_lane *lane = clv_steal(&s->lane);
  if (lane) clv_lane_on_ended(lane, code, "the connection was lost");
}

static void send_frames(int n) {
  for (int i = 0; i < n; i++) {
    clv_err err = {0};
    clv_packet *p;
    assert_ok(clv_packet_new_drop(w.pool, 1, 0, (const uint64_t[]){1}, 1, &p, &err));
    assert_ok(clv_link_send(w.link, p, &err));
  }
}

static void begin_link_with(bool dials, uint64_t lease_ms, uint64_t refusal_timeout_ms) {
  clv_err err = {0};
  memset(&w, 0, sizeof w);
  w.clock_ns = 1000 * MS;
  assert_ok(clv_pool_new(1 << 20, 64, &w.pool, &err));
  const clv_link_options o = {.clock = {read_clock, NULL},
                              .peer_name = "peer",
                              .pool = w.pool,
                              .accept_limits = clv_wire_limits_default(),
                              .initial_send_credit = 1 << 20,
                              .lease_ms = lease_ms,
                              .refusal_timeout_ms = refusal_timeout_ms,
                              .events = {.on_packet = on_packet, .on_closed = on_closed}};
  const clv_link_dial d = {
      .attach_role = CLV_ATTACH_MASTER, .n_bulk_lanes = LANES - 1, .attempt_number = 1};
  const clv_dialler dialler = {.transport = &transport, .dial_stream = dial_stream};
  if (dials) {
    assert_ok(clv_link_start(&o, &d, &dialler, &w.link, &err));
    for (uint32_t i = 0; i < LANES; i++) receive_attached(&w.streams[i], 0);
  } else {
    assert_ok(clv_link_new(&o, &w.link, &err));
    for (uint32_t i = 0; i < LANES; i++) receive_attach(accept_stream(), i, 0, 0);
  }
  assert_int_equal(w.link->state, CLV_LINK_OPEN);
}

static void begin_link(bool dials) { begin_link_with(dials, LEASE_MS, 0); }

static void end_link(void) {
  clv_link_end(w.link, CLV_OK, "over");
  for (uint32_t i = 0; i < w.n_streams; i++) end_stream(&w.streams[i], CLV_CANCELLED);
  assert_int_equal(w.link->state, CLV_LINK_ENDED);
  assert_int_equal(w.n_ends, 1);
  clv_link_unref(w.link);
  clv_pool_unref(w.pool);
}

/* ---- a link of the node that dials ----------------------------------------------------------- */

static void unreceived_messages_are_sent_again(void **state) {
  (void)state;
  begin_link(true);
  stream *first = &w.streams[0];
  send_frames(5);
  assert_int_equal(first->n, 1 + 5);
  receive_packets(first, 3);
  end_stream(first, CLV_UNAVAILABLE);
  assert_true(clv_link_is_mending(w.link));
  send_frames(2); /* these frames wait for a connection */
  clv_link_counts c;
  w.clock_ns += 4 * MS;
  clv_link_get_counts(w.link, &c);
  assert_true(c.n_outages == 0 && c.current_outage_ns == 4 * MS && c.last_outage_age_ns == 0);
  (void)clv_link_redial_or_end(w.link);
  stream *second = &w.streams[LANES];
  assert_int_equal(second->n, 1);
  assert_true(second->last_frame.attach.connection_number == 1 &&
              second->last_frame.attach.n_received == 3);
  receive_attached(second, 4);
  assert_false(clv_link_is_mending(w.link));
  assert_int_equal(second->n, 1 + 1 + 2);
  w.clock_ns += 7 * MS;
  clv_link_get_counts(w.link, &c);
  assert_int_equal(c.n_reconnects, 1);
  assert_true(c.n_outages == 1 && c.current_outage_ns == 0 && c.last_outage_ns == 4 * MS);
  assert_int_equal(c.last_outage_age_ns, 7 * MS);
  assert_true(c.resent_bytes > 0 && c.resent_bytes < c.bytes_out);
  end_link();
}

static void credit_is_not_granted_again(void **state) {
  (void)state;
  begin_link(true);
  w.link->send_queue->available_credit = 7;
  end_stream(&w.streams[0], CLV_UNAVAILABLE);
  (void)clv_link_redial_or_end(w.link);
  receive_attached(&w.streams[LANES], 0);
  assert_int_equal(w.link->send_queue->available_credit, 7);
  end_link();
}

static void wrong_counts_end_the_link(void **state) {
  (void)state;
  static const struct { uint64_t n_acked, n_received; } wrong_counts[] = {{0, 6}, {3, 2}};
  for (size_t i = 0; i < CLV_COUNT(wrong_counts); i++) {
    begin_link(true);
    send_frames(5);
    const clv_frame ack = {.kind = CLV_ACK, .ack = {LANES, {wrong_counts[i].n_acked}}};
    receive_frame(&w.streams[0], &ack);
    assert_int_equal(w.n_ends, 0);
    end_stream(&w.streams[0], CLV_UNAVAILABLE);
    (void)clv_link_redial_or_end(w.link);
    receive_attached(&w.streams[LANES], wrong_counts[i].n_received);
    assert_int_equal(w.n_ends, 1);
    end_link();
  }
  begin_link(true);
  send_frames(5);
  const clv_frame ack = {.kind = CLV_ACK, .ack = {LANES, {6}}};
  receive_frame(&w.streams[0], &ack);
  assert_int_equal(w.n_ends, 1);
  end_link();
}

static void decisions_of_the_peer_end_the_link(void **state) {
  (void)state;
  static const clv_code codes[] = {CLV_OK,      CLV_NOT_FOUND, CLV_ABORTED,  CLV_DENIED,
                                   CLV_INVALID, CLV_DATA_LOSS, CLV_EXHAUSTED};
  for (size_t i = 0; i < CLV_COUNT(codes); i++) {
    begin_link(true);
    end_stream(&w.streams[1], codes[i]);
    assert_int_equal(w.n_ends, 1);
    end_link();
  }
}

/* Redials until the link ends. Returns the time in ms from this call to the end. */
static uint64_t measure_ms_until_end(void) {
  uint64_t start_ns = w.clock_ns, due_ns;
  while ((due_ns = clv_link_redial_or_end(w.link)) != UINT64_MAX)
    w.clock_ns = CLV_MAX(due_ns, w.clock_ns + 1);
  return (w.clock_ns - start_ns) / MS;
}

static void silence_waits_for_the_lease(void **state) {
  (void)state;
  begin_link(true);
  end_stream(&w.streams[0], CLV_UNAVAILABLE);
  w.dial_refusal = CLV_DEADLINE;
  w.dial_refusal_text = "no connection";
  assert_int_equal(measure_ms_until_end(), LEASE_MS);
  assert_non_null(strstr(w.end_text, "limits.lease"));
  end_link();
}

/* A link may be refused for a limited time. When that time is over, the next refused redial ends
 * the link; the link does not end between two redials. */
static void refusals_end_the_link_after_their_time(void **state) {
  (void)state;
  static const uint64_t times[][2] = {{0, REFUSED_MS}, {500, 500}};
  for (size_t i = 0; i < CLV_COUNT(times); i++) {
    begin_link_with(true, LEASE_MS, times[i][0]);
    uint64_t began = w.clock_ns;
    end_stream(&w.streams[0], CLV_UNAVAILABLE);
    w.dial_refusal = CLV_UNAVAILABLE;
    w.dial_refusal_text = CLV_RPC_REFUSED;
    assert_in_range(measure_ms_until_end(), times[i][1], times[i][1] + 10);
    assert_true(w.last_refusal_ns >= began + times[i][1] * MS);
    assert_non_null(strstr(w.end_text, "refuses"));
    end_link();
  }
}

static void unanswered_attach_is_dialled_again(void **state) {
  (void)state;
  begin_link(true);
  end_stream(&w.streams[0], CLV_UNAVAILABLE);
  (void)clv_link_redial_or_end(w.link);
  w.clock_ns += (ATTACH_TIMEOUT_MS + 1) * MS;
  (void)clv_link_redial_or_end(w.link);
  assert_true(w.streams[LANES].is_cancelled);
  end_stream(&w.streams[LANES], CLV_CANCELLED);
  (void)clv_link_redial_or_end(w.link);
  assert_int_equal(w.streams[LANES + 1].last_frame.attach.connection_number, 2);
  end_link();
}

/* ---- a link of the node that accepts connections --------------------------------------------- */

static void attach_waits_for_the_end_of_the_earlier_connection(void **state) {
  (void)state;
  begin_link(false);
  stream *first = &w.streams[0], *second = accept_stream(), *third = accept_stream();
  send_frames(3);
  receive_attach(second, 0, 1, 2);
  assert_true(first->is_cancelled);
  assert_int_equal(second->n, 0);
  /* these packets arrive on the first connection before its end, so the link receives them */
  receive_packets(first, 2);
  receive_attach(third, 0, 2, 1);
  assert_true(second->is_cancelled);
  end_stream(second, CLV_CANCELLED);
  assert_int_equal(third->n, 0);
  end_stream(first, CLV_CANCELLED);
  assert_int_equal(third->frame_kinds[0], CLV_ATTACHED);
  assert_int_equal(third->n, 1 + 2);
  assert_int_equal(clv_link_n_received(w.link, 0), 2);
  assert_int_equal(w.n_packets, 2);
  assert_int_equal(w.link->state, CLV_LINK_OPEN);
  end_link();
}

static void older_connection_is_refused(void **state) {
  (void)state;
  begin_link(false);
  end_stream(&w.streams[0], CLV_CANCELLED);
  stream *second = accept_stream(), *older = accept_stream();
  receive_attach(second, 0, 5, 0);
  assert_int_equal(second->frame_kinds[0], CLV_ATTACHED);
  receive_attach(older, 0, 5, 0);
  assert_true(older->is_cancelled);
  assert_int_equal(w.n_ends, 0);
  assert_false(second->is_cancelled);
  end_link();
}

static void waiting_connection_that_ended_is_forgotten(void **state) {
  (void)state;
  begin_link(false);
  stream *second = accept_stream();
  receive_attach(second, 0, 1, 0);
  /* sending on this stream fails, because it has ended, which the link has not noticed yet */
  second->refuses_messages = true;
  end_stream(&w.streams[0], CLV_CANCELLED);
  assert_int_equal(w.n_ends, 0);
  end_stream(second, CLV_CANCELLED);
  assert_true(clv_link_is_mending(w.link));
  stream *third = accept_stream();
  receive_attach(third, 0, 2, 0);
  assert_false(clv_link_is_mending(w.link));
  w.clock_ns += 2 * LEASE_MS * MS;
  (void)clv_link_redial_or_end(w.link);
  assert_int_equal(w.n_ends, 0);
  end_stream(third, CLV_CANCELLED);
  w.clock_ns += LEASE_MS * MS;
  (void)clv_link_redial_or_end(w.link);
  assert_int_equal(w.n_ends, 1);
  end_link();
}

static void late_attach_of_a_lost_connection_changes_nothing(void **state) {
  (void)state;
  clv_err err = {0};
  begin_link(false);
  stream *second = accept_stream();
  receive_attach(second, 0, 1, 0);
  /* one thread reports the end of the first connection, another that of the second, before the
   * first thread answers the ATTACH of the second */
  clv_link_event_args lost = {.end_code = CLV_UNAVAILABLE, .end_text = "lost"};
  assert_ok(clv_link_on_event(w.link, CLV_LINK_LANE_LOST, &lost, &err));
  assert_int_equal(lost.connection_number, 1);
  end_stream(second, CLV_UNAVAILABLE);
  clv_link_event_args late = {.connection_number = 1};
  assert_ok(clv_link_on_event(w.link, CLV_LINK_LANE_ATTACHED, &late, &err));
  assert_true(clv_link_is_mending(w.link));
  receive_attach(accept_stream(), 0, 2, 0);
  assert_int_equal(w.link->state, CLV_LINK_OPEN);
  assert_ok(clv_link_on_event(w.link, CLV_LINK_LANE_ATTACHED, &late, &err));
  late.connection_number = 2;
  assert_int_equal(clv_link_on_event(w.link, CLV_LINK_LANE_ATTACHED, &late, &err),
                   CLV_PRECONDITION);
  assert_true(w.link->state == CLV_LINK_OPEN && w.n_ends == 0);
  end_link();
}

/* ---- ACK frames, which the link holds back and sends with the next message ------------------- */

static uint32_t count_kind(const stream *s, clv_frame_kind kind) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n; i++) n += s->frame_kinds[i] == kind;
  return n;
}

static void ack_is_sent_with_the_next_message(void **state) {
  (void)state;
  begin_link(false);
  stream *s = &w.streams[0];
  receive_packets(s, ACK_MESSAGES);
  assert_int_equal(w.link->writer->n_held_frames, 1);
  assert_int_equal(s->n, 1);
  send_frames(1);
  assert_int_equal(w.link->writer->n_held_frames, 0);
  assert_int_equal(s->n, 2);
  for (int i = 0; i <= CLV_WIRE_BUNDLED; i++) receive_packets(s, ACK_MESSAGES);
  /* the link holds back a limited number of ACKs: the first one beyond the limit was sent at
   * once */
  assert_int_equal(count_kind(s, CLV_ACK), 1);
  end_link();
}

static void acknowledged_messages_are_forgotten(void **state) {
  (void)state;
  begin_link(false);
  send_frames(5);
  const clv_frame ack = {.kind = CLV_ACK, .ack = {LANES, {4}}};
  const clv_lane_log *g = &w.link->writer->lane_logs[0];
  receive_frame(&w.streams[0], &ack);
  assert_true(g->first && g->first == g->last && g->n_acked == 4);
  receive_frame(&w.streams[0], &ack);
  assert_int_equal(g->n_acked, 4);
  end_link();
}

/* ---- peers of protocol 8, which cannot repair links ------------------------------------------ */

static void link_without_lease_sends_no_ack_and_forgets_accepted_messages(void **state) {
  (void)state;
  begin_link_with(false, 0, 0);
  stream *s = &w.streams[0];
  for (int i = 0; i < 3; i++) receive_packets(s, ACK_MESSAGES);
  assert_int_equal(w.link->writer->n_held_frames, 0);
  send_frames(5);
  assert_int_equal(s->n, 1 + 5);
  const clv_lane_log *g = &w.link->writer->lane_logs[0];
  /* the first report is about ATTACHED, which is no message of the log, so no message counts as
   * sent */
  clv_lane_on_sent(s->lane);
  assert_int_equal(g->n_acked, 0);
  for (int i = 0; i < 4; i++) clv_lane_on_sent(s->lane);
  assert_true(g->first && g->first == g->last && g->n_acked == 4);
  end_link();
}

static void link_without_lease_refuses_acks_and_ends_with_a_connection(void **state) {
  (void)state;
  const clv_frame ack = {.kind = CLV_ACK, .ack = {LANES, {0}}};
  begin_link_with(true, 0, 0);
  receive_frame(&w.streams[0], &ack);
  assert_int_equal(w.n_ends, 1);
  assert_non_null(strstr(w.end_text, "speak protocol 8"));
  end_link();
  begin_link_with(true, 0, 0);
  end_stream(&w.streams[1], CLV_UNAVAILABLE);
  assert_int_equal(w.n_ends, 1);
  end_link();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unreceived_messages_are_sent_again),
      cmocka_unit_test(credit_is_not_granted_again),
      cmocka_unit_test(wrong_counts_end_the_link),
      cmocka_unit_test(decisions_of_the_peer_end_the_link),
      cmocka_unit_test(silence_waits_for_the_lease),
      cmocka_unit_test(refusals_end_the_link_after_their_time),
      cmocka_unit_test(unanswered_attach_is_dialled_again),
      cmocka_unit_test(attach_waits_for_the_end_of_the_earlier_connection),
      cmocka_unit_test(older_connection_is_refused),
      cmocka_unit_test(waiting_connection_that_ended_is_forgotten),
      cmocka_unit_test(late_attach_of_a_lost_connection_changes_nothing),
      cmocka_unit_test(ack_is_sent_with_the_next_message),
      cmocka_unit_test(acknowledged_messages_are_forgotten),
      cmocka_unit_test(link_without_lease_sends_no_ack_and_forgets_accepted_messages),
      cmocka_unit_test(link_without_lease_refuses_acks_and_ends_with_a_connection),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
