/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of values in GPU_CHANNELS_LAST, with bf16 weights whose channels are last too. cuDNN
 * computes a pass if it has an engine for it. Otherwise im2col copies the values under each window
 * to columns, some samples at a time (at most MAX_COLUMN_BYTES, or one sample), and for each group
 * a product multiplies the columns [samples OH OW, taps C] by W [K, taps C]; its result is f32.
 *
 * Scratch holds the workspace, the gradient of the weights in f32, columns and products.
 */
#include "kernels/cuda/conv_int.h"

enum { MAX_COLUMN_BYTES = 64 << 20 };

/* Extents of a convolution in GPU_CHANNELS_LAST, and sizes of its parts and buffers. */
typedef struct conv_last_extents {
  clv_window s;
  size_t groups;
  size_t c_per_group, k_per_group; /* input and output channels of one group */
  size_t n_taps;                   /* taps of a window */
  size_t image_size;               /* values of one channel of an output */
  size_t n_weights;                /* weights of all groups */
  size_t samples_per_part;         /* samples of which the columns are in scratch at a time */
  size_t n_parts;                  /* number of parts of the batch */
  size_t rows_per_part;            /* output positions of the samples of a part */
  size_t dw_bytes;                 /* size of the buffer for weight gradients, in bytes */
  size_t columns_bytes;            /* size of the buffer for columns in bf16, in bytes */
  size_t products_bytes;           /* size of the buffer for products in f32, in bytes */
} conv_last_extents;

static void compute_part_sizes(const cuda_kernel *k, conv_last_extents *v) {
  size_t column_width = v->c_per_group * v->n_taps, n = (size_t)v->s.n,
         n_out_channels = (size_t)v->s.k;
  v->samples_per_part = CLV_MIN(
      MAX_COLUMN_BYTES / CLV_MAX(column_width * v->image_size * sizeof(float), (size_t)1), n);
  v->samples_per_part = CLV_MAX(v->samples_per_part, (size_t)1);
  while (n % v->samples_per_part) v->samples_per_part--;
  v->n_parts = n / v->samples_per_part;
  v->rows_per_part = v->samples_per_part * v->image_size;
  v->columns_bytes = clv_align_up(v->rows_per_part * column_width * sizeof(cuda_bf16), 256);
  v->products_bytes = v->rows_per_part * CLV_MAX(column_width, n_out_channels) * sizeof(float);
  v->dw_bytes = k->r.d.need_dw ? clv_align_up(v->n_weights * sizeof(float), 256) : 0;
}

static conv_last_extents describe_conv(const cuda_kernel *k) {
  conv_last_extents v = {.s = clv_window_of(&k->r.d), .groups = (size_t)k->r.d.attrs.groups};
  v.c_per_group = (size_t)v.s.c / v.groups;
  v.k_per_group = (size_t)v.s.k / v.groups;
  v.n_taps = (size_t)(v.s.kernel[0] * v.s.kernel[1]);
  v.image_size = (size_t)(v.s.oh * v.s.ow);
  v.n_weights = (size_t)v.s.k * v.c_per_group * v.n_taps;
  compute_part_sizes(k, &v);
  return v;
}

/* ---- passes computed by im2col --------------------------------------------------------------- */

/* One part of the samples in one channel group. */
typedef struct conv_last_part {
  cuda_im2col_last_args columns; /* arguments of im2col */
  size_t x, w, y;                /* indices of the first input, weight and output */
  cuda_bf16 *columns_bf16;       /* im2col matrix of this part, in scratch */
  float *products_f32;           /* products of the matrices, before they are rounded; in scratch */
} conv_last_part;

static conv_last_part make_part(const cuda_kernel *k, const clv_kernel_args *a,
                                const conv_last_extents *v, size_t part, size_t group) {
  char *address = (char *)gpu_scratch(k, a) + v->dw_bytes;
  return (conv_last_part){
      .columns = {v->s, v->samples_per_part, v->c_per_group},
      .x = part * v->samples_per_part * (size_t)(v->s.h * v->s.w * v->s.c) + group * v->c_per_group,
      .w = group * v->k_per_group * v->c_per_group * v->n_taps,
      .y = part * v->rows_per_part * (size_t)v->s.k + group * v->k_per_group,
      .columns_bf16 = (cuda_bf16 *)address,
      .products_f32 = (float *)(address + v->columns_bytes)};
}

static clv_code run_forward_part(const cuda_kernel *k, const clv_kernel_args *a,
                                 const conv_last_extents *v, cuda_conv_operands e, size_t part,
                                 clv_err *err) {
  conv_last_part p;
  for (size_t group = 0; group < v->groups; group++) {
    p = make_part(k, a, v, part, group);
    CLV_TRY(
        clv_gpu_im2col_last(k->gpu, &p.columns, (const cuda_bf16 *)e.x + p.x, p.columns_bf16, err));
    cuda_product_args f = {.a = (const cuda_bf16 *)a->cache + p.w,
                           .b = p.columns_bf16,
                           .d = p.products_f32 + group * v->k_per_group};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_FORWARD, &f, a, err));
  }
  p = make_part(k, a, v, part, 0);
  return clv_gpu_f32_to_bf16(k->gpu, p.products_f32, (cuda_bf16 *)e.y + p.y,
                             v->rows_per_part * (size_t)v->s.k, err);
}

