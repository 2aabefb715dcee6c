/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the loading of an identity: valid ones, and every invalid one with the text of its refusal.
 */
#include "tests/unit/tls/fixture.h"

#include <openssl/err.h>
#include <time.h>

static clv_code load_identity(const char *ca, const char *cert, const char *key,
                              clv_tls_identity **ret, clv_err *err) {
  return clv_tls_identity_load(at(ca), at(cert), at(key), ret, err);
}

static void assert_refused(const char *ca, const char *cert, const char *key, clv_code code,
                           const char *text) {
  clv_tls_identity *identity = NULL;
  clv_err err = {0};
  clv_code got = load_identity(ca, cert, key, &identity, &err);
  if (got == CLV_OK) clv_tls_identity_free(identity);
  expect_error(code, text, got, &err);
  assert_null(identity);
}

/* Number of bytes that were wiped. This program replaces explicit_bzero of the C library to count
 * them. */
static size_t n_wiped_bytes;
static bool was_key_wiped;
void explicit_bzero(void *data, size_t len) {
  n_wiped_bytes = len;
  char head[64] = "";
  volatile char *p = data;
  for (size_t i = 0; i < len; i++) {
    if (i < sizeof head - 1) head[i] = p[i];
    p[i] = 0;
  }
  if (strstr(head, "PRIVATE KEY")) was_key_wiped = true;
}

static void valid_identity_is_loaded(void **state) {
  (void)state;
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("ca.pem", "good.pem", "good.key", &identity, &err), &err);
  assert_string_equal(identity->uri, "spiffe://cleave/worker-1");
  assert_int_equal(identity->usage, CLV_TLS_CLIENT | CLV_TLS_SERVER);
  assert_int_equal(identity->not_after - identity->not_before, 30 * DAY_S);
  int64_t age_s = (int64_t)time(NULL) - identity->not_before;
  assert_in_range(age_s, 299, 330);
  assert_int_equal(clv_tls_identity_days_left(identity), 29);
  must(clv_tls_identity_require_usage(identity, CLV_TLS_CLIENT | CLV_TLS_SERVER, &err), &err);
  clv_bytes want = read_text(at("good.key"));
  assert_string_equal(identity->key_pem, want.data);
  clv_bytes_done(&want);
  want = read_text(at("good.pem"));
  assert_string_equal(identity->cert_pem, want.data);
  clv_bytes_done(&want);
  want = read_text(at("ca.pem"));
  assert_string_equal(identity->ca_pem, want.data);
  clv_bytes_done(&want);
  clv_tls_identity_free(identity);
}

static void private_key_is_wiped_when_freed(void **state) {
  (void)state;
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("ca.pem", "good.pem", "good.key", &identity, &err), &err);
  size_t len = strlen(identity->key_pem);
  was_key_wiped = false;
  clv_tls_identity_freep(&identity);
  assert_null(identity);
  assert_true(was_key_wiped);
  assert_int_equal(n_wiped_bytes, len);
  was_key_wiped = false; /* a refusal also wipes the key */
  assert_refused("ca.pem", "other.pem", "good.key", CLV_INVALID, "does not belong");
  assert_true(was_key_wiped);
  clv_tls_identity_free(NULL);
}

static void days_left_rounds_down(void **state) {
  (void)state;
  int64_t now = (int64_t)time(NULL);
  clv_tls_identity identity = {.not_after = now + 2 * DAY_S + 60};
  assert_int_equal(clv_tls_identity_days_left(&identity), 2);
  identity.not_after = now + 60;
  assert_int_equal(clv_tls_identity_days_left(&identity), 0);
  identity.not_after = now - 60;
  assert_int_equal(clv_tls_identity_days_left(&identity), -1);
}

static void client_only_identity_cannot_be_a_server(void **state) {
  (void)state;
  clv_tls_issue_options o = make_valid_options("client");
  o.usage = CLV_TLS_CLIENT;
  issue_certificate(o);
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("ca.pem", "client.pem", "client.key", &identity, &err), &err);
  assert_int_equal(identity->usage, CLV_TLS_CLIENT);
  must(clv_tls_identity_require_usage(identity, CLV_TLS_CLIENT, &err), &err);
  expect_error(CLV_INVALID, "may not be used as a TLS server",
               clv_tls_identity_require_usage(identity, CLV_TLS_SERVER, &err), &err);
  clv_tls_identity_free(identity);
}

