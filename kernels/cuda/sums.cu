/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of channels and of squares.
 */
#include "kernels/cuda/device_int.cuh"

struct value_term {
  const float *x;
  __device__ cuda_pair operator()(size_t at, size_t) const { return {x[at], 0}; }
};

struct square_term {
  const float *x;
  __device__ cuda_pair operator()(size_t at, size_t) const {
    return {static_cast<double>(x[at]) * static_cast<double>(x[at]), 0};
  }
};

static __global__ void put_channels(cuda_sums s, const cuda_pair *parts, float *dst,
                                    bool accumulate) {
  GPU_FOR(c, s.channels) gpu_put(&dst[c], gpu_total(s, parts, c).first, accumulate);
}

clv_code clv_gpu_channel_sums(clv_gpu *g, const cuda_sums *s, const float *x, void *parts,
                              float *dst, bool accumulate, clv_err *err) {
  CLV_TRY(gpu_parts(g, s, value_term{x}, parts, err));
  return gpu_launch(g, gpu_blocks(s->channels), GPU_BLOCK, err, put_channels, *s,
                    static_cast<const cuda_pair *>(parts), dst, accumulate);
}

static __global__ void put_total(cuda_sums s, const cuda_pair *parts, double *ret) {
  *ret = gpu_total(s, parts, 0).first;
}

clv_code clv_gpu_square_sum(clv_gpu *g, const float *x, size_t n, void *parts, double *ret,
                            clv_err *err) {
  cuda_sums s = gpu_sums_of(1, 1, n);
  CLV_TRY(gpu_parts(g, &s, square_term{x}, parts, err));
  return gpu_launch(g, 1, 1, err, put_total, s, static_cast<const cuda_pair *>(parts), ret);
}
