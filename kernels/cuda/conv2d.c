/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions and transposed convolutions. The forward of a transposed convolution is the input
 * gradient of a convolution, and the other way round. cuDNN computes a pass if it has an engine for
 * it. Otherwise im2col copies the values under each window to columns, some samples at a time (at
 * most MAX_COLUMN_BYTES, or one sample), and for each group a product multiplies W [K, C taps] by
 * the columns [C taps, OH OW]. The choice depends only on the library and the shapes.
 */
#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/conv_int.h"

enum { MAX_COLUMN_BYTES = 64 << 20 };

typedef struct conv2d_extents {
  clv_window s;
  int64_t groups;
  int64_t c_per_group, k_per_group; /* input and output channels of one group */
  int64_t n_taps;                   /* taps of a window */
  int64_t image_size;               /* values of one channel of an output */
  int64_t samples_per_part;         /* samples of which the columns are in scratch at a time */
  int64_t n_parts;                  /* number of parts of the batch */
  size_t column_bytes;
} conv2d_extents;

static conv2d_extents describe_conv(const cuda_kernel *k) {
  conv2d_extents v = {.s = clv_window_of(&k->r.d), .groups = k->r.d.attrs.groups};
  v.c_per_group = v.s.c / v.groups;
  v.k_per_group = v.s.k / v.groups;
  v.n_taps = v.s.kernel[0] * v.s.kernel[1];
  v.image_size = v.s.oh * v.s.ow;
  int64_t bytes = v.c_per_group * v.n_taps * v.image_size * (int64_t)sizeof(float);
  v.samples_per_part = CLV_MAX(CLV_MIN(bytes ? MAX_COLUMN_BYTES / bytes : 1, v.s.n), 1);
  while (v.s.n % v.samples_per_part) v.samples_per_part--;
  v.n_parts = v.s.n / v.samples_per_part;
  v.column_bytes = (size_t)(bytes * v.samples_per_part);
  return v;
}

/* Buffers in scratch: the columns of im2col, and in bf16 the rounded outputs and weights, as
 * operands of products. */
typedef struct conv_buffers {
  char *columns;
  cuda_bf16 *y, *w;
} conv_buffers;

static size_t count_outputs(const conv2d_extents *v) {
  return (size_t)(v->s.n * v->s.k * v->image_size);
}
static size_t count_weights(const conv2d_extents *v) {
  return (size_t)(v->s.k * v->c_per_group * v->n_taps);
}

static conv_buffers find_buffers(const cuda_kernel *k, const clv_kernel_args *a,
                                 const conv2d_extents *v) {
  conv_buffers r = {.columns = gpu_scratch(k, a)};
  char *address = r.columns + clv_align_up(v->column_bytes, 256);
  r.y = (cuda_bf16 *)address;
  r.w = (cuda_bf16 *)(address + gpu_factor_bytes(k, count_outputs(v)));
  return r;
}

static size_t count_buffer_bytes(const cuda_kernel *k, const conv2d_extents *v) {
  return clv_align_up(v->column_bytes, 256) + gpu_factor_bytes(k, count_outputs(v)) +
         gpu_factor_bytes(k, count_weights(v));
}

/* Returns the address of value i of an operand of products. */
static const void *operand_address(const cuda_kernel *k, const void *factor, size_t i) {
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

static cuda_im2col_args make_columns(const conv2d_extents *v) {
  return (cuda_im2col_args){.window = v->s,
                            .n_samples = (size_t)v->samples_per_part,
                            .n_channels = (size_t)v->c_per_group,
                            .sample_stride = (size_t)(v->s.c * v->s.h * v->s.w)};
}

/* Return the index of the first value of one part of the samples in one channel group, in the
 * inputs, the outputs and the weights. */
static size_t first_input_index(const conv2d_extents *v, int64_t part, int64_t group) {
  return (size_t)((part * v->samples_per_part * v->s.c + group * v->c_per_group) * v->s.h * v->s.w);
}
static size_t first_output_index(const conv2d_extents *v, int64_t part, int64_t group) {
  return (size_t)((part * v->samples_per_part * v->s.k + group * v->k_per_group) * v->image_size);
}
static size_t first_weight_index(const conv2d_extents *v, int64_t group) {
  return (size_t)(group * v->k_per_group * v->c_per_group * v->n_taps);
}

static clv_code forward_by_im2col(const cuda_kernel *k, const clv_kernel_args *a,
                                  const conv2d_extents *v, cuda_conv_operands e, clv_err *err) {
  cuda_im2col_args c = make_columns(v);
  conv_buffers r = find_buffers(k, a, v);
  const void *w;
  CLV_TRY(prepare_weights(k, a, v, &r, &w, err));
  for (int64_t i = 0; i < v->n_parts * v->groups; i++) {
    int64_t part = i / v->groups, group = i % v->groups;
    CLV_TRY(clv_gpu_im2col(k->gpu, &c, (const float *)e.x + first_input_index(v, part, group),
                           r.columns, k->bf16, err));
    cuda_product_args f = {.a = r.columns,
                           .b = operand_address(k, w, first_weight_index(v, group)),
                           .d = (float *)e.y + first_output_index(v, part, group)};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_FORWARD, &f, a, err));
  }
  return CLV_OK;
}

