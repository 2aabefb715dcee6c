/* SPDX-License-Identifier: Apache-2.0
 *
 * The op wait, which tests use, takes a given time: the host sleeps, then issues the work to the
 * device.
 */
#include <errno.h>
#include <time.h>

#include "kernels/cuda/wait_int.h"

static clv_code wait_ms(clv_gpu *g, int64_t ms, clv_err *err) {
  CLV_TRY(clv_gpu_fail_recording(g, "wait on the host", err));
  struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
  return CLV_OK;
}

static clv_code wait_forward(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  CLV_TRY(wait_ms(k->gpu, k->r.d.attrs.forward_ms, err));
  return clv_gpu_mul_by_weight(k->gpu, a->in[0], a->param[CLV_SLOT_WEIGHT], a->out, k->r.n_in, err);
}

static clv_code wait_backward_input(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  CLV_TRY(wait_ms(k->gpu, k->r.d.attrs.input_ms, err));
  return clv_gpu_mul_by_weight(k->gpu, a->dout, a->param[CLV_SLOT_WEIGHT], a->din[0], k->r.n_in,
                               err);
}

static clv_code wait_backward_weight(clv_kernel *base, const clv_kernel_args *a, clv_err *err) {
  const cuda_kernel *k = gpu_kernel_of(base);
  CLV_TRY(wait_ms(k->gpu, k->r.d.attrs.weight_ms, err));
  return clv_gpu_mul_by_weight_back(k->gpu, a->in[0], a->dout, k->r.n_in, a->scratch,
                                    a->dparam[CLV_SLOT_WEIGHT], a->accumulate, err);
}

static clv_code wait_open(cuda_kernel *k, clv_err *err) {
  cuda_sum_layout s = gpu_sum_layout_of(1, 1, k->r.n_in);
  (void)err;
  k->r.base.scratch_bytes = k->r.d.need_dw ? gpu_partial_sums_bytes(&s) : 0;
  return CLV_OK;
}

CLV_CUDA_OP(wait) = {.forward = wait_forward,
                     .backward_input = wait_backward_input,
                     .backward_weight = wait_backward_weight,
                     .open = wait_open};
