/* SPDX-License-Identifier: Apache-2.0
 *
 * avgpool_int: the loops of avgpool and avgpool1d.
 */
#ifndef CLEAVE_OPS_AVGPOOL_INT_H
#define CLEAVE_OPS_AVGPOOL_INT_H

#include "kernels/ops/pool_int.h"

static double sum_window(const clv_window *s, const REAL *x, int64_t i, int64_t j) {
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
  double n_taps = (double)(s.kernel[0] * s.kernel[1]);
  int64_t n_plane_outputs = s.oh * s.ow;
  (void)err;
  for (int64_t o = 0; o < s.n * s.c * n_plane_outputs; o++)
    y[o] = (REAL)(sum_window(&s, x + o / n_plane_outputs * s.h * s.w, o % n_plane_outputs / s.ow,
                             o % s.ow) /
                  n_taps);
  return CLV_OK;
}

/* Returns the sum of dy over the windows that cover position (h, w). */
static double sum_covering_windows(const clv_window *s, const REAL *dy, int64_t h, int64_t w) {
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
  double n_taps = (double)(s.kernel[0] * s.kernel[1]);
  int64_t n_plane_inputs = s.h * s.w;
  (void)err;
  for (int64_t i = 0; i < s.n * s.c * n_plane_inputs; i++)
    dx[i] = (REAL)(sum_covering_windows(&s, dy + i / n_plane_inputs * s.oh * s.ow,
                                        i % n_plane_inputs / s.w, i % s.w) /
                   n_taps);
  return CLV_OK;
}

#endif
