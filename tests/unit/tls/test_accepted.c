/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests accepted connections without gRPC: a server drives its TLS over memory as gRPC does, and a
 * client reads from the socket the bytes that the product itself sends there: an alert.
 */
#include "tests/unit/tls/fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <sys/socket.h>

enum { MAX_CONNECTIONS = 4, BUFFER = 16384 };

/* ---- callbacks of the test that admit connections -------------------------------------------- */

static struct {
  clv_tls_decision decide_result, enter_result; /* decisions that the callbacks return */
  unsigned n_decisions, n_held, n_sheds;
  bool has_client_usage;
  char uri[100], issuer[100], serial[80], last_address[64];
} admission;

static clv_tls_decision decide_and_record(void *user, const clv_tls_caller *c, size_t *ret_holder) {
  (void)user;
  admission.n_decisions++;
  admission.has_client_usage = c->has_client_usage;
  snprintf(admission.uri, sizeof admission.uri, "%s", c->uri ? c->uri : "none");
  snprintf(admission.issuer, sizeof admission.issuer, "%s", c->issuer);
  snprintf(admission.serial, sizeof admission.serial, "%s", c->serial);
  snprintf(admission.last_address, sizeof admission.last_address, "%s", c->address);
  *ret_holder = 7;
  return admission.decide_result;
}

static clv_tls_decision count_entry(void *user, size_t holder) {
  (void)user;
  assert_int_equal(holder, 7);
  if (admission.enter_result == CLV_TLS_ADMITTED) admission.n_held++;
  return admission.enter_result;
}

static void count_leave(void *user, size_t holder) {
  (void)user;
  assert_int_equal(holder, 7);
  admission.n_held--;
}

static void record_shed(void *user, const char *address) {
  (void)user;
  admission.n_sheds++;
  snprintf(admission.last_address, sizeof admission.last_address, "%s", address);
}

/* ---- one connection and its handshake -------------------------------------------------------- */

static SSL_CTX *server_ctx, *client_ctx;
static int listener;
static struct sockaddr_in listen_address;

typedef struct connection {
  int accepted_fd, client_fd; /* sockets: the accepted one and the client's */
  bool is_admitted;
  SSL *server, *client;
  BIO *server_input, *server_output;
} connection;

static connection dial_listener(void) {
  connection p = {.client_fd = socket(AF_INET, SOCK_STREAM, 0)};
  assert_int_equal(connect(p.client_fd, (struct sockaddr *)&listen_address, sizeof listen_address),
                   0);
  p.accepted_fd = accept(listener, NULL, NULL);
  p.is_admitted = clv_tls_accepted_expect_fd(p.accepted_fd);
  if (!p.is_admitted) return p;
  p.server = SSL_new(server_ctx);
  p.server_input = BIO_new(BIO_s_mem());
  p.server_output = BIO_new(BIO_s_mem());
  BIO_up_ref(p.server_output);
  SSL_set_bio(p.server, p.server_input, p.server_output);
  SSL_set_accept_state(p.server);
  return p;
}

static void close_connection(connection *p) {
  SSL_free(p->server);
  SSL_free(p->client);
  BIO_free(p->server_output);
  close(p->accepted_fd);
  close(p->client_fd);
  ERR_clear_error();
}

/* Gives the server the received bytes, runs one step of its handshake, and sends its output, unless
 * the step failed. */
static bool run_handshake_step(connection *p) {
  char data[BUFFER];
  char *output = NULL;
  ssize_t n = recv(p->accepted_fd, data, sizeof data, MSG_DONTWAIT);
  if (n > 0) BIO_write(p->server_input, data, (int)n);
  int rc = SSL_do_handshake(p->server);
  if (rc != 1 && SSL_get_error(p->server, rc) != SSL_ERROR_WANT_READ) return false;
  long len = BIO_get_mem_data(p->server_output, &output);
  if (len > 0 && send(p->accepted_fd, output, (size_t)len, MSG_NOSIGNAL) != len) return false;
  (void)BIO_reset(p->server_output);
  return true;
}

/* Runs the handshake to its end. Returns true if the server accepted it. */
static bool complete_handshake(connection *p) {
  bool is_alive = true;
  p->client = SSL_new(client_ctx);
  SSL_set_fd(p->client, p->client_fd);
  SSL_set_connect_state(p->client);
  struct timeval short_timeout = {0, 20000};
  setsockopt(p->client_fd, SOL_SOCKET, SO_RCVTIMEO, &short_timeout, sizeof short_timeout);
  for (int i = 0; i < 50 && is_alive && !SSL_is_init_finished(p->server); i++) {
    (void)SSL_do_handshake(p->client);
    is_alive = run_handshake_step(p);
  }
  ERR_clear_error();
  return is_alive && SSL_is_init_finished(p->server);
}

