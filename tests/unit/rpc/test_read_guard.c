/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the read guard with a client that speaks HTTP/2 by hand to a server which has the guard, as
 * the worker daemon has. Frames that gRPC answers by itself, and messages that never end, end the
 * connection soon. Calls, small messages and large ones of gRPC's own client never do.
 */
#include "rpc_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#include "worker/accept_guard_int.h"

/* WAIT_LIMIT_MS: limit of each wait; long, because a busy machine is slow and no time is
 * measured. */
enum { MAX_UNREAD_BYTES = 16 << 20, FRAME_BYTES = 16384, WAIT_LIMIT_MS = 60000 };

static identity master, worker;
static clv_rpc_runtime *runtime;
static service svc;
static SSL_CTX *context;
static _Atomic unsigned n_held;
/* why the last connection was ended; "": it was not. A thread of the transport writes it. */
static char end_reason[100];
static pthread_mutex_t end_reason_lock = PTHREAD_MUTEX_INITIALIZER;

static clv_tls_decision admit_everybody(void *user, const clv_tls_caller *caller,
                                        size_t *ret_holder) {
  (void)user, (void)caller;
  *ret_holder = 3;
  return CLV_TLS_ADMITTED;
}

static clv_tls_decision count_entry(void *user, size_t holder) {
  (void)user, (void)holder;
  n_held++;
  return CLV_TLS_ADMITTED;
}

static void count_leave(void *user, size_t holder) {
  (void)user, (void)holder;
  n_held--;
}

static void record_flood(void *user, size_t holder, const char *address, const char *what) {
  (void)user;
  assert_int_equal(holder, 3);
  assert_string_equal(address, "127.0.0.1");
  pthread_mutex_lock(&end_reason_lock);
  snprintf(end_reason, sizeof end_reason, "%s", what);
  pthread_mutex_unlock(&end_reason_lock);
}

static void clear_end_reason(void) {
  pthread_mutex_lock(&end_reason_lock);
  *end_reason = '\0';
  pthread_mutex_unlock(&end_reason_lock);
}

static bool is_end_reason(const char *what) {
  pthread_mutex_lock(&end_reason_lock);
  bool is_equal = strcmp(end_reason, what) == 0;
  pthread_mutex_unlock(&end_reason_lock);
  return is_equal;
}

static void ignore_shed(void *user, const char *address) { (void)user, (void)address; }

static void open_server(uint64_t max_unread_bytes) {
  clv_err err;
  const clv_tls_admission admission = {.max_connections = 100,
                                       .max_unread_bytes = max_unread_bytes,
                                       .decide_admission = admit_everybody,
                                       .enter_connection = count_entry,
                                       .leave_connection = count_leave,
                                       .on_flood = record_flood,
                                       .on_shed = ignore_shed};
  must(clv_tls_set_admission(&admission, &err), &err);
}

static SSL_CTX *make_client_context(void) {
  char path[300];
  SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
  snprintf(path, sizeof path, "%s/master.pem", get_ca_dir("home"));
  assert_int_equal(SSL_CTX_use_certificate_chain_file(ctx, path), 1);
  snprintf(path, sizeof path, "%s/master.key", get_ca_dir("home"));
  assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM), 1);
  SSL_CTX_set_alpn_protos(ctx, (const uint8_t *)"\2h2", 3);
  return ctx;
}

static int group_up(void **state) {
  (void)state;
  clv_err err;
  must(clv_tls_set_min_version(&err), &err);
  must(clv_tls_handshakes_start_counting(WAIT_LIMIT_MS, &err), &err);
  open_server(MAX_UNREAD_BYTES);
  signal(SIGPIPE, SIG_IGN);
  make_scratch();
  master = issue_identity_with_uri("home", "master", MASTER_URI);
  worker = issue_identity_with_uri("home", "worker", WORKER_URI);
  context = make_client_context();
  runtime = make_runtime();
  clv_rpc_server_options options = make_service_options(&svc, &worker);
  options.limits.max_message_bytes = 32 << 20;
  options.find_connection = clv_tls_accepted_find_connection;
  options.on_call_delivered = clv_tls_accepted_on_call;
  options.on_message_delivered = clv_tls_accepted_on_message;
  options.memory_limit = 64 << 20;
  start_service(&svc, runtime, &options);
  return 0;
}

