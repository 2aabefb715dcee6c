/* SPDX-License-Identifier: Apache-2.0
 *
 * Signals are held while oneDNN runs. Its f32 products have the stack pointer in a block of the
 * heap where the sums are long (in 3.11.1 too), and what the system puts on the stack for a handler
 * would overwrite the blocks below.
 */
#include <pthread.h>

#include "kernels/cpu/dnnl_int.h"

extern void GOMP_parallel(void (*fn)(void *), void *arg, unsigned threads, unsigned flags);
extern int omp_get_max_threads(void);

/* All but those by which the processor tells a thread of its own fault. */
static void hold(sigset_t *ret_before) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  sigset_t most;
  sigfillset(&most);
  for (size_t i = 0; i < CLV_COUNT(faults); i++) sigdelset(&most, faults[i]);
  pthread_sigmask(SIG_BLOCK, &most, ret_before);
}

static void hold_part(void *unused) {
  (void)unused;
  hold(NULL);
}

/* A thread that is made meanwhile holds them as well; the program may have made the team before. */
sigset_t clv_cpu_hold_signals(void) {
  static _Thread_local int calm = 1; /* threads of the team that hold theirs */
  sigset_t before;
  hold(&before);
  int n = omp_get_max_threads();
  if (n > calm) GOMP_parallel(hold_part, NULL, (unsigned)n, 0);
  calm = CLV_MAX(calm, n);
  return before;
}

void clv_cpu_release_signals(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }
