/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolutions of values in GPU_CHANNELS_LAST, with bf16 weights whose channels are last too. cuDNN
 * computes a pass if it has an engine for it. Otherwise im2col writes out the values under each
 * window, some samples at a time (at most COLUMN_BYTES, or one sample), and a product multiplies
 * them for each group, into f32: columns [samples OH OW, taps C] by W [K, taps C].
 *
 * Scratch: workspace, gradients of weights in f32, columns and products.
 */
#include "kernels/cuda/conv_int.h"

enum { COLUMN_BYTES = 64 << 20 };

/* Extents of a convolution in GPU_CHANNELS_LAST, and sizes of its parts and buffers. */
typedef struct conv_last_extents {
  clv_window s;
  size_t groups, c, k; /* c, k: input and output channels of one group */
  /* taps: taps of a window; image: values of one channel of an output; weights: all weights */
  size_t taps, image, weights;
  /* samples: samples at a time; parts: number of such parts; rows: output positions of a part */
  size_t samples, parts, rows;
  /* bytes of the buffers for weight gradients, columns in bf16, and products in f32 */
  size_t dw_bytes, bf16_bytes, f32_bytes;
} conv_last_extents;

static void compute_part_sizes(const cuda_kernel *k, conv_last_extents *v) {
  size_t column_width = v->c * v->taps, n = (size_t)v->s.n, n_outputs = (size_t)v->s.k;
  v->samples =
      CLV_MIN(COLUMN_BYTES / CLV_MAX(column_width * v->image * sizeof(float), (size_t)1), n);
  v->samples = CLV_MAX(v->samples, (size_t)1);
  while (n % v->samples) v->samples--;
  v->parts = n / v->samples;
  v->rows = v->samples * v->image;
  v->bf16_bytes = clv_align_up(v->rows * column_width * sizeof(cuda_bf16), 256);
  v->f32_bytes = v->rows * CLV_MAX(column_width, n_outputs) * sizeof(float);
  v->dw_bytes = k->r.d.need_dw ? clv_align_up(v->weights * sizeof(float), 256) : 0;
}

static conv_last_extents describe_conv(const cuda_kernel *k) {
  conv_last_extents v = {.s = clv_window_of(&k->r.d), .groups = (size_t)k->r.d.attrs.groups};
  v.c = (size_t)v.s.c / v.groups;
  v.k = (size_t)v.s.k / v.groups;
  v.taps = (size_t)(v.s.kernel[0] * v.s.kernel[1]);
  v.image = (size_t)(v.s.oh * v.s.ow);
  v.weights = (size_t)v.s.k * v.c * v.taps;
  compute_part_sizes(k, &v);
  return v;
}

/* ---- passes computed by im2col --------------------------------------------------------------- */

/* One part of the samples in one channel group: the arguments of its im2col, and the indices of its
 * inputs, weights and outputs. */
typedef struct conv_last_part {
  cuda_last_columns columns;
  size_t x, w, y;
  cuda_bf16 *columns_bf16; /* im2col matrix of this part, in scratch */
  float *products_f32;     /* products of the matrices, before they are rounded; in scratch */
} conv_last_part;

static conv_last_part make_part(const cuda_kernel *k, const clv_kernel_args *a,
                                const conv_last_extents *v, size_t part, size_t group) {
  char *at = (char *)gpu_scratch(k, a) + v->dw_bytes;
  return (conv_last_part){
      .columns = {v->s, v->samples, v->c},
      .x = part * v->samples * (size_t)(v->s.h * v->s.w * v->s.c) + group * v->c,
      .w = group * v->k * v->c * v->taps,
      .y = part * v->rows * (size_t)v->s.k + group * v->k,
      .columns_bf16 = (cuda_bf16 *)at,
      .products_f32 = (float *)(at + v->bf16_bytes)};
}

static clv_code run_forward_part(const cuda_kernel *k, const clv_kernel_args *a,
                                 const conv_last_extents *v, cuda_conv_operands e, size_t part,
                                 clv_err *err) {
  conv_last_part p;
  for (size_t group = 0; group < v->groups; group++) {
    p = make_part(k, a, v, part, group);
    CLV_TRY(clv_gpu_to_columns_last(k->gpu, &p.columns, (const cuda_bf16 *)e.x + p.x,
                                    p.columns_bf16, err));
    cuda_factors f = {.a = (const cuda_bf16 *)a->cache + p.w,
                      .b = p.columns_bf16,
                      .d = p.products_f32 + group * v->k};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_FORWARD, &f, a, err));
  }
  p = make_part(k, a, v, part, 0);
  return clv_gpu_f32_to_bf16(k->gpu, p.products_f32, (cuda_bf16 *)e.y + p.y,
                             v->rows * (size_t)v->s.k, err);
}

static clv_code run_input_grad_part(const cuda_kernel *k, const clv_kernel_args *a,
                                    const conv_last_extents *v, cuda_conv_operands e, size_t part,
                                    clv_err *err) {
  for (size_t group = 0; group < v->groups; group++) {
    conv_last_part p = make_part(k, a, v, part, group);
    cuda_factors f = {.a = (const cuda_bf16 *)a->cache + p.w,
                      .b = (const cuda_bf16 *)e.y + p.y,
                      .d = p.products_f32};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_GRAD_INPUT, &f, a, err));
    CLV_TRY(
        clv_gpu_from_columns_last(k->gpu, &p.columns, p.products_f32, (cuda_bf16 *)e.x + p.x, err));
  }
  return CLV_OK;
}

static clv_code run_weight_grad_part(const cuda_kernel *k, const clv_kernel_args *a,
                                     const conv_last_extents *v, cuda_conv_operands e, size_t part,
                                     clv_err *err) {
  for (size_t group = 0; group < v->groups; group++) {
    conv_last_part p = make_part(k, a, v, part, group);
    CLV_TRY(clv_gpu_to_columns_last(k->gpu, &p.columns, (const cuda_bf16 *)e.x + p.x,
                                    p.columns_bf16, err));
    cuda_factors f = {.a = p.columns_bf16,
                      .b = (const cuda_bf16 *)e.y + p.y,
                      .beta = part ? 1 : 0,
                      .d = (float *)gpu_scratch(k, a) + p.w};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_GRAD_WEIGHT, &f, a, err));
  }
  return CLV_OK;
}

typedef clv_code part_fn(const cuda_kernel *k, const clv_kernel_args *a, const conv_last_extents *v,
                         cuda_conv_operands e, size_t part, clv_err *err);

static part_fn *const part_fns[] = {[CLV_CUDA_FORWARD] = run_forward_part,
                                    [CLV_CUDA_GRAD_INPUT] = run_input_grad_part,
                                    [CLV_CUDA_GRAD_WEIGHT] = run_weight_grad_part};

/* Computes a pass, with cuDNN or with im2col. The gradient of the weights is written to the start
 * of scratch. */
static clv_code run_pass(const cuda_kernel *k, const clv_kernel_args *a, const conv_last_extents *v,
                         clv_cuda_pass pass, cuda_conv_operands e, clv_err *err) {
  void *w = pass == CLV_CUDA_GRAD_WEIGHT ? gpu_scratch(k, a) : a->cache;
  if (k->conv[pass])
    return k->gpu->vendor->conv(k->gpu->stream, k->conv[pass], e.x, w, e.y, 0, a->scratch, err);
  for (size_t part = 0; part < v->parts; part++) CLV_TRY(part_fns[pass](k, a, v, e, part, err));
  return CLV_OK;
}

