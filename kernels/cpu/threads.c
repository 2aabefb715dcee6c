/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads. libgomp is called through its entry points instead of OpenMP pragmas. oneDNN links
 * libgomp, so both use one team for each calling thread, whichever compiler built this file.
 */
#include "kernels/cpu/dnnl_int.h"

extern void GOMP_parallel(void (*fn)(void *), void *arg, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int n);

/* These calls make libgomp's synchronisation known to the thread sanitizer, which does not see
 * futexes. */
#if defined(__SANITIZE_THREAD__)
extern void __tsan_acquire(void *at);
extern void __tsan_release(void *at);
#define HANDS_OVER(at) __tsan_release(at)
#define TAKES_OVER(at) __tsan_acquire(at)
#else
#define HANDS_OVER(at) ((void)(at))
#define TAKES_OVER(at) ((void)(at))
#endif

enum { WORK_PER_THREAD = 32 * 1024 };

void clv_cpu_set_threads(int n) {
  if (n < 1) n = 1;
  if (omp_get_max_threads() != n) omp_set_num_threads(n);
}

int clv_cpu_get_threads(void) { return omp_get_max_threads(); }

typedef struct parallel_job {
  clv_cpu_range_fn *fn;
  void *arg;
  size_t n;
  int threads;
} parallel_job;

static void run_thread_part(void *arg) {
  TAKES_OVER(arg);
  const parallel_job *j = arg;
  size_t part = (size_t)omp_get_thread_num(), parts = (size_t)j->threads;
  size_t begin = j->n / parts * part + CLV_MIN(part, j->n % parts);
  size_t end = begin + j->n / parts + (part < j->n % parts);
  if (begin < end) j->fn(j->arg, begin, end);
  HANDS_OVER(arg);
}

void clv_cpu_parallel(int threads, size_t n, clv_cpu_range_fn *fn, void *arg) {
  if (threads <= 1 || n <= 1) {
    fn(arg, 0, n);
    return;
  }
  parallel_job j = {fn, arg, n, (int)CLV_MIN((size_t)threads, n)};
  CLV_AUTO(clv_cpu_release_signals) sigset_t previous_signals = clv_cpu_hold_signals();
  HANDS_OVER(&j);
  GOMP_parallel(run_thread_part, &j, (unsigned)j.threads, 0);
  TAKES_OVER(&j);
}

int clv_cpu_useful_threads(int threads, size_t work) {
  size_t max_threads = work / WORK_PER_THREAD;
  return max_threads < (size_t)threads ? (int)CLV_MAX(max_threads, 1) : threads;
}
