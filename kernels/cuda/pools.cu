/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools and means. In a backward each thread computes the gradient of one input, from all windows
 * that contain the input, so no two threads write to the same value.
 */
#include <math.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/pools_int.h"

static size_t count_images(const clv_window *s) { return static_cast<size_t>(s->n * s->c); }
static size_t count_inputs(const clv_window *s) {
  return count_images(s) * static_cast<size_t>(s->h * s->w);
}
static size_t count_outputs(const clv_window *s) {
  return count_images(s) * static_cast<size_t>(s->oh * s->ow);
}

/* Indices of positions or windows of an axis, from begin to end - 1. */
struct index_range {
  int64_t begin, end;
};
/* Returns the positions, of an axis of `extent` positions, that are in the window that begins at
 * position `first`. */
static __device__ inline index_range find_covered_positions(int64_t first, int64_t kernel,
                                                            int64_t extent) {
  int64_t end = first + kernel;
  return {first < 0 ? 0 : first, end < extent ? end : extent};
}

/* Returns the windows, of n_windows along an axis, that cover position `at`. */
static __device__ inline index_range find_covering_windows(int64_t at, int64_t kernel,
                                                           int64_t stride, int64_t pad,
                                                           int64_t n_windows) {
  int64_t last = (at + pad) / stride, first = at + pad - kernel + 1;
  first = first <= 0 ? 0 : (first + stride - 1) / stride;
  return {first, last + 1 < n_windows ? last + 1 : n_windows};
}

/* Position of a value in its image, and where the values of its channel are in another tensor,
 * whose images have n_positions positions. */
struct image_position {
  int64_t row, column;
  size_t channel_start; /* index of the channel's first value */
  size_t step;          /* distance between neighbouring values of the channel */
};
template <typename T>
static __device__ inline image_position image_position_of(const clv_window &s, size_t o,
                                                          int64_t rows, int64_t columns,
                                                          int64_t n_positions) {
  constexpr bool channels_last = !std::is_same<T, float>::value;
  int64_t at = static_cast<int64_t>(o), c = channels_last ? at % s.c : 0;
  if (channels_last) at /= s.c;
  int64_t image = at / columns / rows;
  return {at / columns % rows, at % columns,
          static_cast<size_t>(channels_last ? image * n_positions * s.c + c : image * n_positions),
          channels_last ? static_cast<size_t>(s.c) : 1};
}

static __device__ inline size_t value_index(const image_position &at, int64_t position) {
  return at.channel_start + static_cast<size_t>(position) * at.step;
}

/* ---- max pools ------------------------------------------------------------------------------- */

template <typename T>
static __global__ void maxpool(clv_window s, const T *x, T *y, int64_t *argmax, size_t n) {
  GPU_FOR(o, n) {
    image_position out = image_position_of<T>(s, o, s.oh, s.ow, s.h * s.w);
    index_range rows = find_covered_positions(out.row * s.stride[0] - s.pad[0], s.kernel[0], s.h);
    index_range columns =
        find_covered_positions(out.column * s.stride[1] - s.pad[1], s.kernel[1], s.w);
    float largest = -INFINITY;
    int64_t at = rows.begin * s.w + columns.begin;
    for (int64_t h = rows.begin; h < rows.end; h++)
      for (int64_t w = columns.begin; w < columns.end; w++) {
        float value = gpu_to_float(x[value_index(out, h * s.w + w)]);
        if (!(value > largest) && value == value) continue;
        largest = value;
        at = h * s.w + w;
      }
    y[o] = gpu_from_float<T>(largest);
    if (argmax) argmax[o] = at;
  }
}

template <typename T>
static clv_code launch_maxpool(clv_gpu *g, const clv_window *s, const void *x, void *y,
                               int64_t *argmax, clv_err *err) {
  size_t n = count_outputs(s);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, maxpool<T>, *s, gpu_cast_input<T>(x),
                    gpu_cast_output<T>(y), argmax, n);
}

clv_code clv_gpu_maxpool(clv_gpu *g, bool channels_last, const clv_window *s, const void *x,
                         void *y, int64_t *argmax, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_maxpool, g, s, x, y, argmax, err);
}

template <typename T>
static __global__ void maxpool_back(clv_window s, const T *dy, const int64_t *argmax, T *dx,
                                    size_t n) {
  GPU_FOR(p, n) {
    image_position in = image_position_of<T>(s, p, s.h, s.w, s.oh * s.ow);
    index_range rows = find_covering_windows(in.row, s.kernel[0], s.stride[0], s.pad[0], s.oh);
    index_range columns =
        find_covering_windows(in.column, s.kernel[1], s.stride[1], s.pad[1], s.ow);
    int64_t at = in.row * s.w + in.column;
    float sum = 0;
    for (int64_t i = rows.begin; i < rows.end; i++)
      for (int64_t j = columns.begin; j < columns.end; j++) {
        size_t o = value_index(in, i * s.ow + j);
        if (argmax[o] == at) sum += gpu_to_float(dy[o]);
      }
    dx[p] = gpu_from_float<T>(sum);
  }
}

