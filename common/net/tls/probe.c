/* SPDX-License-Identifier: Apache-2.0
 *
 * Probing client of `doctor`. Runs a handshake over memory BIOs, so that every wait has a deadline
 * and a closed connection raises no SIGPIPE, and explains the result to the user.
 */
#include "common/net/tls/tls_int.h"

#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TIMEOUT_MS = 600000, CONFIRM_MS = 300, CLOSE_TO_START_S = 600 };

static const char *const step_names[] = {"resolve", "connect", "handshake", "identity", "done"};

const char *clv_tls_step_name(clv_tls_step step) {
  return (unsigned)step < CLV_COUNT(step_names) ? step_names[step] : "unknown";
}

/* ---- one connection of the probe ------------------------------------------------------------- */

typedef struct prober {
  clv_tls_socket socket;
  SSL_CTX *ctx;
  SSL *ssl;
  BIO *in, *out;      /* memory that OpenSSL reads from and writes to, owned by ssl */
  bool has_eof;       /* the peer closed the TCP connection */
  X509 *peer_cert;    /* the peer's leaf, verified or not */
  int verify_error;   /* X509_V_OK, or the first error of the peer's chain */
  int received_alert; /* the fatal alert received; -1: none */
} prober;

static void prober_clear(prober *p) {
  SSL_free(p->ssl);
  SSL_CTX_free(p->ctx);
  X509_free(p->peer_cert);
  clv_tls_hang_up(&p->socket);
}

/* Stores the peer's leaf even if its chain is refused, because the report shows its times. */
static int on_verify(int ok, X509_STORE_CTX *ctx) {
  SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
  prober *p = SSL_get_app_data(ssl);
  X509 *leaf = X509_STORE_CTX_get0_cert(ctx);
  if (!p->peer_cert && leaf && X509_up_ref(leaf)) p->peer_cert = leaf;
  ok = clv_tls_revocation_verify(ok, ctx);
  if (!ok && p->verify_error == X509_V_OK) p->verify_error = X509_STORE_CTX_get_error(ctx);
  return ok;
}

static void record_alert(const SSL *ssl, int where, int value) {
  prober *p = SSL_get_app_data(ssl);
  if ((where & SSL_CB_READ_ALERT) == SSL_CB_READ_ALERT && (value >> 8) == SSL3_AL_FATAL)
    p->received_alert = value & 0xff;
}

static clv_code fail_ossl(clv_err *err, const char *what) {
  char why[CLV_TLS_ERROR_LEN];
  return clv_fail(err, CLV_INTERNAL, "%s: %s", what, clv_tls_openssl_reason(why));
}

static clv_code set_identity(SSL_CTX *ctx, const clv_tls_identity *identity, clv_err *err) {
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *ca = NULL;
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *chain = NULL;
  CLV_AUTO(clv_pkey_freep) EVP_PKEY *key = NULL;
  CLV_TRY(clv_tls_certs_parse(identity->ca_pem, strlen(identity->ca_pem), "our CA", &ca, err));
  CLV_TRY(clv_tls_certs_parse(identity->cert_pem, strlen(identity->cert_pem), "our certificate",
                              &chain, err));
  CLV_TRY(clv_tls_key_parse(identity->key_pem, "our key", &key, err));
  bool ok = SSL_CTX_use_certificate(ctx, sk_X509_value(chain, 0)) == 1 &&
            SSL_CTX_use_PrivateKey(ctx, key) == 1;
  for (int i = 1; ok && i < sk_X509_num(chain); i++)
    ok = SSL_CTX_add1_chain_cert(ctx, sk_X509_value(chain, i)) == 1;
  for (int i = 0; ok && i < sk_X509_num(ca); i++)
    ok = X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), sk_X509_value(ca, i)) == 1;
  return ok ? CLV_OK : fail_ossl(err, "OpenSSL refused our identity");
}

