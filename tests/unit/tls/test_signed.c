/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests signed files: who may sign them, and which other forms of signature are refused. The test
 * makes each forged file with OpenSSL.
 */
#include "tests/unit/tls/fixture.h"

#include <openssl/cms.h>

static const char text[] = "version: 1\nkinds: [gradient]\n";

typedef struct signers {
  EVP_PKEY *approver_ca_key, *other_ca_key, *key;
  X509 *approver_ca, *other_ca, *approver, *without_usage, *server, *expired, *of_other_ca;
} signers;

static signers all_signers;

static X509 *make_leaf(const char *name, const char *eku, bool is_of_other_ca, int days) {
  return make_certificate_by_hand(
      &(certificate_spec){
          .name = name,
          .eku_text = eku,
          .issuer = is_of_other_ca ? all_signers.other_ca : all_signers.approver_ca,
          .issuer_key = is_of_other_ca ? all_signers.other_ca_key : all_signers.approver_ca_key,
          .valid_days = days},
      all_signers.key);
}

static int make_signers(void **state) {
  (void)state;
  all_signers.approver_ca_key = EVP_EC_gen("P-256");
  all_signers.other_ca_key = EVP_EC_gen("P-256");
  all_signers.key = EVP_EC_gen("P-256");
  all_signers.approver_ca = make_certificate_by_hand(
      &(certificate_spec){.name = "approvers", .is_ca = true, .valid_days = 30},
      all_signers.approver_ca_key);
  all_signers.other_ca = make_certificate_by_hand(
      &(certificate_spec){.name = "session CA", .is_ca = true, .valid_days = 30},
      all_signers.other_ca_key);
  all_signers.approver = make_leaf("Dr. Yes", "emailProtection", false, 30);
  all_signers.without_usage = make_leaf("plain", NULL, false, 30);
  all_signers.server = make_leaf("worker-1", "serverAuth,clientAuth", false, 30);
  all_signers.expired = make_leaf("late", "emailProtection", false, -2);
  all_signers.of_other_ca = make_leaf("Dr. Yes", "emailProtection", true, 30);
  return 0;
}

static void free_cms(CMS_ContentInfo **cms) { CMS_ContentInfo_free(*cms); }

/* Returns the signature as PEM if is_pem, else as DER. */
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

static clv_bytes sign_text(X509 *cert, const char *signed_text, unsigned flags, const EVP_MD *md,
                           int n_signatures) {
  unsigned all_flags = flags | CMS_BINARY | CMS_PARTIAL;
  CLV_AUTO(free_cms) CMS_ContentInfo *cms = CMS_sign(NULL, NULL, NULL, NULL, all_flags);
  BIO *in = BIO_new_mem_buf(signed_text, -1);
  assert_non_null(cms);
  for (int i = 0; i < n_signatures; i++)
    assert_non_null(
        CMS_add1_signer(cms, cert, all_signers.key, md, i ? all_flags | CMS_NOCERTS : all_flags));
  if (n_signatures) assert_int_equal(CMS_final(cms, in, NULL, all_flags), 1);
  BIO_free(in);
  return pack_signature(cms, !(flags & CMS_NOATTR));
}

static clv_code check_signature(const clv_bytes *signature, const char *signed_text, char *signer,
                                clv_err *err) {
  CLV_AUTO(clv_freep) char *approver_ca = get_pem(all_signers.approver_ca);
  const clv_tls_signed file = {.data = signed_text,
                               .data_len = strlen(signed_text),
                               .signature = signature->data,
                               .signature_len = signature->len,
                               .ca_pem = approver_ca};
  return clv_tls_check_signature(&file, signer, err);
}

static void assert_refused(clv_bytes signature, const char *signed_text, const char *wanted_text) {
  char signer[CLV_TLS_SIGNER_LEN] = "nobody";
  clv_err err = {0};
  clv_code code = check_signature(&signature, signed_text, signer, &err);
  expect_error(CLV_UNAUTHENTICATED, wanted_text, code, &err);
  assert_string_equal(signer, "nobody");
  clv_bytes_done(&signature);
}

static void assert_accepted(clv_bytes signature, const char *wanted_signer) {
  char signer[CLV_TLS_SIGNER_LEN];
  clv_err err = {0};
  must(check_signature(&signature, text, signer, &err), &err);
  assert_string_equal(signer, wanted_signer);
  clv_bytes_done(&signature);
}

static void approver_signatures_are_accepted(void **state) {
  (void)state;
  assert_accepted(sign_text(all_signers.approver, text, CMS_DETACHED, EVP_sha256(), 1),
                  "CN=Dr. Yes");
  assert_accepted(sign_text(all_signers.approver, text, CMS_DETACHED | CMS_NOATTR, EVP_sha512(), 1),
                  "CN=Dr. Yes");
  assert_accepted(sign_text(all_signers.without_usage, text, CMS_DETACHED, EVP_sha256(), 1),
                  "CN=plain");
}

static void other_signers_are_refused(void **state) {
  (void)state;
  assert_refused(sign_text(all_signers.of_other_ca, text, CMS_DETACHED, EVP_sha256(), 1), text,
                 "unable to get local issuer certificate");
  assert_refused(sign_text(all_signers.server, text, CMS_DETACHED, EVP_sha256(), 1), text,
                 "certificate purpose");
  assert_refused(sign_text(all_signers.expired, text, CMS_DETACHED, EVP_sha256(), 1), text,
                 "expired");
}

static void signature_of_other_bytes_is_refused(void **state) {
  (void)state;
  assert_refused(sign_text(all_signers.approver, text, CMS_DETACHED, EVP_sha256(), 1),
                 "version: 1\nkinds: [gradient, state]\n", "the signature does not hold");
  assert_refused(sign_text(all_signers.approver, text, CMS_DETACHED, EVP_sha256(), 1), "",
                 "the signature does not hold");
}

static void malformed_signatures_are_refused(void **state) {
  (void)state;
  assert_refused(sign_text(NULL, text, CMS_DETACHED, EVP_sha256(), 0), text, "has 0 signers");
  assert_refused(sign_text(all_signers.approver, text, CMS_DETACHED, EVP_sha256(), 2), text,
                 "has 2 signers");
  assert_refused(sign_text(all_signers.approver, text, 0, EVP_sha256(), 1), text,
                 "a text of its own");
  assert_refused(sign_text(all_signers.approver, text, CMS_DETACHED, EVP_sha1(), 1), text,
                 "weak digest");
  clv_bytes truncated =
      sign_text(all_signers.approver, text, CMS_DETACHED | CMS_NOATTR, EVP_sha256(), 1);
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
  clv_bytes s = sign_text(all_signers.approver, text, CMS_DETACHED, EVP_sha256(), 1);
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
  return cmocka_run_group_tests(tests, make_signers, NULL);
}
