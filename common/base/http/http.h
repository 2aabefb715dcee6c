/* SPDX-License-Identifier: Apache-2.0
 *
 * http: a port that serves a few pages of text to any client: GET and HEAD, HTTP/1, no TLS, no
 * authentication. For health checks and metrics, never for data of sessions.
 *
 * Everything is bounded: the number of connections, the memory of each (its request line and
 * headers), and the time from accept to the end. A connection carries one request and is closed.
 *
 * Threads: each open port has a thread of its own, which writes the pages. No other folder uses
 * libmicrohttpd.
 */
#ifndef CLEAVE_HTTP_H
#define CLEAVE_HTTP_H

#include "common/base/base.h"

typedef struct clv_http clv_http;

typedef struct clv_http_page {
  const char *path; /* path of the page: "/metrics" */
  const char *type; /* value of the header Content-Type */
  /* Appends the body and returns the status, such as 200 or 503. Called on the port's thread. */
  unsigned (*write)(void *user, clv_bytes *out);
} clv_http_page;

typedef struct clv_http_options {
  const char *listen;         /* address and port: "127.0.0.1:9101", "[::1]:9101", "localhost:0" */
  const clv_http_page *pages; /* [n_pages]; must stay valid while the port is open */
  size_t n_pages;
  void *user; /* first argument of each page's write() */
  /* most connections open at once, up to 64; further ones wait to be accepted; 0: 64 */
  unsigned connections;
  /* milliseconds that a connection may last, a tenth of that under load; 0: 5000 */
  unsigned request_ms;
} clv_http_options;

/* Binds the address and starts serving. CLV_UNAVAILABLE: the address cannot be bound, with the
 * system's reason. */
clv_code clv_http_open(const clv_http_options *options, clv_http **ret,
                       clv_err *err) CLV_USE_RESULT;
unsigned clv_http_port(const clv_http *http);
/* Closes the port. BLOCKS until no page is being written. NULL is allowed. */
void clv_http_close(clv_http *http);
void clv_http_closep(clv_http **http);

/* Page for "/healthz": shows that this process answers. */
unsigned clv_http_health(void *user, clv_bytes *out);
#define CLV_HTTP_TEXT "text/plain; charset=utf-8"

/* True if only this machine can reach the address. Names other than localhost count as reachable by
 * other machines. */
bool clv_http_is_loopback(const char *listen);

#endif