/* Makes a context that offers one version, also below the minimum version of the process. */
static clv_code make_context(prober *p, int version, const clv_tls_identity *identity,
                             clv_err *err) {
  static const unsigned char alpn_h2[] = {2, 'h', '2'};
  p->ctx = SSL_CTX_new(TLS_client_method());
  if (!p->ctx) return fail_ossl(err, "no TLS context");
  SSL_CTX_clear_options(p->ctx, SSL_OP_NO_TLSv1_2 | SSL_OP_NO_TLSv1_3);
  /* SSL_CTX_set_alpn_protos returns 0 for success, the others 1. */
  if (SSL_CTX_set_min_proto_version(p->ctx, version) != 1 ||
      SSL_CTX_set_max_proto_version(p->ctx, version) != 1 ||
      SSL_CTX_set_alpn_protos(p->ctx, alpn_h2, sizeof alpn_h2) != 0)
    return fail_ossl(err, "OpenSSL refused the TLS version");
  SSL_CTX_set_session_cache_mode(p->ctx, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_info_callback(p->ctx, record_alert);
  return identity ? set_identity(p->ctx, identity, err) : CLV_OK;
}

static clv_code make_connection(prober *p, const char *host, bool verifies_peer, clv_err *err) {
  p->ssl = SSL_new(p->ctx);
  BIO *in = BIO_new(BIO_s_mem());
  BIO *out = BIO_new(BIO_s_mem());
  if (!p->ssl || !in || !out) {
    BIO_free(in);
    BIO_free(out);
    return fail_ossl(err, "no TLS connection object");
  }
  SSL_set_bio(p->ssl, in, out);
  p->in = in;
  p->out = out;
  SSL_set_app_data(p->ssl, p);
  SSL_set_connect_state(p->ssl);
  SSL_set_verify(p->ssl, verifies_peer ? SSL_VERIFY_PEER : SSL_VERIFY_NONE,
                 verifies_peer ? on_verify : NULL);
  /* Send the host's name in the ClientHello, but not an address (RFC 6066). A failure is
   * harmless. */
  if (strspn(host, "0123456789.") != strlen(host) && !strchr(host, ':'))
    (void)SSL_set_tlsext_host_name(p->ssl, host);
  return CLV_OK;
}

/* ---- running a handshake --------------------------------------------------------------------- */

typedef enum outcome { STEP_DONE, STEP_FAILED, STEP_PEER_CLOSED, STEP_TIMED_OUT } outcome;

static int try_handshake(prober *p) { return SSL_do_handshake(p->ssl); }

/* Succeeds when an HTTP/2 server that accepted us sends its first byte (SETTINGS; RFC 9113,
 * 3.4). */
static int try_first_byte(prober *p) {
  char byte;
  return SSL_peek(p->ssl, &byte, 1);
}

/* Sends OpenSSL's output. A failed send is ignored, because the next read shows that the peer
 * closed. */
static void send_output(prober *p, uint64_t deadline_ns) {
  char *data = NULL;
  long len = BIO_get_mem_data(p->out, &data);
  if (len > 0) (void)clv_tls_send(&p->socket, data, (size_t)len, deadline_ns);
  (void)BIO_reset(p->out);
}

/* Repeats `step` until it succeeds (returns 1) or cannot. */
static outcome repeat_until_done(prober *p, int (*step)(prober *), uint64_t deadline_ns) {
  for (;;) {
    ERR_clear_error();
    int rc = step(p);
    int state = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(p->ssl, rc);
    send_output(p, deadline_ns);
    if (rc == 1) return STEP_DONE;
    if (p->has_eof) return STEP_PEER_CLOSED;
    if (state != SSL_ERROR_WANT_READ)
      return state == SSL_ERROR_ZERO_RETURN ? STEP_PEER_CLOSED : STEP_FAILED;
    char data[4096];
    int n = clv_tls_recv(&p->socket, data, sizeof data, deadline_ns);
    if (n < 0) return STEP_TIMED_OUT;
    p->has_eof = n == 0;
    if (n > 0 && BIO_write(p->in, data, n) != n) return STEP_FAILED;
  }
}

/* ---- explaining a result --------------------------------------------------------------------- */

typedef struct finding {
  int error_number; /* an alert or an X509_V_ERR; -1 ends a table and is the default */
  clv_code code;
  const char *reason, *fix;
} finding;

/* Alerts that the peer may send about our certificate or handshake (RFC 8446, 6.2). */
static const finding alerts[] = {
    {.error_number = SSL_AD_HANDSHAKE_FAILURE,
     .code = CLV_UNAVAILABLE,
     .reason = "the peer found no common TLS settings (alert: handshake failure)",
     .fix = "it must speak TLS 1.3 with a standard cipher; is this port cleave-worker's?"},
    {.error_number = SSL_AD_BAD_CERTIFICATE,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer refused our certificate (alert: bad certificate)",
     .fix = "our certificate may not be valid yet by the peer's clock, or be damaged: compare "
            "clocks, and "
            "look at it with certs show"},
    {.error_number = SSL_AD_UNSUPPORTED_CERTIFICATE,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer refused our certificate for its kind (alert: unsupported certificate)",
     .fix = "the certificate must allow TLS client in its extended key usage: issue it again with "
            "usage "
            "\"client\" or \"both\""},
    {.error_number = SSL_AD_CERTIFICATE_REVOKED,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer says that our certificate is revoked (alert: certificate revoked)",
     .fix = "issue a new certificate"},
    {.error_number = SSL_AD_CERTIFICATE_EXPIRED,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer says that our certificate has expired (alert: certificate expired)",
     .fix =
         "issue a new certificate; if certs show says that it is valid, the peer's clock is ahead"},
    {.error_number = SSL_AD_CERTIFICATE_UNKNOWN,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer refused our certificate (alert: certificate unknown)",
     .fix = "the peer's log says why; is our CA in its tls.ca?"},
    {.error_number = SSL_AD_UNKNOWN_CA,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer refused our certificate: it does not know the CA (alert: unknown ca)",
     .fix = "is our CA in the worker's tls.ca?"},
    {.error_number = SSL_AD_ACCESS_DENIED,
     .code = CLV_DENIED,
     .reason = "the peer denied access (alert: access denied)",
     .fix = "is our URI in the worker's allow table?"},
    {.error_number = SSL_AD_DECRYPT_ERROR,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer could not check our signature (alert: decrypt error)",
     .fix = "was another CA made under the same name? Then issue the certificate again, and give "
            "both "
            "sides the new ca.pem"},
    {.error_number = SSL_AD_PROTOCOL_VERSION,
     .code = CLV_UNAVAILABLE,
     .reason = "the peer does not speak TLS 1.3 (alert: protocol version)",
     .fix = "it is no current cleave-worker, or something between the hosts ends TLS"},
    {.error_number = SSL_AD_INSUFFICIENT_SECURITY,
     .code = CLV_UNAVAILABLE,
     .reason = "the peer wants stronger settings (alert: insufficient security)",
     .fix = "look at the OpenSSL configuration of both hosts"},
    {.error_number = SSL_AD_UNRECOGNIZED_NAME,
     .code = CLV_UNAVAILABLE,
     .reason = "the peer does not know the host name (alert: unrecognized name)",
     .fix = "something between the hosts routes by name: dial the worker itself"},
    {.error_number = SSL_AD_CERTIFICATE_REQUIRED,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer got no certificate from us (alert: certificate required)",
     .fix = "set tls.cert and tls.key"},
    {.error_number = SSL_AD_NO_APPLICATION_PROTOCOL,
     .code = CLV_UNAVAILABLE,
     .reason = "the peer does not speak HTTP/2 (alert: no application protocol)",
     .fix = "is this port cleave-worker's?"},
    {.error_number = -1,
     .code = CLV_UNAVAILABLE,
     .reason = "the peer ended the handshake",
     .fix = "the peer's log says why"},
};

/* OpenSSL's errors about the peer's certificate chain, with reason and fix. */
static const finding chain_findings[] = {
    {.error_number = X509_V_ERR_CERT_HAS_EXPIRED,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate has expired",
     .fix = "issue a new one and have the worker load it (SIGHUP); if it should be valid, compare "
            "clocks"},
    {.error_number = X509_V_ERR_CERT_NOT_YET_VALID,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate is not valid yet",
     .fix = "compare the clocks of this host, the worker and the host that issued it"},
    {.error_number = X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate was not issued by a CA of our tls.ca",
     .fix = "add the worker's CA to our tls.ca, or issue the worker a certificate from ours"},
    {.error_number = X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate comes from a CA that is not in our tls.ca",
     .fix = "add the worker's CA to our tls.ca, or issue the worker a certificate from ours"},
    {.error_number = X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate is self-signed",
     .fix = "issue the worker a certificate from our CA"},
    {.error_number = X509_V_ERR_CERT_SIGNATURE_FAILURE,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate carries a signature that our CA did not make",
     .fix = "another CA was made under the same name: issue the worker's certificate again"},
    {.error_number = X509_V_ERR_INVALID_PURPOSE,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate may not be used as a TLS server",
     .fix = "issue it again with usage \"server\" or \"both\""},
    {.error_number = X509_V_ERR_EE_KEY_TOO_SMALL,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's key is too weak",
     .fix = "issue the worker a certificate with an EC P-256 or RSA 2048 key"},
    {.error_number = X509_V_ERR_CERT_REVOKED,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate is revoked by the list of our tls.crl",
     .fix = "issue the worker a new one and have it load that (SIGHUP)"},
    {.error_number = X509_V_ERR_CRL_HAS_EXPIRED,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the list of our tls.crl has ended, or is not of the CA of the peer's certificate",
     .fix = "make a new list (certs revoke) and install it"},
    {.error_number = -1,
     .code = CLV_UNAUTHENTICATED,
     .reason = "the peer's certificate is refused",
     .fix = "look at it with certs show on the worker"},
};

/* Alerts after the handshake: refusals of cleave-worker's admission (accepted.c). */
static const finding refusals[] = {
    {.error_number = SSL_AD_HANDSHAKE_FAILURE,
     .code = CLV_DENIED,
     .reason = "the worker refuses this identity: it is not in its allow table",
     .fix = "add our URI to `allow` in its worker.yaml"},
    {.error_number = SSL_AD_INTERNAL_ERROR,
     .code = CLV_EXHAUSTED,
     .reason = "the worker takes no more connections of this identity: over its quota "
               "(allow[].connections, limits.identity_connections), no place is left "
               "(limits.connections), or its list of revoked certificates has ended (tls.crl)",
     .fix = "end other connections of this identity, or raise that limit in its worker.yaml"},
    {.error_number = -1},
};

static const finding *find_finding(const finding *table, int what) {
  while (table->error_number != -1 && table->error_number != what) table++;
  return table;
}

static void CLV_PRINTF(5, 6) report_failure(clv_tls_probe_result *r, clv_tls_step step,
                                            clv_code code, const char *fix, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(r->reason, sizeof r->reason, fmt, ap);
  va_end(ap);
  snprintf(r->fix, sizeof r->fix, "%s", fix);
  r->failed_step = step;
  r->code = code;
}

static void report_chain_error(const prober *p, clv_tls_probe_result *r) {
  const finding *f = find_finding(chain_findings, p->verify_error);
  report_failure(r, CLV_TLS_HANDSHAKE, f->code, f->fix, "%s (%s)", f->reason,
                 X509_verify_cert_error_string(p->verify_error));
}

static void report_alert(const prober *p, clv_tls_probe_result *r) {
  const finding *f = find_finding(alerts, p->received_alert);
  if (f->error_number != -1)
    report_failure(r, CLV_TLS_HANDSHAKE, f->code, f->fix, "%s", f->reason);
  else
    report_failure(r, CLV_TLS_HANDSHAKE, f->code, f->fix, "%s (alert %d: %s)", f->reason,
                   p->received_alert, SSL_alert_desc_string_long(p->received_alert));
}

/* Reports why the handshake failed. */
static void explain_failed_handshake(const prober *p, outcome end, clv_tls_probe_result *r) {
  char why[CLV_TLS_ERROR_LEN];
  clv_tls_openssl_reason(why);
  if (p->received_alert >= 0) {
    report_alert(p, r);
  } else if (p->verify_error != X509_V_OK) {
    report_chain_error(p, r);
  } else if (end == STEP_TIMED_OUT) {
    report_failure(
        r, CLV_TLS_HANDSHAKE, CLV_DEADLINE,
        "is this port cleave-worker's? A worker out of connections or stopped looks like this",
        "TCP connects, but no TLS answer came in time");
  } else if (end == STEP_PEER_CLOSED) {
    report_failure(r, CLV_TLS_HANDSHAKE, CLV_UNAVAILABLE,
                   "is this port cleave-worker's? The worker's log may say more",
                   "the peer closed the connection during the handshake");
  } else {
    report_failure(r, CLV_TLS_HANDSHAKE, CLV_UNAVAILABLE,
                   "is this port cleave-worker's? The answer is not a TLS 1.3 server's",
                   "no TLS 1.3: %s", why);
  }
}

/* Reports why the peer closed after our side of the handshake: it refused our certificate. */
static void explain_refusal(const prober *p, clv_tls_probe_result *r) {
  const finding *f = find_finding(refusals, p->received_alert);
  if (f->error_number != -1) {
    report_failure(r, CLV_TLS_HANDSHAKE, f->code, f->fix, "%s", f->reason);
    return;
  }
  if (p->received_alert >= 0) {
    report_alert(p, r);
    return;
  }
  report_failure(
      r, CLV_TLS_HANDSHAKE, CLV_UNAUTHENTICATED,
      "is our CA in the worker's tls.ca, and our certificate valid by its clock and allowed as "
      "a TLS client?",
      "the peer closed the connection when it had our certificate: most likely it refused it");
}

static void store_peer_cert(const prober *p, clv_tls_probe_result *r) {
  if (!p->peer_cert) return;
  if (clv_tls_uri_of_x509(p->peer_cert, r->peer_uri, sizeof r->peer_uri, NULL) != CLV_OK)
    r->peer_uri[0] = '\0';
  (void)clv_tls_asn1_seconds(X509_get0_notBefore(p->peer_cert), &r->peer_not_before);
  (void)clv_tls_asn1_seconds(X509_get0_notAfter(p->peer_cert), &r->peer_not_after);
  ERR_clear_error();
}

static bool has_refused_us(const prober *p, const clv_tls_probe_result *r) {
  return r->failed_step == CLV_TLS_HANDSHAKE && r->code == CLV_UNAUTHENTICATED &&
         p->verify_error == X509_V_OK;
}

static void store_clock_hint(const prober *p, const clv_tls_identity *identity,
                             clv_tls_probe_result *r) {
  char span[CLV_TLS_TIME_TEXT], when[CLV_TLS_TIME_TEXT];
  int64_t now = clv_tls_now();
  clv_tls_format_time(now, when);
  if (p->peer_cert && now < r->peer_not_before)
    snprintf(r->clock_hint, sizeof r->clock_hint,
             "the peer's certificate begins in %s; our clock says %s and may be behind",
             clv_tls_format_duration(r->peer_not_before - now, span), when);
  else if (p->peer_cert && now > r->peer_not_after)
    snprintf(r->clock_hint, sizeof r->clock_hint,
             "the peer's certificate ended %s ago; our clock says %s and may be ahead",
             clv_tls_format_duration(now - r->peer_not_after, span), when);
  else if (p->received_alert == SSL_AD_CERTIFICATE_EXPIRED && now <= identity->not_after)
    snprintf(r->clock_hint, sizeof r->clock_hint,
             "by our clock (%s) our certificate has %s left, so the peer's may be ahead", when,
             clv_tls_format_duration(identity->not_after - now, span));
  else if (has_refused_us(p, r) && now - identity->not_before < CLOSE_TO_START_S)
    snprintf(r->clock_hint, sizeof r->clock_hint,
             "our certificate began %s ago; a peer whose clock is behind ours (%s) by more refuses "
             "it",
             clv_tls_format_duration(now - identity->not_before, span), when);
}

/* ---- running the probe ----------------------------------------------------------------------- */

static clv_code check_timeout(uint32_t timeout_ms, clv_err *err) {
  if (timeout_ms >= 1 && timeout_ms <= MAX_TIMEOUT_MS) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "a time-out of %u ms; it must be 1 to %d", timeout_ms,
                  MAX_TIMEOUT_MS);
}

