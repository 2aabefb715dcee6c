/* SPDX-License-Identifier: Apache-2.0
 *
 * A gradient is gathered: each value of the input looks for the windows that it is in, so that no
 * two threads write one place.
 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/pools_int.h"

static size_t images_of(const clv_window *s) { return static_cast<size_t>(s->n * s->c); }
static size_t inputs_of(const clv_window *s) {
  return images_of(s) * static_cast<size_t>(s->h * s->w);
}
static size_t outputs_of(const clv_window *s) {
  return images_of(s) * static_cast<size_t>(s->oh * s->ow);
}

/* What of 0..extent-1 the window that begins at `first` covers. */
struct span {
  int64_t begin, end;
};
static __device__ inline span covered(int64_t first, int64_t kernel, int64_t extent) {
  int64_t end = first + kernel;
  return {first < 0 ? 0 : first, end < extent ? end : extent};
}

/* The windows (of `count`) that cover place `at`. */
static __device__ inline span windows_over(int64_t at, int64_t kernel, int64_t stride, int64_t pad,
                                           int64_t count) {
  int64_t last = (at + pad) / stride, first = at + pad - kernel + 1;
  first = first <= 0 ? 0 : (first + stride - 1) / stride;
  return {first, last + 1 < count ? last + 1 : count};
}

/* ---- maxima ---------------------------------------------------------------------------------- */

static __global__ void maxpool(clv_window s, const float *xs, float *y, int64_t *where, size_t n) {
  GPU_FOR(o, n) {
    int64_t at_out = static_cast<int64_t>(o), image = at_out / (s.oh * s.ow);
    int64_t i = at_out / s.ow % s.oh, j = at_out % s.ow;
    const float *x = xs + image * s.h * s.w;
    span rows = covered(i * s.stride[0] - s.pad[0], s.kernel[0], s.h);
    span columns = covered(j * s.stride[1] - s.pad[1], s.kernel[1], s.w);
    float best = -INFINITY;
    int64_t at = rows.begin * s.w + columns.begin;
    for (int64_t h = rows.begin; h < rows.end; h++)
      for (int64_t w = columns.begin; w < columns.end; w++) {
        float value = x[h * s.w + w];
        if (!(value > best) && value == value) continue;
        best = value;
        at = h * s.w + w;
      }
    y[o] = best;
    if (where) where[o] = at;
  }
}

clv_code clv_gpu_maxpool(clv_gpu *g, const clv_window *s, const float *x, float *y, int64_t *where,
                         clv_err *err) {
  size_t n = outputs_of(s);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, maxpool, *s, x, y, where, n);
}

static __global__ void maxpool_back(clv_window s, const float *dys, const int64_t *wheres,
                                    float *dx, size_t n) {
  GPU_FOR(p, n) {
    int64_t at = static_cast<int64_t>(p) % (s.h * s.w),
            image = static_cast<int64_t>(p) / (s.h * s.w);
    span rows = windows_over(at / s.w, s.kernel[0], s.stride[0], s.pad[0], s.oh);
    span columns = windows_over(at % s.w, s.kernel[1], s.stride[1], s.pad[1], s.ow);
    const float *dy = dys + image * s.oh * s.ow;
    const int64_t *where = wheres + image * s.oh * s.ow;
    float sum = 0;
    for (int64_t i = rows.begin; i < rows.end; i++)
      for (int64_t j = columns.begin; j < columns.end; j++)
        if (where[i * s.ow + j] == at) sum += dy[i * s.ow + j];
    dx[p] = sum;
  }
}

clv_code clv_gpu_maxpool_back(clv_gpu *g, const clv_window *s, const float *dy,
                              const int64_t *where, float *dx, clv_err *err) {
  size_t n = inputs_of(s);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, maxpool_back, *s, dy, where, dx, n);
}

/* ---- means of windows ------------------------------------------------------------------------ */

