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

struct mean_term {
  const float *x;
  __device__ cuda_pair operator()(size_t at, size_t) const { return {x[at], 0}; }
};

/* The mean first: squares of distances from it lose no digits when it is large. */
struct distance_term {
  const float *x;
  const double *saved;
  __device__ cuda_pair operator()(size_t at, size_t c) const {
    double d = static_cast<double>(x[at]) - saved[2 * c];
    return {d * d, 0};
  }
};

static __global__ void put_means(cuda_sums s, const cuda_pair *parts, double *saved) {
  GPU_FOR(c, s.channels) saved[2 * c] = gpu_total(s, parts, c).first / count_of(s);
}

static __global__ void put_inverses(cuda_batchnorm b, const cuda_pair *parts, double *saved,
                                    float *running_mean, float *running_var, int64_t *tracked) {
  double m = b.momentum, count = count_of(b.sums);
  GPU_FOR(c, b.sums.channels) {
    double squares = gpu_total(b.sums, parts, c).first;
    saved[2 * c + 1] = 1 / sqrt(squares / count + b.eps);
    running_mean[c] =
        static_cast<float>(m * saved[2 * c] + (1 - m) * static_cast<double>(running_mean[c]));
    running_var[c] = static_cast<float>(m * (squares / (count - 1)) +
                                        (1 - m) * static_cast<double>(running_var[c]));
    if (c == 0) ++*tracked;
  }
}

clv_code clv_gpu_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const float *x, void *parts,
                               double *saved, float *running_mean, float *running_var,
                               int64_t *tracked, clv_err *err) {
  unsigned blocks = gpu_blocks(b->sums.channels);
  CLV_TRY(gpu_parts(g, &b->sums, mean_term{x}, parts, err));
  CLV_TRY(gpu_launch(g, blocks, GPU_BLOCK, err, put_means, b->sums, read(parts), saved));
  CLV_TRY(gpu_parts(g, &b->sums, distance_term{x, saved}, parts, err));
  return gpu_launch(g, blocks, GPU_BLOCK, err, put_inverses, *b, read(parts), saved, running_mean,
                    running_var, tracked);
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

static __global__ void normalise(cuda_sums s, const float *x, const float *w, const float *bias,
                                 const double *saved, float *y) {
  GPU_FOR(at, s.n * s.channels * s.inner) {
    size_t c = channel_of(s, at);
    double hat = (static_cast<double>(x[at]) - saved[2 * c]) * saved[2 * c + 1];
    y[at] = static_cast<float>(hat * static_cast<double>(w[c]) + static_cast<double>(bias[c]));
  }
}

clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const float *x, const float *w,
                           const float *bias, const double *saved, float *y, clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, normalise, b->sums, x, w, bias, saved, y);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Of bias and weight. */
struct gradient_term {
  const float *x, *dy;
  const double *saved;
  __device__ cuda_pair operator()(size_t at, size_t c) const {
    double d = static_cast<double>(dy[at]);
    return {d, d * ((static_cast<double>(x[at]) - saved[2 * c]) * saved[2 * c + 1])};
  }
};

clv_code clv_gpu_batchnorm_sums(clv_gpu *g, const cuda_batchnorm *b, const float *x,
                                const float *dy, const double *saved, void *parts, clv_err *err) {
  return gpu_parts(g, &b->sums, gradient_term{x, dy, saved}, parts, err);
}

static __global__ void put_totals(cuda_sums s, const cuda_pair *parts, cuda_pair *totals) {
  GPU_FOR(c, s.channels) totals[c] = gpu_total(s, parts, c);
}

/* In evaluation the statistics are constants, and their gradients no part of it. */
static __global__ void values_back(cuda_batchnorm b, const float *x, const float *w,
                                   const float *dy, const double *saved, const cuda_pair *totals,
                                   float *dx) {
  GPU_FOR(at, b.sums.n * b.sums.channels * b.sums.inner) {
    size_t c = channel_of(b.sums, at);
    double inverse = saved[2 * c + 1], common = 0;
    double hat = (static_cast<double>(x[at]) - saved[2 * c]) * inverse;
    if (b.training) common = (totals[c].first + hat * totals[c].second) / count_of(b.sums);
    dx[at] = static_cast<float>((static_cast<double>(dy[at]) - common) * inverse *
                                static_cast<double>(w[c]));
  }
}

clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const float *x, const float *w,
                                const float *dy, const double *saved, const void *parts,
                                cuda_pair *totals, float *dx, clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  if (b->training)
    CLV_TRY(gpu_launch(g, gpu_blocks(b->sums.channels), GPU_BLOCK, err, put_totals, b->sums,
                       read(parts), totals));
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, values_back, *b, x, w, dy, saved, totals, dx);
}

static __global__ void put_weights(cuda_sums s, const cuda_pair *parts, float *dw, float *db,
                                   bool accumulate) {
  GPU_FOR(c, s.channels) {
    cuda_pair sum = gpu_total(s, parts, c);
    gpu_put(&dw[c], sum.second, accumulate);
    gpu_put(&db[c], sum.first, accumulate);
  }
}

clv_code clv_gpu_batchnorm_weights_back(clv_gpu *g, const cuda_batchnorm *b, const void *parts,
                                        float *dw, float *db, bool accumulate, clv_err *err) {
  return gpu_launch(g, gpu_blocks(b->sums.channels), GPU_BLOCK, err, put_weights, b->sums,
                    read(parts), dw, db, accumulate);
}
