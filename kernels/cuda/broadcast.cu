/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/broadcast_int.h"
#include "kernels/cuda/device_int.cuh"

/* Reads value i. The branch on `bf16` is the same for all threads of a launch. */
static __device__ inline float value_of(const void *p, bool bf16, size_t i) {
  return bf16 ? gpu_get(static_cast<const cuda_bf16 *>(p)[i]) : static_cast<const float *>(p)[i];
}

static __device__ inline void put_value(void *p, bool bf16, size_t i, float value) {
  if (bf16)
    static_cast<cuda_bf16 *>(p)[i] = gpu_as<cuda_bf16>(value);
  else
    static_cast<float *>(p)[i] = value;
}

static __global__ void broadcast(clv_broadcast v, cuda_bf16_flags flags, bool is_product,
                                 const void *xs, const void *zs, void *y, size_t n) {
  GPU_FOR(o, n) {
    size_t rest = o, at[2] = {0, 0};
    for (int i = v.rank; i-- > 0; rest /= v.n[i]) {
      at[0] += rest % v.n[i] * v.step[0][i];
      at[1] += rest % v.n[i] * v.step[1][i];
    }
    float x = value_of(xs, flags.in[0], at[0]), z = value_of(zs, flags.in[1], at[1]);
    put_value(y, flags.out, o, is_product ? x * z : x + z);
  }
}

clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, const cuda_bf16_flags *flags,
                           bool is_product, const void *x, const void *z, void *y, size_t n,
                           clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, broadcast, *v, *flags, is_product, x, z, y,
                    n);
}

/* ---- gradient of a broadcast input ----------------------------------------------------------- */

/* Computes the index, in the output and in the other input, of the first term of the gradient of
 * the input's value e. */
static __device__ inline void value_at(const cuda_broadcast_sum &f, size_t e, size_t *out,
                                       size_t *other) {
  *out = *other = 0;
  for (int i = f.rank; i-- > 0; e /= f.n[i]) {
    *out += e % f.n[i] * f.out[i];
    *other += e % f.n[i] * f.other[i];
  }
}

/* Returns term t of the sum for the value whose first term has index `out` in the output and index
 * `other_index` in the other input. */
static __device__ inline double term_at(const cuda_broadcast_sum &f, const void *dy,
                                        const void *other, size_t out, size_t other_index,
                                        size_t t) {
  for (int i = f.n_summed; i-- > 0; t /= f.summed[i]) {
    out += t % f.summed[i] * f.summed_out[i];
    other_index += t % f.summed[i] * f.summed_other[i];
  }
  double value = static_cast<double>(value_of(dy, f.dy_bf16, out));
  return other ? value * static_cast<double>(value_of(other, f.other_bf16, other_index)) : value;
}

static __global__ void sum_terms_per_thread(cuda_broadcast_sum f, const void *dy, const void *other,
                                            void *dx) {
  GPU_FOR(e, f.values) {
    size_t out, other_index;
    double sum = 0;
    value_at(f, e, &out, &other_index);
    for (size_t t = 0; t < f.terms; t++) sum += term_at(f, dy, other, out, other_index, t);
    put_value(dx, f.dx_bf16, e, static_cast<float>(sum));
  }
}

static __global__ void sum_terms_per_block(cuda_broadcast_sum f, const void *dy, const void *other,
                                           void *dx) {
  GPU_ROWS(e, f.values) {
    size_t out, other_index;
    double sum = 0;
    value_at(f, e, &out, &other_index);
    GPU_ROW(t, f.terms) sum += term_at(f, dy, other, out, other_index, t);
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) put_value(dx, f.dx_bf16, e, static_cast<float>(sum));
  }
}

clv_code clv_gpu_sum_broadcast(clv_gpu *g, const cuda_broadcast_sum *f, const void *dy,
                               const void *other, void *dx, clv_err *err) {
  if (f->has_thread_per_value)
    return gpu_launch(g, gpu_blocks(f->values), GPU_BLOCK, err, sum_terms_per_thread, *f, dy, other,
                      dx);
  return gpu_launch(g, gpu_blocks_of_rows(f->values), gpu_row_threads(f->terms), err,
                    sum_terms_per_block, *f, dy, other, dx);
}