/* Returns the alert that the client reads; -1: none, the connection was closed or stays open. */
static int read_alert(connection *p) {
  char byte;
  if (SSL_read(p->client, &byte, 1) > 0) return -1;
  unsigned long e = ERR_get_error();
  return ERR_GET_LIB(e) == ERR_LIB_SSL && ERR_GET_REASON(e) > 1000 ? ERR_GET_REASON(e) - 1000 : -1;
}

static SSL_CTX *make_ssl_context(bool is_server) {
  SSL_CTX *ctx = SSL_CTX_new(TLS_method());
  SSL_CTX_use_certificate_chain_file(ctx, at("good.pem"));
  SSL_CTX_use_PrivateKey_file(ctx, at("good.key"), SSL_FILETYPE_PEM);
  SSL_CTX_load_verify_locations(ctx, at("ca.pem"), NULL);
  int verify_mode = SSL_VERIFY_PEER | (is_server ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0);
  SSL_CTX_set_verify(ctx, verify_mode, NULL);
  return ctx;
}

static int group_up(void **state) {
  (void)state;
  clv_err err;
  socklen_t len = sizeof listen_address;
  assert_int_equal(scratch_setup(state), 0);
  must(clv_tls_ca_init(scratch, "home", 31, &err), &err);
  issue_certificate(make_valid_options("good"));
  must(clv_tls_set_min_version(&err), &err);
  must(clv_tls_handshakes_start_counting(3000, &err), &err);
  server_ctx = make_ssl_context(true);
  client_ctx = make_ssl_context(false);
  listen_address =
      (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  listener = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&listen_address, len), 0);
  assert_int_equal(listen(listener, 64), 0);
  return getsockname(listener, (struct sockaddr *)&listen_address, &len);
}

static int group_down(void **state) {
  (void)state;
  SSL_CTX_free(server_ctx);
  SSL_CTX_free(client_ctx);
  close(listener);
  return scratch_teardown(state);
}

static int begin_admission(void **state) {
  (void)state;
  const clv_tls_admission a = {.max_connections = MAX_CONNECTIONS,
                               .decide_admission = decide_and_record,
                               .enter_connection = count_entry,
                               .leave_connection = count_leave,
                               .on_shed = record_shed};
  clv_err err;
  memset(&admission, 0, sizeof admission);
  must(clv_tls_set_admission(&a, &err), &err);
  return 0;
}

static uint64_t count_failures(clv_tls_failure f) {
  clv_tls_handshakes h;
  clv_tls_handshakes_get_counts(true, &h);
  return h.n_failed[f];
}

/* ---- connections that are accepted, refused or closed ---------------------------------------- */

static void closed_connection_returns_its_slot(void **state) {
  (void)state;
  connection p = dial_listener();
  assert_true(complete_handshake(&p));
  assert_int_equal(admission.n_decisions, 1);
  assert_int_equal(admission.n_held, 1);
  assert_string_equal(admission.uri, "spiffe://cleave/worker-1");
  assert_string_equal(admission.issuer, "/CN=home");
  assert_true(strlen(admission.serial) >= 16 && strspn(admission.serial, "0123456789ABCDEF") >= 16);
  assert_string_equal(admission.last_address, "127.0.0.1");
  close_connection(&p);
  assert_int_equal(admission.n_held, 0);
}

static void assert_refused(clv_tls_decision decision, int alert, clv_tls_failure failure) {
  uint64_t before = count_failures(failure);
  admission.decide_result = decision;
  connection p = dial_listener();
  assert_false(complete_handshake(&p));
  assert_int_equal(read_alert(&p), alert);
  assert_int_equal(admission.n_held, 0);
  close_connection(&p);
  assert_int_equal(count_failures(failure), before + 1);
}

