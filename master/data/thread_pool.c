/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread pool. Each call of clv_thread_pool_run is a job: the threads process the numbers 0..n-1
 * of one job after the other. A job is on its caller's stack. It is in the list of jobs while it
 * has numbers that no thread has begun.
 *
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "master/data/image_int.h"

typedef struct job {
  clv_thread_pool_fn *run;
  void *arg;
  /* n: numbers from 0 to n - 1 are run; next: first number that has not begun; running: how many
   * are running */
  size_t n, next, running;
  clv_code code;
  size_t failed_number;
  clv_err err;
  struct job *later;
} job;

typedef struct member {
  clv_thread_pool *pool;
  unsigned thread_number;
  pthread_t thread;
} member;

struct clv_thread_pool {
  pthread_mutex_t lock; /* protects the pool and its jobs */
  pthread_cond_t work, done;
  job *first_job;
  bool is_stopping;
  unsigned n_started; /* number of threads that were started */
  member *members;
};

/* Records the result of number i of a job. It keeps the failure with the smallest number. Numbers
 * begin in order, so every smaller one has begun and will report its own result. */
static void record_result(job *j, size_t i, clv_code code, const clv_err *err) {
  if (code == CLV_OK || (j->code != CLV_OK && j->failed_number < i)) return;
  j->code = code;
  j->failed_number = i;
  j->err = *err;
}

static bool is_exhausted(const job *j) { return j->next == j->n || j->code != CLV_OK; }

static void remove_job(clv_thread_pool *p, const job *j) {
  for (job **at = &p->first_job; *at; at = &(*at)->later)
    if (*at == j) {
      *at = j->later;
      return;
    }
}

static void run_one_number(clv_thread_pool *p, job *j, unsigned thread) {
  clv_err err;
  size_t i = j->next++;
  j->running++;
  if (is_exhausted(j)) remove_job(p, j);
  pthread_mutex_unlock(&p->lock);
  clv_code code = j->run(j->arg, i, thread, &err);
  pthread_mutex_lock(&p->lock);
  record_result(j, i, code, &err);
  if (is_exhausted(j)) remove_job(p, j);
  j->running--;
  if (is_exhausted(j) && !j->running) pthread_cond_broadcast(&p->done);
}

static void *run_jobs(void *arg) {
  member *m = arg;
  clv_thread_pool *p = m->pool;
  pthread_mutex_lock(&p->lock);
  while (!p->is_stopping) {
    if (p->first_job)
      run_one_number(p, p->first_job, m->thread_number);
    else
      pthread_cond_wait(&p->work, &p->lock);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* Starts the threads with all signals blocked, so that other threads handle signals. */
static clv_code start_threads(clv_thread_pool *p, unsigned threads, clv_err *err) {
  sigset_t all, before;
  int failed = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (p->n_started < threads && !failed) {
    member *m = &p->members[p->n_started];
    *m = (member){.pool = p, .thread_number = p->n_started};
    failed = pthread_create(&m->thread, NULL, run_jobs, m);
    if (!failed) p->n_started++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed ? clv_fail(err, CLV_EXHAUSTED, "image threads: %s", strerror(failed)) : CLV_OK;
}

clv_code clv_thread_pool_new(unsigned threads, clv_thread_pool **ret, clv_err *err) {
  clv_thread_pool *p;
  CLV_TRY(clv_alloc(1, sizeof *p, &p, err));
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->done, NULL);
  clv_code code = clv_alloc(threads, sizeof *p->members, &p->members, err);
  if (code == CLV_OK) code = start_threads(p, threads, err);
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
  pthread_cond_broadcast(&p->work);
  pthread_mutex_unlock(&p->lock);
  for (unsigned i = 0; i < p->n_started; i++) pthread_join(p->members[i].thread, NULL);
  pthread_cond_destroy(&p->work);
  pthread_cond_destroy(&p->done);
  pthread_mutex_destroy(&p->lock);
  free(p->members);
  free(p);
}

clv_code clv_thread_pool_run(clv_thread_pool *p, size_t n, clv_thread_pool_fn *fn, void *arg,
                             clv_err *err) {
  job j = {.run = fn, .arg = arg, .n = n};
  if (n == 0) return CLV_OK;
  pthread_mutex_lock(&p->lock);
  job **last = &p->first_job;
  while (*last) last = &(*last)->later;
  *last = &j;
  pthread_cond_broadcast(&p->work);
  while (!is_exhausted(&j) || j.running) pthread_cond_wait(&p->done, &p->lock);
  pthread_mutex_unlock(&p->lock);
  if (j.code != CLV_OK && err) *err = j.err;
  return j.code;
}
