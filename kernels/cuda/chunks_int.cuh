/* SPDX-License-Identifier: Apache-2.0
 *
 * chunks_int: finds the chunk that a block of threads processes, in a table of ranges (cuda_range).
 */
#ifndef CLEAVE_KERNELS_CUDA_CHUNKS_INT_CUH
#define CLEAVE_KERNELS_CUDA_CHUNKS_INT_CUH

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/runs_int.h"

/* Returns the values of chunk number `chunk` as a range. The chunk belongs to the last range r with
 * ranges[r].first_chunk <= chunk, because empty ranges have no chunk. */
static __device__ inline clv_extent gpu_find_chunk(const cuda_range *ranges, size_t n, size_t chunk) {
  size_t low = 0, high = n;
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].first_chunk <= chunk)
      low = middle;
    else
      high = middle;
  }
  size_t begin = (chunk - ranges[low].first_chunk) * GPU_CHUNK_VALUES, left = ranges[low].n - begin;
  size_t max_values = GPU_CHUNK_VALUES;
  return {ranges[low].at + begin, left < max_values ? left : max_values};
}

#endif
