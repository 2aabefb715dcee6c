/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the server of pages over HTTP with valid requests, invalid ones, requests that do not end,
 * and clients that send no request.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/http/http.h"

enum { REQUEST_MS = 400, CONNECTIONS = 4, REPLY_BYTES = 65536, LARGE_PAGE_BYTES = 1 << 20 };

static unsigned serve_hello(void *user, clv_bytes *out) {
  ++*(unsigned *)user;
  clv_bytes_puts(out, "hello\n");
  return 200;
}

static unsigned serve_unavailable(void *user, clv_bytes *out) {
  (void)user;
  clv_bytes_puts(out, "not now\n");
  return 503;
}

static unsigned serve_failed_page(void *user, clv_bytes *out) {
  (void)user;
  clv_bytes_puts(out, "half a pa");
  out->failed = true;
  return 200;
}

static unsigned serve_large_page(void *user, clv_bytes *out) {
  (void)user;
  char line[64];
  memset(line, 'x', sizeof line);
  for (int i = 0; i < LARGE_PAGE_BYTES / (int)sizeof line; i++)
    clv_bytes_add(out, line, sizeof line);
  return 200;
}

static unsigned serve_empty_page(void *user, clv_bytes *out) {
  (void)user, (void)out;
  return 200;
}

static const clv_http_page pages[] = {{"/hello", "text/x-test", serve_hello},
                                      {"/readyz", "text/plain", serve_unavailable},
                                      {"/broken", "text/plain", serve_failed_page},
                                      {"/large", "text/plain", serve_large_page},
                                      {"/empty", "text/plain", serve_empty_page}};
static unsigned n_pages_served;
static clv_http *http;

static int open_http(void **state) {
  (void)state;
  clv_err err;
  clv_http_options o = {.listen = "127.0.0.1:0",
                        .pages = pages,
                        .n_pages = CLV_COUNT(pages),
                        .user = &n_pages_served,
                        .connections = CONNECTIONS,
                        .request_ms = REQUEST_MS};
  n_pages_served = 0;
  return clv_http_open(&o, &http, &err) == CLV_OK ? 0 : -1;
}

static int close_http(void **state) {
  (void)state;
  clv_http_closep(&http);
  return 0;
}

/* ---- a client of the server under test ------------------------------------------------------- */

static int connect_to_server(void) {
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)clv_http_port(http)),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
  return fd;
}

static void send_all(int fd, const char *text, size_t len) {
  while (len) {
    ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
    if (n <= 0) return; /* the server has closed the connection */
    text += n;
    len -= (size_t)n;
  }
}

/* Reads the answer until its end, for at most `ms`. Returns how many ms that took, or -1 if the
 * answer did not end. */
static long read_reply(int fd, char reply[REPLY_BYTES], unsigned ms) {
  uint64_t begin = clv_now_ns();
  size_t got = 0;
  reply[0] = '\0';
  for (;;) {
    long passed_ms = (long)((clv_now_ns() - begin) / 1000000u);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (passed_ms >= (long)ms || poll(&p, 1, (int)((long)ms - passed_ms)) <= 0) return -1;
    char discarded[4096];
    bool has_room = got < REPLY_BYTES - 1;
    ssize_t n = recv(fd, has_room ? reply + got : discarded,
                     has_room ? REPLY_BYTES - 1 - got : sizeof discarded, 0);
    if (n <= 0) return (long)((clv_now_ns() - begin) / 1000000u);
    if (has_room) reply[got += (size_t)n] = '\0';
  }
}

/* Returns the status of the answer to a request; 0: closed without an answer. */
static int get_status(const char *request, size_t len, char reply[REPLY_BYTES]) {
  int fd = connect_to_server(), status = 0;
  send_all(fd, request, len);
  assert_true(read_reply(fd, reply, 5000) >= 0);
  close(fd);
  if (sscanf(reply, "HTTP/1.%*d %d", &status) != 1) return 0;
  return status;
}

static int get_status_of_text(const char *request, char reply[REPLY_BYTES]) {
  return get_status(request, strlen(request), reply);
}

/* ---- valid requests -------------------------------------------------------------------------- */

static void known_pages_are_served(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  assert_int_equal(get_status_of_text("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", reply), 200);
  assert_non_null(strstr(reply, "Content-Type: text/x-test\r\n"));
  assert_non_null(strstr(reply, "Connection: close\r\n"));
  assert_string_equal(strstr(reply, "\r\n\r\n") + 4, "hello\n");
  assert_int_equal(get_status_of_text("GET /hello?x=1 HTTP/1.0\r\n\r\n", reply), 200);
  assert_int_equal(get_status_of_text("GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", reply), 503);
  assert_string_equal(strstr(reply, "\r\n\r\n") + 4, "not now\n");
  assert_int_equal(get_status_of_text("GET /empty HTTP/1.1\r\nHost: x\r\n\r\n", reply), 200);
  assert_string_equal(strstr(reply, "\r\n\r\n") + 4, "");
  assert_int_equal(n_pages_served, 2);
}

