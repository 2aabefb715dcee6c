/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference backend: prepares kernels from the rows of kernels/ops, and fills its clv_backend.
 */
#include "kernels/ref/ref_int.h"

#include <stdlib.h>

static void free_kernel(clv_kernel *k) { free(k); }

/* Fills in the kernel's functions, layouts and sizes. The size of its saved state is 0 if the
 * caller needs no gradients. */
static void fill_kernel(clv_ref_kernel *k, const clv_op_def *op) {
  bool needs_dx = false, needs_dw = k->d.need_dw && (op->backward_weight || op->fused_grads);
  clv_kernel *b = &k->base;
  for (int i = 0; i < k->d.n_in; i++) needs_dx |= k->d.need_dx[i];
  k->has_backward = needs_dx || needs_dw;
  b->forward = op->forward;
  b->backward_input = needs_dx || (needs_dw && op->fused_grads) ? op->backward_input : NULL;
  b->backward_weight = needs_dw ? op->backward_weight : NULL;
  b->fused_grads = needs_dw && op->fused_grads;
  b->free = free_kernel;
  for (int i = 0; i < CLV_MAX_IN; i++) b->in_block[i] = 1;
  b->out_block = 1;
  b->saved_flags = (needs_dx ? op->saved_for_dx : 0) | (needs_dw ? op->saved_for_dw : 0);
  b->saved_bytes = k->has_backward && op->saved_bytes ? op->saved_bytes(k) : 0;
  b->scratch_bytes = op->scratch_bytes ? op->scratch_bytes(k) : 0;
  b->in_place = op->in_place && !clv_has_broadcast_input(&k->d);
  b->impl = "ref";
}

static clv_code ref_prepare(const clv_backend *b, const clv_node_desc *d, clv_kernel **ret,
                            clv_err *err) {
  const clv_op_def *op = clv_op_def_of_dtype(d->op, d->dtype);
  size_t n_in, n_out;
  clv_ref_kernel *k;
  (void)b;
  if (!op)
    return clv_fail(err, CLV_INVALID, "ref has no op %d in %s", (int)d->op,
                    clv_dtype_name(d->dtype));
  if (d->tail) return clv_fail(err, CLV_UNIMPLEMENTED, "ref computes no tails");
  CLV_TRY(clv_shape_numel(&d->in[0], &n_in, err));
  CLV_TRY(clv_shape_numel(&d->out, &n_out, err));
  if (op->check_kernel) CLV_TRY(op->check_kernel(d, err));
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  k->d = *d;
  k->n_in = n_in;
  k->n_out = n_out;
  fill_kernel(k, op);
  *ret = &k->base;
  return CLV_OK;
}

static bool ref_has_op(clv_op op) { return clv_op_def_of(op) != NULL; }

/* The setting has no effect, because the loops run on the calling thread. */
static void ref_set_threads(int n) { (void)n; }

static const char *ref_isa(const clv_backend *b) {
  (void)b;
  return "generic";
}
static const char *ref_libraries(const clv_backend *b) {
  (void)b;
  return "ref";
}

const clv_backend *clv_backend_ref(void) {
  static const clv_backend backend = {
      .abi = CLV_KERNELS_ABI,
      .size = sizeof(clv_backend),
      .name = "ref",
      .device = "cpu",
      .prepare = ref_prepare,
      .has = ref_has_op,
      .reorder = clv_ref_reorder,
      .add = clv_ref_add,
      .sum_squares = clv_ref_sum_squares,
      .step = clv_ref_step,
      .set_threads = ref_set_threads,
      .isa = ref_isa,
      .libraries = ref_libraries,
      .reorder_count = clv_ref_reorder_count,
  };
  return &backend;
}
