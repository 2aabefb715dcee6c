/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference backend: preparing kernels, and the backend's row of functions.
 */
#include "kernels/ref/ref_int.h"

#include <stdlib.h>

clv_code clv_ref_label(const int64_t *labels, int64_t i, int64_t classes, int64_t *ret,
                       clv_err *err) {
  if (labels[i] < 0 || labels[i] >= classes)
    return clv_fail(err, CLV_INVALID, "label %lld of sample %lld is outside 0..%lld",
                    (long long)labels[i], (long long)i, (long long)classes - 1);
  *ret = labels[i];
  return CLV_OK;
}

static void kernel_free(clv_kernel *k) { free(k); }

static const ref_op *find_op(const clv_node_desc *d) {
  if (d->op <= CLV_OP_INPUT || d->op >= CLV_OP_COUNT) return NULL;
  if (d->dtype == CLV_F32) return &clv_ref_ops_f32[d->op];
  return d->dtype == CLV_F64 ? &clv_ref_ops_f64[d->op] : NULL;
}

/* What the kernel offers and keeps; nothing is kept for a backward that will not come. */
static void describe(ref_kernel *k, const ref_op *op) {
  bool dx = false, dw = k->d.need_dw && (op->backward_weight || op->fused);
  clv_kernel *b = &k->base;
  for (int i = 0; i < k->d.n_in; i++) dx |= k->d.need_dx[i];
  k->learns = dx || dw;
  b->forward = op->forward;
  b->backward_input = dx || (dw && op->fused) ? op->backward_input : NULL;
  b->backward_weight = dw ? op->backward_weight : NULL;
  b->fused_grads = dw && op->fused;
  b->free = kernel_free;
  for (int i = 0; i < CLV_MAX_IN; i++) b->in_block[i] = 1;
  b->out_block = 1;
  b->saves = (dx ? op->saves_dx : 0) | (dw ? op->saves_dw : 0);
  b->saved_bytes = k->learns && op->saved_bytes ? op->saved_bytes(k) : 0;
  b->scratch_bytes = op->scratch_bytes ? op->scratch_bytes(k) : 0;
  b->in_place = op->in_place;
  b->impl = "ref";
}

static clv_code ref_prepare(const clv_node_desc *d, clv_kernel **ret, clv_err *err) {
  const ref_op *op = find_op(d);
  size_t n_in, n_out;
  ref_kernel *k;
  if (!op)
    return clv_fail(err, CLV_INVALID, "ref has no op %d in %s", (int)d->op,
                    clv_dtype_name(d->dtype));
  if (d->tail) return clv_fail(err, CLV_UNIMPLEMENTED, "ref has each op on its own");
  CLV_TRY(clv_shape_numel(&d->in[0], &n_in, err));
  CLV_TRY(clv_shape_numel(&d->out, &n_out, err));
  if (d->op == CLV_OP_DROPOUT && n_in / 4 > UINT32_MAX)
    return clv_fail(err, CLV_EXHAUSTED, "dropout over %zu values; a stream has %zu", n_in,
                    (size_t)UINT32_MAX * 4);
  if (d->op == CLV_OP_BATCHNORM && d->training && n_in == (size_t)d->in[0].dim[1])
    return clv_fail(err, CLV_INVALID,
                    "batchnorm in training needs more than one value per channel");
  CLV_TRY(clv_alloc(1, sizeof *k, &k, err));
  k->d = *d;
  k->n_in = n_in;
  k->n_out = n_out;
  describe(k, op);
  *ret = &k->base;
  return CLV_OK;
}

/* These loops run on the calling thread alone. */
static void ref_set_threads(int n) { (void)n; }

static const char *ref_isa(void) { return "generic"; }
static const char *ref_libraries(void) { return "ref"; }

const clv_backend *clv_backend_ref(void) {
  static const clv_backend backend = {
      .abi = CLV_KERNELS_ABI,
      .size = sizeof(clv_backend),
      .name = "ref",
      .prepare = ref_prepare,
      .reorder = clv_ref_reorder,
      .add = clv_ref_add,
      .sum_squares = clv_ref_sum_squares,
      .sgd = clv_ref_sgd,
      .adam = clv_ref_adam,
      .set_threads = ref_set_threads,
      .isa = ref_isa,
      .libraries = ref_libraries,
      .reorder_count = clv_ref_reorder_count,
  };
  return &backend;
}
