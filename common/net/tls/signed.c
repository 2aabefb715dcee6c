/* SPDX-License-Identifier: Apache-2.0
 *
 * Check of files with a detached signature. Refuses several things that OpenSSL accepts: no signer,
 * two signers, a signature with embedded text, weak digests and keys.
 */
/* cms.h declares its PEM functions only if pem.h is included before it. */
#include <openssl/pem.h>

#include <openssl/cms.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>

#include "common/net/tls/tls_int.h"

/* MIN_DIGEST_BYTES: size of the smallest digest that is accepted; AUTH_LEVEL: OpenSSL's security
 * level of 112 bits */
enum { MIN_DIGEST_BYTES = 32, AUTH_LEVEL = 2 };

static void cms_freep(CMS_ContentInfo **p) { CMS_ContentInfo_free(*p); }

static clv_code refuse_signature(clv_err *err, const char *why) {
  return clv_fail(err, CLV_UNAUTHENTICATED, "%s", why);
}

static clv_code read_signature(const clv_tls_signed *file, CMS_ContentInfo **ret, clv_err *err) {
  if (file->signature_len > CLV_TLS_FILE_MAX)
    return refuse_signature(err, "the signature is too large");
  ERR_clear_error();
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new_mem_buf(file->signature, (int)file->signature_len);
  if (!bio) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a signature");
  bool is_pem = memmem(file->signature, file->signature_len, "-----BEGIN", 10) != NULL;
  *ret = is_pem ? PEM_read_bio_CMS(bio, NULL, NULL, NULL) : d2i_CMS_bio(bio, NULL);
  if (!*ret)
    return refuse_signature(err,
                            "the signature is damaged, or was not made by `openssl cms -sign`");
  return CLV_OK;
}

static clv_code check_digest(CMS_SignerInfo *signer, clv_err *err) {
  X509_ALGOR *digest = NULL;
  const ASN1_OBJECT *name = NULL;
  CMS_SignerInfo_get0_algs(signer, NULL, NULL, &digest, NULL);
  if (digest) X509_ALGOR_get0(&name, NULL, NULL, digest);
  const EVP_MD *md = name ? EVP_get_digestbyobj(name) : NULL;
  if (md && EVP_MD_get_size(md) >= MIN_DIGEST_BYTES) return CLV_OK;
  return refuse_signature(err, "the signature uses a weak digest; sign with -md sha256");
}

/* Checks that the signature is detached, has one signer and uses a strong digest, because OpenSSL
 * also accepts a signature without a signer. */
static clv_code check_signature_form(CMS_ContentInfo *cms, clv_err *err) {
  if (OBJ_obj2nid(CMS_get0_type(cms)) != NID_pkcs7_signed)
    return refuse_signature(err, "the signature is a CMS message of another kind");
  if (CMS_is_detached(cms) != 1)
    return refuse_signature(err,
                            "the signature contains a text of its own; sign without -nodetach");
  STACK_OF(CMS_SignerInfo) *signers = CMS_get0_SignerInfos(cms);
  int n = signers ? sk_CMS_SignerInfo_num(signers) : 0;
  if (n != 1)
    return clv_fail(err, CLV_UNAUTHENTICATED, "the signature has %d signers, and must have one",
                    CLV_MAX(n, 0));
  return check_digest(sk_CMS_SignerInfo_value(signers, 0), err);
}

static clv_code make_trust_store(const char *ca_pem, X509_STORE **ret, clv_err *err) {
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *cas = NULL;
  CLV_TRY(clv_tls_certs_parse(ca_pem, strlen(ca_pem), "the approvers' authority", &cas, err));
  *ret = X509_STORE_new();
  if (!*ret) return clv_fail(err, CLV_EXHAUSTED, "out of memory for certificates");
  for (int i = 0; i < sk_X509_num(cas); i++)
    if (X509_STORE_add_cert(*ret, sk_X509_value(cas, i)) != 1)
      return clv_fail(err, CLV_EXHAUSTED, "out of memory for certificates");
  X509_VERIFY_PARAM_set_auth_level(X509_STORE_get0_param(*ret), AUTH_LEVEL);
  return CLV_OK;
}

/* Reports which check of the chain failed, or that the bytes differ. */
static clv_code report_verify_error(clv_err *err) {
  const char *data = NULL;
  int flags = 0;
  char why[CLV_TLS_ERROR_LEN], detail[CLV_TLS_ERROR_LEN] = "";
  ERR_peek_last_error_data(&data, &flags);
  if (data && (flags & ERR_TXT_STRING)) snprintf(detail, sizeof detail, " (%s)", data);
  clv_tls_openssl_reason(why);
  clv_text_to_printable(detail);
  return clv_fail(err, CLV_UNAUTHENTICATED, "the signature does not hold: %s%s", why, detail);
}

static void write_signer_name(CMS_ContentInfo *cms, char signer[CLV_TLS_SIGNER_LEN]) {
  /* the caller frees the stack, not its certificates */
  STACK_OF(X509) *certs = CMS_get0_signers(cms);
  CLV_AUTO(clv_bio_freep) BIO *out = BIO_new(BIO_s_mem());
  snprintf(signer, CLV_TLS_SIGNER_LEN, "?");
  if (certs && out && sk_X509_num(certs) == 1) {
    X509_NAME_print_ex(out, X509_get_subject_name(sk_X509_value(certs, 0)), 0, XN_FLAG_RFC2253);
    char *text = NULL;
    long n = BIO_get_mem_data(out, &text);
    if (n > 0) snprintf(signer, CLV_TLS_SIGNER_LEN, "%.*s", (int)n, text);
  }
  sk_X509_free(certs);
  clv_text_to_printable(signer);
}

clv_code clv_tls_check_signature(const clv_tls_signed *file, char signer[CLV_TLS_SIGNER_LEN],
                                 clv_err *err) {
  CLV_AUTO(cms_freep) CMS_ContentInfo *cms = NULL;
  CLV_AUTO(clv_store_freep) X509_STORE *store = NULL;
  if (file->data_len > CLV_TLS_FILE_MAX)
    return refuse_signature(err, "the signed file is too large");
  CLV_TRY(make_trust_store(file->ca_pem, &store, err));
  CLV_TRY(read_signature(file, &cms, err));
  CLV_TRY(check_signature_form(cms, err));
  CLV_AUTO(clv_bio_freep) BIO *data = BIO_new_mem_buf(file->data, (int)file->data_len);
  if (!data) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a signed file");
  if (CMS_verify(cms, NULL, store, data, NULL, CMS_BINARY) != 1) return report_verify_error(err);
  write_signer_name(cms, signer);
  ERR_clear_error();
  return CLV_OK;
}
