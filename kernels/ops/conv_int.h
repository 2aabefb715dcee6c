/* SPDX-License-Identifier: Apache-2.0
 *
 * conv_int: convolutions over one or two spatial dimensions, and their transposes: x [N, C, H, W],
 * W [K, C/groups, kh, kw], y [N, K, OH, OW]; one dimension is an image of one row. A transposed
 * convolution takes the y of such a convolution as input, and its output has the shape of x: its
 * forward is the input gradient of the convolution.
 */
#ifndef CLEAVE_OPS_CONV_INT_H
#define CLEAVE_OPS_CONV_INT_H

#include "kernels/ops/bias_int.h"

#define WINDOW_ATTR(name, ...) \
  { .key = CLV_ATTR_##name, .high = CLV_EXTENT_MAX, __VA_ARGS__ }
#define CONV_ATTRS                                                         \
  OUT_ATTR, WINDOW_ATTR(KERNEL, .is_required = true, .low = 1),            \
      WINDOW_ATTR(STRIDE, .default_value = 1, .low = 1), WINDOW_ATTR(PAD), \
      WINDOW_ATTR(DILATION, .default_value = 1, .low = 1),                 \
      WINDOW_ATTR(GROUPS, .default_value = 1, .low = 1), BIAS_ATTR

/* ---- shapes of convolutions ------------------------------------------------------------------ */

/* Fails unless each attribute of an op with one spatial dimension has the same number in both
 * halves of its pair. */
static inline clv_code check_pair_halves_equal(const char *op, const clv_attrs *a, clv_err *err) {
  const struct {
    const char *name;
    const int64_t *v;
  } pairs[] = {{"kernel", a->kernel},
               {"stride", a->stride},
               {"pad", a->pad},
               {"dilation", a->dilation},
               {"output_pad", a->output_pad}};
  for (size_t i = 0; i < CLV_COUNT(pairs); i++)
    if (pairs[i].v[0] != pairs[i].v[1])
      return clv_fail(err, CLV_INVALID, "%s.%s is one integer, got [%lld, %lld]", op, pairs[i].name,
                      (long long)pairs[i].v[0], (long long)pairs[i].v[1]);
  return CLV_OK;
}

static inline clv_code check_conv_input(const char *op, int n_spatial_dims, const clv_op_site *s,
                                        clv_err *err) {
  const char *layout = n_spatial_dims == 1 ? "[N, C, L]" : "[N, C, H, W]";
  int64_t groups = s->attrs->groups;
  CLV_TRY(clv_check_rank(op, &s->in[0], 2 + n_spatial_dims, layout, "", err));
  CLV_TRY(clv_check_no_empty_dim(op, &s->in[0], err));
  if (n_spatial_dims == 1) CLV_TRY(check_pair_halves_equal(op, s->attrs, err));
  if (s->in[0].dim[1] % groups || s->attrs->out % groups)
    return clv_fail(err, CLV_INVALID,
                    "%s with groups %lld needs channels in and out divisible by it; they are "
                    "%lld and %lld",
                    op, (long long)groups, (long long)s->in[0].dim[1], (long long)s->attrs->out);
  return CLV_OK;
}

static inline clv_shape conv_output_shape(const clv_op_site *s, int n_spatial_dims,
                                          const int64_t *extents) {
  clv_shape out = CLV_SHAPE(s->in[0].dim[0], s->attrs->out);
  for (int i = 0; i < n_spatial_dims; i++) out.dim[out.rank++] = extents[i];
  return out;
}

static inline clv_code conv_shape(const char *op, int n_spatial_dims, const clv_op_site *s,
                                  clv_shape *ret, clv_err *err) {
  int64_t extents[2];
  CLV_TRY(check_conv_input(op, n_spatial_dims, s, err));
  CLV_TRY(clv_window_extents(op, s, extents, err));
  *ret = conv_output_shape(s, n_spatial_dims, extents);
  return CLV_OK;
}

/* Computes the output shape of a transposed convolution. Attributes are at most 2^31 - 1 each, so
 * 64 bits do not overflow. */
static inline clv_code conv_transpose_shape(const char *op, int n_spatial_dims,
                                            const clv_op_site *s, clv_shape *ret, clv_err *err) {
  const clv_attrs *a = s->attrs;
  int64_t extents[2];
  char text[160];
  CLV_TRY(check_conv_input(op, n_spatial_dims, s, err));
  for (int i = 0; i < n_spatial_dims; i++) {
    if (a->output_pad[i] >= a->stride[i])
      return clv_fail(err, CLV_INVALID, "%s: output_pad %lld must be less than stride %lld", op,
                      (long long)a->output_pad[i], (long long)a->stride[i]);
    extents[i] = (s->in[0].dim[2 + i] - 1) * a->stride[i] + a->dilation[i] * (a->kernel[i] - 1) +
                 a->output_pad[i] + 1 - 2 * a->pad[i];
    if (extents[i] < 1)
      return clv_fail(err, CLV_INVALID, "%s: pad %lld leaves nothing of the output of %s", op,
                      (long long)a->pad[i], clv_shape_format(&s->in[0], text, sizeof text));
  }
  *ret = conv_output_shape(s, n_spatial_dims, extents);
  return CLV_OK;
}

/* Writes the slots of weight and bias, shaped as in PyTorch: the weight is [dim0_channels,
 * dim1_channels / groups, kernel...], where the two are the output and input channels of a
 * convolution, and the input and output channels of a transposed one. */
static inline int conv_slots(const clv_op_site *s, int n_spatial_dims, int64_t dim0_channels,
                             int64_t dim1_channels, clv_slot ret[CLV_MAX_PARAMS]) {
  const clv_attrs *a = s->attrs;
  clv_shape weight = CLV_SHAPE(dim0_channels, dim1_channels / a->groups);
  for (int i = 0; i < n_spatial_dims; i++) weight.dim[weight.rank++] = a->kernel[i];
  ret[CLV_SLOT_WEIGHT] = (clv_slot){.suffix = "weight",
                                    .shape = weight,
                                    .init = a->kaiming_normal ? CLV_INIT_FAN_OUT : CLV_INIT_FAN_IN};
  ret[CLV_SLOT_BIAS] =
      (clv_slot){.suffix = "bias", .shape = CLV_SHAPE(a->out), .init = CLV_INIT_FAN_IN};
  return a->bias ? 2 : 1;
}

/* ---- reference loops ------------------------------------------------------------------------- */

typedef struct ops_conv_extents {
  clv_window s;
  int64_t c_per_group, k_per_group; /* channels of x and of y in one group */
} ops_conv_extents;

static inline ops_conv_extents make_conv_extents(const clv_ref_kernel *k) {
  ops_conv_extents v = {.s = clv_window_of(&k->d)};
  v.c_per_group = v.s.c / k->d.attrs.groups;
  v.k_per_group = v.s.k / k->d.attrs.groups;
  return v;
}

/* Returns the contribution of one channel of x to y at (i, j): sum over u, v of w[u][v]
 * x[i*stride - pad + u*dilation][j*stride - pad + v*dilation]. */
static inline double sum_window(const clv_window *s, const REAL *x, const REAL *w, int64_t i,
                                int64_t j) {
  double sum = 0;
  for (int64_t u = 0; u < s->kernel[0]; u++) {
    int64_t h = i * s->stride[0] - s->pad[0] + u * s->dilation[0];
    if (h < 0 || h >= s->h) continue;
    for (int64_t v = 0; v < s->kernel[1]; v++) {
      int64_t q = j * s->stride[1] - s->pad[1] + v * s->dilation[1];
      if (q >= 0 && q < s->w) sum += (double)w[u * s->kernel[1] + v] * x[h * s->w + q];
    }
  }
  return sum;
}

/* Computes y, the convolution of x with the weights w. b: bias of each channel of y, or NULL. */
static inline void compute_conv_y(const ops_conv_extents *v, const REAL *x, const REAL *w,
                                  const REAL *b, REAL *y) {
  const clv_window *s = &v->s;
  int64_t n_taps = s->kernel[0] * s->kernel[1], image_size = s->oh * s->ow;
  for (int64_t nk = 0; nk < s->n * s->k; nk++) {
    int64_t n = nk / s->k, k = nk % s->k, first_channel = k / v->k_per_group * v->c_per_group;
    for (int64_t o = 0; o < image_size; o++) {
      double sum = b ? b[k] : 0;
      for (int64_t c = 0; c < v->c_per_group; c++)
        sum += sum_window(s, x + (n * s->c + first_channel + c) * s->h * s->w,
                          w + (k * v->c_per_group + c) * n_taps, o / s->ow, o % s->ow);
      y[nk * image_size + o] = (REAL)sum;
    }
  }
}

/* Returns the contribution of one channel of y to x at (h, q), from every position of y whose
 * window covers (h, q). */
static inline double sum_covering_windows(const clv_window *s, const REAL *y, const REAL *w,
                                          int64_t h, int64_t q) {
  double sum = 0;
  for (int64_t u = 0; u < s->kernel[0]; u++) {
    int64_t i = h + s->pad[0] - u * s->dilation[0];
    if (i < 0 || i % s->stride[0] || i / s->stride[0] >= s->oh) continue;
    for (int64_t v = 0; v < s->kernel[1]; v++) {
      int64_t j = q + s->pad[1] - v * s->dilation[1];
      if (j < 0 || j % s->stride[1] || j / s->stride[1] >= s->ow) continue;
      sum += (double)w[u * s->kernel[1] + v] * y[i / s->stride[0] * s->ow + j / s->stride[1]];
    }
  }
  return sum;
}

/* Computes x from y as the input gradient of a convolution does, which is also the forward of a
 * transposed convolution. b: bias of each channel of x, or NULL. */
static inline void compute_conv_x(const ops_conv_extents *v, const REAL *y, const REAL *w,
                                  const REAL *b, REAL *x) {
  const clv_window *s = &v->s;
  int64_t n_taps = s->kernel[0] * s->kernel[1], image_size = s->h * s->w;
  for (int64_t nc = 0; nc < s->n * s->c; nc++) {
    int64_t n = nc / s->c, c = nc % s->c, first_channel = c / v->c_per_group * v->k_per_group;
    for (int64_t o = 0; o < image_size; o++) {
      double sum = b ? b[c] : 0;
      for (int64_t k = first_channel; k < first_channel + v->k_per_group; k++)
        sum += sum_covering_windows(s, y + (n * s->k + k) * s->oh * s->ow,
                                    w + (k * v->c_per_group + c % v->c_per_group) * n_taps,
                                    o / s->w, o % s->w);
      x[nc * image_size + o] = (REAL)sum;
    }
  }
}

/* Returns the contribution of one plane of x and one of y to dw[u][v]: sum over i, j of y[i][j]
 * x[i*stride - pad + u*dilation][j*stride - pad + v*dilation]. */
static inline double sum_products_at_tap(const clv_window *s, const REAL *x, const REAL *y,
                                         int64_t u, int64_t v) {
  double sum = 0;
  for (int64_t i = 0; i < s->oh; i++) {
    int64_t h = i * s->stride[0] - s->pad[0] + u * s->dilation[0];
    if (h < 0 || h >= s->h) continue;
    for (int64_t j = 0; j < s->ow; j++) {
      int64_t q = j * s->stride[1] - s->pad[1] + v * s->dilation[1];
      if (q >= 0 && q < s->w) sum += (double)y[i * s->ow + j] * x[h * s->w + q];
    }
  }
  return sum;
}

static inline void compute_conv_weight_grad(const ops_conv_extents *v, const REAL *x, const REAL *y,
                                            REAL *dw, bool accumulate) {
  const clv_window *s = &v->s;
  int64_t n_taps = s->kernel[0] * s->kernel[1], image_size = s->oh * s->ow;
  for (int64_t kc = 0; kc < s->k * v->c_per_group; kc++) {
    int64_t k = kc / v->c_per_group, c = k / v->k_per_group * v->c_per_group + kc % v->c_per_group;
    for (int64_t t = 0; t < n_taps; t++) {
      double sum = 0;
      for (int64_t n = 0; n < s->n; n++)
        sum += sum_products_at_tap(s, x + (n * s->c + c) * s->h * s->w,
                                   y + (n * s->k + k) * image_size, t / s->kernel[1],
                                   t % s->kernel[1]);
      store_or_add(&dw[kc * n_taps + t], sum, accumulate);
    }
  }
}

/* ---- forward and backward of convolutions and transposed convolutions ------------------------ */

static inline clv_code conv_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  ops_conv_extents v = make_conv_extents(k);
  (void)err;
  compute_conv_y(&v, a->in[0], a->param[CLV_SLOT_WEIGHT],
                 k->d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL, a->out);
  return CLV_OK;
}

