/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the certificate authority and `certs show`, against OpenSSL's own reading and, where the
 * program exists, against openssl(1).
 */
#include "tests/unit/tls/fixture.h"

#include <sys/types.h>
#include <time.h>

static const char *const uri[] = {"spiffe://cleave/worker-7"};
static const char *const dns[] = {"worker-7.cloud.example", "localhost"};
static const char *const ips[] = {"10.1.2.3", "2001:db8::7"};

static clv_tls_issue_options make_full_options(const char *name) {
  return (clv_tls_issue_options){.ca_dir = scratch,
                                 .cert_name = name,
                                 .uris = uri,
                                 .n_uris = 1,
                                 .dns_names = dns,
                                 .n_dns_names = 2,
                                 .ip_addresses = ips,
                                 .n_ip_addresses = 2,
                                 .validity_days = 90,
                                 .not_before_offset_s = -300};
}

static unsigned get_mode(const char *path) {
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  return st.st_mode & 07777;
}

static X509 *read_cert(const char *path) {
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  X509 *cert = PEM_read_X509(file, NULL, NULL, NULL);
  assert_non_null(cert);
  assert_null(PEM_read_X509(file, NULL, NULL, NULL)); /* the file has only the leaf */
  fclose(file);
  return cert;
}

static void assert_line(const char *text, const char *line) {
  if (!strstr(text, line)) fail_msg("\"%s\" is not in:\n%s", line, text);
}

/* Returns standard output and error of a command, whose exit status must be `want`. */
static clv_bytes run_command(int want, const char *command) {
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  clv_bytes text = {0};
  char buf[4096];
  for (size_t n; (n = fread(buf, 1, sizeof buf, pipe)) > 0;) clv_bytes_add(&text, buf, n);
  int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != want)
    fail_msg("%s: status %d\n%s", command, status, text.data ? text.data : "");
  return text;
}

static bool has_openssl(void) { return system("openssl version >/dev/null 2>&1") == 0; }

/* ---- making a CA: `certs init` --------------------------------------------------------------- */

static void new_ca_has_private_key_mode_and_ca_extensions(void **state) {
  (void)state;
  assert_int_equal(get_mode(at("ca.key")), 0600);
  X509 *ca = read_cert(at("ca.pem"));
  assert_int_equal(X509_check_ca(ca), 1);
  assert_int_equal(X509_get_pathlen(ca), 0);
  assert_int_equal(X509_get_key_usage(ca), KU_KEY_CERT_SIGN | KU_CRL_SIGN);
  assert_int_equal(X509_verify(ca, X509_get0_pubkey(ca)), 1);
  assert_true(EVP_PKEY_is_a(X509_get0_pubkey(ca), "EC"));
  assert_int_equal(EVP_PKEY_get_bits(X509_get0_pubkey(ca)), 256);
  char name[64];
  X509_NAME_get_text_by_NID(X509_get_subject_name(ca), NID_commonName, name, sizeof name);
  assert_string_equal(name, "unit test CA");
  X509_free(ca);
}

static void existing_ca_is_never_overwritten(void **state) {
  (void)state;
  clv_bytes before = read_text(at("ca.key"));
  clv_err err;
  expect_error(CLV_EXISTS, "ca.key is there already", clv_tls_ca_init(scratch, "again", 10, &err),
               &err);
  assert_int_equal(mkdir(at("half"), 0700), 0);
  write_text(at("half/ca.pem"), "x", 1, 0644);
  expect_error(CLV_EXISTS, "ca.pem is there already",
               clv_tls_ca_init(at("half"), "again", 10, &err), &err);
  assert_int_not_equal(access(at("half/ca.key"), F_OK), 0);
  clv_bytes after = read_text(at("ca.key"));
  assert_string_equal(before.data, after.data);
  clv_bytes_done(&before);
  clv_bytes_done(&after);
}

static void invalid_ca_arguments_are_refused(void **state) {
  (void)state;
  clv_err err;
  char *dir = strdup(at("never"));
  expect_error(CLV_INVALID, "0 days", clv_tls_ca_init(dir, "CA", 0, &err), &err);
  expect_error(CLV_INVALID, "3651 days", clv_tls_ca_init(dir, "CA", 3651, &err), &err);
  expect_error(CLV_INVALID, "cannot name a CA", clv_tls_ca_init(dir, "", 10, &err), &err);
  expect_error(CLV_INVALID, "cannot name a CA", clv_tls_ca_init(dir, "a\nb", 10, &err), &err);
  expect_error(CLV_INVALID, "cannot be a name", clv_tls_ca_init(dir, "\xff\xfe", 10, &err), &err);
  char long_name[66];
  memset(long_name, 'x', 65);
  long_name[65] = '\0';
  expect_error(CLV_INVALID, "1 to 64", clv_tls_ca_init(dir, long_name, 10, &err), &err);
  assert_int_not_equal(access(dir, F_OK), 0); /* the refused command has made no folder */
  free(dir);
}

