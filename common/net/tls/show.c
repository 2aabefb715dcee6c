/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptions of certificates as text or JSON, from one struct of their fields.
 */
#include "common/net/tls/tls_int.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_TEXT = 128 };

/* Fields of one certificate. Lists are JSON arrays or comma-separated text, as requested. */
typedef struct facts {
  char *subject, *issuer;
  clv_bytes uri, dns, ip, usage;
  char identity[CLV_TLS_URI_LEN]; /* the only URI of the certificate; empty: no or several URIs */
  int64_t valid_from, valid_until;
  char key_text[SHORT_TEXT];
  char serial[SHORT_TEXT];
  char fingerprint[EVP_MAX_MD_SIZE * 3 + 1];
  bool is_ca, is_revoked;
} facts;

static void facts_clear(facts *f) {
  free(f->subject);
  free(f->issuer);
  clv_bytes *lists[] = {&f->uri, &f->dns, &f->ip, &f->usage};
  for (size_t i = 0; i < CLV_COUNT(lists); i++) clv_bytes_done(lists[i]);
}

/* ---- reading the fields of a certificate ----------------------------------------------------- */

/* Returns a name as RFC 2253 text; everything but printable ASCII is escaped. */
static clv_code name_to_text(const X509_NAME *name, char **ret_text, clv_err *err) {
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new(BIO_s_mem());
  if (!bio || X509_NAME_print_ex(bio, name, 0, XN_FLAG_RFC2253) < 0)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  char *data = NULL;
  size_t len = (size_t)BIO_get_mem_data(bio, &data);
  char *text = NULL;
  CLV_TRY(clv_alloc(len + 1, 1, &text, err));
  if (len) memcpy(text, data, len);
  *ret_text = text;
  return CLV_OK;
}

static void add_item(clv_bytes *list, bool as_json, const char *text) {
  if (list->len) clv_bytes_puts(list, as_json ? "," : ", ");
  if (as_json)
    clv_bytes_add_json(list, text);
  else
    clv_bytes_puts(list, text);
}

/* Adds a name from the certificate. Everything but printable ASCII becomes \xNN, so it is safe to
 * print on a terminal. */
static void add_name(clv_bytes *list, bool as_json, const ASN1_STRING *value) {
  CLV_AUTO(clv_bytes_done) clv_bytes safe = {0};
  const unsigned char *data = ASN1_STRING_get0_data(value);
  for (int i = 0; i < ASN1_STRING_length(value); i++) {
    if (data[i] >= 0x20 && data[i] < 0x7f)
      clv_bytes_add(&safe, &data[i], 1);
    else
      clv_bytes_printf(&safe, "\\x%02x", data[i]);
  }
  add_item(list, as_json, safe.data ? safe.data : "");
}

static void add_address(clv_bytes *list, bool as_json, const ASN1_STRING *value) {
  char text[INET6_ADDRSTRLEN] = "damaged address";
  int len = ASN1_STRING_length(value);
  if (len == 4 || len == 16)
    inet_ntop(len == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(value), text, sizeof text);
  add_item(list, as_json, text);
}

static void gather_names(facts *f, const X509 *cert, bool as_json) {
  CLV_AUTO(clv_names_freep)
  GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
  for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
    const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_URI) add_name(&f->uri, as_json, name->d.uniformResourceIdentifier);
    if (name->type == GEN_DNS) add_name(&f->dns, as_json, name->d.dNSName);
    if (name->type == GEN_IPADD) add_address(&f->ip, as_json, name->d.iPAddress);
  }
}

static void gather_usage(facts *f, const X509 *cert, bool as_json) {
  CLV_AUTO(clv_eku_freep)
  EXTENDED_KEY_USAGE *eku = X509_get_ext_d2i(cert, NID_ext_key_usage, NULL, NULL);
  for (int i = 0; i < sk_ASN1_OBJECT_num(eku); i++) {
    const ASN1_OBJECT *object = sk_ASN1_OBJECT_value(eku, i);
    char oid[SHORT_TEXT];
    int nid = OBJ_obj2nid(object);
    OBJ_obj2txt(oid, sizeof oid, object, 1);
    add_item(&f->usage, as_json, nid == NID_undef ? oid : OBJ_nid2sn(nid));
  }
}

