/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of the identities at a server: how many calls each has, and how fast it wastes calls.
 * server_call.c calls rpc_peers_begin_call and rpc_peers_end_call for each call.
 *
 * A client that opens and resets calls in a loop costs a server far more than itself
 * (CVE-2023-44487), and gRPC 1.51 has no protection. A call is wasted when its peer cancels it or
 * when it exceeds max_calls_per_peer. An identity that wastes more than max_cancels_per_second is
 * refused for cut_off_ms. Its connection is closed, which drops what gRPC and the kernel have still
 * queued.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/net/rpc/rpc_int.h"

enum { MAX_ENTRIES = 4096, MAX_SCANNED_FDS = 8192 };

struct rpc_peer_entry {
  rpc_peer_entry *next;
  unsigned n_active_calls;         /* calls in progress */
  unsigned n_requests_in_handlers; /* requests that handler threads run or take next */
  /* requests queued in first_waiting..last_waiting, because handler threads already run as many
   * requests of this identity as it may have */
  unsigned n_waiting_requests;
  clv_rpc_job *first_waiting, *last_waiting;
  unsigned n_wasted_calls; /* calls wasted since window_start_ns */
  uint64_t window_start_ns;
  uint64_t refused_until_ns;
  char uri[];
};

void rpc_peers_init(rpc_peers *peers, const clv_rpc_server_options *options) {
  pthread_mutex_init(&peers->lock, NULL);
  peers->max_calls_per_peer = options->max_calls_per_peer ? options->max_calls_per_peer : 64;
  peers->max_cancels_per_second =
      options->max_cancels_per_second ? options->max_cancels_per_second : 100;
  peers->cut_off_ms = options->cut_off_ms ? options->cut_off_ms : 10000;
  peers->max_in_handlers_per_peer = CLV_MAX(1u, options->n_handler_threads / 2);
  peers->max_waiting_per_peer =
      options->max_waiting_unary_calls ? options->max_waiting_unary_calls : 64;
}

void rpc_peers_clear(rpc_peers *peers) {
  for (size_t i = 0; i < CLV_COUNT(peers->buckets); i++)
    for (rpc_peer_entry *entry; (entry = peers->buckets[i]) != NULL;) {
      peers->buckets[i] = entry->next;
      free(entry);
    }
  pthread_mutex_destroy(&peers->lock);
}

static rpc_peer_entry **bucket_of(rpc_peers *peers, const char *uri) {
  return &peers->buckets[clv_crc32c(0, uri, strlen(uri)) % CLV_COUNT(peers->buckets)];
}

/* True if an entry has no calls, is not refused and has no wasted calls in the current second.
 * find_entry frees such entries. */
static bool is_idle_entry(const rpc_peer_entry *entry, uint64_t now) {
  return entry->n_active_calls == 0 && entry->refused_until_ns < now &&
         entry->window_start_ns + 1000000000u < now;
}

static rpc_peer_entry *find_entry(rpc_peers *peers, const char *uri, uint64_t now) {
  rpc_peer_entry *found = NULL;
  for (rpc_peer_entry **link = bucket_of(peers, uri); *link;) {
    rpc_peer_entry *entry = *link;
    if (strcmp(entry->uri, uri) == 0) {
      found = entry;
    } else if (is_idle_entry(entry, now)) {
      *link = entry->next;
      peers->n_entries--;
      free(entry);
      continue;
    }
    link = &entry->next;
  }
  return found;
}

static clv_code add_entry(rpc_peers *peers, const char *uri, rpc_peer_entry **ret_entry,
                          clv_err *err) {
  if (peers->n_entries >= MAX_ENTRIES)
    return clv_fail(
        err, CLV_EXHAUSTED,
        "the server has records of %d identities, the most it can hold: try again later",
        MAX_ENTRIES);
  rpc_peer_entry *entry = NULL;
  CLV_TRY(clv_alloc(1, sizeof(*entry) + strlen(uri) + 1, &entry, err));
  strcpy(entry->uri, uri);
  rpc_peer_entry **link = bucket_of(peers, uri);
  entry->next = *link;
  *link = entry;
  peers->n_entries++;
  *ret_entry = entry;
  return CLV_OK;
}

