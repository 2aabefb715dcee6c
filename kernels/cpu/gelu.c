/* SPDX-License-Identifier: Apache-2.0
 *
 * gelu with a single exponential: with z = |x| and t = 1 / (1 + 0.36 z), the probability that a
 * standard normal variable is above z is e^(-z^2/2) t P(t). The polynomial P has degree 8 and was
 * fitted for the least relative error, 7e-8; in f32 the error is 4e-7 for z up to 13. The density
 * in the derivative uses the same exponential.
 */
#include "kernels/cpu/pointwise_int.h"

/* Returns the probability that a standard normal variable is above |x|. half_square_exp:
 * e^(-x^2/2). */
CPU_INLINE float gelu_tail(float x, float half_square_exp) {
  float t = 1 / (1 + 0.36f * float_from_bits(bits_of_float(x) & 0x7fffffffu));
  float p = -2.948467247e-2f;
  p = p * t + 1.356229484e-1f;
  p = p * t - 2.151866108e-1f;
  p = p * t + 9.741055965e-2f;
  p = p * t + 6.634122226e-3f;
  p = p * t + 9.303300828e-2f;
  p = p * t + 1.247680709e-1f;
  p = p * t + 1.435791850e-1f;
  p = p * t + 1.436233521e-1f;
  return half_square_exp * (t * p);
}

CPU_INLINE float compute_half_square_exp(float x) { return exp_of(x * x * -0.5f); }

CPU_INLINE float gelu_cdf(float x, float half_square_exp) {
  float tail = gelu_tail(x, half_square_exp);
  return x < 0 ? tail : 1 - tail;
}

CPU_INLINE float gelu_derivative(float x) {
  float half_square_exp = compute_half_square_exp(x);
  return gelu_cdf(x, half_square_exp) + x * (half_square_exp * 0.39894228f);
}

MAP(gelu, x *gelu_cdf(x, compute_half_square_exp(x)))
MAP(gelu_back, zs[i] * gelu_derivative(x))

static clv_code gelu_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return clv_cpu_pointwise(d, gelu, gelu_back, 12, ret, err);
}

CLV_CPU_OP(gelu, gelu_prepare)
