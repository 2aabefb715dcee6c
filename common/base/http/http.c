/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon of libmicrohttpd without its threads: a thread of this folder calls MHD_run_wait, so
 * that it can also cut connections that take too long. The library's time-out restarts with every
 * byte, so a client that sends a byte every few seconds would never reach it.
 *
 * The library is loaded when the first port opens. It brings GnuTLS and eight more libraries, and a
 * program without a port would spend a fifth of its start-up time on loading them.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/http/http.h"

enum {
  MAX_CONNECTIONS = 64,
  DEFAULT_REQUEST_MS = 5000,
  CONNECTION_MEMORY_BYTES = 8192, /* bytes of a connection for its request line and headers */
  /* longest time between two checks of the connections' time limits, and of is_stopping */
  POLL_MS = 100,
  LOAD_DIVISOR = 10, /* divisor of the time limit when half of the connections are in use */
};

typedef struct connection {
  int fd; /* socket of the connection; -1: the entry is free */
  uint64_t accepted_ns;
} connection;

struct clv_http {
  clv_http_options options;
  struct MHD_Daemon *daemon;
  unsigned port;
  pthread_t thread;
  bool is_running;
  _Atomic bool is_stopping;
  connection open_connections[MAX_CONNECTIONS]; /* used only by the port's thread */
};

/* ---- loading libmicrohttpd ------------------------------------------------------------------- */

#define LIBRARY "libmicrohttpd.so.12"
#define FUNCTIONS(F)             \
  F(start_daemon)                \
  F(stop_daemon)                 \
  F(run_wait)                    \
  F(get_connection_info)         \
  F(create_response_from_buffer) \
  F(add_response_header)         \
  F(queue_response)              \
  F(destroy_response)

#define FIELD(name) __typeof__(MHD_##name) *name;
static struct {
  pthread_once_t load_once;
  bool is_loaded;
  FUNCTIONS(FIELD)
} mhd = {.load_once = PTHREAD_ONCE_INIT};

#define FIND(name) ok &= (*(void **)&mhd.name = dlsym(library, "MHD_" #name)) != NULL;
static void find_functions(void) {
  void *library = dlopen(LIBRARY, RTLD_LAZY | RTLD_LOCAL);
  bool ok = library != NULL;
  if (!ok) return;
  FUNCTIONS(FIND)
  mhd.is_loaded = ok;
}

/* Loads the library once. A failure is final: later calls do not try again. */
static clv_code load_library(clv_err *err) {
  pthread_once(&mhd.load_once, find_functions);
  if (mhd.is_loaded) return CLV_OK;
  return clv_fail(err, CLV_UNAVAILABLE, LIBRARY " does not load: install libmicrohttpd");
}

/* ---- answering a request --------------------------------------------------------------------- */

