/* SPDX-License-Identifier: Apache-2.0
 *
 * The read guard of the worker daemon. gRPC 1.51 handles HTTP GET requests, SETTINGS frames and
 * resets of refused calls itself. It allocates memory for each of them, but does not report them to
 * the daemon, so one caller could make the daemon allocate gigabytes. This file defines and exports
 * SSL_read in the executable, so that libgrpc calls this function. It passes the data through
 * common/net/tls, which counts the HTTP/2 frames of each connection, and closes a connection that
 * sends more frames than its calls and messages need.
 */
#include "common/net/tls/tls.h"

/* Defines the symbol SSL_read by an assembler label, because OpenSSL declares SSL_read with other
 * parameter types. */
int read_and_count_frames(void *ssl, void *data, int len) __asm__("SSL_read")
    __attribute__((visibility("default"), used));

int read_and_count_frames(void *ssl, void *data, int len) {
  return clv_tls_accepted_ssl_read(ssl, data, len);
}