/* Counts one more wasted call in the current second, and returns how to refuse it. */
static rpc_refusal count_wasted_call(rpc_peers *peers, rpc_peer_entry *entry, uint64_t now) {
  if (now - entry->window_start_ns >= 1000000000u) {
    entry->window_start_ns = now;
    entry->n_wasted_calls = 0;
  }
  entry->n_wasted_calls++;
  if (entry->n_wasted_calls <= peers->max_cancels_per_second) return RPC_REFUSAL_WITH_STATUS;
  if (entry->refused_until_ns < now) peers->n_cut_peers++;
  entry->refused_until_ns = now + 1000000ull * peers->cut_off_ms;
  /* Close a connection at the first wasted call in every max_cancels_per_second, because the
   * identity may have several connections. */
  return entry->n_wasted_calls % peers->max_cancels_per_second == 1 ? RPC_REFUSAL_WITH_DISCONNECT
                                                                    : RPC_REFUSAL_WITHOUT_ANSWER;
}

static clv_code begin_call_locked(rpc_peers *peers, const char *uri, rpc_peer_entry **ret_entry,
                                  rpc_refusal *ret_refusal, clv_err *err) {
  uint64_t now = clv_now_ns();
  rpc_peer_entry *entry = find_entry(peers, uri, now);
  if (!entry) CLV_TRY(add_entry(peers, uri, &entry, err));
  bool is_refused = entry->refused_until_ns > now;
  if (is_refused || entry->n_active_calls >= peers->max_calls_per_peer) {
    *ret_refusal = count_wasted_call(peers, entry, now);
    return is_refused
               ? clv_fail(err, CLV_EXHAUSTED, "too many cancelled calls: refused for %u ms",
                          peers->cut_off_ms)
               : clv_fail(
                     err, CLV_EXHAUSTED,
                     "more than %u call%s at once: raise limits.concurrent_calls in worker.yaml "
                     "(a session makes about six)",
                     peers->max_calls_per_peer, CLV_S(peers->max_calls_per_peer));
  }
  entry->n_active_calls++;
  *ret_entry = entry;
  return CLV_OK;
}

clv_code rpc_peers_begin_call(rpc_peers *peers, const char *uri, rpc_peer_entry **ret_entry,
                              rpc_refusal *ret_refusal, clv_err *err) {
  *ret_refusal = RPC_REFUSAL_WITH_STATUS;
  pthread_mutex_lock(&peers->lock);
  clv_code code = begin_call_locked(peers, uri, ret_entry, ret_refusal, err);
  pthread_mutex_unlock(&peers->lock);
  return code;
}

bool rpc_peers_end_call(rpc_peers *peers, rpc_peer_entry *entry, bool cancelled_by_peer) {
  pthread_mutex_lock(&peers->lock);
  entry->n_active_calls--;
  bool must_disconnect = cancelled_by_peer && count_wasted_call(peers, entry, clv_now_ns()) ==
                                                  RPC_REFUSAL_WITH_DISCONNECT;
  pthread_mutex_unlock(&peers->lock);
  return must_disconnect;
}

/* ---- handler threads ------------------------------------------------------------------------- */

/* Decides when a request is handled. One identity uses at most half of the handler threads, so that
 * others need not wait for all of its requests. */
rpc_admission rpc_peers_begin_handling(rpc_peers *peers, rpc_peer_entry *entry, clv_rpc_job *job) {
  rpc_admission admission = RPC_REQUEST_ADMITTED;
  pthread_mutex_lock(&peers->lock);
  if (entry->n_requests_in_handlers < peers->max_in_handlers_per_peer) {
    entry->n_requests_in_handlers++;
  } else if (entry->n_waiting_requests < peers->max_waiting_per_peer) {
    admission = RPC_REQUEST_QUEUED;
    job->next = NULL;
    *(entry->first_waiting ? &entry->last_waiting->next : &entry->first_waiting) = job;
    entry->last_waiting = job;
    entry->n_waiting_requests++;
  } else {
    admission = RPC_REQUEST_REFUSED;
  }
  pthread_mutex_unlock(&peers->lock);
  return admission;
}

clv_rpc_job *rpc_peers_end_handling(rpc_peers *peers, rpc_peer_entry *entry) {
  pthread_mutex_lock(&peers->lock);
  clv_rpc_job *job = entry->first_waiting;
  if (job) {
    entry->first_waiting = job->next;
    entry->n_waiting_requests--;
  } else {
    entry->n_requests_in_handlers--;
  }
  pthread_mutex_unlock(&peers->lock);
  return job;
}

