/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of runs on the device. With a table, one launch processes all runs, however many there
 * are. An optimiser has the same runs at every step, so clv_gpu_find_run_table caches the tables
 * that it makes, and evicts the least recently used one.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/runs_int.h"

static bool is_table_of(const cuda_runs *t, const clv_extent *runs, size_t n) {
  if (!t->device_runs || t->n != n) return false;
  for (size_t i = 0; i < n; i++)
    if (t->host_runs[i].at != runs[i].at || t->host_runs[i].n != runs[i].n) return false;
  return true;
}

static void free_run_table(clv_gpu *g, cuda_runs *t) {
  clv_backend_free_memory(&g->backend, t->device_runs);
  clv_backend_free_memory(&g->backend, t->sums);
  free(t->host_runs);
  *t = (cuda_runs){0};
}

static clv_code fill_run_table(clv_gpu *g, cuda_runs *t, const clv_extent *runs, size_t n,
                               clv_err *err) {
  CLV_AUTO(clv_freep) cuda_run *run_table = NULL;
  CLV_TRY(clv_alloc(n, sizeof *run_table, &run_table, err));
  CLV_TRY(clv_alloc(n, sizeof *t->host_runs, &t->host_runs, err));
  for (size_t i = 0; i < n; i++) {
    t->host_runs[i] = runs[i];
    run_table[i] = (cuda_run){runs[i].at, runs[i].n, t->n_chunks};
    t->n_chunks += gpu_count_chunks(runs[i].n);
  }
  t->n = n;
  CLV_TRY(clv_backend_allocate(&g->backend, (t->n_chunks + n) * sizeof *t->sums, &t->sums, err));
  CLV_TRY(clv_backend_allocate(&g->backend, n * sizeof *run_table, &t->device_runs, err));
  return clv_backend_put(&g->backend, t->device_runs, run_table, n * sizeof *run_table, err);
}

clv_code clv_gpu_find_run_table(clv_gpu *g, const clv_extent *runs, size_t n, const cuda_runs **ret,
                                clv_err *err) {
  cuda_runs *t = &g->runs[0];
  for (int i = 0; i < GPU_RUN_TABLES; i++) {
    if (is_table_of(&g->runs[i], runs, n)) {
      t = &g->runs[i];
      break;
    }
    if (g->runs[i].last_used < t->last_used) t = &g->runs[i];
  }
  if (!is_table_of(t, runs, n)) {
    free_run_table(g, t);
    clv_code code = fill_run_table(g, t, runs, n, err);
    if (code != CLV_OK) free_run_table(g, t);
    CLV_TRY(code);
  }
  t->last_used = ++g->n_table_uses;
  *ret = t;
  return CLV_OK;
}

void clv_gpu_free_run_tables(clv_gpu *g) {
  for (int i = 0; i < GPU_RUN_TABLES; i++) free_run_table(g, &g->runs[i]);
}

clv_code clv_gpu_sum_squares(const clv_backend *b, const float *x, const clv_extent *runs,
                             size_t n_runs, double *ret, clv_err *err) {
  clv_gpu *g = b->private_data;
  const cuda_runs *t;
  if (!n_runs) return CLV_OK;
  CLV_TRY(clv_gpu_find_run_table(g, runs, n_runs, &t, err));
  CLV_TRY(clv_gpu_sum_run_squares(g, x, t, err));
  return clv_backend_get(b, ret, t->sums + t->n_chunks, n_runs * sizeof *ret, err);
}
