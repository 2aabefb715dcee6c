/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests which peers are accepted: valid and invalid certificates on both sides, the one URI,
 * reload, limits per identity.
 */
#include "rpc_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static identity master, other, worker, of_other_ca, without_uri, with_two_uris, dns_fake,
    worker_with_two_uris, worker_without_uri;
static clv_rpc_runtime *runtime;
static service svc;

static int group_up(void **state) {
  (void)state;
  clv_err err;
  must(clv_tls_set_min_version(&err), &err);
  make_scratch();
  const char *const two_uris[] = {MASTER_URI, OTHER_URI};
  const char *const two_worker_uris[] = {WORKER_URI, OTHER_URI};
  master = issue_identity_with_uri("home", "master", MASTER_URI);
  other = issue_identity_with_uri("home", "other", OTHER_URI);
  worker = issue_identity_with_uri("home", "worker", WORKER_URI);
  of_other_ca = issue_identity_with_uri("foreign", "master", MASTER_URI);
  without_uri = issue_identity("home", "none", NULL, 0, "master.example");
  with_two_uris = issue_identity("home", "two", two_uris, 2, NULL);
  dns_fake = issue_identity("home", "dns", NULL, 0, MASTER_URI);
  worker_with_two_uris = issue_identity("home", "worker-two", two_worker_uris, 2, NULL);
  worker_without_uri = issue_identity("home", "worker-none", NULL, 0, "localhost");
  return 0;
}

static int group_down(void **state) {
  (void)state;
  identity *identities[] = {&master,
                            &other,
                            &worker,
                            &of_other_ca,
                            &without_uri,
                            &with_two_uris,
                            &dns_fake,
                            &worker_with_two_uris,
                            &worker_without_uri};
  for (size_t i = 0; i < CLV_COUNT(identities); i++) free_identity(identities[i]);
  return remove_scratch();
}

static int set_up(void **state) {
  (void)state;
  memset(&svc, 0, sizeof svc);
  runtime = make_runtime();
  clv_rpc_server_options options = make_service_options(&svc, &worker);
  options.max_calls_per_peer = 40;
  options.cut_off_ms = 3000;
  start_service(&svc, runtime, &options);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  stop_service(&svc);
  clv_rpc_runtime_freep(&runtime);
  return 0;
}

static clv_code call_echo(const identity *id, const char *uri, clv_err *err) {
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *channel = make_channel(runtime, svc.target, id, uri);
  CLV_TRY(clv_rpc_channel_connect(channel, 5000 * TIME_SCALE, err));
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  return clv_rpc_call_unary(channel, "/test/Say", "x", 1, 5000, &reply, err);
}

static clv_rpc_server_counts get_server_counts(void) {
  clv_rpc_server_counts now;
  clv_rpc_server_get_counts(svc.server, &now);
  return now;
}

/* The server's certificate has no DNS name, so the client must accept any address that it
 * dialled. */
static void test_allowed_identity_is_served(void **state) {
  (void)state;
  clv_err err;
  must(call_echo(&master, WORKER_URI, &err), &err);
  assert_seen_uri(&svc, MASTER_URI);
  assert_int_equal(get_server_counts().n_calls, 1);
}

static void test_identity_not_in_the_allow_list_is_denied(void **state) {
  (void)state;
  clv_err err;
  expect_error(CLV_DENIED, OTHER_URI " is not allowed here", call_echo(&other, WORKER_URI, &err),
               &err);
  assert_int_equal(get_server_counts().n_calls_denied, 1);
  assert_int_equal(svc.n_handled, 0);
}

static void test_client_without_exactly_one_uri_is_refused(void **state) {
  (void)state;
  clv_err err;
  expect_error(CLV_UNAUTHENTICATED, "names no URI", call_echo(&without_uri, WORKER_URI, &err),
               &err);
  expect_error(CLV_UNAUTHENTICATED, "more than one URI",
               call_echo(&with_two_uris, WORKER_URI, &err), &err);
  assert_int_equal(get_server_counts().n_calls_unauthenticated, 2);
}

/* A DNS name that is spelled like an allowed URI does not count as URI. */
static void test_dns_name_spelled_like_a_uri_is_refused(void **state) {
  (void)state;
  clv_err err;
  expect_error(CLV_UNAUTHENTICATED, "names no URI", call_echo(&dns_fake, WORKER_URI, &err), &err);
  assert_int_equal(svc.n_handled, 0);
}

