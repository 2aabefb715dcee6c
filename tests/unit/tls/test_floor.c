/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the TLS 1.3 floor, the minimum version that the product forces on all TLS contexts of its
 * process, with contexts made as gRPC makes them. For a process without the floor, or with another
 * openssl.cnf, this program starts itself again, because OpenSSL reads its configuration once per
 * process.
 */
#include "tests/unit/tls/fixture.h"

#include <openssl/err.h>

/* Makes a TLS context as gRPC-C 1.51 does: its minimum is TLS 1.2, whatever was configured. */
static SSL_CTX *make_context_like_grpc(void) {
  SSL_CTX *ctx = SSL_CTX_new(TLS_method());
  if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) != 1)
    abort();
  return ctx;
}

/* Makes the TLS context of a peer in another process, to which this process's minimum version does
 * not apply. */
static SSL_CTX *make_foreign_context(int version) {
  SSL_CTX *ctx = SSL_CTX_new(TLS_method());
  if (!ctx) abort();
  SSL_CTX_clear_options(ctx, SSL_OP_NO_SSL_MASK);
  if (SSL_CTX_set_min_proto_version(ctx, version) != 1 ||
      SSL_CTX_set_max_proto_version(ctx, version) != 1)
    abort();
  return ctx;
}

static void set_certificate(SSL_CTX *ctx) {
  EVP_PKEY *key = EVP_EC_gen("P-256");
  certificate_spec spec = {.name = "floor", .valid_days = 1};
  X509 *cert = make_certificate_by_hand(&spec, key);
  if (SSL_CTX_use_certificate(ctx, cert) != 1 || SSL_CTX_use_PrivateKey(ctx, key) != 1) abort();
  X509_free(cert);
  EVP_PKEY_free(key);
}

/* Runs the handshake of two connected ends. Returns the version that they agree on; 0: none. */
static int get_agreed_version(SSL *server, SSL *client) {
  int version = 0;
  SSL_set_accept_state(server);
  SSL_set_connect_state(client);
  for (int i = 0; i < 20 && !version; i++) {
    int client_done = SSL_do_handshake(client), server_done = SSL_do_handshake(server);
    if (client_done == 1 && server_done == 1) version = SSL_version(client);
  }
  return version;
}

static int negotiate_version(SSL_CTX *server_ctx, SSL_CTX *client_ctx) {
  set_certificate(server_ctx);
  SSL *server = SSL_new(server_ctx), *client = SSL_new(client_ctx);
  BIO *a = NULL, *b = NULL;
  if (!server || !client || BIO_new_bio_pair(&a, 0, &b, 0) != 1) abort();
  SSL_set_bio(server, a, a);
  SSL_set_bio(client, b, b);
  int version = get_agreed_version(server, client);
  ERR_clear_error();
  SSL_free(server);
  SSL_free(client);
  SSL_CTX_free(server_ctx);
  SSL_CTX_free(client_ctx);
  return version;
}

/* ---- this process, whose minimum TLS version is set ------------------------------------------ */

static void server_refuses_tls12(void **state) {
  (void)state;
  assert_int_equal(
      negotiate_version(make_context_like_grpc(), make_foreign_context(TLS1_2_VERSION)), 0);
}

static void server_takes_tls13(void **state) {
  (void)state;
  assert_int_equal(
      negotiate_version(make_context_like_grpc(), make_foreign_context(TLS1_3_VERSION)),
      TLS1_3_VERSION);
}

static void client_refuses_tls12(void **state) {
  (void)state;
  assert_int_equal(
      negotiate_version(make_foreign_context(TLS1_2_VERSION), make_context_like_grpc()), 0);
}

static void client_takes_tls13(void **state) {
  (void)state;
  assert_int_equal(
      negotiate_version(make_foreign_context(TLS1_3_VERSION), make_context_like_grpc()),
      TLS1_3_VERSION);
}

static void floor_can_be_installed_again(void **state) {
  (void)state;
  clv_err err;
  for (int i = 0; i < 3; i++) must(clv_tls_set_min_version(&err), &err);
  server_refuses_tls12(state);
  server_takes_tls13(state);
}

/* ---- child processes with other minimum versions --------------------------------------------- */

/* Main of a child process. Its exit code is 12 if a TLS 1.2 client and a server like gRPC's agree
 * on TLS 1.2, else 0; 98 and 99: the child itself failed. */
static int run_in_child(const char *mode) {
  /* simulates a library that starts OpenSSL without its configuration */
  if (!strcmp(mode, "unread")) OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
  clv_err err = {0};
  if (strcmp(mode, "bare") != 0 && clv_tls_set_min_version(&err) != CLV_OK) {
    fprintf(stderr, "%s\n", err.text);
    return 99;
  }
  if (negotiate_version(make_context_like_grpc(), make_foreign_context(TLS1_3_VERSION)) !=
      TLS1_3_VERSION)
    return 98;
  return negotiate_version(make_context_like_grpc(), make_foreign_context(TLS1_2_VERSION)) ==
                 TLS1_2_VERSION
             ? 12
             : 0;
}

static int run_child(const char *mode, const char *conf) {
  pid_t pid = fork();
  if (pid == 0) {
    if (conf) setenv("OPENSSL_CONF", conf, 1);
    execl("/proc/self/exe", "test_floor", mode, (char *)NULL);
    _exit(97);
  }
  int status = 0;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* If no minimum version is set, TLS 1.2 must work. If it did not, the other tests would prove
 * nothing. */
static void tls12_works_without_the_floor(void **state) {
  (void)state;
  assert_int_equal(run_child("bare", NULL), 12);
}

static const char lax_conf[] =
    "openssl_conf = top\n[top]\nssl_conf = ssl\n[ssl]\nsystem_default = lax\n"
    "[lax]\nProtocol = ALL\nMinProtocol = TLSv1.2\nCipherString = DEFAULT\n";

static void floor_overrides_openssl_cnf(void **state) {
  (void)state;
  write_text(at("lax.cnf"), lax_conf, strlen(lax_conf), 0644);
  assert_int_equal(run_child("bare", at("lax.cnf")), 12);
  assert_int_equal(run_child("floor", at("lax.cnf")), 0);
}

static void floor_works_without_openssl_cnf(void **state) {
  (void)state;
  assert_int_equal(run_child("floor", at("there-is-none.cnf")), 0);
  assert_int_equal(run_child("unread", NULL), 0);
}

static int set_up(void **state) {
  clv_err err;
  if (clv_tls_set_min_version(&err) != CLV_OK) return -1;
  return scratch_setup(state);
}

int main(int argc, char **argv) {
  if (argc == 2) return run_in_child(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(server_refuses_tls12),
      cmocka_unit_test(server_takes_tls13),
      cmocka_unit_test(client_refuses_tls12),
      cmocka_unit_test(client_takes_tls13),
      cmocka_unit_test(floor_can_be_installed_again),
      cmocka_unit_test(tls12_works_without_the_floor),
      cmocka_unit_test(floor_overrides_openssl_cnf),
      cmocka_unit_test(floor_works_without_openssl_cnf),
  };
  return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
