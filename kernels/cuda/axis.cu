/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/axis_int.h"
#include "kernels/cuda/device_int.cuh"

static __global__ void move_along(clv_axis s, int64_t first, int64_t step, const float *x,
                                  float *y) {
  int64_t extent = static_cast<int64_t>(s.extent);
  GPU_FOR(i, s.outer * s.extent * s.inner) {
    int64_t from = (first + step * static_cast<int64_t>(i / s.inner % s.extent)) % extent;
    from += from < 0 ? extent : 0;
    size_t row = i / s.inner / s.extent * s.extent + static_cast<size_t>(from);
    y[i] = x[row * s.inner + i % s.inner];
  }
}

clv_code clv_gpu_move_along(clv_gpu *g, const clv_axis *s, int64_t first, int64_t step,
                            const float *x, float *y, clv_err *err) {
  return gpu_launch(g, gpu_blocks(s->outer * s->extent * s->inner), GPU_BLOCK, err, move_along, *s,
                    first, step, x, y);
}

/* Returns the index of the first value of column o. */
static __device__ inline size_t column_at(const clv_axis &s, size_t o) {
  return o / s.inner * s.extent * s.inner + o % s.inner;
}

static __global__ void add_along(clv_axis s, bool from_end, const float *x, float *y) {
  GPU_FOR(o, s.outer * s.inner) {
    size_t first = column_at(s, o);
    double sum = 0;
    for (size_t e = 0; e < s.extent; e++) {
      size_t at = first + (from_end ? s.extent - 1 - e : e) * s.inner;
      sum += static_cast<double>(x[at]);
      y[at] = static_cast<float>(sum);
    }
  }
}

clv_code clv_gpu_cumsum(clv_gpu *g, const clv_axis *s, bool from_end, const float *x, float *y,
                        clv_err *err) {
  return gpu_launch(g, gpu_blocks(s->outer * s->inner), GPU_BLOCK, err, add_along, *s, from_end, x,
                    y);
}

static __global__ void vary_along(clv_axis s, double divisor, const float *x, const float *dy,
                                  float *y) {
  GPU_FOR(o, s.outer * s.inner) {
    size_t first = column_at(s, o);
    double mean = 0, squares = 0;
    for (size_t e = 0; e < s.extent; e++) mean += static_cast<double>(x[first + e * s.inner]);
    mean /= static_cast<double>(s.extent);
    for (size_t e = 0; e < s.extent; e++) {
      size_t at = first + e * s.inner;
      double distance = static_cast<double>(x[at]) - mean;
      if (dy)
        y[at] = static_cast<float>(2 * static_cast<double>(dy[o]) / divisor * distance);
      else
        squares += distance * distance;
    }
    if (!dy) y[o] = static_cast<float>(squares / divisor);
  }
}

clv_code clv_gpu_var(clv_gpu *g, const clv_axis *s, double divisor, const float *x, const float *dy,
                     float *y, clv_err *err) {
  return gpu_launch(g, gpu_blocks(s->outer * s->inner), GPU_BLOCK, err, vary_along, *s, divisor, x,
                    dy, y);
}
