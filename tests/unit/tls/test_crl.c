/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests lists of revoked certificates: lists that `certs revoke` makes, and lists made by the test
 * that `certs revoke` would not make. A peer is refused unless a valid list of its CA is known and
 * does not contain its certificate.
 */
#include "tests/unit/tls/fixture.h"

typedef struct issuer_and_serial {
  char issuer[256], serial[80];
} issuer_and_serial;

static char ca_pem_path[600], list_path[600];

static issuer_and_serial get_issuer_and_serial(const char *name) {
  issuer_and_serial n = {0};
  char path[700];
  snprintf(path, sizeof path, "%s/%s.pem", scratch, name);
  FILE *file = fopen(path, "r");
  X509 *cert = PEM_read_X509(file, NULL, NULL, NULL);
  fclose(file);
  assert_non_null(cert);
  X509_NAME_oneline(X509_get_issuer_name(cert), n.issuer, sizeof n.issuer);
  BIGNUM *b = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), NULL);
  char *hex = BN_bn2hex(b);
  snprintf(n.serial, sizeof n.serial, "%s", hex);
  OPENSSL_free(hex);
  BN_free(b);
  X509_free(cert);
  return n;
}

static clv_code load_list(clv_tls_crl **ret, clv_err *err) {
  clv_bytes ca = read_text(ca_pem_path);
  clv_code code = clv_tls_crl_load(list_path, ca.data, ret, err);
  clv_bytes_done(&ca);
  return code;
}

static clv_tls_decision get_decision(const char *name, clv_err *err) {
  issuer_and_serial n = get_issuer_and_serial(name);
  return clv_tls_revocation_decide(n.issuer, n.serial, err);
}

static void use_list(void) {
  clv_err err;
  clv_tls_crl *crl = NULL;
  must(load_list(&crl, &err), &err);
  clv_tls_revocation_set(&crl);
  assert_null(crl);
}

/* ---- revocation lists that `certs revoke` writes --------------------------------------------- */

static void revoked_certificates_accumulate_in_the_list(void **state) {
  (void)state;
  clv_err err;
  assert_int_equal(clv_tls_ca_revoke(scratch, "nobody", 30, &err), CLV_NOT_FOUND);
  assert_int_equal(clv_tls_ca_revoke(scratch, "a", 0, &err), CLV_INVALID);
  must(clv_tls_ca_revoke(scratch, NULL, 30, &err), &err);
  use_list();
  assert_int_equal(get_decision("a", &err), CLV_TLS_ADMITTED);
  must(clv_tls_ca_revoke(scratch, "a", 30, &err), &err);
  must(clv_tls_ca_revoke(scratch, "b", 30, &err), &err);
  must(clv_tls_ca_revoke(scratch, "a", 30, &err), &err);
  use_list();
  assert_int_equal(get_decision("a", &err), CLV_TLS_REVOKED);
  assert_non_null(strstr(err.text, "revoked"));
  assert_int_equal(get_decision("b", &err), CLV_TLS_REVOKED);
  assert_int_equal(get_decision("c", &err), CLV_TLS_ADMITTED);
  FILE *file = fopen(list_path, "r");
  X509_CRL *crl = PEM_read_X509_CRL(file, NULL, NULL, NULL);
  fclose(file);
  ASN1_INTEGER *number = X509_CRL_get_ext_d2i(crl, NID_crl_number, NULL, NULL);
  assert_int_equal(ASN1_INTEGER_get(number), 4);
  assert_int_equal(sk_X509_REVOKED_num(X509_CRL_get_REVOKED(crl)), 2);
  ASN1_INTEGER_free(number);
  X509_CRL_free(crl);
}

static void show_marks_revoked_certificates(void **state) {
  (void)state;
  clv_err err;
  clv_bytes out = {0};
  char path[700];
  snprintf(path, sizeof path, "%s/a.pem", scratch);
  must(clv_tls_show_certs(path, &out, true, &err), &err);
  assert_non_null(strstr(out.data, "\"state\":\"revoked\""));
  must(clv_tls_show_certs(path, &out, false, &err), &err);
  assert_non_null(strstr(out.data, "REVOKED"));
  clv_bytes_done(&out);
}

/* ---- revocation lists that the test makes by hand -------------------------------------------- */

typedef struct forged_list {
  int valid_from_s, valid_until_s;
  bool has_other_key, is_partial, has_no_next_update;
} forged_list;

static EVP_PKEY *read_ca_key(void) {
  char path[700];
  snprintf(path, sizeof path, "%s/ca.key", scratch);
  FILE *file = fopen(path, "r");
  EVP_PKEY *key = PEM_read_PrivateKey(file, NULL, NULL, NULL);
  fclose(file);
  return key;
}

