/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests streams and unary calls between two ends over real loopback TLS: bytes, order, releases,
 * ends.
 *
 * runs alone: a call beside one that is slow
 */
#include "common/net/rpc/rpc_int.h"
#include "rpc_fixture.h"

#include <signal.h>
#include <sys/wait.h>

static identity master, worker;
static clv_rpc_runtime *runtime;
static service svc;
static clv_rpc_channel *channel;

static void open_service(const clv_rpc_server_options *options) {
  clv_err err;
  clv_rpc_server_options default_options = make_service_options(&svc, &worker);
  runtime = make_runtime();
  start_service(&svc, runtime, options ? options : &default_options);
  channel = make_channel(runtime, svc.target, &master, WORKER_URI);
  must(clv_rpc_channel_connect(channel, 5000 * TIME_SCALE, &err), &err);
}

static int set_up(void **state) {
  (void)state;
  memset(&svc, 0, sizeof svc);
  open_service(NULL);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  clv_rpc_channel_freep(&channel);
  stop_service(&svc);
  clv_rpc_runtime_freep(&runtime);
  return 0;
}

static int group_up(void **state) {
  (void)state;
  clv_err err;
  must(clv_tls_set_min_version(&err), &err);
  make_scratch();
  master = issue_identity_with_uri("home", "master", MASTER_URI);
  worker = issue_identity_with_uri("home", "worker", WORKER_URI);
  return 0;
}

static int group_down(void **state) {
  (void)state;
  free_identity(&master);
  free_identity(&worker);
  return remove_scratch();
}

static clv_rpc_stream *open_stream(const char *method, recorder *r) {
  clv_rpc_stream *stream = NULL;
  clv_err err;
  clv_rpc_stream_events events = make_recorder_events(r);
  init_recorder(r);
  must(clv_rpc_stream_open(channel, method, &events, &stream, &err), &err);
  return stream;
}

static void count_release(void *owner) { atomic_fetch_add((atomic_uint *)owner, 1); }

static void wait_for_releases(atomic_uint *n_released, unsigned want) {
  for (int i = 0; i < 500 * TIME_SCALE && atomic_load(n_released) < want; i++) usleep(10000);
  assert_int_equal(atomic_load(n_released), want);
}

static void fill_noise(unsigned char *data, size_t len, unsigned seed) {
  for (size_t i = 0; i < len; i++) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (unsigned char)(seed >> 24);
  }
}

static void test_unary_call_returns_the_reply(void **state) {
  (void)state;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  must(clv_rpc_call_unary(channel, "/test/Say", "ping", 4, 5000 * TIME_SCALE, &reply, &err), &err);
  assert_int_equal(reply.len, 4);
  assert_memory_equal(reply.data, "ping", 4);
  assert_seen_uri(&svc, MASTER_URI);
  must(clv_rpc_call_unary(channel, "/test/Say", "", 0, 5000 * TIME_SCALE, &reply, &err), &err);
  assert_int_equal(reply.len, 0);
  size_t len = 3 << 20;
  unsigned char *large_request = malloc(len);
  fill_noise(large_request, len, 1);
  must(
      clv_rpc_call_unary(channel, "/test/Say", large_request, len, 5000 * TIME_SCALE, &reply, &err),
      &err);
  assert_int_equal(reply.len, len);
  assert_memory_equal(reply.data, large_request, len);
  free(large_request);
}

