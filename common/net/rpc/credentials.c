/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials and the identity of the peer. Both sides require a certificate chain that ends in the
 * configured CA. The server then takes the client's only URI from the `peer_uri` properties. The
 * client compares the server's only URI in a verifier that gRPC runs after the TLS handshake and
 * before HTTP/2, so that a wrong server receives no byte of a request.
 *
 * gRPC's "peer identity" is never used, because it mixes all subject alternative names: a DNS name
 * spelled like a URI would count as one.
 */
#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/net/rpc/rpc_int.h"

/* ---- PEM text -------------------------------------------------------------------------------- */

static void wipe_and_free(char *text) {
  if (text) explicit_bzero(text, strlen(text));
  free(text);
}

void rpc_pem_clear(rpc_pem *pem) {
  free(pem->ca);
  free(pem->cert);
  wipe_and_free(pem->key);
  *pem = (rpc_pem){0};
}

void clv_rpc_pem_clear(clv_rpc_pem *pem) {
  if (!pem) return;
  free((char *)(uintptr_t)pem->ca);
  free((char *)(uintptr_t)pem->cert);
  wipe_and_free((char *)(uintptr_t)pem->key);
  *pem = (clv_rpc_pem){0};
}

clv_code clv_rpc_pem_copy(const clv_rpc_pem *from, clv_rpc_pem *ret, clv_err *err) {
  char *ca = NULL, *cert = NULL, *key = NULL;
  clv_code code = clv_strdup(from->ca, &ca, err);
  if (code == CLV_OK) code = clv_strdup(from->cert, &cert, err);
  if (code == CLV_OK) code = clv_strdup(from->key, &key, err);
  clv_rpc_pem pem = {ca, cert, key};
  if (code != CLV_OK) {
    clv_rpc_pem_clear(&pem);
    return code;
  }
  clv_rpc_pem_clear(ret);
  *ret = pem;
  return CLV_OK;
}

clv_code rpc_pem_init(rpc_pem *dst, const clv_rpc_pem *src, clv_err *err) {
  if (!src->ca || !src->cert || !src->key)
    return clv_fail(err, CLV_INVALID, "%s is missing",
                    !src->ca     ? "the CA certificate"
                    : !src->cert ? "the certificate"
                                 : "the key");
  *dst = (rpc_pem){0};
  clv_code code = clv_strdup(src->ca, &dst->ca, err);
  if (code == CLV_OK) code = clv_strdup(src->cert, &dst->cert, err);
  if (code == CLV_OK) code = clv_strdup(src->key, &dst->key, err);
  if (code != CLV_OK) rpc_pem_clear(dst);
  return code;
}

static grpc_ssl_server_certificate_config *make_server_cert_config(const rpc_pem *pem) {
  grpc_ssl_pem_key_cert_pair pair = {pem->key, pem->cert};
  return grpc_ssl_server_certificate_config_create(pem->ca, &pair, 1);
}

static const grpc_ssl_client_certificate_request_type CLIENT_CERT_REQUEST =
    GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;

/* Checks the PEM text with a server that is never started: it only binds to a name in the abstract
 * namespace, because gRPC reports at a bind whether it can use certificates. */