static void test_client_of_another_ca_is_refused(void **state) {
  (void)state;
  clv_err err;
  identity client_with_foreign_cert = {master.ca, of_other_ca.cert, of_other_ca.key};
  expect_error(CLV_UNAUTHENTICATED, "refused",
               call_echo(&client_with_foreign_cert, WORKER_URI, &err), &err);
  assert_int_equal(get_server_counts().n_calls, 0);
}

static void test_server_of_another_ca_is_refused(void **state) {
  (void)state;
  clv_err err;
  identity client_with_foreign_ca = {of_other_ca.ca, master.cert, master.key};
  expect_error(CLV_UNAUTHENTICATED, "not from our CA",
               call_echo(&client_with_foreign_ca, WORKER_URI, &err), &err);
  assert_int_equal(get_server_counts().n_calls, 0);
}

/* A client that expects another URI than that of the server's certificate sends no call. */
static void test_server_with_another_uri_gets_no_call(void **state) {
  (void)state;
  clv_err err;
  clv_code code = call_echo(&master, "spiffe://cleave/worker-2", &err);
  expect_error(CLV_UNAUTHENTICATED, "'spiffe://cleave/worker-2'", code, &err);
  expect_error(CLV_UNAUTHENTICATED, "'" WORKER_URI "'", code, &err);
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *channel = make_channel(runtime, svc.target, &master, "spiffe://cleave/worker-2");
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  expect_error(CLV_UNAUTHENTICATED, "'spiffe://cleave/worker-2'",
               clv_rpc_call_unary(channel, "/test/Say", "secret", 6, 5000, &reply, &err), &err);
  assert_int_equal(get_server_counts().n_calls, 0);
}

static void check_server_identity(const identity *id, const char *wanted_text) {
  clv_err err;
  clv_rpc_pem pem = get_pem(id);
  must(clv_rpc_server_replace_certs(svc.server, &pem, &err), &err);
  expect_error(CLV_UNAUTHENTICATED, wanted_text, call_echo(&master, WORKER_URI, &err), &err);
}

static void test_server_without_exactly_one_uri_is_refused(void **state) {
  (void)state;
  check_server_identity(&worker_with_two_uris, "exactly one");
  check_server_identity(&worker_without_uri, "no URI");
  assert_int_equal(get_server_counts().n_calls, 0);
}

static void test_unreachable_address_is_named(void **state) {
  (void)state;
  clv_err err;
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *channel = make_channel(runtime, "127.0.0.1:1", &master, WORKER_URI);
  expect_error(CLV_UNAVAILABLE, "127.0.0.1:1: no process listens on this address",
               clv_rpc_channel_connect(channel, 5000 * TIME_SCALE, &err), &err);
  CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
  expect_error(CLV_UNAVAILABLE, "refused",
               clv_rpc_call_unary(channel, "/test/Say", "", 0, 5000, &reply, &err), &err);
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *nameless =
      make_channel(runtime, "no-such-host.invalid:7443", &master, WORKER_URI);
  expect_error(CLV_NOT_FOUND, "cannot be resolved", clv_rpc_channel_connect(nameless, 8000, &err),
               &err);
}

/* The server listens but never answers the TLS handshake. */
static void test_silent_server_fails_at_the_connect_deadline(void **state) {
  (void)state;
  clv_err err;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
  assert_int_equal(listen(fd, 8), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
  char target[64];
  snprintf(target, sizeof target, "127.0.0.1:%u", ntohs(at.sin_port));
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *channel = make_channel(runtime, target, &master, WORKER_URI);
  uint64_t begin = clv_now_ns();
  expect_error(CLV_DEADLINE, "no connection within 300 ms",
               clv_rpc_channel_connect(channel, 300, &err), &err);
  assert_true(clv_now_ns() - begin < 2000000000u);
  close(fd);
}

/* A client that connects and sends nothing is disconnected after the handshake time. */
static void test_silent_client_is_dropped_after_handshake_time(void **state) {
  (void)state;
  stop_service(&svc);
  memset(&svc, 0, sizeof svc);
  clv_rpc_server_options options = make_service_options(&svc, &worker);
  options.handshake_timeout_ms = 300;
  start_service(&svc, runtime, &options);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)clv_rpc_server_port(svc.server)),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
  struct timeval receive_timeout = {.tv_sec = 5};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive_timeout, sizeof receive_timeout);
  char byte;
  uint64_t begin = clv_now_ns();
  /* the server has closed the connection: end of file, not a timeout */
  assert_int_equal(read(fd, &byte, 1), 0);
  assert_true(clv_now_ns() - begin < 3000000000u);
  close(fd);
}

