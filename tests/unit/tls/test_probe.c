/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the probing client against small servers in processes of their own: a correct server, and
 * one for each way of being wrong. This process has the TLS floor installed, as the programs do.
 *
 * runs alone: how long a handshake may take
 */
#include "tests/unit/tls/fixture.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { WAIT_LIMIT_MS = 5000 };

/* ---- servers to probe ------------------------------------------------------------------------ */

typedef enum server_kind {
  CORRECT,           /* speaks HTTP/2, requires a client certificate and sends SETTINGS first */
  NO_ALPN,           /* speaks TLS, but does not negotiate HTTP/2 */
  SENDS_NO_SETTINGS, /* negotiates HTTP/2, but sends nothing */
  HANGS_UP,          /* completes the handshake, then closes without an alert */
  NO_TLS,            /* does not speak TLS */
  NEVER_ANSWERS,     /* accepts TCP and never answers */
} server_kind;

typedef struct server {
  server_kind kind;
  const char *ca, *cert_file, *key_file; /* files; NULL: ca.pem, good.pem, good.key */
  int tls_version;                       /* the only TLS version of the server; 0: TLS 1.3 */
  bool is_ipv6;
  pid_t pid;
  uint16_t port;
} server;

static int pick_h2(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                   const unsigned char *in, unsigned in_len, void *arg) {
  (void)ssl;
  (void)arg;
  static const unsigned char h2[] = {2, 'h', '2'};
  unsigned char *chosen = NULL;
  int rc = SSL_select_next_proto(&chosen, out_len, h2, sizeof h2, in, in_len);
  *out = chosen;
  return rc == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static SSL_CTX *make_server_context(const server *s) {
  int version = s->tls_version ? s->tls_version : TLS1_3_VERSION;
  SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
  /* allows older versions, as a server without this minimum does */
  SSL_CTX_clear_options(ctx, SSL_OP_NO_TLSv1_2);
  SSL_CTX_set_min_proto_version(ctx, version);
  SSL_CTX_set_max_proto_version(ctx, version);
  SSL_CTX_use_certificate_chain_file(ctx, at(s->cert_file ? s->cert_file : "good.pem"));
  SSL_CTX_use_PrivateKey_file(ctx, at(s->key_file ? s->key_file : "good.key"), SSL_FILETYPE_PEM);
  SSL_CTX_load_verify_locations(ctx, at(s->ca ? s->ca : "ca.pem"), NULL);
  bool checks_client = s->kind != HANGS_UP;
  SSL_CTX_set_verify(
      ctx, checks_client ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_NONE,
      NULL);
  if (s->kind != NO_ALPN) SSL_CTX_set_alpn_select_cb(ctx, pick_h2, NULL);
  return ctx;
}

/* Keeps the connection open until the client ends it, so that no reset overtakes an alert. */
static void wait_until_closed(int fd) {
  char sink[4096];
  shutdown(fd, SHUT_WR);
  while (read(fd, sink, sizeof sink) > 0) continue;
}

static void serve_tls(const server *s, SSL_CTX *ctx, int fd) {
  static const unsigned char settings[9] = {0, 0, 0, 4, 0, 0, 0, 0, 0};
  SSL *ssl = SSL_new(ctx);
  SSL_set_fd(ssl, fd);
  char sink[64];
  if (SSL_accept(ssl) == 1) {
    if (s->kind == CORRECT) SSL_write(ssl, settings, sizeof settings);
    if (s->kind != HANGS_UP) SSL_read(ssl, sink, sizeof sink);
  }
  wait_until_closed(fd);
  SSL_free(ssl);
}

static void serve_connections(const server *s, int listener) {
  signal(SIGPIPE, SIG_IGN);
  SSL_CTX *ctx = s->kind < NO_TLS ? make_server_context(s) : NULL;
  for (;;) {
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) _exit(1);
    if (s->kind == NO_TLS && write(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28) < 0) _exit(1);
    if (s->kind == NEVER_ANSWERS) pause();
    if (s->kind < NO_TLS)
      serve_tls(s, ctx, fd);
    else
      wait_until_closed(fd);
    close(fd);
  }
}

