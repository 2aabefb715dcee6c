/* SPDX-License-Identifier: Apache-2.0
 *
 * Identity of this process, checked before use by the rules that a peer applies.
 */
#include "common/net/tls/tls_int.h"

#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The three files under check, parsed. */
typedef struct credentials {
  const char *ca_path, *cert_path, *key_path;
  STACK_OF(X509) * ca;
  STACK_OF(X509) * chain; /* certificate chain, leaf first */
  X509 *leaf;             /* leaf certificate, owned by `chain` */
  EVP_PKEY *key;
} credentials;

static void credentials_clear(credentials *c) {
  sk_X509_pop_free(c->ca, X509_free);
  sk_X509_pop_free(c->chain, X509_free);
  EVP_PKEY_free(c->key);
}

/* ---- checking the key ------------------------------------------------------------------------ */

static const struct {
  const char *key_type;
  int min_bits;
} key_kinds[] = {{"RSA", 2048}, {"RSA-PSS", 2048}, {"EC", 256}, {"ED25519", 0}, {"ED448", 0}};

static const char *const tls13_curves[] = {"prime256v1", "secp384r1", "secp521r1"};

static clv_code check_curve(const credentials *c, const EVP_PKEY *key, clv_err *err) {
  char curve[64] = "explicit parameters";
  size_t used = 0;
  (void)EVP_PKEY_get_group_name(key, curve, sizeof curve, &used);
  for (size_t i = 0; i < CLV_COUNT(tls13_curves); i++)
    if (!strcmp(curve, tls13_curves[i])) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "%s: TLS 1.3 has no elliptic curve \"%s\"; issue a certificate with P-256",
                  c->cert_path, curve);
}

static clv_code check_strength(const credentials *c, clv_err *err) {
  const EVP_PKEY *key = X509_get0_pubkey(c->leaf);
  for (size_t i = 0; key && i < CLV_COUNT(key_kinds); i++) {
    if (!EVP_PKEY_is_a(key, key_kinds[i].key_type)) continue;
    int bits = EVP_PKEY_get_bits(key);
    if (bits < key_kinds[i].min_bits)
      return clv_fail(err, CLV_INVALID,
                      "%s: an %s key of %d bits is too weak, at least %d are needed; issue a new "
                      "certificate",
                      c->cert_path, key_kinds[i].key_type, bits, key_kinds[i].min_bits);
    return EVP_PKEY_is_a(key, "EC") ? check_curve(c, key, err) : CLV_OK;
  }
  const char *key_type = key ? EVP_PKEY_get0_type_name(key) : NULL;
  return clv_fail(err, CLV_INVALID,
                  "%s: keys of type %s are not supported: use EC P-256, RSA or Ed25519",
                  c->cert_path, key_type ? key_type : "unknown");
}

static clv_code check_key(const credentials *c, clv_err *err) {
  CLV_TRY(check_strength(c, err));
  if (X509_check_private_key(c->leaf, c->key) == 1) return CLV_OK;
  ERR_clear_error();
  for (int i = 1; i < sk_X509_num(c->chain); i++) {
    bool later = X509_check_private_key(sk_X509_value(c->chain, i), c->key) == 1;
    ERR_clear_error();
    if (later)
      return clv_fail(err, CLV_INVALID,
                      "%s: the certificate of key %s comes as number %d; the leaf must come first",
                      c->cert_path, c->key_path, i + 1);
  }
  return clv_fail(err, CLV_INVALID,
                  "%s: this key does not belong to the certificate in %s; are the files of two "
                  "names mixed up?",
                  c->key_path, c->cert_path);
}

/* ---- checking the times ---------------------------------------------------------------------- */

static clv_code check_valid_now(const char *path, const X509 *cert, clv_err *err) {
  int64_t from = 0, until = 0, now = clv_tls_now();
  if (!clv_tls_asn1_seconds(X509_get0_notBefore(cert), &from) ||
      !clv_tls_asn1_seconds(X509_get0_notAfter(cert), &until))
    return clv_fail(err, CLV_INVALID, "%s: the certificate's validity is damaged", path);
  char when[CLV_TLS_TIME_TEXT], span[CLV_TLS_TIME_TEXT];
  if (now > until)
    return clv_fail(err, CLV_PRECONDITION, "%s: expired %s ago (%s); issue a new certificate", path,
                    clv_tls_format_duration(now - until, span), clv_tls_format_time(until, when));
  if (now < from)
    return clv_fail(err, CLV_PRECONDITION,
                    "%s: not valid yet, it begins in %s (%s); is this host's clock right?", path,
                    clv_tls_format_duration(from - now, span), clv_tls_format_time(from, when));
  return CLV_OK;
}

