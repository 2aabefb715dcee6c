/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets the floor of this process, its minimum TLS version 1.3. gRPC-C 1.51 offers no minimum
 * version: it sets TLS 1.2 on every context, which overwrites MinProtocol of any configuration. It
 * never changes the SSL_OP_NO_TLSv1_2 option, which `Protocol` sets.
 */
#include "common/net/tls/tls_int.h"

#include <openssl/conf.h>
#include <string.h>

static const char floor_conf[] =
    "openssl_conf = cleave\n"
    "[cleave]\n"
    "ssl_conf = cleave_ssl\n"
    "[cleave_ssl]\n"
    "system_default = cleave_tls\n"
    "[cleave_tls]\n"
    "Protocol = -ALL,TLSv1.3\n"
    "Ciphersuites = TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256\n";

static void conf_freep(CONF **p) { NCONF_free(*p); }

static bool is_min_version_in_force(void) {
  CLV_AUTO(clv_ssl_ctx_freep) SSL_CTX *ctx = SSL_CTX_new(TLS_method());
  const uint64_t older_versions = SSL_OP_NO_TLSv1 | SSL_OP_NO_TLSv1_1 | SSL_OP_NO_TLSv1_2;
  return ctx && (SSL_CTX_get_options(ctx) & (older_versions | SSL_OP_NO_TLSv1_3)) == older_versions;
}

const char *clv_tls_library_version(char *ret_path, size_t len) {
  const SSL_METHOD *(*function)(void) = TLS_method;
  const void *address;
  memcpy(&address, &function, sizeof address);
  clv_library_file_of(address, ret_path, len);
  return OpenSSL_version(OPENSSL_VERSION_STRING);
}

clv_code clv_tls_set_min_version(clv_err *err) {
  /* Read the system's file first, because the file read last wins. */
  if (OPENSSL_init_ssl(OPENSSL_INIT_LOAD_CONFIG, NULL) != 1) {
    char why[CLV_TLS_ERROR_LEN];
    return clv_fail(err, CLV_INTERNAL, "OpenSSL did not start: %s", clv_tls_openssl_reason(why));
  }
  CLV_TRY(clv_tls_verification_install(err));
  if (is_min_version_in_force()) return CLV_OK;
  CLV_AUTO(clv_bio_freep) BIO *text = BIO_new_mem_buf(floor_conf, (int)strlen(floor_conf));
  CLV_AUTO(conf_freep) CONF *conf = NCONF_new(NULL);
  long line = 0;
  if (!text || !conf || NCONF_load_bio(conf, text, &line) <= 0 ||
      CONF_modules_load(conf, NULL, 0) <= 0) {
    char why[CLV_TLS_ERROR_LEN];
    return clv_fail(err, CLV_INTERNAL, "OpenSSL refused the TLS 1.3 floor (line %ld): %s", line,
                    clv_tls_openssl_reason(why));
  }
  if (!is_min_version_in_force())
    return clv_fail(err, CLV_INTERNAL, "TLS versions below 1.3 are still on after the floor");
  return CLV_OK;
}
