/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/batchnorm_int.h"
#include "kernels/cuda/device_int.cuh"

static const cuda_pair *cast_partial_sums(const void *partial_sums) {
  return static_cast<const cuda_pair *>(partial_sums);
}

static __device__ inline double count_channel_values(const cuda_sum_layout &s) {
  return static_cast<double>(s.n * s.inner);
}

static __device__ inline size_t channel_of(const cuda_sum_layout &s, size_t index) {
  return index / s.inner % s.channels;
}

/* ---- statistics of the channels -------------------------------------------------------------- */

/* Returns the terms x - x0 and (x - x0)^2 of two sums, where x0 is the channel's first value.
 * Because x0 is subtracted, the variance loses few digits, and one pass over x is enough. */
template <typename T>
struct moment_term {
  const T *x;
  size_t inner;
  __device__ double first_value(size_t c) const {
    float value = gpu_to_float(x[c * inner]);
    return isfinite(value) ? static_cast<double>(value) : 0;
  }
  __device__ cuda_pair operator()(size_t index, size_t c) const {
    double d = static_cast<double>(gpu_to_float(x[index])) - first_value(c);
    return {d, d * d};
  }
};

template <typename T>
static __global__ void put_moments(cuda_batchnorm b, moment_term<T> term,
                                   const cuda_pair *partial_sums, double *saved,
                                   float *running_mean, float *running_var, int64_t *n_batches_tracked) {
  double m = b.momentum, n_channel_values = count_channel_values(b.sums);
  GPU_FOR(c, b.sums.channels) {
    cuda_pair sum = gpu_add_partial_sums(b.sums, partial_sums, c);
    double mean = term.first_value(c) + sum.first / n_channel_values;
    double square_sum = sum.second - sum.first * (sum.first / n_channel_values);
    if (square_sum < 0) square_sum = 0; /* rounding may have made it negative; a NaN stays a NaN */
    saved[2 * c] = mean;
    saved[2 * c + 1] = 1 / sqrt(square_sum / n_channel_values + b.eps);
    running_mean[c] = static_cast<float>(m * mean + (1 - m) * static_cast<double>(running_mean[c]));
    running_var[c] = static_cast<float>(m * (square_sum / (n_channel_values - 1)) +
                                        (1 - m) * static_cast<double>(running_var[c]));
    if (c == 0) ++*n_batches_tracked;
  }
}

template <typename T>
static clv_code launch_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x,
                                     void *partial_sums, double *saved, float *running_mean,
                                     float *running_var, int64_t *n_batches_tracked, clv_err *err) {
  moment_term<T> term = {gpu_cast_input<T>(x), b->sums.inner};
  CLV_TRY(gpu_compute_partial_sums(g, &b->sums, term, partial_sums, err));
  return gpu_launch(g, gpu_count_blocks(b->sums.channels), GPU_BLOCK, err, put_moments<T>, *b, term,
                    cast_partial_sums(partial_sums), saved, running_mean, running_var, n_batches_tracked);
}

clv_code clv_gpu_compute_batch_moments(clv_gpu *g, const cuda_batchnorm *b, const void *x,
                                       void *partial_sums, double *saved, float *running_mean,
                                       float *running_var, int64_t *n_batches_tracked, clv_err *err) {
  return GPU_BY_TYPE(b->channels_last, launch_batch_moments, g, b, x, partial_sums, saved,
                     running_mean, running_var, n_batches_tracked, err);
}

static __global__ void put_running_moments(cuda_batchnorm b, const float *mean, const float *var,
                                           double *saved) {
  GPU_FOR(c, b.sums.channels) {
    saved[2 * c] = static_cast<double>(mean[c]);
    saved[2 * c + 1] = 1 / sqrt(static_cast<double>(var[c]) + b.eps);
  }
}

clv_code clv_gpu_read_running_moments(clv_gpu *g, const cuda_batchnorm *b,
                                      const float *running_mean, const float *running_var,
                                      double *saved, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(b->sums.channels), GPU_BLOCK, err, put_running_moments, *b,
                    running_mean, running_var, saved);
}

/* ---- normalised values ----------------------------------------------------------------------- */

static __device__ inline double normalised_value(float x, const double *saved, size_t c) {
  return (static_cast<double>(x) - saved[2 * c]) * saved[2 * c + 1];
}

/* Returns the normalised value times w plus bias, rounded to T, as if it were written to memory
 * before an addend is added. */
template <typename T>
static __device__ inline float rounded_output(float x, const float *w, const float *bias,
                                              const double *saved, size_t c) {
  return gpu_round<T>(static_cast<float>(normalised_value(x, saved, c) * static_cast<double>(w[c]) +
                                         static_cast<double>(bias[c])));
}

template <typename T>
static __global__ void normalise_channels(cuda_batchnorm b, const T *x, const float *w,
                                          const float *bias, const double *saved, const T *addend,
                                          T *y) {
  GPU_FOR(index, b.sums.n * b.sums.channels * b.sums.inner) {
    float value =
        rounded_output<T>(gpu_to_float(x[index]), w, bias, saved, channel_of(b.sums, index));
    if (addend) value += gpu_to_float(addend[index]);
    y[index] = gpu_from_float<T>(b.has_relu && value <= 0 ? 0 : value);
  }
}

template <typename T>
static clv_code launch_normalise_channels(clv_gpu *g, const cuda_batchnorm *b, const void *x,
                                          const float *w, const float *bias, const double *saved,
                                          const void *addend, void *y, clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, normalise_channels<T>, *b,
                    gpu_cast_input<T>(x), w, bias, saved, gpu_cast_input<T>(addend),
                    gpu_cast_output<T>(y));
}

