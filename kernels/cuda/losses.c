/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/losses_int.h"

#include <string.h>

/* ---- cross_entropy, nll, focal --------------------------------------------------------------- */

static size_t count_rows(const cuda_kernel *k) {
  const clv_shape *x = &k->r.d.in[0];
  return k->r.n_in / (size_t)x->dim[x->rank - 1];
}

static cuda_class_loss describe_classes(const cuda_kernel *k, const clv_kernel_args *a) {
  const clv_shape *x = &k->r.d.in[0];
  const clv_attrs *t = &k->r.d.attrs;
  bool x_is_logits = k->r.d.op != CLV_OP_NLL;
  cuda_class_loss c = {.rows = count_rows(k),
                       .n_classes = (size_t)x->dim[x->rank - 1],
                       .positions_per_sample = x->rank == 3 ? (size_t)x->dim[1] : 1,
                       .x_is_logits = x_is_logits,
                       .has_ignored_label = x_is_logits,
                       .has_weights = t->class_weights.n > 0,
                       .ignored_label = t->ignore_index,
                       .exponent = k->r.d.op == CLV_OP_FOCAL ? t->exponent : 0,
                       .smoothing = t->label_smoothing,
                       .op = (int32_t)k->r.d.op,
                       .layer = a->key.layer};
  memcpy(c.class_weights, t->class_weights.of, sizeof c.class_weights);
  for (int i = 0; i < t->class_weights.n; i++) c.weight_sum += (double)c.class_weights[i];
  if (!c.has_weights) c.weight_sum = (double)c.n_classes;
  return c;
}

static clv_code class_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_class_loss c = describe_classes(k, a);
  double *terms = a->scratch;
  return clv_gpu_class_loss(k->gpu, &c, a->in[0], a->in[1], terms, terms + c.rows,
                            k->r.has_backward ? a->saved : NULL, a->out, err);
}

static clv_code class_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_class_loss c = describe_classes(k, a);
  return clv_gpu_class_loss_back(k->gpu, &c, c.x_is_logits ? a->in[0] : NULL, a->in[1], a->dout,
                                 a->saved, a->din[0], err);
}

static clv_code class_open(cuda_kernel *k, clv_err *err) {
  cuda_sum_layout s = gpu_sum_layout_of(1, 1, count_rows(k));
  (void)err;
  k->r.base.scratch_bytes = count_rows(k) * sizeof(double) + gpu_partial_sums_bytes(&s);
  k->r.base.saved_bytes = k->r.has_backward ? sizeof(double) : 0;
  return CLV_OK;
}

#define CLASS_LOSS_FNS \
  { .forward = class_forward, .backward_input = class_backward, .open = class_open }
CLV_CUDA_OP(cross_entropy) = CLASS_LOSS_FNS;
CLV_CUDA_OP(nll) = CLASS_LOSS_FNS;
CLV_CUDA_OP(focal) = CLASS_LOSS_FNS;

/* ---- losses that are means over all values --------------------------------------------------- */

static clv_code mean_open(cuda_kernel *k, clv_err *err) {
  cuda_sum_layout s = gpu_sum_layout_of(1, 1, k->r.n_in);
  (void)err;
  k->r.base.scratch_bytes = gpu_partial_sums_bytes(&s);
  return CLV_OK;
}

#define DEFINE_MEAN_LOSS(name)                                                                     \
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

DEFINE_MEAN_LOSS(mse)
CLV_CUDA_OP(mse) = {.forward = mse_forward, .backward_input = mse_backward, .open = mean_open};

DEFINE_MEAN_LOSS(bce)
CLV_CUDA_OP(bce) = {.forward = bce_forward, .backward_input = bce_backward, .open = mean_open};

DEFINE_MEAN_LOSS(bce_with_logits)
CLV_CUDA_OP(bce_with_logits) = {.forward = bce_with_logits_forward,
                                .backward_input = bce_with_logits_backward,
                                .open = mean_open};

DEFINE_MEAN_LOSS(poisson)
CLV_CUDA_OP(poisson) = {
    .forward = poisson_forward, .backward_input = poisson_backward, .open = mean_open};

#define DEFINE_PARAMETRIC_LOSS(name, field)                                                      \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {     \
    const cuda_kernel *k = gpu_kernel_of(base);                                                  \
    return clv_gpu_##name(k->gpu, k->r.d.attrs.field, a->in[0], a->in[1], k->r.n_in, a->scratch, \
                          a->out, a->key.layer, err);                                            \
  }                                                                                              \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {    \
    const cuda_kernel *k = gpu_kernel_of(base);                                                  \
    return clv_gpu_##name##_back(k->gpu, k->r.d.attrs.field, a->in[0], a->in[1], k->r.n_in,      \
                                 a->dout, a->din[0], a->din[1], err);                            \
  }

DEFINE_PARAMETRIC_LOSS(smooth_l1, beta)
CLV_CUDA_OP(smooth_l1) = {
    .forward = smooth_l1_forward, .backward_input = smooth_l1_backward, .open = mean_open};

DEFINE_PARAMETRIC_LOSS(huber, beta)
CLV_CUDA_OP(huber) = {
    .forward = huber_forward, .backward_input = huber_backward, .open = mean_open};

DEFINE_PARAMETRIC_LOSS(quantile, p)
CLV_CUDA_OP(quantile) = {
    .forward = quantile_forward, .backward_input = quantile_backward, .open = mean_open};
