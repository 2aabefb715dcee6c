/* SPDX-License-Identifier: Apache-2.0
 *
 * Certificate authority of `certs`: one EC P-256 key that signs leaves with one URI each. Names are
 * added to certificates as objects, never as text of OpenSSL's extension language, so that the text
 * of a name cannot add another name.
 */
#include "common/net/tls/tls_int.h"

#include <ctype.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MINUTE_S = 60, DAY_S = 86400, CA_BACKDATE_S = 5 * MINUTE_S, SERIAL_BITS = 128 };

static clv_code fail_ossl(clv_err *err, const char *what) {
  char why[CLV_TLS_ERROR_LEN];
  return clv_fail(err, CLV_INTERNAL, "%s: %s", what, clv_tls_openssl_reason(why));
}

/* ---- writing files of the CA ----------------------------------------------------------------- */

static clv_code path_of(const char *dir, const char *name, const char *ending, char **ret_path,
                        clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes path = {0};
  clv_bytes_printf(&path, "%s/%s%s", dir, name, ending);
  if (path.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  *ret_path = clv_steal(&path.data);
  return CLV_OK;
}

static clv_code refuse_existing(const char *path, const char *fix, clv_err *err) {
  if (access(path, F_OK) != 0) return CLV_OK;
  return clv_fail(err, CLV_EXISTS, "%s is there already and is not overwritten; %s", path, fix);
}

static clv_code write_key(const char *path, EVP_PKEY *key, clv_err *err) {
  /* secure memory, wiped when it is freed */
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new(BIO_s_secmem());
  if (!bio || PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) != 1)
    return fail_ossl(err, "the private key could not be written as PEM");
  char *data = NULL;
  size_t len = (size_t)BIO_get_mem_data(bio, &data);
  /* Remove a temporary file that a crash has left, because its mode may be wider than 0600. */
  CLV_AUTO(clv_bytes_done) clv_bytes tmp = {0};
  clv_bytes_printf(&tmp, "%s.tmp", path);
  if (tmp.failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  unlink(tmp.data);
  return clv_file_write_durable(path, data, len, 0600, err);
}

static clv_code write_cert(const char *path, X509 *cert, clv_err *err) {
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new(BIO_s_mem());
  if (!bio || PEM_write_bio_X509(bio, cert) != 1)
    return fail_ossl(err, "the certificate could not be written as PEM");
  char *data = NULL;
  size_t len = (size_t)BIO_get_mem_data(bio, &data);
  return clv_file_write_durable(path, data, len, 0644, err);
}

/* ---- pieces of a certificate ----------------------------------------------------------------- */

static clv_code set_random_serial(X509 *cert, clv_err *err) {
  CLV_AUTO(clv_bn_freep) BIGNUM *serial = BN_new();
  if (!serial || BN_rand(serial, SERIAL_BITS, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) != 1 ||
      !BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(cert)))
    return fail_ossl(err, "no random serial number");
  return CLV_OK;
}

static clv_code set_subject(X509 *cert, const char *name, clv_err *err) {
  if (X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8,
                                 (const unsigned char *)name, -1, -1, 0) != 1) {
    char why[CLV_TLS_ERROR_LEN];
    return clv_fail(err, CLV_INVALID, "\"%s\" cannot be a name: %s", name,
                    clv_tls_openssl_reason(why));
  }
  return CLV_OK;
}

static clv_code set_validity(X509 *cert, int64_t from, int64_t until, clv_err *err) {
  if (!ASN1_TIME_set(X509_getm_notBefore(cert), (time_t)from) ||
      !ASN1_TIME_set(X509_getm_notAfter(cert), (time_t)until))
    return fail_ossl(err, "the validity could not be set");
  return CLV_OK;
}

typedef struct extension {
  int nid;
  const char *value;
} extension;

/* Adds extensions whose values are constant texts. Names are added as objects, never as text. */
static clv_code add_extensions(X509 *cert, X509 *issuer, const extension *list, size_t n,
                               clv_err *err) {
  X509V3_CTX ctx;
  X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
  for (size_t i = 0; i < n; i++) {
    CLV_AUTO(clv_ext_freep)
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, list[i].nid, list[i].value);
    if (!ext || X509_add_ext(cert, ext, -1) != 1) return fail_ossl(err, "an extension was refused");
  }
  return CLV_OK;
}