static void check_peer_identity(const char *expected_uri, clv_tls_probe_result *r) {
  if (!*r->peer_uri)
    report_failure(r, CLV_TLS_IDENTITY, CLV_UNAUTHENTICATED,
                   "issue the worker a certificate with exactly one URI",
                   "the peer's certificate is valid, but does not carry exactly one URI");
  else if (expected_uri && strcmp(expected_uri, r->peer_uri) != 0)
    report_failure(
        r, CLV_TLS_IDENTITY, CLV_UNAUTHENTICATED,
        "is this the right host and port? Otherwise correct the identity in the session file",
        "the peer is \"%.100s\", but \"%.100s\" is expected", r->peer_uri, expected_uri);
}

static void store_version_and_cipher(const prober *p, clv_tls_probe_result *r) {
  snprintf(r->tls_version, sizeof r->tls_version, "%s", SSL_get_version(p->ssl));
  snprintf(r->cipher, sizeof r->cipher, "%s", SSL_get_cipher_name(p->ssl));
}

static bool has_negotiated_h2(const prober *p) {
  const unsigned char *name = NULL;
  unsigned len = 0;
  SSL_get0_alpn_selected(p->ssl, &name, &len);
  return len == 2 && memcmp(name, "h2", 2) == 0;
}

/* Waits for the peer's answer to our certificate, which follows the handshake. */
static void await_peer_verdict(prober *p, uint64_t deadline_ns, clv_tls_probe_result *r) {
  double wait_ms = CLV_MAX((double)CONFIRM_MS, 3 * r->connect_ms);
  uint64_t until = clv_now_ns() + (uint64_t)(wait_ms * 1e6);
  outcome end = repeat_until_done(p, try_first_byte, CLV_MIN(until, deadline_ns));
  if (end == STEP_DONE)
    r->has_peer_accepted = true;
  else if (end != STEP_TIMED_OUT)
    explain_refusal(p, r);
}

