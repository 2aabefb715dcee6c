/* SPDX-License-Identifier: Apache-2.0
 *
 * pointwise_int: the formulas of element-wise ops, used alone in a kernel or in a chain. of_NAME is
 * a function of the value x, of z (the added value, or the gradient of the output), and of the
 * number `by`. A backward formula receives the saved value as x.
 */
#ifndef CLEAVE_KERNELS_CUDA_POINTWISE_INT_CUH
#define CLEAVE_KERNELS_CUDA_POINTWISE_INT_CUH

#include <math.h>

#include <Random123/philox.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/pointwise_int.h"

static __device__ inline float cdf_of(float x) { return 0.5f * (1 + erff(x * 0.70710678f)); }
static __device__ inline float pdf_of(float x) { return expf(x * x * -0.5f) * 0.39894228f; }
static __device__ inline float squash_of(float x) { return 1 / (1 + expf(-x)); }

/* Returns (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. */
static __device__ inline float half_of(float x) {
  return 0.5f * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}
static __device__ inline float gelu_tanh_slope(float x) {
  float half = half_of(x);
  return half + 2 * x * half * (1 - half) * 0.79788456f * (1 + 0.134145f * x * x);
}

#define POINTWISE(name, expression)                                                            \
  static __device__ inline float of_##name([[maybe_unused]] float x, [[maybe_unused]] float z, \
                                           [[maybe_unused]] float by) {                        \
    return expression;                                                                         \
  }
POINTWISE(relu, x <= 0 ? 0 : x)
POINTWISE(relu_back, x <= 0 ? 0 : z)
POINTWISE(sigmoid, squash_of(x))
POINTWISE(sigmoid_back, z *(1 - x) * x)
POINTWISE(tanh, tanhf(x))
POINTWISE(tanh_back, z *(1 - x * x))
POINTWISE(gelu, x *cdf_of(x))
POINTWISE(gelu_back, z *(cdf_of(x) + x * pdf_of(x)))
POINTWISE(gelu_tanh, x *half_of(x))
POINTWISE(gelu_tanh_back, z *gelu_tanh_slope(x))
POINTWISE(silu, x *squash_of(x))
POINTWISE(silu_back, z *squash_of(x) * (1 + x * (1 - squash_of(x))))
POINTWISE(leaky_relu, x > 0 ? x : by * x)
POINTWISE(leaky_relu_back, x > 0 ? z : by * z)
POINTWISE(scale, by *x)
POINTWISE(add, x + z)
POINTWISE(mul, x *z)
#undef POINTWISE

/* Returns the random words of the four values from index 4 b on; see common/base/rng.c. A value is
 * kept if its word without the last 8 bits is at least the dropout's limit. */
static __device__ inline philox4x32_ctr_t words_of(const clv_rng_stream &s,
                                                   const clv_rng_position *rng_position, size_t b) {
  uint64_t step = rng_position ? rng_position->step : 0;
  uint32_t micro_batch = rng_position ? rng_position->micro_batch : 0;
  philox4x32_ctr_t counter = {{(uint32_t)b, s.counter[0] ^ micro_batch,
                               s.counter[1] ^ (uint32_t)step,
                               s.counter[2] ^ (uint32_t)(step >> 32)}};
  philox4x32_key_t key = {{s.key[0], s.key[1]}};
  return philox4x32(counter, key);
}

#endif
