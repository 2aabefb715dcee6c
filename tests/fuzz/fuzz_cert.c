/* SPDX-License-Identifier: Apache-2.0
 *
 * A peer's certificate, as PEM text, to its URI. A URI that comes out is one line of printable
 * ASCII with a scheme, or the target stops.
 */
#include "common/tls/tls.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *uri) {
  const char *colon = strstr(uri, "://");
  if (!colon || colon == uri || strlen(uri) >= CLV_TLS_URI_LEN) abort();
  for (const char *p = uri; *p; p++)
    if (*p <= 0x20 || *p >= 0x7f) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *pem = malloc(size + 1);
  if (!pem) return 0;
  if (size) memcpy(pem, data, size);
  pem[size] = '\0';
  char uri[CLV_TLS_URI_LEN], small[16];
  clv_err err;
  if (clv_tls_cert_uri(pem, uri, sizeof uri, &err) == CLV_OK) check(uri);
  if (clv_tls_cert_uri(pem, small, sizeof small, NULL) == CLV_OK) check(small);
  free(pem);
  return 0;
}
