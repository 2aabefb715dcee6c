/* SPDX-License-Identifier: Apache-2.0
 *
 * clv_listen_addresses_overlap: comparison of two addresses to listen on.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

#include "common/model/config/schema_int.h"

typedef struct listen_address {
  char host[256]; /* host name or address, without brackets */
  uint64_t port;
  bool is_numeric_host;
  /* address of a numeric host; an IPv4 address is stored as an IPv4-mapped IPv6 address */
  struct in6_addr numeric_address;
} listen_address;

static bool parse_numeric_host(listen_address *p) {
  struct in_addr v4;
  if (inet_pton(AF_INET6, p->host, &p->numeric_address) == 1) return true;
  if (inet_pton(AF_INET, p->host, &v4) != 1) return false;
  memset(&p->numeric_address, 0, sizeof p->numeric_address);
  p->numeric_address.s6_addr[10] = p->numeric_address.s6_addr[11] = 0xff;
  memcpy(p->numeric_address.s6_addr + 12, &v4, sizeof v4);
  return true;
}

static bool parse_listen_address(const char *text, listen_address *ret) {
  const char *colon = strrchr(text, ':');
  size_t n = colon ? (size_t)(colon - text) : 0;
  bool has_brackets = n >= 2 && text[0] == '[' && text[n - 1] == ']';
  if (n < 1 || n >= sizeof ret->host || !clv_text_to_u64(colon + 1, &ret->port)) return false;
  n -= 2 * has_brackets;
  memcpy(ret->host, text + has_brackets, n);
  ret->host[n] = '\0';
  ret->is_numeric_host = parse_numeric_host(ret);
  return true;
}

static bool is_ipv4_mapped(const listen_address *p) {
  return p->is_numeric_host && IN6_IS_ADDR_V4MAPPED(&p->numeric_address);
}

/* True for the wildcard addresses 0.0.0.0 and [::]. gRPC listens on all IPv4 and IPv6 addresses for
 * each of them. */
static bool is_wildcard_address(const listen_address *p) {
  static const uint8_t zeros[4];
  if (is_ipv4_mapped(p)) return memcmp(p->numeric_address.s6_addr + 12, zeros, sizeof zeros) == 0;
  return p->is_numeric_host && IN6_IS_ADDR_UNSPECIFIED(&p->numeric_address);
}

/* True for localhost, and for the addresses that localhost usually has, 127.0.0.1 and ::1. */
static bool is_localhost(const listen_address *p) {
  static const uint8_t v4[4] = {127, 0, 0, 1};
  if (is_ipv4_mapped(p)) return memcmp(p->numeric_address.s6_addr + 12, v4, sizeof v4) == 0;
  return p->is_numeric_host ? IN6_IS_ADDR_LOOPBACK(&p->numeric_address)
                            : strcasecmp(p->host, "localhost") == 0;
}

static bool is_localhost_name_for(const listen_address *name, const listen_address *p) {
  return !name->is_numeric_host && is_localhost(name) && is_localhost(p);
}

bool clv_listen_addresses_overlap(const char *a_text, const char *b_text) {
  listen_address a, b;
  if (!parse_listen_address(a_text, &a) || !parse_listen_address(b_text, &b)) return false;
  if (a.port != b.port || !a.port) return false; /* port 0: the system chooses a free one */
  if (is_wildcard_address(&a) || is_wildcard_address(&b)) return true;
  if (a.is_numeric_host && b.is_numeric_host)
    return memcmp(&a.numeric_address, &b.numeric_address, sizeof a.numeric_address) == 0;
  return is_localhost_name_for(&a, &b) || is_localhost_name_for(&b, &a) ||
         strcasecmp(a.host, b.host) == 0;
}
