/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/rows_int.h"

/* ---- softmax and log_softmax ----------------------------------------------------------------- */

static __global__ void softmax(const float *xs, float *ys, size_t rows, size_t width, bool is_log_softmax) {
  GPU_ROWS(r, rows) {
    const float *x = xs + r * width;
    float thread_max = -INFINITY;
    GPU_ROW(i, width) thread_max = gpu_max_or_nan(thread_max, x[i]);
    double row_max = static_cast<double>(gpu_block_max(thread_max)), sum = 0;
    GPU_ROW(i, width) sum += exp(static_cast<double>(x[i]) - row_max);
    sum = gpu_block_sum(sum);
    double log_sum = log(sum);
    GPU_ROW(i, width) {
      double difference = static_cast<double>(x[i]) - row_max;
      ys[r * width + i] = static_cast<float>(is_log_softmax ? difference - log_sum : exp(difference) / sum);
    }
  }
}

clv_code clv_gpu_softmax(clv_gpu *g, const float *x, float *y, size_t rows, size_t width,
                         bool is_log_softmax, clv_err *err) {
  return gpu_launch(g, gpu_count_row_blocks(rows), gpu_count_row_threads(width), err, softmax, x, y,
                    rows, width, is_log_softmax);
}

static __global__ void softmax_back(const float *ys, const float *dys, float *dxs, size_t rows,
                                    size_t width, bool is_log_softmax) {
  GPU_ROWS(r, rows) {
    const float *y = ys + r * width, *dy = dys + r * width;
    double sum = 0;
    GPU_ROW(i, width)
    sum += static_cast<double>(dy[i]) * (is_log_softmax ? 1 : static_cast<double>(y[i]));
    sum = gpu_block_sum(sum);
    GPU_ROW(i, width) {
      double v = static_cast<double>(y[i]), d = static_cast<double>(dy[i]);
      dxs[r * width + i] = static_cast<float>(is_log_softmax ? d - exp(v) * sum : v * (d - sum));
    }
  }
}

clv_code clv_gpu_softmax_back(clv_gpu *g, const float *y, const float *dy, float *dx, size_t rows,
                              size_t width, bool is_log_softmax, clv_err *err) {
  return gpu_launch(g, gpu_count_row_blocks(rows), gpu_count_row_threads(width), err, softmax_back,
                    y, dy, dx, rows, width, is_log_softmax);
}

/* ---- normalisation of rows ------------------------------------------------------------------- */

/* Computes the mean and the inverse standard deviation of a row. The mean is computed first, so
 * that the squares of distances from it lose no digits if the mean is large. */
static __device__ inline void compute_row_moments(const cuda_norm &n, const float *x,
                                                  double *ret_mean, double *ret_inverse_std) {
  double sum = 0, square_sum = 0, mean = 0, width = static_cast<double>(n.width);
  if (n.is_centred) {
    GPU_ROW(i, n.width) sum += static_cast<double>(x[i]);
    mean = gpu_block_sum(sum) / width;
  }
  GPU_ROW(i, n.width) {
    double d = static_cast<double>(x[i]) - mean;
    square_sum += d * d;
  }
  *ret_mean = mean;
  *ret_inverse_std = 1 / sqrt(gpu_block_sum(square_sum) / width + n.eps);
}

/* Returns the index of the weight of value i of row r. Grouped: a weight belongs to a channel. */
template <bool Grouped>
static __device__ inline size_t weight_index(const cuda_norm &n, size_t r, size_t i) {
  if constexpr (!Grouped) return i;
  return r % n.groups * (n.width / n.inner) + i / n.inner;
}

template <bool Grouped>
static __global__ void normalise_rows(cuda_norm n, const float *xs, const float *w, const float *b,
                                      float *ys, double *saved) {
  GPU_ROWS(r, n.rows) {
    const float *x = xs + r * n.width;
    double mean, inverse_std;
    compute_row_moments(n, x, &mean, &inverse_std);
    GPU_ROW(i, n.width) {
      size_t c = weight_index<Grouped>(n, r, i);
      double y =
          (static_cast<double>(x[i]) - mean) * inverse_std * (w ? static_cast<double>(w[c]) : 1);
      ys[r * n.width + i] = static_cast<float>(b ? y + static_cast<double>(b[c]) : y);
    }
    if (!saved || threadIdx.x) continue;
    saved[2 * r] = mean;
    saved[2 * r + 1] = inverse_std;
  }
}