static void test_failed_unary_calls_name_the_reason(void **state) {
  (void)state;
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  static char big[9 << 20];
  expect_error(CLV_NOT_FOUND, "no session 7",
               clv_rpc_call_unary(channel, "/test/Fail", "", 0, 5000 * TIME_SCALE, &reply, &err),
               &err);
  expect_error(CLV_EXHAUSTED, "request of 17 bytes, the limit is 16",
               clv_rpc_call_unary(channel, "/test/Small", big, 17, 5000 * TIME_SCALE, &reply, &err),
               &err);
  expect_error(CLV_UNIMPLEMENTED, "/test/None",
               clv_rpc_call_unary(channel, "/test/None", "", 0, 5000 * TIME_SCALE, &reply, &err),
               &err);
  expect_error(CLV_DEADLINE, "", clv_rpc_call_unary(channel, "/test/Slow", "", 0, 50, &reply, &err),
               &err);
  expect_error(CLV_INVALID, "the limit is 8388608",
               clv_rpc_call_unary(channel, "/test/Say", big, sizeof big, 5000, &reply, &err), &err);
}

/* Calls the slow method in a thread. A slow handler must not delay another handler or a stream. */
static void *call_slow_method(void *arg) {
  clv_err err;
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  must(clv_rpc_call_unary(channel, "/test/Slow", arg, 1, 5000 * TIME_SCALE, &reply, &err), &err);
  return NULL;
}

static void test_slow_handler_does_not_block_other_calls(void **state) {
  (void)state;
  clv_err err;
  pthread_t thread;
  static recorder r;
  assert_int_equal(pthread_create(&thread, NULL, call_slow_method, "x"), 0);
  usleep(50000);
  uint64_t begin = clv_now_ns();
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  must(clv_rpc_call_unary(channel, "/test/Say", "a", 1, 5000 * TIME_SCALE, &reply, &err), &err);
  clv_rpc_stream *stream = open_stream("/test/Echo", &r);
  clv_rpc_piece piece = {"b", 1, NULL, NULL};
  must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
  assert_true(event_wait_for_count(&r.messages, 1, 5000));
  assert_true(clv_now_ns() - begin < 200000000u * TIME_SCALE);
  pthread_join(thread, NULL);
  clv_rpc_stream_close(stream);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  clv_rpc_stream_unref(stream);
  clv_bytes_done(&r.all_data);
}

static void check_echo(size_t len, size_t n_pieces) {
  clv_err err;
  static recorder r;
  static atomic_uint n_released;
  n_released = 0;
  clv_rpc_stream *stream = open_stream("/test/Echo", &r);
  unsigned char *data = malloc(len + 1);
  fill_noise(data, len, (unsigned)len);
  clv_rpc_piece pieces[7];
  size_t at = 0;
  for (size_t i = 0; i < n_pieces; i++) {
    size_t piece_len = i + 1 == n_pieces ? len - at : len / n_pieces;
    pieces[i] = (clv_rpc_piece){data + at, piece_len, count_release, &n_released};
    at += piece_len;
  }
  must(clv_rpc_stream_send(stream, pieces, n_pieces, &err), &err);
  assert_true(event_wait_for_count(&r.messages, 1, 20000));
  assert_int_equal(r.all_data.len, len);
  if (len > 0) assert_memory_equal(r.all_data.data, data, len);
  wait_for_releases(&n_released, (unsigned)n_pieces);
  assert_int_equal(clv_rpc_stream_queued_bytes(stream), 0);
  clv_rpc_stream_close(stream);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  assert_int_equal(r.end_code, CLV_OK);
  expect_error(CLV_UNAVAILABLE, "ended", clv_rpc_stream_send(stream, pieces, n_pieces, &err), &err);
  assert_int_equal(atomic_load(&n_released), 2 * n_pieces);
  clv_rpc_stream_unref(stream);
  clv_bytes_done(&r.all_data);
  free(data);
}

static void test_messages_of_all_sizes_are_echoed(void **state) {
  (void)state;
  check_echo(0, 0);
  check_echo(0, 1);
  check_echo(1, 1);
  check_echo(4096, 3);
  check_echo(5 << 20, 7);
  check_echo(8 << 20, 2);
}