static void run_handshake(prober *p, uint64_t deadline_ns, clv_tls_probe_result *r) {
  uint64_t start = clv_now_ns();
  outcome end = repeat_until_done(p, try_handshake, deadline_ns);
  r->handshake_ms = (double)(clv_now_ns() - start) / 1e6;
  if (end != STEP_DONE) {
    explain_failed_handshake(p, end, r);
    return;
  }
  store_version_and_cipher(p, r);
  if (has_negotiated_h2(p))
    await_peer_verdict(p, deadline_ns, r);
  else
    report_failure(r, CLV_TLS_HANDSHAKE, CLV_UNAVAILABLE, "is this port cleave-worker's?",
                   "the peer speaks TLS 1.3, but not HTTP/2");
}

clv_code clv_tls_probe(const char *host, uint16_t port, const clv_tls_identity *identity,
                       const char *expected_uri, uint32_t timeout_ms, clv_tls_probe_result *ret,
                       clv_err *err) {
  CLV_TRY(check_timeout(timeout_ms, err));
  uint64_t deadline_ns = clv_now_ns() + (uint64_t)timeout_ms * 1000000u;
  CLV_AUTO(prober_clear) prober p = {.socket.fd = -1, .received_alert = -1};
  CLV_TRY(make_context(&p, TLS1_3_VERSION, identity, err));
  CLV_TRY(make_connection(&p, host, true, err));
  clv_tls_probe_result r = {.failed_step = CLV_TLS_DONE};
  clv_err why;
  clv_code code = clv_tls_dial(host, port, deadline_ns, &p.socket, &why);
  memcpy(r.address, p.socket.address, sizeof r.address);
  r.connect_ms = p.socket.connect_ms;
  if (code != CLV_OK)
    report_failure(&r, code == CLV_NOT_FOUND ? CLV_TLS_RESOLVE : CLV_TLS_CONNECT, code,
                   p.socket.fix, "%s", why.text);
  else
    run_handshake(&p, deadline_ns, &r);
  store_peer_cert(&p, &r);
  if (code == CLV_OK && r.failed_step == CLV_TLS_DONE) check_peer_identity(expected_uri, &r);
  r.ok = r.failed_step == CLV_TLS_DONE;
  if (code == CLV_OK) store_clock_hint(&p, identity, &r);
  ERR_clear_error();
  *ret = r;
  return CLV_OK;
}

