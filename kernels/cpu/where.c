/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/cpu_int.h"

/* Arrays of the op where, all of one layout: y = a where x > threshold, else b. Forward: a and b
 * are the inputs 1 and 2. Backward: y is the gradient of one of these inputs; a or b is the
 * gradient of the output, and the other is NULL, which stands for zeros. */
typedef struct where_job {
  const float *x, *a, *b;
  float *y;
  float threshold;
} where_job;

CPU_INLINE void select_values_body(const where_job *j, size_t begin, size_t end) {
  const float *x = j->x, *a = j->a, *b = j->b;
  float *y = j->y, threshold = j->threshold;
  if (a && b) {
    CPU_INDEPENDENT
    for (size_t i = begin; i < end; i++) y[i] = x[i] > threshold ? a[i] : b[i];
  } else if (a) {
    CPU_INDEPENDENT
    for (size_t i = begin; i < end; i++) y[i] = x[i] > threshold ? a[i] : 0;
  } else {
    CPU_INDEPENDENT
    for (size_t i = begin; i < end; i++) y[i] = x[i] > threshold ? 0 : b[i];
  }
}
CPU_CLONES(select_values, (const where_job *j, size_t begin, size_t end), (j, begin, end))

static void run_select(void *arg, size_t begin, size_t end) { select_values(arg, begin, end); }

static void select_all(const cpu_kernel *k, where_job job) {
  clv_cpu_parallel(clv_cpu_useful_threads(k->threads, k->n_in), k->n_in, run_select, &job);
}

static clv_code where_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  (void)err;
  select_all(k, (where_job){a->in[0], a->in[1], a->in[2], a->out, (float)k->d.attrs.threshold});
  return CLV_OK;
}

static clv_code where_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cpu_kernel *k = (const cpu_kernel *)base;
  float threshold = (float)k->d.attrs.threshold;
  (void)err;
  if (a->din[0]) memset(a->din[0], 0, k->n_in * sizeof(float));
  if (a->din[1]) select_all(k, (where_job){a->in[0], a->dout, NULL, a->din[1], threshold});
  if (a->din[2]) select_all(k, (where_job){a->in[0], NULL, a->dout, a->din[2], threshold});
  return CLV_OK;
}

static clv_code where_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  cpu_kernel *k;
  int block = clv_cpu_offered_block(d);
  CLV_TRY(clv_cpu_kernel_new(d, sizeof *k, block, block, &k, err));
  k->base.forward = where_forward;
  k->base.backward_input = k->has_backward ? where_backward : NULL;
  k->base.saved_flags = k->has_backward ? CLV_SAVE_IN0 : 0;
  *ret = &k->base;
  return CLV_OK;
}

CLV_CPU_OP(where, where_prepare)
