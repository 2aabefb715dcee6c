/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread pool. Each call of clv_thread_pool_run is a job: a function that is run for the numbers
 * 0..n-1, on the pool's threads. A job is a variable on its caller's stack. A job is in the pool's
 * list while it has numbers for which no thread has begun the call.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/image_int.h"

typedef struct job {
  clv_thread_pool_fn *run;
  void *arg;
  /* n: the job runs the numbers 0 to n - 1; next_number: first number that no thread has begun;
   * n_running: count of numbers that threads are running now */
  size_t n, next_number, n_running;
  clv_code code;
  size_t failed_number;
  clv_err err;
  struct job *next_job; /* next job in the pool's list; NULL: this is the last job */
} job;

typedef struct pool_thread {
  clv_thread_pool *pool;
  unsigned thread_number;
  pthread_t thread;
} pool_thread;

struct clv_thread_pool {
  pthread_mutex_t lock; /* protects the pool and its jobs */
  pthread_cond_t job_added, job_done;
  job *first_job;
  bool is_stopping;
  unsigned n_started; /* number of threads that were started */
  pool_thread *pool_threads;
};

/* Stores the result of the call for number i of a job. The job keeps the failure with the smallest
 * number. Calls begin in the order of their numbers, so all calls for smaller numbers have begun,
 * and each will store its own result. */
static void store_result(job *j, size_t i, clv_code code, const clv_err *err) {
  if (code == CLV_OK || (j->code != CLV_OK && j->failed_number < i)) return;
  j->code = code;
  j->failed_number = i;
  j->err = *err;
}

static bool has_no_more_numbers(const job *j) {
  return j->next_number == j->n || j->code != CLV_OK;
}

static void remove_job(clv_thread_pool *p, const job *j) {
  for (job **at = &p->first_job; *at; at = &(*at)->next_job)
    if (*at == j) {
      *at = j->next_job;
      return;
    }
}

static void run_one_number(clv_thread_pool *p, job *j, unsigned thread) {
  clv_err err;
  size_t i = j->next_number++;
  j->n_running++;
  if (has_no_more_numbers(j)) remove_job(p, j);
  pthread_mutex_unlock(&p->lock);
  clv_code code = j->run(j->arg, i, thread, &err);
  pthread_mutex_lock(&p->lock);
  store_result(j, i, code, &err);
  if (has_no_more_numbers(j)) remove_job(p, j);
  j->n_running--;
  if (has_no_more_numbers(j) && !j->n_running) pthread_cond_broadcast(&p->job_done);
}

static void *run_jobs(void *arg) {
  pool_thread *m = arg;
  clv_thread_pool *p = m->pool;
  pthread_mutex_lock(&p->lock);
  while (!p->is_stopping) {
    if (p->first_job)
      run_one_number(p, p->first_job, m->thread_number);
    else
      pthread_cond_wait(&p->job_added, &p->lock);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* Starts the threads with all signals blocked, so that other threads handle signals. */
static clv_code start_threads(clv_thread_pool *p, unsigned n_threads, clv_err *err) {
  sigset_t all_signals, signals_before;
  int thread_error = 0;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_SETMASK, &all_signals, &signals_before);
  while (p->n_started < n_threads && !thread_error) {
    pool_thread *m = &p->pool_threads[p->n_started];
    *m = (pool_thread){.pool = p, .thread_number = p->n_started};
    thread_error = pthread_create(&m->thread, NULL, run_jobs, m);
    if (!thread_error) p->n_started++;
  }
  pthread_sigmask(SIG_SETMASK, &signals_before, NULL);
  return thread_error ? clv_fail(err, CLV_EXHAUSTED, "image threads: %s", strerror(thread_error))
                      : CLV_OK;
}

clv_code clv_thread_pool_new(unsigned n_threads, clv_thread_pool **ret, clv_err *err) {
  clv_thread_pool *p;
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->job_added, NULL);
  pthread_cond_init(&p->job_done, NULL);
  clv_code code = clv_alloc(n_threads, sizeof *p->pool_threads, &p->pool_threads, err);
  if (code == CLV_OK) code = start_threads(p, n_threads, err);
  if (code == CLV_OK)
    *ret = p;
  else
    clv_thread_pool_free(p);
  return code;
}

void clv_thread_pool_free(clv_thread_pool *p) {
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  p->is_stopping = true;
  pthread_cond_broadcast(&p->job_added);
  pthread_mutex_unlock(&p->lock);
  for (unsigned i = 0; i < p->n_started; i++) pthread_join(p->pool_threads[i].thread, NULL);
  pthread_cond_destroy(&p->job_added);
  pthread_cond_destroy(&p->job_done);
  pthread_mutex_destroy(&p->lock);
  free(p->pool_threads);
  free(p);
}

clv_code clv_thread_pool_run(clv_thread_pool *p, size_t n, clv_thread_pool_fn *fn, void *arg,
                             clv_err *err) {
  job j = {.run = fn, .arg = arg, .n = n};
  if (n == 0) return CLV_OK;
  pthread_mutex_lock(&p->lock);
  job **last = &p->first_job;
  while (*last) last = &(*last)->next_job;
  *last = &j;
  pthread_cond_broadcast(&p->job_added);
  while (!has_no_more_numbers(&j) || j.n_running) pthread_cond_wait(&p->job_done, &p->lock);
  pthread_mutex_unlock(&p->lock);
  if (j.code != CLV_OK && err) *err = j.err;
  return j.code;
}
