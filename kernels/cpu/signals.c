/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks signals while oneDNN runs. In oneDNN's f32 products with long sums (in version 3.11.1,
 * too) the stack pointer points into a block of the heap. The frame that the system pushes for a
 * signal handler would therefore overwrite the heap blocks below.
 */
#include <pthread.h>

#include "kernels/cpu/dnnl_int.h"

extern void GOMP_parallel(void (*fn)(void *), void *arg, unsigned threads, unsigned flags);
extern int omp_get_max_threads(void);

/* Blocks all signals of the calling thread except those that report a fault of the thread itself.
 * *ret_old_mask: the signal mask before the call; ret_old_mask may be NULL. */
static void block_thread_signals(sigset_t *ret_old_mask) {
  static const int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  sigset_t blocked_signals;
  sigfillset(&blocked_signals);
  for (size_t i = 0; i < CLV_COUNT(fault_signals); i++)
    sigdelset(&blocked_signals, fault_signals[i]);
  pthread_sigmask(SIG_BLOCK, &blocked_signals, ret_old_mask);
}

static void block_team_thread_signals(void *unused) {
  (void)unused;
  block_thread_signals(NULL);
}

/* Blocks the signals of the calling thread and of its OpenMP team. A team thread that is created
 * while the caller's signals are blocked inherits the mask, but the team may be older. */
sigset_t clv_cpu_hold_signals(void) {
  /* number of threads of the calling thread's team whose signals are blocked */
  static _Thread_local int n_blocked_threads = 1;
  sigset_t old_mask;
  block_thread_signals(&old_mask);
  int n = omp_get_max_threads();
  if (n > n_blocked_threads) GOMP_parallel(block_team_thread_signals, NULL, (unsigned)n, 0);
  n_blocked_threads = CLV_MAX(n_blocked_threads, n);
  return old_mask;
}

void clv_cpu_release_signals(const sigset_t *old_mask) {
  pthread_sigmask(SIG_SETMASK, old_mask, NULL);
}
