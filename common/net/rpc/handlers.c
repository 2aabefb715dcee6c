/* SPDX-License-Identifier: Apache-2.0
 *
 * Thread pool: runs unary handlers and deferred sends, so that a slow one never blocks a queue
 * thread.
 */
#include "common/net/rpc/rpc_int.h"

static clv_rpc_job *take_job(rpc_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  while (!pool->first_job && !pool->is_stopping)
    pthread_cond_wait(&pool->wake_threads, &pool->lock);
  clv_rpc_job *job = pool->first_job;
  if (job) {
    pool->first_job = job->next;
    if (!pool->first_job) pool->last_job = NULL;
    pool->n_waiting_jobs--;
  }
  pthread_mutex_unlock(&pool->lock);
  return job;
}

static void *handler_thread(void *arg) {
  for (clv_rpc_job *job; (job = take_job(arg)) != NULL;) job->run(job);
  return NULL;
}

clv_code rpc_pool_init(rpc_pool *pool, unsigned n_threads, unsigned max_waiting, clv_err *err) {
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->wake_threads, NULL);
  pool->max_waiting_jobs = max_waiting;
  while (pool->n_threads < n_threads &&
         pthread_create(&pool->threads[pool->n_threads], NULL, handler_thread, pool) == 0)
    pool->n_threads++;
  if (pool->n_threads == n_threads) return CLV_OK;
  clv_code code = clv_fail(err, CLV_EXHAUSTED, "handler thread %u of %u could not be started",
                           pool->n_threads + 1, n_threads);
  rpc_pool_stop(pool);
  return code;
}

void rpc_pool_stop(rpc_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  pool->is_stopping = true;
  pthread_cond_broadcast(&pool->wake_threads);
  pthread_mutex_unlock(&pool->lock);
  for (unsigned i = 0; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
  pthread_cond_destroy(&pool->wake_threads);
  pthread_mutex_destroy(&pool->lock);
}

bool rpc_pool_add_job(rpc_pool *pool, clv_rpc_job *job) {
  job->next = NULL;
  pthread_mutex_lock(&pool->lock);
  bool has_room = pool->n_waiting_jobs < pool->max_waiting_jobs && !pool->is_stopping;
  if (has_room) {
    if (pool->last_job)
      pool->last_job->next = job;
    else
      pool->first_job = job;
    pool->last_job = job;
    pool->n_waiting_jobs++;
    pthread_cond_signal(&pool->wake_threads);
  }
  pthread_mutex_unlock(&pool->lock);
  return has_room;
}