static int listen_on(bool is_ipv6, uint16_t *ret_port) {
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  struct sockaddr *a = is_ipv6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
  socklen_t len = is_ipv6 ? sizeof v6 : sizeof v4;
  int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, a, len) != 0 || listen(fd, 16) != 0 || getsockname(fd, a, &len) != 0) {
    if (fd >= 0) close(fd);
    return -1;
  }
  *ret_port = ntohs(is_ipv6 ? v6.sin6_port : v4.sin_port);
  return fd;
}

static server start_server(server s) {
  int listener = listen_on(s.is_ipv6, &s.port);
  if (listener < 0) {
    s.pid = -1;
    return s;
  }
  s.pid = fork();
  if (s.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve_connections(&s, listener);
  }
  close(listener);
  return s;
}

static void stop_server(const server *s) {
  kill(s->pid, SIGKILL);
  waitpid(s->pid, NULL, 0);
}

/* ---- identities of the probing client -------------------------------------------------------- */

static clv_tls_identity *valid_identity;

/* Returns an identity that loading would refuse, as a master with another clock or CA might
 * have. */
static clv_tls_identity *read_unchecked_identity(const char *ca, const char *cert,
                                                 const char *key) {
  clv_tls_identity *identity = calloc(1, sizeof *identity);
  identity->ca_pem = read_text(at(ca)).data;
  identity->cert_pem = read_text(at(cert)).data;
  identity->key_pem = read_text(at(key)).data;
  identity->not_before = (int64_t)(clv_wall_ms() / 1000) - DAY_S;
  identity->not_after = (int64_t)(clv_wall_ms() / 1000) + DAY_S + 60;
  return identity;
}

static clv_tls_probe_result probe_server(const server *s, const clv_tls_identity *identity,
                                         const char *expected_uri) {
  clv_tls_probe_result r;
  clv_err err;
  must(clv_tls_probe(s->is_ipv6 ? "::1" : "127.0.0.1", s->port, identity, expected_uri,
                     WAIT_LIMIT_MS, &r, &err),
       &err);
  return r;
}

static void assert_failure(const clv_tls_probe_result *r, clv_tls_step step, clv_code code,
                           const char *reason, const char *fix) {
  if (r->ok || r->failed_step != step || r->code != code || !strstr(r->reason, reason) ||
      !strstr(r->fix, fix))
    fail_msg("ok=%d step=%s code=%s\ncause: %s\nfix: %s\nwanted %s, %s, \"%s\", \"%s\"", r->ok,
             clv_tls_step_name(r->failed_step), clv_code_name(r->code), r->reason, r->fix,
             clv_tls_step_name(step), clv_code_name(code), reason, fix);
}

static clv_tls_probe_result assert_probe(server s, const clv_tls_identity *identity,
                                         clv_tls_step step, clv_code code, const char *reason,
                                         const char *fix) {
  s = start_server(s);
  clv_tls_probe_result r = probe_server(&s, identity, NULL);
  stop_server(&s);
  assert_failure(&r, step, code, reason, fix);
  assert_false(r.has_peer_accepted);
  return r;
}

/* ---- probes of correct servers --------------------------------------------------------------- */

static void assert_probe_succeeds(const server *s, const char *expected_uri) {
  clv_tls_probe_result r = probe_server(s, valid_identity, expected_uri);
  if (!r.ok) fail_msg("%s; %s", r.reason, r.fix);
  assert_true(r.has_peer_accepted);
  assert_int_equal(r.failed_step, CLV_TLS_DONE);
  assert_int_equal(r.code, CLV_OK);
  assert_string_equal(r.reason, "");
  assert_string_equal(r.clock_hint, "");
  assert_string_equal(r.peer_uri, "spiffe://cleave/worker-1");
  assert_string_equal(r.tls_version, "TLSv1.3");
  assert_int_equal(strncmp(r.cipher, "TLS_", 4), 0);
  assert_int_equal(r.peer_not_after, valid_identity->not_after);
  assert_int_equal(r.peer_not_before, valid_identity->not_before);
  char address[64];
  snprintf(address, sizeof address, s->is_ipv6 ? "[::1]:%u" : "127.0.0.1:%u", s->port);
  assert_string_equal(r.address, address);
  assert_true(r.connect_ms > 0 && r.handshake_ms > 0 && r.handshake_ms < WAIT_LIMIT_MS);
}

