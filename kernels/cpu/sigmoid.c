/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

MAP(sigmoid, sigmoid_of(x))
MAP(sigmoid_back, zs[i] * (1 - x) * x)

static clv_code sigmoid_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return clv_cpu_pointwise(d, sigmoid, sigmoid_back, 8, ret, err);
}

CLV_CPU_OP(sigmoid, sigmoid_prepare)