static clv_code make_unsigned_cert(const char *name, EVP_PKEY *key, int64_t from, int64_t until,
                                   X509 **ret_cert, clv_err *err) {
  CLV_AUTO(clv_x509_freep) X509 *cert = X509_new();
  if (!cert || X509_set_version(cert, X509_VERSION_3) != 1 || X509_set_pubkey(cert, key) != 1)
    return fail_ossl(err, "no new certificate");
  CLV_TRY(set_random_serial(cert, err));
  CLV_TRY(set_subject(cert, name, err));
  CLV_TRY(set_validity(cert, from, until, err));
  *ret_cert = clv_steal(&cert);
  return CLV_OK;
}

static clv_code check_days(int days, clv_err *err) {
  if (days >= 1 && days <= CLV_TLS_MAX_DAYS) return CLV_OK;
  return clv_fail(err, CLV_INVALID, "--days: %d days of validity; it must be 1 to %d", days,
                  CLV_TLS_MAX_DAYS);
}

/* ---- making a CA ----------------------------------------------------------------------------- */

static clv_code check_ca_name(const char *name, clv_err *err) {
  size_t len = strlen(name);
  bool is_printable = len >= 1 && len <= CLV_TLS_NAME_MAX;
  for (size_t i = 0; is_printable && i < len; i++) is_printable = (unsigned char)name[i] >= 0x20;
  if (is_printable) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  "\"%.80s\" cannot name a CA: 1 to %d bytes without control characters", name,
                  CLV_TLS_NAME_MAX);
}

