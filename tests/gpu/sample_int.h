/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels whose results show how the simulated device runs blocks, threads and warps.
 */
#ifndef CLEAVE_TESTS_GPU_SAMPLE_INT_H
#define CLEAVE_TESTS_GPU_SAMPLE_INT_H

#include "kernels/cuda/gpu_int.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] = x[i] + addend */
clv_code sample_add_number(clv_gpu *g, const float *x, float *y, float addend, size_t n,
                           clv_err *err);
/* y[b] = sum of the n_per_block values of x from b * n_per_block on, by a tree over 256 threads */
clv_code sample_sum_in_blocks(clv_gpu *g, const float *x, float *y, size_t n_per_block,
                              unsigned blocks, clv_err *err);
/* y[i] = sum of the 32 values of i's warp */
clv_code sample_sum_in_warps(clv_gpu *g, const float *x, float *y, unsigned blocks, clv_err *err);
/* order[i] = number of the block that ran i-th */
clv_code sample_record_block_order(clv_gpu *g, unsigned *order, unsigned *count, unsigned blocks,
                                   clv_err *err);
clv_code sample_count_threads(clv_gpu *g, float *y, unsigned threads, clv_err *err);

#ifdef __cplusplus
}
#endif
#endif
