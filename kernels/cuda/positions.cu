/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/packed_int.cuh"
#include "kernels/cuda/positions_int.h"

static __global__ void add_rows(const float *x, const float *w, float *y, size_t n, size_t extent) {
  GPU_FOR(i, n) y[i] = x[i] + w[i % extent];
}

clv_code clv_gpu_add_rows(clv_gpu *g, const float *x, const float *w, float *y, size_t n,
                          size_t extent, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, add_rows, x, w, y, n, extent);
}

struct add_place {
  const float *x, *w;
  float *y;
  __device__ void operator()(size_t at, size_t i) const { y[at] = x[at] + w[i]; }
  __device__ void rest(size_t at) const { y[at] = x[at]; }
};

clv_code clv_gpu_add_rows_packed(clv_gpu *g, const cuda_packed *p, const float *x, const float *w,
                                 float *y, size_t width, clv_err *err) {
  return gpu_places(g, p, width, add_place{x, w, y}, err);
}

static __global__ void sum_places(cuda_packed p, const float *dy, float *dw, size_t width) {
  GPU_FOR(i, p.steps * width) {
    double sum = 0;
    for (size_t n = 0; n < p.n; n++) {
      size_t row;
      if (gpu_row_of(p, n * p.steps + i / width, &row))
        sum += static_cast<double>(dy[row * width + i % width]);
    }
    gpu_put(&dw[i], sum, true);
  }
}

clv_code clv_gpu_sum_rows_packed(clv_gpu *g, const cuda_packed *p, const float *dy, float *dw,
                                 size_t width, clv_err *err) {
  return gpu_launch(g, gpu_blocks(p->steps * width), GPU_BLOCK, err, sum_places, *p, dy, dw, width);
}