static void head_request_has_no_body(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  assert_int_equal(get_status_of_text("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n", reply), 200);
  assert_non_null(strstr(reply, "Content-Length: 6\r\n"));
  assert_string_equal(strstr(reply, "\r\n\r\n") + 4, "");
}

static void large_page_is_served_completely(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  assert_int_equal(get_status_of_text("GET /large HTTP/1.1\r\nHost: x\r\n\r\n", reply), 200);
  assert_non_null(strstr(reply, "Content-Length: 1048576\r\n"));
}

static void page_without_memory_gives_status_500(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  assert_int_equal(get_status_of_text("GET /broken HTTP/1.1\r\nHost: x\r\n\r\n", reply), 500);
  assert_null(strstr(reply, "half a pa"));
}

static void second_request_on_a_connection_is_ignored(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  const char *request =
      "GET /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
  assert_int_equal(get_status_of_text(request, reply), 200);
  assert_int_equal(n_pages_served, 1);
}

/* ---- invalid requests ------------------------------------------------------------------------ */

static void invalid_requests_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *request;
    int status; /* 0: any 4xx, or no answer */
  } cases[] = {
      {"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404},
      {"GET /hello/ HTTP/1.1\r\nHost: x\r\n\r\n", 404},
      {"GET /../hello HTTP/1.1\r\nHost: x\r\n\r\n", 404},
      {"GET http://x/hello HTTP/1.1\r\nHost: x\r\n\r\n", 404},
      {"POST /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405},
      {"PUT /hello HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
       405},
      {"DELETE /hello HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"TRACE /hello HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"BREW /hello HTTP/1.1\r\nHost: x\r\n\r\n", 405},
      {"GET /hello HTTP/1.1\r\n\r\n", 400}, /* a request without the header Host */
      {"GET /hello HTTP/9.9\r\nHost: x\r\n\r\n", 0},
      {"GET\r\n\r\n", 0},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello in TLS\r\n\r\n", 0},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 0},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 0},
  };
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    char reply[REPLY_BYTES];
    int got = get_status_of_text(cases[i].request, reply);
    bool is_refused =
        cases[i].status ? got == cases[i].status : got == 0 || (got >= 400 && got < 600);
    if (!is_refused) fail_msg("%.40s: %d", cases[i].request, got);
    if (got == 405) assert_non_null(strstr(reply, "Allow: GET, HEAD\r\n"));
  }
  assert_int_equal(n_pages_served, 0);
}

/* A request line or header that never ends is answered by 4xx, or its connection is cut, before it
 * uses more memory than a connection may. */
static void endless_headers_are_refused_or_disconnected(void **state) {
  (void)state;
  static const struct {
    const char *first_bytes, *repeated_bytes;
  } cases[] = {{"GET /", "aaaaaaaaaaaaaaaa"},
               {"GET /hello HTTP/1.1\r\nHost: x\r\nX: ", "aaaaaaaaaaaaaaaa"},
               {"GET /hello HTTP/1.1\r\nHost: x\r\n", "X: a\r\n"},
               {"GET /hello HTTP/1.1\r\nHost: x\r\nX: a\r\n", " folded\r\n"},
               {"GET /hello?", "a=b&"},
               {"", "\r\n"}};
  for (size_t i = 0; i < CLV_COUNT(cases); i++) {
    char reply[REPLY_BYTES];
    CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
    clv_bytes_puts(&text, cases[i].first_bytes);
    while (text.len < 200000) clv_bytes_puts(&text, cases[i].repeated_bytes);
    int got = get_status(text.data, text.len, reply);
    if (got && (got < 400 || got >= 500)) fail_msg("%s: %d", cases[i].first_bytes, got);
  }
  assert_int_equal(n_pages_served, 0);
}

/* ---- clients that are slow or silent --------------------------------------------------------- */

static void silent_clients_are_disconnected(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  int fd = connect_to_server();
  long ms = read_reply(fd, reply, 5000);
  close(fd);
  assert_in_range(ms, REQUEST_MS - 50, REQUEST_MS + 500);
}

/* The HTTP library keeps a connection alive as long as a byte arrives now and then. This server
 * limits the time of the whole request. */
static void slow_clients_are_disconnected(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  uint64_t begin = clv_now_ns();
  int fd = connect_to_server();
  long ms = -1;
  send_all(fd, "GET /hello HTTP/1.1\r\nX: ", 24);
  for (int i = 0; ms < 0 && i < 100; i++) {
    send_all(fd, "a", 1);
    ms = read_reply(fd, reply, 50);
  }
  close(fd);
  ms = (long)((clv_now_ns() - begin) / 1000000u);
  assert_in_range(ms, REQUEST_MS - 50, REQUEST_MS + 500);
}

/* A client that requests a large page and does not read it is disconnected too. */
static void clients_that_do_not_read_are_disconnected(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  int slow_fds[CONNECTIONS], small_buffer_bytes = 2048;
  for (int i = 0; i < CONNECTIONS; i++) {
    slow_fds[i] = connect_to_server();
    setsockopt(slow_fds[i], SOL_SOCKET, SO_RCVBUF, &small_buffer_bytes, sizeof small_buffer_bytes);
    send_all(slow_fds[i], "GET /large HTTP/1.1\r\nHost: x\r\n\r\n", 32);
  }
  assert_int_equal(get_status_of_text("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", reply), 200);
  for (int i = 0; i < CONNECTIONS; i++) close(slow_fds[i]);
}