static clv_code make_ca_cert(const char *name, int days, EVP_PKEY *key, X509 **ret_cert,
                             clv_err *err) {
  static const extension extensions[] = {
      {NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
      {NID_key_usage, "critical,keyCertSign,cRLSign"},
      {NID_subject_key_identifier, "hash"},
      {NID_authority_key_identifier, "keyid:always"},
  };
  int64_t from = clv_tls_now() - CA_BACKDATE_S;
  CLV_AUTO(clv_x509_freep) X509 *cert = NULL;
  CLV_TRY(make_unsigned_cert(name, key, from, from + (int64_t)days * DAY_S, &cert, err));
  if (X509_set_issuer_name(cert, X509_get_subject_name(cert)) != 1)
    return fail_ossl(err, "the issuer could not be set");
  CLV_TRY(add_extensions(cert, cert, extensions, CLV_COUNT(extensions), err));
  if (X509_sign(cert, key, EVP_sha256()) <= 0) return fail_ossl(err, "the CA could not be signed");
  *ret_cert = clv_steal(&cert);
  return CLV_OK;
}

clv_code clv_tls_ca_init(const char *dir, const char *name, int days, clv_err *err) {
  static const char fix[] = "name another folder, or move the old CA away first";
  CLV_TRY(check_ca_name(name, err));
  CLV_TRY(check_days(days, err));
  CLV_AUTO(clv_freep) char *key_path = NULL;
  CLV_AUTO(clv_freep) char *cert_path = NULL;
  CLV_TRY(path_of(dir, "ca", ".key", &key_path, err));
  CLV_TRY(path_of(dir, "ca", ".pem", &cert_path, err));
  CLV_TRY(refuse_existing(key_path, fix, err));
  CLV_TRY(refuse_existing(cert_path, fix, err));
  CLV_AUTO(clv_pkey_freep) EVP_PKEY *key = EVP_EC_gen("P-256");
  if (!key) return fail_ossl(err, "no EC key");
  CLV_AUTO(clv_x509_freep) X509 *cert = NULL;
  CLV_TRY(make_ca_cert(name, days, key, &cert, err));
  CLV_TRY(clv_mkdirs(dir, err));
  CLV_TRY(write_key(key_path, key, err));
  return write_cert(cert_path, cert, err);
}

/* ---- issuing a certificate: checks ----------------------------------------------------------- */

static bool is_certificate_name(const char *name) {
  size_t len = strlen(name);
  if (len < 1 || len > CLV_TLS_NAME_MAX || name[0] == '.' || !strcmp(name, "ca")) return false;
  for (const unsigned char *p = (const unsigned char *)name; *p; p++)
    if (*p >= 0x80 || (!isalnum(*p) && !strchr("._-", *p))) return false;
  return true;
}

/* True for letters, digits and hyphens between single dots (RFC 1123); underscores are allowed. */
static bool is_dns_name(const char *name) {
  size_t len = strlen(name), label_len = 0;
  if (len < 1 || len > 253) return false;
  for (const unsigned char *p = (const unsigned char *)name; *p; p++) {
    bool is_dot = *p == '.';
    if (is_dot ? label_len == 0 : *p >= 0x80 || (!isalnum(*p) && *p != '-' && *p != '_'))
      return false;
    label_len = is_dot ? 0 : label_len + 1;
    if (label_len > 63) return false;
  }
  return label_len > 0;
}

static bool is_ip_address(const char *text) {
  ASN1_OCTET_STRING *address = a2i_IPADDRESS(text);
  ASN1_OCTET_STRING_free(address);
  ERR_clear_error();
  return address != NULL;
}

static clv_code check_names(const clv_tls_issue_options *o, clv_err *err) {
  char reason[CLV_TLS_ERROR_LEN];
  if (o->n_uris != 1)
    return clv_fail(err, CLV_INVALID, "a certificate needs exactly one URI, %zu given", o->n_uris);
  if (!clv_tls_uri_is_valid((const unsigned char *)o->uris[0], strlen(o->uris[0]), reason))
    return clv_fail(err, CLV_INVALID, "--uri: '%.100s' is not an identity: %s", o->uris[0], reason);
  for (size_t i = 0; i < o->n_dns_names; i++) {
    if (is_ip_address(o->dns_names[i]))
      return clv_fail(err, CLV_INVALID, "--dns: '%s' is an address, not a DNS name: use --ip",
                      o->dns_names[i]);
    if (!is_dns_name(o->dns_names[i]))
      return clv_fail(err, CLV_INVALID, "--dns: '%.100s' is not a DNS name", o->dns_names[i]);
  }
  return CLV_OK;
}

static clv_code check_usual_options(const clv_tls_issue_options *o, clv_err *err) {
  CLV_TRY(check_names(o, err));
  CLV_TRY(check_days(o->validity_days, err));
  int64_t validity_s = (int64_t)o->validity_days * DAY_S;
  if (o->not_before_offset_s <= -validity_s || o->not_before_offset_s > validity_s)
    return clv_fail(err, CLV_INVALID, "validity of %d days beginning %lld seconds from now",
                    o->validity_days, (long long)o->not_before_offset_s);
  if (o->usage & ~(unsigned)(CLV_TLS_CLIENT | CLV_TLS_SERVER))
    return clv_fail(err, CLV_INVALID, "usage 0x%x; it must be client, server or both", o->usage);
  if (o->rsa_bits && o->rsa_bits < 2048)
    return clv_fail(err, CLV_INVALID, "an RSA key of %u bits is too weak, at least 2048",
                    o->rsa_bits);
  return CLV_OK;
}

/* Checks limits that hold for unusual certificates too. */
static clv_code check_options(const clv_tls_issue_options *o, clv_err *err) {
  if (!is_certificate_name(o->cert_name))
    return clv_fail(err, CLV_INVALID,
                    "\"%.80s\" cannot name a certificate: 1 to %d of A-Z a-z 0-9 . _ -, not "
                    "beginning with a dot, and not \"ca\"",
                    o->cert_name, CLV_TLS_NAME_MAX);
  if (o->n_uris > CLV_TLS_MAX_NAMES || o->n_dns_names > CLV_TLS_MAX_NAMES ||
      o->n_ip_addresses > CLV_TLS_MAX_NAMES)
    return clv_fail(err, CLV_INVALID, "more than %d names of one kind", CLV_TLS_MAX_NAMES);
  if (o->rsa_bits && (o->rsa_bits < 1024 || o->rsa_bits > 4096))
    return clv_fail(err, CLV_INVALID, "an RSA key of %u bits; it must be 2048 to 4096",
                    o->rsa_bits);
  return o->allow_unusual ? CLV_OK : check_usual_options(o, err);
}

/* ---- issuing a certificate: reading the CA --------------------------------------------------- */

void clv_tls_authority_clear(clv_tls_authority *ca) {
  if (!ca) return;
  X509_free(ca->cert);
  EVP_PKEY_free(ca->key);
}

clv_code clv_tls_authority_load(const char *dir, clv_tls_authority *ca, clv_err *err) {
  CLV_AUTO(clv_freep) char *key_path = NULL;
  CLV_AUTO(clv_freep) char *cert_path = NULL;
  CLV_AUTO(clv_secret_freep) char *key_pem = NULL;
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *certs = NULL;
  CLV_TRY(path_of(dir, "ca", ".key", &key_path, err));
  CLV_TRY(path_of(dir, "ca", ".pem", &cert_path, err));
  if (clv_tls_certs_read(cert_path, &certs, err) != CLV_OK)
    return clv_err_prefix(err, "no CA in %s (make one with certs init)", dir);
  CLV_TRY(clv_tls_key_read(key_path, &key_pem, err));
  CLV_TRY(clv_tls_key_parse(key_pem, key_path, &ca->key, err));
  ca->cert = sk_X509_shift(certs);
  if (X509_check_private_key(ca->cert, ca->key) != 1) {
    ERR_clear_error();
    return clv_fail(err, CLV_INVALID, "%s does not belong to %s", key_path, cert_path);
  }
  if (X509_check_ca(ca->cert) == 0 ||
      !clv_tls_asn1_seconds(X509_get0_notAfter(ca->cert), &ca->not_after))
    return clv_fail(err, CLV_INVALID, "%s: not a CA certificate", cert_path);
  return CLV_OK;
}

/* ---- issuing a certificate: making the leaf -------------------------------------------------- */

static bool append_name(GENERAL_NAMES *names, int type, ASN1_STRING *value) {
  GENERAL_NAME *name = value ? GENERAL_NAME_new() : NULL;
  if (!name) {
    ASN1_STRING_free(value);
    return false;
  }
  GENERAL_NAME_set0_value(name, type, value);
  if (sk_GENERAL_NAME_push(names, name) > 0) return true;
  GENERAL_NAME_free(name);
  return false;
}

static bool append_texts(GENERAL_NAMES *names, int type, const char *const *texts, size_t n) {
  for (size_t i = 0; i < n; i++) {
    ASN1_IA5STRING *value = ASN1_IA5STRING_new();
    if (value && ASN1_STRING_set(value, texts[i], (int)strlen(texts[i])) != 1) {
      ASN1_IA5STRING_free(value);
      return false;
    }
    if (!append_name(names, type, value)) return false;
  }
  return true;
}

static clv_code add_san(X509 *cert, const clv_tls_issue_options *o, clv_err *err) {
  if (o->n_uris + o->n_dns_names + o->n_ip_addresses == 0) return CLV_OK;
  CLV_AUTO(clv_names_freep) GENERAL_NAMES *names = sk_GENERAL_NAME_new_null();
  if (!names || !append_texts(names, GEN_URI, o->uris, o->n_uris) ||
      !append_texts(names, GEN_DNS, o->dns_names, o->n_dns_names))
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  for (size_t i = 0; i < o->n_ip_addresses; i++)
    if (!append_name(names, GEN_IPADD, a2i_IPADDRESS(o->ip_addresses[i]))) {
      ERR_clear_error();
      return clv_fail(err, CLV_INVALID, "--ip: '%.80s' is not an IPv4 or IPv6 address",
                      o->ip_addresses[i]);
    }
  if (X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, 0) != 1)
    return fail_ossl(err, "the names could not be set");
  return CLV_OK;
}