static void probe_of_a_good_peer_succeeds(void **state) {
  (void)state;
  server s = start_server((server){.kind = CORRECT});
  assert_probe_succeeds(&s, NULL);
  assert_probe_succeeds(&s, "spiffe://cleave/worker-1");
  stop_server(&s);
}

static void probe_over_ipv6_succeeds(void **state) {
  (void)state;
  server s = start_server((server){.kind = CORRECT, .is_ipv6 = true});
  if (s.pid < 0) {
    print_message("because there is no IPv6 loopback\n");
    skip();
  }
  assert_probe_succeeds(&s, NULL);
  clv_tls_probe_result r;
  clv_err err;
  must(clv_tls_probe("[::1]", s.port, valid_identity, NULL, WAIT_LIMIT_MS, &r, &err), &err);
  assert_true(r.ok);
  stop_server(&s);
}

/* Replaces getaddrinfo: "two.test" has two addresses, and nothing listens on the first. Other names
 * are resolved. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **ret) {
  int (*next_getaddrinfo)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
      NULL;
  *(void **)&next_getaddrinfo = dlsym(RTLD_NEXT, "getaddrinfo");
  if (strcmp(name, "two.test") != 0) return next_getaddrinfo(name, service, hints, ret);
  int rc = next_getaddrinfo("127.0.0.2", service, hints, ret);
  return rc ? rc : next_getaddrinfo("127.0.0.1", service, hints, &(*ret)->ai_next);
}

static void probe_tries_every_address(void **state) {
  (void)state;
  server s = start_server((server){.kind = CORRECT});
  clv_tls_probe_result r;
  clv_err err;
  must(clv_tls_probe("two.test", s.port, valid_identity, NULL, WAIT_LIMIT_MS, &r, &err), &err);
  stop_server(&s);
  if (!r.ok) fail_msg("%s", r.reason);
  assert_int_equal(strncmp(r.address, "127.0.0.1:", 10), 0);
}

static void silence_after_handshake_is_unconfirmed_success(void **state) {
  (void)state;
  server s = start_server((server){.kind = SENDS_NO_SETTINGS});
  uint64_t begin = clv_now_ns();
  clv_tls_probe_result r = probe_server(&s, valid_identity, NULL);
  uint64_t took_ms = (clv_now_ns() - begin) / 1000000;
  stop_server(&s);
  assert_true(r.ok);
  assert_false(r.has_peer_accepted);
  assert_in_range(took_ms, 290, 3000);
}

/* ---- probes that fail because of the network ------------------------------------------------- */

static void unresolvable_name_and_closed_port_are_named(void **state) {
  (void)state;
  clv_tls_probe_result r;
  clv_err err;
  must(clv_tls_probe("no-such-host.invalid", 1, valid_identity, NULL, WAIT_LIMIT_MS, &r, &err),
       &err);
  assert_failure(&r, CLV_TLS_RESOLVE, CLV_NOT_FOUND, "\"no-such-host.invalid\" does not resolve",
                 "check the spelling");
  server s = {0};
  close(listen_on(false, &s.port));
  r = probe_server(&s, valid_identity, NULL);
  assert_failure(&r, CLV_TLS_CONNECT, CLV_UNAVAILABLE, "Connection refused",
                 "is cleave-worker running");
  assert_int_equal(strncmp(r.address, "127.0.0.1:", 10), 0);
  expect_error(CLV_INVALID, "time-out of 0 ms",
               clv_tls_probe("127.0.0.1", 1, valid_identity, NULL, 0, &r, &err), &err);
}

