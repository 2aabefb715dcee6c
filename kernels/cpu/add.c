/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

MAP(add, x + zs[i])

static clv_code add_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++)
    if (a->din[i] && a->din[i] != a->dout) memcpy(a->din[i], a->dout, k->n_out * sizeof(float));
  return CLV_OK;
}

static clv_code add_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  clv_kernel *k;
  if (clv_has_broadcast_input(d)) return clv_cpu_broadcast(d, ret, err);
  CLV_TRY(clv_cpu_pointwise(d, add, NULL, 1, &k, err));
  k->backward_input = ((cpu_kernel *)k)->has_backward ? add_backward : NULL;
  k->din_in_place_mask = 1u << 0 | 1u << 1;
  *ret = k;
  return CLV_OK;
}

CLV_CPU_OP(add, add_prepare)