static void test_invalid_channel_options_are_refused(void **state) {
  (void)state;
  clv_err err;
  clv_rpc_channel *channel = NULL;
  clv_rpc_channel_options options = {
      .target_address = "worker", .expected_uri = WORKER_URI, .pem = get_pem(&master)};
  expect_error(CLV_INVALID, "'worker' is not HOST:PORT",
               clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  options.target_address = "127.0.0.1:7443";
  must(clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  /* the channel accepts address, URI, certificate and key, so the next errors are of the changed
   * field */
  clv_rpc_channel_free(channel);
  options.pem.key = other.key.data;
  expect_error(CLV_INVALID, "cannot be used together",
               clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  options.pem.cert = "no certificate";
  expect_error(CLV_INVALID, "cannot be used together",
               clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  options.pem = (clv_rpc_pem){0};
  expect_error(CLV_INVALID, "CA certificate is missing",
               clv_rpc_channel_new(runtime, &options, &channel, &err), &err);
  options.pem = get_pem(&master);
  options.expected_uri = "";
  expect_error(CLV_INVALID, "no identity", clv_rpc_channel_new(runtime, &options, &channel, &err),
               &err);
  clv_rpc_server *server = NULL;
  clv_rpc_server_options options_of_used_port = make_service_options(&svc, &worker);
  options_of_used_port.listen_address = svc.target;
  expect_error(CLV_UNAVAILABLE, "Address already in use",
               clv_rpc_server_new(runtime, &options_of_used_port, &server, &err), &err);
}

/* New certificates are used for new handshakes; invalid ones change nothing; an open stream
 * continues with the old ones. */
static void test_reloaded_certificates_apply_to_new_handshakes(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  init_recorder(&r);
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *standing = make_channel(runtime, svc.target, &master, WORKER_URI);
  must(clv_rpc_channel_connect(standing, 5000, &err), &err);
  clv_rpc_stream *stream = NULL;
  clv_rpc_stream_events events = make_recorder_events(&r);
  must(clv_rpc_stream_open(standing, "/test/Echo", &events, &stream, &err), &err);

  identity renamed = issue_identity_with_uri("home", "worker-9", "spiffe://cleave/worker-9");
  clv_rpc_pem pem = get_pem(&renamed);
  must(clv_rpc_server_replace_certs(svc.server, &pem, &err), &err);
  expect_error(CLV_UNAUTHENTICATED, "worker-9", call_echo(&master, WORKER_URI, &err), &err);
  must(call_echo(&master, "spiffe://cleave/worker-9", &err), &err);

  pem.key = worker.key.data;
  expect_error(CLV_INVALID, "does not belong", clv_rpc_server_replace_certs(svc.server, &pem, &err),
               &err);
  must(call_echo(&master, "spiffe://cleave/worker-9", &err), &err);

  clv_rpc_pem pem_with_other_ca = get_pem(&renamed);
  pem_with_other_ca.ca = of_other_ca.ca.data;
  must(clv_rpc_server_replace_certs(svc.server, &pem_with_other_ca, &err), &err);
  expect_error(CLV_UNAUTHENTICATED, "refused", call_echo(&master, "spiffe://cleave/worker-9", &err),
               &err);
  identity newcomer = {renamed.ca, of_other_ca.cert, of_other_ca.key};
  must(call_echo(&newcomer, "spiffe://cleave/worker-9", &err), &err);

  clv_rpc_piece piece = {"still here", 10, NULL, NULL};
  must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
  assert_true(event_wait_for_count(&r.messages, 1, 5000));
  clv_rpc_stream_close(stream);
  assert_true(event_wait_for_count(&r.closed, 1, 5000));
  clv_rpc_stream_unref(stream);
  clv_bytes_done(&r.all_data);
  free_identity(&renamed);
}

/* ---- limits per identity --------------------------------------------------------------------- */

enum { CLIENTS = 41 };

static void test_calls_over_the_identity_limit_are_refused(void **state) {
  (void)state;
  clv_err err;
  static recorder r[CLIENTS];
  clv_rpc_stream *stream[CLIENTS];
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *channel = make_channel(runtime, svc.target, &master, WORKER_URI);
  must(clv_rpc_channel_connect(channel, 5000 * TIME_SCALE, &err), &err);
  for (int i = 0; i < CLIENTS; i++) {
    init_recorder(&r[i]);
    clv_rpc_stream_events events = make_recorder_events(&r[i]);
    must(clv_rpc_stream_open(channel, "/test/Echo", &events, &stream[i], &err), &err);
    if (i == CLIENTS - 2) /* forty clients are connected before the surplus one */
      for (int k = 0; k < 500 && get_server_counts().n_active_calls < CLIENTS - 1; k++)
        usleep(10000);
  }
  assert_true(event_wait_for_count(&r[CLIENTS - 1].closed, 1, 5000));
  assert_int_equal(r[CLIENTS - 1].end_code, CLV_EXHAUSTED);
  assert_string_equal(
      r[CLIENTS - 1].end_text,
      "more than 40 calls at once: raise limits.concurrent_calls in worker.yaml (a session makes "
      "about six)");
  assert_int_equal(event_get_count(&r[0].closed), 0);
  for (int i = 0; i < CLIENTS; i++) {
    clv_rpc_stream_close(stream[i]);
    assert_true(event_wait_for_count(&r[i].closed, 1, 5000));
    clv_rpc_stream_unref(stream[i]);
  }
  must(call_echo(&master, WORKER_URI, &err), &err);
}

/* A client that opens and resets streams as fast as it can is disconnected; other clients do not
 * notice. */
static void test_rapid_stream_resets_disconnect_the_client(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  init_recorder(&r);
  static service *const s = &svc;
  clv_rpc_channel *channel = make_channel(runtime, s->target, &master, WORKER_URI);
  must(clv_rpc_channel_connect(channel, 5000 * TIME_SCALE, &err), &err);
  clv_rpc_stream_events events = make_recorder_events(&r);
  unsigned n_opened = 0;
  enum { BATCH = 30, MAX_STREAMS = 3000 };
  while (n_opened < MAX_STREAMS && get_server_counts().n_cut_peers == 0) {
    clv_rpc_stream *stream[BATCH];
    uint64_t before = get_server_counts().n_calls;
    for (int i = 0; i < BATCH; i++, n_opened++)
      must(clv_rpc_stream_open(channel, "/test/Echo", &events, &stream[i], &err), &err);
    for (int i = 0; i < 500 && get_server_counts().n_calls < before + BATCH / 2; i++) usleep(200);
    for (int i = 0; i < BATCH; i++) {
      clv_rpc_stream_cancel(stream[i], CLV_CANCELLED, "");
      clv_rpc_stream_unref(stream[i]);
    }
  }
  assert_true(event_wait_for_count(&r.closed, n_opened, 20000));
  assert_int_equal(get_server_counts().n_cut_peers, 1);
  clv_rpc_channel_freep(&channel);
  /* another identity is refused as not allowed (DENIED), not because of the flood (EXHAUSTED) */
  expect_error(CLV_DENIED, "", call_echo(&other, WORKER_URI, &err), &err);
  /* waits, because the server answers no handshake until the second of the flood has ended */
  usleep(1100000);
  expect_error(CLV_EXHAUSTED, "too many cancelled calls", call_echo(&master, WORKER_URI, &err),
               &err);
  usleep(2500000);
  must(call_echo(&master, WORKER_URI, &err), &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_allowed_identity_is_served, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_identity_not_in_the_allow_list_is_denied, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_client_without_exactly_one_uri_is_refused, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_dns_name_spelled_like_a_uri_is_refused, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_client_of_another_ca_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_server_of_another_ca_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_server_with_another_uri_gets_no_call, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_server_without_exactly_one_uri_is_refused, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_unreachable_address_is_named, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_silent_server_fails_at_the_connect_deadline, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_silent_client_is_dropped_after_handshake_time, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_invalid_channel_options_are_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_reloaded_certificates_apply_to_new_handshakes, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_calls_over_the_identity_limit_are_refused, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(test_rapid_stream_resets_disconnect_the_client, set_up,
                                      tear_down),
  };
  return cmocka_run_group_tests(tests, group_up, group_down);
}