static void peer_without_tls_or_http2_is_refused(void **state) {
  (void)state;
  assert_probe((server){.kind = NO_TLS}, valid_identity, CLV_TLS_HANDSHAKE, CLV_UNAVAILABLE,
               "no TLS 1.3", "is this port cleave-worker's?");
  assert_probe((server){.kind = NO_ALPN}, valid_identity, CLV_TLS_HANDSHAKE, CLV_UNAVAILABLE,
               "not HTTP/2", "is this port cleave-worker's?");
}

static void silent_peer_exceeds_the_deadline(void **state) {
  (void)state;
  server s = start_server((server){.kind = NEVER_ANSWERS});
  clv_tls_probe_result r;
  clv_err err;
  uint64_t begin = clv_now_ns();
  must(clv_tls_probe("127.0.0.1", s.port, valid_identity, NULL, 250, &r, &err), &err);
  uint64_t took_ms = (clv_now_ns() - begin) / 1000000;
  bool is_accepted;
  clv_code code =
      clv_tls_probe_version("127.0.0.1", s.port, CLV_TLS_1_3, NULL, 250, &is_accepted, &err);
  stop_server(&s);
  assert_failure(&r, CLV_TLS_HANDSHAKE, CLV_DEADLINE, "no TLS answer came in time", "stopped");
  assert_in_range(took_ms, 250, 2000);
  expect_error(CLV_DEADLINE, "no TLS answer in 250 ms", code, &err);
}

/* ---- errors in the peer's certificate -------------------------------------------------------- */

static void peer_of_another_ca_is_refused(void **state) {
  (void)state;
  assert_probe((server){.kind = CORRECT, .cert_file = "ca2/alien.pem", .key_file = "ca2/alien.key"},
               valid_identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
               "not issued by a CA of our tls.ca", "add the worker's CA to our tls.ca");
}

static void expired_or_early_peer_gets_a_clock_hint(void **state) {
  (void)state;
  clv_tls_probe_result r =
      assert_probe((server){.kind = CORRECT, .cert_file = "expired.pem", .key_file = "expired.key"},
                   valid_identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED, "has expired", "SIGHUP");
  if (!strstr(r.clock_hint, "ended 3 days ago")) fail_msg("hint: %s", r.clock_hint);
  assert_string_equal(r.peer_uri, "spiffe://cleave/worker-1");
  assert_int_equal(r.peer_not_after - r.peer_not_before, DAY_S);
  r = assert_probe((server){.kind = CORRECT, .cert_file = "early.pem", .key_file = "early.key"},
                   valid_identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED, "not valid yet",
                   "compare the clocks");
  if (!strstr(r.clock_hint, "begins in 2 hours")) fail_msg("hint: %s", r.clock_hint);
}

static void client_certificate_as_server_is_refused(void **state) {
  (void)state;
  assert_probe((server){.kind = CORRECT, .cert_file = "client.pem", .key_file = "client.key"},
               valid_identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
               "may not be used as a TLS server", "usage \"server\" or \"both\"");
}

static void peer_with_another_uri_is_refused(void **state) {
  (void)state;
  server s = start_server((server){.kind = CORRECT});
  clv_tls_probe_result r = probe_server(&s, valid_identity, "spiffe://cleave/worker-2");
  stop_server(&s);
  assert_failure(&r, CLV_TLS_IDENTITY, CLV_UNAUTHENTICATED,
                 "the peer is \"spiffe://cleave/worker-1\", but \"spiffe://cleave/worker-2\"",
                 "right host and port");
  assert_true(r.has_peer_accepted);
  s = start_server((server){.kind = CORRECT, .cert_file = "two.pem", .key_file = "two.key"});
  r = probe_server(&s, valid_identity, "spiffe://cleave/worker-1");
  stop_server(&s);
  assert_failure(&r, CLV_TLS_IDENTITY, CLV_UNAUTHENTICATED, "exactly one URI", "exactly one URI");
  s = start_server(
      (server){.kind = CORRECT, .cert_file = "spelled.pem", .key_file = "spelled.key"});
  r = probe_server(&s, valid_identity, "spiffe://cleave/worker-1");
  stop_server(&s);
  assert_failure(&r, CLV_TLS_IDENTITY, CLV_UNAUTHENTICATED, "exactly one URI", "exactly one URI");
}