static void refusal_sends_its_alert_and_is_counted(void **state) {
  (void)state;
  assert_refused(CLV_TLS_NOT_ALLOWED, SSL_AD_HANDSHAKE_FAILURE, CLV_TLS_FAILURE_NOT_ALLOWED);
  assert_refused(CLV_TLS_OVER_QUOTA, SSL_AD_INTERNAL_ERROR, CLV_TLS_FAILURE_QUOTA);
  assert_refused(CLV_TLS_FULL, SSL_AD_INTERNAL_ERROR, CLV_TLS_FAILURE_SHED);
  assert_refused(CLV_TLS_REVOKED, SSL_AD_CERTIFICATE_REVOKED, CLV_TLS_FAILURE_REVOKED);
  assert_refused(CLV_TLS_NOT_FOR_CLIENTS, SSL_AD_UNSUPPORTED_CERTIFICATE,
                 CLV_TLS_FAILURE_BAD_CERTIFICATE);
}

/* Connects with a certificate of this extended key usage. Returns true if the callback was told
 * that the certificate is for a client. */
static bool is_seen_as_client(const char *name, const char *eku) {
  const certificate_spec spec = {
      .name = name, .valid_days = 1, .san_text = "URI:spiffe://cleave/x", .eku_text = eku};
  SSL_CTX *saved_ctx = client_ctx;
  EVP_PKEY *key = EVP_EC_gen("P-256");
  X509 *cert = make_certificate_by_hand(&spec, key);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(server_ctx), cert);
  client_ctx = make_ssl_context(false);
  SSL_CTX_use_certificate(client_ctx, cert);
  SSL_CTX_use_PrivateKey(client_ctx, key);
  admission.n_decisions = 0;
  connection p = dial_listener();
  (void)complete_handshake(&p);
  assert_int_equal(admission.n_decisions, 1);
  close_connection(&p);
  SSL_CTX_free(client_ctx);
  client_ctx = saved_ctx;
  X509_free(cert);
  EVP_PKEY_free(key);
  return admission.has_client_usage;
}

static void certificate_without_client_usage_is_no_client(void **state) {
  (void)state;
  assert_true(is_seen_as_client("both", "serverAuth,clientAuth"));
  /* OpenSSL accepts a certificate without usage, but the callback is not told that it is for a
   * client */
  assert_false(is_seen_as_client("none", NULL));
}

/* The client's certificate arrives while the quota has one connection left. Another connection
 * takes it before the client proves that it has the key, so the client is disconnected. */
static void late_quota_refusal_closes_the_connection(void **state) {
  (void)state;
  uint64_t before = count_failures(CLV_TLS_FAILURE_QUOTA);
  char byte;
  admission.enter_result = CLV_TLS_OVER_QUOTA;
  connection p = dial_listener();
  (void)complete_handshake(&p);
  assert_int_equal(recv(p.accepted_fd, &byte, 1, 0), 0); /* the connection was shut down */
  assert_int_equal(admission.n_held, 0);
  close_connection(&p);
  assert_int_equal(admission.n_held, 0);
  assert_int_equal(count_failures(CLV_TLS_FAILURE_QUOTA), before + 1);
}

static void tls_sessions_are_not_resumable(void **state) {
  (void)state;
  char byte;
  connection p = dial_listener();
  assert_true(complete_handshake(&p));
  (void)SSL_read(p.client, &byte, 1); /* this read would receive session tickets */
  assert_false(SSL_SESSION_is_resumable(SSL_get_session(p.client)));
  close_connection(&p);
}