clv_code rpc_pem_check(const clv_rpc_pem *pem, clv_err *err) {
  static atomic_uint n_checks;
  rpc_pem copy;
  CLV_TRY(rpc_pem_init(&copy, pem, err));
  grpc_ssl_server_credentials_options *options =
      grpc_ssl_server_credentials_create_options_using_config(CLIENT_CERT_REQUEST,
                                                              make_server_cert_config(&copy));
  grpc_server_credentials *credentials = grpc_ssl_server_credentials_create_with_options(options);
  rpc_pem_clear(&copy);
  char address[64];
  snprintf(address, sizeof(address), "unix-abstract:cleave-pem-%ld-%u", (long)getpid(),
           atomic_fetch_add(&n_checks, 1));
  grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
  grpc_server *server = grpc_server_create(NULL, NULL);
  grpc_server_register_completion_queue(server, queue, NULL);
  bool is_usable = credentials && grpc_server_add_http2_port(server, address, credentials) != 0;
  grpc_server_shutdown_and_notify(server, queue, &copy);
  grpc_completion_queue_pluck(queue, &copy, rpc_no_deadline(), NULL);
  grpc_server_destroy(server);
  grpc_completion_queue_shutdown(queue);
  grpc_completion_queue_destroy(queue);
  if (credentials) grpc_server_credentials_release(credentials);
  if (is_usable) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "the CA, certificate and key cannot be used together: one of them is not PEM "
                  "text, or the key does not belong to the certificate");
}

/* Digest of PEM text that has passed rpc_pem_init. */
static clv_code digest_pem(const rpc_pem *pem, clv_sha256 *ret, clv_err *err) {
  clv_sha256 part[3];
  CLV_TRY(clv_sha256_of(pem->ca, strlen(pem->ca), &part[0], err));
  CLV_TRY(clv_sha256_of(pem->cert, strlen(pem->cert), &part[1], err));
  CLV_TRY(clv_sha256_of(pem->key, strlen(pem->key), &part[2], err));
  return clv_sha256_of(part, sizeof(part), ret, err);
}

static bool was_pem_checked(clv_rpc_runtime *runtime, const clv_sha256 *digest) {
  pthread_mutex_lock(&runtime->lock);
  bool is_known = runtime->has_checked_pem && memcmp(&runtime->checked_pem_digest, digest,
                                                     sizeof(runtime->checked_pem_digest)) == 0;
  pthread_mutex_unlock(&runtime->lock);
  return is_known;
}

clv_code rpc_pem_check_once(clv_rpc_runtime *runtime, const rpc_pem *pem, clv_err *err) {
  clv_sha256 digest;
  CLV_TRY(digest_pem(pem, &digest, err));
  if (was_pem_checked(runtime, &digest)) return CLV_OK;
  CLV_TRY(rpc_pem_check(&(clv_rpc_pem){pem->ca, pem->cert, pem->key}, err));
  pthread_mutex_lock(&runtime->lock);
  runtime->checked_pem_digest = digest;
  runtime->has_checked_pem = true;
  pthread_mutex_unlock(&runtime->lock);
  return CLV_OK;
}

/* ---- the certificates of a server ------------------------------------------------------------ */

clv_code rpc_server_certs_init(rpc_server_certs *certs, const clv_rpc_pem *pem, clv_err *err) {
  CLV_TRY(rpc_pem_check(pem, err));
  CLV_TRY(rpc_pem_init(&certs->pem, pem, err));
  pthread_mutex_init(&certs->lock, NULL);
  certs->needs_fetch = true;
  return CLV_OK;
}

void rpc_server_certs_clear(rpc_server_certs *certs) {
  rpc_pem_clear(&certs->pem);
  pthread_mutex_destroy(&certs->lock);
}

clv_code rpc_server_certs_replace(rpc_server_certs *certs, const clv_rpc_pem *pem, clv_err *err) {
  CLV_TRY(rpc_pem_check(pem, err));
  rpc_pem new_pem;
  CLV_TRY(rpc_pem_init(&new_pem, pem, err));
  pthread_mutex_lock(&certs->lock);
  rpc_pem old_pem = certs->pem;
  certs->pem = new_pem;
  certs->needs_fetch = true;
  pthread_mutex_unlock(&certs->lock);
  rpc_pem_clear(&old_pem);
  return CLV_OK;
}

