/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of sample_int.h, whose results show what the simulated device does.
 */
#include "kernels/cuda/device_int.cuh"
#include "tests/gpu/sample_int.h"

static __global__ void add(const float *x, float *y, float addend, size_t n) {
  GPU_FOR(i, n) y[i] = x[i] + addend;
}

clv_code sample_add_number(clv_gpu *g, const float *x, float *y, float addend, size_t n, clv_err *err) {
  return gpu_launch(g, gpu_count_blocks(n), GPU_BLOCK, err, add, x, y, addend, n);
}

static __global__ void sum_block(const float *x, float *y, size_t n_per_block) {
  float partial_sum = 0;
  for (size_t i = threadIdx.x; i < n_per_block; i += blockDim.x) partial_sum += x[blockIdx.x * n_per_block + i];
  partial_sum = gpu_block_sum(partial_sum);
  if (threadIdx.x == 0) y[blockIdx.x] = partial_sum;
}

clv_code sample_sum_in_blocks(clv_gpu *g, const float *x, float *y, size_t n_per_block, unsigned blocks,
                              clv_err *err) {
  return gpu_launch(g, blocks, GPU_BLOCK, err, sum_block, x, y, n_per_block);
}

static __global__ void sum_warp(const float *x, float *y) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float partial_sum = x[i];
  for (unsigned distance = 16; distance; distance /= 2)
    partial_sum += __shfl_xor_sync(~0u, partial_sum, distance);
  y[i] = partial_sum;
}

clv_code sample_sum_in_warps(clv_gpu *g, const float *x, float *y, unsigned blocks, clv_err *err) {
  return gpu_launch(g, blocks, GPU_BLOCK, err, sum_warp, x, y);
}

static __global__ void write_order(unsigned *block_order, unsigned *count) {
  block_order[atomicAdd(count, 1u)] = blockIdx.x;
}

clv_code sample_record_block_order(clv_gpu *g, unsigned *block_order, unsigned *count, unsigned blocks,
                                   clv_err *err) {
  return gpu_launch(g, blocks, 1, err, write_order, block_order, count);
}

static __global__ void write_thread_index(float *y) {
  y[threadIdx.x] = static_cast<float>(threadIdx.x);
}

clv_code sample_count_threads(clv_gpu *g, float *y, unsigned threads, clv_err *err) {
  return gpu_launch(g, 1, threads, err, write_thread_index, y);
}
