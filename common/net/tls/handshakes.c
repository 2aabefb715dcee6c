/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of how handshakes of this process end. gRPC 1.51 reports no failed handshakes, so this
 * file registers extra data for OpenSSL's contexts and connection objects: OpenSSL calls
 * on_context_new, on_ssl_new and on_ssl_free, and passes every message and alert of a connection to
 * on_message. The extra data itself is the state, a number and not a pointer, so nothing is
 * allocated.
 *
 * on_ssl_new cannot set up the connection object: OpenSSL 3.2 and later call it before the object
 * has its values. A context is complete enough in on_context_new, and a connection at its first
 * message.
 */
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/net/tls/tls_int.h"

typedef enum stage { STAGE_SILENT, STAGE_HANDSHAKING, STAGE_DONE, STAGE_FAILED } stage;

/* failed and completed handshakes; index 1: as server, 0: as client */
static atomic_uint_fast64_t n_failed[2][CLV_TLS_FAILURES], n_completed[2];
static _Atomic uint64_t handshake_limit_ms;
static int ex_data_index = -1;

/* ---- extra data: start of the handshake, ms, and its stage ----------------------------------- */

static void *pack_state(uint64_t began_ms, stage s) {
  return (void *)(uintptr_t)(began_ms << 2 | (uint64_t)s);
}
static uint64_t start_ms_of(const void *d) { return (uint64_t)(uintptr_t)d >> 2; }
static stage stage_of(const void *d) { return (stage)((uintptr_t)d & 3); }

static void set_stage(SSL *ssl, stage s) {
  SSL_set_ex_data(ssl, ex_data_index,
                  pack_state(start_ms_of(SSL_get_ex_data(ssl, ex_data_index)), s));
}

/* ---- reasons of failed handshakes ------------------------------------------------------------ */

static const struct {
  uint8_t alert;
  clv_tls_failure failure;
} alert_failures[] = {
    {SSL_AD_CERTIFICATE_EXPIRED, CLV_TLS_FAILURE_EXPIRED},
    {SSL_AD_UNKNOWN_CA, CLV_TLS_FAILURE_UNKNOWN_CA},
    {SSL_AD_CERTIFICATE_REQUIRED, CLV_TLS_FAILURE_NO_CERTIFICATE},
    {SSL_AD_BAD_CERTIFICATE, CLV_TLS_FAILURE_BAD_CERTIFICATE},
    {SSL_AD_UNSUPPORTED_CERTIFICATE, CLV_TLS_FAILURE_BAD_CERTIFICATE},
    {SSL_AD_CERTIFICATE_REVOKED, CLV_TLS_FAILURE_BAD_CERTIFICATE},
    {SSL_AD_CERTIFICATE_UNKNOWN, CLV_TLS_FAILURE_BAD_CERTIFICATE},
    {SSL_AD_PROTOCOL_VERSION, CLV_TLS_FAILURE_VERSION},
};

static clv_tls_failure failure_of_alert(uint8_t alert) {
  for (size_t i = 0; i < CLV_COUNT(alert_failures); i++)
    if (alert_failures[i].alert == alert) return alert_failures[i].failure;
  return CLV_TLS_FAILURE_PROTOCOL;
}

const char *clv_tls_failure_reason(clv_tls_failure failure) {
  static const char *const names[CLV_TLS_FAILURES] = {
      [CLV_TLS_FAILURE_EXPIRED] = "expired",
      [CLV_TLS_FAILURE_UNKNOWN_CA] = "unknown_ca",
      [CLV_TLS_FAILURE_NO_CERTIFICATE] = "no_certificate",
      [CLV_TLS_FAILURE_BAD_CERTIFICATE] = "bad_certificate",
      [CLV_TLS_FAILURE_VERSION] = "tls_version",
      [CLV_TLS_FAILURE_PROTOCOL] = "protocol",
      [CLV_TLS_FAILURE_NOT_ALLOWED] = "not_allowed",
      [CLV_TLS_FAILURE_QUOTA] = "quota",
      [CLV_TLS_FAILURE_SHED] = "shed",
      [CLV_TLS_FAILURE_REVOKED] = "revoked",
      [CLV_TLS_FAILURE_REFUSED] = "refused_by_peer",
      [CLV_TLS_FAILURE_TIMEOUT] = "timeout",
      [CLV_TLS_FAILURE_CLOSED] = "closed",
  };
  return (unsigned)failure < CLV_TLS_FAILURES ? names[failure] : "unknown";
}

static void count_failure(const SSL *ssl, clv_tls_failure failure) {
  atomic_fetch_add_explicit(&n_failed[SSL_is_server(ssl)][failure], 1, memory_order_relaxed);
}

