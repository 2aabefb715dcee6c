/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections that are accepted, without gRPC: a server drives its TLS over memory as gRPC does,
 * and a client reads from the socket what comes besides, which is the alert.
 */
#include "tests/unit/tls/fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <sys/socket.h>

enum { PLACES = 4, BUFFER = 16384 };

/* ---- an admission of the test's own ---------------------------------------------------------- */

static struct {
  clv_tls_decision judged, entered; /* decisions that the callbacks return */
  unsigned judges, held, sheds;
  bool client;
  char uri[100], issuer[100], serial[80], address[64];
} door;

static clv_tls_decision judge(void *user, const clv_tls_caller *c, size_t *ret_holder) {
  (void)user;
  door.judges++;
  door.client = c->has_client_usage;
  snprintf(door.uri, sizeof door.uri, "%s", c->uri ? c->uri : "none");
  snprintf(door.issuer, sizeof door.issuer, "%s", c->issuer);
  snprintf(door.serial, sizeof door.serial, "%s", c->serial);
  snprintf(door.address, sizeof door.address, "%s", c->address);
  *ret_holder = 7;
  return door.judged;
}

static clv_tls_decision enter(void *user, size_t holder) {
  (void)user;
  assert_int_equal(holder, 7);
  if (door.entered == CLV_TLS_ADMITTED) door.held++;
  return door.entered;
}

static void leave(void *user, size_t holder) {
  (void)user;
  assert_int_equal(holder, 7);
  door.held--;
}

static void note_shed(void *user, const char *address) {
  (void)user;
  door.sheds++;
  snprintf(door.address, sizeof door.address, "%s", address);
}

/* ---- one connection -------------------------------------------------------------------------- */

static SSL_CTX *server_ctx, *client_ctx;
static int listener;
static struct sockaddr_in at_port;

typedef struct pair {
  int here, there; /* sockets: the accepted one and the client's */
  bool taken;
  SSL *server, *client;
  BIO *in, *out;
} pair;

static pair dial(void) {
  pair p = {.there = socket(AF_INET, SOCK_STREAM, 0)};
  assert_int_equal(connect(p.there, (struct sockaddr *)&at_port, sizeof at_port), 0);
  p.here = accept(listener, NULL, NULL);
  p.taken = clv_tls_accepted_expect_fd(p.here);
  if (!p.taken) return p;
  p.server = SSL_new(server_ctx);
  p.in = BIO_new(BIO_s_mem());
  p.out = BIO_new(BIO_s_mem());
  BIO_up_ref(p.out);
  SSL_set_bio(p.server, p.in, p.out);
  SSL_set_accept_state(p.server);
  return p;
}

static void hang_up(pair *p) {
  SSL_free(p->server);
  SSL_free(p->client);
  BIO_free(p->out);
  close(p->here);
  close(p->there);
  ERR_clear_error();
}

/* Passes received bytes to the server, makes one step, and sends its output, but not that of a
 * failed step. */
static bool step(pair *p) {
  char data[BUFFER];
  char *said = NULL;
  ssize_t n = recv(p->here, data, sizeof data, MSG_DONTWAIT);
  if (n > 0) BIO_write(p->in, data, (int)n);
  int rc = SSL_do_handshake(p->server);
  if (rc != 1 && SSL_get_error(p->server, rc) != SSL_ERROR_WANT_READ) return false;
  long len = BIO_get_mem_data(p->out, &said);
  if (len > 0 && send(p->here, said, (size_t)len, MSG_NOSIGNAL) != len) return false;
  (void)BIO_reset(p->out);
  return true;
}

