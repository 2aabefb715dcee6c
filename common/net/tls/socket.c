/* SPDX-License-Identifier: Apache-2.0
 *
 * TCP client whose waits all end at a deadline.
 */
#include "common/net/tls/tls_int.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void addrinfo_freep(struct addrinfo **p) {
  if (*p) freeaddrinfo(*p);
}

void clv_tls_hang_up(clv_tls_socket *s) {
  if (s->fd >= 0) close(s->fd);
  s->fd = -1;
}

/* Waits until fd is ready for `events` or broken. False: the deadline has passed. */
static bool wait_until_ready(int fd, short events, uint64_t deadline_ns) {
  for (;;) {
    uint64_t now = clv_now_ns();
    uint64_t left_ms = now < deadline_ns ? (deadline_ns - now + 999999u) / 1000000u : 0;
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, (int)CLV_MIN(left_ms, (uint64_t)600000));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
    if (clv_now_ns() >= deadline_ns) return false;
  }
}

/* ---- connecting to a host -------------------------------------------------------------------- */

static const struct {
  int errno_value;
  clv_code code;
  const char *fix;
} connect_fixes[] = {
    {.errno_value = ECONNREFUSED,
     .code = CLV_UNAVAILABLE,
     .fix =
         "nothing listens there: is cleave-worker running, on this port and on this address (its "
         "default is loopback only)?"},
    {.errno_value = ETIMEDOUT,
     .code = CLV_DEADLINE,
     .fix = "packets get no answer: look at firewalls and security groups between the hosts"},
    {.errno_value = EHOSTUNREACH,
     .code = CLV_UNAVAILABLE,
     .fix = "no route to this host: check the address and the routes"},
    {.errno_value = ENETUNREACH,
     .code = CLV_UNAVAILABLE,
     .fix = "no route to this network: check the address and the routes"},
    {.errno_value = 0, .code = CLV_UNAVAILABLE, .fix = "check the address and the port"},
};

static void set_address(clv_tls_socket *s, const struct addrinfo *a) {
  char host[INET6_ADDRSTRLEN + 16] = "?", port[8] = "?";
  getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  snprintf(s->address, sizeof s->address, a->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
           port);
}

/* Connects to one address. Returns 0 with s->fd set, or an errno. */
static int connect_to_address(const struct addrinfo *a, uint64_t deadline_ns, clv_tls_socket *s) {
  set_address(s, a);
  s->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
  if (s->fd < 0) return errno;
  uint64_t start = clv_now_ns();
  int errno_value = connect(s->fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
  if (errno_value == EINPROGRESS) {
    socklen_t len = sizeof errno_value;
    if (!wait_until_ready(s->fd, POLLOUT, deadline_ns))
      errno_value = ETIMEDOUT;
    else if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &errno_value, &len) != 0)
      errno_value = errno;
  }
  if (errno_value == 0)
    s->connect_ms = (double)(clv_now_ns() - start) / 1e6;
  else
    clv_tls_hang_up(s);
  return errno_value;
}

static clv_code resolve(const char *host, uint16_t port, struct addrinfo **ret_list,
                        clv_tls_socket *s, clv_err *err) {
  char service[8], name[256];
  size_t len = strlen(host);
  bool brackets = len > 2 && host[0] == '[' && host[len - 1] == ']';
  int n = snprintf(name, sizeof name, "%.*s", (int)CLV_MIN(len - (brackets ? 2u : 0u), (size_t)300),
                   host + brackets);
  snprintf(service, sizeof service, "%u", port);
  const struct addrinfo hints = {
      .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  int rc =
      n < 1 || (size_t)n >= sizeof name ? EAI_NONAME : getaddrinfo(name, service, &hints, ret_list);
  if (rc == 0) return CLV_OK;
  s->fix = "check the spelling, and that this host's DNS (or /etc/hosts) knows the name";
  return clv_fail(err, CLV_NOT_FOUND, "the name \"%.200s\" does not resolve: %s", host,
                  gai_strerror(rc));
}

static clv_code fail_connect(int error, clv_tls_socket *s, clv_err *err) {
  size_t i = 0;
  while (connect_fixes[i].errno_value && connect_fixes[i].errno_value != error) i++;
  s->fix = connect_fixes[i].fix;
  return clv_fail(err, connect_fixes[i].code, "no TCP connection to %s: %s", s->address,
                  strerror(error));
}

clv_code clv_tls_dial(const char *host, uint16_t port, uint64_t deadline_ns, clv_tls_socket *s,
                      clv_err *err) {
  *s = (clv_tls_socket){.fd = -1};
  CLV_AUTO(addrinfo_freep) struct addrinfo *list = NULL;
  CLV_TRY(resolve(host, port, &list, s, err));
  unsigned left = 0;
  for (const struct addrinfo *a = list; a; a = a->ai_next) left++;
  int errno_value = EHOSTUNREACH;
  for (const struct addrinfo *a = list; a; a = a->ai_next, left--) {
    uint64_t now = clv_now_ns();
    uint64_t share_ns = now < deadline_ns ? (deadline_ns - now) / left : 0;
    errno_value = connect_to_address(a, now + share_ns, s);
    if (errno_value == 0) return CLV_OK;
  }
  return fail_connect(errno_value, s, err);
}

/* ---- sending and receiving bytes ------------------------------------------------------------- */

bool clv_tls_send(const clv_tls_socket *s, const void *data, size_t len, uint64_t deadline_ns) {
  const char *p = data;
  while (len) {
    ssize_t n = send(s->fd, p, len, MSG_NOSIGNAL);
    if (n > 0) {
      p += n;
      len -= (size_t)n;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_until_ready(s->fd, POLLOUT, deadline_ns)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

int clv_tls_recv(const clv_tls_socket *s, void *data, int len, uint64_t deadline_ns) {
  for (;;) {
    ssize_t n = recv(s->fd, data, (size_t)len, 0);
    if (n >= 0) return (int)n;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return 0;
    if (!wait_until_ready(s->fd, POLLIN, deadline_ns)) return -1;
  }
}
