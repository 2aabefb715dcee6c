/* SPDX-License-Identifier: Apache-2.0
 *
 * Element-wise ops. They give the same bits in any layout and so take the one offered; a forward
 * that does not map 0 to 0 zeroes the padding lanes again.
 */
#include <string.h>

#include "kernels/cpu/math_int.h"

/* ---- functions of one number: those of math_int.h, and gelu's ------------------------------- */

/* e^-x^2 / x times a polynomial of 1/x^2: Cephes' erfcf, for x >= 1. */
CPU_INLINE float erfc_of(float x) {
  float q = 1 / x, y = q * q;
  float near = 2.326819970068386e-2f, far = -1.047766399936249e+1f;
  near = near * y - 1.387039388740657e-1f;
  near = near * y + 3.687424674597105e-1f;
  near = near * y - 5.824733027278666e-1f;
  near = near * y + 6.210004621745983e-1f;
  near = near * y - 4.944515323274145e-1f;
  near = near * y + 3.404879937665872e-1f;
  near = near * y - 2.741127028184656e-1f;
  near = near * y + 5.638259427386472e-1f;
  far = far * y + 1.297719955372516e+1f;
  far = far * y - 7.495518717768503e+0f;
  far = far * y + 2.921019019210786e+0f;
  far = far * y - 1.015265279202700e+0f;
  far = far * y + 4.218463358204948e-1f;
  far = far * y - 2.820767439740514e-1f;
  far = far * y + 5.641895067754075e-1f;
  return exp_of(-x * x) * q * (x < 2 ? near : far);
}

CPU_INLINE float erf_of(float x) {
  float magnitude = from_bits(to_bits(x) & 0x7fffffffu), z = x * x;
  float far = 1 - erfc_of(magnitude < 1 ? 1 : magnitude);
  float p = 7.853861353153693e-5f;
  p = p * z - 8.010193625184903e-4f;
  p = p * z + 5.188327685732524e-3f;
  p = p * z - 2.685381193529856e-2f;
  p = p * z + 1.128358514861418e-1f;
  p = p * z - 3.761262582423300e-1f;
  p = p * z + 1.128379165726710e+0f;
  return magnitude < 1 ? p * x : from_bits(to_bits(far) | (to_bits(x) & 0x80000000u));
}

CPU_INLINE float gelu_cdf(float x) { return 0.5f * (1 + erf_of(x * 0.70710678f)); }
CPU_INLINE float gelu_pdf(float x) { return exp_of(x * x * -0.5f) * 0.39894228f; }

/* ---- loops ----------------------------------------------------------------------------------- */

typedef void map_fn(const float *x, const float *z, float *y, size_t n);

#define MAP(name, expression)                                                          \
  CPU_INLINE void name##_body(const float *xs, const float *zs, float *ys, size_t n) { \
    (void)zs;                                                                          \
    CPU_INDEPENDENT                                                                    \
    for (size_t i = 0; i < n; i++) {                                                   \
      float x = xs[i];                                                                 \
      ys[i] = (expression);                                                            \
    }                                                                                  \
  }                                                                                    \
  CPU_CLONES(name, (const float *xs, const float *zs, float *ys, size_t n), (xs, zs, ys, n))

/* Backward maps: x is the kept value, zs[i] the gradient of the output. */
MAP(relu, x <= 0 ? 0 : x)
MAP(relu_back, x <= 0 ? 0 : zs[i])
MAP(sigmoid, sigmoid_of(x))
MAP(sigmoid_back, zs[i] * (1 - x) * x)
MAP(tanh_map, tanh_of(x))
MAP(tanh_back, zs[i] * (1 - x * x))
MAP(gelu, x *gelu_cdf(x))
MAP(gelu_back, zs[i] * (gelu_cdf(x) + x * gelu_pdf(x)))
MAP(add, x + zs[i])

typedef struct pointwise_kernel {
  cpu_kernel k;
  map_fn *map, *back;
  int cost; /* of one element, in loads */
} pointwise_kernel;

typedef struct map_job {
  map_fn *fn;
  const float *x, *z;
  float *y;
} map_job;

static void run_map(void *arg, size_t begin, size_t end) {
  const map_job *j = arg;
  j->fn(j->x + begin, j->z ? j->z + begin : NULL, j->y + begin, end - begin);
}

static void map_all(const pointwise_kernel *k, map_job job) {
  int threads = clv_cpu_worth(k->k.threads, k->k.n_in * (size_t)k->cost);
  clv_cpu_parallel(threads, k->k.n_in, run_map, &job);
}

static clv_code map_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const pointwise_kernel *k = (const pointwise_kernel *)base;
  (void)err;
  map_all(k, (map_job){k->map, a->in[0], a->in[1], a->out});
  if (k->k.d.op == CLV_OP_SIGMOID) clv_cpu_zero_padding(&k->k.d.out, base->out_block, a->out);
  return CLV_OK;
}

