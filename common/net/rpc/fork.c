/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks of a program that has connections. A child shares the sockets of its parent, so a server
 * would not notice the parent's death before that of the child. The child therefore closes them: in
 * its descriptors /dev/null takes the place of each dialled connection, so that nothing else gets
 * the number, which gRPC's records still name. The parent's connections are not affected.
 *
 * rpc_fork_record_dialled_peer records the addresses that this process has dialled. Before a fork
 * the parent lists the descriptors that are connected to one of them, because the child may call
 * only functions that are safe in a signal handler.
 */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/net/rpc/rpc_int.h"

enum { MAX_PEERS = 256, MAX_FDS = 8192 };

/* State of the process, because handlers of pthread_atfork have no argument. */
static struct {
  pthread_once_t install_once;
  /* guards the fields below; the parent holds it from before a fork until after it */
  pthread_mutex_t lock;
  /* [n_dialled_peers] addresses that this process has dialled */
  char dialled_peers[MAX_PEERS][RPC_ADDRESS_BYTES];
  unsigned n_dialled_peers;
  int fds_to_close[MAX_FDS]; /* [n_fds_to_close] descriptors that the next child closes */
  unsigned n_fds_to_close;
} forks = {.install_once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_known_peer(const char *address) {
  for (unsigned i = 0; i < forks.n_dialled_peers; i++)
    if (strcmp(forks.dialled_peers[i], address) == 0) return true;
  return false;
}

static bool is_dialled(int fd) {
  char address[RPC_ADDRESS_BYTES];
  return rpc_read_peer_address(fd, address, sizeof(address)) && is_known_peer(address);
}

static void before_fork(void) {
  pthread_mutex_lock(&forks.lock);
  size_t n = forks.n_dialled_peers ? rpc_list_fds(forks.fds_to_close, MAX_FDS) : 0;
  forks.n_fds_to_close = 0;
  for (size_t i = 0; i < n; i++)
    if (is_dialled(forks.fds_to_close[i]))
      forks.fds_to_close[forks.n_fds_to_close++] = forks.fds_to_close[i];
}

static void after_fork_in_parent(void) { pthread_mutex_unlock(&forks.lock); }

/* Reads the peer address of each descriptor again, because a thread may have closed the
 * descriptor between the list and the fork. */
static void after_fork_in_child(void) {
  int null_fd = forks.n_fds_to_close ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
  for (unsigned i = 0; i < forks.n_fds_to_close && null_fd >= 0; i++)
    if (is_dialled(forks.fds_to_close[i])) (void)dup3(null_fd, forks.fds_to_close[i], O_CLOEXEC);
  if (null_fd >= 0) close(null_fd);
  forks.n_dialled_peers = 0;
  pthread_mutex_unlock(&forks.lock);
}

static void install_handlers(void) {
  (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void rpc_fork_record_dialled_peer(const char *address) {
  if (!address || strlen(address) >= RPC_ADDRESS_BYTES) return;
  (void)pthread_once(&forks.install_once, install_handlers);
  pthread_mutex_lock(&forks.lock);
  if (forks.n_dialled_peers < MAX_PEERS && !is_known_peer(address))
    strcpy(forks.dialled_peers[forks.n_dialled_peers++], address);
  pthread_mutex_unlock(&forks.lock);
}