/* ---- issuing certificates: `certs issue` ----------------------------------------------------- */

static void check_san(X509 *cert) {
  GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
  assert_int_equal(sk_GENERAL_NAME_num(names), 5);
  const int types[] = {GEN_URI, GEN_DNS, GEN_DNS, GEN_IPADD, GEN_IPADD};
  const char *const want[] = {uri[0], dns[0], dns[1], "\x0a\x01\x02\x03",
                              "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07"};
  const int lengths[] = {24, 22, 9, 4, 16};
  for (int i = 0; i < 5; i++) {
    int type = 0;
    const ASN1_STRING *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
    assert_int_equal(type, types[i]);
    assert_int_equal(ASN1_STRING_length(value), lengths[i]);
    assert_memory_equal(ASN1_STRING_get0_data(value), want[i], (size_t)lengths[i]);
  }
  GENERAL_NAMES_free(names);
}

static void issued_leaf_has_its_extensions(void **state) {
  (void)state;
  issue_certificate(make_full_options("leaf"));
  assert_int_equal(get_mode(at("leaf.key")), 0600);
  X509 *leaf = read_cert(at("leaf.pem")), *ca = read_cert(at("ca.pem"));
  assert_int_equal(X509_verify(leaf, X509_get0_pubkey(ca)), 1);
  /* compares the leaf's authority key identifier with the CA's subject key identifier */
  assert_int_equal(X509_check_issued(ca, leaf), X509_V_OK);
  assert_non_null(X509_get0_subject_key_id(leaf));
  assert_non_null(X509_get0_authority_key_id(leaf));
  assert_int_equal(X509_check_ca(leaf), 0);
  assert_int_equal(X509_get_key_usage(leaf), KU_DIGITAL_SIGNATURE);
  assert_int_equal(X509_get_extended_key_usage(leaf), XKU_SSL_CLIENT | XKU_SSL_SERVER);
  int is_critical = 0;
  BASIC_CONSTRAINTS *bc = X509_get_ext_d2i(leaf, NID_basic_constraints, &is_critical, NULL);
  assert_non_null(bc);
  assert_int_equal(is_critical, 1);
  assert_int_equal(bc->ca, 0);
  BASIC_CONSTRAINTS_free(bc);
  int days = 0, seconds = 0;
  ASN1_TIME_diff(&days, &seconds, X509_get0_notBefore(leaf), X509_get0_notAfter(leaf));
  assert_int_equal(days, 90);
  assert_int_equal(seconds, 0);
  assert_true(ASN1_TIME_cmp_time_t(X509_get0_notBefore(leaf), time(NULL) - 299) <= 0);
  assert_true(ASN1_TIME_cmp_time_t(X509_get0_notBefore(leaf), time(NULL) - 330) >= 0);
  check_san(leaf);
  X509_free(leaf);
  X509_free(ca);
}

static void one_sided_leaf_has_only_its_usage(void **state) {
  (void)state;
  const struct {
    const char *name, *file;
    unsigned usage;
    uint32_t want;
  } cases[] = {{"client", "client.pem", CLV_TLS_CLIENT, XKU_SSL_CLIENT},
               {"server", "server.pem", CLV_TLS_SERVER, XKU_SSL_SERVER}};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    clv_tls_issue_options o = make_full_options(cases[i].name);
    o.usage = cases[i].usage;
    issue_certificate(o);
    X509 *leaf = read_cert(at(cases[i].file));
    assert_int_equal(X509_get_extended_key_usage(leaf), cases[i].want);
    X509_free(leaf);
  }
}