bool clv_tls_split_address(const char *address, char host[256], uint16_t *ret_port) {
  const char *colon = strrchr(address, ':');
  if (!colon || colon == address || (size_t)(colon - address) >= 256) return false;
  size_t n = (size_t)(colon - address);
  bool has_brackets = address[0] == '[' && colon[-1] == ']';
  snprintf(host, 256, "%.*s", (int)(n - (has_brackets ? 2 : 0)), address + has_brackets);
  *ret_port = (uint16_t)strtoul(colon + 1, NULL, 10);
  return *ret_port != 0;
}

void clv_tls_explain_refusal(const char *address, const clv_tls_identity *identity,
                             uint32_t timeout_ms, clv_err *err) {
  clv_err ignored;
  clv_tls_probe_result r;
  char host[256];
  uint16_t port;
  /* an error with one of these codes is no refusal by the worker */
  if (err->code == CLV_DEADLINE || err->code == CLV_CANCELLED) return;
  if (!clv_tls_split_address(address, host, &port)) return;
  timeout_ms = CLV_MAX(1u, CLV_MIN(timeout_ms, (uint32_t)MAX_TIMEOUT_MS));
  if (clv_tls_probe(host, port, identity, NULL, timeout_ms, &r, &ignored) != CLV_OK) return;
  bool is_reported = r.code == CLV_DENIED || r.code == CLV_EXHAUSTED || strstr(r.reason, "revoked");
  if (is_reported && r.failed_step == CLV_TLS_HANDSHAKE)
    clv_fail(err, r.code, "%s: %s", address, r.reason);
}