/* Callback of gRPC before every handshake: returns the certificates if they have changed. */
static grpc_ssl_certificate_config_reload_status fetch_certs(
    void *user_data, grpc_ssl_server_certificate_config **config) {
  rpc_server_certs *certs = user_data;
  grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  rpc_tsan_acquire(certs);
  pthread_mutex_lock(&certs->lock);
  if (certs->needs_fetch) {
    *config = make_server_cert_config(&certs->pem);
    certs->needs_fetch = false;
    status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }
  pthread_mutex_unlock(&certs->lock);
  return status;
}

grpc_server_credentials *rpc_server_credentials(rpc_server_certs *certs) {
  rpc_tsan_release(certs);
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(CLIENT_CERT_REQUEST,
                                                                      fetch_certs, certs));
}

static grpc_auth_property_iterator peer_uris(grpc_auth_context *context) {
  return grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
}

clv_code rpc_peer_uri(grpc_call *call, char **ret_uri, clv_err *err) {
  grpc_auth_context *context = grpc_call_auth_context(call);
  if (!context) return clv_fail(err, CLV_UNAUTHENTICATED, "the connection has no identity");
  grpc_auth_property_iterator it = peer_uris(context);
  const grpc_auth_property *property = grpc_auth_property_iterator_next(&it);
  const grpc_auth_property *second_uri = property ? grpc_auth_property_iterator_next(&it) : NULL;
  clv_code code;
  if (!property)
    code = clv_fail(err, CLV_UNAUTHENTICATED, "the client certificate names no URI");
  else if (second_uri)
    code = clv_fail(err, CLV_UNAUTHENTICATED, "the client certificate names more than one URI");
  else if (strlen(property->value) != property->value_length || property->value_length == 0)
    code = clv_fail(err, CLV_UNAUTHENTICATED, "the URI in the client certificate is malformed");
  else
    code = clv_strdup(property->value, ret_uri, err);
  grpc_auth_context_release(context);
  return code;
}

/* ---- the identity check of a client ---------------------------------------------------------- */

struct rpc_identity {
  atomic_uint refs;
  grpc_tls_certificate_verifier_external verifier;
  char *expected_uri;
  pthread_mutex_t lock; /* guards the fields below */
  bool is_proved;       /* a server has proved the expected identity since the last reset */
  char error_text[CLV_ERR_TEXT];
};

void rpc_identity_unref(rpc_identity *identity) {
  if (!identity || atomic_fetch_sub(&identity->refs, 1) != 1) return;
  /* gRPC may have verified a reconnection on one of its threads, with an order that the thread
   * sanitizer cannot see. Taking the lock makes the order visible. */
  pthread_mutex_lock(&identity->lock);
  pthread_mutex_unlock(&identity->lock);
  pthread_mutex_destroy(&identity->lock);
  free(identity->expected_uri);
  free(identity);
}

clv_code rpc_identity_check(rpc_identity *identity, clv_err *err) {
  clv_code code = CLV_OK;
  pthread_mutex_lock(&identity->lock);
  if (identity->error_text[0] != '\0')
    code = clv_fail(err, CLV_UNAUTHENTICATED, "%s", identity->error_text);
  pthread_mutex_unlock(&identity->lock);
  return code;
}

void rpc_identity_reset(rpc_identity *identity) {
  pthread_mutex_lock(&identity->lock);
  identity->error_text[0] = '\0';
  identity->is_proved = false;
  pthread_mutex_unlock(&identity->lock);
}

bool rpc_identity_is_proved(rpc_identity *identity) {
  pthread_mutex_lock(&identity->lock);
  bool is_proved = identity->is_proved;
  pthread_mutex_unlock(&identity->lock);
  return is_proved;
}

static bool is_expected_server(const rpc_identity *identity,
                               const grpc_tls_custom_verification_check_request *request,
                               clv_err *err) {
  size_t n = request->peer_info.san_names.uri_names_size;
  char **uris = request->peer_info.san_names.uri_names;
  if (n == 1 && strcmp(uris[0], identity->expected_uri) == 0) return true;
  char found[RPC_TEXT] = "no URI";
  if (n > 0) rpc_copy_printable(found, uris[0], strlen(uris[0]));
  clv_fail(err, CLV_UNAUTHENTICATED, "the server is not '%s': its certificate names %s%s%s%s",
           identity->expected_uri, n > 0 ? "'" : "", found, n > 0 ? "'" : "",
           n > 1 ? " and more URIs (exactly one is allowed)" : "");
  return false;
}