static void test_oversized_message_is_refused_and_released(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  static atomic_uint n_released;
  n_released = 0;
  static char data[16];
  clv_rpc_stream *stream = open_stream("/test/Echo", &r);
  clv_rpc_piece pieces[2] = {{data, 8 << 20, count_release, &n_released},
                             {data, 1, count_release, &n_released}};
  expect_error(CLV_INVALID, "8388608", clv_rpc_stream_send(stream, pieces, 2, &err), &err);
  assert_int_equal(atomic_load(&n_released), 2);
  clv_rpc_stream_cancel(stream, CLV_CANCELLED, "enough");
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  assert_int_equal(r.end_code, CLV_CANCELLED);
  clv_rpc_stream_unref(stream);
}

enum { SENDERS = 4, MESSAGES_PER_SENDER = 500 };

typedef struct sender {
  clv_rpc_stream *stream;
  unsigned id;
} sender;

static void *send_many(void *arg) {
  sender *self = arg;
  clv_err err;
  for (uint32_t i = 0; i < MESSAGES_PER_SENDER; i++) {
    uint32_t words[2] = {self->id, i};
    clv_rpc_piece pieces[2] = {{&words[0], 4, NULL, NULL}, {&words[1], 4, NULL, NULL}};
    must(clv_rpc_stream_send(self->stream, pieces, 2, &err), &err);
  }
  return NULL;
}

/* Messages of one thread stay in order whatever other threads do; none is lost or doubled. */
static void test_messages_of_each_thread_stay_in_order(void **state) {
  (void)state;
  static recorder r;
  clv_rpc_stream *stream = open_stream("/test/Echo", &r);
  pthread_t threads[SENDERS];
  sender senders[SENDERS];
  for (unsigned i = 0; i < SENDERS; i++) {
    senders[i] = (sender){stream, i};
    assert_int_equal(pthread_create(&threads[i], NULL, send_many, &senders[i]), 0);
  }
  for (unsigned i = 0; i < SENDERS; i++) pthread_join(threads[i], NULL);
  clv_rpc_stream_close(stream); /* queued messages are still sent */
  assert_true(event_wait_for_count(&r.closed, 1, 60000));
  assert_int_equal(r.end_code, CLV_OK);
  assert_int_equal(r.all_data.len, SENDERS * MESSAGES_PER_SENDER * 8);
  uint32_t next_numbers[SENDERS] = {0};
  for (size_t i = 0; i < r.all_data.len; i += 8) {
    uint32_t words[2];
    memcpy(words, r.all_data.data + i, 8);
    assert_true(words[0] < SENDERS);
    assert_int_equal(words[1], next_numbers[words[0]]++);
  }
  clv_rpc_stream_unref(stream);
  clv_bytes_done(&r.all_data);
}

static void test_send_after_close_is_refused(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  clv_rpc_stream *stream = open_stream("/test/Echo", &r);
  clv_rpc_stream_close(stream);
  clv_rpc_piece piece = {"b", 1, NULL, NULL};
  clv_code code = clv_rpc_stream_send(stream, &piece, 1, &err);
  assert_true(code == CLV_PRECONDITION || code == CLV_UNAVAILABLE);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  clv_rpc_stream_unref(stream);
}

static void test_server_can_send_the_first_message(void **state) {
  (void)state;
  static recorder r;
  clv_rpc_stream *stream = open_stream("/test/Greet", &r);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  assert_int_equal(r.end_code, CLV_OK);
  assert_int_equal(r.all_data.len, 5);
  assert_memory_equal(r.all_data.data, "hello", 5);
  clv_rpc_stream_unref(stream);
  clv_bytes_done(&r.all_data);
}

static void test_client_receives_the_end_code_of_the_server(void **state) {
  (void)state;
  static recorder r;
  clv_rpc_stream *stream = open_stream("/test/Kill", &r);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  assert_int_equal(r.end_code, CLV_ABORTED);
  assert_string_equal(r.end_text, "killed by the server");
  clv_rpc_stream_unref(stream);
  stream = open_stream("/test/Refuse", &r);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  assert_int_equal(r.end_code, CLV_PRECONDITION);
  assert_string_equal(r.end_text, "not this stream");
  clv_rpc_stream_unref(stream);
}