/* ---- closing a connection -------------------------------------------------------------------- */

bool rpc_read_peer_address(int fd, char *text, size_t len) {
  struct sockaddr_storage storage = {0};
  socklen_t size = sizeof(storage);
  char host[INET6_ADDRSTRLEN];
  if (getpeername(fd, (struct sockaddr *)&storage, &size) != 0) return false;
  if (storage.ss_family == AF_INET) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)&storage;
    if (!inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host))) return false;
    snprintf(text, len, "ipv4:%s:%u", host, ntohs(in->sin_port));
    return true;
  }
  if (storage.ss_family != AF_INET6) return false;
  const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&storage;
  if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
    if (!inet_ntop(AF_INET, &in6->sin6_addr.s6_addr[12], host, sizeof(host))) return false;
    snprintf(text, len, "ipv4:%s:%u", host, ntohs(in6->sin6_port));
    return true;
  }
  if (!inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host))) return false;
  snprintf(text, len, "ipv6:%%5B%s%%5D:%u", host, ntohs(in6->sin6_port));
  return true;
}

/* Shuts down both directions and discards received bytes. gRPC would first read and serve them, and
 * a receive buffer holds tens of thousands of resets. */
static void cut_socket(int fd) {
  static const size_t MAX_DISCARDED_BYTES = 64u << 20;
  shutdown(fd, SHUT_RDWR);
  for (size_t n_discarded = 0; n_discarded < MAX_DISCARDED_BYTES;) {
    ssize_t n = recv(fd, NULL, 1 << 20, MSG_TRUNC | MSG_DONTWAIT);
    if (n <= 0) break;
    n_discarded += (size_t)n;
  }
}

static void cut_if_address(int fd, void *address) {
  char text[RPC_ADDRESS_BYTES];
  if (rpc_read_peer_address(fd, text, sizeof(text)) && strcmp(text, address) == 0) cut_socket(fd);
}

/* Calls visit(fd, user) for each descriptor of the process. Needed because gRPC offers no way to
 * list or close a single connection of a server, so sockets are found among the descriptors. */
static void for_each_fd(void (*visit)(int fd, void *user), void *user) {
  DIR *dir = opendir("/proc/self/fd");
  if (!dir) { /* /proc is not readable: try every descriptor number */
    for (int fd = 0; fd < MAX_SCANNED_FDS; fd++) visit(fd, user);
    return;
  }
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
    if (entry->d_name[0] != '.') visit((int)strtol(entry->d_name, NULL, 10), user);
  closedir(dir);
}

/* Never cuts a wrong connection: if gRPC closes the descriptor meanwhile and its number is reused,
 * the peer address of the new socket differs. */
void rpc_cut_connection(const char *address) {
  for_each_fd(cut_if_address, (void *)(uintptr_t)address);
}

typedef struct fd_list {
  int *fds; /* [max_fds] descriptors found so far */
  size_t n, max_fds;
} fd_list;

static void add_to_list(int fd, void *user) {
  fd_list *list = user;
  if (list->n < list->max_fds) list->fds[list->n++] = fd;
}

size_t rpc_list_fds(int *ret_fds, size_t max) {
  fd_list list = {.fds = ret_fds, .max_fds = max};
  for_each_fd(add_to_list, &list);
  return list.n;
}

typedef struct port_count {
  unsigned port, n;
} port_count;

/* Counts a connected socket whose local port is count->port. A listener has no peer, and a dialled
 * connection has another local port. */
static void count_if_port(int fd, void *user) {
  port_count *count = user;
  char text[RPC_ADDRESS_BYTES];
  struct sockaddr_storage local_address = {0};
  socklen_t size = sizeof(local_address);
  if (getsockname(fd, (struct sockaddr *)&local_address, &size) != 0) return;
  unsigned port =
      local_address.ss_family == AF_INET    ? ((struct sockaddr_in *)&local_address)->sin_port
      : local_address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&local_address)->sin6_port
                                            : 0;
  count->n +=
      port && ntohs((uint16_t)port) == count->port && rpc_read_peer_address(fd, text, sizeof(text));
}

unsigned rpc_count_connections(unsigned port) {
  port_count count = {.port = port};
  for_each_fd(count_if_port, &count);
  return count.n;
}
