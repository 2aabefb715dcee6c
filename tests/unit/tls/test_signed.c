/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests signed files: who may sign them, and what else a signature can be. OpenSSL itself makes
 * each attack.
 */
#include "tests/unit/tls/fixture.h"

#include <openssl/cms.h>

static const char text[] = "version: 1\nkinds: [gradient]\n";

typedef struct signers {
  EVP_PKEY *ca_key, *other_ca_key, *key;
  X509 *ca, *other_ca, *approver, *without_usage, *server, *expired, *of_other_ca;
} signers;

static signers p;

static X509 *make_leaf(const char *name, const char *eku, bool other, int days) {
  return make_certificate_by_hand(
      &(certificate_spec){.name = name,
                          .eku_text = eku,
                          .issuer = other ? p.other_ca : p.ca,
                          .issuer_key = other ? p.other_ca_key : p.ca_key,
                          .valid_days = days},
      p.key);
}

static int make_people(void **state) {
  (void)state;
  p.ca_key = EVP_EC_gen("P-256");
  p.other_ca_key = EVP_EC_gen("P-256");
  p.key = EVP_EC_gen("P-256");
  p.ca = make_certificate_by_hand(
      &(certificate_spec){.name = "approvers", .is_ca = true, .valid_days = 30}, p.ca_key);
  p.other_ca = make_certificate_by_hand(
      &(certificate_spec){.name = "session CA", .is_ca = true, .valid_days = 30}, p.other_ca_key);
  p.approver = make_leaf("Dr. Yes", "emailProtection", false, 30);
  p.without_usage = make_leaf("plain", NULL, false, 30);
  p.server = make_leaf("worker-1", "serverAuth,clientAuth", false, 30);
  p.expired = make_leaf("late", "emailProtection", false, -2);
  p.of_other_ca = make_leaf("Dr. Yes", "emailProtection", true, 30);
  return 0;
}

static void free_cms(CMS_ContentInfo **cms) { CMS_ContentInfo_free(*cms); }

/* Returns the signature as PEM or DER. flags: of CMS_sign. */
static clv_bytes pack_signature(CMS_ContentInfo *cms, bool is_pem) {
  clv_bytes out = {0};
  char *data = NULL;
  BIO *bio = BIO_new(BIO_s_mem());
  assert_int_equal(is_pem ? PEM_write_bio_CMS(bio, cms) : i2d_CMS_bio(bio, cms), 1);
  long n = BIO_get_mem_data(bio, &data);
  clv_bytes_add(&out, data, (size_t)n);
  BIO_free(bio);
  return out;
}

static clv_bytes sign_text(X509 *cert, const char *what, unsigned flags, const EVP_MD *md, int n) {
  unsigned all = flags | CMS_BINARY | CMS_PARTIAL;
  CLV_AUTO(free_cms) CMS_ContentInfo *cms = CMS_sign(NULL, NULL, NULL, NULL, all);
  BIO *in = BIO_new_mem_buf(what, -1);
  assert_non_null(cms);
  for (int i = 0; i < n; i++)
    assert_non_null(CMS_add1_signer(cms, cert, p.key, md, i ? all | CMS_NOCERTS : all));
  if (n) assert_int_equal(CMS_final(cms, in, NULL, all), 1);
  BIO_free(in);
  return pack_signature(cms, !(flags & CMS_NOATTR));
}

static clv_code check_signature(const clv_bytes *signature, const char *what, char *signer,
                                clv_err *err) {
  CLV_AUTO(clv_freep) char *ca = get_pem(p.ca);
  const clv_tls_signed file = {.data = what,
                               .data_len = strlen(what),
                               .signature = signature->data,
                               .signature_len = signature->len,
                               .ca_pem = ca};
  return clv_tls_check_signature(&file, signer, err);
}

static void assert_refused(clv_bytes signature, const char *what, const char *why) {
  char signer[CLV_TLS_SIGNER_LEN] = "nobody";
  clv_err err = {0};
  clv_code code = check_signature(&signature, what, signer, &err);
  expect_error(CLV_UNAUTHENTICATED, why, code, &err);
  assert_string_equal(signer, "nobody");
  clv_bytes_done(&signature);
}