/* Opens more idle connections than the server accepts. A request on a further connection waits
 * until the server disconnects idle ones, and is answered in less than twice the time limit of a
 * request. */
static void idle_connections_do_not_starve_requests(void **state) {
  (void)state;
  char reply[REPLY_BYTES];
  int idle_fds[4 * CONNECTIONS];
  for (size_t i = 0; i < CLV_COUNT(idle_fds); i++) idle_fds[i] = connect_to_server();
  uint64_t begin = clv_now_ns();
  assert_int_equal(get_status_of_text("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n", reply), 200);
  uint64_t ms = (clv_now_ns() - begin) / 1000000u;
  assert_in_range(ms, REQUEST_MS / 20, 2 * REQUEST_MS);
  for (size_t i = 0; i < CLV_COUNT(idle_fds); i++) close(idle_fds[i]);
}

/* ---- addresses to listen on ------------------------------------------------------------------ */

static void unusable_listen_address_is_named(void **state) {
  (void)state;
  clv_err err;
  char listen[64];
  clv_http *other = NULL;
  snprintf(listen, sizeof listen, "127.0.0.1:%u", clv_http_port(http));
  clv_http_options o = {.listen = listen};
  assert_int_equal(clv_http_open(&o, &other, &err), CLV_UNAVAILABLE);
  assert_non_null(strstr(err.text, listen));
  assert_non_null(strstr(err.text, "in use"));
  /* an address reserved for documentation, so this machine does not have it */
  o.listen = "192.0.2.1:0";
  assert_int_equal(clv_http_open(&o, &other, &err), CLV_UNAVAILABLE);
  o.listen = "127.0.0.1:http:80";
  assert_int_not_equal(clv_http_open(&o, &other, &err), CLV_OK);
  o.listen = "here";
  assert_int_equal(clv_http_open(&o, &other, &err), CLV_INVALID);
  assert_null(other);
}

/* Listens by host name, and on IPv6 if this machine has it. */
static void hostname_and_ipv6_addresses_are_served(void **state) {
  (void)state;
  clv_http *other = NULL;
  clv_http_options o = {.listen = "localhost:0"};
  assert_int_equal(clv_http_open(&o, &other, NULL), CLV_OK);
  assert_true(clv_http_port(other) > 0);
  clv_http_closep(&other);
  clv_http_closep(&other);
  o.listen = "[::1]:0";
  int fd = socket(AF_INET6, SOCK_STREAM, 0);
  struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  bool has_ipv6 = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
  if (fd >= 0) close(fd);
  if (!has_ipv6) return;
  assert_int_equal(clv_http_open(&o, &other, NULL), CLV_OK);
  at.sin6_port = htons((uint16_t)clv_http_port(other));
  fd = socket(AF_INET6, SOCK_STREAM, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
  char reply[REPLY_BYTES];
  send_all(fd, "GET /none HTTP/1.1\r\nHost: x\r\n\r\n", 31);
  assert_true(read_reply(fd, reply, 5000) >= 0);
  assert_non_null(strstr(reply, " 404 "));
  close(fd);
  clv_http_closep(&other);
}

static void loopback_addresses_are_recognized(void **state) {
  (void)state;
  static const char *const loopback_addresses[] = {"127.0.0.1:1", "127.9.9.9:0", "[::1]:80",
                                                   "localhost:80"};
  static const char *const other_addresses[] = {"0.0.0.0:1",   "[::]:1",           "10.0.0.1:80",
                                                "128.0.0.1:1", "localhost.evil:1", "example:80",
                                                "127.0.0.1"};
  for (size_t i = 0; i < CLV_COUNT(loopback_addresses); i++)
    assert_true(clv_http_is_loopback(loopback_addresses[i]));
  for (size_t i = 0; i < CLV_COUNT(other_addresses); i++)
    assert_false(clv_http_is_loopback(other_addresses[i]));
}

#define WITH_HTTP(test) cmocka_unit_test_setup_teardown(test, open_http, close_http)

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_HTTP(known_pages_are_served),
      WITH_HTTP(head_request_has_no_body),
      WITH_HTTP(large_page_is_served_completely),
      WITH_HTTP(page_without_memory_gives_status_500),
      WITH_HTTP(second_request_on_a_connection_is_ignored),
      WITH_HTTP(invalid_requests_are_refused),
      WITH_HTTP(endless_headers_are_refused_or_disconnected),
      WITH_HTTP(silent_clients_are_disconnected),
      WITH_HTTP(slow_clients_are_disconnected),
      WITH_HTTP(clients_that_do_not_read_are_disconnected),
      WITH_HTTP(idle_connections_do_not_starve_requests),
      WITH_HTTP(unusable_listen_address_is_named),
      cmocka_unit_test(hostname_and_ipv6_addresses_are_served),
      cmocka_unit_test(loopback_addresses_are_recognized),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