/* Runs the handshake to its end. Returns true if the server accepted it. */
static bool complete_handshake(pair *p) {
  bool alive = true;
  p->client = SSL_new(client_ctx);
  SSL_set_fd(p->client, p->there);
  SSL_set_connect_state(p->client);
  struct timeval soon = {0, 20000};
  setsockopt(p->there, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
  for (int i = 0; i < 50 && alive && !SSL_is_init_finished(p->server); i++) {
    (void)SSL_do_handshake(p->client);
    alive = step(p);
  }
  ERR_clear_error();
  return alive && SSL_is_init_finished(p->server);
}

/* Returns the alert that the client reads; -1: none, the connection was closed or stays open. */
static int alert_of(pair *p) {
  char byte;
  if (SSL_read(p->client, &byte, 1) > 0) return -1;
  unsigned long e = ERR_get_error();
  return ERR_GET_LIB(e) == ERR_LIB_SSL && ERR_GET_REASON(e) > 1000 ? ERR_GET_REASON(e) - 1000 : -1;
}

static SSL_CTX *context(bool server) {
  SSL_CTX *ctx = SSL_CTX_new(TLS_method());
  SSL_CTX_use_certificate_chain_file(ctx, at("good.pem"));
  SSL_CTX_use_PrivateKey_file(ctx, at("good.key"), SSL_FILETYPE_PEM);
  SSL_CTX_load_verify_locations(ctx, at("ca.pem"), NULL);
  int mode = SSL_VERIFY_PEER | (server ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0);
  SSL_CTX_set_verify(ctx, mode, NULL);
  return ctx;
}

static int group_up(void **state) {
  (void)state;
  clv_err err;
  socklen_t len = sizeof at_port;
  assert_int_equal(scratch_setup(state), 0);
  must(clv_tls_ca_init(scratch, "home", 31, &err), &err);
  issue(valid_options("good"));
  must(clv_tls_set_min_version(&err), &err);
  must(clv_tls_handshakes_start_counting(3000, &err), &err);
  server_ctx = context(true);
  client_ctx = context(false);
  at_port = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  listener = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&at_port, len), 0);
  assert_int_equal(listen(listener, 64), 0);
  return getsockname(listener, (struct sockaddr *)&at_port, &len);
}

static int group_down(void **state) {
  (void)state;
  SSL_CTX_free(server_ctx);
  SSL_CTX_free(client_ctx);
  close(listener);
  return scratch_teardown(state);
}

static int begin(void **state) {
  (void)state;
  const clv_tls_admission a = {.max_connections = PLACES,
                               .decide_admission = judge,
                               .enter_connection = enter,
                               .leave_connection = leave,
                               .on_shed = note_shed};
  clv_err err;
  memset(&door, 0, sizeof door);
  must(clv_tls_accepted_open(&a, &err), &err);
  return 0;
}

