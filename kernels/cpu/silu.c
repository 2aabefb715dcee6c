/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

CPU_INLINE float silu_derivative(float x) {
  float s = sigmoid_of(x);
  return s * (1 + x * (1 - s));
}

MAP(silu, x *sigmoid_of(x))
MAP(silu_back, zs[i] * silu_derivative(x))

static clv_code silu_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return clv_cpu_pointwise(d, silu, silu_back, 10, ret, err);
}

CLV_CPU_OP(silu, silu_prepare)
