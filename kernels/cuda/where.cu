/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/where_int.h"

#include "kernels/cuda/device_int.cuh"

static __global__ void select_values(const float *x, float threshold, const float *a,
                                     const float *b, float *y, size_t n) {
  GPU_FOR(i, n) {
    const float *from = x[i] > threshold ? a : b;
    y[i] = from ? from[i] : 0;
  }
}

clv_code clv_gpu_where(clv_gpu *g, const float *x, float threshold, const float *a, const float *b,
                       float *y, size_t n, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, select_values, x, threshold, a, b, y,
                    n);
}
