/* SPDX-License-Identifier: Apache-2.0
 *
 * moves_int: launchers of the ops concat, slice, prepend and last, which copy values, and of
 * embedding.
 */
#ifndef CLEAVE_KERNELS_CUDA_MOVES_INT_H
#define CLEAVE_KERNELS_CUDA_MOVES_INT_H

#include "kernels/cuda/packed_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies `n_runs` runs of run_size adjacent values. The runs start dst_stride values apart in dst,
 * and src_stride values apart in src. */
clv_code clv_gpu_copy_runs(clv_gpu *g, const float *src, size_t src_stride, float *dst,
                           size_t dst_stride, size_t n_runs, size_t run_size,
                           clv_err *err) CLV_USE_RESULT;

/* A lookup of row numbers (see clv_row_numbers) in a table [rows, row_size]. */
typedef struct cuda_lookup {
  clv_row_numbers l;
  size_t row_size;
  uint32_t layer;
} cuda_lookup;

/* Copies to row i of y the table's row of row number i. A number outside 0..rows-1 is refused. */
clv_code clv_gpu_look_up_rows(clv_gpu *g, const cuda_lookup *l, const int64_t *row_numbers,
                              const float *table, float *y, clv_err *err) CLV_USE_RESULT;

/* Returns the number of keys in the scratch of clv_gpu_look_up_rows_back for n positions: the
 * smallest power of two that is at least n. */
static inline size_t gpu_count_keys(size_t n) {
  size_t n_keys = 1;
  while (n_keys < n) n_keys *= 2;
  return n_keys;
}
/* Computes the gradient of the table: adds the gradients of each row in the order of their
 * positions. Rows without a position become zero unless `accumulate`. keys: scratch of
 * gpu_count_keys(n) values, which the launcher sorts. */
clv_code clv_gpu_look_up_rows_back(clv_gpu *g, const cuda_lookup *l, const int64_t *row_numbers,
                                   const float *dy, uint64_t *keys, float *dtable, bool accumulate,
                                   clv_err *err) CLV_USE_RESULT;

/* Extents of the op last: n samples of `steps` times `features` values. A length outside 0..steps
 * is refused. For a refused length and for the length 0 the output is zeros. */
typedef struct cuda_last_extents {
  size_t n, steps, features;
  uint32_t layer;
} cuda_last_extents;

clv_code clv_gpu_copy_last_steps(clv_gpu *g, const cuda_last_extents *l, const float *x,
                                 const int64_t *lengths, float *y, clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_copy_last_steps_back(clv_gpu *g, const cuda_last_extents *l, const float *dy,
                                      const int64_t *lengths, float *dx,
                                      clv_err *err) CLV_USE_RESULT;

/* The op last over packed sequences: the last position of each sequence, or if takes_first the
 * first one. For an empty sequence the output is zeros. */
typedef struct cuda_last_packed {
  cuda_packed p;
  size_t features;
  bool takes_first;
} cuda_last_packed;

clv_code clv_gpu_copy_packed_ends(clv_gpu *g, const cuda_last_packed *e, const float *x, float *y,
                                  clv_err *err) CLV_USE_RESULT;
clv_code clv_gpu_copy_packed_ends_back(clv_gpu *g, const cuda_last_packed *e, const float *dy,
                                       float *dx, clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
