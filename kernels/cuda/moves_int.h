/* SPDX-License-Identifier: Apache-2.0
 *
 * moves_int: launchers of ops that only move values, and of embedding.
 */
#ifndef CLEAVE_KERNELS_CUDA_MOVES_INT_H
#define CLEAVE_KERNELS_CUDA_MOVES_INT_H

#include "kernels/cuda/packed_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies dst[o][i] = src[o][i] for `outer` runs of `run` values; runs start to_stride values apart
 * in dst, from_stride in src. */
clv_code clv_gpu_copy_runs(clv_gpu *g, const float *src, size_t from_stride, float *dst,
                           size_t to_stride, size_t outer, size_t run, clv_err *err) CLV_USE_RESULT;

/* A lookup of row numbers (see clv_row_numbers) in a table [rows, out]. */
typedef struct cuda_lookup {
  clv_row_numbers l;
  size_t out;
  uint32_t layer;
} cuda_lookup;

/* Copies y[i] = row value[i] of the table (see clv_row_numbers). A value outside 0..rows-1 is
 * refused. */
clv_code clv_gpu_lookup(clv_gpu *g, const cuda_lookup *l, const int64_t *value, const float *table,
                        float *y, clv_err *err) CLV_USE_RESULT;

/* Computes the gradient of the table: adds the gradients of each row in the order of their
 * positions. Other rows become zero unless `accumulate`. keys: scratch of gpu_count_keys(n) values,
 * which the launcher sorts. */
static inline size_t gpu_count_keys(size_t n) {
  size_t keys = 1;
  while (keys < n) keys *= 2;
  return keys;
}
clv_code clv_gpu_lookup_back(clv_gpu *g, const cuda_lookup *l, const int64_t *value,
                             const float *dy, uint64_t *keys, float *dtable, bool accumulate,
                             clv_err *err) CLV_USE_RESULT;

/* Extents of the op `last`: n samples of `steps` times `features` values. A length outside 0..steps
 * is refused; a refused length and a length of 0 give zeros. */
typedef struct cuda_last {
  size_t n, steps, features;
  uint32_t layer;
} cuda_last;

clv_code clv_gpu_last(clv_gpu *g, const cuda_last *l, const float *x, const int64_t *lengths,
                      float *y, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_last_back(clv_gpu *g, const cuda_last *l, const float *dy, const int64_t *lengths,
                           float *dx, clv_err *err) CLV_USE_RESULT;

/* The op `last` over packed sequences: the last position of each sequence, or the first with
 * `takes_first`. An empty sequence gives zeros. */
typedef struct cuda_last_packed {
  cuda_packed p;
  size_t features;
  bool takes_first;
} cuda_last_packed;

clv_code clv_gpu_last_packed(clv_gpu *g, const cuda_last_packed *e, const float *x, float *y,
                             clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_last_packed_back(clv_gpu *g, const cuda_last_packed *e, const float *dy, float *dx,
                                  clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
