/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/moves_int.h"

static cuda_last last_of(const cuda_kernel *k, const clv_kernel_args *a) {
  const int64_t *dim = k->r.d.in[0].dim;
  return (cuda_last){(size_t)dim[0], (size_t)dim[1], (size_t)dim[2], a->key.layer};
}

static clv_code last_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_last l = last_of(k, a);
  return clv_gpu_last(k->gpu, &l, a->in[0], a->in[1], a->out, err);
}

static clv_code last_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_last l = last_of(k, a);
  return clv_gpu_last_back(k->gpu, &l, a->dout, a->in[1], a->din[0], err);
}

CLV_CUDA_OP(last) = {.forward = last_forward, .backward_input = last_backward};