static inline clv_code conv_backward_input(clv_kernel *base, const clv_kernel_args *a,
                                           clv_err *err) {
  ops_conv_extents v = make_conv_extents((const clv_ref_kernel *)base);
  (void)err;
  compute_conv_x(&v, a->dout, a->param[CLV_SLOT_WEIGHT], NULL, a->din[0]);
  return CLV_OK;
}

static inline clv_code conv_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                            clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  ops_conv_extents v = make_conv_extents(k);
  (void)err;
  compute_conv_weight_grad(&v, a->in[0], a->dout, a->dparam[CLV_SLOT_WEIGHT], a->accumulate);
  if (k->d.attrs.bias)
    compute_bias_gradient(a->dout, v.s.n, v.s.k, v.s.oh * v.s.ow, a->dparam[CLV_SLOT_BIAS],
                          a->accumulate);
  return CLV_OK;
}

static inline clv_code conv_transpose_forward(clv_kernel *base, const clv_kernel_args *a,
                                              clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  ops_conv_extents v = make_conv_extents(k);
  (void)err;
  compute_conv_x(&v, a->in[0], a->param[CLV_SLOT_WEIGHT],
                 k->d.attrs.bias ? a->param[CLV_SLOT_BIAS] : NULL, a->out);
  return CLV_OK;
}