/* Extended key usage for each combination of the bits of `usage`. */
static const char *const usage_texts[] = {
    "clientAuth,serverAuth",
    "clientAuth",
    "serverAuth",
    "clientAuth,serverAuth",
    "codeSigning",
    "clientAuth,codeSigning",
    "serverAuth,codeSigning",
    "clientAuth,serverAuth,codeSigning",
};

static clv_code check_leaf_end(const clv_tls_issue_options *o, const clv_tls_authority *ca,
                               int64_t until, clv_err *err) {
  if (o->allow_unusual || until <= ca->not_after) return CLV_OK;
  char when[CLV_TLS_TIME_TEXT];
  return clv_fail(err, CLV_INVALID,
                  "%d days would outlive the CA, which ends %s; take fewer days or make a new CA",
                  o->validity_days, clv_tls_format_time(ca->not_after, when));
}

static clv_code make_leaf(const clv_tls_issue_options *o, const clv_tls_authority *ca,
                          EVP_PKEY *key, X509 **ret_cert, clv_err *err) {
  const extension extensions[] = {
      {NID_basic_constraints, "critical,CA:FALSE"},   {NID_key_usage, "critical,digitalSignature"},
      {NID_ext_key_usage, usage_texts[o->usage & 7]}, {NID_subject_key_identifier, "hash"},
      {NID_authority_key_identifier, "keyid:always"},
  };
  int64_t from = clv_tls_now() + o->not_before_offset_s;
  int64_t until = from + (int64_t)o->validity_days * DAY_S;
  CLV_TRY(check_leaf_end(o, ca, until, err));
  CLV_AUTO(clv_x509_freep) X509 *cert = NULL;
  CLV_TRY(make_unsigned_cert(o->cert_name, key, from, until, &cert, err));
  if (X509_set_issuer_name(cert, X509_get_subject_name(ca->cert)) != 1)
    return fail_ossl(err, "the issuer could not be set");
  CLV_TRY(add_extensions(cert, ca->cert, extensions, CLV_COUNT(extensions), err));
  CLV_TRY(add_san(cert, o, err));
  /* Ed25519 and Ed448 keys sign without a separate digest. */
  const EVP_MD *md =
      EVP_PKEY_is_a(ca->key, "ED25519") || EVP_PKEY_is_a(ca->key, "ED448") ? NULL : EVP_sha256();
  if (X509_sign(cert, ca->key, md) <= 0) return fail_ossl(err, "the CA could not sign");
  *ret_cert = clv_steal(&cert);
  return CLV_OK;
}

