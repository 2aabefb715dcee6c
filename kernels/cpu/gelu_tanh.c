/* SPDX-License-Identifier: Apache-2.0
 *
 * gelu_tanh: y = x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3). (1 + tanh u) / 2 is
 * computed as the sigmoid of 2 u.
 */
#include "kernels/cpu/pointwise_int.h"

CPU_INLINE float sigmoid_of_2u(float x) {
  return sigmoid_of(1.5957691f * (x + 0.044715f * x * x * x));
}

CPU_INLINE float derivative_of(float x) {
  float s = sigmoid_of_2u(x);
  return s + x * s * (1 - s) * 1.5957691f * (1 + 0.134145f * x * x);
}

MAP(gelu_tanh, x *sigmoid_of_2u(x))
MAP(gelu_tanh_back, zs[i] * derivative_of(x))

static clv_code gelu_tanh_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return clv_cpu_pointwise(d, gelu_tanh, gelu_tanh_back, 10, ret, err);
}

CLV_CPU_OP(gelu_tanh, gelu_tanh_prepare)