static void assert_accepted(clv_bytes signature, const char *who) {
  char signer[CLV_TLS_SIGNER_LEN];
  clv_err err = {0};
  must(check_signature(&signature, text, signer, &err), &err);
  assert_string_equal(signer, who);
  clv_bytes_done(&signature);
}

static void approver_signatures_are_accepted(void **state) {
  (void)state;
  assert_accepted(sign_text(p.approver, text, CMS_DETACHED, EVP_sha256(), 1), "CN=Dr. Yes");
  assert_accepted(sign_text(p.approver, text, CMS_DETACHED | CMS_NOATTR, EVP_sha512(), 1),
                  "CN=Dr. Yes");
  assert_accepted(sign_text(p.without_usage, text, CMS_DETACHED, EVP_sha256(), 1), "CN=plain");
}

static void other_signers_are_refused(void **state) {
  (void)state;
  assert_refused(sign_text(p.of_other_ca, text, CMS_DETACHED, EVP_sha256(), 1), text,
                 "unable to get local issuer certificate");
  assert_refused(sign_text(p.server, text, CMS_DETACHED, EVP_sha256(), 1), text,
                 "certificate purpose");
  assert_refused(sign_text(p.expired, text, CMS_DETACHED, EVP_sha256(), 1), text, "expired");
}

static void signature_of_other_bytes_is_refused(void **state) {
  (void)state;
  assert_refused(sign_text(p.approver, text, CMS_DETACHED, EVP_sha256(), 1),
                 "version: 1\nkinds: [gradient, state]\n", "the signature does not hold");
  assert_refused(sign_text(p.approver, text, CMS_DETACHED, EVP_sha256(), 1), "",
                 "the signature does not hold");
}

static void malformed_signatures_are_refused(void **state) {
  (void)state;
  assert_refused(sign_text(NULL, text, CMS_DETACHED, EVP_sha256(), 0), text, "has 0 signers");
  assert_refused(sign_text(p.approver, text, CMS_DETACHED, EVP_sha256(), 2), text, "has 2 signers");
  assert_refused(sign_text(p.approver, text, 0, EVP_sha256(), 1), text, "a text of its own");
  assert_refused(sign_text(p.approver, text, CMS_DETACHED, EVP_sha1(), 1), text, "weak digest");
  clv_bytes truncated = sign_text(p.approver, text, CMS_DETACHED | CMS_NOATTR, EVP_sha256(), 1);
  truncated.len /= 2;
  assert_refused(truncated, text, "damaged");
  clv_bytes empty = {0};
  clv_bytes_puts(&empty, "");
  assert_refused(empty, text, "damaged");
  BIO *in = BIO_new_mem_buf(text, -1);
  CLV_AUTO(free_cms) CMS_ContentInfo *data = CMS_data_create(in, 0);
  BIO_free(in);
  assert_refused(pack_signature(data, true), text, "another kind");
}

static void invalid_ca_pem_is_refused(void **state) {
  (void)state;
  clv_err err = {0};
  char signer[CLV_TLS_SIGNER_LEN];
  clv_bytes s = sign_text(p.approver, text, CMS_DETACHED, EVP_sha256(), 1);
  const clv_tls_signed file = {.data = text,
                               .data_len = sizeof text - 1,
                               .signature = s.data,
                               .signature_len = s.len,
                               .ca_pem = "nothing"};
  expect_error(CLV_INVALID, "no certificate", clv_tls_check_signature(&file, signer, &err), &err);
  clv_bytes_done(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(approver_signatures_are_accepted),
      cmocka_unit_test(other_signers_are_refused),
      cmocka_unit_test(signature_of_other_bytes_is_refused),
      cmocka_unit_test(malformed_signatures_are_refused),
      cmocka_unit_test(invalid_ca_pem_is_refused),
  };
  return cmocka_run_group_tests(tests, make_people, NULL);
}
