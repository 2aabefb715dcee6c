/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/broadcast_int.h"
#include "kernels/cuda/device_int.cuh"

static __global__ void broadcast(clv_broadcast v, bool product, const float *x, const float *z,
                                 float *y, size_t n) {
  GPU_FOR(o, n) {
    size_t rest = o, at[2] = {0, 0};
    for (int i = v.rank; i-- > 0; rest /= v.n[i]) {
      at[0] += rest % v.n[i] * v.step[0][i];
      at[1] += rest % v.n[i] * v.step[1][i];
    }
    y[o] = product ? x[at[0]] * z[at[1]] : x[at[0]] + z[at[1]];
  }
}

clv_code clv_gpu_broadcast(clv_gpu *g, const clv_broadcast *v, bool product, const float *x,
                           const float *z, float *y, size_t n, clv_err *err) {
  return gpu_launch(g, gpu_blocks(n), GPU_BLOCK, err, broadcast, *v, product, x, z, y, n);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Where value e of the input begins in the output and in the other input. */
static __device__ inline void value_at(const cuda_fold &f, size_t e, size_t *out, size_t *other) {
  *out = *other = 0;
  for (int i = f.rank; i-- > 0; e /= f.n[i]) {
    *out += e % f.n[i] * f.out[i];
    *other += e % f.n[i] * f.other[i];
  }
}

static __device__ inline double term_at(const cuda_fold &f, const float *dy, const float *other,
                                        size_t t) {
  size_t out = 0, beside = 0;
  for (int i = f.n_summed; i-- > 0; t /= f.summed[i]) {
    out += t % f.summed[i] * f.summed_out[i];
    beside += t % f.summed[i] * f.summed_other[i];
  }
  double value = static_cast<double>(dy[out]);
  return other ? value * static_cast<double>(other[beside]) : value;
}

static __global__ void fold_alone(cuda_fold f, const float *dy, const float *other, float *dx) {
  GPU_FOR(e, f.values) {
    size_t out, beside;
    double sum = 0;
    value_at(f, e, &out, &beside);
    for (size_t t = 0; t < f.terms; t++)
      sum += term_at(f, dy + out, other ? other + beside : nullptr, t);
    dx[e] = static_cast<float>(sum);
  }
}

static __global__ void fold_blocks(cuda_fold f, const float *dy, const float *other, float *dx) {
  GPU_ROWS(e, f.values) {
    size_t out, beside;
    double sum = 0;
    value_at(f, e, &out, &beside);
    GPU_ROW(t, f.terms) sum += term_at(f, dy + out, other ? other + beside : nullptr, t);
    sum = gpu_block_sum(sum);
    if (threadIdx.x == 0) dx[e] = static_cast<float>(sum);
  }
}

clv_code clv_gpu_fold(clv_gpu *g, const cuda_fold *f, const float *dy, const float *other,
                      float *dx, clv_err *err) {
  if (f->alone)
    return gpu_launch(g, gpu_blocks(f->values), GPU_BLOCK, err, fold_alone, *f, dy, other, dx);
  return gpu_launch(g, gpu_blocks_of_rows(f->values), gpu_row_threads(f->terms), err, fold_blocks,
                    *f, dy, other, dx);
}
