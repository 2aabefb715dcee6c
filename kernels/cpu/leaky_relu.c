/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/cpu_int.h"

typedef struct leaky_job {
  const float *x, *dy;
  float factor, *to;
} leaky_job;

CPU_INLINE void leak_body(const float *x, float factor, float *y, size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : factor * x[i];
}

CPU_CLONES(leak, (const float *x, float factor, float *y, size_t n), (x, factor, y, n))

CPU_INLINE void leak_back_body(const float *x, const float *dy, float factor, float *dx, size_t n) {
  CPU_INDEPENDENT
  for (size_t i = 0; i < n; i++) dx[i] = x[i] > 0 ? dy[i] : factor * dy[i];
}

CPU_CLONES(leak_back, (const float *x, const float *dy, float factor, float *dx, size_t n),
           (x, dy, factor, dx, n))

static void run_forward(void *arg, size_t begin, size_t end) {
  const leaky_job *j = arg;
  leak(j->x + begin, j->factor, j->to + begin, end - begin);
}

static void run_backward(void *arg, size_t begin, size_t end) {
  const leaky_job *j = arg;
  leak_back(j->x + begin, j->dy + begin, j->factor, j->to + begin, end - begin);
}

static clv_code leaky_relu_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  leaky_job j = {.x = a->in[0], .factor = (float)k->d.attrs.factor, .to = a->out};
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), k->n_in, run_forward, &j);
  return CLV_OK;
}

static clv_code leaky_relu_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  leaky_job j = {a->in[0], a->dout, (float)k->d.attrs.factor, a->din[0]};
  (void)err;
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), k->n_in, run_backward, &j);
  return CLV_OK;
}

static clv_code leaky_relu_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = leaky_relu_forward;
  k->base.backward_input = d->need_dx[0] ? leaky_relu_backward : NULL;
  k->base.saves = d->need_dx[0] ? CLV_SAVE_IN0 : 0;
  k->base.din_in_place = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(leaky_relu, leaky_relu_prepare)
