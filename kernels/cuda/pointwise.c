/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/broadcast_int.h"
#include "kernels/cuda/pointwise_int.h"

static cuda_formula_numbers get_formula_numbers(const cuda_kernel *k) {
  clv_formula_numbers numbers = clv_op_formula_numbers(&k->r.d);
  return (cuda_formula_numbers){(float)numbers.p, (float)numbers.q};
}

/* Defines forward, backward and the cuda_op of each op of pointwise.def. saved_array: field of
 * clv_kernel_args that backward reads. */
#define POINTWISE(name, saved_array, ...)                                                      \
  static clv_code name##_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {   \
    const cuda_kernel *k = gpu_kernel_of(base);                                                \
    return clv_gpu_##name(k->gpu, k->channels_last, a->in[0], NULL, a->out, k->r.n_in,         \
                          get_formula_numbers(k), err);                                        \
  }                                                                                            \
  static clv_code name##_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {  \
    const cuda_kernel *k = gpu_kernel_of(base);                                                \
    return clv_gpu_##name##_back(k->gpu, k->channels_last, a->saved_array, a->dout, a->din[0], \
                                 k->r.n_in, get_formula_numbers(k), err);                      \
  }                                                                                            \
  CLV_CUDA_OP(name) = {                                                                        \
      .forward = name##_forward, .backward_input = name##_backward, .channels_last = true};
#include "kernels/cuda/pointwise.def"
#undef POINTWISE

/* ---- the op scale ---------------------------------------------------------------------------- */

static clv_code scale_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_formula_numbers numbers = {.p = (float)k->r.d.attrs.factor};
  return clv_gpu_scale(k->gpu, k->channels_last, a->in[0], NULL, a->out, k->r.n_in, numbers, err);
}

static clv_code scale_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  cuda_formula_numbers numbers = {.p = (float)k->r.d.attrs.factor};
  return clv_gpu_scale(k->gpu, k->channels_last, a->dout, NULL, a->din[0], k->r.n_in, numbers, err);
}

CLV_CUDA_OP(scale) = {
    .forward = scale_forward, .backward_input = scale_backward, .channels_last = true};

/* ---- ops that copy --------------------------------------------------------------------------- */

static clv_code copy_values(const cuda_kernel *k, const void *from, void *to, clv_err *err) {
  if (!to || from == to) return CLV_OK;
  return k->gpu->vendor->copy(k->gpu->stream, to, from,
                              k->r.n_in * (k->channels_last ? sizeof(cuda_bf16) : sizeof(float)),
                              err);
}

static clv_code identity_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return copy_values(gpu_kernel_of(base), a->in[0], a->out, err);
}

static clv_code identity_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  for (int i = 0; i < k->r.d.n_in; i++) CLV_TRY(copy_values(k, a->dout, a->din[i], err));
  return CLV_OK;
}

CLV_CUDA_OP(flatten) = {.forward = identity_forward, .backward_input = identity_backward};
CLV_CUDA_OP(reshape) = {.forward = identity_forward, .backward_input = identity_backward};

static clv_code add_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (clv_has_broadcast_input(&k->r.d)) return clv_gpu_broadcast_forward(k, a, err);
  return clv_gpu_add(k->gpu, k->channels_last, a->in[0], a->in[1], a->out, k->r.n_in,
                     (cuda_formula_numbers){0}, err);
}

static clv_code add_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  return clv_has_broadcast_input(&k->r.d) ? clv_gpu_broadcast_backward(k, a, err)
                                          : identity_backward(base, a, err);
}

CLV_CUDA_OP(add) = {.forward = add_forward,
                    .backward_input = add_backward,
                    .open = clv_gpu_broadcast_open,
                    .channels_last = true};

static clv_code mul_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (clv_has_broadcast_input(&k->r.d)) return clv_gpu_broadcast_forward(k, a, err);
  return clv_gpu_mul(k->gpu, k->channels_last, a->in[0], a->in[1], a->out, k->r.n_in,
                     (cuda_formula_numbers){0}, err);
}

static clv_code mul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (clv_has_broadcast_input(&k->r.d)) return clv_gpu_broadcast_backward(k, a, err);
  for (int i = 0; i < 2; i++)
    if (a->din[i])
      CLV_TRY(clv_gpu_mul(k->gpu, k->channels_last, a->dout, a->in[1 - i], a->din[i], k->r.n_in,
                          (cuda_formula_numbers){0}, err));
  return CLV_OK;
}

CLV_CUDA_OP(mul) = {.forward = mul_forward,
                    .backward_input = mul_backward,
                    .open = clv_gpu_broadcast_open,
                    .channels_last = true};

clv_code clv_gpu_add_to(clv_gpu *g, bool channels_last, void *dst, const void *src, size_t n,
                        clv_err *err) {
  return clv_gpu_add(g, channels_last, dst, src, dst, n, (cuda_formula_numbers){0}, err);
}

/* ---- the op dropout -------------------------------------------------------------------------- */

