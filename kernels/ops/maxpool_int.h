/* SPDX-License-Identifier: Apache-2.0
 *
 * maxpool_int: the loops of maxpool and maxpool1d.
 */
#ifndef CLEAVE_OPS_MAXPOOL_INT_H
#define CLEAVE_OPS_MAXPOOL_INT_H

#include "kernels/ops/pool_int.h"

/* Computes max pooling of one plane as torch.nn.functional.max_pool2d does on a CPU: goes over
 * the taps in row-major order. A tap becomes the maximum if it is larger than the maximum so far,
 * or NaN. Padding never becomes the maximum. argmax[o] receives the maximum's index in the plane;
 * NULL: not written. */
static void maxpool_plane(const clv_window *s, const REAL *x, REAL *y, int64_t *argmax) {
  for (int64_t o = 0; o < s->oh * s->ow; o++) {
    int64_t h0 = o / s->ow * s->stride[0] - s->pad[0], w0 = o % s->ow * s->stride[1] - s->pad[1];
    int64_t h1 = CLV_MIN(h0 + s->kernel[0], s->h), w1 = CLV_MIN(w0 + s->kernel[1], s->w);
    h0 = CLV_MAX(h0, 0);
    w0 = CLV_MAX(w0, 0);
    REAL largest = -(REAL)INFINITY;
    int64_t index = h0 * s->w + w0;
    for (int64_t h = h0; h < h1; h++)
      for (int64_t w = w0; w < w1; w++) {
        REAL value = x[h * s->w + w];
        if (!(value > largest) && !isnan(value)) continue;
        largest = value;
        index = h * s->w + w;
      }
    y[o] = largest;
    if (argmax) argmax[o] = index;
  }
}

static clv_code maxpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  clv_window s = clv_window_of(&k->d);
  int64_t n_plane_outputs = s.oh * s.ow;
  (void)err;
  for (int64_t p = 0; p < s.n * s.c; p++)
    maxpool_plane(&s, (const REAL *)a->in[0] + p * s.h * s.w, (REAL *)a->out + p * n_plane_outputs,
                  k->has_backward ? (int64_t *)a->saved + p * n_plane_outputs : NULL);
  return CLV_OK;
}

static size_t maxpool_saved_bytes(const clv_ref_kernel *k) { return k->n_out * sizeof(int64_t); }

static clv_code maxpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_window s = clv_window_of(&((const clv_ref_kernel *)base)->d);
  const int64_t *argmax = a->saved;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  int64_t n_plane_inputs = s.h * s.w, n_plane_outputs = s.oh * s.ow;
  (void)err;
  for (int64_t i = 0; i < s.n * s.c * n_plane_inputs; i++) dx[i] = 0;
  for (int64_t o = 0; o < s.n * s.c * n_plane_outputs; o++)
    dx[o / n_plane_outputs * n_plane_inputs + argmax[o]] += dy[o];
  return CLV_OK;
}

#endif
