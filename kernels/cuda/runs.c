/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of ranges on the device. With a table, one launch processes all ranges, however many there
 * are. An optimiser has the same ranges at every step, so clv_gpu_find_range_table caches the
 * tables that it makes, and evicts the least recently used one.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/runs_int.h"

static bool is_table_of(const cuda_range_table *t, const clv_extent *ranges, size_t n) {
  if (!t->device_ranges || t->n != n) return false;
  for (size_t i = 0; i < n; i++)
    if (t->host_ranges[i].at != ranges[i].at || t->host_ranges[i].n != ranges[i].n) return false;
  return true;
}

static void free_range_table(clv_gpu *g, cuda_range_table *t) {
  clv_backend_free_memory(&g->backend, t->device_ranges);
  clv_backend_free_memory(&g->backend, t->sums);
  free(t->host_ranges);
  *t = (cuda_range_table){0};
}

static clv_code fill_range_table(clv_gpu *g, cuda_range_table *t, const clv_extent *ranges,
                                 size_t n, clv_err *err) {
  CLV_AUTO(clv_freep) cuda_range *new_ranges = NULL;
  CLV_TRY(clv_alloc(n, sizeof *new_ranges, &new_ranges, err));
  CLV_TRY(clv_alloc(n, sizeof *t->host_ranges, &t->host_ranges, err));
  for (size_t i = 0; i < n; i++) {
    t->host_ranges[i] = ranges[i];
    new_ranges[i] = (cuda_range){ranges[i].at, ranges[i].n, t->n_chunks};
    t->n_chunks += gpu_count_chunks(ranges[i].n);
  }
  t->n = n;
  CLV_TRY(clv_backend_allocate(&g->backend, (t->n_chunks + n) * sizeof *t->sums, &t->sums, err));
  CLV_TRY(clv_backend_allocate(&g->backend, n * sizeof *new_ranges, &t->device_ranges, err));
  return clv_backend_put(&g->backend, t->device_ranges, new_ranges, n * sizeof *new_ranges, err);
}

clv_code clv_gpu_find_range_table(clv_gpu *g, const clv_extent *ranges, size_t n,
                                  const cuda_range_table **ret, clv_err *err) {
  cuda_range_table *t = &g->range_tables[0];
  for (int i = 0; i < GPU_MAX_RANGE_TABLES; i++) {
    if (is_table_of(&g->range_tables[i], ranges, n)) {
      t = &g->range_tables[i];
      break;
    }
    if (g->range_tables[i].last_used < t->last_used) t = &g->range_tables[i];
  }
  if (!is_table_of(t, ranges, n)) {
    free_range_table(g, t);
    clv_code code = fill_range_table(g, t, ranges, n, err);
    if (code != CLV_OK) free_range_table(g, t);
    CLV_TRY(code);
  }
  t->last_used = ++g->n_table_uses;
  *ret = t;
  return CLV_OK;
}

void clv_gpu_free_range_tables(clv_gpu *g) {
  for (int i = 0; i < GPU_MAX_RANGE_TABLES; i++) free_range_table(g, &g->range_tables[i]);
}

clv_code clv_gpu_sum_squares(const clv_backend *b, const float *x, const clv_extent *ranges,
                             size_t n_ranges, double *ret, clv_err *err) {
  clv_gpu *g = b->private_data;
  const cuda_range_table *t;
  if (!n_ranges) return CLV_OK;
  CLV_TRY(clv_gpu_find_range_table(g, ranges, n_ranges, &t, err));
  CLV_TRY(clv_gpu_sum_range_squares(g, x, t, err));
  return clv_backend_get(b, ret, t->sums + t->n_chunks, n_ranges * sizeof *ret, err);
}
