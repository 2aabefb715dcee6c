/* SPDX-License-Identifier: Apache-2.0
 *
 * scale: y = factor x. Backward multiplies the gradient by the factor, too.
 */
#include "kernels/cpu/cpu_int.h"

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
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), k->n_in, run_scale, &j);
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

static clv_code scale_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = scale_forward;
  k->base.backward_input = d->need_dx[0] ? scale_backward : NULL;
  k->base.in_place = true;
  k->base.din_in_place_mask = 1u << 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(scale, scale_prepare)