static void serials_are_random(void **state) {
  (void)state;
  int max_bits = 0;
  ASN1_INTEGER *last_serial = NULL;
  for (int i = 0; i < 4; i++) {
    clv_tls_issue_options o = make_full_options("serial");
    o.may_overwrite = true;
    issue_certificate(o);
    X509 *leaf = read_cert(at("serial.pem"));
    const ASN1_INTEGER *serial = X509_get0_serialNumber(leaf);
    if (last_serial) assert_int_not_equal(ASN1_INTEGER_cmp(last_serial, serial), 0);
    BIGNUM *bn = ASN1_INTEGER_to_BN(serial, NULL);
    assert_false(BN_is_negative(bn));
    max_bits = CLV_MAX(max_bits, BN_num_bits(bn));
    BN_free(bn);
    ASN1_INTEGER_free(last_serial);
    last_serial = ASN1_INTEGER_dup(serial);
    X509_free(leaf);
  }
  ASN1_INTEGER_free(last_serial);
  /* all four random serial numbers are shorter only once in 2^60 runs */
  assert_in_range(max_bits, 113, 128);
}

static void nothing_is_overwritten_unless_forced(void **state) {
  (void)state;
  issue_certificate(make_full_options("kept"));
  clv_bytes before = read_text(at("kept.key"));
  clv_tls_issue_options o = make_full_options("kept");
  clv_err err;
  expect_error(CLV_EXISTS, "kept.key is there already", clv_tls_issue_cert(&o, &err), &err);
  unlink(at("kept.key"));
  expect_error(CLV_EXISTS, "kept.pem is there already", clv_tls_issue_cert(&o, &err), &err);
  assert_int_not_equal(access(at("kept.key"), F_OK), 0);
  o.may_overwrite = true;
  write_text(at("kept.key.tmp"), "left by a crash", 15, 0666);
  issue_certificate(o);
  assert_int_equal(get_mode(at("kept.key")), 0600);
  clv_bytes after = read_text(at("kept.key"));
  assert_string_not_equal(before.data, after.data);
  clv_bytes_done(&before);
  clv_bytes_done(&after);
}

static void leaf_is_written_to_the_given_folder(void **state) {
  (void)state;
  char *dir = strdup(at("hosts/worker-7"));
  clv_tls_issue_options o = make_full_options("out");
  o.out_dir = dir;
  issue_certificate(o);
  assert_int_equal(access(at("hosts/worker-7/out.pem"), F_OK), 0);
  assert_int_equal(get_mode(at("hosts/worker-7/out.key")), 0600);
  assert_int_not_equal(access(at("out.pem"), F_OK), 0);
  free(dir);
}

static void assert_refused(clv_tls_issue_options o, clv_code code, const char *text) {
  clv_err err;
  expect_error(code, text, clv_tls_issue_cert(&o, &err), &err);
  assert_int_not_equal(access(at("bad.pem"), F_OK), 0);
  assert_int_not_equal(access(at("bad.key"), F_OK), 0);
}

static void invalid_certificate_names_are_refused(void **state) {
  (void)state;
  const char *const names[] = {"", "../up", "a/b", ".hidden", "ca", "a b", "caf\xc3\xa9"};
  for (size_t i = 0; i < CLV_COUNT(names); i++)
    assert_refused(make_full_options(names[i]), CLV_INVALID, "cannot name a certificate");
}

static void invalid_uris_and_addresses_are_refused(void **state) {
  (void)state;
  const char *text[] = {"worker-7", "worker-8"};
  clv_tls_issue_options o = make_full_options("bad");
  o.uris = text;
  assert_refused(o, CLV_INVALID, "does not look like spiffe://");
  o.n_uris = 2;
  assert_refused(o, CLV_INVALID, "exactly one URI, 2 given");
  o.n_uris = 0;
  assert_refused(o, CLV_INVALID, "exactly one URI, 0 given");
  const char *const bad_dns[] = {"spiffe://cleave/x", "a b", "a..b", ".a", "a.", "*.x", "a,URI:b"};
  for (size_t i = 0; i < CLV_COUNT(bad_dns); i++) {
    o = make_full_options("bad");
    o.dns_names = &bad_dns[i];
    o.n_dns_names = 1;
    assert_refused(o, CLV_INVALID, "is not a DNS name");
  }
  const char *const addresses[] = {"10.0.0.1", "10.0.0.256", "worker-7"};
  o = make_full_options("bad");
  o.dns_names = &addresses[0];
  o.n_dns_names = 1;
  assert_refused(o, CLV_INVALID, "is an address, not a DNS name");
  for (size_t i = 1; i < CLV_COUNT(addresses); i++) {
    o = make_full_options("bad");
    o.ip_addresses = &addresses[i];
    o.n_ip_addresses = 1;
    assert_refused(o, CLV_INVALID, "is not an IPv4 or IPv6 address");
  }
}

