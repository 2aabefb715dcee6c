/* SPDX-License-Identifier: Apache-2.0
 *
 * http: a port that shows a few pages of text to whoever can reach it: GET and HEAD alone, HTTP/1,
 * no TLS, no authentication. For health and numbers, never for what a session holds.
 *
 * Everything is bounded: connections, the memory of each (which holds its request line and
 * headers), the time from accept to the end. A connection carries one request and is closed.
 *
 * Threads: one of its own, on which pages are written. Uses libmicrohttpd, which this folder alone
 * sees.
 */
#ifndef CLEAVE_HTTP_H
#define CLEAVE_HTTP_H

#include "common/base/base.h"

typedef struct clv_http clv_http;

typedef struct clv_http_page {
  const char *path; /* "/metrics" */
  const char *type; /* Content-Type */
  /* Appends the body and returns the status, such as 200 or 503. On the port's thread. */
  unsigned (*write)(void *user, clv_bytes *out);
} clv_http_page;

typedef struct clv_http_options {
  const char *listen;         /* "127.0.0.1:9101", "[::1]:9101", "localhost:0" */
  const clv_http_page *pages; /* [n_pages], kept by reference */
  size_t n_pages;
  void *user;           /* of the pages */
  unsigned connections; /* at once, up to 64; others wait to be accepted; 0 = 64 */
  unsigned request_ms;  /* how long a connection may last, in a crowd a tenth of it; 0 = 5000 */
} clv_http_options;

/* Binds and serves. CLV_UNAVAILABLE with the system's reason when the address cannot be bound. */
clv_code clv_http_open(const clv_http_options *options, clv_http **ret,
                       clv_err *err) CLV_USE_RESULT;
unsigned clv_http_port(const clv_http *http);
/* BLOCKS until no page is being written any more. NULL is allowed. */
void clv_http_close(clv_http *http);
void clv_http_closep(clv_http **http);

/* A page for "/healthz": that this process answers. */
unsigned clv_http_health(void *user, clv_bytes *out);
#define CLV_HTTP_TEXT "text/plain; charset=utf-8"

/* Whether only this machine reaches such an address. Names other than localhost count as
 * reachable. */
bool clv_http_is_loopback(const char *listen);

#endif