static clv_code input_grad_by_im2col(const cuda_kernel *k, const clv_kernel_args *a,
                                     const conv2d_extents *v, cuda_conv_operands e, clv_err *err) {
  cuda_im2col_args c = make_columns(v);
  conv_buffers r = find_buffers(k, a, v);
  float *columns = (float *)(void *)r.columns;
  const void *w, *y;
  CLV_TRY(prepare_weights(k, a, v, &r, &w, err));
  CLV_TRY(prepare_outputs(k, v, e, &r, &y, err));
  for (int64_t i = 0; i < v->n_parts * v->groups; i++) {
    int64_t part = i / v->groups, group = i % v->groups;
    cuda_product_args f = {.a = operand_address(k, y, first_output_index(v, part, group)),
                           .b = operand_address(k, w, first_weight_index(v, group)),
                           .d = columns};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_GRAD_INPUT, &f, a, err));
    CLV_TRY(
        clv_gpu_col2im(k->gpu, &c, columns, (float *)e.x + first_input_index(v, part, group), err));
  }
  return CLV_OK;
}

/* Computes the gradient of the weights by im2col. Adds the samples one after the other, so that the
 * order of the sum does not depend on the size of the batch. */
static clv_code weight_grad_by_im2col(const cuda_kernel *k, const clv_kernel_args *a,
                                      const conv2d_extents *v, cuda_conv_operands e, clv_err *err) {
  cuda_im2col_args c = make_columns(v);
  conv_buffers r = find_buffers(k, a, v);
  size_t values_per_sample = (size_t)(v->c_per_group * v->n_taps * v->image_size);
  const void *y;
  CLV_TRY(prepare_outputs(k, v, e, &r, &y, err));
  for (int64_t i = 0; i < v->n_parts * v->groups; i++) {
    int64_t part = i / v->groups, group = i % v->groups;
    CLV_TRY(clv_gpu_im2col(k->gpu, &c, (const float *)e.x + first_input_index(v, part, group),
                           r.columns, k->bf16, err));
    for (int64_t n = 0; n < v->samples_per_part; n++) {
      size_t y_index = first_output_index(v, part, group) + (size_t)(n * v->s.k * v->image_size);
      cuda_product_args f = {
          .a = operand_address(k, r.columns, (size_t)n * values_per_sample),
          .b = operand_address(k, y, y_index),
          .beta = part || n || a->accumulate ? 1 : 0,
          .d = (float *)a->dparam[CLV_SLOT_WEIGHT] + first_weight_index(v, group)};
      CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_GRAD_WEIGHT, &f, a, err));
    }
  }
  return CLV_OK;
}

static clv_code make_im2col_product(cuda_kernel *k, const conv2d_extents *v, clv_cuda_pass pass,
                                    clv_err *err) {
  int64_t column_rows = v->c_per_group * v->n_taps, in_size = column_rows * v->image_size,
          out_size = v->s.k * v->image_size;
  const clv_cuda_matmul_desc products[] = {
      [CLV_CUDA_FORWARD] = {.m = v->image_size,
                            .n = v->k_per_group,
                            .k = column_rows,
                            .lda = v->image_size,
                            .ldb = column_rows,
                            .ldd = v->image_size,
                            .batch = v->samples_per_part,
                            .stride_a = in_size,
                            .stride_d = out_size},
      [CLV_CUDA_GRAD_INPUT] = {.b_is_transposed = true,
                               .m = v->image_size,
                               .n = column_rows,
                               .k = v->k_per_group,
                               .lda = v->image_size,
                               .ldb = column_rows,
                               .ldd = v->image_size,
                               .batch = v->samples_per_part,
                               .stride_a = out_size,
                               .stride_d = in_size},
      [CLV_CUDA_GRAD_WEIGHT] = {.a_is_transposed = true,
                                .m = column_rows,
                                .n = v->k_per_group,
                                .k = v->image_size,
                                .lda = v->image_size,
                                .ldb = v->image_size,
                                .ldd = column_rows,
                                .batch = 1},
  };
  return clv_gpu_new_product(k, (int)pass, &products[pass], err);
}

/* ---- a pass, by cuDNN or by im2col ----------------------------------------------------------- */

typedef clv_code im2col_pass_fn(const cuda_kernel *k, const clv_kernel_args *a,
                                const conv2d_extents *v, cuda_conv_operands e, clv_err *err);

static im2col_pass_fn *const im2col_pass_fns[] = {[CLV_CUDA_FORWARD] = forward_by_im2col,
                                                  [CLV_CUDA_GRAD_INPUT] = input_grad_by_im2col,
                                                  [CLV_CUDA_GRAD_WEIGHT] = weight_grad_by_im2col};

