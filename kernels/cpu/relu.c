/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

MAP(relu, x <= 0 ? 0 : x)
MAP(relu_back, x <= 0 ? 0 : zs[i])

static clv_code relu_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return clv_cpu_pointwise(d, relu, relu_back, 1, ret, err);
}

CLV_CPU_OP(relu, relu_prepare)
