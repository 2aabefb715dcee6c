/* SPDX-License-Identifier: Apache-2.0
 *
 * chunks_int: finds the chunk of a run that a block of threads processes.
 */
#ifndef CLEAVE_KERNELS_CUDA_CHUNKS_INT_CUH
#define CLEAVE_KERNELS_CUDA_CHUNKS_INT_CUH

#include "kernels/cuda/device_int.cuh"
#include "kernels/cuda/runs_int.h"

/* Returns the values of chunk number `chunk` as a range. The chunk belongs to the last run r with
 * runs[r].first_chunk <= chunk, because empty runs have no chunk. */
static __device__ inline clv_extent gpu_find_chunk(const cuda_run *runs, size_t n, size_t chunk) {
  size_t low = 0, high = n;
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (runs[middle].first_chunk <= chunk)
      low = middle;
    else
      high = middle;
  }
  size_t begin = (chunk - runs[low].first_chunk) * GPU_CHUNK_VALUES, left = runs[low].n - begin;
  size_t max_values = GPU_CHUNK_VALUES;
  return {runs[low].at + begin, left < max_values ? left : max_values};
}

#endif