/* ---- errors in the probing client's certificate ---------------------------------------------- */

static void unknown_ca_alert_suggests_tls_ca(void **state) {
  (void)state;
  clv_tls_identity *foreign_identity =
      read_unchecked_identity("ca.pem", "ca2/alien.pem", "ca2/alien.key");
  assert_probe((server){.kind = CORRECT}, foreign_identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
               "alert: unknown ca", "is our CA in the worker's tls.ca?");
  clv_tls_identity_free(foreign_identity);
}

static void certificate_alert_gets_an_expiry_or_clock_hint(void **state) {
  (void)state;
  clv_tls_identity *identity = read_unchecked_identity("ca.pem", "expired.pem", "expired.key");
  clv_tls_probe_result r =
      assert_probe((server){.kind = CORRECT}, identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
                   "alert: certificate expired", "issue a new certificate");
  /* The certificate is still valid by this machine's clock, so the other machine's clock may be
   * wrong. */
  if (!strstr(r.clock_hint, "has 1 day left")) fail_msg("hint: %s", r.clock_hint);
  clv_tls_identity_free(identity);
  identity = read_unchecked_identity("ca.pem", "signing.pem", "signing.key");
  assert_probe((server){.kind = CORRECT}, identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
               "alert: unsupported certificate", "usage \"client\" or \"both\"");
  clv_tls_identity_free(identity);
  identity = read_unchecked_identity("ca.pem", "early.pem", "early.key");
  identity->not_before = (int64_t)(clv_wall_ms() / 1000) - 61;
  r = assert_probe((server){.kind = CORRECT}, identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
                   "alert: bad certificate", "compare clocks");
  if (!strstr(r.clock_hint, "began 1 minute ago")) fail_msg("hint: %s", r.clock_hint);
  clv_tls_identity_free(identity);
}

/* gRPC-C 1.51 sends no alert when it refuses a certificate: it closes the connection. */
static void close_without_alert_suggests_tls_ca(void **state) {
  (void)state;
  assert_probe((server){.kind = HANGS_UP}, valid_identity, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
               "closed the connection when it had our certificate",
               "is our CA in the worker's tls.ca");
}

/* ---- TLS versions that a server accepts ------------------------------------------------------ */

static bool accepts_version(const server *s, clv_tls_version version,
                            const clv_tls_identity *identity) {
  bool is_accepted = false;
  clv_err err;
  must(clv_tls_probe_version("127.0.0.1", s->port, version, identity, WAIT_LIMIT_MS, &is_accepted,
                             &err),
       &err);
  return is_accepted;
}

static void good_peer_accepts_only_tls13(void **state) {
  (void)state;
  server s = start_server((server){.kind = CORRECT});
  assert_false(accepts_version(&s, CLV_TLS_1_2, valid_identity));
  assert_false(accepts_version(&s, CLV_TLS_1_2, NULL));
  assert_true(accepts_version(&s, CLV_TLS_1_3, valid_identity));
  /* the server refuses the certificate, but not the version */
  assert_true(accepts_version(&s, CLV_TLS_1_3, NULL));
  stop_server(&s);
}

static void old_peer_accepts_only_tls12(void **state) {
  (void)state;
  server s = start_server((server){.kind = CORRECT, .tls_version = TLS1_2_VERSION});
  assert_true(accepts_version(&s, CLV_TLS_1_2, valid_identity));
  assert_true(accepts_version(&s, CLV_TLS_1_2, NULL));
  assert_false(accepts_version(&s, CLV_TLS_1_3, valid_identity));
  clv_tls_probe_result r = probe_server(&s, valid_identity, NULL);
  stop_server(&s);
  assert_failure(&r, CLV_TLS_HANDSHAKE, CLV_UNAVAILABLE, "does not speak TLS 1.3",
                 "no current cleave-worker");
}

