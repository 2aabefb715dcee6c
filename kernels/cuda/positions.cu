/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/packed_int.cuh"
#include "kernels/cuda/positions_int.h"

static __global__ void add_w_to_samples(const float *x, const float *w, float *y, size_t n,
                                        size_t sample_size) {
  GPU_FOR(i, n) y[i] = x[i] + w[i % sample_size];
}

clv_code clv_gpu_add_to_samples(clv_gpu *g, const float *x, const float *w, float *y, size_t n,
                                size_t sample_size, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, add_w_to_samples, x, w, y, n,
                    sample_size);
}

struct add_w_to_packed {
  const float *x, *w;
  float *y;
  __device__ void operator()(size_t index, size_t i) const { y[index] = x[index] + w[i]; }
  __device__ void fill_unused(size_t index) const { y[index] = x[index]; }
};

clv_code clv_gpu_add_to_packed(clv_gpu *g, const cuda_packed *p, const float *x, const float *w,
                               float *y, size_t width, clv_err *err) {
  return gpu_visit_packed(g, p, width, add_w_to_packed{x, w, y}, err);
}

static __global__ void sum_packed_grads(cuda_packed p, const float *dy, float *dw, size_t width) {
  GPU_FOR(i, p.steps * width) {
    double sum = 0;
    for (size_t n = 0; n < p.n; n++) {
      size_t row;
      if (gpu_find_row(p, n * p.steps + i / width, &row))
        sum += static_cast<double>(dy[row * width + i % width]);
    }
    gpu_store_or_add(&dw[i], sum, true);
  }
}

clv_code clv_gpu_sum_packed_grads(clv_gpu *g, const cuda_packed *p, const float *dy, float *dw,
                                  size_t width, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(p->steps * width), GPU_BLOCK, err, sum_packed_grads, *p, dy,
                    dw, width);
}
