/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/positions_int.h"

static __global__ void add_rows(const float *x, const float *w, float *y, size_t n, size_t extent) {
  GPU_FOR(i, n) y[i] = x[i] + w[i % extent];
}

clv_code clv_gpu_add_rows(clv_gpu *g, const float *x, const float *w, float *y, size_t n,
                          size_t extent, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, add_rows, x, w, y, n, extent);
}