static void invalid_validity_usage_and_keys_are_refused(void **state) {
  (void)state;
  clv_tls_issue_options o = make_full_options("bad");
  o.validity_days = 0;
  assert_refused(o, CLV_INVALID, "0 days");
  o = make_full_options("bad");
  o.validity_days = 500;
  assert_refused(o, CLV_INVALID, "500 days would outlive the CA");
  o = make_full_options("bad");
  o.not_before_offset_s = -91 * DAY_S;
  assert_refused(o, CLV_INVALID, "validity of 90 days beginning -7862400 seconds");
  o = make_full_options("bad");
  o.usage = CLV_TLS_CODE_SIGNING;
  assert_refused(o, CLV_INVALID, "usage 0x4");
  o = make_full_options("bad");
  o.rsa_bits = 1024;
  assert_refused(o, CLV_INVALID, "1024 bits is too weak");
  o.rsa_bits = 8192;
  assert_refused(o, CLV_INVALID, "8192 bits");
  o = make_full_options("bad");
  o.n_dns_names = CLV_TLS_MAX_NAMES + 1;
  assert_refused(o, CLV_INVALID, "more than 64 names");
}

static void missing_or_mismatched_ca_is_refused(void **state) {
  (void)state;
  clv_err err;
  clv_tls_issue_options o = make_full_options("bad");
  char *dir = strdup(at("ca-of-others"));
  o.ca_dir = dir;
  o.out_dir = scratch;
  assert_refused(o, CLV_NOT_FOUND, "make one with certs init");
  must(clv_tls_ca_init(dir, "another", 400, &err), &err);
  clv_bytes key = read_text(at("ca.key"));
  write_text(at("ca-of-others/ca.key"), key.data, key.len, 0600);
  assert_refused(o, CLV_INVALID, "ca.key does not belong to");
  assert_int_equal(chmod(at("ca-of-others/ca.key"), 0644), 0);
  assert_refused(o, CLV_DENIED, "fix: chmod 600");
  clv_bytes_done(&key);
  free(dir);
}

/* ---- printing certificates: `certs show` ----------------------------------------------------- */

static clv_bytes show_certificate(const char *file, bool is_json) {
  clv_bytes text = {0};
  clv_err err;
  must(clv_tls_show_certs(at(file), &text, is_json, &err), &err);
  return text;
}

static void show_prints_readable_text(void **state) {
  (void)state;
  issue_certificate(make_full_options("shown"));
  clv_bytes text = show_certificate("shown.pem", false);
  assert_line(text.data, "subject      CN=shown\n");
  assert_line(text.data, "issuer       CN=unit test CA\n");
  assert_line(text.data, "URI          spiffe://cleave/worker-7\n");
  assert_line(text.data, "DNS          worker-7.cloud.example, localhost\n");
  assert_line(text.data, "addresses    10.1.2.3, 2001:db8::7\n");
  assert_line(text.data, "usage        clientAuth, serverAuth\n");
  assert_line(text.data, "             89 days left\n");
  assert_line(text.data, "key          EC prime256v1, 256 bits\n");
  clv_bytes_done(&text);
  text = show_certificate("ca.pem", false);
  assert_line(text.data, "subject      CN=unit test CA  (a CA)\n");
  clv_bytes_done(&text);
}

static void show_marks_bad_identity_and_expiry(void **state) {
  (void)state;
  const char *const two_uris[] = {"spiffe://cleave/a", "spiffe://cleave/b\x1b[31m"};
  clv_tls_issue_options o = make_full_options("shown-two");
  o.allow_unusual = true;
  o.uris = two_uris;
  o.n_uris = 2;
  o.validity_days = 1;
  o.not_before_offset_s = -3 * DAY_S - 60;
  issue_certificate(o);
  clv_bytes text = show_certificate("shown-two.pem", false);
  assert_line(text.data, "spiffe://cleave/a, spiffe://cleave/b\\x1b[31m  (not an identity");
  assert_line(text.data, "EXPIRED 2 days ago");
  clv_bytes_done(&text);
  text = show_certificate("shown-two.pem", true);
  assert_line(text.data, "\"identity\":null");
  assert_line(text.data, "\"uri\":[\"spiffe://cleave/a\",\"spiffe://cleave/b\\\\x1b[31m\"]");
  assert_line(text.data, "\"days_left\":-3,\"state\":\"expired\"");
  clv_bytes_done(&text);
}

