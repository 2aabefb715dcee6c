/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, S, F], w [1, 1, F], y [N, 1 + S, F]: w is put before the first step of each sample. The
 * parameter w is the class token of ViT, and its name is that of the layer.
 */
#include "kernels/ops/op_int.h"

static clv_code prepend_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  CLV_TRY(clv_check_rank("prepend", &s->in[0], 3, "[N, S, F]", "", err));
  *ret = s->in[0];
  ret->dim[1]++;
  return CLV_OK;
}

static int prepend_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight",
                                    .is_named_as_node = true,
                                    .shape = CLV_SHAPE(1, 1, s->in[0].dim[2]),
                                    .init = CLV_INIT_NORMAL,
                                    .bound = s->attrs->init_std};
  return 1;
}

static clv_code prepend_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t features = (size_t)k->d.in[0].dim[2], sample_size = (size_t)k->d.in[0].dim[1] * features;
  const REAL *x = a->in[0];
  REAL *y = a->out;
  (void)err;
  for (int64_t n = 0; n < k->d.in[0].dim[0]; n++, x += sample_size, y += sample_size + features) {
    memcpy(y, a->param[CLV_SLOT_WEIGHT], features * sizeof *y);
    memcpy(y + features, x, sample_size * sizeof *y);
  }
  return CLV_OK;
}

static clv_code prepend_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  size_t features = (size_t)k->d.in[0].dim[2], sample_size = (size_t)k->d.in[0].dim[1] * features;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  (void)err;
  for (int64_t n = 0; n < k->d.in[0].dim[0]; n++)
    memcpy(dx + (size_t)n * sample_size, dy + (size_t)n * (sample_size + features) + features,
           sample_size * sizeof *dx);
  return CLV_OK;
}

static clv_code prepend_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  int64_t n_samples = k->d.in[0].dim[0], features = k->d.in[0].dim[2];
  const REAL *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  (void)err;
  for (int64_t f = 0; f < features; f++) {
    double sum = 0;
    for (int64_t n = 0; n < n_samples; n++) sum += dy[n * k->d.out.dim[1] * features + f];
    store_or_add(&dw[f], sum, a->accumulate);
  }
  return CLV_OK;
}

CLV_OP_ROW(prepend) = {
    .name = "prepend",
    .doc =
        "y = [w, x], x: [N, S, F], w: [1, 1, F], y: [N, 1 + S, F] (torch.cat with an expanded "
        "parameter)",
    .torch_module = "",
    .no_torch_module = "torch has no such module",
    .n_in = 1,
    .attrs = {INIT_STD_ATTR},
    .shape = prepend_shape,
    .slots = prepend_slots,
    .max_params = 1,
    .forward = prepend_forward,
    .backward_input = prepend_backward_input,
    .backward_weight = prepend_backward_weight,
};