static void rsa_2048_key_is_accepted(void **state) {
  (void)state;
  clv_tls_issue_options o = make_valid_options("rsa2048");
  o.rsa_bits = 2048;
  issue_certificate(o);
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("ca.pem", "rsa2048.pem", "rsa2048.key", &identity, &err), &err);
  clv_tls_identity_free(identity);
}

/* ---- identity files that are refused --------------------------------------------------------- */

static void missing_identity_files_are_named(void **state) {
  (void)state;
  assert_refused("none.pem", "good.pem", "good.key", CLV_NOT_FOUND, "none.pem");
  assert_refused("ca.pem", "none.pem", "good.key", CLV_NOT_FOUND, "none.pem");
  assert_refused("ca.pem", "good.pem", "none.key", CLV_NOT_FOUND, "none.key");
  assert_int_equal(mkdir(at("folder"), 0700), 0);
  assert_refused("folder", "good.pem", "good.key", CLV_INVALID, "not a regular file");
  assert_refused("ca.pem", "good.pem", "folder", CLV_INVALID, "not a regular file");
}

static void oversized_identity_files_are_refused(void **state) {
  (void)state;
  char *newlines = calloc(1, CLV_TLS_FILE_MAX + 1);
  memset(newlines, '\n', CLV_TLS_FILE_MAX + 1);
  write_text(at("big"), newlines, CLV_TLS_FILE_MAX + 1, 0600);
  assert_refused("big", "good.pem", "good.key", CLV_EXHAUSTED, "limit is 1048576");
  assert_refused("ca.pem", "big", "good.key", CLV_EXHAUSTED, "limit is 1048576");
  assert_refused("ca.pem", "good.pem", "big", CLV_EXHAUSTED, "limit is 1048576");
  free(newlines);
}

static void key_readable_by_others_is_refused(void **state) {
  (void)state;
  const unsigned modes[] = {0640, 0604, 0620, 0644, 0666};
  for (size_t i = 0; i < CLV_COUNT(modes); i++) {
    assert_int_equal(chmod(at("good.key"), modes[i]), 0);
    assert_refused("ca.pem", "good.pem", "good.key", CLV_DENIED, "fix: chmod 600");
  }
  assert_int_equal(chmod(at("good.key"), 0400), 0);
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("ca.pem", "good.pem", "good.key", &identity, &err), &err);
  clv_tls_identity_free(identity);
  assert_int_equal(chmod(at("good.key"), 0600), 0);
}

static void truncated_identity_files_are_refused(void **state) {
  (void)state;
  const char *const files[] = {"good.key", "good.pem", "ca.pem"};
  for (size_t i = 0; i < CLV_COUNT(files); i++) {
    clv_bytes text = read_text(at(files[i]));
    for (size_t len = 0; len + 2 < text.len; len += 40) {
      write_text(at("cut"), text.data, len, 0600);
      const char *key = i == 0 ? "cut" : "good.key", *cert = i == 1 ? "cut" : "good.pem";
      assert_refused(i == 2 ? "cut" : "ca.pem", cert, key, CLV_INVALID, "cut: ");
    }
    clv_bytes_done(&text);
  }
}

/* A damaged certificate in the chain is refused, even if the leaf before it is valid. */
static void truncated_chain_is_refused(void **state) {
  (void)state;
  clv_bytes leaf = read_text(at("good.pem")), second_cert = read_text(at("other.pem"));
  clv_bytes_add(&leaf, second_cert.data, second_cert.len / 2);
  write_text(at("cut-chain"), leaf.data, leaf.len, 0644);
  assert_refused("ca.pem", "cut-chain", "good.key", CLV_INVALID, "certificate number 2 is damaged");
  clv_bytes_done(&leaf);
  clv_bytes_done(&second_cert);
}

static void swapped_identity_files_are_refused(void **state) {
  (void)state;
  assert_refused("ca.pem", "good.pem", "other.key", CLV_INVALID,
                 "does not belong to the certificate");
  assert_refused("ca.pem", "good.key", "good.key", CLV_INVALID, "no certificate in it");
  clv_bytes cert = read_text(at("good.pem"));
  write_text(at("cert600"), cert.data, cert.len, 0600);
  clv_bytes_done(&cert);
  assert_refused("ca.pem", "good.pem", "cert600", CLV_INVALID, "no private key in it");
  assert_refused("good.pem", "good.pem", "good.key", CLV_INVALID, "not a CA's");
  write_text(at("nul.key"), "-----BEGIN\0PRIVATE KEY", 22, 0600);
  assert_refused("ca.pem", "good.pem", "nul.key", CLV_INVALID, "NUL byte at 10");
}