/* A server cannot tell a cancel from a lost connection. So a client that cancels an idle stream
 * with a reason half-closes it, and the server sees an end. */
static void test_cancel_of_an_idle_stream_is_an_end_for_the_server(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  clv_rpc_stream *stream = open_stream("/test/Sink", &r);
  clv_rpc_piece piece = {"b", 1, NULL, NULL};
  must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
  assert_true(event_wait_for_count(&svc.sink_recorder.messages, 1, 5000));
  for (int i = 0; i < 500 && clv_rpc_stream_queued_bytes(stream); i++) usleep(10000);
  clv_rpc_stream_cancel(stream, CLV_INVALID, "no such frame");
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  assert_int_equal(r.end_code, CLV_INVALID);
  assert_string_equal(r.end_text, "no such frame");
  assert_true(event_wait_for_count(&svc.sink_recorder.closed, 1, 5000));
  assert_int_equal(svc.sink_recorder.end_code, CLV_OK);
  clv_rpc_stream_unref(stream);
}

/* The receiver stalls and the sender cancels with megabytes queued: everything is freed. */
static void test_cancel_releases_queued_megabytes(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  static atomic_uint n_released;
  n_released = 0;
  enum { BIG_BYTES = 5 << 20, N_MESSAGES = 8 };
  char *data = calloc(1, BIG_BYTES);
  svc.delays_echo = true;
  clv_rpc_stream *stream = open_stream("/test/Echo", &r);
  clv_rpc_piece piece = {data, BIG_BYTES, count_release, &n_released};
  for (int i = 0; i < N_MESSAGES; i++) must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
  usleep(200000);
  /* the sender's queue has grown */
  assert_true(clv_rpc_stream_queued_bytes(stream) > (size_t)BIG_BYTES);
  clv_rpc_stream_cancel(stream, CLV_ABORTED, "changed my mind");
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  assert_int_equal(r.end_code, CLV_ABORTED);
  assert_string_equal(r.end_text, "changed my mind");
  wait_for_releases(&n_released, N_MESSAGES);
  assert_int_equal(clv_rpc_stream_queued_bytes(stream), 0);
  expect_error(CLV_ABORTED, "changed my mind", clv_rpc_stream_send(stream, &piece, 1, &err), &err);
  assert_int_equal(atomic_load(&n_released), N_MESSAGES + 1);
  svc.delays_echo = false;
  clv_rpc_stream_unref(stream);
  for (int i = 0; i < 500 && atomic_load(&svc.closed) == 0; i++) usleep(10000);
  assert_int_equal(atomic_load(&svc.closed), 1);
  free(data);
}

static void test_thousand_streams_in_a_row_succeed(void **state) {
  (void)state;
  clv_err err;
  for (int i = 0; i < 1000; i++) {
    static recorder r;
    clv_rpc_stream *stream = open_stream("/test/Echo", &r);
    clv_rpc_piece piece = {&i, sizeof i, NULL, NULL};
    must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
    assert_true(event_wait_for_count(&r.messages, 1, 5000));
    assert_memory_equal(r.all_data.data, &i, sizeof i);
    clv_rpc_stream_close(stream);
    assert_true(event_wait_for_count(&r.closed, 1, 5000));
    assert_int_equal(r.end_code, CLV_OK);
    clv_rpc_stream_unref(stream);
    clv_bytes_done(&r.all_data);
  }
  for (int i = 0; i < 500 && atomic_load(&svc.closed) < 1000; i++) usleep(10000);
  assert_int_equal(atomic_load(&svc.closed), 1000);
  clv_rpc_server_counts counts;
  clv_rpc_server_get_counts(svc.server, &counts);
  assert_int_equal(counts.n_calls, 1000);
}

