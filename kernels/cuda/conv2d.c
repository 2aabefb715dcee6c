/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions and transposed convolutions, whose passes are those of a convolution in other roles.
 * cuDNN computes a pass if it has an engine for it. Otherwise im2col writes out the values under
 * each window, some samples at a time (at most COLUMN_BYTES, or one sample), and a product
 * multiplies them for each group: W [K, C taps] by columns [C taps, OH OW]. The choice depends only
 * on the library and the shapes.
 */
#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/conv_int.h"

enum { COLUMN_BYTES = 64 << 20 };

typedef struct conv2d_extents {
  clv_window s;
  int64_t groups, c, k;   /* c, k: input and output channels of one group */
  int64_t taps, image;    /* taps: taps of a window; image: values of one channel of an output */
  int64_t samples, parts; /* samples: samples at a time; parts: number of such parts of the batch */
  size_t column_bytes;
} conv2d_extents;

static conv2d_extents describe_conv(const cuda_kernel *k) {
  conv2d_extents v = {.s = clv_window_of(&k->r.d), .groups = k->r.d.attrs.groups};
  v.c = v.s.c / v.groups;
  v.k = v.s.k / v.groups;
  v.taps = v.s.kernel[0] * v.s.kernel[1];
  v.image = v.s.oh * v.s.ow;
  int64_t bytes = v.c * v.taps * v.image * (int64_t)sizeof(float);
  v.samples = CLV_MAX(CLV_MIN(bytes ? COLUMN_BYTES / bytes : 1, v.s.n), 1);
  while (v.s.n % v.samples) v.samples--;
  v.parts = v.s.n / v.samples;
  v.column_bytes = (size_t)(bytes * v.samples);
  return v;
}

/* Buffers in scratch: the columns of im2col, and in bf16 the rounded outputs and weights, as
 * operands of products. */
typedef struct conv_buffers {
  char *columns;
  cuda_bf16 *y, *w;
} conv_buffers;

static size_t count_outputs(const conv2d_extents *v) {
  return (size_t)(v->s.n * v->s.k * v->image);
}
static size_t count_weights(const conv2d_extents *v) { return (size_t)(v->s.k * v->c * v->taps); }

static conv_buffers find_buffers(const cuda_kernel *k, const clv_kernel_args *a,
                                 const conv2d_extents *v) {
  conv_buffers r = {.columns = gpu_scratch(k, a)};
  char *at = r.columns + clv_align_up(v->column_bytes, 256);
  r.y = (cuda_bf16 *)at;
  r.w = (cuda_bf16 *)(at + gpu_factor_bytes(k, count_outputs(v)));
  return r;
}

static size_t count_buffer_bytes(const cuda_kernel *k, const conv2d_extents *v) {
  return clv_align_up(v->column_bytes, 256) + gpu_factor_bytes(k, count_outputs(v)) +
         gpu_factor_bytes(k, count_weights(v));
}

/* Returns the address of value i of an operand of products. */
static const void *factor_address(const cuda_kernel *k, const void *factor, size_t i) {
  return (const char *)factor + i * (k->bf16 ? sizeof(cuda_bf16) : sizeof(float));
}

static clv_code prepare_outputs(const cuda_kernel *k, const conv2d_extents *v, cuda_conv_operands e,
                                const conv_buffers *r, const void **ret, clv_err *err) {
  return clv_gpu_prepare_factor(k, e.y, count_outputs(v), r->y, ret, err);
}
static clv_code prepare_weights(const cuda_kernel *k, const clv_kernel_args *a,
                                const conv2d_extents *v, const conv_buffers *r, const void **ret,
                                clv_err *err) {
  return clv_gpu_prepare_factor(k, a->param[CLV_SLOT_WEIGHT], count_weights(v), r->w, ret, err);
}

/* ---- passes computed by im2col --------------------------------------------------------------- */

static cuda_columns make_columns(const conv2d_extents *v) {
  return (cuda_columns){.window = v->s,
                        .samples = (size_t)v->samples,
                        .channels = (size_t)v->c,
                        .stride = (size_t)(v->s.c * v->s.h * v->s.w)};
}

/* Return the index of the first value of part `part` of the samples, in channel group `group`: of
 * the inputs, of the outputs, and of the weights. */