static void show_prints_json(void **state) {
  (void)state;
  issue_certificate(make_full_options("json"));
  clv_bytes text = show_certificate("json.pem", true);
  assert_line(text.data,
              "[{\"subject\":\"CN=json\",\"issuer\":\"CN=unit test CA\",\"ca\":false,"
              "\"identity\":\"spiffe://cleave/worker-7\"");
  assert_line(text.data,
              "\"dns\":[\"worker-7.cloud.example\",\"localhost\"],"
              "\"ip\":[\"10.1.2.3\",\"2001:db8::7\"],"
              "\"usage\":[\"clientAuth\",\"serverAuth\"]");
  assert_line(text.data,
              "\"days_left\":89,\"state\":\"valid\",\"key\":\"EC prime256v1, 256 bits\"");
  clv_bytes_done(&text);
}

static void failed_show_leaves_its_output_unchanged(void **state) {
  (void)state;
  clv_bytes out = {0};
  clv_bytes_puts(&out, "before");
  clv_err err;
  expect_error(CLV_NOT_FOUND, "none.pem", clv_tls_show_certs(at("none.pem"), &out, false, &err),
               &err);
  expect_error(CLV_INVALID, "no certificate in it",
               clv_tls_show_certs(at("ca.key"), &out, true, &err), &err);
  assert_string_equal(out.data, "before");
  clv_bytes_done(&out);
}

/* ---- checks by the command openssl ----------------------------------------------------------- */

static void issued_certificates_pass_openssl_verify(void **state) {
  (void)state;
  if (!has_openssl()) {
    print_message("because openssl(1) is not installed\n");
    skip();
  }
  issue_certificate(make_full_options("judged"));
  char command[600];
  for (int i = 0; i < 2; i++) {
    snprintf(command, sizeof command, "openssl verify -x509_strict -purpose %s -CAfile %s %s 2>&1",
             i ? "sslserver" : "sslclient", at("ca.pem"), at("judged.pem"));
    clv_bytes text = run_command(0, command);
    clv_bytes_done(&text);
  }
  snprintf(command, sizeof command, "openssl x509 -in %s -noout -text -fingerprint -sha256 2>&1",
           at("judged.pem"));
  clv_bytes text = run_command(0, command), own_text = show_certificate("judged.pem", false);
  assert_line(text.data,
              "URI:spiffe://cleave/worker-7, DNS:worker-7.cloud.example, DNS:localhost, "
              "IP Address:10.1.2.3, IP Address:2001:DB8:0:0:0:0:0:7");
  assert_line(text.data, "TLS Web Client Authentication, TLS Web Server Authentication");
  assert_line(text.data, "X509v3 Basic Constraints: critical");
  assert_line(text.data, "Version: 3 (0x2)");
  const char *fingerprint = strstr(text.data, "ingerprint=");
  assert_non_null(fingerprint);
  assert_line(own_text.data, strtok((char *)(uintptr_t)(fingerprint + 11), "\n"));
  clv_bytes_done(&text);
  clv_bytes_done(&own_text);
}

static int set_up(void **state) {
  clv_err err;
  if (scratch_setup(state) != 0) return -1;
  return clv_tls_ca_init(scratch, "unit test CA", 400, &err) == CLV_OK ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(new_ca_has_private_key_mode_and_ca_extensions),
      cmocka_unit_test(existing_ca_is_never_overwritten),
      cmocka_unit_test(invalid_ca_arguments_are_refused),
      cmocka_unit_test(issued_leaf_has_its_extensions),
      cmocka_unit_test(one_sided_leaf_has_only_its_usage),
      cmocka_unit_test(serials_are_random),
      cmocka_unit_test(leaf_is_written_to_the_given_folder),
      cmocka_unit_test(nothing_is_overwritten_unless_forced),
      cmocka_unit_test(invalid_certificate_names_are_refused),
      cmocka_unit_test(invalid_uris_and_addresses_are_refused),
      cmocka_unit_test(invalid_validity_usage_and_keys_are_refused),
      cmocka_unit_test(missing_or_mismatched_ca_is_refused),
      cmocka_unit_test(show_prints_readable_text),
      cmocka_unit_test(show_marks_bad_identity_and_expiry),
      cmocka_unit_test(show_prints_json),
      cmocka_unit_test(failed_show_leaves_its_output_unchanged),
      cmocka_unit_test(issued_certificates_pass_openssl_verify),
  };
  return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
