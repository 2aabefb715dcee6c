/* SPDX-License-Identifier: Apache-2.0
 *
 * linear and conv2d over REAL. Formulas: the op table (common/graph/op_dense.c).
 */

static void put(REAL *dst, double value, bool accumulate) {
  *dst = accumulate ? *dst + (REAL)value : (REAL)value;
}

/* ---- linear: x [rows, F], W [out, F], y [rows, out]; rows: N, or N T of a sequence ----------- */

static int64_t linear_rows(const ref_kernel *k, int64_t *ret_features) {
  *ret_features = k->d.in[0].dim[k->d.in[0].rank - 1];
  return (int64_t)k->n_in / *ret_features;
}

static clv_code linear_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0], *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  REAL *y = a->out;
  int64_t features, batch = linear_rows(k, &features), out = k->d.attrs.out;
  (void)err;
  for (int64_t n = 0; n < batch; n++)
    for (int64_t o = 0; o < out; o++) {
      double sum = k->d.attrs.bias ? b[o] : 0;
      for (int64_t f = 0; f < features; f++)
        sum += (double)x[n * features + f] * w[o * features + f];
      y[n * out + o] = (REAL)sum;
    }
  return CLV_OK;
}

static clv_code linear_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *dy = a->dout, *w = a->param[CLV_SLOT_WEIGHT];
  REAL *dx = a->din[0];
  int64_t features, batch = linear_rows(k, &features), out = k->d.attrs.out;
  (void)err;
  for (int64_t n = 0; n < batch; n++)
    for (int64_t f = 0; f < features; f++) {
      double sum = 0;
      for (int64_t o = 0; o < out; o++) sum += (double)dy[n * out + o] * w[o * features + f];
      dx[n * features + f] = (REAL)sum;
    }
  return CLV_OK;
}

/* db[k] from dy [N, K, inner]. */
static void bias_gradient(const REAL *dy, int64_t batch, int64_t channels, int64_t inner, REAL *db,
                          bool accumulate) {
  for (int64_t c = 0; c < channels; c++) {
    double sum = 0;
    for (int64_t n = 0; n < batch; n++)
      for (int64_t i = 0; i < inner; i++) sum += dy[(n * channels + c) * inner + i];
    put(&db[c], sum, accumulate);
  }
}

static clv_code linear_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *k = (const ref_kernel *)base;
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  int64_t features, batch = linear_rows(k, &features), out = k->d.attrs.out;
  (void)err;
  for (int64_t o = 0; o < out; o++)
    for (int64_t f = 0; f < features; f++) {
      double sum = 0;
      for (int64_t n = 0; n < batch; n++) sum += (double)dy[n * out + o] * x[n * features + f];
      put(&dw[o * features + f], sum, a->accumulate);
    }
  if (k->d.attrs.bias) bias_gradient(dy, batch, out, 1, a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}

/* ---- conv2d: x [N, C, H, W], W [K, C/groups, kh, kw], y [N, K, OH, OW] -------------------------
 */

typedef struct conv_site {
  clv_window s;
  int64_t c_group, k_group; /* channels in and out of one group */
} conv_site;

static conv_site conv_of(const ref_kernel *k) {
  conv_site v = {.s = clv_window_of(&k->d)};
  v.c_group = v.s.c / k->d.attrs.groups;
  v.k_group = v.s.k / k->d.attrs.groups;
  return v;
}

/* The window of one channel: sum over u, v of w[u][v] x[i*stride - pad + u][j*stride - pad + v]. */
static double conv_channel(const clv_window *s, const REAL *x, const REAL *w, int64_t i,
                           int64_t j) {
  double sum = 0;
  for (int64_t u = 0; u < s->kernel[0]; u++) {
    int64_t h = i * s->stride[0] - s->pad[0] + u;
    if (h < 0 || h >= s->h) continue;
    for (int64_t v = 0; v < s->kernel[1]; v++) {
      int64_t q = j * s->stride[1] - s->pad[1] + v;
      if (q >= 0 && q < s->w) sum += (double)w[u * s->kernel[1] + v] * x[h * s->w + q];
    }
  }
  return sum;
}