clv_code clv_gpu_batchnorm(clv_gpu *g, const cuda_batchnorm *b, const void *x, const float *w,
                           const float *bias, const double *saved, const void *addend, void *y,
                           clv_err *err) {
  return GPU_BY_TYPE(b->channels_last, launch_normalise_channels, g, b, x, w, bias, saved, addend,
                     y, err);
}

/* ---- gradients of the parameters and of the input -------------------------------------------- */

/* As cuda_gradient, but with pointers to values of type T. */
template <typename T>
struct typed_gradient {
  cuda_relu_gate gate;
  const T *x, *y, *dy;
  const float *w, *bias;
  const double *saved;
};
template <typename T>
static typed_gradient<T> typed_gradient_of(const cuda_gradient *f) {
  return {f->gate,
          gpu_cast_input<T>(f->x),
          gpu_cast_input<T>(f->y),
          gpu_cast_input<T>(f->dy),
          f->w,
          f->bias,
          f->saved};
}

/* Returns dy at the index if the gradient passes the relu, else 0. All gradients pass if no relu
 * follows. */
template <typename T>
static __device__ inline float pass_relu(const typed_gradient<T> &f, size_t index, size_t c) {
  bool passes_relu = f.gate == GPU_NO_RELU ||
                     !((f.gate == GPU_RELU_BY_Y ? gpu_to_float(f.y[index])
                                                : rounded_output<T>(gpu_to_float(f.x[index]), f.w,
                                                                    f.bias, f.saved, c)) <= 0);
  return passes_relu ? gpu_to_float(f.dy[index]) : 0;
}

/* Returns the terms of the gradients of bias and weight, and writes the gradient that passes the
 * relu to gated_dy, unless gated_dy is NULL. */
template <typename T>
struct gradient_term {
  typed_gradient<T> grad;
  T *gated_dy;
  __device__ cuda_pair operator()(size_t index, size_t c) const {
    float dy = pass_relu(grad, index, c);
    double d = static_cast<double>(dy);
    if (gated_dy) gated_dy[index] = gpu_from_float<T>(dy);
    return {d, d * normalised_value(gpu_to_float(grad.x[index]), grad.saved, c)};
  }
};

static __global__ void put_gradient_totals(cuda_sum_layout s, const cuda_pair *partial_sums,
                                           cuda_pair *totals, float *dw, float *db,
                                           bool accumulate) {
  GPU_FOR(c, s.channels) {
    cuda_pair sum = gpu_add_partial_sums(s, partial_sums, c);
    totals[c] = sum;
    if (!dw) continue;
    gpu_store_or_add(&dw[c], sum.second, accumulate);
    gpu_store_or_add(&db[c], sum.first, accumulate);
  }
}

template <typename T>
static clv_code sum_gradient_slabs(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *grad,
                                   void *partial_sums, void *gated_dy, clv_err *err) {
  gradient_term<T> term = {typed_gradient_of<T>(grad), gpu_cast_output<T>(gated_dy)};
  return gpu_compute_partial_sums(g, &b->sums, term, partial_sums, err);
}

clv_code clv_gpu_batchnorm_param_grads(clv_gpu *g, const cuda_batchnorm *b,
                                       const cuda_gradient *grad, void *partial_sums,
                                       cuda_pair *totals, void *gated_dy, float *dw, float *db,
                                       bool accumulate, clv_err *err) {
  CLV_TRY(
      GPU_BY_TYPE(b->channels_last, sum_gradient_slabs, g, b, grad, partial_sums, gated_dy, err));
  return gpu_launch(g, gpu_count_blocks(b->sums.channels), GPU_BLOCK, err, put_gradient_totals,
                    b->sums, cast_partial_sums(partial_sums), totals, dw, db, accumulate);
}

/* Computes dx. Outside training the statistics are constants, so dx has no terms from them. */
template <typename T>
static __global__ void normalise_channels_back(cuda_batchnorm b, typed_gradient<T> grad,
                                               const cuda_pair *totals, T *dx) {
  GPU_FOR(index, b.sums.n * b.sums.channels * b.sums.inner) {
    size_t c = channel_of(b.sums, index);
    double inverse_std = grad.saved[2 * c + 1], mean_term = 0;
    double xhat = normalised_value(gpu_to_float(grad.x[index]), grad.saved, c);
    if (b.is_training)
      mean_term = (totals[c].first + xhat * totals[c].second) / count_channel_values(b.sums);
    dx[index] = gpu_from_float<T>(
        static_cast<float>((static_cast<double>(pass_relu(grad, index, c)) - mean_term) *
                           inverse_std * static_cast<double>(grad.w[c])));
  }
}

template <typename T>
static clv_code launch_normalise_channels_back(clv_gpu *g, const cuda_batchnorm *b,
                                               const cuda_gradient *grad, const cuda_pair *totals,
                                               void *dx, clv_err *err) {
  size_t n = b->sums.n * b->sums.channels * b->sums.inner;
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, normalise_channels_back<T>, *b,
                    typed_gradient_of<T>(grad), totals, gpu_cast_output<T>(dx));
}

clv_code clv_gpu_batchnorm_back(clv_gpu *g, const cuda_batchnorm *b, const cuda_gradient *grad,
                                const cuda_pair *totals, void *dx, clv_err *err) {
  return GPU_BY_TYPE(b->channels_last, launch_normalise_channels_back, g, b, grad, totals, dx, err);
}
