/* SPDX-License-Identifier: Apache-2.0
 *
 * packed_int: loops over packed sequences on a device.
 */
#ifndef CLEAVE_KERNELS_CUDA_PACKED_INT_CUH
#define CLEAVE_KERNELS_CUDA_PACKED_INT_CUH

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/packed_int.h"

/* Writes to *ret the row of a position, which is counted as if sequences were padded. Returns false
 * if the position is padding. */
static __device__ inline bool gpu_find_row(const cuda_packed &p, size_t position, size_t *ret) {
  size_t n = position / p.steps;
  *ret = static_cast<size_t>(p.first_rows[n]) + position % p.steps;
  return *ret < static_cast<size_t>(p.first_rows[n + 1]);
}

/* Returns the first row after the last sequence. */
static __device__ inline size_t gpu_first_unused_row(const cuda_packed &p) {
  return static_cast<size_t>(p.first_rows[p.n]);
}

/* Calls f(index, i) for value i of [steps, width] of each sequence, whose index in [rows, width] is
 * `index`, and f.fill_unused(index) for each value after the last sequence. */
template <typename F>
static __global__ void gpu_visit_packed_kernel(cuda_packed p, size_t width, F f) {
  GPU_FOR(i, p.n * p.steps * width) {
    size_t row;
    if (gpu_find_row(p, i / width, &row)) f(row * width + i % width, i % (p.steps * width));
  }
  size_t first_unused = gpu_first_unused_row(p) * width;
  GPU_FOR(i, p.rows * width - first_unused) f.fill_unused(first_unused + i);
}

template <typename F>
static clv_code gpu_visit_packed(clv_gpu *g, const cuda_packed *p, size_t width, F f,
                                 clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(p->n * p->steps * width), GPU_BLOCK, err,
                    gpu_visit_packed_kernel<F>, *p, width, f);
}

#endif