static void write_forged_list(const forged_list *f, const char *open_mode) {
  X509_CRL *crl = X509_CRL_new();
  X509_NAME *name = X509_NAME_new();
  EVP_PKEY *key = f->has_other_key ? EVP_EC_gen("P-256") : read_ca_key();
  ASN1_TIME *valid_from = ASN1_TIME_adj(NULL, time(NULL), 0, f->valid_from_s);
  ASN1_TIME *valid_until = ASN1_TIME_adj(NULL, time(NULL), 0, f->valid_until_s);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"home", -1, -1, 0);
  X509_CRL_set_version(crl, X509_CRL_VERSION_2);
  X509_CRL_set_issuer_name(crl, name);
  X509_CRL_set1_lastUpdate(crl, valid_from);
  if (!f->has_no_next_update) X509_CRL_set1_nextUpdate(crl, valid_until);
  if (f->is_partial) {
    X509_EXTENSION *e =
        X509V3_EXT_conf_nid(NULL, NULL, NID_issuing_distribution_point, "critical,onlyuser:TRUE");
    assert_non_null(e);
    X509_CRL_add_ext(crl, e, -1);
    X509_EXTENSION_free(e);
  }
  assert_true(X509_CRL_sign(crl, key, EVP_sha256()) > 0);
  FILE *file = fopen(list_path, open_mode);
  PEM_write_X509_CRL(file, crl);
  fclose(file);
  ASN1_TIME_free(valid_from);
  ASN1_TIME_free(valid_until);
  X509_NAME_free(name);
  X509_CRL_free(crl);
  EVP_PKEY_free(key);
}

static void invalid_revocation_lists_are_refused(void **state) {
  (void)state;
  clv_err err;
  clv_tls_crl *crl = NULL;
  static const struct {
    forged_list list;
    clv_code code;
    const char *says;
  } bad[] = {
      {{.valid_from_s = -60, .valid_until_s = 3600, .has_other_key = true},
       CLV_UNAUTHENTICATED,
       "has signed"},
      {{.valid_from_s = 3600, .valid_until_s = 7200}, CLV_PRECONDITION, "in the future"},
      {{.valid_from_s = -60, .valid_until_s = 3600, .is_partial = true},
       CLV_INVALID,
       "only some certificates"},
      {{.valid_from_s = -60, .has_no_next_update = true}, CLV_INVALID, "no end of validity"},
  };
  for (size_t i = 0; i < CLV_COUNT(bad); i++) {
    write_forged_list(&bad[i].list, "w");
    assert_int_equal(load_list(&crl, &err), bad[i].code);
    assert_non_null(strstr(err.text, bad[i].says));
    assert_non_null(strstr(err.text, list_path));
  }
  write_forged_list(&(forged_list){.valid_from_s = -60, .valid_until_s = 3600}, "w");
  write_forged_list(&(forged_list){.valid_from_s = -60, .valid_until_s = 3600}, "a");
  assert_int_equal(load_list(&crl, &err), CLV_INVALID);
  assert_non_null(strstr(err.text, "two lists"));
  write_text(list_path, "nothing\n", 8, 0644);
  assert_int_equal(load_list(&crl, &err), CLV_INVALID);
  unlink(list_path);
  assert_int_equal(load_list(&crl, &err), CLV_NOT_FOUND);
  assert_null(crl);
}

/* No peer is accepted with an expired list, nor a peer whose CA has no list. */
static void expired_revocation_list_fails_closed(void **state) {
  (void)state;
  clv_err err;
  write_forged_list(&(forged_list){.valid_from_s = -7200, .valid_until_s = -60}, "w");
  use_list();
  assert_int_equal(get_decision("c", &err), CLV_TLS_NO_CRL);
  assert_non_null(strstr(err.text, list_path));
  assert_non_null(strstr(err.text, "ended 20"));
  assert_int_equal(clv_tls_revocation_check_expiry(&err), CLV_PRECONDITION);
  write_forged_list(&(forged_list){.valid_from_s = -60, .valid_until_s = 3600}, "w");
  use_list();
  assert_int_equal(get_decision("c", &err), CLV_TLS_ADMITTED);
  assert_int_equal(clv_tls_revocation_decide("/CN=elsewhere", "01", &err), CLV_TLS_NO_CRL);
  must(clv_tls_revocation_check_expiry(&err), &err);
  assert_in_range(clv_tls_revocation_expiry(), time(NULL) + 3000, time(NULL) + 3700);
  clv_tls_crl *none = NULL;
  clv_tls_revocation_set(&none);
  assert_int_equal(clv_tls_revocation_decide("/CN=elsewhere", "01", &err), CLV_TLS_ADMITTED);
  assert_int_equal(clv_tls_revocation_expiry(), 0);
}

static int set_up(void **state) {
  clv_err err;
  if (scratch_setup(state) != 0) return -1;
  must(clv_tls_ca_init(scratch, "home", 365, &err), &err);
  for (const char *const *name = (const char *const[]){"a", "b", "c", NULL}; *name; name++)
    issue_certificate(make_valid_options(*name));
  snprintf(ca_pem_path, sizeof ca_pem_path, "%s/ca.pem", scratch);
  snprintf(list_path, sizeof list_path, "%s/crl.pem", scratch);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(revoked_certificates_accumulate_in_the_list),
      cmocka_unit_test(show_marks_revoked_certificates),
      cmocka_unit_test(invalid_revocation_lists_are_refused),
      cmocka_unit_test(expired_revocation_list_fails_closed),
  };
  return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