static int group_down(void **state) {
  (void)state;
  stop_service(&svc);
  clv_rpc_runtime_freep(&runtime);
  SSL_CTX_free(context);
  free_identity(&master);
  free_identity(&worker);
  return remove_scratch();
}

/* ---- a client that speaks HTTP/2 by hand ----------------------------------------------------- */

typedef struct http2_client {
  int fd;
  SSL *ssl;
  uint32_t stream_id;
} http2_client;

static bool send_bytes(http2_client *w, const void *data, size_t len) {
  return SSL_write(w->ssl, data, (int)len) > 0;
}

/* Connects. Returns when the server's SETTINGS have arrived, as gRPC's client does: gRPC 1.51 loses
 * bytes beyond 17 KiB that it reads together with the client's Finished message. */
static http2_client dial_server(void) {
  char settings[256];
  http2_client w = {.fd = socket(AF_INET, SOCK_STREAM, 0), .ssl = SSL_new(context), .stream_id = 1};
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)clv_rpc_server_port(svc.server)),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct timeval socket_timeout = {.tv_sec = WAIT_LIMIT_MS / 1000};
  setsockopt(w.fd, SOL_SOCKET, SO_SNDTIMEO, &socket_timeout, sizeof socket_timeout);
  setsockopt(w.fd, SOL_SOCKET, SO_RCVTIMEO, &socket_timeout, sizeof socket_timeout);
  assert_int_equal(connect(w.fd, (struct sockaddr *)&at, sizeof at), 0);
  SSL_set_fd(w.ssl, w.fd);
  assert_int_equal(SSL_connect(w.ssl), 1);
  assert_true(send_bytes(&w, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33));
  assert_true(SSL_read(w.ssl, settings, sizeof settings) > 0);
  return w;
}

static void close_client(http2_client *w) {
  SSL_free(w->ssl);
  close(w->fd);
}