/* A steady stream allocates none of the project's memory. */
static void test_steady_stream_allocates_nothing(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  svc.sink_recorder.all_data =
      /* allocated before other threads run */
      (clv_bytes){.data = calloc(1, 4 << 20), .cap = 4 << 20};
  clv_rpc_stream *stream = open_stream("/test/Sink", &r);
  static char data[4096];
  static atomic_uint n_released;
  clv_rpc_piece piece = {data, sizeof data, count_release, &n_released};
  uint64_t n_allocations_before = 0;
  enum { MESSAGES_PER_ROUND = 4, ROUNDS = 100, WARM_UP_ROUNDS = 5 };
  for (unsigned i = 0; i < ROUNDS; i++) {
    if (i == WARM_UP_ROUNDS) n_allocations_before = clv_alloc_count();
    for (unsigned k = 0; k < (i < WARM_UP_ROUNDS ? 2 * MESSAGES_PER_ROUND : MESSAGES_PER_ROUND);
         k++)
      must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
    unsigned n_sent = MESSAGES_PER_ROUND * (i + 1 + CLV_MIN(i + 1, (unsigned)WARM_UP_ROUNDS));
    assert_true(event_wait_for_count(&svc.sink_recorder.messages, n_sent, 5000));
    wait_for_releases(&n_released, n_sent);
  }
  assert_int_equal(clv_alloc_count() - n_allocations_before, 0);
  clv_rpc_stream_close(stream);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  clv_rpc_stream_unref(stream);
}

static void test_drain_timeout_ends_streams_still_open(void **state) {
  (void)state;
  clv_err err;
  static recorder closed_recorder, open_recorder;
  clv_rpc_stream *closed_stream = open_stream("/test/Echo", &closed_recorder);
  clv_rpc_stream *unclosed_stream = open_stream("/test/Echo", &open_recorder);
  clv_rpc_piece piece = {"x", 1, NULL, NULL};
  must(clv_rpc_stream_send(closed_stream, &piece, 1, &err), &err);
  must(clv_rpc_stream_send(unclosed_stream, &piece, 1, &err), &err);
  assert_true(event_wait_for_count(&closed_recorder.messages, 1, 5000));
  assert_true(event_wait_for_count(&open_recorder.messages, 1, 5000));
  clv_rpc_stream_close(closed_stream);
  uint64_t begin = clv_now_ns();
  expect_error(CLV_DEADLINE, "300 ms", clv_rpc_server_drain(svc.server, 300, &err), &err);
  assert_true(clv_now_ns() - begin < 3000000000u * TIME_SCALE);
  assert_true(event_wait_for_count(&closed_recorder.closed, 1, 5000));
  assert_int_equal(closed_recorder.end_code, CLV_OK);
  assert_true(event_wait_for_count(&open_recorder.closed, 1, 5000));
  assert_int_equal(open_recorder.end_code, CLV_UNAVAILABLE);
  assert_string_equal(open_recorder.end_text, "the server is shutting down");
  expect_error(CLV_UNAVAILABLE, "no process listens on this address",
               clv_rpc_channel_connect(channel, 3000, &err), &err);
  clv_rpc_stream_unref(closed_stream);
  clv_rpc_stream_unref(unclosed_stream);
  clv_bytes_done(&closed_recorder.all_data);
  clv_bytes_done(&open_recorder.all_data);
}

static void test_drain_without_streams_succeeds(void **state) {
  (void)state;
  clv_err err;
  must(clv_rpc_server_drain(svc.server, 5000, &err), &err);
  must(clv_rpc_server_drain(svc.server, 5000, &err), &err);
}

/* ---- a server in another process, killed ----------------------------------------------------- */

