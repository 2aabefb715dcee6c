/* SPDX-License-Identifier: Apache-2.0
 *
 * The read guard of the worker daemon. gRPC 1.51 itself answers a GET, a SETTINGS frame and a
 * reset of a refused call. It keeps memory for each and reports none of them, so one caller could
 * make the daemon allocate gigabytes. This file defines SSL_read in the executable, exported, so
 * that libgrpc calls it: common/net/tls counts the HTTP/2 frames of each connection, and closes
 * connections that send more than their calls and messages account for.
 */
#include "common/net/tls/tls.h"

/* Defines SSL_read. An assembler label names the function, because its type differs from
 * OpenSSL's. */
int guarded_read(void *ssl, void *data, int len) __asm__("SSL_read")
    __attribute__((visibility("default"), used));

int guarded_read(void *ssl, void *data, int len) {
  return clv_tls_accepted_ssl_read(ssl, data, len);
}
