/* SPDX-License-Identifier: Apache-2.0
 *
 * The op prelu: y = x where x > 0, else w x, with a learned slope w for each channel or for all.
 */
#include "kernels/cuda/chunks_int.cuh"
#include "kernels/cuda/pointwise_int.h"

static __global__ void prelu(cuda_sum_layout s, const float *x, const float *w, const float *z,
                             float *y) {
  GPU_FOR(i, s.n * s.channels * s.inner)
  y[i] = x[i] > 0 ? z[i] : w[i / s.inner % s.channels] * z[i];
}

clv_code clv_gpu_prelu(clv_gpu *g, const cuda_sum_layout *s, const float *x, const float *w,
                       const float *dy, float *y, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(s->n * s->channels * s->inner), GPU_BLOCK, err, prelu, *s,
                    x, w, dy ? dy : x, y);
}

struct weight_grad_term {
  const float *x, *dy;
  __device__ cuda_pair operator()(size_t index, size_t) const {
    return {x[index] > 0 ? 0 : static_cast<double>(x[index]) * static_cast<double>(dy[index]), 0};
  }
};

static __global__ void put_prelu_weight_grads(cuda_sum_layout s, const cuda_pair *partial_sums, float *dw,
                                              bool accumulate) {
  GPU_FOR(c, s.channels)
  gpu_store_or_add(&dw[c], gpu_add_partial_sums(s, partial_sums, c).first, accumulate);
}

clv_code clv_gpu_prelu_weight_grads(clv_gpu *g, const cuda_sum_layout *s, const float *x, const float *dy,
                                    void *partial_sums, float *dw, bool accumulate, clv_err *err) {
  CLV_TRY(gpu_compute_partial_sums(g, s, weight_grad_term{x, dy}, partial_sums, err));
  return gpu_launch(g, gpu_count_blocks(s->channels), GPU_BLOCK, err, put_prelu_weight_grads, *s,
                    static_cast<const cuda_pair *>(partial_sums), dw, accumulate);
}
