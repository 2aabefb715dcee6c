/* SPDX-License-Identifier: Apache-2.0
 *
 * avgpool_int: the loops of avgpool and avgpool1d.
 */
#ifndef CLEAVE_OPS_AVGPOOL_INT_H
#define CLEAVE_OPS_AVGPOOL_INT_H

#include "kernels/ops/pool_int.h"

static double window_sum(const clv_window *s, const REAL *x, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t u = 0; u < s->kernel[0]; u++) {
    int64_t h = i * s->stride[0] - s->pad[0] + u;
    if (h < 0 || h >= s->h) continue;
    for (int64_t v = 0; v < s->kernel[1]; v++) {
      int64_t w = j * s->stride[1] - s->pad[1] + v;
      if (w >= 0 && w < s->w) sum += x[h * s->w + w];
    }
  }
  return sum;
}

static clv_code avgpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_window s = clv_window_of(&((const clv_ref_kernel *)base)->d);
  const REAL *x = a->in[0];
  REAL *y = a->out;
  double taps = (double)(s.kernel[0] * s.kernel[1]);
  int64_t out = s.oh * s.ow;
  (void)err;
  for (int64_t o = 0; o < s.n * s.c * out; o++)
    y[o] = (REAL)(window_sum(&s, x + o / out * s.h * s.w, o % out / s.ow, o % s.ow) / taps);
  return CLV_OK;
}

/* Returns the sum of dy over the windows that cover position (h, w). */
static double covering_sum(const clv_window *s, const REAL *dy, int64_t h, int64_t w) {
  double sum = 0;
  for (int64_t u = 0; u < s->kernel[0]; u++) {
    int64_t i = h + s->pad[0] - u;
    if (i < 0 || i % s->stride[0] || i / s->stride[0] >= s->oh) continue;
    for (int64_t v = 0; v < s->kernel[1]; v++) {
      int64_t j = w + s->pad[1] - v;
      if (j < 0 || j % s->stride[1] || j / s->stride[1] >= s->ow) continue;
      sum += dy[i / s->stride[0] * s->ow + j / s->stride[1]];
    }
  }
  return sum;
}

static clv_code avgpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_window s = clv_window_of(&((const clv_ref_kernel *)base)->d);
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  double taps = (double)(s.kernel[0] * s.kernel[1]);
  int64_t in = s.h * s.w;
  (void)err;
  for (int64_t i = 0; i < s.n * s.c * in; i++)
    dx[i] = (REAL)(covering_sum(&s, dy + i / in * s.oh * s.ow, i % in / s.w, i % s.w) / taps);
  return CLV_OK;
}

#endif
