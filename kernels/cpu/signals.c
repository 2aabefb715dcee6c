/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks signals while oneDNN runs. In oneDNN's f32 products with long sums the stack pointer
 * points into a block of the heap (in 3.11.1 too), so the frame that the system pushes for a signal
 * handler would overwrite the blocks below.
 */
#include <pthread.h>

#include "kernels/cpu/dnnl_int.h"

extern void GOMP_parallel(void (*fn)(void *), void *arg, unsigned threads, unsigned flags);
extern int omp_get_max_threads(void);

/* Blocks all signals of the calling thread except those by which the processor reports a fault of
 * the thread itself. *ret_before: the signal mask before; may be NULL. */
static void block_thread_signals(sigset_t *ret_before) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  sigset_t blocked_signals;
  sigfillset(&blocked_signals);
  for (size_t i = 0; i < CLV_COUNT(faults); i++) sigdelset(&blocked_signals, faults[i]);
  pthread_sigmask(SIG_BLOCK, &blocked_signals, ret_before);
}

static void block_team_thread_signals(void *unused) {
  (void)unused;
  block_thread_signals(NULL);
}

/* Blocks the signals of the calling thread and of its OpenMP team. A thread that is created while
 * they are blocked inherits the mask, but the program may have created the team before. */
sigset_t clv_cpu_hold_signals(void) {
  /* number of threads of the team whose signals are blocked */
  static _Thread_local int n_holding = 1;
  sigset_t old_mask;
  block_thread_signals(&old_mask);
  int n = omp_get_max_threads();
  if (n > n_holding) GOMP_parallel(block_team_thread_signals, NULL, (unsigned)n, 0);
  n_holding = CLV_MAX(n_holding, n);
  return old_mask;
}

void clv_cpu_release_signals(const sigset_t *old_mask) {
  pthread_sigmask(SIG_SETMASK, old_mask, NULL);
}
