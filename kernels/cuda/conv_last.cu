/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/conv_int.h"
#include "kernels/cuda/device_int.cuh"

static __global__ void to_columns_last(cuda_last_columns c, const cuda_bf16 *x, cuda_bf16 *columns,
                                       size_t n) {
  const clv_window &s = c.window;
  int64_t channels = static_cast<int64_t>(c.channels), taps = s.kernel[0] * s.kernel[1];
  GPU_FOR(p, n) {
    int64_t at = static_cast<int64_t>(p), channel = at % channels, tap = at / channels % taps;
    int64_t o = at / channels / taps, sample = o / s.ow / s.oh;
    int64_t h = o / s.ow % s.oh * s.stride[0] - s.pad[0] + tap / s.kernel[1] * s.dilation[0];
    int64_t w = o % s.ow * s.stride[1] - s.pad[1] + tap % s.kernel[1] * s.dilation[1];
    bool is_inside = h >= 0 && h < s.h && w >= 0 && w < s.w;
    columns[p] = is_inside ? x[((sample * s.h + h) * s.w + w) * s.c + channel] : 0;
  }
}

clv_code clv_gpu_to_columns_last(clv_gpu *g, const cuda_last_columns *c, const cuda_bf16 *x,
                                 cuda_bf16 *columns, clv_err *err) {
  const clv_window *s = &c->window;
  size_t n =
      c->samples * c->channels * static_cast<size_t>(s->kernel[0] * s->kernel[1] * s->oh * s->ow);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, to_columns_last, *c, x, columns, n);
}

static __global__ void from_columns_last(cuda_last_columns c, const float *columns, cuda_bf16 *x,
                                         size_t n) {
  const clv_window &s = c.window;
  int64_t channels = static_cast<int64_t>(c.channels), taps = s.kernel[0] * s.kernel[1];
  GPU_FOR(p, n) {
    int64_t at = static_cast<int64_t>(p), channel = at % channels;
    int64_t w = at / channels % s.w, h = at / channels / s.w % s.h;
    int64_t sample = at / channels / s.w / s.h;
    double sum = 0;
    for (int64_t u = 0; u < s.kernel[0]; u++) {
      int64_t i = h + s.pad[0] - u * s.dilation[0];
      if (i < 0 || i % s.stride[0] || i / s.stride[0] >= s.oh) continue;
      for (int64_t v = 0; v < s.kernel[1]; v++) {
        int64_t j = w + s.pad[1] - v * s.dilation[1];
        if (j < 0 || j % s.stride[1] || j / s.stride[1] >= s.ow) continue;
        int64_t o = (sample * s.oh + i / s.stride[0]) * s.ow + j / s.stride[1];
        sum += static_cast<double>(columns[(o * taps + u * s.kernel[1] + v) * channels + channel]);
      }
    }
    x[((sample * s.h + h) * s.w + w) * s.c + channel] = gpu_as<cuda_bf16>(static_cast<float>(sum));
  }
}

clv_code clv_gpu_from_columns_last(clv_gpu *g, const cuda_last_columns *c, const float *columns,
                                   cuda_bf16 *x, clv_err *err) {
  size_t n = c->samples * c->channels * static_cast<size_t>(c->window.h * c->window.w);
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, from_columns_last, *c, columns, x, n);
}