static void encrypted_key_is_refused(void **state) {
  (void)state;
  EVP_PKEY *key = EVP_EC_gen("P-256");
  char password[] = "secret";
  for (int is_traditional_format = 0; is_traditional_format < 2; is_traditional_format++) {
    BIO *bio = BIO_new_file(at("encrypted.key"), "w");
    int ok =
        is_traditional_format
            ? PEM_write_bio_PrivateKey_traditional(bio, key, EVP_aes_128_cbc(),
                                                   (unsigned char *)password, 6, NULL, NULL)
            : PEM_write_bio_PKCS8PrivateKey(bio, key, EVP_aes_128_cbc(), password, 6, NULL, NULL);
    BIO_free(bio);
    assert_int_equal(ok, 1);
    assert_int_equal(chmod(at("encrypted.key"), 0600), 0);
    assert_refused("ca.pem", "good.pem", "encrypted.key", CLV_INVALID, "is encrypted");
  }
  EVP_PKEY_free(key);
}

/* Other PEM blocks are common; they are ignored and not passed on. */
static void other_pem_blocks_are_ignored(void **state) {
  (void)state;
  clv_bytes cert = read_text(at("good.pem")), key = read_text(at("good.key")), full_pem = {0};
  clv_bytes_puts(&full_pem, "Subject: somebody\n");
  clv_bytes_add(&full_pem, key.data, key.len);
  clv_bytes_add(&full_pem, cert.data, cert.len);
  write_text(at("both"), full_pem.data, full_pem.len, 0600);
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("ca.pem", "both", "both", &identity, &err), &err);
  /* the stored certificate does not include the key */
  assert_string_equal(identity->cert_pem, cert.data);
  clv_tls_identity_free(identity);
  clv_bytes_done(&cert);
  clv_bytes_done(&key);
  clv_bytes_done(&full_pem);
}

/* ---- certificates that are refused ----------------------------------------------------------- */

typedef struct bad_certificate {
  const char *name, *refusal_text;
  clv_code wanted_code;
  int valid_days;
  int64_t start_offset_s;
  unsigned usage_flags, rsa_bits;
  size_t n_uris;
  const char *dns_name;
  bool is_usual; /* `certs issue` makes such a certificate too */
} bad_certificate;

static const bad_certificate bad_certificates[] = {
    {.name = "expired",
     .valid_days = 1,
     .start_offset_s = -4 * DAY_S,
     .n_uris = 1,
     .wanted_code = CLV_PRECONDITION,
     .refusal_text = "expired 3 days ago"},
    {.name = "early",
     .valid_days = 9,
     .start_offset_s = 2 * DAY_S + 60,
     .n_uris = 1,
     .wanted_code = CLV_PRECONDITION,
     .refusal_text = "not valid yet, it begins in 2 days",
     .is_usual = true},
    {.name = "signing",
     .valid_days = 9,
     .usage_flags = CLV_TLS_CODE_SIGNING,
     .n_uris = 1,
     .wanted_code = CLV_INVALID,
     .refusal_text = "neither TLS client nor TLS server"},
    {.name = "two",
     .valid_days = 9,
     .n_uris = 2,
     .wanted_code = CLV_UNAUTHENTICATED,
     .refusal_text = "has 2 URI"},
    {.name = "nameless",
     .valid_days = 9,
     .n_uris = 0,
     .wanted_code = CLV_UNAUTHENTICATED,
     .refusal_text = "no subject alternative name"},
    {.name = "spelled",
     .valid_days = 9,
     .n_uris = 0,
     .dns_name = "spiffe://cleave/worker-1",
     .wanted_code = CLV_UNAUTHENTICATED,
     .refusal_text = "has 0 URI"},
    {.name = "weak",
     .valid_days = 9,
     .rsa_bits = 1024,
     .n_uris = 1,
     .wanted_code = CLV_INVALID,
     .refusal_text = "RSA key of 1024 bits is too weak, at least 2048"},
};

