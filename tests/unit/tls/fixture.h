/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixtures that the tests of this folder share: a scratch folder with a CA, certificates from the
 * product's own CA (invalid ones too), and certificates made by hand that this CA cannot make.
 */
#ifndef CLEAVE_TESTS_TLS_FIXTURE_H
#define CLEAVE_TESTS_TLS_FIXTURE_H

#include "common/net/tls/tls.h"
#include "tests/unit/files.h"
#include "tests/unit/must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

enum { DAY_S = 86400 };

static UNUSED void write_text(const char *path, const void *data, size_t len, unsigned mode) {
  clv_err err;
  must(clv_file_write_durable(path, data, len, mode, &err), &err);
  assert_int_equal(chmod(path, mode), 0);
}

static UNUSED clv_bytes read_text(const char *path) {
  clv_bytes text = {0};
  clv_err err;
  must(clv_file_read(path, CLV_TLS_FILE_MAX, &text, &err), &err);
  return text;
}

/* Returns options of a valid certificate of the scratch CA. Tests change single fields. */
static UNUSED clv_tls_issue_options make_valid_options(const char *name) {
  static const char *const uri[] = {"spiffe://cleave/worker-1"};
  return (clv_tls_issue_options){.ca_dir = scratch,
                                 .cert_name = name,
                                 .uris = uri,
                                 .n_uris = 1,
                                 .validity_days = 30,
                                 .not_before_offset_s = -300};
}

static UNUSED void issue_certificate(clv_tls_issue_options options) {
  clv_err err;
  must(clv_tls_issue_cert(&options, &err), &err);
}

/* ---- certificates made without the functions under test -------------------------------------- */

typedef struct certificate_spec {
  const char *name, *san_text,
      *eku_text; /* texts of OpenSSL's extensions; NULL: without the extension */
  X509 *issuer;  /* certificate of the issuer; NULL: the certificate is self-signed */
  EVP_PKEY *issuer_key;
  bool is_ca;
  int valid_days;
} certificate_spec;

static UNUSED void add_text_extension(X509 *cert, X509 *issuer, int nid, const char *text) {
  X509V3_CTX ctx;
  X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
  X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, text);
  assert_non_null(ext);
  assert_int_equal(X509_add_ext(cert, ext, -1), 1);
  X509_EXTENSION_free(ext);
}

static UNUSED void sign_certificate_by_hand(X509 *cert, const certificate_spec *spec,
                                            EVP_PKEY *key) {
  assert_true(X509_sign(cert, spec->issuer ? spec->issuer_key : key, EVP_sha256()) > 0);
}

static UNUSED X509 *make_certificate_by_hand(const certificate_spec *spec, EVP_PKEY *key) {
  static long serial = 1000;
  X509 *cert = X509_new();
  X509_set_version(cert, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), serial++);
  X509_gmtime_adj(X509_getm_notBefore(cert), -60);
  X509_gmtime_adj(X509_getm_notAfter(cert), (long)spec->valid_days * DAY_S + 60);
  X509_set_pubkey(cert, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                             (const unsigned char *)spec->name, -1, -1, 0);
  X509 *issuer = spec->issuer ? spec->issuer : cert;
  X509_set_issuer_name(cert, X509_get_subject_name(issuer));
  add_text_extension(cert, issuer, NID_basic_constraints,
                     spec->is_ca ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (spec->san_text) add_text_extension(cert, issuer, NID_subject_alt_name, spec->san_text);
  if (spec->eku_text) add_text_extension(cert, issuer, NID_ext_key_usage, spec->eku_text);
  sign_certificate_by_hand(cert, spec, key);
  return cert;
}

static UNUSED void save_key(const char *path, EVP_PKEY *key) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
  fclose(file);
  assert_int_equal(chmod(path, 0600), 0);
}

static UNUSED void save_certs(const char *path, X509 *const *certs, size_t n) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  for (size_t i = 0; i < n; i++) assert_int_equal(PEM_write_X509(file, certs[i]), 1);
  fclose(file);
}

/* Returns the certificate as PEM. The caller frees it with free(). */
static UNUSED char *get_pem(X509 *cert) {
  BIO *bio = BIO_new(BIO_s_mem());
  assert_int_equal(PEM_write_bio_X509(bio, cert), 1);
  char *data = NULL;
  long len = BIO_get_mem_data(bio, &data);
  char *pem = strndup(data, (size_t)len);
  BIO_free(bio);
  return pem;
}

#endif
