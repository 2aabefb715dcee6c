/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/bf16_int.h"
#include "kernels/cuda/device_int.cuh"

static __global__ void round_values(const float *x, cuda_bf16 *y, size_t n) {
  GPU_FOR(i, n) y[i] = gpu_from_float<cuda_bf16>(x[i]);
}

clv_code clv_gpu_f32_to_bf16(clv_gpu *g, const float *x, cuda_bf16 *y, size_t n, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, round_values, x, y, n);
}

/* Returns the index that value i of one layout has in the other one; the two are row-major and
 * channels last. channels_last: i is an index in channels last. */
static __device__ inline size_t index_in_other_layout(const cuda_layout_conversion &m, size_t i,
                                                      bool channels_last) {
  size_t n_inner = channels_last ? m.channels : m.inner,
         n_outer = channels_last ? m.inner : m.channels;
  return (i / n_inner / n_outer * n_inner + i % n_inner) * n_outer + i / n_inner % n_outer;
}

template <typename S, typename D>
static __global__ void convert_values(cuda_layout_conversion m, bool changes_order, bool channels_last,
                                      const S *src, D *dst) {
  GPU_FOR(i, m.n * m.channels * m.inner) {
    float value = gpu_to_float(src[changes_order ? index_in_other_layout(m, i, channels_last) : i]);
    dst[i] = gpu_from_float<D>(m.accumulate ? gpu_to_float(dst[i]) + value : value);
  }
}

template <typename S, typename D>
static clv_code launch_convert(clv_gpu *g, const cuda_layout_conversion *m, const void *src, void *dst,
                               clv_err *err) {
  bool channels_last = clv_layout_is_channels_last(m->to),
       changes_order = channels_last != clv_layout_is_channels_last(m->from);
  return gpu_launch(g, gpu_count_blocks(m->n * m->channels * m->inner), GPU_BLOCK, err,
                    (convert_values<S, D>), *m, changes_order, channels_last,
                    gpu_cast_input<S>(src), gpu_cast_output<D>(dst));
}

template <typename S>
static clv_code launch_convert_from(clv_gpu *g, const cuda_layout_conversion *m, const void *src, void *dst,
                                    clv_err *err) {
  return (clv_layout_is_bf16(m->to) ? launch_convert<S, cuda_bf16>
                                    : launch_convert<S, float>)(g, m, src, dst, err);
}

clv_code clv_gpu_convert_layout(clv_gpu *g, const cuda_layout_conversion *m, const void *src, void *dst,
                                clv_err *err) {
  return GPU_BY_TYPE(clv_layout_is_bf16(m->from), launch_convert_from, g, m, src, dst, err);
}