static __global__ void avgpool(clv_window s, const float *xs, float *y, size_t n) {
  double taps = static_cast<double>(s.kernel[0] * s.kernel[1]);
  GPU_FOR(o, n) {
    int64_t at = static_cast<int64_t>(o), image = at / (s.oh * s.ow);
    const float *x = xs + image * s.h * s.w;
    span rows = covered(at / s.ow % s.oh * s.stride[0] - s.pad[0], s.kernel[0], s.h);
    span columns = covered(at % s.ow * s.stride[1] - s.pad[1], s.kernel[1], s.w);
    double sum = 0;
    for (int64_t h = rows.begin; h < rows.end; h++)
      for (int64_t w = columns.begin; w < columns.end; w++)
        sum += static_cast<double>(x[h * s.w + w]);
    y[o] = static_cast<float>(sum / taps);
  }
}

clv_code clv_gpu_avgpool(clv_gpu *g, const clv_window *s, const float *x, float *y, clv_err *err) {
  size_t n = outputs_of(s);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, avgpool, *s, x, y, n);
}

static __global__ void avgpool_back(clv_window s, const float *dys, float *dx, size_t n) {
  double taps = static_cast<double>(s.kernel[0] * s.kernel[1]);
  GPU_FOR(p, n) {
    int64_t at = static_cast<int64_t>(p) % (s.h * s.w),
            image = static_cast<int64_t>(p) / (s.h * s.w);
    span rows = windows_over(at / s.w, s.kernel[0], s.stride[0], s.pad[0], s.oh);
    span columns = windows_over(at % s.w, s.kernel[1], s.stride[1], s.pad[1], s.ow);
    const float *dy = dys + image * s.oh * s.ow;
    double sum = 0;
    for (int64_t i = rows.begin; i < rows.end; i++)
      for (int64_t j = columns.begin; j < columns.end; j++)
        sum += static_cast<double>(dy[i * s.ow + j]);
    dx[p] = static_cast<float>(sum / taps);
  }
}

clv_code clv_gpu_avgpool_back(clv_gpu *g, const clv_window *s, const float *dy, float *dx,
                              clv_err *err) {
  size_t n = inputs_of(s);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, avgpool_back, *s, dy, dx, n);
}

/* ---- means along an axis --------------------------------------------------------------------- */

/* A thread for each output: neighbours read neighbours. */
static __global__ void mean_across(clv_axis s, const float *x, float *y) {
  GPU_FOR(o, s.outer * s.inner) {
    double sum = 0;
    for (size_t e = 0; e < s.extent; e++)
      sum += static_cast<double>(x[(o / s.inner * s.extent + e) * s.inner + o % s.inner]);
    y[o] = static_cast<float>(sum / static_cast<double>(s.extent));
  }
}

/* A block for each output, whose values lie side by side. */
static __global__ void mean_along(clv_axis s, const float *x, float *y) {
  GPU_ROWS(o, s.outer) {
    double sum = 0;
    GPU_ROW(e, s.extent) sum += static_cast<double>(x[o * s.extent + e]);
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) y[o] = static_cast<float>(sum / static_cast<double>(s.extent));
  }
}

clv_code clv_gpu_mean(clv_gpu *g, const clv_axis *s, const float *x, float *y, clv_err *err) {
  if (s->inner == 1)
    return gpu_launch(g, gpu_blocks_of_rows(s->outer), gpu_row_threads(s->extent), err, mean_along,
                      *s, x, y);
  return gpu_launch(g, gpu_blocks(s->outer * s->inner), GPU_BLOCK, err, mean_across, *s, x, y);
}

static __global__ void mean_back(clv_axis s, const float *dy, float *dx) {
  GPU_FOR(i, s.outer * s.extent * s.inner)
  dx[i] = dy[i / s.inner / s.extent * s.inner + i % s.inner] / static_cast<float>(s.extent);
}

clv_code clv_gpu_mean_back(clv_gpu *g, const clv_axis *s, const float *dy, float *dx,
                           clv_err *err) {
  size_t n = s->outer * s->extent * s->inner;
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, mean_back, *s, dy, dx);
}