static clv_code map_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const pointwise_kernel *k = (const pointwise_kernel *)base;
  const float *kept = base->saves & CLV_SAVE_OUT ? a->out : a->in[0];
  (void)err;
  map_all(k, (map_job){k->back, kept, a->dout, a->din[0]});
  return CLV_OK;
}

static clv_code pointwise_new(const clv_node_desc *d, map_fn *map, map_fn *back, unsigned saves,
                              int cost, clv_kernel **ret, clv_err *err) {
  pointwise_kernel *k;
  int block = clv_cpu_offered(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->map = map;
  k->back = back;
  k->cost = cost;
  k->k.base.forward = map_forward;
  k->k.base.backward_input = d->need_dx[0] ? map_backward : NULL;
  k->k.base.saves = d->need_dx[0] ? saves : 0;
  k->k.base.in_place = saves != CLV_SAVE_IN0;
  k->k.base.din_in_place = 1u << 0;
  *ret = &k->k.base;
  return CLV_OK;
}

clv_code clv_cpu_relu(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return pointwise_new(d, relu, relu_back, CLV_SAVE_OUT, 1, ret, err);
}

clv_code clv_cpu_sigmoid(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return pointwise_new(d, sigmoid, sigmoid_back, CLV_SAVE_OUT, 8, ret, err);
}

clv_code clv_cpu_tanh(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return pointwise_new(d, tanh_map, tanh_back, CLV_SAVE_OUT, 8, ret, err);
}

clv_code clv_cpu_gelu(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  return pointwise_new(d, gelu, gelu_back, CLV_SAVE_IN0, 16, ret, err);
}

/* ---- scale: backward is forward -------------------------------------------------------------- */

CPU_INLINE void scale_body(const float *x, float factor, float *y, size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = factor * x[i];
}

CPU_CLONES(scale, (const float *x, float factor, float *y, size_t n), (x, factor, y, n))

typedef struct scale_job {
  const float *x;
  float factor, *y;
} scale_job;

static void run_scale(void *arg, size_t begin, size_t end) {
  const scale_job *j = arg;
  scale(j->x + begin, j->factor, j->y + begin, end - begin);
}

static clv_code scale_all(const cpu_kernel *k, const float *x, float *y) {
  scale_job j = {x, (float)k->d.attrs.factor, y};
  clv_cpu_parallel(clv_cpu_worth(k->threads, k->n_in), k->n_in, run_scale, &j);
  return CLV_OK;
}

static clv_code scale_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  return scale_all((const cpu_kernel *)base, a->in[0], a->out);
}

static clv_code scale_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  (void)err;
  return scale_all((const cpu_kernel *)base, a->dout, a->din[0]);
}

clv_code clv_cpu_scale(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = scale_forward;
  k->base.backward_input = d->need_dx[0] ? scale_backward : NULL;
  k->base.in_place = true;
  k->base.din_in_place = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

/* ---- add ------------------------------------------------------------------------------------- */

static clv_code add_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  for (int i = 0; i < k->d.n_in; i++)
    if (a->din[i] && a->din[i] != a->dout) memcpy(a->din[i], a->dout, k->n_out * sizeof(float));
  return CLV_OK;
}

clv_code clv_cpu_add(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  clv_kernel *k;
  CLV_TRY(pointwise_new(d, add, NULL, 0, 1, &k, err));
  if (((cpu_kernel *)k)->learns) k->backward_input = add_backward;
  k->din_in_place = 1u << 0 | 1u << 1;
  *ret = k;
  return CLV_OK;
}

/* ---- flatten, reshape: a copy out of the layout offered -------------------------------------- */

static clv_code reshape_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  if (base->in_block[0] != 1)
    clv_cpu_reorder(&k->d.in[0], a->in[0], base->in_block[0], a->out, 1);
  else if (a->out != a->in[0])
    memcpy(a->out, a->in[0], k->n_in * sizeof(float));
  return CLV_OK;
}

static clv_code reshape_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  if (base->in_block[0] != 1)
    clv_cpu_reorder(&k->d.in[0], a->dout, 1, a->din[0], base->in_block[0]);
  else if (a->din[0] != a->dout)
    memcpy(a->din[0], a->dout, k->n_out * sizeof(float));
  return CLV_OK;
}

clv_code clv_cpu_reshape(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, 1, &k, err));
  k->base.forward = reshape_forward;
  k->base.backward_input = d->need_dx[0] ? reshape_backward : NULL;
  k->base.in_place = block == 1;
  k->base.reorders_forward = block != 1;
  k->base.reorders_backward = block != 1 && d->need_dx[0];
  k->base.impl = "copy";
  *ret = &k->base;
  return CLV_OK;
}
