/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/ops/op_int.h"

static clv_code globalavgpool_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  CLV_TRY(clv_check_rank("globalavgpool", &s->in[0], 4, "[N, C, H, W]", "", err));
  *ret = CLV_SHAPE(s->in[0].dim[0], s->in[0].dim[1], 1, 1);
  return CLV_OK;
}

static clv_code globalavgpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *x = a->in[0];
  REAL *y = a->out;
  size_t image_size = k->n_in / k->n_out;
  (void)err;
  for (size_t p = 0; p < k->n_out; p++) {
    double sum = 0;
    for (size_t i = 0; i < image_size; i++) sum += x[p * image_size + i];
    y[p] = (REAL)(sum / (double)image_size);
  }
  return CLV_OK;
}

static clv_code globalavgpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  size_t image_size = k->n_in / k->n_out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = dy[i / image_size] / (REAL)image_size;
  return CLV_OK;
}

CLV_OP_ROW(globalavgpool) = {
    .name = "globalavgpool",
    .doc = "y = mean over H and W, [N, C, 1, 1] (torch.nn.functional.adaptive_avg_pool2d(x, 1))",
    .torch_module = "AdaptiveAvgPool2d()",
    .torch_needs = "output_size=1",
    .n_in = 1,
    .shape = globalavgpool_shape,
    .forward = globalavgpool_forward,
    .backward_input = globalavgpool_backward,
};