static void bad_certificates_are_refused(void **state) {
  (void)state;
  static const char *const uris[] = {"spiffe://cleave/a", "spiffe://cleave/b"};
  for (size_t i = 0; i < CLV_COUNT(bad_certificates); i++) {
    const bad_certificate *b = &bad_certificates[i];
    clv_tls_issue_options o = make_valid_options(b->name);
    o.uris = uris;
    o.n_uris = b->n_uris;
    o.dns_names = &b->dns_name;
    o.n_dns_names = b->dns_name ? 1 : 0;
    o.validity_days = b->valid_days;
    o.not_before_offset_s = b->start_offset_s;
    o.usage = b->usage_flags;
    o.rsa_bits = b->rsa_bits;
    clv_err err = {0};
    if (!b->is_usual) assert_int_equal(clv_tls_issue_cert(&o, &err), CLV_INVALID);
    o.allow_unusual = true;
    issue_certificate(o);
    char cert[64], key[64];
    snprintf(cert, sizeof cert, "%s.pem", b->name);
    snprintf(key, sizeof key, "%s.key", b->name);
    assert_refused("ca.pem", cert, key, b->wanted_code, b->refusal_text);
    assert_refused("ca.pem", cert, key, b->wanted_code, cert); /* the error names the file */
  }
}

static void curves_unusable_in_tls13_are_refused(void **state) {
  (void)state;
  EVP_PKEY *key = EVP_EC_gen("secp256k1");
  certificate_spec spec = {.name = "k1",
                           .valid_days = 1,
                           .san_text = "URI:spiffe://cleave/k1",
                           .eku_text = "clientAuth"};
  X509 *cert = make_certificate_by_hand(&spec, key);
  save_certs(at("k1.pem"), &cert, 1);
  save_key(at("k1.key"), key);
  assert_refused("ca.pem", "k1.pem", "k1.key", CLV_INVALID, "no elliptic curve \"secp256k1\"");
  X509_free(cert);
  EVP_PKEY_free(key);
  key = EVP_EC_gen("P-224");
  cert = make_certificate_by_hand(&spec, key);
  save_certs(at("p224.pem"), &cert, 1);
  save_key(at("p224.key"), key);
  assert_refused("ca.pem", "p224.pem", "p224.key", CLV_INVALID, "EC key of 224 bits is too weak");
  X509_free(cert);
  EVP_PKEY_free(key);
}

static void certificate_without_extended_usage_is_refused(void **state) {
  (void)state;
  EVP_PKEY *key = EVP_EC_gen("P-256");
  certificate_spec spec = {
      .name = "plain", .valid_days = 1, .san_text = "URI:spiffe://cleave/plain"};
  X509 *cert = make_certificate_by_hand(&spec, key);
  save_certs(at("plain.pem"), &cert, 1);
  save_key(at("plain.key"), key);
  assert_refused("ca.pem", "plain.pem", "plain.key", CLV_INVALID, "it has no extended key usage");
  X509_free(cert);
  EVP_PKEY_free(key);
}

/* ---- certificate authorities ----------------------------------------------------------------- */

static void certificate_of_another_ca_is_refused(void **state) {
  (void)state;
  clv_err err;
  must(clv_tls_ca_init(at("ca2"), "another CA", 30, &err), &err);
  assert_refused("ca2/ca.pem", "good.pem", "good.key", CLV_INVALID, "not issued by this CA");
  /* a CA of the same name with another key */
  must(clv_tls_ca_init(at("ca3"), "unit test CA", 30, &err), &err);
  assert_refused("ca3/ca.pem", "good.pem", "good.key", CLV_INVALID,
                 "good.pem: as a client certificate");
}

static void bundle_of_two_cas_is_accepted(void **state) {
  (void)state;
  clv_bytes first = read_text(at("ca2/ca.pem")), second = read_text(at("ca.pem"));
  clv_bytes_add(&first, second.data, second.len);
  write_text(at("bundle.pem"), first.data, first.len, 0644);
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("bundle.pem", "good.pem", "good.key", &identity, &err), &err);
  assert_string_equal(identity->ca_pem, first.data);
  clv_tls_identity_free(identity);
  clv_bytes_done(&first);
  clv_bytes_done(&second);
}

