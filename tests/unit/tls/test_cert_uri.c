/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the one URI of a certificate, and everything that does not count as one.
 */
#include "tests/unit/tls/fixture.h"

static EVP_PKEY *key;

typedef struct san_item {
  int name_type;
  const char *name_bytes;
  int name_len; /* length of the name in bytes; 0: strlen(name_bytes) */
} san_item;

static GENERAL_NAMES *make_names(const san_item *items, size_t n) {
  GENERAL_NAMES *names = sk_GENERAL_NAME_new_null();
  for (size_t i = 0; i < n; i++) {
    ASN1_IA5STRING *text = ASN1_IA5STRING_new();
    ASN1_STRING_set(text, items[i].name_bytes,
                    items[i].name_len ? items[i].name_len : (int)strlen(items[i].name_bytes));
    GENERAL_NAME *name = GENERAL_NAME_new();
    GENERAL_NAME_set0_value(name, items[i].name_type, text);
    sk_GENERAL_NAME_push(names, name);
  }
  return names;
}

static char *make_pem(const san_item *items, size_t n, int n_copies) {
  certificate_spec spec = {.name = "spiffe://cleave/not-me", .valid_days = 1};
  X509 *cert = make_certificate_by_hand(&spec, key);
  GENERAL_NAMES *names = make_names(items, n);
  for (int i = 0; i < n_copies; i++) /* APPEND allows a second extension of the same kind */
    assert_int_equal(X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, X509V3_ADD_APPEND), 1);
  sign_certificate_by_hand(cert, &spec, key);
  GENERAL_NAMES_free(names);
  char *pem = get_pem(cert);
  X509_free(cert);
  return pem;
}

static void assert_uri(const char *pem, const char *want) {
  char uri[CLV_TLS_URI_LEN];
  clv_err err;
  must(clv_tls_uri_of_pem(pem, uri, sizeof uri, &err), &err);
  assert_string_equal(uri, want);
}

static void assert_refused(const char *pem, const char *text) {
  char uri[CLV_TLS_URI_LEN] = "untouched";
  clv_err err = {0};
  expect_error(CLV_UNAUTHENTICATED, text, clv_tls_uri_of_pem(pem, uri, sizeof uri, &err), &err);
  assert_string_equal(uri, "untouched");
}

static void assert_names_refused(const san_item *items, size_t n, int n_copies, const char *text) {
  char *pem = make_pem(items, n, n_copies);
  assert_refused(pem, text);
  free(pem);
}

#define REFUSE(text, ...)                               \
  assert_names_refused((const san_item[]){__VA_ARGS__}, \
                       sizeof((const san_item[]){__VA_ARGS__}) / sizeof(san_item), 1, text)

static void single_uri_is_the_identity(void **state) {
  (void)state;
  char *pem = make_pem((const san_item[]){{GEN_URI, "spiffe://cleave/worker-1", 0}}, 1, 1);
  assert_uri(pem, "spiffe://cleave/worker-1");
  free(pem);
}

static void dns_and_email_names_are_ignored(void **state) {
  (void)state;
  char *pem = make_pem((const san_item[]){{GEN_DNS, "spiffe://cleave/master", 0},
                                          {GEN_URI, "spiffe://cleave/worker-1", 0},
                                          {GEN_EMAIL, "spiffe://cleave/admin", 0}},
                       3, 1);
  assert_uri(pem, "spiffe://cleave/worker-1");
  free(pem);
}

static void dns_name_spelled_like_a_uri_is_refused(void **state) {
  (void)state;
  REFUSE("has 0 URI", {GEN_DNS, "spiffe://cleave/worker-1", 0});
  REFUSE("has 0 URI", {GEN_EMAIL, "spiffe://cleave/worker-1", 0});
}

static void two_uris_are_refused(void **state) {
  (void)state;
  REFUSE("has 2 URI", {GEN_URI, "spiffe://cleave/a", 0}, {GEN_URI, "spiffe://cleave/b", 0});
  REFUSE("has 2 URI", {GEN_URI, "spiffe://cleave/a", 0}, {GEN_URI, "spiffe://cleave/a", 0});
}

static void two_san_extensions_are_refused(void **state) {
  (void)state;
  assert_names_refused((const san_item[]){{GEN_URI, "spiffe://cleave/a", 0}}, 1, 2, "several");
}

