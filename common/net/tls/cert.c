/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of a certificate: its URI, its usage, its times.
 */
#include "common/net/tls/tls_int.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- times of a certificate ------------------------------------------------------------------ */

int64_t clv_tls_now(void) { return (int64_t)(clv_wall_ms() / 1000u); }

int64_t clv_tls_days_until(int64_t seconds) {
  int64_t left = seconds - clv_tls_now();
  return left / 86400 - (left % 86400 < 0);
}

bool clv_tls_asn1_seconds(const ASN1_TIME *time, int64_t *ret_s) {
  struct tm tm = {0};
  if (!time || ASN1_TIME_to_tm(time, &tm) != 1) return false;
  *ret_s = (int64_t)timegm(&tm);
  return true;
}

const char *clv_tls_format_time(int64_t seconds, char buf[CLV_TLS_TIME_TEXT]) {
  time_t t = (time_t)seconds;
  struct tm tm;
  if (!gmtime_r(&t, &tm) || !strftime(buf, CLV_TLS_TIME_TEXT, "%Y-%m-%d %H:%M:%S UTC", &tm))
    snprintf(buf, CLV_TLS_TIME_TEXT, "second %" PRId64, seconds);
  return buf;
}

const char *clv_tls_format_duration(int64_t seconds, char buf[CLV_TLS_TIME_TEXT]) {
  static const struct {
    int64_t seconds;
    const char *name;
  } units[] = {{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}};
  int64_t n = seconds < 0 ? -seconds : seconds;
  size_t u = 0;
  while (u + 1 < CLV_COUNT(units) && n < units[u].seconds) u++;
  n /= units[u].seconds;
  snprintf(buf, CLV_TLS_TIME_TEXT, "%" PRId64 " %s%s", n, units[u].name, n == 1 ? "" : "s");
  return buf;
}

/* ---- extended key usage of a certificate ----------------------------------------------------- */

bool clv_tls_cert_usage(const X509 *cert, unsigned *ret_usage) {
  static const struct {
    int nid;
    unsigned bit;
  } known[] = {{NID_client_auth, CLV_TLS_CLIENT},
               {NID_server_auth, CLV_TLS_SERVER},
               {NID_code_sign, CLV_TLS_CODE_SIGNING}};
  CLV_AUTO(clv_eku_freep)
  EXTENDED_KEY_USAGE *eku = X509_get_ext_d2i(cert, NID_ext_key_usage, NULL, NULL);
  if (!eku) return false;
  unsigned usage = 0;
  for (int i = 0; i < sk_ASN1_OBJECT_num(eku); i++)
    for (size_t k = 0; k < CLV_COUNT(known); k++)
      if (OBJ_obj2nid(sk_ASN1_OBJECT_value(eku, i)) == known[k].nid) usage |= known[k].bit;
  *ret_usage = usage;
  return true;
}

/* ---- the only URI of a certificate ----------------------------------------------------------- */

/* Returns the length of "scheme://" at the start (RFC 3986, 3.1); 0: none. */
static size_t scheme_length(const unsigned char *data, size_t len) {
  size_t i = 0;
  while (i < len && (isalnum(data[i]) || (i && strchr("+-.", data[i])))) i++;
  if (i == 0 || !isalpha(data[0]) || len - i < 3 || memcmp(data + i, "://", 3) != 0) return 0;
  return i + 3;
}

bool clv_tls_uri_is_valid(const unsigned char *data, size_t len, char reason[CLV_TLS_ERROR_LEN]) {
  if (len >= CLV_TLS_URI_LEN) {
    snprintf(reason, CLV_TLS_ERROR_LEN, "it has %zu bytes, the limit is %d", len,
             CLV_TLS_URI_LEN - 1);
    return false;
  }
  for (size_t i = 0; i < len; i++) {
    if (data[i] > 0x20 && data[i] < 0x7f) continue;
    snprintf(reason, CLV_TLS_ERROR_LEN, "byte 0x%02x at position %zu is not printable ASCII",
             data[i], i);
    return false;
  }
  size_t scheme = scheme_length(data, len);
  if (scheme == 0 || scheme == len || data[scheme] == '/') {
    snprintf(reason, CLV_TLS_ERROR_LEN, "\"%.*s\" does not look like spiffe://domain/name",
             (int)CLV_MIN(len, (size_t)60), (const char *)data);
    return false;
  }
  return true;
}

static clv_code subject_alt_names(const X509 *cert, GENERAL_NAMES **ret_names, clv_err *err) {
  int state = 0;
  GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, &state, NULL);
  if (names) {
    *ret_names = names;
    return CLV_OK;
  }
  if (state == -1)
    return clv_fail(err, CLV_UNAUTHENTICATED,
                    "the certificate has no subject alternative name; it needs exactly one URI");
  if (state == -2)
    return clv_fail(err, CLV_UNAUTHENTICATED,
                    "the certificate has several subject alternative name extensions");
  return clv_fail(err, CLV_UNAUTHENTICATED, "the certificate's alternative name is damaged");
}

clv_code clv_tls_uri_of_x509(const X509 *cert, char *buf, size_t len, clv_err *err) {
  CLV_AUTO(clv_names_freep) GENERAL_NAMES *names = NULL;
  CLV_TRY(subject_alt_names(cert, &names, err));
  const ASN1_IA5STRING *uri = NULL;
  int count = 0;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
    const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue; /* a DNS name may be spelled like a URI */
    uri = name->d.uniformResourceIdentifier;
    count++;
  }
  if (count != 1)
    return clv_fail(err, CLV_UNAUTHENTICATED,
                    "the certificate has %d URI subject alternative names; it needs exactly one",
                    count);
  const unsigned char *data = ASN1_STRING_get0_data(uri);
  size_t n = (size_t)ASN1_STRING_length(uri);
  char reason[CLV_TLS_ERROR_LEN];
  if (!clv_tls_uri_is_valid(data, n, reason))
    return clv_fail(err, CLV_UNAUTHENTICATED, "the certificate's URI is no identity: %s", reason);
  if (n >= len)
    return clv_fail(err, CLV_INVALID, "a URI of %zu bytes, the buffer holds %zu", n, len);
  memcpy(buf, data, n);
  buf[n] = '\0';
  return CLV_OK;
}

clv_code clv_tls_uri_of_pem(const char *pem, char *buf, size_t len, clv_err *err) {
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *certs = NULL;
  clv_err why;
  if (clv_tls_certs_parse(pem, strlen(pem), "peer certificate", &certs, &why) != CLV_OK)
    return clv_fail(err, CLV_UNAUTHENTICATED, "%s", why.text);
  return clv_tls_uri_of_x509(sk_X509_value(certs, 0), buf, len, err);
}
