/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/pointwise_int.h"

typedef struct pointwise_kernel {
  gpu_kernel k;
  gpu_map *map, *back;
} pointwise_kernel;

static clv_code pointwise_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const pointwise_kernel *k = (const pointwise_kernel *)base;
  return k->map(k->k.gpu, a->in[0], NULL, a->out, k->k.n_in, err);
}

static clv_code pointwise_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const pointwise_kernel *k = (const pointwise_kernel *)base;
  const void *kept = k->k.base.saves & CLV_SAVE_OUT ? a->out : a->in[0];
  return k->back(k->k.gpu, kept, a->dout, a->din[0], k->k.n_in, err);
}

static clv_code prepare(clv_gpu *g, const clv_node_desc *d, gpu_map *map, gpu_map *back,
                        clv_kernel **ret, clv_err *err) {
  pointwise_kernel *k;
  CLV_TRY(clv_gpu_kernel_new(g, d, sizeof *k, &k, err));
  k->map = map;
  k->back = back;
  k->k.base.forward = pointwise_forward;
  k->k.base.backward_input = d->need_dx[0] ? pointwise_backward : NULL;
  *ret = &k->k.base;
  return CLV_OK;
}

/* POINTWISE(name): its map is clv_gpu_name, and clv_gpu_name_back. */
#define POINTWISE(name)                                                          \
  static clv_code name##_prepare(clv_gpu *g, const clv_node_desc *d,             \
                                 clv_kernel **ret, clv_err *err) {               \
    return prepare(g, d, clv_gpu_##name, clv_gpu_##name##_back, ret, err);       \
  }

POINTWISE(relu)
POINTWISE(sigmoid)
POINTWISE(tanh)
POINTWISE(gelu)
CLV_CUDA_OP(relu, relu_prepare)
CLV_CUDA_OP(sigmoid, sigmoid_prepare)
CLV_CUDA_OP(tanh, tanh_prepare)
CLV_CUDA_OP(gelu, gelu_prepare)
