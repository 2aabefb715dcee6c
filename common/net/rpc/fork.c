/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks of a program that has connections. A child shares the sockets of its parent, so a server
 * would not notice the parent's death before that of the child. The child therefore closes them: in
 * its descriptors /dev/null takes the place of each dialled connection, so that nothing else gets
 * the number, which gRPC's records still name. The parent's connections are not affected.
 *
 * rpc_fork_note_peer records the addresses that this process has dialled. Before a fork the parent
 * lists the descriptors that are connected to one of them, because the child may call only
 * functions that are safe in a signal handler.
 */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/net/rpc/rpc_int.h"

enum { MAX_PEERS = 256, MAX_FDS = 8192 };

/* State of the process, because handlers of pthread_atfork have no argument. */
static struct {
  pthread_once_t once;
  pthread_mutex_t lock; /* guards what follows; held by the parent from before a fork until after */
  char peers[MAX_PEERS][RPC_ADDRESS]; /* [n_peers] addresses that this process has dialled */
  unsigned n_peers;
  int fds[MAX_FDS]; /* [n_fds] descriptors that the next child closes */
  unsigned n_fds;
} forks = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_known_peer(const char *address) {
  for (unsigned i = 0; i < forks.n_peers; i++)
    if (strcmp(forks.peers[i], address) == 0) return true;
  return false;
}

static bool is_dialled(int fd) {
  char address[RPC_ADDRESS];
  return rpc_read_peer_address(fd, address, sizeof(address)) && is_known_peer(address);
}

static void before_fork(void) {
  pthread_mutex_lock(&forks.lock);
  size_t n = forks.n_peers ? rpc_list_fds(forks.fds, MAX_FDS) : 0;
  forks.n_fds = 0;
  for (size_t i = 0; i < n; i++)
    if (is_dialled(forks.fds[i])) forks.fds[forks.n_fds++] = forks.fds[i];
}

static void after_fork_in_parent(void) { pthread_mutex_unlock(&forks.lock); }

/* Asks each descriptor again, because a thread may have closed it between the list and the fork. */
static void after_fork_in_child(void) {
  int none = forks.n_fds ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
  for (unsigned i = 0; i < forks.n_fds && none >= 0; i++)
    if (is_dialled(forks.fds[i])) (void)dup3(none, forks.fds[i], O_CLOEXEC);
  if (none >= 0) close(none);
  forks.n_peers = 0;
  pthread_mutex_unlock(&forks.lock);
}

static void install_handlers(void) {
  (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void rpc_fork_note_peer(const char *address) {
  if (!address || strlen(address) >= RPC_ADDRESS) return;
  (void)pthread_once(&forks.once, install_handlers);
  pthread_mutex_lock(&forks.lock);
  if (forks.n_peers < MAX_PEERS && !is_known_peer(address))
    strcpy(forks.peers[forks.n_peers++], address);
  pthread_mutex_unlock(&forks.lock);
}