static size_t input_index(const conv2d_extents *v, int64_t part, int64_t group) {
  return (size_t)((part * v->samples * v->s.c + group * v->c) * v->s.h * v->s.w);
}
static size_t output_index(const conv2d_extents *v, int64_t part, int64_t group) {
  return (size_t)((part * v->samples * v->s.k + group * v->k) * v->image);
}
static size_t weights_index(const conv2d_extents *v, int64_t group) {
  return (size_t)(group * v->k * v->c * v->taps);
}

static clv_code forward_by_columns(const cuda_kernel *k, const clv_kernel_args *a,
                                   const conv2d_extents *v, cuda_conv_operands e, clv_err *err) {
  cuda_columns c = make_columns(v);
  conv_buffers r = find_buffers(k, a, v);
  const void *w;
  CLV_TRY(prepare_weights(k, a, v, &r, &w, err));
  for (int64_t i = 0; i < v->parts * v->groups; i++) {
    int64_t part = i / v->groups, group = i % v->groups;
    CLV_TRY(clv_gpu_to_columns(k->gpu, &c, (const float *)e.x + input_index(v, part, group),
                               r.columns, k->bf16, err));
    cuda_factors f = {.a = r.columns,
                      .b = factor_address(k, w, weights_index(v, group)),
                      .d = (float *)e.y + output_index(v, part, group)};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_FORWARD, &f, a, err));
  }
  return CLV_OK;
}

static clv_code input_grad_by_columns(const cuda_kernel *k, const clv_kernel_args *a,
                                      const conv2d_extents *v, cuda_conv_operands e, clv_err *err) {
  cuda_columns c = make_columns(v);
  conv_buffers r = find_buffers(k, a, v);
  float *columns = (float *)(void *)r.columns;
  const void *w, *y;
  CLV_TRY(prepare_weights(k, a, v, &r, &w, err));
  CLV_TRY(prepare_outputs(k, v, e, &r, &y, err));
  for (int64_t i = 0; i < v->parts * v->groups; i++) {
    int64_t part = i / v->groups, group = i % v->groups;
    cuda_factors f = {.a = factor_address(k, y, output_index(v, part, group)),
                      .b = factor_address(k, w, weights_index(v, group)),
                      .d = columns};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_GRAD_INPUT, &f, a, err));
    CLV_TRY(
        clv_gpu_from_columns(k->gpu, &c, columns, (float *)e.x + input_index(v, part, group), err));
  }
  return CLV_OK;
}

/* Computes the weight gradient by im2col. Adds the samples one after the other, so that the order
 * of the sum does not depend on the batch. */
static clv_code weight_grad_by_columns(const cuda_kernel *k, const clv_kernel_args *a,
                                       const conv2d_extents *v, cuda_conv_operands e,
                                       clv_err *err) {
  cuda_columns c = make_columns(v);
  conv_buffers r = find_buffers(k, a, v);
  size_t values_per_sample = (size_t)(v->c * v->taps * v->image);
  const void *y;
  CLV_TRY(prepare_outputs(k, v, e, &r, &y, err));
  for (int64_t i = 0; i < v->parts * v->groups; i++) {
    int64_t part = i / v->groups, group = i % v->groups;
    CLV_TRY(clv_gpu_to_columns(k->gpu, &c, (const float *)e.x + input_index(v, part, group),
                               r.columns, k->bf16, err));
    for (int64_t n = 0; n < v->samples; n++) {
      size_t at = output_index(v, part, group) + (size_t)(n * v->s.k * v->image);
      cuda_factors f = {.a = factor_address(k, r.columns, (size_t)n * values_per_sample),
                        .b = factor_address(k, y, at),
                        .beta = part || n || a->accumulate ? 1 : 0,
                        .d = (float *)a->dparam[CLV_SLOT_WEIGHT] + weights_index(v, group)};
      CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_GRAD_WEIGHT, &f, a, err));
    }
  }
  return CLV_OK;
}

