/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/batchnorm_int.h"
#include "kernels/cuda/device_int.cuh"

static const cuda_pair *read(const void *parts) { return static_cast<const cuda_pair *>(parts); }

static __device__ inline double count_of(const cuda_sums &s) {
  return static_cast<double>(s.n * s.inner);
}

static __device__ inline size_t channel_of(const cuda_sums &s, size_t at) {
  return at / s.inner % s.channels;
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Sums of x less the channel's first value, and of the squares of that: what cancels below is no
 * larger than the spread of the values, and one walk is enough. */
struct moment_term {
  const float *x;
  size_t inner;
  __device__ double first(size_t c) const {
    float value = x[c * inner];
    return isfinite(value) ? static_cast<double>(value) : 0;
  }
  __device__ cuda_pair operator()(size_t at, size_t c) const {
    double d = static_cast<double>(x[at]) - first(c);
    return {d, d * d};
  }
};

static __global__ void put_moments(cuda_batchnorm b, moment_term term, const cuda_pair *parts,
                                   double *saved, float *running_mean, float *running_var,
                                   int64_t *tracked) {
  double m = b.momentum, count = count_of(b.sums);
  GPU_FOR(c, b.sums.channels) {
    cuda_pair sum = gpu_total(b.sums, parts, c);
    double mean = term.first(c) + sum.first / count;
    double squares = sum.second - sum.first * (sum.first / count);
    if (squares < 0) squares = 0; /* by rounding; NaN stays */
    saved[2 * c] = mean;
    saved[2 * c + 1] = 1 / sqrt(squares / count + b.eps);
    running_mean[c] = static_cast<float>(m * mean + (1 - m) * static_cast<double>(running_mean[c]));
    running_var[c] = static_cast<float>(m * (squares / (count - 1)) +
                                        (1 - m) * static_cast<double>(running_var[c]));
    if (c == 0) ++*tracked;
  }
}

clv_code clv_gpu_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const float *x, void *parts,
                               double *saved, float *running_mean, float *running_var,
                               int64_t *tracked, clv_err *err) {
  moment_term term = {x, b->sums.inner};
  CLV_TRY(gpu_parts(g, &b->sums, term, parts, err));
  return gpu_launch(g, gpu_blocks(b->sums.channels), GPU_BLOCK, err, put_moments, *b, term,
                    read(parts), saved, running_mean, running_var, tracked);
}

static __global__ void put_running(cuda_batchnorm b, const float *mean, const float *var,
                                   double *saved) {
  GPU_FOR(c, b.sums.channels) {
    saved[2 * c] = static_cast<double>(mean[c]);
    saved[2 * c + 1] = 1 / sqrt(static_cast<double>(var[c]) + b.eps);
  }
}

clv_code clv_gpu_running_moments(clv_gpu *g, const cuda_batchnorm *b, const float *running_mean,
                                 const float *running_var, double *saved, clv_err *err) {
  return gpu_launch(g, gpu_blocks(b->sums.channels), GPU_BLOCK, err, put_running, *b, running_mean,
                    running_var, saved);
}

/* ---- values ---------------------------------------------------------------------------------- */

static __device__ inline double hat_of(float x, const double *saved, size_t c) {
  return (static_cast<double>(x) - saved[2 * c]) * saved[2 * c + 1];
}

static __device__ inline float normal_of(float x, const float *w, const float *bias,
                                         const double *saved, size_t c) {
  return static_cast<float>(hat_of(x, saved, c) * static_cast<double>(w[c]) +
                            static_cast<double>(bias[c]));
}

static __global__ void normalise(cuda_batchnorm b, const float *x, const float *w,
                                 const float *bias, const double *saved, const float *other,
                                 float *y) {
  GPU_FOR(at, b.sums.n * b.sums.channels * b.sums.inner) {
    float value = normal_of(x[at], w, bias, saved, channel_of(b.sums, at));
    if (other) value += other[at];
    y[at] = b.relu && value <= 0 ? 0 : value;
  }
}

clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const float *x, const float *w,
                           const float *bias, const double *saved, const float *other, float *y,
                           clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, normalise, *b, x, w, bias, saved, other, y);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static __device__ inline float passed_of(const cuda_gradient &f, size_t at, size_t c) {
  bool open = f.gate == GPU_OPEN ||
              !((f.gate == GPU_BY_Y ? f.y[at] : normal_of(f.x[at], f.w, f.bias, f.saved, c)) <= 0);
  return open ? f.dy[at] : 0;
}

/* Of bias and weight. */
struct gradient_term {
  cuda_gradient from;
  float *passed;
  __device__ cuda_pair operator()(size_t at, size_t c) const {
    float dy = passed_of(from, at, c);
    double d = static_cast<double>(dy);
    if (passed) passed[at] = dy;
    return {d, d * hat_of(from.x[at], from.saved, c)};
  }
};

static __global__ void put_totals(cuda_sums s, const cuda_pair *parts, cuda_pair *totals, float *dw,
                                  float *db, bool accumulate) {
  GPU_FOR(c, s.channels) {
    cuda_pair sum = gpu_total(s, parts, c);
    totals[c] = sum;
    if (!dw) continue;
    gpu_put(&dw[c], sum.second, accumulate);
    gpu_put(&db[c], sum.first, accumulate);
  }
}

clv_code clv_gpu_batchnorm_totals(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                  void *parts, cuda_pair *totals, float *passed, float *dw,
                                  float *db, bool accumulate, clv_err *err) {
  CLV_TRY(gpu_parts(g, &b->sums, gradient_term{*from, passed}, parts, err));
  return gpu_launch(g, gpu_blocks(b->sums.channels), GPU_BLOCK, err, put_totals, b->sums,
                    read(parts), totals, dw, db, accumulate);
}

/* In evaluation the statistics are constants, and their gradients no part of it. */
static __global__ void values_back(cuda_batchnorm b, cuda_gradient from, const cuda_pair *totals,
                                   float *dx) {
  GPU_FOR(at, b.sums.n * b.sums.channels * b.sums.inner) {
    size_t c = channel_of(b.sums, at);
    double inverse = from.saved[2 * c + 1], common = 0;
    double hat = hat_of(from.x[at], from.saved, c);
    if (b.training) common = (totals[c].first + hat * totals[c].second) / count_of(b.sums);
    dx[at] = static_cast<float>((static_cast<double>(passed_of(from, at, c)) - common) * inverse *
                                static_cast<double>(from.w[c]));
  }
}

clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                const cuda_pair *totals, float *dx, clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, values_back, *b, *from, totals, dx);
}
