/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/pools_int.h"

/* ---- pools over windows ---------------------------------------------------------------------- */

static clv_code maxpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_maxpool(k->gpu, k->channels_last, &s, a->in[0], a->out,
                         k->r.has_backward ? a->saved : NULL, err);
}

static clv_code maxpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_maxpool_back(k->gpu, k->channels_last, &s, a->dout, a->saved, a->din[0], err);
}

CLV_CUDA_OP(maxpool) = {
    .forward = maxpool_forward, .backward_input = maxpool_backward, .channels_last = true};
CLV_CUDA_OP(maxpool1d) = {.forward = maxpool_forward, .backward_input = maxpool_backward};

static clv_code avgpool_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_avgpool(k->gpu, k->channels_last, &s, a->in[0], a->out, err);
}

static clv_code avgpool_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_window s = clv_window_of(&k->r.d);
  return clv_gpu_avgpool_back(k->gpu, k->channels_last, &s, a->dout, a->din[0], err);
}

CLV_CUDA_OP(avgpool) = {
    .forward = avgpool_forward, .backward_input = avgpool_backward, .channels_last = true};
CLV_CUDA_OP(avgpool1d) = {.forward = avgpool_forward, .backward_input = avgpool_backward};

/* ---- adaptive pools and upsampling ----------------------------------------------------------- */

static clv_code resample_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_resample r = clv_resample_of(k->r.d.op, &k->r.d.attrs, &k->r.d.in[0], &k->r.d.out);
  return clv_gpu_resample(k->gpu, k->channels_last, &r, a->in[0], a->out, err);
}

static clv_code resample_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_resample r = clv_resample_of(k->r.d.op, &k->r.d.attrs, &k->r.d.in[0], &k->r.d.out);
  return clv_gpu_resample_back(k->gpu, k->channels_last, &r, a->dout, a->din[0], err);
}

CLV_CUDA_OP(adaptive_avgpool1d) = {.forward = resample_forward,
                                   .backward_input = resample_backward};
CLV_CUDA_OP(adaptive_avgpool2d) = {
    .forward = resample_forward, .backward_input = resample_backward, .channels_last = true};
CLV_CUDA_OP(upsample_nearest) = {
    .forward = resample_forward, .backward_input = resample_backward, .channels_last = true};
CLV_CUDA_OP(upsample_bilinear) = {
    .forward = resample_forward, .backward_input = resample_backward, .channels_last = true};

/* ---- means over a dimension or an image ------------------------------------------------------ */

static clv_axis describe_mean_axis(const cuda_kernel *k) {
  size_t image_size = k->r.n_out ? k->r.n_in / k->r.n_out : 1;
  if (k->channels_last)
    return (clv_axis){(size_t)k->r.d.in[0].dim[0], image_size, (size_t)k->r.d.in[0].dim[1]};
  if (k->r.d.op == CLV_OP_GLOBALAVGPOOL) return (clv_axis){k->r.n_out, image_size, 1};
  return clv_axis_extents(&k->r.d.attrs, &k->r.d.in[0]);
}

static clv_code mean_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = describe_mean_axis(k);
  return clv_gpu_mean(k->gpu, k->channels_last, &s, a->in[0], a->out, err);
}

static clv_code mean_backward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  clv_axis s = describe_mean_axis(k);
  return clv_gpu_mean_back(k->gpu, k->channels_last, &s, a->dout, a->din[0], err);
}

/* Sets the output's layout to 1, row-major, because an output of one value a channel has the same
 * order in all layouts. */
static clv_code globalavgpool_open(cuda_kernel *k, clv_err *err) {
  (void)err;
  k->r.base.out_block = 1;
  return CLV_OK;
}

CLV_CUDA_OP(globalavgpool) = {.forward = mean_forward,
                              .backward_input = mean_backward,
                              .open = globalavgpool_open,
                              .channels_last = true};
CLV_CUDA_OP(mean) = {.forward = mean_forward, .backward_input = mean_backward};
