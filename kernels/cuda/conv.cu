/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/conv_int.h"
#include "kernels/cuda/device_int.cuh"

template <typename D>
static __global__ void im2col(cuda_im2col_args c, const float *x, D *columns, size_t n) {
  const clv_window &s = c.window;
  int64_t n_taps = s.kernel[0] * s.kernel[1], image_size = s.oh * s.ow;
  GPU_FOR(p, n) {
    int64_t index = static_cast<int64_t>(p), o = index % image_size,
            tap = index / image_size % n_taps;
    int64_t channels = static_cast<int64_t>(c.n_channels);
    int64_t channel = index / image_size / n_taps % channels,
            sample = index / image_size / n_taps / channels;
    int64_t h = o / s.ow * s.stride[0] - s.pad[0] + tap / s.kernel[1] * s.dilation[0];
    int64_t w = o % s.ow * s.stride[1] - s.pad[1] + tap % s.kernel[1] * s.dilation[1];
    bool is_inside = h >= 0 && h < s.h && w >= 0 && w < s.w;
    columns[p] = gpu_from_float<D>(
        is_inside
            ? x[sample * static_cast<int64_t>(c.sample_stride) + (channel * s.h + h) * s.w + w]
            : 0);
  }
}

template <typename D>
static clv_code launch_im2col(clv_gpu *g, const cuda_im2col_args *c, const float *x, void *columns,
                              clv_err *err) {
  const clv_window *s = &c->window;
  size_t n = c->n_samples * c->n_channels *
             static_cast<size_t>(s->kernel[0] * s->kernel[1] * s->oh * s->ow);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, im2col<D>, *c, x,
                    gpu_cast_output<D>(columns), n);
}

clv_code clv_gpu_im2col(clv_gpu *g, const cuda_im2col_args *c, const float *x, void *columns, bool bf16,
                        clv_err *err) {
  return GPU_BY_TYPE(bf16, launch_im2col, g, c, x, columns, err);
}

static __global__ void col2im(cuda_im2col_args c, const float *columns, float *x, size_t n) {
  const clv_window &s = c.window;
  int64_t n_taps = s.kernel[0] * s.kernel[1], image_size = s.oh * s.ow;
  GPU_FOR(p, n) {
    int64_t index = static_cast<int64_t>(p), h = index / s.w % s.h, w = index % s.w;
    int64_t channels = static_cast<int64_t>(c.n_channels);
    int64_t channel = index / s.w / s.h % channels, sample = index / s.w / s.h / channels;
    const float *sample_columns = columns + (sample * channels + channel) * n_taps * image_size;
    double sum = 0;
    for (int64_t u = 0; u < s.kernel[0]; u++) {
      int64_t i = h + s.pad[0] - u * s.dilation[0];
      if (i < 0 || i % s.stride[0] || i / s.stride[0] >= s.oh) continue;
      for (int64_t v = 0; v < s.kernel[1]; v++) {
        int64_t j = w + s.pad[1] - v * s.dilation[1];
        if (j < 0 || j % s.stride[1] || j / s.stride[1] >= s.ow) continue;
        sum += static_cast<double>(sample_columns[(u * s.kernel[1] + v) * image_size +
                                                  i / s.stride[0] * s.ow + j / s.stride[1]]);
      }
    }
    x[sample * static_cast<int64_t>(c.sample_stride) + (channel * s.h + h) * s.w + w] =
        static_cast<float>(sum);
  }
}

clv_code clv_gpu_col2im(clv_gpu *g, const cuda_im2col_args *c, const float *columns, float *x,
                        clv_err *err) {
  size_t n = c->n_samples * c->n_channels * static_cast<size_t>(c->window.h * c->window.w);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, col2im, *c, columns, x, n);
}

template <typename T>
static __global__ void add_bias(const float *bias, T *y, size_t n, size_t channels, size_t inner,
                                bool has_relu) {
  GPU_FOR(i, n * channels * inner) {
    float value = gpu_to_float(y[i]) + bias[i / inner % channels];
    y[i] = gpu_from_float<T>(has_relu && value <= 0 ? 0 : value);
  }
}

template <typename T>
static clv_code launch_add_bias(clv_gpu *g, const float *bias, void *y, size_t n, size_t channels,
                                size_t inner, bool has_relu, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n * channels * inner), GPU_BLOCK, err, add_bias<T>, bias,
                    gpu_cast_output<T>(y), n, channels, inner, has_relu);
}

clv_code clv_gpu_add_bias(clv_gpu *g, bool channels_last, const float *bias, void *y, size_t n,
                          size_t channels, size_t inner, bool has_relu, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_add_bias, g, bias, y, n, channels, inner, has_relu, err);
}