static void check_killed_server(int signal_to_send, unsigned within_ms, const char *reason) {
  clv_err err;
  char target[64];
  pid_t child = start_process(target);
  runtime = make_runtime();
  clv_rpc_channel_options options = {
      .target_address = target, .expected_uri = WORKER_URI, .pem = get_pem(&master)};
  if (signal_to_send == SIGSTOP) options.limits.peer_timeout_ms = 1500;
  must(clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  must(clv_rpc_channel_connect(channel, 5000 * TIME_SCALE, &err), &err);
  static recorder r;
  clv_rpc_stream *stream = open_stream("/test/Echo", &r);
  clv_rpc_piece piece = {"x", 1, NULL, NULL};
  must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
  assert_true(event_wait_for_count(&r.messages, 1, 5000));
  uint64_t begin = clv_now_ns();
  kill(child, signal_to_send);
  assert_true(event_wait_for_count(&r.closed, 1, within_ms));
  printf("          closed after %.0f ms: %s: %s\n", (double)(clv_now_ns() - begin) / 1e6,
         clv_code_name(r.end_code), r.end_text);
  assert_int_equal(r.end_code, CLV_UNAVAILABLE);
  assert_non_null(strstr(r.end_text, reason));
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  clv_rpc_stream_unref(stream);
  clv_bytes_done(&r.all_data);
  clv_rpc_channel_freep(&channel);
  clv_rpc_runtime_freep(&runtime);
}

static void test_killed_server_ends_the_stream(void **state) {
  (void)state;
  check_killed_server(SIGKILL, 2000, "ended");
}

/* Texts of gRPC 1.51 for connections that were cut, damaged or silent are translated. Other texts
 * stay unchanged. */
static void test_grpc_end_texts_are_translated(void **state) {
  (void)state;
  static const char *const rows[][2] = {
      {"keepalive watchdog timeout", "the peer was silent for 60 s"},
      {"recvmsg:Connection timed out", "the peer was silent for 60 s"},
      {"recvmsg:Connection reset by peer", "the connection was reset"},
      {"Connection reset by peer", "the connection was reset"},
      {"Socket closed", "the process of the peer closed the connection, or has ended"},
      {"Stream removed", "damaged in transit: a bad TLS record"},
      {"it says: Socket closed", "it says: Socket closed"},
      {"", ""}};
  for (size_t i = 0; i < CLV_COUNT(rows); i++) {
    char text[RPC_TEXT];
    snprintf(text, sizeof text, "%s", rows[i][0]);
    assert_int_equal(rpc_translate_end_text(60000, text), i < 6);
    if (!strstr(text, rows[i][1])) fail_msg("'%s' is not in: %s", rows[i][1], text);
  }
}

static void test_frozen_server_exceeds_the_peer_timeout(void **state) {
  (void)state;
  check_killed_server(SIGSTOP, 5000, "the peer was silent for 1.5 s");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_killed_server_ends_the_stream),
    cmocka_unit_test(test_grpc_end_texts_are_translated),
    cmocka_unit_test(test_frozen_server_exceeds_the_peer_timeout),
    cmocka_unit_test_setup_teardown(test_unary_call_returns_the_reply, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_failed_unary_calls_name_the_reason, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_slow_handler_does_not_block_other_calls, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(test_messages_of_all_sizes_are_echoed, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_oversized_message_is_refused_and_released, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(test_messages_of_each_thread_stay_in_order, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_send_after_close_is_refused, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_server_can_send_the_first_message, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_client_receives_the_end_code_of_the_server, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(test_cancel_of_an_idle_stream_is_an_end_for_the_server, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(test_cancel_releases_queued_megabytes, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_thousand_streams_in_a_row_succeed, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_steady_stream_allocates_nothing, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_drain_timeout_ends_streams_still_open, set_up, tear_down),
    cmocka_unit_test_setup_teardown(test_drain_without_streams_succeeds, set_up, tear_down),
};

int main(int argc, char **argv) {
  if (argc == 2) serve_forever(argv[1]);
  return cmocka_run_group_tests(tests, group_up, group_down);
}