/* ---- probing one TLS version ----------------------------------------------------------------- */

clv_code clv_tls_probe_version(const char *host, uint16_t port, clv_tls_version version,
                               const clv_tls_identity *identity, uint32_t timeout_ms,
                               bool *ret_accepted, clv_err *err) {
  CLV_TRY(check_timeout(timeout_ms, err));
  uint64_t deadline_ns = clv_now_ns() + (uint64_t)timeout_ms * 1000000u;
  CLV_AUTO(prober_clear) prober p = {.socket.fd = -1, .received_alert = -1};
  int openssl_version = version == CLV_TLS_1_2 ? TLS1_2_VERSION : TLS1_3_VERSION;
  CLV_TRY(make_context(&p, openssl_version, identity, err));
  CLV_TRY(make_connection(&p, host, false, err));
  CLV_TRY(clv_tls_dial(host, port, deadline_ns, &p.socket, err));
  outcome end = repeat_until_done(&p, try_handshake, deadline_ns);
  /* OpenSSL sets a cipher only after it has accepted a ServerHello of this version. */
  bool is_accepted = SSL_get_current_cipher(p.ssl) != NULL;
  ERR_clear_error();
  if (end == STEP_TIMED_OUT && !is_accepted)
    return clv_fail(err, CLV_DEADLINE, "%s: no TLS answer in %u ms", p.socket.address, timeout_ms);
  *ret_accepted = is_accepted;
  return CLV_OK;
}