/* Computes a pass, which writes y (forward), x (input gradient) or the gradient of the weights. */
static clv_code run_pass(const cuda_kernel *k, const clv_kernel_args *a, clv_cuda_pass pass,
                         const void *x, const void *y, clv_err *err) {
  conv2d_extents v = describe_conv(k);
  cuda_conv_operands e = {(void *)(uintptr_t)x, (void *)(uintptr_t)y};
  bool is_weight_grad = pass == CLV_CUDA_GRAD_WEIGHT;
  if (k->channels_last) return clv_gpu_conv_last_pass(k, a, pass, e, err);
  if (!k->conv[pass]) return im2col_pass_fns[pass](k, a, &v, e, err);
  return k->gpu->vendor->conv(
      k->gpu->stream, k->conv[pass], e.x,
      is_weight_grad ? a->dparam[CLV_SLOT_WEIGHT] : a->param[CLV_SLOT_WEIGHT], e.y,
      is_weight_grad && a->accumulate ? 1 : 0, a->scratch, err);
}

/* ---- bias, added to the output [n, channels, inner] ------------------------------------------ */

typedef struct conv_output {
  size_t n, channels, inner;
} conv_output;

static conv_output describe_output(const cuda_kernel *k) {
  const clv_shape *out = &k->r.d.out;
  conv_output o = {(size_t)out->dim[0], (size_t)out->dim[1], 1};
  for (int i = 2; i < out->rank; i++) o.inner *= (size_t)out->dim[i];
  return o;
}

static clv_code add_bias(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  conv_output o = describe_output(k);
  size_t n = k->channels_last ? o.n * o.inner : o.n, inner = k->channels_last ? 1 : o.inner;
  if (!k->r.d.attrs.bias) return CLV_OK;
  return clv_gpu_add_bias(k->gpu, k->channels_last, a->param[CLV_SLOT_BIAS], a->out, n, o.channels,
                          inner, k->r.d.tail, err);
}

static cuda_sum_layout describe_bias_sum_layout(const cuda_kernel *k) {
  conv_output o = describe_output(k);
  return k->channels_last ? gpu_sum_layout_channels_last(o.n, o.channels, o.inner)
                          : gpu_sum_layout_of(o.n, o.channels, o.inner);
}

/* Computes the gradient of the bias, after the gradient of the weights. Its partial sums are in the
 * scratch that held the columns, which are not read any more. */
static clv_code compute_bias_grad(const cuda_kernel *k, const clv_kernel_args *a, clv_err *err) {
  cuda_sum_layout sums = describe_bias_sum_layout(k);
  if (!k->r.d.attrs.bias) return CLV_OK;
  return clv_gpu_sum_channels(k->gpu, &sums, k->channels_last, a->dout, gpu_scratch(k, a),
                              a->dparam[CLV_SLOT_BIAS], a->accumulate, err);
}

/* ---- forward and backward of the convolution ops --------------------------------------------- */

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
  return compute_bias_grad(k, a, err);
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
  return compute_bias_grad(k, a, err);
}

/* ---- preparing a kernel ---------------------------------------------------------------------- */

static clv_code open_pass(cuda_kernel *k, const conv2d_extents *v, clv_cuda_pass pass,
                          bool *ret_uses_im2col, clv_err *err) {
  clv_cuda_conv_desc d = {
      .pass = pass, .window = v->s, .groups = v->groups, .math = gpu_product_math(k)};
  size_t workspace = 0;
  *ret_uses_im2col |= k->bf16; /* in bf16 uses im2col, because cuDNN would round its output */
  if (k->bf16) return make_im2col_product(k, v, pass, err);
  clv_code code = k->gpu->vendor->conv_new(k->gpu->device, &d, &k->conv[pass], &workspace, err);
  k->workspace_bytes = CLV_MAX(k->workspace_bytes, workspace);
  if (code != CLV_UNIMPLEMENTED) return code;
  *ret_uses_im2col = true;
  return make_im2col_product(k, v, pass, err);
}

static clv_code open_row_major(cuda_kernel *k, const cuda_wanted_passes *p, clv_err *err) {
  conv2d_extents v = describe_conv(k);
  bool uses_im2col = false;
  for (clv_cuda_pass pass = CLV_CUDA_FORWARD; pass <= CLV_CUDA_GRAD_WEIGHT; pass++)
    if (p->is_wanted[pass]) CLV_TRY(open_pass(k, &v, pass, &uses_im2col, err));
  k->workspace_bytes = clv_align_up(k->workspace_bytes, 256);
  k->r.base.scratch_bytes = k->workspace_bytes + (uses_im2col ? count_buffer_bytes(k, &v) : 0);
  k->r.base.impl = !uses_im2col ? "cuDNN" : k->bf16 ? "columns bf16" : "columns";
  return CLV_OK;
}

static clv_code conv_open(cuda_kernel *k, clv_err *err) {
  bool dx = k->r.d.need_dx[0], is_transposed = clv_is_conv_transpose(k->r.d.op);
  cuda_wanted_passes p = {{!is_transposed || dx, is_transposed || dx, k->r.d.need_dw}};
  cuda_sum_layout sums = describe_bias_sum_layout(k);
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