static int verify_server(void *user_data, grpc_tls_custom_verification_check_request *request,
                         grpc_tls_on_custom_verification_check_done_cb callback, void *callback_arg,
                         grpc_status_code *status, char **details) {
  (void)callback;
  (void)callback_arg;
  rpc_identity *identity = user_data;
  clv_err err = {0};
  rpc_tsan_acquire(identity);
  bool is_proved = is_expected_server(identity, request, &err);
  pthread_mutex_lock(&identity->lock);
  identity->is_proved = is_proved;
  memcpy(identity->error_text, err.text, sizeof(identity->error_text));
  pthread_mutex_unlock(&identity->lock);
  *status = is_proved ? GRPC_STATUS_OK : GRPC_STATUS_UNAUTHENTICATED;
  if (!is_proved) *details = gpr_strdup(err.text);
  return 1; /* returns 1, because the result is known when the function returns */
}

static void verify_cancel(void *user_data, grpc_tls_custom_verification_check_request *request) {
  (void)user_data; /* nothing to cancel, because verify_server returns its result at once */
  (void)request;
}

static void verify_destruct(void *user_data) {
  rpc_tsan_acquire(user_data);
  rpc_identity_unref(user_data);
}

static clv_code new_identity(const char *expected_uri, rpc_identity **ret_identity, clv_err *err) {
  rpc_identity *identity = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*identity), &identity, err));
  atomic_init(&identity->refs, 1);
  pthread_mutex_init(&identity->lock, NULL);
  identity->verifier = (grpc_tls_certificate_verifier_external){
      .user_data = identity,
      .verify = verify_server,
      .cancel = verify_cancel,
      .destruct = verify_destruct,
  };
  clv_code code = clv_strdup(expected_uri, &identity->expected_uri, err);
  if (code != CLV_OK) {
    rpc_identity_unref(identity);
    return code;
  }
  *ret_identity = identity;
  return CLV_OK;
}

clv_code rpc_client_credentials(const rpc_pem *pem, const char *expected_uri,
                                grpc_channel_credentials **ret_credentials,
                                rpc_identity **ret_identity, clv_err *err) {
  rpc_identity *identity = NULL;
  CLV_TRY(new_identity(expected_uri, &identity, err));
  grpc_tls_identity_pairs *pairs = grpc_tls_identity_pairs_create();
  grpc_tls_identity_pairs_add_pair(pairs, pem->key, pem->cert);
  grpc_tls_certificate_provider *provider =
      grpc_tls_certificate_provider_static_data_create(pem->ca, pairs);
  atomic_fetch_add(&identity->refs, 1); /* reference of the verifier; dropped in verify_destruct */
  rpc_tsan_release(identity);
  grpc_tls_certificate_verifier *verifier =
      grpc_tls_certificate_verifier_external_create(&identity->verifier);
  grpc_tls_credentials_options *options = grpc_tls_credentials_options_create();
  grpc_tls_credentials_options_set_certificate_provider(options, provider);
  grpc_tls_credentials_options_watch_root_certs(options);
  grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
  grpc_tls_credentials_options_set_certificate_verifier(options, verifier);
  /* The identity is the URI, not the dialled host name. */
  grpc_tls_credentials_options_set_check_call_host(options, 0);
  grpc_tls_certificate_provider_release(provider);
  grpc_tls_certificate_verifier_release(verifier);
  *ret_credentials = grpc_tls_credentials_create(options);
  *ret_identity = identity;
  return CLV_OK;
}
