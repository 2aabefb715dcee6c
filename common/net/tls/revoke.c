/* SPDX-License-Identifier: Apache-2.0
 *
 * List of revoked certificates (CRL) in force in this process, for peers that it dials and accepts.
 * While a list is in force, a peer is accepted only if the list is valid, is of the peer's CA and
 * does not contain the peer's certificate. An expired list, or a list of another CA, therefore
 * refuses the peer.
 */
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/tls/tls_int.h"

enum { MAX_DIALLED = 256 };

/* Certificate that a peer showed when this process last dialled its identity. */
typedef struct dialled_peer {
  char *uri;
  char issuer[CLV_TLS_ISSUER_LEN], serial[CLV_TLS_SERIAL_LEN];
} dialled_peer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static clv_tls_crl *crl; /* the list in force; NULL: certificates are not checked */
static dialled_peer dialled_peers[MAX_DIALLED];
static size_t n_dialled, next_dialled;

/* ---- setting the list in force --------------------------------------------------------------- */

void clv_tls_revocation_set(clv_tls_crl **new_crl) {
  pthread_mutex_lock(&lock);
  clv_tls_crl *old = crl;
  crl = clv_steal(new_crl);
  pthread_mutex_unlock(&lock);
  clv_tls_crl_free(old);
}

clv_code clv_tls_revocation_read(const char *path, const clv_tls_identity *id, clv_tls_crl **ret,
                                 clv_err *err) {
  CLV_AUTO(clv_tls_crl_freep) clv_tls_crl *c = NULL;
  if (!path) return CLV_OK;
  if (clv_tls_crl_load(path, id->ca_pem, &c, err) != CLV_OK) return clv_err_prefix(err, "tls.crl");
  CLV_TRY(clv_tls_crl_check_expiry(c, NULL, err));
  *ret = clv_steal(&c);
  return CLV_OK;
}

clv_code clv_tls_revocation_load(const char *path, const clv_tls_identity *id, clv_err *err) {
  CLV_AUTO(clv_tls_crl_freep) clv_tls_crl *c = NULL;
  if (!path) return CLV_OK;
  CLV_TRY(clv_tls_revocation_read(path, id, &c, err));
  CLV_TRY(clv_tls_accepted_install(err));
  clv_tls_revocation_set(&c);
  return CLV_OK;
}

int64_t clv_tls_revocation_expiry(void) {
  pthread_mutex_lock(&lock);
  int64_t expiry_s = crl ? clv_tls_crl_expiry(crl) : 0;
  pthread_mutex_unlock(&lock);
  return expiry_s;
}

/* ---- deciding on certificates ---------------------------------------------------------------- */

/* Decides on a certificate by the list in force. The caller holds the lock. */
static clv_tls_decision decide_by_list(const char *issuer, const char *serial, clv_err *err) {
  if (crl && clv_tls_crl_has_cert(crl, issuer, serial)) {
    (void)clv_fail(err, CLV_UNAUTHENTICATED, "its certificate is revoked");
    return CLV_TLS_REVOKED;
  }
  if (crl && clv_tls_crl_check_expiry(crl, issuer, err) != CLV_OK) return CLV_TLS_NO_CRL;
  return CLV_TLS_ADMITTED;
}

clv_tls_decision clv_tls_revocation_decide(const char *issuer, const char *serial, clv_err *err) {
  pthread_mutex_lock(&lock);
  clv_tls_decision v = decide_by_list(issuer, serial, err);
  pthread_mutex_unlock(&lock);
  return v;
}

clv_code clv_tls_revocation_check_expiry(clv_err *err) {
  pthread_mutex_lock(&lock);
  clv_code code = crl ? clv_tls_crl_check_expiry(crl, NULL, err) : CLV_OK;
  pthread_mutex_unlock(&lock);
  return code;
}

/* ---- peers that this process dials ----------------------------------------------------------- */

/* Returns the entry of an identity that was dialled. A new entry replaces the oldest. NULL: out of
 * memory. The caller holds the lock. */
static dialled_peer *find_or_add_dialled(const char *uri) {
  for (size_t i = 0; i < n_dialled; i++)
    if (strcmp(dialled_peers[i].uri, uri) == 0) return &dialled_peers[i];
  char *copy = strdup(uri);
  if (!copy) return NULL;
  dialled_peer *s = &dialled_peers[next_dialled];
  if (n_dialled == MAX_DIALLED) free(s->uri);
  n_dialled = CLV_MAX(n_dialled, next_dialled + 1);
  next_dialled = (next_dialled + 1) % MAX_DIALLED;
  s->uri = copy;
  return s;
}

static void remember_dialled_peer(const X509 *cert, const char *issuer, const char *serial) {
  char uri[CLV_TLS_URI_LEN];
  if (clv_tls_uri_of_x509(cert, uri, sizeof uri, NULL) != CLV_OK) return;
  dialled_peer *s = find_or_add_dialled(uri);
  if (!s) return;
  snprintf(s->issuer, sizeof s->issuer, "%s", issuer);
  snprintf(s->serial, sizeof s->serial, "%s", serial);
}

int clv_tls_revocation_verify(int ok, X509_STORE_CTX *ctx) {
  char issuer[CLV_TLS_ISSUER_LEN], serial[CLV_TLS_SERIAL_LEN];
  const X509 *cert = X509_STORE_CTX_get0_cert(ctx);
  clv_err err;
  if (!ok || X509_STORE_CTX_get_error_depth(ctx) > 0 || !cert) return ok;
  clv_tls_issuer_text(X509_get_issuer_name(cert), issuer);
  clv_tls_serial_text(X509_get0_serialNumber(cert), serial);
  pthread_mutex_lock(&lock);
  clv_tls_decision v = decide_by_list(issuer, serial, &err);
  remember_dialled_peer(cert, issuer, serial);
  pthread_mutex_unlock(&lock);
  ERR_clear_error();
  if (v == CLV_TLS_ADMITTED) return 1;
  X509_STORE_CTX_set_error(
      ctx, v == CLV_TLS_REVOKED ? X509_V_ERR_CERT_REVOKED : X509_V_ERR_CRL_HAS_EXPIRED);
  return 0;
}

bool clv_tls_is_peer_revoked(const char *uri) {
  bool is_revoked = false;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; crl && i < n_dialled && !is_revoked; i++)
    is_revoked = strcmp(dialled_peers[i].uri, uri) == 0 &&
                 clv_tls_crl_has_cert(crl, dialled_peers[i].issuer, dialled_peers[i].serial);
  pthread_mutex_unlock(&lock);
  return is_revoked;
}
