/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the op wait, which computes y = weight * x; the weight is in device memory.
 */
#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/wait_int.h"

static __global__ void multiply_by_weight(const float *x, const float *weight, float *y, size_t n) {
  GPU_FOR(i, n) y[i] = x[i] * *weight;
}

clv_code clv_gpu_mul_by_weight(clv_gpu *g, const float *x, const float *weight, float *y, size_t n,
                               clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, multiply_by_weight, x, weight, y, n);
}

struct product_term {
  const float *x, *dy;
  __device__ cuda_pair operator()(size_t index, size_t) const {
    return {static_cast<double>(x[index]) * static_cast<double>(dy[index]), 0};
  }
};

static __global__ void put_weight_grad(cuda_sum_layout s, const cuda_pair *partial_sums, float *dw,
                                       bool accumulate) {
  gpu_store_or_add(dw, gpu_add_partial_sums(s, partial_sums, 0).first, accumulate);
}

clv_code clv_gpu_mul_by_weight_back(clv_gpu *g, const float *x, const float *dy, size_t n,
                                    void *partial_sums, float *dw, bool accumulate, clv_err *err) {
  cuda_sum_layout s = gpu_sum_layout_of(1, 1, n);
  CLV_TRY(gpu_compute_partial_sums(g, &s, product_term{x, dy}, partial_sums, err));
  return gpu_launch(g, 1, 1, err, put_weight_grad, s, static_cast<const cuda_pair *>(partial_sums),
                    dw, accumulate);
}
