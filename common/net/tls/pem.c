/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and writing PEM files: certificates and private keys.
 */
#include "common/net/tls/tls_int.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *clv_tls_openssl_reason(char buf[CLV_TLS_ERROR_LEN]) {
  unsigned long code = ERR_peek_last_error();
  const char *reason = code ? ERR_reason_error_string(code) : NULL;
  snprintf(buf, CLV_TLS_ERROR_LEN, "%s", reason ? reason : "no reason given");
  ERR_clear_error();
  return buf;
}

/* ---- reading key files ----------------------------------------------------------------------- */

void clv_secret_freep(char **text) {
  if (*text) explicit_bzero(*text, strlen(*text));
  free(*text);
  *text = NULL;
}

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
}

/* True for a file of systemd's credentials. Only the service can enter the folder of these files.
 * If an access list lets it enter, the list's mask looks like rights of the group. */
static bool is_systemd_credential(const char *path) {
  const char *folder = getenv("CREDENTIALS_DIRECTORY");
  size_t n = folder ? strlen(folder) : 0;
  return n > 1 && folder[0] == '/' && strncmp(path, folder, n) == 0 && path[n] == '/' &&
         !strstr(path + n, "/../");
}

static clv_code check_key_file(int fd, const char *path, size_t *ret_size, clv_err *err) {
  struct stat st;
  if (fstat(fd, &st) != 0) return clv_fail(err, CLV_INVALID, "%s: %s", path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return clv_fail(err, CLV_INVALID, "%s: not a regular file", path);
  if (st.st_mode & (is_systemd_credential(path) ? 037 : 077))
    return clv_fail(err, CLV_DENIED,
                    "%s: this private key has mode %04o, so others than its owner may use it; "
                    "fix: chmod 600 %s",
                    path, (unsigned)(st.st_mode & 07777), path);
  if (st.st_size > CLV_TLS_FILE_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %lld bytes, the limit is %d", path,
                    (long long)st.st_size, CLV_TLS_FILE_MAX);
  *ret_size = (size_t)st.st_size;
  return CLV_OK;
}

static clv_code fail_open(const char *path, clv_err *err) {
  clv_code code = errno == ENOENT ? CLV_NOT_FOUND : errno == EACCES ? CLV_DENIED : CLV_INVALID;
  return clv_fail(err, code, "%s: %s", path, strerror(errno));
}

clv_code clv_tls_key_read(const char *path, char **ret_pem, clv_err *err) {
  CLV_AUTO(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail_open(path, err);
  size_t size = 0;
  CLV_TRY(check_key_file(fd, path, &size, err));
  CLV_AUTO(clv_secret_freep) char *pem = NULL;
  CLV_TRY(clv_alloc(size + 1, 1, &pem, err));
  size_t used = 0;
  while (used < size) {
    ssize_t n = read(fd, pem + used, size - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return clv_fail(err, CLV_DATA_LOSS, "%s: %s", path, strerror(errno));
    if (n == 0) break;
    used += (size_t)n;
  }
  if (strlen(pem) != size) /* clv_secret_freep wipes only up to the first NUL byte */
    return clv_fail(err, CLV_INVALID, "%s: not PEM text (a NUL byte at %zu)", path, strlen(pem));
  *ret_pem = clv_steal(&pem);
  return CLV_OK;
}

/* ---- parsing and formatting PEM text --------------------------------------------------------- */

/* Password callback of PEM_read_bio_* for encrypted keys. */
static int refuse_password(char *buf, int size, int writing, void *was_asked) {
  (void)buf;
  (void)size;
  (void)writing;
  *(bool *)was_asked = true;
  return -1;
}

clv_code clv_tls_key_parse(const char *pem, const char *what, EVP_PKEY **ret_key, clv_err *err) {
  size_t len = strlen(pem);
  if (len > CLV_TLS_FILE_MAX) return clv_fail(err, CLV_EXHAUSTED, "%s: too large", what);
  ERR_clear_error();
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new_mem_buf(pem, (int)len);
  if (!bio) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", what);
  bool was_asked = false;
  EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, refuse_password, &was_asked);
  if (key) {
    *ret_key = key;
    return CLV_OK;
  }
  char why[CLV_TLS_ERROR_LEN];
  clv_tls_openssl_reason(why);
  if (was_asked || strstr(pem, "ENCRYPTED"))
    return clv_fail(err, CLV_INVALID,
                    "%s: the private key is encrypted, and a daemon cannot ask for the "
                    "password; fix: openssl pkey -in %s -out plain.key, then chmod 600 plain.key",
                    what, what);
  if (!strstr(pem, "PRIVATE KEY-----"))
    return clv_fail(err, CLV_INVALID,
                    "%s: no private key in it (no \"-----BEGIN PRIVATE KEY-----\"); is it the file "
                    "that tls.key should name?",
                    what);
  return clv_fail(err, CLV_INVALID, "%s: the private key is damaged or cut off (%s); copy it again",
                  what, why);
}

static clv_code fail_no_cert(const char *pem, int n_before, const char *what, clv_err *err) {
  char why[CLV_TLS_ERROR_LEN];
  clv_tls_openssl_reason(why);
  if (n_before == 0 && !strstr(pem, "-----BEGIN CERTIFICATE"))
    return clv_fail(err, CLV_INVALID,
                    "%s: no certificate in it (no \"-----BEGIN CERTIFICATE-----\"); it must be a "
                    "PEM file",
                    what);
  return clv_fail(err, CLV_INVALID,
                  "%s: certificate number %d is damaged or cut off (%s); copy the file again", what,
                  n_before + 1, why);
}

clv_code clv_tls_certs_parse(const char *pem, size_t len, const char *what,
                             STACK_OF(X509) * *ret_certs, clv_err *err) {
  if (len > CLV_TLS_FILE_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "%s: %zu bytes, the limit is %d", what, len,
                    CLV_TLS_FILE_MAX);
  ERR_clear_error();
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new_mem_buf(pem, (int)len);
  CLV_AUTO(clv_certs_freep) STACK_OF(X509) *certs = sk_X509_new_null();
  if (!bio || !certs) return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", what);
  for (;;) {
    bool was_asked = false;
    X509 *cert = PEM_read_bio_X509(bio, NULL, refuse_password, &was_asked);
    if (!cert) break;
    if (sk_X509_push(certs, cert) <= 0) {
      X509_free(cert);
      return clv_fail(err, CLV_EXHAUSTED, "%s: out of memory", what);
    }
  }
  unsigned long last = ERR_peek_last_error();
  bool at_end = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  if (sk_X509_num(certs) == 0 || !at_end) return fail_no_cert(pem, sk_X509_num(certs), what, err);
  ERR_clear_error();
  *ret_certs = clv_steal(&certs);
  return CLV_OK;
}

clv_code clv_tls_certs_read(const char *path, STACK_OF(X509) * *ret_certs, clv_err *err) {
  CLV_AUTO(clv_bytes_done) clv_bytes pem = {0};
  CLV_TRY(clv_file_read(path, CLV_TLS_FILE_MAX, &pem, err));
  return clv_tls_certs_parse(pem.data, pem.len, path, ret_certs, err);
}

clv_code clv_tls_certs_format(const STACK_OF(X509) * certs, char **ret_pem, clv_err *err) {
  CLV_AUTO(clv_bio_freep) BIO *bio = BIO_new(BIO_s_mem());
  bool ok = bio != NULL;
  for (int i = 0; ok && i < sk_X509_num(certs); i++)
    ok = PEM_write_bio_X509(bio, sk_X509_value(certs, i)) == 1;
  if (!ok) return clv_fail(err, CLV_EXHAUSTED, "out of memory for a certificate's text");
  char *data = NULL;
  size_t len = (size_t)BIO_get_mem_data(bio, &data);
  char *pem = NULL;
  CLV_TRY(clv_alloc(len + 1, 1, &pem, err));
  memcpy(pem, data, len);
  *ret_pem = pem;
  return CLV_OK;
}
