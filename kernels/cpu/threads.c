/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of loops. libgomp is called through its entry points instead of by OpenMP pragmas, so
 * that any compiler can build this file. oneDNN links libgomp too, so a calling thread has one team
 * for oneDNN's loops and ours.
 */
#include "kernels/cpu/dnnl_int.h"

extern void GOMP_parallel(void (*fn)(void *), void *arg, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int n);

/* TSAN_RELEASE tells the thread sanitizer that a thread which then calls TSAN_ACQUIRE with this
 * address sees what this thread has written. The sanitizer does not see libgomp's own
 * synchronisation, which uses futexes. */
#if defined(__SANITIZE_THREAD__)
extern void __tsan_acquire(void *at);
extern void __tsan_release(void *at);
#define TSAN_RELEASE(at) __tsan_release(at)
#define TSAN_ACQUIRE(at) __tsan_acquire(at)
#else
#define TSAN_RELEASE(at) ((void)(at))
#define TSAN_ACQUIRE(at) ((void)(at))
#endif

enum { WORK_PER_THREAD = 32 * 1024 }; /* element operations for which a thread is worth its start */

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
  TSAN_ACQUIRE(arg);
  const parallel_job *j = arg;
  size_t part = (size_t)omp_get_thread_num(), n_parts = (size_t)j->threads;
  size_t begin = j->n / n_parts * part + CLV_MIN(part, j->n % n_parts);
  size_t end = begin + j->n / n_parts + (part < j->n % n_parts);
  if (begin < end) j->fn(j->arg, begin, end);
  TSAN_RELEASE(arg);
}

void clv_cpu_parallel(int threads, size_t n, clv_cpu_range_fn *fn, void *arg) {
  if (threads <= 1 || n <= 1) {
    fn(arg, 0, n);
    return;
  }
  parallel_job j = {fn, arg, n, (int)CLV_MIN((size_t)threads, n)};
  CLV_AUTO(clv_cpu_release_signals) sigset_t previous_mask = clv_cpu_hold_signals();
  TSAN_RELEASE(&j);
  GOMP_parallel(run_thread_part, &j, (unsigned)j.threads, 0);
  TSAN_ACQUIRE(&j);
}

int clv_cpu_useful_threads(int threads, size_t work) {
  size_t max_threads = work / WORK_PER_THREAD;
  return max_threads < (size_t)threads ? (int)CLV_MAX(max_threads, 1) : threads;
}
