/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/where_int.h"

static clv_code where_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  return clv_gpu_where(k->gpu, a->in[0], (float)k->r.d.attrs.threshold, a->in[1], a->in[2], a->out,
                       k->r.n_out, err);
}

static clv_code where_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  for (int i = 0; i < 3; i++) {
    const float *dy_if_above = i == 1 ? a->dout : NULL, *dy_if_not_above = i == 2 ? a->dout : NULL;
    if (a->din[i])
      CLV_TRY(clv_gpu_where(k->gpu, a->in[0], (float)k->r.d.attrs.threshold, dy_if_above,
                            dy_if_not_above, a->din[i], k->r.n_out, err));
  }
  return CLV_OK;
}

CLV_CUDA_OP(where) = {.forward = where_forward, .backward_input = where_backward};
