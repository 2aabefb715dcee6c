/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/conv_int.h"
#include "kernels/cuda/device_int.cuh"

template <typename D>
static __global__ void to_columns(cuda_columns c, const float *x, D *columns, size_t n) {
  const clv_window &s = c.window;
  int64_t taps = s.kernel[0] * s.kernel[1], image = s.oh * s.ow;
  GPU_FOR(p, n) {
    int64_t at = static_cast<int64_t>(p), o = at % image, tap = at / image % taps;
    int64_t channels = static_cast<int64_t>(c.channels);
    int64_t channel = at / image / taps % channels, sample = at / image / taps / channels;
    int64_t h = o / s.ow * s.stride[0] - s.pad[0] + tap / s.kernel[1] * s.dilation[0];
    int64_t w = o % s.ow * s.stride[1] - s.pad[1] + tap % s.kernel[1] * s.dilation[1];
    bool is_inside = h >= 0 && h < s.h && w >= 0 && w < s.w;
    columns[p] = gpu_as<D>(
        is_inside ? x[sample * static_cast<int64_t>(c.stride) + (channel * s.h + h) * s.w + w] : 0);
  }
}

template <typename D>
static clv_code launch_to_columns(clv_gpu *g, const cuda_columns *c, const float *x, void *columns,
                                  clv_err *err) {
  const clv_window *s = &c->window;
  size_t n =
      c->samples * c->channels * static_cast<size_t>(s->kernel[0] * s->kernel[1] * s->oh * s->ow);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, to_columns<D>, *c, x, gpu_output<D>(columns),
                    n);
}

clv_code clv_gpu_to_columns(clv_gpu *g, const cuda_columns *c, const float *x, void *columns,
                            bool bf16, clv_err *err) {
  return GPU_BY_TYPE(bf16, launch_to_columns, g, c, x, columns, err);
}

static __global__ void from_columns(cuda_columns c, const float *columns, float *x, size_t n) {
  const clv_window &s = c.window;
  int64_t taps = s.kernel[0] * s.kernel[1], image = s.oh * s.ow;
  GPU_FOR(p, n) {
    int64_t at = static_cast<int64_t>(p), h = at / s.w % s.h, w = at % s.w;
    int64_t channels = static_cast<int64_t>(c.channels);
    int64_t channel = at / s.w / s.h % channels, sample = at / s.w / s.h / channels;
    const float *from = columns + (sample * channels + channel) * taps * image;
    double sum = 0;
    for (int64_t u = 0; u < s.kernel[0]; u++) {
      int64_t i = h + s.pad[0] - u * s.dilation[0];
      if (i < 0 || i % s.stride[0] || i / s.stride[0] >= s.oh) continue;
      for (int64_t v = 0; v < s.kernel[1]; v++) {
        int64_t j = w + s.pad[1] - v * s.dilation[1];
        if (j < 0 || j % s.stride[1] || j / s.stride[1] >= s.ow) continue;
        sum += static_cast<double>(
            from[(u * s.kernel[1] + v) * image + i / s.stride[0] * s.ow + j / s.stride[1]]);
      }
    }
    x[sample * static_cast<int64_t>(c.stride) + (channel * s.h + h) * s.w + w] =
        static_cast<float>(sum);
  }
}

clv_code clv_gpu_from_columns(clv_gpu *g, const cuda_columns *c, const float *columns, float *x,
                              clv_err *err) {
  size_t n = c->samples * c->channels * static_cast<size_t>(c->window.h * c->window.w);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, from_columns, *c, columns, x, n);
}

template <typename T>
static __global__ void add_bias(const float *bias, T *y, size_t n, size_t channels, size_t inner,
                                bool relu) {
  GPU_FOR(i, n * channels * inner) {
    float value = gpu_get(y[i]) + bias[i / inner % channels];
    y[i] = gpu_as<T>(relu && value <= 0 ? 0 : value);
  }
}

template <typename T>
static clv_code launch_add_bias(clv_gpu *g, const float *bias, void *y, size_t n, size_t channels,
                                size_t inner, bool relu, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n * channels * inner), GPU_BLOCK, err, add_bias<T>, bias,
                    gpu_output<T>(y), n, channels, inner, relu);
}

clv_code clv_gpu_add_bias(clv_gpu *g, bool channels_last, const float *bias, void *y, size_t n,
                          size_t channels, size_t inner, bool relu, clv_err *err) {
  return GPU_BY_TYPE(channels_last, launch_add_bias, g, bias, y, n, channels, inner, relu, err);
}
