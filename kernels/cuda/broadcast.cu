/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/broadcast_int.h"
#include "kernels/cuda/device_int.cuh"

/* Returns value i of p. All threads of a launch have the same is_bf16, so they do not diverge. */
static __device__ inline float read_value(const void *p, bool is_bf16, size_t i) {
  return is_bf16 ? gpu_to_float(static_cast<const cuda_bf16 *>(p)[i])
                 : static_cast<const float *>(p)[i];
}

static __device__ inline void put_value(void *p, bool is_bf16, size_t i, float value) {
  if (is_bf16)
    static_cast<cuda_bf16 *>(p)[i] = gpu_from_float<cuda_bf16>(value);
  else
    static_cast<float *>(p)[i] = value;
}

static __global__ void broadcast(clv_broadcast v, cuda_bf16_flags flags, bool is_product,
                                 const void *xs, const void *zs, void *y, size_t n) {
  GPU_FOR(o, n) {
    size_t remaining = o, index[2] = {0, 0};
    for (int i = v.rank; i-- > 0; remaining /= v.n[i]) {
      index[0] += remaining % v.n[i] * v.step[0][i];
      index[1] += remaining % v.n[i] * v.step[1][i];
    }
    float x = read_value(xs, flags.in[0], index[0]), z = read_value(zs, flags.in[1], index[1]);
    put_value(y, flags.out, o, is_product ? x * z : x + z);
  }
}

clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, const cuda_bf16_flags *flags,
                           bool is_product, const void *x, const void *z, void *y, size_t n,
                           clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, broadcast, *v, *flags, is_product, x, z,
                    y, n);
}

/* ---- gradient of a broadcast input ----------------------------------------------------------- */

/* Computes the index, in the output and in the other input, of the first term of the gradient of
 * the input's value e. */
static __device__ inline void find_first_term(const cuda_broadcast_sum &f, size_t e,
                                              size_t *out_index, size_t *other_index) {
  *out_index = *other_index = 0;
  for (int i = f.rank; i-- > 0; e /= f.extent[i]) {
    *out_index += e % f.extent[i] * f.out_stride[i];
    *other_index += e % f.extent[i] * f.other_stride[i];
  }
}

/* Returns term t of the sum for the value whose first term has index out_index in the output and
 * index other_index in the other input. */
static __device__ inline double compute_term(const cuda_broadcast_sum &f, const void *dy,
                                             const void *other, size_t out_index,
                                             size_t other_index, size_t t) {
  for (int i = f.n_summed; i-- > 0; t /= f.summed_extent[i]) {
    out_index += t % f.summed_extent[i] * f.summed_out_stride[i];
    other_index += t % f.summed_extent[i] * f.summed_other_stride[i];
  }
  double value = static_cast<double>(read_value(dy, f.dy_is_bf16, out_index));
  return other ? value * static_cast<double>(read_value(other, f.other_is_bf16, other_index))
               : value;
}

static __global__ void sum_terms_per_thread(cuda_broadcast_sum f, const void *dy, const void *other,
                                            void *dx) {
  GPU_FOR(e, f.n_values) {
    size_t out_index, other_index;
    double sum = 0;
    find_first_term(f, e, &out_index, &other_index);
    for (size_t t = 0; t < f.n_terms; t++)
      sum += compute_term(f, dy, other, out_index, other_index, t);
    put_value(dx, f.dx_is_bf16, e, static_cast<float>(sum));
  }
}

static __global__ void sum_terms_per_block(cuda_broadcast_sum f, const void *dy, const void *other,
                                           void *dx) {
  GPU_ROWS(e, f.n_values) {
    size_t out_index, other_index;
    double sum = 0;
    find_first_term(f, e, &out_index, &other_index);
    GPU_ROW(t, f.n_terms) sum += compute_term(f, dy, other, out_index, other_index, t);
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) put_value(dx, f.dx_is_bf16, e, static_cast<float>(sum));
  }
}

clv_code clv_gpu_sum_broadcast(clv_gpu *g, const cuda_broadcast_sum *f, const void *dy,
                               const void *other, void *dx, clv_err *err) {
  if (f->has_thread_per_value)
    return gpu_launch(g, gpu_count_blocks(f->n_values), GPU_BLOCK, err, sum_terms_per_thread, *f,
                      dy, other, dx);
  return gpu_launch(g, gpu_count_row_blocks(f->n_values), gpu_count_row_threads(f->n_terms), err,
                    sum_terms_per_block, *f, dy, other, dx);
}
