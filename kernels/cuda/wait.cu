/* SPDX-License-Identifier: Apache-2.0
 *
 * y = weight * x with the weight in device memory, for the op `wait`.
 */
#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/wait_int.h"

static __global__ void times(const float *x, const float *weight, float *y, size_t n) {
  GPU_FOR(i, n) y[i] = x[i] * *weight;
}

clv_code clv_gpu_mul_by_weight(clv_gpu *g, const float *x, const float *weight, float *y, size_t n,
                               clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, times, x, weight, y, n);
}

struct product_term {
  const float *x, *dy;
  __device__ cuda_pair operator()(size_t at, size_t) const {
    return {static_cast<double>(x[at]) * static_cast<double>(dy[at]), 0};
  }
};

static __global__ void put_weight(cuda_sums s, const cuda_pair *partial_sums, float *dw,
                                  bool accumulate) {
  gpu_put(dw, gpu_total(s, partial_sums, 0).first, accumulate);
}

clv_code clv_gpu_mul_by_weight_back(clv_gpu *g, const float *x, const float *dy, size_t n,
                                    void *partial_sums, float *dw, bool accumulate, clv_err *err) {
  cuda_sums s = gpu_sums_of(1, 1, n);
  CLV_TRY(gpu_compute_partial_sums(g, &s, product_term{x, dy}, partial_sums, err));
  return gpu_launch(g, 1, 1, err, put_weight, s, static_cast<const cuda_pair *>(partial_sums), dw,
                    accumulate);
}