template <typename T>
static clv_code launch_maxpool_back(clv_gpu *g, const clv_window *s, const void *dy,
                                    const int64_t *argmax, void *dx, clv_err *err) {
  size_t n = count_inputs(s);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, maxpool_back<T>, *s,
                    gpu_cast_input<T>(dy), argmax, gpu_cast_output<T>(dx), n);
}

clv_code clv_gpu_maxpool_back(clv_gpu *g, bool channels_last, const clv_window *s, const void *dy,
                              const int64_t *argmax, void *dx, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_maxpool_back, g, s, dy, argmax, dx, err);
}

/* ---- average pools --------------------------------------------------------------------------- */

template <typename T>
static __global__ void avgpool(clv_window s, const T *x, T *y, size_t n) {
  double n_taps = static_cast<double>(s.kernel[0] * s.kernel[1]);
  GPU_FOR(o, n) {
    image_position out = image_position_of<T>(s, o, s.oh, s.ow, s.h * s.w);
    index_range rows = find_covered_positions(out.row * s.stride[0] - s.pad[0], s.kernel[0], s.h);
    index_range columns =
        find_covered_positions(out.column * s.stride[1] - s.pad[1], s.kernel[1], s.w);
    double sum = 0;
    for (int64_t h = rows.begin; h < rows.end; h++)
      for (int64_t w = columns.begin; w < columns.end; w++)
        sum += static_cast<double>(gpu_to_float(x[value_index(out, h * s.w + w)]));
    y[o] = gpu_from_float<T>(static_cast<float>(sum / n_taps));
  }
}

template <typename T>
static clv_code launch_avgpool(clv_gpu *g, const clv_window *s, const void *x, void *y,
                               clv_err *err) {
  size_t n = count_outputs(s);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, avgpool<T>, *s, gpu_cast_input<T>(x),
                    gpu_cast_output<T>(y), n);
}

clv_code clv_gpu_avgpool(clv_gpu *g, bool channels_last, const clv_window *s, const void *x,
                         void *y, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_avgpool, g, s, x, y, err);
}

template <typename T>
static __global__ void avgpool_back(clv_window s, const T *dy, T *dx, size_t n) {
  double n_taps = static_cast<double>(s.kernel[0] * s.kernel[1]);
  GPU_FOR(p, n) {
    image_position in = image_position_of<T>(s, p, s.h, s.w, s.oh * s.ow);
    index_range rows = find_covering_windows(in.row, s.kernel[0], s.stride[0], s.pad[0], s.oh);
    index_range columns =
        find_covering_windows(in.column, s.kernel[1], s.stride[1], s.pad[1], s.ow);
    double sum = 0;
    for (int64_t i = rows.begin; i < rows.end; i++)
      for (int64_t j = columns.begin; j < columns.end; j++)
        sum += static_cast<double>(gpu_to_float(dy[value_index(in, i * s.ow + j)]));
    dx[p] = gpu_from_float<T>(static_cast<float>(sum / n_taps));
  }
}

template <typename T>
static clv_code launch_avgpool_back(clv_gpu *g, const clv_window *s, const void *dy, void *dx,
                                    clv_err *err) {
  size_t n = count_inputs(s);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, avgpool_back<T>, *s,
                    gpu_cast_input<T>(dy), gpu_cast_output<T>(dx), n);
}

clv_code clv_gpu_avgpool_back(clv_gpu *g, bool channels_last, const clv_window *s, const void *dy,
                              void *dx, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_avgpool_back, g, s, dy, dx, err);
}

/* ---- adaptive pools and upsampling ----------------------------------------------------------- */

static size_t count_values(const clv_resample *r, const int64_t image[2]) {
  return static_cast<size_t>(r->n * r->c * image[0] * image[1]);
}

/* Returns a window in which only c, the number of channels, is set: image_position_of reads no
 * other field. */
static clv_window make_channel_count_window(const clv_resample *r) {
  clv_window s = {};
  s.c = r->c;
  return s;
}

template <typename T>
static __global__ void resample(clv_resample r, clv_window s, const T *x, T *y, size_t n) {
  GPU_FOR(o, n) {
    image_position out = image_position_of<T>(s, o, r.out[0], r.out[1], r.in[0] * r.in[1]);
    clv_taps h = clv_taps_of(&r, 0, out.row), w = clv_taps_of(&r, 1, out.column);
    double sum = 0;
    for (int64_t i = h.first; i < h.first + h.n; i++)
      for (int64_t j = w.first; j < w.first + w.n; j++)
        sum += clv_tap_weight(&h, i) * clv_tap_weight(&w, j) *
               static_cast<double>(gpu_to_float(x[value_index(out, i * r.in[1] + j)]));
    y[o] = gpu_from_float<T>(static_cast<float>(sum));
  }
}

