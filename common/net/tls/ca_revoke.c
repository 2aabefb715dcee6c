/* SPDX-License-Identifier: Apache-2.0
 *
 * The CA's list of revoked certificates, DIR/crl.pem. Each `certs revoke` rewrites it with a higher
 * number.
 */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/net/tls/tls_int.h"

enum { DAY_S = 86400, BACKDATE_S = 300 };

static clv_code fail_ossl(clv_err *err, const char *what) {
  char why[CLV_TLS_ERROR_LEN];
  return clv_fail(err, CLV_INTERNAL, "%s: %s", what, clv_tls_openssl_reason(why));
}

static void integer_freep(ASN1_INTEGER **p) { ASN1_INTEGER_free(*p); }
static void time_freep(ASN1_TIME **p) { ASN1_TIME_free(*p); }

/* ---- reading the old list -------------------------------------------------------------------- */

static clv_code read_old_list(const char *path, const clv_tls_authority *ca, X509_CRL **ret,
                              clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes pem = {0};
  if (access(path, F_OK) != 0 && errno == ENOENT) return CLV_OK;
  CLV_TRY(clv_file_read(path, CLV_TLS_FILE_MAX, &pem, err));
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new_mem_buf(pem.data, (int)pem.len);
  CLV_AUTO(clv_crl_freep) X509_CRL *crl = bio ? PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL) : NULL;
  bool is_of_this_ca = crl && X509_CRL_verify(crl, ca->key) == 1;
  ERR_clear_error();
  if (!is_of_this_ca)
    return clv_fail(err, CLV_INVALID, "%s: not a list of this CA; move it away first", path);
  *ret = clv_steal(&crl);
  return CLV_OK;
}

static clv_code next_list_number(const X509_CRL *old, ASN1_INTEGER **ret, clv_err *err) {
  CLV_AUTO(integer_freep)
  ASN1_INTEGER *was = old ? X509_CRL_get_ext_d2i(old, NID_crl_number, NULL, NULL) : NULL;
  CLV_AUTO(clv_bn_freep) BIGNUM *n = was ? ASN1_INTEGER_to_BN(was, NULL) : BN_new();
  if (!n || BN_add_word(n, 1) != 1 || !(*ret = BN_to_ASN1_INTEGER(n, NULL)))
    return fail_ossl(err, "no number for the list");
  return CLV_OK;
}

/* ---- writing the new list -------------------------------------------------------------------- */

static bool set_issuer_and_times(X509_CRL *crl, const clv_tls_authority *ca, int days) {
  CLV_AUTO(time_freep) ASN1_TIME *from = ASN1_TIME_set(NULL, (time_t)(clv_tls_now() - BACKDATE_S));
  CLV_AUTO(time_freep)
  ASN1_TIME *until = ASN1_TIME_set(NULL, (time_t)(clv_tls_now() + (int64_t)days * DAY_S));
  return from && until && X509_CRL_set_version(crl, X509_CRL_VERSION_2) == 1 &&
         X509_CRL_set_issuer_name(crl, X509_get_subject_name(ca->cert)) == 1 &&
         X509_CRL_set1_lastUpdate(crl, from) == 1 && X509_CRL_set1_nextUpdate(crl, until) == 1;
}

static bool copy_entry(X509_CRL *crl, X509_REVOKED *from) {
  X509_REVOKED *r = X509_REVOKED_dup(from);
  if (r && X509_CRL_add0_revoked(crl, r) == 1) return true;
  X509_REVOKED_free(r);
  return false;
}

static bool copy_old_entries(X509_CRL *crl, X509_CRL *old) {
  STACK_OF(X509_REVOKED) *list = old ? X509_CRL_get_REVOKED(old) : NULL;
  for (int i = 0; i < sk_X509_REVOKED_num(list); i++)
    if (!copy_entry(crl, sk_X509_REVOKED_value(list, i))) return false;
  return true;
}

