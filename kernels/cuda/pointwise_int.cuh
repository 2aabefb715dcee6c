/* SPDX-License-Identifier: Apache-2.0
 *
 * pointwise_int: the formulas of element-wise ops, for the kernels of single ops and of chains.
 * of_NAME returns the output for the input x; z is the second input. of_NAME_back returns the
 * gradient of the input; there x is the saved value and z the gradient of the output. p and q are
 * the op's attributes (clv_formula_numbers).
 */
#ifndef CLEAVE_KERNELS_CUDA_POINTWISE_INT_CUH
#define CLEAVE_KERNELS_CUDA_POINTWISE_INT_CUH

#include <math.h>

#include <Random123/philox.h>

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/pointwise_int.h"

static __device__ inline float cdf_of(float x) { return 0.5f * (1 + erff(x * 0.70710678f)); }
static __device__ inline float pdf_of(float x) { return expf(x * x * -0.5f) * 0.39894228f; }
static __device__ inline float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }

/* Returns (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. */
static __device__ inline float gelu_tanh_gate(float x) {
  return 0.5f * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}
static __device__ inline float gelu_tanh_derivative(float x) {
  float gate = gelu_tanh_gate(x);
  return gate + 2 * x * gate * (1 - gate) * 0.79788456f * (1 + 0.134145f * x * x);
}

static __device__ inline float clamp_between(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}

/* Returns log(1 + e^x), also where e^x overflows. */
static __device__ inline float softplus_of(float x) {
  return (x > 0 ? x : 0) + log1pf(expf(x > 0 ? -x : x));
}

/* Returns tanh(log(1 + e^x)), which is n / (n + 2) with n = e^x (e^x + 2). For x above 20 the
 * quotient is 1. */
static __device__ inline float tanh_softplus(float x) {
  float e = expf(x > 20 ? 20 : x), n = e * (e + 2);
  return n / (n + 2);
}
static __device__ inline float mish_derivative(float x) {
  float e = expf(x > 20 ? 20 : x), n = e * (e + 2), t = n / (n + 2);
  return t + x * (1 + t) * (2 / (n + 2)) * (e / (1 + e));
}

#define FORMULA(name, expression)                                                              \
  static __device__ inline float of_##name([[maybe_unused]] float x, [[maybe_unused]] float z, \
                                           [[maybe_unused]] float p,                           \
                                           [[maybe_unused]] float q = 0) {                     \
    return expression;                                                                         \
  }
#define POINTWISE(name, saved, output, gradient) \
  FORMULA(name, output)                          \
  FORMULA(name##_back, gradient)
#include "kernels/cuda/pointwise.def"
#undef POINTWISE
FORMULA(scale, p *x)
FORMULA(add, x + z)
FORMULA(mul, x *z)
#undef FORMULA

/* Returns the random words of the four values from index 4 * b on; see common/base/rng.c. Dropout
 * keeps a value if the upper 24 bits of its word are at least dropout_threshold. */
static __device__ inline philox4x32_ctr_t random_words_of(const clv_rng_stream &s,
                                                          const clv_rng_position *rng_position,
                                                          size_t b) {
  uint64_t step = rng_position ? rng_position->step : 0;
  uint32_t micro_batch = rng_position ? rng_position->micro_batch : 0;
  philox4x32_ctr_t counter = {{(uint32_t)b, s.counter[0] ^ micro_batch,
                               s.counter[1] ^ (uint32_t)step,
                               s.counter[2] ^ (uint32_t)(step >> 32)}};
  philox4x32_key_t key = {{s.key[0], s.key[1]}};
  return philox4x32(counter, key);
}

#endif