static clv_code run_input_grad_part(const cuda_kernel *k, const clv_kernel_args *a,
                                    const conv_last_extents *v, cuda_conv_operands e, size_t part,
                                    clv_err *err) {
  for (size_t group = 0; group < v->groups; group++) {
    conv_last_part p = make_part(k, a, v, part, group);
    cuda_product_args f = {.a = (const cuda_bf16 *)a->cache + p.w,
                           .b = (const cuda_bf16 *)e.y + p.y,
                           .d = p.products_f32};
    CLV_TRY(clv_gpu_multiply(k, CLV_CUDA_GRAD_INPUT, &f, a, err));
    CLV_TRY(clv_gpu_col2im_last(k->gpu, &p.columns, p.products_f32, (cuda_bf16 *)e.x + p.x, err));
  }
  return CLV_OK;
}

static clv_code run_weight_grad_part(const cuda_kernel *k, const clv_kernel_args *a,
                                     const conv_last_extents *v, cuda_conv_operands e, size_t part,
                                     clv_err *err) {
  for (size_t group = 0; group < v->groups; group++) {
    conv_last_part p = make_part(k, a, v, part, group);
    CLV_TRY(
        clv_gpu_im2col_last(k->gpu, &p.columns, (const cuda_bf16 *)e.x + p.x, p.columns_bf16, err));
    cuda_product_args f = {.a = p.columns_bf16,
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

/* Computes a pass, with cuDNN or with im2col. Writes the gradient of the weights to the start of
 * scratch, after the workspace. */
static clv_code run_pass(const cuda_kernel *k, const clv_kernel_args *a, const conv_last_extents *v,
                         clv_cuda_pass pass, cuda_conv_operands e, clv_err *err) {
  void *w = pass == CLV_CUDA_GRAD_WEIGHT ? gpu_scratch(k, a) : a->cache;
  if (k->conv[pass])
    return k->gpu->vendor->conv(k->gpu->stream, k->conv[pass], e.x, w, e.y, 0, a->scratch, err);
  for (size_t part = 0; part < v->n_parts; part++) CLV_TRY(part_fns[pass](k, a, v, e, part, err));
  return CLV_OK;
}

static clv_code make_im2col_product(cuda_kernel *k, const conv_last_extents *v, clv_cuda_pass pass,
                                    clv_err *err) {
  int64_t column_width = (int64_t)(v->c_per_group * v->n_taps), rows = (int64_t)v->rows_per_part,
          out = (int64_t)v->k_per_group;
  const clv_cuda_matmul_desc products[] = {
      [CLV_CUDA_FORWARD] = {.a_is_transposed = true,
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
      [CLV_CUDA_GRAD_WEIGHT] = {.b_is_transposed = true,
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
  cuda_layout_conversion m = {.n = (size_t)v.s.k,
                              .channels = v.c_per_group,
                              .inner = v.n_taps,
                              .from = 1,
                              .to = GPU_CHANNELS_LAST};
  return clv_gpu_convert_layout(k->gpu, &m, a->param[CLV_SLOT_WEIGHT], a->cache, err);
}

/* Copies the gradient of the weights from scratch to the caller's f32 buffer, or adds it there. In
 * scratch the gradient is bf16 if cuDNN has computed it, else f32. */
static clv_code store_weight_grad(const cuda_kernel *k, const clv_kernel_args *a,
                                  const conv_last_extents *v, clv_err *err) {
  cuda_layout_conversion m = {
      .n = (size_t)v->s.k,
      .channels = v->c_per_group,
      .inner = v->n_taps,
      .from = k->conv[CLV_CUDA_GRAD_WEIGHT] ? GPU_CHANNELS_LAST : CLV_LAYOUT_CHANNELS_LAST | 1,
      .to = 1,
      .accumulate = a->accumulate};
  return clv_gpu_convert_layout(k->gpu, &m, gpu_scratch(k, a), a->dparam[CLV_SLOT_WEIGHT], err);
}

clv_code clv_gpu_conv_last_pass(const cuda_kernel *k, const clv_kernel_args *a, clv_cuda_pass pass,
                                cuda_conv_operands e, clv_err *err) {
  conv_last_extents v = describe_conv(k);
  CLV_TRY(run_pass(k, a, &v, pass, e, err));
  return pass == CLV_CUDA_GRAD_WEIGHT ? store_weight_grad(k, a, &v, err) : CLV_OK;
}

/* ---- preparing a kernel ---------------------------------------------------------------------- */

static clv_code open_pass(cuda_kernel *k, const conv_last_extents *v, clv_cuda_pass pass,
                          bool *ret_uses_im2col, clv_err *err) {
  clv_cuda_conv_desc d = {
      .pass = pass, .window = v->s, .groups = k->r.d.attrs.groups, .math = CLV_CUDA_BF16};
  size_t workspace = 0;
  clv_code code = k->gpu->vendor->conv_new(k->gpu->device, &d, &k->conv[pass], &workspace, err);
  k->workspace_bytes = CLV_MAX(k->workspace_bytes, workspace);
  if (code != CLV_UNIMPLEMENTED) return code;
  *ret_uses_im2col = true;
  return make_im2col_product(k, v, pass, err);
}

clv_code clv_gpu_conv_last_open(cuda_kernel *k, const cuda_wanted_passes *p, clv_err *err) {
  conv_last_extents v = describe_conv(k);
  bool uses_im2col = false;
  for (clv_cuda_pass pass = CLV_CUDA_FORWARD; pass <= CLV_CUDA_GRAD_WEIGHT; pass++)
    if (p->is_wanted[pass]) CLV_TRY(open_pass(k, &v, pass, &uses_im2col, err));
  k->workspace_bytes = clv_align_up(k->workspace_bytes, 256);
  k->r.base.cache_bytes = clv_align_up(v.n_weights * sizeof(cuda_bf16), 256);
  k->r.base.scratch_bytes =
      k->workspace_bytes + v.dw_bytes + (uses_im2col ? v.columns_bytes + v.products_bytes : 0);
  k->r.base.impl = uses_im2col ? "columns bf16" : "cuDNN bf16";
  return CLV_OK;
}
