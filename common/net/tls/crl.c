/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading lists of revoked certificates (RFC 5280, 5). A file has one list for each CA. A list must
 * be signed by one of our CAs. A list of only some certificates (a critical extension) is refused,
 * because it would admit the others.
 */
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/tls/tls_int.h"

enum { CLOCK_SKEW_S = 300 }; /* seconds that the issuer's clock may be ahead */

typedef struct list {
  char issuer[CLV_TLS_ISSUER_LEN];
  int64_t expires_at_s; /* end of validity (nextUpdate), seconds since 1970 */
} list;

struct clv_tls_crl {
  char *path;
  list *lists;
  size_t n_lists;
  char **revoked_serials; /* revoked certificates, each as "issuer\x1fserial", sorted */
  size_t n_revoked_serials;
};

void clv_tls_crl_free(clv_tls_crl *c) {
  if (!c) return;
  for (size_t i = 0; i < c->n_revoked_serials; i++) free(c->revoked_serials[i]);
  free(c->revoked_serials);
  free(c->lists);
  free(c->path);
  free(c);
}

void clv_tls_crl_freep(clv_tls_crl **c) {
  clv_tls_crl_free(*c);
  *c = NULL;
}

/* ---- names of issuers, and serial numbers ---------------------------------------------------- */

void clv_tls_issuer_text(const X509_NAME *name, char buf[CLV_TLS_ISSUER_LEN]) {
  buf[0] = '\0';
  X509_NAME_oneline(name, buf, CLV_TLS_ISSUER_LEN);
  ERR_clear_error();
}

void clv_tls_serial_text(const ASN1_INTEGER *serial, char buf[CLV_TLS_SERIAL_LEN]) {
  CLV_AUTO(clv_bn_freep) BIGNUM *n = ASN1_INTEGER_to_BN(serial, NULL);
  char *hex = n ? BN_bn2hex(n) : NULL;
  snprintf(buf, CLV_TLS_SERIAL_LEN, "%s", hex ? hex : "");
  OPENSSL_free(hex);
  ERR_clear_error();
}

enum { NUMBER_LEN = CLV_TLS_ISSUER_LEN + CLV_TLS_SERIAL_LEN };

static void format_issuer_and_serial(const char *issuer, const char *serial, char buf[NUMBER_LEN]) {
  snprintf(buf, NUMBER_LEN, "%s\x1f%s", issuer, serial);
}

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ---- reading one revocation list ------------------------------------------------------------- */

static bool is_signed_by_any(X509_CRL *crl, const STACK_OF(X509) * ca) {
  for (int i = 0; i < sk_X509_num(ca); i++) {
    X509 *cert = sk_X509_value(ca, i);
    if (X509_NAME_cmp(X509_get_subject_name(cert), X509_CRL_get_issuer(crl)) != 0) continue;
    EVP_PKEY *key = X509_get0_pubkey(cert);
    if (key && X509_CRL_verify(crl, key) == 1) return true;
  }
  ERR_clear_error();
  return false;
}

static clv_code check_list(const clv_tls_crl *c, X509_CRL *crl, const STACK_OF(X509) * ca,
                           list *ret, clv_err *err) {
  int64_t valid_from_s;
  clv_tls_issuer_text(X509_CRL_get_issuer(crl), ret->issuer);
  if (ca && !is_signed_by_any(crl, ca))
    return clv_fail(err, CLV_UNAUTHENTICATED,
                    "%s: no CA of tls.ca has signed the list of %.200s; is it of the same CA?",
                    c->path, ret->issuer);
  if (!clv_tls_asn1_seconds(X509_CRL_get0_lastUpdate(crl), &valid_from_s) ||
      !clv_tls_asn1_seconds(X509_CRL_get0_nextUpdate(crl), &ret->expires_at_s))
    return clv_fail(err, CLV_INVALID, "%s: the list of %.200s has no end of validity (nextUpdate)",
                    c->path, ret->issuer);
  if (valid_from_s > clv_tls_now() + CLOCK_SKEW_S)
    return clv_fail(err, CLV_PRECONDITION,
                    "%s: the list of %.200s begins in the future: compare the clocks", c->path,
                    ret->issuer);
  if (X509_CRL_get_ext_by_critical(crl, 1, -1) >= 0)
    return clv_fail(err, CLV_INVALID, "%s: the list of %.200s covers only some certificates",
                    c->path, ret->issuer);
  for (size_t i = 0; i < c->n_lists; i++)
    if (strcmp(c->lists[i].issuer, ret->issuer) == 0)
      return clv_fail(err, CLV_INVALID, "%s: two lists of %.200s", c->path, ret->issuer);
  return CLV_OK;
}

