/* SPDX-License-Identifier: Apache-2.0
 *
 * x [N, C, H, W], W [K, C/groups, kh, kw], y [N, K, OH, OW].
 */
#include "kernels/ops/bias_int.h"

static clv_code conv_shape(const clv_op_site *s, clv_shape *ret, clv_err *err) {
  int64_t image[2], groups = s->attrs->groups, channels;
  CLV_TRY(clv_need_rank("conv2d", &s->in[0], 4, "[N, C, H, W]", "", err));
  CLV_TRY(clv_check_no_empty("conv2d", &s->in[0], err));
  channels = s->in[0].dim[1];
  if (channels % groups || s->attrs->out % groups)
    return clv_fail(err, CLV_INVALID,
                    "conv2d with groups %lld needs channels in and out divisible by it; they are "
                    "%lld and %lld",
                    (long long)groups, (long long)channels, (long long)s->attrs->out);
  CLV_TRY(clv_window_extents("conv2d", s, image, err));
  *ret = CLV_SHAPE(s->in[0].dim[0], s->attrs->out, image[0], image[1]);
  return CLV_OK;
}

static int conv_slots(const clv_op_site *s, clv_slot ret[CLV_MAX_PARAMS]) {
  const clv_attrs *a = s->attrs;
  ret[CLV_SLOT_WEIGHT] = (clv_slot){
      .suffix = "weight",
      .shape = CLV_SHAPE(a->out, s->in[0].dim[1] / a->groups, a->kernel[0], a->kernel[1]),
      .init = a->kaiming_normal ? CLV_INIT_FAN_OUT : CLV_INIT_FAN_IN};
  ret[CLV_SLOT_BIAS] =
      (clv_slot){.suffix = "bias", .shape = CLV_SHAPE(a->out), .init = CLV_INIT_FAN_IN};
  return a->bias ? 2 : 1;
}

typedef struct conv_site {
  clv_window s;
  int64_t c_group, k_group; /* channels in and out of one group */
} conv_site;

static conv_site conv_of(const clv_ref_kernel *k) {
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
  const clv_ref_kernel *kernel = (const clv_ref_kernel *)base;
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
  conv_site v = conv_of((const clv_ref_kernel *)base);
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
  const clv_ref_kernel *kernel = (const clv_ref_kernel *)base;
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

CLV_OP_ROW(conv2d) = {
    .name = "conv2d",
    .doc =
        "y[n,k,i,j] = b[k] + sum_{c,u,v} W[k,c,u,v] x[n,c,i*stride-pad+u,j*stride-pad+v], "
        "x: [N, C, H, W], W: [K, C/groups, kh, kw] (torch.nn.functional.conv2d)",
    .torch_module =
        "Conv2d(out=out_channels, kernel=kernel_size, stride=stride, pad=padding, "
        "groups=groups, bias=bias)",
    .torch_needs = "dilation=1, padding_mode='zeros'",
    .n_in = 1,
    .mixes = CLV_MIXES_ALL,
    .attrs = {OUT_ATTR,
              {.key = CLV_ATTR_KERNEL, .required = true, .low = 1, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_STRIDE, .fallback = 1, .low = 1, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_PAD, .fallback = 0, .low = 0, .high = CLV_EXTENT_MAX},
              {.key = CLV_ATTR_GROUPS, .fallback = 1, .low = 1, .high = CLV_EXTENT_MAX},
              BIAS_ATTR,
              {.key = CLV_ATTR_KAIMING_NORMAL, .fallback = 0, .low = 0, .high = 1}},
    .shape = conv_shape,
    .slots = conv_slots,
    .most_params = 2,
    .bf16_in = true,
    .forward = conv2d_forward,
    .backward_input = conv2d_backward_input,
    .backward_weight = conv2d_backward_weight,
    .saves_dw = CLV_SAVE_IN0,
};
