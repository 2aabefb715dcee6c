/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise ops that are a formula and its derivative. Each op is a pair of maps: NAME_map of
 * the input x, and NAME_back of the saved value x and the gradient zs[i] of the output. p and q are
 * the attributes that the op's row lists in `numbers`.
 */
#include "kernels/cpu/pointwise_int.h"

CPU_INLINE float clamp_between(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;
}

MAP(leaky_relu_map, x > 0 ? x : p * x)
MAP(leaky_relu_back, x > 0 ? zs[i] : p * zs[i])

MAP(clamp_map, clamp_between(x, p, q))
MAP(clamp_back, x >= p && x <= q ? zs[i] : 0)

MAP(hardtanh_map, clamp_between(x, p, q))
MAP(hardtanh_back, x <= p || x >= q ? 0 : zs[i])

MAP(hardswish_map, x *clamp_between(x + 3, 0, 6) * (1 / 6.0f))
MAP(hardswish_back, x <= -3 ? 0 : x < 3 ? zs[i] * (x * (1 / 3.0f) + 0.5f) : zs[i])

MAP(hardsigmoid_map, clamp_between(x + 3, 0, 6) * (1 / 6.0f))
MAP(hardsigmoid_back, x > -3 && x < 3 ? zs[i] * (1 / 6.0f) : 0)

MAP(elu_map, x <= 0 ? p * expm1_of(x) : x)
MAP(elu_back, x <= 0 ? zs[i] * p * exp_of(x) : zs[i])

/* Returns log(1 + e^x), also where e^x overflows. A logarithm in double keeps the digits of a small
 * e^x. */
CPU_INLINE float softplus_of(float x) {
  float e = exp_of(x > 0 ? -x : x);
  double z = (double)e;
  float small_e_result = (float)(z - z * z * (0.5 - z * (1 / 3.0)));
  return (x > 0 ? x : x != x ? x : 0) + (e < 1e-4f ? small_e_result : (float)double_log_of(1 + z));
}

MAP(softplus_map, p *x > q ? x : softplus_of(p * x) / p)
MAP(softplus_back, p *x > q ? zs[i] : zs[i] * sigmoid_of(p * x))

/* Returns tanh(log(1 + e^x)), which is n / (n + 2) with n = e^x (e^x + 2). For x above 20 the
 * quotient is 1. */
CPU_INLINE float tanh_softplus(float x) {
  float e = exp_of(x > 20 ? 20 : x), n = e * (e + 2);
  return n / (n + 2);
}

CPU_INLINE float mish_derivative(float x) {
  float e = exp_of(x > 20 ? 20 : x), n = e * (e + 2), t = n / (n + 2);
  return t + x * (1 + t) * (2 / (n + 2)) * (e / (1 + e));
}

MAP(mish_map, x *tanh_softplus(x))
MAP(mish_back, zs[i] * mish_derivative(x))

MAP(sqrt_map, __builtin_sqrtf(x))
MAP(sqrt_back, zs[i] / (2 * x))

CPU_POINTWISE(leaky_relu, 1)
CPU_POINTWISE(clamp, 1)
CPU_POINTWISE(hardtanh, 1)
CPU_POINTWISE(hardswish, 2)
CPU_POINTWISE(hardsigmoid, 2)
CPU_POINTWISE(elu, 8)
CPU_POINTWISE(softplus, 14)
CPU_POINTWISE(mish, 10)
CPU_POINTWISE(sqrt, 2)

CLV_CPU_OP(leaky_relu, leaky_relu_prepare)
CLV_CPU_OP(clamp, clamp_prepare)
CLV_CPU_OP(hardtanh, hardtanh_prepare)
CLV_CPU_OP(hardswish, hardswish_prepare)
CLV_CPU_OP(hardsigmoid, hardsigmoid_prepare)
CLV_CPU_OP(elu, elu_prepare)
CLV_CPU_OP(softplus, softplus_prepare)
CLV_CPU_OP(mish, mish_prepare)
CLV_CPU_OP(sqrt, sqrt_prepare)