/* ---- checking the certificate chain ---------------------------------------------------------- */

static clv_code check_ca_file(const credentials *c, clv_err *err) {
  for (int i = 0; i < sk_X509_num(c->ca); i++)
    if (X509_check_ca(sk_X509_value(c->ca, i)) == 0)
      return clv_fail(err, CLV_INVALID,
                      "%s: certificate number %d is not a CA's; give the CA certificate (ca.pem) "
                      "here, not a leaf",
                      c->ca_path, i + 1);
  return CLV_OK;
}

static const char *fix_for_chain_error(int error) {
  switch (error) {
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      return "it was not issued by this CA; use that CA's ca.pem, or issue the certificate again";
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "another CA was made under the same name, or the file is damaged; issue the "
             "certificate again";
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "a CA certificate above it is out of its time; check the CA and this host's clock";
    case X509_V_ERR_CA_KEY_TOO_SMALL:
    case X509_V_ERR_CA_MD_TOO_WEAK:
      return "the CA is too weak for TLS; make a new one";
    default:
      return "issue the certificate again";
  }
}

/* Returns the earliest end of validity in a verified chain: a leaf does not outlive its CA. */
static int64_t earliest_end_of_chain(STACK_OF(X509) * chain) {
  int64_t end = INT64_MAX, until = 0;
  for (int i = 0; i < sk_X509_num(chain); i++)
    if (clv_tls_asn1_seconds(X509_get0_notAfter(sk_X509_value(chain, i)), &until))
      end = CLV_MIN(end, until);
  return end;
}

static clv_code verify_chain(const credentials *c, X509_STORE *store, unsigned usage,
                             int64_t *ret_end, clv_err *err) {
  CLV_AUTO(clv_store_ctx_freep) X509_STORE_CTX *ctx = X509_STORE_CTX_new();
  if (!ctx || X509_STORE_CTX_init(ctx, store, c->leaf, c->chain) != 1 ||
      X509_STORE_CTX_set_default(ctx, usage == CLV_TLS_CLIENT ? "ssl_client" : "ssl_server") != 1)
    return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", c->cert_path);
  /* level 2, which TLS requires on Debian */
  X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(ctx), 2);
  if (X509_verify_cert(ctx) == 1) {
    *ret_end = earliest_end_of_chain(X509_STORE_CTX_get0_chain(ctx));
    return CLV_OK;
  }
  int error = X509_STORE_CTX_get_error(ctx);
  ERR_clear_error();
  bool is_time_error =
      error == X509_V_ERR_CERT_HAS_EXPIRED || error == X509_V_ERR_CERT_NOT_YET_VALID;
  return clv_fail(err, is_time_error ? CLV_PRECONDITION : CLV_INVALID,
                  "%s: as a %s certificate it does not verify against %s: %s; %s", c->cert_path,
                  usage == CLV_TLS_CLIENT ? "client" : "server", c->ca_path,
                  X509_verify_cert_error_string(error), fix_for_chain_error(error));
}

static clv_code check_usage(const credentials *c, unsigned *ret_usage, clv_err *err) {
  unsigned usage = 0;
  if (!clv_tls_cert_usage(c->leaf, &usage))
    return clv_fail(err, CLV_INVALID,
                    "%s: it has no extended key usage, which both sides ask for; issue it with "
                    "clientAuth, serverAuth or both",
                    c->cert_path);
  if (!(usage & (CLV_TLS_CLIENT | CLV_TLS_SERVER)))
    return clv_fail(err, CLV_INVALID,
                    "%s: its extended key usage allows neither TLS client nor TLS server; issue it "
                    "with clientAuth and serverAuth",
                    c->cert_path);
  *ret_usage = usage & (CLV_TLS_CLIENT | CLV_TLS_SERVER);
  return CLV_OK;
}

static clv_code check_chain(const credentials *c, unsigned usage, int64_t *ret_end, clv_err *err) {
  CLV_AUTO(clv_store_freep) X509_STORE *store = X509_STORE_new();
  bool ok = store != NULL;
  for (int i = 0; ok && i < sk_X509_num(c->ca); i++)
    ok = X509_STORE_add_cert(store, sk_X509_value(c->ca, i)) == 1;
  if (!ok) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", c->ca_path);
  for (unsigned bit = CLV_TLS_CLIENT; bit <= CLV_TLS_SERVER; bit <<= 1)
    if (usage & bit) CLV_TRY(verify_chain(c, store, bit, ret_end, err));
  return CLV_OK;
}