static void gather_key(facts *f, const X509 *cert) {
  const EVP_PKEY *key = X509_get0_pubkey(cert);
  const char *type = key ? EVP_PKEY_get0_type_name(key) : NULL;
  char curve[64] = "";
  size_t used = 0;
  if (key && EVP_PKEY_is_a(key, "EC"))
    (void)EVP_PKEY_get_group_name(key, curve, sizeof curve, &used);
  snprintf(f->key_text, sizeof f->key_text, "%s%s%s, %d bits", type ? type : "unknown",
           *curve ? " " : "", curve, key ? EVP_PKEY_get_bits(key) : 0);
}

static clv_code gather_serial_and_fingerprint(facts *f, const X509 *cert, clv_err *err) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  if (X509_digest(cert, EVP_sha256(), digest, &n) != 1)
    return clv_fail(err, CLV_INTERNAL, "no SHA-256 of the certificate");
  for (unsigned i = 0; i < n; i++)
    snprintf(f->fingerprint + 3 * i, 4, "%02X%s", digest[i], i + 1 < n ? ":" : "");
  CLV_AUTO(clv_bn_freep) BIGNUM *serial = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), NULL);
  char *hex = serial ? BN_bn2hex(serial) : NULL;
  snprintf(f->serial, sizeof f->serial, "%s", hex ? hex : "unknown");
  OPENSSL_free(hex);
  return CLV_OK;
}

static clv_code gather_facts(facts *f, X509 *cert, bool as_json, clv_err *err) {
  CLV_TRY(name_to_text(X509_get_subject_name(cert), &f->subject, err));
  CLV_TRY(name_to_text(X509_get_issuer_name(cert), &f->issuer, err));
  if (!clv_tls_asn1_seconds(X509_get0_notBefore(cert), &f->valid_from) ||
      !clv_tls_asn1_seconds(X509_get0_notAfter(cert), &f->valid_until))
    return clv_fail(err, CLV_INVALID, "the certificate's validity is damaged");
  gather_names(f, cert, as_json);
  gather_usage(f, cert, as_json);
  gather_key(f, cert);
  f->is_ca = X509_check_ca(cert) != 0;
  if (clv_tls_uri_of_x509(cert, f->identity, sizeof f->identity, NULL) != CLV_OK)
    f->identity[0] = '\0';
  CLV_TRY(gather_serial_and_fingerprint(f, cert, err));
  ERR_clear_error();
  if (f->uri.failed || f->dns.failed || f->ip.failed || f->usage.failed)
    return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return CLV_OK;
}

/* ---- writing a description ------------------------------------------------------------------- */

static const char *validity_text(const facts *f, int64_t now) {
  return f->is_revoked          ? "revoked"
         : now > f->valid_until ? "expired"
         : now < f->valid_from  ? "not yet valid"
                                : "valid";
}

static const char *list_text_or_dash(const clv_bytes *list) {
  return list->data ? list->data : "-";
}
static const char *list_text_or_empty(const clv_bytes *list) {
  return list->data ? list->data : "";
}

static void print_text(clv_bytes *out, const facts *f) {
  char valid_from[CLV_TLS_TIME_TEXT], valid_until[CLV_TLS_TIME_TEXT], span[CLV_TLS_TIME_TEXT];
  int64_t now = clv_tls_now();
  clv_bytes_printf(out, "subject      %s%s\n", f->subject, f->is_ca ? "  (a CA)" : "");
  clv_bytes_printf(out, "issuer       %s\n", f->issuer);
  clv_bytes_printf(out, "URI          %s%s\n", list_text_or_dash(&f->uri),
                   f->identity[0] || f->is_ca ? "" : "  (not an identity: exactly one is needed)");
  clv_bytes_printf(out, "DNS          %s\n", list_text_or_dash(&f->dns));
  clv_bytes_printf(out, "addresses    %s\n", list_text_or_dash(&f->ip));
  clv_bytes_printf(out, "usage        %s\n", list_text_or_dash(&f->usage));
  clv_bytes_printf(out, "valid        %s to %s\n", clv_tls_format_time(f->valid_from, valid_from),
                   clv_tls_format_time(f->valid_until, valid_until));
  clv_tls_format_duration(now < f->valid_from ? f->valid_from - now : f->valid_until - now, span);
  clv_bytes_printf(out,
                   now > f->valid_until  ? "             EXPIRED %s ago\n"
                   : now < f->valid_from ? "             NOT YET VALID, begins in %s\n"
                                         : "             %s left\n",
                   span);
  if (f->is_revoked) clv_bytes_puts(out, "             REVOKED, by crl.pem beside it\n");
  clv_bytes_printf(out, "key          %s\n", f->key_text);
  clv_bytes_printf(out, "serial       %s\n", f->serial);
  clv_bytes_printf(out, "SHA-256      %s\n", f->fingerprint);
}

