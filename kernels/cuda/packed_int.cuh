/* SPDX-License-Identifier: Apache-2.0
 *
 * packed_int: loops over packed sequences on a device.
 */
#ifndef CLEAVE_KERNELS_CUDA_PACKED_INT_CUH
#define CLEAVE_KERNELS_CUDA_PACKED_INT_CUH

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/packed_int.h"

/* Writes to *ret the row of position `position`, which is counted as if sequences were padded;
 * returns false if the position is a pad. */
static __device__ inline bool gpu_row_of(const cuda_packed &p, size_t position, size_t *ret) {
  size_t n = position / p.steps;
  *ret = static_cast<size_t>(p.first_rows[n]) + position % p.steps;
  return *ret < static_cast<size_t>(p.first_rows[n + 1]);
}

/* Returns the first row that belongs to no sequence. */
static __device__ inline size_t gpu_rest_of(const cuda_packed &p) {
  return static_cast<size_t>(p.first_rows[p.n]);
}

/* Calls f(at, i) for value i of each sequence's [steps, width], stored at index `at` of [rows,
 * width], and f.rest(at) for each value that belongs to no sequence. */
template <typename F>
static __global__ void gpu_places_kernel(cuda_packed p, size_t width, F f) {
  GPU_FOR(i, p.n * p.steps * width) {
    size_t row;
    if (gpu_row_of(p, i / width, &row)) f(row * width + i % width, i % (p.steps * width));
  }
  size_t rest = gpu_rest_of(p) * width;
  GPU_FOR(i, p.rows * width - rest) f.rest(rest + i);
}

template <typename F>
static clv_code gpu_places(clv_gpu *g, const cuda_packed *p, size_t width, F f, clv_err *err) {
  return gpu_launch(g, gpu_blocks(p->n * p->steps * width), GPU_BLOCK, err, gpu_places_kernel<F>,
                    *p, width, f);
}

#endif