static inline clv_code conv_transpose_backward_input(clv_kernel *base, const clv_kernel_args *a,
                                                     clv_err *err) {
  ops_conv_extents v = make_conv_extents((const clv_ref_kernel *)base);
  (void)err;
  compute_conv_y(&v, a->dout, a->param[CLV_SLOT_WEIGHT], NULL, a->din[0]);
  return CLV_OK;
}

static inline clv_code conv_transpose_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                                      clv_err *err) {
  const clv_ref_kernel *k = (const clv_ref_kernel *)base;
  ops_conv_extents v = make_conv_extents(k);
  (void)err;
  compute_conv_weight_grad(&v, a->dout, a->in[0], a->dparam[CLV_SLOT_WEIGHT], a->accumulate);
  if (k->d.attrs.bias)
    compute_bias_gradient(a->dout, v.s.n, v.s.c, v.s.h * v.s.w, a->dparam[CLV_SLOT_BIAS],
                          a->accumulate);
  return CLV_OK;
}

/* Returns the number of inputs that each output sums: channels of a group, times the taps that
 * reach one output. Two taps u reach the same output if their u * dilation are equal modulo the
 * stride. */
static inline int64_t conv_transpose_fan_in(const clv_op_site *s) {
  int64_t n = s->in[0].dim[1] / s->attrs->groups;
  for (int i = 0; i < s->in[0].rank - 2; i++) {
    int64_t divisor = s->attrs->stride[i], remainder = s->attrs->dilation[i];
    while (remainder) {
      int64_t next_remainder = divisor % remainder;
      divisor = remainder;
      remainder = next_remainder;
    }
    /* distance, in taps, between two taps that reach the same output */
    int64_t tap_distance = s->attrs->stride[i] / divisor;
    n *= (s->attrs->kernel[i] + tap_distance - 1) / tap_distance;
  }
  return n;
}

#endif