static clv_code open_columns(cuda_kernel *k, const conv2d_extents *v, clv_cuda_pass pass,
                             clv_err *err) {
  int64_t column_rows = v->c * v->taps, in = column_rows * v->image, out = v->s.k * v->image;
  const clv_cuda_matmul_desc products[] = {
      [CLV_CUDA_FORWARD] = {.m = v->image,
                            .n = v->k,
                            .k = column_rows,
                            .lda = v->image,
                            .ldb = column_rows,
                            .ldd = v->image,
                            .batch = v->samples,
                            .stride_a = in,
                            .stride_d = out},
      [CLV_CUDA_GRAD_INPUT] = {.b_t = true,
                               .m = v->image,
                               .n = column_rows,
                               .k = v->k,
                               .lda = v->image,
                               .ldb = column_rows,
                               .ldd = v->image,
                               .batch = v->samples,
                               .stride_a = out,
                               .stride_d = in},
      [CLV_CUDA_GRAD_WEIGHT] = {.a_t = true,
                                .m = column_rows,
                                .n = v->k,
                                .k = v->image,
                                .lda = v->image,
                                .ldb = v->image,
                                .ldd = column_rows,
                                .batch = 1},
  };
  return clv_gpu_new_product(k, (int)pass, &products[pass], err);
}

/* ---- a pass, by cuDNN or by im2col ----------------------------------------------------------- */

typedef clv_code columns_fn(const cuda_kernel *k, const clv_kernel_args *a, const conv2d_extents *v,
                            cuda_conv_operands e, clv_err *err);

static columns_fn *const columns_fns[] = {[CLV_CUDA_FORWARD] = forward_by_columns,
                                          [CLV_CUDA_GRAD_INPUT] = input_grad_by_columns,
                                          [CLV_CUDA_GRAD_WEIGHT] = weight_grad_by_columns};

/* Computes a pass; the pass determines whether x, y or the weights' gradient is written. */
static clv_code run_pass(const cuda_kernel *k, const clv_kernel_args *a, clv_cuda_pass pass,
                         const void *x, const void *y, clv_err *err) {
  conv2d_extents v = describe_conv(k);
  cuda_conv_operands e = {(void *)(uintptr_t)x, (void *)(uintptr_t)y};
  bool is_weight_grad = pass == CLV_CUDA_GRAD_WEIGHT;
  if (k->channels_last) return clv_gpu_conv_last_pass(k, a, pass, e, err);
  if (!k->conv[pass]) return columns_fns[pass](k, a, &v, e, err);
  return k->gpu->vendor->conv(
      k->gpu->stream, k->conv[pass], e.x,
      is_weight_grad ? a->dparam[CLV_SLOT_WEIGHT] : a->param[CLV_SLOT_WEIGHT], e.y,
      is_weight_grad && a->accumulate ? 1 : 0, a->scratch, err);
}

/* ---- the bias, of the output [n, channels, inner] -------------------------------------------- */

typedef struct conv_output {
  size_t n, channels, inner;
} conv_output;

static conv_output output_extents(const cuda_kernel *k) {
  const clv_shape *out = &k->r.d.out;
  conv_output o = {(size_t)out->dim[0], (size_t)out->dim[1], 1};
  for (int i = 2; i < out->rank; i++) o.inner *= (size_t)out->dim[i];
  return o;
}

static clv_code add_bias(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  conv_output o = output_extents(k);
  size_t n = k->channels_last ? o.n * o.inner : o.n, inner = k->channels_last ? 1 : o.inner;
  if (!k->r.d.attrs.bias) return CLV_OK;
  return clv_gpu_add_bias(k->gpu, k->channels_last, a->param[CLV_SLOT_BIAS], a->out, n, o.channels,
                          inner, k->r.d.tail, err);
}

static cuda_sums bias_sums(const cuda_kernel *k) {
  conv_output o = output_extents(k);
  return k->channels_last ? gpu_sums_channels_last(o.n, o.channels, o.inner)
                          : gpu_sums_of(o.n, o.channels, o.inner);
}

/* Computes the bias gradient. Its scratch overlaps the columns, which no later step reads. */
static clv_code bias_gradient(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  cuda_sums sums = bias_sums(k);
  if (!k->r.d.attrs.bias) return CLV_OK;
  return clv_gpu_channel_sums(k->gpu, &sums, k->channels_last, a->dout, gpu_scratch(k, a),
                              a->dparam[CLV_SLOT_BIAS], a->accumulate, err);
}

/* ---- functions of the ops -------------------------------------------------------------------- */

static clv_code conv_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  CLV_TRY(run_pass(k, a, CLV_CUDA_FORWARD, a->in[0], a->out, err));
  return add_bias(k, a, err);
}

static clv_code conv_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_pass(gpu_kernel_of(base), a, CLV_CUDA_GRAD_INPUT, a->din[0], a->dout, err);
}