/* ---- checking the CA, the certificate and the key together ----------------------------------- */

static clv_code check_credentials(const credentials *c, clv_tls_identity *identity, clv_err *err) {
  CLV_TRY(check_key(c, err));
  CLV_TRY(check_valid_now(c->cert_path, c->leaf, err));
  CLV_TRY(check_ca_file(c, err));
  CLV_TRY(check_usage(c, &identity->usage, err));
  CLV_TRY(check_chain(c, identity->usage, &identity->not_after, err));
  if (clv_tls_uri_of_x509(c->leaf, identity->uri, sizeof identity->uri, err) != CLV_OK)
    return clv_err_prefix(err, "%s", c->cert_path);
  if (!clv_tls_asn1_seconds(X509_get0_notBefore(c->leaf), &identity->not_before))
    return clv_fail(err, CLV_INVALID, "%s: the certificate's validity is damaged", c->cert_path);
  return CLV_OK;
}

/* Adds the configuration key to an error, and for a missing file the command that makes it. */
static clv_code prefix_error_with_config_key(clv_code code, const char *key, const char *path,
                                             clv_err *err) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  int folder_len = slash ? (int)(slash - path) : 1;
  if (code != CLV_NOT_FOUND || !err) return code;
  if (strcmp(key, "tls.ca") == 0 && strcmp(name, "ca.pem") != 0)
    return clv_fail(err, code, "%s: %.150s; copy the ca.pem of your CA there", key, err->text);
  if (strcmp(key, "tls.ca") == 0)
    return clv_fail(err, code, "%s: %.150s; `cleave-master certs init --dir %.*s` makes one", key,
                    err->text, CLV_MIN(folder_len, 120), slash ? path : ".");
  return clv_fail(err, code,
                  "%s: %.150s; `cleave-master certs issue %.*s --dir %.*s --uri URI` makes it", key,
                  err->text, (int)CLV_MIN(strcspn(name, "."), (size_t)60), name,
                  CLV_MIN(folder_len, 120), slash ? path : ".");
}

clv_code clv_tls_identity_load(const char *ca_path, const char *cert_path, const char *key_path,
                               clv_tls_identity **ret_identity, clv_err *err) {
  CLV_AUTO(credentials_clear)
  credentials c = {.ca_path = ca_path, .cert_path = cert_path, .key_path = key_path};
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *identity = NULL;
  CLV_TRY(clv_alloc(1, sizeof *identity, &identity, err));
  CLV_TRY(prefix_error_with_config_key(clv_tls_certs_read(ca_path, &c.ca, err), "tls.ca", ca_path,
                                       err));
  CLV_TRY(prefix_error_with_config_key(clv_tls_certs_read(cert_path, &c.chain, err), "tls.cert",
                                       cert_path, err));
  c.leaf = sk_X509_value(c.chain, 0);
  CLV_TRY(prefix_error_with_config_key(clv_tls_key_read(key_path, &identity->key_pem, err),
                                       "tls.key", key_path, err));
  CLV_TRY(clv_tls_key_parse(identity->key_pem, key_path, &c.key, err));
  CLV_TRY(check_credentials(&c, identity, err));
  CLV_TRY(clv_tls_certs_format(c.ca, &identity->ca_pem, err));
  CLV_TRY(clv_tls_certs_format(c.chain, &identity->cert_pem, err));
  *ret_identity = clv_steal(&identity);
  return CLV_OK;
}

void clv_tls_identity_free(clv_tls_identity *identity) {
  if (!identity) return;
  clv_secret_freep(&identity->key_pem);
  free(identity->ca_pem);
  free(identity->cert_pem);
  free(identity);
}

void clv_tls_identity_freep(clv_tls_identity **identity) {
  clv_tls_identity_free(*identity);
  *identity = NULL;
}

clv_code clv_tls_identity_require_usage(const clv_tls_identity *identity, unsigned usage,
                                        clv_err *err) {
  unsigned missing_usage = usage & ~identity->usage;
  if (!missing_usage) return CLV_OK;
  bool server = missing_usage & CLV_TLS_SERVER;
  return clv_fail(err, CLV_INVALID,
                  "the certificate of %.200s may not be used as a TLS %s; issue it with usage "
                  "\"%s\" or \"both\"",
                  identity->uri, server ? "server" : "client", server ? "server" : "client");
}

int clv_tls_identity_days_left(const clv_tls_identity *identity) {
  int64_t days = clv_tls_days_until(identity->not_after);
  return (int)CLV_MAX(INT32_MIN, CLV_MIN(days, INT32_MAX));
}