static clv_code conv2d_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *kernel = (const ref_kernel *)base;
  conv_site v = conv_of(kernel);
  const clv_window *s = &v.s;
  const REAL *x = a->in[0], *w = a->param[CLV_SLOT_WEIGHT], *b = a->param[CLV_SLOT_BIAS];
  REAL *y = a->out;
  int64_t taps = s->kernel[0] * s->kernel[1], image = s->oh * s->ow;
  (void)err;
  for (int64_t nk = 0; nk < s->n * s->k; nk++) {
    int64_t n = nk / s->k, k = nk % s->k, first = k / v.k_group * v.c_group;
    for (int64_t o = 0; o < image; o++) {
      double sum = kernel->d.attrs.bias ? b[k] : 0;
      for (int64_t c = 0; c < v.c_group; c++)
        sum += conv_channel(s, x + (n * s->c + first + c) * s->h * s->w,
                            w + (k * v.c_group + c) * taps, o / s->ow, o % s->ow);
      y[nk * image + o] = (REAL)sum;
    }
  }
  return CLV_OK;
}

/* What one output channel contributes to dx at (h, q): every output whose window covers it. */
static double conv_channel_back(const clv_window *s, const REAL *dy, const REAL *w, int64_t h,
                                int64_t q) {
  double sum = 0;
  for (int64_t u = 0; u < s->kernel[0]; u++) {
    int64_t i = h + s->pad[0] - u;
    if (i < 0 || i % s->stride[0] || i / s->stride[0] >= s->oh) continue;
    for (int64_t v = 0; v < s->kernel[1]; v++) {
      int64_t j = q + s->pad[1] - v;
      if (j < 0 || j % s->stride[1] || j / s->stride[1] >= s->ow) continue;
      sum += (double)w[u * s->kernel[1] + v] * dy[i / s->stride[0] * s->ow + j / s->stride[1]];
    }
  }
  return sum;
}

static clv_code conv2d_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  conv_site v = conv_of((const ref_kernel *)base);
  const clv_window *s = &v.s;
  const REAL *dy = a->dout, *w = a->param[CLV_SLOT_WEIGHT];
  REAL *dx = a->din[0];
  int64_t taps = s->kernel[0] * s->kernel[1], image = s->h * s->w;
  (void)err;
  for (int64_t nc = 0; nc < s->n * s->c; nc++) {
    int64_t n = nc / s->c, c = nc % s->c, first = c / v.c_group * v.k_group;
    for (int64_t o = 0; o < image; o++) {
      double sum = 0;
      for (int64_t k = first; k < first + v.k_group; k++)
        sum += conv_channel_back(s, dy + (n * s->k + k) * s->oh * s->ow,
                                 w + (k * v.c_group + c % v.c_group) * taps, o / s->w, o % s->w);
      dx[nc * image + o] = (REAL)sum;
    }
  }
  return CLV_OK;
}

/* One image's contribution to dw[u][v]: sum over i, j of dy[i][j] x[i*stride - pad + u][...]. */
static double conv_tap(const clv_window *s, const REAL *x, const REAL *dy, int64_t u, int64_t v) {
  double sum = 0;
  for (int64_t i = 0; i < s->oh; i++) {
    int64_t h = i * s->stride[0] - s->pad[0] + u;
    if (h < 0 || h >= s->h) continue;
    for (int64_t j = 0; j < s->ow; j++) {
      int64_t q = j * s->stride[1] - s->pad[1] + v;
      if (q >= 0 && q < s->w) sum += (double)dy[i * s->ow + j] * x[h * s->w + q];
    }
  }
  return sum;
}

static clv_code conv2d_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const ref_kernel *kernel = (const ref_kernel *)base;
  conv_site v = conv_of(kernel);
  const clv_window *s = &v.s;
  const REAL *x = a->in[0], *dy = a->dout;
  REAL *dw = a->dparam[CLV_SLOT_WEIGHT];
  int64_t taps = s->kernel[0] * s->kernel[1], image = s->oh * s->ow;
  (void)err;
  for (int64_t kc = 0; kc < s->k * v.c_group; kc++) {
    int64_t k = kc / v.c_group, c = k / v.k_group * v.c_group + kc % v.c_group;
    for (int64_t t = 0; t < taps; t++) {
      double sum = 0;
      for (int64_t n = 0; n < s->n; n++)
        sum += conv_tap(s, x + (n * s->c + c) * s->h * s->w, dy + (n * s->k + k) * image,
                        t / s->kernel[1], t % s->kernel[1]);
      put(&dw[kc * taps + t], sum, a->accumulate);
    }
  }
  if (kernel->d.attrs.bias)
    bias_gradient(dy, s->n, s->k, image, a->dparam[CLV_SLOT_BIAS], a->accumulate);
  return CLV_OK;
}