static void intermediate_ca_chain_must_be_complete_leaf_first(void **state) {
  (void)state;
  EVP_PKEY *root_key = EVP_EC_gen("P-256"), *intermediate_key = EVP_EC_gen("P-256"),
           *leaf_key = EVP_EC_gen("P-256");
  certificate_spec spec = {.name = "root", .is_ca = true, .valid_days = 50};
  X509 *root = make_certificate_by_hand(&spec, root_key);
  spec = (certificate_spec){
      .name = "mid", .is_ca = true, .valid_days = 5, .issuer = root, .issuer_key = root_key};
  X509 *intermediate = make_certificate_by_hand(&spec, intermediate_key);
  spec = (certificate_spec){.name = "leaf",
                            .valid_days = 20,
                            .issuer = intermediate,
                            .issuer_key = intermediate_key,
                            .san_text = "URI:spiffe://cleave/deep",
                            .eku_text = "serverAuth,clientAuth"};
  X509 *leaf = make_certificate_by_hand(&spec, leaf_key);
  save_certs(at("root.pem"), &root, 1);
  save_certs(at("chain.pem"), (X509 *[]){leaf, intermediate}, 2);
  save_certs(at("reversed.pem"), (X509 *[]){intermediate, leaf}, 2);
  save_certs(at("alone.pem"), &leaf, 1);
  save_key(at("leaf.key"), leaf_key);
  clv_tls_identity *identity = NULL;
  clv_err err;
  must(load_identity("root.pem", "chain.pem", "leaf.key", &identity, &err), &err);
  assert_string_equal(identity->uri, "spiffe://cleave/deep");
  /* the intermediate certificate is the first to expire */
  assert_int_equal(clv_tls_identity_days_left(identity), 5);
  clv_tls_identity_free(identity);
  assert_refused("root.pem", "alone.pem", "leaf.key", CLV_INVALID, "not issued by this CA");
  assert_refused("root.pem", "reversed.pem", "leaf.key", CLV_INVALID, "the leaf must come first");
  X509_free(root);
  X509_free(intermediate);
  X509_free(leaf);
  EVP_PKEY_free(root_key);
  EVP_PKEY_free(intermediate_key);
  EVP_PKEY_free(leaf_key);
}

static void certificate_under_an_expired_ca_is_refused(void **state) {
  (void)state;
  EVP_PKEY *ca_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256");
  certificate_spec spec = {.name = "old", .is_ca = true, .valid_days = 0};
  X509 *ca = make_certificate_by_hand(&spec, ca_key);
  X509_gmtime_adj(X509_getm_notAfter(ca), -30);
  sign_certificate_by_hand(ca, &spec, ca_key);
  spec = (certificate_spec){.name = "young",
                            .valid_days = 9,
                            .issuer = ca,
                            .issuer_key = ca_key,
                            .san_text = "URI:spiffe://cleave/young",
                            .eku_text = "serverAuth"};
  X509 *leaf = make_certificate_by_hand(&spec, key);
  save_certs(at("old.pem"), &ca, 1);
  save_certs(at("young.pem"), &leaf, 1);
  save_key(at("young.key"), key);
  assert_refused("old.pem", "young.pem", "young.key", CLV_PRECONDITION,
                 "CA certificate above it is out");
  X509_free(ca);
  X509_free(leaf);
  EVP_PKEY_free(ca_key);
  EVP_PKEY_free(key);
}

static int set_up(void **state) {
  clv_err err;
  if (scratch_setup(state) != 0 || clv_tls_ca_init(scratch, "unit test CA", 400, &err) != CLV_OK)
    return -1;
  issue_certificate(make_valid_options("good"));
  issue_certificate(make_valid_options("other"));
  return 0;
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(valid_identity_is_loaded),
    cmocka_unit_test(private_key_is_wiped_when_freed),
    cmocka_unit_test(days_left_rounds_down),
    cmocka_unit_test(client_only_identity_cannot_be_a_server),
    cmocka_unit_test(rsa_2048_key_is_accepted),
    cmocka_unit_test(missing_identity_files_are_named),
    cmocka_unit_test(oversized_identity_files_are_refused),
    cmocka_unit_test(key_readable_by_others_is_refused),
    cmocka_unit_test(truncated_identity_files_are_refused),
    cmocka_unit_test(swapped_identity_files_are_refused),
    cmocka_unit_test(truncated_chain_is_refused),
    cmocka_unit_test(encrypted_key_is_refused),
    cmocka_unit_test(other_pem_blocks_are_ignored),
    cmocka_unit_test(curves_unusable_in_tls13_are_refused),
    cmocka_unit_test(bad_certificates_are_refused),
    cmocka_unit_test(certificate_of_another_ca_is_refused),
    cmocka_unit_test(bundle_of_two_cas_is_accepted),
    cmocka_unit_test(intermediate_ca_chain_must_be_complete_leaf_first),
    cmocka_unit_test(certificate_under_an_expired_ca_is_refused),
    cmocka_unit_test(certificate_without_extended_usage_is_refused),
};

int main(void) { return cmocka_run_group_tests(tests, set_up, scratch_teardown); }