template <typename T>
static clv_code launch_resample(clv_gpu *g, const clv_resample *r, const void *x, void *y,
                                clv_err *err) {
  size_t n = count_values(r, r->out);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, resample<T>, *r,
                    make_channel_count_window(r), gpu_cast_input<T>(x), gpu_cast_output<T>(y), n);
}

clv_code clv_gpu_resample(clv_gpu *g, bool channels_last, const clv_resample *r, const void *x,
                          void *y, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_resample, g, r, x, y, err);
}

template <typename T>
static __global__ void resample_back(clv_resample r, clv_window s, const T *dy, T *dx, size_t n) {
  GPU_FOR(p, n) {
    image_position in = image_position_of<T>(s, p, r.in[0], r.in[1], r.out[0] * r.out[1]);
    int64_t row_end, column_end, row = clv_first_reading_output(&r, 0, in.row, &row_end);
    double sum = 0;
    for (; row < row_end; row++) {
      clv_taps h = clv_taps_of(&r, 0, row);
      double row_weight = clv_tap_weight(&h, in.row);
      if (!(row_weight > 0)) continue;
      for (int64_t j = clv_first_reading_output(&r, 1, in.column, &column_end); j < column_end; j++) {
        clv_taps w = clv_taps_of(&r, 1, j);
        sum += row_weight * clv_tap_weight(&w, in.column) *
               static_cast<double>(gpu_to_float(dy[value_index(in, row * r.out[1] + j)]));
      }
    }
    dx[p] = gpu_from_float<T>(static_cast<float>(sum));
  }
}

template <typename T>
static clv_code launch_resample_back(clv_gpu *g, const clv_resample *r, const void *dy, void *dx,
                                     clv_err *err) {
  size_t n = count_values(r, r->in);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, resample_back<T>, *r,
                    make_channel_count_window(r), gpu_cast_input<T>(dy), gpu_cast_output<T>(dx), n);
}

clv_code clv_gpu_resample_back(clv_gpu *g, bool channels_last, const clv_resample *r,
                               const void *dy, void *dx, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_resample_back, g, r, dy, dx, err);
}

/* ---- means along an axis --------------------------------------------------------------------- */

/* Computes means with one thread for each output, so that neighbouring threads read neighbouring
 * values. */
template <typename T>
static __global__ void mean_per_thread(clv_axis s, const T *x, float *y) {
  GPU_FOR(o, s.outer * s.inner) {
    double sum = 0;
    for (size_t e = 0; e < s.extent; e++)
      sum += static_cast<double>(
          gpu_to_float(x[(o / s.inner * s.extent + e) * s.inner + o % s.inner]));
    y[o] = static_cast<float>(sum / static_cast<double>(s.extent));
  }
}

/* Computes means with one block of threads for each output, whose input values are adjacent. */
template <typename T>
static __global__ void mean_per_block(clv_axis s, const T *x, float *y) {
  GPU_ROWS(o, s.outer) {
    double sum = 0;
    GPU_ROW(e, s.extent) sum += static_cast<double>(gpu_to_float(x[o * s.extent + e]));
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) y[o] = static_cast<float>(sum / static_cast<double>(s.extent));
  }
}

template <typename T>
static clv_code launch_mean(clv_gpu *g, const clv_axis *s, const void *x, float *y, clv_err *err) {
  if (s->inner == 1)
    return gpu_launch(g, gpu_count_row_blocks(s->outer), gpu_count_row_threads(s->extent), err,
                      mean_per_block<T>, *s, gpu_cast_input<T>(x), y);
  return gpu_launch(g, gpu_count_blocks(s->outer * s->inner), GPU_BLOCK, err, mean_per_thread<T>,
                    *s, gpu_cast_input<T>(x), y);
}

clv_code clv_gpu_mean(clv_gpu *g, bool channels_last, const clv_axis *s, const void *x, float *y,
                      clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_mean, g, s, x, y, err);
}

template <typename T>
static __global__ void mean_back(clv_axis s, const float *dy, T *dx) {
  GPU_FOR(i, s.outer * s.extent * s.inner)
  dx[i] = gpu_from_float<T>(dy[i / s.inner / s.extent * s.inner + i % s.inner] /
                            static_cast<float>(s.extent));
}

template <typename T>
static clv_code launch_mean_back(clv_gpu *g, const clv_axis *s, const float *dy, void *dx,
                                 clv_err *err) {
  size_t n = s->outer * s->extent * s->inner;
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, mean_back<T>, *s, dy,
                    gpu_cast_output<T>(dx));
}

clv_code clv_gpu_mean_back(clv_gpu *g, bool channels_last, const clv_axis *s, const float *dy,
                           void *dx, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_mean_back, g, s, dy, dx, err);
}
