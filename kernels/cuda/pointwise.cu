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
#define MAP(name, expression)                                                              \
  static __global__ void map_##name(const float *xs, const float *zs, float *ys, size_t n, \
                                    [[maybe_unused]] float by) {                           \
    GPU_FOR(i, n) {                                                                        \
      [[maybe_unused]] float x = xs[i], z = zs ? zs[i] : 0;                                \
      ys[i] = (expression);                                                                \
    }                                                                                      \
  }                                                                                        \
  clv_code clv_gpu_##name(clv_gpu *g, const float *x, const float *z, float *y, size_t n,  \
                          float by, clv_err *err) {                                        \
    return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, map_##name, x, z, y, n, by);       \
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

/* Four values of one block of the generator; see common/base/rng.c. */
static __global__ void draw(const float *x, float *y, uint8_t *mask, size_t n, clv_rng_stream s,
                            const clv_occasion *occasion, uint32_t limit, float factor) {
  uint64_t step = occasion ? occasion->step : 0;
  uint32_t micro_batch = occasion ? occasion->micro_batch : 0;
  GPU_FOR(b, (n + 3) / 4) {
    philox4x32_ctr_t counter = {{(uint32_t)b, s.counter[0] ^ micro_batch,
                                 s.counter[1] ^ (uint32_t)step,
                                 s.counter[2] ^ (uint32_t)(step >> 32)}};
    philox4x32_key_t key = {{s.key[0], s.key[1]}};
    philox4x32_ctr_t word = philox4x32(counter, key);
    for (size_t i = 4 * b; i < 4 * b + 4 && i < n; i++) {
      bool keep = (word.v[i % 4] >> 8) >= limit;
      y[i] = x[i] * (keep ? factor : 0);
      mask[i] = keep;
    }
  }
}

clv_code clv_gpu_draw(clv_gpu *g, const float *x, float *y, uint8_t *mask, size_t n,
                      const clv_rng_stream *stream, const clv_occasion *occasion, uint32_t limit,
                      float factor, clv_err *err) {
  return gpu_launch(g, gpu_blocks((n + 3) / 4), GPU_BLOCK, err, draw, x, y, mask, n, *stream, occasion,
                    limit, factor);
}

static __global__ void mask_back(const float *dy, const uint8_t *mask, float *dx, size_t n,
                                 float factor) {
  GPU_FOR(i, n) dx[i] = dy[i] * (mask[i] ? factor : 0);
}

clv_code clv_gpu_mask(clv_gpu *g, const float *dy, const uint8_t *mask, float *dx, size_t n,
                      float factor, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, mask_back, dy, mask, dx, n, factor);
}
