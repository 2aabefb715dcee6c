/* SPDX-License-Identifier: Apache-2.0
 *
 * The accept guard of the worker daemon. gRPC 1.51 closes a listener for good after one accept
 * that fails for want of a descriptor, so a few hundred plain TCP connections from any host would
 * end the service until a restart (CVE-2023-4785).
 *
 * This file defines accept4 in the executable, exported, so that libgrpc calls it. When
 * descriptors are short it sheds: it accepts and closes every waiting connection until none is
 * left, and returns EAGAIN to gRPC. (The poller is edge-triggered, so one connection per wake-up
 * would not do.) Short means that the table is full, in which case a spare descriptor is used for
 * shedding, or that less than an eighth of it is free, so that a flood cannot keep the daemon from
 * opening its own files. The guard also reports each accepted descriptor to common/net/tls, which
 * enforces limits.connections before TLS costs anything.
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

static _Atomic uint64_t n_sheds;

uint64_t clv_accept_guard_shed_count(void) { return n_sheds + clv_tls_accepted_shed_count(); }

/* guards `spare_fd`; held while connections are shed */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int spare_fd = -1;

static int system_accept(int listener, struct sockaddr *addr, socklen_t *len, int flags) {
  return (int)syscall(SYS_accept4, listener, addr, len, flags);
}

static int open_spare_descriptor(void) { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

/* Opens the spare descriptor before main, while descriptors are available. */
__attribute__((constructor)) static void open_spare_at_start(void) {
  spare_fd = open_spare_descriptor();
}

/* Returns the highest descriptor number that a connection may have. The kernel assigns the lowest
 * free number, so a higher one means that many descriptors are open. */
static int highest_accepted_fd(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1 << 20;
  rlim_t n = limit.rlim_cur < (1 << 20) ? limit.rlim_cur : 1 << 20;
  return (int)(n - n / 8) - 1;
}

/* Accepts and closes connections until no connection waits. */
static void shed_connections(int listener) {
  pthread_mutex_lock(&lock);
  if (spare_fd >= 0) close(spare_fd);
  spare_fd = -1;
  for (;;) {
    int fd = system_accept(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
      close(fd);
    else if (errno != EINTR && errno != ECONNABORTED)
      break;
  }
  spare_fd = open_spare_descriptor();
  pthread_mutex_unlock(&lock);
}

/* Defines accept4. An assembler label names the function, because glibc declares accept4 with a
 * parameter type of its own. */
int guarded_accept(int listener, struct sockaddr *addr, socklen_t *len,
                   int flags) __asm__("accept4") __attribute__((visibility("default"), used));

int guarded_accept(int listener, struct sockaddr *addr, socklen_t *len, int flags) {
  int fd;
  while ((fd = system_accept(listener, addr, len, flags)) >= 0) {
    if (fd > highest_accepted_fd() || clv_tls_accepted_expect_fd(fd)) break;
    close(fd);
  }
  if (fd >= 0 && fd <= highest_accepted_fd()) return fd;
  if (fd < 0 && errno != EMFILE && errno != ENFILE) return -1;
  if (fd >= 0) close(fd);
  shed_connections(listener);
  n_sheds++;
  errno = EAGAIN;
  return -1;
}