template <bool Grouped>
static clv_code launch_normalise_rows(clv_gpu *g, const cuda_norm *n, const float *x,
                                      const float *w, const float *b, float *y, double *saved,
                                      clv_err *err) {
  return gpu_launch(g, gpu_count_row_blocks(n->rows), gpu_count_row_threads(n->width), err,
                    normalise_rows<Grouped>, *n, x, w, b, y, saved);
}

clv_code clv_gpu_normalise_rows(clv_gpu *g, const cuda_norm *n, const float *x, const float *w,
                                const float *b, float *y, double *saved, clv_err *err) {
  return (n->groups * n->inner > 1 ? launch_normalise_rows<true>
                                   : launch_normalise_rows<false>)(g, n, x, w, b, y, saved, err);
}

/* Computes dx. With g = dy w and xhat = (x - mean) inverse_std: dx = inverse_std (g - mean(g) -
 * xhat mean(g xhat)). If x was not centred, mean is 0 and mean(g) is left out. */
template <bool Grouped>
static __global__ void normalise_rows_back(cuda_norm n, const float *xs, const float *w,
                                           const float *dys, const double *saved, float *dxs) {
  GPU_ROWS(r, n.rows) {
    const float *x = xs + r * n.width, *dy = dys + r * n.width;
    double mean = saved[2 * r], inverse_std = saved[2 * r + 1];
    cuda_pair sum = {0, 0};
    GPU_ROW(i, n.width) {
      double weight = w ? static_cast<double>(w[weight_index<Grouped>(n, r, i)]) : 1;
      double gradient = static_cast<double>(dy[i]) * weight;
      sum += cuda_pair{gradient, gradient * ((static_cast<double>(x[i]) - mean) * inverse_std)};
    }
    sum = gpu_block_sum(sum);
    double sum_g = n.is_centred ? sum.first : 0, width = static_cast<double>(n.width);
    GPU_ROW(i, n.width) {
      double weight = w ? static_cast<double>(w[weight_index<Grouped>(n, r, i)]) : 1;
      double gradient = static_cast<double>(dy[i]) * weight;
      double xhat = (static_cast<double>(x[i]) - mean) * inverse_std;
      dxs[r * n.width + i] =
          static_cast<float>(inverse_std * (gradient - (sum_g + xhat * sum.second) / width));
    }
  }
}

template <bool Grouped>
static clv_code launch_normalise_rows_back(clv_gpu *g, const cuda_norm *n, const float *x,
                                           const float *w, const float *dy, const double *saved,
                                           float *dx, clv_err *err) {
  return gpu_launch(g, gpu_count_row_blocks(n->rows), gpu_count_row_threads(n->width), err,
                    normalise_rows_back<Grouped>, *n, x, w, dy, saved, dx);
}

clv_code clv_gpu_normalise_rows_back(clv_gpu *g, const cuda_norm *n, const float *x, const float *w,
                                     const float *dy, const double *saved, float *dx,
                                     clv_err *err) {
  return (n->groups * n->inner > 1
              ? launch_normalise_rows_back<true>
              : launch_normalise_rows_back<false>)(g, n, x, w, dy, saved, dx, err);
}

/* Returns the terms of the gradients of bias and weight. */
struct norm_term {
  const float *x, *dy;
  const double *saved;
  size_t width;
  __device__ cuda_pair operator()(size_t index, size_t) const {
    size_t r = index / width;
    double d = static_cast<double>(dy[index]);
    return {d, d * ((static_cast<double>(x[index]) - saved[2 * r]) * saved[2 * r + 1])};
  }
};

static __global__ void put_norm_weight_grads(cuda_sum_layout s, const cuda_pair *partial_sums, float *dw,
                                             float *db, bool accumulate) {
  GPU_FOR(c, s.channels) {
    cuda_pair sum = gpu_add_partial_sums(s, partial_sums, c);
    gpu_store_or_add(&dw[c], sum.second, accumulate);
    if (db) gpu_store_or_add(&db[c], sum.first, accumulate);
  }
}

clv_code clv_gpu_norm_param_grads(clv_gpu *g, const cuda_norm *n, const float *x, const float *dy,
                                  const double *saved, void *partial_sums, float *dw, float *db,
                                  bool accumulate, clv_err *err) {
  cuda_sum_layout s = gpu_norm_sum_layout(n);
  CLV_TRY(gpu_compute_partial_sums(g, &s, norm_term{x, dy, saved, n->width}, partial_sums, err));
  return gpu_launch(g, gpu_count_blocks(s.channels), GPU_BLOCK, err, put_norm_weight_grads, s,
                    static_cast<const cuda_pair *>(partial_sums), dw, db, accumulate);
}