/* ---- callbacks of OpenSSL -------------------------------------------------------------------- */

static void on_alert(SSL *ssl, bool is_sent, uint8_t alert) {
  if (alert == SSL_AD_CLOSE_NOTIFY || alert == SSL_AD_USER_CANCELLED) return;
  /* A client's handshake may still fail when it is STAGE_DONE, because the server checks the
   * client's certificate later. */
  stage s = stage_of(SSL_get_ex_data(ssl, ex_data_index));
  if (s == STAGE_FAILED || (s == STAGE_DONE && SSL_is_server(ssl))) return;
  clv_tls_failure failure = is_sent ? failure_of_alert(alert) : CLV_TLS_FAILURE_REFUSED;
  (void)clv_tls_accepted_get_failure(ssl, &failure);
  count_failure(ssl, failure);
  set_stage(ssl, STAGE_FAILED);
}

/* Handles the Finished message of the peer, before OpenSSL checks it. */
static void on_finished(SSL *ssl) {
  clv_tls_failure failure;
  if (stage_of(SSL_get_ex_data(ssl, ex_data_index)) != STAGE_HANDSHAKING) return;
  if (clv_tls_accepted_get_failure(ssl, &failure)) return; /* on_ssl_free counts the failure */
  atomic_fetch_add_explicit(&n_completed[SSL_is_server(ssl)], 1, memory_order_relaxed);
  set_stage(ssl, STAGE_DONE);
}

static void on_message(int sent, int version, int type, const void *data, size_t len, SSL *ssl,
                       void *arg) {
  const uint8_t *bytes = data;
  (void)version, (void)arg;
  if (stage_of(SSL_get_ex_data(ssl, ex_data_index)) == STAGE_SILENT) {
    clv_tls_accepted_on_begin(ssl);
    set_stage(ssl, STAGE_HANDSHAKING);
  }
  clv_tls_accepted_on_handshake_message(ssl, sent, type, bytes, len);
  if (type == SSL3_RT_HEADER && sent && len >= 5)
    clv_tls_accepted_on_sent(ssl, (size_t)bytes[3] << 8 | bytes[4]);
  if (type == SSL3_RT_ALERT && len == 2) on_alert(ssl, sent, bytes[1]);
  if (type == SSL3_RT_HANDSHAKE && len && !sent && bytes[0] == SSL3_MT_FINISHED) on_finished(ssl);
}

static void on_ssl_new(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
                       void *argp) {
  (void)parent, (void)ptr, (void)argl, (void)argp;
  CRYPTO_set_ex_data(ad, index, pack_state(clv_now_ns() / 1000000u, STAGE_SILENT));
}

/* Connection objects inherit the callback from their context. */
static void on_context_new(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
                           void *argp) {
  (void)ptr, (void)ad, (void)index, (void)argl, (void)argp;
  SSL_CTX_set_msg_callback(parent, on_message);
}

/* gRPC cuts at its deadline or slightly earlier, so a handshake that lasted nearly that long counts
 * as timed out. */
static bool has_timed_out(uint64_t waited_ms) { return 10 * waited_ms >= 9 * handshake_limit_ms; }

static void on_ssl_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
                        void *argp) {
  const SSL *ssl = parent;
  (void)ad, (void)index, (void)argl, (void)argp;
  if (!ptr || stage_of(ptr) > STAGE_HANDSHAKING) return;
  uint64_t waited = clv_now_ns() / 1000000u - start_ms_of(ptr);
  clv_tls_failure failure =
      has_timed_out(waited) ? CLV_TLS_FAILURE_TIMEOUT : CLV_TLS_FAILURE_CLOSED;
  (void)clv_tls_accepted_get_failure(ssl, &failure);
  count_failure(ssl, failure);
}

/* ---- functions that other files call --------------------------------------------------------- */

static void register_callbacks(void) {
  if (CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL_CTX, 0, NULL, on_context_new, NULL, NULL) >= 0)
    ex_data_index =
        CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL, 0, NULL, on_ssl_new, NULL, on_ssl_free);
}

clv_code clv_tls_handshakes_start_counting(uint64_t timeout_ms, clv_err *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  handshake_limit_ms = timeout_ms;
  pthread_once(&once, register_callbacks);
  return ex_data_index >= 0
             ? CLV_OK
             : clv_fail(err, CLV_INTERNAL, "OpenSSL gives no extra data for connections");
}

void clv_tls_handshakes_get_counts(bool server, clv_tls_handshakes *ret) {
  *ret = (clv_tls_handshakes){.n_completed = atomic_load(&n_completed[server])};
  for (int i = 0; i < CLV_TLS_FAILURES; i++) ret->n_failed[i] = atomic_load(&n_failed[server][i]);
}
