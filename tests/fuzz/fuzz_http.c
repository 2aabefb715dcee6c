/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes requests to the page port, as bytes over a connection. If the input begins with a NUL
 * byte, the rest is not a request but an address to listen on. Whatever the request, the server
 * must send a short HTTP answer or none.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/http/http.h"
#include "tests/fuzz/never.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WAIT_LIMIT_MS = 50, CONNECT_MS = 5000 };

static unsigned serve_hello(void *user, clv_bytes *out) {
  (void)user;
  clv_bytes_puts(out, "hello\n");
  return 200;
}

static unsigned serve_page_without_memory(void *user, clv_bytes *out) {
  (void)user;
  out->failed = true;
  return 200;
}

static unsigned serve_unavailable(void *user, clv_bytes *out) {
  (void)user, (void)out;
  return 503;
}

static const clv_http_page pages[] = {{"/metrics", "text/plain", serve_hello},
                                      {"/broken", "text/plain", serve_page_without_memory},
                                      {"/e", "text/plain", serve_unavailable}};
static clv_http *http;

static void close_http(void) { clv_http_closep(&http); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  clv_http_options o = {.listen = "127.0.0.1:0", .pages = pages, .n_pages = CLV_COUNT(pages)};
  NEVER(clv_http_open(&o, &http, NULL) != CLV_OK);
  return atexit(close_http);
}

/* Connects. The fuzzer's alarm may interrupt connect, which then continues in the background, so
 * this waits for it. */
static bool connect_to_server(int fd, const struct sockaddr_in *to) {
  if (connect(fd, (const struct sockaddr *)to, sizeof *to) == 0) return true;
  if (errno != EINTR) return false;
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  int error = 0;
  while (poll(&p, 1, CONNECT_MS) < 0 && errno == EINTR) {
  }
  socklen_t len = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0;
}

static int dial_server(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)clv_http_port(http))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  /* a linger time of 0, so that a closed connection does not keep its port busy */
  struct linger no_linger = {1, 0};
  NEVER(fd < 0);
  NEVER(setsockopt(fd, SOL_SOCKET, SO_LINGER, &no_linger, sizeof no_linger) != 0);
  NEVER(!connect_to_server(fd, &to));
  return fd;
}

/* True if an answer arrives at once. If none does, the server waits for the rest of the request. */
static bool has_answer(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, WAIT_LIMIT_MS) > 0;
}

/* Sends a request. An answer that is longer than this buffer would be no page of the project. */
static void send_request(const char *request, size_t len) {
  char reply[4096];
  size_t got = 0;
  int fd = dial_server();
  (void)!send(fd, request, len, MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  for (ssize_t n; got < sizeof reply && has_answer(fd) &&
                  (n = recv(fd, reply + got, sizeof reply - got, 0)) > 0;)
    got += (size_t)n;
  close(fd);
  NEVER(got == sizeof reply);
  NEVER(got >= 5 && memcmp(reply, "HTTP/", 5) != 0);
}

/* Asserts that a numeric local address that parses can be bound. Host names are left out, because
 * no resolver is available. */
static void check_listen_address(const char *text, size_t len) {
  char address[300];
  clv_http *second_server;
  if (len >= sizeof address) return;
  memcpy(address, text, len);
  address[len] = '\0';
  bool is_loopback = clv_http_is_loopback(address);
  clv_http_options o = {.listen = address, .pages = pages, .n_pages = CLV_COUNT(pages)};
  bool is_numeric = strspn(address, "0123456789.:[]") == strlen(address);
  if (!is_loopback && !is_numeric) return;
  if (clv_http_open(&o, &second_server, NULL) == CLV_OK) clv_http_closep(&second_server);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *text = (const char *)data;
  if (size && !text[0])
    check_listen_address(text + 1, strnlen(text + 1, size - 1));
  else
    send_request(text, size);
  return 0;
}