float clv_gpu_dropout_factor(double p) { return (float)(p < 1 ? 1 / (1 - p) : 0); }

/* Returns the smallest number of 24 bits that keeps a value: u = word / 2^24 >= p exactly if the
 * word's upper 24 bits are at least this number. */
uint32_t clv_gpu_dropout_threshold(double p) {
  uint32_t limit = (uint32_t)(p * 0x1p24);
  return limit + ((double)limit * 0x1p-24 < p);
}

static cuda_dropout_shape describe_dropout(const cuda_kernel *k) {
  const int64_t *dim = k->r.d.in[0].dim;
  cuda_dropout_shape shape = {
      .n = k->r.n_in, .channels = 1, .inner = 1, .channels_last = k->channels_last};
  if (!k->channels_last) return shape;
  shape.channels = (size_t)dim[1];
  shape.inner = (size_t)(dim[2] * dim[3]);
  return shape;
}

static clv_code drop_packed(const cuda_kernel *k, const clv_kernel_args *a,
                            const clv_rng_stream *stream, clv_err *err) {
  cuda_packed p;
  CLV_TRY(clv_gpu_find_first_rows(k, a, a->scratch, &p, err));
  return clv_gpu_dropout_packed(k->gpu, &p, (size_t)k->r.d.in[0].dim[1], a->in[0], a->out, a->saved,
                                stream, a->rng_position, clv_gpu_dropout_threshold(k->r.d.attrs.p),
                                clv_gpu_dropout_factor(k->r.d.attrs.p), err);
}

static clv_code dropout_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (!k->r.d.training) return identity_forward(base, a, err);
  clv_rng_key key = a->key;
  if (a->rng_position) key.step = key.micro_batch = 0;
  clv_rng_stream stream = clv_rng_stream_of(&key);
  cuda_dropout_shape shape = describe_dropout(k);
  if (k->r.d.attrs.packed) return drop_packed(k, a, &stream, err);
  return clv_gpu_dropout(k->gpu, &shape, a->in[0], a->out, a->saved, &stream, a->rng_position,
                         clv_gpu_dropout_threshold(k->r.d.attrs.p),
                         clv_gpu_dropout_factor(k->r.d.attrs.p), err);
}

static clv_code dropout_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  if (!k->r.d.training) return identity_backward(base, a, err);
  return clv_gpu_apply_mask(k->gpu, k->channels_last, a->dout, a->saved, a->din[0], k->r.n_in,
                            clv_gpu_dropout_factor(k->r.d.attrs.p), err);
}

/* Sets the sizes of the buffers. The kernel saves the mask even if no backward follows. */
static clv_code dropout_open(cuda_kernel *k, clv_err *err) {
  (void)err;
  k->r.base.saved_bytes = k->r.d.training ? k->r.n_in : 0;
  k->r.base.reads_rng_position = k->r.d.training;
  k->r.base.scratch_bytes = gpu_packed_bytes(k);
  return CLV_OK;
}

CLV_CUDA_OP(dropout) = {.forward = dropout_forward,
                        .backward_input = dropout_backward,
                        .open = dropout_open,
                        .channels_last = true};

/* ---- the op stochastic_depth ----------------------------------------------------------------- */

static clv_code stochastic_depth_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  size_t n = (size_t)k->r.d.in[0].dim[0];
  if (!k->r.d.training) return identity_forward(base, a, err);
  clv_rng_key key = a->key;
  if (a->rng_position) key.step = key.micro_batch = 0;
  clv_rng_stream stream = clv_rng_stream_of(&key);
  return clv_gpu_stochastic_depth(k->gpu, k->channels_last, n, k->r.n_in / n, a->in[0], a->out,
                                  a->saved, &stream, a->rng_position,
                                  clv_gpu_dropout_threshold(k->r.d.attrs.p),
                                  clv_gpu_dropout_factor(k->r.d.attrs.p), err);
}

static clv_code stochastic_depth_backward(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  size_t n = (size_t)k->r.d.in[0].dim[0];
  if (!k->r.d.training) return identity_backward(base, a, err);
  return clv_gpu_scale_records(k->gpu, k->channels_last, n, k->r.n_in / n, a->dout, a->saved,
                               a->din[0], clv_gpu_dropout_factor(k->r.d.attrs.p), err);
}

/* Sets the sizes of the buffers. The kernel saves which records it keeps even if no backward
 * follows. */
static clv_code stochastic_depth_open(cuda_kernel *k, clv_err *err) {
  (void)err;
  k->r.base.saved_bytes = k->r.d.training ? (size_t)k->r.d.in[0].dim[0] : 0;
  k->r.base.reads_rng_position = k->r.d.training;
  return CLV_OK;
}

CLV_CUDA_OP(stochastic_depth) = {.forward = stochastic_depth_forward,
                                 .backward_input = stochastic_depth_backward,
                                 .open = stochastic_depth_open,
                                 .channels_last = true};
