/* SPDX-License-Identifier: Apache-2.0
 *
 * The read guard of the worker daemon. gRPC 1.51 answers a GET, a SETTINGS frame or a reset of what
 * it has refused by itself: it keeps memory for each and reports none, so one caller could make the
 * daemon take gigabytes. This file defines SSL_read in the executable, exported, so that libgrpc's
 * calls come here: common/net/tls charges the HTTP/2 frames of each connection, and shuts those
 * that bring more than calls and their messages account for.
 */
#include "common/net/tls/tls.h"

/* Named by its label, because its type is OpenSSL's. */
int guarded_read(void *ssl, void *data, int len) __asm__("SSL_read")
    __attribute__((visibility("default"), used));

int guarded_read(void *ssl, void *data, int len) { return clv_tls_accepted_read(ssl, data, len); }
