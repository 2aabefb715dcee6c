/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/device_int.cuh"

static __global__ void round_all(const float *x, cuda_bf16 *y, size_t n) {
  GPU_FOR(i, n) y[i] = gpu_to_bf16(x[i]);
}

clv_code clv_gpu_round(clv_gpu *g, const float *x, cuda_bf16 *y, size_t n, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, round_all, x, y, n);
}