static bool is_open(const connection *p) {
  char byte;
  return recv(p->client_fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
}

/* If there are too many connections, the server closes the silent connection that has been open
 * longest. Connections whose handshake has begun or ended stay open. */
static void longest_silent_handshake_is_shed_first(void **state) {
  (void)state;
  connection completed = dial_listener();
  assert_true(complete_handshake(&completed));
  connection started = dial_listener(), oldest_silent = dial_listener(),
             second_silent = dial_listener();
  assert_true(started.is_admitted && oldest_silent.is_admitted && second_silent.is_admitted);
  assert_int_equal(send(started.client_fd, "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", 10, 0), 10);
  (void)run_handshake_step(&started);
  connection third_silent = dial_listener();
  assert_true(third_silent.is_admitted && admission.n_sheds == 1);
  assert_false(is_open(&oldest_silent));
  assert_true(is_open(&second_silent) && is_open(&third_silent));
  /* the server has ended oldest_silent before, so closing it must not return its quota again */
  close_connection(&oldest_silent);
  connection fourth_silent = dial_listener();
  assert_true(fourth_silent.is_admitted && admission.n_sheds == 2);
  assert_false(is_open(&second_silent));
  assert_int_equal(admission.n_held, 1);
  connection *open_connections[] = {&completed, &started, &second_silent, &third_silent,
                                    &fourth_silent};
  for (size_t i = 0; i < CLV_COUNT(open_connections); i++) close_connection(open_connections[i]);
}

static void full_server_refuses_new_connections(void **state) {
  (void)state;
  connection server_input[MAX_CONNECTIONS];
  for (int i = 0; i < MAX_CONNECTIONS; i++) {
    server_input[i] = dial_listener();
    assert_true(complete_handshake(&server_input[i]));
  }
  connection late = dial_listener();
  assert_false(late.is_admitted);
  assert_int_equal(admission.n_sheds, 1);
  close_connection(&late);
  for (int i = 0; i < MAX_CONNECTIONS; i++) close_connection(&server_input[i]);
  assert_int_equal(admission.n_held, 0);
  late = dial_listener();
  assert_true(late.is_admitted);
  close_connection(&late);
}

/* The handshake of a server-side TLS object fails if no accepted connection was announced for it.
 */
static void unannounced_connection_fails_its_handshake(void **state) {
  (void)state;
  connection p = dial_listener();
  SSL_free(p.server);
  p.server = SSL_new(server_ctx);
  p.server_input = BIO_new(BIO_s_mem());
  BIO_free(p.server_output);
  p.server_output = BIO_new(BIO_s_mem());
  BIO_up_ref(p.server_output);
  SSL_set_bio(p.server, p.server_input, p.server_output);
  SSL_set_accept_state(p.server);
  assert_false(complete_handshake(&p));
  assert_int_equal(admission.n_held, 0);
  close_connection(&p);
}

/* Both ends have the same certificate. Its revocation ends the caller's open connection, and a
 * caller that reads the list refuses this server. */
static void revocation_ends_open_connections(void **state) {
  (void)state;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *id = NULL;
  clv_tls_crl *none = NULL;
  clv_err err;
  char byte;
  connection p = dial_listener();
  assert_true(complete_handshake(&p));
  assert_int_equal(clv_tls_accepted_end_revoked(NULL, NULL), 0);
  must(clv_tls_identity_load(at("ca.pem"), at("good.pem"), at("good.key"), &id, &err), &err);
  must(clv_tls_ca_revoke(scratch, "good", 1, &err), &err);
  must(clv_tls_revocation_load(at("crl.pem"), id, &err), &err);
  assert_true(clv_tls_is_peer_revoked("spiffe://cleave/worker-1"));
  assert_false(clv_tls_is_peer_revoked("spiffe://cleave/worker-2"));
  assert_int_equal(clv_tls_accepted_end_revoked(NULL, NULL), 1);
  assert_int_equal(clv_tls_accepted_end_revoked(NULL, NULL), 0);
  assert_int_equal(recv(p.accepted_fd, &byte, 1, 0), 0); /* the connection was shut down */
  close_connection(&p);
  assert_int_equal(admission.n_held, 0);
  p = dial_listener();
  assert_false(complete_handshake(&p));
  assert_int_equal(SSL_get_verify_result(p.client), X509_V_ERR_CERT_REVOKED);
  close_connection(&p);
  clv_tls_revocation_set(&none);
}

static void invalid_connection_limits_are_refused(void **state) {
  (void)state;
  clv_err err;
  clv_tls_admission a = {.decide_admission = decide_and_record};
  assert_int_equal(clv_tls_set_admission(&a, &err), CLV_INVALID);
  a.max_connections = 65536;
  assert_int_equal(clv_tls_set_admission(&a, &err), CLV_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(closed_connection_returns_its_slot, begin_admission),
      cmocka_unit_test_setup(refusal_sends_its_alert_and_is_counted, begin_admission),
      cmocka_unit_test_setup(certificate_without_client_usage_is_no_client, begin_admission),
      cmocka_unit_test_setup(late_quota_refusal_closes_the_connection, begin_admission),
      cmocka_unit_test_setup(tls_sessions_are_not_resumable, begin_admission),
      cmocka_unit_test_setup(longest_silent_handshake_is_shed_first, begin_admission),
      cmocka_unit_test_setup(full_server_refuses_new_connections, begin_admission),
      cmocka_unit_test_setup(unannounced_connection_fails_its_handshake, begin_admission),
      cmocka_unit_test_setup(revocation_ends_open_connections, begin_admission),
      cmocka_unit_test_setup(invalid_connection_limits_are_refused, begin_admission),
  };
  return cmocka_run_group_tests(tests, group_up, group_down);
}
