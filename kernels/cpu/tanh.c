/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

MAP(tanh_map, tanh_of(x))
MAP(tanh_back, zs[i] * (1 - x * x))

static clv_code tanh_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return clv_cpu_pointwise(d, tanh_map, tanh_back, 8, ret, err);
}

CLV_CPU_OP(tanh, tanh_prepare)