static size_t write_frame(uint8_t *ret, unsigned type, unsigned flags, uint32_t stream,
                          const void *data, size_t len) {
  const uint8_t head[9] = {(uint8_t)(len >> 16),    (uint8_t)(len >> 8),    (uint8_t)len,
                           (uint8_t)type,           (uint8_t)flags,         (uint8_t)(stream >> 24),
                           (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
  memcpy(ret, head, 9);
  memcpy(ret + 9, data, len);
  return 9 + len;
}

/* Header block of a request GET / over https. */
static const char GET[] = "\x82\x84\x87\x00\x0a:authority\x01x";

static bool send_hundred_frames(http2_client *w, unsigned type, unsigned flags, const void *data,
                                size_t len) {
  uint8_t bytes[100 * 64];
  size_t n = 0;
  for (int i = 0; i < 100; i++) {
    n += write_frame(bytes + n, type, flags, type == 1 ? w->stream_id : 0, data, len);
    if (type == 1) w->stream_id += 2;
  }
  return send_bytes(w, bytes, n);
}

/* Waits until the server has counted the connection as ended and, after that, has reported the
 * reason. */
static void wait_for_disconnection(uint64_t floods, const char *what) {
  for (int i = 0;
       i < WAIT_LIMIT_MS / 10 && (clv_tls_accepted_flood_count() == floods || is_end_reason(""));
       i++)
    usleep(10000);
  assert_int_equal(clv_tls_accepted_flood_count(), floods + 1);
  assert_true(is_end_reason(what));
}

/* Sends frames of one kind, and asserts that the server soon ends the connection. */
static void assert_disconnected(unsigned type, unsigned flags, const void *data, size_t len,
                                const char *what) {
  uint64_t floods = clv_tls_accepted_flood_count();
  http2_client w = dial_server();
  clear_end_reason();
  for (int i = 0; i < 2000 && clv_tls_accepted_flood_count() == floods; i++)
    if (!send_hundred_frames(&w, type, flags, data, len)) break;
  wait_for_disconnection(floods, what);
  close_client(&w);
}

static void test_frames_without_calls_end_the_connection(void **state) {
  (void)state;
  assert_disconnected(1, 5, GET, sizeof GET - 1, "requests that are no calls");
  assert_disconnected(1, 4, GET, sizeof GET - 1, "requests that are no calls");
  assert_disconnected(1, 5, "", 0, "requests that are no calls");
  assert_disconnected(4, 0, "", 0, "HTTP/2 frames that carry neither calls nor data");
  for (int i = 0; i < WAIT_LIMIT_MS / 10 && n_held; i++) usleep(10000);
  assert_int_equal(n_held, 0);
}

/* Sends a message of 16 MiB that never ends. The server counts unread bytes of a sender, and
 * subtracts 64 KiB of them per second. The limit is smaller than one frame, so the test does not
 * depend on the speed of the machine. */
static void test_endless_message_ends_the_connection(void **state) {
  (void)state;
  static const char post_headers[] =
      "\x83\x87\x00\x05:path\x09/test/Say\x00\x0a:authority\x01x\x00\x02te\x08trailers"
      "\x00\x0c"
      "content-type\x10"
      "application/grpc";
  static uint8_t bytes[FRAME_BYTES + 9], payload[FRAME_BYTES] = {[1] = 1};
  uint64_t floods = clv_tls_accepted_flood_count();
  open_server(FRAME_BYTES - 1);
  clear_end_reason();
  http2_client w = dial_server();
  assert_true(
      send_bytes(&w, bytes, write_frame(bytes, 1, 4, 1, post_headers, sizeof post_headers - 1)));
  size_t n = write_frame(bytes, 0, 0, 1, payload, FRAME_BYTES);
  for (int i = 0; i < 100 && clv_tls_accepted_flood_count() == floods && send_bytes(&w, bytes, n);
       i++)
    ;
  wait_for_disconnection(floods, "data of messages that do not end");
  close_client(&w);
}

/* ---- gRPC's own client ----------------------------------------------------------------------- */

static void test_normal_traffic_is_not_disconnected(void **state) {
  (void)state;
  clv_err err;
  static recorder r;
  open_server(MAX_UNREAD_BYTES);
  init_recorder(&r);
  enum { N_CALLS = 1500, N_SMALL_MESSAGES = 20000, N_LARGE_MESSAGES = 12 };
  uint64_t floods = clv_tls_accepted_flood_count();
  CLV_AUTO(clv_rpc_channel_freep)
  clv_rpc_channel *channel = make_channel(runtime, svc.target, &master, WORKER_URI);
  must(clv_rpc_channel_connect(channel, WAIT_LIMIT_MS, &err), &err);
  for (int i = 0; i < N_CALLS; i++) {
    CLV_AUTO(clv_bytes_done) clv_bytes reply = {0};
    must(clv_rpc_call_unary(channel, "/test/Say", "x", 1, WAIT_LIMIT_MS, &reply, &err), &err);
  }
  clv_rpc_stream *stream = NULL;
  clv_rpc_stream_events events = make_recorder_events(&r);
  must(clv_rpc_stream_open(channel, "/test/Sink", &events, &stream, &err), &err);
  for (int i = 0; i < N_SMALL_MESSAGES; i++) {
    clv_rpc_piece piece = {"0123456789", 10, NULL, NULL};
    must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
  }
  static char large_message[6 << 20];
  for (int i = 0; i < N_LARGE_MESSAGES; i++) {
    clv_rpc_piece piece = {large_message, sizeof large_message, NULL, NULL};
    must(clv_rpc_stream_send(stream, &piece, 1, &err), &err);
    assert_true(event_wait_for_count(&svc.sink_recorder.messages,
                                     N_SMALL_MESSAGES + 1 + (unsigned)i, WAIT_LIMIT_MS));
  }
  clv_rpc_stream_close(stream);
  assert_true(event_wait_for_count(&r.closed, 1, WAIT_LIMIT_MS));
  assert_int_equal(r.end_code, CLV_OK);
  clv_rpc_stream_unref(stream);
  assert_int_equal(clv_tls_accepted_flood_count(), floods);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_frames_without_calls_end_the_connection),
      cmocka_unit_test(test_endless_message_ends_the_connection),
      cmocka_unit_test(test_normal_traffic_is_not_disconnected),
  };
  return cmocka_run_group_tests(tests, group_up, group_down);
}
