/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/pointwise_int.h"

MAP(mul, x *zs[i])

typedef struct mul_job {
  const float *x, *z;
  float *y;
} mul_job;

static void multiply_range(void *arg, size_t begin, size_t end) {
  const mul_job *j = arg;
  mul(j->x + begin, j->z + begin, j->y + begin, end - begin, (cpu_formula_numbers){0});
}

static clv_code mul_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  int threads = clv_cpu_useful_threads(k->threads, k->n_in);
  (void)err;
  for (int i = 0; i < 2; i++) {
    mul_job j = {a->in[1 - i], a->dout, a->din[i]};
    if (j.y) clv_cpu_parallel(threads, k->n_in, multiply_range, &j);
  }
  return CLV_OK;
}

static clv_code mul_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  clv_kernel *k;
  if (clv_has_broadcast_input(d)) return clv_cpu_broadcast(d, ret, err);
  CLV_TRY(clv_cpu_pointwise(d, mul, NULL, 1, &k, err));
  k->backward_input = ((cpu_kernel *)k)->has_backward ? mul_backward : NULL;
  k->saved_flags = ((cpu_kernel *)k)->has_backward ? CLV_SAVE_IN0 | CLV_SAVE_IN1 : 0;
  k->din_in_place_mask = 0;
  *ret = k;
  return CLV_OK;
}

CLV_CPU_OP(mul, mul_prepare)