static clv_code add_revoked_serials(clv_tls_crl *c, const char *issuer, X509_CRL *crl,
                                    clv_err *err) {
  STACK_OF(X509_REVOKED) *revoked = X509_CRL_get_REVOKED(crl);
  size_t n = (size_t)CLV_MAX(sk_X509_REVOKED_num(revoked), 0);
  char serial[CLV_TLS_SERIAL_LEN], text[NUMBER_LEN];
  char **more = realloc(c->revoked_serials, (c->n_revoked_serials + n + 1) * sizeof *more);
  if (!more) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", c->path);
  c->revoked_serials = more;
  for (size_t i = 0; i < n; i++) {
    const X509_REVOKED *r = sk_X509_REVOKED_value(revoked, (int)i);
    clv_tls_serial_text(X509_REVOKED_get0_serialNumber(r), serial);
    format_issuer_and_serial(issuer, serial, text);
    CLV_TRY(clv_strdup(text, &c->revoked_serials[c->n_revoked_serials], err));
    c->n_revoked_serials++;
  }
  return CLV_OK;
}

static clv_code add_list(clv_tls_crl *c, X509_CRL *crl, const STACK_OF(X509) * ca, clv_err *err) {
  list l;
  CLV_TRY(check_list(c, crl, ca, &l, err));
  list *more = realloc(c->lists, (c->n_lists + 1) * sizeof *more);
  if (!more) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", c->path);
  c->lists = more;
  c->lists[c->n_lists++] = l;
  return add_revoked_serials(c, l.issuer, crl, err);
}

/* ---- reading files of lists ------------------------------------------------------------------ */

static clv_code add_all_lists(clv_tls_crl *c, BIO *bio, const STACK_OF(X509) * ca, clv_err *err) {
  for (;;) {
    CLV_AUTO(clv_crl_freep) X509_CRL *crl = PEM_read_bio_X509_CRL(bio, NULL, NULL, NULL);
    if (!crl) break;
    CLV_TRY(add_list(c, crl, ca, err));
  }
  unsigned long last = ERR_peek_last_error();
  bool is_at_end = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (c->n_lists && is_at_end) return CLV_OK;
  return clv_fail(err, CLV_INVALID,
                  is_at_end ? "%s: no list in it (no \"-----BEGIN X509 CRL-----\"); it must be PEM"
                            : "%s: a list is damaged or cut off; copy the file again",
                  c->path);
}

clv_code clv_tls_crl_parse(const char *pem, size_t len, const char *path, const char *ca_pem,
                           clv_tls_crl **ret, clv_err *err) {
  CLV_AUTO(clv_tls_crl_freep) clv_tls_crl *c = NULL;
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *ca = NULL;
  if (len > CLV_TLS_FILE_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %zu bytes, the limit is %d", path, len,
                    CLV_TLS_FILE_MAX);
  CLV_TRY(clv_alloc(1, sizeof *c, &c, err));
  CLV_TRY(clv_strdup(path, &c->path, err));
  if (ca_pem) CLV_TRY(clv_tls_certs_parse(ca_pem, strlen(ca_pem), "tls.ca", &ca, err));
  ERR_clear_error();
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new_mem_buf(pem, (int)len);
  if (!bio) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", path);
  CLV_TRY(add_all_lists(c, bio, ca, err));
  qsort(c->revoked_serials, c->n_revoked_serials, sizeof *c->revoked_serials, compare_texts);
  *ret = clv_steal(&c);
  return CLV_OK;
}

clv_code clv_tls_crl_load(const char *path, const char *ca_pem, clv_tls_crl **ret, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes pem = {0};
  CLV_TRY(clv_file_read(path, CLV_TLS_FILE_MAX, &pem, err));
  return clv_tls_crl_parse(pem.data, pem.len, path, ca_pem, ret, err);
}

/* ---- queries about revoked certificates ------------------------------------------------------ */

bool clv_tls_crl_has_cert(const clv_tls_crl *c, const char *issuer, const char *serial) {
  char text[NUMBER_LEN], *key = text;
  format_issuer_and_serial(issuer, serial, text);
  return bsearch(&key, c->revoked_serials, c->n_revoked_serials, sizeof *c->revoked_serials,
                 compare_texts) != NULL;
}

clv_code clv_tls_crl_check_expiry(const clv_tls_crl *c, const char *issuer, clv_err *err) {
  char when[CLV_TLS_TIME_TEXT];
  bool found = false;
  for (size_t i = 0; i < c->n_lists; i++) {
    const list *l = &c->lists[i];
    if (issuer && strcmp(l->issuer, issuer) != 0) continue;
    found = true;
    if (l->expires_at_s > clv_tls_now()) continue;
    return clv_fail(err, CLV_PRECONDITION,
                    "%s: the list of revoked certificates ended %s, so every peer is refused: "
                    "install a new list (cleave-master certs revoke)",
                    c->path, clv_tls_format_time(l->expires_at_s, when));
  }
  if (found) return CLV_OK;
  return clv_fail(err, CLV_PRECONDITION,
                  "%s: no list of %.200s, so every certificate of that CA is refused", c->path,
                  issuer);
}

int64_t clv_tls_crl_expiry(const clv_tls_crl *c) {
  int64_t earliest_s = INT64_MAX;
  for (size_t i = 0; i < c->n_lists; i++)
    earliest_s = CLV_MIN(earliest_s, c->lists[i].expires_at_s);
  return earliest_s;
}