static uint64_t failures(clv_tls_failure f) {
  clv_tls_handshakes h;
  clv_tls_handshakes_get_counts(true, &h);
  return h.n_failed[f];
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void closed_connection_returns_its_slot(void **state) {
  (void)state;
  pair p = dial();
  assert_true(complete_handshake(&p));
  assert_int_equal(door.judges, 1);
  assert_int_equal(door.held, 1);
  assert_string_equal(door.uri, "spiffe://cleave/worker-1");
  assert_string_equal(door.issuer, "/CN=home");
  assert_true(strlen(door.serial) >= 16 && strspn(door.serial, "0123456789ABCDEF") >= 16);
  assert_string_equal(door.address, "127.0.0.1");
  hang_up(&p);
  assert_int_equal(door.held, 0);
}

static void refused(clv_tls_decision decision, int alert, clv_tls_failure failure) {
  uint64_t before = failures(failure);
  door.judged = decision;
  pair p = dial();
  assert_false(complete_handshake(&p));
  assert_int_equal(alert_of(&p), alert);
  assert_int_equal(door.held, 0);
  hang_up(&p);
  assert_int_equal(failures(failure), before + 1);
}

static void refusal_sends_its_alert_and_is_counted(void **state) {
  (void)state;
  refused(CLV_TLS_NOT_ALLOWED, SSL_AD_HANDSHAKE_FAILURE, CLV_TLS_FAILURE_NOT_ALLOWED);
  refused(CLV_TLS_OVER_QUOTA, SSL_AD_INTERNAL_ERROR, CLV_TLS_FAILURE_QUOTA);
  refused(CLV_TLS_FULL, SSL_AD_INTERNAL_ERROR, CLV_TLS_FAILURE_SHED);
  refused(CLV_TLS_REVOKED, SSL_AD_CERTIFICATE_REVOKED, CLV_TLS_FAILURE_REVOKED);
  refused(CLV_TLS_NOT_FOR_CLIENTS, SSL_AD_UNSUPPORTED_CERTIFICATE, CLV_TLS_FAILURE_BAD_CERTIFICATE);
}

/* True if the callback sees a client whose certificate has this usage. */
static bool is_client(const char *name, const char *eku) {
  const by_hand how = {.name = name, .days = 1, .san = "URI:spiffe://cleave/x", .eku = eku};
  SSL_CTX *usual_ctx = client_ctx;
  EVP_PKEY *key = EVP_EC_gen("P-256");
  X509 *cert = cert_by_hand(&how, key);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(server_ctx), cert);
  client_ctx = context(false);
  SSL_CTX_use_certificate(client_ctx, cert);
  SSL_CTX_use_PrivateKey(client_ctx, key);
  door.judges = 0;
  pair p = dial();
  (void)complete_handshake(&p);
  assert_int_equal(door.judges, 1);
  hang_up(&p);
  SSL_CTX_free(client_ctx);
  client_ctx = usual_ctx;
  X509_free(cert);
  EVP_PKEY_free(key);
  return door.client;
}

static void certificate_without_client_usage_is_no_client(void **state) {
  (void)state;
  assert_true(is_client("both", "serverAuth,clientAuth"));
  assert_false(is_client("none", NULL)); /* OpenSSL accepts it */
}

/* Between the certificate and the proof of its key, another connection takes the last free one of
 * the quota. */
static void late_quota_refusal_closes_the_connection(void **state) {
  (void)state;
  uint64_t before = failures(CLV_TLS_FAILURE_QUOTA);
  char byte;
  door.entered = CLV_TLS_OVER_QUOTA;
  pair p = dial();
  (void)complete_handshake(&p);
  assert_int_equal(recv(p.here, &byte, 1, 0), 0); /* the connection was shut down */
  assert_int_equal(door.held, 0);
  hang_up(&p);
  assert_int_equal(door.held, 0);
  assert_int_equal(failures(CLV_TLS_FAILURE_QUOTA), before + 1);
}

static void tls_sessions_are_not_resumable(void **state) {
  (void)state;
  char byte;
  pair p = dial();
  assert_true(complete_handshake(&p));
  (void)SSL_read(p.client, &byte, 1); /* this is where session tickets would be read */
  assert_false(SSL_SESSION_is_resumable(SSL_get_session(p.client)));
  hang_up(&p);
}

