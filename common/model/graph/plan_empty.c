/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel of a node with an empty input, which has an extent of 0. Its output has no values either,
 * or is a mean over no values, which is NaN. Gradients of parameters are zeros. All backends use
 * this kernel, so their own kernels need not handle empty inputs.
 */
#include "common/model/graph/plan_int.h"

#include <math.h>
#include <stdlib.h>

typedef struct empty_kernel {
  clv_kernel kernel; /* first member, so that a clv_kernel pointer can be cast */
  const clv_backend *backend;
  clv_node_desc d;
  size_t n_output_values;
} empty_kernel;

static void free_kernel(clv_kernel *k) { free(k); }

static clv_code write_nan_output(clv_kernel *kernel, const clv_kernel_args *a, clv_err *err) {
  const empty_kernel *k = (const empty_kernel *)kernel;
  const float nan_f32 = NAN;
  const double nan_f64 = NAN;
  bool is_f64 = k->d.dtype == CLV_F64;
  size_t size = is_f64 ? sizeof nan_f64 : sizeof nan_f32;
  for (size_t i = 0; i < k->n_output_values; i++)
    CLV_TRY(clv_backend_put(k->backend, (char *)a->out + i * size,
                            is_f64 ? (const void *)&nan_f64 : &nan_f32, size, err));
  return CLV_OK;
}

static clv_code compute_no_gradient(clv_kernel *kernel, const clv_kernel_args *a, clv_err *err) {
  (void)kernel, (void)a, (void)err;
  return CLV_OK;
}

static clv_code zero_weight_gradients(clv_kernel *kernel, const clv_kernel_args *a, clv_err *err) {
  const empty_kernel *k = (const empty_kernel *)kernel;
  for (int i = 0; i < k->d.n_params && !a->accumulate; i++) {
    size_t bytes;
    CLV_TRY(clv_shape_bytes(&k->d.param[i], k->d.dtype, &bytes, err));
    if (a->dparam[i]) CLV_TRY(clv_backend_fill(k->backend, a->dparam[i], 0, bytes, err));
  }
  return CLV_OK;
}

static bool has_zero_extent(const clv_shape *s) {
  for (int i = 0; i < s->rank; i++)
    if (!s->dim[i]) return true;
  return false;
}

bool clv_plan_has_empty_input(const clv_node_desc *d) {
  /* Checks the output of a concat, not its inputs, because only some of them may be empty. */
  if (d->op == CLV_OP_CONCAT) return has_zero_extent(&d->out);
  for (int i = 0; i < d->n_in; i++)
    if (has_zero_extent(&d->in[i])) return true;
  return false;
}

clv_code clv_plan_make_empty_kernel(const clv_node_desc *d, const clv_backend *backend,
                                    clv_kernel **ret, clv_err *err) {
  empty_kernel *k;
  size_t n_output_values;
  if (d->tail) return clv_fail(err, CLV_UNIMPLEMENTED, "the kernel for empty inputs takes no tail");
  CLV_TRY(clv_shape_numel(&d->out, &n_output_values, err));
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  k->backend = backend;
  k->d = *d;
  k->n_output_values = n_output_values;
  k->kernel = (clv_kernel){.forward = write_nan_output,
                           .backward_input = compute_no_gradient,
                           .backward_weight = d->need_dw ? zero_weight_gradients : NULL,
                           .free = free_kernel,
                           .out_block = 1,
                           .impl = "nothing"};
  for (int i = 0; i < CLV_MAX_IN; i++) k->kernel.in_block[i] = 1;
  *ret = &k->kernel;
  return CLV_OK;
}
