/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_listen_overlap: comparison of two addresses to listen on.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "common/model/config/schema_int.h"

typedef struct listen_place {
  char host[256]; /* without brackets */
  uint64_t port;
  bool numeric;
  struct in6_addr at; /* of a numeric host; IPv4 as a mapped IPv6 address */
} listen_place;

static bool is_number(listen_place *p) {
  struct in_addr v4;
  if (inet_pton(AF_INET6, p->host, &p->at) == 1) return true;
  if (inet_pton(AF_INET, p->host, &v4) != 1) return false;
  memset(&p->at, 0, sizeof p->at);
  p->at.s6_addr[10] = p->at.s6_addr[11] = 0xff;
  memcpy(p->at.s6_addr + 12, &v4, sizeof v4);
  return true;
}

static bool read_place(const char *text, listen_place *ret) {
  const char *colon = strrchr(text, ':');
  size_t n = colon ? (size_t)(colon - text) : 0;
  bool brackets = n >= 2 && text[0] == '[' && text[n - 1] == ']';
  if (n < 1 || n >= sizeof ret->host || !clv_text_to_u64(colon + 1, &ret->port)) return false;
  n -= 2 * brackets;
  memcpy(ret->host, text + brackets, n);
  ret->host[n] = '\0';
  ret->numeric = is_number(ret);
  return true;
}

static bool is_v4(const listen_place *p) { return p->numeric && IN6_IS_ADDR_V4MAPPED(&p->at); }

/* True for the wildcard address of IPv4 or IPv6, on both of which gRPC listens for either. */
static bool is_everywhere(const listen_place *p) {
  static const uint8_t none[4];
  if (is_v4(p)) return memcmp(p->at.s6_addr + 12, none, sizeof none) == 0;
  return p->numeric && IN6_IS_ADDR_UNSPECIFIED(&p->at);
}

/* True for the addresses that /etc/hosts usually gives to localhost. */
static bool is_localhost(const listen_place *p) {
  static const uint8_t v4[4] = {127, 0, 0, 1};
  if (is_v4(p)) return memcmp(p->at.s6_addr + 12, v4, sizeof v4) == 0;
  return p->numeric ? IN6_IS_ADDR_LOOPBACK(&p->at) : strcasecmp(p->host, "localhost") == 0;
}

static bool is_name_for(const listen_place *name, const listen_place *p) {
  return !name->numeric && is_localhost(name) && is_localhost(p);
}

bool clv_listen_overlap(const char *a_text, const char *b_text) {
  listen_place a, b;
  if (!read_place(a_text, &a) || !read_place(b_text, &b)) return false;
  if (a.port != b.port || !a.port) return false; /* port 0: the system chooses a free one */
  if (is_everywhere(&a) || is_everywhere(&b)) return true;
  if (a.numeric && b.numeric) return memcmp(&a.at, &b.at, sizeof a.at) == 0;
  return is_name_for(&a, &b) || is_name_for(&b, &a) || strcasecmp(a.host, b.host) == 0;
}
