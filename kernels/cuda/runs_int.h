/* SPDX-License-Identifier: Apache-2.0
 *
 * runs_int: walks over many runs of a block in one launch.
 */
#ifndef CLEAVE_KERNELS_CUDA_RUNS_INT_H
#define CLEAVE_KERNELS_CUDA_RUNS_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values that a block of threads takes at a time: a run is divided into such chunks. */
enum { GPU_CHUNK = 2048 };

static inline size_t gpu_chunks_of(size_t n) { return (n + GPU_CHUNK - 1) / GPU_CHUNK; }

/* The table of these runs; it lives until others have come, GPU_TABLES of them at least. */
clv_code clv_gpu_find_runs(clv_gpu *g, const clv_extent *runs, size_t n, const cuda_runs **ret,
                           clv_err *err) CLV_USE_RESULT;

/* The sum of squares of run i into t->part[t->chunks + i]. */
clv_code clv_gpu_square_sums(clv_gpu *g, const float *x, const cuda_runs *t,
                             clv_err *err) CLV_USE_RESULT;

#ifdef __cplusplus
}
#endif
#endif
