/* SPDX-License-Identifier: Apache-2.0
 *
 * The accept guard of the worker daemon. gRPC 1.51 closes a listening socket for good after one
 * accept4 that fails for want of a file descriptor. So a few hundred plain TCP connections from any
 * host could end the service until a restart (CVE-2023-4785).
 *
 * This file defines and exports accept4 in the executable, so that libgrpc calls this function.
 * When descriptors are short, the function sheds connections: it accepts and closes all waiting
 * connections, and returns EAGAIN to gRPC. It must shed all of them, because the poller is
 * edge-triggered. Descriptors are short in two cases. If the process has no free descriptor, the
 * function frees a spare descriptor for shedding. If less than an eighth of the descriptors are
 * free, the function sheds, so that a flood of connections cannot keep the daemon from opening its
 * own files. The function also reports each accepted descriptor to common/net/tls, which enforces
 * limits.connections before the TLS handshake costs time.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/net/tls/tls.h"
#include "worker/accept_guard_int.h"

/* number of times that descriptors were short, so that the guard shed connections */
static _Atomic uint64_t n_shed_rounds;

uint64_t clv_accept_guard_shed_count(void) { return n_shed_rounds + clv_tls_accepted_shed_count(); }

/* guards spare_fd; held while the guard sheds connections */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* descriptor that the guard closes to be able to accept connections; -1: none */
static int spare_fd = -1;

static int call_system_accept(int listener, struct sockaddr *addr, socklen_t *len, int flags) {
  return (int)syscall(SYS_accept4, listener, addr, len, flags);
}

static int open_spare_descriptor(void) { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

/* Opens the spare descriptor before main runs, while descriptors are free. */
__attribute__((constructor)) static void open_spare_at_start(void) {
  spare_fd = open_spare_descriptor();
}

/* Returns the highest descriptor number that a connection may have. The kernel assigns the lowest
 * free number, so a higher number means that less than an eighth of the descriptors are free. */
static int get_max_connection_fd(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1 << 20;
  rlim_t n = limit.rlim_cur < (1 << 20) ? limit.rlim_cur : 1 << 20;
  return (int)(n - n / 8) - 1;
}

/* Accepts and closes connections until no connection waits in the listening socket. */
static void shed_connections(int listener) {
  pthread_mutex_lock(&lock);
  if (spare_fd >= 0) close(spare_fd);
  spare_fd = -1;
  for (;;) {
    int fd = call_system_accept(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
      close(fd);
    else if (errno != EINTR && errno != ECONNABORTED)
      break;
  }
  spare_fd = open_spare_descriptor();
  pthread_mutex_unlock(&lock);
}

/* Defines the symbol accept4 by an assembler label, because glibc declares accept4 with another
 * parameter type. */
int accept_or_shed(int listener, struct sockaddr *addr, socklen_t *len,
                   int flags) __asm__("accept4") __attribute__((visibility("default"), used));

int accept_or_shed(int listener, struct sockaddr *addr, socklen_t *len, int flags) {
  int fd;
  while ((fd = call_system_accept(listener, addr, len, flags)) >= 0) {
    if (fd > get_max_connection_fd() || clv_tls_accepted_expect_fd(fd)) break;
    close(fd);
  }
  if (fd >= 0 && fd <= get_max_connection_fd()) return fd;
  if (fd < 0 && errno != EMFILE && errno != ENFILE) return -1;
  if (fd >= 0) close(fd);
  shed_connections(listener);
  n_shed_rounds++;
  errno = EAGAIN;
  return -1;
}