static bool is_open(const pair *p) {
  char byte;
  return recv(p->there, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
}

/* Silent connections are closed first, the longest silent one before the others; accepted
 * connections stay. */
static void longest_silent_handshake_is_shed_first(void **state) {
  (void)state;
  pair in = dial();
  assert_true(complete_handshake(&in));
  pair spoke = dial(), first = dial(), second = dial();
  assert_true(spoke.taken && first.taken && second.taken);
  assert_int_equal(send(spoke.there, "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", 10, 0), 10);
  (void)step(&spoke);
  pair late = dial();
  assert_true(late.taken && door.sheds == 1);
  assert_false(is_open(&first));
  assert_true(is_open(&second) && is_open(&late));
  hang_up(&first); /* it has ended already, so its quota is not returned twice */
  pair later = dial();
  assert_true(later.taken && door.sheds == 2);
  assert_false(is_open(&second));
  assert_int_equal(door.held, 1);
  pair *all[] = {&in, &spoke, &second, &late, &later};
  for (size_t i = 0; i < CLV_COUNT(all); i++) hang_up(all[i]);
}

static void full_server_refuses_new_connections(void **state) {
  (void)state;
  pair in[PLACES];
  for (int i = 0; i < PLACES; i++) {
    in[i] = dial();
    assert_true(complete_handshake(&in[i]));
  }
  pair late = dial();
  assert_false(late.taken);
  assert_int_equal(door.sheds, 1);
  hang_up(&late);
  for (int i = 0; i < PLACES; i++) hang_up(&in[i]);
  assert_int_equal(door.held, 0);
  late = dial();
  assert_true(late.taken);
  hang_up(&late);
}

/* A server-side TLS object without an announced connection is not guarded, so its handshake
 * fails. */
static void unannounced_connection_fails_its_handshake(void **state) {
  (void)state;
  pair p = dial();
  SSL_free(p.server);
  p.server = SSL_new(server_ctx);
  p.in = BIO_new(BIO_s_mem());
  BIO_free(p.out);
  p.out = BIO_new(BIO_s_mem());
  BIO_up_ref(p.out);
  SSL_set_bio(p.server, p.in, p.out);
  SSL_set_accept_state(p.server);
  assert_false(complete_handshake(&p));
  assert_int_equal(door.held, 0);
  hang_up(&p);
}

/* Both ends have the same certificate. Revoking it ends the caller's open connection, and a caller
 * that reads the list refuses this server. */
static void revocation_ends_open_connections(void **state) {
  (void)state;
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *id = NULL;
  clv_tls_crl *none = NULL;
  clv_err err;
  char byte;
  pair p = dial();
  assert_true(complete_handshake(&p));
  assert_int_equal(clv_tls_accepted_end_revoked(NULL, NULL), 0);
  must(clv_tls_identity_load(at("ca.pem"), at("good.pem"), at("good.key"), &id, &err), &err);
  must(clv_tls_ca_revoke(scratch, "good", 1, &err), &err);
  must(clv_tls_revocation_load(at("crl.pem"), id, &err), &err);
  assert_true(clv_tls_is_peer_revoked("spiffe://cleave/worker-1"));
  assert_false(clv_tls_is_peer_revoked("spiffe://cleave/worker-2"));
  assert_int_equal(clv_tls_accepted_end_revoked(NULL, NULL), 1);
  assert_int_equal(clv_tls_accepted_end_revoked(NULL, NULL), 0);
  assert_int_equal(recv(p.here, &byte, 1, 0), 0); /* the connection was shut down */
  hang_up(&p);
  assert_int_equal(door.held, 0);
  p = dial();
  assert_false(complete_handshake(&p));
  assert_int_equal(SSL_get_verify_result(p.client), X509_V_ERR_CERT_REVOKED);
  hang_up(&p);
  clv_tls_revocation_set(&none);
}

static void invalid_connection_limits_are_refused(void **state) {
  (void)state;
  clv_err err;
  clv_tls_admission a = {.decide_admission = judge};
  assert_int_equal(clv_tls_accepted_open(&a, &err), CLV_INVALID);
  a.max_connections = 65536;
  assert_int_equal(clv_tls_accepted_open(&a, &err), CLV_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(closed_connection_returns_its_slot, begin),
      cmocka_unit_test_setup(refusal_sends_its_alert_and_is_counted, begin),
      cmocka_unit_test_setup(certificate_without_client_usage_is_no_client, begin),
      cmocka_unit_test_setup(late_quota_refusal_closes_the_connection, begin),
      cmocka_unit_test_setup(tls_sessions_are_not_resumable, begin),
      cmocka_unit_test_setup(longest_silent_handshake_is_shed_first, begin),
      cmocka_unit_test_setup(full_server_refuses_new_connections, begin),
      cmocka_unit_test_setup(unannounced_connection_fails_its_handshake, begin),
      cmocka_unit_test_setup(revocation_ends_open_connections, begin),
      cmocka_unit_test_setup(invalid_connection_limits_are_refused, begin),
  };
  return cmocka_run_group_tests(tests, group_up, group_down);
}
