/* SPDX-License-Identifier: Apache-2.0
 *
 * Pooling over REAL. Channels are independent: each loop below handles one image plane.
 */

/* Max pooling of one plane as torch.nn.functional.max_pool2d (CPU): taps in scan order, a tap wins
 * when it is larger than the best so far or NaN; padding never wins. where[o] gets the winner's
 * index in the plane (NULL: not wanted). */
static void maxpool_plane(const clv_window *s, const REAL *x, REAL *y, int64_t *where) {
  for (int64_t o = 0; o < s->oh * s->ow; o++) {
    int64_t h0 = o / s->ow * s->stride[0] - s->pad[0], w0 = o % s->ow * s->stride[1] - s->pad[1];
    int64_t h1 = CLV_MIN(h0 + s->kernel[0], s->h), w1 = CLV_MIN(w0 + s->kernel[1], s->w);
    h0 = CLV_MAX(h0, 0);
    w0 = CLV_MAX(w0, 0);
    REAL best = -(REAL)INFINITY;
    int64_t at = h0 * s->w + w0;
    for (int64_t h = h0; h < h1; h++)
      for (int64_t w = w0; w < w1; w++) {
        REAL value = x[h * s->w + w];
        if (!(value > best) && !isnan(value)) continue;
        best = value;
        at = h * s->w + w;
      }
    y[o] = best;
    if (where) where[o] = at;
  }
}

static clv_code maxpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  clv_window s = clv_window_of(&k->d);
  int64_t out = s.oh * s.ow;
  (void)err;
  for (int64_t p = 0; p < s.n * s.c; p++)
    maxpool_plane(&s, (const REAL *)a->in[0] + p * s.h * s.w, (REAL *)a->out + p * out,
                  k->learns ? (int64_t *)a->saved + p * out : NULL);
  return CLV_OK;
}

static size_t maxpool_saved(const ref_kernel *k) { return k->n_out * sizeof(int64_t); }

static clv_code maxpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  clv_window s = clv_window_of(&((const ref_kernel *)base)->d);
  const int64_t *where = a->saved;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  int64_t in = s.h * s.w, out = s.oh * s.ow;
  (void)err;
  for (int64_t i = 0; i < s.n * s.c * in; i++) dx[i] = 0;
  for (int64_t o = 0; o < s.n * s.c * out; o++) dx[o / out * in + where[o]] += dy[o];
  return CLV_OK;
}

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
  clv_window s = clv_window_of(&((const ref_kernel *)base)->d);
  const REAL *x = a->in[0];
  REAL *y = a->out;
  double taps = (double)(s.kernel[0] * s.kernel[1]);
  int64_t out = s.oh * s.ow;
  (void)err;
  for (int64_t o = 0; o < s.n * s.c * out; o++)
    y[o] = (REAL)(window_sum(&s, x + o / out * s.h * s.w, o % out / s.ow, o % s.ow) / taps);
  return CLV_OK;
}

/* Sum of dy over the windows that cover (h, w). */
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
  clv_window s = clv_window_of(&((const ref_kernel *)base)->d);
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  double taps = (double)(s.kernel[0] * s.kernel[1]);
  int64_t in = s.h * s.w;
  (void)err;
  for (int64_t i = 0; i < s.n * s.c * in; i++)
    dx[i] = (REAL)(covering_sum(&s, dy + i / in * s.oh * s.ow, i % in / s.w, i % s.w) / taps);
  return CLV_OK;
}

static clv_code globalavgpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0];
  REAL *y = a->out;
  size_t image = k->n_in / k->n_out;
  (void)err;
  for (size_t p = 0; p < k->n_out; p++) {
    double sum = 0;
    for (size_t i = 0; i < image; i++) sum += x[p * image + i];
    y[p] = (REAL)(sum / (double)image);
  }
  return CLV_OK;
}

static clv_code globalavgpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *dy = a->dout;
  REAL *dx = a->din[0];
  size_t image = k->n_in / k->n_out;
  (void)err;
  for (size_t i = 0; i < k->n_in; i++) dx[i] = dy[i / image] / (REAL)image;
  return CLV_OK;
}