static void print_json(clv_bytes *out, const facts *f) {
  clv_bytes_puts(out, "{\"subject\":");
  clv_bytes_add_json(out, f->subject);
  clv_bytes_puts(out, ",\"issuer\":");
  clv_bytes_add_json(out, f->issuer);
  clv_bytes_printf(out, ",\"ca\":%s,\"identity\":", f->is_ca ? "true" : "false");
  if (f->identity[0])
    clv_bytes_add_json(out, f->identity);
  else
    clv_bytes_puts(out, "null");
  clv_bytes_printf(out, ",\"uri\":[%s],\"dns\":[%s],\"ip\":[%s],\"usage\":[%s]",
                   list_text_or_empty(&f->uri), list_text_or_empty(&f->dns),
                   list_text_or_empty(&f->ip), list_text_or_empty(&f->usage));
  clv_bytes_printf(out, ",\"not_before\":%" PRId64 ",\"not_after\":%" PRId64, f->valid_from,
                   f->valid_until);
  clv_bytes_printf(out, ",\"days_left\":%" PRId64 ",\"state\":\"%s\",\"key\":",
                   clv_tls_days_until(f->valid_until), validity_text(f, clv_tls_now()));
  clv_bytes_add_json(out, f->key_text);
  clv_bytes_printf(out, ",\"serial\":\"%s\",\"sha256\":\"%s\"}", f->serial, f->fingerprint);
}

/* Reads crl.pem in the folder of `path`, if that file exists. */
static clv_code read_crl_in_folder(const char *path, clv_tls_crl **ret, clv_err *err) {
  const char *slash = strrchr(path, '/');
  char list[4096];
  int n = snprintf(list, sizeof list, "%.*scrl.pem", slash ? (int)(slash - path + 1) : 0, path);
  if (n >= (int)sizeof list || access(list, F_OK) != 0) return CLV_OK;
  return clv_tls_crl_load(list, NULL, ret, err);
}

static bool is_in_crl(const clv_tls_crl *crl, const X509 *cert) {
  char issuer[CLV_TLS_ISSUER_LEN], serial[CLV_TLS_SERIAL_LEN];
  clv_tls_issuer_text(X509_get_issuer_name(cert), issuer);
  clv_tls_serial_text(X509_get0_serialNumber(cert), serial);
  return crl && clv_tls_crl_has_cert(crl, issuer, serial);
}

clv_code clv_tls_show_certs(const char *path, clv_bytes *out, bool as_json, clv_err *err) {
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *certs = NULL;
  CLV_TRY(clv_tls_certs_read(path, &certs, err));
  CLV_AUTO(clv_tls_crl_freep) clv_tls_crl *crl = NULL;
  CLV_TRY(read_crl_in_folder(path, &crl, err));
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  for (int i = 0; i < sk_X509_num(certs); i++) {
    CLV_AUTO(facts_clear) facts f = {0};
    if (gather_facts(&f, sk_X509_value(certs, i), as_json, err) != CLV_OK)
      return clv_err_prefix(err, "%s", path);
    f.is_revoked = is_in_crl(crl, sk_X509_value(certs, i));
    clv_bytes_puts(&text, as_json ? (i ? "," : "[") : (i ? "\n" : ""));
    if (as_json)
      print_json(&text, &f);
    else
      print_text(&text, &f);
  }
  if (as_json) clv_bytes_puts(&text, "]\n");
  if (!text.failed) clv_bytes_add(out, text.data, text.len);
  if (text.failed || out->failed) return clv_fail(err, CLV_EXHAUSTED, "out of memory");
  return CLV_OK;
}