static clv_code open_columns(cuda_kernel *k, const conv_last_extents *v, clv_cuda_pass pass,
                             clv_err *err) {
  int64_t column_width = (int64_t)(v->c * v->taps), rows = (int64_t)v->rows, out = (int64_t)v->k;
  const clv_cuda_matmul_desc products[] = {
      [CLV_CUDA_FORWARD] = {.a_t = true,
                            .m = out,
                            .n = rows,
                            .k = column_width,
                            .lda = column_width,
                            .ldb = column_width,
                            .ldd = v->s.k,
                            .batch = 1},
      [CLV_CUDA_GRAD_INPUT] = {.m = column_width,
                               .n = rows,
                               .k = out,
                               .lda = column_width,
                               .ldb = v->s.k,
                               .ldd = column_width,
                               .batch = 1},
      [CLV_CUDA_GRAD_WEIGHT] = {.b_t = true,
                                .m = column_width,
                                .n = out,
                                .k = rows,
                                .lda = column_width,
                                .ldb = v->s.k,
                                .ldd = column_width,
                                .batch = 1},
  };
  return clv_gpu_new_product(k, (int)pass, &products[pass], err);
}

/* ---- functions of the three passes ----------------------------------------------------------- */

clv_code clv_gpu_conv_last_refresh(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  conv_last_extents v = describe_conv(k);
  cuda_move m = {
      .n = (size_t)v.s.k, .channels = v.c, .inner = v.taps, .from = 1, .to = GPU_CHANNELS_LAST};
  return clv_gpu_move_layout(k->gpu, &m, a->param[CLV_SLOT_WEIGHT], a->cache, err);
}

/* Copies the gradient of the weights from scratch to the caller's f32 buffer, or adds it. cuDNN
 * wrote it in bf16, a product in f32. */
static clv_code store_weight_grad(const cuda_kernel *k, const clv_kernel_args *a,
                                  const conv_last_extents *v, clv_err *err) {
  cuda_move m = {
      .n = (size_t)v->s.k,
      .channels = v->c,
      .inner = v->taps,
      .from = k->conv[CLV_CUDA_GRAD_WEIGHT] ? GPU_CHANNELS_LAST : CLV_LAYOUT_CHANNELS_LAST | 1,
      .to = 1,
      .accumulate = a->accumulate};
  return clv_gpu_move_layout(k->gpu, &m, gpu_scratch(k, a), a->dparam[CLV_SLOT_WEIGHT], err);
}

clv_code clv_gpu_conv_last_pass(const cuda_kernel *k, const clv_kernel_args *a, clv_cuda_pass pass,
                                cuda_conv_operands e, clv_err *err) {
  conv_last_extents v = describe_conv(k);
  CLV_TRY(run_pass(k, a, &v, pass, e, err));
  return pass == CLV_CUDA_GRAD_WEIGHT ? store_weight_grad(k, a, &v, err) : CLV_OK;
}

/* ---- preparing a kernel ---------------------------------------------------------------------- */

static clv_code open_pass(cuda_kernel *k, const conv_last_extents *v, clv_cuda_pass pass,
                          bool *ret_columns, clv_err *err) {
  clv_cuda_conv_desc d = {
      .pass = pass, .window = v->s, .groups = k->r.d.attrs.groups, .math = CLV_CUDA_BF16};
  size_t workspace = 0;
  clv_code code = k->gpu->vendor->conv_new(k->gpu->device, &d, &k->conv[pass], &workspace, err);
  k->workspace_bytes = CLV_MAX(k->workspace_bytes, workspace);
  if (code != CLV_UNIMPLEMENTED) return code;
  *ret_columns = true;
  return open_columns(k, v, pass, err);
}

clv_code clv_gpu_conv_last_open(cuda_kernel *k, const cuda_passes *p, clv_err *err) {
  conv_last_extents v = describe_conv(k);
  bool needs_columns = false;
  for (clv_cuda_pass pass = CLV_CUDA_FORWARD; pass <= CLV_CUDA_GRAD_WEIGHT; pass++)
    if (p->is_wanted[pass]) CLV_TRY(open_pass(k, &v, pass, &needs_columns, err));
  k->workspace_bytes = clv_align_up(k->workspace_bytes, 256);
  k->r.base.cache_bytes = clv_align_up(v.weights * sizeof(cuda_bf16), 256);
  k->r.base.scratch_bytes =
      k->workspace_bytes + v.dw_bytes + (needs_columns ? v.bf16_bytes + v.f32_bytes : 0);
  k->r.base.impl = needs_columns ? "columns bf16" : "cuDNN bf16";
  return CLV_OK;
}