/* Makes a response that takes over the body's memory. */
static struct MHD_Response *make_response(clv_bytes *body) {
  if (!body->len)
    return mhd.create_response_from_buffer(0, (char *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
  struct MHD_Response *r =
      mhd.create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
  if (r) *body = (clv_bytes){0};
  return r;
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type,
                              clv_bytes *body) {
  struct MHD_Response *r = make_response(body);
  if (!r) return MHD_NO;
  mhd.add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  mhd.add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
  mhd.add_response_header(r, "X-Content-Type-Options", "nosniff");
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
    mhd.add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  enum MHD_Result sent = mhd.queue_response(c, status, r);
  mhd.destroy_response(r);
  return sent;
}

static enum MHD_Result answer_error(struct MHD_Connection *c, unsigned status, const char *text) {
  CLV_AUTO(clv_bytes_done) clv_bytes body = {0};
  clv_bytes_puts(&body, text);
  return answer(c, status, CLV_HTTP_TEXT, &body);
}

static enum MHD_Result answer_page(const clv_http *h, const clv_http_page *page,
                                   struct MHD_Connection *c) {
  CLV_AUTO(clv_bytes_done) clv_bytes body = {0};
  unsigned status = page->write(h->options.user, &body);
  if (body.failed) return answer_error(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
  return answer(c, status, page->type, &body);
}

/* Answers a request as soon as its headers are received, because no page reads a body. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_len, void **state) {
  const clv_http *h = user;
  (void)version, (void)upload, (void)upload_len, (void)state;
  if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
    return answer_error(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are supported\n");
  for (size_t i = 0; i < h->options.n_pages; i++)
    if (strcmp(h->options.pages[i].path, path) == 0) return answer_page(h, &h->options.pages[i], c);
  return answer_error(c, MHD_HTTP_NOT_FOUND, "no such page\n");
}

/* ---- connections and their time limits ------------------------------------------------------- */

static void add_connection(clv_http *h, struct MHD_Connection *c, void **ret_connection) {
  const union MHD_ConnectionInfo *info =
      mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
  for (size_t i = 0; info && i < CLV_COUNT(h->open_connections); i++) {
    connection *g = &h->open_connections[i];
    if (g->fd >= 0) continue;
    *g = (connection){.fd = info->connect_fd, .accepted_ns = clv_now_ns()};
    *ret_connection = g;
    return;
  }
}

static void on_connection(void *user, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode what) {
  if (what == MHD_CONNECTION_NOTIFY_STARTED) {
    add_connection(user, c, context);
    return;
  }
  connection *g = *context;
  if (g) g->fd = -1;
}

/* Shuts connections over their time limit; the library then closes them. Under load the limit is a
 * tenth, so that a scraper, which needs milliseconds, is served. */
static void cut_late_connections(clv_http *h) {
  unsigned n_open = 0;
  for (size_t i = 0; i < CLV_COUNT(h->open_connections); i++)
    n_open += h->open_connections[i].fd >= 0;
  unsigned ms = h->options.request_ms / (2 * n_open > h->options.connections ? LOAD_DIVISOR : 1);
  uint64_t now = clv_now_ns();
  for (size_t i = 0; i < CLV_COUNT(h->open_connections); i++) {
    const connection *g = &h->open_connections[i];
    if (g->fd >= 0 && now - g->accepted_ns > UINT64_C(1000000) * ms) shutdown(g->fd, SHUT_RDWR);
  }
}

static void *run_port(void *arg) {
  clv_http *h = arg;
  while (!atomic_load_explicit(&h->is_stopping, memory_order_relaxed)) {
    if (mhd.run_wait(h->daemon, POLL_MS) != MHD_YES) usleep(1000 * POLL_MS);
    cut_late_connections(h);
  }
  return NULL;
}

/* ---- addresses to listen on ------------------------------------------------------------------ */

/* Splits "[::1]:9101" into "::1" and "9101". */
static clv_code split_address(const char *listen, char *host, size_t len, const char **ret_port,
                              clv_err *err) {
  const char *colon = strrchr(listen, ':');
  size_t n = colon ? (size_t)(colon - listen) : 0;
  bool has_brackets = n >= 2 && listen[0] == '[' && listen[n - 1] == ']';
  if (!colon || n < 1 || n >= len)
    return clv_fail(err, CLV_INVALID, "'%s' is not HOST:PORT", listen);
  memcpy(host, listen + has_brackets, n - 2 * has_brackets);
  host[n - 2 * has_brackets] = '\0';
  *ret_port = colon + 1;
  return CLV_OK;
}

bool clv_http_is_loopback(const char *listen) {
  char host[256];
  const char *port;
  struct in_addr v4;
  struct in6_addr v6;
  if (split_address(listen, host, sizeof host, &port, NULL) != CLV_OK) return false;
  if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
  if (inet_pton(AF_INET6, host, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return strcmp(host, "localhost") == 0;
}

static void close_fdp(int *fd) {
  if (*fd >= 0) close(*fd);
}

static clv_code bind_port(const char *listen_address, int *ret_fd, unsigned *ret_port,
                          clv_err *err) {
  char host[256];
  const char *port;
  struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found;
  CLV_TRY(split_address(listen_address, host, sizeof host, &port, err));
  int lookup_error = getaddrinfo(host, port, &hints, &found);
  if (lookup_error != 0)
    return clv_fail(err, CLV_UNAVAILABLE, "cannot listen on '%s': %s", listen_address,
                    gai_strerror(lookup_error));
  struct sockaddr_storage at = {0};
  socklen_t len = found->ai_addrlen;
  memcpy(&at, found->ai_addr, len);
  freeaddrinfo(found);
  CLV_AUTO(close_fdp) int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int on = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) != 0 || listen(fd, MAX_CONNECTIONS) != 0 ||
      getsockname(fd, (struct sockaddr *)&at, &len) != 0)
    return clv_fail(err, CLV_UNAVAILABLE, "cannot listen on '%s': %s", listen_address,
                    clv_bind_error_text(errno));
  *ret_port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                             : ((struct sockaddr_in *)&at)->sin_port);
  *ret_fd = fd;
  fd = -1;
  return CLV_OK;
}

/* ---- opening and closing a port -------------------------------------------------------------- */

static clv_code start_daemon(clv_http *h, clv_err *err) {
  int fd;
  CLV_TRY(load_library(err));
  CLV_TRY(bind_port(h->options.listen, &fd, &h->port, err));
  h->daemon = mhd.start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, h,
                               MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                               h->options.connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                               (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
                               h->options.request_ms / 1000 + 1, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                               MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_END);
  if (!h->daemon) {
    close(fd);
    return clv_fail(err, CLV_INTERNAL, "the page server for '%s' did not start", h->options.listen);
  }
  h->is_running = pthread_create(&h->thread, NULL, run_port, h) == 0;
  return h->is_running ? CLV_OK
                       : clv_fail(err, CLV_EXHAUSTED, "no thread for '%s'", h->options.listen);
}

clv_code clv_http_open(const clv_http_options *options, clv_http **ret, clv_err *err) {
  clv_http *h;
  CLV_TRY(clv_alloc(1, sizeof *h, &h, err));
  h->options = *options;
  if (!h->options.connections) h->options.connections = MAX_CONNECTIONS;
  h->options.connections = CLV_MIN(h->options.connections, (unsigned)MAX_CONNECTIONS);
  if (!h->options.request_ms) h->options.request_ms = DEFAULT_REQUEST_MS;
  for (size_t i = 0; i < CLV_COUNT(h->open_connections); i++) h->open_connections[i].fd = -1;
  clv_code code = start_daemon(h, err);
  if (code != CLV_OK) {
    clv_http_close(h);
    return code;
  }
  *ret = h;
  return CLV_OK;
}

unsigned clv_http_health(void *user, clv_bytes *out) {
  (void)user;
  clv_bytes_puts(out, "ok\n");
  return MHD_HTTP_OK;
}

unsigned clv_http_port(const clv_http *h) { return h->port; }

void clv_http_close(clv_http *h) {
  if (!h) return;
  atomic_store(&h->is_stopping, true);
  if (h->is_running) pthread_join(h->thread, NULL);
  if (h->daemon) mhd.stop_daemon(h->daemon); /* closes the listening socket too */
  free(h);
}

void clv_http_closep(clv_http **http) {
  clv_http_close(*http);
  *http = NULL;
}