static void version_probe_without_a_tls_peer_fails(void **state) {
  (void)state;
  bool is_accepted = true;
  clv_err err;
  server s = {0};
  close(listen_on(false, &s.port));
  expect_error(CLV_UNAVAILABLE, "Connection refused",
               clv_tls_probe_version("127.0.0.1", s.port, CLV_TLS_1_2, NULL, WAIT_LIMIT_MS,
                                     &is_accepted, &err),
               &err);
  assert_true(is_accepted); /* the failed probe has not changed the result */
  s = start_server((server){.kind = NO_TLS});
  assert_false(accepts_version(&s, CLV_TLS_1_2, NULL));
  assert_false(accepts_version(&s, CLV_TLS_1_3, NULL));
  stop_server(&s);
}

/* ---- set-up of the tests --------------------------------------------------------------------- */

static void issue_unusual_certificate(const char *name, int days, int64_t offset, unsigned usage) {
  clv_tls_issue_options o = make_valid_options(name);
  o.validity_days = days;
  o.not_before_offset_s = offset;
  o.usage = usage;
  o.allow_unusual = true;
  issue_certificate(o);
}

static int set_up(void **state) {
  static const char *const two[] = {"spiffe://cleave/worker-1", "spiffe://cleave/worker-2"};
  clv_err err;
  if (clv_tls_set_min_version(&err) != CLV_OK || scratch_setup(state) != 0) return -1;
  must(clv_tls_ca_init(scratch, "unit test CA", 400, &err), &err);
  must(clv_tls_ca_init(at("ca2"), "another CA", 400, &err), &err);
  issue_certificate(make_valid_options("good"));
  issue_unusual_certificate("expired", 1, -4 * DAY_S, 0);
  issue_unusual_certificate("early", 9, 2 * 3600 + 60, 0);
  issue_unusual_certificate("client", 9, -300, CLV_TLS_CLIENT);
  issue_unusual_certificate("signing", 9, -300, CLV_TLS_CODE_SIGNING);
  clv_tls_issue_options o = make_valid_options("two");
  o.uris = two;
  o.n_uris = 2;
  o.allow_unusual = true;
  issue_certificate(o);
  o = make_valid_options("spelled");
  o.dns_names = two;
  o.n_dns_names = 1;
  o.n_uris = 0;
  o.allow_unusual = true;
  issue_certificate(o);
  o = make_valid_options("alien");
  o.ca_dir = at("ca2");
  issue_certificate(o);
  must(clv_tls_identity_load(at("ca.pem"), at("good.pem"), at("good.key"), &valid_identity, &err),
       &err);
  return 0;
}

static int tear_down(void **state) {
  clv_tls_identity_freep(&valid_identity);
  return scratch_teardown(state);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(probe_of_a_good_peer_succeeds),
    cmocka_unit_test(probe_over_ipv6_succeeds),
    cmocka_unit_test(probe_tries_every_address),
    cmocka_unit_test(silence_after_handshake_is_unconfirmed_success),
    cmocka_unit_test(unresolvable_name_and_closed_port_are_named),
    cmocka_unit_test(peer_without_tls_or_http2_is_refused),
    cmocka_unit_test(silent_peer_exceeds_the_deadline),
    cmocka_unit_test(peer_of_another_ca_is_refused),
    cmocka_unit_test(expired_or_early_peer_gets_a_clock_hint),
    cmocka_unit_test(client_certificate_as_server_is_refused),
    cmocka_unit_test(peer_with_another_uri_is_refused),
    cmocka_unit_test(unknown_ca_alert_suggests_tls_ca),
    cmocka_unit_test(certificate_alert_gets_an_expiry_or_clock_hint),
    cmocka_unit_test(close_without_alert_suggests_tls_ca),
    cmocka_unit_test(good_peer_accepts_only_tls13),
    cmocka_unit_test(old_peer_accepts_only_tls12),
    cmocka_unit_test(version_probe_without_a_tls_peer_fails),
};

int main(void) { return cmocka_run_group_tests(tests, set_up, tear_down); }
