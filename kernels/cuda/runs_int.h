/* SPDX-License-Identifier: Apache-2.0
 *
 * runs_int: launches that process many ranges of a block of values at once.
 */
#ifndef CLEAVE_KERNELS_CUDA_RUNS_INT_H
#define CLEAVE_KERNELS_CUDA_RUNS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of values of a chunk, which a block of threads processes at a time. Each range is divided
 * into chunks. */
enum { GPU_CHUNK_VALUES = 2048 };

static inline size_t gpu_count_chunks(size_t n) {
  return (n + GPU_CHUNK_VALUES - 1) / GPU_CHUNK_VALUES;
}

/* Finds the cached table of these ranges, or makes the table. The table stays valid until
 * GPU_MAX_RANGE_TABLES other tables have been used. */
clv_code clv_gpu_find_range_table(clv_gpu *g, const clv_extent *ranges, size_t n,
                                  const cuda_range_table **ret, clv_err *err) CLV_USE_RESULT;

/* Computes the sum of squares of each range i of x, and writes it to t->sums[t->n_chunks + i]. */
clv_code clv_gpu_sum_range_squares(clv_gpu *g, const float *x, const cuda_range_table *t,
                                   clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
