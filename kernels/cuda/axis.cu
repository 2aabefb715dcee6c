/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/axis_int.h"
#include "kernels/cuda/device_int.cuh"

static __global__ void reorder_along_axis(clv_axis s, int64_t first_index, int64_t step,
                                          const float *x, float *y) {
  int64_t extent = static_cast<int64_t>(s.extent);
  GPU_FOR(i, s.outer * s.extent * s.inner) {
    int64_t source = (first_index + step * static_cast<int64_t>(i / s.inner % s.extent)) % extent;
    source += source < 0 ? extent : 0;
    size_t row = i / s.inner / s.extent * s.extent + static_cast<size_t>(source);
    y[i] = x[row * s.inner + i % s.inner];
  }
}

clv_code clv_gpu_reorder_along_axis(clv_gpu *g, const clv_axis *s, int64_t first_index,
                                    int64_t step, const float *x, float *y, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(s->outer * s->extent * s->inner), GPU_BLOCK, err,
                    reorder_along_axis, *s, first_index, step, x, y);
}

/* Returns the index of the first value along the dimension, for value o of [outer, inner]. */
static __device__ inline size_t first_index_of_column(const clv_axis &s, size_t o) {
  return o / s.inner * s.extent * s.inner + o % s.inner;
}

static __global__ void write_running_sums(clv_axis s, bool sums_from_end, const float *x, float *y) {
  GPU_FOR(o, s.outer * s.inner) {
    size_t first_index = first_index_of_column(s, o);
    double sum = 0;
    for (size_t e = 0; e < s.extent; e++) {
      size_t index = first_index + (sums_from_end ? s.extent - 1 - e : e) * s.inner;
      sum += static_cast<double>(x[index]);
      y[index] = static_cast<float>(sum);
    }
  }
}

clv_code clv_gpu_cumsum(clv_gpu *g, const clv_axis *s, bool sums_from_end, const float *x, float *y,
                        clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(s->outer * s->inner), GPU_BLOCK, err, write_running_sums,
                    *s, sums_from_end, x, y);
}

static __global__ void compute_variances(clv_axis s, double divisor, const float *x,
                                         const float *dy, float *y) {
  GPU_FOR(o, s.outer * s.inner) {
    size_t first_index = first_index_of_column(s, o);
    double mean = 0, square_sum = 0;
    for (size_t e = 0; e < s.extent; e++) mean += static_cast<double>(x[first_index + e * s.inner]);
    mean /= static_cast<double>(s.extent);
    for (size_t e = 0; e < s.extent; e++) {
      size_t index = first_index + e * s.inner;
      double distance = static_cast<double>(x[index]) - mean;
      if (dy)
        y[index] = static_cast<float>(2 * static_cast<double>(dy[o]) / divisor * distance);
      else
        square_sum += distance * distance;
    }
    if (!dy) y[o] = static_cast<float>(square_sum / divisor);
  }
}

clv_code clv_gpu_var(clv_gpu *g, const clv_axis *s, double divisor, const float *x, const float *dy,
                     float *y, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(s->outer * s->inner), GPU_BLOCK, err, compute_variances, *s,
                    divisor, x, dy, y);
}
