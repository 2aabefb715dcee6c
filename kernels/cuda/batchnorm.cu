/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/batchnorm_int.h"
#include "kernels/cuda/device_int.cuh"

static const cuda_pair *read_parts(const void *partial_sums) {
  return static_cast<const cuda_pair *>(partial_sums);
}

static __device__ inline double count_of(const cuda_sums &s) {
  return static_cast<double>(s.n * s.inner);
}

static __device__ inline size_t channel_of(const cuda_sums &s, size_t at) {
  return at / s.inner % s.channels;
}

/* ---- statistics of the channels -------------------------------------------------------------- */

/* Terms of the sums of x - x0 and of its square, where x0 is the channel's first value. Subtracting
 * x0 keeps digits from cancelling, so one pass is enough. */
template <typename T>
struct moment_term {
  const T *x;
  size_t inner;
  __device__ double first(size_t c) const {
    float value = gpu_get(x[c * inner]);
    return isfinite(value) ? static_cast<double>(value) : 0;
  }
  __device__ cuda_pair operator()(size_t at, size_t c) const {
    double d = static_cast<double>(gpu_get(x[at])) - first(c);
    return {d, d * d};
  }
};

template <typename T>
static __global__ void put_moments(cuda_batchnorm b, moment_term<T> term,
                                   const cuda_pair *partial_sums, double *saved,
                                   float *running_mean, float *running_var, int64_t *tracked) {
  double m = b.momentum, count = count_of(b.sums);
  GPU_FOR(c, b.sums.channels) {
    cuda_pair sum = gpu_total(b.sums, partial_sums, c);
    double mean = term.first(c) + sum.first / count;
    double squares = sum.second - sum.first * (sum.first / count);
    if (squares < 0) squares = 0; /* negative only by rounding; a NaN stays a NaN */
    saved[2 * c] = mean;
    saved[2 * c + 1] = 1 / sqrt(squares / count + b.eps);
    running_mean[c] = static_cast<float>(m * mean + (1 - m) * static_cast<double>(running_mean[c]));
    running_var[c] = static_cast<float>(m * (squares / (count - 1)) +
                                        (1 - m) * static_cast<double>(running_var[c]));
    if (c == 0) ++*tracked;
  }
}

template <typename T>
static clv_code batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x,
                              void *partial_sums, double *saved, float *running_mean,
                              float *running_var, int64_t *tracked, clv_err *err) {
  moment_term<T> term = {gpu_input<T>(x), b->sums.inner};
  CLV_TRY(gpu_compute_partial_sums(g, &b->sums, term, partial_sums, err));
  return gpu_launch(g, gpu_blocks(b->sums.channels), GPU_BLOCK, err, put_moments<T>, *b, term,
                    read_parts(partial_sums), saved, running_mean, running_var, tracked);
}

clv_code clv_gpu_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x,
                               void *partial_sums, double *saved, float *running_mean,
                               float *running_var, int64_t *tracked, clv_err *err) {
  return GPU_BY_TYPE(b->channels_last, batch_moments, g, b, x, partial_sums, saved, running_mean,
                     running_var, tracked, err);
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

/* ---- normalised values ----------------------------------------------------------------------- */

static __device__ inline double normalised_of(float x, const double *saved, size_t c) {
  return (static_cast<double>(x) - saved[2 * c]) * saved[2 * c + 1];
}

/* Returns the normalised value times w plus bias, rounded as a kernel without an added input writes
 * it. */
template <typename T>
static __device__ inline float rounded_output_of(float x, const float *w, const float *bias,
                                                 const double *saved, size_t c) {
  return gpu_round<T>(static_cast<float>(normalised_of(x, saved, c) * static_cast<double>(w[c]) +
                                         static_cast<double>(bias[c])));
}

template <typename T>
static __global__ void normalise(cuda_batchnorm b, const T *x, const float *w, const float *bias,
                                 const double *saved, const T *other, T *y) {
  GPU_FOR(at, b.sums.n * b.sums.channels * b.sums.inner) {
    float value = rounded_output_of<T>(gpu_get(x[at]), w, bias, saved, channel_of(b.sums, at));
    if (other) value += gpu_get(other[at]);
    y[at] = gpu_as<T>(b.has_relu && value <= 0 ? 0 : value);
  }
}

template <typename T>
static clv_code launch_normalise(clv_gpu *g, const cuda_batchnorm *b, const void *x, const float *w,
                                 const float *bias, const double *saved, const void *other, void *y,
                                 clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, normalise<T>, *b, gpu_input<T>(x), w, bias,
                    saved, gpu_input<T>(other), gpu_output<T>(y));
}

clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const void *x, const float *w,
                           const float *bias, const double *saved, const void *other, void *y,
                           clv_err *err) {
  return GPU_BY_TYPE(b->channels_last, launch_normalise, g, b, x, w, bias, saved, other, y, err);
}

/* ---- gradients of the parameters and of the input -------------------------------------------- */

/* As cuda_gradient, but with pointers to T, the type of the values. */
template <typename T>
struct gradient {
  cuda_gate gate;
  const T *x, *y, *dy;
  const float *w, *bias;
  const double *saved;
};
template <typename T>
static gradient<T> gradient_of(const cuda_gradient *f) {
  return {f->gate, gpu_input<T>(f->x), gpu_input<T>(f->y), gpu_input<T>(f->dy), f->w, f->bias,
          f->saved};
}

template <typename T>
static __device__ inline float gated_dy_of(const gradient<T> &f, size_t at, size_t c) {
  bool passes_gate =
      f.gate == GPU_OPEN || !((f.gate == GPU_BY_Y ? gpu_get(f.y[at])
                                                  : rounded_output_of<T>(gpu_get(f.x[at]), f.w,
                                                                         f.bias, f.saved, c)) <= 0);
  return passes_gate ? gpu_get(f.dy[at]) : 0;
}

/* Terms of the gradients of bias and weight. */
template <typename T>
struct gradient_term {
  gradient<T> from;
  T *gated_dy;
  __device__ cuda_pair operator()(size_t at, size_t c) const {
    float dy = gated_dy_of(from, at, c);
    double d = static_cast<double>(dy);
    if (gated_dy) gated_dy[at] = gpu_as<T>(dy);
    return {d, d * normalised_of(gpu_get(from.x[at]), from.saved, c)};
  }
};

static __global__ void put_totals(cuda_sums s, const cuda_pair *partial_sums, cuda_pair *totals,
                                  float *dw, float *db, bool accumulate) {
  GPU_FOR(c, s.channels) {
    cuda_pair sum = gpu_total(s, partial_sums, c);
    totals[c] = sum;
    if (!dw) continue;
    gpu_put(&dw[c], sum.second, accumulate);
    gpu_put(&db[c], sum.first, accumulate);
  }
}

template <typename T>
static clv_code gradient_parts(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                               void *partial_sums, void *gated_dy, clv_err *err) {
  gradient_term<T> term = {gradient_of<T>(from), gpu_output<T>(gated_dy)};
  return gpu_compute_partial_sums(g, &b->sums, term, partial_sums, err);
}

clv_code clv_gpu_batchnorm_totals(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                  void *partial_sums, cuda_pair *totals, void *gated_dy, float *dw,
                                  float *db, bool accumulate, clv_err *err) {
  CLV_TRY(GPU_BY_TYPE(b->channels_last, gradient_parts, g, b, from, partial_sums, gated_dy, err));
  return gpu_launch(g, gpu_blocks(b->sums.channels), GPU_BLOCK, err, put_totals, b->sums,
                    read_parts(partial_sums), totals, dw, db, accumulate);
}

/* Computes dx. In evaluation the statistics are constants, so their gradient terms are left out. */
template <typename T>
static __global__ void values_back(cuda_batchnorm b, gradient<T> from, const cuda_pair *totals,
                                   T *dx) {
  GPU_FOR(at, b.sums.n * b.sums.channels * b.sums.inner) {
    size_t c = channel_of(b.sums, at);
    double inverse = from.saved[2 * c + 1], mean_terms = 0;
    double xhat = normalised_of(gpu_get(from.x[at]), from.saved, c);
    if (b.is_training) mean_terms = (totals[c].first + xhat * totals[c].second) / count_of(b.sums);
    dx[at] =
        gpu_as<T>(static_cast<float>((static_cast<double>(gated_dy_of(from, at, c)) - mean_terms) *
                                     inverse * static_cast<double>(from.w[c])));
  }
}

template <typename T>
static clv_code launch_values_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                   const cuda_pair *totals, void *dx, clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, values_back<T>, *b, gradient_of<T>(from),
                    totals, gpu_output<T>(dx));
}

clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *from,
                                const cuda_pair *totals, void *dx, clv_err *err) {
  return GPU_BY_TYPE(b->channels_last, launch_values_back, g, b, from, totals, dx, err);
}
