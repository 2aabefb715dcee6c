/* SPDX-License-Identifier: Apache-2.0
 *
 * One value of the output from one value of each input.
 */
#include <math.h>

#include <Random123/philox.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/pointwise_int.h"

/* MAP(name, expression): a kernel and its launcher, of x, z and the number `by`. A backward one
 * gets the kept value as x and the gradient of the output as z. */
#define MAP(name, expression)                                                                     \
  template <typename T>                                                                           \
  static __global__ void map_##name(const T *xs, const T *zs, T *ys, size_t n,                    \
                                    [[maybe_unused]] float by) {                                  \
    GPU_FOR(i, n) {                                                                               \
      [[maybe_unused]] float x = gpu_get(xs[i]), z = zs ? gpu_get(zs[i]) : 0;                     \
      ys[i] = gpu_as<T>(expression);                                                              \
    }                                                                                             \
  }                                                                                               \
  template <typename T>                                                                           \
  static clv_code launch_##name(clv_gpu *g, const void *x, const void *z, void *y, size_t n,      \
                                float by, clv_err *err) {                                         \
    return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, map_##name<T>, gpu_read<T>(x),            \
                      gpu_read<T>(z), gpu_written<T>(y), n, by);                                  \
  }                                                                                               \
  clv_code clv_gpu_##name(clv_gpu *g, bool last, const void *x, const void *z, void *y, size_t n, \
                          float by, clv_err *err) {                                               \
    return GPU_BY_TYPE(last, launch_##name, g, x, z, y, n, by, err);                              \
  }

static __device__ inline float cdf(float x) { return 0.5f * (1 + erff(x * 0.70710678f)); }
static __device__ inline float pdf(float x) { return expf(x * x * -0.5f) * 0.39894228f; }
static __device__ inline float squash(float x) { return 1 / (1 + expf(-x)); }

MAP(relu, x <= 0 ? 0 : x)
MAP(relu_back, x <= 0 ? 0 : z)
MAP(sigmoid, squash(x))
MAP(sigmoid_back, z *(1 - x) * x)
MAP(tanh, tanhf(x))
MAP(tanh_back, z *(1 - x * x))
MAP(gelu, x *cdf(x))
MAP(gelu_back, z *(cdf(x) + x * pdf(x)))
MAP(silu, x *squash(x))
MAP(silu_back, z *squash(x) * (1 + x * (1 - squash(x))))
MAP(scale, by *x)
MAP(add, x + z)

/* ---- dropout --------------------------------------------------------------------------------- */

/* Where value i of the row-major order lies. */
template <typename T>
static __device__ inline size_t place_of(const cuda_places &at, size_t i) {
  if constexpr (std::is_same<T, float>::value) return i;
  size_t inner = i % at.inner, c = i / at.inner % at.channels, n = i / at.inner / at.channels;
  return (n * at.inner + inner) * at.channels + c;
}

/* Four values of one block of the generator; see common/base/rng.c. */
template <typename T>
static __global__ void draw(cuda_places at, const T *x, T *y, uint8_t *mask, clv_rng_stream s,
                            const clv_occasion *occasion, uint32_t limit, float factor) {
  uint64_t step = occasion ? occasion->step : 0;
  uint32_t micro_batch = occasion ? occasion->micro_batch : 0;
  GPU_FOR(b, (at.n + 3) / 4) {
    philox4x32_ctr_t counter = {{(uint32_t)b, s.counter[0] ^ micro_batch,
                                 s.counter[1] ^ (uint32_t)step,
                                 s.counter[2] ^ (uint32_t)(step >> 32)}};
    philox4x32_key_t key = {{s.key[0], s.key[1]}};
    philox4x32_ctr_t word = philox4x32(counter, key);
    for (size_t i = 4 * b; i < 4 * b + 4 && i < at.n; i++) {
      size_t p = place_of<T>(at, i);
      bool keep = (word.v[i % 4] >> 8) >= limit;
      y[p] = gpu_as<T>(gpu_get(x[p]) * (keep ? factor : 0));
      mask[p] = keep;
    }
  }
}

template <typename T>
static clv_code launch_draw(clv_gpu *g, const cuda_places *at, const void *x, void *y,
                            uint8_t *mask, const clv_rng_stream *stream,
                            const clv_occasion *occasion, uint32_t limit, float factor,
                            clv_err *err) {
  return gpu_launch(g, gpu_blocks((at->n + 3) / 4), GPU_BLOCK, err, draw<T>, *at, gpu_read<T>(x),
                    gpu_written<T>(y), mask, *stream, occasion, limit, factor);
}

clv_code clv_gpu_draw(clv_gpu *g, const cuda_places *at, const void *x, void *y, uint8_t *mask,
                      const clv_rng_stream *stream, const clv_occasion *occasion, uint32_t limit,
                      float factor, clv_err *err) {
  return GPU_BY_TYPE(at->last, launch_draw, g, at, x, y, mask, stream, occasion, limit, factor,
                     err);
}

template <typename T>
static __global__ void mask_back(const T *dy, const uint8_t *mask, T *dx, size_t n, float factor) {
  GPU_FOR(i, n) dx[i] = gpu_as<T>(gpu_get(dy[i]) * (mask[i] ? factor : 0));
}

template <typename T>
static clv_code launch_mask(clv_gpu *g, const void *dy, const uint8_t *mask, void *dx, size_t n,
                            float factor, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, mask_back<T>, gpu_read<T>(dy), mask,
                    gpu_written<T>(dx), n, factor);
}

clv_code clv_gpu_mask(clv_gpu *g, bool last, const void *dy, const uint8_t *mask, void *dx,
                      size_t n, float factor, clv_err *err) {
  return GPU_BY_TYPE(last, launch_mask, g, dy, mask, dx, n, factor, err);
}