clv_code clv_tls_issue_cert(const clv_tls_issue_options *o, clv_err *err) {
  static const char fix[] = "take another name, or overwrite it (--force)";
  CLV_TRY(check_options(o, err));
  const char *out_dir = o->out_dir ? o->out_dir : o->ca_dir;
  CLV_AUTO(clv_freep) char *key_path = NULL;
  CLV_AUTO(clv_freep) char *cert_path = NULL;
  CLV_TRY(path_of(out_dir, o->cert_name, ".key", &key_path, err));
  CLV_TRY(path_of(out_dir, o->cert_name, ".pem", &cert_path, err));
  if (!o->may_overwrite) {
    CLV_TRY(refuse_existing(key_path, fix, err));
    CLV_TRY(refuse_existing(cert_path, fix, err));
  }
  CLV_AUTO(clv_tls_authority_clear) clv_tls_authority ca = {0};
  CLV_TRY(clv_tls_authority_load(o->ca_dir, &ca, err));
  CLV_AUTO(clv_pkey_freep)
  EVP_PKEY *key = o->rsa_bits ? EVP_RSA_gen(o->rsa_bits) : EVP_EC_gen("P-256");
  if (!key) return fail_ossl(err, "no new key");
  CLV_AUTO(clv_x509_freep) X509 *cert = NULL;
  CLV_TRY(make_leaf(o, &ca, key, &cert, err));
  CLV_TRY(clv_mkdirs(out_dir, err));
  CLV_TRY(write_key(key_path, key, err));
  return write_cert(cert_path, cert, err);
}