static void certificate_without_san_is_refused(void **state) {
  (void)state;
  certificate_spec spec = {.name = "spiffe://cleave/worker-1", .valid_days = 1};
  X509 *cert = make_certificate_by_hand(&spec, key);
  char *pem = get_pem(cert);
  assert_refused(pem, "no subject alternative name"); /* the common name is not used as identity */
  free(pem);
  X509_free(cert);
}

static void invalid_uri_bytes_are_refused(void **state) {
  (void)state;
  REFUSE("byte 0x00 at position 18", {GEN_URI, "spiffe://cleave/ok\0.evil", 24});
  REFUSE("byte 0x00 at position 24", {GEN_URI, "spiffe://cleave/worker-1", 25});
  REFUSE("byte 0x0a", {GEN_URI, "spiffe://cleave/a\nb", 0});
  REFUSE("byte 0x20", {GEN_URI, "spiffe://cleave/a b", 0});
  REFUSE("byte 0xc3", {GEN_URI, "spiffe://cleave/\xc3\xa9", 0});
}

static void malformed_uris_are_refused(void **state) {
  (void)state;
  REFUSE("does not look like", {GEN_URI, "worker-1", 0});
  REFUSE("does not look like", {GEN_URI, "spiffe:cleave", 0});
  REFUSE("does not look like", {GEN_URI, "spiffe://", 0});
  REFUSE("does not look like", {GEN_URI, "spiffe:///worker-1", 0});
  REFUSE("does not look like", {GEN_URI, "1spiffe://cleave/a", 0});
  REFUSE("does not look like", {GEN_URI, "", 0});
}

static void overlong_uri_is_refused(void **state) {
  (void)state;
  char uri[CLV_TLS_URI_LEN + 1] = "spiffe://";
  memset(uri + 9, 'a', sizeof uri - 10); /* 2049 bytes, one too many */
  REFUSE("the limit is 2048", {GEN_URI, uri, 0});
  uri[CLV_TLS_URI_LEN - 1] = '\0';
  char *pem = make_pem((const san_item[]){{GEN_URI, uri, 0}}, 1, 1);
  assert_uri(pem, uri);
  char small_buffer[64];
  clv_err err;
  expect_error(CLV_INVALID, "2048 bytes, the buffer holds 64",
               clv_tls_uri_of_pem(pem, small_buffer, sizeof small_buffer, &err), &err);
  free(pem);
}

/* A peer's PEM is a chain. Only its first certificate, the leaf, names the peer. */
static void chain_is_identified_by_its_leaf(void **state) {
  (void)state;
  char *leaf = make_pem((const san_item[]){{GEN_URI, "spiffe://cleave/leaf", 0}}, 1, 1);
  char *ca = make_pem((const san_item[]){{GEN_URI, "spiffe://cleave/ca", 0}}, 1, 1);
  char *chain = NULL;
  assert_true(asprintf(&chain, "%s%s", leaf, ca) > 0);
  assert_uri(chain, "spiffe://cleave/leaf");
  free(chain);
  free(leaf);
  free(ca);
}

static void damaged_pem_is_refused(void **state) {
  (void)state;
  char *pem = make_pem((const san_item[]){{GEN_URI, "spiffe://cleave/worker-1", 0}}, 1, 1);
  assert_refused("", "no certificate");
  assert_refused("nonsense", "no certificate");
  assert_refused("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", "certificate");
  for (size_t len = strlen(pem) - 2; len > 30; len /= 2) {
    pem[len] = '\0';
    assert_refused(pem, "certificate");
  }
  free(pem);
}

static int set_up(void **state) {
  (void)state;
  key = EVP_EC_gen("P-256");
  return key ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  EVP_PKEY_free(key);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(single_uri_is_the_identity),
      cmocka_unit_test(dns_and_email_names_are_ignored),
      cmocka_unit_test(two_uris_are_refused),
      cmocka_unit_test(dns_name_spelled_like_a_uri_is_refused),
      cmocka_unit_test(two_san_extensions_are_refused),
      cmocka_unit_test(certificate_without_san_is_refused),
      cmocka_unit_test(invalid_uri_bytes_are_refused),
      cmocka_unit_test(malformed_uris_are_refused),
      cmocka_unit_test(overlong_uri_is_refused),
      cmocka_unit_test(chain_is_identified_by_its_leaf),
      cmocka_unit_test(damaged_pem_is_refused),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