static bool add_revoked_cert(X509_CRL *crl, const X509 *cert) {
  X509_REVOKED *existing_entry = NULL;
  ASN1_INTEGER *serial = ASN1_INTEGER_dup(X509_get0_serialNumber(cert));
  CLV_AUTO(integer_freep) ASN1_INTEGER *owned = serial;
  if (!owned) return false;
  if (X509_CRL_get0_by_serial(crl, &existing_entry, serial) == 1) return true;
  CLV_AUTO(time_freep) ASN1_TIME *now = ASN1_TIME_set(NULL, (time_t)clv_tls_now());
  X509_REVOKED *r = X509_REVOKED_new();
  if (r && now && X509_REVOKED_set_serialNumber(r, serial) == 1 &&
      X509_REVOKED_set_revocationDate(r, now) == 1 && X509_CRL_add0_revoked(crl, r) == 1)
    return true;
  X509_REVOKED_free(r);
  return false;
}

static clv_code make_list(const clv_tls_authority *ca, X509_CRL *old, const X509 *cert, int days,
                          X509_CRL **ret, clv_err *err) {
  CLV_AUTO(clv_crl_freep) X509_CRL *crl = X509_CRL_new();
  CLV_AUTO(integer_freep) ASN1_INTEGER *number = NULL;
  CLV_TRY(next_list_number(old, &number, err));
  const EVP_MD *md =
      EVP_PKEY_is_a(ca->key, "ED25519") || EVP_PKEY_is_a(ca->key, "ED448") ? NULL : EVP_sha256();
  if (!crl || !set_issuer_and_times(crl, ca, days) || !copy_old_entries(crl, old) ||
      (cert && !add_revoked_cert(crl, cert)) ||
      X509_CRL_add1_ext_i2d(crl, NID_crl_number, number, 0, 0) != 1 || X509_CRL_sort(crl) != 1 ||
      X509_CRL_sign(crl, ca->key, md) <= 0)
    return fail_ossl(err, "the list could not be made");
  *ret = clv_steal(&crl);
  return CLV_OK;
}

static clv_code write_list(const char *path, X509_CRL *crl, clv_err *err) {
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new(BIO_s_mem());
  if (!bio || PEM_write_bio_X509_CRL(bio, crl) != 1)
    return fail_ossl(err, "the list could not be written as PEM");
  char *data = NULL;
  size_t len = (size_t)BIO_get_mem_data(bio, &data);
  return clv_file_write_durable(path, data, len, 0644, err);
}

/* ---- functions that other files call --------------------------------------------------------- */

static clv_code check_issuer(const char *path, X509 *cert, const clv_tls_authority *ca,
                             clv_err *err) {
  bool is_of_this_ca = X509_verify(cert, ca->key) == 1;
  ERR_clear_error();
  return is_of_this_ca ? CLV_OK : clv_fail(err, CLV_INVALID, "%s: not issued by this CA", path);
}

clv_code clv_tls_ca_revoke(const char *dir, const char *name, int days, clv_err *err) {
  char path[4096], list[4096];
  CLV_AUTO(clv_tls_authority_clear) clv_tls_authority ca = {0};
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *certs = NULL;
  CLV_AUTO(clv_crl_freep) X509_CRL *old = NULL;
  CLV_AUTO(clv_crl_freep) X509_CRL *crl = NULL;
  if (days < 1 || days > CLV_TLS_MAX_DAYS)
    return clv_fail(err, CLV_INVALID, "--days: a list is for 1 to %d days, not %d", days,
                    CLV_TLS_MAX_DAYS);
  int n = snprintf(list, sizeof list, "%s/crl.pem", dir);
  int m = snprintf(path, sizeof path, "%s/%s.pem", dir, name ? name : "ca");
  if (n >= (int)sizeof list || m >= (int)sizeof path)
    return clv_fail(err, CLV_INVALID, "%.100s...: the path is too long", dir);
  CLV_TRY(clv_tls_authority_load(dir, &ca, err));
  if (name) CLV_TRY(clv_tls_certs_read(path, &certs, err));
  X509 *cert = name ? sk_X509_value(certs, 0) : NULL;
  if (cert) CLV_TRY(check_issuer(path, cert, &ca, err));
  CLV_TRY(read_old_list(list, &ca, &old, err));
  CLV_TRY(make_list(&ca, old, cert, days, &crl, err));
  return write_list(list, crl, err);
}
