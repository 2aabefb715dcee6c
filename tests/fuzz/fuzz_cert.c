/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes certificates as PEM text: a peer's certificate, whose URI is read; our own files (a CA's,
 * ours, our key, separated by NUL bytes), which become an identity; and lists of revoked
 * certificates. An accepted URI is one line of printable ASCII with a scheme, and what `certs show`
 * prints of a certificate is printable too; otherwise the target aborts.
 */
#include "common/net/tls/tls.h"
#include "tests/fuzz/never.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 3, PATH_LEN = 40 };

static void check_accepted_uri(const char *uri) {
  const char *colon = strstr(uri, "://");
  NEVER(!colon || colon == uri || strlen(uri) >= CLV_TLS_URI_LEN);
  for (const char *p = uri; *p; p++) NEVER(*p <= 0x20 || *p >= 0x7f);
}

/* Returns the descriptor of a file with the given text that only its owner can read. The file is
 * freed when the descriptor is closed. */
static int make_memory_file(const char *text, size_t len, char path[PATH_LEN]) {
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  NEVER(fd < 0 || fchmod(fd, 0600) != 0 || write(fd, text, len) != (ssize_t)len);
  snprintf(path, PATH_LEN, "/proc/self/fd/%d", fd);
  return fd;
}

static void check_uri(const char *pem) {
  char uri[CLV_TLS_URI_LEN], small[16];
  clv_err err;
  if (clv_tls_uri_of_pem(pem, uri, sizeof uri, &err) == CLV_OK) check_accepted_uri(uri);
  if (clv_tls_uri_of_pem(pem, small, sizeof small, NULL) == CLV_OK) check_accepted_uri(small);
}

static void check_show_output(const char *path, bool is_json) {
  CLV_AUTO(clv_bytes_done) clv_bytes out = {0};
  NEVER(clv_tls_show_certs(path, &out, is_json, NULL) != CLV_OK && out.len);
  for (size_t i = 0; i < out.len; i++)
    NEVER(out.data[i] != '\n' && (out.data[i] < 0x20 || out.data[i] >= 0x7f));
}

static void check_identity(char path[FILES][PATH_LEN]) {
  CLV_AUTO(clv_tls_identity_freep) clv_tls_identity *identity = NULL;
  clv_err err = {0};
  clv_code code = clv_tls_identity_load(path[0], path[1], path[2], &identity, &err);
  NEVER((code == CLV_OK) != (identity != NULL) || (code != CLV_OK && !err.text[0]));
  if (!identity) return;
  check_accepted_uri(identity->uri);
  NEVER(!(identity->usage & (CLV_TLS_CLIENT | CLV_TLS_SERVER)));
  (void)!clv_tls_identity_require_usage(identity, CLV_TLS_SERVER, &err);
  (void)clv_tls_identity_days_left(identity);
}

static void check_revocation_list(const char *pem) {
  CLV_AUTO(clv_tls_crl_freep) clv_tls_crl *crl = NULL;
  clv_err err = {0};
  clv_code code = clv_tls_crl_parse(pem, strlen(pem), "list", NULL, &crl, &err);
  if ((code == CLV_OK) != (crl != NULL) || (code != CLV_OK && !err.text[0])) abort();
  if (!crl) return;
  (void)!clv_tls_crl_check_expiry(crl, NULL, &err);
  (void)clv_tls_crl_has_cert(crl, "/CN=fuzz", "01");
  (void)clv_tls_crl_expiry(crl);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *pem = malloc(size + 1), path[FILES][PATH_LEN];
  int fd[FILES];
  if (!pem) return 0;
  if (size) memcpy(pem, data, size);
  pem[size] = '\0';
  char *at = pem, *end = pem + size;
  for (int i = 0; i < FILES; i++) {
    /* the last file gets the rest of the input, which may contain NUL bytes */
    size_t len = i + 1 < FILES ? strlen(at) : (size_t)(end - at);
    fd[i] = make_memory_file(at, len, path[i]);
    at += CLV_MIN(len + 1, (size_t)(end - at));
  }
  check_uri(pem);
  check_revocation_list(pem);
  for (int all = 0; all < 2; all++) check_show_output(path[0], all);
  check_identity(path);
  for (int i = 0; i < FILES; i++) close(fd[i]);
  free(pem);
  return 0;
}