static clv_code conv_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  CLV_TRY(run_pass(k, a, CLV_CUDA_GRAD_WEIGHT, a->in[0], a->dout, err));
  return bias_gradient(k, a, err);
}

static clv_code transpose_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  CLV_TRY(run_pass(k, a, CLV_CUDA_GRAD_INPUT, a->out, a->in[0], err));
  return add_bias(k, a, err);
}

static clv_code transpose_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  return run_pass(gpu_kernel_of(base), a, CLV_CUDA_FORWARD, a->dout, a->din[0], err);
}

static clv_code transpose_backward_weight(clv_kernel *base, const clv_kernel_args *a,
                                          clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  CLV_TRY(run_pass(k, a, CLV_CUDA_GRAD_WEIGHT, a->dout, a->in[0], err));
  return bias_gradient(k, a, err);
}

/* ---- preparing a kernel ---------------------------------------------------------------------- */

static clv_code open_pass(cuda_kernel *k, const conv2d_extents *v, clv_cuda_pass pass,
                          bool *ret_written, clv_err *err) {
  clv_cuda_conv_desc d = {
      .pass = pass, .window = v->s, .groups = v->groups, .math = gpu_math_of(k)};
  size_t workspace = 0;
  *ret_written |= k->bf16; /* in bf16 uses im2col, because cuDNN would round its output */
  if (k->bf16) return open_columns(k, v, pass, err);
  clv_code code = k->gpu->vendor->conv_new(k->gpu->device, &d, &k->conv[pass], &workspace, err);
  k->workspace_bytes = CLV_MAX(k->workspace_bytes, workspace);
  if (code != CLV_UNIMPLEMENTED) return code;
  *ret_written = true;
  return open_columns(k, v, pass, err);
}

static clv_code open_row_major(cuda_kernel *k, const cuda_passes *p, clv_err *err) {
  conv2d_extents v = describe_conv(k);
  bool is_written = false;
  for (clv_cuda_pass pass = CLV_CUDA_FORWARD; pass <= CLV_CUDA_GRAD_WEIGHT; pass++)
    if (p->is_wanted[pass]) CLV_TRY(open_pass(k, &v, pass, &is_written, err));
  k->workspace_bytes = clv_align_up(k->workspace_bytes, 256);
  k->r.base.scratch_bytes = k->workspace_bytes + (is_written ? count_buffer_bytes(k, &v) : 0);
  k->r.base.impl = !is_written ? "cuDNN" : k->bf16 ? "columns bf16" : "columns";
  return CLV_OK;
}

static clv_code conv_open(cuda_kernel *k, clv_err *err) {
  bool dx = k->r.d.need_dx[0], is_transposed = clv_is_conv_transpose(k->r.d.op);
  cuda_passes p = {{!is_transposed || dx, is_transposed || dx, k->r.d.need_dw}};
  cuda_sums sums = bias_sums(k);
  if (k->r.d.tail && !k->r.d.attrs.bias)
    return clv_fail(err, CLV_UNIMPLEMENTED,
                    "no kernel for a relu after a convolution without bias");
  CLV_TRY((k->channels_last ? clv_gpu_conv_last_open : open_row_major)(k, &p, err));
  size_t bias_scratch_bytes =
      k->r.d.need_dw ? k->workspace_bytes + gpu_partial_sums_bytes(&sums) : 0;
  k->r.base.scratch_bytes = CLV_MAX(k->r.base.scratch_bytes, bias_scratch_bytes);
  return CLV_OK;
}

#define PASSES(name)                                                               \
  .forward = name##_forward, .backward_input = name##_backward_input,              \
  .backward_weight = name##_backward_weight, .refresh = clv_gpu_conv_last_refresh, \
  .open = conv_open, .tails = CLV_TAIL_RELU_FORWARD

CLV_CUDA_OP(conv2d) = {PASSES(conv), .bf16 = true, .channels_last = true};
CLV_CUDA_OP(conv_transpose2d) = {PASSES(transpose), .bf16 = true, .channels_last = true};

/* 1-D convolutions have no channels-last layout, so values stay f32, and only factors of products
 * are rounded. */
CLV_CUDA_OP(conv1d) = {PASSES(conv), .bf16 = true};
CLV_CUDA_OP(conv_transpose1d) = {PASSES(transpose), .bf16 = true};
