/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/losses_int.h"

/* ---- cross_entropy, nll ---------------------------------------------------------------------- */

static cuda_classes classes_of(const cuda_kernel *k, const clv_kernel_args *a) {
  const int64_t *dim = k->r.d.in[0].dim;
  return (cuda_classes){.rows = (size_t)dim[0],
                        .classes = (size_t)dim[1],
                        .log_of = k->r.d.op == CLV_OP_CROSS_ENTROPY,
                        .op = (int32_t)k->r.d.op,
                        .layer = a->key.layer};
}

static clv_code class_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_classes c = classes_of(k, a);
  double *terms = a->scratch;
  return clv_gpu_class_loss(k->gpu, &c, a->in[0], a->in[1], terms, terms + c.rows, a->out, err);
}

static clv_code class_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_classes c = classes_of(k, a);
  return clv_gpu_class_loss_back(k->gpu, &c, c.log_of ? a->in[0] : NULL, a->in[1], a->dout,
                                 a->din[0], err);
}

static clv_code class_open(cuda_kernel *k, clv_err *err) {
  cuda_sums s = gpu_sums_of(1, 1, (size_t)k->r.d.in[0].dim[0]);
  (void)err;
  k->r.base.scratch_bytes = (size_t)k->r.d.in[0].dim[0] * sizeof(double) + gpu_parts_bytes(&s);
  return CLV_OK;
}

#define CLASS_LOSS \
  { .forward = class_forward, .backward_input = class_backward, .open = class_open }
CLV_CUDA_OP(cross_entropy) = CLASS_LOSS;
CLV_CUDA_OP(nll) = CLASS_LOSS;

/* ---- means over all values ------------------------------------------------------------------- */

static clv_code mean_open(cuda_kernel *k, clv_err *err) {
  cuda_sums s = gpu_sums_of(1, 1, k->r.n_in);
  (void)err;
  k->r.base.scratch_bytes = gpu_parts_bytes(&s);
  return CLV_OK;
}

#define MEAN_LOSS(name)                                                                            \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {       \
    const cuda_kernel *k = gpu_kernel_of(base);                                                    \
    return clv_gpu_##name(k->gpu, a->in[0], a->in[1], k->r.n_in, a->scratch, a->out, a->key.layer, \
                          err);                                                                    \
  }                                                                                                \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {      \
    const cuda_kernel *k = gpu_kernel_of(base);                                                    \
    return clv_gpu_##name##_back(k->gpu, a->in[0], a->in[1], k->r.n_in, a->dout, a->din[0],        \
                                 a->din[1], err);                                                  \
  }

MEAN_LOSS(mse)
CLV_CUDA_OP(mse) = {.forward = mse_forward, .backward_input = mse_backward, .open = mean_open};

MEAN_LOSS(bce)
CLV_CUDA_OP(bce) = {.forward = bce_forward, .backward_input = bce_backward, .open = mean_open};

MEAN_LOSS(bce_with_logits)
CLV_CUDA_OP(bce_with_logits) = {.forward = bce_with_logits_forward,
                                .backward_input = bce_with_logits_backward,
                                .open = mean_open};
