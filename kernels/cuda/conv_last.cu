/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/conv_int.h"
#include "kernels/cuda/device_int.cuh"

static __global__ void im2col_last(cuda_im2col_last_args c, const cuda_bf16 *x, cuda_bf16 *columns,
                                   size_t n) {
  const clv_window &s = c.window;
  int64_t channels = static_cast<int64_t>(c.n_channels), n_taps = s.kernel[0] * s.kernel[1];
  GPU_FOR(p, n) {
    int64_t index = static_cast<int64_t>(p), channel = index % channels,
            tap = index / channels % n_taps;
    int64_t o = index / channels / n_taps, sample = o / s.ow / s.oh;
    int64_t h = o / s.ow % s.oh * s.stride[0] - s.pad[0] + tap / s.kernel[1] * s.dilation[0];
    int64_t w = o % s.ow * s.stride[1] - s.pad[1] + tap % s.kernel[1] * s.dilation[1];
    bool is_inside = h >= 0 && h < s.h && w >= 0 && w < s.w;
    columns[p] = is_inside ? x[((sample * s.h + h) * s.w + w) * s.c + channel] : 0;
  }
}

clv_code clv_gpu_im2col_last(clv_gpu *g, const cuda_im2col_last_args *c, const cuda_bf16 *x,
                             cuda_bf16 *columns, clv_err *err) {
  const clv_window *s = &c->window;
  size_t n = c->n_samples * c->n_channels *
             static_cast<size_t>(s->kernel[0] * s->kernel[1] * s->oh * s->ow);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, im2col_last, *c, x, columns, n);
}

static __global__ void col2im_last(cuda_im2col_last_args c, const float *columns, cuda_bf16 *x,
                                   size_t n) {
  const clv_window &s = c.window;
  int64_t channels = static_cast<int64_t>(c.n_channels), n_taps = s.kernel[0] * s.kernel[1];
  GPU_FOR(p, n) {
    int64_t index = static_cast<int64_t>(p), channel = index % channels;
    int64_t w = index / channels % s.w, h = index / channels / s.w % s.h;
    int64_t sample = index / channels / s.w / s.h;
    double sum = 0;
    for (int64_t u = 0; u < s.kernel[0]; u++) {
      int64_t i = h + s.pad[0] - u * s.dilation[0];
      if (i < 0 || i % s.stride[0] || i / s.stride[0] >= s.oh) continue;
      for (int64_t v = 0; v < s.kernel[1]; v++) {
        int64_t j = w + s.pad[1] - v * s.dilation[1];
        if (j < 0 || j % s.stride[1] || j / s.stride[1] >= s.ow) continue;
        int64_t o = (sample * s.oh + i / s.stride[0]) * s.ow + j / s.stride[1];
        sum +=
            static_cast<double>(columns[(o * n_taps + u * s.kernel[1] + v) * channels + channel]);
      }
    }
    x[((sample * s.h + h) * s.w + w) * s.c + channel] =
        gpu_from_float<cuda_bf16>(static_cast<float>(sum));
  }
}

clv_code clv_gpu_col2im_last(clv_gpu *g, const cuda_im2col_last_args *c, const float *columns,
                             cuda_bf16 *x, clv_err *err) {
  size_t n = c->n_samples * c->n_channels * static_cast<size_t>(c->window.h * c->window.w);
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, col2im_last, *c, columns, x, n);
}
